"""The rows of a table of locks."""

from __future__ import annotations

from tests.unit.cli.views import World
from zklock.cli.view.model import Look
from zklock.cli.view.table import (
    COLUMNS,
    Order,
    inside,
    rows,
    summary,
    to_json,
)


def some() -> World:
    world = World()
    world.queue("/old", 1, "host-7")
    world.queue("/busy", 2, "host-8")
    for _ in range(2):
        world.queue("/busy", 3, "host-9")
    world.queue("/late", 4, "host-7")
    world.queue("/late", 3, "host-9")
    world.semaphore("/permits", 2, [(5, "a"), (6, "b")], [])
    return world


def test_orders() -> None:
    look = some().look()

    def order(by: Order) -> list[str]:
        return [row.it.key for row in rows(look, by)]

    assert order(Order.WAITING) == ["/busy", "/late", "/old", "/permits"]
    assert order(Order.PATH) == ["/busy", "/late", "/old", "/permits"]
    assert order(Order.HELD) == ["/old", "/busy", "/late", "/permits"]
    assert order(Order.WAIT) == ["/busy", "/late", "/old", "/permits"]


def test_a_filter_looks_at_path_kind_and_holder() -> None:
    look = some().look()
    assert [row.it.key for row in rows(look, part="LATE")] == ["/late"]
    assert [row.it.key for row in rows(look, part="semaphore of 2")] == ["/permits"]
    assert [row.it.key for row in rows(look, part="host-7")] == ["/late", "/old"]
    assert rows(look, part="no such") == []


def test_cells() -> None:
    look = some().look()
    busy, *_, permits = rows(look)
    assert len(busy.cells) == len(COLUMNS)
    assert busy.cells[:3] == ["/busy", "lock", "host-8"]
    assert (busy.cells[4], busy.cells[6:]) == ("2", ["0000000000000007-0000000000", "0x2", "-"])
    assert permits.cells[1:3] == ["semaphore of 2", "a and 1 more"]
    assert permits.cells[5:] == ["-", "-", "-", "-"]


def test_what_is_kept() -> None:
    world = some()
    world.queue("/kept", 5, "host-5\0payload=a2VlcHM=")
    world.queue("/kept", 6, "host-6\0payload=a2VlcHM=")
    world.queue("/latch", 7, "host-7\0payload=a2VlcHM=", "latch")
    look = world.look()
    (kept,) = rows(look, part="/kept")
    assert kept.cells[2] == "host-5 (kept)"
    (lock,) = (lock for lock in look.locks if lock.path == "/kept")
    assert [row[0] for row in inside(lock, {}).rows] == ["keeps", "waits"]
    (latch,) = rows(look, part="/latch")
    assert latch.cells[2] == "host-7", "a member of an election may say what it likes"


def test_the_addresses_of_clients_are_the_last_column() -> None:
    look = some().look(addresses={2: "10.0.0.8:4711", 3: "\x1b:1"})
    cells = {row.it.key: row.cells for row in rows(look)}
    assert {path: row[-1] for path, row in cells.items()} == {
        "/busy": "10.0.0.8:4711", "/late": "-", "/old": "-", "/permits": "-"
    }  # fmt: skip
    (busy,) = (lock for lock in look.locks if lock.path == "/busy")
    addresses = [row[-1] for row in inside(busy, look.addresses).rows]
    assert addresses == ["10.0.0.8:4711", "\\x1b:1", "\\x1b:1"]
    told = to_json(look, Order.PATH, "")["locks"][0]["contenders"]
    assert [one["address"] for one in told] == ["10.0.0.8:4711", "\x1b:1", "\x1b:1"]


def test_the_line_above() -> None:
    assert summary(some().look()) == "4 locks, 3 waiting"
    assert summary(Look(missing=True)) == "0 locks, 0 waiting, the path does not exist"
    world = World()
    for path, session in (("/a", 1), ("/b", 2), ("/b", 1), ("/a", 2)):
        world.queue(path, session, f"h:1:t{session}")
    assert summary(world.look()) == "2 locks, 2 waiting, 1 certain deadlock"


def test_a_persistent_contender_has_no_session_and_a_remedy() -> None:
    world = World()
    node = world.queue("/locks/old one", 0, "gone")
    other = world.queue("/locks/old one", 0, "gone, too")
    (lock,) = world.look().locks
    assert [row[4] for row in inside(lock, {}).rows] == ["none", "none"]
    (row,) = rows(world.look())
    assert row.cells[7] == "none"
    stays = "belongs to no session: it stays when its process ends, and later contenders wait for"
    assert list(lock.orphans()) == [
        (
            f"{node} {stays} ever",
            f"if nobody needs it, delete it: zklock break '/locks/old one' {lock.places[0].token}",
        ),
        (f"{other} {stays} ever", f"if nobody needs it, delete it: zkCli.sh delete '{other}'"),
    ]
