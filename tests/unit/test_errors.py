from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import zklock
from zklock import aio, errors, fencing
from zklock._shell.connect import new_client
from zklock.testing import Simulation, simulated
from zklock.testing.errors import ServerError

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.ZkLockError)
]


def every_kind(base: type[Any]) -> list[type[Any]]:
    """Return a class and all that are derived from it."""
    return [base, *(kind for sub in base.__subclasses__() for kind in every_kind(sub))]


def drawn(text: str) -> dict[str, str]:
    """Return child → parent as a tree in a text draws them."""
    tree, path = {}, [(-1, "Exception")]
    for line in text.splitlines():
        if found := re.match(r"([ │]*)[├└]─ (\w+)", line):
            depth, name = len(found[1]), found[2]
            while path[-1][0] >= depth:
                path.pop()
            tree[name] = path[-1][1]
            path.append((depth, name))
    return tree


@pytest.mark.parametrize("text", [errors.__doc__, PAGE.read_text()], ids=["docstring", "page"])
def test_the_tree_is_as_it_is_drawn(text: str) -> None:
    parents = {
        kind.__name__: next(base.__name__ for base in kind.__bases__ if issubclass(base, Exception))
        for kind in KINDS
    }
    assert drawn(text) == parents
    timeouts = {kind.__name__ for kind in KINDS if issubclass(kind, TimeoutError)}
    assert set(re.findall(r"─ (\w+) .*TimeoutError", text)) == timeouts
    assert timeouts == {"AcquireTimeout", "NoAnswer"}


def test_the_page_says_of_each_error_what_to_do() -> None:
    rows = re.findall(r"^\| `(\w+)`.* \| .+ \| .+ \|$", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted({kind.__name__ for kind in KINDS} - {"ZkLockError"})


class TestExamples:
    """The examples of the page catch what they name, each in the case that it is for."""

    @pytest.fixture
    def sim(self) -> Iterator[Simulation]:
        with simulated() as sim:
            yield sim

    @pytest.fixture
    def scope(self, sim: Simulation, tmp_path: Path) -> dict[str, Any]:
        client = sim.client()
        guard = fencing.FileGuard(tmp_path / "report.txt")
        guard.create()
        lock = zklock.Lock(client, "/locks/report")
        return {
            "zklock": zklock,
            "client": client,
            "lock": lock,
            "guard": guard,
            "report": lambda: b"7",
            "parts": [1, 2],
        }

    def plays(self, error: str, scope: dict[str, Any]) -> None:
        blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        (block,) = [each for each in blocks if f"except {error}" in each]
        exec(compile(block, PAGE.name, "exec"), scope)

    def test_in_time(
        self, sim: Simulation, scope: dict[str, Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        held = zklock.Lock(sim.client(), "/locks/report", identity="anna").acquire()
        assert held is not None
        sim.run(lambda: self.plays("AcquireTimeout", scope))
        assert capsys.readouterr().out == "/locks/report: 1 ahead, behind anna\n"

    def test_lost(self, scope: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
        sent, undone = list[int](), list[list[int]]()

        def send(part: int, token: zklock.FencingToken) -> None:
            sent.append(part)
            scope["client"].stop()

        self.plays("LockLost", scope | {"send": send, "undo": undone.append})
        assert (sent, undone) == ([1], [[1, 2]])
        assert capsys.readouterr().out.startswith("/locks/report: lock lost at ")

    def test_refused(self, scope: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
        def report() -> bytes:
            scope["guard"].claim(zklock.FencingToken(2**40, 0))
            return b"late"

        self.plays("StaleToken", scope | {"report": report})
        assert "is older than 0000010000000000-0000000000" in capsys.readouterr().out

    def test_unknown(self, scope: dict[str, Any], tmp_path: Path) -> None:
        guard = mock.Mock(wraps=scope["guard"])
        guard.read = (tmp_path / "report.txt").read_bytes
        (tmp_path / "report.txt").write_bytes(b"")

        def write(data: bytes, grant: zklock.Grant) -> None:
            guard.write = scope["guard"].write
            raise errors.OutcomeUnknown("no answer came", resource="report")

        guard.write = write
        self.plays("OutcomeUnknown", scope | {"guard": guard})
        assert guard.read() == b"7"

    def test_connects(self, sim: Simulation, scope: dict[str, Any]) -> None:
        scope |= {"hosts": sim.hosts}
        self.plays("NoAnswer", scope)
        scope["client"].stop()

    def test_does_not_connect(self, scope: dict[str, Any]) -> None:
        with pytest.raises(SystemExit, match="correct the settings: "):
            self.plays("NoAnswer", scope | {"hosts": "127.0.0.1:1", "zklock": Refusing})


class Refusing:
    """What ``connect()`` may raise."""

    @staticmethod
    def connect(hosts: str, timeout: float) -> None:
        raise errors.ClientUnusable(f"{hosts}: of another kind")


def test_the_fences_offer_the_error_of_a_stale_token() -> None:
    assert fencing.StaleToken is errors.StaleToken


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_is_public_and_says_what_it_means(kind: type[Exception]) -> None:
    assert getattr(zklock, kind.__name__) is kind
    assert kind.__name__ in zklock.__all__
    assert kind.__doc__


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
