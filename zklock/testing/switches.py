"""Switches in the environment, such as ``ZKLOCK_TEST_STRICT=1``."""

from __future__ import annotations

import os
from collections.abc import Mapping

_OFF = {"0", "false", "no", "off"}


def switch(
    variable: str, environ: Mapping[str, str] = os.environ, *, default: bool = False
) -> bool:
    """Whether a variable of the environment says yes; ``default`` if it is not set, or empty.

    0, false, no and off say no, in any case of letters. Anything else says yes.
    """
    text = environ.get(variable, "").strip().lower()
    return text not in _OFF if text else default
