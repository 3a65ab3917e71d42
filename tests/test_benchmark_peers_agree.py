"""The peers of the benchmark do the same work: from the same start, they make the same steps."""

import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from importlib import import_module

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from tests.benchmarks.handplus import HandPlus
from tests.benchmarks.ours import Minigrad
from tests.benchmarks.step import PACKAGES, PEERS
from tests.benchmarks.workloads import WORKLOADS, Workload, does, draw

OTHERS = [name for name in PEERS if name != "hand+"]
TINY = Workload("tiny", (16, 16, 10), 8, 8)  # for micrograd: W1 takes minutes where others work
SPLIT = replace(WORKLOADS["W2"], name="W2 split", micro_batch_size=16)
SMALL = [TINY, WORKLOADS["W1"], WORKLOADS["W2"], WORKLOADS["W3"], WORKLOADS["W4"], SPLIT]


@pytest.fixture(autouse=True)
def _one_thread():
    with threadpool_limits(1):
        yield


def trained(peer, steps):
    """The losses of a peer's first steps, and its parameters after them."""
    losses = [peer.step() for _ in range(steps)]
    return losses, [array.copy() for array in peer.parameters()]


@cache
def expected(workload, steps):
    return trained(HandPlus(workload, *draw(workload)), steps)


def made(name, workload):
    module, cls = PEERS[name]
    if package := PACKAGES.get(name.removesuffix(" fused")):
        pytest.importorskip(package)
    peer = getattr(import_module(module), cls)
    if not does(peer, workload) or (name == "micrograd" and workload is not TINY):
        pytest.skip(f"{name} does not take part: {peer.does.__doc__}")
    return peer(workload, *draw(workload))


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("workload", [TINY, *WORKLOADS.values()], ids=str)
def test_losses_of_four_steps_agree_with_hand_written_numpy(workload, name):
    losses, _ = trained(made(name, workload), 4)
    np.testing.assert_allclose(losses, expected(workload, 4)[0], rtol=6e-5)
    assert len(set(losses)) == 4, "the loss stands still"


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("workload", SMALL, ids=str)
def test_parameters_after_five_steps_agree_with_hand_written_numpy(workload, name):
    # Not in W5: of its four million ReLU, rounding switches one in some of the steps.
    losses, parameters = trained(made(name, workload), 5)
    np.testing.assert_allclose(losses, expected(workload, 5)[0], rtol=1e-5)
    for i, (array, wanted) in enumerate(zip(parameters, expected(workload, 5)[1], strict=True)):
        if workload.batch_norm and i in (1, 5):
            continue  # a bias before BatchNorm: its gradient is zero, and Adam enlarges rounding
        np.testing.assert_allclose(array, wanted, rtol=0, atol=1e-4)  # the way was up to 5e-3


def test_running_statistics_of_hand_written_numpy_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    workload = WORKLOADS["W4"]
    peer, hand = made("PyTorch", workload), made("hand+", workload)
    peer.step(), hand.step()
    norms = [module for module in peer.model if isinstance(module, torch.nn.BatchNorm1d)]
    for statistic, running in zip(("running_mean", "running_var"), hand.running):
        wanted = np.concatenate([getattr(norm, statistic).numpy() for norm in norms])
        np.testing.assert_allclose(running, wanted, rtol=1e-5, atol=1e-6)


def python_calls(widths):
    """The calls of Python's and C's functions in one update of a net of these widths."""
    workload = replace(WORKLOADS["W1"], widths=widths)
    peer, events = Minigrad(workload, *draw(workload)), Counter()
    peer.step()
    sys.setprofile(lambda frame, event, argument: events.update([event]))
    try:
        peer.step()
    finally:
        sys.setprofile(None)
    return events["call"], events["c_call"]


def test_what_python_does_for_an_update_does_not_depend_on_the_widths_of_the_net():
    """So it weighs on small nets alone: W1 is slow beside hand+, and W3 is not."""
    small = python_calls((64, 64, 10))
    assert small == python_calls((784, 128, 10))
    assert small < python_calls((64, 64, 64, 10))  # but on its depth
