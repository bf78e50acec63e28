"""A driver for tooz, the coordination library of OpenStack: ``zklock://host:port/chroot``.

tooz finds it by the entry point ``zklock`` of the group ``tooz.backends``. A program moves to it by
another URL. Needs the extra ``tooz``.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import quote, unquote, unquote_to_bytes

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import make_digest_acl
from tooz import ToozError, coordination, locking, utils
from tooz.drivers import zookeeper

import zklock
from zklock._ground.interrupts import raised_by_zklock
from zklock.contrib._clients import end
from zklock.errors import LockLost, NoAnswer, NotHeld, NotOwner, WouldDeadlock, ZkLockError

__all__ = ["ZkLockDriver", "ZkLockLock"]

Asked = TypeVar("Asked")
Result = TypeVar("Result")

_RELEASE_SECONDS = 1.0
"""For how long a release asks whether the lock was still held."""

_name = partial(utils.to_binary, encoding="utf-8")

_TRUE = {"1", "t", "true", "on", "y", "yes"}


class ZkLockLock(locking.Lock):
    """A lock of :class:`ZkLockDriver`, exclusive or shared.

    One queue serves both, in the order of the requests. Any thread may release it.

    ``grant`` is what tooz's API cannot express: the ``zklock.Grant`` with its fencing token, its
    lease and its lost callbacks.
    """

    def __init__(self, name: bytes, driver: ZkLockDriver) -> None:
        super().__init__(name)
        self._driver = driver
        self._grants: deque[zklock.Grant] = deque()

    @property
    def grant(self) -> zklock.Grant | None:
        """The newest grant that was not released, ``None`` if there is none. It may be lost."""
        try:
            return self._grants[-1]
        except IndexError:
            return None

    @property
    def acquired(self) -> bool:
        """Whether the lock may be believed to be held, at the moment of the call.

        It is ``False`` as soon as the lease has lapsed, before another can have the lock.
        """
        return any(grant.held for grant in self._grants.copy())

    def is_still_owner(self) -> bool:
        """Ask a quorum of ZooKeeper whether the lock is held; ``False`` if it does not answer."""
        grant = self.grant
        if grant is None:
            return False
        try:
            grant.verify()
        except raised_by_zklock(LockLost, NotHeld, NoAnswer):
            return False
        return True

    def acquire(
        self,
        blocking: bool | float = True,
        shared: bool = False,
        timeout: float | None = None,
    ) -> bool:
        """Wait for the lock, in turn; return whether it is held now.

        ``blocking`` may be a number of seconds, as in tooz. With ``blocking=False`` it waits only
        for ZooKeeper's answer, at most a second. A lock that was acquired as shared may be acquired
        as shared again; then release it as often.

        Raises ``ToozError`` if the coordinator is not started, or if ZooKeeper refuses. Raises
        ``LockAcquireFailed`` if it would wait without a limit for what this thread holds.
        """
        if not isinstance(blocking, bool):
            blocking, timeout = True, float(blocking)
        limit = {"timeout": timeout} if blocking else {"blocking": False}
        with _as_tooz():
            try:
                grant = self._kind(shared).acquire(**limit)
            except raised_by_zklock(WouldDeadlock) as error:
                if blocking and timeout is None:
                    raise coordination.LockAcquireFailed(str(error)) from error
                return False
        if grant is None:
            return False
        self._grants.append(grant)
        return True

    def release(self) -> bool:
        """Release what was acquired last; return ``False`` if it was not held any more.

        Returns after a bounded moment without an answer of ZooKeeper's, too. The release then goes
        on in the background.
        """
        try:
            grant = self._grants.pop()
        except IndexError:
            return False

        def end() -> None:
            try:
                grant.verify(_RELEASE_SECONDS)
            finally:
                grant.release()

        return _give_back(grant, end, self._grants.append)

    def break_(self) -> bool:
        """Take the lock from all that hold it now; return whether somebody held it.

        Its holders are told that it is lost, but may be in the middle of their work.
        """
        broken = False
        with _as_tooz():
            lock = self._kind(shared=False)
            for holder in lock.contenders():
                if holder.holds:
                    try:
                        lock.break_lock(holder.token)
                        broken = True
                    except raised_by_zklock(NotOwner):
                        continue  # released meanwhile
        return broken

    def _kind(self, shared: bool) -> zklock.ReadLock | zklock.WriteLock:
        kind = zklock.ReadLock if shared else zklock.WriteLock
        return kind(
            self._driver._connected(),
            self._driver._path("locks", self.name),
            identity=self._driver._identity,
            tidy=True,
        )

    def _abandon(self) -> None:
        while self._grants:
            self._grants.pop().abandon()


class ZkLockDriver(zookeeper.KazooDriver):
    """Coordinates by zklock: locks, leaders. Groups are those of tooz's own ZooKeeper driver.

    The URL is ``zklock://[user:password@]host:port,host:port…/chroot?option=value``.

    ``timeout``: the session timeout to ask for, in seconds, 10 by default. ``start_timeout``:
    seconds to wait for the first connection, by default as long as ``timeout``. ``namespace``: the
    znode below which everything is kept, by default ``zklock-tooz``. ``ca``, ``certfile``,
    ``keyfile``, ``keyfile_password``, ``use_ssl``, ``verify_certs``, ``randomize_hosts``: kazoo's.
    ``hosts``: more hosts. With a user and a password, all znodes are this user's alone (scheme
    ``digest``).

    Memberships end with ZooKeeper's session. ``run_watchers()`` notices that this member has left,
    and does not let it join again. After a ``join_group()`` without an answer, another one may
    raise ``MemberAlreadyExist``: then this member is in the group. The leadership ends with its
    lease: ``leadership()`` is then ``None``, and the next ``run_watchers()`` stands again.

    *Not guaranteed:* that a callback of ``watch_elected_as_leader()`` still leads while it runs.
    tooz has no call that says that a leadership is lost. Ask ``leadership()``, and hand its token
    to what is guarded.
    """

    EXCLUDE_OPTIONS = frozenset({"hosts"})

    def __init__(self, member_id: bytes, parsed_url: Any, options: dict[str, Any]) -> None:
        # Not that of KazooDriver, which makes a client.
        super(zookeeper.KazooDriver, self).__init__(_name(member_id), parsed_url, options)
        chosen = utils.collapse(options, exclude=self.EXCLUDE_OPTIONS)
        self._identity = _quoted(self._member_id)
        self._timeout = float(chosen.get("timeout", 10))
        self._start_timeout = float(chosen.get("start_timeout", self._timeout))
        self._namespace = chosen.get("namespace", "zklock-tooz")
        self._base = f"{parsed_url.path.rstrip('/')}/{self._namespace}"
        self._timeout_exception = KazooTimeoutError
        hosts = [parsed_url.netloc.rpartition("@")[2], *chosen.get("hosts", [])]
        self._hosts = ",".join(filter(None, hosts)) or "localhost:2181"
        self._connection = _kazoo_options(parsed_url, chosen)
        self._client: Any = None
        self._locks: weakref.WeakSet[ZkLockLock] = weakref.WeakSet()
        self._leading: dict[bytes, zklock.Grant] = {}
        self._ending = False

    def leadership(self, group_id: bytes) -> zklock.Grant | None:
        """Return the grant by which this member leads the group; ``None`` if it does not lead.

        The grant has the fencing token, and takes lost callbacks.
        """
        grant = self._leading.get(_name(group_id))
        return grant if grant is not None and grant.held else None

    def get_lock(self, name: bytes) -> ZkLockLock:
        """Return the lock of this name, exclusive or shared as ``acquire()`` says."""
        lock = ZkLockLock(name, self)
        self._locks.add(lock)
        return lock

    def heartbeat(self) -> float:
        """Ask ZooKeeper for a sign of life; return the seconds until the next call is due.

        Sessions, locks and memberships do not need it: they are kept alive in the background.
        Raises ``ToozError`` if there is no answer within the session timeout.
        """
        if not self._ending:  # tooz's heart would try again for ever
            with _as_tooz():
                self._coord.exists_async(self._base).get()
        return self._timeout

    def stop(self) -> None:
        """Give everything back, leave all groups, and close the session."""
        if not self._started:
            raise ToozError("the coordinator is not started")
        self._ending = True
        self._joined_groups.clear()  # the end of the session leaves them all, in one step
        super().stop()

    def _start(self) -> None:
        self._ending = False
        with _as_tooz():
            try:
                client = zklock.connect(
                    self._hosts,
                    self._timeout,
                    start_timeout=self._start_timeout,
                    **self._connection,
                )
            except raised_by_zklock(ZkLockError) as error:
                raise coordination.ToozConnectionError(str(error), cause=error) from error
            try:
                for part in ("groups", "locks", "leaders"):
                    client.ensure_path(f"{self._base}/{part}")
            except BaseException:
                end(client)
                raise
        self._client = client

    def _stop(self) -> None:
        for lock in list(self._locks):
            lock._abandon()
        for grant in self._leading.values():
            grant.abandon()
        self._leading.clear()
        client, self._client = self._client, None
        end(client)

    # Groups.

    def get_groups(self) -> coordination.CoordAsyncResult[list[bytes]]:
        """Return the names of all groups, in no certain order."""
        return _Then(super().get_groups(), lambda names, _: [*map(unquote_to_bytes, names)])

    def get_members(self, group_id: bytes) -> coordination.CoordAsyncResult[set[bytes]]:
        """Return all members of the group; ``GroupNotCreated`` if there is no such group."""
        members = super().get_members(group_id)
        return _Then(members, lambda names, _: {*map(unquote_to_bytes, names)})

    def get_members_with_capabilities(
        self, group_id: bytes
    ) -> coordination.CoordAsyncResult[dict[bytes, coordination.Capabilities | None]]:
        """Return all members, and what each has told about itself."""

        def ask(
            members: set[bytes], timeout: float | None
        ) -> dict[bytes, coordination.Capabilities | None]:
            found = {}
            for member in members:
                with contextlib.suppress(coordination.MemberNotJoined):  # has left meanwhile
                    found[member] = self.get_member_capabilities(group_id, member).get(timeout)
            return found

        return _Then(self.get_members(group_id), ask)

    def _base_path(self) -> str:
        return f"{self._base}/groups"

    def _path_group(self, group_id: bytes) -> str:
        return self._path("groups", group_id)

    def _path_member(self, group_id: bytes, member_id: bytes) -> str:
        return self._path("groups", group_id, member_id)

    # Leaders.

    def run_elect_coordinator(self) -> None:
        """Take every leadership that is watched here and free; call back for each one taken."""
        for group_id in list(self._hooks_elected_leader):
            if self.leadership(group_id) is None and (grant := self._elected(group_id)):
                self._leading[_name(group_id)] = grant
                self._hooks_elected_leader[group_id].run(
                    coordination.LeaderElected(group_id, self._member_id)
                )

    def stand_down_group_leader(self, group_id: bytes) -> bool:
        """Give the leadership back; return whether this member had it."""
        grant = self._leading.pop(_name(group_id), None)
        if grant is None:
            return False
        return _give_back(grant, grant.release, partial(self._leading.setdefault, _name(group_id)))

    def get_leader(self, group_id: bytes) -> coordination.CoordAsyncResult[bytes | None]:
        """Return the member that leads, confirmed by a quorum; ``None`` if there is none."""
        answer: Future[bytes | None] = Future()
        try:
            with _as_tooz():
                leader = self._election(group_id).holder(self._timeout)
            answer.set_result(None if leader is None else unquote_to_bytes(leader.identity))
        except ToozError as error:
            answer.set_exception(error)
        return coordination.CoordinatorResult(answer)

    # Inside.

    def _elected(self, group_id: bytes) -> zklock.Grant | None:
        """Take the leadership if it is free. Looking first spares those who stand by two writes."""
        election = self._election(group_id)
        with _as_tooz():
            if election.contenders(self._timeout):
                return None
            return election.acquire(blocking=False)

    def _election(self, group_id: bytes) -> zklock.Lock:
        path = self._path("leaders", group_id)
        return zklock.Lock(self._connected(), path, identity=self._identity, tidy=True)

    def _path(self, *parts: bytes | str) -> str:
        return "/".join([self._base, *(_quoted(part) for part in parts)])

    def _connected(self) -> Any:
        client = self._client
        if client is None:
            raise ToozError("the coordinator is not started")
        return client

    @property
    def _coord(self) -> Any:
        """What tooz asks: the client, but each answer is waited for in a limited time."""
        return _Bounded(self._connected(), self._timeout)


class _Bounded:
    """The asynchronous requests of a client, whose results have a limit of time.

    While the client is disconnected, kazoo would wait for ever.
    """

    def __init__(self, client: Any, seconds: float) -> None:
        self._client = client
        self._seconds = seconds

    def __getattr__(self, name: str) -> Callable[..., _Answer]:
        request = getattr(self._client, name)
        return lambda *args, **options: _Answer(request(*args, **options), self._seconds)


class _Answer:
    def __init__(self, asked: Any, seconds: float) -> None:
        self._seconds = seconds
        self.ready = asked.ready
        self._get = asked.get

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        try:
            return self._get(block, self._seconds if timeout is None else timeout)
        except raised_by_zklock(ZkLockError) as error:
            raise ToozError(str(error), cause=error) from error


class _Then(coordination.CoordAsyncResult[Result], Generic[Asked, Result]):
    """What follows from a result: ``then(result, timeout)``."""

    def __init__(
        self,
        asked: coordination.CoordAsyncResult[Asked],
        then: Callable[[Asked, float | None], Result],
    ) -> None:
        self._asked = asked
        self._then = then

    def get(self, timeout: float | None = None) -> Result:
        return self._then(self._asked.get(timeout), timeout)

    def done(self) -> bool:
        return bool(self._asked.done())


@contextlib.contextmanager
def _as_tooz() -> Iterator[None]:
    """Raise as tooz does: its users catch its errors."""
    try:
        yield
    except (*raised_by_zklock(NoAnswer), KazooTimeoutError) as error:
        raise coordination.OperationTimedOut(str(error) or "no answer", cause=error) from error
    except (*raised_by_zklock(ZkLockError), KazooException) as error:
        raise ToozError(f"{type(error).__name__}: {error}", cause=error) from error


def _give_back(
    grant: zklock.Grant, end: Callable[[], object], keep: Callable[[zklock.Grant], object]
) -> bool:
    """End what the grant stands for; return whether it was held, as far as ZooKeeper answers.

    ``keep(grant)`` is called if this thread cannot: it is still held.
    """
    with _as_tooz():
        try:
            end()
        except raised_by_zklock(NoAnswer):
            return True
        except raised_by_zklock(LockLost, NotHeld):
            return False
        except raised_by_zklock(WouldDeadlock):
            keep(grant)
            raise
        except BaseException:
            grant.abandon()
            raise
    return True


def _kazoo_options(parsed_url: Any, options: dict[str, Any]) -> dict[str, Any]:
    names = {"ca", "certfile", "connection_retry", "command_retry", "keyfile", "keyfile_password"}
    chosen = {name: options[name] for name in names & options.keys()}
    for name in {"randomize_hosts", "use_ssl", "verify_certs"} & options.keys():
        chosen[name] = str(options[name]).lower() in _TRUE
    if parsed_url.username and parsed_url.password:
        user, password = unquote(parsed_url.username), unquote(parsed_url.password)
        chosen["auth_data"] = [("digest", f"{user}:{password}")]
        chosen["default_acl"] = (make_digest_acl(user, password, all=True),)
    return chosen


def _quoted(name: bytes | str) -> str:
    """Return the name of a znode for any name of tooz's."""
    plain = quote(_name(name), safe="")
    if not plain:
        raise ToozError("a name must not be empty")
    return plain.replace(".", "%2E") if plain in {".", ".."} else plain
