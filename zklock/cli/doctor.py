"""``zklock doctor``: says in plain words what would hurt."""

from __future__ import annotations

import argparse
import platform
import sys
import time
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from ssl import SSLContext

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.hosts import collect_hosts

import zklock
from zklock._ground.addresses import server_name
from zklock.cli import connection, settings
from zklock.cli.view import checkup, servers
from zklock.cli.view.live import look
from zklock.cli.view.model import Look
from zklock.cli.view.reader import Reader, answer
from zklock.cli.view.text import draws, json_of, plain

DESCRIPTION = """\
Examine the servers, the session, the lease, ACLs, and everything at and below a node. Print the
problems, and what to do. Exit status 0: nothing worse than a note; 1: a warning; 2: a problem, such
as no answer from ZooKeeper. It changes nothing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    connection.add_root(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    connection.add_admin_port(parser)


def run(options: argparse.Namespace) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a chroot is missing is a finding
        try:
            with connection.connected(options) as client:
                found = checkup.findings(_examine(client, options))
        except (zklock.NoAnswer, zklock.AccessDenied, zklock.ClientClosed) as error:
            hosts = collect_hosts(options.hosts)[0]
            told = _told(hosts, options, connection.tls_context(options))
            found = checkup.without_session([server for server, _ in told], str(error))
    status = checkup.worst(found)
    if options.json:
        findings = [finding.to_json() for finding in found]
        print(json_of(path=options.root, status=status, findings=findings))
    else:
        arrow = "→" if draws(sys.stdout.encoding) else "->"
        for finding in found:
            print(f"{finding.level.name.lower():<8} {plain(finding.what)}")
            if finding.todo:
                print(f"{'':<8} {arrow} {plain(finding.todo)}")
    return status


def _examine(client: KazooClient, options: argparse.Namespace) -> checkup.Examined:
    root, reader = options.root, Reader(client, options.root)
    chroot_exists = not client.chroot or _exists(client, "/")
    seen = look(reader, reader.read()) if chroot_exists else Look()
    tls = connection.tls_context(options)
    told = _told(client.hosts, options, tls)
    serving = [
        (host, number, asked)
        for (host, number), (server, asked) in zip(client.hosts, told, strict=True)
        if server.trouble is None
    ]
    limits = servers.limits(*serving[0], tls) if serving else None
    nearest = root
    while chroot_exists and nearest != "/" and not _exists(client, nearest):
        nearest = nearest.rpartition("/")[0] or "/"
    return checkup.Examined(
        path=root,
        asked=options.session_timeout,
        granted=client.handler.session_timeout,
        servers=[server for server, _ in told],
        limits=limits,
        reads=servers.read_times(client),
        writes=servers.write_times(client) if chroot_exists else [],
        boottime=hasattr(time, "CLOCK_BOOTTIME"),
        chroot=client.chroot,
        chroot_exists=chroot_exists,
        rights=servers.rights(client, nearest) if chroot_exists else None,
        own=servers.own_rights(client, nearest) if chroot_exists else None,
        exists=chroot_exists and nearest == root,
        seen=seen,
        facts=reader.facts,
        hosts=settings.options_for(options),
        versions=f"zklock {zklock.__version__}, kazoo {version('kazoo')}, "
        f"Python {platform.python_version()}",
        alike=_alike(client, serving, tls) if limits and limits.per_address else 0,
        local=bool(serving)
        and told[0][0].mode != "standalone"
        and servers.sessions_are_local(*serving[0][:2], tls),
    )


Told = list[tuple[checkup.Server, servers.Admin]]


def _told(
    hosts: Sequence[tuple[str, int]], options: argparse.Namespace, tls: SSLContext | None
) -> Told:
    """Return what each server says, and its admin server."""
    admins = [
        servers.Admin(host, options.admin_port, None if tls else number) for host, number in hosts
    ]
    return [
        (servers.server(host, number, asked, tls), asked)
        for (host, number), asked in zip(hosts, admins, strict=True)
    ]


def _alike(
    client: KazooClient, serving: list[tuple[str, int, servers.Admin]], tls: SSLContext | None
) -> int:
    """Return how many connections from this machine's address its server has, 0: not known."""
    for host, number, asked in serving:
        if server_name(host, number) == client.handler.server:
            found = servers.connections(host, number, lambda: asked, tls)  # noqa: B023
            return servers.alike(found or {}, client.client_id[0])
    return 0


def _exists(client: KazooClient, path: str) -> bool:
    try:
        return answer(client, lambda: client.exists_async(path), path) is not None
    except NoNodeError:
        return False
    except NoAuthError:  # from 3.8.4 and 3.9.2 on: it is there, and may not be read
        return True
