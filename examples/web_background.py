"""A FastAPI application with three worker processes: one does the background work.

The worker that does it is killed. uvicorn starts a new worker, and one of the three goes on.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from zklock import aio
from zklock.contrib.asgi import Background

HOSTS = os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")


async def work(leadership: aio.Leadership) -> None:
    """Do what only one process may do; it is cancelled when the leadership is lost."""
    while not leadership.should_stop.is_set():
        leadership.check()
        await asyncio.sleep(0.1)  # send the mails, move the files … with leadership.token


background = Background(HOSTS, "/examples/web", work, timeout=4.0)
app = FastAPI(lifespan=background.lifespan)
app.mount("/zklock", background)


def leader(port: int, other_than: str | None) -> str:
    """Ask the service who does the work, until it is somebody else."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/zklock/leader") as answer:
                told: dict[str, Any] = json.load(answer)
        except OSError:
            told = {"leader": None}
        if told["leader"] not in {None, other_than}:
            return str(told["leader"])
        time.sleep(0.1)
    raise TimeoutError("nobody works: look at what uvicorn has logged")


def main() -> None:
    """Serve, and kill the worker that does the work."""
    hosts = sys.argv[1] if len(sys.argv) > 1 else HOSTS
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    service = subprocess.Popen(
        [
            *(sys.executable, "-m", "uvicorn", "web_background:app", "--workers", "3"),
            *("--port", str(port), "--log-level", "error"),
        ],
        cwd=Path(__file__).parent,
        env={**os.environ, "ZKLOCK_HOSTS": hosts},
    )
    try:
        first = leader(port, None)
        print("one works")
        os.kill(int(first.split(":")[-2]), signal.SIGKILL)
        print("it is killed")
        print("another one works:", leader(port, first) != first)
    finally:
        service.terminate()
        service.wait()


if __name__ == "__main__":
    main()
