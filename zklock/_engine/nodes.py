"""The nodes of one session, and the grants on them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Set

from zklock._engine.grant import GrantBase
from zklock._ground.multimap import Multimap

_NEVER = -math.inf  # one object for all
_GRANTED = 4096  # granted nodes that are remembered for the waiters behind them


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


class OwnNodes:
    """The nodes by path, and the grants by the path of their lock. The caller has the guard.

    A grant is taken out of the index before its nodes are. So a change that an interrupt breaks off
    can be repeated.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, OwnNode] = {}
        self._grants: Multimap[str, GrantBase] = Multimap()  # by the path of the lock
        # Not a dict: to find its first key takes long where many before it were taken out.
        self._granted: OrderedDict[str, bool] = OrderedDict()
        self._unwatched: dict[str, None] = {}  # those with a grant, and without its watches

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
        """Note that the grant's nodes are held by it."""
        for path in grant._paths:
            own = self._nodes.get(path)
            if own is not None:
                self._unwatched[path] = None
                own.grant = grant
        self._grants.add(grant.lock_path, grant)
        self._granted[grant.path] = True
        if len(self._granted) > _GRANTED:
            self._granted.popitem(last=False)

    def give_again(self, grant: GrantBase, before: GrantBase) -> None:
        """Note that a kept node is held by another grant than before."""
        own = self._nodes.get(grant.path)
        if own is not None:
            own.grant = grant
        self._grants.discard(before.lock_path, before)
        self._grants.add(grant.lock_path, grant)

    def forget(self, paths: Iterable[str]) -> None:
        """Take these nodes out, and the grants on them."""
        for path in paths:
            self._unwatched.pop(path, None)
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

    def unwatched(self) -> list[str]:
        """Return the paths of the nodes with a grant whose watches are to be placed."""
        return list(self._unwatched)

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

    def watch(self, path: str, own: OwnNode) -> None:
        """Note that all that its grant watches is watched."""
        own.watched = True
        self._unwatched.pop(path, None)

    def fire(self, path: str, own: OwnNode) -> None:
        """Note that one of its watches has fired."""
        if own.grant is not None:
            self._unwatched[path] = None
        own.watched, own.fired = False, True

    def unwatch(self) -> None:
        """Note that all watches are lost."""
        self._unwatched.update(dict.fromkeys(self.held()))
        for own in self._nodes.values():
            own.watched = own.placing = False

    def orphan_waiters(self) -> None:
        """Start over in a forked child (see ``GrantBase._forget_waiters``)."""
        for own in self._nodes.values():
            if own.grant is not None:
                own.grant._forget_waiters()
