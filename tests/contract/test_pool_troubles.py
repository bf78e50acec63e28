"""A pool whose nodes are deleted, written by others, or whose workers crash; and draining."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

import zklock
from tests.contract import workers
from tests.contract.fronts import Steps, Threads
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
def test_what_is_deleted_of_a_pool_is_made_again(
    join: Join,
    zklock_client: Any,
    zklock_path: str,
    what: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, two = join("a"), join("b")
    shared(one, two)
    before = {number: it.token for pool in (one, two) for number, it in pool.owned().items()}
    deleted(zklock_client, zklock_path + what)
    if what in {"", "/shards"}:
        wait_for(
            lambda: "list of shards was deleted and is written again: 12 shards" in caplog.text,
            SOON,
            "it is said",
        )
    wait_for(lambda: said(zklock_client, f"{zklock_path}/shards") == b"12", SOON, "the number")
    shared(one, two)
    if what in {"", "/shards"}:
        wait_for(
            lambda: (
                all(
                    grant.token > before[number]
                    for pool in (one, two)
                    for number, grant in pool.owned().items()
                )
                and owned(one, two) == list(range(SHARDS))
            ),
            SOON,
            "tokens rise",
        )
    wait_for(
        lambda: (
            [it.owner for it in one.assignment()]
            == ["a" if number in one.owned() else "b" for number in range(SHARDS)]
        ),
        SOON,
        "all is told",
    )
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
    front: Front,
    zklock_connect: Callable[..., Any],
    zklock_path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = front.pool(zklock_connect(), zklock_path, identity="a", shards=SHARDS)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refusing(threading.Thread.start, 1, of_pool))
        pool.start()
    shared(pool)
    pool.stop()


def test_a_pool_whose_thread_cannot_be_started(
    zklock_connect: Callable[..., Any], zklock_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = zklock.WorkerPool(zklock_connect(), zklock_path, identity="a", shards=SHARDS)
    with monkeypatch.context() as patched:
        refused = refusing(threading.Thread.start, math.inf, of_pool)
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(zklock.ZkLockError, match=r"call start\(\) again"):
            pool.start()
    with pool:
        shared(pool)


def test_a_pool_that_is_told_to_leave_just_as_its_client_ends(
    zklock_connect: Callable[..., Any], zklock_path: str, monkeypatch: pytest.MonkeyPatch
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
    client = zklock_connect()
    pool = zklock.WorkerPool(client, zklock_path, identity="a", shards=SHARDS)
    pool.start()
    shared(pool)
    client.stop()
    wait_for(lambda: stopped, SOON, "it was told to leave")
    stopped[0].result(SOON)

    def left() -> list[str]:
        return [each.name for each in set(threading.enumerate()) - before if "pool" in each.name]

    wait_for(lambda: not left(), SOON, lambda: str(left()))


def test_a_client_that_is_started_again_has_no_half_of_a_worker(
    zklock_connect: Callable[..., Any], zklock_client: Any, zklock_path: str
) -> None:
    """One thread of the pool sees the client while it is stopped, the other one only later."""
    client = zklock_connect()
    pool = zklock.WorkerPool(client, zklock_path, identity="a", shards=SHARDS)
    pool.start()
    shared(pool)
    held_up, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        held_up.set()
        go_on.wait(SOON)

    pool._worker.task_queue.later(hold_up)
    assert held_up.wait(SOON)
    client.stop()
    wait_for(lambda: pool._worker.stopping, SOON, "the thread that leads has seen it")
    client.start()
    go_on.set()
    wait_for(lambda: pool._worker.state is MemberState.CLOSED, SOON, "the worker has left")
    assert children(zklock_client, f"{zklock_path}/members") == []
    pool.stop()


def deleted(client: Any, path: str) -> None:
    """Delete a tree in one transaction: others make nodes in it meanwhile."""

    def gone() -> bool:
        transaction = client.transaction()
        for node in reversed(tree(client, path)):
            transaction.delete(node)
        return not any(isinstance(it, Exception) for it in transaction.commit())

    wait_for(gone, SOON, f"{path} is deleted")


def said(client: Any, path: str) -> bytes:
    try:
        data: bytes = client.get(path)[0]
    except NoNodeError:
        return b""
    return data


@pytest.mark.hazard("H42")
@pytest.mark.parametrize("garbage", [b"many", b"0", b"-3", b"99999999"])
def test_a_broken_number_of_shards_changes_nothing_and_can_be_mended(
    front: Front,
    join: Join,
    zklock_client: Any,
    zklock_connect: Callable[..., Any],
    zklock_path: str,
    garbage: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = join("a")
    shared(one)
    zklock_client.set(f"{zklock_path}/shards", garbage)
    wait_for(lambda: "correct it with set_shards()" in caplog.text, SOON, "it is said")
    shared(one)
    late = front.pool(zklock_connect(), zklock_path, shards=SHARDS)
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
def test_garbage_in_an_assignment_is_repaired(
    join: Join,
    zklock_client: Any,
    zklock_path: str,
    garbage: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = join("a")
    shared(one)
    tokens = {number: grant.token for number, grant in one.owned().items()}
    (name,) = children(zklock_client, f"{zklock_path}/assigned")
    node = f"{zklock_path}/assigned/{name}"
    zklock_client.set(node, garbage)
    wait_for(lambda: "not a list of shards; ignored" in caplog.text, SOON, "it is said")
    two = join("b")
    shared(one, two)
    assert Member(zklock_client, zklock_path, node, "").has() == set(one.owned())
    assert all(one.owned()[number].token == tokens[number] for number in one.owned())


@dataclass
class Member:
    """A worker made by hand, of a release of its own."""

    client: Any
    path: str
    assigned: str
    member: str

    def has(self) -> set[int]:
        """Return what it is to have."""
        data = self.client.get(self.assigned)[0]
        return numbers(data.decode().partition(" ")[2])

    def vanish(self) -> None:
        """Go without a word."""
        for node in (self.member, self.assigned):
            self.client.delete(node)


def member(client: Any, path: str, identity: str, acl: Any = None, **more: Any) -> Member:
    """Make a worker; ``acl`` is that of its own node."""
    nodes = {}
    for kind in ("assigned", "owned"):
        nodes[kind] = client.create(
            f"{path}/{kind}/_c_{identity}-{kind}-", b"", ephemeral=True, sequence=True
        )
    profile = {
        "identity": identity,
        "capacity": 1.0,
        "assigned": nodes["assigned"].rpartition("/")[2],
        "owned": nodes["owned"].rpartition("/")[2],
        **more,
    }
    made = client.create(
        f"{path}/members/_c_{identity}-member-",
        json.dumps(profile).encode(),
        ephemeral=True,
        sequence=True,
        acl=acl,
    )
    return Member(client, path, nodes["assigned"], made)


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
    join: Join, zklock_client: Any, zklock_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = join("a")
    shared(one)
    hidden = [make_acl("world", "anyone", write=True, admin=True)]
    later = member(zklock_client, zklock_path, "later", hidden, colour="blue", zones=["x", "y"])
    wait_for(
        lambda: "gets no shards because its node cannot be read" in caplog.text, SOON, "it is said"
    )
    assert later.has() == frozenset()
    zklock_client.set_acls(later.member, OPEN_ACL_UNSAFE)
    wait_for(lambda: len(later.has()) == SHARDS // 2, SOON, "its share")
    wait_for(lambda: len(one.owned()) == SHARDS // 2, SOON, "the other's share")
    assert [it.identity for it in one.members()] == ["a", "later"]
    assert caplog.text.count("because its node cannot be read") == 1


@pytest.mark.parametrize("shut", [{"read": True}, {}], ids=["written", "read or written"])
def test_others_are_served_while_what_is_assigned_to_a_worker_may_not_be_written(
    join: Join,
    zklock_client: Any,
    zklock_path: str,
    caplog: pytest.LogCaptureFixture,
    shut: dict[str, bool],
) -> None:
    one = join("a")
    shared(one)
    later = member(zklock_client, zklock_path, "later")
    wait_for(lambda: len(later.has()) == SHARDS // 2, SOON, "its share")
    wait_for(lambda: len(one.owned()) == SHARDS // 2, SOON, "the other's share")
    had = later.has()
    owner = make_acl("auth", "", all=True)
    zklock_client.add_auth("digest", "later:secret")  # it can read what others cannot
    zklock_client.set_acls(later.assigned, [owner, make_acl("world", "anyone", **shut)])
    (term,) = children(zklock_client, f"{zklock_path}/leader")
    two = join("b")
    wait_for(lambda: one.owned() and two.owned(), SOON, "the others' shares")
    if shut:
        wait_for(lambda: len(two.owned()) == SHARDS // 4, SOON, "a share of the rest")
        wait_for(lambda: len(one.owned()) == SHARDS // 4, SOON, "the rest")
    assert later.has() == had
    said = "because ACLs forbid the leader to read or write it"
    wait_for(lambda: said in caplog.text, SOON, "it is said")
    zklock_client.set_acls(later.assigned, OPEN_ACL_UNSAFE)
    wait_for(lambda: len(later.has()) == SHARDS // 3, SOON, "its share of now")
    wait_for(lambda: len(one.owned()) == len(two.owned()) == SHARDS // 3, SOON, "theirs")
    assert caplog.text.count(said) == 1
    assert "cannot lead" not in caplog.text
    assert term in children(zklock_client, f"{zklock_path}/leader")


def test_the_others_are_shown_while_acls_hide_a_worker(
    join: Join, zklock_client: Any, zklock_path: str
) -> None:
    one = join("a")
    shared(one)
    wait_for(lambda: [it.owned for it in one.members()] == [SHARDS], SOON, "what it owns")
    (name,) = children(zklock_client, f"{zklock_path}/owned")
    hidden = [make_acl("world", "anyone", write=True, admin=True)]
    later = member(zklock_client, zklock_path, "later", hidden)
    assert [(it.identity, it.owned) for it in one.members()] == [("a", SHARDS)]
    assert {(it.wanted, it.owner) for it in one.assignment()} == {("a", "a")}
    owned = f"{zklock_path}/owned/{name}"
    zklock_client.set_acls(owned, hidden)
    assert [(it.identity, it.assigned, it.owned) for it in one.members()] == [("a", SHARDS, 0)]
    assert {(it.wanted, it.owner) for it in one.assignment()} == {("a", None)}
    zklock_client.set_acls(owned, OPEN_ACL_UNSAFE)
    for name in children(zklock_client, f"{zklock_path}/members"):
        zklock_client.set_acls(f"{zklock_path}/members/{name}", hidden)
    for ask in (one.members, one.assignment):
        with pytest.raises(zklock.AccessDenied):
            ask()
    zklock_client.set_acls(later.member, OPEN_ACL_UNSAFE)
    assert [it.identity for it in one.members()] == ["later"]


@pytest.mark.hazard("H42")
def test_a_worker_that_says_nothing_sensible_stops_nobody(
    join: Join, zklock_client: Any, zklock_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = join("a")
    shared(one)
    for number, data in enumerate((b"", b"\xff", b"{}", b"[" * 100_000)):
        zklock_client.create(f"{zklock_path}/members/x{number}", data, ephemeral=True)
    for number, name in enumerate(("", "../shards", "a/b", "..")):
        member(zklock_client, zklock_path, f"y{number}", assigned=name)
    (mine,) = (
        name for name in children(zklock_client, f"{zklock_path}/assigned") if "_c_y" not in name
    )
    member(zklock_client, zklock_path, "twin", assigned=mine)
    hidden = [make_acl("world", "anyone", write=True)]
    zklock_client.create(f"{zklock_path}/members/z", b"{}", ephemeral=True, acl=hidden)
    two = join("b")
    shared(one, two)
    wait_for(lambda: caplog.text.count("its worker gets no shards") >= 8, SOON, "it is said")
    assert "gets no shards because its node cannot be read" in caplog.text
    assert {"a", "b"} <= {it.identity for it in one.members()}


def not_to_be_written(client: Any, path: str) -> str:
    """Have ACLs forbid to write the only node below a path; return that node."""
    (name,) = children(client, path)
    node = f"{path}/{name}"
    shut = make_acl("world", "anyone", create=True, delete=True, read=True, admin=True)
    client.set_acls(node, [shut])
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
    join: Join, zklock_client: Any, zklock_path: str, refused: threading.Semaphore
) -> None:
    """ACLs refuse it to say what it owns."""
    one = join("a")
    shared(one)
    wait_for(lambda: [it.owned for it in one.members()] == [SHARDS], SOON, "what it owns")
    node = not_to_be_written(zklock_client, f"{zklock_path}/owned")
    said = zklock_client.get(node)[0]
    one.set_shards(SHARDS - 1)
    assert refused.acquire(timeout=SOON)
    assert zklock_client.get(node)[0] == said
    zklock_client.set_acls(node, OPEN_ACL_UNSAFE)
    wait_for(lambda: zklock_client.get(node)[0] != said, SOON, "what it says now")
    (told,) = one.members()
    assert told.owned == len(one.owned()) == SHARDS - 1


def test_all_that_a_worker_may_not_say_of_itself_is_tried_as_one(
    join: Join,
    zklock_client: Any,
    zklock_path: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refused: threading.Semaphore,
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
    node = not_to_be_written(zklock_client, f"{zklock_path}/members")
    for number in range(20):
        one.set_capacity(2.0 + number)
    assert refused.acquire(timeout=SOON)
    one.set_shards(SHARDS + 1)
    shared(one, total=SHARDS + 1)
    for _ in range(5):
        assert refused.acquire(timeout=SOON)
    zklock_client.set_acls(node, OPEN_ACL_UNSAFE)
    wait_for(lambda: [it.capacity for it in one.members()] == [21.0], SOON, "the newest")
    assert set(most.values()) == {1}, "one at a time"
    assert children(zklock_client, f"{zklock_path}/members") == [node.rpartition("/")[2]]
    assert "cannot be in the pool" not in caplog.text


@pytest.mark.hazard("H43")
def test_a_worker_that_crashes_in_a_row_is_left_out_for_longer_and_longer(
    front: Front,
    zklock_connect: Callable[..., Any],
    zklock_client: Any,
    zklock_path: str,
) -> None:
    unit = 3.0
    client = zklock_connect(timeout=unit)
    pool = front.pool(client, zklock_path, identity="a", shards=SHARDS, settle=0.05)
    with pool:
        shared(pool)
        waits = []
        for _ in range(4):
            came = now_of(client)
            looper = member(zklock_client, zklock_path, "looper")
            wait_for(looper.has, SOON, "it gets shards")
            waits.append((now_of(client) - came) / unit)
            reaches(client, came + unit)
            looper.vanish()
            shared(pool)
        assert waits[2] >= 1
        assert waits[3] >= 2
        other = member(zklock_client, zklock_path, "other")
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
    front: Front, join: Join, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
    assert caplog.text.count("this worker cannot lead: can't start new thread") == 1
    assert caplog.text.count("on_assigned of shard") == 3
    pool.stop()
    assert pool.owned() == {}


@pytest.mark.parametrize("front", [Threads], indirect=True, ids=["threads"])
def test_a_coroutine_that_comes_of_a_plain_function_is_told_of(
    join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(*args: Any) -> None:
        raise AssertionError("never run")

    def plain(*args: Any) -> Any:
        return never(*args)

    pool = join(
        "a",
        shards=1,
        on_assigned=plain,
        handler=plain,
        on_error="stop",
    )
    for who in ("on_assigned", "the handler"):
        text = f"TypeError: {who} returned a coroutine, but no event loop runs it"
        wait_for(partial(said_in, caplog, text), SOON, text)
    pool.stop()


def said_in(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


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
    join: Join, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
        assert caplog.text.count("did not start") == SHARDS - 1, "once for each shard"
        returns.set()
    wait_for(lambda: sorted(began) == list(range(SHARDS)), SOON, lambda: f"{began} were handled")


@pytest.mark.parametrize(
    ("where", "shut"),
    [("members", {"read": True}), ("members", {}), ("assigned", {}), ("owned", {"read": True})],
)
def test_a_worker_that_may_not_join_is_told_at_the_start(
    front: Front,
    zklock_connect: Callable[..., Any],
    zklock_client: Any,
    zklock_path: str,
    caplog: pytest.LogCaptureFixture,
    where: str,
    shut: dict[str, bool],
) -> None:
    pool_nodes = [f"{zklock_path}/{each}" for each in ("members", "assigned", "owned", "shards")]
    for path in pool_nodes:
        zklock_client.ensure_path(path)
    node = f"{zklock_path}/{where}"
    zklock_client.set_acls(node, [make_acl("world", "anyone", admin=True, **shut)])
    pool = front.pool(zklock_connect(), zklock_path, identity="a", shards=SHARDS)
    with pytest.raises(zklock.AccessDenied) as caught:
        pool.start()
    assert caught.value.path is not None
    assert caught.value.path.startswith(node)
    zklock_client.set_acls(node, OPEN_ACL_UNSAFE)
    assert [children(zklock_client, path) for path in pool_nodes[:3]] == [[], [], []]
    assert caplog.text == ""
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
    zklock_client: Any,
    zklock_path: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    shut: str,
    also: dict[str, bool],
    deleted: str,
    trouble: str,
    end: str,
) -> None:
    """To be in the pool, to stand for election, to see who is in the pool, to own a shard."""
    caplog.set_level("INFO", "zklock")
    one = join("a", retry=(0.5, 4.0))
    shared(one)
    (name,) = children(zklock_client, f"{zklock_path}/{deleted}")
    denials = Denials(monkeypatch)
    acl = [make_acl("world", "anyone", admin=True, delete=True, **also)]
    zklock_client.set_acls(f"{zklock_path}/{shut}", acl)
    zklock_client.delete(f"{zklock_path}/{deleted}/{name}")
    wait_for(lambda: len(denials.pauses) >= 6, SOON, "it tries again")
    assert denials.pauses[:6] == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert caplog.text.count(trouble) == 1
    zklock_client.set_acls(f"{zklock_path}/{shut}", OPEN_ACL_UNSAFE)
    wait_for(lambda: end in caplog.text, SOON, "it is said")
    shared(one)
    assert caplog.text.count(trouble) == 1


def test_a_pool_whose_client_is_stopped_leaves_without_an_error(
    front: Front,
    zklock_connect: Callable[..., Any],
    zklock_path: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "zklock")
    client = zklock_connect()
    pool = front.pool(client, zklock_path, shards=SHARDS, handler=Calls(front).handler)
    pool.start()
    shared(pool)
    client.stop()
    assert pool.owned() == {}
    said = "this worker leaves the pool for good: its client was stopped"
    wait_for(lambda: said in caplog.text, SOON, "it is said")
    pool.stop()
    assert [it.getMessage() for it in caplog.records if it.levelname == "ERROR"] == []
    assert "call its start() first" not in caplog.text
