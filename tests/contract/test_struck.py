"""An interrupt at every moment at which one can strike leaves no contender, grant or client.

And it arrives.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.contract.support import ROOT
from tests.modes import repeated

OTHER = pytest.mark.thorough(
    "strikes at every moment: ordinary exceptions, and other forms of the same calls"
)


ONE_OF = repeated(1, 3)
"""Of so many moments one is struck: where something is left to CI, that is left, too."""


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
        ("connect", 1, False),
        ("with", 1, True),
        ("acquire", 2, True),
    ],
)
def test_an_interrupt_at_every_moment_leaves_nothing(
    zklock_hosts: str,
    zklock_path: str,
    how: str,
    stride: int,
    hooked: bool,
    strike: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stride *= ONE_OF
    given = {
        "hosts": zklock_hosts,
        "path": zklock_path,
        "how": how,
        "stride": stride,
        "hooked": hooked,
        "strike": strike,
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.contract.struck", json.dumps(given)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=700,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tally = json.loads(done.stdout)
    with capsys.disabled():
        print(f"\n{how}, {strike}: {tally}", end=" ", file=sys.stderr)
    assert "never awaited" not in done.stderr
    assert tally["struck"] >= tally["fewest"] // stride
    assert (tally.get("grants", 0) > tally["struck"]) == hooked
