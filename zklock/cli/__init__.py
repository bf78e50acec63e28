"""The ``zklock`` command; one subcommand a module."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, ``sys.argv`` by default, and return the exit status."""
    # Here, so that the demo's worker processes do not load every command.
    from zklock.cli import parser  # noqa: PLC0415

    return parser.main(argv)
