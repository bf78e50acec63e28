"""What is made of the parser for shells and for man, tried by those who read it."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.terminal import Terminal
from zklock.cli import parser, settings, shipped

PATIENCE = 60.0
ROOT = Path(__file__).parents[3]
WHOLE = parser.build(*parser.COMMANDS)
COMMANDS = shipped.commands_of(WHOLE)


def options_of(command: argparse.ArgumentParser) -> list[str]:
    shown = (action for action in command._actions if action.help != argparse.SUPPRESS)
    return sorted(option for action in shown for option in action.option_strings)


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shipped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "40")
        shipped.write(folder)
    return folder / "share"


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}")
    return found


BASH = """\
source "$1"
shift
while read -r -a COMP_WORDS; do
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  [ "${COMP_WORDS[COMP_CWORD]}" = '""' ] && COMP_WORDS[COMP_CWORD]=
  COMPREPLY=()
  "$(complete -p zklock | sed 's/.*-F \\([^ ]*\\) .*/\\1/')"
  echo "${COMPREPLY[@]}"
done
"""


def completed(share: Path, lines: Sequence[str]) -> list[list[str]]:
    """Return what bash offers at the end of each line."""
    script = share / "bash-completion" / "completions" / "zklock"
    done = subprocess.run(
        [tool("bash"), "--norc", "-c", BASH, "bash", script],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True, text=True, check=True, cwd=share,
    )  # fmt: skip
    assert done.stderr == ""
    return [sorted(line.split()) for line in done.stdout.splitlines()]


def test_bash_offers_every_command_and_every_option(share: Path) -> None:
    lines = ['zklock ""', *(f"zklock {name} -" for name in COMMANDS)]
    found = completed(share, lines)
    assert found[0] == sorted(parser.COMMANDS)
    offered = dict(zip(COMMANDS, found[1:], strict=True))
    assert offered == {name: options_of(command) for name, command in COMMANDS.items()}


def test_top_takes_the_orders_that_are_offered() -> None:
    for order in OFFERED['zklock top --sort ""']:
        assert parser.build("top").parse_args(["top", "--sort", order]).sort == order


@pytest.fixture
def stub(tmp_path: Path) -> dict[str, str]:
    """An environment in which 'zklock' lists two locks."""
    ls = tmp_path / "zklock"
    rows = "PATH           KIND  HOLDER", "/locks/report  lock  x", "/other         lock  x"
    ls.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    ls.chmod(0o755)
    (tmp_path / "zklock-only-here").write_text("#!/bin/sh\n")
    (tmp_path / "zklock-only-here").chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TERM": "dumb"}


OFFERED = {
    "zklock ls --tls-ca ca": ["ca.pem"],
    "zklock check --digest-file ca": ["ca.pem"],
    "zklock ls --dig": ["--digest-file"],
    "zklock run --sasl D": ["DIGEST-MD5"],
    "zklock ru": ["run"],
    'zklock top --sort ""': ["longest-wait", "path", "time-held", "waiting"],
    'zklock run ""': ["/locks/report", "/other"],
    "zklock show /lo": ["/locks/report"],
    "zklock run /l -- zklock-only": ["zklock-only-here"],
    "zklock elect /l zklock-only": ["zklock-only-here"],
    "zklock run /l -- cat file.t": ["file.txt"],
}


def test_bash_completes(share: Path, stub: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", stub["PATH"])
    for file in ("ca.pem", "file.txt"):
        (share / file).touch()
    assert completed(share, [*OFFERED]) == [*OFFERED.values()]


WANTED = {
    "zklock sho": "show",
    "zklock top --sort longest": "longest-wait",
    "zklock show /loc": "/locks/report",
    "zklock run /l -- zklock-only-h": "zklock-only-here",
    "zklock run --nonb": "--nonblock",
}


@pytest.mark.parametrize("line", WANTED)
def test_fish_completes(share: Path, stub: dict[str, str], line: str) -> None:
    script = share / "fish" / "vendor_completions.d" / "zklock.fish"
    program = f"source {script}; complete -C '{line}'"
    done = subprocess.run(
        [tool("fish"), "--no-config", "-c", program],
        capture_output=True, text=True, check=True, env=stub,
    )  # fmt: skip
    assert done.stderr == ""
    assert [it.split("\t")[0] for it in done.stdout.splitlines()] == [WANTED[line]]


ZSH = """\
PROMPT='ready> '; fpath=($1 $fpath); autoload -Uz compinit; compinit -u -D
bindkey '^I' complete-word
finish() { print -r -- "[$BUFFER]"; exit }
zle -N finish; bindkey '^X' finish
"""


@pytest.mark.parametrize("line", WANTED)
def test_zsh_completes(share: Path, stub: dict[str, str], tmp_path: Path, line: str) -> None:
    folder = share / "zsh" / "site-functions"
    (tmp_path / ".zshrc").write_text(ZSH.replace("$1", str(folder)))
    environ = {**stub, "ZDOTDIR": str(tmp_path)}
    with Terminal([tool("zsh"), "-i", "-d"], env=environ) as terminal:
        terminal.expect("ready> ", PATIENCE)
        terminal.type_in(f"{line}\t\x18")
        terminal.finish(PATIENCE)
        done = f"{line.rpartition(' ')[0]} {WANTED[line]}"
        assert re.search(rf"\[{re.escape(done)} ?\]", terminal.shown)


def test_zsh_knows_every_command_and_every_option(share: Path) -> None:
    script = (share / "zsh" / "site-functions" / "_zklock").read_text()
    assert script.startswith("#compdef zklock\n")
    for name, command in COMMANDS.items():
        (body,) = re.findall(rf"^_shtab_zklock_{name}_options=\((.*?)^\)", script, re.M | re.S)
        for option in options_of(command):
            assert re.search(rf"[\"',{{]{option}[\[\"',}}]", body), f"{name} {option}"


def test_there_is_a_page_for_each_command(share: Path) -> None:
    pages = {file.name for file in (share / "man" / "man1").iterdir()}
    assert pages == {"zklock.1", *(f"zklock-{name}.1" for name in parser.COMMANDS)}


def words(text: str) -> str:
    """Return a text without line breaks, and without a hyphen where a word was broken."""
    return " ".join(re.sub(r"\N{HYPHEN}\s+", "", text).split())


@pytest.mark.parametrize("name", [None, *parser.COMMANDS])
def test_a_page_says_all_that_help_says(name: str | None, share: Path) -> None:
    page = share / "man" / "man1" / (f"zklock-{name}.1" if name else "zklock.1")
    done = subprocess.run(
        [tool("groff"), "-man", "-Tutf8", "-ww", "-P-c", page],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    shown = words(re.sub(r"\x1b\[[0-9]*m|.\x08", "", done.stdout))
    command = COMMANDS[name] if name else parser.frame()
    assert words(command.description or "") in shown
    for option in options_of(command):
        if option not in {"-h", "--help"}:
            assert re.search(rf"(?<!\S){option}[ ,]", shown), option
    for action in command._actions:
        if (
            action.help
            and action.help != argparse.SUPPRESS
            and "--help" not in action.option_strings
            and "%" not in action.help
        ):
            assert words(action.help) in shown
    for each in parser.COMMANDS if name is None else ():
        assert f"{each} {parser.COMMANDS[each]}" in shown


def test_what_a_terminal_is_changes_nothing(
    share: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for file in shipped.write(tmp_path):
        assert file.read_text() == (share.parent / file.relative_to(tmp_path)).read_text()


def test_making_them_needs_no_more_than_the_build_declares(tmp_path: Path) -> None:
    program = (
        "import sys; before = {*sys.modules}; from pathlib import Path\n"
        "from zklock.cli import shipped; shipped.write(Path(sys.argv[1]))\n"
        "print(*{name.partition('.')[0] for name in {*sys.modules} - before})"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, tmp_path], capture_output=True, text=True, check=True
    )
    foreign = set(done.stdout.split()) - sys.stdlib_module_names - {"zklock"}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    names = {re.split(r"\W*>=", each)[0].replace("-", "_") for each in declared}
    assert foreign - {"kerberos", "puresasl"} == names - {"setuptools"}  # kazoo does without these


def test_nothing_offers_the_option_of_a_secret(share: Path) -> None:
    secrets = "|".join(it.option for it in settings.SETTINGS if it.secret)
    for file in filter(Path.is_file, share.rglob("*")):
        assert not re.search(rf"({secrets})(?![-\w\\])", file.read_text()), file
