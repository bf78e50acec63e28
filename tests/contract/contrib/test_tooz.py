"""The driver for tooz: tooz's own tests, and what its ZooKeeper driver gets wrong."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import tooz
from tooz import coordination

import zklock
from tests.contract.support import SOON, Losses, gone, run, tree
from zklock.contrib.tooz import ZkLockDriver
from zklock.testing import FaultProxy, expire_session, wait_for

NOT_FOR_US = {
    "This driver is not based on timeout": 1,
    "This test only works with coordinators that have the ability to destroy groups.": 1,
}
"""Why tooz's tests skip some of their own with this driver, and how many."""

FEWEST = 81 if metadata.version("tooz").startswith("9.0.") else 86
"""How many of tooz's tests pass with tooz 9.0, and with 9.1; a later one may have more."""

Start = Callable[..., Any]


@pytest.fixture
def start(zklock_hosts: str, zklock_path: str) -> Iterator[Start]:
    """Start a coordinator; it is stopped after the test."""
    started = []

    def make(
        member: bytes,
        scheme: str = "zklock",
        hosts: str = zklock_hosts,
        heart: bool = False,
        timeout: float = 10,
    ) -> Any:
        own = f"start_timeout={SOON}" if scheme == "zklock" else f"namespace={zklock_path[1:]}"
        url = f"{scheme}://{hosts}{zklock_path}?timeout={timeout}&{own}"
        coordinator = coordination.get_coordinator(url, member)
        coordinator.start(start_heart=heart)
        started.append(coordinator)
        return coordinator

    yield make
    for coordinator in started:
        if coordinator.is_started:
            coordinator.stop()
        if not isinstance(coordinator, ZkLockDriver):
            coordinator._coord.close()  # tooz's own driver leaves its sockets to the collector


@pytest.mark.thorough("all tests that tooz has, a minute and a half; those of the driver run")
@pytest.mark.slow("all tests that tooz has")
def test_the_tests_of_tooz_pass(zklock_hosts: str, zklock_path: str, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    report = tmp_path / "report.xml"
    modules = ["tooz.tests.test_coordination", "tooz.tests.test_partitioner"]
    # The other drivers' subclasses of the tests choose a URL of their own.
    options = ["-c", "pytest.ini", "-q", "-p", "no:zklock", "-p", "no:cacheprovider"]
    options += ["-k", "not IPC and not File", f"--junitxml={report}", "--pyargs", *modules]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env={**os.environ, "TOOZ_TEST_URL": f"zklock://{zklock_hosts}{zklock_path}?timeout=30"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stdout[-8000:]
    cases = list(ET.parse(report).getroot().iter("testcase"))
    skips = [str(skip.get("message")) for case in cases for skip in case.iter("skipped")]
    assert {why: skips.count(why) for why in skips} == NOT_FOR_US
    assert len(cases) - len(skips) >= FEWEST


def kazoo_of(coordinator: Any, scheme: str) -> Any:
    return coordinator._client if scheme == "zklock" else coordinator._coord


@pytest.mark.parametrize("scheme", ["zklock", "zookeeper"])
def test_after_an_expiry_one_leads_and_nothing_counts_as_acquired(
    start: Start, scheme: str
) -> None:
    """With tooz's own driver, two lead. If this fails, docs/contrib/tooz.md is out of date."""
    first, second = start(b"first", scheme), start(b"second", scheme)
    elected: list[str] = []
    first.create_group(b"all").get()
    for each in (first, second):
        each.watch_elected_as_leader(b"all", lambda event: elected.append(event.member_id.decode()))
    first.run_watchers()
    lock = first.get_lock(b"report")
    assert lock.acquire()
    assert elected == ["first"]

    client = kazoo_of(first, scheme)
    before = client.client_id[0]
    expire_session(client)
    wait_for(
        lambda: client.connected and (client.client_id or (before,))[0] != before,
        SOON,
        "another session",
    )
    second.run_watchers()
    assert elected == ["first", "second"]
    other = second.get_lock(b"report")
    assert other.acquire(blocking=False)

    if scheme == "zklock":
        wait_for(lambda: not lock.acquired, SOON, "the loss")
        assert not lock.is_still_owner()
        assert not lock.release()
        assert first.leadership(b"all") is None
        assert other.is_still_owner()
        second.stand_down_group_leader(b"all")
        first.run_watchers()
        assert elected == ["first", "second", "first"]
    else:
        assert lock.acquired, "both hold, says tooz"
        second.stand_down_group_leader(b"all")
        first.run_watchers()
        assert elected == ["first", "second"], "the first one believes that it leads all along"


def test_a_lock_says_at_once_that_its_lease_has_lapsed(
    start: Start, zklock_proxy: FaultProxy
) -> None:
    coordinator = start(b"cut off", hosts=zklock_proxy.hosts, heart=True, timeout=2)
    lock = coordinator.get_lock(b"report")
    assert lock.acquire()
    zklock_proxy.blackhole()
    wait_for(lambda: not lock.acquired, SOON, "the end of the lease")
    with pytest.raises(tooz.ToozError):
        coordinator.heartbeat()
    # The heart of tooz tries again for ever; it must not keep the coordinator from stopping.
    run(coordinator.stop).result(SOON)


def test_the_token_and_the_loss_are_reached_by_the_grant(start: Start) -> None:
    lock = start(b"first").get_lock(b"report")
    tokens, losses = [], Losses()
    for _ in range(2):
        with lock:
            assert lock.grant is not None
            tokens.append(lock.grant.token)
    assert tokens[0] < tokens[1]
    assert not lock.acquired

    assert lock.acquire()
    grant = lock.grant
    assert grant is not None
    grant.add_lost_callback(losses)
    assert start(b"second").get_lock(b"report").break_()
    assert losses.one().reason is zklock.LossReason.NODE_DELETED
    assert not lock.release()


def test_breaking_takes_a_shared_lock_from_all_holders_and_from_no_waiter(start: Start) -> None:
    readers = [start(name).get_lock(b"report") for name in (b"one", b"two")]
    assert all(reader.acquire(shared=True) for reader in readers)
    writer = start(b"writer").get_lock(b"report")
    waiting = run(writer.acquire, timeout=SOON)
    with pytest.raises(coordination.LockAcquireFailed):
        readers[0].acquire()  # it would wait for itself
    assert not readers[0].acquire(timeout=0.01)
    assert start(b"operator").get_lock(b"report").break_()
    assert waiting.result(SOON)
    assert writer.is_still_owner()
    assert not any(reader.release() for reader in readers)


def test_what_is_locked_for_a_moment_leaves_no_znode(
    start: Start, zklock_client: Any, zklock_path: str
) -> None:
    coordinator = start(b"one")
    with coordinator.get_lock(b"volume-1"), coordinator.get_lock(b"volume-2")(shared=True):
        assert len(tree(zklock_client, f"{zklock_path}/zklock-tooz/locks")) == 5
    gone(zklock_client, f"{zklock_path}/zklock-tooz/locks")


@pytest.mark.parametrize("name", [b"a/b", b".", b"..", b"\xff\x00", "Gruppe ä".encode(), b"%2F"])
def test_groups_members_and_locks_have_any_name(start: Start, name: bytes) -> None:
    coordinator = start(name)
    coordinator.create_group(name).get()
    coordinator.join_group(name, {"weight": 1}).get()
    assert coordinator.get_groups().get() == [name]
    assert coordinator.get_members_with_capabilities(name).get() == {name: {"weight": 1}}
    with coordinator.get_lock(name) as lock:
        assert lock.acquired


def test_a_name_is_not_empty(start: Start, zklock_client: Any, zklock_path: str) -> None:
    coordinator = start(b"one")
    before = tree(zklock_client, zklock_path)
    for call in (coordinator.create_group, coordinator.join_group, coordinator.delete_group):
        with pytest.raises(coordination.ToozError, match="must not be empty"):
            call(b"").get()
    assert tree(zklock_client, zklock_path) == before


def test_standing_by_writes_nothing(start: Start, zklock_client: Any, zklock_path: str) -> None:
    first, second = start(b"first"), start(b"second")
    for each in (first, second):
        each.watch_elected_as_leader(b"all", lambda event: None)
        each.run_watchers()
    election = f"{zklock_path}/zklock-tooz/leaders/all"
    before = zklock_client.exists(election).cversion
    for each in (first, second) * 3:
        each.run_watchers()
    assert zklock_client.exists(election).cversion == before
    assert second.get_leader(b"all").get() == b"first"


def leading(start: Start) -> tuple[Any, Any, Any]:
    """Return a coordinator that leads a group, the lock that it has, and another coordinator."""
    first, second = start(b"first"), start(b"second")
    first.create_group(b"all").get()
    first.watch_elected_as_leader(b"all", lambda event: None)
    first.run_watchers()
    lock = first.get_lock(b"report")
    assert lock.acquire()
    return first, lock, second


@pytest.mark.parametrize("error", [KeyboardInterrupt, zklock.LockLost, zklock.NoAnswer])
@pytest.mark.parametrize("at", ["verify", "release"])
def test_an_interrupted_release_leaves_nothing_held(
    start: Start, monkeypatch: pytest.MonkeyPatch, at: str, error: type[BaseException]
) -> None:
    def struck(*args: object) -> None:
        raise error("the time is over")

    first, lock, second = leading(start)
    leads = first.leadership(b"all")
    with monkeypatch.context() as patch:
        patch.setattr(zklock.Grant, at, struck)
        with pytest.raises(error, match="the time is over"):
            lock.release()
        if at == "release":
            with pytest.raises(error, match="the time is over"):
                first.stand_down_group_leader(b"all")
            assert not leads.held
    assert second.get_lock(b"report").acquire(timeout=SOON)


def test_what_cannot_be_given_back_on_a_thread_is_still_held(start: Start) -> None:
    """A thread of kazoo's cannot wait for the answer; another one gives it back."""
    first, lock, second = leading(start)
    refused: SimpleQueue[BaseException | None] = SimpleQueue()
    for call in (lock.release, lambda: first.stand_down_group_leader(b"all")):

        def give_back(_: object, call: Callable[[], bool] = call) -> None:
            try:
                call()
            except BaseException as error:
                refused.put(error)
            else:
                refused.put(None)

        first._client.exists_async("/").rawlink(give_back)
        assert "WouldDeadlock" in str(refused.get(timeout=SOON))
    assert lock.acquired
    assert first.leadership(b"all") is not None
    assert lock.release()
    assert first.stand_down_group_leader(b"all")
    assert second.get_lock(b"report").acquire(timeout=SOON)


def test_stopping_gives_everything_back_at_once(start: Start) -> None:
    first, lock, second = leading(start)
    first.join_group(b"all").get()
    first.stop()
    assert not lock.acquired
    with pytest.raises(tooz.ToozError, match="not started"):
        lock.acquire()
    assert second.get_members(b"all").get() == set()
    assert second.get_leader(b"all").get() is None
    assert second.get_lock(b"report").acquire(blocking=False)


def test_a_user_and_a_password_keep_others_out(zklock_hosts: str, zklock_path: str) -> None:
    def coordinator(user: str) -> Any:
        url = f"zklock://{user}{zklock_hosts}{zklock_path}?namespace=closed"
        return coordination.get_coordinator(url, b"member")

    owner, stranger = coordinator("anna:s%2Fecret@"), coordinator("")
    owner.start()
    try:
        owner.create_group(b"all").get()
        with owner.get_lock(b"report") as lock:
            assert lock.acquired
        with pytest.raises(tooz.ToozError):  # of start(), too, from 3.8.4 and 3.9.2 on
            stranger.start()
            stranger.get_lock(b"report").acquire(blocking=False)
        with contextlib.suppress(tooz.ToozError):
            stranger.stop()
    finally:
        owner._client.delete(zklock_path, recursive=True)
        owner.stop()
