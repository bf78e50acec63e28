"""Reads everything below a path, once or again wherever a watch tells of a change.

Every node that has no contender's name is listed. Contenders are read once: their names never
recur. So a change costs one listing of the node where it happened, and one read for each newcomer.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.protocol.states import EventType, KazooState

import zklock
from zklock._core.failures import MEANINGS
from zklock._ground.clock import clock
from zklock._recipes import names
from zklock._recipes.effects import backoff
from zklock.cli.view.model import (
    LEASES,
    LOCKS,
    OWN,
    POOL_PARTS,
    WORKERS,
    Facts,
    Found,
    Look,
    Znode,
    below,
    find,
    picture,
)

_WINDOW = 256
"""The most requests that are under way at a time."""

_K = TypeVar("_K")


DROPPED = (ConnectionLoss, ConnectionClosedError, SessionExpiredError)
"""kazoo's errors for a connection or a session that has ended meanwhile."""


class _Job(Enum):
    LIST = "list"  # the children
    READ = "read"  # a node whose data may change
    READ_ONCE = "read once"  # a contender


class Reader:
    """Knows what is at and below ``root``. For one thread.

    With ``follow`` it leaves a watch wherever something may change, and ``refresh`` reads what has
    changed since. With ``alone`` it reads no more than says what the root is. ``missing``: the root
    does not exist.
    """

    def __init__(
        self, client: KazooClient, root: str, *, follow: bool = False, alone: bool = False
    ) -> None:
        self.root = root
        self.facts = Facts()
        self.missing = False
        self._client = client
        self._follow = follow
        self._alone = alone
        parent, _, name = root.rpartition("/")
        self._above = parent if name in {LOCKS, LEASES} | POOL_PARTS else ""
        self._changed: queue.SimpleQueue[tuple[_Job, str] | None] = queue.SimpleQueue()
        self._todo: dict[tuple[_Job, str], None] = {}
        self._watches = {job: partial(self._on_event, job) for job in (_Job.LIST, _Job.READ)}
        self._dropped = False
        if follow:
            client.add_listener(self._on_state)

    def read(self) -> Look:
        """Read everything, as the leader knows it. ``NoAnswer`` if an answer does not come."""
        self._read()
        return picture(self.facts)

    def find(self) -> Found:
        """Read, and return what is at the root. ``NoAuthError`` if ACLs hide it."""
        self._read()
        self.must_see_root()
        return find(self.root, self.facts)

    def must_see_root(self) -> None:
        """Raise ``NoAuthError`` if ACLs hide the root: then nothing below it is known."""
        if self.root in self.facts.denied:
            raise NoAuthError

    def must_see_queue(self) -> None:
        """Raise ``NoAuthError`` if ACLs hide the root, or where a semaphore keeps contenders.

        What is hidden there must not be taken for free.
        """
        self.must_see_root()
        parts = {below(self.root, part) for part in (LOCKS, LEASES)}
        if self.facts.may_be_semaphore(self.root) and self.facts.denied & parts:
            raise NoAuthError

    def strangers(self) -> list[str]:
        """Return children of the root that may be contenders of a program that is not known."""
        unknown = names.strangers(self.facts.children(self.root) or ())

        def look(name: str) -> Any:
            return self._client.exists_async(below(self.root, name))

        stats = answers(self._client, self.root, unknown, look)
        return [name for name, stat in stats if getattr(stat, "ephemeralOwner", 0)]

    @property
    def hidden(self) -> list[str]:
        """The nodes at and below the root that ACLs hide."""
        inside = f"{self.root.rstrip('/')}/"
        return sorted(path for path in self.facts.denied if f"{path}/".startswith(inside))

    def refresh(self, timeout: float) -> bool | None:
        """Wait for a change and read what has changed; whether there was any within ``timeout``.

        ``None`` while there is no connection. Everything is read again afterwards.
        """
        read = self._settle
        if self._dropped or self._client.state != KazooState.CONNECTED:
            if not self._connected(timeout):
                return None
            self._take_told()
            self._todo.clear()
            self.facts = Facts()
            self._dropped = False
            read = self._read
        else:
            try:
                first = self._changed.get(timeout=timeout)
            except queue.Empty:
                return False
            self._take_told(first)
        try:
            read()
        except (*DROPPED, zklock.NoAnswer):
            self._dropped = True
            return None
        return True

    def still_there(self, paths: Iterable[str]) -> set[str]:
        """Return which of these nodes are still the ones that were read."""
        there = set()
        for path, stat in answers(self._client, self.root, paths, self._client.exists_async):
            if isinstance(stat, KazooException):
                raise stat
            seen = self.facts.nodes.get(path)
            if stat is not None and (seen is None or seen.born == stat.creation_transaction_id):
                there.add(path)
        return there

    def _read(self) -> None:
        answer(self._client, lambda: self._client.sync_async(self.root), self.root)
        self._todo[_Job.LIST, self.root] = None
        if self._alone and self._above:
            self._todo[_Job.LIST, self._above] = None
        self._settle()

    def _connected(self, timeout: float) -> bool:
        until = clock() + timeout
        while self._client.state != KazooState.CONNECTED and (left := until - clock()) > 0:
            with suppress(queue.Empty):
                self._changed.get(timeout=left)
        return bool(self._client.state == KazooState.CONNECTED)

    def _on_event(self, job: _Job, event: Any) -> None:
        self._changed.put(None if event.type == EventType.NONE else (job, event.path))

    def _on_state(self, state: str) -> None:
        if state != KazooState.CONNECTED:
            self._dropped = True  # all watches are gone
        self._changed.put(None)

    def _take_told(self, first: tuple[_Job, str] | None = None) -> None:
        told = first
        with suppress(queue.Empty):
            while True:
                if told is not None:
                    self._todo[told] = None
                told = self._changed.get_nowait()

    def _settle(self) -> None:
        """Carry out what is to be done, until nothing is."""
        while self._todo:
            for (job, path), got in answers(self._client, self.root, self._todo, self._ask):
                del self._todo[job, path]
                match got:
                    case NoAuthError():
                        self.facts.denied.add(path)
                    case NoNodeError():
                        self._gone(job, path)
                    case KazooException():
                        raise got
                    case _:
                        self._take(job, path, *got)

    def _ask(self, asked: tuple[_Job, str]) -> Any:
        job, path = asked
        watch = self._watches.get(job) if self._follow else None
        if job is _Job.LIST:
            return self._client.get_children_async(path, watch=watch, include_data=True)
        return self._client.get_async(path, watch=watch)

    def _gone(self, job: _Job, path: str) -> None:
        self._forget(path)
        if job is not _Job.LIST or path != self.root:
            return
        self.missing = True
        if self._follow:
            ask = partial(self._client.exists_async, self.root, watch=self._watches[_Job.LIST])
            if answer(self._client, ask, self.root) is not None:
                self._todo[_Job.LIST, self.root] = None

    def _take(self, job: _Job, path: str, got: Any, stat: Any) -> None:
        before = self.facts.nodes.get(path)
        if before is not None and before.born != stat.creation_transaction_id:
            self._forget(path)
            before = None
        self.facts.denied.discard(path)
        known = before or Znode()
        self.facts.nodes[path] = Znode(
            got if job is _Job.LIST else known.names,
            known.data if job is _Job.LIST else got or b"",
            stat.ephemeralOwner,
            stat.created,
            stat.creation_transaction_id,
            stat.children_version,
            stat.data_length,
            stat.version,
        )
        if job is _Job.LIST:
            self._listed(path, set(known.names or ()), got)
        elif stat.ephemeralOwner:  # what stays may have its time from a clock that was wrong
            self.facts.behind = max(self.facts.behind, stat.created - time.time())

    def _listed(self, path: str, known: set[str], children: list[str]) -> None:
        self.missing &= path != self.root
        for name in known.difference(children):
            self._forget(below(path, name))
        if self.facts.may_be_semaphore(path):
            self._todo[_Job.READ, path] = None
        for name in children:
            if name not in known and self._wanted(path, name):
                for job in self._jobs(path, name):
                    self._todo[job, below(path, name)] = None

    def _wanted(self, parent: str, name: str) -> bool:
        """Whether to look at this child."""
        root = self.root
        if not self._alone:
            return below(parent, name) != OWN
        if names.parse(name) is not None:
            return parent in {root, below(root, LOCKS), below(root, LEASES)}
        if parent in {root, self._above}:
            has_parts = self.facts.may_be_semaphore(parent) or self.facts.is_pool(parent)
            return has_parts and name in {LOCKS, LEASES} | POOL_PARTS
        return parent in {below(root, part) for part in WORKERS}

    def _jobs(self, parent: str, name: str) -> tuple[_Job, ...]:
        """Return what to do with a child: by its name, it may have data of a pool."""
        kind = names.kind_of(name)
        if kind is not None:  # a writer may let readers in: its data then change
            return (_Job.READ if kind is names.Kind.WRITE else _Job.READ_ONCE,)
        above, _, part = parent.rpartition("/")
        if part in WORKERS and self.facts.is_pool(above):
            return (_Job.READ,)
        return (_Job.LIST, _Job.READ) if part in WORKERS or name == "shards" else (_Job.LIST,)

    def _forget(self, path: str) -> None:
        self.facts.denied.discard(path)
        node = self.facts.nodes.pop(path, None)
        for name in (node.names if node is not None else None) or ():
            self._forget(below(path, name))


def answer(client: KazooClient, ask: Callable[[], Any], path: str) -> Any:
    """Return the answer about a node, or raise kazoo's error. ``NoAnswer`` if it does not come."""
    ((_, got),) = answers(client, path, [path], lambda _: ask())
    if isinstance(got, KazooException):
        raise got
    return got


def answers(
    client: KazooClient, path: str, keys: Iterable[_K], ask: Callable[[_K], Any]
) -> Iterator[tuple[_K, Any]]:
    """Ask about each key at or below a path, and yield it with its answer, or with kazoo's error.

    Ask again while ZooKeeper is too busy. ``NoAnswer`` if nothing comes for a session timeout.
    """
    timeout = client.handler.session_timeout
    silence = zklock.NoAnswer(
        f"{path}: no answer within {timeout:g} s: check that a quorum is up, and try again"
    )
    left, since, tries = [*keys], clock(), 0
    while left:
        batch = [(key, ask(key)) for key in left[:_WINDOW]]
        del left[:_WINDOW]
        refused = []
        for key, reply in batch:
            try:
                got = reply.get(timeout=timeout)
            except client.handler.timeout_exception as error:
                raise silence from error
            except KazooException as error:
                meaning = MEANINGS.get(getattr(error, "code", 0))
                if meaning is not None and meaning.busy:
                    if clock() - since >= timeout:
                        raise silence from error
                    refused.append(key)
                    continue
                got = error
            since, tries = clock(), 0
            yield key, got
        if refused:
            left += refused
            time.sleep(backoff(tries))
            tries += 1
