"""Blows from outside on a search that runs: what it had found is kept, no run is lost,
and no process stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from supervisor.simulation import Sim
from supervisor.simulation.campaign import campaign


async def _naps() -> None:
    await trio.sleep(1)


async def program(_: Sim) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_naps)
        nursery.start_soon(_naps)


def _rows(log: Path) -> list[tuple[int, tuple[str, ...]]]:
    _, *rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [(it["seed"], tuple(it["faults"])) for it in rows]


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_campaign_that_was_cut_off_has_the_runs_of_one_that_was_not(
    cut: int, tmp_path: Path
) -> None:
    """Wherever it was cut off: also between both runs of a seed."""
    whole, log = tmp_path / "whole", tmp_path / "cut"
    campaign(program, seconds=60, runs=20, log=whole)
    for runs in (cut, 20):
        campaign(program, seconds=60, runs=runs, log=log)
    assert sorted(_rows(log)) == sorted(_rows(whole))
    # A kill leaves the beginning of a line, too.
    lines = whole.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[: 1 + cut], lines[1 + cut][:9]]))
    spent = campaign(program, seconds=60, runs=20, log=log)
    assert (spent.campaign.runs, spent.runs) == (20, 20 - cut)
    assert sorted(_rows(log)) == sorted(_rows(whole))
