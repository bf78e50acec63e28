"""Makes a node and its ancestors, even where some of them may not be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo import exceptions
from kazoo.handlers.utils import capture_exceptions
from kazoo.security import ACL


def make_path(client: Any, path: str, acl: Sequence[ACL] | None = None) -> Any:
    """Create a node, and its ancestors where missing; return kazoo's asynchronous result.

    kazoo's ``ensure_path`` looks for each of them first. Since 3.8.4 and 3.9.2, ZooKeeper refuses
    that for one that this client may not read, though it may create below it. And it fails if an
    ancestor is deleted meanwhile.

    Fails with ``NoNodeError`` only if the client's chroot is missing.
    """
    made = client.handler.async_result()
    step: Callable[[Callable[..., None]], Callable[..., None]] = capture_exceptions(made)
    missing = [path]
    refused: dict[str, Exception] = {}  # taken for there: why they could not be made

    def create() -> None:
        client.create_async(missing[-1], acl=acl).rawlink(created)

    @step
    def created(answer: Any) -> None:
        error = answer.exception
        parent = missing[-1].rpartition("/")[0] or "/"  # "/": the chroot
        if error is None or isinstance(error, exceptions.NodeExistsError):
            go_on()
        elif isinstance(error, exceptions.NoNodeError) and missing[-1] != "/":
            if parent in refused:
                raise refused[parent]
            missing.append(parent)
            create()
        elif isinstance(error, exceptions.NoAuthError):
            client.exists_async(missing[-1]).rawlink(partial(looked, error))
        else:
            raise error

    @step
    def looked(refusal: Exception, answer: Any) -> None:
        hidden = isinstance(answer.exception, exceptions.NoAuthError)  # so it is there
        if hidden and missing[-1] == path:  # of no use: who needs it reads it, too
            raise refusal
        if answer.value is None and not hidden:
            raise answer.exception or refusal
        refused[missing[-1]] = refusal
        go_on()

    def go_on() -> None:
        missing.pop()
        if missing:
            create()
        else:
            made.set(None)

    create()
    return made
