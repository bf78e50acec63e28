"""Records the demo as a moving picture: ``python docs/site/record.py`` [ARGUMENT …].

It runs ``zklock demo`` with these arguments, and writes ``docs/pictures/demo.svg``: a terminal that
shows each line at the moment at which it was printed. Lines that came at once follow each other so
that a reader can see them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).parents[1] / "pictures" / "demo.svg"
ROWS, COLUMNS, LINE, COLUMN, EDGE = 22, 82, 18, 7.8, 12
"""The terminal: its size; the height of a line, the width of a column and the margin in pixels."""
PACE, REST = 0.2, 10.0
"""Seconds from one line to the next, at least; how long the last ones stay."""
COLOURS = {
    "head": r"^\S.*",
    "good": r"^ +ok\b",
    "bad": r"\b(SIG[A-Z]+|LOST|REFUSED)\b",
}
STYLE = """
    rect { fill: #161b22 }
    text { fill: #c9d1d9; font: 13px ui-monospace, Menlo, Consolas, monospace; white-space: pre }
    .good { fill: #3fb950 }
    .bad { fill: #f85149 }
    .head { fill: #58a6ff }
"""


def recorded(command: Sequence[str]) -> list[tuple[float, str]]:
    """Run a command; return what it prints: seconds since its first line, and the line."""
    lines: list[tuple[float, str]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines.extend((time.monotonic(), line.rstrip("\n")) for line in process.stdout)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: status {process.returncode}")
    return [(at - lines[0][0], line) for at, line in lines]


def svg(lines: Sequence[tuple[float, str]]) -> str:
    """Return the moving picture: a column of all lines, which moves up when a line is printed."""
    times = [0.0]
    for at, _ in lines[1:]:
        times.append(max(at, times[-1] + PACE))
    length = times[-1] + REST
    rows = [
        f'<text x="{EDGE}" y="{LINE * number - 5}">{coloured(line)}</text>'
        for number, (_, line) in enumerate(lines, 1)
    ]
    places = [LINE * (ROWS - number) for number in range(1, len(lines) + 1)]
    moves = [
        f"      {at / length:.3%} {{ transform: translateY({place}px) }}"
        for at, place in zip(times, places, strict=True)
    ]
    wide, high = round(COLUMN * COLUMNS + 2 * EDGE), LINE * ROWS + 2 * EDGE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img">',
            "<title>zklock demo, as recorded</title>",
            f"<style>{STYLE}",
            f"    g {{ transform: translateY({places[-1]}px) }}",
            "    @media (prefers-reduced-motion: no-preference) {",
            f"      g {{ animation: printed {length:.1f}s step-end infinite }}",
            "    }",
            "    @keyframes printed {",
            *moves,
            "    }",
            "</style>",
            f'<rect width="{wide}" height="{high}" rx="8"/>',
            f'<svg y="{EDGE}" width="{wide}" height="{LINE * ROWS}">',
            "<g>",
            *rows,
            "</g>",
            "</svg>",
            "</svg>",
            "",
        ]
    )


def coloured(line: str) -> str:
    """Return a line as SVG, with the words of ``COLOURS`` in their classes."""
    text = escape(line)
    for name, pattern in COLOURS.items():
        text = re.sub(pattern, rf'<tspan class="{name}">\g<0></tspan>', text)
    return text


if __name__ == "__main__":
    zklock = str(Path(sys.executable).with_name("zklock"))
    printed = recorded([zklock, "demo", *sys.argv[1:]])
    told = " ".join(["$ zklock demo", *sys.argv[1:]])
    PICTURE.write_text(svg([(0.0, told), *printed]))
