"""What other programs may put under a lock's path, and what they may take away.

Never a crash, never a wrong grant; ``docs/guarantees.md``, "Neighbours", says what happens.
"""

from __future__ import annotations

import itertools
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from kazoo.protocol.serialization import Create2
from kazoo.security import make_acl, make_digest_acl

import zklock
from tests.contract.fronts import Behind, Place, Threads
from tests.contract.support import EXHAUSTED_AT, SOON, Losses, children, granted, kazoo_client, run
from zklock.fencing import ZooKeeperGuard, verify_owner
from zklock.testing import FaultProxy, FrameKind, ZooKeeperServer, four_letter, wait_for

Connect = Callable[..., Any]
Put = Callable[..., str]

UUID = "93969bb0-f5b6-48a7-a9f1-3f2b4fe4f4de"
STRAY = [
    "lock", "lock-", "-lock-", "lock-0000000000", "-lock-000000000", "-lock-00000000000",
    f"_c_{UUID}-lock-", f"_c_{UUID}-lock-0000000000 ", f"_c_{UUID}-lock-0000000000.tmp",
    f"_c_{UUID}-LOCK-0000000000", f"_c_{UUID}_lock_0000000000", f"_c_{UUID}-lock-٠٠٠٠٠٠٠٠٠٠",
    f"_c_{UUID}-lock-9999999999", f"_c_{UUID}-lock-2147483648", f"_c_{UUID}-lock--9999999999",
    f"_c_{UUID}-lock--000000000", f"_c_{UUID}-lock--0000000001",
    f"_c_{UUID}-lock-+000000000", "x-1-", "x--0000000000", "x-z-0000000000", "0000000000",
    ".*-lock-[0-9]{10}", "(?P<a>", "[", "\\", "a|b", "^$", "%s%n{0}", "–-lock–-0000000000",
    "ö" * 120, "..lock", "...", "zookeeper", "'; drop", "-" * 3000, "config", "task-0000000000",
    "x-lock-12", "_c_-lock-", "__lock__x0000000000", "-lock-0000000000.bak", "ä-0000000000",
]  # fmt: skip
CONTENDERS = [
    f"_c_{UUID}-lock-0000000000", "-lock-0000000000", " -lock-0000000000", "ö-lock-0000000000",
    ".*-lock-0000000000", "[-lock-0000000000", "(?P<a>-lock-0000000000",
    "a__lock__0000000000", "a__rlock__0000000000", "x-1-0000000000", "x--f-0000000000",
    f"_c_{UUID}-__READ__0000000000", f"_c_{UUID}-__WRIT__0000000000",
    f"_c_{UUID}-lease-0000000000", f"_c_{UUID}-latch-0000000000", "-" * 3000 + "-lock-0000000000",
]  # fmt: skip


@pytest.fixture
def front() -> Threads:
    return Threads()


@pytest.fixture
def put(other: Any, zklock_path: str) -> Put:
    """Return a function that creates a node below the lock's path."""
    other.ensure_path(zklock_path)

    def create(name: str, data: bytes = b"", **options: Any) -> str:
        path: str = other.create(f"{zklock_path}/{name}", data, **options)
        return path

    return create


class TestNames:
    def test_that_are_no_contenders(self, mine: Place, theirs: Place, put: Put) -> None:
        nodes = [put(name, name.encode()) for name in STRAY]
        lock = mine.Lock()
        assert lock.contenders() == []
        with lock as grant:
            assert [each.path for each in lock.contenders()] == [grant.path]
            assert lock.holder() == lock.contenders()[0]
            waiting = run(granted, mine.Lock())
            wait_for(lambda: len(lock.contenders()) == 2, SOON)
        waiting.result(SOON).release()
        assert set(theirs.nodes()) == {node.rpartition("/")[2] for node in nodes}

    @pytest.mark.parametrize("name", CONTENDERS, ids=lambda name: name[:40])
    def test_of_contenders_that_never_go(
        self, mine: Place, other: Any, put: Put, name: str
    ) -> None:
        stone = put(name, b"a stone")
        lock = mine.Lock()
        assert lock.acquire(blocking=False) is None
        waiting = run(granted, lock)
        first, _ = wait_for(lambda: found if len(found := lock.contenders()) == 2 else None, SOON)
        assert (first.identity, first.sequence, first.session_id) == ("a stone", 0, 0)
        assert first.path == stone
        assert lock.holder() == first
        assert not waiting.done()
        other.delete(stone)
        waiting.result(SOON).release()

    @pytest.mark.hazard("H2")
    @pytest.mark.parametrize("number", [EXHAUSTED_AT, 2**31 - 1, -(2**31), -1])
    def test_with_worn_out_numbers(self, mine: Place, other: Any, put: Put, number: int) -> None:
        """The counter seems to be at its end: nobody is granted until all is renewed."""
        stone = put(f"{UUID}-lock-{number:010d}")
        epoch = other.exists(mine.path).czxid
        lock = mine.Lock()
        assert lock.acquire(timeout=0.2) is None
        (only,) = lock.contenders()
        assert (only.path, only.sequence) == (stone, number)
        waiting = run(granted, lock)
        other.delete(stone)
        grant = waiting.result(SOON)
        assert grant.token.sequence < 10
        assert grant.token.epoch >= epoch
        grant.release()

    def test_with_one_number(self, mine: Place, put: Put) -> None:
        """Numbers that ZooKeeper did not give may be there twice; the text decides."""
        for name in ("A-lock-0000000003", "z-lock-0000000003", "_c_-lock-0000000001"):
            put(name)
        lock = mine.Lock()
        waiting = run(lock.acquire, timeout=0.5)
        found = wait_for(lambda: found if len(found := lock.contenders()) == 4 else None, SOON)
        names = [each.path.rpartition("/")[2] for each in found]
        mine_ = next(name for name in names if name.startswith("_c_") and len(name) > 30)
        assert names == ["_c_-lock-0000000001", "A-lock-0000000003", mine_, "z-lock-0000000003"]
        assert waiting.result(SOON) is None


MARKERS = ["-lock-", "__lock__", "__rlock__", "-__READ__", "-__WRIT__", "-lease-", "-latch-"]
ILLEGAL = re.compile("[\\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
NUMBER = re.compile(r"-?[0-9]{9,10}\Z", re.ASCII)
ORACLE = re.compile(r"(-lock-|__r?lock__|-__(READ|WRIT)__|-lease-|-latch-)([0-9]{10})\Z", re.ASCII)
texts = st.text(st.characters(exclude_characters="/"), max_size=20)
numbers = st.one_of(
    st.integers(0, 30).map("{:010d}".format),
    st.integers(-(2**31), -1).map("{:010d}".format),
    st.integers(EXHAUSTED_AT - 3, 2**31 + 2).map("{:010d}".format),
    st.integers(0, 10**11).map(str),
    texts,
)
hostile = st.one_of(
    texts,
    st.builds("{}{}{}".format, texts, st.sampled_from(MARKERS), numbers),
    st.builds("{}{}{}{}".format, texts, st.sampled_from(MARKERS), numbers, texts),
    st.builds("x-{}-{}".format, st.integers(-9, 9), numbers),
)


def is_legal(name: str) -> bool:
    """Whether ZooKeeper takes it; worn-out numbers are another test's."""
    if name in {"", ".", ".."} or ILLEGAL.search(name):
        return False
    number = NUMBER.search(name)
    return number is None or 0 <= int(number[0]) < EXHAUSTED_AT


def blocks(name: str, mine: int) -> bool:
    """Say in other words whether a node of this name stands before the given number."""
    match = ORACLE.search(name) or re.fullmatch(r"x--?[0-9]+-()()([0-9]{10})", name, re.ASCII)
    return match is not None and int(match[3]) < mine


# kazoo's connection thread draws the jitter of its pings while strategies are drawn from.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
class TestFuzz:
    _numbers = itertools.count()

    @given(
        st.lists(st.tuples(hostile.filter(is_legal), st.binary(max_size=40)), max_size=12,
                 unique_by=lambda each: each[0])
    )  # fmt: skip
    @settings(
        max_examples=60,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    def test_names_and_data(
        self, zklock_client: Any, zklock_path: str, nodes: list[tuple[str, bytes]]
    ) -> None:
        path = f"{zklock_path}/{next(self._numbers)}"
        zklock_client.ensure_path(path)
        for name, data in nodes:
            zklock_client.create(f"{path}/{name}", data)
        lock = zklock.Lock(zklock_client, path, identity="me")
        grant = lock.acquire(blocking=False)
        # Every one that was created has taken a number; a tie goes by the text.
        before = [name for name, _ in nodes if blocks(name, len(nodes))]
        level = [name for name, _ in nodes if blocks(name, len(nodes) + 1)]
        if grant is None and not level:
            grant = lock.acquire(timeout=SOON)  # on a busy machine its moment may have been over
        assert (grant is None) or not before
        assert (grant is not None) or level
        found = lock.contenders()
        told = {each.path.rpartition("/")[2]: each.identity for each in found}
        assert {name: data.decode(errors="replace") for name, data in nodes if name in told} == {
            name: identity for name, identity in told.items() if identity != "me"
        }
        assert set(level) <= set(told)
        assert [each.token for each in found if each.token] == sorted(
            each.token for each in found if each.token
        )
        if grant is not None:
            assert grant.path in {each.path for each in found}
            grant.verify()
            lock.release()
        assert {name for name, _ in nodes} == set(children(zklock_client, path))


class TestData:
    def test_that_is_huge(self, mine: Place, other: Any, put: Put) -> None:
        size = 1_000_000
        nodes = [put(f"_c_{UUID}-lock-{number:010d}", b"\xffx" * (size // 2)) for number in (0, 1)]
        put("stray", b"y" * size)
        lock = mine.Lock(identity="me")
        waiting = run(granted, lock)
        found = wait_for(lambda: found if len(found := lock.contenders()) == 3 else None, SOON)
        assert [len(each.identity) for each in found] == [size, size, 2]
        for node in nodes:
            assert not waiting.done()
            other.delete(node)
        waiting.result(SOON).release()

    def test_that_keeps_changing(self, mine: Place, theirs: Place) -> None:
        holder = granted(theirs.Lock())
        losses, change = Losses(), theirs.client.set
        waiting = theirs.waits(mine.Lock(on_lost=losses), 2)
        for _ in range(20):
            for name in theirs.nodes():
                change(f"{mine.path}/{name}", uuid.uuid4().bytes)
        assert not waiting.done()
        holder.release()
        grant = waiting.result(SOON)
        for _ in range(20):
            change(grant.path, uuid.uuid4().bytes)
        grant.verify()
        assert not losses.losses
        theirs.client.delete(grant.path)
        assert losses.one().reason is zklock.LossReason.NODE_DELETED

    @pytest.mark.parametrize("kind", ["Lock", "ReadLock"])
    def test_that_there_are_none_of(self, mine: Place, other: Any, kind: str) -> None:
        """For kazoo, a node that somebody has made without data has ``None``."""
        other.create(mine.path, None, makepath=True)
        node = other.create(f"{mine.path}/-__WRIT__", None, ephemeral=True, sequence=True)
        lock = getattr(mine, kind)()
        waiting = mine.waits(lock, 2)
        assert lock.contenders()[0].identity == ""
        token = zklock.FencingToken(other.exists(mine.path).czxid, 0)
        assert verify_owner(mine.client, mine.path, token).path == node
        with pytest.raises(zklock.NotOwner):
            verify_owner(mine.client, mine.path, zklock.FencingToken(token.epoch, 1))
        assert not waiting.done()
        other.delete(node)
        waiting.result(SOON).release()

    def test_that_an_election_has_none_of(self, mine: Place, other: Any) -> None:
        other.create(mine.path, None, makepath=True)
        election = mine.LeaderElection(identity="me")
        with election.changes(timeout=SOON) as changes:
            assert next(changes).leader is None
            leadership = election.acquire()
            first = next(changes).leader
            assert first.identity == "me"
            assert verify_owner(mine.client, mine.path, leadership.token) == first
            election.request_release()
            assert leadership.should_stop.wait(SOON)
            leadership.release()


class TestCrowds:
    def test_five_thousand_strays(
        self, mine: Place, theirs: Place, zklock_proxy: FaultProxy
    ) -> None:
        nodes = [f"{mine.path}/stray-{number:05d}-{'x' * 40}" for number in range(5000)]
        theirs.client.ensure_path(mine.path)
        in_bulk(theirs.client, "create", nodes)
        try:
            lock = mine.Lock()
            started = time.monotonic()
            with lock:
                waiting = run(granted, theirs.Lock())
                wait_for(lambda: len(lock.contenders()) == 2, SOON)
            waiting.result(SOON).release()
            assert lock.contenders() == []
            assert time.monotonic() - started < SOON / 2
            with kazoo_client(zklock_proxy.hosts) as client:
                behind_proxy = zklock.Lock(client, mine.path, session_timeout=10.0)
                zklock_proxy.drop_after_request(op="create2")
                granted(behind_proxy)  # found among all of them
                behind_proxy.release()
            theirs.queued(5000)
        finally:
            in_bulk(theirs.client, "delete", nodes)

    def test_nodes_with_children(self, mine: Place, other: Any, put: Put) -> None:
        put("stray/with/children", makepath=True)
        put("config-lock-0000000000/child", makepath=True)
        lock = mine.Lock()
        assert lock.acquire(timeout=0.2) is None
        other.delete(f"{mine.path}/config-lock-0000000000", recursive=True)
        with lock:
            assert len(lock.contenders()) == 1


def in_bulk(client: Any, method: str, paths: list[str]) -> None:
    answers = []
    for start in range(0, len(paths), 500):
        transaction = client.transaction()
        for path in paths[start : start + 500]:
            getattr(transaction, method)(path)
        answers.append(transaction.commit_async())
    for answer in answers:
        assert not any(isinstance(each, Exception) for each in answer.get(timeout=SOON))


def watches(server: ZooKeeperServer, name: str) -> bool:
    return name in four_letter(server.host, server.port, "wchp")


def watch_count(server: ZooKeeperServer) -> int:
    """Count all watches, those on children, too."""
    (count,) = re.findall(r"zk_watch_count\s+(\d+)", four_letter(server.host, server.port, "mntr"))
    return int(count)


SECRET = make_digest_acl("owner", "secret", all=True)


class TestUnreadable:
    @pytest.fixture
    def owner(self, zklock_connect: Connect, zklock_path: str) -> Any:
        """A client whose nodes nobody else may read, below a parent that is open to all."""
        zklock_connect().ensure_path(zklock_path)
        return zklock_connect(default_acl=[SECRET], auth_data=[("digest", "owner:secret")])

    def test_contenders_are_waited_for_and_told_of(
        self, mine: Place, owner: Any, zklock_server: ZooKeeperServer
    ) -> None:
        holder = zklock.Lock(owner, mine.path, identity="secret")
        grant = granted(holder)
        behind_it, lock = mine.Lock(), mine.Lock(identity="me")
        waiting = mine.waits(lock, 2)
        first, second = lock.contenders()
        wait_for(lambda: watches(zklock_server, second.path), SOON)
        assert (first.identity, first.session_id) == ("", None)
        assert (second.identity, second.sequence) == ("me", first.sequence + 1)
        assert first.token == grant.token
        with pytest.raises(zklock.AccessDenied) as caught:
            behind_it.holder()
        assert caught.value.path == mine.path
        own = holder.holder()
        assert own is not None
        assert own.identity == "secret"
        assert not waiting.done()
        holder.release()
        waiting.result(SOON).release()

    def test_contenders_that_give_up_are_noticed(
        self, mine: Place, theirs: Place, owner: Any, zklock_server: ZooKeeperServer
    ) -> None:
        holder, secret = granted(theirs.Lock()), zklock.Lock(owner, mine.path)
        middle = theirs.waits(secret, 2)
        before = watch_count(zklock_server)
        waiting = theirs.waits(mine.Lock(), 3)
        wait_for(lambda: watch_count(zklock_server) > before, SOON)
        secret.cancel()
        with pytest.raises(zklock.AcquireCancelled):
            middle.result(SOON)
        theirs.queued(2)
        holder.release()
        waiting.result(SOON).release()

    def test_for_oneself_means_no_grant(
        self, theirs: Place, zklock_connect: Connect, zklock_hosts: str
    ) -> None:
        theirs.client.ensure_path(theirs.path)
        blind = [make_acl("world", "anyone", write=True, delete=True)]
        ours = zklock_connect(default_acl=blind)
        with kazoo_client(zklock_hosts, default_acl=blind) as kazoos:
            for client in (ours, kazoos):
                lock = zklock.Lock(client, theirs.path)
                for how in ({}, {"blocking": False}, {"timeout": 1.0}):
                    with pytest.raises(zklock.AccessDenied, match="read permission") as caught:
                        lock.acquire(**how)
                    assert caught.value.path == theirs.path
                    theirs.gone()
                with theirs.Lock(), pytest.raises(zklock.AccessDenied):
                    lock.acquire()  # it would wait for nothing
        theirs.passes_on()

    def test_for_others_only_costs_one_answer(self, behind: Behind, other: Any) -> None:
        auth = [("digest", "owner:secret")]
        far = behind(timeout=60.0, default_acl=[SECRET], auth_data=auth)
        other.ensure_path(far.path)
        lock = far.Lock()
        granted(lock).release()
        since = behind.proxy.mark()
        granted(lock).release()
        asked = [
            frame.op
            for frame in behind.proxy.frames
            if frame.number > since and frame.kind is FrameKind.REQUEST
        ]
        assert asked == ["create2", "getChildren2", "delete"]

    def test_for_a_while_keeps_nobody_waiting(
        self,
        theirs: Place,
        zklock_connect: Connect,
        zklock_server: ZooKeeperServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Nobody is told that a node goes which is hidden at that moment."""
        monkeypatch.setattr("zklock._core.watches.LOOK_AGAIN", 1.0)
        holder = granted(theirs.Lock())
        waiting = theirs.waits(zklock.Lock(zklock_connect(timeout=3.0), theirs.path), 2)
        own = theirs.nodes()[1]
        wait_for(lambda: watches(zklock_server, own), SOON)
        theirs.client.add_auth("digest", "owner:secret")
        theirs.client.set_acls(holder.path, [SECRET])
        holder.release()
        waiting.result(SOON).release()

    def test_from_now_on_ends_the_lease(self, theirs: Place, zklock_connect: Connect) -> None:
        """Somebody takes the read permission on a holder's node away."""
        losses = Losses()
        lock = zklock.Lock(zklock_connect(timeout=1.0), theirs.path, on_lost=losses)
        grant = granted(lock)
        theirs.client.add_auth("digest", "owner:secret")
        theirs.client.set_acls(grant.path, [SECRET])
        assert losses.one().reason is zklock.LossReason.LEASE_LAPSED
        theirs.gone()  # it may still be deleted
        with lock as second:
            second.verify()


Allow = Callable[..., None]


class TestForbidden:
    @pytest.fixture
    def allow(self, mine: Place, theirs: Place) -> Iterator[Allow]:
        """Return ``allow(at, **permissions)``: others have no more at the path, which is made."""
        client = theirs.client
        client.add_auth("digest", "owner:secret")

        def allow(at: str = "", **permissions: bool) -> None:
            acl = [SECRET, make_acl("world", "anyone", **permissions)]
            client.ensure_path(mine.path + at)
            client.set_acls(mine.path + at, acl)

        yield allow
        client.delete(mine.path, recursive=True)

    @pytest.mark.parametrize(
        "missing", [["create"], ["read"], ["create", "read"], ["create", "delete", "read"]]
    )
    def test_acquiring(self, allow: Allow, mine: Place, theirs: Place, missing: list[str]) -> None:
        allow(**dict.fromkeys({"create", "delete", "read", "write"} - {*missing}, True))
        lock = mine.Lock()
        for how in ({}, {"blocking": False}):
            with pytest.raises(zklock.AccessDenied, match="ACLs forbid it") as caught:
                lock.acquire(**how)
            assert caught.value.path == mine.path
            assert theirs.nodes() == []
        if "read" in missing:
            for ask in (lock.contenders, lock.holder):
                with pytest.raises(zklock.AccessDenied):
                    ask()
        else:
            assert lock.contenders() == []

    def test_gathering_permits(self, allow: Allow, mine: Place, theirs: Place) -> None:
        """A client that may not make a permit, nor look for it, leaves the queue nevertheless."""
        semaphore = mine.Semaphore(limit=2)
        granted(semaphore).release()
        allow("/leases", delete=True)
        for permits in (1, 2):
            with pytest.raises(zklock.AccessDenied):
                semaphore.acquire(permits=permits)
            assert theirs.nodes("/locks") == []
            assert theirs.nodes("/leases") == []

    def test_below_what_may_not_be_written_or_read(
        self, allow: Allow, mine: Place, theirs: Place
    ) -> None:
        lock = mine.Lock("/a/b")
        allow(read=True)
        with pytest.raises(zklock.AccessDenied):
            lock.acquire()
        assert lock.contenders() == []
        assert theirs.nodes() == []
        # From 3.8.4 and 3.9.2 on, a look whether a node there is missing is refused.
        allow(create=True, delete=True)
        granted(lock).release()

    def test_giving_permits_back(self, allow: Allow, mine: Place, theirs: Place) -> None:
        """The permits stay until the session ends; the contender does not keep others waiting."""
        allow("/locks", create=True, read=True, delete=True)
        allow("/leases", create=True, read=True)
        first = mine.Semaphore(limit=1)
        granted(first)
        assert first.acquire(timeout=0.2) is None
        theirs.gone("/locks")
        with pytest.raises(zklock.AccessDenied):
            first.acquire(blocking=False)
        assert theirs.nodes("/locks") == []
        with pytest.raises(zklock.AccessDenied):
            first.release()
        mine.client.stop()
        theirs.gone("/leases")

    def test_releasing(self, allow: Allow, mine: Place, theirs: Place) -> None:
        """A client that may not delete keeps the lock until its session ends."""
        allow(create=True, read=True)
        lock = mine.Lock()
        grant = granted(lock)
        with pytest.raises(zklock.AccessDenied) as caught:
            lock.release()
        assert caught.value.path == mine.path
        assert (grant.held, grant.released, lock.grant) == (False, True, None)
        theirs.queued(1)
        assert lock.acquire(timeout=0.2) is None
        mine.client.stop()
        theirs.gone()

    def test_leaving_a_mark(self, allow: Allow, mine: Place, theirs: Place) -> None:
        allow(create=True, delete=True, read=True)
        with pytest.raises(zklock.AccessDenied, match="write permission on"):
            mine.Lock(track_abandoned=True).acquire()
        assert theirs.nodes() == []
        with theirs.Lock(track_abandoned=True) as grant:
            assert grant.abandoned is False
        with mine.Lock() as grant:
            grant.verify()  # a plain one needs no such permission

    def test_removing_a_mark(self, allow: Allow, mine: Place, theirs: Place) -> None:
        """A client that may not write to the path any more is in nobody's way."""
        allow(create=True, delete=True, read=True, write=True)
        lock = mine.Lock(track_abandoned=True)
        granted(lock)
        allow(create=True, delete=True, read=True)
        with pytest.raises(zklock.AccessDenied, match="write permission on") as caught:
            lock.release()
        assert caught.value.path == mine.path
        theirs.gone()
        with theirs.Lock(track_abandoned=True) as grant:
            assert grant.abandoned is True


class Container(Create2):  # type: ignore[misc]
    """kazoo has no request for containers."""

    type = 19


def make_container(client: Any, path: str) -> None:
    acl = [make_acl("world", "anyone", all=True)]
    answer = client.handler.async_result()
    client._call(Container(path, b"", acl, 4), answer)
    answer.get(timeout=SOON)


class TestParents:
    @pytest.fixture
    def server(self, request: pytest.FixtureRequest) -> Iterator[ZooKeeperServer]:
        with ZooKeeperServer(system_properties=request.param) as server:
            yield server

    @pytest.mark.parametrize("below", ["", "/deeper"])
    def test_that_are_ephemeral(self, mine: Place, other: Any, below: str) -> None:
        other.create(mine.path, ephemeral=True)
        lock = mine.Lock(below)
        for how in ({}, {"blocking": False}):
            with pytest.raises(zklock.ZkLockError, match="ephemeral znode") as caught:
                lock.acquire(**how)
            assert caught.value.path == mine.path + below
        assert lock.contenders() == []
        other.delete(mine.path)
        with lock:
            pass

    @pytest.mark.hazard("H1")
    @pytest.mark.parametrize(
        "server", [{"znode.container.checkIntervalMs": "100"}], indirect=True, ids=["reaps soon"]
    )
    def test_that_are_containers(self, server: ZooKeeperServer, zklock_connect: Connect) -> None:
        client = zklock_connect(server.hosts)
        tokens = []
        lock = zklock.Lock(client, "/container")
        for _ in range(2):
            make_container(client, "/container")
            with lock as grant:
                tokens.append(grant.token)
            wait_for(lambda: not client.exists("/container"), SOON)
        assert [token.sequence for token in tokens] == [0, 0]
        assert tokens[0] < tokens[1]
        with lock as grant:
            make_container(client, "/container/-lock-0000000000")
            assert tokens[1] < grant.token

    @pytest.mark.parametrize(
        "server", [{"zookeeper.enforceQuota": "true"}], indirect=True, ids=["enforces quotas"]
    )
    def test_that_are_full(self, server: ZooKeeperServer, zklock_connect: Connect) -> None:
        client = zklock_connect(server.hosts)
        client.create("/full/stray", makepath=True)
        limits = b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=2"
        client.create("/zookeeper/quota/full/zookeeper_limits", limits, makepath=True)
        client.create("/zookeeper/quota/full/zookeeper_stats", b"count=2,bytes=0")
        lock = zklock.Lock(client, "/full")
        with pytest.raises(zklock.ZkLockError, match="quota is used up"):
            lock.acquire()
        assert children(client, "/full") == ["stray"]
        client.delete("/full/stray")
        with lock:
            waiting = run(granted, lock)
            with pytest.raises(zklock.ZkLockError, match="quota is used up"):
                waiting.result(SOON)


def lead(place: Place) -> None:
    with place.LeaderElection().acquire(timeout=SOON) as term:
        assert term is not None


def join(place: Place) -> None:
    with place.WorkerPool(shards=1, handler=lambda _: None):
        pass


USES: dict[str, Callable[[Place], object]] = {
    "acquire": lambda place: granted(place.Lock()).release(),
    "acquire a permit": lambda place: granted(place.Semaphore(limit=1)).release(),
    "lead": lead,
    "join": join,
    "make a mark": lambda place: ZooKeeperGuard(place.client, place.path).create(),
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("use", USES)
def test_ancestors_that_go_while_the_path_is_made(
    front: Threads, zklock_hosts: str, other: Any, zklock_path: str, use: str, times: int
) -> None:
    """A clean-up deletes the ancestors of a path while it is made: it is made again (kazoo 251)."""
    top = f"{zklock_path}/home/of"

    with FaultProxy(zklock_hosts) as proxy, zklock.connect(proxy.hosts) as client:

        def hold() -> Any:
            return proxy.hold_before_reply(
                op=("create", "create2"), where=lambda it: it.path == top and it.error == 0
            )

        holds = [hold()]
        used = run(USES[use], Place(front, client, f"{top}/locks/report"))
        for left in reversed(range(times)):
            wait_for(lambda: holds[-1].fired.is_set() or used.done(), SOON, "the ancestors")
            if left:
                holds.append(hold())
            other.delete(zklock_path, recursive=True)
            proxy.release()
        # A contender is made together with its path: whoever deletes both breaks the lock.
        with suppress(zklock.LockLost):
            used.result(SOON)
    other.delete(zklock_path, recursive=True)
