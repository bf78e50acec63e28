"""Clients of other libraries that want the workers' locks: kazoo, and Curator if it is there.

Each takes one lock after the other for a moment, and prefers those that workers keep. The servers'
log tells whether anybody was granted a lock before its turn, and whether a keeper had them wait.
After any trouble, a stranger ends its session and comes back with another: their recipes may leave
a znode behind.

Each notes ``stranger`` (``who``, ``lock``) when it was granted.
"""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.chaos.history import History
from tests.interop.curator import Curator, CuratorUnavailable
from tests.players import Player

log = logging.getLogger("chaos")

WAIT = 30_000
"""Milliseconds for which a stranger waits for a lock."""
HOLD = 0.02
"""Seconds for which it holds one, at most."""
PAUSE = 0.7
"""Seconds between two locks, on the average."""
START = 60.0
"""Seconds that a process may take to start, or to answer."""


@contextlib.contextmanager
def strangers(
    hosts: str, locks: Sequence[str], favourites: Sequence[str], seed: str, history: History
) -> Iterator[None]:
    """Have strangers on a thread each, meanwhile; half of their locks are of the favourites."""
    wanted = [*locks, *list(favourites) * (len(locks) // max(1, len(favourites)))]
    kinds = {"kazoo": ([sys.executable, "-m", "tests.interop.player"], "kazoo.Lock+")}
    over = threading.Event()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            kinds["Curator"] = Curator.find().contender(folder), "mutex-every-name"
        except CuratorUnavailable as missing:
            log.warning("no strangers of Curator: %s", missing)
        for name, (command, recipe) in kinds.items():

            def live(name: str = name, command: list[str] = command, recipe: str = recipe) -> None:
                dice = random.Random(f"{seed}/{name}")
                while not over.is_set():
                    stranger = Player([*command, hosts], folder / f"{name}.log")
                    try:
                        stranger.hears(START)
                        while not over.wait(dice.expovariate(1 / PAUSE)):
                            lock = dice.choice(wanted)
                            said = stranger.ask(f"acquire it {recipe} {lock} {WAIT}", START)
                            if not said.startswith("granted"):
                                break  # in trouble
                            history.note("stranger", who=name, lock=lock)
                            over.wait(dice.uniform(0, HOLD))
                            stranger.ask("release it", START)
                    except (OSError, RuntimeError) as error:
                        log.info("a stranger of %s starts anew: %r", name, error)
                    finally:
                        stranger.process.kill()  # the servers end its session
                        with contextlib.suppress(OSError):
                            stranger.close()

            thread = threading.Thread(target=live, name=name)
            thread.start()
            stack.callback(thread.join)
        stack.callback(over.set)
        yield
