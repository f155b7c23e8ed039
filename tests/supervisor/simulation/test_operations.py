"""Every public operation, struck while it is under way: a drawn part of its points.

``python -m bench.sweeps`` strikes all of them, and makes the report.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
import trio

from actors.shell import Shell
from actors.testing import Program
from supervisor.runtime import open_runtime
from supervisor.simulation import Sim, explore, fault_everywhere, simulate
from tests.supervisor.simulation.operations import (
    SCENARIOS,
    asks_for_approval,
    operations,
    sweep,
    swept,
)

Scenario = Callable[[Sim], Awaitable[None]]

PER_KIND = {"cancel": 20, "OSError": 6, "KeyboardInterrupt": 6, "fault": 10}
"""How many points of each scenario are struck here."""


@pytest.fixture(autouse=True)
def _silent(caplog: pytest.LogCaptureFixture) -> None:
    """What fails on purpose is logged some hundred times."""
    caplog.set_level(logging.CRITICAL, "supervisor")


def test_every_public_operation_is_struck_by_some_scenario_while_it_is_under_way() -> (
    None
):
    waits: Counter[str] = Counter()
    for scenario in SCENARIOS:
        waits += swept(scenario)
    assert set(waits) == operations()


def test_the_list_of_operations_has_all_kinds() -> None:
    """A coroutine method, one that gives a coroutine, an iteration, a context manager."""
    assert len(operations()) >= 54
    assert {
        "Runtime.launch",
        "Reply.wait",
        "TaskHandle.follow",
        "Wakes.__anext__",
        "open_runtime",
    } <= operations()


@pytest.mark.parametrize("kind", PER_KIND)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda it: it.__name__)
def test_all_still_works_where_an_operation_is_struck(
    scenario: Scenario, kind: str
) -> None:
    report = sweep(scenario, kind, max_points=PER_KIND[kind], schedules=1)
    if report is None:
        assert kind == "fault"  # It asks nothing of the world.
        return
    assert not report.rows, report
    assert not report.never_fired


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda it: it.__name__)
def test_all_works_under_other_schedules(scenario: Scenario) -> None:
    assert explore(scenario, seeds=range(1, 5)).failed == 0


# ---- What was found so -----------------------------------------------------------------


async def reads_what_is_there(sim: Sim) -> None:
    async def says(program: Program) -> None:
        await program.print("ready\n")
        await trio.sleep(100)

    async with open_runtime("tasks", env=sim.env({"says": says})) as runtime:
        task = await runtime.launch(Shell("says"))
        with sim.within(10):
            await task.wait_output("ready")
            assert await anext(aiter(task.follow())) == "ready\n"


def test_what_could_not_be_read_once_is_read_again() -> None:
    """The wait for it went on until more was printed, or the task had ended."""
    report = fault_everywhere(reads_what_is_there, seams="files.read", schedules=3)
    assert report.points >= 2


def test_two_questions_never_have_one_id() -> None:
    """The second took the place of the first, which waited for ever."""
    run = simulate(asks_for_approval, tape="fault ids.hex again 1")
    assert run.error is None
