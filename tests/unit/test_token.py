from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from zklock import FencingToken

EPOCHS = st.integers(0, 2**63 - 1)
SEQUENCES = st.integers(0, 2**31 - 1)
TOKENS = st.builds(FencingToken, EPOCHS, SEQUENCES)


@given(TOKENS, TOKENS)
def test_tokens_order_by_epoch_then_sequence(one: FencingToken, two: FencingToken) -> None:
    assert (one < two) == ((one.epoch, one.sequence) < (two.epoch, two.sequence))
    assert (one == two) == ((one.epoch, one.sequence) == (two.epoch, two.sequence))


@given(TOKENS, TOKENS)
def test_the_text_has_fixed_width_and_sorts_like_the_token(
    one: FencingToken, two: FencingToken
) -> None:
    assert len(str(one)) == len(str(two)) == 27
    assert str(one).isascii()
    assert (str(one) < str(two)) == (one < two)


@given(TOKENS)
def test_the_text_reads_back(token: FencingToken) -> None:
    assert FencingToken.parse(str(token)) == token


@pytest.mark.parametrize(("epoch", "sequence"), [(-1, 0), (2**63, 0), (0, -1), (0, 2**31)], ids=str)
def test_what_zookeeper_cannot_give_is_refused(epoch: int, sequence: int) -> None:
    with pytest.raises(ValueError, match="must be 0 to"):
        FencingToken(epoch, sequence)


@pytest.mark.parametrize("epoch", [0, 2**63 - 1])
@pytest.mark.parametrize("sequence", [0, 2**31 - 1])
def test_all_that_zookeeper_can_give_makes_a_token(epoch: int, sequence: int) -> None:
    token = FencingToken(epoch, sequence)
    assert FencingToken.parse(str(token)) == token == FencingToken(epoch, sequence)


@pytest.mark.parametrize("bad", [1.0, "1", None, True])
def test_only_integers_make_a_token(bad: object) -> None:
    with pytest.raises(TypeError, match="must be an int"):
        FencingToken(bad, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be an int"):
        FencingToken(0, bad)  # type: ignore[arg-type]


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


def test_only_text_is_parsed() -> None:
    with pytest.raises(TypeError, match="must be a str"):
        FencingToken.parse(b"0000000000000001-0000000000")  # type: ignore[arg-type]


def test_a_token_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        FencingToken(1, 2).epoch = 3  # type: ignore[misc]
