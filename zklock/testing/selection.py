"""Chooses the backend that runs the test servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from zklock.testing import external, java, pure
from zklock.testing.backend import Backend
from zklock.testing.errors import BackendUnavailable

BACKEND_VARIABLE = "ZKLOCK_TEST_BACKEND"
Maker = Callable[[Mapping[str, str]], Backend]
NAMES = ("container", "java", "hosts", "embedded")


def choose_backend(
    wanted: str | Backend | None = None, environ: Mapping[str, str] = os.environ
) -> Backend:
    """Return the backend asked for, else the best that works here.

    The order is: ``wanted`` (a name or a ``Backend``); ``ZKLOCK_TEST_BACKEND``; the servers in
    ``ZKLOCK_TEST_HOSTS``; containers, if an engine answers and has or gets the image; a local Java
    with ZooKeeper. Names are "container", "java", "hosts" and "embedded"; another name is a
    ``ValueError``. The embedded server is no ZooKeeper: only who names it gets it.
    ``BackendUnavailable`` says what to install or to set.
    """
    if isinstance(wanted, Backend):
        return wanted
    if name := wanted or environ.get(BACKEND_VARIABLE):
        if name not in NAMES:
            raise ValueError(f"no backend {name!r}; there are {', '.join(NAMES)}")
        return _MAKERS[name](environ)
    if environ.get(external.HOSTS_VARIABLE):
        return _hosts(environ)
    try:
        return _real(environ)
    except BackendUnavailable as error:
        raise BackendUnavailable(
            f"{error}\nembedded: a server in pure Python, for tests and a first try: ask for it by "
            f'backend="embedded", or by {BACKEND_VARIABLE}=embedded'
        ) from None


def _real(environ: Mapping[str, str]) -> Backend:
    """Return the best ZooKeeper that works here."""
    reasons = []
    for name in ("container", "java"):
        try:
            return _MAKERS[name](environ)
        except BackendUnavailable as error:
            reasons.append(f"{name}: {error}")
    raise BackendUnavailable("nothing here can run ZooKeeper.\n" + "\n".join(reasons))


def choose_or_embed(
    say: Callable[[str], object], environ: Mapping[str, str] = os.environ
) -> Backend:
    """Return what `choose_backend` would; the embedded server where nothing can run ZooKeeper.

    ``say`` is told then what is played with, and why. A backend that was asked for by a variable
    has no substitute.
    """
    if environ.get(BACKEND_VARIABLE) or environ.get(external.HOSTS_VARIABLE):
        return choose_backend(environ=environ)
    try:
        return _real(environ)
    except BackendUnavailable as error:
        backend = pure.EmbeddedBackend()
        say(f"no real ZooKeeper: {backend.describe()}. {error}")
        return backend


def _container(environ: Mapping[str, str]) -> Backend:
    try:
        # Imported here, because docker is an optional extra.
        from zklock.testing.container import ContainerBackend  # noqa: PLC0415
    except ImportError as error:
        raise BackendUnavailable(
            f"no package {error.name!r}: install zklock with its extra 'testing': "
            'pip install ".[testing]" in a checkout of zklock, or of a wheel '
            'pip install "./zklock_recipes-<version>-py3-none-any.whl[testing]"'
        ) from error
    return ContainerBackend(environ)


def _hosts(environ: Mapping[str, str]) -> Backend:
    if hosts := environ.get(external.HOSTS_VARIABLE):
        return external.ExternalBackend(hosts)
    raise BackendUnavailable(f"set {external.HOSTS_VARIABLE} to host:port[,host:port…]")


_MAKERS: Mapping[str, Maker] = {
    "container": _container,
    "java": lambda environ: java.JavaBackend(java.Installation.find(environ)),
    "hosts": _hosts,
    "embedded": lambda environ: pure.EmbeddedBackend(),
}
