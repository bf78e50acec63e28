"""A client without zklock, which finds out whether the servers keep what they have confirmed.

A server that is restarted while it catches up may lose confirmed transactions (docs/guarantees.md,
"What it assumes"). If it then leads, the whole ensemble has lost them: locks and stores, too. Then
nothing that zklock promises can be judged, and the witness is who says so: nobody else writes to
its znode, so that each version that it is told of is higher than those before.

It notes ``forgotten`` (``confirmed``: the version that the servers had confirmed; ``given``: the
one that they gave to a later write).
"""

from __future__ import annotations

import threading
from typing import Self

from kazoo import exceptions
from kazoo.client import KazooClient

from tests.chaos.history import History

PAUSE = 0.02
"""Seconds from an answer to the next write."""

ANSWER_SECONDS = 5.0


class Witness:
    """Writes to a znode of its own from ``with`` on to its end, on a thread of its own."""

    def __init__(self, hosts: str, path: str, history: History) -> None:
        self.confirmed = -1
        """The version that was confirmed last; -1: none yet."""
        self._path = path
        self._history = history
        self._client = KazooClient(hosts, timeout=10.0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="witness")

    def __enter__(self) -> Self:
        self._client.start(30.0)
        self._client.ensure_path(self._path)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        self._client.stop()
        self._client.close()

    def _run(self) -> None:
        while not self._over.wait(PAUSE):
            try:
                given = self._client.set_async(self._path, b"").get(timeout=ANSWER_SECONDS).version
            except exceptions.NoNodeError:
                self._forgotten(-1)
                return
            except (exceptions.KazooException, self._client.handler.timeout_exception):
                continue
            else:
                if given <= self.confirmed:
                    self._forgotten(given)
                self.confirmed = given

    def _forgotten(self, given: int) -> None:
        self._history.note("forgotten", confirmed=self.confirmed, given=given)
