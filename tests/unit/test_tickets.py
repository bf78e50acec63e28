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
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    known = import_module("puresasl.mechanisms").mechanisms
    monkeypatch.setitem(known, "GSSAPI", library.mechanism)
    return library


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with embedded() as started:
        yield started


def without_ticket() -> Exception:
    return RuntimeError(("Unspecified GSS failure", 851968), (ENDED, -1765328352))


def test_none_at_the_start(library: Library, server: EmbeddedServer) -> None:
    library.error = without_ticket()
    message = f"was not asked, as there is no Kerberos ticket for it: {ENDED} \\(renew"
    with pytest.raises(zklock.NoAnswer, match=message):
        zklock.connect(server.hosts, start_timeout=0.5, sasl_options=GSSAPI)


def test_a_kdc_that_is_silent_at_the_start(library: Library, server: EmbeddedServer) -> None:
    library.answers.clear()
    try:
        with pytest.raises(zklock.NoAnswer, match="was not asked yet: the KDC has not answered"):
            zklock.connect(server.hosts, start_timeout=0.5, sasl_options=GSSAPI)
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
    with pytest.raises(zklock.NoAnswer, match="no Kerberos ticket for it: LookupError"):
        zklock.connect(server.hosts, start_timeout=0.5, sasl_options=GSSAPI)
