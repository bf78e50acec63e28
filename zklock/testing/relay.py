"""Carries the connections between the peers of a local ensemble; they can be cut without root.

ZooKeeper uses Java's plain sockets for both election and replication. These obey Java's SOCKS
proxy setting. Here every server has its own proxy port. So each outgoing connection tells who
connects (the proxy port) and to whom (the requested port). A server's configuration stays that of
any ensemble. An address that a peer announces in its messages leads through the relay like any
other.

A cut link behaves as if packets vanished: nothing is read, nothing is closed, a new connection
gets no answer. After healing, what was held back is delivered, as TCP would retransmit it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import struct
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, TypeVar

from zklock._ground import threads
from zklock.testing.ports import LOOPBACK

T = TypeVar("T")
_CHUNK = 65536
_CALL_SECONDS = 10.0


class PeerRelay:
    """SOCKS proxies for the members of one ensemble, on their own thread.

    ``members`` maps each port on which a member listens for its peers to the member's index.
    ``ports[i]`` is the proxy port of member ``i``. Safe to use from any thread.
    """

    def __init__(self, members: Mapping[int, int]) -> None:
        self._members = dict(members)
        self._isolated: set[int] = set()
        self._links: dict[frozenset[int], asyncio.Event] = {}
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.SelectorEventLoop()  # whatever loops the program under test has
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="zklock-peer-relay", daemon=True
        )
        threads.begin(self._thread)
        self.ports: list[int] = self._call(self._open(max(self._members.values()) + 1))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)

    async def _open(self, size: int) -> list[int]:
        for index in range(size):
            self._servers.append(
                await asyncio.start_server(functools.partial(self._serve, index), LOOPBACK, 0)
            )
        for index in range(size):
            for other in range(index):
                link = self._links[frozenset((index, other))] = asyncio.Event()
                link.set()
        return [server.sockets[0].getsockname()[1] for server in self._servers]

    def cut(self, index: int) -> None:
        """Hold back everything from and to this member; in effect when the call returns."""
        self._call(self._isolate(index, True))

    def heal(self, index: int) -> None:
        """Let this member talk again to all members that are not cut themselves."""
        self._call(self._isolate(index, False))

    async def _isolate(self, index: int, cut: bool) -> None:
        (self._isolated.add if cut else self._isolated.discard)(index)
        for link, opened in self._links.items():
            if link & self._isolated:
                opened.clear()
            else:
                opened.set()

    def close(self) -> None:
        """Close all connections and end the thread. May be called twice."""
        if not self._thread.is_alive():
            return
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_SECONDS)
        self._loop.close()

    async def _shut(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports report their end in the next turn of the loop

    async def _serve(
        self, source: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with _closing(writer):
                port = await _requested_port(reader, writer)
                target = self._members.get(port)
                if target is None or target == source:
                    await _answer(writer, refused=True)
                    return
                opened = self._links[frozenset((source, target))]
                await opened.wait()
                try:
                    far_reader, far_writer = await asyncio.open_connection(LOOPBACK, port)
                except OSError:
                    await _answer(writer, refused=True)
                    return
                async with _closing(far_writer):
                    await _answer(writer, refused=False)
                    try:
                        async with asyncio.TaskGroup() as both:
                            both.create_task(_pump(reader, far_writer, opened))
                            both.create_task(_pump(far_reader, writer, opened))
                    except* OSError:
                        pass  # one end was reset: closing both tells the other end


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, opened: asyncio.Event
) -> None:
    while True:
        await opened.wait()
        chunk = await reader.read(_CHUNK)
        await opened.wait()
        if not chunk:
            break
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()


@contextlib.asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Close a stream at the end; for a cancelled task at once, dropping what is buffered."""
    try:
        yield
    except asyncio.CancelledError:
        writer.transport.abort()
        raise
    finally:
        writer.close()


async def _requested_port(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Read the SOCKS 5 greeting and CONNECT request (RFC 1928); return the requested port.

    The host is ignored: all members are on loopback.
    """
    version, methods = struct.unpack("BB", await reader.readexactly(2))
    if version != 5:
        raise ConnectionAbortedError(f"SOCKS version {version}")
    await reader.readexactly(methods)
    writer.write(b"\x05\x00")
    *_, kind = struct.unpack("BBBB", await reader.readexactly(4))
    if kind == 3:
        (length,) = await reader.readexactly(1)
    else:
        length = 16 if kind == 4 else 4
    await reader.readexactly(length)
    (port,) = struct.unpack(">H", await reader.readexactly(2))
    return int(port)


async def _answer(writer: asyncio.StreamWriter, *, refused: bool) -> None:
    address = ipaddress.IPv4Address(LOOPBACK).packed
    writer.write(struct.pack(">BBBB4sH", 5, 5 if refused else 0, 0, 1, address, 0))
    await writer.drain()
