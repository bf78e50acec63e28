"""A guard for znodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from kazoo.exceptions import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)

from zklock.connection import check_thread
from zklock.errors import NoAnswer, StaleToken
from zklock.fencing.guard import NO_TOKEN, Fenced, admit, missing, parse_mark, token_of
from zklock.token import FencingToken

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.interfaces import IAsyncResult


class Deadline:
    """One deadline for all answers that a call waits for."""

    def __init__(self, client: KazooClient, timeout: float, path: str) -> None:
        check_thread("a call of zklock.fencing")
        _check_timeout(timeout)
        self._too_late = client.handler.timeout_exception
        self._end = time.monotonic() + timeout
        self._path = path
        self._timeout = timeout

    def wait(self, answer: IAsyncResult) -> Any:
        """Return the answer; raise ``NoAnswer`` if it does not come in time, or kazoo's error."""
        try:
            return answer.get(timeout=max(0.001, self._end - time.monotonic()))
        except self._too_late:
            raise NoAnswer(
                f"{self._path}: ZooKeeper did not answer within {self._timeout} s: what was asked "
                "may still happen, ask again",
                path=self._path,
            ) from None


@runtime_checkable
class _LiveGrant(Protocol):
    @property
    def token(self) -> FencingToken: ...

    @property
    def path(self) -> str: ...


class ZooKeeperGuard:
    """Fences changes of znodes: mark and change are one ``multi``, committed by a quorum.

    ``client`` is a started ``KazooClient``, ``path`` the znode that holds the mark, made with
    ``acl`` by ``create()``, its parents too. Given a *grant*, the change also happens only
    while the grant's own znode lives: it is refused as soon as the session or the grant has
    ended, before anybody has claimed anything. (The lock's client must then have the same
    chroot.) Given a *token*, the mark alone decides.

    Values written outside ZooKeeper are not covered: a look at ``highest()`` before writing them
    is not one step with the write.

    Every call takes at most ``timeout`` seconds, then raises ``NoAnswer``. kazoo's errors pass
    through. After ``NoAnswer``, ``ConnectionLoss``, ``OperationTimeoutError`` or
    ``SessionExpiredError`` the change may have happened, or may happen later, unless the token
    has become stale by then; ``claim`` may simply be repeated.
    """

    def __init__(
        self, client: KazooClient, path: str, *, acl: Any = None, timeout: float = 10.0
    ) -> None:
        if not isinstance(path, str):
            raise TypeError(f"the mark's path must be a str, not {type(path).__name__}")
        if not path.startswith("/") or path.endswith("/"):
            raise ValueError(f"the mark's path must be absolute and not end in /: {path!r}")
        self._client = client
        self._path = path
        self._acl = acl
        self._timeout = _check_timeout(timeout)

    @property
    def resource(self) -> str:
        """The path of the mark."""
        return self._path

    def create(self) -> None:
        """Make the mark, once; keep one that exists."""
        with contextlib.suppress(NodeExistsError):
            self._deadline().wait(
                self._client.create_async(
                    self._path, NO_TOKEN.encode(), acl=self._acl, makepath=True
                )
            )

    def claim(self, token: Fenced) -> None:
        """Advance the mark; see ``Guard.claim``."""
        self.transaction(token).commit()

    def transaction(self, token: Fenced) -> FencedTransaction:
        """Return a transaction whose ``commit()`` happens only if ``token`` is not stale."""
        return FencedTransaction(self, token)

    def highest(self) -> FencingToken | None:
        """Return the mark as the quorum has it; ``None`` while no token has been seen."""
        deadline = self._deadline()
        deadline.wait(self._client.sync_async(self._path))
        return self._read(deadline)[0]

    def _deadline(self) -> Deadline:
        return Deadline(self._client, self._timeout, self._path)

    def _read(self, deadline: Deadline) -> tuple[FencingToken | None, int]:
        try:
            data, stat = deadline.wait(self._client.get_async(self._path))
        except NoNodeError:
            # This server may not have seen create() yet.
            deadline.wait(self._client.sync_async(self._path))
            try:
                data, stat = deadline.wait(self._client.get_async(self._path))
            except NoNodeError:
                raise missing(self._path, self._path) from None
        return parse_mark(self._path, self._path, data), stat.version


class FencedTransaction:
    """Changes of znodes that all happen, or none: add them, then ``commit()`` once."""

    def __init__(self, guard: ZooKeeperGuard, token: Fenced) -> None:
        self._guard = guard
        self._token = token_of(token)
        self._node = token.path if isinstance(token, _LiveGrant) else None
        self._changes: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

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
        return self._add("create", path, value, acl=acl, ephemeral=ephemeral, sequence=sequence)

    def set_data(self, path: str, value: bytes, version: int = -1) -> FencedTransaction:
        """Change the data of a znode."""
        return self._add("set_data", path, value, version=version)

    def delete(self, path: str, version: int = -1) -> FencedTransaction:
        """Delete a znode."""
        return self._add("delete", path, version=version)

    def check(self, path: str, version: int = -1) -> FencedTransaction:
        """Require a version of a znode, ``-1``: that it exists."""
        return self._add("check", path, version)

    def commit(self) -> list[Any]:
        """Send it; return kazoo's results of the added changes, in their order.

        Raises ``StaleToken``, ``GuardUnusable``, or kazoo's error of the change that failed; in
        each of these cases nothing has changed.
        """
        guard = self._guard
        deadline = guard._deadline()
        while True:
            mark, version = guard._read(deadline)
            advances = admit(guard.resource, self._token, mark)
            request = guard._client.transaction()
            if advances:
                request.set_data(guard.resource, str(self._token).encode(), version)
            else:
                request.check(guard.resource, version)
            if self._node is not None:
                request.check(self._node, -1)
            for operation, arguments, options in self._changes:
                getattr(request, operation)(*arguments, **options)
            results = deadline.wait(request.commit_async())
            fence, changes = results[0], results[1 if self._node is None else 2 :]
            # The mark moved, or this server had an old one: look again, after a sync.
            if isinstance(fence, BadVersionError | NoNodeError):
                deadline.wait(guard._client.sync_async(guard.resource))
                continue
            if self._node is not None and isinstance(results[1], NoNodeError):
                raise StaleToken(
                    f"{guard.resource}: the grant of token {self._token} is over, its node "
                    f"{self._node} is gone: stop its work and acquire the lock again",
                    resource=guard.resource,
                    token=self._token,
                    highest=mark,
                )
            _raise_failure(results)
            return list(changes)

    def _add(self, operation: str, *arguments: Any, **options: Any) -> FencedTransaction:
        # kazoo checks the arguments here and now.
        getattr(self._guard._client.transaction(), operation)(*arguments, **options)
        self._changes.append((operation, arguments, options))
        return self


def _check_timeout(timeout: float) -> float:
    if not timeout > 0:
        raise ValueError(f"timeout must be positive, not {timeout}")
    return timeout


def _raise_failure(results: Sequence[Any]) -> None:
    failures = [result for result in results if isinstance(result, Exception)]
    for failure in failures:
        if not isinstance(failure, RolledBackError | RuntimeInconsistency):
            raise failure
    if failures:
        raise failures[0]
