import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from zklock.testing import NotServing, ServerStatus, four_letter, serves_sessions, srvr

FOLLOWER = """\
Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2024-12-29 17:54 UTC
Latency min/avg/max: 0/0.0/0
Received: 12
Sent: 11
Connections: 3
Outstanding: 2
Zxid: 0x100000007
Mode: follower
Node count: 5
"""
LEADER = FOLLOWER.replace("follower", "leader") + "Proposal sizes last/min/max: 48/48/48\n"


def test_parse_reads_every_field() -> None:
    assert ServerStatus.parse(FOLLOWER) == ServerStatus(
        version="3.8.0",
        mode="follower",
        zxid=0x100000007,
        connections=3,
        outstanding=2,
        node_count=5,
        received=12,
        sent=11,
    )
    other = "3.9.3-c26634f34490bb0ea7a09cc51e05ede3b4e3"
    status = ServerStatus.parse(LEADER.replace("3.8.0-${mvngit.commit.id}", other))
    assert (status.mode, status.version) == ("leader", "3.9.3")


def test_a_server_without_quorum_is_not_serving() -> None:
    with pytest.raises(NotServing, match="not currently serving"):
        ServerStatus.parse("This ZooKeeper instance is not currently serving requests\n")


@pytest.mark.parametrize("text", ["HTTP/1.1 400 Bad Request\r\n", "-ERR unknown command", "x"])
def test_foreign_answers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the answer to srvr"):
        ServerStatus.parse(text)


@contextmanager
def answering(behaviour: Callable[[socket.socket], None]) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                behaviour(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join(10)
            assert not thread.is_alive()


def in_pieces(connection: socket.socket) -> None:
    assert connection.recv(4) == b"srvr"
    for piece in FOLLOWER.encode().partition(b"Mode"):
        connection.sendall(piece)


def hang_up(connection: socket.socket) -> None:
    connection.recv(4)


def be_silent(connection: socket.socket) -> None:
    connection.settimeout(10)
    connection.recv(4)
    connection.recv(1)


def stop_halfway(connection: socket.socket) -> None:
    connection.sendall(b"x")
    be_silent(connection)


def trickle(connection: socket.socket) -> None:
    connection.settimeout(10)
    with suppress(OSError):
        while True:
            connection.sendall(b"x")


def test_an_answer_in_pieces_is_put_together() -> None:
    with answering(in_pieces) as port:
        assert srvr("127.0.0.1", port).mode == "follower"


@pytest.mark.parametrize(
    ("behaviour", "error", "why"),
    [
        (be_silent, TimeoutError, "did not finish"),
        (stop_halfway, TimeoutError, "did not finish"),
        (trickle, TimeoutError, "did not finish"),
        (hang_up, OSError, "hung up"),
    ],
)
def test_no_answer_is_an_os_error(
    behaviour: Callable[[socket.socket], None], error: type[OSError], why: str
) -> None:
    with answering(behaviour) as port, pytest.raises(error, match=why):
        srvr("127.0.0.1", port, timeout=0.2)
    with pytest.raises(ConnectionRefusedError):
        srvr("127.0.0.1", port)


@pytest.mark.parametrize("word", ["", "srv", "srvrs", "SRVR", "sr\nv", "ärvr"])
def test_only_four_letters_are_a_word(word: str) -> None:
    with pytest.raises(ValueError, match="four small letters"):
        four_letter("127.0.0.1", 1, word)


@pytest.mark.parametrize("answer", [b"", b"\0\0\0\1x", b"\xff\xff\xff\xff", b"+OK\r\n"])
def test_what_answers_no_handshake_serves_no_sessions(answer: bytes) -> None:
    def behaviour(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)

    with answering(behaviour) as port:
        assert not serves_sessions(f"127.0.0.1:{port}", timeout=60.0)
