"""The peer relay between plain sockets."""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import pytest

from zklock.testing.relay import PeerRelay

SILENCE = 0.15
PATIENCE = 10.0


@dataclass
class Members:
    relay: PeerRelay
    listeners: list[socket.socket]
    stack: ExitStack

    def port(self, index: int) -> int:
        return int(self.listeners[index].getsockname()[1])

    def ask(self, source: int, port: int) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.relay.ports[source]), PATIENCE)
        self.stack.enter_context(client)
        client.sendall(b"\x05\x02\x00\x02")
        assert client.recv(2) == b"\x05\x00"
        client.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + struct.pack(">H", port))
        return client

    def connect(self, source: int, target: int) -> tuple[socket.socket, socket.socket]:
        client = self.ask(source, self.port(target))
        assert granted(client)
        return client, self.accept(target)

    def accept(self, target: int) -> socket.socket:
        server, _ = self.listeners[target].accept()
        self.stack.enter_context(server)
        server.settimeout(PATIENCE)
        return server


def granted(client: socket.socket) -> bool:
    answer = client.recv(10)
    assert len(answer) == 10
    return answer[1] == 0


def silent(receiver: socket.socket) -> bool:
    receiver.settimeout(SILENCE)
    try:
        return receiver.recv(1, socket.MSG_PEEK) is None
    except TimeoutError:
        return True
    finally:
        receiver.settimeout(PATIENCE)


@pytest.fixture
def members() -> Iterator[Members]:
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        for listener in listeners:
            listener.settimeout(PATIENCE)
        relay = PeerRelay({one.getsockname()[1]: index for index, one in enumerate(listeners)})
        stack.callback(relay.close)
        yield Members(relay, listeners, stack)


def test_both_directions_and_large_messages_pass(members: Members) -> None:
    near, far = members.connect(0, 1)
    near.sendall(b"ping")
    assert far.recv(4) == b"ping"
    message = bytes(range(256)) * 4000
    far.sendall(message)
    received = bytearray()
    while len(received) < len(message):
        received += near.recv(65536)
    assert bytes(received) == message


def test_ends_and_resets_reach_the_other_end(members: Members) -> None:
    near, far = members.connect(0, 1)
    near.shutdown(socket.SHUT_WR)
    assert far.recv(1) == b""
    far.sendall(b"still here")
    assert near.recv(10) == b"still here"
    far.close()
    assert near.recv(1) == b""
    near, far = members.connect(0, 1)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    with suppress(ConnectionResetError):
        assert near.recv(1) == b""


@pytest.mark.parametrize("cut", [0, 1])
def test_a_cut_is_silence_in_both_directions_and_healing_delivers(
    members: Members, cut: int
) -> None:
    near, far = members.connect(0, 1)
    members.relay.cut(cut)
    near.sendall(b"to far")
    far.sendall(b"to near")
    assert silent(far)
    assert silent(near)
    members.relay.heal(cut)
    assert far.recv(6) == b"to far"
    assert near.recv(7) == b"to near"


def test_closing_is_not_seen_through_a_cut(members: Members) -> None:
    near, far = members.connect(0, 1)
    members.relay.cut(1)
    near.sendall(b"last words")
    near.close()
    assert silent(far)
    members.relay.heal(1)
    assert far.recv(10) == b"last words"
    assert far.recv(1) == b""


def test_a_new_connection_across_a_cut_hangs_until_healed(members: Members) -> None:
    members.relay.cut(1)
    client = members.ask(0, members.port(1))
    assert silent(client)
    members.relay.heal(1)
    assert granted(client)


def test_a_link_is_cut_while_either_end_is_and_no_other(members: Members) -> None:
    near, far = members.connect(0, 1)
    members.relay.cut(0)
    members.relay.cut(1)
    members.relay.heal(0)
    near.sendall(b"x")
    assert silent(far)
    near_other, other = members.connect(0, 2)
    near_other.sendall(b"x")
    assert other.recv(1) == b"x"
    members.relay.heal(1)
    assert far.recv(1) == b"x"


def test_who_is_no_member_or_down_is_refused(members: Members) -> None:
    port = members.port(1)
    members.listeners[1].close()
    for refuses in (1, members.port(0), port):
        assert not granted(members.ask(0, refuses))
    with socket.create_connection(("127.0.0.1", members.relay.ports[0]), PATIENCE) as client:
        client.sendall(b"\x04\x01")  # another protocol
        assert client.recv(1) == b""


def test_closing_the_relay_closes_everything_even_cut_links(members: Members) -> None:
    near, far = members.connect(0, 1)
    members.relay.cut(0)
    waiting = members.ask(0, members.port(2))
    members.relay.close()
    members.relay.close()
    for end in (near, far, waiting):
        with suppress(ConnectionResetError):
            assert end.recv(1) == b""
