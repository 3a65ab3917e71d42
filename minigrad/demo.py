"""`minigrad demo`: do 8 micro-batches of 32 train as one batch of 256 does? On real digits.

Read `train` first, which is how a training loop is written with minigrad, then
`train_without_dividing`, which is how a loop by hand goes wrong. `experiment` runs the first twice
and the second once, from the same seed; `table`, `conclusions` and `figure` show what came out.

Taught in lesson 00.
"""

from __future__ import annotations

import argparse
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

import minigrad as mg
from minigrad import command, plotting
from minigrad.data import TRAIN_SAMPLES, digits

UNIT = 2.0**-53  # of rounding: one operation in float64 moves its result by at most this part of it
ROUNDING = 1000  # units: what is further apart, 1e-13 of its size, is called different

# What the opening line says of each, and how it is made.
NORMS: dict[str, tuple[str, Callable[..., mg.Module] | None]] = {
    "none": ("", None),
    "batch": (" with BatchNorm", mg.BatchNorm),
    "micro": (" with BatchNorm on micro-batches", partial(mg.BatchNorm, statistics="micro")),
    "running": (" with Batch Renormalization", partial(mg.BatchNorm, statistics="running")),
    "layer": (" with LayerNorm", mg.LayerNorm),
    "group": (" with GroupNorm", lambda width, dtype: mg.GroupNorm(4, width, dtype=dtype)),
}
OPTIMIZERS: dict[str, tuple[str, Callable[[list[mg.Tensor], int], mg.Optimizer]]] = {
    # At this rate SGD learns fast and safely, but a gradient 8 times too large throws it off.
    # Batches smaller than 256 are noisier, and get a rate smaller in proportion.
    "sgd": ("SGD with momentum", lambda p, N: mg.SGD(p, lr=0.2 * min(1, N / 256), momentum=0.9)),
    "adam": ("Adam", lambda p, N: mg.Adam(p, lr=3e-3)),
    "adamw": ("AdamW", lambda p, N: mg.AdamW(p, lr=3e-3)),
}


@dataclass(frozen=True)
class Settings:
    """What can be chosen."""

    batch_size: int = 256
    micro_batch_size: int = 32
    hidden: tuple[int, ...] = (256,)
    norm: str = "none"
    dropout: float = 0.0
    optimizer: str = "sgd"
    epochs: int = 10
    seed: int = 0
    gpu: bool = False

    @property
    def parts(self) -> int:
        """Micro-batches in a batch; the last one may be shorter."""
        return -(-self.batch_size // self.micro_batch_size)

    @property
    def updates(self) -> int:
        """Updates of one run."""
        return self.epochs * -(-TRAIN_SAMPLES // self.batch_size)

    @property
    def batch_norm(self) -> bool:
        """Is it BatchNorm, on whatever statistics?"""
        return self.norm in ("batch", "micro", "running")

    @property
    def couples(self) -> bool:
        """Does a micro-batch standardize by itself, so that it is no part of a larger batch?"""
        return self.norm in ("micro", "running")

    @property
    def one(self) -> str:
        """'one batch of 256'."""
        return f"one batch of {self.batch_size}"

    @property
    def many(self) -> str:
        """'8 micro-batches of 32'."""
        s = "" if self.parts == 1 else "es"
        at_most = "at most " if self.batch_size % self.micro_batch_size else ""
        return f"{self.parts} micro-batch{s} of {at_most}{self.micro_batch_size}"

    @property
    def columns(self) -> tuple[str, str]:
        """('1 x 256', '8 x 32')."""
        even = self.batch_size % self.micro_batch_size == 0
        split = f"{self.parts} x {self.micro_batch_size}" if even else f"{self.parts} parts"
        return f"1 x {self.batch_size}", split


# ---------------------------------------------------------------------------------- the loops


def train(settings: Settings, micro_batch_size: int, count: command.Count = command.nothing) -> Run:
    """Train with minigrad: one update a batch, computed a micro-batch at a time."""
    model, optimizer = start(settings)
    losses = []
    begin = perf_counter()
    for batch in batches(settings):
        report = mg.train_step(model, mg.cross_entropy, optimizer, batch, micro_batch_size)
        losses.append(report.loss)
        count()
    return finish(settings, model, losses, perf_counter() - begin)


def train_without_dividing(settings: Settings, count: command.Count = command.nothing) -> Run:
    """Train by the loop that is easily written by hand, with its usual fault in `add_means`."""
    model, optimizer = start(settings)
    losses = []
    begin = perf_counter()
    for batch in batches(settings):
        model.zero_grad()
        losses.append(add_means(settings, model, *batch))
        optimizer.step()
        count()
    return finish(settings, model, losses, perf_counter() - begin)


def add_means(settings: Settings, model: mg.Module, x: Any, y: Any) -> float:
    """Add up the gradients of the means of k micro-batches: k times the gradient of the batch.

    Nothing fails, and the loss that is returned, the mean of the batch, is right. Dropout draws
    anew in each call: only minigrad's own steps know which samples of a batch they look at.
    """
    total = 0.0
    for part in mg.micro_batches(len(x), settings.micro_batch_size):
        loss = mg.cross_entropy(model(place(x[part], settings)), y[part]).mean()
        loss.backward()  # the fault: of even parts, each should count (loss / k).backward()
        total += loss.item() * len(y[part])
    return total / len(x)


# ---------------------------------------------------------------------- what the loops share


def start(settings: Settings) -> tuple[mg.Module, mg.Optimizer]:
    """The model and its optimizer before the first update: from one seed always the same."""
    mg.manual_seed(settings.seed)
    (_, norm), (_, optimizer) = NORMS[settings.norm], OPTIMIZERS[settings.optimizer]
    sizes, dropout = (64, *settings.hidden, 10), settings.dropout
    model = place(mg.MLP(*sizes, norm=norm, dropout=dropout, dtype=np.float64), settings)
    return model, optimizer(model.parameters(), settings.batch_size)


def batches(settings: Settings) -> Iterator[tuple[Any, Any]]:
    """Inputs and labels of each batch: all samples once an epoch, in an order that `seed` draws."""
    (x, y), rng = digits(np.float64)[0], np.random.default_rng(settings.seed)
    for _ in range(settings.epochs):
        order = rng.permutation(TRAIN_SAMPLES)
        for first in range(0, TRAIN_SAMPLES, settings.batch_size):
            rows = order[first : first + settings.batch_size]
            yield x[rows], y[rows]


def place(thing: Any, settings: Settings) -> Any:
    """An array or a model, where the work is to be done."""
    return mg.to_gpu(thing) if settings.gpu else thing


@dataclass(frozen=True)
class Run:
    """What came of one run.

    losses: of each batch, before its update. weights: all of them at the end, as one vector.
    loss: on the training set at the end, without dropout. predictions: of the test digits.
    """

    losses: np.ndarray
    weights: np.ndarray
    loss: float
    predictions: np.ndarray
    seconds: float

    @property
    def accuracy(self) -> float:
        """The share of the test digits that were read right."""
        return float(np.mean(self.predictions == digits()[1][1]))


def finish(settings: Settings, model: mg.Module, losses: list[float], seconds: float) -> Run:
    """Look at the trained model."""
    (x, y), (x_test, _) = digits(np.float64)
    model.eval()
    with mg.no_grad():
        loss = mg.cross_entropy(model(place(x, settings)), y).mean().item()
        outputs = mg.to_cpu(model(place(x_test, settings)).data)
    weights = command.vector(p.data for p in model.parameters())
    return Run(np.array(losses), weights, loss, outputs.argmax(axis=1), seconds)


# ----------------------------------------------------------------------------- the experiment


@dataclass(frozen=True)
class Result:
    """Three runs from one seed, and what was measured beside them.

    whole, split: the same training by whole batches and by micro-batches. forgot: by the loop that
    forgets to divide. gradients: of their first updates, a vector each. peaks: the bytes that one
    update of `whole` and of `split` takes at most, beside those of model and optimizer, `stays`.
    """

    settings: Settings
    whole: Run
    split: Run
    forgot: Run
    gradients: tuple[np.ndarray, np.ndarray, np.ndarray]
    peaks: tuple[int, int]
    stays: int

    @property
    def equal(self) -> bool:
        """Are the gradients of `whole` and `split` at the first update equal to rounding?"""
        return units(*self.gradients[:2]) <= ROUNDING

    @property
    def totals(self) -> tuple[int, int]:
        """The peaks, with what stays."""
        return self.peaks[0] + self.stays, self.peaks[1] + self.stays

    @property
    def too_large(self) -> float:
        """How many times too large the first gradient is where nobody divides."""
        whole, _, forgot = self.gradients
        return float(np.linalg.norm(forgot) / np.linalg.norm(whole))

    @property
    def loss_units(self) -> np.ndarray:
        """How far apart the losses of `whole` and `split` are in each update."""
        return np.array([units(a, b) for a, b in zip(self.whole.losses, self.split.losses)])


def units(a: Any, b: Any) -> float:
    """The norm of b - a in units of rounding: of 2^-53 times the norm of a."""
    difference = np.linalg.norm(np.subtract(b, a))
    return float(difference / (UNIT * np.linalg.norm(a))) if difference else 0.0


def experiment(settings: Settings, count: command.Count = command.nothing) -> Result:
    """Measure gradients, memory and training, one after the other. `count`: called each update."""
    N, b = settings.batch_size, settings.micro_batch_size
    gradients = first_gradients(settings)
    peaks, stays = (peak(settings, N), peak(settings, b)), standing(settings)
    whole, split = train(settings, N, count), train(settings, b, count)
    with np.errstate(all="ignore"):  # nothing keeps these weights from growing
        forgot = train_without_dividing(settings, count)
    return Result(settings, whole, split, forgot, gradients, peaks, stays)


def first_gradients(settings: Settings) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradient of the first update: of one batch, of micro-batches, and without dividing."""
    batch = next(batches(settings))
    whole, split, forgot = (start(settings)[0] for _ in range(3))
    mg.accumulate(whole, mg.cross_entropy, batch, settings.batch_size)
    mg.accumulate(split, mg.cross_entropy, batch, settings.micro_batch_size)
    add_means(settings, forgot, *batch)
    return command.gradient(whole), command.gradient(split), command.gradient(forgot)


def peak(settings: Settings, micro_batch_size: int) -> int:
    """The bytes that one update takes at most, beside the model, the optimizer and the data."""
    model, optimizer = start(settings)
    batch = next(batches(settings))
    for _ in range(2):  # once to warm up: what the first update allocates and keeps is not counted
        with mg.measure_memory(settings.gpu) as memory:
            mg.train_step(model, mg.cross_entropy, optimizer, batch, micro_batch_size)
    return memory.peak


def standing(settings: Settings) -> int:
    """The bytes of the model and the optimizer, which stay however the batch is split."""
    with mg.measure_memory(settings.gpu) as memory:
        _kept = start(settings)
    return memory.live


# ---------------------------------------------------------------------------------- in words


def table(result: Result) -> str:
    """What was measured, a line each: by whole batches, by micro-batches, and the difference."""
    runs, gradients = (result.whole, result.split), result.gradients[:2]
    weights, losses = [run.weights for run in runs], [run.loss for run in runs]
    right, seconds = [100 * run.accuracy for run in runs], [run.seconds for run in runs]
    changed = runs[0].predictions != runs[1].predictions
    otherwise = f"{changed.sum()} of {changed.size} read otherwise"
    peaks, totals = np.divide(result.peaks, 1e6), np.divide(result.totals, 1e6)

    def both(cell: str, values: Iterable[Any]) -> list[str]:
        return [cell.format(value) for value in values]

    def norms(vectors: Iterable[Any]) -> list[str]:
        return both("{:.4f}", map(np.linalg.norm, vectors))

    rows = [
        ("", *result.settings.columns, "difference"),
        ("gradient of the first update, norm", *norms(gradients), apart(*gradients)),
        ("weights at the end, norm", *norms(weights), apart(*weights)),
        ("training loss at the end", *both("{:.4f}", losses), apart(*losses)),
        ("test accuracy at the end", *both("{:.1f} %", right), otherwise),
        ("peak memory of one update", *both("{:.2f} MB", peaks), less(*peaks)),
        ("with model and optimizer", *both("{:.2f} MB", totals), less(*totals)),
        (f"time of {len(runs[0].losses)} updates", *both("{:.2f} s", seconds), "as it was here"),
    ]
    wide = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        f"{name:<{wide[0]}}  {a:>{wide[1]}}  {b:>{wide[2]}}   {apart}" for name, a, b, apart in rows
    )


def apart(a: Any, b: Any) -> str:
    """How far b is from a: in units of rounding, or as a part of a where rounding is no reason."""
    n = units(a, b)
    return f"{n:.1f} units of rounding" if n <= ROUNDING else f"{percent(n * UNIT)} of it"


def less(a: float, b: float) -> str:
    """How many times less b is than a."""
    return f"{a / b:.1f} times less"


def percent(share: float) -> str:
    """0.5 is '50.0 %'; what would be '0.0 %' is written out."""
    return f"{100 * share:.1f} %" if share >= 5e-4 or share == 0 else f"{share:.1e}"


def opening(settings: Settings) -> str:
    """What is about to be done."""
    sizes = "-".join(str(size) for size in (64, *settings.hidden, 10))
    dropout = f", dropout {settings.dropout:g}" if settings.dropout else ""
    return (
        f"{TRAIN_SAMPLES:,} handwritten digits; MLP {sizes}{NORMS[settings.norm][0]}{dropout}; "
        f"float64; {OPTIMIZERS[settings.optimizer][0]}; {settings.updates} updates; "
        f"seed {settings.seed}"
    )


def conclusions(result: Result) -> list[str]:
    """What the table says, in sentences."""
    s = result.settings
    said = equality(result)
    if s.parts > 1:
        said.append(fault(result))
    whole, split = result.peaks
    if whole < 0.95 * s.parts * split:
        said.append(
            f"Peak memory is {less(whole, split)} beside what stays, the model and the optimizer, "
            f"and {less(*result.totals)} with it; not {s.parts} times, because a layer's gradient "
            "and the optimizer's scratch do not depend on the split."
        )
    return said


def equality(result: Result) -> list[str]:
    """Are the first two runs equal to rounding, and if not, why?"""
    s = result.settings
    if result.equal:
        said = [
            f"The gradient of {s.many} is that of {s.one}: equal to rounding. One unit of rounding "
            "is 2^-53 of the norm of what is compared, the most by which one operation in float64 "
            "moves its result."
        ]
        if s.norm == "batch" and s.parts > 1:
            said.append(
                "BatchNorm is standardized by the mean and variance of the whole batch, which "
                f"takes {2 * len(s.hidden) + 1} passes over it; what other libraries do is --norm "
                "micro, and differs."
            )
        if units(result.whole.weights, result.split.weights) > ROUNDING:
            grew = "Rounding grew over the updates: equal gradients do not promise equal weights."
            said.append(grew)
        return said
    off = percent(units(*result.gradients[:2]) * UNIT)
    return [
        f"The two runs differ: the gradient of {s.many} is not that of {s.one}, it is off by {off} "
        "of its norm, which is not rounding.",
        "The reason is BatchNorm: each micro-batch is standardized by its own mean and variance, "
        "so that a sample's output depends on which others are beside it. With --norm batch it is "
        "standardized by those of the whole batch, and is equal."
        if s.couples
        else "It must be equal to rounding: this is a fault of minigrad, please report it.",
    ]


def fault(result: Result) -> str:
    """What comes of the loop that forgets to divide, and what hides it."""
    said = (
        f"The loop that forgets to divide has a gradient {result.too_large:.1f} times too large at "
        f"its first update; its training loss ends at {result.forgot.loss:.5g}, its test accuracy "
        f"at {percent(result.forgot.accuracy)}."
    )
    if result.settings.optimizer != "sgd":
        return (
            f"{said} Adam nearly hides the fault, because it divides each gradient by its own "
            "usual size: look with --optimizer sgd."
        )
    if result.settings.batch_norm:
        return (
            f"{said} BatchNorm partly hides the fault, because it undoes the growth of the weights "
            "before it, and the larger they are the less a step turns them: look with --norm none."
        )
    return said


# --------------------------------------------------------------------------------- in a figure


def figure(result: Result) -> Any:
    """The losses of the three runs, how far the first two are apart, and their memory."""
    s = result.settings
    if result.equal:
        title = f"{s.many} train as {s.one}: equal to rounding"
    else:
        title = f"{s.many} do not train as {s.one}"
        title += " with BatchNorm" if s.batch_norm else ""
    page = plotting.page(height=4.8)
    page.suptitle(title, x=0.012, ha="left")
    grid = page.add_gridspec(2, 2, width_ratios=(3.7, 1), height_ratios=(2, 1), wspace=0.06)
    top = page.add_subplot(grid[0, 0])
    draw_losses(top, result)
    draw_differences(page.add_subplot(grid[1, 0], sharex=top), result)
    draw_memory(page.add_subplot(grid[:, 1]), result)
    return page


def draw_losses(axes: Any, result: Result) -> None:
    """Three curves: a broad one, one on top of it, and the one that goes elsewhere."""
    s, whole, forgot = result.settings, result.whole.losses, result.forgot.losses
    update = np.arange(1, s.updates + 1)
    few = s.updates <= 200
    axes.set_title("loss of each batch, before its update")
    axes.plot(update, whole, color=plotting.BLUE, lw=5, label=s.one)
    axes.plot(update, result.split.losses, color=plotting.ORANGE, ls=(0, (3, 2)), label=s.many)
    if s.parts > 1:
        style = {"color": plotting.RED, "lw": 1.2, "ls": ":", "marker": "o" if few else ""}
        axes.plot(update, forgot, **style, label="the loop that forgets to divide")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    if not np.all(forgot < 1000 * whole.max()):
        axes.set_ylim(top=1000 * whole.max())  # it leaves the picture: the others stay in sight
    axes.tick_params(labelbottom=False)
    axes.legend()


def draw_differences(axes: Any, result: Result) -> None:
    """How far the first two losses are apart, update by update."""
    differences = result.loss_units
    update = np.arange(1, len(differences) + 1)
    axes.set_title("difference of the first two, in units of rounding ($2^{-53}$ of the loss)")
    axes.plot(update, differences, color=plotting.PURPLE, ls="", marker="o")
    axes.set_xlabel("update")
    if result.equal:
        axes.vlines(update, 0, differences, color=plotting.PURPLE, lw=1)
        axes.set_ylim(-0.06 * max(4, differences.max()), 1.15 * max(4, differences.max()))
    else:
        axes.set_yscale("log")


def draw_memory(axes: Any, result: Result) -> None:
    """Two bars, to the digits that the table prints."""
    sizes = [round(peak / 1e6, 2) for peak in result.peaks]
    axes.set_title("peak memory\nof one update")
    bars = axes.bar(
        result.settings.columns,
        sizes,
        width=0.7,
        color=[plotting.BLUE, plotting.ORANGE],
        edgecolor="white",
        hatch=["", "//"],
    )
    less = f"{result.peaks[0] / result.peaks[1]:.1f} times\nless\n"
    axes.bar_label(bars, [f"{sizes[0]:.2f} MB", f"{less}{sizes[1]:.2f} MB"], padding=3)
    axes.margins(y=0.08)
    axes.set_yticks([])
    axes.grid(False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="x", length=0)


# ----------------------------------------------------------------------------- the subcommand


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `minigrad demo`."""

    def add(option: str, kind: Callable[[str], Any], metavar: str, help: str, **more: Any) -> None:
        help += " (%(default)s)" if "(" not in help else ""
        parser.add_argument(option, type=kind, metavar=metavar, help=help, **more)

    integer = command.integer
    small, large = (integer(1, TRAIN_SAMPLES, example=size) for size in (32, 256))
    add("--batch-size", large, "N", "samples an update")
    add("--micro-batch-size", small, "B", "samples at a time (an eighth of the batch: 32)")
    width = integer(1, 10_000, example=256)
    add("--hidden", width, "WIDTH", "widths of the hidden layers (256)", nargs="+")
    norms = "after each hidden layer; batch, micro and running: BatchNorm, by these statistics"
    for option, names, what in (
        ("--norm", NORMS, norms),
        ("--optimizer", OPTIMIZERS, "what makes the updates"),
    ):
        add(option, command.choice(names), command.braces(names), what)
    add("--dropout", command.probability, "P", "probability of dropout after each hidden layer")
    add("--epochs", integer(1, 10_000, example=10), "E", "how often each sample is seen")
    seed = integer(0, 2**64 - 1, example=0)
    add("--seed", seed, "S", "of initial weights, order and dropout")
    parser.add_argument("--gpu", action="store_true", help="train on the GPU, with CuPy")
    command.add_out(parser, "demo.svg")
    parser.set_defaults(**asdict(Settings()))
    parser.set_defaults(micro_batch_size=None)  # an eighth of the batch size, whatever that is


def run(args: argparse.Namespace) -> int:
    """`minigrad demo`. Returns 0, or 1 if micro-batches are not equal where they must be.

    Raises argparse.ArgumentError for arguments that do not go together.
    """
    settings = checked(args)
    command.check_out(args.out)
    print(textwrap.fill(opening(settings), 100), flush=True)
    with (
        command.one_thread(),
        command.progress(3 * settings.updates) as count,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", mg.NonFiniteWarning)
        try:
            result = experiment(settings, count)
        except mg.NonFiniteWarning as warning:
            raise command.refusal(
                f"--optimizer is {settings.optimizer!r} and does not get along with these sizes "
                f"({str(warning).split(',')[0]}), expected finite losses; try --optimizer adam"
            ) from None
    print("", table(result), "", sep="\n")
    for sentence in conclusions(result):
        print(textwrap.fill(sentence, 90, break_on_hyphens=False))
    command.draw(lambda: figure(result), args.out)
    return 0 if result.equal or settings.couples else 1


def checked(args: argparse.Namespace) -> Settings:
    """The settings, if they go together."""
    N, b = args.batch_size, args.micro_batch_size or -(-args.batch_size // 8)
    chosen = vars(args) | {"micro_batch_size": b, "hidden": tuple(args.hidden)}
    settings = Settings(**{field.name: chosen[field.name] for field in fields(Settings)})
    if b > N:
        raise command.refusal(
            f"--micro-batch-size is {b}, expected at most the {N} of --batch-size; give a smaller "
            "one, or larger batches"
        )
    if settings.norm == "group" and any(width % 4 for width in settings.hidden):
        raise command.refusal(
            f"--hidden is {' '.join(map(str, settings.hidden))}, expected multiples of 4 for the 4 "
            "groups of --norm group; try "
            + " ".join(str(-(-width // 4) * 4) for width in settings.hidden)
        )
    last = TRAIN_SAMPLES % N or N  # samples in the last batch of an epoch
    alone = b == 1 or 1 in {n % size for n in (N, last) for size in (N, b)}
    if settings.batch_norm and alone:
        raise command.refusal(
            f"--batch-size is {N} and --micro-batch-size {b}, which leaves one sample alone, "
            f"expected two or more in a micro-batch for --norm {settings.norm}; try 256 and 32"
        )
    if settings.gpu and not mg.available():
        raise command.refusal(
            "--gpu was given but no GPU was found, expected CuPy and an NVIDIA GPU; install "
            "minigrad[cuda13] or minigrad[cuda12], or leave --gpu out"
        )
    return settings
