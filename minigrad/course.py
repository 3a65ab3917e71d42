"""`minigrad course DIR`: the course as a folder of its own, for a student or for an instructor.

A student's folder holds the lessons and the exercises as notebooks. An instructor's is a course of
nbgrader: `source/NN_name/NN_name.ipynb` for each lesson's exercises, with solutions and hidden
tests, a config, and `solutions/` to hand out afterwards. `--variant SEED` draws other numbers and
other planted faults: the same for both folders of one seed.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from minigrad import exercises

REPOSITORY = "https://github.com/minigrad/minigrad"
CONFIG = """# The course as nbgrader sees it: run its commands in this folder.
from pathlib import Path

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "minigrad"
c.CourseDirectory.root = str(Path(__file__).parent)
"""
NEXT = """Exercises of {count} lessons{drawn} for nbgrader. In that folder:
  nbgrader generate_assignment {first}   # release/: what students get
  # put what they hand in into submitted/STUDENT/{first}/{first}.ipynb
  nbgrader autograde {first}
  nbgrader formgrader (in Jupyter), or: nbgrader generate_feedback {first} and nbgrader export"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `minigrad course`."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="a new folder, or an empty one")
    parser.add_argument("--variant", metavar="SEED", type=_seed, help="draw the exercises anew")
    parser.add_argument(
        "--instructor", action="store_true", help="an nbgrader course, with solutions and tests"
    )


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > exercises.DIGITS:
        raise argparse.ArgumentTypeError(f"is {text!r}, expected a whole number; give 0 or more")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Write the folder and say what it holds."""
    place: Path = args.folder
    if (args.instructor or args.variant is not None) and not exercises.sources():
        what = "an installed package holds no sources of exercises, which variants are drawn from"
        raise argparse.ArgumentError(None, f"{what}; use a clone of {REPOSITORY}")
    try:
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            what = f"{place} is there already and not an empty folder, expected a new one"
            raise argparse.ArgumentError(None, f"{what}; give another name")
        place.mkdir(parents=True, exist_ok=True)
        write = write_instructor if args.instructor else write_student
        print(write(place, args.variant))
    except OSError as error:
        what = f"{place} cannot be written: {error.strerror}"
        raise argparse.ArgumentError(None, f"{what}; give another folder") from error
    except ImportError as error:
        what = f"{error.name} is not installed, and drawing an exercise needs it"
        raise argparse.ArgumentError(None, f"{what}; python -m pip install jupytext") from error
    return 0


def write_student(place: Path, variant: int | None) -> str:
    """Copy lessons and pages, and copy or draw the exercises. Returns what to say."""
    lessons = sorted(exercises.folder().glob("[0-9][0-9]_*.ipynb"))
    for path in [*lessons, *exercises.folder().glob("*.md")]:
        shutil.copyfile(path, place / path.name)
        _lead_out(place / path.name, "lessons")
    (place / "exercises").mkdir()
    for path in sorted((exercises.folder() / "exercises").glob("[0-9][0-9]_*.ipynb")):
        target = place / "exercises" / path.name
        if variant is None:
            shutil.copyfile(path, target)
        else:
            exercises.write(_copy(path.with_suffix(".py"), variant, solutions=False), target)
        _lead_out(target, "lessons/exercises")
    drawn = "" if variant is None else f", of variant {variant}"
    start = "python -m jupyter lab (the packages: minigrad[lessons])"
    return f"{len(lessons)} lessons and their exercises{drawn}. In that folder: {start}"


def write_instructor(place: Path, variant: int | None) -> str:
    """Write an nbgrader course. Returns what to say."""
    paths = exercises.sources()
    for path in paths:
        full = _copy(path, variant, solutions=True)
        source = place / "source" / path.stem / f"{path.stem}.ipynb"
        solution = place / "solutions" / f"{path.stem}.ipynb"
        exercises.write(full, source)
        exercises.write(_solved(full), solution)
        for file in (source, solution):
            _lead_out(file, "lessons/exercises", kept=None)
    (place / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8", newline="\n")
    teaching = exercises.folder() / "teaching.md"
    shutil.copyfile(teaching, place / teaching.name)
    _lead_out(place / teaching.name, "lessons", kept=None)
    drawn = "" if variant is None else f", of variant {variant},"
    return NEXT.format(count=len(paths), drawn=drawn, first=paths[0].stem)


def _lead_out(file: Path, folder: str, kept: str | None = "lessons/") -> None:
    """Let links in a copy that lead out of what was copied with it lead to the repository.

    folder: where the original lies in the repository, kept: what was copied as it lies there.
    """

    def lead(link: re.Match) -> str:
        target = posixpath.normpath(f"{folder}/{link[1]}")
        there = kept is not None and target.startswith(kept)
        return link[0] if there else f"]({REPOSITORY}/blob/main/{target}"

    # A notebook holds code as well, in which f[i](x) is no link.
    links = r"\]\((\.\./[^)#\s]*)" if file.suffix == ".ipynb" else r"\]\((?!\w+:)([^)#\s]+)"
    text = re.sub(links, lead, file.read_text(encoding="utf-8"))
    file.write_text(text, encoding="utf-8", newline="\n")


def _copy(path: Path, variant: int | None, solutions: bool) -> Any:
    cells = exercises.drawn(exercises.read(path), variant)
    return exercises.notebook(exercises.copy_of(cells, path.stem[:2], solutions))


def _solved(full: Any) -> Any:
    """The instructor's notebook without its hidden tests and the marks of what is the solution."""
    cells = []
    for cell in exercises.notebook(full.cells).cells:
        cell.source = exercises.without_tests(cell.source)
        cell.source = re.sub(r"[ \t]*### (BEGIN|END) SOLUTION\n?", "", cell.source)
        del cell.metadata["nbgrader"]
        cells.append(cell)
    return exercises.notebook(cells)
