"""Who waits for whom, over all locks; deadlocks. Pure.

A *contender* that waits needs others to go: the nearest before it that block it, or some permits of
a semaphore. A contender that holds goes when its owner goes on; so it needs the contenders with
which the same owner waits elsewhere. A contender that gets what it needs goes. Those that never go
are in a deadlock, or behind one. A deadlock is a circle of such needs.

Who is the owner? The identity may name a thread or a task (``host:pid:name``, the default of a
lock). Then two contenders of one session belong together if their identities are equal: this is
*certain*. Otherwise the identity names a process at best, and the session tells the process: its
contenders for different locks *possibly* belong to one thread. Members of an election, and workers
of a pool, wait in the background. These waits keep no thread from going on, and do not count.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from zklock._recipes import names
from zklock.cli.view.model import LockView, QueuePlace, What

_THREAD = re.compile(r"[^:]+:[0-9]+:.+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Need:
    """What one waits for: ``count`` of ``others`` must go."""

    others: Sequence[int] = ()
    count: int = 0


def never(needs: Sequence[Need]) -> set[int]:
    """Return those who never get what they need, if everybody else goes once it has it."""
    left = [need.count for need in needs]
    users = _users([need.others for need in needs])
    going = [at for at, count in enumerate(left) if count <= 0]
    gone = set(going)
    while going:
        for user in users[going.pop()]:
            left[user] -= 1
            if left[user] <= 0 and user not in gone:
                gone.add(user)
                going.append(user)
    return set(range(len(needs))) - gone


def circles(needs: Sequence[Need], among: set[int]) -> list[list[int]]:
    """Return the groups in which each one needs, directly or not, each other."""
    near = [
        [other for other in need.others if other in among] if at in among else []
        for at, need in enumerate(needs)
    ]
    users = _users(near)
    # Those that nobody needs, or only such, are behind a circle: long queues end here.
    left = never([Need(those, len(those)) for those in users])
    found = []
    for at in sorted(left):
        if at in left:
            group = _reached(at, near, left) & _reached(at, users, left)
            left -= group
            if len(group) > 1:
                found.append(sorted(group))
    return found


def _users(near: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each who needs it."""
    users: list[list[int]] = [[] for _ in near]
    for at, others in enumerate(near):
        for other in others:
            users[other].append(at)
    return users


def _reached(start: int, near: Sequence[Sequence[int]], among: set[int]) -> set[int]:
    """Return who can be reached from one, and itself."""
    found, work = {start}, [start]
    while work:
        further = among.intersection(near[work.pop()]) - found
        found |= further
        work += further
    return found


@dataclass(frozen=True, slots=True)
class Stand:
    """A contender in the graph, with its lock, and those that block it (their numbers)."""

    lock: LockView
    place: QueuePlace
    behind: Sequence[int] = ()
    count: int = 0

    @property
    def holds(self) -> bool:
        return self.place.contender.holds

    @property
    def thread(self) -> bool:
        """Whether its identity names a thread or a task."""
        named = _THREAD.fullmatch(self.place.contender.identity) is not None
        return named and self.place.name.kind is not names.Kind.LATCH

    @property
    def keeps(self) -> bool:
        """Whether its owner does not go on before this wait is over."""
        if self.lock.what is What.ELECTION or self.lock.pool is not None:
            return False
        return not self.holds and bool(self.place.contender.session_id)


@dataclass(frozen=True, slots=True)
class WaitLink:
    """A step of a chain: ``waiter`` waits for ``lock``, where ``blocker`` stands before it."""

    waiter: QueuePlace
    lock: LockView
    blocker: QueuePlace


@dataclass(frozen=True, slots=True)
class Deadlock:
    """Contenders that wait for each other: ``chain`` is a shortest circle of them.

    ``involved``: all nodes of the group. ``breaks``: a holder, the youngest of the chain, without
    whose node the chain is open, and its lock.
    """

    certain: bool
    chain: Sequence[WaitLink]
    involved: Sequence[str]
    breaks: tuple[LockView, QueuePlace] | None


@dataclass(frozen=True, slots=True)
class Graph:
    """All contenders of some locks, who waits behind whom, and the deadlocks."""

    stands: Sequence[Stand]
    deadlocks: Sequence[Deadlock] = field(default=())

    def without(self, deadlocks: Iterable[Deadlock]) -> Graph:
        """Return the graph without these deadlocks."""
        gone = list(deadlocks)
        return Graph(self.stands, [one for one in self.deadlocks if one not in gone])


def graph(locks: Sequence[LockView]) -> Graph:
    """Return the graph of these locks."""
    stands: list[Stand] = []
    for lock in locks:
        stands += _stands(lock, len(stands))
    certain = _deadlocks(stands, certain=True)
    taken = {node for one in certain for node in one.involved}
    possible = [one for one in _deadlocks(stands, certain=False) if not taken & set(one.involved)]
    return Graph(stands, [*certain, *possible])


def _stands(lock: LockView, first: int) -> Iterator[Stand]:
    """Yield the contenders of a lock, each with the nearest before it that block it.

    The nearest are enough: they need those before them in turn.
    """
    numbers = {place.contender.path: first + at for at, place in enumerate(lock.places)}
    if lock.what is What.SEMAPHORE:
        holders = [numbers[place.contender.path] for place in lock.holders]
        before: list[int] | None = None
        for place, at in zip(lock.places, numbers.values(), strict=True):
            if place.contender.holds:
                yield Stand(lock, place)
            elif before is None:
                yield Stand(lock, place, holders, min(lock.short, len(holders)))
                before = [at]
            else:
                yield Stand(lock, place, before, 1)
                before = [at]
        return
    queue = sorted(lock.places, key=lambda place: place.name)
    behind: dict[str, list[int]] = {}
    last: int | None = None  # the nearest that blocks a reader, unless it lets readers in
    since: list[int] = []  # the nearest before, back to the nearest that is no reader
    for place in queue:
        at, reads = numbers[place.contender.path], place.name.kind is names.Kind.READ
        if place.contender.holds:
            behind[place.contender.path] = []
        elif reads:
            behind[place.contender.path] = [] if last is None else [last]
        else:
            behind[place.contender.path] = list(since)
        if reads:
            since.append(at)
        else:
            since, last = [at], at
    for place in lock.places:
        nearest = behind[place.contender.path]
        yield Stand(lock, place, nearest, len(nearest))


def _deadlocks(stands: Sequence[Stand], *, certain: bool) -> list[Deadlock]:
    needs = _needs(stands, certain=certain)
    found = []
    for group in circles(needs, never(needs)):
        chain = _chain(needs, stands, group)
        holders = [
            (stands[at].lock, stands[at].place)
            for at in chain
            if at < len(stands) and stands[at].holds
        ]
        youngest = max(holders, key=lambda it: it[1].created or 0.0, default=None)
        involved = sorted(stands[at].place.contender.path for at in group if at < len(stands))
        found.append(Deadlock(certain, _links(stands, chain), involved, youngest))
    return found


def _needs(stands: Sequence[Stand], *, certain: bool) -> list[Need]:
    """Return what each contender needs; behind them, what waits of a session need together."""
    needs = [Need(stand.behind, stand.count) for stand in stands]
    threads: dict[tuple[int | None, str], list[int]] = defaultdict(list)
    waits: dict[tuple[int | None, bool], dict[str, list[int]]] = defaultdict(dict)
    for at, stand in enumerate(stands):
        if stand.keeps:
            session, identity = stand.place.owner
            waits[session, stand.thread].setdefault(stand.lock.path, []).append(at)
            if stand.thread:
                threads[session, identity].append(at)
    together: dict[tuple[int | None, bool], int] = {}
    for key, those in () if certain else waits.items():
        every = [at for path in those.values() for at in path]
        together[key] = len(needs)
        needs.append(Need(every, len(every)))
    for at, stand in enumerate(stands):
        if not stand.holds:
            continue
        others = list(threads.get(stand.place.owner, ())) if stand.thread else []
        for of_threads in (False,) if stand.thread else (False, True):
            key = stand.place.owner[0], of_threads
            if key in together:
                others += _elsewhere(stand.lock.path, waits[key], together[key])
        needs[at] = Need(others, len(others))
    return needs


def _elsewhere(path: str, waits: Mapping[str, Sequence[int]], together: int) -> list[int]:
    """Return the waits of a session for other locks; ``together``: what needs all of its waits.

    One thread of a process may hold a lock while another one waits for it: that is no sign of a
    deadlock.
    """
    if path not in waits:
        return [together]
    return [at for other, those in waits.items() if other != path for at in those]


def _chain(needs: Sequence[Need], stands: Sequence[Stand], group: Sequence[int]) -> list[int]:
    """Return a shortest circle within the group that has the oldest waiter in it."""
    among = set(group)
    start = min(
        (at for at in group if at < len(stands) and not stands[at].holds),
        key=lambda at: (stands[at].place.created or 0.0, at),
    )
    came: dict[int, int] = {}
    level = [start]
    while level:
        further = []
        for at in level:
            for other in needs[at].others:
                if other == start:
                    path = [at]
                    while path[-1] != start:
                        path.append(came[path[-1]])
                    return path[::-1]
                if other in among and other not in came:
                    came[other] = at
                    further.append(other)
        level = further
    raise AssertionError("each one of a group needs each other")


def _links(stands: Sequence[Stand], chain: Sequence[int]) -> list[WaitLink]:
    there = [at for at in chain if at < len(stands)]
    return [
        WaitLink(stands[at].place, stands[at].lock, stands[after].place)
        for at, after in zip(there, [*there[1:], there[0]], strict=True)
        if not stands[at].holds
    ]
