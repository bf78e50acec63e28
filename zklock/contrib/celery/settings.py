"""The settings of an app that say how ZooKeeper is reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery.exceptions import ImproperlyConfigured

import zklock


@dataclass(frozen=True, slots=True)
class Settings:
    """``hosts``, ``timeout`` and ``options`` are arguments of ``zklock.connect()``."""

    hosts: str
    timeout: float
    options: dict[str, Any]

    def connect(self) -> zklock.Client:
        """Return a new client."""
        return zklock.connect(self.hosts, self.timeout, **self.options)


def settings(conf: Any) -> Settings:
    """Return the settings of an app; ``ImproperlyConfigured`` if they do not say where."""
    hosts = conf.get("zklock_hosts")
    if not hosts:
        raise ImproperlyConfigured(
            'say where ZooKeeper is: app.conf.zklock_hosts = "zk1:2181,zk2:2181,zk3:2181"'
        )
    timeout = float(conf.get("zklock_timeout") or 10.0)
    return Settings(hosts, timeout, conf.get("zklock_options") or {})
