"""Accumulator: micro-batches that stream by make the updates of whole batches.

Equal to `train_step` bit for bit on dyadic data, tails and epochs included; saved at any
micro-batch and resumed without a trace; and used wrongly it says so and changes nothing.
"""

import contextlib
import copy
import pickle

import numpy as np
import pytest

import minigrad as mg
from tests.bits import bits
from tests.grades import Micro
from tests.toys import Toy, given


def blocks(sizes):
    """Slices of these sizes, one after the other."""
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


# --------------------------------------------------------------- the same as train_step, exactly


def dyadic(*shape, seed=0):
    """Multiples of 1/4 between -2 and 2: all sums of products of a few are representable."""
    return np.random.default_rng(seed).integers(-8, 9, shape) / 4


class Run:
    """An MLP with dropout in training, every number of it dyadic."""

    def __init__(self, optimizer=lambda p: mg.SGD(p, lr=0.25, momentum=0.5, weight_decay=0.5)):
        mg.manual_seed(7)
        self.model = mg.MLP(3, 4, 2, dropout=0.5, dtype=np.float64)
        for i, p in enumerate(self.model.parameters()):
            p.data[...] = dyadic(*p.shape, seed=i)
        self.optimizer = optimizer(self.model.parameters())
        self.average = mg.WeightAverage(self.model.parameters(), decay=0.5)

    def state(self):
        return bits([part.state_dict() for part in (self.model, self.optimizer, self.average)])

    def train_step(self, x, y, **options):
        return mg.train_step(
            self.model,
            mg.squared_error,
            self.optimizer,
            (x, y),
            len(x),
            average=self.average,
            **options,
        )

    def accumulator(self, k, **options):
        return mg.Accumulator(
            self.model, self.optimizer, accumulation_steps=k, average=self.average, **options
        )

    def stream(self, window, x, y, sizes):
        for where in blocks(sizes):
            with window.micro_batch(len(x[where])):
                window.backward(mg.squared_error(self.model(x[where]), y[where]))


X, Y = dyadic(16, 3, seed=8), dyadic(16, 2, seed=9)
SPLITS = [
    [16],
    [8, 8],
    [4, 4, 4, 4],
    [1] * 16,
    [7, 7, 2],
    [1, 15],
    [5, 1, 10],
]


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_window_is_the_update_of_one_batch_bit_for_bit(sizes, reduction):
    streamed, whole = Run(), Run()
    with streamed.accumulator(len(sizes), reduction=reduction) as window:
        streamed.stream(window, X, Y, sizes)
    report = whole.train_step(X, Y, reduction=reduction)
    report.micro_batches = len(sizes)
    assert window.report == report
    assert streamed.state() == whole.state()


@pytest.mark.parametrize("sizes", [[8], [8, 8], [1], [3, 5], [7, 9]], ids=str)
def test_a_tail_is_one_update_divided_by_what_it_saw(sizes):
    streamed, whole, n = Run(), Run(), sum(sizes)
    with streamed.accumulator(4) as window:
        streamed.stream(window, X[:n], Y[:n], sizes)
        assert window.updates == 0
    report = whole.train_step(X[:n], Y[:n])
    report.micro_batches = len(sizes)
    assert window.report == report
    assert streamed.state() == whole.state()


def test_a_tail_does_not_leak_into_the_next_epoch():
    toy = Toy()
    window = mg.Accumulator(toy, mg.SGD([toy.w], 1.0), accumulation_steps=2)
    for epoch in range(3):
        with window:
            for x in ([1.0], [2.0, 3.0], [5.0]):
                with window.micro_batch(len(x)):
                    window.backward(given(toy(np.array(x))))
        assert toy.w.data == -(2 + 5) * (epoch + 1)
    assert (window.micro_batches, window.updates) == (9, 6)


def test_the_end_of_the_data_at_the_end_of_a_window_makes_no_further_update():
    run = Run()
    with run.accumulator(2) as window:
        run.stream(window, X, Y, [8, 8])
        assert window.updates == 1
        state = run.state()
    assert window.updates == 1
    assert run.state() == state


def test_an_epoch_without_data_makes_no_update():
    run = Run()
    before = run.state()
    with run.accumulator(2) as window:
        pass
    assert window.report is None
    assert window.flush() is None
    assert run.state() == before


def test_flush_ends_a_window_early():
    toy = Toy()
    with mg.Accumulator(toy, mg.SGD([toy.w], 1.0), accumulation_steps=4) as window:
        for g in (1.0, 3.0, 5.0):
            with window.micro_batch(1):
                window.backward(given(toy(np.array([g]))))
            if g == 3:
                assert window.flush().micro_batches == 2
                assert toy.w.data == -2
    assert toy.w.data == -2 - 5


def test_a_micro_batch_without_samples_is_refused_and_adds_nothing():
    toy = Toy()
    with mg.Accumulator(toy, mg.SGD([toy.w], 1.0), accumulation_steps=3) as window:
        for x in (np.zeros(0), np.array([1.0, 2]), np.zeros(0)):
            refused = pytest.raises(ValueError, match="samples")
            with contextlib.nullcontext() if len(x) else refused, window.micro_batch(len(x)):
                window.backward(given(toy(x)))
    assert toy.w.data == -1.5
    assert window.report == mg.StepReport(0.0, {"sample": 2}, 1.5, 1, updated=True)
    assert window.micro_batches == 1


def test_a_loader_may_reuse_its_array():
    streamed, whole = Run(), Run()
    x, y = np.empty((4, 3)), np.empty((4, 2))
    with streamed.accumulator(4) as window:
        for where in blocks([4] * 4):
            x[...], y[...] = X[where], Y[where]
            with window.micro_batch(4):
                window.backward(mg.squared_error(streamed.model(x), y))
    whole.train_step(X, Y)
    assert streamed.state() == whole.state()


def test_windows_of_two_models_may_alternate():
    first, second, alone = Run(), Run(), Run()
    with first.accumulator(2) as one, second.accumulator(4) as other:
        for j in range(4):
            if j % 2 == 0:
                where = slice(4 * j, 4 * j + 8)
                with one.micro_batch(8):
                    one.backward(mg.squared_error(first.model(X[where]), Y[where]))
            where = slice(4 * j, 4 * j + 4)
            with other.micro_batch(4):
                other.backward(mg.squared_error(second.model(X[where]), Y[where]))
    alone.train_step(X, Y)
    assert first.state() == second.state() == alone.state()


def test_another_model_may_be_trained_inside_of_a_micro_batch():
    run, alone, inner = Run(), Run(), Run()
    with run.accumulator(2) as window:
        for where in blocks([8, 8]):
            with window.micro_batch(8):
                outputs = run.model(X[where])
                inner.train_step(X, Y)
                window.backward(mg.squared_error(outputs, Y[where]))
    alone.train_step(X, Y)
    assert run.state() == alone.state()
    assert inner.optimizer.updates == 2


def test_two_optimizers_are_one_window():
    def one(parameters):
        return mg.SGD(parameters, 0.25, momentum=0.5)

    run, alone = Run(one), Run(one)
    parameters = run.model.parameters()
    both = [one(parameters[2:]), one(parameters[:2])]
    window = mg.Accumulator(run.model, both, accumulation_steps=2, clip_norm=1e9)
    for _ in range(2):
        with window:
            run.stream(window, X, Y, [8, 8])
        report = alone.train_step(X, Y)
    assert bits(run.model.state_dict()) == bits(alone.model.state_dict())
    assert [optimizer.updates for optimizer in both] == [2, 2]
    assert window.report.grad_norm == pytest.approx(report.grad_norm, rel=1e-15)


# ------------------------------------------------------------------------------- the reports


def test_a_report_is_made_an_update_and_holds_plain_numbers():
    toy, reports = Toy(2.0), []
    with mg.Accumulator(toy, mg.SGD([toy.w], 0.0), accumulation_steps=2) as window:
        assert window.report is None
        for x in ([1.0, 2.0], [3.0], [4.0]):
            with window.micro_batch(len(x)) as same:
                assert same is window
                window.backward(given(toy(np.array(x))))
            reports.append(window.report)
    assert reports == [None, reports[1], reports[1]]
    assert reports[1] == mg.StepReport(4.0, {"sample": 3}, 2.0, 2, updated=True)
    assert window.report == mg.StepReport(8.0, {"sample": 1}, 4.0, 1, updated=True)
    assert pickle.loads(pickle.dumps(window.report)) == window.report
    assert {type(window.report.loss), type(window.report.grad_norm)} == {float}


def test_counters_count_micro_batches_and_updates_that_were_made():
    toy = Toy()
    window = mg.Accumulator(toy, mg.SGD([toy.w], 1.0), accumulation_steps=2)

    def loop():
        with window:
            for g in (1, np.nan, 1, 1, 1):
                with window.micro_batch(1):
                    window.backward(given(toy(np.array([g], float))))

    with pytest.warns(mg.NonFiniteWarning):
        loop()
    assert (window.micro_batches, window.updates) == (5, 2)


# ------------------------------------------------------------------------- saved and resumed


class Everything(mg.Module):
    """BatchNorm and dropout; its loss has two units and a penalty."""

    def __init__(self):
        self.layers = mg.MLP(3, 4, 2, norm=Micro, dropout=0.5)

    def forward(self, x):
        return self.layers(x)

    def loss(self, outputs, y):
        main = mg.cross_entropy(outputs, (y[:, 0] > 0).astype(int))
        rest = mg.squared_error(outputs, y)
        weights = self.layers.layers[0].weight
        return main + 0.5 * rest + 0.25 * mg.penalty((weights * weights).sum())


class Training:
    """All that a script makes when it starts."""

    def __init__(self):
        self.model = Everything()
        self.optimizer = mg.Adam(self.model.parameters(), mg.cosine(0.125, 10))
        self.average = mg.WeightAverage(self.model.parameters(), 0.75)
        self.window = mg.Accumulator(
            self.model, self.optimizer, accumulation_steps=3, clip_norm=0.5, average=self.average
        )
        self.parts = self.model, self.optimizer, self.average, self.window

    def save(self):
        return pickle.dumps([part.state_dict() for part in self.parts])

    def load(self, saved):
        for part, state in zip(self.parts, pickle.loads(saved), strict=True):
            part.load_state_dict(state)

    def epoch(self, start=0, stop=7):
        """Micro-batches of 2 to 4 samples: windows of 3, 3 and 1."""
        sizes = [2, 4, 3, 2, 2, 4, 3]
        data = np.random.default_rng(1)
        x, y = data.standard_normal((20, 3)), data.standard_normal((20, 2))
        for where in blocks(sizes)[start:stop]:
            with self.window.micro_batch(where.stop - where.start):
                self.window.backward(self.model.loss(self.model(x[where]), y[where]))


@pytest.fixture(scope="module")
def undisturbed():
    mg.manual_seed(11)
    training = Training()
    with training.window:
        training.epoch()
    return training


@pytest.mark.parametrize("j", range(8))
def test_a_run_saved_at_any_micro_batch_resumes_bit_for_bit(undisturbed, j):
    mg.manual_seed(11)
    before = Training()
    before.window.__enter__()  # the process dies inside of the block
    before.epoch(stop=j)
    saved = before.save()

    mg.manual_seed(11)
    after = Training()
    for p in after.model.parameters():
        p.data[...] = 99
    after.load(saved)
    with after.window:
        after.epoch(start=j)
    assert bits([part.state_dict() for part in after.parts]) == bits(
        [part.state_dict() for part in undisturbed.parts]
    )
    assert after.window.report == undisturbed.window.report
    assert (after.window.micro_batches, after.window.updates) == (7, 3)


def test_an_open_window_brings_its_seed_along(undisturbed):
    mg.manual_seed(11)
    before = Training()
    before.window.__enter__()
    before.epoch(stop=5)
    saved = before.save()

    mg.manual_seed(12)
    after = Training()
    after.load(saved)
    with after.window:
        after.epoch(start=5, stop=6)
        mg.manual_seed(11)
        after.epoch(start=6)
    assert bits(after.model.state_dict()) == bits(undisturbed.model.state_dict())


def test_what_was_found_wrong_before_saving_is_found_after():
    toy = Toy(1.0)
    before, after = (
        mg.Accumulator(toy, mg.SGD([toy.w], 1.0), accumulation_steps=3) for _ in range(2)
    )
    before.__enter__()
    for x in (np.ones(1), np.zeros(1)):
        with before.micro_batch(1):
            before.backward(given(toy(x)) + mg.penalty(toy(x).sum()))  # depends on data
    after.load_state_dict(before.state_dict())
    with pytest.raises(ValueError, match="depends on parameters alone"):
        after.flush()


def test_a_saved_state_is_a_copy():
    mg.manual_seed(11)
    training = Training()
    training.window.__enter__()
    training.epoch(stop=2)
    states = [part.state_dict() for part in training.parts]
    before = pickle.dumps(states)
    for _ in range(2):
        training.epoch(start=2)
        assert pickle.dumps(states) == before
        for part, state in zip(training.parts, states, strict=True):
            part.load_state_dict(state)


def test_a_state_can_be_loaded_twice():
    states = []
    mg.manual_seed(11)
    training = Training()
    training.window.__enter__()
    training.epoch(stop=2)
    saved = training.save()
    for _ in range(2):
        training.load(saved)
        training.epoch(start=2)
        states.append(bits([part.state_dict() for part in training.parts[:3]]))
    assert states[0] == states[1]


def test_a_copy_of_all_goes_its_own_way():
    mg.manual_seed(11)
    training = Training()
    with training.window:
        training.epoch(stop=3)
    other = Training()
    parts = copy.deepcopy(training.parts[:3])
    other.model, other.optimizer, other.average = parts
    other.window = mg.Accumulator(
        other.model, other.optimizer, accumulation_steps=3, clip_norm=0.5, average=other.average
    )
    before = bits([part.state_dict() for part in training.parts])
    with other.window:
        other.epoch(start=3)
    assert bits([part.state_dict() for part in training.parts]) == before
    with training.window:
        training.epoch(start=3)
    assert bits([part.state_dict() for part in parts]) == bits(
        [part.state_dict() for part in training.parts[:3]]
    )


def test_a_window_resumed_with_fewer_steps_ends_at_the_next_micro_batch():
    toy = Toy()
    sgd = mg.SGD([toy.w], 1.0)
    before = mg.Accumulator(toy, sgd, accumulation_steps=4)
    before.__enter__()
    for _ in range(3):
        with before.micro_batch(1):
            before.backward(given(toy(np.ones(1))))
    after = mg.Accumulator(toy, sgd, accumulation_steps=2)
    after.load_state_dict(before.state_dict())
    with after:
        with after.micro_batch(1):
            after.backward(given(toy(np.ones(1))))
        assert after.updates == 1


# ----------------------------------------------------------------------------- used wrongly


@pytest.fixture
def toy():
    return Toy(1.0)


@pytest.fixture
def window(toy):
    return mg.Accumulator(toy, mg.SGD([toy.w], 1.0, momentum=0.5), accumulation_steps=2)


def backward(window, g=1.0):
    window.backward(given(window.model(np.array([g]))))


def outside_a_block(window):
    with window:
        backward(window)


def outside_the_accumulator(window):
    backward(window)


def a_block_without_the_accumulator(window):
    with window.micro_batch(1):
        backward(window)


def a_block_after_the_accumulator(window):
    with window:
        pass
    with window.micro_batch(1):
        backward(window)


def twice_in_a_block(window):
    with window, window.micro_batch(1):
        backward(window)
        backward(window)


def never_in_a_block(window):
    with window, window.micro_batch(1):
        given(window.model(np.ones(1)))


def never_because_of_continue(window):
    with window:
        for g in (1.0, 0.0):
            with window.micro_batch(1):
                if g == 0:
                    continue
                backward(window, g)


def backward_by_hand_in_a_block(window):
    with window, window.micro_batch(1):
        backward(window)
        given(window.model(np.ones(1))).sum().backward()


def backward_by_hand_between_blocks(window):
    with window:
        with window.micro_batch(1):
            backward(window)
        given(window.model(np.ones(1))).sum().backward()


def a_block_in_a_block(window):
    with window, window.micro_batch(1):
        backward(window)
        with window.micro_batch(1):
            backward(window)


MISUSES = {
    outside_a_block: "inside of `with accumulator.micro_batch",
    outside_the_accumulator: "inside of `with accumulator.micro_batch",
    a_block_without_the_accumulator: "outside of the accumulator",
    a_block_after_the_accumulator: "outside of the accumulator",
    twice_in_a_block: "called backward\\(\\) 2 times, expected once",
    never_in_a_block: "0 times, expected once; call accumulator.backward\\(loss\\)",
    never_because_of_continue: "called backward\\(\\) 0 times, expected once",
    backward_by_hand_in_a_block: "a parameter of an open window, .* accumulator.backward",
    backward_by_hand_between_blocks: "a parameter of an open window, .* accumulator.backward",
    a_block_in_a_block: "inside another micro-batch",
}


@pytest.mark.parametrize("misuse", MISUSES, ids=lambda misuse: misuse.__name__)
def test_a_misuse_is_an_error_that_changes_nothing(toy, window, misuse):
    with pytest.raises(RuntimeError, match=MISUSES[misuse]):
        misuse(window)
    assert (toy.w.data, toy.w.grad, window.updates) == (1, None, 0)
    with window, window.micro_batch(1):  # and the accumulator can be used again
        backward(window)
    assert (toy.w.data, window.updates) == (0, 1)


@pytest.mark.parametrize("wrong", [None, 1.0, [], np.ones(())], ids=repr)
def test_backward_takes_a_loss(toy, window, wrong):
    def loop():
        with window, window.micro_batch(1):
            window.backward(wrong)

    with pytest.raises(TypeError, match=f"the loss is a {type(wrong).__name__}, expected a Loss"):
        loop()
    assert (toy.w.data, toy.w.grad) == (1, None)


@pytest.mark.parametrize(
    "steps", [0, -1, 1.5, 2.0, True, False, "4", [4], np.bool_(True)], ids=repr
)
def test_accumulation_steps_is_a_positive_integer(toy, steps):
    with pytest.raises(ValueError, match="accumulation_steps is .*, expected an integer of 1"):
        mg.Accumulator(toy, mg.SGD([toy.w], 1.0), accumulation_steps=steps)


def test_accumulation_steps_may_be_numpys_integer(toy):
    with mg.Accumulator(toy, mg.SGD([toy.w], 1.0), accumulation_steps=np.int64(2)) as window:
        for _ in range(2):
            with window.micro_batch(1):
                backward(window)
    assert toy.w.data == 0


@pytest.mark.parametrize("wrong", [None, [], "sgd", [None]], ids=repr)
def test_an_optimizer_is_an_optimizer(toy, wrong):
    with pytest.raises(TypeError, match="optimizer"):
        mg.Accumulator(toy, wrong, accumulation_steps=2)


def test_a_model_is_a_module(toy):
    with pytest.raises(TypeError, match="the model is a function, expected an mg.Module"):
        mg.Accumulator(lambda x: x, mg.SGD([toy.w], 1.0), accumulation_steps=2)


@pytest.mark.parametrize(
    "wrong", [{"reduction": "average"}, {"clip_norm": 0.0}, {"on_nonfinite": "ignore"}], ids=repr
)
def test_a_wrong_option_is_refused_before_the_first_micro_batch(toy, wrong):
    def first():
        window = mg.Accumulator(toy, mg.SGD([toy.w], 1.0), accumulation_steps=2, **wrong)
        with window, window.micro_batch(1):
            raise StopIteration

    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is"):
        first()


@pytest.mark.parametrize("samples", [0, -1, 2.5, True, "4", None], ids=repr)
def test_the_number_of_samples_is_an_integer_of_1_or_more(toy, window, samples):
    with pytest.raises(ValueError, match="samples"), window, window.micro_batch(samples):
        backward(window)
    assert (toy.w.data, toy.w.grad, window.updates) == (1, None, 0)


# ------------------------------------------- what a loop may do to the gradients in between


class Foreign:
    """An array of another library, as of PyTorch: it has a dtype and a shape."""

    dtype, shape = "float32", (4, 3)

    def __len__(self):
        return 4


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((Foreign(), np.ones(4)), "holds a Foreign, expected arrays .* np.asarray"),
        ([(np.ones(4), np.ones(4))], "is a list, expected a tuple .*; Accumulator.* takes a list"),
    ],
    ids=["foreign", "list"],
)
def test_a_batch_of_another_kind_is_refused_with_what_to_do(toy, batch, words):
    with pytest.raises(TypeError, match=words):
        mg.train_step(toy, given, mg.SGD([toy.w], 1.0), batch, micro_batch_size=2)


def test_what_is_no_number_is_named_by_its_kind_in_one_line(toy, window):
    x = np.ones((64, 64))
    one_line = "^samples is a tuple, expected an integer of 1 or more$"
    with pytest.raises(ValueError, match=one_line), window, window.micro_batch((x, x)):
        pass
    with pytest.raises(TypeError, match=r"^the optimizer is of <.*Foreign'>, expected an mg\.Opt"):
        mg.Accumulator(toy, Foreign(), accumulation_steps=2)


@pytest.mark.parametrize("steps", [2, 3])
def test_zero_grad_inside_of_a_window_is_noticed_at_the_next_block(toy, steps):
    sgd = mg.SGD([toy.w], 1.0, momentum=0.5)
    window = mg.Accumulator(toy, sgd, accumulation_steps=steps)
    begun = []

    def loop():
        with window:
            for g in (1.0, 2.0):
                sgd.zero_grad()
                begun.append(g)
                with window.micro_batch(1):
                    backward(window, g)

    with pytest.raises(RuntimeError, match="cleared"):
        loop()
    assert begun == [1, 2]
    assert (toy.w.data, toy.w.grad, sgd.updates, window.updates) == (1, None, 0, 0)


@pytest.mark.parametrize("inside", [False, True])
def test_a_step_by_hand_inside_of_a_window_is_noticed(toy, inside):
    """A step inside of a block at its end, one after it in the next; none is made by the window."""
    sgd = mg.SGD([toy.w], 1.0, momentum=0.5)
    window = mg.Accumulator(toy, sgd, accumulation_steps=2)
    begun = []

    def loop():
        with window:
            for g in (1.0, 2.0):
                begun.append(g)
                with window.micro_batch(1):
                    backward(window, g)
                    if inside:
                        sgd.step()
                sgd.step()

    with pytest.raises(RuntimeError, match="step"):
        loop()
    assert begun == ([1] if inside else [1, 2])
    assert (toy.w.data, toy.w.grad) == (1 - 1, None)  # the step by hand, and nothing else
    assert (sgd.updates, window.updates) == (1, 0)


def test_clipping_by_hand_inside_of_a_window_is_refused(toy):
    """It would shorten what was added so far, in place, where nothing notices it."""
    window = mg.Accumulator(toy, mg.SGD([toy.w], 1.0), accumulation_steps=2)

    def loop():
        with window:
            for _ in range(2):
                with window.micro_batch(1):
                    backward(window, 4.0)
                mg.clip_grad_norm([toy.w], 1.0)

    with pytest.raises(RuntimeError, match="inside a window.*give clip_norm= to the Accumulator"):
        loop()
    assert (toy.w.data, toy.w.grad, window.updates) == (1, None, 0)
    backward_by_hand = given(toy(np.array([4.0])))  # and outside of one it clips
    backward_by_hand.sum().backward()
    assert (mg.clip_grad_norm([toy.w], 1.0), toy.w.grad) == (4, 1)


def test_a_step_by_hand_after_a_window_is_refused_and_does_not_count(toy):
    """The usual `if (i + 1) % k == 0: optimizer.step()`: a schedule would run twice as fast."""
    sgd = mg.SGD([toy.w], 1.0)
    with mg.Accumulator(toy, sgd, accumulation_steps=1) as window:
        with window.micro_batch(1):
            backward(window)
        with pytest.raises(ValueError, match="found no gradient, .* leave it out"):
            sgd.step()
    assert (toy.w.data, sgd.updates, window.updates) == (0, 1, 1)


def test_the_count_of_updates_is_compared_by_its_value(toy):
    """Loading the optimizer's own state again makes another int of the same value: no step."""
    sgd = mg.SGD([toy.w], 1.0)
    sgd.updates = 1000
    window = mg.Accumulator(toy, sgd, accumulation_steps=2)
    with window:
        with window.micro_batch(1):
            backward(window, 1.0)
        sgd.load_state_dict(sgd.state_dict() | {"updates": np.array(1000)})
        with window.micro_batch(1):
            backward(window, 3.0)
    assert (toy.w.data, sgd.updates) == (1 - 2, 1001)


def test_a_window_that_cannot_be_loaded_leaves_none_open(toy):
    window = mg.Accumulator(toy, mg.SGD([toy.w], 1.0), accumulation_steps=2)
    with window:
        with window.micro_batch(1):
            backward(window)
        saved = window.state_dict()
        window.drop()
    del saved["window"]["counts"]
    window.micro_batches = 0
    with pytest.raises(KeyError, match="counts"):
        window.load_state_dict(saved)
    assert (toy.w.grad, toy.w.home, window.flush(), window.micro_batches) == (None, None, None, 0)
    given(toy(np.ones(1))).sum().backward()  # which an open window would refuse
    assert toy.w.grad == 1


@pytest.mark.parametrize("optimizer_first", [True, False])
def test_a_window_and_its_optimizer_may_be_loaded_in_either_order(toy, optimizer_first):
    sgd = mg.SGD([toy.w], 1.0)
    sgd.updates = 300
    window = mg.Accumulator(toy, sgd, accumulation_steps=2)
    with window:
        with window.micro_batch(1):
            backward(window, 1.0)
        saved = {"window": window.state_dict(), "sgd": sgd.state_dict()}
        window.drop()  # here the first run ends
    again = mg.SGD([toy.w], 1.0)
    resumed = mg.Accumulator(toy, again, accumulation_steps=2)
    if optimizer_first:
        again.load_state_dict(saved["sgd"])
    resumed.load_state_dict(saved["window"])
    if not optimizer_first:
        again.load_state_dict(saved["sgd"])
    with resumed, resumed.micro_batch(1):
        backward(resumed, 3.0)
    assert (toy.w.data, again.updates) == (1 - 2, 301)
