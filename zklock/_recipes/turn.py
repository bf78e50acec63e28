"""The decision of the lock recipe: is it my turn? Pure.

A contender M has listed the queue. If a blocker stands before it, M has slept behind the nearest
one, B, until something happened. ``decide`` says what M does next. It may say ``TAKE_TURN`` only if
nobody who blocks M can be left. Otherwise M looks again, which is always right and costs a request.

What the proof rests on:

1. Nobody comes in before M later, as sequence numbers grow. So whoever blocks M now blocked M in
   the listing. There is one exception: a writer of Curator that becomes a reader makes a new node
   with the number of the old one, before it deletes the old one.
2. B is the nearest blocker. So nobody between B and M blocks M.
3. Blockers that let M in (a writer of zklock that became a reader) do so until they are gone. They
   no longer count in ``Standing``.
4. M's node still existed when B was deleted, if M watches both: a client is told of changes in
   their order, so M would have been told of its own node first. The end of their session deletes
   both at once: so a node of M's session that its client did not delete counts as unwatched.
   M watches B alone if B is not the sole blocker, and no node of M's session: B's end then counts
   as ``BLOCKER_GONE``, behind which M looks, and a look finds M's node missing.
5. No blocker stands before a granted contender. All kinds block each other, but a reader
   does not block a reader. So if B was granted and is no reader, nobody at all is left before B.

The cases of ``TAKE_TURN``:

- There was no blocker. By 1, there is none now.
- B is gone, was the sole blocker, and was no writer. By 1, nobody blocks M: only a writer can leave
  a new node behind.
- B is gone, had been granted on this session, and was no reader. By 5, nobody is left before B; by
  2, nobody blocks M after B. A grant on this session is zklock's: if B was a writer, it was none of
  Curator's, and leaves no new node.
- B is gone, had been granted on this session, was a reader, and was the sole blocker. By 1.

Two of these cases rest on the deletion of a node that this client itself deletes. Its event can be
believed, whatever became of the request. No event is made on this side: it comes from the server,
for a deletion that was done. A request that was refused, or never arrived, brings none. One whose
answer was lost brings one if it was done. One that is sent again finds no node, or does it now. An
event cannot be about an earlier node of the same name, as names are used once. When the connection
is lost, the watches go with it, and M looks again.

There is one more cause: B's deletion is asked for and not done, and their session ends. Then B's
event may come before that of M's node, and 4 does not see it. If the session has expired, the lease
was over before, and nothing is granted. If somebody else has closed the session, M is where a
holder is at that moment: it has a grant until its own node's event comes, which is on its way on
this connection. The fencing token is lower than that of whoever comes next.

In all other cases somebody may be left: another blocker; before a reader, another reader; in place
of a writer, Curator's reader.
"""

from __future__ import annotations

from enum import Enum

from zklock._recipes.effects import Wakeup
from zklock._recipes.names import Kind, Standing


class Decision(Enum):
    TAKE_TURN = "nobody blocks it: it takes its turn"
    LOOK = "somebody may block it: it lists the queue again"
    PASS = "the nearest blocker lets it in: it waits for the one before that"
    LEAVE = "the lock is not free, and it does not wait"
    QUEUE_AGAIN = "its own node is gone: it queues again, at the end"


def decide(standing: Standing, event: Wakeup | None) -> Decision:
    """Return what a contender does next, by where it stood and what happened to the nearest.

    ``event`` is how the wait behind the nearest blocker has ended. ``None``: there was no wait, or
    the blocker was gone before it could be watched.
    """
    nearest = standing.nearest
    if nearest is None:
        return Decision.TAKE_TURN
    match event:
        case Wakeup.OWN_GONE:
            return Decision.QUEUE_AGAIN
        case Wakeup.LETS_IN:
            return Decision.PASS
        case Wakeup.UNWATCHED:
            return Decision.LEAVE
        case Wakeup.BLOCKER_GONE:
            free = standing.sole and nearest.kind is not Kind.WRITE
        case Wakeup.HOLDER_GONE:
            free = standing.sole or nearest.kind is not Kind.READ
        case None:
            free = False
    return Decision.TAKE_TURN if free else Decision.LOOK
