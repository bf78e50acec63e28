"""Contenders as processes, and what they have said."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

Event: TypeAlias = dict[str, Any]

ROOT = Path(__file__).parents[2]
START = 60.0


class Contender(AbstractContextManager["Contender"]):
    """A process of its own that uses a lock; ``told`` is what it has written, in order."""

    def __init__(self, python: Path, use: str, place: str) -> None:
        self._events: list[Event] = []
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [python, Path(__file__).with_name("contender.py"), use, place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        if self.wait("ready", "", START) is None:
            self.__exit__()
            raise OSError(f"{use} did not start: {''.join(self._errors)[-2000:]}")

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._events.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._events.append({"event": "ended", "key": "", "at": 0.0})
            self._news.notify_all()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def _say(self, *words: str) -> None:
        assert self._process.stdin is not None
        print(*words, file=self._process.stdin, flush=True)

    def enter(self, key: str, name: str, how: str = "enter") -> None:
        """Let a thread or a task enter; ``plain`` and ``again``: see contender.py."""
        self._say(how, key, name)

    def leave(self, key: str) -> None:
        self._say("leave", key)

    def kill(self) -> None:
        self._process.kill()

    def pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def events(self, *kinds: str, key: str | None = None, since: float = 0.0) -> list[Event]:
        with self._news:
            return [
                each
                for each in self._events
                if each["event"] in kinds and key in {None, each["key"]} and each["at"] >= since
            ]

    def wait(self, kind: str, key: str, seconds: float, *others: str) -> Event | None:
        """Return the first event of the kind, or of other kinds; ``None`` after so many seconds."""
        found: list[Event] = []

        def look() -> bool:
            found[:] = self.events(kind, *others, key=key)
            return bool(found) or bool(self.events("ended"))

        with self._news:
            self._news.wait_for(look, seconds)
        return found[0] if found else None


class Proxy(AbstractContextManager["Proxy"]):
    """Passes bytes on to an address, on a port of its own, until its connections are cut."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.hosts = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __exit__(self, *exc: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                try:
                    server = socket.create_connection(self._address)
                except OSError:
                    client.close()
                    continue
                self._open += client, server
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End all connections. New ones are made as before."""
        while self._open:
            with contextlib.suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)
