"""The lock recipe: who gets the lock, when, and how a contender leaves.

This is the algorithm of "Recipes and Solutions, Locks" in ZooKeeper's documentation. It also
handles what that text leaves open: lost replies, lost sessions, worn-out sequence numbers. It knows
nothing of threads, clocks, or the client. ``effects`` lists the requests that it may yield.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from os import urandom
from typing import Any

from zklock._ground.interrupts import raised_by_zklock
from zklock._recipes import names, nodedata
from zklock._recipes.effects import (
    Cancelled,
    Claim,
    Create,
    Delete,
    Failure,
    List,
    Listing,
    Make,
    Node,
    Recipe,
    SessionReplaced,
    Transaction,
    Wakeup,
)
from zklock._recipes.steps import (
    ABSENT,
    check,
    delete,
    exhausted,
    find,
    given,
    look,
    makes,
    persist,
    refuse_strangers,
    refuse_unmade,
    refuse_unseen,
    renew,
    watch,
)
from zklock._recipes.turn import Decision, decide
from zklock.errors import AccessDenied, ZkLockError
from zklock.token import FencingToken

AGAIN = object()
"""The result of a turn after which the contender must look at the queue again."""


def random_uuid() -> str:
    """Return what ``str(uuid4())`` returns: each acquire asks for one, and ``UUID`` takes long."""
    digits = urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) % 4]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def _maybe(_node: str) -> bool:
    return True


@dataclass(slots=True)
class Entry:
    """One contender: where it queues, and its node when that is known.

    ``naming``: whose names it writes. Among kazoo's names it refuses to queue with names that kazoo
    does not see.
    ``alone``: whether its node is all that it has and changes in ZooKeeper.
    ``ahead``: how many stood before it when it last looked, ``None`` if it has not looked yet.
    ``seen``: the data of its nearest blocker, empty if that is not known. ``queued`` is called once
    for each node, when it has looked first: with the node, and how many stand before it. It must
    not block. ``is_ours`` says whether a node may be one of this session: such a blocker's grant
    tells more when it goes.
    """

    path: str
    data: bytes
    kind: names.Kind
    patient: bool = True
    tidy: bool = False
    alone: bool = False
    naming: names.Naming = names.Naming.CURATOR
    new_uuid: Callable[[], str] = random_uuid
    asked: int = field(default_factory=count(1).__next__)
    uuid: str = ""
    node: str | None = None
    granted: bool = False
    ahead: int | None = None
    seen: bytes = b""
    queued: Callable[[str, int], object] | None = None
    is_ours: Callable[[str], bool] = _maybe

    def turn(self, token: FencingToken) -> Recipe[Any]:
        """Act when no blocker is left → the grant, ``AGAIN``, or ``None``: not free."""
        return claim(self, token, alone=self.alone)

    def wait_behind(self, blocker: str, reads: bool, sole: bool) -> Recipe[Wakeup | None]:
        """Sleep until the nearest blocker no longer blocks → what happened; see ``steps.watch``.

        ``UNWATCHED``: the lock is not free, and this contender does not wait. ``sole``: whether no
        other contender blocks it.
        """
        if not (self.patient or reads):
            return given(Wakeup.UNWATCHED)
        looks = not (sole or self.is_ours(blocker))
        return watch(blocker, self.node, reads, self.patient, self.saw, looks=looks)

    def saw(self, blocker: Node) -> None:
        """Note what the blocker says that it waits for."""
        self.seen = blocker.data

    @property
    def behind(self) -> str:
        """The identity of the nearest blocker, empty if that is not known."""
        return nodedata.parse(self.seen).identity.decode(errors="replace")

    def leave(self) -> Recipe[bool | None]:
        """Delete its node: see ``leave``."""
        return leave(self)

    def departure(self, node: str) -> Delete | Transaction:
        """Return the request that removes its node."""
        return Delete(node)

    def announce(self) -> Recipe[None]:
        """Tell its data, which has changed since its node was created."""
        yield from ()

    def before_making(self) -> Recipe[None]:
        """Raise an error if its path, which is missing, is not to be made."""
        yield from ()

    def before_leaving(self) -> Recipe[bool | None]:
        """Remove its other nodes and marks; may be run more than once. ``False``: one was gone."""
        yield from ()
        return None

    def after_leaving(self) -> Recipe[None]:
        """Tidy up what others may tidy up, too, now that its node is gone; raises no error."""
        yield from ()


def acquire(entry: Entry) -> Recipe[Any]:
    """Queue until the lock is claimed → the grant; ``None`` if not patient and not free."""
    begun = bool(entry.uuid) or entry.ahead is not None
    while True:
        try:
            listing = (yield from _resume(entry)) if begun else None
            begun = False
            if listing is None:
                # 1. Each try makes a new contender: a name is never used twice.
                entry.uuid, entry.node = entry.new_uuid(), None
                listing = yield from enter(entry)
            outcome = yield from _take_turn(entry, listing)
        except SessionReplaced as replaced:
            if replaced.final is not None:
                raise replaced.final from None
            begun = False
            continue  # the node is gone with its session: queue again, at the end
        except raised_by_zklock(ZkLockError, Cancelled):
            yield from leave(entry)
            raise
        if outcome is None:
            yield from leave(entry)
        if outcome is not AGAIN:
            return outcome


def _resume(entry: Entry) -> Recipe[Listing | None]:
    """Look for the contender of a recipe that an interrupt has torn apart → the queue.

    ``None``: it is not there. What it has gathered is given back, also if it has left the queue.
    """
    yield from entry.before_leaving()
    if not entry.uuid:
        return None
    entry.node = yield from find(entry.path, entry.uuid)
    return None if entry.node is None else (yield from look(entry.path))


def enter(entry: Entry) -> Recipe[Listing]:
    """Create the contender and look at the queue, in one batch."""
    make: tuple[Make, ...] = ()
    while True:
        prefix = f"{entry.path}/{names.prefix(entry.kind, entry.uuid, entry.naming)}"
        try:
            data = entry.data
            batch = (Create(prefix, data, entry.asked), List(entry.path))
            *made, created, listing = yield (*make, *batch)
        except Cancelled:
            entry.uuid = ""  # nothing was sent
            raise
        make = ()
        if isinstance(created, Node):
            entry.node = created.path
        elif created.why is Failure.MISSING:
            refuse_unmade(made)
            yield from entry.before_making()
            make = makes(entry.path)
            continue
        elif created.why is Failure.DROPPED:
            entry.node = yield from find(entry.path, entry.uuid)
            if entry.node is None:
                entry.uuid = entry.new_uuid()
                continue
        else:
            if created.why is Failure.DENIED:
                entry.uuid = ""  # nothing was made: it need not be looked for
            check(created)
        if entry.data is not data:  # a later change finds the node
            yield from entry.announce()
        return listing if isinstance(listing, Listing) else (yield from look(entry.path))


def _take_turn(entry: Entry, listing: Listing) -> Recipe[Any]:
    """Wait for the nearest blocker, one after another, until none is left; then take the turn."""
    assert entry.node is not None
    me = names.parse(entry.node.rpartition("/")[2])
    assert me is not None
    if exhausted(me, listing):
        yield from leave(entry)
        yield from renew(entry.path, listing.epoch)
        return AGAIN
    if len(listing.names) > len(listing.queue.contenders):
        yield from refuse_strangers(entry.path, me, listing)
    reads, passed = me.kind is names.Kind.READ, tuple[str, ...]()
    queued = entry.queued
    while standing := listing.queue.standing(me, passed):
        if entry.naming is names.Naming.KAZOO:
            refuse_unseen(entry.path, listing.queue)
        # 2. Nobody before me: it is my turn. 3. Otherwise watch only the nearest blocker and my own
        #    node. 4. After a wake-up, decide: take the turn, look again, or leave.
        blocker, event, epoch = standing.nearest, None, listing.epoch
        entry.ahead, entry.seen = standing.ahead, b""
        if queued is not None:
            queued(entry.node, standing.ahead)
            queued = None
        if blocker is not None:
            if not reads:  # only a reader passes a blocker, and needs to know what is before that
                listing = ABSENT  # many may wait, and a long queue takes much memory
            node = f"{entry.path}/{blocker.text}"
            event = yield from entry.wait_behind(node, reads, standing.sole)
        match decide(standing, event):
            case Decision.QUEUE_AGAIN:
                break
            case Decision.LEAVE:
                return None
            case Decision.PASS if blocker is not None:
                passed = (*passed, blocker.text)
                continue
            case Decision.TAKE_TURN:
                outcome = yield from entry.turn(FencingToken(epoch, me.sequence))
                if outcome is not AGAIN:
                    return outcome
        listing = yield from look(entry.path)
    return AGAIN  # somebody deleted my node


def claim(
    entry: Entry, token: FencingToken, *, node: str | None = None, **more: Any
) -> Recipe[Any]:
    """Claim the grant, on its own node or another → the grant, or ``AGAIN``: no live lease."""
    grant = yield Claim(node or entry.node or "", token, entry.leave, **more)
    entry.granted = grant is not None
    return grant or AGAIN


def leave(entry: Entry) -> Recipe[bool | None]:
    """Delete the contender's node, if there is or may be one; see ``steps.persist``."""
    return persist(partial(_leave, entry))


def _leave(entry: Entry) -> Recipe[bool | None]:
    denied: AccessDenied | None = None
    there: bool | None = None
    try:
        there = yield from entry.before_leaving()
    except raised_by_zklock(AccessDenied) as error:
        denied = error  # its node goes all the same: others wait behind it
    node = entry.node or (entry.uuid and (yield from find(entry.path, entry.uuid)))
    if node:
        tidy = entry.tidy and entry.granted
        there = yield from delete(entry.path, node, entry.departure(node), tidy=tidy)
    yield from entry.after_leaving()
    if denied is not None:
        raise denied
    return there
