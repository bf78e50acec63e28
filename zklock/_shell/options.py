"""The arguments of ``connect()`` that kazoo takes, and that could end its connection thread."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from kazoo.hosts import collect_hosts
from kazoo.protocol.serialization import Create

from zklock._ground.numbers import check_int, check_number
from zklock.errors import ClientUnusable

_NAMING = {"CRAM-MD5", "DIGEST-MD5", "PLAIN"}
"""The mechanisms of SASL that need a name and a password."""
_PASSWORD = 16
"""The bytes of a session's password."""


def credentials(given: Any, name: str = "auth_data") -> list[tuple[str, str]]:
    """Return what is ``given`` as ``auth_data``, as pairs of text.

    What cannot be sent would end kazoo's connection thread. An error does not show what may be a
    secret.
    """
    found = list(given) if isinstance(given, Iterable) else [given]
    for each in found:
        pair = isinstance(each, tuple | list) and len(each) == 2
        if not (pair and all(isinstance(part, str) for part in each)):
            raise TypeError(
                f"{name}: not a scheme and a credential, both text: ('digest', 'user:password')"
            )
        try:
            "".join(each).encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name}: a scheme or a credential is not UTF-8 text") from None
        if each[0] == "sasl":  # kazoo's old way, which zklock would not take for SASL
            raise ValueError(f"{name}: sasl is not a scheme; give sasl_options to connect()")
    return [(scheme, credential) for scheme, credential in found]


def sasl(given: Any) -> dict[str, Any]:
    """Return what is ``given`` as ``sasl_options``, if kazoo can use it.

    What it cannot use would end its connection thread, as if the servers had refused it. An error
    does not show what may be a secret.
    """
    if not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
        raise TypeError(
            "sasl_options must be a dict, such as {'mechanism': 'DIGEST-MD5', 'username': 'user', "
            "'password': 'password'}"
        )
    try:
        make = import_module("puresasl.client").SASLClient
        mechanisms = import_module("puresasl.mechanisms").mechanisms
    except ImportError:
        raise ClientUnusable("sasl_options needs pure-sasl: pip install pure-sasl") from None
    options = dict(given)
    mechanism = options.get("mechanism")
    if mechanism == "GSSAPI":
        if mechanism not in mechanisms:
            raise ClientUnusable("sasl_options: GSSAPI needs a Kerberos library: see pure-sasl")
        return options
    if not isinstance(mechanism, str) or mechanism not in mechanisms:
        known = ", ".join(sorted({*mechanisms, "GSSAPI"}))
        raise ValueError(f"sasl_options: the mechanism must be one of {known}, not {mechanism!r}")
    for name in ("username", "password") if mechanism in _NAMING else ():
        value = options.get(name)
        if value is None and options.get("callback"):
            continue  # it is asked
        if value is None:
            raise ValueError(f"sasl_options: {mechanism} needs a {name}")
        if not isinstance(value, str):
            raise TypeError(f"sasl_options: the {name} must be text, not {type(value).__name__}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"sasl_options: the {name} is not UTF-8 text") from None
    try:
        make("", **{"service": "", **options})
    except TypeError as error:
        raise TypeError(f"sasl_options: pure-sasl does not take them: {error}") from None
    return options


def obtain_ticket(options: Mapping[str, Any], host: str) -> None:
    """Have Kerberos's library get the ticket for a server, unless it is in the cache.

    Raises what the library raises. kazoo, which does the same after the handshake, takes that for a
    refusal by the server, and gives the client up for good.
    """
    make = import_module("puresasl.client").SASLClient
    client = make(host, **{"service": "zookeeper", **options})
    try:
        client.process()
    finally:
        client.dispose()


def check(options: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` or ``ValueError`` for what would end kazoo's connection thread."""
    if options.get("client_id"):
        _check_client_id(options["client_id"])
    if options.get("use_ssl"):
        _check_tls(options)
    acl = options.get("default_acl")
    if acl:
        try:
            Create("/", b"", [*acl], 0).serialize()
        except Exception:
            raise TypeError(
                "default_acl must be a list of ACLs: [make_acl('world', 'anyone', all=True)]"
            ) from None
    logger = options.get("logger")
    if logger and not callable(getattr(logger, "log", None)):
        raise TypeError(f"logger must be a logging.Logger, not {type(logger).__name__}")
    retry = options["connection_retry"]
    for name in {"delay", "backoff"} & retry.keys() if isinstance(retry, dict) else ():
        where = f"connection_retry: {name}"
        check_number(where, retry[name], "a number", lambda it: it >= 0, "at least 0")


def _check_client_id(given: Any) -> None:
    if not (isinstance(given, tuple | list) and len(given) == 2):
        raise TypeError(
            "client_id must be a session's id and its password, such as the client_id of a client"
        )
    session, password = given
    check_int("client_id: the session's id", session, -(2**63), 2**63 - 1)
    if not isinstance(password, bytes | bytearray):
        raise TypeError(
            f"client_id: the session's password must be bytes, not {type(password).__name__}"
        )
    if len(password) != _PASSWORD:
        raise ValueError(
            f"client_id: the session's password must be {_PASSWORD} bytes, not {len(password)}"
        )


def _check_tls(options: Mapping[str, Any]) -> None:
    for name in ("ca", "certfile", "keyfile"):
        path = options.get(name)
        if path:
            try:
                encoded = os.fsencode(path)
            except TypeError:
                raise TypeError(
                    f"{name} must be the path of a file, not {type(path).__name__}"
                ) from None
            if b"\0" in encoded:
                raise ValueError(f"{name} must be the path of a file, not {path!r}")
    password = options.get("keyfile_password")
    if not (
        password is None or isinstance(password, str | bytes | bytearray) or callable(password)
    ):
        raise TypeError(f"keyfile_password must be text, not {type(password).__name__}")
    if options.get("check_hostname") and not options.get("verify_certs", True):
        raise ValueError("check_hostname=True needs verify_certs=True")
    tls_context(options.get("ca"), options.get("certfile"), options.get("keyfile"), password)


def tls_context(ca: Any, certificate: Any, key: Any, password: Any = None) -> ssl.SSLContext:
    """Return what speaks TLS with these files, as kazoo makes it.

    ``ValueError`` if a file is of no use: kazoo would try it for ever. Without a password for a key
    that needs one, OpenSSL would ask on the terminal, for each connection.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    used = [ca]
    try:
        if ca:
            context.load_verify_locations(ca)
        if certificate and key:
            used = [certificate, key]
            context.load_cert_chain(certificate, key, "" if password is None else password)
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror
        named = ", ".join(map(os.fsdecode, used))
        raise ValueError(f"{named}: cannot be used for TLS: {reason}") from None
    return context


def check_hosts(hosts: Any) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless these can be servers.

    A name that Python cannot look up, or a chroot that it cannot send, would end kazoo's connection
    thread, and no other server would be tried.
    """
    listed = hosts if isinstance(hosts, list) else [hosts]
    for each in listed:
        if not isinstance(each, str):
            raise TypeError(f"hosts must be text, or a list of it, not {type(each).__name__}")
    try:
        found, chroot = collect_hosts(hosts) if listed else ([], None)
    except ValueError as error:
        raise ValueError(f"hosts: {hosts!r} does not name servers ({error})") from None
    if not found or not all(host.strip() for host, _ in found):
        raise ValueError("hosts: no server is named")
    for host, _ in found:
        try:
            host.encode("idna")  # as socket.getaddrinfo does
        except UnicodeError:
            raise ValueError(
                f"hosts: {host!r} cannot be the name of a host: a part between dots is empty or "
                "too long, or has a character that no name has"
            ) from None
    try:
        (chroot or "").encode()
    except UnicodeEncodeError:
        raise ValueError(f"hosts: the chroot {chroot!r} is not UTF-8 text") from None
