"""Locks that are not ZooKeeper's, for orientation: redis-py's on Redis, etcd3gw's on etcd.

Each has one server of its own, which the benchmark starts. They promise less than the others do
(docs/comparison.md), so their time is no measure of the same work.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from tests.bench.etcd import Etcd
from tests.bench.peers import Block, Maker, block_of
from tests.contract.fencing.databases import Redis, Unavailable
from zklock.testing.ports import LOOPBACK

LIFETIME = 10
"""The seconds after which a lock ends by itself."""
IN_MEMORY = Path("/dev/shm")


@dataclass
class Elsewhere:
    """Who takes these locks, the versions of server and client, and why others are missing."""

    makers: dict[str, Maker] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def on_redis(stack: ExitStack, forced: bool) -> tuple[Maker, str]:
    """Run a server of Redis; return what takes redis-py's lock there, and the versions."""
    import redis

    server = stack.enter_context(Redis())

    def make(hosts: str, path: str, stack: ExitStack) -> Block:
        client = stack.enter_context(redis.Redis(LOOPBACK, server.port))
        client.config_set("appendfsync", "always" if forced else "no")
        lock = client.lock(path, timeout=LIFETIME)

        def cycle() -> None:
            assert lock.acquire()
            lock.release()

        return block_of(cycle)

    return make, f"{server.version}, redis-py {version('redis')}"


def on_etcd(stack: ExitStack, forced: bool) -> tuple[Maker, str]:
    """Run a server of etcd; return what takes etcd3gw's lock there, and the versions."""
    import etcd3gw
    import requests

    if not forced and not IN_MEMORY.is_dir():
        raise Unavailable(f"no {IN_MEMORY}: etcd always forces its log to disk")
    server = stack.enter_context(Etcd(None if forced else IN_MEMORY))

    def make(hosts: str, path: str, stack: ExitStack) -> Block:
        session = stack.enter_context(requests.Session())
        session.trust_env = False  # no proxy for loopback
        client = etcd3gw.Etcd3Client(LOOPBACK, server.port, session=session)
        lock = client.lock(path, ttl=LIFETIME)

        def cycle() -> None:
            assert lock.acquire()
            assert lock.release()

        return block_of(cycle)

    return make, f"{server.version}, etcd3gw {version('etcd3gw')}"


STARTED: dict[str, Callable[[ExitStack, bool], tuple[Maker, str]]] = {
    "Redis": on_redis,
    "etcd": on_etcd,
}


def started(stack: ExitStack, *, forced: bool) -> Elsewhere:
    """Run a server for each of these locks; ``forced``: they write to the disk at once."""
    found = Elsewhere()
    for name, start in STARTED.items():
        try:
            found.makers[name], found.versions[name] = start(stack, forced)
        except (ImportError, Unavailable) as error:
            found.missing[name] = str(error)
    return found
