"""The ``zklock`` command: one module for each subcommand.

``parser`` finds the subcommand. ``view`` is what the subcommands that look know. ``supervisor``
runs by itself, between ``zklock run`` and its command.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, ``sys.argv`` by default, and return the exit status."""
    # Imported here, so that the demo's worker processes do not load every command.
    from zklock.cli.ending import interrupts_kill  # noqa: PLC0415

    with interrupts_kill():
        from zklock.cli import parser  # noqa: PLC0415

    return parser.main(argv)
