"""The events as a person reads them, one line each, and the summary. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zklock.testing.demo.checks import Verdict
from zklock.testing.demo.events import DIRECTOR, Event
from zklock.testing.demo.terminal import Colour, fold, paint

_WORKERS = (Colour.CYAN, Colour.YELLOW, Colour.GREEN, Colour.MAGENTA, Colour.BLUE)
_TEXT_AT = 24
"""The column at which the text of a line begins."""

_TEXTS: dict[str, tuple[str, Callable[[Event], str], tuple[Colour, ...]]] = {
    "queue": ("queue", lambda e: " ← ".join(map(_place, e["contenders"])), ()),
    "granted": ("granted", lambda e: e["token"], (Colour.GREEN,)),
    "suspended": (
        "suspended",
        lambda e: f"connection lost; the lease runs for {e['remaining']:.3f} s more",
        (Colour.YELLOW,),
    ),
    "refused": (
        "REFUSED",
        lambda e: f"entry {e['number']}: the ledger saw {e['highest']}",
        (Colour.RED,),
    ),
    "released": ("released", lambda _: "", ()),
    "lost": ("LOST", lambda e: f"says the callback: {e['reason']}", (Colour.RED,)),
    "killed": ("SIGKILL", lambda e: f"to {e['worker']}, the holder", (Colour.RED,)),
    "paused": ("SIGSTOP", lambda e: f"to {e['worker']}, the holder", (Colour.RED,)),
    "resumed": ("SIGCONT", lambda e: f"to {e['worker']}", (Colour.RED,)),
    "cut": ("cut", lambda e: f"{e['worker']}, the holder, from ZooKeeper", (Colour.RED,)),
    "restored": ("restored", lambda e: f"the connection of {e['worker']}", ()),
    "broken": ("BROKEN", lambda e: e["why"], (Colour.RED,)),
}
_FAULTS = {"killed": "SIGKILL", "paused": "SIGSTOP", "cut": "the cut"}


class Timeline:
    """Turns events, in order of time, into lines. ``colour`` says whether to use colours."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour
        self._start = 0.0
        self._workers: list[str] = []
        self._wrote: dict[str, int] = {}  # the number of the entry, by worker
        self._over: set[str] = set()  # tokens that were found to be no longer held
        self._fault: Event | None = None

    def line(self, event: Event) -> str | None:
        """Return the text for an event, ``None`` for one that is not worth a line."""
        if event.what == "opening":
            self._start = event.at
            self._workers = list(event["workers"])
            return self._opening(event)
        if event.what == "act":
            self._fault = None
            title = paint(f"Act {event.act}: {event['title']}", Colour.BOLD, on=self._colour)
            return f"\n{title}"
        if event.what == "look":
            return self._look(event)
        if event.what == "wrote":
            self._wrote[event.who] = event["number"]
        if event.what not in _TEXTS:
            return None
        word, text, colours = _TEXTS[event.what]
        return self._format(event, word, text(event) + self._aside(event), colours)

    def summary(self, verdicts: Sequence[Verdict], seconds: float) -> str:
        """Return the summary of the checks; ``seconds`` is how long the demo took."""
        lines = ["", paint("Checked", Colour.BOLD, on=self._colour)]
        for verdict in verdicts:
            mark = ("ok", Colour.GREEN) if verdict.held else ("FAILED", Colour.RED)
            lines.append(f"  {paint(f'{mark[0]:6}', mark[1], on=self._colour)}  {verdict.title}")
            lines += [fold(text, " " * 10) for text in verdict.violations or (verdict.finding,)]
        failed = [verdict.name for verdict in verdicts if not verdict.held]
        if failed:
            end = paint(f"FAILED: {', '.join(failed)}", Colour.RED, Colour.BOLD, on=self._colour)
        else:
            end = paint("All of it held.", Colour.GREEN, Colour.BOLD, on=self._colour)
        return "\n".join([*lines, "", f"{end} {len(verdicts)} checks, {seconds:.1f} s.", ""])

    def _opening(self, event: Event) -> str:
        lines = (
            f"ZooKeeper {event['zookeeper']} at {event['hosts']}",
            f"session timeout {event['session_timeout']:g} s, lock {event['path']}",
            f"workers {' '.join(self._workers)}",
        )
        return "\n".join(map(fold, lines))

    def _look(self, event: Event) -> str | None:
        if event["held"] or event["token"] in self._over:
            return None
        self._over.add(event["token"])
        return self._format(event, "looks", "held is False", (Colour.RED,))

    def _aside(self, event: Event) -> str:
        """Return what else to say: the entry written, or how long after the act's fault it came."""
        if event.what == "released":
            return f"having written entry {self._wrote.pop(event.who, None)}"
        if event.what in _FAULTS:
            self._fault = event
        fault = self._fault
        if fault is None or event.what not in {"granted", "lost"}:
            return ""
        if event.what == "granted":
            self._fault = None
        return f"  {event.at - fault.at:.3f} s after {_FAULTS[fault.what]}"

    def _format(self, event: Event, word: str, text: str, colours: tuple[Colour, ...]) -> str:
        who = event.who if event.who != DIRECTOR else ""
        hue = _WORKERS[self._workers.index(who) % len(_WORKERS)] if who in self._workers else None
        name = paint(f"{who:3}", *([hue] if hue else []), on=self._colour)
        time = paint(f"{event.at - self._start:8.3f}", Colour.DIM, on=self._colour)
        text = fold(text, " " * _TEXT_AT)[_TEXT_AT:]
        return f"{time}  {name} {paint(f'{word:10}', *colours, on=self._colour)}{text}"


def _place(contender: Mapping[str, Any]) -> str:
    return f"{contender['worker']} ({contender['sequence']})"
