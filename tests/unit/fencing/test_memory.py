from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.unit.fencing.strikes import interrupted, strikes
from zklock.errors import GuardUnusable, NoAnswer, NotOwner, StaleToken, WouldDeadlock
from zklock.fencing import MemoryGuard, MemoryGuards
from zklock.token import FencingToken

A, B, C = (FencingToken(7, number) for number in (33, 34, 35))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_turns_come_in_order_and_one_at_a_time() -> None:
    guard = MemoryGuard("report")
    log: list[int] = []
    inside = 0

    def change(number: int) -> None:
        nonlocal inside
        with guard.hold(FencingToken(7, number)):
            inside += 1
            assert inside == 1
            log.append(number)
            inside -= 1

    with ThreadPoolExecutor(20) as pool:
        with guard.hold(FencingToken(7, 0)):
            changes = []
            for number in range(20):
                changes.append(pool.submit(change, number))
                until(lambda number=number: len(guard._line) == number + 2)  # type: ignore[misc]
            assert guard.highest() == FencingToken(7, 0)
        for done in changes:
            done.result(10)
    assert log == list(range(20))


def test_a_turn_that_does_not_come_in_time() -> None:
    guard = MemoryGuard("report", timeout=0.01)
    late = r"report: earlier changes have been running for 0\.01"

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(guard.hold_async(A))
            with pytest.raises(NoAnswer, match=late):
                async with guard.hold_async(A):
                    pytest.fail("two at once")
        async with guard.hold_async(B):
            pass

    with contextlib.ExitStack() as stack:
        stack.enter_context(guard.hold(A))
        with pytest.raises(NoAnswer, match=late), guard.hold(A):
            pytest.fail("two at once")
    guard.claim(A)
    asyncio.run(main())


def test_tasks_and_threads_share_the_turns() -> None:
    guard = MemoryGuard("report")
    inside = 0
    most = 0

    def enter() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)

    def leave() -> None:
        nonlocal inside
        inside -= 1

    def in_thread() -> None:
        for _ in range(50):
            with guard.hold(A):
                enter()
                time.sleep(0)
                leave()

    async def in_task() -> None:
        for _ in range(50):
            async with guard.hold_async(A):
                enter()
                await asyncio.sleep(0)
                leave()

    async def main() -> None:
        await asyncio.gather(
            *(in_task() for _ in range(3)), *(asyncio.to_thread(in_thread) for _ in range(3))
        )

    asyncio.run(main())
    assert most == 1
    assert inside == 0


def test_a_cancelled_task_leaves_no_turn_behind() -> None:
    """Cancelled at any moment around its turn, it never keeps it."""

    async def main() -> None:
        guard = MemoryGuard("report")

        async def change() -> None:
            async with guard.hold_async(A):
                await asyncio.sleep(0)

        for steps in range(12):
            async with guard.hold_async(A):
                waiting = asyncio.create_task(change())
                await asyncio.sleep(0)
            for _ in range(steps):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert not guard._line

    asyncio.run(main())


def in_another_thread(call: Callable[[], object]) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert failures == []


@pytest.mark.lengthy("each bytecode of a call: seconds of a core")
@pytest.mark.hazard("H48")
@pytest.mark.parametrize("what", ["hold", "claim", "hold_async", "guards", "stale"])
def test_an_exception_at_any_bytecode_leaves_the_guard_usable(what: str) -> None:
    guards = MemoryGuards(timeout=5)
    numbers = itertools.count(1)
    guard = guards["a"]
    guard.claim(FencingToken(7, 0))
    entered = []

    def hold() -> None:
        with guard.hold(FencingToken(7, next(numbers))):
            entered.append(1)

    def stale() -> None:
        with contextlib.suppress(StaleToken):
            guard.claim(FencingToken(6, 0))

    async def hold_async() -> None:
        async with guard.hold_async(FencingToken(7, next(numbers))):
            entered.append(1)

    def new_guard() -> None:
        guards[f"b{next(numbers)}"].claim(FencingToken(7, 1))

    async def in_loop() -> None:
        # No await of it waits, so that it can be struck without the loop's own code.
        for step in strikes(lambda: drive_to_end(hold_async())):
            steps.append(step)
            in_another_thread(functools.partial(guard.claim, FencingToken(7, next(numbers))))

    steps: list[int] = []
    if what == "hold_async":
        asyncio.run(in_loop())
    else:
        call = {
            "hold": hold,
            "claim": lambda: guard.claim(FencingToken(7, next(numbers))),
            "guards": new_guard,
            "stale": stale,
        }[what]
        for step in strikes(call):
            steps.append(step)
            number = next(numbers)
            in_another_thread(functools.partial(guard.claim, FencingToken(7, number)))
            assert guard.highest() == FencingToken(7, number)
            in_another_thread(lambda number=number: guards[f"c{number}"].highest())  # type: ignore[misc]
    assert len(steps) > 50
    assert not guard._line


def drive_to_end(coroutine: Coroutine[Any, Any, None]) -> None:
    with contextlib.closing(coroutine), contextlib.suppress(StopIteration):
        coroutine.send(None)


@pytest.mark.lengthy("each bytecode of a call: seconds of a core")
@pytest.mark.hazard("H48")
def test_an_exception_at_any_bytecode_of_a_waiting_call_leaves_the_guard_usable() -> None:
    guard = MemoryGuard("report", timeout=0.02)
    numbers = itertools.count(1)
    steps = 0

    def call() -> None:
        with contextlib.suppress(TimeoutError), guard.hold(FencingToken(7, next(numbers))):
            pytest.fail("two at once")

    with guard.hold(FencingToken(7, 0)):
        for step in strikes(call):
            steps = step
    assert steps > 50
    in_another_thread(lambda: guard.claim(FencingToken(7, next(numbers))))
    assert not guard._line


@pytest.mark.hazard("H48")
def test_an_exception_of_a_signal_handler_frees_the_guard_for_the_handler_of_it() -> None:
    guard = MemoryGuard("report", timeout=1)

    def hold() -> None:
        for _ in range(1000):
            with guard.hold(A):
                len("")

    interrupted(hold, lambda: guard.claim(A), 0.000_01)


def test_a_thread_does_not_wait_for_itself() -> None:
    guard = MemoryGuard("report")
    with ThreadPoolExecutor() as pool:
        with guard.hold(A):
            with pytest.raises(WouldDeadlock, match="inside a hold of this guard"):
                guard.claim(B)
            with pytest.raises(WouldDeadlock), guard.hold(B):
                pytest.fail("two at once")
            another = pool.submit(guard.claim, B)
            until(lambda: len(guard._line) == 2)
            assert guard.highest() == A
        another.result(10)
    guard.claim(C)


def test_a_task_does_not_wait_for_itself() -> None:
    async def main() -> None:
        guard = MemoryGuard("report")

        async def change() -> None:
            async with guard.hold_async(B):
                pass

        async with guard.hold_async(A):
            with pytest.raises(WouldDeadlock, match="inside a hold of this guard"):
                await change()
            with pytest.raises(WouldDeadlock):
                guard.claim(B)
            waiting = asyncio.gather(change(), asyncio.to_thread(guard.claim, B))
            while len(guard._line) < 3:
                await asyncio.sleep(0)
        await waiting
        await change()
        assert guard.highest() == B

    asyncio.run(main())


def test_a_hold_is_entered_once() -> None:
    guard = MemoryGuard("report")
    hold = guard.hold(A)
    with hold, pytest.raises(RuntimeError, match="entered once"), hold:
        pytest.fail("entered again")
    guard.claim(B)


def test_a_task_whose_loop_was_closed_is_passed_over() -> None:
    guard = MemoryGuard("report", timeout=5)
    loop = asyncio.new_event_loop()

    async def change() -> None:
        async with guard.hold_async(A):
            pytest.fail("its loop is closed")

    with guard.hold(A):
        task = loop.create_task(change())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        assert len(guard._line) == 2
    guard.claim(B)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    task.get_coro().close()


def test_the_first_token_is_asked_about() -> None:
    asked = []

    def first(token: FencingToken) -> None:
        asked.append(token)
        if token == A:
            raise NotOwner("report: no", token=token)

    guard = MemoryGuard("report", first=first)
    with pytest.raises(NotOwner):
        guard.claim(A)
    assert guard.highest() is None
    guard.claim(B)
    guard.claim(B)
    guard.claim(C)
    assert asked == [A, B]


def test_the_first_token_of_a_task_is_asked_about_off_the_loop() -> None:
    threads: list[int] = []
    guard = MemoryGuard("report", first=lambda _: threads.append(threading.get_ident()))
    asyncio.run(enter(guard))
    assert guard.highest() == A
    assert threads != [threading.get_ident()]
    assert len(threads) == 1


async def enter(guard: MemoryGuard) -> None:
    async with guard.hold_async(A):
        pass


async def refusing(*_: object) -> None:
    raise NotOwner("report: no", token=A)


@pytest.mark.parametrize("make", [MemoryGuard, lambda _, first: MemoryGuards(first=first)])
def test_first_is_no_coroutine_function(make: Callable[..., object]) -> None:
    """Nothing would run it: so every token would be let in."""
    with pytest.raises(TypeError, match="first is a coroutine function"):
        make("report", first=refusing)


def test_a_first_that_returns_a_coroutine_lets_nobody_in() -> None:
    guard = MemoryGuard("report", first=lambda token: refusing("report", token))
    with pytest.raises(TypeError, match="first returned a coroutine"):
        guard.claim(A)
    with pytest.raises(TypeError, match="first returned a coroutine"):
        asyncio.run(enter(guard))
    assert guard.highest() is None


def test_guards_are_one_for_each_resource() -> None:
    guards = MemoryGuards()
    guards["a"].claim(B)
    gc.collect()
    assert guards["a"] is guards["a"]
    assert guards["a"].highest() == B
    assert guards["b"].highest() is None
    assert len(guards) == 1
    with pytest.raises(ValueError, match="1 to 255"):
        guards[""]


def test_a_full_memory_refuses_new_resources_and_forgets_none() -> None:
    guards = MemoryGuards(capacity=2)
    guards["a"].claim(B)
    guards["b"].claim(B)
    with pytest.raises(GuardUnusable) as caught:
        guards["c"].claim(B)
    assert str(caught.value) == (
        "c: 2 other resources fill the guards' memory: raise the capacity, or discard() "
        "resources that are gone"
    )
    assert caught.value.resource == "c"
    with pytest.raises(StaleToken):
        guards["a"].claim(A)
    guards["b"].claim(C)
    guards.discard("b")
    guards["c"].claim(B)
    assert len(guards) == 2


@pytest.mark.parametrize("token", [B, C])
def test_a_resource_that_is_used_again_after_its_discard_keeps_its_mark(token: Any) -> None:
    """The request that removes a resource discards it; another one has been waiting."""
    guards = MemoryGuards(capacity=1)
    with guards["a"].hold(B):
        waiting = guards["a"].hold(token)
        guards.discard("a")
    with waiting:
        pass
    del waiting
    gc.collect()
    assert guards["a"].highest() == token
    with pytest.raises(StaleToken):
        guards["a"].claim(A)
    with pytest.raises(GuardUnusable):
        guards["b"].claim(A)


def test_what_was_only_asked_for_or_refused_takes_no_room() -> None:
    def first(resource: str, token: FencingToken) -> None:
        if token < B:
            raise NotOwner(f"{resource}: no", token=token)

    guards = MemoryGuards(capacity=1, first=first)
    for number in range(1000):
        guards[f"resource {number}"].highest()
    with pytest.raises(NotOwner, match="a: no"):
        guards["a"].claim(A)
    gc.collect()
    assert len(guards._known) == 0
    guards["b"].claim(B)
    assert len(guards) == 1


def test_capacity_must_be_positive() -> None:
    for capacity in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            MemoryGuards(capacity)
    with pytest.raises(TypeError):
        MemoryGuards(True)


FORKED = """if True:
    import os, threading, warnings
    from zklock import FencingToken
    from zklock.fencing import MemoryGuard

    warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
    theirs, mine = MemoryGuard("theirs", timeout=10.0), MemoryGuard("mine", timeout=10.0)
    token, inside, done = FencingToken(7, 33), threading.Event(), threading.Event()

    def hold():
        with theirs.hold(token):
            inside.set()
            done.wait()

    threading.Thread(target=hold).start()
    inside.wait()
    with mine.hold(token):
        if not os.fork():
            theirs.claim(token)
            mine.claim(token)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.wait()[1])
        held = len(theirs._line), len(mine._line)
    done.set()
    print(code, *held)
"""


def test_a_forked_child_has_none_of_its_parents_turns() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=False
    )
    assert (ran.stdout.split(), ran.stderr) == (["0", "1", "1"], "")
