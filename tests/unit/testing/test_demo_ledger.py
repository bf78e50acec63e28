from __future__ import annotations

from pathlib import Path

import pytest

from zklock import FencingToken, StaleToken
from zklock.testing.demo.ledger import Entry, Ledger

OLD, NEW = FencingToken(7, 9), FencingToken(7, 10)
NEW_EPOCH = FencingToken(16, 0)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.create()
    return ledger


def test_entries_are_appended_in_order(ledger: Ledger) -> None:
    assert ledger.claim(OLD) == 0
    ledger.append(OLD, 1, "w1")
    assert ledger.claim(NEW) == 1
    ledger.append(NEW, 2, "w2")
    assert ledger.entries() == [Entry(1, OLD, "w1"), Entry(2, NEW, "w2")]


@pytest.mark.parametrize("newer", [NEW, NEW_EPOCH])
def test_a_claim_shuts_out_older_tokens(ledger: Ledger, newer: FencingToken) -> None:
    ledger.claim(OLD)
    ledger.claim(newer)
    with pytest.raises(StaleToken) as raised:
        ledger.append(OLD, 1, "w1")
    assert (raised.value.token, raised.value.highest) == (OLD, newer)
    with pytest.raises(StaleToken):
        ledger.claim(OLD)
    assert ledger.entries() == []


def test_the_same_token_writes_again(ledger: Ledger) -> None:
    ledger.append(OLD, 1, "w1")
    ledger.append(OLD, 2, "w1")
    assert [entry.number for entry in ledger.entries()] == [1, 2]


def test_numbers_are_not_what_guards_it(ledger: Ledger) -> None:
    ledger.append(OLD, 1, "w1")
    ledger.append(NEW, 1, "w2")
    assert [entry.number for entry in ledger.entries()] == [1, 1]


def test_a_ledger_is_made_once(ledger: Ledger) -> None:
    with pytest.raises(Exception, match="already exists"):
        ledger.create()
