"""The figures of minigrad: one style, whatever the reader's settings, and always the same bytes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from minigrad import plotting

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


def test_the_colours_are_petroff6():
    if "petroff6" not in matplotlib.color_sequences:
        pytest.skip("Matplotlib knows petroff6 by name since 3.11")
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


def test_matplotlib_is_not_needed_to_import_and_its_absence_is_noticed():
    assert plotting.available()
    run = without_matplotlib("from minigrad import plotting; print(plotting.available())")
    assert run.stdout == "False\n"
