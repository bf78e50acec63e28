"""What a test makes an embedded server do wrong, once. Standing faults are in `server`."""

from __future__ import annotations

import enum
import threading
from collections.abc import Collection

from zklock._ground.numbers import check_int
from zklock.testing.zookeeper.codec import REQUESTS, Op
from zklock.testing.zookeeper.messages import Auth, Ping, Request, SetWatches, Unknown

_COUNTED_IF_NAMED = (Auth, Ping, SetWatches)


class Trouble(enum.Enum):
    THROTTLED = "throttled"
    REQUEST_LOST = "request lost"
    REPLY_LOST = "reply lost"


class ScriptedFault:
    """A fault that waits for its request; ``fired`` is set when the last of its work is done.

    ``struck`` counts the requests that it has struck so far.
    """

    def __init__(self, trouble: Trouble, ops: Collection[str] | str | None, n: int) -> None:
        check_int("n", n, 1)
        self._ops = None if ops is None else {ops} if isinstance(ops, str) else set(ops)
        known = {op.title for op in Op if op in REQUESTS}
        if unknown := (self._ops or set()) - known:
            raise ValueError(
                f"no operation {', '.join(sorted(unknown))}: use {', '.join(sorted(known))}"
            )
        self.trouble = trouble
        self.fired = threading.Event()
        self.struck = 0
        self._left = n

    def __repr__(self) -> str:
        state = "fired" if self.fired.is_set() else "armed"
        return f"<ScriptedFault {self.trouble.value}: {state}>"

    @property
    def armed(self) -> bool:
        """Whether it waits for a request."""
        return self._left > 0

    def strikes(self, request: Request) -> bool:
        """Count this request; whether the fault strikes it."""
        if isinstance(request, Unknown) or not self.armed:
            return False
        if self._ops is None and isinstance(request, _COUNTED_IF_NAMED):
            return False
        if self._ops is not None and request.op.title not in self._ops:
            return False
        self._left -= 1
        self.struck += 1
        return True

    def done(self) -> None:
        """Note that the work on a struck request is done."""
        if not self.armed:
            self.fired.set()

    def wait(self, timeout: float) -> None:
        """Return when it has fired; `TimeoutError` after ``timeout`` seconds."""
        if not self.fired.wait(timeout):
            raise TimeoutError(f"{self!r} has not fired in {timeout} s")

    def cancel(self) -> None:
        """Disarm it; what it has struck already is not undone."""
        self._left = 0


class Scripted:
    """What carries out scripted faults: an embedded server, or a simulation of one."""

    def _script(self, fault: ScriptedFault) -> ScriptedFault:
        raise NotImplementedError

    def throttle(self, op: Collection[str] | str | None = None, n: int = 1) -> ScriptedFault:
        """Answer the next ``n`` requests by ThrottledOp: they are not carried out.

        ``op`` is ZooKeeper's name of an operation, or several: ``"create2"``, ``"delete"``.
        """
        return self._script(ScriptedFault(Trouble.THROTTLED, op, n))

    def lose_request(self, op: Collection[str] | str | None = None, n: int = 1) -> ScriptedFault:
        """Close the connection instead of carrying out the next request, ``n`` times."""
        return self._script(ScriptedFault(Trouble.REQUEST_LOST, op, n))

    def lose_reply(self, op: Collection[str] | str | None = None, n: int = 1) -> ScriptedFault:
        """Carry out the next request and close the connection instead of answering, ``n`` times."""
        return self._script(ScriptedFault(Trouble.REPLY_LOST, op, n))
