"""A driver for tooz, the coordination library of OpenStack: ``zklock://host:port/chroot``.

tooz finds it by the entry point ``zklock`` of the group ``tooz.backends``. A program moves to it by
another URL. Needs the extra ``tooz``.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, unquote, unquote_to_bytes

from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import make_digest_acl
from tooz import ToozError, coordination, locking, utils

import zklock
from zklock._ground.interrupts import raised_by_zklock
from zklock.contrib._clients import end
from zklock.errors import LockLost, NoAnswer, NotHeld, NotOwner, WouldDeadlock, ZkLockError

__all__ = ["ZkLockDriver", "ZkLockLock"]

Result = TypeVar("Result")

_RELEASE_SECONDS = 1.0
"""For how long a release asks whether the lock was still held."""

_name = partial(utils.to_binary, encoding="utf-8")

_TRUE = {"1", "t", "true", "on", "y", "yes"}

_ERRORS: tuple[dict[type[KazooException], Callable[..., ToozError]], ...] = (
    {},
    {
        NodeExistsError: coordination.GroupAlreadyExist,
        NoNodeError: coordination.GroupNotCreated,
        NotEmptyError: coordination.GroupNotEmpty,
    },
    {
        NodeExistsError: coordination.MemberAlreadyExist,
        NoNodeError: coordination.MemberNotJoined,
    },
)
"""What tooz calls some of ZooKeeper's answers: to no name, about a group, about its member."""


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


class ZkLockDriver(
    coordination.CoordinationDriverCachedRunWatchers, coordination.CoordinationDriverWithExecutor
):
    """Coordinates by zklock: locks, groups, leaders.

    The URL is ``zklock://[user:password@]host:port,host:port…/chroot?option=value``.

    ``timeout``: the session timeout to ask for, in seconds, 10 by default. ``start_timeout``:
    seconds to wait for the first connection, by default as long as ``timeout``. ``namespace``: the
    znode below which everything is kept, by default ``zklock-tooz``. ``ca``, ``certfile``,
    ``keyfile``, ``keyfile_password``, ``use_ssl``, ``verify_certs``, ``randomize_hosts``: kazoo's.
    ``hosts``: more hosts. With a user and a password, all znodes are this user's alone (scheme
    ``digest``). ``executor``: as for tooz's other drivers.

    Memberships end with ZooKeeper's session. ``run_watchers()`` notices that this member has left,
    and does not let it join again. The leadership ends with its lease: ``leadership()`` is then
    ``None``, and the next ``run_watchers()`` stands again.

    *Not guaranteed:* that a callback of ``watch_elected_as_leader()`` still leads while it runs.
    tooz has no call that says that a leadership is lost. Ask ``leadership()``, and hand its token
    to what is guarded.
    """

    EXCLUDE_OPTIONS = frozenset({"hosts"})

    CHARACTERISTICS = (
        coordination.Characteristics.NON_TIMEOUT_BASED,
        coordination.Characteristics.DISTRIBUTED_ACROSS_THREADS,
        coordination.Characteristics.DISTRIBUTED_ACROSS_PROCESSES,
        coordination.Characteristics.DISTRIBUTED_ACROSS_HOSTS,
        coordination.Characteristics.SEQUENTIAL,
    )

    def __init__(self, member_id: bytes, parsed_url: Any, options: dict[str, Any]) -> None:
        super().__init__(_name(member_id), parsed_url, options)
        chosen = self._options
        self._identity = _quoted(self._member_id)
        self._timeout = float(chosen.get("timeout", 10))
        self._start_timeout = float(chosen.get("start_timeout", self._timeout))
        self._base = f"{parsed_url.path.rstrip('/')}/{chosen.get('namespace', 'zklock-tooz')}"
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
                self._answer("exists", self._base)
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

    def create_group(self, group_id: bytes) -> coordination.CoordAsyncResult[None]:
        """Create the group; ``GroupAlreadyExist`` if it is there."""
        return self._later(lambda: self._answer("create", self._path("groups", group_id)), group_id)

    def delete_group(self, group_id: bytes) -> coordination.CoordAsyncResult[None]:
        """Delete the group; ``GroupNotEmpty`` if it has members."""
        return self._later(lambda: self._answer("delete", self._path("groups", group_id)), group_id)

    def get_groups(self) -> coordination.CoordAsyncResult[list[bytes]]:
        """Return the names of all groups, in no certain order."""
        return self._later(lambda: self._children(f"{self._base}/groups"))

    def join_group(
        self, group_id: bytes, capabilities: coordination.Capabilities | None = None
    ) -> coordination.CoordAsyncResult[None]:
        """Become a member until ``leave_group()``, ``stop()``, or the end of the session."""
        path, data = self._path("groups", group_id, self._member_id), utils.dumps(capabilities)

        def join() -> None:
            try:
                self._answer("create", path, data, ephemeral=True)
            except NoNodeError:
                raise coordination.GroupNotCreated(group_id) from None
            except NodeExistsError:
                # Our own, if the answer to an earlier try was lost.
                stat = self._answer("exists", path)
                session = self._connected().client_id
                own = stat is not None and session and stat.ephemeralOwner == session[0]
                if group_id in self._joined_groups or not own:
                    raise
                self._answer("set", path, data)
            self._joined_groups.add(group_id)

        return self._later(join, group_id, self._member_id)

    def leave_group(self, group_id: bytes) -> coordination.CoordAsyncResult[None]:
        """Leave the group; ``MemberNotJoined`` if this member is not in it."""

        def leave() -> None:
            try:
                self._answer("delete", self._path("groups", group_id, self._member_id))
            finally:
                self._joined_groups.discard(group_id)

        return self._later(leave, group_id, self._member_id)

    def get_members(self, group_id: bytes) -> coordination.CoordAsyncResult[set[bytes]]:
        """Return all members of the group; ``GroupNotCreated`` if there is no such group."""
        return self._later(lambda: set(self._children(self._path("groups", group_id))), group_id)

    def get_member_capabilities(
        self, group_id: bytes, member_id: bytes
    ) -> coordination.CoordAsyncResult[coordination.Capabilities | None]:
        """Return what the member has told about itself."""
        return self._later(
            lambda: self._member(group_id, member_id)["capabilities"], group_id, member_id
        )

    def get_members_with_capabilities(
        self, group_id: bytes
    ) -> coordination.CoordAsyncResult[dict[bytes, coordination.Capabilities | None]]:
        """Return all members, and what each has told about itself."""

        def ask() -> dict[bytes, coordination.Capabilities | None]:
            found = {}
            for member in self._children(self._path("groups", group_id)):
                with contextlib.suppress(NoNodeError):  # has left meanwhile
                    found[member] = self._member(group_id, member)["capabilities"]
            return found

        return self._later(ask, group_id)

    def get_member_info(
        self, group_id: bytes, member_id: bytes
    ) -> coordination.CoordAsyncResult[dict[str, Any]]:
        """Return ``capabilities``, ``created_at`` and ``updated_at`` of the member."""
        return self._later(lambda: self._member(group_id, member_id), group_id, member_id)

    def update_capabilities(
        self, group_id: bytes, capabilities: coordination.Capabilities
    ) -> coordination.CoordAsyncResult[None]:
        """Change what this member tells about itself."""
        path, data = self._path("groups", group_id, self._member_id), utils.dumps(capabilities)
        return self._later(lambda: self._answer("set", path, data), group_id, self._member_id)

    # Leaders.

    def run_watchers(self, timeout: float | None = None) -> list[Any]:
        """Call the callbacks of members that came and went, then stand for election."""
        results: list[Any] = super().run_watchers(timeout)
        self.run_elect_coordinator()
        return results

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

        def ask() -> bytes | None:
            leader = self._election(group_id).holder(self._timeout)
            return None if leader is None else unquote_to_bytes(leader.identity)

        return self._later(ask)

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

    def _member(self, group_id: bytes, member_id: bytes) -> dict[str, Any]:
        data, stat = self._answer("get", self._path("groups", group_id, member_id))
        return {
            "capabilities": utils.loads(data),
            "created_at": utils.millis_to_datetime(stat.ctime),
            "updated_at": utils.millis_to_datetime(stat.mtime),
        }

    def _children(self, path: str) -> list[bytes]:
        return [unquote_to_bytes(name) for name in self._answer("get_children", path)]

    def _path(self, *parts: bytes | str) -> str:
        return "/".join([self._base, *(_quoted(part) for part in parts)])

    def _connected(self) -> Any:
        client = self._client
        if client is None:
            raise ToozError("the coordinator is not started")
        return client

    def _answer(self, request: str, *arguments: Any, **options: Any) -> Any:
        """Ask ZooKeeper, for a session timeout: while disconnected it would be for ever."""
        asked = getattr(self._connected(), f"{request}_async")(*arguments, **options)
        return asked.get(timeout=self._timeout)

    def _later(
        self, call: Callable[[], Result], *names: bytes
    ) -> coordination.CoordAsyncResult[Result]:
        """Call on the one thread of the executor, in the order of asking.

        ``names``: the group that is asked about, or the group and its member.
        """
        errors = _ERRORS[len(names)]

        def body() -> Result:
            with _as_tooz():
                try:
                    return call()
                except tuple(errors) as error:
                    raise errors[type(error)](*names) from None

        return coordination.CoordinatorResult(self._executor.submit(body))


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
