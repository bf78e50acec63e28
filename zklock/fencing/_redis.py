"""What both guards for Redis do, written once: those for threads and for asyncio."""

from __future__ import annotations

import contextlib
import functools
import importlib
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from zklock._ground.process import this_process
from zklock.errors import OutcomeUnknown
from zklock.fencing.guard import (
    NO_TOKEN,
    Fenced,
    in_doubt,
    missing,
    parse_mark,
    refusing,
    resource_name,
    stale,
    token_of,
    unasked,
    unreadable,
)
from zklock.token import FencingToken

# Every reply begins with the number of its call, ARGV[1]: a connection on which an exception has
# struck redis-py may give a call the reply to an earlier one.
#
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
local function before(a, b)
    for i = 1, 3 do
        if a[i] ~= b[i] then return a[i] < b[i] end
    end
    return false
end
local mark = redis.pcall('GET', KEYS[1])
if not mark then return {{ARGV[1], 'missing', ''}} end
if type(mark) == 'table' then return {{ARGV[1], 'unreadable', mark.err}} end
if mark ~= '{NO_TOKEN}' then
    local seen = parts(mark)
    if not seen then return {{ARGV[1], 'unreadable', mark}} end
    if before(parts(ARGV[2]), seen) then return {{ARGV[1], 'stale', mark}} end
end
-- An equal mark, too: a server that only reads may have an old one, and must not let it pass.
redis.call('SET', KEYS[1], ARGV[2])
"""

_CREATE = f"return {{ARGV[1], 'done', redis.pcall('SET', KEYS[1], '{NO_TOKEN}', 'NX')}}"

# A plain GET may be answered by a replica, which is behind.
_HIGHEST = "return {ARGV[1], 'done', redis.pcall('GET', KEYS[1])}"

_CLAIM = _FENCED + "return {ARGV[1], 'done', false}"

# A client that got no answer sends the same call again. KEYS[2] belongs to one caller at a time;
# ARGV[1] is "<caller>:<number>". The key holds the number of the last call that was begun, and its
# result once it has ended.
_ONCE = """
local number = string.match(ARGV[1], '%d+$')
local last = redis.call('GET', KEYS[2])
if last then
    local before, result = string.match(last, '^(%d+):(.*)$')
    if before == number then
        if result == '' then
            return {ARGV[1], 'done', {err = 'ERR the script failed, and that reply was lost'}}
        end
        return {ARGV[1], 'done', cmsgpack.unpack(result)[1]}
    elseif tonumber(before) > tonumber(number) then
        return {ARGV[1], 'done', {err = 'ERR this call came after a later one of the same caller'}}
    end
end
"""

# An error that ends the script would be a reply without a number.
_RUN = """
local function change(KEYS, ARGV)
%s
end
local keys, arguments = {}, {}
for i = 3, #KEYS do keys[i - 2] = KEYS[i] end
for i = 3, #ARGV do arguments[i - 2] = ARGV[i] end
redis.call('SET', KEYS[2], number .. ':', 'PX', 600000)
local ended, result = pcall(change, keys, arguments)
if not ended then
    local text = type(result) == 'table' and result.err or tostring(result)
    result = {err = string.gsub(text, '%%c', ' ')}
end
redis.call('SET', KEYS[2], number .. ':' .. cmsgpack.pack({result}), 'PX', 600000)
return {ARGV[1], 'done', result}
"""

# A fault that leaves an unread reply on one connection may have left others.
ATTEMPTS = 5

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
            raise ValueError(
                f"the resource's name becomes a hash tag, and must not contain braces: {resource!r}"
            )
        # Pipelines alone have it.
        if hasattr(client, "execute"):
            raise TypeError(
                "RedisGuard takes a client, not a pipeline, which answers only later: pass its "
                "client, and combine the commands in one script for run()"
            )
        packages = [cls.__module__.partition(".")[0] for cls in type(client).__mro__]
        library = next((name for name in packages if name in {"redis", "valkey"}), "redis")
        self._errors = importlib.import_module(f"{library}.exceptions")
        self._base = self._errors.ResponseError.__bases__[0]
        self._of_a_cluster = hasattr(client, "get_nodes")
        self._fence = self.key("zklock-fence")
        self._executor: deque[_Caller] = deque()

    @property
    def resource(self) -> str:
        """The name that errors and the mark's key give to the resource."""
        return self._resource

    def key(self, name: str) -> str:
        """Return a key in the hash slot of the mark."""
        return f"{{{self._resource}}}:{name}"

    @abstractmethod
    async def _answer(self, reply: Any) -> Any:
        """Return the answer that the client has given, or will give."""

    async def _create(self) -> None:
        _, made = await self._eval(_CREATE, [self._fence], [], self._caller())
        if isinstance(made, Exception):
            raise refusing(self._resource, made) from made

    async def _claim(self, token: Fenced) -> None:
        await self._fenced(_CLAIM, [self._fence], [], token_of(token), self._caller())

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
        return await self._fenced(
            f"{head}\n{_ONCE}{_FENCED}{_RUN % body}",
            [self._fence, self.key(f"zklock-call:{caller.name}"), *keys],
            args,
            given,
            caller,
        )

    async def _highest(self) -> FencingToken | None:
        _, mark = await self._eval(_HIGHEST, [self._fence], [], self._caller())
        if isinstance(mark, Exception):
            raise unreadable(self._resource, self._fence, str(mark)) from mark
        if mark is None:
            raise missing(self._resource, self._fence)
        return parse_mark(self._resource, self._fence, mark)

    def _caller(self) -> _Caller:
        """Return a caller that nobody else uses, with the number of its next call."""
        try:
            caller = self._executor.pop()
        except IndexError:
            caller = _Caller()
        if caller.process != this_process():
            caller = _Caller()
        caller.calls += 1
        return caller

    async def _fenced(
        self,
        script: str,
        keys: Sequence[str],
        args: Sequence[bytes | str | float],
        given: FencingToken,
        caller: _Caller,
    ) -> Any:
        outcome, found = await self._eval(script, keys, [str(given), *args], caller)
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

    async def _eval(
        self,
        script: str,
        keys: Sequence[str],
        args: Sequence[bytes | str | float],
        caller: _Caller,
    ) -> tuple[str | None, Any]:
        """Run a script; return what Redis has answered to this very call."""
        number = f"{caller.name}:{caller.calls}"
        registered = self._client.register_script(script)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                answer = await self._answer(registered(keys=keys, args=[number, *args]))
            except self._errors.ResponseError as error:
                # Whose error it is, Redis does not say.
                if attempt > 1:
                    self._tell(error, script)
                    raise
            except BaseException as error:
                await self._drop()
                self._tell(error, script)
                raise
            else:
                if isinstance(answer, list) and answer and _text(answer[0]) == number:
                    # Not after an error or a cancellation: what was sent may be on its way.
                    self._executor.append(caller)
                    return _text(answer[1]), answer[2] if len(answer) > 2 else None
            await self._drop()
        raise OutcomeUnknown(
            f"{self._resource}: Redis returned replies of other calls {ATTEMPTS} times: the "
            "change may have happened; read, and decide; check what else uses this client's "
            "connections",
            resource=self._resource,
        )

    def _tell(self, error: BaseException, script: str) -> None:
        """Raise an error of zklock for one of the client's; what else there is passes."""
        errors, resource = self._errors, self._resource
        if isinstance(error, errors.AuthenticationError | errors.AuthorizationError):
            raise refusing(resource, error) from error
        if isinstance(error, errors.ResponseError):
            # That the script of the user's is no Lua is the user's own error.
            if "compiling script" not in str(error):
                raise refusing(resource, error) from error
        elif isinstance(error, self._base | errors.RedisClusterException):
            # The client of a cluster may have sent the change before, to another node.
            if isinstance(error, errors.MaxConnectionsError) and not self._of_a_cluster:
                raise unasked(resource) from error
            # So the client of a cluster refuses the user's keys.
            if "same key slot" not in str(error):
                raise (unasked if script is _HIGHEST else in_doubt)(resource) from error

    async def _drop(self) -> None:
        """Close the connections that wait for use: there may be an unread reply on one of them."""
        for close in self._closers():
            with contextlib.suppress(OSError, self._base):
                await self._answer(close())

    def _closers(self) -> Iterator[Callable[[], Any]]:
        client = self._client
        own = getattr(client, "connection", None)  # of a client for a single connection
        if own is not None:
            yield own.disconnect
        nodes = client.get_nodes() if self._of_a_cluster else [client]
        for node in nodes:
            if hasattr(node, "disconnect"):  # of a cluster's client for asyncio
                yield getattr(node, "disconnect_free_connections", node.disconnect)
                continue
            inner = getattr(node, "redis_connection", getattr(node, "valkey_connection", node))
            if inner is not None:
                yield functools.partial(_disconnect_idle, inner.connection_pool)


def _disconnect_idle(pool: Any) -> Any:
    try:
        return pool.disconnect(inuse_connections=False)
    except TypeError:  # a BlockingConnectionPool of redis-py 6
        return pool.disconnect()


def _text(found: Any) -> str | None:
    if isinstance(found, bytes):
        return found.decode(errors="replace")
    return found if isinstance(found, str) else None


class _Caller:
    """Numbers calls that are made one after another."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self.calls = 0
        self.process = this_process()  # a forked child must not continue its parent's numbers
