"""From the arguments to a command; and what the end of every command has in common."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn

import zklock
from zklock.cli import settings
from zklock.cli.ending import Ended, interrupts_kill
from zklock.cli.status import Status

COMMANDS = {
    "run": "run a command while holding a lock",
    "elect": "run a command while leading an election",
    "show": "show the holder and the queue of a lock",
    "ls": "list the locks below a node",
    "top": "show all locks on a live screen",
    "watch": "print what happens in a queue",
    "wait": "wait until a lock is free",
    "graph": "show who waits for whom, and deadlocks",
    "doctor": "find problems, and say what to do",
    "check": "tell whether a token still holds its lock",
    "break": "take a lock from its holder",
    "gc": "remove the nodes of locks that nobody uses",
    "exporter": "serve metrics for Prometheus",
    "demo": "watch holders being killed, paused and cut off",
    "dev": "run a ZooKeeper for a first try, never for production",
}
"""The commands and their help. A command's module is loaded only to run that command."""

_MODULES = {"ls": "list", "break": "break_"}
"""The modules that are not named as their command."""

_OFFLINE = {"demo", "dev"}
"""The commands without the settings of a connection."""


def module_of(command: str) -> str:
    """Return the name of a command's module."""
    return _MODULES.get(command, command)


class _Formatter(argparse.HelpFormatter):
    """Leaves the settings of the connection out of the usage: they would hide all else."""

    def add_usage(
        self, usage: str | None, actions: Iterable[argparse.Action], *others: Any, **more: Any
    ) -> None:
        groups = {it: getattr(it, "container", None) for it in actions}
        shown = [
            it for it, group in groups.items() if getattr(group, "title", "") != settings.GROUP
        ]
        super().add_usage(usage, shown, *others, **more)


class _Parser(argparse.ArgumentParser):
    """Takes no abbreviation: ``--digest`` is none of ``--digest-file``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False, formatter_class=_Formatter)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(Status.USAGE, f"{self.prog}: {message}\n")


def frame() -> argparse.ArgumentParser:
    """Return a parser that knows what stands before the command."""
    parser = _Parser(
        prog="zklock",
        description="Fair, fenced locks on ZooKeeper.",
        epilog="The options of the connection, such as --hosts, and -v may stand before COMMAND or "
        "behind it.",
    )
    parser.add_argument("--version", action="version", version=f"zklock {zklock.__version__}")
    settings.add_verbose(parser)
    return parser


def build(*chosen: str | None) -> argparse.ArgumentParser:
    """Return a parser that knows the arguments of the chosen commands, and of no other.

    Its results have ``run``, the function of the command.
    """
    parser = frame()
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        if name in chosen:
            from zklock.cli import connection  # noqa: PLC0415 - '--help' needs none

            module = import_module(f"zklock.cli.{module_of(name)}")
            command = commands.add_parser(name, help=text, description=module.DESCRIPTION)
            module.add_arguments(command)
            if name not in _OFFLINE:
                connection.add_options(command)
            command.set_defaults(run=module.run, parser=command)
        else:
            commands.add_parser(name, help=text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run the command, return its exit status."""
    with interrupts_kill():
        _fill_standard()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # an identity may be any text
        arguments = _behind_the_command(sys.argv[1:] if argv is None else argv)
        chosen = next((each for each in arguments if not each.startswith("-")), None)
        options = build(chosen).parse_args(arguments)
        import logging  # noqa: PLC0415 - '--help' needs none

        from zklock._ground.records import log_fields  # noqa: PLC0415
        from zklock.cli.saying import LogFormatter, say  # noqa: PLC0415 - nor this

    log = logging.getLogger("zklock")
    handler: logging.Handler = logging.NullHandler()
    if options.verbose:
        handler = logging.StreamHandler()
        handler.setFormatter(LogFormatter(logging.BASIC_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        settle: Callable[[argparse.Namespace], None] | None = getattr(options, "settle", None)
        if settle is not None:
            settle(options)
        status = int(options.run(options))
        _flush()
    except Ended as ended:
        return ended.status
    except KeyboardInterrupt:
        return Status.INTERRUPTED
    except BrokenPipeError:
        return Status.BROKEN_PIPE
    except Exception as error:
        status, sentence = _explain(error)
        if status in {Status.FAILED, Status.SOFTWARE, Status.SYSTEM}:
            status = getattr(options, "failed", status)
        known = {each: getattr(error, each, None) for each in ("path", "token")}
        log.info("%s", sentence, exc_info=error, extra=log_fields(**known))
        say(None, sentence)
    finally:
        _drop_what_nobody_takes()
    return status


def _flush() -> None:
    """Have what was printed arrive; a terminal that has hung up changes no status.

    Where nothing was printed this writes nothing: the output may be of no use any more.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def _drop_what_nobody_takes() -> None:
    """Forget output whose reader, terminal or room on the disk has gone.

    The interpreter flushes once more at its end, and would change the exit status.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fill_standard() -> None:
    """Have a stream in place of each standard one that is closed.

    It takes the number of the closed descriptor, and a command of ``run`` does not inherit it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115


def _behind_the_command(argv: Sequence[str]) -> Sequence[str]:
    """Return the arguments; options that stand before the command move behind its name."""
    before, moved, left = [], [], [*argv]
    while left and left[0].startswith("-"):
        option = left.pop(0)
        name, given, _ = option.partition("=")
        if name not in (*settings.MOVABLE, *settings.SWITCHES):
            before.append(option)
            continue
        moved.append(option)
        if not given and name in settings.MOVABLE:
            moved += left[:1]
            del left[:1]
    return [*before, *left[:1], *moved, *left[1:]]


def _explain(error: Exception) -> tuple[Status, str]:
    """Return the exit status for an error, and what to say."""
    from kazoo.exceptions import KazooException, NoAuthError  # noqa: PLC0415 - '--help' needs none

    what, name = str(error), type(error).__name__
    kinds: dict[type[Exception], Status] = {
        zklock.NoAnswer: Status.UNAVAILABLE,
        zklock.AccessDenied: Status.DENIED,
        zklock.ZkLockError: Status.FAILED,
        NoAuthError: Status.DENIED,
        KazooException: Status.UNAVAILABLE,
        ValueError: Status.USAGE,
        OSError: Status.SYSTEM,
        MemoryError: Status.SYSTEM,
    }
    otherwise = Status.SYSTEM if what.startswith(_NO_THREAD) else Status.SOFTWARE
    fitting = (status for kind, status in kinds.items() if isinstance(error, kind))
    status = next(fitting, otherwise)
    if isinstance(error, NoAuthError):
        what = "ZooKeeper's ACLs forbid reading this: use credentials that may"
    elif isinstance(error, KazooException):
        what = f"ZooKeeper refused the request ({name}), or gave no answer: check it, and try again"
    elif status == Status.SYSTEM:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        limits = "make room" if full else "raise its limits"
        what = f"the system refused a resource ({what or name}): {limits}"
    elif status == Status.SOFTWARE:
        what = f"{name}: {what}: this is a bug in zklock: please report what 'zklock -v' logs"
    return status, what


_NO_THREAD = "can't start new thread"  # Python's RuntimeError has no type or number of its own
