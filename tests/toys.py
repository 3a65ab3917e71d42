"""The smallest model and loss, and how far two gradients are apart."""

import numpy as np

import minigrad as mg


class Toy(mg.Module):
    """outputs = w x, with one weight, or one a column of x, and then the layers.

    With the loss `given`, the gradient of a sample is its input. With targets 2x and the squared
    error it is -4 x^2 at w = 0.
    """

    def __init__(self, w=0.0, *layers, dtype=np.float64):
        self.w, self.layers = mg.parameter(np.array(w, dtype)), list(layers)

    def forward(self, x):
        outputs = x @ self.w if self.w.ndim else x * self.w
        for layer in self.layers:
            outputs = layer(outputs)
        return outputs


def given(outputs, *_):
    """A loss that is linear in the outputs."""
    return mg.per_sample(outputs)


def gap(found, expected):
    """The relative error of a gradient; None stands for no gradient, and only for that."""
    assert [g is None for g in found] == [g is None for g in expected]
    a, b = (np.concatenate([g.ravel() for g in gs if g is not None]) for gs in (found, expected))
    assert np.count_nonzero(b) > 0.3 * b.size
    return np.linalg.norm(a - b) / np.linalg.norm(b)
