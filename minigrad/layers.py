"""Modules: parameters with a name, and the functions that use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from minigrad import functions as F
from minigrad.randomness import default_generator, uniform_words
from minigrad.tensor import Tensor, fractions, record


class Module:
    """A function with parameters. A subclass sets them as attributes and writes `forward`.

    Parameters are the Tensors among its attributes, children the Modules, alone or in a list,
    tuple or dict; both in the order in which they were set. `buffers` names the attributes that
    are state but not parameters (arrays, or None): they are saved and never trained.
    """

    training = True
    buffers: tuple[str, ...] = ()

    def forward(self, *inputs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward(); write one")

    def __call__(self, *inputs: Any) -> Any:
        return self.forward(*inputs)

    def children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of each direct child."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, list | tuple):
                yield from ((f"{name}.{i}", m) for i, m in enumerate(value) if _is_module(m))
            elif isinstance(value, dict):
                yield from ((f"{name}.{key}", m) for key, m in value.items() if _is_module(m))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """(name, module) of this module and all below it, each once."""
        seen: set[Module] = set()
        stack: list[tuple[str, Module]] = [(prefix, self)]
        while stack:
            name, module = stack.pop()
            if module in seen:
                continue
            seen.add(module)
            yield name, module
            below = [(f"{name}.{n}" if name else n, child) for n, child in module.children()]
            stack.extend(reversed(below))

    def modules(self) -> list[Module]:
        """This module and all below it, in the order in which they were set."""
        return [module for _, module in self.named_modules()]

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(name, parameter) of this module and all below it; a shared one once."""
        seen: set[Tensor] = set()
        for prefix, module in self.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, Tensor) and value not in seen:
                    seen.add(value)
                    yield f"{prefix}.{name}" if prefix else name, value

    def parameters(self) -> list[Tensor]:
        """All parameters, in the order in which they were set."""
        return [parameter for _, parameter in self.named_parameters()]

    def named_buffers(self) -> Iterator[tuple[str, Module, str]]:
        """(name, module, attribute) of the buffers of this module and all below it."""
        for prefix, module in self.named_modules():
            for name in module.buffers:
                if getattr(module, name) is not None:
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
        convert = fractions if np.dtype(dtype) == object else lambda data: data.astype(dtype)
        for parameter in self.parameters():
            parameter.data, parameter.grad = convert(parameter.data), None
        for _, module, name in self.named_buffers():
            setattr(module, name, convert(getattr(module, name)))
        return self

    def state_dict(self) -> dict[str, Any]:
        """Copies of all parameters and buffers, by name."""
        state = {name: parameter.data.copy() for name, parameter in self.named_parameters()}
        state |= {name: getattr(m, attribute).copy() for name, m, attribute in self.named_buffers()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy the values of `state` in, all or none.

        Raises KeyError for missing or unexpected names, ValueError for a shape that does not fit.
        """
        mine = {name: parameter.data for name, parameter in self.named_parameters()}
        mine |= {name: getattr(m, attribute) for name, m, attribute in self.named_buffers()}
        missing, unexpected = mine.keys() - state.keys(), state.keys() - mine.keys()
        if missing or unexpected:
            raise KeyError(
                f"load_state_dict() misses {sorted(missing)} and does not know "
                f"{sorted(unexpected)}; save and load the same model"
            )
        for name, data in mine.items():
            if np.shape(state[name]) != data.shape:
                raise ValueError(
                    f"load_state_dict() got {name} of shape {np.shape(state[name])}, expected "
                    f"{data.shape}; save and load the same model"
                )
        for name, data in mine.items():
            data[...] = np.asarray(state[name], dtype=data.dtype, like=data)

    def __repr__(self) -> str:
        inside = ", ".join(repr(child) for _, child in self.children())
        return f"{type(self).__name__}({inside})"


def _is_module(value: Any) -> bool:
    return isinstance(value, Module)


# ----------------------------------------------------------------------------- initial values


def initial_weight(
    inputs: int,
    outputs: int,
    rule: str = "he",
    rng: np.random.Generator | None = None,
    dtype: Any = np.float32,
) -> np.ndarray:
    """Normal values (inputs, outputs) of mean 0, drawn from `rng` (the seed's if None).

    rule "he": variance 2 / inputs, for ReLU (He et al. 2015, eq. 10).
    rule "glorot": variance 2 / (inputs + outputs), for tanh (Glorot & Bengio 2010, eq. 12).
    """
    variances = {"he": 2 / inputs, "glorot": 2 / (inputs + outputs)}
    if rule not in variances:
        raise ValueError(f"init got {rule!r}, expected one of {sorted(variances)}")
    rng = default_generator() if rng is None else rng
    values = rng.standard_normal((inputs, outputs)) * np.sqrt(variances[rule])
    return fractions(values) if np.dtype(dtype) == object else values.astype(dtype)


def parameter(values: Any, dtype: Any = None) -> Tensor:
    """A leaf that requires a gradient."""
    return Tensor(values if dtype is None else values.astype(dtype), requires_grad=True)


# ------------------------------------------------------------------------------------- layers


class Linear(Module):
    """x @ weight + bias. weight (inputs, outputs), bias (outputs,) of zeros. (..., inputs) in."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        bias: bool = True,
        *,
        init: str = "he",
        rng: np.random.Generator | None = None,
        dtype: Any = np.float32,
    ) -> None:
        self.weight = parameter(initial_weight(inputs, outputs, init, rng, dtype))
        self.bias = parameter(np.zeros_like(self.weight.data, shape=outputs)) if bias else None

    def forward(self, x: Any) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def __repr__(self) -> str:
        return "Linear({}, {})".format(*self.weight.shape)


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

    def __init__(
        self,
        rows: int,
        width: int,
        *,
        rng: np.random.Generator | None = None,
        dtype: Any = np.float32,
    ) -> None:
        rng = default_generator() if rng is None else rng
        self.weight = parameter(rng.standard_normal((rows, width)), dtype)

    def forward(self, indices: Any) -> Tensor:
        return F.embedding(self.weight, indices)

    def __repr__(self) -> str:
        return "Embedding({}, {})".format(*self.weight.shape)


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

    def __repr__(self) -> str:
        return f"Dropout({self.p})"


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
    makes a Module from (features, dtype=...), such as mg.BatchNorm. dropout: a probability.
    """

    def __init__(
        self,
        *sizes: int,
        activation: Callable[[], Module] = ReLU,
        norm: Callable[..., Module] | None = None,
        dropout: float = 0.0,
        init: str = "he",
        rng: np.random.Generator | None = None,
        dtype: Any = np.float32,
    ) -> None:
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"MLP() got the sizes {sizes}, expected two or more positive numbers")
        layers: list[Module] = []
        for inputs, outputs in pairwise(sizes[:-1]):
            layers.append(Linear(inputs, outputs, init=init, rng=rng, dtype=dtype))
            if norm is not None:
                layers.append(norm(outputs, dtype=dtype))
            layers.append(activation())
            if dropout:
                layers.append(Dropout(dropout))
        layers.append(Linear(*sizes[-2:], init=init, rng=rng, dtype=dtype))
        super().__init__(*layers)
