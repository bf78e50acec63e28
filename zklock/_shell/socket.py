"""What kazoo takes for its socket. It shakes hands, and notes in the handler how that goes."""

from __future__ import annotations

import errno
import socket
import ssl
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import AuthFailedError, SessionClosedRequireSaslError, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError

from zklock._ground.clock import clock
from zklock._ground.interrupts import raised_by_the_call
from zklock._shell.refusals import NOT_SERVING, ONLY_READS, answer

if TYPE_CHECKING:
    from zklock._shell.handler import Handler

_SASL = 102
_HEAD = struct.Struct(">iii")  # length; xid, opcode
_PING = 11
_HANDSHAKE = struct.Struct(">iiqiq")  # length; version, last zxid, timeout, session
_CODE = struct.Struct(">i")
_ERROR = slice(12, 16)  # of a reply without its length
_REQUIRED = _CODE.pack(SessionClosedRequireSaslError.code)
_CUT = "the connection was cut while the server looked at the credentials"
SILENT = "accepts connections, and says nothing"


class Sock:
    """A connected socket, for kazoo. All but the handshake goes through the client's link.

    ``end``: why nothing more comes, ``True`` if the server has closed. ``may_serve``: requests of
    ours can be sent once kazoo has finished connecting. ``blocked``: the server takes no more now.
    """

    def __init__(
        self, real: Any, handler: Handler, server: str, another: Callable[..., Any] | None
    ) -> None:
        real.setblocking(False)
        self.real = real
        self.server = server
        self.fileno, self.getpeername = real.fileno, real.getpeername
        self.tls = hasattr(real, "pending")
        self.end: OSError | bool = False
        self.may_serve = False
        self.blocked = False
        self.resumes = False
        self.pinged: float | None = None  # when a ping was sent that is not answered
        self._handler = handler
        self._another = another
        self._asked = False
        self._dead = False  # the session must be dead, and the server serves
        self._answer_by: float | None = None  # while the handshake is not answered
        self._fresh = False  # only SASL has been asked since the handshake
        self._proving = False  # the last request was one of SASL
        self._buffer = memoryview(b"")  # what kazoo has begun to receive

    # For kazoo, on its connection thread.

    def send(self, data: Any) -> int:
        frame = bytes(data)
        handler = self._handler
        if not self._asked:
            handler.step(handler.opened, self, self._shake_hands(frame))
            return len(frame)
        length, _, opcode = _HEAD.unpack_from(frame)
        if self._fresh:
            self._fresh = self._proving = opcode == _SASL
        if length == 8 and opcode == _PING:
            self.pinged = handler.now()
        handler.step(handler.pass_on, self, frame)
        return len(frame)

    def recv(self, size: int) -> bytes:
        """Receive what has come of a frame."""
        if not self._buffer:
            inbox = self._handler.session.link.inbox
            if inbox and self._current:
                self._buffer = memoryview(inbox.popleft())
            elif self.end:
                self._closed_early()
                if self._proving:
                    raise KazooTimeoutError(_CUT)
                if isinstance(self.end, OSError):
                    raise self.end
                return b""
            else:
                raise BlockingIOError(errno.EAGAIN, "no whole frame has arrived")
        data = bytes(self._buffer[:size])
        self._buffer = self._buffer[size:]
        if self._proving and data[_ERROR] == _REQUIRED:
            # kazoo knows one refusal of credentials; another one ends its thread.
            data = data[: _ERROR.start] + _CODE.pack(AuthFailedError.code) + data[_ERROR.stop :]
        return data

    @property
    def _current(self) -> bool:
        """Whether what has come is of this socket, which may have ended since."""
        return self._handler.newest is self

    def pending(self) -> int:
        """Return whether there is something to receive."""
        return len(self._buffer) or int(
            bool(self.end) or (self._current and bool(self._handler.session.link.inbox))
        )

    def close(self) -> None:
        self._handler.step(self._handler.end_of, self, True)
        self.real.close()

    def setblocking(self, blocking: bool) -> None:
        """Do nothing: it never blocks."""

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
        self.resumes = session != 0
        if not self.resumes:
            if not self._handler.new_session():
                raise ConnectionRefusedError(errno.ECONNREFUSED, "no new session is begun yet")
        elif self._handler.gives_up:
            raise SessionExpiredError("given up, as ZooKeeper has gone back")
        else:
            self._dead = self._handler.is_dead
            if (self._dead or self._handler.session.at_stake) and not self._serves():
                raise ConnectionRefusedError(errno.ECONNREFUSED, "the server is not serving")
        seen = max(zxid, self._handler.session.link.seen)
        if self._dead and self._handler.asks_anew():
            seen = 0
        self._asked = self._fresh = True
        self._answer_by = self._handler.asking(self, self.resumes)
        fields = _HANDSHAKE.pack(length, version, seen, timeout, session)
        return fields + bytes(frame[_HANDSHAKE.size :])

    def _serves(self) -> bool:
        """Ask the server whether it serves, over a separate connection.

        A server that serves only reads takes no session with an ephemeral node.
        """
        if self._another is None:
            return True
        limit = self._handler.per_server_timeout()
        try:
            with self._another(timeout=limit) as sock:
                sock.settimeout(limit)
                said = answer(sock, b"\nNode count")
        except TimeoutError:
            self._handler.was_silent()
            return False
        except ssl.SSLError:
            raise  # a certificate that is refused: kazoo logs that
        except OSError:
            return False
        # Any other answer is enough: the word may be forbidden.
        return bool(said) and NOT_SERVING not in said and ONLY_READS not in said

    # For any thread.

    def shut_down(self) -> None:
        """Let nothing more in or out. Repeatable."""
        try:
            socket.socket.shutdown(self.real, socket.SHUT_RDWR)
        except OSError as error:
            if not raised_by_the_call(error):
                raise
            return  # closed already

    def answered(self, *, serves: bool) -> None:
        """Note the answer to the handshake."""
        self._answer_by = None
        self.may_serve = serves

    def _closed_early(self) -> None:
        """Note the end of the connection, if the handshake is not answered yet."""
        if self._answer_by is None:
            return
        self._answer_by = None
        error = self.end if isinstance(self.end, OSError) else None
        if error is None or isinstance(error, ConnectionError | ssl.SSLError):
            self._handler.turned_away(self.server, self._another, error)
            if self.resumes:
                self._handler.not_resumed(self._dead)
