"""The worker processes, as the director sees them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import zklock
from zklock._ground.clock import clock
from zklock.testing.demo import worker
from zklock.testing.demo.events import Event
from zklock.testing.demo.log import Log

_ERROR_LINES = 15


class Player:
    """One worker process. What it reports goes to the log; its end is the event ``ended``."""

    def __init__(
        self, log: Log, name: str, arguments: list[str], module: str = worker.__name__
    ) -> None:
        self.name = name
        self._log = log
        self._mark = 0  # expect() ignores what is before this place in the log
        self._seen: dict[str, int] = {}
        self._expected_end = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        roots = [str(Path(zklock.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # A group of its own: Ctrl-C goes to the director only, which ends its workers. If the
            # director is gone while the group is stopped, the kernel sends the group a hang-up.
            process_group=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))},
        )
        self._reader = threading.Thread(target=self._read, name=f"demo-{name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, do: str, **command: Any) -> None:
        """Give it a command; ``expect`` then looks only at what comes after the command.

        If the process has ended meanwhile, ``expect`` raises ``Interrupted``.
        """
        assert self._process.stdin is not None
        self._mark = self._log.count()
        self._seen.clear()
        try:
            self._process.stdin.write(json.dumps({"do": do, **command}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._log.fail(f"{self.name} takes no commands any more")

    def expect(self, what: str, timeout: float) -> Event:
        """Wait for its next event of this kind since the last command.

        Raises ``Interrupted`` in the same cases as ``Log.wait``.
        """

        def find(events: list[Event]) -> Event | None:
            for at in range(self._seen.get(what, self._mark), len(events)):
                self._seen[what] = at + 1
                if (events[at].who, events[at].what) == (self.name, what):
                    return events[at]
            return None

        return self._log.wait(find, timeout, f"{self.name}: {what}")

    def quit(self) -> None:
        """Tell it to end."""
        self._expected_end = True
        self.send("quit")

    def kill(self) -> float:
        """End it with SIGKILL; return the time just before that."""
        self._expected_end = True
        at = clock()
        self._process.kill()
        return at

    def pause(self) -> float:
        """Stop it with SIGSTOP; return the time when all of it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return clock()

    def resume(self) -> float:
        """Let it go on; return the time just before that."""
        at = clock()
        self._process.send_signal(signal.SIGCONT)
        return at

    def close(self) -> None:
        """Make sure that it is gone. May be called twice."""
        self.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue  # it never read the last command

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._log.add(Event.from_json(line))
            except ValueError as error:
                if line.endswith(b"\n"):  # else it was killed in the middle of a line
                    self._log.fail(f"{self.name} reported what cannot be understood: {error}")
        code = self._process.wait()
        self._log.add(Event(clock(), 0, self.name, "ended", {"code": code}))
        if not self._expected_end:
            self._log.fail(f"{self.name} ended, with {_end(code)}{self._last_words()}")

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()[-_ERROR_LINES:]
        return "".join(f"\n  {line}" for line in lines)


def _end(code: int) -> str:
    return f"exit status {code}" if code >= 0 else signal.Signals(-code).name
