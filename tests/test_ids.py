"""Ids: time-ordered, never given twice, and recognised only in their one spelling."""

from __future__ import annotations

import json
import string
from itertools import pairwise

import pytest
from hypothesis import strategies as st

from queue_service.ids import POST_LENGTH, IdMint, ids_json, job_id, parse_job_id, parse_post_id
from tests.properties import given

NOW_MS = 1_795_000_000_000  # 2026-11-18
COUNTER_LIMIT = 32**3
TIMES = st.integers(0, 32**9 - 2)
POST = IdMint(nonce=7).post_id(NOW_MS)


@pytest.mark.checklist("M2")
@given(st.lists(TIMES, min_size=2, max_size=20, unique=True), st.integers(0, 2**50 - 1))
def test_ids_sort_like_the_times_they_were_made_at(times: list[int], nonce: int) -> None:
    times.sort()
    mints = [IdMint(nonce=nonce ^ turn) for turn in range(len(times))]
    made = [mint.post_id(ms) for mint, ms in zip(mints, times, strict=True)]
    assert made == sorted(made)


@pytest.mark.checklist("M2")
@given(st.lists(TIMES, min_size=1, max_size=50))
def test_ids_of_a_daemon_only_grow_whatever_its_clock_does(times: list[int]) -> None:
    mint = IdMint(nonce=1)
    made = [mint.post_id(ms) for ms in times]
    assert all(one < next_ for one, next_ in pairwise(made))


@pytest.mark.checklist("M2")
@pytest.mark.parametrize("step_ms", [0, -1, -3_600_000])
def test_a_clock_that_stands_still_or_goes_back_makes_no_id_twice(step_ms: int) -> None:
    mint = IdMint(nonce=1)
    many = COUNTER_LIMIT + 10
    made = [mint.post_id(NOW_MS + step_ms * min(turn, 1)) for turn in range(many)]
    assert len(set(made)) == many
    assert made == sorted(made)
    # The counter ran over into the milliseconds; a clock that catches up does not repeat them.
    following = [mint.post_id(NOW_MS + later) for later in (1, 2, 3)]
    assert not set(following) & set(made)
    assert following[0] > made[-1]


@pytest.mark.checklist("M2")
@given(TIMES, st.lists(st.integers(0, 2**50 - 1), min_size=2, max_size=20, unique=True))
def test_daemons_with_different_nonces_never_make_the_same_id(ms: int, nonces: list[int]) -> None:
    mints = [IdMint(nonce=nonce) for nonce in nonces]
    made = [mint.post_id(ms) for _ in range(3) for mint in mints]
    assert len(set(made)) == len(made)


@pytest.mark.checklist("M2")
def test_every_start_draws_a_nonce_of_its_own() -> None:
    made = {IdMint().post_id(NOW_MS) for _ in range(1000)}
    assert len(made) == 1000
    assert len({post[:12] for post in made}) == 1


def test_an_id_is_made_of_time_counter_and_nonce() -> None:
    mint = IdMint(nonce=31)
    made = [mint.post_id(32), mint.post_id(32), mint.post_id(33)]
    assert made == [
        "000000010" + "000" + "000000000z",
        "000000010" + "001" + "000000000z",
        "000000011" + "000" + "000000000z",
    ]


@given(TIMES, st.integers(0, 2**50 - 1), st.integers(0, 999_999_999))
def test_what_was_made_is_recognised(ms: int, nonce: int, line: int) -> None:
    post = IdMint(nonce=nonce).post_id(ms)
    assert len(post) == POST_LENGTH
    assert parse_post_id(post) == post
    assert parse_job_id(job_id(post, line)) == (post, line)


@pytest.mark.parametrize(
    "text",
    [
        "",
        POST[:-1],
        POST + "0",
        POST + "\n",
        POST.upper(),
        " " + POST[1:],
        POST[:-1] + "-",
        POST[:-1] + "\0",
        POST[:-1] + "é",
        POST[:-1] + "\uff11",
        POST[:-1] + "$",
        "../../../../etc/passwd",
        *(POST[:-1] + letter for letter in "ilou"),
    ],
)
def test_what_is_no_post_id_is_refused(text: str) -> None:
    assert parse_post_id(text) is None
    assert parse_job_id(f"{text}-0") is None


@pytest.mark.parametrize(
    "line",
    [
        *("", "-", "-1", "+1", "00", "01", " 1", "1 ", "1\n", "1.0", "1e3", "0x1", "1_0", "a"),
        *("1-1", "²", "\uff11", "٣", "1234567890", "\0", "None"),
        pytest.param("9" * 5000, id="5 kB"),
    ],
)
def test_a_line_number_has_one_spelling(line: str) -> None:
    assert parse_job_id(f"{POST}-{line}") is None


@pytest.mark.parametrize("text", [POST, f"{POST}_0", f"{POST}0", f"-{POST}-0", "-", "-0", "-0-0"])
def test_what_has_no_line_is_no_job_id(text: str) -> None:
    assert parse_job_id(text) is None


@given(st.text(string.printable + "\u2028é\0", max_size=30))
def test_parsing_takes_any_text(text: str) -> None:
    parsed = parse_job_id(text)
    assert parsed is None or job_id(*parsed) == text


@pytest.mark.checklist("M47")
@pytest.mark.parametrize("count", [0, 1, 2, 9, 10, 11, 1000, 1001])
def test_ids_are_rendered_as_if_one_by_one_and_in_order(count: int) -> None:
    rendered = ids_json(POST, count)
    assert (
        rendered
        == json.dumps([job_id(POST, line) for line in range(count)], separators=(",", ":")).encode()
    )
    assert [parse_job_id(text) for text in json.loads(rendered)] == [
        (POST, line) for line in range(count)
    ]
