"""Which newcomers among a pool's workers get no shards yet, because they crashed before. Pure.

A worker may crash again and again, and be started again each time. It would get its share at every
start. After every crash it would keep that share from all others for a session timeout. So it is
left out for a time after its start. Each crash in a row doubles that time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

LONGEST = 32
"""The longest time for which a newcomer is left out, in session timeouts."""

MEMORY = 2 * LONGEST
"""The time after which a crash is forgotten, in session timeouts."""

_KEPT = 4096  # workers whose crashes are remembered


@dataclass(slots=True)
class _Record:
    crashes: int
    counted_at: float


@dataclass(slots=True)
class _Worker:
    replaces_group: str
    until: float


class Newcomers:
    """What the leader remembers of crashes. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self._here: dict[str, _Worker] = {}

    def begin(self) -> None:
        """Forget who is here, as another term begins. Crashes are remembered."""
        self._here.clear()

    def came(self, name: str, replaces_group: str, now: float, session_timeout: float) -> None:
        """Note a worker.

        ``replaces_group``: what it has in common with the workers that it follows.
        ``session_timeout``: in seconds.
        """
        if name in self._here:
            return
        record = self._records.get(replaces_group)
        if record is not None and now - record.counted_at > MEMORY * session_timeout:
            del self._records[replaces_group]
            record = None
        times = 0.0 if record is None or record.crashes < 2 else 2.0 ** (record.crashes - 2)
        self._here[name] = _Worker(replaces_group, now + min(times, LONGEST) * session_timeout)

    def left(self, name: str, crashed: bool, now: float, session_timeout: float) -> None:
        """Note that a worker has left. ``crashed``: it did not sign off.

        Crashes within one session timeout count once: a machine that fails takes several workers
        with it.
        """
        worker = self._here.pop(name, None)
        if worker is None or not crashed:
            return
        record = self._records.pop(worker.replaces_group, None)
        if record is None or now - record.counted_at > MEMORY * session_timeout:
            record = _Record(1, now)
        elif now - record.counted_at >= session_timeout:
            record = _Record(min(record.crashes + 1, 32), now)
        self._records[worker.replaces_group] = record
        if len(self._records) > _KEPT:
            self._records.popitem(last=False)

    def waiting(self, now: float) -> set[str]:
        """Return the workers that are left out for now."""
        return {name for name, worker in self._here.items() if worker.until > now}

    def admit(self, names: set[str]) -> None:
        for name in names & self._here.keys():
            self._here[name].until = -1.0

    def next_due(self, now: float) -> float | None:
        """Return when the next worker stops being left out; ``None`` if none is left out."""
        return min((it.until for it in self._here.values() if it.until > now), default=None)
