"""``zklock doctor``: says in plain words what would hurt."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import warnings
from importlib.metadata import version
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError

import zklock
from zklock.cli import admin, connection
from zklock.cli.graph import where
from zklock.cli.view import checkup, draw, servers, waits
from zklock.cli.view.asking import answer
from zklock.cli.view.live import confirmed
from zklock.cli.view.model import Picture
from zklock.cli.view.reader import Reader
from zklock.cli.view.text import draws, plain

_DESCRIPTION = """\
Look at the servers, the session, the lease, ACLs, and all that is at and below a node, and say what
would hurt, and what to do. Exit status 0: nothing worse than a note; 1: a warning; 2: a problem;
69: no ZooKeeper answers. Nothing is changed."""


def add(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "doctor", help="say what would hurt, and what to do", description=_DESCRIPTION
    )
    parser.add_argument(
        "root", metavar="PATH", nargs="?", default="/", type=connection.root, help="default /"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    admin.add_option(parser)
    connection.add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Examine, and print the findings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a chroot is missing is a finding
        with connection.connected(options) as client:
            examined = _examine(client, options)
    found = checkup.findings(examined)
    status = checkup.worst(found)
    if options.json:
        told = {
            "version": checkup.VERSION,
            "path": options.root,
            "status": status,
            "findings": [finding.to_json() for finding in found],
        }
        print(json.dumps(told))
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
    picture, graph = Picture(), waits.Graph([])
    if chroot_exists:
        picture = reader.read()
        graph = confirmed(waits.graph(picture.locks), reader)
    admins = [
        servers.Admin(host, options.admin_port, None if client.use_ssl else number)
        for host, number in client.hosts
    ]
    tls = connection.tls_context(options)
    told = [
        servers.server(host, number, asked, tls)
        for (host, number), asked in zip(client.hosts, admins, strict=True)
    ]
    serving = [
        (host, number, asked)
        for (host, number), asked, server in zip(client.hosts, admins, told, strict=True)
        if server.trouble is None
    ]
    there = [path for path in checkup.ancestors(root) if chroot_exists and _exists(client, path)]
    return checkup.Examined(
        path=root,
        asked=options.session_timeout,
        granted=client.handler.session_timeout,
        servers=told,
        limits=servers.limits(*serving[0], tls) if serving else None,
        reads=servers.read_times(client),
        writes=servers.write_times(client) if chroot_exists else [0.0],
        boottime=hasattr(time, "CLOCK_BOOTTIME"),
        chroot=client.chroot,
        chroot_exists=chroot_exists,
        rights=servers.rights(client, checkup.nearest(root, there)) if there else None,
        own=servers.own_rights(client, checkup.nearest(root, there)) if there else None,
        exists=root in there,
        picture=picture,
        graph=graph,
        remedies=[draw.remedy(deadlock, where(options)) for deadlock in graph.deadlocks],
        facts=reader.facts,
        versions=f"zklock {zklock.__version__}, kazoo {version('kazoo')}, "
        f"Python {platform.python_version()}",
    )


def _exists(client: KazooClient, path: str) -> bool:
    try:
        return answer(client, lambda: client.exists_async(path), path) is not None
    except NoNodeError:
        return False
    except NoAuthError:  # from 3.8.4 and 3.9.2 on: it is there, and may not be read
        return True
