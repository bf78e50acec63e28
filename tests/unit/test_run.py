"""How the stages of the tests are run: what is red, and what is played once more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import run, stalls
from tests.unit.simulator import seeds

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("count", "first", "again", "status"),
    [(3, 0, 0, 0), (3, 0, 1, 1), (3, 1, 0, 1), (run.MOST + 1, 0, 0, 1)],
    ids=["well", "fails again", "another failed", "too many"],
)
def test_inconclusive_tests_are_played_once_more_alone(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    count: int,
    first: int,
    again: int,
    status: int,
) -> None:
    calls, program = tmp_path / "calls", tmp_path / "python"
    names = [f"a.py::test[{number} y]" for number in range(count)]
    noted = " ".join(f"'{name}'" for name in [*names, names[0]])
    program.write_text(
        f"""#!/bin/sh
        echo "$*" >>{calls}
        case $ZKLOCK_TEST_INCONCLUSIVE in
        '') exit {again} ;;
        *) printf '%s\\n' {noted} >>"$ZKLOCK_TEST_INCONCLUSIVE"; exit {first} ;;
        esac"""
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(run, "STAGES", {"timed": run.Stage("timed", (), 2, timed=True)})
    assert run.main(["timed"]) == status
    _, *later = calls.read_text().splitlines()
    assert [line.partition("tests.stalls ")[2] for line in later] == names * (count <= run.MOST)


@pytest.mark.parametrize("noting", [True, False], ids=["noted", "nobody plays it once more"])
def test_a_failure_while_the_process_stood_still_is_inconclusive(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, noting: bool
) -> None:
    witness = stalls.Witness()
    monkeypatch.setattr(witness, "begin", lambda: None)
    monkeypatch.setattr(stalls, "WITNESS", witness)
    file = pytester.path / "inconclusive"
    monkeypatch.setattr(stalls, "FILE", str(file) if noting else None)
    pytester.makepyfile(
        """
        from tests.stalls import WITNESS
        def test_well(): ...
        def test_wrong(): assert False
        def test_still():
            WITNESS.stalled += 1.5
            assert False
        def test_still_and_well():
            WITNESS.stalled += 1.5
        """
    )
    result = pytester.runpytest_inprocess("-p", "tests.stalls")
    result.assert_outcomes(passed=2, failed=2 - noting, xfailed=int(noting))
    if noting:
        (name,) = file.read_text().splitlines()
        assert name.endswith("::test_still")


PLAYED = (
    "tests/contract/test_lock.py::TestTurns",
    "tests/contract/test_both_fronts.py::TestGrants::test_come_in_the_order_of_asking",
    "tests/contract/test_election.py::TestTransferring::test_many_times_nobody_leads_but_the_successor",
)
"""Tests whose histories are compared: of threads, of tasks, of several clients."""

NOTING = """
from tests.unit.simulator.seeds import entries

def pytest_sessionfinish(session):
    player = session.config.pluginmanager.get_plugin("zklock-played")
    print("", *player.histories.items(), sep="\\nnoted ")
    for entry in entries():
        print("noted", entry, *map(str, map(entry.plan, entry.seeds)))
"""


@pytest.mark.slow("two processes import the contract, and play some of it")
@pytest.mark.lengthy("what stage A plays, in a copy of the project: it changes with the simulator")
def test_what_is_played_depends_on_the_test_and_its_seed_alone(tmp_path: Path) -> None:
    """Not on hashes of strings, on the folder, or on what the sources say beside what they do."""
    (tmp_path / "noting.py").write_text(NOTING)
    copy = tmp_path / "copy"
    for each in ("tests", "zklock"):
        shutil.copytree(ROOT / each, copy / each)
    shutil.copy(ROOT / "setup.cfg", copy)
    with (copy / "zklock/cli/top.py").open("a") as file:
        file.write("# A comment.\n")

    def noted(folder: Path, hashes: str) -> list[str]:
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ZKLOCK_", "PYTEST_", "COV"))
        }
        environ |= {"ZKLOCK_TEST_PLAYED": "1", "PYTHONHASHSEED": hashes}
        environ |= {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        options = ["-q", "-p", "noting", "-p", "no:cacheprovider", "-p", "no:xdist"]
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *PLAYED],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return [line for line in ended.stdout.splitlines() if line.startswith("noted ")]

    first = noted(ROOT, "1")
    assert len(first) > len(PLAYED) + len(list(seeds.entries()))
    assert noted(copy, "4") == first
