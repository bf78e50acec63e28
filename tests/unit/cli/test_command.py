from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.story import Story
from zklock import __version__
from zklock.cli import main
from zklock.cli.status import Status


def exit_status(*arguments: str) -> object:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    return raised.value.code


def recorded(story: Story, folder: Path) -> str:
    file = folder / "events.jsonl"
    file.write_text("".join(event.to_json() + "\n" for event in story.events))
    return str(file)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("--version") == 0
    assert capsys.readouterr().out == f"zklock {__version__}\n"


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("--help") == 0
    assert "demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-command"],
        ["demo", "--no-such-option"],
        ["demo", "--session-timeout", "0.1"],
        ["demo", "--session-timeout", "21"],
        ["demo", "--session-timeout", "nan"],
        ["demo", "--session-timeout", "soon"],
        ["demo", "--keep-ledger", "/no/such/folder/ledger"],
        ["demo", "--keep-ledger", __file__],
        ["demo", "--hosts", "127.0.0.1:many"],
        ["demo", "--hosts", ""],
        ["run", "relative", "true"],
        ["run", "/x"],
        ["run", "/x", "--"],
        ["run", "-n", "-w", "1", "/x", "true"],
        ["run", "-w", "0", "/x", "true"],
        ["run", "-E", "256", "/x", "true"],
        ["run", "--grace", "-1", "/x", "true"],
        ["show"],
        ["show", "/"],
        ["show", "/x/"],
        ["ls", "x"],
        ["check", "/x"],
        ["check", "/x", "17"],
    ],
)
def test_wrong_usage(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("ZKLOCK_PATH", "ZKLOCK_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    assert exit_status(*arguments) == Status.USAGE
    assert "usage: zklock" in capsys.readouterr().err


def test_a_recorded_demo_that_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--replay", recorded(Story(), tmp_path)]) == Status.OK
    assert "All of it held." in capsys.readouterr().out


def test_a_doctored_record_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = Story()
    story.change(story.find("lost", "w5"), at=32.6)
    assert main(["demo", "--json", "--replay", recorded(story, tmp_path)]) == Status.FAILED
    summary = capsys.readouterr().out.splitlines()[-1]
    assert '"held": false' in summary
    assert "was told of its loss 100.0 ms after w6" in summary


def test_what_replay_prints_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["demo", "--json", "--replay", recorded(Story(), tmp_path)])
    first = capsys.readouterr().out
    (tmp_path / "again").write_text(first)
    main(["demo", "--json", "--replay", str(tmp_path / "again")])
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json\n",
        "[]\n",
        "{}\n",
        '{"at": 1, "act": 1, "who": "w1", "event": "granted"}\n',
        '{"at": 1, "act": 1, "who": "w1", "event": "granted", "token": "x", "node": "y"}\n',
    ],
)
def test_a_record_of_something_else(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(text)
    assert main(["demo", "--replay", str(file)]) == Status.FAILED
    printed = capsys.readouterr()
    assert "FAILED" in printed.out if not text else "zklock demo: " in printed.err


def test_a_record_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--replay", str(tmp_path / "none")]) == Status.FAILED
    assert "No such file" in capsys.readouterr().err


def test_a_reader_that_has_gone(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "zklock.cli", "demo", "--replay", recorded(Story(), tmp_path)],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(write)
    assert done.returncode == Status.BROKEN_PIPE
    assert done.stderr == b""


def test_without_a_zookeeper_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ZKLOCK_TEST_HOSTS", raising=False)
    monkeypatch.setenv("ZKLOCK_TEST_BACKEND", "java")
    monkeypatch.setenv("ZKLOCK_PROVISION", "0")
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    monkeypatch.delenv("ZKLOCK_ZOOKEEPER_JARS", raising=False)
    assert main(["demo"]) == Status.UNAVAILABLE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "ZOOKEEPER_HOME" in printed.err


def test_an_address_where_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--hosts", "127.0.0.1:1"]) == Status.UNAVAILABLE
    assert "127.0.0.1:1" in capsys.readouterr().err
