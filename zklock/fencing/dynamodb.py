"""A guard for one item of DynamoDB."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from zklock.fencing._aws import told
from zklock.fencing._swap import FIRST, Mark, Refused, SwapGuard
from zklock.fencing.guard import Fenced, missing, unreadable
from zklock.token import FencingToken

ATTRIBUTE = "zklock_fence"

# SET is a reserved word: as a name it needs a placeholder, which begins with # or :.
_SET = re.compile(r"(?<![#:\w.])SET(?=\s)", re.IGNORECASE)
_MARK = "SET #zklock_mark = :zklock_mark"


class _Change(NamedTuple):
    expression: str
    names: Mapping[str, str]
    values: Mapping[str, Any]
    condition: str | None


class DynamoDbGuard(SwapGuard):
    """Fences one item of a DynamoDB table: its attribute ``attribute`` is the mark.

    ``table`` is ``boto3.resource("dynamodb").Table(name)``. ``key`` is the item's whole primary
    key, such as ``{"resource": "today"}``. Every change is one ``UpdateItem`` on the condition
    that the mark is still the expected one: mark and data change in one step, or nothing does.
    Each change reads the mark first.

    boto3 repeats a request when no answer comes. If the repetition is refused because the first one
    took effect, the change counts as done. No change happens twice: the mark has the numbers of the
    last writes. ``OutcomeUnknown`` is raised after a connection error, a timeout or an error 5xx of
    a change. It is also raised if more writes have followed than the mark has numbers for. The
    write may have happened. It may still happen, unless another write has followed; ``claim`` of a
    later token makes sure. ``NoAnswer`` and ``GuardUnusable`` are raised if DynamoDB cannot be
    asked, or refuses. An error in your own expressions is raised as botocore's error.

    Not guaranteed:

    - Writers without the condition are not stopped; IAM cannot demand it. One that replaces the
      whole item removes the mark: then everything is refused.
    - A global table replicates its regions asynchronously, and each region checks its own copy. Use
      the guard in one region only.
    - Restoring a backup brings back an old mark. Claim with the present grant afterwards.
    """

    def __init__(self, table: Any, key: Mapping[str, Any], *, attribute: str = ATTRIBUTE) -> None:
        client = getattr(getattr(table, "meta", None), "client", None)
        if client is None or not hasattr(table, "update_item"):
            raise TypeError(
                "DynamoDbGuard takes boto3.resource('dynamodb').Table(name), not "
                f"{type(table).__module__}.{type(table).__name__}"
            )
        if not isinstance(key, Mapping) or not key:
            raise TypeError(f"key must be the item's key, such as {{'id': 'today'}}, not {key!r}")
        if attribute in key:
            raise ValueError(f"the mark cannot be in the key: {attribute!r}")
        names = ",".join(f"{name}={value}" for name, value in key.items())
        super().__init__(f"dynamodb://{table.name}/{names}")
        # Threads may share a client, and not a Table. This one takes Python's values, too.
        self._client = client
        self._item = {"TableName": table.name, "Key": dict(key)}
        self._attribute = attribute
        self._where = f"the attribute {attribute}"

    def create(self) -> None:
        """Make the mark, once; keep one that exists. Makes the item if there is none."""
        with contextlib.suppress(Refused):
            self._update(
                UpdateExpression=_MARK,
                ConditionExpression="attribute_not_exists(#zklock_mark)",
                ExpressionAttributeNames={"#zklock_mark": self._attribute},
                ExpressionAttributeValues={":zklock_mark": str(FIRST.after(None))},
            )

    def claim(self, token: Fenced) -> None:
        """Advance the mark, and leave the item's other attributes; see ``Guard.claim``.

        Also raises ``OutcomeUnknown`` if an answer was lost: the mark may have advanced.
        """
        self.update("", token)

    def write(self, values: Mapping[str, Any], token: Fenced) -> None:
        """Set these attributes of the item, unless ``token`` is stale; the others stay."""
        if not isinstance(values, Mapping):
            raise TypeError(f"values must be a mapping of attributes, not {type(values).__name__}")
        if self._attribute in values:
            raise ValueError(f"{self._attribute!r} is the mark's name: pass another attribute=")
        places = [(f"#zklock_{i}", f":zklock_{i}") for i in range(len(values))]
        sets = ", ".join(f"{name} = {value}" for name, value in places)
        change = _Change(
            f"{_MARK}, {sets}" if sets else _MARK,
            dict(zip((name for name, _ in places), values, strict=True)),
            dict(zip((value for _, value in places), values.values(), strict=True)),
            None,
        )
        self._swap(token, self._look, partial(self._put, change))

    def update(
        self,
        expression: str,
        token: Fenced,
        *,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
        condition: str | None = None,
    ) -> None:
        """Run an update expression on the item, once, unless ``token`` is stale.

        ``expression`` is DynamoDB's, such as ``"ADD #count :one"``; ``names`` and ``values`` are
        its ``ExpressionAttributeNames`` and ``ExpressionAttributeValues``. If ``condition``, a
        condition expression, is false, botocore's ``ConditionalCheckFailedException`` is raised.
        """
        used = [name for name in (*(names or {}), *(values or {})) if name[1:].startswith("zklock")]
        if used:
            raise ValueError(f"the guard uses these names itself: {', '.join(used)}")
        if _SET.search(expression):
            merged = _SET.sub(f"{_MARK}, ", expression, count=1)
        else:
            merged = f"{_MARK} {expression}"
        change = _Change(merged, names or {}, values or {}, condition)
        self._swap(token, self._look, partial(self._put, change))

    def highest(self) -> FencingToken | None:
        """Return the mark; ``None`` while no token has been seen."""
        return self._look()[0].token

    def _look(self) -> tuple[Mark, str]:
        """Return the mark, and its text."""
        with told(self._resource):
            answer = self._client.get_item(
                **self._item,
                ConsistentRead=True,
                ProjectionExpression="#zklock_mark",
                ExpressionAttributeNames={"#zklock_mark": self._attribute},
            )
        text = answer.get("Item", {}).get(self._attribute)
        if text is None:
            raise missing(self._resource, self._where)
        if not isinstance(text, str):
            raise unreadable(self._resource, self._where, text)
        return Mark.parse(self._resource, self._where, text), text

    def _put(self, change: _Change, mark: Mark, found: str) -> None:
        fence = "#zklock_mark = :zklock_found"
        more = change.condition
        self._update(
            of_the_user=True,
            UpdateExpression=change.expression,
            ConditionExpression=fence if more is None else f"{fence} AND ({more})",
            ExpressionAttributeNames={"#zklock_mark": self._attribute, **change.names},
            ExpressionAttributeValues={
                ":zklock_mark": str(mark),
                ":zklock_found": found,
                **change.values,
            },
        )

    def _update(self, *, of_the_user: bool = False, **arguments: Any) -> None:
        lost_race: set[object] = {"ConditionalCheckFailedException"}
        with told(self._resource, lost_race=lost_race, of_the_user=of_the_user):
            self._client.update_item(**self._item, **arguments)
