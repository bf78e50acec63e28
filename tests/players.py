"""Processes that answer commands, a line each: see ``tests/interop/player.py``."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from tests.releases import REPOSITORY

SOON = 60.0


class Player:
    """Such a process; ``idle``: it has answered."""

    def __init__(self, command: list[str], log: Path, folder: Path = REPOSITORY) -> None:
        self.log = log
        self.idle = False
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
            )

    def tell(self, command: str) -> None:
        """Send it a command."""
        assert self.process.stdin is not None
        self.idle = False
        self.process.stdin.write(command + "\n")

    def hears(self, timeout: float = SOON, done: Callable[[], object] = lambda: None) -> str:
        """Return its answer. One that is silent for so many seconds is killed.

        One that works on may take longer: ``done`` tells how much is done by now.
        """
        assert self.process.stdout is not None
        answered = threading.Event()

        def watch() -> None:
            before = done()
            while not answered.wait(timeout):
                now = done()
                if now == before:
                    self.process.kill()
                    return
                before = now

        watchdog = threading.Thread(target=watch, daemon=True)
        watchdog.start()
        try:
            line = self.process.stdout.readline()
        finally:
            answered.set()
            watchdog.join()
        if not line:
            code = self.process.wait()
            told = self.log.read_text()
            raise RuntimeError(f"no answer within {timeout:g} s, exit {code}: {told}")
        self.idle = True
        return line.strip()

    def ask(self, command: str, timeout: float = SOON) -> str:
        """Send it a command, and return its answer."""
        self.tell(command)
        return self.hears(timeout)

    def close(self) -> None:
        """End it: by the end of its commands, or by force if it is busy with one."""
        if not self.idle:
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self.process.wait(SOON)
