"""The gradient checker is itself checked: a wrong gradient of any operation is caught, by name.

`planted` runs an operation on inputs of its own and puts it on the tape as one node, whose
pullback spoils the true gradient of one input. Unspoilt, the same construction passes.
"""

import numpy as np
import pytest

import minigrad as mg
from minigrad.tensor import record
from tests.operations import ROWS, leaves


def planted(run, i, spoil):
    """`run`, with the gradient of input i spoilt."""

    def f(*inputs):
        inner = [mg.Tensor(x.data, requires_grad=True) for x in inputs]
        y = run(*inner)

        def pullback(g):
            y.backward(g)
            gradients = [x.grad for x in inner]
            gradients[i] = spoil(gradients[i])
            return gradients

        return record(y.data, inputs, pullback)

    return f


def without(run, i):
    """`run`, which has forgotten that its result depends on input i."""
    return lambda *inputs: run(*inputs[:i], inputs[i].detach(), *inputs[i + 1 :])


def off_in_one_element(g):
    wrong = g.copy()
    wrong.flat[np.argmax(np.abs(g))] *= 1.01
    return wrong


SPOILS = {
    "scaled by 1.001": lambda g: 1.001 * g,
    "of the wrong sign": lambda g: -g,
    "zeroed": lambda g: 0 * g,
    "not finite": lambda g: g * np.nan,
    "1% off in one element": off_in_one_element,
    "rounded to float32": lambda g: g.astype(np.float32),
    "transposed": lambda g: g.T.reshape(g.shape),
}
INPUTS = [(name, i) for name, row in ROWS.items() for i in range(len(row.shapes))]
# To transpose is no error here: all elements have one gradient, or the only one stays in place.
TRANSPOSED = {"Tensor.sum", "Tensor.sum: all kept", "Tensor.mean", "per_sample", "max"}


def planted_errors():
    for name, i in INPUTS:
        shape = ROWS[name].shapes[i]
        for spoil in SPOILS:
            matrix = len(shape) == 2 and min(shape) > 1 and name not in TRANSPOSED
            if spoil != "transposed" or matrix:
                yield name, i, spoil


@pytest.mark.parametrize(("name", "i"), INPUTS)
def test_the_construction_alone_passes(name, i):
    mg.gradcheck(planted(ROWS[name].run, i, lambda g: g), *leaves(name))


@pytest.mark.parametrize(("name", "i", "spoil"), list(planted_errors()))
def test_a_spoilt_gradient_is_caught_and_its_input_named(name, i, spoil):
    with pytest.raises(AssertionError, match=rf"\binput {i}\b"):
        mg.gradcheck(planted(ROWS[name].run, i, SPOILS[spoil]), *leaves(name))


@pytest.mark.parametrize(("name", "i"), INPUTS)
def test_a_forgotten_input_is_caught_and_named(name, i):
    with pytest.raises(AssertionError, match=rf"\binput {i}\b"):
        mg.gradcheck(without(ROWS[name].run, i), *leaves(name))


def test_a_gradient_of_the_wrong_shape_is_caught():
    run = planted(lambda x: x * 2, 0, lambda g: g.sum(axis=0))
    with pytest.raises((AssertionError, ValueError)):
        mg.gradcheck(run, mg.Tensor(np.ones((2, 3)), True))


def test_a_gradient_that_is_right_only_at_first_order_of_the_tape_is_caught():
    """The second use of an input is forgotten: x * x with the gradient of one factor."""
    with pytest.raises(AssertionError, match="input 0"):
        mg.gradcheck(lambda x: x * x.detach(), mg.Tensor([0.5, 1.5], True))


GOOD = mg.Tensor([0.5, 1.5], True)
BAD_INPUTS = {
    "float32": ((mg.Tensor(np.float32([1, 2]), True),), "input 0 of float32, expected a float64"),
    "Fractions": (
        (mg.Tensor(mg.fractions([1, 2]), True),),
        "input 0 of object, expected a float64",
    ),
    "no gradient": ((GOOD, mg.Tensor([1.0])), "input 1 that requires no gradient, expected"),
    "no leaf": ((GOOD * 2,), "input 0 that was computed from others, expected a float64 leaf"),
    "an array": ((np.ones(2),), "input 0 that is a ndarray, expected a float64 leaf Tensor"),
    "a number": ((GOOD, 2.0), "input 1 that is a float, expected a float64 leaf Tensor"),
    "nothing": ((), "no inputs, expected one or more"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_an_input_that_cannot_be_checked_is_refused_and_no_operation_blamed(name):
    inputs, sentence = BAD_INPUTS[name]
    with pytest.raises(TypeError, match=sentence) as error:
        mg.gradcheck(lambda *inputs: mg.exp(sum(inputs, mg.Tensor(0.0))), *inputs)
    assert "; pass " in str(error.value)
    assert "\n" not in str(error.value)


def test_the_inputs_are_as_they_were_after_a_check_that_fails():
    x = mg.Tensor([0.5, 1.5], True)
    kept = x.data
    with pytest.raises(AssertionError):
        mg.gradcheck(planted(mg.exp, 0, lambda g: 2 * g), x)
    assert x.data is kept
    np.testing.assert_array_equal(x.data, [0.5, 1.5])
