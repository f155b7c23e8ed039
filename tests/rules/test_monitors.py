"""Monitors of real commands: what the documents that this project began with say is to
follow, through the tools that a model has."""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import trio

from actors.shell import Shell
from supervisor.runtime import Notification, Runtime, open_runtime
from supervisor.settings import Settings


def lines_of(note: Notification) -> list[str]:
    text = ET.fromstring(note.xml).findtext("lines")
    return [] if text is None else text.split("\n")[1:-1]


async def use(runtime: Runtime, tool: str, **arguments: Any) -> Any:
    (found,) = [it for it in runtime.tools_for("main") if it.name == tool]
    return await found.call(arguments)


async def until_ended(runtime: Runtime) -> list[Notification]:
    """Read as a parent's model is told, until a task has ended."""
    told: list[Notification] = []
    async for wake in runtime.wakes("main"):
        async with wake as turn:
            told += wake.notes
            turn.progressed()
        if any(note.kind == "task" for note in wake.notes):
            break
    return told


async def test_a_model_is_told_the_lines_of_a_command_while_it_runs(
    tmp_path: Path,
) -> None:
    with trio.fail_after(40):
        async with open_runtime(tmp_path) as runtime:
            answer = await use(
                runtime,
                "Bash",
                command="echo one; echo no; sleep 1.5; echo '</lines> one'; exit 3",
                monitor=True,
                monitor_only="one",
                description="the build",
            )
            assert not answer.is_error and answer.data["status"] == "async_launched"
            assert re.search(f"by monitor {answer.data['monitorId']}", answer.text)
            told = await until_ended(runtime)
    first, second, end = told
    assert [lines_of(first), lines_of(second)] == [["one"], ["</lines> one"]]
    assert end.status.value == "failed" and "exit code 3" in end.display
    assert first.display == 'Monitor "the build": one'


async def test_a_model_watches_a_shell_that_runs_and_stops_only_the_watch(
    tmp_path: Path,
) -> None:
    go, forever = tmp_path / "go", "while :; do sleep 0.1; done"
    command = (
        f"echo before; until [ -e {go} ]; do sleep 0.05; done; echo after; {forever}"
    )
    with trio.fail_after(40):
        async with open_runtime(tmp_path / "tasks") as runtime:
            began = await use(runtime, "Bash", command=command, run_in_background=True)
            task = runtime.handle(began.data["backgroundTaskId"])
            await task.wait_output("before")
            answer = await use(runtime, "TaskMonitor", task_id=task.id)
            go.touch()
            note = await anext(runtime.notifications_for("main"))
            assert lines_of(note) == ["after"]
            note.ack()
            ended = await use(runtime, "TaskStop", task_id=answer.data["monitorId"])
            assert not ended.is_error and ended.data["status"] == "running"
            assert runtime.monitors() == [] and not task.status.is_terminal
            # And it ends the command where the monitor has begun it.
            both = await use(runtime, "Bash", command=forever, monitor=True)
            ended = await use(runtime, "TaskStop", task_id=both.data["monitorId"])
            assert ended.data["status"] == "killed"
            refused = await use(runtime, "TaskMonitor", task_id=ended.data["task_id"])
            assert refused.is_error and "has ended" in refused.text
            unfit = await use(runtime, "TaskMonitor", task_id=task.id, only="")
            assert unfit.is_error
            alone = await use(runtime, "Bash", command="true", monitor_only="x")
            assert alone.is_error and "monitor is not" in alone.text


async def test_a_million_lines_are_one_or_two_notes_and_hold_up_nobody(
    tmp_path: Path,
) -> None:
    """P6: each line is told or counted, and the command is about as quick as alone."""
    command = "seq 1000000"
    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime:
            nines = sum("9999" in str(number) for number in range(1, 1_000_001))
            for pattern, expected in [(None, 1_000_000), ("9999", nines)]:
                begun = time.perf_counter()
                monitor = await runtime.monitor(Shell(command), pattern, owner="main")
                await runtime.handle(monitor.task_id).wait()
                taken = time.perf_counter() - begun
                *notes, end = runtime.notifications_for("main").drain()
                assert end.kind == "task" and 1 <= len(notes) <= 1 + taken
                told = counted = 0
                for note in notes:
                    assert len(note.xml) <= 4000 and len(lines_of(note)) <= 200
                    more = ET.fromstring(note.xml).findtext("more") or ""
                    assert "not looked at" not in more
                    told += len(lines_of(note))
                    counted += int(
                        re.sub("and ([0-9,]+) .*", r"\1", more or "0").replace(",", "")
                    )
                assert told + counted == expected
                for note in (*notes, end):
                    note.ack()


async def test_a_command_that_never_stops_talking_is_ended_if_nobody_listens(
    tmp_path: Path,
) -> None:
    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime:
            monitor = await runtime.monitor(
                Shell("while :; do echo loud; sleep 0.02; done"), owner="main"
            )
            done = await runtime.handle(monitor.task_id).wait()
            assert done.status.value == "killed"
            assert monitor.ended == "10 notes in a row woke nobody"
            lines, end = runtime.notifications.drain()
    assert len(lines.xml) <= 4000 and lines_of(lines)[0] == "loud"
    assert "woke nobody" in end.display


async def test_where_there_are_no_background_tasks_there_are_no_monitors(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path) as runtime:
        tools = runtime.tools_for("main", Settings(background_tasks=False))
        (bash,) = [it for it in tools if it.name == "Bash"]
        assert "monitor" not in bash.schema["properties"]
        assert not [it for it in tools if it.name == "TaskMonitor"]
