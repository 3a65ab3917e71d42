"""dtype in, dtype out: nothing drifts to float64, half precision counts on, Fractions stay exact.

The table of operations is in operations.py. A leaf keeps its gradient in an array of the right
dtype whatever it is given: so gradients are looked at where they arrive (`arriving`).
"""

import itertools
import re
from fractions import Fraction
from numbers import Rational

import numpy as np
import pytest

import minigrad as mg
from minigrad import functions as F
from minigrad.tensor import record
from tests.operations import LAYERS, LOSSES, RATIONAL, ROWS, layer, values

FLOATS = [np.float16, np.float32, np.float64]
PRECISION = {np.float16: 1e-2, np.float32: 1e-5, np.float64: 1e-13}


def arriving(x, found):
    """x, unchanged; the gradients that reach it are noted in `found`."""

    def pullback(g):
        found.append(g)
        return (g,)

    return record(x.data, (x,), pullback)


def run(row, inputs):
    """The result of a row on arrays, the gradients that arrived, and those that leaves keep."""
    tensors = [mg.Tensor(x, requires_grad=True) for x in inputs]
    found = [[] for _ in tensors]
    y = row.run(*(arriving(t, f) for t, f in zip(tensors, found)))
    y.backward(np.ones(y.shape, int))
    return y, [f for (f,) in found], [t.grad for t in tensors]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ROWS)
def test_an_operation_keeps_the_dtype(name, dtype):
    y, arrived, kept = run(ROWS[name], values(name, dtype))
    wide = np.float32 if dtype == np.float16 else dtype
    assert y.dtype == dtype or (name in LOSSES and y.dtype == wide)  # a sum may overflow
    assert all(g.dtype in (dtype, wide) for g in arrived)
    assert all(g.dtype == wide for g in kept)
    exact, _, gradients = run(ROWS[name], [x.astype(np.float64) for x in values(name, dtype)])
    for ours, right in zip([y.data, *kept], [exact.data, *gradients]):
        bound = PRECISION[dtype] * max(1, np.abs(right).max())
        np.testing.assert_allclose(ours, right, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_keeps_the_dtype(name, training, dtype):
    module, x = layer(name, dtype)
    leaf, found = mg.Tensor(x, requires_grad=True), []
    y = module.train(training)(arriving(leaf, found))
    y.backward(np.ones(y.shape))
    wide = np.float32 if dtype == np.float16 else dtype
    assert y.dtype == dtype
    assert found[0].dtype in (dtype, wide)
    for p in [leaf, *module.parameters()]:
        assert p.dtype == dtype
        assert p.grad.dtype == wide
    for _, owner, name in module.named_buffers():
        assert getattr(owner, name).dtype == dtype


@pytest.mark.parametrize("dtype", FLOATS)
def test_embedding_and_dropout_keep_the_dtype(dtype):
    module = mg.Sequential(mg.Embedding(3, 4, dtype=dtype), mg.Dropout(0.25))
    y = module([0, 2, 2])
    y.backward(np.ones(y.shape))
    assert y.dtype == dtype
    assert module.layers[0].weight.grad.dtype == (np.float32 if dtype == np.float16 else dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: mg.SGD(p, np.float64(0.5), np.float64(0.5), weight_decay=np.float64(0.5)),
        lambda p: mg.SGD(p, lambda update: np.float64(0.5)),
        lambda p: mg.Adam(p, np.float64(0.1), (np.float64(0.5), np.float64(0.5)), np.float64(1e-8)),
        lambda p: mg.AdamW(p, Fraction(1, 8), weight_decay=0.5),
        lambda p: mg.LARS(p, *[np.float64(0.5)] * 4, clip=True),
        lambda p: mg.LARS(p, Fraction(1, 8), Fraction(1, 2), Fraction(1, 2), Fraction(1, 2)),
        lambda p: mg.LAMB(p, np.float64(0.5), [np.float64(0.5)] * 2, *[np.float64(0.5)] * 2),
        lambda p: mg.LAMB(p, Fraction(1, 8), norm_limits=(np.float64(0.5), Fraction(2))),
    ],
)
def test_an_update_keeps_the_dtype_whatever_that_of_the_hyperparameters(make, dtype):
    p = mg.Tensor(np.ones((3, 1), dtype), True)
    optimizer, average = make([p]), mg.WeightAverage([p], np.float64(0.5))
    p.grad = np.ones((3, 1), dtype)
    mg.clip_grad_norm([p], np.float64(0.5))
    assert p.grad.dtype == dtype
    optimizer.step()
    average.update()
    states = [state for state in optimizer.state_dict().values() if hasattr(state, "dtype")]
    assert len(states) == len(optimizer.states)
    assert {p.data.dtype, *(s.dtype for s in states), average.values[0].dtype} == {np.dtype(dtype)}
    assert not np.array_equal(p.data, np.ones((3, 1)))


# ------------------------------------------------------------------- operands that are no Tensor

OPERATORS = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
    "maximum": mg.maximum,
    "where": lambda x, y: mg.where([True, False], x, y),
}
TWO = {
    "int": 2,
    "float": 2.0,
    "np.float64": np.float64(2),
    "np.float32": np.float32(2),
    "np.float16": np.float16(2),
    "np.int64": np.int64(2),
    "Fraction": Fraction(2),
    "bool": True,
    "np.bool": np.True_,
    "0-d array": np.array(2.0),
    "0-d integers": np.array(2),
    "0-d float32": np.array(2, np.float32),
    "array": np.array([2.0, 2.0]),
    "float16 array": np.array([2, 2], np.float16),
    "integers": np.array([2, 2]),
    "booleans": np.array([True, True]),
    "list": [2, 2.0],
    "tuple": (2, 2),
    "Fractions": np.array([Fraction(2), Fraction(2)]),
}


@pytest.mark.parametrize("dtype", [*FLOATS, object])
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("kind", TWO)
def test_an_operand_that_is_no_tensor_takes_the_dtype_of_the_tensor(kind, name, dtype):
    f, other = OPERATORS[name], TWO[kind]
    data = mg.fractions([0.5, 3.0]) if dtype is object else np.array([0.5, 3.0], dtype)
    same = mg.Tensor(data * 0 + (1 if "bool" in kind else 2))
    for mixed, pure in [
        (lambda x: f(x, other), lambda x: f(x, same)),
        (lambda x: f(other, x), lambda x: f(same, x)),
    ]:
        found = []
        for run_ in (mixed, pure):
            x = mg.Tensor(data, requires_grad=True)
            y = run_(x)
            y.backward(np.ones(2))
            found.append((y.data, x.grad))
        for ours, right in zip(*found):
            assert ours.dtype == right.dtype == dtype or dtype == np.float16
            np.testing.assert_array_equal(ours, right)
            assert dtype is not object or not has_a_float(ours)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "other",
    [
        np.eye(2),
        np.eye(2, dtype=int),
        np.eye(2, dtype=np.float32),
        [[1, 0], [0, 1]],
        ((1, 0), (0, 1)),
    ],
)
def test_a_product_with_any_array_keeps_the_dtype(other, dtype):
    x = mg.Tensor(np.array([[1, 2], [3, 4]], dtype), True)
    for y in (x @ other, other @ x):
        assert y.dtype == dtype
        np.testing.assert_array_equal(y.data, x.data)


@pytest.mark.parametrize("dtype", FLOATS)
def test_arrays_of_any_dtype_may_be_joined_with_and_given_to_a_model_of_any_other(dtype):
    x, wide = mg.Tensor(np.ones((1, 2), dtype)), np.ones((1, 2))
    integers = np.ones((1, 2), int)
    assert mg.concatenate([wide, x, integers, [[1, 2]]]).dtype == dtype
    assert mg.stack([wide, x, integers, [[1, 2]]]).dtype == dtype
    for module in (
        mg.Linear(2, 3, dtype=dtype),
        mg.LayerNorm(2, dtype=dtype),
        mg.GroupNorm(1, 2, dtype=dtype),
        mg.BatchNorm(2, dtype=dtype).eval(),
    ):
        for inputs in (wide, integers, [[1, 2]]):
            assert module(inputs).dtype == dtype
    y = x.reshape(2)
    wide = np.float32 if dtype == np.float16 else dtype  # in which a sum does not overflow
    for loss in (mg.squared_error, mg.absolute_error, mg.binary_cross_entropy_with_logits):
        for target in (np.zeros(2), np.zeros(2, int), [0, 1]):
            assert loss(y, target).sum().dtype == wide
            assert loss(y, target, np.array([1.0, 2.0])).mean().dtype == wide
    every = mg.cross_entropy(
        x, [1], class_weights=[1.0, 2.0], label_smoothing=0.1, sample_weights=np.array([3.0])
    )
    assert (np.float64(0.5) * every).mean().dtype == wide


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("gradient", [2, 2.0, np.float64(2), np.array(2), [2, 2], Fraction(2)])
def test_backward_takes_any_number_and_keeps_the_dtype(gradient, dtype):
    x, found = mg.Tensor(np.ones(2, dtype), True), []
    (arriving(x, found) * 3).backward(gradient)
    assert found[0].dtype == dtype
    np.testing.assert_array_equal(x.grad, [6, 6])


@pytest.mark.parametrize("exponent", [2, 3, 0.5, np.float64(3), np.int64(2), np.float32(0.5)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_power_keeps_the_dtype(exponent, dtype):
    x, found = mg.Tensor(np.array([1, 4], dtype), True), []
    y = arriving(x, found) ** exponent
    y.backward(np.ones(2))
    assert y.dtype == dtype
    # x * x uses x twice, and a gradient that is a sum is added up in float32 for float16.
    assert found[0].dtype == (np.float32 if (dtype, exponent) == (np.float16, 2) else dtype)


def test_numbers_and_integers_alone_become_float64():
    for x in (2, True, [1, 2], np.arange(3), np.array([True]), np.float64(1), [0.5, 1]):
        assert mg.Tensor(x).dtype == np.float64
    assert mg.relu([1, -1]).dtype == mg.exp(1).dtype == np.float64
    assert mg.Tensor(np.float32(1)).dtype == np.float32
    assert mg.Tensor(Fraction(1, 2)).dtype == object


# ------------------------------------------------------------------------- two different dtypes

PAIRS = OPERATORS | {
    "@": lambda x, y: x @ y,
    "concatenate": lambda x, y: mg.concatenate([x, y]),
    "stack": lambda x, y: mg.stack([x, y]),
    "linear": lambda x, w: mg.linear(x, w),
    "linear, bias": lambda x, b: mg.linear(x, x, b[0]),
    "squared_error": mg.squared_error,
    "absolute_error": mg.absolute_error,
    "binary cross-entropy": mg.binary_cross_entropy_with_logits,
    "batch_norm, weight": lambda x, w: F.batch_norm(x, w[0], w[1], 1e-5),
    "batch_norm, bias": lambda x, b: F.batch_norm(x, x[0], b[0], 1e-5),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(
    ("a", "b"), list(itertools.permutations([np.float16, np.float64, object], 2))
)
def test_two_tensors_of_different_dtype_are_refused_and_both_named(name, a, b):
    x, y = (
        mg.Tensor(mg.fractions(np.eye(2)) if t is object else np.eye(2, dtype=t), True)
        for t in (a, b)
    )
    with pytest.raises(TypeError, match=r"astype") as error:
        PAIRS[name](x, y)
    assert str(x.dtype) in str(error.value)
    assert str(y.dtype) in str(error.value)


def test_astype_converts_and_the_gradient_comes_back_in_the_first_dtype():
    x, found = mg.Tensor(np.array([1.5, 2], np.float64), True), []
    y = arriving(x, found).astype(np.float32) * mg.Tensor(np.array([2, 3], np.float32))
    y.sum().backward()
    assert (y.dtype, found[0].dtype) == (np.float32, np.float64)
    np.testing.assert_array_equal(x.grad, [2, 3])


# ----------------------------------------------------------------------------- half precision


def test_long_sums_of_float16_do_not_stop_counting_or_overflow():
    x = mg.Tensor(np.ones((4096, 2), np.float16))  # a running sum in float16 stops at 2048
    bias = mg.Tensor(np.zeros(2, np.float16), True)
    np.testing.assert_array_equal(x.sum(axis=0).data, [4096, 4096])
    (x + bias).sum(axis=1).sum().backward()
    np.testing.assert_array_equal(bias.grad, [4096, 4096])
    weight = mg.Tensor(np.ones((2, 2), np.float16), True)
    mg.linear(x, weight, bias).sum(axis=1).sum().backward()
    np.testing.assert_array_equal(bias.grad, [8192, 8192])
    np.testing.assert_array_equal(weight.grad, np.full((2, 2), 4096))


def test_the_mean_of_float16_does_not_overflow_where_the_sum_would():
    assert mg.Tensor(np.full(3000, 32, np.float16)).mean().item() == 32  # the sum is 96,000


def test_the_loss_of_many_float16_outputs_does_not_overflow():
    logits = mg.Tensor(np.zeros((40_000, 8), np.float16), requires_grad=True)
    loss = mg.cross_entropy(logits, np.zeros(40_000, int)).mean()  # the sum is 83,178
    assert loss.item() == pytest.approx(np.log(8), rel=1e-3)
    values_ = mg.Tensor(np.full(3000, 8, np.float16), requires_grad=True)
    assert mg.squared_error(values_, np.zeros(3000)).mean().item() == 64  # the sum is 192,000


def test_gradients_of_repeated_rows_in_float16_do_not_stop_counting():
    weight = mg.Tensor(np.ones((2, 1), np.float16), True)
    mg.embedding(weight, np.zeros(4096, int)).sum().backward()
    np.testing.assert_array_equal(weight.grad, [[4096], [0]])
    weight.grad = None
    weight[np.zeros(4096, int)].sum().backward()
    np.testing.assert_array_equal(weight.grad, [[4096], [0]])


def test_the_gradient_of_a_float16_result_that_is_used_often_does_not_stop_counting():
    x = mg.Tensor(np.ones(2, np.float16), True)
    h = x * 1
    sum(((h * 1).sum() for _ in range(4096)), mg.Tensor(np.float16(0))).backward()
    assert x.grad.tolist() == [4096, 4096]  # added up in float16: 2048


def test_a_float16_parameter_adds_its_gradients_in_float32():
    p = mg.Tensor(np.ones(1, np.float16), True)
    for _ in range(3000):
        (p * 1).sum().backward()
    assert p.grad == [3000]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_weight_of_a_loss_is_summed_in_float64(dtype):
    tenth, x = np.full(40_000, 0.1, dtype), mg.Tensor(np.zeros((40_000, 1), dtype))
    labels = np.zeros(40_000, int)
    for loss in (
        mg.per_sample(x, tenth),
        mg.cross_entropy(x, labels, sample_weights=tenth),
        mg.cross_entropy(x, labels, class_weights=tenth[:1]),
    ):
        (term,) = loss.terms
        assert term.weight == pytest.approx(40_000 * tenth[0].item(), rel=1e-12)


def test_batchnorm_of_float16_has_the_statistics_of_the_float16_numbers():
    x = (40 + 20 * np.random.default_rng(0).standard_normal((4000, 1))).astype(np.float16)
    half, exact = (mg.BatchNorm(1, dtype=t)(x.astype(t)) for t in (np.float16, np.float64))
    np.testing.assert_allclose(half.data, exact.data, rtol=0, atol=1e-2)


# --------------------------------------------------------------------------------- Fractions


def has_a_float(array):
    """Whether an object array holds anything but exact numbers."""
    return not all(isinstance(value, Rational) for value in np.asarray(array).ravel())


@pytest.mark.parametrize("name", RATIONAL)
def test_a_rational_operation_is_exact_in_fractions(name):
    inputs = values(name, object)
    y, arrived, kept = run(ROWS[name], inputs)
    assert not any(has_a_float(a) for a in (y.data, *arrived, *kept))
    assert {a.dtype for a in (y.data, *kept)} == {np.dtype(object)}
    third = np.array(Fraction(1, 3))
    thirds, _, _ = run(ROWS[name], [x * third for x in inputs])
    assert not has_a_float(thirds.data)
    exact, _, gradients = run(ROWS[name], [x.astype(np.float64) for x in inputs])
    for ours, right in zip([y.data, *kept], [exact.data, *gradients]):
        np.testing.assert_allclose(ours.astype(np.float64), right, rtol=1e-14, atol=1e-14)


def linear(x):
    return mg.linear(x, mg.Tensor(mg.fractions([[1, 2], [0, 4]])))


UNARY = [
    mg.relu,
    lambda x: -x,
    lambda x: x / 3,
    lambda x: x**2,
    lambda x: x.T,
    lambda x: x[::-1],
    lambda x: x[[0, 0]],
    lambda x: x @ x,
    lambda x: mg.maximum(x, 0),
    lambda x: x - x.mean(),
    lambda x: x / mg.max(x),
    lambda x: mg.where([True, False], x, 1),
    linear,
    lambda x: mg.embedding(x, [0, 0]),
    lambda x: x * x.sum(axis=0),
    lambda x: mg.maximum(x, x.T),
    lambda x: mg.stack([x[0], x[1]]),
    lambda x: mg.concatenate([x[:1], x[:1]]),
    lambda x: x * mg.max(x, axis=0),
    lambda x: x * x[0, 0],
    lambda x: mg.absolute_error(x, 1 + 0 * x.data).sum() * x,
    lambda x: mg.squared_error(x, x.T).mean() + x,
    mg.Dropout(0.5),
    lambda x: (s := x.sum()) * s * x,
    lambda x: (s := mg.max(x)) / s + s * s * x,
]


@pytest.mark.parametrize("outer", range(len(UNARY)))
def test_no_two_rational_operations_in_a_row_make_a_float(outer):
    for inner in range(len(UNARY)):
        mg.manual_seed(0)  # dropout that leaves nothing would divide 0 by 0
        x = mg.Tensor(mg.fractions([[1, -0.5], [1, 2]]), True)
        y = UNARY[outer](UNARY[inner](x))
        y.backward(np.ones(y.shape))
        assert not has_a_float(y.data), (outer, inner)
        assert not has_a_float(x.grad), (outer, inner)


@pytest.mark.parametrize(
    "how",
    [
        lambda: mg.MLP(2, 3, 1, dtype=object),
        lambda: mg.MLP(2, 3, 1).astype(object),
        lambda: mg.Embedding(3, 2, dtype=object),
        lambda: mg.Embedding(3, 2).astype(object),
        lambda: mg.Linear(2, 2, bias=False, dtype=object),
    ],
)
def test_a_model_of_fractions_holds_fractions(how):
    for p in how().parameters():
        assert {type(value) for value in p.data.ravel()} <= {Fraction, int}


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_in_fractions_is_its_formula_with_the_hyperparameters_as_they_are(nesterov):
    p = mg.Tensor(mg.fractions([1, -2]), True)
    lr, momentum, decay = 0.1, 0.9, 0.01
    optimizer = mg.SGD([p], lr, momentum, nesterov, decay)
    x, v = [Fraction(1), Fraction(-2)], [Fraction(0)] * 2
    for update in range(3):
        p.grad = mg.fractions([Fraction(1, 3), update])
        optimizer.step()
        for i in range(2):
            g = [Fraction(1, 3), Fraction(update)][i] + Fraction(decay) * x[i]
            v[i] = Fraction(momentum) * v[i] + g
            step = g + Fraction(momentum) * v[i] if nesterov else v[i]
            x[i] -= Fraction(lr) * step
    assert p.data.tolist() == x
    for state in optimizer.state_dict().values():
        assert not has_a_float(state)


def test_sgd_takes_fractions_as_hyperparameters():
    p = mg.Tensor(mg.fractions([1]), True)
    p.grad = mg.fractions([1])
    mg.SGD([p], Fraction(1, 3)).step()
    assert p.data.tolist() == [Fraction(2, 3)]


def test_a_whole_update_in_fractions_is_exact():
    model = mg.Sequential(mg.Linear(2, 2, dtype=object), mg.ReLU(), mg.Dropout(0.5))
    optimizer = mg.SGD(model.parameters(), 0.1, 0.9)
    x, y = np.array([[1.0, 2], [3, 4], [0, 1]]), np.ones((3, 2))
    report = mg.train_step(model, mg.squared_error, optimizer, (x, y), micro_batch_size=2)
    assert report.updated
    assert not has_a_float(report.loss)
    for p in model.parameters():
        assert not has_a_float(p.data)


def test_a_loss_of_fractions_takes_a_fraction_as_its_coefficient():
    loss = mg.squared_error(mg.Tensor(mg.fractions([1, 2])), [0, 0])
    assert (Fraction(1, 3) * loss).sum().item() == Fraction(5, 3)
    assert (loss * Fraction(1, 3)).mean().item() == Fraction(5, 6)


def test_the_weight_average_of_fractions_is_exact():
    p = mg.Tensor(mg.fractions([1]), True)
    average = mg.WeightAverage([p], Fraction(2, 3))
    p.data = mg.fractions([4])
    average.update()
    assert average.values[0].tolist() == [2]


@pytest.mark.parametrize(
    ("who", "call"),
    [
        ("binary_cross_entropy_with_logits()", mg.binary_cross_entropy_with_logits),
        ("BatchNorm", lambda x, _: mg.BatchNorm(2, dtype=object)(x)),
    ],
)
def test_what_is_no_fraction_refuses_fractions_by_its_name(who, call):
    x = mg.Tensor(mg.fractions([[0, 1], [1, 0]]), True)
    with pytest.raises(TypeError, match=f"^{re.escape(who)} got Fractions, expected floats"):
        call(x, x.data)


def test_clipping_refuses_fractions_which_have_no_norm():
    p = mg.Tensor(mg.fractions([3, 4]), True)
    p.grad = mg.fractions([3, 4])
    with pytest.raises(TypeError, match="Fractions"):
        mg.clip_grad_norm([p], 1.0)
    assert p.grad.tolist() == [3, 4]


def test_converting_a_tensor_to_fractions_gives_fractions():
    x = mg.Tensor([0.5, 0.1], True)
    y = x.astype(object)
    assert y.data.tolist() == [Fraction(0.5), Fraction(0.1)]
    assert not has_a_float(y.data)
    y.sum().backward()
    assert x.grad.dtype == np.float64


def test_whole_numbers_in_an_object_array_are_exact_too():
    x = mg.Tensor(np.array([1, 2], dtype=object), requires_grad=True)
    y = x / mg.Tensor(np.array([3, 4], dtype=object)) + 1 / x
    y.backward([1, 1])
    assert y.data.tolist() == [Fraction(4, 3), 1]
    assert x.grad.tolist() == [Fraction(-2, 3), 0]
    assert not has_a_float(y.data)
    assert not has_a_float(x.grad)


def test_fractions_have_the_shape_and_the_values_of_what_they_were_made_from():
    for values_ in (1, 0.1, [1, 0.5], [[Fraction(1, 3)]], np.ones((2, 0)), np.array([[1, 2]])):
        exact = mg.fractions(values_)
        assert (exact.dtype, exact.shape) == (object, np.shape(values_))
        assert {type(v) for v in exact.ravel()} <= {Fraction}
        assert np.array_equal(exact, np.asarray(values_))
