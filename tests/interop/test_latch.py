"""Members of zklock and Curator's ``LeaderLatch`` stand in one election."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

import zklock
from tests.contract.support import SOON, gone, queued, run
from tests.interop.conftest import Players
from tests.interop.test_contention import elect
from tests.players import Player
from zklock.testing import ZooKeeperServer, four_letter, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.hazard("H20")]

DEADLINE = 90.0
PATIENCE = 60_000
"""Milliseconds that a latch waits for its turn."""
IN_VAIN = 15_000
"""The same, where its turn passes unnoticed."""

Join = Callable[..., zklock.LeaderElection]
Stand = Callable[..., Player]


@pytest.fixture
def join(zklock_client: Any, zklock_path: str) -> Iterator[Join]:
    """Return what lets a member of zklock queue; its ``lead`` waits until it is to end."""
    with ExitStack() as stack:

        def lead(leadership: zklock.Leadership) -> None:
            leadership.should_stop.wait(DEADLINE)

        def end(election: zklock.LeaderElection, done: Future[None]) -> None:
            election.stop()
            done.result(SOON)

        def member(identity: str, *, leading: bool = False) -> zklock.LeaderElection:
            election = zklock.LeaderElection(
                zklock_client, zklock_path, identity=identity, payload="here"
            )
            count = len(election.members())
            stack.callback(end, election, run(election.run, lead))
            queued(zklock_client, zklock_path, count + 1)
            if leading:
                leads(election)
            return election

        yield member


@pytest.fixture
def stand(players: Players, zklock_client: Any, zklock_path: str) -> Stand:
    """Return what lets a latch queue, at such a place; it leads at once if that is the first."""

    def latch(identity: str, place: int, patience: int = PATIENCE) -> Player:
        (player,) = players("java", 1)
        player.tell(f"acquire it latch={identity} {zklock_path} {patience}")
        queued(zklock_client, zklock_path, place)
        return player

    return latch


def ends(latch: Player) -> None:
    assert latch.ask("release it") == "released"


def granted(latch: Player) -> str:
    """Wait until it leads; return its node."""
    said, node = latch.hears().split()
    assert said == "granted"
    return node


def identities(election: zklock.LeaderElection) -> list[str]:
    return [member.identity for member in election.members()]


def latch_watches(server: ZooKeeperServer, leader: zklock.LeaderElection) -> None:
    """Wait until the latch behind the leader watches its node, as the leader itself does."""
    leadership = leader.leadership
    assert leadership is not None

    def watching() -> list[str]:
        text = four_letter(server.host, server.port, "wchp")
        _, _, rest = text.partition(f"{leadership.path}\n")
        return list(takewhile(lambda line: line.startswith("\t"), rest.splitlines()))

    wait_for(lambda: len(watching()) == 2, SOON)


def leads(election: zklock.LeaderElection) -> None:
    wait_for(lambda: election.is_leader, SOON)


def test_one_leads_at_a_time_in_the_order_of_the_queue(
    players: Players,
    zklock_client: Any,
    zklock_path: str,
    tmp_path: Path,
) -> None:
    zklock_client.ensure_path(zklock_path)  # Curator would make a container, which comes and goes
    latches, electors = players("java", 2), players("elector", 2)

    def stand(at: int) -> str:
        return f"latch=latch{at}" if at < 2 else f"zklock{at - 2} zklock{3 - at}"

    seen: list[zklock.LeaderChange] = []
    watching = zklock.LeaderElection(zklock_client, zklock_path)
    with watching.observe(seen.append):
        elect(latches + electors, stand, zklock_path, tmp_path)
    tokens = [change.token for change in seen if change.token is not None]
    assert tokens == sorted(set(tokens))
    told = {change.leader.identity for change in seen if change.leader is not None}
    assert told == {"latch0", "latch1", "zklock0", "zklock1"}
    gone(zklock_client, zklock_path)


def test_latches_are_shown_by_their_id(
    zklock_client: Any, zklock_path: str, join: Join, stand: Stand
) -> None:
    node = granted(first := stand("eins", 1))
    ours = join("ours")
    second = stand("zwei", 3)
    leader, *others = ours.members()
    assert leader == ours.leader()
    assert (leader.identity, leader.path, leader.payload) == ("eins", node, b"")
    assert leader.holds
    assert str(leader.token) == first.ask("token it")
    assert [(each.identity, each.holds) for each in others] == [("ours", False), ("zwei", False)]
    assert first.ask("participants it") == "eins,ours\0payload=aGVyZQ==,zwei"
    assert not ours.is_leader
    ends(first)
    leads(ours)
    ours.resign()
    granted(second)
    queued(zklock_client, zklock_path, 2)
    assert identities(ours) == ["zwei", "ours"]
    ends(second)
    leads(ours)


def test_a_transfer_past_latches_has_them_queue_again(
    zklock_client: Any, zklock_path: str, join: Join, stand: Stand
) -> None:
    leader = join("leader", leading=True)
    latches = {identity: stand(identity, 2 + at) for at, identity in enumerate(("one", "two"))}
    successor = join("successor")
    before = {each.identity: each.token for each in leader.members()}
    chosen = leader.transfer("successor", SOON)
    leads(successor)
    assert chosen.token == before["successor"]
    queued(zklock_client, zklock_path, 4)
    first, *others = successor.members()
    assert first.identity == "successor"
    order = [each.identity for each in others]
    assert sorted(order) == ["leader", "one", "two"]
    assert all(each.token > chosen.token for each in others)  # type: ignore[operator]
    successor.resign()
    for identity in order:
        if identity == "leader":
            leads(leader)
            leader.resign()
        else:
            granted(latches[identity])
            assert latches[identity].ask("leads it") == "true"
            assert identities(leader)[0] == identity
            ends(latches[identity])
    leads(successor)


def test_a_transfer_to_a_latch(
    zklock_client: Any, zklock_path: str, join: Join, stand: Stand
) -> None:
    leader = join("leader", leading=True)
    waiting = join("waiting")
    latch = stand("latch", 3)
    chosen = leader.transfer("latch", SOON)
    assert granted(latch) == chosen.path
    queued(zklock_client, zklock_path, 3)
    assert not waiting.is_leader
    assert identities(waiting)[0] == "latch"
    ends(latch)


def taken_along(client: Any, path: str) -> None:
    """Wait until a leader that ended has taken the requests along."""
    wait_for(lambda: not client.get(path)[0].partition(b"\0zklock=")[1], SOON)


@pytest.mark.parametrize("how", ["election", "lock"])
def test_a_leader_that_is_asked_for_it_hands_over_to_a_latch(
    zklock_client: Any,
    zklock_server: ZooKeeperServer,
    zklock_path: str,
    join: Join,
    stand: Stand,
    how: str,
) -> None:
    """The other latches see the same members all the time, and the one behind it misses nothing."""
    leader = join("leader", leading=True)
    latch, onlooker = stand("latch", 2), stand("onlooker", 3)
    latch_watches(zklock_server, leader)
    before = {each.path: each.token for each in leader.members()}
    if how == "election":
        asked = zklock.LeaderElection(zklock_client, zklock_path).request_release()
    else:
        (asked,) = zklock.Lock(zklock_client, zklock_path).request_release()
    assert asked is not None
    assert asked.identity == "leader"
    granted(latch)
    queued(zklock_client, zklock_path, 3)
    assert latch.ask("leads it") == "true"
    assert latch.ask("participants it") == "latch,onlooker,leader\0payload=aGVyZQ=="
    assert {path: before.get(path) for path in before if path != asked.path} == {
        each.path: each.token for each in leader.members()[:2]
    }
    taken_along(zklock_client, zklock_path)
    ends(latch)
    granted(onlooker)
    assert onlooker.ask("participants it") == "onlooker,leader\0payload=aGVyZQ=="
    ends(onlooker)
    leads(leader)


def test_a_latch_that_leads_does_not_hear_that_it_is_asked(
    zklock_client: Any, zklock_path: str, join: Join, stand: Stand
) -> None:
    """Nor does the member that leads next take it for itself; it takes the request along."""
    granted(first := stand("first", 1))
    ours = join("ours")
    second = stand("second", 3)
    for leader in ("first", "ours"):
        asked = ours.request_release()
        assert asked is not None
        assert asked.identity == leader
        if leader == "first":
            assert first.ask("leads it") == "true"
            assert first.ask("participants it") == "first,ours\0payload=aGVyZQ==,second"
            ends(first)
            leads(ours)
    granted(second)
    taken_along(zklock_client, zklock_path)
    ends(second)
    leads(ours)


def test_a_latch_hears_of_the_end_of_a_leader_that_has_changed_its_payload(
    zklock_client: Any, zklock_server: ZooKeeperServer, zklock_path: str, join: Join, stand: Stand
) -> None:
    """It watches the node before it for any change, and does not renew that watch.

    So zklock writes no member's node.
    """
    leader = join("leader", leading=True)
    latch = stand("latch", 2)
    latch_watches(zklock_server, leader)
    leader.set_payload("there")
    assert [each.payload for each in leader.members()] == [b"there", b""]
    leader.resign()
    granted(latch)
    queued(zklock_client, zklock_path, 2)
    assert latch.ask("participants it") == "latch,leader\0payload=dGhlcmU="
    ends(latch)
    leads(leader)


@pytest.mark.thorough("a latch that waits in vain")
def test_a_latch_misses_the_end_of_a_leader_whose_node_was_written(
    zklock_client: Any, zklock_server: ZooKeeperServer, zklock_path: str, join: Join, stand: Stand
) -> None:
    leader = join("leader", leading=True)
    latch = stand("latch", 2, IN_VAIN)
    latch_watches(zklock_server, leader)
    node = leader.members()[0].path
    zklock_client.set(node, zklock_client.get(node)[0])
    leader.stop()
    queued(zklock_client, zklock_path, 1)
    assert identities(leader) == ["latch"]  # it waits, and is the first
    assert latch.hears() == "refused"


def test_a_waiting_latch_whose_node_is_deleted_queues_again_when_the_one_before_goes(
    zklock_client: Any, zklock_server: ZooKeeperServer, zklock_path: str, join: Join, stand: Stand
) -> None:
    leader = join("leader", leading=True)
    latch = stand("latch", 2)
    latch_watches(zklock_server, leader)  # else it finds out by itself, when it looks
    zklock_client.delete(leader.members()[1].path)
    after = join("after")
    assert identities(leader) == ["leader", "after"]
    leader.resign()
    leads(after)
    queued(zklock_client, zklock_path, 3)
    assert sorted(identities(after)[1:]) == ["latch", "leader"]
    after.stop()
    wait_for(lambda: identities(leader)[0] != "after", SOON, "the next leads")
    if identities(leader)[0] == "leader":
        leads(leader)
        leader.resign()
    granted(latch)
    ends(latch)


def test_a_leading_latch_does_not_hear_that_its_node_is_deleted(
    zklock_client: Any, zklock_path: str, join: Join, stand: Stand
) -> None:
    granted(latch := stand("latch", 1))
    ours = join("ours")
    broken = zklock.Lock(zklock_client, zklock_path).break_lock()
    assert broken is not None
    assert broken.identity == "latch"
    leads(ours)
    # An answer to its client comes after any event of what was done before.
    epoch = zklock.FencingToken.parse(latch.ask("token it")).epoch
    assert broken.token is not None
    assert epoch == broken.token.epoch
    assert latch.ask("leads it") == "true"
    assert ours.is_leader
    ends(latch)
