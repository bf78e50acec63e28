"""An assignment by a function of the user's: what it is told, and the check of what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from zklock._core.callbacks import ran
from zklock._ground import threads
from zklock._ground.events import Event
from zklock._pool.assignment import assign
from zklock._pool.keys import Key, encode, in_order


@dataclass(frozen=True, slots=True)
class PlannedWorker:
    """A live worker that may get shards, as an ``assign`` function of a pool sees it.

    ``identity``, ``capacity``, ``payload``: what it says of itself. ``shards``: those of the shards
    to assign that are assigned to it now.
    """

    identity: str
    capacity: float
    payload: bytes
    shards: frozenset[Any]


Assign: TypeAlias = Callable[[Sequence[Any], Sequence[PlannedWorker]], Mapping[Any, str]]


class BadPlan(Exception):
    """An ``assign`` function has made no assignment. If it raised, that is the cause."""


def balanced(shards: Iterable[Any], workers: Iterable[PlannedWorker]) -> dict[Any, str]:
    """Return for each shard the identity of a worker, as a pool without ``assign=`` plans it.

    It is for ``assign`` functions that only want to choose among which workers a shard may be. No
    worker is more than one shard from its share, which is in proportion to its capacity, and the
    fewest shards move. Equal input gives equal output. Of workers with the same identity, the last
    one counts. Raises ``ValueError`` without any worker, if there are shards.
    """
    present = {worker.identity: worker for worker in workers}
    wanted = set(shards)
    if wanted and not present:
        raise ValueError("no worker can get these shards")
    found = assign(
        wanted,
        {identity: worker.capacity for identity, worker in present.items()},
        {identity: worker.shards for identity, worker in present.items()},
    )
    return {shard: identity for identity, mine in found.items() for shard in mine}


def planned(
    function: Assign, shards: Iterable[Key], workers: Mapping[str, PlannedWorker]
) -> dict[str, frozenset[Key]]:
    """Return the shards of each worker, as the function says; ``BadPlan``.

    ``workers`` have different identities. The result has the names that they have here.
    """
    wanted = in_order(shards)
    if not wanted or not workers:
        return {name: frozenset() for name in workers}
    names = {worker.identity: name for name, worker in workers.items()}
    told = tuple(workers[names[identity]] for identity in sorted(names))
    try:
        said = ran("assign", function(tuple(wanted), told))
        return _checked(said, wanted, names)
    except BadPlan:
        raise
    except BaseException as error:  # SystemExit too: it would end the leader's thread silently
        raise BadPlan(f"it raised {type(error).__name__}") from error


def _checked(
    said: object, wanted: Sequence[Key], names: Mapping[str, str]
) -> dict[str, frozenset[Key]]:
    if not isinstance(said, Mapping):
        raise BadPlan(f"it returned {type(said).__name__}, not a mapping")
    owners = {shard: said.get(shard) for shard in wanted}
    for shard in said:
        if shard not in owners:
            raise BadPlan(f"it assigned {shard!r:.100}, which it was not asked to assign")
    nobody = [shard for shard, identity in owners.items() if identity is None]
    if nobody:
        raise BadPlan(f"it assigned nobody to the shards {encode(nobody):.100}")
    found: dict[str, set[Key]] = {name: set() for name in names.values()}
    for shard, identity in owners.items():
        if not isinstance(identity, str) or identity not in names:
            raise BadPlan(
                f"it assigned {shard!r:.100} to {identity!r:.100}, which may not get shards"
            )
        found[names[identity]].add(shard)
    return {name: frozenset(mine) for name, mine in found.items()}


class Asked:
    """A call of the function, begun now: it may never return. ``done`` is set when it has ended.

    Its thread is a daemon: Python ends without it. ``NoThread`` if it cannot be started.
    """

    def __init__(
        self, function: Assign, shards: Iterable[Key], workers: Mapping[str, PlannedWorker]
    ) -> None:
        self.done = Event()
        self._call = partial(planned, function, shards, workers)
        self._plan: dict[str, frozenset[Key]] | BadPlan = {}
        threads.start(self._run, "zklock-assign")

    def result(self) -> dict[str, frozenset[Key]]:
        """Return the shards of each worker, or raise ``BadPlan``; it must be done."""
        if isinstance(self._plan, BadPlan):
            raise self._plan
        return self._plan

    def _run(self) -> None:
        try:
            self._plan = self._call()
        except BadPlan as bad:
            self._plan = bad
        finally:
            self.done.set()
