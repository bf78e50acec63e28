"""The examples in the pages of the commands: each is executed, and its output compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract import scenes
from tests.contract.support import ROOT
from tests.contract.test_cli import Commands

PAGES = [ROOT / "docs" / "commands.md", *sorted((ROOT / "docs" / "commands").glob("*.md"))]
FENCE = re.compile(r"^```console.*$", re.MULTILINE)
ELSEWHERE = {"secured"}
"""The scenes of ``test_cli_secure.py``, which has a server for them."""
OTHERS = pytest.mark.thorough(
    "examples of pages of commands: the first one in each scene of a page runs"
)


def examples() -> Iterator[Any]:
    for page in PAGES:
        known = set(ELSEWHERE)
        for number, (scene, block) in enumerate(scenes.BLOCK.findall(page.read_text())):
            if scene not in ELSEWHERE:
                marks = [OTHERS] * (scene in known)
                yield pytest.param(scene, block, id=f"{page.stem}-{number}-{scene}", marks=marks)
            known.add(scene)


@pytest.mark.parametrize(("scene", "block"), list(examples()))
def test_an_example_is_true(scene: str, block: str, stage: scenes.Stage, zk: Commands) -> None:
    scenes.is_true(block, scene, stage, zk)


def test_every_example_names_its_scene() -> None:
    fences = [fence for page in PAGES for fence in FENCE.findall(page.read_text())]
    named = {fence.removeprefix("```console").strip() for fence in fences}
    assert named <= {*scenes.SCENES, *ELSEWHERE}
