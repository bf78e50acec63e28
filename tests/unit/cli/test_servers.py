"""What is believed of what answers where a server's admin server might be."""

from __future__ import annotations

import json
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.unit.cli.views import World
from zklock.cli import top as clients
from zklock.cli.view import servers
from zklock.cli.view.servers import Asked

TLS = ssl.create_default_context()
CONFIGURATION = {
    "client_port": 2181,
    "tick_time": 2000,
    "min_session_timeout": 4000,
    "max_session_timeout": 40000,
    "command": "configuration",
    "error": None,
}
Answer = Callable[[str], tuple[bytes, timedelta | None]]


class Http:
    """A program that answers over HTTP; ``answer`` makes the body from the command's name."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: Answer = lambda name: (json.dumps({**CONFIGURATION, "command": name}).encode(),
                                            timedelta())  # fmt: skip
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                body, ahead = outer.answer(self.path.rpartition("/")[2])
                self.send_response_only(200)
                if ahead is not None:
                    date = format_datetime(datetime.now(UTC) + ahead, usegmt=True)
                    self.send_header("Date", date)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Be silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def http() -> Iterator[Http]:
    server = Http()
    yield server
    server.close()


def test_an_admin_server_is_believed(http: Http) -> None:
    admin = Asked("127.0.0.1", 2181, http.port)
    assert admin.configuration["tick_time"] == 2000
    assert admin.ask("voting_view")["command"] == "voting_view"
    assert http.asked == ["/commands/configuration", "/commands/voting_view"]
    assert admin.ahead is not None
    least, most = admin.ahead
    assert least <= 0 <= most


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_the_servers_clock(seconds: int, http: Http) -> None:
    body = json.dumps(CONFIGURATION).encode()
    http.answer = lambda _: (body, timedelta(seconds=seconds))
    admin = Asked("127.0.0.1", 2181, http.port)
    assert admin.ahead is not None
    least, most = admin.ahead
    assert least <= seconds <= most
    assert most - least < 60, "a busy machine takes its time, but not as long as this"


NO_QUORUM = {"command": "configuration", "error": "not currently serving requests"}


@pytest.mark.parametrize(
    ("body", "dated"),
    [
        *[
            (body, True)
            for body in (
                b"",
                b"<html>Welcome to nginx!</html>",
                b"\xff",
                b"null",
                b"[]",
                b'{"command": "monitor"}',
                b"[" * 100_000,
                json.dumps({**CONFIGURATION, "client_port": [2181]}).encode(),
                json.dumps({**CONFIGURATION, "client_port": 2182}).encode(),
            )
        ],
        (json.dumps(CONFIGURATION).encode(), False),
    ],
    ids=lambda it: it[:12].decode(errors="replace") if isinstance(it, bytes) else str(it),
)
def test_other_programs_and_other_servers_are_not_believed(
    body: bytes, dated: bool, http: Http
) -> None:
    http.answer = lambda _: (body, timedelta() if dated else None)
    admin = Asked("127.0.0.1", 2181, http.port)
    assert (admin.configuration, admin.ahead) == ({}, None)
    http.answer = lambda name: (json.dumps({"command": name}).encode(), timedelta())
    assert admin.ask("voting_view") == {}, "it is not asked again"
    assert len(http.asked) == 1


def test_what_is_asked_of_whom(http: Http) -> None:
    """Behind TLS the port says nothing; without a quorum nothing is known."""
    assert Asked("127.0.0.1", 2181, http.port, TLS).configuration["tick_time"] == 2000
    http.answer = lambda _: (json.dumps(NO_QUORUM).encode(), timedelta())
    assert Asked("127.0.0.1", 2181, http.port, TLS).configuration == {}
    http.asked.clear()
    assert Asked("127.0.0.1", 2181).configuration == {}
    assert http.asked == []


CONS = """\
 /127.0.0.1:50000[0](queued=0,recved=1,sent=0)
 /10.0.0.7:51234[1](queued=0,recved=3,sent=3,sid=0x100000,lop=PING,est=17,to=10000,lzxid=0x5)
 zk-client.example/10.0.0.8:4711[1](queued=2,recved=3,sent=3,sid=0x80000000000001,lop=NA,est=17)
 /[fe80:0:0:0:0:0:0:1%eth0]:99[1](queued=0,recved=3,sent=3,sid=0x8f00000000000002,to=1)

"""


def test_the_connections_of_a_server(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [CONS]
    monkeypatch.setattr(servers, "four_letter", lambda *_, **__: said[0])

    def ask(port: int) -> dict[int, str] | None:
        return servers.connections(Asked("127.0.0.1", 2181, port))

    assert ask(0) == {
        0x100000: "10.0.0.7:51234",
        0x80000000000001: "10.0.0.8:4711",
        0x8F00000000000002 - 2**64: "[fe80:0:0:0:0:0:0:1%eth0]:99",
    }
    said[0] = "cons is not executed because it is not in the whitelist.\n"
    assert ask(0) is None
    assert ask(http.port) is None
    more = {
        "connections": [{"remote_socket_address": "/10.0.0.7:51234", "session_id": 5}],
        "secure_connections": [{"remote_socket_address": "10.0.0.8:4711", "session_id": -6}],
    }
    http.answer = lambda name: (
        json.dumps({**CONFIGURATION, **more, "command": name}).encode(),
        timedelta(),
    )
    assert ask(http.port) == {5: "10.0.0.7:51234", -6: "10.0.0.8:4711"}


class Words:
    """Answers any four-letter word with these parts, sent one after the other."""

    def __init__(self, *parts: bytes) -> None:
        outer_parts = parts

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.recv(4)
                for part in outer_parts:
                    self.request.sendall(part)

        self.server = socketserver.TCPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self._thread = threading.Thread(target=self.server.handle_request)
        self._thread.start()

    def sessions(self) -> set[int] | None:
        try:
            return servers.sessions(Asked("127.0.0.1", self.port))
        finally:
            self._thread.join()
            self.server.server_close()


def test_all_sessions_are_read_however_many_they_are() -> None:
    many = range(1, 5000)
    head = b"SessionTracker dump:\nSession Sets (1)/(4999):\n4999 expire at Sun Nov 22:\n"
    lines = [b"\t0x%x\n" % number for number in many]
    assert Words(head, *lines).sessions() == set(many)


def test_what_a_server_does_not_tell_of_its_sessions() -> None:
    assert Words(b"dump is not executed because it is not in the whitelist.\n").sessions() is None
    for silent in (b"", b"This ZooKeeper instance is not currently serving requests\n"):
        with pytest.raises(OSError, match="does not report its sessions now"):
            Words(silent).sessions()


class Told:
    """Servers that count how often they are asked, at times that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.told: dict[str, dict[int, str] | None] = {"a": {1: "x:1"}, "b": {2: "y:2"}}
        self.names: list[str] = []
        monkeypatch.setattr(clients, "clock", lambda: self.now)
        monkeypatch.setattr(servers, "connections", self._connections)

    def _connections(self, at: Asked) -> dict[int, str] | None:
        self.names.append(at.host)
        return self.told[at.host]


def test_servers_are_not_asked_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Told(monkeypatch)
    them = clients.Clients([("a", 1), ("b", 1)], 0)
    assert them.ask({1, 2})
    assert them.addresses == {1: "x:1", 2: "y:2"}
    asked.now += 20.0
    assert not them.ask({1, 2})
    assert asked.names == ["a", "b"], "all sessions are known"
    asked.told["b"] = {2: "y:2", 3: "z:3"}
    assert them.ask({1, 3}), "a new session"
    assert them.addresses == {1: "x:1", 3: "z:3"}
    asked.now += 4.0
    assert not them.ask({1, 4}), "but not so soon"
    asked.now += 1.0
    assert not them.ask({1, 3, 4}), "4 is on a server that --hosts does not name"
    asked.now += 29.0
    assert not them.ask({1, 3, 4}), "it has been looked for"
    assert len(asked.names) == 6
    asked.now += 1.0
    asked.told["b"] = {3: "z:33"}
    assert them.ask({1, 3, 4}), "3 is connected anew"
    assert them.addresses == {1: "x:1", 3: "z:33"}


def test_a_server_that_does_not_tell_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Told(monkeypatch)
    asked.told["a"] = None
    them = clients.Clients([("a", 1), ("b", 1)], 0)
    assert them.ask({1, 2})
    assert them.addresses == {2: "y:2"}
    asked.now += 30.0
    assert not them.ask({1, 2})
    assert asked.names == ["a", "b", "b"]
    asked.now += 30.0
    asked.told["a"] = {1: "x:1"}
    assert them.ask({1, 2})
    assert asked.names == ["a", "b", "b", "a", "b"]


def test_a_look_is_shown_before_the_servers_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Told(monkeypatch)
    world = World()
    world.queue("/a", 1, "host-7")
    one = world.look()
    shown = clients.addressed(iter([one, one]), clients.Clients([("a", 1)], 0))
    assert next(shown).addresses == {}
    assert asked.names == []
    second = next(shown)
    assert second.addresses == {1: "x:1"}
    assert next(shown) is second, "nothing has changed: the screen is not drawn anew"


def test_what_srvr_does_not_tell_the_admin_server_may(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        servers,
        "four_letter",
        lambda *_, **__: "srvr is not executed because it is not in the whitelist.\n",
    )
    stats = {"server_state": "follower", "outstanding_requests": 7}
    view: dict[str, object] = {"1": {}, "2": {}, "3": {}}

    def answer(name: str) -> tuple[bytes, timedelta]:
        more = {"server_stats": stats, "version": "3.9.3-c26", "current_config": view}
        return json.dumps({**CONFIGURATION, **more, "command": name}).encode(), timedelta()

    http.answer = answer
    admin = Asked("127.0.0.1", 2181, http.port)
    told = servers.server(admin)
    assert (told.mode, told.version, told.outstanding) == ("follower", "3.9.3", 7)
    limits = servers.limits(admin)
    assert limits is not None
    assert (limits.tick, limits.shortest, limits.longest) == (2.0, 4.0, 40.0)
    assert (limits.sync_ticks, limits.voters) == (None, 3)
    assert limits.source == "from its admin server"
    nothing = servers.server(Asked("127.0.0.1", 2181))
    assert (nothing.mode, nothing.trouble) == (None, None)
