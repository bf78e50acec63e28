"""The errors of test servers, below `ZkLockError`."""

from __future__ import annotations

from zklock.errors import ZkLockError


class ServerError(ZkLockError):
    """Base of the errors of test servers."""


class BackendUnavailable(ServerError):
    """No backend, or not the requested one, can run here; the message says what would help."""


class StartFailed(ServerError):
    """A server ended while starting, or did not serve before the deadline."""


class NotServing(ServerError):
    """The server accepts connections but serves no requests: no quorum, or still loading."""


class NotSupported(ServerError):
    """The backend of this server cannot do that; ``capabilities`` tells beforehand."""
