"""A guard for one object of S3."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from zklock.fencing._aws import told
from zklock.fencing._swap import FIRST, LONGEST, Mark, Refused, SwapGuard
from zklock.fencing.guard import Fenced, in_doubt, missing, refusing, unreadable
from zklock.token import FencingToken

_WHERE = "its first line"
# No such object; another request for it is under way; another object is there.
_LOST_RACE: set[object] = {404, 409, 412}


class S3Guard(SwapGuard):
    """Fences one object of S3: its first line is the mark, the rest is the data.

    ``client`` is ``boto3.client("s3")``. Every write replaces the object if its ETag is still the
    expected one (``If-Match``): mark and data change in one step, or nothing does.
    ``put_options`` are more arguments of ``put_object``, such as ``ContentType`` or
    ``ServerSideEncryption``.

    The mark is not in the metadata, because a change of the metadata alone does not change the
    ETag. Each write has a random number in the first line, so an ETag never comes again.

    boto3 repeats a request when no answer comes. If the repetition is refused because the first one
    took effect, the write counts as done: its number shows that. ``OutcomeUnknown`` is raised after
    a connection error, a timeout or an error 5xx of a write. It is also raised if more writes have
    followed than the first line has numbers for. The write may have happened. It may still happen,
    unless another write has followed; ``claim`` of a later token makes sure. ``NoAnswer`` and
    ``GuardUnusable`` are raised if S3 cannot be asked, or refuses.

    ``write`` asks for the first line, then writes. ``claim`` reads and writes the whole object: for
    large data keep only a pointer in the object.

    Not guaranteed:

    - Writers that leave out ``If-Match`` are not stopped. A bucket policy can require it.
    - A bucket that is replicated in both directions has two marks.
    - Other stores that speak S3 may ignore the conditions: try yours with
      ``zklock.testing.guard_conformance``.
    """

    _PATIENCE: ClassVar[int] = 20

    def __init__(
        self,
        client: Any,
        bucket: str,
        key: str,
        *,
        put_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not hasattr(client, "put_object"):
            raise TypeError(
                f"S3Guard takes boto3.client('s3'), not {type(client).__module__}."
                f"{type(client).__name__}"
            )
        taken = {"Bucket", "Key", "Body", "IfMatch", "IfNoneMatch"} & set(put_options or {})
        if taken:
            raise ValueError(f"the guard sets these put_options itself: {', '.join(sorted(taken))}")
        super().__init__(f"s3://{bucket}/{key}")
        self._client = client
        self._object = {"Bucket": bucket, "Key": key}
        self._options = dict(put_options or {})

    def create(self) -> None:
        """Make the object with the mark and no data, once; keep one that exists.

        An object that was made without the guard is kept, too, and every write to it is refused:
        begin with a key of its own.
        """
        body = _body(FIRST.after(None), b"")
        for turn in range(self._PATIENCE + 1):
            try:
                self._put(body, IfNoneMatch="*")
            except Refused as refused:
                if _status(refused.error) == 412:
                    return
                if _status(refused.error) == 404:
                    raise refusing(self._resource, refused.error) from refused.error
                if turn == self._PATIENCE:
                    raise in_doubt(self._resource) from refused.error
                self._wait(turn)
            else:
                return

    def claim(self, token: Fenced) -> None:
        """Advance the mark and keep the data; see ``Guard.claim``."""
        self._swap(token, self._get, partial(self._replace, None))

    def write(self, data: bytes | bytearray | memoryview, token: Fenced) -> None:
        """Replace the data, unless ``token`` is stale."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")
        self._swap(token, self._look, partial(self._replace, bytes(data)))

    def read(self) -> bytes:
        """Return the data; ``GuardUnusable`` if there is no mark."""
        return self._get()[1][1]

    def highest(self) -> FencingToken | None:
        """Return the mark; ``None`` while no token has been seen."""
        return self._look()[0].token

    def _replace(self, data: bytes | None, mark: Mark, found: tuple[str, bytes]) -> None:
        """Put the mark with ``data``, or with the data that are there."""
        etag, same = found
        self._put(_body(mark, same if data is None else data), IfMatch=etag)

    def _look(self) -> tuple[Mark, tuple[str, bytes]]:
        return self._get(Range=f"bytes=0-{LONGEST}")

    def _get(self, **options: Any) -> tuple[Mark, tuple[str, bytes]]:
        """Return the mark, the ETag, and as much of the data as was asked for."""
        from botocore.exceptions import ClientError  # noqa: PLC0415 - an extra

        with told(self._resource):
            try:
                answer = self._client.get_object(**self._object, **options)
            except ClientError as error:
                code = error.response.get("Error", {}).get("Code")
                if code == "NoSuchKey":
                    raise missing(self._resource, _WHERE) from None
                if code == "InvalidRange":
                    raise unreadable(self._resource, _WHERE, b"") from None
                raise
            # Its own ``with`` gives the bytes past the checks of their length and checksum.
            with contextlib.closing(answer["Body"]) as body:
                line, end, data = body.read().partition(b"\n")
        if not end or len(line) > LONGEST:
            raise unreadable(self._resource, _WHERE, line)
        mark = Mark.parse(self._resource, _WHERE, line.decode("ascii", "replace"))
        return mark, (answer["ETag"], data)

    def _put(self, body: bytes, **condition: str) -> None:
        with told(self._resource, lost_race=_LOST_RACE):
            self._client.put_object(**self._object, **self._options, Body=body, **condition)


def _body(mark: Mark, data: bytes) -> bytes:
    return f"{mark}\n".encode() + data


def _status(error: Any) -> int | None:
    status: int | None = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status
