"""Tells the events and the summary to a person or to a program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol, TextIO

from zklock.testing.demo.checks import Verdict
from zklock.testing.demo.events import VERSION, Event
from zklock.testing.demo.terminal import colourful
from zklock.testing.demo.timeline import Timeline


class Teller(Protocol):
    """Gets every event, in order of time, and the verdicts at the end."""

    def tell(self, event: Event) -> None:
        """Take an event."""

    def summary(self, verdicts: Sequence[Verdict], seconds: float) -> None:
        """Take the verdicts; ``seconds`` is how long the demo took."""


class ToPerson:
    """Writes a timeline and the summary as text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._timeline = Timeline(colourful(stream))

    def tell(self, event: Event) -> None:
        """Write the event's line, if it is worth one."""
        line = self._timeline.line(event)
        if line is not None:
            print(line, file=self._stream, flush=True)

    def summary(self, verdicts: Sequence[Verdict], seconds: float) -> None:
        """Write one paragraph for each check."""
        print(self._timeline.summary(verdicts, seconds), file=self._stream, flush=True)


class ToProgram:
    """Writes JSON, one object a line; the last one is the summary."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def tell(self, event: Event) -> None:
        """Write the event."""
        print(event.to_json(), file=self._stream, flush=True)

    def summary(self, verdicts: Sequence[Verdict], seconds: float) -> None:
        """Write the object with the verdicts."""
        summary = {
            "version": VERSION,
            "event": "summary",
            "held": all(verdict.held for verdict in verdicts),
            "seconds": round(seconds, 3),
            "checks": [
                {
                    "name": verdict.name,
                    "held": verdict.held,
                    "finding": verdict.finding,
                    "violations": list(verdict.violations),
                    "figures": {key: round(it, 6) for key, it in verdict.figures.items()},
                }
                for verdict in verdicts
            ],
        }
        print(json.dumps(summary), file=self._stream, flush=True)
