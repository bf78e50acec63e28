"""What holds for ZooKeeperGuard and verify_owner beyond the conformance suite."""

from __future__ import annotations

import contextlib
import math
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.security import make_acl

import zklock
from tests.contract.support import granted
from tests.modes import bounded
from tests.stopwatch import Stopwatch
from zklock.errors import (
    AccessDenied,
    ClientClosed,
    GuardUnusable,
    NoAnswer,
    NotHeld,
    NotOwner,
    OutcomeUnknown,
    StaleToken,
    WouldDeadlock,
)
from zklock.fencing import Guard, ZooKeeperGuard, verify_owner
from zklock.testing import ZooKeeperServer, embedded
from zklock.testing.sessions import expire_session
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)


@pytest.fixture
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    with zklock.connect(zookeeper.hosts) as client:
        yield client


@pytest.fixture
def path() -> str:
    return f"/fences/{uuid.uuid4().hex}"


@pytest.fixture
def guard(client: KazooClient, path: str) -> ZooKeeperGuard:
    guard = ZooKeeperGuard(client, f"{path}/mark")
    guard.create()
    return guard


def test_changes_of_several_nodes(client: KazooClient, guard: ZooKeeperGuard, path: str) -> None:
    assert isinstance(guard, Guard)
    results = (
        guard.transaction(B)
        .create(f"{path}/a", b"1")
        .create(f"{path}/s-", b"", sequence=True)
        .set_data(f"{path}/a", b"2")
        .check(f"{path}/a", 1)
        .commit()
    )
    assert results[0] == f"{path}/a"
    assert results[1].startswith(f"{path}/s-")
    assert results[2].version == 1
    assert len(results) == 4
    with pytest.raises(StaleToken) as caught:
        guard.transaction(A).delete(f"{path}/a").commit()
    assert str(caught.value).startswith(f"{path}/mark: token {A} is stale, {B} has been seen")
    assert client.get(f"{path}/a")[0] == b"2"
    guard.transaction(B).delete(f"{path}/a").commit()
    assert client.exists(f"{path}/a") is None


def test_a_change_that_fails_raises_its_own_error_and_leaves_the_mark(
    client: KazooClient, guard: ZooKeeperGuard, path: str
) -> None:
    client.create(f"{path}/a", b"")
    with pytest.raises(NoNodeError):
        guard.transaction(A).set_data(f"{path}/a", b"x").set_data(f"{path}/none", b"").commit()
    with pytest.raises(BadVersionError):
        guard.transaction(A).set_data(f"{path}/a", b"x", version=5).commit()
    with pytest.raises(NodeExistsError):
        guard.transaction(A).create(f"{path}/a").commit()
    assert guard.highest() is None
    assert client.get(f"{path}/a")[0] == b""


def test_bad_arguments(client: KazooClient, guard: ZooKeeperGuard, path: str) -> None:
    with pytest.raises(TypeError, match="must be a byte string"):
        guard.transaction(A).set_data(f"{path}/a", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a FencingToken"):
        guard.transaction(34)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a str"):
        ZooKeeperGuard(client, b"/a")  # type: ignore[arg-type]
    for wrong in ("a", "/", "/a/", ""):
        with pytest.raises(ValueError, match="must be absolute"):
            ZooKeeperGuard(client, wrong)
    with pytest.raises(ValueError, match="timeout must be positive"):
        ZooKeeperGuard(client, path, timeout=0)
    with pytest.raises(TypeError, match="pass a started KazooClient"):
        ZooKeeperGuard(None, path)
    with pytest.raises(ClientClosed, match="not started, or was stopped: call its start"):
        ZooKeeperGuard(KazooClient(), path).claim(A)
    # A file's name that is no text comes from os.listdir() like this.
    with pytest.raises(ValueError, match="not UTF-8 text"):
        ZooKeeperGuard(client, "/a\udce4")
    for change in ("create", "delete", "check"):
        with pytest.raises(ValueError, match="not UTF-8 text"):
            getattr(guard.transaction(A), change)(f"{path}/\udce4")
    assert client.connected


@pytest.mark.slow("real servers, and connections that are struck or lost")
@pytest.mark.parametrize("given", ["grant", "token"])
def test_a_late_write_after_the_end_of_the_session_is_stale(
    zookeeper: ZooKeeperServer, client: KazooClient, guard: ZooKeeperGuard, path: str, given: str
) -> None:
    """The connection that kazoo still has is gone: the question is asked again."""
    client.create(f"{path}/data", b"")
    lock = zklock.Lock(client, f"{path}/lock")
    grant = granted(lock)
    guard.claim(grant)
    late: Any = grant if given == "grant" else grant.token
    with zklock.connect(zookeeper.hosts) as other:
        ZooKeeperGuard(other, f"{path}/mark").claim(FencingToken(grant.token.epoch + 1, 0))
        expire_session(client)
        with pytest.raises(StaleToken):
            guard.transaction(late).set_data(f"{path}/data", b"late").commit()
    assert client.get(f"{path}/data")[0] == b""


@pytest.mark.parametrize(
    ("raw", "ours"),
    [
        (SessionExpiredError(), OutcomeUnknown),
        (ConnectionLoss(), OutcomeUnknown),
        (OperationTimeoutError(), OutcomeUnknown),
        (ConnectionClosedError(), ClientClosed),
        (AuthFailedError(), ClientClosed),
        (NoAuthError(), AccessDenied),
    ],
)
def test_errors_of_kazoo_are_told_as_ours(
    client: KazooClient,
    guard: ZooKeeperGuard,
    monkeypatch: pytest.MonkeyPatch,
    raw: Exception,
    ours: type[Exception],
) -> None:
    def commit_async(_: object) -> Any:
        answer = client.handler.async_result()
        answer.set_exception(raw)
        return answer

    monkeypatch.setattr(type(client.transaction()), "commit_async", commit_async)
    with pytest.raises(ours) as caught:
        guard.claim(A)
    assert caught.value.__cause__ is raw


class Elsewhere(NamedTuple):
    token: FencingToken
    path: str


def test_a_grant_is_fenced_by_its_own_node_before_anybody_claims(
    client: KazooClient, guard: ZooKeeperGuard, path: str
) -> None:
    client.create(f"{path}/data", b"")
    lock = zklock.Lock(client, f"{path}/lock")
    grant = granted(lock)
    guard.claim(grant)
    guard.transaction(grant).set_data(f"{path}/data", b"a").commit()
    begun = guard.transaction(grant).set_data(f"{path}/data", b"late")
    lock.release()
    with pytest.raises(NotHeld):
        begun.commit()
    elsewhere = Elsewhere(grant.token, grant.path)  # a process that knows of no release
    with pytest.raises(StaleToken) as caught:
        guard.transaction(elsewhere).set_data(f"{path}/data", b"late").commit()
    assert str(caught.value) == (
        f"{path}/mark: the grant of token {grant.token} is over, because its node "
        f"{grant.path} is gone: stop its work and acquire the lock again"
    )
    assert caught.value.highest == grant.token
    with pytest.raises(StaleToken):
        guard.claim(elsewhere)
    # The token alone is still the highest.
    guard.transaction(grant.token).set_data(f"{path}/data", b"window").commit()
    assert client.get(f"{path}/data")[0] == b"window"


def test_contended_marks_are_looked_at_again(guard: ZooKeeperGuard) -> None:
    with ThreadPoolExecutor(8) as pool:
        outcomes = [
            pool.submit(guard.claim, FencingToken(1, number)).exception(30) for number in range(200)
        ]
    assert guard.highest() == FencingToken(1, 199)
    assert {type(outcome) for outcome in outcomes} <= {type(None), StaleToken}


class Paused:
    """A client whose next ``multi`` is held back while something else happens."""

    def __init__(self, client: KazooClient, meanwhile: Callable[[], None]) -> None:
        self._client = client
        self._meanwhile: Callable[[], None] | None = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def transaction(self) -> Any:
        request = self._client.transaction()
        commit, meanwhile = request.commit_async, self._meanwhile

        def late() -> Any:
            nonlocal meanwhile
            if meanwhile is not None:
                self._meanwhile = meanwhile = None
                between()
            return commit()

        between = meanwhile or (lambda: None)
        request.commit_async = late
        return request


@pytest.mark.hazard("H49")
@pytest.mark.parametrize("seen", [None, FencingToken(7, 32), A], ids=["none", "lower", "equal"])
@pytest.mark.parametrize("writes", [1, 2])
@pytest.mark.parametrize("folder", [False, True], ids=["mark", "folder"])
def test_a_mark_made_again_shuts_out_a_change_under_way(
    client: KazooClient,
    guard: ZooKeeperGuard,
    path: str,
    seen: FencingToken | None,
    writes: int,
    folder: bool,
) -> None:
    """The new mark has the version that the old holder's ``multi`` asks for."""
    data = f"{path}-data"
    client.create(data, b"")
    if seen is not None:
        for _ in range(writes):
            guard.claim(seen)

    def meanwhile() -> None:
        version = client.exists(guard.resource).version
        if folder:
            client.delete(path, recursive=True)
        else:
            client.delete(guard.resource)
        guard.create()
        guard.transaction(B).set_data(data, b"new").commit()
        while client.exists(guard.resource).version < version:
            client.set(guard.resource, str(B).encode())

    late = ZooKeeperGuard(Paused(client, meanwhile), guard.resource)
    with pytest.raises(StaleToken):
        late.transaction(A).set_data(data, b"old").commit()
    assert client.get(data)[0] == b"new"
    assert guard.highest() == B


@pytest.mark.hazard("H49")
def test_a_mark_put_there_by_hand_is_refused_until_it_is_adopted(
    client: KazooClient, guard: ZooKeeperGuard, path: str
) -> None:
    client.create(f"{path}/data", b"")
    guard.claim(A)

    def meanwhile() -> None:
        client.delete(guard.resource)
        client.create(guard.resource, str(B).encode())
        with pytest.raises(GuardUnusable, match="was not made by create"):
            guard.claim(B)
        guard.create()
        assert guard.highest() == B

    late = ZooKeeperGuard(Paused(client, meanwhile), guard.resource)
    with pytest.raises(StaleToken):
        late.transaction(A).set_data(f"{path}/data", b"old").commit()
    guard.create()
    guard.claim(B)
    assert client.get(f"{path}/data")[0] == b""


def test_many_make_the_mark_at_once(client: KazooClient, path: str) -> None:
    guards = [ZooKeeperGuard(client, f"{path}/{number % 5}/mark") for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(guard.create) for guard in guards]:
            done.result(30)
    for guard in guards[:5]:
        assert len(client.get_children(f"{guard.resource}.made")) == 1
        guard.claim(A)


@pytest.mark.parametrize("there", ["", "/a", "/a/b"])
@pytest.mark.parametrize("read", [False, True], ids=["hidden", "shown"])
def test_a_mark_below_what_may_not_be_read(there: str, read: bool) -> None:
    """As servers since 3.8.4 and 3.9.2, this one refuses to say whether such a node is there."""
    with embedded() as server, zklock.connect(server.hosts) as client:
        client.ensure_path(f"/closed{there}")
        client.set_acls("/closed", [make_acl("world", "anyone", create=not there, read=read)])
        guard = ZooKeeperGuard(client, "/closed/a/b/mark")
        guard.create()
        guard.claim(A)
        assert guard.highest() == A
        if there:
            with pytest.raises(AccessDenied):
                ZooKeeperGuard(client, "/closed/new/mark").create()


@pytest.mark.filterwarnings("ignore:the chroot")
def test_a_mark_below_a_chroot_that_is_missing() -> None:
    with embedded() as server:
        with zklock.connect(f"{server.hosts}/made") as client:
            guard = ZooKeeperGuard(client, "/a/mark")
            guard.create()
            assert guard.highest() is None
        with (
            zklock.connect(f"{server.hosts}/not/made") as client,
            pytest.raises(GuardUnusable, match="chroot in the client's address does not exist"),
        ):
            ZooKeeperGuard(client, "/a/mark").create()


def test_a_transaction_is_committed_once(client: KazooClient, guard: ZooKeeperGuard) -> None:
    transaction = guard.transaction(A)
    transaction.commit()
    with pytest.raises(RuntimeError, match="committed once"):
        transaction.commit()


def test_a_server_that_is_gone_is_not_waited_for_longer_than_said(
    zookeeper: ZooKeeperServer, client: KazooClient, path: str
) -> None:
    guard = ZooKeeperGuard(client, f"{path}/mark", timeout=0.5)
    guard.create()
    zookeeper.stop()
    try:
        for call in (
            guard.highest,
            lambda: guard.claim(A),
            lambda: verify_owner(client, "/lock", A, timeout=0.5),
        ):
            with Stopwatch() as watch, pytest.raises((NoAnswer, KazooException)):
                call()
            assert watch.awake < bounded(2.0)
        with pytest.raises(NoAnswer, match=r"/mark: ZooKeeper did not answer within 0\.5 s"):
            guard.highest()
    finally:
        zookeeper.start()


def test_a_call_may_wait_without_limit(client: KazooClient, path: str) -> None:
    """A wait for infinity is an ``OverflowError`` in Python."""
    guard = ZooKeeperGuard(client, f"{path}/mark", timeout=math.inf)
    guard.create()
    guard.claim(A)
    assert guard.highest() == A
    with pytest.raises(NotOwner):
        verify_owner(client, path, A, timeout=math.inf)


def test_a_call_on_a_thread_of_kazoos_is_refused(
    client: KazooClient, guard: ZooKeeperGuard, path: str
) -> None:
    errors: list[BaseException] = []
    called = threading.Event()

    def watch(event: object) -> None:
        try:
            guard.highest()
        except BaseException as error:
            errors.append(error)
        called.set()

    client.exists(f"{path}/watched", watch=watch)
    client.create(f"{path}/watched", b"")
    assert called.wait(10)
    assert isinstance(errors[0], WouldDeadlock)


class Owners:
    """The holders of one lock."""

    def __init__(self, server: ZooKeeperServer, path: str, stack: contextlib.ExitStack) -> None:
        self.server, self.path, self.stack = server, path, stack

    def acquire(self, identity: str) -> zklock.Grant:
        client = self.stack.enter_context(zklock.connect(self.server.hosts))
        return granted(zklock.Lock(client, self.path, identity=identity))


@pytest.fixture
def owners(zookeeper: ZooKeeperServer, path: str) -> Iterator[Owners]:
    with contextlib.ExitStack() as stack:
        yield Owners(zookeeper, f"{path}/lock", stack)


def test_the_present_holder_is_told(client: KazooClient, owners: Owners) -> None:
    grant = owners.acquire("host-7")
    holder = verify_owner(client, owners.path, grant.token)
    assert (holder.identity, holder.sequence, holder.session_id, holder.path, holder.token) == (
        "host-7",
        grant.token.sequence,
        grant.session_id,
        grant.path,
        grant.token,
    )
    assert verify_owner(client, owners.path, grant) == holder


def test_anybody_else_is_refused(client: KazooClient, owners: Owners) -> None:
    with pytest.raises(NotOwner, match="nobody holds it"):
        verify_owner(client, f"{owners.path}/never used", A)
    old = owners.acquire("old")
    old.release()
    with pytest.raises(NotOwner) as caught:
        verify_owner(client, owners.path, old)
    assert str(caught.value) == (
        f"{owners.path}: token {old.token} does not hold the lock, nobody holds it: refuse its "
        "request"
    )
    present = owners.acquire("present")
    waiting = client.create(
        f"{owners.path}/_c_{uuid.uuid4()}-lock-", b"waiting", ephemeral=True, sequence=True
    )
    next_one = FencingToken(present.token.epoch, int(waiting[-10:]))
    for wrong in (
        old.token,
        next_one,
        FencingToken(present.token.epoch, next_one.sequence + 1),
        FencingToken(present.token.epoch + 1, present.token.sequence),
    ):
        with pytest.raises(NotOwner, match="'present' does") as caught:
            verify_owner(client, owners.path, wrong)
        assert (caught.value.holder, caught.value.token) == ("present", wrong)
        assert caught.value.path == owners.path
    present.release()
    assert verify_owner(client, owners.path, next_one).identity == "waiting"


def test_readers_and_leases_may_hold_together(client: KazooClient, path: str) -> None:
    def contend(parent: str, marker: str) -> FencingToken:
        node = client.create(
            f"{parent}/_c_{uuid.uuid4()}-{marker}",
            b"",
            ephemeral=True,
            sequence=True,
            makepath=True,
        )
        return FencingToken(client.exists(parent).czxid, int(node[-10:]))

    readers = [contend(f"{path}/rw", "__READ__") for _ in range(2)]
    writer = contend(f"{path}/rw", "__WRIT__")
    for reader in readers:
        verify_owner(client, f"{path}/rw", reader)
    with pytest.raises(NotOwner):
        verify_owner(client, f"{path}/rw", writer)
    leases = [contend(f"{path}/sem", "lease-") for _ in range(3)]
    for lease in leases[:2]:
        verify_owner(client, f"{path}/sem", lease, limit=2)
    with pytest.raises(NotOwner):
        verify_owner(client, f"{path}/sem", leases[2], limit=2)


def test_an_answer_is_remembered_for_as_long_as_asked(
    client: KazooClient, owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("zklock.fencing.owner.clock", lambda: now)
    grant = owners.acquire("a")
    holder = verify_owner(client, owners.path, grant, max_age=2.0)
    grant.release()
    now = 102.0
    assert verify_owner(client, owners.path, grant, max_age=2.0) == holder
    with pytest.raises(NotOwner):
        verify_owner(client, owners.path, grant)
    now = 102.1
    with pytest.raises(NotOwner):
        verify_owner(client, owners.path, grant, max_age=2.0)


def test_memory_of_answers_is_bounded(
    client: KazooClient, owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zklock.fencing.owner._REMEMBERED", 2)
    from zklock.fencing import owner

    grant = owners.acquire("a")
    for limit in (1, 2, 3):
        verify_owner(client, owners.path, grant, limit=limit, max_age=60)
        assert limit in {it for _, _, it in owner._memories[client]}
    assert len(owner._memories[client]) <= 2


def test_bad_arguments_of_verify_owner(client: KazooClient) -> None:
    with pytest.raises(TypeError, match="takes a FencingToken"):
        verify_owner(client, "/lock", 34)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="absolute"):
        verify_owner(client, "lock", A)
    with pytest.raises(ValueError, match="limit must be at least 1"):
        verify_owner(client, "/lock", A, limit=0)
    with pytest.raises(TypeError, match="limit must be an int"):
        verify_owner(client, "/lock", A, limit=float("inf"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_age must be 0 seconds or more"):
        verify_owner(client, "/lock", A, max_age=float("nan"))
    with pytest.raises(TypeError, match="max_age must be seconds or None"):
        verify_owner(client, "/lock", A, max_age="60")  # type: ignore[arg-type]


@pytest.mark.parametrize("op", ["multi", "getData", "getChildren2", "sync", "create"])
def test_an_overloaded_server_is_asked_again(op: str) -> None:
    with embedded() as server, zklock.connect(server.hosts) as client:
        guard = ZooKeeperGuard(client, "/deep/mark")
        server.throttle(op, 2)
        guard.create()
        server.throttle(op, 2)
        guard.claim(A)
        server.throttle(op, 2)
        assert guard.highest() == A
        server.throttle(op, 2)
        guard.transaction(A).create("/data", b"").commit()
        assert client.exists("/data")
        server.throttle("multi", 1000)
        with pytest.raises(NoAnswer):
            ZooKeeperGuard(client, "/deep/mark", timeout=0.05).claim(B)


@pytest.fixture
def strict() -> Iterator[KazooClient]:
    """A client of a server that enforces quotas."""
    properties = {"zookeeper.enforceQuota": "true"}
    with (
        ZooKeeperServer(system_properties=properties) as server,
        zklock.connect(server.hosts) as client,
    ):
        yield client


def test_a_quota_that_is_used_up(strict: KazooClient) -> None:
    limits = {
        "count": b"byteHardLimit=-1;countHardLimit=1",
        "bytes": b"byteHardLimit=20;countHardLimit=-1",
    }
    for path, limit in limits.items():
        strict.create(f"/{path}")
        quota = f"/zookeeper/quota/{path}"
        strict.create(f"{quota}/zookeeper_limits", b"count=-1,bytes=-1=;" + limit, makepath=True)
        strict.create(f"{quota}/zookeeper_stats", b"count=1,bytes=0")
    with pytest.raises(GuardUnusable, match="its quota is used up"):
        ZooKeeperGuard(strict, "/count/mark").create()
    with pytest.raises(GuardUnusable, match="its quota is used up"):
        ZooKeeperGuard(strict, "/count/a/b/mark").create()
    guard = ZooKeeperGuard(strict, "/bytes/mark")
    guard.create()
    with pytest.raises(GuardUnusable, match="its quota is used up"):
        guard.claim(A)


@pytest.mark.parametrize("below", ["ephemeral/mark", "ephemeral/a/mark", "a\0b"])
def test_a_mark_that_cannot_be_there(client: KazooClient, zklock_path: str, below: str) -> None:
    client.create(f"{zklock_path}/ephemeral", ephemeral=True, makepath=True)
    with pytest.raises(GuardUnusable, match="ZooKeeper refused the request"):
        ZooKeeperGuard(client, f"{zklock_path}/{below}").create()


def test_an_unreadable_mark(client: KazooClient, guard: ZooKeeperGuard) -> None:
    for content in (b"", b"34", b"\xff"):
        client.set(guard.resource, content)
        with pytest.raises(GuardUnusable, match="is not a token but"):
            guard.claim(A)
