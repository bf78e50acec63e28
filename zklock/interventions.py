"""What those may do about a lock who do not hold it: ask for its release, or break it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

from zklock import nodedata, steps
from zklock.effects import Failed, Failure, Read, Recipe, Write
from zklock.errors import NotOwner
from zklock.nodedata import NodeData
from zklock.queries import Contender
from zklock.token import FencingToken


def request_release(contenders: Callable[[], Recipe[list[Contender]]]) -> Recipe[list[Contender]]:
    """Ask all present holders to release → those that were asked."""
    request = str(uuid4())
    holders = [one for one in (yield from contenders()) if one.holds]
    there = set()
    for holder in holders:
        if (yield from _change(holder.path, lambda data: replace(data, asked=request))):
            there.add(holder)
    return [holder for holder in holders if holder in there]


def let_readers_in(node: str) -> Recipe[bool]:
    """Have a held write lock's node let readers in; whether it was still there."""
    return _change(node, lambda data: replace(data, lets_readers_in=True))


def _change(node: str, change: Callable[[NodeData], NodeData]) -> Recipe[bool]:
    """Change what the node says, however often it takes; whether it was still there."""
    while True:
        (found,) = yield (Read(node),)
        steps.check(found, Failure.DROPPED, Failure.MISSING)
        if isinstance(found, Failed):
            if found.why is Failure.MISSING:
                return False
            continue
        said = nodedata.parse(found.data)
        if change(said) == said:
            return True
        (written,) = yield (Write(node, bytes(change(said)), found.version),)
        steps.check(written, Failure.DROPPED, Failure.MISSING, Failure.CHANGED)


def break_lock(
    path: str, contenders: Callable[[], Recipe[list[Contender]]], token: FencingToken | None
) -> Recipe[Contender | None]:
    """Delete the node of the oldest holder, or of the one with this token → who that was."""
    holders = [one for one in (yield from contenders()) if one.holds]
    chosen = [one for one in holders if token in (None, one.token)]
    if not chosen:
        if token is None:
            return None
        raise NotOwner(
            f"{path}: not held with token {token} (any more): look who holds it, and decide again",
            path=path,
            token=token,
            holder=holders[0].identity if holders else None,
        )
    (holder, *_) = chosen
    yield from steps.delete(holder.path.rpartition("/")[0], holder.path)
    return holder
