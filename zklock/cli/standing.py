"""Who holds the lock that this process waits for, and where in the queue it stands itself."""

from __future__ import annotations

from kazoo.client import KazooClient

from zklock.cli.view.model import QueuePlace
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import named, plain, short


def standing(client: KazooClient, path: str, mine: int | None) -> tuple[str, int | None]:
    """Say who holds the lock, and where in its queue this client stands.

    ``mine``: the sequence number of this client's contender in an earlier look: it may have left
    since. The second result is what the next look should be given.
    """
    lock = Reader(client, path, alone=True).find().lock
    holders = ", ".join(map(_told, lock.holders)) if lock else ""
    waiting = lock.waiting if lock else []
    session, _ = client.client_id
    mine = next((one.sequence for one in waiting if one.session_id == session), mine)
    count, where = len(waiting), ""
    if mine is not None:
        before = sum(one.sequence < mine for one in waiting)
        count += all(one.sequence != mine for one in waiting)
        where = f"number {before + 1} of "
    told = f"{plain(path)} is held by {holders or 'nobody'}; {where}{count} waiting"
    orphans = lock.orphans() if lock else ()
    return "; ".join([told, *(f"{plain(what)}: {plain(todo)}" for what, todo in orphans)]), mine


def _told(holder: QueuePlace) -> str:
    came = "" if holder.age is None else f", came {short(holder.age)} ago"
    return f"{named(holder.identity)} ({holder.token}{came})"
