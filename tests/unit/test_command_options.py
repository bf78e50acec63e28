"""The command's options and exit statuses are pinned: a change is a decision, not an accident.

``python -m tests.unit.test_command_options`` writes the pinned text anew. Look at the difference:
what goes or changes there needs the procedure of docs/versions.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from zklock.cli.parser import COMMANDS, build
from zklock.cli.status import Status

PINNED = Path(__file__).with_name("command_options.txt")


def option(action: argparse.Action) -> str:
    """Return what can be written for one argument, and what it means if it is left out."""
    names = ", ".join(action.option_strings) or f"<{action.dest}>"
    takes = {"None": " VALUE", "0": ""}.get(f"{action.nargs}", f" VALUE({action.nargs})")
    chosen = f" of {{{', '.join(map(str, action.choices))}}}" if action.choices else ""
    usual = "" if action.default in (None, argparse.SUPPRESS) else f" = {action.default!r}"
    return f"  {names}{takes}{chosen}{usual}{' required' if action.required else ''}"


def options(parser: argparse.ArgumentParser) -> list[str]:
    """Return the arguments of a parser, without those of the commands below it."""
    plain = (it for it in parser._actions if not isinstance(it, argparse._SubParsersAction))
    return sorted(option(it) for it in plain)


def described() -> str:
    """Return each command with its options, and the exit statuses, one a line."""
    parser = build(*COMMANDS)
    (commands,) = (it for it in parser._actions if isinstance(it, argparse._SubParsersAction))
    found = {name: options(commands.choices[name]) for name in COMMANDS}
    connecting = [set(each) for each in found.values() if "  --tls, --no-tls" in each]
    common = set.intersection(*connecting)
    lines = ["# zklock", *options(parser), "# all that connect", *sorted(common)]
    for name, each in found.items():
        joined = " (connects)" if common <= {*each} else ""
        lines += [f"# zklock {name}{joined}"]
        lines += [line for line in each if not joined or line not in common]
    lines += ["# exit statuses", *(f"{it.value} {it.name}" for it in Status)]
    return "\n".join(lines) + "\n"


def test_the_options_and_exit_statuses_are_those_that_are_pinned() -> None:
    assert described().splitlines() == PINNED.read_text().splitlines(), (
        "an option or an exit status has changed: see the docstring of this file"
    )


if __name__ == "__main__":
    PINNED.write_text(described())
