"""What would hurt: findings on servers, the session, and what is below a path. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any

from zklock._core.heartbeat import HUNG
from zklock._core.lease import DEFAULT_FRACTION
from zklock._recipes import names
from zklock.cli.view.model import Facts, LockView, Picture
from zklock.cli.view.text import CLOCKS_DIFFER, many
from zklock.cli.view.waits import Graph

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
    about: str
    what: str
    todo: str = ""

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
    whether new sessions are local to a server.
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
    picture: Picture
    graph: Graph
    remedies: Sequence[str | None]
    facts: Facts = field(default_factory=Facts)
    versions: str = ""
    alike: int = 0
    local: bool = False


def without_session(servers: Sequence[Server], why: str) -> list[Finding]:
    """Return the findings where no session can be had, the worst first."""
    return [problem("session", why), *_sorted(_servers(servers))]


def _sorted(found: Iterable[Finding]) -> list[Finding]:
    return sorted(found, key=lambda finding: -finding.level)


def findings(it: Examined) -> list[Finding]:
    """Return all findings, the worst first."""
    found = [
        *_servers(it.servers),
        *_crowd(it),
        *_local(it),
        *_ensemble(it.servers, None if it.limits is None else it.limits.voters),
        *_session(it),
        *_speed(it),
        *_clock(it),
        *_clocks(it),
        *_access(it),
        *_rights(it),
        *_contenders(it.picture),
        *_numbers(it.facts),
        *_pools(it.picture),
        *_deadlocks(it),
    ]
    return _sorted(found)


def worst(found: Sequence[Finding]) -> int:
    """Return the exit status: 2 for a problem, 1 for a warning, else 0."""
    return max([0, *(finding.level for finding in found)])


def _servers(servers: Sequence[Server]) -> Iterator[Finding]:
    for server in servers:
        about = "server"
        if server.trouble is not None:
            yield warning(
                about,
                f"{server.name} {server.trouble}",
                server.todo or "look at its log",
            )
        elif server.mode == "read-only":
            yield problem(
                about,
                f"{server.name} has no quorum and serves only reads: it grants no lock",
                "start the other servers of the ensemble, or repair the network between them",
            )
        elif server.mode == "observer":
            yield note(
                about,
                f"{server.name} is an observer: a heartbeat through it makes one more hop",
                "let programs with short session timeouts connect to voters",
            )
        elif server.outstanding > 100:
            yield warning(
                about,
                f"{server.name} has {server.outstanding} outstanding requests",
                "check its disk: a slow transaction log delays all writes",
            )
        elif server.mode is None:
            yield unknown(
                about,
                f"{server.name} serves, but does not report its version, nor whether it leads, "
                "follows or observes",
                "put 'srvr' on its whitelist of four-letter words, or see --admin-port",
            )
        else:
            yield ok(
                about,
                f"{server.name}: {server.mode}, "
                f"ZooKeeper {server.version or 'of an unknown version'}",
            )
    serving = [server for server in servers if server.trouble is None]
    versions = sorted({server.version for server in serving if server.version})
    if len(versions) > 1:
        yield note(
            "version",
            f"the servers run different versions: {', '.join(versions)}",
            "finish the upgrade",
        )
    for version in versions:
        if _number(version) <= UNMAINTAINED:
            yield warning(
                "version",
                f"ZooKeeper {version} is no longer maintained",
                "upgrade to 3.8 or later",
            )


def _crowd(it: Examined) -> Iterator[Finding]:
    most = it.limits.per_address if it.limits else 0
    if most and it.alike >= CROWDED * most:
        yield warning(
            "connections",
            f"{it.alike} of the {most} connections that a server takes from one address "
            "(maxClientCnxns) are in use",
            "share one client in each process, or raise maxClientCnxns on all servers: a holder "
            "that connects again needs two",
        )


def _local(it: Examined) -> Iterator[Finding]:
    if it.local and not (it.own and it.own.refusal):
        yield warning(
            "sessions",
            "new sessions are local to a server until they get a lock, but zklock's guarantees "
            "assume global sessions",
            "set localSessionsEnabled=false on all servers",
        )


def _ensemble(servers: Sequence[Server], known: int | None) -> Iterator[Finding]:
    about = "ensemble"
    serving = [server for server in servers if server.trouble is None]
    named = sum(server.mode in {"leader", "follower"} for server in servers)
    if known == 1 or (serving and all(server.mode == "standalone" for server in serving)):
        yield note(
            about,
            "there is only one server: while it is down, no lock is granted, and leases lapse",
            "run three servers where that matters",
        )
    elif known:
        if len(servers) < known:
            yield note(
                about,
                f"the ensemble has {known} voters, but --hosts names only {len(servers)} of its "
                "servers: a client with these hosts cannot use the others",
                "name all servers in --hosts, and in the hosts of the programs",
            )
        if known % 2 == 0:
            yield note(
                about,
                f"{known} voters tolerate no more failures than {known - 1} would",
                "use an odd number of voters",
            )
    elif named and named == len(servers) and named % 2 == 0:
        yield note(
            about,
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
            "session",
            f"the command asked for a session timeout of {it.asked:g} s, and ZooKeeper granted "
            f"{timeout:g} s{bounds}",
            "ask for that timeout, or change minSessionTimeout or maxSessionTimeout",
        )
    else:
        yield ok("session", f"the session timeout is {timeout:g} s, as asked")
    if limits is None or limits.tick is None:
        yield unknown(
            "lease",
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
            "lease",
            "ZooKeeper may grant a lock to the next contender before its holder knows of the "
            f"loss: {arithmetic}",
            f"ask for a session timeout of {4 * tick:g} s or more, or lower tickTime",
        )
    elif room < max(HEARTBEAT * timeout, SOON):
        yield warning(
            "lease",
            f"a holder knows of its loss only {room:.2f} s before the next grant: {arithmetic}",
            f"ask for a session timeout of {4 * tick:g} s or more, or lower tickTime",
        )
    else:
        yield ok(
            "lease",
            f"a holder knows of its loss at least {room:.2f} s before the next grant: {arithmetic}",
        )
    if len(it.servers) == 1 and not limits.voters:
        return
    if limits.sync_ticks is None:
        yield unknown(
            "cut off",
            "syncLimit is not known: nobody knows for how long a server that is cut off from its "
            "leader answers reads",
            "put 'conf' on the servers' whitelist of four-letter words",
        )
    else:
        cut_off = limits.sync_ticks * tick
        yield note(
            "cut off",
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
    yield ok("speed", f"a read takes {_times(it.reads)}{writes}")
    if not it.writes:
        return
    slowest, beat = max(it.writes), HEARTBEAT * it.granted
    if slowest > SILENCE * it.granted:
        yield problem(
            "speed",
            f"a write took {_ms(slowest)}: a heartbeat that takes longer than "
            f"{_ms(SILENCE * it.granted)} costs the connection, and soon the locks",
            "give the transaction log a disk of its own, or ask for a longer session timeout",
        )
    elif slowest > beat:
        yield warning(
            "speed",
            f"a write took {_ms(slowest)}: a heartbeat is sent every {_ms(beat)}",
            "give the transaction log a disk of its own, or ask for a longer session timeout",
        )


def _times(seconds: Sequence[float]) -> str:
    return f"{_ms(statistics.median(seconds))} (at most {_ms(max(seconds))})"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _clock(it: Examined) -> Iterator[Finding]:
    if it.boottime:
        yield ok("clock", "leases are kept by CLOCK_BOOTTIME")
    else:
        yield warning(
            "clock",
            "this system has no CLOCK_BOOTTIME: a lease seems live after the machine slept",
            "do not suspend the machine while a lock is held",
        )
    if it.versions:
        yield ok("version", it.versions)


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
        yield note("clocks", f"the clock of {server.name} is {far} this machine's", todo)
    if compared and not wrong:
        some = ", ".join(server.name for server in compared)
        yield ok("clocks", f"this machine's clock agrees with that of {some}")
    behind = it.facts.times.behind
    if not wrong and behind > CLOCKS_DIFFER:
        yield note(
            "clocks",
            f"this machine's clock is {behind:.0f} s behind that of ZooKeeper's leader, or more",
            todo,
        )
    elif not compared:
        yield unknown(
            "clocks",
            "zklock does not know whether this machine's clock agrees with the servers': ages "
            "may be wrong",
            "let zklock ask the admin servers: see --admin-port",
        )


def _access(it: Examined) -> Iterator[Finding]:
    if not it.chroot_exists:
        yield problem(
            "chroot",
            f"the chroot {it.chroot} does not exist: every request fails",
            f"create it: zkCli.sh create {it.chroot}",
        )
    elif not it.exists:
        yield note(
            "path",
            f"{it.path} does not exist yet: the first contender makes it",
            "if there should be locks, look for them with 'zklock ls'",
        )
    if it.facts.denied:
        some = ", ".join(sorted(it.facts.denied)[:3])
        yield warning(
            "acl",
            f"ACLs forbid reading {many(len(it.facts.denied), 'node')}, such as {some}",
            "use credentials that may read them",
        )


def _rights(it: Examined) -> Iterator[Finding]:
    own, rights = it.own, it.rights
    if own is not None and own.refusal:
        yield problem(
            "refused",
            f"with this command's connection, no lock can be acquired at {it.path}",
            own.refusal,
        )
    elif own is not None:
        wanted = [
            ("create", own.create),
            *([("delete", own.delete), ("read", own.read)] if it.exists else []),
        ]
        lacking = [name for name, granted in wanted if granted is False]
        if lacking:
            yield warning(
                "acl",
                f"with this command's connection, there is no {' and '.join(lacking)} permission "
                f"on {own.path}: a lock there needs create, delete and read",
                "give it the credentials of the programs (see 'TLS, SASL, ACLs' in the docs), or "
                "set the ACL",
            )
        elif rights is not None and not rights.delete:
            yield ok(
                "acl",
                f"only clients with credentials can take locks on {own.path}, and this command can",
            )
    if rights is not None and rights.delete:
        yield note(
            "acl",
            f"anyone who reaches ZooKeeper may delete contenders on {rights.path}, and so take "
            "locks",
            "set an ACL, unless everyone who reaches ZooKeeper is trusted",
        )
    elif rights is None and own is not None:
        yield unknown(
            "acl",
            f"this command may not read the ACL of {own.path}: the rights of others are not known",
            "use credentials that have read or admin permission",
        )


def _contenders(picture: Picture) -> Iterator[Finding]:
    waiting = sum(len(lock.waiting) for lock in picture.locks)
    yield ok(
        "locks",
        f"{many(len(picture.locks), 'lock')} in use, {many(waiting, 'waiting contender')}",
    )
    for lock in picture.locks:
        for what, todo in lock.orphans():
            yield problem("orphan", what, todo)
        if _mixed(lock):
            yield warning(
                "kazoo",
                f"{lock.path} has contenders of kazoo and of others: kazoo's do not wait for the "
                'others unless they are made with extra_lock_patterns=["-lock-"]',
                "use zklock there, or pass that argument to each of kazoo's locks",
            )


def _mixed(lock: LockView) -> bool:
    kazoo = ["__lock__" in place.name.text or "__rlock__" in place.name.text
             for place in lock.places]  # fmt: skip
    return any(kazoo) and not all(kazoo)


def _numbers(facts: Facts) -> Iterator[Finding]:
    for path, folder in sorted(facts.folders.items()):
        if path == "/":  # no lock; the count of its changes begins at -1
            continue
        queue = names.Queue(folder.names).contenders
        number = max((name.sequence & 0xFFFFFFFF for name in queue), default=0)
        if not queue:  # how many children were ever made; ZooKeeper lets the changes wrap
            number = ((folder.changes & 0xFFFFFFFF) + len(folder.names)) // 2
        if number >= names.EXHAUSTED_AT:
            yield problem(
                "numbers",
                f"{path}: its sequence numbers are used up: no new contender is granted",
                "let its queue drain; zklock then renews it. End the contenders of other libraries",
            )
        elif number >= names.RENEW_AT:
            yield warning(
                "numbers",
                f"{path}: more than half of its sequence numbers are used up",
                "leave it without holders and waiters for a moment: zklock's release then renews "
                "it",
            )


def _pools(picture: Picture) -> Iterator[Finding]:
    for pool in picture.pools:
        if pool.orphans:
            yield warning("pool",
                f"{pool.path}: {pool.orphans} of {pool.shards} shards have no owner, with "
                f"{len(pool.workers)} workers",
                "start workers" if not pool.workers else "look again; if it lasts, see the "
                f"workers' logs, and 'zklock show {pool.path}'",
            )  # fmt: skip


def _deadlocks(it: Examined) -> Iterator[Finding]:
    for deadlock, remedy in zip(it.graph.deadlocks, it.remedies, strict=True):
        locks = ", ".join(dict.fromkeys(link.lock.path for link in deadlock.chain))
        yield Finding(
            Level.PROBLEM if deadlock.certain else Level.WARNING,
            "deadlock",
            f"{'a certain' if deadlock.certain else 'a possible'} deadlock over {locks}",
            f"see 'zklock graph'; this would break it: {remedy}",
        )
