"""Members of zklock and Curator's ``LeaderLatch`` stand in one election."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

import zklock
from tests.contract.support import SOON, gone, queued, run
from tests.interop.conftest import Players
from tests.interop.ledger import STILL, Hold, most_at_once, violations, written
from zklock.testing import ZooKeeperServer, four_letter, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.hazard("H20")]

TERMS = 40
DEADLINE = 90.0
PATIENCE = 60_000
"""Milliseconds that a latch waits for its turn."""

Join = Callable[[str], zklock.LeaderElection]


@pytest.fixture
def join(zklock_client: Any, zklock_path: str) -> Any:
    """Return what lets a member of zklock queue; its ``lead`` waits until it is to end."""
    with ExitStack() as stack:

        def lead(leadership: zklock.Leadership) -> None:
            leadership.should_stop.wait(DEADLINE)

        def end(election: zklock.LeaderElection, done: Future[None]) -> None:
            election.stop()
            done.result(SOON)

        def member(identity: str) -> zklock.LeaderElection:
            election = zklock.LeaderElection(
                zklock_client, zklock_path, identity=identity, payload="here"
            )
            count = len(election.members())
            stack.callback(end, election, run(election.run, lead))
            queued(zklock_client, zklock_path, count + 1)
            return election

        yield member


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
    capsys: pytest.CaptureFixture[str],
) -> None:
    zklock_client.ensure_path(zklock_path)  # Curator would make a container, which comes and goes
    (tmp_path / "presence").mkdir()
    latches, electors = players("java", 2), players("elector", 2)
    seen: list[zklock.LeaderChange] = []
    watching = zklock.LeaderElection(zklock_client, zklock_path)
    with watching.observe(seen.append):
        for at, player in enumerate(latches):
            player.tell(f"contend latch=latch{at} {zklock_path} {tmp_path} {TERMS} 2000")
        for at, player in enumerate(electors):
            them = f"zklock{at} zklock{1 - at}"
            player.tell(f"contend {them} {zklock_path} {tmp_path} {TERMS} 2000")
        transfers = 0
        for player in latches + electors:
            done, count, figure = player.hears(STILL, written(tmp_path)).split()
            assert (done, int(count)) == ("done", TERMS)
            transfers += int(figure) if player in electors else 0
    holds = [Hold.parse(line) for line in (tmp_path / "ledger").read_text().splitlines()]
    assert len(holds) == 4 * TERMS
    assert len({hold.who for hold in holds}) == 4
    assert violations(holds) == []
    assert [hold.sequence for hold in holds] == sorted({hold.sequence for hold in holds})
    assert most_at_once(holds) == 1
    assert transfers > TERMS / 4
    tokens = [change.token for change in seen if change.token is not None]
    assert tokens == sorted(set(tokens))
    told = {change.leader.identity for change in seen if change.leader is not None}
    assert told == {"latch0", "latch1", "zklock0", "zklock1"}
    gone(zklock_client, zklock_path)
    with capsys.disabled():
        print(f"\n{len(holds)} terms, {transfers} of them handed over", end=" ", file=sys.stderr)


def test_latches_are_shown_by_their_id(
    players: Players, zklock_client: Any, zklock_path: str, join: Join
) -> None:
    first, second = players("java", 2)
    node = first.ask(f"acquire it latch=eins {zklock_path} {PATIENCE}").removeprefix("granted ")
    ours = join("ours")
    second.tell(f"acquire it latch=zwei {zklock_path} {PATIENCE}")
    queued(zklock_client, zklock_path, 3)
    leader, *others = ours.members()
    assert leader == ours.leader()
    assert (leader.identity, leader.path, leader.payload) == ("eins", node, b"")
    assert leader.holds
    assert str(leader.token) == first.ask("token it")
    assert [(each.identity, each.holds) for each in others] == [("ours", False), ("zwei", False)]
    assert first.ask("participants it") == "eins,ours\0payload=aGVyZQ==,zwei"
    assert not ours.is_leader
    assert first.ask("release it") == "released"
    leads(ours)
    ours.resign()
    assert second.hears().startswith("granted")
    queued(zklock_client, zklock_path, 2)
    assert identities(ours) == ["zwei", "ours"]
    assert second.ask("release it") == "released"
    leads(ours)


def test_a_transfer_past_latches_has_them_queue_again(
    players: Players, zklock_client: Any, zklock_path: str, join: Join
) -> None:
    first, second = players("java", 2)
    leader = join("leader")
    leads(leader)
    for at, latch in enumerate((first, second)):
        latch.tell(f"acquire it latch=latch{at} {zklock_path} {PATIENCE}")
        queued(zklock_client, zklock_path, 2 + at)
    successor = join("successor")
    before = {each.identity: each.token for each in leader.members()}
    chosen = leader.transfer("successor", SOON)
    leads(successor)
    assert chosen.token == before["successor"]
    queued(zklock_client, zklock_path, 4)
    now = successor.members()
    assert now[0].identity == "successor"
    assert sorted(each.identity for each in now[1:]) == ["latch0", "latch1", "leader"]
    assert all(each.token > chosen.token for each in now[1:])  # type: ignore[operator]
    order = [each.identity for each in now[1:]]
    successor.resign()
    for identity in order:
        if identity == "leader":
            leads(leader)
            leader.resign()
        else:
            latch = {"latch0": first, "latch1": second}[identity]
            assert latch.hears().startswith("granted")
            assert latch.ask("leads it") == "true"
            assert identities(leader)[0] == identity
            assert latch.ask("release it") == "released"
    leads(successor)


def test_a_transfer_to_a_latch(
    players: Players, zklock_client: Any, zklock_path: str, join: Join
) -> None:
    (latch,) = players("java", 1)
    leader, waiting = join("leader"), join("waiting")
    leads(leader)
    latch.tell(f"acquire it latch=latch {zklock_path} {PATIENCE}")
    queued(zklock_client, zklock_path, 3)
    chosen = leader.transfer("latch", SOON)
    assert latch.hears() == f"granted {chosen.path}"
    queued(zklock_client, zklock_path, 3)
    assert not waiting.is_leader
    assert identities(waiting)[0] == "latch"
    assert latch.ask("release it") == "released"


@pytest.mark.parametrize("how", ["election", "lock"])
def test_a_leader_that_is_asked_for_it_hands_over_to_a_latch(
    players: Players,
    zklock_client: Any,
    zklock_server: ZooKeeperServer,
    zklock_path: str,
    join: Join,
    how: str,
) -> None:
    """The other latches see the same members all the time, and the one behind it misses nothing."""
    latch, onlooker = players("java", 2)
    leader = join("leader")
    leads(leader)
    for player, identity in ((latch, "latch"), (onlooker, "onlooker")):
        player.tell(f"acquire it latch={identity} {zklock_path} {PATIENCE}")
        queued(zklock_client, zklock_path, 2 + (player is onlooker))
    latch_watches(zklock_server, leader)
    before = {each.path: each.token for each in leader.members()}
    if how == "election":
        asked = zklock.LeaderElection(zklock_client, zklock_path).request_release()
    else:
        (asked,) = zklock.Lock(zklock_client, zklock_path).request_release()
    assert asked is not None
    assert asked.identity == "leader"
    assert latch.hears().startswith("granted")
    queued(zklock_client, zklock_path, 3)
    assert latch.ask("leads it") == "true"
    assert latch.ask("participants it") == "latch,onlooker,leader\0payload=aGVyZQ=="
    assert {path: before.get(path) for path in before if path != asked.path} == {
        each.path: each.token for each in leader.members()[:2]
    }
    wait_for(
        lambda: not zklock_client.get(zklock_path)[0].partition(b"\0zklock=")[1],
        SOON,
        "the leader takes the request along",
    )
    assert latch.ask("release it") == "released"
    assert onlooker.hears().startswith("granted")
    assert onlooker.ask("participants it") == "onlooker,leader\0payload=aGVyZQ=="
    assert onlooker.ask("release it") == "released"
    leads(leader)


def test_a_latch_that_leads_does_not_hear_that_it_is_asked(
    players: Players, zklock_client: Any, zklock_path: str, join: Join
) -> None:
    """Nor does the member that leads next take it for itself; it takes the request along."""
    first, second = players("java", 2)
    assert first.ask(f"acquire it latch=first {zklock_path} {PATIENCE}").startswith("granted")
    ours = join("ours")
    second.tell(f"acquire it latch=second {zklock_path} {PATIENCE}")
    queued(zklock_client, zklock_path, 3)
    asked = ours.request_release()
    assert asked is not None
    assert asked.identity == "first"
    assert first.ask("leads it") == "true"
    assert first.ask("participants it") == "first,ours\0payload=aGVyZQ==,second"
    assert first.ask("release it") == "released"
    leads(ours)
    asked = ours.request_release()
    assert asked is not None
    assert asked.identity == "ours"
    assert second.hears().startswith("granted")
    wait_for(
        lambda: not zklock_client.get(zklock_path)[0].partition(b"\0zklock=")[1],
        SOON,
        "it takes both requests along",
    )
    assert second.ask("release it") == "released"
    leads(ours)


def test_a_latch_misses_the_end_of_a_leader_whose_node_was_written(
    players: Players,
    zklock_client: Any,
    zklock_server: ZooKeeperServer,
    zklock_path: str,
    join: Join,
) -> None:
    """A latch watches the node before it for any change, and does not renew that watch.

    So zklock writes no member's node.
    """
    (latch,) = players("java", 1)
    leader = join("leader")
    leads(leader)
    latch.tell(f"acquire it latch=latch {zklock_path} 6000")
    queued(zklock_client, zklock_path, 2)
    latch_watches(zklock_server, leader)
    leadership = leader.leadership
    assert leadership is not None
    zklock_client.set(leadership.path, b"leader")
    leader.resign()
    wait_for(lambda: identities(leader) == ["latch", "leader"], SOON)
    assert latch.hears() == "refused"  # its patience is at an end, and it is closed
    leads(leader)


def test_a_latch_hears_of_the_end_of_a_leader_that_has_changed_its_payload(
    players: Players,
    zklock_client: Any,
    zklock_server: ZooKeeperServer,
    zklock_path: str,
    join: Join,
) -> None:
    (latch,) = players("java", 1)
    leader = join("leader")
    leads(leader)
    latch.tell(f"acquire it latch=latch {zklock_path} {PATIENCE}")
    queued(zklock_client, zklock_path, 2)
    latch_watches(zklock_server, leader)
    leader.set_payload("there")
    assert [each.payload for each in leader.members()] == [b"there", b""]
    leader.resign()
    assert latch.hears().startswith("granted")
    queued(zklock_client, zklock_path, 2)
    assert latch.ask("participants it") == "latch,leader\0payload=dGhlcmU="
    assert latch.ask("release it") == "released"
    leads(leader)


def test_a_waiting_latch_whose_node_is_deleted_queues_again_when_the_one_before_goes(
    players: Players,
    zklock_client: Any,
    zklock_server: ZooKeeperServer,
    zklock_path: str,
    join: Join,
) -> None:
    (latch,) = players("java", 1)
    leader = join("leader")
    leads(leader)
    latch.tell(f"acquire it latch=latch {zklock_path} {PATIENCE}")
    queued(zklock_client, zklock_path, 2)
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
    assert latch.hears().startswith("granted")
    assert latch.ask("release it") == "released"


def test_a_leading_latch_does_not_hear_that_its_node_is_deleted(
    players: Players, zklock_client: Any, zklock_path: str, join: Join
) -> None:
    (latch,) = players("java", 1)
    assert latch.ask(f"acquire it latch=latch {zklock_path} {PATIENCE}").startswith("granted")
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
    assert latch.ask("release it") == "released"
