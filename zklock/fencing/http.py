"""The token in an HTTP header, checked by WSGI and ASGI middleware.

The middleware refuses a request before the application sees it. Requests for the same resource
wait for one another: the application works on one at a time. That is atomic only for changes that
the application makes in its own process while it handles the request. If it changes something
elsewhere (a database, another service, a job for later), that place needs a guard: hand the token
on.

Each worker process of a service has its own ``MemoryGuards``. One worker may therefore accept a
stale token that another worker would refuse. Run one worker, route each resource to one worker, or
guard the store.

Put the middleware behind the authentication: a client that may send a token can shut out others
with a high one. Name a resource by what the application's router has matched, not by the text of
the path: a router may treat ``/report/07`` and ``/report/7`` as one. Return ``None`` for a path
that is not routed; the application then answers 404.

A slow client does not hold the resource. The body of the request is read before the turn begins,
and the response is sent after the turn ends, up to ``buffer`` bytes each. The part beyond
``buffer`` is received and sent while the resource is held.

==== ==========================================================================================
412  the token is stale, or ``first`` of the guards says that another one holds the lock
428  the header is missing
400  the header is no token, or is there twice; the name of the resource is unusable
503  earlier requests for the resource did not end in time, the guards have no room, or ``first``
     failed: its error is logged
==== ==========================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import io
import itertools
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

from zklock._core.callbacks import check_callback
from zklock._ground.numbers import check_int
from zklock._ground.records import log_fields
from zklock.errors import GuardUnusable, NotOwner, StaleToken
from zklock.fencing.memory import AsyncHold, Hold, MemoryGuard, MemoryGuards
from zklock.token import FencingToken

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    Resource: TypeAlias = Callable[[MutableMapping[str, Any]], str | None]
    Scope: TypeAlias = MutableMapping[str, Any]
    Message: TypeAlias = MutableMapping[str, Any]
    Receive: TypeAlias = Callable[[], Awaitable[Message]]
    Send: TypeAlias = Callable[[Message], Awaitable[None]]
    AsgiApplication: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADER = "Fencing-Token"
KEY = "zklock.token"

# RFC 9110 section 9.2.1: methods that change nothing.
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
# With these answers an application has changed nothing: the resource is not there, or not for this
# client. The first token of such a request must not fill the memory.
_NOTHING_DONE = frozenset({401, 403, 404, 405, 410})

_BUFFER = 2**20
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)


_log = logging.getLogger(__name__)


class _Refused(Exception):
    def __init__(self, status: http.HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = f"{message}\n".encode()
        self.headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(self.body))),
            ("Cache-Control", "no-store"),
        ]


class _Middleware:
    def __init__(
        self, app: object, resource: Resource, guards: MemoryGuards, header: str, buffer: int
    ) -> None:
        if not callable(app):
            raise TypeError(f"app must be callable, not {type(app).__name__}")
        check_callback(False, "resource", resource)
        if not isinstance(guards, MemoryGuards):
            raise TypeError(f"guards must be MemoryGuards, not {type(guards).__name__}")
        check_int("buffer", buffer, 0)
        if not _FIELD_NAME.fullmatch(header):
            raise ValueError(f"not the name of an HTTP header: {header!r}")
        self._resource = resource
        self._guards = guards
        self._header = header
        self._buffer = buffer

    def _token(self, value: str | None) -> FencingToken:
        if value is None:
            raise _Refused(
                http.HTTPStatus.PRECONDITION_REQUIRED,
                f"this request needs the header {self._header}: the token of your grant",
            )
        try:
            return FencingToken.parse(value)
        except ValueError as error:
            raise _Refused(http.HTTPStatus.BAD_REQUEST, f"{self._header}: {error}") from None

    def _guard(self, resource: str) -> MemoryGuard:
        try:
            return self._guards[resource]
        except ValueError as error:
            raise _Refused(http.HTTPStatus.BAD_REQUEST, str(error)) from None


@contextlib.contextmanager
def _refusals(resource: str) -> Iterator[None]:
    """Turn an error of a guard, or of its ``first``, into the answer to the request."""
    try:
        yield
    except (StaleToken, NotOwner) as error:
        raise _Refused(http.HTTPStatus.PRECONDITION_FAILED, str(error)) from error
    except (GuardUnusable, TimeoutError) as error:
        raise _Refused(http.HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
    except Exception as error:
        _log.exception(
            "%s: first() failed: the request is answered with 503",
            resource,
            extra=log_fields(resource=resource),
        )
        raise _Refused(
            http.HTTPStatus.SERVICE_UNAVAILABLE,
            f"{resource}: zklock could not check whether the token holds the lock, and nothing "
            "was changed: send the request again",
        ) from error


class WsgiFencing(_Middleware):
    """WSGI middleware (PEP 3333) that admits unsafe requests only with a token that is not stale.

    ``resource(environ)`` names the resource of a request, or returns ``None`` if the request is
    not guarded. ``header`` is the name of the header. The application finds the ``FencingToken``
    in ``environ["zklock.token"]``.

    The resource is held until the application's response has ended. A response of more than
    ``buffer`` bytes holds it until the server closes the response. A request body with a
    ``Content-Length`` of up to ``buffer`` is read before the resource is held. With ``buffer=0``
    everything is passed on as it comes.
    """

    def __init__(
        self,
        app: WSGIApplication,
        resource: Resource,
        guards: MemoryGuards,
        *,
        header: str = HEADER,
        buffer: int = _BUFFER,
    ) -> None:
        super().__init__(app, resource, guards, header, buffer)
        self._app = app
        self._variable = f"HTTP_{header.upper().replace('-', '_')}"

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        if environ["REQUEST_METHOD"] in SAFE_METHODS:
            return self._app(environ, start_response)
        resource = self._resource(environ)
        if resource is None:
            return self._app(environ, start_response)
        try:
            token = self._token(environ.get(self._variable))
            guard = self._guard(resource)
            self._read(environ)
            with _refusals(resource):
                # Not in an ExitStack: after an interrupt it lives until it is garbage collected.
                hold = guard.hold(token)
                hold.__enter__()
        except _Refused as refused:
            status = f"{refused.status.value} {refused.status.phrase}"
            start_response(status, refused.headers)
            return [refused.body]
        response = _Body(hold)
        try:
            environ[KEY] = token

            def start(status: str, headers: Any, *error: Any) -> Any:
                if int(status[:3]) in _NOTHING_DONE:
                    hold.take_back()
                return start_response(status, headers, *error)

            if response.begin(self._app(environ, start), self._buffer):
                response.close()
        except BaseException:
            response.close()
            raise
        return response

    def _read(self, environ: WSGIEnvironment) -> None:
        """Read a body that fits into the buffer."""
        length = environ.get("CONTENT_LENGTH") or "0"
        if length.isascii() and length.isdigit() and 0 < int(length) <= self._buffer:
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(length)))


class _Body:
    """The response of the application; when it ends, the change ends."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._body: Iterable[bytes] = ()
        self._chunks: list[bytes] = []
        self._rest: Iterator[bytes] = iter(())

    def begin(self, body: Iterable[bytes], buffer: int) -> bool:
        """Read what fits into the buffer; True if that is all."""
        self._body = body
        self._rest = iter(body)
        if buffer == 0:
            return False
        size = 0
        for chunk in self._rest:
            self._chunks.append(chunk)
            size += len(chunk)
            if size > buffer:
                return False
        return True

    def __iter__(self) -> Iterator[bytes]:
        return itertools.chain(self._chunks, self._rest)

    def close(self) -> None:
        body, self._body = self._body, ()
        try:
            if hasattr(body, "close"):
                body.close()
        finally:
            self._hold.__exit__(None, None, None)


class AsgiFencing(_Middleware):
    """ASGI 3 middleware that admits unsafe requests only with a token that is not stale.

    ``resource(scope)`` names the resource of a request, or returns ``None`` if the request is not
    guarded. ``header`` is the name of the header. The application finds the ``FencingToken`` in
    ``scope["zklock.token"]``.

    The resource is held until the application returns. Up to ``buffer`` bytes of the request and of
    the response are kept, and a slow client does not hold it longer. With ``buffer=0`` everything
    is passed on as it comes. WebSockets are passed on unguarded: hold the guard for each of their
    messages.
    """

    def __init__(
        self,
        app: AsgiApplication,
        resource: Resource,
        guards: MemoryGuards,
        *,
        header: str = HEADER,
        buffer: int = _BUFFER,
    ) -> None:
        super().__init__(app, resource, guards, header, buffer)
        self._app = app
        self._field = header.lower().encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            return await self._app(scope, receive, send)
        resource = self._resource(scope)
        if resource is None:
            return await self._app(scope, receive, send)
        async with _Response(send, self._buffer) as response:
            try:
                fields = [value for name, value in scope["headers"] if name == self._field]
                token = self._token(b", ".join(fields).decode("latin-1") if fields else None)
                guard = self._guard(resource)
                request = await self._read(scope, receive)
                with _refusals(resource):
                    response.hold = guard.hold_async(token)
                    await response.hold.__aenter__()
            except _Refused as refused:
                await send(
                    {
                        "type": "http.response.start",
                        "status": refused.status.value,
                        "headers": [
                            (name.lower().encode(), value.encode())
                            for name, value in refused.headers
                        ],
                    }
                )
                await send({"type": "http.response.body", "body": refused.body})
                return None
            try:
                await self._app({**scope, KEY: token}, request, response.send)
            finally:
                await response.hold.__aexit__(None, None, None)
        return None

    async def _read(self, scope: Scope, receive: Receive) -> Receive:
        """Read what fits into the buffer; return a ``receive`` that replays it, then the rest."""
        # RFC 9112 section 6: a request without these fields has no body. HTTP/2 needs neither.
        fields = {name for name, _ in scope["headers"]}
        older = str(scope.get("http_version", "1.1")).startswith("1.")
        if older and not fields & {b"content-length", b"transfer-encoding"}:
            return receive
        messages: deque[Message] = deque()
        size = 0
        more = True
        while more and size < self._buffer:
            messages.append(message := await receive())
            size += len(message.get("body", b""))
            more = message["type"] == "http.request" and message.get("more_body", False)

        async def again() -> Message:
            return messages.popleft() if messages else await receive()

        return again


class _Response:
    """Keeps the application's response until it is complete, or larger than the buffer."""

    hold: AsyncHold

    def __init__(self, send: Send, buffer: int) -> None:
        self._send = send
        self._passes_on = buffer == 0
        self._room = buffer
        self._kept: list[Message] = []
        self._sending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> _Response:
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Send what is left, unless the application failed in the middle of its response."""
        if self._sending is not None:
            await self._sending
        elif exception[0] is None:
            await self._flush()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] in _NOTHING_DONE:
            self.hold.take_back()
        self._room -= len(message.get("body", b""))
        if self._sending is not None:
            await self._sending
        if self._sending is not None or self._passes_on or self._room < 0:
            await self._flush()
            await self._send(message)
            return
        self._kept.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            # In a task of its own: the application may go on with work that the client need not
            # wait for.
            self._sending = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        while self._kept:
            await self._send(self._kept.pop(0))
