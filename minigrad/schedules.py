"""Learning-rate schedules: functions of the number of updates made so far, 0 before the first.

Give one to an optimizer in place of a number: `mg.SGD(parameters, lr=mg.cosine(0.1, 1000))`. The
optimizer counts updates, so a schedule cannot be advanced once a micro-batch by mistake.

Taught in lesson 06.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from minigrad.batches import positive

Schedule = Callable[[int], float]


def warmup(rate: float | Schedule, updates: int) -> Schedule:
    """Grow linearly to `rate` over the first `updates` (Goyal et al. 2017), then follow it.

    The first update has rate / updates, update number `updates` the whole rate.
    """
    positive("warmup() updates", updates)

    def at(update: int) -> float:
        full = rate(update) if callable(rate) else rate
        return full * min(1.0, (update + 1) / updates)

    return at


def linear_decay(rate: float, updates: int, final: float = 0.0) -> Schedule:
    """A straight line from `rate` to `final`, reached after `updates`, and `final` from then on."""
    positive("linear_decay() updates", updates)
    return lambda update: rate + (final - rate) * min(1.0, update / updates)


def cosine(rate: float, updates: int, final: float = 0.0) -> Schedule:
    """Half a cosine from `rate` to `final` over `updates` (Loshchilov & Hutter 2017, eq. 5)."""
    positive("cosine() updates", updates)

    def at(update: int) -> float:
        return final + (rate - final) * (1 + math.cos(math.pi * min(1.0, update / updates))) / 2

    return at


def step_decay(rate: float, factor: float, every: int) -> Schedule:
    """`rate` times `factor` once more after each `every` updates."""
    positive("step_decay() every", every)
    return lambda update: rate * factor ** (update // every)
