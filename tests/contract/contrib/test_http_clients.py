"""requests and httpx send the token, and hear the middleware's refusal."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import requests

import zklock
from tests.contract.fencing.guards_under_test import served
from tests.contract.lasting import LASTING
from tests.contract.support import SOON, granted
from zklock import aio
from zklock.contrib.httpx import AsyncFencedTransport, FencedTransport
from zklock.contrib.requests import FencedAdapter
from zklock.errors import LockLost, NotHeld, OutcomeUnknown, StaleToken
from zklock.fencing import AsgiFencing, MemoryGuards, WsgiFencing

pytestmark = LASTING


class Service:
    """A fenced service on loopback; it keeps what it has been asked."""

    def __init__(self, elsewhere: str = "") -> None:
        self.elsewhere = elsewhere
        self.asked: list[tuple[str, str, str | None]] = []
        self.guards = MemoryGuards(capacity=10)
        self.url = ""

    def answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Note the request."""
        self.asked.append(
            (environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("HTTP_FENCING_TOKEN"))
        )
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status, headers = {
            "/away": ("307 Temporary Redirect", [("Location", f"{self.elsewhere}/there")]),
            "/changed": ("412 Precondition Failed", []),
            "/cut": ("412 Precondition Failed", []),
        }.get(environ["PATH_INFO"], ("200 OK", []))
        missing = 9 if environ["PATH_INFO"] == "/cut" else 0
        start_response(status, [*headers, ("Content-Length", str(len(body) + missing))])
        return [body]


@pytest.fixture
def elsewhere() -> Iterator[Service]:
    """A service that checks no tokens."""
    made = Service()
    with served(made.answer) as made.url:
        yield made


@pytest.fixture
def service(elsewhere: Service) -> Iterator[Service]:
    made = Service(elsewhere.url)
    with served(WsgiFencing(made.answer, lambda environ: "report", made.guards)) as made.url:
        yield made


Ask = Callable[..., tuple[int, bytes]]


@contextlib.contextmanager
def with_requests(grant: zklock.Grant, url: str) -> Iterator[Ask]:
    with requests.Session() as session:
        session.mount(url, FencedAdapter(grant))

        def ask(method: str, path: str, body: bytes = b"", **options: Any) -> tuple[int, bytes]:
            with session.request(
                method, url + path, data=body, timeout=SOON, **options
            ) as response:
                return response.status_code, response.content

        yield ask


@contextlib.contextmanager
def with_httpx(grant: zklock.Grant, url: str) -> Iterator[Ask]:
    with httpx.Client(
        mounts={url: FencedTransport(grant)}, timeout=SOON, follow_redirects=True
    ) as client:

        def ask(method: str, path: str, body: bytes = b"", **options: Any) -> tuple[int, bytes]:
            response = client.request(method, url + path, content=body, **options)
            return response.status_code, response.content

        yield ask


BOTH = pytest.mark.parametrize("library", [with_requests, with_httpx])


@BOTH
def test_each_request_of_a_holder_bears_its_token(
    library: Any, service: Service, elsewhere: Service, make_lock: Callable[..., zklock.Lock]
) -> None:
    with make_lock() as grant, library(grant, service.url) as ask:
        token = str(grant.token)
        assert ask("PUT", "/report", b"text") == (200, b"text")
        assert ask("GET", "/report")[0] == 200
        assert ask("PUT", "/away")[0] == 200
        assert service.asked == [
            ("PUT", "/report", token),
            ("GET", "/report", token),
            ("PUT", "/away", token),
        ]
        assert elsewhere.asked == [("PUT", "/there", None)], "no token for another host"
        # The application's own 412 is not a refusal of the token.
        assert ask("PUT", "/changed", headers={"If-Match": '"1"'})[0] == 412
    with pytest.raises(NotHeld), library(grant, service.url) as ask:
        ask("PUT", "/report")
    assert len(service.asked) == 4


@BOTH
def test_a_refused_token_is_told(
    library: Any, service: Service, make_lock: Callable[..., zklock.Lock]
) -> None:
    with make_lock() as grant:
        later = zklock.FencingToken(grant.token.epoch, grant.token.sequence + 1)
        service.guards["report"].claim(later)
        url = service.url.replace("//", "//user:secret@")
        with library(grant, url) as ask, pytest.raises(StaleToken) as told:
            ask("PUT", "/report?key=1", b"late")
        assert told.value.token == grant.token
        assert told.value.path == grant.lock_path
        assert told.value.resource == f"{service.url.removeprefix('http://')}/report"
        assert "stop its work" in str(told.value)
        assert str(later) in str(told.value), "what the service says"
        assert "secret" not in str(told.value)
    assert service.asked == []


@BOTH
def test_a_refusal_is_told_though_the_rest_of_the_answer_does_not_come(
    library: Any, service: Service, make_lock: Callable[..., zklock.Lock]
) -> None:
    with make_lock() as grant, library(grant, service.url) as ask:
        with pytest.raises(StaleToken, match="/cut refused token"):
            ask("PUT", "/cut", b"text")
        assert ask("PUT", "/report", b"text") == (200, b"text")


def test_a_refusal_of_what_was_sent_twice_does_not_say_that_nothing_has_changed(
    service: Service, make_lock: Callable[..., zklock.Lock]
) -> None:
    """The first sending has changed something; its answer is lost, and a later holder comes."""
    with make_lock() as grant, socket.create_server(("127.0.0.1", 0)) as listener:
        later = zklock.FencingToken(grant.token.epoch, grant.token.sequence + 1)

        def serve() -> None:
            for lost in (True, False):
                near, _ = listener.accept()
                with (
                    near,
                    socket.create_connection(("127.0.0.1", urlsplit(service.url).port)) as far,
                ):
                    far.sendall(near.recv(65536))
                    answer = b"".join(iter(lambda: far.recv(65536), b""))
                    if lost:
                        service.guards["report"].claim(later)
                    else:
                        near.sendall(answer)

        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=serve)
        thread.start()
        with requests.Session() as session:
            session.mount(url, FencedAdapter(grant, max_retries=1))
            with pytest.raises(OutcomeUnknown, match="first one may have taken effect") as told:
                session.put(f"{url}/report", timeout=SOON)
        thread.join()
        assert told.value.token == grant.token
        assert service.asked == [("PUT", "/report", str(grant.token))]


@BOTH
def test_nothing_is_sent_without_the_lease(
    library: Any, service: Service, make_lock: Callable[..., zklock.Lock]
) -> None:
    lock = make_lock()
    grant = granted(lock)
    with library(grant, service.url) as ask:
        lock.break_lock()
        assert grant.lost.wait(SOON)
        with pytest.raises(LockLost):
            ask("PUT", "/report")
    assert service.asked == []
    with pytest.raises(LockLost):
        lock.release()


async def test_the_same_for_asyncio(
    zklock_hosts: str, zklock_path: str, session_seconds: float
) -> None:
    asked = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["zklock.token"])
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    class Broken(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"refu"
            raise httpx.ReadError("the connection is cut")

    async def cut(request: httpx.Request) -> httpx.Response:
        return httpx.Response(412, stream=Broken())

    guards = MemoryGuards(capacity=10)
    service = AsgiFencing(answer, lambda scope: "report", guards)
    async with (
        aio.connect(zklock_hosts, timeout=session_seconds) as client,
        aio.Lock(client, zklock_path) as grant,
    ):
        transport = AsyncFencedTransport(grant, httpx.ASGITransport(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://store") as http:
            assert (await http.put("/report", content=b"text")).text == "done"
            assert asked == [grant.token]
            later = zklock.FencingToken(grant.token.epoch, grant.token.sequence + 1)
            await asyncio.to_thread(guards["report"].claim, later)
            with pytest.raises(StaleToken, match="store/report refused"):
                await http.put("/report", content=b"late")
        transport = AsyncFencedTransport(grant, httpx.MockTransport(cut))
        async with httpx.AsyncClient(transport=transport, base_url="http://store") as http:
            with pytest.raises(StaleToken, match="store/report refused"):
                await http.put("/report", content=b"late")
    assert asked == [grant.token]
