#!/usr/bin/env bash
# The guess: luigid's `--state-path` keeps what the scheduler knows, and a worker that goes on pinging a scheduler that
#   was started anew tells it what it runs. So each task runs on one worker at a time, whatever happens to luigid.
# Instead: the state is written at the end of a clean stop alone, and a ping says only that the worker lives. After a
#   kill the scheduler knows nothing of the task that runs, and gives it to the next worker that asks for it. Both run
#   it, both write its output, and both report success. After SIGTERM the second is told that another one runs it.
# Why it matters: one luigid that the OOM killer ends and the supervisor starts again, and each long task that cron asks
#   for once more runs a second time beside the first, with nothing in a log. Lock in the task what must not run twice,
#   and write outputs under names of one's own.
# Seen: luigi 3.8.1, Python 3.11, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install luigi==3.8.1 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/worker.py" <<'PYTHON'
import sys
import time
from pathlib import Path

import luigi

home, worker, port = Path(sys.argv[1]), *sys.argv[2:]


def note(event):
    with (home / "log").open("a") as log:
        log.write(f"{event} {worker}\n")


class Report(luigi.Task):
    def output(self):
        return luigi.LocalTarget(str(home / "report"))

    def run(self):
        note("begin")
        while not (home / "end").exists():
            time.sleep(0.05)
        with self.output().open("w") as report:
            report.write(worker)


options = {"scheduler_host": "127.0.0.1", "scheduler_port": int(port), "workers": 1, "no_lock": True}
result = luigi.build([Report()], detailed_summary=True, **options)
note("run by another" if "being run by another worker" in result.summary_text else result.status.name)
PYTHON

timeout 240 "$python" - "$dir" <<'PYTHON'
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

running = []
print("luigi", version("luigi"))


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def run(log, *command):
    with log.open("a") as output:
        running.append(subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent))
    return running[-1]


def answers(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def play(end):
    """What happened to a task that runs while the scheduler ends so and starts again, and is asked for once more."""
    home = Path(sys.argv[1]) / end.name
    home.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    def log():
        return (home / "log").read_text().splitlines() if (home / "log").exists() else []

    def schedule():
        command = [Path(sys.executable).parent / "luigid", "--address", "127.0.0.1", "--port", str(port)]
        process = run(home / "luigid.log", *command, "--state-path", home / "state")
        until(lambda: answers(port))
        return process

    def work(name):
        return run(home / "workers.log", sys.executable, f"{sys.argv[1]}/worker.py", home, name, str(port))

    scheduler = schedule()
    work("first")
    until(lambda: log() == ["begin first"])
    scheduler.send_signal(end)
    scheduler.wait()
    schedule()
    time.sleep(3)  # the first worker pings each second
    second = work("second")
    until(lambda: len(log()) > 1)
    seen = log()[1:]
    (home / "end").touch()
    until(lambda: any(line.endswith("first") for line in log()[1:]) and second.poll() is not None)
    return seen, sorted(log()[1:])


try:
    killed, stopped = play(signal.SIGKILL), play(signal.SIGTERM)
finally:
    for process in running:
        process.kill()
        process.wait()
for end, (seen, at_last) in ("killed", killed), ("stopped", stopped):
    print(f"luigid is {end} and started anew, a second worker asks for the task that runs: {seen}; at last: {at_last}")
both = ["begin second"], ["SUCCESS first", "SUCCESS second", "begin second"]
one = ["run by another second"], ["SUCCESS first", "run by another second"]
sys.exit(None if (killed, stopped) == (both, one) else "the behaviour has changed")
PYTHON
