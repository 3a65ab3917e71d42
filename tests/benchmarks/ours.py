"""minigrad through its public API, with all of its contracts on."""

import numpy as np

import minigrad as mg
from tests.benchmarks.workloads import LEARNING_RATE


class Minigrad:
    """A peer (see `workloads`)."""

    def __init__(self, workload, parameters, batch):
        self.batch, self.micro_batch_size = batch, workload.micro_batch_size
        norm = mg.BatchNorm if workload.batch_norm else None
        self.model = mg.MLP(*workload.widths, norm=norm, dtype=np.float32)
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
