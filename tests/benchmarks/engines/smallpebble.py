"""SmallPebble (Radcliffe 2021). After its README.

It has no BatchNorm, and its ReLU is a leaky one, here of slope 0. Its `get_gradients` follows each
path by itself: two lead through its softmax, so it goes back through the network twice.
"""

from itertools import pairwise

import numpy as np
import smallpebble as sp

from tests.benchmarks.workloads import BETAS, EPSILON, LEARNING_RATE


class SmallPebble:
    """A peer (see `workloads`)."""

    def __init__(self, workload, parameters, batch):
        self.b, self.N = workload.micro_batch_size, workload.batch_size
        self.x, self.labels = batch
        self.x_in, self.labels_in = sp.Placeholder(), sp.Placeholder()
        h = self.x_in
        for fan_in, fan_out in pairwise(workload.widths):
            if h is not self.x_in:
                h = sp.Lazy(relu)(h)
            h = sp.linearlayer(fan_in, fan_out)(h)
        predicted = sp.Lazy(sp.softmax)(h)
        # `cross_entropy` is a sum over the samples.
        total = sp.Lazy(sp.cross_entropy)(predicted, self.labels_in)
        self.loss = sp.Lazy(sp.div)(total, sp.Variable(np.array(self.N, self.x.dtype)))
        self.learnables = sp.get_learnables(predicted)
        for variable, array in zip(self.learnables, parameters, strict=True):
            variable.array = array.copy()
        self.optimizer = sp.Adam(LEARNING_RATE, *BETAS, EPSILON)

    @staticmethod
    def does(workload):
        """It has no BatchNorm."""
        return not workload.batch_norm

    def step(self):
        """One update, its gradient added up over the micro-batches; the loss before it."""
        total, gradients = 0.0, {}
        for start in range(0, self.N, self.b):
            samples = slice(start, start + self.b)
            self.x_in.assign_value(sp.Variable(self.x[samples]))
            self.labels_in.assign_value(self.labels[samples])
            loss = self.loss.run()
            part = sp.get_gradients(loss)
            for p in self.learnables:
                gradients[p] = gradients[p] + part[p] if start else part[p]
            total += float(loss.array)
        self.optimizer.training_step(self.learnables, gradients)
        return total

    def parameters(self):
        """The parameters as arrays, in the order and the shapes of `workloads.draw`."""
        return [variable.array for variable in self.learnables]


def relu(a):
    """max(a, 0)"""
    return sp.leaky_relu(a, 0)
