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
over the micro-batches, 2L + 1 in all. The statistics and their adjoints, four numbers a channel,
are all that is kept from pass to pass. A loss of the whole batch is the same thought with the
outputs as variables: GradCache (Gao et al. 2021), one pass more.

`exact` is the whole procedure. We know of no publication of it for BatchNorm. Which layer depends
on which is read off the tape, which sees no dependence through detach() or no_grad(); and each pass
must compute what the others did. Where the first micro-batch tells otherwise, that is an error.

Taught in lesson 08.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.arrays import constant, filled
from minigrad.batchnorm import BatchNorm, Statistics
from minigrad.losses import WINDOW, Loss, Term, nonzero
from minigrad.tensor import Node, Tensor, backward, no_grad, record

# `walk(visit, coupling)` makes one pass: visit(inputs, targets, part) for each micro-batch.
Visit = Callable[[Any, tuple, slice], None]
Walk = Callable[[Visit, "Coupling"], None]


FEWER = (
    "a micro-batch used fewer BatchNorm layers than the first one, expected the same; choose "
    "statistics='micro'"
)
HELD = (
    "the loss reached a leaf outside of the model that held a gradient, expected None; make it a "
    "parameter of the model"
)


def couples(model: Any, loss: Any) -> bool:
    """Do the samples of a batch depend on each other, by a layer in training or by the loss?"""
    return getattr(loss, "couples", False) or any(
        isinstance(m, BatchNorm) and m.training and m.statistics == "batch" for m in model.modules()
    )


def exact(window: Any, loss: Callable[..., Loss], walk: Walk) -> int:
    """Put the gradient of one whole batch into the window. Returns the passes over the data."""
    model, coupling, passes = window.model, Coupling(), 0

    level = 0
    deepest = int(couples(model, None))
    while level < max(coupling.levels.values(), default=deepest):  # the statistics by levels
        level += 1
        coupling.measure(level)
        walk(lambda inputs, targets, part: coupling.forward(model, inputs), coupling)
        passes += 1

    piece: Callable[..., Loss] = lambda outputs, targets, part: loss(outputs, *targets)  # noqa: E731
    if getattr(loss, "couples", False):
        piece = _cached(window, loss, walk, coupling)
        passes += 1

    while level and coupling.levels:  # their adjoints, the last ones first
        coupling.differentiate(level)
        window.freeze()
        walk(lambda i, t, part: coupling.collect(piece(model(i), t, part)), coupling)
        window.thaw()
        coupling.keep_adjoints()
        level -= 1
        passes += 1

    coupling.differentiate(0)  # and the parameters
    coupling.last = True
    walk(lambda i, t, part: window.add(coupling.joined(piece(model(i), t, part)), True), coupling)
    window.statistics.update(coupling.statistics)
    window.replay_moved = coupling.moved
    return passes + 1


class Coupling:
    """The statistics of a window and their adjoints, while its passes find them.

    levels: of each BatchNorm, 1 + the highest level that its input depends on. statistics, adjoints
    (by unit of the loss): of the levels known so far. BatchNorm asks `of` what to standardize by.
    """

    def __init__(self) -> None:
        self.levels: dict[BatchNorm, int] = {}  # in the order of the calls
        self.statistics: dict[BatchNorm, Statistics] = {}
        self.adjoints: dict[str, dict[BatchNorm, list[Any]]] = {}
        self.leaves: dict[BatchNorm, list[Tensor]] = {}
        self.sums: dict[str, dict[Tensor, Any]] = {}
        self.measured = 0  # the level whose statistics this pass finds
        self.probing = self.last = False  # is it the first pass, the last one?
        self.calls: list[BatchNorm] = []  # of this micro-batch
        self.carried: dict[str, list[Tensor]] = {}
        self.first: dict[BatchNorm, Any] = {}  # the squares that a layer's first micro-batch held
        self.moved: Any = False  # did a later pass compute something else?

    def start(self) -> None:
        """A micro-batch begins."""
        self.calls, self.carried = [], {unit: [] for unit in self.adjoints}

    def of(self, layer: BatchNorm, x: Tensor) -> list[Tensor]:
        """Mean and variance, (c,) each, by which `layer` standardizes x (rows, c) in this pass."""
        self._check(layer)
        if self.measured:
            return self._measure(layer, x)
        if self.last and layer in self.first:
            self.compare(self.first.pop(layer), _squares(Statistics.of(x.data)))
        if layer in self.leaves:
            return self.leaves[layer]  # whose gradients, the adjoints, this pass adds up
        for unit, adjoints in self.adjoints.items():
            if layer in adjoints:
                self.carried[unit].append(_carry(x, self.statistics[layer], adjoints[layer]))
        return _tensors(self.statistics[layer], like=x)

    def compare(self, before: Any, now: Any) -> None:
        """Note whether a pass is far from what it repeats; the window asks when it ends."""
        far = abs(now - before) > abs(before).max() * constant(1e-3, before)
        self.moved = self.moved | far.any()

    def _check(self, layer: BatchNorm) -> None:
        """Only then is the chain of layers the same for each micro-batch."""
        if layer in self.calls:
            what = f"{layer!r} was called twice in one forward pass, expected once"
            raise ValueError(f"{what}; make two layers, or choose statistics='micro'")
        order = list(self.levels)
        self.calls.append(layer)
        if not self.probing and order[: len(self.calls)] != self.calls:
            what = "the BatchNorm layers were called in another order than for the first"
            raise ValueError(f"{what} micro-batch, expected the same; choose statistics='micro'")

    # ------------------------------------------------------------------------- statistics

    def measure(self, level: int) -> None:
        """The next pass finds the statistics of this level; the first one finds the levels too."""
        self.measured, self.probing = level, not self.levels

    def forward(self, model: Any, inputs: Any) -> None:
        """As much of the forward pass as the level needs."""
        if self.probing:  # with the tape, which tells what depends on what
            model(inputs)
            self.probing, self.leaves = False, {}
            return
        try:
            with no_grad():
                model(inputs)
        except _Enough:
            return
        if self.levels:
            raise ValueError(FEWER)

    def _measure(self, layer: BatchNorm, x: Tensor) -> list[Tensor]:
        level, own = self.levels.get(layer), Statistics.of(x.data)
        if self.probing:
            above = [self.levels[other] for other in self.leaves if _reaches(x, self.leaves[other])]
            level = self.levels[layer] = 1 + max(above, default=0)
        if level < self.measured:
            return _tensors(self.statistics[layer], like=x)
        if level == self.measured:
            before = self.statistics.get(layer)
            self.first.setdefault(layer, _squares(own))
            self.statistics[layer] = own if before is None else before.merge(own)
            last = [other for other in self.levels if self.levels[other] == level][-1]
            if layer is last and not self.probing:
                raise _Enough
        # Deeper layers are not looked at yet: what they are standardized by does not matter.
        own = own._replace(squares=nonzero(own.squares))  # 0 for one sample
        self.leaves[layer] = _tensors(own, like=x, requires_grad=self.probing)
        return self.leaves[layer]

    # --------------------------------------------------------------------------- adjoints

    def differentiate(self, level: int) -> None:
        """The next pass finds the adjoints of this level, or with 0 the parameters' gradients."""
        self.measured, self.sums = 0, {}
        self.leaves = {
            layer: _tensors(self.statistics[layer], requires_grad=True)
            for layer in self.levels
            if self.levels[layer] == level
        }

    def joined(self, loss: Loss) -> Loss:
        """The loss, and for each unit the statistics times their adjoints."""
        if not self.levels:
            return loss
        if len(self.calls) < len(self.levels):
            raise ValueError(FEWER)
        terms = {t.unit: Term(t.unit, 1, t.coefficient * t.total, t.weight) for t in loss.terms}
        for unit, carried in self.carried.items():
            for one in carried:
                term = terms.setdefault(unit, Term(unit, 1, one, 0))
                term.total = term.total + one if term.total is not one else one
        return Loss([*terms.values()])

    def collect(self, loss: Loss) -> None:
        """Add what one micro-batch gives to the adjoints of this level."""
        leaves = [leaf for pair in self.leaves.values() for leaf in pair]
        terms = [t for t in self.joined(loss).terms if t.unit != WINDOW and t.total.requires_grad]
        for term in terms:
            sums = self.sums.setdefault(term.unit, {})
            for leaf in leaves:
                leaf.grad = sums.get(leaf)
            touched = backward(term.total, filled(term.total.data, 1), term is not terms[-1])
            for other in touched.keys() - {*leaves}:  # no parameter: it was not frozen
                if not touched[other]:
                    raise ValueError(HELD)
                other.grad = None
            sums.update((leaf, leaf.grad) for leaf in leaves if leaf.grad is not None)

    def keep_adjoints(self) -> None:
        """The pass is over: what its leaves collected are the adjoints."""
        for unit, sums in self.sums.items():
            for layer, pair in self.leaves.items():
                zeros = [np.zeros_like(leaf.data) for leaf in pair]
                found = [sums.get(leaf, zero) for leaf, zero in zip(pair, zeros, strict=True)]
                self.adjoints.setdefault(unit, {})[layer] = found


class _Enough(BaseException):
    """The rest of a forward pass is not needed."""


def _tensors(statistics: Statistics, like: Tensor | None = None, requires_grad=False) -> list:
    mean, var = statistics.mean, statistics.squares / statistics.n
    if like is not None:
        mean, var = (v.astype(like.dtype, copy=False) for v in (mean, var))
    return [Tensor(mean, requires_grad), Tensor(var, requires_grad)]


def _squares(statistics: Statistics) -> Any:
    """The sum of the squares of each channel: unlike that of deviations not 0 for one sample."""
    return statistics.squares + statistics.mean * statistics.mean * statistics.n


def _reaches(x: Tensor, leaves: list[Tensor]) -> bool:
    """Does x depend on one of these leaves?"""
    seen, stack = set(), [x.node]
    while stack:
        node = stack.pop()
        if any(node is leaf for leaf in leaves):
            return True
        if isinstance(node, Node) and node not in seen:
            seen.add(node)
            stack += node.parents
    return False


def _carry(x: Tensor, statistics: Statistics, adjoint: list[Any]) -> Tensor:
    """0, with the gradient by x of adjoint . (mean, variance), both of the whole window.

    d mean / dx = 1/n and d variance / dx = 2 (x - mean) / n. The mean inside of the variance may
    stand still, for d variance / d mean = -2 sum(x - mean) / n = 0.
    """
    n, mean, _ = statistics
    by_mean, by_var = adjoint
    data = x.data

    def pullback(g: Any) -> tuple:
        dx = (data - mean) * (by_var * constant(2, by_var) / n)
        dx += by_mean / n
        return (dx * g,)

    return record(filled(data, 0, (1,)).reshape(()), (x,), pullback)


# ---------------------------------------------------------------- losses of a whole batch


def _cached(window: Any, loss: Callable[..., Loss], walk: Walk, coupling: Coupling) -> Callable:
    """A loss of the whole batch as one of micro-batches: outputs times their cached gradient."""
    outputs, seen = [], []

    def look(inputs: Any, targets: tuple, part: slice) -> None:
        with no_grad():
            outputs.append(window.model(inputs))
        if not all(isinstance(o, Tensor) for o in _tuple(outputs[-1])):
            what = f"a coupled loss met outputs of type {type(outputs[-1]).__name__}"
            raise TypeError(f"{what}, expected a Tensor or a tuple of Tensors")
        seen.append(targets)

    coupling.differentiate(0)
    walk(look, coupling)
    columns = zip(*map(_tuple, outputs), strict=True)
    whole = [Tensor(np.concatenate([o.data for o in column]), True) for column in columns]
    targets = [_joined(column) for column in zip(*seen)]
    total = loss(tuple(whole) if isinstance(outputs[0], tuple) else whole[0], *targets)
    if not isinstance(total, Loss):
        what = f"the loss is a {type(total).__name__}, expected a Loss"
        raise TypeError(f"{what}: mg.cross_entropy(...) as it is, or mg.per_sample(values)")
    cache: dict[str, dict[Tensor, Any]] = {}
    for term in total.terms:
        touched = backward(term.total, filled(term.total.data, 1), term is not total.terms[-1])
        window.adopt({leaf: fresh for leaf, fresh in touched.items() if leaf not in whole})
        cache[term.unit] = {leaf: leaf.grad.copy() for leaf in touched}
        for leaf in touched:
            leaf.grad = None

    def piece(outputs: Any, targets: tuple, part: slice) -> Loss:
        terms, first = [], part.start == 0
        if first:
            for w, output in zip(whole, _tuple(outputs), strict=True):
                coupling.compare(w.data[part], output.data)
        for term in total.terms:
            found = cache[term.unit]
            pairs = zip(whole, _tuple(outputs), strict=True)
            times = [(output, found[w][part]) for w, output in pairs if w in found]
            if first:  # what else the loss depends on: a temperature, say
                times += [(leaf, g) for leaf, g in found.items() if leaf not in whole]
            counts = first or term.unit == WINDOW
            if counts or times:
                value = term.total.data if counts else filled(term.total.data, 0)
                dot = record(value, [x for x, _ in times], _times([g for _, g in times]))
                terms.append(Term(term.unit, term.coefficient, dot, term.weight if counts else 0))
        return Loss(terms)

    return piece


def _times(parts: list[Any]) -> Callable:
    return lambda g: [p * g for p in parts]


def _tuple(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _joined(parts: tuple) -> Any:
    """The targets of all micro-batches, as they were before they were cut."""
    if isinstance(parts[0], tuple):
        return tuple(_joined(column) for column in zip(*parts))
    if isinstance(parts[0], dict):
        return {key: _joined(tuple(p[key] for p in parts)) for key in parts[0]}
    return np.concatenate(parts)
