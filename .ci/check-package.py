"""What no other tool checks of a wheel and an sdist: that they are those of this project, whole.

usage: python check-package.py WHEEL SDIST SOURCE
"""

from __future__ import annotations

import email
import sys
import tarfile
import zipfile
from pathlib import Path


def check(wheel: Path, sdist: Path, source: Path) -> list[str]:
    """Return what is wrong."""
    wrong = []

    def insist(what: str, true: object) -> None:
        if not true:
            wrong.append(what)

    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        about = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        entries = archive.read(f"{info}/entry_points.txt").decode()
    # What goes elsewhere than into site-packages: completions and man pages.
    data = info.replace(".dist-info", ".data")
    for shared in (
        "bash-completion/completions/zklock",
        "zsh/site-functions/_zklock",
        "fish/vendor_completions.d/zklock.fish",
        "man/man1/zklock.1",
        "man/man1/zklock-run.1",
    ):
        insist(f"not in the wheel: {shared}", f"{data}/data/share/{shared}" in names)
    tops = {name.split("/")[0] for name in names} - {info, data}
    insist(f"the wheel has one name at the top, zklock, but has {sorted(tops)}", tops == {"zklock"})
    told = {str(each.relative_to(source)) for each in (source / "zklock").rglob("*")}
    files = {name for name in told if (source / name).is_file()}
    insist(f"not in the wheel: {sorted(files - names)}", files <= names)
    insist("py.typed is missing", "zklock/py.typed" in names)
    insist("the wheel is for every system", wheel.name.endswith("-py3-none-any.whl"))

    version = about["Version"]
    insist(
        "the version is that of zklock/_version.py",
        f'"{version}"' in (source / "zklock" / "_version.py").read_text(),
    )
    insist("the licence is an SPDX expression", about["License-Expression"] == "Apache-2.0")
    insist("the licence's text is in it", f"{info}/licenses/LICENSE" in names)
    for field in ("Author", "Summary", "Keywords", "Requires-Python", "Description-Content-Type"):
        insist(f"{field} is missing", about[field])
    needs = [each for each in about.get_all("Requires-Dist", []) if "extra ==" not in each]
    insist(f"the core needs kazoo alone, but {needs}", [each[:5] for each in needs] == ["kazoo"])
    insist("the command is missing", "zklock = zklock.cli:main" in entries)
    insist("the pytest plugin is missing", "[pytest11]" in entries)

    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("LICENSE", "README.md", "docs/changelog.md", "tests/conftest.py", "Makefile"):
        insist(f"not in the sdist: {name}", name in packed)
    insist(f"not in the sdist: {sorted(files - packed)}", files <= packed)
    return wrong


if __name__ == "__main__":
    faults = check(*map(Path, sys.argv[1:]))
    sys.exit("\n".join(f"package: {each}" for each in faults) or None)
