"""How a member of an election stands for it, and how a leader hands over. Recipes.

The first in the queue leads, so that Curator's ``LeaderLatch`` members may stand in the same
election. Therefore a successor cannot simply be appointed: a hand-over deletes the nodes of the
members before it. A waiting member that loses its node queues again at the end, in zklock and in
Curator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zklock._ground.interrupts import raised_by_zklock
from zklock._recipes import names, nodedata, notes, queries, steps
from zklock._recipes.effects import (
    Check,
    Delete,
    Failure,
    List,
    Listing,
    Node,
    Read,
    Recipe,
    Transaction,
    Write,
)
from zklock._recipes.lock import Entry
from zklock._recipes.queries import Contender
from zklock.errors import NoSuchMember, ZkLockError


@dataclass(slots=True)
class Candidacy(Entry):
    """One member. ``successor``: the identity of the member to hand over to when this one leaves.

    Afterwards ``handed_to`` is that member, or ``refused`` is the error that says why there was
    none. If there was none, the next in the queue leads. ``noted``: the election's own node may
    have a note of it, or of one that is gone.
    """

    successor: str | None = None
    handed_to: Contender | None = None
    refused: ZkLockError | None = None
    noted: bool = False

    def says(self, payload: bytes) -> None:
        """Change what it says of itself, in later nodes; ``announce`` tells it of this one."""
        self.data = bytes(replace(nodedata.parse(self.data), payload=payload))

    def announce(self) -> Recipe[None]:
        """Write its payload into the election's own node, if its node is there."""
        while self.node is not None:
            name = self.node.rpartition("/")[2]
            batch = Read(self.path), List(self.path)
            found, listing = yield from steps.ask(batch, Failure.MISSING)
            if not (isinstance(found, Node) and isinstance(listing, Listing)):
                return
            # The newest payload: others may announce an older or a newer one at the same time.
            payload = nodedata.parse(self.data).payload
            before = notes.parse(found.data)
            after = before.saying(name, payload, listing.names)
            if name not in listing.names or after == before:
                return
            data = bytes(after)
            if len(data) > notes.MAX_NOTES:
                raise ZkLockError(
                    f"{self.path}: the changed payloads of all members have {len(data)} bytes "
                    f"together, above {notes.MAX_NOTES}: shorten the payloads, or store references",
                    path=self.path,
                )
            self.noted = True
            (written,) = yield (Write(self.path, data, found.version),)
            steps.check(written, Failure.DROPPED, Failure.MISSING, Failure.CHANGED)
            if written is None:
                return

    def after_leaving(self) -> Recipe[None]:
        """Take the notes of those who are gone out of the election's own node, its own among them.

        An error ends this, as its node is gone already: the next member that writes or leaves does
        the same. A member that came meanwhile has no note yet, or the version has changed.
        """
        while self.noted:
            found, listing = yield (Read(self.path), List(self.path))
            if not (isinstance(found, Node) and isinstance(listing, Listing)):
                return
            before = notes.parse(found.data)
            after = before.of_those(listing.names)
            if after == before:
                return
            (written,) = yield (Write(self.path, bytes(after), found.version),)
            if not steps.is_(written, Failure.CHANGED):
                return

    def asked_by(self, data: bytes) -> str | None:
        """Return the request to release that the election's own node has for it, if there is one.

        It leads. So whoever else was asked is gone, and it takes that note along when it leaves.
        """
        asked = notes.parse(data).asked
        self.noted = self.noted or bool(asked)
        name = (self.node or "").rpartition("/")[2]
        return name if name in asked else None

    def before_leaving(self) -> Recipe[bool | None]:
        """Hand over to the successor, if one is named."""
        if self.successor is not None and self.granted and self.node is not None:
            try:
                self.handed_to = yield from _hand_over(self.path, self.node, self.successor)
                if self.handed_to is not None:
                    self.node, self.uuid = None, ""  # deleted in the same transaction
            except raised_by_zklock(ZkLockError) as error:
                self.refused = error
        return None


def successor(
    path: str, members: Sequence[Contender], own: str, identity: str
) -> tuple[Sequence[Contender], Contender]:
    """Return the members between the leader and its successor, and the successor. Pure.

    ``own`` is the leader's node. Raises ``NoSuchMember``.
    """
    behind = members[[one.path for one in members].index(own) + 1 :]
    for at, one in enumerate(behind):
        if not _is_member(one):
            break
        if one.identity == identity:
            return behind[:at], one
    else:
        raise NoSuchMember(
            f"{path}: no waiting member has the identity {identity!r}: check members(), and "
            "choose again",
            path=path,
        )
    raise NoSuchMember(
        f"{path}: {one.path} is not a member that zklock can ask to step back, and no member with "
        f"the identity {identity!r} waits before it",
        path=path,
    )


def _hand_over(path: str, own: str, identity: str) -> Recipe[Contender | None]:
    """Delete the leader's node and those before the successor, in one transaction → the successor.

    ``None`` if the leader's node is gone already.
    """
    sent: Contender | None = None
    while True:
        members = yield from queries.contenders(path)
        if all(one.path != own for one in members):
            return sent  # done, although the answer was lost
        between, chosen = successor(path, members, own, identity)
        # The leader's own node last: a member hears of its own node before the leader's.
        leaving = (*(one.path for one in between), own)
        (done,) = yield (Transaction((Check(chosen.path), *map(Delete, leaving))),)
        if done is None:
            return chosen
        steps.check(done, Failure.DROPPED, Failure.MISSING)
        if done.why is Failure.DROPPED:
            sent = chosen


def _is_member(one: Contender) -> bool:
    return names.kind_of(one.path) is names.Kind.LATCH
