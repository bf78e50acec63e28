"""An attempt, one piece of news after another: what its host is told, and what the recipe hears."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.fakes import failure, outcome
from tests.unit.test_attempt_machine import Host
from zklock import Grant
from zklock._engine.attempt import Attempt
from zklock._engine.grant import GrantOptions
from zklock._engine.transition_table import IllegalStep
from zklock._recipes.effects import (
    Batch,
    Claim,
    Create,
    Event,
    Exists,
    Failed,
    Failure,
    Node,
    Pause,
    Recipe,
    Request,
    Sync,
    Wait,
    Watch,
    WatchExists,
    WatchList,
)
from zklock.errors import AcquireCancelled, ClientClosed, ZkLockError
from zklock.token import FencingToken

PATH = "/lock"
BLOCKER, OWN, BESIDE, OTHER = (f"{PATH}/{name}-0" for name in ("b", "c", "x", "y"))
DROPPED = failure(Failure.DROPPED, PATH)
BUSY = Failed(Failure.DROPPED, DROPPED.error, busy=True)


def node(path: str) -> Node:
    return Node(path, b"", 1, mine=True)


def claim(path: str = OWN) -> Claim:
    return Claim(path, FencingToken(1, 0), lambda: iter(()))  # type: ignore[arg-type, return-value]


class Noting(Host):
    """Notes all that it is told. It gives what a claim asks for if ``grants`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Batch] = []
        self.seconds: list[float] = []
        self.watching: list[list[str]] = []
        self.limits: list[float | None] = []
        self.grants: Any = None

    def send_batch(
        self, batch: Batch, done: Callable[[tuple[Any, ...]], None], awaited: bool = False
    ) -> None:
        self.sent.append(batch)
        super().send_batch(batch, done, awaited)

    def pause(self, seconds: float, done: Callable[[], object]) -> Callable[[], object]:
        self.seconds.append(seconds)
        return super().pause(seconds, done)

    def limit(self, seconds: float | None, wake: Callable[[], object]) -> float | None:
        self.limits.append(seconds)
        return 0.0

    def watch(self, attempt: Attempt[Any], paths: Iterable[str]) -> None:
        self.watching.append(list(paths))

    def claim(self, attempt: Attempt[Any], claim: Claim) -> Any:
        return self.grants if self.grants is not None and attempt.accept() else None

    def answer(self, *results: Any) -> None:
        """Answer the oldest batch."""
        self.batches.pop(0).done(results)

    def elapse(self) -> None:
        """End the oldest pause."""
        self.pauses.pop(0).done()


@pytest.fixture
def host() -> Noting:
    return Noting()


class Asking:
    """A recipe that asks for one thing after another, and keeps the answers."""

    def __init__(self, host: Host, *asked: Any, **terms: Any) -> None:
        self.answers: list[Any] = []
        self.attempt = Attempt(host, self._recipe(asked), **terms)

    def _recipe(self, asked: tuple[Any, ...]) -> Recipe[str]:
        for each in asked:
            self.answers.append((yield each))
        return "the end"

    def start(self) -> Asking:
        self.attempt.start()
        return self


# Its host.


def test_its_host_knows_it_from_its_start_to_its_end(host: Noting) -> None:
    asking = Asking(host, (Sync(PATH),))
    assert host.entered == set()
    asking.start()
    assert host.entered == {asking.attempt}
    host.answer(None)
    assert asking.attempt.result() == "the end"
    assert host.entered == set()


def test_its_host_finds_the_terms_and_what_it_has_told(host: Noting) -> None:
    terms = GrantOptions("/one", "me", Grant)
    attempt = Asking(host, terms=terms).attempt
    assert attempt.terms is terms
    assert (attempt.began, attempt.heard, attempt.told) == (None, None, False)


def test_its_host_says_how_long_to_wait(host: Noting) -> None:
    attempt = Asking(host, (Sync(PATH),)).start().attempt
    assert not attempt.wait(600.0)
    assert host.limits == [600.0]


@pytest.mark.parametrize(
    "news", [Attempt.resume, lambda attempt: attempt.watched(BLOCKER, deleted=True)]
)
def test_news_of_what_it_has_not_asked_for_yet_is_refused(host: Noting, news: Any) -> None:
    attempt = Asking(host, Wait(BLOCKER, OWN)).attempt
    with pytest.raises(IllegalStep):
        news(attempt)
    attempt.start()
    assert not attempt.done


# Claims.


def test_what_was_granted_cannot_be_given_up(host: Noting) -> None:
    host.grants = object()
    asking = Asking(host, claim(), (Sync(PATH),)).start()
    assert asking.answers == [host.grants]
    assert asking.attempt.cancel() is False
    host.answer(None)
    assert asking.attempt.result() == "the end"


def test_a_claim_for_which_there_can_be_no_lease_fails(host: Noting) -> None:
    asking = Asking(host, claim()).start()
    error = ZkLockError("refused", path=PATH)
    asking.attempt.refused(error)
    assert outcome(asking.attempt) is error


# Waits.


@pytest.mark.parametrize(
    ("fired", "heard"),
    [
        ((BLOCKER, True), Event.BLOCKER_GONE),
        ((BLOCKER, True, True), Event.HOLDER_GONE),
        ((BLOCKER, True, True, True), Event.UNWATCHED),
        ((BLOCKER, False), Event.UNWATCHED),
        ((BESIDE, False), Event.UNWATCHED),
        ((BESIDE, True), Event.BLOCKER_GONE),
        ((OWN, True), Event.OWN_GONE),
        ((OWN, True, False, True), Event.OWN_GONE),
        ((OWN, False), Event.UNWATCHED),
        ((None, False), Event.UNWATCHED),
        ((OTHER, True), None),
        ((OTHER, False), None),
    ],
)
@pytest.mark.parametrize("early", [False, True])
def test_what_ends_a_wait(host: Noting, fired: Any, heard: Event | None, early: bool) -> None:
    """A watch may fire before the recipe waits: while the answers are on their way."""
    asking = Asking(host, (Watch(BLOCKER),), Wait(BLOCKER, OWN, beside=BESIDE)).start()
    if early:
        asking.attempt.watched(*fired)
    host.answer(node(BLOCKER))
    if not early:
        asking.attempt.watched(*fired)
    assert asking.answers[1:] == ([heard] if heard else [])
    assert asking.attempt.done == bool(heard)


@pytest.mark.parametrize("request_", [Watch(BLOCKER), WatchList(BLOCKER), WatchExists(BLOCKER)])
def test_new_watches_make_what_fired_before_them_old_news(host: Noting, request_: Request) -> None:
    batch = (Sync(PATH), request_)
    asking = Asking(host, batch, batch, Wait(BLOCKER, OWN)).start()
    asking.attempt.watched(BLOCKER, deleted=False)
    host.answer(None, node(BLOCKER))
    assert host.watching == [[BLOCKER], [BLOCKER]]
    host.answer(None, node(BLOCKER))
    assert not asking.attempt.done
    asking.attempt.watched(BLOCKER, deleted=True)
    assert asking.answers[-1] is Event.BLOCKER_GONE


def test_an_answer_without_watches_leaves_what_fired(host: Noting) -> None:
    asking = Asking(host, (Watch(BLOCKER),), (Sync(PATH),), Wait(BLOCKER, OWN)).start()
    asking.attempt.watched(BLOCKER, deleted=True)
    host.answer(node(BLOCKER))
    host.answer(None)
    assert asking.answers[-1] is Event.BLOCKER_GONE


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("path", "deleted", "known"),
    [(BLOCKER, True, True), (BLOCKER, False, False), (PATH, True, False), (OWN, True, False)],
)
def test_it_knows_when_the_blocker_of_its_last_wait_was_gone(
    host: Noting, path: str, deleted: bool, known: bool, early: bool
) -> None:
    wait = Wait(BLOCKER, OWN, beside=PATH)
    asking = Asking(host, wait, (Watch(BLOCKER),), wait, (Sync(PATH),)).start()
    asking.attempt.watched(BLOCKER, deleted=True, at=6.0)
    heard = [asking.attempt.heard]
    if early:
        asking.attempt.watched(path, deleted, at=7.0)
    host.answer(node(BLOCKER))
    if not early:
        heard.append(asking.attempt.heard)
        asking.attempt.watched(path, deleted, at=7.0)
    heard.append(asking.attempt.heard)
    asking.attempt.watched(BLOCKER, deleted=True, at=8.0)  # it does not wait any more
    heard.append(asking.attempt.heard)
    last = 7.0 if known else None
    assert heard == [6.0, *([] if early else [None]), last, last]


# Pauses.


def test_a_pause_takes_as_long_as_the_recipe_says(host: Noting) -> None:
    asking = Asking(host, Pause(0.7)).start()
    assert host.seconds == [0.7]
    assert not asking.attempt.done
    host.elapse()
    assert asking.answers == [None]


def test_a_pause_that_is_given_up_is_called_off(host: Noting) -> None:
    asking = Asking(host, Pause(0.7)).start()
    (pause,) = host.pauses
    assert not pause.off
    assert asking.attempt.cancel(AcquireCancelled("enough", path=PATH))
    assert pause.off


def test_pauses_grow_while_zookeeper_is_busy_and_begin_anew_after_an_answer(host: Noting) -> None:
    asking = Asking(host, *[(Sync(PATH),)] * 6).start()
    for result in (BUSY, BUSY, BUSY, None, BUSY, BUSY):
        host.answer(result)
        if result is BUSY:
            host.elapse()
    assert host.seconds == [0.05, 0.1, 0.2, 0.05, 0.1]
    assert asking.answers == [(BUSY,), (BUSY,), (BUSY,), (None,), (BUSY,), (BUSY,)]


# Late answers.


def test_nodes_that_a_late_answer_brings_are_swept(host: Noting) -> None:
    """Whoever asked for them has gone on without them."""
    creates = Create(f"{PATH}/c-", b""), Create(f"{PATH}/d-", b"")
    batch = (Sync(PATH), *creates, Exists(OTHER))
    asking = Asking(host, batch).start()
    asking.attempt.session_replaced(ClientClosed("closed"))
    assert asking.attempt.done
    host.answer(None, node(OWN), DROPPED, node(OTHER))
    assert host.swept == [OWN]


# Clean-ups.


def test_clean_ups_follow_each_other_until_one_succeeds(host: Noting) -> None:
    """The first is made at once, and the others after growing pauses."""
    fails = 3

    def cleans() -> Recipe[None]:
        nonlocal fails
        yield (Sync(PATH),)
        if fails:
            fails -= 1
            raise MemoryError

    def torn() -> Recipe[None]:
        yield (Sync(PATH),)
        raise MemoryError

    attempt = Attempt(host, torn(), recover=cleans).start()
    host.answer(None)
    assert isinstance(outcome(attempt), MemoryError)
    (job,) = host.jobs
    host.jobs.clear()
    job()
    for seconds in ([0.1], [0.1, 0.2], [0.1, 0.2, 0.4]):
        host.answer(None)
        assert host.seconds == seconds
        host.elapse()
    host.answer(None)
    assert (host.entered, host.batches, host.pauses, host.jobs) == (set(), [], [], [])


def test_a_step_that_the_host_fails_is_logged(
    host: Noting, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(attempt: Attempt[Any], claim: Claim) -> Any:
        raise MemoryError("nothing left")

    monkeypatch.setattr(host, "claim", fails)
    with caplog.at_level(logging.ERROR, "zklock"):
        asking = Asking(host, claim()).start()
    assert isinstance(outcome(asking.attempt), MemoryError)
    (record,) = caplog.records
    assert "a step of an acquire failed" in record.message
    assert record.exc_info is not None
