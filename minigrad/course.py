"""`minigrad course DIR`: the course as a folder of its own, for a student or for an instructor.

A student's folder holds the lessons and the exercises as notebooks. An instructor's is a course of
nbgrader: `source/NN_name/NN_name.ipynb` for each lesson's exercises, with solutions and hidden
tests, a config, `solutions/` to hand out afterwards, and teaching.md with the rubrics. `--variant
SEED` draws other numbers and other planted faults: the same for both folders of one seed. What a
function is to do stays the same, so a solution of one variant is one of all.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from minigrad import exercises
from minigrad.command import refusal

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
  python -m jupyter lab                  # menu Nbgrader, Formgrader: read, and give points
  nbgrader generate_feedback {first}     # with --force after a change
  nbgrader export                        # grades.csv"""
TEACHING = "teaching.md"  # the rubrics, which are what is asked for: no student's folder holds it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `minigrad course`."""
    parser.add_argument("folder", metavar="DIR", type=Path, help="a new folder, or an empty one")
    parser.add_argument("--variant", metavar="SEED", type=_seed, help="draw the exercises anew")
    parser.add_argument(
        "--instructor", action="store_true", help="an nbgrader course, with solutions and tests"
    )


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > exercises.DIGITS:
        what = f"is {text!r}, expected a whole number of {exercises.DIGITS} digits or fewer"
        raise argparse.ArgumentTypeError(f"{what}; give 0 or more")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Write the folder, all of it or nothing, and say what it holds."""
    place: Path = args.folder
    if (args.instructor or args.variant is not None) and not exercises.sources():
        what = "an installed package holds no sources of exercises, which variants are drawn from"
        raise refusal(f"{what}; use a clone of minigrad's repository")
    try:
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            what = f"{place} is there already and not an empty folder, expected a new one"
            raise refusal(f"{what}; give another name")
        place.mkdir(parents=True, exist_ok=True)
        write = write_instructor if args.instructor else write_student
        with tempfile.TemporaryDirectory(dir=place) as unfinished:
            said = write(Path(unfinished), args.variant)
            for made in sorted(Path(unfinished).iterdir()):
                made.rename(place / made.name)
        print(said)
    except OSError as error:
        what = f"{place} cannot be written: {error.strerror}"
        raise refusal(f"{what}; give another folder") from error
    except ImportError as error:
        what = f"{error.name} is not installed, and drawing an exercise needs it"
        raise refusal(f"{what}; python -m pip install jupytext") from error
    return 0


def write_student(place: Path, variant: int | None) -> str:
    """Copy lessons and pages, and copy or draw the exercises. Returns what to say."""
    lessons = sorted(exercises.folder().glob("[0-9][0-9]_*.ipynb"))
    pages = [path for path in exercises.folder().glob("*.md") if path.name != TEACHING]
    for path in [*lessons, *pages]:
        shutil.copyfile(path, place / path.name)
        _lead_out(place / path.name, "lessons")
    (place / "exercises").mkdir()
    for path in sorted((exercises.folder() / "exercises").glob("[0-9][0-9]_*.ipynb")):
        target = place / "exercises" / path.name
        if variant is None:
            shutil.copyfile(path, target)
        else:
            source = path.with_suffix(".py")
            exercises.write(exercises.build_exercise(source, variant), target)
        _lead_out(target, "lessons/exercises")
    drawn = "" if variant is None else f", of variant {variant}"
    start = "python -m jupyter lab (the packages: minigrad[lessons])"
    return f"{len(lessons)} lessons and their exercises{drawn}. In that folder: {start}"


def write_instructor(place: Path, variant: int | None) -> str:
    """Write an nbgrader course. Returns what to say."""
    paths = exercises.sources()
    for path in paths:
        full = exercises.build_exercise(path, variant, solutions=True)
        source = place / "source" / path.stem / f"{path.stem}.ipynb"
        solution = place / "solutions" / f"{path.stem}.ipynb"
        exercises.write(full, source)
        exercises.write(_solved(full), solution)
        for file in (source, solution):
            _lead_out(file, "lessons/exercises", kept=None)
    (place / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8", newline="\n")
    shutil.copyfile(exercises.folder() / TEACHING, place / TEACHING)
    _lead_out(place / TEACHING, "lessons", kept=None)
    drawn = "" if variant is None else f", of variant {variant},"
    return NEXT.format(count=len(paths), drawn=drawn, first=paths[0].stem)


def _lead_out(file: Path, folder: str, kept: str | None = "lessons/") -> None:
    """Leave of links in a copy that lead out of what was copied with it their text alone.

    folder: where the original lies in the repository, kept: what was copied as it lies there.
    """

    def lead(link: re.Match) -> str:
        target = posixpath.normpath(f"{folder}/{link[2]}")
        there = kept is not None and target.startswith(kept) and target != f"lessons/{TEACHING}"
        return link[0] if there else link[1]

    # A notebook holds code as well, in which f[i](x) is no link.
    path = r"(\.\./[^)#\s]*)" if file.suffix == ".ipynb" else r"(?!\w+:)([^)#\s]+)"
    links = rf"\[([^\[\]]*)\]\({path}(?:#[^)\s]*)?\)"
    text = re.sub(links, lead, file.read_text(encoding="utf-8"))
    file.write_text(text, encoding="utf-8", newline="\n")


def _solved(full: Any) -> Any:
    """The instructor's notebook without its hidden tests and the marks of what is the solution."""
    cells = []
    for cell in exercises.notebook(full.cells).cells:
        cell.source = exercises.without_tests(cell.source)
        cell.source = re.sub(r"[ \t]*### (BEGIN|END) SOLUTION\n?", "", cell.source)
        del cell.metadata["nbgrader"]
        cells.append(cell)
    return exercises.notebook(cells)
