"""Turns a demo's events into a history, for the checker that also judges chaos. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from zklock.testing import history
from zklock.testing.demo.events import Event

LEDGER = "ledger"

Note: TypeAlias = tuple[str, dict[str, Any]]


def history_of(events: Iterable[Event]) -> list[history.Event]:
    """Return what the events tell of the lock, or of a pool's shards; each shard is a lock."""
    ordered = sorted(events, key=lambda event: event.at)
    nodes = {_grant(event): event["node"] for event in ordered if event.what == "granted"}
    back = {event["worker"]: event.at for event in ordered if event.what == "resumed"}
    count: Counter[tuple[str, str]] = Counter()
    found = []
    for event in ordered:
        count[event.who, event.what] += 1
        name = f"{event.who}-{count[event.who, event.what]}"
        for kind, data in (*_of_worker(event, name, nodes), *_of_director(event, back)):
            found.append(history.Event(event.at, event.who, kind, data))
    return found


def _of_worker(event: Event, name: str, nodes: dict[_Key, str]) -> Iterator[Note]:
    """Yield what a worker tells; ``name`` is the same for an ask and its grant."""
    lock = _lock(event)
    if event.what == "asks":
        yield "ask", {"ask": name, "lock": lock, "timeout": math.inf}
    elif event.what == "granted":
        told = {"node": event["node"], "token": event["token"], "began": event.at}
        yield "grant", {"ask": name, "lock": lock, **told}
    elif event.what == "look":
        for each, held in _looks(event):
            if each in nodes:  # a look may come before the report of the grant
                yield "held" if held else "unheld", {"node": nodes[each]}
    elif event.what in {"released", "lost", "wrote", "refused"}:
        node = nodes.get(_grant(event), event["token"])
        if event.what == "released":
            yield "release", {"node": node, "how": "release"}
            yield "released", {"node": node, "outcome": "done"}
        elif event.what == "lost":
            loss = {key: event[key] for key in ("reason", "noticed", "lease_end")}
            yield "lost", {"node": node, **loss}
        else:
            token, value = event["token"], event["number"]
            write = _write(event.who, token, value)
            told = {"node": node, "store": LEDGER, "lock": lock}
            yield "write", {"write": write, "token": token, "value": value, **told}
            outcome = "accepted" if event.what == "wrote" else "refused"
            yield "written", {"write": write, "outcome": outcome}


def _of_director(event: Event, back: dict[str, float]) -> Iterator[Note]:
    """Yield what the director tells; ``back`` says when workers went on."""
    if event.what == "killed":
        yield "kill", {"worker": event["worker"]}
    elif event.what == "paused":
        worker = event["worker"]
        yield "pause", {"worker": worker, "until": back.get(worker, event.at)}
    elif event.what == "ledger":
        entries = [(it["worker"], it["token"], it["number"]) for it in event["entries"]]
        writes = [(_write(*entry), *entry[1:]) for entry in entries]
        yield "contents", {"store": LEDGER, "lock": "", "value": len(writes), "writes": writes}
    elif event.what == "left":
        yield "calm", {}
        yield "left", {"lock": "", "names": event["nodes"]}


_Key: TypeAlias = tuple[str, str, str]
"""Worker, lock and token; together they name a grant."""


def _lock(event: Event) -> str:
    return str(event.data.get("shard", ""))


def _grant(event: Event) -> _Key:
    return event.who, _lock(event), event["token"]


def _looks(event: Event) -> list[tuple[_Key, bool]]:
    """Return the grants that were looked at, and whether they were held."""
    held = event["held"]
    if isinstance(held, bool):
        return [(_grant(event), held)]
    return [((event.who, str(shard), token), True) for shard, token in held.items()]


def _write(worker: str, token: str, number: int) -> str:
    return f"{worker} {token} {number}"
