"""``manage.py run_singleton COMMAND``: runs another command on one host at a time."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from kazoo.client import KazooClient
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from zklock.contrib.django.configuration import configuration

_VARIABLES = {
    "start_timeout": "ZKLOCK_CONNECT_TIMEOUT",
    "ca": "ZKLOCK_TLS_CA",
    "certfile": "ZKLOCK_TLS_CERT",
    "keyfile": "ZKLOCK_TLS_KEY",
    "keyfile_password": "ZKLOCK_TLS_KEY_PASSWORD",
    "sasl_options.mechanism": "ZKLOCK_SASL",
    "sasl_options.username": "ZKLOCK_SASL_USER",
    "sasl_options.principal": "ZKLOCK_SASL_USER",
    "sasl_options.password": "ZKLOCK_SASL_PASSWORD",
    "auth_data.digest": "ZKLOCK_DIGEST",
}


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
        environ = _environ(wanted.options)
        words = ["elect", "--again"] if options["again"] else ["run"]
        words += ["--hosts", wanted.hosts, "--session-timeout", f"{wanted.timeout:g}"]
        words += ["--nonblock"] if options["nonblock"] else []
        for name in ("wait", "at_least", "grace"):
            if options[name] is not None:
                words += [f"--{name.replace('_', '-')}", options[name]]
        words += [options["path"] or wanted.path(command[0]), "--", *_manage(), *command]
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, "-m", "zklock.cli", *words], environ)


def _environ(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment in which ``zklock run`` connects with these options of ``connect()``.

    They are not in the command line: others can read it.
    """
    usual = inspect.signature(KazooClient.__init__).parameters
    left = {
        name: value
        for name, value in _flat(options)
        if name not in usual or value != usual[name].default
    }
    found = {}
    if "use_ssl" in options:
        # Where it is not said, the command checks the name, and kazoo does not.
        checked = left.pop("check_hostname", False)
        found["ZKLOCK_TLS"] = "yes" if left.pop("use_ssl", False) else "no"
        found["ZKLOCK_TLS_CHECK_HOSTNAME"] = "yes" if checked else "no"
    if left.get("default_acl") in (CREATOR_ALL_ACL, OPEN_ACL_UNSAFE):
        acl = "creator" if left.pop("default_acl") == CREATOR_ALL_ACL else "open"
        found["ZKLOCK_ACL"] = acl
    for name in left.keys() & _VARIABLES:
        if isinstance(left[name], str | os.PathLike | int | float):
            found[_VARIABLES[name]] = str(left.pop(name))
    if left:
        raise CommandError(
            f"ZKLOCK's OPTIONS have what 'zklock run' cannot do: {', '.join(sorted(left))}: leave "
            "it out, or use zklock.contrib.django.lock() in the command itself"
        )
    others = {name for name in os.environ if name.removesuffix("_FILE") in found}
    return {**{name: os.environ[name] for name in os.environ.keys() - others}, **found}


def _flat(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        match name, value:
            case "sasl_options", {"mechanism": "DIGEST-MD5" | "GSSAPI"}:
                yield from ((f"sasl_options.{key}", value[key]) for key in value)
            case "auth_data", [("digest", digest)]:
                yield "auth_data.digest", digest
            case _:
                yield name, value


def _manage() -> list[str]:
    """Return how to start ``manage.py`` again; the settings are in the environment."""
    program = Path(sys.argv[0])
    if program.suffix == ".py" and program.name != "__main__.py":
        return [sys.executable, str(program.resolve())]
    return [sys.executable, "-m", "django"]
