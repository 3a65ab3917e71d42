"""Exercises: one source, the copies made from it, and their points.

lessons/exercises/NN_name.py is a script of cells; the line `# %%` above each says what it is:

    tags=["parameters"]       the numbers of this exercise, and `variant = None`; those between
                              ### BEGIN PLANTED and ### END PLANTED are shown to no student
    tags=["draw"]             def draw(rng) -> dict: those numbers in another variant
    when="fault == 'tail'"    the cell is there only if this holds of the numbers
    answer="id"               the student's, in place of ### BEGIN SOLUTION ... ### END SOLUTION
    check="id"                says at once why that answer is wrong
    test="id" points=3        ### BEGIN HIDDEN TESTS ... ### END HIDDEN TESTS, which end in points
    [markdown] manual="id" points=2     an answer that a person grades
    wrong="name" of="id" earns=1 because="..."  a wrong answer that students give: what it earns,
                              and words that the explanation must contain

A cell without such a word is shown as it is; {{name}} in its text is the number of that name, and
{{practice}} a sentence that stands where no variant was drawn. `build_exercise` makes the student's
notebook and the instructor's; marking.py grades one, nbgrader a class. Reading and writing
notebooks is jupytext's and nbformat's work.
"""

from __future__ import annotations

import ast
import copy
import re
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

STUB = ("# YOUR CODE HERE", "raise NotImplementedError()")  # what nbgrader puts there too
TEXT_STUB = "YOUR ANSWER HERE"
BEGIN_SOLUTION = "### BEGIN SOLUTION\n"
BEGIN_HIDDEN, END_HIDDEN = "### BEGIN HIDDEN TESTS\n", "### END HIDDEN TESTS"
WORDS = ("answer", "check", "test", "manual")  # each holds an id
PLACE = re.compile(r"\{\{([A-Za-z]\w*(?:\[\w+\])?)\}\}")  # {{name}} or {{name[0]}} in a text
PLANTED = re.compile(r"### BEGIN PLANTED\n(.*?)### END PLANTED\n?", re.DOTALL)
PRACTICE = (
    "These exercises are for practice: their sources, with solutions, are public. For grades, an\n"
    "instructor draws another variant."
)
DIGITS = 40  # that a seed may have
MARK = re.compile(r"(BEGIN|END) (SOLUTION|HIDDEN TESTS|PLANTED)")
LANGUAGE = {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"}
KERNEL = {"name": "python3", "language": "python", "display_name": "Python 3 (ipykernel)"}


def folder() -> Path:
    """The lessons: those of the clone, or what an installed package holds of them."""
    shipped = Path(__file__).parent / "shipped/lessons"
    return shipped if shipped.exists() else Path(__file__).parent.parent / "lessons"


def sources() -> list[Path]:
    """The sources of the exercises, in order: none in an installed package."""
    return sorted((folder() / "exercises").glob("[0-9][0-9]_*.py"))


def read(path: str | Path) -> list[Any]:
    """The cells of a notebook, or of a script of cells. Raises OSError, ValueError."""
    import jupytext
    import nbformat
    from nbformat.validator import normalize

    content = Path(path).read_bytes()
    try:
        text = content.decode("utf-8")
        if Path(path).suffix != ".ipynb":
            return jupytext.reads(text, fmt="py:percent").cells
        with warnings.catch_warnings(action="ignore"):  # cells without an id can be read
            _, made = normalize(nbformat.convert(nbformat.reader.reads(text), 4))
        nbformat.validate(made)
        return made.cells
    except Exception as error:  # whatever the readers raise: the file is no notebook
        reason = in_a_line(error)
        raise ValueError(f"{path} cannot be read as a notebook: {reason}") from error


def notebook(cells: list[Any], **metadata: Any) -> Any:
    """Cells as a notebook with fixed ids, so that the same cells are the same bytes."""
    import nbformat

    made = nbformat.v4.new_notebook()
    made.metadata = {"kernelspec": KERNEL, "language_info": LANGUAGE, **metadata}
    for number, cell in enumerate(cells):
        new = nbformat.v4.new_markdown_cell if is_text(cell) else nbformat.v4.new_code_cell
        kept = {k: v for k, v in cell.metadata.items() if k != "lines_to_next_cell"}
        made.cells.append(new(cell.source, metadata=kept, id=f"cell-{number:02}"))
    return nbformat.from_dict(made)


def write(made: Any, path: Path) -> None:
    """Write a notebook, ending in a newline, as git likes it."""
    import nbformat

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(nbformat.writes(made).rstrip() + "\n", encoding="utf-8", newline="\n")


def is_text(cell: Any) -> bool:
    """Is it Markdown?"""
    return cell.cell_type == "markdown"


def in_a_line(error: BaseException) -> str:
    """What an error says, on one line and not without end, whoever wrote it."""
    return on_a_line(str(traceback.TracebackException.from_exception(error, limit=0)))


def on_a_line(text: str) -> str:
    """A text on one line, and not without end."""
    return " ".join(text.split())[:200]


# ---------------------------------------------------------------------------- variants


def drawn(cells: list[Any], variant: int | None) -> list[Any]:
    """The cells of one variant: its numbers put in, cells of other variants left out.

    variant: a seed, or None for the numbers as they stand in the source. Hidden tests import their
    tools again: an answer may have given the names to something else.
    """

    def tagged(tag: str) -> list[Any]:
        return [cell for cell in cells if tag in cell.metadata.get("tags", [])]

    cells = copy.deepcopy(cells)
    names: dict[str, Any] = {"np": np, "practice": PRACTICE if variant is None else ""}
    for cell in tagged("draw") if variant is not None else []:
        exec(cell.source, names)
        values = {**names["draw"](np.random.default_rng(variant)), "variant": variant}
        for parameters in tagged("parameters"):
            parameters.source = _assign(parameters.source, values)
    planted = ""
    for parameters in tagged("parameters"):
        exec(parameters.source, names)
        planted = "".join(PLANTED.findall(parameters.source))
        parameters.source = PLANTED.sub("", parameters.source).rstrip("\n")
    kept = []
    for cell in cells:
        if "draw" not in cell.metadata.get("tags", []) and eval(
            cell.metadata.pop("when", "True"), names
        ):
            if is_text(cell):
                cell.source = PLACE.sub(lambda m: str(eval(m[1], names)), cell.source)
            kept.append(cell)
    tools = _tools(kept)
    for cell in kept:
        known = planted if _uses(cell, planted) else ""
        if "test" in cell.metadata:
            cell.source = cell.source.replace(BEGIN_HIDDEN, BEGIN_HIDDEN + tools + known)
        elif "answer" in cell.metadata:
            cell.source = cell.source.replace(BEGIN_SOLUTION, BEGIN_SOLUTION + known)
        elif "wrong" in cell.metadata:
            cell.source = known + cell.source
    return kept


def _uses(cell: Any, planted: str) -> bool:
    """Does a cell use one of the planted names?"""
    lines: list[Any] = ast.parse(planted).body
    names = [re.escape(line.targets[0].id) for line in lines]
    return any(re.search(rf"\b{name}\b", cell.source) for name in names)


def _tools(cells: list[Any]) -> str:
    """The lines that import what checks and grades."""
    shown = [c for c in cells if not is_text(c) and not {*WORDS, "wrong"} & c.metadata.keys()]
    nodes = [node for cell in shown for node in ast.parse(cell.source).body]
    found = [n for n in nodes if getattr(n, "module", None) == "minigrad.checking"]
    return "".join(f"{ast.unparse(node)}\n" for node in found)


def _assign(source: str, values: dict[str, Any]) -> str:
    """A cell of `name = number` lines, with other numbers. Raises ValueError for a lost name."""
    lines, left = source.split("\n"), {*values}
    for statement in reversed(ast.parse(source).body):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            if name in values:
                first, last = statement.lineno - 1, statement.end_lineno
                comment = lines[last - 1].encode()[statement.end_col_offset :].decode()
                lines[first:last] = [f"{name} = {values[name]!r}{comment}"]
                left.discard(name)
    if left:
        what = f"draw() gave {', '.join(sorted(left))}, which no line of the parameters sets"
        raise ValueError(f"{what}; write a line `name = number` for each")
    return "\n".join(lines)


def variant_of(cells: Iterable[Any]) -> int | None:
    """The seed that a copy was drawn from: the first line that sets it, before any answer, says."""
    line = rf"^variant = (None|\d{{1,{DIGITS}}})\b"
    found = [re.search(line, cell.source, re.MULTILINE) for cell in cells]
    seed = next((match[1] for match in found if match), "None")
    return None if seed == "None" else int(seed)


# ------------------------------------------------------------------------------ copies


def build_exercise(path: Path, variant: int | None = None, solutions: bool = False) -> Any:
    """The notebook of an exercise: the student's, or with `solutions` the instructor's."""
    return notebook(copy_of(drawn(read(path), variant), path.stem[:2], solutions))


def copy_of(cells: list[Any], lesson: str, solutions: bool = False) -> list[Any]:
    """The student's cells, or with `solutions` the instructor's, in the form that nbgrader reads.

    lesson: begins the ids of cells that have none. Raises ValueError if an id occurs twice.
    """
    made: list[Any] = []
    ids: set[str] = set()
    for cell in copy.deepcopy(cells):
        if "wrong" in cell.metadata:
            continue
        kind = next((word for word in WORDS if word in cell.metadata), None)
        points = cell.metadata.pop("points", None)
        name = cell.metadata.pop(kind) if kind else f"{lesson}-cell-{len(made):02}"
        grade_id = f"{name}-{kind}" if kind in ("check", "test") else name
        if grade_id in ids:
            raise ValueError(f"{lesson} has two cells {grade_id!r}, expected one; rename one")
        ids.add(grade_id)
        if kind == "test":
            what = "1 point" if points == 1 else f"{points} points"
            cell.source = f"# Tests that are not shown: {what}.\n{cell.source}"
        if not solutions:
            cell.source = _stubbed(cell, kind)
            if MARK.search(cell.source):
                raise ValueError(f"{lesson} does not hide all of {grade_id!r}: mend its marks")
        cell.metadata["nbgrader"] = {
            "schema_version": 3,
            "cell_type": cell.cell_type,
            "grade_id": grade_id,
            "grade": kind in ("test", "manual"),
            "solution": kind in ("answer", "manual"),
            "locked": kind not in ("answer", "manual"),
            "task": False,
        }
        if kind in ("test", "manual"):
            cell.metadata["nbgrader"]["points"] = points
        made.append(cell)
    return made


def _stubbed(cell: Any, kind: str | None) -> str:
    """The text of a cell without its solution and its hidden tests."""
    if kind == "manual":
        return TEXT_STUB
    solution = re.compile(
        r"([ \t]*)### BEGIN SOLUTION\n.*?[ \t]*### END SOLUTION(?=\n|$)", re.DOTALL
    )
    text = without_tests(cell.source)
    if kind == "answer" and not solution.search(text):
        raise ValueError(f"an answer has no solution between its marks:\n{text}")
    return solution.sub(lambda m: "\n".join(m[1] + line for line in STUB), text)


def without_tests(source: str) -> str:
    """The text of a cell without what is between the marks of hidden tests."""
    hidden = f"[ \t]*{BEGIN_HIDDEN}.*?[ \t]*{END_HIDDEN}\n?"
    return re.sub(hidden, "", source, flags=re.DOTALL).rstrip("\n")
