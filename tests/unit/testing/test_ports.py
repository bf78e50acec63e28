import socket
from pathlib import Path

import pytest

from zklock.testing import ports


def test_ports_are_distinct_and_free() -> None:
    found = ports.free_ports(50)
    assert len(set(found)) == 50
    assert all(ports.is_free(port) for port in found)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not ports.is_free(listener.getsockname()[1])


def test_none_is_given_twice_until_half_of_all_were(monkeypatch: pytest.MonkeyPatch) -> None:
    given: set[int] = set()
    monkeypatch.setattr(ports, "_given", given)
    monkeypatch.setattr(ports, "_ephemeral_start", lambda: ports._LOWEST + 80)
    found = [ports.free_ports()[0] for _ in range(40)]
    assert len(set(found)) == 40
    ports.free_ports()
    assert len(given) == 1


@pytest.mark.skipif(not ports._EPHEMERAL.exists(), reason="the range is read from /proc")
def test_no_outgoing_connection_can_take_one() -> None:
    lowest = int(ports._EPHEMERAL.read_text().split()[0])
    if lowest <= 12240:
        pytest.skip("outgoing connections use nearly all ports here")
    assert all(port < lowest for port in ports.free_ports(50))


@pytest.mark.parametrize("text", ["", "nonsense", "1024 65535"])
def test_an_odd_range_falls_back(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "range"
    file.write_text(text)
    monkeypatch.setattr(ports, "_EPHEMERAL", file)
    (port,) = ports.free_ports()
    assert 10240 <= port < 32768
