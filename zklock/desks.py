"""A pool's nodes: where they are, what they say, and how a worker comes and goes. Recipes.

============================  ====================================================================
``leader/``                   the election
``members/_c_…``              a worker: its ``Profile``; ephemeral
``assigned/_c_…``             the shards that this worker is to have; ephemeral, written by the
                              leader
``owned/_c_…``                the shards that this worker has, with their tokens; ephemeral
``shards``                    how many shards there are
``shards/<number>/``          a shard's lock
============================  ====================================================================
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

from zklock import steps
from zklock.assignment import decode, encode
from zklock.effects import (
    Create,
    Event,
    Failed,
    Failure,
    GiveUp,
    List,
    Listing,
    MakePath,
    Node,
    Read,
    Recipe,
    SessionReplaced,
    Sync,
    Wait,
    Watch,
    WatchList,
    Write,
    WriteAll,
)
from zklock.token import FencingToken

MAX_SHARDS = 65536
"""Shards that a pool may have: one worker's list of them, with tokens, fits into one node."""

_OWNED = struct.Struct(">HQI")  # number, epoch and sequence of the token
_BATCH = 256  # nodes read in one flight
_FLIGHT = 400_000  # bytes written in one transaction; ZooKeeper takes a little less than 1 MiB


@dataclass(frozen=True, slots=True)
class Places:
    """Where the nodes of a pool are."""

    root: str

    @property
    def leader(self) -> str:
        """The election's path."""
        return f"{self.root}/leader"

    @property
    def members(self) -> str:
        """The parent of the workers."""
        return f"{self.root}/members"

    @property
    def assigned(self) -> str:
        """The parent of what they are to have."""
        return f"{self.root}/assigned"

    @property
    def owned(self) -> str:
        """The parent of what they have."""
        return f"{self.root}/owned"

    @property
    def shards(self) -> str:
        """The parent of the shards' locks, which says how many there are."""
        return f"{self.root}/shards"

    def shard(self, number: int) -> str:
        """Return the path of a shard's lock."""
        return f"{self.root}/shards/{number}"


@dataclass(frozen=True, slots=True)
class Profile:
    """What a worker says of itself; ``assigned`` and ``owned`` are the names of its nodes."""

    identity: str
    capacity: float
    draining: bool = False
    assigned: str = ""
    owned: str = ""

    def __bytes__(self) -> bytes:
        """Return the node's data."""
        return json.dumps(asdict(self)).encode()

    @property
    def weight(self) -> float:
        """What share of the shards it takes."""
        return 0.0 if self.draining else self.capacity

    @classmethod
    def parse(cls, data: bytes) -> Profile | None:
        """Return what a node says, ``None`` if it is no worker's."""
        try:
            found = cls(**json.loads(data))
            fits = math.isfinite(found.capacity) and found.capacity > 0
            texts = (found.identity, found.assigned, found.owned)
            return found if fits and all(isinstance(each, str) for each in texts) else None
        except (ValueError, TypeError):
            return None


@dataclass(slots=True)
class Desk:
    """A worker's place in a pool: its profile, and its nodes while it has a session."""

    places: Places
    profile: Profile
    assigned: str | None = None
    owned: str | None = None
    member: str | None = None
    creating: tuple[str, str] | None = None  # the parent and the uuid of a node that may be there

    def forget(self) -> None:
        """Note that the nodes are gone with their session."""
        self.assigned = self.owned = self.member = self.creating = None


def assigned_data(token: FencingToken, numbers: Iterable[int]) -> bytes:
    """Return what the leader with this token writes for a worker."""
    return f"{token} {encode(numbers)}".encode()


def parse_assigned(data: bytes) -> frozenset[int]:
    """Return the shards that a worker is to have."""
    return decode(data.decode().partition(" ")[2])


def owned_data(tokens: Mapping[int, FencingToken]) -> bytes:
    """Return what a worker writes of the shards that it has."""
    each = (_OWNED.pack(at, it.epoch, it.sequence) for at, it in sorted(tokens.items()))
    return zlib.compress(b"".join(each))


def parse_owned(data: bytes) -> dict[int, FencingToken]:
    """Return the shards that a worker has."""
    entries = _OWNED.iter_unpack(zlib.decompress(data) if data else b"")
    return {number: FencingToken(epoch, sequence) for number, epoch, sequence in entries}


def prepare(places: Places, shards: int) -> Recipe[int]:
    """Create what is persistent where it is missing → the number of shards that is kept."""
    for path in (places.members, places.assigned, places.owned, places.shards):
        while True:
            (made,) = yield (MakePath(path),)
            steps.check(made, Failure.DROPPED)
            if made is None:
                break
    while True:
        (found,) = yield (Read(places.shards),)
        steps.check(found, Failure.DROPPED)
        if isinstance(found, Node):
            if found.data:
                return parse_shards(found.data)
            (written,) = yield (Write(places.shards, str(shards).encode(), found.version),)
            steps.check(written, Failure.DROPPED, Failure.CHANGED)


def parse_shards(data: bytes) -> int:
    """Return the number of shards that the node says."""
    return int(data or b"0")


def set_shards(places: Places, shards: int) -> Recipe[None]:
    """Change the number of shards."""
    return write(places.shards, str(shards).encode())


def write(path: str, data: bytes) -> Recipe[None]:
    """Write a node, however often it takes; one that is gone is left alone."""
    while True:
        (written,) = yield (Write(path, data),)
        steps.check(written, Failure.DROPPED, Failure.MISSING)
        if not steps.is_(written, Failure.DROPPED):
            return


def attend(
    desk: Desk, tell: Callable[[bytes, int], object], left: Callable[[], object]
) -> Recipe[None]:
    """Be a worker of the pool until given up, in one session after the other.

    ``tell(data, version)`` is called with what the leader has written, and ``left()`` once nothing
    is left in ZooKeeper; neither may block.
    """
    try:
        while True:
            try:
                yield from _set_up(desk)
                yield from _listen(desk, tell)
                yield from _clear(desk)  # somebody has deleted a node of it
            except SessionReplaced as replaced:
                desk.forget()
                if replaced.final is not None:
                    raise replaced.final from None
    except Exception:
        with contextlib.suppress(SessionReplaced):
            yield from _clear(desk)
        raise
    finally:
        left()


def _set_up(desk: Desk) -> Recipe[None]:
    desk.assigned = yield from _create(desk, desk.places.assigned, "assigned", lambda: b"")
    desk.owned = yield from _create(desk, desk.places.owned, "owned", lambda: b"")
    desk.member = yield from _create(
        desk, desk.places.members, "member", lambda: profile_data(desk)
    )


def profile_data(desk: Desk) -> bytes:
    """Return what the worker's node is to say."""
    names = [(path or "").rpartition("/")[2] for path in (desk.assigned, desk.owned)]
    said = desk.profile
    return bytes(Profile(said.identity, said.capacity, said.draining, names[0], names[1]))


def _create(desk: Desk, parent: str, marker: str, data: Callable[[], bytes]) -> Recipe[str]:
    while True:
        uuid = str(uuid4())
        desk.creating = parent, uuid
        (made,) = yield (Create(f"{parent}/_c_{uuid}-{marker}-", data()),)
        found = made.path if isinstance(made, Node) else None
        if steps.is_(made, Failure.MISSING):
            (there,) = yield (MakePath(parent),)
            steps.check(there, Failure.DROPPED)
        elif steps.is_(made, Failure.DROPPED):
            found = yield from steps.find(parent, uuid)
        else:
            steps.check(made)
        if found is not None:
            desk.creating = None
            return found


def _listen(desk: Desk, tell: Callable[[bytes, int], object]) -> Recipe[None]:
    """Tell of what the leader writes, until a node of the worker is gone."""
    assert desk.assigned is not None
    assert desk.member is not None
    while True:
        found = yield (Watch(desk.assigned), Watch(desk.member))
        for result in found:
            steps.check(result, Failure.DROPPED, Failure.MISSING)
        if any(steps.is_(result, Failure.DROPPED) for result in found):
            continue
        if any(isinstance(result, Failed) or not result.mine for result in found):
            return
        assigned, member = found
        tell(assigned.data, assigned.version)
        if member.data != profile_data(desk):
            yield from write(desk.member, profile_data(desk))
        else:
            yield Wait(desk.assigned, None, desk.member)


def _clear(desk: Desk) -> Recipe[None]:
    """Delete the nodes of the worker; giving up does not stop that."""
    if desk.creating is not None:
        parent, uuid = desk.creating
        node = yield from _through(lambda: steps.find(parent, uuid))
        if node is not None:
            yield from _through(lambda: steps.delete(parent, node))
    for path in (desk.member, desk.assigned, desk.owned):
        if path is not None:
            yield from _through(lambda path=path: steps.delete(path.rpartition("/")[0], path))  # type: ignore[misc]
    desk.forget()


def _through(make: Callable[[], Recipe[Any]]) -> Recipe[Any]:
    while True:
        with contextlib.suppress(GiveUp):
            return (yield from make())


def follow(path: str, tell: Callable[[Node | None], object]) -> Recipe[None]:
    """Tell what a node says and whenever that changes; ``None`` once it is gone, and end.

    ``tell`` must not block.
    """
    while True:
        with _steadfast():
            (found,) = yield (Watch(path),)
            steps.check(found, Failure.DROPPED, Failure.MISSING)
            if steps.is_(found, Failure.DROPPED):
                continue
            if isinstance(found, Failed):
                break
            tell(found)
            if (yield Wait(path, None)) is not Event.UNWATCHED:
                break
    tell(None)


def follow_children(path: str, tell: Callable[[list[str]], object]) -> Recipe[None]:
    """Tell the names of a node's children, and whenever they change. ``tell`` must not block."""
    while True:
        with _steadfast():
            (found,) = yield (WatchList(path),)
            steps.check(found, Failure.DROPPED, Failure.MISSING)
            if steps.is_(found, Failure.MISSING):
                (made,) = yield (MakePath(path),)
                steps.check(made, Failure.DROPPED)
            elif isinstance(found, Listing):
                tell(found.names)
                yield Wait(path, None)


@contextlib.contextmanager
def _steadfast() -> Iterator[None]:
    """Go on in the next session, if one will come."""
    try:
        yield
    except SessionReplaced as replaced:
        if replaced.final is not None:
            raise replaced.final from None


def read(paths: Sequence[str]) -> Recipe[list[Node | None]]:
    """Return the nodes, ``None`` for those that are not there."""
    there: list[Node | None] = []
    while len(there) < len(paths):
        batch = paths[len(there) : len(there) + _BATCH]
        nodes = yield tuple(map(Read, batch))
        for node in nodes:
            steps.check(node, Failure.DROPPED, Failure.MISSING)
        if not any(steps.is_(node, Failure.DROPPED) for node in nodes):
            there += [node if isinstance(node, Node) else None for node in nodes]
    return there


def hand_out(guard: str, writes: Sequence[tuple[str, bytes, int]]) -> Recipe[Failure | None]:
    """Write what workers are to have, while the leader's node exists → what is in the way.

    Each is written in the version that it was read in. In as few transactions as ZooKeeper's limit
    on the size of a request allows.
    """
    left = list(writes)
    while left:
        batch = [left.pop(0)]
        size = len(batch[0][1])
        while left and (size := size + len(left[0][1]) + len(left[0][0]) + 64) <= _FLIGHT:
            batch.append(left.pop(0))
        (written,) = yield (WriteAll(guard, tuple(batch)),)
        steps.check(written, Failure.DROPPED, Failure.MISSING, Failure.CHANGED)
        if isinstance(written, Failed):
            return written.why
    return None


@dataclass(frozen=True, slots=True)
class Found:
    """One worker as ZooKeeper knows it."""

    profile: Profile
    assigned: frozenset[int]
    owned: Mapping[int, FencingToken]


def survey(places: Places) -> Recipe[tuple[int, list[Found]]]:
    """Return the number of shards, and the workers."""
    while True:
        synced, listing, shards = yield (
            Sync(places.root),
            List(places.members),
            Read(places.shards),
        )
        for result in (synced, listing, shards):
            steps.check(result, Failure.DROPPED, Failure.MISSING)
        if any(steps.is_(result, Failure.DROPPED) for result in (synced, listing, shards)):
            continue
        names = listing.names if isinstance(listing, Listing) else []
        nodes = yield from read([f"{places.members}/{name}" for name in names])
        told = (Profile.parse(node.data) for node in nodes if node is not None)
        profiles = [profile for profile in told if profile is not None]
        data = yield from read(
            [f"{places.assigned}/{profile.assigned}" for profile in profiles]
            + [f"{places.owned}/{profile.owned}" for profile in profiles]
        )
        assigned, owned = data[: len(profiles)], data[len(profiles) :]
        found = [
            Found(
                profile,
                parse_assigned(wanted.data) if wanted else frozenset(),
                parse_owned(has.data) if has else {},
            )
            for profile, wanted, has in zip(profiles, assigned, owned, strict=True)
        ]
        found.sort(key=lambda each: (each.profile.identity, each.profile.assigned))
        return parse_shards(shards.data) if isinstance(shards, Node) else 0, found
