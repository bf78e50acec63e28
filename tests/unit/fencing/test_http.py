from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from zklock.errors import NotOwner
from zklock.fencing import AsgiFencing, MemoryGuards, WsgiFencing
from zklock.fencing.http import KEY
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)


class Wsgi:
    """An application behind the middleware, and how it is asked."""

    def __init__(self, guards: MemoryGuards, **options: Any) -> None:
        self.seen: list[FencingToken | None] = []
        self.closed = 0
        middleware = WsgiFencing(self._app, resource, guards, **options)
        self.app = validator(middleware)

    def _app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.seen.append(environ.get(KEY))
        start_response("200 OK", [("Content-Type", "text/plain")])
        return self._body()

    def _body(self) -> Iterator[bytes]:
        try:
            yield b"done"
        finally:
            self.closed += 1

    def __call__(self, method: str, *headers: tuple[str, str], path: str = "/a") -> tuple[int, str]:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "QUERY_STRING": "",
            "wsgi.input": io.BytesIO(),
        }
        setup_testing_defaults(environ)
        environ["PATH_INFO"] = path
        for name, value in headers:
            key = f"HTTP_{name.upper().replace('-', '_')}"
            environ[key] = f"{environ[key]}, {value}" if key in environ else value
        answers: list[int] = []

        def start_response(status: str, fields: Any, info: Any = None) -> Any:
            answers.append(int(status[:3]))

        body: Any = self.app(environ, start_response)
        try:
            text = b"".join(body).decode()
        finally:
            body.close()
        return answers[0], text


class Asgi:
    def __init__(self, guards: MemoryGuards, **options: Any) -> None:
        self.seen: list[FencingToken | None] = []
        self.app = AsgiFencing(self._app, resource, guards, **options)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope.get(KEY))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    def __call__(self, method: str, *headers: tuple[str, str], path: str = "/a") -> tuple[int, str]:
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        }
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            raise AssertionError

        asyncio.run(self.app(scope, receive, send))
        start, body = sent
        fields = dict(start["headers"])
        if start["status"] != 200:
            assert fields[b"content-length"] == str(len(body["body"])).encode()
            assert fields[b"cache-control"] == b"no-store"
        return start["status"], body["body"].decode()


def resource(request: Any) -> str | None:
    path: str = request.get("PATH_INFO") or request["path"]
    return None if path == "/free" else path.removeprefix("/")


@pytest.fixture(params=[Wsgi, Asgi])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_tokens_are_checked(kind: Any) -> None:
    guards = MemoryGuards()
    ask = kind(guards)
    for method in ("PUT", "POST", "PATCH", "DELETE"):
        assert ask(method, ("Fencing-Token", str(B))) == (200, "done")
        assert ask(method, ("Fencing-Token", str(A))) == (
            412,
            f"a: token {A} is stale, {B} has been seen: this grant is over, stop its work and "
            "acquire the lock again\n",
        )
    assert ask.seen == [B] * 4
    assert guards["a"].highest() == B


def test_a_missing_token(kind: Any) -> None:
    ask = kind(MemoryGuards())
    assert ask("PUT") == (
        428,
        "this request needs the header Fencing-Token: the token of your grant\n",
    )
    assert ask.seen == []


@pytest.mark.parametrize("value", ["34", "", " ", "x" * 27, str(A).replace("7", "G")])
def test_a_malformed_token(kind: Any, value: str) -> None:
    ask = kind(MemoryGuards())
    status, message = ask("PUT", ("Fencing-Token", value))
    assert status == 400
    assert message.startswith("Fencing-Token: not a fencing token")
    assert ask.seen == []


def test_two_tokens(kind: Any) -> None:
    ask = kind(MemoryGuards())
    status, _ = ask("PUT", ("Fencing-Token", str(A)), ("Fencing-Token", str(B)))
    assert status == 400


def test_safe_methods_and_free_paths_pass(kind: Any) -> None:
    ask = kind(MemoryGuards())
    assert ask("GET")[0] == ask("HEAD")[0] == ask("OPTIONS")[0] == 200
    assert ask("PUT", path="/free")[0] == 200
    assert ask.seen == [None] * 4


def test_the_header_can_be_named(kind: Any) -> None:
    ask = kind(MemoryGuards(), header="X-Lock-Token")
    assert ask("PUT", ("Fencing-Token", str(A)))[0] == 428
    assert ask("PUT", ("X-Lock-Token", str(A)))[0] == 200
    with pytest.raises(ValueError, match="not the name of an HTTP header"):
        kind(MemoryGuards(), header="a b")


def test_the_first_token_is_asked_about(kind: Any) -> None:
    def first(name: str, token: FencingToken) -> None:
        raise NotOwner(f"/locks/{name}: token {token} does not hold the lock", token=token)

    ask = kind(MemoryGuards(first=first))
    assert ask("PUT", ("Fencing-Token", str(A))) == (
        412,
        f"/locks/a: token {A} does not hold the lock\n",
    )


def test_no_room(kind: Any) -> None:
    guards = MemoryGuards(capacity=1)
    guards["b"].claim(A)
    ask = kind(guards)
    status, message = ask("PUT", ("Fencing-Token", str(A)))
    assert status == 503
    assert "fill the guards' memory" in message


def test_an_unusable_resource(kind: Any) -> None:
    assert kind(MemoryGuards())("PUT", ("Fencing-Token", str(A)), path="/" + "x" * 256)[0] == 400


def test_a_busy_resource(kind: Any) -> None:
    guards = MemoryGuards(timeout=0.01)
    ask = kind(guards)
    with guards["a"].hold(A):
        status, message = ask("PUT", ("Fencing-Token", str(A)))
    assert (status, "earlier changes" in message) == (503, True)
    assert ask("PUT", ("Fencing-Token", str(A)))[0] == 200


def test_an_error_of_the_application_passes_and_frees_the_resource() -> None:
    guards = MemoryGuards(timeout=1)

    def wsgi(environ: Any, start_response: Any) -> Iterable[bytes]:
        raise TimeoutError("the application's own")

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        raise TimeoutError("the application's own")

    environ = {"REQUEST_METHOD": "PUT", "PATH_INFO": "/a", "HTTP_FENCING_TOKEN": str(A)}
    with pytest.raises(TimeoutError, match="the application's own"):
        WsgiFencing(wsgi, resource, guards)(environ, None)  # type: ignore[arg-type]
    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/a",
        "headers": [(b"fencing-token", str(A).encode())],
    }
    with pytest.raises(TimeoutError, match="the application's own"):
        asyncio.run(AsgiFencing(asgi, resource, guards)(scope, None, None))  # type: ignore[arg-type]
    guards["a"].claim(B)


def test_other_protocols_pass() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    middleware = AsgiFencing(app, resource, MemoryGuards())
    for kind in ("lifespan", "websocket"):
        asyncio.run(middleware({"type": kind, "path": "/a"}, None, None))  # type: ignore[arg-type]
    assert seen == ["lifespan", "websocket"]


def test_the_resource_is_held_until_the_response_is_closed() -> None:
    guards = MemoryGuards()
    inside, go_on = threading.Event(), threading.Event()

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])

        def body() -> Iterator[bytes]:
            inside.set()
            assert go_on.wait(10)
            assert guards["a"].highest() == A
            yield b""

        return body()

    def request() -> None:
        environ = {"REQUEST_METHOD": "PUT", "PATH_INFO": "/a", "HTTP_FENCING_TOKEN": str(A)}
        body: Any = WsgiFencing(app, resource, guards)(environ, lambda *_: print)
        list(body)
        body.close()

    with ThreadPoolExecutor() as pool:
        requesting = pool.submit(request)
        assert inside.wait(10)
        claiming = pool.submit(guards["a"].claim, B)
        go_on.set()
        requesting.result(10)
        claiming.result(10)
    assert guards["a"].highest() == B


def test_the_application_closes_its_body_once() -> None:
    ask = Wsgi(MemoryGuards())
    ask("PUT", ("Fencing-Token", str(A)))
    assert ask.closed == 1
