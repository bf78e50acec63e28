"""Contenders on an in-memory ZooKeeper, step by step and under faults of every kind."""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis.stateful import Bundle, invariant, multiple, rule

from tests.fakes import Client, FakeGrant, Server, outcome, settle, uuids
from tests.unit.network import CLIENTS, Network
from zklock._recipes import lock as lock_recipe


class Contender:
    """One acquire, as a caller sees it."""

    def __init__(self, client: Client, entry: Any) -> None:
        self.client = client
        self.entry: Any = entry
        self.attempt = client.acquire(entry)
        self.gave_up = self.interrupted = False

    @property
    def outcome(self) -> Any:
        return outcome(self.attempt)

    @property
    def waits(self) -> bool:
        """Whether there is no outcome yet."""
        return self.outcome is ...

    @property
    def grant(self) -> FakeGrant | None:
        """What it has been granted, and is not over."""
        held = self.outcome
        return held if isinstance(held, FakeGrant) and not held.over else None

    def give_back(self) -> None:
        grant = self.outcome
        grant.over = True
        self.client.attempt(grant.give_back, recover=grant.give_back).start()


class World:
    """A server, some clients, and what they want."""

    def __init__(self, clients: int) -> None:
        self.server = Server()
        self.clients = [Client(self.server) for _ in range(clients)]
        self.uuids = uuids()

    def new_uuid(self) -> str:
        return next(self.uuids)

    def entry(self, **terms: Any) -> lock_recipe.Entry:
        """Return a contender as the recipe sees it."""
        raise NotImplementedError

    def contender(self, client: int = 0, **terms: Any) -> Contender:
        return Contender(self.clients[client], self.entry(**terms))

    def start(self, client: int = 0, **terms: Any) -> Contender:
        contender = self.contender(client, **terms)
        contender.attempt.start()
        return contender

    def granted(self, client: int = 0, **terms: Any) -> Any:
        """Return the grant, or what else comes of it."""
        contender = self.start(client, **terms)
        settle([self.clients[client]])
        return contender.outcome

    def settle(self) -> None:
        settle(self.clients)

    def ask(self, recipe: Any, client: int = 0) -> Any:
        """Run a recipe to its end."""
        attempt = self.clients[client].attempt(lambda: recipe).start()
        self.settle()
        return outcome(attempt)


class Faults(Network):
    """Contenders of three clients, while everything goes wrong that can.

    Checked after every step: what must hold. Checked in the end, when nothing fails any more:
    everybody who still waits is served, in turn, and nothing is left behind.
    """

    contenders: Bundle[Contender] = Bundle("contenders")
    MOST: ClassVar[int]

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world: Any = world
        self.all: list[Contender] = []

    @property
    def server(self) -> Server:
        return self.world.server  # type: ignore[no-any-return]

    @property
    def clients(self) -> list[Client]:
        return self.world.clients  # type: ignore[no-any-return]

    def begin(self, client: int, **terms: Any) -> Any:
        """Return a new contender, if there are not many."""
        if len(self.all) >= self.MOST:
            return multiple()
        self.all.append(self.world.contender(client, **terms))
        return self.all[-1]

    def release_one(self) -> bool:
        """Have a holder release; return whether there was one."""
        raise NotImplementedError

    def left(self) -> list[str]:
        """Return what is left behind."""
        raise NotImplementedError

    @rule(contender=contenders)
    def give_up_in_the_middle_of_the_next_step(self, contender: Contender) -> None:
        """As if from another thread, which gets in between."""
        contender.gave_up = True
        contender.client.on_batch = contender.attempt.cancel

    @invariant()
    def all_is_well(self) -> None:
        """Fail if a promise is broken."""
        raise NotImplementedError

    def teardown(self) -> None:
        """Nothing fails from here on."""
        self.server.bury()
        for client in self.clients:
            client.interrupt_in = client.on_batch = None
        goes_on = True
        while goes_on:
            self.world.settle()
            self.all_is_well()
            goes_on = self.release_one()
        for contender in self.all:
            assert not contender.waits, "left waiting for what is free"
            if contender.outcome is None:
                assert contender.gave_up or not contender.entry.patient
        assert self.left() == []
        assert [client.attempts for client in self.clients] == [0] * CLIENTS
