"""micrograd (Karpathy 2020): a value is one number. After its `demo.ipynb`.

It has no exp, no log and no optimizer: they are written here as its `relu` and its demo are.
"""

from math import exp, log, sqrt

import numpy as np
from micrograd.engine import Value
from micrograd.nn import MLP

from tests.benchmarks.workloads import BETAS, EPSILON, LEARNING_RATE


class Micrograd:
    """A peer (see `workloads`), in float64, which is what Python's numbers are."""

    def __init__(self, workload, parameters, batch):
        self.x, self.labels = (array.tolist() for array in batch)
        self.model = MLP(workload.widths[0], list(workload.widths[1:]))
        layers = zip(parameters[::2], parameters[1::2], strict=True)
        # A neuron's parameters are its weights, then its bias.
        drawn = np.concatenate([np.vstack(layer).T.ravel() for layer in layers]).tolist()
        for value, number in zip(self.model.parameters(), drawn, strict=True):
            value.data = number
        self.m, self.v, self.updates = [0.0] * len(drawn), [0.0] * len(drawn), 0

    @staticmethod
    def does(workload):
        """Only the smallest nets: one step of W1 takes about a second."""
        return workload.widths[0] <= 64

    def step(self):
        """One update; the loss before it."""
        inputs = [list(map(Value, row)) for row in self.x]
        losses = map(cross_entropy, map(self.model, inputs), self.labels)
        loss = sum(losses) * (1 / len(inputs))
        self.model.zero_grad()
        loss.backward()
        self.adam()
        return loss.data

    def adam(self):
        """Adam, a number at a time."""
        self.updates += 1
        (beta1, beta2), t, m, v = BETAS, self.updates, self.m, self.v
        rate, correction = LEARNING_RATE / (1 - beta1**t), 1 - beta2**t
        for i, p in enumerate(self.model.parameters()):
            m[i] = beta1 * m[i] + (1 - beta1) * p.grad
            v[i] = beta2 * v[i] + (1 - beta2) * p.grad**2
            p.data -= rate * m[i] / (sqrt(v[i] / correction) + EPSILON)

    def parameters(self):
        """The parameters as arrays, in the order and the shapes of `workloads.draw`."""
        arrays = []
        for layer in self.model.layers:
            columns = [[value.data for value in neuron.parameters()] for neuron in layer.neurons]
            *weight, bias = np.transpose(columns)
            arrays += [np.array(weight), bias]
        return arrays


def cross_entropy(scores, label):
    """Of one sample."""
    top = max(score.data for score in scores)
    total = sum(value_exp(score - top) for score in scores)
    return value_log(total) + top - scores[label]


def value_exp(x):
    """exp of a Value."""
    out = Value(exp(x.data), (x,), "exp")

    def backward():
        x.grad += out.data * out.grad

    out._backward = backward
    return out


def value_log(x):
    """The logarithm of a Value."""
    out = Value(log(x.data), (x,), "log")

    def backward():
        x.grad += out.grad / x.data

    out._backward = backward
    return out
