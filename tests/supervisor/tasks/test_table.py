"""The task table, without a runtime."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

from actors import Progress, TaskStatus
from actors.env import real_env
from supervisor._tasks.agent_task import AgentTask
from supervisor._tasks.record import HISTORY, Order, Table, Task
from supervisor._tasks.snapshot import TaskError


class Deaf:
    """Is told and does nothing."""

    def progressed(self, task: Task) -> None: ...
    def prompted(self, task: Task) -> None: ...
    def warn(
        self, task: Task | None, text: str, error: BaseException | None = None
    ) -> None: ...
    def agent_said(self, task: Task, event: object) -> None: ...
    def answered(self, task: Task) -> None: ...


def make(task_id: str, *, background: bool = True, owner: str | None = None) -> Task:
    work: Any = object()
    kind = "local_bash" if task_id.startswith("s") else "local_agent"
    return Task(
        task_id,
        f"{task_id}-000001",
        real_env(),
        Order(work, kind, 1.0, False, False, task_id, owner, None, None, "wake"),
        Deaf(),
        background=background,
    )


@pytest.mark.parametrize("status", TaskStatus)
@pytest.mark.parametrize("seed", range(8))
async def test_a_snapshot_is_the_same_whether_or_not_its_task_has_what_is_rare(
    status: TaskStatus, seed: int
) -> None:
    """What a task without it leaves out is what one has that never set any of it."""
    chance = random.Random(seed)
    now = datetime.now(UTC)
    task = make("a1", background=chance.random() < 0.5, owner=chance.choice("ab"))
    task.status = status
    task.stopping = chance.random() < 0.5
    task.cut_by = chance.choice((None, "host", "crash"))
    task.ended_by = chance.choice((None, "user", "limit"))
    task.result = chance.choice((None, "done"))
    task.progress = chance.choice((None, Progress("halfway", tool_uses=3)))
    task.error = chance.choice((None, TaskError("ValueError", "no", "")))
    task.started_at = chance.choice((None, now))
    task.ended_at = now if status.is_terminal else None
    task.parent = None if seed % 2 else AgentTask.__new__(AgentTask)
    if task.parent is not None:
        task.parent.task_id = "b1"
    assert task.rare is None
    plain = task.snapshot()
    task.rare = {}
    assert task.snapshot() == plain
    task.tool_use_id = "call-1"
    assert task.snapshot() == attrs.evolve(plain, tool_use_id="call-1")


def test_a_task_goes_from_the_live_ones_to_the_ended_ones() -> None:
    table = Table()
    first, second = make("s1"), make("s2")
    table.add(first)
    table.add(second)
    assert table.all() == [first, second] and table.is_live(first)
    table.end(first)
    assert table.all() == [first, second] and not table.is_live(first)
    table.end(second)
    assert table.all() == [first, second]
    assert table.find("s1") is first
    assert (
        table.find("s3") is None and table.find(None) is None and table.find(1) is None
    )
    assert "s1" in table.ended and "s3" not in table.ended


def test_unfinished_counts_background_tasks_by_owner() -> None:
    """N18, N19."""
    table = Table()
    mine, other, fore = (
        make("s1", owner="me"),
        make("s2"),
        make("s3", background=False, owner="me"),
    )
    for task in (mine, other, fore):
        table.add(task)
    fore.background = True
    table.moved_to_background(fore)
    still = make("s4", background=False, owner="me")
    table.add(still)
    assert table.end(mine) == 1
    assert table.end(still) == 1
    assert table.end(fore) == 0
    assert table.end(other) == 0


def test_the_first_to_end_is_forgotten_first_of_those_that_may() -> None:
    """SM26, SM27."""
    table = Table()
    for number in range(33):
        task = make(f"s{number}", background=False)
        table.add(task)
        table.end(task)
        forgotten = table.release(task)
        assert (forgotten and forgotten.task_id) == ("s0" if number == 32 else None)
    assert [task.task_id for task in table.all()] == [f"s{n}" for n in range(1, 33)]
    told = [make(f"a{number}") for number in range(33)]
    for task in told:
        table.add(task)
        table.end(task)
    assert len(table.all()) == 65
    assert [table.release(task) for task in reversed(told)] == [None] * 32 + [told[0]]
    assert table.find("a0") is None and table.find("a1") is told[1]
    assert len(table.all()) == 64


def test_those_that_nobody_was_to_hear_of_drive_out_no_others() -> None:
    """N45: the notification names an output file, which must be there still."""
    table = Table()
    told = make("s0")
    table.add(told)
    table.end(told)
    for number in range(1, 41):
        fore = make(f"s{number}", background=False)
        table.add(fore)
        table.end(fore)
        table.release(fore)
    assert table.release(told) is None
    assert table.find("s0") is told


def test_a_task_that_is_released_twice_is_forgotten_in_its_turn() -> None:
    """Nobody else loses a place in the history by it, whoever tries again."""

    table = Table()
    tasks = [make(f"s{number:08}") for number in range(2 * HISTORY)]
    for task in tasks:
        table.add(task)
    for task in tasks:
        table.end(task)
    gone: list[Task | None] = []
    for task in tasks:
        gone += [table.release(task), table.release(task)]
    assert [task for task in gone if task is not None] == tasks[:HISTORY]
    assert table.all() == tasks[HISTORY:]
    # Those that are forgotten already take nobody's place either.
    assert [table.release(task) for task in tasks[:HISTORY]] == [None] * HISTORY
    assert table.all() == tasks[HISTORY:]


def test_the_first_to_end_is_forgotten_first_though_another_was_resumed() -> None:
    """In whatever order they were let go."""
    table = Table()
    ended = [make(f"a{number}") for number in range(HISTORY)]
    for task in ended:
        table.add(task)
    for task in ended:
        table.end(task)
    for number in (0, 9, 1, 10, 11, 2, *range(3, 9), *range(12, HISTORY)):
        assert table.release(ended[number]) is None
    table.replace(ended[0], make("a0"))
    later = [make("b0"), make("b1")]
    for task in later:
        table.add(task)
        table.end(task)
    assert [table.release(task) for task in later] == [None, ended[1]]


def test_a_release_that_fails_has_changed_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An entry that it left behind would throw out a later record of the same id."""

    def no_memory(heap: object, entry: object) -> None:
        raise MemoryError

    table = Table()
    old, again = make("a1"), make("a1")
    table.add(old)
    table.end(old)
    with monkeypatch.context() as patch:
        patch.setattr("supervisor._tasks.record.heappush", no_memory)
        with pytest.raises(MemoryError):
            table.release(old)
    assert not table.may_go(old)
    table.replace(old, again)
    table.end(again)
    for number in range(2, HISTORY + 10):
        other = make(f"a{number}")
        table.add(other)
        table.end(other)
        table.release(other)
    assert table.find("a1") is again
