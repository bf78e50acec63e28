"""ZKLOCK_RIDER in the environment: which handler and which store a client gets."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from kazoo.client import KazooClient

import zklock
from zklock._engine.runtime import Runtime
from zklock._kazoo.connect import new_client
from zklock._kazoo.gateway import GatewayHandler
from zklock._kazoo.riding import RidingHandler, RidingStore
from zklock._kazoo.store import Store

RIDING = {"carrying", "frames", "riders", "riding", "wake", "watches", "wire"}


def store_of(client: Any) -> Any:
    return Runtime().store(
        client, lambda *_: None, lambda _: True, threading.RLock(), lambda *_: None
    )


@pytest.mark.parametrize("value", [None, "", "on"])
def test_on_is_the_default(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZKLOCK_RIDER", raising=False)
    if value is not None:
        monkeypatch.setenv("ZKLOCK_RIDER", value)
    client = new_client("localhost:1", 1.0)
    assert type(client.handler) is RidingHandler
    monkeypatch.setenv("ZKLOCK_RIDER", "off")  # it was read when the client was made
    assert type(store_of(client)) is RidingStore


def test_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZKLOCK_RIDER", "off")
    client = new_client("localhost:1", 1.0)
    assert type(client.handler) is zklock.Handler
    monkeypatch.setenv("ZKLOCK_RIDER", "on")
    assert type(store_of(client)) is Store


def test_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZKLOCK_RIDER", "gateway")
    client = new_client("localhost:1", 1.0)
    assert type(client.handler) is GatewayHandler
    assert type(store_of(client)) is RidingStore


def test_on_is_for_the_clients_that_connect_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZKLOCK_RIDER", "on")

    class Users(zklock.Handler):
        pass

    for client in (
        KazooClient(),
        KazooClient(handler=zklock.Handler()),
        new_client("localhost:1", 1.0, handler=Users()),
    ):
        assert type(store_of(client)) is Store


def test_anything_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZKLOCK_RIDER", "1")
    with pytest.raises(
        zklock.ClientUnusable, match=r"'1' in the environment: set it to on or off$"
    ):
        new_client("localhost:1", 1.0)


def test_no_module_of_the_riders_is_loaded_without() -> None:
    program = (
        "import sys, threading\n"
        "from zklock._engine.runtime import Runtime\n"
        "from zklock._kazoo.connect import new_client\n"
        "client = new_client('localhost:1', 1.0)\n"
        "Runtime().store(client, lambda *_: None, lambda _: True, threading.RLock(), print)\n"
        "print(*(name for name in sys.modules if name.startswith('zklock._kazoo.')))\n"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program],
        env={"ZKLOCK_RIDER": "off"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "zklock._kazoo.store" in loaded
    assert not {f"zklock._kazoo.{name}" for name in RIDING} & {*loaded}
