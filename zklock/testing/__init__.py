"""Throw-away ZooKeeper servers, faults and pytest fixtures for tests of code that uses zklock."""

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
from zklock.testing.status import ServerStatus, four_letter, srvr
from zklock.testing.waiting import wait_for

__all__ = [
    "Backend",
    "BackendUnavailable",
    "Capability",
    "Direction",
    "Ensemble",
    "Fault",
    "FaultProxy",
    "Frame",
    "FrameKind",
    "NotServing",
    "NotSupported",
    "ServerError",
    "ServerStatus",
    "StartFailed",
    "ZooKeeperServer",
    "choose_backend",
    "expire_session",
    "four_letter",
    "serves_sessions",
    "srvr",
    "wait_for",
]
