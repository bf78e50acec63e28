"""What goes wrong with locks on ZooKeeper: zklock's against kazoo's, which is known to fail.

kazoo's part of a pair is an expected failure, and strict: were kazoo to pass one day, the test
would say so. ``docs/hazards.md`` numbers the hazards.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import struct
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from kazoo.exceptions import CancelledError, LockTimeout, NoNodeError
from kazoo.recipe.lock import Lock as KazooLock

import zklock
from tests.contract.fronts import Behind, Place, Threads
from tests.contract.lasting import LASTING
from tests.contract.support import SOON, Losses, delete, granted, in_another_session, program, run
from tests.stopwatch import Stopwatch
from zklock.testing import FaultProxy, Frame, FrameKind, wait_for

Make = Callable[[Place], Any]


@pytest.fixture
def front() -> Threads:
    return Threads()


class Ours:
    """zklock's lock, as far as both can do it; ``watches``: how many a waiter places."""

    watches = 2

    def __init__(self, place: Place) -> None:
        self.lock: zklock.Lock = place.Lock()
        self.cancel = self.lock.cancel

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        return self.lock.acquire(blocking, timeout) is not None

    def release(self) -> None:
        grant = self.lock.grant
        if grant is not None:
            grant.abandon()

    @property
    def held(self) -> bool:
        return self.lock.held


class Theirs:
    """kazoo's lock, likewise."""

    watches = 1

    def __init__(self, place: Place) -> None:
        self.lock = KazooLock(place.client, place.path, extra_lock_patterns=["-lock-"])
        self.cancel = self.lock.cancel
        self.release = self.lock.release

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        try:
            return bool(self.lock.acquire(blocking, timeout))
        except LockTimeout:
            return False

    @property
    def held(self) -> bool:
        return bool(self.lock.is_acquired)


def against_kazoo(
    hazard: str, raises: type[BaseException] = AssertionError
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the test for zklock, and for kazoo, which fails it by raising this."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        kazoo = pytest.mark.xfail(raises=raises, strict=True, reason=f"{hazard} is kazoo's")
        pair = [pytest.param(Ours, id="zklock"), pytest.param(Theirs, id="kazoo", marks=kazoo)]
        marked = pytest.mark.parametrize("make", pair)(test)
        held: Callable[..., None] = pytest.mark.hazard(hazard)(marked)
        return held

    return decorate


@contextlib.contextmanager
def background(work: Callable[[], object], interval: float = 0.01) -> Iterator[None]:
    """Do it every so many seconds on a thread of its own."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(interval):
            work()

    looping = run(loop)
    try:
        yield
    finally:
        over.set()
        looping.result(SOON)


@against_kazoo("H4")
def test_a_node_of_an_earlier_session_is_not_adopted(
    behind: Behind, theirs: Place, make: Make
) -> None:
    theirs.client.ensure_path(theirs.path)
    lock = make(behind())
    lost = behind.proxy.drop_before_request(
        op={"create", "create2"}, where=lambda frame: str(frame.path).startswith(f"{theirs.path}/")
    )
    looking = behind.proxy.hold_before_request(
        op={"sync", "getChildren"}, where=lambda frame: frame.path == theirs.path
    )
    acquiring = run(lock.acquire, timeout=SOON)
    prefix = lost.wait(SOON).path
    looking.wait(SOON)
    # It looks just like one whose reply was lost before the session was replaced.
    stale = theirs.client.create(prefix, ephemeral=True, sequence=True)
    behind.proxy.release()
    wait_for(lambda: acquiring.done() or len(theirs.nodes()) == 2, SOON)
    assert not acquiring.done()
    theirs.client.delete(stale)
    assert acquiring.result(SOON)
    assert lock.held
    lock.release()
    theirs.passes_on()


@against_kazoo("H6")
def test_a_holder_without_zookeeper_knows_in_time(
    behind: Behind, theirs: Place, make: Make
) -> None:
    lock = make(behind(timeout=4.0))
    assert lock.acquire(timeout=SOON)
    behind.proxy.cut()
    with theirs.Lock():
        assert not lock.held
    behind.proxy.restore()


@against_kazoo("H7")
def test_a_busy_holder_behind_a_black_hole_knows_in_time(
    behind: Behind, theirs: Place, make: Make
) -> None:
    far = behind(timeout=4.0)
    lock = make(far)
    assert lock.acquire(timeout=SOON)
    with background(lambda: far.client.exists_async("/")):
        behind.proxy.blackhole()
        with theirs.Lock():
            assert not lock.held
    behind.proxy.restore()


@pytest.mark.hazard("H7")
def test_a_busy_client_behind_a_black_hole_goes_to_another_server(
    zklock_proxy: FaultProxy, zklock_hosts: str, zklock_connect: Any, zklock_path: str
) -> None:
    with FaultProxy(zklock_hosts) as second:
        client = zklock_connect(
            f"{zklock_proxy.hosts},{second.hosts}", timeout=12.0, randomize_hosts=False
        )
        losses = Losses()
        lock = zklock.Lock(client, zklock_path, on_lost=losses)
        grant = granted(lock)
        assert [connection.open for connection in zklock_proxy.connections] == [True]
        with background(lambda: client.exists_async("/")):
            since = second.mark()
            zklock_proxy.blackhole()
            # A heartbeat that went unanswered for a third of the timeout.
            second.wait_for_frame(lambda frame: frame.op == "multi", SOON, since=since)
            grant.verify(SOON)
        assert grant.held
        assert not losses.losses
        assert second.connections[0].session_id == grant.session_id
        lock.release()
        zklock_proxy.restore()


@against_kazoo("H8", raises=TimeoutError)
def test_not_blocking_means_not_blocking(behind: Behind, make: Make) -> None:
    far = behind()
    lock = make(far)
    behind.proxy.cut()
    wait_for(lambda: not far.client.connected, SOON)
    acquiring: Future[bool] = run(lock.acquire, blocking=False)
    try:
        with Stopwatch() as watch:
            assert watch.result(acquiring, 2.0) is False
    finally:
        behind.proxy.restore()
        acquiring.result(SOON)
        lock.release()


class Interrupted(KeyboardInterrupt):
    """What the signal raises."""


@against_kazoo("H9", raises=TimeoutError)
def test_an_interrupted_acquire_leaves_nobody_behind(
    mine: Place, theirs: Place, make: Make
) -> None:
    lock, holder = make(mine), granted(theirs.Lock())

    def on_signal(*ignored: object) -> None:
        raise Interrupted

    def interrupt() -> None:
        theirs.queued(2)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        interrupting = run(interrupt)
        with pytest.raises(Interrupted):
            lock.acquire()
        interrupting.result(SOON)
    finally:
        signal.signal(signal.SIGUSR1, before)
    wait_for(lambda: len(theirs.nodes()) == 1, 2.0)
    holder.release()


@against_kazoo("H10", raises=TimeoutError)
def test_the_timeout_covers_the_whole_call(mine: Place, other: Any, make: Make) -> None:
    other.ensure_path(mine.path)
    before = [
        other.create(f"{mine.path}/{uuid.uuid4().hex}__lock__", ephemeral=True, sequence=True)
        for _ in range(40)
    ]
    acquiring: Future[bool] = run(make(mine).acquire, timeout=4.0)
    mine.queued(41)

    def wake() -> None:
        if not acquiring.done() and len(before) > 1:
            other.delete(before.pop())

    with background(wake, interval=0.3), Stopwatch() as watch:
        assert watch.result(acquiring, 8.0) is False


@against_kazoo("H11", raises=CancelledError)
def test_a_cancel_is_over_once_it_is_done(mine: Place, make: Make) -> None:
    lock = make(mine)
    lock.cancel()
    assert lock.acquire(timeout=SOON)
    lock.release()


@against_kazoo("H12")
def test_a_lost_connection_does_not_send_every_waiter_to_the_queue(
    behind: Behind, theirs: Place, make: Make
) -> None:
    far = behind()
    with theirs.Lock():
        locks = [make(far) for _ in range(3)]

        def replies(frames: Sequence[Frame], *ops: str) -> int:
            return sum(frame.kind is FrameKind.REPLY and frame.op in ops for frame in frames)

        waiting = [run(lock.acquire, timeout=SOON) for lock in locks]
        watches = sum(lock.watches for lock in locks)
        behind.proxy.wait_until(lambda: replies(behind.proxy.frames, "getData") >= watches, SOON)
        before = len(behind.proxy.frames)
        behind.proxy.drop()

        def again(*ops: str) -> int:
            """Count what was answered on the connections after the first one."""
            return replies(behind.proxy.frames[before:], *ops)

        def listings() -> int:
            return again("getChildren", "getChildren2")

        behind.proxy.wait_until(lambda: listings() > 0 or again("getData") >= watches, SOON)
        listed = listings()
        for lock in locks:
            lock.cancel()
        for each in waiting:
            each.exception(SOON)
    assert listed == 0


@against_kazoo("H13", raises=NoNodeError)
def test_a_parent_that_was_removed_is_made_again(mine: Place, theirs: Place, make: Make) -> None:
    lock = make(mine)
    for _ in range(2):
        assert lock.acquire(timeout=SOON)
        lock.release()
        theirs.gone()
        theirs.client.delete(theirs.path)


@LASTING
@against_kazoo("H14")
def test_what_has_timed_out_is_forgotten(mine: Place, theirs: Place, make: Make) -> None:
    with theirs.Lock():
        left = []
        for _ in range(20):
            lock = make(mine)
            assert lock.acquire(timeout=0.02) is False
            left.append(weakref.ref(lock.lock))
            del lock
        theirs.queued(1)
        mine.client.exists(mine.path)  # answered after everything that the locks have asked
        gc.collect()
        assert [lock() for lock in left] == [None] * 20


FORK = """
import os, sys
import zklock
from tests.contract.test_hazards import Ours, Place, Theirs, Threads

client = zklock.connect(sys.argv[2], timeout=20.0)
lock = globals()[sys.argv[1]](Place(Threads(), client, sys.argv[3]))
assert lock.acquire(timeout=20.0)
child = os.fork()
if child == 0:
    os.write(1, b"child: held\\n" if lock.held else b"child: not held\\n")
    os._exit(0)
os.waitpid(child, 0)
print("parent: held" if lock.held else "parent: not held")
lock.release()
client.stop()
"""


@against_kazoo("H15")
def test_a_forked_child_does_not_hold_its_parents_lock(
    zklock_hosts: str, zklock_path: str, make: Make
) -> None:
    told = program("-c", FORK, make.__name__, zklock_hosts, zklock_path, timeout=3 * SOON)
    assert told.stdout.splitlines() == ["child: not held", "parent: held"], told.stderr


@against_kazoo("H16", raises=TimeoutError)
def test_a_holder_whose_node_is_deleted_knows(mine: Place, theirs: Place, make: Make) -> None:
    lock = make(mine)
    assert lock.acquire(timeout=SOON)
    (node,) = theirs.nodes()
    theirs.client.delete(f"{mine.path}/{node}")
    wait_for(lambda: not lock.held, 2.0)


class Forgetful:
    """Passes connections on to a server, asking for a new session on all but the first.

    As servers do that hand out a new session where ZooKeeper says that the old one has expired.
    What is no handshake (a four-letter word) passes as it is.
    """

    _REQUEST = struct.Struct(">iiqiqi16s")  # length, version, zxid, timeout, session, password

    def __init__(self, hosts: str) -> None:
        host, port = hosts.split(":")
        self._server = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        self.hosts = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._known = False
        self._accepting = run(self._accept)

    def drop(self) -> None:
        for each in self._open[1:]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.result(SOON)
        self.drop()
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                run(self._begin, client, server)

    def _begin(self, client: socket.socket, server: socket.socket) -> None:
        begin = client.recv(4, socket.MSG_WAITALL)
        if begin and begin[0] == 0:
            begin += client.recv(self._REQUEST.size - 4, socket.MSG_WAITALL)
            *header, session, size, password = self._REQUEST.unpack(begin)
            if self._known:
                session, password = 0, bytes(16)
            self._known = True
            begin = self._REQUEST.pack(*header, session, size, password)
        with contextlib.suppress(OSError):
            server.sendall(begin)
        run(self._pass_on, client, server)
        run(self._pass_on, server, client)

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def forgetful(zklock_hosts: str) -> Iterator[Forgetful]:
    with contextlib.closing(Forgetful(zklock_hosts)) as relay:
        yield relay


@pytest.fixture
def forgotten(front: Threads, forgetful: Forgetful, zklock_connect: Any, zklock_path: str) -> Place:
    """The path of the test, for a client behind it."""
    return Place(front, zklock_connect(forgetful.hosts, timeout=10.0), zklock_path)


@against_kazoo("H17", raises=TimeoutError)
def test_a_session_that_is_replaced_unannounced_is_lost(
    forgetful: Forgetful, forgotten: Place, make: Make
) -> None:
    lock, client = make(forgotten), forgotten.client
    assert lock.acquire(timeout=SOON)
    states: list[str] = []
    client.add_listener(states.append)
    session = client.client_id[0]
    forgetful.drop()
    wait_for(lambda: in_another_session(client, session), SOON)
    assert "LOST" not in states
    wait_for(lambda: not lock.held, 2.0)


@pytest.mark.hazard("H17")
def test_a_loss_with_a_session_that_is_replaced_unannounced_says_so(
    forgetful: Forgetful, forgotten: Place
) -> None:
    losses = Losses()
    granted(forgotten.Lock(on_lost=losses))
    forgetful.drop()
    assert losses.one().reason is zklock.LossReason.SESSION_EXPIRED


@pytest.mark.hazard("H17")
def test_a_waiter_whose_session_is_replaced_unannounced_queues_again(
    forgetful: Forgetful, forgotten: Place, theirs: Place
) -> None:
    holder = granted(theirs.Lock())
    waiting = theirs.waits(forgotten.Lock(), 2)
    first = theirs.nodes()[1]
    forgetful.drop()
    second = theirs.queued(3)[2]
    holder.release()
    grant = waiting.result(SOON)  # once the first session, and its node, are gone
    assert grant.path == f"{theirs.path}/{second}"
    assert first not in theirs.nodes()
    grant.release()


@pytest.mark.hazard("H21")
@pytest.mark.parametrize("others", [1, 2])
def test_no_grant_on_a_node_that_is_gone(behind: Behind, theirs: Place, others: int) -> None:
    granted(theirs.Lock())
    for number in range(2, others + 1):
        theirs.waits(theirs.Lock(), number).add_done_callback(lambda it: it.result().abandon())
    losses = Losses()
    waiting = theirs.waits(behind().Lock(on_lost=losses), others + 1)
    *_, before, own = theirs.nodes()
    last = own if others == 1 else before  # behind several, it does not watch its own
    behind.proxy.wait_for_frame(
        lambda frame: (
            (frame.kind, frame.op, frame.path)
            == (FrameKind.REPLY, "getData", f"{theirs.path}/{last}")
        ),
        SOON,
    )
    behind.proxy.hold(to_server=False)
    theirs.client.delete(f"{theirs.path}/{own}")
    for name in theirs.nodes():
        delete(theirs.client, f"{theirs.path}/{name}")
    behind.proxy.release()
    grant = waiting.result(SOON)
    assert grant.path != f"{theirs.path}/{own}"
    grant.verify()
    assert not losses.losses
    grant.release()
