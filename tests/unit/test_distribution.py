"""What is built of the project: a source distribution, and of that a wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import zklock
from zklock.cli import parser

ROOT = Path(__file__).parents[2]
FILES = ("LICENSE", "README.md", "pyproject.toml", "setup.cfg", "setup.py")
pytestmark = pytest.mark.thorough("packages that are built: they change with the build alone")
SHARED = {
    "share/bash-completion/completions/zklock",
    "share/zsh/site-functions/_zklock",
    "share/fish/vendor_completions.d/zklock.fish",
    "share/man/man1/zklock.1",
    *(f"share/man/man1/zklock-{name}.1" for name in parser.COMMANDS),
}


def run(*arguments: str | Path, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def one(files: Sequence[Path]) -> Path:
    (found,) = files
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both; the wheel was built of the source distribution."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("out")
    for name in FILES:
        shutil.copy(ROOT / name, source)
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "zklock", source / "zklock", ignore=unwanted)
    # Without an environment of its own: pip makes one, wherever it installs the project.
    run("build", "--no-isolation", "--outdir", out, folder=source)
    return out


def test_the_source_distribution_has_what_the_build_needs(built: Path) -> None:
    with tarfile.open(one([*built.glob("*.tar.gz")])) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(FILES) <= names
    assert "zklock/cli/shipped.py" in names
    assert "zklock/testing/compose/image/Dockerfile" in names


def test_the_wheel_has_the_package_and_what_is_shared(built: Path) -> None:
    with zipfile.ZipFile(one([*built.glob("*-py3-none-any.whl")])) as archive:
        names = set(archive.namelist())
    data = f"zklock_recipes-{zklock.__version__}.data/data/"
    assert {name.removeprefix(data) for name in names if name.startswith(data)} == SHARED
    modules = {
        f"zklock/{file.relative_to(ROOT / 'zklock')}" for file in ROOT.glob("zklock/**/*.py")
    }
    assert modules == {name for name in names if name.endswith(".py")}


def test_it_is_installed_where_shells_and_man_look(built: Path, tmp_path: Path) -> None:
    wheel = one([*built.glob("*.whl")])
    run(
        *("pip", "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed"),
        *("--no-compile", "--no-warn-script-location", "--prefix", tmp_path, wheel),
        folder=tmp_path,
    )
    assert [name for name in SHARED if not (tmp_path / name).is_file()] == []
