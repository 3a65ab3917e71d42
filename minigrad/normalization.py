"""Normalizations: BatchNorm, which couples the samples, and LayerNorm and GroupNorm, which do not.

BatchNorm's output for one sample depends on the others, so that its loss is no sum over samples,
and k micro-batches are not one batch. Its statistics are merged here over the window, though, so
that at least the running statistics, used in evaluation, are those of the whole batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from minigrad import functions as F
from minigrad.arrays import shape_error
from minigrad.layers import Module, parameter
from minigrad.randomness import current_samples
from minigrad.tensor import Tensor


class Statistics(NamedTuple):
    """n values a channel, their mean (c,), and the sum of their squared deviations from it (c,)."""

    n: int
    mean: Any
    squares: Any

    def merge(self, other: Statistics) -> Statistics:
        """Those of both sets of values together (Chan, Golub & LeVeque 1979).

        The squared deviations of each part from its own mean miss how far the means are apart:
        n_a n_b / n (mean_b - mean_a)^2 is what is added.
        """
        n = self.n + other.n
        apart = other.mean - self.mean
        return Statistics(
            n,
            self.mean + apart * (other.n / n),
            self.squares + other.squares + apart * apart * (self.n * other.n / n),
        )


class BatchNorm(Module):
    """Standardize each feature over the batch, times weight (c,), plus bias (c,): (n, c) -> (n, c).

    In training the batch's own statistics serve (biased variance), and the running statistics move
    by `momentum` towards them (unbiased variance); in evaluation the running statistics serve
    (Ioffe & Szegedy 2015, algorithms 1 and 2). statistics="micro": in a window each micro-batch is
    standardized by its own statistics, which is *different* from one batch; the running statistics
    move once an update, by the merged statistics of the window, to *rounding* those of one batch.
    """

    buffers = ("running_mean", "running_var")

    def __init__(
        self, features: int, *, momentum=0.1, eps=1e-5, statistics="micro", dtype: Any = np.float32
    ) -> None:
        if statistics != "micro":
            raise ValueError(f"BatchNorm() got statistics={statistics!r}, expected 'micro'")
        self.weight = parameter(np.ones(features), dtype)
        self.bias = parameter(np.zeros(features), dtype)
        self.running_mean = np.zeros(features, dtype)
        self.running_var = np.ones(features, dtype)
        self.momentum, self.eps, self.statistics = momentum, eps, statistics

    def forward(self, x: Any) -> Tensor:
        x = F.as_tensor(x, like=self.weight)
        if x.ndim != 2 or x.shape[1] != self.weight.shape[0]:
            raise shape_error("BatchNorm", x.shape, f"(n, {len(self.weight)}), a row a sample")
        if not self.training:
            r = 1 / np.sqrt(self.running_var + self.eps)
            return (x - self.running_mean) * r * self.weight + self.bias
        n = x.shape[0]
        if n < 2:
            what = "BatchNorm got a micro-batch of one sample in training, expected two or more"
            raise ValueError(f"{what}; use a larger micro_batch_size, or LayerNorm")
        y, mean, squares = F.batch_norm(x, self.weight, self.bias, self.eps)
        seen, samples = Statistics(n, mean, squares), current_samples()
        if samples is None:
            self.running_mean, self.running_var = self.moved(seen)
        else:
            before = samples.statistics.get(self)
            samples.statistics[self] = seen if before is None else before.merge(seen)
        return y

    def moved(self, seen: Statistics) -> tuple[Any, Any]:
        """The running mean and variance after one move towards what was seen."""
        m, dtype = self.momentum, self.running_mean.dtype
        mean = (1 - m) * self.running_mean + m * seen.mean
        var = (1 - m) * self.running_var + m * (seen.squares / (seen.n - 1))
        return mean.astype(dtype, copy=False), var.astype(dtype, copy=False)


class LayerNorm(Module):
    """Standardize each sample over its last axis, times weight (c,), plus bias (c,).

    Ba, Kiros & Hinton 2016. It couples no samples: any split is equal to *rounding*.
    """

    def __init__(self, features: int, *, eps: float = 1e-5, dtype: Any = np.float32) -> None:
        self.weight = parameter(np.ones(features), dtype)
        self.bias = parameter(np.zeros(features), dtype)
        self.eps = eps

    def forward(self, x: Any) -> Tensor:
        x = F.as_tensor(x, like=self.weight)
        if not x.ndim or x.shape[-1] != self.weight.shape[0]:
            raise shape_error("LayerNorm", x.shape, f"(..., {len(self.weight)})")
        return F.standardize(x, -1, self.eps) * self.weight + self.bias


class GroupNorm(Module):
    """Standardize each sample over groups of channels, times weight (c,), plus bias (c,).

    Input (n, c, ...): a group is c / groups channels and all axes behind (Wu & He 2018).
    """

    def __init__(
        self, groups: int, channels: int, *, eps: float = 1e-5, dtype: Any = np.float32
    ) -> None:
        if groups < 1 or channels % groups:
            raise ValueError(f"GroupNorm() got {groups} groups, expected a divisor of {channels}")
        self.weight = parameter(np.ones(channels), dtype)
        self.bias = parameter(np.zeros(channels), dtype)
        self.groups, self.eps = groups, eps

    def forward(self, x: Any) -> Tensor:
        x = F.as_tensor(x, like=self.weight)
        channels = self.weight.shape[0]
        if x.ndim < 2 or x.shape[1] != channels:
            raise shape_error("GroupNorm", x.shape, f"(n, {channels}, ...)")
        grouped = x.reshape(x.shape[0], self.groups, -1)
        y = F.standardize(grouped, -1, self.eps).reshape(x.shape)
        column = (channels,) + (1,) * (x.ndim - 2)
        return y * self.weight.reshape(column) + self.bias.reshape(column)
