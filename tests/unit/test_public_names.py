"""The public names and their signatures are pinned: a change of one is a decision, not an accident.

``python -m tests.unit.test_public_names`` writes the pinned text anew. Look at the difference: what
goes or changes there needs the procedure of docs/versions.md.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import inspect
import re
from pathlib import Path

import pytest

PINNED = Path(__file__).with_name("public_names.txt")
DOCS = Path(__file__).parents[2] / "docs"
PACKAGES = (
    "zklock",
    "zklock.aio",
    "zklock.contrib.apscheduler",
    "zklock.contrib.asgi",
    "zklock.contrib.celery",
    "zklock.contrib.django",
    "zklock.contrib.httpx",
    "zklock.contrib.requests",
    "zklock.contrib.tooz",
    "zklock.contrib.wsgi",
    "zklock.fencing",
    "zklock.fencing.aio",
    "zklock.fencing.guard",
    "zklock.telemetry",
    "zklock.telemetry.otel",
    "zklock.telemetry.prometheus",
    "zklock.testing",
    "zklock.testing.guard_conformance",
)

MADE_BY_THE_LIBRARY = {
    "Client",
    "Grant",
    "LeaderChanges",
    "Leadership",
    "MembershipChanges",
    "MultiGrant",
    "Observer",
    "Subscription",
}
"""Classes that users are given: how one is made is not public."""

CALLED_BY_KAZOO = {"Handler"}
"""Classes that users hand on: what is called on one is not public."""

KAZOOS = {"Client", *CALLED_BY_KAZOO}
"""Classes whose methods are kazoo's, and documented there."""

PLAIN = (str, bytes, bool, int, float, tuple, type(None))


def signature(thing: object) -> str:
    try:
        found = inspect.signature(thing)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    parameters = [
        each
        if each.default is each.empty or isinstance(each.default, PLAIN)
        else each.replace(default=Ellipsis)
        for each in found.parameters.values()
    ]
    return str(found.replace(parameters=parameters)).replace("'", "").replace("Ellipsis", "…")


def members(cls: type) -> list[str]:
    found = []
    for name in sorted(dir(cls)):
        if name.startswith("_") and name not in {
            "__enter__",
            "__aenter__",
            "__iter__",
            "__aiter__",
        }:
            continue
        owner = next((base for base in cls.__mro__ if name in vars(base)), None)
        if owner is None or not owner.__module__.startswith("zklock"):
            continue
        raw = inspect.getattr_static(cls, name)
        if isinstance(raw, property):
            found.append(f"  .{name}")
        elif isinstance(raw, staticmethod | classmethod):
            found.append(f"  .{name}{signature(getattr(cls, name))} {type(raw).__name__}")
        elif callable(raw):
            found.append(f"  .{name}{signature(raw)}")
        else:
            found.append(f"  .{name}")
    known = {line.strip(" .").partition("(")[0] for line in found}
    return sorted([*found, *(f"  .{name}" for name in stored(cls) - known)])


def stored(cls: type) -> set[str]:
    """Return the public attributes that objects of a class are given as they are made."""
    found = set()
    for base in cls.__mro__:
        if base.__module__.startswith("zklock") and "__init__" in vars(base):
            with contextlib.suppress(OSError):  # a dataclass: its fields are its signature
                making = inspect.getsource(vars(base)["__init__"])
                found |= {*re.findall(r"\bself\.([a-z]\w*)(?:: [^=\n]+)? = ", making)}
    return found


def described() -> str:
    """Return every public name with its signature, one a line."""
    lines = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        lines.append(f"# {package}")
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            if isinstance(thing, type) and issubclass(thing, enum.Enum):
                lines.append(f"{name}: {', '.join(each.name for each in thing)}")
            elif isinstance(thing, type):
                bases = ", ".join(
                    base.__name__ for base in thing.__bases__ if base.__name__ in module.__all__
                )
                made = "" if name in MADE_BY_THE_LIBRARY else signature(thing)
                lines.append(name + made + (f" < {bases}" if bases else ""))
                lines += [] if name in CALLED_BY_KAZOO else members(thing)
            elif callable(thing):
                lines.append(f"{name}{signature(thing)}")
            else:
                lines.append(name)
    return "\n".join(lines) + "\n"


def test_public_names_and_signatures_are_those_that_are_pinned() -> None:
    assert described().splitlines() == PINNED.read_text().splitlines(), (
        "a public name or signature has changed: see the docstring of this file"
    )


@pytest.mark.parametrize("package", ["zklock", "zklock.aio"])
def test_the_reference_names_what_can_be_called_and_read(package: str) -> None:
    module = importlib.import_module(package)
    pages = "\n".join((DOCS / page).read_text() for page in ("reference.md", "errors.md"))
    words = set(re.findall(r"\w+", " ".join(pages.split("`")[1::2])))
    front = "aio." if package == "zklock.aio" else ""
    public = [name for name in module.__all__ if name != "__version__"]
    assert [name for name in public if f"`{front}{name}" not in pages] == []
    assert all(getattr(module, name).__doc__ for name in public)
    classes = {name: getattr(module, name) for name in module.__all__ if name not in KAZOOS}
    missing = [
        f"{name}.{member}"
        for name, cls in classes.items()
        if isinstance(cls, type)
        for member in re.findall(r"^  \.([a-z]\w*)", "\n".join(members(cls)), re.MULTILINE)
        if member not in words
    ]
    assert missing == []


if __name__ == "__main__":
    PINNED.write_text(described())
