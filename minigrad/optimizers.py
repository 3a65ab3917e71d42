"""Optimizers: one update of all parameters from their gradients.

The parameters lie side by side in one flat array, and their gradients and the optimizer's state in
arrays like it (flat.py): an update is then a few lines over vectors, as in the papers. Weight decay
and the count of updates belong to an update and happen in here; training.py sees to it that there
is one update a window.

Taught in lesson 03 and lesson 06.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from minigrad.arrays import constant, load_arrays, refuse_fractions
from minigrad.flat import Flat
from minigrad.tensor import Tensor

Parameters = Iterable[Tensor]
Rate = float | Callable[[int], float]  # a number, or a function of the updates made so far
BLOCK = 1 << 17  # elements that an update works on at a time, which bounds its scratch


class Optimizer:
    """What all optimizers share. A subclass names its `states` and writes `update`.

    An update has two halves, so that none is left half done: `prepare` does all that may fail,
    `write` only writes.

    lr: the learning rate, a number or a function of the number of updates made so far
    (schedules.py): so a schedule cannot count anything but updates.
    """

    states: tuple[str, ...] = ()

    def __init__(self, parameters: Parameters, lr: Rate, weight_decay: float) -> None:
        given = list(parameters)
        if not given or not all(isinstance(p, Tensor) and p.node is None for p in given):
            what = f"{type(self).__name__}() got no parameters, or some that are no leaf Tensors"
            raise ValueError(f"{what}, expected leaf Tensors: model.parameters()")
        self.parameters = list(dict.fromkeys(given))
        if not callable(lr):
            self._at_least_0("lr", lr)
        self._at_least_0("weight_decay", weight_decay)
        self.lr, self.weight_decay, self.updates = lr, weight_decay, 0
        self._lay_out()

    def _at_least_0(self, name: str, value: Any, below: float = math.inf) -> None:
        if not 0 <= value < below:
            what = f"{type(self).__name__}() got {name} = {value}, expected 0 or more"
            raise ValueError(what if below == math.inf else f"{what} and below {below}")

    def _lay_out(self) -> None:
        """One Flat a dtype, and zeros for each state."""
        by_dtype: dict[Any, list[Tensor]] = {}
        for p in self.parameters:
            by_dtype.setdefault((type(p.data), p.data.dtype), []).append(p)
        self.flats = [Flat(parameters) for parameters in by_dtype.values()]
        self.state = [
            {name: np.zeros_like(flat.gradients) for name in self.states} for flat in self.flats
        ]

    @property
    def rate(self) -> Any:
        """The learning rate of the next update, asked of the schedule and checked."""
        rate = self.lr(self.updates) if callable(self.lr) else self.lr
        if not isinstance(rate, (int, float, Fraction, np.number)) or not 0 <= rate < math.inf:
            raise ValueError(f"the learning rate is {rate!r}, expected a finite number, 0 or more")
        return rate.item() if isinstance(rate, np.generic) else rate

    def lend_homes(self) -> None:
        """Let gradients be written where they are needed, until the window takes it back."""
        for flat in self.flats:
            for p, home in zip(flat.parameters, flat.homes, strict=True):
                p.home = home

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.parameters:
            p.grad = None

    def gradients(self) -> list[Any]:
        """Flat arrays that hold all gradients there are, each element once; not copies."""
        return [gradients for flat in self.flats for gradients in flat.gather()]

    def step(self) -> None:
        """One update of every parameter that has a gradient, by the gradient as it stands.

        Raises ValueError if none has: the update would count, in the schedule too.
        """
        if all(p.grad is None for p in self.parameters):
            raise ValueError("step() found no gradient, expected one; leave it out after a window")
        self.gradients()
        self.write(self.prepare())

    def prepare(self) -> tuple[Any, list[Any]]:
        """The rate and the memory that an update needs: all of it that may fail."""
        flats = [flat.gradients for flat in self.flats]
        return self.rate, [np.empty_like(g, shape=(2, min(BLOCK, g.size))) for g in flats]

    def write(self, prepared: tuple[Any, list[Any]]) -> None:
        """The update itself, block by block, of what `gradients` has found."""
        rate, scratch = prepared
        self.updates += 1
        with np.errstate(all="ignore"):
            for flat, state, spare in zip(self.flats, self.state, scratch, strict=True):
                for run in flat.runs:
                    for start in range(run.start, run.stop, BLOCK):
                        block = slice(start, min(start + BLOCK, run.stop))
                        p, g = flat.data[block], flat.gradients[block]
                        s, t = spare[:, : block.stop - start]
                        self.update(p, g, rate, s, t, *(state[name][block] for name in state))

    def update(self, p: Any, g: Any, lr: float, s: Any, t: Any, *states: Any) -> None:
        """Change the block `p` and its states in place, but not its gradient `g`. s, t: scratch
        arrays of the same length, whose values are free. `self.updates` counts this update."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The number of updates, and copies of all states: "m.0" is `m` of the first parameter."""
        return {"updates": self.updates} | {k: a.copy() for k, a in self._arrays().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, or change nothing: see `load_arrays`."""
        load_arrays({"updates": np.array(0)} | self._arrays(), state)
        self.updates = int(state["updates"])

    def _arrays(self) -> dict[str, Any]:
        place = {p: i for i, p in enumerate(self.parameters)}
        return {
            f"{name}.{place[p]}": flat.view(state[name], i)
            for flat, state in zip(self.flats, self.state, strict=True)
            for i, p in enumerate(flat.parameters)
            for name in self.states
        }

    def __getstate__(self) -> dict[str, Any]:
        copied = {key: value for key, value in vars(self).items() if key not in ("flats", "state")}
        return copied | {"saved": self.state_dict()}

    def __setstate__(self, copied: dict[str, Any]) -> None:
        saved = copied.pop("saved")
        vars(self).update(copied)
        self._lay_out()  # views do not survive a copy: lay out anew
        self.load_state_dict(saved)


class SGD(Optimizer):
    """p <- p - lr v, with v <- momentum v + g, and g the gradient plus weight_decay p.

    nesterov: p <- p - lr (g + momentum v). PyTorch's forms, without dampening: lr stands outside
    of v (Sutskever et al. 2013 have it inside; equal while lr is constant).
    """

    states: tuple[str, ...] = ("velocity",)

    def __init__(
        self, parameters: Parameters, lr: Rate, momentum=0.0, nesterov=False, weight_decay=0.0
    ) -> None:
        self._at_least_0("momentum", momentum)
        if nesterov and not momentum:
            raise ValueError("SGD() got nesterov with momentum = 0, expected more than 0")
        if not momentum:
            self.states = ()
        self.momentum, self.nesterov = momentum, nesterov
        super().__init__(parameters, lr, weight_decay)

    def update(self, p: Any, g: Any, lr: float, s: Any, t: Any, *velocity: Any) -> None:
        lr, momentum, decay = (constant(h, p) for h in (lr, self.momentum, self.weight_decay))
        if decay:
            g = np.add(np.multiply(p, decay, out=t), g, out=t)
        for v in velocity:
            v *= momentum
            v += g
        if self.nesterov or not velocity:
            p -= np.multiply(g, lr, out=s)
        for v in velocity:
            p -= np.multiply(v, lr * momentum if self.nesterov else lr, out=s)


class Adam(Optimizer):
    """p <- p - lr m' / (sqrt(v') + eps), with m' and v' the averages of the gradient and of its
    square, weighted by powers of b1 and b2 and corrected for their start at 0 (Kingma & Ba 2015).

    With t updates, m <- b1 m + g and v <- b2 v + g^2 are kept, without the factors 1 - b:
    m' = m (1 - b1) / (1 - b1^t) and v' = v (1 - b2) / (1 - b2^t), and those factors join lr and
    eps (the paper's own remark, end of its section 2): two passes over the parameters fewer.
    t counts the optimizer's updates, also for a parameter that had no gradient in some of them.
    weight_decay adds weight_decay p to the gradient; AdamW decays apart from it.
    """

    states = ("m", "v")

    def __init__(
        self,
        parameters: Parameters,
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        for beta in betas:
            self._at_least_0("a beta", beta, below=1)
        self._at_least_0("eps", eps)
        self.betas, self.eps = betas, eps
        super().__init__(parameters, lr, weight_decay)
        arrays = [p.data for p in self.parameters]
        refuse_fractions(f"{type(self).__name__}()", arrays, "use mg.SGD")

    def decay(self, p: Any, g: Any, lr: float, t: Any) -> Any:
        """The gradient with that of the penalty weight_decay/2 |p|^2 added."""
        return np.add(np.multiply(p, self.weight_decay, out=t), g, out=t)

    def update(self, p: Any, g: Any, lr: float, s: Any, t: Any, m: Any, v: Any) -> None:
        b1, b2 = self.betas
        root = math.sqrt((1 - b2**self.updates) / (1 - b2))
        rate = lr * root * (1 - b1) / (1 - b1**self.updates)
        if self.weight_decay:
            g = self.decay(p, g, lr, t)
        m *= b1
        m += g
        v *= b2
        v += np.multiply(g, g, out=s)
        np.sqrt(v, out=s)
        s += self.eps * root
        np.divide(m, s, out=s)
        s *= rate
        p -= s


class AdamW(Adam):
    """Adam whose weight decay does not pass through m and v: first p <- p - lr weight_decay p
    (Loshchilov & Hutter 2019, algorithm 2, with PyTorch's factor lr)."""

    def __init__(
        self,
        parameters: Parameters,
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay)

    def decay(self, p: Any, g: Any, lr: float, t: Any) -> Any:
        """The gradient as it is; `p` shrinks instead."""
        p *= 1 - lr * self.weight_decay
        return g
