"""Handlers in processes of their own: how each may end, and what the others notice of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contract.fronts import Threads
from tests.contract.handlers import Handle, alive, noted, tokens
from tests.contract.support import ROOT, SOON
from tests.contract.workers import Join, joining
from zklock.testing import wait_for

SHARDS = 4


@pytest.fixture
def join(zklock_connect: Callable[..., Any], zklock_path: str) -> Iterator[Join]:
    """Return ``join(identity, **options)``: a started worker with a session of its own."""
    options: dict[str, Any] = {"executor": "processes", "retry": (0.05, 0.1), "shards": SHARDS}
    with joining(Threads(), zklock_path, zklock_connect, **options) as join:
        yield join


def began(folder: Path, count: int = SHARDS) -> dict[int, int]:
    """Wait until so many shards are handled, by one process each; return which."""
    wait_for(lambda: len(noted(folder, "began")) == count, SOON, lambda: str([*folder.iterdir()]))
    found = noted(folder, "began")
    assert all(len(pids) == 1 for pids in found.values())
    return {number: next(iter(pids)) for number, pids in found.items()}


def said(caplog: pytest.LogCaptureFixture, *texts: str) -> Callable[[], bool]:
    return lambda: all(text in caplog.text for text in texts)


@pytest.mark.hazard("H39")
@pytest.mark.parametrize("on_error", ["retry", "stop"])
def test_a_killed_handler_is_alone_in_it(
    join: Join, tmp_path: Path, caplog: pytest.LogCaptureFixture, on_error: str
) -> None:
    pool = join("a", handler=Handle(str(tmp_path)), on_error=on_error)
    pids = began(tmp_path)
    assert len(set(pids.values())) == SHARDS
    os.kill(pids[0], signal.SIGKILL)
    wait_for(
        said(caplog, f"process {pids[0]} was killed by SIGKILL; its handler had neither returned"),
        SOON,
        "the death is logged",
    )
    if on_error == "retry":
        wait_for(lambda: len(noted(tmp_path, "began")[0]) == 2, SOON, "handled anew")
        again = max(noted(tmp_path, "began")[0] - {pids[0]})
        pids[0] = again
    assert sorted(pool.owned()) == list(range(SHARDS))
    assert all(alive(pids[number]) for number in (1, 2, 3))
    pool.stop()
    ended = {number: {pids[number]} for number in pids if on_error == "retry" or number}
    assert noted(tmp_path, "held") == ended
    assert noted(tmp_path, "lost") == {}
    assert not any(map(alive, pids.values()))


OTHERS = pytest.mark.thorough(
    "failures in processes that are hard to tell of: two of them run, with processes for each"
)


@pytest.mark.hazard("H39")
@pytest.mark.parametrize(
    ("does", "text"),
    [
        ("raises_unreadable", "Unreadable: one and another"),
        pytest.param("raises_unwritable", "Unwritable: it holds a lock", marks=OTHERS),
        pytest.param("raises_at_length", "xxxx", marks=OTHERS),
        ("exits", "ended with status 7"),
    ],
)
def test_a_failure_of_any_sort_is_one_shards(
    join: Join, tmp_path: Path, caplog: pytest.LogCaptureFixture, does: str, text: str
) -> None:
    pool = join("a", handler=Handle(str(tmp_path), {1: does}), on_error="stop")
    pids = began(tmp_path)
    wait_for(said(caplog, "the handler of shard 1 raised", text), SOON, "the failure is logged")
    wait_for(lambda: not alive(pids[1]), SOON, "its process is gone")
    assert all(alive(pids[number]) for number in (0, 2, 3))
    pool.stop()
    assert sorted(noted(tmp_path, "held")) == [0, 2, 3]
    assert len(noted(tmp_path, "began")[1]) == 1


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_late_write_that_is_refused_is_no_failure(
    join: Join,
    zklock_client: Any,
    zklock_path: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    executor: str,
) -> None:
    """A later owner has written already. The loss is told as one, and the shard begins anew."""
    handler = Handle(str(tmp_path), {0: "is_refused"})
    pool = join("a", handler=handler, executor=executor, shards=1, on_error="stop")
    began(tmp_path, 1)
    for count in range(1, 4):
        wait_for(lambda count=count: len(tokens(tmp_path, "began", 0)) == count, SOON)  # type: ignore[misc]
        zklock_client.delete(pool.owned()[0].path)
    pool.stop()
    assert "raised" not in caplog.text
    assert "the contender's node was deleted" in caplog.text


def test_a_result_is_a_return_and_an_interrupt_of_the_terminal_is_the_owners(
    join: Join, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = join("a", handler=Handle(str(tmp_path), {1: "returns_unwritable"}))
    pids = began(tmp_path)
    returned = pids.pop(1)
    wait_for(lambda: not alive(returned), SOON, "its process is gone")
    for pid in pids.values():
        os.kill(pid, signal.SIGINT)
    pool.stop()
    assert "raised" not in caplog.text
    assert noted(tmp_path, "held") == {number: {pid} for number, pid in pids.items()}
    assert len(noted(tmp_path, "began")[1]) == 1


@pytest.mark.hazard("H39")
def test_a_shard_is_not_handed_over_while_its_process_lives(join: Join, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    one = join("a", shards=1, handler=Handle(str(first), {0: "insists"}))
    pid = began(first, 1)[0]
    two = join("b", shards=1, handler=Handle(str(second)))
    assert not one.drain(0.5)
    assert alive(pid)
    assert noted(second, "began") == {}
    assert (len(one.owned()), len(two.owned())) == (1, 0)
    (first / "finish").touch()
    began(second, 1)
    assert not alive(pid)
    assert noted(first, "lost") == {}


@pytest.mark.hazard("H39")
def test_a_process_that_heeds_nothing_is_ended_once_its_shard_is_lost(
    join: Join,
    tmp_path: Path,
    zklock_client: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("zklock._pool.processes.TERM_AFTER", 0.2)
    monkeypatch.setattr("zklock._pool.processes.KILL_AFTER", 0.2)
    one = join("a", shards=1, handler=Handle(str(tmp_path), {0: "insists"}))
    pid = began(tmp_path, 1)[0]
    zklock_client.delete(one.owned()[0].path)
    wait_for(lambda: noted(tmp_path, "lost") == {0: {pid}}, SOON, "it is told at its next look")
    wait_for(lambda: not alive(pid), SOON, "it is ended")
    assert noted(tmp_path, "termed") == {0: {pid}}
    assert f"process {pid} still runs its handler: sending it SIGTERM" in caplog.text
    assert f"process {pid} still runs its handler: sending it SIGKILL" in caplog.text
    wait_for(lambda: len(noted(tmp_path, "began")[0]) == 2, SOON, "handled anew")
    early, late = tokens(tmp_path, "began", 0)
    assert early < late
    (tmp_path / "finish").touch()


def test_what_a_handler_has_forked_knows_that_the_shard_is_lost(join: Join, tmp_path: Path) -> None:
    join("a", shards=1, handler=Handle(str(tmp_path), {0: "leaves_a_child"}))
    began(tmp_path, 1)
    wait_for(lambda: noted(tmp_path, "child-lost"), SOON, "the child is told")
    assert not (tmp_path / "finish").exists()


SCRIPT = """
import sys
import zklock
from tests.contract.fronts import Threads
from tests.contract.handlers import Handle

if __name__ == "__main__":
    hosts, path, folder = sys.argv[1:]
    client = zklock.connect(hosts, timeout=20.0)
    pool = zklock.WorkerPool(
        client, path, shards=3, handler=Handle(folder, {1: "insists", 2: "becomes_nobody"}),
        executor="processes",
    )
    pool.start()
    sys.stdin.read()
"""


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found |= {child, *descendants(child)}
    return found


@pytest.mark.hazard("H40")
def test_nothing_outlives_an_owner_that_is_killed(
    zklock_hosts: str, zklock_path: str, tmp_path: Path
) -> None:
    notes, temporary = tmp_path / "notes", tmp_path / "temporary"
    notes.mkdir()
    temporary.mkdir()
    script = tmp_path / "owner.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script), zklock_hosts, zklock_path, str(notes)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
    ) as owner:
        handlers = set(began(notes, 3).values())
        others = descendants(owner.pid)
        assert handlers < others  # and multiprocessing's own
        owner.kill()
        wait_for(lambda: not any(map(alive, others)), SOON, "all of them end")
    assert [*temporary.iterdir(), *Path("/dev/shm").glob(f"pym-{owner.pid}-*")] == []
    assert noted(notes, "held") == {}


@pytest.mark.parametrize("on_error", ["retry", "stop"])
def test_an_executor_that_takes_nothing_keeps_no_shard(
    join: Join, tmp_path: Path, caplog: pytest.LogCaptureFixture, on_error: str
) -> None:
    two = join("b", capacity=0.001, handler=Handle(str(tmp_path)))
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    join("a", handler=Handle(str(tmp_path)), executor=executor, on_error=on_error)
    wait_for(said(caplog, "a gives up its shards"), SOON, "it says so")
    wait_for(lambda: len(two.owned()) == SHARDS, SOON, "all are given up")


UNGUARDED = """
import sys, time
import zklock

def handle(shard):
    shard.should_stop.wait()

{first}
client = zklock.connect(sys.argv[1])
with zklock.WorkerPool(
    client, sys.argv[2], shards=2, handler=handle, executor="processes", retry=(0.05, 0.05)
):
    time.sleep(600)
"""


@pytest.fixture
def unguarded(
    zklock_hosts: str, zklock_path: str, tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return what runs a worker's script that has no ``if __name__ == "__main__":``."""
    begun: list[subprocess.Popen[bytes]] = []

    def run(first: str = "") -> subprocess.Popen[bytes]:
        script = tmp_path / "script.py"
        script.write_text(UNGUARDED.format(first=first))
        with (tmp_path / "errors").open("wb") as errors:
            begun.append(
                subprocess.Popen(
                    [sys.executable, str(script), zklock_hosts, zklock_path],
                    stderr=errors,
                    env=os.environ | {"PYTHONPATH": str(ROOT)},
                )
            )
        return begun[-1]

    yield run
    for each in begun:
        each.kill()
        each.wait(SOON)


def test_a_script_that_does_not_say_what_is_its_own_makes_no_more_workers(
    unguarded: Callable[..., subprocess.Popen[bytes]],
    zklock_client: Any,
    zklock_path: str,
    tmp_path: Path,
) -> None:
    """Each process of a handler runs the script as well. Its pool is refused."""
    unguarded()
    errors = tmp_path / "errors"
    wait_for(lambda: errors.read_text().count("ended with status 1") >= 1, SOON, errors.read_text)
    assert "guard the script's code with 'if __name__ == \"__main__\":'" in errors.read_text()
    assert len(zklock_client.get_children(f"{zklock_path}/members")) == 1
    sessions = {
        zklock_client.exists(f"{zklock_path}/{kind}/{name}").ephemeralOwner
        for kind in ("members", "assigned", "owned")
        for name in zklock_client.get_children(f"{zklock_path}/{kind}")
    }
    assert len(sessions) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the main module is imported first")
def test_a_process_ends_with_its_worker_while_it_imports_the_script(
    unguarded: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """The script goes no further there, for ever."""
    note = f"open({str(tmp_path)!r} + '/at-' + str(os.getpid()), 'w').close()"
    worker = unguarded(f"import os\nif __name__ != '__main__':\n    {note}\n    time.sleep(600)")
    wait_for(lambda: len([*tmp_path.glob("at-*")]) == 2, SOON, "both import it")
    pids = [int(path.name.removeprefix("at-")) for path in tmp_path.glob("at-*")]
    assert all(map(alive, pids))
    worker.kill()
    wait_for(lambda: not any(map(alive, pids)), SOON, "both have ended")
