"""One who wants a lock: ``python contender.py USE PLACE``, in the environment of the library.

Reads commands, one a line: ``enter KEY NAME`` (a thread or a task of its own enters the lock of
that name), ``plain KEY NAME`` (the same, without any option), ``again KEY NAME`` (the same, by the
object that was made last), ``leave KEY``. Writes what happens, one JSON object a line, with the
time of CLOCK_MONOTONIC, which all processes share. A holder that is inside looks twenty times a
second whether it still holds, and writes ``works`` for as long as it has no reason to doubt it.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

from tests.compare.locks import Use, uses

PAUSE = 0.05
INTERRUPT = "KeyboardInterrupt in the main thread"
_writing = threading.Lock()


def write(event: str, key: str, at: float | None = None, **more: Any) -> None:
    """Write one line; ``at`` is now if it is not given."""
    line = json.dumps({"event": event, "key": key, "at": at or time.monotonic(), **more})
    with _writing:
        print(line, flush=True)


async def answer(found: Any) -> Any:
    """Return what an adapter has found, by a coroutine or without one."""
    return await found if inspect.isawaitable(found) else found


class Block:
    """The body of one ``with``."""

    def __init__(self, use: Use, key: str, lock: Any) -> None:
        self.use = use
        self.key = key
        self.lock = lock
        self.leaves = threading.Event()
        self.inside = False

    def entered(self, token: Any) -> None:
        self.inside = True
        write("inside", self.key, token=token)

    def raised(self, error: BaseException) -> None:
        """Write what the library raised: instead of the block, or at its end."""
        write(
            "left" if self.inside else "refused",
            self.key,
            raised=type(error).__name__,
            text=str(error),
        )

    def looked(self, began: float, held: bool) -> None:
        if held:
            write("works", self.key, began)
        else:
            write("told", self.key, by=self.use.asks)

    def failed(self, error: Exception) -> None:
        write("told", self.key, by=f"{self.use.asks} ({type(error).__name__})")

    def run(self) -> None:
        """Be inside on a thread."""
        try:
            with self.lock as entered:
                self.entered(self.use.token(self.lock, entered))
                while not self.leaves.is_set():
                    began = time.monotonic()
                    try:
                        self.looked(began, self.use.held(self.lock, entered))
                    except Exception as error:
                        self.failed(error)
                    time.sleep(PAUSE)
            write("left", self.key, raised="")
        except BaseException as error:
            self.raised(error)

    async def task(self) -> None:
        """Be inside in a task."""
        try:
            async with self.lock as entered:
                self.entered(await answer(self.use.token(self.lock, entered)))
                while not self.leaves.is_set():
                    began = time.monotonic()
                    try:
                        self.looked(began, await answer(self.use.held(self.lock, entered)))
                    except Exception as error:
                        self.failed(error)
                    await asyncio.sleep(PAUSE)
            write("left", self.key, raised="")
        except BaseException as error:
            self.raised(error)


def begin(use: Use) -> Callable[[Block], object]:
    """Connect; return what starts a block."""
    use.lib, *_ = map(importlib.import_module, use.modules)
    if not use.asynchronous:
        use.connect()
        return lambda block: threading.Thread(target=block.run, daemon=True).start()
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(use.connect(), loop).result()
    return lambda block: asyncio.run_coroutine_threadsafe(block.task(), loop)


def main(name: str, place: str) -> None:
    """Do what the lines say, on the main thread: an interrupt of it is seen."""
    commands: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=lambda: list(map(commands.put, sys.stdin)), daemon=True)
    use = uses()[name](place, lambda by: write("told", "", by=by))
    start = begin(use)
    blocks: dict[str, Block] = {}
    last: Any = None
    reader.start()
    write("ready", "")
    while True:
        try:
            command, key, *names = commands.get(timeout=PAUSE).split()
            if command == "leave":
                blocks[key].leaves.set()
                continue
            if command != "again":
                last = (use.plain if command == "plain" else use.lock)(*names)
            blocks[key] = Block(use, key, last)
            start(blocks[key])
        except queue.Empty:
            pass
        except KeyboardInterrupt:
            write("told", "", by=INTERRUPT)


if __name__ == "__main__":
    logging.disable()
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
