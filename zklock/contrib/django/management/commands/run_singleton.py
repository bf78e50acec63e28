"""``manage.py run_singleton COMMAND``: runs another command on one host at a time."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from zklock.contrib.django.configuration import configuration


class Command(BaseCommand):
    """Becomes ``zklock run`` (or ``elect``) with the other command as its child."""

    help = (
        "Wait for a lock, run another command of manage.py while it is held, and release the lock. "
        "The command gets SIGTERM when the lock is about to be lost, then SIGKILL: it is gone "
        "before another host can run it. The exit status is that of the command; 75 if the lock "
        "was not got, 79 if it was lost. 'zklock run --help' says more."
    )
    requires_system_checks: list[str] = []  # noqa: RUF012 - as Django declares it

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options; they stand before the other command."""
        waiting = parser.add_mutually_exclusive_group()
        waiting.add_argument(
            "-n", "--nonblock", action="store_true", help="do not wait if another host runs it"
        )
        waiting.add_argument(
            "-w", "--wait", metavar="SECONDS", help="wait no longer than this; above 0"
        )
        waiting.add_argument(
            "--again", action="store_true",
            help="for a service: when it has ended or the lock is lost, wait and run it again",
        )  # fmt: skip
        parser.add_argument(
            "--at-least", metavar="SECONDS", help="keep the lock for so long, for a job of cron"
        )
        parser.add_argument("--path", help="of the lock; default: ROOT and the command's name")
        parser.add_argument("--grace", metavar="SECONDS", help="between SIGTERM and SIGKILL")
        parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...")

    def handle(self, *args: Any, **options: Any) -> None:
        """Replace this process by ``zklock``."""
        del args
        command = [word for at, word in enumerate(options["command"]) if at or word != "--"]
        if not command:
            raise CommandError("say which command to run: manage.py run_singleton COMMAND")
        if options["again"] and options["at_least"]:
            raise CommandError("--at-least is for jobs that end: leave out --again")
        wanted = configuration()
        if wanted.options:
            raise CommandError(
                "ZKLOCK's OPTIONS cannot be handed on: use zklock.contrib.django.lock() in the "
                "command itself"
            )
        words = ["elect", "--again"] if options["again"] else ["run"]
        words += ["--hosts", wanted.hosts, "--session-timeout", f"{wanted.timeout:g}"]
        words += ["--nonblock"] if options["nonblock"] else []
        for name in ("wait", "at_least", "grace"):
            if options[name] is not None:
                words += [f"--{name.replace('_', '-')}", options[name]]
        words += [options["path"] or wanted.path(command[0]), "--", *_manage(), *command]
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-m", "zklock.cli", *words])


def _manage() -> list[str]:
    """Return how to start ``manage.py`` again; the settings are in the environment."""
    program = Path(sys.argv[0])
    if program.suffix == ".py" and program.name != "__main__.py":
        return [sys.executable, str(program.resolve())]
    return [sys.executable, "-m", "django"]
