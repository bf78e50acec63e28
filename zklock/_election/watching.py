"""What may be asked of an election, and observed, without standing in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from zklock._election import observe
from zklock._election.changes import Feed, Observed, Watched
from zklock._election.membership import MembershipChange, Present, watched
from zklock._recipes import names, notes, queries, revoke
from zklock._recipes.effects import Recipe
from zklock._recipes.queries import Contender
from zklock._telemetry import subscriptions
from zklock._telemetry.events import LeaderChanged


class ElectionView(Observed):
    """The part of an election that looks, and asks the leader."""

    def _leaders(self, wake: Callable[[], object]) -> Watched[observe.LeaderChange]:
        session, path, feed = self._session, self._path, Feed()

        def tell(change: observe.LeaderChange) -> None:
            feed.put(change)
            if subscriptions.hooks and not change.same_leader:
                leader = change.leader.identity if change.leader is not None else None
                event = LeaderChanged(
                    at=session.now(), path=path, leader=leader, token=change.token, gap=change.gap
                )
                subscriptions.emit(event)
            wake()

        attempt = session.attempt(partial(observe.observe, path, tell))
        return Watched(path, attempt, feed.take)

    def _membership(self, wake: Callable[[], object]) -> Watched[MembershipChange[Contender]]:
        """Begin to observe who stands in the queue."""
        return watched(self._session, self._path, _queued, partial(_described, self._path), wake)

    async def _request_release(self, timeout: float | None) -> Contender | None:
        first = partial(queries.contenders, self._path, limit=1)
        asked = await self._ask("request_release()", lambda: revoke.request_release(first), timeout)
        return asked[0] if asked else None

    def _members(self) -> Recipe[list[Contender]]:
        return queries.contenders(self._path)

    def _leader(self) -> Recipe[Contender | None]:
        return queries.holder(self._path)


def _queued(found: Iterable[str]) -> list[str]:
    return [name.text for name in names.Queue(found).contenders]


def _described(path: str, present: Present) -> dict[str, Contender]:
    queue = names.Queue(present.nodes).contenders
    there = [(name, present.nodes[name.text]) for name in queue]
    found = queries.describe(path, present.folder.epoch, there, notes.parse(present.folder.data))
    return {name.text: one for name, one in zip(queue, found, strict=True)}
