"""Exercises: the copies made from a source, and the points of an answer.

First on a small source that stands here, and attacked; then each real one: its solution earns all
points, its stubs none, and each wrong answer that it names what it says, with its explanation.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import signal
import subprocess
import sys

import pytest

jupytext = pytest.importorskip("jupytext", reason="the exercises need jupytext")
nbformat = pytest.importorskip("nbformat")

from minigrad import cli, exercises, marking  # noqa: E402
from tests.lines import PACKAGE  # noqa: E402

SAMPLE = '''\
# %% [markdown]
# # Exercises 99: {{k}} micro-batches of {{sizes}}, the first of {{sizes[0]}}

# %%
import numpy as np

from minigrad.checking import (
    check,
    forbid,
    grade,
    predicted,
)

# %% tags=["parameters"]
variant = None  # the seed that these numbers were drawn from
sizes = [3, 5, 2]  # samples of each micro-batch
k = 3
what = "naïve"  # a comment
### BEGIN PLANTED
fault = "tail"  # which loop stands below
### END PLANTED
fixed = 7  # the same in all variants

# %% tags=["draw"]
def draw(rng):
    sizes = rng.permutation(range(1, 9))[:3].tolist()
    fault = str(rng.choice(["tail", "twice"]))
    return {"sizes": sizes, "k": len(sizes), "fault": fault, "what": "drawn"}

# %% answer="99-predict"
# Assign a number to `prediction`.
### BEGIN SOLUTION
prediction = 3.25
### END SOLUTION

# %% check="99-predict"
predicted(prediction)

# %% test="99-predict" points=1
### BEGIN HIDDEN TESTS
grade(1, lambda: predicted(prediction))
### END HIDDEN TESTS

# %% answer="99-mean"
def mean(parts, sizes):
    """The mean over all samples."""
    ### BEGIN SOLUTION
    return sum(n * m for n, m in zip(sizes, parts)) / sum(sizes)
    ### END SOLUTION

# %% check="99-mean"
parts = [1.0, 2.0, 4.0]
expected = float(np.dot(parts, sizes)) / sum(sizes)
check(expected, mean(parts, sizes), "the mean", parts=parts, sizes=sizes)

# %% test="99-mean" points=3
### BEGIN HIDDEN TESTS
hidden_parts = [8.0, 1.0, 3.0]
grade(
    3,
    lambda: forbid(mean, "average"),
    lambda: check(
        float(np.dot(hidden_parts, sizes)) / sum(sizes),
        mean(hidden_parts, sizes),
        "the mean",
        parts=hidden_parts,
        sizes=sizes,
    ),
    partial={"mean of means": 1},
)
### END HIDDEN TESTS

# %% wrong="mean of means" of="99-mean" earns=1 because="counts a short one as much"
def mean(parts, sizes):
    return sum(parts) / len(parts)

# %%
print("a picture of", mean([1.0], [1]))

# %% when="fault == 'tail'"
loop = "drops the tail"

# %% when="fault == 'twice'"
loop = "divides twice"

# %% answer="99-name"
### BEGIN SOLUTION
name = {"tail": "it drops the tail", "twice": "it divides twice"}[fault]
### END SOLUTION

# %% check="99-name"
predicted(name, among=["it drops the tail", "it divides twice"])

# %% test="99-name" points=1
### BEGIN HIDDEN TESTS
planted = {"tail": "it drops the tail", "twice": "it divides twice"}[fault]
grade(1, lambda: predicted(name, among=[planted]))
### END HIDDEN TESTS

# %% wrong="another" of="99-name" earns=0 because="expected one of"
name = {"tail": "it divides twice", "twice": "it drops the tail"}[fault]

# %% [markdown] manual="99-why" points=2
# Because the tail counts.
'''
POINTS = {"99-predict": 1, "99-mean": 3, "99-name": 1, "99-why": None}


@pytest.fixture
def source(tmp_path, monkeypatch):
    """The sample, as if it were one of the course's."""
    monkeypatch.chdir(tmp_path)  # what an answer does to its folder, it does nowhere else
    monkeypatch.setattr(exercises, "folder", lambda: tmp_path / "lessons")
    path = tmp_path / "lessons/exercises/99_sample.py"
    path.parent.mkdir(parents=True)
    path.write_text(SAMPLE, encoding="utf-8")
    return path


@pytest.fixture
def cells(source):
    return exercises.drawn(exercises.read(source), None)


def copied(cells, **options):
    return exercises.copy_of(cells, "99", **options)


def parameters_of(cells) -> str:
    (found,) = [cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    return found


def text_of(cells) -> str:
    return "\n".join(cell.source for cell in cells)


def points(cells, **answers: str) -> dict[str, float | None]:
    """The points of the solution, with these answers in place: `mean=` is that of "99-mean"."""
    given = {f"99-{name}": text for name, text in answers.items()}
    results = marking.grade(cells, marking.answers_in(cells) | given)
    return {result.name: result.points for result in results}


def said(cells, **answers: str) -> dict[str, str]:
    given = {f"99-{name}": text for name, text in answers.items()}
    results = marking.grade(cells, marking.answers_in(cells) | given)
    return {result.name: result.said for result in results}


def checked(path, capsys) -> tuple[int, str, str]:
    """`minigrad check`: exit code, output, errors."""
    code = cli.main(["check", str(path)])
    return code, *capsys.readouterr()


def student_of(cells, path, **answers: str):
    """The student's notebook as a file, with these answers; others are the solution's."""
    solution = marking.answers_in(cells) | {f"99-{name}": text for name, text in answers.items()}
    made = exercises.notebook(copied(cells))
    for cell in made.cells:
        if cell.metadata["nbgrader"]["solution"]:
            cell.source = solution[cell.metadata["nbgrader"]["grade_id"]]
    exercises.write(made, path)
    return path


# ---------------------------------------------------------------------------------- variants


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(source, tmp_path):
    def written(variant):
        made = exercises.notebook(copied(exercises.drawn(exercises.read(source), variant)))
        exercises.write(made, tmp_path / "x.ipynb")
        return (tmp_path / "x.ipynb").read_bytes()

    for seed in (0, 1, 2, 10**30):
        assert written(seed) == written(seed)
    assert len({written(seed) for seed in (None, 0, 1, 2, 3, 4)}) == 6


def test_a_variant_has_its_own_numbers_and_keeps_all_else(source):
    cells = exercises.drawn(exercises.read(source), 4)
    parameters = parameters_of(cells)
    names: dict = {}
    exec(parameters, names)
    assert parameters.splitlines() == [
        "variant = 4  # the seed that these numbers were drawn from",
        f"sizes = {names['sizes']}  # samples of each micro-batch",
        "k = 3",
        "what = 'drawn'  # a comment",
        "fixed = 7  # the same in all variants",
    ]
    assert names["sizes"] != [3, 5, 2]
    assert exercises.variant_of(cells) == exercises.variant_of(copied(cells)) == 4
    title = f"# Exercises 99: 3 micro-batches of {names['sizes']}, the first of {names['sizes'][0]}"
    assert cells[0].source == title


def test_without_a_seed_the_numbers_are_the_source_s(cells):
    assert cells[0].source == "# Exercises 99: 3 micro-batches of [3, 5, 2], the first of 3"
    standing = SAMPLE.split('["parameters"]\n')[1].split("\n\n")[0]
    assert parameters_of(cells) == "\n".join(
        line for line in standing.split("\n") if "PLANTED" not in line and "fault" not in line
    )
    assert exercises.variant_of(cells) is None


def test_only_where_no_variant_was_drawn_a_copy_says_that_its_solutions_are_public(source):
    source.write_text(SAMPLE.replace("{{k}} micro", "{{practice}} {{k}} micro", 1), "utf-8")
    for variant, there in ((None, True), (0, False), (3, False)):
        title = exercises.drawn(exercises.read(source), variant)[0].source
        assert (exercises.PRACTICE in title) == ("for practice" in title) == there
        assert "{" not in title


def test_a_cell_is_there_only_when_its_condition_holds(source):
    seen = set()
    for seed in range(8):
        cells = exercises.drawn(exercises.read(source), seed)
        (fault,) = set(re.findall(r"^fault = '(\w+)'", text_of(cells), re.MULTILINE))
        seen.add(fault)
        text = text_of(copied(cells))
        assert ('loop = "drops the tail"' in text) == (fault == "tail")
        assert ('loop = "divides twice"' in text) == (fault == "twice")
        assert "def draw" not in text
        assert "fault" not in text
    assert seen == {"tail", "twice"}


def test_drawing_leaves_what_was_read_as_it_is(source):
    read = exercises.read(source)
    before = json.dumps(read)
    copied(exercises.drawn(read, 1), solutions=True)
    assert json.dumps(read) == before


# ------------------------------------------------------------------------------------ copies


def test_a_student_s_copy_holds_neither_solutions_nor_hidden_tests(cells):
    text = text_of(copied(cells))
    for secret in (
        "3.25",
        "zip(",
        "hidden_parts",
        "BEGIN",
        "END",
        "len(parts)",
        "Because",
        "fault",
    ):
        assert secret in text_of(cells)
        assert secret not in text
    assert 'samples."""\n    # YOUR CODE HERE\n    raise NotImplementedError()\n' in text
    assert "# Tests that are not shown: 3 points." in text
    assert copied(cells)[-1].source == "YOUR ANSWER HERE"


def test_an_instructor_s_copy_holds_both_and_no_wrong_answer(cells):
    text = text_of(copied(cells, solutions=True))
    for secret in ("3.25", "zip(", "hidden_parts", "Because", "### END SOLUTION"):
        assert secret in text
    assert "len(parts)" not in text


def test_nbgrader_s_marks_say_what_each_cell_is(cells):
    marks = [cell.metadata["nbgrader"] for cell in copied(cells)]
    by_id = {mark["grade_id"]: mark for mark in marks}
    assert len(by_id) == len(marks)
    kinds = {
        name: (mark["solution"], mark["grade"], mark["locked"], mark.get("points"))
        for name, mark in by_id.items()
        if "-cell-" not in name
    }
    assert kinds == {
        "99-predict": (True, False, False, None),
        "99-predict-check": (False, False, True, None),
        "99-predict-test": (False, True, True, 1),
        "99-mean": (True, False, False, None),
        "99-mean-check": (False, False, True, None),
        "99-mean-test": (False, True, True, 3),
        "99-name": (True, False, False, None),
        "99-name-check": (False, False, True, None),
        "99-name-test": (False, True, True, 1),
        "99-why": (True, True, False, 2),
    }
    assert all(mark["schema_version"] == 3 and not mark["task"] for mark in marks)


@pytest.mark.parametrize("solutions", [False, True])
def test_a_copy_is_a_valid_notebook_with_fixed_ids_of_its_own(cells, solutions, tmp_path):
    made = exercises.notebook(copied(cells, solutions=solutions))
    nbformat.validate(made)
    exercises.write(made, tmp_path / "new/x.ipynb")
    content = (tmp_path / "new/x.ipynb").read_bytes()
    assert content.endswith(b"}\n")
    again = nbformat.reads(content.decode(), as_version=4)
    nbformat.validate(again)
    assert again == made
    ids = [cell.id for cell in again.cells]
    assert len(set(ids)) == len(ids)
    assert all(not cell.get("outputs") for cell in again.cells)


def test_an_id_that_occurs_twice_is_refused(source):
    source.write_text(SAMPLE.replace('answer="99-mean"', 'answer="99-predict"'), encoding="utf-8")
    with pytest.raises(ValueError, match="99 has two cells '99-predict', expected one; rename one"):
        copied(exercises.drawn(exercises.read(source), None))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    ### END SOLUTION", "    ### END SOLUTIONS"),
        ("    ### END SOLUTION", ""),
        ("    ### BEGIN SOLUTION\n", ""),
        ("### BEGIN SOLUTION\nprediction = 3.25\n### END SOLUTION", "prediction = 3.25"),
        ("    ### BEGIN SOLUTION\n", "    ### BEGIN SOLUTION \n"),
        ("    ### BEGIN SOLUTION\n", "    # BEGIN SOLUTION\n"),
        ("### BEGIN HIDDEN TESTS\nhidden", "### BEGIN HIDDEN TEST\nhidden"),
        ("### BEGIN HIDDEN TESTS\nhidden", "## BEGIN HIDDEN TESTS\nhidden"),
        (")\n### END HIDDEN TESTS", ")"),
        ("### BEGIN PLANTED\n", "### BEGIN PLANTED \n"),
        ("### END PLANTED\n", ""),
    ],
)
def test_no_copy_is_made_where_a_misspelt_mark_would_show_what_is_hidden(source, old, new):
    assert old in SAMPLE
    source.write_text(SAMPLE.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match="mend its marks|no solution between its marks"):
        copied(exercises.drawn(exercises.read(source), None))


# ----------------------------------------------------------------------------------- grading


@pytest.mark.parametrize("variant", [None, 1, 2])
def test_the_solution_earns_all_points_and_the_stubs_none(source, variant):
    cells = exercises.drawn(exercises.read(source), variant)
    assert points(cells) == POINTS
    results = marking.grade(cells, marking.answers_in(copied(cells)))
    assert {result.name: (result.points, result.said) for result in results} == {
        name: (0, "not answered yet") for name in POINTS
    }
    assert marking.grade(cells, {}) == results


def test_a_wrong_answer_earns_its_part_and_is_told_why(cells):
    wrong = next(cell.source for cell in cells if "wrong" in cell.metadata)
    assert points(cells, mean=wrong) == POINTS | {"99-mean": 1}
    assert (
        "1 of 3 points: the mean: this is the mean of the micro"
        in said(cells, mean=wrong)["99-mean"]
    )


DEF = "def mean(parts, sizes):\n    "
SOLUTION = f"{DEF}return sum(n * m for n, m in zip(sizes, parts)) / sum(sizes)"
BAD = {
    "nothing": ("", "NameError: name 'mean' is not defined"),
    "a comment": ("# ?", "NameError: name 'mean' is not defined"),
    "the stub": ("raise NotImplementedError()", "not answered yet"),
    "None": (f"{DEF}pass", "the mean: your answer is None"),
    "a text": (f"{DEF}return 'x'", "the mean: your answer is a str"),
    "its own error": (f"{DEF}return 1 / 0", "ZeroDivisionError: division by zero"),
    "an error on two lines": (f"{DEF}raise OSError('a\\nb')", "OSError: a b"),
    "an error without end": (f"{DEF}raise OSError('x' * 10**6)", "OSError: xxxxxxxxx"),
    "an error that cannot be shown": (
        f"class E(Exception):\n    def __str__(self):\n        raise self\n{DEF}raise E()",
        "E: <exception str() failed>",
    ),
    "an error that is no Exception": (f"{DEF}raise GeneratorExit('a')", "GeneratorExit: a"),
    "recursion": (f"{DEF}return mean(parts, sizes)", "RecursionError: maximum recursion depth"),
    "sys.exit()": ("import sys\nsys.exit()", "SystemExit: "),
    "sys.exit() when called": (f"import sys\n{DEF}sys.exit(0)", "SystemExit: 0"),
    "exit in a loop": (f"import sys\n{DEF}while True: sys.exit(3)", "SystemExit: 3"),
    "a syntax error": ("def mean(:", "SyntaxError: invalid syntax (<cell>, line 1)"),
    "no text": ("\0", "SyntaxError: source code string cannot contain null bytes"),
    "forbidden": (f"{DEF}return np.average(parts, weights=sizes)", "mean() uses average"),
    "a class": ("class mean:\n    def __init__(self, *a): pass", "the mean: your answer is a mean"),
    "WrongAnswer": ("from minigrad.checking import WrongAnswer\nraise WrongAnswer('a', 'b')", "b"),
}


@pytest.mark.parametrize("answer", BAD)
def test_whatever_an_answer_does_costs_its_own_points_alone(cells, answer, capsys):
    text, reason = BAD[answer]
    assert points(cells, mean=text) == POINTS | {"99-mean": 0}
    sentence = said(cells, mean=text)["99-mean"]
    assert sentence.startswith(reason)
    assert "\n" not in sentence
    assert len(sentence) < 300
    assert capsys.readouterr() == ("", "")


TRICKS = {
    "check": "check = lambda *a, **b: None",
    "grade": "grade = lambda *a, **b: 3",
    "grade that is something else": "grade = 7",
    "forbid": "def forbid(*a): pass",
    "all tools": "check = forbid = predicted = lambda *a, **b: None\ngrade = lambda n, *a, **b: n",
    "deleted tools": "del check, grade, forbid",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_an_answer_cannot_replace_what_grades_it(cells, trick):
    wrong = f"{DEF}return 0.0\n{TRICKS[trick]}"
    assert points(cells, mean=wrong)["99-mean"] == 0
    assert points(cells, mean=f"{SOLUTION}\n{TRICKS[trick]}") == POINTS
    assert points(cells, predict=f"prediction = None\n{TRICKS[trick]}")["99-predict"] == 0


@pytest.mark.parametrize(
    "more",
    [
        "print('x' * 10**6)",
        "for i in range(20000): print(i)",
        "import sys; sys.stdout.write('no newline')",
        "import sys; sys.stdout = None",
        "import sys; sys.stdout.close()",
        "import os; os.chdir('..')",
        "import pathlib; pathlib.Path('rubbish.txt').write_text('x')",
        "parts = expected = None",
        "%matplotlib inline\n!ls\n%timeit 1",
        "__name__ = 'another'",
    ],
)
def test_a_right_answer_earns_all_points_whatever_else_it_does(cells, more, capsys, tmp_path):
    before = sorted(PACKAGE.parent.iterdir()), sorted(tmp_path.iterdir())
    out = sys.stdout
    assert points(cells, mean=f"{SOLUTION}\n{more}") == POINTS
    assert capsys.readouterr() == ("", "")
    assert sys.stdout is out
    assert (sorted(PACKAGE.parent.iterdir()), sorted(tmp_path.iterdir())) == before


def test_a_magic_is_left_out_and_a_remainder_is_not(cells):
    assert points(cells, mean=f"%%time\n{SOLUTION}") == POINTS
    value, _, error = marking.run_cell("y = 4\nx = (7\n% y)\nx", {})
    assert (value, error) == (3, None)


@pytest.mark.parametrize("text", ["del sizes", "sizes = [1, 1, 1]", "def sizes(): pass"])
def test_a_name_of_the_exercise_that_an_answer_changes_is_put_back(cells, text):
    assert points(cells, predict=f"prediction = 1\n{text}") == POINTS
    assert points(cells, mean=f"{SOLUTION}\n{text}") == POINTS
    assert points(cells, mean=f"{DEF}return 0.0\nexpected = 0.0\n{text}")["99-mean"] == 0


HELPER = """
def parts(): return 3
def mean(numbers, sizes):
    return sum(n * m for n, m in zip(sizes, numbers)) / sum(sizes) + 0 * parts()
"""


def with_cell(cells, text: str, at: int):
    """The exercise with one more cell of its own."""
    new = nbformat.v4.new_code_cell(text)
    return [*cells[:at], new, *cells[at:]]


def before(cells, name: str) -> int:
    return next(i for i, cell in enumerate(cells) if cell.metadata.get("answer") == name)


def test_a_helper_may_have_the_name_of_something_that_the_exercise_no_longer_reads(cells):
    """A variable that a cell left behind, and that another one will set before it reads it."""
    own = "for left in [0, 1]: print(left, [left for _ in 'ab'])"
    for at in ("99-mean", "99-name"):
        cells = with_cell(cells, own, before(cells, at))
    assert points(cells, mean=HELPER.replace("parts()", "left()")) == POINTS


@pytest.mark.parametrize(
    "reader",
    [
        "parts",
        "[parts for _ in sizes]",
        "def f():\n    return parts",
        "class C:\n    def f(self):\n        return lambda: parts",
        "parts += [1]",
    ],
)
def test_a_helper_that_takes_a_name_which_the_exercise_reads_is_told_so(cells, reader):
    at = before(cells, "99-mean")
    cells = with_cell(cells, f"parts = [9]\n{reader}" if "def" in reader else "parts = [9]", at)
    cells = with_cell(cells, reader, before(cells, "99-name"))
    cells = [cell for cell in cells if cell.metadata.get("check") != "99-mean"]
    assert points(cells, mean=HELPER)["99-mean"] == 0
    clash = "(your cell sets `parts`, which the exercise uses: take another name)"
    assert (
        said(cells, mean=HELPER)["99-mean"] == f"TypeError: 'list' object is not callable {clash}"
    )
    assert (
        points(cells, mean=HELPER.replace("parts()", "mine()").replace("f parts", "f mine"))[
            "99-mean"
        ]
        == 3
    )


def test_what_a_cell_reads_is_what_it_does_not_set_before():
    for source, expected in {
        "x = 1\nx": set(),
        "x\nx = 1": {"x"},
        "x += 1": {"x"},
        "for x in y: x": {"y"},
        "x = 1\nz = [x for _ in 'ab']": set(),
        "x = 1\nz = sum(x for _ in 'ab')": {"sum"},
        "x = 1\ndef f(a):\n    return a + x": {"x"},
        "f = lambda a, b=y: [c(a) for d in e]": {"y", "c", "e"},
        "class A:\n    x = z\n    def f(self): return y": {"z", "y", "__name__"},
        "import a.b as c\nc.d.e": set(),
    }.items():
        assert marking.read_by(source) == expected, source


def test_an_answer_that_does_not_end_is_stopped_and_costs_its_own_points_alone(cells, monkeypatch):
    monkeypatch.setattr(marking, "LIMIT", 0.4)
    text = "the cell did not end in 0.4 s, in which each cell must"
    for answer in (
        "while True: pass",
        f"{DEF}while True: pass",
        "try:\n    while True: pass\nexcept BaseException:\n    raise ValueError('mine')",
    ):
        assert points(cells, mean=answer) == POINTS | {"99-mean": 0}
        assert said(cells, mean=answer)["99-mean"] == text
    assert points(cells) == POINTS
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background
    try:
        assert said(cells, mean="while True: pass")["99-mean"] == text
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, usual)


def test_each_result_is_there_before_the_next_answer_is_run(cells):
    answers = marking.answers_in(cells) | {"99-name": "raise KeyboardInterrupt"}
    results = marking.each_graded(cells, answers)
    assert [next(results).name for _ in range(2)] == ["99-predict", "99-mean"]
    with pytest.raises(KeyboardInterrupt):
        next(results)


def test_what_is_only_looked_for_is_not_called_right(source):
    asked = '"99-name" points=1\n### BEGIN HIDDEN TESTS\n'
    text = SAMPLE.replace("    predicted,\n", "    predicted, corrected,\n")
    text = text.replace(asked, f"{asked}corrected('a b c d e f')\n")
    source.write_text(text, encoding="utf-8")
    cells = exercises.drawn(exercises.read(source), None)
    assert said(cells, predict="prediction = 99")["99-predict"] == "predicted; the run tells"
    assert said(cells)["99-name"] == "there; a person reads it"
    assert said(cells)["99-mean"] == "right"


def test_cells_that_a_student_added_are_run_before_the_answer_that_they_stand_before(
    cells, tmp_path, capsys
):
    text = f"{DEF}return mine(parts, sizes)"
    path = student_of(cells, tmp_path / "x.ipynb", mean=text)
    student = exercises.read(path)
    at = next(i for i, c in enumerate(student) if c.source == text)
    assert "NameError: name 'mine' is not defined" in checked(path, capsys)[1]
    helper = nbformat.v4.new_code_cell(SOLUTION.replace("def mean", "def mine"))
    broken = nbformat.v4.new_code_cell("1 / 0")  # somebody tried something
    exercises.write(exercises.notebook([*student[:at], helper, broken, *student[at:]]), path)
    assert "5 of 5 points" in checked(path, capsys)[1]


def test_ctrl_c_is_the_user_s_and_no_answer(cells):
    with pytest.raises(KeyboardInterrupt):
        points(cells, mean="raise KeyboardInterrupt")


def test_a_fault_of_the_exercise_itself_is_not_blamed_on_an_answer(source):
    source.write_text(SAMPLE.replace("import numpy as np", "import numpie"), encoding="utf-8")
    with pytest.raises(RuntimeError, match="a cell of the exercise failed: ModuleNotFoundError"):
        points(exercises.drawn(exercises.read(source), None))
    source.write_text(SAMPLE.replace("grade(1, lambda", "(lambda n, f: 2)(1, lambda"), "utf-8")
    with pytest.raises(RuntimeError, match="the tests of 99-predict end in 2, expected 0 to 1"):
        points(exercises.drawn(exercises.read(source), None))


@pytest.mark.parametrize("text", ["", "  \n", "YOUR ANSWER HERE", "YOUR ANSWER HERE\n"])
def test_an_answer_in_words_is_a_person_s_to_grade_unless_it_is_empty(cells, text):
    assert points(cells, why=text)["99-why"] == 0
    assert said(cells, why=text)["99-why"] == "not answered yet"
    assert points(cells, why="Because.")["99-why"] is None


# ---------------------------------------------------------------------- minigrad check: files


def test_check_prints_points_and_reasons_and_its_exit_code_says_whether_all_were_given(
    cells, tmp_path, capsys
):
    path = student_of(cells, tmp_path / "answered.ipynb")
    code, output, errors = checked(path, capsys)
    assert (code, errors) == (0, "")
    assert output.splitlines() == [
        "99-predict               1 of 1       predicted; the run tells",
        "99-mean                  3 of 3       right",
        "99-name                  1 of 1       predicted; the run tells",
        "99-why                     by a person a person reads it",
        "5 of 5 points, and up to 2 more by a person",
    ]
    path = student_of(cells, path, mean="def mean(parts, sizes): return sum(parts) / 3", why="")
    code, output, errors = checked(path, capsys)
    assert (code, errors) == (1, "")
    assert "99-mean                  1 of 3       1 of 3 points: the mean: this is the" in output
    assert output.splitlines()[-1] == "3 of 7 points"


def test_a_variant_is_graded_by_its_own_numbers(source, tmp_path, capsys):
    for seed in (1, 2):
        cells = exercises.drawn(exercises.read(source), seed)
        path = student_of(cells, tmp_path / "x.ipynb", mean=f"{DEF}return expected")
        assert checked(path, capsys)[0] == 1
        assert checked(student_of(cells, path), capsys)[0] == 0


def test_a_student_who_calls_something_variant_is_graded_by_the_numbers_of_the_copy(
    cells, tmp_path, capsys
):
    path = student_of(cells, tmp_path / "x.ipynb", predict="variant = 2\nprediction = 1")
    name = student_of(cells, tmp_path / "y.ipynb", mean=f"{SOLUTION}\nvariant = 2")
    assert exercises.variant_of(exercises.read(path)) is None
    assert checked(path, capsys)[0] == checked(name, capsys)[0] == 0


def test_the_exercise_can_be_a_script_of_cells(cells, tmp_path, capsys):
    for answer in (SOLUTION, f"{DEF}return sum(parts) / 3", f"{DEF}return None"):
        path = student_of(cells, tmp_path / "x.ipynb", mean=answer)
        script = path.with_suffix(".py")
        jupytext.write(jupytext.read(path), script, fmt="py:percent")
        assert checked(script, capsys) == checked(path, capsys)


def tampered(change):
    def changed(made):
        for cell in made.cells:
            change(cell)

    return changed


def lock_broken(cell):
    mark = cell.metadata["nbgrader"]
    if mark["locked"] and cell.cell_type == "code":
        cell.source = "check = grade = lambda *a, **k: 3\nsizes = [1, 1, 1]\n3"
        mark |= {"locked": False, "solution": True, "points": 100}


TAMPERED = {
    "locked cells changed": tampered(lock_broken),
    "locked cells removed": lambda made: made.update(
        cells=[c for c in made.cells if c.metadata["nbgrader"]["solution"]]
    ),
    "cells in another order": lambda made: made.cells.reverse(),
    "another seed": tampered(
        lambda cell: cell.update(
            source=re.sub("^variant = None", f"variant = {'9' * 5000}", cell.source)
        )
    ),
    "more cells": lambda made: made.cells.insert(0, nbformat.v4.new_code_cell("1 / 0")),
    "points changed": tampered(lambda cell: cell.metadata["nbgrader"].update(points=1000)),
    "outputs left": tampered(
        lambda cell: cell.update(outputs=[]) if cell.cell_type == "code" else None
    ),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_tampered_file_earns_what_its_answers_earn(cells, how, tmp_path, capsys):
    for answer, earned in (("sum(parts) / 3", "3 of 5"), ("0.0", "2 of 5")):
        path = student_of(cells, tmp_path / "x.ipynb", mean=f"{DEF}return {answer}")
        made = nbformat.read(path, as_version=4)
        TAMPERED[how](made)
        exercises.write(made, path)
        code, output, _ = checked(path, capsys)
        assert (code, output.splitlines()[-1].split(" points")[0]) == (1, earned)


def test_a_missing_answer_is_one_that_is_not_given(cells, tmp_path, capsys):
    path = student_of(cells, tmp_path / "x.ipynb")
    made = nbformat.read(path, as_version=4)
    made.cells = [c for c in made.cells if c.metadata["nbgrader"]["grade_id"] != "99-mean"]
    exercises.write(made, path)
    code, output, _ = checked(path, capsys)
    assert code == 1
    assert "99-mean                  0 of 3       not answered yet" in output


def as_json(made, **changes):
    return json.dumps({**made, **changes})


def test_notebooks_of_other_tools_are_read(cells, tmp_path, capsys):
    path = student_of(cells, tmp_path / "x.ipynb")
    made = json.loads(path.read_text(encoding="utf-8"))
    for cell in made["cells"]:
        del cell["id"]
    for minor in (0, 4, 5):  # 4.5 asks for ids, and some write it without
        path.write_text(as_json(made, nbformat_minor=minor), encoding="utf-8")
        assert checked(path, capsys)[::2] == (0, "")
    for cell in made["cells"]:
        cell["id"] = "twice"
    path.write_text(as_json(made), encoding="utf-8")
    assert checked(path, capsys)[::2] == (0, "")


EMPTY = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}
CODE = {"cell_type": "code", "id": "a", "source": "1", "outputs": [], "execution_count": None}
NO_EXERCISES = {
    "empty.ipynb": "",
    "empty.py": "",
    "text.ipynb": "not JSON",
    "list.ipynb": "[]",
    "number.ipynb": "1",
    "null.ipynb": "null",
    "object.ipynb": "{}",
    "version.ipynb": json.dumps({**EMPTY, "nbformat": 99}),
    "no_cells.ipynb": json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}}),
    "cells.ipynb": json.dumps({**EMPTY, "cells": 3}),
    "cell.ipynb": json.dumps({**EMPTY, "cells": [3]}),
    "no_metadata.ipynb": json.dumps({**EMPTY, "cells": [CODE]}),
    "no_answers.ipynb": json.dumps(EMPTY),
    "marks.ipynb": json.dumps({**EMPTY, "cells": [{**CODE, "metadata": {"nbgrader": "x"}}]}),
    "no_id.ipynb": json.dumps(
        {**EMPTY, "cells": [{**CODE, "metadata": {"nbgrader": {"solution": True}}}]}
    ),
    "list_id.ipynb": json.dumps(
        {**EMPTY, "cells": [{**CODE, "metadata": {"nbgrader": {"solution": 1, "grade_id": [1]}}}]}
    ),
    "script.py": "print('hello')\n",
    "syntax.py": "# %% answer=\nx = (\n",
    "no_suffix": "x",
}


@pytest.mark.parametrize("name", NO_EXERCISES)
def test_a_file_that_is_no_exercise_is_refused_in_one_sentence(name, source, tmp_path, capsys):
    (tmp_path / name).write_text(NO_EXERCISES[name], encoding="utf-8")
    refused(tmp_path / name, capsys)


@pytest.mark.parametrize("name", ["binary.ipynb", "binary.py"])
def test_a_binary_file_is_refused_in_one_sentence(name, source, tmp_path, capsys):
    (tmp_path / name).write_bytes(b"\x89PNG\r\n\x1a\n\0\xff" * 100)
    refused(tmp_path / name, capsys)


def test_what_is_no_file_is_refused_in_one_sentence(source, tmp_path, capsys):
    for path in ("missing.ipynb", "missing.py", "00", "", "lessons/exercises/99_sample.py/x.ipynb"):
        said = refused(tmp_path / path, capsys)
        assert f"{tmp_path / path} cannot be read (" in said
        assert "), expected the notebook of an exercise; see `minigrad course DIR`" in said
        assert "Errno" not in said


def test_a_notebook_of_another_course_is_refused_in_one_sentence(cells, tmp_path, capsys):
    path = student_of(cells, tmp_path / "x.ipynb")
    path.write_text(path.read_text(encoding="utf-8").replace("99-", "other-"), encoding="utf-8")
    assert "answers 'other-predict', which no exercise here asks for" in refused(path, capsys)


def test_a_notebook_that_lost_nbgrader_s_marks_is_told_what_happened(cells, tmp_path, capsys):
    path = student_of(cells, tmp_path / "x.ipynb")
    made = nbformat.read(path, as_version=4)
    for cell in made.cells:
        del cell.metadata["nbgrader"]
    exercises.write(made, path)
    said = refused(path, capsys)
    assert "some editors remove nbgrader's marks from its cells" in said
    assert "paste the answers into a fresh copy, which `minigrad course DIR` writes" in said


def test_a_lesson_is_no_exercise(capsys):
    for lesson in sorted((PACKAGE.parent / "lessons").glob("[0-9][0-9]_*.py"))[:1]:
        assert "holds no cell with an answer, expected an exercise" in refused(lesson, capsys)


def refused(path, capsys) -> str:
    code, output, errors = checked(path, capsys)
    assert (code, output) == (2, "")
    assert errors.startswith("minigrad check: ")
    assert errors.count("\n") == 1
    assert path.name in errors
    assert len(errors) < 600
    return errors


def test_check_without_an_argument_names_it(capsys):
    assert cli.main(["check"]) == 2
    assert "FILE" in capsys.readouterr().err


def test_without_jupytext_a_sentence_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "jupytext", None)
    code, output, errors = checked(tmp_path / "x.ipynb", capsys)
    assert (code, output) == (2, "")
    assert errors == (
        "minigrad check: jupytext is not installed, and reading an exercise needs it; "
        "python -m pip install jupytext\n"
    )


# ------------------------------------------------------------- from an installed package, alone


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """An installed package holds no sources."""
    (tmp_path / "shipped/exercises").mkdir(parents=True)
    monkeypatch.setattr(exercises, "folder", lambda: tmp_path / "shipped")


def test_without_sources_the_checks_of_the_file_say_right_or_wrong(
    cells, installed, tmp_path, capsys
):
    path = student_of(cells, tmp_path / "x.ipynb")
    code, output, errors = checked(path, capsys)
    assert (code, errors) == (0, "")
    assert output.splitlines()[1:] == [
        "99-predict               saved, right or wrong",
        "99-mean                  right",
        "99-name                  saved, right or wrong",
    ]
    for answer, reason in (
        (f"{DEF}return sum(parts) / 3", "the mean: this is the mean of the micro-batches' means"),
        ("raise NotImplementedError()", "not answered yet"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
    ):
        code, output, errors = checked(student_of(cells, path, mean=answer), capsys)
        assert (code, errors) == (1, "")
        assert "sources of the exercises are not installed" in output
        assert reason in output
        assert "99-predict               saved, right or wrong" in output


def test_without_sources_a_file_whose_checks_were_deleted_is_not_right(
    cells, installed, tmp_path, capsys
):
    path = student_of(cells, tmp_path / "x.ipynb")
    made = nbformat.read(path, as_version=4)
    made.cells = [c for c in made.cells if not c.metadata["nbgrader"]["locked"]]
    exercises.write(made, path)
    code, output, errors = checked(path, capsys)
    assert (code, errors) == (1, "")
    assert "the file holds no check" in output


# -------------------------------------------------------------------------- the real exercises

LESSONS = sorted((PACKAGE.parent / "lessons").glob("[0-9][0-9]_*.py"))
REAL = sorted((PACKAGE.parent / "lessons/exercises").glob("[0-9][0-9]_*.py"))
each = pytest.mark.parametrize("path", REAL, ids=[path.stem for path in REAL])
each_variant = pytest.mark.parametrize("variant", [None, 1, 2, 3])


def in_variant(path, variant):
    return exercises.drawn(exercises.read(path), variant)


def wrong_answers(cells):
    return [cell for cell in cells if "wrong" in cell.metadata]


def by_name(cells, answers) -> dict[str, marking.Result]:
    return {result.name: result for result in marking.grade(cells, answers)}


def full(results) -> bool:
    return all(result.points in (None, result.out_of) for result in results)


def test_every_lesson_has_exercises():
    assert [path.name for path in REAL] == [path.name for path in LESSONS]


@each
@each_variant
def test_the_solution_of_an_exercise_earns_all_points_and_no_cell_of_it_fails(
    path, variant, monkeypatch
):
    failures, run_cell = [], marking.run_cell

    def watched(source, names):
        value, printed, failure = run_cell(source, names)
        failures.extend([source, failure] if failure else [])
        return value, printed, failure

    monkeypatch.setattr(marking, "run_cell", watched)
    cells = in_variant(path, variant)
    results = marking.grade(cells, marking.answers_in(cells))
    assert failures == []
    assert full(results)
    assert {result.said for result in results} == {
        *("right", "predicted; the run tells", "there; a person reads it", "a person reads it"),
    }


@each
@each_variant
def test_an_exercise_that_is_not_answered_earns_nothing(path, variant):
    cells = in_variant(path, variant)
    results = marking.grade(cells, marking.answers_in(exercises.copy_of(cells, path.stem[:2])))
    assert {(result.points, result.said) for result in results} == {(0, "not answered yet")}


@each
@each_variant
def test_a_wrong_answer_of_an_exercise_earns_its_part_and_its_explanation(path, variant):
    """Each answer's first wrong one in one run, each one's second in the next, and so on."""
    cells = in_variant(path, variant)
    solution, waiting = marking.answers_in(cells), wrong_answers(cells)
    while waiting:
        now = {cell.metadata["of"]: cell for cell in reversed(waiting)}
        waiting = [cell for cell in waiting if cell is not now[cell.metadata["of"]]]
        results = by_name(cells, solution | {of: cell.source for of, cell in now.items()})
        for of, cell in now.items():
            result, expected = results.pop(of), cell.metadata
            assert (expected["wrong"], result.points) == (expected["wrong"], expected["earns"])
            assert expected["because"] in result.said
        assert full(results.values())


@each
def test_a_wrong_answer_of_an_exercise_costs_no_points_elsewhere(path):
    cells = in_variant(path, None)
    solution = marking.answers_in(cells)
    for of, group in itertools.groupby(wrong_answers(cells), lambda cell: cell.metadata["of"]):
        results = by_name(cells, solution | {of: next(group).source})
        assert results.pop(of).points is not None
        assert full(results.values())


def lines_of(path) -> tuple[set[str], set[str]]:
    """The lines of a source that a student may see, and those that only others may."""
    shown, secret, hidden = set(), set(), False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# %%"):
            hidden = " wrong=" in line or " manual=" in line or '"draw"' in line
        elif line.strip().startswith("### BEGIN"):
            hidden = True
        elif line.strip().startswith("### END"):
            hidden = False
        else:
            (secret if hidden else shown).add(line.strip().removeprefix("# "))
    return shown, secret - shown - {""}


@each
@each_variant
def test_a_student_s_copy_of_an_exercise_shows_nothing_of_what_is_hidden(path, variant):
    made = exercises.notebook(exercises.copy_of(in_variant(path, variant), path.stem[:2]))
    nbformat.validate(made)
    _, secret = lines_of(path)
    assert len(secret) > 20
    assert not secret & {line.strip() for line in text_of(made.cells).splitlines()}
    assert not re.search(r"SOLUTION|HIDDEN|BEGIN|\{\{|because=|earns=", json.dumps(made))
    assert all(not cell.get("outputs") for cell in made.cells)
    assert len({cell.id for cell in made.cells}) == len(made.cells)


@each
@each_variant
def test_an_exercise_has_what_every_exercise_has(path, variant):
    cells = in_variant(path, variant)
    tests = {c.metadata["test"]: c for c in cells if "test" in c.metadata}
    wrongs = wrong_answers(cells)
    answers = {c.metadata["answer"] for c in cells if "answer" in c.metadata}
    checks = {c.metadata["check"] for c in cells if "check" in c.metadata}
    assert len(tests) >= 3
    assert set(tests) == answers <= checks
    assert {c.metadata["of"] for c in wrongs} <= answers
    for name, test in tests.items():
        earns = [c.metadata["earns"] for c in wrongs if c.metadata["of"] == name]
        assert all(0 <= one < test.metadata["points"] for one in earns), name
        assert earns, f"{name} names no wrong answer"
    assert all(len(c.metadata["because"]) >= 5 for c in wrongs)
    assert any("predicted(" in test.source for test in tests.values())
    assert any("corrected(" in test.source for test in tests.values())
    by_hand = [c for c in cells if "manual" in c.metadata]
    assert by_hand
    assert all(c.metadata["points"] == 2 for c in by_hand)  # its rubric says 0, 1, 2
    text = text_of(c for c in cells if exercises.is_text(c))
    assert len(re.findall(r"^## \d", text, re.MULTILINE)) >= 3
    assert "Find the fault" in text
    assert "Write" in text


@each
def test_whichever_fault_is_planted_a_copy_has_the_same_ids_and_as_many_cells(path):
    """No id tells which it is, and no misspelt `when` leaves the loop out."""
    cells, ids = exercises.read(path), set()
    for seed in range(40):
        copied = exercises.copy_of(exercises.drawn(cells, seed), path.stem[:2])
        ids.add(tuple(cell.metadata["nbgrader"]["grade_id"] for cell in copied))
    assert len(ids) == 1


def test_the_ids_of_all_exercises_are_different_and_begin_with_their_lesson():
    ids = []
    for path in REAL:
        made = exercises.copy_of(in_variant(path, None), path.stem[:2])
        found = [cell.metadata["nbgrader"]["grade_id"] for cell in made]
        assert all(name.startswith(f"{path.stem[:2]}-") for name in found)
        ids += found
    assert len(set(ids)) == len(ids)


@each
def test_two_seeds_of_an_exercise_differ_and_one_seed_twice_does_not(path):
    def text(variant):
        return nbformat.writes(
            exercises.notebook(exercises.copy_of(in_variant(path, variant), path.stem[:2]))
        )

    texts = {variant: re.sub("variant = .*", "", text(variant)) for variant in (None, 1, 2, 3)}
    assert len(set(texts.values())) == 4
    assert text(1) == text(1)


@each
def test_what_an_exercise_draws_are_its_parameters_as_plain_values(path):
    cells = exercises.read(path)
    names: dict = {}
    exec("import numpy as np", names)
    (draw,) = [c for c in cells if "draw" in c.metadata.get("tags", [])]
    exec(draw.source, names)
    standing: dict = {}
    exec(parameters_of(cells), standing)
    assert standing["variant"] is None
    (planted,) = re.findall("### BEGIN PLANTED\n(\\w+) = .+\n### END PLANTED", parameters_of(cells))
    for seed in range(20):
        values = names["draw"](names["np"].random.default_rng(seed))
        assert values.keys() <= standing.keys() - {"variant"}
        assert ast.literal_eval(repr(values)) == values
        again: dict = {}
        exec(parameters_of(exercises.drawn(cells, seed)), again)
        assert values.pop(planted)
        assert planted not in again
        assert {name: again[name] for name in values} == values


@each
def test_an_exercise_needs_only_lessons_up_to_its_own(path):
    text = text_of(exercises.read(path))
    linked = re.findall(r"\]\(\.\./(\d\d)_\w+\.ipynb", text)
    assert path.stem[:2] in linked
    assert max(linked) <= path.stem[:2]
    assert max([*re.findall(r"[Ll]essons? (\d\d)\b", text), "00"]) <= path.stem[:2]
    for target in re.findall(r"\]\(([^):#]+)", text):
        file = path.parent / target
        assert file.exists() or file.with_suffix(".py").exists(), target


def test_the_command_runs_as_a_program_from_any_folder(tmp_path):
    path = REAL[0]
    solved = exercises.copy_of(in_variant(path, 1), path.stem[:2], solutions=True)
    exercises.write(exercises.notebook(solved), tmp_path / "x.ipynb")
    result = subprocess.run(
        [sys.executable, "-m", "minigrad", "check", "x.ipynb"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert [file.name for file in tmp_path.iterdir()] == ["x.ipynb"]
