"""Count lines of code: what is neither blank, nor a comment, nor a docstring.

`python -m tests.lines` writes the counts into the README's map.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "minigrad"

# In the order in which the package is read; imports point only upwards.
READING_ORDER = [
    "arrays.py",
    "tensor.py",
    "functions.py",
    "losses.py",
    "samples.py",
    "randomness.py",
    "layers.py",
    "normalization.py",
    "batchnorm.py",
    "flat.py",
    "optimizers.py",
    "batches.py",
    "noise.py",
    "coupling.py",
    "accumulation.py",
    "device.py",
    "memory.py",
    "training.py",
    "streaming.py",
    "schedules.py",
    "layerwise.py",
    "stochastic.py",
    "gradcheck.py",
    "data/__init__.py",
    "reading.py",
    "plotting.py",
    "command.py",
    "demo.py",
    "four_ways.py",
    "noise_on_digits.py",
    "rates.py",
    "explain.py",
    "checking.py",
    "exercises.py",
    "marking.py",
    "lessons.py",
    "course.py",
    "cli.py",
]


def lines_of_code(path: Path) -> int:
    """The lines of a Python file that hold code."""
    source = path.read_text(encoding="utf-8")
    quiet = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in quiet | {tokenize.ENDMARKER}:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            docstring = node.body[0]
            lines -= set(range(docstring.lineno, docstring.end_lineno + 1))
    return len(lines)


def counted(readme: str) -> str:
    """The README with the right counts in its map."""
    for name in READING_ORDER:
        row = rf"(\(minigrad/{re.escape(name)}\) \| .+ \| )\d+( \|)$"
        count = lines_of_code(PACKAGE / name)
        readme = re.sub(row, rf"\g<1>{count}\g<2>", readme, flags=re.MULTILINE)
    return readme


if __name__ == "__main__":
    page = PACKAGE.parent / "README.md"
    page.write_text(counted(page.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
