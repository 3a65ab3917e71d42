"""The hints of the public interface: all are there, and a program that is strict of its own passes.

mypy reads this file too (pyproject.toml), more strictly than the package: what stands in `wrong`
must be an error for it, or its comment would be one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import minigrad as mg


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """(name, function) of all public functions, and of the methods of all public classes."""
    for name in mg.__all__:
        thing = getattr(mg, name)
        if not inspect.isclass(thing):
            yield name, thing
            continue
        for key, member in vars(thing).items():
            if inspect.isfunction(member) and (key == "__init__" or not key.startswith("_")):
                yield f"{name}.{key}", member


def test_every_public_function_has_hints_or_defaults_that_tell_as_much():
    for name, function in functions():
        signature = inspect.signature(function)
        for parameter in signature.parameters.values():
            told = parameter.default not in (None, parameter.empty)
            hinted = parameter.annotation is not parameter.empty
            assert hinted or told or parameter.name == "self", (name, parameter)
        assert signature.return_annotation is not signature.empty, name


class Net(mg.Module):
    """A module of one's own."""

    def __init__(self) -> None:
        self.first = mg.Linear(3, 4)
        self.norm = mg.BatchNorm(4)

    def forward(self, x: Any) -> mg.Tensor:
        h = self.norm(self.first(x)).reshape(-1, 2, 2).transpose(0, 2, 1).reshape((-1, 4))
        return mg.relu(h).sum(axis=1, keepdims=True)


@mg.coupled
def largest(outputs: mg.Tensor, targets: Any) -> mg.Loss:
    """A loss of the whole batch."""
    return mg.per_sample(mg.max(outputs) * targets)


def test_a_program_that_is_strict_about_its_types_runs():
    net = Net()
    batch = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)
    optimizer = mg.Adam(net.parameters(), lr=mg.cosine(0.1, 10))
    average = mg.WeightAverage(net.parameters(), 0.9)
    report = mg.train_step(net, mg.squared_error, [optimizer], batch, 2, average=average)
    assert report.updated
    assert report.noise is None or report.noise.scale > 0
    assert mg.accumulate(net, largest, batch, accumulation_steps=2).grad_norm is not None
    x = mg.Tensor([1.0, 2.0], requires_grad=True)
    (2 * x - x / 2).sum().backward()
    assert x.grad.tolist() == [1.5, 1.5]
    loss: mg.Loss = mg.per_sample(x) + 0.5 * mg.penalty((x * x).sum())
    assert loss.mean().item() == 4


def wrong(net: mg.Module) -> None:
    """Never called."""
    mg.SGD(net.parameters(), lr="0.1")  # type: ignore[arg-type]
    mg.SGD(net, lr=0.1)  # type: ignore[arg-type]
    mg.Linear("3", 4)  # type: ignore[arg-type]
    mg.train_step(net, mg.relu, mg.SGD(net.parameters(), 0.1), ())  # type: ignore[arg-type]
    mg.cross_entropy(mg.Tensor(1), 1, reduction="mean")  # type: ignore[call-arg]
    mg.squared_error(mg.Tensor([1.0]), [1.0]).mean().grads  # type: ignore[attr-defined]  # noqa: B018
