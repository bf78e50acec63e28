"""Plays the demo: starts a ZooKeeper and workers, does them harm, and has the checks made."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from multiprocessing import Pipe
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

import zklock
from zklock._ground.addresses import server_name
from zklock._ground.clock import clock
from zklock.testing import Backend, BackendUnavailable, NotServing, ZooKeeperServer, srvr, wait_for
from zklock.testing.demo import checks, worker
from zklock.testing.demo.checks import Failed, Finding, Report
from zklock.testing.external import parse_hosts
from zklock.testing.provision import provision
from zklock.testing.proxy import FaultProxy
from zklock.testing.selection import choose_or_embed

NAMES = ("w1", "w2", "w3")
SHARDS = 12
_SLACK_SECONDS = 60.0
"""How many seconds a step may take beyond three session timeouts; then the demo is given up."""

Say = Callable[[str], object]


class Worker:
    """A worker process, and what it has reported so far. ``close`` makes sure that it is gone."""

    def __init__(self, role: str, name: str, *arguments: object) -> None:
        self.name = name
        self.reports: list[Report] = []
        self._pipe, theirs = Pipe()
        roots = [str(Path(zklock.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", worker.__name__, role, name, *map(str, arguments)],
                stdin=theirs.fileno(),
                # A group of its own: Ctrl-C goes to the demo only, which ends its workers. If the
                # demo is gone while the group is stopped, the kernel sends the group a hang-up.
                process_group=0,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))},
            )

    def read(self) -> bool:
        """Take in what it has reported; return whether there may be more."""
        with contextlib.suppress(EOFError, ConnectionResetError):
            while self._pipe.poll():
                self.reports.append(self._pipe.recv())
            return True
        return False

    def expect(self, what: str, patience: float) -> None:
        """Wait for its first report of this kind; `Failed` if it has ended without."""

        def reported() -> bool:
            going = self.read()
            if any(it["what"] == what for it in self.reports):
                return True
            if not going:
                ended = f"{self.name} has ended, with {self._process.wait()}"
                raise Failed(f"{ended}, and never reported '{what}'")
            return False

        wait_for(reported, patience, f"{self.name} has not reported '{what}'")

    def go_on(self) -> None:
        """Tell it to write and to release, or to leave the pool."""
        with contextlib.suppress(BrokenPipeError):  # expect() tells that it has ended
            self._pipe.send(None)

    def send(self, number: signal.Signals) -> float:
        """Send a signal; return the time just before that, or when all of it stands still."""
        at = clock()
        self._process.send_signal(number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            at = clock()
        return at

    def close(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()


class Play:
    """The scenes, on the ZooKeeper at these hosts, ``one`` of which serves."""

    def __init__(self, hosts: str, one: str, client: KazooClient, tell: Say) -> None:
        self._hosts, self._one, self._client, self._tell = hosts, one, client, tell
        self._timeout = client.handler.session_timeout
        self._patience = _SLACK_SECONDS + 3 * self._timeout
        self.root = f"/zklock-demo-{secrets.token_hex(4)}"

    def play(self) -> None:
        """Play all scenes; a check that does not hold raises `Failed`."""
        self._tell(f"Workers are processes. A session ends after {self._timeout:g} s of silence.")
        for scene in (self._kill, self._pause, self._cut, self._kill_in_pool):
            self._workers: list[Worker] = []
            with contextlib.ExitStack() as self._stack:
                self._show(scene())

    def _show(self, found: Iterable[Finding]) -> None:
        for held, text in found:
            self._tell(f"   {'ok' if held else 'FAILED'}: {text}")
            if not held:
                raise Failed(f"not shown: {text}")

    def _kill(self) -> Iterable[Finding]:
        self._tell("\n1. The holder of a lock is killed")
        self._line(self._hosts)
        self._tell("   SIGKILL to w1")
        fault = self._workers[0].send(signal.SIGKILL)
        return checks.killed(self._seen(fault, fault))

    def _pause(self) -> Iterable[Finding]:
        self._tell("\n2. The holder of a lock is paused, for longer than its session lives")
        self._line(self._hosts)
        holder, *others = self._workers
        self._tell("   SIGSTOP to w1")
        fault = holder.send(signal.SIGSTOP)
        self._expect("over", *others)
        self._tell("   SIGCONT to w1, which then tries to write, like any program would")
        mended = holder.send(signal.SIGCONT)
        self._expect("looked", holder)
        holder.go_on()
        self._expect("over", holder)
        return checks.paused(self._seen(fault, mended))

    def _cut(self) -> Iterable[Finding]:
        self._tell("\n3. The holder of a lock is cut off from ZooKeeper")
        proxy = self._stack.enter_context(FaultProxy(self._one))
        self._line(proxy.hosts)
        self._tell("   from now on, all packets between w1 and ZooKeeper are lost")
        fault = clock()
        proxy.blackhole()
        self._expect("lost", self._workers[0])
        return checks.cut(self._seen(fault, fault))

    def _kill_in_pool(self) -> Iterable[Finding]:
        self._tell("\n4. A worker of a pool is killed")
        for name in NAMES:
            self._begin("pool", name, self._hosts, f"{self.root}/pool", SHARDS)
        before = self._settled(*self._workers)
        self._tell(f"   {', '.join(NAMES)} share {SHARDS} shards, each with a lock")
        victim, *others = self._workers
        self._tell(f"   SIGKILL to {victim.name}")
        fault = victim.send(signal.SIGKILL)
        after, seconds = self._settled(*others), clock() - fault
        for each in others:
            each.go_on()
        self._expect("over", *others)
        return checks.taken_over(victim.name, before, after, seconds)

    def _settled(self, *workers: Worker) -> dict[str, dict[int, str]]:
        """Wait until these workers share the shards, and return who has which."""

        def shares() -> dict[str, dict[int, str]] | None:
            for each in workers:
                each.read()
            found = {each.name: checks.owned(each.reports) for each in workers}
            return found if checks.settled(found, SHARDS) else None

        return wait_for(shares, self._patience, "the shards are not shared")

    def _begin(self, role: str, name: str, hosts: str, *arguments: object) -> Worker:
        self._workers.append(Worker(role, name, hosts, self._timeout, *arguments))
        self._stack.callback(self._workers[-1].close)
        return self._workers[-1]

    def _expect(self, what: str, *workers: Worker) -> None:
        for each in workers:
            each.expect(what, self._patience)

    def _line(self, holder: str) -> None:
        """Have workers queue for one lock. The first holds it; the others write when they can.

        ``holder``: where the first one connects to.
        """
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="zklock-demo-"))
        path, file = f"{self.root}/lock-{secrets.token_hex(4)}", Path(folder, "ledger")
        self._client.ensure_path(path)
        self._lock, self._ledger = zklock.Lock(self._client, path), worker.Ledger(file)
        self._ledger.create()
        self._expect("granted", self._begin("lock", NAMES[0], holder, path, file))
        for each in NAMES[1:]:
            self._begin("lock", each, self._hosts, path, file).go_on()
        queued = "not all of the workers queue"
        wait_for(lambda: len(self._queue()) == len(NAMES), self._patience, queued)
        self._listed = self._queue()
        first, *others = self._listed
        self._tell(f"   {first} holds the lock; {', then '.join(others)} wait for it")

    def _seen(self, fault: float, mended: float) -> checks.Queue:
        """Wait until all turns are over, and return what was seen."""
        self._expect("over", *self._workers[1:])
        with contextlib.suppress(TimeoutError):  # the check tells who is left
            wait_for(lambda: not self._queue(), self._patience)
        reports = {each.name: each.reports for each in self._workers}
        entries = self._ledger.entries()
        return checks.Queue(self._listed, reports, fault, mended, entries, self._queue())

    def _queue(self) -> list[str]:
        return [it.identity for it in self._lock.contenders()]


def play(hosts: str | None, timeout: float, tell: Say, say: Say) -> None:
    """Play the demo; `Failed`, or ``TimeoutError``, if it does not show what it has to.

    ``hosts``: the ZooKeeper to play on; with ``None`` the demo starts its own. ``timeout``: the
    workers' session timeout in seconds. ``tell`` gets the lines of the demo, ``say`` what else
    there is to know. All that was made is removed, however the demo ends.
    """
    with contextlib.ExitStack() as stack:
        if hosts is None:
            tick, backend = int(min(0.5, timeout / 4) * 1000), backend_here(say)
            server = stack.enter_context(ZooKeeperServer(tick_time=tick, backend=backend))
            hosts = one = server.hosts
            name = f"{server.version()} ({server.backend})"
        else:
            one, name = _serving(hosts)
        client = stack.enter_context(zklock.connect(hosts, timeout))
        scenes = Play(hosts, one, client, tell)
        stack.callback(_remove, client, scenes.root)
        tell(f"ZooKeeper {name} at {hosts}")
        scenes.play()


def _serving(hosts: str) -> tuple[str, str]:
    """Return one of these hosts that answers, and what it is."""
    servers, slash, chroot = hosts.partition("/")
    reasons = []
    for host, port in parse_hosts(servers):
        one = f"{server_name(host, port)}{slash}{chroot}"
        try:
            return one, srvr(host, port).version
        except (OSError, NotServing) as error:
            reasons.append(f"{host}:{port}: {error}")
    raise BackendUnavailable("no ZooKeeper answers at " + "; ".join(reasons))


def backend_here(say: Say) -> Backend:
    """Return a backend that can run ZooKeeper here, or else the embedded server."""
    try:
        return provision(say=say)
    except BackendUnavailable:
        return choose_or_embed(say)


def _remove(client: KazooClient, path: str) -> None:
    if client.connected:
        with contextlib.suppress(KazooException):
            client.delete(path, recursive=True)
