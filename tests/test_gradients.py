"""Every gradient is the slope: each operation, loss and layer against differences, each input.

The table is in operations.py. Each fused operation is also held against the simple operations that
it replaces, and indexing and broadcasting are tried with any index and shape.
"""

import inspect
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import minigrad as mg
from minigrad import batchnorm, layers, losses, normalization
from minigrad import functions as F
from minigrad.tensor import Tensor
from tests.operations import CLASS_WEIGHTS, LABELS, LAYERS, ROWS, layer, leaves

# Members of Tensor and functions that return one, but put nothing on the tape of their own.
NO_OPERATIONS = {
    "Tensor.detach",
    "Tensor.operand",
    "Tensor.__iter__",
    "as_tensor",
    "check_loss",
    "inexact",
    "logistic",
}
CONTAINERS = {"Module", "Sequential"}
ELSEWHERE = {"Dropout", "Embedding"}  # checked below, with a fixed mask and with integers


def public(module, kind):
    return {
        name: value
        for name, value in inspect.getmembers(module, kind)
        if value.__module__ == module.__name__ and not name.startswith("_")
    }


def gives_a_tensor(function):
    """Whether a function is annotated to return a Tensor or a Loss, or not annotated at all."""
    returned = inspect.signature(function).return_annotation
    return returned is inspect.Signature.empty or "Tensor" in returned or returned == "Loss"


def functions_that_need_a_row():
    """{name: function} of all operators and methods of Tensor, operations and losses."""
    members = {f"Tensor.{n}": getattr(m, "fget", m) for n, m in vars(Tensor).items()}
    found = {
        n: m
        for n, m in members.items()
        if inspect.isfunction(m) and "._" not in n.replace(".__", "")
    }
    found |= public(F, inspect.isfunction) | public(losses, inspect.isfunction)
    return {n: f for n, f in found.items() if gives_a_tensor(f) and n not in NO_OPERATIONS}


def test_every_operation_and_loss_has_a_row():
    assert {name.split(":")[0] for name in ROWS} == functions_that_need_a_row().keys()


def test_every_layer_has_a_row():
    homes = layers, normalization, batchnorm
    classes = {name: c for home in homes for name, c in public(home, inspect.isclass).items()}
    modules = {name for name, c in classes.items() if issubclass(c, mg.Module)}
    assert {name.split(":")[0] for name in LAYERS} | ELSEWHERE == modules - CONTAINERS


@pytest.mark.parametrize("name", ROWS)
def test_a_row_runs_what_it_names(name):
    wanted = functions_that_need_a_row()[name.split(":")[0]].__code__
    codes, inputs = set(), leaves(name)
    sys.setprofile(lambda frame, event, _: codes.add(frame.f_code) if event == "call" else None)
    try:
        ROWS[name].run(*inputs)
    finally:
        sys.setprofile(None)
    assert wanted in codes


@pytest.mark.parametrize("name", ROWS)
def test_the_gradient_of_each_input_is_the_slope(name):
    assert mg.gradcheck(ROWS[name].run, *leaves(name)) < 1e-8


@pytest.mark.parametrize("name", LAYERS)
def test_the_gradients_of_a_layer_are_the_slopes(name):
    module, x = layer(name)
    mg.gradcheck(lambda x, *_: module(x), mg.Tensor(x, True), *module.parameters())


def test_the_gradients_of_batchnorm_in_evaluation_are_the_slopes():
    module, x = layer("BatchNorm")
    module.running_mean, module.running_var = x[0], x[1] ** 2 + 1
    module.eval()
    mg.gradcheck(lambda x, *_: module(x), mg.Tensor(x, True), *module.parameters())


def test_the_gradient_of_embedding_is_the_slope():
    module = mg.Embedding(3, 2, rng=np.random.default_rng(0), dtype=np.float64)
    mg.gradcheck(lambda w: module(np.array([0, 2, 1, 2])), module.weight)


def test_the_gradient_of_dropout_is_the_slope_with_the_same_mask():
    dropout = mg.Dropout(0.4)

    def f(x):
        with mg.drawing(mg.Samples(0, 0, 0, 4, dropout.modules)):
            return dropout(x)

    mg.gradcheck(f, mg.Tensor(np.ones((4, 5)), True))


def test_a_gradient_of_several_paths_is_their_sum():
    x = mg.Tensor([0.3, -0.7], True)
    mg.gradcheck(lambda x: mg.exp(x) * x + mg.tanh(x * x.sum()) / mg.exp(x[0]), x)


def test_where_gives_the_branch_not_taken_a_gradient_of_zero_even_of_a_nan():
    x, y = mg.Tensor(np.ones(3), True), mg.Tensor(np.ones(3), True)
    mg.where([True, False, True], x, y).backward([np.nan, np.inf, 2])
    np.testing.assert_array_equal(x.grad, [np.nan, 0, 2])
    np.testing.assert_array_equal(y.grad, [0, np.inf, 0])


# --------------------------------------------------------------- fused against simple operations


def softmax_cross_entropy(z):
    return -(mg.log_softmax(z)[np.arange(4), LABELS]).sum()


def smoothed_cross_entropy(z):
    target = 0.8 * np.eye(3)[LABELS] + 0.2 / 3
    return -(mg.log_softmax(z) * (target * CLASS_WEIGHTS)).sum()


def batch_norm(x, w, b):
    centred = x - x.mean(axis=0)
    return centred / mg.sqrt((centred * centred).mean(axis=0) + 1e-3) * w + b


def standardize(x):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / mg.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-3)


FUSED = {
    "linear": (mg.linear, lambda x, w, b: x @ w + b, [(5, 3), (3, 2), (2,)]),
    "linear, three axes": (mg.linear, lambda x, w, b: x @ w + b, [(4, 5, 3), (3, 2), (2,)]),
    "linear, one sample": (mg.linear, lambda x, w, b: x @ w + b, [(1, 3), (3, 2), (2,)]),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, w, b, 1e-3)[0],
        batch_norm,
        [(6, 3), (3,), (3,)],
    ),
    "standardize": (lambda x: F.standardize(x, -1, 1e-3), standardize, [(4, 5)]),
    "cross-entropy": (lambda z: mg.cross_entropy(z, LABELS).sum(), softmax_cross_entropy, [(4, 3)]),
    "cross-entropy, smoothed and weighted": (
        lambda z: mg.cross_entropy(
            z, LABELS, class_weights=CLASS_WEIGHTS, label_smoothing=0.2
        ).sum(),
        smoothed_cross_entropy,
        [(4, 3)],
    ),
    "log-softmax": (mg.log_softmax, lambda x: x - mg.log(mg.exp(x).sum(-1, True)), [(4, 3)]),
    "logsumexp": (mg.logsumexp, lambda x: mg.log(mg.exp(x).sum(-1)), [(4, 3)]),
    "sigmoid": (mg.sigmoid, lambda x: 1 / (1 + mg.exp(-x)), [(4, 3)]),
    "BCE with logits": (
        lambda z: mg.binary_cross_entropy_with_logits(z, np.eye(3)).sum(),
        lambda z: (
            -(np.eye(3) * mg.log(mg.sigmoid(z)) + (1 - np.eye(3)) * mg.log(1 - mg.sigmoid(z))).sum()
        ),
        [(3, 3)],
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_operation_is_its_composition_to_rounding(name):
    fused, simple, shapes = FUSED[name]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape) for shape in shapes]
    weights, found = None, []
    for f in (fused, simple):
        tensors = [mg.Tensor(x, True) for x in inputs]
        y = f(*tensors)
        weights = rng.standard_normal(y.shape) if weights is None else weights
        y.backward(weights)
        found.append([y.data, *(t.grad for t in tensors)])
    for ours, simple_ in zip(*found):
        np.testing.assert_allclose(ours, simple_, rtol=0, atol=1e-14 * np.abs(simple_).max())


# ------------------------------------------------------------------------- any shape, any index


@settings(max_examples=60)
@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=3), st.data())
def test_any_two_shapes_that_broadcast_get_gradients_of_their_own_shape(shapes, data):
    f = data.draw(
        st.sampled_from(
            [
                lambda x, y: x * y,
                lambda x, y: x / y,
                lambda x, y: x - y,
                lambda x, y: mg.where(x.data + y.data > 0, x, y),
                lambda x, y: mg.maximum(x, 2 * y),
            ]
        )
    )
    x, y = (
        mg.Tensor(np.random.default_rng(i).uniform(1, 2, shape), True)
        for i, shape in enumerate(shapes.input_shapes)
    )
    z = f(x, y)
    z.backward(np.full(z.shape, 2.0))
    assert (x.grad.shape, y.grad.shape) == shapes.input_shapes
    whole = [mg.Tensor(np.broadcast_to(t.data, z.shape).copy(), True) for t in (x, y)]
    f(*whole).backward(np.full(z.shape, 2.0))
    for small, large in zip((x, y), whole):
        np.testing.assert_allclose(small.grad.sum(), large.grad.sum(), rtol=1e-13, atol=1e-13)


indices = st.one_of(
    hnp.basic_indices((3, 4, 2), allow_newaxis=True),
    hnp.integer_array_indices((3, 4, 2)),
    hnp.arrays(bool, (3, 4)),
    st.tuples(st.lists(st.integers(-3, 2), min_size=1), st.integers(0, 3)),
    st.tuples(st.lists(st.integers(-3, 2), min_size=1).map(tuple), st.just(slice(None))),
)


@settings(max_examples=200)
@given(indices)
def test_the_gradient_of_any_index_counts_how_often_an_element_was_taken(index):
    x = mg.Tensor(np.zeros((3, 4, 2)), True)
    y = x[index]
    g = np.arange(1.0, 1 + y.data.size).reshape(y.shape)
    y.backward(g)
    places = np.arange(24).reshape(3, 4, 2)[index]
    counts = np.bincount(np.ravel(places), np.ravel(g), minlength=24)
    np.testing.assert_array_equal(x.grad, counts.reshape(3, 4, 2))
