"""What the embedded server does not have, and so which contract tests it cannot serve.

With ``ZKLOCK_TEST_BACKEND=embedded`` all other tests of the contract run on it. Each test listed
here is expected to fail in the way that ``raises`` says, or is not run. One that passes
nevertheless fails the run: then it has to leave the list. docs/testing.md shows users the list.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import pytest

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
        "it is one process: there is nothing to elect, and nothing to cut off",
        r"test_fixtures\.py::test_the_ensemble_",
        (BackendUnavailable,),
    ),
    Lack(
        "a data folder",
        "it keeps everything in memory, through stops and starts, and no longer than its process",
        r"test_servers\.py::test_a_given_data_dir_is_kept\[embedded",
        (NotSupported,),
    ),
    Lack(
        "servers that go on with each other's data",
        "each has its own memory; `restart()` with other timeouts is the nearest thing",
        r"test_negotiation\.py",
    ),
    Lack(
        "Java's options, and settings that no lock needs",
        "there is no Java; an unknown setting is refused, not ignored",
        r"test_servers\.py::test_(further_settings|a_server_that_(cannot_start|never_serves)).*"
        r"\[embedded",
        (NotSupported,),
    ),
    Lack(
        "quotas",
        "locks only see that a create is refused",
        r"test_hostile\.py::TestParents::test_that_are_full",
        (NotSupported,),
    ),
    Lack(
        "TLS and SASL",
        "it is for tests on one machine",
        r"test_secure\.py|test_cli_secure\.py",
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


def mark(items: list[pytest.Item]) -> None:
    """Mark the tests that the embedded server cannot serve, where it is what they would run on."""
    everywhere = os.environ.get(BACKEND_VARIABLE) == EMBEDDED
    for item in items:
        if not (everywhere or f"[{EMBEDDED}" in item.nodeid):
            continue
        for lack in LACKS:
            if re.search(lack.tests, item.nodeid):
                reason = f"the embedded server has no {lack.what}: {lack.why}"
                run, raises = bool(lack.raises), lack.raises or None
                item.add_marker(
                    pytest.mark.xfail(reason=reason, raises=raises, run=run, strict=run)
                )
