"""The engine keeps its contracts: gradients add and are owned, the tape is freed, errors say why.

The operations themselves are in test_gradients.py, dtypes in test_dtypes.py.
"""

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import minigrad as mg
from minigrad.tensor import backward, record
from tests.operations import ROWS, leaves


def leaf(*values):
    return mg.Tensor(np.array(values, float), requires_grad=True)


def same(x, watch=lambda g: None):
    """x as the result of an operation of its own; `watch` sees the gradient that comes to it."""

    def pullback(g):
        watch(g)
        return (g,)

    return record(x.data, (x,), pullback)


# ------------------------------------------------------------------------------- gradients add


@pytest.mark.parametrize(
    ("f", "gradient"),
    [
        (lambda x: x + x, [2, 2]),
        (lambda x: x - x, [0, 0]),
        (lambda x: x * x, [6, -4]),
        (lambda x: x + x + x, [3, 3]),
        (lambda x: (x + 1) * (x + 2), [9, -1]),
        (lambda x: (y := x * 2) + y + y, [6, 6]),
        (lambda x: mg.concatenate([x, x, x])[1:5], [2, 2]),
        (lambda x: mg.where([True, False], x, x * 3), [1, 3]),
    ],
)
def test_the_gradients_of_all_uses_of_a_tensor_add(f, gradient):
    x = leaf(3, -2)
    f(x).sum().backward()
    np.testing.assert_array_equal(x.grad, gradient)


def test_gradients_of_several_backward_calls_add_until_they_are_forgotten():
    x = leaf(1, 2)
    (x * 2).sum().backward()
    (x * 3).sum().backward()
    np.testing.assert_array_equal(x.grad, [5, 5])
    x.grad = None
    (x * 4).sum().backward()
    np.testing.assert_array_equal(x.grad, [4, 4])


def test_a_leaf_is_its_own_gradient():
    x = leaf(1, 2)
    x.backward([3, 4])
    x.backward([3, 4])
    np.testing.assert_array_equal(x.grad, [6, 8])


def test_only_leaves_that_require_a_gradient_get_one():
    x, constant = leaf(1, 2), mg.Tensor([3.0, 4.0])
    y = x * constant
    z = (y * y).sum()
    z.backward()
    assert x.grad is not None
    assert constant.grad is y.grad is z.grad is None


def test_a_gradient_passed_to_backward_weighs_the_elements():
    x = leaf(1, 2, 3)
    (x * x).backward([1, 0, -1])
    np.testing.assert_array_equal(x.grad, [2, 0, -6])
    x.grad = None
    (x * x).backward(2)
    np.testing.assert_array_equal(x.grad, [4, 8, 12])


# ----------------------------------------------------------------------- depth, breadth, time

LINKS = {
    "a number added": lambda y, x: y + 1,
    "itself times a tensor": lambda y, x: y * x,
    "a leaf subtracted": lambda y, x: y - x,
    "a quotient": lambda y, x: y / x,
    "negated": lambda y, x: -y,
    "indexed": lambda y, x: y[:],
    "tanh": lambda y, x: mg.tanh(y),
    "reshaped": lambda y, x: y.reshape(1),
    "a product": lambda y, x: y @ x.reshape(1, 1),
}


def in_a_small_stack(work):
    """Run `work` in a thread whose stack has half a megabyte: recursion would end the process."""
    errors = []

    def guarded():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    before = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=guarded)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    if errors:
        raise errors[0]


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("walked", [True, False])
def test_a_chain_of_10000_operations_is_walked_and_deleted_without_recursion(name, walked):
    def work():
        x = leaf(1)
        y = x
        for _ in range(10_000):
            y = LINKS[name](y, x)
        if walked:
            y.backward()
            assert x.grad is not None
        del y

    in_a_small_stack(work)


def test_a_chain_of_100000_operations_has_the_right_gradient():
    def work():
        x = leaf(1)
        y = x
        for _ in range(50_000):
            y = (y + x) * 1
        y.backward()
        np.testing.assert_array_equal(x.grad, [50_001])

    in_a_small_stack(work)


@pytest.mark.parametrize(
    "level", [lambda y: y + y, lambda y: same(y) + same(y), lambda y: (y * 3) - (y * 1)]
)
def test_a_diamond_of_depth_30_is_walked_in_linear_time(level):
    calls = []
    x = leaf(1)
    y = x
    for _ in range(30):
        y = level(same(y, calls.append))
    y.backward()
    assert len(calls) == 30
    np.testing.assert_array_equal(x.grad, [2.0**30])


def test_an_operation_is_walked_when_all_that_used_its_result_have_been():
    x, seen = leaf(1), []
    early = same(x, seen.append)
    late = early
    for _ in range(5):
        late = late * 2
    (early + late + early * late).backward()
    np.testing.assert_array_equal(seen, [[1 + 32 + 64]])


def test_a_part_of_the_tape_that_the_root_does_not_need_is_not_walked():
    x, seen = leaf(1), []
    middle = same(x)
    aside = same(middle, seen.append) * 2
    (middle * 3).backward()
    assert not seen
    assert aside.requires_grad


# --------------------------------------------------------------------------- twice, and again


def test_backward_twice_is_refused_and_leaves_the_gradients_untouched():
    x = leaf(1, 2)
    y = (x * x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match=r"freed; compute .* again, or pass retain_graph=True"):
        y.backward()
    np.testing.assert_array_equal(x.grad, [2, 4])


def test_a_second_loss_over_a_freed_part_is_refused_before_any_gradient_is_added():
    x, w = leaf(1, 2), leaf(3, 4)
    shared = x * x
    (shared * 2).sum().backward()
    first, walked = x.grad.copy(), []
    second = (same(w, walked.append) * w + shared).sum()
    with pytest.raises(RuntimeError, match="freed"):
        second.backward()
    np.testing.assert_array_equal(x.grad, first)
    assert w.grad is None
    assert not walked


def test_retain_graph_keeps_the_tape_for_one_more_walk():
    x = leaf(1, 2)
    y = (x * mg.exp(x)).sum()
    y.backward(retain_graph=True)
    first = x.grad.copy()
    y.backward()
    np.testing.assert_array_equal(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="freed"):
        y.backward()


@pytest.mark.parametrize("name", ROWS)
def test_a_retained_walk_gives_the_same_again(name):
    inputs = leaves(name)
    y = ROWS[name].run(*inputs)
    found = []
    for retain in (True, True, False):
        for x in inputs:
            x.grad = None
        y.backward(np.full(y.shape, 0.5), retain_graph=retain)
        found.append([x.grad for x in inputs])
    for gradients in found[1:]:
        for one, other in zip(gradients, found[0]):
            np.testing.assert_array_equal(one, other)


# ----------------------------------------------------------------------------------- ownership

SHARING = {
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "(x + y) + (x + y)": lambda x, y: (s := x + y) + s,
    "x": lambda x, y: x,
    "x.reshape": lambda x, y: x.reshape(3, 2) + y.reshape(3, 2),
    "x.T": lambda x, y: x.T + y.T,
    "x[:]": lambda x, y: x[:] + y[::-1],
    "sum": lambda x, y: x.sum() + y.sum(axis=0) + x.mean(),
    "broadcast": lambda x, y: x + y[:1],
    "concatenate": lambda x, y: mg.concatenate([x, y, x]),
    "stack": lambda x, y: mg.stack([x, y]),
    "where": lambda x, y: mg.where(np.ones((2, 3), bool), x, y),
    "maximum": mg.maximum,
    "astype": lambda x, y: x.astype(np.float64) + y,
    "chain": lambda x, y: same(same(x) + same(y)),
    "linear": lambda x, y: mg.linear(x, y.T),
}


@pytest.mark.parametrize("name", SHARING)
def test_no_gradient_of_a_leaf_shares_memory_with_anything(name):
    x, y = (mg.Tensor(np.arange(6.0).reshape(2, 3), True) for _ in range(2))
    z = SHARING[name](x, y)
    seed = np.ones(z.shape)
    z.backward(seed)
    owned = [t.grad for t in (x, y) if t.grad is not None]
    others = [x.data, y.data, z.data, seed]
    for i, gradient in enumerate(owned):
        assert gradient.flags.writeable
        assert not any(np.shares_memory(gradient, other) for other in others + owned[:i])
        gradient += 1  # and nothing else changes
    assert seed.min() == seed.max() == 1
    np.testing.assert_array_equal(x.data, np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("name", ROWS)
def test_no_operation_changes_its_inputs_its_result_or_the_gradient_it_is_given(name):
    inputs = leaves(name)
    before = [x.data.copy() for x in inputs]
    y = ROWS[name].run(*inputs)
    result, seed = y.data.copy(), np.full(y.shape, 0.5)
    seed.flags.writeable = False
    for x in inputs:
        x.data.flags.writeable = False
    backward_with(y, seed)
    np.testing.assert_array_equal(y.data, result)
    for x, old in zip(inputs, before):
        np.testing.assert_array_equal(x.data, old)


def backward_with(y, seed):
    """y.backward(seed), where the pullback gets this very array."""
    record(y.data, (y,), lambda g: (seed,)).backward(np.ones(y.shape))


def test_the_first_contribution_is_borrowed_and_never_written_to():
    x, seen = leaf(1, 2), []
    y = same(x)
    one = same(y, seen.append)
    two, three = y * 2, y * 3
    (one + two + three).sum().backward()
    np.testing.assert_array_equal(x.grad, [6, 6])
    np.testing.assert_array_equal(seen[0], [1, 1])


def test_from_the_third_contribution_on_gradients_are_added_in_place():
    x = mg.Tensor(np.ones(100_000), requires_grad=True)
    x.grad = np.zeros(100_000)
    y = same(x)
    z = same(y)
    for _ in range(5):
        z = z + same(y)
    seed = np.ones(100_000)
    with mg.measure_memory() as memory:
        backward(z, seed)
    assert memory.peak < 1.5 * seed.nbytes
    np.testing.assert_array_equal(x.grad, 6 * seed)


# ----------------------------------------------------------------------- the tape and its end


@contextmanager
def collector_off():
    gc.collect()
    gc.freeze()  # what is there already need not be looked at again
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _thaw():
    yield
    gc.unfreeze()


def test_the_tape_is_freed_while_it_is_walked():
    x, saved, nodes, counts = leaf(1), [], [], []

    def saving(y):
        """y, by an operation that keeps an array for its pullback, as most do."""
        kept = np.ones(1)
        saved.append(weakref.ref(kept))

        def pullback(g):
            counts.append(sum(reference() is not None for reference in saved))
            return (g * kept,)

        return record(y.data, (y,), pullback)

    y = x
    with collector_off():
        for _ in range(20):
            y = saving(y)
            nodes.append(weakref.ref(y.node))
        y.backward()
        assert counts == list(range(20, 0, -1))
        assert not any(reference() for reference in [*saved, *nodes[:-1]])
        del y
        assert not nodes[-1]()


def test_one_gradient_is_in_flight_while_the_tape_is_walked():
    x, w, alive, counts = leaf(*np.ones(5)), leaf(*np.ones(5)), [], []

    def pullback(g):
        counts.append(sum(reference() is not None for reference in alive))
        both = g.copy(), g.copy()
        alive.extend(weakref.ref(gradient) for gradient in both)
        return both

    y = x
    with collector_off():
        for _ in range(20):
            y = record(y.data, (y, w), pullback)
        y.backward(np.ones(5))
        assert max(counts) == 1  # the one that the pullback was given
        assert not any(reference() for reference in alive)


def test_what_a_pullback_holds_is_freed_with_it():
    x = leaf(1, 2)
    with collector_off():
        middle = mg.exp(x)
        held = weakref.ref(middle.data)
        y = (middle * middle).sum()
        del middle
        assert held() is not None
        y.backward()
        assert held() is None


@pytest.mark.parametrize("walked", [True, False])
@pytest.mark.parametrize("name", ROWS)
def test_an_operation_makes_no_reference_cycle(name, walked):
    with collector_off():
        inputs = leaves(name)
        y = ROWS[name].run(*inputs)
        data = weakref.ref(y.data)
        node = weakref.ref(y.node)
        if walked:
            y.backward(np.ones(y.shape))
        del y, inputs
        assert data() is None
        assert node() is None
        assert gc.collect() == 0


def test_a_training_step_makes_no_reference_cycle():
    model = mg.MLP(3, 4, 2, norm=mg.BatchNorm, dropout=0.5)
    optimizer = mg.Adam(model.parameters())
    batch = np.ones((6, 3)), np.zeros(6, int)
    with collector_off():
        for _ in range(3):
            mg.train_step(model, mg.cross_entropy, optimizer, batch, micro_batch_size=2)
        assert gc.collect() == 0


# -------------------------------------------------------------------------------------- no_grad


def test_inside_no_grad_nothing_is_recorded_and_after_it_all_is():
    x = leaf(1, 2)
    with mg.no_grad():
        y = x * 2
        with mg.no_grad():
            pass
        z = x * 3
    assert not y.requires_grad
    assert y.node is z.node is None
    assert (x * 2).requires_grad


def test_no_grad_is_over_after_an_error_and_can_decorate():
    x = leaf(1)
    with pytest.raises(KeyError), mg.no_grad():
        raise KeyError
    assert (x * 2).requires_grad
    silent = mg.no_grad()(lambda: x * 2)
    assert not silent().requires_grad
    assert not silent().requires_grad  # again
    assert (x * 2).requires_grad


def test_no_grad_of_one_thread_is_not_that_of_another():
    x, found = leaf(1), []
    with mg.no_grad():
        thread = threading.Thread(target=lambda: found.append((x * 2).requires_grad))
        thread.start()
        thread.join()
    assert found == [True]


def test_a_detached_tensor_has_the_array_but_no_past():
    x = leaf(1, 2)
    y = (x * 2).detach()
    assert not y.requires_grad
    (x * y).sum().backward()
    np.testing.assert_array_equal(x.grad, [2, 4])


# ------------------------------------------------------------------------------ copy and pickle

COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {n}": lambda x, n=n: pickle.loads(pickle.dumps(x, n)) for n in range(2, 6)},
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("data", [[1.0, 2.0], np.float32(3), np.ones((2, 0)), mg.fractions([1, 2])])
def test_a_leaf_can_be_copied_and_trained_on(how, data):
    x = mg.Tensor(data, requires_grad=True)
    (x * x).sum().backward()
    y = COPIES[how](x)
    assert type(y) is mg.Tensor
    assert (y.dtype, y.shape, y.requires_grad) == (x.dtype, x.shape, True)
    np.testing.assert_array_equal(y.data, x.data)
    np.testing.assert_array_equal(y.grad, x.grad)
    y.grad = None
    (y * 3).sum().backward()
    assert not y.grad.size or y.grad.ravel()[0] == 3


@pytest.mark.parametrize("how", [how for how in COPIES if how != "copy"])
def test_a_deep_copy_of_a_leaf_shares_nothing(how):
    x = leaf(1, 2)
    (x * x).sum().backward()
    y = COPIES[how](x)
    assert not np.shares_memory(x.data, y.data)
    assert not np.shares_memory(x.grad, y.grad)
    (y * y).sum().backward()
    np.testing.assert_array_equal(x.grad, [2, 4])


@pytest.mark.parametrize("how", COPIES)
def test_a_tensor_on_the_tape_refuses_to_be_copied(how):
    with pytest.raises(TypeError, match=r"on the tape, expected a leaf.*\.detach\(\)"):
        COPIES[how](leaf(1) * 2)
    assert COPIES[how]((leaf(1) * 2).detach()).item() == 2


def test_two_parameters_that_are_one_stay_one_in_a_deep_copy():
    x = leaf(1)
    one, other = copy.deepcopy([x, x])
    assert one is other
    assert one is not x


# --------------------------------------------------------------------------------- determinism

PROGRAM = """
import hashlib
import numpy as np
import minigrad as mg

mg.manual_seed(3)
model = mg.MLP(5, 16, 16, 3, norm=mg.LayerNorm, dropout=0.25)
optimizer = mg.Adam(model.parameters(), 0.01)
rng = np.random.default_rng(0)
x, y = rng.standard_normal((24, 5)).astype(np.float32), rng.integers(0, 3, 24)
junk = [object() for _ in range({junk})]  # other addresses
for _ in range(5):
    mg.train_step(model, mg.cross_entropy, optimizer, (x, y), micro_batch_size=7)
w = mg.Tensor(rng.standard_normal((4, 4)).astype(np.float32), True)
h = w
for i in range(40):  # every result is used several times: the order of the sums shows
    h = mg.tanh(h @ w + h * 0.3 + h.T * 0.1) + w
h.sum().backward()
digest = hashlib.sha256(w.grad.tobytes())
for p in model.parameters():
    digest.update(p.data.tobytes())
print(digest.hexdigest())
"""


def test_gradients_are_bit_equal_under_any_hash_seed_and_any_addresses():
    root = str(Path(mg.__file__).parent.parent)
    digests = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(junk=1000 * seed + 1)],
            env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (0, 1, 2)
    }
    assert len(digests) == 1


# ------------------------------------------------------------------------------ small contracts


def test_a_tensor_says_what_it_is():
    x = mg.Tensor(np.ones((2, 3), np.float32), requires_grad=True)
    assert (x.shape, x.ndim, len(x), x.dtype) == ((2, 3), 2, 2, np.float32)
    assert repr(leaf(1)) == "Tensor(array([1.]), requires_grad=True)"
    assert repr(mg.Tensor(2.0)) == "Tensor(array(2.))"
    assert mg.Tensor(2.5).item() == 2.5
    assert type(mg.Tensor(np.float32(2.5)).item()) is float


def test_a_tensor_can_be_looped_over_by_its_first_axis():
    x = mg.Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    first, second = x
    (first * second).sum().backward()
    np.testing.assert_array_equal(x.grad, [[3, 4], [1, 2]])


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.transpose(0, 2),
        lambda x: x.transpose(-3, 0),
        lambda x: x.transpose(0, 0),
        lambda x: x.transpose(0),
        lambda x: x.sum(axis=2),
        lambda x: x.mean(axis=(0, 2)),
        lambda x: mg.max(x, axis=2),
        lambda x: mg.concatenate([x, x], axis=2),
        lambda x: mg.stack([x, x], axis=3),
        lambda x: x[2],
        lambda x: x[0, 0, 0],
    ],
)
def test_an_axis_or_element_that_is_not_there_is_refused(f):
    with pytest.raises((IndexError, ValueError)):
        f(mg.Tensor(np.ones((2, 3))))


def test_results_of_one_element_are_arrays_too():
    x = leaf(1, 2)
    for y in (x.sum(), x[0], x @ x, mg.max(x), x.mean() * 2, -x[1], mg.exp(x[0]), x[0] + 1):
        assert isinstance(y.data, np.ndarray)
        assert y.shape == ()


def test_empty_tensors_work():
    x = mg.Tensor(np.ones((0, 3)), requires_grad=True)
    w = mg.Tensor(np.ones((3, 2)), requires_grad=True)
    y = mg.relu(mg.linear(x, w, mg.Tensor(np.ones(2), True))) * 2
    mg.concatenate([y, y]).sum().backward()
    assert x.grad.shape == (0, 3)
    np.testing.assert_array_equal(w.grad, np.zeros((3, 2)))


# --------------------------------------------------------------------------------------- errors

x2, x23, i2 = leaf(1, 2), mg.Tensor(np.ones((2, 3)), True), mg.Tensor(np.ones(2, np.float32))
exact = mg.Tensor(mg.fractions([1, 2]), True)
w34, b4 = mg.Tensor(np.ones((3, 4)), True), mg.Tensor(np.ones(4), True)
z = mg.Tensor(np.zeros((2, 3)), True)
x3, adam, bce = leaf(1, 2, 3), mg.Adam([leaf(1)]), mg.binary_cross_entropy_with_logits

# (what is done, the error, what its message names: what was given, and what is needed)
ERRORS = [
    # ---------------------------------------------------------------------- making a Tensor
    (lambda: mg.Tensor(x2), TypeError, "Tensor", "array"),
    (lambda: mg.Tensor(1j), TypeError, "complex128", "real numbers"),
    (lambda: mg.Tensor(["a"]), TypeError, "<U1", "real numbers"),
    (lambda: mg.Tensor(None), TypeError, "None"),
    (lambda: mg.Tensor([x2, x2]), TypeError, "Tensor"),
    # ---------------------------------------------------------------------------- operators
    (lambda: x2 + i2, TypeError, "float64", "float32", "one dtype", "astype"),
    (lambda: i2 * exact, TypeError, "float32", "object", "one dtype", "astype"),
    (lambda: x2 + None, TypeError, "NoneType", "number or an array"),
    (lambda: x2 * "3", TypeError, "str", "number or an array"),
    (lambda: x2 - 1j, TypeError, "complex", "number or an array"),
    (lambda: x2 - np.array([1j, 1]), TypeError, "ndarray", "an array"),
    (lambda: x2 / {}, TypeError, "dict", "number or an array"),
    (lambda: x2 + np.array(["a", "b"]), TypeError, "number or an array"),
    (lambda: x2**x2, TypeError, "Tensor", "number", "mg.exp(y * mg.log(x))"),
    (lambda: exact**0.5, TypeError, "0.5", "integer", "Fractions"),
    (lambda: x2 @ 3, ValueError, "a number", "two arrays", "use *"),
    (lambda: 3 @ x2, ValueError, "a number", "two arrays", "use *"),
    (lambda: i2 @ 3.5, ValueError, "a number", "two arrays", "use *"),
    (lambda: 3.5 @ i2, ValueError, "a number", "two arrays", "use *"),
    (lambda: x2.sum() @ x2, ValueError, "a number", "two arrays", "use *"),
    (lambda: x23[mg.Tensor(0.0)], TypeError, "Tensor as an index", "integers", ".data"),
    (lambda: x23[0, mg.Tensor(0.0)], TypeError, "Tensor as an index", "integers", ".data"),
    # ----------------------------------------------------------------------------- backward
    (lambda: mg.Tensor(1.0).backward(), RuntimeError, "requires no gradient", "no_grad()"),
    (lambda: (x2 * 2).backward(), ValueError, "shape (2,)", "sum"),
    (lambda: (x2 * 2).backward(np.ones((3, 2))), ValueError, "(3, 2)", "(2,)"),
    (lambda: (x2 * 2).backward(np.ones(3)), ValueError, "(3,)", "(2,)"),
    (lambda: (x2 * 2).backward("1"), TypeError, "str"),
    (lambda: (x2 * 2).backward(x2), TypeError, "Tensor", "number"),
    # --------------------------------------------------------------------------- operations
    (lambda: mg.linear(x2, w34), ValueError, "shape (2,)", "(..., 3)", "(3, 4)"),
    (lambda: mg.linear(1.0, w34), ValueError, "shape ()", "(..., 3)"),
    (lambda: mg.linear(x23, leaf(1, 2, 3)), ValueError, "weight", "(3,)"),
    (lambda: mg.linear(x23, w34, leaf(1, 2)), ValueError, "bias", "(2,)", "(4,)"),
    (lambda: mg.linear(x23, w34, mg.Tensor(np.ones((2, 4)))), ValueError, "bias", "(2, 4)", "(4,)"),
    (lambda: mg.embedding(w34, [3]), IndexError, "index 3", "0 to 2", "rows"),
    (lambda: mg.embedding(w34, [[0], [-1]]), IndexError, "index -1", "0 to 2", "rows"),
    (lambda: mg.embedding(w34, -1), IndexError, "index -1", "0 to 2", "rows"),
    (lambda: mg.embedding(w34, np.int64(-1)), IndexError, "index -1", "0 to 2", "rows"),
    (lambda: mg.embedding(w34, [0.5]), TypeError, "float64", "integers", "astype(int)"),
    (lambda: mg.embedding(w34, [True]), TypeError, "bool", "integers", "astype(int)"),
    (lambda: mg.concatenate([]), ValueError, "no tensors", "at least one"),
    (lambda: mg.stack([]), ValueError, "no tensors", "at least one"),
    (lambda: mg.concatenate([x2, i2]), TypeError, "float64", "float32", "one dtype"),
    (lambda: mg.where(x2, x2, x2), TypeError, "Tensor"),
    # ------------------------------------------------------------------------------- losses
    (lambda: mg.cross_entropy(z, [0, 1, 2]), ValueError, "(2, 3)", "(3,)", "labels"),
    (lambda: mg.cross_entropy(z, [[0], [1]]), ValueError, "(2, 3)", "(2, 1)", "labels"),
    (lambda: mg.cross_entropy(z, np.eye(3, dtype=int)[:2]), ValueError, "(2,)", "argmax(-1)"),
    (lambda: mg.cross_entropy(leaf(1)[0], 0), ValueError, "()", "logits"),
    (lambda: mg.cross_entropy(z, [0, 3]), IndexError, "label 3", "0 to 2", "3 classes"),
    (lambda: mg.cross_entropy(z, [0, -1]), IndexError, "label -1", "0 to 2", "3 classes"),
    (lambda: mg.cross_entropy(z, [0, 7], ignore_index=8), IndexError, "label 7", "0 to 2"),
    (lambda: mg.cross_entropy(z, [0.0, 1.0]), TypeError, "float64", "integers", "astype(int)"),
    (lambda: mg.cross_entropy(z, [True, False]), TypeError, "bool", "integers"),
    (lambda: mg.cross_entropy(z, x2), TypeError, "labels", "Tensor"),
    (lambda: mg.cross_entropy(z, [0, 1], class_weights=[1.0, 2.0]), ValueError, "(2,)", "(3,)"),
    (lambda: mg.cross_entropy(z, [0, 1], sample_weights=[1, 2, 3]), ValueError, "(3,)", "(2,)"),
    (lambda: mg.cross_entropy(z, [0, 1], sample_weights=[1, -1]), ValueError, "negative"),
    (lambda: mg.cross_entropy(z, [0, 1], label_smoothing=1.5), ValueError, "1.5", "smoothing"),
    (lambda: mg.cross_entropy(z, [0, 1], label_smoothing=-0.1), ValueError, "-0.1", "smoothing"),
    (lambda: mg.squared_error(x2, np.ones((2, 1))), ValueError, "(2,)", "(2, 1)"),
    (lambda: mg.absolute_error(x23, 1.0), ValueError, "(2, 3)", "shape ()"),
    (lambda: bce(x2, np.ones((2, 1))), ValueError, "(2,)", "(2, 1)"),
    (lambda: mg.squared_error(x2, x2, 1.0), ValueError, "shape ()", "(2,)"),
    (lambda: mg.squared_error(x2, x2, [np.nan, 1]), ValueError, "non-finite"),
    (lambda: mg.per_sample(x2.sum()), TypeError, "one number", "a sample"),
    (lambda: mg.per_sample(np.ones(2)), TypeError, "ndarray", "Tensor"),
    (lambda: mg.penalty(x2), TypeError, "one element"),
    (lambda: mg.penalty(1.0), TypeError, "one element"),
    (lambda: mg.per_sample(x2) + 1, TypeError, "a int", "a Loss", "mg.penalty(t)"),
    (lambda: mg.per_sample(x2) + x2, TypeError, "a Tensor", "a Loss", "mg.per_sample"),
    (lambda: mg.per_sample(x2) * x2, TypeError, "a Tensor", "a number", "sample_weights"),
    (lambda: mg.per_sample(x2) + mg.per_sample(x3), ValueError, "'sample'", "2 and 3", "unit='"),
    # -------------------------------------------------------------- layers and random numbers
    (lambda: mg.Linear(2, 3, init="xavier"), ValueError, "'xavier'", "glorot", "he"),
    (lambda: mg.Dropout(1.0), ValueError, "1.0", "probability", "below 1"),
    (lambda: mg.Dropout(-0.1), ValueError, "-0.1", "probability"),
    (lambda: mg.Dropout(np.nan), ValueError, "nan", "probability"),
    (lambda: mg.MLP(3), ValueError, "(3,)", "two or more positive numbers"),
    (lambda: mg.MLP(3, 0, 2), ValueError, "(3, 0, 2)", "two or more positive numbers"),
    (lambda: mg.BatchNorm(3)(np.ones((2, 4))), ValueError, "(2, 4)", "(n, 3)"),
    (lambda: mg.BatchNorm(3)(np.ones(3)), ValueError, "(3,)", "(n, 3)"),
    (lambda: mg.BatchNorm(3)(np.ones((1, 3))), ValueError, "one sample", "two", "LayerNorm"),
    (lambda: mg.BatchNorm(3, statistics="x"), ValueError, "'x'", "'micro'"),
    (lambda: mg.LayerNorm(3)(np.ones((3, 2))), ValueError, "(3, 2)", "(..., 3)"),
    (lambda: mg.GroupNorm(2, 3), ValueError, "2", "3", "divi"),
    (lambda: mg.GroupNorm(0, 3), ValueError, "0", "3", "divi"),
    (lambda: mg.GroupNorm(1, 3)(np.ones(3)), ValueError, "(3,)", "(n, 3, ...)"),
    (lambda: mg.Module()(1), NotImplementedError, "Module", "forward()"),
    (lambda: mg.manual_seed(-1), ValueError, "-1", "integer from 0"),
    (lambda: mg.manual_seed(0.5), ValueError, "0.5", "integer from 0"),
    # --------------------------------------------------------------- optimizers and schedules
    (lambda: mg.SGD([], 0.1), ValueError, "SGD()", "leaf Tensors", "model.parameters()"),
    (lambda: mg.SGD([x2 * 2], 0.1), ValueError, "leaf Tensors", "model.parameters()"),
    (lambda: mg.SGD([np.ones(2)], 0.1), ValueError, "leaf Tensors", "model.parameters()"),
    (lambda: mg.SGD([x2], -0.1), ValueError, "lr", "-0.1", "0 or more"),
    (lambda: mg.Adam([x2], np.nan), ValueError, "lr", "nan", "0 or more"),
    (lambda: mg.AdamW([x2], weight_decay=-1), ValueError, "weight_decay", "-1", "0 or more"),
    (lambda: mg.SGD([x2], 0.1, momentum=-1), ValueError, "momentum", "-1", "0 or more"),
    (lambda: mg.SGD([x2], 0.1, nesterov=True), ValueError, "nesterov", "momentum"),
    (lambda: mg.Adam([x2], betas=(0.9, 1.0)), ValueError, "beta", "1.0", "below 1"),
    (lambda: mg.Adam([x2], eps=-1), ValueError, "eps", "-1"),
    (lambda: mg.LARS([x2], 1, momentum=-1), ValueError, "LARS()", "momentum", "0 or more"),
    (lambda: mg.LARS([x2], 1, trust_coefficient=-1), ValueError, "trust_coefficient", "-1"),
    (lambda: mg.LARS([x2], 1, form="both"), ValueError, "LARS()", "'both'", "'corrected'"),
    (lambda: mg.LAMB([x2], betas=(1, 0.9)), ValueError, "LAMB()", "beta", "below 1"),
    (lambda: mg.LAMB([x2], eps=-1), ValueError, "eps", "-1"),
    (lambda: mg.LAMB([x2], norm_limits=(2, 1)), ValueError, "LAMB()", "(2, 1)", "low <= high"),
    (lambda: mg.WeightAverage([x2], 1.0), ValueError, "decay", "1.0", "below 1"),
    (lambda: adam.load_state_dict({}), KeyError, "'updates'", "load what"),
    (lambda: adam.load_state_dict(mg.SGD([x2], 1).state_dict()), KeyError, "m", "v", "load what"),
    (lambda: adam.load_state_dict(mg.Adam([x2]).state_dict()), ValueError, "(2,)", "(1,)"),
    (lambda: mg.clip_grad_norm([x2], -1.0), ValueError, "-1", "max_norm"),
    (lambda: mg.cosine(0.1, 0), ValueError, "cosine()", "0", "1 or more"),
    (lambda: mg.warmup(0.1, -1), ValueError, "warmup()", "-1", "1 or more"),
    (lambda: mg.linear_scaling(0.1, 0, 8), ValueError, "linear_scaling()", " batch_size is 0"),
    (lambda: mg.linear_scaling(0.1, 8, 1.5), ValueError, "new_batch_size is 1.5", "integer"),
    (lambda: mg.linear_scaling(-1, 8, 16), ValueError, "rate = -1", "0 or more"),
    (lambda: mg.linear_scaling(mg.cosine(1, 2), 8, 16), ValueError, "function", "a number"),
    (lambda: mg.square_root_scaling(1, 8, 88), ValueError, "11 times", "0.9 into -0.1", "grow"),
    (lambda: mg.square_root_scaling(1, 8, 4, (0.9, 1)), ValueError, "beta = 1", "below 1"),
    (lambda: mg.square_root_scaling(1, 8, 4, (np.nan, 0)), ValueError, "beta = nan", "below 1"),
    (lambda: mg.square_root_scaling(np.inf, 8, 4), ValueError, "rate = inf", "finite"),
    (lambda: mg.square_root_scaling(1, 8, 4, eps=-1), ValueError, "eps = -1", "0 or more"),
    (lambda: mg.constant_half_life(1.0, 8, 16), ValueError, "constant_half_life()", "below 1"),
    (lambda: mg.constant_half_life(0.9, 8, 0), ValueError, "new_batch_size is 0", "1 or more"),
    (lambda: mg.step_growth(8, 2, 64, 0), ValueError, "step_growth() largest is 0", "1 or more"),
    (lambda: mg.step_growth(8, 0.5, 64, 64), ValueError, "factor is 0.5", "integer"),
]


@pytest.mark.parametrize("row", ERRORS, ids=[f"{i}, {row[2]}" for i, row in enumerate(ERRORS)])
def test_an_error_names_what_was_given_what_was_expected_and_the_fix(row):
    bad, kind, *parts = row
    with pytest.raises(kind) as error:
        bad()
    assert type(error.value) is kind
    message = str(error.value)
    assert [part for part in parts if part not in message] == [], message
    assert "expect" in message or "; " in message, message  # what was expected, or what to do
