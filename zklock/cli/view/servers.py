"""Asks the servers themselves: what they are, what they grant, and how fast they answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from ssl import SSLContext, SSLError
from typing import Any
from uuid import uuid4

from kazoo.client import KazooClient
from kazoo.exceptions import (
    EphemeralOnLocalSessionError,
    KazooException,
    NoAuthError,
    QuotaExceededError,
    RolledBackError,
    SessionExpiredError,
)
from kazoo.security import Permissions

import zklock
from zklock._core.failures import MEANINGS
from zklock._ground.cached_property import cached_property
from zklock._ground.clock import clock
from zklock._shell.refusals import FOREIGN, NO_QUORUM, READ_ONLY, Refusal, of_tls, refusal
from zklock.cli.view.checkup import Limits, Rights, Server
from zklock.cli.view.model import below, signed
from zklock.cli.view.reader import answer
from zklock.testing.errors import NotServing
from zklock.testing.status import ServerStatus, connected, four_letter

_SECONDS = 3.0
_SAMPLES = 20
_LONGEST_ANSWER = 2**26  # bytes
QUICK = 1.0
"""Seconds to wait for what is nice to know."""

_CONNECTION = re.compile(r"^ ?[^\s/]*/(\S+)\[[0-9a-f]+\]\(.*,sid=0x([0-9a-f]+)", re.MULTILINE)
_LOG = "look at its log"


class Asked:
    """A server that is asked, and its admin server, which answers over HTTP.

    Hosts may run several servers, and ports may be those of other programs. So only an admin server
    that names the server's port is believed; behind TLS, any, as it does not name that one.
    ``admin_port`` 0: there is none.
    """

    def __init__(
        self,
        host: str,
        port: int,
        admin_port: int = 0,
        tls: SSLContext | None = None,
        seconds: float | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.tls = tls
        self.seconds = seconds or _SECONDS
        self._admin_port = admin_port

    @cached_property
    def configuration(self) -> Mapping[str, Any]:
        """Return what the admin server says of the configuration; nothing if it is not believed."""
        found = self._told("configuration")
        return found if self.tls is not None or self.port == found.get("client_port") else {}

    def ask(self, command: str) -> Mapping[str, Any]:
        """Return the admin server's answer to a command, empty if there is none."""
        return self._told(command) if self.configuration else {}

    def word(self, word: str) -> str:
        """Return the server's answer to a four-letter word."""
        return four_letter(self.host, self.port, word, timeout=self.seconds, tls=self.tls)

    def _told(self, command: str) -> Mapping[str, Any]:
        if not self._admin_port:
            return {}
        try:
            with closing(HTTPConnection(self.host, self._admin_port, timeout=self.seconds)) as http:
                http.request("GET", f"/commands/{command}")
                told = json.loads(http.getresponse().read(_LONGEST_ANSWER))
            good = told["command"] == command and not told.get("error")
        except (OSError, HTTPException, ValueError, TypeError, LookupError, RecursionError):
            return {}
        return told if good else {}


def server(at: Asked) -> Server:
    """Return what a server says of itself."""
    name = f"{at.host}:{at.port}"
    try:
        text = at.word("srvr")
        if "not in the whitelist" in text:
            return Server(name)
        it = ServerStatus.parse(text)
        return Server(name, it.mode, it.version, READ_ONLY if it.mode == "read-only" else None)
    except NotServing:
        trouble = NO_QUORUM
    except SSLError as error:
        cut = Refusal(f"cannot be asked over TLS: {error.reason or error}", _LOG)
        trouble = of_tls(error) or _why(at) or cut
    except (TimeoutError, BrokenPipeError, ConnectionResetError):
        trouble = _why(at) or Refusal(f"is silent for {at.seconds:g} s", _LOG)
    except ValueError:
        trouble = _why(at) or FOREIGN
    except OSError as error:
        trouble = Refusal(
            f"cannot be reached: {error.strerror or error}",
            "check that it runs, and check the network; if it is gone for good, remove it from "
            "--hosts",
        )
    return Server(name, trouble=trouble)


def _why(at: Asked) -> Refusal | None:
    """Return why a server gives no answer; behind TLS, a plain question is waited for to its end.

    ``None`` if it does not show it, or answers by now.
    """
    return refusal(
        lambda secure: connected(at.host, at.port, QUICK, at.tls if secure else None),
        at.tls is not None,
    )


def limits(at: Asked) -> Limits | None:
    """Return what a server grants; ``None`` if neither it nor its admin server tells."""
    with suppress(OSError, LookupError, ValueError):
        said = dict(line.partition("=")[::2] for line in at.word("conf").splitlines())
        keys = "tickTime", "minSessionTimeout", "maxSessionTimeout"
        voters = sum(
            key.startswith("server.") and not value.partition(";")[0].endswith(":observer")
            for key, value in said.items()
        )
        tick, shortest, longest = (int(said[it]) / 1000 for it in keys)
        return Limits("from its configuration", tick, shortest, longest, voters)
    with suppress(LookupError, TypeError, ValueError):
        told = at.configuration
        keys = "tick_time", "min_session_timeout", "max_session_timeout"
        voters = len(at.ask("voting_view").get("current_config") or ())
        tick, shortest, longest = (float(told[it]) / 1000 for it in keys)
        return Limits("from its admin server", tick, shortest, longest, voters)
    return None


def connections(at: Asked) -> dict[int, str]:
    """Return the addresses of a server's clients by session, as far as it tells.

    Its admin server is asked if the server does not obey ``cons``.
    """
    found: dict[int, str] = {}
    with suppress(OSError):
        told = _CONNECTION.findall(at.word("cons"))
        found = {signed(int(session, 16)): address for address, session in told}
    said = {} if found else at.ask("connections")
    with suppress(LookupError, TypeError, ValueError):
        for one in [*said.get("connections", ()), *said.get("secure_connections", ())]:
            address = str(one["remote_socket_address"]).rpartition("/")[2]
            found[signed(int(one["session_id"]))] = address
    return found


def read_times(client: KazooClient) -> list[float]:
    """Return how long some reads take, in seconds, one after the other."""
    return _timed(client, lambda: client.exists_async("/"))


def write_times(client: KazooClient) -> list[float]:
    """Return how long some writes take that change nothing: a heartbeat is such a write."""

    def check() -> Any:
        transaction = client.transaction()
        transaction.check("/", -1)
        return transaction.commit_async()

    return _timed(client, check)


def _timed(client: KazooClient, ask: Callable[[], Any]) -> list[float]:
    times = []
    for _ in range(_SAMPLES):
        began = clock()
        with suppress(NoAuthError):  # it takes as long
            answer(client, ask, "/")
        times.append(clock() - began)
    return times


def exposed(client: KazooClient, path: str) -> bool | None:
    """Whether a node's ACL lets anybody delete its children; ``None`` if it may not be read."""
    try:
        acls, _ = answer(client, lambda: client.get_acls_async(path), path)
    except KazooException:
        return None
    anyone = [acl.perms for acl in acls if (acl.id.scheme, acl.id.id) == ("world", "anyone")]
    return any(perms & Permissions.DELETE for perms in anyone)


def own_rights(client: KazooClient, path: str) -> Rights | None:
    """Return what this client may do on a node, found out by a transaction that cannot succeed.

    ZooKeeper tries its parts in order, and takes all of them back. Whether this client may delete
    is not known if it may not create. ``None`` if nothing could be tried.
    """
    name = below(path, f"zklock-doctor-{uuid4().hex}")

    def tried() -> Any:
        transaction = client.transaction()
        transaction.create(name, ephemeral=True)
        transaction.delete(name)
        transaction.check(f"{name}-that-is-not-there", -1)
        return transaction.commit_async()

    try:
        created, deleted, _ = answer(client, tried, path)
        if isinstance(created, SessionExpiredError):  # so a follower says it of a local session
            created = EphemeralOnLocalSessionError()
        if isinstance(created, EphemeralOnLocalSessionError | QuotaExceededError):
            return Rights(refusal=MEANINGS[created.code].hint)
        if not isinstance(created, RolledBackError | NoAuthError):
            return None
        lacking = ["create"] if isinstance(created, NoAuthError) else []
        lacking += [] if lacking or isinstance(deleted, RolledBackError) else ["delete"]
        with suppress(NoAuthError):
            answer(client, lambda: client.get_children_async(path), path)
            return Rights(lacking)
        return Rights([*lacking, "read"])
    except (KazooException, zklock.NoAnswer):
        return None
