"""Options: checked once, written down in one spelling, understood the same ever after."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import strategies as st

from queue_service.batch import LIVE_BEFORE, Options
from queue_service.errors import BadRequest
from queue_service.options import Defaults, read, seconds, understand
from queue_service.settings import load
from tests.properties import given

NOW = datetime(2026, 11, 18, 8, 0, 0, 123000, tzinfo=UTC)
USUAL = Options(priority=50, timeout_s=60.0, retries=10, retry_delay_s=None, window_s=21600.0)
DEFAULTS = Defaults(options=USUAL, timeout_max_s=900.0)


def written(**query: str) -> str:
    return read(query, DEFAULTS, NOW)


def understood(**query: str) -> tuple[Options, datetime | None]:
    return understand(written(**query), DEFAULTS)


def test_the_defaults_are_those_of_the_settings() -> None:
    flags = {"job_timeout_s": 7, "job_timeout_max_s": 8, "retries": 2, "retry_window_s": 9000}
    assert Defaults.of(load(flags, {}).settings) == Defaults(
        options=Options(priority=50, timeout_s=7.0, retries=2, retry_delay_s=None, window_s=9000.0),
        timeout_max_s=8.0,
    )


@pytest.mark.parametrize("query", [{}, {"wait": "5"}, {"ack": "store", "PRIORITY": "9"}])
def test_who_asks_for_nothing_writes_nothing(query: dict[str, str]) -> None:
    assert read(query, DEFAULTS, NOW) == ""
    assert understand("", DEFAULTS) == (USUAL, None)


@pytest.mark.checklist("M7")
def test_without_a_time_a_job_is_due_at_once() -> None:
    assert understood(priority="7")[1] is None


@pytest.mark.parametrize(
    ("query", "changes"),
    [
        ({"priority": "1"}, {"priority": 1}),
        ({"priority": "100"}, {"priority": 100}),
        ({"timeout": "0.001"}, {"timeout_s": 0.001}),
        ({"timeout": "900"}, {"timeout_s": 900.0}),
        ({"timeout": "1e2"}, {"timeout_s": 100.0}),
        ({"retries": "0"}, {"retries": 0}),
        ({"retries": "1000"}, {"retries": 1000}),
        ({"retry_delay": "0"}, {"retry_delay_s": 0.0}),
        ({"retry_delay": "86400"}, {"retry_delay_s": 86400.0}),
        (
            {"retry_delay": "1.5", "retries": "2", "timeout": "3", "priority": "4"},
            {"retry_delay_s": 1.5, "retries": 2, "timeout_s": 3.0, "priority": 4},
        ),
    ],
)
def test_what_was_asked_for_holds_and_all_else_stays(
    query: dict[str, str], changes: dict[str, float]
) -> None:
    options, at = understood(**query)
    assert (options, at) == (replace(USUAL, **changes), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            "priority",
            ["0", "101", "-1", "+5", "5.0", "1e1", "", " 5", "five", "٣", "5\n", "9" * 99],
        ),
        ("retries", ["-1", "1001", "1.5", "", "inf", "²", "0x1", "1_0"]),
        ("timeout", ["0", "0.0009", "900.1", "-1", "nan", "inf", "-inf", "", "1s", "None", "\0"]),
        ("retry_delay", ["-0.1", "86400.1", "nan", "inf", "", "1e999", "soon", "1,5"]),
        ("delay", ["-1", "nan", "inf", "1e12", "", "tomorrow"]),
        ("at", ["", "now", "1795000000", "2026-13-01", "2026-11-18T25:00", "18.11.2026", "\0"]),
        ("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "10000-01-01"]),
        ("at", ["2900-01-01", "3026-11-18", "9999-12-31T00:00:00Z"]),
    ],
)
def test_a_bad_value_is_refused_with_its_parameter(name: str, values: list[str]) -> None:
    for value in values:
        with pytest.raises(BadRequest, match=f"parameter '{name}'") as refusal:
            written(**{name: value})
        assert len(str(refusal.value)) < 100  # the value itself is not repeated


def test_one_bad_value_among_good_ones_is_found() -> None:
    with pytest.raises(BadRequest, match="'retries'"):
        written(priority="5", retries="many", timeout="3")


def test_a_time_and_a_delay_exclude_each_other() -> None:
    with pytest.raises(BadRequest, match="'at' and 'delay' exclude each other"):
        written(at="2026-11-18", delay="5")


@pytest.mark.checklist("M7")
@pytest.mark.parametrize(
    ("query", "due"),
    [
        ({"delay": "0"}, NOW),
        ({"delay": "1.5"}, NOW + timedelta(seconds=1.5)),
        ({"delay": "0.0004"}, NOW + timedelta(milliseconds=1)),
        ({"delay": "86400"}, NOW + timedelta(days=1)),
        ({"at": "2026-12-24T18:00:00Z"}, datetime(2026, 12, 24, 18, tzinfo=UTC)),
        ({"at": "2026-12-24T18:00:00+01:00"}, datetime(2026, 12, 24, 17, tzinfo=UTC)),
        ({"at": "2026-12-24T18:00:00.250"}, datetime(2026, 12, 24, 18, 0, 0, 250000, tzinfo=UTC)),
        ({"at": "2026-12-24"}, datetime(2026, 12, 24, tzinfo=UTC)),
        ({"at": "1999-12-31T23:59:59Z"}, datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ({"at": "1969-07-20"}, datetime(1969, 7, 20, tzinfo=UTC)),
        ({"at": "0001-01-01"}, datetime(1, 1, 1, tzinfo=UTC)),
        ({"at": "2899-12-31T23:59:59Z"}, datetime(2899, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_a_job_is_due_when_it_was_asked_for(query: dict[str, str], due: datetime) -> None:
    assert understood(**query) == (USUAL, due)


@pytest.mark.checklist("M7")
@given(st.datetimes(datetime(1970, 1, 1), datetime(2899, 12, 31), timezones=st.just(UTC)))
def test_times_are_kept_to_the_millisecond(at: datetime) -> None:
    _, due = understood(at=at.isoformat())
    assert due is not None
    assert timedelta(0) <= due - at < timedelta(milliseconds=1)
    assert due.microsecond % 1000 == 0
    assert due.utcoffset() == timedelta(0)
    assert due < LIVE_BEFORE


QUERIES = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(1, 100).map(str),
        "timeout": st.floats(0.001, 900).map(repr),
        "retries": st.integers(0, 1000).map(str),
        "retry_delay": st.floats(0, 86400).map(repr),
        "delay": st.floats(0, 1e6).map(repr),
    },
)


@given(QUERIES)
def test_what_is_read_is_understood(query: dict[str, str]) -> None:
    options, due = understand(read(query, DEFAULTS, NOW), DEFAULTS)
    assert options == replace(
        USUAL,
        priority=int(query.get("priority", 50)),
        timeout_s=float(query.get("timeout", 60)),
        retries=int(query.get("retries", 10)),
        retry_delay_s=float(query["retry_delay"]) if "retry_delay" in query else None,
    )
    assert (due is not None) == ("delay" in query)
    if due is not None:
        assert abs(due - NOW - timedelta(seconds=float(query["delay"]))) <= timedelta(
            milliseconds=1
        )


@given(QUERIES)
def test_the_text_fits_in_a_journal_header(query: dict[str, str]) -> None:
    text = read(query, DEFAULTS, NOW)
    assert text.isascii()
    assert text.isprintable()
    assert not set(text) & set(",| ")


@pytest.mark.parametrize(
    "spellings",
    [
        [{"timeout": "5"}, {"timeout": "5.0"}, {"timeout": "5e0"}, {"timeout": "05"}],
        [{"priority": "7"}, {"priority": "07"}, {"priority": "007"}],
        [{"retry_delay": "0"}, {"retry_delay": "0.0"}, {"retry_delay": "-0"}],
        [{"retries": "2", "priority": "3"}, {"priority": "3", "retries": "2"}],
        [
            {"at": "2026-11-18T08:00:00.123Z"},
            {"delay": "0"},
            {"at": "2026-11-18T09:00:00.123+01:00"},
        ],
        [{"at": "2026-12-24"}, {"at": "2026-12-24T00:00:00"}, {"at": "20261224T000000Z"}],
    ],
)
def test_equal_options_are_equal_text(spellings: list[dict[str, str]]) -> None:
    assert len({read(query, DEFAULTS, NOW) for query in spellings}) == 1


@given(QUERIES, QUERIES)
def test_different_options_are_different_text(one: dict[str, str], other: dict[str, str]) -> None:
    texts = [read(query, DEFAULTS, NOW) for query in (one, other)]
    if understand(texts[0], DEFAULTS) != understand(texts[1], DEFAULTS):
        assert texts[0] != texts[1]


@pytest.mark.parametrize("text", ["0", "2.5", "5"])
def test_seconds_within_the_limits(text: str) -> None:
    assert seconds("wait", text, 0, 5) == float(text)


def test_seconds_beyond_the_limits_are_refused_with_them() -> None:
    with pytest.raises(BadRequest, match="parameter 'wait' must be a number from 0 to 60"):
        seconds("wait", "61", 0, 60)
