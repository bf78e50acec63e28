"""Every point at which the connection can break on the way into, through and out of a lock.

Each scenario runs once undisturbed, which says what frames it consists of. Then it runs again for
every frame and every way to lose it: the request does not arrive; it arrives, and its reply is
lost; the reply arrives, and nothing after it. Whatever is lost, there is exactly one outcome and
no contender is left behind.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import zklock
from tests.contract.support import SOON, Losses, boottime, children, gone, granted, queued, run
from tests.modes import bounded, full
from tests.stopwatch import Stopwatch
from zklock import telemetry
from zklock.testing import Fault, FaultProxy, Frame, FrameKind, ZooKeeperServer, wait_for

pytestmark = pytest.mark.hazard("H5", "H9")

PARALLEL = 8
TRIES = 5
BOUNDED = bounded(3.0)
"""Seconds that a bounded moment (1 s) takes at most, among ``PARALLEL`` cases on a busy machine."""

BEFORE_REQUEST = FaultProxy.drop_before_request
AFTER_REQUEST = FaultProxy.drop_after_request
BEFORE_REPLY = FaultProxy.drop_before_reply
AFTER_REPLY = FaultProxy.drop_after_reply
Arm = Callable[..., Fault]


@dataclass(frozen=True)
class Loss:
    """Lose the ``n``-th request, reply, or event (of ``ops``) after the scenario has armed."""

    arm: Arm
    n: int
    ops: tuple[str, ...] = ()
    what: str = ""

    def __str__(self) -> str:
        return f"{self.arm.__name__}({self.n}) {self.what}"


@dataclass
class Stage:
    """What a scenario plays on: a contender behind a proxy, and another that is not."""

    proxy: FaultProxy
    client: Any
    other: Any
    path: str
    first: Loss | None
    second: Loss | None
    began: float
    losses: Losses = field(default_factory=Losses)
    faults: list[Fault] = field(default_factory=list)
    armed_at: int = 0
    counts: Any = None
    frames: list[Frame] = field(default_factory=list)
    session_id: int = field(init=False)

    def __post_init__(self) -> None:
        self.session_id = self.client.client_id[0]

    @property
    def lock(self) -> zklock.Lock:
        return zklock.Lock(self.client, self.path, identity="victim", on_lost=self.losses)

    @property
    def bystander(self) -> zklock.Lock:
        return zklock.Lock(self.other, self.path, identity="bystander")

    def arm(self) -> None:
        """Let the fault strike from here on."""
        proxy, self.counts, self.armed_at = self.proxy, self.proxy.counts, self.proxy.mark()
        if self.first is not None:
            self.faults.append(self.first.arm(proxy, self.first.n, op=self.first.ops))
        if self.second is not None:
            here = len(proxy.connections)
            self.faults.append(
                self.second.arm(
                    proxy, self.second.n, where=lambda frame: bool(frame.connection > here)
                )
            )

    def settled(self, replies: int) -> None:
        """Wait until the fault has struck, or until so many replies have come."""
        wait_for(
            lambda: self.struck or self.proxy.counts.replies - self.counts.replies >= replies,
            SOON,
            lambda: f"{self.faults} nor {replies} replies; {self.proxy.tail()}",
        )

    @property
    def struck(self) -> bool:
        return bool(self.faults) and self.faults[0].fired.is_set()

    def over(self) -> None:
        """Wait until every loss has happened, and every reply has come; keep what went by."""
        if self.frames:
            return
        if self.first is not None:
            self.faults[0].wait(SOON)
        else:
            counts = self.proxy.counts
            self.proxy.wait_until(lambda: counts.requests <= self.proxy.counts.replies, SOON)
        self.frames = [frame for frame in self.proxy.frames if frame.number > self.armed_at]

    def holds(self, grant: zklock.Grant) -> None:
        """Insist that this grant is the one outcome."""
        assert grant.held
        grant.verify(SOON)
        assert not self.losses.losses
        first = grant.path.rpartition("/")[2]
        assert children(self.other, self.path)[0] == first
        mine = [each for each in self.bystander.contenders() if each.identity == "victim"]
        assert [each.path for each in mine] == [grant.path]
        assert mine[0].token == grant.token
        assert mine[0].session_id == grant.session_id

    def had(self, grant: zklock.Grant) -> None:
        """Insist that this grant is the one outcome, and give it back."""
        self.holds(grant)
        grant.release()

    def free(self) -> None:
        """Insist that nobody is left behind, and that the next contender is served."""
        gone(self.other, self.path)
        granted(self.bystander).release()


Scenario = Callable[[Stage], None]


@contextmanager
def for_a_moment(seconds: float = 0.0) -> Iterator[Stopwatch]:
    """Insist that what is done meanwhile takes so many seconds, and a bounded moment."""
    with Stopwatch() as watch:
        yield watch
    assert watch.total >= seconds
    assert watch.awake < seconds + BOUNDED


def no_parent(stage: Stage) -> None:
    stage.arm()
    stage.had(granted(stage.lock))


def free_lock(stage: Stage) -> None:
    stage.other.ensure_path(stage.path)
    no_parent(stage)


def hand_over(stage: Stage) -> None:
    """Wait for the holder, and take over from it: the only one before."""
    holder = granted(stage.bystander)
    stage.arm()
    waiting = run(granted, stage.lock)
    stage.settled(4)
    queued(stage.other, stage.path, 2)
    assert not waiting.done()
    holder.release()
    stage.had(waiting.result(SOON))


def move_up(stage: Stage) -> None:
    """Wait behind one that gives up, look again, and take over from the holder."""
    holder, middle = granted(stage.bystander), stage.bystander
    giving_up = run(middle.acquire)
    queued(stage.other, stage.path, 2)
    before = stage.proxy.counts.replies
    waiting = run(granted, stage.lock)
    stage.proxy.wait_until(lambda: stage.proxy.counts.replies - before == 3, SOON)
    stage.arm()
    middle.cancel()
    with pytest.raises(zklock.AcquireCancelled):
        giving_up.result(SOON)
    queued(stage.other, stage.path, 2)
    stage.settled(3)
    assert not waiting.done()
    holder.release()
    stage.had(waiting.result(SOON))


def release(stage: Stage) -> None:
    grant = granted(stage.lock)
    waiting = run(granted, stage.bystander)
    queued(stage.other, stage.path, 2)
    stage.arm()
    with for_a_moment():
        grant.release()
    assert (grant.held, grant.released) == (False, True)
    waiting.result(SOON).release()


def time_out(stage: Stage) -> None:
    holder = granted(stage.bystander)
    stage.arm()
    with for_a_moment(1.0):
        assert stage.lock.acquire(timeout=1.0) is None
    queued(stage.other, stage.path, 1)
    stage.over()
    queued(stage.other, stage.path, 1)
    assert holder.held
    holder.release()


def cancel(stage: Stage) -> None:
    holder = granted(stage.bystander)
    mark = stage.proxy.mark()
    lock = stage.lock
    waiting = run(lock.acquire)
    stage.proxy.wait_until(lambda: len(answers(stage.proxy, mark)) == 4, SOON)
    stage.arm()
    with Stopwatch() as watch, pytest.raises(zklock.AcquireCancelled):
        lock.cancel()
        watch.result(waiting, BOUNDED)
    queued(stage.other, stage.path, 1)
    holder.release()


def not_free(stage: Stage) -> None:
    holder = granted(stage.bystander)
    stage.arm()
    with for_a_moment():
        assert stage.lock.acquire(blocking=False) is None
    queued(stage.other, stage.path, 1)
    assert holder.held
    holder.release()


def try_free_lock(stage: Stage) -> None:
    stage.other.ensure_path(stage.path)
    stage.arm()
    with for_a_moment():
        grant = stage.lock.acquire(blocking=False)
    if grant is not None:
        stage.had(grant)


def verify(stage: Stage) -> None:
    grant = granted(stage.lock)
    stage.arm()
    grant.verify(SOON)
    stage.had(grant)


def hold(stage: Stage) -> None:
    """Hold for some heartbeats, the first of which places the watch on the own node."""
    grant = granted(stage.lock)
    stage.arm()
    stage.settled(4)
    stage.over()
    stage.holds(grant)
    stage.other.delete(grant.path)
    loss = stage.losses.one()
    assert (loss.reason, loss.grant) == (zklock.LossReason.NODE_DELETED, grant)


SCENARIOS: dict[Scenario, int] = {
    free_lock: 2,
    no_parent: 5,
    hand_over: 4,
    move_up: 3,
    release: 1,
    time_out: 5,
    cancel: 1,
    not_free: 3,
    try_free_lock: 2,
    verify: 1,
}
"""With the number of requests that each consists of, at least."""


class Cast:
    """Plays scenarios on one server, each on a path and through a proxy of its own."""

    def __init__(self, server: ZooKeeperServer, connect: Callable[..., Any], root: str) -> None:
        self._server = server
        self._root = root
        self._number = itertools.count()
        self._others = threading.local()
        self._connect = connect
        self._connecting = threading.Lock()

    def play(self, scenario: Scenario, *losses: Loss, timeout: float = 60.0) -> Stage:
        """Play it to its end, losing what is to be lost; the stage as it then is."""
        first, second, *_ = (*losses, None, None)
        with self._stage(first, second, timeout) as stage:
            scenario(stage)
            stage.over()
            stage.free()
            return stage

    def record(self, scenario: Scenario) -> list[Loss]:
        """Play it undisturbed; return every way to lose one of its frames.

        On a busy machine it may last until the next heartbeat, which other plays do not have. Then
        it is played again.
        """
        while True:
            with heartbeats() as sent:
                stage = self.play(scenario)
            beats = [each for each in sent if each.session_id == stage.session_id]
            if all(each.at < stage.began for each in beats):
                return enumerated(stage)

    @contextmanager
    def _stage(self, first: Loss | None, second: Loss | None, timeout: float) -> Iterator[Stage]:
        path = f"{self._root}/{next(self._number)}"
        with FaultProxy(self._server) as proxy:
            # With a timeout of 60 s heartbeats are 6 s apart, and so are not among the frames that
            # are counted; the first one is over when the scenario begins.
            client = zklock.connect(proxy.hosts, timeout=timeout, start_timeout=SOON)
            try:
                with zklock.Lock(client, f"{path}/first"):
                    proxy.wait_for_frame(is_heartbeat, SOON)
                began = boottime()
                proxy.wait_until(lambda: proxy.counts.requests == proxy.counts.replies, SOON)
                yield Stage(proxy, client, self._other(), f"{path}/lock", first, second, began)
            finally:
                client.stop()
                client.close()

    def _other(self) -> Any:
        if not hasattr(self._others, "client"):
            with self._connecting:
                self._others.client = self._connect(timeout=60.0)
        return self._others.client


def is_heartbeat(frame: Frame) -> bool:
    return frame.kind is FrameKind.REPLY and frame.op in {"multi", "sync"}


def answers(proxy: FaultProxy, mark: int) -> list[Frame]:
    """Return the replies since then, without those to heartbeats."""
    replies = (frame for frame in proxy.frames if frame.kind is FrameKind.REPLY)
    return [frame for frame in replies if frame.number > mark and not is_heartbeat(frame)]


@contextmanager
def heartbeats() -> Iterator[list[telemetry.HeartbeatSent]]:
    """Collect the heartbeats that are sent meanwhile."""
    sent: list[telemetry.HeartbeatSent] = []

    def hear(event: telemetry.Event) -> None:
        if isinstance(event, telemetry.HeartbeatSent):
            sent.append(event)

    with closing(telemetry.subscribe(hear)) as subscription:
        yield sent
        assert subscription.flush(SOON)


def enumerated(stage: Stage) -> list[Loss]:
    """Return every way to lose a frame of what was played on this stage."""
    found: list[Loss] = []
    seen: Counter[tuple[FrameKind, tuple[str, ...]]] = Counter()
    for frame in stage.frames:
        if frame.kind not in {FrameKind.REQUEST, FrameKind.REPLY, FrameKind.EVENT}:
            continue
        ops = (frame.op,) if frame.kind is FrameKind.EVENT else ()
        seen[frame.kind, ops] += 1
        arms = (
            (BEFORE_REQUEST, AFTER_REQUEST)
            if frame.kind is FrameKind.REQUEST
            else (BEFORE_REPLY, AFTER_REPLY)
        )
        found += [Loss(arm, seen[frame.kind, ops], ops, frame.op) for arm in arms]
    return found


@pytest.fixture
def cast(
    zklock_server: ZooKeeperServer, zklock_connect: Callable[..., Any], zklock_path: str
) -> Cast:
    return Cast(zklock_server, zklock_connect, zklock_path)


def play_all(
    cast: Cast, scenario: Scenario, cases: list[tuple[Loss, ...]], timeout: float = 60.0
) -> list[Stage]:
    """Play all cases, several at a time; every one that fails is reported."""
    failures: list[Exception] = []

    def one(losses: tuple[Loss, ...]) -> Stage | None:
        """Play one case; again, if a bounded moment was over before the frame that is to be lost.

        Then the frame that was lost is one of giving up. All promises hold in such a play, too.
        """
        try:
            for _ in range(TRIES):
                stage = cast.play(scenario, *losses, timeout=timeout)
                if all(map(struck_what_was_meant, losses, stage.faults)):
                    break
            return stage
        except Exception as error:
            error.add_note(f"{scenario.__name__}, losing {' and '.join(map(str, losses))}")
            failures.append(error)
            return None

    with ThreadPoolExecutor(PARALLEL, "zklock-drops") as pool:
        stages = [stage for stage in pool.map(one, cases) if stage is not None]
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(cases)} cases", failures)
    return stages


def sampled(cases: list[Loss]) -> list[Loss]:
    """Return all cases; each frame lost in one way, and at night in both."""
    return cases if full() else [case for at, case in enumerate(cases) if at % 4 in {0, 3}]


def struck_what_was_meant(loss: Loss, fault: Fault) -> bool:
    return not loss.what or (fault.frame is not None and fault.frame.op == loss.what)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_frame_is_lost_once(cast: Cast, scenario: Scenario) -> None:
    cases = cast.record(scenario)
    ways = Counter(loss.arm for loss in cases)
    assert ways[BEFORE_REQUEST] == ways[AFTER_REQUEST] >= SCENARIOS[scenario]
    assert ways[BEFORE_REPLY] == ways[AFTER_REPLY] >= SCENARIOS[scenario]
    stages = play_all(cast, scenario, [(loss,) for loss in cases])
    for stage, loss in zip(stages, cases, strict=True):
        (fault,) = stage.faults
        assert struck_what_was_meant(loss, fault)
        print(f"{scenario.__name__:14} {loss}")
    print(f"{scenario.__name__:14} {len(stages)} cases")


TWICE = pytest.mark.thorough(
    "two losses in a hand-over: those of a free lock, a release and a cancel run"
)


@pytest.mark.parametrize(
    "scenario",
    [free_lock, pytest.param(hand_over, marks=TWICE), release, cancel],
    ids=lambda scenario: scenario.__name__,
)
def test_every_request_is_lost_and_one_of_the_recovery(cast: Cast, scenario: Scenario) -> None:
    ways = (BEFORE_REQUEST, AFTER_REQUEST)
    firsts = sampled([loss for loss in cast.record(scenario) if loss.arm in ways])
    seconds = [Loss(arm, n) for n in range(1, 4) for arm in ways]
    cases: list[tuple[Loss, ...]] = list(itertools.product(firsts, seconds))
    stages = play_all(cast, scenario, cases)
    # Where the recovery takes fewer requests, there is nothing to lose.
    both = [stage for stage in stages if all(fault.fired.is_set() for fault in stage.faults)]
    print(f"{scenario.__name__:14} {len(both)} cases with two losses")
    assert len(both) >= 2 * len(firsts)


@pytest.mark.hazard("H16")
def test_heartbeats_are_lost(cast: Cast) -> None:
    ways = (BEFORE_REQUEST, AFTER_REQUEST, BEFORE_REPLY, AFTER_REPLY)
    cases: list[tuple[Loss, ...]] = [(Loss(arm, n),) for n in range(1, 5) for arm in ways]
    stages = play_all(cast, hold, cases, timeout=24.0)
    print(f"{'hold':14} {len(stages)} cases")
