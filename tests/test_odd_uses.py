"""What users do to models, parameters and optimizers between steps: it works, or says why not."""

import copy
import pickle
import threading
from fractions import Fraction

import numpy as np
import pytest

import minigrad as mg
from tests.toys import Toy, given


def ones(n=2):
    return np.ones(n), np.ones(n)


def batch():
    rng = np.random.default_rng(0)
    return rng.standard_normal((6, 3)), np.arange(6) % 2


def net(**options):
    return mg.MLP(3, 4, 2, dtype=np.float64, **options)


def bits(model):
    return {name: array.tobytes() for name, array in model.state_dict().items()}


# --------------------------------------------------------------------- parameters, by hand


def test_a_gradient_set_by_hand_is_forgotten():
    toy = Toy()
    sgd = mg.SGD([toy.w], 1.0)
    toy.w.grad = np.array(100.0)
    mg.train_step(toy, given, sgd, ones(), 1)
    assert (toy.w.data, toy.w.grad) == (-1, None)
    toy.w.grad = np.array(100.0)
    mg.accumulate(toy, given, ones(), 1)
    assert toy.w.grad == 1


def test_data_replaced_by_another_array_is_what_trains():
    toy = Toy()
    sgd = mg.SGD([toy.w], 1.0, momentum=0.5)
    mg.train_step(toy, given, sgd, ones(), 1)
    mine = np.array(5.0)
    toy.w.data = mine
    mg.train_step(toy, given, sgd, ones(), 1)
    assert (toy.w.data, mine) == (5 - 1.5, 5)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_data_of_another_dtype_is_refused_and_nothing_changes(dtype):
    toy = Toy()
    sgd = mg.SGD([toy.w], 1.0)
    toy.w.data = toy.w.data.astype(dtype)
    with pytest.raises(TypeError, match="dtype or device after the optimizer was made"):
        mg.train_step(toy, given, sgd, ones(), 1)
    assert (toy.w.data, toy.w.grad, sgd.updates) == (0, None, 0)


def test_data_of_another_shape_is_refused():
    toy = Toy([1.0, 2.0])
    sgd = mg.SGD([toy.w], 1.0)
    toy.w.data = np.array(3.0)
    with pytest.raises(TypeError, match="changed its shape"):
        mg.train_step(toy, given, sgd, ones(), 1)


def test_a_parameter_that_requires_no_gradient_stays_as_it_is():
    model = net()
    sgd = mg.SGD(model.parameters(), 1.0, momentum=0.5, weight_decay=0.5)
    frozen, other = model.parameters()[:2]
    frozen.requires_grad = False
    before, bias = frozen.data.copy(), other.data.copy()
    mg.train_step(model, mg.cross_entropy, sgd, batch(), 2)
    np.testing.assert_array_equal(frozen.data, before)
    assert (other.data != bias).any()


def test_a_shared_parameter_counts_once():
    """outputs = w (w x): the gradient is 2 w x, one update, one norm."""

    class Tied(mg.Module):
        def __init__(self):
            self.first = self.second = Toy(3.0)

        def forward(self, x):
            return self.second(self.first(x))

    tied = Tied()
    sgd = mg.SGD([*tied.parameters(), tied.first.w], 1.0)
    report = mg.train_step(tied, given, sgd, ones(), 1)
    assert (tied.first.w.data, report.grad_norm) == (3 - 6, 6)


@pytest.mark.parametrize(("g", "dtype"), [(1e30, np.float32), (1e150, float), (1e-200, float)])
def test_large_and_small_gradients_are_finite(g, dtype):
    toy = Toy(0.0, dtype=dtype)
    x = np.full(2, g, dtype)
    report = mg.train_step(toy, given, mg.SGD([toy.w], 1.0), (x, x), 1, clip_norm=1e200)
    assert report.updated
    assert toy.w.data == -x[0]


def test_a_gradient_is_finite_if_its_norm_is():
    toy, x = Toy(), np.full(2, 1e160)
    assert mg.train_step(toy, given, mg.SGD([toy.w], 1.0), (x, x), 1).updated


# ------------------------------------------------------------------ gradients have one owner


def test_gradients_of_two_calls_can_be_compared():
    toy = Toy()
    mg.accumulate(toy, given, ones(), 1)
    first = toy.w.grad
    mg.accumulate(toy, given, (np.full(2, 5.0), np.ones(2)), 1)
    assert (first, toy.w.grad) == (1, 5)


def test_gradients_of_two_calls_can_be_compared_beside_an_optimizer_too():
    toy = Toy()
    mg.SGD([toy.w], 1.0)
    mg.accumulate(toy, given, ones(), 1)
    first = toy.w.grad
    mg.accumulate(toy, given, (np.full(2, 5.0), np.ones(2)), 1)
    assert (first, toy.w.grad) == (1, 5)


def test_a_chain_of_fractions_without_axes_is_differentiated():
    w = mg.Tensor(mg.fractions(2), requires_grad=True)
    (w * w * w).backward()
    assert w.grad == Fraction(12)


# ------------------------------------------------------------- which optimizer, which model


def test_an_optimizer_may_hold_a_subset_of_the_parameters():
    part = net()
    whole, before = copy.deepcopy(part), part.state_dict()
    last = mg.SGD(part.parameters()[2:], 1.0)
    mg.train_step(part, mg.cross_entropy, last, batch(), 2)
    mg.train_step(whole, mg.cross_entropy, mg.SGD(whole.parameters(), 1.0), batch(), 2)
    for name, array in part.state_dict().items():
        trained = name.startswith("layers.2")
        np.testing.assert_array_equal(array, (whole.state_dict() if trained else before)[name])


@pytest.mark.parametrize("fails", [False, True])
def test_after_a_step_no_parameter_of_the_model_has_a_gradient(fails):
    model = net()
    sgd = mg.SGD(model.parameters()[2:], 1.0)
    x, y = batch()
    y[-1] = 9 if fails else 0
    if fails:
        with pytest.raises(IndexError):
            mg.train_step(model, mg.cross_entropy, sgd, (x, y), 2)
    else:
        mg.train_step(model, mg.cross_entropy, sgd, (x, y), 2)
    assert [p.grad for p in model.parameters()] == [None] * 4


def the_optimizer_of_a_copy(toy):
    return mg.SGD(copy.deepcopy(toy).parameters(), 1.0)


def a_copied_optimizer(toy):
    return copy.deepcopy(mg.SGD(toy.parameters(), 1.0))


def an_optimizer_of_before(toy):
    sgd = mg.SGD(toy.parameters(), 1.0)
    toy.w = mg.parameter(np.array(1.0))
    return sgd


@pytest.mark.parametrize(
    "make", [the_optimizer_of_a_copy, a_copied_optimizer, an_optimizer_of_before]
)
def test_an_optimizer_of_other_parameters_is_refused(make):
    toy = Toy()
    with pytest.raises(ValueError, match="parameters"):
        mg.train_step(toy, given, make(toy), ones(), 1)


def test_two_optimizers_of_one_parameter_are_refused():
    toy = Toy()
    both = [mg.SGD([toy.w], 1.0), mg.SGD([toy.w], 8.0)]
    with pytest.raises(ValueError, match="parameter"):
        mg.train_step(toy, given, both, ones(), 1)


def test_optimizers_may_take_turns_on_one_parameter():
    toy = Toy()
    for rate in (1.0, 8.0):
        other = mg.SGD([toy.w], rate)
        mg.train_step(toy, given, other, ones(), 1)
    mg.train_step(toy, given, mg.SGD([toy.w], 1.0), ones(), 1)
    assert toy.w.data == -(1 + 8 + 1)


def test_an_older_optimizer_still_trains_beside_a_newer_one():
    toy = Toy()
    old = mg.SGD([toy.w], 1.0, momentum=0.5)
    new = mg.SGD([toy.w], 8.0)
    for optimizer in (old, new, old):
        mg.train_step(toy, given, optimizer, ones(), 1)
    assert toy.w.data == -(1 + 8 + 1.5)


def test_a_state_may_pass_through_npz_and_is_not_changed_by_the_run(tmp_path):
    toy = Toy()
    sgd = mg.SGD([toy.w], lambda updates: 2.0**-updates, momentum=0.5)
    mg.train_step(toy, given, sgd, ones(), 1)
    np.savez(tmp_path / "state.npz", **sgd.state_dict())
    with np.load(tmp_path / "state.npz") as file:
        state = dict(file)
    sgd.load_state_dict(state)
    mg.train_step(toy, given, sgd, ones(), 1)
    assert (sgd.updates, state["updates"]) == (2, 1)


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_copy_of_model_optimizer_and_average_trains_on_alike_and_apart(twin):
    model = net(norm=mg.BatchNorm, dropout=0.5)
    adam = mg.Adam(model.parameters(), 0.125)
    average = mg.WeightAverage(model.parameters(), 0.5)

    def step(model, adam, average):
        mg.train_step(model, mg.cross_entropy, adam, batch(), 3, average=average)

    step(model, adam, average)
    other = twin((model, adam, average))
    before = bits(model)
    step(*other)
    assert bits(model) == before
    step(model, adam, average)
    assert bits(model) == bits(other[0]) != before
    for mine, its in zip(average.values, other[2].values, strict=True):
        np.testing.assert_array_equal(mine, its)


# --------------------------------------------------------------------- modes and contexts


@pytest.mark.parametrize("b", [1, 2, 5])
def test_in_eval_mode_every_split_is_one_batch(b):
    """To rounding; dropout is off, running statistics serve and stay: one-sample parts work too."""
    models = [net(norm=mg.BatchNorm, dropout=0.5).eval() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model, size in zip(models, (b, 6), strict=True):
        model.layers[1].running_mean[...] = 0.5
        mg.accumulate(model, mg.cross_entropy, batch(), size)
        assert model.layers[1].running_mean.tolist() == [0.5] * 4
    for p, q in zip(*(model.parameters() for model in models), strict=True):
        np.testing.assert_allclose(p.grad, q.grad, rtol=0, atol=1e-15)


def test_a_step_inside_no_grad_is_an_error_that_changes_nothing():
    model = net(norm=mg.BatchNorm)
    sgd = mg.SGD(model.parameters(), 1.0)
    before = bits(model)
    with mg.no_grad(), pytest.raises(RuntimeError, match="outside (of )?no_grad"):
        mg.train_step(model, mg.cross_entropy, sgd, batch(), 2)
    assert bits(model) == before
    assert mg.train_step(model, mg.cross_entropy, sgd, batch(), 2).updated


def test_a_look_without_gradients_inside_of_the_loss_adds_nothing():
    toy = Toy(1.0)

    def loss(outputs, y):
        with mg.no_grad():
            assert not mg.squared_error(toy(y), y).sum().requires_grad
        return given(outputs)

    mg.accumulate(toy, loss, ones(), 1)
    assert toy.w.grad == 1


@pytest.mark.parametrize("make", [dict, lambda **parts: list(parts.values())])
def test_layers_may_lie_in_lists_and_dicts(make):
    class Deep(mg.Module):
        def __init__(self):
            self.parts = make(first=Toy(2.0), second=Toy(3.0))

        def forward(self, x):
            for part in self.parts.values() if isinstance(self.parts, dict) else self.parts:
                x = part(x)
            return x

    deep = Deep()
    mg.accumulate(deep, given, ones(), 1)
    assert [p.grad for p in deep.parameters()] == [3, 2]


def test_threads_train_models_of_their_own_as_if_alone():
    def train(results, name):
        model = copy.deepcopy(start)
        adam = mg.Adam(model.parameters(), 0.125)
        for _ in range(10):
            ready.wait()
            mg.train_step(model, mg.cross_entropy, adam, batch(), 2)
        results[name] = bits(model)

    mg.manual_seed(3)
    start, results = net(norm=mg.BatchNorm, dropout=0.5), {}
    ready = threading.Barrier(1)
    train(results, "alone")
    ready = threading.Barrier(4)
    threads = [threading.Thread(target=train, args=(results, i)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results.get(i) for i in range(4)] == [results["alone"]] * 4


def test_no_grad_in_one_thread_is_not_in_another():
    found = []
    with mg.no_grad():
        thread = threading.Thread(target=lambda: found.append(Toy()(np.ones(1)).requires_grad))
        thread.start()
        thread.join()
    assert found == [True]


# --------------------------------------------------------------------- what is said, and when


@pytest.mark.parametrize("rate", [None, np.nan, np.inf, -1.0], ids=repr)
def test_a_schedule_that_gives_no_finite_number_of_0_or_more_is_refused(rate):
    toy = Toy()
    sgd = mg.SGD([toy.w], lambda t: rate)
    with pytest.raises(ValueError, match="rate"):
        mg.train_step(toy, given, sgd, ones(), 1)
    assert (toy.w.data, toy.w.grad, sgd.updates) == (0, None, 0)


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ValueError, match="parameter"):
        mg.accumulate(mg.Sequential(mg.ReLU()), given, ones(), 1)


def test_a_dropout_that_is_no_part_of_the_model_is_refused_by_name():
    class Loose(Toy):
        def forward(self, x):
            return mg.Dropout(0.5)(super().forward(x))

    with pytest.raises((RuntimeError, ValueError), match="no part of"):
        mg.accumulate(Loose(), given, ones(), 1)


def test_float16_sums_do_not_overflow_in_large_micro_batches():
    """Otherwise an update is skipped or not, as the micro-batch size has it."""
    toy, x = Toy(1.0, dtype=np.float16), np.full(1024, 128, np.float16)
    with np.errstate(over="ignore"):
        assert mg.train_step(toy, given, mg.SGD([toy.w], 0.5), (x, x), 1024).updated
