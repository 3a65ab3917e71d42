"""The noise of a gradient: what a batch of B samples knows about all samples there are.

Let G be the mean of the gradients of all samples and S the mean of |g_i - G|^2. The gradient g_B of
B samples drawn independently has E|g_B - G|^2 = S/B, so that

    E|g_B|^2 = |G|^2 + S/B.

Two sizes of batch give |G|^2 and S, and a window of accumulation has two: its micro-batches, and
itself. Their ratio, the *noise scale* S/|G|^2 (McCandlish et al. 2018, section 2), is the size at
which a batch is half signal, half noise: where all curvatures are alike, a larger batch saves
updates far below it, and only costs samples far above. Skip this file at first.

`train_step(..., noise="parts")` puts the estimate into its report.

Taught in lesson 11.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from minigrad.arrays import squared_norm
from minigrad.batches import positive
from minigrad.losses import WINDOW
from minigrad.tensor import Tensor

WAYS = ("parts", "sums")


class GradientNoise(NamedTuple):
    """signal: an estimate of |G|^2. noise: one of S, the variance of the gradient of one sample,
    added up over all parameters. Both are unbiased, so either may come out below 0.

    Of windows drawn without replacement, as in an epoch of N samples, they estimate |G|^2 - S/(N-1)
    and S N/(N-1): a small signal of few samples is then told too small."""

    signal: Any
    noise: Any

    @property
    def scale(self) -> Any:
        """The noise scale, in samples; infinite where no signal was seen, NaN after an overflow. A
        ratio of unbiased estimates is biased: smooth first (`SmoothedNoise`)."""
        return math.inf if self.signal <= 0 else self.noise / self.signal


def batch_noise(gradients: Any, size: int, replace: bool = False) -> Any:
    """E|g_B - G|^2 for the mean gradient g_B of `size` of the N samples, drawn at random.

    gradients: (N, p), those of the single samples. Drawn with replacement it is S/B; without, as in
    an epoch, S/B (N - B)/(N - 1), which is 0 for all N: *exact* for Fractions.
    """
    count, size = len(gradients), positive("batch_noise() size", size)
    if not replace and size > count:
        what = f"batch_noise() got size = {size} of {count} samples"
        raise ValueError(f"{what}, expected at most {count}; or say replace=True")
    apart = gradients - np.sum(gradients, axis=0) / count
    spread = squared_norm([apart]) / count / size
    return spread if replace or count == 1 else spread * (count - size) / (count - 1)


def from_parts(squares: Sequence[Any], sizes: Sequence[int], whole: Any) -> GradientNoise:
    """From |g_j|^2 of each micro-batch of n_j samples, and |g_B|^2 of the whole window of B.

    All gradients are means. E of the mean of |g_j|^2 is |G|^2 + S mean(1/n_j); that of |g_B|^2 is
    |G|^2 + S/B: two equations (McCandlish et al. 2018, appendix A.1, there for equal n_j).
    """
    k = len(squares)
    by_part, by_whole = sum(Fraction(1, n) for n in sizes) / k, Fraction(1, sum(sizes))
    noise = (sum(squares) / k - whole) / (by_part - by_whole)
    return GradientNoise(whole - noise * by_whole, noise)


def from_sums(squares: Sequence[Any], samples: Sequence[int]) -> GradientNoise:
    """From |A_j|^2 of the sums A_j of the gradients of the first N_j samples of the window.

    E|A_j|^2 / N_j = |G|^2 N_j + S is a straight line: the least-squares line through the k points
    has the slope |G|^2 and meets the axis at S. Unbiased, with more spread than `from_parts`.
    """
    k = len(squares)
    heights = [square / n for square, n in zip(squares, samples, strict=True)]
    middle, level = Fraction(sum(samples), k), sum(heights) / k
    slope = sum((n - middle) * (h - level) for n, h in zip(samples, heights, strict=True))
    slope = slope / sum((n - middle) * (n - middle) for n in samples)
    return GradientNoise(slope, level - slope * middle)


class NoiseMeter:
    """Looks at the gradient of a window after each micro-batch, and at its end says its noise.

    way: "parts" takes the gradient of each micro-batch apart, which needs one more buffer of the
    size of the gradient; "sums" needs nothing but the norm of what has added up so far.
    """

    def __init__(self, way: str, parameters: Iterable[Tensor]) -> None:
        if way not in WAYS:
            raise ValueError(f"noise is {way!r}, expected 'parts', 'sums' or None")
        self.way, self.parameters = way, list(parameters)
        self.before: dict[Tensor, Any] = {}
        self.squares: list[Any] = []
        self.weights: list[Any] = []  # of all micro-batches so far
        self.samples: list[int] = []  # likewise

    @staticmethod
    def expect(micro_batches: int, coupled: bool) -> None:
        """Raise ValueError for a window that has no noise: of one micro-batch, or whose samples
        depend on each other."""
        if micro_batches < 2:
            what = "noise was asked of a window of 1 micro-batch, expected 2 or more"
            raise ValueError(f"{what}; give a smaller micro_batch_size")
        if coupled:
            what = "noise was asked where the samples of a batch depend on each other"
            raise ValueError(f"{what}, expected a sum over samples; use statistics='micro'")

    def look(self, sums: dict[str, Any], samples: int) -> None:
        """A micro-batch was added: the `.grad`s hold the sum so far. No wait.

        sums: of the window, by unit. samples: of the window so far. Raises ValueError for several
        units, or for a penalty alone.
        """
        if len(sums) > 1 or WINDOW in sums:
            units = ", ".join(map(repr, sums))
            what = f"noise was asked of a loss with the units {units}, expected one of data"
            raise ValueError(f"{what}; leave penalties to the optimizer's weight_decay")
        held = [p for p in self.parameters if p.grad is not None]
        found = (p.grad if self.way == "sums" else self._own(p) for p in held)
        self.squares.append(squared_norm(found))
        self.weights.append(sum(mine.weight for mine in sums.values()))
        self.samples.append(samples)

    def _own(self, p: Tensor) -> Any:
        """What the last micro-batch added to the gradient of p."""
        before = self.before.get(p)
        if before is None:
            self.before[p] = p.grad.copy()
            return p.grad
        own = p.grad - before
        before[...] = p.grad
        return own

    def numbers(self) -> list[Any]:
        """All that `read` needs, where it was computed."""
        whole = squared_norm(p.grad for p in self.parameters if p.grad is not None)
        return [whole, *self.squares, *self.weights]

    def read(self, numbers: list[Any]) -> GradientNoise | None:
        """The noise, from those numbers on the host; None for a single micro-batch, or no weight.

        Raises ValueError where the parts do not weigh in proportion to their samples, as with
        masked tokens: what a single draw is there, is not known.
        """
        k, samples, N = len(self.squares), self.samples, self.samples[-1]
        weights, W = numbers[1 + k :], numbers[-1]
        if k < 2 or not W:
            return None
        if any(abs(w * N - W * n) > 1e-6 * abs(w * N) for w, n in zip(weights, samples)):
            parts = f"{_listed(_steps(weights))} for {_listed(_steps(samples))} samples"
            what = f"noise was asked of micro-batches that weigh {parts}"
            raise ValueError(f"{what}, expected the same weight for each sample")
        whole, *squares = (s * N * N / (W * W) for s in numbers[: 1 + k])  # a sample weighs W/N
        if self.way == "sums":
            return from_sums(squares, samples)
        sizes = _steps(samples)
        means = [s / (n * n) for s, n in zip(squares, sizes, strict=True)]
        return from_parts(means, sizes, whole / (N * N))


def _steps(totals: list[Any]) -> list[Any]:
    return [after - before for before, after in zip([0, *totals], totals)]


def _listed(numbers: list[Any]) -> str:
    return ", ".join(f"{float(n):.4g}" for n in numbers[:4]) + ", ..." * (len(numbers) > 4)


class SmoothedNoise:
    """The noise over many windows: signal and noise are averaged apart, then divided.

    decay: of the exponential averages, which are corrected for their start (McCandlish et al. 2018,
    appendix A.1). One window alone tells little: its estimate of |G|^2 is often below 0.
    """

    def __init__(self, decay: float = 0.95) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"SmoothedNoise() got decay = {decay}, expected 0 or more, below 1")
        self.decay, self.windows = decay, 0
        self._sums = (0.0, 0.0)

    def update(self, noise: GradientNoise | None) -> GradientNoise | None:
        """Take in the noise of one more window, if it has one. Returns the average so far."""
        if noise is not None and all(map(math.isfinite, noise)):
            kept = zip(self._sums, noise, strict=True)
            self._sums = tuple(self.decay * old + (1 - self.decay) * new for old, new in kept)
            self.windows += 1
        return self.value

    @property
    def value(self) -> GradientNoise | None:
        """The average so far; None before the first window."""
        if not self.windows:
            return None
        seen = 1 - self.decay**self.windows
        return GradientNoise(*(total / seen for total in self._sums))


class TradeOff(NamedTuple):
    """What a batch size costs, in multiples of the least: updates, and samples."""

    updates: Any
    samples: Any


def trade_off(batch_size: Any, noise_scale: Any) -> TradeOff:
    """Updates and samples to the same loss: 1 + noise_scale/B times the fewest updates, those of
    an endless batch, and 1 + B/noise_scale times the fewest samples, those of the smallest batches.

    (updates - 1)(samples - 1) = 1, and both are 2 at the noise scale, the critical batch size
    (McCandlish et al. 2018, section 2; a model of the loss, not a theorem). The loss falls by
    1/updates of the most that one update can.
    """
    for name, value in (("batch_size", batch_size), ("noise_scale", noise_scale)):
        if not 0 < value < math.inf:
            raise ValueError(f"trade_off() got {name} = {value}, expected a number above 0")
    return TradeOff(1 + noise_scale / batch_size, 1 + batch_size / noise_scale)
