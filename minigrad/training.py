"""One update, all of it in order: what must happen once a window, and nothing of it k times.

`train_step` is for a batch that is there; streaming.py for micro-batches that come one by one. Both
end in `finish_update`, which is the whole order: divide, look, clip, step, average, statistics.
Until its last lines nothing but gradients has changed: an error before leaves all as it was.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from minigrad.accumulation import (
    StepReport,
    Window,
    check_model,
    count_samples,
    micro_batches,
    run,
    squared_norm,
)
from minigrad.layers import Module, load_arrays
from minigrad.losses import Loss
from minigrad.optimizers import Optimizer
from minigrad.tensor import Tensor, constant


class NonFiniteWarning(RuntimeWarning):
    """A window was skipped because its loss or gradient was not finite."""


def train_step(
    model: Module,
    loss: Callable[..., Loss],
    optimizer: Optimizer | Sequence[Optimizer],
    batch: tuple,
    micro_batch_size: int | None = None,
    *,
    accumulation_steps: int | None = None,
    reduction: str = "mean",
    clip_norm: float | None = None,
    average: WeightAverage | None = None,
    on_nonfinite: str = "skip",
) -> StepReport:
    """One update by the gradient of the whole batch, computed a micro-batch at a time.

    model, loss, batch, micro_batch_size, accumulation_steps, reduction: as in `accumulate`.
    optimizer: one, or several for different parameters. clip_norm: the largest norm of the
    gradient, of all parameters together. average: moves once. on_nonfinite: "skip" makes no update,
    keeps all counts and warns; "raise" raises FloatingPointError.

    The update is that of micro_batch_size=len(batch): *exact* or to *rounding* for every layer but
    BatchNorm. After an error nothing has changed, and all gradients are None.
    """
    check_model(model)
    optimizers = as_list(optimizer)
    parts = micro_batches(count_samples(batch), micro_batch_size, accumulation_steps)
    window = open_window(model, optimizers, reduction)
    try:
        run(window, loss, batch, parts)
        return finish_update(window, optimizers, clip_norm, average, on_nonfinite)
    finally:
        window.clear()


def finish_update(
    window: Window,
    optimizers: Sequence[Optimizer],
    clip_norm: float | None,
    average: WeightAverage | None,
    on_nonfinite: str,
) -> StepReport:
    """Everything that happens once per update, in this order."""
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm is {clip_norm}, expected a number above 0, or None")
    if on_nonfinite not in ("skip", "raise"):
        raise ValueError(f"on_nonfinite is {on_nonfinite!r}, expected 'skip' or 'raise'")

    def collect() -> list[Any]:
        return [g for optimizer in optimizers for g in optimizer.gradients()]

    report = window.finish(collect)  # divided, and looked at: the one wait on a GPU
    report.reason = _why_not(report)
    if report.reason is not None:
        if report.weights and any(report.weights.values()):
            if on_nonfinite == "raise":
                raise FloatingPointError(report.reason)
            warnings.warn(report.reason, NonFiniteWarning, stacklevel=3)
        return report
    if clip_norm is not None:
        if report.grad_norm is None:
            raise TypeError("clip_norm was given for Fractions, which have no norm; leave it out")
        clip(collect(), report.grad_norm, clip_norm)

    # All memory that is still needed is taken first; then only writes are left.
    writers = [*optimizers] if average is None else [*optimizers, average]
    scratch = [writer.scratch() for writer in writers]
    moved = [(layer, layer.moved(seen)) for layer, seen in window.statistics.items()]
    for writer, spare in zip(writers, scratch, strict=True):
        writer.write(spare)
    for layer, running in moved:
        layer.running_mean, layer.running_var = running
    report.updated = True
    return report


def _why_not(report: StepReport) -> str | None:
    """Why a window makes no update, or None if it does."""
    if not any(report.weights.values()):
        return "nothing to count: the weight of the window is 0, all its targets are masked"
    if report.grad_norm is not None and not (
        math.isfinite(report.loss) and math.isfinite(report.grad_norm)
    ):
        return (
            f"the window's loss is {report.loss} and the norm of its gradient {report.grad_norm}, "
            "expected finite numbers: no update was made; look at the data and the learning rate"
        )
    return None


def as_list(optimizer: Optimizer | Sequence[Optimizer]) -> Sequence[Optimizer]:
    """One optimizer or several, as several."""
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    if not optimizers or not all(isinstance(o, Optimizer) for o in optimizers):
        raise TypeError("the optimizer is none, expected an mg.Optimizer or several in a list")
    return optimizers


def open_window(model: Module, optimizers: Sequence[Optimizer], reduction: str) -> Window:
    """A window over the parameters of the optimizers, for their next update."""
    parameters = [p for optimizer in optimizers for p in optimizer.parameters]
    return Window(model, parameters, reduction, optimizers[0].updates)


# ------------------------------------------------------------- clipping and averaging


def clip_grad_norm(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Scale all gradients by one factor so that their common norm is at most `max_norm`.

    Returns the norm before. To be called once a window, on the finished gradient, never on parts.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = float(squared_norm(gradients)) ** 0.5
    clip(gradients, norm, max_norm)
    return norm


def clip(gradients: Iterable[Any], norm: float, max_norm: float) -> None:
    """Scale gradients whose common norm is `norm` down to `max_norm`, if they exceed it."""
    if norm > max_norm:
        for g in gradients:
            g *= max_norm / norm


class WeightAverage:
    """Exponential moving average of the weights: average <- d average + (1 - d) weight.

    It starts at the weights as they are, and moves once per update (train_step's `average=`).
    `values` holds one array a parameter.
    """

    def __init__(self, parameters: Iterable[Tensor], decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"WeightAverage() got decay = {decay}, expected 0 or more and below 1")
        self.parameters, self.decay = list(parameters), decay
        self.values = [p.data.copy() for p in self.parameters]

    def update(self) -> None:
        """One move towards the weights as they are now."""
        self.write(self.scratch())

    def scratch(self) -> list[Any]:
        """The memory that `write` needs."""
        return [np.empty_like(value) for value in self.values]

    def write(self, scratch: list[Any]) -> None:
        """average += (1 - d) (weight - average)."""
        for value, p, s in zip(self.values, self.parameters, scratch, strict=True):
            np.subtract(p.data, value, out=s)
            s *= constant(1 - self.decay, s)
            value += s

    def state_dict(self) -> dict[str, Any]:
        """Copies of the averages: "0" is that of the first parameter."""
        return {str(i): value.copy() for i, value in enumerate(self.values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, or change nothing: see `load_arrays`."""
        load_arrays({str(i): value for i, value in enumerate(self.values)}, state)
