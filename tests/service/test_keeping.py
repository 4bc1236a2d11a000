"""How long a finished job stays: for a moment, or for as long as the settings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from queue_service import leases
from tests.waiting import eventually

from .support import serving, settings_of


@pytest.mark.checklist("M14", "M17")
@pytest.mark.parametrize("kept", [True, False])
async def test_a_finished_job_is_archived_or_deleted_and_counted_either_way(
    mongod: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    monkeypatch.setattr(leases, "_KEEP_MIN_S", 0.1)
    keep_done_s = 3600 if kept else 0
    settings = settings_of(
        tmp_path / "data", mongod, database, keep_done_s=keep_done_s, purge_every_s=0.1
    )
    async with serving(settings) as hearth:
        client = await hearth.tenant()
        await client.upload("work")
        ids = [record["id"] for record in await client.run("work", [{"do": "ok"}] * 3)]
        other = [record["id"] for record in await client.run("work", [{"do": "ok"}])]

        async def gone() -> bool:
            answers = [await client.get(f"results/{id_}") for id_ in ids + other]
            return [answer.status for answer in answers] == [404] * 4

        if kept:
            # Several purges have come and gone when a batch that was posted later has ended.
            await client.run("work", [{"do": "sleep", "s": 0.5}])
            assert not await gone()
        else:
            await eventually(gone)
        board = (await client.get("scoreboard")).json
        assert board["types"]["work"]["ok"] == (5 if kept else 4)
