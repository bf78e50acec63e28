"""The nodes of one session, and the grants on them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from zklock._core.grant import GrantBase
from zklock._ground.multimap import Multimap
from zklock._recipes import nodedata
from zklock._recipes.effects import Node, Watch

_NEVER = -math.inf  # one object for all
_GRANTED = 4096  # granted nodes that are remembered for the waiters behind them
WATCHED_AT_ONCE = 200  # grants whose watches are placed behind one heartbeat


class OwnNode:
    """A node of this session: a waiting contender's, or a holder's with its grant.

    ``read_at``: when its data were read last.
    """

    __slots__ = ("grant", "read_at")

    def __init__(self) -> None:
        self.grant: GrantBase | None = None
        self.read_at = _NEVER


class OwnNodes:
    """The nodes by path, and the grants by the path of their lock. All is used in steps.

    A grant watches its own node; a leader's also watches the data of the election's path. The
    watches are placed behind a heartbeat, for a limited number of grants at a time. So the next
    heartbeat does not wait long behind them, and a short grant costs no watch.

    ``crowded``: some had to be left to the next heartbeat.

    A grant is taken out of the index before its nodes are. So a change that an interrupt breaks off
    can be repeated.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, OwnNode] = {}
        self._grants: Multimap[str, GrantBase] = Multimap()  # by the path of the lock
        # Not a dict: to find its first key takes long where many before it were taken out.
        self._granted: OrderedDict[str, bool] = OrderedDict()
        self.unwatched: dict[str, None] = {}  # those with a grant, whose watches are to be placed
        self.crowded = False

    def __contains__(self, path: str) -> bool:
        return path in self._nodes

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._nodes))

    def get(self, path: str) -> OwnNode | None:
        """Return the node at ``path``, if it is one of this session."""
        return self._nodes.get(path)

    def add(self, path: str) -> None:
        if path not in self._nodes:
            self._nodes[path] = OwnNode()

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
        return bool(self._grants)

    def held(self) -> list[str]:
        """Return the paths of the nodes with a grant."""
        return [path for path, own in self._nodes.items() if own.grant is not None]

    def grants(self) -> list[GrantBase]:
        return list(self._grants)

    def grants_of(self, lock_path: str) -> list[GrantBase]:
        """Return the grants of one lock. From any thread: it is one step of C."""
        return self._grants.of(lock_path)

    def take_turns(self, first: str | None) -> str | None:
        """Return the node for the next heartbeat: ``first``, or the one whose turn it is."""
        path = first if first is not None else next(iter(self._nodes), None)
        if path is not None:
            own = self._nodes[path]
            # No call: an interrupt that struck in between would have its grant never be lost.
            del self._nodes[path]
            self._nodes[path] = own
        return path

    def take_unwatched(self) -> list[tuple[str, OwnNode, tuple[Watch, ...]]]:
        """Return the watches to place behind a heartbeat, with their nodes."""
        taken = []
        for path in list(islice(self.unwatched, WATCHED_AT_ONCE)):
            del self.unwatched[path]
            own = self._nodes[path]
            if own.grant is not None:
                beside = () if own.grant._terms.asked_by is None else (Watch(own.grant.lock_path),)
                taken.append((path, own, (Watch(path), *beside)))
        self.crowded = bool(self.unwatched)
        return taken

    def watched(self, path: str, own: OwnNode, results: Sequence[Any]) -> bool:
        """Note the answers; return whether the node is still one of this session."""
        present = self._nodes.get(path) is own
        if present and not all(isinstance(each, Node) for each in results):
            self.unwatched[path] = None
        return present

    def fire(self, path: str, own: OwnNode) -> None:
        """Note that one of its watches has fired."""
        if own.grant is not None:
            self.unwatched[path] = None

    def unwatch(self) -> None:
        """Note that all watches are lost."""
        self.unwatched.update(dict.fromkeys(self.held()))

    def orphan_waiters(self) -> None:
        """Start over in a forked child (see ``GrantBase._forget_waiters``)."""
        for own in self._nodes.values():
            if own.grant is not None:
                own.grant._forget_waiters()


def asked_of(grant: GrantBase, results: Sequence[Any]) -> str | None:
    """Return the request to release that was read for a grant, if there is one."""
    node, *beside = results
    asked = nodedata.parse(node.data).asked if isinstance(node, Node) else None
    asked_by = grant._terms.asked_by
    for each in beside:
        if asked_by is not None and isinstance(each, Node):
            asked = asked_by(each.data) or asked
    return asked
