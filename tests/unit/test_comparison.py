"""docs/comparison.md: every tick names tests that exist, and every other one has its sources."""

from __future__ import annotations

import re

import pytest

from tests.unit.named_tests import ROOT, TEST, missing

PAGE = (ROOT / "docs" / "comparison.md").read_text()
TICKS = re.findall(r"^\| (.+?) \| ✓ \| (.+?) \|$", PAGE, re.MULTILINE)
PEERS = dict(re.findall(r"^### (.+?)\n(.+?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
OWN_WORDS = {"Not locking"}


@pytest.mark.parametrize("tests", [tests for _, tests in TICKS], ids=[told for told, _ in TICKS])
def test_a_tick_names_tests_that_exist(tests: str) -> None:
    assert TEST.search(tests)
    assert TEST.sub("", tests).strip() == ""
    assert missing(tests) == []


def test_every_tick_is_checked() -> None:
    assert len(TICKS) == PAGE.count("✓") > 0


@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer not in OWN_WORDS])
def test_another_one_has_a_source_in_each_statement_or_above_them(peer: str) -> None:
    told = PEERS[peer]
    above, *statements = re.split(r"^- ", told, flags=re.MULTILINE)
    sourced = "All statements are of" in above and "](https://" in above
    for statement in statements:
        if not statement.startswith("*Choose"):
            assert sourced or "](https://" in statement or TEST.search(statement), statement


@pytest.mark.parametrize("peer", PEERS)
def test_another_one_is_the_better_choice_somewhere(peer: str) -> None:
    assert peer in OWN_WORDS or re.search(r"^- \*Choose (it|them)\* ", PEERS[peer], re.MULTILINE)
