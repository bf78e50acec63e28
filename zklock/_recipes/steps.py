"""The steps that recipes are made of. Each tries again until its outcome is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set as AbstractSet
from functools import partial
from typing import Any, TypeVar

from zklock._ground.interrupts import raised_by_zklock
from zklock._recipes import names, nodedata
from zklock._recipes.effects import (
    AbandonCreate,
    Batch,
    Cancelled,
    Delete,
    Exists,
    Failed,
    Failure,
    List,
    Listing,
    Make,
    Node,
    Pause,
    Read,
    Recipe,
    Request,
    SessionReplaced,
    Sync,
    Transaction,
    Wait,
    Wakeup,
    Watch,
    WatchList,
    Write,
    backoff,
    parent_of,
)
from zklock.errors import AccessDenied, MixedNames, SequenceExhausted, ZkLockError

T = TypeVar("T")

_PASSING = set(Failure) - {Failure.MISSING, Failure.DENIED}
"""A deletion that failed in one of these ways is tried again."""

FIRST_LOOK = 0.1
"""When a abandoned create is looked for first, in seconds."""

ABSENT = Listing([], -1)
"""The listing of a parent that does not exist."""


def ask(batch: Batch, *expected: Failure) -> Recipe[Sequence[Any]]:
    """Ask until there are answers to all → the results; an error that is not expected is raised.

    What is asked may be asked again: it may have been done before.
    """
    while True:
        results: Sequence[Any] = yield batch
        if not reply_lost(results, *expected):
            return results


def look(path: str) -> Recipe[Listing]:
    """List the queue; an absent parent is an empty queue."""
    (listing,) = yield from ask((List(path),), Failure.MISSING)
    return listing if isinstance(listing, Listing) else ABSENT


def makes(path: str) -> tuple[Make, ...]:
    """Return the requests that make a node and its ancestors where missing.

    All are sent in one go. kazoo's ``ensure_path`` looks for each of them first. Since 3.8.4 and
    3.9.2, ZooKeeper refuses that for one that this client may not read, though it may create below
    it.
    """
    parts = path.split("/")
    return (Make("/"), *(Make("/".join(parts[:end])) for end in range(2, len(parts) + 1)))


def refuse_unmade(results: Iterable[Any]) -> None:
    """Raise the first error of ``makes`` that tells why a node below could not be made."""
    for result in results:
        check(result, Failure.DROPPED)


def make_path(path: str) -> Recipe[None]:
    """Make a node and its ancestors where missing."""
    while True:
        *creates, there = yield (*makes(path), Exists(path))
        if isinstance(there, Node):
            return
        refuse_unmade(creates)
        check(there, Failure.DROPPED, Failure.MISSING)


def find(path: str, uuid: str) -> Recipe[str | None]:
    """Return the node of a create whose reply was lost, if it exists and this session owns it.

    If there is none, or it may not be looked for now, it is abandoned: the uuid must not be used
    again.
    """
    try:
        found = yield from _find(path, {uuid})
    except raised_by_zklock(AccessDenied):
        yield AbandonCreate(path, uuid)
        raise
    if not found:
        yield AbandonCreate(path, uuid)
    return next(iter(found.values()), None)


def reap_late_creates(
    path: str, abandoned: Callable[[], Iterable[str]], seconds: Callable[[], float]
) -> Recipe[None]:
    """Delete the nodes of creates that were abandoned, if they are made late.

    This looks for ``seconds()``: soon at first, then at ages that grow by a quarter. It looks for
    those that were ``abandoned()`` before its first look.
    """
    yield Pause(FIRST_LOOK)
    age, uuids = FIRST_LOOK, set(abandoned())
    while True:
        try:
            found = yield from _find(path, uuids)
            for uuid, node in found.items():
                yield from delete(path, node)
                uuids.discard(uuid)
        except raised_by_zklock(ZkLockError):
            pass  # it may pass until the next look
        if not uuids or age >= seconds():
            return
        pause = max(FIRST_LOOK, age / 4)
        yield Pause(pause)
        age += pause


def _find(path: str, uuids: AbstractSet[str]) -> Recipe[dict[str, str]]:
    """Return the nodes of contenders of this session, by the uuid."""
    while True:
        synced, listing = yield from ask((Sync(path), List(path)), Failure.MISSING)
        check(synced)
        alike = _alike(listing.names if isinstance(listing, Listing) else [], uuids)
        if not alike:
            return {}
        nodes = yield tuple([Exists(f"{path}/{name}") for name in alike])
        for node in nodes:
            check(node, Failure.DROPPED, Failure.MISSING)
        if any(isinstance(node, Failed) for node in nodes):
            continue
        # A node of an earlier session is about to vanish: we cannot use it.
        there = zip(alike.values(), nodes, strict=True)
        return {uuid: node.path for uuid, node in there if node.mine}


def _alike(there: Iterable[str], uuids: AbstractSet[str]) -> dict[str, str]:
    """Return the names that begin with one of the uuids, and with which. In one pass."""
    prefixes = {f"_c_{uuid}-": uuid for uuid in uuids}
    lengths = {len(prefix) for prefix in prefixes}
    return {
        name: prefixes[name[:length]]
        for name in there
        for length in lengths
        if name[:length] in prefixes
    }


def delete(
    path: str,
    node: str,
    request: Delete | Transaction | None = None,
    *,
    tidy: bool = False,
) -> Recipe[bool | None]:
    """Delete a contender's node, with as many tries as it takes; if the session is gone, so is it.

    ``False``: the first answer says that it was not there. So somebody else had deleted it.

    Only ``AccessDenied`` is final. An unexpected error may pass, so the deletion is tried again. It
    is then sent without the write that came with it: an error of that write would not pass. If ACLs
    refuse that write alone, the node goes without it, and ``AccessDenied`` is raised then. A
    worn-out parent is deleted with the last of its children; with ``tidy``, any parent. If the
    request is a transaction, others may have held by then, and left a mark: such a parent stays.
    """
    first: Request = request or Delete(node)
    empties, marked = tidy or worn(node), isinstance(request, Transaction)
    batch = (first, Delete(path)) if empties and not marked else (first,)
    refused: Failed | None = None
    unknown = False  # whether an earlier try has deleted it
    tries = 0
    try:
        while True:
            result, *_ = yield batch
            if result is None or result.why is Failure.MISSING:
                check(refused)
                if empties and marked:
                    yield from _delete_unmarked(path)
                return None if result is None or unknown else False
            if result.why is Failure.DENIED and result.node is not None:
                refused, batch = result, (Delete(node),)
                continue
            check(result, *_PASSING)
            unknown = True
            if result.why is not Failure.DROPPED:
                batch = (Delete(node), *batch[1:])
                yield Pause(backoff(tries))
                tries += 1
    except SessionReplaced:
        return None


def _delete_unmarked(path: str) -> Recipe[None]:
    """Delete a parent that has no children and no data."""
    (found,) = yield (Read(path),)
    if isinstance(found, Node) and not found.data:
        yield (Delete(path, found.version),)


def overwrite(path: str, data: bytes) -> Recipe[bool]:
    """Write a node, again until there is an answer → whether it was there.

    The write is for the version that was read. So one whose reply is lost, and which comes late,
    cannot undo a later one.
    """
    while True:
        (found,) = yield from ask((Read(path),), Failure.MISSING)
        if isinstance(found, Failed):
            return False
        (written,) = yield (Write(path, data, found.version),)
        check(written, Failure.DROPPED, Failure.MISSING, Failure.CHANGED)
        if written is None:
            return True


def remove(node: str) -> Recipe[bool | None]:
    """Delete a contender's node, which is all that it has; see ``persist``."""
    return persist(partial(delete, parent_of(node), node))


def persist(leave: Callable[[], Recipe[T]]) -> Recipe[T | None]:
    """Leave, with as many tries as it takes → its result; giving up does not stop this.

    Only ``AccessDenied`` stops it. Any other error may pass, so it is tried again. The end of the
    session is the end of all that is to be left.
    """
    gave_up, tries, left = None, 0, None
    while True:
        try:
            left = yield from leave()
            break
        except SessionReplaced:
            break
        except Cancelled as error:
            gave_up = error
        except AccessDenied:
            raise
        except raised_by_zklock(ZkLockError):
            try:
                yield Pause(backoff(tries))
            except SessionReplaced:
                break
            except Cancelled as error:
                gave_up = error
            tries += 1
    if gave_up is not None:
        raise gave_up
    return left if not tries else None


def worn(node: str) -> bool:
    """Whether a contender's number is so high that its parent is to be renewed."""
    name = names.parse(node.rpartition("/")[2])
    return name is not None and not 0 <= name.sequence < names.RENEW_AT


def watch(
    blocker: str,
    own: str | None,
    reads: bool = False,
    patient: bool = True,
    saw: Callable[[Node], object] | None = None,
    *,
    looks: bool = False,
) -> Recipe[Wakeup | None]:
    """Sleep until the blocker or the own node goes. ``None``: the blocker was not there.

    With ``reads``, a writer that has become a reader lets this contender in. Without ``patient``,
    this does not sleep. ``saw`` is called with the blocker's node. ``looks``: it looks at the queue
    in any case when the blocker is gone. Then its own node needs no watch: the look finds it
    missing, and a heartbeat does so before.
    """
    denied = False
    watches = Watch(own) if own and not looks else None
    while True:
        first = WatchList(parent_of(blocker)) if denied else Watch(blocker)
        answers = yield (first,) if watches is None else (first, watches)
        found = answers[0]
        if is_(found, Failure.DENIED) and not denied:
            denied = True  # without read permission, no watch event when it goes
            continue
        if reply_lost(answers, Failure.MISSING):
            continue
        if watches and not (isinstance(answers[1], Node) and answers[1].mine):
            return Wakeup.OWN_GONE
        if isinstance(found, Failed) or (
            isinstance(found, Listing) and blocker.rpartition("/")[2] not in found.names
        ):
            return None
        if saw is not None and isinstance(found, Node):
            saw(found)
        if reads and isinstance(found, Node) and nodedata.parse(found.data).lets_readers_in:
            return Wakeup.LETS_IN
        answers = found = None  # many may wait
        sleep = Wait(parent_of(blocker) if denied else blocker, own)
        event: Wakeup = (yield sleep) if patient else Wakeup.UNWATCHED
        if event is Wakeup.HOLDER_GONE and looks:
            return Wakeup.BLOCKER_GONE
        if event is not Wakeup.UNWATCHED or not patient:
            return event


def given(event: Wakeup) -> Recipe[Wakeup]:
    """Return the event; nothing is asked for."""
    yield from ()
    return event


def exhausted(me: names.Name, listing: Listing) -> bool:
    """Whether this sequence number, or the youngest one, is worn out: no grant may use it."""
    queue = listing.queue.contenders
    youngest = queue[-1] if queue else me  # a low number beside a wrapped one has wrapped, too
    return not (
        0 <= me.sequence < names.EXHAUSTED_AT and 0 <= youngest.sequence < names.EXHAUSTED_AT
    )


def refuse_unseen(path: str, queue: names.Queue) -> None:
    """Raise ``MixedNames`` if a contender has a name that kazoo does not see."""
    for name in queue.contenders:
        if not names.seen_by_kazoo(name.text):
            raise MixedNames(
                f"{path}: {name.text} queues here under a name that kazoo's locks ignore: both "
                'could hold the lock. Use naming="kazoo" everywhere on this path, or nowhere',
                path=path,
            )


def refuse_strangers(path: str, me: names.Name, listing: Listing) -> Recipe[None]:
    """Raise ``MixedNames`` if an ephemeral node stands before ``me`` whose name is not known.

    Whoever made it may hold the lock. It is enough to look once for each contender: nobody can
    come in before it later.
    """
    while found := names.strangers(listing.names, me):
        answers = yield tuple(Exists(f"{path}/{name}") for name in found)
        for name, answer in zip(found, answers, strict=True):
            check(answer, Failure.DROPPED, Failure.MISSING)
            if isinstance(answer, Node) and answer.owner:
                raise MixedNames(
                    f"{path}: an unknown ephemeral sequential node ({name}) is ahead in the "
                    "queue; zklock cannot tell whether it holds the lock: use a path for this "
                    "lock alone",
                    path=path,
                )
        if all(isinstance(answer, Node) for answer in answers):
            return
        listing = yield from look(path)  # one is gone: perhaps another one like it was hidden


def renew(path: str, epoch: int) -> Recipe[None]:
    """Wait until a worn-out parent is empty, and delete it: the next parent starts at 0."""
    while True:
        listing = yield from look(path)
        if listing.epoch != epoch or listing is ABSENT:
            return
        if queue := listing.queue.contenders:
            yield from watch(f"{path}/{queue[-1].text}", None)
            continue
        if listing.names:
            raise SequenceExhausted(
                f"{path}: its sequence numbers are used up; foreign children (such as "
                f"{listing.names[0]!r}) block the renewal: remove them, or use another path",
                path=path,
            )
        (deleted,) = yield (Delete(path),)
        check(deleted, Failure.DROPPED, Failure.MISSING, Failure.NOT_EMPTY)


def is_(result: object, why: Failure) -> bool:
    """Whether the request failed for this reason."""
    return isinstance(result, Failed) and result.why is why


def reply_lost(results: Iterable[object], *expected: Failure) -> bool:
    """Whether a reply was lost; raise the error of another failure that was not expected."""
    lost = False
    for result in results:
        if isinstance(result, Failed):
            check(result, Failure.DROPPED, *expected)
            lost = lost or result.why is Failure.DROPPED
    return lost


def check(result: object, *expected: Failure) -> None:
    """Raise the error of a failure that was not expected."""
    if isinstance(result, Failed) and result.why not in expected:
        raise result.error.with_traceback(None)  # what may stand there is of an earlier raise
