"""On a GPU the same lines run: the engine keeps CuPy's rules, waits once an update, and is flat.

Proved on a machine without one by a fake device array that obeys CuPy's rules (fake_device.py), and
by replaying every NumPy call on CuPy's own arrays (replay.py). The tests marked gpu are the same on
real CuPy arrays.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

import minigrad as mg
from minigrad.device import move_to
from tests.fake_device import Meter, to_fake, to_host
from tests.grades import Micro
from tests.replay import record, replay


def model_of(norm=None, dropout=0.0, dtype=np.float32) -> mg.Module:
    mg.manual_seed(0)
    return mg.MLP(12, 16, 16, 5, norm=norm, dropout=dropout, dtype=dtype)


def group_norm(features: int, dtype: type) -> mg.Module:
    return mg.GroupNorm(4, features, dtype=dtype)


def classification(n: int = 48, seed: int = 0) -> tuple:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 12)).astype(np.float32), rng.integers(0, 5, n)


def masked(logits, y):
    y = np.where(np.arange(len(y)) % 3 == 0, -100, y)
    return mg.cross_entropy(logits, y, class_weights=[1, 2, 3, 4, 5], label_smoothing=0.1)


def two_units(outputs, y):
    weights = np.linspace(0, 1, len(y))
    auxiliary = mg.squared_error(outputs[:, 0], y, sample_weights=weights, unit="value")
    return mg.cross_entropy(outputs, y) + 0.5 * auxiliary


@mg.coupled
def halves(outputs, y):
    return mg.contrastive((outputs[:, :2], outputs[:, 2:4]), temperature=0.5)


def running(features: int, dtype: type) -> mg.Module:
    return mg.BatchNorm(features, statistics="running", dtype=dtype)


def binary(outputs, y):
    targets = (np.arange(5) == y[:, None]).astype(np.float32)
    loss = mg.binary_cross_entropy_with_logits(outputs, targets)
    return loss + mg.absolute_error(outputs, targets)


SETTINGS = {
    "SGD": ({}, mg.cross_entropy, lambda p: mg.SGD(p, 0.1, momentum=0.9, nesterov=True)),
    "Adam, BatchNorm": ({"norm": mg.BatchNorm}, mg.cross_entropy, lambda p: mg.Adam(p, 0.01)),
    "Adam, micro": ({"norm": Micro}, mg.cross_entropy, lambda p: mg.Adam(p, 0.01)),
    "Adam, running": ({"norm": running}, mg.cross_entropy, lambda p: mg.Adam(p, 0.01)),
    "BatchNorm, two units": ({"norm": mg.BatchNorm}, two_units, lambda p: mg.Adam(p, 0.01)),
    "BatchNorm, contrastive": ({"norm": mg.BatchNorm}, halves, lambda p: mg.Adam(p, 0.01)),
    "AdamW, dropout": ({"dropout": 0.25}, mg.cross_entropy, lambda p: mg.AdamW(p, 0.01)),
    "LayerNorm, masks": (
        {"norm": mg.LayerNorm},
        masked,
        lambda p: mg.SGD(p, 0.1, weight_decay=0.1),
    ),
    "GroupNorm, two units": ({"norm": group_norm}, two_units, lambda p: mg.Adam(p, 0.01)),
    "LARS": ({}, mg.cross_entropy, lambda p: mg.LARS(p, 1.0, weight_decay=0.1, clip=True)),
    "LARS, corrected": (
        {"norm": mg.LayerNorm},
        mg.cross_entropy,
        lambda p: mg.LARS(p, mg.warmup(1.0, 3), form="corrected"),
    ),
    "LAMB, BatchNorm": (
        {"norm": mg.BatchNorm},
        mg.cross_entropy,
        lambda p: mg.LAMB(p, 0.01, norm_limits=(0.1, 10)),
    ),
    "binary": ({}, binary, lambda p: mg.Adam(p, 0.01, weight_decay=0.1)),
}


def train(setting: str, move=None, updates: int = 3, **options) -> tuple[list, list]:
    """Some updates of 48 samples in micro-batches of 10; reports and final arrays on the host."""
    architecture, loss, optimizer = SETTINGS[setting]
    model = model_of(**architecture)
    if move is not None:
        move_to(model, move)
    optimizer = optimizer(model.parameters())
    average = mg.WeightAverage(model.parameters(), 0.9)
    reports = [
        mg.train_step(
            model,
            loss,
            optimizer,
            classification(seed=i),
            10,
            clip_norm=1.0,
            average=average,
            **options,
        )
        for i in range(updates)
    ]
    return reports, [*model.state_dict().values(), *average.values]


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_fake_device_gives_the_bits_of_numpy(setting):
    reports, arrays = train(setting)
    with Meter():
        far_reports, far_arrays = train(setting, to_fake)
        far_arrays = [to_host(array) for array in far_arrays]
    assert reports == far_reports
    assert all(r.updated for r in reports)
    for a, b in zip(arrays, far_arrays, strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_update_waits_once_and_never_inside_a_micro_batch(setting):
    with Meter() as meter:
        train(setting, to_fake, updates=4)
        assert meter.waits == 4
        assert meter.index_copies == 0

    architecture, loss, _ = SETTINGS[setting]
    model = move_to(model_of(**architecture), to_fake)
    x, y = classification()
    with Meter() as meter, meter.forbid_waits():
        for part in mg.micro_batches(len(x), 10):
            loss(
                model(np.asarray(x[part], like=model.parameters()[0].data)), y[part]
            ).mean().backward()


@pytest.mark.parametrize("way", ["parts", "sums"])
def test_measuring_the_noise_waits_no_further_and_gives_the_bits_of_numpy(way):
    reports, _ = train("AdamW, dropout", noise=way)
    with Meter() as meter:
        far_reports, _ = train("AdamW, dropout", to_fake, noise=way)
        assert meter.waits == len(far_reports)
    assert reports == far_reports
    assert all(report.noise is not None for report in reports)


def test_labels_that_lie_on_the_device_are_trusted_and_cost_no_wait():
    x, y = classification()
    model = move_to(model_of(), to_fake)
    optimizer = mg.SGD(model.parameters(), 0.1)
    with Meter() as meter:
        masked_y = np.where(np.arange(48) % 3 == 0, -100, y)
        far = mg.train_step(model, mg.cross_entropy, optimizer, (to_fake(x), to_fake(masked_y)), 10)
        assert meter.waits == 1
    near = mg.accumulate(model_of(), mg.cross_entropy, (x, masked_y), 10)
    assert far.weights == {"sample": 32}
    assert far.loss == near.loss


def peak(k: int, move=to_fake, n: int = 64) -> int:
    """The most bytes that are alive in a warm update of n samples in k parts."""
    model = move_to(mg.MLP(32, 64, 64, 10), move)
    optimizer = mg.Adam(model.parameters())
    rng = np.random.default_rng(0)
    batch = rng.standard_normal((n, 32)).astype(np.float32), rng.integers(0, 10, n)
    mg.train_step(model, mg.cross_entropy, optimizer, batch, accumulation_steps=k)
    with Meter() as meter:
        mg.train_step(model, mg.cross_entropy, optimizer, batch, accumulation_steps=k)
    return meter.peak


def test_device_memory_is_flat_in_k_without_the_garbage_collector():
    gc.disable()
    try:
        assert len({peak(k, n=8 * k) for k in (2, 4, 16, 64)}) == 1  # fixed b = 8
        assert peak(32, n=1024) < peak(4, n=1024) < peak(1, n=1024)  # fixed N
    finally:
        gc.enable()


def test_a_limit_that_the_whole_batch_breaks_is_kept_by_micro_batches_and_nothing_is_lost():
    model = move_to(mg.MLP(32, 64, 64, 10), to_fake)
    optimizer = mg.Adam(model.parameters())
    rng = np.random.default_rng(0)
    batch = rng.standard_normal((256, 32)).astype(np.float32), rng.integers(0, 10, 256)
    before = [to_host(p.data) for p in model.parameters()]
    limit = (peak(1, n=256) + peak(32, n=256)) // 2
    with Meter(limit=limit):
        with pytest.raises(MemoryError):
            mg.train_step(model, mg.cross_entropy, optimizer, batch, accumulation_steps=1)
        assert optimizer.updates == 0
        assert all(p.grad is None for p in model.parameters())
        assert mg.train_step(
            model, mg.cross_entropy, optimizer, batch, accumulation_steps=32
        ).updated
    after = [to_host(p.data) for p in model.parameters()]
    assert not any(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("setting", SETTINGS)
def test_cupy_knows_every_numpy_call_of_an_update(setting):
    """Each distinct call is made on cupy.ndarray objects over host memory: names and keywords."""
    pytest.importorskip("cupy")
    with Meter(), record() as calls:
        train(setting, to_fake, updates=2)
    assert len(calls) > 30
    assert replay(calls) == {}


# --------------------------------------------------------------------------- on a real GPU


needs_gpu = pytest.mark.skipif(not mg.available(), reason="needs a GPU")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_gpu_trains_as_the_cpu_does_to_rounding(setting):
    reports, arrays = train(setting)
    far_reports, far_arrays = train(setting, mg.to_gpu)
    for near, far in zip(reports, far_reports, strict=True):
        assert far.loss == pytest.approx(near.loss, rel=1e-5)
    for a, b in zip(arrays, far_arrays, strict=True):
        np.testing.assert_allclose(mg.to_cpu(b), a, rtol=2e-3, atol=2e-4)


@pytest.mark.gpu
@needs_gpu
def test_gpu_memory_is_flat_in_k():
    peaks = []
    for k in (2, 4, 16):
        model = mg.to_gpu(mg.MLP(256, 512, 512, 10))
        optimizer = mg.Adam(model.parameters())
        rng = np.random.default_rng(0)
        batch = rng.standard_normal((64 * k, 256)).astype(np.float32), rng.integers(0, 10, 64 * k)
        mg.train_step(model, mg.cross_entropy, optimizer, batch, accumulation_steps=k)
        with mg.measure_memory(gpu=True) as memory:
            mg.train_step(model, mg.cross_entropy, optimizer, batch, accumulation_steps=k)
        peaks.append(memory.peak)
    assert max(peaks) <= 1.02 * min(peaks)


@pytest.mark.skipif(mg.available(), reason="needs a machine without a GPU")
def test_without_a_gpu_to_gpu_says_what_is_missing():
    with pytest.raises(RuntimeError, match="found no GPU"):
        mg.to_gpu(np.zeros(3))
    x = np.zeros(3)
    assert mg.to_cpu(x) is x
