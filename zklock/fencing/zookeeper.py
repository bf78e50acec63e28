"""A guard for znodes."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo.exceptions import (
    AuthFailedError,
    BadArgumentsError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    QuotaExceededError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    ThrottledOpError,
)

from zklock._core.failures import NO_CHROOT, translate
from zklock._core.loops import check_thread
from zklock._ground.clock import clock
from zklock._ground.numbers import check_number
from zklock._recipes import steps
from zklock._shell.client import check_process, check_type
from zklock._shell.handler import closed_error
from zklock.errors import (
    AccessDenied,
    ClientClosed,
    GuardUnusable,
    NoAnswer,
    OutcomeUnknown,
    StaleToken,
)
from zklock.fencing.guard import (
    NO_TOKEN,
    Fenced,
    admit,
    missing,
    parse_mark,
    refused,
    refusing,
    token_of,
)
from zklock.token import FencingToken

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.interfaces import IAsyncResult


_REFUSED = (BadArgumentsError, NoChildrenForEphemeralsError, QuotaExceededError)
_CUT_OFF = (ConnectionLoss, SessionExpiredError, OperationTimeoutError)


class Deadline:
    """One deadline for all answers that a call waits for."""

    def __init__(self, client: KazooClient, timeout: float, path: str) -> None:
        _check_client(client)
        check_process(client)
        check_thread("a call of zklock.fencing")
        if (error := closed_error(client)) is not None:
            raise error
        timeout = _check_timeout(timeout)
        self._too_late = client.handler.timeout_exception
        self._end = clock() + timeout
        self._path = path
        self._timeout = timeout

    def wait(self, answer: IAsyncResult, *, changes: bool = False) -> Any:
        """Return the answer, or raise; kazoo's own errors are those of what was asked.

        ``changes``: what was asked changes something. A ``NoAnswer`` with a cause may be repeated:
        nothing was changed.
        """
        left = max(0.001, self._end - clock())
        try:
            return answer.get(timeout=min(left, threading.TIMEOUT_MAX))
        except self._too_late:
            raise self._no_answer() from None
        except NoAuthError as error:
            raise AccessDenied(
                f"{self._path}: ZooKeeper's ACLs refuse the request: let this client read and "
                "write the mark and the nodes of the change",
                path=self._path,
            ) from error
        except _REFUSED as error:
            raise _refusing(self._path, error) from error
        except ThrottledOpError as error:  # it was not carried out
            raise self._no_answer() from error
        except (ConnectionClosedError, AuthFailedError) as error:
            raise ClientClosed(
                f"{self._path}: the client was stopped, or its credentials were refused: make "
                "another one; a change in progress may have happened",
                path=self._path,
            ) from error
        except _CUT_OFF as error:
            if not changes:
                raise self._no_answer() from error
            raise OutcomeUnknown(
                f"{self._path}: the connection to ZooKeeper broke during the change: it may have "
                "happened, and may still happen unless the token has become stale: claim, read, "
                "and decide",
                resource=self._path,
                path=self._path,
            ) from error

    def _no_answer(self) -> NoAnswer:
        return NoAnswer(
            f"{self._path}: ZooKeeper did not answer within {self._timeout:g} s: the request may "
            "still take effect: ask again",
            path=self._path,
        )

    def ask(self, question: Callable[[], Sequence[IAsyncResult]]) -> list[Any]:
        """Return the answers to what changes nothing; ask again on the next connection.

        For a missing node, its ``NoNodeError`` is the answer.
        """
        while True:
            try:
                return [self._or_missing(answer) for answer in question()]
            except NoAnswer as error:
                self.repeat(error)

    def repeat(self, error: NoAnswer) -> None:
        """Wait a moment, if the question may be asked again and there is time; else raise."""
        if error.__cause__ is None or clock() >= self._end:
            raise error
        # kazoo may answer so at once until it has seen that the connection is gone.
        time.sleep(0.01)

    def _or_missing(self, answer: IAsyncResult) -> Any:
        try:
            return self.wait(answer)
        except NoNodeError as error:
            return error


class ZooKeeperGuard:
    """Fences changes of znodes: mark and change are one ``multi``, committed by a quorum.

    ``client`` is a started ``KazooClient``. ``path`` is the znode that holds the mark.
    ``create()`` makes it, and its parents, with ``acl``.

    Given a *token*, the mark alone decides. Given a *grant*, the change also needs the grant's
    own znode: it is refused as soon as the session or the grant has ended, even if nobody has
    claimed anything since, and this process does not know it yet. (The lock's client must then have
    the same chroot.)

    Beside the mark, ``create()`` makes ``<path>.made`` with one child, whose name never comes
    again. Every change checks that child. A change that was in progress when the mark was removed
    therefore cannot happen after ``create()`` has made the mark again, whatever its version numbers
    are. A mark that somebody made by hand is refused until ``create()`` has adopted it. Anyone who
    may write or delete the mark or ``<path>.made`` can let stale tokens in; ``acl`` applies to
    both.

    Values outside ZooKeeper are not covered: ``highest()`` and a later write to them are not one
    step.

    Every call takes at most ``timeout`` seconds, then raises ``NoAnswer``. A question that a lost
    connection or session has cut off is asked again. After ``NoAnswer`` or ``OutcomeUnknown`` the
    change may have happened. It may also happen later, unless the token has become stale by then.
    ``claim`` may simply be repeated.
    """

    def __init__(
        self, client: KazooClient, path: str, *, acl: Any = None, timeout: float = 10.0
    ) -> None:
        _check_client(client)
        if not isinstance(path, str):
            raise TypeError(f"the mark's path must be a str, not {type(path).__name__}")
        if not path.startswith("/") or path.endswith("/"):
            raise ValueError(f"the mark's path must be absolute and not end in /: {path!r}")
        _check_sendable(path)
        self._client = client
        self._path = str.__str__(path)  # a member of an enum may be formatted as something else
        self._acl = acl
        self._timeout = _check_timeout(timeout)

    @property
    def resource(self) -> str:
        """The path of the mark's znode, which names the resource in errors."""
        return self._path

    def create(self) -> None:
        """Make the mark, once; keep one that exists."""
        deadline = self._deadline()
        while True:
            mark, made = deadline.ask(self._look)
            request = self._client.transaction()
            if isinstance(mark, NoNodeError):
                child = uuid.uuid4().hex
                request.create(self._path, NO_TOKEN.encode(), self._acl)
            elif _belongs(mark, made):
                return
            else:
                child = f"{uuid.uuid4().hex}-{mark[1].czxid:016x}"
                request.check(self._path, -1)
            if not isinstance(made, NoNodeError):
                for name in made[0]:
                    request.delete(f"{self._made}/{name}")
                # Fails if it has a child that was not in this listing.
                request.delete(self._made)
            request.create(self._made, b"", self._acl)
            request.create(f"{self._made}/{child}", b"", self._acl)
            try:
                results = deadline.wait(request.commit_async(), changes=True)
            except NoAnswer as error:
                deadline.repeat(error)
                continue
            try:
                _raise_failure(results)
            except (NoNodeError, NodeExistsError, NotEmptyError):
                # Another call came in between, this server is behind, or there is no parent.
                if parent := self._path.rpartition("/")[0]:
                    self._make(parent, deadline)
                deadline.ask(lambda: [self._client.sync_async(self._path)])
            except KazooException as error:  # a used-up quota, or a parent that is ephemeral
                raise _refusing(self._path, error) from error

    def claim(self, token: Fenced) -> None:
        """Advance the mark, and change no other znode; see ``Guard.claim``.

        Also raises ``NoAnswer`` and ``OutcomeUnknown``: the mark may have advanced, or do it later.
        """
        self.transaction(token).commit()

    def transaction(self, token: Fenced) -> FencedTransaction:
        """Return a transaction whose ``commit()`` happens only if ``token`` is not stale."""
        return FencedTransaction(self, token)

    def highest(self) -> FencingToken | None:
        """Return the mark that the quorum has; ``None`` while no token has been seen."""
        deadline = self._deadline()
        deadline.ask(lambda: [self._client.sync_async(self._path)])
        return self._read(deadline).token

    def _deadline(self) -> Deadline:
        return Deadline(self._client, self._timeout, self._path)

    def _make(self, path: str, deadline: Deadline) -> None:
        """Make a node, and its ancestors where missing: see ``steps.makes``."""
        while True:
            asked = [
                self._client.create_async(make.path, acl=self._acl) for make in steps.makes(path)
            ]
            looked = self._client.exists_async(path)
            refused: AccessDenied | None = None
            try:
                for made in asked:
                    try:
                        deadline.wait(made)
                    except AccessDenied as error:
                        refused = refused or error
                    except NodeExistsError:
                        pass
                    except NoNodeError as error:
                        if made is asked[0]:
                            told = translate(error, path, hint=NO_CHROOT).error
                            raise refusing(path, told) from error
                if deadline.wait(looked) is not None:
                    return
            except NoAnswer as error:
                deadline.repeat(error)
            else:
                if refused is not None:
                    raise refused

    @property
    def _made(self) -> str:
        return f"{self._path}.made"

    def _look(self) -> list[IAsyncResult]:
        """Ask for the mark, and for the nodes that identify it."""
        return [
            self._client.get_async(self._path),
            self._client.get_children_async(self._made, include_data=True),
        ]

    def _read(self, deadline: Deadline) -> _Mark:
        mark, made = deadline.ask(self._look)
        if isinstance(mark, NoNodeError) or not _belongs(mark, made):
            # This server may not have seen create() yet.
            deadline.ask(lambda: [self._client.sync_async(self._path)])
            mark, made = deadline.ask(self._look)
            if isinstance(mark, NoNodeError):
                raise missing(self._path, self._path) from None
            if not _belongs(mark, made):
                raise GuardUnusable(
                    f"{self._path}: the mark was not made by create(), and every write is "
                    "refused: find out who put it there, then call create(), which keeps its "
                    "value",
                    resource=self._path,
                )
        data, stat = mark
        token = parse_mark(self._path, self._path, data or b"")
        return _Mark(token, stat.version, f"{self._made}/{made[0][0]}")


class _Mark(NamedTuple):
    token: FencingToken | None
    version: int
    proof: str
    """The node that exists as long as the mark has not been made again."""


def _belongs(mark: Any, made: Any) -> bool:
    """Whether ``made`` belongs to this mark: created together with it, or when it was adopted."""
    if isinstance(made, NoNodeError) or len(made[0]) != 1:
        return False
    _, _, adopted = made[0][0].partition("-")
    # All nodes that one multi creates have the same czxid.
    return bool(mark[1].czxid == (int(adopted, 16) if adopted else made[1].czxid))


class FencedTransaction:
    """Changes of znodes that all happen, or none: add them, then ``commit()`` once."""

    def __init__(self, guard: ZooKeeperGuard, token: Fenced) -> None:
        self._guard = guard
        self._fenced = token
        self._token = token_of(token)
        self._node: str | None = getattr(token, "path", None)  # a grant's own
        self._changes = guard._client.transaction()
        self._sent = False

    def create(
        self,
        path: str,
        value: bytes = b"",
        *,
        acl: Any = None,
        ephemeral: bool = False,
        sequence: bool = False,
    ) -> FencedTransaction:
        """Add a znode; its parent must exist."""
        _check_sendable(path)
        self._changes.create(path, value, acl=acl, ephemeral=ephemeral, sequence=sequence)
        return self

    def set_data(self, path: str, value: bytes, version: int = -1) -> FencedTransaction:
        """Replace the data of a znode of this version; ``-1`` is any version."""
        _check_sendable(path)
        self._changes.set_data(path, value, version=version)
        return self

    def delete(self, path: str, version: int = -1) -> FencedTransaction:
        """Delete a znode that has no children and this version; ``-1`` is any version."""
        _check_sendable(path)
        self._changes.delete(path, version=version)
        return self

    def check(self, path: str, version: int = -1) -> FencedTransaction:
        """Require this version of a znode; ``-1`` requires only that it exists."""
        _check_sendable(path)
        self._changes.check(path, version)
        return self

    def commit(self) -> list[Any]:
        """Send the changes; return kazoo's results of the added changes, in their order.

        Raises ``StaleToken``, ``GuardUnusable``, ``LockLost`` or ``NotHeld`` for a grant that is
        over, or kazoo's error of the change that failed. In each of these cases nothing has
        changed. A second call is a ``RuntimeError``.
        """
        if self._sent:
            raise RuntimeError(
                "a transaction is committed once: make another with guard.transaction(token)"
            )
        self._sent = True
        token_of(self._fenced)
        guard = self._guard
        deadline = guard._deadline()
        while True:
            mark = guard._read(deadline)
            advances = admit(guard.resource, self._token, mark.token)
            request = guard._client.transaction()
            if advances:
                request.set_data(guard.resource, str(self._token).encode(), mark.version)
            else:
                request.check(guard.resource, mark.version)
            request.check(mark.proof, -1)
            if self._node is not None:
                request.check(self._node, -1)
            request.operations.extend(self._changes.operations)
            try:
                results = deadline.wait(request.commit_async(), changes=True)
            except NoAnswer as error:
                deadline.repeat(error)
                continue
            fence, changes = results[:2], results[2 if self._node is None else 3 :]
            # The mark moved, or this server had an old one: look again after a sync.
            if any(isinstance(result, BadVersionError | NoNodeError) for result in fence):
                deadline.ask(lambda: [guard._client.sync_async(guard.resource)])
                continue
            if self._node is not None and isinstance(results[2], NoNodeError):
                refused(guard.resource, self._token, mark.token)
                raise StaleToken(
                    f"{guard.resource}: the grant of token {self._token} is over, because its "
                    f"node {self._node} is gone: stop its work and acquire the lock again",
                    resource=guard.resource,
                    token=self._token,
                    highest=mark.token,
                )
            if isinstance(fence[0], QuotaExceededError):
                raise _refusing(guard.resource, fence[0])
            _raise_failure(results)
            return list(changes)


def _check_client(client: KazooClient) -> None:
    if not hasattr(client, "handler"):  # what wraps a client will do
        check_type(client)


def _refusing(path: str, error: KazooException) -> GuardUnusable:
    """Return the error for a mark that ZooKeeper refuses."""
    return refusing(path, translate(error, path).error)


def _check_sendable(path: str) -> None:
    """Raise ``ValueError`` for a path that kazoo cannot send: its thread would end by it."""
    try:
        str(path).encode()  # kazoo says that it is no text
    except UnicodeEncodeError:
        raise ValueError(f"the path is not UTF-8 text: {path!r}") from None


def _check_timeout(timeout: float) -> float:
    return check_number("timeout", timeout, "seconds", lambda it: it > 0, "positive")


def _raise_failure(results: Sequence[Any]) -> None:
    failures = [result for result in results if isinstance(result, Exception)]
    for failure in failures:
        if not isinstance(failure, RolledBackError | RuntimeInconsistency):
            raise failure
    if failures:
        raise failures[0]
