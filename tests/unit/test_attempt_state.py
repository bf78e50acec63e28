"""The stages of an attempt, held against the table written out here, and against the docs.

``python -m tests.unit.test_attempt_state`` writes the table of docs/design.md anew.
"""

from __future__ import annotations

import pytest

from tests.tables import Shown, written
from zklock._engine.attempt_state import TABLE, AttemptEvent, Stage
from zklock._engine.transition_table import IllegalStep

ROWS = """
                 NEW      RUNNING  PARKED   BATCH   BACKOFF     CLAIM    WAIT     PAUSE    OVER
START            RUNNING  -        -        -        -        -        -        -        OVER
ANSWERED         -        -        -        RUNNING  -        -        -        -        -
BUSY             -        -        -        BACKOFF     -        -        -        -        -
ANSWERED_LATE    -        -        PARKED   BATCH   BACKOFF     CLAIM    WAIT     PAUSE    OVER
ELAPSED          -        -        -        -        RUNNING  -        -        RUNNING  -
CONNECTED        -        -        RUNNING  BATCH   BACKOFF     CLAIM    WAIT     PAUSE    OVER
LEASE_LIVE       -        -        PARKED   BATCH   BACKOFF     RUNNING  WAIT     PAUSE    OVER
REFUSED          -        -        PARKED   BATCH   BACKOFF     RUNNING  WAIT     PAUSE    OVER
WATCHED          -        -        PARKED   BATCH   BACKOFF     CLAIM    RUNNING  PAUSE    OVER
CANCELLED         RUNNING  -        RUNNING  BATCH   BACKOFF     RUNNING  RUNNING  RUNNING  OVER
SESSION_GONE     NEW      -        RUNNING  RUNNING  RUNNING  RUNNING  RUNNING  RUNNING  OVER
CLIENT_OVER      RUNNING  -        RUNNING  RUNNING  RUNNING  RUNNING  RUNNING  RUNNING  OVER
INTERRUPTED      OVER     OVER     OVER     OVER     OVER     OVER     OVER     OVER     OVER
SENDS            -        BATCH   -        -        -        -        -        -        -
PARKS            -        PARKED   -        -        -        -        -        -        -
CLAIMS           -        CLAIM    -        -        -        -        -        -        -
WAITS            -        WAIT     -        -        -        -        -        -        -
PAUSES           -        PAUSE    -        -        -        -        -        -        -
ENDS             -        OVER     -        -        -        -        -        -        -
"""


CASES = written(ROWS, Stage, AttemptEvent)
SHOWN = Shown("stages", TABLE, Stage, AttemptEvent)


@pytest.mark.parametrize("news", AttemptEvent)
@pytest.mark.parametrize("stage", Stage)
def test_every_stage_and_news(stage: Stage, news: AttemptEvent) -> None:
    then = CASES[stage, news]
    if then is None:
        with pytest.raises(IllegalStep, match=stage.value):
            TABLE[stage, news]
    else:
        assert TABLE[stage, news] is then


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TABLE[Stage.OVER, AttemptEvent.START] = Stage.RUNNING  # type: ignore[index]


def test_what_is_over_stays_over() -> None:
    assert {then for (stage, _), then in TABLE.items() if stage is Stage.OVER} == {Stage.OVER}


def test_the_docs_show_the_table() -> None:
    assert SHOWN.found == SHOWN.text, (
        "docs/design.md shows another table: run python -m tests.unit.test_attempt_state"
    )


if __name__ == "__main__":
    SHOWN.write()
