"""Jobs that kill what runs them, among many that do not: each pays for itself alone."""

from __future__ import annotations

from typing import Any

import pytest

from queue_service.verdict import POISON

from .support import Client

KILLERS = """
import os
import signal
import time

def handler(payload, context):
    do = payload.get("do")
    if do == "exit":
        os._exit(3)
    if do == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if do == "hang":
        time.sleep(600)
    return payload["n"]
"""
EACH = 100


def mixed(kinds: list[str]) -> list[dict[str, Any]]:
    """One that kills, somewhere in the middle of every hundred that do not."""
    jobs: list[dict[str, Any]] = [{"n": n} for n in range(EACH * len(kinds))]
    for number, kind in enumerate(kinds):
        jobs[number * EACH + 37] = {"do": kind}
    return jobs


@pytest.mark.checklist("M43", "M44")
async def test_poison_is_shelved_after_three_strikes_and_harms_no_neighbour(acme: Client) -> None:
    await acme.upload("mixed", KILLERS)
    jobs = mixed(["exit", "segfault", "hang", "exit"])
    ids = await acme.submit("mixed", jobs, timeout=0.5, retry_delay=0.05)
    results = await acme.ended(ids, within_s=60)
    pairs = list(zip(results, jobs, strict=True))
    good = [(r["code"], r["attempt"], r["value"]) for r, job in pairs if "n" in job]
    assert good == [("ok", 1, job["n"]) for job in jobs if "n" in job]
    poison = [r for r, job in pairs if "do" in job]
    # Ten retries were allowed.
    assert [(r["code"], r["exitcode"], r["attempt"]) for r in poison] == [("error", POISON, 3)] * 4
    assert all(r["value"]["error"].startswith("poison") for r in poison)


@pytest.mark.checklist("M44", "M87")
async def test_what_was_shelved_can_be_found(acme: Client) -> None:
    await acme.upload("mixed", KILLERS)
    [id_] = await acme.submit("mixed", [{"do": "exit"}], retry_delay=0)
    await acme.ended([id_])
    seen = await acme.job(id_)
    assert (seen["state"], seen["result"]["exitcode"]) == ("done", POISON)
    assert [a["exitcode"] for a in seen["attempts"]] == [502, 502, POISON]
    assert [r["id"] for r in await acme.results(code="error")] == [id_]
    row = await acme.row("mixed")
    assert (row["error"], row["waiting"], row["deferred"], row["running"]) == (3, 0, 0, 0)
