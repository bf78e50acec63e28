"""What members of an election and workers of a pool say of themselves, changed while they stand."""

from __future__ import annotations

from typing import Any

import pytest

import zklock
from tests.contract.fronts import Behind, Place
from tests.contract.lasting import LASTING
from tests.contract.support import SOON, gone, queued, run
from zklock.fencing import verify_owner
from zklock.testing import expire_session, wait_for


def said(election: Any) -> list[tuple[str, bytes]]:
    return [(one.identity, one.payload) for one in election.members()]


def heard(change: Any) -> tuple[bytes, bool]:
    return change.leader.payload, change.same_leader


@LASTING
class TestElection:
    def test_changes_where_it_stands(self, front: Any, other: Any, zklock_path: str) -> None:
        first, second, idle = (
            front.LeaderElection(other, zklock_path, identity=name, payload=name) for name in "abc"
        )
        leadership = first.acquire(timeout=SOON)
        waiting = run(second.acquire)
        before = queued(other, zklock_path, 2)
        with zklock.LeaderElection(other, zklock_path).changes() as changes:
            assert heard(changes.next(SOON)) == (b"a", False)
            idle.set_payload("nobody hears it")
            second.set_payload("B2")
            # Its node may be there before it knows: it says so then.
            wait_for(lambda: said(first) == [("a", b"a"), ("b", b"B2")], SOON)
            first.set_payload(b"A2")
            assert said(first) == [("a", b"A2"), ("b", b"B2")]
            change: Any = changes.next(SOON)
            assert heard(change) == (b"A2", True)
            assert (change.token, change.gap) == (leadership.token, False)
            assert changes.next(0.05) is None
            assert second.leader().payload == first.payload == b"A2"
            assert verify_owner(other, zklock_path, leadership.token).payload == b"A2"
            assert queued(other, zklock_path, 2) == before
            assert leadership.held
            leadership.release()
            later = waiting.result(SOON)
            assert heard(changes.next(SOON)) == (b"B2", False)
        assert verify_owner(other, zklock_path, later.token).payload == b"B2"
        later.release()
        again = first.acquire(timeout=SOON)  # its new node has it from the start
        assert verify_owner(other, zklock_path, again.token).payload == b"A2"
        again.release()
        gone(other, zklock_path)
        wait_for(lambda: other.get(zklock_path)[0] == b"", SOON, "they took their notes along")

    def test_writes_no_member_s_node(self, front: Any, other: Any, zklock_path: str) -> None:
        other.create(zklock_path, b"of somebody else", makepath=True)
        election = front.LeaderElection(other, zklock_path, payload="first")
        leadership = election.acquire(timeout=SOON)
        election.set_payload("second")
        assert other.exists(leadership.path).version == 0
        data, _ = other.get(zklock_path)
        assert data.startswith(b"of somebody else\0zklock=")
        leadership.release()

    def test_what_is_no_payload(self, mine: Place) -> None:
        election = mine.LeaderElection(payload="first")
        bad = {"payload must be UTF-8": "\udce4", "16384": bytes(16385)}
        with pytest.raises(TypeError, match="payload"):
            election.set_payload(7)
        for said_, payload in bad.items():
            with pytest.raises(ValueError, match=said_):
                election.set_payload(payload)
        assert election.payload == b"first"

    def test_while_the_connection_is_cut(self, behind: Behind, other: Any) -> None:
        election = behind(timeout=30.0).LeaderElection(identity="a", payload="first")
        onlooker = zklock.LeaderElection(other, election.path)
        leadership = election.acquire(timeout=SOON)
        with onlooker.changes() as changes:
            assert changes.next(SOON) is not None
            behind.proxy.cut()
            with pytest.raises(zklock.NoAnswer):
                election.set_payload("lost?", timeout=0.2)
            behind.proxy.restore()
            election.set_payload("second", timeout=SOON)
            assert said(onlooker) == [("a", b"second")]

            def told() -> bool:
                change = changes.next(SOON)
                assert change is not None
                assert change.same_leader
                return change.leader is not None and change.leader.payload == b"second"

            wait_for(told, SOON)
        leadership.release()

    def test_in_the_next_session(self, mine: Place, theirs: Place) -> None:
        election = mine.LeaderElection(identity="a", payload="first")
        blocker = theirs.LeaderElection(identity="x")
        leadership = blocker.acquire(timeout=SOON)
        waiting = run(election.acquire)
        theirs.queued(2)
        election.set_payload("second")
        expire_session(mine.client)
        wait_for(lambda: said(blocker)[1:] == [("a", b"second")], SOON)
        leadership.release()
        waiting.result(SOON).release()


@LASTING
class TestPool:
    def test_changes_while_it_works(self, front: Any, other: Any, zklock_path: str) -> None:
        pool = front.pool(other, zklock_path, shards=4, identity="a", payload="first", settle=0.0)
        with pool:
            wait_for(lambda: len(pool.owned()) == 4, SOON)
            before = {number: grant.token for number, grant in pool.owned().items()}
            (member,) = pool.members()
            assert (member.identity, member.payload) == ("a", b"first")
            pool.set_payload("second")
            wait_for(lambda: pool.members()[0].payload == b"second", SOON)
            pool.drain(SOON)
            pool.resume()
            wait_for(lambda: len(pool.owned()) == 4, SOON)
            assert pool.members()[0].payload == pool.payload == b"second"
            assert before.keys() == pool.owned().keys()
        with pytest.raises(ValueError, match="16384"):
            pool.set_payload(bytes(16385))
