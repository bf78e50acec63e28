"""What ``connect()`` refuses at the call: it would end kazoo's connection thread."""

from __future__ import annotations

import logging
import os
import socket
import sys
import uuid
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

import zklock
from tests.contract.secure import Authority
from zklock._shell.connect import new_client
from zklock._shell.handler import Handler

SASL = {"mechanism": "DIGEST-MD5", "username": "me", "password": "secret"}
ID = (5, b"secret" + b"!" * 10)
TLS = {"use_ssl": True}
PASSWORD = "client_id: the session's password must be"

REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"sasl_options": "DIGEST-MD5"}, TypeError, "sasl_options must be a dict"),
    ({"sasl_options": {**SASL, 5: "secret"}}, TypeError, "sasl_options must be a dict"),
    ({"sasl_options": {}}, ValueError, "sasl_options: the mechanism must be one of ANONYMOUS"),
    ({"sasl_options": {**SASL, "mechanism": "SECRET"}}, ValueError, ".*, not 'SECRET'"),
    ({"sasl_options": {**SASL, "mechanism": [5]}}, ValueError, r".*, not \[5\]"),
    (
        {"sasl_options": {**SASL, "password": None}},
        ValueError,
        "sasl_options: DIGEST-MD5 needs a password",
    ),
    (
        {"sasl_options": {**SASL, "mechanism": "PLAIN", "username": None}},
        ValueError,
        "sasl_options: PLAIN needs a username",
    ),
    (
        {"sasl_options": {**SASL, "password": b"secret"}},
        TypeError,
        "sasl_options: the password must be text, not bytes",
    ),
    (
        {"sasl_options": {**SASL, "password": "secret\udce4"}},
        ValueError,
        "sasl_options: the password is not UTF-8 text",
    ),
    ({"sasl_options": {**SASL, "host": "zk1"}}, TypeError, "sasl_options: pure-sasl does not take"),
    ({"sasl_options": {**SASL, "qops": 5}}, TypeError, "sasl_options: pure-sasl does not take"),
    (
        {"auth_data": [("sasl", "me:secret")]},
        ValueError,
        "auth_data: sasl is not a scheme; give sasl",
    ),
    ({"auth_data": 5}, TypeError, "auth_data: not a scheme and a credential, both text"),
    ({"client_id": 5}, TypeError, "client_id must be a session's id and its password"),
    ({"client_id": "ab"}, TypeError, "client_id must be a session's id and its password"),
    ({"client_id": (5,)}, TypeError, "client_id must be a session's id and its password"),
    ({"client_id": (1.5, ID[1])}, TypeError, "client_id: the session's id must be an int"),
    ({"client_id": (1 << 70, ID[1])}, ValueError, "client_id: the session's id must be -9"),
    ({"client_id": (5, "secret")}, TypeError, f"{PASSWORD} bytes, not str"),
    ({"client_id": (5, b"secret")}, ValueError, f"{PASSWORD} 16 bytes, not 6"),
    ({"timeout": 1e-9}, ValueError, "timeout must be at least 0.001 seconds, not 1e-09"),
    ({"timeout": 0.0009}, ValueError, "timeout must be at least 0.001 seconds"),
    ({**TLS, "ca": 5}, TypeError, "ca must be the path of a file, not int"),
    ({**TLS, "ca": "/no/ca"}, ValueError, "/no/ca: cannot be used for TLS: No such file"),
    ({**TLS, "ca": Path(__file__)}, ValueError, f"{__file__}: cannot be used for TLS: "),
    (
        {**TLS, "certfile": os.fsencode(__file__), "keyfile": __file__},
        ValueError,
        f"{__file__}, {__file__}: cannot be used for TLS: ",
    ),
    ({**TLS, "certfile": "a\0", "keyfile": "a"}, ValueError, "certfile must be the path of a file"),
    ({**TLS, "keyfile_password": 5}, TypeError, "keyfile_password must be text, not int"),
    (
        {**TLS, "check_hostname": True, "verify_certs": False},
        ValueError,
        "check_hostname=True needs verify_certs=True",
    ),
    ({"default_acl": 5}, TypeError, "default_acl must be a list of ACLs"),
    ({"default_acl": ["world:anyone"]}, TypeError, "default_acl must be a list of ACLs"),
    ({"default_acl": make_acl("world", "anyone")}, TypeError, "default_acl must be a list of ACLs"),
    ({"logger": "zk"}, TypeError, "logger must be a logging.Logger, not str"),
    (
        {"connection_retry": {"max_tries": -1, "delay": "1"}},
        TypeError,
        "connection_retry: delay must be a number, not str",
    ),
]


@pytest.mark.parametrize(("options", "kind", "said"), REFUSED)
def test_what_would_end_the_connection_thread_is_refused(
    options: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=f"^{said}") as caught:
        new_client("none:1", **{"timeout": 10.0, **options})
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "options",
    [
        {"sasl_options": SASL},
        {"sasl_options": {"mechanism": "PLAIN", "callback": input}},
        {"sasl_options": {"mechanism": "EXTERNAL"}},
        {"sasl_options": None, "client_id": None, "default_acl": None, "logger": None},
        {"client_id": ID},
        {"client_id": [0, bytearray(16)]},
        {"timeout": 0.001},
        {**TLS, "certfile": os.fsencode(__file__), "keyfile_password": input},
        {"ca": 5, "check_hostname": True, "verify_certs": False},
        {"default_acl": OPEN_ACL_UNSAFE},
        {"default_acl": tuple(OPEN_ACL_UNSAFE)},
        {"logger": logging.LoggerAdapter(logging.getLogger(), {})},
        {"connection_retry": None},
    ],
)
def test_what_can_be_used_is_not_refused(options: dict[str, Any]) -> None:
    assert new_client("none:1", **{"timeout": 10.0, **options}).hosts == [("none", 1)]


def test_a_key_needs_its_password_at_the_call(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem, closed = authority.certify("me"), tmp_path / "closed.key"
    authority.openssl(
        "ec", "-aes256", "-passout", "pass:secret", "-in", pem.name, "-out", closed.name
    )
    given: dict[str, Any] = {**TLS, "ca": authority.certificate, "certfile": pem, "keyfile": closed}
    assert new_client("none:1", 10.0, **given, keyfile_password="secret")
    for wrong in (None, "other"):
        with pytest.raises(ValueError, match=r"closed\.key: cannot be used for TLS: "):
            new_client("none:1", 10.0, **given, keyfile_password=wrong)


def test_the_options_of_the_caller_stay_as_they_are() -> None:
    given = dict(SASL)
    client = new_client("none:1", 10.0, sasl_options=given)
    assert isinstance(client, KazooClient)
    client._connection.sasl_options["service"] = "another"  # as kazoo does
    assert given == SASL


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = import_module("puresasl.mechanisms").mechanisms
    monkeypatch.delitem(known, "GSSAPI", raising=False)
    with pytest.raises(zklock.ClientUnusable, match="GSSAPI needs a Kerberos library"):
        new_client("none:1", 10.0, sasl_options={"mechanism": "GSSAPI"})
    monkeypatch.setitem(sys.modules, "puresasl.client", None)
    with pytest.raises(zklock.ClientUnusable, match="pip install pure-sasl"):
        new_client("none:1", 10.0, sasl_options=SASL)


def test_the_last_trouble_with_a_server_counts_until_the_next_try_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        handler = Handler()
        handler.starting(60.0)
        server = f"127.0.0.1:{address[1]}"
        missing = f"/{uuid.uuid4()}"
        with pytest.raises(FileNotFoundError):
            handler.create_connection(address, timeout=36.0, use_ssl=True, ca=missing)
        assert handler.met(server) == "no such file or directory"
        seen = []

        def looks(*_: Any) -> str:
            seen.append(handler.met(server))
            raise TimeoutError

        class Unresolved:
            __fspath__ = looks

        with pytest.raises(TimeoutError):
            handler.create_connection(address, timeout=36.0, use_ssl=True, ca=Unresolved())
        assert seen == ["no such file or directory"]
        assert handler.met(server) == "does not answer"
