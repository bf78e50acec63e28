"""What observers of members are told: differences between states, whatever lies between."""

from __future__ import annotations

import random

from zklock._election.membership import Differences, MembershipChange, Present
from zklock._recipes.effects import Node
from zklock._recipes.follow import Folder


def present(**said: str | None) -> Present:
    nodes = {
        name: None if text is None else Node(f"/p/{name}", text.encode(), 1, mine=False)
        for name, text in said.items()
    }
    return Present(Folder(tuple(said), 1, b""), nodes)


def describe(present: Present) -> dict[str, str]:
    return {
        name: "" if node is None else f"{name}:{node.data.decode()}"
        for name, node in sorted(present.nodes.items())
    }


def test_differences() -> None:
    differences = Differences(describe)
    assert differences.since(present()) == MembershipChange((), (), (), ())
    assert differences.since(present()) is None
    first = differences.since(present(b="1", a="1"))
    assert first == MembershipChange(("a:1", "b:1"), ("a:1", "b:1"), (), ())
    later = differences.since(present(a="2", c=None))
    assert later == MembershipChange(("a:2", ""), ("",), ("b:1",), ("a:2",))
    assert differences.since(present(a="2", c=None)) is None


def test_changes_add_up_whatever_was_not_looked_at() -> None:
    chance = random.Random(7)
    for _ in range(50):
        differences, seen = Differences(describe), set[str]()
        for _ in range(20):
            now = present(
                **{name: chance.choice("12") for name in "abcdef" if chance.random() < 0.5}
            )
            if chance.random() < 0.5:
                continue
            change = differences.since(now)
            if change is not None:
                before = {
                    each
                    for each in seen
                    if each.split(":")[0] in {now.split(":")[0] for now in change.changed}
                }
                assert len(before) == len(change.changed)
                seen = (seen - set(change.left) - before) | set(change.joined + change.changed)
                assert seen == set(change.members)
            assert seen == set(describe(now).values())
