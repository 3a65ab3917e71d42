"""What the commands share: arguments that explain themselves, progress, and where a file goes.

Each thing that a user can set right is refused in one sentence: what was given, what was expected,
the fix. tqdm, threadpoolctl and Matplotlib are used where they are installed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import minigrad as mg
from minigrad import plotting

# --------------------------------------------------------------------------------------- arguments


def refusal(sentence: str) -> argparse.ArgumentError:
    """What was given, what was expected, and the fix."""
    return argparse.ArgumentError(None, sentence)


def integer(low: int, high: int, example: int) -> Callable[[str], int]:
    """The type of an argument: an integer from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if low <= value <= high:
            return value
        raise argparse.ArgumentTypeError(
            f"is {text!r}, expected an integer from {low} to {high}; try {example}"
        )

    return parse


def probability(text: str) -> float:
    """The type of an argument: a number from 0 to below 1."""
    try:
        value = float(text)
    except ValueError:
        value = 1.0
    if 0 <= value < 1:
        return value
    raise argparse.ArgumentTypeError(
        f"is {text!r}, expected a number from 0 to below 1; try 0.1, or leave it out"
    )


def file(text: str) -> Path:
    """The type of an argument: the name of a file."""
    if text:
        return Path(text)
    raise argparse.ArgumentTypeError("is '', expected the name of a file; give one")


def choice(names: Iterable[str]) -> Callable[[str], str]:
    """The type of an argument: one of these names."""

    def parse(text: str) -> str:
        if text in names:
            return text
        expected = ", ".join(names)
        raise argparse.ArgumentTypeError(f"is {text!r}, expected one of {expected}; choose one")

    return parse


def braces(names: Iterable[str]) -> str:
    """'{none,batch}', as it stands in the help."""
    return "{" + ",".join(names) + "}"


# ---------------------------------------------------------------------------------- while it works


Count: TypeAlias = Callable[[], Any]  # is called after each update, or whatever takes its time


def nothing() -> None:
    """Counts nothing."""


@contextmanager
def progress(total: int, unit: str = "updates") -> Iterator[Count]:
    """A progress bar, where somebody looks and tqdm is there; yields what counts a unit."""
    tqdm = optional("tqdm") if sys.stderr.isatty() else None
    if tqdm is None:
        yield nothing
        return
    with tqdm.tqdm(total=total, unit=f" {unit}", leave=False) as bar:
        yield bar.update


def one_thread() -> AbstractContextManager[Any]:
    """Products by one thread inside, where threadpoolctl is there.

    A second thread gains nothing at these sizes, and loses much if other programs use the cores.
    """
    threadpoolctl = optional("threadpoolctl")
    return threadpoolctl.threadpool_limits(1) if threadpoolctl else nullcontext()


def optional(name: str) -> Any:
    """The module of that name, or None where it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        return None


# ------------------------------------------------------------------------- the gradient as a vector


def vector(arrays: Iterable[Any]) -> np.ndarray:
    """All elements of all arrays, side by side, on the host."""
    return np.concatenate([mg.to_cpu(array).ravel() for array in arrays])


def gradient(model: mg.Module) -> np.ndarray:
    """The gradient of all parameters, as one vector."""
    return vector(p.grad for p in model.parameters())


# ------------------------------------------------------------------------------------------- files


def add_out(
    parser: argparse.ArgumentParser, name: str, what: str = "the figure", option: str = "--out"
) -> None:
    """An option that says where a figure goes: to the file `name`, if nothing is said."""
    help = f"where {what} goes, .svg or .png (%(default)s)"
    parser.add_argument(option, metavar="FILE", type=file, default=Path(name), help=help)


def check_out(
    path: Path,
    option: str = "--out",
    suffixes: Sequence[str] = plotting.SUFFIXES,
    ours: Callable[[Path], bool] = plotting.is_ours,
) -> None:
    """Refuse, before the work is done, what cannot be written or is somebody else's."""
    given, folder = f"{option} is {str(path)!r}, expected", path.parent
    if path.suffix.lower() not in suffixes:
        example = (path.stem or option.strip("-")) + suffixes[0]
        raise refusal(
            f"{given} a name that ends in {' or '.join(suffixes)}; give another name, such as "
            f"{example}"
        )
    if not folder.is_dir():
        raise refusal(f"{given} a folder that exists; make {folder} first")
    if path.is_dir() or (path.exists() and not ours(path)):
        raise refusal(
            f"{given} a new file or one of minigrad's own, which this is not; choose another name"
        )
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise refusal(f"{given} a file that may be written, which this may not; choose another")


def write(save: Callable[[], Any], path: Path, option: str = "--out", what: str = "figure") -> None:
    """Write a file, by `save`, and say where it is; what the system refuses is one sentence."""
    try:
        save()
    except OSError as error:
        raise refusal(
            f"{option} is {str(path)!r} and cannot be written ({error.strerror}), expected a file "
            "in a folder of yours; choose another"
        ) from None
    print(f"The {what} is in {path}.")


def draw(make: Callable[[], Any], path: Path, option: str = "--out") -> bool:
    """Save the figure that `make` draws, and say where it is, or what it needs.

    Returns whether Matplotlib is there: what that needs is said once.
    """
    if plotting.available():
        write(lambda: plotting.save(make(), path), path, option)
        return True
    print(
        'The figure needs Matplotlib: pip install "minigrad[lessons]", or in a clone '
        'pip install -e ".[lessons]".'
    )
    return False
