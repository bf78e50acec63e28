"""A connection that lasts as long as the command; and how the arguments of commands are read."""

from __future__ import annotations

import argparse
import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import zklock
from zklock._ground import threads
from zklock._recipes import names
from zklock.cli import settings
from zklock.cli.saying import say
from zklock.cli.settings import Misconfigured

if TYPE_CHECKING:
    import ssl

    from kazoo.client import KazooClient

_T = TypeVar("_T")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``-v``, and the settings of the connection."""
    settings.add_verbose(parser, default=argparse.SUPPRESS)
    settings.add_options(parser)
    parser.set_defaults(settle=settings.settle)


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add the node below which to look."""
    parser.add_argument("root", metavar="PATH", nargs="?", default="/", type=root, help="default /")


def add_wait(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "-w",
        "--wait",
        type=settings.seconds,
        metavar="SECONDS",
        help="wait no longer than this; above 0",
    )


def add_interval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=settings.seconds,
        default=1.0,
        help="least time between two reads of what has changed; default 1",
    )


def add_admin_port(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--admin-port",
        type=port,
        default=8080,
        metavar="PORT",
        help="port of the servers' admin servers (HTTP); 0: do not ask them; default 8080",
    )


@contextlib.contextmanager
def connected(
    options: argparse.Namespace, stop_within: float | None = None
) -> Iterator[KazooClient]:
    """Yield a client of the ZooKeeper that the options name; stop it at the end.

    kazoo waits for a session timeout until ZooKeeper has confirmed that. ``stop_within``: wait for
    so many seconds at most, where nothing can be lost.
    """
    from kazoo.exceptions import WriterNotClosedException  # noqa: PLC0415 - nor '--help'
    from kazoo.hosts import collect_hosts  # noqa: PLC0415

    more = kazoo_options(options)
    try:
        collect_hosts(options.hosts)
    except ValueError as error:
        raise Misconfigured(f"hosts: {options.hosts}: {error}") from None
    with warnings.catch_warnings(record=True) as warned:
        client = zklock.connect(
            options.hosts,
            options.session_timeout,
            start_timeout=options.connect_timeout,
            **more,
        )
    for warning in warned:
        say(None, str(warning.message))
    try:
        yield client
    finally:
        # kazoo's connection thread may be busy for longer than stop() waits for it. That loses
        # nothing: ZooKeeper ends the session by itself.
        def stop() -> None:
            with contextlib.suppress(WriterNotClosedException):
                client.stop()
                client.close()

        if stop_within is None:
            stop()
        else:
            stopping = threading.Thread(target=stop, name="zklock-stop", daemon=True)
            threads.begin(stopping)
            stopping.join(stop_within)


def kazoo_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return what kazoo is told of TLS, SASL, credentials and ACLs.

    Raises ``Misconfigured``, and ``ZkLockError`` if a library is missing.
    """
    found: dict[str, Any] = {}
    if tls_context(options) is not None:
        found = {
            "use_ssl": True,
            "ca": options.tls_ca,
            "certfile": options.tls_cert,
            "keyfile": options.tls_key or options.tls_cert,
            "keyfile_password": settings.secret(options, "tls-key-password"),
            "check_hostname": options.tls_check_hostname,
        }
    if (credentials := _sasl(options)) is not None:
        found["sasl_options"] = credentials
    digest = settings.secret(options, "digest")
    if digest is not None:
        if not all(digest.partition(":")):
            raise Misconfigured("the digest must be user:password")
        found["auth_data"] = [("digest", digest)]
    if options.acl == "creator":
        if not found.keys() & {"sasl_options", "auth_data", "certfile"}:
            raise Misconfigured(
                "acl is creator, and needs credentials: give those of SASL, a digest or a "
                "certificate"
            )
        from kazoo.security import CREATOR_ALL_ACL  # noqa: PLC0415

        found["default_acl"] = CREATOR_ALL_ACL
    return found


def tls_context(options: argparse.Namespace) -> ssl.SSLContext | None:
    """Return what speaks TLS as the options want it; ``None`` if they want none.

    Raises ``Misconfigured`` if a file cannot be used.
    """
    if not (options.tls or (options.tls is None and (options.tls_ca or options.tls_cert))):
        return None
    from zklock._shell import options as kazoo  # noqa: PLC0415 - nor '--help'

    certificate, key = options.tls_cert, options.tls_key or options.tls_cert
    password = settings.secret(options, "tls-key-password")
    if certificate is None and key is not None:
        raise Misconfigured("tls-key needs a certificate: give tls-cert, too")
    try:
        if key is not None:
            with Path(key).open("rb") as file:
                settings.refuse_if_others_read(file, key)
        context = kazoo.tls_context(options.tls_ca, certificate, key, password)
    except OSError as error:
        raise Misconfigured(f"{key}: cannot be used for TLS: {error.strerror}") from None
    except ValueError as error:
        raise Misconfigured(str(error)) from None
    context.check_hostname = options.tls_check_hostname
    return context


def _sasl(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return kazoo's ``sasl_options``, or ``None``."""
    mechanism, user = options.sasl, options.sasl_user
    password = settings.secret(options, "sasl-password")
    if mechanism is None and user is None and password is None:
        return None
    if find_spec("puresasl") is None:
        raise zklock.ZkLockError("SASL needs pure-sasl: pip install pure-sasl")
    if mechanism == "GSSAPI":
        return {"mechanism": mechanism} | ({} if user is None else {"principal": user})
    if user is None or password is None:
        raise Misconfigured(
            "SASL by DIGEST-MD5 needs sasl-user and a password: give ZKLOCK_SASL_PASSWORD in the "
            "environment, or sasl-password-file"
        )
    return {"mechanism": "DIGEST-MD5", "username": user, "password": password}


def _refusing(read: Callable[[str], _T]) -> Callable[[str], _T]:
    """Have ``argparse`` show what is wrong with an argument."""

    def read_or_refuse(text: str) -> _T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read_or_refuse


lock_path = _refusing(names.check_path)
token = _refusing(zklock.FencingToken.parse)
port = settings.whole(0, 65535, "not a port")


def root(text: str) -> str:
    """Read the path below which to look."""
    return text if text == "/" else lock_path(text)
