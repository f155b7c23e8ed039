"""The task table and what an exit means, without a runtime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any

import attrs
import pytest

from actors import Completed, Exit, Failed, Stopped, TaskStatus
from actors.env import real_env
from supervisor._tasks.ends import conclude, describe, describe_error
from supervisor._tasks.record import Task
from supervisor._tasks.table import HISTORY, Table

OWN = ValueError("own")


class Deaf:
    """Is told and does nothing."""

    def on_progress(self, task: Task) -> None: ...
    def on_warning(self, task: Task | None, text: str) -> None: ...
    def on_prompt(self, task: Task) -> None: ...

    def on_said(self, task: Task, event: object) -> None: ...

    async def wait_for(
        self, wait: Callable[[], Awaitable[object]], *sources: Hashable
    ) -> None:
        await wait()


def make(task_id: str, *, background: bool = True, owner: str | None = None) -> Task:
    work: Any = object()
    return Task(
        task_id,
        f"{task_id}-000001",
        work,
        real_env(),
        task_type="local_bash" if task_id.startswith("s") else "local_agent",
        shutdown=1.0,
        writes_output=False,
        description=task_id,
        owner=owner,
        tool_use_id=None,
        background=background,
        policy=None,
        launched_by=None,
        host=Deaf(),
    )


@pytest.mark.parametrize(
    ("exit", "own_exit", "status", "error"),
    [
        (Completed(1), None, "completed", None),
        (Failed(OWN), None, "failed", "ValueError"),
        (Stopped("supervisor"), None, "killed", None),
        (Stopped("stop"), None, "killed", None),
        (Stopped("outer"), None, "killed", None),
        (Stopped("owner"), None, "killed", None),
        (Stopped("deadline"), None, "failed", "TimeoutError"),
        (Stopped("supervisor"), Completed(None), "completed", None),
        (Stopped("deadline"), Completed(None), "completed", None),
        (Stopped("supervisor"), Failed(OWN), "failed", "ValueError"),
        (Failed(KeyError()), Completed(None), "failed", "KeyError"),
        (Completed(None), Stopped("stop"), "killed", None),
        (Completed(None), Stopped("deadline"), "failed", "TimeoutError"),
    ],
)
def test_an_exit_means_a_status(
    exit: Exit[object], own_exit: Exit[object] | None, status: str, error: str | None
) -> None:
    """The brief, section 6: killed, failed, completed."""
    found, reason = conclude(exit, own_exit)
    assert found is TaskStatus(status)
    assert (None if reason is None else type(reason).__name__) == error


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
    assert "s1" in table and "s3" not in table


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


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Odd(str):
    def __str__(self) -> str:
        return self


def test_any_error_becomes_text() -> None:
    """P3: nobody's own methods cost a task its end."""
    shown = describe_error(LookupError("there"))
    assert (shown.type, shown.message) == ("LookupError", "there")
    assert shown.traceback == "LookupError: there\n"
    hidden = describe_error(Silent())
    assert hidden.type == "Silent"
    assert hidden.message == "a Silent that cannot be shown: RuntimeError"
    assert "Silent" in hidden.traceback
    long = describe_error(ValueError("x" * 10**6))
    assert len(long.message) == len(long.traceback) == 65_536


def test_any_value_becomes_a_real_str() -> None:
    assert describe(5) == "5"
    assert type(describe(Odd("odd"))) is str and describe(Odd("odd")) == "odd"
    assert describe(Silent()) == "a Silent that cannot be shown: RuntimeError"


def test_a_task_that_is_released_twice_is_forgotten_in_its_turn() -> None:
    """Nobody else loses a place in the history by it, whoever tries again."""

    @attrs.define(eq=False)
    class Ended:
        task_id: str
        owner: str = "main"
        background: bool = True
        task_type: str = "local_bash"
        end_number: int = 0

    table = Table()
    tasks: list[Any] = [Ended(f"s{number:08}") for number in range(2 * HISTORY)]
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
