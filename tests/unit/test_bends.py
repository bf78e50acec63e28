"""Bends name code by its syntax tree; and each of them names code as it is now."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.unit import test_keeper
from tests.unit.bends import Bend, bent
from tests.unit.simulator.mutations import MUTATIONS, Mutation
from tests.unit.test_explorer import SEEDED, Seeded

HERE = sys.modules[__name__]


def says(number: int) -> str:
    said = []
    if (  # two reasons
        number > 1 and str(number) not in "it's"
    ):
        said.append("many")
        said.append(str(number))
    return " ".join(said) or "none"


def put_in(old: str, new: str) -> str:
    with bent([Bend(HERE, "says", old, new)], ()):
        return says(2)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param('number > 1 and (str(number) not in "it\'s")', "False", "none", id="part"),
        pytest.param("said.append('many')", "pass", "2", id="statement"),
        pytest.param("said.append('many')", "said.append('few')", "few 2", id="either"),
        pytest.param(
            "said.append('many')", "said.append('a')\nsaid.append('b')", "a b 2", id="more"
        ),
        pytest.param(
            "said.append('many')\nsaid.append(str(number))", "said.append('few')", "few", id="fewer"
        ),
        pytest.param("'none'", "'nothing'", "many 2", id="elsewhere"),
    ],
)
def test_what_is_bent_is_named_by_its_syntax_tree(old: str, new: str, said: str) -> None:
    assert put_in(old, new) == said
    assert says(2) == "many 2"


@pytest.mark.parametrize(("old", "times"), [("number + 1", 0), ("number", 3), ("return", 0)])
def test_what_is_not_said_once_is_refused_by_the_name_of_the_function(old: str, times: int) -> None:
    with pytest.raises(LookupError, match=rf"test_bends.says says '.*' {times} times, not once"):
        put_in(old, old.replace("number", "0"))


@pytest.mark.parametrize(
    "faults",
    [MUTATIONS, SEEDED, test_keeper.SEEDED],
    ids=["the simulator", "the explorer", "the keeper"],
)
def test_each_seeded_fault_names_code_as_it_is(faults: dict[str, Mutation | Seeded[Any]]) -> None:
    """Most are looked for in the nightly run alone."""
    for name, fault in faults.items():
        try:
            with bent(fault.bends, ()):
                pass
        except Exception as error:
            error.add_note(name)
            raise
