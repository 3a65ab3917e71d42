"""The README tells the truth: its numbers are printed by its code, its map is that of the source.

Its two commands are run from nothing by .ci/run.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import minigrad as mg
from minigrad import cli, plotting
from minigrad.data import measured
from tests.benchmarks import draw
from tests.lines import PACKAGE, READING_ORDER, counted, lines_of_code

ROOT = PACKAGE.parent
README, CONTRIBUTING = (
    (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", ".github/CONTRIBUTING.md")
)
each_page = pytest.mark.parametrize("page", ["README.md", ".github/CONTRIBUTING.md"])


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


def test_the_command_that_counts_puts_the_map_right():
    stale = re.sub(
        r"^(\| \[`.+`\]\(minigrad/.+ \| )\d+ \|$", r"\g<1>0 |", README, flags=re.MULTILINE
    )
    assert stale.count("| 0 |\n") == len(READING_ORDER)
    assert counted(stale) == README


def test_the_last_files_of_the_map_are_those_that_importing_minigrad_leaves_out():
    assert "The last fourteen make the figures and the course; `import minigrad` leaves" in README
    loaded = printed_by("import sys, minigrad; print(*sys.modules)").split()
    names = [f"minigrad.{Path(name).with_suffix('').as_posix()}" for name in READING_ORDER]
    assert not {*names[-14:]} & {*loaded}
    assert {*names[:-14]} - {*loaded} == {"minigrad.data/__init__"}  # a lesson imports it by name


def test_every_file_of_the_package_is_on_the_map():
    files = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    assert files == {*READING_ORDER, "__init__.py", "__main__.py"}


CORE = [
    *("tensor.py", "functions.py", "losses.py", "samples.py", "randomness.py", "layers.py"),
    *("normalization.py", "optimizers.py", "accumulation.py"),
]


@pytest.mark.parametrize("files", [READING_ORDER[:8], CORE], ids=["first", "core"])
def test_the_core_can_be_read_in_an_evening(files):
    assert sum(lines_of_code(PACKAGE / name) for name in files) <= 1300


MEASURED = json.loads((ROOT / "figures/data/speed.json").read_text(encoding="utf-8"))


def test_the_tables_of_speed_show_the_figures_that_were_measured():
    row = r"^\| (W\w+): .+? \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$"
    rows = re.findall(row, README, re.MULTILINE)
    assert [name for name, *_ in rows] == list(MEASURED["workloads"])
    for name, ms, *shown in rows:
        figures = MEASURED["workloads"][name]
        assert ms == f"{figures['ms']['minigrad']:.3g}"
        for peer, ratio in zip(("hand+", "PyTorch", "PyTorch fused"), shown, strict=True):
            assert ratio == f"{figures['ratios'][f'minigrad / {peer}']['best']:.2f}"

    head, *rows = re.findall(r"^\| (time over .+|W\w+ \| .+) \|$", README, re.MULTILINE)
    peers = head.split(" | ")[1:]
    assert [one.split(" | ")[0] for one in rows] == list(MEASURED["workloads"])
    for one in rows:
        name, *shown = one.split(" | ")
        ratios = MEASURED["workloads"][name]["ratios"]
        for peer, number in zip(peers, shown, strict=True):
            if f"minigrad / {peer}" not in ratios:
                assert number == "-"
                continue
            middle = statistics.median(ratios[f"minigrad / {peer}"]["tries"])
            assert abs(float(number.replace(",", "")) * middle - 1) < 0.05


def test_the_command_that_draws_puts_the_tables_of_speed_right():
    stale = re.sub(r"^(\| W\w+(?:: [^|]+)? \|).*", r"\1 |", README, flags=re.MULTILINE)
    assert stale.count(" | |\n") == 2 * len(MEASURED["workloads"])
    assert draw.filled(stale, MEASURED) == README


def test_the_figure_of_speed_is_that_of_the_record(tmp_path):
    """The same bytes where Matplotlib is that which drew the figures, else twice the same."""
    matplotlib = pytest.importorskip("matplotlib")

    def drawn():
        return plotting.save(draw.figure(MEASURED), tmp_path / "x.svg").read_bytes()

    same_version = matplotlib.__version__ == measured("rates")["versions"]["Matplotlib"]
    expected = (ROOT / "figures/speed.svg").read_bytes()
    assert drawn() == (expected if same_version else drawn())


def test_the_factors_of_memory_are_those_of_the_demonstration(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "minigrad", "demo", "--epochs", "1", "--out", tmp_path / "demo.svg"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    table = run.stdout.split("\n\n")[1]
    found = [float(factor) for factor in re.findall(r"([\d.]+) times less", table)]
    for factor, said in zip(found, said_of_memory(), strict=True):
        assert abs(factor - said) <= 0.15  # Python's own objects differ by its version


def said_of_memory() -> tuple[float, float]:
    """The README's factors: beside what stays, and with it."""
    text = r"Beside what stays, .+? need ([\d.]+) times less .+? it is ([\d.]+) times less"
    beside, with_it = re.search(text, README.replace("\n", " ")).groups()
    return float(beside), float(with_it)


def test_the_factors_of_memory_are_those_of_the_record():
    memory = measured("memory")
    whole, parts = memory["peak"].values()
    stays = memory["stays"]
    factors = round(whole / parts, 1), round((stays + whole) / (stays + parts), 1)
    assert said_of_memory() == factors
    exercise = (ROOT / "lessons/exercises/00_start_here.py").read_text(encoding="utf-8")
    said = r"([\d.]+) times less beside what stays, ([\d.]+) times less\n# with it"
    assert tuple(map(float, re.search(said, exercise).groups())) == factors


def headings(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in found}


@each_page
def test_links_lead_to_files_and_headings(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", text):
        file = (ROOT / page).parent / target if target else ROOT / page
        assert file.exists(), target
        assert not heading or heading in headings(file), (target, heading)


@each_page
def test_commands_name_modules_and_files_that_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    commands = re.findall(r"python -m ([\w.]+)((?: [^`\n]+)?)", text)
    assert len(commands) >= 4
    for module, arguments in commands:
        ours = ROOT / module.replace(".", "/")
        known = module in {"jupyter", "mypy", "pip", "pytest", "ruff", "venv"}
        assert known or ours.with_suffix(".py").exists() or (ours / "__main__.py").exists(), module
        if module == "pytest":
            assert all((ROOT / file).exists() for file in re.findall(r"tests/\S+", arguments))
        if module == "minigrad":
            assert cli.parser().parse_args(arguments.split()).run
    for file in re.findall(r"`((?:tests|lessons|minigrad)/[^`N]+)`", text):
        assert (ROOT / file).exists(), file


def test_the_tables_that_contributors_fill_are_where_they_are_said_to_be():
    said = re.findall(r"`([A-Z_]+)` in\s+\[[^]]+\]\(\.\./(.+?)\)", CONTRIBUTING)
    names = {"READING_ORDER", "ERRORS", "OPERATIONS", "FUSED", "LAYERS", "LOSSES", "CORE"}
    assert {name for name, _ in said} == names | {"COMMANDS", "EDGE_OF_THE_HOUSE"}
    for name, file in said:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^{name}\b.* = [\[{{]", text, re.MULTILINE), (name, file)


def test_the_course_has_every_lesson_with_its_question():
    row = r"^\| \[(\d\d .+?)\]\((?:lessons/)?(\w+\.ipynb)\)(?: \*)? \| (.+?) \|"
    said = re.findall(row, README, re.MULTILINE)
    contents = (ROOT / "lessons/README.md").read_text(encoding="utf-8")
    assert said == re.findall(row, contents, re.MULTILINE) != []


def test_the_commands_for_setting_up_name_extras_and_groups_that_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].keys()
    for named in re.findall(r"-e \"\.\[(.+?)\]\"", README + CONTRIBUTING):
        assert set(named.split(",")) <= extras
    for named in re.findall(r"extras `(\w+)` and `(\w+)`", README):
        assert set(named) <= extras
    assert {*re.findall(r"--group (\w+)", CONTRIBUTING)} <= project["dependency-groups"].keys()
    assert Path(ROOT / "LICENSE").read_text(encoding="utf-8").startswith("BSD 3-Clause License")


def test_the_first_command_installs_what_opens_a_lesson_and_what_the_second_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    first, second = re.findall(r"<!-- command: .+ -->\n```sh\n.+ -e \"\.\[(\w+)\]\"", README)
    (chosen,) = extras[first]
    included = re.search(r"^minigrad\[(.+)\]$", chosen)[1].split(",")
    assert second in included
    installed = [re.match(r"\w+", one)[0] for extra in included for one in extras[extra]]
    assert "jupyterlab" in installed
    (lesson,) = re.findall(r"`python -m jupyter lab (\S+)`", README)
    assert (ROOT / lesson).suffix == ".ipynb"
    assert (ROOT / lesson).exists()


def test_who_cites_it_cites_this_version():
    assert f"version = {{{mg.__version__}}}" in README
