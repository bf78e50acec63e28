"""The token in an HTTP header, checked by WSGI and ASGI middleware.

The middleware refuses a request before the application sees it, and keeps requests for the same
resource one after another while the application works on them. That is atomic only for changes
which the application makes in its own process while it handles the request. Whatever it changes
elsewhere (a database, another service, a job for later) needs a guard there: hand the token on.
The worker processes of one service have a ``MemoryGuards`` each, so that a stale token which one
of them would refuse may reach another: run one worker, route each resource to one of them, or
guard the store.

==== ==========================================================================================
412  the token is stale, or ``first`` of the guards says that another one holds the lock
428  the header is missing
400  the header is no token, or is there twice; the name of the resource is unusable
503  earlier requests for the resource did not end in time, or the guards have no room
==== ==========================================================================================
"""

from __future__ import annotations

import contextlib
import http
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

from zklock.errors import GuardUnusable, NotOwner, StaleToken
from zklock.fencing.memory import MemoryGuard, MemoryGuards
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
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)


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
    def __init__(self, resource: Resource, guards: MemoryGuards, header: str) -> None:
        if not _FIELD_NAME.fullmatch(header):
            raise ValueError(f"not the name of an HTTP header: {header!r}")
        self._resource = resource
        self._guards = guards
        self._header = header

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
def _refusals() -> Iterator[None]:
    """Turn what a guard raises into its answer."""
    try:
        yield
    except (StaleToken, NotOwner) as error:
        raise _Refused(http.HTTPStatus.PRECONDITION_FAILED, str(error)) from error
    except (GuardUnusable, TimeoutError) as error:
        raise _Refused(http.HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error


class WsgiFencing(_Middleware):
    """WSGI middleware (PEP 3333) that admits unsafe requests only with a token that is not stale.

    ``resource(environ)`` names the resource of a request, or returns ``None`` for one that is not
    guarded. ``header`` is the name of the header. The application finds the ``FencingToken`` in
    ``environ["zklock.token"]``. The resource is held until the server closes the response.
    """

    def __init__(
        self,
        app: WSGIApplication,
        resource: Resource,
        guards: MemoryGuards,
        *,
        header: str = HEADER,
    ) -> None:
        super().__init__(resource, guards, header)
        self._app = app
        self._variable = f"HTTP_{header.upper().replace('-', '_')}"

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        if environ["REQUEST_METHOD"] in SAFE_METHODS:
            return self._app(environ, start_response)
        resource = self._resource(environ)
        if resource is None:
            return self._app(environ, start_response)
        with contextlib.ExitStack() as held:
            try:
                token = self._token(environ.get(self._variable))
                guard = self._guard(resource)
                with _refusals():
                    held.enter_context(guard.hold(token))
            except _Refused as refused:
                status = f"{refused.status.value} {refused.status.phrase}"
                start_response(status, refused.headers)
                return [refused.body]
            environ[KEY] = token
            body = self._app(environ, start_response)
            if hasattr(body, "close"):
                held.callback(body.close)
            return _Body(body, held.pop_all())


class _Body:
    """The response of the application; its end is the end of the change."""

    def __init__(self, body: Iterable[bytes], held: contextlib.ExitStack) -> None:
        self._body = body
        self._held = held

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        self._held.close()


class AsgiFencing(_Middleware):
    """ASGI 3 middleware that admits unsafe requests only with a token that is not stale.

    ``resource(scope)`` names the resource of a request, or returns ``None`` for one that is not
    guarded. ``header`` is the name of the header. The application finds the ``FencingToken`` in
    ``scope["zklock.token"]``. The resource is held until the application returns. WebSockets are
    passed on unguarded: hold the guard for each of their messages.
    """

    def __init__(
        self,
        app: AsgiApplication,
        resource: Resource,
        guards: MemoryGuards,
        *,
        header: str = HEADER,
    ) -> None:
        super().__init__(resource, guards, header)
        self._app = app
        self._field = header.lower().encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            return await self._app(scope, receive, send)
        resource = self._resource(scope)
        if resource is None:
            return await self._app(scope, receive, send)
        async with contextlib.AsyncExitStack() as held:
            try:
                fields = [value for name, value in scope["headers"] if name == self._field]
                token = self._token(b", ".join(fields).decode("latin-1") if fields else None)
                guard = self._guard(resource)
                with _refusals():
                    await held.enter_async_context(guard.hold_async(token))
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
            await self._app({**scope, KEY: token}, receive, send)
        return None
