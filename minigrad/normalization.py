"""LayerNorm and GroupNorm: normalizations of each sample by itself, which couple no samples.

Any split of a batch gives its gradient, to *rounding*. BatchNorm is another matter: batchnorm.py.

Taught in lesson 07.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad import functions as F
from minigrad.arrays import shape_error
from minigrad.layers import Module, parameter
from minigrad.tensor import Tensor


class LayerNorm(Module):
    """Standardize each sample over its last axis, times weight (c,), plus bias (c,).

    Ba, Kiros & Hinton 2016. It couples no samples: any split is equal to *rounding*.
    """

    def __init__(self, features: int, *, eps: float = 1e-5, dtype=np.float32) -> None:
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

    def __init__(self, groups: int, channels: int, *, eps: float = 1e-5, dtype=np.float32) -> None:
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
