"""Faults of gradient accumulation that were seen in public code cannot happen here.

A test a fault, under its number in the bug log: the small input, the right answer by minigrad's own
path, and beside it the loop that people write, with the wrong number that it gives. Docstrings
say the symptom and the kind. Numbers are exact (==) where the input is dyadic or a Fraction.
"""

import gc
import math
import weakref
from fractions import Fraction

import numpy as np
import pytest

import minigrad as mg
from tests.toys import Toy, given


def line(*x):
    """The batch of the toy: x and 2x."""
    return np.array(x, float), 2 * np.array(x, float)


def alone(g):
    """A batch of given gradients; its targets are not used."""
    return np.array(g, float), np.array(g, float)


def parts(*values):
    """Micro-batches of one sample each."""
    return [np.array([value], float) for value in values]


def stream(model, optimizer, micro_batches, k, **options):
    """One epoch of micro-batches through an Accumulator. Yields it after each and at the end."""
    accumulator = mg.Accumulator(model, optimizer, accumulation_steps=k, **options)
    with accumulator:
        for x in micro_batches:
            with accumulator.micro_batch(len(x)):
                accumulator.backward(given(model(x)))
            yield accumulator
    yield accumulator


def last(steps):
    *_, accumulator = steps
    return accumulator


# ------------------------------------------------------------------- A. scale of the gradient


def test_b01_the_gradient_does_not_grow_with_k():
    """Loss and gradient grow with k. Kind A, missing 1/k."""
    toy, (x, y) = Toy(), line(1, 2, 3, 4)
    mg.accumulate(toy, mg.squared_error, (x, y), accumulation_steps=2)

    fault = Toy()
    for j in (0, 2):
        mg.squared_error(fault(x[j : j + 2]), y[j : j + 2]).mean().backward()

    assert (toy.w.grad, fault.w.grad) == (-30, -60)


def test_b02_one_object_owns_the_division():
    """Updates are k times too small. Kind A, two owners of 1/k."""
    toy, (x, y) = Toy(), line(1, 2, 3, 4)
    mg.accumulate(toy, mg.squared_error, (x, y), accumulation_steps=2)

    fault, k = Toy(), 2
    for j in (0, 2):
        loss = mg.squared_error(fault(x[j : j + 2]), y[j : j + 2]).mean() / k
        (loss / k).backward()  # in the trainer's backward()

    assert (toy.w.grad, fault.w.grad) == (-30, -15)
    with pytest.raises(TypeError, match="the loss is a Tensor, expected a Loss"):
        mg.accumulate(toy, lambda *a: mg.squared_error(*a).mean() / k, (x, y), accumulation_steps=k)


def test_b03_no_count_is_promised_that_a_loss_could_ignore():
    """Loss and norm are k times too large for some losses. Kind A, a count promised but ignored."""
    k, x = 4, np.ones(8)
    toy = Toy()
    mg.accumulate(toy, given, (x, x), accumulation_steps=k)

    def uses_the_count(outputs, n_total=None):
        return outputs.sum() / n_total

    def ignores_the_count(outputs, n_total=None):
        return outputs.mean()

    wrong = {}
    for loss in (uses_the_count, ignores_the_count):
        fault = Toy()
        for j in range(0, 8, 2):  # "the loss accepts n_total": so no 1/k here
            loss(fault(x[j : j + 2]), n_total=8).backward()
        wrong[loss] = fault.w.grad

    assert toy.w.grad == wrong[uses_the_count] == 1
    assert wrong[ignores_the_count] == 4


# ------------------------------------------------------------------------- B. unequal weights


def test_b06_tokens_weigh_the_same_in_short_and_long_micro_batches():
    """Accumulated loss above full-batch loss when lengths differ. Kind B, mean of means."""
    tokens, mask = np.array([[8.0, 0, 0], [2, 2, 2]]), np.array([[1, 0, 0], [1, 1, 1]])
    toy = Toy()
    mg.accumulate(toy, mg.per_sample, (tokens, mask), micro_batch_size=1)

    fault = Toy()
    for row, counted in zip(tokens, mask, strict=True):
        ((fault(row) * counted).sum() / int(counted.sum()) / 2).backward()

    assert (toy.w.grad, fault.w.grad) == (3.5, 5)


def test_b07_a_short_micro_batch_weighs_less_than_a_full_one():
    """The result depends on b when b does not divide the batch. Kind B, mean of means."""
    x, y = (mg.fractions(a) for a in line(1, 2, 3, 4, 5))
    rate = Fraction(1, 100)
    toy = Toy().astype(object)
    mg.train_step(toy, mg.squared_error, mg.SGD(toy.parameters(), rate), (x, y), micro_batch_size=2)

    means = [np.mean(-4 * x[j : j + 2] * x[j : j + 2]) for j in (0, 2, 4)]

    assert toy.w.data == Fraction(11, 25)
    assert -rate * sum(means) / 3 == Fraction(8, 15)


def test_b09_a_micro_batch_of_masked_targets_adds_nothing():
    """NaN, or a silently halved update. Kind B, all targets masked in one micro-batch."""
    g, mask = np.array([9.0, 9, 9, 9, 1, 2, 3, 4]), np.array([0, 0, 0, 0, 1, 1, 1, 1])
    toy = Toy()
    report = mg.accumulate(toy, mg.per_sample, (g, mask), micro_batch_size=4)

    unguarded, clamped = [], []
    for rows, counted in ((g[:4], mask[:4]), (g[4:], mask[4:])):
        total, count = np.sum(rows * counted), np.sum(counted)
        unguarded.append(total / count if count else math.nan)
        clamped.append(total / max(count, 1))

    assert (toy.w.grad, report.weights) == (2.5, {"weight": 4})
    assert math.isnan(np.mean(unguarded))
    assert np.mean(clamped) == 1.25


def test_b09_a_window_of_masked_targets_makes_no_update_and_says_so():
    """NaN in the weights. Kind B, all targets masked in the whole window."""
    toy = Toy(1.0)
    sgd = mg.SGD(toy.parameters(), 1.0)
    report = mg.train_step(toy, mg.per_sample, sgd, (np.ones(4), np.zeros(4)), micro_batch_size=2)

    total, count = np.float64(0), np.float64(0)
    with np.errstate(invalid="ignore"):
        fault = 1.0 - total / count

    assert (toy.w.data, sgd.updates, report.updated) == (1, 0, False)
    assert "its weight is 0" in report.reason
    assert math.isnan(fault)


def test_b10_class_weights_are_divided_out_once_a_window():
    """Not equal to the full batch even with equal sizes. Kind B, class-weighted cross entropy."""
    logits = np.array([[0, math.log(math.e - 1)], [math.log(math.e**2 - 1), 0]])  # losses 1 and 2
    labels, class_weights = np.array([0, 1]), np.array([1.0, 3.0])

    def loss(outputs, y):
        return mg.cross_entropy(outputs, y, class_weights=class_weights)

    report = mg.accumulate(Toy(1.0), loss, (logits, labels), micro_batch_size=1)
    fault = sum(loss(mg.Tensor(logits[i : i + 1]), labels[i : i + 1]).mean().item() for i in (0, 1))

    assert report.loss == pytest.approx(1.75, rel=1e-15)
    assert fault / 2 == pytest.approx(1.5, rel=1e-15)


@pytest.mark.parametrize(("b", "wrong"), [(1, 2), (2, 1)])
def test_b12_an_auxiliary_loss_does_not_depend_on_the_micro_batch_size(b, wrong):
    """Doubling b halves the auxiliary gradient. Kind B, per-sequence count for a micro-batch's."""
    sequences = np.full(4, 2.0)
    toy = Toy()
    mg.accumulate(
        toy,
        lambda outputs, _: mg.per_sample(0 * outputs, unit="token") + mg.per_sample(outputs),
        (sequences, sequences),
        micro_batch_size=b,
    )

    fault = Toy()
    for part in np.split(sequences, 4 // b):
        auxiliary = fault(part).mean()  # a mean already
        (auxiliary / len(part) / (4 // b)).backward()

    assert (toy.w.grad, fault.w.grad) == (2, wrong)


def test_b13_a_penalty_counts_once_a_window():
    """The penalty is k times too strong. Kind B, a term without data added in every micro-batch."""

    def penalty(model):
        return 0.125 / 2 * (model.w * model.w)

    toy, zeros = Toy(2.0), np.zeros(4)
    mg.accumulate(
        toy, lambda outputs, _: given(outputs) + mg.penalty(penalty(toy)), (zeros, zeros), 1
    )

    fault = Toy(2.0)
    for g in parts(*zeros):
        (fault(g).sum() / 4 + penalty(fault)).backward()

    assert (toy.w.grad, fault.w.grad) == (0.25, 1)


# ------------------------------------------------------------------- C. where a window ends


def test_b16_the_tail_is_stepped():
    """A small data set does not train at all. Kind C, the tail is never stepped."""
    toy = Toy()
    accumulator = last(stream(toy, mg.SGD(toy.parameters(), 1.0), parts(1, 2, 3), k=4))

    w, total = 0, 0
    for i, g in enumerate((1, 2, 3)):
        total += g
        if (i + 1) % 4 == 0:
            w, total = w - total / 4, 0

    assert (toy.w.data, accumulator.updates) == (-2, 1)
    assert w == 0


def test_b17_the_tail_does_not_leak_into_the_next_epoch():
    """The first update of each epoch is too large. Kind C, the index restarts, the buffer not."""
    toy, moves = Toy(), []
    sgd = mg.SGD(toy.parameters(), 1.0)
    for _epoch in range(2):
        before, seen = toy.w.data.item(), 0
        for accumulator in stream(toy, sgd, parts(1, 1, 1, 1, 1), k=4):
            if accumulator.updates > seen:
                moves.append(before - toy.w.data.item())
                before, seen = toy.w.data.item(), accumulator.updates

    wrong, total = [], 0
    for _epoch in range(2):
        for i, g in enumerate((1, 1, 1, 1, 1)):
            total += g
            if (i + 1) % 4 == 0:
                wrong.append(total / 4)
                total = 0

    assert moves == [1, 1, 1, 1]
    assert wrong == [1, 5 / 4]


def test_b18_the_tail_is_divided_by_what_was_seen():
    """The last update of an epoch is too small. Kind C, 1/k before the size is known."""
    g = -4 * np.array([1, 2, 3, 4, 5.0]) ** 2  # the toy's gradients at w = 0
    toy = Toy()
    *_, before, _ = (toy.w.data.item() for _ in stream(toy, mg.SGD([toy.w], 1.0), parts(*g), k=4))

    fault = Toy()
    (fault(g[4:]).sum() / 4).backward()  # the tail, divided as a full window

    assert before - toy.w.data == -100
    assert fault.w.grad == -25


def test_b19_updates_come_after_the_last_micro_batch_of_a_window():
    """First update after one micro-batch, last micro-batches unused. Kind C, off by one."""
    toy, after, seen = Toy(), [], 0
    for i, accumulator in enumerate(stream(toy, mg.SGD([toy.w], 1.0), parts(*[1] * 8), k=4)):
        if accumulator.updates > seen:
            after.append(i)
            seen = accumulator.updates

    assert after == [3, 7]
    assert [i for i in range(8) if i % 4 == 0] == [0, 4]
    assert [i for i in range(1, 9) if (i + 1) % 4 == 0] == [3, 7]  # of 1 to 8: one too early


def test_b20_a_window_makes_one_update():
    """An update per micro-batch. Kind C, condition inverted, or the step outside of the `if`."""
    toy = Toy()
    accumulator = last(stream(toy, mg.SGD([toy.w], 1.0), parts(*[1] * 8), k=4))

    inverted = sum(1 for i in range(8) if (i + 1) % 4)
    outside = 0
    for i in range(8):
        if (i + 1) % 4 == 0:
            pass  # only the log stands in here
        outside += 1

    assert accumulator.updates == 2
    assert (inverted, outside) == (6, 8)


def test_b23_a_split_inside_the_last_loader_batch_makes_one_update():
    """Every micro-batch of the last batch steps. Kind C, an end-of-loader flag forces it."""
    toy = Toy()
    sgd = mg.SGD([toy.w], 1.0)
    loader = [alone([1, 2, 3, 4]), alone([5, 6, 7, 8])]
    for batch in loader:
        mg.train_step(toy, given, sgd, batch, micro_batch_size=1)

    updates, w, total = 0, 0, 0
    for i, (x, _) in enumerate(loader):
        end_of_loader = i == len(loader) - 1
        for j, g in enumerate(x):
            total += g
            if (j + 1) % 4 == 0 or end_of_loader:
                updates, w, total = updates + 1, w - total / 4, 0

    assert (sgd.updates, toy.w.data) == (2, -(2.5 + 6.5))
    assert (updates, w) == (1 + 4, -(2.5 + 6.5))  # same sum here: only the count shows the fault


# ---------------------------------------------------------------- D. once per update, not k times


def test_b24_the_schedule_advances_once_per_update():
    """The warm-up is k times shorter. Kind D, the scheduler outside of the boundary test."""

    def rate(t):
        return 1 - t / 8

    toy, used = Toy(), []
    before, seen = 0.0, 0
    for accumulator in stream(toy, mg.SGD([toy.w], rate), parts(*[1] * 8), k=4):
        if accumulator.updates > seen:
            used.append(before - toy.w.data.item())  # the gradient is 1
            before, seen = toy.w.data.item(), accumulator.updates

    wrong = []
    for t in range(8):
        if (t + 1) % 4 == 0:
            wrong.append(rate(t))  # scheduler.step() after every micro-batch

    assert used == [1, 0.875]
    assert wrong == [0.625, 0.125]


def test_b25_the_schedule_reads_the_counter_of_updates():
    """As B24, inside the optimizer. Kind D, two counters and the wrong one read."""

    def rate(t):
        return Fraction(1, 1 + t)

    toy, ones = Toy().astype(object), mg.fractions([1, 1, 1, 1])
    sgd, weights = mg.SGD([toy.w], rate), []
    for _ in range(3):
        mg.train_step(toy, given, sgd, (ones, ones), micro_batch_size=1)
        weights.append(toy.w.data.item())

    w, wrong = Fraction(0), []
    for iteration in range(12):
        if (iteration + 1) % 4 == 0:
            w -= rate(iteration)
            wrong.append(w)

    assert weights == [-1, Fraction(-3, 2), Fraction(-11, 6)]
    assert wrong == [Fraction(-1, 4), Fraction(-3, 8), Fraction(-11, 24)]


def test_b26_weight_decay_acts_once_per_update():
    """SGD is right, SGD with weight decay wrong. Kind D, decay in every micro-batch."""
    toy = Toy(1.0)
    sgd = mg.SGD([toy.w], lr=0.5, weight_decay=0.5)
    mg.train_step(toy, given, sgd, alone([0, 0, 0]), micro_batch_size=1)

    w = 1.0
    for _ in range(3):
        w -= 0.5 * 0.5 * w

    assert (toy.w.data, w) == (0.75, 0.75**3)


def test_b26_adams_counter_moves_once_per_update():
    """SGD is right, Adam wrong. Kind D, `iterations` counts every micro-batch."""
    toy = Toy()
    mg.train_step(toy, given, mg.Adam([toy.w], lr=0.1), alone([1, 1, 1, 1]), micro_batch_size=1)

    fault = Toy()
    adam = mg.Adam([fault.w], lr=0.1)
    for _ in range(4):
        (fault(np.ones(1)).sum() / 4).backward()
        adam.updates += 1
    adam.updates -= 1  # step() counts the fourth
    adam.step()

    assert toy.w.data == pytest.approx(-0.1, rel=1e-7)
    assert fault.w.data == pytest.approx(-0.0581128, rel=1e-6)


def test_b27_the_optimizer_sees_the_mean_gradient_once():
    """Adam moves about k times too far. Kind D, the transform runs before the accumulation."""
    toy = Toy()
    mg.train_step(toy, given, mg.Adam([toy.w], lr=0.1), alone([1, 2, 3, 6]), micro_batch_size=1)

    fault = Toy()
    adam = mg.Adam([fault.w], lr=0.1)
    for g in parts(1, 2, 3, 6):
        adam.zero_grad()
        fault(g).sum().backward()
        adam.step()

    assert toy.w.data == pytest.approx(-0.1, rel=1e-7)
    assert fault.w.data == pytest.approx(-0.38314, rel=1e-5)


PAIR = np.array([[[3.0, 4]], [[4, -3]]])


def clipped_update():
    """The step of the mean of PAIR, clipped to norm 1, by minigrad."""
    toy = Toy([0.0, 0.0])
    mg.train_step(toy, given, mg.SGD([toy.w], 1.0), alone(PAIR.reshape(2, 2)), 1, clip_norm=1.0)
    return -toy.w.data


def test_b28_the_finished_gradient_is_clipped_not_the_parts():
    """Later micro-batches dominate, the direction changes. Kind D, clip inside of the window."""
    toy, total = Toy([0.0, 0.0]), np.zeros(2)
    for g in PAIR:
        toy.zero_grad()
        toy(g).sum().backward()
        mg.clip_grad_norm([toy.w], 1.0)
        total += toy.w.grad / 2

    running = Toy([0.0, 0.0])
    for g in PAIR:
        running(g).sum().backward()
        mg.clip_grad_norm([running.w], 1.0)  # of the buffer so far

    np.testing.assert_allclose(clipped_update(), [0.98995, 0.14142], atol=5e-6)
    np.testing.assert_allclose(total, [0.7, 0.1], atol=1e-15)
    np.testing.assert_allclose(running.w.grad, [0.90213, -0.43146], atol=5e-6)


def test_b29_the_gradient_is_divided_before_it_is_clipped():
    """The threshold is k times too strict. Kind D, clip before averaging."""
    toy = Toy([0.0, 0.0])
    for g in PAIR:
        toy(g).sum().backward()
    mg.clip_grad_norm([toy.w], 1.0)
    toy.w.grad /= 2

    np.testing.assert_allclose(clipped_update(), [0.98995, 0.14142], atol=5e-6)
    np.testing.assert_allclose(toy.w.grad, [0.49497, 0.07071], atol=5e-6)


def test_b30_the_weight_average_moves_once_per_update():
    """The average follows k times faster. Kind D, EMA update outside of the boundary."""
    toy = Toy()
    average = mg.WeightAverage([toy.w], decay=0.5)
    batch = alone([-1, -1, -1, -1])
    mg.train_step(toy, given, mg.SGD([toy.w], 1.0), batch, micro_batch_size=1, average=average)

    ema = 0.0
    for _ in range(4):
        ema = 0.5 * ema + 0.5 * 1

    assert (toy.w.data, average.values[0]) == (1, 0.5)
    assert ema == 0.9375


def test_b30_over_three_updates():
    """As above, with the numbers of a released framework."""
    toy = Toy()
    sgd, batch = mg.SGD([toy.w], 1.0), alone([1, 1, 1, 1])
    mg.train_step(toy, given, sgd, batch, micro_batch_size=1)
    average = mg.WeightAverage([toy.w], decay=0.5)  # starts at -1
    for _ in range(2):
        mg.train_step(toy, given, sgd, batch, micro_batch_size=1, average=average)

    w, ema = -1, -1.0
    for i in range(8):
        if (i + 1) % 4 == 0:
            w -= 1
        ema = 0.5 * ema + 0.5 * w

    assert (toy.w.data, average.values[0]) == (-3, -2.25)
    assert ema == -2.46875


class SignSGD(mg.SGD):
    """p <- p - lr sign(g): a transform that is not linear. Counts its calls."""

    calls = 0

    def update(self, p, g, lr, *scratch):
        self.calls += 1
        p -= lr * np.sign(g)


def test_b32_a_transform_that_is_not_linear_runs_once():
    """One mode differs by 10%. Kind D, f(mean g) is not mean f(g)."""
    toy = Toy()
    sign = SignSGD([toy.w], 1.0)
    mg.train_step(toy, given, sign, alone([3, -1, -1]), micro_batch_size=1)
    fault = sum(np.sign(g) / 3 for g in (3, -1, -1))

    assert (-toy.w.data, sign.calls) == (1, 1)
    assert fault == pytest.approx(-1 / 3)


def test_b33_a_checkpoint_is_saved_once():
    """The same checkpoint is written k times. Kind D, save in the loop of micro-batches."""
    toy, saved, wrong, seen = Toy(), [], [], None
    steps = stream(toy, mg.SGD([toy.w], 1.0), parts(*[1] * 16), k=4)
    for i, accumulator in zip(range(16), steps, strict=False):
        due = accumulator.updates and accumulator.updates % 2 == 0
        if due and accumulator.report is not seen:  # a new report: an update was just made
            saved.append(i + 1)
        if due:
            wrong.append(i + 1)
        seen = accumulator.report

    assert saved == [8, 16]
    assert wrong == [8, 9, 10, 11, 16]


# ---------------------------------------------------------------------- E. gradient buffers


def test_b37_gradients_are_not_cleared_inside_a_window():
    """Only the last micro-batch trains. Kind E, zero_grad per micro-batch."""
    toy = Toy()
    mg.accumulate(toy, given, alone([1, 2, 3, 4]), micro_batch_size=1)

    fault = Toy()
    for g in parts(1, 2, 3, 4):
        fault.zero_grad()
        (fault(g).sum() / 4).backward()

    assert (toy.w.grad, fault.w.grad) == (2.5, 1)


def test_b39_the_first_contribution_is_not_kept_by_reference():
    """Large accuracy loss with accumulation only. Kind E, the accumulator is the gradient array."""
    toy, first = Toy(), []
    with mg.Accumulator(toy, mg.SGD([toy.w], 1.0), accumulation_steps=2, reduction="sum") as window:
        for g in parts(1, 2):
            with window.micro_batch(1):
                window.backward(given(toy(g)))
            first.append(g)
    right = -toy.w.data

    fault = Toy()
    fault(first[0]).sum().backward()
    total = fault.w.grad  # no copy
    fault.w.grad[...] = 0
    fault.w.grad += 2
    total += fault.w.grad

    assert (right, total) == (3, 4)


def test_b39_no_two_gradients_share_memory():
    """As above. Kind E, aliasing."""
    model = mg.MLP(2, 3, 3, 1)
    x = np.ones((4, 2), np.float32)
    mg.accumulate(model, lambda outputs, y: mg.squared_error(outputs, y[:, :1]), (x, x), 2)
    arrays = [p.grad for p in model.parameters()] + [p.data for p in model.parameters()] + [x]
    for i, a in enumerate(arrays):
        assert not any(np.shares_memory(a, b) for b in arrays[:i])


def test_b41_a_bad_micro_batch_drops_its_window_whole():
    """A short window is divided by k. Kind E, buffer and counter are not reset together."""
    toy = Toy()
    with pytest.warns(mg.NonFiniteWarning):
        accumulator = last(stream(toy, mg.SGD([toy.w], 1.0), parts(1, math.nan, 3, 4), k=4))

    total, update = 0, None
    for i, g in enumerate((1, math.nan, 3, 4)):
        if math.isnan(g):
            total = 0
            continue
        total += g
        if (i + 1) % 4 == 0:
            update = total / 4

    assert (toy.w.data, accumulator.updates, accumulator.report.updated) == (0, 0, False)
    assert update == 1.75


def test_b42_a_nan_is_left_behind_with_its_window():
    """One NaN ruins the parameters for ever. Kind E, "masking" by a product with 0."""
    toy, gradients = Toy(1.0), (1, math.nan, 1, 1, 1, 1, 1, 1)
    steps = stream(toy, mg.SGD([toy.w], 1.0), parts(*gradients), k=4)
    with pytest.warns(mg.NonFiniteWarning):
        weights = [toy.w.data.item() for _ in steps]

    w, mean, wrong = 1.0, 0.0, []
    for i, g in enumerate(gradients):
        emit = (i + 1) % 4 == 0
        mean += g / 4
        w -= emit * mean
        mean *= not emit
        wrong.append(w)

    assert weights == [1] * 7 + [0, 0]
    assert wrong[0] == 1
    assert all(math.isnan(w) for w in wrong[1:])


class Two(mg.Module):
    """Large inputs take weight b, the others weight a."""

    def __init__(self):
        self.a, self.b = mg.parameter(np.zeros(())), mg.parameter(np.zeros(()))

    def forward(self, x):
        return x * (self.b if x.max() >= 4 else self.a)


def test_b43_a_parameter_that_no_micro_batch_used_stays_as_it_is():
    """An unused parameter drifts. Kind E, None versus zero."""
    two = Two()
    sgd = mg.SGD(two.parameters(), lr=0.125, momentum=0.5)
    mg.train_step(two, given, sgd, alone([4, 4]), micro_batch_size=1)  # b has a velocity of 4
    b = two.b.data.item()
    mg.train_step(two, given, sgd, alone([1, 1]), micro_batch_size=1)
    assert two.b.data == b == -0.5

    two.a.grad, two.b.grad = np.zeros(()), np.zeros(())  # zero_grad(set_to_none=False)
    sgd.step()
    assert two.b.data - b == -0.125 * 0.5 * 4


def test_b43_a_parameter_used_once_in_a_window_is_divided_by_the_whole_window():
    """Rarely used parameters move too far. Kind E, None versus zero."""
    two = Two()
    mg.accumulate(two, given, alone([0, 4]), micro_batch_size=1)

    total = seen = 0
    for g in (None, 4):
        if g is not None:
            total, seen = total + g, seen + 1

    assert two.b.grad == 2
    assert total / seen == 4


def test_b45_all_optimizers_keep_to_the_window():
    """A second model steps every micro-batch. Kind E, the window is bound to one module."""

    class Pair(mg.Module):
        def __init__(self):
            self.first, self.second = Toy(), Toy()

        def forward(self, x):
            return self.first(x) + self.second(x)

    pair, track = Pair(), []
    both = [mg.SGD([pair.first.w], 1.0), mg.SGD([pair.second.w], 2.0)]
    for _ in stream(pair, both, parts(*[1] * 8), k=4):
        track.append((pair.first.w.data.item(), pair.second.w.data.item()))

    fault = Toy()
    second = mg.SGD([fault.w], 2.0)
    for g in parts(*[1] * 8):
        (fault(g).sum() / 4).backward()
        second.step()  # a plain optimizer beside the wrapped one
        second.zero_grad()

    assert track == [(0, 0)] * 3 + [(-1, -2)] * 4 + [(-2, -4)] * 2
    assert [optimizer.updates for optimizer in both] == [2, 2]
    assert second.updates == 8


# ----------------------------------------------------------------------------- H. randomness


def test_b59_a_mask_belongs_to_the_sample_not_to_the_split():
    """Dropout masks repeat in a window. Kind H, the same key in every micro-batch."""
    mg.manual_seed(0)
    model, masks = mg.Sequential(Toy(np.eye(8)), mg.Dropout(0.5)), {}
    x = np.ones((4, 8))

    def loss(outputs, _):
        rows.append(outputs.data != 0)
        return given(outputs)

    for k in (1, 2, 4):
        rows = []
        mg.accumulate(model, loss, (x, x), accumulation_steps=k)
        masks[k] = np.concatenate(rows)

    fault = []
    for _ in range(2):
        rng = np.random.default_rng(0)  # the key of the step
        fault.append(rng.random((2, 8)) < 0.5)

    np.testing.assert_array_equal(masks[1], masks[2])
    np.testing.assert_array_equal(masks[1], masks[4])
    assert not np.array_equal(masks[1][:2], masks[1][2:])
    assert np.array_equal(*fault)


# --------------------------------------------------------------------------------- I. memory


class Wide(mg.Module):
    """Activations of 128 KiB an array and 16 samples; remembers them weakly."""

    def __init__(self):
        self.w = mg.parameter(np.ones(1024))
        self.alive = []  # how many earlier activations are there when a forward pass begins
        self.seen = []

    def forward(self, x):
        self.alive.append(sum(ref() is not None for ref in self.seen))
        hidden = mg.tanh(x * self.w)
        self.seen.append(weakref.ref(hidden.data))
        return hidden * self.w


ROWS = np.random.default_rng(0).random((128, 1024))


def test_b61_the_tape_of_a_micro_batch_is_freed_before_the_next():
    """Memory grows with k. Kind I, backward deferred to the boundary."""
    model, peaks = Wide(), {}
    for n in (16, 128):  # 1 and 8 micro-batches
        with mg.measure_memory() as memory:
            mg.accumulate(model, given, (ROWS[:n], ROWS[:n]), 16, reduction="sum")
        peaks[n] = memory.peak

    fault, wrong = Wide(), {}
    for n in (16, 128):
        fault.zero_grad()
        with mg.measure_memory() as memory:
            total = fault(ROWS[:16]).sum()
            for start in range(16, n, 16):
                total = total + fault(ROWS[start : start + 16]).sum()
            total.backward()
            del total
        wrong[n] = memory.peak

    np.testing.assert_allclose(model.w.grad, fault.w.grad, rtol=1e-12)  # only the meter sees it
    assert peaks[128] < 1.1 * peaks[16]
    assert wrong[128] - wrong[16] > 7 * ROWS[:16].nbytes  # the hidden layer of each micro-batch


def two_units(outputs, remembers):
    """A loss of two units; the first has activations of its own."""
    own = mg.tanh(outputs)
    remembers.append(weakref.ref(own.data))
    return given(own) + given(outputs.sum(axis=1))


def masked(outputs, _):
    return mg.per_sample(outputs, np.zeros(16))


@pytest.mark.parametrize("loss", [given, two_units, masked])
def test_b62_a_log_of_losses_keeps_no_old_activations_alive(loss):
    """About twice the peak. Kind I, the old graph is alive during the next forward."""
    gc.disable()
    try:
        model, log = Wide(), []
        sgd = mg.SGD([model.w], 0.0)
        with mg.Accumulator(model, sgd, accumulation_steps=2) as window:
            for start in range(0, 64, 16):
                with window.micro_batch(16):
                    kept = loss(model(ROWS[start : start + 16]), model.seen)
                    window.backward(kept)
                log.append(kept)

        fault = Wide()
        for start in range(0, 64, 16):
            kept = fault(ROWS[start : start + 16]).sum()
            kept.backward(retain_graph=True)
            log.append(kept)
    finally:
        gc.enable()

    assert fault.alive == [0, 1, 2, 3]
    assert model.alive == [0, 0, 0, 0]


def test_b63_there_is_one_gradient_buffer_and_one_gradient_in_flight():
    """Out of memory although b shrank. Kind I, functional accumulation keeps more buffers."""

    model, x = mg.Linear(100_000, 1, bias=False, dtype=np.float64), np.ones((4, 100_000))
    with mg.measure_memory() as memory:
        mg.accumulate(model, given, (x, x), micro_batch_size=1)
    ours = memory.peak

    with mg.measure_memory() as memory:
        total = np.zeros(100_000)
        for _ in range(4):
            fresh = np.ones(100_000)
            total = total + fresh  # old sum, fresh gradient and new sum at once
    wrong = memory.peak

    buffer = 8 * 100_000
    assert round(ours / buffer) <= 2
    assert round(wrong / buffer) == 3


# ---------------------------------------------------------------------------------- K. books


def test_b70_the_logged_loss_is_the_loss_of_the_whole_window():
    """The log scales with k or shows one micro-batch. Kind K, not the objective is logged."""
    values = np.array([1.0, 3, 3, 3])  # micro-batches of 1 and 3 samples, mean losses 1 and 3
    toy = Toy(1.0)
    with mg.Accumulator(toy, mg.SGD([toy.w], 0.0), accumulation_steps=2) as window:
        for x in (values[:1], values[1:]):
            with window.micro_batch(len(x)):
                window.backward(given(toy(x)))

    means = [values[:1].mean(), values[1:].mean()]
    wrong = sum(means), np.mean(means), means[-1], means[-1] / 2

    assert window.report.loss == 2.5
    assert wrong == (4, 2, 3, 1.5)


def test_b72_updates_an_epoch_are_rounded_up_in_one_place():
    """Training ends early, epochs over-reported. Kind K, floor in one place, ceil in another."""
    toy, updates = Toy(), []
    sgd = mg.SGD([toy.w], 1.0)
    planned = 4 * len(mg.micro_batches(5, 2))
    stops = None
    for epoch in range(4):
        for _ in stream(toy, sgd, parts(1, 1, 1, 1, 1), k=2):
            if sgd.updates == 4 * (5 // 2) and stops is None:
                stops = epoch + 1  # where a plan by floor ends
        updates.append(sgd.updates)

    assert planned == updates[-1] == 12
    assert updates == [3, 6, 9, 12]
    assert stops == 3


def test_b73_micro_batches_and_updates_have_a_counter_each():
    """Logs, validation and checkpoints drift apart. Kind K, one name, two units."""
    toy, validations = Toy(), []
    accumulator = mg.Accumulator(toy, mg.SGD([toy.w], 1.0), accumulation_steps=2)
    for _ in range(2):
        with accumulator:
            for x in parts(1, 1, 1, 1, 1):
                before = accumulator.updates
                with accumulator.micro_batch(1):
                    accumulator.backward(given(toy(x)))
                if accumulator.updates > before and accumulator.updates % 2 == 0:
                    validations.append(accumulator.updates)
        if accumulator.updates % 2 == 0:  # the tail's update, made when the block ended
            validations.append(accumulator.updates)

    assert (accumulator.micro_batches, accumulator.updates) == (10, 6)
    assert accumulator.micro_batches // 2 == 5  # one counter for both
    assert validations == [2, 4, 6]
