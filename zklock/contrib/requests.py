"""requests: a session sends the token of a grant, and stops when the service refuses it.

For services with ``zklock.fencing.WsgiFencing`` or ``AsgiFencing``. Needs the extra ``requests``.
"""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import urlsplit

from requests.adapters import HTTPAdapter
from requests.exceptions import RequestException
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

import zklock
from zklock import aio
from zklock.contrib import _http

__all__ = ["FencedAdapter"]


class FencedAdapter(HTTPAdapter):
    """Sends each request with the token of ``grant``, while the grant is held.

    ::

        with zklock.Lock(client, "/locks/report") as grant, requests.Session() as session:
            session.mount("https://store.example/", FencedAdapter(grant))
            session.put("https://store.example/report", data=text)

    Mount it below the address of the service that checks tokens: requests to others, by a redirect
    too, do not get the token. Make one for each grant. ``header`` is the name of the header;
    further options are those of ``requests.adapters.HTTPAdapter``.

    The adapter checks the lease before it sends a request: if the lease is over, it raises
    ``LockLost`` or ``NotHeld``, and sends nothing. If the service answers 412, ``StaleToken`` is
    raised: the grant is over. Stop its work; the request has changed nothing. ``highest`` of the
    error is ``None``: it is not known. A 412 to a request with a condition of its own (``If-Match``
    and others) is returned as it is, because it may be the answer to that.

    *Not guaranteed:* that the request arrives in time. A request may arrive late, and
    ``max_retries`` repeats it without another check. For that reason the service checks tokens. If
    the service refuses a repeated request, ``OutcomeUnknown`` is raised instead of ``StaleToken``:
    the first request may have changed something.
    """

    def __init__(
        self, grant: zklock.Grant | aio.Grant, *, header: str = _http.HEADER, **options: Any
    ) -> None:
        super().__init__(**options)
        self._bearer = _http.Bearer(grant, header)

    def send(self, request: Any, *args: Any, **options: Any) -> Any:
        """Send one request; called by the session."""
        fenced = request.copy()  # a redirect to another host is made of the session's own
        fenced.headers.update(self._bearer.headers())
        response = super().send(fenced, *args, **options)
        if self._bearer.refused(response.status_code, fenced.headers):
            said = ""  # it is refused, whether the rest of the answer comes or not
            with response, contextlib.suppress(RequestException):
                said = response.text
            url = urlsplit(fenced.url)
            host = url.netloc.rpartition("@")[2]  # without a password
            again = _sent_before(response.raw)
            raise self._bearer.refusal(fenced.method, f"{host}{url.path}", said, again=again)
        return response


def _sent_before(answer: Any) -> bool:
    """Whether urllib3 has sent the request before, so that the service may have got it twice."""
    retries = getattr(answer, "retries", None)
    history = () if retries is None else retries.history
    return any(
        not isinstance(one.error, NewConnectionError | ConnectTimeoutError) for one in history
    )
