"""How the stages of the tests are run: what is told, what is played once more, what is red."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import progress, run, stalls
from tests.unit.simulator import seeds
from tests.unit.simulator.plans import plan_of

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]

Command = Callable[[str], Path]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Put a shell script in the place of Python; each call of it is a line of the file returned."""
    monkeypatch.delenv("ZKLOCK_TEST_INCONCLUSIVE", raising=False)

    def write(script: str) -> Path:
        calls, program = tmp_path / "calls", tmp_path / "python"
        calls.touch()
        program.write_text(f'#!/bin/sh\necho "$*" >>{calls}\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        return calls

    return write


def in_stage(name: str, **changes: object) -> None:
    """Have this process's `tests.run` play one stage with such a name."""
    run.STAGES[name] = run.Stage(name, ("tests/nowhere",), 2, **changes)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "STAGES", {})
    in_stage("exact")
    in_stage("timed", timed=True)


class TestStage:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("3 passed in 0.1s", {"passed": 3}),
            ("1 failed, 2 passed, 4 deselected in 1s", {"failed": 1, "passed": 2, "deselected": 4}),
            ("2 skipped, 5 xfailed, 1 xpassed", {"skipped": 2, "xfailed": 5, "xpassed": 1}),
            ("1 passed, 1 error in 3s", {"passed": 1, "error": 1}),
            ("7 errors in 3s", {"error": 7}),
            ("no tests ran in 0.00s", {}),
        ],
    )
    def test_the_last_line_of_outcomes_counts(
        self, command: Command, line: str, expected: dict[str, int]
    ) -> None:
        command(f"echo 'A: 3 of 8 tests, 9 failed, 0.1 min'; echo '{line}'; echo bye")
        found = run.pytest(run.STAGES["exact"], [], 0)
        if not expected:
            expected = {"failed": 9}  # what was told before it broke off
        assert +found == expected

    def test_a_stage_that_passes(
        self, command: Command, capsys: pytest.CaptureFixture[str]
    ) -> None:
        calls = command("echo 4 passed, 1 skipped in 1s")
        assert run.main(["exact", "timed", "--", "-k", "word"]) == 0
        assert capsys.readouterr().out.endswith("8 passed, 0 failed, 2 skipped\n")
        first, second = calls.read_text().splitlines()
        assert first == second
        assert " -n 2 " in first
        assert first.endswith(" tests/nowhere -k word")

    @pytest.mark.parametrize("status", [1, 2, 5])
    def test_a_stage_that_fails_fails_the_run_and_the_next_one_is_played(
        self, command: Command, capsys: pytest.CaptureFixture[str], status: int
    ) -> None:
        calls = command(f"echo 4 passed in 1s; exit {status}")
        assert run.main(["exact", "timed"]) == 1
        assert len(calls.read_text().splitlines()) == 2
        assert "; failed: exact; failed: timed" in capsys.readouterr().out

    def test_what_no_machine_can_delay_is_never_inconclusive(self, command: Command) -> None:
        calls = command('[ -z "$ZKLOCK_TEST_INCONCLUSIVE" ]; echo 4 passed in 1s; exit $?')
        assert run.main(["exact"]) == 0
        assert len(calls.read_text().splitlines()) == 1


class TestInconclusive:
    SCRIPT = """
        case $ZKLOCK_TEST_INCONCLUSIVE in
        '') echo {again}; exit {status} ;;
        *) printf '%s\\n' {names} >>"$ZKLOCK_TEST_INCONCLUSIVE"; echo 5 passed, {count} xfailed ;;
        esac
    """

    def test_tests_are_played_once_more_alone(
        self, command: Command, capsys: pytest.CaptureFixture[str]
    ) -> None:
        names = ("a.py::one", "a.py::two[x y]", "a.py::three")
        quoted = " ".join(f"'{name}'" for name in (*names, names[0]))
        calls = command(self.SCRIPT.format(again="1 passed", status=0, names=quoted, count=3))
        assert run.main(["timed"]) == 0
        _, *again = calls.read_text().splitlines()
        assert [line.partition("classic ")[2] for line in again] == list(names)
        assert not [line for line in again if " -n " in line]
        assert capsys.readouterr().out.endswith("8 passed, 0 failed, 0 skipped\n")

    def test_one_that_fails_then_fails_the_run(
        self, command: Command, capsys: pytest.CaptureFixture[str]
    ) -> None:
        command(self.SCRIPT.format(again="1 failed", status=1, names="a.py::one", count=1))
        assert run.main(["timed"]) == 1
        assert capsys.readouterr().out.endswith("5 passed, 1 failed, 0 skipped\n")

    def test_others_that_fail_meanwhile_fail_the_run(self, command: Command) -> None:
        script = self.SCRIPT.format(again="1 passed", status=0, names="a.py::one", count=1)
        calls = command(f'{script}\n[ -z "$ZKLOCK_TEST_INCONCLUSIVE" ]')
        assert run.main(["timed"]) == 1
        assert len(calls.read_text().splitlines()) == 2

    def test_more_of_them_than_may_be_fail_the_run(
        self, command: Command, capsys: pytest.CaptureFixture[str]
    ) -> None:
        names = [f"a.py::test_{number}" for number in range(run.MOST + 1)]
        script = self.SCRIPT.format(again="1 passed", status=0, names=" ".join(names), count=4)
        calls = command(script)
        assert run.main(["timed"]) == 1
        assert len(calls.read_text().splitlines()) == 1
        assert f"more than {run.MOST}: {', '.join(names)}" in capsys.readouterr().out


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """Tests of which two are in ``tests/unit``; that which stands still says so to the witness."""
    pytester.makeini("[pytest]\nmarkers =\n  slow(why)\n  lengthy(why)")
    folder = pytester.mkdir("tests") / "unit"
    folder.mkdir()
    (folder / "test_it.py").write_text(
        "import pytest\n"
        "from tests.stalls import WITNESS\n"
        "def test_well(): ...\n"
        "def test_wrong(): assert False\n"
        "def test_still():\n"
        "    WITNESS.stalled += 1.5\n"
        "    assert False\n"
        "@pytest.fixture\n"
        "def still():\n"
        "    WITNESS.stalled += 1.5\n"
        "    assert False\n"
        "def test_set_up(still): ...\n"
        "def test_still_and_well():\n"
        "    WITNESS.stalled += 1.5\n"
    )
    return pytester


class TestStalls:
    @pytest.fixture(autouse=True)
    def witness(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that does not watch: this machine stands still only where a test says so."""
        witness = stalls.Witness()
        monkeypatch.setattr(witness, "begin", lambda: None)
        monkeypatch.setattr(stalls, "WITNESS", witness)

    @pytest.mark.parametrize("strict", [(), ("--zklock-strict",)], ids=["usual", "strict"])
    def test_a_failure_while_the_process_stood_still_is_inconclusive(
        self,
        suite: pytest.Pytester,
        monkeypatch: pytest.MonkeyPatch,
        strict: tuple[str, ...],
    ) -> None:
        file = suite.path / "inconclusive"
        monkeypatch.setattr(stalls, "FILE", str(file))
        result = suite.runpytest_inprocess("-p", "tests.stalls", *strict)
        result.assert_outcomes(passed=2, failed=1, xfailed=2)
        names = [line.partition("::")[2] for line in file.read_text().splitlines()]
        assert names == ["test_still", "test_set_up"]

    def test_it_is_a_failure_where_nobody_plays_it_once_more(
        self, suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stalls, "FILE", None)
        result = suite.runpytest_inprocess("-p", "tests.stalls")
        result.assert_outcomes(passed=2, failed=2, errors=1)

    def test_the_witness_counts_by_how_much_it_is_late(self) -> None:
        looks = iter([0.0, 0.06, 0.11, 3.11, 3.16])
        clock = SimpleNamespace(monotonic=lambda: next(looks), sleep=lambda _: None)
        witness = stalls.Witness(clock)
        with pytest.raises(StopIteration):
            witness._watch()
        assert witness.stalled == pytest.approx(3.0 - 2 * stalls.TICK)


class TestProgress:
    @pytest.fixture(autouse=True)
    def stage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ZKLOCK_TEST_STAGE", "A, some")
        monkeypatch.setattr(stalls, "FILE", None)

    def test_long_unit_tests_without_a_reason_are_listed(
        self, suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = (
            "import pytest\n"
            "def test_it(): ...\n"
            "@pytest.mark.slow('why')\n"
            "def test_slow(): ...\n"
            "@pytest.mark.lengthy('why')\n"
            "def test_lengthy(): ...\n"
        )
        (suite.path / "tests/unit/test_it.py").write_text(text)
        (suite.path / "tests/test_server.py").write_text(text)
        monkeypatch.setattr(progress, "LONG", -1.0)
        lines = suite.runpytest_inprocess("-q", "-p", "tests.progress").outlines
        (title,) = (line for line in lines if "without a mark" in line)
        assert [line for line in lines if line.endswith("::test_it")] == [
            lines[lines.index(title) + 1]
        ]
        assert not [line for line in lines if "test_slow" in line or "test_lengthy" in line]


def test_a_slow_test_without_a_reason_is_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests import conftest

    monkeypatch.setattr(conftest, "leave_out", lambda *_: None)
    (item,) = pytester.getitems("import pytest\n@pytest.mark.slow\ndef test_it(): ...\n")
    with pytest.raises(pytest.UsageError, match=r"test_it is slow: say why"):
        conftest.pytest_collection_modifyitems(item.config, [item])


class TestSeeds:
    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        file = tmp_path / "seeds.txt"
        monkeypatch.setattr(seeds, "FILE", file)
        return file

    def test_ranges_and_single_ones(self, file: Path) -> None:
        plan = str(plan_of(6))
        file.write_text(f"# a comment\n\n7-28 none # more\n5 twice\n6 once {plan}\n")
        assert [str(entry) for entry in seeds.entries()] == [
            "7-16 none",
            "17-26 none",
            "27-28 none",
            "5-5 twice",
            "6-6 once",
        ]
        *_, last = seeds.entries()
        assert last.text == plan

    @pytest.mark.parametrize(
        "line",
        [
            "7",
            "7 None",
            "7 never",
            "seven none",
            "9-7 none",
            "-7 none",
            "7-8-9 none",
            "7.5 none",
            "7 none no plan",
            "7 none {}",
            '7 none {"faults": [], "colour": "red"}',
        ],
    )
    def test_a_malformed_line_is_refused_with_its_number(self, file: Path, line: str) -> None:
        file.write_text(f"# a comment\n{line}\n")
        with pytest.raises(ValueError, match=r"^seeds\.txt:2: SEEDS INTERRUPTS \[PLAN\]$"):
            list(seeds.entries())


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
