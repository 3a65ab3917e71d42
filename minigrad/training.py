"""One update, all of it in order: what must happen once a window, and nothing of it k times.

`train_step` is for a batch that is there; `Accumulator` for micro-batches that stream by. Both end
in `finish_update`, which is the whole order: divide, look, clip, step, average, statistics. Until
its last lines nothing but gradients has changed, so an error before leaves everything as it was.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from minigrad.accumulation import (
    StepReport,
    Sum,
    Window,
    check_model,
    count_samples,
    micro_batches,
    run,
)
from minigrad.layers import Module
from minigrad.losses import Loss
from minigrad.normalization import Statistics
from minigrad.optimizers import Optimizer, WeightAverage, clip
from minigrad.randomness import drawing


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
    optimizers = _optimizers(optimizer)
    parts = micro_batches(count_samples(batch), micro_batch_size, accumulation_steps)
    window = _window(model, optimizers, reduction)
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


def _optimizers(optimizer: Optimizer | Sequence[Optimizer]) -> Sequence[Optimizer]:
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    if not optimizers or not all(isinstance(o, Optimizer) for o in optimizers):
        raise TypeError("the optimizer is none, expected an mg.Optimizer or several in a list")
    return optimizers


def _window(model: Module, optimizers: Sequence[Optimizer], reduction: str) -> Window:
    parameters = [p for optimizer in optimizers for p in optimizer.parameters]
    return Window(model, parameters, reduction, optimizers[0].updates)


class Accumulator:
    """Accumulation for a loop that streams micro-batches: a window of `accumulation_steps` blocks.

        with mg.Accumulator(model, optimizer, accumulation_steps=4) as window:
            for x, y in loader:
                with window.micro_batch(len(x)):
                    window.backward(mg.cross_entropy(model(x), y))

    The last block of a window makes the update; leaving the outer block, at the end of the data,
    makes that of a shorter last window, divided by what it saw. An error inside drops the window:
    nothing but its gradients has changed, and those are forgotten.

    micro_batches, updates: what was done since this was made. report: the last StepReport.
    The other arguments are those of `train_step`.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        accumulation_steps: int,
        reduction: str = "mean",
        clip_norm: float | None = None,
        average: WeightAverage | None = None,
        on_nonfinite: str = "skip",
    ) -> None:
        check_model(model)
        micro_batches(1, accumulation_steps=accumulation_steps)  # raises if it is no count
        self.model, self.optimizers = model, _optimizers(optimizer)
        self.accumulation_steps, self.reduction = accumulation_steps, reduction
        self.clip_norm, self.average, self.on_nonfinite = clip_norm, average, on_nonfinite
        self.micro_batches = self.updates = 0
        self.report: StepReport | None = None
        self._window: Window | None = None
        self._inside = False  # a micro-batch
        self._open = False  # the outer block

    def __enter__(self) -> Accumulator:
        self._open = True
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._open = False
        if kind is None:
            self.flush()
        else:
            self.drop()

    @contextmanager
    def micro_batch(self, samples: int) -> Iterator[Accumulator]:
        """A block for the next `samples` samples: forward, loss, and one call of `backward`."""
        if not self._open or self._inside:
            raise RuntimeError(
                "micro_batch() was called "
                + ("inside another micro-batch" if self._inside else "outside of the accumulator")
                + ", expected directly inside `with accumulator:`, which makes the last update"
            )
        if self._window is None:
            self._window = _window(self.model, self.optimizers, self.reduction)
        window, seen = self._window, self._window.micro_batches
        self._inside = True
        try:
            with drawing(window.next_samples(samples)):
                yield self
            if window.micro_batches != seen + 1:
                raise RuntimeError(
                    f"a micro-batch called backward() {window.micro_batches - seen} times, "
                    "expected once; add losses with + first"
                )
            self.micro_batches += 1
        except BaseException:
            self.drop()
            raise
        finally:
            self._inside = False
        if window.micro_batches == self.accumulation_steps:
            self.flush()

    def backward(self, loss: Loss) -> None:
        """Add the loss of this micro-batch to the window. It is divided when the window ends."""
        if not self._inside or self._window is None:
            raise RuntimeError("backward() was called outside of `with window.micro_batch(n):`")
        self._window.add(loss)

    def flush(self) -> StepReport | None:
        """End the window here and make its update; None if it holds no micro-batch."""
        window, self._window = self._window, None
        if window is None:
            return None
        try:
            self.report = finish_update(
                window, self.optimizers, self.clip_norm, self.average, self.on_nonfinite
            )
        finally:
            window.clear()
        self.updates += self.report.updated
        return self.report

    def drop(self) -> None:
        """Forget the window: its gradients, weights and statistics."""
        if self._window is not None:
            self._window.clear()
        self._window = None

    def state_dict(self) -> dict[str, Any]:
        """Counts, and copies of all that an open window holds: a run can be saved inside of one."""
        state: dict[str, Any] = {"micro_batches": self.micro_batches, "updates": self.updates}
        window = self._window
        if window is None:
            return state | {"window": None}
        place = {module: i for i, module in enumerate(self.model.modules())}
        sums = {
            unit: (s.total, s.weight, [_copy(g) for g in s.gradients or _grads(window)])
            for unit, s in window.sums.items()
        }
        return state | {
            "window": {
                "sums": sums,
                "statistics": {place[m]: tuple(s) for m, s in window.statistics.items()},
                "counts": (window.update, window.seed, window.samples, window.micro_batches),
                "penalty_moved": window.penalty_moved,
            }
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, with the model and optimizer of that moment."""
        self.drop()
        self.micro_batches, self.updates = state["micro_batches"], state["updates"]
        saved = state["window"]
        if saved is None:
            return
        window = self._window = _window(self.model, self.optimizers, self.reduction)
        modules = self.model.modules()
        for unit, (total, weight, gradients) in saved["sums"].items():
            copies = [_copy(g) for g in gradients]
            if window.sums:
                window.sums[unit] = Sum(total, weight, copies)
                continue
            window.sums[unit] = Sum(total, weight, None)
            for p, g in zip(window.parameters, copies, strict=True):
                p.grad = g
        window.statistics.update(
            {modules[i]: Statistics(*s) for i, s in saved["statistics"].items()}
        )
        window.update, window.seed, window.samples, window.micro_batches = saved["counts"]
        window.penalty_moved = saved["penalty_moved"]


def _grads(window: Window) -> list[Any]:
    return [p.grad for p in window.parameters]


def _copy(gradient: Any) -> Any:
    return None if gradient is None else np.array(gradient, like=gradient)
