"""Play the questions: ``python -m tests.compare [USE…] [--write | --add] [--venvs FOLDER]``.

Fails if a cell is not what ``results.json`` has; ``--write`` writes there what was seen. ``--add``
keeps what was there beside it, for a cell that depends on who is first.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import traceback
import venv
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import zklock
from tests.compare.locks import Use, uses
from tests.compare.questions import QUESTIONS, Cell, playing
from tests.compare.stores import STORES, Store
from tests.contract.fencing.databases import Unavailable

Row: TypeAlias = dict[str, Any]

RESULTS = Path(__file__).with_name("results.json")
AT_ONCE = 5
SECONDS = re.compile(r"(\d+\.\d) s")
FACTOR, MORE = 3.0, 5.0
"""Seconds are as before up to this factor, or if they differ by no more than this."""


_making: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)


def environment(folder: Path, use: type[Use]) -> Path:
    """Return the interpreter of an environment with what the library needs."""
    place = folder / re.sub(r"[^\w.]+", "-", "+".join(use.packages))
    python = place / "bin" / "python"
    with _making[place]:
        if not (place / "done").exists():
            venv.create(place, with_pip=True)
            install = ["-m", "pip", "-q", "--disable-pip-version-check", "install", *use.packages]
            subprocess.run([python, *install], check=True, stderr=subprocess.PIPE)
            (place / "done").touch()
    return python


def cell(name: str, letter: str, python: Path, server: Store) -> dict[str, str]:
    """Play one question for one lock."""
    try:
        with playing(python, uses()[name], server) as play:
            found = QUESTIONS[letter](play)
    except Exception as error:
        traceback.print_exc()
        found = Cell("?", f"not run: {error}")
    print(f"{name} {letter}: {found.mark} {found.says}", flush=True)
    return found._asdict()


def row(name: str, use: type[Use], folder: Path) -> Row:
    """Play all questions for one lock."""
    try:
        python = environment(folder, use)
        with STORES[use.store](use.store, python) as server:
            cells = {each: cell(name, each, python, server) for each in QUESTIONS}
    except (Unavailable, OSError, subprocess.CalledProcessError) as error:
        return {"lock": use.title, "not run": str(error)}
    versions = [each.replace("==", " ") for each in use.packages]
    if use.title.startswith("zklock"):
        versions.insert(0, f"zklock {zklock.__version__}")
    if server.version:
        versions.append(f"{use.store} {server.version}")
    return {"lock": use.title, "made": use.made, "versions": versions, "cells": cells}


def alike(old: str, new: str) -> bool:
    """Whether two texts differ in nothing but seconds, and in these not much."""
    if SECONDS.sub("", old) != SECONDS.sub("", new):
        return False
    pairs = zip(map(float, SECONDS.findall(old)), map(float, SECONDS.findall(new)), strict=True)
    return all(abs(a - b) <= MORE or max(a, b) <= FACTOR * min(a, b) for a, b in pairs)


def known_as(before: Row, letter: str, cell: dict[str, str]) -> bool:
    """Whether a cell is what was recorded, or one of several things that were."""
    was = before["cells"][letter]
    return any(
        each["mark"] == cell["mark"] and alike(each["says"], cell["says"])
        for each in (was, *was.get("or", ()))
    )


def changes(old: dict[str, Row], new: dict[str, Row]) -> list[str]:
    """Return what is no longer as it was."""
    told = []
    for name, found in new.items():
        before = old.get(name, {})
        if "cells" not in found or "cells" not in before:
            if found != before:
                told.append(f"{name}: was {before}, is {found}")
            continue
        told += [
            f"{name} ({letter}): was {before['cells'][letter]}, is {cell}"
            for letter, cell in found["cells"].items()
            if not known_as(before, letter, cell)
        ]
    return told


def added(old: dict[str, Row], new: dict[str, Row]) -> dict[str, Row]:
    """Return the old rows; a cell that was different has both."""
    for name, found in new.items():
        before = old.setdefault(name, found)
        for letter, cell in found.get("cells", {}).items():
            if not known_as(before, letter, cell):
                before["cells"][letter].setdefault("or", []).append(cell)
    return old


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.compare", description=__doc__)
    parser.add_argument("uses", nargs="*", metavar="USE")
    parser.add_argument("--write", action="store_true", help="take what was seen for right")
    parser.add_argument("--add", action="store_true", help="the same, beside what was seen before")
    parser.add_argument("--venvs", type=Path, help="a folder that keeps the environments")
    options = parser.parse_args()
    known = uses()
    names = options.uses or list(known)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        venvs = options.venvs or Path(folder)
        rows = pool.map(lambda name: row(name, known[name], venvs), names)
        found = dict(zip(names, rows, strict=True))
    recorded = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": {}}
    changed = changes(recorded["rows"], found)
    print(*changed, sep="\n")
    if options.write or options.add:
        old = recorded["rows"]
        rows_by_name = added(old, found) if options.add else old | found
        day = datetime.now(UTC).date().isoformat()
        kept = {name: rows_by_name[name] for name in known if name in rows_by_name}
        text = json.dumps({"day": day, "rows": kept}, indent=1, ensure_ascii=False)
        RESULTS.write_text(text + "\n")
        return 0
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
