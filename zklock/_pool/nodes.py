"""A pool's nodes: where they are, what they say, and how a worker comes and goes. Recipes.

============================  ====================================================================
``leader/``                   the election
``members/_c_…``              a worker: its ``WorkerRecord``; ephemeral
``assigned/_c_…``             the shards that this worker should have; ephemeral, written by the
                              leader
``owned/_c_…``                the shards that this worker has, with their tokens; ephemeral
``shards``                    which shards there are: their number, or their names
``shards/<number>/``          the lock of a shard that has a number
``shards/_<name>/``           the lock of a shard that has a name
============================  ====================================================================
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeAlias
from uuid import uuid4

from zklock._ground.interrupts import raised_by_zklock
from zklock._pool.keys import (
    MAX_NAMED,
    MAX_NAMES_SIZE,
    MAX_SHARDS,
    Key,
    Keys,
    alike,
    decode,
    encode,
    node_of,
    parse_shards,
    shards_data,
    told,
)
from zklock._recipes import steps
from zklock._recipes.effects import (
    Cancelled,
    Check,
    Create,
    Delete,
    Failed,
    Failure,
    List,
    Listing,
    Node,
    Read,
    Recipe,
    SessionReplaced,
    Sync,
    Transaction,
    Wait,
    Watch,
    WatchList,
    Write,
)
from zklock.errors import ZkLockError
from zklock.token import FencingToken

_OWNED = struct.Struct(">HQI")  # number, epoch and sequence of the token
_NAMED = b"N"
"""Begins what a worker says of shards with names. It does not begin what ``zlib`` writes."""
_MAX_OWNED = max(MAX_SHARDS * _OWNED.size, MAX_NAMED * 48 + MAX_NAMES_SIZE)
_READS = 256  # in one batch
_BATCH = 400_000  # bytes written in one transaction; ZooKeeper takes a little less than 1 MiB


class PoolPaths:
    """The paths of a pool's nodes. See the table above."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.leader = f"{root}/leader"
        self.members = f"{root}/members"
        self.assigned = f"{root}/assigned"
        self.owned = f"{root}/owned"
        self.shards = f"{root}/shards"

    def shard(self, key: Key) -> str:
        """Return the path of a shard's lock."""
        return f"{self.shards}/{node_of(key)}"


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """What a worker says of itself; ``assigned`` and ``owned`` are the names of its nodes.

    ``kin``: what it has in common with the workers that it follows. ``leaving``: it is about to
    delete its nodes itself. ``payload``: bytes for others to read, as base64.
    """

    identity: str
    capacity: float
    draining: bool = False
    assigned: str = ""
    owned: str = ""
    kin: str = ""
    leaving: bool = False
    payload: str = ""

    def __bytes__(self) -> bytes:
        """Return the node's data."""
        return json.dumps(asdict(self)).encode()

    @property
    def weight(self) -> float:
        """The worker's weight when the leader assigns the shards; 0 if it drains or leaves."""
        return 0.0 if self.draining or self.leaving else self.capacity

    @property
    def payload_bytes(self) -> bytes:
        """The payload; empty if it cannot be read."""
        try:
            return base64.b64decode(self.payload, validate=True)
        except ValueError:
            return b""

    @classmethod
    def parse(cls, data: bytes) -> WorkerRecord | None:
        """Return the record in a node's data, ``None`` if it is not a worker's.

        Unknown parts come from a later release, and are ignored.
        """
        try:
            said = json.loads(data)
            found = cls(**{each.name: said[each.name] for each in fields(cls) if each.name in said})
            fits = math.isfinite(found.capacity) and found.capacity > 0
        except (ValueError, TypeError, ArithmeticError, RecursionError):
            return None
        texts = (found.identity, found.kin, found.assigned, found.owned, found.payload)
        fits = fits and all(isinstance(each, str) for each in texts)
        return found if fits and _is_name(found.assigned) and _is_name(found.owned) else None


@dataclass(slots=True)
class Registration:
    """A worker's record, and its nodes while it has a session."""

    places: PoolPaths
    profile: WorkerRecord
    assigned: str | None = None
    owned: str | None = None
    member: str | None = None
    creating: tuple[str, str] | None = None  # parent and uuid of a node that may exist

    def forget(self) -> None:
        """Note that the nodes are gone with their session."""
        self.assigned = self.owned = self.member = self.creating = None


Tell: TypeAlias = Callable[[bytes, int, bool], object]
"""Hears what the leader has written, its version, and whether the worker's own record is current.

It hears of nothing written when the session is replaced: what was written for the former one counts
no more. It must not block.
"""


def assigned_data(token: FencingToken, keys: Iterable[Key]) -> bytes:
    """Return the data that the leader with this token writes for a worker."""
    return f"{token} {encode(keys)}".encode()


def parse_assigned(data: bytes) -> frozenset[Key] | None:
    """Return the shards that a worker should have; ``None`` if the data cannot be read."""
    try:
        return decode(data.decode().partition(" ")[2])
    except ValueError:
        return None


def owned_data(tokens: Mapping[Key, FencingToken]) -> bytes:
    """Return the data that a worker writes about the shards that it has.

    Numbers and names do not go together: if there are names, the numbers are passed over.
    """
    names = {key: (it.epoch, it.sequence) for key, it in tokens.items() if isinstance(key, str)}
    if names:
        text = json.dumps(names, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        return _NAMED + zlib.compress(text.encode())
    numbers = {key: it for key, it in tokens.items() if isinstance(key, int)}
    each = (_OWNED.pack(at, it.epoch, it.sequence) for at, it in sorted(numbers.items()))
    return zlib.compress(b"".join(each))


def parse_owned(data: bytes) -> dict[Key, FencingToken]:
    """Return the shards that a worker has; none if the data cannot be read."""
    try:
        if data.startswith(_NAMED):
            named = json.loads(_unpacked(data[len(_NAMED) :]))
            return {str(name): FencingToken(*it) for name, it in named.items()}
        entries = _OWNED.iter_unpack(_unpacked(data) if data else b"")
        return {number: FencingToken(epoch, sequence) for number, epoch, sequence in entries}
    except (zlib.error, struct.error, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _unpacked(data: bytes) -> bytes:
    return zlib.decompressobj().decompress(data, _MAX_OWNED)


def _is_name(text: str) -> bool:
    return bool(text) and "/" not in text and "\0" not in text and text not in {".", ".."}


def prepare(places: PoolPaths, shards: Keys, *, change: bool = False) -> Recipe[bytes]:
    """Create the persistent nodes where they are missing → the data that says which shards.

    If there is none yet, that of ``shards`` is written. The result may not be readable. With
    ``change``, it is written in any case; ``ZkLockError`` from numbers to names, or back.
    """
    while True:
        for path in (places.members, places.assigned, places.owned, places.shards):
            yield from steps.make_path(path)
        (found,) = yield from steps.ask((Read(places.shards),), Failure.MISSING)
        if isinstance(found, Node):
            if found.data and not change:
                return found.data
            before = parse_shards(found.data)
            if before is not None:
                check_kind(places.root, before, shards)
            data = shards_data(shards)
            (written,) = yield (Write(places.shards, data, found.version),)
            steps.check(written, Failure.DROPPED, Failure.CHANGED, Failure.MISSING)
            if written is None:
                return data


def check_kind(path: str, there: Keys, shards: Keys) -> None:
    """Raise ``ZkLockError`` if a pool's shards are not known in the same way as these."""
    if not alike(there, shards):
        raise ZkLockError(
            f"{path} has {told(there)}, but this worker's shards= says {told(shards)}: pass a "
            "number to a pool of numbers and names to a pool of names, or use another path",
            path=path,
        )


def enter(worker: Registration) -> Recipe[None]:
    """Make the nodes of a worker. None is left if that fails, or is given up."""
    worker.forget()
    try:
        yield from _set_up(worker)
    except SessionReplaced:
        raise
    except raised_by_zklock(Exception):
        yield from leave(worker)
        raise


def leave(worker: Registration) -> Recipe[None]:
    """Delete the nodes that a worker has made, as far as that is permitted."""
    try:
        yield from _clear(worker, [])
    except raised_by_zklock(SessionReplaced, ZkLockError):
        pass


def keep_registered(worker: Registration, tell: Tell, left: Callable[[], object]) -> Recipe[None]:
    """Be a worker of the pool until given up, in one session after the other.

    ``left()`` is called once no node is left in ZooKeeper. It must not block.
    """
    try:
        yield from _keep_registered(worker, tell)
    except raised_by_zklock(Exception):  # else an interrupt has torn it apart: it begins anew
        left()
        raise
    left()


def _keep_registered(worker: Registration, tell: Tell) -> Recipe[None]:
    given_up: list[Cancelled] = []
    try:
        while not given_up:
            try:
                if worker.member is None:
                    yield from _set_up(worker)
                yield from _listen(worker, tell)
                yield from _clear(worker, given_up)  # somebody has deleted one of its nodes
            except SessionReplaced as replaced:
                worker.forget()
                tell(b"", 0, True)
                if replaced.final is not None:
                    raise replaced.final from None
        raise given_up[0]
    except raised_by_zklock(Exception):
        yield from leave(worker)
        raise


def _set_up(worker: Registration) -> Recipe[None]:
    worker.assigned = yield from _create(worker, worker.places.assigned, "assigned", lambda: b"")
    worker.owned = yield from _create(worker, worker.places.owned, "owned", lambda: b"")
    worker.member = yield from _create(
        worker, worker.places.members, "member", lambda: profile_data(worker)
    )


def profile_data(worker: Registration, *, leaving: bool = False) -> bytes:
    """Return the data for the worker's node."""
    names = [(path or "").rpartition("/")[2] for path in (worker.assigned, worker.owned)]
    return bytes(replace(worker.profile, assigned=names[0], owned=names[1], leaving=leaving))


def _create(
    worker: Registration, parent: str, marker: str, data: Callable[[], bytes]
) -> Recipe[str]:
    while True:
        uuid = str(uuid4())
        worker.creating = parent, uuid
        (made,) = yield (Create(f"{parent}/_c_{uuid}-{marker}-", data()),)
        found = made.path if isinstance(made, Node) else None
        if steps.is_(made, Failure.MISSING):
            yield from steps.make_path(parent)
        elif steps.is_(made, Failure.DROPPED):
            found = yield from steps.find(parent, uuid)
        else:
            steps.check(made)
        if found is not None:
            worker.creating = None
            return found


def _listen(worker: Registration, tell: Tell) -> Recipe[None]:
    """Tell what is written, until a node of the worker is gone."""
    assert worker.assigned is not None
    assert worker.member is not None
    assert worker.owned is not None
    while True:
        # Children, as the worker itself writes the data.
        watches = Watch(worker.assigned), Watch(worker.member), WatchList(worker.owned)
        found = yield from steps.ask(watches, Failure.MISSING)
        if any(isinstance(result, Failed) for result in found):
            return
        assigned, member, _ = found
        if not (assigned.mine and member.mine):
            return
        tell(assigned.data, assigned.version, member.data == profile_data(worker))
        yield Wait(worker.assigned, worker.owned, worker.member)


def _clear(worker: Registration, given_up: list[Cancelled]) -> Recipe[None]:
    """Delete the nodes of the worker. Giving up does not stop this: it is noted, as told once.

    An error at one of them does not keep the others, and is raised at the end.
    """
    failed: list[ZkLockError] = []

    def through(make: Callable[[], Recipe[Any]]) -> Recipe[Any]:
        while True:
            try:
                return (yield from make())
            except Cancelled as error:
                given_up.append(error)
            except raised_by_zklock(ZkLockError) as error:
                failed.append(error)
                return None
            except SessionReplaced:
                return None  # the node that was looked for is gone

    if worker.creating is not None:
        parent, uuid = worker.creating
        node = yield from through(lambda: steps.find(parent, uuid))
        if node is not None:
            yield from through(lambda: steps.delete(parent, node))
    member = worker.member
    if member is not None:
        yield from through(lambda: _sign_off(member, profile_data(worker, leaving=True)))
    for path in (worker.assigned, worker.owned):
        if path is not None:
            yield from through(lambda path=path: steps.delete(path.rpartition("/")[0], path))  # type: ignore[misc]
    worker.forget()
    if failed:
        raise failed[0]


def _sign_off(member: str, data: bytes) -> Recipe[None]:
    """Write the worker's node, then delete it: a watcher is told of the write first."""
    with contextlib.suppress(SessionReplaced):
        _, deleted = yield (Write(member, data), Delete(member))
        if deleted is not None:
            yield from steps.delete(member.rpartition("/")[0], member)


def read(paths: Sequence[str], hidden: list[str] | None = None) -> Recipe[list[Node | None]]:
    """Return the nodes, ``None`` for those that are missing.

    With a list for what is ``hidden`` by ACLs, those nodes are missing, too, and their paths are
    put there.
    """
    passing = () if hidden is None else (Failure.DENIED,)
    there: list[Node | None] = []
    while len(there) < len(paths):
        batch = paths[len(there) : len(there) + _READS]
        nodes = yield from steps.ask(tuple(map(Read, batch)), Failure.MISSING, *passing)
        there += [node if isinstance(node, Node) else None for node in nodes]
        if hidden is not None:
            each = zip(batch, nodes, strict=True)
            hidden += [path for path, node in each if steps.is_(node, Failure.DENIED)]
    return there


def hand_out(
    leader_node: str, writes: Sequence[tuple[str, bytes, int]], forbidden: list[str]
) -> Recipe[Failure | None]:
    """Write the workers' assignments, if the leader's node exists → the failure, if any.

    Each node must still have the version that was read. ZooKeeper limits the size of a request, so
    there may be several transactions: as few as possible. The path of a node that ACLs forbid to
    write is put into ``forbidden``.
    """
    left = [Write(*each) for each in writes]
    while left:
        batch = [left.pop(0)]
        size = len(batch[0].data)
        while left and (size := size + len(left[0].data) + len(left[0].path) + 64) <= _BATCH:
            batch.append(left.pop(0))
        (written,) = yield (Transaction((Check(leader_node), *batch)),)
        if steps.is_(written, Failure.DENIED) and written.node:
            forbidden.append(written.node)
            return Failure.DENIED
        steps.check(written, Failure.DROPPED, Failure.MISSING, Failure.CHANGED)
        if isinstance(written, Failed):
            return written.why
    return None


@dataclass(frozen=True, slots=True)
class Found:
    """One worker as ZooKeeper knows it."""

    profile: WorkerRecord
    assigned: frozenset[Key]
    owned: Mapping[Key, FencingToken]

    @classmethod
    def of(cls, profile: WorkerRecord, assigned: bytes, owned: bytes) -> Found:
        """Return what these data of a worker's nodes say."""
        return cls(profile, parse_assigned(assigned) or frozenset(), parse_owned(owned))


def survey(places: PoolPaths) -> Recipe[tuple[Keys, list[Found]]]:
    """Return the shards, and the workers.

    Workers whose nodes ACLs hide are not there; that ends in ``AccessDenied`` if they hide all.
    What they hide of another worker is as if it had never been written.
    """
    while True:
        batch = Sync(places.root), List(places.members), Read(places.shards)
        _, listing, shards = yield from steps.ask(batch, Failure.MISSING)
        names = listing.names if isinstance(listing, Listing) else []
        hidden: list[str] = []
        nodes = yield from read([f"{places.members}/{name}" for name in names], hidden)
        if hidden and not any(nodes):
            yield from read(hidden)
            continue  # they are there to read now, or gone
        told = (WorkerRecord.parse(node.data) for node in nodes if node is not None)
        profiles = [profile for profile in told if profile is not None]
        data = yield from read(
            [f"{places.assigned}/{profile.assigned}" for profile in profiles]
            + [f"{places.owned}/{profile.owned}" for profile in profiles],
            hidden,
        )
        assigned, owned = data[: len(profiles)], data[len(profiles) :]
        found = [
            Found.of(profile, wanted.data if wanted else b"", has.data if has else b"")
            for profile, wanted, has in zip(profiles, assigned, owned, strict=True)
        ]
        found.sort(key=lambda each: (each.profile.identity, each.profile.assigned))
        keys = parse_shards(shards.data) if isinstance(shards, Node) else None
        return range(0) if keys is None else keys, found
