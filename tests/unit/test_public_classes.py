"""Public classes name themselves in errors and show their whole signature."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import zklock
from zklock import aio

KINDS = ["Lock", "RLock", "ReadLock", "WriteLock", "Semaphore", "LeaderElection", "WorkerPool"]
CLASSES = [getattr(front, name) for front in (zklock, aio) for name in KINDS]


def named(cls: type) -> str:
    return f"{cls.__module__}.{cls.__name__}"


@pytest.mark.parametrize("cls", CLASSES, ids=named)
def test_a_missing_argument_is_reported_by_the_class_that_was_called(cls: type) -> None:
    with pytest.raises(TypeError, match=rf"^{cls.__name__}\(\) missing a required argument"):
        cls()


@pytest.mark.parametrize("cls", CLASSES, ids=named)
def test_so_is_an_option_that_there_is_not(cls: Any) -> None:
    options = {"limit": 1} if cls.__name__ == "Semaphore" else {}
    with pytest.raises(TypeError, match=rf"^{cls.__name__}\(\) got an unexpected keyword.*'nope'"):
        cls(None, "/path", nope=1, **options)


@pytest.mark.parametrize("cls", CLASSES, ids=named)
def test_an_identity_by_position_is_told(cls: Any) -> None:
    """So users of kazoo write it."""
    with pytest.raises(TypeError) as refused:
        cls(None, "/path", "host-7")
    assert str(refused.value) == (
        f"{cls.__name__}() takes client and path by position, and all others by name: "
        "did you mean identity='host-7'?"
    )
    with pytest.raises(TypeError, match=r"all others by name$"):
        cls(None, "/path", 7)


@pytest.mark.parametrize("cls", CLASSES, ids=named)
def test_an_error_about_a_value_is_left_as_it_is(cls: Any) -> None:
    options = {"limit": 1} if cls.__name__ == "Semaphore" else {}
    with pytest.raises(TypeError, match=r"^pass a started KazooClient"):
        cls(None, "/path", **options)


@pytest.mark.parametrize("cls", CLASSES, ids=named)
def test_a_client_that_was_not_awaited_is_told_to_be(cls: Any) -> None:
    options = {"limit": 1} if cls.__name__ == "Semaphore" else {}
    with pytest.raises(TypeError, match=r"not Connecting: await it first, as in client = await "):
        cls(zklock.aio.connect("127.0.0.1:1"), "/path", **options)


@pytest.mark.parametrize("cls", CLASSES, ids=named)
def test_every_option_is_shown(cls: type) -> None:
    parameters = inspect.signature(cls).parameters
    assert {"client", "path", "identity", "session_timeout", "lease_fraction"} <= set(parameters)
    assert all(each.kind is not each.VAR_KEYWORD for each in parameters.values())


def test_the_options_of_a_lock_are_those_of_its_parts() -> None:
    parameters = inspect.signature(zklock.Lock).parameters
    assert {"track_abandoned", "lock_delay", "on_lost", "tidy"} <= set(parameters)
    assert parameters["on_lost"].default is None
    assert [*parameters][:4] == ["client", "path", "identity", "timeout"]
    assert [*parameters][-2:] == ["session_timeout", "lease_fraction"]
    assert (
        inspect.signature(zklock.Semaphore).parameters["limit"].default is inspect.Parameter.empty
    )
