"""Show code in a lesson, from the file that runs: what is read is what runs."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any


def show_source(*things: Any) -> None:
    """Show functions, classes or a module of minigrad, with their file and lines."""
    for thing in things:
        lines, first = inspect.getsourcelines(thing)
        module = inspect.getmodule(thing)
        path = Path(module.__file__)
        place = path.relative_to(Path(__file__).parent.parent).as_posix()
        first = max(first, 1)
        head = f"{place}, lines {first} to {first + len(lines) - 1}"
        code = "".join(lines).rstrip()
        if in_notebook():
            from IPython.display import Markdown, display

            display(Markdown(f"`{head}`\n\n```python\n{code}\n```"))
        else:
            print(f"# {head}\n{code}\n")


def in_notebook() -> bool:
    """Does this run in Jupyter, where pictures and text can be shown below a cell?"""
    shell = "IPython" in sys.modules and sys.modules["IPython"].get_ipython()
    return hasattr(shell, "kernel")
