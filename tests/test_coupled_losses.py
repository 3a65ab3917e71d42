"""Losses that look at all samples of a batch: k micro-batches give the gradient of one batch.

The gradient cache (Gao et al. 2021): the outputs of all samples, the loss of them once, and a pass
with the gradient of the outputs in its place. Held against the loss of the whole batch, in floats
and, for a rational loss, in Fractions with `==`.
"""

from __future__ import annotations

import functools
import gc
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest

import minigrad as mg
from minigrad.losses import BATCH, Loss, Term
from minigrad.samples import current_samples
from tests.bits import bits
from tests.grades import Catch
from tests.toys import gap

N = 12
SPLITS = [[4, 4, 4], [5, 1, 4, 2], [1, 11], [1] * N]
F8 = {"dtype": np.float64}


@pytest.fixture(autouse=True)
def seed():
    mg.manual_seed(0)


def tower(norm=None, dropout=0.0) -> mg.Module:
    return mg.MLP(5, 6, 4, activation=mg.Tanh, norm=norm, dropout=dropout, **F8)


class Towers(mg.Module):
    """Two encoders and a temperature that is learned, as in CLIP; outputs are a pair."""

    def __init__(self, norm=None, dropout=0.0):
        self.left, self.right = tower(norm, dropout), tower(norm, dropout)
        self.scale = mg.parameter(np.array(1.25))

    def forward(self, pair):
        return self.left(pair[0]), self.right(pair[1])


class Mask(mg.Module):
    """A probability for each of 4 places."""

    def __init__(self, norm=None, dropout=0.0):
        self.inside = tower(norm, dropout)

    def forward(self, x):
        return mg.sigmoid(self.inside(x))


def views(n: int = N) -> tuple:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 5))
    return ((x, x + rng.standard_normal((n, 5)) / 4),)


def shapes(n: int = N) -> tuple:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 5)), (rng.random((n, 4)) < 0.4).astype(float)


def cut(part, where):
    return tuple(cut(p, where) for p in part) if isinstance(part, tuple) else part[where]


def window(make, loss, batch, split, reduction="mean", bind=None):
    """Gradients and report of one window, of parts of any size."""
    mg.manual_seed(3)
    model = make()
    rng = np.random.default_rng(1)
    for p in model.parameters():
        p.data += rng.standard_normal(p.shape) / 4
    catch = Catch(model.parameters())
    stops = list(accumulate(split))
    parts = [cut(batch, slice(e - n, e)) for e, n in zip(stops, split, strict=True)]
    one = mg.Accumulator(model, catch, accumulation_steps=len(split), reduction=reduction)
    report = one.window(bind(model) if bind else loss, parts)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    return catch.caught, report


def hold(make, loss, batch, split, passes, reduction="mean", bind=None):
    expected, one = window(make, loss, batch, [N], reduction, bind)
    found, many = window(make, loss, batch, split, reduction, bind)
    assert gap(found, expected) < 1e-12
    assert many.loss == pytest.approx(one.loss, rel=1e-13)
    assert many.grad_norm == pytest.approx(one.grad_norm, rel=1e-12)
    assert many.weights == one.weights
    assert (one.passes, many.passes) == (1, passes)
    assert many.micro_batches == len(split)


# ------------------------------------------------------------------- equal to one large batch

every_split = pytest.mark.parametrize("split", SPLITS, ids=str)
every_net = pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({}, 2),
        ({"dropout": 0.25}, 2),
        ({"norm": mg.BatchNorm}, 4),
        ({"norm": mg.BatchNorm, "dropout": 0.25}, 4),
    ],
    ids=["plain", "dropout", "BatchNorm", "both"],
)


@every_split
@every_net
def test_contrastive(options, passes, split):
    hold(lambda: Towers(**options), mg.contrastive, views(), split, passes)


@every_split
@every_net
def test_dice(options, passes, split):
    hold(lambda: Mask(**options), mg.dice, shapes(), split, passes)


@mg.coupled
def several(outputs, t):
    """Three units of the whole batch: of pairs, of elements, and Dice."""
    a, b = outputs[:, :2], outputs[:, 2:]
    pairs = mg.contrastive((a, b), temperature=0.5)
    pairs.terms[0].unit = "pair"
    return 0.5 * pairs + 2 * mg.squared_error(outputs, t) + mg.dice(outputs, t)


@every_split
@every_net
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_of_several_units(options, passes, split, reduction):
    hold(lambda: Mask(**options), several, shapes(), split, passes, reduction)


def with_temperature(model):
    """0.3 of a loss with a parameter of its own, and a penalty: both see the model directly."""

    @mg.coupled
    def loss(outputs):
        a, b = outputs
        w = model.left.layers[0].weight
        squares = mg.penalty((w * w).sum())
        return 0.3 * mg.contrastive((a * model.scale, b)) + 0.125 * squares

    return loss


@every_split
@every_net
def test_a_temperature_that_is_learned_and_a_penalty(options, passes, split):
    hold(lambda: Towers(**options), None, views(), split, passes, bind=with_temperature)


def test_a_leaf_outside_of_the_model_starts_empty():
    results = []
    for size in (N, 5):
        mg.manual_seed(3)
        model, scale = Towers(), mg.parameter(np.array(1.5))
        loss = mg.coupled(lambda pair: 0.5 * mg.contrastive((pair[0] * scale, pair[1])))  # noqa: B023
        mg.accumulate(model, loss, views(), size)
        results.append([p.grad for p in (*model.parameters(), scale)])
    assert gap(results[1], results[0]) < 1e-12
    before = scale.grad.copy()
    with pytest.raises(ValueError, match="outside of this window that held a gradient"):
        mg.accumulate(model, loss, views(), 5)
    assert all(p.grad is None for p in model.parameters())
    assert scale.grad == before


def test_a_single_output_and_a_tuple_of_one_each_come_as_they_are():
    kinds = []

    class One(Mask):
        def forward(self, x):
            return (super().forward(x),)

    @mg.coupled
    def loss(outputs, t):
        kinds.append((type(outputs), len(t)))
        return mg.dice(outputs[0] if isinstance(outputs, tuple) else outputs, t)

    for make, kind in ((Mask, mg.Tensor), (One, tuple)):
        results = []
        for size in (N, 5):
            kinds.clear()
            mg.manual_seed(3)
            model = make()
            mg.accumulate(model, loss, shapes(), size)
            assert kinds == [(kind, N)]  # once, with all outputs and targets
            results.append([p.grad for p in model.parameters()])
        assert gap(results[1], results[0]) < 1e-12


def test_targets_in_tuples_and_dicts_come_whole():
    x, t = shapes()
    seen = []

    @mg.coupled
    def loss(outputs, targets):
        seen.append(targets)
        return mg.dice(outputs, targets["a"][0])

    mg.accumulate(Mask(), loss, (x, {"a": (t, t + 1)}), 5)
    np.testing.assert_array_equal(seen[0]["a"][1], t + 1)


def test_an_output_that_the_loss_does_not_use_gets_no_gradient():
    @mg.coupled
    def loss(pair):
        return mg.contrastive((pair[0], pair[0] * 0.5))

    model = Towers()
    mg.accumulate(model, loss, views(), 5)
    left = [p.grad for p in model.left.parameters()]
    right = [p.grad for p in model.right.parameters()]
    assert all(np.any(g) for g in left)
    assert not any(np.any(g) for g in right if g is not None)


def test_one_output_in_two_places_gets_the_gradient_of_both():
    class Same(Mask):
        def forward(self, x):
            y = super().forward(x)
            return y, y

    loss = mg.coupled(lambda pair, t: mg.dice(pair[0] * pair[1], t))
    hold(Same, loss, shapes(), [5, 1, 4, 2], 2)


def test_train_step_updates_as_with_one_batch():
    results = []
    for size in (N, 5, 1):
        mg.manual_seed(3)
        model = Towers(norm=mg.BatchNorm, dropout=0.25)
        adam = mg.SGD(model.parameters(), 0.125, momentum=0.5)
        for _ in range(5):
            mg.train_step(model, mg.contrastive, adam, views(), size)
        results.append(model.state_dict())
    for other in results[1:]:
        for name, value in results[0].items():
            np.testing.assert_allclose(other[name], value, rtol=1e-9, atol=1e-11)


def test_in_evaluation_a_coupled_loss_takes_two_passes():
    model = Towers(norm=mg.BatchNorm).eval()
    assert mg.accumulate(model, mg.contrastive, views(), 5).passes == 2


class Count(mg.Module):
    def __init__(self):
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x


def test_no_more_passes_are_made_than_are_reported():
    for make, levels in ((mg.LayerNorm, 0), (mg.BatchNorm, 1)):
        count = Count()
        model = mg.Sequential(count, *Mask(norm=make).inside.layers, mg.Sigmoid())
        report = mg.accumulate(model, mg.dice, shapes(), 4)
        assert report.passes == 2 * levels + 2
        assert count.calls == 3 * report.passes


# -------------------------------------------------------------------------- in Fractions, ==


@mg.coupled
def ratio(outputs, t):
    """Rational, and no sum over samples: sum(y t) / (1 + sum(y^2)), and the square of a mean."""
    y = outputs
    mean = y.mean()
    value = (y * t).sum() / ((y * y).sum() + 1) + mean * mean
    return Loss([Term(BATCH, 1, value, 1)]) + Fraction(1, 3) * mg.squared_error(y, t)


@pytest.mark.parametrize("split", [[3, 4], [1, 2, 4], [1] * 7], ids=str)
def test_in_fractions_the_gradient_is_exactly_that_of_one_batch(split):
    rng = np.random.default_rng(2)
    odd = lambda *shape: mg.fractions((2 * rng.integers(-2, 2, shape) + 1) / 4)  # noqa: E731
    model = mg.Sequential(mg.Linear(3, 2), mg.Linear(2, 2))
    for p in model.parameters():
        p.data = odd(*p.shape)
    x, t = odd(7, 3), odd(7, 2)
    stops = list(accumulate(split))
    results = []
    for sizes in ([7], split):
        catch = Catch(model.parameters())
        stops = list(accumulate(sizes))
        parts = [(x[e - n : e], t[e - n : e]) for e, n in zip(stops, sizes, strict=True)]
        report = mg.Accumulator(model, catch, accumulation_steps=7).window(ratio, parts)
        results.append((catch.caught, report.passes, report.weights))
    (whole, one, weights), (found, many, others) = results
    assert (one, many) == (1, 2)
    assert weights == others
    for a, b in zip(whole, found, strict=True):
        assert np.array_equal(a, b)
    assert all(np.count_nonzero(g) == g.size for g in found)


# ------------------------------------------------------------------------- the naive way


B51 = ((np.eye(4), np.eye(4)),)


class Pass(mg.Module):
    """Similarities are 1 on the diagonal and 0 elsewhere."""

    def __init__(self):
        self.scale = mg.parameter(np.array(1.0))

    def forward(self, pair):
        return mg.Tensor(pair[0]) * self.scale, mg.Tensor(pair[1])


@pytest.mark.parametrize("size", [4, 3, 2, 1])
def test_b51_the_loss_is_074367_for_every_size(size):
    model = Pass()
    report = mg.accumulate(model, mg.contrastive, B51, size)
    assert report.loss == pytest.approx(np.log(1 + 3 / np.e), rel=1e-14)
    assert report.loss == pytest.approx(0.74367, abs=5e-6)
    p = np.e / (np.e + 3)
    assert model.scale.grad == pytest.approx(p - 1, rel=1e-13)


@pytest.mark.parametrize(("size", "value"), [(2, 0.31326), (1, 0.0)])
def test_b51_the_naive_way_sees_other_losses(size, value):
    """The negatives are those of the micro-batch alone: of one sample there are none."""
    model = Pass()
    for where in mg.micro_batches(4, size):
        a, b = model((B51[0][0][where], B51[0][1][where]))
        loss = mg.contrastive((a, b)).mean()
        assert loss.item() == pytest.approx(value, abs=5e-6)
        (loss * (size / 4)).backward()
    right = np.e / (np.e + 3) - 1
    naive = np.exp(1) / (np.exp(1) + 1) - 1 if size == 2 else 0
    assert model.scale.grad == pytest.approx(naive, abs=1e-15)
    assert abs(model.scale.grad - right) > 1e-2


def naive(make, loss, batch, size):
    mg.manual_seed(3)
    model = make()
    rng = np.random.default_rng(1)
    for p in model.parameters():
        p.data += rng.standard_normal(p.shape) / 4
    for where in mg.micro_batches(N, size):
        x, *targets = cut(batch, where)
        part = loss(model(x), *targets).mean() * ((where.stop - where.start) / N)
        part.backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("size", [6, 3, 1])
@pytest.mark.parametrize(
    ("make", "loss", "batch"), [(Towers, mg.contrastive, views), (Mask, mg.dice, shapes)]
)
def test_the_naive_way_is_far_from_one_batch(make, loss, batch, size):
    expected, _ = window(make, loss, batch(), [N])
    found = naive(make, loss, batch(), size)
    a, b = (np.concatenate([np.ravel(g) for g in gs if g is not None]) for gs in (found, expected))
    assert np.linalg.norm(a - b) > 1e-2 * np.linalg.norm(b)
    if loss is mg.contrastive and size == 1:
        assert not np.any(a)  # b = 1 learns nothing


# ------------------------------------------------------------------------------ the values


def test_contrastive_is_infonce_in_both_directions():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 6, 3))
    s = a @ b.T / 0.5
    by_rows = -np.diag(s - np.log(np.exp(s).sum(axis=1, keepdims=True))).mean()
    by_columns = -np.diag(s - np.log(np.exp(s).sum(axis=0, keepdims=True))).mean()
    loss = mg.contrastive((mg.Tensor(a), mg.Tensor(b)), temperature=0.5)
    assert loss.mean().item() == pytest.approx((by_rows + by_columns) / 2, rel=1e-13)
    swapped = mg.contrastive((mg.Tensor(b), mg.Tensor(a)), temperature=0.5)
    assert swapped.mean().item() == pytest.approx(loss.mean().item(), rel=1e-13)
    mg.gradcheck(
        lambda x, y: mg.contrastive((x, y), 0.5).mean(), mg.Tensor(a, True), mg.Tensor(b, True)
    )


def test_dice_is_its_formula():
    rng = np.random.default_rng(0)
    p, t = rng.random((4, 3)), (rng.random((4, 3)) < 0.5).astype(float)
    expected = 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)
    assert mg.dice(mg.Tensor(p), t).mean().item() == pytest.approx(expected, rel=1e-14)
    assert mg.dice(mg.Tensor(t), t).mean().item() == pytest.approx(0, abs=1e-15)
    mg.gradcheck(lambda x: mg.dice(x, t).mean(), mg.Tensor(p, True))


# ---------------------------------------------------------------------- errors and memory


def test_in_a_stream_a_loss_of_the_whole_batch_is_refused_and_nothing_has_changed():
    model = Mask()
    sgd = mg.SGD(model.parameters(), 0.5)
    one = mg.Accumulator(model, sgd, accumulation_steps=3)
    before = bits(model.state_dict())
    x, t = shapes()

    def loop():
        with one:
            for where in mg.micro_batches(N, 4):
                with one.micro_batch(4):
                    one.backward(mg.dice(model(x[where]), t[where]))

    with pytest.raises(ValueError, match="whole batch was computed on a micro-batch") as error:
        loop()
    assert "\n" not in str(error.value)
    assert bits(model.state_dict()) == before
    assert all(p.grad is None for p in model.parameters())
    assert (one.updates, sgd.updates) == (0, 0)


@pytest.mark.parametrize(
    "loss",
    [lambda pair: mg.contrastive(pair), functools.partial(mg.contrastive, temperature=0.5)],
    ids=["lambda", "partial"],
)
def test_a_loss_of_the_whole_batch_that_is_not_marked_is_refused(loss):
    with pytest.raises(ValueError, match=r"mark it with @mg.coupled"):
        mg.accumulate(Towers(), loss, views(), 4)
    assert mg.accumulate(Towers(), loss, views(), N).passes == 1
    assert mg.accumulate(Towers(), mg.coupled(loss), views(), 4).passes == 2


def test_a_coupled_loss_that_returns_a_number_is_refused():
    with pytest.raises(TypeError, match="the loss is a Tensor, expected a Loss"):
        mg.accumulate(Mask(), mg.coupled(lambda y, t: (y * t).sum()), shapes(), 4)


def test_outputs_in_a_list_are_refused():
    class Listed(Mask):
        def forward(self, x):
            return [super().forward(x)]

    loss = mg.coupled(lambda outputs, t: mg.dice(outputs[0], t))
    with pytest.raises(
        TypeError, match="outputs of type list, expected Tensors with a row for each sample"
    ):
        mg.accumulate(Listed(), loss, shapes(), 4)


def test_a_model_that_draws_by_itself_is_an_error_and_not_a_wrong_gradient():
    class Noisy(Mask):
        def forward(self, x):
            y = super().forward(x)
            return y * rng.random(y.shape)

    rng, model = np.random.default_rng(0), Noisy()
    with pytest.raises(ValueError, match="computed something else, expected the same"):
        mg.accumulate(model, mg.dice, shapes(), 4)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("at", range(1, 6))
def test_an_error_in_any_pass_changes_nothing(at):
    """Four passes over a model with BatchNorm, and the loss between the first two."""

    class Trap(mg.Module):
        calls = 0

        def tick(self):
            self.calls += 1
            if self.calls == self.limit:
                raise ZeroDivisionError

        def forward(self, x):
            self.tick()
            return x

    trap = Trap()
    trap.limit = 3 * at - 1  # the second micro-batch of a pass
    model = mg.Sequential(trap, *Mask(norm=mg.BatchNorm, dropout=0.25).inside.layers, mg.Sigmoid())

    @mg.coupled
    def loss(y, t):
        if at == 5:
            raise ZeroDivisionError
        return mg.dice(y, t)

    adam = mg.Adam(model.parameters(), 0.125)
    before = bits([model.state_dict(), adam.state_dict()])
    with pytest.raises(ZeroDivisionError):
        mg.train_step(model, loss, adam, shapes(), 4)
    assert bits([model.state_dict(), adam.state_dict()]) == before
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert current_samples() is None


def test_a_loss_that_is_not_finite_makes_no_update():
    model = Mask()
    sgd = mg.SGD(model.parameters(), 0.5)
    before = bits(model.state_dict())
    loss = mg.coupled(lambda y, t: mg.dice(y, t) * float("inf"))
    with pytest.warns(mg.NonFiniteWarning), np.errstate(all="ignore"):
        report = mg.train_step(model, loss, sgd, shapes(), 4)
    assert not report.updated
    assert not np.isfinite(report.loss)
    assert bits(model.state_dict()) == before


def test_beyond_the_outputs_the_peak_is_flat_in_k():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1024, 64))
    t = (rng.random((1024, 1)) < 0.5).astype(float)
    layers = mg.MLP(64, 128, 128, 1, norm=mg.BatchNorm, **F8).layers
    model = mg.Sequential(*layers, mg.Sigmoid())
    sgd = mg.SGD(model.parameters(), 0.0)
    peaks = {}
    gc.collect()
    gc.disable()
    try:
        for k in (16, 2, 4, 8, 16):
            n = 64 * k
            with mg.measure_memory() as memory:
                mg.train_step(model, mg.dice, sgd, (x[:n], t[:n]), 64)
            peaks[k] = memory.peak - 8 * n * 8  # some numbers a sample, of which there is one
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert max(peaks.values()) < 1.1 * min(peaks.values())


def test_targets_of_dice_have_the_shape_of_its_outputs():
    outputs = mg.Tensor(np.full((4, 1), 0.5))
    with pytest.raises(ValueError, match=r"dice\(\) targets got shape \(4,\), expected \(4, 1\)"):
        mg.dice(outputs, np.ones(4))  # which would pair each with each


ROWS = mg.Tensor(np.ones((4, 2)))


@pytest.mark.parametrize(
    "wrong",
    [ROWS, (ROWS,), (ROWS, ROWS, ROWS), (ROWS, ROWS[:3]), (ROWS[0], ROWS[0])],
    ids=["one", "of one", "three", "uneven", "vectors"],
)
def test_a_contrastive_loss_asks_for_two_outputs_of_one_shape(wrong):
    with pytest.raises(ValueError, match=r"contrastive\(\) got shape .*, expected a tuple of two"):
        mg.contrastive(wrong)
