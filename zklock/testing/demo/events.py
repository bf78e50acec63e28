"""What happens in the demo, as its processes report it: one JSON object a line.

============  =============================================================================
``opening``   zookeeper, hosts, session_timeout (negotiated, seconds), path, workers
``act``       title
``ready``     a worker is connected: pid, session, session_timeout
``asks``      a worker is about to acquire
``queue``     contenders as ZooKeeper lists them, each with worker and sequence
``granted``   token, node (the contender's znode), waited (seconds)
``claimed``   the ledger has seen the token; last is the number of its newest entry
``look``      the holder looked at ``held`` at this time: token, held
``suspended`` the holder's connection is lost: token, remaining (seconds of lease)
``wrote``     the ledger took entry ``number``: token
``refused``   the ledger did not take entry ``number``: token, highest (the token it has seen)
``released``  token; the time is just before the release
``lost``      the lost callback was called: token, reason, noticed, lease_end
``killed``, ``paused``, ``resumed``, ``cut``, ``restored``   done to ``worker``
``ended``     a worker process ended: code, as in ``subprocess``
``ledger``    entries, in the order of writing, each with number, token and worker
``left``      nodes that are still below the lock when all workers have gone
``broken``    why the demo could not go on: why
============  =============================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
"""Of the shape of the JSON; a higher one may lack or rename what this one has."""

DIRECTOR = "demo"
"""The name under which the process that starts the workers reports."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: when, in which act, to whom, what.

    ``at`` is in seconds of the clock since boot, which is the same for all processes. ``who`` is a
    worker, or ``DIRECTOR``.
    """

    at: float
    act: int
    who: str
    what: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def to_json(self) -> str:
        """Return one line of JSON, without the end of line."""
        head = {"version": VERSION, "at": round(self.at, 6), "act": self.act, "who": self.who}
        return json.dumps({**head, "event": self.what, **self.data})

    @classmethod
    def from_json(cls, line: str | bytes) -> Event:
        """Read such a line; ``ValueError`` for any other line."""
        data = json.loads(line)
        if not isinstance(data, dict):
            raise ValueError(f"not an event: {data!r}")  # noqa: TRY004
        if data.pop("version", VERSION) != VERSION:
            raise ValueError("it was told by another release, in a shape that is not known here")
        try:
            at, act, who, what = (data.pop(key) for key in ("at", "act", "who", "event"))
        except KeyError as missing:
            raise ValueError(f"not an event, as it has no {missing}") from None
        return cls(float(at), int(act), str(who), str(what), data)
