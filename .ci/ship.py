"""What a wheel holds beside the package: the lessons, students' exercises, the data of figures.

No source of an exercise, and no rubric: these hold what is asked for. A clone needs none of it, for
it has the files.
"""

from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIPPED = {
    "lessons": ("*.ipynb", "*.md", "exercises/*.ipynb"),
    "figures/data": ("*.json",),
}
NOT_SHIPPED = ("teaching.md",)


class Ship(BuildHookInterface):
    """Adds the files to a wheel; to a clone's (editable) one nothing."""

    def initialize(self, version, build_data):
        if version == "editable":
            return
        for folder, patterns in SHIPPED.items():
            target = f"minigrad/shipped/{Path(folder).name}"
            for pattern in patterns:
                for path in sorted((Path(self.root) / folder).glob(pattern)):
                    if path.name in NOT_SHIPPED:
                        continue
                    name = path.relative_to(Path(self.root) / folder).as_posix()
                    build_data["force_include"][str(path)] = f"{target}/{name}"
