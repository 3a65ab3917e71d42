"""Losses: sums that know how much they weigh.

A mean cannot be accumulated: the mean of the means of uneven parts is not the mean of the whole.
A sum S can, and so can its weight W. A `Loss` therefore keeps both apart, and at the end of the
window (the micro-batches that make one update, see accumulation.py) the gradient of S is divided by
W, once. W comes from targets and masks, never from parameters: then grad(S / W) is grad(S) / W.

The losses of the last section are no sum over samples: they look at a whole batch, all at once.

Taught in lesson 03, lesson 05 and, for the last section, lesson 08.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from minigrad.arrays import (
    all_below,
    check_below,
    filled,
    gradient_dtype,
    integers,
    plain,
    same_sum,
    shape_error,
    wide_sum,
)
from minigrad.functions import as_tensor, inexact, logistic, where
from minigrad.tensor import Tensor, record

BATCH = "batch"  # the unit of a loss that looks at all samples of a batch at once
WINDOW = "window"  # the unit of a term that does not depend on data: it counts once a window


@dataclass(slots=True)
class Term:
    """coefficient * total, a sum over units (samples, tokens, ...) that weighs `weight`.

    total: a Tensor of one element. weight: a number, or an array of one element on a device.
    """

    unit: str
    coefficient: Any
    total: Tensor
    weight: Any

    def seed(self) -> Any:
        """What `backward` starts with: the derivative of the loss by `total`."""
        return filled(self.total.data, self.coefficient)


class Loss:
    """A sum of terms, at most one per unit. `a + b` joins the terms, `c * loss` scales them."""

    __slots__ = ("terms",)

    def __init__(self, terms: list[Term]) -> None:
        self.terms = terms

    def mean(self) -> Tensor:
        """Each term divided by its weight, added up: for showing and for loops by hand."""
        return self._combine(lambda term: term.total / nonzero(term.weight))

    def sum(self) -> Tensor:
        """The terms added up, not divided."""
        return self._combine(lambda term: term.total)

    def backward(self) -> None:
        """A Loss is not divided yet: `.mean().backward()`, or `.sum().backward()`."""
        what = "backward() was called on a Loss, expected a Tensor: .mean().backward()"
        raise TypeError(f"{what}, or .sum().backward() where all is divided later")

    def _combine(self, value: Any) -> Tensor:
        first, *others = (t.coefficient * value(t) for t in self.terms)
        return sum(others, first)

    def __add__(self, other: Any) -> Loss:
        if not isinstance(other, Loss):
            what = f"a Loss was added to a {type(other).__name__}, expected a Loss: mg.penalty(t)"
            raise TypeError(f"{what} for a term without data, mg.per_sample(t) for one with data")
        terms = {term.unit: term for term in self.terms}
        for term in other.terms:
            mine = terms.get(term.unit)
            terms[term.unit] = term if mine is None else _merge(mine, term)
        return Loss(list(terms.values()))

    def __radd__(self, other: Any) -> Loss:
        return self if isinstance(other, int) and other == 0 else self + other  # for sum([...])

    def __mul__(self, factor: float | Fraction) -> Loss:
        if not isinstance(factor, int | float | Fraction | np.number):
            what = f"a Loss was multiplied by a {type(factor).__name__}, expected a number"
            raise TypeError(f"{what}; weigh samples with sample_weights")
        return Loss([replace(t, coefficient=factor * t.coefficient) for t in self.terms])

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> Loss:
        return self + -1 * other

    def __truediv__(self, divisor: Any) -> Loss:
        what = f"a Loss was divided by {divisor}, expected as it is"
        raise TypeError(f"{what}: the window divides, once; to weigh a term, multiply it")

    def __repr__(self) -> str:
        terms = (f"{t.coefficient} * {t.total.data} {t.unit} / {t.weight}" for t in self.terms)
        return f"Loss({' + '.join(terms)})"


def _merge(a: Term, b: Term) -> Term:
    """Two terms of one unit as one. They must weigh the same, or one division could not serve."""
    far = hasattr(a.weight, "shape") or hasattr(b.weight, "shape")  # to compare would wait
    if a.weight is not b.weight and (far or a.weight != b.weight):
        weigh = "have weights on a device" if far else f"weigh {a.weight} and {b.weight}"
        what = f"two losses count in the unit {a.unit!r} but {weigh}, expected one known weight"
        raise ValueError(f"{what}; name one's unit, as in mg.squared_error(y, t, unit='reward')")
    return Term(a.unit, 1, a.coefficient * a.total + b.coefficient * b.total, a.weight)


def check_loss(loss: Any) -> Loss:
    """`loss`, if it is a Loss. Raises TypeError if it is a number, say."""
    if isinstance(loss, Loss):
        return loss
    what = f"the loss is a {type(loss).__name__}, expected a Loss, a sum with its weight"
    raise TypeError(f"{what}: mg.cross_entropy(...) as it is, or mg.per_sample(values)")


def nonzero(weight: Any) -> Any:
    """The weight as a divisor: 1 in place of 0, where the sum is 0 too. Without a wait."""
    return weight + (weight == 0)


def per_sample(values: Tensor, sample_weights: Any = None, unit: str | None = None) -> Loss:
    """A Loss of your own: values (n, ...), one or more per sample, each a function of its sample.

    It is their sum, and weighs their number, so that its mean is that of all values.
    sample_weights: array of the values' shape or of its first axes, or None for ones.
    unit: the name of what is counted; terms of one unit are divided by one weight.
    """
    if not isinstance(values, Tensor) or values.ndim == 0:
        found = "one number" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        what = f"per_sample() got {found}, expected a Tensor with one value a sample"
        raise TypeError(f"{what}; do not sum or average it yourself")
    if (wide := gradient_dtype(values)) != values.dtype:
        values = values.astype(wide)  # the sum might overflow
    if sample_weights is None:
        return _loss(values.sum(), values.data.size, unit or _unit(values.shape))
    w = _checked_weights(sample_weights, values.shape)
    each = values.data.size // w.size if w.size else 0
    return _loss((values * w).sum(), _sum_of(w) * each, unit or "weight")


def penalty(value: Tensor) -> Loss:
    """A term that depends on parameters alone (weight decay, say): it counts once a window.

    value: Tensor of one element. It costs one more gradient buffer, as every further unit does.
    """
    if not isinstance(value, Tensor) or value.data.size != 1:
        what = f"penalty() got a {type(value).__name__} of shape {np.shape(value)}"
        raise TypeError(f"{what}, expected a Tensor of one element; sum it over the parameters")
    return _loss(value, 1, WINDOW)


def _loss(total: Tensor, weight: Any, unit: str) -> Loss:
    return Loss([Term(unit, 1, total, weight)])


def _unit(shape: tuple[int, ...]) -> str:
    """What one value of this shape (n, ...) belongs to: a sample, if each has only one."""
    return "sample" if len(shape) == 1 or np.prod(shape[1:]) == 1 else "element"


def _checked_weights(weights: Any, shape: tuple[int, ...]) -> Any:
    """Weights checked against the values' `shape`, with as many axes, so that they broadcast."""
    w = plain(weights, "sample_weights")
    if w.ndim == 0 or w.shape != shape[: w.ndim]:
        raise shape_error("sample_weights", w.shape, f"{shape} or its first axes")
    return _nonnegative(w, "sample_weights").reshape(w.shape + (1,) * (len(shape) - w.ndim))


def _nonnegative(w: Any, name: str) -> Any:
    on_host = isinstance(w, np.ndarray)  # a look at a device would wait
    if on_host and not (np.all(w >= 0) and (w.dtype == object or np.all(np.isfinite(w)))):
        raise ValueError(f"{name} hold a negative or non-finite number; correct them")
    return w


def _select(x: Any, weights: Any) -> Tensor:
    """`x` with 0 where the weight is 0: what does not count may be NaN."""
    x = as_tensor(x)
    return x if weights is None else where(_checked_weights(weights, x.shape) > 0, x, 0)


def _sum_of(weights: Any) -> Any:
    """Their sum: a Python number for weights on the host (in float64), else a device array."""
    wide = np.float64 if weights.dtype.kind == "f" else None
    total = weights.sum(dtype=wide)
    return total.item() if isinstance(total, np.generic) else total


# --------------------------------------------------------------------------- regression


def squared_error(
    prediction: Tensor, target: Any, sample_weights: Any = None, unit: str | None = None
) -> Loss:
    """(prediction - target)^2, summed. Both (n, ...); it weighs the number of elements.

    sample_weights: (n,) or more axes of the prediction's shape; then it weighs their sum.
    """
    difference = _difference(prediction, target, sample_weights, "squared_error")
    return per_sample(difference * difference, sample_weights, unit)


def absolute_error(
    prediction: Tensor, target: Any, sample_weights: Any = None, unit: str | None = None
) -> Loss:
    """|prediction - target|, summed; the gradient at 0 is 0. Shapes as in `squared_error`."""
    difference = _difference(prediction, target, sample_weights, "absolute_error")
    d = difference.data
    values = record(np.abs(d), (difference,), lambda g: (g * (d > 0) - g * (d < 0),))
    return per_sample(values, sample_weights, unit)


def _difference(prediction: Any, target: Any, sample_weights: Any, name: str) -> Tensor:
    prediction = as_tensor(prediction)
    target = as_tensor(target, like=prediction)
    if prediction.shape != target.shape:
        expected = f"{prediction.shape}, that of the other: (n, 1) and (n,) pair each with each"
        raise shape_error(f"{name}() targets", target.shape, expected)
    return _select(prediction - target, sample_weights)


# ------------------------------------------------------------------------ classification


def binary_cross_entropy_with_logits(
    logits: Tensor, target: Any, sample_weights: Any = None, unit: str | None = None
) -> Loss:
    """-t log s(z) - (1 - t) log(1 - s(z)), summed: s the sigmoid, logits z and targets t (n, ...).

    Computed as max(z, 0) - z t + log(1 + exp(-|z|)), which never overflows; its derivative is
    s(z) - t. Targets are numbers from 0 to 1.
    """
    logits = _select(logits, sample_weights)
    target = _select(as_tensor(target, like=logits), sample_weights)
    if target.requires_grad:
        raise TypeError("targets require a gradient, expected constants; use .detach()")
    z, t = inexact(logits, "binary_cross_entropy_with_logits()").data, target.data
    if z.shape != t.shape:
        expected = f"{z.shape}, that of the logits; reshape one of them"
        raise shape_error("binary_cross_entropy_with_logits() targets", t.shape, expected)
    if isinstance(t, np.ndarray) and not np.all((t >= 0) & (t <= 1)):
        what = f"binary_cross_entropy_with_logits() got targets from {t.min()} to {t.max()}"
        raise ValueError(f"{what}, expected numbers from 0 to 1")
    y = np.maximum(z, 0) - z * t + np.log1p(np.exp(-np.abs(z)))
    values = record(y, (logits,), lambda g: (g * (logistic(z) - t),))
    return per_sample(values, sample_weights, unit)


def cross_entropy(
    logits: Tensor,
    labels: Any,
    *,
    ignore_index: int = -100,
    class_weights: Any = None,
    label_smoothing: float = 0.0,
    sample_weights: Any = None,
    unit: str | None = None,
) -> Loss:
    """-log softmax(logits)[label], summed over the labels that count.

    logits: (..., classes), the classes last. labels: integers (...), on the host, so that they can
    be checked and counted before they move. Labels equal to `ignore_index` count for nothing.
    class_weights: (classes,), the weight of a label by its class. sample_weights: (...) or its
    first axes. Both lie where the labels do. The Loss weighs the sum of the weights of the labels
    that count, 1 each if no weights are given. label_smoothing: e in [0, 1]; the target is
    (1 - e) onehot + e / classes (Szegedy et al. 2016, section 7), weighted by class as in PyTorch.

    Raises IndexError for a label that is no class, ValueError for shapes that do not fit.
    """
    logits = inexact(logits, "cross_entropy()")
    labels = integers(labels, "cross_entropy() labels")
    shape = logits.shape
    classes = shape[-1] if shape else 0
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing is {label_smoothing}, expected a number from 0 to 1")
    if labels.shape != shape[:-1] or not shape:
        expected = f"{shape[:-1]}: one a row of the logits {shape}; of one-hot take .argmax(-1)"
        raise shape_error("cross_entropy() labels", labels.shape, expected)
    z, n = logits.data.reshape(-1, classes), labels.size
    y, rows = _count(labels.reshape(-1), classes, ignore_index)
    if sample_weights is not None:
        samples = np.broadcast_to(_checked_weights(sample_weights, labels.shape), labels.shape)
        rows = samples.reshape(-1) if rows is None else rows * samples.reshape(-1)
    w, by_class = _by_class(y, rows, class_weights, classes)
    weight = n if w is None else _sum_of(w)
    if w is not None:
        near = lambda a: a if a is None else np.asarray(a, dtype=z.dtype, like=z)  # noqa: E731
        w, rows, by_class = near(w), near(rows), near(by_class)
    y, index = np.asarray(y, like=z), np.arange(n, like=z)

    z = z.T.copy()  # classes first: the sums over classes then run along whole rows of samples
    counts = rows if label_smoothing else w  # smoothed, a label looks at all classes
    if counts is not None:
        z = np.where(counts > 0, z, 0)  # what does not count may be NaN
    shifted = z - z.max(axis=0)
    p = np.exp(shifted)
    s = same_sum(p, 0)
    p /= s
    # With targets q, the total is sum(q (log s - shifted)), whose derivative is p sum(q) - q.
    if not label_smoothing:
        values = np.log(s) - shifted[y, index]
        total = wide_sum(values if w is None else values * w)
    else:
        q = np.ones_like(z) * (label_smoothing / classes)
        q *= 1 if rows is None else rows
        q *= 1 if by_class is None else by_class[:, None]
        q[y, index] += (1 - label_smoothing) * (1 if w is None else w)
        total = wide_sum(q * (np.log(s) - shifted))

    def pullback(g: Any) -> tuple:
        if label_smoothing:
            dz = (p * same_sum(q, 0) - q) * g
        else:
            weights = g if w is None else g * w
            dz = p * weights
            dz[y, index] -= weights
        return (dz.T.reshape(shape).astype(p.dtype, copy=False),)

    weighted = class_weights is not None or sample_weights is not None
    unit = unit or ("weight" if weighted else "sample" if labels.ndim < 2 else "token")
    return _loss(record(total, (logits,), pullback), weight, unit)


def _by_class(y: Any, rows: Any, class_weights: Any, classes: int) -> tuple[Any, Any]:
    """The weights of labels y (n,), which are those of `rows` times those of their classes, and of
    the classes; None for ones."""
    if class_weights is None:
        return rows, None
    by_class = np.asarray(class_weights, like=y)
    if by_class.shape != (classes,):
        raise shape_error("class_weights", by_class.shape, f"({classes},), one a class")
    _nonnegative(by_class, "class_weights")
    return by_class[y] if rows is None else rows * by_class[y], by_class


def _count(labels: Any, classes: int, ignore_index: int) -> tuple[Any, Any]:
    """The labels (n,), 0 where they are ignored, and a mask of those that count; None for all."""
    on_host = isinstance(labels, np.ndarray) and labels.size
    if on_host and not 0 <= ignore_index < classes and all_below(labels, classes):
        return labels, None
    counted = labels != ignore_index
    labels = np.where(counted, labels, 0)
    return check_below(labels, classes, "cross_entropy() got label", "classes"), counted


# --------------------------------------------------------------------- of a whole batch


def coupled(loss: Any) -> Callable[..., Loss]:
    """Mark a loss that is no sum over samples: a step calls it with the outputs of the whole batch.

    loss(outputs, *targets): outputs are a Tensor or a tuple of Tensors, as the model returns them.
    Micro-batches give its gradient all the same, by one pass more: see coupling.py.
    """
    getattr(loss, "__func__", loss).couples = True  # of a method: the function that it is
    return loss


@coupled
def contrastive(outputs: tuple[Tensor, Tensor], temperature: float = 1.0) -> Loss:
    """InfoNCE in both directions: each row of a is to find its row of b among all, and back.

    outputs: (a, b), (n, d) each. The mean over pairs of the cross-entropies of a b' / temperature
    by rows and by columns, and of these two (van den Oord et al. 2018; Radford et al. 2021).
    """
    shapes = [t.shape for t in (outputs if isinstance(outputs, tuple) else (outputs,))]
    if len(shapes) != 2 or shapes[0] != shapes[1] or len(shapes[0]) != 2:
        raise shape_error("contrastive()", shapes, "a tuple of two of one shape, a row a sample")
    a, b = outputs
    pairs, z = np.arange(len(a)), a @ b.T * (1 / temperature)
    return 0.5 * (cross_entropy(z, pairs, unit=BATCH) + cross_entropy(z.T, pairs, unit=BATCH))


@coupled
def dice(outputs: Tensor, targets: Any, smooth: float = 1.0) -> Loss:
    """1 - (2 sum(p t) + smooth) / (sum(p) + sum(t) + smooth) over the whole batch.

    outputs: probabilities p (n, ...), targets t of their shape (Milletari, Navab & Ahmadi 2016).
    """
    t = as_tensor(targets, like=outputs)
    if t.shape != outputs.shape:
        raise shape_error("dice() targets", t.shape, f"{outputs.shape}, that of the outputs")
    overlap = ((outputs * t).sum() * 2 + smooth) / (outputs.sum() + t.sum() + smooth)
    return Loss([Term(BATCH, 1, 1 - overlap, 1)])
