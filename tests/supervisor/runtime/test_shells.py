"""What a runtime does with its shells: their input, output, usage and files."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from actors import Context, TaskStatus
from actors.env import Env, Files, real_env
from actors.hosting import ProcessUsage
from actors.shell import Shell
from actors.work import Report
from supervisor.runtime import (
    InputClosed,
    Limits,
    OutputEnded,
    Runtime,
    TaskHandle,
    TaskPrompted,
    Warned,
    open_runtime,
)
from tests.supervisor.jobs import EVERY

Body = Callable[[Context[object], Report], Awaitable[object]]

RUNNING, KILLED = TaskStatus.RUNNING, TaskStatus.KILLED


@attrs.define(eq=False)
class Job:
    """A work that runs in this process and has an output file."""

    body: Body
    task_type: str = "local_bash"
    shutdown: float = 5.0
    writes_output: bool = True
    takes_input: bool = False

    def describe(self) -> str:
        return "a job"

    async def run(self, ctx: Context[object], report: Report) -> object:
        return await self.body(ctx, report)


async def forever(ctx: Context[object], report: Report) -> None:
    await trio.sleep_forever()


async def at_once(ctx: Context[object], report: Report) -> None:
    pass


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - EVERY


# Removal with the evicted task


async def test_the_output_file_goes_with_the_forgotten_task(tmp_path: Path) -> None:
    """SM26, SM27, SD9: 32 ended tasks of a type are readable, and whatever runs
    or was not acknowledged."""
    async with open_runtime(tmp_path) as runtime:
        live = await runtime.launch(Job(forever))
        held = await runtime.launch(Job(at_once))
        await held.wait()
        ended = [await runtime.run(Job(at_once)) for _ in range(40)]
        kept = {f"{task.id}.output" for task in [live, held, *ended[8:]]}
        assert files(tmp_path) == kept
        (note,) = runtime.notifications.drain()
        note.ack()
        # Its notification names the file: those that nobody heard of do not
        # drive it out, only 32 others that were told.
        assert files(tmp_path) == kept
        for _ in range(32):
            await (await runtime.launch(Job(at_once), notify="silent")).wait()
        assert f"{held.id}.output" not in files(tmp_path)
        assert live.status is RUNNING and live.read_tail() == ""
        assert held.read_tail() == "" and held.snapshot().output_file is None
    assert f"{live.id}.output" in files(tmp_path)


class Stubborn:
    """Files that cannot be removed."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def __getattr__(self, name: str) -> object:
        return getattr(self._files, name)

    def remove(self, path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))


async def test_a_file_that_cannot_be_removed_is_a_warning(tmp_path: Path) -> None:
    """P10: told, and nobody's end."""
    real = real_env()
    env: Env = attrs.evolve(real, files=Stubborn(real.files))  # type: ignore[arg-type]
    async with open_runtime(tmp_path, env=env) as runtime:
        events = runtime.events.subscribe()
        first = await runtime.run(Job(at_once))
        for _ in range(32):
            await runtime.run(Job(at_once))
        (warning,) = [e for e in events.drain() if isinstance(e, Warned)]
        assert warning.task_id == first.id and "Permission denied" in warning.text
        assert all(task.status is TaskStatus.COMPLETED for task in runtime.tasks())


# The quota of the directory


async def test_the_directory_has_a_quota_which_forgotten_output_gives_back(
    tmp_path: Path,
) -> None:
    """The task that asks for more than is left fails; the others go on."""
    with trio.fail_after(60):
        async with open_runtime(tmp_path, limits=Limits(disk=100_000)) as runtime:
            events = runtime.events.subscribe()
            first = await runtime.run(Shell("head -c 90000 /dev/zero | tr '\\0' x"))
            assert first.status is TaskStatus.COMPLETED
            # How much had come when it was told depends on the pipe.
            warnings = [e.text for e in events.drain() if isinstance(e, Warned)]
            assert len(warnings) == 1 and "of its quota" in warnings[0]
            over = await runtime.run(Shell("head -c 20000 /dev/zero | tr '\\0' x"))
            assert over.status is TaskStatus.FAILED and over.error is not None
            assert "quota" in over.error.message
            for _ in range(32):
                await runtime.run(Job(at_once))
            again = await runtime.run(Shell("head -c 20000 /dev/zero | tr '\\0' x"))
            assert again.status is TaskStatus.COMPLETED


@pytest.mark.parametrize("disk", [0, -1, True, 1.5, "1"])
def test_a_bad_quota_of_the_directory_is_refused(disk: object) -> None:
    with pytest.raises(
        ValueError, match="disk must be a whole number, 1 or more, or None"
    ):
        Limits(disk=disk)  # type: ignore[arg-type]


# Input


async def test_a_shell_reads_what_is_written_until_its_end(tmp_path: Path) -> None:
    """The first write may come before the command has begun."""
    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(Shell("cat", stdin="pipe"))
            await task.write("one\n")
            await task.write(b"two\n")
            assert (await task.wait_output("two")).group() == "two"
            await task.close_input()
            with pytest.raises(InputClosed, match=f"{task.id} takes no input: "):
                await task.write("three")
            snapshot = await task.wait()
            assert snapshot.result == "one\ntwo\n"
            with pytest.raises(InputClosed, match="it has ended"):
                await task.write("four")
            with pytest.raises(InputClosed, match="it has ended"):
                await task.close_input()


async def test_a_task_without_an_input_says_so_at_once(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(forever))
        for call in (lambda: task.write("x"), task.close_input):
            with pytest.raises(InputClosed, match="launched without an input"):
                await call()
        with pytest.raises(TypeError, match="data must be a str or bytes, not 5"):
            await task.write(5)  # type: ignore[arg-type]


async def test_a_write_waits_for_the_place_of_its_task(tmp_path: Path) -> None:
    """A pending task takes its input when it runs, or says that it never did."""
    written: list[bytes] = []

    class Keep:
        async def write(self, data: bytes) -> None:
            written.append(data)

        async def close(self) -> None:
            written.append(b"end")

    async def body(ctx: Context[object], report: Report) -> None:
        await trio.lowlevel.checkpoint()
        report.input = Keep()
        await trio.sleep_forever()

    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        first = await runtime.launch(Job(forever))
        task = await runtime.launch(Job(body, takes_input=True))
        never = await runtime.launch(Job(body, takes_input=True))

        async def write(task: TaskHandle, data: str) -> None:
            await task.write(data)
            await task.close_input()

        async def fail() -> None:
            with pytest.raises(InputClosed, match="it has ended"):
                await never.write("x")

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, task, "hello")
                nursery.start_soon(fail)
                await trio.testing.wait_all_tasks_blocked()
                assert written == []
                await never.stop()
                await first.stop()
        assert written == [b"hello", b"end"]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (trio.BrokenResourceError, "nobody reads it any more"),
        (trio.ClosedResourceError, "it was closed"),
    ],
)
async def test_an_input_that_is_gone_says_why(
    tmp_path: Path, error: type[Exception], why: str
) -> None:
    class Gone:
        async def write(self, data: bytes) -> None:
            raise error

        async def close(self) -> None:
            raise error

    async def body(ctx: Context[object], report: Report) -> None:
        report.input = Gone()
        await trio.sleep_forever()

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body, takes_input=True))
        with pytest.raises(InputClosed, match=why) as caught:
            await task.write("x")
        assert isinstance(caught.value.__cause__, error)
        with pytest.raises(InputClosed, match=why):
            await task.close_input()


async def test_a_cancelled_write_does_nothing_to_the_task(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(forever, takes_input=True))
        with trio.move_on_after(0) as scope:
            await task.write("x")
        assert scope.cancelled_caught and task.status is RUNNING


# What a running task tells


async def test_a_prompt_is_told_once_and_is_in_the_snapshot(tmp_path: Path) -> None:
    """SH33, as far as the runtime tells it."""
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()

        async def body(ctx: Context[object], report: Report) -> None:
            report.report_prompt("Proceed? [y/N] ")
            await trio.sleep_forever()

        task = await runtime.launch(Job(body))
        await trio.testing.wait_all_tasks_blocked()
        assert task.snapshot().prompt == "Proceed? [y/N] "
        (told,) = [e for e in events.drain() if isinstance(e, TaskPrompted)]
        assert (told.task_id, told.line) == (task.id, "Proceed? [y/N] ")


async def test_the_usage_of_a_running_task_is_measured_when_asked_for(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path) as runtime:

        async def body(ctx: Context[object], report: Report) -> None:
            report.measure = lambda: ProcessUsage(
                cpu_seconds=1.5, memory_bytes=4096, processes=2
            )
            await stop.wait()
            report.measure = None
            report.cpu_seconds = 2.0

        stop = trio.Event()
        task = await runtime.launch(Job(body))
        await trio.testing.wait_all_tasks_blocked()
        usage = task.snapshot().usage
        assert (usage.cpu_seconds, usage.memory_bytes, usage.processes) == (
            1.5,
            4096,
            2,
        )
        stop.set()
        usage = (await task.wait()).usage
        assert usage.cpu_seconds == 2.0
        assert usage.memory_bytes is usage.processes is None


async def test_a_measure_that_fails_is_nothing_known(tmp_path: Path) -> None:
    """P10: a question does not fail because of a task."""

    async def body(ctx: Context[object], report: Report) -> None:
        report.measure = lambda: 1 // 0  # type: ignore[return-value]
        await trio.sleep_forever()

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body))
        await trio.testing.wait_all_tasks_blocked()
        assert task.snapshot().usage.memory_bytes is None


# Reading


async def test_output_is_read_through_the_handle(tmp_path: Path) -> None:
    """OF1, as far as the runtime gives it; also by an id, and after the end."""
    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(Shell("for i in 1 2 3; do echo line $i; done"))
            same = runtime.handle(task.id)
            lines = "".join([text async for text in task.follow()])
            assert lines == "line 1\nline 2\nline 3\n"
            await task.wait()
            assert same.read_tail() == lines
            part = same.read(7)
            assert (part.text, part.next_offset, part.done) == (lines[7:], 21, True)
            match = await same.wait_output(re.compile(r"line (\d)\n$"))
            assert match.group(1) == "3"
            with pytest.raises(OutputEnded, match="is completed") as caught:
                await same.wait_output("ready")
            assert caught.value.snapshot.id == task.id


# Stopping at once


async def in_trap(runtime: Runtime) -> TaskHandle:
    """Launch a command that ignores SIGTERM, and wait until it does."""
    task = await runtime.launch(
        Shell("trap '' TERM; echo ready; while :; do sleep 0.1; done", grace=300)
    )
    await task.wait_output("ready")
    return task


async def test_a_stop_now_grants_no_time_for_cleaning_up(tmp_path: Path) -> None:
    """P2: it has really ended; the grace would have been five minutes."""
    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime:
            task = await in_trap(runtime)
            result = await runtime.stop(task.id, now=True)
            assert (result.snapshot.status, result.survivors) == (KILLED, ())
            tasks = [await in_trap(runtime), await in_trap(runtime)]
            results = await runtime.stop_all(now=True)
            assert [r.snapshot.id for r in results] == [task.id for task in tasks]
            assert {r.snapshot.status for r in results} == {KILLED}


async def test_a_second_stop_shortens_one_that_is_under_way(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime:
            task = await in_trap(runtime)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(task.stop)
                while not task.snapshot().stopping:
                    await trio.sleep(0.01)
                await task.stop(now=True)
            assert task.status is KILLED
            assert len(runtime.notifications.drain()) == 1


@pytest.mark.parametrize("now", [None, 1, "yes"])
async def test_now_is_true_or_false(tmp_path: Path, now: object) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(forever))
        with pytest.raises(TypeError, match=f"now must be True or False, not {now!r}"):
            await runtime.stop(task.id, now=now)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=f"now must be True or False, not {now!r}"):
            await runtime.stop_all(now=now)  # type: ignore[arg-type]
        assert task.status is RUNNING and not task.snapshot().stopping
