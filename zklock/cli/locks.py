"""Locks as ZooKeeper has them: who holds, who waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError

import zklock
from zklock import names, permits

_BATCH = 256
_SEMAPHORE = {permits.locks("").strip("/"), permits.leases("").strip("/")}
_OWN = "/zookeeper"  # ZooKeeper's own nodes


@dataclass(frozen=True, slots=True)
class Place:
    """A contender's place in the queue."""

    contender: zklock.Contender

    @property
    def session(self) -> str | None:
        """The session's id, as ZooKeeper writes it; ``None`` if it may not be seen."""
        number = self.contender.session_id
        return None if number is None else f"{number:#x}"

    def to_json(self) -> dict[str, Any]:
        """Return what there is to know, for ``json.dumps``."""
        it = self.contender
        return {
            "holds": it.holds,
            "token": None if it.token is None else str(it.token),
            "sequence": it.sequence,
            "identity": it.identity,
            "session": self.session,
            "node": it.path,
        }


def places(client: KazooClient, path: str) -> list[Place]:
    """Return the queue of a lock or a semaphore, as the leader knows it."""
    return look(client, path)[1]


def look(client: KazooClient, path: str) -> tuple[zklock.Lock | zklock.Semaphore, list[Place]]:
    """Return what is at the path, a lock if that cannot be told, and its queue."""
    lock: zklock.Lock | zklock.Semaphore = zklock.Lock(client, path)
    contenders = lock.contenders()
    if not contenders and client.exists(permits.leases(path)):
        lock = zklock.Semaphore(client, path, limit=None)
        contenders = lock.contenders()
    return lock, [Place(contender) for contender in contenders]


def below(client: KazooClient, root: str, timeout: float) -> Iterator[str]:
    """Yield the paths of the locks at and below ``root``: nodes that have contenders.

    Of a semaphore, its own path, in use or not. What may not be listed is passed over. ``NoAnswer``
    if an answer takes longer than ``timeout`` seconds.
    """
    level: Sequence[str] = [root]
    while level:
        deeper = []
        for at in range(0, len(level), _BATCH):
            batch = level[at : at + _BATCH]
            asked = [client.get_children_async(path) for path in batch]
            for path, answer in zip(batch, asked, strict=True):
                try:
                    children = sorted(answer.get(timeout=timeout))
                except (NoNodeError, NoAuthError):
                    continue  # gone meanwhile, never there, or not for us
                except client.handler.timeout_exception as error:
                    raise zklock.NoAnswer(f"{path}: not listed within {timeout:g} s") from error
                if path != "/" and names.Queue(children).contenders:
                    yield path
                if set(children) >= _SEMAPHORE:
                    yield path
                    children = [child for child in children if child not in _SEMAPHORE]
                deeper += [
                    f"{path.rstrip('/')}/{child}"
                    for child in children
                    if names.parse(child) is None
                ]
        level = [path for path in deeper if path != _OWN]
