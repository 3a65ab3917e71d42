"""One update: all that must happen once per window, and never once per micro-batch, in order.

`train_step` is for a batch that is there; streaming.py for micro-batches that come one by one. Both
end in `finish_update`, which is the whole order: divide, look, clip, step, average, statistics.
Until its last lines nothing but gradients has changed, so that an error changes nothing.

Taught in lesson 03 and lesson 06.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from minigrad.accumulation import StepReport, Window, run
from minigrad.arrays import constant, load_arrays, root, squared_norm
from minigrad.batches import count_samples, micro_batches
from minigrad.layers import Module, check_model
from minigrad.losses import Loss
from minigrad.noise import NoiseMeter
from minigrad.optimizers import Optimizer
from minigrad.tensor import Tensor


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
    noise: str | None = None,
) -> StepReport:
    """One update by the gradient of the whole batch, computed a micro-batch at a time.

    model, loss, batch, micro_batch_size, accumulation_steps, reduction, noise: as in `accumulate`.
    optimizer: one, or several for different parameters. clip_norm: the largest norm of the
    gradient, of all parameters together. average: moves once. on_nonfinite: "skip" makes no update,
    keeps all counts and warns; "raise" raises FloatingPointError.

    The update is that of micro_batch_size=len(batch): *exact* or to *rounding* for every layer but
    a BatchNorm that was asked for other statistics than those of the batch. Afterwards all
    gradients are None (`accumulate` shows them), and after an error nothing else has changed.
    """
    options = Options(optimizer, clip_norm, average, on_nonfinite, noise)
    parts = micro_batches(count_samples(batch), micro_batch_size, accumulation_steps)
    window = open_window(model, options, reduction)
    try:
        options.lend_homes()
        run(window, loss, batch, parts)
        return finish_update(window, options)
    finally:
        window.clear()


class Options:
    """What an update is made with; checked before any work is done. See `train_step`."""

    def __init__(
        self,
        optimizer: Optimizer | Sequence[Optimizer],
        clip_norm: float | None,
        average: WeightAverage | None,
        on_nonfinite: str,
        noise: str | None,
    ) -> None:
        self.optimizers = optimizer if isinstance(optimizer, Sequence) else [optimizer]
        if not self.optimizers or not all(isinstance(o, Optimizer) for o in self.optimizers):
            kinds = ", ".join(sorted({str(type(o)) for o in self.optimizers})) or "an empty list"
            what = f"the optimizer is of {kinds}, expected an mg.Optimizer or a list of some"
            raise TypeError(f"{what}; make one: mg.SGD(model.parameters(), lr)")
        self.parameters = [p for o in self.optimizers for p in o.parameters]
        if len(self.optimizers) > 1 and len(set(self.parameters)) < len(self.parameters):
            raise ValueError("two optimizers share a parameter, expected each in one of them")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm is {clip_norm}, expected a number above 0, or None")
        if average is not None and not isinstance(average, WeightAverage):
            raise TypeError(f"average is {average!r}, expected an mg.WeightAverage or None")
        if on_nonfinite not in ("skip", "raise"):
            raise ValueError(f"on_nonfinite is {on_nonfinite!r}, expected 'skip' or 'raise'")
        self.clip_norm, self.average, self.on_nonfinite = clip_norm, average, on_nonfinite
        self.noise = noise
        self.meter()

    def meter(self) -> NoiseMeter | None:
        """What measures the noise of one window, if it was asked for."""
        return None if self.noise is None else NoiseMeter(self.noise, self.parameters)

    def gradients(self) -> list[Any]:
        """Arrays that together hold the gradients of all parameters of the optimizers."""
        return [g for optimizer in self.optimizers for g in optimizer.gradients()]

    def lend_homes(self) -> None:
        """Let gradients be written where the optimizers need them, until the window is cleared."""
        for optimizer in self.optimizers:
            optimizer.lend_homes()


def open_window(model: Module, options: Options, reduction: str) -> Window:
    """A window for the next update. `Options.lend_homes` follows where an error clears it."""
    check_model(model)
    leaves = dict.fromkeys(options.parameters)
    return Window(model, leaves, reduction, options.optimizers[0].updates, options.meter())


def finish_update(window: Window, options: Options) -> StepReport:
    """Everything that happens once per update, in this order."""
    report = window.finish(options.gradients)  # divided, and looked at: the one wait on a GPU
    if not any(report.weights.values()):
        report.reason = "nothing to count: no target of the window counts, its weight is 0"
        return report
    if report.grad_norm is not None and not (
        math.isfinite(report.loss) and math.isfinite(report.grad_norm)
    ):
        report.reason = (
            f"the window's loss is {report.loss} and the norm of its gradient {report.grad_norm}, "
            "expected finite numbers: no update was made; look at the data and the learning rate"
        )
        if options.on_nonfinite == "raise":
            raise FloatingPointError(report.reason)
        warnings.warn(report.reason, NonFiniteWarning, stacklevel=3)
        return report
    if not window.gradients:
        what = "the loss gave no gradient to any parameter of the optimizer"
        raise ValueError(f"{what}, expected the model's; make it from model.parameters()")
    if options.clip_norm is not None:  # clip
        if report.grad_norm is None:
            raise TypeError("clip_norm was given for Fractions, which have no norm; leave it out")
        clip(window.gradients, report.grad_norm, options.clip_norm)

    # All that may still fail is done first: rates are asked for, memory is taken. Then only writes
    # are left.
    average = [] if options.average is None else [options.average]
    writers: list[Any] = [*options.optimizers, *average]
    prepared = [writer.prepare() for writer in writers]
    moved = [(layer, layer.moved(seen)) for layer, seen in window.statistics.items()]
    for writer, needed in zip(writers, prepared, strict=True):  # step, then average
        writer.write(needed)
    for layer, running in moved:  # the statistics
        layer.running_mean, layer.running_var = running
    report.updated = True
    return report


# ------------------------------------------------------------- clipping and averaging


def clip_grad_norm(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Scale all gradients by one factor so that their common norm is at most `max_norm`.

    Returns the norm before. To be called once a window, on the finished gradient, never on parts:
    raises RuntimeError inside a window of an Accumulator or of `train_step`.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm is {max_norm}, expected a number above 0")
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    if any(p.home is not None for p in parameters):  # lent for the time of a window
        what = "clip_grad_norm() was called inside a window, expected a finished gradient"
        raise RuntimeError(f"{what}; give clip_norm= to the Accumulator or to train_step")
    gradients = [p.grad for p in parameters if p.grad is not None]
    if any(g.dtype == object for g in gradients):
        raise TypeError("clip_grad_norm() got Fractions, which have no norm; use floats")
    norm = root(float(squared_norm(gradients)), gradients)
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
        if isinstance(parameters, Tensor) or not all(
            isinstance(p, Tensor) for p in self.parameters
        ):
            kinds = ", ".join(sorted({type(p).__name__ for p in self.parameters}))
            what = f"WeightAverage() got a {type(parameters).__name__} of {kinds}"
            raise TypeError(f"{what}, expected a list of Tensors; pass model.parameters()")
        self.values = [p.data.copy() for p in self.parameters]

    def update(self) -> None:
        """One move towards the weights as they are now."""
        self.write(self.prepare())

    def prepare(self) -> list[Any]:
        """The memory that `write` needs."""
        for value, p in zip(self.values, self.parameters, strict=True):
            if type(p.data) is not type(value) or p.data.dtype != value.dtype:
                what = "a parameter changed its dtype or device after its average was made"
                raise TypeError(f"{what}; convert the model first, then make the average")
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
