"""Programs on a terminal of 80 columns, and what they show there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from typing import Any, Self

ROWS, COLUMNS = 24, 80


class Terminal:
    """A terminal with a command that runs on it; the end of ``with`` kills what still runs.

    Options are those of ``Popen``: a given stream takes the place of the terminal's.
    """

    def __init__(
        self, command: Sequence[str], size: tuple[int, int] = (ROWS, COLUMNS), **options: Any
    ) -> None:
        self.shown = ""
        self._unread = b""
        self._gone = False
        self._screen, its_end = pty.openpty()
        fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), its_end)
        options = {**streams, "env": {**os.environ, "TERM": "xterm"}, **options}
        self.process = subprocess.Popen(command, start_new_session=True, **options)
        os.close(its_end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        if not self._gone:
            self.hang_up()

    def expect(self, pattern: str, seconds: float, after: int = 0) -> int:
        """Wait until something like this has been shown, and return where it ends."""
        deadline = time.monotonic() + seconds
        while (found := re.compile(pattern).search(self.shown, after)) is None:
            assert self._read(deadline), f"no {pattern!r}: {self.shown}"
        return found.end()

    def hang_up(self) -> None:
        """Take the terminal away: a signal tells that where it controls a session."""
        self._gone = True
        os.close(self._screen)

    def type_in(self, text: str) -> None:
        """Press these keys."""
        os.write(self._screen, text.encode())

    def finish(self, seconds: float) -> int:
        """Wait until nobody has the terminal any more; return the command's exit status."""
        deadline = time.monotonic() + seconds
        while self._read(deadline):
            pass
        return self.process.wait(max(0.0, deadline - time.monotonic()))

    def _read(self, deadline: float) -> bool:
        """Read more of what is shown; return whether there was more in time."""
        if not select.select([self._screen], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        try:
            chunk = os.read(self._screen, 65536)
        except OSError:  # EIO: nobody has the other end any more
            return False
        self._unread += chunk
        self.shown = self._unread.decode(errors="ignore")
        return bool(chunk)

    @property
    def lines(self) -> list[str]:
        """All lines, those drawn over included, without colours and movements."""
        return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", self.shown))
