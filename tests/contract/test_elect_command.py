"""``zklock elect`` as users run it: processes of their own, with a real ZooKeeper."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import zklock
from tests.contract.support import SOON, gone, queued
from tests.contract.test_cli import PATIENCE, Commands, await_file, python, text_of
from zklock.testing import wait_for


def on_term(told: Path, ended: Path) -> Any:
    """Return a command that notes its token, and ends in order when it is told to."""
    return python(f"""
        import os, pathlib, signal, time
        def end(*ignored):
            pathlib.Path({str(ended)!r}).write_text("in order")
            os._exit(3)
        signal.signal(signal.SIGTERM, end)
        with open({str(told)!r}, "a") as file:
            print(os.environ["ZKLOCK_TOKEN"], file=file)
        while True:
            time.sleep(0.05)
        """)


def test_the_command_is_told_of_its_term(zk: Commands, zklock_path: str) -> None:
    code, out, errors = zk.run("elect", zklock_path, "--", "sh", "-c", "env; exit 7")
    given = dict(line.partition("=")[::2] for line in out.splitlines())
    assert (code, errors) == (7, "")
    assert (given["ZKLOCK_PATH"], given["ZKLOCK_HELD"]) == (zklock_path, "1")
    assert zklock.FencingToken.parse(given["ZKLOCK_TOKEN"]).sequence == 0
    assert zk.run("elect", zklock_path, "--", "printenv", "ZKLOCK_TOKEN")[1] > given["ZKLOCK_TOKEN"]


def test_exit_statuses(zk: Commands, zklock_path: str) -> None:
    assert zk.run("elect", zklock_path, "/no/such/command")[0] == 127
    assert zk.run("elect", "--again", zklock_path, "/etc/passwd")[0] == 126
    assert zk.run("elect", zklock_path)[0] == 64
    assert zk.run("elect", "--payload", "x" * 20000, zklock_path, "true")[0] == 64


def test_a_signal_hands_over_when_the_command_has_ended(
    zk: Commands, zklock_client: Any, zklock_path: str, tmp_path: Path
) -> None:
    told, ended = tmp_path / "told", tmp_path / "ended"
    first = zk.start(
        "elect", "--identity", "first", "--payload", "here", zklock_path, *on_term(told, ended)
    )
    token = await_file(told).strip()
    election = zklock.LeaderElection(zklock_client, zklock_path)
    leader = election.leader()
    assert leader is not None
    assert (leader.identity, leader.payload, str(leader.token)) == ("first", b"here", token)
    second = zk.start("elect", zklock_path, "--", "cat", str(ended))
    queued(zklock_client, zklock_path, 2)
    first.send_signal(signal.SIGTERM)
    assert second.communicate(timeout=SOON)[0] == "in order"
    assert first.wait(SOON) == 3
    assert second.returncode == 0


def test_a_signal_ends_one_that_waits(
    zk: Commands, zklock_client: Any, zklock_path: str, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    first = zk.start("elect", zklock_path, *on_term(told, tmp_path / "ended"))
    await_file(told)
    second = zk.start("elect", zklock_path, "--", "true")
    queued(zklock_client, zklock_path, 2)
    second.send_signal(signal.SIGTERM)
    assert second.wait(SOON) == 143
    queued(zklock_client, zklock_path, 1)
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    assert first.wait(SOON) == 3


@pytest.mark.parametrize("how", ["lost", "asked to resign"])
def test_it_stands_again_after_the_term_is_taken_from_it(
    zk: Commands, zklock_client: Any, zklock_path: str, tmp_path: Path, how: str
) -> None:
    told, ended = tmp_path / "told", tmp_path / "ended"
    process = zk.start("elect", "--grace", "10", zklock_path, *on_term(told, ended))
    await_file(told)
    (node,) = queued(zklock_client, zklock_path, 1)
    if how == "lost":
        zklock_client.delete(f"{zklock_path}/{node}")
    else:
        assert zklock.Lock(zklock_client, zklock_path).request_release()
    assert await_file(ended) == "in order"
    tokens = wait_for(
        lambda: found if len(found := told.read_text().split()) == 2 else None, SOON, "no 2nd term"
    )
    assert tokens == sorted(set(tokens))
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(SOON) == 3


def test_it_stands_again_while_nobody_reads_the_errors(
    zk: Commands, zklock_path: str, tmp_path: Path
) -> None:
    program = f"echo $ZKLOCK_TOKEN >> {tmp_path}/terms"
    process = zk.start("elect", "--again", zklock_path, "--", "sh", "-c", program)
    assert process.stderr is not None
    process.stderr.close()
    wait_for(
        lambda: len(text_of(tmp_path / "terms").splitlines()) > 2,
        PATIENCE,
        lambda: f"the status is {process.poll()}",
    )
    process.terminate()
    assert process.wait(SOON) in {0, 143}


def test_again_runs_it_in_every_term(zk: Commands, zklock_path: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = f"printenv ZKLOCK_TOKEN >> {told}"
    process = zk.start("elect", "--again", zklock_path, "--", "sh", "-c", program)
    wait_for(lambda: told.exists() and len(told.read_text().split()) >= 3, SOON)
    process.send_signal(signal.SIGTERM)
    process.wait(SOON)
    tokens = told.read_text().split()
    assert tokens == sorted(set(tokens))


def test_a_command_that_fails_is_run_again_after_pauses_that_grow(
    zk: Commands, zklock_client: Any, zklock_path: str
) -> None:
    process = zk.start("elect", "--again", zklock_path, "--", "false")
    assert process.stderr is not None
    said = [process.stderr.readline() for _ in range(5)]
    pauses = [float(line.split(" in ")[1].split()[0]) for line in said]
    assert all("the status was 1" in line for line in said)
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 4
    # It does not stand meanwhile.
    gone(zklock_client, zklock_path)
    assert zk.run("elect", zklock_path, "true")[0] == 0
    process.terminate()
    assert process.wait(SOON) == 143


def test_pauses_begin_anew_after_a_command_that_does_not_fail(
    zk: Commands, zklock_path: str, tmp_path: Path
) -> None:
    line = f"echo >> {tmp_path}/runs; [ $(wc -l < {tmp_path}/runs) = 3 ]"
    process = zk.start("elect", "--again", zklock_path, "-c", line)
    assert process.stderr is not None
    said = [process.stderr.readline() for _ in range(4)]
    assert " in " not in said[2]
    assert float(said[3].split(" in ")[1].split()[0]) <= 0.5
    process.terminate()
    assert process.wait(SOON) == 143
