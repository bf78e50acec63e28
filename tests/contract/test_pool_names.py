"""Pools whose shards have names, and pools that assign them by a function of the user's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

import zklock
from tests.contract.handlers import Named
from tests.contract.lasting import LASTING
from tests.contract.support import SOON, children
from tests.contract.workers import Front, Join, joining, owns, shared
from zklock.testing import wait_for

pytestmark = LASTING

NAMES = ["eu/west", "eu/east", "us", "7", "..", "Südost %2F"]


@pytest.fixture
def join(front: Front, other: Any, zklock_path: str) -> Iterator[Join]:
    """Return ``join(identity, **options)``: a started worker; they share a client."""
    with joining(front, zklock_path, lambda: other, shards=NAMES, settle=0.0) as join:
        yield join


def test_shards_have_names_everywhere(join: Join, other: Any, zklock_path: str) -> None:
    seen: dict[Any, Any] = {}
    revoked: list[Any] = []
    names: dict[str, str] = {}

    def handle(shard: zklock.Shard) -> None:
        names[shard.name] = str(shard.token)
        assert not hasattr(shard, "number")
        shard.should_stop.wait()

    one = join(
        "a",
        handler=handle,
        on_assigned=lambda shard, grant: seen.update({shard: grant.token}),
        on_revoked=lambda shard, grant: revoked.append(shard),
    )
    owns(one, *NAMES)
    wait_for(lambda: names.keys() == set(NAMES), SOON)
    assert {name: str(token) for name, token in seen.items()} == names
    shown = {each.shard: (each.owner, each.token) for each in one.assignment()}
    assert list(shown) == sorted(NAMES)
    wait_for(
        lambda: (
            {it.shard: (it.owner, it.token) for it in one.assignment()}
            == {name: ("a", token) for name, token in seen.items()}
        ),
        SOON,
    )
    assert len(children(other, f"{zklock_path}/shards")) == len(NAMES)
    before = set(one.owned())
    two = join("b")
    shared([one, two], NAMES)
    assert set(revoked) == before - set(one.owned())


def test_names_that_come_and_go(join: Join) -> None:
    """What stays, stays where it is; a name that comes back has greater tokens."""
    one = join("a", shards=["eu", "us"])
    owns(one, "eu", "us")
    eu, us = (one.owned()[name].token for name in ("eu", "us"))
    one.set_shards({"us", "asia"})
    owns(one, "us", "asia")
    assert one.owned()["us"].token == us
    one.set_shards(["us", "eu"])
    owns(one, "us", "eu")
    assert one.owned()["eu"].token > eu
    assert one.owned()["us"].token == us


def test_the_names_in_zookeeper_count(join: Join, caplog: pytest.LogCaptureFixture) -> None:
    one = join("a", shards=["eu", "us"])
    caplog.set_level(logging.WARNING, "zklock")
    two = join("b", shards=("us", "eu"))  # the same, in another order
    assert "set_shards()" not in caplog.text
    three = join("c", shards=["eu", "asia"])
    assert 'it lacks ["asia"], and it also has ["us"]' in caplog.text
    wait_for(lambda: sorted([*one.owned(), *two.owned(), *three.owned()]) == ["eu", "us"], SOON)


@pytest.mark.parametrize(("there", "mine"), [(["eu", "us"], 2), (2, ["eu", "us"])])
def test_numbers_and_names_do_not_mix(
    front: Front, join: Join, other: Any, zklock_path: str, there: Any, mine: Any
) -> None:
    one = join("a", shards=there)
    late = front.pool(other, zklock_path, identity="b", shards=mine)
    with pytest.raises(zklock.ZkLockError, match="names, or use another path"):
        late.start()
    with pytest.raises(zklock.ZkLockError, match="names, or use another path"):
        one.set_shards(mine)
    owns(one, *(range(there) if isinstance(there, int) else there))
    assert [member.identity for member in one.members()] == ["a"]


def test_what_was_written_over_by_the_other_kind_is_passed_over(
    join: Join, other: Any, zklock_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = join("a")
    owns(one, *NAMES)
    other.set(f"{zklock_path}/shards", b"2")
    wait_for(lambda: "6 shards with names stay" in caplog.text, SOON)
    two = join("b", shards=2)  # it is as it would have to be, but for the leader
    shared([one, two], NAMES)


def by_site(shards: Sequence[Any], workers: Sequence[zklock.PlannedWorker]) -> Mapping[Any, str]:
    """Leave each shard to the workers of its site, and share those equally."""
    found = {}
    for site in {shard[:2] for shard in shards}:
        there = [worker for worker in workers if worker.payload == site.encode()]
        mine = [shard for shard in shards if shard.startswith(site)]
        found.update(zklock.balanced(mine, there))
    return found


SITES = ["eu1", "eu2", "us1", "us2"]


def test_a_function_of_the_users_assigns(join: Join) -> None:
    eu = join("a", shards=SITES, assign=by_site, payload="eu")
    us = join("b", shards=SITES, assign=by_site, payload="us")
    owns(eu, "eu1", "eu2")
    owns(us, "us1", "us2")
    tokens = {shard: grant.token for shard, grant in us.owned().items()}
    more = join("c", shards=SITES, assign=by_site, payload="eu")
    wait_for(lambda: (len(eu.owned()), len(more.owned())) == (1, 1), SOON)
    assert {shard: grant.token for shard, grant in us.owned().items()} == tokens
    assert eu.drain(SOON)
    owns(more, "eu1", "eu2")


class Changing:
    """An ``assign`` function that says what it is told to."""

    def __init__(self) -> None:
        self.does: Callable[..., Any] = zklock.balanced

    def __call__(self, *asked: Any) -> Any:
        return self.does(*asked)


def lies(shards: Sequence[Any], workers: Sequence[zklock.PlannedWorker]) -> Mapping[Any, str]:
    return dict.fromkeys(shards, "nobody that is here")


def raises(*_: object) -> Any:
    raise SystemExit


@pytest.mark.parametrize("wrong", [lies, raises])
def test_one_that_makes_no_plan_moves_nothing(
    join: Join, caplog: pytest.LogCaptureFixture, wrong: Callable[..., Any]
) -> None:
    assign = Changing()
    one = join("a", assign=assign)
    owns(one, *NAMES)
    wait_for(lambda: one.is_leader, SOON)
    tokens = {shard: grant.token for shard, grant in one.owned().items()}
    assign.does = wrong
    two = join("b")
    wait_for(lambda: "assign= returned no usable plan, and no shard moves" in caplog.text, SOON)
    assert {shard: grant.token for shard, grant in one.owned().items()} == tokens
    assert not two.owned()
    assert one.is_leader
    assign.does = zklock.balanced
    two.set_capacity(1.0)  # news: it is asked again
    shared([one, two], NAMES)


def test_it_is_asked_again_without_news(
    join: Join, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zklock._pool.rebalancer._ASK_AGAIN", 0.1)
    assign = Changing()
    assign.does = lies
    one = join("a", assign=assign)
    wait_for(lambda: "assign= returned no usable plan" in caplog.text, SOON)
    assert caplog.text.count("assign= returned no usable plan") == 1
    assert not one.owned()
    assign.does = zklock.balanced
    owns(one, *NAMES)


class Hanging:
    """An ``assign`` function that does not return before ``over`` is set."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()
        self.at_once = 0
        self.most = 0
        self.calls = 0

    def __call__(
        self, shards: Sequence[Any], workers: Sequence[zklock.PlannedWorker]
    ) -> Mapping[Any, str]:
        self.calls += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.begun.set()
        self.over.wait()
        self.at_once -= 1
        return zklock.balanced(shards, workers)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    hanging = Hanging()
    yield hanging
    hanging.over.set()


def test_one_that_does_not_return_holds_up_no_stop(join: Join, hanging: Hanging) -> None:
    one = join("a", assign=hanging)
    assert hanging.begun.wait(SOON)
    two = join("b")
    one.stop(SOON)
    assert not hanging.over.is_set()
    owns(two, *NAMES)
    assert hanging.calls == 1


def test_one_that_does_not_return_is_told_of_and_another_leads(
    join: Join,
    hanging: Hanging,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zklock._pool.rebalancer._LATE", 0.1)
    monkeypatch.setattr("zklock._pool.rebalancer._OVERDUE", 0.5)
    one = join("a", assign=hanging)
    assert hanging.begun.wait(SOON)
    two = join("b")
    wait_for(lambda: "this worker gives up the lead and waits" in caplog.text, SOON)
    assert caplog.text.count("assign= has not returned for 0.1 s: no shard moves") == 1
    wait_for(lambda: two.is_leader, SOON)
    shared([one, two], NAMES)
    assert one.drain(SOON)  # the plan for it is made by the other
    owns(two, *NAMES)


def test_one_that_was_left_behind_is_not_called_beside_itself(
    join: Join, hanging: Hanging, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("zklock._pool.rebalancer._LATE", 0.1)
    monkeypatch.setattr("zklock._pool.rebalancer._OVERDUE", 0.2)
    one = join("a", assign=hanging)
    said = "this worker gives up the lead and waits"
    wait_for(lambda: caplog.text.count(said) > 1, SOON)  # another term has begun meanwhile
    assert hanging.calls == 1
    hanging.over.set()
    owns(one, *NAMES)
    assert hanging.most == 1


def test_a_leader_that_is_lost_does_not_wait_for_it(
    join: Join, hanging: Hanging, other: Any, zklock_path: str
) -> None:
    one = join("a", assign=hanging)
    assert hanging.begun.wait(SOON)
    two = join("b")
    election = f"{zklock_path}/leader"
    wait_for(lambda: len(children(other, election)) == 2, SOON)
    first = min(children(other, election), key=lambda name: name.rpartition("-")[2])
    other.delete(f"{election}/{first}")
    wait_for(lambda: two.is_leader and not one.is_leader, SOON)
    shared([one, two], NAMES)


def test_of_two_with_one_identity_the_later_one_is_asked_about(join: Join) -> None:
    told: list[list[str]] = []

    def assign(shards: Sequence[Any], workers: Sequence[zklock.PlannedWorker]) -> Any:
        told.append([worker.identity for worker in workers])
        return zklock.balanced(shards, workers)

    first = join("a", assign=assign)
    owns(first, *NAMES)
    second = join("a", assign=assign)
    owns(second, *NAMES)
    owns(first)
    assert {*map(tuple, told)} == {("a",)}


def test_what_is_kept_for_one_that_crashed_is_not_asked_about(
    join: Join, other: Any, zklock_path: str
) -> None:
    told: list[int] = []

    def assign(shards: Sequence[Any], workers: Sequence[zklock.PlannedWorker]) -> Any:
        told.append(len(shards))
        return zklock.balanced(shards, workers)

    stays = join("a", assign=assign)
    owns(stays, *NAMES)
    wait_for(lambda: stays.is_leader, SOON)
    # A place without a worker: what one leaves that has crashed.
    place = f"{zklock_path}/returning/_b"
    said = b'{"identity": "b", "weight": 1, "delay": 600, "shards": "[\\"gone\\",\\"us\\"]"}'
    other.create(place, said, makepath=True)
    stays.set_shards([*NAMES, "gone"])
    wait_for(lambda: told[-1:] == [len(NAMES)] and len(told) > 1, SOON, lambda: f"{told}")
    stays.set_capacity(2.0)
    assert set(stays.owned()) == set(NAMES)


@pytest.mark.parametrize("wrong", ["balanced", 7])
def test_what_it_must_be(front: Front, other: Any, zklock_path: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match="assign must be callable"):
        front.pool(other, zklock_path, assign=wrong)


async def coroutine_function(shards: Any, workers: Any) -> Any:
    return {}


def test_it_is_no_coroutine_function(front: Front, other: Any, zklock_path: str) -> None:
    with pytest.raises(TypeError, match="assign is a coroutine function"):
        front.pool(other, zklock_path, assign=coroutine_function)


def test_a_process_knows_the_name(join: Join, tmp_path: Any) -> None:
    handler = Named(str(tmp_path))
    pool = join("a", shards=["eu/west", "us"], handler=handler, executor="processes")

    def said() -> set[str]:
        return {file.read_text() for file in tmp_path.iterdir() if file.suffix == ".done"}

    wait_for(lambda: len(said()) == 2, SOON)
    tokens = {name: str(grant.token) for name, grant in pool.owned().items()}
    assert said() == {f"{name} {token} True" for name, token in tokens.items()}
