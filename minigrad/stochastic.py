"""Stochastic approximation: where is M(x) = level, when every look at M is noisy?

    x_n = x_{n-1} + a_n (level - Y_n),    E[Y_n] = M(x_{n-1}),    n = 1, 2, ...

(Robbins & Monro 1951). The steps a_n must add up to infinity, or x stops short of the root; and, to
be sure that the noise is averaged out, their squares to something finite. Where M is the gradient
of a loss, level 0 and Y the gradient of a batch, this line is stochastic gradient descent. An
average of k looks at one x is one look with k times less variance: that is what accumulation buys.

`robbins_monro` walks; the rest of the file says beforehand how far the walk will be from the root.

Taught in lesson 01 and lesson 11.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minigrad.arrays import constant, plain, real, shape_error
from minigrad.batches import positive


def robbins_monro(
    observe: Callable[[Any], Any], start: Any, steps: Iterable[Any], level: Any = 0
) -> Any:
    """The path x_0 = start, x_1, x_2, ..., one move a step: an array (1 + steps, *start.shape).

    observe(x) takes a noisy look at M(x) and returns an array of x's shape. M must grow through the
    root: where it falls, look at -M, with -level. steps: a_1, a_2, ..., any finite sequence of
    numbers. Floats stay in the dtype of `start`, Fractions stay exact.
    """
    x = real(start)
    level, path = constant(level, x), [x]
    for a in steps:
        seen = plain(observe(x), "robbins_monro()")
        if seen.shape != x.shape:
            raise shape_error("robbins_monro(): observe(x)", seen.shape, f"that of x, {x.shape}")
        x = real(x + constant(a, x) * (level - seen))
        path.append(x)
    return np.stack(path)


def polyak_ruppert(path: Any, skip: int = 0) -> Any:
    """The averages of the path so far, x_1 alone first: (n, ...) from the (1 + n, ...) of a path.

    The start is no estimate and is left out, with the first `skip` moves. Of a walk with longer
    steps than 1/n the average is as near, in the end, as the best steps come that know the slope of
    M (Polyak 1990; Ruppert 1988). It averages points; accumulation averages looks from one point.
    """
    walked = plain(path, "polyak_ruppert()")[1 + skip :]
    if skip < 0 or not len(walked):
        what = f"polyak_ruppert() got a path of {len(path)} points and skip = {skip}"
        raise ValueError(f"{what}, expected a skip from 0 and more than {1 + max(skip, 0)} points")
    counts = np.arange(1, len(walked) + 1, like=walked)
    return np.cumsum(walked, axis=0) / counts.reshape(-1, *[1] * (walked.ndim - 1))


# -------------------------------------------------------------------- how long the steps are


@dataclass(frozen=True)
class StepRule:
    """Steps a_n = c / (n + shift)^power for n = 1, 2, ...; with power 0 all are equal to c.

    They are exact for a Fraction c and a whole power.
    """

    c: Any
    power: Any = 1
    shift: int = 0

    def __post_init__(self) -> None:
        for name, least in (("c", "above 0"), ("power", "0 or more"), ("shift", "0 or more")):
            value = getattr(self, name)
            if not 0 <= value < math.inf or (name == "c" and value == 0):
                raise ValueError(f"StepRule() got {name} = {value}, expected a number {least}")

    def first(self, count: int) -> list[Any]:
        """The first `count` steps."""
        positive("StepRule.first() count", count)
        return [self.c / (n + self.shift) ** self.power for n in range(1, count + 1)]

    def conditions(self) -> Conditions:
        """Do the steps satisfy the two conditions, and by how much?"""
        return Conditions(
            travel=_most(self.c, self.power, self.shift),
            squares=_most(self.c**2, 2 * self.power, self.shift),
        )

    def exponent(self, slope: float) -> float:
        """The r with which the error's root mean square falls like n^-r, for M(x) = slope (x - t).

        0: it does not fall. For power 1 it is 1/2 at most, and less where c slope is below 1/2: the
        start is then forgotten too slowly (at c slope = 1/2 the square falls like log(n)/n).
        """
        if self.power > 1:
            return 0.0
        return float(min(0.5, self.c * slope)) if self.power == 1 else float(self.power / 2)


@dataclass(frozen=True)
class Conditions:
    """The classical conditions for a step rule, as numbers: print it, or ask for `hold`.

    They are for looks of bounded variance at an M that grows through its root, at most linearly.
    travel: what sum a_n can be at most, so how far x can come with looks of size 1. squares: the
    same of sum a_n^2, so how much noise of variance 1 can add up to. math.inf: no bound.
    """

    travel: float
    squares: float

    @property
    def hold(self) -> bool:
        """Both: the sum is infinite, that of the squares is finite."""
        return math.isinf(self.travel) and math.isfinite(self.squares)

    def __str__(self) -> str:
        if self.hold:
            return (
                "sum a_n is infinite, so that no start is too far, and sum a_n^2 at most "
                f"{self.squares:.4g}, so that the noise dies out: x comes to the root"
            )
        if math.isfinite(self.travel):
            return (
                f"sum a_n is at most {self.travel:.4g}, expected no bound: x may stop short "
                "of the root; let the steps fall more slowly, with a power of 1 or less"
            )
        return (
            "sum a_n^2 is infinite, expected a bound: the classical proof does not hold, and "
            "with equal steps x never settles; take a power above 1/2, or average the path"
        )


def _most(c: Any, power: Any, shift: int) -> float:
    """A bound of sum c / (n + shift)^power: its first term and the integral of the rest."""
    if power <= 1:
        return math.inf
    first = 1 + shift
    return float(c * (first**-power + first ** (1 - power) / (power - 1)))


# -------------------------------------------------------------------- what comes of it


class Moments(NamedTuple):
    """Of x_0, x_1, ..., each an array (1 + steps,): `bias` is the mean of x_n - root, `variance`
    that of x_n, `average_variance` that of the average of x_1, ..., x_n (0 before the first)."""

    bias: Any
    variance: Any
    average_variance: Any


def linear_moments(
    steps: Iterable[Any], slope: Any, noise_variance: Any, start: Any = 0
) -> Moments:
    """What to expect of `robbins_monro` where M(x) = slope (x - root), without drawing anything.

    With e = x - root, a move is e <- (1 - a slope) e - a noise: so mean and variance follow from
    the ones before. start: x_0 - root. Exact for Fractions.
    """
    bias, variance, with_sum, of_sum = start, 0 * slope, 0 * slope, 0 * slope
    rows = [(bias, variance, of_sum)]
    for n, a in enumerate(steps, start=1):
        keep = 1 - a * slope
        bias = keep * bias
        variance = keep * keep * variance + a * a * noise_variance
        of_sum = of_sum + 2 * keep * with_sum + variance  # Var(x_1 + ... + x_n)
        with_sum = keep * with_sum + variance  # Cov(x_n, x_1 + ... + x_n)
        rows.append((bias, variance, of_sum / (n * n)))
    return Moments(*(np.array(column) for column in zip(*rows, strict=True)))


def asymptotic_variance(c: Any, slope: Any, noise_variance: Any) -> Any:
    """The limit of n Var(x_n) for steps c/n: c^2 s^2 / (2 c slope - 1) (Chung 1954; Sacks 1958).

    Least at c = 1/slope, where it is s^2 / slope^2, which nothing can beat. Raises ValueError
    unless 2 c slope > 1: without it the error falls more slowly than 1/sqrt(n).
    """
    if not 2 * c * slope > 1:
        what = f"asymptotic_variance() got c = {c} and slope = {slope}"
        raise ValueError(f"{what}, expected 2 c slope above 1; take c above {1 / (2 * slope)}")
    return c * c * noise_variance / (2 * c * slope - 1)


def stationary_variance(step: Any, slope: Any, noise_variance: Any) -> Any:
    """The limit of Var(x_n) for equal steps a: a s^2 / (slope (2 - a slope)).

    Raises ValueError unless 0 < a slope < 2: a longer step throws x ever farther away.
    """
    if not 0 < step * slope < 2:
        what = f"stationary_variance() got step = {step} and slope = {slope}"
        raise ValueError(f"{what}, expected step x slope between 0 and 2; shorten the step")
    return step * noise_variance / (slope * (2 - step * slope))
