"""Accumulation for loops that stream micro-batches: where the window is not one batch in memory.

A loader gives one micro-batch at a time, and each passes by once. `Accumulator` opens a window,
adds to it block by block, and ends it by the same `finish_update` as `train_step`. What needs
several passes over a window, as BatchNorm on the statistics of the batch does, takes a list of
micro-batches: `Accumulator.window`.

Taught in lesson 05.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from minigrad.accumulation import StepReport, Sum, Window, run
from minigrad.batches import count_samples, positive
from minigrad.batchnorm import Statistics
from minigrad.coupling import couples
from minigrad.layers import Module, check_model
from minigrad.losses import Loss
from minigrad.optimizers import Optimizer
from minigrad.samples import drawing
from minigrad.training import Options, WeightAverage, finish_update, open_window


class Accumulator:
    """Accumulation for a loop that streams micro-batches: a window of `accumulation_steps` blocks.

        with mg.Accumulator(model, optimizer, accumulation_steps=4) as accumulator:
            for x, y in batches:
                with accumulator.micro_batch(len(x)):
                    accumulator.backward(mg.cross_entropy(model(x), y))

    The last block of a window makes the update. Leaving the outer block, at the end of the data,
    ends a window that is not full, and divides it by what it saw. An error inside drops the window:
    nothing but its gradients has changed, and those are forgotten. While a window is open its
    gradients are in `.grad`: leave them alone, and use no other window on the same model.

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
        noise: str | None = None,
    ) -> None:
        check_model(model)
        self.model, self.reduction = model, reduction
        self.options = Options(optimizer, clip_norm, average, on_nonfinite, noise)
        self.accumulation_steps = positive("accumulation_steps", accumulation_steps)
        self.micro_batches = self.updates = 0
        self.report: StepReport | None = None
        self._window: Window | None = None
        self._left: tuple[list, list] = [], []  # what `_seen` saw after the last micro-batch
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
        """A block for the next `samples` samples: forward, loss, and one call of `backward`.

        The forward pass belongs inside: there random layers know which samples they see, and
        BatchNorm's running statistics wait for the update.
        """
        if not self._open or self._inside:
            raise RuntimeError(
                "micro_batch() was called "
                + ("inside another micro-batch" if self._inside else "outside of the accumulator")
                + ", expected directly inside `with accumulator:`, which makes the last update"
            )
        count = positive("samples", samples)
        if self._window is None:
            if couples(self.model, None):
                raise ValueError(
                    "a BatchNorm has statistics='batch', which takes several passes over a window, "
                    "expected 'micro' or 'running': a stream passes once; or use train_step"
                )
            self._window = open_window(self.model, self.options, self.reduction)
            self.options.lend_homes()
            self._left = self._seen()
        window, before = self._window, self._window.micro_batches
        self._check_untouched()
        self._inside = True
        try:
            with drawing(window.turn_to(slice(window.samples, window.samples + count))):
                yield self
            if self._window is not window:
                raise RuntimeError(
                    "an error of backward() was caught inside the micro-batch: the window is "
                    "dropped, since part of a gradient would stay; catch it outside of the block"
                )
            if window.micro_batches != before + 1:
                times = window.micro_batches - before
                raise RuntimeError(
                    f"a micro-batch called backward() {times} times, expected once; "
                    + ("add losses with + first" if times else "call accumulator.backward(loss)")
                )
            self._check_untouched()
            self.micro_batches += 1
        except BaseException:
            self.drop()
            raise
        finally:
            self._inside = False
        if window.micro_batches >= self.accumulation_steps:
            self.flush()

    def window(self, loss: Callable[..., Loss], micro_batches: list[tuple]) -> StepReport:
        """A whole window at once, of micro-batches that are all there: (inputs, *targets) each.

        Unlike a stream it can be passed over several times, which BatchNorm with
        statistics="batch" and losses of a whole batch need.
        """
        self.flush()
        micro_batches = list(micro_batches)
        sizes = [positive("samples", count_samples(one)) for one in micro_batches]
        ends = np.cumsum(sizes).tolist()
        parts = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        if not parts:
            raise ValueError("window() got no micro-batches, expected a list of one or more")
        window = open_window(self.model, self.options, self.reduction)
        try:
            self.options.lend_homes()
            run(window, loss, micro_batches, parts)
            self.report = finish_update(window, self.options)
        finally:
            window.clear()
        self.micro_batches += len(parts)
        self.updates += self.report.updated
        return self.report

    def _seen(self) -> tuple[list[int], list[Any]]:
        """What must not change between micro-batches: the counts of updates, and the gradients."""
        counts = [optimizer.updates for optimizer in self.options.optimizers]
        return counts, [p.grad for p in self.options.parameters]

    def _check_untouched(self) -> None:
        """Drop the window and raise if anything but the window changed what `_seen` sees."""
        (counts, gradients), (old_counts, old_gradients) = self._seen(), self._left
        same = all(g is old for g, old in zip(gradients, old_gradients, strict=True))
        if same and counts == old_counts:
            return
        self.drop()
        raise RuntimeError(
            "gradients were cleared, or an optimizer made a step, inside a window, expected "
            "neither: it is dropped; leave zero_grad() and step() out, the window does both"
        )

    def backward(self, loss: Loss) -> None:
        """Add the loss of this micro-batch to the window. It is divided when the window ends."""
        if not self._inside or self._window is None:
            raise RuntimeError(
                "backward() was called outside of a micro-batch, expected it and the forward pass "
                "inside of `with accumulator.micro_batch(n):`"
            )
        self._check_untouched()
        try:
            self._window.add(loss)
        except BaseException:
            self.drop()
            raise
        self._left = self._seen()

    def flush(self) -> StepReport | None:
        """End the window here and make its update; None if it holds no micro-batch."""
        if self._inside:
            raise RuntimeError("flush() was called inside a micro-batch, expected after it")
        if self._window is None:
            return None
        self._check_untouched()
        try:
            self.report = finish_update(self._window, self.options)
        finally:
            self.drop()
        self.updates += self.report.updated
        return self.report

    def drop(self) -> None:
        """Forget the window: its gradients, weights and statistics."""
        if self._window is not None:
            self._window.clear()
        self._window = None

    def state_dict(self) -> dict[str, Any]:
        """Counts, and copies of all that an open window holds: a run can be saved inside of one."""
        if self._inside:
            raise RuntimeError("state_dict() was called inside a micro-batch, expected after it")
        state: dict[str, Any] = {"micro_batches": self.micro_batches, "updates": self.updates}
        window = self._window
        if window is None:
            return state | {"window": None}
        place = {module: i for i, module in enumerate(self.model.modules())}
        parameters = self.options.parameters
        sums = {}
        for unit, s in window.sums.items():
            mine = [p.grad if s.gradients is None else s.gradients.get(p) for p in parameters]
            sums[unit] = (s.total, s.weight, [_copy(g) for g in mine])
        return state | {
            "window": {
                "sums": sums,
                "statistics": {place[m]: tuple(s) for m, s in window.statistics.items()},
                "counts": (window.update, window.seed, window.samples, window.micro_batches),
                "doubts": dict(window.doubts),
                "updates": self._left[0],  # of the optimizers, which may be loaded before or after
            }
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, with the model and the optimizers of that moment.

        A window that was open then has no noise in its report. After an error no window is open.
        """
        self.drop()
        try:
            if state["window"] is not None:
                self._load_window(state["window"])
            self.micro_batches, self.updates = state["micro_batches"], state["updates"]
        except BaseException:
            self.drop()
            raise

    def _load_window(self, saved: dict[str, Any]) -> None:
        window = self._window = open_window(self.model, self.options, self.reduction)
        self.options.lend_homes()
        modules = self.model.modules()
        parameters = self.options.parameters
        for unit, (total, weight, gradients) in saved["sums"].items():
            pairs = zip(parameters, gradients, strict=True)
            copies = {p: _copy(g) for p, g in pairs if g is not None}
            if window.sums:
                window.sums[unit] = Sum(total, weight, copies)
                continue
            window.sums[unit] = Sum(total, weight, None)
            for p, g in copies.items():
                p.grad = g
        window.statistics.update(
            {modules[i]: Statistics(*s) for i, s in saved["statistics"].items()}
        )
        window.update, window.seed, window.samples, window.micro_batches = saved["counts"]
        window.doubts.update(saved["doubts"])
        window.meter = None  # what it saw before is not saved
        self._left = saved["updates"], self._seen()[1]


def _copy(gradient: Any) -> Any:
    return None if gradient is None else np.array(gradient, like=gradient)
