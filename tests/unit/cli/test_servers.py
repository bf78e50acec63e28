"""What is believed of what answers where a server's admin server might be."""

from __future__ import annotations

import itertools
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from zklock.cli import top
from zklock.cli.view import servers
from zklock.cli.view.checkup import Limits, Server
from zklock.cli.view.model import Look
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
Answer = Callable[[str], bytes]


class Http:
    """A program that answers over HTTP; ``answer`` makes the body from the command's name."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: Answer = lambda name: json.dumps({**CONFIGURATION, "command": name}).encode()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                body = outer.answer(self.path.rpartition("/")[2])
                self.send_response_only(200)
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


NO_QUORUM = {"command": "configuration", "error": "not currently serving requests"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Welcome to nginx!</html>",
        b"\xff",
        b"null",
        b"[]",
        b'{"command": "monitor"}',
        b"[" * 100_000,
        json.dumps({**CONFIGURATION, "client_port": [2181]}).encode(),
        json.dumps({**CONFIGURATION, "client_port": 2182}).encode(),
    ],
    ids=lambda it: it[:12].decode(errors="replace"),
)
def test_other_programs_and_other_servers_are_not_believed(body: bytes, http: Http) -> None:
    http.answer = lambda _: body
    admin = Asked("127.0.0.1", 2181, http.port)
    assert admin.configuration == {}
    http.answer = lambda name: json.dumps({"command": name}).encode()
    assert admin.ask("voting_view") == {}, "it is not asked again"
    assert len(http.asked) == 1


def test_what_is_asked_of_whom(http: Http) -> None:
    """Behind TLS the port says nothing; without a quorum nothing is known."""
    assert Asked("127.0.0.1", 2181, http.port, TLS).configuration["tick_time"] == 2000
    http.answer = lambda _: json.dumps(NO_QUORUM).encode()
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

    def ask(port: int) -> dict[int, str]:
        return servers.connections(Asked("127.0.0.1", 2181, port))

    assert ask(0) == {
        0x100000: "10.0.0.7:51234",
        0x80000000000001: "10.0.0.8:4711",
        0x8F00000000000002 - 2**64: "[fe80:0:0:0:0:0:0:1%eth0]:99",
    }
    said[0] = "cons is not executed because it is not in the whitelist.\n"
    assert ask(0) == ask(http.port) == {}
    more = {
        "connections": [{"remote_socket_address": "/10.0.0.7:51234", "session_id": 5}],
        "secure_connections": [{"remote_socket_address": "10.0.0.8:4711", "session_id": -6}],
    }
    http.answer = lambda name: json.dumps({**CONFIGURATION, **more, "command": name}).encode()
    assert ask(http.port) == {5: "10.0.0.7:51234", -6: "10.0.0.8:4711"}


def test_addresses_come_behind_the_first_look_and_are_asked_for_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, asked = [100.0], itertools.count()
    monkeypatch.setattr(top, "clock", lambda: now[0])
    shown = top.addressed(itertools.repeat(Look()), lambda: {1: str(next(asked))})
    assert next(shown).addresses == {}
    assert [next(shown).addresses for _ in range(2)] == [{1: "0"}] * 2
    now[0] += 30.0
    assert next(shown).addresses == {1: "1"}


def test_what_conf_does_not_tell_the_admin_server_may(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = "conf is not executed because it is not in the whitelist.\n"
    monkeypatch.setattr(servers, "four_letter", lambda *_, **__: refused)
    view: dict[str, object] = {"1": {}, "2": {}, "3": {}}
    http.answer = lambda name: json.dumps(
        {**CONFIGURATION, "current_config": view, "command": name}
    ).encode()
    limits = servers.limits(Asked("127.0.0.1", 2181, http.port))
    assert limits == Limits("from its admin server", 2.0, 4.0, 40.0, 3)
    mute = Asked("127.0.0.1", 2181)
    assert servers.limits(mute) is None
    assert servers.server(mute) == Server("127.0.0.1:2181")


def test_a_configuration_names_the_voters(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [
        "tickTime=2000", "minSessionTimeout=4000", "maxSessionTimeout=40000", "membership: ",
        "server.1=a:2888:3888:participant;0.0.0.0:2181", "server.2=b:2888:3888:observer;2181",
    ]  # fmt: skip
    monkeypatch.setattr(servers, "four_letter", lambda *_, **__: "\n".join(told))
    limits = servers.limits(Asked("a", 2181))
    assert limits == Limits("from its configuration", 2.0, 4.0, 40.0, 1)
