"""A server for TLS and SASL, and a certificate authority for it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.backends import backend_or_skip
from zklock.testing import ZooKeeperServer

USER, PASSWORD = "alice", "xyzzy-4217"

SASL = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
X509 = "org.apache.zookeeper.server.auth.X509AuthenticationProvider"
NETTY = "org.apache.zookeeper.server.NettyServerCnxnFactory"
JAAS = f"""\
Server {{
  org.apache.zookeeper.server.auth.DigestLoginModule required user_{USER}="{PASSWORD}";
}};
"""


def login(folder: Path) -> dict[str, str]:
    """Return the system properties of a server that knows one user, by SASL's DIGEST-MD5.

    In FIPS mode, which is the default, ZooKeeper 3.9.6 takes no DIGEST-MD5.
    """
    jaas = folder / "jaas.conf"
    jaas.write_text(JAAS)
    return {"java.security.auth.login.config": str(jaas), "zookeeper.fips-mode": "false"}


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder of its own, by the openssl command."""

    folder: Path

    def __post_init__(self) -> None:
        self.openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "2", "-subj", "/CN=authority"),
            *("-keyout", "ca.key", "-out", "ca.pem"),
        )

    def certify(self, name: str, days: int = 2) -> Path:
        """Return a file with a private key and a certificate for loopback; -1 days: an old one."""
        self.openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"),
        )
        extensions = self.folder / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        self.openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", str(days)),
            *("-extfile", "extensions", "-out", f"{name}.crt"),
        )
        both = self.folder / f"{name}.pem"
        parts = [(self.folder / f"{name}.{part}").read_text() for part in ("key", "crt")]
        both.touch(0o600)
        both.write_text("".join(parts))
        return both

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    def openssl(self, *arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments], cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def secure_server(authority: Authority, folder: Path, tls_port: int) -> Iterator[ZooKeeperServer]:
    """Run a server that takes TLS and plain connections on one port, and SASL on both.

    Another port takes TLS alone.
    """
    # Certificates are files that the server reads, so it must be a process beside this one.
    backend = backend_or_skip("java")
    with ZooKeeperServer(
        backend=backend,
        config={
            "serverCnxnFactory": NETTY,
            "client.portUnification": "true",
            "secureClientPort": str(tls_port),
            "ssl.keyStore.location": str(authority.certify("server")),
            "ssl.trustStore.location": str(authority.certificate),
            "ssl.clientAuth": "want",
            "authProvider.1": SASL,
            "authProvider.2": X509,
        },
        system_properties=login(folder),
    ) as started:
        yield started
