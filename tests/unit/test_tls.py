"""TLS on a connection: how long its handshake is waited for, and what is told of it."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest
from kazoo.handlers.threading import SequentialThreadingHandler

import zklock
from zklock._shell import client_state, handler as handler_module
from zklock._shell.handler import Handler
from zklock._shell.refusals import MUTE_TLS, WANTS_TLS, refusal
from zklock._shell.tls import SilentTls

TIMEOUT = 12.0


class Clocked:
    """A handler whose clock goes on only while a server takes its time to accept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, took: float) -> None:
        self.now = 100.0
        self.waits: list[float | None] = []
        self.handler = Handler()

        def connect(_: Handler, **options: float) -> socket.socket:
            self.now += took
            return socket.socket()

        def secured(sock: socket.socket, _: object, __: str, seconds: float | None) -> Any:
            sock.close()
            self.waits.append(seconds)
            raise SilentTls

        monkeypatch.setattr(SequentialThreadingHandler, "create_connection", connect)
        monkeypatch.setattr(handler_module, "secured", secured)
        for module in (handler_module, client_state):
            monkeypatch.setattr(module, "clock", lambda: self.now)

    def tries(self, host: str) -> float | None:
        """Return how long TLS is waited for at this server."""
        with pytest.raises(SilentTls):
            self.handler.create_connection(
                address=("127.0.0.1", 1), hostname=host, timeout=TIMEOUT, use_ssl=True
            )
        return self.waits[-1]


def test_it_is_waited_for_no_longer_than_an_answer_without_tls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocked = Clocked(monkeypatch, 0.0)
    clocked.handler.serve_hosts([("a", 1), ("b", 1), ("c", 1)])
    first = TIMEOUT / 6 / 4
    assert [clocked.tries(host) for host in "abc"] == 3 * [first]
    assert clocked.tries("a") == 2 * first


@pytest.mark.parametrize(("took", "left"), [(0.0, 0.5), (0.375, 0.125), (0.5, 0.0)])
def test_it_has_what_is_left_of_the_time_to_start(
    monkeypatch: pytest.MonkeyPatch, took: float, left: float
) -> None:
    clocked = Clocked(monkeypatch, took)
    clocked.handler.serve_hosts([("a", 1)])
    clocked.handler.starting(0.5)
    assert clocked.tries("a") == left
    assert clocked.handler.met("a:1") is MUTE_TLS


@pytest.mark.slow("a start that has no answer")
def test_a_server_that_does_not_answer_it_is_told_from_a_dead_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(
            zklock.NoAnswer, match=f"{server} accepts connections, and does not answer TLS"
        ):
            zklock.connect(server, 30.0, start_timeout=0.5, use_ssl=True)


class TlsAlone:
    """A port for TLS alone: it waits for the rest of a word, until nothing of the time is left."""

    def __init__(self) -> None:
        self.said = b""
        self.over = False

    def connect(self, tls: bool) -> Any:
        if self.over:
            raise TimeoutError
        return contextlib.nullcontext(self)

    def sendall(self, data: bytes) -> None:
        self.said = data

    def recv(self, size: int) -> bytes:
        if self.said[:1] != b"\x16":
            self.over = True
            raise TimeoutError
        return self.said[:size]


def test_a_port_for_tls_alone_is_found_before_the_time_is_over() -> None:
    assert refusal(TlsAlone().connect, False) is WANTS_TLS
