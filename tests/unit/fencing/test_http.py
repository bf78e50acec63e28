from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import Iterable, Iterator
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from tests.unit.fencing.strikes import strikes
from zklock.errors import NotOwner
from zklock.fencing import AsgiFencing, MemoryGuards, WsgiFencing
from zklock.fencing.http import KEY
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)

ENVIRON = {"REQUEST_METHOD": "PUT", "PATH_INFO": "/a", "HTTP_FENCING_TOKEN": str(A)}
SCOPE: Any = {
    "type": "http",
    "method": "PUT",
    "path": "/a",
    "headers": [(b"fencing-token", str(A).encode())],
}


class Wsgi:
    """An application behind the middleware, and how it is asked."""

    def __init__(self, guards: MemoryGuards, *, named: Any = None, **options: Any) -> None:
        named = named or resource
        self.seen: list[FencingToken | None] = []
        self.closed = 0
        self.status = 200
        middleware = WsgiFencing(self._app, named, guards, **options)
        self.app = validator(middleware)

    def _app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.seen.append(environ.get(KEY))
        start_response(f"{self.status} As told", [("Content-Type", "text/plain")])
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
        self.status = 200
        self.app = AsgiFencing(self._app, resource, guards, **options)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope.get(KEY))
        await send({"type": "http.response.start", "status": self.status, "headers": []})
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
        if start["status"] != self.status:
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
            f"a: token {A} is stale, {B} has been seen: this grant is over; stop its work and "
            "acquire the lock again\n",
        )
    assert ask.seen == [B] * 4
    assert guards["a"].highest() == B


@pytest.mark.parametrize(
    ("tokens", "path", "status", "said"),
    [
        ((), "/a", 428, "this request needs the header Fencing-Token: the token of your grant\n"),
        *(
            ((wrong,), "/a", 400, "Fencing-Token: not a fencing token")
            for wrong in ("34", "", " ", "x" * 27, str(A).replace("7", "G"))
        ),
        ((str(A), str(B)), "/a", 400, "Fencing-Token: not a fencing token"),
        ((str(A),), "/" + "x" * 256, 400, "the resource's name must be 1 to 255"),
    ],
)
def test_what_is_no_request_of_a_holder(
    kind: Any, tokens: tuple[str, ...], path: str, status: int, said: str
) -> None:
    ask = kind(MemoryGuards())
    found, message = ask("PUT", *(("Fencing-Token", token) for token in tokens), path=path)
    assert found == status
    assert message.startswith(said)
    assert ask.seen == []


def test_safe_methods_and_free_paths_pass(kind: Any) -> None:
    ask = kind(MemoryGuards())
    assert ask("GET")[0] == ask("HEAD")[0] == ask("OPTIONS")[0] == 200
    assert ask("PUT", path="/free")[0] == 200
    assert ask.seen == [None] * 4


@pytest.mark.parametrize("middleware", [WsgiFencing, AsgiFencing])
@pytest.mark.parametrize(
    ("wrong", "value"), [("app", None), ("resource", None), ("resource", 5), ("guards", {})]
)
def test_bad_arguments(middleware: Any, wrong: str, value: object) -> None:
    given = {"app": print, "resource": resource, "guards": MemoryGuards(), wrong: value}
    with pytest.raises(TypeError, match=f"{wrong} must be "):
        middleware(**given)


def test_the_header_can_be_named_and_options_are_checked(kind: Any) -> None:
    ask = kind(MemoryGuards(), header="X-Lock-Token")
    assert ask("PUT", ("Fencing-Token", str(A)))[0] == 428
    assert ask("PUT", ("X-Lock-Token", str(A)))[0] == 200
    with pytest.raises(ValueError, match="not the name of an HTTP header"):
        kind(MemoryGuards(), header="a b")
    for buffer in (-1, True):
        with pytest.raises((ValueError, TypeError), match="buffer must be"):
            kind(MemoryGuards(), buffer=buffer)


def asked_in_vain(name: str, token: FencingToken) -> None:
    if token == A:
        raise NotOwner(f"/locks/{name}: token {token} does not hold the lock", token=token)
    raise OSError(f"/locks/{name}: secret details")


def test_the_first_token_is_asked_about(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    guards = MemoryGuards(first=asked_in_vain)
    ask = kind(guards)
    assert ask("PUT", ("Fencing-Token", str(A))) == (
        412,
        f"/locks/a: token {A} does not hold the lock\n",
    )
    status, message = ask("PUT", ("Fencing-Token", str(B)))
    assert status == 503
    assert message.startswith("a: zklock could not check whether the token holds the lock")
    assert "secret details" not in message
    assert "secret details" in caplog.text
    assert ask.seen == []
    assert len(guards) == 0


def test_a_busy_resource_and_no_room(kind: Any) -> None:
    guards = MemoryGuards(capacity=1, timeout=0.01)
    ask = kind(guards)
    with guards["a"].hold(A):
        status, message = ask("PUT", ("Fencing-Token", str(A)))
    assert (status, "earlier changes" in message) == (503, True)
    assert ask("PUT", ("Fencing-Token", str(A)))[0] == 200
    status, message = ask("PUT", ("Fencing-Token", str(A)), path="/b")
    assert (status, "fill the guards' memory" in message) == (503, True)


@pytest.mark.hazard("H53")
@pytest.mark.parametrize("status", [401, 403, 404, 405, 410])
def test_requests_for_nothing_do_not_fill_the_memory(kind: Any, status: int) -> None:
    guards = MemoryGuards(capacity=2)
    ask = kind(guards)
    ask.status = status
    for number in range(5):
        assert ask("PUT", ("Fencing-Token", str(B)), path=f"/made-up-{number}")[0] == status
    assert len(guards) == 0
    ask.status = 200
    assert ask("PUT", ("Fencing-Token", str(A)))[0] == 200
    ask.status = status
    assert ask("PUT", ("Fencing-Token", str(B)))[0] == status
    assert guards["a"].highest() == B
    ask.status = 400
    assert ask("PUT", ("Fencing-Token", str(B)), path="/b")[0] == 400
    assert len(guards) == 2


@pytest.mark.hazard("H53")
def test_a_slow_reader_of_a_response_does_not_hold_the_resource() -> None:
    guards = MemoryGuards(timeout=5)

    def wsgi(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return (b"x" * 10 for _ in range(10))

    body: Any = WsgiFencing(wsgi, resource, guards, buffer=100)({**ENVIRON}, lambda *_: print)
    guards["a"].claim(A)
    assert b"".join(body) == b"x" * 100
    body.close()
    for buffer in (0, 99):
        body = WsgiFencing(wsgi, resource, guards, buffer=buffer)({**ENVIRON}, lambda *_: print)
        assert len(guards["a"]._line) == 1
        assert b"".join(body) == b"x" * 100
        body.close()
        guards["a"].claim(A)


@pytest.mark.hazard("H53")
@pytest.mark.parametrize("buffer", [100, 99, 0])
def test_a_slow_reader_of_an_asgi_response_does_not_hold_the_resource(buffer: int) -> None:
    guards = MemoryGuards(timeout=5)
    sent: list[bytes] = []
    log: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(10):
            await send({"type": "http.response.body", "body": b"x" * 10, "more_body": number < 9})
        log.append("worked on")

    async def main() -> None:
        slow = asyncio.Event()

        async def send(message: Any) -> None:
            await slow.wait()
            sent.append(message.get("body", b""))

        asking = asyncio.create_task(
            AsgiFencing(app, resource, guards, buffer=buffer)(SCOPE, None, send)  # type: ignore[arg-type]
        )
        while not guards["a"].highest():
            await asyncio.sleep(0)
        if buffer == 100:
            async with guards["a"].hold_async(A):
                assert log == ["worked on"]
                assert sent == []
        else:
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(guards["a"]._line) == 1
            assert log == []
        slow.set()
        await asking

    asyncio.run(main())
    assert b"".join(sent) == b"x" * 100
    guards["a"].claim(B)


@pytest.mark.hazard("H53")
@pytest.mark.parametrize("version", ["1.1", "2", "3"])
def test_a_slow_sender_of_a_request_does_not_hold_the_resource(version: str) -> None:
    guards = MemoryGuards(timeout=5)
    got: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            got.append(message["body"])
            more = message["more_body"]
        assert (await receive())["type"] == "http.disconnect"

    async def main() -> None:
        slow = asyncio.Event()
        parts = iter([b"1", b"2", b"3"])

        async def receive() -> Any:
            part = next(parts, None)
            if part is None:
                return {"type": "http.disconnect"}
            if part == b"2":
                await slow.wait()
            return {"type": "http.request", "body": part, "more_body": part != b"3"}

        chunked = [(b"transfer-encoding", b"chunked")] if version == "1.1" else []
        scope = {**SCOPE, "headers": [*SCOPE["headers"], *chunked], "http_version": version}
        asking = asyncio.create_task(
            AsgiFencing(app, resource, guards)(scope, receive, None)  # type: ignore[arg-type]
        )
        for _ in range(20):
            await asyncio.sleep(0)
        async with guards["a"].hold_async(A):
            assert got == []
        slow.set()
        await asking

    asyncio.run(main())
    assert got == [b"1", b"2", b"3"]


@pytest.mark.hazard("H53")
def test_a_slow_sender_of_a_wsgi_request_does_not_hold_the_resource() -> None:
    guards = MemoryGuards(timeout=5)
    got: list[bytes] = []

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            held.append(len(guards["a"]._line))
            return super().read(size)

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        got.append(environ["wsgi.input"].read(3))
        start_response("200 OK", [])
        return []

    held: list[int] = []
    for length, buffer, expected in (("3", 3, [0]), ("3", 2, [1]), ("", 3, [1])):
        held.clear()
        environ: Any = {**ENVIRON, "CONTENT_LENGTH": length, "wsgi.input": Slow(b"abc")}
        WsgiFencing(app, resource, guards, buffer=buffer)(environ, lambda *_: print)
        assert held == expected
    assert got == [b"abc"] * 3


@pytest.mark.hazard("H48")
def test_an_exception_at_any_bytecode_frees_the_resource() -> None:
    guards = MemoryGuards(timeout=5)
    numbers = itertools.count(1)

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return [b"done"]

    middleware = WsgiFencing(app, resource, guards)

    def request() -> None:
        token = FencingToken(7, next(numbers))
        environ: Any = {**ENVIRON, "HTTP_FENCING_TOKEN": str(token)}
        body: Any = middleware(environ, lambda *_: print)
        assert list(body) == [b"done"]
        body.close()

    steps = 0
    for step in strikes(request):
        steps = step
        guards["a"].claim(FencingToken(7, next(numbers)))
    assert steps > 300


def test_a_response_that_breaks_off_is_not_sent_in_part() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def breaks(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError

    async def forgets(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})

    with pytest.raises(KeyError):
        asyncio.run(
            AsgiFencing(breaks, resource, MemoryGuards())(SCOPE, None, send)  # type: ignore[arg-type]
        )
    assert sent == []
    asyncio.run(
        AsgiFencing(forgets, resource, MemoryGuards())(SCOPE, None, send)  # type: ignore[arg-type]
    )
    assert [message["status"] for message in sent] == [204]


@pytest.mark.hazard("H53")
def test_resources_are_named_by_what_is_routed() -> None:
    """docs/howto/fencing-service.md: paths that are one for the router are one for the guards."""
    routing = pytest.importorskip("werkzeug.routing")
    exceptions = pytest.importorskip("werkzeug.exceptions")
    routes = routing.Map([routing.Rule("/report/<int:number>", endpoint="report")])

    def resource(environ: Any) -> str | None:
        try:
            _, arguments = routes.bind_to_environ(environ).match()
        except exceptions.HTTPException:
            return None
        return f"report/{arguments['number']}"

    guards = MemoryGuards()
    ask = Wsgi(guards, named=resource)
    assert ask("PUT", ("Fencing-Token", str(B)), path="/report/7")[0] == 200
    assert ask("PUT", ("Fencing-Token", str(A)), path="/report/07")[0] == 412
    assert ask("PUT", ("Fencing-Token", str(B)), path="/made-up")[0] == 200
    assert len(guards) == 1
    assert ask.seen == [B, None]


def test_an_error_of_the_application_passes_and_frees_the_resource() -> None:
    guards = MemoryGuards(timeout=1)

    def wsgi(environ: Any, start_response: Any) -> Iterable[bytes]:
        raise TimeoutError("the application's own")

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        raise TimeoutError("the application's own")

    with pytest.raises(TimeoutError, match="the application's own"):
        WsgiFencing(wsgi, resource, guards)({**ENVIRON}, None)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError, match="the application's own"):
        asyncio.run(AsgiFencing(asgi, resource, guards)(SCOPE, None, None))  # type: ignore[arg-type]
    guards["a"].claim(B)


def test_other_protocols_pass() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    middleware = AsgiFencing(app, resource, MemoryGuards())
    for kind in ("lifespan", "websocket"):
        asyncio.run(middleware({"type": kind, "path": "/a"}, None, None))  # type: ignore[arg-type]
    assert seen == ["lifespan", "websocket"]


def test_the_application_closes_its_body_once() -> None:
    ask = Wsgi(MemoryGuards())
    ask("PUT", ("Fencing-Token", str(A)))
    assert ask.closed == 1
