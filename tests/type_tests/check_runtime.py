"""What type checkers must say about the runtime. Checked, never run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import assert_type

from actors import Context, Progress, TaskStatus
from actors.shell import Shell
from actors.work import Report, Work
from supervisor.runtime import (
    Limits,
    Notification,
    Notifications,
    Runtime,
    StopResult,
    TaskError,
    TaskHandle,
    TaskSet,
    TaskSnapshot,
    open_runtime,
)
from supervisor.tree import Backoff, Supervisor


class Sleep:
    """A work of one's own needs no base class."""

    task_type = "local_agent"
    shutdown = 5.0
    writes_output = False

    def describe(self) -> str:
        return "sleeping"

    async def run(self, ctx: Context[object], report: Report) -> str:
        report.say(Progress(text="going to bed"))
        return "slept"


class Walk:
    task_type = "local_agent"


def check_works(path: Path) -> None:
    works: list[Work] = [
        Sleep(),
        Shell("true"),
        Shell("true", cwd=path, env={"A": "b"}),
    ]
    print(works)
    Shell()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Shell("true", path)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Shell("true", grace="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def check_runtime() -> None:
    async with open_runtime("tasks", limits=Limits(total=5)) as runtime:
        assert_type(runtime, Runtime)
        task = await runtime.launch(
            Shell("make test"),
            description="unit tests",
            owner="main",
            tool_use_id="toolu_01",
            restart="transient",
            intensity=3,
            period=60,
            backoff=Backoff(1, 60),
        )
        assert_type(task, TaskHandle)
        await runtime.launch(Sleep())
        await runtime.launch(Walk())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await runtime.launch("ls")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await runtime.launch(Sleep(), restart="always")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert_type(task.id, str)
        assert_type(task.status, TaskStatus)
        assert_type(await runtime.run(Shell("ls")), TaskSnapshot)
        assert_type(runtime.background(task.id), bool)
        snapshot = await task.wait()
        assert_type(snapshot, TaskSnapshot)
        assert_type(snapshot.error, TaskError | None)
        assert_type(snapshot.exit_code, int | None)
        assert_type(snapshot.output_file, Path | None)
        assert_type(await runtime.stop(task.id), StopResult)
        assert_type(await runtime.stop_all(owner="main"), list[StopResult])
        assert_type(runtime.get(task.id), TaskSnapshot)
        assert_type(runtime.tasks(), list[TaskSnapshot])
        assert_type(runtime.root, Supervisor)
        async with runtime.turn("main"):
            pass
        await runtime.launch(Sleep(), notify="silent")
        await runtime.launch(Sleep(), notify="loud")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert_type(runtime.handle(task.id), TaskHandle)
        assert_type(await runtime.wait_any([task, "s1"]), TaskSnapshot)
        assert_type(await runtime.wait_all([task]), list[TaskSnapshot])
        members = runtime.task_set(task, "s1")
        assert_type(members, TaskSet)
        async for ended in members:
            assert_type(ended, TaskSnapshot)
        assert_type(runtime.background_all("main"), list[str])
        assert_type(await runtime.stop_foreground(), list[StopResult])
        assert_type(await runtime.stop(task.id, now=True, notify="silent"), StopResult)
        assert_type(runtime.consume(task.id), bool)
        await task.write("text")
        await task.write(b"bytes")
        await task.write(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert_type(task.read_tail(), str)
        async for text in task.follow():
            assert_type(text, str)
        assert_type(await task.wait_output("ready"), re.Match[str])
        batch = await runtime.notifications.receive_batch(limit=5)
        assert_type(batch, list[Notification])
        assert_type(runtime.notifications.unacknowledged(), list[Notification])
        async for note in runtime.notifications:
            assert_type(note, Notification)
            assert_type(note.ack(), bool)
            note.ack("lost")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert_type(runtime.notifications_for("main"), Notifications)
        assert_type(runtime.notifications.drain(), list[Notification])
        await runtime.wait_idle()
    # The block ends with an error or not at all, so its names are bound.
    assert_type(runtime, Runtime)
