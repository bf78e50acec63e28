"""Which states of the explorer are the same: two spellings of a `World`.

``exact`` leaves out what follows from the rest, or is read by nobody. Two worlds that it spells
alike are equal but for that.

``spelled`` also leaves out what can make no difference any more. Two worlds that it spells alike go
on alike, under other names:

1. *The past.* What every server and client has seen is a tree, and not the transactions that led to
   it. A client that cannot lose its connection any more needs no memory of what it has seen. Of an
   attempt that is over, the outcome is left. Of a grant that is over, of a node that was deleted,
   or was a client's own: whether its path is still on the way to somebody. Of an error, its class.
2. *Names.* New UUIDs, sessions, transaction numbers and sequence numbers are only compared with
   others. So UUIDs and sessions are numbered as they are met, the rest by its order. (Sequence
   numbers start again in a parent that is made again. They are spelled as they are where that has
   happened, or may still happen.)
3. *Dead variables.* A local variable of a suspended generator counts only if the code may read it
   before it writes it (`live`).
4. *Clients are alike.* When each of them may act, their order does not matter. They are put in
   order by what they do just now.

That the first three lose nothing is not only argued: a test compares, for each state that ``exact``
tells apart, what can be done in it, and where that leads
(``test_explorer.py::test_states_that_are_spelled_alike_go_on_alike``).
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import marshal
import re
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.fakes import Client, Closed, Created, FakeGrant, Link, Tree, outcome
from zklock._core.attempt import Attempt, Stage
from zklock._recipes import names
from zklock._recipes.effects import Create, Listing, Node
from zklock._recipes.lock import Entry
from zklock.token import FencingToken

if TYPE_CHECKING:
    from tests.unit.explorer import World


def exact(world: World) -> bytes:
    """Return what is the same for two worlds if they are equal but for what nobody reads."""
    spelling = Spelling()
    server = world.server
    spelling.add((server.log, sorted(server.sessions), server.dying, server.grants))
    spelling.add([client.link.tree.zxid if client.link else None for client in world.clients])
    spelling.add(
        (world.clients, world.attempts, world.left, world.acting, world.gave_up, world.chopped)
    )
    return digest(spelling.words)


def spelled(world: World, *, alike: bool = True) -> bytes:
    """Return what is the same for two worlds only if they go on in the same way.

    ``alike``: whether clients may change places, too.
    """
    return digest(Merging(world, alike=alike).result())


def digest(words: list[Any]) -> bytes:
    return hashlib.blake2b(marshal.dumps(words, 2), digest_size=12).digest()


# Things as words.

_PLAIN = frozenset({int, str, bytes, bool, float, type(None)})
_LEFT_OUT = {"tree", "sent", "bounds", "judged", "server", "clients"}
"""Attributes that follow from others, or that nobody reads."""


class Spelling:
    """Things written as plain words; one that was met before is written as its number."""

    def __init__(self) -> None:
        self.words: list[Any] = []
        self._met: dict[int, int] = {}
        self._kept: list[Any] = []

    def add(self, thing: Any) -> None:
        kind: Any = type(thing)
        if kind in _PLAIN:
            self.words.append(thing)
            return
        self.write(thing, *_ways(kind))

    def write(self, thing: Any, write: Write, has_identity: bool) -> None:
        if has_identity:
            number = self._met.get(id(thing))
            if number is not None:
                self.words += ("met", number)
                return
            self._met[id(thing)] = len(self._met)
            self._kept.append(thing)  # so that its id is not used again
        write(self, thing)

    def all(self, what: str, things: Any) -> None:
        self.words += (what, len(things))
        for each in things:
            self.add(each)

    def frames(self, generator: Any) -> None:
        """Write where a suspended generator is, and what it remembers."""
        frame = generator.gi_frame
        if frame is None:
            self.words.append("over")
            return
        # Their order there depends on when somebody has looked before.
        variables = dict(sorted(frame.f_locals.items()))
        self.all(generator.__qualname__, (frame.f_lasti, variables, generator.gi_yieldfrom))

    def function(self, function: Any) -> None:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        self.all("function", (function.__qualname__, *cells))

    def error(self, error: BaseException) -> None:
        self.all(type(error).__qualname__, error.args)

    def object(self, thing: Any) -> None:
        kind: Any = type(thing)
        self.words.append(kind.__qualname__)
        for name in _attributes(kind):
            self.add(getattr(thing, name, None))
        for name, value in getattr(thing, "__dict__", {}).items():
            if name not in _LEFT_OUT:
                self.words.append(name)
                self.add(value)


Write: TypeAlias = Callable[[Any, Any], object]
_WRITES: tuple[tuple[type | tuple[type, ...], Write], ...] = (
    (enum.Enum, lambda to, one: to.words.extend((type(one).__name__, one.name))),
    ((int, str, bytes, float), lambda to, one: to.words.append(one)),
    (tuple, lambda to, one: to.all("(", one)),
    ((list, deque), lambda to, one: to.all("[", one)),
    ((set, frozenset), lambda to, one: to.all("{", sorted(one))),
    (dict, lambda to, one: to.all("{:", [each for item in one.items() for each in item])),
    (types.GeneratorType, lambda to, one: to.frames(one)),
    (functools.partial, lambda to, one: to.all("partial", (one.func, one.args, one.keywords))),
    (types.MethodType, lambda to, one: to.all("method", (one.__func__.__qualname__, one.__self__))),
    (types.FunctionType, lambda to, one: to.function(one)),
    (types.BuiltinMethodType, lambda to, one: to.all("built in", (one.__qualname__, one.__self__))),
    (type, lambda to, one: to.words.append(one.__qualname__)),
    (types.ModuleType, lambda to, one: to.words.append(one.__name__)),
    (BaseException, lambda to, one: to.error(one)),
)


@functools.cache
def _ways(kind: Any) -> tuple[Write, bool]:
    """Return how things of a kind are written, and whether it matters which one a thing is."""
    alike = issubclass(kind, enum.Enum | int | str | bytes | float | tuple) or _is_value(kind)
    for kinds, write in _WRITES:
        if issubclass(kind, kinds):
            return write, not alike
    return Spelling.object, not alike


@functools.cache
def _attributes(kind: Any) -> tuple[str, ...]:
    slots = [getattr(each, "__slots__", ()) for each in kind.__mro__]
    return tuple(
        name
        for each in slots
        for name in ([each] if isinstance(each, str) else each)
        if name not in _LEFT_OUT and name not in ("__weakref__", "__dict__")
    )


@functools.cache
def _is_value(kind: Any) -> bool:
    """Whether which one it is does not matter, but only what is in it."""
    params = getattr(kind, "__dataclass_params__", None)
    return params is not None and params.frozen and kind.__eq__ is not object.__eq__


# What makes no difference.

_NAME = re.compile(r"(\d{8}-0000-4000-8000-0{12})(-lock-)?(\d{10})?$")
"""A UUID of `tests.fakes.uuids`, and what may follow it in a node's name."""


@functools.lru_cache(maxsize=100_000)
def _parts(text: str) -> tuple[str, str, str, int | None] | None:
    """Return what stands before a UUID, the UUID, what is behind it, the sequence number."""
    match = _NAME.search(text)
    if match is None:
        return None
    return text[: match.start()], match[1], match[2] or "", int(match[3]) if match[3] else None


class Merging(Spelling):
    """The words for one world. Numbers that only have an order are pairs at first: kind, number."""

    MERGED: dict[Any, tuple[Write, bool]]
    """How things of these types are written, and whether it matters which one a thing is."""

    def __init__(self, world: Any, *, alike: bool) -> None:
        super().__init__()
        self._world = world
        self._uuids: dict[str, int] = {}
        self._sessions: dict[int, int] = {}
        self._paths: set[str] = set()  # of the nodes whose names were met
        numbers = range(len(world.clients))
        # Those that may still need what they have seen: after a reconnection, or when they claim.
        self._looking_back = {
            client
            for number, client in enumerate(world.clients)
            if client.alive
            and (world.left or client.link is None or self._claims_what_is_gone(number))
        }
        seen = [client.seen for client in self._looking_back]
        links = [client.link for client in world.clients if client.link is not None]
        seen += [link.tree.zxid for link in links]
        self._base = min(seen, default=len(world.server.log))
        self._order = list(numbers)
        if alike and world.acting >= len(numbers) - 1:
            self._order.sort(key=self._doing)

    def _claims_what_is_gone(self, number: int) -> bool:
        """Whether a contender may claim a node that an operator has deleted."""
        uuid = self._world.entries[number].uuid
        waits = not self._world.attempts[number].done
        return waits and bool(uuid) and any(uuid in path for path in self._world.chopped)

    def _doing(self, number: int) -> tuple[Any, ...]:
        """Return what tells most clients apart; any order will do for the others."""
        client, link = self._world.clients[number], self._world.clients[number].link
        own = max((path[-10:] for path in client.own if path[-1].isdigit()), default="")
        stage = self._world.attempts[number]._stage.name
        wire: tuple[int, ...] = ()
        if link is not None:
            wire = link.tree.zxid, len(link.inbox), len(link.asked), link.closed
        put_off = client.unanswered, client.jobs, client.refusals, len(client.late)
        seen = client.seen if client in self._looking_back else 0
        return stage, own, client.alive, wire, put_off, seen

    def result(self) -> list[Any]:
        """Return the words."""
        world = self._world
        server, words = world.server, self.words
        words += (world.left, min(world.acting, len(self._order) - 1))
        for number in self._order:
            self.add(world.clients[number])
            self.add(world.attempts[number])
            words.append(number in world.gave_up)
        for session in server.dying:
            self.session(session)
        self._nodes()
        self._log()
        self.add(world.top)
        for grant in server.grants:
            if not grant.over:
                self.add(grant)
        self._past()
        return self._numbered()

    def _nodes(self) -> None:
        """Write the tree that all others follow from."""
        tree = self._tree()
        for path in sorted(tree.nodes.keys() - {"/"}, key=lambda path: (path[-10:], path)):
            node = tree.nodes[path]
            self.text(path)
            if node.owner:
                self.session(node.owner)
            else:
                self.words.append(("epoch", node.czxid))

    def _tree(self) -> Tree:
        for client in self._world.clients:
            if client.link is not None and client.link.tree.zxid == self._base:
                known: Tree = client.link.tree
                return known
        tree = Tree()
        for txn in self._world.server.log[: self._base]:
            tree.apply(txn)
        return tree

    def _log(self) -> None:
        self.words.append("log")
        for txn in self._world.server.log[self._base :]:
            self.words.append(type(txn).__name__)
            if isinstance(txn, Closed):
                self.session(txn.session)
            else:
                self.text(txn.path)
            if isinstance(txn, Created):
                self.session(txn.owner)

    def _past(self) -> None:
        """Write what is over, as far as somebody may still hear of it."""
        world = self._world
        over: dict[Client, set[str]] = {client: set() for client in world.clients}
        for grant in world.server.grants:
            if grant.over:
                over[grant.client].add(grant.path)
        for number in self._order:
            client = world.clients[number]
            for paths in (over[client], client.own):
                self._met_of(paths)
        self._met_of(world.chopped)

    def _met_of(self, paths: Iterable[str]) -> None:
        """Write the paths that were met, in the order in which they were."""
        numbers = [self._uuids[_uuid(path)] for path in paths if path in self._paths]
        self.words += ("of", len(numbers), *sorted(numbers))

    def _numbered(self) -> list[Any]:
        """Return the words, with numbers in place of the pairs."""
        world, words = self._world, self.words
        pairs = {word for word in words if type(word) is tuple}
        sequences = sorted(number for kind, number in pairs if kind == "sequence")
        epochs = sorted(number for kind, number in pairs if kind == "epoch")
        parent = world.server.tree.nodes.get(world.path)
        counter = -1 if parent is None else parent.counter
        again = bool(world.left and "tree" in world.bounds.kinds)
        if again or (sequences and sequences[-1] >= counter):
            words.append(counter)
            places = {("sequence", number): number for number in sequences}
        else:
            places = {("sequence", number): place for place, number in enumerate(sequences)}
        for place, number in enumerate(epochs):
            later = number > self._base  # its place in the log that was written
            places["epoch", number] = number - self._base if later else -1 - place
        return [places[word] if type(word) is tuple else word for word in words]

    # Words that are written in another way.

    def add(self, thing: Any) -> None:
        kind: Any = type(thing)
        if kind is str:
            self.text(thing)
        elif kind in _PLAIN:
            self.words.append(thing)
        else:
            self.write(thing, *(self.MERGED.get(kind) or _ways(kind)))

    def text(self, text: str) -> None:
        parts = _parts(text)
        if parts is None:
            self.words.append(text)
            return
        before, uuid, behind, sequence = parts
        number = self._uuids.setdefault(uuid, len(self._uuids))
        self.words += (before, number, behind)
        if sequence is not None:
            self._paths.add(text if text[0] == "/" else f"{self._world.path}/{text}")
            self.words.append(("sequence", sequence))

    def session(self, session: int) -> None:
        self.words.append(self._sessions.setdefault(session, len(self._sessions)))

    def frames(self, generator: Any) -> None:
        frame = generator.gi_frame
        if frame is None:
            self.words.append("over")
            return
        self.words += (generator.__qualname__, frame.f_lasti)
        variables = frame.f_locals
        for name in live(frame.f_code)[frame.f_lasti]:
            self.words.append(name in variables)
            if name in variables:
                value = variables[name]
                if name == "epoch":
                    self.words.append((name, value))
                else:
                    self.add(value)
        self.add(generator.gi_yieldfrom)

    def error(self, error: BaseException) -> None:
        self.words.append(type(error).__qualname__)

    def token(self, token: FencingToken) -> None:
        self.words += ("token", ("epoch", token.epoch), ("sequence", token.sequence))

    def listing(self, listing: Listing) -> None:
        self.all("listing", sorted(listing.names, key=lambda name: (name[-10:], name)))
        self.words.append(("epoch", listing.epoch))

    def node(self, node: Node) -> None:
        self.add(("node", node.path, node.mine, node.version))
        self.session(node.owner)

    def link(self, link: Link) -> None:
        self.words += ("link", link.tree.zxid - self._base, link.closed)
        self.session(link.session)
        watched = ("watches", sorted(link.watches)), ("child watches", sorted(link.child_watches))
        for what, things in (*watched, ("asked", link.asked)):
            self.all(what, things)
        self.words.append(len(link.inbox))
        for kind, what, zxid in link.inbox:
            self.words.append(kind)
            self.add(what)
            if self._looks_back:
                self.words.append(zxid - self._base)

    def client(self, client: Client) -> None:
        self._looks_back = client in self._looking_back
        self.words += ("client", client.alive, client.refusals)
        self.session(client.session)
        if self._looks_back:
            self.words.append(client.seen - self._base)
        self.add(client.link)
        self.add(client.pending)
        for session, request in client.late:
            self.session(session)
            self.add(request)

    def grant(self, grant: FakeGrant) -> None:
        self.words += ("grant", grant.over)
        self.add(grant.client)
        self.text(grant.path)
        if not grant.over:
            self.session(grant.session)
            self.add(grant.token)

    def attempt(self, attempt: Attempt[Any]) -> None:
        self.words += ("attempt", attempt._stage.name, attempt.done)
        if attempt._stage is Stage.OVER:
            self.add(outcome(attempt))
            return
        kind: Any = type(attempt)
        for name in _attributes(kind):
            if name not in _FOR_TELEMETRY:
                self.add(getattr(attempt, name))

    def entry(self, entry: Entry) -> None:
        self.add(("entry", entry.patient, entry.tidy, entry.alone, entry.granted))
        self.add(entry.uuid)
        self.add(entry.node)


_FOR_TELEMETRY = {"began", "heard", "told"}
Merging.MERGED = {
    names.Name: (lambda to, one: to.text(one.text), False),
    FencingToken: (Merging.token, False),
    Listing: (Merging.listing, False),
    Node: (Merging.node, False),
    Create: (lambda to, one: to.add(("create", one.prefix)), False),
    Link: (Merging.link, True),
    Client: (Merging.client, True),
    FakeGrant: (Merging.grant, True),
    Attempt: (Merging.attempt, True),
    Entry: (Merging.entry, True),
}


def _uuid(path: str) -> str:
    parts = _parts(path)
    assert parts is not None
    return parts[1]


# Which variables a suspended generator may still read.

_GOES_ON_ELSEWHERE = {
    "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE",
    "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT",
}  # fmt: skip
_FAST = re.compile("(LOAD|STORE|DELETE)_FAST")


@functools.cache
def live(code: types.CodeType) -> dict[int, list[str]]:
    """Return the local variables that may be read after each instruction, before they are written.

    An exception may come anywhere, and goes to any handler of the function: more variables are
    thought live than are. What is not known of an instruction has the same effect.
    """
    instructions = list(dis.get_instructions(code))
    places = {each.offset: place for place, each in enumerate(instructions)}
    handlers = [at for at, each in enumerate(instructions) if each.opname == "PUSH_EXC_INFO"]
    jumps = {*dis.hasjrel, *dis.hasjabs}
    follow: list[list[int]] = []
    for at, each in enumerate(instructions):
        follow.append(list(handlers))
        if each.opname not in _GOES_ON_ELSEWHERE and at + 1 < len(instructions):
            follow[at].append(at + 1)
        if each.opcode in jumps:
            follow[at].append(places[each.argval])
    before: list[frozenset[str]] = [frozenset()] * len(instructions)
    after = list(before)
    changed = True
    while changed:
        changed = False
        for at in reversed(range(len(instructions))):
            reads, writes = _variables(instructions[at])
            after[at] = frozenset().union(*(before[it] for it in follow[at]))
            now = reads | (after[at] - writes)
            changed = changed or now != before[at]
            before[at] = now
    always = {*code.co_cellvars, *code.co_freevars}
    return {each.offset: sorted(after[at] | always) for at, each in enumerate(instructions)}


def _variables(instruction: dis.Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """Return the local variables that an instruction reads, and those that it only writes."""
    argument = instruction.argval
    names = argument if isinstance(argument, tuple) else (argument,)
    reads, writes = set[str](), set[str]()
    # From Python 3.13 on, one instruction may do two of these, in this order.
    for what, name in zip(_FAST.findall(instruction.opname), names, strict=False):
        if what == "STORE":
            writes.add(name)
        elif name not in writes:
            reads.add(name)
    return frozenset(reads), frozenset(writes - reads)
