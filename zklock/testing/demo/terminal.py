"""What suits a terminal: lines that fit, and colour where it is wanted."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from enum import Enum
from typing import TextIO

WIDTH = 79
"""Columns that a line may take: a terminal with 80 then shows it as one line."""


class Colour(Enum):
    """SGR parameters (ECMA-48, 8.3.117)."""

    BOLD = "1"
    DIM = "2"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    BLUE = "34"
    MAGENTA = "35"
    CYAN = "36"


def colourful(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to use colour: on a terminal that can show it, unless ``NO_COLOR`` is set."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def paint(text: str, *colours: Colour, on: bool) -> str:
    """Return the text in these colours; unchanged if ``on`` is false."""
    if not on or not colours:
        return text
    return f"\x1b[{';'.join(colour.value for colour in colours)}m{text}\x1b[0m"


def fold(text: str, indent: str = "") -> str:
    """Return the text in lines that fit, each indented; words are not broken."""
    return "\n".join(
        textwrap.wrap(
            text,
            WIDTH,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )
