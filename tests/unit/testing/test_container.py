"""What the container backend tells an engine, and what it makes of the answers."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError

from zklock.testing import container
from zklock.testing.settings import Settings

COMPOSE = Path(container.__file__).parent / "compose"

BUSY = APIError("500 Server Error", explanation="OCI runtime pause failed: unable to freeze")
OTHER = APIError("500 Server Error", explanation="cgroups not configured for container")


class Refusing:
    """A container that the engine pauses after these errors."""

    def __init__(self, *errors: APIError) -> None:
        self._errors = list(errors)
        self.paused = False

    def pause(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.paused = True


@pytest.mark.parametrize(
    ("errors", "patience", "why"),
    [
        ((BUSY, BUSY), 30.0, ""),
        ((OTHER,), 30.0, "not configured"),
        ((BUSY,) * 10, 0.0, "unable to freeze"),
    ],
)
def test_an_engine_is_asked_again_only_where_the_machine_is_busy(
    monkeypatch: pytest.MonkeyPatch, errors: tuple[APIError, ...], patience: float, why: str
) -> None:
    monkeypatch.setattr(container, "_FREEZE_SECONDS", patience)
    asked = Refusing(*errors)
    with pytest.raises(APIError, match=why) if why else nullcontext():
        container._freeze(asked)
    assert asked.paused == (not why)


def services(file: str) -> dict[str, Any]:
    """Return the services of a Compose file, with the defaults of its variables."""
    yaml = pytest.importorskip("yaml")
    text = re.sub(r"\$\{\w+(:-([^}]*))?\}", r"\2", (COMPOSE / file).read_text())
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


def words(environment: dict[str, Any]) -> dict[str, set[str]]:
    return {name: set(str(value).split()) for name, value in environment.items()}


@pytest.mark.parametrize(("file", "size"), [("single.yml", 1), ("ensemble.yml", 3)])
def test_it_starts_what_the_compose_files_describe(file: str, size: int) -> None:
    backend: Any = SimpleNamespace(engine=None, image=container.IMAGE)
    group = container.ContainerGroup(backend, Settings(), size)
    if size > 1:
        group.join("10.9.8.0/24", SimpleNamespace())
    described = list(services(file).values())
    assert [it["image"] for it in described] == [container.IMAGE] * size
    for node, service in zip(group.nodes, described, strict=True):
        told, expected = words(node.environment()), words(service["environment"])
        servers, named = told.pop("ZOO_SERVERS", set()), expected.pop("ZOO_SERVERS", set())
        assert {name: told[name] for name in expected} == expected
        assert {re.sub(r"10\.9\.8\.(\d)", lambda it: f"peer{int(it[1]) - 1}", server)
                for server in servers} == named  # fmt: skip


@pytest.mark.parametrize("file", ["single.yml", "ensemble.yml"])
def test_the_compose_files_open_no_port_to_others(file: str) -> None:
    for service in services(file).values():
        assert service["healthcheck"]["test"][0] == "CMD"
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
