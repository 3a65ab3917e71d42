"""The README tells the truth: its numbers are printed by its code, its map is that of the source.

Its two commands are run from nothing by .ci/run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lines import PACKAGE, READING_ORDER, lines_of_code

ROOT = PACKAGE.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def printed_by(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return run.stdout


def test_the_example_prints_what_the_readme_says():
    ours, _ = blocks("python")
    assert "import torch" not in ours
    assert printed_by(ours) == blocks("text")[0]
    assert sum(bool(line.strip()) for line in ours.splitlines()) <= 15


def test_its_twin_in_pytorch_prints_the_same():
    pytest.importorskip("torch")
    _, theirs = blocks("python")
    assert "import torch" in theirs
    assert printed_by(theirs) == blocks("text")[0]


def test_the_map_has_every_file_in_reading_order_with_its_lines_of_code():
    rows = re.findall(r"^\| \[`(.+?)`\]\(minigrad/(.+?)\) \| .+ \| (\d+) \|$", README, re.MULTILINE)
    assert [name for name, _, _ in rows] == READING_ORDER
    for name, target, lines in rows:
        assert target == name
        assert int(lines) == lines_of_code(PACKAGE / name), name


def test_every_file_of_the_package_is_on_the_map():
    files = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    assert files == {*READING_ORDER, "__init__.py", "__main__.py"}


CORE = [
    *("tensor.py", "functions.py", "losses.py", "randomness.py", "layers.py"),
    *("normalization.py", "optimizers.py", "accumulation.py"),
]


@pytest.mark.parametrize("files", [READING_ORDER[:8], CORE], ids=["first", "core"])
def test_the_core_can_be_read_in_an_evening(files):
    assert sum(lines_of_code(PACKAGE / name) for name in files) <= 1300


def test_the_table_of_speed_shows_the_figures_that_were_measured():
    measured = json.loads((ROOT / "figures/data/speed.json").read_text(encoding="utf-8"))
    rows = re.findall(
        r"^\| (W\w+): .+? \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", README, re.MULTILINE
    )
    assert [name for name, *_ in rows] == list(measured["workloads"])
    for name, ms, *shown in rows:
        figures = measured["workloads"][name]
        assert ms == f"{figures['ms']['minigrad']:.3g}"
        for peer, ratio in zip(("hand+", "PyTorch", "PyTorch fused"), shown, strict=True):
            assert ratio == f"{figures['ratios'][f'minigrad / {peer}']['best']:.2f}"


def test_the_factor_of_memory_is_that_of_the_demonstration(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "minigrad", "demo", "--epochs", "1", "--out", tmp_path / "demo.svg"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = float(re.search(r"([\d.]+) times less", run.stdout).group(1))
    said = float(re.search(r"need ([\d.]+) times less", README.replace("\n", " ")).group(1))
    assert abs(found - said) <= 0.15  # Python's own objects differ from version to version


def test_links_lead_to_files():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target.strip()).exists(), target


def test_the_course_has_every_lesson_with_its_question():
    row = r"^\| \[(\d\d .+?)\]\((?:lessons/)?(\w+\.ipynb)\)(?: \*)? \| (.+?) \|"
    said = re.findall(row, README, re.MULTILINE)
    contents = (ROOT / "lessons/README.md").read_text(encoding="utf-8")
    assert said == re.findall(row, contents, re.MULTILINE) != []


def test_the_commands_for_setting_up_name_extras_that_exist():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extras in re.findall(r"-e \"\.\[(.+?)\]\"", README):
        assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    for extra in re.findall(r"extras `(\w+)` and `(\w+)`", README):
        assert set(extra) <= project["optional-dependencies"].keys()
    assert Path(ROOT / "LICENSE").read_text(encoding="utf-8").startswith("BSD 3-Clause License")
