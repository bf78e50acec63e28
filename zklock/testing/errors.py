"""The errors of test servers.

::

    ZkLockError
     └─ ServerError
         ├─ BackendUnavailable   nothing here can run ZooKeeper; says what to install or set
         ├─ StartFailed          a server ended or did not serve in time; carries its log's tail
         ├─ NotServing           it answers, but has no quorum or is still loading
         └─ NotSupported         the backend cannot do that; ask ``capabilities`` first
"""

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
