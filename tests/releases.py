"""Other releases: of a ZooKeeper that is upgraded while it serves, and zklock's own before this."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from zklock.testing.java import JARS_VARIABLE, Installation, JavaBackend, JavaGroup, JavaNode
from zklock.testing.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[1]


class Upgrading(JavaBackend):
    """Servers of a local Java, each of which can be given newer jars for its next start."""

    def __init__(self, newer: str) -> None:
        super().__init__()
        self._newer = Installation.find({**os.environ, JARS_VARIABLE: newer})

    def ensemble(self, settings: Settings, size: int) -> JavaGroup:
        """Prepare the one ensemble that is to be upgraded."""
        self._group = super().ensemble(settings, size)
        return self._group

    def upgrade(self, number: int) -> None:
        """Give a server the newer jars."""
        node = self._group.nodes[number]
        assert isinstance(node, JavaNode)
        node._installation = self._newer


def check_out_earlier(folder: Path) -> str:
    """Put the release before this commit into the folder, out of git; return its commit."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    commit = git("log", "-1", "--format=%H", "HEAD~1", "--", "zklock/_version.py").strip()
    git("archive", f"--output={folder}/release.tar", commit, "zklock", "tests")
    subprocess.run(["tar", "-xf", "release.tar"], cwd=folder, check=True)
    return commit
