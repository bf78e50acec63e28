"""The conformance suite must find every way in which a guard can be wrong."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from zklock.errors import GuardUnusable, StaleToken
from zklock.fencing.guard import Fenced, missing, stale, token_of, unreadable
from zklock.testing import guard_conformance
from zklock.testing.guard_conformance import CHECKS, Effort, Handle, Subject, Violation
from zklock.token import FencingToken

EFFORT = Effort(interleavings=200, races=3, kills=3)
CHECKED = {check.name: check for check in CHECKS}


class Toy(Handle):
    """A right guard in memory; the mutants below each break one thing."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.guard: Any = self
        self.resource = "toy"

    def create(self) -> None:
        pass

    def claim(self, token: Fenced) -> None:
        with self.cell.mutex:
            self.check(token_of(token))

    def write(self, data: bytes, token: Fenced) -> None:
        with self.cell.mutex:
            self.check(token_of(token))
            self.cell.data = data

    def check(self, token: FencingToken) -> None:
        if self.cell.mark == "gone":
            raise missing(self.resource, "memory")
        if isinstance(self.cell.mark, str):
            raise unreadable(self.resource, "memory", self.cell.mark)
        if self.cell.mark is not None and self.below(token, self.cell.mark):
            raise stale(self.resource, token, self.cell.mark)
        self.cell.mark = token

    def below(self, token: FencingToken, mark: FencingToken) -> bool:
        return token < mark

    def highest(self) -> FencingToken | None:
        if isinstance(self.cell.mark, str):
            self.check(FencingToken(0, 0))
        assert not isinstance(self.cell.mark, str)
        return self.cell.mark

    def read(self) -> bytes | None:
        return self.cell.data

    def close(self) -> None:
        pass


@dataclass
class Cell(Subject):
    shared: ClassVar[bool] = False
    name: str = "toy"
    handle: type[Toy] = Toy
    mark: FencingToken | str | None = None
    data: bytes | None = None
    mutex: threading.Lock = field(default_factory=threading.Lock)
    between: int = 0

    def fresh(self) -> Cell:
        return type(self)(handle=self.handle)

    def open(self) -> Handle:
        return self.handle(self)

    def restart(self) -> None:
        pass

    def remove_mark(self) -> None:
        self.mark = "gone"

    def spoil_mark(self) -> None:
        self.mark = "spoilt"


def _signed_32(epoch: int) -> int:
    return (epoch + 2**31) % 2**32 - 2**31


COMPARISONS: dict[str, Callable[[FencingToken, FencingToken], bool]] = {
    "RefusesEqual": lambda token, mark: token <= mark,
    "AcceptsAll": lambda token, mark: False,
    "ComparesSequence": lambda token, mark: token.sequence < mark.sequence,
    "ComparesFloats": lambda token, mark: (
        (float(token.epoch), token.sequence) < (float(mark.epoch), mark.sequence)
    ),
    "ComparesSigned32": lambda token, mark: (
        (_signed_32(token.epoch), token.sequence) < (_signed_32(mark.epoch), mark.sequence)
    ),
    "ComparesUnpadded": lambda token, mark: (
        f"{token.epoch}-{token.sequence}" < f"{mark.epoch}-{mark.sequence}"
    ),
}


def compares(name: str) -> Cell:
    """Return what is guarded by a toy with a wrong comparison."""
    below = COMPARISONS[name]
    return Cell(handle=type(name, (Toy,), {"below": lambda _, *tokens: below(*tokens)}))


class ClaimsNothing(Toy):
    def claim(self, token: Fenced) -> None:
        token_of(token)


class MarksAfterwards(Toy):
    """The mark rises only with the data of the next write."""

    def claim(self, token: Fenced) -> None:
        mark = self.cell.mark
        if isinstance(mark, FencingToken) and token_of(token) < mark:
            raise stale(self.resource, token_of(token), mark)


class ChecksThenWrites(Toy):
    """Comparison and change are two steps.

    Whoever is between them lingers for a while, so that another write comes in between if there is
    one, and does its own right after that.
    """

    def write(self, data: bytes, token: Fenced) -> None:
        with self.cell.mutex:
            self.check(token_of(token))
            first = not self.cell.between
            self.cell.between += 1
        before = self.cell.data
        if first:
            self._linger(lambda: self.cell.data is before)
        self.cell.data = data
        with self.cell.mutex:
            self.cell.between -= 1
        if not first:
            self._linger(lambda: self.cell.between > 0)

    def _linger(self, while_: Callable[[], bool]) -> None:
        end = time.monotonic() + 0.02
        while while_() and time.monotonic() < end:
            time.sleep(0.0001)


class ClaimsWithoutLock(Toy):
    """A claim that is stopped puts its older mark over a newer one."""

    def claim(self, token: Fenced) -> None:
        given = token_of(token)
        mark = self.cell.mark
        if isinstance(mark, FencingToken) and given < mark:
            raise stale(self.resource, given, mark)
        self.cell.mark = given


class WritesThenChecks(Toy):
    def write(self, data: bytes, token: Fenced) -> None:
        self.cell.data = data
        with self.cell.mutex:
            self.check(token_of(token))


class NoMutualExclusion(Toy):
    """A lost update of the mark: it can fall back."""

    def claim(self, token: Fenced) -> None:
        self._slow(token_of(token))

    def write(self, data: bytes, token: Fenced) -> None:
        self._slow(token_of(token))
        self.cell.data = data

    def _slow(self, token: FencingToken) -> None:
        mark = self.cell.mark
        time.sleep(0.001)
        if isinstance(mark, FencingToken) and token < mark:
            raise stale(self.resource, token, mark)
        self.cell.mark = token


class TakesNumbers(Toy):
    def claim(self, token: Any) -> None:
        if isinstance(token, int) and not isinstance(token, bool):
            return
        super().claim(token)


class TakesWhatIsOver(Toy):
    """A grant counts as its token, held or not."""

    def claim(self, token: Any) -> None:
        super().claim(getattr(token, "token", token))

    def write(self, data: bytes, token: Any) -> None:
        super().write(data, getattr(token, "token", token))


class ReadsTheMarkFirst(Toy):
    """The mark is looked at before the grant."""

    def claim(self, token: Fenced) -> None:
        self.highest()
        super().claim(token)


class NamesWrongHighest(Toy):
    def check(self, token: FencingToken) -> None:
        try:
            super().check(token)
        except StaleToken:
            raise stale(self.resource, token, FencingToken(2**63 - 1, 0)) from None


class StartsAnew(Toy):
    """A lost mark counts as none."""

    def check(self, token: FencingToken) -> None:
        if isinstance(self.cell.mark, str):
            self.cell.mark = None
        super().check(token)


class BlindToHighest(Toy):
    def highest(self) -> FencingToken | None:
        return None


class Forgetful(Cell):
    """Loses the mark at a restart."""

    def restart(self) -> None:
        self.mark = None


class Unbacked(Cell):
    """Loses the data at a restart."""

    def restart(self) -> None:
        self.data = None


MUTANTS: list[tuple[Subject, set[str]]] = [
    (compares("RefusesEqual"), {"order", "claim", "types", "races"}),
    (compares("AcceptsAll"), {"order", "claim", "edges", "interleavings"}),
    (compares("ComparesSequence"), {"order", "edges", "interleavings"}),
    (compares("ComparesFloats"), {"edges"}),
    (compares("ComparesSigned32"), {"edges", "interleavings"}),
    (compares("ComparesUnpadded"), {"edges", "interleavings"}),
    (Cell(handle=ClaimsNothing), {"claim", "interleavings"}),
    (Cell(handle=MarksAfterwards), {"claim", "interleavings"}),
    (Cell(handle=ChecksThenWrites), {"races", "rising", "stopped"}),
    (Cell(handle=ClaimsWithoutLock), {"stopped"}),
    (Cell(handle=WritesThenChecks), {"order", "claim", "interleavings"}),
    (Cell(handle=NoMutualExclusion), {"rising", "stopped"}),
    (Cell(handle=TakesNumbers), {"types"}),
    (Cell(handle=TakesWhatIsOver), {"over"}),
    (Cell(handle=ReadsTheMarkFirst), {"over"}),
    (Cell(handle=NamesWrongHighest), {"order", "claim", "interleavings"}),
    (Cell(handle=StartsAnew), {"lost_mark"}),
    (Cell(handle=BlindToHighest), {"order", "claim", "edges", "interleavings"}),
    (Forgetful(), {"restart"}),
    (Unbacked(), {"restart"}),
]


def _label(case: Any) -> str | None:
    if isinstance(case, Cell):
        return type(case).__name__ if case.handle is Toy else case.handle.__name__
    return ""


@pytest.mark.thorough("wrong guards that the conformance checks find: they change with those alone")
@pytest.mark.parametrize(("subject", "expected"), MUTANTS, ids=_label)
def test_mutants_are_found(subject: Subject, expected: set[str]) -> None:
    for name in expected:
        assert CHECKED[name].applies_to(subject)
        with pytest.raises(Violation):
            CHECKED[name](subject, EFFORT)


def test_a_right_guard_passes_and_is_reported() -> None:
    text = guard_conformance.report([Cell()], EFFORT)
    heads, row = text.splitlines()
    assert heads.split() == [check.name for check in CHECKS]
    cells = dict(zip(heads.split(), row.split()[1:], strict=True))
    assert int(cells.pop("stopped")) > 20
    assert list(cells.values()) == ["9", "3", "55", "7", "2", "200", "3", "3", "-", "1", "2"]


@dataclass
class Disk(Subject):
    """Shared between processes, mark and data in two files; ``way`` is how they are changed."""

    folder: str
    way: str = "locked"
    name: str = "disk"
    number: int = 0

    def fresh(self) -> Disk:
        return replace(self, number=time.monotonic_ns())

    def open(self) -> Handle:
        return DiskHandle(self)


class DiskHandle(Handle):
    resource = "disk"

    def __init__(self, subject: Disk) -> None:
        self.guard: Any = self
        self.way = subject.way
        base = Path(subject.folder) / str(subject.number)
        self.mark, self.data = base.with_suffix(".mark"), base.with_suffix(".data")

    def claim(self, token: Fenced) -> None:
        with self._locked():
            self._check(token_of(token))
            self._put(self.mark, str(token).encode())

    def write(self, data: bytes, token: Fenced) -> None:
        given = token_of(token)
        if self.way == "compare, then an unlocked change":
            self._check(given)
            self._change(given, data)
        elif self.way == "an equal token skips the lock" and self.highest() == given:
            self._change(given, data)
        else:
            with self._locked():
                self._check(given)
                self._change(given, data)

    def highest(self) -> FencingToken | None:
        return FencingToken.parse(self.mark.read_text()) if self.mark.exists() else None

    def read(self) -> bytes | None:
        return self.data.read_bytes() if self.data.exists() else None

    def close(self) -> None:
        pass

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self.mark.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _check(self, token: FencingToken) -> None:
        mark = self.highest()
        if mark is not None and token < mark:
            raise stale(self.resource, token, mark)

    def _change(self, token: FencingToken, data: bytes) -> None:
        steps: list[Callable[[], None]] = [
            lambda: self._put(self.mark, str(token).encode()),
            lambda: self._put(self.data, data, torn=self.way == "torn"),
        ]
        if self.way == "data first":
            steps.reverse()
        steps[0]()
        time.sleep(0.002)
        steps[1]()

    def _put(self, path: Path, content: bytes, *, torn: bool = False) -> None:
        if torn:
            path.write_bytes(content[:100])
            time.sleep(0.002)
        new = path.with_suffix(".new")
        new.write_bytes(content)
        new.replace(path)


@pytest.mark.parametrize("way", ["data first", "torn"])
def test_crashes_between_mark_and_data_are_found(way: str, tmp_path: Path) -> None:
    crashes = CHECKED["crashes"]
    crashes(Disk(str(tmp_path)), Effort(kills=10))
    with pytest.raises(Violation):
        crashes(Disk(str(tmp_path), way), Effort(kills=40))


@pytest.mark.hazard("H51")
@pytest.mark.parametrize(
    "way", ["compare, then an unlocked change", "an equal token skips the lock"]
)
def test_a_writer_that_is_stopped_between_its_steps_is_found(way: str, tmp_path: Path) -> None:
    with pytest.raises(Violation, match=r"stopped before test_guard_conformance\.py:\d+, went on"):
        CHECKED["stopped"](Disk(str(tmp_path), way))


@pytest.mark.hazard("H51")
def test_a_writer_that_is_stopped_may_keep_others_waiting(tmp_path: Path) -> None:
    assert CHECKED["stopped"](Disk(str(tmp_path))) > 40
    assert CHECKED["stopped"](Disk(str(tmp_path)), Effort(stops=3)) <= 9


@pytest.mark.parametrize(
    ("check", "error", "told"),
    [
        ("stopped", OSError("broken"), "stopped failed: OSError: broken"),
        ("races", GuardUnusable("broken", resource="toy"), "a writer failed: GuardUnusable"),
    ],
)
def test_a_writer_that_fails_is_a_violation(check: str, error: Exception, told: str) -> None:
    class Broken(Toy):
        def write(self, data: bytes, token: Fenced) -> None:
            raise error

    with pytest.raises(Violation, match=told):
        CHECKED[check](Cell(handle=Broken), EFFORT)
