"""The four-letter words: what the server says about itself without a session. Pure.

Source: ``org.apache.zookeeper.server.command`` of Apache ZooKeeper 3.8.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zklock.testing.zookeeper.machine import Machine

RELEASE = "3.8.0"
"""The release whose answers this server gives."""

VERSION = f"{RELEASE}-zklock-embedded, never for production, built on {sys.platform}"


@dataclass(frozen=True, slots=True)
class View:
    machine: Machine[Any]
    port: int
    received: int
    sent: int
    clients: Sequence[tuple[str, int]]
    """The address of each connection, and its session; 0 if it has none."""

    @property
    def mode(self) -> str:
        return "read-only" if self.machine.read_only else "standalone"


def _srvr(view: View) -> str:
    return (
        f"Zookeeper version: {VERSION}\n"
        "Latency min/avg/max: 0/0.0/0\n"
        f"Received: {view.received}\n"
        f"Sent: {view.sent}\n"
        f"Connections: {len(view.clients)}\n"
        "Outstanding: 0\n"
        f"Zxid: {view.machine.zxid:#x}\n"
        f"Mode: {view.mode}\n"
        f"Node count: {len(view.machine.tree.nodes)}\n"
    )


def _stat(view: View) -> str:
    version, _, rest = _srvr(view).partition("\n")
    return f"{version}\nClients:\n\n{rest}"


def _conf(view: View) -> str:
    rules = view.machine.rules
    return (
        f"clientPort={view.port}\n"
        "dataDir=\n"
        "dataLogDir=\n"
        f"tickTime={rules.tick_time}\n"
        "maxClientCnxns=0\n"
        f"minSessionTimeout={rules.timeout(0)}\n"
        f"maxSessionTimeout={rules.timeout(sys.maxsize)}\n"
        "serverId=0\n"
    )


def _envi(view: View) -> str:
    return f"Environment:\nzookeeper.version={VERSION}\npython.version={sys.version.split()[0]}\n"


def _mntr(view: View) -> str:
    machine = view.machine
    figures = {
        "version": VERSION,
        "server_state": view.mode,
        "num_alive_connections": len(view.clients),
        "packets_received": view.received,
        "packets_sent": view.sent,
        "outstanding_requests": 0,
        "znode_count": len(machine.tree.nodes),
        "ephemerals_count": sum(map(len, machine.tree.ephemerals.values())),
        "watch_count": sum(map(len, machine.watches.by_path().values())),
        "global_sessions": len(machine.sessions),
    }
    return "".join(f"zk_{name}\t{value}\n" for name, value in figures.items())


def _wchp(view: View) -> str:
    lines: list[str] = []
    for path, watching in view.machine.watches.by_path().items():
        lines.append(path)
        lines += [f"\t{view.machine.linked(connection):#x}" for connection in watching]
    return "".join(f"{line}\n" for line in lines)


def _dump(view: View) -> str:
    machine = view.machine
    lines = ["SessionTracker dump:", f"Global Sessions({len(machine.sessions)}):"]
    lines += [f"{each.id:#x}\t{each.timeout}ms" for each in machine.sessions.all()]
    lines.append("ephemeral nodes dump:")
    lines.append(f"Sessions with Ephemerals ({len(machine.tree.ephemerals)}):")
    for session, paths in machine.tree.ephemerals.items():
        lines += [f"{session:#x}:", *(f"\t{path}" for path in paths)]
    return "".join(f"{line}\n" for line in lines)


def _cons(view: View) -> str:
    lines = []
    for address, session in view.clients:
        sid = f",sid={session & 0xFFFFFFFFFFFFFFFF:#x}" if session else ""
        lines.append(f" /{address}[{int(session != 0)}](queued=0,recved=0,sent=0{sid})\n")
    return "".join(lines) + "\n"


def _isro(view: View) -> str:
    return "ro" if view.machine.read_only else "rw"


_WORDS: Mapping[bytes, Callable[[View], str]] = {
    b"ruok": lambda view: "imok",
    b"srvr": _srvr,
    b"stat": _stat,
    b"conf": _conf,
    b"envi": _envi,
    b"mntr": _mntr,
    b"wchp": _wchp,
    b"dump": _dump,
    b"cons": _cons,
    b"isro": _isro,
}
_OTHERS = frozenset(
    {b"crst", b"dirs", b"gtmk", b"hash", b"lead", b"srst", b"stmk", b"wchc", b"wchs"}
)


def is_word(start: bytes) -> bool:
    """Whether a connection that begins with these bytes asks a word."""
    return start in _WORDS or start in _OTHERS


def answer(word: bytes, view: View) -> bytes:
    """Return what the server says to a word."""
    say = _WORDS.get(word)
    if say is None:
        return word + b" is not executed because it is not in the whitelist.\n"
    return say(view).encode()
