"""The pages of the public packages, made of docstrings; for Sphinx, readable signatures.

A signature that names what is not public is a warning, and so ends the build.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
import typing
from collections import abc
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging

log = logging.getLogger(__name__)

PACKAGES = {
    "zklock": "Locks, elections and pools for threads, and the errors of all fronts.",
    "zklock.aio": "The same for asyncio.",
    "zklock.fencing": "Guards, which let a resource refuse old tokens.",
    "zklock.telemetry": "What happens to the locks of a process: events, metrics, spans.",
    "zklock.contrib": "Adapters for frameworks. Each is a module, which is imported by itself.",
    "zklock.testing": "Throw-away servers, and their faults, for tests.",
}
PARTS = {
    "zklock.fencing": ("aio", "guard"),
    "zklock.telemetry": ("prometheus", "otel"),
    "zklock.contrib": (
        *("apscheduler", "asgi", "celery", "django", "httpx", "requests", "tooz", "wsgi"),
    ),
    "zklock.testing": ("guard_conformance",),
}
"""The public modules of a package, which stand on its page."""

NAMES = {
    module: tuple(getattr(importlib.import_module(module), "__all__", ()))
    for package in PACKAGES
    for module in (package, *(f"{package}.{part}" for part in PARTS.get(package, ())))
}

FIRST = ("connect", "Lock")
"""What a page begins with, where a module has it."""

GIVEN = {
    "Backend",
    "Check",
    "Client",
    "Contender",
    "Fault",
    "FencedTransaction",
    "Frame",
    "Grant",
    "Health",
    "LeaderChange",
    "LeaderChanges",
    "LeaderScheduler",
    "Leadership",
    "Loss",
    "MembershipChange",
    "MembershipChanges",
    "MultiGrant",
    "Observer",
    "PoolMember",
    "PoolWorker",
    "ScriptedFault",
    "ServerStatus",
    "Shard",
    "ShardOwner",
    "SqlFence",
    "Subscription",
    "ZkLockDriver",
    "ZkLockLock",
    *(name for name in NAMES["zklock.telemetry"] if name[0].isupper()),
}
"""Classes whose objects users are given: how one is made is not shown."""

INNER = {
    "AsyncFencedTransport": {"handle_async_request"},
    "Backend": {"single", "ensemble"},
    "Check": {"function"},
    "Fault": {"act", "done", "strikes"},
    "FaultProxy": {"changed", "dial", "hold_all", "saw"},
    "FencedTransport": {"handle_request"},
    "LeaderScheduler": {"apply_async", "apply_entry", "close", "connection", "producer", "tick"},
    "LockMetrics": {"collect", "describe"},
    "ScriptedFault": {"done", "strikes"},
    "ZkLockDriver": {"CHARACTERISTICS", "EXCLUDE_OPTIONS"},
    "ZooKeeperServer": {"launch"},
}
"""Members that zklock itself calls, or the framework that it stands in."""

NOT_MADE = {"(value)", "(*args, **kwargs)"}
"""The constructors of enums and protocols."""

CALLED = {"Handler": {"drop"}}
"""Classes of which users call these members only."""

WRITTEN = {
    "AnyGrant": "Grant",
    "AbstractAsyncContextManager": "AsyncContextManager",
    "AbstractContextManager": "ContextManager",
    "AnyClient": "KazooClient",
    "AsgiApplication": "Callable[[scope, receive, send], Awaitable[None]]",
    "AsyncHold": "AsyncContextManager",
    "C": "LeaderChange | MembershipChange",
    "Job": "Callable",
    "Connecting": "Awaitable[Client] | AsyncContextManager[Client]",
    "Connection": "object",
    "Counts": "object",
    "G": "Grant",
    "HasHosts": "object with hosts",
    "HasSession": "KazooClient",
    "Hold": "ContextManager",
    "L": "Leadership",
    "LostCallback": "Callable[[Loss], object]",
    "LostGrant": "Grant",
    "M": "MultiGrant",
    "P": "...",
    "R": "object",
    "RedisClient": "Redis | RedisCluster",
    "Resource": "Callable[[request], str | None]",
    "Result": "object",
    "Stop": "Event",
    "T": "object",
    "TaskLock": "Lock",
    "TaskShard": "Shard",
    "ThreadLock": "Lock",
    "Work": "Callable[[Leadership], object]",
}
"""How names are written in signatures that are not public."""

KNOWN = {
    *(name for names in NAMES.values() for name in names),
    *dir(builtins),
    *dir(typing),
    *abc.__all__,
    *("AbstractEventLoop", "Event", "Executor", "KazooClient", "Path", "PathLike"),
    *("CollectorRegistry", "MeterProvider", "TracerProvider"),
    *("SSLContext", "WSGIApplication"),
    *("AsyncBaseTransport", "BaseTransport", "Capabilities", "CoordAsyncResult"),
}


def page(package: str, about: str) -> str:
    """Return the page of a package: each public name, with its signature and its docstring."""
    shown: dict[object, str] = {}
    lines = [package, "=" * len(package), "", about, "", *listing(package, shown)]
    for part in PARTS.get(package, ()):
        module = f"{package}.{part}"
        about = inspect.getdoc(importlib.import_module(module)) or ""
        lines += ["", module, "-" * len(module), "", about, "", *listing(module, shown)]
    return "\n".join(lines)


def listing(module: str, shown: dict[object, str]) -> list[str]:
    """Return the lines about the names of a module, by kind; note where each is shown."""
    home = importlib.import_module(module)
    first = [name for name in FIRST if name in NAMES[module]]
    kinds: dict[str, list[str]] = {"Begin here": first}
    kinds |= {"Functions": [], "Classes": [], "Errors": [], "Data": []}
    for name in sorted({*NAMES[module]} - {*first}, key=str.lower):
        thing = getattr(home, name)
        if isinstance(thing, ModuleType):
            continue
        if not isinstance(thing, type):
            kinds["Functions" if callable(thing) else "Data"].append(name)
        elif issubclass(thing, Exception):
            kinds["Errors"].append(name)
        else:
            kinds["Classes"].append(name)
    lines = [f".. currentmodule:: {module}", ""]
    for kind, found in kinds.items():
        lines += [kind, "-" * len(kind), ""] if found and module in PACKAGES else []
        for name in found:
            thing = getattr(home, name)
            owner = "zklock" if name in NAMES["zklock"] and kind == "Errors" else module
            if (other := shown.setdefault(thing, owner)) != module:
                lines += [f"``{name}`` is that of ``{other}``.", ""]
            else:
                lines += directive(module, name, thing, kind)
    return lines


def directive(package: str, name: str, thing: Any, kind: str) -> list[str]:
    """Return the directive for one name."""
    if not isinstance(thing, type) and callable(thing):
        return [f".. autofunction:: {package}.{name}", ""]
    if kind == "Data":
        return [f".. autodata:: {package}.{name}", "   :no-value:", ""]
    if kind == "Errors":
        lines = [f".. autoexception:: {package}.{name}", "   :show-inheritance:"]
    else:
        lines = [f".. autoclass:: {package}.{name}"]
    listed = members(thing)
    others = [each for each in dict.fromkeys([*dir(thing), *named(thing)]) if each not in listed]
    others = [each for each in others if not each.startswith("_")]
    lines += [f"   :members: {', '.join(listed)}"] if listed else []
    lines += [f"   :exclude-members: {', '.join(others)}"] if others else []
    return [*lines, ""]


def named(cls: type) -> dict[str, None]:
    """Return the members that zklock gives a class, also those that are only annotated."""
    found: dict[str, None] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("zklock"):
            names = [*vars(base).get("__annotations__", ()), *vars(base)]
            found |= dict.fromkeys(name for name in names if not name.startswith("_"))
    return found


def members(cls: type) -> list[str]:
    """Return the members of a class that users call or read, as they stand in the source."""
    found = named(cls)
    inner, called = INNER.get(cls.__name__, ()), CALLED.get(cls.__name__, found)
    return [name for name in found if name in called and name not in inner]


def signature(_: Sphinx, what: str, name: str, *found: Any) -> tuple[str | None, str | None]:
    """Leave out how errors, enums, protocols and objects that users are given are made.

    What is entered by ``with`` is called so, and not the generator that it is made of.
    """
    thing, _options, text, back = found
    given = name.rpartition(".")[2] in GIVEN or text in NOT_MADE
    if text is not None and (what == "exception" or (what == "class" and given)):
        return "", None
    made_of = getattr(thing, "__wrapped__", None)
    if back and (inspect.isgeneratorfunction(made_of) or inspect.isasyncgenfunction(made_of)):
        back = re.sub(r"[\w.~]*?(Async)?Iterator\b", r"\1ContextManager", back)
    # The default is the environment itself: its name is meant, and never its content.
    return text and re.sub(r"= environ\(.*\)(?=\))", "= os.environ", text), back


def public_names(app: Sphinx, doctree: nodes.document) -> None:
    """Write public names instead of others in signatures; warn of those that are left."""
    for shown in doctree.findall(addnodes.desc_signature):
        for name in list(shown.findall(addnodes.pending_xref)):
            word = name["reftarget"].rpartition(".")[2]
            if word in WRITTEN:
                name.replace_self(nodes.inline(text=WRITTEN[word]))
            elif word not in KNOWN:
                whose = shown.get("fullname", "?")
                log.warning("the signature of %s names %s, which is not public", whose, word)


def setup(app: Sphinx) -> dict[str, Any]:
    """Join in."""
    app.connect("autodoc-process-signature", signature)
    app.connect("doctree-read", public_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
