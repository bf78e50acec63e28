"""What the scripts of the longer runs share, and the table that .ci/newest keeps."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "newest-row.py"
ROWS = runpy.run_path(str(SCRIPT))


def row(page: Path, *cells: str) -> None:
    subprocess.run([sys.executable, SCRIPT, page, *cells], check=True)


def test_a_part_that_is_played_again_keeps_its_place(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Above\n\n{ROWS['BEGIN']}| part | on |\n|---|---|\n{ROWS['END']}\nBelow\n")
    empty = page.read_text()
    row(page, "servers", "ZooKeeper 1")
    row(page, "Python 3.1", "3.1.1")
    row(page, "servers", "ZooKeeper 2")
    filled = "|---|---|\n| servers | ZooKeeper 2 |\n| Python 3.1 | 3.1.1 |\n"
    assert page.read_text() == empty.replace("|---|---|\n", filled)


def test_the_page_of_versions_has_such_a_table() -> None:
    page = (ROOT / "docs" / "versions.md").read_text()
    last = ROWS["with_row"](page, ["part", "on", "outcome", "day"])
    assert last == page


def test_the_libraries_of_all_extras_are_told() -> None:
    told = ROWS["libraries"]()
    assert {"APScheduler", "celery", "redis", "SQLAlchemy", "textual", "tooz", "asyncpg"} <= {*told}
    assert "pytest" not in told


def shared(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", f". {ROOT / '.ci' / 'shared'}; {script}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_command_is_played_on_jars_with_all_its_words(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "get-zookeeper").write_text("")
    told = 'told() { echo "$ZKLOCK_ZOOKEEPER_JARS" "$@"; }'
    played = shared(f"{told}; with_jars 3.6 told one two", tmp_path)
    assert played.stdout == f"{tmp_path}/.zookeeper/3.6 one two\n"


def test_one_that_fails_keeps_no_other_from_its_turn(tmp_path: Path) -> None:
    played = shared("each test 1 '' 2", tmp_path)
    assert played.returncode == 1
    assert played.stdout.splitlines()[-1].startswith("== failed:  (")
    assert "== 2 (" in played.stdout
    assert shared("each test 1 2", tmp_path).returncode == 0
