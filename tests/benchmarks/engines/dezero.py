"""DeZero (Saitoh 2020), the framework of a book. After its `examples/mnist.py`.

With NumPy 2 its loss makes the gradients float64, and so they stay on the whole way back.
"""

from itertools import pairwise
from math import sqrt
from unittest.mock import patch

import numpy as np

from tests.benchmarks.workloads import BETAS, EPSILON, LEARNING_RATE, MOMENTUM, NORM_EPSILON

# DeZero 0.0.13 names `np.int` while it is imported; NumPy has had none since 1.24.
with patch.object(np, "int", int, create=True):
    import dezero.functions as F
    import dezero.layers as L
    from dezero.models import Sequential
    from dezero.optimizers import Adam


class DeZero:
    """A peer (see `workloads`)."""

    def __init__(self, workload, parameters, batch):
        self.x, self.labels = batch
        self.b, self.k = workload.micro_batch_size, workload.batch_size // workload.micro_batch_size
        modules, self.drawn = [], []
        for fan_in, fan_out in pairwise(workload.widths):
            linear = L.Linear(fan_out, in_size=fan_in)
            modules.append(linear)
            self.drawn += [linear.W, linear.b]
            if workload.batch_norm and len(self.drawn) < len(parameters):
                norm = BatchNorm()
                modules.append(norm)
                self.drawn += [norm.gamma, norm.beta]
            modules.append(F.relu)
        self.model = Sequential(*modules[:-1])
        for parameter, array in zip(self.drawn, parameters, strict=True):
            parameter.data = array.copy()
        self.optimizer = Adam(LEARNING_RATE, *BETAS).setup(self.model)

    def step(self):
        """One update, its gradient accumulated over k micro-batches; the loss before it."""
        self.model.cleargrads()
        total = 0.0
        for start in range(0, len(self.x), self.b):
            samples = slice(start, start + self.b)
            loss = F.softmax_cross_entropy(self.model(self.x[samples]), self.labels[samples])
            if self.k > 1:
                loss = loss / self.k
            loss.backward()
            total += float(loss.data)
        # Its Adam adds epsilon to the root of v before it corrects v.
        self.optimizer.eps = EPSILON * sqrt(1 - BETAS[1] ** (self.optimizer.t + 1))
        self.optimizer.update()
        return total

    def parameters(self):
        """The parameters as arrays, in the order and the shapes of `workloads.draw`."""
        return [parameter.data for parameter in self.drawn]


class BatchNorm(L.BatchNorm):
    """Its layer, but with the epsilon of the other peers; it has no argument for it."""

    def __call__(self, x):
        """y = gamma (x - mean) / sqrt(var + epsilon) + beta"""
        if self.avg_mean.data is None:
            self._init_params(x)
        mean, var = self.avg_mean.data, self.avg_var.data
        return F.batch_nrom(x, self.gamma, self.beta, mean, var, 1 - MOMENTUM, NORM_EPSILON)
