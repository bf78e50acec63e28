"""A worker process of the demo.

``python -m zklock.testing.demo.worker NAME HOSTS TIMEOUT PATH LEDGER`` takes commands, one JSON
object a line, on its standard input, and reports events on its standard output. ``{"do":
"work"}`` takes the lock ``turns`` times: wait for it, read the ledger's newest number, work for
``seconds``, append the next number, release. With ``gated`` the work of the first turn goes on
until ``{"do": "go"}``. With ``late`` it writes although the lock was lost, like a program that
was paused between its last check and its write. ``{"do": "quit"}`` ends it in order. If its input
ends without that, it ends at once.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

import zklock
from zklock._ground.clock import clock
from zklock.testing.demo.events import Event
from zklock.testing.demo.ledger import Ledger

LOOK_EVERY = 0.01
"""Seconds between two looks at ``held``."""

REPORT_EVERY = 0.1
"""Seconds between two reports of looks that found the lock held."""

_CALLBACK_SECONDS = 10.0


class Worker:
    """Works on commands until it is told to quit."""

    def __init__(self, name: str, hosts: str, timeout: float, path: str, ledger: Path) -> None:
        self._name = name
        self._act = 0
        self._reported = 0.0  # when a look was last reported
        self._ledger = Ledger(ledger)
        self._saying = threading.Lock()
        self._told = threading.Event()
        self._commands: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._client = zklock.connect(hosts, timeout)
        self._lock = zklock.Lock(
            self._client,
            path,
            identity=name,
            on_lost=self._lost,
            on_suspended=self._suspended,
        )

    def run(self) -> None:
        """Work on commands until ``quit``."""
        session, _ = self._client.client_id
        timeout = self._client.handler.session_timeout
        self._say("ready", pid=os.getpid(), session=f"{session:#x}", session_timeout=timeout)
        while True:
            command = self._commands.get()
            match command["do"]:
                case "quit":
                    break
                case "work":
                    self._act = command["act"]
                    for turn in range(command["turns"]):
                        gated = turn == 0 and command["gated"]
                        self._turn(None if gated else command["seconds"], command["late"])
        self._client.stop()
        self._client.close()

    def _turn(self, seconds: float | None, late: bool) -> None:
        self._told.clear()
        asked = clock()
        self._say("asks", at=asked)
        grant = self._lock.acquire()
        assert grant is not None
        token, granted = str(grant.token), clock()
        self._say("granted", at=granted, token=token, node=grant.path, waited=granted - asked)
        number = 0
        try:
            number = self._ledger.claim(grant.token) + 1
            self._say("claimed", token=token, last=number - 1)
            if self._work(grant, seconds) or late:
                self._ledger.append(grant.token, number, self._name)
                self._say("wrote", token=token, number=number)
        except zklock.StaleToken as stale:
            self._say("refused", token=token, number=number, highest=str(stale.highest))
        released = clock()
        try:
            self._lock.release()
        except zklock.LockLost:
            self._told.wait(_CALLBACK_SECONDS)
        else:
            self._say("released", at=released, token=token)

    def _work(self, grant: zklock.Grant, seconds: float | None) -> bool:
        """Work, and keep checking that the lock is held; return whether it was, to the end."""
        began = self._reported = clock()
        finished = False
        while self._look(grant, report=finished):
            if finished:
                return True
            finished = self._finished(began, seconds)
        self._look(grant)  # again: a look that began before a pause has the time from before it
        self._told.wait(_CALLBACK_SECONDS)
        return False

    def _look(self, grant: zklock.Grant, *, report: bool = False) -> bool:
        at = clock()
        held = grant.held
        if report or not held or at - self._reported >= REPORT_EVERY:  # so always after a pause
            self._say("look", at=at, token=str(grant.token), held=held)
            self._reported = at
        return held

    def _finished(self, began: float, seconds: float | None) -> bool:
        if seconds is not None:
            time.sleep(LOOK_EVERY)
            return clock() >= began + seconds
        try:
            return bool(self._commands.get(timeout=LOOK_EVERY)["do"] == "go")
        except queue.Empty:
            return False

    def _suspended(self, grant: zklock.Grant) -> None:
        self._say("suspended", token=str(grant.token), remaining=grant.remaining())

    def _lost(self, loss: zklock.Loss) -> None:
        at, token = clock(), str(loss.grant.token)
        self._say(
            "lost",
            at=at,
            token=token,
            reason=loss.reason.name,
            noticed=loss.noticed,
            lease_end=loss.lease_end,
        )
        self._told.set()

    def _say(self, what: str, *, at: float | None = None, **data: Any) -> None:
        event = Event(clock() if at is None else at, self._act, self._name, what, data)
        with self._saying:
            sys.stdout.write(event.to_json() + "\n")
            sys.stdout.flush()

    def _listen(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            self._commands.put(command)
            if command["do"] == "quit":
                return
        os._exit(os.EX_UNAVAILABLE)  # nobody is left to report to; the main thread may be waiting


def main(arguments: list[str]) -> None:
    """Run a worker."""
    name, hosts, timeout, path, ledger = arguments
    Worker(name, hosts, float(timeout), path, Path(ledger)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
