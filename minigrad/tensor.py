"""Tensor, the tape, and `backward`.

A Tensor is an array that remembers how it was made. Each operation computes its array and puts one
Node on the tape: who its parents are, and its *pullback*, the function that takes the gradient of
the result to the gradients of the parents. For z = x * y + x the tape holds two nodes:

    p = x * y     pullback of g: g * y for x, g * x for y    (dp = y dx + x dy)
    z = p + x     pullback of g: g for p, g for x            (dz = dp + dx)

`backward` walks it from z with g = 1: the sum hands 1 to p and 1 to x, the product y to x and x to
y. Two paths lead to x, so that its gradient is y + 1: gradients are *added*. x and y are leaves:
Tensors that no operation made, the only ones whose gradients are kept, in `.grad`.

While the tape is walked, gradients are added in two functions only, `_add_to_node` and
`_add_to_leaf`. Read from the top; the operators (+, *, @, ...) come last.

Taught in lesson 02.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from minigrad.arrays import (
    constant,
    convert,
    filled,
    gradient_dtype,
    real,
    shape_error,
    sum_to,
    wide_sum,
)

# One of the three globals of minigrad: is the tape on?
_recording: ContextVar[bool] = ContextVar("recording", default=True)


@contextmanager
def no_grad() -> Iterator[None]:
    """Switch the tape off: results inside do not require gradients. Also a decorator."""
    token = _recording.set(False)
    try:
        yield
    finally:
        _recording.reset(token)


# ---------------------------------------------------------------------------------- the tape


class Node:
    """One operation on the tape. It holds what its pullback needs, not the Tensor it made.

    `parents` has one entry per operand: its Node, the leaf Tensor itself, or None for a constant.
    `pullback` takes the gradient of the result (of shape `shape`) and returns one gradient per
    parent: an array, or None where none is wanted, or, where it is costly, a function of `out`. It
    is called only if the parent wants a gradient, and may write it straight into the array `out`.
    """

    __slots__ = ("__weakref__", "parents", "pullback", "shape")

    def __init__(self, parents: list, pullback: Callable | None, shape: tuple[int, ...]) -> None:
        self.parents = parents
        self.pullback = pullback
        self.shape = shape


def record(data: Any, parents: Sequence[Tensor], pullback: Callable) -> Tensor:
    """The Tensor of `data`, made from `parents`; on the tape if one of them requires a gradient."""
    result = Tensor.__new__(Tensor)
    shape = getattr(data, "shape", ())
    if not shape and not hasattr(data, "__array_function__"):  # a NumPy scalar, or a bare Fraction
        data = np.array(data, dtype=getattr(data, "dtype", object))
    result.data, result.grad, result.home = data, None, None
    result.node, result.requires_grad = None, False
    for parent in parents:
        if parent.requires_grad and _recording.get():
            edges = [(p.node or p) if p.requires_grad else None for p in parents]
            result.node, result.requires_grad = Node(edges, pullback, shape), True
            break
    return result


def backward(root: Tensor, gradient: Any, retain_graph=False, into=None, leaves=None) -> None:
    """Add `gradient` times the derivative of `root` to `.grad` of every leaf that it came from.

    Reverse-mode accumulation (Linnainmaa 1970) without recursion: a node is walked when all that
    used its result have been. Its part of the tape is freed at once, unless `retain_graph`.
    into: None, or a dict in which the gradients are added, by leaf, in place of `.grad`.
    leaves: None, or a dict whose keys are the leaves that the caller looks after. Others join them;
    one that holds a gradient already raises ValueError, and is not added to. With neither, the call
    is one by hand: a parameter of an open window raises RuntimeError, and is not added to.
    """
    if not root.requires_grad:
        what = "backward() was called on a Tensor that requires no gradient"
        raise RuntimeError(f"{what}; compute it from ones that do, outside of no_grad()")
    if root.node is None:
        _add_to_leaf(root, gradient, into, leaves)
        return
    uses = count_uses(root.node)
    gradients: dict[Node, Any] = {root.node: gradient}
    owned: set[Node] = set()
    ready = [root.node]
    while ready:
        node = ready.pop()
        # popped: the gradient of this node is freed as soon as its pullback is done with it
        parents, contributions = node.parents, node.pullback(gradients.pop(node))
        owned.discard(node)
        if not retain_graph:
            node.parents, node.pullback = [], None  # and with them what the pullback saved
        for parent, contribution in zip(parents, contributions, strict=True):
            if type(parent) is Node:
                _add_to_node(parent, contribution, gradients, owned)
                uses[parent] -= 1
                if not uses[parent]:
                    ready.append(parent)
            elif parent is not None:
                _add_to_leaf(parent, contribution, into, leaves)
        del contributions, contribution  # before the next pullback allocates


def count_uses(root: Node) -> dict[Node, int]:
    """How often each node below `root` was used as an operand; refuses a freed tape."""
    uses: dict[Node, int] = {root: 1}
    stack = [root]
    while stack:
        node = stack.pop()
        if node.pullback is None:
            what = "backward() met a part of the tape that an earlier backward() has freed"
            raise RuntimeError(f"{what}; compute the loss again, or pass retain_graph=True there")
        for parent in node.parents:
            if parent in uses:
                uses[parent] += 1
            elif type(parent) is Node:
                uses[parent] = 1
                stack.append(parent)
    return uses


def _add_to_node(node: Node, contribution: Any, gradients: dict, owned: set[Node]) -> None:
    """The first contribution is borrowed, the second allocates, later ones are added in place.

    Borrowed, because a pullback may hand the same array to two parents, as that of x + y does.
    """
    if callable(contribution):
        contribution = contribution(None)
    contribution = sum_to(contribution, node.shape)
    if node not in gradients:
        gradients[node] = contribution
    elif node not in owned:
        total = np.add(gradients[node], contribution, dtype=gradient_dtype(contribution))
        gradients[node] = sum_to(total, node.shape)  # which makes a bare Fraction an array
        owned.add(node)
    else:
        gradients[node] += contribution


def _add_to_leaf(leaf: Tensor, contribution: Any, into: dict | None, leaves: dict | None) -> None:
    """Add to `.grad`, or in `into`. The first contribution is written into an array of the leaf's
    own, never kept: no two leaves share a gradient."""
    if leaves is None or leaf not in leaves:
        _look_after(leaf, into, leaves)
    deferred = callable(contribution)
    held, home = (leaf.grad, leaf.home) if into is None else (into.get(leaf), None)
    if held is not None:
        held += sum_to(contribution(None) if deferred else contribution, leaf.data.shape)
        return
    if home is None:
        home = np.empty_like(leaf.data, dtype=gradient_dtype(leaf.data))
    written = contribution(home) if deferred else contribution
    if written is not home:
        home[...] = sum_to(written, leaf.data.shape)
    if into is None:
        leaf.grad = home
    else:
        into[leaf] = home


def _look_after(leaf: Tensor, into: dict | None, leaves: dict | None) -> None:
    """Let a leaf join those that are looked after; refuse it where a gradient would be mixed up."""
    if leaves is not None and leaf.grad is not None:
        what = "the loss reached a leaf outside of this window that held a gradient, expected None"
        raise ValueError(f"{what}; clear it, or make it the model's and its optimizer's")
    if leaves is not None:
        leaves[leaf] = None
    elif into is None and leaf.home is not None:
        what = "backward() reached a parameter of an open window, which would count it as its own"
        raise RuntimeError(f"{what}; call accumulator.backward(loss), or end the window first")


# ------------------------------------------------------------------------------------ Tensor


class Tensor:
    """An array with a gradient.

    data: a float16, float32 or float64 array, or an object array of `Fraction`s, on any device.
    grad: None, or an array of the same shape: only leaves that require a gradient ever get one.
    home: None, or during a window the array in which an optimizer wants the gradient to lie.

    Every operation keeps the dtype: numbers and arrays are cast to the Tensor's, and two Tensors
    of different dtype raise a TypeError.
    """

    __slots__ = ("__weakref__", "data", "grad", "home", "node", "requires_grad")
    __array_ufunc__ = None  # so that `array * tensor` asks the Tensor

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        self.data, self.requires_grad = real(data), requires_grad
        self.grad: Any = None
        self.home: Any = None
        self.node: Node | None = None

    def backward(self, gradient: Any = None, retain_graph: bool = False) -> None:
        """Add the derivative of this Tensor to `.grad` of each leaf that it was computed from.

        gradient: a number or an array of this Tensor's shape, the weights of its elements; may be
        left out if there is one element. Raises RuntimeError if there is no tape, if it has been
        freed already, or where it leads to a parameter of an open window, ValueError for a gradient
        that does not fit.
        """
        if gradient is None and self.data.size != 1:
            what = f"backward() was called on a Tensor of shape {self.shape}, expected one element"
            raise ValueError(f"{what}; sum it first, or pass the gradient of each element")
        seed = filled(self.data, 1)
        if gradient is not None:
            given = constant(gradient, self.data)
            if getattr(given, "shape", ()) not in ((), self.shape):
                raise shape_error("backward()", given.shape, f"{self.shape}, that of the Tensor")
            seed[...] = given
        backward(self, seed, retain_graph)

    def detach(self) -> Tensor:
        """The same array without its past."""
        return record(self.data, (), None)

    def item(self) -> Any:
        """The one element, as a Python number."""
        return self.data.item()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    @property
    def ndim(self) -> int:
        return self.data.ndim

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        raise TypeError("a Tensor has no truth value, expected a comparison: use .data or .item()")

    def __repr__(self) -> str:
        return f"Tensor({self.data!r}{', requires_grad=True' if self.requires_grad else ''})"

    def __getstate__(self) -> tuple:
        if self.node is not None:
            raise TypeError("copy or pickle got a Tensor on the tape, expected a leaf: .detach()")
        return self.data, None if self.grad is None else self.grad.copy(), self.requires_grad

    def __setstate__(self, state: tuple) -> None:
        self.data, self.grad, self.requires_grad = state
        self.home = self.node = None

    # -------------------------------------------------------------------------- operators

    def operand(self, other: Any) -> Tensor:
        """`other` as the second operand of an operation with this Tensor."""
        if not isinstance(other, Tensor):
            weak = Tensor.__new__(Tensor)
            weak.data, weak.grad, weak.home = constant(other, self.data), None, None
            weak.node, weak.requires_grad = None, False
            return weak
        if other.data.dtype != self.data.dtype:
            what = f"an operation got Tensors of dtype {self.dtype} and {other.dtype}"
            raise TypeError(f"{what}, expected one dtype; convert one with .astype()")
        return other

    def __add__(self, other: Any) -> Tensor:
        x, y = self, self.operand(other)
        return record(x.data + y.data, (x, y), lambda g: (g, g))

    def __sub__(self, other: Any) -> Tensor:
        x, y = self, self.operand(other)
        wanted = y.requires_grad
        return record(x.data - y.data, (x, y), lambda g: (g, -g if wanted else None))

    # Below, y is often a constant, whose gradient nobody wants; x hardly ever.

    def __mul__(self, other: Any) -> Tensor:
        x, y = self, self.operand(other)
        a, b = x.data, y.data
        return record(a * b, (x, y), lambda g: (g * b, g * a if y.requires_grad else None))

    def __truediv__(self, other: Any) -> Tensor:
        x, y = self, self.operand(other)
        a, b = x.data, y.data
        z = a / b
        return record(z, (x, y), lambda g: (g / b, -g * z / b if y.requires_grad else None))

    def __neg__(self) -> Tensor:
        return record(-self.data, (self,), lambda g: (-g,))

    def __pow__(self, exponent: float) -> Tensor:
        """x ** c for a constant c; c must be an integer if x holds Fractions."""
        if not isinstance(exponent, (int, float, np.number)):
            what = f"** got an exponent of type {type(exponent).__name__}, expected a number"
            raise TypeError(f"{what}; write mg.exp(y * mg.log(x)) for x ** y")
        x, c = self.data, exponent.item() if isinstance(exponent, np.generic) else exponent
        if x.dtype == object:
            if c != int(c):
                raise TypeError(f"** got the exponent {c}, expected an integer for Fractions")
            c = int(c)
        if c == 2:
            return self * self
        return record(x**c, (self,), lambda g: (g * (c * x ** (c - 1) if c else 0),))

    def __matmul__(self, other: Any) -> Tensor:
        """Matrix product of the last two axes, as `np.matmul`: the axes before them broadcast."""
        x, y = self, self.operand(other)
        if not x.ndim or not getattr(y.data, "ndim", 0):
            raise ValueError("@ got a number, expected two arrays of one axis or more; use *")
        if x.ndim == 1:
            z = x.reshape(1, -1) @ y
            return z.reshape(z.shape[:-2] + z.shape[-1:]) if y.ndim > 1 else z.reshape(())
        if y.ndim == 1:
            z = x @ y.reshape(-1, 1)
            return z.reshape(z.shape[:-1])
        a, b = x.data, y.data
        dx = lambda g: g @ np.swapaxes(b, -1, -2) if x.requires_grad else None  # noqa: E731
        dy = lambda g: np.swapaxes(a, -1, -2) @ g if y.requires_grad else None  # noqa: E731
        return record(a @ b, (x, y), lambda g: (dx(g), dy(g)))

    def __radd__(self, other: Any) -> Tensor:  # other + self
        return self + other

    def __rsub__(self, other: Any) -> Tensor:  # other - self
        return -self + other

    def __rmul__(self, other: Any) -> Tensor:  # other * self
        return self * other

    def __rtruediv__(self, other: Any) -> Tensor:  # other / self
        y = self.data
        z = self.operand(other).data / y
        return record(z, (self,), lambda g: (-g * z / y,))

    def __rmatmul__(self, other: Any) -> Tensor:  # other @ self
        return self.operand(np.asarray(other) if np.isscalar(other) else other) @ self

    # ---------------------------------------------------- sums, shapes and parts of a Tensor

    def sum(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """Sum over `axis` (all axes if None); its pullback copies the gradient to each term."""
        return self._sum_or_mean(axis, keepdims, mean=False)

    def mean(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        """Sum over `axis` divided by the number of terms."""
        return self._sum_or_mean(axis, keepdims, mean=True)

    def _sum_or_mean(self, axis: Any, keepdims: bool, mean: bool) -> Tensor:
        shape, total = self.shape, wide_sum(self.data, axis, keepdims=True)
        kept = total.shape
        n = constant(self.data.size // (total.size or 1) if mean else 1, self.data)

        def pullback(g: Any) -> tuple:
            g = g.reshape(kept)
            return (np.broadcast_to(g if n == 1 else g / n, shape),)

        y = (total if n == 1 else total / n).astype(self.dtype, copy=False)
        return record(y if keepdims else np.squeeze(y, axis), (self,), pullback)

    def reshape(self, *shape: int | tuple[int, ...]) -> Tensor:
        """The same elements in another shape, given as numbers or as one tuple; -1 is inferred."""
        before = self.shape
        if len(shape) == 1 and isinstance(shape[0], tuple):
            shape = shape[0]
        return record(self.data.reshape(shape), (self,), lambda g: (g.reshape(before),))

    def transpose(self, *axes: int | tuple[int, ...]) -> Tensor:
        """Axes in the given order, as numbers or one tuple, or reversed if none is given."""
        if len(axes) == 1 and isinstance(axes[0], tuple):
            axes = axes[0]
        y = self.data.transpose(axes or None)
        back = np.argsort(np.array(axes) % self.ndim).tolist() if axes else None
        return record(y, (self,), lambda g: (np.transpose(g, back),))

    @property
    def T(self) -> Tensor:
        return self.transpose()

    def astype(self, dtype: Any) -> Tensor:
        """The values in another float dtype; the gradient comes back in this one's (float32 for
        float16)."""
        before = gradient_dtype(self.data)
        return record(convert(self.data, dtype), (self,), lambda g: (g.astype(before),))

    def __getitem__(self, index: Any) -> Tensor:
        """Any index of NumPy but a Tensor; the gradients of an element taken twice add up."""
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, Tensor) for part in parts):
            raise TypeError("[] got a Tensor as an index, expected integers; pass its .data")
        repeats = any(isinstance(p, list | tuple) or hasattr(p, "dtype") for p in parts)
        shape = self.shape

        def pullback(g: Any) -> tuple:
            whole = filled(g, 0, shape, gradient_dtype(g))
            if repeats:
                np.add.at(whole, index, g)
            else:
                whole[index] += g
            return (whole,)

        return record(self.data[index], (self,), pullback)
