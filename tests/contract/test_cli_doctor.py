"""``zklock doctor`` as operators run it."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.security import make_acl, make_digest_acl

import zklock
from tests.contract.scenes import PRIVATE
from tests.contract.test_cli import PATIENCE, Commands
from zklock.cli.view import servers
from zklock.cli.view.checkup import Rights
from zklock.testing import ZooKeeperServer, wait_for


@pytest.fixture
def owner(zklock_connect: Callable[..., Any]) -> Any:
    """The client for what is ``PRIVATE``."""
    return zklock_connect(auth_data=[("digest", "owner:secret")])


def examine(zk: Commands, *arguments: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """Return the exit status, and the findings by what they are about."""
    code, out, errors = zk.run("doctor", "--json", *arguments)
    assert errors == ""
    told = json.loads(out)
    assert (told["version"], told["status"]) == (1, code)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in told["findings"]:
        assert set(finding) == {"level", "about", "what", "do"}
        found.setdefault(finding["about"], []).append(finding)
    return code, found


def test_a_healthy_server(zk: Commands) -> None:
    with zklock.Lock(zk.patient, f"{zk.path}/a", identity="host-7"):
        before = zk.patient.get(zk.path)[1]
        code, found = examine(zk, zk.path)
        assert zk.patient.get(zk.path)[1] == before, "nothing was changed"
    speed = {finding.pop("level") for finding in found.pop("speed")}
    assert speed <= {"ok", "warning", "problem"}, "other work may slow the server down"
    assert code == 0 or speed != {"ok"}
    assert [one["level"] for one in found["lease"]] == ["ok"]
    assert found["locks"][0]["what"] == "1 lock in use, 0 waiting contenders"
    assert "standalone, ZooKeeper 3." in found["server"][0]["what"]
    assert found["ensemble"][0]["level"] == found["acl"][0]["level"] == "note"


def test_what_hurts_is_found(zk: Commands) -> None:
    zk.patient.ensure_path(f"{zk.path}/a")
    left = zk.patient.create(f"{zk.path}/a/_c_{'0' * 32}-lock-", b"left behind", sequence=True)
    zk.environ["ZKLOCK_HOSTS"] += ",127.0.0.1:1"
    code, found = examine(zk, "--session-timeout", "3600", zk.path)
    assert code == 2
    (orphan,) = found["orphan"]
    assert left in orphan["what"]
    assert found["session"][0]["level"] == "warning"
    assert "timeout of 3600 s" in found["session"][0]["what"]
    assert [one["level"] for one in found["server"]] == ["warning", "ok"]
    assert "127.0.0.1:1 cannot be reached" in found["server"][0]["what"]
    arguments = orphan["do"].partition("zklock ")[2].split()
    assert zk.run(*arguments)[0] == 0
    assert zk.patient.exists(left) is None


def test_a_chroot_that_does_not_exist(zk: Commands) -> None:
    zk.environ["ZKLOCK_HOSTS"] += zk.path
    code, found = examine(zk)
    assert code == 2
    assert found["chroot"][0]["what"].startswith(f"the chroot {zk.path} does not exist")


@pytest.mark.parametrize("chroot", ["", "/closed"])
def test_below_what_may_not_be_read(zk: Commands, owner: Any, chroot: str) -> None:
    """From 3.8.4 and 3.9.2 on, a look whether a node is there is refused, too."""
    acl = [*PRIVATE, make_acl("world", "anyone", create=True, delete=True)]
    owner.create(f"{zk.path}/closed", acl=acl, makepath=True)
    owner.create(f"{zk.path}/closed/report", acl=[make_acl("world", "anyone", all=True)])
    zk.environ["ZKLOCK_HOSTS"] += f"{zk.path}{chroot}"
    code, found = examine(zk, "/report" if chroot else "/closed/report")
    assert code in (0, 1)  # a busy machine may be slow
    assert "chroot" not in found or found["chroot"][0]["level"] == "ok"
    assert found["acl"][0]["what"].startswith(
        "anyone who reaches ZooKeeper may delete contenders on"
    )
    assert found["speed"]


def test_without_credentials_for_the_path(zk: Commands, owner: Any) -> None:
    owner.create(zk.path, acl=[*PRIVATE, make_acl("world", "anyone", read=True)])
    code, found = examine(zk, zk.path)
    assert code >= 1
    assert found["acl"][0]["what"].startswith(
        f"with this command's connection, there is no create permission on {zk.path}"
    )


@pytest.mark.parametrize(
    ("rights", "lacking"),
    [
        ({"all": True}, []),
        ({"create": True, "delete": True}, ["read"]),
        ({"create": True, "read": True}, ["delete"]),
        ({"read": True, "delete": True}, ["create"]),
        ({"admin": True}, ["create", "read"]),
    ],
    ids=str,
)
def test_the_rights_of_this_client_are_tried_and_nothing_is_changed(
    rights: dict[str, bool],
    lacking: list[str],
    zklock_path: str,
    owner: Any,
    zklock_connect: Callable[..., Any],
) -> None:
    client = zklock_connect(auth_data=[("digest", "other:secret")])
    owner.create(zklock_path, acl=[*PRIVATE, make_digest_acl("other", "secret", **rights)])
    before = owner.get(zklock_path)[1]
    assert servers.own_rights(client, zklock_path) == Rights(lacking)
    assert owner.get(zklock_path)[1] == before
    assert owner.get_children(zklock_path) == []
    assert servers.own_rights(client, f"{zklock_path}/missing") is None


def test_the_admin_server_is_asked(administered: tuple[ZooKeeperServer, int]) -> None:
    server, port = administered
    commands = Commands(server.hosts)
    try:

        def learnt(where: int, how: str) -> dict[str, list[dict[str, Any]]]:
            """Examine until it has come to know tickTime so: a busy machine may be too slow."""

            def found() -> dict[str, list[dict[str, Any]]] | None:
                _, all_of_it = examine(commands, "--admin-port", str(where))
                return all_of_it if how in all_of_it["lease"][0]["what"] else None

            return wait_for(found, PATIENCE, how)

        found = learnt(port, "tickTime 0.5 s (from its admin server)")
        assert found["lease"][0]["level"] == "ok"
        assert [one["level"] for one in found["session"]] == ["ok"]
        assert learnt(0, "tickTime is not known")["lease"][0]["level"] == "unknown"
    finally:
        commands.close()
    host, number = server.hosts.split(":")
    limits = servers.limits(servers.Asked(host, int(number), port, seconds=PATIENCE))
    assert limits is not None
    assert limits.voters == 0
    assert servers.Asked(host, 1, port).configuration == {}, "it is another server's"


def test_a_server_that_is_silent_or_gone(
    zklock_own_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_SECONDS", 0.5)
    host, port = zklock_own_server.hosts.split(":")
    asked = servers.Asked(host, int(port))
    assert servers.server(asked).mode == "standalone"
    zklock_own_server.pause()
    secure = servers.Asked(host, int(port), tls=ssl.create_default_context())
    for one in (asked, secure):
        assert "is silent for 0.5 s" in str(servers.server(one).trouble)
    assert servers.limits(asked) is None
    zklock_own_server.resume()
    zklock_own_server.kill()
    assert "cannot be reached" in str(servers.server(asked).trouble)
