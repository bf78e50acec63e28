from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.forked import copied_by_a_child
from tests.unit.testing import wire
from tests.unit.testing.wire import DEADLINE, Client, Server, reply, request
from zklock.testing.frames import Direction, Frame, FrameKind
from zklock.testing.proxy import Counts, Fault, FaultProxy
from zklock.testing.relay import PeerRelay


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(server) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[Client]:
    with Client(proxy.port) as client:
        yield client


def test_it_takes_no_loop_of_the_programs(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a policy makes, such as uvloop's, close connections otherwise."""
    monkeypatch.delattr(asyncio, "new_event_loop")
    with FaultProxy(server) as proxy, Client(proxy.port) as client:
        client.send(request(1, "exists", "/1"))
        assert client.xid() == 1
    PeerRelay({1: 0}).close()


Arm = Callable[[FaultProxy, int], Fault]


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), DEADLINE).close()
    except ConnectionRefusedError:
        return True
    return False


class TestPassingThrough:
    def test_frames_pass_and_are_counted_and_recorded(
        self, proxy: FaultProxy, client: Client, server: Server
    ) -> None:
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        for xid in (1, 2, 3):
            client.send(request(xid, "create2", f"/{xid}"))
            assert client.xid() == xid
        assert server.xids == [1, 2, 3]
        (connection,) = proxy.connections
        assert connection.open
        assert (connection.session_id, connection.session_timeout) == (wire.SESSION_ID, 4.0)
        assert connection.counts == proxy.counts == Counts(requests=3, replies=3)
        asked, answered = proxy.frames[-2:]
        assert (asked.number, asked.connection, asked.direction) == (7, 1, Direction.TO_SERVER)
        assert (asked.kind, asked.op, asked.path) == (FrameKind.REQUEST, "create2", "/3")
        assert asked.size == len(request(3, "create2", "/3")) - 4
        assert (answered.kind, answered.op, answered.error) == (FrameKind.REPLY, "create2", 0)
        assert before <= asked.at <= answered.at
        assert proxy.mark() == answered.number

    def test_pings_and_events_are_counted_apart(
        self, proxy: FaultProxy, client: Client, server: Server
    ) -> None:
        server.answer = lambda body: wire.event(2, "/gone") + reply(wire.PING)
        client.send(wire.ping())
        assert [client.xid(), client.xid()] == [wire.EVENT, wire.PING]
        assert proxy.counts == Counts(events=1, pings=1, pongs=1)

    def test_the_record_is_bounded_and_counting_goes_on(self, server: Server) -> None:
        with FaultProxy(server, record=5) as proxy, Client(proxy.port) as client:
            for xid in range(20):
                client.send(request(xid, "exists"))
                client.xid()
            assert len(proxy.frames) == 5
            assert proxy.frames[-1].number == proxy.mark() == 42
            assert proxy.counts.requests == 20

    def test_four_letter_words_pass_though_the_client_has_shut_its_side(
        self, proxy: FaultProxy
    ) -> None:
        with Client(proxy.port, greet=False) as client:
            client.send(b"isro")
            client.sock.shutdown(socket.SHUT_WR)
            assert client.exactly(2) == b"rw"
            assert client.ended()
        assert proxy.counts == Counts()
        assert {frame.kind for frame in proxy.frames} <= {FrameKind.OPAQUE}

    def test_other_protocols_pass_unread(self, proxy: FaultProxy) -> None:
        hello = b"\x16\x03\x01\x00"
        fault = proxy.drop_before_request()
        with Client(proxy.port, greet=False) as client:
            client.send(hello + b"abcdef")
            assert client.exactly(6) == b"abcdef"
            proxy.drop()
            assert client.ended()
        assert not fault.fired.is_set()
        assert proxy.counts == Counts()

    def test_what_is_small_goes_at_once(self, proxy: FaultProxy, client: Client) -> None:
        # Else every second of two frames in a row waits for some 40 ms.
        (pair,) = proxy._open.values()
        for end in (pair.client, pair._server):
            assert end._transport is not None
            endpoint = end._transport.get_extra_info("socket")
            assert endpoint.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    def test_a_large_frame_passes(self, proxy: FaultProxy, client: Client, server: Server) -> None:
        big = reply(1)[4:] + bytes(3_000_000)
        server.answer = lambda body: wire.frame(big)
        client.send(request(1, "getData"))
        assert client.body() == big

    def test_ends_pass_in_both_directions(self, proxy: FaultProxy, server: Server) -> None:
        with Client(proxy.port):
            pass
        server.wait(lambda: server.ends == 1)
        proxy.wait_until(lambda: not proxy.connections[0].open, DEADLINE)
        with Client(proxy.port) as client:
            server.connections[1].sock.shutdown(socket.SHUT_RDWR)
            assert client.ended()

    def test_a_server_that_is_not_there_ends_the_connection(self, server: Server) -> None:
        with FaultProxy("127.0.0.1:1") as proxy, Client(proxy.port, greet=False) as client:
            client.send(wire.CONNECT)
            assert client.ended()

    def test_a_server_is_asked_for_its_address_at_every_connection(self) -> None:
        with Server() as first, Server() as second:
            target = type("Target", (), {"hosts": first.hosts})()
            with FaultProxy(target) as proxy:
                with Client(proxy.port):
                    assert len(first.connections) == 1
                target.hosts = second.hosts
                with Client(proxy.port):
                    assert len(second.connections) == 1

    def test_a_chroot_stays_in_the_address(self, server: Server) -> None:
        with FaultProxy(f"{server.hosts}/app") as proxy:
            assert proxy.hosts == f"127.0.0.1:{proxy.port}/app"


class TestStandingFaults:
    def test_cut_closes_and_refuses_until_restored_on_the_same_port(
        self, proxy: FaultProxy, client: Client, server: Server
    ) -> None:
        for _ in range(3):
            proxy.cut()
            assert client.ended()
            assert refused(proxy.port)
            proxy.cut()
            proxy.restore()
            proxy.restore()
            client.sock.close()
            client.__init__(proxy.port)  # type: ignore[misc]
        server.wait(lambda: server.ends == 3)

    def test_blackhole_both_ways_swallows_everything_and_accepts(
        self, proxy: FaultProxy, client: Client, server: Server
    ) -> None:
        proxy.blackhole()
        mark = proxy.mark()
        client.send(request(1, "exists"))
        proxy.wait_for_frame(lambda frame: frame.xid == 1, DEADLINE, since=mark)
        with Client(proxy.port, greet=False) as other:
            other.send(wire.CONNECT)
            assert other.silent()
            assert client.silent()
            assert server.xids == []
            proxy.restore()
            assert other.ended()
        assert client.ended()
        with Client(proxy.port) as again:
            again.send(request(1, "exists"))
            assert again.xid() == 1

    def test_a_black_hole_in_one_direction_lets_the_other_through(
        self, proxy: FaultProxy, client: Client, server: Server
    ) -> None:
        proxy.blackhole(to_server=False)
        client.send(request(1, "create"))
        server.wait(lambda: server.xids == [1])
        proxy.wait_for_frame(lambda frame: frame.kind is FrameKind.REPLY, DEADLINE)
        assert client.silent()
        proxy.blackhole(to_client=False)
        client.send(request(2, "create"))
        server.connections[0].send(wire.event(2, "/x"))
        assert client.xid() == wire.EVENT
        assert server.xids == [1]

    def test_blackhole_hides_the_far_ends_closing(
        self, proxy: FaultProxy, client: Client, server: Server
    ) -> None:
        proxy.blackhole()
        server.connections[0].sock.shutdown(socket.SHUT_RDWR)
        proxy.wait_until(lambda: not proxy.connections[0].open, DEADLINE)
        assert client.silent()
        with Client(proxy.port, greet=False) as other:
            other.send(wire.CONNECT)
            proxy.wait_until(lambda: len(proxy.connections) == 2, DEADLINE)
        proxy.wait_until(lambda: not proxy.connections[1].open, DEADLINE)
        assert server.ends == 1
        proxy.restore()
        assert client.ended()

    def test_a_connection_that_lost_nothing_survives_a_black_hole(
        self, proxy: FaultProxy, client: Client
    ) -> None:
        proxy.blackhole()
        proxy.restore()
        client.send(request(1, "exists"))
        assert client.xid() == 1

    def test_hold_keeps_all_back_in_order_until_release(
        self, proxy: FaultProxy, client: Client, server: Server
    ) -> None:
        proxy.hold(to_client=False)
        for xid in (1, 2, 3):
            client.send(request(xid, "exists"))
        client.sock.shutdown(socket.SHUT_WR)
        proxy.wait_until(lambda: proxy.counts.requests == 3, DEADLINE)
        assert server.xids == []
        proxy.release()
        assert [client.xid() for _ in range(3)] == [1, 2, 3]
        assert server.xids == [1, 2, 3]
        assert client.ended()

    def test_release_of_one_direction_leaves_the_other_held(
        self, proxy: FaultProxy, client: Client, server: Server
    ) -> None:
        proxy.hold()
        client.send(request(1, "exists"))
        proxy.release(to_client=False)
        server.wait(lambda: server.xids == [1])
        proxy.wait_until(lambda: proxy.counts.replies == 1, DEADLINE)
        assert client.silent()
        proxy.restore()
        assert client.xid() == 1

    def test_new_connections_hang_while_held(self, proxy: FaultProxy) -> None:
        proxy.hold()
        with Client(proxy.port, greet=False) as client:
            client.send(wire.CONNECT)
            assert client.silent()
            proxy.restore()
            assert client.body()

    def test_delay_is_kept_and_keeps_the_order(self, proxy: FaultProxy, client: Client) -> None:
        proxy.delay(0.2, to_server=False)
        start = time.monotonic()
        client.send(request(1, "exists") + request(2, "exists"))
        assert client.xid() == 1
        assert client.xid() == 2
        assert time.monotonic() - start >= 0.2
        proxy.delay(0)
        proxy.delay(0.2, to_client=False)
        start = time.monotonic()
        client.send(request(3, "exists"))
        assert client.xid() == 3
        assert time.monotonic() - start >= 0.2

    def test_drop_discards_what_is_held_and_accepts_new_connections(
        self, proxy: FaultProxy, client: Client, server: Server
    ) -> None:
        proxy.hold()
        client.send(request(1, "create"))
        proxy.wait_until(lambda: proxy.counts.requests == 1, DEADLINE)
        proxy.drop()
        assert client.ended()
        server.wait(lambda: server.ends == 1)
        assert server.xids == []
        proxy.release()
        with Client(proxy.port) as again:
            again.send(request(2, "exists"))
            assert again.xid() == 2
        assert [c.number for c in proxy.connections] == [1, 2]


class TestOneShotFaults:
    """Each fault at each position of a pipelined batch of five."""

    @staticmethod
    def batch(client: Client) -> list[int]:
        client.send(b"".join(request(xid, "exists") for xid in range(1, 6)))
        answered = []
        try:
            while True:
                answered.append(client.xid())
        except wire.Closed:
            return answered

    @pytest.mark.parametrize("n", range(1, 6))
    @pytest.mark.parametrize(
        ("arm", "delay", "heard", "reached"),
        [
            (FaultProxy.drop_before_request, 0.0, 0, 0),
            (FaultProxy.drop_before_request, 0.02, 0, 0),
            (FaultProxy.drop_after_request, 0.0, 0, 1),
            (FaultProxy.drop_before_reply, 0.0, 0, 5),
            (FaultProxy.drop_after_reply, 0.0, 1, 5),
        ],
    )
    def test_each_at_each_position(
        self,
        proxy: FaultProxy,
        client: Client,
        server: Server,
        arm: Arm,
        delay: float,
        heard: int,
        reached: int,
        n: int,
    ) -> None:
        """``heard``, ``reached``: how many more than those before it get an answer, or a server."""
        proxy.delay(delay)
        fault = arm(proxy, n)
        assert self.batch(client) == list(range(1, n + heard))
        assert fault.wait(DEADLINE).xid == n
        assert fault.answered == (reached > 0)
        if reached < 5:
            server.wait(lambda: server.ends == 1)
            assert server.xids == list(range(1, n + reached))
        else:  # what was sent behind it may have got through
            assert server.xids[:n] == list(range(1, n + 1))

    def test_by_op(self, proxy: FaultProxy, client: Client, server: Server) -> None:
        fault = proxy.drop_before_reply(2, op=("create", "create2"))
        for xid, op in enumerate(["exists", "create", "exists", "create2"], 1):
            client.send(request(xid, op, f"/{op}"))
            if xid < 4:
                assert client.xid() == xid
        assert client.ended()
        assert fault.wait(DEADLINE).path == "/create2"
        assert server.xids == [1, 2, 3, 4]

    def test_pings_and_events_do_not_move_the_count(
        self, proxy: FaultProxy, client: Client, server: Server
    ) -> None:
        server.answer = lambda body: wire.event(2, "/x") + wire.echo(body)
        fault = proxy.drop_before_reply(2)
        client.send(wire.ping() + request(1, "exists"))
        assert [client.xid() for _ in range(4)] == [wire.EVENT, wire.PING, wire.EVENT, 1]
        client.send(wire.ping() + request(2, "exists"))
        assert [client.xid() for _ in range(3)] == [wire.EVENT, wire.PING, wire.EVENT]
        assert client.ended()
        assert fault.wait(DEADLINE).xid == 2

    def test_an_event_can_be_lost(self, proxy: FaultProxy, client: Client, server: Server) -> None:
        fault = proxy.drop_before_reply(op="NodeDeleted")
        server.connections[0].send(wire.event(1, "/x") + wire.event(2, "/x"))
        assert client.xid() == wire.EVENT
        assert client.ended()
        assert fault.wait(DEADLINE).op == "NodeDeleted"

    def test_the_handshake_can_be_lost_on_its_way_back(
        self, proxy: FaultProxy, server: Server
    ) -> None:
        fault = proxy.drop_after_request(op="connect")
        with Client(proxy.port, greet=False) as client:
            client.send(wire.CONNECT)
            assert client.ended()
        assert fault.wait(DEADLINE).kind is FrameKind.HANDSHAKE
        assert fault.answered
        assert proxy.connections[0].session_id == wire.SESSION_ID

    def test_faults_share_frames_one_at_a_time(self, proxy: FaultProxy, client: Client) -> None:
        first, second = proxy.drop_before_request(), proxy.drop_before_request()
        client.send(request(1, "exists"))
        assert client.ended()
        assert first.wait(DEADLINE).connection == 1
        assert not second.fired.is_set()
        with Client(proxy.port) as again:
            again.send(request(1, "exists"))
            assert again.ended()
        assert second.wait(DEADLINE).connection == 2

    def test_only_the_struck_connection_ends(self, proxy: FaultProxy, client: Client) -> None:
        with Client(proxy.port) as other:
            proxy.drop_before_request(where=lambda frame: frame.connection == 2)
            other.send(request(1, "exists"))
            assert other.ended()
        client.send(request(1, "exists"))
        assert client.xid() == 1

    @pytest.mark.parametrize(
        ("arm", "reached"),
        [(FaultProxy.hold_before_request, [1]), (FaultProxy.hold_before_reply, [1, 2, 3])],
    )
    def test_a_moment_is_held(
        self, proxy: FaultProxy, client: Client, server: Server, arm: Arm, reached: list[int]
    ) -> None:
        fault = arm(proxy, 2)
        client.send(request(1, "exists") + request(2, "create") + request(3, "exists"))
        assert client.xid() == 1
        assert fault.wait(DEADLINE).xid == 2
        assert fault.answered == (2 in reached)
        server.wait(lambda: server.xids == reached)
        assert client.silent()
        assert server.xids == reached
        proxy.release()
        assert [client.xid(), client.xid()] == [2, 3]

    def test_a_cancelled_fault_does_not_strike(self, proxy: FaultProxy, client: Client) -> None:
        fault = proxy.drop_before_request()
        assert repr(fault) == "<Fault drop before request 1: armed>"
        fault.cancel()
        fault.cancel()
        client.send(request(1, "exists"))
        assert client.xid() == 1
        assert not fault.fired.is_set()

    def test_a_predicate_that_raises_disarms_the_fault_and_says_so(
        self, proxy: FaultProxy, client: Client
    ) -> None:
        def broken(frame: Frame) -> bool:
            raise KeyError(frame.op)

        def meddling(frame: Frame) -> bool:
            proxy.cut()
            return True

        faults = [proxy.drop_before_request(where=where) for where in (broken, meddling)]
        client.send(request(1, "exists"))
        assert client.xid() == 1
        with pytest.raises(KeyError, match="exists"):
            faults[0].wait(DEADLINE)
        with pytest.raises(RuntimeError, match="must not call"):
            faults[1].wait(DEADLINE)

    @pytest.mark.parametrize("cut", [False, True])
    def test_a_connection_that_ends_in_the_middle_of_a_fault_fires_it(
        self, proxy: FaultProxy, client: Client, server: Server, cut: bool
    ) -> None:
        server.answer = lambda body: b""
        fault = proxy.drop_after_request()
        client.send(request(1, "exists"))
        server.wait(lambda: server.xids == [1])
        assert repr(fault) == "<Fault drop after request 1: struck>"
        if cut:
            proxy.cut()
            assert fault.fired.is_set()
        else:
            server.connections[0].sock.shutdown(socket.SHUT_RDWR)
            assert client.ended()
            client.sock.close()
            fault.wait(DEADLINE)
            proxy.wait_until(lambda: not proxy.connections[0].open, DEADLINE)
        assert not fault.answered


class TestWaiting:
    def test_for_a_frame_that_is_still_to_come(self, proxy: FaultProxy, client: Client) -> None:
        mark = proxy.mark()
        timer = threading.Timer(0.05, client.send, [request(9, "exists")])
        timer.start()
        frame = proxy.wait_for_frame(lambda f: f.kind is FrameKind.REPLY, DEADLINE, since=mark)
        timer.join()
        assert frame.xid == 9

    def test_for_a_frame_that_has_gone_by(self, proxy: FaultProxy, client: Client) -> None:
        client.send(request(1, "exists"))
        client.xid()
        mark = proxy.mark()
        assert proxy.wait_for_frame(lambda f: f.xid == 1, 0).kind is FrameKind.REQUEST
        with pytest.raises(TimeoutError, match=r"(?s)last frames.*reply exists xid=1"):
            proxy.wait_for_frame(lambda f: f.xid == 1, 0.05, since=mark)

    def test_a_fault_that_does_not_fire(self, proxy: FaultProxy) -> None:
        with pytest.raises(TimeoutError, match=r"drop before reply 3 of create: armed"):
            proxy.drop_before_reply(3, op="create").wait(0.05)


class TestFork:
    def test_a_child_keeps_nothing_open(
        self, proxy: FaultProxy, client: Client, server: Server
    ) -> None:
        with copied_by_a_child():
            proxy.cut()
            assert client.ended()
            assert refused(proxy.port)
            proxy.restore()
            with Client(proxy.port) as another:
                proxy.drop()
                assert another.ended()
            proxy.close()
            assert refused(proxy.port)

    def test_in_a_child_it_is_closed(self, proxy: FaultProxy, client: Client) -> None:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                proxy.close()
                proxy.cut()
            except RuntimeError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        client.send(request(1, "exists"))
        assert client.xid() == 1


class TestUse:
    @pytest.mark.parametrize(
        "server", ["", "a:1,b:2", "host:", ":2181", "host:port", "h:²", "h:70000"]
    )
    def test_a_server_that_is_no_address(self, server: str) -> None:
        with pytest.raises(ValueError, match=r"host:port|no such port"):
            FaultProxy(server)

    def test_bad_values(self, proxy: FaultProxy) -> None:
        with pytest.raises(TypeError):
            FaultProxy(type("Target", (), {"hosts": None})())
        with pytest.raises(ValueError, match="must be at least 1, not 0"):
            proxy.drop_before_reply(0)
        with pytest.raises(TypeError, match="int"):
            proxy.drop_before_reply(1.5)  # type: ignore[arg-type]
        for seconds in (-1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="0 or more"):
                proxy.delay(seconds)

    def test_an_operation_that_there_is_not(self, proxy: FaultProxy) -> None:
        with pytest.raises(ValueError, match=r"no operation getAcl to client: use .*getACL"):
            proxy.drop_before_reply(op={"create", "getAcl"})
        with pytest.raises(ValueError, match="no operation NodeDeleted to server: use"):
            proxy.drop_before_request(op="NodeDeleted")
        proxy.drop_before_reply(op=("connect", "getACL", "NodeDeleted")).cancel()

    def test_closing_leaves_nothing_behind(self, server: Server) -> None:
        threads = set(threading.enumerate())
        proxy = FaultProxy(server)
        with Client(proxy.port) as client:
            proxy.close()
            proxy.close()
            assert client.ended()
        assert refused(proxy.port)
        assert {t.name for t in threading.enumerate()} - {t.name for t in threads} <= {
            t.name for t in server._threads
        }
        with pytest.raises(RuntimeError, match="closed"):
            proxy.cut()

    def test_closing_while_clients_storm_in(self, server: Server) -> None:
        for _ in range(20):
            proxy = FaultProxy(server)
            sockets = [socket.create_connection(("127.0.0.1", proxy.port)) for _ in range(10)]
            proxy.close()
            for each in sockets:
                each.close()
