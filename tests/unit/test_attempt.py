"""What drives a recipe, where its host fails it and where signal handlers come in between."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.contract.struck import Moments
from tests.fakes import Client, FakeGrant, Server, failure, outcome, settle
from zklock import _engine
from zklock._engine import attempt as engine
from zklock._engine.attempt import Attempt
from zklock._engine.transition_table import IllegalStep
from zklock._recipes import lock as lock_recipe, names
from zklock._recipes.effects import Batch, Create, Failed, Failure, Recipe, Sync
from zklock.errors import AcquireCancelled, ClientClosed

PATH = "/lock"


def entry() -> lock_recipe.Entry:
    return lock_recipe.Entry(PATH, b"me", names.Kind.EXCLUSIVE)


class Failing(Client):
    """A client that fails its attempts: the next so many calls of one of its methods raise."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.fails: dict[str, int] = {}
        self.then: dict[str, int] = {}  # once something has failed

    def _fail(self, what: str) -> None:
        if self.fails.get(what, 0) > 0:
            self.fails[what] -= 1
            self.fails.update(self.then)
            self.then = {}
            raise MemoryError(what)

    def send_batch(
        self, batch: Batch, done: Callable[[tuple[Any, ...]], None], awaited: bool = False
    ) -> None:
        sends = isinstance(batch[0], Create)
        if sends and self.fails.get("after", 0) > 0:
            super().send_batch(batch, done, awaited)
            self._fail("after")
        self._fail("send_batch")
        super().send_batch(batch, done, awaited)

    def watch(self, attempt: Attempt[Any], paths: Any) -> None:
        self._fail("watch")
        super().watch(attempt, paths)

    def claim(self, attempt: Attempt[Any], claim: Any) -> Any:
        if self.fails.get("claim"):
            attempt.accept()
        self._fail("claim")
        return super().claim(attempt, claim)


@pytest.mark.hazard("H9")
@pytest.mark.parametrize(
    "fails",
    [
        {"send_batch": 1},
        {"send_batch": 3},
        {"after": 1},
        {"after": 1, "send_batch": 1},
        {"after": 1, "send_batch": 3},
        {"watch": 1},
        {"watch": 1, "send_batch": 2},
        {"claim": 1},
        {"claim": 1, "send_batch": 2},
    ],
    ids=str,
)
def test_what_the_host_raises_leaves_no_contender(fails: dict[str, int]) -> None:
    server = Server()
    other = Client(server)
    if "watch" in fails:
        other.acquire(entry()).start()
        settle([other])
        assert server.grants
    before = set(server.tree.names(PATH))
    client = Failing(server)
    attempt = client.acquire(entry())
    first, *_ = fails
    client.fails = {first: fails[first]}
    client.then = {name: times for name, times in fails.items() if name != first}
    attempt.start()
    settle([client, other])
    assert not any(client.fails.values())
    assert attempt.done
    with pytest.raises(MemoryError):
        attempt.result()
    assert set(server.tree.names(PATH)) == before
    assert client.attempts == 0


def test_pleas_for_patience_are_heeded_with_growing_pauses() -> None:
    server = Server()
    client = Client(server)
    answers: list[Any] = []
    busy = Failed(Failure.DROPPED, failure(Failure.DROPPED, PATH).error, busy=True)

    def asks() -> Recipe[int]:
        while len(answers) < 8:
            answers.append((yield (Sync(PATH),)))
        return len(answers)

    served = server.write

    def write(session: int, request: Any) -> Any:
        return busy if len(answers) < 7 else served(session, request)

    server.write = write  # type: ignore[method-assign]
    attempt = Attempt(client, asks()).start()
    settle([client])
    assert attempt.result() == 8
    assert client.pauses == sorted(client.pauses)
    assert len(client.pauses) == 7
    assert 0 < client.pauses[0] < 0.1
    assert client.pauses[-1] == 2.0


@pytest.fixture
def alarm() -> Iterator[Callable[[Callable[[], object]], None]]:
    before = signal.getsignal(signal.SIGALRM)

    def set_up(call: Callable[[], object]) -> None:
        signal.signal(signal.SIGALRM, lambda number, frame: call())

    yield set_up
    signal.signal(signal.SIGALRM, before)


@pytest.mark.hazard("H28")
def test_a_handler_may_give_up_in_the_middle_of_a_step(
    alarm: Callable[[Callable[[], object]], None],
) -> None:
    server = Server()
    client = Client(server)
    attempt = client.acquire(entry())
    given_up: list[bool] = []
    alarm(lambda: given_up.append(attempt.cancel(AcquireCancelled("enough", path=PATH))))
    client.on_batch = lambda: signal.raise_signal(signal.SIGALRM)
    attempt.start()
    assert given_up == [True]
    assert attempt.done
    settle([client])
    with pytest.raises(AcquireCancelled):
        attempt.result()
    assert not server.tree.names(PATH)
    assert not server.grants


@pytest.mark.hazard("H28")
def test_what_interrupts_the_host_is_left_to_its_own_thread() -> None:
    server = Server()
    client = Client(server)
    client.interrupted = True
    attempt = client.acquire(entry()).start()
    assert not client.sent
    client.interrupted = False
    settle([client])
    assert attempt.result() is server.grants[0]


def test_giving_up_again_goes_on_with_what_was_interrupted() -> None:
    """An interrupt may strike between the decision and the news of it."""
    server = Server()
    other = Client(server)
    other.acquire(entry()).start()
    client = Client(server)
    attempt = client.acquire(entry()).start()
    settle([other, client])
    tell = attempt._tell

    def interrupted(handle: Callable[..., object], *news: object) -> None:
        raise KeyboardInterrupt

    attempt._tell = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        attempt.cancel()
    attempt._tell = tell  # type: ignore[method-assign]
    assert not attempt.cancel()
    settle([other, client])
    assert len(server.tree.names(PATH)) == 1


def test_a_second_start_is_refused_and_changes_nothing() -> None:
    server = Server()
    client = Client(server)
    attempt = client.acquire(entry()).start()
    sent = list(client.sent)
    with pytest.raises(IllegalStep):
        attempt.start()
    assert client.sent == sent
    settle([client])
    assert attempt.result() is server.grants[0]


def test_what_was_given_up_before_it_began_sends_nothing() -> None:
    server = Server()
    client = Client(server)
    attempt = client.acquire(entry())
    assert attempt.cancel()
    attempt.start()
    settle([client])
    assert attempt.result() is None
    assert not client.sent
    assert client.attempts == 0


@pytest.mark.parametrize("enters", [False, True])
def test_an_attempt_whose_client_is_closed_as_it_begins_is_over(enters: bool) -> None:
    """The news may come after the session knows the attempt, and before it has begun."""
    server = Server()
    client = Client(server)
    attempt = client.acquire(entry())
    if enters:
        client.enter(attempt)
    attempt.session_replaced(ClientClosed("closed"))
    attempt.start()
    settle([client])
    with pytest.raises(ClientClosed):
        attempt.result()
    assert not client.sent
    assert client.attempts == 0


# Exceptions out of nowhere.

ENGINE = str(Path(_engine.__file__).parent)


@contextmanager
def elsewhere() -> Iterator[None]:
    """What other threads do meanwhile: no interrupt strikes them."""
    trace, profile = sys.gettrace(), sys.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.settrace(trace)
        sys.setprofile(profile)


class Swift(Client):
    """A client that is answered before a call returns: the caller's own thread goes on with it."""

    def send_batch(
        self, batch: Batch, done: Callable[[tuple[Any, ...]], None], awaited: bool = False
    ) -> None:
        with elsewhere():
            super().send_batch(batch, done, awaited)
            self.serve(len(batch))
            self.deliver(len(batch))


def free(client: Client, other: Client, attempt: Attempt[Any]) -> Callable[[], object]:
    return attempt.start


def taken(client: Client, other: Client, attempt: Attempt[Any]) -> Callable[[], object]:
    other.acquire(entry()).start()
    settle([other])
    return attempt.start


def waiting(client: Client, other: Client, attempt: Attempt[Any]) -> Callable[[], object]:
    taken(client, other, attempt)
    attempt.start()
    settle([client, other])
    return attempt.cancel


def under_way(client: Client, other: Client, attempt: Attempt[Any]) -> Callable[[], object]:
    Client.send_batch(client, (Sync(PATH),), lambda results: None)  # the answers stay one behind
    attempt.start()
    return attempt.cancel


def parked(client: Client, other: Client, attempt: Attempt[Any]) -> Callable[[], object]:
    client.lose_connection()
    attempt.start()
    return attempt.cancel


SCENES = [free, taken, waiting, under_way, parked]


def struck(
    scene: Callable[..., Callable[[], object]], where: int, at: int, then: int = 0
) -> Moments:
    """Have one call of two interrupted; its caller gives up, and nothing may be left behind."""
    server, moments = Server(), Moments(folder=ENGINE)
    client, other = Swift(server), Swift(server)
    attempt = client.acquire(entry())
    call = scene(client, other, attempt)

    def abandon() -> None:
        grant = outcome(attempt)
        if isinstance(grant, FakeGrant):
            client.release(grant)

    def withdraw() -> None:
        if not attempt.cancel():
            attempt.when_done(abandon)

    for number, each in enumerate((call, withdraw)):
        if number == where:
            moments.run(each, at, then)
        else:
            each()
    withdraw()
    settle([client, other])
    assert attempt.done, moments.where
    for holder in server.grants:
        if not holder.over:
            holder.client.release(holder)
    settle([client, other])
    assert not server.tree.names(PATH), moments.where
    assert client.attempts == 0, moments.where
    last = client.acquire(entry()).start()
    settle([client])
    assert isinstance(outcome(last), FakeGrant)
    return moments


@pytest.mark.hazard("H9")
@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("scene", SCENES)
def test_an_interrupt_at_any_moment_leaves_nothing(scene: Any, where: int) -> None:
    for at in count(1):
        if not struck(scene, where, at).where:
            break
    assert at > 3


@pytest.mark.hazard("H9")
@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("scene", SCENES)
def test_a_second_interrupt_while_the_first_is_seen_to_leaves_nothing(
    scene: Any, where: int
) -> None:
    for at in count(1):
        for then in (1, 2, 3, 5, 8):
            moments = struck(scene, where, at, then)
            if not moments.twice:
                break
        if not moments.where:
            break
    assert at > 3


def withdraws(
    scene: Callable[..., Callable[[], object]], at: int
) -> tuple[Moments, Attempt[Any], list[str], list[str]]:
    """Have one call of ``cancel`` interrupted, and nothing else done; return what comes of it.

    The last two: the contenders that are left beside others', and who was told of the end.
    """
    server, moments = Server(), Moments(folder=ENGINE)
    client, other = Swift(server), Swift(server)
    attempt = client.acquire(entry())
    cancel = scene(client, other, attempt)
    told: list[str] = []
    attempt.when_done(lambda: told.append("over"))
    before = {grant.path for grant in server.grants}
    moments.run(cancel, at)
    settle([client, other])
    left = {f"{PATH}/{name}" for name in server.tree.names(PATH)} - before
    return moments, attempt, sorted(left), told


@pytest.mark.hazard("H9")
@pytest.mark.parametrize("scene", [waiting, under_way, parked])
def test_what_was_given_up_is_over_though_an_interrupt_strikes(scene: Any) -> None:
    """Nobody gives up a second time."""
    for at in count(2):  # at the first moment, nothing is decided yet
        moments, attempt, left, told = withdraws(scene, at)
        if not moments.where:
            break
        assert attempt.done, moments.where
        assert attempt.result() is None, moments.where
        assert (left, told) == ([], ["over"]), moments.where
    assert at > 5


@pytest.mark.hazard("H28")
def test_a_handler_that_has_interrupted_the_host_gives_up_at_once() -> None:
    """The withdrawal is left to the host's own thread."""
    server = Server()
    client, other = Client(server), Client(server)
    other.acquire(entry()).start()
    settle([other])
    attempt = client.acquire(entry()).start()
    settle([client])
    sent = list(client.sent)
    client.interrupted = True
    assert attempt.cancel()
    assert attempt.done
    assert client.sent == sent
    client.interrupted = False
    settle([client])
    assert len(server.tree.names(PATH)) == 1


def test_an_error_of_the_host_is_raised_where_a_handler_may_have_raised_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On other threads it is logged: they bring the news to others, too."""

    def fails() -> None:
        raise MemoryError

    for interrupted in (False, True):
        monkeypatch.setattr(engine, "may_be_interrupted", lambda said=interrupted: said)
        client = Client(Server())
        attempt = client.acquire(entry())
        monkeypatch.setattr(attempt, "_started", fails)
        with pytest.raises(MemoryError) if interrupted else contextlib.nullcontext():
            attempt.start()
        settle([client])
        with pytest.raises(MemoryError):
            attempt.result()
        told = [record.message for record in caplog.records]
        assert told == ["an acquire was interrupted; cleaning up"]
