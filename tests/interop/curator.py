"""Where Apache Curator and a Java compiler are found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

JARS_VARIABLE = "ZKLOCK_CURATOR_JARS"
DEBIAN = Path("/usr/share/java")
# Curator's names the rest in its class path, but for the logger and those that ZooKeeper's omits.
DEBIAN_JARS = ("curator-recipes.jar", "slf4j-simple.jar", "netty-codec.jar", "netty-resolver.jar")
PACKAGES = (
    "default-jdk-headless libcurator-recipes-java libcurator-framework-java "
    "libcurator-client-java libnetty-java"
)
HINT = (
    f"install a JDK and Curator (Debian: apt-get install {PACKAGES}), or set {JARS_VARIABLE} to a "
    "folder with the jars of Curator and ZooKeeper (such as .ci/get-zookeeper 3.9 makes)"
)
SOURCE = Path(__file__).with_name("Contender.java")


class CuratorUnavailable(Exception):
    """There is no Curator, or no Java compiler: the message says what to install."""


@dataclass(frozen=True, slots=True)
class Curator:
    """Curator's recipes, and the commands of a JDK; ``version`` is Curator's."""

    javac: str
    java: str
    classpath: str
    version: str

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ, debian: Path = DEBIAN) -> Curator:
        """Look for jars in ``ZKLOCK_CURATOR_JARS``, then among Debian's; for Java in JAVA_HOME."""
        if folder := environ.get(JARS_VARIABLE):
            root = Path(folder).expanduser().resolve()
            jars = list(root.glob("curator-recipes-*.jar"))
            if len(jars) != 1:
                raise CuratorUnavailable(f"{JARS_VARIABLE}={folder}: not one curator-recipes-*.jar")
            (recipes,), classpath = jars, f"{root}/*"
        else:
            recipes = debian / DEBIAN_JARS[0]
            classpath = os.pathsep.join(str(debian / jar) for jar in DEBIAN_JARS)
            if not recipes.exists():
                raise CuratorUnavailable(f"no jars of Curator: {HINT}")
        home = environ.get("JAVA_HOME")
        path = str(Path(home, "bin")) if home else environ.get("PATH", "")
        javac, java = shutil.which("javac", path=path), shutil.which("java", path=path)
        if javac is None or java is None:
            raise CuratorUnavailable(f"no Java compiler: {HINT}")
        return cls(javac, java, classpath, _version(recipes))

    def compile(self, folder: Path, source: Path) -> None:
        """Compile a program into the folder."""
        command = [self.javac, "-Xlint:all,-path", "-Werror", "-cp", self.classpath]
        subprocess.run([*command, "-d", str(folder), str(source)], check=True)

    def contender(self, folder: Path) -> list[str]:
        """Compile the contender into the folder; return the command that starts it."""
        self.compile(folder, SOURCE)
        return [
            self.java,
            "-Xmx128m",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            f"{folder}{os.pathsep}{self.classpath}",
            "Contender",
        ]


def _version(jar: Path) -> str:
    """Return the version that the jar's own description, or else its name, tells."""
    with zipfile.ZipFile(jar) as content:
        for name in content.namelist():
            if name.endswith("curator-recipes/pom.properties"):
                found = re.search(rb"^version=(\S+)", content.read(name), re.MULTILINE)
                if found:
                    return found[1].decode()
    linked = (each.name for each in jar.parent.glob("curator-recipes-*.jar"))
    return next(linked).removeprefix("curator-recipes-").removesuffix(".jar")
