"""The handler's steps: what an exception tears apart, who reads, and what its own thread does."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kazoo.exceptions import ConnectionClosedError

import zklock
from tests.contract.support import SOON, granted
from zklock._recipes.effects import Pause, Recipe
from zklock._shell import driver
from zklock._shell.handler import Handler
from zklock.testing import wait_for
from zklock.testing.zookeeper.server import EmbeddedServer

pytestmark = pytest.mark.hazard("H9", "H55")


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[Any]:
    with zklock.connect(server.hosts, timeout=20.0) as client:
        yield client


def struck(*_: object) -> None:
    raise KeyboardInterrupt


def answered(handler: Handler) -> bool:
    """Whether who has posted a job hears of it."""
    heard = threading.Event()
    handler.later(heard.set)
    return heard.wait(SOON)


class TestSteps:
    def test_returns_what_the_call_does_and_may_be_nested(self) -> None:
        handler = Handler()
        assert handler.step(lambda: (handler.inside(), handler.step(max, 1, 2))) == (True, 2)
        assert not handler.inside()

    def test_one_thread_at_a_time(self) -> None:
        handler, inside = Handler(), list[int]()

        def call() -> None:
            inside.append(1)
            assert len(inside) == 1
            inside.pop()

        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(handler.step, call) for _ in range(800)]:
                done.result(SOON)

    def test_an_exception_costs_the_connection_and_no_grant(self, client: Any) -> None:
        handler = client.handler
        grant, sock = granted(zklock.Lock(client, "/a")), handler._sock
        with pytest.raises(KeyboardInterrupt):
            handler.step(struck)
        assert handler._torn
        assert handler.step(lambda: handler._sock) is None
        wait_for(lambda: handler.session.connected)
        assert handler._sock is not sock
        assert grant.held
        grant.verify()
        grant.release()

    def test_an_exception_as_it_mends_has_it_mended_again(
        self, client: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handler = client.handler
        with monkeypatch.context() as patch:
            patch.setattr(handler, "drop", struck)
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    handler.step(struck)
        assert handler._torn
        with zklock.Lock(client, "/a"):
            assert not handler._torn

    def test_a_fault_on_its_own_thread_is_logged_and_is_a_cut(
        self, client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        handler, tick = client.handler, client.handler.session.tick
        faults = 2

        def fails() -> float:
            nonlocal faults
            faults -= 1
            if faults >= 0:
                raise LookupError("a fault")
            due: float = tick()
            return due

        monkeypatch.setattr(handler.session, "tick", fails)
        handler.wake()
        wait_for(lambda: faults < 0)
        with zklock.Lock(client, "/a") as grant:
            assert grant.held
        assert caplog.text.count("LookupError: a fault") == 2

    def test_a_fault_in_a_job_keeps_no_other_from_being_done(
        self, client: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        client.handler.post(lambda: 1 / 0)
        assert answered(client.handler)
        assert "ZeroDivisionError" in caplog.text


needs_readers = pytest.mark.skipif(not driver.READS, reason="callers do not read here")


@needs_readers
class TestReaders:
    """A thread that waits reads for a moment, if no other does."""

    @pytest.fixture
    def waiting(self, client: Any) -> Iterator[Any]:
        """An attempt that reads, while nobody does."""
        with zklock.Lock(client, "/a"):
            session = client.handler.session
            attempt = session.attempt(for_ever)
            attempt.start(awaited=True)
            assert client.handler.reader is attempt
            yield attempt
            attempt.cancel()

    def test_it_gets_its_answers_itself(self, client: Any) -> None:
        handler, seen = client.handler, list[int]()
        pump = handler._pump

        def pumped(*reader: Any) -> None:
            seen.append(threading.get_ident())
            pump(*reader)

        handler._pump = pumped
        with zklock.Lock(client, "/a"):
            assert threading.get_ident() in seen
        assert handler.reader is None

    def test_an_interrupt_gives_the_reading_back(
        self, client: Any, waiting: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handler = client.handler
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(handler, "_read", struck)
            waiting.wait(SOON)
        assert answered(handler)
        assert handler.reader is None
        assert client.get_children("/") is not None

    def test_it_is_taken_back_from_who_is_late(self, client: Any, waiting: Any) -> None:
        """It has begun to read, and never does: a signal handler keeps its thread."""
        handler = client.handler
        assert client.get_children("/") is not None
        wait_for(lambda: handler.reader is None)

    def test_a_torn_step_takes_it_back(self, client: Any, waiting: Any) -> None:
        handler = client.handler
        with pytest.raises(KeyboardInterrupt):
            handler.step(struck)
        assert handler.step(lambda: handler.reader) is None

    def test_one_reads_at_a_time(self, client: Any, waiting: Any) -> None:
        other = client.handler.session.attempt(for_ever)
        other.start(awaited=True)
        assert client.handler.reader is waiting
        assert not other.wait(0.01)
        other.cancel()

    def test_who_has_an_outcome_as_it_begins_does_not_read(self, client: Any) -> None:
        def nothing() -> Recipe[None]:
            yield from ()

        attempt = client.handler.session.attempt(nothing).start(awaited=True)
        assert attempt.done
        assert client.handler.reader is None

    def test_a_wait_ends_in_time(self, client: Any, waiting: Any) -> None:
        assert not waiting.wait(0.01)
        assert client.handler.reader is None


def for_ever() -> Any:
    yield Pause(math.inf)


def test_what_the_server_does_not_take_is_sent_later(client: Any, server: EmbeddedServer) -> None:
    handler, data = client.handler, bytes(500_000)
    client.create("/a", b"")
    server.pause()
    results = [client.set_async("/a", data) for _ in range(40)]
    wait_for(lambda: handler._sock.blocked, SOON, "the system takes no more")
    server.resume()
    with zklock.Lock(client, "/b") as grant:
        assert grant.held
    assert [result.get(SOON).dataLength for result in results] == 40 * [len(data)]
    assert not handler.session.link.out


def test_a_release_goes_behind_what_the_user_has_queued_in_kazoo(client: Any) -> None:
    grant = granted(zklock.Lock(client, "/a"))
    client.create("/counter", b"")
    results = [client.set_async("/counter", b"%d" % number) for number in range(50)]
    assert client.handler.is_behind()
    grant.release()
    assert all(result.ready() for result in results)


@pytest.mark.parametrize("awaited", [False, True])
def test_in_a_signal_handler_a_request_goes_out_soon(client: Any, awaited: bool) -> None:
    handler = client.handler
    session = handler.session

    def interrupted() -> Any:
        assert session.interrupted
        return session.attempt(done).start(awaited=awaited)

    attempt = handler.step(interrupted)
    assert attempt.wait(SOON)
    assert attempt.result() == "done"


def done() -> Any:
    yield from ()
    return "done"


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_what_a_signal_handler_raises_in_a_request_of_kazoos_leaves_it(
    client: Any, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        monkeypatch.undo()
        raise error

    monkeypatch.setattr(client.handler._wakes, "_rouse", interrupted)
    with pytest.raises(error):
        client.exists_async("/")
    assert client.exists("/") is not None


def test_what_the_user_has_caught_before_is_not_raised_again(client: Any) -> None:
    client.stop()
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        refused = client.exists_async("/")
    with pytest.raises(ConnectionClosedError):
        refused.get(SOON)


def test_what_a_signal_handler_raises_as_a_connection_ends_leaves_it(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, poller = client.handler, client.handler._poller

    class Interrupted:
        def unregister(self, number: int) -> None:
            monkeypatch.undo()
            raise TimeoutError

        def __getattr__(self, name: str) -> Any:
            return getattr(poller, name)

    monkeypatch.setattr(handler, "_poller", Interrupted())
    with pytest.raises(TimeoutError):
        handler.drop()
    with zklock.Lock(client, "/a") as grant:
        assert grant.held
