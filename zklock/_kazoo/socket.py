"""A socket that shakes hands, and tells the handler how that goes."""

from __future__ import annotations

import errno
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any, Protocol

from kazoo.exceptions import SessionExpiredError

from zklock._ground.clock import clock
from zklock._kazoo.refusals import NOT_SERVING, Refusal, answer

_CHUNK = 65536
_PING, _CLOSE = 11, -11  # opcodes of the requests that consist only of a header
_SASL = 102
_NUMBER = struct.Struct(">ii")  # length; xid
_HEAD = struct.Struct(">iii")  # length; xid, opcode or error … or protocol version, timeout …
_HANDSHAKE = struct.Struct(">iiqiq")  # length; version, last zxid, timeout, session

LONGEST_FIRST = 4096
"""The most bytes that the answer to a handshake may have; ZooKeeper sends 37."""
_LATER = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError
_SILENT = "accepts connections, and says nothing"


class Hears(Protocol):
    """What a socket needs from its handler."""

    @property
    def session_timeout(self) -> float | None:
        """The shortest negotiated session timeout, in seconds."""

    @property
    def at_stake(self) -> bool:
        """Whether anything is held on the session."""

    @property
    def waiting(self) -> int:
        """How many requests wait to be sent."""

    def next_xid(self) -> int:
        """Return a number for the next request."""

    def note(self, server: str, what: str | Refusal) -> None:
        """Note how far the connection to a server came."""

    def turned_away(
        self, server: str, another: Callable[..., Any] | None, error: OSError | None = None
    ) -> None:
        """Note that a server has ended a connection before it answered."""

    def turn(self) -> float:
        """Return how long to wait for a server, in seconds."""

    def was_silent(self) -> None:
        """Note that a server did not answer in its time."""

    def asking(self, connection: _Socket, sent: float, resumes: bool) -> float:
        """Note a handshake; return until when to wait for its answer."""

    def connected(self, sent: float, timeout: float, resumed: bool) -> None:
        """Note a connection."""

    def pinged(self, sent: float, answered: float) -> None:
        """Note an answered ping."""

    @property
    def gives_up(self) -> bool:
        """Whether the session is given up, and not to be resumed."""

    @property
    def is_dead(self) -> bool:
        """Whether the session must be dead, as servers turn it away for so long."""

    def asks_anew(self) -> bool:
        """Return whether a session that must be dead is asked for as if nothing had been seen."""

    def not_resumed(self, was_dead: bool) -> None:
        """Note that a server has not taken up the session, and gave no answer."""

    def new_session(self) -> bool:
        """Note that a session is about to be asked for; return whether it may be."""

    def seen(self, zxid: int) -> int:
        """Note the zxid of a reply; return the highest one of this session."""

    def goes_back(self, zxid: int) -> bool:
        """Return whether an answer names an older transaction than a reply did."""

    def closing(self) -> None:
        """Note that the request to end the session is about to be sent."""


class _Socket:
    """A connected socket that shakes hands, and tells the handler how that goes.

    A socket without a handshake is for a four-letter word; the handler does not hear of it.
    """

    def __init__(
        self,
        sock: Any,
        handler: Hears,
        server: str = "",
        another: Callable[..., Any] | None = None,
    ) -> None:
        self._sock = sock
        self._handler = handler
        self.server = server
        self._another = another
        self.fileno = sock.fileno
        self._below = getattr(sock, "pending", None)
        # TLS may have to read before it can write: kazoo handles that, with a real select.
        self.eager = self._below is None
        self._asked: float | None = None
        self._resumes = False
        self._dead = False  # the session must be dead, and the server serves
        self._answer_by: float | None = None  # while the handshake is not answered
        self._pinged: float | None = None
        self._fresh = False  # only SASL has been asked since the handshake
        self._proving = False  # the last request was one of SASL

    def _closed_early(self, error: OSError | None = None) -> None:
        """Note the end of the connection, if the handshake is not answered yet."""
        if self._answer_by is None or isinstance(error, _LATER):
            return
        if error is None or isinstance(error, ConnectionError | ssl.SSLError):
            self._handler.turned_away(self.server, self._another, error)
            if self._resumes:
                self._handler.not_resumed(self._dead)

    def patience(self, timeout: float | None) -> float | None:
        """Return how long to wait for this socket alone, instead of ``timeout``.

        kazoo waits for one socket alone in two cases. It waits for the answers that make a
        connection. Or it waits for the rest of a reply that is not complete, or for room for the
        rest of a request.
        """
        if self._answer_by is not None:
            return max(0.0, self._answer_by - clock())
        if self._handler.session_timeout is not None:
            limit = self._handler.session_timeout / 3
            return limit if timeout is None else min(timeout, limit)
        return timeout

    def waited(self) -> None:
        """Note that a wait for this socket alone brought nothing."""
        if self._answer_by is not None and clock() >= self._answer_by:
            self._handler.was_silent()

    def _shake_hands(self, frame: bytes) -> bytes:
        """Inspect the handshake; return it with the highest zxid that the client has seen.

        kazoo does not see the replies to requests. Without this it would take up the session at a
        server that lags behind them.

        A handshake without an answer costs what is held on the session (see ``lease``). So none is
        sent if no answer is likely: to a server that is silent, or not serving yet.
        """
        length, version, zxid, timeout, session = _HANDSHAKE.unpack_from(frame)
        self._resumes = session != 0
        if not self._resumes:
            if not self._handler.new_session():
                raise ConnectionRefusedError(errno.ECONNREFUSED, "no new session is begun yet")
        elif self._handler.gives_up:
            raise SessionExpiredError("given up, as ZooKeeper has gone back")
        else:
            self._dead = self._handler.is_dead
            if (self._dead or self._handler.at_stake) and not self._serves():
                raise ConnectionRefusedError(errno.ECONNREFUSED, "the server is not serving")
        seen = self._handler.seen(zxid)
        if self._dead and self._handler.asks_anew():
            seen = 0
        self._asked, self._fresh = clock(), True
        self._answer_by = self._handler.asking(self, self._asked, self._resumes)
        fields = _HANDSHAKE.pack(length, version, seen, timeout, session)
        return fields + bytes(frame[_HANDSHAKE.size :])

    def _look_for_proof(self, frame: bytes) -> None:
        """Look whether a request is one of SASL: these come before all others."""
        self._fresh = self._proving = _HEAD.unpack_from(frame)[2] == _SASL

    def _serves(self) -> bool:
        """Ask the server whether it serves, over a separate connection."""
        if self._another is None:
            return True
        limit = self._handler.turn()
        try:
            with self._another(timeout=limit) as sock:
                sock.settimeout(limit)
                said = answer(sock, b"\n")
        except TimeoutError:
            self._handler.was_silent()
            return False
        except OSError:
            return False
        # Any other answer is enough: the word may be forbidden.
        return bool(said) and NOT_SERVING not in said

    def shut_down(self) -> None:
        try:
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            return  # closed already

    def _connected(self, milliseconds: int) -> None:
        self._answer_by = None
        if milliseconds > 0 and self._asked is not None:  # 0: the session has expired
            self._handler.connected(self._asked, milliseconds / 1000, self._resumes)

    def pinged_back(self) -> None:
        """Note the answer to a ping."""
        if self._pinged is not None:
            self._handler.pinged(self._pinged, clock())
            self._pinged = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)
