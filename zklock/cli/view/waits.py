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
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zklock._recipes import names
from zklock.cli.view.model import LockView, Owner, QueuePlace, What

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
    """A contender with its lock, and those that block it (their numbers): ``count`` must go."""

    lock: LockView
    place: QueuePlace
    behind: Sequence[int] = ()
    count: int = 0

    @property
    def holds(self) -> bool:
        return self.place.holds

    @property
    def thread(self) -> bool:
        """Whether its identity names a thread or a task."""
        named = _THREAD.fullmatch(self.place.identity) is not None
        return named and self.place.name.kind is not names.Kind.LATCH

    @property
    def keeps(self) -> bool:
        """Whether its owner does not go on before this wait is over."""
        if self.lock.what is What.ELECTION or self.lock.pool is not None:
            return False
        return not self.holds and bool(self.place.session_id)

    @property
    def came(self) -> float:
        return self.place.created or 0.0


@dataclass(frozen=True, slots=True)
class Deadlock:
    """Contenders that wait for each other.

    ``chain``: a shortest circle of them, each who waits with who stands before it. ``involved``:
    all nodes of the group. ``breaks``: a holder, the youngest of the chain, without whose node the
    chain is open.
    """

    certain: bool
    chain: Sequence[tuple[Stand, Stand]]
    involved: Sequence[str]
    breaks: Stand | None

    @property
    def sure(self) -> str:
        return "certain" if self.certain else "possible"

    def remedy(self, options: Sequence[str]) -> str | None:
        """Return the command that opens the circle; ``options`` are to stand before the path."""
        if self.breaks is None:
            return None
        which = str(self.breaks.place.token or "--oldest")
        return " ".join(["zklock break", *options, shlex.quote(self.breaks.lock.path), which])


def stands(locks: Iterable[LockView]) -> list[Stand]:
    """Return all contenders of these locks, and who waits behind whom."""
    found: list[Stand] = []
    for lock in locks:
        found += _stands(lock, len(found))
    return found


def _stands(lock: LockView, first: int) -> Iterator[Stand]:
    """Yield the contenders of a lock, each with the nearest before it that block it.

    The nearest are enough: they need those before them in turn.
    """
    if lock.what is What.SEMAPHORE:
        holders = range(first, first + len(lock.holders))
        for at, (number, place) in enumerate(lock.numbered(), first):
            if number is None:
                yield Stand(lock, place)
            elif number == 1:
                yield Stand(lock, place, holders, min(lock.short, len(holders)))
            else:
                yield Stand(lock, place, [at - 1], 1)
        return
    behind: dict[int, Sequence[int]] = {}
    last: list[int] = []  # the nearest that blocks a reader
    since: list[int] = []  # the nearest before, back to that one
    for at, place in sorted(enumerate(lock.places, first), key=lambda it: it[1].name):
        reads = place.name.kind is names.Kind.READ
        behind[at] = () if place.holds else last if reads else list(since)
        if reads:
            since.append(at)
        else:
            since, last = [at], [at]
    for at, place in enumerate(lock.places, first):
        yield Stand(lock, place, behind[at], len(behind[at]))


def deadlocks(stands: Sequence[Stand]) -> list[Deadlock]:
    """Return the certain deadlocks, and the possible ones that share nothing with these."""
    certain = _deadlocks(stands, certain=True)
    taken = {node for one in certain for node in one.involved}
    possible = [one for one in _deadlocks(stands, certain=False) if not taken & set(one.involved)]
    return [*certain, *possible]


def _deadlocks(stands: Sequence[Stand], *, certain: bool) -> list[Deadlock]:
    needs = _needs(stands, certain=certain)
    found = []
    for group in circles(needs, never(needs)):
        chain = [stands[at] for at in _chain(needs, stands, group) if at < len(stands)]
        links = zip(chain, [*chain[1:], chain[0]], strict=True)
        holders = [one for one in chain if one.holds]
        found.append(
            Deadlock(
                certain,
                [(one, after) for one, after in links if not one.holds],
                sorted(stands[at].place.path for at in group if at < len(stands)),
                max(holders, key=lambda one: one.came, default=None),
            )
        )
    return found


def _needs(stands: Sequence[Stand], *, certain: bool) -> list[Need]:
    """Return what each contender needs; behind them, what waits of a session need together."""
    needs = [Need(stand.behind, stand.count) for stand in stands]
    threads: dict[Owner, list[int]] = defaultdict(list)
    waits: dict[tuple[int | None, bool], dict[str, list[int]]] = defaultdict(dict)
    for at, stand in enumerate(stands):
        if stand.keeps:
            waits[stand.place.session_id, stand.thread].setdefault(stand.lock.path, []).append(at)
            if stand.thread:
                threads[stand.place.owner].append(at)
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
            key = stand.place.session_id, of_threads
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
    waiters = (at for at in group if at < len(stands) and not stands[at].holds)
    start = min(waiters, key=lambda at: (stands[at].came, at))
    among, came, work = set(group), dict[int, int](), [start]
    for at in work:
        for other in needs[at].others:
            if other == start:
                path = [at]
                while path[-1] != start:
                    path.append(came[path[-1]])
                return path[::-1]
            if other in among and other not in came:
                came[other] = at
                work.append(other)
    raise AssertionError("each one of a group needs each other")
