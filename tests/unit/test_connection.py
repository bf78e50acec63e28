"""The handler: the time that each server gets."""

from __future__ import annotations

import select
import socket
import threading
from typing import Any

import pytest
from kazoo.handlers.threading import SequentialThreadingHandler

from tests.contract.struck import Moments
from tests.unit.testing.wire import CONNECT, CONNECTED
from zklock._shell.handler import Handler
from zklock._shell.socket import Sock
from zklock.errors import ClientUnusable


class Pair:
    """A connection that asks for a session, and the server's end of it."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.far, near = socket.socketpair()
        near.setblocking(False)
        self.socket = Sock(near, handler, "a:1", None)
        handler.step(handler._drive)
        self.socket.send(CONNECT)
        assert self.far.recv(65536) == CONNECT

    def hear(self) -> None:
        """Have what the server has said, and its end, reach kazoo."""
        handler = self.handler
        handler.step(handler._pump)
        assert handler.select([self.socket], [], [], 5) == ([self.socket], [], [])

    def close(self) -> None:
        self.far.close()
        self.socket.close()
        self.handler.step(self.handler._end_driver)


def test_an_interpreter_that_cannot_poll_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "poll")
    with pytest.raises(ClientUnusable, match="eventlet"):
        Handler()


def test_a_server_is_waited_for_longer_where_all_were_silent_but_not_where_they_closed() -> None:
    handler = Handler()
    handler.session_timeout = 600.0  # whatever this machine does meanwhile, it is not over
    first = handler.per_server_timeout()
    assert 0 < first < handler.session_timeout / 3
    for _ in range(3):
        pair = Pair(handler)
        pair.far.close()
        pair.hear()
        assert pair.socket.recv(1) == b""
        pair.close()
        assert handler.per_server_timeout() == first
    handler.session_timeout = 0.6
    first = handler.per_server_timeout()
    pair = Pair(handler)
    assert handler.select([pair.socket], [], [], 5) == ([], [], [])
    assert handler.per_server_timeout() == 2 * first
    pair.close()


def test_a_drop_that_is_interrupted_is_repeated_whole() -> None:
    """Else kazoo never connects anew, and requests are sent to nobody."""
    handler = Handler()
    moments = Moments()
    at, struck = 0, True
    while struck:
        at += 1
        pair = Pair(handler)
        pair.far.sendall(CONNECTED)
        pair.hear()
        handler.step(handler._serve, pair.socket)
        assert handler.session.connected
        handler._bell.clear()
        struck = moments.strike(handler.drop, at)
        begun = handler._torn or not struck
        handler.step(lambda: None)
        dropped = not handler.session.connected
        assert dropped or not begun, moments.where
        assert handler._bell.is_set() is dropped, moments.where
        pair.close()
    assert at > 10


Hosts = dict[str, list[str]]
WANTED = 36.0


def tries(monkeypatch: pytest.MonkeyPatch, handler: Handler, hosts: Hosts) -> list[float]:
    """Return how long each address of these names may take to accept a connection."""
    waits: list[float] = []

    def connect(_: Handler, **options: float) -> None:
        waits.append(options["timeout"])
        raise ConnectionRefusedError

    def look_up(host: str, port: int, *_: int) -> list[tuple[Any, ...]]:
        if not hosts[host]:
            raise socket.gaierror
        return [(None, None, None, "", (each, port)) for each in hosts[host]]

    monkeypatch.setattr(SequentialThreadingHandler, "create_connection", connect)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for host, addresses in hosts.items():
        for address in addresses:
            with pytest.raises(ConnectionRefusedError):
                handler.create_connection(address=(address, 1), hostname=host, timeout=WANTED)
    return waits


class TestTheTimeForAServer:
    """All together: a third of the session timeout, as long as not all of them were silent."""

    def test_is_shared_by_addresses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        handler = Handler()
        handler.serve_hosts([("a", 1), (" b", 1), ("c", 1)])
        assert tries(monkeypatch, handler, {"a": ["1"], "b": ["2"], "c": ["3"]}) == 3 * [3.0]
        handler.serve_hosts([("a", 1)])
        assert handler.servers == 1
        assert tries(monkeypatch, handler, {"a": ["1", "2", "3"]}) == 3 * [3.0]
        # Of a client that connect() has not made.
        assert tries(monkeypatch, Handler(), {"a": ["1", "2", "3"]}) == 3 * [3.0]

    def test_is_shared_by_names_that_have_no_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        handler = Handler()
        handler.serve_hosts([("a", 1), ("b", 1)])
        assert tries(monkeypatch, handler, {"a": ["1"], "b": []}) == [4.0]

    def test_is_that_of_the_present_addresses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        handler = Handler()
        handler.serve_hosts([("a", 1)])
        assert tries(monkeypatch, handler, {"a": ["1"]}) == [6.0]
        assert tries(monkeypatch, handler, {"a": ["2", "3"]}) == 2 * [4.0]  # no longer the first
        pair = Pair(handler)
        pair.far.sendall(CONNECTED)
        pair.hear()
        pair.close()
        handler.session_timeout = 18.0
        assert tries(monkeypatch, handler, {"a": ["2", "3", "4", "5", "6"]}) == 5 * [1.0]

    def test_is_so_if_a_name_cannot_be_looked_up_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handler = Handler()
        handler.serve_hosts([("a", 1)])
        tries(monkeypatch, handler, {"a": []})
        with pytest.raises(ConnectionRefusedError):
            handler.create_connection(address=("1", 1), hostname="a", timeout=WANTED)
        assert handler.servers == 1

    def test_is_not_shared_with_what_is_no_session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """``KazooClient.command()`` names a port as the host, and the whole session timeout."""
        handler = Handler()
        handler.serve_hosts([("a", 1)])
        pair = Pair(handler)
        assert tries(monkeypatch, handler, {"1": ["1"]}) == [WANTED]
        assert tries(monkeypatch, handler, {"1": ["1"]}) == [WANTED]
        assert handler.servers == 1
        pair.close()
        assert tries(monkeypatch, handler, {"a": ["1"]}) == [6.0]

    def test_is_longer_where_all_were_silent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        handler = Handler()
        handler.serve_hosts([("a", 1), ("b", 1)])
        waits = list[float]()

        def connect(_: Handler, **options: float) -> None:
            waits.append(options["timeout"])
            raise TimeoutError

        monkeypatch.setattr(SequentialThreadingHandler, "create_connection", connect)
        for _ in range(4):
            for host in ("a", "b"):
                with pytest.raises(TimeoutError):
                    handler.create_connection(address=("127.0.0.1", 1), hostname=host, timeout=36.0)
        assert waits == [4.0, 4.0, 8.0, 8.0, 12.0, 12.0, 12.0, 12.0]


def test_an_address_that_has_failed_is_passed_over_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler = Handler()
    handler.serve_hosts([("a", 1), ("b", 1), ("c", 1)])
    hosts = {"a": ["1"], "b": ["2"], "c": ["3"]}
    assert len(tries(monkeypatch, handler, {"a": ["1"]})) == 1
    assert len(tries(monkeypatch, handler, {"a": ["1"]})) == 0
    assert len(tries(monkeypatch, handler, {"b": ["2"], "c": ["3"]})) == 2
    assert len(tries(monkeypatch, handler, hosts)) == 3


@pytest.mark.parametrize("started", [0, 1, 2])
def test_a_start_that_is_interrupted_leaves_no_thread(
    started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kazoo ends the threads of a handler that has started whole, and of no other."""
    handler = Handler()
    spawn, spawned = handler.spawn, list[threading.Thread]()

    def interrupted(func: Any) -> threading.Thread:
        if len(spawned) < started:
            spawned.append(spawn(func))
        if len(spawned) == started:
            raise KeyboardInterrupt
        return spawned[-1]

    with monkeypatch.context() as patch:
        patch.setattr(handler, "spawn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            handler.start()
    for thread in spawned:
        thread.join(60.0)
        assert not thread.is_alive()
    called = threading.Event()
    handler.start()
    handler.completion_queue.put(called.set)
    assert called.wait(60.0)
    handler.stop()
