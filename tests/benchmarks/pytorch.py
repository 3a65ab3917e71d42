"""PyTorch, eager, as its tutorials write it; once with its default Adam and once with `fused`."""

from itertools import pairwise

import torch
from torch.nn.functional import cross_entropy

from tests.benchmarks.workloads import BETAS, EPSILON, LEARNING_RATE, MOMENTUM, NORM_EPSILON


class Eager:
    """A peer (see `workloads`). Weights are (out, in) here, so they come and go transposed."""

    fused = None  # PyTorch's own choice

    def __init__(self, workload, parameters, batch):
        self.x, self.labels = map(torch.from_numpy, batch)
        self.b, self.k = workload.micro_batch_size, workload.batch_size // workload.micro_batch_size
        modules = []
        for fan_in, fan_out in pairwise(workload.widths):
            modules.append(torch.nn.Linear(fan_in, fan_out))
            if workload.batch_norm:
                modules.append(torch.nn.BatchNorm1d(fan_out, eps=NORM_EPSILON, momentum=MOMENTUM))
            modules.append(torch.nn.ReLU())
        self.model = torch.nn.Sequential(*modules[: -2 if workload.batch_norm else -1])
        with torch.no_grad():
            for parameter, array in zip(self.model.parameters(), parameters, strict=True):
                parameter.copy_(torch.from_numpy(array.T))
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, fused=self.fused
        )

    def step(self):
        """One update, its gradient accumulated over k micro-batches; the loss before it."""
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for x, labels in zip(self.x.split(self.b), self.labels.split(self.b)):
            loss = cross_entropy(self.model(x), labels) / self.k
            loss.backward()
            total = total + loss.detach()
        self.optimizer.step()
        return total.item()

    def parameters(self):
        """The parameters as arrays, in the order and the shapes of `workloads.draw`."""
        return [parameter.detach().numpy().T for parameter in self.model.parameters()]


class Fused(Eager):
    """The same, with Adam as one compiled loop a parameter."""

    fused = True
