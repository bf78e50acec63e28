from __future__ import annotations

import re

import pytest

import zklock
from zklock import errors

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.ZkLockError)
]


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
    assert drawn() == {kind.__name__: kind.__bases__[0].__name__ for kind in KINDS}


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
