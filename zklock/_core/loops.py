"""Which threads must not wait for answers: the threads that deliver them."""

from __future__ import annotations

import inspect
import threading

from zklock.errors import WouldDeadlock


def check_thread(what: str) -> None:
    """Raise ``WouldDeadlock`` on a thread on which kazoo delivers answers, watches or states."""
    if getattr(_checked, "fine", False):
        return
    frame = inspect.currentframe()
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in _KAZOO_LOOPS:
            raise WouldDeadlock(
                f"{what} was called on a kazoo thread (a watch, listener or completion) and would "
                "deadlock: only this thread can deliver the answer; call it on another thread, "
                "such as one started with client.handler.spawn()"
            )
        frame = frame.f_back
    _checked.fine = True  # kazoo's loops are at the bottom of their threads: once fine, always fine


_checked = threading.local()
_KAZOO_LOOPS = {
    ("kazoo.protocol.connection", "zk_loop"),
    ("kazoo.handlers.threading", "_thread_worker"),
}
