"""The points of an answered exercise: `minigrad check FILE`, and why they were not all given.

The cells that a student cannot change are taken from the exercise's source, as nbgrader does it,
and run in order with the student's answers in place. An installed package holds no sources: then
the cells of the file itself are run, which say right or wrong but give no points.
"""

from __future__ import annotations

import _thread
import argparse
import ast
import contextlib
import dis
import io
import re
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from minigrad.checking import SAVED, THERE, WrongAnswer
from minigrad.command import refusal
from minigrad.exercises import (
    STUB,
    TEXT_STUB,
    drawn,
    in_a_line,
    is_text,
    read,
    sources,
    variant_of,
)

READS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
LIMIT = 30  # seconds that a cell may take, as in nbgrader


@dataclass
class Result:
    """What came of one graded cell. points: None if a person gives them."""

    name: str
    points: float | None
    out_of: float
    said: str = ""


def answers_in(cells: Iterable[Any]) -> dict[str, str]:
    """What stands in each answer cell, by its id."""
    found = {}
    for cell in cells:
        mark = _mark(cell)
        name = cell.metadata.get("answer") or cell.metadata.get("manual")
        if mark.get("solution"):
            name = mark.get("grade_id")
        if isinstance(name, str):
            found[name] = cell.source
    return found


def added_in(cells: Iterable[Any]) -> dict[str, list[str]]:
    """The cells of code that a student added, by the id of the answer that they stand before."""
    found: dict[str, list[str]] = {}
    waiting: list[str] = []
    for cell in cells:
        mark = _mark(cell)
        if mark.get("solution"):
            found[str(mark.get("grade_id"))], waiting = waiting, []
        elif not is_text(cell) and not mark.get("grade_id"):
            waiting.append(cell.source)
    return found


def _mark(cell: Any) -> dict[str, Any]:
    """What nbgrader wrote into a cell: nothing, if somebody put something else there."""
    mark = cell.metadata.get("nbgrader")
    return mark if isinstance(mark, dict) else {}


def grade(
    cells: list[Any], answers: dict[str, str], added: dict[str, list[str]] | None = None
) -> list[Result]:
    """The points of each answer: the source's cells run in order, with these answers in place.

    cells: of one variant, of the source. answers: by id; one that is missing is taken as not given.
    added: cells that the student put before an answer. What the source's own cells have set and
    read again, and its solutions do not set, is set again after each answer: no answer can replace
    what it is compared with. (One that changes the library itself, in this process, can: read what
    looks odd.) Raises RuntimeError if the exercise itself is at fault.
    """
    return [*each_graded(cells, answers, added)]


def each_graded(
    cells: list[Any], answers: dict[str, str], added: dict[str, list[str]] | None = None
) -> Iterator[Result]:
    """As `grade`, one result after the other: each as soon as it is known."""
    names: dict[str, Any] = {"__name__": "__main__"}
    free = {name for cell in cells if "answer" in cell.metadata for name in set_by(cell.source)}
    own = [c for c in cells if not is_text(c) and not {"answer", "wrong"} & c.metadata.keys()]
    kept = {name for cell in own for name in read_by(cell.source)} - free
    fixed: dict[str, Any] = {}
    clashes: dict[str, str] = {}
    errors: dict[str, str] = {}
    answered = False
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for cell in cells:
            word = cell.metadata
            if "manual" in word:
                yield _by_hand(word, answers)
            if is_text(cell) or "wrong" in word:
                continue
            if "answer" in word:
                answered, name = True, word["answer"]
                for source in (added or {}).get(name, ()):
                    run_cell(source, names)
                _, _, error = run_cell(answers.get(name, "\n".join(STUB)), names)
                replaced = [n for n in fixed if n in names and names[n] is not fixed[n]]
                names.update(fixed)
                if error:
                    errors[name] = error
                elif replaced:
                    what = " and ".join(f"`{n}`" for n in replaced)
                    clashes[name] = f"your cell sets {what}, which the exercise uses"
                continue
            value, said, error = run_cell(cell.source, names)
            fixed |= {n: names[n] for n in set_by(cell.source) & kept if n in names}
            name = word.get("check") or word.get("test")
            if error and name:
                errors.setdefault(name, error)
            if "test" in word:
                result = _result(name, value, word["points"], said, error, errors.get(name))
                if result.points != result.out_of and name in clashes:
                    result.said += f" ({clashes[name]}: take another name)"
                yield result
            elif error and not name and not answered:
                raise RuntimeError(f"a cell of the exercise failed: {error}\n{cell.source}")


def set_by(source: str) -> set[str]:
    """The names that a cell sets, outside of its functions: variables, functions, imports."""
    found: set[str] = set()
    stack: list[ast.AST] = [*ast.parse(source).body]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name.partition(".")[0])
        stack += ast.iter_child_nodes(node)
    return found


def read_by(source: str) -> set[str]:
    """The names that a cell takes from elsewhere: read before it sets them, or by its functions."""
    code = compile(source, "<cell>", "exec")
    found, done = set(), set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            done.add(step.argval)
        elif step.opname == "LOAD_NAME" and step.argval not in done:
            found.add(step.argval)
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    for one in inner:  # grows: functions in functions
        read = {s.argval for s in dis.get_instructions(one) if s.opname in READS}
        at_once = one.co_name in COMPREHENSIONS
        found |= read - done if at_once else read
        inner += [deeper for deeper in one.co_consts if isinstance(deeper, CodeType)]
    return found


def _by_hand(word: Any, answers: dict[str, str]) -> Result:
    """The result of a cell that a person grades: 0 if there is nothing to read."""
    empty = answers.get(word["manual"], TEXT_STUB).strip() in ("", TEXT_STUB)
    said = "not answered yet" if empty else "a person reads it"
    return Result(word["manual"], 0 if empty else None, word["points"], said)


def _result(
    name: str, value: Any, out_of: Any, said: str, error: str | None, first_error: str | None
) -> Result:
    if error:
        return Result(name, 0, out_of, first_error or error)
    if not isinstance(value, int | float) or not 0 <= value <= out_of:
        raise RuntimeError(f"the tests of {name} end in {value!r}, expected 0 to {out_of} points")
    lines = said.strip().splitlines()
    right = _not_judged(said, "predicted; the run tells") or "right"
    return Result(name, value, out_of, lines[-1] if value < out_of and lines else right)


def _not_judged(printed: str, saved: str) -> str | None:
    """What to say of an answer that was only looked for, or None if it was judged."""
    lines = printed.splitlines()
    if any(line.startswith(THERE) for line in lines):
        return "there; a person reads it"
    return saved if any(line.startswith(SAVED) for line in lines) else None


def run_cell(source: str, names: dict[str, Any]) -> tuple[Any, str, str | None]:
    """Run a cell as Jupyter does: (value of its last line, what it printed, its error or None).

    Lines for Jupyter itself, such as `%matplotlib inline` and `!ls`, are left out. After LIMIT
    seconds a cell is interrupted, between two steps of Python.
    """
    source = re.sub(r"^(?=%{1,2}[a-z]|!)", "# ", source, flags=re.MULTILINE)
    printed, value, failure = io.StringIO(), None, None
    late = threading.Event()
    try:
        with _limited(late):
            value = _value(source, names, printed)
    except KeyboardInterrupt:  # the only one that is not the answer's
        if not late.is_set():
            raise
    except WrongAnswer as answer:
        failure = str(answer)
    except NotImplementedError:
        failure = "not answered yet"
    except BaseException as error:
        failure = f"{type(error).__name__}: {in_a_line(error)}"
    if late.is_set():
        failure = f"the cell did not end in {LIMIT} s, in which each cell must"
    return value, "" if printed.closed else printed.getvalue(), failure


def _value(source: str, names: dict[str, Any], printed: io.StringIO) -> Any:
    body = ast.parse(source, "<cell>").body
    last: Any = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
        if last is not None:
            return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)


@contextlib.contextmanager
def _limited(late: threading.Event) -> Iterator[None]:
    """Interrupt what is done inside, as Ctrl-C would, after LIMIT seconds, and set `late`."""
    if threading.current_thread() is not threading.main_thread():  # which alone can be interrupted
        yield
        return

    def interrupt() -> None:
        late.set()
        _thread.interrupt_main()

    timer = threading.Timer(LIMIT, interrupt)
    timer.daemon = True
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # an interrupt that is on its way arrives here, and not later
        signal.signal(signal.SIGINT, before)


# ----------------------------------------------------------------------- the command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `minigrad check`."""
    parser.add_argument("file", metavar="FILE", help="an exercise: a notebook, or a .py of cells")


def run(args: argparse.Namespace) -> int:
    """Grade a file and print why points are missing. Exit code 0 if none is, 1 if some are."""
    try:
        given = read(args.file)
    except OSError as error:
        what = (
            f"{args.file} cannot be read ({error.strerror}), expected the notebook of an exercise"
        )
        raise refusal(f"{what}; see `minigrad course DIR`") from error
    except ValueError as error:
        raise refusal(f"{error}; give the notebook of an exercise") from error
    except ImportError as error:
        what = f"{error.name} is not installed, and reading an exercise needs it"
        raise refusal(f"{what}; python -m pip install jupytext") from error
    answers = answers_in(given)
    if not answers:
        what = f"{args.file} holds no cell with an answer, expected an exercise"
        lost = "some editors remove nbgrader's marks from its cells"
        raise refusal(
            f"{what} (if it is one, {lost}); paste the answers into a fresh copy, "
            "which `minigrad course DIR` writes"
        )
    if not sources():
        return check_alone(given)
    source = source_of(answers)
    if source is None:
        what = f"{args.file} answers {next(iter(answers))!r}, which no exercise here asks for"
        raise refusal(f"{what}; `minigrad course DIR` writes those there are")
    results = []
    for result in each_graded(drawn(read(source), variant_of(given)), answers, added_in(given)):
        results.append(result)
        points = (
            "  by a person" if result.points is None else f"{result.points:g} of {result.out_of:g}"
        )
        print(f"{result.name:<24} {points:<12} {result.said}", flush=True)
    earned = sum(result.points or 0 for result in results)
    by_hand = sum(result.out_of for result in results if result.points is None)
    machine = sum(result.out_of for result in results) - by_hand
    more = f", and up to {by_hand:g} more by a person" if by_hand else ""
    print(f"{earned:g} of {machine:g} points{more}")
    return int(earned < machine)


def source_of(answers: dict[str, str]) -> Path | None:
    """The source of the exercise that asks for one of these answers."""
    return next((path for path in sources() if answers.keys() & answers_in(read(path))), None)


def check_alone(cells: list[Any]) -> int:
    """Run a file as it is, and say of each check whether it is content."""
    print("the sources of the exercises are not installed: only the checks in the file are run")
    names: dict[str, Any] = {"__name__": "__main__"}
    errors: dict[str, str] = {}
    right: list[bool] = []
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        for cell in cells:
            if is_text(cell):
                continue
            name = str(_mark(cell).get("grade_id", ""))
            answer = name.removesuffix("-check")
            _, said, error = run_cell(cell.source, names)
            if error:
                errors.setdefault(answer, error)
            if answer != name:
                right_word = _not_judged(said, "saved, right or wrong") or "right"
                print(f"{answer:<24} {errors.get(answer, right_word)}", flush=True)
                right.append(answer not in errors)
    if not right:
        print("the file holds no check; `minigrad course DIR` writes the exercise anew")
    return int(not right or not all(right))
