"""What a signal handler raises while kazoo hands a request over reaches the caller."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError

import zklock
from tests.contract.support import SOON
from tests.unit.bytecodes import Bytecodes
from zklock._election.threads import discard
from zklock._engine import future
from zklock._engine.future import Future
from zklock._ground.clock import clock
from zklock._kazoo.handler import Handler
from zklock._telemetry import emit
from zklock.fencing.file import _try_lock
from zklock.testing import EmbeddedServer, embedded

pytestmark = pytest.mark.hazard("H55")


class Struck(BaseException):
    """What a handler raises."""


class StruckBusy(BlockingIOError):
    """What a handler raises whose own pipe is full, or whose file another process has locked."""


class Waker:
    """The writing end of kazoo's wake-up, at which something is raised once, instead of it."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self.error: BaseException | None = None

    def send(self, data: bytes) -> int:
        error, self.error = self.error, None
        if error is not None:
            raise error
        sent: int = self._writer.send(data)
        return sent

    def close(self) -> None:
        self._writer.close()


class Wakes(Handler):
    """A handler that shows the wake-up's writing end."""

    reader: Any
    waker: Waker

    def create_socket_pair(self) -> Any:
        reader, writer = super().create_socket_pair()
        self.reader = reader
        self.waker = Waker(writer)
        return reader, self.waker


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with embedded() as server:
        yield server


@contextmanager
def connected(server: EmbeddedServer) -> Iterator[KazooClient]:
    client = KazooClient(server.hosts, timeout=60.0, handler=Wakes())
    client.start(SOON)
    try:
        yield client
    finally:
        client.handler.repeat_wake_up()  # the wake-up that did not happen
        client.stop()
        client.close()


def ask(client: KazooClient) -> Any:
    return client.exists_async("/")


@pytest.mark.parametrize(
    "error",
    [
        Struck(),
        KeyboardInterrupt(),
        ValueError("of a time limit"),
        TimeoutError("of an alarm"),
        AttributeError("a fault in the handler", name="size", obj=""),
    ],
    ids=repr,
)
def test_what_strikes_arrives(server: EmbeddedServer, error: BaseException) -> None:
    with connected(server) as client:
        client.handler.waker.error = error
        with pytest.raises(type(error)) as raised:
            ask(client)
        assert raised.value is error


def test_the_next_request_is_answered(server: EmbeddedServer) -> None:
    with connected(server) as client:
        client.handler.waker.error = Struck()
        with pytest.raises(Struck):
            ask(client)
        assert ask(client).get(timeout=SOON) is not None


def test_what_strikes_a_look_at_a_lock_is_not_taken_for_a_locked_one(tmp_path: Path) -> None:
    with (tmp_path / "mark").open("wb", buffering=0) as mark:
        bytecodes = Bytecodes("fencing/file.py", error=StruckBusy)
        bytecodes.run(lambda: _try_lock(mark))
        for at in range(1, bytecodes.count + 1):
            assert bytecodes.run(lambda: _try_lock(mark), at), at


CLOSED = [
    AttributeError("'NoneType' object has no attribute 'send'", name="send", obj=None),
]


@pytest.mark.parametrize("error", CLOSED, ids=["gone"])
def test_a_closed_connection_is_told_by_the_result(
    server: EmbeddedServer, error: Exception
) -> None:
    with connected(server) as client:
        client.handler.waker.error = error
        assert isinstance(ask(client).exception, ConnectionClosedError)


def test_what_the_caller_handles_is_not_raised_again(server: EmbeddedServer) -> None:
    with connected(server) as client:
        client.stop()
        try:
            raise Struck
        except Struck:
            assert isinstance(ask(client).exception, ConnectionClosedError)


def test_no_signal_strikes_another_thread(server: EmbeddedServer) -> None:
    with connected(server) as client:
        found: list[Any] = []
        client.handler.waker.error = Struck()
        thread = threading.Thread(target=lambda: found.append(ask(client)))
        thread.start()
        thread.join(SOON)
        assert isinstance(found[0].exception, ConnectionClosedError)


@pytest.mark.parametrize(
    "look",
    [partial(emit._withdrawn, began=0.0, now=clock), discard],
    ids=["told", "resigned"],
)
def test_what_strikes_while_an_outcome_is_looked_at_arrives(look: Callable[[Any], object]) -> None:
    """It was taken for the error of the attempt. A grant would then have been kept for nobody."""
    attempt: Any = Future()
    attempt._resolve(None, zklock.NoAnswer("/lock: no answer", path="/lock"))
    attempt.terms, attempt.told = None, False
    look(attempt)

    def strike(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == future.__file__:
            raise Struck

    before = sys.getprofile()
    with pytest.raises(Struck):
        sys.setprofile(strike)
        try:
            look(attempt)
        finally:
            sys.setprofile(before)
