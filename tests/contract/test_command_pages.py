"""The examples in the pages of the commands: each is executed, and its output compared.

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
from typing import Any

import pytest

import zklock
from tests.contract.support import ROOT, SOON, queued
from tests.contract.test_cli import Commands
from zklock.testing import wait_for

PAGES = [ROOT / "docs" / "commands.md", *sorted((ROOT / "docs" / "commands").glob("*.md"))]
FENCE = re.compile(r"^```console.*$", re.MULTILINE)
BLOCK = re.compile(r"^```console ([a-z]+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOKEN = "[0-9a-f]{16}-([0-9]{10})"
FORMS = [
    (re.compile(TOKEN), "TOKEN"),
    (re.compile(r"0x[0-9a-f]+"), "SESSION"),
    (re.compile(r"\b(?:[0-9]+\.){3}[0-9]+:[0-9]+"), "SERVER"),
    (re.compile(r"\b[0-9]+(\.[0-9]+){2}\S*"), "VERSION"),
    (re.compile(r"\b[0-9]+[dhms](?:[0-9]+[hms])?\b"), "AGE"),
    (re.compile(r"\b[0-9.]+ (ms|s)\b"), r"TIME \1"),
    (re.compile(r"\b[0-9]{2}:[0-9]{2}:[0-9]{2}\b"), "CLOCK"),
]

Connect = Callable[[], Any]


class Stage:
    """Contenders on clients of their own; everything is withdrawn in the end."""

    def __init__(self, root: str, connect: Connect, stack: contextlib.ExitStack) -> None:
        self.root = root
        self.client = connect()
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
        lock = zklock.Lock(client, f"{self.root}{path}", identity=identity)
        waiting = client.handler.spawn(self._acquire, lock, identity)
        self._stack.callback(waiting.join)
        self._stack.callback(lock.cancel)
        queued(self.client, f"{self.root}{path}", place)

    def permit(self, path: str, identity: str, place: int) -> None:
        """Queue for one of two permits; return once the contender has this place."""
        semaphore = zklock.Semaphore(
            self._connect(), f"{self.root}{path}", limit=2, identity=identity
        )
        waiting = self.client.handler.spawn(self._acquire, semaphore, identity)
        self._stack.callback(waiting.join)
        self._stack.callback(semaphore.cancel)
        wait_for(lambda: len(semaphore.contenders()) == place, SOON)

    def pool(self, path: str, *identities: str) -> None:
        """Start workers; return once each owns its part of the shards."""
        for identity in identities:
            pool = zklock.WorkerPool(
                self._connect(), f"{self.root}{path}", shards=8, identity=identity
            )
            self._stack.enter_context(pool)
        share = [8 // len(identities)] * len(identities)
        wait_for(lambda: [one.owned for one in pool.members()] == share, SOON)

    def release(self, identity: str) -> None:
        """Release the newest lock of this contender."""
        wait_for(lambda: identity in self._grants, SOON)
        self._grants.pop(identity).release()

    def use(self, *paths: str) -> None:
        """Acquire and release these locks."""
        for path in paths:
            with zklock.Lock(self.client, f"{self.root}{path}"):
                pass

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
    stage.pool("/jobs", "host-7:29410", "host-8:1180")


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


def nothing(stage: Stage) -> None:
    """Leave the stage empty."""


SCENES: dict[str, Callable[[Stage], None]] = {
    "queue": queue,
    "deadlock": deadlock,
    "mixed": mixed,
    "free": free,
    "held": held,
    "dev": nothing,
}
ELSEWHERE = {"secured"}
"""The scenes of ``test_cli_secure.py``, which has a server for them."""
THEN: dict[str, Callable[[Stage], Iterator[int]]] = {"held": then_passed_on}
"""What happens once ``zklock watch`` has printed its first line; how many lines tell of each step.
The next step waits for these: two changes between two looks would be told in another order."""


OTHERS = pytest.mark.thorough(
    "examples of pages of commands: the first one in each scene of a page runs"
)


def examples() -> Iterator[Any]:
    for page in PAGES:
        scenes = set(ELSEWHERE)
        for number, (scene, block) in enumerate(BLOCK.findall(page.read_text())):
            if scene not in ELSEWHERE:
                marks = [OTHERS] * (scene in scenes)
                yield pytest.param(scene, block, id=f"{page.stem}-{number}-{scene}", marks=marks)
            scenes.add(scene)


def formed(text: str) -> str:
    for pattern, form in FORMS:
        text = pattern.sub(form, text)
    return re.sub("(?<=\\S) {2,}", "  ", text)  # columns are as wide as what differs


@pytest.fixture
def stage(zklock_path: str, zklock_connect: Callable[..., Any]) -> Iterator[Stage]:
    with contextlib.ExitStack() as stack:
        yield Stage(zklock_path, lambda: zklock_connect(timeout=30.0), stack)


@pytest.mark.parametrize(("scene", "block"), list(examples()))
def test_an_example_is_true(scene: str, block: str, stage: Stage, zk: Commands) -> None:
    SCENES[scene](stage)
    zk.environ["ZKLOCK_HOSTS"] += stage.root
    zk.environ["PYTHONIOENCODING"] = "utf-8"
    zk.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for one in re.split(r"^\$ zklock ", block, flags=re.MULTILINE)[1:]:
        command, *expected = one.rstrip("\n").split("\n")
        line, _, comment = command.partition("#")
        status = re.search(r"\bstatus ([0-9]+)", comment)
        arguments = [present(argument, line, stage) for argument in shlex.split(line)]
        wanted = [formed(each) for each in expected]
        prints(arguments, wanted, status and int(status[1]), scene, stage, zk)


def test_every_example_names_its_scene() -> None:
    fences = [fence for page in PAGES for fence in FENCE.findall(page.read_text())]
    assert {fence.removeprefix("```console").strip() for fence in fences} == {*SCENES, *ELSEWHERE}


def present(argument: str, line: str, stage: Stage) -> str:
    """Return a token of the page as one of the lock that the line names; else the argument."""
    if not re.fullmatch(TOKEN, argument):
        return argument
    path = next(each for each in line.split() if each.startswith("/"))
    stat = stage.client.exists(f"{stage.root}{path}")
    return re.sub(TOKEN, rf"{stat.czxid:016x}-\1", argument)


def prints(
    arguments: list[str],
    wanted: list[str],
    status: int | None,
    scene: str,
    stage: Stage,
    zk: Commands,
) -> None:
    """Run a command and insist on its output, and on its status if that is known."""
    if arguments[0] in {"exporter", "dev"}:
        free = [re.sub("(9642|2181)$", "0", argument) for argument in arguments]
        process = zk.start(*free)
        stream = process.stderr if arguments[0] == "exporter" else process.stdout
        assert stream is not None
        assert [formed(stream.readline().rstrip("\n"))] == wanted
        process.terminate()
        return
    if arguments[0] == "watch":
        process = zk.start(*arguments)
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        for count in THEN[scene](stage):
            lines += [process.stdout.readline() for _ in range(count)]
        process.terminate()
        assert [formed(line.rstrip("\n")) for line in lines] == wanted
        return
    said: list[str] = []

    def is_true() -> bool:
        """A busy machine may be slow enough for the doctor to say so."""
        code, out, errors = zk.run(*arguments)
        said[:] = [*formed(errors + out).splitlines(), f"status {code}"]
        return said[:-1] == wanted and code == (code if status is None else status)

    wait_for(is_true, SOON, lambda: f"{wanted}, but {said}")
