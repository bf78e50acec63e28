"""A client's stream: what is ours, what is kazoo's, and what can be of neither."""

from __future__ import annotations

import struct
from typing import Any, cast

import pytest

from zklock._core.link import FIRST, LONGEST_FIRST, Broken, Flight, Link
from zklock._core.wire import Codec
from zklock._recipes.effects import Exists, Failed, Failure, Read, Request, Sync, Write
from zklock.testing.zookeeper import codec, messages
from zklock.testing.zookeeper.codec import Op
from zklock.testing.zookeeper.messages import Answer, Code, Connected, EventKind, WatchEvent

SESSION = 7
CODEC = Codec("/app", lambda: None, lambda: SESSION)
HANDSHAKE = messages.frame(Connected(4000, SESSION, b"0123456789abcdef", False))
STAT = codec.Stat(1, 2, 3, 4, 0, 0, 0, SESSION, 0, 0, 5)
CLOSE, PING = (struct.pack(">iii", 8, xid, op) for xid, op in ((9, -11), (-2, 11)))
LAST = 2**31 - 1
AUTH_XID = -4


class Rider:
    """Notes what the stream tells."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def shaken(self, milliseconds: int, session_id: int, *, read_only: bool) -> None:
        self.told.append((milliseconds, session_id, read_only))

    def fired(self, kind: int, path: str) -> None:
        self.told.append((kind, path))

    def pinged_back(self) -> None:
        self.told.append("ping")

    def closing(self) -> None:
        self.told.append("closing")

    def went_back(self, zxid: int) -> None:
        self.told.append(("back", zxid))

    def warn(self, message: str, *details: object) -> None:
        self.told.append(message % details)


class Stream(Link):
    """A link after its handshake, and the results that came."""

    def __init__(self, *, connected: bool = True) -> None:
        self.rider = Rider()
        super().__init__(self.rider, cast("Any", self.rider))
        self.results: list[Any] = []
        self.opened()
        if connected:
            self.hear(HANDSHAKE)
            self.serving = True
            self.inbox.clear()
            self.rider.told.clear()

    def hear(self, data: bytes) -> None:
        self.receive(CODEC, data)

    def send(self, *requests: Request) -> list[int]:
        """Send; return the numbers."""
        self.out.clear()
        self.ask(
            CODEC,
            Flight(requests, 0.0, lambda it: self.results.append(tuple(it.results))),
            len(requests),
        )
        frames = codec.Splitter().feed(codec.framed(b"x") + b"".join(self.out))[0][1:]
        return [codec.ASKED.unpack(frame)[0][0] for frame in frames]


@pytest.fixture
def link() -> Stream:
    return Stream()


def answer(xid: int, op: Op = Op.SYNC, body: Any = ("/app/a",), zxid: int = 5) -> bytes:
    return messages.frame(Answer(xid, zxid, 0, op, body))


def auth(xid: int) -> bytes:
    return codec.framed(codec.ASKED.pack((xid, Op.AUTH)) + bytes(12))


def get(path: str, xid: int = 1, *, watch: bool = True) -> bytes:
    return codec.framed(
        codec.ASKED.pack((xid, Op.GET_DATA)) + codec.REQUESTS[Op.GET_DATA].pack((path, watch))
    )


def conversation() -> tuple[Stream, bytes]:
    """Return a stream on which much is due, and all that comes."""
    link = Stream(connected=False)
    link.pass_on(get("/app/w", 3))
    one, two = link.send(Exists("/a"), Read("/b"))
    return link, b"".join(
        (
            HANDSHAKE,
            answer(3, Op.GET_DATA, (b"kazoo's", STAT)),
            answer(one, Op.EXISTS, (STAT,)),
            messages.frame(WatchEvent(EventKind.DATA_CHANGED, "/app/w")),
            answer(-2, Op.PING, ()),
            messages.frame(WatchEvent(EventKind.DELETED, "/app/ours")),
            answer(two, Op.GET_DATA, (b"data", STAT)),
        )
    )


def told(link: Stream) -> Any:
    return link.results, list(link.inbox), link.rider.told, link.idle, link.seen


def test_a_stream_may_be_cut_after_any_byte() -> None:
    whole, data = conversation()
    whole.hear(data)
    ((there, read),) = whole.results
    assert (there.path, there.mine, read.data) == ("/a", True, b"data")
    frames = [messages.frame(WatchEvent(EventKind.DATA_CHANGED, "/app/w")), answer(-2, Op.PING, ())]
    assert list(whole.inbox) == [HANDSHAKE, answer(3, Op.GET_DATA, (b"kazoo's", STAT)), *frames]
    assert whole.rider.told == [(4000, SESSION, False), (3, "/w"), "ping", (2, "/ours")]
    assert whole.idle
    for cut in range(len(data) + 1):
        link, _ = conversation()
        link.hear(data[:cut])
        link.hear(data[cut:])
        assert told(link) == told(whole)
    link, _ = conversation()
    for at in range(len(data)):
        link.hear(data[at : at + 1])
    assert told(link) == told(whole)


def test_numbers_go_on_after_a_cut_and_begin_again_after_the_last(link: Stream) -> None:
    assert link.send(Sync("/a"), Sync("/a")) == [FIRST, FIRST + 1]
    link.cut()
    link.opened()
    link.hear(HANDSHAKE)
    assert link.send(Sync("/a")) == [FIRST + 2], "a late one could be taken for a new one"
    link.hear(answer(FIRST + 2))
    link._xid = LAST - 1
    xids = link.send(*[Sync("/a")] * 4)
    assert xids == [LAST - 1, LAST, FIRST, FIRST + 1]
    for xid in xids:
        link.hear(answer(xid))
    assert link.results == [(None,), (None,) * 4]
    assert link.idle


@pytest.mark.parametrize(
    ("due", "data"),
    [
        (0, answer(FIRST)),
        (2, answer(FIRST + 1)),
        (1, answer(FIRST) * 2),
        (1, answer(3) + answer(3)),
        (1, answer(1)),
        (1, struct.pack(">i", 15) + bytes(15)),
        (1, answer(FIRST) + struct.pack(">i", 15) + bytes(15)),
        (1, struct.pack(">i", 0)),
        (1, b"\xff\xff\xff\xff"),
        (0, codec.framed(codec.ANSWERED.pack((codec.EVENT_XID, -1, 0)) + bytes(8))),
    ],
    ids=[
        *("stray", "skips one", "twice", "kazoo's twice", "not kazoo's"),
        *("short", "short behind another", "empty", "negative", "short event"),
    ],
)
def test_what_cannot_be_of_the_stream_breaks_it(due: int, data: bytes) -> None:
    link = Stream()
    link.send(*[Sync("/a")] * due)
    link.pass_on(get("/app/a", 3))
    with pytest.raises(Broken):
        link.hear(data)


@pytest.mark.parametrize("size", [LONGEST_FIRST + 1, 10, 16, 19])
def test_a_first_frame_that_is_no_handshake_breaks_the_stream(size: int) -> None:
    with pytest.raises(Broken):
        Stream(connected=False).hear(struct.pack(">i", size) + bytes(19))


@pytest.mark.parametrize("flag", [False, True, None])
@pytest.mark.parametrize("password", [bytes(16), b"", None])
def test_a_handshake_tells_of_a_server_that_only_reads(
    password: bytes | None, flag: bool | None
) -> None:
    link = Stream(connected=False)
    size = -1 if password is None else len(password)
    more = b"" if flag is None else bytes([flag])
    link.hear(codec.framed(struct.pack(">iiqi", 0, 0, 0, size) + (password or b"") + more))
    assert link.rider.told == [(0, 0, bool(flag))]


def test_an_answer_that_is_malformed_fails_its_request_alone(link: Stream) -> None:
    one, two = link.send(Read("/a"), Sync("/a"))
    link.hear(answer(one, Op.SYNC, ("",)) + answer(two))
    ((failed, done),) = link.results
    assert isinstance(failed, Failed)
    assert (failed.why, done) == (Failure.OTHER, None)


def test_what_no_server_would_read_fails_and_is_not_sent(link: Stream) -> None:
    (xid,) = link.send(Write("/a", bytes(2**21)), Sync("/a"))
    link.hear(answer(xid))
    ((failed, done),) = link.results
    assert isinstance(failed, Failed)
    assert done is None


@pytest.mark.parametrize("xid", [1, FIRST])
def test_an_error_that_kazoo_does_not_know_is_told(link: Stream, xid: int) -> None:
    link.pass_on(get("/a"))
    link.send(Sync("/a"))
    link.hear(messages.frame(Answer(xid, 5, -4321)))
    assert link.rider.told == ["ZooKeeper answered with the unknown error code -4321"]
    assert list(link.inbox) == ([messages.frame(Answer(1, 5, -100))] if xid == 1 else [])
    assert len(link.results) == (xid == FIRST)


def test_an_error_that_kazoo_knows_is_handed_on(link: Stream) -> None:
    link.pass_on(get("/a"))
    link.hear(missing := messages.frame(Answer(1, 5, Code.NO_NODE)))
    assert (list(link.inbox), link.rider.told) == ([missing], [])


def test_answers_to_credentials_are_held_back_until_they_are_due(link: Stream) -> None:
    for frame in (get("/a", 1), auth(AUTH_XID), get("/b", 2), auth(AUTH_XID)):
        link.pass_on(frame)
    first, second = messages.frame(Answer(AUTH_XID, 0, 0)), messages.frame(Answer(AUTH_XID, 0, 0))
    one, two = (answer(xid, Op.GET_DATA, (b"", STAT)) for xid in (1, 2))
    link.hear(first + second)
    assert not link.inbox
    link.hear(one)
    assert list(link.inbox) == [one, first]
    link.hear(two)
    assert list(link.inbox) == [one, first, two, second]


@pytest.mark.parametrize(
    ("asked", "path", "heard", "told"),
    [
        (get("/app/a"), "/app/a", 1, "/a"),  # kazoo's watch has fired; ours may be another one
        (PING, "/app/a", 0, "/a"),
        (get("/app/a", watch=False), "/app/a", 0, "/a"),
        *((struct.pack(">iiii", 12, 1, op, 0), "/app/a", 2, "/a") for op in (101, 105, 106)),
        (PING, "/app", 0, "/"),
        (PING, "", 0, "/"),  # of the session
    ],
)
def test_an_event_reaches_kazoo_if_it_watches_or_does_so_in_a_way_that_is_not_known(
    link: Stream, asked: bytes, path: str, heard: int, told: str
) -> None:
    link.pass_on(asked)
    event = messages.frame(WatchEvent(EventKind.DELETED, path))
    for number in (1, 2):
        link.hear(event)
        assert list(link.inbox) == [event] * min(heard, number)
    assert link.rider.told == [(2, told)] * 2


@pytest.mark.parametrize("xid", [FIRST, 1, -2])
def test_an_older_transaction_breaks_the_stream(link: Stream, xid: int) -> None:
    link.send(Sync("/a"), Sync("/a"))
    link.hear(answer(FIRST, zxid=9))
    assert link.seen == 9
    link.hear(answer(-2, Op.PING, (), zxid=0))
    with pytest.raises(Broken):
        link.hear(answer(FIRST + 1 if xid == FIRST else xid, Op.PING, (), zxid=8))
    assert link.rider.told[-1] == ("back", 8)


def test_a_cut_drops_all_that_is_due_and_nothing_goes_out_behind_the_end(link: Stream) -> None:
    link.send(Sync("/a"))
    link.pass_on(get("/app/a"))
    link.cut()
    assert (link.out, link.idle, link.serving, link.results) == ([], True, False, [])
    link.opened()
    link.hear(HANDSHAKE)
    link.serving = True
    link.inbox.clear()
    link.hear(messages.frame(WatchEvent(EventKind.DELETED, "/app/a")))
    assert not link.inbox, "kazoo's watch went with its connection"
    served = []
    for frame in (PING, CLOSE):
        link.pass_on(frame)
        served.append(link.serving)
    assert served == [True, False]
    assert link.rider.told[-1] == "closing"
    assert link.out[-2:] == [PING, CLOSE]
