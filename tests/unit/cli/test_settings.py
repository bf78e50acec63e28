"""Where the settings of a connection come from, and what is refused."""

from __future__ import annotations

import argparse
import os
import re
import stat
from pathlib import Path

import pytest

from zklock.cli import connection, parser, settings
from zklock.cli.settings import Misconfigured
from zklock.cli.status import Status


def settled(*arguments: str, **environ: str) -> argparse.Namespace:
    options = parser.build("ls").parse_args(["ls", *arguments])
    settings.settle(options, {"ZKLOCK_CONFIG": os.devnull, **environ})
    return options


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "zklock.toml"
    file.touch(0o600)
    return file


def written(file: Path, text: str, mode: int = 0o600) -> str:
    file.write_text(text)
    file.chmod(mode)
    return str(file)


VALUES = {
    "hosts": ("zk1:2181", "zk2:2181", "zk3:2181"),
    "session-timeout": (4.0, 5.5, 6.0),
    "connect-timeout": (7.0, 8.5, 9.0),
    "tls": (True, False, True),
    "tls-ca": ("/1", "/2", "/3"),
    "tls-cert": ("/1", "/2", "/3"),
    "tls-key": ("/1", "/2", "/3"),
    "tls-key-password": (None, "two", "three"),
    "tls-key-password-file": ("/1", "/2", "/3"),
    "tls-check-hostname": (False, True, False),
    "sasl": ("GSSAPI", "DIGEST-MD5", "GSSAPI"),
    "sasl-user": ("one", "two", "three"),
    "sasl-password": (None, "two", "three"),
    "sasl-password-file": ("/1", "/2", "/3"),
    "digest": (None, "two:2", "three:3"),
    "digest-file": ("/1", "/2", "/3"),
    "acl": ("creator", "open", "creator"),
}
"""For each setting, what an option, the environment and the file say."""


def toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


@pytest.mark.parametrize("name", settings.BY_NAME)
def test_an_option_comes_before_the_environment_and_that_before_the_file(
    name: str, config: Path
) -> None:
    option, variable, in_file = VALUES[name]
    setting = settings.BY_NAME[name]
    given = [setting.option, str(option)]
    if isinstance(option, bool):
        given = [setting.option if option else f"--no-{name}"]
    environ = {
        "ZKLOCK_CONFIG": written(config, f"{name} = {toml(in_file)}\n"),
        setting.variable: str(variable),
    }
    if not setting.secret:
        assert getattr(settled(*given, **environ), setting.key) == option
    assert getattr(settled(**environ), setting.key) == variable
    del environ[setting.variable]
    assert getattr(settled(**environ), setting.key) == in_file
    assert getattr(settled(), setting.key) == setting.default


@pytest.mark.parametrize("name", [it.name for it in settings.SETTINGS if it.secret])
@pytest.mark.parametrize("form", ["{} hush", "{}=hush"])
@pytest.mark.parametrize("line", ["zklock {} run /x true", "zklock run {} /x true"])
def test_a_secret_on_a_command_line_is_refused_and_not_repeated(
    line: str, form: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        parser.main(line.format(form.format(f"--{name}")).split()[1:])
    assert raised.value.code == Status.USAGE
    said = capsys.readouterr().err
    assert f"--{name}: others can read a command line: give $ZKLOCK_" in said
    assert "hush" not in said


def test_the_options_of_a_command_are_its_own() -> None:
    line = ["run", "/x", "tool", "--digest", "hush", "--hosts", "x"]
    assert parser.build("run").parse_args(line).command == line[2:]


@pytest.mark.parametrize("name", [it.name for it in settings.OPTIONS])
@pytest.mark.parametrize("joined", [True, False])
def test_an_option_may_stand_before_the_command(
    name: str, joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[argparse.Namespace] = []

    def kept(options: argparse.Namespace) -> int:
        ran.append(options)
        return Status.OK

    monkeypatch.setattr("zklock.cli.list.run", kept)
    monkeypatch.setenv("ZKLOCK_CONFIG", os.devnull)
    value = VALUES[name][0]
    given = [f"--{name}={value}"] if joined else [f"--{name}", str(value)]
    if isinstance(value, bool):
        given = [f"--{name}" if value else f"--no-{name}"]
    for line in ([*given, "ls", "/"], ["-v", *given, "ls", "/"], ["ls", *given, "/"]):
        assert parser.main(line) == Status.OK
        assert getattr(ran.pop(), settings.BY_NAME[name].key) == value


@pytest.mark.parametrize("name", [it.name for it in settings.SETTINGS if it.secret])
def test_a_nearer_file_takes_the_place_of_a_farther_secret(name: str, config: Path) -> None:
    near = written(config.parent / "near", "near:1\n")
    setting = settings.BY_NAME[name]
    place = {"ZKLOCK_CONFIG": written(config, f"{name} = 'far:3'\n")}
    assert settings.secret(settled(**place), name) == "far:3"
    assert settings.secret(settled(**place, **{f"{setting.variable}_FILE": near}), name) == "near:1"
    place[setting.variable] = "middle:2"
    assert settings.secret(settled(**place), name) == "middle:2"
    assert settings.secret(settled(f"--{name}-file", near, **place), name) == "near:1"


PAGE = (Path(__file__).parents[3] / "docs" / "commands" / "connecting.md").read_text()


def test_the_page_has_every_setting() -> None:
    section = PAGE.partition("## Settings")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| (secret)?", section, re.MULTILINE)
    assert rows == [(it.name, "secret" if it.secret else "") for it in settings.SETTINGS]


@pytest.mark.parametrize("example", re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S))
def test_an_example_of_the_page_can_be_used(example: str, config: Path) -> None:
    options = settled(ZKLOCK_CONFIG=written(config, example))
    for name, value in re.findall(r'^([a-z-]+) = "?([^"\n]*)"?$', example, re.MULTILINE):
        setting = settings.BY_NAME[name]
        assert getattr(options, setting.key) == setting.read(value)


def test_the_name_of_a_file_may_be_of_any_bytes() -> None:
    assert settled(ZKLOCK_TLS_CA="/etc/\udce4").tls_ca == "/etc/\udce4"


def test_an_empty_variable_counts_as_none() -> None:
    assert settled(ZKLOCK_HOSTS="", ZKLOCK_TLS="").hosts == "127.0.0.1:2181"


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"ZKLOCK_TLS": "perhaps"}, r"\$ZKLOCK_TLS: perhaps: not 1, 0, true"),
        ({"ZKLOCK_SESSION_TIMEOUT": "-1"}, r"\$ZKLOCK_SESSION_TIMEOUT: -1: not a number"),
        (
            {"ZKLOCK_CONNECT_TIMEOUT": "soon"},
            r"\$ZKLOCK_CONNECT_TIMEOUT: soon: not a number of seconds",
        ),
        ({"ZKLOCK_DIGEST": "me:\udce4"}, r"\$ZKLOCK_DIGEST: is not UTF-8 text$"),
        ({"ZKLOCK_SASL_PASSWORD": "\udce4"}, r"\$ZKLOCK_SASL_PASSWORD: is not UTF-8 text$"),
        ({"ZKLOCK_HOSTS": "near/\udce4"}, r"\$ZKLOCK_HOSTS: is not UTF-8 text$"),
        ({"ZKLOCK_SASL": "PLAIN"}, "PLAIN: not DIGEST-MD5 or GSSAPI"),
        ({"ZKLOCK_DIGEST": "hush", "ZKLOCK_DIGEST_FILE": "/x"}, "digest and digest-file"),
        ({"ZKLOCK_CONFIG": "/no/such/file"}, r"\$ZKLOCK_CONFIG: /no/such/file: No such file"),
        ({"ZKLOCK_TLS_CA": "/no/ca"}, "/no/ca: cannot be used for TLS: No such file"),
        ({"ZKLOCK_TLS_CA": __file__}, "cannot be used for TLS"),
        ({"ZKLOCK_TLS": "1", "ZKLOCK_TLS_KEY": "/key"}, "give tls-cert"),
        ({"ZKLOCK_SASL_USER": "alice"}, "needs sasl-user and a password"),
        ({"ZKLOCK_SASL_PASSWORD": "hush"}, "needs sasl-user and a password"),
        ({"ZKLOCK_SASL": "DIGEST-MD5"}, "needs sasl-user and a password"),
        ({"ZKLOCK_DIGEST": "hush"}, "user:password"),
        ({"ZKLOCK_ACL": "creator"}, "acl is creator, and needs credentials"),
        ({"ZKLOCK_DIGEST_FILE": "/no/file"}, "digest-file: /no/file: No such file"),
    ],
)
def test_what_is_refused_in_the_environment(environ: dict[str, str], text: str) -> None:
    with pytest.raises(Misconfigured, match=text) as raised:
        connection.kazoo_options(settled(**environ))
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hosts = ", "at line 1|at end of document"),
        ("hosts = '\udcff'", "not UTF-8"),
        ("host = 'x'", "host: unknown; the settings are hosts, "),
        ("hosts = 2181", "hosts: not a quoted string"),
        ("hosts = ''", "hosts: is empty"),
        ("tls = 'yes'", "tls: not true or false"),
        ("session-timeout = '10'", "session-timeout: not a number"),
        ("session-timeout = true", "session-timeout: not a number"),
        ("session-timeout = nan", "nan: not a number of seconds"),
        ("acl = 'none'", "acl: none: not open or creator"),
        ("sasl-password = ['hush']", "sasl-password: not a quoted string"),
        ('sasl-password = "hush\\u0000"', "sasl-password: is empty, or contains a NUL byte"),
        ("sasl-password = 'hush'\nsasl-password-file = '/x'", "leave one of them out"),
    ],
)
def test_what_is_refused_in_the_file(content: str, text: str, config: Path) -> None:
    config.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(Misconfigured, match=text) as raised:
        settled(ZKLOCK_CONFIG=str(config))
    assert str(config) in str(raised.value)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("path", "found"), [("ca.pem", "{}/ca.pem"), ("/etc/ca.pem", "/etc/ca.pem"), ("~/ca", "/h/ca")]
)
def test_a_path_in_the_file(
    path: str, found: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/h")
    options = settled(ZKLOCK_CONFIG=written(config, f"tls-ca = '{path}'"))
    assert options.tls_ca == found.format(config.parent)
    assert settled("--tls-ca", "ca.pem").tls_ca == "ca.pem"
    with pytest.raises(Misconfigured, match="tls-ca: ~no-such-user/ca"):
        settled(ZKLOCK_CONFIG=written(config, "tls-ca = '~no-such-user/ca'"))


def test_a_secret_may_come_through_a_pipe() -> None:
    ends = os.pipe()
    try:
        os.write(ends[1], b"alice:hush\n")
        options = settled("--digest-file", f"/dev/fd/{ends[0]}")
        for _ in range(2):  # it can be read once only
            assert settings.secret(options, "digest") == "alice:hush"
    finally:
        for end in ends:
            os.close(end)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602])
def test_a_file_with_a_secret_that_others_can_read(mode: int, config: Path) -> None:
    place = {"ZKLOCK_CONFIG": written(config, "digest = 'alice:hush'", mode)}
    with pytest.raises(Misconfigured, match="others can read") as raised:
        settled(**place)
    assert "hush" not in str(raised.value)
    written(config, "hosts = 'zk1:2181'", mode)
    assert settled(**place).hosts == "zk1:2181"
    secret = written(config.parent / "digest", "alice:hush\n", mode)
    with pytest.raises(Misconfigured, match="others can read"):
        settings.secret(settled("--digest-file", secret), "digest")


@pytest.mark.parametrize(
    ("mode", "owner", "refused"),
    [(0o640, 0, False), (0o440, 0, False), (0o640, 1000, True), (0o660, 1000, True)],
)
def test_a_group_may_read_what_is_roots(
    mode: int, owner: int, refused: bool, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.chmod(mode)
    status = list(config.stat())
    status[stat.ST_UID] = owner
    with config.open("rb") as file:
        monkeypatch.setattr(os, "fstat", lambda number: os.stat_result(status))
        if refused:
            with pytest.raises(Misconfigured):
                settings.refuse_if_others_read(file, "file")
        else:
            settings.refuse_if_others_read(file, "file")


def test_the_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settled(ZKLOCK_CONFIG="").hosts == "127.0.0.1:2181"
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config" / "zklock.toml").write_text("hosts = 'zk1:2181'")
    assert settled(ZKLOCK_CONFIG="").hosts == "zk1:2181"
    monkeypatch.setenv("HOME", os.devnull)
    assert settled(ZKLOCK_CONFIG="").hosts == "127.0.0.1:2181"


@pytest.mark.parametrize(
    ("content", "text"), [(b"\nalice:x", "empty"), (b"", "empty"), (b"\xff\n", "UTF-8")]
)
def test_a_file_without_a_secret(content: bytes, text: str, config: Path) -> None:
    config.write_bytes(content)
    with pytest.raises(Misconfigured, match=text):
        settings.secret(settled("--digest-file", str(config)), "digest")


def test_what_others_need_to_connect_as_well(config: Path) -> None:
    digest = written(config, "alice:hush\r\n")
    options = settled(
        *("--tls", "--no-tls-check-hostname", "--tls-ca", "/etc/the ca", "--digest-file", digest),
        *("--session-timeout", "5"),
        ZKLOCK_HOSTS="zk1:2181",
        ZKLOCK_DIGEST="bob:x",
    )
    environ = settings.environ_for(options, {"ZKLOCK_DIGEST": "bob:x", "HOME": "/"})
    assert environ == {
        "HOME": "/",
        "ZKLOCK_HOSTS": "zk1:2181",
        "ZKLOCK_TLS": "1",
        "ZKLOCK_TLS_CA": "/etc/the ca",
        "ZKLOCK_TLS_CHECK_HOSTNAME": "0",
        "ZKLOCK_DIGEST_FILE": digest,
    }
    again = settled(**environ)
    assert settings.secret(again, "digest") == "alice:hush"
    assert connection.kazoo_options(settled(ZKLOCK_DIGEST_FILE=digest)) == {
        "auth_data": [("digest", "alice:hush")]
    }
    assert " ".join(settings.options_for(options)) == (
        f"--tls --tls-ca '/etc/the ca' --no-tls-check-hostname --digest-file {digest}"
    )


def test_tls_that_is_turned_off_needs_no_files() -> None:
    assert connection.kazoo_options(settled("--no-tls", ZKLOCK_TLS_CA="/no/ca")) == {}


def test_what_kazoo_is_told_of_sasl() -> None:
    given = settled(ZKLOCK_SASL_USER="alice", ZKLOCK_SASL_PASSWORD="hush")
    assert connection.kazoo_options(given)["sasl_options"] == {
        "mechanism": "DIGEST-MD5",
        "username": "alice",
        "password": "hush",
    }
    given = settled("--sasl", "GSSAPI", "--sasl-user", "alice@EXAMPLE.COM")
    assert connection.kazoo_options(given)["sasl_options"] == {
        "mechanism": "GSSAPI",
        "principal": "alice@EXAMPLE.COM",
    }


def test_a_wrong_file_is_told_in_a_sentence(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZKLOCK_CONFIG", written(config, "digest = 'alice:hush'", 0o644))
    for command in (["ls"], ["run", "/x", "true"], ["elect", "/x", "true"]):
        assert parser.main(command) == Status.USAGE
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"zklock: {config} has a secret, and others can read")
        assert said.err.count("\n") == 1
