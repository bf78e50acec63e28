"""Make, start and end clients."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    NoAuthError,
    SessionExpiredError,
)
from kazoo.protocol.states import KazooState, KeeperState

from zklock._core.failures import translate
from zklock._ground import threads
from zklock._ground.addresses import server_name
from zklock._ground.context_exit import HeldContext
from zklock._ground.events import Event
from zklock._ground.not_copyable import NotCopyable
from zklock._ground.numbers import check_number
from zklock._shell import options
from zklock._shell.client import check_handler, check_process, serve
from zklock._shell.client_state import nothing
from zklock._shell.handler import Handler
from zklock._shell.refusals import Refusal
from zklock._shell.repeats import Repeats
from zklock.errors import ClientClosed, ClientUnusable, NoAnswer

LONGEST_TIMEOUT = (2**31 - 1) // 1000
"""The most seconds of a session timeout: a handshake has it in milliseconds, in 32 bits."""
STUCK_SECONDS = 1.0
"""Seconds to wait for a client to stop; only the look-up of a name can take it longer."""
_REFUSING = (AuthFailedError, ConnectionClosedError)
"""Errors of the first request that mean refused credentials."""
_PASSING = (ConnectionLoss, SessionExpiredError)
"""Errors of the first request that say nothing about the credentials."""


class Client(HeldContext, NotCopyable, KazooClient):  # type: ignore[misc]
    """A started ``KazooClient``, as :func:`connect` makes it. All of kazoo's methods work on it.

    It is a context manager: leaving the body stops and closes it. That ends its session, so its
    locks are free at once; what it still holds is lost, with ``LossReason.CLIENT_CLOSED``. In a
    forked child this does nothing, like ``stop()`` and ``close()``: the connection is the parent's.
    ``handler`` is its :class:`Handler`.
    """

    _INSTEAD = "make another one, in another process too: zklock.connect()"

    handler: Handler
    hosts: list[tuple[str, int]]
    chroot: str
    connected: bool
    state: str

    def set_hosts(self, hosts: Any, randomize_hosts: bool | None = None) -> None:
        """Use these servers from the next connection on, with the same chroot; see kazoo.

        Raises ``TypeError`` or ``ValueError`` for what cannot be a server; nothing changes then.
        """
        options.check_hosts(hosts)
        try:
            super().set_hosts(hosts, randomize_hosts)
        finally:  # with another chroot, kazoo raises, and has the new servers nevertheless
            if isinstance(self.handler, Handler):
                self.handler.serve_hosts(self.hosts)

    def start_async(self) -> Any:
        """Start; see kazoo. In a forked child, every way to start raises ``ForkedClient``."""
        check_process(self)
        return super().start_async()

    def stop(self) -> None:
        """End the session; see kazoo. Does nothing in a forked child.

        In a finalizer, while the interpreter shuts down, this closes the connection alone, and
        does not wait: no thread runs that could end the session, which ends by its timeout.
        """
        if self.handler.forked:
            return
        if sys.is_finalizing():
            self.handler.drop()
        else:
            super().stop()

    def close(self) -> None:
        """Free what a stopped client uses; see kazoo. Does nothing in a forked child."""
        if not (self.handler.forked or sys.is_finalizing()):
            super().close()

    def add_auth_async(self, scheme: str, credential: str) -> Any:
        """Send credentials to the server, as on each later connection; see kazoo.

        Raises ``TypeError`` or ``ValueError`` for what cannot be sent; nothing changes then.
        """
        options.credentials([(scheme, credential)], "add_auth()")
        return super().add_auth_async(scheme, credential)

    def _leave_body(self, error: BaseException | None) -> None:
        """Stop and close. Blocks until its threads have ended."""
        _end_aside(self).result()

    def _abandon_body(self) -> None:
        abandon(self)  # maybe its end was not begun

    def __repr__(self) -> str:
        servers = ",".join(server_name(host, port) for host, port in self.hosts)
        # Just after it has connected, kazoo's state may still be LOST.
        state = "connected" if self.connected else self.state.lower()
        if self.client_state == KeeperState.CLOSED:
            state = "closed"
        return f"<{type(self).__name__} {servers}{self.chroot} {state}>"


def connect(
    hosts: str = "127.0.0.1:2181",
    timeout: float = 10.0,
    *,
    start_timeout: float = 15.0,
    **kazoo_options: Any,
) -> Client:
    """Return a started ``KazooClient`` with zklock's handler.

    ::

        client = zklock.connect(hosts)  # client.stop() and client.close() end it
        with zklock.connect(hosts) as client:  # stopped and closed at the end
            ...

    - ``hosts``: ``"host:port,host:port…"``, with an optional chroot after the last one.
    - ``timeout``: the session timeout to ask for, in seconds. The server may grant another one, by
      default from 2 to 20 of its ticks: a log line says so.
    - ``start_timeout``: seconds to wait for the first connection, ``math.inf`` for no limit.
    - Everything else goes to ``kazoo.client.KazooClient``: TLS (``use_ssl=True, ca=…``), SASL,
      ACLs, a logger.

    Raises ``TypeError`` or ``ValueError`` for arguments that cannot be used. kazoo raises the same
    for an unknown option. Raises ``ClientUnusable`` if a library for SASL is missing.

    Raises ``NoAnswer`` if there is no connection after ``start_timeout``. The message says for each
    server what happened: its name was not resolved, it refused, it was silent. Then nothing is left
    running. One exception: a name look-up that hangs in the system may outlive the call. Raises
    ``ClientClosed`` if the servers refuse the credentials, and ``AccessDenied`` if they require
    some.

    While disconnected, the client tries again at least every second. (With kazoo's default, the
    waits grow.) Pass ``connection_retry`` for something else. Its log lines about that come once a
    minute, with a count; pass ``logger`` for all of them.
    """
    client = new_client(hosts, timeout, start_timeout=start_timeout, **kazoo_options)
    patience = min(start_timeout, threading.TIMEOUT_MAX)
    outcomes: list[tuple[Exception | None, bool]] = []
    over = Event()

    def done(*outcome: Any) -> None:
        outcomes.append(outcome)
        over.set()

    try:
        begin(client, patience, done)
        if not over.wait(patience):
            raise no_server(client, hosts, start_timeout)
        error, rootless = outcomes[0]
        if error is not None:
            raise error
        if rootless:
            warn_of_chroot(client)
        HeldContext._get_ready(client)
    except BaseException:
        try:
            abandon(client)
        except BaseException:  # a second interrupt
            abandon(client)
            raise
        raise
    return client


def new_client(
    hosts: str, timeout: float, *, start_timeout: float = 15.0, **kazoo_options: Any
) -> Client:
    """Check all arguments of :func:`connect`, and return its client, not started."""
    for name, seconds in (("timeout", timeout), ("start_timeout", start_timeout)):
        check_number(name, seconds, "seconds", lambda it: it > 0, "more than 0 seconds")
    most = f"at most {LONGEST_TIMEOUT} seconds"
    check_number("timeout", timeout, "seconds", lambda it: it <= LONGEST_TIMEOUT, most)
    # kazoo cuts it to whole milliseconds; with 0, it tries no server.
    least = "at least 0.001 seconds"
    check_number("timeout", timeout, "seconds", lambda it: int(it * 1000) > 0, least)
    handler = kazoo_options.setdefault("handler", Handler())
    if not isinstance(handler, Handler):
        raise ClientUnusable("connect() needs a zklock.Handler; make other clients with kazoo")
    kazoo_options.setdefault(
        "connection_retry", {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
    )
    if not kazoo_options.get("logger"):
        kazoo_options["logger"] = Repeats(logging.getLogger("kazoo.client"))
    if kazoo_options.get("auth_data"):
        kazoo_options["auth_data"] = options.credentials(kazoo_options["auth_data"])
    if kazoo_options.get("sasl_options") is not None:
        kazoo_options["sasl_options"] = told = options.sasl(kazoo_options["sasl_options"])
        if told["mechanism"] == "GSSAPI":
            handler.obtain_ticket = partial(options.obtain_ticket, told)
    options.check(kazoo_options)
    check_handler(handler)
    client = Client(hosts, timeout, **kazoo_options)
    serve(handler, client)
    return client


def begin(
    client: Client,
    start_timeout: float,
    done: Callable[[Exception | None, bool], object],
    too_late: Callable[[], object] = nothing,
) -> None:
    """Start a client and return; ``done(error, rootless)`` is called when it is in, or refused.

    ``rootless``: it has a chroot that does not exist. kazoo reports a connection before the servers
    have accepted the credentials. Those that insist on some refuse the first request.
    ``too_late()`` is called at each further try once ``start_timeout`` is over.
    """
    over: list[bool] = []

    def on_state(state: str) -> bool:
        if state == KazooState.CONNECTED and not over:
            client.exists_async("/").rawlink(answered)
        return bool(over)  # kazoo then forgets this listener

    def answered(answer: Any) -> None:
        error = answer.exception
        if isinstance(error, _PASSING):
            return  # it is asked again with the next connection
        over.append(True)
        if error is None:
            done(None, bool(client.chroot) and answer.value is None)
        else:
            done(_verdict(client, error), False)

    client.add_listener(on_state)
    client.handler.starting(start_timeout, too_late)
    client.start_async()


def warn_of_chroot(client: Client) -> None:
    """Warn whoever has called the caller that the client's chroot is missing."""
    warnings.warn(f"the chroot {client.chroot} does not exist: create it", stacklevel=3)


def no_server(client: Client, hosts: str, start_timeout: float) -> NoAnswer:
    """Return the error to raise when no server has answered; it says why, for each server."""
    servers = dict.fromkeys(server_name(host.strip(), port) for host, port in client.hosts)
    met = {server: client.handler.met(server) for server in servers}
    # kazoo resolves all names before it tries the first server.
    untried = (
        "was not tried in time, or its name was not resolved"
        if any(met.values())
        else "has a name that was not resolved"
    )
    causes = "; ".join(f"{server} {what or untried}" for server, what in met.items())
    known = all(isinstance(what, Refusal) for what in met.values())
    todo = "" if known else ". Check the addresses, and that a quorum is up"
    return NoAnswer(
        f"no ZooKeeper server of {hosts} answered within {start_timeout} s: {causes}{todo}"
    )


def end(client: Client) -> None:
    """Stop a client and close its resources; blocks until its threads have ended."""
    client.stop()
    client.close()


def _end_aside(client: Client) -> Future[None]:
    """End a client on a thread of its own: an interrupt of the caller does not strike there.

    kazoo's ``stop()`` that is interrupted before it has woken the connection thread waits for ever.
    """
    ended: Future[None] = Future()

    def work() -> None:
        try:
            end(client)
        except Exception as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    try:
        threads.start(work, "zklock-stop")
    except threads.NoThread:
        work()
    return ended


def abandon(client: Client) -> None:
    """End a client, and do not mind its errors; if it is stuck, it ends later.

    It may be stuck in the look-up of a name. One that was interrupted may be half started.
    """
    _, stuck = wait([_end_aside(client)], STUCK_SECONDS)
    if stuck:  # kazoo goes on with a server that ends no SASL, as long as the connection lasts
        client.handler.drop()


def _verdict(client: Client, error: Exception) -> Exception | None:
    """Return what to raise for an error of the first request; ``None`` if the client is let in."""
    if isinstance(error, _REFUSING):
        refused = ClientClosed(
            "ZooKeeper refused the client's credentials: correct sasl_options, or auth_data"
        )
        refused.__cause__ = error
        return refused
    failed = translate(error, client.chroot or "/")
    # Busy, or not permitted: they take the credentials, which permit other things.
    return None if failed.busy or isinstance(error, NoAuthError) else failed.error
