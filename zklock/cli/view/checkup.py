"""What would hurt: findings on servers, the session, and what is below a path. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from itertools import chain
from typing import Any

from zklock._core.heartbeat import HUNG
from zklock._core.lease import DEFAULT_FRACTION
from zklock._recipes import names
from zklock._shell.refusals import Refusal
from zklock.cli.view.model import Facts, LockView, Look
from zklock.cli.view.text import CLOCKS_DIFFER, many, some

LEASE = DEFAULT_FRACTION
HEARTBEAT = 1 / 10
SILENCE = HUNG
"""Fractions of the session timeout: the lease, the time between heartbeats, and the time after
which a heartbeat without an answer breaks the connection."""

SOON = 0.2
"""Seconds. A busy machine may keep a holder from noticing its loss for as long."""


class Level(IntEnum):
    """How bad a finding is; the worst is the exit status."""

    OK = -2
    UNKNOWN = -1  # it could not be learnt
    NOTE = 0
    WARNING = 1
    PROBLEM = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """``about``: a word for programs. ``todo``: what to do, empty if there is nothing to do."""

    level: Level
    what: str
    todo: str = ""
    about: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level.name.lower(),
            "about": self.about,
            "what": self.what,
            "do": self.todo or None,
        }


ok, unknown, note, warning, problem = (partial(Finding, level) for level in Level)


@dataclass(frozen=True, slots=True)
class Server:
    """One of the servers: what it says of itself, or why it does not."""

    name: str
    mode: str | None = None
    version: str | None = None
    trouble: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server grants, in seconds; ``source``: how that is known.

    ``voters``: how many voters its ensemble has, 0 if it names none.
    """

    source: str
    tick: float
    shortest: float
    longest: float
    voters: int = 0


@dataclass(frozen=True, slots=True)
class Rights:
    """What this command may not do on a node. ``refusal``: why else a contender is refused."""

    lacking: Sequence[str] = ()
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Examined:
    """All that was learnt. Times are in seconds.

    ``nearest``: the path, or its nearest ancestor that exists. There, ``exposed``: whether anybody
    may delete contenders, ``None`` if the ACL may not be read; ``own``: the rights of this command,
    by trial, ``None`` if nothing could be tried. ``hosts``: options that other commands need.
    """

    path: str
    nearest: str
    asked: float
    granted: float
    servers: Sequence[Server]
    limits: Limits | None
    reads: Sequence[float]
    writes: Sequence[float]
    boottime: bool
    chroot: str
    chroot_exists: bool
    exposed: bool | None
    own: Rights | None
    seen: Look
    facts: Facts = field(default_factory=Facts)
    hosts: Sequence[str] = ()
    versions: str = ""


def without_session(servers: Sequence[Server], why: str) -> list[Finding]:
    """Return the findings where no session can be had, the worst first."""
    return [problem(why, about="session"), *_sorted({"server": _servers(servers)})]


def _sorted(sections: Mapping[str, Iterable[Finding]]) -> list[Finding]:
    """Return the findings, the worst first; they are about their section, or say about what."""
    told = (replace(one, about=one.about or it) for it, found in sections.items() for one in found)
    return sorted(told, key=lambda finding: -finding.level)


def findings(it: Examined) -> list[Finding]:
    """Return all findings, the worst first."""
    sections: dict[str, Iterable[Finding]] = {
        "server": _servers(it.servers),
        "ensemble": _ensemble(it),
        "session": _session(it),
        "lease": _lease(it),
        "speed": _speed(it),
        "clock": _clock(it),
        "acl": chain(_access(it), _rights(it)),
        "locks": _contenders(it.seen),
        "numbers": _numbers(it.facts),
        "pool": _pools(it.seen),
        "deadlock": _deadlocks(it),
    }
    return _sorted(sections)


def worst(found: Sequence[Finding]) -> int:
    """Return the exit status: 2 for a problem, 1 for a warning, else 0."""
    return max([0, *(finding.level for finding in found)])


def _servers(servers: Sequence[Server]) -> Iterator[Finding]:
    for it in servers:
        if it.trouble is not None:
            yield warning(f"{it.name} {it.trouble.what}", it.trouble.todo or "look at its log")
        elif it.mode is None:
            yield unknown(
                f"{it.name} serves, but does not tell its version and its part in the ensemble",
                "put 'srvr' on its whitelist of four-letter words",
            )
        else:
            yield ok(f"{it.name}: {it.mode}, ZooKeeper {it.version}")


def _ensemble(it: Examined) -> Iterator[Finding]:
    modes = {server.mode for server in it.servers if server.trouble is None}
    voters = it.limits.voters if it.limits else 0
    if voters == 1 or modes == {"standalone"}:
        yield note(
            "there is only one server: while it is down, no lock is granted, and leases lapse",
            "run three servers where that matters",
        )
    elif len(it.servers) < voters:
        yield note(
            f"the ensemble has {voters} voters, but --hosts names only {len(it.servers)} of its "
            "servers: a client with these hosts cannot use the others",
            "name all servers in --hosts, and in the hosts of the programs",
        )
    if voters and voters % 2 == 0:
        yield note(
            f"{voters} voters tolerate no more failures than {voters - 1} would",
            "use an odd number of voters",
        )


def _session(it: Examined) -> Iterator[Finding]:
    if abs(it.granted - it.asked) <= 0.001:
        yield ok(f"the session timeout is {it.granted:g} s, as asked")
        return
    bounds = f" (it grants {it.limits.shortest:g} to {it.limits.longest:g} s)" if it.limits else ""
    yield warning(
        f"the command asked for a session timeout of {it.asked:g} s, and ZooKeeper granted "
        f"{it.granted:g} s{bounds}",
        "ask for that timeout, or change minSessionTimeout or maxSessionTimeout",
    )


def _lease(it: Examined) -> Iterator[Finding]:
    timeout, limits, left = it.granted, it.limits, (1 - HEARTBEAT - LEASE) * it.granted
    if limits is None:
        yield unknown(
            "the servers' tickTime is not known, and neither is the time between a lost lease "
            f"and the next grant: with a session timeout of {timeout:g} s, tickTime must be less "
            f"than {2 * left:.1f} s",
            "put 'conf' on the servers' whitelist of four-letter words, or see --admin-port",
        )
        return
    room = left - limits.tick / 2
    how = f"session timeout {timeout:g} s, tickTime {limits.tick:g} s ({limits.source})"
    todo = f"ask for a session timeout of {4 * limits.tick:g} s or more, or lower tickTime"
    if room <= 0:
        yield problem(
            f"ZooKeeper may grant a lock before its holder knows of the loss: {how}", todo
        )
        return
    what = f"a holder knows of its loss at least {room:.2f} s before the next grant: {how}"
    yield warning(what, todo) if room < max(HEARTBEAT * timeout, SOON) else ok(what)


def _speed(it: Examined) -> Iterator[Finding]:
    taken = {"a read": it.reads, "a write": it.writes}
    shown = [
        f"{what} takes {_ms(statistics.median(times))} (at most {_ms(max(times))})"
        for what, times in taken.items()
        if times
    ]
    yield ok(", ".join(shown))
    slowest, beat, silence = max([0.0, *it.writes]), HEARTBEAT * it.granted, SILENCE * it.granted
    if slowest > beat:
        yield (problem if slowest > silence else warning)(
            f"a write took {_ms(slowest)}: a heartbeat is sent every {_ms(beat)}, and one that "
            f"takes {_ms(silence)} costs the connection, and soon the locks",
            "give the transaction log a disk of its own, or ask for a longer session timeout",
        )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _clock(it: Examined) -> Iterator[Finding]:
    if it.boottime:
        yield ok("leases are kept by CLOCK_BOOTTIME")
    else:
        yield warning(
            "this system has no CLOCK_BOOTTIME: a lease seems live after the machine slept",
            "do not suspend the machine while a lock is held",
        )
    if it.seen.behind > CLOCKS_DIFFER:
        yield note(
            f"this machine's clock is {it.seen.behind:.0f} s or more behind that of ZooKeeper's "
            "leader: ages are wrong",
            "keep all clocks by NTP; locks and leases do not depend on them",
            about="clocks",
        )
    yield ok(it.versions, about="version")


def _access(it: Examined) -> Iterator[Finding]:
    if not it.chroot_exists:
        yield problem(
            f"the chroot {it.chroot} does not exist: every request fails",
            f"create it: zkCli.sh create {it.chroot}",
            about="chroot",
        )
    elif it.nearest != it.path:
        yield note(
            f"{it.path} does not exist yet: the first contender makes it",
            "if there should be locks, look for them with 'zklock ls'",
            about="path",
        )
    if it.seen.denied:
        yield warning(
            f"ACLs forbid reading {some(it.seen.denied)}",
            "use credentials that may read them",
        )


def _rights(it: Examined) -> Iterator[Finding]:
    if it.own is not None and it.own.refusal:
        yield problem(
            f"with this command's connection, no lock can be acquired at {it.path}",
            it.own.refusal,
            about="refused",
        )
    elif it.own is not None and it.own.lacking:
        yield warning(
            f"with this command's connection, there is no {' and '.join(it.own.lacking)} "
            f"permission on {it.nearest}: a lock there needs create, delete and read",
            "give it the credentials of the programs (see 'TLS, SASL, ACLs' in the docs), or "
            "set the ACL",
        )
    if it.exposed:
        yield note(
            f"anyone who reaches ZooKeeper may delete contenders on {it.nearest}, and so take "
            "locks",
            "set an ACL, unless everyone who reaches ZooKeeper is trusted",
        )
    elif it.exposed is None and it.own is not None:
        yield unknown(
            f"this command may not read the ACL of {it.nearest}: the rights of others are not "
            "known",
            "use credentials that have read or admin permission",
        )


def _contenders(seen: Look) -> Iterator[Finding]:
    waiting = sum(len(lock.waiting) for lock in seen.locks)
    yield ok(f"{many(len(seen.locks), 'lock')} in use, {many(waiting, 'waiting contender')}")
    for lock in seen.locks:
        for what, todo in lock.orphans():
            yield problem(what, todo, about="orphan")
        if _mixed(lock):
            yield warning(
                f"{lock.path} has contenders of kazoo and of others: kazoo's do not wait for the "
                'others unless they are made with extra_lock_patterns=["-lock-"]',
                "use zklock there, or pass that argument to each of kazoo's locks",
                about="kazoo",
            )


def _mixed(lock: LockView) -> bool:
    kazoo = ["__lock__" in place.name.text or "__rlock__" in place.name.text
             for place in lock.places]  # fmt: skip
    return any(kazoo) and not all(kazoo)


def _numbers(facts: Facts) -> Iterator[Finding]:
    for path, node in sorted(facts.nodes.items()):
        children = node.names
        if path == "/" or children is None:  # no lock; the count of its changes begins at -1
            continue
        queue = names.Queue(children).contenders
        number = queue[-1].number if queue else 0
        if not queue:  # how many children were ever made; ZooKeeper lets the changes wrap
            number = ((node.changes & 0xFFFFFFFF) + len(children)) // 2
        if number >= names.EXHAUSTED_AT:
            yield problem(
                f"{path}: its sequence numbers are used up: no new contender is granted",
                "let its queue drain; zklock then renews it. End the contenders of other libraries",
            )
        elif number >= names.RENEW_AT:
            yield warning(
                f"{path}: more than half of its sequence numbers are used up",
                "leave it without holders and waiters for a moment: zklock's release then renews "
                "it",
            )


def _pools(seen: Look) -> Iterator[Finding]:
    for pool in seen.pools:
        if pool.orphans:
            yield warning(
                f"{pool.path}: {pool.orphans} of {pool.shards} shards have no owner, with "
                f"{len(pool.workers)} workers",
                f"look again; if it lasts, start workers, or read their logs: 'zklock show "
                f"{pool.path}' names them",
            )


def _deadlocks(it: Examined) -> Iterator[Finding]:
    for deadlock in it.seen.deadlocks:
        locks = ", ".join(dict.fromkeys(waiter.lock.path for waiter, _ in deadlock.chain))
        yield (problem if deadlock.certain else warning)(
            f"a {deadlock.sure} deadlock over {locks}",
            f"see 'zklock graph'; this would break it: {deadlock.remedy(it.hosts)}",
        )
