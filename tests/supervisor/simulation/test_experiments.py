"""Groups whose delivery and end are chosen, rows of runs, and the two studies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.simulation import NotAProgram, Sim, simulate
from supervisor.simulation.experiments import experiment, open_group
from supervisor.simulation.studies import cancels, restarts, study

ROOT = Path(__file__).parents[3]
BOTH = ["level", "edge"]


def values(program: Any, **parameters: Any) -> list[Any]:
    """What a program returns as ``told``, or how it failed, for each combination."""
    rows = experiment(program, **parameters)
    return [row.get("told", row["error"]) for row in rows]


def test_who_keeps_one_cancelled_to_itself_ends_by_level_and_hangs_by_edge() -> None:
    async def keeps() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            pass
        await trio.sleep_forever()

    async def program(sim: Sim, delivery: Any) -> dict[str, Any]:
        async with open_group(delivery=delivery) as group:
            group.start_soon(keeps)
            await trio.sleep(1)
            group.cancel()
        return {"told": "ended"}

    assert values(program, delivery=BOTH) == ["ended", "Deadlock"]


def test_by_edge_each_task_is_told_once_and_by_level_at_each_checkpoint() -> None:
    async def program(sim: Sim, delivery: Any) -> dict[str, Any]:
        times = 0

        async def counts() -> None:
            nonlocal times
            for _ in range(3):
                try:
                    await trio.sleep(5)
                except trio.Cancelled:
                    times += 1

        async with open_group(delivery=delivery) as group:
            group.start_soon(counts)
            await trio.sleep(1)
            group.cancel()
        return {"told": (times, trio.current_time())}

    assert values(program, delivery=BOTH) == [(3, 1.0), (1, 11.0)]


def test_an_edge_waits_for_a_checkpoint_and_for_the_end_of_a_shield() -> None:
    async def program(sim: Sim, delivery: Any) -> dict[str, Any]:
        told: list[float] = []

        async def shielded() -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep(3)
            try:
                await trio.sleep(9)
            except trio.Cancelled:
                told.append(trio.current_time())
                raise

        async with open_group(delivery=delivery) as group:
            group.start_soon(shielded)
            await trio.sleep(1)
            group.cancel()
            told.append(trio.current_time())
            try:
                await trio.lowlevel.checkpoint()
                await trio.sleep(7)
            except trio.Cancelled:
                told.append(trio.current_time())
                raise
        return {"told": told}

    assert values(program, delivery=BOTH) == [[1.0, 1.0, 3.0], [1.0, 1.0, 3.0]]


def test_a_task_that_is_started_in_a_cancelled_group_is_told_as_well() -> None:
    async def program(sim: Sim, delivery: Any) -> dict[str, Any]:
        async with open_group(delivery=delivery) as group:
            group.cancel()
            group.start_soon(trio.sleep, 5)
        return {"told": trio.current_time()}

    assert values(program, delivery=BOTH) == [0.0, 0.0]


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_cancel_reaches_groups_inside_of_groups(depth: int) -> None:
    async def level(delivery: Any, below: int, ended: list[int]) -> None:
        async with open_group(delivery=delivery) as group:
            if below:
                group.start_soon(level, delivery, below - 1, ended)
            await trio.sleep_forever()
        raise AssertionError("what is told to a task goes up to the group that told")

    async def program(sim: Sim, delivery: Any) -> dict[str, Any]:
        ended: list[int] = []
        async with open_group(delivery=delivery) as group:
            group.start_soon(level, delivery, depth, ended)
            await trio.sleep(1)
            group.cancel()
        return {"told": trio.current_time()}

    assert values(program, delivery=BOTH) == [1.0, 1.0]


def test_a_group_ends_with_all_with_the_first_or_with_its_block() -> None:
    async def program(sim: Sim, delivery: Any, join: Any) -> dict[str, Any]:
        ended: list[int] = []

        async def naps(seconds: int) -> None:
            await trio.sleep(seconds)
            ended.append(seconds)

        async with open_group(delivery=delivery, join=join) as group:
            for seconds in (1, 2, 3):
                group.start_soon(naps, seconds)
            await trio.sleep(0.5)
        return {"told": (ended, trio.current_time())}

    each = [([1, 2, 3], 3.0), ([1], 1.0), ([], 0.5)]
    joins = ["all", "first", "body"]
    assert values(program, delivery=BOTH, join=joins) == each + each


@pytest.mark.parametrize("delivery", BOTH)
@pytest.mark.parametrize("where", ["task", "block"])
def test_an_error_ends_the_others_and_comes_out(delivery: Any, where: str) -> None:
    ends: list[float] = []

    async def fails() -> None:
        await trio.sleep(1)
        raise LookupError

    async def other() -> None:
        try:
            await trio.sleep(9)
        finally:
            ends.append(trio.current_time())

    async def program(sim: Sim) -> None:
        async with open_group(delivery=delivery) as group:
            group.start_soon(other)
            if where == "task":
                group.start_soon(fails)
            else:
                await fails()

    error = simulate(program).error
    assert isinstance(error, ExceptionGroup)
    assert [type(it) for it in error.exceptions] == [LookupError]
    assert ends == [1.0]


def test_a_cancel_from_outside_is_trios_also_for_an_edge_group() -> None:
    async def program(sim: Sim, delivery: Any) -> dict[str, Any]:
        with trio.move_on_after(2) as scope:
            async with open_group(delivery=delivery) as group:
                group.start_soon(trio.sleep_forever)
        return {"told": (scope.cancelled_caught, trio.current_time())}

    assert values(program, delivery=BOTH) == [(True, 2.0), (True, 2.0)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"delivery": "never"}, "deliveries are level, edge; not 'never'"),
        ({"join": "last"}, "joins are all, first, body; not 'last'"),
    ],
)
async def test_a_way_that_there_is_not_is_refused(options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        async with open_group(**options):
            raise AssertionError


def test_a_row_is_a_run_with_its_parameters_and_the_manifest() -> None:
    async def program(sim: Sim, size: int) -> dict[str, Any]:
        await trio.sleep(size)
        return {"doubled": 2 * size}

    rows = experiment(program, seeds=2, size=[1, 3])
    assert [(it["size"], it["seed"], it["doubled"], it["seconds"]) for it in rows] == [
        (1, 0, 2, 1.0),
        (1, 1, 2, 1.0),
        (3, 0, 6, 3.0),
        (3, 1, 6, 3.0),
    ]
    assert all(it["trio"] == trio.__version__ and not it["error"] for it in rows)
    assert {it["policy"] for it in rows} == {"portfolio"}
    again = experiment(program, seeds=2, size=[1, 3])
    assert [it["digest"] for it in again] == [it["digest"] for it in rows]


@pytest.mark.parametrize(
    "name", "seed error steps seconds digest python command written policy".split()
)
def test_nothing_in_a_row_has_the_name_of_another_thing(name: str) -> None:
    async def program(sim: Sim, **parameters: int) -> dict[str, Any]:
        return {"a" if "a" in parameters else name: 7}

    text = f"{name!r}, which each row has already: give it another name"
    with pytest.raises(ValueError, match=f"there is a parameter {text}"):
        experiment(program, **{name: [1]})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"the program .* returns {text}"):
        experiment(program, b=[1])
    with pytest.raises(ValueError, match=r"the program .* returns 'a', which each row"):
        experiment(program, a=[1])


def test_what_a_program_returns_is_measured_by_names() -> None:
    async def program(sim: Sim) -> Any:
        return 5

    text = r"program must return what it has measured by names, as .*, not 5"
    with pytest.raises(TypeError, match=text):
        experiment(program)


def test_a_program_takes_the_parameters_that_it_is_given() -> None:
    async def program(sim: Sim, a: int) -> None: ...

    text = "program is given a `Sim`, b: missing a required argument: 'a'"
    with pytest.raises(NotAProgram, match=text):
        experiment(program, b=[1])
    no_program: Any = 5
    with pytest.raises(NotAProgram, match=r"5 is given a `Sim`, b: .* not a callable"):
        experiment(no_program, b=[1])


def test_each_combination_has_all_seeds() -> None:
    """Also where they can be gone through only once."""

    async def program(sim: Sim, size: int) -> None:
        await trio.lowlevel.checkpoint()

    rows = experiment(program, seeds=iter([3, 4]), size=[1, 2])
    assert [(it["size"], it["seed"]) for it in rows] == [(1, 3), (1, 4), (2, 3), (2, 4)]


def test_the_steps_of_an_unwinding_are_those_that_a_hand_computes() -> None:
    """By level two steps for each group, by edge three; a shield costs one more. Blocks
    that clean up behind a shield do so side by side by level, one after the other by
    edge."""
    for row in cancels(seeds=2, deepest=8):
        depth, shields = row["depth"], row["shields"]
        by_edge = row["delivery"] == "edge"
        steps = (3 if by_edge else 2) * depth + 1
        steps += {"none": 0, "innermost": 1, "each": depth}[shields]
        assert row["latency_steps"] == steps, row
        seconds = {"none": 0, "innermost": 1, "each": depth if by_edge else 1}[shields]
        assert row["latency"] == seconds, row


def test_each_strategy_restarts_whom_it_names() -> None:
    for row in restarts(seeds=6, largest=4):
        assert not row["error"]
        if row["strategy"] == "one_for_all":
            assert row["restarted"] == row["children"]
        elif row["topology"] == "independent" and row["strategy"] == "one_for_one":
            assert row["restarted"] == 1
        else:
            assert 1 <= row["restarted"] <= row["children"]
        is_cascade = (row["topology"], row["strategy"]) == ("chain", "one_for_one")
        assert row["decisions"] == (row["restarted"] if is_cascade else 1)
        assert row["quiet_after"] >= row["restarted"]
        assert row["gone"] == 0


def test_children_that_are_temporary_are_not_restarted_and_are_gone() -> None:
    for row in restarts(seeds=6, largest=4, restart="temporary"):
        assert row["restarted"] == row["decisions"] == row["quiet_after"] == 0
        # In a chain nobody makes anew what the crashed one had made.
        assert row["gone"] == 1


@pytest.mark.parametrize(
    ("name", "run"),
    [("cancels", cancels), ("restarts", lambda: restarts(largest=2))],
)
def test_the_table_of_the_docs_is_what_the_study_gives(
    name: str, run: Callable[[], list[Any]]
) -> None:
    folder = f"docs/study-{name}"
    page = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    for line in study(name).table(run()).splitlines():
        assert line in page.splitlines()
    assert f"trio-supervisor sim study {name} --out {folder}" in page
    plot = (ROOT / folder / "plot.svg").read_text()
    assert all(words in plot for words in study(name).measures.values())
