"""HIPS autograd (Maclaurin, Duvenaud and Adams 2015). After its `examples/neural_net.py`.

Its BatchNorm and ReLU are those of `examples/generative_adversarial_net.py`, with gain and shift
and without running statistics, which nothing here reads. Its `adam` makes a whole training in one
call and in float64: here are the lines of one of its steps, on the same flat vector, in float32.
"""

import autograd.numpy as np
from autograd import value_and_grad
from autograd.misc import flatten
from autograd.scipy.special import logsumexp

from tests.benchmarks.workloads import BETAS, EPSILON, LEARNING_RATE, NORM_EPSILON


class HipsAutograd:
    """A peer (see `workloads`)."""

    def __init__(self, workload, parameters, batch):
        self.b, self.N = workload.micro_batch_size, workload.batch_size
        self.x, labels = batch
        self.targets = np.eye(workload.widths[-1], dtype=self.x.dtype)[labels]
        arrays_a_layer = 4 if workload.batch_norm else 2
        layers = [
            tuple(parameters[i : i + arrays_a_layer])
            for i in range(0, len(parameters), arrays_a_layer)
        ]
        self.flat, self.unflatten = flatten(layers)
        self.m, self.v = np.zeros_like(self.flat), np.zeros_like(self.flat)
        self.loss_and_gradient = value_and_grad(self.loss)
        self.updates = 0

    def loss(self, layers, samples):
        """The share of these samples in the loss of the batch."""
        log_likelihood = np.sum(log_probabilities(layers, self.x[samples]) * self.targets[samples])
        return -log_likelihood / self.N

    def step(self):
        """One update, its gradient added up over the micro-batches; the loss before it."""
        layers, total, g = self.unflatten(self.flat), 0.0, None
        for start in range(0, self.N, self.b):
            loss, gradient = self.loss_and_gradient(layers, slice(start, start + self.b))
            part, _ = flatten(gradient)
            total, g = total + loss, part if g is None else g + part
        self.adam(g)
        return float(total)

    def adam(self, g):
        """A step of `autograd.misc.optimizers.adam`."""
        self.updates += 1
        b1, b2 = BETAS
        self.m = (1 - b1) * g + b1 * self.m
        self.v = (1 - b2) * (g**2) + b2 * self.v
        mhat = self.m / (1 - b1**self.updates)
        vhat = self.v / (1 - b2**self.updates)
        self.flat = self.flat - LEARNING_RATE * mhat / (np.sqrt(vhat) + EPSILON)

    def parameters(self):
        """The parameters as arrays, in the order and the shapes of `workloads.draw`."""
        return [array for layer in self.unflatten(self.flat) for array in layer]


def log_probabilities(layers, inputs):
    """The logarithms of the softmax, (samples, classes)."""
    for W, b, *norm in layers[:-1]:
        outputs = np.dot(inputs, W) + b
        inputs = np.maximum(0, batch_normalize(outputs, *norm) if norm else outputs)
    W, b = layers[-1]
    outputs = np.dot(inputs, W) + b
    return outputs - logsumexp(outputs, axis=1, keepdims=True)


def batch_normalize(activations, gain, shift):
    """BatchNorm on the statistics of these samples."""
    centred = activations - np.mean(activations, axis=0, keepdims=True)
    variance = np.mean(centred**2, axis=0, keepdims=True)
    return gain * (centred / np.sqrt(variance + NORM_EPSILON)) + shift
