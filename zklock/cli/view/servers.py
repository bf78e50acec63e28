"""Asks the servers themselves: what they are, what they grant, and how fast they answer."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from socket import socket
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
from zklock._shell.refusals import FOREIGN, NO_QUORUM, Refusal, of_tls, refusal
from zklock.cli.view.checkup import Limits, Rights, Server
from zklock.cli.view.model import below, signed
from zklock.cli.view.reader import answer
from zklock.testing.errors import NotServing
from zklock.testing.sessions import CLOSE, connecting, received
from zklock.testing.status import ServerStatus, connected, four_letter
from zklock.testing.zookeeper.codec import (
    ANSWERED,
    ASKED,
    CONNECTED,
    PING_XID,
    Malformed,
    Op,
    framed,
)

_SECONDS = 3.0
_SAMPLES = 20

_PING = framed(ASKED.pack((PING_XID, Op.PING)))
_SESSION = 10_000  # milliseconds
_TRIES = 4
_LONGEST = 2**31 - 1
_LONGEST_ANSWER = 2**26  # bytes
QUICK = 1.0
"""Seconds to wait for what is nice to know."""

_SESSIONS = "SessionTracker dump:"
_CONNECTION = re.compile(r"^ ?[^\s/]*/(\S+)\[[0-9a-f]+\]\(.*,sid=0x([0-9a-f]+)", re.MULTILINE)


class Asked:
    """A server that is asked, and its admin server, which answers over HTTP.

    Hosts may run several servers, and ports may be those of other programs. So only an admin server
    that names the server's port is believed; behind TLS, any, as it does not name that one. It is
    asked no more after the first failure. ``admin_port`` 0: there is none.
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
        self._ahead: tuple[float, float] | None = None

    @cached_property
    def configuration(self) -> Mapping[str, Any]:
        """Return what the admin server says of the configuration; nothing if it is not believed."""
        found = self._told("configuration")
        if self.tls is None and self.port != found.get("client_port"):
            self._admin_port, found = 0, {}
        return found

    @property
    def ahead(self) -> tuple[float, float] | None:
        """Seconds by which the server's clock is ahead of this machine's, at least and at most."""
        return self._ahead if self.configuration else None

    def ask(self, command: str) -> Mapping[str, Any]:
        """Return the admin server's answer to a command, empty if there is none."""
        return self._told(command) if self.configuration else {}

    def word(self, word: str) -> str:
        """Return the server's answer to a four-letter word."""
        return four_letter(self.host, self.port, word, timeout=self.seconds, tls=self.tls)

    def _told(self, command: str) -> Mapping[str, Any]:
        if not self._admin_port:
            return {}
        connection = HTTPConnection(self.host, self._admin_port, timeout=self.seconds)
        try:
            began = time.time()
            connection.request("GET", f"/commands/{command}")
            answer = connection.getresponse()
            told = json.loads(answer.read(_LONGEST_ANSWER))
            if told["command"] != command:
                raise ValueError
            date = parsedate_to_datetime(answer.headers["Date"]).timestamp()
            # A date is cut to whole seconds, and may have been made up to a second before.
            self._ahead = date - time.time(), date + 2.0 - began
        except (OSError, HTTPException, ValueError, TypeError, LookupError, RecursionError):
            self._admin_port = 0
            return {}
        finally:
            connection.close()
        return told if isinstance(told, dict) and not told.get("error") else {}


def server(at: Asked) -> Server:
    """Return what a server says of itself, or its admin server of it."""
    name, ahead = f"{at.host}:{at.port}", at.ahead
    try:
        text = at.word("srvr")
        if "not in the whitelist" not in text:
            it = ServerStatus.parse(text)
            return Server(name, it.mode, it.version, outstanding=it.outstanding, ahead=ahead)
        trouble = None
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
    told = at.ask("server_stats")
    with contextlib.suppress(KeyError, TypeError, ValueError):
        said = told["server_stats"]
        mode, version = str(said["server_state"]), str(told["version"]).partition("-")[0]
        waiting = int(said["outstanding_requests"])
        return Server(name, mode, version, outstanding=waiting, ahead=ahead)
    what, todo = trouble or (None, "")
    return Server(name, trouble=what, todo=todo, ahead=ahead)


_LOG = "look at its log"


def _why(at: Asked) -> Refusal | None:
    """Return why a server gives no answer; behind TLS, a plain question is waited for to its end.

    ``None`` if it does not show it, or answers by now.
    """
    return refusal(
        lambda secure: connected(at.host, at.port, QUICK, at.tls if secure else None),
        at.tls is not None,
    )


def limits(at: Asked) -> Limits | None:
    """Return what a server grants.

    It is in its configuration, which the server or its admin server tells. If they do not, two
    sessions measure the shortest and the longest timeout. By default these are 2 and 20 ticks. The
    tick is not known from others: each of the two may be set.
    """
    with contextlib.suppress(OSError, ValueError):
        lines = at.word("conf").splitlines()
        said = dict(line.partition("=")[::2] for line in lines if "=" in line)
        if "tickTime" in said:
            return Limits(
                "from its configuration",
                int(said["tickTime"]) / 1000,
                int(said["minSessionTimeout"]) / 1000 if "minSessionTimeout" in said else None,
                int(said["maxSessionTimeout"]) / 1000 if "maxSessionTimeout" in said else None,
                int(said["syncLimit"]) if "syncLimit" in said else None,
                # Old servers do not name their ensemble.
                sum(_is_voter(*pair) for pair in said.items())
                or (None if "syncLimit" in said else 0),
                per_address=int(said.get("maxClientCnxns", 0)),
            )
    with contextlib.suppress(KeyError, TypeError, ValueError):
        told = at.configuration
        view = at.ask("voting_view").get("current_config")
        return Limits(
            "from its admin server",
            float(told["tick_time"]) / 1000,
            float(told["min_session_timeout"]) / 1000,
            float(told["max_session_timeout"]) / 1000,
            voters=len(view) if isinstance(view, dict) else None,
        )
    with contextlib.suppress(OSError, Malformed):
        shortest, longest = (_granted(at, asked) for asked in (1, _LONGEST))
        usual = abs(longest - 10 * shortest) < 0.001
        return Limits(
            "half of the shortest session timeout: the longest is ten times that, as is the "
            "default",
            shortest / 2 if usual else None,
            shortest,
            longest,
        )
    return None


def connections(at: Asked) -> dict[int, str] | None:
    """Return the addresses of a server's clients by session; ``None`` if it does not tell.

    Its admin server is asked if the server does not obey ``cons``.
    """
    with contextlib.suppress(OSError):
        text = at.word("cons")
        if "(queued=" in text:
            return {signed(int(sid, 16)): address for address, sid in _CONNECTION.findall(text)}
    told, found = at.ask("connections"), {}
    if "connections" not in told:
        return None
    with contextlib.suppress(KeyError, TypeError, ValueError):
        for one in [*told["connections"], *told.get("secure_connections", [])]:
            address = str(one["remote_socket_address"]).rpartition("/")[2]
            found[signed(int(one["session_id"]))] = address
    return found


def sessions(at: Asked) -> set[int] | None:
    """Return the sessions that live; ``None`` if the server does not obey ``dump``.

    ``OSError`` if it gives no answer, or none now.
    """
    text = at.word("dump")
    if "not in the whitelist" in text:
        return None
    if not text.startswith(_SESSIONS):
        raise ConnectionError(f"{at.host}:{at.port} does not report its sessions now")
    return {signed(int(found, 16)) for found in re.findall("0x([0-9a-f]+)", text)}


def _is_voter(key: str, value: str) -> bool:
    """Whether a line of the configuration names a voter, and not an observer."""
    return key.startswith("server.") and not value.partition(";")[0].endswith(":observer")


def _granted(at: Asked, asked: int) -> float:
    """Return the session timeout that is granted to a session that is ended at once."""
    with connected(at.host, at.port, at.seconds, at.tls) as connection:
        milliseconds = _begun(connection, asked)
        connection.sendall(CLOSE)
        return float(milliseconds) / 1000


def sessions_are_local(at: Asked) -> bool:
    """Whether a server keeps new sessions to itself: to make one is no transaction then.

    Others may write meanwhile, so sessions that are local may be taken for global ones.
    """
    seen: list[int] = []
    with contextlib.suppress(OSError, Malformed), ExitStack() as stack:
        for _ in range(_TRIES):
            opening = connected(at.host, at.port, at.seconds, at.tls)
            connection = stack.enter_context(opening)
            _begun(connection, _SESSION)
            stack.callback(_send_close, connection)
            connection.sendall(_PING)
            seen.append(ANSWERED.unpack(received(connection))[0][1])
            if seen[-1] in seen[:-1]:
                return True
    return False


def _send_close(connection: socket) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(CLOSE)


def _begun(connection: socket, asked: int) -> int:
    """Begin a session; return the timeout that is granted, in milliseconds."""
    connection.sendall(connecting(0, bytes(16), asked))
    return int(CONNECTED.unpack(received(connection))[0][1])


def alike(found: Mapping[int, str], session: int) -> int:
    """Return how many connections are from the address of this session's; 0 if it is missing."""
    host = found.get(session, "").rpartition(":")[0]
    return sum(address.rpartition(":")[0] == host for address in found.values()) if host else 0


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
        with contextlib.suppress(NoAuthError):  # it takes as long
            answer(client, ask, "/")
        times.append(clock() - began)
    return times


def rights(client: KazooClient, path: str) -> Rights | None:
    """Return what a node's ACL grants to everybody; ``None`` if it may not be read."""
    try:
        acls, _ = answer(client, lambda: client.get_acls_async(path), path)
    except KazooException:
        return None
    granted = 0
    for acl in acls:
        if (acl.id.scheme, acl.id.id) == ("world", "anyone"):
            granted |= acl.perms
    return Rights(
        path,
        create=bool(granted & Permissions.CREATE),
        delete=bool(granted & Permissions.DELETE),
        read=bool(granted & Permissions.READ),
    )


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
            hint = MEANINGS[created.code].hint
            return Rights(path, False, None, _reads(client, path), refusal=hint)
        if not isinstance(created, RolledBackError | NoAuthError):
            return None
        creates = isinstance(created, RolledBackError)
        deletes = isinstance(deleted, RolledBackError) if creates else None
        return Rights(path, creates, deletes, _reads(client, path))
    except (KazooException, zklock.NoAnswer):
        return None


def _reads(client: KazooClient, path: str) -> bool:
    try:
        answer(client, lambda: client.get_children_async(path), path)
    except NoAuthError:
        return False
    return True
