"""The data of a contender's node: its identity, and marks that were set later. Pure.

The identity comes first, as UTF-8. The marks, if there are any, follow after a NUL. A reader that
does not know marks still sees the identity first.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

_READ = b"read"
_ASKED = b"asked="
_PAYLOAD = b"payload="
_CURATOR_ASKED = b"__REVOKE__"
_NAMED = b"identity"  # the first part is an identity, even if it looks like a mark
_SEPARATOR = b"\0"

KEEPS = b"keeps"
"""The payload of a lock's contender whose client may keep the lock after a release."""


@dataclass(frozen=True, slots=True)
class NodeData:
    """The parts of a node's data.

    ``lets_readers_in``: it is a held write lock that was downgraded. ``asked``: a text that is new
    for each request to release, ``None`` without a request. ``payload``: what a member of an
    election says about itself.
    """

    identity: bytes
    lets_readers_in: bool = False
    asked: str | None = None
    payload: bytes = b""

    def __bytes__(self) -> bytes:
        marks = [_READ] if self.lets_readers_in else []
        if self.asked is not None:
            marks.append(_ASKED + self.asked.encode())
        if self.payload:
            marks.append(_PAYLOAD + base64.b64encode(self.payload))
        if self.identity == _CURATOR_ASKED:
            marks.append(_NAMED)
        return _SEPARATOR.join([self.identity, *marks])


def parse(data: bytes) -> NodeData:
    """Return the parts of a node's data; Curator's request to release replaces the identity.

    Data with anything but marks after a NUL comes from another client: all of it is the identity.
    """
    if data == _CURATOR_ASKED:
        return NodeData(b"", asked=_CURATOR_ASKED.decode())
    identity, *marks = data.split(_SEPARATOR)
    ours = (mark in {_READ, _NAMED} or mark.startswith((_ASKED, _PAYLOAD)) for mark in marks)
    if not all(ours):
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
        return b""  # not written by zklock
