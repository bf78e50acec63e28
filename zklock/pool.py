"""A pool of workers that share out shards of work, each shard under a lock of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from concurrent.futures import ThreadPoolExecutor as Threads
from queue import Empty, SimpleQueue
from types import TracebackType

from zklock.clock import clock
from zklock.connection import check_thread
from zklock.grant import Grant
from zklock.membership import Ask, Await, Membership, PoolMember, Reporting, Script, ShardOwner, T

_CALLBACKS = 64  # run at a time

_TURN = 0.2
"""Seconds, at most, that a thread waits at a time: several may wait, and one of them is woken."""


class _ShardGrant(Reporting, Grant):
    """A grant that tells its slot of its loss."""


class WorkerPool(Membership[Grant]):
    """One worker of a pool: it runs its share of the shards.

    ``client``: a started ``KazooClient``, best from :func:`zklock.connect`. ``path``: the pool's
    own znode, created where missing. ``shards``: how many there are, 1 to 65536, if the pool is
    new; else the number that is kept in ZooKeeper holds, see :meth:`set_shards`. ``identity``: text
    by which others know this worker, by default ``host:pid:`` and a random part; workers should
    differ in it. ``capacity``: this worker's weight, above 0; its share of the shards is in
    proportion.

    ``on_assigned(shard, grant)``: called with the number of a shard and its grant once this worker
    owns it. ``on_revoked(shard, grant)``: called once it is to be handed over; the shard is
    released when this has returned, and the handler has. It is called, too, when the grant is lost
    (``grant.held`` is then false): another worker may own the shard already. Both run on threads
    of zklock's own, at most 64 at a time; an exception in one is logged.

    ``handler(shard)``: called with a :class:`Shard` once this worker owns it, after
    ``on_assigned``. It is to return soon after ``shard.should_stop`` is set; if it returns earlier,
    the shard stays owned, and is not handled again until it is owned anew. ``executor``: where it
    runs: ``"threads"``, ``"processes"`` (one for each shard that runs, spawned), ``"asyncio"`` (a
    loop on a thread of its own), any executor of ``concurrent.futures``, or a running event loop;
    by default ``"asyncio"`` for coroutine functions, else ``"threads"``. With an executor that runs
    fewer at a time than there are shards, the others wait for their handler, owned. ``on_error``:
    after an exception in the handler, which is logged, ``"retry"`` calls it again after a pause
    that grows with every failure in a row, ``"stop"`` does not, and the shard stays owned.
    ``retry``: the first and the longest pause, in seconds. ``LockLost`` of a shard that is lost
    counts as a return. A coroutine function is cancelled if the shard is lost.

    ``settle``: seconds that the leader waits for further news before it assigns shards anew.
    ``session_timeout`` and ``lease_fraction`` as for ``Lock``.

    The constructor asks nothing of ZooKeeper. :meth:`start` and :meth:`stop`, or ``with pool:``.

    *Not guaranteed:* that two workers never act on a shard at one instant. A worker that is paused
    acts on when it goes on, until it looks. What must not be written late has to be guarded by
    the token.
    """

    _GRANT = _ShardGrant

    def _set_up(self) -> None:
        self._news: SimpleQueue[None] = SimpleQueue()

    def start(self) -> None:
        """Join the pool; shards come soon.

        Raises what ``Lock.contenders()`` does; ``ZkLockError`` if it was started before.
        """
        self._play("start()", self._start(None))

    def stop(self, timeout: float | None = 30.0) -> None:
        """Leave the pool: hand over all shards, and return when that is done.

        Handlers are told to stop, ``on_revoked`` is called, and each shard is released when both
        have returned. If they have not within ``timeout`` seconds, raises ``PoolStuck``: what
        they work on stays owned until they do, and ``stop()`` may be called again. What
        ZooKeeper does not answer goes on in the background, and so does all of it after an
        interrupt. A handler that calls it waits for itself.
        """
        self._play("stop()", self._stop(timeout))

    def drain(self, timeout: float | None = None) -> bool:
        """Give up all shards, and take no others, while staying in the pool.

        Waits until none is owned any more; ``False`` if that was not within ``timeout`` seconds,
        while it goes on. If all workers of the pool drain, nobody owns the shards.
        """
        return self._play("drain()", self._drain(timeout))

    def set_shards(self, shards: int, timeout: float | None = None) -> None:
        """Change the number of shards of the pool, for all workers and those to come.

        Those that are there stay where they are, as far as the balance allows; with a lower number
        the last ones are given up. Raises ``NoAnswer`` after ``timeout`` seconds, by default the
        session timeout; asking again is safe.
        """
        self._play("set_shards()", self._set_shards(shards, timeout))

    def assignment(self, timeout: float | None = None) -> list[ShardOwner]:
        """Return for each shard who is to have it and who has it, in the order of their numbers.

        What is owned is as the workers have said last; they do so a tenth of a second after a
        change. Costs three reads for each worker, whatever the number of shards, and
        ``NoAnswer`` after ``timeout`` seconds, by default the session timeout. Asks through the
        leader of ZooKeeper. Needs no :meth:`start`.
        """
        return self._play("assignment()", self._assignment(timeout))

    def members(self, timeout: float | None = None) -> list[PoolMember]:
        """Return the live workers, by identity. Costs and errors as of :meth:`assignment`."""
        return self._play("members()", self._members(timeout))

    def __enter__(self) -> WorkerPool:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # Inside.

    def _new_callbacks(self) -> Executor:
        return Threads(_CALLBACKS, "zklock-shard-callback")

    def _heard(self) -> None:
        if self._news.empty():
            self._news.put(None)

    def _play(self, what: str, script: Script[T]) -> T:
        check_thread(what)
        try:
            step = next(script)
            while True:
                try:
                    told = self._do(step)
                except BaseException as error:
                    step = script.throw(error)
                else:
                    step = script.send(told)
        except StopIteration as end:
            outcome: T = end.value
            return outcome

    def _do(self, step: Ask | Await) -> object:
        if isinstance(step, Ask):
            return self._session.ask(step.make, self._path, step.timeout)
        return self._await(step.done, step.until)

    def _await(self, done: Callable[[], bool], until: float) -> bool:
        # Not an Event: an interrupt in the middle of waiting for one leaves it locked.
        while not done():
            left = until - clock()
            if left <= 0:
                return False
            with contextlib.suppress(Empty):
                self._news.get(timeout=min(left, _TURN))
        return True
