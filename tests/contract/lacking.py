"""What stand-ins for a server do not have, and so which contract tests they cannot serve.

With ``ZKLOCK_TEST_BACKEND=embedded`` all other tests of the contract run on the embedded server,
and with ``ZKLOCK_TEST_SIMULATED=1`` on a simulation. Each test listed here is expected to fail in
the way that ``raises`` says, or is not run. One that passes nevertheless fails the run: then it has
to leave the list. docs/testing.md shows users both lists.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import chain

import pytest

from tests.contract.simulated import SIMULATED
from zklock.testing import BackendUnavailable, NotSupported
from zklock.testing.selection import BACKEND_VARIABLE

EMBEDDED = "embedded"


@dataclass(frozen=True)
class Lack:
    """Something that only real servers have."""

    what: str
    why: str
    tests: str
    """A pattern of the ids of the tests that need it."""
    raises: tuple[type[Exception], ...] = ()
    """How they fail; empty if they start real servers themselves, and so are not run."""


LACKS = (
    Lack(
        "ensembles",
        "it is one process",
        r"test_fixtures\.py::test_the_ensemble_",
        (BackendUnavailable,),
    ),
    Lack(
        "a data folder",
        "it keeps everything in memory, as long as its process lives",
        r"test_servers\.py::test_a_given_data_dir_is_kept\[embedded",
        (NotSupported,),
    ),
    Lack(
        "servers that go on with each other's data",
        "each has its own memory",
        r"test_negotiation\.py",
    ),
    Lack(
        "Java's options, and settings that no lock needs",
        "an unknown setting is refused, not ignored",
        r"test_servers\.py::test_(further_settings|a_server_that_(cannot_start|never_serves)).*"
        r"\[embedded",
        (NotSupported,),
    ),
    Lack(
        "quotas",
        "`setquota` and `listquota` work, but no quota is enforced",
        r"test_hostile\.py::TestParents::test_that_are_full"
        r"|test_zookeeper\.py::test_a_quota_that_is_used_up",
        (NotSupported,),
    ),
    Lack(
        "TLS and SASL",
        "it is for tests on one machine",
        r"test_secure\.py|test_cli_secure\.py|test_turned_away\.py|test_kerberos\.py",
    ),
    Lack(
        "the admin server",
        "it answers the same questions by four-letter words",
        r"test_cli_doctor\.py::test_the_admin_server|test_cli_top\.py::\w*admin",
    ),
    Lack(
        "a second opinion",
        "the test compares it with a real server",
        r"test_embedded_is_faithful\.py",
    ),
)


SIMULATION_LACKS = (
    Lack(
        "one clock for clients behind a proxy and their rivals",
        "a client behind a proxy goes by the real clock, its rivals by the simulated one",
        r"test_drops\.py|test_drops_family\.py",
    ),
    Lack(
        "sessions that end behind a black hole",
        "a client behind a proxy goes by the real clock",
        r"test_loss\.py::test_a_holder_that_is_cut_off_is_told\w*\[silence"
        r"|test_hazards\.py::test_a_busy_holder_behind_a_black_hole",
    ),
    Lack(
        "processes that stand still",
        "a stopped process stays connected; `pause()` is for its own clients",
        r"test_pool\.py::test_a_((worker|leader)_that_stands_still|crash_and_a_history)",
    ),
    Lack(
        "handlers in processes",
        "they go by the clock of their processes; a pool refuses them",
        r"test_pool_names\.py::test_a_process_knows_the_name"
        r"|test_pool_processes\.py::test_(?!a_late_write_that_is_refused_is_no_failure\[threads)",
        (ValueError,),
    ),
)


_ELSEWHERE = {
    "they are about applications, and about data that guards protect": (r"/contrib/", r"/fencing/"),
    "they are about the servers and tools of the tests, and about pages": (
        r"test_docs\.py",
        r"test_embedded_is_faithful\.py",
        r"test_fixtures\.py",
        r"test_proxy\.py",
        r"test_servers\.py",
    ),
}

_PROCESSES = (
    r"test_cli(_\w+)?\.py",
    r"test_command_pages\.py",
    r"test_commands\.py",
    r"test_demo\.py",
    r"test_elect_command\.py",
    r"test_examples\.py",
    r"test_handled\.py",
    r"test_finalizers\.py",
    r"test_jobs\.py",
    r"test_struck\.py",
    r"test_telemetry_docs\.py",
)

NOT_SIMULATED = {
    "their clients are in processes of their own": (
        *_PROCESSES,
        r"test_pool_processes\.py::test_(nothing_outlives_an_owner|a_script_that|a_process_ends)",
    ),
    "their clients are connected to servers of their own, or to a proxy": (
        r"test_negotiation\.py",
        r"test_numbers\.py",
        r"test_rollover\.py",
        r"test_secure\.py",
        r"test_slow_answers\.py",
        r"test_throttling\.py",
        r"test_turned_away\.py",
    ),
    **_ELSEWHERE,
}
"""Patterns of the ids of tests that say nothing of a simulation, by the reason.

These are left out with ``ZKLOCK_TEST_SIMULATED=1``. All others have clients of the simulation.
"""


NOT_PLAYED = {
    "their clients are in processes of their own": (
        *_PROCESSES,
        r"test_pool_processes\.py",
        r"test_struck_\w+\.py",
        r"test_connecting\.py::.*with_the_command",
        r"::test_\w*(process_is_killed|_fork_|fork(ed)?_|interrupts?_leave|interrupted_acquire)",
        r"test_aio_election\.py::.*by_a_signal_handler",
        r"test_election\.py::.*(pause_is_none|leave_no_member|sigterm)",
        r"test_fifo\.py",
        r"test_loss\.py::test_a_paused_holder",
        r"test_membership\.py::.*test_a_member_that_is_killed",
        r"test_pool\.py::test_(a_crash|\w*stands_still)",
        r"test_pool_names\.py::test_a_process",
        r"test_rollover\.py",
        r"test_with\.py::.*(when_a_child|need_no_with)",
    ),
    "their servers are started anew, or with other settings": (
        r"test_family\.py::.*on_two_ensembles",
        r"test_hostile\.py::TestParents::test_that_are_(full|containers)",
        r"test_(negotiation|restored|throttling|turned_away)\.py",
    ),
    "their servers have a full queue, which only a real system has": (
        r"test_connecting\.py::test_servers_that_accept_nothing",
    ),
    **_ELSEWHERE,
}
"""Patterns of the ids of tests that cannot be played on the simulator's system, by the reason."""


OWN_SERVER = "zklock_own_server"
"""The fixture of tests whose clients are connected to a server of their own: a real one."""


REAL = {
    "authority",
    "administered",
    "secured",
    "zk",
    "zklock_ensemble",
    "zklock_own_server",
    "zklock_sim",
}
"""Fixtures of real servers, processes and proxies. Tests that have one are not played."""


def _pattern(groups: dict[str, tuple[str, ...]]) -> re.Pattern[str]:
    return re.compile(rf"^tests/contract.*({'|'.join(chain(*groups.values()))})")


def played(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that are played on the simulator's system."""
    found = _pattern(NOT_PLAYED)
    return [
        item
        for item in items
        if REAL.isdisjoint(getattr(item, "fixturenames", ())) and not found.search(item.nodeid)
    ]


def left_out(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that say nothing of the simulation, if they would run on one."""
    found = _pattern(NOT_SIMULATED)

    def says_nothing(item: pytest.Item) -> bool:
        return OWN_SERVER in getattr(item, "fixturenames", ()) or bool(found.search(item.nodeid))

    return [item for item in items if SIMULATED and says_nothing(item)]


def mark(items: list[pytest.Item]) -> None:
    """Mark the tests that the server that they would run on cannot serve."""
    everywhere = os.environ.get(BACKEND_VARIABLE) == EMBEDDED
    for item in items:
        if everywhere or f"[{EMBEDDED}" in item.nodeid:
            _mark(item, "the embedded server", LACKS)
        if SIMULATED:
            _mark(item, "a simulation", SIMULATION_LACKS)


def _mark(item: pytest.Item, who: str, lacks: tuple[Lack, ...]) -> None:
    for lack in lacks:
        if re.search(lack.tests, item.nodeid):
            reason = f"{who} has no {lack.what}: {lack.why}"
            run, raises = bool(lack.raises), lack.raises or None
            mark = pytest.mark.xfail(reason=reason, raises=raises, run=run, strict=run)
            item.add_marker(mark, append=False)  # before the mark of a test that is to fail anyway
