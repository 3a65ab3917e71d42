"""BatchNorm and losses of a whole batch, where they are easily got wrong without a word.

Each net here once gave the gradient of another batch in silence, or failed in parts and not in one
batch. Now it is exact (to rounding), or refused by name.
"""

from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from minigrad.batchnorm import Statistics
from minigrad.losses import Loss, Term

F8 = {"dtype": np.float64}
N = 12


def data(n: int = N, features: int = 5) -> tuple:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, features)) + 1, rng.integers(0, 3, n)


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


class Net(mg.Module):
    """Linear, BatchNorm, then `behind`, Linear: in `forward`, what a test puts in between."""

    def __init__(self, before=lambda h: h, behind=lambda h: h):
        self.into, self.norm = mg.Linear(5, 4, False, rng=rng(), **F8), mg.BatchNorm(4, **F8)
        self.out = mg.Linear(4, 3, rng=rng(), **F8)
        self.before, self.behind = before, behind

    def forward(self, x):
        return self.out(self.behind(mg.tanh(self.norm(self.before(self.into(x))))))


def gradients(make, loss, batch, size):
    """All gradients of the batch in micro-batches of this size, and the report."""
    mg.manual_seed(3)
    model = make()
    report = mg.accumulate(model, loss, batch, size)
    return [p.grad for p in model.parameters()], report


def gap(make, loss=mg.cross_entropy, batch=None, size=5):
    """How far the parts are from one batch, as a part of its gradient's norm."""
    batch = data() if batch is None else batch
    (found, _), (expected, _) = (gradients(make, loss, batch, s) for s in (size, len(batch[0])))
    assert [g is None for g in found] == [g is None for g in expected]
    found, expected = (
        np.concatenate([g.ravel() for g in gs if g is not None]) for gs in (found, expected)
    )
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


# ----------------------------------------------------------------- a BatchNorm that is not seen


def with_a_norm_in_a_closure():
    """`modules()` does not find it, and its own norm does not couple."""
    hidden = mg.BatchNorm(4, **F8)
    net = Net(before=lambda h: hidden(h))
    net.norm.statistics = "micro"
    return net


class WakesUp(Net):
    """In evaluation when the window begins, in training when it is called."""

    def __init__(self):
        super().__init__()
        self.norm.eval()

    def forward(self, x):
        self.norm.train()
        return super().forward(x)


class Bare(mg.Module):
    """Without a BatchNorm."""

    def __init__(self):
        self.into = mg.Linear(5, 4, rng=rng(), **F8)

    def forward(self, x):
        return self.into(x)


@pytest.mark.parametrize("make", [with_a_norm_in_a_closure, WakesUp])
def test_a_batchnorm_that_the_window_does_not_know_is_refused(make):
    with pytest.raises(ValueError, match="not the whole batch, expected it in training and among"):
        mg.accumulate(make(), mg.cross_entropy, data(), 4)
    mg.accumulate(make(), mg.cross_entropy, data(), N)  # one batch knows its own statistics


def test_a_batchnorm_in_a_plain_loss_is_refused_in_parts():
    norm = mg.BatchNorm(4, **F8)
    head = mg.Linear(4, 3, rng=rng(), **F8)
    loss = lambda outputs, y: mg.cross_entropy(head(mg.tanh(norm(outputs))), y)  # noqa: E731
    with pytest.raises(ValueError, match="make it an attribute of the model"):
        mg.accumulate(Bare(), loss, data(), 4)


def test_a_stream_refuses_it_too():
    norm, model = mg.BatchNorm(4, **F8), Bare()
    optimizer = mg.SGD(model.parameters(), 0.1)
    x, _ = data()
    before = [p.data.copy() for p in model.parameters()]

    def stream():
        with mg.Accumulator(model, optimizer, accumulation_steps=2) as accumulator:
            for part in (x[:6], x[6:]):
                with accumulator.micro_batch(6):
                    accumulator.backward(mg.per_sample(norm(model(part)).sum(axis=1)))

    with pytest.raises(ValueError, match="choose 'micro' or 'running'"):
        stream()
    assert all(np.array_equal(p.data, b) for p, b in zip(model.parameters(), before, strict=True))
    assert not norm.running_mean.any()


# --------------------------------------------------------------------- draws inside of a loss


class Twin(mg.Module):
    """An encoder; BatchNorm and Dropout are its parts, and the loss calls them (Barlow Twins)."""

    def __init__(self):
        self.encode = mg.Linear(5, 4, rng=rng(), **F8)
        self.norm, self.drop = mg.BatchNorm(4, affine=False, **F8), mg.Dropout(0.5)

    def forward(self, x):
        return self.encode(x)


def correlation(model):
    @mg.coupled
    def loss(z):
        z = model.drop(model.norm(z))
        off = z.T @ z * (1 / len(z)) - np.eye(4)
        return Loss([Term("batch", 1, (off * off).sum(), 1)])

    return loss


def test_what_a_loss_of_the_whole_batch_draws_belongs_to_the_samples():
    results = []
    for size in (N, 5, 1):
        mg.manual_seed(3)
        model = Twin()
        report = mg.accumulate(model, correlation(model), data()[:1], size)
        results.append((report.loss, model.encode.weight.grad))
        assert not model.norm.running_mean.any()  # accumulate moves no running statistics
    for loss, gradient in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-12)
        np.testing.assert_allclose(gradient, results[0][1], rtol=1e-9, atol=1e-12)


def test_its_running_statistics_move_once_an_update():
    moved = []
    for size in (N, 5):
        mg.manual_seed(3)
        model = Twin()
        optimizer = mg.SGD(model.parameters(), 0.1)
        mg.train_step(model, correlation(model), optimizer, data()[:1], size)
        moved.append(model.norm.running_mean)
    assert moved[0].any()
    np.testing.assert_allclose(moved[1], moved[0], rtol=1e-12)


# ----------------------------------------------------------- passes that compute something else


def signs(h):
    """Other signs in each pass: the squares of all values stay as they are."""
    return h * np.random.default_rng().choice([-1.0, 1.0], h.shape)


def noise(scale):
    return lambda h: h + np.random.default_rng().standard_normal(h.shape) * scale


MOVING = {
    "signs before": lambda: Net(before=signs),
    "noise before": lambda: Net(before=noise(1e-6)),
    "noise behind the last": lambda: Net(behind=noise(1e-6)),
}


@pytest.mark.parametrize("name", MOVING)
def test_a_pass_that_computes_something_else_is_refused_wherever_it_is(name):
    with pytest.raises(ValueError, match="a further pass over a micro-batch computed something"):
        mg.accumulate(MOVING[name](), mg.cross_entropy, data(64), 8)


class Gated(mg.Module):
    """Its second BatchNorm depends on the first one in some micro-batches, not in the first."""

    def __init__(self):
        self.lower, self.upper = (
            mg.Linear(5, 5, False, rng=rng(), **F8),
            mg.Linear(5, 5, rng=rng(), **F8),
        )
        self.a, self.b = mg.BatchNorm(5, **F8), mg.BatchNorm(5, **F8)
        self.out = mg.Linear(5, 3, rng=rng(), **F8)

    def forward(self, x):
        gate = (x[:, :1] > 0) * 1.0
        hidden = mg.tanh(self.a(self.lower(x)))
        x = mg.Tensor(x) + hidden * gate if gate.any() else mg.Tensor(x)
        return self.out(mg.tanh(self.b(self.upper(x))))


def test_wiring_that_depends_on_the_micro_batch_is_refused():
    x, y = data(16)
    x[:4, 0] = -1
    with pytest.raises(ValueError, match="a further pass over a micro-batch computed something"):
        mg.accumulate(Gated(), mg.cross_entropy, (x, y), 4)
    x[0, 0] = 1  # now the first micro-batch tells
    assert gap(Gated, batch=(x, y), size=4) < 1e-12


# ------------------------------------------------------------- parts as one batch, in corners


class Dead(Net):
    """A branch with a BatchNorm that the loss does not use."""

    def __init__(self):
        super().__init__()
        self.aside, self.its_norm = mg.Linear(5, 4, rng=rng(), **F8), mg.BatchNorm(4, **F8)

    def forward(self, x):
        self.its_norm(self.aside(x))
        return super().forward(x)


def test_a_branch_that_is_not_used_has_no_gradient_in_parts_either():
    """None, not 0: else weight decay would move it."""
    for size in (N, 5):
        found, _ = gradients(Dead, mg.cross_entropy, data(), size)
        assert sum(g is None for g in found) == 4
    assert gap(Dead) < 1e-12


def test_two_dtypes_in_one_net_are_one_batch_too():
    class Mixed(Net):
        def __init__(self):
            super().__init__()
            self.into = mg.Linear(5, 4, False, rng=rng())
            self.norm = mg.BatchNorm(4)

        def forward(self, x):
            hidden = mg.tanh(self.norm(self.into(x.astype(np.float32))))
            return self.out(hidden.astype(np.float64))

    assert gap(Mixed) < 1e-5


def test_a_temperature_that_learns_alone_is_one_batch_too():
    class Frozen(mg.Module):
        def __init__(self):
            self.encode = mg.Linear(5, 4, rng=rng(), **F8)
            self.temperature = mg.parameter(np.array(1.5))
            for p in self.encode.parameters():
                p.requires_grad = False

        def forward(self, x):
            return self.encode(x), self.encode(x * x)

    results = []
    for size in (N, 4, 1):
        model = Frozen()

        @mg.coupled
        def loss(pair, model=model):
            return mg.contrastive((pair[0] * model.temperature, pair[1]))

        mg.accumulate(model, loss, data()[:1], size)
        results.append(float(model.temperature.grad))
    assert results[1:] == pytest.approx([results[0]] * 2, rel=1e-12)


def test_a_micro_batch_of_which_no_row_is_taken_adds_nothing():
    class Chosen(Net):
        def forward(self, x):
            keep = np.flatnonzero(np.asarray(x)[:, 0] > 0)
            rows = mg.tanh(self.norm(self.into(x)[keep]))
            return self.out(rows).sum(axis=0).reshape(1, 3) * np.ones((len(x), 1))

    x, _ = data()
    x[:4, 0] = -1  # all of the first micro-batch, so that only one way is asked
    loss = lambda outputs: mg.per_sample((outputs * outputs).sum(axis=1))  # noqa: E731
    _, report = gradients(Chosen, loss, (np.roll(x, 4, axis=0),), 4)
    assert np.isfinite(report.loss)
    assert np.isfinite(report.grad_norm)


def test_statistics_of_no_rows_are_the_neutral_element():
    x = data()[0]
    none, all_of_it = Statistics.of(x[:0]), Statistics.of(x)
    for both in (none.merge(all_of_it), all_of_it.merge(none)):
        assert all(np.array_equal(a, b) for a, b in zip(both, all_of_it, strict=True))
    assert not none.merge(none).mean.any()


def test_a_unit_that_some_micro_batches_lack_weighs_nothing_there():
    def loss(outputs, y):
        main = mg.cross_entropy(outputs, y)
        if len(y) and y[0] == 1:  # a micro-batch of its own
            return main + mg.squared_error(outputs[:, 0], np.ones(len(y)), unit="value")
        return main

    x, y = data()
    y = np.repeat([0, 1, 2], 4)
    model, other = Net(), Net()
    found = mg.accumulate(model, loss, (x, y), 4)
    assert found.weights == {"sample": N, "value": 4}

    def whole(outputs, y):
        aside = mg.squared_error(outputs[4:8, 0], np.ones(4), unit="value")
        return mg.cross_entropy(outputs, y) + aside

    expected = mg.accumulate(other, whole, (x, y), N)
    assert found.loss == pytest.approx(expected.loss, rel=1e-12)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(p.grad, q.grad, rtol=1e-9, atol=1e-12)


def test_a_norm_by_micro_batches_beside_an_exact_one_moves_once():
    """Its running statistics are merged from one pass alone, whatever the others are for."""

    class Both(Net):
        def __init__(self):
            super().__init__()
            self.own = mg.BatchNorm(5, statistics="micro", **F8)

        def forward(self, x):
            return super().forward(self.own(x))

    x, y = data()
    model = Both()
    mg.train_step(model, mg.cross_entropy, mg.SGD(model.parameters(), 0.0), (x, y), 4)
    np.testing.assert_allclose(model.own.running_mean, 0.1 * x.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(model.own.running_var, 0.9 + 0.1 * x.var(axis=0, ddof=1), rtol=1e-12)


# --------------------------------------------------------------------------- what rounding does


def test_in_float32_the_mean_of_many_rows_far_from_zero_is_right():
    """100,000 rows of mean 10,000: added up in float32 the mean would be off by deviations."""
    x = (np.random.default_rng(0).standard_normal((100_000, 3)) + 1e4).astype(np.float32)
    assert np.abs(x.sum(axis=0) / len(x) - x.mean(axis=0, dtype=np.float64)).max() > 1
    for mean in (Statistics.of(x).mean, mg.functions.batch_norm(x, *ones(3), 1e-5)[1]):
        assert mean.dtype == np.float32
        assert np.abs(mean - x.mean(axis=0, dtype=np.float64)).max() < 1e-3  # its own rounding
    y = mg.BatchNorm(3)(x).data
    assert abs(y.mean()) < 1e-3
    assert abs(y.std() - 1) < 1e-3


def ones(channels):
    return mg.Tensor(np.ones(channels, np.float32)), mg.Tensor(np.zeros(channels, np.float32))


@pytest.mark.parametrize("make", [mg.Adam, mg.AdamW, mg.SGD], ids=lambda make: make.__name__)
def test_an_mlp_with_batchnorm_ends_where_one_batch_ends_whatever_the_optimizer(make):
    """20 updates in float64. With a bias before BatchNorm Adam would be 1e-10 off, and 2e-3 with
    weight decay: it divides by the size of the gradient, which is nothing but rounding there."""
    ends = []
    for size in (N, 5):
        model = mg.MLP(5, 8, 8, 3, norm=mg.BatchNorm, rng=rng(), **F8)
        decay = {} if make is mg.AdamW else {"weight_decay": 0.1}
        optimizer = make(model.parameters(), lr=0.01, **decay)
        for _ in range(20):
            mg.train_step(model, mg.cross_entropy, optimizer, data(), size)
        ends.append(np.concatenate([v.ravel() for v in model.state_dict().values()]))
    assert np.linalg.norm(ends[1] - ends[0]) < 1e-12 * np.linalg.norm(ends[0])


def test_with_a_bias_before_batchnorm_adam_makes_steps_of_rounding():
    """The reason why MLP leaves it out: the first update of the bias is of the size of the rate, in
    a direction that rounding chose."""
    moved = []
    for size in (N, 5):
        model = Net()
        model.into.bias = mg.parameter(np.zeros(4))
        optimizer = mg.Adam(model.parameters(), lr=0.01, eps=0.0)
        mg.train_step(model, mg.cross_entropy, optimizer, data(), size)
        moved.append(model.into.bias.data)
    assert np.abs(moved[1]).max() > 1e-3
    assert np.abs(moved[1] - moved[0]).max() > 1e-3


# ---------------------------------------------------------------------------- what is refused


def test_an_output_without_rows_is_refused_by_name():
    class Clip(Twin):
        def forward(self, x):
            return self.encode(x), mg.parameter(np.array(1.0))

    with pytest.raises(TypeError, match=r"Tensor of shape \(\), expected Tensors with a row for"):
        mg.accumulate(Clip(), mg.coupled(lambda o: mg.contrastive(o)), data()[:1], 4)


def test_a_method_can_be_marked():
    class Own(Twin):
        def loss(self, z):
            return mg.contrastive((z, mg.tanh(z)))

    results = []
    for size in (N, 5):
        model = Own()
        mg.accumulate(model, mg.coupled(model.loss), data()[:1], size)
        results.append(model.encode.weight.grad)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-9)


def test_fractions_have_no_batchnorm():
    with pytest.raises(TypeError, match=r"BatchNorm got Fractions, expected floats"):
        mg.BatchNorm(2).astype(object)(mg.fractions([[1, 2], [3, 4]]))
