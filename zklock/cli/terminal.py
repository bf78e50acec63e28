"""Colour where it is wanted, and only there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from typing import TextIO


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
    """Whether to colour what is written there: on a terminal that can, unless ``NO_COLOR``."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def paint(text: str, *colours: Colour, on: bool) -> str:
    """Return the text in these colours; unchanged where colour is not ``on``."""
    if not on or not colours:
        return text
    return f"\x1b[{';'.join(colour.value for colour in colours)}m{text}\x1b[0m"
