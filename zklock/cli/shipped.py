"""Completions for shells and man pages, made of the parser when the project is built.

``python -m zklock.cli.shipped FOLDER`` makes them by hand. It needs shtab and argparse-manpage.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import shtab
from argparse_manpage.manpage import Manpage

from zklock._version import __version__
from zklock.cli import parser

_COLUMNS = "80"
_MANUAL = "zklock"
_PLACES = {
    "bash": "share/bash-completion/completions/zklock",
    "zsh": "share/zsh/site-functions/_zklock",
    "fish": "share/fish/vendor_completions.d/zklock.fish",
}
_COMMAND = {**dict.fromkeys(_PLACES, "_zklock_command"), "fish": "(_zklock_command)"}
_LOCKS = {**dict.fromkeys(_PLACES, "_zklock_locks"), "fish": "(_zklock_locks)"}
_LS = "zklock ls --connect-timeout 2 2>/dev/null | sed '1d;s/  .*//'"
_FUNCTIONS = {
    "bash": f"""\
_zklock_locks() {{
  compgen -W "$({_LS})" -- "$1"
}}
_zklock_command() {{
  if [[ ${{COMP_WORDS[COMP_CWORD-1]}} == -- || $COMP_CWORD -eq $current_action_args_start_index ]]
  then
    compgen -c -- "$1"
  fi
  compgen -f -- "$1"
}}
""",
    "zsh": f"""\
_zklock_locks() {{
  local -a found
  found=(${{(f)"$({_LS})"}})
  compadd -a found
}}
_zklock_command() {{
  shift words  # PATH
  (( CURRENT-- ))
  if [[ $words[1] == -- ]]; then
    shift words
    (( CURRENT-- ))
  fi
  if (( CURRENT == 1 )); then
    _command_names -e
  else
    _normal
  fi
}}
""",
    "fish": f"""\
function _zklock_locks
    {_LS}
end
function _zklock_command
    set -l words (commandline -opc)
    set -l at (contains -i -- -- $words); or return
    set -l command (string join ' ' -- (string escape -- $words[(math $at + 1)..-1]))
    complete -C "$command "(commandline -ct | string collect)
end
""",
}


def write(folder: Path) -> list[Path]:
    """Write all files at and below a folder, where they belong below a prefix such as /usr."""
    os.environ["COLUMNS"] = _COLUMNS  # else they would depend on the terminal
    found = []
    for place, text in _files():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        found.append(file)
    return found


def commands_of(whole: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands."""
    (commands,) = (it for it in whole._actions if isinstance(it, argparse._SubParsersAction))
    return dict(commands.choices)


def _files() -> Iterator[tuple[str, str]]:
    whole = parser.build(*parser.COMMANDS)
    commands = commands_of(whole)
    for command in commands.values():
        for action in command._actions:
            if action.metavar == "FILE":
                action.complete = shtab.FILE  # type: ignore[attr-defined] # shtab looks for it
            elif action.nargs == argparse.REMAINDER:
                action.complete = _COMMAND  # type: ignore[attr-defined]
            elif action.metavar == "PATH":
                action.complete = _LOCKS  # type: ignore[attr-defined]
    for shell, place in _PLACES.items():
        yield place, shtab.complete(whole, shell, preamble=_FUNCTIONS[shell])
    yield "share/man/man1/zklock.1", _page(_overview(), "zklock", "locks on ZooKeeper")
    for name, command in commands.items():
        page = f"zklock-{name}"
        yield f"share/man/man1/{page}.1", _page(command, page, parser.COMMANDS[name])


def _overview() -> argparse.ArgumentParser:
    """Return a parser whose man page lists the commands, each of which has a page of its own."""
    overview = parser.frame()
    overview.usage = "zklock [-h] [--version] [-v] COMMAND ..."
    group = overview.add_argument_group("commands", "zklock-COMMAND(1) describes a command.")
    for name, text in parser.COMMANDS.items():
        group.add_argument(name, help=text)
    return overview


def _page(described: argparse.ArgumentParser, name: str, text: str) -> str:
    page = Manpage(
        described, {"project_name": "zklock", "version": __version__, "manual_title": _MANUAL}
    )
    page.prog = name
    page.description = text
    if described.usage is not None:  # several forms, a line each
        forms = [line.strip().replace("-", r"\-") for line in described.usage.splitlines()]
        page.add_section("synopsis", "=", "\n.br\n".join(forms))
    # A line that begins with one of these would be taken for a request to roff.
    return re.sub(r"^(?='|\.(?![A-Z]|br$))", r"\\&", str(page), flags=re.MULTILINE)


if __name__ == "__main__":
    for each in write(Path(sys.argv[1])):
        print(each)
