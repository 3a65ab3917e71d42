"""How minigrad's figures look, in one place: colours, lines, a white background, the same bytes.

    figure, axes = plotting.subplots(1, 2)
    axes[0].plot(...)
    plotting.show(figure, "name", "What it shows, with the numbers that matter.")

shows it in a notebook and saves it elsewhere; `save` writes a file. Only these functions import
Matplotlib, and only when they are called: the rest needs NumPy alone.
"""

from __future__ import annotations

import re
import textwrap
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from typing import Any

from minigrad.reading import in_notebook

SUFFIXES = (".svg", ".png")
AUTHOR = "minigrad"  # stands in the metadata of each figure: so a file of ours is known again
MARK = rb"<cc:Agent>\s*<dc:title>minigrad</dc:title>|tEXtAuthor\0minigrad"  # there, as bytes

# Matplotlib's petroff6 (Petroff 2021), whose colours stay apart in every kind of colour blindness.
# No figure leaves it to colour alone: each curve has a line style of its own too.
BLUE, ORANGE, RED, PURPLE, GREY, VIOLET = COLOURS = (
    "#5790fc",
    "#f89c20",
    "#e42536",
    "#964a8b",
    "#9c9ca1",
    "#7a21dd",
)
DARK = "#333338"  # text and axes
LINES = ("solid", (0, (5, 1.5)), (0, (1, 1.2)), "dashdot", (0, (8, 2)), (0, (4, 1, 1, 1, 1, 1)))

STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": DARK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": DARK,
    "axes.linewidth": 0.8,
    "axes.prop_cycle": f"cycler(color={list(COLOURS)!r}) + cycler(linestyle={list(LINES)!r})",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.facecolor": "white",  # opaque: a page may be dark
    "figure.figsize": (8.4, 4.8),  # inches; at 96 dots an inch about as wide as a page on GitHub
    "figure.titlesize": 12,
    "figure.titleweight": "bold",
    "font.size": 10,
    "grid.color": "#dcdce0",
    "grid.linewidth": 0.6,
    "legend.fontsize": 9.5,
    "legend.edgecolor": "white",
    "legend.framealpha": 1,
    "lines.linewidth": 2,
    "lines.markersize": 4,
    "savefig.dpi": 200,
    "savefig.facecolor": "white",
    "svg.hashsalt": AUTHOR,  # else the ids inside an SVG are drawn anew each time
    "text.color": DARK,
    "xtick.color": DARK,
    "xtick.labelsize": 9.5,
    "ytick.color": DARK,
    "ytick.labelsize": 9.5,
}


def available() -> bool:
    """Is Matplotlib there?"""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def style() -> AbstractContextManager[None]:
    """`with style():` figures made inside look like minigrad's, whatever the reader's settings."""
    from matplotlib import style as styles

    return styles.context(["default", STYLE])


def subplots(rows: int = 1, columns: int = 1, height: float = 3.2, **options: Any) -> tuple:
    """A figure and its axes, as pyplot's `subplots` gives them; all drawn afterwards is in style.

    height: of all, in inches. options: for Matplotlib's `Figure.subplots`, such as sharex=True.
    """
    figure = page(height)
    return figure, figure.subplots(rows, columns, **options)


def page(height: float) -> Any:
    """A figure without axes yet, for those that no table of `subplots` describes."""
    from matplotlib import style as styles
    from matplotlib.figure import Figure

    styles.use(["default", STYLE])  # to stay: some of it is read as late as when a title is set
    return Figure(figsize=(STYLE["figure.figsize"][0], height), layout="constrained")


def show(figure: Any, name: str, caption: str) -> None:
    """Show a figure in a notebook, as PNG; from a script, save NAME.png and say where.

    caption: what can be seen, with the numbers that matter, for those who cannot see it; it is
    printed below.
    """
    if in_notebook():
        from IPython.display import Image, display

        display(Image(_bytes(figure, ".png", dpi=100), alt=caption))
    else:
        folder = Path("lesson_figures")
        folder.mkdir(exist_ok=True)
        print(f"[figure: {save(figure, folder / f'{name}.png').as_posix()}]")
    print(textwrap.fill(caption, 100))


def save(figure: Any, path: str | Path) -> Path:
    """Write the figure as SVG or PNG, by the suffix of `path`; the same figure, the same bytes.

    Returns the path. Raises ValueError for another suffix, OSError if the file cannot be written.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"save() got {path.name!r}, expected a name that ends in .svg or .png")
    path.write_bytes(_bytes(figure, suffix))  # only when all of it is there: never half a file
    return path


def _bytes(figure: Any, suffix: str, **options: Any) -> bytes:
    """The figure as a file's content."""
    # Neither date nor version: what Matplotlib would write by itself is set to None or to our name.
    metadata = {
        ".svg": {"Date": None, "Creator": AUTHOR},
        ".png": {"Software": None, "Author": AUTHOR},
    }
    file = BytesIO()
    with style():
        figure.savefig(file, format=suffix[1:], metadata=metadata[suffix], **options)
    return file.getvalue()


def is_ours(path: Path, mark: bytes = MARK) -> bool:
    """Was this file written by `save`? Its metadata, near the beginning, say so.

    mark: a regular expression of what is looked for there.
    """
    try:
        with path.open("rb") as file:
            return re.search(mark, file.read(4096)) is not None
    except OSError:
        return False
