"""A signal ends a command, wherever it strikes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest

from zklock.cli.ending import Ended, ends_on_signals, interrupts_kill

SIGNALS = [
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGXCPU,
]  # fmt: skip
SOON = 20.0


class Dropped:
    """Signals its own process when it is dropped."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __del__(self) -> None:
        signal.raise_signal(self._number)


class Thing:
    """Something that can be referred to weakly."""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_body_and_later_ones_do_not_strike_its_clean_up(
    number: signal.Signals,
) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    cleaned = False
    with pytest.raises(Ended) as ended, ends_on_signals():
        try:
            signal.raise_signal(number)
        finally:
            for each in SIGNALS:
                signal.raise_signal(each)
            cleaned = True
    assert cleaned
    assert ended.value.status == 128 + number
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ends_on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_no_signal_that_ends_a_process_is_left_out() -> None:
    # All but those that stop it, that are ignored anyway, or that tell of a fault of its own.
    others = "STOP TSTP TTIN TTOU CONT CHLD URG WINCH PIPE XFSZ KILL SEGV BUS FPE ILL ABRT SYS TRAP"
    known = {getattr(signal, f"SIG{name}") for name in others.split()}
    with ends_on_signals() as ending:
        handled = {it for it in signal.valid_signals() if signal.getsignal(it) is ending}
    assert handled == signal.valid_signals() - known


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGWINCH])
def test_what_is_for_a_taker_ends_nothing_where_there_is_none(number: signal.Signals) -> None:
    taken: list[int] = []
    with ends_on_signals([signal.SIGWINCH]) as ending:
        signal.raise_signal(signal.SIGWINCH)
        ending.divert(taken.append)
        signal.raise_signal(number)
    assert taken == [number]


@pytest.mark.hazard("H55")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_in_the_end_of_an_object_ends_the_body(number: signal.Signals) -> None:
    hook = sys.unraisablehook
    went_on = []
    with pytest.raises(Ended) as ended, ends_on_signals():
        dropped = Dropped(number)
        del dropped
        went_on.append(True)
        threading.Event().wait(SOON)
    assert went_on
    assert ended.value.status == 128 + number
    assert sys.unraisablehook is hook


def test_a_signal_in_the_callback_of_a_weak_reference_ends_the_body() -> None:
    thing = Thing()
    known = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Ended), ends_on_signals():
        del thing
        assert known() is None
        threading.Event().wait(SOON)


def test_what_else_is_lost_is_told_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: told.append(lost.exc_value))

    class Broken:
        def __del__(self) -> None:
            raise ValueError("broken")

    with ends_on_signals():
        broken = Broken()
        del broken
    assert [str(each) for each in told] == ["broken"]


@pytest.mark.parametrize("module", ["zklock.cli.parser", "argparse", "zklock.cli.show", "logging"])
def test_an_interrupt_while_the_program_loads_is_no_traceback(module: str) -> None:
    program = f"""
        import os, signal, sys
        from zklock.cli import main
        class Interrupts:
            def find_spec(name, path=None, target=None):
                if name == {module!r}:
                    os.kill(os.getpid(), signal.SIGINT)
        for name in [it for it in sys.modules if it.split(".")[0] in ("argparse", "logging")]:
            del sys.modules[name]
        sys.meta_path.insert(0, Interrupts)
        main(["show", "/x"])
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_the_handler_of_interrupts_is_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts_kill():
        pass
    assert signal.getsignal(signal.SIGINT) is before
