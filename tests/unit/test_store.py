"""Every error that ZooKeeper or kazoo can answer with has a meaning; nothing too large is sent."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kazoo import exceptions
from kazoo.client import KazooClient

from zklock._kazoo.channels import Answers, open_store
from zklock._kazoo.failures import MAX_REQUEST, MEANINGS, translate
from zklock._kazoo.store import Landing, Store, shielded
from zklock._recipes.effects import (
    Check,
    Create,
    Delete,
    Failed,
    Failure,
    List,
    Request,
    Sync,
    Transaction,
    Write,
)
from zklock._recipes.names import MAX_PATH
from zklock.errors import AccessDenied, ZkLockError

NAMES = {
    "SystemError": -1, "RuntimeInconsistency": -2, "DataInconsistency": -3, "ConnectionLoss": -4,
    "MarshallingError": -5, "Unimplemented": -6, "OperationTimeout": -7, "BadArguments": -8,
    "UnknownSession": -12, "NewConfigNoQuorum": -13, "ReconfigInProgress": -14, "APIError": -100,
    "NoNode": -101, "NoAuth": -102, "BadVersion": -103, "NoChildrenForEphemerals": -108,
    "NodeExists": -110, "NotEmpty": -111, "SessionExpired": -112, "InvalidCallback": -113,
    "InvalidACL": -114, "AuthFailed": -115, "SessionMoved": -118, "NotReadOnly": -119,
    "EphemeralOnLocalSession": -120, "NoWatcher": -121, "RequestTimeout": -122,
    "ReconfigDisabled": -123, "SessionClosedRequireSaslAuth": -124, "QuotaExceeded": -125,
    "ThrottledOp": -127,
}  # fmt: skip
"""KeeperException.Code of ZooKeeper 3.9.3."""

FINAL = {"NoNode", "NoAuth", "InvalidACL", "SessionClosedRequireSaslAuth"}
"""After these, and after no other, a deletion is not tried again."""


def test_every_code_of_zookeeper_has_a_meaning() -> None:
    assert set(NAMES.values()) | {0} == set(MEANINGS)


def test_every_code_of_kazoo_has_a_meaning() -> None:
    assert set(exceptions.EXCEPTIONS) <= set(MEANINGS)


@pytest.mark.parametrize("name", NAMES)
def test_a_deletion_ends_only_on_what_is_final(name: str) -> None:
    error = exceptions.ZookeeperError(name)
    error.code = NAMES[name]
    failed = translate(error, "/lock/node", "/lock")
    assert (failed.why in {Failure.MISSING, Failure.DENIED}) == (name in FINAL)
    assert isinstance(failed.error, AccessDenied) == (failed.why is Failure.DENIED)
    assert "/lock/node" in str(failed.error)
    assert failed.error.__cause__ is error


def test_who_may_not_write_is_told_where() -> None:
    failed = translate(exceptions.NoAuthError(), "/lock/node", "/lock", "/lock")
    assert "/lock/node: ZooKeeper's ACLs forbid it" in str(failed.error)
    assert "read and write permission on /lock, whose data it writes" in str(failed.error)


@pytest.mark.parametrize(("at", "node"), [(0, None), (1, "/pool/1"), (2, "/pool/2")])
def test_which_of_several_may_not_be_written_is_told(at: int, node: str | None) -> None:
    writes = Write("/pool/1", b"", 0), Write("/pool/2", b"", 0)
    request = Transaction((Check("/pool/leader"), *writes))
    results: list[Any] = [exceptions.RolledBackError() for _ in range(3)]
    results[at + 1 :] = [exceptions.RuntimeInconsistency() for _ in range(2 - at)]
    results[at] = exceptions.NoAuthError()
    failed = Answers(lambda owner: True).makers[Transaction](request, results)
    assert (failed.why, failed.node) == (Failure.DENIED, node)
    assert str(failed.error).startswith(f"{node or '/pool/leader'}: ")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (exceptions.ConnectionClosedError(), Failure.DROPPED),
        (exceptions.ConnectionDropped(), Failure.DROPPED),
        (exceptions.SessionExpiredError(), Failure.DROPPED),
        (exceptions.CancelledError(), Failure.OTHER),
        (RuntimeError("Invalid error code"), Failure.OTHER),
        (ValueError("cannot be read"), Failure.OTHER),
    ],
)
def test_errors_of_kazoo_itself(error: Exception, why: Failure) -> None:
    failed = translate(error, "/lock")
    assert failed.why is why
    assert not failed.busy


LONG = "/" + "x" * (MAX_REQUEST // 2)


def opened(client: Any) -> Store:
    return open_store(client, lambda *_: None, lambda owner: True, threading.RLock())


@pytest.mark.hazard("H32")
@pytest.mark.parametrize(
    "request_",
    [
        Create(f"{LONG}{LONG}/node-", b""),
        Create("/lock/node-", b"x" * MAX_REQUEST),
        Delete(LONG + LONG),
        Check(LONG + LONG),
        Write("/lock", b"x" * MAX_REQUEST),
        Transaction((Check(f"{LONG}/node"), Write(LONG, b""))),
        Transaction(tuple(Write(f"/{number:0100}", b"x" * 900) for number in range(1000))),
        Transaction(tuple(Delete(f"/lock/{number:01000}") for number in range(1000))),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_request_that_is_too_large_is_not_sent(request_: Request) -> None:
    store = opened(KazooClient())
    answers: list[Any] = []
    store.send_batch(
        (request_,), answers.extend
    )  # the client is not started: it would not answer so
    (failed,) = answers
    assert isinstance(failed, Failed)
    assert failed.why is Failure.OTHER
    assert "was not sent" in str(failed.error)


def test_the_longest_path_fits_into_every_request() -> None:
    path = "/" + "x" * MAX_PATH
    assert 3 * len(path) + 64 * 1024 < MAX_REQUEST


def test_a_batch_lands_once_whichever_threads_bring_its_answers() -> None:
    for _ in range(200):
        landed: list[tuple[Any, ...]] = []
        landing = Landing((Sync("/"),) * 8, landed.append)
        barrier = threading.Barrier(8)

        def bring(slot: int, landing: Landing = landing, go: threading.Barrier = barrier) -> None:
            go.wait()
            landing.put(slot, slot)
            landing.put(slot, "again")

        threads = [threading.Thread(target=bring, args=(slot,)) for slot in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert landed == [tuple(range(8))]


CREATE = Create("/a/b/x-", b"", 0)


def test_a_batch_lands_at_once_where_the_parent_is_missing() -> None:
    missing = Failed(Failure.MISSING, ZkLockError("no parent"))
    landed: list[tuple[object, ...]] = []
    batch = (CREATE, List("/a/b"))
    landing = Landing(batch, landed.append)
    landing.put(0, missing)
    assert landed == [(missing, missing)]
    landing.put(1, missing)  # the listing is answered later
    assert len(landed) == 1


def test_other_listings_are_waited_for() -> None:
    missing, listing = Failed(Failure.MISSING, ZkLockError("no parent")), object()
    landed: list[tuple[object, ...]] = []
    batch = (CREATE, List("/a"), List("/a/b"))
    landing = Landing(batch, landed.append)
    landing.put(0, missing)
    assert landed == []
    landing.put(1, listing)
    assert landed == [(missing, listing, missing)]


@pytest.mark.parametrize("why", [why for why in Failure if why is not Failure.MISSING])
def test_a_batch_waits_for_all_its_answers(why: Failure) -> None:
    failed, listing = Failed(why, ZkLockError("it failed")), object()
    landed: list[tuple[object, ...]] = []
    batch = (CREATE, List("/a/b"))
    landing = Landing(batch, landed.append)
    landing.put(0, failed)
    assert landed == []
    landing.put(1, listing)
    assert landed == [(failed, listing)]


def test_an_error_of_ours_ends_no_thread_of_kazoo(caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: object) -> object:
        raise RuntimeError("ours")

    with ThreadPoolExecutor() as kazoo:
        assert kazoo.submit(shielded(fails), None).result() is None
    assert "continues after an error in zklock" in caplog.text


def test_what_a_signal_handler_raises_goes_on() -> None:
    def struck() -> None:
        raise TimeoutError("the handler of a time limit")

    with pytest.raises(TimeoutError, match="time limit"):
        shielded(struck)()
