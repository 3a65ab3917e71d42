"""Accumulation for loops that stream micro-batches: where the window is not one batch in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from minigrad.accumulation import StepReport, Sum, Window, check_model, micro_batches
from minigrad.layers import Module
from minigrad.losses import Loss
from minigrad.normalization import Statistics
from minigrad.optimizers import Optimizer
from minigrad.randomness import drawing
from minigrad.training import WeightAverage, as_list, finish_update, open_window


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
        self.model, self.optimizers = model, as_list(optimizer)
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
            self._window = open_window(self.model, self.optimizers, self.reduction)
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
        window = self._window = open_window(self.model, self.optimizers, self.reduction)
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
