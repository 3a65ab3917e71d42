"""Memory: what accumulation saves, what it does not, and what a step may cost at most.

All deterministic: bytes, page faults and calls are counted, no time is measured.
"""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

import minigrad as mg
from minigrad.device import move_to
from tests.benchmarks.workloads import WORKLOADS, draw
from tests.fake_device import Meter, to_fake
from tests.grades import Micro

MIB = 2**20


def training(widths=(64, 256, 256, 10), dtype=np.float64, norm=None, dropout=0.0, n=1024):
    """Model, optimizer and batch, after a first update."""
    rng = np.random.default_rng(0)
    model = mg.MLP(*widths, norm=norm, dropout=dropout, dtype=dtype)
    optimizer = mg.SGD(model.parameters(), lr=0.01)
    batch = rng.standard_normal((n, widths[0])).astype(dtype), rng.integers(0, widths[-1], n)
    mg.train_step(model, mg.cross_entropy, optimizer, batch, 64)
    return model, optimizer, batch


def peak(model, optimizer, batch, **split) -> int:
    with mg.measure_memory() as memory:
        mg.train_step(model, mg.cross_entropy, optimizer, batch, **split)
    return memory.peak


@pytest.fixture(autouse=True)
def no_garbage_collector():
    """What is not freed at once by its last reference would hide in a cycle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_at_fixed_n_the_activations_fall_as_one_over_k():
    setup = training()
    optimizer = setup[1]
    scratch = sum(s.nbytes for s in optimizer.prepare()[1])
    one = peak(*setup, accumulation_steps=1)
    for k in (2, 4, 8):
        # What does not fall with k is the optimizer's scratch, one product of a weight's size to
        # be added, and some small objects.
        constant = max(scratch, 256 * 256 * 8) + 0.1 * MIB
        assert peak(*setup, accumulation_steps=k) < one / k + constant
    assert one > 5 * MIB


@pytest.mark.parametrize("norm", [None, mg.BatchNorm, Micro, mg.LayerNorm])
def test_at_fixed_b_the_peak_is_flat_in_n(norm):
    setup = training(norm=norm, dropout=0.1)
    model, optimizer, (x, y) = setup
    peaks = [
        peak(model, optimizer, (x[:n], y[:n]), micro_batch_size=64) for n in (128, 256, 512, 1024)
    ]
    assert max(peaks) - min(peaks) < 0.02 * min(peaks)


def test_an_update_leaves_nothing_behind():
    model, optimizer, batch = training(dropout=0.1, norm=mg.LayerNorm)
    mg.train_step(model, mg.cross_entropy, optimizer, batch, 64)
    with mg.measure_memory() as memory:
        for _ in range(5):
            mg.train_step(model, mg.cross_entropy, optimizer, batch, 64)
    assert memory.live < 16384  # a few Python objects; one activation has 131,072 bytes


def test_whoever_keeps_a_loss_keeps_no_tape_not_even_of_targets_that_do_not_count():
    """A micro-batch whose targets are all masked is not differentiated, so nothing frees its tape
    but the window."""
    model, kept = mg.MLP(5, 8, 3, rng=np.random.default_rng(0)), []
    x, labels = (
        np.random.default_rng(0).standard_normal((8, 5)),
        np.array([0, 1, 2, 0] + [-100] * 4),
    )

    def loss(outputs, targets):
        kept.append(mg.cross_entropy(outputs, targets, ignore_index=-100))
        return kept[-1]

    mg.accumulate(model, loss, (x.astype(np.float32), labels), 4)
    assert [term.total.node for one in kept for term in one.terms] == [None, None]


def test_w5a_needs_little_more_than_the_minimum():
    """Parameters, gradients, m and v; saved activations; one gradient in flight; one scratch."""
    workload = WORKLOADS["W5a"]
    b, widths = workload.micro_batch_size, workload.widths
    arrays, batch = draw(workload)
    parameters = sum(array.nbytes for array in arrays)
    activations = sum(b * width * 4 for width in widths[1:])
    in_flight, scratch = b * max(widths[1:]) * 4, max(array.nbytes for array in arrays)
    minimum = 4 * parameters + activations + in_flight + scratch
    with mg.measure_memory() as memory:
        model = mg.MLP(*widths, dtype=np.float32)
        optimizer = mg.Adam(model.parameters())
        before = memory_in_use()
        for p, array in zip(model.parameters(), arrays, strict=True):
            p.data[...] = array
        reset_peak()
        for _ in range(2):
            mg.train_step(model, mg.cross_entropy, optimizer, batch, micro_batch_size=b)
    assert before >= 4 * parameters
    assert memory.peak <= 1.10 * minimum


def memory_in_use() -> int:
    import tracemalloc

    return tracemalloc.get_traced_memory()[0]


def reset_peak() -> None:
    """To make the model costs more for a moment: drawing the weights in float64."""
    import tracemalloc

    tracemalloc.reset_peak()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: the bound is for its allocator")
def test_a_warm_w3_step_causes_hardly_any_page_faults():
    import resource

    workload = WORKLOADS["W3"]
    arrays, batch = draw(workload)
    model = mg.MLP(*workload.widths, dtype=np.float32)
    for p, array in zip(model.parameters(), arrays, strict=True):
        p.data[...] = array
    optimizer = mg.Adam(model.parameters())

    def steps(count: int) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(count):
            mg.train_step(model, mg.cross_entropy, optimizer, batch, workload.micro_batch_size)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    steps(5)
    assert steps(10) / 10 < 50


@pytest.mark.parametrize(("name", "most"), [("W1", 75), ("W2", 90), ("W4", 150)])
def test_a_step_makes_a_bounded_number_of_numpy_calls(name, most):
    """Counted on the fake device. An engine of small operations makes several hundred."""
    workload = WORKLOADS[name]
    _, batch = draw(workload)
    norm = mg.BatchNorm if workload.batch_norm else None
    model = move_to(mg.MLP(*workload.widths, norm=norm, dtype=np.float32), to_fake)
    optimizer = mg.Adam(model.parameters())
    step = lambda: mg.train_step(  # noqa: E731
        model, mg.cross_entropy, optimizer, batch, workload.micro_batch_size
    )
    step()
    with Meter() as meter:
        step()
    assert meter.kernels <= most


def test_in_float32_the_accumulated_gradient_is_that_of_one_batch_to_2e_6():
    workload = WORKLOADS["W5a"]
    arrays, batch = draw(workload)
    results = []
    for size in (workload.batch_size, workload.micro_batch_size):
        model = mg.MLP(*workload.widths, dtype=np.float32)
        for p, array in zip(model.parameters(), arrays, strict=True):
            p.data[...] = array
        mg.accumulate(model, mg.cross_entropy, batch, size)
        results.append(np.concatenate([p.grad.ravel() for p in model.parameters()]))
    whole, parts = (r.astype(np.float64) for r in results)
    assert 0 < np.linalg.norm(whole - parts) < 2e-6 * np.linalg.norm(whole)


def test_the_meter_counts_what_numpy_allocates():
    with mg.measure_memory() as memory:
        kept = np.ones(MIB, dtype=np.uint8)
        np.ones(3 * MIB, dtype=np.uint8)
    assert 4 * MIB <= memory.peak < 4 * MIB + 4096
    assert kept.nbytes <= memory.live < kept.nbytes + 4096


def test_a_measurement_inside_another_is_refused_and_the_outer_one_goes_on():
    with mg.measure_memory() as memory:
        kept = np.ones(MIB, dtype=np.uint8)
        with pytest.raises(RuntimeError, match="one block after the other"), mg.measure_memory():
            pass
    assert memory.live >= kept.nbytes
