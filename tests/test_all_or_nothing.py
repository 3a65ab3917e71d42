"""An error before the update leaves everything as it was, wherever it strikes.

Parameters, the optimizers' state and counters, the weight average and running statistics are
compared bit for bit with what they were; gradients are None; and the next step of a run that had
the error equals, bit for bit, that of a twin that had none: so random draws are as before too.
"""

import contextlib
import contextvars
import copy
import math
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import minigrad as mg
from minigrad.samples import current_samples
from minigrad.tensor import record
from tests.bits import bits
from tests.grades import Micro


class Fault(mg.Module):
    """Passes its input on, until a forward or backward pass is told to fail."""

    def __init__(self):
        self.where, self.countdown, self.error = None, 0, None

    def strike(self, where, at, error):
        self.where, self.countdown, self.error = where, at, error

    def tick(self, where):
        if where == self.where:
            self.countdown -= 1
            if not self.countdown:
                self.where = None
                raise self.error

    def forward(self, x):
        self.tick("forward")
        return record(x.data, (x,), self.pullback)

    def pullback(self, g):
        self.tick("backward")
        return (g,)


class Net(mg.Module):
    """The layers that keep a state or draw, and a Fault between them."""

    def __init__(self):
        self.first = mg.MLP(3, 4, 4, norm=Micro, dropout=0.5, dtype=np.float64)
        self.fault = Fault()
        self.last = mg.Linear(4, 3, dtype=np.float64)

    def forward(self, x):
        return self.last(self.fault(self.first(x)))


class Rate:
    """A schedule that can be told to fail."""

    broken = False

    def __call__(self, updates):
        if self.broken:
            raise LookupError("the schedule fails")
        return 0.125 / (1 + updates)


class Starved:
    """Mixed into an optimizer or average: there is no memory for its update."""

    starved = False

    def prepare(self):
        if self.starved:
            raise MemoryError("no scratch")
        return super().prepare()


class SGD(Starved, mg.SGD):
    pass


class Adam(Starved, mg.Adam):
    pass


class LARS(Starved, mg.LARS):
    pass


class LAMB(Starved, mg.LAMB):
    pass


class WeightAverage(Starved, mg.WeightAverage):
    pass


OPTIMIZERS = {
    "momentum": lambda net: [SGD(net.parameters(), Rate(), momentum=0.5, weight_decay=0.25)],
    "adam": lambda net: [Adam(net.parameters(), Rate())],
    "two": lambda net: [
        SGD(net.last.parameters(), Rate(), momentum=0.5),
        Adam(net.first.parameters(), Rate()),
    ],
    "layer-wise": lambda net: [
        LARS(net.last.parameters(), Rate(), form="corrected"),
        LAMB(net.first.parameters(), Rate()),
    ],
}


class Run:
    """A model in training: all that an update changes."""

    def __init__(self, optimizers):
        mg.manual_seed(5)
        self.net = Net()
        self.optimizers = OPTIMIZERS[optimizers](self.net)
        self.average = WeightAverage(self.net.parameters(), decay=0.5)

    def state(self):
        writers = [*self.optimizers, self.average]
        return bits([self.net.state_dict(), *(writer.state_dict() for writer in writers)])

    def gradients(self):
        return [p.grad for p in self.net.parameters()]


# ------------------------------------------------------- three ways to use up a batch of 3 x 4


def batch():
    rng = np.random.default_rng(0)
    return rng.standard_normal((12, 3)), np.arange(12) % 3


def train_step(run, loss=mg.cross_entropy, data=None, **options):
    data = data or batch()
    return mg.train_step(run.net, loss, run.optimizers, data, 4, average=run.average, **options)


def stream(run, loss=mg.cross_entropy, data=None, **options):
    x, y = data or batch()
    window = mg.Accumulator(
        run.net, run.optimizers, accumulation_steps=5, average=run.average, **options
    )
    with window:
        for where in mg.micro_batches(12, 4):
            with window.micro_batch(4):
                window.backward(loss(run.net(x[where]), y[where]))
    return window.report


def accumulate(run, loss=mg.cross_entropy, data=None):
    return mg.accumulate(run.net, loss, data or batch(), 4, update=run.optimizers[0].updates)


def test_the_three_ways_are_one():
    runs = [Run("momentum") for _ in range(3)]
    before = runs[0].state()
    made = [way(run) for way, run in zip([train_step, stream, accumulate], runs, strict=True)]
    made[2].updated = True
    assert made[0] == made[1] == made[2]
    assert runs[0].state() == runs[1].state() != before
    assert runs[2].state() == before  # accumulate() leaves gradients and nothing else


# ------------------------------------------------------------------------------ the faults


def at_second(action):
    """A loss that does `action(outputs, labels)` in the second micro-batch."""
    calls = []

    def loss(outputs, y):
        calls.append(0)
        return action(outputs, y) if len(calls) == 2 else mg.cross_entropy(outputs, y)

    return loss


def fail(error):
    raise error


def data_with(label):
    x, y = batch()
    y[-1] = label
    return x, y


def pass_fails(where, error):
    def prepare(run):
        run.net.fault.strike(where, 2, error)
        return {}

    return prepare


def never_the_same(outputs, y):
    return mg.cross_entropy(outputs, y) + mg.penalty(outputs.sum())


def of_two_units(outputs, y):
    return mg.cross_entropy(outputs, y) + 0.5 * mg.squared_error(outputs, outputs.data + 1)


def second_unit_fails(run):
    run.net.fault.strike("backward", 4, MemoryError())  # two walks a micro-batch
    return {"loss": of_two_units}


# name: (what is raised, what prepares the run and returns the arguments of the step)
FAULTS = {
    "forward": (ZeroDivisionError, pass_fails("forward", ZeroDivisionError())),
    "interrupt in forward": (KeyboardInterrupt, pass_fails("forward", KeyboardInterrupt())),
    "no memory in forward": (MemoryError, pass_fails("forward", MemoryError())),
    "backward": (ZeroDivisionError, pass_fails("backward", ZeroDivisionError())),
    "interrupt in backward": (KeyboardInterrupt, pass_fails("backward", KeyboardInterrupt())),
    "no memory in backward": (MemoryError, pass_fails("backward", MemoryError())),
    "no memory in the walk of a second unit": (MemoryError, second_unit_fails),
    "loss": (
        ZeroDivisionError,
        lambda run: {"loss": at_second(lambda *_: fail(ZeroDivisionError()))},
    ),
    "the loss is a Tensor": (
        TypeError,
        lambda run: {"loss": at_second(lambda *a: mg.cross_entropy(*a).mean())},
    ),
    "the loss is None": (TypeError, lambda run: {"loss": at_second(lambda *_: None)}),
    "outputs of a wrong shape": (
        ValueError,
        lambda run: {"loss": at_second(lambda outputs, y: mg.cross_entropy(outputs[1:], y))},
    ),
    "a label that is no class": (IndexError, lambda run: {"data": data_with(3)}),
    "terms that weigh differently": (
        ValueError,
        lambda run: {
            "loss": at_second(
                lambda outputs, y: (
                    mg.cross_entropy(outputs, y) + mg.cross_entropy(outputs[1:], y[1:])
                )
            )
        },
    ),
    "a penalty that depends on data": (ValueError, lambda run: {"loss": never_the_same}),
}
every_fault = pytest.mark.parametrize("fault", FAULTS)
every_optimizer = pytest.mark.parametrize("optimizers", OPTIMIZERS)


def assert_nothing_changed(run, way, step):
    """`step(run)` leaves `run` as it was, and its next step by `way` is that of a twin."""
    for _ in range(2):
        way(run)
    twin, before = copy.deepcopy(run), run.state()
    step(run)
    assert run.state() == before
    assert run.gradients() == [None] * len(run.gradients())
    assert current_samples() is None
    run.net.fault.where = None
    assert way(run) == way(twin)
    assert run.state() == twin.state() != before


@every_optimizer
@every_fault
@pytest.mark.parametrize("way", [train_step, stream])
def test_an_error_leaves_everything_as_it_was(way, fault, optimizers):
    error, prepare = FAULTS[fault]

    def step(run):
        arguments = prepare(run)
        with pytest.raises(error):
            way(run, **arguments)

    assert_nothing_changed(Run(optimizers), way, step)


@every_fault
def test_an_error_in_accumulate_leaves_everything_as_it_was(fault):
    error, prepare = FAULTS[fault]

    def step(run):
        arguments = prepare(run)
        with pytest.raises(error):
            accumulate(run, **arguments)

    assert_nothing_changed(Run("adam"), train_step, step)


@every_fault
def test_after_an_error_accumulate_gives_the_gradient_of_a_twin(fault):
    error, prepare = FAULTS[fault]
    run, twin = Run("adam"), Run("adam")
    arguments = prepare(run)
    with pytest.raises(error):
        accumulate(run, **arguments)
    run.net.fault.where = None
    assert accumulate(run) == accumulate(twin)
    assert bits(run.gradients()) == bits(twin.gradients())


# ---------------------------------------------------------- when the update itself cannot be made


def starve(run, index):
    [*run.optimizers, run.average][index].starved = True


def break_schedule(run, index):
    run.optimizers[index].lr.broken = True


def refuse_update(way, optimizers, error, spoil, mend, **arguments):
    def step(run):
        spoil(run)
        with pytest.raises(error):
            way(run, **arguments)
        mend(run)

    assert_nothing_changed(Run(optimizers), way, step)


def nothing(run):
    pass


both = pytest.mark.parametrize("way", [train_step, stream])


@both
@pytest.mark.parametrize(
    ("optimizers", "index"),
    [
        *[("momentum", 0), ("adam", 0), ("two", 0), ("two", 1), ("two", -1)],
        *[("layer-wise", 0), ("layer-wise", 1)],
    ],
)
def test_no_memory_for_the_update_leaves_everything_as_it_was(way, optimizers, index):
    def mend(run):
        for writer in (*run.optimizers, run.average):
            writer.starved = False

    refuse_update(way, optimizers, MemoryError, lambda run: starve(run, index), mend)


@both
@pytest.mark.parametrize(
    ("optimizers", "index"),
    [
        *[("momentum", 0), ("adam", 0), ("two", 0), ("two", 1)],
        *[("layer-wise", 0), ("layer-wise", 1)],
    ],
)
def test_a_schedule_that_fails_leaves_everything_as_it_was(way, optimizers, index):
    def mend(run):
        for optimizer in run.optimizers:
            optimizer.lr.broken = False

    refuse_update(way, optimizers, LookupError, lambda run: break_schedule(run, index), mend)


@both
@every_optimizer
@pytest.mark.parametrize(
    "wrong", [{"clip_norm": 0.0}, {"clip_norm": math.nan}, {"on_nonfinite": "ignore"}], ids=repr
)
def test_a_wrong_argument_leaves_everything_as_it_was(way, optimizers, wrong):
    refuse_update(way, optimizers, ValueError, nothing, nothing, **wrong)


# --------------------------------------------------------------- windows that make no update


def not_finite(where):
    """A batch of which one number, in the micro-batch `where`, is not finite."""
    x, y = batch()
    x[4 * where + 1, 1] = math.nan
    return x, y


def gradient_not_finite(outputs, y):
    """A finite loss whose gradient is not."""
    values = record(np.zeros(len(y)), (outputs,), lambda g: (np.full(outputs.shape, math.nan),))
    return mg.per_sample(values)


def loss_not_finite(outputs, y):
    """A finite gradient of a loss that is not."""
    return mg.per_sample(record(np.full(len(y), math.inf), (outputs,), lambda g: (outputs.data,)))


NOT_FINITE = {
    "first": {"data": not_finite(0)},
    "second": {"data": not_finite(1)},
    "last": {"data": not_finite(2)},
    "loss alone": {"loss": loss_not_finite},
    "gradient alone": {"loss": gradient_not_finite},
    "one gradient alone": {"loss": at_second(gradient_not_finite)},
}
every_nonfinite = pytest.mark.parametrize("case", NOT_FINITE)


@both
@every_optimizer
@every_nonfinite
def test_a_window_that_is_not_finite_is_skipped_whole_with_one_warning(way, optimizers, case):
    def step(run):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report = way(run, **arguments)
        assert [warning.category for warning in caught] == [mg.NonFiniteWarning]
        assert not report.updated
        assert "expected finite numbers" in report.reason

    arguments = fresh(NOT_FINITE[case])
    assert_nothing_changed(Run(optimizers), way, step)


def fresh(arguments):
    """The arguments again, with a loss that counts from the start."""
    if arguments is NOT_FINITE["one gradient alone"]:
        return {"loss": at_second(gradient_not_finite)}
    return arguments


@both
@every_nonfinite
def test_a_window_that_is_not_finite_raises_if_told_to(way, case):
    refuse_update(
        way,
        "momentum",
        FloatingPointError,
        nothing,
        nothing,
        on_nonfinite="raise",
        **fresh(NOT_FINITE[case]),
    )


@both
@every_optimizer
def test_a_warning_that_is_made_an_error_leaves_everything_as_it_was(way, optimizers):
    refuse_update(way, optimizers, mg.NonFiniteWarning, nothing, nothing, data=not_finite(1))


@both
def test_each_skipped_window_warns_and_none_that_is_made(way):
    run = Run("adam")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = [way(run, data=data).updated for data in (not_finite(0), batch(), not_finite(2))]
    assert made == [False, True, False]
    assert len(caught) == 2


@both
@every_optimizer
def test_a_window_with_nothing_to_count_makes_no_update_without_a_warning(way, optimizers):
    def step(run):
        x, y = batch()
        report = way(run, data=(x, np.full_like(y, -100)))
        assert not report.updated
        assert report.loss == 0
        assert report.reason.startswith("nothing to count")

    assert_nothing_changed(Run(optimizers), way, step)


def test_a_penalty_alone_makes_no_update():
    def step(run):
        def loss(outputs, y):
            return mg.cross_entropy(outputs, y) + mg.penalty((run.net.last.weight**2).sum())

        x, y = batch()
        assert not train_step(run, loss, (x, np.full_like(y, -100))).updated

    assert_nothing_changed(Run("momentum"), train_step, step)


# ------------------------------------------------------------- the loop around the micro-batches


def user_code(run, place):
    """A loop whose own code fails at `place` in the second micro-batch."""
    x, y = batch()
    window = mg.Accumulator(run.net, run.optimizers, accumulation_steps=5, average=run.average)
    with window:
        for j, where in enumerate(mg.micro_batches(12, 4)):
            second = j == 1
            with window.micro_batch(4):
                if second and place == "before backward":
                    raise ZeroDivisionError
                window.backward(mg.cross_entropy(run.net(x[where]), y[where]))
                if second and place == "after backward":
                    raise KeyboardInterrupt
            if second and place == "between blocks":
                raise StopIteration
        if place == "after the last block":
            raise GeneratorExit


@every_optimizer
@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("before backward", ZeroDivisionError),
        ("after backward", KeyboardInterrupt),
        ("between blocks", StopIteration),
        ("after the last block", GeneratorExit),
    ],
)
def test_user_code_that_fails_drops_the_window(place, error, optimizers):
    def step(run):
        with pytest.raises(error):
            user_code(run, place)

    assert_nothing_changed(Run(optimizers), stream, step)


def test_an_error_in_the_second_window_leaves_the_update_of_the_first():
    run, twin = Run("adam"), Run("adam")
    x, y = batch()
    window = mg.Accumulator(run.net, run.optimizers, accumulation_steps=3, average=run.average)

    def epoch(fails):
        for where in mg.micro_batches(12, 4):
            with window.micro_batch(4):
                window.backward(mg.cross_entropy(run.net(x[where]), y[where]))
                assert not fails

    def loop():
        with window:
            epoch(fails=False)
            epoch(fails=True)

    with pytest.raises(AssertionError):
        loop()
    train_step(twin)
    assert run.state() == twin.state()
    assert window.updates == 1


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_an_accumulator_goes_on_after_an_error_with_a_new_window(error):
    run, twin = Run("momentum"), Run("momentum")
    x, y = batch()
    window = mg.Accumulator(run.net, run.optimizers, accumulation_steps=3, average=run.average)
    run.net.fault.strike("backward", 2, error())
    with window:
        for where in (slice(0, 4), slice(4, 8)):
            try:
                with window.micro_batch(4):
                    window.backward(mg.cross_entropy(run.net(x[where]), y[where]))
            except error:
                assert run.gradients() == [None] * len(run.gradients())
        for where in mg.micro_batches(12, 4):
            with window.micro_batch(4):
                window.backward(mg.cross_entropy(run.net(x[where]), y[where]))
    train_step(twin)
    assert run.state() == twin.state()


def test_an_error_caught_inside_a_block_does_not_leave_half_a_gradient():
    run = Run("momentum")
    before = run.state()
    x, y = batch()
    run.net.fault.strike("backward", 1, MemoryError())
    window = mg.Accumulator(run.net, run.optimizers, accumulation_steps=2)

    def loop():
        with window:
            for where in (slice(0, 4), slice(4, 8)):
                with window.micro_batch(4):
                    loss = mg.cross_entropy(run.net(x[where]), y[where])
                    try:
                        window.backward(loss)
                    except MemoryError:
                        continue

    with pytest.raises(RuntimeError):
        loop()
    assert run.state() == before


def test_draws_outside_of_windows_do_not_depend_on_a_step_or_its_failure():
    drawn = []
    for error in (None, MemoryError):
        run = Run("adam")
        mg.manual_seed(5)
        if error:
            run.net.fault.strike("forward", 2, error())
            with pytest.raises(error):
                train_step(run)
        drawn.append(mg.Dropout(0.5)(np.ones((8, 8))).data)
    assert np.array_equal(*drawn)


# ------------------------------------------------------------ an interrupt before any line at all


class Lines:
    """Counts the lines of minigrad that run in the block; an interrupt comes before line `at`."""

    package = str(Path(mg.__file__).parent)

    def __init__(self, at=None):
        self.at, self.run = at, []

    def __enter__(self):
        self.outer = sys.gettrace()
        sys.settrace(self.trace)
        return self

    def __exit__(self, *error):
        sys.settrace(self.outer)

    def trace(self, frame, event, argument):
        # No `with` can protect its own first and last line: the draw context may then stay.
        mine = frame.f_code.co_filename.startswith(self.package)
        return self.line if mine and not frame.f_code.co_qualname.startswith("drawing") else None

    def line(self, frame, event, argument):
        if event == "line":
            if len(self.run) == self.at:
                sys.settrace(None)
                raise KeyboardInterrupt
            self.run.append((frame.f_code, frame.f_lineno))
        return self.line


class Stop(mg.SGD):
    """Fails where the update would begin to write."""

    def write(self, prepared):
        sys.settrace(None)
        raise EOFError


def test_an_interrupt_before_any_line_of_a_step_leaves_everything_as_it_was():
    mg.manual_seed(5)
    model = mg.Sequential(mg.Linear(2, 2), mg.BatchNorm(2), mg.Dropout(0.5))
    sgd = Stop(model.parameters(), 0.5, momentum=0.5)
    average = mg.WeightAverage(model.parameters(), 0.5)
    data = np.array([[1.0, 2], [3, 4], [2, 2], [0, 1]]), np.array([0, 1, 1, 0])

    def step(at=None):
        with Lines(at) as lines, contextlib.suppress(EOFError):
            mg.train_step(model, mg.cross_entropy, sgd, data, 2, clip_norm=1.0, average=average)
        return lines.run

    before = bits([model.state_dict(), sgd.state_dict(), average.state_dict()])
    run = step()
    last = {line: i for i, line in enumerate(run)}  # of each line, the latest time that it runs
    for at in last.values():
        with pytest.raises(KeyboardInterrupt):
            contextvars.copy_context().run(step, at)
        assert bits([model.state_dict(), sgd.state_dict(), average.state_dict()]) == before, run[at]
        assert [p.grad for p in model.parameters()] == [None] * 4, run[at]
        assert all(p.home is None for p in model.parameters()), run[at]
        assert all(p.requires_grad for p in model.parameters()), run[at]
    assert len(last) > 150
