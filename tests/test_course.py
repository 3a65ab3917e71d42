"""`minigrad course DIR`: what a student's and an instructor's folder hold, and nbgrader at work.

The small course of these tests has the real exercises of two lessons, and lessons of one cell.
"""

from __future__ import annotations

import csv
import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jupytext", reason="the exercises need jupytext")
nbformat = pytest.importorskip("nbformat")

from minigrad import cli, course, exercises, marking  # noqa: E402
from tests.lines import PACKAGE  # noqa: E402

REAL = PACKAGE.parent / "lessons/exercises"
NAMES = ("04_accumulation", "05_sum_or_mean")
LINKS = {  # in a lesson, and in the same lesson of a course
    "[`a`](../minigrad/losses.py)": "`a`",
    "[b](../README.md#limits)": "b",
    "[c](05_sum_or_mean.ipynb)": "[c](05_sum_or_mean.ipynb)",
    "[d](exercises/04_accumulation.ipynb)": "[d](exercises/04_accumulation.ipynb)",
    "[e](https://numpy.org/a/../b)": "[e](https://numpy.org/a/../b)",
    "`f[0](x)` [g](#here)": "`f[0](x)` [g](#here)",
}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The folder of a small course, and the current folder is an empty one beside it."""
    lessons, here = tmp_path / "lessons", tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(exercises, "folder", lambda: lessons)
    for name in NAMES:
        text = nbformat.v4.new_markdown_cell("\n".join(LINKS))
        exercises.write(exercises.notebook([text]), lessons / f"{name}.ipynb")
        source = (REAL / f"{name}.py").read_text(encoding="utf-8")
        source += "\n# %% [markdown]\n# [out](../../README.md) [in](../04_accumulation.ipynb)\n"
        (lessons / "exercises").mkdir(exist_ok=True)
        (lessons / f"exercises/{name}.py").write_text(source, encoding="utf-8")
        exercises.write(
            exercises.build_exercise(lessons / f"exercises/{name}.py"), built(lessons, name)
        )
    for name in ("README.md", "teaching.md"):
        text = "\n".join([f"# {name}", *LINKS, "[t](teaching.md#05)"])
        (lessons / name).write_text(text, encoding="utf-8")
    return lessons


def built(folder, name) -> Path:
    return folder / f"exercises/{name}.ipynb"


def sources(notebook) -> list[str]:
    return [cell.source for cell in nbformat.read(notebook, as_version=4).cells]


def files(folder) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def contents(folder) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in sorted(files(folder))}


def made(capsys, *arguments) -> str:
    """Run `minigrad course`, which must go well, and return what it prints."""
    assert cli.main(["course", *map(str, arguments)]) == 0
    output, errors = capsys.readouterr()
    assert errors == ""
    return output


def refused(capsys, *arguments) -> str:
    """Run `minigrad course`, which must say one sentence."""
    assert cli.main(["course", *map(str, arguments)]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("minigrad course: ")
    assert errors.count("\n") == 1
    return errors


# --------------------------------------------------------------------------- for a student


def test_a_student_s_folder_holds_lessons_pages_and_exercises_and_no_source(small, capsys):
    output = made(capsys, "new/course")
    assert output.startswith("2 lessons and their exercises. In that folder: python -m jupyter lab")
    assert files(Path("new/course")) == {
        "README.md",
        *(f"{name}.ipynb" for name in NAMES),
        *(f"exercises/{name}.ipynb" for name in NAMES),
    }
    assert b"SOLUTION" not in b"".join(contents(Path("new/course")).values())
    for path in Path("new/course").rglob("*.ipynb"):
        nbformat.validate(nbformat.read(path, as_version=4))


def test_of_links_that_lead_out_of_the_folder_the_text_stays(small, capsys):
    made(capsys, "a")
    made(capsys, "b", "--variant", "3")
    for folder in (Path("a"), Path("b")):
        for name in NAMES:
            (text,) = sources(folder / f"{name}.ipynb")
            assert text.splitlines() == list(LINKS.values())
            last = sources(built(folder, name))[-1]
            assert last == "out [in](../04_accumulation.ipynb)"
        page = (folder / "README.md").read_text(encoding="utf-8")
        rubrics = "t"  # no student's
        assert page.splitlines()[1:] == [*LINKS.values(), rubrics]


def test_without_a_variant_the_exercises_are_the_committed_ones(small, capsys):
    made(capsys, "a")
    for name in NAMES:
        assert sources(built(Path("a"), name))[:-1] == sources(built(small, name))[:-1]


def test_a_variant_is_drawn_from_its_seed_alone(small, capsys):
    drawn = {}
    for folder, *seed in (["a", 1], ["b", 1], ["c", 2], ["d"]):
        output = made(capsys, folder, *(["--variant", *seed] if seed else []))
        assert (f", of variant {seed[0]}." in output) if seed else ("variant" not in output)
        drawn[folder] = contents(Path(folder))
    assert drawn["a"] == drawn["b"]
    for name in NAMES:
        texts = [drawn[folder][f"exercises/{name}.ipynb"] for folder in "acd"]
        assert len(set(texts)) == 3
        assert b"variant = 1 " in texts[0]
        assert b"SOLUTION" not in texts[0]


def test_an_empty_folder_is_filled_and_the_lessons_stay_as_they_are(small, capsys):
    before = contents(small)
    Path("empty").mkdir()
    made(capsys, "empty")
    made(capsys, "drawn", "--variant", "0")
    made(capsys, "nbgrader", "--instructor", "--variant", "0")
    assert contents(small) == before


def test_a_student_s_folder_is_checked_by_minigrad_check(small, capsys):
    made(capsys, "a", "--variant", "7")
    assert cli.main(["check", "a/exercises/04_accumulation.ipynb"]) == 1
    assert "not answered yet" in capsys.readouterr().out


# ----------------------------------------------------------------------- for an instructor


@pytest.mark.parametrize("variant", [None, 5])
def test_an_instructor_s_folder_is_a_course_of_nbgrader_in_form(small, capsys, variant):
    output = made(
        capsys, "a", "--instructor", *(["--variant", variant] if variant is not None else [])
    )
    assert "nbgrader generate_assignment 04_accumulation" in output
    assert ("of variant 5" in output) == (variant == 5)
    assert files(Path("a")) == {
        *("nbgrader_config.py", "teaching.md"),
        *(f"source/{name}/{name}.ipynb" for name in NAMES),
        *(f"solutions/{name}.ipynb" for name in NAMES),
    }
    for name in NAMES:
        source = Path(f"a/source/{name}/{name}.ipynb")
        original = small / f"exercises/{name}.py"
        expected = exercises.build_exercise(original, variant, solutions=True)
        assert sources(source)[:-1] == [led_out(cell.source) for cell in expected.cells[:-1]]
        assert "### BEGIN HIDDEN TESTS" in source.read_text(encoding="utf-8")
        solution = Path(f"a/solutions/{name}.ipynb").read_text(encoding="utf-8")
        assert not re.search("SOLUTION|HIDDEN|NotImplementedError|nbgrader", solution)
        for path in (source, Path(f"a/solutions/{name}.ipynb")):
            assert not re.findall(r"\]\(\.\./", path.read_text(encoding="utf-8"))
    page = Path("a/teaching.md").read_text(encoding="utf-8")
    assert "\nb\nc\nd\n[e](https://numpy.org/a/../b)\n" in page
    assert "[g](#here)" in page


def led_out(text: str) -> str:
    """Links of an exercise as an instructor's folder has them: it holds no lessons."""
    return re.sub(r"\[([^\[\]]*)\]\(\.\./[^)]*\)", r"\1", text)


def test_the_solutions_that_are_handed_out_pass_all_checks(small, capsys):
    made(capsys, "a", "--instructor", "--variant", "2")
    for name in NAMES:
        names: dict = {"__name__": "__main__"}
        for cell in nbformat.read(f"a/solutions/{name}.ipynb", as_version=4).cells:
            if cell.cell_type == "code":
                assert marking.run_cell(cell.source, names)[2] is None, cell.source


def test_the_config_says_where_the_course_lies(tmp_path):
    class Config:
        def __getattr__(self, name):
            return self.__dict__.setdefault(name, Config())

    c = Config()
    (tmp_path / "nbgrader_config.py").write_text(course.CONFIG, encoding="utf-8")
    exec(course.CONFIG, {"get_config": lambda: c, "__file__": str(tmp_path / "nbgrader_config.py")})
    assert c.CourseDirectory.root == str(tmp_path)
    assert c.CourseDirectory.course_id == "minigrad"


# ------------------------------------------------------------------------------- refused


@pytest.mark.parametrize("more", [[], ["--variant", "1"], ["--instructor"]])
def test_what_is_there_already_is_never_overwritten(small, capsys, more):
    Path("full").mkdir()
    Path("full/mine.txt").write_text("mine", encoding="utf-8")
    Path("hidden").mkdir()
    Path("hidden/.git").write_text("mine", encoding="utf-8")
    Path("file").write_text("mine", encoding="utf-8")
    before = contents(Path())
    for name in ("full", "hidden", "file", "."):
        said = refused(capsys, name, *more)
        assert f"{name} is there already and not an empty folder, expected a new one" in said
    assert contents(Path()) == before


@pytest.mark.parametrize("more", [[], ["--instructor"]])
def test_a_folder_that_cannot_be_made_is_named(small, capsys, more):
    Path("file").write_text("mine", encoding="utf-8")
    for name in ("file/course", "x" * 300):
        said = refused(capsys, name, *more)
        assert "cannot be written: " in said
        assert "give another folder" in said
    assert files(Path()) == {"file"}


def test_a_full_disk_is_said_in_one_sentence(small, capsys, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(course.shutil, "copyfile", full)
    for more in ([], ["--instructor"]):  # the second fails after the notebooks
        assert "a cannot be written: No space left on device" in refused(capsys, "a", *more)
        assert [*Path("a").iterdir()] == []
    monkeypatch.undo()
    monkeypatch.setattr(exercises, "folder", lambda: small)
    monkeypatch.chdir(small.parent / "here")
    made(capsys, "a")
    assert not [path for path in Path("a").iterdir() if path.name.startswith("tmp")]


@pytest.mark.parametrize("seed", ["-1", "1.5", "", "x", "1e3", " 1", "²", "None", "9" * 41])
def test_a_seed_is_a_whole_number(small, capsys, seed):
    said = refused(capsys, "a", f"--variant={seed}")
    assert f"--variant is {seed!r}, expected a whole number of 40 digits or fewer" in said
    assert "; give 0 or more" in said
    assert files(Path()) == set()


def test_a_folder_must_be_named(small, capsys):
    assert "DIR" in refused(capsys)
    assert "DIR" in refused(capsys, "--instructor")


@pytest.mark.parametrize("more", [["--variant", "1"], ["--instructor"]])
def test_an_installed_package_holds_no_sources_and_says_so(small, capsys, more):
    for path in (small / "exercises").glob("*.py"):
        path.unlink()
    said = refused(capsys, "a", *more)
    assert "an installed package holds no sources of exercises" in said
    assert "use a clone of minigrad's repository" in said
    assert files(Path()) == set()
    made(capsys, "a")
    assert built(Path("a"), NAMES[0]).exists()


@pytest.mark.parametrize("more", [["--variant", "1"], ["--instructor"]])
def test_without_jupytext_a_sentence_says_what_to_install(small, capsys, monkeypatch, more):
    monkeypatch.setitem(sys.modules, "jupytext", None)
    said = refused(capsys, "a", *more)
    assert "jupytext is not installed, and drawing an exercise needs it; python -m pip" in said
    assert [*Path("a").iterdir()] == []
    monkeypatch.setitem(sys.modules, "nbformat", None)
    made(capsys, "b")


# ------------------------------------------------------------------------------ real nbgrader

COMMANDS = """
import sys
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderApp
for command, name, *cell in map(str.split, sys.argv[1:]):
    if command == "read":  # as a person does it on the page of Formgrader
        with Gradebook("sqlite:///gradebook.db") as book:
            book.find_grade(*cell, name, name, "perfect").manual_score = 2
            book.db.commit()
    else:
        NbGraderApp.launch_instance([command, name])
        NbGraderApp.clear_instance()
"""
STEPS = ("generate_assignment", "autograde", "generate_feedback")
BY_HAND = {"04_accumulation": "04-why", "05_sum_or_mean": "05-why"}
STUDENTS = ("perfect", "empty", "wrong")
SEED = 2


def nbgrader(folder, *commands: str) -> None:
    """Run nbgrader's commands one after the other, in one process: importing it takes seconds."""
    home = folder.parent / "home"
    result = subprocess.run(
        [sys.executable, "-c", COMMANDS, *commands],
        cwd=folder,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(PACKAGE.parent),
            **{f"JUPYTER_{what}_DIR": str(home) for what in ("CONFIG", "DATA", "RUNTIME")},
            "IPYTHONDIR": str(home),
        },
    )
    assert result.returncode == 0, result.stderr


def answers_of(who: str, cells) -> dict[str, str]:
    """What a student hands in: of the wrong answers to a question the one that earns the most."""
    answers = marking.answers_in(cells) if who != "empty" else {}
    if who == "wrong":
        for cell in sorted(
            (cell for cell in cells if "wrong" in cell.metadata),
            key=lambda cell: cell.metadata["earns"],
        ):
            answers[cell.metadata["of"]] = cell.source
    return answers


def test_nbgrader_gives_the_points_and_explanations_that_minigrad_check_gives(
    small, tmp_path, capsys
):
    """Students work in the folders that minigrad writes for them; nbgrader releases the same."""
    pytest.importorskip("nbgrader", reason="needs nbgrader")
    folder, points, reasons = tmp_path / "course", {}, {}
    made(capsys, folder, "--instructor", "--variant", SEED)
    made(capsys, tmp_path / "student", "--variant", SEED)
    for name in NAMES:
        cells = exercises.drawn(exercises.read(small / f"exercises/{name}.py"), SEED)
        for who in STUDENTS:
            answers = answers_of(who, cells)
            student = nbformat.read(built(tmp_path / "student", name), as_version=4)
            for cell in student.cells:
                if cell.metadata["nbgrader"]["solution"]:
                    cell.source = answers.get(cell.metadata["nbgrader"]["grade_id"], cell.source)
            exercises.write(student, folder / f"submitted/{who}/{name}/{name}.ipynb")
            results = marking.grade(cells, answers)
            points[name, who] = sum(result.points or 0 for result in results)
            reasons[name, who] = [r.said for r in results if r.points not in (None, r.out_of)]

    nbgrader(
        folder,
        *(f"{step} {name}" for step in STEPS[:2] for name in NAMES),
        *(f"read {name} {cell}" for name, cell in BY_HAND.items()),
        *(f"{STEPS[2]} {name}" for name in NAMES),
        "export --to=grades.csv",
    )
    for name in NAMES:
        released = nbformat.read(folder / f"release/{name}/{name}.ipynb", as_version=4)
        ours = nbformat.read(built(tmp_path / "student", name), as_version=4)
        for one, other in zip(ours.cells[:-1], released.cells[:-1], strict=True):
            assert (one.cell_type, led_out(one.source)) == (other.cell_type, other.source)
            assert one.metadata["nbgrader"].items() <= other.metadata["nbgrader"].items()

    with open(folder / "grades.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {(row["assignment"], row["student_id"]): float(row["score"]) for row in rows}
    read = {(name, "perfect"): 2 for name in NAMES}
    assert found == {key: earned + read.get(key, 0) for key, earned in points.items()}
    for name in NAMES:
        assert found[name, "empty"] == 0 < found[name, "wrong"] < found[name, "perfect"]
        by_hand = {float(row["max_score"]) for row in rows if row["assignment"] == name}
        assert by_hand == {found[name, "perfect"]}
        total = f"(Score: {found[name, 'perfect']} / {found[name, 'perfect']})"
        assert total in feedback(folder, "perfect", name)  # for it was written after the reading
        assert len(reasons[name, "wrong"]) >= 3
        for reason in reasons[name, "wrong"]:
            assert " ".join(reason.split()) in feedback(folder, "wrong", name)
        assert "Not yet: " not in feedback(folder, "perfect", name)


def test_a_person_reads_before_feedback_is_written_in_all_that_says_how(small, capsys):
    page = (PACKAGE.parent / "lessons/README.md").read_text(encoding="utf-8")
    for text in (made(capsys, "a", "--instructor"), page.partition("## To hand out")[2]):
        steps = (*STEPS[:2], "python -m jupyter lab ", STEPS[2], "nbgrader export")
        at = [text.index(step) for step in steps]
        assert at == sorted(at)
        assert "Formgrader" in text
        assert "nbgrader formgrader" not in text
        assert "--force" in text


def feedback(folder, who: str, name: str) -> str:
    """The text of the page that a student gets back."""
    page = (folder / f"feedback/{who}/{name}/{name}.html").read_text(encoding="utf-8")
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", page)).split())


def test_a_notebook_of_the_course_is_json_that_ends_in_a_newline(small, capsys):
    made(capsys, "a", "--variant", "1")
    made(capsys, "b", "--instructor")
    for path in Path().rglob("*.ipynb"):
        text = path.read_bytes()
        assert text.endswith(b"}\n")
        assert b"\r" not in text
        json.loads(text)
