"""Kerberos: a KDC and tickets of its, and a server that wants them.

Needs Debian's krb5-kdc and krb5-user, and the package kerberos.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_acl

import zklock
from tests.backends import backend_or_skip
from tests.contract.secure import SASL
from tests.contract.support import SOON, Losses, granted
from zklock.testing import ZooKeeperServer, wait_for
from zklock.testing.ports import free_ports

pytestmark = pytest.mark.thorough("a KDC, and tickets that end")

REALM = "TEST.INVALID"
USER = "alice"
GSSAPI = {"mechanism": "GSSAPI"}
PROGRAMS = "krb5kdc", "kdb5_util", "kadmin.local", "kinit", "kvno", "kdestroy"


class Kdc:
    """A KDC of one realm, in a folder; ``environ`` is what its programs and libraries read."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports()
        self.folder = folder
        self.libraries = folder / "krb5.conf"
        self.libraries.write_text(
            f"[libdefaults]\ndefault_realm = {REALM}\ndns_canonicalize_hostname = false\n"
            "rdns = false\nudp_preference_limit = 1\n"
            f"[realms]\n{REALM} = {{\nkdc = 127.0.0.1:{port}\n}}\n"
        )
        profile = folder / "kdc.conf"
        profile.write_text(
            f"[kdcdefaults]\nkdc_listen = 127.0.0.1:{port}\nkdc_tcp_listen = 127.0.0.1:{port}\n"
            f"[realms]\n{REALM} = {{\ndatabase_name = {folder}/principal\n"
            f"key_stash_file = {folder}/stash\n}}\n"
        )
        self.environ = {
            "KRB5_CONFIG": str(self.libraries),
            "KRB5_KDC_PROFILE": str(profile),
            "KRB5CCNAME": f"FILE:{folder}/tickets",
        }
        self.run("kdb5_util", "create", "-s", "-P", "secret")
        for principal in ("zookeeper/localhost", USER):
            self.run("kadmin.local", "addprinc", "-randkey", principal)
            keytab = self.keytab(principal)
            self.run("kadmin.local", "ktadd", "-k", str(keytab), principal)
        self.process = subprocess.Popen(["krb5kdc", "-n"], env=os.environ | self.environ)

    def keytab(self, principal: str) -> Path:
        return self.folder / f"{principal.partition('/')[0]}.keytab"

    def run(self, *command: str) -> None:
        environ = os.environ | self.environ
        subprocess.run(command, env=environ, check=True, capture_output=True, timeout=SOON)

    def succeeds(self, *command: str) -> bool:
        try:
            self.run(*command)
        except subprocess.CalledProcessError:
            return False
        return True

    def renew(self, life: str = "1h") -> None:
        """Get a new ticket; the KDC may be starting."""
        keytab = str(self.keytab(USER))
        wait_for(lambda: self.succeeds("kinit", "-k", "-t", keytab, "-l", life, USER), SOON)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or find_spec("kerberos") is None:
        pytest.skip(f"no Kerberos: {missing or 'the package kerberos'}")
    started = Kdc(tmp_path_factory.mktemp("kdc"))
    try:
        yield started
    finally:
        started.close()


@pytest.fixture
def tickets(kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> Kdc:
    """The KDC whose tickets this process uses; it has one."""
    for name, value in kdc.environ.items():
        monkeypatch.setenv(name, value)
    kdc.renew()
    return kdc


@pytest.fixture(scope="module")
def hosts(kdc: Kdc) -> Iterator[str]:
    """A server that takes tickets."""
    jaas = kdc.folder / "jaas.conf"
    jaas.write_text(
        "Server {\n com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true "
        f'storeKey=true isInitiator=false keyTab="{kdc.keytab("zookeeper")}" '
        f'principal="zookeeper/localhost@{REALM}";\n}};\n'
    )
    properties = {
        "java.security.auth.login.config": str(jaas),
        "java.security.krb5.conf": str(kdc.libraries),
    }
    with ZooKeeperServer(
        backend=backend_or_skip("java"),
        config={"authProvider.1": SASL},
        system_properties=properties,
    ) as server:
        yield f"localhost:{server.port}"


def test_a_ticket_that_ends_counts_at_the_next_connection(
    tickets: Kdc, hosts: str, zklock_connect: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    acl = make_acl("sasl", f"{USER}@{REALM}", all=True)
    losses = Losses()
    client = zklock_connect(hosts, timeout=30.0, sasl_options=GSSAPI, default_acl=[acl])
    grant = granted(zklock.Lock(client, "/ends", on_lost=losses))
    tickets.renew("2s")
    wait_for(lambda: not tickets.succeeds("kvno", "zookeeper/localhost"), SOON, "the end")
    grant.verify(SOON)
    client.handler.drop()
    wait_for(lambda: "no Kerberos ticket for it: Ticket expired" in caplog.text, SOON)
    tickets.renew()
    grant.verify(SOON)
    assert grant.held
    assert not losses.losses
    grant.release()


def test_no_ticket_at_the_start(tickets: Kdc, hosts: str) -> None:
    tickets.run("kdestroy")
    with pytest.raises(zklock.NoAnswer, match="no Kerberos ticket for it: No Kerberos creden"):
        zklock.connect(hosts, start_timeout=5.0, sasl_options=GSSAPI)


def test_a_ticket_of_each_server(tickets: Kdc, hosts: str) -> None:
    unknown = hosts.replace("localhost", "127.0.0.1")
    with pytest.raises(zklock.NoAnswer, match=r"no Kerberos ticket for it: Server .* not found"):
        zklock.connect(unknown, start_timeout=5.0, sasl_options=GSSAPI)


def test_a_kdc_that_is_silent(tickets: Kdc, hosts: str) -> None:
    tickets.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(zklock.NoAnswer, match="the KDC has not answered"):
            zklock.connect(hosts, start_timeout=5.0, sasl_options=GSSAPI)
    finally:
        tickets.process.send_signal(signal.SIGCONT)
    with zklock.connect(hosts, start_timeout=SOON, sasl_options=GSSAPI) as client:
        assert client.connected
