"""Exact accumulation of what couples the samples: BatchNorm, and losses that look at a whole batch.

The gradient of a sum over samples can be accumulated. With BatchNorm the loss is no such sum: each
sample is standardized by the mean and variance of all. But *given* these statistics s it is one. So
let them be variables of their own. With BatchNorm layers 1, ..., L in a chain,

    S = sum_i loss_i(theta, s_1, ..., s_L)                          a sum over samples,
    s_l = (mean, variance) of x_l(theta, s_1, ..., s_{l-1})         sums over samples too,

and the chain rule finds dS/dtheta by way of the adjoints a_l = dS/ds_l, the last one first:

    a_l      = sum_i d/ds_l    [ loss_i + sum_{j > l} a_j . s_j(x_i) ]
    dS/dtheta = sum_i d/dtheta [ loss_i + sum_j       a_j . s_j(x_i) ]

where s_j(x_i) is what sample i adds to s_j. Every line is a sum over samples: each takes one pass
over the micro-batches, 2L + 1 in all. Statistics and adjoints, four numbers a channel (and two more
for each further unit of the loss), are all that is kept from pass to pass. A loss of the whole
batch (losses.py) is the same thought with the outputs as variables: GradCache (Gao et al. 2021),
one pass more.

`exact` is the whole procedure. We know of no publication of it for BatchNorm. Which layer depends
on which is read off the tape of the first micro-batch, which sees no dependence through detach() or
no_grad(); and each pass must compute what the others did. So the last pass measures all statistics
once more, and each sums up the loss: what differs there is an error. A difference that shows in
neither is not noticed. Skip this file at first.

Taught in lesson 08.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from minigrad.arrays import filled
from minigrad.batches import join
from minigrad.batchnorm import BatchNorm, Statistics
from minigrad.losses import Loss, Term, check_loss, nonzero
from minigrad.samples import drawing
from minigrad.tensor import Tensor, backward, count_uses, no_grad, record

# `walk(visit, coupling)` makes one pass: visit(inputs, targets, part) for each micro-batch.
Visit = Callable[[Any, tuple, slice], None]
Walk = Callable[[Visit, "Coupling"], None]


def couples(model: Any, loss: Any) -> bool:
    """Do the samples of a batch depend on each other, by a layer in training or by the loss?"""
    return getattr(loss, "couples", False) or any(
        isinstance(m, BatchNorm) and m.training and m.statistics == "batch" for m in model.modules()
    )


def exact(window: Any, loss: Callable[..., Loss], walk: Walk) -> None:
    """Put the gradient of one whole batch into the window."""
    model, level = window.model, 0
    depth = 1 if couples(model, None) else 0  # of the chain, as far as it is known
    coupling = Coupling(probing=depth > 0)

    while level < depth:  # the statistics, the first ones first
        level += 1
        coupling.start_pass(level, measuring=True)
        walk(lambda inputs, targets, part: coupling.look(model, inputs), coupling)
        depth = max(coupling.levels.values(), default=0)  # which the first micro-batch told

    if getattr(loss, "couples", False):  # the outputs, as if they were one level more
        coupling.start_pass(depth + 1, measuring=True)
        loss_of = _cached(window, loss, walk, coupling)
    else:
        loss_of = lambda outputs, targets, part: loss(outputs, *targets)  # noqa: E731

    def surrogate(inputs: Any, targets: tuple, part: slice) -> Loss:
        """What stands in the brackets above, of one micro-batch."""
        outputs = coupling.outputs(model, inputs)
        return coupling.with_adjoints(check_loss(loss_of(outputs, targets, part)))

    with _frozen(window):
        for level in range(depth, 0, -1):  # the adjoints, the last ones first
            coupling.start_pass(level)
            walk(lambda *one: _add_gradients(surrogate(*one), coupling.adjoints), coupling)

    coupling.start_pass(0)  # and the parameters
    walk(lambda *one: window.add(surrogate(*one), every=True), coupling)
    coupling.end()
    window.statistics.update(coupling.statistics)
    window.doubt(OTHERWISE, coupling.moved)
    window.passes = coupling.passes


OTHERWISE = (
    "a further pass over a micro-batch computed something else, expected the same: draw by "
    "mg.Dropout alone, detach nothing between BatchNorms"
)


class Coupling:
    """The statistics of a window and their adjoints, while its passes find them.

    Each BatchNorm has a level: 1, or one more than the highest level that its input depends on. A
    pass is for one level, and BatchNorm asks `of` in it what to standardize by. probing: is this
    the first micro-batch of a window with BatchNorm, which tells the levels?
    """

    def __init__(self, probing: bool) -> None:
        self.probing = probing
        self.levels: dict[BatchNorm, int] = {}  # in the order of the calls
        self.depends: dict[Tensor, int] = {}  # levels by what the tape is searched for
        self.statistics: dict[BatchNorm, Statistics] = {}  # the measured ones
        self.leaves: dict[BatchNorm, list[Tensor]] = {}  # and the same as variables
        self.adjoints: dict[str, dict[Tensor, Any]] = {}  # by unit of the loss, of each leaf
        self.calls: list[BatchNorm] = []  # of this micro-batch
        self.carried: dict[str, list[Tensor]] = {}  # a . s(x) of this micro-batch, by unit
        self.passes = 0
        self.again: dict[BatchNorm, Statistics] = {}  # measured once more, by the last pass
        self.totals: list[dict[str, Any]] = []  # of the loss by unit, for each pass that has one
        self.moved: Any = False  # did a later pass compute something else?

    def start_pass(self, level: int, measuring: bool = False) -> None:
        """The next pass measures the statistics of this level, or differentiates by them.

        Of level 0 are the parameters.
        """
        self.level, self.measuring, self.last = level, measuring, not level
        self.passes += 1
        if not measuring:
            self.totals.append({})

    def of(self, layer: BatchNorm, x: Tensor) -> list[Tensor]:
        """Mean and variance, (c,) each, by which `layer` standardizes x (rows, c) in this pass."""
        self._check_order(layer)
        if self.probing:
            self.levels[layer] = 1 + self._level_below(x)
        if self.measuring and self.levels[layer] >= self.level:
            return self._measure(layer, x)
        if self.last:
            self._merge(self.again, layer, Statistics.of(x.data))
        if layer not in self.leaves:
            self.leaves[layer] = _as_leaves(self.statistics[layer])
        mean, var = self.leaves[layer]
        if self.levels[layer] == self.level:
            return [mean, var]  # variables, by which this pass differentiates
        for unit, adjoints in self.adjoints.items():
            if mean in adjoints:
                a_s = _carry(x, self.statistics[layer], adjoints[mean], adjoints[var])
                self.carried.setdefault(unit, []).append(a_s)
        return [mean.detach(), var.detach()]

    def _check_order(self, layer: BatchNorm) -> None:
        """Only then is the chain of layers the same for each micro-batch."""
        if layer in self.calls:
            what = f"{layer!r} was called twice in one forward pass, expected once"
            raise ValueError(f"{what}; make two layers, or choose statistics='micro'")
        self.calls.append(layer)
        if not self.probing and [*self.levels][: len(self.calls)] != self.calls:
            what = "the BatchNorm layers were called in another order than for the first"
            raise ValueError(f"{what} micro-batch, expected the same; choose statistics='micro'")

    def outputs(self, model: Any, inputs: Any) -> Any:
        """model(inputs) for a micro-batch, by all layers that the first one went through."""
        self.calls, self.carried = [], {}
        outputs = model(inputs)
        if len(self.calls) < len(self.levels):
            what = "a micro-batch used fewer BatchNorm layers than the first one"
            raise ValueError(f"{what}, expected the same; choose statistics='micro'")
        return outputs

    # ------------------------------------------------- does each pass compute the same?

    def compare(self, before: Any, now: Any, size: Any) -> None:
        """Note whether a pass is far from what it repeats; the window asks when it ends.

        It is the same to the last bit, but for devices that add up in any order: so it may be
        apart by eps^0.7 (1e-5 in float32, 1e-11 in float64) of its size, far more than their
        rounding and far less than another draw or a part cut off.
        """
        inexact = getattr(before, "dtype", None)
        far = 0 if inexact in (None, object) else float(np.finfo(inexact).eps) ** 0.7
        self.moved = self.moved | np.any(abs(now - before) > size * far)

    def end(self) -> None:
        """The passes are over: compare what they saw."""
        for layer, seen in self.again.items():
            before = self.statistics[layer]
            squares = before.variance + before.mean * before.mean  # the mean of x^2
            length = squares if squares.dtype == object else np.sqrt(squares)
            self.compare(before.mean, seen.mean, length)
            self.compare(before.variance, seen.variance, squares)
        first, *others = self.totals
        for totals in others:
            for unit, (total, size) in first.items():
                self.compare(total, totals.get(unit, (0, 0))[0], size)

    def _note(self, loss: Loss) -> None:
        """Add the loss of a micro-batch to the totals of this pass, and to their size."""
        totals = self.totals[-1]
        for term in loss.terms:
            value, (total, size) = term.total.data, totals.get(term.unit, (0, 0))
            totals[term.unit] = total + value, size + abs(value)

    # ------------------------------------------------------------------------- statistics

    def look(self, model: Any, inputs: Any) -> Any:
        """The outputs without a tape, or None where the level needs less than all of them."""
        if self.probing:  # with the tape, which tells what depends on what
            self.outputs(model, inputs)
            self.probing = False
            return None
        with suppress(_Enough), no_grad():
            return self.outputs(model, inputs)

    def _level_below(self, x: Tensor) -> int:
        """The highest level that x depends on."""
        return max((self.depends.get(p, 0) for p in _parents(x)), default=0)

    def _measure(self, layer: BatchNorm, x: Tensor) -> list[Tensor]:
        """Add what x shows to the statistics, if it is their turn."""
        own, level = Statistics.of(x.data), self.levels[layer]
        if level == self.level:
            own = self._merge(self.statistics, layer, own)
            last = [other for other in self.levels if self.levels[other] == level][-1]
            if layer is last and not self.probing:
                raise _Enough
        # What comes behind is not looked at in this pass: it does not matter what x becomes.
        leaves = _as_leaves(own._replace(squares=nonzero(own.squares)))  # 0 for one sample
        if self.probing:
            self.depends[leaves[0]] = level  # the mean stands for both: what is made of x has both
        return leaves

    @staticmethod
    def _merge(seen: dict[BatchNorm, Statistics], layer: BatchNorm, own: Statistics) -> Statistics:
        seen[layer] = seen[layer].merge(own) if layer in seen else own
        return seen[layer]

    # --------------------------------------------------------------------------- adjoints

    def with_adjoints(self, loss: Loss) -> Loss:
        """The loss of a micro-batch and, in each unit, the statistics times their adjoints."""
        self._note(loss)
        terms = {term.unit: term for term in loss.terms}
        for unit, parts in self.carried.items():
            dtype = terms[unit].total.dtype if unit in terms else parts[0].dtype
            weight = terms[unit].weight if unit in terms else 0
            first, *others = (x if x.dtype == dtype else x.astype(dtype) for x in parts)
            a_s = sum(others, first)
            loss = loss + Loss([Term(unit, 1, a_s, weight)])
        return loss


class _Enough(BaseException):
    """The rest of a forward pass is not needed."""


def _parents(x: Tensor) -> Iterator[Any]:
    """All operands of what x was computed from."""
    return (parent for node in (count_uses(x.node) if x.node else ()) for parent in node.parents)


def _as_leaves(statistics: Statistics) -> list[Tensor]:
    """Mean and variance as variables."""
    return [Tensor(v, requires_grad=True) for v in (statistics.mean, statistics.variance)]


def _carry(x: Tensor, statistics: Statistics, by_mean: Any, by_var: Any) -> Tensor:
    """0, with the gradient by x of the adjoints times (mean, variance), both of the whole window.

    d mean / dx = 1/n and d variance / dx = 2 (x - mean) / n. The mean inside of the variance may
    stand still, for d variance / d mean = -2 sum(x - mean) / n = 0.
    """
    n, mean, _ = statistics
    data = x.data

    def pullback(g: Any) -> tuple:
        dx = data - mean
        dx *= by_var * 2 / n * g
        dx += by_mean / n * g
        return (dx,)

    return record(filled(data, 0, (1,)).reshape(()), (x,), pullback)


@contextmanager
def _frozen(window: Any) -> Iterator[None]:
    """No parameter requires a gradient inside: the tape holds what the statistics need alone."""
    every = dict.fromkeys([*window.leaves, *window.model.parameters()])
    window.frozen = [p for p in every if p.requires_grad]
    for p in window.frozen:
        p.requires_grad = False
    yield
    for p in window.frozen:  # after an error the window does this, when it is cleared
        p.requires_grad = True


def _add_gradients(loss: Loss, sums: dict[str, dict[Tensor, Any]]) -> None:
    """Add the gradients of a loss to `sums`, by unit and leaf, and touch no `.grad`."""
    terms = [term for term in loss.terms if term.total.requires_grad]
    for term in terms:
        mine = sums.setdefault(term.unit, {})
        backward(term.total, term.seed(), term is not terms[-1], into=mine)


# ---------------------------------------------------------------- losses of a whole batch


def _cached(window: Any, loss: Callable[..., Loss], walk: Walk, coupling: Coupling) -> Callable:
    """A loss of the whole batch as one of micro-batches: outputs times their cached gradient."""
    seen = []

    def keep(inputs: Any, targets: tuple, part: slice) -> None:
        outputs = coupling.look(window.model, inputs)
        if not all(isinstance(output, Tensor) and output.ndim for output in _tuple(outputs)):
            kinds = ", ".join(_kind(output) for output in _tuple(outputs))
            what = f"a coupled loss met outputs of type {kinds}"
            raise TypeError(f"{what}, expected Tensors with a row for each sample, one or a tuple")
        arrays = tuple(output.data for output in _tuple(outputs))
        seen.append((arrays if isinstance(outputs, tuple) else arrays[0], tuple(targets)))

    walk(keep, coupling)
    arrays, targets = join(seen)
    whole = [Tensor(array, requires_grad=True) for array in _tuple(arrays)]
    with drawing(window.turn_to(slice(0, window.samples))):  # what a loss draws is theirs, too
        total = check_loss(loss(tuple(whole) if isinstance(arrays, tuple) else whole[0], *targets))
    cache: dict[str, dict[Tensor, Any]] = {}
    _add_gradients(Loss([replace(term, coefficient=1) for term in total.terms]), cache)
    terms = [replace(term, total=term.total.detach()) for term in total.terms]  # without the tape

    def loss_of(outputs: Any, targets: tuple, part: slice) -> Loss:
        pairs, first, found = [*zip(whole, _tuple(outputs), strict=True)], part.start == 0, []
        for w, output in pairs:
            before = w.data[part]
            coupling.compare(before, output.data, before.size and abs(before).max())
        pairs = [(w, output) for w, output in pairs if output.requires_grad]
        for term in terms:
            cached = cache.get(term.unit, {})
            times = [(output, cached[w][part]) for w, output in pairs if w in cached]
            if first:  # what else the loss depends on: a temperature, say
                times += [(leaf, g) for leaf, g in cached.items() if leaf not in whole]
            if first or times:  # its value and its weight count once
                value = term.total.data if first else filled(term.total.data, 0)
                dot = record(value, [x for x, _ in times], _times([g for _, g in times]))
                found.append(replace(term, total=dot, weight=term.weight if first else 0))
        return Loss(found)

    return loss_of


def _times(gradients: list[Any]) -> Callable:
    return lambda g: [gradient * g for gradient in gradients]


def _kind(output: Any) -> str:
    return (
        f"{type(output).__name__} of shape ()"
        if getattr(output, "ndim", 1) == 0
        else type(output).__name__
    )


def _tuple(outputs: Any) -> tuple:
    return outputs if isinstance(outputs, tuple) else (outputs,)
