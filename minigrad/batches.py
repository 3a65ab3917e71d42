"""A batch and its parts.

A batch is (inputs, *targets), each an array or a tuple or dict of arrays, all of which have the
samples along axis 0. Its micro-batches are slices of that axis, and views: nothing is copied.

Taught in lesson 04.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def micro_batches(
    n: int, micro_batch_size: int | None = None, accumulation_steps: int | None = None
) -> list[slice]:
    """The parts of a batch of n samples: of `micro_batch_size` each, the last perhaps shorter, or
    `accumulation_steps` parts (at most n) whose sizes differ by one at most.

    Raises ValueError unless exactly one of the two is given, as a positive integer, and n > 0.
    """
    if (micro_batch_size is None) == (accumulation_steps is None):
        given = "neither" if micro_batch_size is None else "both"
        raise ValueError(f"{given} of micro_batch_size and accumulation_steps given, expected one")
    if n < 1:
        raise ValueError("the batch holds no samples, expected one or more; skip empty batches")
    if micro_batch_size is not None:
        size = positive("micro_batch_size", micro_batch_size)
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]
    k = min(positive("accumulation_steps", accumulation_steps), n)
    ends = [n // k * (j + 1) + min(n % k, j + 1) for j in range(k)]
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def positive(name: str, value: Any) -> int:
    """`value` if it is an integer of 1 or more. Raises ValueError if not."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        many = hasattr(value, "__len__") and not isinstance(value, str)  # a batch, say: too long
        given = f"a {type(value).__name__}" if many else repr(value)
        raise ValueError(f"{name} is {given}, expected an integer of 1 or more")
    return int(value)


def each(part: Any, change: Callable[[Any], Any]) -> Any:
    """`part`, an array or a tuple or dict of such, with each array changed."""
    if hasattr(part, "__array_function__") and part.shape:  # NumPy's or CuPy's, no Tensor
        return change(part)
    if isinstance(part, tuple):
        return tuple(each(value, change) for value in part)
    if isinstance(part, dict):
        return {key: each(value, change) for key, value in part.items()}
    what = f"a batch holds a {type(part).__name__}, expected arrays with an axis of samples"
    raise TypeError(f"{what}, or tuples and dicts of them; convert it with np.asarray")


def take(part: Any, where: slice) -> Any:
    """The samples `where` of an array or of a tuple or dict of arrays, as views."""
    return each(part, lambda array: array[where])


def near(inputs: Any, like: Any) -> Any:
    """The inputs of a micro-batch where the array `like` lies, but integers where they are.

    They are indices, which are checked on the host: who uses them moves them.
    """

    def moved(array: Any) -> Any:
        stays = type(array) is type(like) or array.dtype.kind in "iub"
        return array if stays else np.asarray(array, like=like)

    return inputs if type(inputs) is type(like) else each(inputs, moved)


def join(parts: Sequence[Any]) -> Any:
    """Parts of an array, or of a tuple or dict of arrays, as they were before they were cut."""
    if isinstance(parts[0], tuple):
        return tuple(join(column) for column in zip(*parts, strict=True))
    if isinstance(parts[0], dict):
        return {key: join([part[key] for part in parts]) for key in parts[0]}
    return np.concatenate(parts)


def count_samples(batch: Any) -> int:
    """The length of axis 0, which all arrays of the batch share. Raises ValueError if not."""
    if not isinstance(batch, tuple) or not batch:
        size = " of 0" if isinstance(batch, tuple) else ""
        what = f"the batch is a {type(batch).__name__}{size}, expected a tuple"
        raise TypeError(
            f"{what} (inputs, targets, ...); Accumulator.window() takes a list of micro-batches"
        )
    lengths: list[int] = []
    each(batch, lambda array: lengths.append(len(array)))
    if not lengths or lengths.count(lengths[0]) != len(lengths):
        raise ValueError(f"the arrays of a batch hold {lengths} samples, expected the same number")
    return lengths[0]
