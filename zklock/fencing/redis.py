"""A guard for keys of one Redis hash slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

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

if TYPE_CHECKING:
    from redis import Redis
    from redis.cluster import RedisCluster

    Client: TypeAlias = Redis | RedisCluster

# Numbers of Lua are doubles, exact up to 2^53, and its < on texts follows the server's locale:
# so tokens are compared by three numbers of at most 32 bits. 45 is "-".
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

_CLAIM = _FENCED + "return {'done', false}"

_RUN = """
local function change(KEYS, ARGV)
%s
end
local keys, arguments = {}, {}
for i = 2, #KEYS do keys[i - 1] = KEYS[i] end
for i = 2, #ARGV do arguments[i - 1] = ARGV[i] end
return {'done', change(keys, arguments)}
"""

_SET = "return redis.call('SET', KEYS[1], ARGV[1])"


class RedisGuard:
    """Fences the keys of one resource in Redis: comparison and change are one Lua script.

    ``client`` is a ``redis.Redis`` or ``redis.cluster.RedisCluster``. The mark is the key
    ``{resource}:zklock-fence``, without a time to live. In a cluster the fenced keys must be in
    its hash slot: ``guard.key("data")`` is ``{resource}:data``. Errors of redis-py pass through;
    after a connection error the change may have happened, and may be sent again.

    Not guaranteed: replication is asynchronous, so a failover can lose the last writes and the
    last advances of the mark with them, and then an earlier holder's token is accepted again
    until the present holder's next write; the same after a restart without ``appendfsync
    always``. ``WAIT`` after ``claim`` makes that less likely, not impossible. An eviction or
    ``FLUSHALL`` that removes the mark makes the guard refuse everything.
    """

    def __init__(self, client: Client, resource: str) -> None:
        self._client = client
        self._resource = resource_name(resource)
        if "{" in resource or "}" in resource:
            raise ValueError(f"the resource's name is a hash tag, without braces: {resource!r}")
        self._fence = self.key("zklock-fence")

    @property
    def resource(self) -> str:
        """The name of the resource."""
        return self._resource

    def key(self, name: str) -> str:
        """Return a key in the hash slot of the mark."""
        return f"{{{self._resource}}}:{name}"

    def create(self) -> None:
        """Make the mark, once; keep one that exists."""
        self._client.set(self._fence, NO_TOKEN, nx=True)

    def claim(self, token: Fenced) -> None:
        """Advance the mark; see ``Guard.claim``."""
        self._eval(_CLAIM, [], [], token)

    def set(self, key: str, value: bytes | str | float, token: Fenced) -> None:
        """``SET key value``, unless ``token`` is stale."""
        self.run(_SET, [key], [value], token)

    def run(
        self,
        script: str,
        keys: Sequence[str],
        args: Sequence[bytes | str | float],
        token: Fenced,
    ) -> Any:
        """Run the Lua text ``script`` unless ``token`` is stale; return its result.

        It sees ``keys`` and ``args`` as ``KEYS`` and ``ARGV``, and its ``return`` value comes
        back as Redis converts it. Redis keeps every text that it has run: keep ``script``
        constant and pass what varies in ``args``. Redis does not undo what a script did before it
        failed; the mark has then advanced.
        """
        if isinstance(keys, str) or isinstance(args, str | bytes):
            raise TypeError("keys and args must be sequences, not one text")
        return self._eval(_FENCED + _RUN % script, keys, args, token)

    def highest(self) -> FencingToken | None:
        """Return the mark; ``None`` while no token has been seen."""
        from redis.exceptions import ResponseError  # noqa: PLC0415 - an extra

        try:
            mark: Any = self._client.get(self._fence)
        except ResponseError as error:
            raise unreadable(self._resource, self._fence, str(error)) from error
        if mark is None:
            raise missing(self._resource, self._fence)
        return parse_mark(self._resource, self._fence, mark)

    def _eval(
        self, script: str, keys: Sequence[str], args: Sequence[bytes | str | float], token: Fenced
    ) -> Any:
        given = token_of(token)
        registered = self._client.register_script(script)
        answer: Any = registered(keys=[self._fence, *keys], args=[str(given), *args])
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
