"""Who may do what: the schemes ``world``, ``auth``, ``digest`` and ``ip``. Pure.

Source: ``ZooKeeperServer.checkACL``, ``PrepRequestProcessor.fixupACL`` and the authentication
providers of Apache ZooKeeper 3.8.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Iterable
from typing import NamedTuple

from zklock.testing.zookeeper.codec import Acl
from zklock.testing.zookeeper.messages import Code, Perms
from zklock.testing.zookeeper.tree import Refused, Znode


class Identity(NamedTuple):
    """Something that a client has proven to be."""

    scheme: str
    id: str


def prove(scheme: str, proof: bytes | None) -> Identity | None:
    """Return who says this; ``None`` if the server does not believe it.

    The scheme ``ip`` proves nothing new: a connection has its address from the start.
    """
    if scheme != "digest" or proof is None:
        return None
    user = proof.partition(b":")[0].decode(errors="replace")
    digest = base64.b64encode(hashlib.sha1(proof, usedforsecurity=False).digest()).decode()
    return Identity("digest", f"{user}:{digest}")


def check(node: Znode, wanted: int, who: Iterable[Identity]) -> None:
    """`Refused` if none of these identities has one of the wanted permissions."""
    if not permits(node.acl, wanted, who):
        raise Refused(Code.NO_AUTH)


def permits(acl: Iterable[Acl], wanted: int, who: Iterable[Identity]) -> bool:
    """Whether one of these identities has one of the wanted permissions."""
    for entry in acl:
        if entry.perms & wanted:
            if (entry.scheme, entry.id) == ("world", "anyone"):
                return True
            if any(each.scheme == entry.scheme and _matches(each, entry.id) for each in who):
                return True
    return False


def settle(acl: Iterable[Acl], who: Iterable[Identity]) -> tuple[Acl, ...]:
    """Return the ACL to keep, with ``auth`` replaced by whom it stands for."""
    settled: list[Acl] = []
    for entry in dict.fromkeys(acl):
        if entry.scheme == "auth":
            proven = [each for each in who if each.scheme == "digest"]
            if not proven:
                raise Refused(Code.INVALID_ACL)
            settled += [Acl(entry.perms, each.scheme, each.id) for each in proven]
        elif _is_valid(entry):
            settled.append(entry)
        else:
            raise Refused(Code.INVALID_ACL)
    if not settled:
        raise Refused(Code.INVALID_ACL)
    return tuple(settled)


def shown(node: Znode, who: Iterable[Identity]) -> tuple[Acl, ...]:
    """Return the ACL as these may see it: digests are for those who may change it."""
    try:
        check(node, Perms.ADMIN, who)
    except Refused:
        return tuple(
            entry._replace(id=f"{entry.id.partition(':')[0]}:x")
            if entry.scheme == "digest"
            else entry
            for entry in node.acl
        )
    return node.acl


def _is_valid(entry: Acl) -> bool:
    if entry.scheme == "digest":
        return entry.id.rstrip(":").count(":") == 1
    if entry.scheme == "ip":
        try:
            ipaddress.IPv4Network(entry.id, strict=False)  # 3.8 reads no others
        except ValueError:
            return False
        return True
    return (entry.scheme, entry.id) == ("world", "anyone")


def _matches(identity: Identity, wanted: str) -> bool:
    if identity.scheme == "ip":
        here = ipaddress.ip_address(identity.id)
        return here in ipaddress.IPv4Network(wanted, strict=False)
    return identity.id == wanted
