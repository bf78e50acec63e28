"""httpx: a client sends the token of a grant, and stops when the service refuses it.

For services with ``zklock.fencing.WsgiFencing`` or ``AsgiFencing``. Needs the extra ``httpx``.
"""

from __future__ import annotations

import contextlib

import httpx

import zklock
from zklock import aio
from zklock.contrib import _http

__all__ = ["AsyncFencedTransport", "FencedTransport"]


class FencedTransport(httpx.BaseTransport):
    """Sends each request with the token of ``grant``, while the grant is held.

    ::

        with zklock.Lock(client, "/locks/report") as grant:
            mounts = {"https://store.example": FencedTransport(grant)}
            with httpx.Client(mounts=mounts) as http:
                http.put("https://store.example/report", content=text)

    Mount it at the address of the service that checks tokens: requests to others, by a redirect
    too, do not get the token. Make one for each grant. ``header`` is the name of the header.
    ``transport`` does the sending, by default an ``httpx.HTTPTransport``; it is closed with this.

    The transport checks the lease before it sends a request: if the lease is over, it raises
    ``LockLost`` or ``NotHeld``, and sends nothing. If the service answers 412, ``StaleToken`` is
    raised: the grant is over. Stop its work; the request has changed nothing. ``highest`` of the
    error is ``None``: it is not known. A 412 to a request with a condition of its own (``If-Match``
    and others) is returned as it is, because it may be the answer to that.

    *Not guaranteed:* that the request arrives in time. A request may arrive late, and ``retries``
    of the transport connects again without another check. For that reason the service checks
    tokens.
    """

    def __init__(
        self,
        grant: zklock.Grant | aio.Grant,
        transport: httpx.BaseTransport | None = None,
        *,
        header: str = _http.HEADER,
    ) -> None:
        self._bearer = _http.Bearer(grant, header)
        self._transport = transport or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; called by the client."""
        response = self._transport.handle_request(_fenced(request, self._bearer))
        if self._bearer.refused(response.status_code, request.headers):
            said = ""  # it is refused, whether the rest of the answer comes or not
            try:
                with contextlib.suppress(httpx.HTTPError):
                    response.read()
                    said = response.text
            finally:
                response.close()
            raise self._bearer.refusal(request.method, _resource(request.url), said)
        return response

    def close(self) -> None:
        """Close the transport that was passed, or the one that was made here; the grant stays."""
        self._transport.close()


class AsyncFencedTransport(httpx.AsyncBaseTransport):
    """:class:`FencedTransport` for ``httpx.AsyncClient``.

    ``transport`` is by default an ``httpx.AsyncHTTPTransport``.
    """

    def __init__(
        self,
        grant: zklock.Grant | aio.Grant,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        header: str = _http.HEADER,
    ) -> None:
        self._bearer = _http.Bearer(grant, header)
        self._transport = transport or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; called by the client."""
        response = await self._transport.handle_async_request(_fenced(request, self._bearer))
        if self._bearer.refused(response.status_code, request.headers):
            said = ""
            try:
                with contextlib.suppress(httpx.HTTPError):
                    await response.aread()
                    said = response.text
            finally:
                await response.aclose()
            raise self._bearer.refusal(request.method, _resource(request.url), said)
        return response

    async def aclose(self) -> None:
        """Close the transport that was passed, or the one that was made here; the grant stays."""
        await self._transport.aclose()


def _fenced(request: httpx.Request, bearer: _http.Bearer) -> httpx.Request:
    """Return the request with the token: a redirect to another host is made of the client's own."""
    headers = httpx.Headers(request.headers)
    headers.update(bearer.headers())
    return httpx.Request(
        request.method,
        request.url,
        headers=headers,
        stream=request.stream,
        extensions=request.extensions,
    )


def _resource(url: httpx.URL) -> str:
    return f"{url.netloc.decode()}{url.path}"
