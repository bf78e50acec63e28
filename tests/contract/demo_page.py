"""What docs/demo.md shows of the demo, in a form in which it can be held against a real one.

What differs from run to run is compared by its form: numbers, workers, tokens, shards, versions.
"""

from __future__ import annotations

import re

from tests.contract.support import ROOT

PAGE = (ROOT / "docs" / "demo.md").read_text()
SHOWN = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
"""The demo of the lock, and what is told of the one of the pool."""
COMMANDS = [
    line.removeprefix("$ ").partition("#")[0].split()
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
LEFT_OUT = "…"
HEAD = "head"

_FORMS = [
    (re.compile(r"[0-9a-f]{16}-[0-9]{10}"), "TOKEN"),
    (re.compile(r"/zklock-demo-[0-9a-f]{8}"), "PATH"),
    (re.compile(r"ZooKeeper \S+ \(\w+\)"), "ZOOKEEPER"),
    (re.compile(r"callback: [A-Z_]+"), "callback: REASON"),
    (re.compile(r"\bw[0-9]\b"), "WORKER"),
    (re.compile(r"(?<=  )[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$"), "SHARDS"),
    (re.compile(r"[0-9]+(\.[0-9]+)?"), "NUMBER"),
    (re.compile(r"\s+"), " "),
]


def formed(line: str) -> str:
    """Return the form of a line."""
    for pattern, form in _FORMS:
        line = pattern.sub(form, line)
    return line.strip()


def parts(text: str) -> dict[str, list[str]]:
    """Return the lines of each part of what a demo prints, by the part's title.

    What was folded to the width of a terminal is put together again.
    """
    found: dict[str, list[str]] = {HEAD: []}
    lines = found[HEAD]
    for line in text.splitlines():
        if re.match(r"Act [0-9]+: |Checked$|Failover, ", line):
            lines = found[line] = []
        elif line.startswith(" " * 10) and "Checked" in found and lines[-1] != LEFT_OUT:
            lines[-1] += f" {line.strip()}"
        elif line.strip():
            lines.append(line)
    return found


def forms(text: str) -> dict[str, set[str]]:
    """Return the forms of the lines of each part, but for what was left out."""
    return {
        title: {formed(line) for line in lines if line.strip() != LEFT_OUT}
        for title, lines in parts(text).items()
    }
