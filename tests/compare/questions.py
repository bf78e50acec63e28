"""The seven questions. Each returns a cell: a mark, and what was seen.

✓: nobody else was inside while the holder could believe that it had the lock. ◐: the holder was
told, but not by its first look after a pause. ✗: two were inside, or nobody got the lock. –:
neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tests.compare.contender import INTERRUPT
from tests.compare.locks import LEASE, Use
from tests.compare.processes import Contender, Event, Proxy
from tests.compare.stores import Folder, Store

LONG = 5 * LEASE
"""The seconds after which nothing is expected to happen any more."""
AWAY = 1.5 * LEASE
SOON = 3.0
SETTLE = 1.0


class Cell(NamedTuple):
    mark: str
    says: str


AT_ONCE = Cell("✗", "two are inside without a fault")


class Play:
    """One library with its store."""

    def __init__(self, python: Path, use: type[Use], store: Store, stack: ExitStack) -> None:
        self.python = python
        self.use = use
        self.store = store
        self.stack = stack

    def start(self, place: str = "") -> Contender:
        contender = Contender(self.python, self.use.__name__, place or self.store.place)
        return self.stack.enter_context(contender)

    def holder(self, name: str, place: str = "") -> Contender:
        """Return one that is inside."""
        return self.let_in(self.start(place), name)

    def waiter(self, name: str) -> Contender:
        """Return one that has asked and has had time to begin to wait."""
        return self.let_wait(self.start(), name)

    def pair(self, name: str, place: str = "") -> tuple[Contender, Contender]:
        """Return a holder, and one that waits behind it."""
        holder, waiter = self.start(place), self.start()
        return self.let_in(holder, name), self.let_wait(waiter, name)

    def let_in(self, contender: Contender, name: str) -> Contender:
        contender.enter(name, name)
        first = contender.wait("inside", name, LONG, "refused")
        if first is None or first["event"] == "refused":
            raise AssertionError(f"does not enter a free lock: {first}")
        return contender

    def let_wait(self, contender: Contender, name: str) -> Contender:
        contender.enter(name, name)
        time.sleep(SETTLE)
        return contender


def seconds(value: float) -> str:
    return f"{max(value, 0.0):.1f} s"


def taken(play: Play) -> Cell:
    """(a) Taken by another: what does ``with`` do?"""
    holder, other = play.start(), play.start()
    play.let_in(holder, "a")
    began = time.monotonic()
    other.enter("a", "a", "plain")
    first = other.wait("inside", "a", 2 * LEASE, "refused")
    if first is None:
        holder.leave("a")
        then = other.wait("inside", "a", LONG)
        return Cell("✓", "waits") if then else Cell("✗", "waits, also after the release")
    after = seconds(first["at"] - began)
    if first["event"] == "refused":
        return Cell("✓", f"raises {first['raised']} after {after}")
    doubts = other.wait("told", "a", SOON)
    hint = f"; only {doubts['by']} says no" if doubts else ""
    return Cell("✗", f"runs the block beside the holder after {after}{hint}")


def killed(play: Play) -> Cell:
    """(b) The holder is killed: who enters, after how long?"""
    holder, waiter = play.pair("b")
    if waiter.events("inside"):
        return AT_ONCE
    began = time.monotonic()
    holder.kill()
    first = entered(play, "b", waiter, LONG)
    if first is None:
        return Cell("✗", f"nobody enters in {LONG} s")
    return Cell("✓", f"the next enters after {seconds(first['at'] - began)}")


def entered(play: Play, name: str, waiter: Contender, limit: float) -> Event | None:
    """Wait until the next one is inside. Where one that waited was refused, another one asks."""
    end = time.monotonic() + limit
    while True:
        first = waiter.wait("inside", name, max(end - time.monotonic(), 0.0), "refused")
        if first is None or first["event"] == "inside":
            return first
        waiter.__exit__()
        waiter = play.waiter(name)


def news_of(play: Play, holder: Contender, since: float) -> tuple[float, str] | None:
    """Return when the holder was told first, and by what.

    Where its own question and a call-back tell it at the same time, the question is named.
    """
    news = holder.events("told", since=since)
    if not news:
        return None
    first = news[0]
    asked = [each for each in news if play.use.asks and each["by"].startswith(play.use.asks)]
    if asked and asked[0]["at"] - first["at"] < 0.5:
        first = asked[0]
    by = first["by"]
    if any(each["by"] == INTERRUPT for each in news if each is not first):
        by = f"{by} and by {INTERRUPT}"
    return first["at"], by


def paused(play: Play) -> Cell:
    """(c) The holder stands still past its lease, another one enters, it goes on."""
    name = "c"
    holder, waiter = play.pair(name)
    if waiter.events("inside"):
        return AT_ONCE
    began = time.monotonic()
    holder.pause()
    first = entered(play, name, waiter, LONG)
    if first is None:
        holder.go_on()
        return Cell("✓", "keeps it: nobody enters")
    after = seconds(first["at"] - began)
    time.sleep(SETTLE)
    resumed = time.monotonic()
    holder.go_on()
    time.sleep(LEASE)
    news = news_of(play, holder, resumed)
    works = holder.events("works", since=resumed)
    if news is None:
        mark, how = "✗", "never told" if play.use.asks else "never told, as there is nothing to ask"
    elif works or play.use.pushed:
        mark, how = "◐", f"told by {news[1]} {seconds(news[0] - resumed)} after it goes on"
    else:
        mark, how = "✓", f"told by {news[1]} at its first look"
    if waiter.events("told", since=resumed):
        mark, how = "◐", f"{how}, and so is the next one"
    third = play.waiter(name)
    holder.leave(name)
    left = holder.wait("left", name, LONG)
    end = (
        f"raises {left['raised']}" if left and left["raised"] else "is silent" if left else "hangs"
    )
    third_first = third.wait("inside", name, SOON)
    lets_in = third_first is not None and third_first["at"] - first["at"] < play.use.lasts - SETTLE
    says = [f"the next enters after {after}", how, f"its release {end}"]
    if lets_in:
        return Cell("✗", ", ".join(says) + " and lets a third in")
    return Cell(mark, ", ".join(says))


def outcome(
    play: Play, holder: Contender, began: float, first: Event | None, entry: str = ""
) -> Cell:
    """Return what a holder and the next one have seen of a fault that struck at ``began``."""
    news = news_of(play, holder, began)
    works = holder.events("works", since=began)
    if first is None:
        if news is None:
            return Cell("✓", "keeps it")
        kept = bool(works) and works[-1]["at"] > news[0] + LEASE
        return Cell("✓", "keeps it" if kept else f"nobody enters, told by {news[1]}")
    enters = entry or f"the next enters after {seconds(first['at'] - began)}"
    if news is None:
        stood = all(each["at"] < first["at"] for each in works)
        return Cell(
            "–" if stood else "✗", f"{enters}, {'its look hangs' if stood else 'never told'}"
        )
    beside = any(first["at"] < each["at"] < news[0] for each in works)
    early = first["at"] - news[0]
    when = f"{seconds(-early)} later" if beside else f"{seconds(early)} before"
    return Cell("✗" if beside else "✓", f"{enters}, told by {news[1]} {when}")


def cut(play: Play) -> Cell:
    """(d) The holder's connections are killed while it holds."""
    if isinstance(play.store, Folder):
        return Cell("–", "has no connection")
    proxy = play.stack.enter_context(Proxy(play.store.address))
    holder, waiter = play.pair("d", play.store.through(proxy.hosts))
    if waiter.events("inside"):
        return AT_ONCE
    began = time.monotonic()
    proxy.cut()
    first = entered(play, "d", waiter, 2 * LEASE)
    time.sleep(SETTLE)
    return outcome(play, holder, began, first)


def away(play: Play) -> Cell:
    """(e) The store goes away, and comes back empty."""
    holder, waiter = play.pair("e")
    if waiter.events("inside"):
        return AT_ONCE
    began = time.monotonic()
    play.store.kill()
    time.sleep(AWAY)
    early = waiter.events("inside")
    play.store.begin_anew()
    first = early[0] if early else entered(play, "e", waiter, LONG)
    when = "while it is away" if early else "when it is back"
    if isinstance(play.store, Folder):
        when = "once its file is deleted"
    entry = f"the next enters {when}"
    if first is None:
        first = entered(play, "e", play.waiter("e"), LONG)
        entry = f"a newcomer enters {when}, the one that waited does not"
    time.sleep(SETTLE)
    cell = outcome(play, holder, began, first, entry)
    old = holder.events("inside")[0]["token"]
    if first and isinstance(old, (int, list)) and first["token"] <= old:
        return Cell(cell.mark, f"{cell.says}; its token is no higher than the one before")
    return cell


def token(play: Play) -> Cell:
    """(f) Is there a token that a resource can compare, and does it grow?"""
    found = []
    with play.start() as contender:
        for key in "xyz":
            contender.enter(key, "f")
            inside = contender.wait("inside", key, LONG)
            assert inside is not None
            found.append(inside["token"])
            contender.leave(key)
            assert contender.wait("left", key, LONG)
    if None in found:
        return Cell("–", "no token")
    if not isinstance(found[0], str) and found[0] < found[1] < found[2]:
        return Cell("✓", "a token that grows")
    return Cell("–", "a random value, not ordered")


def order(play: Play) -> Cell:
    """(g) Is there an order of waiting? Do two threads or tasks exclude each other?"""
    fair = in_order(play)
    who = "tasks" if play.use.asynchronous else "threads"
    parts = [AT_ONCE.says if fair is None else "in order" if fair else "in no order"]
    beside = []
    for again in (True, False)[not play.use.reusable :]:
        what = "one object" if again else "two objects"
        contender = play.start()
        contender.enter("one", f"h{again}")
        assert contender.wait("inside", "one", LONG)
        contender.enter("two", f"h{again}", "again" if again else "enter")
        second = contender.wait("inside", "two", SOON, "refused")
        beside.append(second is not None and second["event"] == "inside")
        does = (
            "one waits"
            if second is None
            else "both are inside"
            if beside[-1]
            else f"raises {second['raised']}"
        )
        parts.append(f"two {who} with {what}: {does}")
        contender.__exit__()
    return Cell("✗" if any(beside) or fair is None else "✓" if fair else "–", "; ".join(parts))


def in_order(play: Play) -> bool | None:
    """Whether those that wait get the lock in the order of asking; ``None``: they do not wait.

    The first ones have waited for longer than a lease when the holder leaves: one that asks anew
    from time to time has lost its place by then.
    """
    holder, *waiters = [play.start() for _ in range(5)]
    for name in ("g1", "g2", "g3"):
        play.let_in(holder, name)
        for waiter in waiters:
            play.let_wait(waiter, name)
        time.sleep(SETTLE)
        if any(waiter.events("inside", key=name) for waiter in waiters):
            return None
        holder.leave(name)
        if in_turn(waiters, name) != list(range(len(waiters))):
            return False
    return True


def in_turn(waiters: list[Contender], name: str) -> list[int]:
    """Let each leave as soon as it is inside; return the numbers in the order of entry."""
    entries = []
    left = list(waiters)
    end = time.monotonic() + LONG
    while left and time.monotonic() < end:
        for waiter in list(left):
            if first := waiter.events("inside", "refused", key=name):
                left.remove(waiter)
                waiter.leave(name)
                if first[0]["event"] == "inside":
                    entries.append((first[0]["at"], waiters.index(waiter)))
        time.sleep(0.02)
    return [number for _, number in sorted(entries)]


Question: TypeAlias = Callable[[Play], Cell]
QUESTIONS: dict[str, Question] = {
    "a": taken,
    "b": killed,
    "c": paused,
    "d": cut,
    "e": away,
    "f": token,
    "g": order,
}


@contextmanager
def playing(python: Path, use: type[Use], store: Store) -> Iterator[Play]:
    """Let processes end with what they are for."""
    with ExitStack() as stack:
        yield Play(python, use, store, stack)
