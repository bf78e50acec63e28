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
            if action.metavar == "FILE" or action.nargs == argparse.REMAINDER:
                action.complete = shtab.FILE  # type: ignore[attr-defined] # shtab looks for it
    yield "share/bash-completion/completions/zklock", shtab.complete(whole, "bash")
    yield "share/zsh/site-functions/_zklock", shtab.complete(whole, "zsh")
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
