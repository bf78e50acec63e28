"""The sockets for kazoo: they read ahead, and inspect the traffic."""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import socket
import ssl
import struct
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from kazoo.exceptions import (
    EXCEPTIONS,
    APIError,
    AuthFailedError,
    SessionClosedRequireSaslError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError

from zklock._ground.clock import clock
from zklock._ground.records import log_fields
from zklock._ground.strikes import of_the_call
from zklock._kazoo.refusals import NOT_SERVING, Refusal, answer

log = logging.getLogger("zklock")

_CHUNK = 65536
_PING_XID, _AUTH_XID = -2, -4
_PING, _CLOSE = 11, -11  # opcodes of the requests that consist only of a header
_SASL = 102
_NUMBER = struct.Struct(">ii")  # length; xid
_REPLY = struct.Struct(">iiqi")  # length; xid, zxid, error
_TIMEOUT = 32  # where the timeout begins in what stands for the zxid in the first frame
_CODE = struct.Struct(">i")
_HEAD = struct.Struct(">iii")  # length; xid, opcode or error … or protocol version, timeout …
_ERROR = slice(12, 16)  # of a reply without its length
_REQUIRED = _CODE.pack(SessionClosedRequireSaslError.code)
_HANDSHAKE = struct.Struct(">iiqiq")  # length; version, last zxid, timeout, session

LONGEST_FIRST = 4096
"""The most bytes that the answer to a handshake may have; ZooKeeper sends 37."""
_LATER = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError
_SILENT = "accepts connections, and says nothing"
_CUT = "the connection was cut while the server looked at the credentials"


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
    """A connected socket that reads ahead, and reports to the handler what its frames show.

    Requests are sent with the handler's numbers; replies are passed on with kazoo's numbers. A
    socket without a handshake carries no frames (it is for a four-letter word). It does not read
    ahead, and the handler does not hear of it.
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
        self._held = bytearray()
        self._unsent = memoryview(b"")
        self._buffer = memoryview(b"")
        self._arrived = False
        self._frames = _Frames(
            self._connected, self._pinged_back, self._reply, handler.goes_back, self._authenticated
        )
        self._xids: deque[tuple[int, int]] = deque()  # of requests: as sent, and kazoo's
        self._asked: float | None = None
        self._resumes = False
        self._dead = False  # the session must be dead, and the server serves
        self._answer_by: float | None = None  # while the handshake is not answered
        self._pinged: float | None = None
        self._fresh = False  # only SASL has been asked since the handshake
        self._proving = False  # the last request was one of SASL

    def send(self, data: Any) -> int:
        # kazoo sends one frame at a time, or the rest of a frame that was not taken whole.
        if not self.eager:
            if not self._unsent:
                self._unsent = memoryview(self._request(bytes(data)))
            sent = int(self._sock.send(self._unsent))
            self._unsent = self._unsent[sent:]
            return sent
        self._held += self._request(data)
        if self._proving or self._handler.waiting < 2 or len(self._held) > _CHUNK:
            self.flush()  # else with the next one
        return len(data)

    def flush(self) -> None:
        """Send the requests that were held back."""
        while self._held:
            try:
                sent = int(self._sock.send(self._held))
            except BlockingIOError:
                if not self._ready(select.POLLOUT):
                    raise TimeoutError("the server takes no more requests") from None
            except ConnectionError as error:
                self._closed_early(error)
                raise
            else:
                del self._held[:sent]

    def recv(self, size: int) -> bytes:
        if self._asked is None:
            return bytes(self._sock.recv(size))
        if self._proving:
            return self._proved(size)
        self._arrived = False
        while not self._buffer and not self._frames.broken:
            try:
                chunk = self._sock.recv(max(size, _CHUNK))
            except OSError as error:
                self._closed_early(error)
                raise
            if not chunk:
                self._closed_early()
                return b""
            self._buffer = memoryview(self._frames.feed(chunk))
            if not self._buffer and not self._frames.broken and not self._ready(select.POLLIN):
                raise TimeoutError("the server stopped in the middle of a reply")
        if self._frames.broken:
            self._closed_early()
        data = bytes(self._buffer[:size])
        self._buffer = self._buffer[size:]
        return data

    def _closed_early(self, error: OSError | None = None) -> None:
        """Note the end of the connection, if the handshake is not answered yet."""
        if self._answer_by is None or isinstance(error, _LATER):
            return
        if error is None or isinstance(error, ConnectionError | ssl.SSLError):
            self._handler.turned_away(self.server, self._another, error)
            if self._resumes:
                self._handler.not_resumed(self._dead)

    def _proved(self, size: int) -> bytes:
        """Receive the answer to credentials.

        kazoo takes the end of the connection here for a refusal, and gives the client up for good.
        Servers since ZooKeeper 3.6 answer when they refuse. So an end without an answer is told as
        a time-out: then kazoo connects again.
        """
        self._proving = False
        try:
            data = self.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise  # kazoo tries again
        except OSError as error:
            raise KazooTimeoutError(_CUT) from error
        finally:
            self._proving = True
        if not data:
            raise KazooTimeoutError(_CUT)
        if data[_ERROR] == _REQUIRED:  # kazoo knows one refusal; another one ends its thread
            data = data[: _ERROR.start] + _CODE.pack(AuthFailedError.code) + data[_ERROR.stop :]
        return data

    def arrived(self) -> None:
        """Note that there is data to receive."""
        self._arrived = True

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

    def pending(self) -> int:
        left = len(self._buffer) or int(self._arrived or self._frames.broken)
        return left + int(self._below()) if self._below is not None else left

    def _ready(self, event: int) -> bool:
        if event == select.POLLIN and self._below is not None and self._below():
            return True
        poll = select.poll()
        poll.register(self._sock, event)
        answered = self._handler.session_timeout
        limit = self.patience(None) if event == select.POLLIN or not answered else answered / 3
        return bool(poll.poll(None if limit is None else limit * 1000))

    def _request(self, frame: bytes) -> bytes:
        """Inspect a whole request; return it with a number of its own."""
        if self._asked is None:
            return self._shake_hands(frame)
        if self._fresh:
            self._look_for_proof(frame)
        length, xid = _NUMBER.unpack_from(frame)
        if len(frame) == _HEAD.size:
            opcode = _HEAD.unpack(frame)[2]
            if (length, opcode) == (8, _PING):
                self._pinged = clock()
            elif (length, opcode) == (8, _CLOSE):
                self._handler.closing()
        if xid == _AUTH_XID:
            self._xids.append((xid, xid))
        if xid <= 0:
            return frame
        self._xids.append((self._handler.next_xid(), xid))
        return _NUMBER.pack(length, self._xids[-1][0]) + frame[_NUMBER.size :]

    def _shake_hands(self, frame: bytes) -> bytes:
        """Inspect the handshake; return it with the highest zxid that the client has seen.

        kazoo does not see the replies to riders. Without this it would take up the session at a
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

    def _reply(self, xid: int, zxid: int) -> int | None:
        """Return kazoo's number of the answered request; ``None``: the reply is out of order."""
        if self._xids and self._xids[0][0] == xid:
            self._handler.seen(zxid)
            return self._xids.popleft()[1]
        due = self._xids[0][0] if self._xids else "none"
        log.warning(
            "the server answered request %s instead of %s: connection dropped",
            xid,
            due,
            extra=log_fields(),
        )
        return None

    def _authenticated(self) -> bool:
        """Return whether an answer to credentials is due; it is not any more then."""
        due = bool(self._xids) and self._xids[0][0] == _AUTH_XID
        if due:
            self._xids.popleft()
        return due

    def shut_down(self) -> None:
        try:
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            return  # closed already

    def _connected(self, milliseconds: int) -> None:
        self._answer_by = None
        if milliseconds > 0 and self._asked is not None:  # 0: the session has expired
            self._handler.connected(self._asked, milliseconds / 1000, self._resumes)

    def _pinged_back(self) -> None:
        if self._pinged is not None:
            self._handler.pinged(self._pinged, clock())
            self._pinged = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class _Frames:
    """Finds the first frame, the answers to pings, and replies, in a stream of frames.

    Each frame starts with its length. An error code that kazoo does not know would end kazoo's
    connection thread: it is replaced.

    ``reply(xid, zxid)`` returns the number that replaces the reply's number, or ``None`` to end the
    stream before this reply. The stream is ``broken`` then. So it is before an answer whose zxid
    ``goes_back``.

    ``auth()`` returns whether an answer to credentials is due. One that comes early is held back,
    see ``frames``.
    """

    def __init__(
        self,
        first: Callable[[int], None],
        ping: Callable[[], None],
        reply: Callable[[int, int], int | None],
        goes_back: Callable[[int], bool],
        auth: Callable[[], bool],
    ) -> None:
        self.broken = False
        self._auth = auth
        self._early: deque[bytes] = deque()
        self._first: Callable[[int], None] | None = first
        self._ping = ping
        self._reply = reply
        self._goes_back = goes_back
        self._partial = b""
        self._skip = 0

    def feed(self, chunk: bytes) -> bytes | bytearray:
        """Take received data; return what to pass on, which never ends inside a header."""
        data = bytearray(self._partial + chunk) if self._partial else bytearray(chunk)
        at = self._skip
        while True:
            if self._early and at <= len(data) and self._auth():
                data[at:at] = self._early.popleft()
                at += _REPLY.size
            if len(data) - at < _REPLY.size:
                break
            length, xid, zxid, code = _REPLY.unpack_from(data, at)
            if self._first is not None:
                if not 0 <= length <= LONGEST_FIRST:
                    self.broken = True
                    return b""
                first, self._first = self._first, None
                first(zxid >> _TIMEOUT)
            elif (xid == _PING_XID or xid > 0) and self._goes_back(zxid):
                self.broken = True
                return data[:at]
            elif xid == _PING_XID:
                self._ping()
            elif xid == _AUTH_XID and not code and not self._auth():
                self._early.append(bytes(data[at : at + _REPLY.size]))
                del data[at : at + _REPLY.size]  # it has no body
                continue
            elif xid > 0:
                number = self._reply(xid, zxid)
                if number is None:
                    self.broken = True
                    return data[:at]
                _NUMBER.pack_into(data, at, length, number)
                if code and code not in EXCEPTIONS:
                    log.warning(
                        "ZooKeeper answered with the unknown error code %s",
                        code,
                        extra=log_fields(),
                    )
                    _CODE.pack_into(data, at + _REPLY.size - _CODE.size, APIError.code)
            at += 4 + length
        self._skip = max(0, at - len(data))
        self._partial = bytes(data[at:])
        return data if not self._partial else data[:at]


def is_closed(error: OSError) -> bool:
    """Whether a wake-up raised it because its sockets are closed; else a signal handler did."""
    return error.errno == errno.EBADF


class Wakes(Protocol):
    """What kazoo takes for the reading end of a socket pair."""

    def pending(self) -> int:
        """Return how many wake-ups were not taken yet."""

    def recv(self, size: int) -> bytes:
        """Take one wake-up; return something."""

    def wake(self) -> None:
        """Wake kazoo's connection thread for one request of its queue."""

    def close(self) -> None:
        """Close what it has open."""


class _WakeReader:
    """The reading end of a wake-up counter; readable while the count is not zero.

    No lock is taken: a wake-up may come from a signal handler that has interrupted another wake-up.
    """

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        # A client may be stopped without being closed. No __del__: the sockets may be finalized
        # before it is called, and would warn that they are not closed.
        weakref.finalize(self, _close, self._write, self._read).atexit = False
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._tokens: deque[None] = deque()  # one for each wake-up that was not taken yet
        self.fileno = self._read.fileno

    def pending(self) -> int:
        return len(self._tokens)

    def arrived(self) -> None:
        """Do nothing: the count already tells it."""

    def flush(self) -> None:
        """Do nothing: this end only reads."""

    def recv(self, size: int) -> bytes:
        """Take one wake-up; with the last one, receive the bytes that make the socket readable."""
        if self._tokens:
            self._tokens.popleft()
        if not self._tokens:
            # A wake-up that comes in between is already counted; the count is read before polling.
            with contextlib.suppress(BlockingIOError):
                while len(self._read.recv(_CHUNK)) == _CHUNK:
                    pass
        return b"\0"

    def wake(self) -> None:
        """Count first, then send: when the byte is received, it is already counted."""
        self._tokens.append(None)
        try:
            self._write.send(b"\0")
        except BlockingIOError as error:
            if not of_the_call(error):
                raise
            return  # full: it is readable already

    def close(self) -> None:
        # In this order: with its peer closed, the writing end would break instead of being closed.
        _close(self._write, self._read)


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        each.close()


class _WakeWriter:
    """The writing end: never blocks; kazoo's own would block after some 280 unsent requests."""

    def __init__(self, reader: Wakes) -> None:
        self._reader = reader

    def send(self, data: bytes) -> int:
        self._reader.wake()
        return len(data)

    def close(self) -> None:
        self._reader.close()
