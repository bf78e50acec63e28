"""``zklock doctor``: says in plain words what would hurt."""

from __future__ import annotations

import argparse
import platform
import time
import warnings
from collections.abc import Sequence
from importlib.metadata import version

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.hosts import collect_hosts

import zklock
from zklock.cli import connection, settings
from zklock.cli.view import checkup, servers
from zklock.cli.view.live import look
from zklock.cli.view.model import Look
from zklock.cli.view.reader import Reader, answer
from zklock.cli.view.text import json_of, plain

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
            asked = _asked(collect_hosts(options.hosts)[0], options)
            found = checkup.without_session([servers.server(at) for at in asked], str(error))
    status = checkup.worst(found)
    if options.json:
        findings = [finding.to_json() for finding in found]
        print(json_of(path=options.root, status=status, findings=findings))
    else:
        for finding in found:
            print(f"{finding.level.name.lower():<8} {plain(finding.what)}")
            if finding.todo:
                print(f"{'':<8} -> {plain(finding.todo)}")
    return status


def _examine(client: KazooClient, options: argparse.Namespace) -> checkup.Examined:
    root, reader = options.root, Reader(client, options.root)
    there = not client.chroot or _exists(client, "/")
    seen = look(reader, reader.read()) if there else Look()
    asked = _asked(client.hosts, options)
    told = [servers.server(at) for at in asked]
    serving = [at for at, it in zip(asked, told, strict=True) if it.trouble is None]
    nearest = root
    while there and nearest != "/" and not _exists(client, nearest):
        nearest = nearest.rpartition("/")[0] or "/"
    return checkup.Examined(
        path=root,
        nearest=nearest,
        asked=options.session_timeout,
        granted=client.handler.session_timeout,
        servers=told,
        limits=servers.limits(serving[0]) if serving else None,
        reads=servers.read_times(client),
        writes=servers.write_times(client) if there else [],
        boottime=hasattr(time, "CLOCK_BOOTTIME"),
        chroot=client.chroot,
        chroot_exists=there,
        exposed=servers.exposed(client, nearest) if there else None,
        own=servers.own_rights(client, nearest) if there else None,
        seen=seen,
        facts=reader.facts,
        hosts=settings.options_for(options),
        versions=f"zklock {zklock.__version__}, kazoo {version('kazoo')}, "
        f"Python {platform.python_version()}",
    )


def _asked(hosts: Sequence[tuple[str, int]], options: argparse.Namespace) -> list[servers.Asked]:
    tls = connection.tls_context(options)
    return [servers.Asked(*host, options.admin_port, tls) for host in hosts]


def _exists(client: KazooClient, path: str) -> bool:
    try:
        return answer(client, lambda: client.exists_async(path), path) is not None
    except NoNodeError:
        return False
    except NoAuthError:  # from 3.8.4 and 3.9.2 on: it is there, and may not be read
        return True
