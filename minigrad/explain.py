"""Why is this answer wrong? From what was expected and what was found to one sentence.

`explain` tries rules, the telling ones first, and returns the first that fits. A rule that looks at
numbers is one line in `candidates`: the value that a usual mistake gives, and what to say then. If
that is the value found, the mistake has been found too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

Named = Mapping[str, tuple[Any, str]]  # name of a mistake: (the value it gives, what to say)


@dataclass(frozen=True)
class Reason:
    """What is wrong: the name of the rule that fits, and a sentence for the reader."""

    rule: str
    sentence: str


@np.errstate(all="ignore")  # what overflows, or is divided by 0, fits no answer
def explain(
    expected: Any,
    found: Any,
    *,
    parts: Sequence[Any] | None = None,
    sizes: Sequence[float] | None = None,
    k: int | None = None,
    also: Named | None = None,
    rtol: float = 1e-9,
) -> Reason | None:
    """The reason why `found` is not `expected`, or None if it is, to `rtol` of its largest element.

    expected, found: numbers or arrays. parts: the mean of each micro-batch (its loss, or gradient),
    sizes: how much each weighs: then usual mistakes in adding them up are recognised. k: how many
    micro-batches, if the parts are not given. also: mistakes of this exercise alone, by name; they
    are tried first.
    """
    reason = _unfit(expected, found)
    if reason:
        return reason
    right, answer = np.asarray(expected, np.float64), np.asarray(found, np.float64)

    if not _off(answer, right, rtol).any():
        return None
    lost = np.isfinite(right) & ~np.isfinite(answer)
    if lost.any():
        what = "not a number" if np.isnan(answer[lost]).any() else "infinite"
        return Reason(
            "not finite", f"your answer is {what}; look for a division by 0, or a log or exp"
        )
    mistakes = [*(also or {}).items(), *candidates(right, parts, sizes, k).items()]
    for name, (value, sentence) in mistakes:
        value = np.asarray(value, np.float64)
        fits = value.shape == right.shape and not _off(answer, value, rtol).any()
        if fits and _off(value, right, rtol).any():
            return Reason(name, sentence)
    return _difference(right, answer, _off(answer, right, rtol))


def _off(found: Any, wanted: Any, rtol: float) -> Any:
    """Where one array is not the other, to `rtol` of the largest finite element that is wanted."""
    finite = np.isfinite(wanted)
    near = abs(found - wanted) <= rtol * abs(wanted[finite]).max(initial=1e-300)
    equal = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    return ~np.where(finite, near, equal)


def candidates(right: Any, parts: Any, sizes: Any, k: int | None) -> Named:
    """What usual mistakes of accumulation give where `right` is right, the telling ones first."""
    parts = [np.asarray(part, np.float64) for part in parts] if parts is not None else []
    k = len(parts) or k
    found: dict[str, tuple[Any, str]] = {"sign": (-right, "its sign is wrong")}
    if k and k > 1:
        found["1/k"] = (right / k, f"it is k = {k} times too small: it was divided by k twice")
    if parts:
        n = sizes if sizes is not None else [1] * k
        total = sum(m * p for m, p in zip(n, parts))
        found |= {
            "mean of means": (
                sum(parts) / k,
                "this is the mean of the micro-batches' means, which counts a short one as much as "
                "a long one; add up the sums, and divide once, by all that was counted",
            ),
            "last only": (
                parts[-1],
                "this is what the last micro-batch alone gives: each one overwrites the one before "
                "it; add (+=), and clear only between windows",
            ),
            "last only, divided": (
                parts[-1] / k,
                "this is the last micro-batch alone, divided by k: the gradient is cleared inside "
                "the window; clear it only between windows",
            ),
            "sum of means": (
                sum(parts),
                "this is the sum of the micro-batches' means, and nothing was divided; add up the "
                "sums instead, and divide once, by all that was counted",
            ),
            "not divided": (
                total,
                "this is the sum over the samples: it was never divided by their number",
            ),
            "full divisor": (
                total / (k * max(n)),
                "the divisor counts the short micro-batch as a full one; divide by what was seen",
            ),
        }
        if k > 1:
            left = sum(n[:-1])
            found["tail dropped"] = (
                (total - n[-1] * parts[-1]) / left if left else total * np.nan,
                "the last micro-batch is missing: the window must end with the data, full or not",
            )
            found["first only"] = (
                parts[0],
                "this is what the first micro-batch alone gives: the later ones are not added",
            )
    if k and k > 1:
        found["k times"] = (k * right, f"it is k = {k} times too large: nothing was divided by k")
    if sizes is not None and sum(sizes) not in (0, 1):
        n = sum(sizes)
        found |= {
            "N times": (n * right, f"it is N = {n} times too large: it is a sum, not a mean"),
            "1/N": (right / n, f"it is N = {n} times too small: it was divided by N twice"),
        }
    return found


def _unfit(expected: Any, found: Any) -> Reason | None:
    """Is it something that can be compared at all?"""
    right = np.asarray(expected)
    kind = f"an array of shape {right.shape}" if right.shape else "a number"
    if found is None:
        return Reason("nothing", f"your answer is None, expected {kind}: is there a return?")
    items = found if isinstance(found, list | tuple) else ()
    if any(hasattr(one, "requires_grad") for one in [found, *items]):
        what = "a Tensor" if hasattr(found, "requires_grad") else "a list of Tensors"
        return Reason("tensor", f"your answer is {what}, expected {kind}: take the .data of each")
    try:
        answer = np.asarray(found)
        real = _holds_numbers(answer) or answer.dtype == right.dtype == bool
        answer.astype(np.float64 if real else object)
    except Exception:  # rows of different lengths, or whatever an object of the student's raises
        real = False
    if not real:
        what = type(found).__name__
        if isinstance(found, list | tuple | np.ndarray):
            what += " that is no array of real numbers"
        return Reason("type", f"your answer is a {what}, expected {kind}")
    if answer.shape != right.shape:
        turned = answer.shape == right.shape[::-1]
        fix = "transpose it" if turned else "over which axis is the sum, the mean or the product?"
        return Reason("shape", f"its shape is {answer.shape}, expected {right.shape}: {fix}")
    return None


def _holds_numbers(array: Any) -> bool:
    """Real numbers, fractions among them; a bool or a text is none, though NumPy converts it."""
    if array.dtype == object:
        return all(isinstance(one, Real) and not isinstance(one, bool) for one in array.flat)
    return array.dtype.kind in "iuf"


def _difference(right: Any, answer: Any, off: Any) -> Reason:
    """No rule fits: say how the numbers differ."""
    if not right.any():
        return Reason("not zero", f"it should be 0, and the largest is {abs(answer).max():.4g}")
    gap = abs(answer - right).max() / abs(right).max()
    if gap < 1e-5:
        hint = "is something float32, or rounded, or is an eps in another place?"
        return Reason("close", f"it is close, but off by {gap:.0e} of its size: {hint}")
    at = np.unravel_index(np.argmax(abs(right)), right.shape)
    ratio = answer[at] / right[at]
    is_multiple = ratio and np.allclose(answer, ratio * right, rtol=1e-6, atol=0)
    if is_multiple and (np.count_nonzero(right) > 1 or _is_simple(ratio)):
        factor = f"{ratio:.4g} times the right answer"
        return Reason("factor", f"it is {factor}: which factor is missing, or one too many?")
    if not right.shape:
        return Reason("value", f"it is {answer:.6g}, expected {right:.6g}")
    worst = np.unravel_index(np.argmax(abs(answer - right)), right.shape)
    where = ", ".join(map(str, worst))
    what = f"{off.sum()} of {right.size} elements differ, most of all [{where}]"
    return Reason("value", f"{what}: it is {answer[worst]:.6g}, expected {right[worst]:.6g}")


def _is_simple(ratio: Any) -> bool:
    """Whole twelfths, or 1 over these: between two numbers alone, any other ratio says nothing."""
    twelfths = [12 * ratio, 12 / ratio]
    return any(round(n) and abs(n - round(n)) < 1e-6 for n in twelfths if np.isfinite(n))
