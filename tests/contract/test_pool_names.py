"""Pools whose shards have names."""

from __future__ import annotations

import logging
from collections.abc import Iterator
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


def test_a_process_knows_the_name(join: Join, tmp_path: Any) -> None:
    handler = Named(str(tmp_path))
    pool = join("a", shards=["eu/west", "us"], handler=handler, executor="processes")

    def said() -> set[str]:
        return {file.read_text() for file in tmp_path.iterdir() if file.suffix == ".done"}

    wait_for(lambda: len(said()) == 2, SOON)
    tokens = {name: str(grant.token) for name, grant in pool.owned().items()}
    assert said() == {f"{name} {token} True" for name, token in tokens.items()}
