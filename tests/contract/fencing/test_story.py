"""The classic story, for every guard: a holder that is paused past its session writes late.

Holder A acquires with token 33 in a process of its own, which is stopped until its session is
over; B acquires with 34; A goes on as if nothing had happened, and writes with its token.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import uuid
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

import zklock
from tests.contract.fencing.conftest import Stores
from tests.contract.support import freeze, granted
from zklock.errors import LockLost, NotOwner, StaleToken
from zklock.fencing import verify_owner
from zklock.testing import ZooKeeperServer
from zklock.testing.guard_conformance import Handle, Subject

SESSION = 1.5
PATIENCE = 30.0

# MemoryGuard is met as its users meet it, over HTTP.
KINDS = (
    "http",
    "file",
    "sqlite",
    "sqlite-sqlalchemy",
    "postgresql",
    "postgresql-serializable",
    "mariadb",
    "redis",
    "redis-cluster",
    "zookeeper",
)


def hold(subject: Subject, hosts: str, path: str, with_grant: bool, parent: Connection) -> None:
    """Be holder A: acquire, and write whenever told to, never asking whether it still holds."""
    parent.send("ready")
    with contextlib.closing(subject.open()) as handle:
        client = zklock.connect(hosts, timeout=SESSION)
        grant = granted(zklock.Lock(client, path, identity="A"), timeout=PATIENCE)
        parent.send((grant.token, grant.held))
        while (data := parent.recv()) is not None:
            held = grant.held
            try:
                handle.write(data, grant if with_grant else grant.token)
            except StaleToken as error:
                parent.send((held, "refused", str(error)))
            except LockLost as error:
                parent.send((held, "lost", str(error)))
            else:
                parent.send((held, "accepted", ""))


class Story:
    def __init__(
        self,
        subject: Subject,
        server: ZooKeeperServer,
        stack: contextlib.ExitStack,
        with_grant: bool = False,
    ) -> None:
        self.subject = subject
        self.path = f"/stories/{uuid.uuid4().hex}"
        self.client = zklock.connect(server.hosts, timeout=10.0)
        stack.callback(self.client.close)
        stack.callback(self.client.stop)
        self._count_to(33)
        context = multiprocessing.get_context("forkserver")
        self._holder, child = context.Pipe()
        self._process = context.Process(
            target=hold, args=(subject, server.hosts, self.path, with_grant, child), daemon=True
        )
        self._process.start()
        child.close()
        stack.callback(self._process.join)
        stack.callback(self._process.kill)
        # What a process has to import first takes its time on a busy machine.
        assert self._holder.recv() == "ready"
        assert self._holder.poll(PATIENCE)
        self.token, held = self._holder.recv()
        assert (self.token.sequence, held) == (33, True)
        self.handle: Handle = stack.enter_context(contextlib.closing(subject.open()))

    def _count_to(self, sequence: int) -> None:
        self.client.ensure_path(self.path)
        for _ in range(sequence):
            self.client.delete(self.client.create(f"{self.path}/used-", sequence=True))

    def late_write(self, data: bytes) -> tuple[bool, str, str]:
        """Have A write; return whether it believed to hold, what happened, and the message."""
        self._holder.send(data)
        assert self._holder.poll(PATIENCE)
        answer: tuple[bool, str, str] = self._holder.recv()
        return answer

    def pause(self) -> None:
        assert self._process.pid is not None
        freeze(self._process.pid)

    def resume(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def acquire(self) -> zklock.Grant:
        """Be holder B: A's session has to end first."""
        grant = granted(zklock.Lock(self.client, self.path, identity="B"), timeout=PATIENCE)
        assert grant.token.sequence == 34
        assert grant.token > self.token
        return grant


@pytest.fixture
def tell(stores: Stores, zookeeper: ZooKeeperServer) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def begin(kind: str, with_grant: bool = False) -> Story:
            return Story(stores[kind].fresh(), zookeeper, stack, with_grant)

        yield begin


@pytest.mark.parametrize("claims", [True, False], ids=["claim", "first write"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_claim_shuts_the_late_holder_out_before_the_first_write(
    kind: str, claims: bool, tell: Any
) -> None:
    """Without a claim, the first write does."""
    story = tell(kind)
    assert story.late_write(b"A, in time") == (True, "accepted", "")
    story.pause()
    grant = story.acquire()
    if claims:
        story.handle.guard.claim(grant)
    else:
        story.handle.write(b"B", grant)
    story.resume()
    held, outcome, message = story.late_write(b"A, late")
    assert (held, outcome) == (False, "refused")
    assert f"token {story.token} is stale, {grant.token} has been seen" in message
    assert story.handle.read() == (b"A, in time" if claims else b"B")
    story.handle.write(b"B", grant)
    assert story.late_write(b"A, later")[1] == "refused"
    assert story.handle.read() == b"B"


@pytest.mark.parametrize("kind", KINDS)
def test_the_window_without_a_claim(kind: str, tell: Any) -> None:
    """Until B claims or writes nobody can know; asking the lock service does."""
    story = tell(kind)
    story.pause()
    grant = story.acquire()
    story.resume()
    with pytest.raises(NotOwner, match="'B' does"):
        verify_owner(story.client, story.path, story.token)
    assert verify_owner(story.client, story.path, grant).identity == "B"
    held, outcome, _ = story.late_write(b"A, in the window")
    assert (held, outcome) == (False, "accepted")
    assert story.handle.read() == b"A, in the window"
    story.handle.write(b"B", grant)
    assert story.late_write(b"A, late")[1] == "refused"
    assert story.handle.read() == b"B"


@pytest.mark.parametrize("kind", KINDS)
def test_a_grant_that_its_own_process_knows_to_be_over_leaves_no_window(
    kind: str, tell: Any
) -> None:
    story = tell(kind, with_grant=True)
    assert story.late_write(b"A, in time") == (True, "accepted", "")
    story.pause()
    grant = story.acquire()
    story.resume()
    held, outcome, message = story.late_write(b"A, late")
    assert (held, outcome) == (False, "lost")
    assert message.startswith(f"{story.path}: lock lost at ")
    assert story.handle.read() == b"A, in time"
    story.handle.write(b"B", grant)
    assert story.handle.read() == b"B"
