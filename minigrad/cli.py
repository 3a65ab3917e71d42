"""The command `minigrad`: finds the subcommand, and says in one sentence what goes wrong.

A subcommand is a module with `add_arguments(parser)` and `run(args) -> exit code`, so that its
arguments stand next to its code. `run` raises argparse.ArgumentError for what the user can set
right: what was given, what was expected, the fix.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import minigrad as mg
from minigrad import course, demo, four_ways, lessons, marking, noise_on_digits, rates

COMMANDS = {
    "demo": (demo, "train on real digits by whole batches and by micro-batches, and compare"),
    "batchnorm": (four_ways, "compare four ways to do BatchNorm in micro-batches with one batch"),
    "noise": (
        noise_on_digits,
        "how far from a root, and from the whole gradient, noisy looks are: predicted and measured",
    ),
    "rates": (rates, "train with larger and larger batches: at which rate, and does it pay"),
    "lessons": (lessons, "run the lessons, build their notebooks, or check them"),
    "course": (course, "write the course into a folder, for a student or an instructor"),
    "check": (marking, "grade an exercise, and say why an answer is wrong"),
}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one sentence, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        # argparse prefixes what a type says: "argument --epochs: is '0', expected ...; give ..."
        sentence = message.removeprefix("argument ").replace(": is ", " is ", 1)
        if ";" not in sentence:  # argparse's own errors name no fix
            sentence += f"; see {self.prog} --help"
        self.exit(2, f"{self.prog}: {sentence}\n")


def parser() -> Parser:
    """The parser of the whole command line."""
    top = Parser(
        prog="minigrad",
        description="Gradient accumulation, computed by a small autograd engine in plain NumPy.",
        epilog="minigrad COMMAND --help says what a command takes.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"minigrad {mg.__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    for name, (code, purpose) in COMMANDS.items():
        one = commands.add_parser(
            name,
            help=purpose,
            description=f"{purpose[0].upper()}{purpose[1:]}.",
            allow_abbrev=False,
        )
        code.add_arguments(one)
        one.set_defaults(run=code.run, parser=one)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 2 for a bad argument, 130 after Ctrl-C."""
    try:
        code = _run(parser(), argv)
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # how argparse ends --help, --version and errors
        return stop.code if isinstance(stop.code, int) else 0
    except MemoryError:
        print("minigrad: there is not enough memory for these sizes; try less", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nminigrad: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `minigrad demo | head -1`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(top: Parser, argv: Sequence[str] | None) -> int:
    args, unknown = top.parse_known_args(argv)
    chosen: Parser = getattr(args, "parser", top)
    if unknown:
        chosen.error(f"{unknown[0]!r} was not understood")
    if chosen is top:
        top.print_help()
        return 0
    try:
        return args.run(args)
    except argparse.ArgumentError as error:
        chosen.error(str(error))
