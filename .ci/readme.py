"""Run a command block of README.md as it stands there, in a fresh virtual environment.

    python .ci/readme.py NAME FOLDER

NAME is `demo` or `test`: the fenced block below the line `<!-- command: NAME -->`. FOLDER is where
the virtual environment is made; it stays, for later steps. Each line runs in the system's own
shell, in the root of the repository, with the environment activated (its folder first on PATH).
The first line that fails ends the run with its exit code.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def block(name):
    """The lines of the README's block of that name."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(rf"<!-- command: {name} -->\s*```\w*\n(.+?)\n```", readme, re.DOTALL)
    if len(found) != 1:
        sys.exit(f"README.md has {len(found)} blocks below `<!-- command: {name} -->`, not 1")
    return found[0].splitlines()


def activated(folder):
    """Make a fresh virtual environment; the variables of a shell that has it activated."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    return os.environ | {"PATH": path, "VIRTUAL_ENV": str(folder)}


def main(name, folder):
    """Run the block of that name; exit with the code of the first line that fails."""
    lines = block(name)
    variables = activated(Path(folder).resolve())
    for line in lines:
        print(f"$ {line}", flush=True)
        code = subprocess.run(line, shell=True, cwd=ROOT, env=variables).returncode
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
