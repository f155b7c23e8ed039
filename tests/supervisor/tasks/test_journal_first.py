"""What somebody has seen is in the journal before: it cannot become something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing

from actors.env import Env, Files, real_env
from supervisor._tasks.journal import writer
from supervisor._tasks.journal.state import State, read
from supervisor.runtime import Runtime, TaskHandle, open_runtime
from tests.supervisor.jobs import returns, waits_for


def journal(directory: Path) -> State:
    return read((directory / writer.NAME).read_bytes()).state


class Threads:
    """Files whose threads come back only when they may."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.may_go = trio.Event()
        self.may_go.set()
        self.held = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    async def in_thread(self, fn: Callable[..., Any], *args: object) -> Any:
        result = fn(*args)
        self.held += 1
        with trio.CancelScope(shield=True):
            await self.may_go.wait()
        return result


def on(files: Threads) -> Env:
    return attrs.evolve(real_env(), files=cast("Files", files))


async def test_what_is_acknowledged_while_the_journal_is_made_anew_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_SMALL", 2_000)
    monkeypatch.setattr(writer, "_SLOW", 1e9)
    files = Threads(real_env().files)
    async with open_runtime(tmp_path, env=on(files)) as runtime:
        # Or nobody would have to read what is kept, and no thread.
        kept = await runtime.launch(returns("done"), key="kept")
        await trio.testing.wait_all_tasks_blocked()
        runtime.notifications.drain()[0].ack()
        files.may_go = trio.Event()
        held = files.held
        notes: list[str] = []
        while files.held == held:
            await runtime.launch(returns("done"))
            await trio.testing.wait_all_tasks_blocked()
            (note,) = runtime.notifications.drain()
            assert note.id in journal(tmp_path).notes
            note.ack()
            assert note.id not in journal(tmp_path).notes
            notes.append(note.id)
            await trio.testing.wait_all_tasks_blocked()
        # It is under way, and has read the file.
        await runtime.launch(returns("done"))
        await trio.testing.wait_all_tasks_blocked()
        (note,) = runtime.notifications.drain()
        assert note.id in journal(tmp_path).notes
        note.ack()
        assert note.id not in journal(tmp_path).notes
        size = (tmp_path / writer.NAME).stat().st_size
        files.may_go.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (tmp_path / writer.NAME).stat().st_size < size
        there = journal(tmp_path)
        assert not there.notes
        assert [it.started.task for it in there.tasks.values()] == [kept.id]


async def _wait(runtime: Runtime, task: TaskHandle) -> None:
    await task.wait()


async def _wait_all(runtime: Runtime, task: TaskHandle) -> None:
    await runtime.wait_all([task])


async def _wait_any(runtime: Runtime, task: TaskHandle) -> None:
    await runtime.wait_any([task])


@pytest.mark.parametrize("wait", [_wait, _wait_all, _wait_any])
@pytest.mark.parametrize("durable", [False, True])
async def test_an_end_that_was_waited_for_is_in_the_journal(
    tmp_path: Path, wait: Any, durable: bool
) -> None:
    async with open_runtime(tmp_path, durable=durable) as runtime:
        for _ in range(20):
            task = await runtime.launch(returns("done"))
            await wait(runtime, task)
            assert all(it.ended is not None for it in journal(tmp_path).tasks.values())
        for note in runtime.notifications.drain():
            note.ack()


@pytest.mark.parametrize("durable", [False, True])
async def test_a_foreground_task_that_somebody_knows_of_is_in_the_journal(
    tmp_path: Path, durable: bool
) -> None:
    async with open_runtime(tmp_path, durable=durable) as runtime:
        began = trio.Event()

        async def run(task_status: Any) -> None:
            await runtime.run(waits_for(began), task_status=task_status)
            assert not journal(tmp_path).tasks

        async with trio.open_nursery() as nursery:
            task = cast("TaskHandle", await nursery.start(run))
            known = journal(tmp_path).tasks.values()
            assert [it.started.task for it in known] == [task.id]
            began.set()
