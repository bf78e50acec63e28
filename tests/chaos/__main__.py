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
from tests.chaos.run import Settings, decide, run
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
    lines.append("smallest time from the end of a grant's interval to the next grant, in s")
    lines += [f"  {margin.seconds:8.4f} {by}" for by, margin in verdict.margins.items()]
    lines.append("smallest time from a loss noticed to the next grant, in s")
    lines += [
        f"  {margin.seconds:8.4f} {by}: {margin.before}, then {margin.after}"
        for by, margin in sorted(verdict.noticed.items())
    ]
    lines.append(f"longest time from the end of a lease to its report: {verdict.late:.4f} s")
    lines.append(f"listings in which a server brought deleted nodes back: {verdict.came_back}")
    lines.append(f"znodes of contenders in the log of the servers: {decision.agreement.nodes}")
    if decision.agreement.nodes:
        lines.append("smallest time from the end of a grant's interval to its deletion there, in s")
        margins = sorted(decision.agreement.margins.items())
        lines += [f"  {seconds:8.4f} {ended}" for ended, seconds in margins]
        lines.append("longest time that another waited for a kept lock beyond its last body, in s")
        for ended, asked in sorted(decision.agreement.asked.items()):
            longest = max(asked, key=lambda each: each.seconds)
            typical = statistics.median(each.seconds for each in asked)
            lines.append(
                f"  {longest.seconds:8.4f} {ended}, of {len(asked)}, median {typical:.4f}: "
                f"{longest.other} behind {longest.keeper}"
            )
    waited = [f"{seconds:.3f} s {who}" for who, seconds in sorted(decision.strangers.items())]
    lines.append(f"longest wait of a stranger, with all who were before it: {', '.join(waited)}")
    waited = [f"{seconds:.3f} s {folder}" for folder, seconds in sorted(decision.waits.items())]
    lines.append(f"longest wait of a worker: {', '.join(waited)}")
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
    parser.add_argument("--session-timeout", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--tick-time", type=int, default=500, metavar="MILLISECONDS")
    parser.add_argument("--sync-limit", type=int, default=10, metavar="TICKS")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--upgrade", metavar="JARS", help="of a release for each server in turn")
    parser.add_argument("--earlier", action="store_true", help="half are of the release before")
    parser.add_argument("--folder", type=Path, help="for the histories; by default a new one")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="decide about an earlier run")
    chosen = parser.parse_args()
    if chosen.check is not None:
        (noted,) = (event for event in load(chosen.check) if event.kind == "settings")
        known = {field.name for field in fields(Settings)}
        settings = Settings(**{key: noted[key] for key in known})
        decision = decide(settings, chosen.check)
        folder = chosen.check
    else:
        logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
        for name in ("chaos", "zklock.testing"):
            logging.getLogger(name).setLevel(logging.INFO)
        settings = Settings(
            seed=chosen.seed or secrets.token_hex(4),
            seconds=chosen.minutes * 60,
            backend=chosen.backend,
            session_timeout=chosen.session_timeout,
            tick_time=chosen.tick_time,
            sync_limit=chosen.sync_limit,
            workers=chosen.workers,
            upgrade=chosen.upgrade,
            earlier=chosen.earlier,
        )
        folder = chosen.folder or Path(tempfile.mkdtemp(prefix="zklock-chaos-"))
        decision = run(settings, folder)
    print(f"\nseed {settings.seed}, {settings.seconds:g} s, histories in {folder}")
    print(text(decision))
    if decision.violations and decision.forgotten:
        return 3
    return 1 if decision.violations else 0


if __name__ == "__main__":
    sys.exit(main())
