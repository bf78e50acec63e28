from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from zklock import FencingToken

EPOCHS = st.integers(0, 2**63 - 1)
SEQUENCES = st.integers(0, 2**31 - 1)
TOKENS = st.builds(FencingToken, EPOCHS, SEQUENCES)


@given(TOKENS, TOKENS)
def test_tokens_and_their_texts_order_by_epoch_then_sequence(
    one: FencingToken, two: FencingToken
) -> None:
    assert (one < two) == ((one.epoch, one.sequence) < (two.epoch, two.sequence))
    assert (one == two) == ((one.epoch, one.sequence) == (two.epoch, two.sequence))
    assert len(str(one)) == len(str(two)) == 27
    assert str(one).isascii()
    assert (str(one) < str(two)) == (one < two)


@given(TOKENS)
@example(FencingToken(0, 0))
@example(FencingToken(2**63 - 1, 2**31 - 1))
def test_the_text_reads_back(token: FencingToken) -> None:
    assert FencingToken.parse(str(token)) == token


@pytest.mark.parametrize(("epoch", "sequence"), [(-1, 0), (2**63, 0), (0, -1), (0, 2**31)], ids=str)
def test_what_zookeeper_cannot_give_is_refused(epoch: int, sequence: int) -> None:
    with pytest.raises(ValueError, match="must be 0 to"):
        FencingToken(epoch, sequence)


@pytest.mark.parametrize("bad", [1.0, "1", None, True])
def test_only_integers_make_a_token(bad: Any) -> None:
    for epoch, sequence in ((bad, 0), (0, bad)):
        with pytest.raises(TypeError, match="must be an int"):
            FencingToken(epoch, sequence)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0-0",
        "000000000000000F-0000000000",
        " 0000000000000001-0000000000",
        "0000000000000001-0000000000\n",
        "0000000000000001_0000000000",
        "000000000000000١-0000000000",
        "8000000000000000-0000000000",
        "0000000000000000-2147483648",
        "0000000000000000--000000001",
    ],
)
def test_other_text_is_no_token(text: str) -> None:
    with pytest.raises(ValueError, match=r"token|must be 0 to"):
        FencingToken.parse(text)
    with pytest.raises(TypeError, match="must be a str"):
        FencingToken.parse(b"0000000000000001-0000000000")  # type: ignore[arg-type]


def test_a_token_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        FencingToken(1, 2).epoch = 3  # type: ignore[misc]
