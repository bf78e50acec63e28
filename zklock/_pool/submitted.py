"""Calls for executors that may run later what they have refused."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from zklock._pool.own_threads import Calling


class Submitted:
    """A call for an executor: if it is refused, it does not run.

    ``ThreadPoolExecutor`` puts a call into its queue, and then starts a thread. If no thread can be
    started, ``submit()`` raises, and the call stays in the queue: another thread of the executor
    may have it already, or gets it later.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._begins: dict[None, bool] = {}  # set once, by setdefault(), which is one step
        self._ended: Future[Any] = Future()
        self._ended.set_running_or_notify_cancel()

    @property
    def begun(self) -> bool:
        """Whether the call has had its turn."""
        return self._begins.get(None, False)

    def to(self, executor: Calling, *what: object) -> Future[Any]:
        """Hand the call over, once → its future.

        Raises what ``submit()`` raises. Then the call does not run.
        """
        try:
            return executor.submit(self._run, *what)
        except Exception:
            if self._begins.setdefault(None, False):
                return self._ended
            raise

    def _run(self, *what: object) -> Any:
        if not self._begins.setdefault(None, True):
            return None
        try:
            outcome = self._call(*what)
        except BaseException as error:
            self._ended.set_exception(error)
            raise
        self._ended.set_result(outcome)
        return outcome
