"""The command `minigrad` behaves: help, version, one sentence for an error, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import minigrad as mg
from minigrad import cli
from tests.lines import PACKAGE


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "minigrad", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=PACKAGE.parent)


def demo_that(monkeypatch, error: BaseException) -> None:
    def fails(args):
        raise error

    monkeypatch.setattr(cli.demo, "run", fails)


def test_no_command_prints_the_help(capsys):
    assert cli.main([]) == 0
    output, errors = capsys.readouterr()
    assert "usage: minigrad" in output
    assert not errors
    for name, (_, purpose) in cli.COMMANDS.items():
        assert name in output
        assert purpose.split(",")[0][:30] in " ".join(output.split())


def test_python_m_minigrad_is_the_command_that_the_package_installs():
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"minigrad": "minigrad.cli:main"}
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"minigrad {mg.__version__}\n")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_each_command_explains_all_its_arguments(command, capsys):
    assert cli.main([command, "--help"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"usage: minigrad {command}")
    parser = cli.parser()._subparsers._group_actions[0].choices[command]
    assert all(action.help for action in parser._actions)


def test_each_file_that_a_command_writes_by_itself_stands_in_its_help_and_is_ignored_by_git():
    ignored = (PACKAGE.parent / ".gitignore").read_text(encoding="utf-8").splitlines()
    names = []
    for one in cli.parser()._subparsers._group_actions[0].choices.values():
        for action in one._actions:
            if isinstance(action.default, Path):
                names.append(action.default.name)
                assert f"({names[-1]})" in " ".join(one.format_help().split())
                assert f"/{names[-1]}" in ignored
    assert names == [
        *("demo.svg", "batchnorm.svg", "noise.svg", "robbins_monro.svg", "learning_rate.svg")
    ]


def test_the_commands_are_the_demonstration_and_the_course(capsys):
    names = ["demo", "batchnorm", "noise", "rates", "lessons", "course", "check"]
    assert list(cli.COMMANDS) == names
    assert cli.main(["course", "--help"]) == 0
    output = capsys.readouterr().out
    assert all(word in output for word in ("DIR", "--variant SEED", "--instructor"))
    assert cli.main(["check", "--help"]) == 0
    assert "FILE" in capsys.readouterr().out


def test_numpy_alone_is_enough_for_all_but_figures_lessons_exercises_and_tests(tmp_path):
    """What needs more says so in one sentence; the README says it, and all else runs."""
    readme = " ".join((PACKAGE.parent / "README.md").read_text(encoding="utf-8").split())
    assert "install .` is enough for all but figures, lessons, exercises and tests." in readme
    absent = "matplotlib tqdm threadpoolctl cupy IPython jupytext nbformat nbclient ipykernel"
    code = (
        "import sys; sys.modules.update(dict.fromkeys(sys.argv.pop(1).split())); "
        "from minigrad.cli import main; sys.exit(main())"
    )

    def alone(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-c", code, absent, *arguments],
            env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    assert alone("course", "mine").returncode == 0
    assert alone("demo", "--hidden", "4", "--epochs", "1").returncode == 0
    exercise = str(next((tmp_path / "mine/exercises").glob("00*.ipynb")))
    for arguments in (("lessons", "00"), ("check", exercise)):
        result = alone(*arguments)
        assert result.returncode == 2
        assert result.stderr.count("\n") == 1
        assert "pip install" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (["frobnicate"], "'frobnicate'"),
        (["--frob"], "'--frob'"),
        (["demo", "--frob"], "'--frob'"),
        (["lessons", "--frob"], "'--frob'"),
        (["course", "x", "--frob"], "'--frob'"),
        (["check", "x", "--frob"], "'--frob'"),
    ],
)
def test_what_is_unknown_is_named_in_one_sentence(arguments, given, capsys):
    assert cli.main(arguments) == 2
    output, errors = capsys.readouterr()
    assert not output
    assert errors.count("\n") == 1
    assert given in errors
    assert "--help" in errors


def test_abbreviations_are_no_arguments(capsys):
    for given, short in ((["demo"], "--epoch"), (["course", "x"], "--instr"), (["lessons"], "--b")):
        assert cli.main([*given, short]) == 2
        assert f"'{short}'" in capsys.readouterr().err


def test_ctrl_c_ends_with_130_and_no_traceback(monkeypatch, capsys):
    demo_that(monkeypatch, KeyboardInterrupt())
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr().err == "\nminigrad: interrupted\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send to one process")
def test_a_real_interrupt_ends_a_running_demo_the_same_way():
    command = [sys.executable, "-m", "minigrad", "demo", "--epochs", "10000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=PACKAGE.parent, **pipes) as process:
        assert "handwritten digits" in process.stdout.readline()  # now it is in the demo
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "\nminigrad: interrupted\n"


def test_too_little_memory_is_said_in_one_sentence(monkeypatch, capsys):
    demo_that(monkeypatch, MemoryError())
    assert cli.main(["demo"]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "memory" in errors


def test_a_fault_of_minigrad_itself_keeps_its_traceback(monkeypatch):
    demo_that(monkeypatch, ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["demo"])


@pytest.mark.skipif(sys.platform == "win32", reason="on Windows a closed pipe is another error")
def test_a_reader_that_stops_reading_sees_no_traceback():
    command = [sys.executable, "-m", "minigrad", "demo", "--help"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=PACKAGE.parent, **pipes) as process:
        process.stdout.close()
        assert process.stderr.read() == ""


def test_importing_the_command_line_is_light():
    code = "import sys, minigrad.cli; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    loaded = {name.split(".")[0] for name in modules.split()}
    assert "minigrad" in loaded
    assert not loaded & {"matplotlib", "tqdm", "threadpoolctl", "cupy", "IPython", "torch"}
    assert not loaded & {"jupytext", "nbformat", "nbclient", "nbgrader"}
