"""Payloads are opaque: whatever bytes a line has, the handler gets the same, and nothing else."""

from __future__ import annotations

import random

import pytest

from .support import Client

BYTES = {
    "nul": b"a\0b\0",
    "invalid UTF-8": b"\xff\xfe\x80 \xc3\x28 \xed\xa0\x80",
    "carriage returns": b"\r\ra\r b\r",
    "line separators of Unicode": "a\u2028b\u2029c\x85d\x0b\x0c\x1c".encode(),
    "the journal's end marker": b"#:EndBatch",
    "a journal frame": b"#:Batch id=x,date=2026-01-01T00:00:00.000Z,bytes=2,crc=00000000,type=a",
    "a job of another's": b"J: other|payload",
    "a string of JSON": b'"\\u0000\\ud800"',
    "an object that is no JSON": b"{'a': 1}",
    "a string without end": b'"abc',
    "a list without end": b"[1,",
    "a number that is none": b'{"a": NaN}',
    "white space": b" \t ",
    "nothing": b"",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "every byte but one": bytes(byte for byte in range(256) if byte != ord("\n")),
    "a mebibyte": random.Random(1).randbytes(1 << 18).replace(b"\n", b" ") * 4,
}


async def received(client: Client, body: bytes) -> list[bytes]:
    """What the handler got, line by line."""
    answer = await client.post("work", body, retries=0, wait=20)
    assert answer.status == 200, answer.body[:500]
    results = answer.json["results"]
    assert [record["value"] for record in results if record["code"] != "ok"] == []
    return [bytes(record["value"]) for record in results]


@pytest.mark.checklist("M5", "M59")
@pytest.mark.parametrize("payload", BYTES.values(), ids=BYTES.keys())
async def test_a_payload_reaches_the_handler_byte_by_byte(work: Client, payload: bytes) -> None:
    assert await received(work, payload + b"\n") == [payload]


@pytest.mark.checklist("M5")
@pytest.mark.parametrize("last", [b"a", b"\r", b"\0", b"#:EndBatch", b"a\r"])
async def test_the_last_line_needs_no_newline(work: Client, last: bytes) -> None:
    assert await received(work, last) == [last]
    assert await received(work, b"\n\n" + last) == [b"", b"", last]


@pytest.mark.checklist("M5", "M47", "M59")
async def test_strange_lines_do_not_disturb_their_neighbours(work: Client) -> None:
    lines = [line for payload in BYTES.values() if len(payload) < 1000 for line in (payload, b"1")]
    assert await received(work, b"\n".join(lines) + b"\n") == lines


async def test_the_job_shows_its_payload_as_the_handler_sees_it(acme: Client) -> None:
    ids = (await acme.post("unhandled", b'{"a": [1]}\nplain\n\xff\n')).json["ids"]
    seen = [(await acme.job(id_))["payload"] for id_ in ids]
    assert seen == [{"a": [1]}, "plain", "\ufffd"]
