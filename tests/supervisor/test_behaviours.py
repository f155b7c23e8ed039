"""Rules of the systems before this one that are about no single part of it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
import trio
import trio.testing

from actors import Context, TaskStatus
from actors.shell import Shell
from actors.testing import Program, fake_env
from actors.work import Report
from supervisor.runtime import UnknownTask, open_runtime

DIRECTORY = Path("/tasks")


async def serves(program: Program) -> None:
    await trio.sleep_forever()


class Agent:
    """A task that is no command."""

    task_type = "local_agent"
    shutdown = 1.0
    writes_output = False

    def describe(self) -> str:
        return "an agent"

    async def run(self, ctx: Context[object], report: Report) -> None:
        await trio.sleep_forever()


async def test_no_name_from_outside_gets_into_a_path(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """OF16: ids are made here, and files are called by them alone."""
    env = fake_env({"../../x": 0})
    async with open_runtime(DIRECTORY, env=env) as runtime:
        task = await runtime.launch(
            Shell("../../x"),
            description="../../x",
            owner="../../x",
            tool_use_id="../../x",
        )
        done = await task.wait()
        assert re.fullmatch(r"s[0-9a-f]{8}", task.id)
        assert done.output_file == DIRECTORY / f"{task.id}.output"
        for unknown in ("../../x", f"../tasks/{task.id}", f"{task.id}.output", ""):
            with pytest.raises(UnknownTask):
                runtime.handle(unknown)
    assert env.files.names(DIRECTORY) == ["journal.jsonl", f"{task.id}.output"]


async def test_the_end_of_the_runtime_is_the_end_of_shells_and_agents(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """SD4: and each end is on record."""
    async with open_runtime(DIRECTORY, env=fake_env({"serve": serves})) as runtime:
        for work in (Shell("serve"), Agent()):
            await runtime.launch(work)
        await trio.testing.wait_all_tasks_blocked()
    notes = runtime.notifications.drain()
    assert [note.status for note in notes] == [TaskStatus.KILLED] * 2


async def test_after_a_stop_of_everything_there_is_room_for_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """SD10"""
    env = fake_env({"serve": serves, "true": 0})
    async with open_runtime(DIRECTORY, env=env) as runtime:
        for _ in range(3):
            await runtime.launch(Shell("serve"))
        await runtime.stop_all()
        await runtime.wait_idle()
        task = await runtime.launch(Shell("true"))
        assert (await task.wait()).status is TaskStatus.COMPLETED


async def test_no_runtime_touches_a_signal_handler(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """SD8: they belong to the host."""

    def handlers() -> list[object]:
        return [signal.getsignal(number) for number in signal.valid_signals()]

    before = handlers()
    async with open_runtime("/one", env=fake_env({"serve": serves})) as runtime:
        async with open_runtime("/two", env=fake_env()):
            await runtime.launch(Shell("serve"))
            await trio.testing.wait_all_tasks_blocked()
            assert handlers() == before
    assert handlers() == before
