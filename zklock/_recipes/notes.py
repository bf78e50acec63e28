"""What an election's own znode says of its members: changed payloads, requests to release. Pure.

Nobody writes a member's node. A latch of Curator that waits behind the node watches it once, for
its deletion only: after any other change it would wait for ever. Nobody but zklock looks at the
data of the election's znode. What others have written there stays in front of the notes.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

MAX_NOTES = 524288
"""The size limit of an election's notes, in bytes. ZooKeeper takes a little less than 1 MiB."""

MAX_ASKED = MAX_NOTES + 65536
"""The size limit of notes with a request to release, in bytes: payloads leave room for one."""

_MARK = b"\0zklock="


@dataclass(frozen=True, slots=True)
class Notes:
    """The data of an election's znode.

    ``others``: what is not zklock's. ``payloads``: by the names of members' nodes. ``asked``: the
    names of the nodes whose members were asked to release. A name is never used twice, so a request
    can reach nobody else.
    """

    others: bytes = b""
    payloads: Mapping[str, bytes] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()

    def __bytes__(self) -> bytes:
        if not (self.payloads or self.asked):
            return self.others
        coded = {
            name: base64.b64encode(each).decode() for name, each in sorted(self.payloads.items())
        }
        said: dict[str, object] = {"payloads": coded}
        if self.asked:
            said["asked"] = sorted(self.asked)
        return self.others + _MARK + json.dumps(said).encode()

    def of_those(self, there: Collection[str]) -> Notes:
        """Return the notes without those of nodes that are not there."""
        kept = {name: said for name, said in self.payloads.items() if name in there}
        return replace(self, payloads=kept, asked=self.asked.intersection(there))

    def saying(self, name: str, payload: bytes, there: Collection[str]) -> Notes:
        """Return the notes with this payload, and without those of nodes that are not there."""
        kept = self.of_those(there)
        return replace(kept, payloads={**kept.payloads, name: payload})

    def asking(self, name: str, there: Collection[str]) -> Notes:
        """Return the notes with this request, and without those of nodes that are not there."""
        kept = self.of_those(there)
        return replace(kept, asked=kept.asked | {name})


def parse(data: bytes) -> Notes:
    """Return the parts of such a node's data. What cannot be read is not zklock's."""
    others, mark, coded = data.rpartition(_MARK)
    if not mark:
        return Notes(data)
    try:
        said = json.loads(coded)
        found, asked = said["payloads"].items(), said.get("asked", [])
        payloads = {name: base64.b64decode(each, validate=True) for name, each in found}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
        return Notes(data)
    if not isinstance(asked, list) or not all(isinstance(name, str) for name in asked):
        return Notes(data)
    return Notes(others, payloads, frozenset(asked))
