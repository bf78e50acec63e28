"""``zklock exporter`` as Prometheus meets it; and what the follower costs ZooKeeper."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from prometheus_client.parser import text_string_to_metric_families

import zklock
from tests.contract.support import SOON, queued, run
from tests.contract.test_cli import PATIENCE, Commands
from zklock.cli.view.live import look
from zklock.cli.view.model import What, picture
from zklock.cli.view.reader import Reader
from zklock.testing import wait_for
from zklock.testing.proxy import FaultProxy

Samples = dict[str, dict[str, float]]


def serves(process: subprocess.Popen[str]) -> str:
    """Return the address that the command prints."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"serves (http://\S+)", line):
            return found[1]
    raise AssertionError(process.wait(SOON))


def scrape(address: str) -> Samples:
    """Return the samples: metric, then path (or the other label), then number."""
    with urllib.request.urlopen(address, timeout=SOON) as answer:
        text = answer.read().decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            label = sample.labels.get("path") or "".join(sample.labels.values())
            found.setdefault(sample.name, {})[label] = sample.value
    return found


def test_what_changes_is_served(zk: Commands) -> None:
    path = f"{zk.path}/a"
    exporter = zk.start("exporter", "--listen", "127.0.0.1:0", "--interval", "0.1", zk.path)
    address = serves(exporter)
    assert scrape(address)["zklock_up"] == {"": 1}
    assert "zklock_holders" not in scrape(address)
    lock = zklock.Lock(zk.patient, path, identity="a")
    grant = lock.acquire()
    assert grant is not None
    waiting = run(lock.acquire)
    queued(zk.patient, path, 2)
    wait_for(lambda: scrape(address).get("zklock_waiting") == {path: 1}, SOON)
    assert scrape(address)["zklock_holders"] == {path: 1}
    assert scrape(address)["zklock_sessions"] == {"": 1}
    grant.release()
    second = waiting.result(PATIENCE)
    assert second is not None
    wait_for(lambda: scrape(address).get("zklock_waiting") == {path: 0}, SOON)
    second.release()
    wait_for(lambda: "zklock_holders" not in scrape(address), SOON)
    exporter.terminate()
    assert exporter.wait(PATIENCE) == 143


def test_without_zookeeper_it_goes_on_and_says_so(zk: Commands, zklock_proxy: FaultProxy) -> None:
    path = f"{zk.path}/a"
    with zklock.Lock(zk.patient, path, identity="a"):
        arguments = ("--hosts", zklock_proxy.hosts, "--session-timeout", "2", zk.path)
        exporter = zk.start("exporter", "--listen", "127.0.0.1:0", *arguments)
        address = serves(exporter)
        assert scrape(address)["zklock_holders"] == {path: 1}
        for fault in (zklock_proxy.cut, zklock_proxy.blackhole):
            fault()
            wait_for(lambda: scrape(address) == {"zklock_up": {"": 0}}, SOON)
            zklock_proxy.restore()
            wait_for(lambda: scrape(address).get("zklock_holders") == {path: 1}, SOON)
        assert exporter.poll() is None


def test_an_address_in_use(zk: Commands) -> None:
    exporter = zk.start("exporter", "--listen", "127.0.0.1:0", zk.path)
    port = serves(exporter).rpartition(":")[2].partition("/")[0]
    code, out, errors = zk.run("exporter", "--listen", f"127.0.0.1:{port}", zk.path)
    assert (code, out) == (71, "")
    assert "in use" in errors
    code, out, errors = zk.run("exporter", "--listen", "a..b:0", zk.path)
    assert (code, out) == (71, "")
    assert errors.startswith("zklock exporter: cannot listen on a..b:0 (")


# The follower.


def test_the_follower_agrees_with_a_fresh_look_whatever_happens(
    patient: KazooClient, zklock_connect: Callable[..., Any], zklock_path: str
) -> None:
    follower = Reader(zklock_connect(timeout=30.0), zklock_path, follow=True)

    def agrees() -> bool:
        while follower.refresh(0.1):
            pass
        fresh = Reader(patient, zklock_path)
        return picture(follower.facts) == fresh.read() and follower.missing == fresh.missing

    assert follower.read().locks == []
    assert follower.missing
    a, deep = f"{zklock_path}/a", f"{zklock_path}/deep/er"
    with zklock.Lock(patient, a), zklock.Lock(patient, deep):
        wait_for(agrees, SOON)
        assert [lock.path for lock in picture(follower.facts).locks] == [a, deep]
    wait_for(agrees, SOON)
    patient.delete(deep)
    wait_for(agrees, SOON)
    with zklock.Lock(patient, deep):
        wait_for(agrees, SOON)
    semaphore = zklock.Semaphore(patient, f"{zklock_path}/permits", limit=1)
    with semaphore:
        wait_for(agrees, SOON)
        assert What.SEMAPHORE in {lock.what for lock in picture(follower.facts).locks}
        semaphore.set_limit(3)
        wait_for(agrees, SOON)
        assert [lock.limit for lock in picture(follower.facts).locks] == [3]
    writer = zklock.WriteLock(patient, f"{zklock_path}/table")
    with writer:
        reading = run(zklock.ReadLock(patient, f"{zklock_path}/table").acquire)
        queued(patient, f"{zklock_path}/table", 2)
        wait_for(agrees, SOON)
        writer.downgrade()
        reader = reading.result(PATIENCE)
        assert reader is not None
        wait_for(agrees, SOON)
        (table,) = picture(follower.facts).locks
        assert len(table.holders) == 2, "the write of the downgrade was seen"
        reader.release()
    with zklock.WorkerPool(patient, f"{zklock_path}/pool", shards=2, identity="w1") as pool:
        wait_for(lambda: [it.owned for it in pool.members()] == [2], PATIENCE)
        wait_for(agrees, SOON)
        (found,) = picture(follower.facts).pools
        assert (found.shards, found.orphans, [it.owned for it in found.workers]) == (2, 0, [2])
    wait_for(agrees, SOON)
    patient.delete(zklock_path, recursive=True)
    wait_for(agrees, SOON)
    assert follower.missing


class Counting:
    """Counts what a reader asks its client."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self.asked = Counter[str]()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += name.endswith("_async")
        return getattr(self._client, name)

    def cost(self) -> tuple[int, int]:
        """Return how many listings there were, and how many reads."""
        return self.asked["get_children_async"], self.asked["get_async"]


def test_the_follower_asks_only_about_what_changes(
    patient: KazooClient, zklock_connect: Callable[..., Any], zklock_path: str
) -> None:
    for number in range(50):
        patient.ensure_path(f"{zklock_path}/{number}")
    client: Any = Counting(zklock_connect(timeout=30.0))
    follower = Reader(client, zklock_path, follow=True)
    look(follower, follower.read())
    assert client.cost() == (51, 0)
    assert not follower.refresh(0.2)
    assert client.cost() == (51, 0), "no polling"
    grant = zklock.Lock(patient, f"{zklock_path}/7").acquire()
    assert grant is not None
    wait_for(lambda: follower.refresh(0.1), SOON)
    wait_for(lambda: not follower.refresh(0.1), SOON)
    assert client.cost() == (52, 1)
    grant.release()
    wait_for(lambda: follower.refresh(0.1), SOON)
    wait_for(lambda: not follower.refresh(0.1), SOON)
    assert client.cost() == (53, 1)
