"""k micro-batches are one batch: every layer, loss and optimizer is held to its grade.

The table is in grades.py. Splits are drawn at random: equal, uneven, of single samples.
"""

from __future__ import annotations

import inspect
import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import minigrad as mg
from tests.grades import (
    LAYERS,
    LOSSES,
    OPTIMIZERS,
    Case,
    Catch,
    gradients,
    make,
    regression,
    stream,
)

CASES = {case.name: case for case in LAYERS + LOSSES}
N = 12


def named(*grades: str) -> list:
    return [pytest.param(case, id=case.name) for case in CASES.values() if case.grade in grades]


@st.composite
def splits(draw, least: int = 1):
    """Sizes of the parts of N samples, each of `least` or more, in two parts or more."""
    sizes, left = [], N
    while left:
        size = draw(st.integers(least, max(least, left // 2)))
        size = left if left - size < least else size
        sizes.append(size)
        left -= size
    return sizes if len(sizes) > 1 else [N // 2, N - N // 2]


def nonzero(arrays: list) -> int:
    return sum(int(np.count_nonzero(a)) for a in arrays)


def test_every_layer_and_every_loss_has_a_grade():
    """Each of them runs in a case of the table. Losses of a whole batch: test_coupled_losses.py."""
    public = [getattr(mg, name) for name in mg.__all__]
    layers = [c for c in public if inspect.isclass(c) and issubclass(c, mg.Module)]
    functions = [f for f in public if inspect.isfunction(f) and not hasattr(f, "couples")]
    wanted = {c.__name__: c.forward.__code__ for c in layers if c is not mg.Module}
    wanted |= {f.__name__: f.__code__ for f in functions if f.__annotations__["return"] == "Loss"}
    codes = set()
    sys.setprofile(lambda frame, event, _: codes.add(frame.f_code) if event == "call" else None)
    try:
        for case in CASES.values():
            gradients(*make(case, 0, N, np.float64), [N])
    finally:
        sys.setprofile(None)
    assert [name for name, code in wanted.items() if code not in codes] == []


@pytest.mark.parametrize("dtype", [np.float32, np.float64, object], ids=["f4", "f8", "Fraction"])
@pytest.mark.parametrize("case", named("exact"))
@settings(max_examples=8)
@given(split=splits(), seed=st.integers(0, 1000), reduction=st.sampled_from(["mean", "sum"]))
def test_exact_means_equal_for_any_split(case: Case, dtype, split, seed, reduction):
    model, loss, batch = make(case, seed, N, dtype)
    whole = gradients(model, loss, batch, [N], reduction)
    assume(nonzero(whole) > 0.2 * sum(a.size for a in whole))  # dead units prove nothing
    parts = gradients(model, loss, batch, split, reduction)
    for a, b in zip(whole, parts, strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])
@pytest.mark.parametrize("case", named("exact"))
def test_dyadic_sums_in_floats_are_those_of_fractions(case: Case, dtype):
    """So that `==` above is no accident: no float operation of the sum has rounded."""
    in_floats = gradients(*make(case, 3, N, dtype), [5, 4, 3], "sum")
    in_fractions = gradients(*make(case, 3, N, object), [5, 4, 3], "sum")
    for a, b in zip(in_floats, in_fractions, strict=True):
        assert np.array_equal(a.astype(np.float64), b.astype(np.float64))


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f4", "f8"])
@pytest.mark.parametrize("case", named("exact", "rounding"))
@settings(max_examples=8)
@given(split=splits(), seed=st.integers(0, 1000))
def test_rounding_means_within_the_bound_for_any_split(case: Case, dtype, split, seed):
    model, loss, batch = make(case, seed, N, dtype)
    rng = np.random.default_rng(seed)
    for p in model.parameters():  # no dyadic numbers here
        p.data += rng.standard_normal(p.data.shape).astype(dtype) / 8
    whole = gradients(model, loss, batch, [N])
    parts = gradients(model, loss, batch, split)
    # sum_i |g_i|, divided by the weight of the batch as the gradient is.
    report = mg.accumulate(model, loss, batch, N)
    each = [sample_gradients(model, loss, batch, i) for i in range(N)]
    weight = next(iter(report.weights.values()))
    u, k, c = np.finfo(dtype).eps / 2, len(split), 8 * case.depth
    for j, (a, b) in enumerate(zip(whole, parts, strict=True)):
        size = sum(np.abs(g[j]) for g in each) / weight
        assert np.all(np.abs(a - b) <= c * u * (N + k) * size + np.finfo(dtype).tiny)
    assert nonzero(whole) > 0


def sample_gradients(model, loss, batch, i):
    """The gradient of the loss of sample i in its batch, not divided."""
    x, *targets = batch
    for p in model.parameters():
        p.grad = None
    with mg.drawing(mg.Samples(mg.current_seed(), 0, 0, N, model.modules)):
        loss(model(x)[i : i + 1], *(t[i : i + 1] for t in targets)).sum().backward()
    return [np.zeros_like(p.data) if p.grad is None else p.grad.copy() for p in model.parameters()]


@pytest.mark.parametrize("case", named("different"))
@settings(max_examples=10)
@given(split=splits(least=2), seed=st.integers(0, 1000))
def test_different_means_a_gap_that_does_not_vanish(case: Case, split, seed):
    model, loss, batch = make(case, seed, N, np.float64)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(batch[0].shape)
    whole, parts = (
        np.concatenate([g.ravel() for g in gradients(model, loss, (x, batch[1]), sizes)])
        for sizes in ([N], split)
    )
    assert np.linalg.norm(whole - parts) > 1e-2 * np.linalg.norm(whole)


# ------------------------------------------------------------------------------- optimizers


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@settings(max_examples=6)
@given(split=splits(), seed=st.integers(0, 1000))
def test_the_first_update_of_every_optimizer_is_exact_on_dyadic_float32(optimizer, split, seed):
    results = []
    for sizes in ([N], split):
        model, loss, batch = make(CASES["MLP"], seed, N, np.float32)
        stream(model, loss, OPTIMIZERS[optimizer](model.parameters()), batch, sizes)
        results.append([p.data for p in model.parameters()])
    before = [p.data for p in make(CASES["MLP"], seed, N, np.float32)[0].parameters()]
    assert any(not np.array_equal(a, b) for a, b in zip(before, results[0], strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name.startswith("SGD")])
def test_sgd_in_fractions_is_exact_over_updates(optimizer):
    results = []
    for sizes in ([5], [2, 1, 2]):
        model, loss, _ = make(CASES["ReLU"], 1, 5, object)
        update = OPTIMIZERS[optimizer](model.parameters())
        rng = np.random.default_rng(1)
        for _ in range(3):
            stream(model, loss, update, regression(rng, 5), sizes)
        results.append([p.data for p in model.parameters()])
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_twenty_updates_stay_equal_to_rounding(optimizer):
    """Rounding grows over updates: float64, and a loose bound on the weights."""
    results = []
    for sizes in ([N], [5, 4, 3]):
        model, loss, _ = make(CASES["Tanh"], 2, N, np.float64)
        update = OPTIMIZERS[optimizer](model.parameters())
        rng = np.random.default_rng(2)
        for _ in range(20):
            batch = rng.standard_normal((N, 3)), rng.standard_normal((N, 2))
            stream(model, loss, update, batch, sizes)
        results.append(np.concatenate([p.data.ravel() for p in model.parameters()]))
    assert np.linalg.norm(results[0] - results[1]) < 1e-12 * np.linalg.norm(results[0])


# ------------------------------------------------- the same through accumulate and train_step


@settings(max_examples=20)
@given(size=st.integers(1, 2 * N), by_steps=st.booleans(), seed=st.integers(0, 1000))
def test_accumulate_and_train_step_give_the_gradient_of_one_batch(size, by_steps, seed):
    model, loss, batch = make(CASES["MLP"], seed, N, np.float32)
    option = {"accumulation_steps" if by_steps else "micro_batch_size": size}
    one = mg.accumulate(model, loss, batch, N)
    whole = [p.grad for p in model.parameters()]
    many = mg.accumulate(model, loss, batch, **option)
    assert all(np.array_equal(a, p.grad) for a, p in zip(whole, model.parameters(), strict=True))
    assert (one.loss, one.weights) == (many.loss, many.weights)
    catch = Catch(model.parameters())
    mg.train_step(model, loss, catch, batch, **option)
    assert all(np.array_equal(a, b) for a, b in zip(whole, catch.caught, strict=True))
