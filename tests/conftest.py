"""Settings of all tests, how several processes share them, and what is left to a longer run.

Hypothesis tries the same examples in every run, without a clock; ``HYPOTHESIS_PROFILE=thorough``
looks for new ones, ten times as many.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import re
import signal
from collections.abc import Generator, Iterator
from typing import Any, TypeAlias

import pytest
from hypothesis import settings

from tests.modes import examples, full, quick
from zklock._core import watches
from zklock._ground import interrupts

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=examples(100))
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# What starts the tests may have them ignore these (nohup, a shell's background job), and programs
# that they start would ignore them, too; a handler is not inherited. SIGHUP still ends no test run.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)

# mutmut puts a call of its own before each of zklock's: no signal handler's.
interrupts._WITHIN.add("mutmut")

# The commands of the tests read no settings of the user who runs them.
os.environ["ZKLOCK_CONFIG"] = os.devnull

# Writers of the guards' tests are processes by the hundred: they are forked from one that has
# imported what they need.
multiprocessing.set_forkserver_preload(
    [
        "tests.contract.fencing.test_sql",
        "tests.contract.fencing.test_story",
        "tests.unit.fencing.test_guard_conformance",
        "asyncpg",
        "boto3",
        "psycopg",
        "pymysql",
        "redis.asyncio.cluster",
        "redis.cluster",
        "sqlalchemy.dialects.mysql.pymysql",
        "sqlalchemy.dialects.postgresql.asyncpg",
        "sqlalchemy.dialects.postgresql.psycopg",
        "sqlalchemy.ext.asyncio",
    ]
)

GROUPS = (
    ("chaos", r"\bchaos/test_"),
    ("partitions", r"\bcluster/test_partitions\.py"),
    ("model", r"\bmodel/test_model\.py"),
    ("ensembles", r"\bcluster/"),
    ("mariadb", r"\bfencing/.*\bmariadb"),
    ("postgresql", r"\bfencing/(.*\bpostgresql|test_sql_drivers)"),
    ("interop", r"\binterop/"),
    ("secure commands", r"\bcontract/test_cli_secure\.py"),
    ("aws", r"\bfencing/test_aws\.py"),
    ("secure", r"\bcontract/test_secure\.py"),
    ("both servers", r"\bcontract/test_embedded_is_faithful\.py"),
    ("guards of znodes", r"\bfencing/.*\bzookeeper\b"),
    ("redis", r"\bfencing/.*redis"),
    ("sqlite", r"\bfencing/test_(conformance|story)\.py.*\bsqlite"),
    ("files", r"\bfencing/test_(conformance|story)\.py"),
    ("rollover", r"\bcontract/test_rollover\.py"),
    ("mended", r"\bcontract/test_fixtures\.py::test_the_ensemble_"),
)
"""Tests with such an id run one after the other, in one process: they share an expensive server,
or a process that others are forked from, or would take each other's processors. The longest group
comes first."""

NIGHTLY = {
    r"tests/cluster/(?!test_compose\.py|test_partitions\.py::test_h3_cut_off_follower)": (
        "ensembles: several servers for each test; one partition runs"
    ),
    r"tests/chaos/": "chaos: minutes on three servers",
    r"tests/contract/test_(handled|struck)\.py::(?!.*acquire-True|.*with lock)": (
        "interrupts at every moment; those of an acquire, and of a with statement, run"
    ),
    r"tests/contract/fencing/.*(test_writers_that_are_(stopped|killed)\[(?!sqlite|redis-)"
    r"|story\.py.*(mariadb|postgresql|zookeeper)|interleavings\])": (
        "guards whose writers are stopped and killed, and long conformance checks: one of each "
        "runs, and the short checks of each database"
    ),
    r"tests/contract/contrib/(test_django\.py::.*(singleton|another_host|on_mariadb)"
    r"|test_celery_tasks\.py::.*(killed|skipped|out_of_nowhere|every_moment)"
    r"|test_celery\.py::.*(cannot_send|when_the_first)"
    r"|test_kubernetes\.py::test_the_entrypoint|test_servers_of|test_tooz\.py::.*at_once"
    r"|test_apscheduler\.py::.*killed)": "adapters whose processes are killed",
    r"tests/contract/(test_cli_phases|test_cli_secure|test_cli_run|test_cli_signals)\.py::"
    r".*\[(?!run-2\]|run-15\]|run\]|mutual TLS-options|[^\]]*run-term)": (
        "the ends of commands in each phase, and each way to connect: one of each runs"
    ),
    r"tests/contract/(test_demo\.py::test_where_nothing|test_jobs"
    r"|test_rollover|test_handled|test_command_pages|test_negotiation\.py::.*(silence|growth)"
    r"|test_membership|test_commands\.py"
    r"|test_pool\.py::test_\w*(stands_still|crash_and)|test_loss\.py::.*server_was_killed)": (
        "processes that are paused and killed, and long waits: one of each sort runs"
    ),
    r"tests/interop/test_(latch|rollover)\.py": "Curator's latch, and numbers that run out",
}
"""Patterns of tests that are left to the nightly run as well, unless they are named, and why."""

NAMED = {"tests/cluster", "tests/chaos"}
"""Folders that nobody names who wants less than all of their tests."""

Noted: TypeAlias = dict[str, dict[str, dict[str, str]]]
NOTED = pytest.StashKey[Noted]()
"""What the end of the run tells, by title and line: of the conformance checks, for each subject how
many cases each of them tried; of tests that were left to a longer run, why, and how many."""

LONGER = {
    "lengthy": "left to make test",
    "thorough": "left to make nightly; ZKLOCK_TEST_FULL=1 runs them here",
}
"""The marks of such tests, and which run that is."""

CONFORMANCE = "guard conformance: cases tried"
TOLD = "told by tests"


def pytest_configure(config: pytest.Config) -> None:
    noted: Noted = {title: {} for title in (CONFORMANCE, TOLD, *LONGER.values())}
    config.stash[NOTED] = noted


def group_of(nodeid: str) -> str | None:
    """Return the name of the group that a test belongs to."""
    return next((name for name, pattern in GROUPS if re.search(pattern, nodeid)), None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out groups as a whole, all other tests one by one.

    The first process takes them from the end, where those are that compute: one of them at a time,
    beside the many that wait. Handed out in order, they would be left for the end, and wait for
    each other's processors.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid) or nodeid

        def _assign_work_unit(self, node: Any) -> None:
            if node.gateway.id == "gw0" and self.workqueue:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            # What is done would be counted again after each test.
            assigned = self.assigned_work[node]
            for scope in [scope for scope, unit in assigned.items() if all(unit.values())]:
                del assigned[scope]
            super()._assign_work_unit(node)

    return Scheduling(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what is collected here: thousands of tests that last to the end.

    While they are made, it would look at them again and again, and later with each of its rounds.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for pattern, why in NIGHTLY.items():
        for item in items:
            if re.match(pattern, item.nodeid):
                item.add_marker(pytest.mark.thorough(why))
    for item in items:
        # Such a test cannot be named, and is another one in every process.
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"the id of {item.nodeid} is an address: give it another")
        if any(not mark.args for mark in item.iter_markers("slow")):
            raise pytest.UsageError(f"{item.nodeid} is slow: say why, as in mark.slow(why)")
    leave_out(config, items)
    if hasattr(config, "workerinput"):
        items.sort(key=place)


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out the tests left to a longer run, unless this is it, or tests are wanted by name."""
    if any("::" in argument or argument.rstrip("/") in NAMED for argument in config.args):
        return
    left = {
        item: mark
        for item in items
        for mark in (
            (not full() and item.get_closest_marker("thorough"))
            or (quick() and item.get_closest_marker("lengthy")),
        )
        if mark
    }
    for mark in left.values():
        (why,) = mark.args
        tests = config.stash[NOTED][LONGER[mark.name]].setdefault(why, {})
        tests[str(len(tests))] = ""
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


def place(item: pytest.Item) -> int:
    """Order tests by when they have to begin, so that no long one is left for the end.

    The end is where the first process begins: the unit tests compute, the simulator longest.
    """
    names = [name for name, _ in GROUPS]
    group = group_of(item.nodeid)
    if group is not None:
        return names.index(group)
    if item.get_closest_marker("slow") is not None:
        return len(names)
    if not item.nodeid.startswith("tests/unit/"):
        return len(names) + 1
    return len(names) + (3 if item.nodeid.startswith("tests/unit/simulator/") else 2)


@pytest.fixture(scope="session")
def results(pytestconfig: pytest.Config) -> dict[str, dict[str, str]]:
    """What the guards' conformance checks tried, to be noted."""
    return pytestconfig.stash[NOTED][CONFORMANCE]


@pytest.fixture
def told_in_the_end(pytestconfig: pytest.Config) -> Iterator[list[str]]:
    """Lines for the end of the run."""
    lines: list[str] = []
    yield lines
    pytestconfig.stash[NOTED][TOLD].update({line: {} for line in lines})


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["noted"] = session.config.stash[NOTED]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over what one of several processes noted; all have left out the same."""
    del error
    noted: Noted = getattr(node, "workeroutput", {}).get("noted", {})
    for title, lines in noted.items():
        for line, cells in lines.items():
            node.config.stash[NOTED][title].setdefault(line, {}).update(cells)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for title, lines in config.stash[NOTED].items():
        if lines:
            terminalreporter.section(title)
        if lines and title == CONFORMANCE:
            from zklock.testing.guard_conformance import matrix

            terminalreporter.write_line(matrix(lines))
            continue
        for line, tests in lines.items():
            terminalreporter.write_line(f"{len(tests):4} of {line}" if tests else line)


@pytest.fixture(autouse=True, scope="module")
def nobody_looks_again() -> Iterator[None]:
    """Who looks again without an event would hide that nobody has woken it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(watches, "LOOK_AGAIN", math.inf)
        yield
