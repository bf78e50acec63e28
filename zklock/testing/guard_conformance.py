"""The duties of a guard, as checks that can run on any guard, even a user's own.

Describe the guard and its store with a ``Subject``, then run every check that applies::

    @pytest.mark.parametrize("check", guard_conformance.CHECKS, ids=str)
    def test_my_guard(check):
        if check.applies_to(subject):
            check(subject)

or ``print(guard_conformance.report([subject]))``. A check raises ``Violation`` (an
``AssertionError``) that says what the guard did wrong; otherwise it returns how many cases it
tried. ``Effort`` has the counts, and the seed for what is random. Needs hypothesis.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from zklock.errors import GuardUnusable, LockLost, StaleToken
from zklock.fencing.guard import Fenced, Guard
from zklock.token import FencingToken

__all__ = ["CHECKS", "Check", "Effort", "Handle", "Subject", "Violation", "matrix", "report"]

_PATIENCE = 60.0
_PAUSE = 0.0005
# Inherits nothing from this process; ``multiprocessing.set_forkserver_preload`` saves its imports.
_PROCESSES: Final = multiprocessing.get_context("forkserver")

E = TypeVar("E", bound=Exception)


class Violation(AssertionError):
    """A guard has broken one of its promises; the text says which, and how."""


class Handle(ABC):
    """One holder's guard, with its own connections."""

    guard: Guard

    @abstractmethod
    def write(self, data: bytes, token: Fenced) -> None:
        """Replace the data of the resource, fenced."""

    @abstractmethod
    def read(self) -> bytes | None:
        """Return the data, not fenced; ``None`` while there is none."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections of this holder. The resource and its mark stay."""


class Subject(ABC):
    """One resource in one store: how to open its guard, and how to damage its mark.

    Must be picklable if ``shared``. ``name`` heads the column of the report; put the versions of
    server and driver into it.
    """

    name: str
    shared: ClassVar[bool] = True
    """Other processes can open the same resource."""
    durable: ClassVar[bool] = True
    """The mark survives ``restart``."""
    detects_lost_mark: ClassVar[bool] = True
    """A mark that was removed or made unreadable is refused."""

    @abstractmethod
    def fresh(self) -> Subject:
        """Return a similar subject with a resource that nobody has used; make its mark."""

    @abstractmethod
    def open(self) -> Handle:
        """Return a handle with connections of its own; called once for each holder."""

    def restart(self) -> None:
        """Restart the store; open handles may break."""
        raise NotImplementedError

    def remove_mark(self) -> None:
        """Delete the mark behind the guard's back."""
        raise NotImplementedError

    def spoil_mark(self) -> None:
        """Replace the mark with something that is no token."""
        raise NotImplementedError


@dataclass(frozen=True)
class Effort:
    """How many cases to try, and the seed of what is random outside hypothesis."""

    interleavings: int = 100
    races: int = 3
    writes: int = 40
    kills: int = 10
    stops: int = 100
    """A writer with more steps than this is stopped at this many of them."""
    seed: int = 0


@dataclass(frozen=True)
class Check:
    """One promise of a guard; call it with a subject.

    ``needs``: the attributes of a subject that must be true for it.
    """

    name: str
    needs: frozenset[str]
    function: Callable[[Subject, Effort], int] = field(repr=False)

    def __str__(self) -> str:
        return self.name

    def applies_to(self, subject: Subject) -> bool:
        """Tell whether the subject promises what this check tests."""
        return all(getattr(subject, need) for need in self.needs)

    def __call__(self, subject: Subject, effort: Effort | None = None) -> int:
        """Run the check; return how many cases were tried, or raise ``Violation``."""
        try:
            return self.function(subject, effort or Effort())
        except (StaleToken, GuardUnusable) as error:
            raise Violation(f"refused wrongly: {error}") from error


_Promise: TypeAlias = Callable[[Subject, Effort], int]
_checks: list[Check] = []


def _check(*needs: str) -> Callable[[_Promise], _Promise]:
    def register(function: _Promise) -> _Promise:
        _checks.append(Check(function.__name__, frozenset(needs), function))
        return function

    return register


def report(subjects: Iterable[Subject], effort: Effort | None = None) -> str:
    """Run every check on every subject; return the matrix, or raise the first violation."""
    results = {
        subject.name: {
            check.name: str(check(subject, effort)) if check.applies_to(subject) else "-"
            for check in CHECKS
        }
        for subject in subjects
    }
    return matrix(results)


def matrix(results: dict[str, dict[str, str]]) -> str:
    """Return a table: subjects down, checks across, cases tried in the cells, ``-`` for none."""
    width = max(map(len, results), default=0)
    heads = [check.name for check in CHECKS]
    lines = [" " * width + "  " + "  ".join(heads)]
    for name, cells in results.items():
        row = "  ".join(cells.get(head, "").rjust(len(head)) for head in heads)
        lines.append(f"{name.ljust(width)}  {row}")
    return "\n".join(lines)


A = FencingToken(0x700000001, 33)
B = FencingToken(0x700000001, 34)

# Where texts without padding sort wrongly, and where floats, 32 and 64 bits end.
_EPOCHS = (0, 9, 10, 2**31 - 1, 2**31, 2**32, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 2, 2**63 - 1)
_SEQUENCES = (0, 9, 10, 2**31 - 2, 2**31 - 1)
EDGES = tuple(FencingToken(epoch, sequence) for epoch in _EPOCHS for sequence in _SEQUENCES)


@_check()
def order(subject: Subject, _: Effort) -> int:
    """Accept equal and higher tokens; refuse lower ones, which change nothing."""
    later = FencingToken(A.epoch + 1, 0)
    with _opened(subject.fresh()) as handle:
        _expect(handle, None, None)
        for value, token in ((b"1", A), (b"2", A), (b"3", B), (b"4", B), (b"5", later)):
            handle.write(value, token)
            _expect(handle, value, token)
        for token in (A, B):
            _expect_refused(handle, token, later, partial(handle.write, b"stale"))
            _expect_refused(handle, token, later, handle.guard.claim)
            _expect(handle, b"5", later)
        handle.guard.create()
        _expect(handle, b"5", later)
    return 9


@_check()
def claim(subject: Subject, _: Effort) -> int:
    """Shut out the earlier holder by a claim; without one, only the first write does."""
    with _opened(subject.fresh()) as handle:
        handle.write(b"a", A)
        handle.guard.claim(B)
        _expect(handle, b"a", B)
        _expect_refused(handle, A, B, partial(handle.write, b"late"))
        handle.guard.claim(B)
        handle.write(b"b", B)
        _expect(handle, b"b", B)
    with _opened(subject.fresh()) as handle:
        handle.write(b"a", A)
        handle.write(b"in the window", A)
        _expect(handle, b"in the window", A)
        handle.write(b"b", B)
        _expect_refused(handle, A, B, partial(handle.write, b"late"))
        _expect(handle, b"b", B)
    with _opened(subject.fresh()) as handle:
        handle.guard.claim(A)
        _expect(handle, None, A)
    return 3


@_check()
def edges(subject: Subject, _: Effort) -> int:
    """Compare exactly at the limits of the stores' numbers."""
    with _opened(subject.fresh()) as handle:
        for lower, token in zip((None, *EDGES), EDGES, strict=False):
            value = str(token).encode()
            handle.write(value, token)
            _expect(handle, value, token)
            if lower is not None:
                _expect_refused(handle, lower, token, partial(handle.write, b"stale"))
                _expect(handle, value, token)
    return len(EDGES)


@_check()
def types(subject: Subject, _: Effort) -> int:
    """Accept tokens and objects that carry one; anything else is a ``TypeError``."""

    class Carrier:
        token = A

    wrong: tuple[Any, ...] = (34, "34", str(B), None, True, 34.0, (A.epoch, 34))
    with _opened(subject.fresh()) as handle:
        handle.guard.claim(Carrier())
        handle.write(b"a", Carrier())
        for value in wrong:
            for call in (handle.guard.claim, partial(handle.write, b"?")):
                _raised(TypeError, call, value, f"{value!r} was accepted as a token")
        _expect(handle, b"a", A)
    return len(wrong)


@_check()
def over(subject: Subject, _: Effort) -> int:
    """Refuse a grant that says it is not held, before the store is asked; not its bare token."""

    class Carrier:
        token = A
        held = True

        def check(self) -> None:
            raise LockLost("the lock of this check is lost")

    grant, resource, accepted = Carrier(), subject.fresh(), "a grant that is over was accepted"
    with _opened(resource) as handle:
        calls = (handle.guard.claim, partial(handle.write, b"late"))
        handle.write(b"a", grant)
        grant.held = False
        for call in calls:
            _raised(LockLost, call, grant, accepted)
        _expect(handle, b"a", A)
        handle.write(b"b", A)
        _expect(handle, b"b", A)
        if subject.detects_lost_mark:
            resource.remove_mark()
            for call in calls:
                try:
                    _raised(LockLost, call, grant, accepted)
                except GuardUnusable as error:
                    raise Violation("the store was asked for a grant that is not held") from error
    return len(calls)


@_check()
def interleavings(subject: Subject, effort: Effort) -> int:
    """Let two holders acquire, claim, write and pause in any order; compare with a model."""
    import hypothesis  # noqa: PLC0415 - an extra
    from hypothesis import strategies as st  # noqa: PLC0415

    tried = 0
    # A holder that does nothing while the other goes on is paused.
    steps = st.tuples(st.sampled_from("AB"), st.sampled_from(("acquire", "claim", "write")))
    any_token = st.builds(FencingToken, st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))
    tokens = st.sets(st.sampled_from(EDGES) | any_token)

    @hypothesis.settings(
        max_examples=effort.interleavings,
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.lists(steps, min_size=4, max_size=16), tokens)
    def play(schedule: list[tuple[str, str]], more: set[FencingToken]) -> None:
        nonlocal tried
        tried += 1
        grants = iter(sorted({A, B} | more))
        resource = subject.fresh()
        with _opened(resource) as one, _opened(resource) as other:
            handles = {"A": one, "B": other}
            held = {name: next(grants) for name in handles}
            mark: FencingToken | None = None
            data: bytes | None = None
            for number, (holder, action) in enumerate(schedule):
                token, handle = held[holder], handles[holder]
                value = f"{number} {token}".encode()
                if action == "acquire":
                    held[holder] = next(grants, max(held.values()))
                    continue
                call = handle.guard.claim if action == "claim" else partial(handle.write, value)
                if mark is not None and token < mark:
                    _expect_refused(handle, token, mark, call)
                else:
                    call(token)
                    mark = token
                    data = value if action == "write" else data
                _expect(one, data, mark)
                _expect(other, data, mark)

    play()
    return tried


@_check()
def races(subject: Subject, effort: Effort) -> int:
    """Race a late holder and two writers of the next one; some order must explain the history."""
    for _ in range(effort.races):
        resource = subject.fresh()
        with _opened(resource) as handle:
            handle.guard.claim(A)
        going, done = _flag(resource), _flag(resource)
        histories = _together(
            resource,
            [
                (_write_until_refused, (A, going, done)),
                (_write_after, (B, effort.writes, going, done)),
                (_write_after, (B, effort.writes, going, done)),
                (_watch, (done,)),
            ],
        )
        _expect_ordered(histories)
        late, *present, _ = histories
        if not any(op.accepted for op in late) or late[-1].accepted:
            raise Violation("the late holder was never accepted, or never refused")
        if not all(op.accepted for history in present for op in history):
            raise Violation("the present holder was refused")
        with _opened(resource) as handle:
            _expect(handle, _value(B, effort.writes - 1), B)
    return effort.races


@_check()
def rising(subject: Subject, effort: Effort) -> int:
    """Race two writers whose tokens overtake each other; some order must explain the history."""
    for _ in range(effort.races):
        resource = subject.fresh()
        done = _flag(resource), _flag(resource)
        histories = _together(
            resource,
            [
                (_leapfrog, (0, effort.writes, done[0])),
                (_leapfrog, (1, effort.writes, done[1])),
                (_watch, done),
            ],
        )
        _expect_ordered(histories)
        highest = max(it.token for history in histories for it in history if it.accepted)
        with _opened(resource) as handle:
            if handle.guard.highest() != highest or _token_in(handle.read()) != highest:
                raise Violation(f"mark or data are not of the highest token accepted, {highest}")
    return effort.races


@_check()
def stopped(subject: Subject, effort: Effort) -> int:
    """Stop a writer before any of its steps, let a later holder write, and let the writer go on.

    Its steps are the lines of code of the handle and the guard, and of their neighbours in the same
    folder. The later holder may have to wait for the writer; its data must be there at the end.
    """
    resource = subject.fresh()
    sequences = iter(range(2**31))
    tried = 0
    with _Stoppable(resource) as writer, ThreadPoolExecutor(1) as thread:
        later = thread.submit(resource.open).result(_PATIENCE)
        try:
            # The mark is below the writer's token, or equal to it.
            for action, equal in (("write", True), ("write", False), ("claim", False)):
                total = writer.steps(action, FencingToken(A.epoch, next(sequences)))
                stride = max(1, -(-total // effort.stops))
                for step in range(1, total + 1, stride):
                    older, newer = (FencingToken(A.epoch, next(sequences)) for _ in range(2))
                    if equal:
                        thread.submit(later.guard.claim, older).result(_PATIENCE)
                    write = partial(thread.submit, later.write, _value(newer, step), newer)
                    where = writer.stopped_during(action, older, step, write)
                    found = thread.submit(later.read).result(_PATIENCE)
                    mark = thread.submit(later.guard.highest).result(_PATIENCE)
                    if found != _value(newer, step) or mark != newer:
                        raise Violation(
                            f"a {action} with {older}, stopped before {where}, went on after "
                            f"{newer} had been accepted: the data is {found!r:.80}, the mark {mark}"
                        )
                    tried += 1
        finally:
            thread.submit(later.close).result(_PATIENCE)
    return tried


@_check("shared")
def crashes(subject: Subject, effort: Effort) -> int:
    """Kill a writer at any moment: the data is whole, the mark at least as high, nothing lost."""
    chance = random.Random(effort.seed)
    resource = subject.fresh()
    for round_ in range(effort.kills):
        start = FencingToken(A.epoch + round_, 0)
        receiver, sender = _PROCESSES.Pipe(duplex=False)
        process = _begun(resource, _write_rising, resource, start, sender)
        sender.close()
        if not receiver.poll(_PATIENCE):
            process.kill()
            raise Violation("the writer to be killed did not start")
        time.sleep(chance.uniform(0, 0.03))
        process.kill()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            raise Violation(f"the writer ended by itself: exit code {process.exitcode}")
        acknowledged = _last_of(receiver)
        with _opened(resource) as handle:
            data, mark = handle.read(), handle.guard.highest()
            written = _token_in(data)
            if mark is None or not acknowledged <= written <= mark:
                raise Violation(f"acknowledged {acknowledged}, data of {written}, mark {mark}")
            # The writer's last command may still arrive, until there is a higher mark.
            last = FencingToken(start.epoch, 2**31 - 1)
            handle.guard.claim(last)
            data = handle.read()
            if _token_in(data) < written:
                raise Violation("older data came back")
            _expect_refused(handle, mark, last, partial(handle.write, b"stale"))
            _expect(handle, data, last)
    return effort.kills


@_check("durable")
def restart(subject: Subject, _: Effort) -> int:
    """Keep the mark and the data when the store restarts."""
    resource = subject.fresh()
    with _opened(resource) as handle:
        handle.write(b"a", A)
        handle.write(b"b", B)
    resource.restart()
    with _opened(resource) as handle:
        _expect_refused(handle, A, B, partial(handle.write, b"late"))
        _expect(handle, b"b", B)
        handle.write(b"c", B)
        _expect(handle, b"c", B)
    return 1


@_check("detects_lost_mark")
def lost_mark(subject: Subject, _: Effort) -> int:
    """Refuse everything when the mark is removed or spoilt; ``create()`` repairs no spoilt one."""
    later = FencingToken(2**63 - 1, 2**31 - 1)
    for damage in ("remove_mark", "spoil_mark"):
        resource = subject.fresh()
        with _opened(resource) as handle:
            handle.write(b"a", B)
            getattr(resource, damage)()
            if damage == "spoil_mark":
                handle.guard.create()
            data = handle.read()
            calls = (
                (handle.guard.claim, A),
                (handle.guard.claim, later),
                (partial(handle.write, b"?"), later),
                (lambda _: handle.guard.highest(), later),
            )
            for call, token in calls:
                error = _raised(GuardUnusable, call, token, f"{damage}: not refused")
                if error.resource != handle.guard.resource:
                    raise Violation(f"{error!r} names {error.resource!r}") from error
            if handle.read() != data:
                raise Violation(f"{damage}: the data was changed")
    return 2


CHECKS: tuple[Check, ...] = tuple(_checks)
"""All checks. ``str(check)`` is the name of one."""


@dataclass(frozen=True)
class _Operation:
    """A write, from before its call to after its return, on the clock of all processes."""

    token: FencingToken
    start: float
    end: float
    accepted: bool
    mark: FencingToken
    """What its outcome proves: the mark was at least this high when the write ended."""


_History: TypeAlias = list[_Operation]


def _expect_ordered(histories: Sequence[_History]) -> None:
    """Require an order of the writes that agrees with their times and never lowers the mark."""
    operations = [operation for history in histories for operation in history]
    for operation in operations:
        before = [it.mark for it in operations if it.end < operation.start]
        if operation.accepted and before and operation.token < max(before):
            raise Violation(f"{operation.token} was accepted after {max(before)}")
        if not operation.accepted and operation.mark not in {
            it.token for it in operations if it.start < operation.end
        }:
            raise Violation(f"{operation.token} was refused for a token that nobody had used")


class _Stoppable:
    """A writer in its own process, or a thread, that can be stopped at each of its steps."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._swift = _PAUSE

    def __enter__(self) -> _Stoppable:
        self._orders, theirs = _PROCESSES.Pipe()
        self._writer = _begun(self._subject, _obey, self._subject, theirs)
        if self._subject.shared:
            theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._orders.send(None)
        self._writer.join(_PATIENCE)
        _end(self._writer)
        self._orders.close()

    def steps(self, action: str, token: FencingToken) -> int:
        """Let the writer run without a stop; return the number of steps."""
        self._orders.send((action, token, 0))
        return int(self._answer()[1])

    def stopped_during(
        self, action: str, token: FencingToken, step: int, call: Callable[[], Future[None]]
    ) -> str:
        """Stop the writer before its step, make the call, let it go on; return where it stopped.

        If a call takes much longer than others, it is waiting for the writer. Then the writer goes
        on first.
        """
        self._orders.send((action, token, step))
        kind, where = self._answer()
        if kind != "stopped":
            call().result(_PATIENCE)
            return "its end"
        start = time.monotonic()
        calling = call()
        done, _ = wait([calling], min(0.25, max(0.02, 4 * self._swift)))
        if done:
            took = time.monotonic() - start
            self._swift = took if self._swift == _PAUSE else (self._swift + took) / 2
        self._orders.send("go on")
        self._answer()
        calling.result(_PATIENCE)
        return str(where)

    def _answer(self) -> tuple[str, Any]:
        return _told(self._orders, "a writer that was stopped")


def _obey(subject: Subject, orders: Connection) -> None:
    """Write and claim as told, stopping where told."""
    with closing(orders), _opened(subject) as handle:
        folders, files = _code_of(handle)
        while (order := orders.recv()) is not None:
            action, token, stop = order
            count = 0

            def trace(frame: FrameType, event: str, _: Any, stop: int = stop) -> Any:
                nonlocal count
                path = frame.f_code.co_filename
                if path not in files and _folder(path) not in folders:
                    return None
                if event in {"line", "return"}:
                    count += 1
                    if count == stop:
                        orders.send(("stopped", f"{Path(path).name}:{frame.f_lineno}"))
                        orders.recv()
                return trace

            before = sys.gettrace()
            sys.settrace(trace)
            try:
                if action == "claim":
                    handle.guard.claim(token)
                else:
                    handle.write(_value(token, stop), token)
            except StaleToken:
                outcome: tuple[str, Any] = "refused", count
            except Exception as error:
                outcome = "failed", f"{type(error).__name__}: {error}"
            else:
                outcome = "accepted", count
            finally:
                sys.settrace(before)
            orders.send(outcome)


def _code_of(handle: Handle) -> tuple[set[str], set[str]]:
    """Return where the code of a handle and its guard is: the folders of packages, else files."""
    folders, files = set(), set()
    for kind in {*type(handle).__mro__, *type(handle.guard).__mro__} - {*Handle.__mro__}:
        module = sys.modules.get(kind.__module__)
        path = getattr(module, "__file__", None)
        if path is not None and kind.__module__.partition(".")[0] not in sys.stdlib_module_names:
            files.add(path)
            if getattr(module, "__package__", None):
                folders.add(_folder(path))
    return folders, files


def _folder(path: str) -> str:
    return path.rpartition(os.sep)[0]


def _together(
    subject: Subject, jobs: Sequence[tuple[Callable[..., _History], tuple[Any, ...]]]
) -> list[_History]:
    """Run the jobs side by side: in processes if the subject is shared, else in threads."""
    running = []
    for function, arguments in jobs:
        receiver, sender = _PROCESSES.Pipe(duplex=False)
        one = _begun(subject, _report, sender, function, subject, *arguments)
        running.append((one, receiver))
        if subject.shared:
            sender.close()
    try:
        return [_told(receiver)[1] for _, receiver in running]
    finally:
        for one, receiver in running:
            _end(one)
            receiver.close()


def _begun(subject: Subject, function: Callable[..., object], *arguments: Any) -> Any:
    """Start a process that calls the function; a thread if the subject is not shared."""
    kind: Any = _PROCESSES.Process if subject.shared else threading.Thread
    one = kind(target=function, args=arguments, daemon=True)
    one.start()
    return one


def _end(one: Any) -> None:
    """End a process; wait for a thread."""
    if not isinstance(one, threading.Thread):
        one.kill()
    one.join(_PATIENCE)


def _report(sender: Connection, function: Callable[..., _History], *arguments: Any) -> None:
    with closing(sender):
        try:
            sender.send(("done", function(*arguments)))
        except BaseException as error:  # told to the caller
            sender.send(("failed", f"{type(error).__name__}: {error}"))


def _told(receiver: Connection, who: str = "a writer") -> tuple[str, Any]:
    """Return the kind of what a writer tells, and what; ``Violation`` if it has failed."""
    try:
        if not receiver.poll(_PATIENCE):
            raise Violation(f"{who} was not done after {_PATIENCE} s")
        kind, what = receiver.recv()
    except EOFError:
        raise Violation(f"{who} has died") from None
    if kind == "failed":
        raise Violation(f"{who} failed: {what}")
    return kind, what


def _flag(subject: Subject) -> Any:
    """Return a flag that all writers of the subject share."""
    return _PROCESSES.Event() if subject.shared else threading.Event()


def _write_until_refused(subject: Subject, token: FencingToken, going: Any, done: Any) -> _History:
    """Write; set ``going`` after a few writes; stop after a few refusals."""
    history: _History = []
    late = 0
    with _opened(subject, going) as handle:
        while sum(not operation.accepted for operation in history) < 5:
            late += done.is_set()
            if late > 10:
                raise Violation("the late holder was not refused after the present one's end")
            history.append(_timed(handle, _value(token, len(history)), token))
            if len(history) == 5:
                going.set()
    return history


def _write_after(
    subject: Subject, token: FencingToken, writes: int, going: Any, done: Any
) -> _History:
    with _opened(subject, done) as handle:
        if not going.wait(_PATIENCE):
            raise Violation("the late holder did not start")
        return [_timed(handle, _value(token, number), token) for number in range(writes)]


def _leapfrog(subject: Subject, start: int, writes: int, done: Any) -> _History:
    """Write; after a refusal, go on with the next own token above the mark."""
    history: _History = []
    token = FencingToken(A.epoch, start)
    with _opened(subject, done) as handle:
        while len(history) < writes:
            history.append(_timed(handle, _value(token, len(history)), token))
            seen = history[-1].mark
            if seen != token:
                token = FencingToken(seen.epoch, seen.sequence + 1)
    return history


def _watch(subject: Subject, *done: Any) -> _History:
    """Read until the writers are done: the data is whole, and never older than an earlier read."""
    last: FencingToken | None = None
    with _opened(subject) as handle:
        ending = False
        while not ending:
            ending = all(flag.is_set() for flag in done)
            if (data := handle.read()) is not None:
                token = _token_in(data)
                if last is not None and token < last:
                    raise Violation(f"data of {token} came after data of {last}")
                last = token
            time.sleep(_PAUSE)
    return []


def _write_rising(subject: Subject, start: FencingToken, sender: Connection) -> None:
    """Write with higher and higher tokens, so that mark and data change each time, until killed."""
    with _opened(subject) as handle:
        for sequence in range(2**31):
            token = FencingToken(start.epoch, sequence)
            handle.write(_value(token, 0), token)
            sender.send(token)


def _last_of(receiver: Connection) -> FencingToken:
    last: FencingToken | None = None
    with suppress(EOFError, OSError):
        while True:
            last = receiver.recv()
    if last is None:
        raise Violation("the killed writer had written nothing")
    return last


def _timed(handle: Handle, data: bytes, token: FencingToken) -> _Operation:
    start = time.monotonic()
    try:
        handle.write(data, token)
    except StaleToken as error:
        if error.highest is None or error.highest <= token:
            raise Violation(f"{token} was refused for {error.highest}") from error
        return _Operation(token, start, time.monotonic(), accepted=False, mark=error.highest)
    end = time.monotonic()
    if _token_in(handle.read()) < token:
        raise Violation(f"the data is older than {token}, which was accepted")
    return _Operation(token, start, end, accepted=True, mark=token)


def _value(token: FencingToken, number: int) -> bytes:
    """Return data that shows who wrote it and whether it is whole."""
    head = f"{token} {number:010d}"
    return f"{head} {hashlib.sha256(head.encode()).hexdigest() * 32}".encode()


def _token_in(data: bytes | None) -> FencingToken:
    head, _, _ = (data or b"").decode().rpartition(" ")
    token, _, number = head.partition(" ")
    if data is None or not number or data != _value(FencingToken.parse(token), int(number)):
        raise Violation(f"the data is not whole: {data!r:.80}")
    return FencingToken.parse(token)


@contextmanager
def _opened(subject: Subject, over: Any = None) -> Iterator[Handle]:
    """Open a handle, and close it; set ``over`` in the end."""
    try:
        with closing(subject.open()) as handle:
            yield handle
    finally:
        if over is not None:
            over.set()


def _expect(handle: Handle, data: bytes | None, mark: FencingToken | None) -> None:
    if (found := handle.guard.highest()) != mark:
        raise Violation(f"the mark is {found}, not {mark}")
    if (read := handle.read()) != data:
        raise Violation(f"the data is {read!r:.80}, not {data!r:.80}")


def _raised(kind: type[E], call: Callable[[Any], object], token: object, otherwise: str) -> E:
    """Return the error that this call has to raise."""
    try:
        call(token)
    except kind as error:
        return error
    raise Violation(otherwise)


def _expect_refused(
    handle: Handle, token: FencingToken, highest: FencingToken, call: Callable[[Fenced], object]
) -> None:
    error = _raised(StaleToken, call, token, f"{token} was accepted below {highest}")
    told = (error.resource, error.token, error.highest)
    if told != (handle.guard.resource, token, highest):
        raise Violation(f"the refusal of {token} below {highest} tells {told}") from error
    for part in (handle.guard.resource, str(token), str(highest)):
        if part not in str(error):
            raise Violation(f"the message does not tell {part}: {error}") from error
