"""Packages whose names are loaded when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy(
    package: str, names: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``; ``names``: its names, by their modules.

    The name of a module of the package stands for that module.
    """
    homes = {name: home for home, there in names.items() for name in there}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        module = import_module(home)
        found = module if home == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, found)
        return found

    return load, lambda: sorted({*vars(sys.modules[package]), *homes})
