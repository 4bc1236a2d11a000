"""What the service says of itself, and what it still does while its database is away."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import pytest

from queue_service import auth, clock
from queue_service.store.embedded import EmbeddedMongod, EmbeddedSettings
from tests.waiting import eventually

from .support import PROBLEM, Client, Hearth, serving, settings_of

STORE_TIMEOUT_S = 1.0


async def health(client: Client) -> dict[str, str]:
    found: dict[str, str] = (await client.ask("GET", "/readyz")).json
    return found


async def test_a_daemon_that_is_well_says_so_to_anybody(hearth: Hearth) -> None:
    anybody = Client(hearth.http, hearth.url, "", "")
    live = await anybody.ask("GET", "/livez")
    assert (live.status, live.json) == (200, {"status": "ok"})
    ready = await anybody.ask("GET", "/readyz")
    assert ready.status == 200
    found = ready.json
    assert (found["status"], found["store"], found["journal"]) == ("ok", "ok", "ok")
    assert found["sysid"] == hearth.sysid
    assert found["sandbox"]


@dataclass(frozen=True, slots=True)
class Fragile:
    """A daemon on a database of its own that can be taken away."""

    hearth: Hearth
    mongod: EmbeddedMongod

    def send(self, number: signal.Signals) -> None:
        assert self.mongod.pid is not None
        os.kill(self.mongod.pid, number)


@pytest.fixture
async def fragile(tmp_path: Path) -> AsyncIterator[Fragile]:
    async with EmbeddedMongod(EmbeddedSettings(data=tmp_path / "db")) as mongod:
        settings = settings_of(
            tmp_path / "data", mongod.uri, "hearth", store_timeout_s=STORE_TIMEOUT_S
        )
        async with serving(settings) as hearth:
            made = Fragile(hearth, mongod)
            yield made
            # A test that failed halfway must not leave it stopped.
            if mongod.pid is not None:
                os.kill(mongod.pid, signal.SIGCONT)


class Later:
    """A clock by which every key has to be looked up again."""

    @staticmethod
    def monotonic() -> float:
        return clock.monotonic() + 60


async def away(client: Client) -> bool:
    found = await health(client)
    return (found["status"], found["store"]) == ("degraded", "away")


async def back(client: Client) -> bool:
    found = await health(client)
    return (found["status"], found["store"]) == ("ok", "ok")


@pytest.mark.checklist("M29")
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_submitting_goes_on_while_the_database_is_away_and_all_is_run_afterwards(
    fragile: Fragile, how: signal.Signals
) -> None:
    acme = await fragile.hearth.tenant()
    await acme.upload("work")
    await acme.run("work", [0])
    fragile.send(how)
    ids = [await acme.submit("work", range(n, n + 10)) for n in range(0, 100, 10)]
    if how == signal.SIGSTOP:
        await eventually(lambda: away(acme))
        assert (await acme.ask("GET", "/readyz")).status == 200
        ids.append(await acme.submit("work", range(100, 110)))
        reading = await acme.get("scoreboard")
        assert (reading.status, reading.type) == (503, PROBLEM)
        assert reading.json["type"] == "urn:hearth:problem:store-unavailable"
        assert int(reading.headers["Retry-After"]) > 0
        fragile.send(signal.SIGCONT)
    ended = await acme.ended([id_ for post in ids for id_ in post], within_s=40)
    assert [bytes(record["value"]) for record in ended] == [b"%d" % n for n in range(len(ended))]
    assert (await acme.row("work"))["ok"] == len(ended) + 1
    await eventually(lambda: back(acme))


async def test_a_key_that_was_good_of_late_does_not_make_every_post_wait_for_the_database(
    fragile: Fragile, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = await fragile.hearth.tenant()
    await acme.submit("work", [1])
    fragile.send(signal.SIGSTOP)
    await eventually(lambda: away(acme))
    monkeypatch.setattr(auth, "clock", Later)
    await acme.submit("work", [2])
    started = perf_counter()
    for n in range(3):
        await acme.submit("work", [n])
    took_s = perf_counter() - started
    fragile.send(signal.SIGCONT)
    assert took_s < 2 * STORE_TIMEOUT_S


async def test_a_key_nobody_has_seen_is_not_believed_while_the_database_is_away(
    fragile: Fragile,
) -> None:
    acme = await fragile.hearth.tenant()
    fragile.send(signal.SIGSTOP)
    stranger = Client(acme.http, acme.url, auth.new_key(), acme.tenant)
    answer = await stranger.post("work", b"1")
    fragile.send(signal.SIGCONT)
    assert (answer.status, answer.type) == (503, PROBLEM)


async def test_asking_for_the_stores_word_is_refused_while_it_cannot_be_given(
    tmp_path: Path, fragile: Fragile
) -> None:
    settings = settings_of(
        tmp_path / "two", fragile.mongod.uri, "hearth", store_timeout_s=1, wait_max_s=1
    )
    async with serving(settings) as hearth:
        acme = await hearth.tenant()
        await acme.submit("unhandled", [1], ack="store")
        fragile.send(signal.SIGSTOP)
        answer = await acme.post("unhandled", b"2", ack="store")
        fragile.send(signal.SIGCONT)
        assert (answer.status, answer.type) == (503, PROBLEM)
        assert answer.json["type"] == "urn:hearth:problem:store-unavailable"
