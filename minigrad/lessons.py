"""`minigrad lessons`: run the lessons; build their notebooks; check that these are true.

A lesson is a script of cells, lessons/NN_name.py. Its notebook is built from it by running it, and
committed with what it printed and drew. `--check` builds it again and compares: a cell that is
another, a number that changed, another picture, a missing output are each a difference. The
student's copies of the exercises are built and compared too; they are not run. One that holds
answers is somebody's work: it is not written over.

Two tags on a cell loosen the comparison: `volatile` measures the machine it runs on, and its output
may be any; `rounding` draws residues of rounding, and its picture may be another.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from base64 import b64decode
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from minigrad import exercises
from minigrad.exercises import build_exercise
from minigrad.marking import added_in, answers_in

NEEDED = ("jupytext", "nbclient", "ipykernel", "matplotlib", "tqdm")
TIMEOUT = 120  # seconds that one cell may take
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")}
CLOSE = 1e-3  # of a number: processors differ in the last digits of float32
SAME_PICTURE = 1.0  # root mean square of the difference in grey levels, of 255
KEEP = "move it to another folder, or work in the one that `minigrad course DIR` writes"


# ------------------------------------------------------------------------------- building


def build(path: Path, begin: Callable[..., Any] = lambda number: None) -> Any:
    """The notebook of a lesson, run from a fresh kernel in an empty folder, on one thread.

    begin: is called with the number of each cell of code before it is run. Raises nbclient's
    CellExecutionError if one fails.
    """
    from nbclient import NotebookClient

    made = exercises.notebook(exercises.read(path), minigrad={"matplotlib": version("matplotlib")})
    with tempfile.TemporaryDirectory() as empty:
        NotebookClient(
            made,
            extra_arguments=["--log-level=ERROR"],  # its warning about the network is no news here
            timeout=TIMEOUT,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": empty}},
            on_cell_start=lambda cell, cell_index: begin(cell_index),
        ).execute(env={**os.environ, **ONE_THREAD})
    made.metadata["language_info"] = exercises.LANGUAGE  # the kernel adds its version
    for cell in made.cells:
        if not exercises.is_text(cell):
            cell.outputs = _joined(cell.outputs)
    return made


def _joined(outputs: list[Any]) -> list[Any]:
    """Outputs in which what was printed in pieces is one piece: the pieces depend on timing."""
    joined: list[Any] = []
    for output in outputs:
        last: Any = joined[-1] if joined else {}
        if output.output_type == "stream" and last.get("name") == output.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def answered(file: Path, copy: Any) -> list[str]:
    """The ids of the answers that a notebook holds, where the student's copy has none.

    Docstrings are not compared: an older copy may have others. Nothing is found in a file that is
    not there or cannot be read.
    """
    try:
        cells = exercises.read(file)
    except (OSError, ValueError):
        return []
    empty, given, added = answers_in(copy.cells), answers_in(cells), added_in(cells)
    return [
        name
        for name, text in given.items()
        if name in empty and (_bare(text) != _bare(empty[name]) or added.get(name))
    ]


def _bare(text: str) -> str:
    return re.sub(r'""".*?"""', "", text, flags=re.DOTALL).strip()


# ------------------------------------------------------------------------------ comparing


def differences(committed: Any, built: Any) -> list[str]:
    """What is different in two notebooks of one lesson: a sentence each, none if they agree."""
    if len(committed.cells) != len(built.cells):
        return [f"it has {len(committed.cells)} cells, its source {len(built.cells)}"]
    found = []
    if committed.metadata.get("language_info") != built.metadata["language_info"]:
        found.append("its metadata are not those of a built notebook")
    version_of = [n.metadata.get("minigrad", {}).get("matplotlib") for n in (committed, built)]
    for number, (old, new) in enumerate(zip(committed.cells, built.cells)):
        tags = new.metadata.get("tags", [])
        pictures = version_of[0] == version_of[1] and "rounding" not in tags
        reason = _cell_differs(old, new, pictures, volatile="volatile" in tags)
        if reason:
            found.append(f"cell {number}: {reason}")
    return found


def _cell_differs(old: Any, new: Any, pictures: bool, volatile: bool) -> str | None:
    if (old.cell_type, old.source, old.metadata, old.id) != (
        new.cell_type,
        new.source,
        new.metadata,
        new.id,
    ):
        return "it is not the cell of the source"
    if exercises.is_text(old):
        return None
    if old.execution_count != new.execution_count:
        return "it was not run in order"
    if len(old.outputs) != len(new.outputs):
        return f"it has {len(old.outputs)} outputs, expected {len(new.outputs)}"
    if volatile:
        return None
    for before, after in zip(old.outputs, new.outputs):
        a, b = _contents(before), _contents(after)
        if a.keys() != b.keys():
            return f"it holds {', '.join(a) or 'nothing'}, expected {', '.join(b)}"
        for kind in a:
            if kind == "image/png":
                far = pictures and picture_distance(a[kind], b[kind])
                if far > SAME_PICTURE:
                    return f"its picture is another, {far:.1f} grey levels apart"
            elif not same_text(a[kind], b[kind]):
                return f"its output is\n{a[kind]}\nexpected\n{b[kind]}"
    return None


def _contents(output: Any) -> dict[str, str]:
    """The contents of an output by kind: what it printed, or its data by media type."""
    if output.output_type == "stream":
        return {output.name: output.text}
    return {**output.get("data", {}), "alt": str(output.get("metadata", ""))}


NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")


def same_text(a: str, b: str) -> bool:
    """Are two texts equal, but for the last digits of decimal numbers in them?"""
    if NUMBER.sub("#", " ".join(a.split())) != NUMBER.sub("#", " ".join(b.split())):
        return False
    return all(map(_same_number, NUMBER.findall(a), NUMBER.findall(b)))


def _same_number(a: str, b: str) -> bool:
    if a == b:
        return True
    if not {".", "e", "E"} & {*a} or not {".", "e", "E"} & {*b}:
        return False  # whole numbers count something
    last_digit = 10.0 ** -len(a.partition(".")[2]) if "e" not in a.lower() else 0.0
    return abs(float(a) - float(b)) <= max(CLOSE * abs(float(b)), 1.01 * last_digit)


def picture_distance(a: str, b: str) -> float:
    """Root mean square of the difference of two PNG pictures, in grey levels of 255."""
    from matplotlib.image import imread

    x, y = (imread(BytesIO(b64decode(text))) for text in (a, b))
    return 255 * float(np.sqrt(np.mean((x - y) ** 2))) if x.shape == y.shape else np.inf


# ----------------------------------------------------------------------- the command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `minigrad lessons`."""
    parser.add_argument("names", nargs="*", metavar="NN", help="lessons, such as 04; all if none")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--build", action="store_true", help="write the notebooks anew, and outputs")
    what.add_argument("--check", action="store_true", help="build again, and compare")


def run(args: argparse.Namespace) -> int:
    """Run, build or check lessons. Exit code 1 if one fails or differs."""
    paths = paths_of(args.names)
    if args.build and any(path.suffix == ".ipynb" for path in paths):
        what = "--build needs the lessons' sources, which an installed package does not hold"
        raise argparse.ArgumentError(None, f"{what}; use a clone")
    for path in paths if args.build else []:
        refuse_to_lose(path.parent / "exercises" / path.name)
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from tqdm import tqdm

    rows, wrong = [], []
    for path in paths:
        cells = len(exercises.read(path))
        start = perf_counter()
        with tqdm(total=cells, desc=path.stem, unit="cell", leave=False) as bar:
            try:
                made = build(path, lambda number, bar=bar: bar.update(number - bar.n))
                reasons = _use(args, path, made)
            except CellExecutionError as error:
                said = exercises.on_a_line(f"{error.ename}: {error.evalue}")
                reasons = [f"cell {bar.n} failed with {said}"]
            except CellTimeoutError:
                reasons = [f"cell {bar.n} did not end in {TIMEOUT} s, in which each cell must"]
            except DeadKernelError:
                reasons = [f"cell {bar.n} ended the kernel: is there enough memory for it?"]
        rows.append((path.stem, cells, perf_counter() - start, len(reasons)))
        wrong += [f"{path.stem}: {reason}" for reason in reasons]
    print(f"{'lesson':<30}{'cells':>6}{'seconds':>9}")
    for name, cells, seconds, bad in rows:
        print(f"{name:<30}{cells:>6}{seconds:>9.1f}  {'WRONG' if bad else 'right'}")
    for sentence in wrong:
        print(sentence)
    return int(bool(wrong))


def refuse_to_lose(exercise: Path) -> None:
    """Raise argparse.ArgumentError if the notebook that would be written over holds answers."""
    file = exercise.with_suffix(".ipynb")
    if exercise.exists() and file.exists():
        answers = answered(file, build_exercise(exercise))
        if answers:
            what = f"--build would write over your answers to {', '.join(answers)} in {file}"
            raise argparse.ArgumentError(None, f"{what}, expected a copy without any; {KEEP}")


def _use(args: argparse.Namespace, path: Path, made: Any) -> list[str]:
    """Write or compare a built notebook, and the exercises of its lesson."""
    exercise = path.parent / "exercises" / path.name
    copies = [(path, made)]
    if exercise.suffix == ".py" and exercise.exists():
        copies.append((exercise, build_exercise(exercise)))
    if args.build:
        for source, copy in copies:
            exercises.write(copy, source.with_suffix(".ipynb"))
    return check(copies) if args.check else []


def check(copies: list[tuple[Path, Any]]) -> list[str]:
    """The differences of notebooks beside their sources from those that were built."""
    import nbformat

    found = []
    for source, built in copies:
        file = source.with_suffix(".ipynb")
        if not file.exists():
            found.append(f"{file.name} is missing; minigrad lessons --build writes it")
            continue
        try:
            committed = nbformat.read(file, as_version=4)
        except ValueError:  # what git leaves in it after a conflict, say
            found.append(f"{file.name} is no notebook; minigrad lessons --build writes it anew")
            continue
        if source.parent.name != "exercises":
            found += differences(committed, built)
        elif committed != built:
            answers = answered(file, built)
            if answers:
                found.append(f"{file} holds answers to {', '.join(answers)}; {KEEP}")
            else:
                found.append("the student's copy of its exercises is not what its source gives")
    return found


def paths_of(names: list[str]) -> list[Path]:
    """The lessons of these numbers or names, all if there is none, as scripts or notebooks."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        be, it = ("is", "it") if len(missing) == 1 else ("are", "them")
        what = f"{', '.join(missing)} {be} not installed, and running a lesson needs {it}"
        raise argparse.ArgumentError(None, f"{what}; python -m pip install {' '.join(missing)}")
    found = {path.stem: path for path in sorted(exercises.folder().glob("[0-9][0-9]_*.ipynb"))}
    found |= {path.stem: path for path in sorted(exercises.folder().glob("[0-9][0-9]_*.py"))}
    paths = []
    for name in names or sorted(found):
        match = [found[stem] for stem in found if name in (stem, stem[:2])]
        if not match:
            what = f"{name!r} is no lesson, expected one of {', '.join(sorted(found))}"
            raise argparse.ArgumentError(None, f"{what}; see lessons/README.md")
        paths += match
    return paths
