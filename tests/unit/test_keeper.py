"""All interleavings of one client that keeps a lock; and what happens if the place is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit import keeper
from tests.unit.bends import Bend, bent
from tests.unit.explorer import Found
from tests.unit.keeper import Bounds, explore
from tests.unit.test_explorer import Seeded, going_on
from zklock._engine import keep
from zklock._engine.keep import Kept, Place, Waiter
from zklock._recipes import keep as keep_recipe

STRANGER = Bounds(strangers=1, ages=1)
AGES = Bounds(ages=1)
IMPATIENT = Bounds(tries=1, strangers=1)
ASKED = Bounds(ages=1, faults=1, kinds=("rebuild", "request", "signal", "give up"))
STRUCK = Bounds(ages=1, faults=1, kinds=("strike",))
TROUBLED = Bounds(ages=1, faults=1, kinds=("connection", "lease", "node"))
LEAVING = Bounds(asks=1, strangers=1, faults=1, kinds=("give up", "signal"))
THREE = Bounds(asks=3, users=3)


SEEDED = {
    # The two wrong variants of the model.
    "the watch is placed after the look": Seeded(
        Bend(
            keep_recipe,
            "watch_queue",
            """
            (listing,) = yield (WatchList(path),)
            if is_(listing, Failure.DROPPED):
                continue
            if not isinstance(listing, Listing):
                return
            if [each.text for each in listing.queue.contenders] != [name]:
                return
            if changes not in {None, listing.changes}:  # one that does not wait has gone
                return
            changes = listing.changes
            alone()
            """,
            """
            from zklock._recipes.effects import List
            (listing,) = yield (List(path),)
            if is_(listing, Failure.DROPPED):
                continue
            if not isinstance(listing, Listing):
                return
            if [each.text for each in listing.queue.contenders] != [name]:
                return
            yield (WatchList(path),)
            alone()
            """,
        ),
        found="a stranger is left waiting",
        bounds=Bounds(asks=1, strangers=1),
    ),
    "an idle node is used though somebody else was seen": Seeded(
        Bend(
            Place,
            "give_back",
            "kept.asked or (self._skip and not kept.watched)",
            "(self._skip and not kept.watched)",
        ),
        Bend(
            Place,
            "_decide",
            """
            if kept.asked:
                self._begin(partial(self._leave_queue, kept))
                self._forget(kept)
            elif not (kept.watched and self._hand(kept)):
                self._see_to_idle(kept)
            """,
            """
            if kept.watched and self._hand(kept):
                pass
            elif kept.asked:
                self._begin(partial(self._leave_queue, kept))
                self._forget(kept)
            else:
                self._see_to_idle(kept)
            """,
        ),
        found="after somebody else was seen|is not watched|more is left",
        bounds=STRANGER,
    ),
    # The watch on the queue, and what it shows.
    "an idle node is used before the watch is answered": Seeded(
        Bend(
            Place,
            "_free",
            "unused and kept.watched and self._may_grant(kept)",
            "unused and self._may_grant(kept)",
        ),
        found="before the watch is answered",
        bounds=STRANGER,
    ),
    "a node is handed on before the watch is answered": Seeded(
        Bend(Place, "_decide", "kept.watched and self._hand(kept)", "self._hand(kept)"),
        found="before the watch is answered",
        bounds=AGES,
    ),
    "the answer of the watch is forgotten": Seeded(
        Bend(Place, "_alone", "kept.watched, self._skips = True, 0", "self._skips = 0"),
        found="left waiting",
        bounds=AGES,
    ),
    "somebody else is seen, and forgotten": Seeded(
        Bend(Place, "_seen", "kept.asked = True", "pass"),
        found="who waits does not queue|after somebody else was seen",
        bounds=STRANGER,
    ),
    "somebody else is seen while the lock is in use, and forgotten": Seeded(
        Bend(Place, "_seen", "kept.asked = True", "kept.asked = kept.idle is not None"),
        found="is not watched|does not queue|after somebody else was seen|more is left",
        bounds=STRANGER,
    ),
    # The time for which a node may be idle.
    "no alarm is set": Seeded(
        Bend(Place, "_see_to_idle", "end < kept.timed", "False"),
        found="stays for ever",
        bounds=AGES,
    ),
    "an idle node stays for as long as another lock keeps it": Seeded(
        Bend(Place, "_see_to_idle", "end < kept.timed", "kept.timed == math.inf"),
        found="stays too long",
        bounds=AGES,
    ),
    "a release does not set an earlier alarm": Seeded(
        Bend(Place, "give_back", "now + grant._terms.keep < kept.timed", "False"),
        found="stays (for ever|too long)",
        bounds=AGES,
    ),
    "an alarm that has gone off is not set again": Seeded(
        Bend(Place, "_alarm", "kept.timed = math.inf", "pass"),
        found="stays for ever",
        bounds=AGES,
    ),
    "an alarm gives a node back before its time is over": Seeded(
        Bend(Place, "_alarm", "self.session.now() >= kept.idle + kept.grant._terms.keep", "True"),
        found="before its time is over",
        bounds=AGES,
    ),
    "an alarm gives nothing back": Seeded(
        Bend(
            Place,
            "_alarm",
            "kept.asked |= self.session.now() >= kept.idle + kept.grant._terms.keep",
            "pass",
        ),
        found="stays too long",
        bounds=AGES,
    ),
    "a later alarm is not called off": Seeded(
        Bend(
            Place,
            "_set_alarm",
            "kept.call_off()\nleft = kept.timed - self.session.now()",
            "left = kept.timed - self.session.now()",
        ),
        found="more is left",
        bounds=AGES,
    ),
    "an alarm is set for a node that has gone": Seeded(
        Bend(Place, "_set_alarm", "if self._kept is not kept:\n    kept.call_off()", "pass"),
        found="an alarm is left",
        bounds=STRANGER,
    ),
    "the alarm of a node that goes is not called off": Seeded(
        Bend(Kept, "end", "self.call_off()", "pass"), found="an alarm is left", bounds=STRANGER
    ),
    # Who waits.
    "who is granted is not told": Seeded(
        Bend(Place, "_hand", "self.session.deferred.add(partial(waiter.tell, kept))", "pass"),
        found="left waiting",
        bounds=AGES,
    ),
    "who came last is the first": Seeded(
        Bend(Place, "_hand", "next(iter(self._waiters))", "next(reversed(self._waiters))"),
        found="has waited for longer",
        bounds=THREE,
    ),
    "who has given up is granted": Seeded(
        Bend(Place, "_hand", "waiter.accept()", "waiter.accept() or True"),
        found="left waiting|that nobody has",
        bounds=ASKED,
    ),
    "who gives up stays in line": Seeded(
        Bend(Place, "leave", "self._waiters.pop(waiter, None)", "pass"),
        found="queues for nobody",
        bounds=LEAVING,
    ),
    "who gives up does not leave": Seeded(
        Bend(Waiter, "cancel", "self._place.leave(self)", "pass"),
        found="queues for nobody",
        bounds=LEAVING,
    ),
    "a contender for which nobody waits queues on": Seeded(
        Bend(Place, "_decide", "self._contender is not None", "False"),
        found="queues for nobody",
        bounds=LEAVING,
    ),
    "a node that is granted when nobody waits any more stays in use": Seeded(
        Bend(Place, "granted", "kept.asked, kept.idle = True, self.session.now()", "pass"),
        found="left waiting|left behind|does not queue",
        bounds=ASKED,
    ),
    "who has no patience is not refused": Seeded(
        Bend(
            Place,
            "_refuse",
            "self.session.deferred.add(partial(waiter._resolve, None, why))",
            "pass",
        ),
        found="who has no patience waits|has waited for longer",
        bounds=IMPATIENT,
    ),
    "who has patience is refused, too": Seeded(
        Bend(Place, "_refuse", "error is None and waiter.patient", "False"),
        found="got nothing",
        bounds=IMPATIENT,
    ),
    "who has no patience waits for a body": Seeded(
        Bend(Place, "join", "kept is not None and kept.idle is None", "False"),
        found="who has no patience waits",
        bounds=IMPATIENT,
    ),
    # What ends a node.
    "a node that is given back is not deleted": Seeded(
        Bend(
            Place,
            "_leave_queue",
            "_start(attempt, partial(_say_refused, attempt))",
            "pass",
        ),
        found="stays for ever|does not queue|left waiting",
        bounds=ASKED,
    ),
    "a request for the release is forgotten": Seeded(
        Bend(Place, "ask", "kept.asked = True", "pass"),
        found="does not queue|its release was requested",
        bounds=ASKED,
    ),
    "a loss does not forget the node": Seeded(
        Bend(Place, "lose", "self._forget(kept)", "pass"),
        found="does not queue|was lost|is left",
        bounds=TROUBLED,
    ),
    "who waits is not served when the node is lost": Seeded(
        Bend(Place, "lose", "self.go_on()", "pass"),
        found="does not queue|left waiting",
        bounds=TROUBLED,
    ),
    "an idle node is taken when the lease is not live": Seeded(
        Bend(Place, "_free", "self._may_grant(kept)", "True"),
        found="the lease is not live",
        bounds=TROUBLED,
    ),
    "an idle node is handed on when the lease is not live": Seeded(
        Bend(
            Place,
            "_decide",
            "kept.asked |= bool(self._waiters) and not self._may_grant(kept)",
            "pass",
        ),
        found="the lease is not live",
        bounds=TROUBLED,
    ),
    # Interrupts and signal handlers.
    "a release in a signal handler is not noted": Seeded(
        Bend(Place, "_given_back", "kept.idle = self.session.now()", "pass"),
        found="left waiting",
        bounds=ASKED,
    ),
    "an interrupt leaves a place as it is": Seeded(
        Bend(
            Place,
            "rebuild",
            "kept, first = self._kept, next(iter(self._waiters), None)",
            "return",
        ),
        found="left|does not queue|nobody has",
        bounds=STRUCK,
    ),
    "the end of a grant that nobody has got is not told": Seeded(
        Bend(Place, "rebuild", "emit.released(grant, kept.idle)", "pass"),
        found="an end is not told",
        bounds=STRUCK,
    ),
}
"""What is wrong in each is said by its name."""


@pytest.mark.parametrize("name", SEEDED)
def test_a_seeded_fault_is_found(name: str) -> None:
    seeded = SEEDED[name]
    with bent(seeded.bends, (keep,)), pytest.raises(Found, match=seeded.found):
        explore(seeded.bounds)


LONG = pytest.mark.thorough(
    "a keeper with wide bounds: minutes of a core, and it changes with kept locks alone"
)


@pytest.mark.parametrize(
    ("bounds", "states"),
    [
        pytest.param(STRANGER, 2_097, id="a stranger"),
        pytest.param(IMPATIENT, 4_460, id="a stranger, and no patience"),
        pytest.param(THREE, 225, id="three users"),
        pytest.param(ASKED, 1_796, id="requests, cancels, signal handlers"),
        pytest.param(Bounds(asks=1, strangers=1, ages=1, lags=True), 404, id="a server that lags"),
        pytest.param(STRUCK, 2_641, id="an interrupt", marks=LONG),
        pytest.param(TROUBLED, 4_934, id="lost connections, leases and nodes", marks=LONG),
        pytest.param(
            Bounds(ages=1, faults=1, kinds=("session", "late state")),
            4_631,
            id="an ended session",
            marks=LONG,
        ),
        pytest.param(
            Bounds(strangers=1, ages=1, faults=1, kinds=("connection",)),
            8_983,
            id="a stranger, and a lost connection",
            marks=LONG,
        ),
        pytest.param(
            Bounds(asks=1, strangers=1, faults=1, kinds=("strike",)),
            2_557,
            id="a stranger, and an interrupt",
            marks=LONG,
        ),
        pytest.param(Bounds(strangers=2, ages=1), 7_501, id="two strangers", marks=LONG),
        pytest.param(replace(STRANGER, main=True), 2_109, id="a main thread", marks=LONG),
        pytest.param(replace(ASKED, main=True), 1_990, id="a main thread, requests", marks=LONG),
        pytest.param(replace(STRUCK, main=True), 2_823, id="a main thread, struck", marks=LONG),
        pytest.param(replace(ASKED, faults=2), 7_213, id="two requests or cancels", marks=LONG),
    ],
)
def test_no_interleaving_breaks_a_promise(bounds: Bounds, states: int) -> None:
    """The number of states is about what there is: an explorer that sees less is broken."""
    covered = explore(bounds)
    assert 0.9 * states < covered.states < 1.1 * states
    assert covered.ends > 0


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(Bounds(asks=1, strangers=1), id="a stranger"),
        pytest.param(Bounds(asks=1, faults=1, kinds=ASKED.kinds), id="requests, cancels, handlers"),
    ],
)
def test_states_that_are_spelled_alike_go_on_alike(bounds: Bounds) -> None:
    with keeper.playing():
        equal, ways = going_on(keeper.World, bounds, keeper.spelled, keeper.exact)
    assert len(ways) < equal
    assert [taken for taken in ways.values() if len(taken) > 1] == []
