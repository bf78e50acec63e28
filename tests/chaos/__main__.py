"""``python -m tests.chaos``: run the nemesis and print the verdict.

1 if a promise was broken; 3 if the servers had lost what they had confirmed, so that nobody knows.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import statistics
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

from tests.chaos.checker import Rule
from tests.chaos.history import load
from tests.chaos.plan import Settings
from tests.chaos.run import decide, run
from tests.chaos.server_log import Decision


def text(decision: Decision) -> str:
    """Return the decision as a table."""
    verdict = decision.verdict
    lines = [f"acquisitions {verdict.grants}, {verdict.kept} of them on kept znodes"]
    for title, counter in (
        ("calls", verdict.asks),
        ("grants ended by", verdict.ends),
        ("writes", verdict.writes),
        ("faults", verdict.faults),
    ):
        lines.append(f"{title} ({counter.total()})")
        lines += [f"  {count:8} {name}" for name, count in sorted(counter.items())]
    agreement = decision.agreement
    for title, margins in (
        ("smallest time from the end of a grant's interval to the next grant", verdict.margins),
        ("smallest time from a loss noticed to the next grant", verdict.noticed),
        ("smallest time from the end of an interval to its znode's, by the log", agreement.margins),
        ("longest wait, with all who were before", decision.waits),
    ):
        lines.append(f"{title}, in s")
        lines += [f"  {seconds:8.4f} {name}" for name, seconds in sorted(margins.items())]
    lines.append(f"znodes of contenders in the log of the servers: {agreement.nodes}")
    if asked := sorted(agreement.asked, key=lambda each: each.seconds):
        typical = statistics.median(each.seconds for each in asked)
        lines.append(f"waits for kept locks: {len(asked)}, median {typical:.4f} s, longest:")
        lines.append(f"  {asked[-1]}")
    lines.append(f"servers: {', '.join(decision.versions)}")
    lines.append(f"times that the servers had lost what they had confirmed: {decision.forgotten}")
    lines.append(f"violations {len(decision.violations)}")
    for rule in Rule:
        broken = [violation for violation in decision.violations if violation.rule is rule]
        lines.append(f"  {len(broken):8} {rule.value}")
        lines += [f"           {violation}" for violation in broken[:20]]
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
