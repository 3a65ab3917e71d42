"""Every operation that is not an operator of Tensor: the forward line, then its pullback.

`record(y, parents, pullback)` puts an operation on the tape; `g` is always the gradient of the
result, and a pullback returns one gradient per parent. Sorted by complexity: elementwise functions,
reductions, joining and looking up, and last the fused operations, whose closed-form gradients are
derived in their docstrings and held against the composition of simple operations by a test.

Taught in lesson 03.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.arrays import (
    check_below,
    constant,
    filled,
    gradient_dtype,
    integers,
    plain,
    refuse_fractions,
    same_sum,
    shape_error,
    wide_sum,
)
from minigrad.tensor import Tensor, record


def as_tensor(x: Any, like: Tensor | None = None) -> Tensor:
    """`x` itself if it is a Tensor, else a constant Tensor, of the dtype and device of `like`."""
    if like is None:
        return x if isinstance(x, Tensor) else Tensor(x)
    return like.operand(x if isinstance(x, Tensor) else plain(x))


def inexact(x: Any, who: str) -> Tensor:
    """`as_tensor(x)` for a function whose values are no fractions: it refuses Fractions."""
    x = as_tensor(x)
    refuse_fractions(who, (x.data,), "use .astype(np.float64)")
    return x


# ------------------------------------------------------------------------------- elementwise


def exp(x: Any) -> Tensor:
    """e to the x, elementwise. Shape (...) -> (...)."""
    x = inexact(x, "exp()")
    y = np.exp(x.data)
    return record(y, (x,), lambda g: (g * y,))


def log(x: Any) -> Tensor:
    """Natural logarithm, elementwise. Shape (...) -> (...)."""
    x = inexact(x, "log()")
    data = x.data
    return record(np.log(data), (x,), lambda g: (g / data,))


def sqrt(x: Any) -> Tensor:
    """Square root, elementwise. Shape (...) -> (...)."""
    x = inexact(x, "sqrt()")
    y = np.sqrt(x.data)
    return record(y, (x,), lambda g: (g / (y + y),))


def tanh(x: Any) -> Tensor:
    """Hyperbolic tangent, elementwise. Shape (...) -> (...)."""
    x = inexact(x, "tanh()")
    y = np.tanh(x.data)
    return record(y, (x,), lambda g: (g * (1 - y * y),))


def sigmoid(x: Any) -> Tensor:
    """1 / (1 + exp(-x)), elementwise, without overflow. Shape (...) -> (...)."""
    x = inexact(x, "sigmoid()")
    y = logistic(x.data)
    return record(y, (x,), lambda g: (g * y * (1 - y),))


def logistic(z: Any) -> Any:
    """1 / (1 + exp(-z)) of an array."""
    e = np.exp(-np.abs(z))  # in (0, 1], whatever the sign of z
    return np.where(z >= 0, 1, e) / (1 + e)


def relu(x: Any) -> Tensor:
    """max(x, 0), elementwise; the gradient at 0 is 0. Shape (...) -> (...)."""
    x = as_tensor(x)
    zeros = filled(x.data, 0)  # an array, since NumPy has no vector code for the number 0
    y = np.maximum(x.data, zeros, out=zeros)
    return record(y, (x,), lambda g: (g * (y > 0),))


def maximum(x: Any, y: Any) -> Tensor:
    """The larger of x and y, elementwise with broadcasting; equal ones share the gradient."""
    x, y = _pair(x, y)
    a, b = x.data, y.data
    half = constant(0.5, a if hasattr(a, "dtype") else b)
    share = lambda g, mine, its: g * (mine > its) + g * (mine == its) * half  # noqa: E731
    return record(np.maximum(a, b), (x, y), lambda g: (share(g, a, b), share(g, b, a)))


def where(condition: Any, x: Any, y: Any) -> Tensor:
    """x where the boolean array `condition` is true, else y; all three broadcast."""
    x, y = _pair(x, y)
    like = x.data if hasattr(x.data, "dtype") else y.data
    chosen = np.asarray(plain(condition, "where()"), dtype=bool, like=like)
    z = np.where(chosen, x.data, y.data)
    # A product with the mask would turn a NaN in the branch not taken into a NaN gradient.
    zero = constant(0, z)
    return record(z, (x, y), lambda g: (np.where(chosen, g, zero), np.where(chosen, zero, g)))


def _pair(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Two operands of one dtype, of which at least one is a Tensor or an array."""
    if isinstance(y, Tensor) and not isinstance(x, Tensor):
        return y.operand(x), y
    x = as_tensor(x)
    return x, x.operand(y)


# -------------------------------------------------------------------------------- reductions


def max(x: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The largest element over `axis` (all if None); equal ones share the gradient."""
    x = as_tensor(x)
    data = x.data
    top = np.max(data, axis=axis, keepdims=True)

    def pullback(g: Any) -> tuple:
        if axis is not None and not keepdims:
            g = np.expand_dims(g, axis)
        tops = constant(data == top, data)
        return (g * (tops / same_sum(tops, axis, keepdims=True)),)

    y = top if keepdims else np.max(data, axis=axis)
    return record(y, (x,), pullback)


def logsumexp(x: Any, axis: int = -1, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over `axis`, without overflow: the maximum is taken out of the sum."""
    x = inexact(x, "logsumexp()")
    top = np.max(x.data, axis=axis, keepdims=True)
    e = np.exp(x.data - top)
    total = same_sum(e, axis, keepdims=True)
    y = np.log(total) + top
    softmax = e / total

    def pullback(g: Any) -> tuple:
        return ((g if keepdims else np.expand_dims(g, axis)) * softmax,)

    return record(y if keepdims else np.squeeze(y, axis), (x,), pullback)


def log_softmax(x: Any, axis: int = -1) -> Tensor:
    """x - logsumexp(x) over `axis`: logarithms of probabilities. Shape (...) -> (...)."""
    x = inexact(x, "log_softmax()")
    shifted = x.data - np.max(x.data, axis=axis, keepdims=True)
    y = shifted - np.log(same_sum(np.exp(shifted), axis, keepdims=True))
    return record(y, (x,), lambda g: (g - np.exp(y) * same_sum(g, axis, keepdims=True),))


# ------------------------------------------------------------------- joining and looking up


def concatenate(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors one after the other along `axis`."""
    tensors = _one_dtype(tensors)
    ends = np.cumsum([t.shape[axis] for t in tensors])[:-1].tolist()
    y = np.concatenate([t.data for t in tensors], axis=axis)
    return record(y, tensors, lambda g: np.split(g, ends, axis=axis))


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors, all of one shape, side by side along a new `axis`."""
    tensors = _one_dtype(tensors)
    y, places = np.stack([t.data for t in tensors], axis=axis), range(len(tensors))
    return record(y, tensors, lambda g: [np.take(g, i, axis=axis) for i in places])


def _one_dtype(tensors: Sequence[Any]) -> list[Tensor]:
    if not len(tensors):
        raise ValueError("joining got no tensors, expected at least one")
    first = next((t for t in tensors if isinstance(t, Tensor)), None)
    return [as_tensor(t, like=first) for t in tensors]


def embedding(weight: Tensor, indices: Any) -> Tensor:
    """Rows of `weight` (rows, d) at integer `indices` (...) -> (..., d); repeated rows add up.

    Raises IndexError for an index outside the table, where it lies on the host.
    """
    indices = integers(indices, "embedding() indices")
    indices = check_below(indices, weight.shape[0], "embedding() got index", "rows")
    indices, shape = np.asarray(indices, like=weight.data), weight.shape

    def pullback(g: Any) -> tuple:
        rows = filled(g, 0, shape, gradient_dtype(g))
        np.add.at(rows, indices, g)
        return (rows,)

    return record(weight.data[indices], (weight,), pullback)


# ----------------------------------------------------------------------------------- fused


def linear(x: Any, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight + bias. Shapes (..., inputs), (inputs, outputs), (outputs,) -> (..., outputs).

    All axes of x but the last are samples. For y = x W + b, the loss changes by
    sum_i g_i . (dx_i W + x_i dW + db), so that dx = g W^T, dW = x^T g = sum_i x_i g_i^T and
    db = sum_i g_i: the gradients of the parameters are sums over the samples.
    """
    x = as_tensor(x, like=weight)
    W, rows = weight.data, x.data
    if W.ndim != 2:
        raise shape_error("linear() weight", W.shape, "(inputs, outputs)")
    (inputs, outputs), shape = W.shape, rows.shape
    if bias is not None and bias.data.shape != (outputs,):
        raise shape_error("linear() bias", bias.data.shape, f"({outputs},)")
    if not shape or shape[-1] != inputs:
        expected = f"(..., {inputs}): the last axis must be the first of the weight {weight.shape}"
        raise shape_error("linear()", shape, expected)
    if len(shape) != 2:
        rows = rows.reshape(-1, inputs)
    y = rows @ W
    if bias is not None:
        y += weight.operand(bias).data
    if len(shape) != 2:
        y = y.reshape(*shape[:-1], outputs)

    def pullback(g: Any) -> tuple:
        g = g if len(shape) == 2 else g.reshape(-1, outputs)
        product = np.multiply if len(g) == 1 else np.matmul  # no sum, no product of matrices
        dx = lambda out: g @ W.T if len(shape) == 2 else (g @ W.T).reshape(shape)  # noqa: E731
        wide = {"dtype": gradient_dtype(g)} if gradient_dtype(g) != g.dtype else {}
        dW = lambda out: product(rows.T, g, out=out, **wide)  # noqa: E731
        return (dx, dW) if bias is None else (dx, dW, wide_sum(g, 0))

    return record(y, (x, weight) if bias is None else (x, weight, bias), pullback)


def standardize(x: Any, axis: int | tuple[int, ...], eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) over `axis`, the biased variance. Shape (...) -> (...).

    With n terms, r = 1/sqrt(var + eps) and y = (x - mu) r: the projections on 1 and on y are
    removed from the gradient, dx = r (g - sum(g)/n - y sum(g y)/n) (Ioffe & Szegedy 2015).
    """
    x = inexact(x, "standardize()")
    data = x.data.astype(gradient_dtype(x.data), copy=False)  # float16 would overflow
    centred = data - data.mean(axis=axis, keepdims=True)
    r = 1 / np.sqrt((centred * centred).mean(axis=axis, keepdims=True) + eps)
    y = centred * r

    def pullback(g: Any) -> tuple:
        along = (g * y).mean(axis=axis, keepdims=True)
        return (r * (g - g.mean(axis=axis, keepdims=True) - y * along),)

    return record(y.astype(x.dtype, copy=False), (x,), pullback)


def batch_norm(x: Any, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Any, Any]:
    """Standardize each column of x (n, c) over its n rows, times `weight` (c,) plus `bias` (c,).

    Returns the result (n, c), the mean (c,) and the sum of squared deviations (c,).
    The gradient is that of `standardize`, whose two sums are those of the parameters:
    dweight = sum(g y), dbias = sum(g), dx = weight r (g - dbias/n - y dweight/n), where y is
    standardized: y = r (x - mean), and r is multiplied with vectors (c,), not with arrays (n, c).
    """
    x = as_tensor(x, like=weight)
    n, dtype, gamma, beta = len(x.data), x.dtype, weight.data, weight.operand(bias).data
    # The mean is added up in float64: in float32 many rows far from 0 lose what makes them differ.
    mean = np.mean(x.data, 0, np.float64).astype(gradient_dtype(x.data))  # and all that follows
    centred = x.data - mean
    squares = np.einsum("ij,ij->j", centred, centred)
    r = 1 / np.sqrt(squares / n + eps)
    scale = gamma * r

    def pullback(g: Any) -> tuple:
        dweight, dbias = np.einsum("ij,ij->j", g, centred) * r, wide_sum(g, 0)
        dx = centred * (dweight * r / -n)
        dx += g
        dx -= dbias / n
        dx *= scale
        return dx, dweight, dbias

    y = centred * scale
    y += beta
    return record(y.astype(dtype, copy=False), (x, weight, bias), pullback), mean, squares


def rescale(x: Tensor, mean: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """(x - mean) scale + bias, with x (n, c) and vectors (c,), of which each may want a gradient.

    dx = scale g, dmean = -scale sum(g), dscale = sum(g (x - mean)), dbias = sum(g).
    """
    a, centred = scale.data, x.data - mean.data

    def pullback(g: Any) -> tuple:  # of which each is computed where it is wanted
        dx, dbias = lambda out: g * a, lambda out: wide_sum(g, 0)
        return dx, lambda out: -a * dbias(out), lambda out: wide_sum(g * centred, 0), dbias

    return record(centred * a + bias.data, (x, mean, scale, bias), pullback)
