"""A pool of workers that share shards of work, each shard under a lock of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from zklock._core.blocking import BLOCKING, run
from zklock._election.membership import MembershipChange
from zklock._election.observers import Mail, MembershipChanges, Observer
from zklock._ground.context_exit import EntersContext, entered
from zklock._ground.interrupts import raised_by_zklock
from zklock._ground.public import public
from zklock._locks.grant import Grant
from zklock._pool.member import Membership
from zklock._pool.own_threads import OwnThreads
from zklock._pool.slot import Reporting
from zklock._pool.views import PoolMember, PoolWorker, ShardOwner
from zklock._pool.worker import StartCall
from zklock.errors import ForkedClient, WouldDeadlock

_CALLBACKS = 64  # that run at a time


class _ShardGrant(Reporting, Grant):
    """A grant that tells its slot of its loss."""


@public
class WorkerPool(EntersContext, Membership[Grant]):
    """One worker of a pool: it runs its share of the shards.

    ``client``: a started client of :func:`zklock.connect`, or of kazoo with ``zklock.Handler``.
    ``path``: the pool's own znode, created if it is missing. ``shards``: the shards of a new pool:
    their number, 1 to 65536, or their names, at most 16384, different, 262144 bytes together. For
    an existing pool, what is stored in ZooKeeper counts, see :meth:`set_shards`. A pool has numbers
    or names, for good. ``identity``: text by which others know this worker, by default
    ``host:pid:`` and a random part. Workers should have different identities. ``payload``: at most
    16384 bytes (text as UTF-8) for others to read, such as an address. ``capacity``: this worker's
    weight, above 0. Its share of the shards is in proportion.

    ``on_assigned(shard, grant)``: called with the number or name of a shard and its grant once this
    worker owns it. ``on_revoked(shard, grant)``: called once the shard has to be handed over. The
    shard is released when both this callback and the handler have returned. ``on_revoked`` is also
    called when the grant is lost (``grant.held`` is then false): another worker may own the shard
    already. Both callbacks run on zklock's own threads, at most 64 at a time. An exception in one
    is logged.

    ``handler(shard)``: called with a :class:`Shard` once this worker owns it, after
    ``on_assigned``. It has to return soon after ``shard.should_stop`` is set. If it returns
    earlier, the shard stays owned, and is not handled again until it is owned anew.

    ``executor``: where the handler runs. ``"threads"``; ``"processes"`` (one for each shard that
    runs, spawned: the script needs ``if __name__ == "__main__":``); ``"asyncio"`` (a loop on a
    thread of its own); an executor of ``concurrent.futures`` that runs threads; or a running event
    loop. The default is ``"asyncio"`` for coroutine functions, else ``"threads"``. If an executor
    runs fewer handlers at a time than there are shards, the other shards are owned, and wait for
    their handler.

    ``on_error``: what follows an exception in the handler, which is logged. ``"retry"`` calls it
    again after a pause that grows with every failure in a row. ``"stop"`` does not, and the shard
    stays owned. ``retry``: the first and the longest pause, in seconds. ``LockLost`` and
    ``StaleToken`` of a shard that is lost count as a return.

    If the shard is lost, a coroutine function is cancelled. A process gets SIGTERM 10 seconds after
    the loss, and SIGKILL 5 seconds later. A handler that is not called because its executor is
    broken or shut down has not failed: this worker then gives its shards up (``drain()``).

    ``settle``: seconds that the leader waits for further news before it assigns shards anew.
    ``session_timeout`` and ``lease_fraction``: as for ``Lock``.

    The constructor sends no request. Use :meth:`start` and :meth:`stop`, or ``with pool:``.

    *Not guaranteed:* that two workers never act on a shard at the same instant. A worker that was
    paused acts on when it resumes, until it checks. Use the token to fence every write that must
    not come late.
    """

    _FRONT = BLOCKING
    _MAIL = Mail
    _GRANT = _ShardGrant

    def start(self) -> None:
        """Join the pool; shards come soon.

        If it is interrupted, the worker has not joined, or leaves again in the background. Raises
        the same errors as ``Lock.contenders()``, among them ``AccessDenied`` if ACLs forbid this
        worker to join: then it may be started again. Raises ``ZkLockError`` if the pool was started
        before, if what ZooKeeper says of the shards cannot be read (:meth:`set_shards` repairs it),
        if the pool has names and ``shards`` was a number, or the other way round, or if no thread
        can be started for the pool. Raises ``RuntimeError`` in a process that is being spawned.
        """
        self._start_by(StartCall())

    def stop(self, timeout: float | None = 30.0) -> None:
        """Leave the pool: hand over all shards, and return when that is done.

        Handlers are told to stop, and ``on_revoked`` is called. Each shard is released when both
        have returned. If they have not within ``timeout`` seconds, raises ``PoolStuck``. Their
        shards then stay owned until they return, and ``stop()`` may be called again. If ZooKeeper
        does not answer, the rest continues in the background. After an interrupt all of it does. A
        handler must not call ``stop()``: it would wait for itself. In a forked child, whose parent
        has the worker, it raises ``ForkedClient``, and the end of ``with pool:`` does nothing.
        """
        try:
            run(self._stop, timeout)
        except raised_by_zklock(TypeError, ValueError, WouldDeadlock, ForkedClient):
            raise  # stop() was refused
        except BaseException:
            try:
                self._worker.depart()
            finally:  # a second interrupt may have struck in it
                self._worker.depart()
            raise

    def drain(self, timeout: float | None = None) -> bool:
        """Give up all shards, and take no others, while staying in the pool.

        Waits until this worker owns no shard, or has left. Returns ``False`` if that took longer
        than ``timeout`` seconds; the draining goes on. After ``True`` no handler begins before
        :meth:`resume`. If all workers of the pool drain, nobody owns the shards. A handler may call
        only ``drain(timeout=0)``: otherwise it would wait for itself.
        """
        return run(self._drain, timeout)

    def set_shards(self, shards: int | Collection[str], timeout: float | None = None) -> None:
        """Change which shards the pool has, for all workers, present and later ones.

        ``shards``: as for the constructor. A pool with numbers cannot be given names, or the other
        way round: ``ZkLockError``. Existing shards stay where they are, as far as the balance
        allows. Removed shards are given up: with a lower number, the last ones. Needs no
        :meth:`start`. It also replaces a list in ZooKeeper that cannot be read. Raises ``NoAnswer``
        after ``timeout`` seconds, by default the session timeout; a repeated call is safe.
        """
        run(self._set_shards, shards, timeout)

    def assignment(self, timeout: float | None = None) -> list[ShardOwner]:
        """Return for each shard, in order, which worker should have it and which worker has it.

        The owners are those that the workers last reported; they report a tenth of a second after a
        change. It costs three reads for each worker, whatever the number of shards. Workers whose
        nodes ACLs hide from this client are left out, and their shards seem to have no owner.
        Raises ``AccessDenied`` if ACLs hide all workers, or the pool. Raises ``NoAnswer`` after
        ``timeout`` seconds, by default the session timeout. Asks through ZooKeeper's leader. Needs
        no :meth:`start`.
        """
        return run(self._assignment, timeout)

    def members(self, timeout: float | None = None) -> list[PoolMember]:
        """Return the live workers, by identity. The same costs and errors as :meth:`assignment`."""
        return run(self._members, timeout)

    def observe_membership(
        self, callback: Callable[[MembershipChange[PoolWorker]], object]
    ) -> Observer:
        """Call ``callback(change)`` with the present workers, and with every change of them.

        It gets a ``MembershipChange``: the first has all that are present, later ones have those
        that joined, left, or changed their data. Each call reports the difference from the call
        before, even after a lost connection. One that comes and goes between two calls is not seen.
        The calls come in order, one at a time, on zklock's own threads. An exception is logged. It
        ends with ``close()`` of the returned object, or with the client.

        It leaves a watch at every worker. Needs no :meth:`start`.
        """
        self._observing(callback=callback)
        return Observer(self._session, self._membership, callback)

    def membership_changes(self, timeout: float | None = None) -> MembershipChanges[PoolWorker]:
        """Return an iterator over the present workers and every change of them.

        It yields what :meth:`observe_membership` calls back with, by identity. It ends after
        ``timeout`` seconds without a change (``None``: never), or with ``close()``. Raises
        ``ClientClosed`` once the client is stopped. Needs no :meth:`start`.
        """
        return MembershipChanges(self._session, self._membership, self._observing(timeout))

    def __enter__(self) -> WorkerPool:
        body = entered(self)
        call = StartCall()
        try:
            self._start_by(call)
        except BaseException:
            body.watches = ()
            try:
                self._worker.give_up(call)
            finally:  # a second interrupt may have struck in it
                self._worker.give_up(call)
            raise
        body.held = True
        return self

    def _leave_body(self, error: BaseException | None) -> None:
        with contextlib.suppress(ForkedClient):  # the worker is that of the parent
            self.stop()

    def _abandon_body(self) -> None:
        self._worker.abandon()

    # Inside.

    def _start_by(self, call: StartCall) -> None:
        try:
            run(self._start, call, None)
        except BaseException:
            try:
                self._worker.give_up(call)
            finally:  # a second interrupt may have struck in it
                self._worker.give_up(call)
            raise

    def _new_callbacks(self) -> OwnThreads:
        return OwnThreads(_CALLBACKS, "zklock-shard-callback")

    def _wake_waiters(self) -> None:
        self._mail.put()
