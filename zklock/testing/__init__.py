"""Throw-away ZooKeeper servers, faults and pytest fixtures for tests of code that uses zklock.

Each name is loaded when it is first used: the pytest plugin lives here, and costs a test run that
needs no ZooKeeper nothing.
"""

from typing import TYPE_CHECKING

from zklock._ground.lazy import lazy as _lazy

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
    "zklock.testing.backend": ("Backend", "Capability"),
    "zklock.testing.errors": (
        "BackendUnavailable",
        "NotServing",
        "NotSupported",
        "ServerError",
        "StartFailed",
    ),
    "zklock.testing.frames": ("Direction", "Frame", "FrameKind"),
    "zklock.testing.proxy": ("Fault", "FaultProxy"),
    "zklock.testing.selection": ("choose_backend",),
    "zklock.testing.servers": ("Ensemble", "ZooKeeperServer"),
    "zklock.testing.sessions": ("expire_session", "serves_sessions"),
    "zklock.testing.simulation.world": ("Simulation", "simulated"),
    "zklock.testing.status": ("ServerStatus", "four_letter", "srvr"),
    "zklock.testing.waiting": ("wait_for",),
    "zklock.testing.zookeeper.faults": ("ScriptedFault",),
    "zklock.testing.zookeeper.server": ("EmbeddedServer", "embedded"),
    "zklock.testing.guard_conformance": ("guard_conformance",),
}
__getattr__, __dir__ = _lazy(__name__, _NAMES)
