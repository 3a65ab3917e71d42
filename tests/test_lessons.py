"""The lessons are true: rebuilt from their sources they are what is committed, to the last cell.

What a rebuild would not see is looked for in the sources: typed numbers, missing parts, dead links.
Each way in which a notebook goes stale is planted in a copy, and must be found.
"""

from __future__ import annotations

import ast
import copy
import re
import subprocess
import sys
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path

import pytest

pytest.importorskip("jupytext", reason="the lessons need jupytext")
pytest.importorskip("nbclient", reason="the lessons need nbclient")
pytest.importorskip("ipykernel", reason="the lessons need ipykernel")
nbformat = pytest.importorskip("nbformat")

from minigrad import cli, exercises, lessons  # noqa: E402
from tests.lines import PACKAGE, READING_ORDER  # noqa: E402

LESSONS = sorted((PACKAGE.parent / "lessons").glob("[0-9][0-9]_*.py"))
NAMES = [path.stem for path in LESSONS]
CORE = ("00", "01", "02", "03", "04", "05", "06", "07")
CLAIMS = {
    **{"a": "01", "h": "01", "r": "01"},
    **{"b": "04", "c": "04", "g": "04", "k": "04", "o": "04", "m": "05", "f": "07"},
    **{"e": "12", "i": "12"},
}
each = pytest.mark.parametrize("path", LESSONS, ids=NAMES)


def texts(path: Path) -> list[str]:
    return [cell.source for cell in exercises.read(path) if exercises.is_text(cell)]


def prose(path: Path) -> str:
    """A lesson's text without mathematics, code, links and references."""
    text = "\n\n".join(texts(path)).split("## References")[0]
    return re.sub(
        r"\$\$.*?\$\$|\$[^$]+\$|```.*?```|`[^`]+`|\]\([^)]+\)", " ", text, flags=re.DOTALL
    )


# ------------------------------------------------------------------------ rebuilt and compared


@pytest.fixture(scope="session")
def built():
    """Every lesson, run from a fresh kernel."""
    return {path: lessons.build(path) for path in LESSONS}


@each
def test_a_rebuilt_lesson_is_the_one_that_is_committed(path, built):
    committed = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(committed)
    assert lessons.differences(committed, built[path]) == []


@each
def test_a_student_s_copy_of_the_exercises_is_what_the_source_gives(path):
    source = path.parent / "exercises" / path.name
    assert lessons.check([(source, lessons.build_exercise(source))]) == []


def test_every_notebook_has_a_source_and_every_source_a_notebook():
    folder = PACKAGE.parent / "lessons"
    for place in (folder, folder / "exercises"):
        sources = {p.stem for p in place.glob("*.py")}
        assert sources == {p.stem for p in place.glob("*.ipynb")} == {*NAMES}


def code_cells(notebook, having=lambda cell: True):
    return [c for c in notebook.cells if c.cell_type == "code" and having(c)]


def printed(cell):
    return [o for o in cell.outputs if o.output_type == "stream"]


def pictures(cell):
    return [o for o in cell.outputs if "image/png" in o.get("data", {})]


def change_a_number(notebook):
    compared = [
        c for c in code_cells(notebook, printed) if "volatile" not in c.metadata.get("tags", [])
    ]
    for output in (o for cell in compared for o in printed(cell)):
        found = re.search(r"\d\.\d\d", output.text)
        if found:
            changed = f"{float(found[0]) + 0.05:.2f}"
            output.text = output.text[: found.start()] + changed + output.text[found.end() :]
            return
    raise AssertionError("no number to change")


def change_a_count(notebook):
    for output in (o for cell in code_cells(notebook, printed) for o in printed(cell)):
        found = re.search(r"(?<![\d.])\d+(?![\d.])", output.text)
        if found:
            changed = str(int(found[0]) + 1)
            output.text = output.text[: found.start()] + changed + output.text[found.end() :]
            return
    raise AssertionError("no count to change")


def draw_another_picture(notebook):
    """A thin line more, as if one curve had moved."""
    from matplotlib.image import imread, imsave

    (output, *_), *_ = map(pictures, code_cells(notebook, pictures))
    pixels = imread(BytesIO(b64decode(output.data["image/png"]))).copy()
    height, width = pixels.shape[:2]
    for x in range(width // 5, width - width // 5):
        y = height // 3 + (x * height) // (4 * width)
        pixels[y : y + 2, x, :3] = (0.34, 0.56, 0.99)
    file = BytesIO()
    imsave(file, pixels, format="png")
    output.data["image/png"] = b64encode(file.getvalue()).decode()


def drop_a_picture(notebook):
    cell = code_cells(notebook, pictures)[0]
    cell.outputs = [o for o in cell.outputs if o not in pictures(cell)]


def strip_outputs(notebook):
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None


def strip_one_output(notebook):
    code_cells(notebook, printed)[0].outputs = []


def edit_a_cell(notebook):
    code_cells(notebook)[2].source += "\nx = 1"


def edit_the_text(notebook):
    notebook.cells[0].source += " "


def run_out_of_order(notebook):
    code_cells(notebook)[1].execution_count = 99


def delete_a_cell(notebook):
    del notebook.cells[3]


def add_a_cell(notebook):
    notebook.cells.append(nbformat.v4.new_code_cell("1 + 1"))


def print_an_error(notebook):
    error = nbformat.v4.new_output("error", ename="E", evalue="e", traceback=["e"])
    code_cells(notebook)[0].outputs.append(error)


MUTANTS = [
    change_a_number,
    change_a_count,
    draw_another_picture,
    drop_a_picture,
    strip_outputs,
    strip_one_output,
    edit_a_cell,
    edit_the_text,
    run_out_of_order,
    delete_a_cell,
    add_a_cell,
    print_an_error,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=[m.__name__ for m in MUTANTS])
def test_a_notebook_that_went_stale_is_found(mutate, built):
    path = next(path for path in LESSONS if path.stem.startswith("04"))
    stale = nbformat.from_dict(copy.deepcopy(built[path]))
    assert lessons.differences(stale, built[path]) == []
    mutate(stale)
    assert lessons.differences(stale, built[path]) != []


def test_last_digits_and_the_pictures_of_another_matplotlib_are_forgiven(built):
    path = LESSONS[-1]
    other = nbformat.from_dict(copy.deepcopy(built[path]))
    other.metadata["minigrad"]["matplotlib"] = "3.0"
    draw_another_picture(other)
    assert lessons.differences(other, built[path]) == []
    assert lessons.same_text("loss 0.31250, 3 parts", "loss 0.31251, 3 parts")
    assert not lessons.same_text("loss 0.3125, 3 parts", "loss 0.3175, 3 parts")
    assert not lessons.same_text("loss 0.3125, 3 parts", "loss 0.3125, 4 parts")
    assert not lessons.same_text("1e-12 apart", "2e-12 apart")


def give_the_solution(student, source):
    solution = next(c for c in source if "answer" in c.metadata)
    student.cells[source.index(solution)].source = solution.source


def give_the_hidden_tests(student, source):
    test = next(c for c in source if "HIDDEN" in c.source)
    student.cells[source.index(test)].source = test.source


def leave_an_output(student, source):
    cell = next(c for c in student.cells if c.cell_type == "code")
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="right\n")]


def count_a_run(student, source):
    next(c for c in student.cells if c.cell_type == "code").execution_count = 1


def lose_points(student, source):
    mark = next(m for c in student.cells if "points" in (m := c.metadata["nbgrader"]))
    mark["points"] -= 1


@pytest.mark.parametrize(
    "mutate",
    [give_the_solution, give_the_hidden_tests, leave_an_output, count_a_run, lose_points],
    ids=lambda mutate: mutate.__name__,
)
def test_a_student_s_copy_that_says_too_much_is_found(mutate, tmp_path):
    source = LESSONS[0].parent / "exercises" / LESSONS[0].name
    made = lessons.build_exercise(source)
    folder = tmp_path / "exercises"
    exercises.write(made, folder / f"{source.stem}.ipynb")
    assert lessons.check([(folder / source.name, made)]) == []
    student = nbformat.from_dict(copy.deepcopy(made))
    mutate(student, exercises.drawn(exercises.read(source), None))
    exercises.write(student, folder / f"{source.stem}.ipynb")
    assert lessons.check([(folder / source.name, made)]) != []


# ------------------------------------------------------------------------- the command


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder with one small lesson, in place of the real ones."""
    (tmp_path / "07_small.py").write_text("# %% [markdown]\n# # 07\n\n# %%\nprint(6 * 7)\n")
    monkeypatch.setattr(exercises, "folder", lambda: tmp_path)
    return tmp_path / "07_small.py"


def test_build_writes_what_check_accepts_and_twice_the_same_bytes(small, capsys):
    assert cli.main(["lessons", "--check"]) == 1
    assert "07_small.ipynb is missing" in capsys.readouterr().out
    assert cli.main(["lessons", "07", "--build"]) == 0
    first = small.with_suffix(".ipynb").read_bytes()
    assert b"42" in first
    assert cli.main(["lessons", "07_small", "--build"]) == 0
    assert small.with_suffix(".ipynb").read_bytes() == first
    assert cli.main(["lessons", "--check"]) == 0
    small.write_text(small.read_text().replace("7", "8"))
    assert cli.main(["lessons", "--check"]) == 1
    assert "07_small: cell 0: it is not the cell of the source" in capsys.readouterr().out


@pytest.fixture
def exercise(small):
    """The small lesson with an exercise of two answers, built."""
    source = small.parent / "exercises" / small.name
    source.parent.mkdir()
    source.write_text(
        '# %% answer="07-double"\ndef double(x):\n    """Twice x."""\n'
        "    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION\n\n"
        '# %% [markdown] manual="07-why" points=2\n# Because.\n'
    )
    assert cli.main(["lessons", "--build"]) == 0
    return source


def answer_with_code(cells):
    cells[0].source = cells[0].source.replace("raise NotImplementedError()", "return x + x")


def begin_an_answer(cells):
    cells[0].source = cells[0].source.replace("    raise", "    y = x + x\n    raise")


def answer_in_words(cells):
    cells[1].source = "It is so."


def add_a_cell_before_an_answer(cells):
    cells.insert(0, nbformat.v4.new_code_cell("y = 2"))


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (answer_with_code, "07-double"),
        (begin_an_answer, "07-double"),
        (answer_in_words, "07-why"),
        (add_a_cell_before_an_answer, "07-double"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_build_does_not_write_over_answers_and_check_says_that_they_are_there(
    answer, name, small, exercise, capsys
):
    file, lesson = exercise.with_suffix(".ipynb"), small.with_suffix(".ipynb")
    made = nbformat.read(file, as_version=4)
    answer(made.cells)
    exercises.write(made, file)
    small.write_text(small.read_text().replace("7", "8"))  # this lesson is to be built anew
    before = file.read_bytes(), lesson.read_bytes()
    capsys.readouterr()
    assert cli.main(["lessons", "--build"]) == 2
    said = capsys.readouterr().err
    assert f"--build would write over your answers to {name} in {file}, expected" in said
    assert said.endswith("work in the one that `minigrad course DIR` writes\n")
    assert (file.read_bytes(), lesson.read_bytes()) == before
    assert cli.main(["lessons", "--check"]) == 1
    assert f"07_small: {file} holds answers to {name}; move it" in capsys.readouterr().out

    file.rename(file.with_name("mine.ipynb"))
    assert cli.main(["lessons", "--build"]) == cli.main(["lessons", "--check"]) == 0


def test_an_older_copy_without_answers_is_built_anew(exercise, capsys):
    exercise.write_text(exercise.read_text().replace("Twice x.", "Two times x."))
    assert cli.main(["lessons", "--check"]) == 1
    assert "is not what its source gives" in capsys.readouterr().out
    assert cli.main(["lessons", "--build"]) == cli.main(["lessons", "--check"]) == 0


def test_a_lesson_that_fails_is_named_with_its_cell_and_error(small, capsys):
    small.write_text(small.read_text() + "\n# %%\n1 / 0\n")
    assert cli.main(["lessons"]) == 1
    assert "07_small: cell 2 failed with ZeroDivisionError: division by zero" in (
        capsys.readouterr().out
    )


def failed(small, code, capsys) -> str:
    """What is said of a lesson whose second cell of code is this: one line, below the table."""
    small.write_text(f"# %%\n1\n\n# %%\n{code}\n")
    assert cli.main(["lessons"]) == 1
    title, table, sentence = capsys.readouterr().out.splitlines()
    assert title.startswith("lesson")
    assert table.endswith("WRONG")
    return sentence


def test_an_error_without_end_is_cut_and_stands_on_one_line(small, capsys):
    said = failed(small, "raise ValueError('a\\nb' + 'x' * 1000)", capsys)
    assert said.startswith("07_small: cell 1 failed with ValueError: a bxxx")
    assert len(said) < 300


def test_a_cell_that_ends_the_kernel_or_does_not_end_is_named(small, capsys, monkeypatch):
    said = failed(small, "import os\nos._exit(1)", capsys)
    assert said == "07_small: cell 1 ended the kernel: is there enough memory for it?"
    monkeypatch.setattr(lessons, "TIMEOUT", 1)
    said = failed(small, "import time\ntime.sleep(60)", capsys)
    assert said == "07_small: cell 1 did not end in 1 s, in which each cell must"


def test_a_notebook_that_git_left_in_conflict_is_named(small, capsys):
    small.with_suffix(".ipynb").write_text("<<<<<<< HEAD\n{}\n")
    assert cli.main(["lessons", "--check"]) == 1
    said = "07_small.ipynb is no notebook; minigrad lessons --build writes it anew"
    assert said in capsys.readouterr().out
    assert cli.main(["lessons", "--build"]) == cli.main(["lessons", "--check"]) == 0


def test_bad_arguments_get_one_sentence(small, capsys, monkeypatch):
    assert cli.main(["lessons", "99"]) == 2
    assert "'99' is no lesson, expected one of 07_small" in capsys.readouterr().err
    monkeypatch.setattr(lessons, "NEEDED", ("absent", "jupytext", "missing"))
    assert cli.main(["lessons"]) == 2
    assert capsys.readouterr().err == (
        "minigrad lessons: absent, missing are not installed, and running a lesson needs them; "
        "python -m pip install absent missing\n"
    )


def test_an_installed_package_runs_its_notebooks_but_does_not_build_them(small, capsys):
    assert cli.main(["lessons", "--build"]) == 0
    small.unlink()
    assert cli.main(["lessons"]) == 0
    assert cli.main(["lessons", "--build"]) == 2
    assert "use a clone" in capsys.readouterr().err


# ------------------------------------------------------------------- what a lesson consists of


@each
def test_a_lesson_runs_as_a_script_and_says_where_its_figures_are(path, tmp_path):
    run = subprocess.run(
        [sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    said = re.findall(r"^\[figure: (.+)\]$", run.stdout, re.MULTILINE)
    assert said
    assert all((tmp_path / name).stat().st_size > 0 for name in said)


def first_lesson_with(changes, folder, *options):
    """Lesson 00 run as a script, with lines of it changed as a reader may change them."""
    text = LESSONS[0].read_text(encoding="utf-8")
    for line, other in changes.items():
        assert text.count(f"\n{line}") == 1, line
        text = text.replace(f"\n{line}", f"\n{other}")
    run = subprocess.run(
        [sys.executable, *options, "-c", text],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return run, " ".join(run.stdout.split())


@pytest.mark.parametrize(
    ("sizes", "b", "small", "said"),
    [
        ([5, 3], 64, 4, ("of 4 micro-batches", "it soon differs by more", "of [5, 3] samples")),
        ([1, 7], 256, 2, ("of 1 micro-batch lies", "in 1 part ", "it lies there, too")),
        ([8], 80, 16, ("of 4 micro-batches", "it differs by up to 58% of the loss", "by 1, one")),
    ],
)
def test_lesson_00_is_true_at_other_sizes(sizes, b, small, said, tmp_path):
    changes = {
        "sizes = [2, 2, 2, 2]": f"sizes = {sizes}",
        "micro_batch_size = 32": f"micro_batch_size = {b}",
        "small = 8": f"small = {small}",
    }
    run, printed = first_lesson_with(changes, tmp_path)
    assert run.returncode == 0, run.stderr
    for words in (*said, "the walks end at the same point", f"in micro-batches of {small};"):
        assert words in printed


@pytest.mark.parametrize(("sizes", "total"), [([4, 3], 7), ([4, 4, 4], 12)])
def test_lesson_00_says_where_the_sizes_do_not_add_up(sizes, total, tmp_path):
    changes = {"sizes = [2, 2, 2, 2]": f"sizes = {sizes}"}
    run, _ = first_lesson_with(changes, tmp_path)
    assert f"AssertionError: sizes add up to {total}, expected 8" in run.stderr
    _, printed = first_lesson_with(changes, tmp_path, "-O")  # as a notebook goes on: no asserts
    assert f"On the right the sizes add up to {total}: the sum divided by {total} is" in printed
    assert "same point" not in printed


@each
def test_a_lesson_has_its_parts(path):
    cells = exercises.read(path)
    first, text = cells[0].source, "\n\n".join(texts(path))
    assert 10 <= len(cells) <= 25
    assert re.match(rf"# {path.stem[:2]} · .+\?$", first, re.MULTILINE)
    goals = first.split("**You will be able to**")[1].split("**Needs:**")[0]
    assert re.findall(r"^(\d)\. \w", goals, re.MULTILINE) == ["1", "2", "3"]
    assert re.search(r"\*\*Reading:\*\* \d+ minutes", first)
    assert re.search(r"\*\*exercises:\*\* \d+ minutes", first)
    assert f"(exercises/{path.stem}.ipynb)" in first
    assert "before you run" in text.lower()  # a prediction
    for heading in ("## Usual mistakes", "## In short", "## References"):
        assert text.count(heading) == 1, heading
    summary = text.split("## In short")[1].split("## ")[0]
    assert sum(bool(line.strip()) for line in summary.splitlines()) <= 10  # five lines, wrapped
    assert len(re.findall(r"(?:18|19|20)\d\d", text.split("## References")[1])) >= 1


@each
def test_a_lesson_can_be_read_in_the_minutes_that_it_states(path):
    """At a hundred words a minute: the cells are to be run and thought about, too."""
    minutes = int(re.search(r"\*\*Reading:\*\* (\d+) minutes", texts(path)[0])[1])
    assert len(prose(path).split()) <= 100 * minutes


@each
def test_no_measured_number_is_typed_into_the_text(path):
    assert re.findall(r"\d[.,]\d", prose(path)) == []


@each
def test_links_lead_somewhere_and_no_lesson_needs_a_later_one(path):
    for text in texts(path):
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (path.parent / target).exists(), target
    needs = re.search(r"\*\*Needs:\*\*(.+?)\*\*Reading", texts(path)[0], re.DOTALL)[1]
    assert all(number < path.stem[:2] for number in re.findall(r"\b\d\d\b", needs))
    numbers = {name[:2] for name in NAMES}
    for number in re.findall(r"[Ll]esson (\d\d)", "\n".join(texts(path))):
        assert number in numbers


@each
def test_a_volatile_cell_asserts_what_it_can(path):
    for cell in exercises.read(path):
        if "volatile" in cell.metadata.get("tags", []):
            assert any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(cell.source)))


@each
def test_a_lesson_asserts(path):
    """A lesson that claims nothing that can fail teaches nothing."""
    asserts = [
        node
        for cell in exercises.read(path)
        if not exercises.is_text(cell)
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Assert)
    ]
    assert len(asserts) >= 5


def test_each_common_claim_has_its_cell_in_its_lesson():
    found = {
        cell.metadata["claim"]: (path.stem[:2], cell.source)
        for path in LESSONS
        for cell in exercises.read(path)
        if "claim" in cell.metadata
    }
    assert {claim: lesson for claim, (lesson, _) in found.items()} == CLAIMS
    assert all("assert" in source for _, source in found.values())


def test_files_name_their_lesson_and_lessons_their_files():
    by_lesson = {
        path.stem[:2]: set(re.findall(r"\(\.\./minigrad/(\w+\.py)\)", texts(path)[0]))
        for path in LESSONS
    }
    by_file: dict[str, set[str]] = {}
    for name in READING_ORDER:
        head = ast.get_docstring(ast.parse((PACKAGE / name).read_text(encoding="utf-8")))
        for number in re.findall(r"\b[Ll]esson (\d\d)\b", head):
            by_file.setdefault(number, set()).add(name)
    assert by_file == {number: files for number, files in by_lesson.items() if files}


def test_every_core_lesson_is_there():
    assert {name[:2] for name in NAMES} >= {*CORE}


# ------------------------------------------------------------------- the pages beside them

FOLDER = PACKAGE.parent / "lessons"
README, BEFORE, TEACHING, HINDI = (
    (FOLDER / name).read_text(encoding="utf-8")
    for name in ("README.md", "before.md", "teaching.md", "hindi.md")
)


def test_each_lesson_is_in_the_table_of_contents_with_its_question_and_minutes():
    link = r"\[(\d\d) .+?\]\((.+?)\.ipynb\)(?: \*)?"  # the star: may be left out
    exercise = r"\[\d\d\]\(exercises/(.+?)\.ipynb\)"
    row = rf"^\| {link} \| (.+?) \| (\d+) \| (.*?) \| {exercise} \|$"
    rows = re.findall(row, README, re.MULTILINE)
    assert [row[1] for row in rows] == [row[5] for row in rows] == NAMES
    for (number, _, question, minutes, needs, _), path in zip(rows, LESSONS, strict=True):
        first = texts(path)[0]
        assert re.search(r"\*\*Reading:\*\* (\d+) minutes", first)[1] == minutes
        assert question.endswith("?")
        said = re.search(r"\*\*Needs:\*\*(.+?)\*\*Reading", first, re.DOTALL)[1]
        assert re.findall(r"\b\d\d\b", needs) == re.findall(r"\[(\d\d)\]", said)
        assert all(other < number for other in re.findall(r"\d\d", needs))


@pytest.mark.parametrize("page", ["README.md", "before.md", "teaching.md", "hindi.md"])
def test_links_of_the_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", (FOLDER / page).read_text(encoding="utf-8")):
        assert (FOLDER / target).exists(), target


@each
def test_a_lesson_has_its_pages_for_instructors_and_in_hindi(path):
    number = path.stem[:2]
    page = re.split(r"^## ", TEACHING, flags=re.MULTILINE)
    (page,) = [one for one in page if one.startswith(f"{number} · ")]
    for words in ("objectives", "open", "board", "wrong answers"):
        assert words in page.lower(), words
    source = exercises.read(path.parent / "exercises" / path.name)
    (by_hand,) = [c.metadata["manual"] for c in source if "manual" in c.metadata]
    assert by_hand in page  # and its rubric
    assert all(re.search(rf"\b{points}:", page) for points in (0, 1, 2))
    assert len(re.findall(rf"^## {number} · ", HINDI, re.MULTILINE)) == 1
    assert len(re.findall(rf"\| {number} \|$", HINDI, re.MULTILINE)) >= 5  # its terms


def test_the_answers_of_the_self_test_are_right():
    blocks = re.findall(r"```python\n(.*?)```", BEFORE, re.DOTALL)
    assert len(blocks) >= 8
    for block in blocks:
        assert "assert" in block
        exec(block, {})


def test_the_commands_of_the_course_s_page_exist():
    commands = re.findall(r"^(minigrad|nbgrader) (.+?)(?:  #.*)?$", README, re.MULTILINE)
    assert {tool for tool, _ in commands} == {"minigrad", "nbgrader"}
    for tool, line in commands:
        if tool == "minigrad":
            assert cli.parser().parse_args(line.split()).run
