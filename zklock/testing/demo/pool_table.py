"""Workers and their shards as a table; drawn again with every change if that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from zklock._pool.keys import encode
from zklock.testing.demo.checks import Verdict
from zklock.testing.demo.events import Event
from zklock.testing.demo.pool_checks import failovers
from zklock.testing.demo.terminal import Colour, colourful, fold, paint
from zklock.testing.demo.timeline import Timeline

_WIDTH = 48
_STATES = {
    "stopped": ("leaves", Colour.YELLOW),
    "drains": ("drains", Colour.YELLOW),
    "drained": ("drained", Colour.YELLOW),
    "killed": ("killed", Colour.RED),
    "paused": ("paused", Colour.RED),
    "cut": ("cut off", Colour.RED),
    "resumed": ("works", Colour.GREEN),
    "restored": ("works", Colour.GREEN),
}


class PoolTable:
    """Tells a person: redraws the table in place on a terminal, else prints it after each act."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._colour = colourful(stream)
        self._moves = stream.isatty()
        self._drawn = 0
        self._start = 0.0
        self._leader: str | None = None
        self._states: dict[str, tuple[str, Colour]] = {}
        self._owned: dict[str, dict[int, str]] = {}
        self._events: list[Event] = []

    def tell(self, event: Event) -> None:
        """Take an event."""
        self._events.append(event)
        self._start = self._start or event.at
        if event.what == "ready":
            self._states[event.who] = ("works", Colour.GREEN)
        elif event.what == "granted":
            self._owned.setdefault(event.who, {})[event["shard"]] = event["token"]
        elif event.what in {"released", "lost"}:
            mine = self._owned.setdefault(event.who, {})
            if mine.get(event["shard"]) == event["token"]:
                del mine[event["shard"]]
        elif event.what == "leads":
            self._leader = event.who
        elif event.what == "ended":
            self._states[event.who] = ("gone", Colour.DIM)
            self._owned.pop(event.who, None)
        elif event.what in _STATES:
            self._states[event.data.get("worker", event.who)] = _STATES[event.what]
        if event.what in {"act", "opening", "broken"}:
            self._note(event)
        elif event.what == "settled" or (self._moves and event.what != "look"):
            self._draw()

    def summary(self, verdicts: Sequence[Verdict], seconds: float) -> None:
        """Write the failover times, and one paragraph for each check."""
        self._drawn = 0
        lines = [
            "",
            paint("Failover, from the cause to the next grant", Colour.BOLD, on=self._colour),
        ]
        lines.append(
            f"  {'cause':10}{'worker':8}{'shards':>6}{'first':>10}{'median':>10}{'last':>10}"
        )
        for each in failovers(self._events):
            some = (min(each.seconds), each.median, max(each.seconds)) if each.seconds else ()
            times = "".join(f"{time:8.3f} s" for time in some)
            lines.append(f"  {each.cause:10}{each.worker:8}{len(each.seconds):6}{times}")
        print("\n".join(lines), file=self._stream)
        print(Timeline(self._colour).summary(verdicts, seconds), file=self._stream, flush=True)

    def _note(self, event: Event) -> None:
        self._drawn = 0
        if event.what == "act":
            title = f"Act {event.act}: {event['title']}"
            text = "\n" + paint(title, Colour.BOLD, on=self._colour)
        elif event.what == "broken":
            text = paint(fold(f"BROKEN: {event['why']}"), Colour.RED, on=self._colour)
        else:
            text = fold(
                f"ZooKeeper {event['zookeeper']}, session timeout {event['session_timeout']:g} s, "
                f"pool {event['path']} of {event['shards']} shards"
            )
        print(text, file=self._stream, flush=True)

    def _draw(self) -> None:
        lines = [self._line(worker) for worker in sorted(self._states)]
        at = self._events[-1].at - self._start
        lines.append(paint(f"  {at:8.3f} s", Colour.DIM, on=self._colour))
        up = f"\x1b[{self._drawn}A\x1b[J" if self._moves and self._drawn else ""
        print(up + "\n".join(lines), file=self._stream, flush=True)
        self._drawn = len(lines)

    def _line(self, worker: str) -> str:
        text, colour = self._states[worker]
        mine = self._owned.get(worker, {})
        shards = encode(mine)
        if len(shards) > _WIDTH:
            shards = shards[: _WIDTH - 1] + "…"
        leads = "leads" if worker == self._leader and text == "works" else ""
        state = paint(f"{text:9}", colour, on=self._colour)
        return f"  {worker:4}{state}{leads:6}{len(mine):4}  {shards}".rstrip()
