"""How several processes share the tests: ``tests/conftest.py`` in runs of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.thorough(
    "test runs within test runs: they change with tests/conftest.py alone"
)

SHARED = ("-p", "xdist", "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder")


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for variable in (
        "PYTEST_XDIST_WORKER",
        "PYTEST_XDIST_WORKER_COUNT",
        "ZKLOCK_TEST_FULL",
        "ZKLOCK_TEST_QUICK",
        "ZKLOCK_TEST_STRICT",
    ):
        monkeypatch.delenv(variable, raising=False)
    # Those that the runs use are named; each of the others would take its time in every process.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "zklock.testing.pytest_plugin")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makeconftest((Path(__file__).parents[1] / "conftest.py").read_text())
    pytester.makeini("[pytest]")
    return pytester


@pytest.mark.parametrize("how", [(), SHARED], ids=["alone", "shared"])
def test_an_id_that_is_an_address_is_refused(suite: pytest.Pytester, how: tuple[str, ...]) -> None:
    suite.makepyfile(
        """
        import pytest
        @pytest.mark.parametrize("what", [object()], ids=repr)
        def test_it(what): ...
        """
    )
    result = suite.runpytest_subprocess(*how)
    assert result.ret != pytest.ExitCode.OK
    assert "passed" not in result.parseoutcomes()
    if not how:
        result.stderr.fnmatch_lines(["*object at 0x* is an address: give it another"])


def test_those_of_a_group_run_in_one_process_one_after_the_other(suite: pytest.Pytester) -> None:
    program = """
        import os
        import pathlib
        import pytest
        @pytest.mark.parametrize("{name}", {values})
        def test_it({name}):
            with pathlib.Path("{name}.txt").open("a") as file:
                file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
    """
    many = list(range(10))
    (suite.mkpydir("chaos") / "test_chaos.py").write_text(
        _dedented(program.format(name="fault", values=many))
    )
    databases = ["mariadb", "mariadb-serializable"] * 5
    (suite.mkpydir("fencing") / "test_fencing.py").write_text(
        _dedented(program.format(name="kind", values=databases))
    )
    suite.runpytest_subprocess(*SHARED).assert_outcomes(passed=20)
    for name in ("fault", "kind"):
        assert len(set((suite.path / f"{name}.txt").read_text().split())) == 1


def _dedented(program: str) -> str:
    return re.sub(r"^        ", "", program, flags=re.MULTILINE)


def test_a_skip_fails_a_shared_run_in_strict_mode(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_call="import pytest\ndef test_it(): pytest.skip('because')\n",
        test_module="import pytest\npytest.skip('because', allow_module_level=True)\n",
        test_mark="import pytest\n@pytest.mark.skip(reason='because')\ndef test_it(): ...\n",
    )
    suite.runpytest_subprocess(*SHARED).assert_outcomes(skipped=3)
    result = suite.runpytest_subprocess(*SHARED, "--zklock-strict")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*strict mode does not allow: *because*"])


def test_what_is_left_over_at_the_end_fails_a_shared_run(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest
        @pytest.fixture(scope="session", autouse=True)
        def nothing_left():
            yield
            assert False, "something is left"
        def test_it(): ...
        """
    )
    result = suite.runpytest_subprocess(*SHARED)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*something is left*"])


THOROUGH = """
import pytest
@pytest.mark.parametrize("size", [1, pytest.param(9, marks=pytest.mark.thorough("big ones"))])
def test_it(size): ...
@pytest.mark.thorough("big ones")
def test_big(): ...
@pytest.mark.thorough("slow ones: slow")
def test_slow(): ...
"""


LENGTHY = """
import pytest
@pytest.mark.lengthy("many steps")
def test_steps(): ...
@pytest.mark.thorough("big ones")
def test_big(): ...
def test_it(): ...
"""


@pytest.mark.parametrize("how", [(), SHARED], ids=["alone", "shared"])
def test_what_is_left_to_a_longer_run_by_a_quick_one_is_told_as_well(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...]
) -> None:
    suite.makeini("[pytest]\nmarkers =\n  thorough(why)\n  lengthy(why)")
    suite.makepyfile(LENGTHY)
    suite.runpytest_subprocess(*how).assert_outcomes(passed=2)
    monkeypatch.setenv("ZKLOCK_TEST_QUICK", "1")
    result = suite.runpytest_subprocess(*how)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*left to make test*", "*1 of many steps", "*left to make nightly*", "*1 of big ones"]
    )
    monkeypatch.setenv("ZKLOCK_TEST_FULL", "1")
    suite.runpytest_subprocess(*how).assert_outcomes(passed=3)


def test_a_test_that_is_named_is_never_left_out(suite: pytest.Pytester) -> None:
    suite.makeini("[pytest]\nmarkers = thorough(why)")
    file = suite.makepyfile(THOROUGH)
    suite.runpytest_subprocess(*SHARED, f"{file.name}::test_slow").assert_outcomes(passed=1)


@pytest.mark.parametrize(("named", "passed"), [((), 0), (("tests/chaos",), 1)])
def test_a_folder_is_left_out_unless_it_is_named(
    suite: pytest.Pytester, named: tuple[str, ...], passed: int
) -> None:
    suite.makeini("[pytest]\nmarkers = thorough(why)")
    folder = suite.mkdir("tests") / "chaos"
    folder.mkdir()
    (folder / "test_it.py").write_text("def test_it(): ...")
    result = suite.runpytest_subprocess(*named)
    result.assert_outcomes(passed=passed, deselected=1 - passed)
    if not named:
        result.stdout.fnmatch_lines(["*1 of chaos: *"])
