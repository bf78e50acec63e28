"""Reads the Compose files of this project, so that images and settings stand in one place.

Of the Compose specification, this covers what those files use: variables as ``${NAME}``,
``${NAME:-default}``, ``${NAME-default}`` and ``$$``; YAML merge keys; and for each service
image, command as a list, environment as a mapping, and networks with aliases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "compose"

_VARIABLE = re.compile(
    r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?:(?P<sign>:?-)(?P<default>[^}]*))?\})"
)


@dataclass(frozen=True, slots=True)
class Service:
    """One container: ``networks`` maps a network's name to this service's aliases on it."""

    name: str
    image: str
    command: tuple[str, ...] | None
    environment: Mapping[str, str]
    networks: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Project:
    """A Compose file; ``networks`` maps a name to whether it is internal."""

    services: tuple[Service, ...]
    networks: Mapping[str, bool]


def load(path: Path, variables: Mapping[str, str]) -> Project:
    """Read a Compose file with these variables; ``ValueError`` for what it does not understand."""
    tree = _resolve(yaml.safe_load(path.read_text(encoding="utf-8")), variables)
    try:
        return Project(
            services=tuple(_service(name, body) for name, body in tree["services"].items()),
            networks={
                name: bool((body or {}).get("internal"))
                for name, body in tree.get("networks", {}).items()
            },
        )
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path}: not a Compose file as expected: {error!r}") from error


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Replace the variables in a text as Compose does."""

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        found = variables.get(match["name"])
        if found is None or (not found and match["sign"] == ":-"):
            return match["default"] or ""
        return found

    return _VARIABLE.sub(value, text)


def _resolve(tree: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(tree, str):
        return interpolate(tree, variables)
    if isinstance(tree, dict):
        return {key: _resolve(value, variables) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_resolve(value, variables) for value in tree]
    return tree


def _service(name: str, body: Mapping[str, Any]) -> Service:
    return Service(
        name=name,
        image=body["image"],
        command=tuple(body["command"]) if "command" in body else None,
        environment={key: str(value) for key, value in body.get("environment", {}).items()},
        networks={
            network: tuple((options or {}).get("aliases", ()))
            for network, options in body.get("networks", {}).items()
        },
    )
