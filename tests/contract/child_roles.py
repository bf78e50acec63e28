"""Parts that child processes play: ``python -m tests.contract.child_roles PART '{"json": …}'``.

A part says one JSON value a line on its standard output, and hears one word a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import zklock
from tests.contract import commands
from tests.contract.support import SOON, Losses, boottime, children, granted
from zklock import aio, telemetry
from zklock.testing import wait_for


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def hear() -> str:
    return sys.stdin.readline().strip()


def outcome(call: Callable[[], object]) -> str:
    try:
        return repr(call())
    except Exception as error:
        return type(error).__name__


def queue(hosts: str, path: str, ledger: str, threads: int) -> None:
    """Let so many threads acquire once each; every grant appends its sequence to the ledger.

    One half of them begins when told, the other when told again.
    """
    client = zklock.connect(hosts, timeout=20.0)
    lock = zklock.Lock(client, path)

    def contend() -> None:
        with lock as grant:
            grant.check()
            with Path(ledger).open("a") as lines:
                lines.write(f"{grant.token.sequence} {os.getpid()}\n")

    workers = [threading.Thread(target=contend) for _ in range(threads)]
    say("ready")
    for half in workers[: threads // 2], workers[threads // 2 :]:
        hear()
        for worker in half:
            worker.start()
    for worker in workers:
        worker.join()
    client.stop()
    say("done")


def numbered(hosts: str, paths: list[str], ledger: str, count: int) -> None:
    """Write a line for each grant, while it is held: path, epoch, sequence. Nobody else holds."""
    client = zklock.connect(hosts, timeout=10.0)
    say("ready")
    hear()
    with Path(ledger).open("a", buffering=1) as lines:
        for path in paths:
            lock = zklock.Lock(client, path, timeout=3 * SOON)
            occupied = Path(ledger + path.replace("/", "-"))
            for _ in range(count):
                with lock as grant:
                    occupied.touch(exist_ok=False)
                    grant.check()
                    lines.write(f"{path} {grant.token.epoch} {grant.token.sequence}\n")
                    occupied.unlink()
    client.stop()
    say("done")


def paused(hosts: str, path: str, timeout: float, rounds: int) -> None:
    """Hold, be stopped and continued from outside, and tell of the first look after it."""
    client = zklock.connect(hosts, timeout=timeout)
    for _ in range(rounds):
        losses = Losses()
        lock = zklock.Lock(client, path, on_lost=losses)
        grant = granted(lock)
        looks = 0
        last = boottime()
        say("holding")
        while True:
            began = boottime()
            held = grant.held
            ended = boottime()
            looks += 1
            # Stopped in the middle of a look, the next one is the first afterwards.
            gap = began - last
            last = began if ended - began > timeout / 2 else ended
            if gap > 2 / 3 * timeout:  # a shorter one may be a stall of a busy machine
                break
            time.sleep(0.001)
        loss = losses.one()
        say({"looks": looks, "gap": gap, "held": held, "reason": loss.reason.name})
        hear()
    client.stop()


def leaving(hosts: str, path: str) -> None:
    """Fork in the body of a client; the child leaves the body, the parent goes on."""
    child = 0
    left: object = None
    try:
        with zklock.connect(hosts, timeout=30.0) as client:
            grant = granted(zklock.Lock(client, path))
            child = os.fork()
            begun = time.monotonic()
            if child:
                os.waitpid(child, 0)
                grant.verify()
                say({"verified": grant.held})
    except Exception as error:
        if child:
            raise
        left = repr(error)
    if not child:
        say({"left": left, "quickly": time.monotonic() - begun < 5.0})
        os._exit(0)


def working_forked(hosts: str, path: str) -> None:
    """Fork in the body of a pool; the child leaves the body, the parent goes on."""
    child = 0
    told: dict[str, object] = {}
    client = zklock.connect(hosts, timeout=30.0)
    election = zklock.LeaderElection(client, f"{path}/election")
    changes = election.changes()
    assert changes.next(SOON) is not None

    with zklock.WorkerPool(client, f"{path}/pool", shards=2) as pool:
        wait_for(lambda: len(pool.owned()) == 2, SOON)
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            say(sorted(pool.owned()))
        else:
            told["owned"] = outcome(pool.owned)
            told["stop"] = outcome(lambda: pool.stop(None))
            told["drain"] = outcome(pool.drain)
            told["next"] = outcome(changes.next)
            told["start"] = outcome(client.start)
            told["restart"] = outcome(client.restart)
            told["end"] = outcome(client.stop)
            told["close"] = outcome(client.close)
    if not child:
        say(told)
        os._exit(0)
    client.stop()


def forked(hosts: str, path: str) -> None:
    """Fork while holding; both sides tell what they believe."""
    losses = Losses()
    client = zklock.connect(hosts, timeout=20.0)
    bare = zklock.connect(hosts, timeout=20.0)
    lock = zklock.Lock(client, path, on_lost=losses)
    grant = granted(lock)

    child = os.fork()
    if child == 0:
        first = grant.held
        loss = losses.one()
        say(
            {
                "held": first or lock.held,
                "lost": grant.lost.is_set(),
                "reason": loss.reason.name,
                "callbacks": len(losses.losses),
                "thread": losses.threads[0],
                "check": outcome(grant.check),
                "release": outcome(lock.release),
                "acquire": outcome(lambda: lock.acquire(timeout=2.0)),
                "not blocking": outcome(lambda: lock.acquire(blocking=False)),
                "contenders": outcome(lock.contenders),
                "verify": outcome(grant.verify),
                "abandon": outcome(grant.abandon),
                "lock made in the child": outcome(
                    lambda: zklock.Lock(client, path).acquire(timeout=2.0)
                ),
                "client without locks": outcome(
                    lambda: zklock.Lock(bare, path).acquire(timeout=2.0)
                ),
            }
        )
        os._exit(0)
    os.waitpid(child, 0)
    grant.verify()
    say({"held": grant.held, "lost": grant.lost.is_set(), "callbacks": len(losses.losses)})
    lock.release()
    with zklock.Lock(bare, path):
        say("the parent's other client works")
    client.stop()
    bare.stop()


def elect(
    hosts: str, path: str, grace: float = 10.0, last: float = 0.0, timeout: float = 10.0
) -> None:
    """Lead until told to end, by SIGTERM or by a word, and then for ``last`` seconds more."""
    client = zklock.connect(hosts, timeout=timeout)
    election = zklock.LeaderElection(client, path, identity="child", grace=grace)

    def lead(leadership: zklock.Leadership) -> None:
        say({"leads": str(leadership.token)})
        leadership.should_stop.wait()
        say("told")
        time.sleep(last)
        say("ended")

    def listen() -> None:
        while hear() == "resign":
            election.resign()

    threading.Thread(target=listen, daemon=True).start()
    election.run(lead, handle_signals=True)
    say("stopped")
    client.stop()


def work(hosts: str, path: str, timeout: float, **options: Any) -> None:
    """Work in a pool; say which shards are owned, by their tokens, whenever a line comes."""
    client = zklock.connect(hosts, timeout=timeout)
    with zklock.WorkerPool(client, path, settle=0.05, **options) as pool:
        say("ready")
        while hear() == "owned":
            say({str(at): str(grant.token) for at, grant in pool.owned().items()})
    say("left")
    client.stop()


def acquire_leadership(hosts: str, path: str, timeout: float) -> None:
    """Lead without a function that leads, until told to end."""
    client = zklock.connect(hosts, timeout=timeout)
    election = zklock.LeaderElection(client, path, identity="child")
    with election.acquire() as leadership:
        say({"leads": str(leadership.token)})
        hear()
    client.stop()


def interrupted(hosts: str, path: str) -> None:
    """Stand for election, and be interrupted after so many seconds as each line says."""
    client = zklock.connect(hosts, timeout=10.0)

    def on_alarm(*ignored: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, on_alarm)
    say("ready")
    while delay := hear():
        election = zklock.LeaderElection(client, path)
        try:
            signal.setitimer(signal.ITIMER_REAL, max(1e-4, float(delay)))
            election.run(lambda leadership: leadership.should_stop.wait())
        except KeyboardInterrupt:
            say("KeyboardInterrupt")
    client.stop()


def forks_and_returns(hosts: str, path: str, where: str, hooked: bool) -> None:
    """Fork in code that runs on a thread of zklock's, and returns; tell how the child has ended."""
    subscription = telemetry.subscribe(lambda event: None) if hooked else None
    client = zklock.connect(hosts, timeout=20.0)
    children: SimpleQueue[int] = SimpleQueue()

    def forks(what: Any) -> None:
        child = os.fork()
        if child:
            children.put(child)
        elif isinstance(what, zklock.Leadership):
            assert not what.held  # so that it is told, on other threads

    def ended(child: int) -> list[int]:
        pid, status = os.waitpid(child, os.WNOHANG)
        return [status] if pid else []

    def lead(leadership: zklock.Leadership) -> None:
        forks(leadership)
        election.stop()

    election = zklock.LeaderElection(client, path, on_lost=lambda loss: None)
    pool = zklock.WorkerPool(client, path, shards=1, handler=forks)
    if where == "lead":
        election.run(lead)
    elif where == "handler":
        pool.start()
    else:
        grant = granted(zklock.Lock(client, path, on_lost=forks))
        client.delete(grant.path)
    child = children.get(timeout=SOON)
    try:
        say(wait_for(lambda: ended(child), SOON))
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    pool.stop()
    client.stop()
    if subscription is not None:
        subscription.close()


def aio_forked(hosts: str, path: str) -> None:
    """Fork in a task that holds; both sides tell what they believe."""

    def started(coroutine: Coroutine[Any, Any, object]) -> object:
        return coroutine.send(None)

    async def hold() -> None:
        losses: list[zklock.Loss] = []
        async with aio.connect(hosts, timeout=20.0) as client:
            lock = aio.Lock(client, path, on_lost=losses.append)
            grant = await lock.acquire()
            assert grant is not None
            child = os.fork()
            if child == 0:
                say(
                    {
                        "held": grant.held or lock.held,
                        "lost": grant.lost.is_set(),
                        "check": outcome(grant.check),
                        "release": outcome(lambda: started(grant.release())),
                        "acquire": outcome(lambda: started(lock.acquire())),
                        "contenders": outcome(lambda: started(lock.contenders())),
                        "abandon": outcome(grant.abandon),
                    }
                )
                os._exit(0)
            os.waitpid(child, 0)
            await grant.verify()
            say({"held": grant.held, "lost": grant.lost.is_set(), "callbacks": len(losses)})
            await lock.release()

    asyncio.run(hold())


class Interrupted(KeyboardInterrupt):
    """What the timer's signal raises."""


class Alarm:
    """Raises ``Interrupted`` on this thread once so many seconds have passed."""

    def __init__(self, *ends: str) -> None:
        self._ends = ends
        self._armed = False
        signal.signal(signal.SIGALRM, self._strike)

    def set(self, seconds: float) -> None:
        self._armed = True
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def stop(self) -> None:
        self._armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _strike(self, _: int, struck: FrameType | None) -> None:
        while struck is not None and struck.f_code is Alarm._strike.__code__:
            struck = struck.f_back
        if not self._armed or struck is None:
            return
        code = struck.f_code
        if code.co_filename == __file__ or (
            code.co_name in self._ends and struck.f_lineno == code.co_firstlineno
        ):
            # Between two statements of the caller, or before the first of a method's: nobody but
            # the caller can know. It strikes a little later.
            signal.setitimer(signal.ITIMER_REAL, 5e-5)
            return
        raise Interrupted


def interrupt_pool(hosts: str, path: str, how: str, rounds: int, longest: float) -> None:
    """Raise KeyboardInterrupt at swept moments of joining a pool and leaving it."""
    client = zklock.connect(hosts, timeout=10.0)
    onlooker = zklock.connect(hosts, timeout=10.0)
    tally = {"interrupted": 0, "done": 0}
    alarm = Alarm("__exit__", "stop")

    def left() -> list[str]:
        numbers = children(onlooker, f"{path}/shards")
        parents = ["leader", "members", "assigned", "owned", *(f"shards/{it}" for it in numbers)]
        return [f"{it}: {names}" for it in parents if (names := children(onlooker, f"{path}/{it}"))]

    for number in range(rounds):
        pool = zklock.WorkerPool(
            client, path, shards=2, settle=0.0, handler=lambda shard: shard.should_stop.wait()
        )
        started = False
        try:
            alarm.set(longest * (number + 1) / rounds)
            if how == "with":
                with pool:
                    pass
            else:
                pool.start()
                started = True
            alarm.stop()
            tally["done"] += 1
        except Interrupted:
            tally["interrupted"] += 1
        if started:
            pool.stop()
        try:
            wait_for(lambda: not left(), SOON, lambda: f"{left()} after {tally}")
        except TimeoutError as error:
            say(str(error))
            raise
    wait_for(lambda: not pools_threads(), SOON, lambda: f"{pools_threads()} are left")
    say(tally)
    client.stop()
    onlooker.stop()


def pools_threads() -> list[str]:
    ours = {"zklock-pool", "zklock-campaign", "zklock-stop"}
    # An interrupt in Thread.start() may keep a new thread from its first line for ever, by the lock
    # of the event that start() waits for. Such a thread counts as not alive, and runs nothing.
    names = (thread.name for thread in threading.enumerate() if thread.is_alive())
    return [name for name in names if name in ours or name.startswith("zklock-shard")]


PARTS: dict[str, Callable[..., None]] = {
    "queue": queue,
    "numbered": numbered,
    "paused": paused,
    "forked": forked,
    "working_forked": working_forked,
    "leaving": leaving,
    "forks_and_returns": forks_and_returns,
    "aio_forked": aio_forked,
    "interrupt_pool": interrupt_pool,
    "elect": elect,
    "acquire_leadership": acquire_leadership,
    "work": work,
    "interrupted": interrupted,
    "obey": partial(commands.obey, say=say),
    "command": partial(commands.command, say=say, hear=hear),
}

if __name__ == "__main__":
    PARTS[sys.argv[1]](**json.loads(sys.argv[2]))
