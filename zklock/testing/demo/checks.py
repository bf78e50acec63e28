"""What each scene of the demo must show. Pure: what workers reported in, checks out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

Report: TypeAlias = Mapping[str, Any]
"""What a worker reported: ``what``, ``at`` (seconds since boot), and what belongs to it."""

Finding: TypeAlias = tuple[bool, str]
"""Whether something was so, and what; the text holds the measurements."""

Owned: TypeAlias = Mapping[str, Mapping[int, str]]
"""The shards of each worker, with the tokens."""


class Failed(Exception):
    """The demo does not show what it has to; the text says what."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A scene with a lock, after its end.

    ``listed``: the queue as ZooKeeper told it before the fault, the holder first. ``reports``: of
    each worker. ``fault``: when the holder was struck, and ``mended``: when that was undone, in
    seconds since boot. ``ledger``: token and worker of each entry. ``left``: who still queues.
    """

    listed: Sequence[str]
    reports: Mapping[str, Sequence[Report]]
    fault: float
    mended: float
    ledger: Sequence[tuple[str, str]]
    left: Sequence[str]

    def told(self, worker: str, what: str) -> Report:
        """Return a worker's first report of this kind; `Failed` if there is none."""
        for report in self.reports[worker]:
            if report["what"] == what:
                return report
        raise Failed(f"{worker} has never reported '{what}'")

    def token(self, worker: str) -> str:
        """Return the token of a worker's grant; texts of tokens sort as tokens do."""
        return str(self.told(worker, "granted")["token"])


def killed(seen: Queue) -> Iterator[Finding]:
    """Check that the next in the queue succeeds a killed holder."""
    heir = seen.listed[1]
    waited = seen.told(heir, "granted")["at"] - seen.fault
    yield waited > 0, f"{heir} got the lock {waited:.2f} s after the kill"
    yield from _served(seen, believed=seen.fault)


def paused(seen: Queue) -> Iterator[Finding]:
    """Check that a paused holder notices its loss at once, and cannot write."""
    holder, *others = seen.listed
    look, lost = seen.told(holder, "looked"), seen.told(holder, "lost")
    turns = [seen.told(it, "granted")["at"] for it in others]
    yield (
        seen.fault < min(turns) and max(turns) < seen.mended,
        f"{' and '.join(others)} had the lock during the pause, {others[0]} "
        f"{turns[0] - seen.fault:.2f} s after SIGSTOP",
    )
    yield (
        look["held"] is False and look["believed"] <= seen.fault,
        f"{holder} found 'held' to be False at its first look after the pause",
    )
    yield lost["at"] > seen.mended, f"its lost callback was called: {lost['reason']}"
    yield (
        seen.told(holder, "refused")["highest"] == seen.token(others[-1]),
        f"its late write was refused: the ledger had seen the token of {others[-1]}",
    )
    yield from _served(seen, believed=look["believed"])


def cut(seen: Queue) -> Iterator[Finding]:
    """Check that a holder without a connection knows of its loss before the next grant."""
    holder, heir = seen.listed[:2]
    lost, granted = seen.told(holder, "lost")["at"], seen.told(heir, "granted")["at"]
    yield (
        seen.fault < lost < granted,
        f"{holder} was told of its loss {lost - seen.fault:.2f} s after the cut, "
        f"{granted - lost:.2f} s before {heir}'s grant",
    )
    yield from _served(seen, believed=lost)


def _served(seen: Queue, believed: float) -> Iterator[Finding]:
    """Check turns, tokens and writes; ``believed``: when the struck holder last took it as held."""
    holder, *others = seen.listed
    grants = [seen.told(worker, "granted")["at"] for worker in others]
    ends = [believed, *(seen.told(worker, "looked")["believed"] for worker in others)]
    gaps = [grant - end for end, grant in zip(ends, grants, strict=False)]
    tokens = [seen.token(worker) for worker in seen.listed]
    yield (
        grants == sorted(grants) and min(gaps) > 0,
        f"one held the lock at a time, in the order of the queue: {', '.join(seen.listed)}",
    )
    yield (
        all(low < high for low, high in pairwise(tokens)),
        "each had a higher token than the one before: "
        + " < ".join(f"...{token[-4:]}" for token in tokens),
    )
    yield (
        list(seen.ledger) == [(seen.token(worker), worker) for worker in others],
        f"the ledger has one entry each of {' and '.join(others)}, and none of {holder}",
    )
    yield not seen.left, "nobody is left in the queue"


def owned(reports: Sequence[Report]) -> dict[int, str]:
    """Return the shards that a pool's worker has, and the token of each."""
    found: dict[int, str] = {}
    for report in reports:
        if report["what"] == "assigned":
            found[report["shard"]] = report["token"]
        elif report["what"] == "revoked" and found.get(report["shard"]) == report["token"]:
            del found[report["shard"]]
    return found


def settled(shares: Owned, shards: int) -> bool:
    """Whether these workers own all shards, in equal parts to within one."""
    sizes = [len(mine) for mine in shares.values()]
    numbers = sorted(shard for mine in shares.values() for shard in mine)
    return numbers == list(range(shards)) and max(sizes) - min(sizes) <= 1


def taken_over(victim: str, before: Owned, after: Owned, seconds: float) -> Iterator[Finding]:
    """Check that the shards of a killed worker go to the others, and no other shard moves."""
    orphans = before[victim]
    old = {shard: token for mine in before.values() for shard, token in mine.items()}
    new = {shard: token for mine in after.values() for shard, token in mine.items()}
    sizes = {worker: len(mine) for worker, mine in after.items()}
    yield (
        sum(sizes.values()) == len(new) == len(old),
        f"every shard has one owner again, {seconds:.2f} s after the kill",
    )
    shares = ", ".join(f"{worker} has {size}" for worker, size in sorted(sizes.items()))
    yield max(sizes.values()) - min(sizes.values()) <= 1, f"the shares are equal: {shares}"
    yield (
        bool(orphans) and {shard for shard in old if new.get(shard) != old[shard]} == set(orphans),
        f"only the {len(orphans)} shards of {victim} have moved",
    )
    yield (
        all(token < new.get(shard, "") for shard, token in orphans.items()),
        f"each of these has a higher token than {victim} had",
    )
