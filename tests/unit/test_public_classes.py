"""Public classes name themselves in errors and show their whole signature."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import zklock
from zklock import aio

KINDS = ["Lock", "RLock", "ReadLock", "WriteLock", "Semaphore", "LeaderElection", "WorkerPool"]
CLASSES = [getattr(front, name) for front in (zklock, aio) for name in KINDS]

each_class = pytest.mark.parametrize(
    "cls", CLASSES, ids=lambda cls: f"{cls.__module__}.{cls.__name__}"
)


@each_class
def test_what_is_called_wrong_is_told_by_the_class_that_was_called(cls: Any) -> None:
    name, path = cls.__name__, "/path"
    required = {"limit": 1} if name == "Semaphore" else {}
    by_name = rf"^{name}\(\) takes client and path by position, and all others by name"
    for said, given, options in (
        (rf"^{name}\(\) missing a required argument", (), {}),
        (rf"^{name}\(\) got an unexpected keyword.*'nope'", (None, path), {"nope": 1}),
        (f"{by_name}: did you mean identity='host-7'\\?$", (None, path, "host-7"), {}),
        (f"{by_name}$", (None, path, 7), {}),
        ("^pass a started KazooClient", (None, path), {}),
        ("not Connecting: await it first, as in client = await ", (aio.connect("h:1"), path), {}),
    ):
        with pytest.raises(TypeError, match=said):
            cls(*given, **({**required, **options} if given else {}))


@each_class
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
        inspect.signature(zklock.Semaphore).parameters["limit"].default is inspect.Signature.empty
    )
