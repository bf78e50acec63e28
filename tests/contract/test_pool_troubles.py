"""A pool whose nodes are deleted, written by others, or whose workers crash; and draining."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

import zklock
from tests.contract import workers
from tests.contract.fronts import Place, Steps, Threads
from tests.contract.support import SOON, Child, children, now_of, reaches, run, tree
from tests.contract.workers import Front, Join, joining, numbers
from tests.modes import bounded, repeated
from tests.stopwatch import Stopwatch
from zklock._election import base, options
from zklock._pool import nodes, trouble, worker
from zklock._pool.member_states import MemberState
from zklock._pool.own_threads import OwnThreads
from zklock._pool.worker import Publication
from zklock.testing import FaultProxy, wait_for

SHARDS = 12


@pytest.fixture
def join(front: Front, zklock_connect: Callable[..., Any], zklock_path: str) -> Iterator[Join]:
    """Return ``join(identity, **options)``: a started worker with a session of its own."""
    with joining(front, zklock_path, zklock_connect, shards=SHARDS) as join:
        yield join


@dataclass
class Member:
    """A worker made by hand, of a release of its own."""

    client: Any
    assigned: str
    member: str = ""

    def has(self) -> set[int]:
        """Return what it is to have."""
        data = self.client.get(self.assigned)[0]
        return numbers(data.decode().partition(" ")[2])

    def vanish(self) -> None:
        """Go without a word."""
        for node in (self.member, self.assigned):
            self.client.delete(node)


@dataclass
class Inside:
    """What a pool has in ZooKeeper, for a client beside it; and what it logs."""

    client: Any
    path: str
    log: pytest.LogCaptureFixture

    def at(self, *names: str) -> str:
        """Return the path of a node."""
        return "/".join((self.path, *names))

    def names(self, folder: str) -> list[str]:
        """Return the names of the nodes of a folder."""
        return children(self.client, self.at(folder))

    def only(self, folder: str) -> str:
        """Return the only node of a folder."""
        (name,) = self.names(folder)
        return self.at(folder, name)

    def data(self, name: str) -> bytes:
        """Return the data of a node; none if it is absent."""
        with suppress(NoNodeError):
            return bytes(self.client.get(self.at(name))[0])
        return b""

    def allow(self, node: str, **permissions: bool) -> None:
        """Leave everybody these permissions alone."""
        self.client.set_acls(node, [make_acl("world", "anyone", **permissions)])

    def open(self, node: str) -> None:
        """Allow everybody everything."""
        self.client.set_acls(node, OPEN_ACL_UNSAFE)

    def delete(self, path: str) -> None:
        """Delete a tree in one transaction: others make nodes in it meanwhile."""

        def gone() -> bool:
            transaction = self.client.transaction()
            for node in reversed(tree(self.client, path)):
                transaction.delete(node)
            return not any(isinstance(it, Exception) for it in transaction.commit())

        wait_for(gone, SOON, f"{path} is deleted")

    def logged(self, *texts: str, count: int = 1) -> None:
        """Wait until this was logged."""
        wait_for(
            lambda: all(self.log.text.count(text) >= count for text in texts),
            SOON,
            lambda: f"{texts} in {self.log.text}",
        )

    def member(self, identity: str, acl: Any = None, **more: Any) -> Member:
        """Make a worker; ``acl`` is that of its own node."""
        nodes = {kind: self._make(kind, f"_c_{identity}-{kind}-") for kind in ("assigned", "owned")}
        names = {kind: node.rpartition("/")[2] for kind, node in nodes.items()}
        profile = {"identity": identity, "capacity": 1.0, **names, **more}
        made = self._make("members", f"_c_{identity}-member-", json.dumps(profile).encode(), acl)
        return Member(self.client, nodes["assigned"], made)

    def _make(self, folder: str, name: str, data: bytes = b"", acl: Any = None) -> str:
        where = self.at(folder, name)
        made: str = self.client.create(where, data, ephemeral=True, sequence=True, acl=acl)
        return made


@pytest.fixture
def inside(zklock_client: Any, zklock_path: str, caplog: pytest.LogCaptureFixture) -> Inside:
    return Inside(zklock_client, zklock_path, caplog)


def owned(*pools: Any) -> list[int]:
    return sorted(number for pool in pools for number in pool.owned())


def shared(*pools: Any, total: int = SHARDS) -> None:
    workers.shared(pools, range(total))


class Calls:
    """A handler that waits to be told, and counts its calls."""

    def __init__(self, front: Front) -> None:
        self.numbers: list[int] = []
        self.handler = front.script(self._handle)

    def _handle(self, shard: Any) -> Steps:
        self.numbers.append(shard.number)
        yield shard.should_stop


@pytest.mark.hazard("H41")
def test_what_has_drained_begins_nothing(
    front: Front, join: Join, zklock_proxy: FaultProxy, zklock_connect: Callable[..., Any]
) -> None:
    one = join("a", settle=0.5)
    shared(one)
    calls = Calls(front)
    two = join("b", handler=calls.handler, client=zklock_connect(zklock_proxy.hosts))
    wait_for(lambda: len(one.members()) == 2, SOON, "another worker")
    zklock_proxy.hold(to_client=False)  # so that the leader hears too late that it drains
    draining = run(two.drain, SOON)
    wait_for(
        lambda: any(it.wanted == "b" for it in one.assignment()) or two.owned(),
        SOON,
        "it is to have shards",
    )
    before = len(calls.numbers) if draining.done() else None
    zklock_proxy.release(to_client=False)
    assert draining.result(SOON)
    before = len(calls.numbers) if before is None else before
    wait_for(lambda: [it.draining for it in one.members()] == [False, True], SOON, "it is heard")
    shared(one)
    assert len(calls.numbers) == before
    assert two.owned() == {}
    two.resume()
    shared(one, two)
    wait_for(lambda: len(calls.numbers) == before + SHARDS // 2, SOON, "it takes shards again")


def test_what_has_left_without_an_answer_has_drained(
    front: Front, join: Join, zklock_proxy: FaultProxy, zklock_connect: Callable[..., Any]
) -> None:
    pool = join("a", handler=Calls(front).handler, client=zklock_connect(zklock_proxy.hosts))
    shared(pool)
    zklock_proxy.hold(to_client=False)
    draining = run(pool.drain)
    pool.stop()
    assert draining.result(SOON)
    assert pool.drain(SOON)
    zklock_proxy.release(to_client=False)


def test_drained_at_any_moment_of_the_way_in(front: Front, join: Join) -> None:
    one = join("a", settle=0.05)
    shared(one)
    for number in range(12):
        calls = Calls(front)
        two = join(f"b{number}", handler=calls.handler)
        threading.Event().wait(0.01 * number)
        assert two.drain(SOON)
        before = len(calls.numbers)
        shared(one)
        assert len(calls.numbers) == before
        two.stop()


@pytest.mark.hazard("H42")
@pytest.mark.parametrize("what", ["", "/shards", "/members", "/assigned", "/owned"])
def test_what_is_deleted_of_a_pool_is_made_again(join: Join, inside: Inside, what: str) -> None:
    one, two = join("a"), join("b")
    shared(one, two)
    before = {number: it.token for pool in (one, two) for number, it in pool.owned().items()}
    inside.delete(inside.path + what)
    if what in {"", "/shards"}:
        inside.logged("list of shards was deleted and is written again: 12 shards")
    wait_for(lambda: inside.data("shards") == b"12", SOON, "the number")
    shared(one, two)

    def all_told() -> bool:
        mine = one.owned()
        return [it.owner for it in one.assignment()] == [
            "a" if number in mine else "b" for number in range(SHARDS)
        ]

    def anew() -> bool:
        grants = one.owned() | two.owned()
        return len(grants) == SHARDS and all(it.token > before[at] for at, it in grants.items())

    if what in {"", "/shards"}:
        wait_for(anew, SOON, "tokens rise")
    wait_for(all_told, SOON, "all is told")
    three = join("c")
    shared(one, two, three)


def refusing(call: Callable[..., Any], times: float, of: Callable[..., bool]) -> Callable[..., Any]:
    """Return a call that fails at first, as where no thread can be started."""
    left = [times]

    def refused(*args: Any, **options: Any) -> Any:
        if left[0] and of(*args, **options):
            left[0] -= 1
            raise RuntimeError("can't start new thread")
        return call(*args, **options)

    return refused


def of_pool(thread: threading.Thread) -> bool:
    return thread.name == "zklock-pool"


def test_a_pool_whose_thread_cannot_be_started_at_first(
    mine: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = mine.pool(identity="a", shards=SHARDS)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refusing(threading.Thread.start, 1, of_pool))
        pool.start()
    shared(pool)
    pool.stop()


def test_a_pool_whose_thread_cannot_be_started(
    mine: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = mine.pool(identity="a", shards=SHARDS)
    with monkeypatch.context() as patched:
        refused = refusing(threading.Thread.start, math.inf, of_pool)
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(zklock.ZkLockError, match=r"call start\(\) again"):
            pool.start()
    with pool:
        shared(pool)


def test_a_pool_that_is_told_to_leave_just_as_its_client_ends(
    other: Any, zklock_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it stands for in ZooKeeper has ended, and nobody has heard so yet."""
    attend, stopped = nodes.keep_registered, []

    def tells(worker: Any, tell: Any, left: Callable[[], object]) -> Any:
        def ends() -> None:
            left()
            stopped.append(run(pool.stop))

        return attend(worker, tell, ends)

    monkeypatch.setattr(nodes, "keep_registered", tells)
    before = set(threading.enumerate())
    pool = zklock.WorkerPool(other, zklock_path, identity="a", shards=SHARDS)
    pool.start()
    shared(pool)
    other.stop()
    wait_for(lambda: stopped, SOON, "it was told to leave")
    stopped[0].result(SOON)

    def left() -> list[str]:
        return [each.name for each in set(threading.enumerate()) - before if "pool" in each.name]

    wait_for(lambda: not left(), SOON, lambda: str(left()))


def test_a_client_that_is_started_again_has_no_half_of_a_worker(other: Any, inside: Inside) -> None:
    """One thread of the pool sees the other while it is stopped, the other one only later."""
    pool = zklock.WorkerPool(other, inside.path, identity="a", shards=SHARDS)
    pool.start()
    shared(pool)
    held_up, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        held_up.set()
        go_on.wait(SOON)

    pool._worker.task_queue.later(hold_up)
    assert held_up.wait(SOON)
    other.stop()
    wait_for(lambda: pool._worker.stopping, SOON, "the thread that leads has seen it")
    other.start()
    go_on.set()
    wait_for(lambda: pool._worker.state is MemberState.CLOSED, SOON, "the worker has left")
    assert inside.names("members") == []
    pool.stop()


@pytest.mark.hazard("H42")
@pytest.mark.parametrize("garbage", [b"many", b"0", b"-3", b"99999999"])
def test_a_broken_number_of_shards_changes_nothing_and_can_be_mended(
    mine: Place, join: Join, inside: Inside, garbage: bytes
) -> None:
    one = join("a")
    shared(one)
    inside.client.set(inside.at("shards"), garbage)
    inside.logged("correct it with set_shards()")
    shared(one)
    late = mine.pool(shards=SHARDS)
    with pytest.raises(
        zklock.ZkLockError, match=r"neither a number of shards nor .*: correct it with set_shards"
    ):
        late.start()
    late.set_shards(5)
    shared(one, total=5)
    late.start()
    shared(one, late, total=5)
    late.stop()


@pytest.mark.hazard("H42")
@pytest.mark.parametrize("garbage", [b"\xff\xfe", b"nonsense 5-x", b"1 0-99999999999"])
def test_garbage_in_an_assignment_is_repaired(join: Join, inside: Inside, garbage: bytes) -> None:
    one = join("a")
    shared(one)
    tokens = {number: grant.token for number, grant in one.owned().items()}
    node = inside.only("assigned")
    inside.client.set(node, garbage)
    inside.logged("not a list of shards; ignored")
    two = join("b")
    shared(one, two)
    assert Member(inside.client, node).has() == set(one.owned())
    assert all(one.owned()[number].token == tokens[number] for number in one.owned())


def test_a_forked_child_does_not_wait_for_the_worker_of_its_parent(
    zklock_hosts: str, zklock_path: str
) -> None:
    with Child("working_forked", hosts=zklock_hosts, path=zklock_path) as process:
        assert process.hears() == {
            "owned": "{}",
            "stop": "ForkedClient",
            "drain": "ForkedClient",
            "next": "ForkedClient",
            "start": "ForkedClient",
            "restart": "ForkedClient",
            "end": "None",
            "close": "None",
        }
        assert process.hears() == [0, 1], "the parent's worker goes on"
        assert process.process.wait(SOON) == 0


def test_a_worker_of_a_later_release_that_was_hidden_gets_its_share(
    join: Join, inside: Inside
) -> None:
    one = join("a")
    shared(one)
    hidden = [make_acl("world", "anyone", write=True, admin=True)]
    later = inside.member("later", hidden, colour="blue", zones=["x", "y"])
    inside.logged("gets no shards because its node cannot be read")
    assert later.has() == frozenset()
    inside.open(later.member)
    wait_for(lambda: len(later.has()) == SHARDS // 2, SOON, "its share")
    wait_for(lambda: len(one.owned()) == SHARDS // 2, SOON, "the other's share")
    assert [it.identity for it in one.members()] == ["a", "later"]
    assert inside.log.text.count("because its node cannot be read") == 1


@pytest.mark.parametrize("shut", [{"read": True}, {}], ids=["written", "read or written"])
def test_others_are_served_while_what_is_assigned_to_a_worker_may_not_be_written(
    join: Join, inside: Inside, shut: dict[str, bool]
) -> None:
    one = join("a")
    shared(one)
    later = inside.member("later")
    wait_for(lambda: len(later.has()) == SHARDS // 2, SOON, "its share")
    wait_for(lambda: len(one.owned()) == SHARDS // 2, SOON, "the other's share")
    had = later.has()
    owner = make_acl("auth", "", all=True)
    inside.client.add_auth("digest", "later:secret")  # it can read what others cannot
    inside.client.set_acls(later.assigned, [owner, make_acl("world", "anyone", **shut)])
    (term,) = inside.names("leader")
    two = join("b")
    wait_for(lambda: one.owned() and two.owned(), SOON, "the others' shares")
    if shut:
        wait_for(lambda: len(two.owned()) == SHARDS // 4, SOON, "a share of the rest")
        wait_for(lambda: len(one.owned()) == SHARDS // 4, SOON, "the rest")
    assert later.has() == had
    said = "because ACLs forbid the leader to read or write it"
    inside.logged(said)
    inside.open(later.assigned)
    wait_for(lambda: len(later.has()) == SHARDS // 3, SOON, "its share of now")
    wait_for(lambda: len(one.owned()) == len(two.owned()) == SHARDS // 3, SOON, "theirs")
    assert inside.log.text.count(said) == 1
    assert "cannot lead" not in inside.log.text
    assert term in inside.names("leader")


def test_the_others_are_shown_while_acls_hide_a_worker(join: Join, inside: Inside) -> None:
    one = join("a")
    shared(one)
    wait_for(lambda: [it.owned for it in one.members()] == [SHARDS], SOON, "what it owns")
    (name,) = inside.names("owned")
    hidden = [make_acl("world", "anyone", write=True, admin=True)]
    later = inside.member("later", hidden)
    assert [(it.identity, it.owned) for it in one.members()] == [("a", SHARDS)]
    assert {(it.wanted, it.owner) for it in one.assignment()} == {("a", "a")}
    owned = inside.at("owned", name)
    inside.client.set_acls(owned, hidden)
    assert [(it.identity, it.assigned, it.owned) for it in one.members()] == [("a", SHARDS, 0)]
    assert {(it.wanted, it.owner) for it in one.assignment()} == {("a", None)}
    inside.open(owned)
    for name in inside.names("members"):
        inside.client.set_acls(inside.at("members", name), hidden)
    for ask in (one.members, one.assignment):
        with pytest.raises(zklock.AccessDenied):
            ask()
    inside.open(later.member)
    assert [it.identity for it in one.members()] == ["later"]


@pytest.mark.hazard("H42")
def test_a_worker_that_says_nothing_sensible_stops_nobody(join: Join, inside: Inside) -> None:
    one = join("a")
    shared(one)
    for number, data in enumerate((b"", b"\xff", b"{}", b"[" * 100_000)):
        inside.client.create(f"{inside.path}/members/x{number}", data, ephemeral=True)
    for number, name in enumerate(("", "../shards", "a/b", "..")):
        inside.member(f"y{number}", assigned=name)
    (mine,) = (name for name in inside.names("assigned") if "_c_y" not in name)
    inside.member("twin", assigned=mine)
    hidden = [make_acl("world", "anyone", write=True)]
    inside.client.create(inside.at("members/z"), b"{}", ephemeral=True, acl=hidden)
    two = join("b")
    shared(one, two)
    inside.logged("its worker gets no shards", count=8)
    assert "gets no shards because its node cannot be read" in inside.log.text
    assert {"a", "b"} <= {it.identity for it in one.members()}


def not_to_be_written(inside: Inside, folder: str) -> str:
    """Have ACLs forbid to write the only node of a folder; return that node."""
    node = inside.only(folder)
    inside.allow(node, create=True, delete=True, read=True, admin=True)
    return node


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Return what counts how often ACLs have refused a worker to write a node of its own."""
    found = threading.Semaphore(0)
    real = Publication._answered

    def answered(self: Publication, error: BaseException | None) -> None:
        if isinstance(error, zklock.AccessDenied):
            found.release()
        real(self, error)

    monkeypatch.setattr(Publication, "_answered", answered)
    return found


def test_what_a_worker_may_not_write_for_a_while_is_written_later(
    join: Join, inside: Inside, refused: threading.Semaphore
) -> None:
    """ACLs refuse it to say what it owns."""
    one = join("a")
    shared(one)
    wait_for(lambda: [it.owned for it in one.members()] == [SHARDS], SOON, "what it owns")
    node = not_to_be_written(inside, "owned")
    said = inside.client.get(node)[0]
    one.set_shards(SHARDS - 1)
    assert refused.acquire(timeout=SOON)
    assert inside.client.get(node)[0] == said
    inside.open(node)
    wait_for(lambda: inside.client.get(node)[0] != said, SOON, "what it says now")
    (told,) = one.members()
    assert told.owned == len(one.owned()) == SHARDS - 1


def test_all_that_a_worker_may_not_say_of_itself_is_tried_as_one(
    join: Join, inside: Inside, monkeypatch: pytest.MonkeyPatch, refused: threading.Semaphore
) -> None:
    """Else there would be as many tries a second as it has changed what it says.

    It stays in the pool, though it looks at its node whenever the leader has written to it.
    """
    monkeypatch.setattr(worker, "REFUSED", 0.1)
    open_now, most = Counter[Publication](), Counter[Publication]()
    real_write, real_answered = Publication._write, Publication._answered

    def write(self: Publication) -> None:
        real_write(self)
        open_now[self] += self._under_way
        most[self] = max(most[self], open_now[self])

    def answered(self: Publication, error: BaseException | None) -> None:
        open_now[self] -= 1
        real_answered(self, error)

    monkeypatch.setattr(Publication, "_write", write)
    monkeypatch.setattr(Publication, "_answered", answered)
    one = join("a")
    shared(one)
    node = not_to_be_written(inside, "members")
    for number in range(20):
        one.set_capacity(2.0 + number)
    assert refused.acquire(timeout=SOON)
    one.set_shards(SHARDS + 1)
    shared(one, total=SHARDS + 1)
    for _ in range(5):
        assert refused.acquire(timeout=SOON)
    inside.open(node)
    wait_for(lambda: [it.capacity for it in one.members()] == [21.0], SOON, "the newest")
    assert set(most.values()) == {1}, "one at a time"
    assert inside.names("members") == [node.rpartition("/")[2]]
    assert "cannot be in the pool" not in inside.log.text


@pytest.mark.hazard("H43")
def test_a_worker_that_crashes_in_a_row_is_left_out_for_longer_and_longer(
    front: Front, zklock_connect: Callable[..., Any], inside: Inside
) -> None:
    unit = 3.0
    client = zklock_connect(timeout=unit)
    pool = front.pool(client, inside.path, identity="a", shards=SHARDS, settle=0.05)
    with pool:
        shared(pool)
        waits = []
        for _ in range(4):
            came = now_of(client)
            looper = inside.member("looper")
            wait_for(looper.has, SOON, "it gets shards")
            waits.append((now_of(client) - came) / unit)
            reaches(client, came + unit)
            looper.vanish()
            shared(pool)
        assert waits[2] >= 1
        assert waits[3] >= 2
        other = inside.member("other")
        with Stopwatch() as watch:
            wait_for(other.has, SOON, "it gets shards")
        assert watch.awake < bounded(4 * unit)


def test_a_worker_that_leaves_in_order_has_not_crashed(front: Front, join: Join) -> None:
    one = join("a", settle=0.05)
    worker = (one if isinstance(front, Threads) else one._lock)._worker
    for _ in range(3):
        two = join("b")
        shared(one, two)
        two.stop()
        shared(one)
    assert worker.campaign.newcomers._records == {}


@pytest.mark.parametrize("front", [Threads], indirect=True, ids=["threads"])
def test_without_threads_for_a_while(
    front: Front, join: Join, monkeypatch: pytest.MonkeyPatch, inside: Inside
) -> None:
    """The callbacks need one, and what leads asks for one."""
    led = refusing(zklock.LeaderElection.acquire, 2, lambda *_, **__: True)
    monkeypatch.setattr(zklock.LeaderElection, "acquire", led)
    called = refusing(OwnThreads.submit, 3, lambda *given: isinstance(given[-1], zklock.Grant))
    monkeypatch.setattr(OwnThreads, "submit", called)
    assigned: list[int] = []
    calls = Calls(front)
    pool = join(
        "a",
        handler=calls.handler,
        on_assigned=lambda number, grant: assigned.append(number),
        retry=(0.05, 0.1),
        shards=6,
    )
    shared(pool, total=6)
    wait_for(lambda: sorted(calls.numbers) == list(range(6)), SOON, "all are handled")
    assert len(assigned) == 3
    assert inside.log.text.count("this worker cannot lead: can't start new thread") == 1
    assert inside.log.text.count("on_assigned of shard") == 3
    pool.stop()
    assert pool.owned() == {}


@pytest.mark.parametrize("front", [Threads], indirect=True, ids=["threads"])
def test_a_coroutine_that_comes_of_a_plain_function_is_told_of(join: Join, inside: Inside) -> None:
    async def never(*args: Any) -> None:
        raise AssertionError("never run")

    def plain(*args: Any) -> Any:
        return never(*args)

    pool = join("a", shards=1, on_assigned=plain, handler=plain, on_error="stop")
    for who in ("on_assigned", "the handler"):
        inside.logged(f"TypeError: {who} returned a coroutine, but no event loop runs it")
    pool.stop()


@pytest.mark.parametrize("how", ["with", "start"])
def test_interrupts_leave_no_worker_h9(zklock_hosts: str, zklock_path: str, how: str) -> None:
    rounds = repeated(150, 60)
    with Child(
        "interrupt_pool",
        hosts=zklock_hosts,
        path=zklock_path,
        how=how,
        rounds=rounds,
        longest=0.006,
    ) as child:
        tally = child.hears()
        assert child.process.wait(SOON) == 0
    assert set(tally) == {"interrupted", "done"}, tally
    assert sum(tally.values()) == rounds
    assert tally["interrupted"] > rounds / 20


@pytest.mark.parametrize("front", [Threads], indirect=True, ids=["threads"])
def test_all_are_handled_after_no_thread_could_be_started(
    join: Join, monkeypatch: pytest.MonkeyPatch, inside: Inside
) -> None:
    """A handler begins and returns meanwhile. Its thread is no more than one."""
    start = threading.Thread.start
    began: list[int] = []
    started: list[str] = []
    refused: list[str] = []
    returns = threading.Event()

    def unless_refused(thread: threading.Thread) -> None:
        if thread.name.startswith("zklock-shard_"):
            if started:
                refused.append(thread.name)
                raise RuntimeError("can't start new thread")
            started.append(thread.name)
        start(thread)

    def handle(shard: zklock.Shard) -> None:
        began.append(shard.number)
        if len(began) == 1:
            assert returns.wait(SOON)
        else:
            shard.should_stop.wait()

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", unless_refused)
        pool = join("a", handler=handle, retry=(0.05, 0.1))
        shared(pool)
        wait_for(lambda: len(refused) > 3 * SHARDS, SOON, "refusals")
        assert inside.log.text.count("did not start") == SHARDS - 1, "once for each shard"
        returns.set()
    wait_for(lambda: sorted(began) == list(range(SHARDS)), SOON, lambda: f"{began} were handled")


@pytest.mark.parametrize(
    ("where", "shut"),
    [("members", {"read": True}), ("members", {}), ("assigned", {}), ("owned", {"read": True})],
)
def test_a_worker_that_may_not_join_is_told_at_the_start(
    mine: Place, inside: Inside, where: str, shut: dict[str, bool]
) -> None:
    pool_nodes = [inside.at(each) for each in ("members", "assigned", "owned", "shards")]
    for path in pool_nodes:
        inside.client.ensure_path(path)
    node = inside.at(where)
    inside.allow(node, admin=True, **shut)
    pool = mine.pool(identity="a", shards=SHARDS)
    with pytest.raises(zklock.AccessDenied) as caught:
        pool.start()
    assert caught.value.path is not None
    assert caught.value.path.startswith(node)
    inside.open(node)
    assert [children(inside.client, path) for path in pool_nodes[:3]] == [[], [], []]
    assert inside.log.text == ""
    with pool:
        shared(pool)


class Denials:
    """How often a pool was refused, and how long it paused then; a pause takes no time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pauses: list[float] = []
        real = options.pause_after

        def pause(failures: int, retry: tuple[float, float]) -> float:
            self.pauses.append(real(failures, retry, max))
            return 0.01

        for each in (trouble, base):
            monkeypatch.setattr(each, "pause_after", pause)


@pytest.mark.parametrize(
    ("shut", "also", "deleted", "trouble", "end"),
    [
        ("members", {"read": True}, "members", "cannot be in the pool", "is in the pool again"),
        ("leader", {}, "leader", "cannot lead", "can lead again"),
        ("members", {}, "leader", "cannot lead", "can lead again"),
        ("shards/3", {}, "shards/3", "cannot acquire", "shard 3 acquired"),
    ],
)
def test_what_acls_forbid_later_is_said_once(
    join: Join,
    inside: Inside,
    monkeypatch: pytest.MonkeyPatch,
    shut: str,
    also: dict[str, bool],
    deleted: str,
    trouble: str,
    end: str,
) -> None:
    """To be in the pool, to stand for election, to see who is in the pool, to own a shard."""
    inside.log.set_level("INFO", "zklock")
    one = join("a", retry=(0.5, 4.0))
    shared(one)
    (name,) = inside.names(deleted)
    denials = Denials(monkeypatch)
    inside.allow(inside.at(shut), admin=True, delete=True, **also)
    inside.client.delete(f"{inside.path}/{deleted}/{name}")
    wait_for(lambda: len(denials.pauses) >= 6, SOON, "it tries again")
    assert denials.pauses[:6] == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert inside.log.text.count(trouble) == 1
    inside.open(inside.at(shut))
    inside.logged(end)
    shared(one)
    assert inside.log.text.count(trouble) == 1


def test_a_pool_whose_client_is_stopped_leaves_without_an_error(
    mine: Place, inside: Inside
) -> None:
    inside.log.set_level("INFO", "zklock")
    pool = mine.pool(shards=SHARDS, handler=Calls(mine.front).handler)
    pool.start()
    shared(pool)
    mine.client.stop()
    assert pool.owned() == {}
    inside.logged("this worker leaves the pool for good: its client was stopped")
    pool.stop()
    assert [it.getMessage() for it in inside.log.records if it.levelname == "ERROR"] == []
    assert "call its start() first" not in inside.log.text
