"""Layers: what a net is made of.

A `Module` holds parameters, under the names of its attributes, and other modules; called, it makes
its output from its input by the operations of functions.py. A net is a module of modules.

Taught in lesson 03.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from minigrad import functions as F
from minigrad.arrays import convert, load_arrays
from minigrad.randomness import default_generator, uniform_words
from minigrad.tensor import Tensor, record

Rng: TypeAlias = "np.random.Generator | None"


class Module:
    """A function with parameters. A subclass sets them as attributes and writes `forward`.

    Parameters are the Tensors among its attributes and those of the Modules among them, alone or in
    a list, tuple or dict, in the order in which they were set. `buffers` names the attributes that
    are arrays of state but no parameters: they are saved and never trained.
    """

    training = True
    buffers: tuple[str, ...] = ()

    def forward(self, *inputs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward(); write one")

    def __call__(self, *inputs: Any) -> Any:
        return self.forward(*inputs)

    def members(self) -> Iterator[tuple[str, Any]]:
        """(name, attribute), those in lists, tuples and dicts one by one."""
        return _members("", vars(self))

    def named_modules(self, prefix: str = "", seen: Any = None) -> Iterator[tuple[str, Module]]:
        """(name, module) of this module and all below it, each once. Names begin with `prefix`."""
        seen = set() if seen is None else seen
        if self not in seen:
            seen.add(self)
            yield prefix.removesuffix("."), self
            for name, child in self.members():
                if isinstance(child, Module):
                    yield from child.named_modules(f"{prefix}{name}.", seen)

    def modules(self) -> list[Module]:
        """This module and all below it, in the order in which they were set."""
        return [module for _, module in self.named_modules()]

    def named_parameters(self, prefix: str = "", seen: Any = None) -> Iterator[tuple[str, Tensor]]:
        """(name, parameter) of this module and all below it; a shared one once."""
        seen = {self} if seen is None else seen
        for name, value in self.members():
            if isinstance(value, Tensor | Module) and value not in seen:
                seen.add(value)
                if isinstance(value, Tensor):
                    yield f"{prefix}{name}", value
                else:
                    yield from value.named_parameters(f"{prefix}{name}.", seen)

    def parameters(self) -> list[Tensor]:
        """All parameters, in the order in which they were set."""
        return [parameter for _, parameter in self.named_parameters()]

    def named_buffers(self) -> Iterator[tuple[str, Module, str]]:
        """(name, module, attribute) of the buffers of this module and all below it."""
        for prefix, module in self.named_modules():
            for name in module.buffers:
                yield (f"{prefix}.{name}" if prefix else name), module, name

    def train(self, mode: bool = True) -> Module:
        """Set the training mode of this module and all below it; returns the module."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """The same as train(False): no dropout, running statistics."""
        return self.train(False)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters():
            parameter.grad = None

    def astype(self, dtype: Any) -> Module:
        """Convert parameters and buffers, before an optimizer is made; object means `Fraction`s."""
        for parameter in self.parameters():
            parameter.data, parameter.grad = convert(parameter.data, dtype), None
        for _, module, name in self.named_buffers():
            setattr(module, name, convert(getattr(module, name), dtype))
        return self

    def state_dict(self) -> dict[str, Any]:
        """Copies of all parameters and buffers, by name."""
        return {name: array.copy() for name, array in self._arrays().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy the values of `state` in, all or none: see `load_arrays`."""
        load_arrays(self._arrays(), state)

    def _arrays(self) -> dict[str, Any]:
        arrays = {name: parameter.data for name, parameter in self.named_parameters()}
        return arrays | {name: getattr(m, key) for name, m, key in self.named_buffers()}

    def __repr__(self) -> str:
        inside = [
            f"{name}={value.shape}" if isinstance(value, Tensor) else repr(value)
            for name, value in self.members()
            if isinstance(value, Tensor | Module)
        ]
        return f"{type(self).__name__}({', '.join(inside)})"


def _members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, list | tuple | dict):
        yield name.removeprefix("."), value
        return
    for key, inside in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _members(f"{name}.{key}", inside)


def check_model(model: Any) -> None:
    """Raise TypeError unless it is a Module."""
    if not isinstance(model, Module):
        what = f"the model is a {type(model).__name__}, expected an mg.Module"
        raise TypeError(f"{what}; put the function into the forward() of one")


# ----------------------------------------------------------------------------- initial values


def initial_weight(inputs: int, outputs: int, rule: str = "he", rng: Rng = None) -> np.ndarray:
    """Normal values (inputs, outputs) of mean 0, drawn from `rng` (the seed's if None).

    rule "he": variance 2 / inputs, for ReLU (He et al. 2015, eq. 10).
    rule "glorot": variance 2 / (inputs + outputs), for tanh (Glorot & Bengio 2010, eq. 12).
    """
    variances = {"he": 2 / inputs, "glorot": 2 / (inputs + outputs)}
    if rule not in variances:
        raise ValueError(f"init is {rule!r}, expected one of {sorted(variances)}")
    rng = default_generator(rng)
    return rng.standard_normal((inputs, outputs)) * np.sqrt(variances[rule])


def parameter(values: Any, dtype: Any = None) -> Tensor:
    """A leaf that requires a gradient; `dtype` object means `Fraction`s."""
    return Tensor(values if dtype is None else convert(values, dtype), requires_grad=True)


# ------------------------------------------------------------------------------------- layers


class Linear(Module):
    """x @ weight + bias. weight (inputs, outputs), bias (outputs,) of zeros. (..., inputs) in."""

    def __init__(
        self, inputs: int, outputs: int, bias=True, *, init="he", rng: Rng = None, dtype=np.float32
    ) -> None:
        self.weight = parameter(initial_weight(inputs, outputs, init, rng), dtype)
        self.bias = parameter(np.zeros(outputs), dtype) if bias else None

    def forward(self, x: Any) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Any) -> Tensor:
        return F.relu(x)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Any) -> Tensor:
        return F.tanh(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Any) -> Tensor:
        return F.sigmoid(x)


class Embedding(Module):
    """Row `i` of weight (rows, width) for each integer i: (...) -> (..., width)."""

    def __init__(self, rows: int, width: int, *, rng: Rng = None, dtype: Any = np.float32) -> None:
        rng = default_generator(rng)
        self.weight = parameter(rng.standard_normal((rows, width)), dtype)

    def forward(self, indices: Any) -> Tensor:
        return F.embedding(self.weight, indices)


class Dropout(Module):
    """Zero each element with probability p and divide the others by 1 - p (Srivastava et al. 2014).

    The mask belongs to the sample (randomness.py), so that it does not depend on the split.
    The first axis of the input holds the samples, or as many rows for each, in order.
    """

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"Dropout() got p = {p}, expected a probability from 0 to below 1")
        self.p = p

    def forward(self, x: Any) -> Tensor:
        x = F.as_tensor(x)
        if not self.training or self.p == 0:
            return x
        kept = uniform_words(self, x.shape) >= np.uint32(self.p * 2**32)
        mask = np.asarray(kept, like=x.data)
        scale = x.operand(1 / (1 - self.p)).data
        return record(x.data * mask * scale, (x,), lambda g: (g * mask * scale,))


class Sequential(Module):
    """The modules one after the other."""

    def __init__(self, *layers: Module) -> None:
        self.layers = list(layers)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class MLP(Sequential):
    """Linear layers of the given sizes; norm, activation and dropout after each but the last.

    MLP(64, 128, 10) takes (n, 64) to (n, 10). activation: a Module class. norm: None, or what
    makes a Module from (features, dtype=...), such as mg.BatchNorm. A Linear that stands before a
    BatchNorm has no bias: its gradient would be rounding alone, of which Adam makes whole steps.
    dropout: a probability.
    """

    def __init__(
        self,
        *sizes: int,
        activation: Any = ReLU,
        norm: Any = None,
        dropout: float = 0.0,
        init: str = "he",
        rng: Rng = None,
        dtype: Any = np.float32,
    ) -> None:
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"MLP() got the sizes {sizes}, expected two or more positive numbers")
        layers: list[Module] = []
        for inputs, outputs in pairwise(sizes[:-1]):
            norms = [] if norm is None else [norm(outputs, dtype=dtype)]
            bias = not any(getattr(layer, "absorbs_bias", False) for layer in norms)
            layers.append(Linear(inputs, outputs, bias, init=init, rng=rng, dtype=dtype))
            layers += [*norms, activation()]
            if dropout:
                layers.append(Dropout(dropout))
        layers.append(Linear(*sizes[-2:], init=init, rng=rng, dtype=dtype))
        super().__init__(*layers)
