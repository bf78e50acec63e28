"""``zklock elect`` as users run it: processes of their own, with a real ZooKeeper."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import zklock
from tests.contract.support import SOON, gone, queued
from tests.contract.test_cli import PATIENCE, Commands, await_file, ends_in_order, text_of
from zklock.testing import wait_for


def terms(folder: Path) -> list[str]:
    """Return the tokens that ``ends_in_order`` has noted."""
    return [line.split()[1] for line in text_of(folder / "began").splitlines()]


def test_a_payload_that_is_too_long_is_refused(zk: Commands) -> None:
    assert zk.run("elect", "--payload", "x" * 20000, zk.path, "true")[0] == 64


def test_a_signal_hands_over_when_the_command_has_ended(zk: Commands) -> None:
    options = ("--identity", "first", "--payload", "here")
    first = zk.start("elect", *options, zk.path, *ends_in_order(zk.folder))
    await_file(zk.folder / "began")
    leader = zklock.LeaderElection(zk.patient, zk.path).leader()
    assert leader is not None
    assert (leader.identity, leader.payload) == ("first", b"here")
    assert [str(leader.token)] == terms(zk.folder)
    second = zk.start("elect", zk.path, "--", "cat", str(zk.folder / "ended"))
    queued(zk.patient, zk.path, 2)
    first.send_signal(signal.SIGTERM)
    assert second.communicate(timeout=SOON)[0] == "in order"
    assert first.wait(SOON) == 3
    assert second.returncode == 0


@pytest.mark.parametrize("how", ["lost", "asked to resign"])
def test_it_stands_again_after_the_term_is_taken_from_it(zk: Commands, how: str) -> None:
    process = zk.start("elect", "--grace", "10", zk.path, *ends_in_order(zk.folder))
    await_file(zk.folder / "began")
    (node,) = queued(zk.patient, zk.path, 1)
    if how == "lost":
        zk.patient.delete(f"{zk.path}/{node}")
    else:
        assert zklock.Lock(zk.patient, zk.path).request_release()
    assert await_file(zk.folder / "ended") == "in order"
    wait_for(lambda: len(terms(zk.folder)) == 2, SOON, "no second term")
    first, second = terms(zk.folder)
    assert first < second
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(SOON) == 3


@pytest.mark.parametrize("reads", [True, False])
def test_again_runs_it_in_every_term_whoever_reads_the_errors(reads: bool, zk: Commands) -> None:
    program = f"echo $ZKLOCK_TOKEN >> {zk.folder}/terms"
    process = zk.start("elect", "--again", zk.path, "--", "sh", "-c", program)
    assert process.stderr is not None
    if not reads:
        process.stderr.close()
    wait_for(
        lambda: len(text_of(zk.folder / "terms").splitlines()) > 2,
        PATIENCE,
        lambda: f"the status is {process.poll()}",
    )
    process.terminate()
    assert process.wait(SOON) in {0, 143}
    tokens = text_of(zk.folder / "terms").split()
    assert tokens == sorted(set(tokens))


def test_a_command_that_fails_is_run_again_after_pauses_that_grow(zk: Commands) -> None:
    process = zk.start("elect", "--again", zk.path, "--", "false")
    assert process.stderr is not None
    said = [process.stderr.readline() for _ in range(5)]
    pauses = [float(line.split(" in ")[1].split()[0]) for line in said]
    assert all("the status was 1" in line for line in said)
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 4
    # It does not stand meanwhile.
    gone(zk.patient, zk.path)
    assert zk.run("elect", zk.path, "true")[0] == 0
    process.terminate()
    assert process.wait(SOON) == 143


def test_pauses_begin_anew_after_a_command_that_does_not_fail(zk: Commands) -> None:
    line = f"echo >> {zk.folder}/runs; [ $(wc -l < {zk.folder}/runs) = 3 ]"
    process = zk.start("elect", "--again", zk.path, "-c", line)
    assert process.stderr is not None
    said = [process.stderr.readline() for _ in range(4)]
    assert " in " not in said[2]
    assert float(said[3].split(" in ")[1].split()[0]) <= 0.5
    process.terminate()
    assert process.wait(SOON) == 143
