"""A client that uses Kerberos and finds no ticket: it asks no server, and tries again.

Here a stand-in for Kerberos's library says whether there is a ticket, and talks to no server. With
a real KDC: tests/contract/test_kerberos.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import zklock
from zklock.testing import EmbeddedServer, embedded, wait_for

pytestmark = pytest.mark.slow("kazoo waits before it tries again")

SOON = 60.0
GSSAPI = {"mechanism": "GSSAPI"}
ENDED = "Ticket expired"


class Library:
    """What Kerberos's library finds: an error of its, or a ticket."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked: list[tuple[str, str]] = []
        self.silent, self.answers = threading.Event(), threading.Event()
        self.answers.set()

    def mechanism(self, sasl: Any, **_: Any) -> Any:
        library = self

        class Mechanism:
            complete = False

            def process(self, challenge: bytes | None = None) -> bytes:
                library.asked.append((sasl.service, sasl.host))
                library.silent.set()
                library.answers.wait()
                if library.error is not None:
                    raise library.error
                self.complete = True
                return b""

            def dispose(self) -> None:
                """Free nothing."""

        return Mechanism()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    library = Library()
    known = import_module("puresasl.mechanisms").mechanisms
    before = set(threading.enumerate())
    with monkeypatch.context() as substitute:
        substitute.setitem(known, "GSSAPI", library.mechanism)
        yield library
        # A client that stop() gave up may still ask for a ticket.
        wait_for(lambda: set(threading.enumerate()) <= before, SOON)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with embedded() as started:
        yield started


def in_vain(server: EmbeddedServer, cause: str) -> None:
    """Connect in vain, for longer and longer, until the error names the cause."""
    for seconds in (0.5, 4.0, SOON):
        with pytest.raises(zklock.NoAnswer) as caught:
            zklock.connect(server.hosts, start_timeout=seconds, sasl_options=GSSAPI)
        if cause in str(caught.value):
            return
    raise caught.value


def without_ticket() -> Exception:
    return RuntimeError(("Unspecified GSS failure", 851968), (ENDED, -1765328352))


def test_none_at_the_start(library: Library, server: EmbeddedServer) -> None:
    library.error = without_ticket()
    in_vain(server, f"was not asked, as there is no Kerberos ticket for it: {ENDED} (renew")


def test_a_kdc_that_is_silent_at_the_start(library: Library, server: EmbeddedServer) -> None:
    library.answers.clear()
    try:
        in_vain(server, "was not asked yet: the KDC has not answered")
    finally:
        library.answers.set()


def test_one_that_has_ended_when_the_connection_is_lost(
    library: Library, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    losses: list[zklock.Loss] = []
    with zklock.connect(server.hosts, timeout=30.0, sasl_options=GSSAPI) as client:
        grant = zklock.Lock(client, "/ticket", on_lost=losses.append).acquire()
        assert grant is not None
        library.error = without_ticket()
        client.handler.drop()
        wait_for(lambda: f"no Kerberos ticket for it: {ENDED}" in caplog.text, SOON)
        library.error = None
        grant.verify(SOON)
        assert grant.held
        grant.release()
    assert not losses
    assert set(library.asked) == {("zookeeper", "127.0.0.1")}


def test_an_error_that_says_little(library: Library, server: EmbeddedServer) -> None:
    library.error = LookupError()
    in_vain(server, "no Kerberos ticket for it: LookupError")
