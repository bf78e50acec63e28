"""A Celery app for the tests of ``@singleton``; its broker is a Redis.

Each task notes in a file what it does: ``PID SESSION TOKEN WORD``, in one write. A worker makes a
file of its pid beside it, when a SIGTERM lets it end well.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, signals

from tests.contract.contrib.records import note
from tests.contract.support import SOON
from zklock.contrib.celery import current_grant, singleton

REDIS = os.environ["SINGLETONS_REDIS"]
PATH = os.environ["SINGLETONS_PATH"]
RECORD = Path(os.environ["SINGLETONS_RECORD"])

app = Celery("singletons", broker=REDIS, backend=REDIS)
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    zklock_hosts=os.environ["SINGLETONS_HOSTS"],
    zklock_timeout=float(os.environ["SINGLETONS_TIMEOUT"]),
)


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def ready(**_: Any) -> None:
    """Say that this worker is up."""
    RECORD.with_suffix(f".{os.getpid()}").touch()


STUBBORN: dict[str, Any] = {"default_retry_delay": 0.1, "max_retries": None}


@app.task(name="short", bind=True, **STUBBORN)  # type: ignore[untyped-decorator]
@singleton(lock=PATH, wait=0.1)
def short(self: Any) -> str:
    """Begin and end, with others on the way."""
    grant = self.request.zklock
    assert current_grant() is grant
    note(RECORD, grant.session_id, grant.token, "began")
    time.sleep(0.02)
    grant.check()
    note(RECORD, grant.session_id, grant.token, "ended")
    return str(grant.token)


@app.task(name="lasting", **STUBBORN)  # type: ignore[untyped-decorator]
@singleton(lock=lambda name: f"{PATH}/{name}")
def lasting(name: str) -> None:
    """Go on until a file tells to end, or an exception comes out of nowhere."""
    grant = current_grant()
    note(RECORD, grant.session_id, grant.token, "began")
    try:
        until = time.monotonic() + SOON
        while not RECORD.with_suffix(".end").exists() and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        note(RECORD, grant.session_id, grant.token, "unwound")
