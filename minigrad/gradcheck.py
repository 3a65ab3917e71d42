"""Is a gradient right? Compare it with differences of function values (as HIPS autograd does).

For y = f(x) and any weights c of the outputs, the slope of F(h) = c . f(x + h d) at 0 along d is
(8 F(h) - 8 F(-h) - F(2h) + F(-2h)) / 12h up to O(h^4): no gradient is needed to compute it. It must
equal grad . d. Random c and d make it all but impossible for a wrong gradient to pass.

Taught in lesson 02.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

TOLERANCE = 5e-10  # of the error, relative to the sizes of the gradient and of the direction
TRIALS = 3  # each with other weights and directions


def gradcheck(f: Callable[..., Any], *inputs: Any, seed: int = 0, step: float = 3e-4) -> float:
    """Check the gradient of f(*inputs) with respect to each input; returns the largest error.

    inputs: float64 leaf Tensors that require gradients. Errors are relative to the sizes of the
    gradient and of the direction. Every input needs a gradient of its own shape and dtype that is
    not zero: a zero gradient would agree with any f that ignores the input, or kills it; and, of
    random weights, it is never a float32 number throughout unless a dtype leaks.
    Raises AssertionError that names the input, with what was expected and found, and TypeError for
    inputs that cannot be checked.
    """
    if not inputs:
        raise TypeError("gradcheck() got no inputs, expected one or more; pass them after f")
    for i, x in enumerate(inputs):
        _check_input(i, x)
    rng = np.random.default_rng(seed)
    largest = 0.0
    for _ in range(TRIALS):
        for x in inputs:
            x.grad = None
        y = f(*inputs)
        weights = rng.standard_normal(y.data.shape)
        if y.requires_grad:
            y.backward(weights)
        for i, x in enumerate(inputs):
            _require(x.grad is not None, f"input {i} got no gradient, expected one")
            _require(
                x.grad.shape == x.data.shape and x.grad.dtype == x.data.dtype,
                f"the gradient of input {i} has shape {x.grad.shape} and dtype {x.grad.dtype}, "
                f"expected {x.data.shape} and {x.data.dtype}",
            )
            direction = rng.standard_normal(x.data.shape)
            found = float(np.sum(x.grad * direction))
            expected = _slope(f, inputs, i, weights, direction, step)
            size = float(np.linalg.norm(x.grad) * np.linalg.norm(direction))
            _require(size != 0, f"the gradient of input {i} is zero: the check would prove nothing")
            narrow = np.array_equal(x.grad.astype(np.float32), x.grad)
            _require(not narrow, f"the gradient of input {i} was rounded to float32 on its way")
            error = abs(found - expected) / size
            _require(
                error <= TOLERANCE,
                f"input {i}: the slope along a random direction is {expected:.9g} by differences "
                f"but {found:.9g} by the gradient, an error of {error:.1e} of its size",
            )
            largest = max(largest, error)
    return largest


def _check_input(i: int, x: Any) -> None:
    """Refuse what no difference of function values can tell of."""
    if not hasattr(x, "requires_grad"):
        given = f"that is a {type(x).__name__}"
    elif x.data.dtype != np.float64:
        given = f"of {x.data.dtype}"
    elif not x.requires_grad:
        given = "that requires no gradient"
    elif x.node is not None:
        given = "that was computed from others"
    else:
        return
    raise TypeError(
        f"gradcheck() got input {i} {given}, expected a float64 leaf Tensor that requires a "
        "gradient; pass mg.Tensor(x.astype(np.float64), requires_grad=True) of an array x"
    )


def _slope(f: Any, inputs: Any, i: int, weights: Any, direction: Any, step: float) -> float:
    """The fourth-order central difference of weights . f along `direction` of input i."""
    kept = inputs[i].data
    total = 0.0
    try:
        for h, factor in ((step, 8), (-step, -8), (2 * step, -1), (-2 * step, 1)):
            inputs[i].data = kept + h * direction
            total += factor * float(np.sum(weights * f(*inputs).data))
    finally:
        inputs[i].data = kept
    return total / (12 * step)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)
