"""The race of ``examples/race.py``: found, and made as small as it can be."""

from __future__ import annotations

from statistics import median

import pytest

from examples.race import mended, program
from supervisor.simulation import explore, simulate
from tests.supervisor.simulation.races import shrunk


def test_a_race_is_made_one_deviation_in_few_runs() -> None:
    found = shrunk(program, 20)
    assert {it.after for it in found} == {1}
    assert max(it.before for it in found) > 1
    assert median(it.runs for it in found) <= 40
    assert max(it.runs for it in found) <= 100


def test_a_race_does_not_show_under_round_robin_and_is_mended() -> None:
    assert simulate(program).error is None
    with pytest.raises(AssertionError, match="loaded 2 times"):
        explore(program, seeds=60)
    explore(mended, seeds=60)
