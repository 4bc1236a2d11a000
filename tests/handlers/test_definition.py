"""Definitions: what an upload must look like, when two are the same version, who shares a context.

Whether a source compiles is not asked here; that is the runner's business.
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict, replace

import pytest
from hypothesis import strategies as st

from handlers.definition import SOURCE_MAX_BYTES, Definition, Handler, InvalidHandler, define
from handlers.names import InvalidName
from runners.languages import LANGUAGES
from tests.properties import given

LANGS = ("python", "node", "http")
GOOD = {"lang": "python", "body": "return payload"}
SCRIPTS = ("before", "beforeEach", "body", "afterEach")


class Text(str):
    """A string that is not exactly one, as a clever decoder might make it."""


def handler(**changes: object) -> Handler:
    base = Handler(tenant="acme", name="resize", version=1, definition=Definition(**GOOD))
    definition = {name: changes.pop(name) for name in ("lang", "eid", "body") if name in changes}
    return replace(base, definition=replace(base.definition, **definition), **changes)  # type: ignore[arg-type]


@pytest.mark.checklist("M73")
def test_lang_and_body_are_enough() -> None:
    assert define("resize", GOOD, LANGS) == Definition(lang="python", body="return payload")


@pytest.mark.checklist("M73")
def test_every_field_is_kept_as_it_is() -> None:
    every = {
        "lang": "node",
        "eid": "images",
        "before": "const n = 1 // \u2028 é 💡",
        "beforeEach": "\tn += 1\r\n",
        "body": "return n\n\n",
        "afterEach": " ",
    }
    assert asdict(define("img.resize", every, LANGS)) == every


@pytest.mark.checklist("M93")
@pytest.mark.parametrize(
    "lang",
    ["", "perl", "Python", "python ", "python\n", pytest.param("x" * 10_000, id="10 kB"), "\ud800"],
)
def test_an_unknown_lang_is_refused(lang: str) -> None:
    with pytest.raises(
        InvalidHandler, match=r"unknown lang .*; known are http, node, python"
    ) as no:
        define("resize", GOOD | {"lang": lang}, LANGS)
    assert len(str(no.value)) < 200
    str(no.value).encode()


@pytest.mark.checklist("M93")
def test_a_missing_lang_is_an_unknown_one() -> None:
    with pytest.raises(InvalidHandler, match="unknown lang ''"):
        define("resize", {"body": "return 1"}, LANGS)


@pytest.mark.checklist("M93")
def test_every_language_that_can_be_run_can_be_uploaded() -> None:
    for lang in LANGUAGES:
        assert define("resize", GOOD | {"lang": lang}, LANGUAGES).lang == lang


@pytest.mark.checklist("M73")
@pytest.mark.parametrize(
    "value", [None, 1, 1.5, True, b"return 1", ["return 1"], {"$ne": ""}, Text("return 1")]
)
@pytest.mark.parametrize("field", ["lang", "eid", *SCRIPTS])
def test_a_field_that_is_no_string_is_named(field: str, value: object) -> None:
    with pytest.raises(InvalidHandler, match=f"field '{field}' must be a string"):
        define("resize", GOOD | {field: value}, LANGS)


@pytest.mark.parametrize(
    "field", ["Body", "code", "tenant", "version", "$where", "", "body\0", "é"]
)
def test_an_unknown_field_is_refused_and_named(field: str) -> None:
    with pytest.raises(InvalidHandler) as refusal:
        define("resize", GOOD | {field: "x"}, LANGS)
    assert f"unknown field {field!r}" in str(refusal.value)


@pytest.mark.parametrize("body", [None, "", " ", "\n\t \n"])
def test_a_handler_has_a_body(body: str | None) -> None:
    raw = {"lang": "python"} | ({} if body is None else {"body": body})
    with pytest.raises(InvalidHandler, match="'body' is missing or empty"):
        define("resize", raw, LANGS)


@pytest.mark.parametrize("field", SCRIPTS)
@pytest.mark.parametrize(
    ("source", "why"),
    [
        pytest.param("a" * (SOURCE_MAX_BYTES + 1), "over 1048576 bytes", id="a byte too long"),
        pytest.param(
            "é" * (SOURCE_MAX_BYTES // 2 + 1), "over 1048576 bytes", id="bytes, not letters"
        ),
        pytest.param("return 1\0", "contains a NUL", id="NUL"),
        pytest.param("\0return 1", "contains a NUL", id="NUL first"),
        pytest.param("\ufeffreturn 1", "byte order mark", id="BOM"),
        pytest.param("return '\ud800'", "not valid Unicode", id="lone surrogate"),
        pytest.param("return '\udcff'", "not valid Unicode", id="escaped byte"),
    ],
)
def test_a_source_is_plain_text_of_limited_size(field: str, source: str, why: str) -> None:
    with pytest.raises(InvalidHandler, match=f"field '{field}' .*{why}"):
        define("resize", GOOD | {field: source}, LANGS)


@pytest.mark.parametrize("field", SCRIPTS)
def test_a_source_may_be_just_as_long_as_the_limit(field: str) -> None:
    source = "é" * (SOURCE_MAX_BYTES // 2)
    assert getattr(define("resize", GOOD | {field: source}, LANGS), field) == source


@pytest.mark.parametrize("name", ["a-b", "..", "__done", "queue.sysid", "resize@3", "", "resize\n"])
def test_names_and_eids_are_checked_like_any_other(name: str) -> None:
    with pytest.raises(InvalidName):
        define(name, GOOD, LANGS)
    if name:
        with pytest.raises(InvalidName):
            define("resize", GOOD | {"eid": name}, LANGS)


def test_definitions_and_handlers_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        handler().definition.body = "return 2"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        handler().version = 2  # type: ignore[misc]


FIELDS = st.fixed_dictionaries(
    {"lang": st.sampled_from(LANGS), "body": st.text("ab=\n", min_size=1, max_size=3)},
    optional={
        "eid": st.sampled_from(["", "a", "b"]),
        "before": st.text("ab=\n", max_size=3),
        "beforeEach": st.text("ab=\n", max_size=3),
        "afterEach": st.text("ab=\n", max_size=3),
    },
)


@given(FIELDS, FIELDS)
def test_digests_are_equal_just_when_the_definitions_are(
    one: dict[str, str], other: dict[str, str]
) -> None:
    first, second = Definition(**one), Definition(**other)
    assert (first.digest() == second.digest()) == (first == second)


@pytest.mark.parametrize("field", ["lang", "eid", *SCRIPTS])
def test_every_field_counts_for_the_digest(field: str) -> None:
    base = Definition(lang="x", body="x", eid="x", before="x", beforeEach="x", afterEach="x")
    assert replace(base, **{field: "y"}).digest() != base.digest()


def test_a_source_that_moves_to_another_field_is_another_version() -> None:
    digests = {
        Definition(**{"lang": "python", "body": "b"} | {f: "n = 1"}).digest() for f in SCRIPTS
    }
    assert len(digests) == 4


@pytest.mark.checklist("M35")
@pytest.mark.parametrize(
    ("change", "shares"),
    [
        pytest.param({}, True, id="the same type"),
        pytest.param({"body": "return 2"}, True, id="a version is known by its number"),
        pytest.param({"version": 2}, False, id="another version"),
        pytest.param({"name": "rotate"}, False, id="another type"),
        pytest.param({"lang": "node"}, False, id="another language"),
        pytest.param({"tenant": "zeta"}, False, id="another tenant"),
        pytest.param({"eid": "images"}, False, id="one with an eid"),
        pytest.param({"eid": "resize@1"}, False, id="an eid like the version"),
    ],
)
def test_contexts_are_shared_by_one_version_of_a_type(
    change: dict[str, object], shares: bool
) -> None:
    assert (handler(**change).key == handler().key) is shares


@pytest.mark.checklist("M4", "M35")
@pytest.mark.parametrize(
    ("change", "shares"),
    [
        pytest.param({"name": "rotate"}, True, id="another type"),
        pytest.param({"version": 2}, True, id="another version"),
        pytest.param({"lang": "node"}, False, id="another language"),
        pytest.param({"tenant": "zeta"}, False, id="another tenant"),
        pytest.param({"eid": "sounds"}, False, id="another eid"),
    ],
)
def test_an_equal_eid_shares_a_context_within_a_tenant(
    change: dict[str, object], shares: bool
) -> None:
    assert (handler(**{"eid": "images"} | change).key == handler(eid="images").key) is shares


NAMES = st.sampled_from(["a", "ab", "b", "eid", "a.b", "acme"])
HANDLERS = st.builds(
    lambda tenant, name, version, lang, eid: handler(
        tenant=tenant, name=name, version=version, lang=lang, eid=eid
    ),
    NAMES,
    NAMES,
    st.integers(1, 12),
    st.sampled_from(LANGS),
    st.one_of(st.just(""), NAMES),
)


@pytest.mark.checklist("M4", "M35")
@given(HANDLERS, HANDLERS)
def test_two_tenants_never_have_an_equal_key(one: Handler, other: Handler) -> None:
    if one.key == other.key:
        assert (one.tenant, one.definition.lang) == (other.tenant, other.definition.lang)
        assert one.definition.eid == other.definition.eid
        assert one.definition.eid or (one.name, one.version) == (other.name, other.version)
    if one.tenant != other.tenant:
        assert one.key != other.key


def test_a_handler_prints_as_people_write_it() -> None:
    assert str(handler(version=3)) == "acme/resize@3"
