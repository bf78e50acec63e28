"""Where the clients of sessions are, as far as the servers tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from ssl import SSLContext
from typing import TypeAlias

from zklock._ground.clock import clock
from zklock.cli.view import servers
from zklock.cli.view.live import Look

_SOON, _LATER, _SILENT = 5.0, 30.0, 60.0

Host: TypeAlias = tuple[str, int]


class Clients:
    """The addresses of clients. Each server knows those of its own connections.

    It is asked at most every 5 s if there are new sessions, else every 30 s, because a client may
    have gone to another server. One that does not tell is left alone for a minute.
    """

    def __init__(
        self, hosts: Sequence[Host], admin_port: int, tls: SSLContext | None = None
    ) -> None:
        self.addresses: Mapping[int, str] = {}
        self._hosts = hosts
        self._admin_port = admin_port
        self._tls = tls
        self._asked = -math.inf
        self._looked_for: set[int] = set()
        self._silent: dict[Host, float] = {}

    def ask(self, sessions: Collection[int]) -> bool:
        """Ask if it is time to; whether other addresses of these sessions are known now."""
        now = clock()
        new = not self._looked_for.issuperset(sessions)
        if now < self._asked + (_SOON if new else _LATER):
            return False
        self._asked, self._looked_for = now, set(sessions)
        told: dict[int, str] = {}
        for host in self._hosts:
            if now < self._silent.get(host, -math.inf):
                continue
            some = servers.connections(*host, self._admin(host), self._tls)
            if some is None:
                self._silent[host] = clock() + _SILENT
            else:
                told |= some
        before = self.addresses
        self.addresses = {one: told[one] for one in sessions if one in told}
        return self.addresses != before

    def _admin(self, host: Host) -> Callable[[], servers.Admin]:
        name, port = host
        serves = port if self._tls is None else None
        return lambda: servers.Admin(name, self._admin_port, serves, servers.QUICK)


def addressed(seen: Iterator[Look], clients: Clients) -> Iterator[Look]:
    """Yield each look at once, and again when other addresses are known."""
    last: Look | None = None
    shown = Look()
    for look in seen:
        if look is not last:
            last, shown = look, replace(look, addresses=clients.addresses)
            yield shown
        if clients.ask(sessions_of(look)):
            shown = replace(look, addresses=clients.addresses)
        yield shown


def sessions_of(look: Look) -> set[int]:
    """Return the sessions of all contenders."""
    places = (place for lock in look.picture.locks for place in lock.places)
    return {number for place in places if (number := place.contender.session_id)}
