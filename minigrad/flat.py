"""All parameters in one array: what makes an update a few lines over vectors.

A parameter stays an array of its own shape: a view of its part of the flat one. So does its
gradient, during a window.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.arrays import gradient_dtype
from minigrad.tensor import Tensor


class Flat:
    """Parameters of one dtype side by side, in `data`, and their gradients, in `gradients`."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        first = parameters[0].data
        ends = np.cumsum([p.data.size for p in parameters]).tolist()
        self.parts = [slice(e - p.data.size, e) for p, e in zip(parameters, ends, strict=True)]
        self.data = np.empty_like(first, shape=ends[-1])
        self.gradients = np.empty_like(first, shape=ends[-1], dtype=gradient_dtype(first))
        self.views = [self.view(self.data, i) for i in range(len(parameters))]
        self.homes = [self.view(self.gradients, i) for i in range(len(parameters))]
        self.gather()

    def view(self, flat: Any, i: int) -> Any:
        """The part of parameter i of an array like `data`, in its shape."""
        return flat[self.parts[i]].reshape(self.parameters[i].data.shape)

    def gather(self) -> list[Any]:
        """The gradients that there are, neighbours joined; `runs` says where they lie.

        Brings home what was replaced by another array since: `p.data = ...`, `p.grad = ...`. A
        parameter without a gradient is in no run, and so stays as it is.
        """
        self.runs: list[slice] = []
        start = stop = 0
        for p, view, home, part in zip(
            self.parameters, self.views, self.homes, self.parts, strict=True
        ):
            if p.data is not view:
                self._adopt(p, view)
            if p.grad is None:
                continue
            if p.grad is not home:
                home[...] = p.grad
                p.grad = home
            if part.start != stop:
                if start < stop:
                    self.runs.append(slice(start, stop))
                start = part.start
            stop = part.stop
        if start < stop:
            self.runs.append(slice(start, stop))
        return [self.gradients[run] for run in self.runs]

    def _adopt(self, p: Tensor, view: Any) -> None:
        """Take a parameter, or take it back after `p.data = ...`."""
        same = type(p.data) is type(view) and p.data.dtype == view.dtype
        if not same or p.data.shape != view.shape:
            what = "a parameter changed its shape, dtype or device after the optimizer was made"
            raise TypeError(f"{what}; convert the model first, then make the optimizer")
        view[...] = p.data
        p.data = view
