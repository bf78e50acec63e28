"""A leader that sends commands to workers, which obey nobody but the present leader.

Each command carries the leader's identity and token. A worker refuses a token below the highest
that it has obeyed, which costs nothing, and has ZooKeeper confirm any other.
"""

from __future__ import annotations

import json
import signal
import socket
import socketserver
import threading
from collections.abc import Callable, Sequence
from typing import Any

import zklock
from zklock.fencing import verify_owner

Command = dict[str, Any]


class Worker:
    """Decides which commands to obey; for one thread."""

    def __init__(self, client: Any, path: str) -> None:
        self._client = client
        self._path = path
        self._highest: zklock.FencingToken | None = None
        self.obeyed: list[Command] = []

    def take(self, command: Command) -> str:
        """Obey the command, or say why not."""
        token = zklock.FencingToken.parse(command["token"])
        if self._highest is not None and token < self._highest:
            return "stale"
        try:
            leader = verify_owner(self._client, self._path, token)
        except zklock.NotOwner:
            return "not the leader"
        if leader.identity != command["identity"]:
            return "not the leader's identity"
        self._highest = token
        self.obeyed.append(command)
        return "obeyed"


def obey(hosts: str, path: str, say: Callable[[Any], None]) -> None:
    """Serve one connection after the other; each line is a command, and is answered."""
    worker = Worker(zklock.connect(hosts), path)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                answer = worker.take(json.loads(line))
                self.wfile.write(json.dumps([answer, worker.obeyed]).encode() + b"\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        say(server.server_address[1])
        server.serve_forever()


def send(port: int, command: Command) -> tuple[str, list[Command]]:
    """Send a command to a worker; return its answer, and what it has obeyed so far."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(json.dumps(command).encode() + b"\n")
        with connection.makefile() as answers:
            answer, obeyed = json.loads(answers.readline())
            return answer, obeyed


def command(
    hosts: str,
    path: str,
    identity: str,
    ports: Sequence[int],
    say: Callable[[Any], None],
    hear: Callable[[], str],
) -> None:
    """Send a command to those workers that each line names, while leading.

    On "stop and send" this process is paused where it hurts most: after the look whether it leads,
    and before it sends.
    """
    client = zklock.connect(hosts, timeout=6.0)
    election = zklock.LeaderElection(client, path, identity=identity)

    def lead(leadership: zklock.Leadership) -> None:
        say(str(leadership.token))
        while leadership.held:  # the next line is waited for, whatever is lost meanwhile
            what, _, whom = hear().rpartition(" ")
            if what == "resign":
                return
            leadership.check()
            if what == "stop and send":
                # To this thread, or it might go on for a moment until the process is stopped.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            order = {"identity": identity, "token": str(leadership.token), "what": what}
            say([send(ports[int(each)], order)[0] for each in whom.split(",")])

    election.run(lead)
