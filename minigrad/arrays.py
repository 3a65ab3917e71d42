"""What minigrad asks of an array: real numbers, one dtype throughout, and sums that count.

float32 stays float32 and float64 stays float64 through every operation, `Fraction`s in object
arrays stay exact, and float16 is added up in float32. Arrays may lie on any device that answers
NumPy's calls. To read a number back from a GPU makes the program *wait* for it, so that values are
looked at on the host, or not at all. Skip this file at first: the story begins in tensor.py.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable
from fractions import Fraction
from numbers import Rational
from typing import Any

import numpy as np


def fractions(values: Any) -> np.ndarray:
    """The same numbers as exact `Fraction`s, in an object array of the same shape."""
    values = np.asarray(values)
    exact = [Fraction(value) for value in values.astype(object).ravel()]
    return np.array(exact, dtype=object).reshape(values.shape)


def plain(values: Any, what: str = "Tensor()") -> Any:
    """`values` as an array, on the device where they are. Raises TypeError if they are a Tensor."""
    if _is_tensor(values):
        raise TypeError(f"{what} got a Tensor, expected an array or numbers; pass its .data")
    near = isinstance(values, np.generic) or not hasattr(values, "dtype")
    return np.asarray(values) if near else values


def real(values: Any) -> Any:
    """`values` as a float or object array; integers become float64."""
    values = plain(values)
    if values.dtype.kind in "iub":
        values = values.astype(np.float64)
    if not _are_real(values):
        what = f"Tensor() got {reprlib.repr(values.tolist())} of dtype {values.dtype}"
        raise TypeError(f"{what}, expected real numbers; use .astype, or mg.fractions")
    return fractions(values) if values.dtype == object else values


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "requires_grad")


def _are_real(values: Any) -> bool:
    exact = values.dtype == object and all(isinstance(v, Rational) for v in values.flat)
    return exact or values.dtype.kind in "biuf"


def refuse_fractions(who: str, arrays: Iterable[Any], instead: str) -> None:
    """Raise TypeError if one of the arrays holds Fractions, for roots and exponentials."""
    if any(array.dtype == object for array in arrays):
        what = f"{who} got Fractions, expected floats, for what it computes is no fraction"
        raise TypeError(f"{what}; {instead}")


def constant(value: Any, like: Any) -> Any:
    """`value`, no Tensor, as a number or array that does not change the dtype of `like`."""
    exact = like.dtype == object
    if type(value) in (int, float) and not exact:
        return value  # a Python number is weak: float32 stays float32
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (int, float, Fraction)):
        weak = float(value) if isinstance(value, Fraction) else value
        return Fraction(value) if exact else weak
    given = value if hasattr(value, "dtype") else np.asarray(value)
    if _is_tensor(value) or not _are_real(given):
        what = f"a Tensor met a {type(value).__name__} of dtype {given.dtype}"
        raise TypeError(f"{what}, expected a Tensor, a real number or an array of such")
    if exact:
        return fractions(value)
    return np.asarray(value, dtype=like.dtype, like=like)


def convert(values: Any, dtype: Any) -> Any:
    """`values` in another dtype; object means `Fraction`s."""
    values = plain(values)
    return fractions(values) if np.dtype(dtype) == object else values.astype(dtype)


def filled(like: Any, value: Any, shape: Any = None, dtype: Any = None) -> Any:
    """An array full of a number, exact among Fractions, of the shape and dtype of `like`."""
    array = np.empty_like(like, shape=shape, dtype=dtype)
    array[...] = constant(value, like)
    return array


def shape_error(who: str, given: Any, expected: str) -> ValueError:
    """The error for an array that does not fit."""
    return ValueError(f"{who} got shape {given}, expected {expected}")


def wide_sum(values: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The sum in the dtype of `values`, but in float32 for float16, which would stop counting."""
    total = np.add.reduce(values, axis, gradient_dtype(values), None, keepdims)
    return total if hasattr(total, "shape") else np.array(total, dtype=object)


def same_sum(values: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """`wide_sum`, rounded to the dtype of `values`."""
    return wide_sum(values, axis, keepdims).astype(values.dtype, copy=False)


def gradient_dtype(values: Any) -> Any:
    """The dtype in which to add up: that of `values`, but float32 for float16."""
    return np.float32 if values.dtype == np.float16 else values.dtype


def sum_to(gradient: Any, shape: tuple[int, ...]) -> Any:
    """Sum `gradient` over the axes along which an operand of this shape was broadcast."""
    if getattr(gradient, "shape", None) == shape:
        return gradient
    if not hasattr(gradient, "shape"):  # a bare Fraction, from arrays without axes
        return np.array(gradient, dtype=object)
    new = gradient.ndim - len(shape)
    found = gradient.shape[new:]
    stretched = [new + i for i, n in enumerate(shape) if n == 1 and found[i] != 1]
    summed = wide_sum(gradient, (*range(new), *stretched), keepdims=True)
    if summed.shape[new:] != shape:
        raise shape_error("a pullback's gradient", gradient.shape, f"one that broadcasts {shape}")
    return summed.reshape(shape)


def fetch(values: list[Any]) -> list[Any]:
    """The values as Python numbers; those on a device come in one copy, with one wait."""
    near = (int, float, np.generic, np.ndarray, type(None), Fraction)
    far = [v for v in values if not isinstance(v, near)]
    if far:
        packed = np.empty_like(far[0], shape=len(far), dtype=np.float64)
        for i, value in enumerate(far):
            packed[i] = value
        read = iter(packed.tolist())
        values = [v if isinstance(v, near) else next(read) for v in values]
    return [v.item() if isinstance(v, (np.generic, np.ndarray)) else v for v in values]


def squared_norm(gradients: Iterable[Any]) -> Any:
    """The sum of the squares of all elements, as a number or array of one element: no wait."""
    return sum(np.vdot(g, g) for g in gradients)


def root(square: float, gradients: list[Any]) -> float:
    """The square root; a square that overflowed, or all but vanished, is computed again."""
    # Below 1e-30 a float32 square may have lost squares of less than its smallest normal, 1e-38.
    if 1e-30 < square < math.inf or math.isnan(square) or not gradients:
        return math.sqrt(square)
    largest = max((float(np.max(np.abs(g))) for g in gradients if g.size), default=0.0)
    if not 0 < largest < math.inf:
        return largest
    return largest * math.sqrt(squared_norm(g.astype(np.float64) / largest for g in gradients))


def integers(values: Any, what: str) -> Any:
    """`values` as an array of integers. Raises TypeError if they are none."""
    values = plain(values, what)
    if values.dtype.kind not in "iu":
        what = f"{what} have dtype {values.dtype}"
        raise TypeError(f"{what}, expected integers; use .astype(int)")
    return values


def check_below(values: Any, bound: int, what: str, of: str) -> Any:
    """`values` if all are in [0, bound). On a GPU they are trusted: a look would wait."""
    if isinstance(values, np.ndarray) and values.size and not all_below(values, bound):
        low, high = values.min(), values.max()
        wrong = low if low < 0 else high
        raise IndexError(f"{what} {wrong}, expected 0 to {bound - 1}, one of {bound} {of}")
    return values


def all_below(values: np.ndarray, bound: int) -> bool:
    """0 <= values < bound. Read as unsigned, a negative integer is a huge one: one look serves."""
    return bool(values.astype(np.uint64).max() < bound)


def load_arrays(arrays: dict[str, Any], state: dict[str, Any]) -> None:
    """Copy the arrays of `state` into those of the same names, all or none.

    Raises KeyError for missing or unexpected names, ValueError for a shape that does not fit.
    """
    missing, unexpected = sorted(arrays.keys() - state), sorted(state.keys() - arrays)
    if missing or unexpected:
        what = f"load_state_dict() misses {missing} and does not know {unexpected}"
        raise KeyError(f"{what}; load what a model or optimizer of the same kind has saved")
    for name, array in arrays.items():
        if np.shape(state[name]) != array.shape:
            raise shape_error(f"load_state_dict() {name}", np.shape(state[name]), f"{array.shape}")
    new = [np.array(constant(state[name], a), like=a) for name, a in arrays.items()]
    for array, values in zip(arrays.values(), new, strict=True):
        array[...] = values
