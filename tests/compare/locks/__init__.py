"""The adapters: how a program uses each lock, by the first example of the library's documentation.

They are imported by the harness, which has none of the libraries, and by a contender, which has
one: so each imports its library where it connects.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any, ClassVar

LEASE = 4
"""The seconds of a lease, a session or a lifetime, wherever one can be set."""
LONGER = 3 * LEASE
"""The seconds of a lease that cannot be renewed: longer than most blocks of the questions."""
MODULES = ("zookeeper", "redis", "files", "databases", "others")


class Use:
    """One library's lock, as a program uses it; ``asynchronous``: by ``async with``."""

    title: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    """What to install; the first is the library."""
    store: ClassVar[str]
    """Which server it needs."""
    modules: ClassVar[tuple[str, ...]]
    """What is imported before anything is asked; the first is the library."""
    made: ClassVar[str]
    """How the lock is made, as the page shows it."""
    asks: ClassVar[str] = ""
    """What a holder asks whether it still holds; empty: there is nothing to ask."""
    pushed: ClassVar[bool] = False
    """Whether a thread sets what a holder asks: after a pause, either may be first."""
    lasts: ClassVar[float] = math.inf
    """The seconds of a lease that cannot be renewed."""
    asynchronous: ClassVar[bool] = False
    reusable: ClassVar[bool] = True
    """Whether two threads or tasks can enter one object."""

    def __init__(self, place: str, tell: Callable[[str], None]) -> None:
        self.place = place
        self.tell = tell
        """Called with the name of what tells a loss without being asked."""
        self.lib: Any = None
        """The first of ``modules``."""

    @property
    def port(self) -> int:
        return int(self.place.rpartition(":")[2])

    def connect(self) -> Any:
        """Connect to the store."""

    def lock(self, name: str) -> Any:
        """Return what ``with`` takes."""
        raise NotImplementedError

    def plain(self, name: str) -> Any:
        """Return what ``with`` takes in the first example, if that does not wait for its turn."""
        return self.lock(name)

    def held(self, lock: Any, entered: Any) -> Any:
        """Whether the holder still has the lock, by the library's own word."""
        name = self.asks.strip("`")
        found: Any = getattr(lock, name.removesuffix("()")) if name else True
        return bool(found() if name.endswith("()") else found)

    def token(self, lock: Any, entered: Any) -> Any:
        """Return what the library gives a holder that a resource could compare."""
        return None


def uses() -> dict[str, type[Use]]:
    """Return the adapters, by the name of their class, in the order of the page."""
    return {
        name: each
        for module in MODULES
        for name, each in vars(importlib.import_module(f"{__name__}.{module}")).items()
        if isinstance(each, type) and issubclass(each, Use) and hasattr(each, "title")
    }
