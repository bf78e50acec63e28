"""Two processes of Celery's beat: one sends; it is killed, and the other one sends."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from celery import Celery

FOLDER = os.environ.get("EXAMPLE_FOLDER", "")  # the broker: a folder, so that no server is needed

app = Celery("celery_beats")
app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={
        "data_folder_in": FOLDER,
        "data_folder_out": FOLDER,
        "control_folder": FOLDER + "/control",
    },
    beat_schedule={"report": {"task": "report", "schedule": 0.5}},
    zklock_hosts=os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181"),
    zklock_path="/examples/beat",
    zklock_timeout=4.0,
)


def sender(folder: Path, other_than: int | None) -> int:
    """Wait until somebody else has sent; return its process."""
    for _ in range(1200):
        for message in folder.glob("*.msg"):
            try:
                origin = json.loads(message.read_text())["headers"]["origin"]
            except ValueError:
                continue  # it is being written
            pid = int(origin.partition("@")[0].removeprefix("gen"))
            if pid != other_than:
                return pid
        time.sleep(0.05)
    raise TimeoutError("nothing was sent: look at what beat has logged")


def main() -> None:
    """Run two beats, and kill the one that sends."""
    hosts = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "celery", "-A", "celery_beats", "-q", "beat", "--pidfile="),
            *("-S", "zklock.contrib.celery:LeaderScheduler", "-l", "ERROR"),
        ]
        environment = {**os.environ, "EXAMPLE_FOLDER": folder, "ZKLOCK_HOSTS": hosts}
        beats = [
            subprocess.Popen(command, cwd=Path(__file__).parent, env=environment) for _ in range(2)
        ]
        first = sender(Path(folder), None)
        print("one beat sends")
        next(beat for beat in beats if beat.pid == first).kill()
        print("it is killed")
        print("the other one sends:", sender(Path(folder), first) != first)
        for beat in beats:
            beat.kill()
            beat.wait()


if __name__ == "__main__":
    main()
