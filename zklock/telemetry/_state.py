"""What both adapters know of this process: what is held now, and how near it was to being lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

from zklock._core.callbacks import check_callback
from zklock._ground.clock import clock
from zklock._ground.loss import LossReason
from zklock._ground.process import this_process
from zklock._telemetry.events import (
    Connected,
    Disconnected,
    Event,
    Granted,
    Lost,
    Proof,
    Released,
    SessionEnded,
    ShardMoved,
)

WINDOW = 300.0
"""For how many seconds the low-water mark looks back."""

_STEP = 10.0

Place: TypeAlias = tuple[str, str]
"""The label and the kind of a lock."""


Label: TypeAlias = Callable[[str], str]
"""Makes the label of a path."""

Numbers: TypeAlias = dict[tuple[str, ...], float]
"""The numbers of a gauge, by the values of its labels."""


def itself(path: str) -> str:
    """Return the path: the label of a lock, unless its user wants another."""
    return path


def written(label: object) -> str:
    """Return a label as text that every exporter can write.

    One that cannot be written would keep all metrics of the process from being told.
    """
    return str(label).encode(errors="backslashreplace").decode()


def labeller(label: Callable[[str], object]) -> Label:
    """Return what makes the labels of paths, by a function of the user's."""
    check_callback(False, "label", label)
    return lambda path: written(label(path))


class LowWater:
    """The least numbers of the last ``WINDOW`` seconds, one for each ten seconds."""

    def __init__(self) -> None:
        self._steps: dict[int, float] = {}

    def note(self, at: float, number: float) -> None:
        step = int(at // _STEP)
        self._steps[step] = min(number, self._steps.get(step, number))
        for old in [each for each in self._steps if each < step - WINDOW // _STEP]:
            del self._steps[old]

    def lately(self, now: float) -> list[float]:
        first = (now - WINDOW) // _STEP
        return [number for step, number in self._steps.copy().items() if step >= first]


class State:
    """Follows the events. One thread notes; any thread reads.

    ``label`` is one of ``labeller``; locks of one label are counted together. Each change of a
    collection is one step, and so is each copy: no lock is needed.
    """

    def __init__(self, label: Label) -> None:
        self._label = label
        self._start_over()

    def _start_over(self) -> None:
        self._process = this_process()
        self._held: dict[tuple[int, str], Place] = {}
        self._places: dict[Place, None] = {}
        self._connected: dict[int, bool] = {}
        self._proofs: dict[int, Proof] = {}  # the newest of each session
        self._shards: dict[tuple[str, Any, str], str] = {}
        self._pools: dict[str, None] = {}
        self._low = LowWater()

    def _here(self) -> None:
        if self._process != this_process():  # a forked child holds nothing
            self._start_over()

    def note(self, event: Event) -> None:
        self._here()
        match event:
            case Granted():
                place = self._label(event.path), event.kind
                self._places[place] = None
                self._held[event.session_id, event.node] = place
            case Released() | Lost():
                self._held.pop((event.session_id, event.node), None)
                if isinstance(event, Lost) and event.reason is LossReason.LEASE_LAPSED:
                    self._low.note(event.at, 0.0)
            case Connected():
                self._connected[event.session_id] = True
            case Disconnected():
                self._connected[event.session_id] = False
            case SessionEnded():
                self._connected.pop(event.session_id, None)
                self._proofs.pop(event.session_id, None)
            case Proof():
                self._connected.setdefault(event.session_id, True)
                self._proofs[event.session_id] = event
                if event.held:
                    self._low.note(event.at, event.margin / event.timeout)
            case ShardMoved():
                shard, pool = (event.path, event.shard, event.identity), self._label(event.path)
                self._pools[pool] = None
                if event.owned:
                    self._shards[shard] = pool
                else:
                    self._shards.pop(shard, None)

    def holders(self) -> Numbers:
        """Return how many grants of each lock are held; 0 for those that were held before."""
        self._here()
        counts = Counter(self._held.copy().values())
        return {place: counts[place] for place in self._places.copy()}

    def sessions(self) -> Numbers:
        self._here()
        states = list(self._connected.copy().values())
        return {("connected",): states.count(True), ("disconnected",): states.count(False)}

    def shards(self) -> Numbers:
        self._here()
        counts = Counter(self._shards.copy().values())
        return {(pool,): counts[pool] for pool in self._pools.copy()}

    def proof_age(self) -> Numbers:
        """Return the age of the oldest newest proof of a session with grants, in seconds."""
        now = clock()
        return _worst(max, [now - proof.at + proof.age for proof in self._at_stake()])

    def low_water(self) -> Numbers:
        """Return how small the lease was lately, as a part of the session timeout.

        It is the least that was left when a proof came, in the last ``WINDOW`` seconds, and what is
        left now. Nothing if nothing was held.
        """
        now = clock()
        left = [max(0.0, it.at + it.lease - now) / it.timeout for it in self._at_stake()]
        return _worst(min, left + self._low.lately(now))

    def _at_stake(self) -> list[Proof]:
        self._here()
        held = {session for session, _ in self._held.copy()}
        return [proof for session, proof in self._proofs.copy().items() if session in held]


def _worst(worst: Callable[[list[float]], float], numbers: list[float]) -> Numbers:
    return {(): worst(numbers)} if numbers else {}
