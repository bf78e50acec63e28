"""The pytest plugin in runs of its own, without a server."""

from __future__ import annotations

import configparser
import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, NoAuthError, NotEmptyError
from kazoo.retry import RetryFailedError

from zklock.testing.pytest_plugin import _delete_tree

pytest_plugins = ["pytester"]

PLUGIN = "zklock.testing.pytest_plugin"

SKIPS = {
    "a mark": "@pytest.mark.skip(reason='because')\ndef test_it(): ...",
    "a condition": "@pytest.mark.skipif(True, reason='because')\ndef test_it(): ...",
    "a call": "def test_it(): pytest.skip('because')",
    "a fixture": "@pytest.fixture\ndef f(): pytest.skip('because')\ndef test_it(f): ...",
    "a missing import": "def test_it(): pytest.importorskip('nosuch', reason='because')",
    "unittest": (
        "import unittest\nclass T(unittest.TestCase):\n"
        "    @unittest.skip('because')\n    def test_it(self): ..."
    ),
    "the module": "pytest.skip('because', allow_module_level=True)",
}


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("ZKLOCK_TEST_STRICT", raising=False)
    monkeypatch.delenv("ZKLOCK_TEST_HOSTS", raising=False)
    return pytester


@pytest.mark.parametrize("skip", SKIPS.values(), ids=SKIPS)
def test_a_skip_fails_the_run_in_strict_mode_only(run: pytest.Pytester, skip: str) -> None:
    run.makepyfile(f"import pytest\n{skip}\ndef test_other(): ...")
    assert run.runpytest().ret in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
    result = run.runpytest("--zklock-strict")
    assert result.ret in {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED}
    result.stdout.fnmatch_lines(["*strict mode does not allow: *because*"])


def test_strict_by_environment_or_ini(
    run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.makepyfile(f"import pytest\n{SKIPS['a call']}")
    for value, outcome in (("yes", "failed"), ("no", "skipped")):
        monkeypatch.setenv("ZKLOCK_TEST_STRICT", value)
        run.runpytest().assert_outcomes(**{outcome: 1})
    run.makeini("[pytest]\nzklock_strict = true")
    run.runpytest().assert_outcomes(failed=1)


def test_strict_mode_leaves_expected_failures_and_passes_alone(run: pytest.Pytester) -> None:
    run.makepyfile(
        """
        import pytest
        @pytest.mark.xfail(strict=True)
        def test_wrong(): assert False
        def test_right(): ...
        """
    )
    result = run.runpytest("--zklock-strict")
    result.assert_outcomes(passed=1, xfailed=1)
    assert result.ret == 0


def test_without_a_server_tests_are_skipped_with_what_would_help(
    run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZKLOCK_TEST_BACKEND", "hosts")
    run.makepyfile("def test_it(zklock_client): ...")
    result = run.runpytest("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*set ZKLOCK_TEST_HOSTS*"])
    run.runpytest("--zklock-strict").assert_outcomes(errors=1)


def test_loading_the_plugin_imports_nothing_that_a_server_needs() -> None:
    code = f"import sys, {PLUGIN}; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(out.stdout.split())
    assert not {"kazoo", "docker", "yaml", "asyncio"} & {name.partition(".")[0] for name in loaded}
    ours = {name for name in loaded if name.partition(".")[0] == "zklock"}
    assert ours == {
        "zklock",
        "zklock._ground",
        "zklock._ground.lazy",
        "zklock._version",
        "zklock.testing",
        "zklock.testing.switches",
        PLUGIN,
    }


def test_the_package_is_all_that_is_installed() -> None:
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[3] / "setup.cfg")
    assert "py_modules" not in setup["options"]
    assert setup["options.packages.find"]["include"].split() == ["zklock", "zklock.*"]
    assert setup["options.entry_points"]["pytest11"].strip() == f"zklock = {PLUGIN}"


def test_a_simulation_of_each_tests_own(run: pytest.Pytester) -> None:
    run.makepyfile(
        """
        import zklock

        def test_one(zklock_sim):
            zklock_sim.advance(3.0)
            assert zklock.Lock(zklock_sim.client(), "/lock").acquire().held

        def test_other(zklock_sim):
            assert zklock_sim.now == 0.0
            assert zklock_sim.client().exists("/lock") is None
        """
    )
    run.runpytest("--zklock-strict").assert_outcomes(passed=2)


class Slow:
    """A client whose deletions fail first."""

    def __init__(self, *errors: type[Exception]) -> None:
        self.errors = list(errors)

    def delete(self, path: str, recursive: bool) -> None:
        if self.errors:
            raise self.errors.pop(0)


@pytest.mark.parametrize(
    ("errors", "left", "raised"),
    [
        ([ConnectionLoss, NotEmptyError, NotEmptyError, ConnectionLoss], 0, None),
        ([NotEmptyError] * 100, 90, (RuntimeError, "/zklock-test is still written to")),
        ([NoAuthError], 0, (RuntimeError, "an ACL below /zklock-test forbids its deletion")),
        ([ConnectionLoss] * 100, 97, (RetryFailedError, None)),
    ],
)
def test_a_tree_is_deleted_or_the_test_fails(
    errors: list[type[Exception]], left: int, raised: tuple[type[Exception], str | None] | None
) -> None:
    client: Any = Slow(*errors)
    with contextlib.nullcontext() if raised is None else pytest.raises(raised[0], match=raised[1]):
        _delete_tree(client, "/zklock-test")
    assert len(client.errors) == left
