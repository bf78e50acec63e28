"""A socket that shakes hands, and notes how that goes in the state of its client."""

from __future__ import annotations

import errno
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

from kazoo.exceptions import SessionExpiredError

from zklock._ground.clock import clock
from zklock._ground.interrupts import raised_by_the_call
from zklock._kazoo.client_state import ClientState
from zklock._kazoo.refusals import NOT_SERVING, ONLY_READS, answer

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


class HandshakingSocket:
    """A connected socket that shakes hands, and notes in ``state`` how that goes.

    Nothing is noted of a socket without a handshake, which is for a four-letter word.
    """

    def __init__(
        self,
        sock: Any,
        state: ClientState,
        server: str = "",
        another: Callable[..., Any] | None = None,
    ) -> None:
        self._sock = sock
        self.state = state
        self.server = server
        self._another = another
        self.fileno = sock.fileno
        self.eager = not hasattr(sock, "pending")  # TLS has some: one read does not empty it
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
            self.state.turned_away(self.server, self._another, error)
            if self._resumes:
                self.state.not_resumed(self._dead)

    def patience(self, timeout: float | None) -> float | None:
        """Return how long to wait for this socket alone, instead of ``timeout``.

        kazoo waits for one socket alone in two cases. It waits for the answers that make a
        connection. Or it waits for the rest of a reply that is not complete, or for room for the
        rest of a request.
        """
        if self._answer_by is not None:
            return max(0.0, self._answer_by - clock())
        if self.state.session_timeout is not None:
            limit = self.state.session_timeout / 3
            return limit if timeout is None else min(timeout, limit)
        return timeout

    def waited(self) -> None:
        """Note that a wait for this socket alone brought nothing."""
        if self._answer_by is not None and clock() >= self._answer_by:
            self.state.was_silent()

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
            if not self.state.new_session():
                raise ConnectionRefusedError(errno.ECONNREFUSED, "no new session is begun yet")
        elif self.state.gives_up:
            raise SessionExpiredError("given up, as ZooKeeper has gone back")
        else:
            self._dead = self.state.is_dead
            if (self._dead or self.state.at_stake) and not self._serves():
                raise ConnectionRefusedError(errno.ECONNREFUSED, "the server is not serving")
        seen = self.state.seen(zxid)
        if self._dead and self.state.asks_anew():
            seen = 0
        self._asked, self._fresh = clock(), True
        self._answer_by = self.state.asking(self, self._asked, self._resumes)
        fields = _HANDSHAKE.pack(length, version, seen, timeout, session)
        return fields + bytes(frame[_HANDSHAKE.size :])

    def _look_for_proof(self, frame: bytes) -> None:
        """Look whether a request is one of SASL: these come before all others."""
        self._fresh = self._proving = _HEAD.unpack_from(frame)[2] == _SASL

    def _serves(self) -> bool:
        """Ask the server whether it serves, over a separate connection.

        A server that serves only reads takes no session with an ephemeral node.
        """
        if self._another is None:
            return True
        limit = self.state.turn()
        try:
            with self._another(timeout=limit) as sock:
                sock.settimeout(limit)
                said = answer(sock, b"\nNode count")
        except TimeoutError:
            self.state.was_silent()
            return False
        except ssl.SSLError:
            raise  # a certificate that is refused: kazoo logs that
        except OSError:
            return False
        # Any other answer is enough: the word may be forbidden.
        return bool(said) and NOT_SERVING not in said and ONLY_READS not in said

    def shut_down(self) -> None:
        try:
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError as error:
            if not raised_by_the_call(error):
                raise
            return  # closed already

    def connected(self, milliseconds: int, read_only: bool) -> None:
        """Note the answer to the handshake; 0 milliseconds: the session has expired."""
        self._answer_by = None
        if milliseconds > 0 and self._asked is not None:
            self.state.connected(self._asked, milliseconds / 1000, self._resumes)

    def pinged_back(self) -> None:
        """Note the answer to a ping."""
        if self._pinged is not None:
            self.state.pinged(self._pinged, clock())
            self._pinged = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)
