"""Throw-away ZooKeeper servers, faults and pytest fixtures for tests of code that uses zklock.

Each name is loaded when it is first used: the pytest plugin lives here, and costs a test run that
needs no ZooKeeper nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zklock.testing.backend import Backend, Capability
    from zklock.testing.errors import (
        BackendUnavailable,
        NotServing,
        NotSupported,
        ServerError,
        StartFailed,
    )
    from zklock.testing.frames import Direction, Frame, FrameKind
    from zklock.testing.proxy import Fault, FaultProxy
    from zklock.testing.selection import choose_backend
    from zklock.testing.servers import Ensemble, ZooKeeperServer
    from zklock.testing.sessions import expire_session, serves_sessions
    from zklock.testing.simulation.world import Simulation, simulated
    from zklock.testing.status import ServerStatus, four_letter, srvr
    from zklock.testing.waiting import wait_for
    from zklock.testing.zookeeper.faults import ScriptedFault
    from zklock.testing.zookeeper.server import EmbeddedServer, embedded

__all__ = [
    "Backend",
    "BackendUnavailable",
    "Capability",
    "Direction",
    "EmbeddedServer",
    "Ensemble",
    "Fault",
    "FaultProxy",
    "Frame",
    "FrameKind",
    "NotServing",
    "NotSupported",
    "ScriptedFault",
    "ServerError",
    "ServerStatus",
    "Simulation",
    "StartFailed",
    "ZooKeeperServer",
    "choose_backend",
    "embedded",
    "expire_session",
    "four_letter",
    "guard_conformance",
    "serves_sessions",
    "simulated",
    "srvr",
    "wait_for",
]

_NAMES = {
    "backend": ("Backend", "Capability"),
    "errors": ("BackendUnavailable", "NotServing", "NotSupported", "ServerError", "StartFailed"),
    "frames": ("Direction", "Frame", "FrameKind"),
    "proxy": ("Fault", "FaultProxy"),
    "selection": ("choose_backend",),
    "servers": ("Ensemble", "ZooKeeperServer"),
    "sessions": ("expire_session", "serves_sessions"),
    "simulation.world": ("Simulation", "simulated"),
    "status": ("ServerStatus", "four_letter", "srvr"),
    "waiting": ("wait_for",),
    "zookeeper.faults": ("ScriptedFault",),
    "zookeeper.server": ("EmbeddedServer", "embedded"),
}
_HOMES = {name: f"{__name__}.{home}" for home, names in _NAMES.items() for name in names}
_MODULES = {"guard_conformance"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
