"""Random numbers that belong to the sample.

A dropout mask must not depend on how a batch was split, nor on how often it is computed. So a draw
is not the next number of a stream but a function of where it is used: (seed, update, index of the
sample in the batch, layer, call). Philox (Salmon et al. 2011) is such a function: a counter goes
in, four random words come out. NumPy keeps its raw words the same from version to version.

Taught in lesson 06.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.arrays import shape_error
from minigrad.samples import current_samples


class _Seed:
    """One of the three globals: the seed, and what was drawn outside of any window since."""

    value = 0
    loose = 0
    generator: np.random.Generator | None = None


def manual_seed(seed: int) -> None:
    """Start again from `seed`: initial weights, and all draws that follow."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise ValueError(f"manual_seed() got {seed!r}, expected an integer from 0 to 2**64 - 1")
    _Seed.value, _Seed.loose, _Seed.generator = int(seed), 0, None


def current_seed() -> int:
    """The seed that was set last."""
    return _Seed.value


def default_generator(rng: np.random.Generator | None = None) -> np.random.Generator:
    """`rng`, or that of initial weights where none is passed in; `manual_seed` starts it anew."""
    if rng is not None:
        return rng
    if _Seed.generator is None:
        _Seed.generator = np.random.Generator(np.random.Philox(_Seed.value))
    return _Seed.generator


# ---------------------------------------------------------------------------------- draws


def uniform_words(layer: Any, shape: tuple[int, ...]) -> np.ndarray:
    """uint32 words, one for each element of an array of this shape, drawn on the host.

    The first axis of `shape` holds the samples in order, or the same number of rows for each.
    Outside of a window there are no samples to belong to: then each call draws anew.
    """
    samples = current_samples()
    size = int(np.prod(shape))
    if samples is None:
        _Seed.loose += 1
        return _philox(_Seed.value, (_Seed.loose, 0, 1), 0, 1, size).reshape(shape)
    count = samples.stop - samples.start
    if not shape or not count or shape[0] % count:
        expected = f"a first axis of {count} samples, or of the same number of rows for each"
        raise shape_error(f"{type(layer).__name__} in a micro-batch", shape, expected)
    call = samples.calls.get(layer, 0)
    samples.calls[layer] = call + 1
    if not samples.positions:
        samples.positions.update((module, i) for i, module in enumerate(samples.modules()))
    if layer not in samples.positions:
        raise ValueError(f"{layer!r} draws in a window of a model that it is no part of; add it")
    place = (samples.update, (call << 32) + samples.positions[layer], 0)
    return _philox(samples.seed, place, samples.start, count, size // count).reshape(shape)


def _philox(seed: int, place: tuple[int, int, int], first: int, rows: int, width: int) -> Any:
    """Rows `first`, `first` + 1, ... of the table of words at `place`: uint32 (rows, width)."""
    blocks = -(-width // 8)  # a row starts at a block of its own: 4 words of 64 bits
    bits = np.random.Philox(counter=(first * blocks, *place), key=(seed, 0))
    words = bits.random_raw(rows * blocks * 4).astype("<u8", copy=False).view("<u4")
    return words.reshape(rows, blocks * 8)[:, :width]
