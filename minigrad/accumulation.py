"""Accumulation: the gradient of one batch from its micro-batches. The subject of minigrad.

A *window* is the micro-batches that make one update. A loss is a sum with a weight (losses.py), the
gradient of a sum is the sum of the gradients, and `backward` adds (tensor.py). So the gradients of
the micro-batches simply add up where they are, in `.grad`, whatever the sizes. At the end of the
window they are divided, once, by the weight that was seen: in `Window.finish`, and nowhere else.

Taught in lesson 04 and lesson 05.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minigrad.arrays import constant, fetch, filled, root, squared_norm
from minigrad.batches import count_samples, each, micro_batches, take
from minigrad.coupling import HELD, Coupling, Visit, couples, exact
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

    weights: what each unit was divided by. grad_norm: of the finished gradient, before clipping;
    None for Fractions. passes: how often each sample was looked at. reason: why `updated` is False.
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
    leaves: dict[Tensor, Any]  # its keys: whose `.grad` this window fills, and clears
    reduction: str
    update: int
    meter: NoiseMeter | None = None
    seed: int = field(default_factory=current_seed)
    samples: int = 0
    micro_batches: int = 0
    sums: dict[str, Sum] = field(default_factory=dict)
    statistics: dict[Any, Any] = field(default_factory=dict)
    positions: dict[Any, int] = field(default_factory=dict)
    penalty_moved: Any = False
    replay_moved: Any = False
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

    def next_samples(self, count: int, coupling: Coupling | None = None) -> Samples:
        """The draw context of the next `count` samples."""
        start, self.samples = self.samples, self.samples + count
        moves = coupling is None or coupling.last  # what other passes see moves no statistics
        seen = self.model.modules, self.statistics if moves else {}, self.positions
        return Samples(self.seed, self.update, start, self.samples, *seen, coupling=coupling)

    def add(self, loss: Loss, every: bool = False) -> None:
        """Differentiate the loss of one micro-batch and add all it holds to the sums.

        every: differentiate a term of weight 0 too, whose samples count for the others.
        """
        check_loss(loss)
        self.micro_batches += 1
        if not every and self.micro_batches > 1 and any(t.unit == BATCH for t in loss.terms):
            what = "a loss of the whole batch was computed on a micro-batch, expected all outputs"
            raise ValueError(f"{what} at once: mark it with @mg.coupled, and call train_step")
        terms = [term for term in loss.terms if self._counts(term, every)]
        for term in terms:
            self._add_term(term, retain_graph=term is not terms[-1])
        for term in loss.terms:
            term.total = term.total.detach()  # whoever keeps the loss keeps no tape
        if self.meter is not None:
            self.meter.look(self.sums, self.samples)

    def _counts(self, term: Term, every: bool) -> bool:
        """False for a term that adds nothing: all targets masked, or a penalty seen before."""
        if term.unit == WINDOW and WINDOW in self.sums:
            first, now = self.sums[WINDOW].total, _value_of(term)
            moved = (first != now) & (first == first)  # a NaN, which equals nothing, did not move
            self.penalty_moved = self.penalty_moved | moved
            return False
        return every or hasattr(term.weight, "shape") or bool(term.weight)

    def _add_term(self, term: Term, retain_graph: bool) -> None:
        total = term.total
        seed = filled(total.data, term.coefficient)
        mine = self.sums.get(term.unit)
        if mine is None:
            mine = self.sums[term.unit] = Sum(0, 0, {} if self.sums else None)
        if mine.gradients is None:
            self.adopt(backward(total, seed, retain_graph))
        else:
            self._backward_into(mine.gradients, total, seed, retain_graph)
        mine.total = mine.total + _value_of(term)
        mine.weight = mine.weight + constant(term.weight, total.data)

    def _backward_into(self, gradients: dict, total: Tensor, seed: Any, retain: bool) -> None:
        """Walk the tape of a further unit into buffers of its own, in place of `.grad`."""
        kept = [(p, p.grad, p.home) for p in self.leaves]
        try:
            for p, _, _ in kept:
                p.grad, p.home = gradients.get(p), None
            leaves = backward(total, seed, retain)
            self.adopt({p: fresh for p, fresh in leaves.items() if p not in gradients})
            gradients.update((p, p.grad) for p in leaves)
            for p in leaves:
                p.grad = None
        finally:
            for p, grad, home in kept:
                p.grad, p.home = grad, home

    def adopt(self, leaves: dict[Tensor, bool]) -> None:
        """Take leaves of the loss that are no parameters of the model: they must start empty."""
        for p, fresh in leaves.items():
            if p not in self.leaves:
                if not fresh:
                    raise ValueError(HELD)
                self.leaves[p] = None

    def finish(self, collect: Callable[[], list[Any]]) -> StepReport:
        """Divide, once, and report: the gradient in `.grad` is now that of the whole window.

        collect: gives arrays that together hold the gradients. On a GPU there is one wait in here,
        for all numbers of the report together (and more for a norm that float32 cannot hold).
        """
        first, *others = self.sums.values() or [Sum(0, 0, None)]
        measured = [] if self.meter is None else self.meter.numbers()
        gradients = collect()
        for mine in (first, *others):
            for g in gradients if mine is first else mine.gradients.values():
                if self.reduction == "mean":
                    g /= nonzero(mine.weight)  # the one division
        for mine in others:
            for p, g in mine.gradients.items():
                p.grad = g if p.grad is None else np.add(p.grad, g, out=p.grad)
            gradients = collect()
        self.gradients = gradients
        exact = bool(gradients) and gradients[0].dtype == object
        square = None if exact else squared_norm(gradients)
        totals = [mine.total for mine in self.sums.values()]
        weights = [mine.weight for mine in self.sums.values()]
        doubts = self.penalty_moved, self.replay_moved
        square, moved, replayed, *numbers = fetch([square, *doubts, *totals, *weights, *measured])
        if replayed:
            what = "a further pass over a micro-batch computed something else, expected the same"
            raise ValueError(f"{what}: draw by mg.Dropout alone, detach nothing between BatchNorms")
        if moved:
            what = "mg.penalty() got other values in other micro-batches, expected a term that"
            raise ValueError(f"{what} depends on parameters alone; mg.per_sample is for data")
        n = len(totals)
        totals, weights, measured = numbers[:n], numbers[n : 2 * n], numbers[2 * n :]
        divisors = map(nonzero, weights) if self.reduction == "mean" else [1] * len(weights)
        return StepReport(
            loss=sum(total / divisor for total, divisor in zip(totals, divisors, strict=True)),
            weights={u: w for u, w in zip(self.sums, weights, strict=True) if u != WINDOW},
            grad_norm=None if exact else root(square, gradients),
            micro_batches=self.micro_batches,
            noise=None if self.meter is None else self.meter.read(measured),
        )


def _value_of(term: Term) -> Any:
    """The value of a term, in float64 and still where it was computed."""
    value = term.total.data.reshape(())
    if value.dtype != object:
        value = value.astype(np.float64)
    return constant(term.coefficient, value) * value


# ------------------------------------------------------------------------------ the operation


def run(window: Window, loss: Callable[..., Loss], batch: Any, parts: list[slice]) -> int:
    """All micro-batches of a batch, one after the other: forward, loss, backward.

    batch: one that is cut into `parts`, or a list of as many micro-batches. Returns how often each
    sample was looked at: once, but where samples are coupled (coupling.py).
    """
    like = next(iter(window.leaves)).data

    def to_device(array: Any) -> Any:  # one micro-batch at a time
        # Integers are indices, which are checked on the host: who uses them moves them.
        stay = type(array) is type(like) or array.dtype.kind in "iub"
        return array if stay else np.asarray(array, like=like)

    def walk(visit: Visit, coupling: Coupling | None = None) -> None:
        window.samples = 0
        for j, part in enumerate(parts):
            whole = batch[j] if isinstance(batch, list) else batch
            inputs, *targets = whole if whole is not batch or len(parts) == 1 else take(batch, part)
            if type(inputs) is not type(like):
                inputs = each(inputs, to_device)
            with drawing(window.next_samples(part.stop - part.start, coupling)):
                visit(inputs, targets, part)

    coupled = len(parts) > 1 and couples(window.model, loss)
    if window.meter is not None:
        window.meter.expect(len(parts), coupled)
    if coupled:
        return exact(window, loss, walk)
    walk(lambda inputs, targets, part: window.add(loss(window.model(inputs), *targets)))
    return 1


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
        passes = run(window, loss, batch, parts)
        report = window.finish(lambda: [p.grad for p in window.leaves if p.grad is not None])
        report.passes = passes
        return report
    except BaseException:
        window.clear()
        raise
