"""What connections that carry zklock's requests beside kazoo's, and their handlers, share.

``riding`` and ``gateway`` differ in who reads and writes, and when. What goes out, under which
number, and what waits behind kazoo's queue is the same for both.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from zklock._ground.clock import clock
from zklock._kazoo.frames import AUTH_XID, Frames
from zklock._kazoo.handler import Handler
from zklock._kazoo.riders import Rider
from zklock._kazoo.socket import _CLOSE, _HEAD, _NUMBER, _PING, Hears, _Socket
from zklock._kazoo.wake import Order


class Carries(Hears, Protocol):
    """What a connection that carries riders needs from its handler."""

    def sent(self) -> None:
        """Note that kazoo has sent a request of its queue."""


class CarryingSocket(_Socket):
    """A connection that passes the frames that are kazoo's to kazoo. ``rides``: it takes riders."""

    def __init__(
        self,
        sock: Any,
        handler: Carries,
        server: str = "",
        another: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(sock, handler, server, another)
        self.rides = False
        self._may_ride = False
        self._carrier = handler
        self.saw, self.goes_back = handler.seen, handler.goes_back
        self._sorted = Frames(self)
        self._end: OSError | bool = False  # of what is received

    @abstractmethod
    def connected(self, milliseconds: int, read_only: bool) -> None:
        """Note the answer to the handshake; 0 milliseconds: the session has expired."""

    @abstractmethod
    def write(self, wake: Order) -> object:
        """Send the riders that stand first in line; on the connection thread."""

    def pinged_back(self) -> None:
        """Note the answer to a ping."""
        self._pinged_back()

    def shut_down(self) -> None:
        self.rides = False
        super().shut_down()

    def _put(self, rider: Rider) -> bool:
        """Put a rider behind what is to be sent, with a number; return whether it can go."""
        if not rider.hear or rider.line is not self or not self.rides:
            return False
        body, number = rider.body, self._carrier.next_xid()
        self._sorted.due.append((number, 0, rider, rider.watch))
        self._held += _NUMBER.pack(len(body) + 4, number) + body
        return True

    def _request(self, frame: bytes) -> bytes:
        if self._asked is None:
            frame = self._shake_hands(frame)
            self._sorted.zxid = self._carrier.seen(0)
            return frame
        if self._fresh:
            self._look_for_proof(frame)
        length, xid, opcode = _HEAD.unpack_from(frame)
        if length == 8 and opcode == _PING:
            self._pinged = clock()
            return frame
        if length == 8 and opcode == _CLOSE:
            self.rides = self._may_ride = False
            self._carrier.closing()
        self._carrier.sent()
        if xid == AUTH_XID:
            self._sorted.due.append((AUTH_XID, AUTH_XID, None, None))
        if xid <= 0:
            return frame
        number = self._carrier.next_xid()
        watch = self._sorted.watches.of_kazoo(opcode, bytes(frame[_HEAD.size :]))
        self._sorted.due.append((number, xid, None, watch))
        return _NUMBER.pack(length, number) + frame[_NUMBER.size :]


class CarryingHandler(Handler):
    """zklock's handler, with connections that carry riders."""

    _riders: Order | None = None

    def __init__(self) -> None:
        super().__init__()
        self._open: set[weakref.ref[Any]] = set()  # results of kazoo's that may not be there yet

    def board(self, rider: Rider) -> None:
        """Put a rider in line, behind what was asked of kazoo before; ``rouse()`` must follow.

        The line may have been closed since the caller looked. Then whoever closed it may not have
        seen this rider.
        """
        riders = self._riders
        if riders is not None:
            riders.board(rider)
        if riders is None or not rider.line.rides:
            rider.drop()

    def async_result(self) -> Any:
        """Return an asynchronous result (``IAsyncResult``), and note it until it is there."""
        result = super().async_result()
        self._open.add(weakref.ref(result, self._open.discard))
        return result

    def _is_asked(self) -> bool:
        """Whether kazoo may have a request in its queue."""
        try:
            while self._open:
                each = next(iter(self._open))
                result = each()
                if result is not None and not result.ready():
                    return True
                self._open.discard(each)
        except (RuntimeError, StopIteration):  # another thread asks
            return True
        return False

    def sent(self) -> None:
        """Note that kazoo has sent a request of its queue."""
        if self._riders is not None:
            self._riders.sent()

    def _write(self, wake: Order) -> None:
        """Write the riders that stand first in line; on the connection thread."""
        if isinstance(self._socket, CarryingSocket):
            self._socket.write(wake)
        else:
            wake.hand_over(_drop)


def _drop(rider: Rider) -> bool:
    rider.drop()
    return True
