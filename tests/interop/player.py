"""A process that holds locks of zklock and kazoo when it is told to: ``player HOSTS``.

``Contender.java`` does the same with Curator's. Says "ready" when it is connected, then answers
commands, a line each:

``acquire NAME RECIPE PATH MILLISECONDS``
    "granted" and the path of the node, or "refused" after so many milliseconds. NAME is for the
    release. Everything that is held is held by the main thread.
``release NAME``
    "released".
``downgrade NAME``
    Turns a held write lock into a read lock: "granted" and the path of its node.
``token NAME`` (Curator's only)
    The fencing token.
``leads NAME`` (Curator's only)
    Whether a latch that was granted says that it leads: "true" or "false".
``participants NAME`` (Curator's only)
    The ids of those who stand in the election of a latch, with commas between them.
``contend RECIPE,… PATH FOLDER COUNT MICROSECONDS``
    Acquires, holds for so many microseconds, and releases COUNT times, with the recipes in turn.
    For every hold it appends to FOLDER/ledger, while it still holds: kind, number of the node,
    nanoseconds of the monotonic clock (which all processes of the machine share) at which it
    entered and left, and who it is. "done" and COUNT.

RECIPE may end with ``=N``, for the limit of a semaphore or the id of a latch, and kazoo's with
``+``: then it is given the patterns of Curator's names. zklock's may end with ``@kazoo``: then it
writes kazoo's names. Any error ends the process with a
traceback.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from kazoo.recipe import lock as kazoo_recipes

import zklock
from tests.contract.support import kazoo_client

DEADLINE = 60.0
WHO = f"python-{os.getpid()}"
KINDS = {"Lock": "exclusive", "ReadLock": "read", "WriteLock": "write", "Semaphore": "lease"}
PATTERNS = {
    "Lock": ["-lock-"],
    "ReadLock": ["-__WRIT__"],
    "WriteLock": ["-__READ__", "-__WRIT__"],
}


class Recipe:
    """A recipe of either library on one path."""

    def __init__(self, clients: dict[str, Any], text: str, path: str) -> None:
        self.library, _, rest = text.partition(".")
        plain, _, limit = rest.partition("=")
        name, _, naming = plain.removesuffix("+").partition("@")
        self.kind = KINDS[name]
        client, options = clients[self.library], dict[str, Any]()
        if self.library == "zklock":
            if limit:
                options["limit"] = int(limit)
            if naming:
                options["naming"] = naming
            self.lock = getattr(zklock, name)(client, path, **options)
        else:
            if limit:
                options["max_leases"] = int(limit)
            if plain.endswith("+"):
                options["extra_lock_patterns"] = PATTERNS[name]
            self.lock = getattr(kazoo_recipes, name)(client, path, **options)

    def acquire(self, seconds: float) -> bool:
        if self.library == "zklock":
            return self.lock.acquire(timeout=seconds) is not None
        if seconds:
            return bool(self.lock.acquire(timeout=seconds))
        return bool(self.lock.acquire(blocking=False))

    @property
    def node(self) -> str:
        if self.library == "zklock":
            self.lock.grant.check()
            return str(self.lock.grant.path)
        if self.kind == "lease":
            return str(self.lock.create_path)
        return f"{self.lock.path}/{self.lock.node}"

    def release(self) -> None:
        self.lock.release()


def contend(recipes: list[Recipe], folder: Path, count: int, hold: float) -> str:
    """Acquire and release so many times; return what to answer."""
    with (folder / "ledger").open("a", buffering=1) as ledger:
        for turn in range(count):
            recipe = recipes[turn % len(recipes)]
            if not recipe.acquire(DEADLINE):
                raise RuntimeError("not granted in time")
            entered = time.monotonic_ns()
            if hold:
                time.sleep(hold)
            sequence = recipe.node[-10:]
            left = time.monotonic_ns()
            ledger.write(f"{recipe.kind} {sequence} {entered} {left} {WHO}\n")
            recipe.release()
    return f"done {count}"


def main(hosts: str) -> None:
    held: dict[str, Recipe] = {}
    client = zklock.connect(hosts, timeout=10.0)
    with kazoo_client(hosts, timeout=10.0) as kazoo:
        clients = {"zklock": client, "kazoo": kazoo}
        print("ready", flush=True)
        for line in sys.stdin:
            match line.split():
                case ["downgrade", name]:
                    held[name].lock.downgrade()
                    answer = f"granted {held[name].node}"
                case ["acquire", name, text, path, milliseconds]:
                    recipe = Recipe(clients, text, path)
                    granted = recipe.acquire(int(milliseconds) / 1000)
                    if granted:
                        held[name] = recipe
                    answer = f"granted {recipe.node}" if granted else "refused"
                case ["release", name]:
                    held.pop(name).release()
                    answer = "released"
                case ["contend", texts, path, folder, count, microseconds]:
                    recipes = [Recipe(clients, text, path) for text in texts.split(",")]
                    answer = contend(recipes, Path(folder), int(count), int(microseconds) / 1e6)
                case _:
                    raise ValueError(f"no such command: {line}")
            print(answer, flush=True)
    client.stop()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
