"""Accumulation: the gradient of one batch from its micro-batches. The subject of minigrad.

A *window* is the micro-batches that make one update. A loss is a sum with a weight (losses.py), the
gradient of a sum is the sum of the gradients, and `backward` adds (tensor.py). So the gradients of
the micro-batches simply add up where they are, in `.grad`, whatever the sizes. At the end of the
window they are divided, once, by the weight that was seen: in `Window._divide`, nowhere else.

Taught in lesson 04 and lesson 05.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from minigrad.arrays import constant, fetch, root, squared_norm
from minigrad.batches import count_samples, micro_batches, near, take
from minigrad.coupling import Coupling, Visit, couples, exact
from minigrad.layers import Module, check_model
from minigrad.losses import BATCH, WINDOW, Loss, Term, check_loss, nonzero
from minigrad.noise import GradientNoise, NoiseMeter
from minigrad.randomness import current_seed
from minigrad.samples import Samples, drawing
from minigrad.tensor import Tensor, backward

# ------------------------------------------------------------------------------ the window


@dataclass(slots=True)
class Sum:
    """What one unit has added up to: its total, its weight, and its gradient per parameter.

    `gradients` is None for the window's first unit, usually the only one: it adds up in `.grad`.
    """

    total: Any
    weight: Any
    gradients: dict[Tensor, Any] | None


@dataclass(slots=True)
class StepReport:
    """What a window did. loss: the value that was differentiated, of the whole window.

    weights: how much each unit weighs, by which "mean" divides it. grad_norm: of the finished
    gradient, before clipping; None for Fractions. passes: how often each sample was looked at.
    reason: why `updated` is False.
    noise: that of the gradient, where it was asked for (noise.py).
    """

    loss: Any
    weights: dict[str, Any]
    grad_norm: float | None
    micro_batches: int
    passes: int = 1
    updated: bool = False
    reason: str | None = None
    noise: GradientNoise | None = None


@dataclass(slots=True)
class Window:
    """The sums of one window, while its micro-batches come in; the parameters stand still."""

    model: Module
    leaves: dict[Tensor, Any]  # its keys: whose `.grad` this window fills and clears; more may join
    reduction: str
    update: int
    meter: NoiseMeter | None = None
    seed: int = field(default_factory=current_seed)
    samples: int = 0  # up to which the batch was looked at, in this pass
    micro_batches: int = 0
    passes: int = 1
    sums: dict[str, Sum] = field(default_factory=dict)
    statistics: dict[Any, Any] = field(default_factory=dict)
    positions: dict[Any, int] = field(default_factory=dict)
    doubts: dict[str, Any] = field(default_factory=dict)  # of each message: is it to be raised?
    gradients: list[Any] = field(default_factory=list)  # the finished ones
    frozen: list[Tensor] = field(default_factory=list)  # by a pass that wants no gradient of them

    def __post_init__(self) -> None:
        if self.reduction not in ("mean", "sum"):
            raise ValueError(f"reduction is {self.reduction!r}, expected 'mean' or 'sum'")
        if not self.leaves:
            raise ValueError(f"{self.model!r} has no parameters, expected one or more to train")
        self.clear()

    def clear(self) -> None:
        """Forget all gradients, and where the next ones are to lie; thaw what is frozen."""
        for p in self.frozen:
            p.requires_grad = True
        for p in self.leaves:
            p.grad = p.home = None

    def turn_to(self, part: slice, coupling: Coupling | None = None) -> Samples:
        """The samples of this part of the batch, as the layers see them."""
        self.samples = part.stop
        moves = coupling is None or coupling.last  # what other passes see moves no statistics
        seen = self.model.modules, self.statistics if moves else {}, self.positions
        return Samples(self.seed, self.update, part.start, part.stop, *seen, coupling=coupling)

    def add(self, loss: Loss, every: bool = False) -> None:
        """Differentiate the loss of one micro-batch and add all it holds to the sums.

        every: differentiate a term of weight 0 too, whose samples count for the others.
        """
        check_loss(loss)
        self.micro_batches += 1
        if not every and self.micro_batches > 1 and any(t.unit == BATCH for t in loss.terms):
            what = "a loss of the whole batch was computed on a micro-batch, expected all outputs"
            raise ValueError(f"{what} at once: mark it with @mg.coupled, and call train_step")
        for term in loss.terms:  # all units, in one order, whatever counts here
            if term.unit not in self.sums:
                self.sums[term.unit] = Sum(0, 0, {} if self.sums else None)
        terms = [term for term in loss.terms if self._counts(term, every)]
        for term in terms:
            self._add_term(term, retain_graph=term is not terms[-1])
        for term in loss.terms:
            term.total = term.total.detach()  # whoever keeps the loss keeps no tape
        if self.meter is not None:
            self.meter.look(self.sums, self.samples)

    def _counts(self, term: Term, every: bool) -> bool:
        """False for a term that adds nothing: all targets masked, or a penalty seen before.

        Weight 0 is not enough: smoothed, a label whose class weighs nothing looks at the others.
        """
        if term.unit == WINDOW and self.sums[WINDOW].weight:
            first, now = self.sums[WINDOW].total, _value_of(term)
            what = "mg.penalty() got other values in other micro-batches, expected a term that"
            wrong = f"{what} depends on parameters alone; mg.per_sample is for data"
            self.doubt(wrong, (first != now) & (first == first))  # a NaN equals nothing
            return False
        # Looked at where both lie on the host: elsewhere a look would wait.
        on_host = isinstance(term.total.data, np.ndarray) and not hasattr(term.weight, "shape")
        return every or not on_host or bool(term.weight or term.total.data.any())

    def _add_term(self, term: Term, retain_graph: bool) -> None:
        mine = self.sums[term.unit]
        backward(term.total, term.seed(), retain_graph, into=mine.gradients, leaves=self.leaves)
        mine.total = mine.total + _value_of(term)
        mine.weight = mine.weight + constant(term.weight, term.total.data)

    def doubt(self, wrong: str, seen: Any) -> None:
        """Remember whether something wrong was seen: to look at it now would wait."""
        self.doubts[wrong] = self.doubts.get(wrong, False) | seen

    def finish(self, collect: Callable[[], list[Any]]) -> StepReport:
        """Divide, once, and report: the gradient in `.grad` is now that of the whole window.

        collect: gives arrays that together hold the gradients.
        """
        measured = [] if self.meter is None else self.meter.numbers()
        self.gradients = collect()
        self._divide(self.gradients)
        if len(self.sums) > 1:
            self.gradients = collect()  # again: further units may have brought gradients
        return self._report(measured)

    def _divide(self, gradients: list[Any]) -> None:
        """Each unit's gradient by its weight, then all of them together in `.grad`."""
        for mine in self.sums.values():
            for g in gradients if mine.gradients is None else mine.gradients.values():
                if self.reduction == "mean":
                    g /= nonzero(mine.weight)  # the one division
        for mine in self.sums.values():
            for p, g in (mine.gradients or {}).items():
                p.grad = g if p.grad is None else np.add(p.grad, g, out=p.grad)

    def _report(self, measured: list[Any]) -> StepReport:
        """All numbers of the window. On a GPU there is one wait in here, for all of them together
        (and more for a norm that float32 cannot hold). Raises ValueError where a doubt is true."""
        rational = bool(self.gradients) and self.gradients[0].dtype == object
        square = None if rational else squared_norm(self.gradients)
        totals = [mine.total for mine in self.sums.values()]
        weights = [mine.weight for mine in self.sums.values()]
        numbers = iter(fetch([square, *self.doubts.values(), *totals, *weights, *measured]))
        square = next(numbers)
        for wrong, seen in zip(self.doubts, islice(numbers, len(self.doubts))):
            if seen:
                raise ValueError(wrong)
        totals, weights = list(islice(numbers, len(totals))), list(islice(numbers, len(weights)))
        divisors = map(nonzero, weights) if self.reduction == "mean" else [1] * len(weights)
        return StepReport(
            loss=sum(total / divisor for total, divisor in zip(totals, divisors, strict=True)),
            weights={u: w for u, w in zip(self.sums, weights, strict=True) if u != WINDOW},
            grad_norm=None if rational else root(square, self.gradients),
            micro_batches=self.micro_batches,
            passes=self.passes,
            noise=None if self.meter is None else self.meter.read(list(numbers)),
        )


def _value_of(term: Term) -> Any:
    """The value of a term, in float64 and still where it was computed."""
    value = term.total.data.reshape(())
    if value.dtype != object:
        value = value.astype(np.float64)
    return constant(term.coefficient, value) * value


# ------------------------------------------------------------------------------ the operation


def run(window: Window, loss: Callable[..., Loss], batch: Any, parts: list[slice]) -> None:
    """All micro-batches of a batch, one after the other: forward, loss, backward.

    batch: one that is cut into `parts`, or a list of as many micro-batches. Each sample is looked
    at once, but where samples are coupled (coupling.py).
    """
    like = next(iter(window.leaves)).data

    def walk(visit: Visit, coupling: Coupling | None = None) -> None:
        for j, part in enumerate(parts):
            inputs, *targets = batch[j] if isinstance(batch, list) else take(batch, part)
            with drawing(window.turn_to(part, coupling)):
                visit(near(inputs, like), targets, part)

    by_passes = len(parts) > 1 and couples(window.model, loss)
    if window.meter is not None:
        window.meter.expect(len(parts), by_passes)
    if by_passes:
        exact(window, loss, walk)
    else:
        walk(lambda inputs, targets, part: window.add(loss(window.model(inputs), *targets)))


def accumulate(
    model: Module,
    loss: Callable[..., Loss],
    batch: tuple,
    micro_batch_size: int | None = None,
    *,
    accumulation_steps: int | None = None,
    reduction: str = "mean",
    update: int = 0,
    noise: str | None = None,
) -> StepReport:
    """Put the gradient of the whole batch in `.grad` of each parameter, a micro-batch at a time.

    batch: (inputs, *targets), each an array or a tuple or dict of arrays that share axis 0. Inputs
    go to model(inputs), the result and the targets to loss(outputs, *targets), which returns a
    Loss. reduction: "mean" divides by the weight of the whole batch, "sum" does not divide.
    update: the number of the update for which random layers draw. noise: "parts" or "sums" measures
    the noise of the gradient, of one sample and as a mean whatever `reduction` is: see NoiseMeter.

    What `.grad` held before is forgotten. After an error all gradients are None. Equal to one
    batch: *exact* or to *rounding* for any sizes, for every layer but a BatchNorm that was asked
    for other statistics than those of the batch. Nothing but gradients changes: BatchNorm's running
    statistics stay as they are.
    """
    check_model(model)
    parts = micro_batches(count_samples(batch), micro_batch_size, accumulation_steps)
    meter = None if noise is None else NoiseMeter(noise, model.parameters())
    window = Window(model, dict.fromkeys(model.parameters()), reduction, update, meter)
    try:
        run(window, loss, batch, parts)
        return window.finish(lambda: [p.grad for p in window.leaves if p.grad is not None])
    except BaseException:
        window.clear()
        raise
