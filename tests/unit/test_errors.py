from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import zklock
from zklock import aio, errors
from zklock._kazoo.connect import new_client
from zklock.testing.errors import ServerError

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.ZkLockError)
]


def every_kind(base: type[Any]) -> list[type[Any]]:
    """Return a class and all that are derived from it."""
    return [base, *(kind for sub in base.__subclasses__() for kind in every_kind(sub))]


def drawn() -> dict[str, str]:
    """Return child → parent as the docstring of the module draws them."""
    tree, path = {}, [(-1, "Exception")]
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"( +[│ ]*)[├└]─ (\w+)", line):
            depth, name = len(found[1]), found[2]
            while path[-1][0] >= depth:
                path.pop()
            tree[name] = path[-1][1]
            path.append((depth, name))
    return tree


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    def parent(kind: type[Exception]) -> str:
        return next(base.__name__ for base in kind.__bases__ if issubclass(base, Exception))

    assert drawn() == {kind.__name__: parent(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_is_public_and_says_what_it_means(kind: type[Exception]) -> None:
    assert getattr(zklock, kind.__name__) is kind
    assert kind.__name__ in zklock.__all__
    assert kind.__doc__


def test_what_is_a_timeout_is_one_to_python_too() -> None:
    assert issubclass(zklock.AcquireTimeout, TimeoutError)
    assert issubclass(zklock.NoAnswer, TimeoutError)


def test_errors_carry_path_and_token_where_known() -> None:
    token = zklock.FencingToken(1, 2)
    assert zklock.LockLost("gone").path is None
    error = zklock.NotOwner("not you", path="/a", token=token, holder="b")
    assert (error.path, error.token, error.holder, str(error)) == ("/a", token, "b", "not you")


def made(kind: type[errors.ZkLockError]) -> errors.ZkLockError:
    """Return an error with everything that its kind can carry."""
    token = zklock.FencingToken(7, 8)
    samples: dict[str, Any] = {
        "path": "/locks/a",
        "token": token,
        "holder": "host-1",
        "resource": "table",
        "highest": zklock.FencingToken(7, 9),
        "kept": 3,
        "ahead": 2,
        "behind": "host-2",
    }
    names = set(inspect.signature(kind).parameters) - {"message"}
    error = kind("what to do", **{name: samples[name] for name in names})
    error.add_note("a note")
    return error


def pickled(protocol: int, what: Any) -> Any:
    return pickle.loads(pickle.dumps(what, protocol))


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {each}": partial(pickled, each) for each in range(pickle.HIGHEST_PROTOCOL + 1)},
}


@pytest.mark.hazard("H37")
@pytest.mark.parametrize("through", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("kind", [*KINDS, *every_kind(ServerError)], ids=lambda kind: kind.__name__)
def test_errors_travel(kind: type[errors.ZkLockError], through: Callable[[Any], Any]) -> None:
    error = made(kind)
    there = through(error)
    assert type(there) is kind
    assert (str(there), there.args) == (str(error), error.args)
    assert {**error.__dict__, "loss": None} == {**there.__dict__, "loss": None}
    assert there.__notes__ == ["a note"]


@pytest.mark.hazard("H37")
def test_a_loss_travels_as_text() -> None:
    loss = zklock.Loss(zklock.LossReason.SESSION_EXPIRED, bare(zklock.Grant), 1.0, 2.0)
    error = zklock.LockLost("ended or replaced", path="/a", token=zklock.FencingToken(1, 2))
    error.loss = loss
    there = pickle.loads(pickle.dumps(error))
    assert (there.loss, there.path, str(there)) == (None, "/a", str(error))
    assert error.loss is loss


UNCOPIED = [
    zklock.Grant,
    zklock.MultiGrant,
    zklock.Lock,
    zklock.RLock,
    zklock.ReadLock,
    zklock.WriteLock,
    zklock.Semaphore,
    zklock.MultiLock,
    zklock.LeaderElection,
    zklock.WorkerPool,
    aio.Grant,
    aio.MultiGrant,
    aio.Lock,
    aio.Semaphore,
    aio.MultiLock,
    aio.LeaderElection,
    aio.WorkerPool,
]


def bare(kind: Any) -> Any:
    return object.__new__(kind)


@pytest.mark.hazard("H37")
@pytest.mark.parametrize("through", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("kind", UNCOPIED, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_what_has_a_life_is_not_copied(kind: type[Any], through: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=rf"a {kind.__name__} cannot be copied or pickled.*: \w+"):
        through(bare(kind))


@pytest.mark.parametrize("through", COPIES.values(), ids=COPIES)
def test_clients_are_not_copied(through: Callable[[Any], Any]) -> None:
    client = new_client("localhost:1", 1.0, start_timeout=1.0)
    with pytest.raises(TypeError, match=r"a Client cannot be copied or pickled.*zklock\.connect"):
        through(client)
    client.close()
