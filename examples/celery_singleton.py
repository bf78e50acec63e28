"""A Celery task that runs once at a time; its process is killed, and another one runs it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from celery import Celery, Task

from zklock.contrib.celery import singleton

FOLDER = Path(os.environ.get("EXAMPLE_FOLDER", "."))  # the broker: so that no server is needed

app = Celery("celery_singleton")
app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={
        "data_folder_in": str(FOLDER),
        "data_folder_out": str(FOLDER),
        "control_folder": str(FOLDER / "control"),
    },
    worker_prefetch_multiplier=1,
    zklock_hosts=os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181"),
    zklock_timeout=4.0,
)


@app.task(name="rebuild", bind=True, default_retry_delay=0.2, max_retries=None)  # type: ignore[untyped-decorator]
@singleton(lock="/examples/rebuild")
def rebuild(self: Task) -> None:
    """Say who runs, with which token, until told to end."""
    grant = self.request.zklock
    with (FOLDER / "runs").open("a") as runs:
        print(os.getpid(), grant.token, file=runs)
    while not (FOLDER / "enough").exists():
        grant.check()
        time.sleep(0.05)


def runs(folder: Path, count: int) -> list[list[str]]:
    """Wait until so many runs have begun; return the process and the token of each."""
    for _ in range(1200):
        file = folder / "runs"
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) >= count:
            return [line.split() for line in lines]
        time.sleep(0.05)
    raise TimeoutError("nothing runs: look at what the worker has logged")


def main() -> None:
    """Run a worker with two child processes, and kill the one that has the lock."""
    hosts = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "celery", "-A", "celery_singleton", "-q", "worker"),
            *("-P", "prefork", "-c", "2", "-l", "CRITICAL"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ]
        here = Path(__file__).parent
        environment = {**os.environ, "EXAMPLE_FOLDER": folder, "ZKLOCK_HOSTS": hosts}
        worker = subprocess.Popen(command, cwd=here, env={**environment, "C_FORCE_ROOT": "1"})
        send = "import celery_singleton as it; it.rebuild.delay(); it.rebuild.delay()"
        subprocess.run([sys.executable, "-c", send], cwd=here, env=environment, check=True)
        first = runs(Path(folder), 1)[0]
        print("one of two runs")
        os.kill(int(first[0]), signal.SIGKILL)
        print("its process is killed")
        second = runs(Path(folder), 2)[1]
        print("another one runs:", second[0] != first[0])
        print("its token is greater:", second[1] > first[1])
        (Path(folder) / "enough").touch()
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
