"""mypy and pyright accept a program of a user, and find what is wrong in another."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import zklock

ROOT = Path(zklock.__file__).parents[1]
PROGRAM = Path(__file__).with_name("user_program.py")
WRONG = Path(__file__).with_name("wrong_program.py.txt")
CHECKERS = pytest.mark.thorough(
    "type checkers that begin without a cache; make types reads the right program with the others"
)


@CHECKERS
def test_a_type_checker_of_a_user_knows_what_is_right_and_what_is_wrong(tmp_path: Path) -> None:
    """No setting of this project is in force. What mypy finds in the package itself does not count,
    as it is not reported where the package is installed."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG.read_text())
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"),
            *(f"--cache-dir={tmp_path / 'cache'}", "--no-pretty", "--hide-error-context"),
            *(str(PROGRAM), str(wrong)),
        ],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": ""},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    found = {
        (Path(file).name, int(line), code)
        for file, line, code in re.findall(
            r"^(.+?):(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE
        )
        if Path(file).name in {wrong.name, PROGRAM.name}
    }
    marked = {
        (wrong.name, number, line.rpartition("# ")[2])
        for number, line in enumerate(wrong.read_text().splitlines(), start=1)
        if "  # " in line
    }
    assert found == marked, done.stdout + done.stderr


@CHECKERS
def test_pyright_finds_the_same(tmp_path: Path) -> None:
    """The lines that mypy refuses, and no other: its codes are its own."""
    wrong, program = tmp_path / "wrong.py", tmp_path / PROGRAM.name
    wrong.write_text(WRONG.read_text())
    program.write_text(PROGRAM.read_text())
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT)], "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "basedpyright", "--outputjson", "--level", "error"),
            *("--pythonpath", sys.executable, "--project", str(tmp_path)),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    told = json.loads(done.stdout)["generalDiagnostics"]
    found = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in told}
    marked = {
        (wrong.name, number)
        for number, line in enumerate(wrong.read_text().splitlines(), start=1)
        if "  # " in line
    }
    assert found == marked, done.stdout + done.stderr
