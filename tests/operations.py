"""One table of every operation, loss and layer, with shapes to run it on and its twin in PyTorch.

The name of a row is the public name that it runs, and after a colon what is special about it.
test_gradients.py proves that no public name is missing and that each row runs what it names.
Nothing here imports PyTorch: a twin is handed the module.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import minigrad as mg
from minigrad import functions as F


class Operation(NamedTuple):
    """run(*tensors) -> Tensor; theirs(torch, *tensors), or None if `run` serves for both."""

    run: Callable
    shapes: list
    theirs: Callable | None = None
    positive: bool = False  # inputs of log and its like
    rational: bool = False  # exact in Fractions

    def twin(self, torch: Any, *tensors: Any) -> Any:
        return (self.theirs or (lambda torch, *tensors: self.run(*tensors)))(torch, *tensors)


class Layer(NamedTuple):
    """make(dtype) -> Module of minigrad; theirs(torch.nn) -> the same layer of PyTorch."""

    make: Callable
    shape: tuple
    theirs: Callable


def values(name, dtype=np.float64):
    """The inputs of a row: random, and at least 0.5 away from 0, so that no kink is near."""
    row = (OPERATIONS | LOSSES)[name]
    rng = np.random.default_rng(list(name.encode()))
    found = []
    for shape in row.shapes:
        x = rng.uniform(0.5, 1.5, shape)
        x = x if row.positive else x * rng.choice([-1, 1], shape)
        found.append(mg.fractions(np.round(8 * x) / 8) if dtype is object else x.astype(dtype))
    return found


def leaves(name, dtype=np.float64):
    """The inputs of a row as Tensors that require gradients."""
    return [mg.Tensor(x, requires_grad=True) for x in values(name, dtype)]


def _both(run, *shapes, rational=True):
    """A row whose expression is the same in both, and exact in Fractions."""
    return Operation(run, list(shapes), rational=rational)


def _batch_norm(x, w, b):
    return F.batch_norm(x, w, b, 1e-3)[0]


LEFT = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]])
CHOSEN = np.array([[True, False, True], [False, False, True]])
LABELS = np.array([0, 2, 2, 1])
BINARY = np.array([[0.0, 1.0, 0.25], [1.0, 0.0, 0.5]])
CLASS_WEIGHTS = np.array([0.5, 2.0, 1.25])
SAMPLE_WEIGHTS = np.array([1.0, 0.5, 0.0, 3.0])

OPERATIONS = {
    # ------------------------------------------------------------------ operators of Tensor
    "Tensor.__add__": _both(lambda x, y: x + y, (2, 3), (2, 3)),
    "Tensor.__add__: broadcast": _both(lambda x, y: x + y, (2, 1), (3,)),
    "Tensor.__radd__": _both(lambda x: 2 + x, (2, 3)),
    "Tensor.__sub__": _both(lambda x, y: x - y, (2, 3), (2, 3)),
    "Tensor.__sub__: broadcast": _both(lambda x, y: x - y, (3,), (2, 1)),
    "Tensor.__rsub__": _both(lambda x: 2 - x, (2, 3)),
    "Tensor.__mul__": _both(lambda x, y: x * y, (2, 3), (2, 3)),
    "Tensor.__mul__: broadcast": _both(lambda x, y: x * y, (), (2, 3)),
    "Tensor.__mul__: with itself": _both(lambda x: x * x, (2, 3)),
    "Tensor.__rmul__": _both(lambda x: 2 * x, (2, 3)),
    "Tensor.__truediv__": _both(lambda x, y: x / y, (2, 3), (2, 3)),
    "Tensor.__truediv__: broadcast": _both(lambda x, y: x / y, (2, 3), (2, 1)),
    "Tensor.__rtruediv__": _both(lambda x: 2 / x, (2, 3)),
    "Tensor.__neg__": _both(lambda x: -x, (2, 3)),
    "Tensor.__pow__": _both(lambda x: x**3, (2, 3)),
    "Tensor.__pow__: square": _both(lambda x: x**2, (2, 3)),
    "Tensor.__pow__: first": _both(lambda x: x**1, (2, 3)),
    "Tensor.__pow__: negative": _both(lambda x: x**-2, (2, 3)),
    "Tensor.__pow__: fractional": Operation(lambda x: x**1.5, [(2, 3)], positive=True),
    "Tensor.__matmul__": _both(lambda x, y: x @ y, (2, 3), (3, 4)),
    "Tensor.__matmul__: vectors": _both(lambda x, y: x @ y, (3,), (3,)),
    "Tensor.__matmul__: vector left": _both(lambda x, y: x @ y, (3,), (2, 3, 4)),
    "Tensor.__matmul__: vector right": _both(lambda x, y: x @ y, (2, 4, 3), (3,)),
    "Tensor.__matmul__: batched": _both(lambda x, y: x @ y, (2, 2, 3), (2, 3, 2)),
    "Tensor.__matmul__: broadcast": _both(lambda x, y: x @ y, (2, 1, 2, 3), (3, 3, 2)),
    "Tensor.__rmatmul__": Operation(
        lambda x: LEFT @ x,
        [(3, 2)],
        lambda torch, x: torch.as_tensor(LEFT, dtype=x.dtype) @ x,
        rational=True,
    ),
    # ------------------------------------------------------- sums, shapes, parts of a Tensor
    "Tensor.sum": _both(lambda x: x.sum(), (2, 3)),
    "Tensor.sum: axis": _both(lambda x: x.sum(axis=-2), (2, 3, 4)),
    "Tensor.sum: axes": _both(lambda x: x.sum(axis=(0, -1)), (2, 3, 4)),
    "Tensor.sum: kept": _both(lambda x: x.sum(axis=(0, 2), keepdims=True), (2, 3, 4)),
    "Tensor.sum: all kept": Operation(
        lambda x: x.sum(keepdims=True),
        [(2, 3)],
        lambda t, x: x.sum((0, 1), keepdim=True),
        rational=True,
    ),
    "Tensor.mean": _both(lambda x: x.mean(), (2, 3)),
    "Tensor.mean: axis": _both(lambda x: x.mean(axis=0), (2, 3)),
    "Tensor.mean: axes": _both(lambda x: x.mean(axis=(-1, 0)), (2, 3, 4)),
    "Tensor.mean: kept": _both(lambda x: x.mean(axis=1, keepdims=True), (2, 3, 4)),
    "Tensor.reshape": _both(lambda x: x.reshape(3, -1), (2, 3)),
    "Tensor.reshape: tuple": _both(lambda x: x.reshape((6,)), (2, 3)),
    "Tensor.transpose": Operation(
        lambda x: x.transpose(), [(2, 3, 4)], lambda t, x: x.permute(2, 1, 0), rational=True
    ),
    "Tensor.transpose: axes": Operation(
        lambda x: x.transpose(1, 2, 0), [(2, 3, 4)], lambda t, x: x.permute(1, 2, 0), rational=True
    ),
    "Tensor.transpose: negative axes": Operation(
        lambda x: x.transpose(-1, 0, 1),
        [(2, 3, 4)],
        lambda t, x: x.permute(-1, 0, 1),
        rational=True,
    ),
    "Tensor.transpose: square": Operation(
        lambda x: x.transpose(-1, -2), [(3, 3)], lambda t, x: x.permute(-1, -2), rational=True
    ),
    "Tensor.T": _both(lambda x: x.T, (2, 3)),
    "Tensor.astype": Operation(
        lambda x: x.astype(x.dtype), [(2, 3)], lambda t, x: x.to(x.dtype), rational=True
    ),
    "Tensor.__getitem__": _both(lambda x: x[1], (3, 4)),
    "Tensor.__getitem__: element": _both(lambda x: x[1, -1], (3, 4)),
    "Tensor.__getitem__: slices": _both(lambda x: x[1:, None, ::2], (3, 4)),
    "Tensor.__getitem__: ellipsis": _both(lambda x: x[..., 0], (2, 3, 4)),
    "Tensor.__getitem__: list": _both(lambda x: x[[0, 2]], (3, 4)),
    "Tensor.__getitem__: repeated": _both(lambda x: x[[0, 2, 0, 0]], (3, 4)),
    "Tensor.__getitem__: repeated tuple": _both(lambda x: x[(0, 2, 0), :], (3, 4)),
    "Tensor.__getitem__: repeated pairs": _both(lambda x: x[[0, 1, 0], [3, 1, 3]], (3, 4)),
    "Tensor.__getitem__: slice and list": _both(lambda x: x[:, [1, 1]], (3, 4)),
    "Tensor.__getitem__: array": Operation(
        lambda x: x[np.array([[0, 2], [2, 2]])],
        [(3, 4)],
        lambda t, x: x[t.tensor([[0, 2], [2, 2]])],
        rational=True,
    ),
    "Tensor.__getitem__: mask": Operation(
        lambda x: x[CHOSEN], [(2, 3)], lambda t, x: x[t.tensor(CHOSEN)], rational=True
    ),
    # ------------------------------------------------------------------------- elementwise
    "exp": Operation(lambda x: mg.exp(x), [(2, 3)], lambda t, x: t.exp(x)),
    "log": Operation(lambda x: mg.log(x), [(2, 3)], lambda t, x: t.log(x), positive=True),
    "sqrt": Operation(lambda x: mg.sqrt(x), [(2, 3)], lambda t, x: t.sqrt(x), positive=True),
    "tanh": Operation(lambda x: mg.tanh(x), [(2, 3)], lambda t, x: t.tanh(x)),
    "sigmoid": Operation(lambda x: mg.sigmoid(x), [(2, 3)], lambda t, x: t.sigmoid(x)),
    "relu": Operation(lambda x: mg.relu(x), [(3, 4)], lambda t, x: t.relu(x), rational=True),
    "maximum": Operation(
        lambda x, y: mg.maximum(x, y),
        [(3, 4), (3, 4)],
        lambda t, x, y: t.maximum(x, y),
        rational=True,
    ),
    "maximum: broadcast": Operation(
        lambda x, y: mg.maximum(x, y),
        [(5, 1), (4,)],
        lambda t, x, y: t.maximum(x, y),
        rational=True,
    ),
    "where": Operation(
        lambda x, y: mg.where(CHOSEN, x, y),
        [(2, 3), (2, 3)],
        lambda t, x, y: t.where(t.tensor(CHOSEN), x, y),
        rational=True,
    ),
    "where: broadcast": Operation(
        lambda x, y: mg.where(CHOSEN, x, y),
        [(2, 1), (3,)],
        lambda t, x, y: t.where(t.tensor(CHOSEN), x, y),
        rational=True,
    ),
    # -------------------------------------------------------------------------- reductions
    "max": Operation(lambda x: mg.max(x), [(3, 4)], lambda t, x: t.amax(x), rational=True),
    "max: axis": Operation(
        lambda x: mg.max(x, axis=1), [(3, 4)], lambda t, x: t.amax(x, 1), rational=True
    ),
    "max: kept": Operation(
        lambda x: mg.max(x, axis=-2, keepdims=True),
        [(2, 3, 4)],
        lambda t, x: t.amax(x, -2, keepdim=True),
        rational=True,
    ),
    "logsumexp": Operation(lambda x: mg.logsumexp(x), [(3, 4)], lambda t, x: t.logsumexp(x, -1)),
    "logsumexp: axis kept": Operation(
        lambda x: mg.logsumexp(x, axis=0, keepdims=True),
        [(3, 4)],
        lambda t, x: t.logsumexp(x, 0, keepdim=True),
    ),
    "log_softmax": Operation(
        lambda x: mg.log_softmax(x), [(3, 4)], lambda t, x: t.log_softmax(x, -1)
    ),
    "log_softmax: axis": Operation(
        lambda x: mg.log_softmax(x, axis=1), [(2, 3, 4)], lambda t, x: t.log_softmax(x, 1)
    ),
    # ---------------------------------------------------------------- joining, looking up
    "concatenate": Operation(
        lambda x, y: mg.concatenate([x, y]),
        [(2, 3), (1, 3)],
        lambda t, x, y: t.cat([x, y]),
        rational=True,
    ),
    "concatenate: axis": Operation(
        lambda x, y, z: mg.concatenate([x, y, z], axis=-1),
        [(2, 3), (2, 1), (2, 2)],
        lambda t, x, y, z: t.cat([x, y, z], -1),
        rational=True,
    ),
    "concatenate: the same twice": Operation(
        lambda x: mg.concatenate([x, x], axis=1),
        [(2, 3)],
        lambda t, x: t.cat([x, x], 1),
        rational=True,
    ),
    "stack": Operation(
        lambda x, y: mg.stack([x, y]),
        [(2, 3), (2, 3)],
        lambda t, x, y: t.stack([x, y]),
        rational=True,
    ),
    "stack: axis": Operation(
        lambda x, y: mg.stack([x, y], axis=-1),
        [(2, 3), (2, 3)],
        lambda t, x, y: t.stack([x, y], -1),
        rational=True,
    ),
    "stack: numbers": Operation(
        lambda x, y: mg.stack([x, y]), [(), ()], lambda t, x, y: t.stack([x, y]), rational=True
    ),
    "embedding": Operation(
        lambda w: mg.embedding(w, [[0, 3], [3, 3]]),
        [(4, 2)],
        lambda t, w: t.nn.functional.embedding(t.tensor([[0, 3], [3, 3]]), w),
        rational=True,
    ),
    # ------------------------------------------------------------------------------- fused
    "linear": Operation(
        lambda x, w, b: mg.linear(x, w, b),
        [(5, 3), (3, 2), (2,)],
        lambda t, x, w, b: t.nn.functional.linear(x, w.T, b),
        rational=True,
    ),
    "linear: no bias": Operation(
        lambda x, w: mg.linear(x, w),
        [(5, 3), (3, 2)],
        lambda t, x, w: t.nn.functional.linear(x, w.T),
        rational=True,
    ),
    "linear: one sample": Operation(
        lambda x, w, b: mg.linear(x, w, b),
        [(1, 3), (3, 2), (2,)],
        lambda t, x, w, b: t.nn.functional.linear(x, w.T, b),
        rational=True,
    ),
    "linear: vector": Operation(
        lambda x, w, b: mg.linear(x, w, b),
        [(3,), (3, 2), (2,)],
        lambda t, x, w, b: t.nn.functional.linear(x, w.T, b),
        rational=True,
    ),
    "linear: four axes": Operation(
        lambda x, w, b: mg.linear(x, w, b),
        [(2, 2, 3, 4), (4, 2), (2,)],
        lambda t, x, w, b: t.nn.functional.linear(x, w.T, b),
        rational=True,
    ),
    "linear: one weight twice": Operation(
        lambda x, w: mg.linear(mg.linear(x, w), w),
        [(5, 3), (3, 3)],
        lambda t, x, w: x @ w @ w,
        rational=True,
    ),
    "standardize": Operation(
        lambda x: F.standardize(x, -1, 1e-3),
        [(3, 5)],
        lambda t, x: t.nn.functional.layer_norm(x, (5,), eps=1e-3),
    ),
    "standardize: axes": Operation(
        lambda x: F.standardize(x, (0, 2), 1e-3),
        [(3, 2, 4)],
        lambda t, x: (
            (x - x.mean((0, 2), keepdim=True))
            / (x.var((0, 2), unbiased=False, keepdim=True) + 1e-3).sqrt()
        ),
    ),
    "batch_norm": Operation(
        _batch_norm,
        [(6, 3), (3,), (3,)],
        lambda t, x, w, b: t.nn.functional.batch_norm(x, None, None, w, b, True, eps=1e-3),
    ),
    "rescale": Operation(
        F.rescale,
        [(6, 3), (3,), (3,), (3,)],
        lambda t, x, mean, scale, bias: (x - mean) * scale + bias,
    ),
}

LOSSES = {
    "per_sample": Operation(
        lambda x: mg.per_sample(x).sum(), [(4, 2)], lambda t, x: x.sum(), rational=True
    ),
    "per_sample: weights": Operation(
        lambda x: mg.per_sample(x, SAMPLE_WEIGHTS).mean(),
        [(4, 2)],
        lambda t, x: (t.tensor(SAMPLE_WEIGHTS, dtype=x.dtype)[:, None] * x).sum() / 9,
        rational=True,
    ),
    "penalty": Operation(
        lambda x: mg.penalty((x * x).sum()).mean(),
        [(2, 3)],
        lambda t, x: (x * x).sum(),
        rational=True,
    ),
    "squared_error": Operation(
        lambda x, y: mg.squared_error(x, y).mean(),
        [(4, 2), (4, 2)],
        lambda t, x, y: t.nn.functional.mse_loss(x, y),
        rational=True,
    ),
    "squared_error: weights": Operation(
        lambda x, y: mg.squared_error(x, y, SAMPLE_WEIGHTS).mean(),
        [(4,), (4,)],
        lambda t, x, y: (t.tensor(SAMPLE_WEIGHTS, dtype=x.dtype) * (x - y) ** 2).sum() / 4.5,
        rational=True,
    ),
    "absolute_error": Operation(
        lambda x, y: mg.absolute_error(x, y).mean(),
        [(4, 2), (4, 2)],
        lambda t, x, y: t.nn.functional.l1_loss(x, y),
        rational=True,
    ),
    "binary_cross_entropy_with_logits": Operation(
        lambda z: mg.binary_cross_entropy_with_logits(z, BINARY).mean(),
        [(2, 3)],
        lambda t, z: t.nn.functional.binary_cross_entropy_with_logits(
            z, t.tensor(BINARY, dtype=z.dtype)
        ),
    ),
    "cross_entropy": Operation(
        lambda z: mg.cross_entropy(z, LABELS).mean(),
        [(4, 3)],
        lambda t, z: t.nn.functional.cross_entropy(z, t.tensor(LABELS)),
    ),
    "cross_entropy: everything": Operation(
        lambda z: mg.cross_entropy(
            z, LABELS, ignore_index=1, class_weights=CLASS_WEIGHTS, label_smoothing=0.2
        ).sum(),
        [(4, 3)],
        lambda t, z: t.nn.functional.cross_entropy(
            z,
            t.tensor(LABELS),
            t.tensor(CLASS_WEIGHTS, dtype=z.dtype),
            ignore_index=1,
            label_smoothing=0.2,
            reduction="sum",
        ),
    ),
    "contrastive": Operation(
        lambda a, b: mg.contrastive((a, b), temperature=0.5).mean(),
        [(4, 3), (4, 3)],
        lambda t, a, b: sum(
            t.nn.functional.cross_entropy(scores, t.arange(4)) / 2
            for scores in (a @ b.T / 0.5, b @ a.T / 0.5)
        ),
    ),
    "dice": Operation(
        lambda p: mg.dice(p, BINARY).mean(),
        [(2, 3)],
        lambda t, p: (
            1 - (2 * (p * t.tensor(BINARY, dtype=p.dtype)).sum() + 1) / (p.sum() + BINARY.sum() + 1)
        ),
        positive=True,
        rational=True,
    ),
}

ROWS = OPERATIONS | LOSSES
RATIONAL = [name for name, row in ROWS.items() if row.rational]


def _rng():
    return np.random.default_rng(7)


LAYERS = {
    "Linear": Layer(
        lambda dtype: mg.Linear(4, 3, rng=_rng(), dtype=dtype), (5, 4), lambda nn: nn.Linear(4, 3)
    ),
    "Linear: no bias, three axes": Layer(
        lambda dtype: mg.Linear(4, 3, bias=False, rng=_rng(), dtype=dtype),
        (2, 5, 4),
        lambda nn: nn.Linear(4, 3, bias=False),
    ),
    "ReLU": Layer(lambda dtype: mg.ReLU(), (5, 4), lambda nn: nn.ReLU()),
    "Tanh": Layer(lambda dtype: mg.Tanh(), (5, 4), lambda nn: nn.Tanh()),
    "Sigmoid": Layer(lambda dtype: mg.Sigmoid(), (5, 4), lambda nn: nn.Sigmoid()),
    "BatchNorm": Layer(
        lambda dtype: mg.BatchNorm(4, momentum=0.3, eps=1e-3, dtype=dtype),
        (5, 4),
        lambda nn: nn.BatchNorm1d(4, momentum=0.3, eps=1e-3),
    ),
    "LayerNorm": Layer(
        lambda dtype: mg.LayerNorm(4, dtype=dtype), (2, 5, 4), lambda nn: nn.LayerNorm(4)
    ),
    "GroupNorm": Layer(
        lambda dtype: mg.GroupNorm(2, 8, dtype=dtype), (5, 8), lambda nn: nn.GroupNorm(2, 8)
    ),
    "GroupNorm: images": Layer(
        lambda dtype: mg.GroupNorm(2, 4, dtype=dtype), (2, 4, 3, 2), lambda nn: nn.GroupNorm(2, 4)
    ),
    "MLP": Layer(
        lambda dtype: mg.MLP(4, 6, 3, rng=_rng(), dtype=dtype),
        (5, 4),
        lambda nn: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)),
    ),
    "MLP: tanh and norms": Layer(
        lambda dtype: mg.MLP(4, 6, 5, 3, activation=mg.Tanh, norm=mg.LayerNorm, dtype=dtype),
        (5, 4),
        lambda nn: nn.Sequential(
            *(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh()),
            *(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh()),
            nn.Linear(5, 3),
        ),
    ),
}


def layer(name, dtype=np.float64):
    """The layer of a row, all its parameters random, none of them at its start of ones or zeros."""
    rng = np.random.default_rng(list(name.encode()))
    module = LAYERS[name].make(dtype)
    for p in module.parameters():
        p.data = rng.uniform(0.5, 1.5, p.shape).astype(dtype) * rng.choice([-1, 1], p.shape)
        p.data = p.data.astype(dtype)
    return module, rng.standard_normal(LAYERS[name].shape).astype(dtype)
