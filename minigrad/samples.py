"""Which samples is a forward pass looking at?

A layer is called with an array and does not know the rest: which samples of the batch these are, of
which update, and what the window has seen before. Dropout needs the first (randomness.py) and
BatchNorm the last (batchnorm.py). The window (accumulation.py) says it, in a context around each
forward pass; outside of any window there is none.

Taught in lesson 06.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Samples:
    """What a layer may know in a forward pass: samples `start` to `stop` of the batch of `update`.

    modules: what gives the modules of the model, whose places in it tell their draws apart.
    statistics: what BatchNorm has seen so far in this window; positions: the place of each module;
    calls: how often each has drawn in this pass; coupling: what it is to standardize by, if the
    window is passed over more than once (coupling.py).
    """

    seed: int
    update: int
    start: int
    stop: int
    modules: Any = tuple
    statistics: dict = field(default_factory=dict)
    positions: dict = field(default_factory=dict)
    calls: dict = field(default_factory=dict)
    coupling: Any = None


# One of the three globals: the draw context, None outside of any window.
_samples: ContextVar[Samples | None] = ContextVar("samples", default=None)


class drawing:
    """`with drawing(samples):` forward passes inside are those of `samples`."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __enter__(self) -> Samples:
        self.token = _samples.set(self.samples)
        return self.samples

    def __exit__(self, *error: Any) -> None:
        _samples.reset(self.token)


def current_samples() -> Samples | None:
    """The samples that the forward pass is looking at, or None outside of any window."""
    return _samples.get()
