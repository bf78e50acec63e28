from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from kazoo.recipe.lock import Lock, ReadLock, WriteLock

from zklock._recipes import names
from zklock._recipes.names import Kind, Name, Naming

UUID = "c86b7d2e-6160-47e0-8646-d30f05985a21"
HEX = UUID.replace("-", "")
SEQUENCES = st.integers(-(2**31), 2**31 - 1)

FAMILIES = {
    **{f"our {kind}": (names.prefix(kind, UUID), kind) for kind in Kind},
    "Curator's mutex": (f"_c_{UUID}-lock-", Kind.EXCLUSIVE),
    "Curator's reader": (f"_c_{UUID}-__READ__", Kind.READ),
    "Curator's writer": (f"_c_{UUID}-__WRIT__", Kind.WRITE),
    "Curator's semaphore": (f"_c_{UUID}-lease-", Kind.LEASE),
    "Curator's latch": (f"_c_{UUID}-latch-", Kind.LATCH),
    "Curator without protection": ("lock-lock-", Kind.EXCLUSIVE),
    "go-zookeeper": (f"_c_{HEX}-lock-", Kind.EXCLUSIVE),
    "aiozk's lock": (f"lock-{HEX}-", Kind.EXCLUSIVE),
    "aiozk's reader": (f"read-{HEX}-", Kind.READ),
    "aiozk's writer": (f"write-{HEX}-", Kind.WRITE),
    "kazoo's lock": (f"{HEX}__lock__", Kind.EXCLUSIVE),
    "kazoo's reader": (f"{HEX}__rlock__", Kind.READ),
    "ours for kazoo": (f"_c_{UUID}-__lock__", Kind.EXCLUSIVE),
    "our reader for kazoo": (f"_c_{UUID}-__rlock__", Kind.READ),
    "our writer for kazoo": (f"_c_{UUID}-__WRIT____lock__", Kind.WRITE),
    "ZooKeeper's Java recipe": ("x-72057752732237824-", Kind.EXCLUSIVE),
    "ZooKeeper's Java recipe, negative session": ("x--72057752732237824-", Kind.EXCLUSIVE),
    "ZooKeeper's C recipe": ("x-010000a3f2b40000-", Kind.EXCLUSIVE),
}


@pytest.mark.parametrize("family", FAMILIES)
@given(sequence=SEQUENCES)
def test_the_names_of_every_family_are_understood(family: str, sequence: int) -> None:
    """H20: contenders of other clients count."""
    prefix, kind = FAMILIES[family]
    text = f"{prefix}{sequence:010d}"
    assert names.parse(text) == Name(sequence & 0xFFFFFFFF, text, kind, sequence)


@pytest.mark.parametrize("kind", [Kind.EXCLUSIVE, Kind.READ, Kind.WRITE])
@given(sequence=SEQUENCES)
def test_kazoo_sees_the_names_that_are_written_for_it(kind: Kind, sequence: int) -> None:
    class_ = {Kind.EXCLUSIVE: Lock, Kind.READ: ReadLock, Kind.WRITE: WriteLock}[kind]
    text = f"{names.prefix(kind, UUID, Naming.KAZOO)}{sequence:010d}"
    assert names.parse(text) == Name(sequence & 0xFFFFFFFF, text, kind, sequence)
    assert names.seen_by_kazoo(text)
    assert not names.seen_by_kazoo(f"{names.prefix(kind, UUID)}{sequence:010d}")
    marker = class_._NODE_NAME
    assert text.endswith(f"{marker}{sequence:010d}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "config",
        "lock",
        "-lock-",
        "0000000001",
        f"_c_{UUID}-lock-123",
        f"_c_{UUID}-lock-00000000001",
        f"_c_{UUID}-lock-0000000001x",
        f"_c_{UUID}-lock-0000000001\n",
        f"_c_{UUID}-lock-٠٠٠٠٠٠٠٠٠١",
        f"_c_{UUID}-lokc-0000000001",
        f"_c_{UUID}-lock-+000000001",
        f"_c_{UUID}-lock-2147483648",
        f"_c_{UUID}-lock-9999999999",
        f"_c_{UUID}-lock--2147483649",
        f"_c_{UUID}-lock--9999999999",
        f"_c_{UUID}-lock--0000000001",
        "x-1234-2147483648",
        f"{HEX}__LOCK__0000000001",
        "x-zz-0000000001",
        "lock-0000000001",
        f"lock-{HEX[1:]}-0000000001",
        f"mine-{HEX}-0000000001",
        "y-1234-0000000001",
        "(?P<sequence>.*)-0000000001",
    ],
)
def test_other_names_are_no_contenders(text: str) -> None:
    assert names.parse(text) is None


def test_strangers_are_the_oldest_of_each_sort() -> None:
    me = names.parse("-lock-0000000007")
    listed = [
        "n_0000000005",
        "n_0000000003",
        "n_0000000008",
        "n_3",
        "ex-0000000004",
        "n_9999999999",
        "a\nb0000000002",
        "ex--2147483648",
        "config",
        "-lock-0000000001",
    ]
    assert names.strangers(listed, me) == ["a\nb0000000002", "n_0000000003", "ex-0000000004"]
    many = [f"{letter}-{number:010d}" for number, letter in enumerate("ghijklmnopqrstuvwxyz")]
    assert names.strangers(many) == many[:16]
    assert names.strangers(reversed(many), names.parse("-lock-0000000002")) == many[:2]


@given(st.text())
def test_no_name_is_too_strange_to_be_looked_at(text: str) -> None:
    name = names.parse(text)
    assert name is None or name.text == text


@given(st.text(alphabet="-lock_()[]*\\.^$|?+{}\n0123456789", max_size=30), SEQUENCES)
def test_characters_of_patterns_mean_nothing(start: str, sequence: int) -> None:
    text = f"{start}-lock-{sequence:010d}"
    name = names.parse(text)
    assert name is not None
    assert name.sequence == sequence


@given(st.lists(SEQUENCES, unique=True))
def test_the_queue_is_in_order_of_creation(sequences: list[int]) -> None:
    """H2: text order is not that of the numbers; numbers that wrapped are the youngest."""
    created = sorted(sequences, key=lambda number: number & 0xFFFFFFFF)
    listed = [f"_c_{UUID}-lock-{number:010d}" for number in sequences]
    assert [name.sequence for name in names.Queue([*listed, "stray"]).contenders] == created


def test_a_new_contender_comes_after_those_of_every_family() -> None:
    texts = [f"{prefix}{at:010d}" for at, (prefix, _) in enumerate(FAMILIES.values())]
    me = f"{names.prefix(Kind.EXCLUSIVE, UUID)}{len(texts):010d}"
    assert [name.text for name in names.Queue([me, *reversed(texts)]).contenders] == [*texts, me]


@given(
    st.lists(
        st.tuples(st.sampled_from([Kind.EXCLUSIVE, Kind.READ, Kind.WRITE]), SEQUENCES),
        min_size=1,
        unique_by=lambda one: one[1],
    ),
    st.data(),
)
def test_standing_agrees_with_a_look_at_everybody(
    contenders: list[tuple[Kind, int]], data: st.DataObject
) -> None:
    texts = [f"{names.prefix(kind, UUID)}{number:010d}" for kind, number in contenders]
    mine = data.draw(st.sampled_from(texts))
    me = names.parse(mine)
    assert me is not None

    standing = names.Queue(texts).standing(me)

    ahead = [
        other
        for other in map(names.parse, texts)
        if other is not None and other.sequence & 0xFFFFFFFF < me.sequence & 0xFFFFFFFF
    ]
    before = [other for other in ahead if not other.kind is me.kind is Kind.READ]
    before.sort(key=lambda other: other.sequence & 0xFFFFFFFF)
    assert standing is not None
    assert standing.nearest == (before[-1] if before else None)
    assert standing.sole == (len(before) < 2)
    assert standing.ahead == len(ahead)


def test_who_is_not_listed_stands_nowhere() -> None:
    me = names.parse(f"_c_{UUID}-lock-0000000007")
    assert me is not None
    for number in (6, 7, 8):
        assert names.Queue([f"_c_other-lock-{number:010d}"]).standing(me) is None


@pytest.mark.parametrize("path", ["/a", "/locks/report", "/ä/b c", "/a/..b", "/zookeeper/x"])
def test_good_paths(path: str) -> None:
    assert names.check_path(path) == path


def test_a_path_that_is_a_member_of_an_enum_becomes_plain_text() -> None:
    class Path(str, Enum):  # noqa: UP042 - a StrEnum is formatted as its value
        REPORT = "/locks/report"

    path = names.check_path(Path.REPORT)
    assert (type(path), path) == (str, "/locks/report")


BAD_PATHS = {
    "must be absolute": ["", "a", "a/b"],
    "cannot live at the root": ["/"],
    "must not end with '/'": ["//", "/a/"],
    "must not have empty, '.' or '..' parts": [
        *("//a", "/a//b", "/.", "/..", "/a/./b", "/a/../b", "/a/.."),
    ],
    "a character that ZooKeeper refuses": [
        f"/a{character}" for character in "\x00\x01\x1f\x7f\x9f\ud800\uf8ff\ufff0\uffff"
    ],
}


@pytest.mark.parametrize(
    ("path", "said"), [(path, said) for said, paths in BAD_PATHS.items() for path in paths]
)
def test_bad_paths(path: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        names.check_path(path)


@pytest.mark.parametrize("path", [None, 1, b"/a", ["/a"]])
def test_paths_are_text(path: object) -> None:
    with pytest.raises(TypeError, match="must be a str"):
        names.check_path(path)


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        (f"/a/_c_{UUID}-lock-0000000001", Kind.EXCLUSIVE),
        (f"/a/b-latch-0000000001/_c_{UUID}-__READ__0000000001", Kind.READ),
        (f"_c_{UUID}-lease-0000000001", Kind.LEASE),
        (f"/a/_c_{UUID}-lock-0000000001/data", None),
        ("/a/config", None),
    ],
)
def test_what_a_contender_wants_is_read_from_its_node(node: str, kind: Kind | None) -> None:
    assert names.kind_of(node) is kind


def test_numbers_are_worn_out_where_the_docs_say() -> None:
    docs = Path(__file__).parents[2] / "docs"
    assert "From 2^30 on, a release deletes the parent" in (docs / "recipe.md").read_text()
    assert names.RENEW_AT == 2**30
    assert "From 2^31 − 2^20 on, and on negative" in (docs / "recipe.md").read_text()
    assert names.EXHAUSTED_AT == 2**31 - 2**20


@pytest.mark.parametrize("text", ["a", "ä"])
def test_a_path_may_have_a_quarter_of_a_megabyte(text: str) -> None:
    """A request has the path up to three times, and ZooKeeper takes a megabyte."""
    longest = "/" + "a" * (len(text.encode()) - 1) + text * (2**18 // len(text.encode()) - 1)
    assert len(longest.encode()) == 2**18
    assert names.check_path(longest) == longest
    with pytest.raises(ValueError, match=r"at most 262144 bytes, not 26214[56]"):
        names.check_path(longest + text)
