"""What each scene of the demo must show. Pure: what workers reported in, checks out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

Report: TypeAlias = Mapping[str, Any]
"""What a worker reported: ``what``, ``at`` (seconds since boot), and what belongs to it."""


class Failed(Exception):
    """The demo does not show what it has to; the text says what."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether something was so, and what; the text holds the measurements."""

    held: bool
    text: str


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

    @property
    def holder(self) -> str:
        """The worker that was struck."""
        return self.listed[0]

    def told(self, worker: str, what: str) -> Report:
        """Return a worker's first report of this kind; `Failed` if there is none."""
        return first(worker, self.reports[worker], what)

    def token(self, worker: str) -> str:
        """Return the token of a worker's grant; texts of tokens sort as tokens do."""
        return str(self.told(worker, "granted")["token"])


@dataclass(frozen=True, slots=True)
class Shares:
    """A scene with a pool: who owned which shard, with which token, before and after the fault."""

    shards: int
    victim: str
    fault: float
    before: Mapping[str, Mapping[int, str]]
    after: Mapping[str, Mapping[int, str]]
    reports: Mapping[str, Sequence[Report]]


def first(worker: str, reports: Sequence[Report], what: str) -> Report:
    """Return the first report of this kind; `Failed` if there is none."""
    for report in reports:
        if report["what"] == what:
            return report
    raise Failed(f"{worker} has never reported '{what}'")


def owned(reports: Sequence[Report]) -> dict[int, str]:
    """Return the shards that a pool's worker has, and the token of each."""
    found: dict[int, str] = {}
    for report in list(reports):
        if report["what"] == "assigned":
            found[report["shard"]] = report["token"]
        elif report["what"] == "revoked" and found.get(report["shard"]) == report["token"]:
            del found[report["shard"]]
    return found


def killed(seen: Queue) -> Iterator[Finding]:
    """Check that the next in the queue succeeds a killed holder."""
    heir = seen.listed[1]
    waited = seen.told(heir, "granted")["at"] - seen.fault
    yield Finding(waited > 0, f"{heir} got the lock {waited:.2f} s after the kill")
    yield from _served(seen, believed=seen.fault)


def paused(seen: Queue) -> Iterator[Finding]:
    """Check that a paused holder notices its loss at once, and cannot write."""
    holder, others = seen.holder, seen.listed[1:]
    look, lost = seen.told(holder, "looked"), seen.told(holder, "lost")
    turns = [seen.told(it, "granted")["at"] for it in others]
    yield Finding(
        seen.fault < min(turns) and max(turns) < seen.mended,
        f"{' and '.join(others)} had the lock during the pause, {others[0]} "
        f"{turns[0] - seen.fault:.2f} s after SIGSTOP",
    )
    yield Finding(
        look["held"] is False and look["believed"] <= seen.fault,
        f"{holder} found 'held' to be False at its first look after the pause",
    )
    yield Finding(lost["at"] > seen.mended, f"its lost callback was called: {lost['reason']}")
    yield Finding(
        seen.told(holder, "refused")["highest"] == seen.token(others[-1]),
        f"its late write was refused: the ledger had seen the token of {others[-1]}",
    )
    yield from _served(seen, believed=look["believed"])


def cut(seen: Queue) -> Iterator[Finding]:
    """Check that a holder without a connection knows of its loss before the next grant."""
    holder, heir = seen.listed[:2]
    lost, granted = seen.told(holder, "lost")["at"], seen.told(heir, "granted")["at"]
    yield Finding(
        seen.fault < lost < granted,
        f"{holder} was told of its loss {lost - seen.fault:.2f} s after the cut, "
        f"{granted - lost:.2f} s before {heir}'s grant",
    )
    yield from _served(seen, believed=lost)


def _served(seen: Queue, believed: float) -> Iterator[Finding]:
    """Check turns, tokens and writes; ``believed``: when the struck holder last took it as held."""
    others = seen.listed[1:]
    grants = [seen.told(worker, "granted")["at"] for worker in others]
    ends = [believed, *(seen.told(worker, "looked")["believed"] for worker in others)]
    gaps = [grant - end for end, grant in zip(ends, grants, strict=False)]
    tokens = [seen.token(worker) for worker in seen.listed]
    names = ", ".join(seen.listed)
    yield Finding(
        grants == sorted(grants) and min(gaps) > 0,
        f"one held the lock at a time, in the order of the queue: {names}",
    )
    yield Finding(
        all(low < high for low, high in pairwise(tokens)),
        f"each had a higher token than the one before: {' < '.join(map(_short, tokens))}",
    )
    yield Finding(
        list(seen.ledger) == [(seen.token(worker), worker) for worker in others],
        f"the ledger has one entry each of {' and '.join(others)}, and none of {seen.holder}",
    )
    yield Finding(not seen.left, "nobody is left in the queue")


def taken_over(seen: Shares) -> Iterator[Finding]:
    """Check that the shards of a killed worker go to the others, and no other shard moves."""
    orphans = seen.before[seen.victim]
    sizes = {worker: len(mine) for worker, mine in seen.after.items()}
    after = {shard: token for mine in seen.after.values() for shard, token in mine.items()}
    moved = [
        report
        for worker in seen.after
        for report in seen.reports[worker]
        if report["what"] == "assigned" and report["at"] > seen.fault
    ]
    last = max((report["at"] for report in moved), default=seen.fault) - seen.fault
    yield Finding(
        sum(sizes.values()) == len(after) == seen.shards,
        f"every shard has one owner again, {last:.2f} s after the kill",
    )
    shares = ", ".join(f"{worker} has {size}" for worker, size in sorted(sizes.items()))
    yield Finding(max(sizes.values()) - min(sizes.values()) <= 1, f"the shares are equal: {shares}")
    yield Finding(
        bool(orphans) and sorted(report["shard"] for report in moved) == sorted(orphans),
        f"only the {len(orphans)} shards of {seen.victim} have moved",
    )
    yield Finding(
        all(token < after.get(shard, "") for shard, token in orphans.items()),
        f"each of these has a higher token than {seen.victim} had",
    )


def settled(shares: Mapping[str, Mapping[int, str]], shards: int) -> bool:
    """Whether these workers own all shards, in equal parts to within one."""
    sizes = [len(mine) for mine in shares.values()]
    numbers = sorted(shard for mine in shares.values() for shard in mine)
    return numbers == list(range(shards)) and max(sizes) - min(sizes) <= 1


def _short(token: str) -> str:
    return f"...{token[-4:]}"
