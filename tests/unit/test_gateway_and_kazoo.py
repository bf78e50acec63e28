"""Riders on a real client of kazoo's. Its server is a socket that writes down what comes."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.struck import Moments
from tests.contract.support import open_connection
from tests.unit.testing.wire import CONNECTED, OPS, SESSION_ID, Peer, Server, frame, reply, text
from zklock._kazoo.channels import open_store
from zklock._kazoo.connect import new_client
from zklock._kazoo.handler import Handler
from zklock._kazoo.wire import GET_CHILDREN_2
from zklock._recipes.effects import Create, Delete, List, MakePath
from zklock.testing import wait_for

SOON = 60.0


class Book(Server):
    """Writes down the handshakes, and the paths that are asked for, in order.

    Sessions last so long that no ping wakes a connection thread that was not woken for a rider.
    """

    def __init__(self, timeout: int = 600_000) -> None:
        self.connected = frame(
            struct.pack(">iiqi16s?", 0, timeout, SESSION_ID, 16, bytes(16), False)
        )
        self.handshakes: list[bytes] = []
        self.paths: list[str] = []
        super().__init__(self.answer_to)

    def answer_to(self, body: bytes) -> bytes:
        xid, opcode = struct.unpack_from(">ii", body)
        if opcode in {OPS["exists"], OPS["delete"], OPS["create"], OPS["create2"]}:
            size = struct.unpack_from(">i", body, 8)[0]
            self.paths.append(body[12 : 12 + size].decode())
        if opcode == OPS["create"]:
            return frame(struct.pack(">iqi", xid, 7, 0) + text(self.paths[-1]))
        if opcode == OPS["exists"] and self.paths[-1] == "/":
            return frame(struct.pack(">iqi", xid, 7, 0) + bytes(68))
        return reply(xid, error=-101 if opcode == OPS["exists"] else 0)

    def _serve(self, peer: Peer) -> None:
        exactly = peer.exactly

        def first(size: int) -> bytes:
            data = exactly(size)
            if size > 4 and len(self.handshakes) < len(self.connections):
                self.handshakes.append(data)
            return data

        send = peer.send
        peer.exactly = first  # type: ignore[method-assign]
        peer.send = lambda data: send(self.connected if data == CONNECTED else data)  # type: ignore[method-assign]
        super()._serve(peer)


@pytest.fixture
def book() -> Iterator[Book]:
    with Book() as book:
        yield book


class Late(Handler):
    """Threads named ``late`` are held between queueing a request and waking kazoo."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.held = threading.Semaphore(0)

    def create_socket_pair(self) -> Any:
        reader, writer = super().create_socket_pair()
        send = writer.send

        def late(data: bytes) -> int:
            if threading.current_thread().name == "late":
                self.held.release()
                assert self.go.wait(SOON)
            return send(data)

        writer.send = late  # type: ignore[method-assign]
        return reader, writer


class Client:
    """A started client, and a store on it."""

    def __init__(self, book: Book, handler: Handler | None = None) -> None:
        self.handler = handler or Handler()
        self.kazoo = new_client(book.hosts, 30.0, handler=self.handler)
        self.kazoo.start(SOON)
        self.store = open_store(self.kazoo, lambda *_: None, lambda owner: True, threading.RLock())
        wait_for(lambda: open_connection(self.handler) is not None, SOON, "the line")

    def send_batch(self, path: str) -> tuple[threading.Event, list[Any]]:
        heard: list[Any] = []
        landed = threading.Event()

        def done(results: tuple[Any, ...]) -> None:
            heard.extend(results)
            landed.set()

        self.store.send_batch((Delete(path),), done)
        return landed, heard

    def close(self) -> None:
        self.kazoo.stop()
        self.kazoo.close()


@pytest.fixture
def client(book: Book) -> Iterator[Client]:
    client = Client(book)
    yield client
    client.close()


def test_a_rider_does_not_overtake_what_was_queued(book: Book, client: Client) -> None:
    wanted = []
    for turn in range(20):
        for number in range(turn):
            wanted.append(f"/{turn}-{number}")
            client.kazoo.exists_async(wanted[-1])
        wanted.append(f"/{turn}-rider")
        landed, heard = client.send_batch(wanted[-1])
        assert landed.wait(SOON)
        assert heard == [None]
    assert book.paths == wanted


def test_nor_where_other_threads_have_not_woken_kazoo_yet(book: Book) -> None:
    handler = Late()
    client = Client(book, handler)
    wanted = []
    for number in range(3):
        wanted.append(f"/theirs-{number}")
        thread = threading.Thread(
            target=client.kazoo.exists_async, args=(wanted[-1],), name="late", daemon=True
        )
        thread.start()
        assert handler.held.acquire(timeout=SOON)
    wanted += "/mine", "/rider"
    client.kazoo.exists_async("/mine")
    landed, _ = client.send_batch("/rider")
    assert landed.wait(SOON)
    assert book.paths == wanted
    handler.go.set()
    client.close()


def test_what_kazoo_is_asked_after_an_interrupt_is_not_overtaken(
    book: Book, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kazoo has queued the request, and is not woken for it."""
    wake = client.handler._wakes
    assert wake is not None
    with monkeypatch.context() as struck:
        struck.setattr(wake, "send", lambda _: 1)
        asked = client.kazoo.exists_async("/interrupted")
    landed, _ = client.send_batch("/rider")
    assert landed.wait(SOON)
    assert asked.get(timeout=SOON) is None
    assert book.paths == ["/interrupted", "/rider"]


@pytest.mark.hazard("H9")
def test_a_caller_who_is_struck_leaves_nothing_in_line(book: Book, client: Client) -> None:
    moments = Moments()
    moments.run(lambda: client.send_batch("/counted"))
    total = moments.count
    assert total > 30
    for at in range(1, total + 1):
        moments.run(lambda at=at: client.send_batch(f"/{at}"), at)  # type: ignore[misc]
        wait_for(lambda: client.handler.waiting == 0, SOON, f"all is sent, struck at {at}")


def test_a_later_server_hears_what_riders_have_seen(book: Book, client: Client) -> None:
    landed, _ = client.send_batch("/a")
    assert landed.wait(SOON)
    assert client.kazoo.last_zxid == 0  # kazoo has not seen the reply
    client.handler.drop()
    wait_for(lambda: len(book.handshakes) == 2, SOON, lambda: f"{book.handshakes}")
    seen = [struct.unpack_from(">q", handshake, 4)[0] for handshake in book.handshakes]
    assert seen == [0, 7]


def test_nothing_rides_before_kazoo_has_authenticated(book: Book) -> None:
    asked = threading.Event()
    go = threading.Event()
    answer = book.answer

    def slowly(body: bytes) -> bytes:
        if struct.unpack_from(">i", body)[0] == -4:
            asked.set()
            assert go.wait(SOON)
            return frame(struct.pack(">iqi", -4, 0, 0))
        return answer(body)

    book.answer = slowly
    handler = Handler()
    kazoo = new_client(book.hosts, 30.0, auth_data=[("digest", "me:secret")], handler=handler)
    kazoo.start_async()
    assert asked.wait(SOON)
    wait_for(lambda: kazoo.connected, SOON, "CONNECTED, which kazoo says before")
    assert open_connection(handler) is None
    go.set()
    wait_for(lambda: open_connection(handler) is not None, SOON, "the line")
    kazoo.stop()
    kazoo.close()


def test_what_takes_several_requests_goes_through_kazoo(book: Book, client: Client) -> None:
    """The rest of the batch rides when that is done, which another thread of kazoo's tells."""
    for number in range(20):
        landed = threading.Event()
        path = f"/a/{number}"
        batch = (MakePath(path), Create(f"{path}/x-", b""), List(path))
        client.store.send_batch(batch, lambda _, landed=landed: landed.set())  # type: ignore[misc]
        assert landed.wait(SOON)
        assert path in book.paths
        assert book.paths[-1] == f"{path}/x-"


def test_a_listing_is_shared_only_by_those_whose_creates_went_before_it(
    book: Book, client: Client
) -> None:
    """The second one asks while the first listing is under way."""
    asked, go = threading.Event(), threading.Event()
    order: list[str] = []
    answer = book.answer

    def slowly(body: bytes) -> bytes:
        opcode = struct.unpack_from(">i", body, 4)[0]
        order.append("list" if opcode == GET_CHILDREN_2 else "create")
        if order == ["create", "list"]:
            asked.set()
            assert go.wait(SOON)
        return answer(body)

    book.answer = slowly
    landed = [threading.Event() for _ in range(2)]
    batch = (Create("/a/x-", b""), List("/a"))
    client.store.send_batch(batch, lambda _: landed[0].set())
    assert asked.wait(SOON)
    client.store.send_batch(batch, lambda _: landed[1].set())
    assert not landed[1].is_set()
    go.set()
    assert all(each.wait(SOON) for each in landed)
    assert order == ["create", "list", "create", "list"]
    book.answer = answer


def test_pings_go_on() -> None:
    """Kazoo sends them in time, although it does not see that there are replies."""
    with Book(timeout=3000) as book:
        client = Client(book)
        assert client.send_batch("/a")[0].wait(SOON)
        wait_for(lambda: -2 in book.xids, SOON, lambda: f"{book.xids}")
        wait_for(lambda: open_connection(client.handler) is not None, SOON, "the line")
        client.close()


def test_a_version_of_kazoo_that_wakes_differently_would_be_noticed() -> None:
    """Where nothing is queued, kazoo receives the wake-up without sending anything."""
    with Book() as book:
        client = Client(book)
        for _ in range(3):
            client.handler.repeat_wake_up()
        wait_for(lambda: not client.handler.waiting, SOON, "the wake-ups to be received")
        assert [xid for xid in book.xids if xid > 0] == []
        client.close()
