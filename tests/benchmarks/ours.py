"""minigrad through its public API, with all of its contracts on."""

from itertools import pairwise

import minigrad as mg
from tests.benchmarks.workloads import LEARNING_RATE


def layers(workload):
    """Those of mg.MLP, but for the biases before a BatchNorm, which its peers have."""
    for fan_in, fan_out in pairwise(workload.widths[:-1]):
        yield mg.Linear(fan_in, fan_out)
        if workload.batch_norm:
            yield mg.BatchNorm(fan_out)
        yield mg.ReLU()
    yield mg.Linear(*workload.widths[-2:])


class Minigrad:
    """A peer (see `workloads`)."""

    def __init__(self, workload, parameters, batch):
        self.batch, self.micro_batch_size = batch, workload.micro_batch_size
        self.model = mg.Sequential(*layers(workload))
        for parameter, array in zip(self.model.parameters(), parameters, strict=True):
            parameter.data[...] = array
        self.optimizer = mg.Adam(self.model.parameters(), lr=LEARNING_RATE)

    def step(self):
        """One update; the loss before it."""
        report = mg.train_step(
            self.model,
            mg.cross_entropy,
            self.optimizer,
            self.batch,
            micro_batch_size=self.micro_batch_size,
        )
        return report.loss

    def parameters(self):
        """The parameters as arrays, in the order and the shapes of `workloads.draw`."""
        return [parameter.data for parameter in self.model.parameters()]
