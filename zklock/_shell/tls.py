"""TLS on a connection that a server has accepted."""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Any


class SilentTls(TimeoutError):
    """A server has accepted a connection, and does not answer TLS."""


def make_context(
    *,
    ca: Any = None,
    certfile: Any = None,
    keyfile: Any = None,
    keyfile_password: Any = None,
    verify_certs: bool = True,
    check_hostname: bool = False,
) -> ssl.SSLContext:
    """Return what speaks TLS with these options of a ``KazooClient``; raises ``OSError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_hostname
    context.verify_mode = ssl.CERT_REQUIRED if verify_certs else ssl.CERT_NONE
    context.load_default_certs()
    if ca:
        context.load_verify_locations(ca)
    if certfile and keyfile:
        context.load_cert_chain(certfile, keyfile, keyfile_password)
    return context


def secured(
    sock: socket.socket, context: ssl.SSLContext, host: str, seconds: float | None
) -> ssl.SSLSocket:
    """Shake hands on a connected socket, and return it; it is closed if that fails.

    Raises ``SilentTls`` after so many seconds; ``None``: no limit.
    """
    with sock:  # wrapped, it is detached: this closes nothing then
        secure = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    try:
        if seconds is not None and seconds <= 0:
            raise TimeoutError
        secure.settimeout(seconds)
        secure.do_handshake()
    except TimeoutError:
        secure.close()
        raise SilentTls(errno.ETIMEDOUT, "the server does not answer TLS") from None
    except BaseException:
        secure.close()
        raise
    return secure
