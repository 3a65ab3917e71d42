"""`minigrad rates`: a larger batch, by accumulation: what of the learning rate, and does it pay?

`train` is one run, on real digits, and `summary` what several seeds of it come to. `experiment`
makes four comparisons: the rate left as it is, the rate in proportion to the batch (with warm-up,
and without), each batch at the rate that is best for it, and a batch of one. `sharpness` measures
the curvature that says where the second must end. `table`, `conclusions` and `figure` show what
came out, of an experiment just made or of the one in figures/data/rates.json.

It is one small net, plain SGD, and samples that come again: the numbers are its own. What carries
over is how to ask: at equal samples or at equal updates, and each size at its own best rate.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

import numpy as np

import minigrad as mg
from minigrad import command, plotting
from minigrad.data import TRAIN_SAMPLES, digits

SIZES = (64, 32, 10)  # of the MLP
MICRO = 32  # what "fits": larger batches are accumulated from micro-batches of 32
BATCHES = (8, 16, 32, 64, 128, 256, 512, 1024)
RATE = 1 / 32  # of the smallest batch, the reference
SAMPLES = 8 * TRAIN_SAMPLES  # that each run sees: 12 batches of 1024
LOOK = 256  # samples from one look at the training loss to the next, or a batch if that is more

TARGET = 0.3  # the training loss that is to be reached
TUNED = BATCHES[:6]  # the others do not reach it within SAMPLES
RATES = (1 / 8, 1 / 4, 1 / 2, 1, 2)  # that are tried for each of them
TRIALS = range(1000, 1003)  # the seeds of these trials: others than those of the results
COSTS = (0, 10, 100, 1000)  # of an update, in samples
SMALL = {  # batches and rates of one epoch
    "one": (1, RATE / 8),
    "eight": (8, RATE),
    "many": (64, 8 * RATE),
    "free": (1, RATE),
    "wild": (1, 16 * RATE),
}
DRAWN = {8: plotting.BLUE, 32: plotting.ORANGE, 128: plotting.PURPLE, 512: plotting.RED}
WHAT = "training losses, in minigrad rates, of batches of many sizes and at several rates"

Summary = dict[str, Any]
Results = dict[str, Any]


# --------------------------------------------------------------------------------- one run


@dataclass(frozen=True)
class Run:
    """One training. samples: how many were seen at each look, and losses: the training loss there.
    updates: the loss of each update's batch, before it. model: as it is at the end."""

    samples: list[int]
    losses: list[float]
    updates: list[float]
    model: mg.Module


def train(batch_size: int, rate: Any, seed: int, samples: int = SAMPLES, until: float = 0.0) -> Run:
    """Train by SGD from the weights, and on the samples in the order, that `seed` gives.

    All batch sizes see the same samples in the same order, cut into more or fewer updates; a last
    batch that would be short is left out. rate: a number or a schedule. until: stop at the first
    look at which the training loss is as low.
    """
    rng = np.random.default_rng(seed)
    model = mg.MLP(*SIZES, rng=rng)
    optimizer = mg.SGD(model.parameters(), rate)
    x, y = digits()[0]
    epochs = -(-samples // len(x))
    order = np.concatenate([rng.permutation(len(x)) for _ in range(epochs)])[:samples]
    run = Run([], [], [], model)
    for seen in range(batch_size, samples + 1, batch_size):
        rows = order[seen - batch_size : seen]
        batch = x[rows], y[rows]
        report = mg.train_step(model, mg.cross_entropy, optimizer, batch, micro_batch_size=MICRO)
        run.updates.append(report.loss)
        if seen % LOOK == 0 or seen + batch_size > samples:
            run.samples.append(seen)
            run.losses.append(loss(model, x, y))
            if run.losses[-1] <= until:
                break
    return run


def loss(model: mg.Module, x: Any, y: Any) -> float:
    """The mean loss of these samples."""
    with mg.no_grad():
        return mg.cross_entropy(model(x), y).mean().item()


def runs(
    batch_size: int,
    rate: float,
    seeds: Iterable[int],
    samples: int = SAMPLES,
    warm: int = 0,
    count: command.Count = command.nothing,
) -> list[Run]:
    """A run a seed. warm: the rate grows over that many samples, counted in updates."""
    schedule = mg.warmup(rate, max(1, -(-warm // batch_size)))
    found = []
    for seed in seeds:
        found.append(train(batch_size, schedule, seed, samples))
        count()
    return found


def scatter(losses: Sequence[float]) -> float:
    """The standard deviation of the losses of updates around their trend, in the second half.

    From differences of neighbours, whose variance is twice as large (von Neumann et al. 1941).
    """
    steps = np.diff(losses[len(losses) // 2 :])
    return float(np.sqrt(np.mean(steps * steps) / 2))


def summary(batch_size: int, rate: float, found: Sequence[Run]) -> Summary:
    """What the runs come to, to four digits, in plain numbers as JSON has them.

    mean, spread: of the training loss at each look, and its standard deviation over the seeds.
    One number a seed: end, the last training loss; test, the loss of the test digits; scatter; and
    reached, the samples seen when the training loss was first at TARGET, or None.
    """
    x, y = digits()[1]
    curves = np.array([run.losses for run in found])
    return {
        "batch": batch_size,
        "rate": rate,
        "samples": found[0].samples,
        "mean": short(curves.mean(axis=0)),
        "spread": short(curves.std(axis=0, ddof=1)),
        "end": short(curves[:, -1]),
        "test": short(loss(run.model, x, y) for run in found),
        "scatter": short(scatter(run.updates) for run in found),
        "reached": [reached(run) for run in found],
    }


def reached(run: Run) -> int | None:
    """The samples that were seen at the first look at which the training loss was at TARGET."""
    return next((n for n, loss in zip(run.samples, run.losses) if loss <= TARGET), None)


def short(values: Iterable[float]) -> list[float]:
    """The values to four digits."""
    return [float(f"{value:.4g}") for value in values]


# ----------------------------------------------------------------------------- the curvature


def sharpness(model: mg.Module, products: int = 20) -> float:
    """The largest eigenvalue h of the Hessian H of the training loss.

    Along its eigenvector the loss is h/2 w^2, on which SGD grows from a rate of 2/h on. It is that
    of H in the space of v, Hv, HHv, ... (Lanczos 1950), where Hv is the difference of the gradients
    at w + e v and w - e v over 2e; in float64, with an e that hardly ever crosses a kink of ReLU.
    """
    x, y = digits(np.float64)[0]
    twin = mg.MLP(*SIZES, dtype=np.float64)
    parameters = twin.parameters()
    w = command.vector(p.data for p in model.parameters()).astype(np.float64)
    ends = np.cumsum([p.data.size for p in parameters])

    def gradient(at: np.ndarray) -> np.ndarray:
        for p, values in zip(parameters, np.split(at, ends[:-1])):
            p.data[...] = values.reshape(p.shape)
        mg.accumulate(twin, mg.cross_entropy, (x, y), micro_batch_size=len(x))
        return command.gradient(twin)

    e, v = 1e-7, np.random.default_rng(0).standard_normal(w.size)
    space, images = np.zeros((products, w.size)), np.zeros((products, w.size))
    for i in range(products):
        for _ in range(2):  # the second time for what rounding left
            v -= space.T @ (space @ v)
        space[i] = v / np.linalg.norm(v)
        images[i] = v = (gradient(w + e * space[i]) - gradient(w - e * space[i])) / (2 * e)
    small = space @ images.T
    return float(np.linalg.eigvalsh((small + small.T) / 2)[-1])


# ---------------------------------------------------------------------------- the experiment


def experiment(seeds: int = 10, count: command.Count = command.nothing) -> Results:
    """All of it, for seeds 0 to seeds - 1: lists of summaries, one a batch size.

    kept: RATE for all. cold: RATE times the growth of the batch. linear: the same after a warm-up
    over the first epoch, which the reference has too. best: at the rate that was fastest in
    `trials`. small: one epoch with a batch of one and larger ones. sharpness: at the end of the
    runs of the smallest batch at RATE. count: called after each run.
    """
    every = range(seeds)

    def each(pairs: Iterable[tuple[int, float]], **options: Any) -> list[Summary]:
        return [summary(b, r, runs(b, r, every, count=count, **options)) for b, r in pairs]

    reference = runs(BATCHES[0], RATE, every, count=count)
    first = summary(BATCHES[0], RATE, reference)
    trials = {str(b): trial(b, count) for b in TUNED}
    return {
        "kept": [first, *each((b, RATE) for b in BATCHES[1:])],
        "cold": [first, *each((b, scaled(b)) for b in BATCHES[1:])],
        "linear": each(((b, scaled(b)) for b in BATCHES), warm=TRAIN_SAMPLES),
        "best": each((b, fastest(trials[str(b)])) for b in TUNED),
        "trials": trials,
        "small": each(SMALL.values(), samples=TRAIN_SAMPLES),
        "sharpness": short(sharpness(run.model) for run in reference),
    }


def scaled(batch_size: int) -> float:
    """The rate in proportion to the batch."""
    return mg.linear_scaling(RATE, BATCHES[0], batch_size)


def trial(batch_size: int, count: command.Count = command.nothing) -> dict[str, float | None]:
    """The mean number of samples to TARGET at each of RATES; None where a run does not reach it."""
    found: dict[str, float | None] = {}
    for rate in RATES:
        samples = [reached(train(batch_size, rate, seed, until=TARGET)) for seed in TRIALS]
        found[str(rate)] = None if None in samples else float(np.mean(samples))
        count()
    return found


def fastest(tried: dict[str, float | None]) -> float:
    """The rate that reaches TARGET with the fewest samples."""
    return float(min(tried, key=lambda rate: tried[rate] or math.inf))


# ------------------------------------------------------------------------- what it says


def held(summaries: Sequence[Summary]) -> list[int]:
    """The batches up to which a rule holds: the training loss at the end is, in the mean over the
    seeds, within two of their standard deviations of that of the first, the reference."""
    first = summaries[0]["end"]
    near = [abs(np.mean(s["end"]) - np.mean(first)) <= 2 * np.std(first, ddof=1) for s in summaries]
    return [s["batch"] for i, s in enumerate(summaries) if all(near[: i + 1])]


def cost(one: Summary, update: float) -> np.ndarray:
    """What each seed's way to TARGET costs, in samples, where an update costs as much as that many
    samples (a synchronization of devices, say): samples + update * samples / batch. NaN where the
    way does not get there."""
    samples = np.array(one["reached"], dtype=float)
    return samples + update * samples / one["batch"]


def paired(a: Any, b: Any) -> tuple[float, float]:
    """b - a in the mean over the seeds, and two standard errors of that mean."""
    difference = np.subtract(b, a)
    return float(np.mean(difference)), float(2 * np.std(difference, ddof=1) / len(a) ** 0.5)


def of(summaries: Sequence[Summary], batch_size: int) -> Summary:
    """The summary of that batch size."""
    return next(s for s in summaries if s["batch"] == batch_size)


# ------------------------------------------------------------------------- table and figure


def table(results: Results) -> str:
    """One rate for all and rates in proportion; the best rate of each; a batch of one."""
    return "\n\n".join((rules(results), best_rates(results), small_batches(results)))


def rules(results: Results) -> str:
    """The training loss at the end under each rule."""
    first = results["kept"][0]
    samples, seeds = first["samples"][-1], len(first["end"])
    names = f"rate {first['rate']:g}", "in proportion", "without warm-up"
    lines = [
        f"Training loss after {samples:,} samples: mean ± standard deviation of {seeds} seeds.",
        f"{'batch':>5}{'parts':>7}{'updates':>9}" + "".join(f"{name:>19}" for name in names),
    ]
    for row in zip(results["kept"], results["linear"], results["cold"]):
        B = row[0]["batch"]
        k = len(mg.micro_batches(B, MICRO))
        cells = "".join(f"{mean_and_spread(one['end']):>19}" for one in row)
        lines.append(f"{B:>5}{k:>7}{samples // B:>9}{cells}")
    return "\n".join(lines)


def best_rates(results: Results) -> str:
    """What it takes to reach TARGET, and what it costs."""
    costs = "".join(f"{f'c = {c}':>9}" for c in COSTS[1:])
    lines = [
        f"To a training loss of {TARGET} at the best rate in factors of two; cost in samples if an "
        "update costs c.",
        f"{'batch':>5}{'rate':>7}{'samples':>16}{'updates':>9}{costs}{'loss at the end':>19}"
        f"{'test':>7}",
    ]
    for one in results["best"]:
        cells = "".join(f"{np.mean(cost(one, c)):>9,.0f}" for c in COSTS[1:])
        samples = cost(one, 0)
        lines.append(
            f"{one['batch']:>5}{one['rate']:>7g}{mean_and_spread(samples, 0):>16}"
            f"{np.mean(samples) / one['batch']:>9.0f}{cells}{mean_and_spread(one['end']):>19}"
            f"{np.mean(one['test']):>7.3f}"
        )
    return "\n".join(lines)


def small_batches(results: Results) -> str:
    """The loss and its scatter where batches are small."""
    lines = [
        "After one epoch, without warm-up; scatter: of the losses of updates around their trend.",
        f"{'batch':>5}{'rate':>12}{'training loss':>19}{'scatter':>10}",
    ]
    for one in results["small"]:
        noise = np.mean(one["scatter"])
        lines.append(
            f"{one['batch']:>5}{one['rate']:>12g}{mean_and_spread(one['end']):>19}{noise:>10.2f}"
        )
    return "\n".join(lines)


def mean_and_spread(values: Any, digits: int = 3) -> str:
    """Mean and standard deviation; nan where not all seeds have a value."""
    return f"{np.mean(values):,.{digits}f} ± {np.std(values, ddof=1):,.{digits}f}"


def conclusions(results: Results) -> list[str]:
    """What the tables say, with their numbers: a paragraph a table, and one on the two axes."""
    return [rule_ends(results), two_axes(results), waste(results), single(results)]


def rule_ends(results: Results) -> str:
    """Where the linear rule ends, and why there."""
    holds, cold = (held(results[name])[-1] for name in ("linear", "cold"))
    last = of(results["linear"], holds)["rate"]
    h, curvature = np.mean(results["sharpness"]), mean_and_spread(results["sharpness"], 1)
    room = results["best"][0]["rate"] / RATE
    beyond = " and ".join(str(one["batch"]) for one in results["best"] if one["rate"] > 2 / h)
    wall = (
        f" It is an estimate, no wall: tuned alone, {beyond} do best beyond it." if beyond else ""
    )
    return (
        f"In proportion the rate may grow up to a batch of {holds}, after a warm-up over the first "
        f"epoch, and to {cold} without: there the loss at the end is within two standard "
        f"deviations of that of {BATCHES[0]}, beyond it is not. The curvature of the loss, where "
        f"the runs of {BATCHES[0]} end, is {curvature}, on which SGD grows "
        f"from a rate of 2 / {h:.1f} = {2 / h:.2f} on; the last that holds is {last:g}.{wall} "
        f"There was room for the rule because {RATE:g} is {room:g} times below the "
        f"best rate of {BATCHES[0]}."
    )


def two_axes(results: Results) -> str:
    """The same runs at equal samples and at equal updates."""
    B, b = 128, BATCHES[0]
    large, small = of(results["kept"], B), of(results["kept"], b)
    updates = large["samples"][-1] // B
    there = small["mean"][small["samples"].index(b * updates)]
    return (
        f"At the same rate a batch of {B} ends at a loss of {large['mean'][-1]:.2f}, {b} with the "
        f"same samples at {small['mean'][-1]:.2f}: {B} has made {updates} updates, and after "
        f"{updates} of its own {b} was at {there:.2f}. In proportion {B} ends at "
        f"{of(results['linear'], B)['mean'][-1]:.2f}."
    )


def waste(results: Results) -> str:
    """When accumulation is a waste, and when it pays; differences are taken seed by seed."""
    own, many = of(results["best"], MICRO), of(results["best"], 4 * MICRO)  # tuned for TARGET
    n, N = (float(np.mean(cost(one, 0))) for one in (own, many))
    updates, fewer = n / own["batch"], N / many["batch"]
    worse, error = paired(own["end"], many["end"])
    dear = COSTS[-1]
    saved, uncertain = paired(cost(many, dear), cost(own, dear))
    return (
        f"Accumulation is a waste where an update costs nothing: at its best rate an update after "
        f"each micro-batch of {MICRO} reaches a loss of {TARGET} with {n:,.0f} samples, an update "
        f"after four of them with {N:,.0f}, and at these rates it ends higher, with all samples, "
        f"by {worse:.3f} ± {error:.3f} (two standard errors). It pays where updates are dear: "
        f"there are {fewer:.0f} instead of {updates:.0f}, so that it is even where one costs as "
        f"much as {(N - n) / (updates - fewer):.0f} samples. At {dear:,} it saves {saved:,.0f} "
        f"± {uncertain:,.0f} of {np.mean(cost(own, dear)):,.0f}."
    )


def single(results: Results) -> str:
    """Small batches are noisier, and not unstable in themselves."""
    small = dict(zip(SMALL, results["small"]))
    one, eight, free, wild = (small[name] for name in ("one", "eight", "free", "wild"))
    noise = np.mean(one["scatter"]) / np.mean(eight["scatter"])
    return (
        f"A batch of one is noisier, and not unstable in itself. At the rate in proportion its "
        f"loss after an epoch is {np.mean(one['end']):.2f}, as that of 8 is "
        f"{np.mean(eight['end']):.2f}; the losses of its updates scatter {noise:.1f} times as "
        f"much. At a rate of {free['rate']:g} each seed is below {max(free['end']):.2f}. At "
        f"{wild['rate']:g}, the best rate of {MICRO}, none is below {min(wild['end']):.2f}, and "
        f"guessing is at {math.log(10):.2f}."
    )


# --------------------------------------------------------------------------------- in a figure


def figure(results: Results) -> Any:
    """Two rules, against samples and against updates; where they end; what the best rates need."""
    page, axes = plotting.subplots(2, 3, height=5.6)
    for row, name, rule in zip(axes, ("kept", "linear"), ("the same rate", "in proportion")):
        draw_curves(row[0], results[name], "samples", f"{rule}:\nloss against samples")
        draw_curves(row[1], results[name], "updates", "loss against updates")
    axes[0, 1].legend(title="batch")
    draw_ends(axes[0, 2], results)
    draw_needs(axes[1, 2], results["best"])
    return page


def draw_curves(axes: Any, summaries: Sequence[Summary], against: str, title: str) -> None:
    """The mean losses at each look."""
    for (B, colour), line in zip(DRAWN.items(), plotting.LINES):
        one = of(summaries, B)
        where = np.array(one["samples"]) / (B if against == "updates" else 1)
        axes.plot(where, one["mean"], color=colour, ls=line, label=str(B))
    axes.set(xscale="log", title=title, xlabel=against)
    scale_losses(axes)


def draw_ends(axes: Any, results: Results) -> None:
    """The loss at the end against the batch, and in a band what still holds."""
    first = results["linear"][0]["end"]
    mean, s = np.mean(first), np.std(first, ddof=1)
    axes.axhspan(mean - 2 * s, mean + 2 * s, color="#d6e4fe", lw=0)
    for name, colour, look in (("kept", plotting.GREY, "s--"), ("linear", plotting.VIOLET, "o-")):
        ends = np.array([one["end"] for one in results[name]])
        errors = ends.std(axis=1, ddof=1)
        axes.errorbar(BATCHES, ends.mean(axis=1), errors, color=colour, fmt=look)
    axes.text(42, 0.58, "same rate")
    axes.text(20, 0.21, "in proportion")
    axes.set(xscale="log", title="loss at the end", xlabel="batch")
    axes.set_xticks([8, 32, 128, 512], ["8", "32", "128", "512"])
    scale_losses(axes)


def scale_losses(axes: Any) -> None:
    """The same scale of losses wherever they stand."""
    axes.set(yscale="log", ylim=(0.14, 3))
    axes.set_yticks([0.2, 0.5, 1, 2], ["0.2", "0.5", "1", "2"])
    axes.minorticks_off()


def draw_needs(axes: Any, best: Sequence[Summary]) -> None:
    """Samples and updates to TARGET at the best rates."""
    batches = [one["batch"] for one in best]
    samples = np.array([np.mean(cost(one, 0)) for one in best])
    looks = (samples, plotting.VIOLET, "o-"), (samples / batches, plotting.GREY, "s--")
    for (needs, colour, look), label in zip(looks, ("samples", "updates")):
        axes.plot(batches, needs, look, color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="batch")
    axes.set_title(f"to a loss of {TARGET},\nat each one's best rate")
    axes.set_xticks([8, 32, 128], ["8", "32", "128"])
    axes.minorticks_off()
    axes.legend(loc="center right")


# ----------------------------------------------------------------------- the command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `minigrad rates`."""
    seeds, what = command.integer(2, 100, example=10), "runs of each kind (%(default)s)"
    parser.add_argument("--seeds", type=seeds, metavar="N", default=10, help=what)
    command.add_out(parser, "learning_rate.svg")
    what = "where all that is measured goes, .json (nowhere)"
    parser.add_argument("--data", metavar="FILE", type=command.file, help=what)


def run(args: argparse.Namespace) -> int:
    """`minigrad rates`. Returns 0."""
    command.check_out(args.out)
    if args.data is not None:
        ours = partial(plotting.is_ours, mark=WHAT.encode())
        command.check_out(args.data, "--data", (".json",), ours)
    sizes = "-".join(map(str, SIZES))
    print(f"{TRAIN_SAMPLES:,} handwritten digits; MLP {sizes}; float32; SGD, no momentum.")
    print(f"Micro-batches of {MICRO} at most. About a minute for 10 seeds.", flush=True)
    kinds = 3 * len(BATCHES) - 1 + len(TUNED) + len(SMALL)  # the reference is both kept and cold
    total = kinds * args.seeds + len(TUNED) * len(RATES)
    with command.one_thread(), command.progress(total, "runs") as count:
        results = experiment(args.seeds, count)
    print("", table(results), "", sep="\n")
    for sentences in conclusions(results):
        print(textwrap.fill(sentences, 90, break_on_hyphens=False))
    if args.data is not None:  # first: a figure can be drawn again from it
        text = as_json(results)
        save = partial(args.data.write_text, text, encoding="utf-8")
        command.write(save, args.data, "--data", "measurement")
    command.draw(lambda: figure(results), args.out)
    return 0


def settings() -> dict[str, Any]:
    """What the results depend on, beside the batches and rates that stand with them."""
    return {
        "sizes": list(SIZES),
        "micro_batch_size": MICRO,
        "warm-up": TRAIN_SAMPLES,
        "target": TARGET,
        "rates tried": list(RATES),
        "seeds of trials": list(TRIALS),
    }


def as_json(results: Results) -> str:
    """What was measured, when and where, a line for each summary."""
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    versions = {"Python": platform.python_version(), "NumPy": np.__version__}
    if matplotlib := command.optional("matplotlib"):
        versions["Matplotlib"] = matplotlib.__version__
    recorded = {
        "what": WHAT,
        "date": date.today().isoformat(),
        "machine": machine | {"system": platform.system()},
        "versions": versions,
        "settings": settings(),
        **results,
    }
    lines = []
    for key, value in recorded.items():
        rows = isinstance(value, list) and isinstance(value[0], dict)
        text = (
            "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]" if rows else json.dumps(value)
        )
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
