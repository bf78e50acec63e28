"""How a member of an election stands for it, and how a leader hands over. Recipes.

Whoever is first in the queue leads, so that Curator's ``LeaderLatch`` members may stand in the
same election. A successor is therefore not named: those before it are put out of its way. A member
that loses its node while it waits, of zklock or of Curator, queues again at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zklock import names, queries, steps
from zklock.effects import Failure, HandOver, Recipe
from zklock.errors import NoSuchMember, ZkLockError
from zklock.queries import Contender
from zklock.recipe import Entry


@dataclass(slots=True)
class Candidacy(Entry):
    """One member. ``successor``: the identity of the one to hand over to, once it leaves.

    Afterwards ``handed_to`` is who that was, or ``refused`` is why there was nobody; the
    leadership then falls to the next in the queue.
    """

    successor: str | None = None
    handed_to: Contender | None = None
    refused: ZkLockError | None = None

    def before_leaving(self) -> Recipe[None]:
        """Hand over to the successor, if one is named."""
        if self.successor is not None and self.granted and self.node is not None:
            try:
                self.handed_to = yield from _hand_over(self.path, self.node, self.successor)
            except ZkLockError as error:
                self.refused = error


def successor(
    path: str, members: Sequence[Contender], own: str, identity: str
) -> tuple[Sequence[Contender], Contender]:
    """Return who stands between the leader and its successor, and the successor. Pure.

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
            f"{path}: nobody of the identity {identity!r} waits: look at members(), and choose "
            "again",
            path=path,
        )
    raise NoSuchMember(
        f"{path}: {one.path} is no member of an election that could be asked to step back, and "
        f"nobody of the identity {identity!r} waits before it",
        path=path,
    )


def _hand_over(path: str, own: str, identity: str) -> Recipe[Contender | None]:
    """Delete the leader's node, and those before the successor, at once → the successor.

    ``None`` if the leader's node is gone already.
    """
    sent: Contender | None = None
    while True:
        members = yield from queries.contenders(path)
        if all(one.path != own for one in members):
            return sent  # done, although the answer was lost
        between, chosen = successor(path, members, own, identity)
        (done,) = yield (HandOver(own, tuple(one.path for one in between), chosen.path),)
        if done is None:
            return chosen
        steps.check(done, Failure.DROPPED, Failure.MISSING)
        if done.why is Failure.DROPPED:
            sent = chosen


def _is_member(one: Contender) -> bool:
    name = names.parse(one.path.rpartition("/")[2])
    return name is not None and name.kind is names.Kind.LATCH
