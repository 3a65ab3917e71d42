"""What must happen once per update happens once per update, however often a batch is split.

Each claim is made for `train_step` and for `Accumulator`, for 1, 2 and 5 micro-batches a window,
with and without a shorter last micro-batch or window. The numbers are dyadic: equality is exact,
and a second clip, decay or move of an average would show.
"""

import itertools
import math

import numpy as np
import pytest

import minigrad as mg
from tests.toys import Toy, given


def train(model, optimizer, updates, micro_batch_size, **options):
    """Each batch of `updates` in one update by train_step; the reports."""
    return [
        mg.train_step(model, given, optimizer, (x, x), micro_batch_size, **options) for x in updates
    ]


def stream(model, optimizer, updates, micro_batch_size, **options):
    """The same micro-batches through one Accumulator an epoch; one batch is one epoch."""
    reports = []
    k = math.ceil(len(updates[0]) / micro_batch_size)
    window = mg.Accumulator(model, optimizer, accumulation_steps=k, **options)
    for batch in updates:
        with window:
            for where in mg.micro_batches(len(batch), micro_batch_size):
                x = batch[where]
                with window.micro_batch(len(x)):
                    window.backward(given(model(x)))
        reports.append(window.report)
    return reports


# 10 samples: 1, 2 and 5 equal micro-batches, then with a short one at the end: 7 3 and 3 3 3 1.
SIZES = [10, 5, 2, 7, 3]
both = pytest.mark.parametrize("run", [train, stream])
every_size = pytest.mark.parametrize("size", SIZES)

# Ten gradients whose mean is (3, 4), of norm 5; those of the micro-batches have other norms.
PAIRS = np.array([[3.0, 4]] * 10) + np.array([[8, -8], [-8, 8]] * 5) * np.arange(10)[:, None] // 2
PAIRS[-1] -= PAIRS.sum(axis=0) - [30, 40]


def test_the_gradients_to_clip_are_as_said():
    assert PAIRS.mean(axis=0).tolist() == [3, 4]
    for size in SIZES[1:]:
        parts = [PAIRS[where].mean(axis=0) for where in mg.micro_batches(10, size)]
        assert all(math.hypot(*part) != 5 for part in parts)


@both
@every_size
def test_the_gradient_is_divided_once(run, size):
    toy = Toy([0.0, 0.0])
    (report,) = run(toy, mg.SGD([toy.w], 1.0), [PAIRS], size)
    assert toy.w.data.tolist() == [-3, -4]
    assert (report.grad_norm, report.weights) == (5, {"sample": 10})


@both
@every_size
def test_the_gradient_is_clipped_once(run, size):
    toy = Toy([0.0, 0.0])
    (report,) = run(toy, mg.SGD([toy.w], 1.0), [PAIRS], size, clip_norm=2.5)
    assert toy.w.data.tolist() == [-1.5, -2]
    assert report.grad_norm == 5  # before clipping


@both
@every_size
@pytest.mark.parametrize("optimizer", [mg.SGD, mg.AdamW])
def test_weights_decay_once(run, size, optimizer):
    toy = Toy(1.0)
    run(toy, optimizer([toy.w], lr=0.5, weight_decay=0.5), [np.zeros(10)] * 2, size)
    assert toy.w.data == 0.75**2


@both
@every_size
def test_momentum_builds_up_once(run, size):
    toy = Toy(0.0)
    run(toy, mg.SGD([toy.w], lr=1.0, momentum=0.5), [np.ones(10)] * 3, size)
    assert toy.w.data == -(1 + 1.5 + 1.75)


@both
@every_size
def test_adam_counts_updates(run, size):
    toy, one = Toy(0.0), Toy(0.0)
    adam, right = mg.Adam([toy.w], lr=0.5), mg.Adam([one.w], lr=0.5)
    run(toy, adam, [np.ones(10), np.full(10, 2.0)], size)
    for g in (1.0, 2.0):
        one.w.grad = np.array(g)
        right.step()
    assert adam.updates == 2
    assert toy.w.data == one.w.data  # a wrong count would change the bias corrections


@both
@every_size
def test_the_schedule_is_asked_once_an_update_for_the_number_of_updates_before(run, size):
    asked = []

    def rate(updates):
        asked.append(updates)
        return 2.0**-updates

    toy = Toy(0.0)
    run(toy, mg.SGD([toy.w], rate), [np.ones(10)] * 3, size)
    assert asked == [0, 1, 2]
    assert toy.w.data == -(1 + 0.5 + 0.25)


@both
@every_size
def test_the_weight_average_moves_once_after_the_step(run, size):
    toy = Toy(0.0)
    average = mg.WeightAverage([toy.w], decay=0.5)
    run(toy, mg.SGD([toy.w], 1.0), [np.ones(10)] * 2, size, average=average)
    assert average.values[0] == ((0 - 1) / 2 - 2) / 2  # half-way to -1, then half-way to -2


@both
@pytest.mark.parametrize("size", [10, 5, 2, 7])  # a micro-batch of one has no variance
def test_running_statistics_move_once_by_those_of_the_whole_window(run, size):
    norm = mg.BatchNorm(2, momentum=0.5, statistics="micro", dtype=np.float64)
    toy = Toy(np.eye(2), norm)
    run(toy, mg.SGD([toy.w], 0.0), [PAIRS, 2 * PAIRS], size)

    variance = PAIRS.var(axis=0, ddof=1)
    np.testing.assert_allclose(norm.running_mean, [(0 + 1.5) / 2 + 3, 1 + 4], rtol=1e-14)
    np.testing.assert_allclose(norm.running_var, (1 + variance) / 4 + 2 * variance, rtol=1e-14)


class Watch(mg.Module):
    """Passes its input on and keeps a copy."""

    def __init__(self):
        self.seen = []

    def forward(self, x):
        self.seen.append(x.data.copy())
        return x


@both
def test_masks_are_drawn_anew_once_an_update(run):
    masks = {}
    for size in SIZES:
        mg.manual_seed(3)
        watch = Watch()
        toy = Toy(np.eye(16), mg.Dropout(0.5), watch)
        run(toy, mg.SGD([toy.w], 0.0), [np.ones((10, 16))] * 3, size)
        masks[size] = np.concatenate(watch.seen).reshape(3, 10, 16)
    for size in SIZES:
        np.testing.assert_array_equal(masks[size], masks[10])
    for first, second in itertools.combinations(masks[10].reshape(30, 16), 2):
        assert (first != second).any()  # neither two samples nor two updates share a mask


@both
@every_size
def test_there_is_one_report_an_update_of_the_whole_window(run, size):
    toy = Toy(1.0)
    updates = [np.arange(10.0), np.ones(10)]
    reports = run(toy, mg.SGD([toy.w], 0.0), updates, size)
    assert [report.loss for report in reports] == [4.5, 1]
    assert [report.micro_batches for report in reports] == [math.ceil(10 / size)] * 2
    assert all(report.updated and report.reason is None for report in reports)


# ------------------------------------------------------------------------------- the order


@both
@every_size
def test_the_order_is_divide_then_clip_then_decay_then_step(run, size):
    toy = Toy(1.0)
    run(toy, mg.SGD([toy.w], 0.5, weight_decay=0.5), [np.full(10, 2.0)], size, clip_norm=1.0)

    total, n, limit, decay = 20, 10, 1, 0.5
    right = min(total / n, limit) + decay
    others = {
        "clip, divide, decay": min(total, limit) / n + decay,
        "divide, decay, clip": min(total / n + decay, limit),
        "decay, divide, clip": min((total + decay) / n, limit),
        "divide, clip": min(total / n, limit),
        "divide, decay": total / n + decay,
    }
    assert toy.w.data == 1 - 0.5 * right == 0.25
    assert right not in others.values()


@both
def test_adamws_decay_is_not_clipped(run):
    toy = Toy(1.0)
    run(toy, mg.AdamW([toy.w], 0.5, weight_decay=0.5), [np.zeros(10)], 5, clip_norm=0.125)
    assert toy.w.data == 0.75


# --------------------------------------------------------------------- windows of a stream


@pytest.mark.parametrize(
    ("k", "windows"), [(1, [1] * 7), (2, [2, 2, 2, 1]), (5, [5, 2]), (7, [7]), (8, [7])]
)
def test_a_stream_of_seven_makes_one_of_everything_for_each_window(k, windows):
    asked = []
    toy = Toy(1.0)
    sgd = mg.SGD([toy.w], lambda t: asked.append(t) or 0.5, weight_decay=0.5)
    average, reports = mg.WeightAverage([toy.w], decay=0.5), []
    average.values[0][...] = ema = 0.0
    window = mg.Accumulator(toy, sgd, accumulation_steps=k, average=average)
    with window:
        for _ in range(7):
            with window.micro_batch(1):
                window.backward(given(toy(np.zeros(1))))
            reports.append(window.report)
    reports.append(window.report)

    n = len(windows)
    for made in range(n):
        ema = (ema + 0.75 ** (made + 1)) / 2
    assert (window.micro_batches, window.updates, sgd.updates) == (7, n, n)
    assert asked == list(range(n))
    assert (toy.w.data, average.values[0]) == (0.75**n, ema)
    made = list({id(report): report for report in reports if report}.values())
    assert [report.micro_batches for report in made] == windows


def test_two_optimizers_make_one_update_each_and_share_one_clip():
    class Pair(mg.Module):
        def __init__(self):
            self.first, self.second = Toy(0.0), Toy(0.0)

        def forward(self, x):
            return self.first(x[:, 0]) + self.second(x[:, 1])

    pair = Pair()
    optimizers = [mg.SGD([pair.first.w], 1.0), mg.SGD([pair.second.w], 2.0)]
    report = mg.train_step(pair, given, optimizers, (PAIRS, PAIRS), 3, clip_norm=2.5)
    assert report.grad_norm == 5
    assert (pair.first.w.data, pair.second.w.data) == (-1.5, -4)
    assert [optimizer.updates for optimizer in optimizers] == [1, 1]


# ------------------------------------------------------------- an update that is not made


@both
@pytest.mark.parametrize(
    "bad", [np.full(10, math.nan), np.array([1.0] * 9 + [math.inf])], ids=["nan", "inf"]
)
def test_a_window_that_is_not_finite_counts_for_nothing(run, bad):
    asked = []
    toy = Toy(1.0)
    sgd = mg.SGD([toy.w], lambda t: asked.append(t) or 1.0, momentum=0.5, weight_decay=0.5)
    average = mg.WeightAverage([toy.w], decay=0.5)
    average.values[0][...] = 8
    with pytest.warns(mg.NonFiniteWarning) as caught:
        (report,) = run(toy, sgd, [bad], 5, average=average)
    assert len(caught) == 1
    assert not report.updated
    assert (toy.w.data, sgd.updates, average.values[0], asked) == (1, 0, 8, [])
