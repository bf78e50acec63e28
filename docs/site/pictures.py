"""Draws the pictures of the docs: ``python docs/site/pictures.py`` writes ``docs/pictures``.

It also writes the tables of measured figures into docs/benchmarks.md (see figures.py).

They are drawn 480 wide, so that they can be read on a phone. Colours follow the reader's scheme.
Times come from the arithmetic of the lease, state machines from their tables, and the plots of the
benchmarks from what those have written into ``tests/bench/results``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import TypeVar
from xml.sax.saxutils import escape

import figures

from zklock._core.lease import DEFAULT_FRACTION, HEARTBEATS

PICTURES = Path(__file__).parents[1] / "pictures"
WIDTH = 480
LEFT, RIGHT = 84, 468
"""Where a time line begins and ends."""

STYLE = """
    .paper { fill: #ffffff }
    .text { fill: #1f2328 }
    .soft { fill: #59636e }
    .line { stroke: #8c959f; stroke-width: 1.5; fill: none }
    .dash { stroke: #8c959f; stroke-width: 1.2; stroke-dasharray: 4 4; fill: none }
    .box { fill: #f6f8fa; stroke: #8c959f; stroke-width: 1.2 }
    .tip { fill: #8c959f }
    .holds { fill: #2da44e }
    .lease { fill: #2da44e; fill-opacity: 0.22 }
    .pause { fill: #d4a72c; fill-opacity: 0.35 }
    .next { fill: #0969da }
    .mark { stroke: #0969da; stroke-width: 1.5; fill: none }
    .bad { fill: #cf222e; stroke: #cf222e; stroke-width: 3 }
    .cut { stroke: #cf222e; stroke-width: 2; stroke-dasharray: 7 5; fill: none }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117 }
      .text { fill: #f0f6fc }
      .soft { fill: #9198a1 }
      .box { fill: #161b22 }
      .holds { fill: #3fb950 }
      .lease { fill: #3fb950 }
      .next { fill: #4493f8 }
      .mark { stroke: #4493f8 }
      .bad { fill: #f85149; stroke: #f85149 }
      .cut { stroke: #f85149 }
    }
"""

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Picture:
    """An SVG that grows by its parts."""

    def __init__(self, height: float, title: str, description: str) -> None:
        self.height = height
        self._title, self._description = title, description
        self._parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        kind: str = "text",
        size: int = 13,
        at: str = "start",
    ) -> None:
        """Write words; ``at`` is where ``x`` is in them: start, middle or end."""
        wide = 0.56 * size * len(words)
        left = x - {"start": 0, "middle": wide / 2, "end": wide}[at]
        if not 4 <= left <= left + wide <= WIDTH - 2:
            raise ValueError(f"{self._title}: there is no room for {words!r}")
        self._add(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{at}">'
            f"{escape(words)}</text>"
        )

    def name(self, y: float, words: str, below: str = "") -> None:
        """Name a time line at its left."""
        self.text(12, y - 2, words)
        if below:
            self.text(12, y + 14, below, kind="soft", size=11)

    def bar(self, kind: str, x: float, y: float, wide: float, high: float) -> None:
        """Draw a bar; ``y`` is its middle."""
        self._add(
            f'<rect class="{kind}" x="{x:g}" y="{y - high / 2:g}" width="{wide:g}" '
            f'height="{high:g}" rx="4"/>'
        )

    def line(self, kind: str, *points: tuple[float, float]) -> None:
        """Draw a line through points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._add(f'<polyline class="{kind}" points="{path}"/>')

    def arrow(self, *points: tuple[float, float], kind: str = "line") -> None:
        """Draw a line with a tip at its last point, which is level or upright there."""
        self.line(kind, *points)
        (px, py), (x, y) = points[-2:]
        dx, dy = (x > px) - (x < px), (y > py) - (y < py)
        tip = [(x, y), (x - 8 * dx - 4 * dy, y - 8 * dy - 4 * dx)]
        tip.append((x - 8 * dx + 4 * dy, y - 8 * dy + 4 * dx))
        path = " ".join(f"{a:g},{b:g}" for a, b in tip)
        self._add(f'<polygon class="tip" points="{path}"/>')

    def box(self, x: float, y: float, words: str, *, wide: float = 100, high: float = 34) -> None:
        """Draw a box with words; ``x`` and ``y`` are its middle."""
        self.bar("box", x - wide / 2, y, wide, high)
        self.text(x, y + 5, words, at="middle")

    def dot(self, kind: str, x: float, y: float) -> None:
        """Draw a dot."""
        self._add(f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="6"/>')

    def cross(self, x: float, y: float) -> None:
        """Draw a cross."""
        for sign in (1, -1):
            self.line("bad", (x - 6, y - 6 * sign), (x + 6, y + 6 * sign))

    def svg(self) -> str:
        """Return the picture as text."""
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:g}" '
                f'width="{WIDTH}" height="{self.height:g}" role="img" '
                'aria-labelledby="title description" font-family="system-ui, sans-serif">',
                f'  <title id="title">{escape(self._title)}</title>',
                f'  <desc id="description">{escape(self._description)}</desc>',
                f"  <style>{STYLE}  </style>",
                f'  <rect class="paper" width="{WIDTH}" height="{self.height:g}" rx="8"/>',
                *self._parts,
                "</svg>\n",
            ]
        )

    def _add(self, part: str) -> None:
        self._parts.append(f"  {part}")


def paused_holder() -> Picture:
    """Draw a holder that is paused past its lease."""
    it = Picture(
        312,
        "The paused holder",
        "Holder A is paused past its lease. B is granted the lock with a higher token and writes. "
        "When A goes on, held is false at its first look, and the resource refuses a late write "
        "with the old token.",
    )
    it.name(70, "A", "token 33")
    it.line("line", (LEFT, 70), (RIGHT, 70))
    it.bar("lease", 92, 70, 150, 36)
    it.bar("holds", 92, 70, 66, 14)
    it.bar("pause", 158, 70, 202, 46)
    it.text(259, 40, "process paused", at="middle")
    it.line("dash", (242, 50), (242, 98))
    it.text(242, 112, "the lease ends", kind="soft", size=11, at="middle")
    it.text(RIGHT, 24, "held is False at the first look", at="end", size=12)
    it.arrow((366, 30), (366, 62))
    it.name(164, "B", "token 34")
    it.line("line", (LEFT, 164), (RIGHT, 164))
    it.line("dash", (96, 158), (282, 158))
    it.text(134, 150, "waits its turn", kind="soft", size=11)
    it.bar("next", 284, 164, 180, 14)
    it.text(284, 134, "granted when A's", size=12)
    it.text(284, 150, "session is over", size=12)
    it.name(250, "resource")
    it.line("line", (LEFT, 250), (RIGHT, 250))
    it.line("dash", (126, 84), (126, 242))
    it.dot("holds", 126, 250)
    it.text(126, 276, "write, 33", kind="soft", size=11, at="middle")
    it.line("dash", (316, 172), (316, 242))
    it.dot("holds", 316, 250)
    it.text(316, 276, "write, 34", kind="soft", size=11, at="middle")
    it.line("dash", (420, 76), (420, 242))
    it.cross(420, 250)
    it.text(RIGHT, 294, "late write, 33: refused", kind="soft", size=11, at="end")
    return it


def queue() -> Picture:
    """Draw the queue: who watches whom."""
    it = Picture(
        306,
        "The queue",
        "The children of the lock's path are the contenders, in the order of their numbers. The "
        "first one holds the lock. Each other one watches the one before it. When the first one is "
        "deleted, only the next one is told, and it holds the lock.",
    )
    it.text(12, 26, "/locks/report, and its children: one holds, three wait")
    middles = (62, 180, 298, 416)
    for x, number in zip(middles, (33, 34, 35, 36), strict=True):
        it.box(x, 66, f"…-lock-{number}", wide=100)
    it.bar("holds", 12, 92, 86, 8)
    it.text(12, 112, "holds, token 33", size=11)
    for before, after in pairwise(middles):
        it.arrow((after, 84), (after, 126), (before + 46, 126), (before + 46, 84), kind="dash")
        it.text((before + after) / 2 + 23, 142, "watches", kind="soft", size=11, at="middle")
    it.text(12, 186, "33 is released: one waiter is told, and no other")
    it.line("dash", (12, 210), (112, 244))
    it.line("dash", (12, 244), (112, 210))
    for x, number in zip(middles[1:], (34, 35, 36), strict=True):
        it.box(x, 227, f"…-lock-{number}", wide=100)
    it.bar("next", 130, 253, 100, 8)
    it.text(180, 274, "holds, token 34", size=11, at="middle")
    it.arrow((112, 227), (129, 227))
    it.text(62, 274, "deleted", kind="soft", size=11, at="middle")
    it.text(357, 274, "notice nothing", kind="soft", size=11, at="middle")
    return it


def lease() -> Picture:
    """Draw the lease on a time line, to scale, for a timeout of 10 s and a tick of 2 s."""
    timeout, tick = 10.0, 2.0
    begin, cut = 0.0, 2.5
    beat = timeout / HEARTBEATS
    last = beat * int(cut / beat)
    length = DEFAULT_FRACTION * timeout
    ends = last + length
    earliest = last + (1 - 1 / HEARTBEATS) * timeout - tick / 2
    latest = cut + timeout + tick

    def at(seconds: float) -> float:
        return LEFT + 6 + (seconds - begin) / 15.5 * (RIGHT - LEFT - 12)

    it = Picture(
        330,
        "The lease",
        f"With a session timeout of {timeout:g} s, a proof is sent every {beat:g} s. The holder is "
        f"cut off after {cut:g} s. Its lease ends {length:.1f} s after the last proof was sent, "
        f"at {ends:.1f} s. ZooKeeper gives the lock to the next one between "
        f"{earliest:.1f} and {latest:.1f} s.",
    )
    it.text(12, 24, f"T = {timeout:g} s, tick = {tick:g} s: the holder is cut off at {cut:.1f} s")
    it.name(84, "proofs", f"every {beat:g} s")
    it.line("line", (LEFT, 84), (RIGHT, 84))
    for number in range(HEARTBEATS):
        sent = number * beat
        if sent <= last:
            it.dot("holds", at(sent), 84)
        elif sent < ends:
            it.cross(at(sent), 84)
    it.text(at(last) - 4, 62, "the last proof", size=11, at="end")
    it.text(at(last + beat) - 4, 62, "no answer", kind="soft", size=11)
    it.line("cut", (at(cut), 40), (at(cut), 284))
    it.text(at(cut) + 6, 48, "cut off", kind="soft", size=11)
    it.name(150, "the lease", "2/3 T")
    it.line("line", (LEFT, 150), (RIGHT, 150))
    it.bar("lease", at(begin), 150, at(ends) - at(begin), 36)
    it.bar("holds", at(begin), 150, at(ends) - at(begin), 12)
    it.line("dash", (at(last), 92), (at(last), 186))
    it.arrow((at(last), 186), (at(ends), 186))
    it.text((at(last) + at(ends)) / 2, 202, f"{length:.1f} s", size=11, at="middle")
    it.line("dash", (at(ends), 112), (at(ends), 186))
    it.text(at(ends) + 4, 118, "held is False,", size=12)
    it.text(at(ends) + 4, 134, "the callback runs", size=12)
    it.name(240, "the next", "is granted")
    it.line("line", (LEFT, 240), (RIGHT, 240))
    it.bar("pause", at(earliest), 240, at(latest) - at(earliest), 36)
    it.bar("next", at(latest), 240, RIGHT - at(latest), 12)
    it.text((at(earliest) + at(latest)) / 2, 272, "within this time", size=11, at="middle")
    it.line("line", (LEFT, 284), (RIGHT, 284))
    for seconds in (begin, cut, ends, earliest, latest):
        it.line("line", (at(seconds), 280), (at(seconds), 288))
    it.text(at(begin), 304, "0 s", kind="soft", size=11, at="middle")
    it.text(at(cut), 304, f"{cut:.1f}", kind="soft", size=11, at="middle")
    it.text(at(ends), 304, f"{ends:.1f}", kind="soft", size=11, at="end")
    it.text(at(earliest), 318, f"{earliest:.1f}", kind="soft", size=11, at="middle")
    it.text(at(latest), 304, f"{latest:.1f}", kind="soft", size=11, at="middle")
    return it


def partition() -> Picture:
    """Draw a partition with the holder on the small side."""
    it = Picture(
        352,
        "The partition",
        "A network is cut between server 1, with holder A, and servers 2 and 3, with waiter B. "
        "Server 1 answers pings and reads, and can prove nothing. So A's lease ends. Then the "
        "majority ends A's session, and B is granted the lock.",
    )
    it.text(110, 26, "cut off: no quorum", at="middle")
    it.text(350, 26, "the majority", at="middle")
    it.box(110, 66, "server 1", wide=96)
    it.box(290, 66, "server 2", wide=96)
    it.box(412, 66, "server 3", wide=96)
    it.line("line", (338, 66), (364, 66))
    it.line("dash", (158, 66), (242, 66))
    it.line("cut", (200, 36), (200, 336))
    it.box(110, 156, "A holds, 33", wide=120)
    it.box(330, 156, "B waits, 34", wide=120)
    it.line("line", (110, 84), (110, 138))
    it.line("line", (290, 84), (290, 138))
    it.text(12, 204, "1. The server answers pings", size=12)
    it.text(26, 220, "and reads, no writes.", size=12)
    it.text(12, 244, "2. A's proofs have no answer.", size=12)
    it.text(12, 268, "3. A's lease ends:", size=12)
    it.text(26, 284, "held is False.", size=12)
    it.text(212, 308, "4. The majority ends A's session.", size=12)
    it.text(212, 332, "5. B is granted, with token 34.", size=12)
    it.bar("holds", 50, 180, 120, 8)
    it.bar("next", 270, 180, 120, 8)
    return it


def hand_over() -> Picture:
    """Draw how a shard of a pool moves to a new worker."""
    it = Picture(
        296,
        "The hand-over of a shard",
        "The leader of the pool assigns a shard of worker A to worker B. B queues for the shard's "
        "lock. A is told to stop, ends its piece of work, and releases. Then B is granted it, with "
        " a higher token, and its handler begins.",
    )
    it.name(60, "leader")
    it.line("line", (LEFT, 60), (RIGHT, 60))
    it.dot("tip", 140, 60)
    it.text(140, 42, "new plan: shard 7 from A to B", size=12)
    it.name(140, "A", "token 33")
    it.line("line", (LEFT, 140), (RIGHT, 140))
    it.bar("holds", 92, 140, 208, 14)
    it.arrow((140, 66), (140, 131))
    it.text(148, 104, "should_stop is set", size=12)
    it.bar("pause", 140, 140, 160, 34)
    it.text(220, 174, "ends its piece of work", kind="soft", size=11, at="middle")
    it.text(306, 134, "releases", size=12)
    it.name(230, "B", "token 34")
    it.line("line", (LEFT, 230), (RIGHT, 230))
    it.line("dash", (150, 224), (300, 224))
    it.text(150, 216, "stands in the queue", kind="soft", size=11)
    it.arrow((300, 148), (300, 221))
    it.bar("next", 300, 230, 164, 14)
    it.text(308, 216, "granted: the handler", size=12)
    it.text(308, 258, "begins with token 34", size=12)
    it.text(12, 284, "The shard's lock decides, not the plan: no two own it at once.", size=12)
    return it


BARS, BARS_END = 206, 430
"""Where the bars of a plot begin and end."""


def plot(title: str, note: str, rows: list[tuple[str, str, float]], source: str) -> Picture:
    """Draw a bar for each row: its label, its kind, and a ratio, where 1 is the peer."""
    step, top = 26, 62
    described = "; ".join(f"{label}: {ratio:.2f}" for label, _, ratio in rows)
    it = Picture(top + step * len(rows) + 26, title, described)
    it.text(12, 24, note, size=13)
    scale = (BARS_END - BARS) / max(ratio for *_, ratio in rows)
    one, bottom = BARS + scale, top + step * len(rows) - 18
    for row, (label, kind, ratio) in enumerate(rows):
        y = top + step * row
        it.text(BARS - 10, y + 4, label, size=12, at="end")
        it.bar(kind, BARS, y, scale * ratio, 14)
        it.text(BARS + scale * ratio + 6, y + 4, f"{ratio:.2f}", size=12)
    it.line("dash", (one, top - 18), (one, bottom))
    it.text(12, it.height - 12, source, kind="soft", size=10)
    return it


def lock_plot() -> Picture:
    """Plot zklock's lock beside kazoo's."""
    result = figures.measured("lock")
    rows = [("kazoo's Lock", "tip", 1.0)]
    for where in ("one machine", "over a network"):
        found = result["figures"][where]
        rows.append((f"zklock, {where}", "holds", found["zklock"]["p50"] / found["kazoo"]["p50"]))
    note = "Acquire and release, uncontended: time, kazoo's = 1"
    return plot("An uncontended lock", note, rows, figures.measured_with(result))


def fencing_plot() -> Picture:
    """Plot what a guard adds to a write."""
    result = figures.measured("fencing")
    rows = [(store, "next", figures.ratio(found)) for store, found in result["figures"].items()]
    note = "A guarded write: time, the same write without a guard = 1"
    return plot("Guarded writes", note, rows, figures.measured_with(result))


def failover_plot() -> Picture:
    """Plot the seconds until the next one works: a dot for each time, a mark for each median."""
    result = figures.measured("failover")
    timeout = result["conditions"]["timeout"]
    found = {
        (kind, cause): [each for front in fronts.values() for each in front]
        for kind, causes in result["figures"].items()
        for cause, fronts in causes.items()
    }
    most = max(max(seconds) for seconds in found.values())
    step, top, left, right = 24, 66, 160, 464
    medians = {key: statistics.median(seconds) for key, seconds in found.items()}
    described = "; ".join(f"{kind}, {cause}: {it:.2f} s" for (kind, cause), it in medians.items())
    it = Picture(top + step * (len(found) + 2) + 24, "Failover", described)
    it.text(12, 24, "Seconds until the next one works: each time, and the median", size=13)
    y, scale = top - step, (right - left) / most
    marks: list[float] = []
    for kind, causes in result["figures"].items():
        y += step
        it.text(12, y + 4, figures.KINDS[kind], size=12)
        for cause in causes:
            y += step
            marks.append(y)
            it.text(left - 14, y + 4, cause, kind="soft", size=12, at="end")
            for seconds in found[kind, cause]:
                it.dot("lease", left + scale * seconds, y)
            middle = left + scale * medians[kind, cause]
            it.line("line", (middle, y - 9), (middle, y + 9))
    x = left + scale * timeout
    it.line("dash", (x, top - 22), (x, y + 12))
    it.text(x - 6, top - 16, f"session timeout, {timeout:g} s", kind="soft", size=11, at="end")
    it.line("line", (left, marks[0] - 12), (left, y + 12))
    it.text(12, it.height - 10, figures.measured_with(result), kind="soft", size=10)
    return it


def soak_plot() -> Picture:
    """Plot what one process had in the course of hours: each measure on a scale from 0."""
    result = figures.measured("soak")
    samples: dict[str, list[float]] = result["figures"]["samples"]
    minutes = result["conditions"]["minutes"]
    step, top, left, right, high = 34, 62, 130, 356, 24
    ends = {name: (min(each), max(each)) for name, each in samples.items()}
    described = "; ".join(f"{name}: {low:g} to {most:g}" for name, (low, most) in ends.items())
    it = Picture(top + step * len(samples) + 24, "One process for hours", described)
    it.text(12, 24, f"One process in {minutes:g} minutes: each on a scale from 0", size=13)
    it.text(12, 42, "least to most at the right", kind="soft", size=11)
    for row, (name, values) in enumerate(samples.items()):
        bottom = top + step * row + high
        low, most = ends[name]
        wide = (right - left) / max(1, len(values) - 1)
        it.text(12, bottom - 4, name, size=12)
        it.line("line", (left, bottom), (right, bottom))
        it.line(
            "mark",
            *((left + wide * at, bottom - high * each / most) for at, each in enumerate(values)),
        )
        it.text(right + 8, bottom - 4, f"{low:.0f} to {most:.0f}", kind="soft", size=11)
    it.text(12, it.height - 10, figures.measured_with(result), kind="soft", size=10)
    return it


DRAWN: dict[str, Callable[[], Picture]] = {
    "paused-holder": paused_holder,
    "queue": queue,
    "lease": lease,
    "partition": partition,
    "hand-over": hand_over,
    "bench-lock": lock_plot,
    "bench-fencing": fencing_plot,
    "bench-failover": failover_plot,
    "soak": soak_plot,
}


def main() -> None:
    """Write all pictures, and the tables of figures."""
    figures.write()
    for name, draw in DRAWN.items():
        (PICTURES / f"{name}.svg").write_text(draw().svg())


if __name__ == "__main__":
    main()
