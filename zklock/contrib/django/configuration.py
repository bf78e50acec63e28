"""The setting ``ZKLOCK``, and what follows from it in a process."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

import zklock
from zklock.contrib._clients import client_for

TOKEN_VARIABLE = "ZKLOCK_TOKEN"

_KEYS = {"HOSTS": "hosts", "TIMEOUT": "timeout", "ROOT": "root", "OPTIONS": "options"}


@dataclass(frozen=True, slots=True)
class Configuration:
    """The setting ``ZKLOCK``.

    ``HOSTS``: as for ``zklock.connect()``, or a list. ``TIMEOUT``: the session timeout, in
    seconds. ``ROOT``: the znode below which locks are. ``OPTIONS``: more arguments of
    ``zklock.connect()``.
    """

    hosts: str
    timeout: float = 10.0
    root: str = "/django"
    options: dict[str, Any] = field(default_factory=dict)

    def path(self, name: str) -> str:
        """Return the path of a lock of this name."""
        return f"{self.root.rstrip('/')}/{name}"


def configuration() -> Configuration:
    """Return the setting; ``ImproperlyConfigured`` if it is missing or wrong."""
    given = getattr(settings, "ZKLOCK", None)
    if not isinstance(given, dict) or not given.get("HOSTS"):
        raise ImproperlyConfigured(
            'say where ZooKeeper is: ZKLOCK = {"HOSTS": "zk1:2181,zk2:2181,zk3:2181"}'
        )
    if unknown := given.keys() - _KEYS.keys():
        raise ImproperlyConfigured(
            f"ZKLOCK has no key {', '.join(sorted(unknown))}: the keys are {', '.join(_KEYS)}"
        )
    wanted = {_KEYS[key]: value for key, value in given.items()}
    if isinstance(given["HOSTS"], list):  # as kazoo takes it: a chroot may be the last one
        wanted["hosts"] = ",".join(given["HOSTS"]).replace(",/", "/")
    return Configuration(**wanted)


def client() -> zklock.Client:
    """Return this process's client, connected at the first call; it is stopped at the exit.

    Raises ``NoAnswer`` if no server answers, and ``ImproperlyConfigured``.
    """
    wanted = configuration()
    return client_for(
        __name__, lambda: zklock.connect(wanted.hosts, wanted.timeout, **wanted.options)
    )


def lock(name: str, **options: Any) -> zklock.Lock:
    """Return the lock of this name below ``ROOT``; ``options`` are those of ``zklock.Lock``."""
    return zklock.Lock(client(), configuration().path(name), **options)


def token() -> zklock.FencingToken:
    """Return the token under which ``run_singleton`` has started this process.

    Raises ``RuntimeError`` in a process that it has not started.
    """
    text = os.environ.get(TOKEN_VARIABLE)
    if text is None:
        raise RuntimeError("no token: start this command by 'manage.py run_singleton'")
    return zklock.FencingToken.parse(text)
