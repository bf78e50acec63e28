"""Runs stages of the tests: ``python -m tests.run STAGE… [-- ARGUMENT…]``.

What a stage of `STAGES` plays is a function of the commit. A test that is inconclusive, because the
machine stood still (`tests.stalls`), is played once more, alone. More than `MOST` such tests fail
the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

MOST = 3
"""So many inconclusive tests may be played once more."""

CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Stage:
    """What one run of pytest plays."""

    title: str
    tests: tuple[str, ...]
    workers: int
    environ: dict[str, str] = field(default_factory=dict)
    timed: bool = False
    """Whether a machine that stands still can make a test fail."""


ELSEWHERE = ("contrib", "fencing")
"""Folders of the contract that are not played. They need packages that nothing else needs."""

STAGES = {
    "unit": Stage("A, unit tests", ("tests/unit",), CORES),
    "played": Stage(
        "A, the contract on a simulated system",
        ("tests/contract", *map("--ignore=tests/contract/{}".format, ELSEWHERE), "--timeout=120"),
        CORES,
        {"ZKLOCK_TEST_PLAYED": "1", "PYTHONHASHSEED": "0"},
    ),
    "real": Stage(
        "B, real servers",
        ("tests", "--ignore=tests/unit"),
        3,  # half of the time they wait
        {"ZKLOCK_TEST_REAL": "1"},
        timed=True,
    ),
    "nightly": Stage("the nightly run", (), 8, timed=True),
}


def pytest(stage: Stage, arguments: list[str], inconclusive: str = "") -> bool:
    """Run pytest; return whether all is well."""
    environ = {**os.environ, **stage.environ, "ZKLOCK_TEST_INCONCLUSIVE": inconclusive}
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--durations=20"]
    command += ["-p", "tests.stalls", *arguments]
    return subprocess.run(command, env=environ, check=False).returncode == 0


def play(stage: Stage, arguments: list[str]) -> bool:
    """Play a stage, and once more what was inconclusive; return whether all is well."""
    print(f"\n{stage.title}: begins", flush=True)
    shared = ["-n", str(stage.workers), "--dist", "loadscope", "--no-loadscope-reorder"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "inconclusive")
        file.touch()
        well = pytest(stage, [*shared, *stage.tests, *arguments], str(file) if stage.timed else "")
        names = list(dict.fromkeys(file.read_text().splitlines()))
    if len(names) > MOST:
        print(f"{len(names)} tests are inconclusive, more than {MOST}: {', '.join(names)}")
        return False
    for name in names:
        print(f"inconclusive, once more, alone: {name}", flush=True)
        well = pytest(stage, [name]) and well
    return well


def main(words: list[str]) -> int:
    """Play the stages named, with the arguments of pytest after ``--``."""
    names = words[: words.index("--")] if "--" in words else words
    arguments = words[len(names) + 1 :]
    failed = [STAGES[name].title for name in names if not play(STAGES[name], arguments)]
    print(f"\n{', '.join(names)}: {'; '.join(f'failed: {each}' for each in failed) or 'passed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
