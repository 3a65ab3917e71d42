"""Learning-rate schedules: functions of the number of updates made so far, 0 before the first.

Give one to an optimizer in place of a number: `mg.SGD(parameters, lr=mg.cosine(0.1, 1000))`. The
optimizer counts updates, so a schedule cannot be advanced once a micro-batch by mistake.

The second part is about a rate, or a beta, that was right for another size of the batch, and about
a batch that grows. Its rules come from theory of small rates: each ends somewhere.

Taught in lesson 06 and lesson 12.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from minigrad.batches import positive

Schedule = Callable[[int], float]
BatchSchedule = Callable[[int], int]


def warmup(rate: float | Schedule, updates: int) -> Schedule:
    """Grow linearly to `rate` over the first `updates`, then follow it.

    The first update has rate / updates, update number `updates` the whole rate. (Goyal et al. 2017,
    section 2.2, begin at the rate of the small batch.)
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


# ------------------------------------------------------------- when the batch changes


def linear_scaling(rate: float, batch_size: int, new_batch_size: int) -> float:
    """The rate of SGD for `new_batch_size`, given one for `batch_size`: in proportion.

    One update with k times the rate goes as far as k small ones, while the gradient stays nearly
    the same (Goyal et al. 2017, section 2.1). At first it does not: `warmup` is meant to help.
    It is for the mean of the batch: where reduction="sum", the gradient has grown already.
    """
    kappa = _growth("linear_scaling()", batch_size, new_batch_size)
    return _number("linear_scaling()", "rate", rate) * kappa


def square_root_scaling(
    rate: float, batch_size: int, new_batch_size: int, betas=(0.9, 0.999), eps=1e-8
) -> dict[str, Any]:
    """The options of Adam for `new_batch_size`, given those for `batch_size`: {lr, betas, eps}.

    mg.Adam(parameters, **mg.square_root_scaling(1e-3, 32, 256)). For a batch kappa times as large:
    sqrt(kappa) lr, 1 - kappa (1 - beta) and eps / sqrt(kappa) (Malladi et al. 2022), which keeps
    what Adam does over a number of samples, where gradients are mostly noise. Raises ValueError
    where a beta would fall below 0: beyond 10 times for 0.9.
    """
    kappa = _growth("square_root_scaling()", batch_size, new_batch_size)
    root = math.sqrt(kappa)
    return {
        "lr": _number("square_root_scaling()", "rate", rate) * root,
        "betas": tuple(_shortened(beta, kappa) for beta in betas),
        "eps": _number("square_root_scaling()", "eps", eps) / root,
    }


def _shortened(beta: float, kappa: Fraction) -> float:
    """The beta that forgets kappa times faster an update, to first order in 1 - beta."""
    forgets = kappa * (1 - _number("square_root_scaling()", "a beta", beta, below=1))
    if forgets > 1 + 1e-12:  # 20 (1 - 0.95) is 1 and a rounding
        raise ValueError(
            f"square_root_scaling() got a batch {float(kappa):g} times as large, which turns the "
            f"beta {beta} into {float(1 - forgets):.4g}, expected 0 or more; grow the batch less, "
            "or use constant_half_life"
        )
    return 1 - min(1, forgets)


def constant_half_life(beta: float, batch_size: int, new_batch_size: int) -> float:
    """The beta for `new_batch_size` that forgets half within as many samples as `beta` did.

    beta^(new / old) (Marek et al. 2025, for Adam's second beta): what one update with the new batch
    keeps is what the old ones over the same samples kept. To first order in 1 - beta it is the
    beta of `square_root_scaling`.
    """
    kappa = _growth("constant_half_life()", batch_size, new_batch_size)
    return _number("constant_half_life()", "beta", beta, below=1) ** kappa


def step_growth(batch_size: int, factor: int, samples: int, largest: int) -> BatchSchedule:
    """`batch_size` times `factor` once more after each `samples` samples, up to `largest`.

    A function of the updates made so far, to take the next batch by: with a fixed
    micro_batch_size it is accumulation_steps that grows. Growing the batch lowers the noise as
    `step_decay(rate, 1 / factor, samples // batch_size)` does, in fewer updates (Smith et al.
    2018); where `largest` ends it, the rate must decay.
    """
    names = ("batch_size", "factor", "samples", "largest")
    for name, value in zip(names, (batch_size, factor, samples, largest)):
        positive(f"step_growth() {name}", value)

    def at(update: int) -> int:
        size = batch_size
        while size * factor <= largest:
            updates = -(-samples // size)  # that the samples make at this size
            if update < updates:
                break
            size, update = size * factor, update - updates
        return size

    return at


def _growth(what: str, batch_size: int, new_batch_size: int) -> Fraction:
    """By how much the batch grows: a float times it is a float, and all else stays exact."""
    new = positive(f"{what} new_batch_size", new_batch_size)
    return Fraction(new, positive(f"{what} batch_size", batch_size))


def _number(what: str, name: str, value: Any, below: float = math.inf) -> Any:
    """`value` as a number of Python's, if it is one of 0 or more."""
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, (int, float, Fraction)) or not 0 <= value < below:
        limit = "finite" if below == math.inf else f"below {below}"
        raise ValueError(f"{what} got {name} = {value!r}, expected a number, 0 or more and {limit}")
    return value
