"""The configuration of a test server, for every backend."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zklock._ground.numbers import check_int, check_number

_KEY = re.compile(r"[A-Za-z0-9_.\-]+", re.ASCII)
_VALUE = re.compile(r"\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Configuration common to the servers of one test.

    Times are milliseconds and limits are ticks, as in ``zoo.cfg``. ``config`` has further entries
    of ``zoo.cfg``; they override everything else. ``system_properties`` are Java's ``-D``.
    ``java_options`` come after the backend's own options, so they override these. Values must not
    be empty and must not contain white space.
    """

    tick_time: int = 500
    init_limit: int = 10
    sync_limit: int = 5
    min_session_timeout: int | None = None
    max_session_timeout: int | None = None
    system_properties: Mapping[str, str] = field(default_factory=dict)
    java_options: tuple[str, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        for name in ("tick_time", "init_limit", "sync_limit"):
            check_int(name, getattr(self, name), 1)
        for name in ("min_session_timeout", "max_session_timeout"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 1)
        for name in ("system_properties", "config"):
            for key, value in getattr(self, name).items():
                _word(f"{name} key", key, _KEY)
                _word(f"{name}[{key!r}]", value, _VALUE)
        for option in self.java_options:
            _word("java option", option, _VALUE)

    def extra_config(self) -> dict[str, str]:
        """Return the entries of ``zoo.cfg`` for which this class has no field."""
        least, most = self.min_session_timeout, self.max_session_timeout
        entries = {"minSessionTimeout": least, "maxSessionTimeout": most}
        return {name: str(it) for name, it in entries.items() if it is not None} | {**self.config}

    def java_arguments(self) -> list[str]:
        """Return the options that the caller wants for Java."""
        properties = [f"-D{key}={value}" for key, value in self.system_properties.items()]
        return [*properties, *self.java_options]


def check_seconds(seconds: float) -> float:
    """Return a time that may be waited for; ``TypeError`` or ``ValueError`` for anything else."""
    return check_number(
        "seconds", seconds, "seconds", lambda it: 0 <= it < math.inf, "0 or more, and finite"
    )


def several(name: str, words: Iterable[str]) -> tuple[str, ...]:
    """Return these words; ``TypeError`` for a text, which is a sequence of letters, too."""
    if isinstance(words, str):
        raise TypeError(f"{name} must be a list, not a str")
    return tuple(words)


def _word(name: str, value: object, pattern: re.Pattern[str]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not pattern.fullmatch(value):
        raise ValueError(f"{name} must be one word without white space, not {value!r}")
