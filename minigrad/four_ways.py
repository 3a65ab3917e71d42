"""`minigrad batchnorm`: how far from one batch's gradient are four ways to do BatchNorm in parts?

`error` is the experiment: the gradient by micro-batches, in one of the four ways, against that of
the whole batch. Three are `statistics` that BatchNorm takes by name. The fourth, "no adjoints", is
what is often thought to be enough: the statistics of the whole batch, held fixed; the gradient that
should flow through them is missing. `work` predicts the time of the exact way, `time_ratios` and
`peaks` measure time and memory.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import pairwise, product
from time import process_time
from typing import Any, NamedTuple

import numpy as np

import minigrad as mg
from minigrad import command, plotting

# By which a micro-batch is standardized; "no adjoints": by those of the whole batch, held fixed.
STATISTICS = ("micro", "running", "no adjoints", "batch")
LAYERS = (1, 2, 3, 8)
SAMPLES, WIDTH, CLASSES = 96, 16, 4
SPLITS = {"12 of 8": 8, "96 of 1": 1, "40, 40, 16": 40}  # samples of a micro-batch
WIDE, PARTS = 192, 4  # where time is measured: the width, and the micro-batches of as many samples


def sizes(layers: int, width: int = WIDTH) -> list[int]:
    """Inputs, hidden and outputs of the net."""
    return [*[width] * (layers + 1), CLASSES]


def net(layers: int, statistics: str = "batch", width: int = WIDTH) -> mg.Module:
    """An MLP with that many BatchNorms in a chain, of float64, always with the same weights."""
    rng, norm = np.random.default_rng(0), partial(mg.BatchNorm, statistics=statistics)
    return mg.MLP(*sizes(layers, width), norm=norm, rng=rng, dtype=np.float64)


def batch(samples: int = SAMPLES, width: int = WIDTH, seed: int = 1) -> tuple[Any, Any]:
    """Inputs (samples, width) whose columns have different means, and labels."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, width)) + rng.standard_normal(width)
    return x, rng.integers(0, CLASSES, samples)


def gradient(model: mg.Module, data: tuple, micro_batch_size: int) -> np.ndarray:
    """The gradient of the batch, as one vector."""
    mg.accumulate(model, mg.cross_entropy, data, micro_batch_size)
    return command.gradient(model)


def error(way: str, layers: int, micro_batch_size: int) -> float:
    """How far the gradient of one of STATISTICS is from that of one batch, as a share of its norm.

    NaN where a way has no answer: a micro-batch of one has no statistics of its own.
    """
    data = batch()
    if micro_batch_size == 1 and way in ("micro", "running"):
        return np.nan
    model = net(layers, "batch" if way == "no adjoints" else way)
    if way in ("running", "no adjoints"):
        run_to(model, data[0])
    if way == "no adjoints":
        model.eval()  # standardizes by the running statistics, which are now the batch's
    expected = gradient(net(layers), data, SAMPLES)
    found = gradient(model, data, micro_batch_size)
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def run_to(model: mg.Module, x: Any) -> None:
    """Move the running statistics to those of this batch: the best that they can be."""
    norms = [m for m in model.modules() if isinstance(m, mg.BatchNorm)]
    before = [(m.momentum, m.statistics) for m in norms]
    for m in norms:
        m.momentum, m.statistics = 1.0, "batch"
    with mg.no_grad():
        model(x)
    for m, (momentum, statistics) in zip(norms, before):
        m.momentum, m.statistics = momentum, statistics
        m.running_var = m.running_var * ((len(x) - 1) / len(x))  # biased, as it is in training


# ----------------------------------------------------------------------- time and memory


def work(sizes: list[int], k: int) -> float:
    """The multiplications of the exact way over those of an ordinary step, for k micro-batches.

    Let linear layer i = 0, ..., L of an MLP of these sizes take p_i of them a sample. An ordinary
    step takes sum(p) forward, sum(p) for the weights and, for the inputs, all but p_0. Statistics
    of level l take those of the layers below it, the first micro-batch of all (and it alone those
    of all layers). Adjoints of level l take all forward, and those above it back, for the inputs.
    """
    p = [inputs * outputs for inputs, outputs in pairwise(sizes)]
    levels = range(1, len(p))
    ordinary = 3 * sum(p) - p[0]
    statistics = sum(sum(p[:level]) for level in levels) + sum(p[1:]) / k
    adjoints = sum(sum(p) + sum(p[level:]) for level in levels)
    return (statistics + adjoints + ordinary) / ordinary


def time_ratios(
    layers: int, width: int = WIDE, b: int = WIDE, k: int = PARTS, tries: int = 5
) -> np.ndarray:
    """The processor time of the exact way over that of statistics="micro", in turns: (tries,)."""
    data = batch(b * k, width)
    models = net(layers, "micro", width), net(layers, "batch", width)
    seconds: tuple[list[float], list[float]] = ([], [])
    # Freed at once, 16 MiB make glibc keep what is freed from now on: else it returns memory to the
    # system between the passes and asks for it again, at up to half of the time of a small net.
    np.ones(2**21)
    for _ in range(tries + 1):
        for model, times in zip(models, seconds):
            start = process_time()
            mg.accumulate(model, mg.cross_entropy, data, b)
            times.append(process_time() - start)
    return np.divide(seconds[1], seconds[0])[1:]  # the first one warms up


def peaks(layers: int, micro_batch_size: int = 8) -> tuple[int, int]:
    """Bytes at most of one batch at once, and of the exact way in micro-batches."""
    found = []
    for size in (SAMPLES, micro_batch_size):
        model, data = net(layers), batch()
        mg.accumulate(model, mg.cross_entropy, data, size)
        with mg.measure_memory() as memory:
            mg.accumulate(model, mg.cross_entropy, data, size)
        found.append(memory.peak)
    return found[0], found[1]


# ------------------------------------------------------------------------ table and figure


class Costs(NamedTuple):
    """Of the exact way: its passes; its multiplications and time over those of an ordinary step;
    its memory over that of one batch at once."""

    passes: int
    products: float
    time: float
    memory: float


def cost(layers: int) -> Costs:
    """What the exact way costs with so many BatchNorms in a chain: predicted, and measured."""
    whole, parts = peaks(layers)
    predicted = work(sizes(layers, WIDE), PARTS)
    return Costs(2 * layers + 1, predicted, float(np.median(time_ratios(layers))), parts / whole)


def table(errors: dict[tuple[str, int, int], float]) -> str:
    """Errors of the gradient."""
    lines = [f"{'layers':<8}{'split':<14}" + "".join(f"{way:>14}" for way in STATISTICS)]
    for layers in LAYERS:
        for split, b in SPLITS.items():
            cells = "".join(f"{shown(errors[way, layers, b]):>14}" for way in STATISTICS)
            lines.append(f"{layers:<8}{split:<14}{cells}")
    return "\n".join(lines)


def table_of_costs(costs: dict[int, Costs]) -> str:
    """What the exact way costs."""
    lines = [f"{'layers':<8}{'passes':<10}{'products':<12}{'time':<10}memory, of one batch"]
    for layers, (passes, products, time, memory) in costs.items():
        factors = f"{f'x {products:.2f}':<12}{f'x {time:.2f}':<10}"
        lines.append(f"{layers:<8}{passes:<10}{factors}{100 * memory:.0f} %")
    return "\n".join(lines)


def shown(share: float) -> str:
    """An error as it is printed: rounding is called so."""
    if np.isnan(share):
        return "no answer"
    return "rounding" if share < 1e-12 else f"{100 * share:.0f} %"


def figure(errors: dict[tuple[str, int, int], float]) -> Any:
    """The error of each way against the number of layers, for micro-batches of 8."""
    page, axes = plotting.subplots(height=3.8)
    colours = plotting.RED, plotting.PURPLE, plotting.ORANGE, plotting.BLUE
    for way, colour, marker, line in zip(STATISTICS, colours, "o^sD", plotting.LINES):
        shares = [errors[way, layers, 8] for layers in LAYERS]
        shares = [s if s > 1e-12 else 1e-15 for s in shares]  # its digits are the processor's
        axes.plot(LAYERS, shares, color=colour, marker=marker, ls=line, label=way)
    axes.set_yscale("log")
    axes.set_ylim(1e-17, 30)
    axes.set_xticks(LAYERS)
    axes.set_xlabel("BatchNorm layers in a chain")
    axes.set_title("error of the gradient of 12 micro-batches of 8, as a share of its norm")
    axes.axhspan(1e-17, 1e-12, color="#eef2fb", lw=0)
    axes.text(8, 3e-13, "rounding, drawn as one level", ha="right", va="top", color=plotting.DARK)
    axes.legend(loc="center right")
    return page


# ----------------------------------------------------------------------- the command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `minigrad batchnorm`."""
    command.add_out(parser, "batchnorm.svg")


def run(args: argparse.Namespace) -> int:
    """`minigrad batchnorm`. Returns 0, or 1 if the exact way is not exact."""
    command.check_out(args.out)
    what = "the gradient against one batch's"
    print(f"{SAMPLES} samples, MLP of width {WIDTH}, float64: {what}", flush=True)
    kinds = list(product(STATISTICS, LAYERS, SPLITS.values()))
    errors: dict[tuple[str, int, int], float] = {}
    costs: dict[int, Costs] = {}
    with command.one_thread(), command.progress(len(kinds) + len(LAYERS), "figures") as count:
        for kind in kinds:
            errors[kind] = error(*kind)
            count()
        for layers in LAYERS:
            costs[layers] = cost(layers)
            count()
    print("", table(errors), "", table_of_costs(costs), "", sep="\n")
    command.draw(lambda: figure(errors), args.out)
    exact = [share for (way, _, _), share in errors.items() if way == "batch"]
    return 0 if max(exact) < 1e-12 else 1
