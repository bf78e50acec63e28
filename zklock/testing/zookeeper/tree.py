"""The znodes, and transactions over them: all of their changes, or none. Pure.

Source: ``PrepRequestProcessor``, ``DataTree`` and ``PathUtils`` of Apache ZooKeeper 3.8.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from zklock.testing.zookeeper.codec import Acl, Stat
from zklock.testing.zookeeper.messages import OPEN, READ_ONLY, Code, EventKind

CONTAINER_OWNER = -(2**63)
"""What a container has in place of the session that owns an ephemeral node."""

COUNTER_END = 2**31 - 1

SPECIAL = frozenset({"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"})
"""What nobody may delete."""

_SYSTEM = ("zookeeper", "zookeeper/config", "zookeeper/quota")
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
"""Java's characters are UTF-16: two surrogates stand for one beyond them, and are forbidden."""


class Refused(Exception):
    """An operation was not carried out, for this reason."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


class Change(NamedTuple):
    """What a transaction did to a node; watches are told in this order.

    ``acl``: that of the node. Only who may read it is told.
    """

    kind: EventKind
    path: str
    acl: tuple[Acl, ...]


def signed(number: int) -> int:
    """Return the number as 32 bits hold it."""
    return (number + 2**31) % 2**32 - 2**31


def parent_of(path: str) -> str:
    """Return the path of the node above."""
    return path.rpartition("/")[0] or "/"


def name_of(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def expect(wanted: int, version: int) -> None:
    """`Refused` if another version is wanted; -1 stands for any."""
    if wanted not in (-1, version):
        raise Refused(Code.BAD_VERSION)


def is_valid(path: str) -> bool:
    """Whether a node may have this path."""
    if path == "/":
        return True
    if not path.startswith("/"):
        return False
    parts = path[1:].split("/")
    if any(part in {"", ".", ".."} for part in parts):
        return False
    return _FORBIDDEN.search(path) is None


@dataclass(slots=True, eq=False)
class Znode:
    """A node. ``counter`` counts the children ever created; it numbers the sequential ones."""

    data: bytes | None
    acl: tuple[Acl, ...]
    owner: int
    czxid: int
    ctime: int
    mzxid: int = field(init=False)
    pzxid: int = field(init=False)
    mtime: int = field(init=False)
    version: int = 0
    aversion: int = 0
    counter: int = 0
    children: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mzxid = self.pzxid = self.czxid
        self.mtime = self.ctime

    @property
    def ephemeral(self) -> bool:
        """Whether it ends with a session."""
        return self.owner not in (0, CONTAINER_OWNER)

    def stat(self) -> Stat:
        """Return what a client is told; its ``cversion`` also counts the children that went."""
        count = len(self.children)
        return Stat(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            signed(2 * self.counter - count),
            self.aversion,
            self.owner,
            len(self.data or b""),
            count,
            self.pzxid,
        )


class Tree:
    """All nodes; which are ephemeral, and which are containers."""

    def __init__(self) -> None:
        self.nodes = {"/": Znode(b"", OPEN, 0, 0, 0)}
        self.ephemerals: dict[int, dict[str, None]] = {}
        self.containers: dict[str, None] = {}
        for name in _SYSTEM:
            self._add(f"/{name}", Znode(b"", OPEN, 0, 0, 0))
        config = self.nodes["/zookeeper/config"]
        config.acl, config.aversion = READ_ONLY, -1

    def find(self, path: str) -> Znode:
        """Return the node; `Refused` if there is none. The root has an empty path, too."""
        node = self.nodes.get(path or "/")
        if node is None:
            raise Refused(Code.NO_NODE)
        return node

    def _add(self, path: str, node: Znode) -> None:
        self.nodes[path] = node
        self.nodes[parent_of(path)].children[name_of(path)] = None
        if node.ephemeral:
            self.ephemerals.setdefault(node.owner, {})[path] = None
        elif node.owner == CONTAINER_OWNER:
            self.containers[path] = None

    def _remove(self, path: str) -> Znode:
        node = self.nodes.pop(path)
        del self.nodes[parent_of(path)].children[name_of(path)]
        if node.ephemeral:
            mine = self.ephemerals[node.owner]
            del mine[path]
            if not mine:
                del self.ephemerals[node.owner]
        elif node.owner == CONTAINER_OWNER:
            del self.containers[path]
        return node


class Transaction:
    """Changes to a tree under one zxid, each seen by the next; ``undo`` takes all of them back."""

    def __init__(self, tree: Tree, zxid: int, time: int) -> None:
        self.changes: list[Change] = []
        self._tree = tree
        self._zxid = zxid
        self._time = time
        self._undo: list[Callable[[], object]] = []
        # A counter at its end stays there. Only the transaction itself counts on, past the end.
        self._counters: dict[str, int] = {}

    def undo(self) -> None:
        """Leave the tree as it was found."""
        while self._undo:
            self._undo.pop()()
        self.changes.clear()

    def create(
        self, path: str, data: bytes | None, acl: tuple[Acl, ...], owner: int, *, numbered: bool
    ) -> str:
        """Add a node; return its path. Its parent exists."""
        above = parent_of(path)
        parent = self._tree.nodes[above]
        counter = self._counters.get(above, parent.counter)
        if numbered:
            path = f"{path}{counter:010d}"
        if not is_valid(path):
            raise Refused(Code.BAD_ARGUMENTS)
        if path in self._tree.nodes:
            raise Refused(Code.NODE_EXISTS)
        if parent.ephemeral:
            raise Refused(Code.NO_CHILDREN_FOR_EPHEMERALS)
        before = parent.counter, parent.pzxid
        self._counters[above] = following = signed(counter + 1)
        if following > parent.counter:
            parent.counter, parent.pzxid = following, self._zxid
        self._tree._add(path, Znode(data, acl, owner, self._zxid, self._time))

        def undo() -> None:
            self._tree._remove(path)
            parent.counter, parent.pzxid = before

        self._undo.append(undo)
        self.changes += (
            Change(EventKind.CREATED, path, acl),
            Change(EventKind.CHILDREN_CHANGED, above, parent.acl),
        )
        return path

    def remove(self, path: str) -> None:
        """Remove a node that exists and has no children."""
        above = parent_of(path)
        parent = self._tree.nodes[above]
        before = parent.pzxid
        node = self._tree._remove(path)
        parent.pzxid = max(parent.pzxid, self._zxid)

        def undo() -> None:
            self._tree._add(path, node)
            parent.pzxid = before

        self._undo.append(undo)
        self.changes += (
            Change(EventKind.DELETED, path, node.acl),
            Change(EventKind.CHILDREN_CHANGED, above, parent.acl),
        )

    def write(self, node: Znode, path: str, data: bytes | None, version: int) -> Stat:
        expect(version, node.version)
        before = node.data, node.version, node.mzxid, node.mtime
        node.data, node.version = data, signed(node.version + 1)
        node.mzxid, node.mtime = self._zxid, self._time

        def undo() -> None:
            node.data, node.version, node.mzxid, node.mtime = before

        self._undo.append(undo)
        self.changes.append(Change(EventKind.DATA_CHANGED, path, node.acl))
        return node.stat()

    def protect(self, node: Znode, acl: tuple[Acl, ...], version: int) -> Stat:
        """Replace a node's ACL; no part of a larger transaction, and never undone."""
        expect(version, node.aversion)
        node.acl, node.aversion = acl, signed(node.aversion + 1)
        return node.stat()
