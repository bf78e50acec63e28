"""Chooses what runs the test servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from zklock.testing import external, java
from zklock.testing.backend import Backend
from zklock.testing.errors import BackendUnavailable

BACKEND_VARIABLE = "ZKLOCK_TEST_BACKEND"
Maker = Callable[[Mapping[str, str]], Backend]
NAMES = ("container", "java", "hosts")


def choose_backend(
    wanted: str | Backend | None = None, environ: Mapping[str, str] = os.environ
) -> Backend:
    """Return the backend asked for, else the best that works here.

    In this order: ``wanted`` (a name or a ``Backend``), ``ZKLOCK_TEST_BACKEND``, the servers in
    ``ZKLOCK_TEST_HOSTS``, containers if an engine answers and has or gets the image, a local
    Java with ZooKeeper. Names are "container", "java" and "hosts"; another one is a
    ``ValueError``. ``BackendUnavailable`` says what to install or to set.
    """
    if isinstance(wanted, Backend):
        return wanted
    name = wanted or environ.get(BACKEND_VARIABLE) or None
    if name is not None:
        if name not in NAMES:
            raise ValueError(f"no backend {name!r}; there are {', '.join(NAMES)}")
        return _MAKERS[name](environ)
    if environ.get(external.HOSTS_VARIABLE):
        return _hosts(environ)
    reasons = []
    for name in ("container", "java"):
        try:
            return _MAKERS[name](environ)
        except BackendUnavailable as error:
            reasons.append(f"{name}: {error}")
    raise BackendUnavailable("nothing here can run ZooKeeper.\n" + "\n".join(reasons))


def _container(environ: Mapping[str, str]) -> Backend:
    try:
        # Here, because docker and yaml are an optional extra.
        from zklock.testing.container import ContainerBackend  # noqa: PLC0415
    except ImportError as error:
        raise BackendUnavailable(
            f'no package {error.name!r}: pip install "zklock-recipes[testing]"'
        ) from error
    return ContainerBackend(environ)


def _java(environ: Mapping[str, str]) -> Backend:
    return java.JavaBackend(java.Installation.find(environ))


def _hosts(environ: Mapping[str, str]) -> Backend:
    if hosts := environ.get(external.HOSTS_VARIABLE):
        return external.ExternalBackend(hosts)
    raise BackendUnavailable(f"set {external.HOSTS_VARIABLE} to host:port[,host:port…]")


_MAKERS: Mapping[str, Maker] = {
    "container": _container,
    "java": _java,
    "hosts": _hosts,
}
