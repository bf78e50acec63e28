"""The ``executor`` of a pool, and the runner of handlers that it stands for."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial

from zklock._core.callbacks import check_callback, is_coroutine_function
from zklock._pool.processes import InProcesses
from zklock._pool.runners import InTasks, InThreads, Runner, ShardHandler


def runner(
    handler: ShardHandler, executor: object
) -> Callable[[asyncio.AbstractEventLoop | None], Runner]:
    """Return a factory of the handler's runner; ``TypeError``, ``ValueError`` if none fits.

    The factory's argument is the loop for coroutine functions, if the executor is no loop. ``None``
    means a loop on a thread of its own.
    """
    check_callback(True, "handler", handler)
    awaits = is_coroutine_function(handler)
    if executor is None:
        executor = "asyncio" if awaits else "threads"
    if isinstance(executor, str) and executor not in {"threads", "processes", "asyncio"}:
        raise ValueError(
            "executor must be 'threads', 'processes', 'asyncio', an executor or a loop, not "
            f"{executor!r}"
        )
    if isinstance(executor, ProcessPoolExecutor) or not isinstance(
        executor, str | Executor | asyncio.AbstractEventLoop
    ):
        raise TypeError(
            f"executor must not be a {type(executor).__name__}; for processes, pass "
            "executor='processes'"
        )
    tasks = executor == "asyncio" or isinstance(executor, asyncio.AbstractEventLoop)
    if tasks != awaits:
        raise TypeError(
            "executor='asyncio' or a loop needs a coroutine function, and no other "
            "executor takes one"
        )
    if isinstance(executor, asyncio.AbstractEventLoop):
        loop = executor
        return lambda home: InTasks(handler, loop)
    if tasks:
        return partial(InTasks, handler)
    if executor == "processes":
        try:
            pickle.dumps(handler)
        except Exception as error:
            raise TypeError(
                f"a handler for processes must be a module's function: {error}"
            ) from None
        return lambda home: InProcesses(handler)
    threads = executor if isinstance(executor, Executor) else None
    return lambda home: InThreads(handler, threads)
