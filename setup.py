"""Has completions for shells and man pages made, and installed below the prefix's ``share``.

Everything else is in ``setup.cfg``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, setup
from setuptools.command.build import build


class Build(build):
    """All of setuptools' steps, and one of ours."""

    sub_commands: ClassVar = [*build.sub_commands, ("build_shipped", None)]


class BuildShipped(Command):
    """Makes the files, and has them installed."""

    description = "make completions for shells and man pages"
    user_options: ClassVar = []
    editable_mode = False  # setuptools sets it

    def initialize_options(self) -> None:
        """Learn the folder for what is built."""
        self.build_base: str | None = None

    def finalize_options(self) -> None:
        """Learn the folder for what is built."""
        self.set_undefined_options("build", ("build_base", "build_base"))

    def run(self) -> None:
        """Make the files, but not for a development install: it takes none."""
        if self.editable_mode:
            return
        sys.path.insert(0, str(Path(__file__).parent))
        from zklock.cli import shipped  # noqa: PLC0415 - what it needs is there to build only

        assert self.build_base is not None
        folder = Path(self.build_base) / "shipped"
        self.distribution.data_files = [
            (str(file.parent.relative_to(folder)), [str(file)]) for file in shipped.write(folder)
        ]

    def get_source_files(self) -> list[str]:
        """Return what the source distribution needs for it, beside the packages."""
        return []

    def get_outputs(self) -> list[str]:
        """Return the files of packages that it makes."""
        return []

    def get_output_mapping(self) -> dict[str, str]:
        """Return where these come from."""
        return {}


setup(cmdclass={"build": Build, "build_shipped": BuildShipped})
