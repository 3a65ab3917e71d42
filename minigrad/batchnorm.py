"""BatchNorm, which couples the samples, and three answers to what micro-batches do to it.

The output for one sample depends on all others, by the mean and the variance of the batch, so that
the loss is no sum over samples. Where a batch comes in micro-batches, `statistics` says what to
standardize by: see `BatchNorm.rows`. The running statistics, which serve in evaluation, move once
an update whatever it says, by the merged statistics of the window.

Taught in lesson 07.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from minigrad import functions as F
from minigrad.arrays import convert, filled, gradient_dtype, refuse_fractions, shape_error, wide_sum
from minigrad.layers import Module, parameter
from minigrad.samples import Samples, current_samples
from minigrad.tensor import Tensor


class Statistics(NamedTuple):
    """n values a channel, their mean (c,), and the sum of their squared deviations from it (c,)."""

    n: int
    mean: Any
    squares: Any

    @staticmethod
    def of(x: Any) -> Statistics:
        """Those of the columns of an array x (n, c)."""
        wide = None if x.dtype == object else np.float64  # see functions.batch_norm
        mean = np.add.reduce(x, 0, wide) / max(len(x), 1)
        mean = mean.astype(gradient_dtype(x), copy=False)
        centred = x - mean
        return Statistics(len(x), mean, wide_sum(centred * centred, 0))

    @property
    def variance(self) -> Any:
        """The mean squared deviation, (c,)."""
        return self.squares / max(self.n, 1)

    def merge(self, other: Statistics) -> Statistics:
        """Those of both sets of values together (Chan, Golub & LeVeque 1979).

        The squared deviations of each part from its own mean miss how far the means are apart:
        n_a n_b / n (mean_b - mean_a)^2 is what is added.
        """
        n = self.n + other.n
        apart = other.mean - self.mean
        share = apart * other.n / max(n, 1)
        return Statistics(
            n, self.mean + share, self.squares + other.squares + apart * share * self.n
        )


def inverse_deviation(var: Tensor, eps: float) -> Tensor:
    """1 / sqrt(variance + eps), by which a channel is scaled. (c,) -> (c,)."""
    return 1 / F.sqrt(var + eps)


class BatchNorm(Module):
    """Standardize each channel over the batch, times weight (c,), plus bias (c,).

    x is (n, c), (n, c, length) or (n, c, height, width), and a channel all that shares its index.
    In training the batch's own statistics serve (biased variance), and the running statistics move
    by `momentum` towards them (unbiased variance); in evaluation the running statistics serve
    (Ioffe & Szegedy 2015, algorithms 1 and 2). Where a batch comes in micro-batches,

    statistics="batch": those of the whole batch, by several passes over it (coupling.py): the
    gradient is that of one batch, to *rounding*, for micro-batches of any size.
    statistics="micro": each micro-batch its own, as in other libraries: *different*. With intent
    this is Ghost BatchNorm (Hoffer, Hubara & Soudry 2017).
    statistics="running": each its own, moved to where the running statistics would put it (Batch
    Renormalization, Ioffe 2017), by a factor of at most r_max and a shift of at most d_max
    deviations, through which no gradient flows: *different*, and less dependent on the size.
    """

    buffers = ("running_mean", "running_var")
    absorbs_bias = True  # of what comes before it: the mean is taken away again

    def __init__(
        self,
        channels: int,
        *,
        momentum: float = 0.1,
        eps: float = 1e-5,
        statistics: str = "batch",
        affine: bool = True,
        r_max: float = 3.0,
        d_max: float = 5.0,
        dtype: Any = np.float32,
    ) -> None:
        if statistics not in ("batch", "micro", "running"):
            choices = "'batch', 'micro' or 'running'"
            raise ValueError(f"BatchNorm() got statistics={statistics!r}, expected {choices}")
        ones, zeros = np.ones(channels), np.zeros(channels)
        if affine:
            self.weight, self.bias = parameter(ones, dtype), parameter(zeros, dtype)
        self.running_mean, self.running_var = convert(zeros, dtype), convert(ones, dtype)
        self.momentum, self.eps, self.statistics = momentum, eps, statistics
        self.affine, self.r_max, self.d_max = affine, r_max, d_max

    def forward(self, x: Any) -> Tensor:
        x = F.as_tensor(x, like=Tensor(self.running_mean))
        channels = len(self.running_mean)
        if not 2 <= x.ndim <= 4 or x.shape[1] != channels:
            raise shape_error("BatchNorm", x.shape, f"(n, {channels}), a row a sample, or images")
        if x.ndim == 2:
            return self.rows(x)
        last = (0, *range(2, x.ndim), 1)  # the channels last, and a row for each place
        moved = x.transpose(last)
        back = tuple(np.argsort(last).tolist())
        return self.rows(moved.reshape(-1, channels)).reshape(moved.shape).transpose(back)

    def rows(self, x: Tensor) -> Tensor:
        """Standardize the columns of x (rows, c): in evaluation by the running statistics, in one
        of several passes over a batch by what these have found, and else by their own."""
        samples = current_samples()
        coupling = samples.coupling if samples is not None and self.statistics == "batch" else None
        if self.training and coupling is None:
            return self._by_own(x, samples)
        dtype, x = x.dtype, _wide(x)
        running = (_wide(Tensor(v)) for v in (self.running_mean, self.running_var))
        mean, var = coupling.of(self, x) if self.training else running
        weight, bias = map(_wide, self._weight_and_bias())
        y = F.rescale(x, mean, weight * inverse_deviation(var, self.eps), bias)
        return y if y.dtype == dtype else y.astype(dtype)

    def _by_own(self, x: Tensor, samples: Samples | None) -> Tensor:
        """By the statistics of x, or from there towards the running ones."""
        if samples is not None and samples.start and self.statistics == "batch":
            raise ValueError(UNSEEN)
        refuse_fractions("BatchNorm", (x.data,), "use .astype(np.float64)")
        if len(x) < 2:
            what = "BatchNorm got a micro-batch of one sample in training, expected two or more"
            raise ValueError(f"{what}; use a larger micro_batch_size, or LayerNorm")
        weight, bias = self._weight_and_bias()
        if self.statistics == "running":
            weight, bias = self._towards_running(Statistics.of(x.data), weight, bias)
        y, mean, squares = F.batch_norm(x, weight, bias, self.eps)
        seen = Statistics(len(x), mean, squares)
        if samples is None:
            self.running_mean, self.running_var = self.moved(seen)
        else:  # in a window they move when it ends
            before = samples.statistics.get(self)
            samples.statistics[self] = seen if before is None else before.merge(seen)
        return y

    def _weight_and_bias(self) -> tuple[Tensor, Tensor]:
        if self.affine:
            return self.weight, self.bias
        return Tensor(filled(self.running_var, 1)), Tensor(filled(self.running_mean, 0))

    def _towards_running(self, own: Statistics, weight: Tensor, bias: Tensor) -> tuple:
        """Weight and bias by which r and d act: y = weight (r x + d) + bias, x standardized."""
        deviation = np.sqrt(self.running_var + self.eps)
        r = np.sqrt(own.squares / own.n + self.eps) / deviation
        d = (own.mean - self.running_mean) / deviation
        r, d = np.clip(r, 1 / self.r_max, self.r_max), np.clip(d, -self.d_max, self.d_max)
        return weight * r, weight * d + bias

    def moved(self, seen: Statistics) -> tuple[Any, Any]:
        """The running mean and variance after one move towards what was seen."""
        m, dtype = self.momentum, self.running_mean.dtype
        mean = (1 - m) * self.running_mean + m * seen.mean
        var = (1 - m) * self.running_var + m * (seen.squares / (seen.n - 1))
        return mean.astype(dtype, copy=False), var.astype(dtype, copy=False)


UNSEEN = (
    "a BatchNorm with statistics='batch' met a micro-batch that is not the whole batch, expected "
    "it in training and among the model's modules when the window began; make it an attribute of "
    "the model, or choose 'micro' or 'running'"
)


def _wide(x: Tensor) -> Tensor:
    """x in the dtype in which sums are made: float32 for float16."""
    wide = gradient_dtype(x.data)
    return x if wide == x.dtype else x.astype(wide)


def momentum_per_micro_batch(momentum: float, k: int) -> float:
    """The momentum m' with which k moves go as far as one move with `momentum`: (1 - m')^k = 1 - m.

    For loops that move running statistics once a micro-batch; only the horizon is mended by it.
    """
    return 1 - (1 - momentum) ** (1 / k)
