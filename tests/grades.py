"""The table of grades: to which grade is a batch equal to its micro-batches, for what?

exact: `==`, in Fractions and, on dyadic data, bit for bit in float32 and float64.
rounding: within c u (N + k) sum_i |g_i| elementwise, with g_i the gradient of sample i, u the unit
roundoff and c = 8 times the depth of the model. For a linear layer |g_i| = |x_i| |delta_i|.
different: a gap that does not vanish.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import minigrad as mg
from minigrad.coupling import couples

PENALTY = 0.25


@dataclass(frozen=True)
class Case:
    """One row of the table: `model()` and `loss` on `batch(rng, n)`, all of dyadic numbers."""

    name: str
    grade: str
    model: Callable[[], mg.Module]
    loss: Callable[..., Any]
    batch: Callable[[np.random.Generator, int], tuple]
    depth: int = 2


def dyadic(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Multiples of 1/4 in [-1, 1]: all sums and products in these tests are representable."""
    return rng.integers(-4, 5, shape) / 4


def regression(rng: np.random.Generator, n: int) -> tuple:
    return dyadic(rng, n, 3), dyadic(rng, n, 2)


def weighted_regression(rng: np.random.Generator, n: int) -> tuple:
    weights = rng.integers(1, 4, n) / 2
    return dyadic(rng, n, 3), dyadic(rng, n, 2), weights


def tokens(rng: np.random.Generator, n: int) -> tuple:
    return rng.integers(0, 5, (n, 4)), dyadic(rng, n, 4, 2)


def labels(rng: np.random.Generator, n: int) -> tuple:
    return dyadic(rng, n, 3), rng.integers(0, 4, n)


def masked_labels(rng: np.random.Generator, n: int) -> tuple:
    y = rng.integers(0, 4, n)
    y[rng.random(n) < 0.4] = -100
    y[0] = 1  # one at least counts
    return dyadic(rng, n, 3), y


def bits(rng: np.random.Generator, n: int) -> tuple:
    return dyadic(rng, n, 3), rng.integers(0, 2, (n, 4)).astype(float)


def weighted_squared_error(prediction: Any, target: Any, weights: Any) -> mg.Loss:
    return mg.squared_error(prediction, target, sample_weights=weights)


def two_units(prediction: Any, target: Any) -> mg.Loss:
    """A value an element and, with another weight, one a sample."""
    largest = mg.per_sample(mg.max(prediction, axis=1))
    return mg.squared_error(prediction, target) + 0.5 * largest


class WithPenalty:
    """A loss with a penalty on the parameters of `model`, which it must know."""

    def __init__(self, model: mg.Module) -> None:
        self.model = model

    def __call__(self, prediction: Any, target: Any) -> mg.Loss:
        squares = [(p * p).sum() for p in self.model.parameters()]
        return mg.squared_error(prediction, target) + PENALTY * mg.penalty(
            sum(squares[1:], squares[0])
        )


def net(*between: mg.Module, out: int = 2) -> Callable[[], mg.Module]:
    """Linear, what is given, Linear."""
    return lambda: mg.Sequential(mg.Linear(3, 4), *between, mg.Linear(4, out))


def linear(out: int = 2) -> Callable[[], mg.Module]:
    return lambda: mg.Sequential(mg.Linear(3, out))


class Micro(mg.BatchNorm):
    """BatchNorm with the statistics of each micro-batch, which a stream can have."""

    def __init__(self, channels: int, **options: Any) -> None:
        super().__init__(channels, statistics="micro", **options)


def group_norm_net() -> mg.Module:
    return mg.Sequential(mg.Linear(3, 8), mg.GroupNorm(2, 8), mg.Linear(8, 2))


def batch_norm_net() -> mg.Module:
    # Without a bias before BatchNorm: its gradient is 0, and what is computed nothing but rounding.
    return mg.Sequential(mg.Linear(3, 4, bias=False), mg.BatchNorm(4), mg.Linear(4, 2))


def ce(**options: Any) -> Callable[..., mg.Loss]:
    return lambda logits, y: mg.cross_entropy(logits, y, **options)


LAYERS = [
    Case("Linear", "exact", linear(), mg.squared_error, regression, 1),
    Case("ReLU", "exact", net(mg.ReLU()), mg.squared_error, regression),
    Case("MLP", "exact", lambda: mg.MLP(3, 4, 4, 2), mg.squared_error, regression, 3),
    Case(
        "Embedding",
        "exact",
        lambda: mg.Sequential(mg.Embedding(5, 3), mg.Linear(3, 2)),
        mg.squared_error,
        tokens,
    ),
    Case("Dropout(1/2)", "exact", net(mg.Dropout(0.5)), mg.squared_error, regression),
    Case("Dropout(0.1)", "rounding", net(mg.Dropout(0.1)), mg.squared_error, regression),
    Case("Tanh", "rounding", net(mg.Tanh()), mg.squared_error, regression),
    Case("Sigmoid", "rounding", net(mg.Sigmoid()), mg.squared_error, regression),
    Case("LayerNorm", "rounding", net(mg.LayerNorm(4)), mg.squared_error, regression),
    # Groups of 4: standardizing 2 values gives +-1 whatever they are, and a gradient that is
    # nothing but what cancellation left.
    Case("GroupNorm", "rounding", group_norm_net, mg.squared_error, regression),
    Case("BatchNorm", "rounding", batch_norm_net, mg.squared_error, regression),
    Case("BatchNorm (micro)", "different", net(Micro(4)), mg.squared_error, regression),
    Case(
        "BatchNorm (running)",
        "different",
        lambda: net(mg.BatchNorm(4, statistics="running"))(),
        mg.squared_error,
        regression,
    ),
]
LOSSES = [
    Case("squared_error", "exact", linear(), mg.squared_error, regression, 1),
    Case("absolute_error", "exact", linear(), mg.absolute_error, regression, 1),
    Case("sample weights", "exact", linear(), weighted_squared_error, weighted_regression, 1),
    Case("two units", "exact", linear(), two_units, regression, 1),
    Case("penalty", "exact", linear(), WithPenalty, regression, 1),
    Case("cross_entropy", "rounding", linear(4), mg.cross_entropy, labels, 1),
    Case("ignore_index", "rounding", linear(4), mg.cross_entropy, masked_labels, 1),
    Case("class_weights", "rounding", linear(4), ce(class_weights=[1, 2, 0.5, 3]), labels, 1),
    Case("label_smoothing", "rounding", linear(4), ce(label_smoothing=0.1), labels, 1),
    Case(
        "binary_cross_entropy_with_logits",
        "rounding",
        linear(4),
        mg.binary_cross_entropy_with_logits,
        bits,
        1,
    ),
]
# Exact for the first update on dyadic data in float32: the same gradient makes the same update.
# Later updates: SGD exact in Fractions, to rounding in floats; the others, which divide by roots,
# to rounding.
OPTIMIZERS: dict[str, Callable[[Any], mg.Optimizer]] = {
    "SGD": lambda p: mg.SGD(p, lr=0.125),
    "SGD, momentum": lambda p: mg.SGD(p, lr=0.125, momentum=0.5),
    "SGD, Nesterov": lambda p: mg.SGD(p, lr=0.125, momentum=0.5, nesterov=True),
    "SGD, weight decay": lambda p: mg.SGD(p, lr=0.125, momentum=0.5, weight_decay=0.25),
    "Adam": lambda p: mg.Adam(p, lr=0.01),
    "Adam, weight decay": lambda p: mg.Adam(p, lr=0.01, weight_decay=0.25),
    "AdamW": lambda p: mg.AdamW(p, lr=0.01),
    "LARS": lambda p: mg.LARS(p, lr=0.125, trust_coefficient=0.125, weight_decay=0.25),
    "LARS, outside": lambda p: mg.LARS(p, lr=0.125, trust_coefficient=0.125, form="outside"),
    "LAMB": lambda p: mg.LAMB(p, lr=0.01),
}


def make(case: Case, seed: int, n: int, dtype: Any) -> tuple[mg.Module, Callable, tuple]:
    """Model, loss and batch of a case, with dyadic parameters of this dtype."""
    rng = np.random.default_rng(seed)
    mg.manual_seed(seed)
    model = case.model()
    for p in model.parameters():
        p.data = dyadic(rng, *p.data.shape)
    model.astype(dtype)
    loss = case.loss(model) if case.loss is WithPenalty else case.loss
    return model, loss, case.batch(rng, n)


class Catch(mg.Optimizer):
    """Makes no update: keeps a copy of the gradients instead."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0, weight_decay=0)

    def write(self, scratch: Any) -> None:
        self.caught = [None if p.grad is None else p.grad.copy() for p in self.parameters]


def stream(
    model: mg.Module,
    loss: Callable,
    optimizer: Any,
    batch: tuple,
    split: list[int],
    reduction: str = "mean",
) -> mg.StepReport:
    """One window over the parts of a batch, of any sizes, through the public Accumulator.

    As a stream, but where the samples are coupled: then as a list of micro-batches.
    """
    assert sum(split) == len(batch[0])
    if couples(model, loss):
        ends = np.cumsum(split)
        cut = [tuple(a[end - n : end] for a in batch) for end, n in zip(ends, split, strict=True)]
        options = {"accumulation_steps": len(split), "reduction": reduction}
        return mg.Accumulator(model, optimizer, **options).window(loss, cut)
    with mg.Accumulator(
        model, optimizer, accumulation_steps=len(split), reduction=reduction
    ) as window:
        start = 0
        for size in split:
            x, *targets = (array[start : start + size] for array in batch)
            with window.micro_batch(size):
                window.backward(loss(model(x), *targets))
            start += size
    return window.report


def gradients(
    model: mg.Module, loss: Callable, batch: tuple, split: list[int], reduction: str = "mean"
) -> list[np.ndarray]:
    """The gradient of one window, a copy a parameter."""
    catch = Catch(model.parameters())
    stream(model, loss, catch, batch, split, reduction)
    return catch.caught
