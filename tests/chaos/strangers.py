"""Clients of other libraries that want the workers' locks: kazoo, and Curator if it is there.

Each takes one lock after the other for a moment, and prefers those that workers keep. The servers'
log tells whether anybody was granted a lock before its turn, and whether a keeper had them wait.
After any trouble, a stranger ends its session and comes back with another: their recipes may leave
a znode behind.

Each notes ``stranger`` (``lock``, ``waited`` in seconds) when it was granted.
"""

from __future__ import annotations

import contextlib
import logging
import random
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from kazoo.client import KazooClient

from tests.chaos.history import History
from tests.interop.curator import Curator, CuratorUnavailable
from zklock._ground.clock import clock

log = logging.getLogger("chaos")

WAIT = 30.0
"""Seconds for which a stranger waits for a lock."""
HOLD = 0.02
"""Seconds for which it holds one, at most."""
PAUSE = 0.7
"""Seconds between two locks, on the average."""
START = 60.0
"""Seconds that a process may take to start."""


class ByKazoo:
    """kazoo's Lock, which looks out for the names that zklock writes; any error is its end."""

    def __init__(self, hosts: str, timeout: float) -> None:
        self._client = KazooClient(hosts, timeout=timeout)
        self._client.start(WAIT)

    def take(self, lock: str, hold: Callable[[], None]) -> None:
        """Acquire a lock, call ``hold`` if it is granted in time, release it."""
        mine = self._client.Lock(lock, "stranger", extra_lock_patterns=["-lock-"])
        if not mine.acquire(timeout=WAIT):
            raise TimeoutError(f"{lock} was not granted")
        hold()
        mine.release()

    def close(self) -> None:
        """Stop the client."""
        self._client.stop()
        self._client.close()


class ByCurator:
    """Curator's InterProcessMutex, in a process: see ``tests/interop/player.py``."""

    def __init__(self, command: Sequence[str], hosts: str) -> None:
        self._process = subprocess.Popen(
            [*command, hosts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        try:
            self._hear("ready", START)
        except BaseException:
            self.close()
            raise

    def take(self, lock: str, hold: Callable[[], None]) -> None:
        """As kazoo's."""
        self._ask(f"acquire it mutex-every-name {lock} {int(WAIT * 1000)}", "granted")
        hold()
        self._ask("release it", "released")

    def _ask(self, command: str, answer: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._hear(answer, 2 * WAIT)

    def _hear(self, answer: str, limit: float) -> None:
        assert self._process.stdout is not None
        watch = threading.Timer(limit, self._process.kill)
        watch.start()
        heard = self._process.stdout.readline()
        watch.cancel()
        if not heard.startswith(answer):
            raise RuntimeError(f"it says {heard!r} and not {answer!r}")

    def close(self) -> None:
        """End the process; the servers end its session."""
        self._process.kill()
        self._process.communicate()


class Strangers:
    """Strangers on a thread each, from ``with`` on to its end."""

    def __init__(
        self,
        hosts: str,
        locks: Sequence[str],
        favourites: Sequence[str],
        seed: str,
        timeout: float,
        history: History,
    ) -> None:
        self._hosts = hosts
        self._locks = [*locks, *list(favourites) * (len(locks) // max(1, len(favourites)))]
        self._seed = seed
        self._timeout = timeout
        self._history = history
        self._over = threading.Event()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        makers: dict[str, Callable[[], ByKazoo | ByCurator]] = {
            "kazoo": lambda: ByKazoo(self._hosts, self._timeout)
        }
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            try:
                command = Curator.find().contender(folder)
            except CuratorUnavailable as missing:
                log.warning("no strangers of Curator: %s", missing)
            else:
                makers["Curator"] = lambda: ByCurator(command, self._hosts)
            for name, make in makers.items():
                thread = threading.Thread(target=self._run, args=(name, make), name=name)
                thread.start()
                stack.callback(thread.join)
            stack.callback(self._over.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _holding(self, name: str, lock: str, seconds: float) -> Callable[[], None]:
        asked = clock()

        def hold() -> None:
            self._history.note("stranger", who=name, lock=lock, waited=clock() - asked)
            self._over.wait(seconds)

        return hold

    def _run(self, name: str, make: Callable[[], ByKazoo | ByCurator]) -> None:
        dice = random.Random(f"{self._seed}/{name}")
        with ExitStack() as stack:
            client: ByKazoo | ByCurator | None = None
            while not self._over.wait(dice.expovariate(1 / PAUSE)):
                lock = dice.choice(self._locks)
                try:
                    if client is None:
                        client = make()
                        stack.callback(client.close)
                    client.take(lock, self._holding(name, lock, dice.uniform(0, HOLD)))
                except Exception as error:
                    log.info("a stranger of %s starts anew: %r", name, error)
                    with contextlib.suppress(Exception):
                        stack.close()
                    client = None
