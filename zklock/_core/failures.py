"""What ZooKeeper's and kazoo's errors mean for a request, and the error of ours that says so."""

from __future__ import annotations

from dataclasses import dataclass

from kazoo import exceptions

from zklock._recipes import names
from zklock._recipes.effects import (
    Create,
    Failed,
    Failure,
    Make,
    Request,
    Transaction,
    Write,
    parent_of,
)
from zklock.errors import AccessDenied, ZkLockError


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a ZooKeeper error code for a request of ours.

    ``busy``: the request may succeed later, on this connection. ``hint``: what to do next.
    """

    why: Failure
    busy: bool = False
    hint: str = ""


_NEVER_ASKED = Meaning(Failure.OTHER, hint="it answers no zklock request: check the server")
_BROKEN = Meaning(Failure.OTHER, hint="read the log of the ZooKeeper server")
_GONE = Meaning(Failure.DROPPED)
_BUSY = Meaning(Failure.DROPPED, busy=True)

MEANINGS: dict[int, Meaning] = {
    # RolledBack, and RuntimeInconsistency (-2): operations of a failed transaction that did not
    # fail themselves. SystemError and APIError: beginnings of ranges. DataInconsistency.
    **dict.fromkeys((0, -2, -1, -100, -3), _BROKEN),
    # ConnectionLoss; SessionExpired, and kazoo's ConnectionClosed; AuthFailed: it is closed.
    **dict.fromkeys((-4, -112, -115), _GONE),
    # OperationTimeout; UnknownSession, to servers: the session is going; SessionMoved: the
    # connection is about to be closed; NotReadOnly: this server is cut off from the quorum, and
    # about to say so; RequestTimeout; ThrottledOp: not carried out, as the server is overloaded.
    **dict.fromkeys((-7, -12, -118, -119, -122, -127), _BUSY),
    # NewConfigNoQuorum, ReconfigInProgress, InvalidCallback, NoWatcher, ReconfigDisabled.
    **dict.fromkeys((-13, -14, -113, -121, -123), _NEVER_ASKED),
    # A server also sends this for any error that it did not expect: the outcome is unknown.
    -5: Meaning(Failure.OTHER, hint="a request too large, or an error in the server: see its log"),
    -6: Meaning(Failure.OTHER, hint="the server is too old: use ZooKeeper 3.6 or later"),
    -8: Meaning(Failure.OTHER, hint="the server rejects the path or the data"),
    -101: Meaning(Failure.MISSING),
    -102: Meaning(Failure.DENIED),
    -103: Meaning(Failure.CHANGED),
    -108: Meaning(Failure.OTHER, hint="below an ephemeral znode: use another path"),
    -110: Meaning(Failure.OTHER, hint="the new znode's number already exists: try again"),
    -111: Meaning(Failure.NOT_EMPTY),
    -114: Meaning(Failure.DENIED),  # InvalidACL
    -120: Meaning(
        Failure.OTHER, hint="its sessions are local: set localSessionsEnabled=false there"
    ),
    # The server closes this session, and every later one.
    -124: Meaning(
        Failure.DENIED,
        hint="pass sasl_options, or what its enforce.auth.schemes names: auth_data for digest, "
        "certfile for x509",
    ),
    -125: Meaning(Failure.OTHER, hint="its quota is used up: raise it, or use another path"),
}
"""All codes of ZooKeeper 3.9. A code that is not listed does not tell what was done."""

_UNKNOWN = Meaning(Failure.OTHER)

NO_CHROOT = "the chroot in the client's address does not exist: create it, or correct the address"
"""The hint for a path that cannot be made since a node is missing: see ``steps.makes``."""

_DROPPED: tuple[type[Exception], ...] = (exceptions.ConnectionDropped,)
"""Errors of kazoo's own, without a code; the outcome of the request is unknown after them."""

MAX_REQUEST = 1_000_000
"""The most bytes of a request: ZooKeeper closes the connection for one above 1,048,575."""


def translate(
    error: Exception,
    path: str,
    lock_path: str | None = None,
    written: str | None = None,
    hint: str = "",
) -> Failed:
    """Return the failure for kazoo's error, with the zklock error to raise.

    ``written``: the node whose data the request writes, if it only writes. ``hint``: what to do, if
    the code does not say it.
    """
    lock_path = lock_path or path
    if isinstance(error, _DROPPED):
        meaning = _GONE
    else:
        meaning = MEANINGS.get(getattr(error, "code", 1), _UNKNOWN)
    name = type(error).__name__
    raised: ZkLockError
    if meaning.why is Failure.DENIED:
        needs = meaning.hint or (
            f"this client needs read and write permission on {written}, whose data it writes"
            if written
            else "this client needs create, delete and read permission on the lock's path, and "
            "read permission on its own contenders and on any contender that it checks"
        )
        if isinstance(error, exceptions.SessionClosedRequireSaslError):
            raised = AccessDenied(
                f"{path}: ZooKeeper requires authentication ({name}): {needs}",
                path=lock_path,
            )
        else:
            raised = AccessDenied(
                f"{path}: ZooKeeper's ACLs forbid it ({name}): {needs}", path=lock_path
            )
    else:
        what = "; ".join(filter(None, [meaning.why.value, meaning.hint or hint]))
        raised = ZkLockError(f"{path}: {what} ({name}: {error})", path=lock_path)
    raised.__cause__ = error
    return Failed(meaning.why, raised, meaning.busy)


def failed(request: Request, error: Exception) -> Failed:
    """Return the failure of a request for kazoo's error."""
    written = request.path if isinstance(request, Write) else None
    chroot = isinstance(request, Make) and isinstance(error, exceptions.NoNodeError)
    return translate(error, *paths_of(request), written, NO_CHROOT if chroot else "")


def paths_of(request: Request) -> tuple[str, str]:
    """Return the path of the request, and the path of its lock."""
    if isinstance(request, Create):
        return request.prefix, parent_of(request.prefix)
    if isinstance(request, Transaction):
        return paths_of(request.operations[0])
    parent, _, name = request.path.rpartition("/")
    return request.path, parent if names.parse(name) else request.path


def too_large(request: Request, size: int) -> Failed:
    """Return the failure of a request of so many bytes, which is not sent."""
    path, lock_path = paths_of(request)
    return Failed(
        Failure.OTHER,
        ZkLockError(
            f"{path[:100]}: a request of {size} bytes exceeds ZooKeeper's limit and was not sent: "
            "use a shorter path, or fewer members",
            path=lock_path,
        ),
    )
