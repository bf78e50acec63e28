"""``python -m tests.chaos``: run the nemesis and print the verdict.

1 if a promise was broken; 3 if the servers had lost what they had confirmed, so that nobody knows.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

from tests.chaos.history import load
from tests.chaos.plan import Settings
from tests.chaos.run import decide, run
from tests.chaos.server_log import Decision


def text(decision: Decision) -> str:
    """Return what was decided, and how much there was to decide about."""
    verdict = decision.verdict
    lines = [f"acquisitions {verdict.grants}, {verdict.kept} of them on kept znodes"]
    lines.append(f"znodes of contenders in the log of the servers: {decision.agreement.nodes}")
    for title in ("asks", "ends", "writes", "faults"):
        counter = getattr(verdict, title)
        each = ", ".join(f"{count} {name}" for name, count in sorted(counter.items()))
        lines.append(f"{title} {counter.total()}: {each}")
    lines.append(f"times that the servers had lost what they had confirmed: {decision.forgotten}")
    lines.append(f"violations {len(decision.violations)}")
    lines += map(str, decision.violations[:100])
    return "\n".join(lines)


def main() -> int:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", help="as printed by an earlier run; by default a new one")
    parser.add_argument("--backend", choices=("container", "java"))
    for name, kind in (("session-timeout", float), ("tick-time", int), ("sync-limit", int)):
        parser.add_argument(f"--{name}", type=kind, help="see Settings")
    parser.add_argument("--upgrade", metavar="JARS", help="of a release for each server in turn")
    parser.add_argument("--earlier", action="store_true", help="half are of the release before")
    parser.add_argument("--folder", type=Path, help="for the histories; by default a new one")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="decide about an earlier run")
    chosen = parser.parse_args()
    known = {each.name for each in fields(Settings)}
    if chosen.check is not None:
        (noted,) = (event.data for event in load(chosen.check) if event.kind == "settings")
        settings = Settings(**{key: noted[key] for key in known})
        folder = chosen.check
        decision = decide(settings, folder)
    else:
        logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
        for name in ("chaos", "zklock.testing"):
            logging.getLogger(name).setLevel(logging.INFO)
        said = {key: it for key, it in vars(chosen).items() if key in known and it is not None}
        said.setdefault("seed", secrets.token_hex(4))
        settings = Settings(**said, seconds=chosen.minutes * 60)
        folder = chosen.folder or Path(tempfile.mkdtemp(prefix="zklock-chaos-"))
        decision = run(settings, folder)
    print(f"\nseed {settings.seed}, {settings.seconds:g} s, histories in {folder}")
    print(text(decision))
    if decision.violations and decision.forgotten:
        return 3
    return 1 if decision.violations else 0


if __name__ == "__main__":
    sys.exit(main())
