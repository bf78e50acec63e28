"""The programs of ``examples/`` run as they stand, and say what they should."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from zklock import Client
from zklock.errors import GuardUnusable

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "fenced_write.py": [
        "the second holder's token is greater: True",
        "refused: the first holder is late",
        "the file says: written by the second",
    ],
    "once_a_day.py": ["the report of 20", "runs: 1"],
    "release_on_sigterm.py": [
        "the first one works\nthe first one has released\nthe second one works",
        "both ended well: True",
    ],
    "forked_workers.py": ["two have led, one after the other: True"],
    "liveness.py": [
        "before it works: 200",
        "while it works under its lock: 200",
        "while it works on without its lock: 503",
        "when the work has ended: 200",
    ],
    "leader.py": ["both have led: True"],
    "shards.py": [
        "shared: {'one': 3, 'two': 3}",
        "it ended well: True",
        "one has all of them: [0, 1, 2, 3, 4, 5]",
    ],
    "tasks.py": ["granted beside the holder: 0", "in the order of asking: True 50"],
    "tooz_leader.py": ["anna leads with token", "the leader is killed", "ben leads with token"],
    "django_singleton.py": [
        "refused: the first holder is late",
        "written by: [('second',)]",
        "one after the other: [0, 0]",
    ],
    "celery_beats.py": ["one beat sends", "it is killed", "the other one sends: True"],
    "celery_singleton.py": [
        "one of two runs",
        "its process is killed",
        "another one runs: True",
        "its token is greater: True",
    ],
    "scheduler.py": ["anna runs the job", "anna is killed", "ben runs the job"],
    "web_background.py": ["it is killed", "another one works: True"],
}

OF_ADAPTERS = {
    "celery_beats.py",
    "celery_singleton.py",
    "django_singleton.py",
    "scheduler.py",
    "tooz_leader.py",
    "web_background.py",
}
FRAMEWORKS = pytest.mark.thorough(
    "examples of adapters: the tests of each adapter play the same, with processes that are killed"
)


def test_every_example_is_run_and_listed() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"({name})" in listed for name in SAYS)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[FRAMEWORKS] * (name in OF_ADAPTERS)) for name in sorted(SAYS)],
)
def test_an_example_says_what_it_should(
    name: str, zklock_hosts: str, zklock_client: Client, zklock_path: str
) -> None:
    zklock_client.ensure_path(zklock_path)  # a root of its own
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / name), zklock_hosts + zklock_path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    for line in SAYS[name]:
        assert line in ended.stdout


def test_the_daily_job_runs_again_tomorrow_and_makes_no_lost_mark_again(
    zklock_hosts: str, zklock_client: Client, zklock_path: str
) -> None:
    zklock_client.ensure_path(zklock_path)
    hosts = zklock_hosts + zklock_path
    job = runpy.run_path(str(EXAMPLES / "once_a_day.py"))
    job["install"](hosts)
    assert job["host"](hosts, "host-1") == "host-1: ran the job"
    assert job["host"](hosts, "host-2") == "host-2: done already"
    zklock_client.set(zklock_path + job["LAST"], b"2024-05-01")
    assert job["host"](hosts, "host-2") == "host-2: ran the job"
    zklock_client.delete(zklock_path + job["MARK"])
    job["install"](hosts)
    with pytest.raises(GuardUnusable):
        job["host"](hosts, "host-1")
