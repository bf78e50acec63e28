"""What the network, the servers and the clients' threads do to a recipe, as Hypothesis's rules."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.fakes import Client, Server

CLIENTS = 3
which = st.integers(0, CLIENTS - 1)
few = st.integers(0, 4)


class Network(RuleBasedStateMachine):
    """A server and ``CLIENTS`` clients, while everything goes wrong between them that can."""

    @property
    def server(self) -> Server:
        """The server."""
        raise NotImplementedError

    @property
    def clients(self) -> Sequence[Client]:
        """Its clients."""
        raise NotImplementedError

    @rule(client=which, count=few)
    def serve(self, client: int, count: int) -> None:
        self.clients[client].serve(count)

    @rule(client=which, count=few)
    def deliver(self, client: int, count: int) -> None:
        self.clients[client].deliver(count)

    @rule(client=which, count=few)
    def advance(self, client: int, count: int) -> None:
        link = self.clients[client].link
        if link is not None:
            link.advance(count)

    @rule(client=which, rounds=st.integers(1, 6))
    def go_on(self, client: int, rounds: int) -> None:
        for _ in range(rounds):
            self.clients[client].settle()

    @rule(client=which, carried_out=few)
    def lose_connection(self, client: int, carried_out: int) -> None:
        self.clients[client].lose_connection(carried_out=carried_out)

    @rule(client=which, lag=st.integers(0, 8))
    def reconnect(self, client: int, lag: int) -> None:
        self.clients[client].reconnect(lag=lag)

    @rule(client=which, lingering=st.booleans())
    def expire(self, client: int, lingering: bool) -> None:
        self.server.expire(self.clients[client].session, lingering=lingering)

    @rule()
    def bury(self) -> None:
        self.server.bury()

    @rule(client=which)
    def refuse_a_claim(self, client: int) -> None:
        self.clients[client].refusals += 1

    @rule(client=which)
    def renew_lease(self, client: int) -> None:
        self.clients[client].renew_lease()

    @rule(client=which)
    def run_job(self, client: int) -> None:
        self.clients[client].run_job()
