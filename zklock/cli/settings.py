"""The settings of a connection: from options, else from the environment, else from a file.

A setting has one name: ``--tls-ca`` is ``ZKLOCK_TLS_CA`` in the environment and ``tls-ca`` in the
file. Secrets have no option: others can read the command line of a process.
"""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from zklock._ground.numbers import is_number

PATH_VARIABLE = "ZKLOCK_PATH"
TOKEN_VARIABLE = "ZKLOCK_TOKEN"
HELD_VARIABLE = "ZKLOCK_HELD"
"""These tell a command which lock it runs under."""
CONFIG_VARIABLE = "ZKLOCK_CONFIG"
DEFAULT_CONFIG = "~/.config/zklock.toml"
_FILE = "FILE"
_MOST_BYTES = 1 << 20
_MOST_DIGITS = 18


class Misconfigured(ValueError):
    """A setting that cannot be used; the text says where it stands, and never a secret."""


def seconds(text: str) -> float:
    """Read a number of seconds above 0, for ``argparse``."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: not a number of seconds above 0")
    return value


def whole(least: int, most: int, otherwise: str) -> Callable[[str], int]:
    """Return what reads a whole number in this range, for ``argparse``."""

    def read(text: str) -> int:
        # Python refuses to read thousands of digits.
        if text.isdecimal() and len(text) <= _MOST_DIGITS and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text}: {otherwise}")

    return read


def _path(text: str) -> str:
    """Read the name of a file."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("is empty, or contains a NUL byte")
    return text


def utf8(text: str) -> str:
    """Read text that others may see; the error does not repeat it, as it may be a secret."""
    try:
        text.encode()
    except UnicodeEncodeError:  # kazoo's thread would end by it
        raise argparse.ArgumentTypeError("is not UTF-8 text") from None
    return text


def _text(text: str) -> str:
    return _path(utf8(text))


def _switch(text: str) -> bool:
    if text.lower() not in _SWITCHES:
        raise argparse.ArgumentTypeError(f"{text}: not {', '.join(_SWITCHES)}")
    return _SWITCHES[text.lower()]


_SWITCHES = {"1": True, "0": False, "true": True, "false": False, "yes": True, "no": False}


class Setting(NamedTuple):
    """One setting; ``read`` makes its value of a text.

    - ``secret``: its option is refused. ``NAME-file`` names a file with it instead.
    - ``reaches``: whether another process needs it to connect as this one does.
    """

    name: str
    help: str
    read: Callable[[str], Any] = _text
    metavar: str | None = None
    default: Any = None
    choices: tuple[str, ...] | None = None
    secret: bool = False
    reaches: bool = True

    @property
    def option(self) -> str:
        """The option; that of a secret is refused."""
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        return f"ZKLOCK_{self.key.upper()}"

    @property
    def key(self) -> str:
        """The attribute of ``argparse``'s namespace."""
        return self.name.replace("-", "_")

    @property
    def switches(self) -> bool:
        """Whether it is on or off."""
        return self.read is _switch

    @property
    def bare(self) -> str:
        """The name of the setting, or of that whose file this names."""
        return self.name.removesuffix("-file")

    def value_of(self, text: str, place: str) -> Any:
        """Return the value of a text that stands at a place."""
        try:
            value = self.read(text)
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise Misconfigured(f"{place}: {error}") from None
        if self.choices is not None and value not in self.choices:
            raise Misconfigured(f"{place}: {text}: not {' or '.join(self.choices)}")
        return value


HOSTS = Setting("hosts", "host:port,...[/chroot]; default 127.0.0.1:2181", default="127.0.0.1:2181")
SETTINGS = (
    HOSTS,
    Setting("session-timeout", "session timeout to ask ZooKeeper for; default 10", seconds,
            "SECONDS", 10.0, reaches=False),
    Setting("connect-timeout", "longest wait for the first connection; default 15", seconds,
            "SECONDS", 15.0, reaches=False),
    Setting("tls", "connect by TLS; --tls-ca and --tls-cert imply it", _switch),
    Setting("tls-ca", "PEM file with the authorities to trust; default those of the system",
            _path, _FILE),
    Setting("tls-cert", "PEM file with the client's certificate, for mutual TLS",
            _path, _FILE),
    Setting("tls-key", "PEM file with the certificate's private key; default that of --tls-cert",
            _path, _FILE),
    Setting("tls-key-password", "of the private key", secret=True),
    Setting("tls-key-password-file", "file with the password of the private key",
            _path, _FILE),
    Setting("tls-check-hostname", "whether the server's certificate must be for the name in "
            "--hosts; default yes", _switch, default=True),
    Setting("sasl", "authenticate by SASL; default DIGEST-MD5 where --sasl-user is given",
            choices=("DIGEST-MD5", "GSSAPI")),
    Setting("sasl-user", "the user, or the principal of GSSAPI", metavar="USER"),
    Setting("sasl-password", "of the user", secret=True),
    Setting("sasl-password-file", "file with the password of the user",
            _path, _FILE),
    Setting("digest", "user:password for ZooKeeper's scheme 'digest'", secret=True),
    Setting("digest-file", "file with user:password for ZooKeeper's scheme 'digest'",
            _path, _FILE),
    Setting("acl", "who may use the nodes that the command makes: anybody (open), or clients with "
            "the same credentials (creator); default open", choices=("open", "creator")),
)  # fmt: skip
BY_NAME = {setting.name: setting for setting in SETTINGS}
OPTIONS = tuple(setting for setting in SETTINGS if not setting.secret)
GROUP = "connection"
"""The title of the options, in help."""
MOVABLE = tuple(setting.option for setting in SETTINGS if not setting.switches)
"""Options with a value that may also stand before the command."""
SWITCHES = tuple(
    option
    for setting in OPTIONS
    if setting.switches
    for option in (setting.option, f"--no-{setting.name}")
)
"""Options without a value that may also stand before the command."""


def add_verbose(parser: argparse.ArgumentParser, **more: Any) -> None:
    text = "log what the libraries do, on standard error"
    parser.add_argument("-v", "--verbose", action="store_true", help=text, **more)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options; each is ``None`` if it is not given."""
    group = parser.add_argument_group(
        GROUP,
        "Each of these can also be set in the environment (--tls-ca as $ZKLOCK_TLS_CA) or in the "
        f"file ${CONFIG_VARIABLE}, else {DEFAULT_CONFIG} (tls-ca). An option takes precedence "
        "over the environment, and the environment over the file.",
    )
    for setting in SETTINGS:
        if setting.secret:
            group.add_argument(setting.option, action=_Refuse, help=argparse.SUPPRESS)
        elif setting.switches:
            group.add_argument(
                setting.option, action=argparse.BooleanOptionalAction, default=None,
                help=setting.help,
            )  # fmt: skip
        else:
            group.add_argument(
                setting.option, type=setting.read, metavar=setting.metavar,
                choices=setting.choices, help=setting.help,
            )  # fmt: skip


class _Refuse(argparse.Action):
    """Says where a secret belongs, and does not repeat it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setting = BY_NAME[self.dest.replace("_", "-")]
        parser.error(
            f"{setting.option}: others can read a command line: give ${setting.variable} or "
            f"{setting.option}-file"
        )


def settle(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> None:
    """Give each option that was not given its value; ``options.reach`` is what was given.

    ``options.given``: the names of the settings that are not by default. Raises ``Misconfigured``.
    """
    given = {it.name: value for it in OPTIONS if (value := vars(options)[it.key]) is not None}
    values = _merged((given, _of_environ(environ), _of_file(environ)))
    options.given = frozenset(values)
    for setting in SETTINGS:
        setattr(options, setting.key, values.get(setting.name, setting.default))
    options.reach = {name: value for name, value in given.items() if BY_NAME[name].reaches}


def environ_for(options: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that is to connect as this one does.

    It has the hosts, and the options of this process. Secrets are added nowhere.
    """
    found = dict(environ)
    for name, value in options.reach.items():
        setting = BY_NAME[name]
        if setting.bare != name:
            found.pop(BY_NAME[setting.bare].variable, None)
        found[setting.variable] = str(int(value)) if setting.switches else value
    return {**found, HOSTS.variable: options.hosts}


def options_for(options: argparse.Namespace) -> list[str]:
    """Return the options that another command line needs to connect as this one does, quoted."""
    import shlex  # noqa: PLC0415 - few commands need it

    words: list[str] = []
    for name, value in options.reach.items():
        setting = BY_NAME[name]
        if setting.switches:
            words.append(setting.option if value else f"--no-{name}")
        else:
            words += [setting.option, shlex.quote(value)]
    return words


def secret(options: argparse.Namespace, name: str) -> str | None:
    """Return a secret: itself, or the first line of the file that is named for it.

    A file is read once: it may be a pipe.
    """
    setting = BY_NAME[name]
    found: str | None = getattr(options, setting.key)
    path: str | None = getattr(options, f"{setting.key}_file")
    if path is None:
        return found
    with _opened(path, f"{name}-file") as file:
        refuse_if_others_read(file, path)
        line = file.readline(_MOST_BYTES).rstrip(b"\r\n")
    if not line:
        raise Misconfigured(f"{path}: its first line is empty, but must be the {name}")
    try:
        found = line.decode()
    except UnicodeDecodeError:
        raise Misconfigured(f"{path}: its first line is not UTF-8 text") from None
    setattr(options, setting.key, found)
    setattr(options, f"{setting.key}_file", None)
    return found


def refuse_if_others_read(file: BinaryIO, path: str) -> None:
    """Raise ``Misconfigured`` if a file with a secret can be read by others than its owner.

    A file of root's may be readable for its group: so a service reads what it cannot change.
    """
    status = os.fstat(file.fileno())
    if stat.S_IMODE(status.st_mode) & (0o007 if status.st_uid == 0 else 0o077):
        raise Misconfigured(
            f"{path} has a secret, and others can read or write it: 'chmod 600' it, or, if it is "
            "root's, 'chmod 640'"
        )


def _merged(sources: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values of the nearest source; a secret and its file count as one setting."""
    values: dict[str, Any] = {}
    for source in sources:
        known = {BY_NAME[name].bare for name in values}
        values |= {name: it for name, it in source.items() if BY_NAME[name].bare not in known}
    return values


def _of_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    found = {
        setting.name: setting.value_of(text, f"${setting.variable}")
        for setting in SETTINGS
        if (text := environ.get(setting.variable))
    }
    _check_pairs(found, "the environment")
    return found


def _of_file(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the file says; nothing, if there is none at the default place."""
    named = environ.get(CONFIG_VARIABLE)
    path = named or DEFAULT_CONFIG
    if not named:
        try:
            file = Path(path).expanduser()
            file.stat()
        except (OSError, RuntimeError):  # no file or no home directory, or it is another user's
            return {}
        path = str(file)
    with _opened(path, f"${CONFIG_VARIABLE}" if named else "the settings") as opened:
        found = _parsed(opened, path)
        if any(BY_NAME[name].secret for name in found):
            refuse_if_others_read(opened, path)
    _check_pairs(found, path)
    return found


def _parsed(file: BinaryIO, path: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - most have no such file

    try:
        table = tomllib.loads(file.read(_MOST_BYTES).decode())
    except UnicodeDecodeError:
        raise Misconfigured(f"{path}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"{path}: {error}") from None
    unknown = sorted(set(table) - set(BY_NAME))
    if unknown:
        raise Misconfigured(
            f"{path}: {', '.join(unknown)}: unknown; the settings are {', '.join(BY_NAME)}"
        )
    return {name: _typed(BY_NAME[name], value, path) for name, value in table.items()}


def _typed(setting: Setting, value: Any, path: str) -> Any:
    place = f"{path}: {setting.name}"
    if setting.switches:
        if not isinstance(value, bool):
            raise Misconfigured(f"{place}: not true or false")
        return value
    if setting.read is seconds:
        if not is_number(value):
            raise Misconfigured(f"{place}: not a number")
        return setting.value_of(str(value), place)
    if not isinstance(value, str):
        raise Misconfigured(f"{place}: not a quoted string")
    found = setting.value_of(value, place)
    if setting.metavar != _FILE:
        return found
    try:
        return str(Path(path).parent / Path(found).expanduser())
    except RuntimeError as error:  # nobody's home directory
        raise Misconfigured(f"{place}: {found}: {error}") from None


def _check_pairs(found: Mapping[str, Any], place: str) -> None:
    for name in found:
        if BY_NAME[name].secret and f"{name}-file" in found:
            raise Misconfigured(f"{place} has {name} and {name}-file: leave one of them out")


def _opened(path: str, what: str) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise Misconfigured(f"{what}: {path}: {error.strerror}") from None
