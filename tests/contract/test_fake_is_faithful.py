"""``tests/fakes.py`` answers as ZooKeeper does: both get the same requests.

What is compared: results and failures of every request, names and their numbers, versions, owners,
the order of epochs, which watches fire and in what order, and what the end of a session removes.
Not compared: texts of errors, and whether an event that fires twice is told twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, Protocol, get_args

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

import zklock
from tests import fakes
from tests.contract.support import SOON
from zklock._core.link import Flight
from zklock._core.session import DELETED
from zklock._recipes.effects import (
    Check,
    Create,
    Delete,
    Exists,
    Failed,
    Failure,
    List,
    Listing,
    Make,
    Node,
    Read,
    Request,
    Sync,
    Transaction,
    Watch,
    WatchExists,
    WatchList,
    Write,
)
from zklock._recipes.steps import makes
from zklock.errors import AccessDenied
from zklock.testing import ZooKeeperServer, wait_for
from zklock.testing.proxy import FaultProxy

SESSIONS = 3
LEAVE = "leave"
"""A step that ends a session, instead of a batch; another takes its place."""

_ROOTS = count()


class EitherSession(Protocol):
    """One session with ZooKeeper, or with the fake."""

    id: int

    def ask(self, batch: Sequence[Request]) -> list[Any]:
        """Send the requests back to back; return their results."""

    def events(self) -> list[tuple[str, bool]]:
        """Return the watches that have fired since: path, and whether it was deleted."""

    def leave(self) -> None:
        """End the session."""


class Real:
    """A session with a real server."""

    def __init__(self, hosts: str) -> None:
        self.client = zklock.connect(hosts, 10.0)
        self.id, _ = self.client.client_id
        self._events: list[tuple[str, bool]] = []
        session: Any = self.client.handler.session
        session.fired = self._fired
        self._session = session

    def _fired(self, kind: int, path: str) -> bool:
        self._events.append((path, kind == DELETED))
        return True

    def ask(self, batch: Sequence[Request]) -> list[Any]:
        answered = threading.Event()
        results: list[Any] = []

        def done(answers: tuple[Any, ...]) -> None:
            results.extend(answers)
            answered.set()

        self.begin(batch, done)
        assert answered.wait(SOON), batch
        return results

    def begin(self, batch: Sequence[Request], done: Callable[[tuple[Any, ...]], None]) -> None:
        """Send the requests back to back."""
        session = self._session
        session.step(session.link.ask, session.codec, Flight(batch, done), len(batch))

    def events(self) -> list[tuple[str, bool]]:
        self.ask([Sync("/")])  # what was sent before the answer has arrived before it
        told, self._events = self._events, []
        return told

    def leave(self) -> None:
        self.client.stop()
        self.client.close()


class Fake:
    """A session with the fake."""

    def __init__(self, server: fakes.Server) -> None:
        self._server = server
        self.id = server.open_session()
        self._link = fakes.FakeLink(server, self.id, len(server.log))

    def ask(self, batch: Sequence[Request]) -> list[Any]:
        self._link.asked.extend(batch)
        for _ in batch:
            self._link.advance(self._link.lag)
            self._link.serve()
        return [self._next() for _ in batch]

    def _next(self) -> Any:
        for at, (kind, what, _) in enumerate(self._link.inbox):
            if kind == "answer":
                del self._link.inbox[at]
                return what
        raise AssertionError("no answer")

    def events(self) -> list[tuple[str, bool]]:
        self._link.advance(self._link.lag)
        told = [what for _, what, _ in self._link.inbox]
        self._link.inbox.clear()
        return told

    def leave(self) -> None:
        self._server.expire(self.id)


class World:
    """Some sessions, and names for what differs between two worlds: ids, and transactions."""

    def __init__(self, root: str, join: Callable[[], EitherSession]) -> None:
        self.root = root
        self._join = join
        self.sessions = [join() for _ in range(SESSIONS)]
        self._ids = {session.id: at for at, session in enumerate(self.sessions)}
        self._epochs: set[int] = set()
        self.created: list[str] = []

    def play(self, who: int, step: Step) -> Any:
        """Do a step; return what came of it, in words that all worlds share."""
        session = self.sessions[who]
        if isinstance(step, str):
            session.leave()
            self.sessions[who] = joined = self._join()
            self._ids[joined.id] = len(self._ids)
            results = []
        else:
            results = session.ask([make(self) for make in step])
        for it in results:
            if isinstance(it, tuple):
                self.created += it
            elif isinstance(it, Node) and it.mine:
                self.created.append(it.path)
        told = [self._events(each, step == LEAVE) for each in self.sessions]
        return [self._word(result) for result in results], told

    def path(self, name: str) -> str:
        """Return a path below the root."""
        return f"{self.root}/{name}" if name else self.root

    def _events(self, session: EitherSession, unordered: bool) -> list[tuple[str, bool]]:
        told: list[tuple[str, bool]] = []
        for path, deleted in session.events():
            event = path.removeprefix(self.root), deleted
            if path.startswith(self.root) and event not in told:  # else of an earlier story
                told.append(event)
        # The nodes of a session that ends go at once.
        return sorted(told) if unordered else told

    def _word(self, result: Any) -> Any:
        match result:
            case Node(path, data, owner, mine, version):
                whose = self._ids.get(owner, owner)
                return path.removeprefix(self.root), data, whose if owner else None, mine, version
            case Listing(names, epoch, changes, size=size):
                self._epochs.add(epoch)
                return sorted(names), sorted(self._epochs).index(epoch), changes, size
            case Failed(why, error):
                return why, isinstance(error, AccessDenied)
            case tuple():
                return [path.removeprefix(self.root) for path in result]
        return result


@pytest.fixture
def worlds(zklock_hosts: str, zklock_path: str) -> Iterator[Callable[[], list[World]]]:
    """Make a real world and a fake one; real sessions that did not end are used again."""
    made: list[World] = []
    idle: list[EitherSession] = []

    def join() -> EitherSession:
        return idle.pop() if idle else Real(zklock_hosts)

    def make() -> list[World]:
        while made:
            idle.extend(made.pop().sessions)
        server = fakes.Server()
        root = f"{zklock_path}/{next(_ROOTS)}-"
        made.append(World(root, join))
        return [made[0], World(root, lambda: Fake(server))]

    yield make
    for session in [*idle, *(session for world in made for session in world.sessions)]:
        session.leave()


# Steps. A step is a batch of functions, which make the same request in each world.

Maker = Callable[[World], Request]
Step = list[Maker] | str
NAMES = ["", "a", "a/deep", "b", "none"]
names = st.sampled_from(NAMES)
versions = st.sampled_from([-1, 0, 1, 2])
data = st.sampled_from([b"", b"x", b"longer"])


def created(world: World, number: int) -> str:
    """Return the path of a sequential node that was created, if there is one."""
    return world.created[number % len(world.created)] if world.created else world.path("none")


somewhere = st.one_of(
    names.map(lambda name: lambda world: world.path(name)),
    st.integers(0, 9).map(lambda number: lambda world: created(world, number)),
)


def of_path(kind: Any) -> st.SearchStrategy[Maker]:
    return somewhere.map(lambda path: lambda world: kind(path(world)))


def _create(where: Any, text: bytes) -> Maker:
    return lambda world: Create(f"{where(world)}/_c_x-lock-", text)


def _write(path: Any, text: bytes, version: int) -> Maker:
    return lambda world: Write(path(world), text, version)


def _delete(path: Any, version: int) -> Maker:
    return lambda world: Delete(path(world), version)


def _check(path: Any, version: int) -> Maker:
    return lambda world: Check(path(world), version)


def _together(several: Sequence[Any]) -> Maker:
    return lambda world: Transaction(tuple(make(world) for make in several))


creates = st.builds(_create, somewhere, data)
deletes = st.builds(_delete, somewhere, versions)
writes = st.builds(_write, somewhere, data, versions)
checks = st.builds(_check, somewhere, versions)
requests: st.SearchStrategy[Maker] = st.one_of(
    *map(of_path, (List, WatchList, Watch, WatchExists, Read, Exists, Sync, Make)),
    creates,
    deletes,
    writes,
    checks,
    st.builds(_together, st.lists(st.one_of(deletes, writes, checks), min_size=1, max_size=4)),
)
steps = st.tuples(
    st.integers(0, SESSIONS - 1),
    st.one_of(
        st.lists(requests, min_size=1, max_size=4),
        st.just(LEAVE),
    ),
)


def each(*makers: Maker) -> list[Maker]:
    return list(makers)


def at(name: str, kind: Any, *more: Any) -> Maker:
    return lambda world: kind(world.path(name), *more)


def nth(number: int, kind: Any, *more: Any) -> Maker:
    return lambda world: kind(created(world, number), *more)


def together(*makers: Maker) -> Maker:
    return _together(makers)


def marked(number: int, text: bytes) -> Maker:
    return together(nth(number, Check), at("a", Write, text))


def departing(number: int, text: bytes) -> Maker:
    return together(nth(number, Delete), at("a", Write, text))


QUEUE = each(at("a/_c_x-lock-", Create, b"me"), at("a", List))
A_LIFE: list[tuple[int, Step]] = [
    (0, QUEUE),
    (1, QUEUE),
    (2, QUEUE),
    (1, each(nth(0, Watch), nth(1, Watch), at("a", WatchList))),
    (2, each(nth(1, Watch), at("none", WatchExists), at("a", WatchExists))),
    (0, each(nth(0, Write, b"longer", 0), nth(0, Write, b"x", 0), nth(0, Read))),
    (1, each(nth(0, Watch), marked(0, b"x"), at("a", Read))),
    (0, each(departing(0, b""), departing(0, b""), nth(0, Check), nth(0, Exists))),
    (1, each(together(nth(2, Check), nth(1, Delete)), at("a", List))),
    (0, each(at("none", Make))),
    (0, each(at("a", Delete), at("", Delete))),
    (0, each(at("a", Delete, 1), at("a", Delete, 0))),
    (2, LEAVE),
    (0, each(at("a", WatchList), at("a", Delete), at("a", List))),
    (1, QUEUE),
    (0, each(at("a", Make))),
    (0, each(at("a", List))),
    (1, QUEUE),
    (0, each(at("a", Watch), together(nth(-1, Delete), at("a", Check, 1)))),
    (0, each(together(nth(-1, Delete), at("a", Check, 0)), at("a", List))),
    (0, each(at("a", Sync), at("none/x", Create, b""))),
    (0, each(nth(-1, Make))),
]


def entering(*where: str) -> list[Maker]:
    return [at(f"{each}/_c_x-lock-", Create, b"me") for each in where]


def leaving(*numbers: int) -> Maker:
    return together(*(nth(number, Delete) for number in numbers))


def twice(first: int, second: int) -> Maker:
    """Write one node twice in one transaction, if it has these versions."""

    return together(at("a", Check), at("a", Write, b"x", first), at("a", Write, b"longer", second))


WATCHED: list[tuple[int, Step]] = [
    (1, each(at("a", WatchList), at("none", WatchExists))),
    (0, QUEUE),
    (0, each(at("none", Make))),
    (0, each(twice(0, 0), at("a", Read))),
    (0, each(twice(0, 1), at("a", Read), twice(2, 3), twice(2, 3), at("a", Read))),
    (1, each(at("a", WatchList), at("a", Watch))),
    (0, each(nth(0, Delete), at("a", Delete), at("a", List))),
]
TOGETHER: list[tuple[int, Step]] = [
    (1, each(at("a", WatchList), at("b", WatchList))),
    (0, each(*entering("a", "b"), at("a", List), at("b", List), nth(0, Exists))),
    (1, each(*entering("b", "a", "b"), at("a", List), at("b", List))),
    (1, each(nth(1, WatchExists), leaving(0, 1), leaving(2, 1), at("b", List))),
    (1, each(leaving(2), *entering("a"), at("a", List))),
    (0, LEAVE),
]
BELOW_AN_EPHEMERAL: list[tuple[int, Step]] = [
    (0, QUEUE),
    (0, each(lambda world: Create(f"{created(world, 0)}/x-", b""))),
    (0, each(lambda world: Make(f"{created(world, 0)}/x"))),
]


# kazoo's threads draw random pauses meanwhile, which no story depends on.
@pytest.mark.filterwarnings("ignore:Do not use the .random. module inside strategies")
@settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(story=st.lists(steps, min_size=4, max_size=16))
@example(story=A_LIFE)
@example(story=WATCHED)
@example(story=TOGETHER)
@example(story=BELOW_AN_EPHEMERAL)
def test_the_same_requests_get_the_same_answers(
    story: list[tuple[int, Step]], worlds: Callable[[], list[World]]
) -> None:
    real, fake = worlds()
    made: Step = [partial(_same, each) for name in "ab" for each in makes(real.path(name))]
    for who, step in [(0, made), *story]:
        asked = step if isinstance(step, str) else [make(real) for make in step]
        expected = real.play(who, step)
        assert fake.play(who, step) == expected, f"session {who}: {asked}"


def _same(request: Request, world: World) -> Request:
    return request


def test_every_request_is_tried() -> None:
    stories = [*A_LIFE, *WATCHED, *TOGETHER, *BELOW_AN_EPHEMERAL]
    batches = [step for _, step in stories if not isinstance(step, str)]
    tried = {type(make(_Nowhere())) for batch in batches for make in batch}
    assert tried == set(get_args(Request))


class _Nowhere(World):
    """For requests that are looked at, and not sent."""

    def __init__(self) -> None:
        self.root, self.created = "", ["/x"]


# What only a fault, a permission or a counter at its end brings about.

OPEN = [at("closed", kind) for kind in (Exists, WatchExists, Sync)]
DENIABLE = [
    at("closed/x-", Create, b""),
    *(at("closed", kind) for kind in (List, WatchList, Watch, Read, Check)),
    at("closed", Write, b""),
    at("closed/child", Delete),
    together(at("closed/child", Check), at("closed", Write, b"")),
    together(at("closed/child", Delete), at("closed", Write, b"")),
    at("closed/more", Make),
]


@pytest.fixture
def closed(zklock_path: str, zklock_connect: Callable[..., KazooClient]) -> Iterator[list[str]]:
    """Make nodes that only somebody else has permission for."""
    owner = zklock_connect()
    owner.add_auth("digest", "owner:secret")
    acl = [make_digest_acl("owner", "secret", all=True)]
    made = [f"{zklock_path}/closed", f"{zklock_path}/closed/child"]
    owner.ensure_path(zklock_path)
    for path in made:
        owner.create(path, acl=acl)
    yield made
    for path in reversed(made):
        owner.delete(path)


def test_what_is_denied_is_denied_alike(
    closed: list[str], zklock_hosts: str, zklock_path: str
) -> None:
    server = fakes.Server()
    server.make_path(closed[-1])
    real = World(zklock_path, lambda: Real(zklock_hosts))
    fake = World(zklock_path, lambda: Fake(server))
    try:
        for make in DENIABLE:
            server.denied = {type(make(fake))}
            answer = [(Failure.DENIED, True)]
            assert fake.play(0, [make])[0] == real.play(0, [make])[0] == answer, make(real)
        server.denied = set()
        for make in OPEN:
            fakes_own, reals = (world.play(0, [make])[0] for world in (fake, real))
            assert _is_open(fakes_own)
            # Servers of 3.9.3 and later want the right to read for this, too.
            assert _is_open(reals) or (reals == answer and not isinstance(make(real), Sync))
    finally:
        for session in real.sessions:
            session.leave()


def _is_open(answer: list[Any]) -> bool:
    return not isinstance(answer[0], tuple) or len(answer[0]) > 2


def test_every_request_that_can_be_denied_is() -> None:
    asked = {type(make(_Nowhere())) for make in [*OPEN, *DENIABLE]}
    assert asked == set(get_args(Request))


@pytest.mark.parametrize("carried_out", [0, 1])
def test_a_lost_connection_leaves_the_outcome_open(
    carried_out: int, zklock_proxy: FaultProxy, zklock_path: str, zklock_client: KazooClient
) -> None:
    """Nobody is told of it: the client looks again with the next connection."""
    server = fakes.Server()
    server.make_path(zklock_path)
    zklock_client.ensure_path(zklock_path)
    batch = (Create(f"{zklock_path}/_c_x-lock-", b""), List(zklock_path))

    fake = fakes.Client(server)
    answers: list[Any] = []
    attempt: Any = SimpleNamespace(answered=lambda _, results: answers.extend(results))
    fake.send(attempt, batch)
    fake.lose_connection(carried_out=carried_out)
    fake.reconnect()

    real = Real(zklock_proxy.hosts)
    try:
        hold = (zklock_proxy.hold_before_request, zklock_proxy.hold_before_reply)[carried_out]
        held = hold(op="create2")
        real.begin(batch, answers.extend)
        held.wait(SOON)
        handler, before = real.client.handler, real.client.handler.newest
        zklock_proxy.drop()
        zklock_proxy.release()
        wait_for(lambda: handler.newest is not before and handler.session.connected, SOON)
        real.ask([Sync("/")])
        assert answers == []
        found = zklock_client.get_children(zklock_path)
        assert found == server.tree.names(zklock_path)
        assert len(found) == carried_out
    finally:
        real.leave()


def test_a_counter_at_its_end_gives_the_same_numbers(
    zklock_own_server: ZooKeeperServer, zklock_connect: Callable[..., KazooClient]
) -> None:
    server = fakes.Server()
    server.make_path("/end/a")
    server.commit(fakes.Counted("/end/a", fakes.COUNTER_END - 1))
    zklock_connect(zklock_own_server.hosts).ensure_path("/end/a")
    zklock_own_server.stop()
    zklock_own_server.set_child_counter("/end/a", fakes.COUNTER_END - 1)
    zklock_own_server.start()
    real = World("/end", lambda: Real(zklock_own_server.hosts))
    fake = World("/end", lambda: Fake(server))
    try:
        for name in ("a/x-", "a/x-", "a/x-", "a/y-"):
            step = [at(name, Create, b"")]
            assert fake.play(0, step) == real.play(0, step), name
    finally:
        for session in real.sessions:
            session.leave()
