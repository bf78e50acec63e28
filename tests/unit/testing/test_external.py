import pytest

from zklock.testing import BackendUnavailable, Capability, NotSupported
from zklock.testing.external import ExternalBackend, parse_hosts
from zklock.testing.settings import Settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("zk1:2182", [("zk1", 2182)]),
        ("zk1", [("zk1", 2181)]),
        ("10.0.0.1:1, zk2:2", [("10.0.0.1", 1), ("zk2", 2)]),
        ("[::1]:2181", [("::1", 2181)]),
        ("[::1]", [("::1", 2181)]),
    ],
)
def test_addresses(text: str, expected: list[tuple[str, int]]) -> None:
    assert parse_hosts(text) == expected


@pytest.mark.parametrize("text", ["", ",", "zk1:", ":2181", "zk1:x", "zk1:0", "zk1:65536", "a/b"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"host:port|no such port"):
        parse_hosts(text)
    with pytest.raises(BackendUnavailable, match="ZKLOCK_TEST_HOSTS"):
        ExternalBackend(text)


def test_given_servers_cannot_be_controlled_and_say_so() -> None:
    backend = ExternalBackend("zk1:2181,zk2:2181")
    assert Capability.CONTROL not in backend.capabilities
    node = backend.single(Settings())
    assert (node.host, node.port, node.running()) == ("zk1", 2181, True)
    for verb in (node.stop, node.kill, node.pause, node.resume):
        with pytest.raises(NotSupported, match="ZKLOCK_TEST_HOSTS"):
            verb()
    node.close()


def test_an_ensemble_takes_as_many_as_it_needs() -> None:
    backend = ExternalBackend("a:1,b:2,c:3")
    group = backend.ensemble(Settings(), 2)
    assert [(node.host, node.port) for node in group.nodes] == [("a", 1), ("b", 2)]
    for verb in (group.cut, group.heal):
        with pytest.raises(NotSupported):
            verb(0)
    with pytest.raises(BackendUnavailable, match="ensemble of 4"):
        backend.ensemble(Settings(), 4)
