"""Applications for the tests of background work; the environment says where ZooKeeper is.

``plain`` is for gunicorn, with ``served_conf``; ``fast`` is for uvicorn.
"""

from __future__ import annotations

import asyncio
import os

from fastapi import FastAPI

import zklock
from tests.contract.contrib.records import note
from zklock import aio
from zklock.contrib import asgi, wsgi

HOSTS = os.environ["SERVED_HOSTS"]
PATH = os.environ["SERVED_PATH"]
RECORD = os.environ["SERVED_RECORD"]


def work(leadership: zklock.Leadership) -> None:
    """Work until told to stop."""
    while not leadership.should_stop.wait(0.02):
        if leadership.held:
            note(RECORD, leadership.token)


async def work_async(leadership: aio.Leadership) -> None:
    """Work until cancelled, or told to stop."""
    while not leadership.should_stop.is_set():
        if leadership.held:
            note(RECORD, leadership.token)
        await asyncio.sleep(0.02)


background = wsgi.Background(HOSTS, PATH, work, timeout=4.0)
tasks = asgi.Background(HOSTS, PATH, work_async, timeout=4.0)

plain = background
fast = FastAPI(lifespan=tasks.lifespan)
fast.mount("/zklock", tasks)
