"""What the contract tests share: looks at ZooKeeper past zklock, threads, and child processes.

Hundreds of child processes import this module: it imports neither pytest nor the simulation.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import zklock
from tests.modes import simulated
from zklock.testing import FaultProxy, wait_for

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
SOON = 300.0 if simulated() else 60.0
"""Seconds within which what must happen happens, on a busy machine too.

What waits by the real clock for something that needs time of a simulation waits for a clock that
may be five times as slow.
"""

LEASE_FRACTION = 2 / 3
"""The part of the session timeout for which a lease runs, where nobody says otherwise."""

RENEW_AT, EXHAUSTED_AT = 2**30, 2**31 - 2**20
"""The sequence numbers from which on a free lock's path is made anew, and nothing is granted."""


def children(client: Any, path: str) -> list[str]:
    """Return the names of the nodes below ``path``, by sequence number; none if it is absent."""
    try:
        names: list[str] = client.get_children(path)
    except NoNodeError:
        return []
    return sorted(names, key=lambda name: name[-10:])


def open_connection(handler: Any) -> Any:
    """Return the connection on which zklock's requests go out at once, if there is one."""
    return handler.newest if handler.session.connected and not handler.forked else None


def reaches(client: Any, time: float) -> None:
    """Wait for a time of the clock that a session goes by: in a simulation it is another one."""
    wait_for(lambda: now_of(client) >= time, SOON, lambda: f"{time}, but it is {now_of(client)}")


def in_another_session(client: Any, session: int) -> bool:
    """Whether the client has another session. It has none for a moment in between."""
    known = client.client_id
    return known is not None and known[0] != session


def delete(client: Any, path: str) -> None:
    """Delete a node that its owner may delete at the same time."""
    with suppress(NoNodeError):
        client.delete(path)


def tree(client: Any, path: str = "/") -> list[str]:
    """Return all paths at and below ``path``, but for ZooKeeper's own."""
    found = [path] if client.exists(path) else []
    for name in children(client, path):
        if (path, name) != ("/", "zookeeper"):
            found += tree(client, f"{path.rstrip('/')}/{name}")
    return found


def queued(client: Any, path: str, count: int, within: float = SOON) -> list[str]:
    """Wait until so many nodes are below ``path``; return their names in order."""
    return wait_for(
        lambda: names if len(names := children(client, path)) == count else None,
        within,
        lambda: f"{count} nodes below {path}, but {children(client, path)}",
    )


def gone(client: Any, path: str) -> None:
    """Wait until nothing is below ``path``."""
    wait_for(
        lambda: not children(client, path),
        SOON,
        lambda: f"no node below {path}, but {children(client, path)}",
    )


def run(call: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
    """Call on a thread of its own."""
    future: Future[T] = Future()

    def body() -> None:
        try:
            future.set_result(call(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=body, name="contract-test", daemon=True).start()
    return future


def results(pending: Iterable[Future[T]], within: float = SOON) -> list[T]:
    """Wait for the end of all calls; return what they have returned."""
    return [each.result(within) for each in list(pending)]


def freeze(pid: int) -> None:
    """Send SIGSTOP to a process; return when the whole of it stands still, or has ended.

    Its threads go on until one of them gets a processor, and so the signal.
    """
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: _states(pid) <= {"T", "Z"}, SOON, lambda: f"{_states(pid)}")


def _states(pid: int) -> set[str]:
    """Return the states of a process's threads, in one letter each (proc_pid_stat(5))."""
    stats = Path(f"/proc/{pid}/task").glob("*/stat")
    with suppress(FileNotFoundError, ProcessLookupError):
        return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats}
    return {"a thread has just ended"}


def granted(lock: Any, **kwargs: Any) -> zklock.Grant:
    """Acquire, with a deadline for the test itself, and insist on a grant."""
    kwargs.setdefault("timeout", SOON)
    grant: zklock.Grant | None = lock.acquire(**kwargs)
    assert grant is not None, f"{lock!r} was not granted: {lock.contenders()}"
    return grant


def passes_on(client: Any, path: str) -> None:
    """Insist that the lock is free for the next contender, and that nobody is left behind."""
    gone(client, path)
    lock = zklock.Lock(client, path)
    granted(lock)
    lock.release()


@contextmanager
def kazoo_client(hosts: str, timeout: float = 10.0, **options: Any) -> Iterator[Any]:
    """Run a client that kazoo made, with zklock's handler."""
    client = KazooClient(
        hosts,
        timeout,
        handler=zklock.Handler(),
        connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.5},
        **options,
    )
    client.start(SOON)
    try:
        yield client
    finally:
        client.stop()
        client.close()


class Losses:
    """A lost callback that keeps what it was told, on which thread, and when."""

    def __init__(self) -> None:
        self.losses: list[zklock.Loss] = []
        self.threads: list[str] = []
        self.times: list[float] = []
        self.states: list[str] = []
        self.client: Any = None
        self.told = threading.Event()

    def __call__(self, loss: zklock.Loss) -> None:
        self.times.append(boottime())
        self.losses.append(loss)
        self.threads.append(threading.current_thread().name)
        if self.client is not None:
            self.states.append(self.client.state)
        self.told.set()

    def one(self, timeout: float = SOON) -> zklock.Loss:
        """Wait for the loss, and return it."""
        assert self.told.wait(timeout), "no lost callback"
        assert len(self.losses) == 1
        return self.losses[0]


def keeps_its_lock(
    client: Any, path: str, proxy: FaultProxy, change: Callable[[], AbstractContextManager[object]]
) -> None:
    """Lose the connection while a lock is held and something is changed; insist on the lock."""
    losses = Losses()
    states: list[str] = []
    with zklock.Lock(client, path, on_lost=losses) as grant:
        client.add_listener(states.append)
        with change():
            proxy.drop()
            wait_for(lambda: losses.losses or states[1:] == ["CONNECTED"], SOON, "a new connection")
        grant.verify(SOON)
    assert not losses.losses


@contextmanager
def serving(handle: Callable[[socket.socket], object]) -> Iterator[str]:
    """Hand every connection to a function, on a thread of its own; yield the address."""
    threads: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):  # the listener is shut down
            while True:
                threads.append(threading.Thread(target=handle, args=(listener.accept()[0],)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads.append(threading.Thread(target=accept))
        threads[0].start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for each in threads:
                each.join(SOON)


def open_files() -> set[tuple[str, str]]:
    """Return the descriptors of this process, and what each is open on."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            found.add((each.name, str(each.readlink())))
    return found


def descriptors() -> list[str]:
    """Return what this process has open.

    Without Unix sockets: a client of a container engine keeps a pool of them.
    """
    unix = {line.split()[6] for line in Path("/proc/self/net/unix").read_text().splitlines()[1:]}
    return [
        f"{number} {target}"
        for number, target in open_files()
        if target.removeprefix("socket:[").removesuffix("]") not in unix
    ]


def boottime() -> float:
    """Return the clock of leases."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def now_of(client: Any) -> float:
    """Return the clock that a client goes by: in a simulation it is another one."""
    side = getattr(client.handler, "side", None)
    return boottime() if side is None else float(side.now())


def attempts_of(client: Any) -> int:
    """Return how many attempts of a client are in memory."""
    gc.collect()
    hosts = [getattr(each, "_host", None) for each in gc.get_objects() if _is_attempt(type(each))]
    return sum(getattr(host, "client", None) is client for host in hosts)


def _is_attempt(kind: type) -> bool:
    return kind.__name__ == "Attempt" and str(kind.__module__).startswith("zklock._core.")


def program(*arguments: str, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, in the folder of the project; it must end well."""
    command = [sys.executable, *arguments]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": timeout}
    done = subprocess.run(command, cwd=ROOT, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done


_UNMEASURED = {"interrupt_pool"}
"""An interrupt at any moment may leave a lock of coverage's taken."""


class Child:
    """A Python process that plays a part of ``tests/contract/child_roles.py``, line by line."""

    def __init__(self, part: str, **parameters: Any) -> None:
        command = [sys.executable, "-m", "tests.contract.child_roles", part, json.dumps(parameters)]
        environ = dict(os.environ)
        if part in _UNMEASURED:
            environ.pop("COVERAGE_PROCESS_CONFIG", None)
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def hears(self) -> Any:
        """Return what it says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the child ended: {self.process.wait(SOON)}"
        return json.loads(line)

    def tell(self, word: str) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc: object) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
