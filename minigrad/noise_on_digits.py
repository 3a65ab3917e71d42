"""`minigrad noise`: how good is a noisy look, at the root of a line and at the gradient of a net?

First Robbins and Monro's walk: n Var(x_n) after n looks, by its exact recursion, under step rules
that a reader would try, and the limit that each tends to. Then a small net on real digits: what a
batch of B samples misses of the whole gradient, counted and predicted; and the noise scale
while it trains, estimated from the micro-batches of its windows and computed from all samples.
"""

from __future__ import annotations

import argparse
import math
from typing import Any, NamedTuple

import numpy as np

import minigrad as mg
from minigrad import command, plotting
from minigrad.data import digits
from minigrad.noise import WAYS

# ------------------------------------------------------------------------------ the root

LOOKS = (100, 1_000, 10_000)
RULES = {  # of a line with slope 1, seen with noise of variance 1, from 2 away
    "1/n": mg.StepRule(1.0),
    "4/n": mg.StepRule(4.0),
    "1/(4n)": mg.StepRule(0.25),
    "n^-0.7": mg.StepRule(1.0, 0.7),
    "1/10": mg.StepRule(0.1, 0),
    "1/(n+1)^2": mg.StepRule(1.0, 2, shift=1),
}
AVERAGED = "n^-0.7, averaged"
DRAWN = ("1/n", "n^-0.7", "1/(n+1)^2", "4/n", "1/10", AVERAGED)
START = 2.0


def scaled_errors(rule: str) -> np.ndarray:
    """n E(x_n - root)^2 for n = 1, 2, ...: n times bias squared plus variance, both exact."""
    steps = RULES["n^-0.7" if rule == AVERAGED else rule].first(LOOKS[-1])
    bias, variance, of_average = mg.linear_moments(steps, 1.0, 1.0, START)
    n = np.arange(1, len(steps) + 1)
    if rule == AVERAGED:
        return n * ((np.cumsum(bias[1:]) / n) ** 2 + of_average[1:])
    return n * (bias[1:] ** 2 + variance[1:])


def limit(rule: str) -> str:
    """What n E(x_n - root)^2 tends to, and by which law."""
    if rule == AVERAGED:
        return "1 (Polyak and Ruppert)"
    chosen = RULES[rule]
    if chosen.power == 1 and chosen.c > 0.5:
        return f"{mg.asymptotic_variance(chosen.c, 1.0, 1.0):.4g} (c^2 / (2c - 1))"
    r = chosen.exponent(1.0)
    return (
        f"grows like n^{1 - 2 * r:.4g}" if r else "grows like n: it stops short, or never settles"
    )


def table_of_roots() -> str:
    """One line a rule."""
    lines = [f"{'steps':<18}" + "".join(f"{f'n = {n}':>12}" for n in LOOKS) + "    limit"]
    for rule in [*RULES, AVERAGED]:
        errors = scaled_errors(rule)
        lines.append(
            f"{rule:<18}" + "".join(f"{errors[n - 1]:>12.4g}" for n in LOOKS) + f"    {limit(rule)}"
        )
    return "\n".join(lines)


# -------------------------------------------------------------------------- the gradient

SIZES = (1, 4, 16, 64, 256, 1024, 1536)
DRAWS = 400  # batches of each size
BATCH, MICRO_BATCH, UPDATES = 64, 8, 480
EVERY = 60  # updates between two looks at all samples
STOPS, WINDOWS = (0, 120, 480), 200  # looks at which so many windows are drawn
LR, DECAY = 0.1, 0.98


class Net(NamedTuple):
    """A small net on digits in float64, and the samples."""

    model: mg.Module
    x: Any
    y: Any


def net() -> Net:
    """A 64-16-10 MLP, not trained."""
    (x, y), _ = digits(np.float64)
    return Net(mg.MLP(64, 16, 10, rng=np.random.default_rng(0), dtype=np.float64), x, y)


def each_gradient(it: Net) -> np.ndarray:
    """The gradient of each sample alone, (N, p), by micro-batches of one."""
    rows = []
    for i in range(len(it.x)):
        mg.accumulate(it.model, mg.cross_entropy, (it.x[i : i + 1], it.y[i : i + 1]), 1)
        rows.append(command.gradient(it.model))
    return np.stack(rows)


def direct(gradients: Any) -> mg.GradientNoise:
    """|G|^2 and S of all samples: what the estimates estimate."""
    whole = gradients.mean(axis=0)
    return mg.GradientNoise(float(whole @ whole), float(mg.batch_noise(gradients, 1)))


def missed(gradients: Any, size: int, rng: np.random.Generator) -> tuple[float, float]:
    """The mean of |g_B - G|^2 over DRAWS batches without replacement, and its standard error."""
    whole = gradients.mean(axis=0)
    found = []
    for _ in range(DRAWS):
        drawn = gradients[rng.permutation(len(gradients))[:size]].mean(axis=0)
        found.append(((drawn - whole) ** 2).sum())
    return float(np.mean(found)), float(np.std(found, ddof=1) / math.sqrt(DRAWS))


class Stop(NamedTuple):
    """What WINDOWS windows say at one point: [way] is an array (windows, 2) of signal and noise."""

    computed: mg.GradientNoise
    estimates: dict[str, np.ndarray]


class Training(NamedTuple):
    """What was seen while the net trained. smoothed[way]: an array (updates, 2). computed, stops:
    by the number of updates made."""

    smoothed: dict[str, np.ndarray]
    computed: dict[int, mg.GradientNoise]
    stops: dict[int, Stop]


def estimates(it: Net, rows: Any) -> dict[str, mg.GradientNoise]:
    """The noise of one window, in both ways."""
    batch = it.x[rows], it.y[rows]
    return {
        way: mg.accumulate(it.model, mg.cross_entropy, batch, MICRO_BATCH, noise=way).noise
        for way in WAYS
    }


def stop(it: Net, computed: mg.GradientNoise, rng: np.random.Generator) -> Stop:
    """Many windows, drawn with replacement, at the weights as they are."""
    windows = [estimates(it, rng.integers(0, len(it.x), BATCH)) for _ in range(WINDOWS)]
    return Stop(computed, {way: np.array([window[way] for window in windows]) for way in WAYS})


def train(count: command.Count = command.nothing) -> Training:
    """SGD in windows of 8 micro-batches of 8, the noise of each window smoothed both ways."""
    it, rng = net(), np.random.default_rng(0)
    optimizer = mg.SGD(it.model.parameters(), lr=LR)
    smoothing = {way: mg.SmoothedNoise(DECAY) for way in WAYS}
    smoothed: dict[str, list[Any]] = {way: [] for way in WAYS}
    computed, stops = {}, {}
    for update in range(UPDATES + 1):
        if update % EVERY == 0:
            computed[update] = direct(each_gradient(it))
        if update in STOPS:
            stops[update] = stop(it, computed[update], rng)
        rows = rng.integers(0, len(it.x), BATCH)  # with replacement, as S and |G|^2 are meant
        for way, noise in estimates(it, rows).items():
            smoothed[way].append(smoothing[way].update(noise))
        batch = it.x[rows], it.y[rows]
        mg.train_step(it.model, mg.cross_entropy, optimizer, batch, MICRO_BATCH)
        count()
    found = {way: np.array(values[:UPDATES]) for way, values in smoothed.items()}
    return Training(found, computed, stops)


def scales(values: np.ndarray) -> np.ndarray:
    """The noise scales of an array (updates, 2): infinite where no signal was seen."""
    return np.array([mg.GradientNoise(*row).scale for row in values])


def table_of_batches(gradients: Any, found: dict[int, tuple[float, float]]) -> str:
    """What batches miss: measured, and by the two formulas."""
    lines = [f"{'B':<8}{'measured':>20}{'S/B (N-B)/(N-1)':>20}{'S/B':>12}"]
    for size, (mean, error) in found.items():
        without, with_it = (float(mg.batch_noise(gradients, size, r)) for r in (False, True))
        shown = "0" if mean < 1e-20 else f"{mean:.4f} +- {error:.4f}"
        lines.append(f"{size:<8}{shown:>20}{without:>20.4f}{with_it:>12.4f}")
    return "\n".join(lines)


def table_of_scales(stops: dict[int, Stop]) -> str:
    """At some points: all samples, the mean of many windows, and how much one window spreads."""
    head = f"{'updates':<9}{'':<13}{'|G|^2':>11}{'S':>9}{'S/|G|^2':>9}"
    lines = [head + f"{'one window: |G|^2':>22}{'S':>15}"]
    for update, (computed, seen) in stops.items():
        lines.append(f"{update:<9}{'all samples':<13}" + cells(*computed))
        for way, values in seen.items():
            mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1)
            spreads = f"{f'+- {spread[0]:.2g}':>22}{f'+- {spread[1]:.2g}':>15}"
            lines.append(f"{'':<9}{f'by {way}':<13}" + cells(*mean) + spreads)
    return "\n".join(lines)


def cells(signal: float, noise: float) -> str:
    """|G|^2, S and the noise scale."""
    return f"{signal:>11.3g}{noise:>9.3g}{mg.GradientNoise(signal, noise).scale:>9.3g}"


# ------------------------------------------------------------------------------- figures


def figure_of_roots() -> Any:
    """Four walks to a root, and n E(x_n - root)^2 of their rules with its limits."""
    figure, (walks, errors) = plotting.subplots(1, 2, height=3.6)
    noises = np.random.default_rng(3).standard_normal(300)
    colours = dict(zip(DRAWN, plotting.COLOURS))
    lines = dict(zip(DRAWN, plotting.LINES))

    def walk(rule: str) -> Any:
        noise = iter(noises)
        return mg.robbins_monro(lambda x: x + next(noise), START, RULES[rule].first(len(noises)))

    for rule in ("1/n", "n^-0.7", "1/10", "1/(n+1)^2"):
        walks.plot(walk(rule), color=colours[rule], ls=lines[rule], lw=1.4, label=rule)
    walks.axhline(0, color=plotting.DARK, lw=0.8)
    walks.set_xlabel("looks n")
    walks.set_title("one walk of each rule; the root is at 0")
    walks.legend(title="steps", loc="lower right", ncols=2)
    for rule in DRAWN:
        values = scaled_errors(rule)
        n = np.arange(1, len(values) + 1)
        errors.plot(n, values, color=colours[rule], ls=lines[rule], label=rule)
    for value in (1, mg.asymptotic_variance(4.0, 1.0, 1.0)):
        errors.axhline(value, color=plotting.DARK, lw=0.8)
    errors.set_xscale("log")
    errors.set_yscale("log")
    errors.set_ylim(0.5, 3e5)
    errors.set_xlabel("looks n")
    errors.set_title("n times the mean squared error; thin lines: limits")
    errors.legend(title="steps", loc="upper left", ncols=2)
    return figure


def figure_of_noise(
    gradients: Any, found: dict[int, tuple[float, float]], training: Training
) -> Any:
    """What batches miss, against their size; and the noise scale while the net trains."""
    figure, (left, right) = plotting.subplots(1, 2, height=3.6)
    sizes = np.unique(np.geomspace(1, len(gradients) - 1, 60).astype(int))
    for replace, line, label in (
        (True, "dashed", "$S/B$: with replacement"),
        (False, "solid", "$S/B\\cdot(N-B)/(N-1)$: without"),
    ):
        predicted = [float(mg.batch_noise(gradients, int(s), replace)) for s in sizes]
        left.plot(sizes, predicted, color=plotting.BLUE, ls=line, lw=1.5, label=label)
    means = [(size, mean) for size, (mean, _) in found.items() if mean > 1e-20]
    left.plot(*zip(*means), "o", color=plotting.ORANGE, ms=6, label="drawn without")
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel("batch size B")
    left.set_ylim(1e-3, 30)
    left.set_title("what a batch misses: $E\\,|g_B - G|^2$")
    left.legend(loc="lower left")
    for way, colour, line in zip(WAYS, (plotting.BLUE, plotting.GREY), ("solid", "dotted")):
        told = scales(training.smoothed[way])
        right.plot(np.arange(len(told)), told, color=colour, ls=line, lw=1.5, label=f"by {way}")
    computed = [(update, noise.scale) for update, noise in training.computed.items()]
    right.plot(*zip(*computed), "D", color=plotting.RED, ms=4, label="all samples")
    right.set_yscale("log")
    right.set_ylim(10, 5000)
    right.set_xlabel("updates")
    right.set_title("the noise scale in training, smoothed")
    right.legend(loc="lower right")
    return figure


# ----------------------------------------------------------------------- the command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `minigrad noise`."""
    command.add_out(parser, "noise.svg", "the figure of the gradient's noise")
    command.add_out(parser, "robbins_monro.svg", "the figure of the walks to a root", "--roots")


def run(args: argparse.Namespace) -> int:
    """`minigrad noise`. Returns 0, or 1 if a mean is more than 5 standard errors off."""
    command.check_out(args.out)
    command.check_out(args.roots, "--roots")
    if args.out.resolve() == args.roots.resolve():
        raise command.refusal(
            f"--roots is {str(args.roots)!r} and --out too, expected two files for two figures; "
            "choose another for one of them"
        )
    with command.one_thread():
        print("n times the mean squared distance from the root, after n looks\n")
        print(table_of_roots())
        it, rng = net(), np.random.default_rng(0)
        what = f"What a batch of B of {len(it.x)} digits misses of the gradient"
        print(f"\n{what}, E|g_B - G|^2\n", flush=True)
        gradients = each_gradient(it)
        found = {size: missed(gradients, size, rng) for size in SIZES}
        print(table_of_batches(gradients, found))
        windows = f"{WINDOWS} windows of {BATCH // MICRO_BATCH} x {MICRO_BATCH}"
        print(f"\nThe noise scale while it trains, by {windows}\n", flush=True)
        with command.progress(UPDATES + 1) as count:
            training = train(count)
    print(table_of_scales(training.stops), "", sep="\n")
    if command.draw(figure_of_roots, args.roots, "--roots"):
        command.draw(lambda: figure_of_noise(gradients, found, training), args.out)
    off = [
        abs(mean - float(mg.batch_noise(gradients, size))) > 5 * error + 1e-20
        for size, (mean, error) in found.items()
    ]
    for computed, seen in training.stops.values():
        for values in seen.values():
            errors = values.std(axis=0, ddof=1) / math.sqrt(len(values))
            off += list(np.abs(values.mean(axis=0) - computed) > 5 * errors)
    return int(any(off))
