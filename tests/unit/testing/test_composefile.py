from pathlib import Path

import pytest

from zklock.testing import composefile


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${NAME}", "value"),
        ("${NAME:-other}", "value"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY-other}", ""),
        ("${MISSING-other}", "other"),
        ("${MISSING:-}", ""),
        ("${MISSING}", ""),
        ("a ${NAME} b ${MISSING:-c d} $$HOME", "a value b c d $HOME"),
        ("$$${NAME}", "$value"),
        ("plain", "plain"),
    ],
)
def test_variables_as_compose_replaces_them(text: str, expected: str) -> None:
    assert composefile.interpolate(text, {"NAME": "value", "EMPTY": ""}) == expected


def test_single_has_one_service_with_an_image_by_variable() -> None:
    (service,) = composefile.load(composefile.FOLDER / "single.yml", {}).services
    assert service.image.startswith("zookeeper:")
    assert service.environment["ZOO_TICK_TIME"] == "500"
    assert service.environment["ZOO_4LW_COMMANDS_WHITELIST"] == "*"
    variables = {"ZOOKEEPER_IMAGE": "mine:1", "ZOO_TICK_TIME": "200", "ZOO_CFG_EXTRA": "a=b c=d"}
    (service,) = composefile.load(composefile.FOLDER / "single.yml", variables).services
    assert service.image == "mine:1"
    assert service.environment["ZOO_TICK_TIME"] == "200"
    assert service.environment["ZOO_CFG_EXTRA"].endswith(" a=b c=d")


def test_ensemble_keeps_its_peers_on_a_network_of_their_own() -> None:
    project = composefile.load(composefile.FOLDER / "ensemble.yml", {})
    assert project.networks == {"clients": False, "peers": True}
    assert [service.environment["ZOO_MY_ID"] for service in project.services] == ["1", "2", "3"]
    for service in project.services:
        (alias,) = service.networks["peers"]
        assert service.networks["clients"] == ()
        me = service.environment["ZOO_MY_ID"]
        assert f"server.{me}={alias}:2888:3888;2181" in service.environment["ZOO_SERVERS"]
        assert service.command is not None
        assert "$name" in service.command[-1]


def test_every_service_of_a_file_has_health_checks_and_loopback_ports() -> None:
    yaml = pytest.importorskip("yaml")
    for file in ("single.yml", "ensemble.yml"):
        tree = yaml.safe_load((composefile.FOLDER / file).read_text())
        for service in tree["services"].values():
            assert service["healthcheck"]["test"][0] == "CMD"
            assert all(port.startswith("127.0.0.1:") for port in service["ports"])


@pytest.mark.parametrize("text", ["", "services: 3", "services: {a: {}}", "[1, 2]"])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "other.yml"
    file.write_text(text)
    with pytest.raises(ValueError, match="not a Compose file"):
        composefile.load(file, {})
