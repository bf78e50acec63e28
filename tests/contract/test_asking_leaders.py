"""A leader is asked to release through the data of its election's path. On both fronts."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kazoo.security import make_acl, make_digest_acl

import zklock
from tests.contract.fronts import Behind, Place, Places
from tests.contract.lasting import LASTING
from tests.contract.support import SOON, run
from tests.contract.test_acquired_leadership import acquired, latch
from zklock._recipes import notes
from zklock.testing import wait_for

TERMS = 2
ASKERS = 4


def data_at(place: Place) -> bytes:
    data: bytes = place.client.get(place.path)[0]
    return data


def noted(place: Place) -> notes.Notes:
    return notes.parse(data_at(place))


def names(*leaderships: Any) -> set[str]:
    return {leadership.path.rpartition("/")[2] for leadership in leaderships}


def told(leadership: Any) -> None:
    wait_for(leadership.should_stop.is_set, SOON, lambda: f"{leadership} is told to stop")


class TestRequest:
    @pytest.mark.parametrize("how", ["election", "lock"])
    def test_hands_over_to_the_next(self, theirs: Place, how: str) -> None:
        theirs.client.create(theirs.path, b"of somebody else", makepath=True)
        first, second = (latch(theirs, name) for name in "ab")
        onlooker = latch(theirs, "c")
        leadership = acquired(first)
        waiting = run(acquired, second)
        nodes = theirs.queued(2)
        if how == "election":
            leader = onlooker.request_release()
        else:
            (leader,) = theirs.Lock().request_release()
        assert (leader.identity, leader.token) == ("a", leadership.token)
        told(leadership)
        assert leadership.held, "nothing is taken by force"
        assert noted(theirs).asked == names(leadership)
        assert [theirs.client.exists(f"{theirs.path}/{node}").version for node in nodes] == [0, 0]
        assert not waiting.done()
        leadership.release()
        later = waiting.result(SOON)
        assert not later.should_stop.is_set()
        later.release()
        theirs.gone()
        assert data_at(theirs) == b"of somebody else"

    def test_ends_the_term_of_a_member_that_runs(self, theirs: Place) -> None:
        def body(leadership: Any) -> Any:
            yield leadership.should_stop

        runner = latch(theirs, "runner")
        running = run(runner.run, theirs.front.script(body))
        wait_for(lambda: runner.is_leader, SOON)
        waiting = run(acquired, latch(theirs, "next"))
        theirs.queued(2)
        assert runner.request_release().identity == "runner"
        leadership = waiting.result(SOON)
        assert runner.members()[0].identity == "next"
        leadership.release()
        wait_for(lambda: runner.is_leader, SOON)
        runner.stop()
        running.result(SOON)
        theirs.gone()

    def test_where_nobody_leads(self, theirs: Place) -> None:
        election = latch(theirs, "a")
        assert election.request_release() is None
        assert theirs.client.exists(theirs.path) is None
        with election.acquire():
            pass
        assert election.request_release() is None
        assert data_at(theirs) == b""

    def test_from_many_at_once(self, places: Places, theirs: Place) -> None:
        election = latch(theirs, "a")
        leadership = acquired(election)
        ready = threading.Barrier(ASKERS + 1)

        def ask(place: Place) -> Any:
            onlooker = latch(place, "onlooker")
            ready.wait(SOON)
            return onlooker.request_release(SOON)

        asking = [run(ask, place) for place in places(2) * (ASKERS // 2)]
        ready.wait(SOON)
        for count in range(5):
            election.set_payload(f"{count}")
        assert {each.result(SOON).token for each in asking} == {leadership.token}
        told(leadership)
        assert noted(theirs) == notes.Notes(
            b"", dict.fromkeys(names(leadership), b"4"), frozenset(names(leadership))
        )
        leadership.release()
        theirs.gone()
        assert data_at(theirs) == b""

    def test_never_reaches_another_term(self, places: Places, theirs: Place) -> None:
        """Somebody asks all the time; the terms end because of it, and each one was asked."""
        asked: set[str] = set()
        over = threading.Event()

        def ask() -> None:
            onlooker = latch(theirs, "onlooker")
            while not over.is_set():
                leader = onlooker.request_release(SOON)
                if leader is not None:
                    asked.add(leader.path)

        def stand(identity: str) -> list[Any]:
            election = latch(places(1, timeout=20.0)[0], identity)
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
        theirs.gone()
        assert noted(theirs).asked <= names(*terms)

    @LASTING
    def test_is_heard_after_the_connection_was_lost(self, behind: Behind, theirs: Place) -> None:
        leadership = acquired(latch(behind(), "a"))
        behind.proxy.cut()
        asked = latch(theirs, "b").request_release()
        assert asked.token == leadership.token
        assert not leadership.should_stop.is_set()
        behind.proxy.restore()
        told(leadership)
        assert leadership.held
        leadership.release()
        theirs.gone()

    @LASTING
    def test_is_not_heard_in_the_next_session(
        self, behind: Behind, theirs: Place, zklock_expire_session: Any
    ) -> None:
        far = behind()
        election, onlooker = latch(far, "a"), latch(theirs, "b")
        first, session = acquired(election), far.client.client_id
        behind.proxy.cut()
        assert onlooker.request_release().token == first.token
        zklock_expire_session(session)
        theirs.gone()
        behind.proxy.restore()
        wait_for(first.lost.is_set, SOON)
        assert noted(theirs).asked == names(first)
        later = acquired(election)
        assert onlooker.request_release().token == later.token
        assert noted(theirs).asked == names(later), "the old one is gone"
        told(later)
        later.release()
        wait_for(lambda: data_at(theirs) == b"", SOON, "it takes its request along")

    def test_that_is_not_answered_in_time(self, behind: Behind, theirs: Place) -> None:
        leadership, onlooker = acquired(latch(theirs, "a")), latch(behind(), "b")
        assert onlooker.leader().token == leadership.token
        behind.proxy.blackhole()
        with pytest.raises(zklock.NoAnswer):
            onlooker.request_release(timeout=0.2)
        behind.proxy.restore()
        assert onlooker.request_release(SOON).token == leadership.token
        told(leadership)
        leadership.release()

    def test_needs_permission_to_write(self, mine: Place, theirs: Place) -> None:
        owner = mine.client
        owner.add_auth("digest", "owner:secret")
        everybody = make_acl("world", "anyone", read=True, create=True, delete=True)
        acl = [make_digest_acl("owner", "secret", all=True), everybody]
        owner.create(theirs.path, b"theirs", acl=acl)
        leadership = acquired(latch(theirs, "a"))
        with pytest.raises(zklock.AccessDenied, match=f"write permission on {theirs.path},") as no:
            latch(theirs, "b").request_release()
        assert no.value.path == theirs.path
        assert data_at(mine) == b"theirs"
        assert not leadership.should_stop.is_set()
        asked = latch(mine, "c").request_release()
        assert asked.token == leadership.token
        told(leadership)
        leadership.release()  # it may not tidy up; that holds up nobody
        mine.gone()
        assert noted(mine).others == b"theirs"

    def test_comes_beside_a_request_in_the_leader_s_own_node(self, theirs: Place) -> None:
        """Curator's ``Revoker`` writes there."""
        leadership = acquired(latch(theirs, "a"))
        theirs.client.set(leadership.path, b"__REVOKE__")
        told(leadership)
        leadership.release()
