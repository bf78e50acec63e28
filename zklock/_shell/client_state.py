"""What the connections of one client share: its session, its numbers, what is known of servers.

- If a server does not accept a connection, or accepts one and says nothing, it is given up after a
  share of the lease. Then the next server is tried: see ``sweep``. kazoo alone waits for a whole
  session timeout.
- A server whose data is older than what the client has seen is noticed: see ``goes_back`` and
  ``not_resumed``.
- Request numbers are not used twice in a session. kazoo starts from 1 on every connection. A
  request of an earlier connection may be committed late. The server then confuses it with the
  waiting request of the same number, and answers that one with the result of the other.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from zklock._core.session import Session
from zklock._ground.addresses import server_name
from zklock._ground.clock import clock
from zklock._ground.records import log_fields
from zklock._shell.refusals import CLOSED, CLOSING, NO_SASL, Refusal, of_tls, refusal
from zklock._shell.sweep import Sweep

log = logging.getLogger("zklock")
_ASKING = 1.0
"""Seconds. The most that a server has to answer why it turns the client away."""
_EQUAL = 0.001
"""kazoo asks in whole milliseconds."""
TICKS = 2.15
"""How many ticks the session timeout needs for the arithmetic of the lease (see ``lease``)."""
_DEAD = 1.5
"""After how many session timeouts without a server a leader has ended the session.

The leader needs the timeout and at most one tick more. A timeout has two ticks or more, by default.
"""


def nothing() -> None:
    """Do nothing: for a call that may be left out."""


class ClientState:
    """What the connections of a client share.

    ``session_timeout`` is the shortest timeout negotiated in this session's life, in seconds:
    ZooKeeper negotiates it again at every connection. ``None`` before the first connection.
    ``servers`` is the number of servers to try: a name may have several addresses.
    """

    session: Session
    now: Callable[[], float]
    step: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__()
        self.session_timeout: float | None = None
        self._addresses: dict[str, set[str]] = {}  # by server, as they were looked up last
        self._looked_up: set[str] = set()  # since the last connection
        self._start_by: float | None = None
        self._too_late: Callable[[], object] = nothing
        self._met: dict[str, str | Refusal] = {}  # by server: how far it came while starting
        self._wanted = 0.0  # the session timeout that kazoo asks for
        self._granted: float | None = None  # the newest one that a session began with
        self._sweep = Sweep()
        self.newest: Any = None  # the newest connection, once it asks for a session
        self._back_at: float | None = None  # the session is given up; until another is asked for
        self._not_resumed_at: float | None = None  # since the last answer
        self._refused = False  # by a server that serves, when the session must be dead

    @property
    def begins(self) -> bool:
        """Whether the next connection is for the session.

        kazoo has one for it at a time: what it makes meanwhile is for something else.
        """
        return self.newest is None or bool(self.newest.end)

    @property
    def server(self) -> str:
        """The server of the newest connection, as ``host:port``; empty before the first."""
        return "" if self.newest is None else str(self.newest.server)

    # The session.

    def asking(self, connection: Any, resumes: bool) -> float:
        """Note a handshake that is about to be sent; return until when to wait for its answer."""
        self.newest = connection
        self.step(self.session.asked, self.now(), resumes)
        until = clock() + self.per_server_timeout()
        return until if self._start_by is None else min(until, self._start_by)

    def connected_in(self, timeout: float, resumed: bool) -> None:
        """Note a connection. ``timeout``: the negotiated session timeout, in seconds."""
        self.note(self.server, NO_SASL)
        self._sweep, self._start_by = Sweep(), None
        self._looked_up.clear()
        self._not_resumed_at, self._refused = None, False
        known = self.session_timeout
        self.session_timeout = timeout if known is None or not resumed else min(known, timeout)
        if not resumed and timeout != self._granted:
            self._granted = timeout
            self._compare(timeout)

    def _compare(self, granted: float) -> None:
        """Say if a new session has another timeout than was asked for, and what that means."""
        if abs(granted - self._wanted) < _EQUAL:
            return
        if granted < self._wanted:
            self.session.warn(
                "ZooKeeper grants a session timeout of %g s instead of %g s: leases are shorter; "
                "pass this timeout, or raise maxSessionTimeout on all servers",
                granted,
                self._wanted,
            )
        else:
            self.session.warn(
                "ZooKeeper grants a session timeout of %g s instead of %g s: it is the servers' "
                "minimum, by default 2 ticks, but a lease needs %.2f ticks: pass %g s or more",
                granted,
                self._wanted,
                TICKS,
                2 * granted,
            )

    def cancel(self, zxid: int) -> bool:
        """Give the session up, as a server is at this transaction; return whether this did it."""
        if self._back_at is not None:
            return False
        self._back_at = clock()
        self.session.warn(
            "ZooKeeper is at transaction %#x, but this client has seen %#x: its locks are "
            "lost, and it starts a new session in %.3g s; a backup was restored under "
            "running clients: stop them, and raise the epoch of the tokens",
            zxid,
            self.session.link.seen,
            self.session_timeout or self._wanted,
        )
        return True

    @property
    def gives_up(self) -> bool:
        """Whether the session is given up, and not to be resumed."""
        return self._back_at is not None

    def new_session(self) -> bool:
        """Note that a session is about to be asked for, which has seen nothing yet.

        Return whether it may be. After ZooKeeper has gone back, other holders have a whole timeout
        to notice it, too.
        """
        timeout = self.session_timeout or self._wanted
        if self._back_at is not None and clock() < self._back_at + timeout:
            return False
        self._back_at, self.session.link.seen = None, 0
        return True

    def not_resumed(self, was_dead: bool) -> None:
        """Note that a server has not taken up the session, and gave no answer.

        ``was_dead``: the session must have been dead by then, and the server serves.
        """
        if self._not_resumed_at is None:
            self._not_resumed_at = clock()
        self._refused |= was_dead

    @property
    def is_dead(self) -> bool:
        """Whether the session must be dead, as servers turn it away for so long."""
        timeout = self.session_timeout or self._wanted
        since = self._not_resumed_at
        return since is not None and clock() >= since + _DEAD * timeout

    def asks_anew(self) -> bool:
        """Return whether a session that must be dead is asked for as if nothing had been seen.

        A server that has less data than the client has seen turns it away for ever. If it is asked
        for as by a client that has seen nothing, the server says whether it is there.
        """
        if not self._refused:
            return False
        since = self._not_resumed_at
        log.warning(
            "servers have refused this client for %.3g s; it now connects as if it had not seen "
            "transaction %#x; if data was lost, tokens may repeat: recreate the guards' marks, "
            "or raise the epoch",
            0.0 if since is None else clock() - since,
            self.session.link.seen,
            extra=log_fields(),
        )
        return True

    # The servers.

    @property
    def servers(self) -> int:
        """How many servers there are to try, by address; a name that was not looked up counts one.

        What is held must outlive the tries of all but the last: each gets a share of the time.
        """
        return sum(len(each) or 1 for each in [*self._addresses.values()]) or 1

    def serve_hosts(self, hosts: Sequence[tuple[str, int]]) -> None:
        """Note which servers are tried from now on."""
        known = self._addresses
        names = [server_name(host.strip(), port) for host, port in hosts]
        self._addresses = {name: known.get(name, set()) for name in names}
        self._looked_up.clear()

    def _count(self, server: str, host: str, address: tuple[Any, ...]) -> None:
        """Look up how many addresses this server has, if they may have changed."""
        if server in self._looked_up and address[0] in self._addresses.get(server, ()):
            return
        found = {address[0]}
        with contextlib.suppress(OSError):
            looked_up = socket.getaddrinfo(host, address[1], 0, 0, socket.IPPROTO_TCP)
            found |= {str(each[4][0]) for each in looked_up}
        self._addresses[server] = found
        self._looked_up.add(server)

    def starting(self, seconds: float, too_late: Callable[[], object] = nothing) -> None:
        """Let no try last beyond ``seconds`` from now, until one server answers.

        ``too_late()`` is called instead of each try after that time, on kazoo's thread.
        """
        self._met = {}
        self._start_by, self._too_late = clock() + seconds, too_late

    def met(self, server: str) -> str | Refusal | None:
        """Return how far the connection to this server came while starting; ``None``: not tried."""
        return self._met.get(server)

    def note(self, server: str, what: str | Refusal) -> None:
        """Note how far the connection to a server came."""
        if self._start_by is not None:
            self._met[server] = what

    def turned_away(
        self, server: str, another: Callable[..., Any] | None, error: OSError | None = None
    ) -> None:
        """Note that a server has ended a connection before it answered.

        While the client starts, the server is asked why, for a second at most in all.
        """
        if self._start_by is None or not isinstance(another, partial):
            return
        if self.met(server) not in CLOSING:
            self.note(server, CLOSED)
        why = of_tls(error) if isinstance(error, ssl.SSLError) else None
        until = min(self._start_by, clock() + _ASKING)

        def connect(tls: bool) -> Any:
            left = until - clock()
            if left <= 0:
                raise TimeoutError
            sock = another(timeout=left, use_ssl=tls)
            sock.settimeout(left)
            return sock

        if why is None and clock() < until:
            why = refusal(connect, bool(another.keywords.get("use_ssl")))
        if why is not None:
            self.note(server, why)

    def was_silent(self) -> None:
        """Note that a server did not answer in its time."""
        self._sweep.was_silent()

    def per_server_timeout(self) -> float:
        """Return how long to wait for an answer of the server that is tried now, in seconds."""
        return self._sweep.to_answer(self.session_timeout or self._wanted, self.servers)
