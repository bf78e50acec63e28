"""What both guards for Redis do, written once: those for threads and for asyncio."""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

from zklock.fencing.guard import (
    NO_TOKEN,
    Fenced,
    missing,
    parse_mark,
    resource_name,
    stale,
    token_of,
    unreadable,
)
from zklock.token import FencingToken

# Lua's numbers are doubles, exact up to 2^53. Its < on texts follows the server's locale. So
# tokens are compared as three numbers of at most 32 bits. 45 is "-".
_FENCED = f"""
local function parts(text)
    if #text ~= 27 or string.byte(text, 17) ~= 45
        or string.find(string.sub(text, 1, 16), '[^0-9a-f]')
        or string.find(string.sub(text, 18), '[^0-9]') then
        return nil
    end
    return {{ tonumber(string.sub(text, 1, 8), 16), tonumber(string.sub(text, 9, 16), 16),
             tonumber(string.sub(text, 18), 10) }}
end
local function order(a, b)
    for i = 1, 3 do
        if a[i] ~= b[i] then return a[i] < b[i] and -1 or 1 end
    end
    return 0
end
local mark = redis.pcall('GET', KEYS[1])
if not mark then return {{'missing', ''}} end
if type(mark) == 'table' then return {{'unreadable', mark.err}} end
local rise = 1
if mark ~= '{NO_TOKEN}' then
    local seen = parts(mark)
    if not seen then return {{'unreadable', mark}} end
    rise = order(parts(ARGV[1]), seen)
end
if rise < 0 then return {{'stale', mark}} end
if rise > 0 then redis.call('SET', KEYS[1], ARGV[1]) end
"""

# A plain GET may be answered by a replica, which is behind.
_HIGHEST = "return redis.call('GET', KEYS[1])"

_CLAIM = _FENCED + "return {'done', false}"

# A client that got no answer sends the same call again. KEYS[2] belongs to one caller at a time;
# ARGV[2] is the number of the caller's call. The key holds the number of the last call that was
# begun, and its result once it has ended.
_ONCE = """
local last = redis.call('GET', KEYS[2])
if last then
    local number, result = string.match(last, '^(%d+):(.*)$')
    if number == ARGV[2] then
        if result == '' then
            return redis.error_reply('ERR the script failed, and that reply was lost')
        end
        return {'done', cmsgpack.unpack(result)[1]}
    elseif tonumber(number) > tonumber(ARGV[2]) then
        return redis.error_reply('ERR this call came after a later one of the same caller')
    end
end
"""

_RUN = """
local function change(KEYS, ARGV)
%s
end
local keys, arguments = {}, {}
for i = 3, #KEYS do keys[i - 2] = KEYS[i] end
for i = 3, #ARGV do arguments[i - 2] = ARGV[i] end
redis.call('SET', KEYS[2], ARGV[2] .. ':', 'PX', 600000)
local result = change(keys, arguments)
redis.call('SET', KEYS[2], ARGV[2] .. ':' .. cmsgpack.pack({result}), 'PX', 600000)
return {'done', result}
"""

_SET = "return redis.call('SET', KEYS[1], ARGV[1])"


class RedisMark(ABC):
    """The mark of a resource, and what is done with it: scripts that both guards run.

    A script waits only through ``_answer``.
    """

    def __init__(self, client: Any, resource: str) -> None:
        if not hasattr(client, "register_script"):
            raise TypeError(
                f"RedisGuard takes a client of redis-py, not {type(client).__module__}."
                f"{type(client).__name__}"
            )
        self._client = client
        self._resource = resource_name(resource)
        if "{" in resource or "}" in resource:
            raise ValueError(f"the resource's name is a hash tag, without braces: {resource!r}")
        # Pipelines alone have it.
        if hasattr(client, "execute"):
            raise TypeError(
                "RedisGuard takes a client, not a pipeline, which answers only later: pass its "
                "client, and put what belongs together into one script for run()"
            )
        self._fence = self.key("zklock-fence")
        self._callers: deque[_Caller] = deque()

    @property
    def resource(self) -> str:
        """The name of the resource."""
        return self._resource

    def key(self, name: str) -> str:
        """Return a key in the hash slot of the mark."""
        return f"{{{self._resource}}}:{name}"

    @abstractmethod
    async def _answer(self, reply: Any) -> Any:
        """Return the answer that the client has given, or will give."""

    async def _create(self) -> None:
        await self._answer(self._client.set(self._fence, NO_TOKEN, nx=True))

    async def _claim(self, token: Fenced) -> None:
        await self._eval(_CLAIM, [self._fence], [], token_of(token))

    async def _set(self, key: str, value: bytes | str | float, token: Fenced) -> None:
        await self._run(_SET, [key], [value], token)

    async def _run(
        self,
        script: str,
        keys: Sequence[str],
        args: Sequence[bytes | str | float],
        token: Fenced,
    ) -> Any:
        if isinstance(keys, str | bytes) or isinstance(args, str | bytes):
            raise TypeError("keys and args must be sequences, not one text")
        given = token_of(token)
        head, body = "", script
        if script.startswith("#!"):
            head, _, body = script.partition("\n")
            if "no-writes" in head:
                raise ValueError(
                    "a guarded script cannot have the flag no-writes: it advances the mark"
                )
        caller = self._caller()
        result = await self._eval(
            f"{head}\n{_ONCE}{_FENCED}{_RUN % body}",
            [self._fence, self.key(f"zklock-call:{caller.name}"), *keys],
            [str(caller.calls), *args],
            given,
        )
        # Not after an error or a cancellation: what was sent may still be on its way.
        self._callers.append(caller)
        return result

    async def _highest(self) -> FencingToken | None:
        from redis.exceptions import ResponseError  # noqa: PLC0415 - an extra

        try:
            look = self._client.register_script(_HIGHEST)
            mark = await self._answer(look(keys=[self._fence]))
        except ResponseError as error:
            raise unreadable(self._resource, self._fence, str(error)) from error
        if mark is None:
            raise missing(self._resource, self._fence)
        return parse_mark(self._resource, self._fence, mark)

    def _caller(self) -> _Caller:
        """Return a caller that nobody else uses, with the number of its next call."""
        try:
            caller = self._callers.pop()
        except IndexError:
            caller = _Caller()
        if caller.process is not _process.present:
            caller = _Caller()
        caller.calls += 1
        return caller

    async def _eval(
        self,
        script: str,
        keys: Sequence[str],
        args: Sequence[bytes | str | float],
        given: FencingToken,
    ) -> Any:
        registered = self._client.register_script(script)
        answer = await self._answer(registered(keys=keys, args=[str(given), *args]))
        outcome = answer[0] if isinstance(answer[0], str) else answer[0].decode()
        found: Any = answer[1] if len(answer) > 1 else None
        if outcome == "done":
            if isinstance(found, Exception):
                raise found
            return found
        if outcome == "missing":
            raise missing(self._resource, self._fence)
        seen = parse_mark(self._resource, self._fence, found) if outcome == "stale" else None
        if seen is None:
            raise unreadable(self._resource, self._fence, found)
        raise stale(self._resource, given, seen)


class _Caller:
    """Numbers calls that are made one after another."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self.calls = 0
        self.process = _process.present


class _Process:
    """Tells whether there was a fork: the child must not continue its parent's numbers."""

    present = object()

    def change(self) -> None:
        self.present = object()


_process = _Process()
os.register_at_fork(after_in_child=_process.change)
