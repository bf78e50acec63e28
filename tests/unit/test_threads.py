"""The starter of a thread hears what a signal handler raises, and else of a limit."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.contract.support import SOON
from tests.fakes import no_thread
from zklock._ground import threads


class Limit(Exception):
    """What the handler of a time limit raises."""


class Impatience(RuntimeError):
    """What another one raises."""


ERRORS = [KeyboardInterrupt(), Limit(), Impatience("can't wait"), RuntimeError("time is up")]
PLACES = {
    "before it waits": ("call", "wait"),
    "once the lock of the condition is free": ("c_return", "_release_save"),
}


class Late(threading.Thread):
    """Does not say that it runs before whoever starts it was struck."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.struck = threading.Event()

    def _bootstrap(self) -> None:
        self.struck.wait(SOON)
        super()._bootstrap()  # type: ignore[misc]


def striking(error: BaseException, event: str, function: str) -> Callable[..., None]:
    """Return a function for ``sys.setprofile`` that raises there."""

    def profile(frame: FrameType, happens: str, argument: object) -> None:
        code = frame.f_code
        if (happens, code.co_name) == (event, function) and code.co_filename == threading.__file__:
            raise error

    return profile


def struck(call: Callable[[], object], error: BaseException, place: str) -> BaseException:
    """Call, struck in ``Thread.start()`` while it waits for the thread; return what arrives."""
    try:
        sys.setprofile(striking(error, *PLACES[place]))
        call()
    except BaseException as arrived:
        return arrived
    finally:
        sys.setprofile(None)
    pytest.fail("it was not struck")


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("handling", [False, True])
def test_what_strikes_arrives(error: BaseException, place: str, handling: bool) -> None:
    ran = threading.Event()
    thread = Late(target=ran.set, daemon=True)

    def begin() -> None:
        if not handling:
            return threads.begin(thread)
        try:
            raise KeyError
        except KeyError:
            return threads.begin(thread)

    assert struck(begin, error, place) is error
    thread.struck.set()
    assert ran.wait(SOON)  # it was started all the same


@pytest.mark.parametrize("handling", [False, True])
def test_a_limit_is_told_as_one(handling: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(threads.NoThread, match="can't start new thread"):
        try:
            raise KeyError if handling else threads.NoThread("can't start new thread")
        except KeyError:
            threads.start(lambda: None, "zklock-test")


def test_a_thread_that_was_started_is_no_limit() -> None:
    thread = threading.Thread(target=lambda: None, daemon=True)
    threads.begin(thread)
    with pytest.raises(RuntimeError, match="only be started once") as raised:
        threads.begin(thread)
    assert type(raised.value) is RuntimeError
