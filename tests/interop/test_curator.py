"""Where Curator is looked for, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.curator import DEBIAN_JARS, PACKAGES, Curator, CuratorUnavailable


def jdk(folder: Path) -> dict[str, str]:
    """Return an environment with commands that look like a JDK's."""
    for name in ("java", "javac"):
        command = folder / "jdk" / "bin" / name
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text("#!/bin/sh\n")
        command.chmod(0o755)
    return {"JAVA_HOME": str(folder / "jdk")}


def debian(folder: Path) -> Path:
    """Return a folder with empty jars, named as Debian names them."""
    for name in (*DEBIAN_JARS, "curator-recipes-5.4.0.jar"):
        (folder / name).write_bytes(b"PK\x05\x06" + bytes(18))  # an archive of nothing
    return folder


def test_debian_is_taken_without_the_variable(tmp_path: Path) -> None:
    found = Curator.find(jdk(tmp_path), debian(tmp_path))
    assert found.classpath.split(":") == [str(tmp_path / name) for name in DEBIAN_JARS]
    assert found.version == "5.4.0"


def test_the_variable_comes_first(tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "curator-recipes-5.7.1.jar").write_bytes(b"PK\x05\x06" + bytes(18))
    environ = jdk(tmp_path) | {"ZKLOCK_CURATOR_JARS": str(folder)}
    found = Curator.find(environ, debian(tmp_path))
    assert (found.classpath, found.version) == (f"{folder}/*", "5.7.1")


def test_a_variable_that_leads_nowhere_is_not_passed_over(tmp_path: Path) -> None:
    environ = jdk(tmp_path) | {"ZKLOCK_CURATOR_JARS": str(tmp_path / "jars")}
    with pytest.raises(CuratorUnavailable, match=r"ZKLOCK_CURATOR_JARS=.*/jars: not one curator"):
        Curator.find(environ, debian(tmp_path))


def test_without_jars_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(
        CuratorUnavailable, match=f"no jars of Curator: .*apt-get install {PACKAGES}"
    ):
        Curator.find(jdk(tmp_path), tmp_path)


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    environ = jdk(tmp_path)
    (tmp_path / "jdk" / "bin" / "javac").unlink()
    with pytest.raises(CuratorUnavailable, match=f"no Java compiler: .*apt-get install {PACKAGES}"):
        Curator.find(environ, debian(tmp_path))
