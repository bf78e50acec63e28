"""Sessions, and when they expire: in ticks, as the real server counts. Pure; times are in ms.

Source: ``SessionTrackerImpl`` and ``ExpiryQueue`` of Apache ZooKeeper 3.8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


@dataclass(slots=True, eq=False)
class ServerSession(Generic[C]):
    """A session; ``timeout`` is the one that it was created with."""

    id: int
    password: bytes
    timeout: int
    expires: int = 0
    connection: C | None = None


class Sessions(Generic[C]):
    """The sessions that live. One ends at the first tick after its last touch and its timeout."""

    def __init__(self, tick: int, first_id: int) -> None:
        self.tick = tick
        self._next_id = first_id
        self._all: dict[int, ServerSession[C]] = {}
        self._ending: dict[int, dict[int, None]] = {}  # by the tick at which they expire

    def __len__(self) -> int:
        return len(self._all)

    def find(self, session_id: int) -> ServerSession[C] | None:
        """Return the session, if it lives."""
        return self._all.get(session_id)

    def all(self) -> list[ServerSession[C]]:
        return list(self._all.values())

    def open(self, timeout: int, now: int) -> ServerSession[C]:
        seed = self._next_id.to_bytes(8, "big", signed=True)
        session: ServerSession[C] = ServerSession(
            self._next_id, hashlib.sha256(seed).digest()[:16], timeout
        )
        self._next_id += 1
        self._all[session.id] = session
        self.touch(session, timeout, now)
        return session

    def touch(self, session: ServerSession[C], timeout: int, now: int) -> None:
        """Note that the client is alive; ``timeout`` is what its connection has negotiated."""
        expires = (now + timeout) // self.tick * self.tick + self.tick
        if expires != session.expires:
            self._unlist(session)
            session.expires = expires
            self._ending.setdefault(expires, {})[session.id] = None

    def _unlist(self, session: ServerSession[C]) -> None:
        ending = self._ending.get(session.expires, {})
        if session.id in ending:
            del ending[session.id]
            if not ending:
                del self._ending[session.expires]

    def close(self, session: ServerSession[C]) -> None:
        self._unlist(session)
        del self._all[session.id]

    def due(self) -> int | None:
        """Return when the next one expires, unless it is touched."""
        return min(self._ending, default=None)

    def expired(self, now: int) -> list[ServerSession[C]]:
        """Return those that have expired, in the order in which they did."""
        ticks = sorted(tick for tick in self._ending if tick <= now)
        return [self._all[session_id] for tick in ticks for session_id in self._ending[tick]]

    def restart(self, tick: int, now: int) -> None:
        """Begin anew with all: nobody is connected, and each has the timeout of its creation."""
        self.tick = tick
        self._ending.clear()
        for session in self._all.values():
            session.connection = None
            session.expires = 0
            self.touch(session, session.timeout, now)
