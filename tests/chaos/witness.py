"""A client without zklock, which finds out whether the servers keep what they have confirmed.

A server that is restarted while it catches up may lose confirmed transactions (docs/guarantees.md,
"What it assumes"). If it then leads, the whole ensemble has lost them: locks and stores, too. Then
nothing that zklock promises can be judged, and the witness is who says so: nobody else writes to
its znode, so that each version that it is told of is higher than those before.

It notes ``forgotten`` (``confirmed``: the version that the servers had confirmed; ``given``: the
one that they gave to a later write).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from kazoo import exceptions
from kazoo.client import KazooClient

from tests.chaos.history import History

PAUSE = 0.02
"""Seconds from an answer to the next write."""

ANSWER_SECONDS = 5.0


@contextlib.contextmanager
def witness(hosts: str, path: str, history: History) -> Iterator[None]:
    """Have a thread write to a znode of its own meanwhile."""
    client, over = KazooClient(hosts, timeout=10.0), threading.Event()
    thread = threading.Thread(target=_watch, args=(client, path, history, over), name="witness")
    client.start(30.0)
    client.ensure_path(path)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        client.stop()
        client.close()


def _watch(client: KazooClient, path: str, history: History, over: threading.Event) -> None:
    confirmed = -1
    while not over.wait(PAUSE):
        try:
            given = client.set_async(path, b"").get(timeout=ANSWER_SECONDS).version
        except exceptions.NoNodeError:
            history.note("forgotten", confirmed=confirmed, given=-1)
            return
        except (exceptions.KazooException, client.handler.timeout_exception):
            continue
        if given <= confirmed:
            history.note("forgotten", confirmed=confirmed, given=given)
        confirmed = given
