"""What the core needs of what drives it: a clock, a thread, a socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from zklock._core.timers import Job
from zklock.errors import ClientClosed

if TYPE_CHECKING:
    from zklock._core.attempt import Pending


LONGEST = 0.05
"""Seconds. For how long others read; then they leave what comes to the client's own thread."""


class Reader(Protocol):
    """Who reads what comes: the answer that a thread waits for, or a loop, without an outcome."""

    @property
    def outcome(self) -> object: ...


class Shell(Protocol):
    """Drives a session; see ``zklock._shell``."""

    @property
    def forked(self) -> bool:
        """Whether its threads run in the parent of this process."""

    @property
    def client(self) -> Any:
        """The client that is driven."""

    @property
    def post(self) -> Callable[[Job], object]:
        """What has a job run soon, on the client's own thread, outside of any step.

        It is a function in C: no interrupt can strike before the job is handed over.
        """

    on_real_clock: bool
    """Whether other processes have the same clock."""

    def now(self) -> float:
        """Return the time, in seconds of the clock that the lease runs on."""

    def later(self, job: Job) -> None:
        """Do what ``post`` does, and have that thread wake up."""

    def wake(self) -> None:
        """Have the client's own thread look what is due."""

    def step(self, call: Callable[..., Any], *what: Any) -> Any:
        """Call in a step, and return what it returns: no other thread is in one."""

    def inside(self) -> bool:
        """Whether this thread is in a step: a signal handler or a finalizer interrupts it."""

    def due(self, when: float) -> None:
        """Have ``Session.tick()`` called at that time, or before. From any thread."""

    def drop(self) -> None:
        """Break the present connection, in a step."""

    def is_behind(self) -> bool:
        """Whether the user may have queued requests in kazoo that are not sent yet."""

    def when_sent(self, call: Job) -> None:
        """Call once all that the user has queued in kazoo so far is sent."""

    def thread(self, name: str, turn: Callable[[], float | None]) -> Any:
        """Return a thread for timed work; see ``TimedThread``."""

    def notify(self, calls: Sequence[Callable[[], object]]) -> None:
        """Run users' callbacks, in order, on threads that exist for them. Takes no lock."""

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        """Return how long to wait natively for at most ``seconds``.

        A clock that is not the real one returns no limit, and calls ``wake()`` in time.
        """

    def read_for(self, reader: Reader) -> None:
        """Let this one read what comes, unless a thread does that waits. In a step."""

    def wait(self, pending: Pending[Any], timeout: float | None) -> bool:
        """Wait for an outcome; return whether there is one."""

    reader: Reader | None
    """Who reads what comes, instead of the client's own thread."""

    def lend(self, reader: Reader) -> Any:
        """Let a loop read; return what tells it when, or ``None``: it may not.

        What is returned has a descriptor. It is closed when it is dropped, even by an interrupt.
        The reading is taken from the loop when anybody else waits for an answer, or it has not read
        for a moment: it may stand still.
        """

    def hear(self, reader: Reader) -> bool:
        """Read, if it is for this one to do; return whether it still is."""

    def listen(self, reader: Reader) -> None:
        """Let the client's own thread read again, if this one does. From any thread."""

    def check_process(self) -> None:
        """Raise ``ForkedClient`` in a forked child, ``ZkLockError`` while Python shuts down."""

    def closed_error(self) -> ClientClosed:
        """Return the error to raise when the client is closed."""

    def shaken(self, milliseconds: int, session_id: int, *, read_only: bool) -> None:
        """Take the answer to a handshake; 0 milliseconds: the session has expired."""

    def pinged_back(self) -> None:
        """Take the answer to a ping of kazoo's."""

    def went_back(self, zxid: int) -> None:
        """Give the session up: the server is at an older transaction than was seen.

        Its data were replaced.
        """
