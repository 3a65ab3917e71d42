"""BatchNorm over the whole window: k micro-batches give the gradient of one batch.

Held against one batch in minigrad, in PyTorch and, for rational forms, in Fractions with `==`. The
reference is always the ordinary way through one batch, which uses nothing of coupling.py.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minigrad as mg
import minigrad.batchnorm
from minigrad import coupling as exact_way
from minigrad.accumulation import Window
from minigrad.data import digits
from minigrad.samples import current_samples
from tests.bits import bits
from tests.grades import Catch, Micro
from tests.test_all_or_nothing import Fault
from tests.toys import gap

N = 12
SPLITS = [[N], [4, 4, 4], [5, 1, 4, 2], [1] * N]
F8 = {"dtype": np.float64}


@pytest.fixture(autouse=True)
def seed():
    mg.manual_seed(0)


# ------------------------------------------------------------------------------------ models


def chain(layers: int, norm=mg.BatchNorm, dropout=0.0) -> mg.Module:
    return mg.MLP(5, *[6] * layers, 3, activation=mg.Tanh, norm=norm, dropout=dropout, **F8)


class Block(mg.Module):
    """A residual block with a BatchNorm in the shortcut: three layers in two levels."""

    def __init__(self):
        self.first, self.second, self.short = (mg.Linear(6, 6, **F8) for _ in range(3))
        self.norms = [mg.BatchNorm(6, **F8) for _ in range(3)]

    def forward(self, x):
        main = mg.tanh(self.norms[0](self.first(x)))
        return mg.tanh(self.norms[1](self.second(main)) + self.norms[2](self.short(x)))


class LateShortcut(Block):
    """The same, and the shortcut is computed first: levels are not in the order of the calls."""

    def forward(self, x):
        deep = self.norms[1](mg.tanh(self.norms[0](self.first(x))))
        return mg.tanh(self.second(deep) + self.norms[2](self.short(x)))


class Apart(mg.Module):
    """Two branches side by side: two layers in one level, and one that sees both."""

    def __init__(self):
        self.left, self.right = mg.Linear(5, 4, **F8), mg.Linear(5, 4, **F8)
        self.norms = {name: mg.BatchNorm(4, **F8) for name in ("left", "right", "both")}
        self.head = mg.Linear(4, 3, **F8)

    def forward(self, x):
        left = mg.tanh(self.norms["left"](self.left(x)))
        return self.head(self.norms["both"](left * self.norms["right"](self.right(x))))


class Channels(mg.Module):
    """Images (n, channels, ...): each a vector (n, channels * places) that is bent into shape."""

    def __init__(self, *space, **options):
        self.shape, size = space, int(np.prod(space))
        self.linear, self.norm = mg.Linear(5, 3 * size, **F8), mg.BatchNorm(3, **options, **F8)
        self.head = mg.Linear(3 * size, 3, **F8)

    def forward(self, x):
        images = self.linear(x).reshape((len(x), 3, *self.shape))
        return self.head(mg.tanh(self.norm(images)).reshape((len(x), -1)))


def ends(*middle: mg.Module) -> mg.Module:
    return mg.Sequential(mg.Linear(5, 6, **F8), *middle, mg.Linear(6, 3, **F8))


def frozen() -> mg.Module:
    model = chain(3)
    for p in [*model.layers[0].parameters(), *model.layers[4].parameters()]:
        p.requires_grad = False
    return model


def nested() -> mg.Module:
    inner = mg.Sequential(mg.Linear(6, 6, **F8), mg.BatchNorm(6, **F8), mg.Tanh())
    return ends(mg.Sequential(inner, Block()), mg.BatchNorm(6, **F8), mg.LayerNorm(6, **F8))


# name -> model, levels
MODELS = {
    "L = 1": (lambda: chain(1), 1),
    "L = 2": (lambda: chain(2), 2),
    "L = 3": (lambda: chain(3), 3),
    "L = 8": (lambda: chain(8), 8),
    "dropout": (lambda: chain(2, dropout=0.25), 2),
    "frozen": (frozen, 3),
    "without affine": (
        lambda: ends(mg.BatchNorm(6, affine=False, **F8), mg.Tanh(), mg.BatchNorm(6, **F8)),
        2,
    ),
    "first of all": (lambda: mg.Sequential(mg.BatchNorm(5, **F8), *chain(1).layers), 2),
    "last of all": (lambda: mg.Sequential(*chain(1).layers, mg.BatchNorm(3, **F8)), 2),
    "residual": (lambda: ends(Block()), 2),
    "shortcut late": (lambda: ends(LateShortcut(), Block()), 4),
    "nested": (nested, 4),
    "branches": (Apart, 2),
    "3-d": (lambda: Channels(4), 1),
    "4-d": (lambda: Channels(2, 3), 1),
    "4-d without affine": (lambda: Channels(3, 2, affine=False), 1),
    "beside the others": (
        lambda: ends(mg.BatchNorm(6, **F8), mg.Tanh(), mg.GroupNorm(2, 6, **F8)),
        1,
    ),
}


def data(n: int = N, seed: int = 0) -> tuple:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 5)) * [1, 2, 3, 1, 1] + 1, rng.integers(0, 3, n)


def roughen(model: mg.Module, seed: int = 1) -> mg.Module:
    """Parameters of no special value: also weights and biases of the norms."""
    rng = np.random.default_rng(seed)
    for p in model.parameters():
        p.data += rng.standard_normal(p.shape) / 4
    return model


def cut(batch: tuple, split: list[int]) -> list[tuple]:
    assert sum(split) == len(batch[0])
    stops = list(accumulate(split))
    return [tuple(a[e - n : e] for a in batch) for e, n in zip(stops, split, strict=True)]


def run(make, loss, batch, split, reduction="mean"):
    """The gradients, report and buffers of one window; an Accumulator takes any split."""
    mg.manual_seed(3)
    model = roughen(make())
    catch = Catch(model.parameters())
    loss = getattr(model, "loss", None) or loss
    window = mg.Accumulator(
        model, catch, accumulation_steps=len(split), reduction=reduction, clip_norm=None
    )
    report = window.window(loss, cut(batch, split))
    assert report.updated
    assert all(p.grad is None for p in model.parameters())
    buffers = [getattr(module, name) for _, module, name in model.named_buffers()]
    return catch.caught, report, buffers


def hold(make, loss, batch, split, levels=None, reduction="mean"):
    """All that is claimed of a window of BatchNorm."""
    expected, one, moved = run(make, loss, batch, [len(batch[0])], reduction)
    found, many, merged = run(make, loss, batch, split, reduction)
    assert one.passes == 1
    assert gap(found, expected) < 1e-12
    assert many.loss == pytest.approx(one.loss, rel=1e-13)
    assert many.weights == one.weights
    assert many.grad_norm == pytest.approx(one.grad_norm, rel=1e-12)
    for a, b in zip(merged, moved, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
    if levels is not None:
        assert many.passes == (2 * levels + 1 if len(split) > 1 else 1)
    assert many.micro_batches == len(split)


# ------------------------------------------------------------------- equal to one large batch


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_any_split_gives_gradient_loss_and_statistics_of_one_batch(name, split):
    make, levels = MODELS[name]
    hold(make, mg.cross_entropy, data(), split, levels)


@st.composite
def splits(draw):
    cuts = draw(st.sets(st.integers(1, N - 1), min_size=1))
    return np.diff([0, *sorted(cuts), N]).tolist()


@settings(max_examples=15)
@given(split=splits(), seed=st.integers(0, 99), name=st.sampled_from(["L = 2", "nested"]))
def test_random_splits_and_data(split, seed, name):
    make, levels = MODELS[name]
    hold(make, mg.cross_entropy, data(seed=seed), split, levels)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_both_reductions(reduction):
    hold(lambda: chain(2), mg.cross_entropy, data(), [5, 1, 6], 2, reduction)


def masked(outputs, y):
    return mg.cross_entropy(outputs, y, ignore_index=-100)


def by_class(outputs, y):
    return mg.cross_entropy(outputs, y, class_weights=[1.0, 2.0, 0.5], label_smoothing=0.1)


def two_units(outputs, y):
    return mg.cross_entropy(outputs, y) + 0.25 * mg.squared_error(outputs, np.ones(outputs.shape))


def largest(outputs, y):
    """Two units, of which one looks at some samples of some micro-batches only."""
    weights = (y > 1).astype(float)
    return two_units(outputs, y) + mg.squared_error(
        outputs[:, 0], y / 3, sample_weights=weights, unit="value"
    )


class WithPenalty(mg.Module):
    def __init__(self):
        self.inside = chain(2)

    def forward(self, x):
        return self.inside(x)

    def loss(self, outputs, y):
        w = self.inside.layers[0].weight
        return two_units(outputs, y) + 0.125 * mg.penalty((w * w).sum())


def gone(y: np.ndarray) -> np.ndarray:
    """The labels, of which those of the second micro-batch of four and some others are masked."""
    y = y.copy()
    y[[0, 4, 5, 6, 7, 10]] = -100
    return y


@pytest.mark.parametrize("split", SPLITS[1:], ids=str)
@pytest.mark.parametrize("loss", [masked, by_class, two_units, largest], ids=lambda f: f.__name__)
def test_losses_of_several_units_weights_and_masks(loss, split):
    x, y = data()
    y = gone(y) if loss is masked else y
    hold(lambda: chain(3), loss, (x, y), split, 3)


@pytest.mark.parametrize("split", SPLITS[1:], ids=str)
def test_a_penalty_counts_once(split):
    hold(WithPenalty, None, data(), split, 2)


def test_masked_samples_count_in_the_statistics_all_the_same():
    """They are part of the batch: to leave them out of the passes would be another gradient."""
    x, y = data()
    found, report, _ = run(lambda: chain(1), masked, (x, gone(y)), [4, 4, 4])
    kept = gone(y) != -100
    other, _, _ = run(lambda: chain(1), masked, (x[kept], y[kept]), [int(kept.sum())])
    assert report.weights == {"sample": 6}
    assert gap(found, other) > 1e-2


def test_train_step_accumulate_and_a_window_of_an_accumulator_are_one():
    batch = data()
    expected, report, buffers = run(lambda: chain(2), mg.cross_entropy, batch, [5, 5, 2])
    for how in (mg.accumulate, mg.train_step):
        mg.manual_seed(3)
        model = roughen(chain(2))
        catch = Catch(model.parameters())
        arguments = (catch, batch, 5) if how is mg.train_step else (batch, 5)
        other = how(model, mg.cross_entropy, *arguments)
        grads = catch.caught if how is mg.train_step else [p.grad for p in model.parameters()]
        assert bits(grads) == bits(expected)
        assert (other.loss, other.passes, other.micro_batches) == (report.loss, 5, 3)
        running = [getattr(m, name) for _, m, name in model.named_buffers()]
        same = bits(running) == bits(buffers)
        assert same == (how is mg.train_step)  # accumulate moves no statistics


def test_inputs_in_a_tuple_and_batches_without_targets():
    class Two(mg.Module):
        def __init__(self):
            self.inside = chain(1)

        def forward(self, pair):
            return self.inside(pair[0] + pair[1]["b"])

    x, _ = data()
    batch = ((x, {"b": x * x}),)
    results = []
    for size in (N, 5, 1):
        mg.manual_seed(3)
        model = roughen(Two())
        mg.accumulate(model, mg.per_sample, batch, size)
        results.append([p.grad for p in model.parameters()])
    assert all(gap(r, results[0]) < 1e-12 for r in results[1:])


def test_over_updates_the_runs_stay_together():
    runs = []
    for size in (N, 5, 1):
        mg.manual_seed(3)
        model = chain(2, dropout=0.25)
        sgd = mg.SGD(model.parameters(), 0.125, momentum=0.5)
        for i in range(10):
            report = mg.train_step(model, mg.cross_entropy, sgd, data(seed=i), size)
        runs.append((report.loss, model.state_dict()))
    for loss, state in runs[1:]:
        assert loss == pytest.approx(runs[0][0], rel=1e-9)
        for name, value in state.items():
            np.testing.assert_allclose(value, runs[0][1][name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 2e-5), (np.float16, 5e-2)])
def test_narrow_dtypes_stay_within_their_rounding(dtype, bound):
    results = []
    for size in (N, 5, 1):
        mg.manual_seed(3)
        model = chain(2).astype(dtype)
        mg.accumulate(model, mg.cross_entropy, (data()[0].astype(dtype), data()[1]), size)
        assert all(p.grad.dtype == np.float32 for p in model.parameters())
        results.append([p.grad.astype(float) for p in model.parameters()])
    assert all(gap(r, results[0]) < bound for r in results[1:])


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_torchs_batchnorm1d_of_the_large_batch_agrees(layers):
    torch = pytest.importorskip("torch")
    (x, y), model = data(), roughen(chain(layers))
    modules = []
    for mine in model.layers:
        if isinstance(mine, mg.Linear):
            theirs = torch.nn.Linear(*mine.weight.shape, bias=mine.bias is not None)
            values = {"weight": mine.weight.data.T}
            values |= {} if mine.bias is None else {"bias": mine.bias.data}
        elif isinstance(mine, mg.BatchNorm):
            theirs = torch.nn.BatchNorm1d(len(mine.running_mean))
            values = {"weight": mine.weight.data, "bias": mine.bias.data}
        else:
            modules.append(torch.nn.Tanh())
            continue
        for name, value in values.items():
            setattr(theirs, name, torch.nn.Parameter(torch.tensor(value)))
        modules.append(theirs.double())
    peer = torch.nn.Sequential(*modules)
    torch.nn.functional.cross_entropy(peer(torch.tensor(x)), torch.tensor(y)).backward()
    expected = [p.grad.numpy().T if p.ndim == 2 else p.grad.numpy() for p in peer.parameters()]
    catch = Catch(model.parameters())
    window = mg.Accumulator(model, catch, accumulation_steps=4)
    window.window(mg.cross_entropy, cut((x, y), [5, 1, 4, 2]))
    assert gap(catch.caught, expected) < 1e-10
    theirs = [m for m in modules if isinstance(m, torch.nn.BatchNorm1d)]
    mine = [m for m in model.layers if isinstance(m, mg.BatchNorm)]
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.running_mean, b.running_mean.numpy(), rtol=1e-10)
        np.testing.assert_allclose(a.running_var, b.running_var.numpy(), rtol=1e-10)


# -------------------------------------------------------------------------- in Fractions, ==


def rational(var, eps):
    """1 / (v + e) in place of 1 / sqrt(v + e): all that is replaced."""
    return 1 / (var + Fraction(1, 3))


def mean_only(var, eps):
    """1: what is left of BatchNorm is x - mean (Salimans & Kingma 2016)."""
    return var * 0 + 1


class Curve(mg.Module):
    """x + x^2, which is rational and not linear."""

    def forward(self, x):
        return x + x * x


def textbook(model, x, form):
    """The forward pass over one batch, of + - * / alone; autograd gives the reference."""
    for layer in model.layers:
        if isinstance(layer, mg.BatchNorm):
            centred = x - x.mean(axis=0)
            var = (centred * centred).mean(axis=0)
            x = centred * form(var, layer.eps) * layer.weight + layer.bias
        else:
            x = layer(x)
    return x


def rational_chain(layers: int) -> tuple:
    rng = np.random.default_rng(layers)
    quarter = lambda *shape: (2 * rng.integers(-2, 2, shape) + 1) / 4  # noqa: E731
    hidden = []
    for _ in range(layers):
        hidden += [mg.Linear(2, 2), mg.BatchNorm(2), Curve()]
    model = mg.Sequential(*hidden, mg.Linear(2, 1))
    for p in model.parameters():
        p.data = quarter(*p.shape) + (p.ndim == 1)
    model.astype(object)
    x, t = quarter(7, 2), quarter(7, 1)
    x[:, 1] += np.arange(7) % 3
    return model, (mg.fractions(x), mg.fractions(t))


@pytest.mark.parametrize("split", [[7], [3, 4], [1, 2, 4], [1] * 7], ids=str)
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("form", [rational, mean_only])
def test_in_fractions_the_gradient_is_exactly_that_of_one_batch(monkeypatch, form, layers, split):
    monkeypatch.setattr(minigrad.batchnorm, "inverse_deviation", form)
    model, (x, t) = rational_chain(layers)
    mg.squared_error(textbook(model, mg.Tensor(x), form), t).sum().backward()
    expected = [p.grad / 7 for p in model.parameters()]
    model.zero_grad()
    if len(split) == 1:  # a step takes the ordinary way, which divides by a root
        found, passes = all_passes(model, mg.squared_error, cut((x, t), split))
    else:
        catch = Catch(model.parameters())
        window = mg.Accumulator(model, catch, accumulation_steps=len(split))
        passes = window.window(mg.squared_error, cut((x, t), split)).passes
        found = catch.caught
    assert passes == 2 * layers + 1
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype == object
        assert np.array_equal(a, b)
    # A bias before BatchNorm moves the mean, which is subtracted: it alone has no gradient.
    zero = [i for i, g in enumerate(found) if not np.any(g)]
    assert zero == [4 * i + 1 for i in range(layers)]
    total, nonzero = sum(g.size for g in found), sum(np.count_nonzero(g) for g in found)
    assert nonzero == total - 2 * layers


def all_passes(model, loss, parts):
    """The exact procedure also for one part, where a step has no need of it; mean gradients."""
    window = Window(model, dict.fromkeys(model.parameters()), "mean", 0)

    def walk(visit, coupling):
        stop = 0
        for x, *targets in parts:
            part = slice(stop, stop + len(x))
            stop = part.stop
            with mg.drawing(window.turn_to(part, coupling)):
                visit(x, targets, part)

    exact_way.exact(window, loss, walk)
    window.finish(lambda: [p.grad for p in window.leaves if p.grad is not None])
    return [p.grad for p in model.parameters()], window.passes


def test_the_textbook_with_a_root_is_batchnorm():
    """So that the reference above is the layer, but for the one operation."""
    x, _ = data()
    model = roughen(chain(2))
    root = lambda var, eps: 1 / mg.sqrt(var + eps)  # noqa: E731
    expected = model(x).data
    np.testing.assert_allclose(textbook(model, mg.Tensor(x), root).data, expected, rtol=1e-12)


# ---------------------------------------------------------------------- what is not the same


def no_adjoints(monkeypatch):
    monkeypatch.setattr(exact_way, "_add_gradients", lambda loss, sums: None)


def running(channels, **options):
    return mg.BatchNorm(channels, statistics="running", **options)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("wrong", ["micro", "running", "global statistics without adjoints"])
def test_the_other_ways_are_far_from_one_batch(monkeypatch, wrong, layers):
    expected, *_ = run(lambda: chain(layers), mg.cross_entropy, data(), [N])
    norm = {"micro": Micro, "running": running}.get(wrong, mg.BatchNorm)
    if norm is mg.BatchNorm:
        no_adjoints(monkeypatch)
    found, *_ = run(lambda: chain(layers, norm), mg.cross_entropy, data(), [4, 4, 4])
    assert gap(found, expected) > 1e-2


@pytest.mark.parametrize("lost", ["mean", "variance"])
def test_each_half_of_the_adjoints_is_needed(monkeypatch, lost):
    expected, *_ = run(lambda: chain(2), mg.cross_entropy, data(), [N])
    right = exact_way._carry

    def half(x, statistics, by_mean, by_var):
        return right(x, statistics, by_mean * (lost != "mean"), by_var * (lost != "variance"))

    monkeypatch.setattr(exact_way, "_carry", half)
    found, *_ = run(lambda: chain(2), mg.cross_entropy, data(), [4, 4, 4])
    assert gap(found, expected) > 1e-2


def test_micro_and_running_with_one_part_are_one_batch_or_close_to_it():
    expected, *_ = run(lambda: chain(2), mg.cross_entropy, data(), [N])
    micro, *_ = run(lambda: chain(2, Micro), mg.cross_entropy, data(), [N])
    assert bits(micro) == bits(expected)


# -------------------------------------------------------------- nothing else is touched


class Trap(Fault):
    """Raises an error at the n-th of its forward or backward passes, which it counts."""

    def __init__(self):
        self.at, self.seen = {}, {"forward": 0, "backward": 0}

    def tick(self, where):
        self.seen[where] += 1
        if self.at.get(where) == self.seen[where]:
            raise ZeroDivisionError(where)


def trapped() -> tuple:
    mg.manual_seed(3)
    trap = Trap()
    layers = [mg.Linear(5, 6, **F8), trap]
    for _ in range(2):
        layers += [mg.BatchNorm(6, **F8), mg.Tanh(), mg.Dropout(0.25), mg.Linear(6, 6, **F8)]
    layers.insert(-1, Trap())
    model = mg.Sequential(*layers)
    model.layers[2].bias.requires_grad = False
    adam = mg.Adam(model.parameters(), 0.125)
    average = mg.WeightAverage(model.parameters(), 0.5)
    return model, trap, adam, average


def state(model, adam, average):
    flags = [p.requires_grad for p in model.parameters()]
    return bits([model.state_dict(), adam.state_dict(), average.state_dict()]), flags


FORWARDS = 5 * 3  # of the first Trap: five passes over three micro-batches
BACKWARDS = 1 * 3  # below all layers only the last pass is differentiated


@pytest.mark.parametrize(
    ("where", "at"),
    [("forward", i + 1) for i in range(FORWARDS)] + [("backward", i + 1) for i in range(BACKWARDS)],
)
def test_an_error_in_any_pass_changes_nothing(where, at):
    model, trap, adam, average = trapped()
    batch = data(seed=1)[0], data(seed=1)[1]
    step = lambda: mg.train_step(  # noqa: E731
        model, mg.cross_entropy, adam, batch, 4, average=average
    )
    trap.seen = dict.fromkeys(trap.seen, 0)
    step()
    assert trap.seen == {"forward": FORWARDS, "backward": BACKWARDS}
    before = state(model, adam, average)
    trap.seen, trap.at = dict.fromkeys(trap.seen, 0), {where: at}
    with pytest.raises(ZeroDivisionError):
        step()
    assert state(model, adam, average) == before
    assert all(p.grad is None for p in model.parameters())
    assert current_samples() is None
    step()  # and goes on as if nothing had been
    other = trapped()
    for _ in range(2):
        mg.train_step(other[0], mg.cross_entropy, other[2], batch, 4, average=other[3])
    assert state(model, adam, average) == state(other[0], *other[2:])


def test_an_error_in_a_loss_of_an_adjoint_pass_thaws_the_parameters():
    model, calls = chain(2), []

    def loss(outputs, y):
        calls.append(None)
        if len(calls) == 2:  # statistics ask for no loss: it is the first adjoint pass
            assert not any(p.requires_grad for p in model.parameters())
            raise ZeroDivisionError
        return mg.cross_entropy(outputs, y)

    for how in (lambda: mg.accumulate(model, loss, data(), 4), window_of(model, loss)):
        calls.clear()
        with pytest.raises(ZeroDivisionError):
            how()
        assert all(p.requires_grad and p.grad is None for p in model.parameters())


def window_of(model, loss):
    window = mg.Accumulator(model, Catch(model.parameters()), accumulation_steps=3)
    return lambda: window.window(loss, cut(data(), [4, 4, 4]))


def test_adjoint_passes_leave_the_gradients_of_parameters_alone(monkeypatch):
    model, looks = chain(2), []
    add = exact_way._add_gradients

    def look(loss, sums):
        add(loss, sums)
        looks.append([p.grad for p in model.parameters()])

    monkeypatch.setattr(exact_way, "_add_gradients", look)
    mg.accumulate(model, mg.cross_entropy, data(), 4)
    assert looks == [[None] * len(model.parameters())] * 2 * 3  # passes, micro-batches


def test_an_optimizer_of_some_parameters_gets_their_gradients_and_the_others_none():
    results = []
    for size in (N, 5):
        mg.manual_seed(3)
        model = roughen(chain(2))
        some = [*model.layers[0].parameters(), *model.layers[-1].parameters()]
        catch = Catch(some)
        report = mg.train_step(model, mg.cross_entropy, catch, data(), size)
        assert all(p.grad is None and p.requires_grad for p in model.parameters())
        results.append((catch.caught, report.grad_norm))
    assert gap(results[1][0], results[0][0]) < 1e-12
    assert results[1][1] == pytest.approx(results[0][1], rel=1e-12)


def test_a_leaf_outside_of_the_model_learns_as_with_one_batch():
    results = []
    for size in (N, 5):
        mg.manual_seed(3)
        model, scale = roughen(chain(2)), mg.parameter(np.array(1.5))
        loss = lambda outputs, y: mg.cross_entropy(outputs * scale, y)  # noqa: E731, B023
        mg.accumulate(model, loss, data(), size)
        results.append([p.grad for p in (*model.parameters(), scale)])
    assert gap(results[1], results[0]) < 1e-12
    with pytest.raises(ValueError, match="outside of this window that held a gradient"):
        mg.accumulate(model, loss, data(), 5)


def test_in_evaluation_one_pass_does_and_statistics_stay():
    model = roughen(chain(2)).eval()
    before = bits(model.state_dict())
    reports = [mg.accumulate(model, mg.cross_entropy, data(), b) for b in (N, 5, 1)]
    assert [r.passes for r in reports] == [1, 1, 1]
    assert bits(model.state_dict()) == before
    model.layers[1].train()  # one layer learns its statistics, the other has them
    assert mg.accumulate(model, mg.cross_entropy, data(), 5).passes == 3


def test_a_model_without_batchnorm_takes_one_pass():
    model = chain(2, mg.LayerNorm)
    assert mg.accumulate(model, mg.cross_entropy, data(), 5).passes == 1


def calls(step, files) -> Counter:
    """How often each function of these files is called, by its name: counted, not timed."""
    found = Counter()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename in files:
            found[frame.f_code.co_name] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize("norm", [None, mg.LayerNorm, Micro, "evaluation"])
def test_where_nothing_couples_a_window_asks_once_and_a_micro_batch_never(norm):
    """Of coupling.py, and without BatchNorm of batchnorm.py too, no other line runs."""
    model = chain(2).eval() if norm == "evaluation" else chain(2, norm, dropout=0.25)
    sgd = mg.SGD(model.parameters(), 0.5)
    files = {exact_way.__file__}
    if norm in (None, mg.LayerNorm):
        files.add(minigrad.batchnorm.__file__)
    asked = Counter({"couples": 1, "<genexpr>": len(model.modules()) + 1})  # each module, once
    for k in (1, 2, 3, 6):
        step = lambda: mg.train_step(model, mg.cross_entropy, sgd, data(), N // k)  # noqa: B023, E731
        assert calls(step, files) == (asked if k > 1 else Counter())

    def stream():
        with mg.Accumulator(model, sgd, accumulation_steps=3) as window:
            for x, y in cut(data(), [2] * 6):
                with window.micro_batch(2):
                    window.backward(mg.cross_entropy(model(x), y))

    assert calls(stream, files) == asked + asked  # two windows of three micro-batches


def test_running_statistics_move_once_though_the_data_is_seen_five_times():
    x, _ = data()
    model = mg.Sequential(mg.BatchNorm(5, **F8), mg.Tanh(), mg.BatchNorm(5, **F8))
    report = mg.train_step(model, mg.squared_error, mg.SGD(model.parameters(), 0.0), (x, x), 1)
    assert report.passes == 5
    first = model.layers[0]
    np.testing.assert_allclose(first.running_mean, 0.1 * x.mean(axis=0), rtol=1e-13)
    expected = 0.9 + 0.1 * x.var(axis=0, ddof=1)
    np.testing.assert_allclose(first.running_var, expected, rtol=1e-13)


# ----------------------------------------------------------------------------- clear errors


class Odd(mg.Module):
    """Two BatchNorms, called as `order` says for the j-th forward pass."""

    def __init__(self, order):
        self.order, self.calls = order, 0
        self.norms = [mg.BatchNorm(5, **F8), mg.BatchNorm(5, **F8)]

    def forward(self, x):
        self.calls += 1
        x = x if isinstance(x, mg.Tensor) else mg.Tensor(x)
        for i in self.order(self.calls):
            x = mg.tanh(self.norms[i](x))
        return x


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (lambda j: [0, 0], r"BatchNorm.* was called twice .* expected once"),
        (lambda j: [0, 1] if j == 1 else [1, 0], "called in another order .* expected the same"),
        (lambda j: [0] if j == 1 else [0, 1], "called in another order .* expected the same"),
        (lambda j: [] if j == 1 else [0, 1], "called in another order .* expected the same"),
        (lambda j: [0, 1] if j < 3 else [0], "fewer BatchNorm layers .* expected the same"),
        (lambda j: [0, 1] if j % 3 else [0], "fewer BatchNorm layers .* expected the same"),
    ],
)
def test_layers_that_are_called_otherwise_are_refused(order, message):
    x, _ = data()
    model = Odd(order)
    before = bits(model.state_dict())
    sgd = mg.SGD(model.parameters(), 0.5)
    with pytest.raises(ValueError, match=message) as error:
        mg.train_step(model, mg.squared_error, sgd, (x, x), 4)
    assert "\n" not in str(error.value)
    assert "statistics='micro'" in str(error.value)
    assert bits(model.state_dict()) == before
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert sgd.updates == 0


def test_a_loss_that_returns_a_number_is_refused_as_without_batchnorm():
    for norm in (None, mg.BatchNorm):
        with pytest.raises(TypeError, match="the loss is a Tensor, expected a Loss"):
            mg.accumulate(chain(1, norm), lambda outputs, y: outputs.sum(), data(), 4)


def test_a_layer_that_is_no_use_costs_no_error():
    x, _ = data()
    model = Odd(lambda j: [1])
    assert mg.accumulate(model, mg.squared_error, (x, x), 4).passes == 3
    assert model.norms[0].weight.grad is None


class Noise(mg.Module):
    """Draws anew in each pass."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def forward(self, x):
        return x + self.rng.standard_normal(x.shape)


class Detached(mg.Module):
    def forward(self, x):
        return x.detach() * 2


@pytest.mark.parametrize("size", [5, 1])
@pytest.mark.parametrize("odd", [Noise, Detached])
def test_a_pass_that_computes_something_else_is_an_error_and_not_a_wrong_gradient(odd, size):
    layers = chain(2).layers
    model = mg.Sequential(*layers[:3], odd(), *layers[3:])
    before = bits(model.state_dict())
    sgd = mg.SGD(model.parameters(), 0.5)
    with pytest.raises(ValueError, match="computed something else, expected the same") as error:
        mg.train_step(model, mg.cross_entropy, sgd, data(), size)
    assert "\n" not in str(error.value)
    assert bits(model.state_dict()) == before
    assert all(p.grad is None for p in model.parameters())
    assert sgd.updates == 0
    mg.train_step(model, mg.cross_entropy, sgd, data(), N)  # one pass may do as it likes


def test_a_choice_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"statistics='batches', expected 'batch', 'micro' or"):
        mg.BatchNorm(3, statistics="batches")


def test_a_stream_refuses_batch_in_one_sentence_and_takes_the_others():
    x, y = data()
    for norm, works in ((mg.BatchNorm, False), (Micro, True), (running, True)):
        model = chain(1, norm)
        window = mg.Accumulator(model, mg.SGD(model.parameters(), 0.5), accumulation_steps=3)
        before = bits(model.state_dict())

        def loop():
            with window:  # noqa: B023
                for a, b in cut((x, y), [4, 4, 4]):
                    with window.micro_batch(4):  # noqa: B023
                        window.backward(mg.cross_entropy(model(a), b))  # noqa: B023

        if works:
            loop()
            assert (window.updates, window.report.passes) == (1, 1)
            continue
        with pytest.raises(ValueError, match="'batch'.*'micro' or 'running'") as error:
            loop()
        assert "\n" not in str(error.value)
        assert bits(model.state_dict()) == before
        assert (window.updates, window.micro_batches) == (0, 0)
        model.eval()
        loop()  # in evaluation nothing couples
        assert window.updates == 1


def test_a_window_takes_any_iterable_of_micro_batches_once_and_refuses_empty_ones():
    mg.manual_seed(3)
    model = chain(1)
    window = mg.Accumulator(model, mg.SGD(model.parameters(), 0.0), accumulation_steps=3)
    assert window.window(mg.cross_entropy, iter(cut(data(), [5, 1, 6]))).passes == 3
    assert (window.micro_batches, window.updates) == (3, 1)
    before = bits(model.state_dict())
    with pytest.raises(ValueError, match="one or more"):
        window.window(mg.cross_entropy, [])
    with pytest.raises(ValueError, match="1 or more"):
        window.window(mg.cross_entropy, cut(data(), [0, 6, 6]))
    assert bits(model.state_dict()) == before
    assert (window.micro_batches, window.updates) == (3, 1)


def test_a_window_over_one_micro_batch_of_one_sample_is_the_error_of_one_sample():
    x, y = data(1)
    model = chain(1)
    with pytest.raises(ValueError, match="one sample"):
        mg.accumulate(model, mg.cross_entropy, (x, y), 1)


def test_b50_a_micro_batch_of_one_is_an_error_under_micro_before_any_statistic_moves():
    """N = 5, b = 2: the last part has one sample. Under "batch" it is as good as any other."""
    x, y = data(5)
    for norm in (Micro, running):
        model = chain(1, norm)
        before = bits(model.state_dict())
        with pytest.raises(ValueError, match="micro-batch of one sample .* expected two or more"):
            mg.train_step(model, mg.cross_entropy, mg.SGD(model.parameters(), 0.5), (x, y), 2)
        assert bits(model.state_dict()) == before
    hold(lambda: chain(1), mg.cross_entropy, (x, y), [2, 2, 1], 1)


# ------------------------------------------------------------------------------------ memory


def test_the_peak_is_flat_in_k_without_the_garbage_collector():
    x, y = data(64 * 16)
    x = np.tile(x, (1, 10))
    model = mg.MLP(50, 64, 64, 3, norm=mg.BatchNorm, dropout=0.25, **F8)
    sgd = mg.SGD(model.parameters(), 0.0)
    peaks = {}
    gc.collect()
    gc.disable()
    try:
        for k in (16, 2, 4, 8, 16):  # the first one warms up
            n = 64 * k
            with mg.measure_memory() as memory:
                mg.train_step(model, mg.cross_entropy, sgd, (x[:n], y[:n]), 64)
            peaks[k] = memory.peak
            assert memory.live < 32768
        with mg.measure_memory() as whole:
            mg.train_step(model, mg.cross_entropy, sgd, (x, y), 1024)
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert max(peaks.values()) < 1.02 * min(peaks.values())
    assert whole.peak > 5 * peaks[16]


# ------------------------------------------------------------------------------ closed forms


def test_merged_variance_of_parts_of_3_2_3_is_463_64_and_not_29_6():
    x = mg.fractions(np.array([1, 4, -2, 7, 3, 3, 0, 5]).reshape(8, 1))
    parts = [mg.Statistics.of(x[where]) for where in (slice(0, 3), slice(3, 5), slice(5, 8))]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    assert (merged.n, merged.mean[0]) == (8, Fraction(21, 8))
    assert merged.squares[0] / 8 == Fraction(463, 64)
    assert sum(part.squares[0] for part in parts) / 8 == Fraction(29, 6)
    assert parts[2].merge(parts[1]).merge(parts[0]).squares[0] == merged.squares[0]


@pytest.mark.parametrize(("k", "far"), [(2, 0.19), (4, 0.3439), (8, 0.569533)])
def test_k_moves_with_momentum_m_are_one_with_1_minus_1_minus_m_to_the_k(k, far):
    norm = mg.BatchNorm(1, momentum=0.1, **F8)
    for _ in range(k):
        norm(np.array([[0.0], [2.0]]))
    assert norm.running_mean[0] == pytest.approx(far, rel=1e-5)
    corrected = mg.BatchNorm(1, momentum=mg.momentum_per_micro_batch(0.1, k), **F8)
    for _ in range(k):
        corrected(np.array([[0.0], [2.0]]))
    assert corrected.running_mean[0] == pytest.approx(0.1, rel=1e-12)


def test_the_momentum_of_a_micro_batch():
    assert mg.momentum_per_micro_batch(0.1, 8) == pytest.approx(0.013084, abs=5e-7)
    assert mg.momentum_per_micro_batch(0.1, 2) == pytest.approx(0.0513167, abs=5e-8)
    assert mg.momentum_per_micro_batch(0.1, 1) == pytest.approx(0.1, rel=1e-15)


B47 = np.array([[0.0], [2], [10], [12]])


class Look(mg.Module):
    """BatchNorm alone, that keeps its outputs."""

    def __init__(self, **options):
        self.norm, self.seen = mg.BatchNorm(1, **options, **F8), []

    def forward(self, x):
        y = self.norm(x)
        self.seen.append(y.data.copy())
        return y


@pytest.mark.parametrize("size", [4, 3, 2, 1])
def test_b47_the_outputs_are_those_of_the_full_batch(size):
    full = [-1.1767, -0.7845, 0.7845, 1.1767]
    look = Look(eps=0.0)
    mg.accumulate(look, mg.per_sample, (B47,), size)
    k = len(mg.micro_batches(4, size))
    last = np.concatenate(look.seen[-k:])  # those of the last pass
    np.testing.assert_allclose(last.ravel(), full, atol=5e-5)


def test_b47_under_micro_each_half_is_minus_one_and_one():
    look = Look(eps=0.0, statistics="micro")
    mg.accumulate(look, mg.per_sample, (B47,), 2)
    np.testing.assert_array_equal(np.concatenate(look.seen).ravel(), [-1, 1, -1, 1])


@pytest.mark.parametrize("statistics", ["batch", "micro", "running"])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 3, 0, 1]])
def test_b48_the_running_statistics_are_06_and_43667(statistics, order):
    look = Look(statistics=statistics)
    report = mg.train_step(look, mg.per_sample, mg.SGD(look.parameters(), 0.0), (B47[order],), 2)
    assert report.updated
    assert look.norm.running_mean[0] == pytest.approx(0.6, rel=1e-14)
    assert look.norm.running_var[0] == pytest.approx(0.9 + 0.1 * 104 / 3, rel=1e-14)
    assert look.norm.running_var[0] == pytest.approx(4.36667, abs=5e-6)


def test_b48_a_loop_by_hand_moves_twice():
    def loop(momentum, halves):
        norm = mg.BatchNorm(1, momentum=momentum, **F8)
        for half in halves:
            norm(half)
        return norm.running_mean[0], norm.running_var[0]

    halves = [B47[:2], B47[2:]]
    assert loop(0.1, halves) == pytest.approx((1.19, 1.19), rel=1e-12)
    m = mg.momentum_per_micro_batch(0.1, 2)
    assert loop(m, halves)[0] == pytest.approx(0.61317, abs=5e-6)
    assert loop(m, halves[::-1])[0] == pytest.approx(0.58683, abs=5e-6)
    within, between = 1, 25  # the variance of 26, of which a loop by hand sees the first part
    assert B47.var() == within + between


def test_two_values_are_plus_and_minus_one_and_learn_nothing_but_eps():
    x = mg.Tensor(np.array([[0.3], [1.7]]), requires_grad=True)
    y = mg.BatchNorm(1, **F8)(x)
    y.backward(np.array([[1.0], [0.0]]))
    assert np.abs(y.data) == pytest.approx(1, abs=1e-4)
    assert np.abs(x.grad) == pytest.approx(1.4577e-5, rel=1e-4)


def test_standardized_values_sum_to_zero_and_their_squares_to_b():
    x, _ = data()
    y = mg.BatchNorm(5, eps=0.0, **F8)(x).data
    np.testing.assert_allclose(y.sum(axis=0), 0, atol=1e-13)
    np.testing.assert_allclose((y * y).sum(axis=0), N, rtol=1e-13)
    assert np.all(np.abs(y) <= np.sqrt(N - 1))


def test_the_jacobian_has_rank_b_minus_2():
    x = mg.Tensor(np.random.default_rng(0).standard_normal((6, 1)), requires_grad=True)
    rows = []
    for i in range(6):
        x.grad = None
        y = mg.BatchNorm(1, eps=0.0, **F8)(x)
        y.backward(np.eye(6)[:, i : i + 1])
        rows.append(x.grad.ravel())
    assert np.linalg.matrix_rank(np.array(rows), tol=1e-10) == 4


def test_the_adjoints_are_the_two_sums_of_syncbatchnorm(monkeypatch):
    """mean: -gamma r sum(dy), variance: -1/2 gamma r^3 sum(dy (x - mean)), over the whole batch."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((N, 2)), rng.standard_normal((N, 2))
    norm, kept = roughen(mg.BatchNorm(2, **F8)), []

    class Keep(exact_way.Coupling):
        def __init__(self, **options):
            super().__init__(**options)
            kept.append(self)

    monkeypatch.setattr(exact_way, "Coupling", Keep)
    mg.accumulate(norm, lambda y, g: mg.per_sample(y * g), (x, dy), 5)
    (coupling,) = kept
    by_mean, by_var = (coupling.adjoints["element"][s] for s in coupling.leaves[norm])
    r, centred = 1 / np.sqrt(x.var(axis=0) + norm.eps), x - x.mean(axis=0)
    gamma = norm.weight.data
    np.testing.assert_allclose(by_mean, -gamma * r * dy.sum(axis=0), rtol=1e-13)
    expected = -gamma * r**3 * (dy * centred).sum(axis=0) / 2
    np.testing.assert_allclose(by_var, expected, rtol=1e-13)


@pytest.mark.parametrize("norm", [mg.LayerNorm, lambda n, **o: mg.GroupNorm(2, n, **o)])
def test_layernorm_and_groupnorm_are_one_batch_in_one_pass(norm):
    for split in SPLITS[1:]:
        hold(lambda: chain(2, norm), mg.cross_entropy, data(), split, 0)


# ------------------------------------------------------------------- Batch Renormalization


def renormalized(x, norm):
    """Ioffe 2017, algorithm 1, in plain NumPy."""
    sigma = np.sqrt(norm.running_var + norm.eps)
    mean, deviation = x.mean(axis=0), np.sqrt(x.var(axis=0) + norm.eps)
    r = np.clip(deviation / sigma, 1 / norm.r_max, norm.r_max)
    d = np.clip((mean - norm.running_mean) / sigma, -norm.d_max, norm.d_max)
    y = ((x - mean) / deviation * r + d) * norm.weight.data + norm.bias.data
    return y, r, d, deviation


def renorm(x, **options):
    norm = roughen(mg.BatchNorm(x.shape[1], statistics="running", **options, **F8))
    rng = np.random.default_rng(2)
    norm.running_mean = rng.standard_normal(x.shape[1])
    norm.running_var = 1 + rng.random(x.shape[1])
    return norm


@pytest.mark.parametrize("options", [{}, {"r_max": 1.25, "d_max": 0.25}, {"r_max": 1, "d_max": 0}])
def test_renormalization_is_that_of_plain_numpy_forward_and_backward(options):
    x, g = data()[0], np.random.default_rng(5).standard_normal((N, 5))
    norm = renorm(x, **options)
    y, r, d, deviation = renormalized(x, norm)
    before = norm.running_mean, norm.running_var
    leaf = mg.Tensor(x, requires_grad=True)
    with mg.drawing(mg.Samples(0, 0, 0, N, norm.modules)):
        out = norm(leaf)
    assert bits([norm.running_mean, norm.running_var]) == bits(list(before))
    np.testing.assert_allclose(out.data, y, rtol=1e-12, atol=1e-13)
    out.backward(g)
    # r and d are constants: the gradient of BatchNorm with weight * r.
    z = (x - x.mean(axis=0)) / deviation
    scaled = g * norm.weight.data * r / deviation
    dx = scaled - scaled.mean(axis=0) - z * (scaled * z).mean(axis=0)
    np.testing.assert_allclose(leaf.grad, dx, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(norm.weight.grad, (g * (z * r + d)).sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(norm.bias.grad, g.sum(axis=0), rtol=1e-12)


def test_renormalization_is_clipped():
    x = data()[0] * 1000
    norm = renorm(x)
    _, r, d, _ = renormalized(x, norm)
    assert np.all(r == 3.0)
    assert np.all(np.abs(d) <= 5.0)
    assert np.any(np.abs(d) == 5.0)
    np.testing.assert_allclose(norm(x).data, renormalized(x, renorm(x))[0], rtol=1e-12)


def test_renormalization_with_the_batchs_own_statistics_is_batchnorm():
    x, g = data()[0], np.random.default_rng(5).standard_normal((N, 5))
    results = []
    for norm in (renorm(x), roughen(Micro(5, **F8))):
        norm.running_mean, norm.running_var = x.mean(axis=0), x.var(axis=0)
        leaf = mg.Tensor(x, requires_grad=True)
        y = norm(leaf)
        y.backward(g)
        results.append([y.data, leaf.grad, norm.weight.grad, norm.bias.grad])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def test_renormalization_unclipped_gives_what_evaluation_gives():
    """Forward it standardizes by the running statistics, whatever the micro-batch."""
    x = data()[0]
    norm = renorm(x, r_max=1e9, d_max=1e9)
    with mg.drawing(mg.Samples(0, 0, 0, N, norm.modules)):
        trained = norm(x).data
    np.testing.assert_allclose(trained, norm.eval()(x).data, rtol=1e-11, atol=1e-12)


def test_renormalization_reads_the_statistics_of_the_last_update_in_all_micro_batches():
    x = data()[0]
    look = Look(statistics="running")
    look.norm = renorm(x)
    expected = [renormalized(part, look.norm)[0] for part in (x[:5], x[5:10], x[10:])]
    mg.train_step(look, mg.per_sample, mg.SGD(look.parameters(), 0.0), (x,), 5)
    for a, b in zip(look.seen, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(
        look.norm.running_mean, 0.9 * renorm(x).running_mean + 0.1 * x.mean(axis=0), rtol=1e-12
    )


@pytest.mark.parametrize("micro_batch_size", [32, 100])
def test_digits_train_the_same_for_five_epochs_whatever_the_micro_batches(micro_batch_size):
    (x, y), _ = digits(np.float64)

    def losses(size):
        model = mg.MLP(64, 32, 32, 10, norm=mg.BatchNorm, rng=np.random.default_rng(0))
        model.astype(np.float64)
        optimizer = mg.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return [
            mg.train_step(
                model, mg.cross_entropy, optimizer, (x[i : i + 256], y[i : i + 256]), size
            )
            for _ in range(5)
            for i in range(0, len(x), 256)
        ]

    whole, parts = losses(256), losses(micro_batch_size)
    assert {report.passes for report in parts} == {5}
    assert {report.passes for report in whole} == {1}
    assert whole[-1].loss < 0.2 * whole[0].loss  # it learned
    for a, b in zip(whole, parts, strict=True):
        assert abs(a.loss - b.loss) < 1e-9
