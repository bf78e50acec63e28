"""Scenes of locks, and commands that look at them: as the pages show them, and as tests want them.

A block names its scene after ``console``. What differs from run to run is compared by its form:
sessions, tokens, ages and other times. A comment behind a command names its exit status.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

import zklock
from tests.contract.support import SOON, queued
from zklock.testing import wait_for

if TYPE_CHECKING:
    from tests.contract.test_cli import Commands

BLOCK = re.compile(r"^```console ([a-z ]+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ ((?:[A-Z_]+=\S+ )*)zklock ", re.MULTILINE)
TOKEN = "[0-9a-f]{16}-([0-9]{10})"
FORMS = [
    (re.compile(r"\b_c_[-0-9a-f]+-(\w+-|__READ__)[0-9]*"), "NODE"),
    (re.compile(TOKEN), "TOKEN"),
    (re.compile(r"0x[0-9a-f]+"), "SESSION"),
    (re.compile(r"\b(?:[0-9]+\.){3}[0-9]+:[0-9]+"), "SERVER"),
    (re.compile(r"\b[0-9]+(\.[0-9]+){2}\S*"), "VERSION"),
    (re.compile(r"\b[0-9]+[dhms](?:[0-9]+[hms])?\b"), "AGE"),
    (re.compile(r'"age": [0-9.]+'), '"age": AGE'),
    (re.compile(r"\b[0-9.]+ (ms|s)\b"), r"TIME \1"),
    (re.compile(r"\b[0-9]{2}:[0-9]{2}:[0-9]{2}\b"), "CLOCK"),
]
PRIVATE = [make_digest_acl("owner", "secret", all=True)]
LOOK = {"show", "ls", "top", "graph", "doctor", "check"}
"""The commands that may be repeated until the queue, or a busy machine, is as it is to be."""


class Stage:
    """Contenders on clients of their own; everything is withdrawn in the end."""

    def __init__(self, root: str, connect: Callable[..., Any], stack: contextlib.ExitStack) -> None:
        self.root = root
        self.client = connect()
        self.client.ensure_path(root)
        self._connect = connect
        self._stack = stack
        self._owners: dict[str, Any] = {}
        self._grants: dict[str, zklock.Grant] = {}

    def queue(self, path: str, identity: str, place: int) -> None:
        """Queue for a lock; return once the contender has this place."""
        owner = identity.rpartition(":")[0] or identity
        client = self._owners.get(owner)
        if client is None:
            client = self._owners[owner] = self._connect()
        self._wait(zklock.Lock(client, f"{self.root}{path}", identity=identity), identity)
        queued(self.client, f"{self.root}{path}", place)

    def permit(self, path: str, identity: str, place: int) -> None:
        """Queue for one of two permits; return once the contender has this place."""
        path = f"{self.root}{path}"
        semaphore = zklock.Semaphore(self._connect(), path, limit=2, identity=identity)
        self._wait(semaphore, identity)
        wait_for(lambda: len(semaphore.contenders()) == place, SOON)

    def pool(self, path: str, shards: int, *identities: str) -> None:
        """Start workers; return once each owns its part of the shards."""
        path = f"{self.root}{path}"
        for identity in identities:
            pool = zklock.WorkerPool(self._connect(), path, shards=shards, identity=identity)
            self._stack.enter_context(pool)
        share = [shards // len(identities)] * len(identities)
        wait_for(lambda: [one.owned for one in pool.members()] == share, SOON)

    def release(self, identity: str) -> None:
        """Release the newest lock of this contender."""
        wait_for(lambda: identity in self._grants, SOON)
        self._grants.pop(identity).release()

    def use(self, *paths: str, **options: Any) -> None:
        """Acquire and release these locks."""
        for path in paths:
            with zklock.Lock(self.client, f"{self.root}{path}", **options):
                pass

    def take(self, kind: Callable[..., Any], path: str, **options: Any) -> None:
        """Acquire one of this kind."""
        assert kind(self.client, f"{self.root}{path}", identity="host-7", **options).acquire()

    def node(self, path: str, data: bytes | None = b"", **options: Any) -> None:
        """Make a node, by a client that may make private ones."""
        auth = [("digest", "owner:secret")]
        owner = self._owners.setdefault("owner", self._connect(auth_data=auth))
        self.client.ensure_path(f"{self.root}{path}".rpartition("/")[0])
        owner.create(f"{self.root}{path}", data, **options)

    def _wait(self, lock: zklock.Lock | zklock.Semaphore, identity: str) -> None:
        waiting = self.client.handler.spawn(self._acquire, lock, identity)
        self._stack.callback(waiting.join)
        self._stack.callback(lock.cancel)

    def _acquire(self, lock: zklock.Lock | zklock.Semaphore, identity: str) -> None:
        with contextlib.suppress(zklock.AcquireCancelled):
            grant = lock.acquire()
            assert grant is not None
            self._grants[identity] = grant


def queue(stage: Stage) -> None:
    stage.queue("/locks/report", "host-7:29405:MainThread", 1)
    stage.queue("/locks/table", "host-8:1177:MainThread", 1)
    stage.queue("/locks/report", "host-8:1177:MainThread", 2)
    stage.queue("/locks/report", "host-9:311:MainThread", 3)
    stage.queue("/locks/table", "host-9:310:MainThread", 2)


def deadlock(stage: Stage) -> None:
    stage.queue("/locks/report", "host-7:29405:MainThread", 1)
    stage.queue("/locks/table", "host-8:1177:MainThread", 1)
    stage.queue("/locks/report", "host-8:1177:MainThread", 2)
    stage.queue("/locks/table", "host-7:29405:MainThread", 2)


def mixed(stage: Stage) -> None:
    stage.queue("/locks/report", "host-7:29405:MainThread", 1)
    stage.queue("/locks/report", "host-8:1177:MainThread", 2)
    stage.queue("/locks/report", "host-9:311:MainThread", 3)
    stage.queue("/locks/table", "host-8:1177:MainThread", 1)
    for place, identity in enumerate(["host-7:29406", "host-8:1178", "host-9:312"], 1):
        stage.permit("/permits/gpu", f"{identity}:MainThread", place)
    stage.pool("/jobs", 8, "host-7:29410", "host-8:1180")


def free(stage: Stage) -> None:
    stage.use("/locks/report", "/locks/billing/eu")
    stage.queue("/locks/table", "host-8:1177:MainThread", 1)


def held(stage: Stage) -> None:
    stage.queue("/locks/report", "host-7:29405:MainThread", 1)


def then_passed_on(stage: Stage) -> Iterator[int]:
    stage.queue("/locks/report", "host-8:1177:MainThread", 2)
    yield 1
    stage.queue("/locks/report", "host-9:310:MainThread", 3)
    yield 1
    stage.release("host-7:29405:MainThread")
    yield 2


def empty(stage: Stage) -> None:
    """Leave the stage empty."""


def foreign(stage: Stage) -> None:
    stage.queue("/a", "host-7", 1)
    stage.node(f"/a/{'0' * 32}__lock__", b"kazoo's own", ephemeral=True, sequence=True)


def kinds(stage: Stage) -> None:
    """Show every kind of a holder, and of a node that is none."""
    stage.use("/kept", identity="host-7", keep=600.0)
    stage.take(zklock.LeaderElection, "/election")
    stage.take(zklock.ReadLock, "/table")
    stage.node("/folder/today")
    stage.node("/unnamed/-lock-", None, ephemeral=True, sequence=True)
    stage.node("/persistent/_c_0-lock-", b"gone", sequence=True)


def strangers(stage: Stage) -> None:
    stage.node("/plain/entry-", sequence=True)
    stage.node("/a/n_", sequence=True, ephemeral=True)
    stage.node("/b/n_", sequence=True, ephemeral=True)
    stage.node("/b/-lock-", sequence=True, ephemeral=True)


def names(stage: Stage) -> None:
    """Have folders that are named as a semaphore's nodes, below the root and elsewhere."""
    for folder in ("", "/a"):
        stage.take(zklock.Lock, f"{folder}/locks/report")
        stage.take(zklock.Lock, f"{folder}/leases/x")


def pool(stage: Stage) -> None:
    stage.pool("/p", 2, "w1")
    stage.take(zklock.Lock, "/p")


def closed(stage: Stage) -> None:
    stage.node("/a/closed", acl=PRIVATE)
    stage.node("/b/_c_0-lock-", b"a secret", acl=PRIVATE, ephemeral=True, sequence=True)
    stage.take(zklock.Semaphore, "/s", limit=1)
    stage.client.set_acls(f"{stage.root}/s/leases", PRIVATE)
    stage._stack.callback(
        lambda: stage._owners["owner"].set_acls(f"{stage.root}/s/leases", OPEN_ACL_UNSAFE)
    )


def shared(stage: Stage) -> None:
    stage.take(zklock.ReadLock, "/read")
    stage.take(zklock.Lock, "/held")
    stage.take(zklock.Semaphore, "/s", limit=3)


SCENES: dict[str, Callable[[Stage], None]] = {
    **{"queue": queue, "deadlock": deadlock, "mixed": mixed, "free": free, "held": held},
    **{"empty": empty, "dev": empty, "foreign": foreign, "kinds": kinds, "strangers": strangers},
    **{"names": names, "pool": pool, "closed": closed, "shared": shared},
}
THEN: dict[str, Callable[[Stage], Iterator[int]]] = {"held": then_passed_on}
"""What happens once ``zklock watch`` has printed its first line; how many lines tell of each step.
The next step waits for these: two changes between two looks would be told in another order."""


def formed(text: str) -> str:
    for pattern, form in FORMS:
        text = pattern.sub(form, text)
    return re.sub("(?<=\\S) {2,}", "  ", text)  # columns are as wide as what differs


def is_true(block: str, scene: str, stage: Stage, zk: Commands) -> None:
    """Run the commands of a block, and insist on the output and the status of each."""
    SCENES[scene](stage)
    hosts = zk.environ["ZKLOCK_HOSTS"] = zk.environ["ZKLOCK_HOSTS"] + stage.root
    folder = str(Path(sys.executable).parent)
    path = os.pathsep.join([folder, zk.environ["PATH"]])
    environ = zk.environ | {"PYTHONIOENCODING": "utf-8", "PATH": path}
    _, *words = COMMAND.split(block)
    for given, text in zip(words[::2], words[1::2], strict=True):
        command, *expected = text.rstrip("\n").split("\n")
        line, _, comment = command.partition(" #")
        status = re.search(r"\bstatus ([0-9]+)", comment)
        zk.environ = environ | dict(it.split("=", 1) for it in given.split())
        arguments = shlex.split(line.replace("$HOSTS", hosts))
        prints(
            [_present(each, arguments, stage) for each in arguments],
            [formed(each) for each in expected],
            int(status[1]) if status else None,
            scene, stage, zk,
        )  # fmt: skip


def _present(argument: str, line: list[str], stage: Stage) -> str:
    """Return a token or a node as one of the lock that the line names; else the argument."""
    if argument.endswith("/NODE"):
        return argument.replace("NODE", queued(stage.client, stage.root + argument[:-5], 1)[0])
    if not re.fullmatch(TOKEN, argument):
        return argument
    path = f"{stage.root}{next(each for each in line if each.startswith('/'))}"
    with contextlib.suppress(NoAuthError):
        stat = stage.client.exists(f"{path}/leases") or stage.client.exists(path)
        return re.sub(TOKEN, rf"{stat.czxid:016x}-\1", argument) if stat else argument
    return argument


def prints(
    arguments: list[str],
    wanted: list[str],
    status: int | None,
    scene: str,
    stage: Stage,
    zk: Commands,
) -> None:
    """Run a command and insist on its output, and on its status."""
    if arguments[0] in {"exporter", "dev"}:
        free = [re.sub("(9642|2181)$", "0", argument) for argument in arguments]
        process = zk.start(*free)
        stream = process.stderr if arguments[0] == "exporter" else process.stdout
        assert stream is not None
        assert [formed(stream.readline().rstrip("\n"))] == wanted
        process.terminate()
        return
    if arguments[0] == "watch" and status is None:
        process = zk.start(*arguments)
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        for count in THEN[scene](stage):
            lines += [process.stdout.readline() for _ in range(count)]
        process.terminate()
        assert [formed(line.rstrip("\n")) for line in lines] == wanted
        return
    said: list[str] = []

    def agrees() -> bool:
        """A busy machine may be slow enough for the doctor to say so."""
        code, out, errors = zk.run(*arguments)
        told = (errors + out).replace(stage.root, "$ROOT")
        said[:] = [*formed(told).splitlines(), f"status {code}"]
        return said == [*wanted, f"status {status or 0}"]

    if LOOK.isdisjoint(arguments):
        assert agrees(), f"{arguments}: {wanted}, but {said}"
    else:
        wait_for(agrees, SOON, lambda: f"{arguments}: {wanted}, but {said}")
