"""Names are refused in one place: what is hostile never becomes a path, a header or a filter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from handlers.names import InvalidName, JobType, check_function, check_tenant, check_type
from handlers.names import split_version as split
from tests.properties import given

# Refused as tenant, as function and as type alike.
HOSTILE = [
    pytest.param("", id="empty"),
    pytest.param(" ", id="space"),
    pytest.param(".", id="dot"),
    pytest.param("..", id="parent"),
    pytest.param("../etc/passwd", id="path"),
    pytest.param("..%2fetc", id="escaped slash"),
    pytest.param("a/b", id="slash"),
    pytest.param("a\\b", id="backslash"),
    pytest.param("a..b", id="parent inside"),
    pytest.param("~root", id="home"),
    pytest.param("acme\n", id="newline at the end"),
    pytest.param("\nacme", id="newline at the start"),
    pytest.param("acme\r", id="return at the end"),
    pytest.param("ac\nme", id="newline inside"),
    pytest.param("acme\0", id="NUL"),
    pytest.param("a b", id="space inside"),
    pytest.param("a\tb", id="tab"),
    pytest.param("a-b", id="hyphen"),
    pytest.param("a:b", id="colon"),
    pytest.param("a|b", id="bar"),
    pytest.param("a,b", id="comma"),
    pytest.param("a=b", id="equals"),
    pytest.param("a;b", id="semicolon"),
    pytest.param("a'b", id="quote"),
    pytest.param('a"b', id="double quote"),
    pytest.param("a*", id="star"),
    pytest.param("a%00", id="escaped NUL"),
    pytest.param("$ne", id="operator"),
    pytest.param("$where", id="operator that runs code"),
    pytest.param('{"$ne":""}', id="filter"),
    pytest.param("#:Batch", id="frame"),
    pytest.param("9lives", id="digit first"),
    pytest.param("-rf", id="flag"),
    pytest.param("a" * 65, id="a letter too long"),
    pytest.param("a" * 10_000, id="10 kB"),
    pytest.param("a\u0441me", id="Cyrillic es"),
    pytest.param("\u0430cme", id="Cyrillic a"),
    pytest.param("\uff41cme", id="full-width a"),
    pytest.param("acme\u0301", id="combining accent"),
    pytest.param("acmé", id="accent"),
    pytest.param("acme\u200b", id="zero width space"),
    pytest.param("acme\u202e", id="right to left"),
    pytest.param("ﬁle", id="ligature"),
    pytest.param("a\uff11", id="full-width digit"),
    pytest.param("a²", id="superscript digit"),
    pytest.param("a٣", id="Arabic digit"),
    pytest.param("\u212a", id="Kelvin sign"),
    pytest.param("acme\ud800", id="lone surrogate"),
    pytest.param("__done", id="word of a lock"),
    pytest.param("__paused", id="another word of a lock"),
    pytest.param("__proto__", id="prototype"),
    pytest.param("queue.sysid", id="the queue's own"),
    pytest.param("queue.", id="the queue's own prefix"),
]


@pytest.mark.checklist("M58")
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("check", [check_tenant, check_function, check_type])
def test_a_hostile_name_is_refused_in_few_words(check: Callable[[str], str], name: str) -> None:
    with pytest.raises(InvalidName) as refusal:
        check(name)
    message = str(refusal.value)
    assert len(message) < 500
    assert message.isprintable()
    message.encode()  # can be logged and answered, whatever the name was


@pytest.mark.parametrize("name", ["a", "acme", "a1", "z" * 32, "jobs2", "queue", "done"])
def test_a_good_tenant_is_taken_as_it_is(name: str) -> None:
    assert check_tenant(name) == name


@pytest.mark.parametrize("name", ["A", "Acme", "aCme", "a_b", "_a", "a.b", "a@1", "1", "z" * 33])
def test_a_tenant_is_lower_case_letters_and_digits(name: str) -> None:
    with pytest.raises(InvalidName, match="1-32 lower-case letters and digits"):
        check_tenant(name)


@pytest.mark.parametrize(
    "name",
    ["v1", "ui", "docs", "livez", "readyz", "startupz", "metrics", "version", "admin", "jobs"],
)
def test_a_tenant_cannot_take_the_place_of_a_route(name: str) -> None:
    with pytest.raises(InvalidName, match="reserved"):
        check_tenant(name)


@pytest.mark.parametrize(
    "name", ["f", "F", "_f", "_", "resize", "img.resize", "a.b.c", "f9", "queue", "q" * 64, "f."]
)
def test_a_good_function_is_taken_as_it_is(name: str) -> None:
    assert check_function(name) == name
    assert check_type(name) == name


@pytest.mark.parametrize("name", ["queue.sysid", "queue.x", "__f", "__"])
def test_a_function_cannot_begin_like_a_word_of_ours(name: str) -> None:
    with pytest.raises(InvalidName, match="reserved prefix"):
        check_function(name)


@pytest.mark.checklist("M19")
@pytest.mark.parametrize(
    ("type_", "parts"),
    [
        ("resize", ("resize", None)),
        ("resize@1", ("resize", 1)),
        ("resize@3", ("resize", 3)),
        ("resize@30", ("resize", 30)),
        ("a.b@999999999", ("a.b", 999_999_999)),
    ],
)
def test_a_version_can_be_pinned(type_: str, parts: tuple[str, int | None]) -> None:
    assert check_type(type_) == type_
    assert split(type_) == parts


@pytest.mark.checklist("M19")
@pytest.mark.parametrize(
    "version",
    [
        *("", "0", "00", "03", "-1", "+1", "1.0", "1e3", " 3", "3 ", "3\n", "x", "1_0", "0x1"),
        *("\uff13", "²", "3@4", "@3", "9999999999", "latest"),
        pytest.param("1" * 10_000, id="10 kB"),
    ],
)
def test_a_version_is_a_positive_number_in_one_spelling(version: str) -> None:
    with pytest.raises(InvalidName, match="pins a version"):
        check_type(f"resize@{version}")


@pytest.mark.parametrize("type_", ["@", "@3", "a-b@3", "..@3", "__f@3", "queue.x@3", "9f@1"])
def test_a_pinned_type_needs_a_good_name_too(type_: str) -> None:
    with pytest.raises(InvalidName, match="jobtype"):
        check_type(type_)


@pytest.mark.checklist("M19")
def test_versions_of_a_function_are_types_of_their_own() -> None:
    types = {JobType("acme", name) for name in ("resize", "resize@1", "resize@2", "resize@12")}
    assert len(types) == 4


@pytest.mark.checklist("M3")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a-b", "c"), ("a", "b-c")),
        (("a", "bc"), ("ab", "c")),
        (("a/b", "c"), ("a", "b/c")),
        (("a", ".b"), ("a.", "b")),
        (("", "ab"), ("ab", "")),
    ],
)
def test_types_that_would_collide_if_joined_stay_apart(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    assert JobType(*one) != JobType(*other)
    assert len({JobType(*one): 1, JobType(*other): 2}) == 2


GOOD_TENANTS = st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True)
GOOD_TYPES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,5}(@[1-9])?", fullmatch=True)


@pytest.mark.checklist("M3")
@given(st.tuples(GOOD_TENANTS, GOOD_TYPES), st.tuples(GOOD_TENANTS, GOOD_TYPES))
def test_types_print_alike_only_if_they_are_the_same(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    printed = [str(JobType(*pair)) for pair in (one, other)]
    assert (printed[0] == printed[1]) == (one == other)


@given(st.text(max_size=80))
def test_what_is_accepted_is_safe_in_a_path_a_header_and_a_filter(name: str) -> None:
    for check in (check_tenant, check_function, check_type):
        try:
            assert check(name) is name
        except InvalidName:
            continue
        assert name.isascii()
        assert not set(name) & set("/\\|,:;-$%\"'\n\r\0 ")
        assert ".." not in name
        assert not name.startswith((".", "__", "queue."))
