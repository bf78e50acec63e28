"""What a contender's node says: whose it is, and marks that were set later. Pure.

The identity as UTF-8; behind a NUL the marks, if there are any. Readers that know nothing of marks
see the identity first.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

_READ = b"read"
_ASKED = b"asked="
_PAYLOAD = b"payload="
_CURATOR_ASKED = b"__REVOKE__"
_SEPARATOR = b"\0"


@dataclass(frozen=True, slots=True)
class NodeData:
    """``lets_readers_in``: a held write lock that was downgraded.

    ``asked``: text that is new with each request to release, ``None`` without one. ``payload``:
    what a member of an election says of itself.
    """

    identity: bytes
    lets_readers_in: bool = False
    asked: str | None = None
    payload: bytes = b""

    def __bytes__(self) -> bytes:
        """Return the node's data."""
        marks = [_READ] if self.lets_readers_in else []
        if self.asked is not None:
            marks.append(_ASKED + self.asked.encode())
        if self.payload:
            marks.append(_PAYLOAD + base64.b64encode(self.payload))
        return _SEPARATOR.join([self.identity, *marks])


def parse(data: bytes) -> NodeData:
    """Return what a node's data says; Curator's request to release replaces the identity.

    Data with anything else behind a NUL are another client's, and its identity as a whole.
    """
    if data == _CURATOR_ASKED:
        return NodeData(b"", asked=_CURATOR_ASKED.decode())
    identity, *marks = data.split(_SEPARATOR)
    if any(mark != _READ and not mark.startswith((_ASKED, _PAYLOAD)) for mark in marks):
        return NodeData(data)
    asked = [mark.removeprefix(_ASKED) for mark in marks if mark.startswith(_ASKED)]
    payloads = [mark.removeprefix(_PAYLOAD) for mark in marks if mark.startswith(_PAYLOAD)]
    return NodeData(
        identity,
        _READ in marks,
        asked[-1].decode(errors="replace") if asked else None,
        _decoded(payloads[-1]) if payloads else b"",
    )


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""  # none of ours
