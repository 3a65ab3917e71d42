"""What the commands share: arguments that explain themselves, progress, and where a figure goes.

Each thing that a user can set right is refused in one sentence: what was given, what was expected,
the fix. tqdm, threadpoolctl and Matplotlib are used where they are installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

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


Count: TypeAlias = Callable[[], Any]  # is called after each update


def nothing() -> None:
    """Counts no update."""


@contextmanager
def progress(total: int) -> Iterator[Count]:
    """A progress bar, where somebody looks and tqdm is there; yields what counts an update."""
    tqdm = optional("tqdm") if sys.stderr.isatty() else None
    if tqdm is None:
        yield nothing
        return
    with tqdm.tqdm(total=total, unit=" updates", leave=False) as bar:
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


# ----------------------------------------------------------------------------------------- figures


def check_out(path: Path) -> None:
    """Refuse, before the work is done, what cannot be written or is somebody else's."""
    if path.suffix.lower() not in plotting.SUFFIXES:
        raise refusal(f"--out is {str(path)!r}, expected a name that ends in .svg or .png; add it")
    if not path.parent.is_dir():
        raise refusal(
            f"--out is {str(path)!r}, expected a folder that exists; make {path.parent} first"
        )
    if path.is_dir() or (path.exists() and not plotting.is_ours(path)):
        raise refusal(
            f"--out is {str(path)!r}, expected a new file or a figure of minigrad, which this is "
            "not; choose another name"
        )


def draw(make: Callable[[], Any], path: Path) -> None:
    """Save the figure that `make` draws, and say where it is, or what it needs."""
    if plotting.available():
        try:
            plotting.save(make(), path)
        except OSError as error:
            raise refusal(
                f"--out is {str(path)!r} and cannot be written ({error.strerror}), expected a "
                "file in a folder of yours; choose another"
            ) from None
        print(f"The figure is in {path}.")
    else:
        print(
            'The figure needs Matplotlib: pip install "minigrad[lessons]", or in a clone '
            'pip install -e ".[lessons]".'
        )
