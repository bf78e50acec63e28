"""Makes a node and its ancestors, even where some of them may not be read."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from kazoo import exceptions
from kazoo.security import ACL

from zklock._ground.interrupts import may_be_interrupted


def making(path: str) -> Generator[tuple[bool, str], Any, None]:
    """Make a node, and its ancestors where missing: in steps.

    Each step is whether to create, or to look for, and which node. It is sent kazoo's error, or
    what is found, or ``None``.

    kazoo's ``ensure_path`` looks for each of them first. Since 3.8.4 and 3.9.2, ZooKeeper refuses
    that for one that this client may not read, though it may create below it. And it fails if an
    ancestor is deleted meanwhile.

    Makes the client's chroot, too. Raises ``NoNodeError`` only if the chroot's parent is missing.
    """
    missing = [path]
    refused: dict[str, Exception] = {}  # taken for there: why they could not be made
    while missing:
        node = missing[-1]
        answer = yield True, node
        if isinstance(answer, exceptions.NoNodeError) and node != "/":
            parent = node.rpartition("/")[0] or "/"  # "/": the chroot
            if parent in refused:
                raise refused[parent]
            missing.append(parent)
            continue
        if isinstance(answer, exceptions.NoAuthError):
            found = yield False, node
            hidden = isinstance(found, exceptions.NoAuthError)  # so it is there
            gone = found is None or isinstance(found, exceptions.NoNodeError)
            if gone or (hidden and node == path):  # of no use: its user reads it, too
                raise answer
            if isinstance(found, Exception) and not hidden:
                raise found
            refused[node] = answer
        elif isinstance(answer, Exception) and not isinstance(answer, exceptions.NodeExistsError):
            raise answer
        missing.pop()


def make_path(client: Any, path: str, acl: Sequence[ACL] | None = None) -> Any:
    """Do all steps of ``making()``; return kazoo's asynchronous result."""
    made = client.handler.async_result()
    steps = making(path)

    def go_on(answer: Any = None) -> None:
        try:
            creates, node = steps.send(None if answer is None else answer.exception or answer.value)
        except StopIteration:
            made.set(None)
        except Exception as error:
            if not isinstance(error, exceptions.KazooException) and may_be_interrupted():
                raise  # a signal handler's
            made.set_exception(error)
        else:
            asked = client.create_async(node, acl=acl) if creates else client.exists_async(node)
            asked.rawlink(go_on)

    go_on()
    return made
