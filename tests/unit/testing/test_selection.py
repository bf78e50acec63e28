from collections.abc import Mapping
from pathlib import Path

import pytest

from zklock.testing import BackendUnavailable, choose_backend, java, selection
from zklock.testing.external import ExternalBackend
from zklock.testing.java import Installation, JavaBackend

HERE = ExternalBackend("here:1")
NOTHING = {"PATH": "/nowhere", "DOCKER_HOST": "unix:///nowhere/docker.sock"}


def refusing(reason: str) -> selection.Maker:
    def make(_: Mapping[str, str]) -> ExternalBackend:
        raise BackendUnavailable(reason)

    return make


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> dict[str, selection.Maker]:
    replaced = {"container": refusing("no engine"), "java": lambda _: HERE, "hosts": lambda _: HERE}
    monkeypatch.setattr(selection, "_MAKERS", replaced)
    return replaced


def test_a_given_backend_is_taken_as_it_is() -> None:
    assert choose_backend(HERE, {}) is HERE


def test_the_argument_comes_before_the_variables(makers: dict[str, selection.Maker]) -> None:
    makers["java"] = refusing("not this one")
    environ = {"ZKLOCK_TEST_BACKEND": "java", "ZKLOCK_TEST_HOSTS": "there:1"}
    assert choose_backend("hosts", environ) is HERE
    with pytest.raises(BackendUnavailable, match=r"^not this one$"):
        choose_backend(None, environ)


def test_given_hosts_come_before_servers_of_our_own() -> None:
    backend = choose_backend(None, {"ZKLOCK_TEST_HOSTS": "there:7"})
    assert isinstance(backend, ExternalBackend)
    assert backend.addresses == [("there", 7)]


def test_java_comes_after_containers(makers: dict[str, selection.Maker]) -> None:
    assert choose_backend(None, {}) is HERE
    other = ExternalBackend("other:1")
    makers["container"] = lambda _: other
    assert choose_backend(None, {}) is other


def test_an_empty_variable_is_no_wish(makers: dict[str, selection.Maker]) -> None:
    for wanted in ("", None):
        assert choose_backend(wanted, {"ZKLOCK_TEST_BACKEND": "", "ZKLOCK_TEST_HOSTS": ""}) is HERE


def test_what_cannot_be_chosen() -> None:
    with pytest.raises(ValueError, match="container, java, hosts"):
        choose_backend("podman")
    with pytest.raises(BackendUnavailable, match="set ZKLOCK_TEST_HOSTS"):
        choose_backend("hosts", {})


def test_nothing_here_says_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "DEBIAN_JAR", Path("/nowhere/zookeeper.jar"))
    with pytest.raises(BackendUnavailable) as caught:
        choose_backend(None, NOTHING)
    for helps in (
        "no container engine answers; start one, or set DOCKER_HOST",
        "apt-get install default-jre-headless libzookeeper-java",
        "ZOOKEEPER_HOME",
        "ZKLOCK_ZOOKEEPER_JARS",
        'backend="embedded"',
        "ZKLOCK_TEST_BACKEND=embedded",
    ):
        assert helps in str(caught.value)


class TestInstallation:
    @pytest.fixture
    def java_home(self, tmp_path: Path) -> Path:
        java = tmp_path / "jdk" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text("#!/bin/sh\n")
        java.chmod(0o755)
        return tmp_path / "jdk"

    @staticmethod
    def jars(folder: Path) -> Path:
        folder.mkdir(parents=True)
        for name in ("zookeeper-3.9.3.jar", "zookeeper-jute-3.9.3.jar"):
            (folder / name).touch()
        return folder

    def test_a_folder_of_jars(self, tmp_path: Path, java_home: Path) -> None:
        folder = self.jars(tmp_path / "jars")
        environ = {"ZKLOCK_ZOOKEEPER_JARS": str(folder), "JAVA_HOME": str(java_home)}
        found = Installation.find(environ)
        assert found.classpath == (f"{folder}/*",)
        assert found.java == str(java_home / "bin" / "java")
        assert str(folder) in JavaBackend(found).describe()

    def test_a_release(self, tmp_path: Path, java_home: Path) -> None:
        home = tmp_path / "apache-zookeeper"
        self.jars(home / "lib")
        found = Installation.find({"ZOOKEEPER_HOME": str(home), "JAVA_HOME": str(java_home)})
        assert found.classpath[0] == f"{home}/lib/*"

    def test_a_variable_that_leads_nowhere_is_not_passed_over(self, tmp_path: Path) -> None:
        (tmp_path / "zookeeper-jute-3.9.3.jar").touch()
        for variable in ("ZKLOCK_ZOOKEEPER_JARS", "ZOOKEEPER_HOME"):
            with pytest.raises(BackendUnavailable, match=f"{variable}.*no zookeeper-"):
                Installation.find({variable: str(tmp_path)})

    def test_jars_without_java(self, tmp_path: Path) -> None:
        folder = self.jars(tmp_path / "jars")
        with pytest.raises(BackendUnavailable, match="no java command"):
            Installation.find({"ZKLOCK_ZOOKEEPER_JARS": str(folder), "PATH": "/nowhere"})


class TestTheSubstitute:
    def test_is_taken_where_nothing_else_is_and_says_so(
        self, makers: dict[str, selection.Maker]
    ) -> None:
        makers["java"] = refusing("no jars")
        said: list[str] = []
        assert selection.choose_or_embed(said.append, {}).name == "embedded"
        (text,) = said
        assert all(it in text for it in ("never for production", "no engine", "no jars"))

    def test_is_not_taken_where_a_real_one_is(self, makers: dict[str, selection.Maker]) -> None:
        said: list[str] = []
        assert selection.choose_or_embed(said.append, {}) is HERE
        assert said == []

    @pytest.mark.parametrize(
        "wish", [{"ZKLOCK_TEST_BACKEND": "java"}, {"ZKLOCK_TEST_HOSTS": "no:port"}]
    )
    def test_is_not_taken_for_what_was_asked_for(
        self, makers: dict[str, selection.Maker], wish: dict[str, str]
    ) -> None:
        makers["java"] = makers["hosts"] = refusing("not this one")
        with pytest.raises(BackendUnavailable, match=r"not this one|ZKLOCK_TEST_HOSTS"):
            selection.choose_or_embed(pytest.fail, wish)

    def test_is_taken_if_it_is_named(self) -> None:
        assert choose_backend("embedded").name == "embedded"
        assert choose_backend(None, {"ZKLOCK_TEST_BACKEND": "embedded"}).name == "embedded"
