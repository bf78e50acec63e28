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
from zklock.cli.view.model import Facts, LockView, Look
from zklock.cli.view.text import CLOCKS_DIFFER, many

LEASE = DEFAULT_FRACTION
HEARTBEAT = 1 / 10
SILENCE = HUNG
"""Fractions of the session timeout: the lease, the time between heartbeats, and the time after
which a heartbeat without an answer breaks the connection."""

UNMAINTAINED = (3, 7)
"""This ZooKeeper and those before it get no more releases."""
SOON = 0.2
"""Seconds. A busy machine may keep a holder from noticing its loss for as long."""
CROWDED = 0.8
"""The share of the connections of one address from which there is little room."""


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
    """One of the servers: what it says of itself, or why it does not.

    ``ahead``: the least and the greatest number of seconds by which its clock may be ahead of this
    machine's. ``todo``: what to do about the trouble.
    """

    name: str
    mode: str | None = None
    version: str | None = None
    trouble: str | None = None
    todo: str = ""
    outstanding: int = 0
    ahead: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server grants, in seconds; ``source``: how that is known; ``None``: it is not.

    ``voters``: how many voters its ensemble has, 0 if it stands alone. ``per_address``: how many
    connections it takes from one address, 0 if there is no limit.
    """

    source: str
    tick: float | None = None
    shortest: float | None = None
    longest: float | None = None
    sync_ticks: int | None = None
    voters: int | None = None
    per_address: int = 0


@dataclass(frozen=True, slots=True)
class Rights:
    """What somebody may do on the node at ``path``. ``None``: that is not known.

    ``refusal``: why else a contender would be refused.
    """

    path: str
    create: bool
    delete: bool | None
    read: bool
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Examined:
    """All that was learnt. Times are in seconds.

    ``rights``: those of everybody, by the ACL, ``None`` if it may not be read. ``own``: those of
    this command, by trial, ``None`` if nothing could be tried. ``alike``: how many sessions of this
    machine's address there are on the server of this command, 0 if that is not known. ``local``:
    whether new sessions are local to a server. ``hosts``: options that other commands need.
    """

    path: str
    asked: float
    granted: float
    servers: Sequence[Server]
    limits: Limits | None
    reads: Sequence[float]
    writes: Sequence[float]
    boottime: bool
    chroot: str
    chroot_exists: bool
    rights: Rights | None
    own: Rights | None
    exists: bool
    seen: Look
    facts: Facts = field(default_factory=Facts)
    hosts: Sequence[str] = ()
    versions: str = ""
    alike: int = 0
    local: bool = False


def without_session(servers: Sequence[Server], why: str) -> list[Finding]:
    """Return the findings where no session can be had, the worst first."""
    told = _sorted({"server": _servers(servers), "version": _versions(servers)})
    return [problem(why, about="session"), *told]


def _sorted(sections: Mapping[str, Iterable[Finding]]) -> list[Finding]:
    """Return the findings, the worst first; they are about their section, or say about what."""
    told = (replace(one, about=one.about or it) for it, found in sections.items() for one in found)
    return sorted(told, key=lambda finding: -finding.level)


def findings(it: Examined) -> list[Finding]:
    """Return all findings, the worst first."""
    sections: dict[str, Iterable[Finding]] = {
        "server": _servers(it.servers),
        "version": _versions(it.servers),
        "connections": _crowd(it),
        "sessions": _local(it),
        "ensemble": _ensemble(it.servers, None if it.limits is None else it.limits.voters),
        "session": _session(it),
        "lease": _lease(it),
        "cut off": _cut_off(it),
        "speed": _speed(it),
        "clock": _clock(it),
        "clocks": _clocks(it),
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
    for server in servers:
        if server.trouble is not None:
            yield warning(
                f"{server.name} {server.trouble}",
                server.todo or "look at its log",
            )
        elif server.mode == "read-only":
            yield problem(
                f"{server.name} has no quorum and serves only reads: it grants no lock",
                "start the other servers of the ensemble, or repair the network between them",
            )
        elif server.mode == "observer":
            yield note(
                f"{server.name} is an observer: a heartbeat through it makes one more hop",
                "let programs with short session timeouts connect to voters",
            )
        elif server.outstanding > 100:
            yield warning(
                f"{server.name} has {server.outstanding} outstanding requests",
                "check its disk: a slow transaction log delays all writes",
            )
        elif server.mode is None:
            yield unknown(
                f"{server.name} serves, but does not report its version, nor whether it leads, "
                "follows or observes",
                "put 'srvr' on its whitelist of four-letter words, or see --admin-port",
            )
        else:
            yield ok(
                f"{server.name}: {server.mode}, "
                f"ZooKeeper {server.version or 'of an unknown version'}",
            )


def _versions(servers: Sequence[Server]) -> Iterator[Finding]:
    serving = [server for server in servers if server.trouble is None]
    versions = sorted({server.version for server in serving if server.version})
    if len(versions) > 1:
        yield note(
            f"the servers run different versions: {', '.join(versions)}",
            "finish the upgrade",
        )
    for version in versions:
        if _number(version) <= UNMAINTAINED:
            yield warning(
                f"ZooKeeper {version} is no longer maintained",
                "upgrade to 3.8 or later",
            )


def _crowd(it: Examined) -> Iterator[Finding]:
    most = it.limits.per_address if it.limits else 0
    if most and it.alike >= CROWDED * most:
        yield warning(
            f"{it.alike} of the {most} connections that a server takes from one address "
            "(maxClientCnxns) are in use",
            "share one client in each process, or raise maxClientCnxns on all servers: a holder "
            "that connects again needs two",
        )


def _local(it: Examined) -> Iterator[Finding]:
    if it.local and not (it.own and it.own.refusal):
        yield warning(
            "new sessions are local to a server until they get a lock, but zklock's guarantees "
            "assume global sessions",
            "set localSessionsEnabled=false on all servers",
        )


def _ensemble(servers: Sequence[Server], known: int | None) -> Iterator[Finding]:
    serving = [server for server in servers if server.trouble is None]
    named = sum(server.mode in {"leader", "follower"} for server in servers)
    if known == 1 or (serving and all(server.mode == "standalone" for server in serving)):
        yield note(
            "there is only one server: while it is down, no lock is granted, and leases lapse",
            "run three servers where that matters",
        )
    elif known:
        if len(servers) < known:
            yield note(
                f"the ensemble has {known} voters, but --hosts names only {len(servers)} of its "
                "servers: a client with these hosts cannot use the others",
                "name all servers in --hosts, and in the hosts of the programs",
            )
        if known % 2 == 0:
            yield note(
                f"{known} voters tolerate no more failures than {known - 1} would",
                "use an odd number of voters",
            )
    elif named and named == len(servers) and named % 2 == 0:
        yield note(
            f"--hosts names {named} voters: if these are all, they tolerate no more failures than "
            f"{named - 1} would",
            "name all servers in --hosts; use an odd number of voters",
        )


def _number(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(map(str.isdigit, parts)) else (99,)


def _session(it: Examined) -> Iterator[Finding]:
    timeout, limits = it.granted, it.limits
    if abs(timeout - it.asked) > 0.001:
        bounds = ""
        if limits and limits.shortest is not None and limits.longest is not None:
            bounds = f" (it grants {limits.shortest:g} to {limits.longest:g} s)"
        yield warning(
            f"the command asked for a session timeout of {it.asked:g} s, and ZooKeeper granted "
            f"{timeout:g} s{bounds}",
            "ask for that timeout, or change minSessionTimeout or maxSessionTimeout",
        )
    else:
        yield ok(f"the session timeout is {timeout:g} s, as asked")


def _lease(it: Examined) -> Iterator[Finding]:
    timeout, limits = it.granted, it.limits
    if limits is None or limits.tick is None:
        yield unknown(
            "the servers' tickTime is not known, and neither is the time between a lost lease "
            f"and the next grant{_granting(limits)}: with a session timeout of {timeout:g} s, "
            f"tickTime must be less than {2 * (1 - HEARTBEAT - LEASE) * timeout:.1f} s",
            "put 'conf' on the servers' whitelist of four-letter words, or see --admin-port",
        )
        return
    tick = limits.tick
    room = (1 - HEARTBEAT - LEASE) * timeout - tick / 2
    arithmetic = f"session timeout {timeout:g} s, tickTime {tick:g} s ({limits.source})"
    if room <= 0:
        yield problem(
            "ZooKeeper may grant a lock to the next contender before its holder knows of the "
            f"loss: {arithmetic}",
            f"ask for a session timeout of {4 * tick:g} s or more, or lower tickTime",
        )
    elif room < max(HEARTBEAT * timeout, SOON):
        yield warning(
            f"a holder knows of its loss only {room:.2f} s before the next grant: {arithmetic}",
            f"ask for a session timeout of {4 * tick:g} s or more, or lower tickTime",
        )
    else:
        yield ok(
            f"a holder knows of its loss at least {room:.2f} s before the next grant: {arithmetic}",
        )


def _cut_off(it: Examined) -> Iterator[Finding]:
    limits = it.limits
    if limits is None or limits.tick is None or (len(it.servers) == 1 and not limits.voters):
        return
    if limits.sync_ticks is None:
        yield unknown(
            "syncLimit is not known: nobody knows for how long a server that is cut off from its "
            "leader answers reads",
            "put 'conf' on the servers' whitelist of four-letter words",
        )
    else:
        cut_off = limits.sync_ticks * limits.tick
        yield note(
            f"a server that is cut off from its leader answers reads for up to {cut_off:g} s "
            f"(syncLimit {limits.sync_ticks}): its answers may be that old",
            "decide by grant.check() and by tokens, not by a read of ZooKeeper",
        )


def _granting(limits: Limits | None) -> str:
    if limits is None or limits.shortest is None or limits.longest is None:
        return ""
    return (
        f" (they grant {limits.shortest:g} to {limits.longest:g} s, not the default of 2 to 20 "
        "ticks)"
    )


def _speed(it: Examined) -> Iterator[Finding]:
    writes = f", a write {_times(it.writes)}" if it.writes else ""
    yield ok(f"a read takes {_times(it.reads)}{writes}")
    if not it.writes:
        return
    slowest, beat = max(it.writes), HEARTBEAT * it.granted
    if slowest > SILENCE * it.granted:
        yield problem(
            f"a write took {_ms(slowest)}: a heartbeat that takes longer than "
            f"{_ms(SILENCE * it.granted)} costs the connection, and soon the locks",
            "give the transaction log a disk of its own, or ask for a longer session timeout",
        )
    elif slowest > beat:
        yield warning(
            f"a write took {_ms(slowest)}: a heartbeat is sent every {_ms(beat)}",
            "give the transaction log a disk of its own, or ask for a longer session timeout",
        )


def _times(seconds: Sequence[float]) -> str:
    return f"{_ms(statistics.median(seconds))} (at most {_ms(max(seconds))})"


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
    if it.versions:
        yield ok(it.versions, about="version")


def _clocks(it: Examined) -> Iterator[Finding]:
    """Whether ages can be believed. Locks and leases need no clock that is right."""
    todo = "keep all clocks by NTP; locks and leases do not depend on them, but ages do"
    compared = [server for server in it.servers if server.ahead is not None]
    wrong = 0
    for server in compared:
        assert server.ahead is not None
        least, most = server.ahead
        if least <= CLOCKS_DIFFER and most >= -CLOCKS_DIFFER:
            continue
        wrong += 1
        far = f"{least:.0f} s ahead of" if least > 0 else f"{-most:.0f} s behind"
        yield note(f"the clock of {server.name} is {far} this machine's", todo)
    if compared and not wrong:
        some = ", ".join(server.name for server in compared)
        yield ok(f"this machine's clock agrees with that of {some}")
    behind = it.seen.behind
    if not wrong and behind > CLOCKS_DIFFER:
        yield note(
            f"this machine's clock is {behind:.0f} s behind that of ZooKeeper's leader, or more",
            todo,
        )
    elif not compared:
        yield unknown(
            "zklock does not know whether this machine's clock agrees with the servers': ages "
            "may be wrong",
            "let zklock ask the admin servers: see --admin-port",
        )


def _access(it: Examined) -> Iterator[Finding]:
    if not it.chroot_exists:
        yield problem(
            f"the chroot {it.chroot} does not exist: every request fails",
            f"create it: zkCli.sh create {it.chroot}",
            about="chroot",
        )
    elif not it.exists:
        yield note(
            f"{it.path} does not exist yet: the first contender makes it",
            "if there should be locks, look for them with 'zklock ls'",
            about="path",
        )
    if it.seen.denied:
        some = ", ".join(it.seen.denied[:3])
        yield warning(
            f"ACLs forbid reading {many(len(it.seen.denied), 'node')}, such as {some}",
            "use credentials that may read them",
        )


def _rights(it: Examined) -> Iterator[Finding]:
    own, rights = it.own, it.rights
    if own is not None and own.refusal:
        yield problem(
            f"with this command's connection, no lock can be acquired at {it.path}",
            own.refusal,
            about="refused",
        )
    elif own is not None:
        wanted = [
            ("create", own.create),
            *([("delete", own.delete), ("read", own.read)] if it.exists else []),
        ]
        lacking = [name for name, granted in wanted if granted is False]
        if lacking:
            yield warning(
                f"with this command's connection, there is no {' and '.join(lacking)} permission "
                f"on {own.path}: a lock there needs create, delete and read",
                "give it the credentials of the programs (see 'TLS, SASL, ACLs' in the docs), or "
                "set the ACL",
            )
        elif rights is not None and not rights.delete:
            yield ok(
                f"only clients with credentials can take locks on {own.path}, and this command can",
            )
    if rights is not None and rights.delete:
        yield note(
            f"anyone who reaches ZooKeeper may delete contenders on {rights.path}, and so take "
            "locks",
            "set an ACL, unless everyone who reaches ZooKeeper is trusted",
        )
    elif rights is None and own is not None:
        yield unknown(
            f"this command may not read the ACL of {own.path}: the rights of others are not known",
            "use credentials that have read or admin permission",
        )


def _contenders(seen: Look) -> Iterator[Finding]:
    waiting = sum(len(lock.waiting) for lock in seen.locks)
    yield ok(
        f"{many(len(seen.locks), 'lock')} in use, {many(waiting, 'waiting contender')}",
    )
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
                "start workers" if not pool.workers else "look again; if it lasts, see the "
                f"workers' logs, and 'zklock show {pool.path}'",
            )  # fmt: skip


def _deadlocks(it: Examined) -> Iterator[Finding]:
    for deadlock in it.seen.deadlocks:
        locks = ", ".join(dict.fromkeys(waiter.lock.path for waiter, _ in deadlock.chain))
        yield Finding(
            Level.PROBLEM if deadlock.certain else Level.WARNING,
            f"{'a certain' if deadlock.certain else 'a possible'} deadlock over {locks}",
            f"see 'zklock graph'; this would break it: {deadlock.remedy(it.hosts)}",
        )
