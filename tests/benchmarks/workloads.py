"""What is timed: five networks, their data, and the one protocol that every peer keeps.

A peer is a class built as `Peer(workload, parameters, batch)`; its `step()` makes one update by
Adam on that batch and returns the loss of the batch as a float. `peer.parameters()` gives its
parameters as arrays, in the order and the shapes of `draw`. A peer that does not do each workload
has `does(workload)`, which says whether it does.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

LEARNING_RATE, BETAS, EPSILON = 1e-3, (0.9, 0.999), 1e-8  # Adam's, for every peer
MOMENTUM, NORM_EPSILON = 0.1, 1e-5  # BatchNorm's


@dataclass(frozen=True)
class Workload:
    """A ReLU network, and a batch of N samples that a step takes in micro-batches of b."""

    name: str
    widths: tuple[int, ...]
    batch_size: int
    micro_batch_size: int
    batch_norm: bool = False  # after each hidden linear layer

    def __str__(self):
        net = "-".join(map(str, self.widths)) + (", BatchNorm" if self.batch_norm else "")
        micro_batches = self.batch_size // self.micro_batch_size
        split = f" as {micro_batches} x {self.micro_batch_size}" if micro_batches > 1 else ""
        return f"{self.name}: {net}, batch {self.batch_size}{split}"


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", (64, 64, 10), 32, 32),
        Workload("W2", (784, 256, 128, 10), 128, 128),
        Workload("W3", (784, 1024, 1024, 10), 256, 256),
        Workload("W4", (784, 256, 128, 10), 128, 128, batch_norm=True),
        Workload("W5a", (784, 1024, 1024, 10), 2048, 128),
        Workload("W5b", (784, 1024, 1024, 10), 2048, 2048),
    )
}


def does(peer_class, workload):
    """Whether this peer does this workload."""
    return not hasattr(peer_class, "does") or peer_class.does(workload)


def draw(workload, seed=0):
    """Parameters and the batch `(x, labels)`: float32, and int64 labels.

    A layer has a weight (in, out), drawn by He's rule, and a bias (out,); a BatchNorm after it has
    a weight and a bias, (out,) both.
    """
    rng = np.random.default_rng(seed)
    parameters = []
    for i, (fan_in, fan_out) in enumerate(pairwise(workload.widths)):
        weight = rng.standard_normal((fan_in, fan_out)) * np.sqrt(2 / fan_in)
        parameters += [weight, np.zeros(fan_out)]
        if workload.batch_norm and i < len(workload.widths) - 2:
            parameters += [np.ones(fan_out), np.zeros(fan_out)]
    x = rng.standard_normal((workload.batch_size, workload.widths[0]))
    labels = rng.integers(0, workload.widths[-1], workload.batch_size)
    return [array.astype(np.float32) for array in parameters], (x.astype(np.float32), labels)
