"""A leader is asked to release through the data of its election's path. On both fronts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.security import make_acl, make_digest_acl

import zklock
from tests.contract.lasting import LASTING
from tests.contract.support import SOON, gone, queued, run
from tests.contract.test_acquired_leadership import acquired, latch
from zklock._recipes import notes
from zklock.testing import FaultProxy, wait_for

Connect = Callable[..., Any]
TERMS = 2
ASKERS = 4


def noted(client: Any, path: str) -> notes.Notes:
    return notes.parse(client.get(path)[0])


def names(*leaderships: Any) -> set[str]:
    return {leadership.path.rpartition("/")[2] for leadership in leaderships}


def told(leadership: Any) -> None:
    wait_for(leadership.should_stop.is_set, SOON, lambda: f"{leadership} is told to stop")


class TestRequest:
    @pytest.mark.parametrize("how", ["election", "lock"])
    def test_hands_over_to_the_next(
        self, front: Any, other: Any, zklock_path: str, how: str
    ) -> None:
        other.create(zklock_path, b"of somebody else", makepath=True)
        first, second = (latch(front, other, zklock_path, name) for name in "ab")
        onlooker = latch(front, other, zklock_path, "c")
        leadership = acquired(first)
        waiting = run(acquired, second)
        nodes = queued(other, zklock_path, 2)
        if how == "election":
            leader = onlooker.request_release()
        else:
            (leader,) = front.Lock(other, zklock_path).request_release()
        assert (leader.identity, leader.token) == ("a", leadership.token)
        told(leadership)
        assert leadership.held, "nothing is taken by force"
        assert noted(other, zklock_path).asked == names(leadership)
        assert [other.exists(f"{zklock_path}/{node}").version for node in nodes] == [0, 0]
        assert not waiting.done()
        leadership.release()
        later = waiting.result(SOON)
        assert not later.should_stop.is_set()
        later.release()
        gone(other, zklock_path)
        assert other.get(zklock_path)[0] == b"of somebody else"

    def test_ends_the_term_of_a_member_that_runs(
        self, front: Any, other: Any, zklock_path: str
    ) -> None:
        def body(leadership: Any) -> Any:
            yield leadership.should_stop

        runner = latch(front, other, zklock_path, "runner")
        running = run(runner.run, front.script(body))
        wait_for(lambda: runner.is_leader, SOON)
        waiting = run(acquired, latch(front, other, zklock_path, "next"))
        queued(other, zklock_path, 2)
        assert runner.request_release().identity == "runner"
        leadership = waiting.result(SOON)
        assert runner.members()[0].identity == "next"
        leadership.release()
        wait_for(lambda: runner.is_leader, SOON)
        runner.stop()
        running.result(SOON)
        gone(other, zklock_path)

    def test_where_nobody_leads(self, front: Any, other: Any, zklock_path: str) -> None:
        election = latch(front, other, zklock_path, "a")
        assert election.request_release() is None
        assert other.exists(zklock_path) is None
        with election.acquire():
            pass
        assert election.request_release() is None
        assert other.get(zklock_path)[0] == b""

    def test_from_many_at_once(
        self, front: Any, other: Any, zklock_connect: Connect, zklock_path: str
    ) -> None:
        clients = [zklock_connect() for _ in range(2)]
        election = latch(front, other, zklock_path, "a")
        leadership = acquired(election)
        ready = threading.Barrier(ASKERS + 1)

        def ask(client: Any) -> Any:
            onlooker = latch(front, client, zklock_path, "onlooker")
            ready.wait(SOON)
            return onlooker.request_release(SOON)

        asking = [run(ask, clients[at % 2]) for at in range(ASKERS)]
        ready.wait(SOON)
        for count in range(5):
            election.set_payload(f"{count}")
        assert {each.result(SOON).token for each in asking} == {leadership.token}
        told(leadership)
        assert noted(other, zklock_path) == notes.Notes(
            b"", dict.fromkeys(names(leadership), b"4"), frozenset(names(leadership))
        )
        leadership.release()
        gone(other, zklock_path)
        assert other.get(zklock_path)[0] == b""

    def test_never_reaches_another_term(
        self, other: Any, zklock_connect: Connect, zklock_path: str
    ) -> None:
        """Somebody asks all the time; the terms end because of it, and each one was asked."""
        asked: set[str] = set()
        over = threading.Event()

        def ask() -> None:
            onlooker = latch(zklock, other, zklock_path, "onlooker")
            while not over.is_set():
                leader = onlooker.request_release(SOON)
                if leader is not None:
                    asked.add(leader.path)

        def stand(identity: str) -> list[Any]:
            election = latch(zklock, zklock_connect(timeout=20.0), zklock_path, identity)
            terms = []
            for _ in range(TERMS):
                leadership = acquired(election)
                terms.append(leadership)
                told(leadership)
                leadership.release()
            return terms

        asking = run(ask)
        standing = [run(stand, identity) for identity in "ab"]
        terms = [leadership for each in standing for leadership in each.result(2 * SOON)]
        over.set()
        asking.result(SOON)
        assert len(terms) == 2 * TERMS
        assert {leadership.path for leadership in terms} == asked
        gone(other, zklock_path)
        assert noted(other, zklock_path).asked <= names(*terms)

    @LASTING
    def test_is_heard_after_the_connection_was_lost(
        self,
        front: Any,
        other: Any,
        zklock_connect: Connect,
        zklock_proxy: FaultProxy,
        zklock_path: str,
    ) -> None:
        client = zklock_connect(zklock_proxy.hosts)
        leadership = acquired(latch(front, client, zklock_path, "a"))
        zklock_proxy.cut()
        asked = latch(front, other, zklock_path, "b").request_release()
        assert asked.token == leadership.token
        assert not leadership.should_stop.is_set()
        zklock_proxy.restore()
        told(leadership)
        assert leadership.held
        leadership.release()
        gone(other, zklock_path)

    @LASTING
    def test_is_not_heard_in_the_next_session(
        self,
        front: Any,
        other: Any,
        zklock_connect: Connect,
        zklock_proxy: FaultProxy,
        zklock_path: str,
        zklock_expire_session: Callable[[Any], int],
    ) -> None:
        client = zklock_connect(zklock_proxy.hosts)
        election = latch(front, client, zklock_path, "a")
        onlooker = latch(front, other, zklock_path, "b")
        first, session = acquired(election), client.client_id
        zklock_proxy.cut()
        assert onlooker.request_release().token == first.token
        zklock_expire_session(session)
        gone(other, zklock_path)
        zklock_proxy.restore()
        wait_for(first.lost.is_set, SOON)
        assert noted(other, zklock_path).asked == names(first)
        later = acquired(election)
        assert onlooker.request_release().token == later.token
        assert noted(other, zklock_path).asked == names(later), "the old one is gone"
        told(later)
        later.release()
        wait_for(lambda: other.get(zklock_path)[0] == b"", SOON, "it takes its request along")

    def test_that_is_not_answered_in_time(
        self,
        front: Any,
        other: Any,
        zklock_connect: Connect,
        zklock_proxy: FaultProxy,
        zklock_path: str,
    ) -> None:
        leadership = acquired(latch(front, other, zklock_path, "a"))
        onlooker = latch(front, zklock_connect(zklock_proxy.hosts), zklock_path, "b")
        assert onlooker.leader().token == leadership.token
        zklock_proxy.blackhole()
        with pytest.raises(zklock.NoAnswer):
            onlooker.request_release(timeout=0.2)
        zklock_proxy.restore()
        assert onlooker.request_release(SOON).token == leadership.token
        told(leadership)
        leadership.release()

    def test_needs_permission_to_write(
        self, front: Any, other: Any, zklock_connect: Connect, zklock_path: str
    ) -> None:
        owner = zklock_connect()
        owner.add_auth("digest", "owner:secret")
        everybody = make_acl("world", "anyone", read=True, create=True, delete=True)
        acl = [make_digest_acl("owner", "secret", all=True), everybody]
        owner.create(zklock_path, b"theirs", acl=acl)
        leadership = acquired(latch(front, other, zklock_path, "a"))
        with pytest.raises(zklock.AccessDenied, match=f"write permission on {zklock_path},") as no:
            latch(front, other, zklock_path, "b").request_release()
        assert no.value.path == zklock_path
        assert owner.get(zklock_path)[0] == b"theirs"
        assert not leadership.should_stop.is_set()
        asked = latch(front, owner, zklock_path, "c").request_release()
        assert asked.token == leadership.token
        told(leadership)
        leadership.release()  # it may not tidy up; that holds up nobody
        gone(owner, zklock_path)
        assert noted(owner, zklock_path).others == b"theirs"

    def test_comes_beside_a_request_in_the_leader_s_own_node(
        self, front: Any, other: Any, zklock_path: str
    ) -> None:
        """Curator's ``Revoker`` writes there."""
        leadership = acquired(latch(front, other, zklock_path, "a"))
        other.set(leadership.path, b"__REVOKE__")
        told(leadership)
        leadership.release()
