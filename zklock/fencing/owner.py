"""Ask ZooKeeper whether a token holds the lock right now."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

from kazoo.exceptions import NoNodeError

from zklock._ground.clock import clock
from zklock._ground.numbers import check_int, check_number
from zklock._recipes import names, nodedata, semaphore as semaphore_recipe
from zklock._recipes.effects import Node
from zklock._recipes.notes import parse as parse_notes
from zklock._recipes.queries import Contender, describe
from zklock.errors import NotOwner
from zklock.fencing.guard import Fenced, carried_by
from zklock.fencing.zookeeper import Deadline
from zklock.token import FencingToken

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.interfaces import IAsyncResult

_REMEMBERED = 1024

_Key: TypeAlias = tuple[str, FencingToken, int]
_Memory: TypeAlias = dict[_Key, tuple[float, Contender]]

# Each step is one of a dict's: no lock, which a fork or a signal handler could find taken.
_memories: weakref.WeakKeyDictionary[KazooClient, _Memory] = weakref.WeakKeyDictionary()


def verify_owner(
    client: KazooClient,
    path: str,
    token: Fenced,
    *,
    limit: int = 1,
    timeout: float = 10.0,
    max_age: float | None = None,
) -> Contender:
    """Return the contender that holds the lock at ``path`` with ``token``, or raise ``NotOwner``.

    It is for a service that receives a token and has no mark to compare it with. ``limit`` is the
    number of leases of a semaphore.

    The answer is true at one instant between call and return: a ``multi`` that a quorum commits
    checks that the holder's node exists. It says nothing about the moment after. It therefore does
    not replace a guard: the holder may change between the answer and the write. The answer may also
    be "no" for a moment after the grant began on another server.

    With ``max_age``, a "yes" may be up to ``max_age`` seconds old. It is reused for the same
    question to the same client; its age counts from before it was asked. A holder that lost the
    lock is therefore believed for up to ``max_age`` longer. A "no" is never remembered.

    Costs two round trips; the second one is a write to ZooKeeper's log. Raises ``NoAnswer``
    after ``timeout`` seconds, or if the connection is lost; ``AccessDenied`` and ``ClientClosed``.
    """
    given = carried_by(token)
    path = names.check_path(path)
    check_int("limit", limit, 1)
    if max_age is not None:
        max_age = check_number(
            "max_age", max_age, "seconds or None", lambda it: it >= 0, "0 seconds or more"
        )
    key = (path, given, limit)
    asked = clock()
    if max_age is not None and (known := _recall(client, key, asked - max_age)):
        return known
    holder = _ask(client, path, given, limit, Deadline(client, timeout, path))
    if max_age is not None:
        _remember(client, key, asked, holder)
    return holder


def _ask(
    client: KazooClient, path: str, token: FencingToken, limit: int, deadline: Deadline
) -> Contender:
    caught_up = False
    while True:
        parent, queue, epoch = _listing(client, path, deadline)
        name = _holding(queue, epoch, token, limit)
        if name is None and _reads(client, parent, queue, deadline):
            name = _holding(queue[1:], epoch, token, limit, names.Kind.READ)
        if name is None:
            if caught_up:
                first = f"{parent}/{queue[0].text}" if queue else None
                raise _not_owner(client, path, token, first, deadline)
        else:
            node = f"{parent}/{name.text}"
            check = client.transaction()
            check.check(node, -1)
            read, checked = client.get_async(node), check.commit_async()
            noted = client.get_async(parent) if name.kind is names.Kind.LATCH else None
            try:
                data, stat = _read(read, deadline)
                (result,) = deadline.wait(checked)
                if isinstance(result, Exception):
                    raise result
                notes = None if noted is None else parse_notes(_read(noted, deadline)[0])
            except NoNodeError:
                # Gone since the listing, or this server is behind: look again.
                pass
            else:
                # No name recurs, and no later contender comes in before it. So a node that
                # still exists still holds the lock, however old the listing is.
                there = Node(node, data, stat.ephemeralOwner, mine=False)
                return describe(parent, token.epoch, [(name, there)], notes)[0]
        deadline.wait(client.sync_async(path))
        caught_up = True


def _listing(
    client: KazooClient, path: str, deadline: Deadline
) -> tuple[str, list[names.Name], int | None]:
    """Return the parent of the nodes that may hold, their names, and the epoch of their tokens."""
    try:
        children, stat = deadline.wait(client.get_children_async(path, include_data=True))
    except NoNodeError:
        return path, [], None
    below = semaphore_recipe.leases(path)
    if below.rpartition("/")[2] in children:  # a semaphore
        return _listing(client, below, deadline)
    return path, names.Queue(children).contenders, stat.czxid


def _read(asked: IAsyncResult, deadline: Deadline) -> tuple[bytes, Any]:
    """Return the data and the stat of a node; kazoo tells ``None`` if it was made without data."""
    data, stat = deadline.wait(asked)
    return data or b"", stat


def _reads(client: KazooClient, parent: str, queue: list[names.Name], deadline: Deadline) -> bool:
    """Whether the first in the queue is a writer that lets readers in."""
    if not queue or queue[0].kind is not names.Kind.WRITE:
        return False
    try:
        data, _ = _read(client.get_async(f"{parent}/{queue[0].text}"), deadline)
    except NoNodeError:
        return False
    return nodedata.parse(data).lets_readers_in


def _holding(
    queue: list[names.Name],
    epoch: int | None,
    token: FencingToken,
    limit: int,
    kind: names.Kind | None = None,
) -> names.Name | None:
    """Return the contender with ``token``, of this kind, if no other contender blocks it."""
    if epoch != token.epoch:
        return None
    for place, name in enumerate(queue):
        if name.sequence == token.sequence and kind in (None, name.kind):
            blockers = sum(names.blocks(other.kind, name.kind) for other in queue[:place])
            allowed = limit if name.kind is names.Kind.LEASE else 1
            return name if blockers < allowed else None
    return None


def _not_owner(
    client: KazooClient,
    path: str,
    token: FencingToken,
    first: str | None,
    deadline: Deadline,
) -> NotOwner:
    holder = None
    if first is not None:
        try:
            data, _ = _read(client.get_async(first), deadline)
            holder = nodedata.parse(data).identity.decode(errors="replace")
        except NoNodeError:
            pass
    present = "nobody holds it" if holder is None else f"{holder!r} does"
    return NotOwner(
        f"{path}: token {token} does not hold the lock, {present}: refuse its request",
        path=path,
        token=token,
        holder=holder,
    )


def _recall(client: KazooClient, key: _Key, since: float) -> Contender | None:
    known = _memories.get(client, {}).get(key)
    return known[1] if known is not None and known[0] >= since else None


def _remember(client: KazooClient, key: _Key, asked: float, holder: Contender) -> None:
    memory = _memories.setdefault(client, {})
    if len(memory) >= _REMEMBERED:
        memory.clear()
    memory[key] = asked, holder
