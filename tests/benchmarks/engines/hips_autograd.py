"""HIPS autograd (Maclaurin, Duvenaud and Adams 2015). After its `examples/neural_net.py`.

Of its own operations, as in `examples/generative_adversarial_net.py`, are ReLU and BatchNorm; this
one keeps no running statistics, for nothing here reads them. Its `adam` makes a whole training in
one call and in float64: here is one step, on a flat vector as there, in float32.
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
        """A step on the flat vector (Kingma and Ba 2015, algorithm 1)."""
        self.updates += 1
        (beta1, beta2), t = BETAS, self.updates
        self.m = beta1 * self.m + (1 - beta1) * g
        self.v = beta2 * self.v + (1 - beta2) * g**2
        root = np.sqrt(self.v / (1 - beta2**t)) + EPSILON
        self.flat = self.flat - LEARNING_RATE / (1 - beta1**t) * self.m / root

    def parameters(self):
        """The parameters as arrays, in the order and the shapes of `workloads.draw`."""
        return [array for layer in self.unflatten(self.flat) for array in layer]


def log_probabilities(layers, x):
    """The logarithms of the softmax, (samples, classes)."""
    *hidden, (weight, bias) = layers
    for hidden_weight, hidden_bias, *norm in hidden:
        x = np.dot(x, hidden_weight) + hidden_bias
        x = np.maximum(0, batch_normalize(x, *norm) if norm else x)
    scores = np.dot(x, weight) + bias
    return scores - logsumexp(scores, axis=1, keepdims=True)


def batch_normalize(x, gain, shift):
    """BatchNorm on the statistics of these samples."""
    centred = x - np.mean(x, axis=0, keepdims=True)
    variance = np.mean(centred**2, axis=0, keepdims=True)
    return gain * (centred / np.sqrt(variance + NORM_EPSILON)) + shift
