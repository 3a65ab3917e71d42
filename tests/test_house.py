"""The house in order: imports go one way, importing is light, three globals and no more."""

from __future__ import annotations

import ast
import os
import re
import statistics
import subprocess
import sys
import tomllib
from types import ModuleType as Module

import pytest

import minigrad as mg
from tests.lines import PACKAGE, READING_ORDER
from tests.operations import LAYERS, ROWS

# They hold tables of options and colours.
EDGE_OF_THE_HOUSE = {
    *("plotting.py", "demo.py", "four_ways.py", "noise_on_digits.py", "rates.py"),
    *("exercises.py", "lessons.py", "cli.py"),
}
MUTABLE = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
EDGES = {"device.py", "gradcheck.py"}  # import nothing but NumPy, and CuPy


ENGINE = READING_ORDER[: READING_ORDER.index("data/__init__.py")]  # that minigrad itself imports


def modules(source: str) -> list[str]:
    """All that a file imports, at its head, inside functions and for the type checker alone: `a.b`
    of `import a.b` and of `from a import b`, where b may be a name too, or of `import_module`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = f"{'minigrad.' * bool(node.level)}{node.module or ''}".rstrip(".")
            found += [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in LOADERS:
            found += [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
    return found


LOADERS = {"import_module", "__import__", "optional", "importorskip"}


def imports(source: str) -> set[str]:
    """The files of the package that a file imports; `import minigrad` are all of the engine."""
    found: set[str] = set()
    for module in modules(source):
        package, *parts = module.split(".")
        if package == "minigrad":
            file = f"{parts[0]}.py" if parts else ""
            file = "data/__init__.py" if file == "data.py" else file
            found |= {file} if file in READING_ORDER else set(ENGINE)
    return found


def source_of(name: str) -> str:
    return (PACKAGE / name).read_text(encoding="utf-8")


IMPORTING = {
    "import minigrad as mg": set(ENGINE),
    "import minigrad.tensor": {"tensor.py"},
    "from minigrad import tensor, data": {"tensor.py", "data/__init__.py"},
    "from minigrad import Tensor": set(ENGINE),
    "from minigrad.data import digits": {"data/__init__.py"},
    "from . import flat": {"flat.py"},
    "from .flat import Layout": {"flat.py"},
    "def f():\n    from minigrad.cli import main": {"cli.py"},
    "if TYPE_CHECKING:\n    from minigrad.cli import main": {"cli.py"},
    "import_module('minigrad.cli')": {"cli.py"},
    "import numpy as np": set(),
}


@pytest.mark.parametrize("source", IMPORTING)
def test_an_import_is_seen_however_and_wherever_it_is_made(source):
    assert imports(source) == IMPORTING[source]


@pytest.mark.parametrize(
    "source",
    [
        "import cupy",
        "import cupy as cp",
        "import cupy.cuda",
        "from cupy import cuda",
        "from cupy.cuda import Device",
        "def f():\n    import cupy",
        "def f():\n    from cupy import cuda",
        "importlib.import_module('cupy')",
        "optional('cupy')",
    ],
)
def test_cupy_is_seen_too(source):
    assert knows_cupy(source)
    assert not knows_cupy(source.replace("cupy", "cupid"))


def knows_cupy(source: str) -> bool:
    return "cupy" in {module.split(".")[0] for module in modules(source)}


@pytest.mark.parametrize("name", READING_ORDER)
def test_imports_point_only_upwards_in_the_reading_order(name):
    above = READING_ORDER[: READING_ORDER.index(name)]
    found = imports(source_of(name))
    assert found <= set(above)
    assert name not in EDGES or not found


def printed_by(code: str, **variables: str) -> str:
    """What a fresh Python prints, that finds the package where these tests find it."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout


def test_importing_minigrad_imports_numpy_the_files_of_the_engine_and_nothing_else():
    new = "import sys, numpy; before = set(sys.modules); import minigrad; new = set(sys.modules)"
    loaded = set(printed_by(f"{new} - before; print(*new)").split())
    others = {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names}
    # Of NumPy too nothing else: numpy.random takes longer than all of minigrad.
    assert others == {"minigrad"} | {f"minigrad.{name.removesuffix('.py')}" for name in ENGINE}


def test_importing_minigrad_takes_less_than_half_as_long_as_importing_numpy(tmp_path):
    """Measured: a fifth, 18 ms of processor time beside NumPy's 94; Matplotlib takes 160."""
    code = "from time import process_time as t; a = t(); import numpy; b = t(); import minigrad; "
    code += "print((t() - b) / (b - a))"
    # Compiled once, in the first run, and in none of those that count.
    compiled = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    _, *ratios = [float(printed_by(code, **compiled)) for _ in range(8)]
    assert statistics.median(ratios) < 0.5


def test_only_device_py_knows_cupy():
    for name in READING_ORDER:
        assert knows_cupy(source_of(name)) == (name == "device.py"), name


def test_there_are_three_globals_that_change_and_no_more():
    """The tape's switch, the seed, the draw context: all else at the top of a file is constant."""
    found = set()
    for name in READING_ORDER:
        for node in ast.parse((PACKAGE / name).read_text(encoding="utf-8")).body:
            target = node.target if isinstance(node, ast.AnnAssign) else None
            if target is not None and "ContextVar" in ast.unparse(node.annotation):
                found.add(target.id)
            assert not any(isinstance(child, ast.Global) for child in ast.walk(node)), name
            if isinstance(node, ast.Assign | ast.AnnAssign) and name not in EDGE_OF_THE_HOUSE:
                assert not isinstance(node.value, MUTABLE), (name, ast.unparse(node))
            if isinstance(node, ast.ClassDef) and node.name == "_Seed":
                found.add(node.name)
    assert found == {"_recording", "_samples", "_Seed"}


def test_no_file_takes_a_private_name_from_another():
    for name in READING_ORDER:
        tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        ours = [node for node in nodes if (node.module or "").startswith("minigrad")]
        assert not [a.name for node in ours for a in node.names if a.name.startswith("_")], name


def test_no_public_name_hides_the_file_of_that_name():
    files = {name.removesuffix(".py") for name in READING_ORDER}
    hidden = {name for name in files & set(mg.__all__) if not isinstance(getattr(mg, name), Module)}
    assert hidden == {"gradcheck"}  # as torch.autograd.gradcheck hides its own


def test_public_names_are_documented_and_listed():
    for name in mg.__all__:
        assert getattr(mg, name).__doc__, name
    assert len(mg.__all__) == len(set(mg.__all__))


def test_what_has_a_row_in_the_table_of_operations_is_public():
    inside = {"batch_norm", "rescale", "standardize"}  # of layers
    rows = {name.split(":")[0] for name in {**ROWS, **LAYERS} if not name.startswith("Tensor.")}
    assert rows - inside <= set(mg.__all__)


PROJECT = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_that_of_the_package():
    assert PROJECT["version"] == mg.__version__


def test_ci_tests_each_python_and_the_oldest_packages_that_the_project_names():
    ci = (PACKAGE.parent / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    pythons = re.findall(r"Python :: (3\.\d+)\n", "\n".join([*PROJECT["classifiers"], ""]))
    assert sorted(set(re.findall(r'"(3\.\d+)"', ci))) == pythons
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    needed = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]
    oldest = {f"{need.replace('>=', '==')}.*" for need in needed}
    tested = set(re.findall(r'"(\w+==[\d.]+\*)"', ci))
    assert tested <= oldest
    assert {name.split("==")[0] for name in tested} == {"numpy", "matplotlib", "pytest"}
