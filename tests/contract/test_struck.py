"""An interrupt at every moment at which one can strike leaves no contender, grant or client.

And it arrives. Nor does a second one that strikes while the first is being seen to.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.support import program
from tests.modes import repeated

OTHER = pytest.mark.thorough(
    "strikes at every moment: ordinary exceptions, and other forms of the same calls"
)


ONE_OF = repeated(1, 8)
"""Of so many moments one is struck: the nightly run strikes all."""


@pytest.mark.hazard("H9", "H55")
@pytest.mark.parametrize("strike", ["interrupt", pytest.param("limit", marks=OTHER)])
@pytest.mark.parametrize(
    ("how", "stride", "hooked"),
    [
        ("with", 1, False),
        ("with acquire", 1, False),
        pytest.param("with attempt", 1, False, marks=OTHER),
        ("acquire", 1, False),
        ("multi with", 2, False),
        pytest.param("multi with acquire", 2, False, marks=OTHER),
        pytest.param("multi with attempt", 2, False, marks=OTHER),
        ("multi acquire", 2, False),
        ("election with acquire", 1, False),
        pytest.param("election with attempt", 1, False, marks=OTHER),
        ("election acquire", 1, False),
        ("kept with", 1, False),
        ("kept acquire", 1, False),
        ("keep with", 2, False),
        ("keep acquire", 2, False),
        ("queued with", 2, False),
        pytest.param("queued acquire", 1, False, marks=OTHER),
        ("connect", 1, False),
        ("with", 1, True),
        ("acquire", 2, True),
    ],
)
def test_an_interrupt_at_every_moment_leaves_nothing(
    zklock_hosts: str, zklock_path: str, how: str, stride: int, hooked: bool, strike: str
) -> None:
    stride *= ONE_OF
    tally = struck(zklock_hosts, zklock_path, how, stride=stride, hooked=hooked, strike=strike)
    assert (tally.get("grants", 0) > tally["struck"]) == hooked


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize(
    ("how", "stride"),
    [
        ("again acquire", 1),
        ("again with", 1),
        ("again with acquire", 1),
        ("again with attempt", 1),
        ("beside acquire", ONE_OF),
        ("beside with", ONE_OF),
        pytest.param("beside with acquire", 1, marks=OTHER),
        pytest.param("beside with attempt", 1, marks=OTHER),
    ],
)
def test_an_interrupt_leaves_what_the_thread_has_acquired_before(
    zklock_hosts: str, zklock_path: str, how: str, stride: int, twice: bool
) -> None:
    """A use of a re-entrant lock counts if and only if its acquire has returned."""
    tally = struck(zklock_hosts, zklock_path, how, stride=stride, twice=twice)
    # One use more of a lock that is held leaves nothing to see to until it counts.
    assert (tally.get("twice", 0) > 0) == (twice and how != "again acquire")


@pytest.mark.hazard("H9", "H55")
@pytest.mark.parametrize(
    "how",
    [
        "with",
        "acquire",
        pytest.param("with acquire", marks=OTHER),
        pytest.param("with attempt", marks=OTHER),
        "multi with",
        "multi acquire",
        pytest.param("multi with acquire", marks=OTHER),
        pytest.param("multi with attempt", marks=OTHER),
        "election acquire",
        "kept with",
        "kept acquire",
        "keep with",
        "queued with",
        pytest.param("election with acquire", marks=OTHER),
        pytest.param("connect", marks=OTHER),
    ],
)
def test_a_second_interrupt_leaves_nothing(zklock_hosts: str, zklock_path: str, how: str) -> None:
    """It strikes while the first is being seen to, when a function begins."""
    tally = struck(zklock_hosts, zklock_path, how, stride=ONE_OF, twice=True)
    # Until there is a client, there is nothing to undo; an acquire leaves it to another thread.
    rare = {"connect", "acquire", "kept with", "keep with"}
    parts = 8 if how in rare else 4 if how.startswith(("with", "queued")) else 2
    assert tally["twice"] > tally["struck"] / parts or how == "kept acquire"


def struck(hosts: str, path: str, how: str, *, stride: int, **given: Any) -> dict[str, int]:
    """Have a child struck at one moment after the other; return what it has counted."""
    options = {"hooked": False, "strike": "interrupt", "twice": False, **given}
    told = json.dumps({"hosts": hosts, "path": path, "how": how, "stride": stride, **options})
    done = program("-W", "error", "-m", "tests.contract.struck", told, timeout=700)
    tally: dict[str, int] = json.loads(done.stdout)
    assert "never awaited" not in done.stderr
    assert tally["struck"] >= tally["fewest"] // stride
    return tally
