"""The nodes of one session, and the grants on them."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Set
from typing import Any, NamedTuple

from zklock._engine.grant import GrantBase
from zklock._ground.multimap import Multimap
from zklock._recipes import nodedata
from zklock._recipes.effects import Node, Watch

_NEVER = -math.inf  # one object for all
_GRANTED = 4096  # granted nodes that are remembered for the waiters behind them
_UNDER_WAY = 65536  # limit of bytes of watches under way: heartbeats wait behind them
_WATCH_BYTES = 200  # bytes of a request and its answer, besides path and data


class OwnNode:
    """A node of this session: a waiting contender's, or a holder's with its grant.

    ``watched``: whether all that the grant watches is watched. ``placing``: the requests for that
    are under way. ``fired``: one of the watches has fired since they were sent. ``size``: what they
    read, in bytes, when it was read last, at ``read_at``.
    """

    __slots__ = ("fired", "grant", "owner", "placing", "read_at", "size", "watched")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.grant: GrantBase | None = None
        self.watched = False
        self.placing = False
        self.fired = False
        self.size = 0
        self.read_at = _NEVER


class Placing(NamedTuple):
    """Watches to send for a grant, and how many bytes they and their answers take."""

    path: str
    own: OwnNode
    watches: tuple[Watch, ...]
    size: int


class OwnNodes:
    """The nodes by path, and the grants by the path of their lock. The caller has the guard.

    A grant watches its own node; a leader's also watches the data of the election's path. The
    watches are placed behind a heartbeat, a limited number of bytes at a time. So the next
    heartbeat does not wait long behind them, and a short grant costs no watch.

    A grant is taken out of the index before its nodes are. So a change that an interrupt breaks off
    can be repeated.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, OwnNode] = {}
        self._grants: Multimap[str, GrantBase] = Multimap()  # by the path of the lock
        # Not a dict: to find its first key takes long where many before it were taken out.
        self._granted: OrderedDict[str, bool] = OrderedDict()
        self.unwatched: dict[str, None] = {}  # those with a grant, and without its watches
        self.to_place: deque[str] = deque()
        self._bytes = 0  # of watches under way

    def __contains__(self, path: str) -> bool:
        return path in self._nodes

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._nodes))

    def within(self, paths: Set[str]) -> bool:
        """Whether there are nodes, and all of them are among ``paths``."""
        return bool(self._nodes) and self._nodes.keys() <= paths

    def get(self, path: str) -> OwnNode | None:
        """Return the node at ``path``, if it is one of this session."""
        return self._nodes.get(path)

    def add(self, path: str, owner: int) -> None:
        """Note a node, and the session that owns it."""
        self._nodes.setdefault(path, OwnNode(owner))

    def give(self, grant: GrantBase) -> None:
        """Note that the grant's nodes are held by it; a kept one was held by another before."""
        for path in grant._paths:
            own = self._nodes.get(path)
            if own is None:
                continue
            if own.grant is None:
                self.unwatched[path] = None
            else:
                self._grants.discard(own.grant.lock_path, own.grant)
            own.grant = grant
        self._grants.add(grant.lock_path, grant)
        self._granted[grant.path] = True
        if len(self._granted) > _GRANTED:
            self._granted.popitem(last=False)

    def forget(self, paths: Iterable[str]) -> None:
        """Take these nodes out, and the grants on them."""
        for path in paths:
            self.unwatched.pop(path, None)
            own = self._nodes.get(path)
            if own is not None and own.grant is not None:
                self._grants.discard(own.grant.lock_path, own.grant)
            self._nodes.pop(path, None)

    def leave(self, paths: Iterable[str]) -> None:
        """Take these nodes out, unless they are granted."""
        for path in paths:
            own = self._nodes.get(path)
            if own is not None and own.grant is None:
                self.forget([path])

    def was_granted(self, path: str) -> bool:
        """Whether a node that is deleted now had been granted. It is forgotten."""
        return self._granted.pop(path, False)

    @property
    def any_held(self) -> bool:
        """Whether there is a grant."""
        return bool(self._grants)

    def held(self) -> list[str]:
        """Return the paths of the nodes with a grant."""
        return [path for path, own in self._nodes.items() if own.grant is not None]

    def grants(self) -> list[GrantBase]:
        """Return all grants."""
        return list(self._grants)

    def grants_of(self, lock_path: str) -> list[GrantBase]:
        """Return the grants of one lock. May be called without the guard: it is one step."""
        return self._grants.of(lock_path)

    def take_turns(self, first: str | None) -> str | None:
        """Return the node for the next heartbeat: ``first``, or the one whose turn it is."""
        path = first if first is not None else next(iter(self._nodes), None)
        if path is not None:
            self._nodes[path] = self._nodes.pop(path)
        return path

    def place_watches(self) -> None:
        """Have the watches placed that are missing."""
        self.to_place = deque(self.unwatched)

    def next_watches(self) -> Placing | None:
        """Return the next watches to send; ``None``: there are none, or enough are under way."""
        while self.to_place and self._bytes < _UNDER_WAY:
            path = self.to_place.popleft()
            own = self._nodes.get(path)
            if own is None or own.grant is None or own.watched or own.placing:
                continue
            own.placing, own.fired = True, False
            beside = () if own.grant._terms.asked_by is None else (Watch(own.grant.lock_path),)
            watches = (Watch(path), *beside)
            size = len(own.grant.identity) + own.size
            size += sum(_WATCH_BYTES + 2 * len(watch.path) for watch in watches)
            self._bytes += size
            return Placing(path, own, watches, size)
        return None

    def placed(self, placing: Placing, results: tuple[Any, ...]) -> bool:
        """Note the answers; return whether the node is still one of this session."""
        path, own, _, size = placing
        found = [each for each in results if isinstance(each, Node)]
        self._bytes -= size
        own.placing = False
        own.size = sum(len(node.data) for node in found)
        present = self._nodes.get(path) is own
        # One that fired before the last answer came may have fired after its own answer.
        if present and len(found) == len(results) and not own.fired:
            own.watched = True
            self.unwatched.pop(path, None)
        return present

    def fire(self, path: str, own: OwnNode) -> None:
        """Note that one of its watches has fired."""
        if own.grant is not None:
            self.unwatched[path] = None
        own.watched, own.fired = False, True

    def unwatch(self) -> None:
        """Note that all watches are lost."""
        self.unwatched.update(dict.fromkeys(self.held()))
        for own in self._nodes.values():
            own.watched = own.placing = False

    def orphan_waiters(self) -> None:
        """Start over in a forked child (see ``GrantBase._forget_waiters``)."""
        for own in self._nodes.values():
            if own.grant is not None:
                own.grant._forget_waiters()


def asked_of(grant: GrantBase, results: tuple[Any, ...]) -> str | None:
    """Return the request to release that was read for a grant, if there is one."""
    node, *beside = results
    asked = nodedata.parse(node.data).asked if isinstance(node, Node) else None
    asked_by = grant._terms.asked_by
    for each in beside:
        if asked_by is not None and isinstance(each, Node):
            asked = asked_by(each.data) or asked
    return asked
