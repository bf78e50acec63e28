from typing import Any

import pytest

from zklock.testing import Ensemble, ZooKeeperServer
from zklock.testing.settings import Settings


def test_session_timeouts_become_entries_and_config_wins() -> None:
    settings = Settings(
        min_session_timeout=700, max_session_timeout=9000, config={"maxSessionTimeout": "5"}
    )
    assert settings.extra_config() == {"minSessionTimeout": "700", "maxSessionTimeout": "5"}


def test_java_options_follow_the_properties() -> None:
    settings = Settings(system_properties={"a.b": "c"}, java_options=("-Xmx9m",))
    assert settings.java_arguments() == ["-Da.b=c", "-Xmx9m"]
    assert (Settings().extra_config(), Settings().java_arguments()) == ({}, [])


@pytest.mark.parametrize("name", ["tick_time", "init_limit", "sync_limit", "min_session_timeout"])
@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_numbers_are_positive_ints(name: str, value: object, error: type[Exception]) -> None:
    given: Any = {name: value}
    with pytest.raises(error, match=name):
        Settings(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"config": {"key": "two words"}},
        {"config": {"key=x": "word"}},
        {"config": {"key": ""}},
        {"config": {"key\nother": "word"}},
        {"system_properties": {"key": "line\nbreak"}},
        {"java_options": ("-Da b",)},
    ],
)
def test_what_would_break_a_line_or_a_word_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="one word"):
        Settings(**given)
    with pytest.raises(TypeError, match="must be a str"):
        Settings(config={"key": 3})  # type: ignore[dict-item]


@pytest.mark.parametrize("kind", [ZooKeeperServer, Ensemble])
def test_java_options_are_a_list(kind: Any) -> None:
    with pytest.raises(TypeError, match="java_options must be a list, not a str"):
        kind(java_options="-Xmx64m", backend="hosts")


@pytest.mark.parametrize(("size", "error"), [(1, ValueError), (0, ValueError), ("3", TypeError)])
def test_an_ensemble_has_at_least_two_servers(size: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"size|two servers"):
        Ensemble(size)
