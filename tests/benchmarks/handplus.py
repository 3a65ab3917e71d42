"""hand+: the same steps in NumPy by hand, as fast as we can make them. An engine is held to it.

Everything that can be decided before the first step is: all arrays lie in one allocation, and a
step is a list of NumPy calls on them, written down once by the `plan_*` methods and then replayed.
Read those methods as the step itself: `do(np.add, a, b, out)` is `out = a + b`.
"""

from functools import partial
from itertools import pairwise
from math import prod, sqrt
from types import SimpleNamespace

import numpy as np

from tests.benchmarks.workloads import BETAS, EPSILON, LEARNING_RATE, MOMENTUM, NORM_EPSILON

RELU_BLOCK = 32_768  # floats; the scratch of a block stays in the cache
ADAM_BLOCK = 131_072
constant = partial(np.array, dtype=np.float32)  # a 0-d array: less to convert than a Python float


class HandPlus:
    """A peer (see `workloads`) whose step is planned once and replayed."""

    def __init__(self, workload, parameters, batch):
        self.n, self.N = workload.micro_batch_size, workload.batch_size
        self.calls, self.updates = [], 0
        self.allocate(workload, parameters, *batch)
        self.plan_label_positions()
        for start in range(0, self.N, self.n):
            samples = slice(start, start + self.n)
            self.plan_forward(samples)
            self.plan_cross_entropy(samples)
            self.plan_backward(accumulate=start > 0)
        self.plan_mean_loss()
        if workload.batch_norm:
            self.plan_running_statistics()
        self.plan_adam()

    def step(self):
        """One update; the loss before it."""
        self.updates += 1
        (beta1, beta2), t = BETAS, self.updates
        root = sqrt((1 - beta2**t) / (1 - beta2))
        self.rate[()] = LEARNING_RATE * (1 - beta1) / (1 - beta1**t) * root
        self.epsilon[()] = EPSILON * root
        for call in self.calls:
            call()
        return float(np.dot(self.total, self.mean_of_N))

    def parameters(self):
        """The parameters as arrays, in the order and the shapes of `workloads.draw`."""
        arrays = []
        for layer in self.layers:
            arrays += [layer.weight[:-1], layer.weight[-1]]
            if layer.norm:
                arrays += [layer.gamma, layer.beta]
        return arrays

    def do(self, function, *arguments, **keywords):
        self.calls.append(partial(function, *arguments, **keywords))

    # ---- What is allocated ---------------------------------------------------------------------

    def allocate(self, workload, parameters, x, labels):
        """All arrays. An activation has a column a sample, and below it a row of ones.

        So `weight` is (in + 1, out) with the bias as its last row, the product with the ones adds
        the bias and yields its gradient, and rows without the ones are contiguous.
        """
        n, N, widths = self.n, self.N, workload.widths
        size = sum(array.size for array in parameters)
        new = arena(8 * size + (N + 5 * n) * (sum(widths) + 8) + 4 * RELU_BLOCK)

        self.p, self.g, self.m, self.v = (new(size) for _ in range(4))
        np.concatenate([array.ravel() for array in parameters], out=self.p)
        self.x = new(N, widths[0] + 1)  # the data carry their ones, as they would on the disk
        self.x[:, :-1], self.x[:, -1] = x, 1
        self.labels = labels
        self.adam_scratch = new(min(size, ADAM_BLOCK))
        self.zeros, self.relu_scratch = new(RELU_BLOCK), new(RELU_BLOCK)
        self.mask = np.empty(RELU_BLOCK, bool)

        hidden = sum(widths[1:-1])
        self.statistics, self.running, self.statistics_scratch = (new(2, hidden) for _ in range(3))
        self.running[1] = 1  # mean 0, variance 1

        scratch = new(max((i + 1) * o for i, o in pairwise(widths)) if n < N else 0)
        self.layers, start, row = [], 0, 0
        columns = None  # a layer's input; the first layer's is a part of x
        for fan_in, fan_out in pairwise(widths):
            last = len(self.layers) == len(widths) - 2
            layer = SimpleNamespace(x=columns, norm=workload.batch_norm and not last)
            columns = new(fan_out + 1, n)
            columns[-1] = 1
            layer.y = layer.z = columns[:-1]
            layer.g = layer.y if last else new(fan_out, n)
            stop = start + (fan_in + 1) * fan_out
            layer.weight = self.p[start:stop].reshape(fan_in + 1, fan_out)
            layer.weight_gradient = self.g[start:stop].reshape(fan_in + 1, fan_out)
            if n < N:
                layer.scratch = scratch[: stop - start].reshape(layer.weight.shape)
            if layer.norm:
                layer.gamma, layer.beta = self.p[stop : stop + 2 * fan_out].reshape(2, fan_out)
                gradients = self.g[stop : stop + 2 * fan_out].reshape(2, fan_out)
                layer.gamma_gradient, layer.beta_gradient = gradients
                layer.z = new(fan_out, n)
                layer.mu, layer.var = self.statistics[:, row : row + fan_out]
                layer.inv, layer.scale, layer.g_mean, layer.gz_mean = new(4, fan_out)
                stop, row = stop + 2 * fan_out, row + fan_out
            self.layers.append(layer)
            start = stop

        self.ones, self.mean_of_n = new(max(n, widths[-1])), new(n)
        self.ones[:], self.mean_of_n[:] = 1, 1 / n
        self.top, self.factor = new(n), new(n)
        self.total, self.picked, self.mean_of_N = new(N), new(N), new(N)
        self.mean_of_N[:] = 1 / N
        self.rate, self.epsilon = constant(0), constant(0)

    # ---- A step, line by line ------------------------------------------------------------------

    def plan_label_positions(self):
        """Where each sample's label lies in the flat (classes, n) logits of its micro-batch."""
        column = np.arange(self.N) % self.n
        self.positions = np.empty_like(column)
        self.do(np.multiply, self.labels, np.array(self.n), self.positions)
        self.do(np.add, self.positions, column, self.positions)

    def plan_forward(self, samples):
        self.layers[0].x = self.x[samples].T
        for layer in self.layers:
            self.do(np.dot, layer.weight.T, layer.x, layer.z)
            if layer.norm:
                self.plan_batch_norm(layer)
            if layer is not self.layers[-1]:
                # Against an array of zeros: NumPy 2.4 has no vector code for the scalar 0.
                for y, zeros in blocks(RELU_BLOCK, layer.y, self.zeros):
                    self.do(np.maximum, y, zeros, out=y)

    def plan_cross_entropy(self, samples):
        """Leaves the gradient of the mean over all N in place of the logits."""
        do, z = self.do, self.layers[-1].z
        flat, positions, total = z.reshape(-1), self.positions[samples], self.total[samples]
        classes, one_by_N = len(z), constant(1 / self.N)
        do(np.maximum.reduce, z, 0, None, self.top)
        do(np.subtract, z, self.top, z)
        do(flat.take, positions, None, self.picked[samples], "clip")
        do(np.exp, z, z)
        do(np.dot, self.ones[:classes], z, total)
        do(np.divide, one_by_N, total, self.factor)
        do(np.multiply, z, self.factor, z)
        do(np.subtract.at, flat, positions, one_by_N)

    def plan_backward(self, accumulate):
        do = self.do
        for layer, below in pairwise([*reversed(self.layers), None]):
            if accumulate:
                do(np.dot, layer.x, layer.g.T, layer.scratch)
                do(np.add, layer.weight_gradient, layer.scratch, layer.weight_gradient)
            else:
                do(np.dot, layer.x, layer.g.T, layer.weight_gradient)
            if below is None:
                break  # nobody asks for the gradient of the data
            do(np.dot, layer.weight[:-1], layer.g, below.g)
            # g *= y > 0, converted to float first: inside the product it takes twice as long.
            for y, g, mask, scratch in blocks(
                RELU_BLOCK, below.y, below.g, self.mask, self.relu_scratch
            ):
                do(np.greater, y, constant(0), mask)
                do(np.copyto, scratch, mask)
                do(np.multiply, g, scratch, g)
            if below.norm:
                self.plan_batch_norm_backward(below)

    def plan_mean_loss(self):
        self.do(np.log, self.total, self.total)
        self.do(np.subtract, self.total, self.picked, self.total)

    def plan_adam(self):
        """Adam on m / (1 - beta1) and v / (1 - beta2): two passes fewer, and the same update."""
        do, (beta1, beta2) = self.do, map(constant, BETAS)
        for p, g, m, v, s in blocks(ADAM_BLOCK, self.p, self.g, self.m, self.v, self.adam_scratch):
            do(np.multiply, m, beta1, m)
            do(np.add, m, g, m)
            do(np.multiply, v, beta2, v)
            do(np.multiply, g, g, s)
            do(np.add, v, s, v)
            do(np.sqrt, v, s)
            do(np.add, s, self.epsilon, s)
            do(np.divide, m, s, s)
            do(np.multiply, s, self.rate, s)
            do(np.subtract, p, s, p)

    # ---- BatchNorm -----------------------------------------------------------------------------

    def plan_batch_norm(self, layer):
        """`y = gamma (z - mu) / sqrt(var + eps) + beta`; z stays centred, for the way back."""
        do, z, y, inv = self.do, layer.z, layer.y, layer.inv
        do(np.dot, z, self.mean_of_n, layer.mu)
        do(np.subtract, z, layer.mu[:, None], z)
        do(np.vecdot, z, z, layer.var)
        do(np.multiply, layer.var, constant(1 / self.n), layer.var)
        do(np.add, layer.var, constant(NORM_EPSILON), inv)
        do(np.sqrt, inv, inv)
        do(np.divide, constant(1), inv, inv)
        do(np.multiply, layer.gamma, inv, layer.scale)
        do(np.multiply, z, layer.scale[:, None], y)
        do(np.add, y, layer.beta[:, None], y)

    def plan_batch_norm_backward(self, layer):
        """`g = scale (g - mean(g) - z mean(g z) / (var + eps))`, z centred."""
        do, z, g, one_by_n = self.do, layer.z, layer.g, constant(1 / self.n)
        do(np.dot, g, self.ones[: self.n], layer.beta_gradient)
        do(np.vecdot, g, z, layer.gamma_gradient)
        do(np.multiply, layer.gamma_gradient, layer.inv, layer.gamma_gradient)
        do(np.multiply, layer.beta_gradient, one_by_n, layer.g_mean)
        do(np.multiply, layer.gamma_gradient, layer.inv, layer.gz_mean)
        do(np.multiply, layer.gz_mean, one_by_n, layer.gz_mean)
        do(np.multiply, z, layer.gz_mean[:, None], z)
        do(np.subtract, g, z, g)
        do(np.subtract, g, layer.g_mean[:, None], g)
        do(np.multiply, g, layer.scale[:, None], g)

    def plan_running_statistics(self):
        """Both statistics of all layers at once; the variance without bias, as PyTorch keeps it."""
        unbiased = MOMENTUM * self.n / (self.n - 1)
        weights = np.array([[MOMENTUM], [unbiased]], np.float32).repeat(self.running.shape[1], 1)
        self.do(np.multiply, self.statistics, weights, self.statistics_scratch)
        self.do(np.multiply, self.running, constant(1 - MOMENTUM), self.running)
        self.do(np.add, self.running, self.statistics_scratch, self.running)


def arena(floats):
    """Arrays side by side in one allocation, each on a cache line: fewer pages to look up."""
    line = 16
    memory = np.zeros(floats + line, np.float32)
    used = -(memory.ctypes.data // memory.itemsize) % line

    def new(*shape):
        nonlocal used
        start, size = used, prod(shape)
        used += -(-size // line) * line
        return memory[start : start + size].reshape(shape)

    return new


def blocks(size, *arrays):
    """The flat arrays cut into blocks; an array of one block (a scratch) serves for all of them."""
    arrays = [array.reshape(-1) for array in arrays]
    for start in range(0, arrays[0].size, size):
        stop = min(start + size, arrays[0].size)
        yield [
            array[start:stop] if array.size == arrays[0].size else array[: stop - start]
            for array in arrays
        ]
