"""The figures of minigrad: one style, whatever the reader's settings, and always the same bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from minigrad import plotting, reading

matplotlib = pytest.importorskip("matplotlib")

from matplotlib import colors, image  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402


def example() -> Figure:
    with plotting.style():
        figure = Figure(layout="constrained")
        axes = figure.add_subplot()
        axes.plot([1, 2, 3], [3, 1, 2], marker="o", label="a curve")
        axes.fill_between([1, 2, 3], [3, 1, 2], hatch="//")  # patterns and clips need ids
        axes.legend()
    return figure


def without_matplotlib(code: str) -> subprocess.CompletedProcess:
    code = f"import sys; sys.modules['matplotlib'] = None; {code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


@pytest.mark.parametrize("suffix", plotting.SUFFIXES)
def test_the_same_figure_gives_the_same_bytes(tmp_path, suffix):
    first = plotting.save(example(), tmp_path / f"first{suffix}").read_bytes()
    second = plotting.save(example(), tmp_path / f"second{suffix}").read_bytes()
    assert first == second


def test_the_reader_s_settings_change_nothing_and_stay_as_they_are(tmp_path):
    plain = plotting.save(example(), tmp_path / "plain.svg").read_bytes()
    theirs = {"lines.linewidth": 9, "font.size": 20, "svg.hashsalt": None, "axes.grid": False}
    with matplotlib.rc_context(theirs):
        assert plotting.save(example(), tmp_path / "theirs.svg").read_bytes() == plain
        assert {key: matplotlib.rcParams[key] for key in theirs} == theirs


def test_an_svg_holds_neither_date_nor_version(tmp_path):
    text = plotting.save(example(), tmp_path / "x.svg").read_text(encoding="utf-8")
    assert "dc:date" not in text
    assert matplotlib.__version__ not in text


def test_a_png_holds_neither_date_nor_version(tmp_path):
    content = plotting.save(example(), tmp_path / "x.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert b"Software" not in content
    assert b"tIME" not in content


def test_the_background_is_white_and_opaque(tmp_path):
    pixels = image.imread(plotting.save(example(), tmp_path / "x.png"))
    assert (pixels[0, 0] == 1).all()  # red, green, blue and, where there is one, alpha
    assert pixels.shape[2] == 3 or (pixels[..., 3] == 1).all()


@pytest.mark.skipif(
    "petroff6" not in matplotlib.color_sequences,
    reason="needs Matplotlib 3.11, which knows petroff6 by name",
)
def test_the_colours_are_petroff6():
    ours = [colors.to_rgb(colour) for colour in plotting.COLOURS]
    assert ours == matplotlib.color_sequences["petroff6"]


def test_no_two_curves_share_a_colour_or_a_line_style():
    with plotting.style():
        looks = matplotlib.rcParams["axes.prop_cycle"].by_key()
    assert looks["color"] == list(plotting.COLOURS)
    assert len({str(line) for line in looks["linestyle"]}) == len(plotting.COLOURS)


@pytest.mark.parametrize("name", ["x.pdf", "x", "svg"])
def test_another_suffix_is_refused_by_name(tmp_path, name):
    with pytest.raises(ValueError, match=f"'{name}', expected a name that ends in .svg or .png"):
        plotting.save(example(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_capitals_in_a_suffix_are_understood(tmp_path):
    assert plotting.save(example(), tmp_path / "X.PNG").read_bytes().startswith(b"\x89PNG")


def test_a_figure_that_cannot_be_drawn_leaves_the_file_as_it_was(tmp_path):
    path = plotting.save(example(), tmp_path / "x.svg")
    before, broken = path.read_bytes(), example()
    broken.axes[0].set_title("$\\nonsense$")
    with pytest.raises(ValueError, match="nonsense"):
        plotting.save(broken, path)
    assert path.read_bytes() == before


def test_a_file_of_ours_is_known_again(tmp_path):
    for suffix in plotting.SUFFIXES:
        assert plotting.is_ours(plotting.save(example(), tmp_path / f"ours{suffix}"))
        example().savefig(tmp_path / f"theirs{suffix}")
        assert not plotting.is_ours(tmp_path / f"theirs{suffix}")
    assert not plotting.is_ours(tmp_path / "missing.svg")


def test_a_file_that_only_names_minigrad_is_not_ours(tmp_path):
    theirs = tmp_path / "theirs.svg"
    for text in ("<svg><!-- of minigrad/ --></svg>", "<svg><dc:title>minigrad</dc:title></svg>"):
        theirs.write_text(text)
        assert not plotting.is_ours(theirs)
    example().savefig(theirs, metadata={"Title": "minigrad", "Creator": "another"})
    assert not plotting.is_ours(theirs)
    example().savefig(tmp_path / "theirs.png", metadata={"Title": "minigrad", "Author": "another"})
    assert not plotting.is_ours(tmp_path / "theirs.png")


def test_matplotlib_is_not_needed_to_import_and_its_absence_is_noticed():
    assert plotting.available()
    run = without_matplotlib("from minigrad import plotting; print(plotting.available())")
    assert run.stdout == "False\n"


# ------------------------------------------------------------------------- figures of a lesson


def test_subplots_have_the_style_and_the_size_that_was_asked_for():
    figure, (left, right) = plotting.subplots(1, 2, height=2.5, sharey=True)
    assert figure.get_size_inches().tolist() == [plotting.STYLE["figure.figsize"][0], 2.5]
    assert left.get_shared_y_axes().joined(left, right)
    left.plot([1, 2])
    left.plot([2, 1])
    assert [line.get_color() for line in left.lines] == list(plotting.COLOURS[:2])
    figure, axes = plotting.subplots()
    axes.plot([1, 2])  # one of one is no array
    _, grid = plotting.subplots(2, 3)
    assert grid.shape == (2, 3)


def test_after_subplots_the_style_stays_whatever_the_reader_s_settings_were():
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.titlesize": 30}):
        plotting.subplots(2)
        kept = {name: matplotlib.rcParams[name] for name in ("lines.linewidth", "axes.titlesize")}
        assert kept == {name: plotting.STYLE[name] for name in kept}


def test_outside_a_notebook_show_saves_the_figure_and_says_where(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    figure, _ = plotting.subplots()
    for caption in ("One line.", "Many words. " * 30):
        plotting.show(figure, "04-sum", caption)
        first, *rest = capsys.readouterr().out.splitlines()
        assert first == "[figure: lesson_figures/04-sum.png]"
        assert " ".join(rest) == caption.strip()
        assert max(map(len, rest)) <= 100
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path == tmp_path / "lesson_figures/04-sum.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_in_a_notebook_show_displays_a_picture_with_its_caption(tmp_path, monkeypatch, capsys):
    display = pytest.importorskip("IPython.display")
    shown: list = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plotting, "in_notebook", lambda: True)
    monkeypatch.setattr(display, "display", shown.append)
    plotting.show(plotting.subplots()[0], "04-sum", "What it shows.")
    (picture,) = shown
    assert picture.data.startswith(b"\x89PNG")
    assert picture.alt == "What it shows."
    assert capsys.readouterr().out == "What it shows.\n"
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------- code in a lesson


def test_source_is_shown_from_the_file_that_runs(capsys):
    reading.show_source(plotting.is_ours, reading.in_notebook)
    output = capsys.readouterr().out
    path, first, last = output.splitlines()[0].replace(",", "").split()[1::2]
    assert path == "minigrad/plotting.py"
    lines = Path(plotting.__file__).read_text(encoding="utf-8").splitlines()
    code = "\n".join(lines[int(first) - 1 : int(last)])
    assert code.startswith("def is_ours(")
    assert code == code.rstrip()
    assert code in output
    assert "# minigrad/reading.py, lines " in output
    reading.show_source(reading)
    shown = capsys.readouterr().out
    assert shown.startswith("# minigrad/reading.py, lines 1 to ")
    assert Path(reading.__file__).read_text(encoding="utf-8").rstrip() in shown


def test_source_is_shown_as_code_in_a_notebook(monkeypatch):
    display = pytest.importorskip("IPython.display")
    shown: list = []
    monkeypatch.setattr(reading, "in_notebook", lambda: True)
    monkeypatch.setattr(display, "display", shown.append)
    reading.show_source(reading.show_source)
    (text,) = shown
    assert text.data.startswith("`minigrad/reading.py, lines ")
    assert "```python\ndef show_source(*things: Any) -> None:\n" in text.data


def test_a_notebook_is_a_shell_with_a_kernel(monkeypatch):
    for shell, is_one in ((None, False), (object(), False), (SimpleNamespace(kernel=1), True)):
        fake = SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", fake)
        assert reading.in_notebook() is is_one
    monkeypatch.delitem(sys.modules, "IPython")
    assert not reading.in_notebook()
