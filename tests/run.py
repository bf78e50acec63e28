"""Runs stages of the tests, and says in plain lines how far they are and what came of them.

``python -m tests.run STAGE…``, with the stages of `STAGES`. What a stage plays is a function of the
commit. A test that is inconclusive, because the machine stood still (`tests.stalls`), is played
once more, alone. More than `MOST` such tests fail the run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
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
        2,
        {"ZKLOCK_TEST_REAL": "1"},
        timed=True,
    ),
    "nightly": Stage("the nightly run", (), 8, timed=True),
}

OUTCOMES = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed|deselected)\b")


def pytest(
    stage: Stage, arguments: list[str], workers: int, inconclusive: str = ""
) -> Counter[str]:
    """Run pytest; return how many tests had which outcome, and its status as ``"status"``."""
    environ = dict(os.environ) | stage.environ | {"ZKLOCK_TEST_STAGE": stage.title}
    environ["ZKLOCK_TEST_INCONCLUSIVE"] = inconclusive
    shared = ["-n", str(workers), "--dist", "loadscope", "--no-loadscope-reorder"]
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--durations=20"]
    command += ["-p", "tests.progress", "-p", "tests.stalls", "-o", "console_output_style=classic"]
    command += [*(shared if workers else []), *arguments]
    last = ""
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line if OUTCOMES.search(line) else last
    found = Counter({word.rstrip("s"): int(number) for number, word in OUTCOMES.findall(last)})
    found["status"] = process.returncode
    return found


def play(stage: Stage, arguments: list[str]) -> tuple[Counter[str], bool]:
    """Play a stage; return the outcomes, and whether all is well."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "inconclusive")
        found = pytest(
            stage, [*stage.tests, *arguments], stage.workers, str(file) if stage.timed else ""
        )
        well = found["status"] == 0
        names = list(dict.fromkeys(file.read_text().split("\n")[:-1])) if file.exists() else []
        if len(names) > MOST:
            print(f"{len(names)} tests are inconclusive, more than {MOST}: {', '.join(names)}")
            return found, False
        for name in names:
            print(f"inconclusive, once more, alone: {name}", flush=True)
            again = pytest(stage, [name], 0)
            well = well and again["status"] == 0
            found["xfailed"] -= 1
            found += Counter({word: again[word] for word in ("passed", "failed", "error")})
        return found, well


def main(words: list[str]) -> int:
    """Play the stages named, with the arguments of pytest after ``--``."""
    names = words[: words.index("--")] if "--" in words else words
    arguments = words[len(names) + 1 :]
    began = time.monotonic()
    total: Counter[str] = Counter()
    failed: list[str] = []
    for name in names:
        stage = STAGES[name]
        print(f"\n{stage.title}: begins", flush=True)
        found, well = play(stage, arguments)
        total += found
        if not well:
            failed.append(stage.title)
    minutes = (time.monotonic() - began) / 60
    print(
        f"\n{', '.join(names)}: {minutes:.1f} min" + "".join(f"; failed: {each}" for each in failed)
    )
    bad = total["failed"] + total["error"]
    print(f"{total['passed']} passed, {bad} failed, {total['skipped']} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
