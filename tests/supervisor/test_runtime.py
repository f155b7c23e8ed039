"""The runtime, with works that run in this process and virtual time."""

from __future__ import annotations

import gc
import logging
import random
import signal
import weakref
import xml.etree.ElementTree as ET
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import attrs
import orjson
import pytest
import trio
import trio.testing

from actors import Context, Progress, TaskStatus
from actors.env import Env, real_env
from actors.lowlevel import Incarnation
from actors.shell import Shell
from actors.work import Report
from supervisor._events import (
    Acked,
    Event,
    Notified,
    Straggler,
    TaskBackgrounded,
    TaskEnded,
    TaskProgress,
    TaskRestarted,
    TaskStarted,
    TaskStopRequested,
    Warned,
)
from supervisor._json import to_json
from supervisor._spec import Backoff, Restart
from supervisor.runtime import (
    BacklogFull,
    Limits,
    Notification,
    Runtime,
    RuntimeStopping,
    TaskHandle,
    TaskSnapshot,
    UnknownTask,
    open_runtime,
)
from supervisor.tree import (
    InvalidChildSpec,
    InvalidSupervisorFlags,
    RestartIntensityExceeded,
    SupervisorError,
    WouldDeadlock,
)

Body = Callable[[Context[object], Report], Awaitable[object]]

PENDING, RUNNING = TaskStatus.PENDING, TaskStatus.RUNNING
COMPLETED, FAILED, KILLED = TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.KILLED


@attrs.define(eq=False)
class Job:
    """A work that runs in this process."""

    body: Body
    task_type: str = "local_agent"
    shutdown: float = 5.0
    writes_output: bool = False

    def describe(self) -> str:
        return "a job"

    async def run(self, ctx: Context[object], report: Report) -> object:
        return await self.body(ctx, report)


async def forever(ctx: Context[object], report: Report) -> None:
    await trio.sleep_forever()


def returns(value: object) -> Job:
    async def body(ctx: Context[object], report: Report) -> object:
        return value

    return Job(body)


def fails(error: BaseException) -> Job:
    async def body(ctx: Context[object], report: Report) -> None:
        raise error

    return Job(body)


def lasts(seconds: float, value: object = "done") -> Job:
    async def body(ctx: Context[object], report: Report) -> object:
        await trio.sleep(seconds)
        return value

    return Job(body)


def waits_for(event: trio.Event, value: object = "done") -> Job:
    async def body(ctx: Context[object], report: Report) -> object:
        await event.wait()
        return value

    return Job(body)


def statuses(runtime: Runtime) -> list[str]:
    return [snapshot.status.value for snapshot in runtime.tasks()]


def told(runtime: Runtime) -> list[tuple[str, str]]:
    return [(note.task_id, note.status.value) for note in runtime.notifications.drain()]


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def kinds(events: list[Event], task_id: str) -> list[type[Event]]:
    return [
        type(event) for event in events if getattr(event, "task_id", None) == task_id
    ]


# Launching


async def test_a_launched_task_runs_at_once_and_its_end_is_told_once(
    tmp_path: Path,
) -> None:
    """SM1, SM3, SM28 (the brief: pending only beyond the caps), N1, N41."""
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(returns("42"), owner="main", tool_use_id="toolu_1")
        assert task.status is RUNNING
        snapshot = await task.wait()
        assert snapshot.status is COMPLETED
        assert (snapshot.id, snapshot.result, snapshot.error) == (task.id, "42", None)
        assert (snapshot.type, snapshot.owner) == ("local_agent", "main")
        assert snapshot.description == "a job"
        assert snapshot.tool_use_id == "toolu_1"
        assert snapshot.started_at is not None and snapshot.ended_at is not None
        assert snapshot.started_at.utcoffset() == timedelta(0)
        assert snapshot.ended_at >= snapshot.started_at
        assert runtime.get(task.id) == snapshot == task.snapshot()
        assert told(runtime) == [(task.id, "completed")]
    assert told(runtime) == []


async def test_a_work_that_describes_itself_with_nothing_is_called_by_its_id(
    tmp_path: Path,
) -> None:
    """N41."""

    class Nameless(Job):
        def describe(self) -> str:
            return ""

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Nameless(forever))
        assert task.snapshot().description == task.id


async def test_launches_beyond_the_cap_wait_first_in_first_out(tmp_path: Path) -> None:
    """SM28, CO5, CO6."""
    async with open_runtime(tmp_path, limits=Limits(total=2)) as runtime:
        ends = [trio.Event() for _ in range(5)]
        tasks = [await runtime.launch(waits_for(end)) for end in ends]
        assert statuses(runtime) == [
            "running",
            "running",
            "pending",
            "pending",
            "pending",
        ]
        assert tasks[2].snapshot().started_at is None
        ends[1].set()
        await tasks[1].wait()
        assert tasks[2].status is RUNNING and tasks[3].status is PENDING
        ends[0].set()
        ends[2].set()
        await tasks[2].wait()
        await tasks[0].wait()
        assert [task.status for task in tasks[3:]] == [RUNNING, RUNNING]
        for end in ends:
            end.set()
        await runtime.wait_idle()
        assert next(task for task, _ in told(runtime)) == tasks[1].id


async def test_foreground_and_background_tasks_share_the_caps(tmp_path: Path) -> None:
    """The brief: one cap for both."""
    async with open_runtime(tmp_path, limits=Limits(agents=1)) as runtime:
        end = trio.Event()
        first = await runtime.launch(waits_for(end))
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                assert (await runtime.run(returns(None))).status is COMPLETED

            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            assert statuses(runtime) == ["running", "pending"]
            end.set()
        assert first.status is COMPLETED


async def test_a_task_that_waits_for_its_own_child_lends_its_place(
    tmp_path: Path,
) -> None:
    """The brief, Limits: without it a tree of tasks would starve."""
    seen: list[list[str]] = []

    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:

        async def parent(ctx: Context[object], report: Report) -> object:
            child = await runtime.launch(returns("inner"))
            seen.append(statuses(runtime))
            await child.wait()
            done = await runtime.run(returns("again"))
            return done.result

        task = await runtime.launch(Job(parent))
        other = await runtime.launch(returns("other"))
        snapshot = await task.wait()
        assert snapshot.result == "again"
        assert (await other.wait()).status is COMPLETED
        assert seen == [["running", "pending", "pending"]]
        # The place was given back exactly once.
        tasks = [await runtime.launch(Job(forever)) for _ in range(2)]
        assert [task.status for task in tasks] == [RUNNING, PENDING]


async def test_a_parent_stopped_while_it_lends_its_place_gives_none_back_twice(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:

        async def parent(ctx: Context[object], report: Report) -> None:
            await (await runtime.launch(Job(forever))).wait()

        task = await runtime.launch(Job(parent))
        await trio.testing.wait_all_tasks_blocked()
        assert statuses(runtime) == ["running", "running"]
        await runtime.stop(task.id)
        # The child has the place now.
        assert (await runtime.launch(Job(forever))).status is PENDING
        await runtime.stop_all()
        tasks = [await runtime.launch(Job(forever)) for _ in range(2)]
        assert [task.status for task in tasks] == [RUNNING, PENDING]


async def test_a_wait_that_outlives_the_waiting_task_takes_no_place(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        end = trio.Event()
        async with trio.open_nursery() as nursery:

            async def parent(ctx: Context[object], report: Report) -> None:
                child = await runtime.launch(waits_for(end))
                # In its name, but not in its time.
                nursery.start_soon(child.wait)
                await trio.testing.wait_all_tasks_blocked()

            task = await runtime.launch(Job(parent))
            assert (await task.wait()).status is COMPLETED
            end.set()
        tasks = [await runtime.launch(Job(forever)) for _ in range(2)]
        assert [task.status for task in tasks] == [RUNNING, PENDING]


async def test_a_stopped_pending_task_is_killed_and_holds_up_nobody(
    tmp_path: Path,
) -> None:
    """CO5, CO11, SM11."""
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        end = trio.Event()
        first = await runtime.launch(waits_for(end))
        second = await runtime.launch(returns(2))
        third = await runtime.launch(returns(3))
        result = await runtime.stop(second.id)
        assert result.snapshot.status is KILLED
        assert result.snapshot.started_at is None and result.survivors == ()
        end.set()
        assert (await third.wait()).status is COMPLETED
        assert told(runtime) == [
            (second.id, "killed"),
            (first.id, "completed"),
            (third.id, "completed"),
        ]


async def test_a_cancelled_launch_starts_nothing_and_leaves_no_file(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path) as runtime:
        with trio.CancelScope() as scope:
            scope.cancel()
            await runtime.launch(Shell("true"))
        assert scope.cancelled_caught
        assert runtime.tasks() == [] and files(tmp_path) == []
        with trio.CancelScope() as scope:
            scope.cancel()
            await runtime.run(Shell("true"))
        assert scope.cancelled_caught
        assert runtime.tasks() == [] and files(tmp_path) == []


class Bad:
    """A work of which one thing is bad."""

    task_type: object = "local_agent"
    shutdown: object = 1.0
    writes_output: object = True
    described: object = "bad"

    def __init__(self, **what: object) -> None:
        self.__dict__.update(what)

    def describe(self) -> object:
        if isinstance(self.described, Exception):
            raise self.described
        return self.described

    async def run(self, ctx: object, report: object) -> None:
        raise AssertionError("never runs")


class Unreadable(Bad):
    @property
    def task_type(self) -> str:  # type: ignore[override]
        raise LookupError("no type")


@pytest.mark.parametrize(
    ("work", "arguments", "error", "names"),
    [
        (None, {}, TypeError, "None"),
        ("make test", {}, TypeError, "make test"),
        (Bad(task_type="local_cat"), {}, TypeError, "Bad"),
        (Bad(task_type=["unhashable"]), {}, TypeError, "Bad"),
        (Bad(shutdown=float("nan")), {}, TypeError, "nan"),
        (Bad(shutdown=-1), {}, TypeError, "-1"),
        (Bad(shutdown="soon"), {}, TypeError, "soon"),
        (Bad(described=7), {}, TypeError, "7"),
        (Bad(described=LookupError("no words")), {}, LookupError, "no words"),
        (Unreadable(), {}, LookupError, "no type"),
        (Bad(), {"description": 5}, TypeError, "description.*5"),
        (Bad(), {"owner": b"main"}, TypeError, "owner.*main"),
        (Bad(), {"tool_use_id": object}, TypeError, "tool_use_id.*object"),
        (Bad(), {"restart": "always"}, InvalidChildSpec, "always"),
        (
            Bad(),
            {"restart": "transient", "intensity": -1},
            InvalidSupervisorFlags,
            "-1",
        ),
        (Bad(), {"intensity": True}, InvalidSupervisorFlags, "True"),
        (Bad(), {"period": 0}, InvalidSupervisorFlags, "0"),
        (Bad(), {"backoff": 2.0}, InvalidChildSpec, "2.0"),
    ],
)
async def test_bad_arguments_raise_by_name_and_change_nothing(
    tmp_path: Path,
    work: object,
    arguments: dict[str, object],
    error: type[Exception],
    names: str,
) -> None:
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        with pytest.raises(error, match=names):
            await runtime.launch(work, **arguments)  # type: ignore[arg-type]
        assert runtime.tasks() == [] and files(tmp_path) == []
        assert events.drain() == []


async def test_bad_arguments_of_the_other_calls_raise_by_name(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(forever))
        with pytest.raises(TypeError, match=r"a work such as Shell.*'ls'"):
            await runtime.run("ls")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"reason.*7"):
            await runtime.stop(task.id, 7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"owner.*7"):
            await runtime.stop_all(owner=7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"owner.*7"):
            runtime.tasks(7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"owner.*7"):
            runtime.notifications_for(7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"owner.*7"):
            runtime.turn(7)  # type: ignore[arg-type]
        for unknown in ("s00000000", "", None, 7, []):
            with pytest.raises(UnknownTask, match=task.id):
                runtime.get(unknown)  # type: ignore[arg-type]
        assert statuses(runtime) == ["running"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((b"tasks",), TypeError),
        ((None,), TypeError),
        ((7,), TypeError),
        (("",), ValueError),
        (("a\0b",), ValueError),
    ],
)
def test_a_bad_directory_is_refused(
    arguments: tuple[str], error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"directory"):
        open_runtime(*arguments)


def test_bad_limits_and_effects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"limits.*50"):
        open_runtime(tmp_path, limits=50)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"env.*os"):
        open_runtime(tmp_path, env="os")  # type: ignore[arg-type]


async def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"file"):
        async with open_runtime(tmp_path / "file"):
            raise AssertionError("not reached")


async def test_a_block_is_entered_once(tmp_path: Path) -> None:
    block = open_runtime(tmp_path)
    async with block:
        pass
    with pytest.raises(SupervisorError, match=r"only once"):
        async with block:
            raise AssertionError("not reached")


async def test_launch_refuses_when_too_much_is_not_acknowledged(tmp_path: Path) -> None:
    """P6: terminal records are never dropped, so nothing more is started."""
    async with open_runtime(tmp_path, limits=Limits(backlog=2)) as runtime:
        for number in range(2):
            await (await runtime.launch(returns(number))).wait()
        with pytest.raises(BacklogFull, match=r"2 notifications"):
            await runtime.launch(Shell("true"))
        assert len(runtime.tasks()) == 2 and files(tmp_path) == []
        # The foreground makes no notification.
        assert (await runtime.run(returns(3))).status is COMPLETED
        notes = runtime.notifications.drain()
        with pytest.raises(BacklogFull):
            await runtime.launch(returns(4))
        assert notes[0].ack()
        assert (await (await runtime.launch(returns(5))).wait()).status is COMPLETED


async def test_a_runtime_that_has_ended_starts_nothing_and_can_still_be_asked(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(returns("x"))
        await task.wait()
    with pytest.raises(RuntimeStopping):
        await runtime.launch(Shell("true"))
    with pytest.raises(RuntimeStopping):
        await runtime.run(Shell("true"))
    assert files(tmp_path) == []
    assert runtime.get(task.id).result == "x"
    assert (await runtime.stop(task.id)).snapshot.status is COMPLETED
    assert await runtime.stop_all() == []
    await runtime.wait_idle()


async def test_ids_have_the_form_of_their_type(tmp_path: Path) -> None:
    """The brief, Ids."""
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        await runtime.launch(Job(forever))
        remote = await runtime.launch(Job(forever, task_type="remote_agent"))
        shell = await runtime.launch(Shell("true"))
        agent = await runtime.launch(Job(forever))
        for task, prefix in ((remote, "r"), (shell, "s"), (agent, "")):
            assert task.id.startswith(prefix)
            assert len(task.id) == len(prefix) + 8
            int(task.id[len(prefix) :], 16)
        assert len({snapshot.run_id for snapshot in runtime.tasks()}) == 4
        assert files(tmp_path) == [f"{shell.id}.output"]
        assert (tmp_path / f"{shell.id}.output").stat().st_mode & 0o777 == 0o600


@attrs.define
class Chosen:
    """Ids from a list, the last one for ever."""

    names: list[str]

    def hex(self, digits: int) -> str:
        return self.names.pop(0) if len(self.names) > 1 else self.names[0]

    def uniform(self) -> float:
        return 0.0


def with_ids(*names: str) -> Env:
    return attrs.evolve(real_env(), ids=Chosen(list(names)))


async def test_an_id_is_taken_once_in_the_table_and_in_the_directory(
    tmp_path: Path,
) -> None:
    """The brief, Ids: exclusive create decides."""
    (tmp_path / "s0000000a.output").write_text("somebody's")
    env = with_ids("0000000a", "0000000b", "0000000b", "0000000c")
    async with open_runtime(tmp_path, env=env, limits=Limits(total=1)) as runtime:
        await runtime.launch(Job(forever))
        first = await runtime.launch(Shell("true"))
        second = await runtime.launch(Shell("true"))
        assert (first.id, second.id) == ("s0000000b", "s0000000c")
        with pytest.raises(SupervisorError, match=r"no free task id"):
            await runtime.launch(Shell("true"))
        assert len(runtime.tasks()) == 3
    assert (tmp_path / "s0000000a.output").read_text() == "somebody's"


async def test_what_fails_after_the_id_is_a_failed_task(tmp_path: Path) -> None:
    """The brief, section 4: here the output file cannot be made."""
    directory = tmp_path / "tasks"
    async with open_runtime(directory) as runtime:
        events = runtime.events.subscribe()
        directory.rmdir()
        task = await runtime.launch(Shell("true"), description="too late")
        assert task.status is FAILED
        snapshot = await task.wait()
        assert snapshot.error is not None
        assert snapshot.error.type == "FileNotFoundError"
        assert snapshot.output_file is None
        assert (await runtime.run(Shell("true"))).status is FAILED
        assert told(runtime) == [(task.id, "failed")]
        assert kinds(events.drain(), task.id) == [TaskEnded, Notified]


# Ends


async def test_an_exception_is_a_failed_task_with_its_error(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(fails(LookupError("not there")))
        error = (await task.wait()).error
        assert error is not None
        assert (error.type, error.message) == ("LookupError", "not there")
        assert (
            "in body" in error.traceback and "LookupError: not there" in error.traceback
        )
        (note,) = runtime.notifications.drain()
        assert ET.fromstring(note.xml).findtext("error") == "LookupError: not there"
        assert note.display == 'Agent "a job" failed: not there'


async def test_an_agent_that_returns_after_its_stop_has_completed(
    tmp_path: Path,
) -> None:
    """SM7: the real result, one notification."""

    async def body(ctx: Context[object], report: Report) -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            pass
        return "the real result"

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body))
        await trio.testing.wait_all_tasks_blocked()
        result = await runtime.stop(task.id)
        assert result.snapshot.status is COMPLETED
        assert result.snapshot.result == "the real result"
        assert told(runtime) == [(task.id, "completed")]


async def test_an_agent_that_fails_after_its_stop_has_failed(tmp_path: Path) -> None:
    """SM8: the real error, one notification."""

    async def body(ctx: Context[object], report: Report) -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise ValueError("the real error") from None

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body))
        await trio.testing.wait_all_tasks_blocked()
        snapshot = (await runtime.stop(task.id)).snapshot
        assert snapshot.status is FAILED
        assert snapshot.error is not None and snapshot.error.message == "the real error"
        assert told(runtime) == [(task.id, "failed")]


async def test_a_stopped_agent_keeps_its_partial_answer(tmp_path: Path) -> None:
    """SM9, N6: killed with what it had."""

    async def body(ctx: Context[object], report: Report) -> str:
        report.result = "partial"
        await trio.sleep_forever()
        return "never"

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body))
        await trio.testing.wait_all_tasks_blocked()
        await runtime.stop(task.id)
        assert (task.status, task.snapshot().result) == (KILLED, "partial")
        (note,) = runtime.notifications.drain()
        assert ET.fromstring(note.xml).findtext("result") == "partial"


async def test_a_stop_is_a_request_until_the_task_has_ended(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P2, SM4, SM11: running and stopping, without an end, until it has ended."""

    async def body(ctx: Context[object], report: Report) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body))
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.stop, task.id)
            await trio.sleep(1)
            snapshot = task.snapshot()
            assert snapshot.status is RUNNING and snapshot.stopping
            assert snapshot.ended_at is None
            assert told(runtime) == []
        assert trio.current_time() == pytest.approx(2)
        assert task.status is KILLED and not task.snapshot().stopping


async def test_a_deadline_of_a_work_is_a_failure(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async def body(ctx: Context[object], report: Report) -> None:
        ctx.deadline = trio.current_time() + 3
        await trio.sleep_forever()

    async with open_runtime(tmp_path) as runtime:
        snapshot = await (await runtime.launch(Job(body))).wait()
        assert snapshot.status is FAILED
        assert snapshot.error is not None
        assert (snapshot.error.type, trio.current_time()) == ("TimeoutError", 3.0)


async def test_a_stop_in_the_tick_of_the_launch_ends_in_one_killed_task(
    tmp_path: Path,
) -> None:
    """Brief section 10: a stop before the first step."""
    ran: list[str] = []

    async def body(ctx: Context[object], report: Report) -> None:
        ran.append("body")

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body))
        runtime.close()
        with pytest.raises(RuntimeStopping):
            await runtime.launch(Job(body))
        await runtime.stop(task.id)
        # It may have had its first step already; whichever came first counts.
        assert task.status is (COMPLETED if ran else KILLED)
        assert told(runtime) == [(task.id, task.status.value)]


@pytest.mark.parametrize("end_first", [True, False])
async def test_a_stop_that_races_with_the_end_gives_one_end(
    tmp_path: Path, end_first: bool
) -> None:
    """SM6: the first terminal state wins."""
    for _ in range(20):
        async with open_runtime(tmp_path) as runtime:
            end = trio.Event()
            task = await runtime.launch(waits_for(end))
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                if end_first:
                    end.set()
                    nursery.start_soon(runtime.stop, task.id)
                else:
                    nursery.start_soon(runtime.stop, task.id)
                    await trio.lowlevel.checkpoint()
                    end.set()
            assert task.status in (COMPLETED, KILLED)
            assert told(runtime) == [(task.id, task.status.value)]
        assert told(runtime) == []


async def test_two_stops_at_once_both_see_the_one_end(tmp_path: Path) -> None:
    """SM6."""
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(Job(forever))
        results: list[TaskSnapshot] = []

        async def stop(reason: str) -> None:
            results.append((await runtime.stop(task.id, reason)).snapshot)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop, "one")
            nursery.start_soon(stop, "two")
            nursery.start_soon(runtime.stop_all)
        assert results == [task.snapshot()] * 2
        assert task.status is KILLED
        assert told(runtime) == [(task.id, "killed")]
        assert kinds(events.drain(), task.id).count(TaskStopRequested) == 1


async def test_a_second_terminal_state_is_ignored(tmp_path: Path) -> None:
    """SM3, SM6, N2: even if something of ours tried to record one."""
    async with open_runtime(tmp_path) as runtime:
        handle = await runtime.launch(returns("first"))
        before = await handle.wait()
        events = runtime.events.subscribe()
        task = runtime._table.find(handle.id)
        assert task is not None
        runtime._conclude(task, FAILED, ValueError("second"))
        assert handle.snapshot() == before
        assert events.drain() == []
        assert told(runtime) == [(handle.id, "completed")]


async def test_a_stop_of_an_ended_task_changes_nothing(tmp_path: Path) -> None:
    """SM2, SM12, SM6."""
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(returns("kept"))
        before = await task.wait()
        events.drain()
        result = await runtime.stop(task.id)
        assert (result.snapshot, result.survivors) == (before, ())
        assert await task.stop() == result
        assert events.drain() == []
        assert len(told(runtime)) == 1


async def test_a_stop_of_an_unknown_task_lists_the_running_ones(tmp_path: Path) -> None:
    """SM5, with UnknownTask."""
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(forever), description="the build")
        with pytest.raises(UnknownTask) as caught:
            await runtime.stop("s1234567")
        assert caught.value.task_id == "s1234567"
        assert caught.value.running == ((task.id, "the build"),)
        assert "the build" in str(caught.value)
        assert task.status is RUNNING and not task.snapshot().stopping


async def test_a_cancelled_stop_has_asked_or_has_changed_nothing(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(forever))
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await runtime.stop(task.id)
        assert scope.cancelled_caught
        await trio.testing.wait_all_tasks_blocked()
        assert task.snapshot().stopping is False and task.status is RUNNING


async def test_stopping_one_task_touches_no_other(tmp_path: Path) -> None:
    """P8, P10: nor does a failing one."""
    async with open_runtime(tmp_path) as runtime:
        others = [await runtime.launch(Job(forever)) for _ in range(3)]
        victim = await runtime.launch(Job(forever))
        failing = await runtime.launch(fails(ValueError("boom")))
        assert (await runtime.stop(victim.id)).snapshot.status is KILLED
        assert (await failing.wait()).status is FAILED
        assert [task.status for task in others] == [RUNNING] * 3


async def test_stop_all_stops_one_owner_or_everybody(tmp_path: Path) -> None:
    """SD1, SD3: the numbers of those that remain go down."""
    async with open_runtime(tmp_path) as runtime:
        mine = [await runtime.launch(Job(forever), owner="me") for _ in range(3)]
        other = await runtime.launch(Job(forever), owner="you")
        results = await runtime.stop_all(owner="me")
        assert [result.snapshot.id for result in results] == [task.id for task in mine]
        assert {result.snapshot.status for result in results} == {KILLED}
        assert other.status is RUNNING
        notes = runtime.notifications_for("me").drain()
        assert [ET.fromstring(note.xml).findtext("remaining") for note in notes] == [
            "2",
            "1",
            "0",
        ]
        assert len(await runtime.stop_all()) == 1
        assert await runtime.stop_all() == []


async def test_remaining_counts_the_background_tasks_of_one_owner(
    tmp_path: Path,
) -> None:
    """N18, N19: pending ones too; no foreground tasks; no owner is an owner as
    well. (As P2 wants it, a task that was asked to stop remains until it ends.)"""
    async with open_runtime(tmp_path, limits=Limits(total=4)) as runtime:
        end = trio.Event()
        first = await runtime.launch(waits_for(end))
        others = [await runtime.launch(Job(forever)) for _ in range(2)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run, Job(forever))
            await trio.testing.wait_all_tasks_blocked()
            await runtime.launch(Job(forever), owner="else")
            others.append(await runtime.launch(Job(forever)))
            assert others[-1].status is PENDING
            end.set()
            await first.wait()
            (note,) = runtime.notifications.drain()
            xml = ET.fromstring(note.xml)
            assert (xml.findtext("remaining"), xml.findtext("all-terminal")) == (
                "3",
                "false",
            )
            for task in others:
                await runtime.stop(task.id)
            last = ET.fromstring(runtime.notifications.drain()[-1].xml)
            assert (last.findtext("remaining"), last.findtext("all-terminal")) == (
                "0",
                "true",
            )
            nursery.cancel_scope.cancel()


# The foreground


async def test_a_foreground_task_makes_no_notification(tmp_path: Path) -> None:
    """N9."""
    async with open_runtime(tmp_path) as runtime:
        snapshot = await runtime.run(returns("here"))
        assert (snapshot.status, snapshot.result) == (COMPLETED, "here")
        assert not snapshot.background
        assert told(runtime) == []
    assert told(runtime) == []


async def test_a_foreground_task_moves_to_the_background_once(tmp_path: Path) -> None:
    """BG1, BG2: the same run goes on."""
    async with open_runtime(tmp_path) as runtime:
        end = trio.Event()
        returned: list[TaskSnapshot] = []

        async def run() -> None:
            returned.append(await runtime.run(waits_for(end)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            (snapshot,) = runtime.tasks()
            assert runtime.background(snapshot.id)
            assert not runtime.background(snapshot.id)
            assert not runtime.background("s1234567")
        (early,) = returned
        assert early.status is RUNNING and early.background
        assert early.run_id == snapshot.run_id
        end.set()
        await runtime.wait_idle()
        assert not runtime.background(snapshot.id)
        assert told(runtime) == [(snapshot.id, "completed")]
        assert runtime.get(snapshot.id).run_id == early.run_id


@pytest.mark.parametrize("move_first", [True, False])
async def test_a_move_in_the_tick_of_the_end_is_told_in_one_way(
    tmp_path: Path, move_first: bool
) -> None:
    """P4: by the return of run() or by the notification."""
    async with open_runtime(tmp_path) as runtime:
        end = trio.Event()
        returned: list[TaskSnapshot] = []

        async def run() -> None:
            returned.append(await runtime.run(waits_for(end)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            (task,) = runtime.tasks()
            if move_first:
                assert runtime.background(task.id)
                end.set()
            else:
                end.set()
                while runtime.get(task.id).status is RUNNING:
                    await trio.lowlevel.checkpoint()
                assert not runtime.background(task.id)
        (snapshot,) = returned
        await runtime.wait_idle()
        assert snapshot.background is move_first
        assert len(told(runtime)) == int(move_first)


async def test_a_cancelled_run_has_ended_its_task_first(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P1, P8."""

    async def body(ctx: Context[object], report: Report) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    async with open_runtime(tmp_path) as runtime:
        with trio.move_on_after(5):
            await runtime.run(Job(body))
        assert trio.current_time() == pytest.approx(6)
        assert statuses(runtime) == ["killed"]
        assert told(runtime) == []


async def test_a_cancelled_run_of_a_pending_task_takes_it_out_of_the_queue(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        first = await runtime.launch(Job(forever))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run, returns(1))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        last = await runtime.launch(returns(2))
        await runtime.stop(first.id)
        assert (await last.wait()).status is COMPLETED
        assert [status for _, status in told(runtime)] == ["killed", "completed"]


async def test_a_cancelled_turn_ends_its_foreground_tasks_only(tmp_path: Path) -> None:
    """P8."""
    async with open_runtime(tmp_path) as runtime:
        background = await runtime.launch(Job(forever), owner="main")
        foreground: list[str] = []
        during: list[TaskHandle] = []
        with trio.CancelScope() as scope:
            async with runtime.turn("main"):
                assert runtime.is_busy("main") and not runtime.is_busy("other")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(runtime.run, Job(forever))
                    nursery.start_soon(runtime.run, Job(forever))
                    await trio.testing.wait_all_tasks_blocked()
                    during.append(await runtime.launch(Job(forever)))
                    foreground += [s.id for s in runtime.tasks() if not s.background]
                    scope.cancel()
        assert not runtime.is_busy("main")
        assert [runtime.get(id).status for id in foreground] == [KILLED, KILLED]
        assert background.status is RUNNING and during[0].status is RUNNING
        assert told(runtime) == []


async def test_the_moved_task_survives_the_cancelled_turn(tmp_path: Path) -> None:
    """P8, BG2."""
    async with open_runtime(tmp_path) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run, Job(forever))
            await trio.testing.wait_all_tasks_blocked()
            (task,) = runtime.tasks()
            # In the same tick.
            assert runtime.background(task.id)
            nursery.cancel_scope.cancel()
        assert runtime.get(task.id).status is RUNNING
        await runtime.stop(task.id)
        assert told(runtime) == [(task.id, "killed")]


# Waiting


async def test_a_cancelled_wait_does_nothing_to_the_task(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        end = trio.Event()
        task = await runtime.launch(waits_for(end))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.wait)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert task.status is RUNNING
        end.set()
        assert (await task.wait()).status is COMPLETED


async def test_wait_idle_waits_for_all_that_is_unfinished(tmp_path: Path) -> None:
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        await runtime.wait_idle()
        end = trio.Event()
        await runtime.launch(waits_for(end))
        await runtime.launch(returns(1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.wait_idle)
            nursery.start_soon(runtime.wait_idle)
            await trio.testing.wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 2
            end.set()
        assert statuses(runtime) == ["completed", "completed"]


async def test_a_task_cannot_wait_for_its_own_end(tmp_path: Path) -> None:
    errors: list[str] = []

    async with open_runtime(tmp_path) as runtime:

        async def body(ctx: Context[object], report: Report) -> None:
            calls = (
                lambda: runtime.stop(report.task_id),
                lambda: runtime.stop_all(),
                lambda: runtime.wait_idle(),
                lambda: handle.wait(),
            )
            for call in calls:
                try:
                    await call()
                except WouldDeadlock as error:
                    errors.append(str(error))
            await trio.lowlevel.checkpoint()

        events = runtime.events.subscribe()
        handle = await runtime.launch(Job(body), restart="transient")
        other = await runtime.launch(Job(forever))
        assert (await handle.wait()).status is COMPLETED
        assert len(errors) == 4 and all(handle.id in error for error in errors)
        assert other.status is RUNNING
        assert TaskStopRequested not in map(type, events.drain())


async def test_a_task_may_launch_stop_and_await_others(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:

        async def body(ctx: Context[object], report: Report) -> str:
            inner = await runtime.launch(Job(forever))
            await runtime.stop(inner.id)
            return (await inner.wait()).status.value

        task = await runtime.launch(Job(body))
        assert (await task.wait()).result == "killed"


# Leaving the block


async def three(runtime: Runtime, nursery: trio.Nursery) -> list[str]:
    """Start one task that has ended, two that run, one foreground, one pending."""
    ended = await runtime.launch(returns("x"))
    await ended.wait()
    tasks = [ended, *[await runtime.launch(Job(forever)) for _ in range(2)]]
    nursery.start_soon(swallow, runtime.run, Job(forever))
    await trio.testing.wait_all_tasks_blocked()
    tasks.append(await runtime.launch(returns("never")))
    assert tasks[-1].status is PENDING
    return [task.id for task in tasks]


async def swallow(fn: Callable[..., Awaitable[object]], *args: object) -> None:
    await fn(*args)


def check_records(runtime: Runtime, ids: list[str]) -> None:
    """Exactly one terminal record for each, in the order of ending."""
    notes = runtime.notifications.drain()
    assert sorted(note.task_id for note in notes) == sorted(ids)
    assert notes[0].task_id == ids[0] and notes[0].status is COMPLETED
    assert {note.status for note in notes[1:]} == {KILLED}
    ended = [snapshot.id for snapshot in runtime.tasks() if snapshot.background]
    assert [note.task_id for note in notes] == ended
    for note in notes:
        assert ET.fromstring(note.xml).findtext("task-id") == note.task_id
        assert note.ack() and not note.ack()
    assert runtime.notifications.drain() == []


LIMITS = Limits(total=3)


async def test_leaving_the_block_tells_every_end_once(tmp_path: Path) -> None:
    """P3, P4."""
    ids: list[str] = []
    async with trio.open_nursery() as nursery:
        async with open_runtime(tmp_path, limits=LIMITS) as runtime:
            ids += await three(runtime, nursery)
        check_records(runtime, ids)


async def test_an_error_in_the_block_comes_out_and_tells_every_end_once(
    tmp_path: Path,
) -> None:
    """P3, P4."""
    seen: list[tuple[Runtime, list[str]]] = []
    async with trio.open_nursery() as nursery:
        with pytest.raises(KeyError, match=r"the body's own"):
            async with open_runtime(tmp_path, limits=LIMITS) as runtime:
                seen.append((runtime, await three(runtime, nursery)))
                raise KeyError("the body's own")
    check_records(*seen[0])


async def test_a_cancelled_block_tells_every_end_once(tmp_path: Path) -> None:
    """P3, P4."""
    seen: list[tuple[Runtime, list[str]]] = []
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with open_runtime(tmp_path, limits=LIMITS) as runtime:
                seen.append((runtime, await three(runtime, nursery)))
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
    check_records(*seen[0])


@pytest.mark.parametrize("where", ["the body", "a task", "at the end"])
def test_an_interrupt_tells_every_end_once(tmp_path: Path, where: str) -> None:
    """P3, P4: a real SIGINT."""
    seen: list[tuple[Runtime, list[str]]] = []

    async def interrupt(ctx: Context[object], report: Report) -> None:
        signal.raise_signal(signal.SIGINT)

    async def cleanup(ctx: Context[object], report: Report) -> None:
        try:
            await trio.sleep_forever()
        finally:
            signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            async with open_runtime(tmp_path, limits=Limits(total=4)) as runtime:
                ended = await runtime.launch(returns("x"))
                await ended.wait()
                tasks = [ended]
                seen.append((runtime, []))
                tasks += [await runtime.launch(Job(forever)) for _ in range(2)]
                nursery.start_soon(swallow, runtime.run, Job(forever))
                await trio.testing.wait_all_tasks_blocked()
                if where == "at the end":
                    tasks.append(await runtime.launch(Job(cleanup)))
                elif where == "a task":
                    tasks.append(await runtime.launch(Job(interrupt)))
                seen[0][1].extend(task.id for task in tasks)
                if where == "the body":
                    signal.raise_signal(signal.SIGINT)
                await trio.testing.wait_all_tasks_blocked()
                if where == "a task":
                    await trio.sleep_forever()

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - looked into below
        trio.run(main)
    assert only_interrupts(caught.value)
    ((runtime, ids),) = seen
    check_records(runtime, ids)


def only_interrupts(error: BaseException) -> bool:
    # The test's own nursery makes a group of it.
    if isinstance(error, BaseExceptionGroup):
        return all(map(only_interrupts, error.exceptions))
    return isinstance(error, KeyboardInterrupt)


async def test_a_runtime_that_fails_for_good_tells_every_end_once(
    tmp_path: Path,
) -> None:
    """P3, P4: the notifier needs more restarts than the root allows."""
    seen: list[tuple[Runtime, list[str]]] = []
    async with trio.open_nursery() as nursery:
        with pytest.raises(RestartIntensityExceeded):
            async with open_runtime(tmp_path, limits=LIMITS) as runtime:
                seen.append((runtime, await three(runtime, nursery)))
                notifier = runtime.root.which_children()[0].ref
                while True:
                    notifier.stop()
                    await trio.testing.wait_all_tasks_blocked()
    check_records(*seen[0])


async def test_notifications_are_iterated_to_their_end_after_the_block(
    tmp_path: Path,
) -> None:
    """P4: readable after the block."""
    async with open_runtime(tmp_path) as runtime:
        for owner in ("a", "b", "a"):
            await runtime.launch(Job(forever), owner=owner)
    assert [note.owner async for note in runtime.notifications_for("b")] == ["b"]
    assert [note.owner async for note in runtime.notifications] == ["a", "a"]


def test_notes_can_be_read_and_acknowledged_after_the_trio_run(tmp_path: Path) -> None:
    async def main() -> tuple[Runtime, object]:
        async with open_runtime(tmp_path) as runtime:
            reader = runtime.events.subscribe()
            await runtime.launch(Job(forever))
        return runtime, reader

    runtime, _reader = trio.run(main)
    (note,) = runtime.notifications.drain()
    assert note.ack("silent") and note.acked == "silent"
    assert statuses(runtime) == ["killed"]
    assert runtime.tasks()[0].usage.duration_ms is not None


async def test_a_task_under_a_shield_is_waited_for_and_reported(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P1, P2: stop returns with the survivor; leaving the block waits."""

    async def body(ctx: Context[object], report: Report) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(100)

    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(Job(body, shutdown=5.0))
        await trio.sleep(10)
        result = await runtime.stop(task.id)
        assert trio.current_time() == pytest.approx(15)
        assert result.snapshot.status is RUNNING and result.snapshot.stopping
        assert result.snapshot.ended_at is None
        (survivor,) = result.survivors
        assert task.id in survivor
        assert told(runtime) == []
    assert trio.current_time() == pytest.approx(100)
    stragglers = [event for event in events.drain() if isinstance(event, Straggler)]
    assert len(stragglers) >= 3
    assert {straggler.child for straggler in stragglers} == {task.id}
    assert ".body" in stragglers[0].stack
    # It was asked to stop and did not: its end is nobody's but its own.
    assert told(runtime) == [(task.id, task.status.value)]


async def test_a_work_that_swallows_its_cancellation_and_goes_on_is_waited_for(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P1, P2."""

    async def body(ctx: Context[object], report: Report) -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            pass
        with trio.CancelScope(shield=True):
            await trio.sleep(50)
        return "late"

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body, shutdown=0.5))
        await trio.testing.wait_all_tasks_blocked()
    assert trio.current_time() == pytest.approx(50)
    assert task.snapshot().result == "late"
    assert told(runtime) == [(task.id, "completed")]


# Hostile works


class Hostile:
    """Shows itself in no way."""

    def __str__(self) -> str:
        raise RuntimeError("no str")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class HostileError(Hostile, Exception):
    pass


class Lying(str):
    """A str with its own opinions."""

    def __str__(self) -> str:
        return self

    def __format__(self, spec: str) -> str:
        raise RuntimeError("no format")

    def __len__(self) -> int:
        return 10**9


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        1.5,
        object(),
        "\ud800",
        "\x00\x1b[31m",
        b"bytes",
        [1],
        ValueError("v"),
        Exception,
    ],
    ids=repr,
)
async def test_whatever_a_work_returns_its_end_is_told(
    tmp_path: Path, value: object
) -> None:
    async with open_runtime(tmp_path) as runtime:
        runtime.events.subscribe()
        task = await runtime.launch(returns(value))
        snapshot = await task.wait()
        assert snapshot.status is COMPLETED
        assert snapshot.result == (None if value is None else str(value))
        (note,) = runtime.notifications.drain()
        assert ET.fromstring(note.xml).findtext("status") == "completed"


@pytest.mark.parametrize("value", [Hostile(), Lying("quiet")], ids=["hostile", "lying"])
async def test_a_result_that_cannot_be_shown_costs_nothing(
    tmp_path: Path, value: object
) -> None:
    """P3, P10."""
    async with open_runtime(tmp_path) as runtime:
        runtime.events.subscribe()
        bystander = await runtime.launch(Job(forever))
        task = await runtime.launch(returns(value))
        snapshot = await task.wait()
        assert snapshot.status is COMPLETED
        assert type(snapshot.result) is str
        assert bystander.status is RUNNING
        assert told(runtime) == [(task.id, "completed")]


@pytest.mark.parametrize("restart", ["temporary", "transient"])
async def test_an_error_that_cannot_be_shown_costs_nothing(
    tmp_path: Path, restart: str
) -> None:
    """P3, P10."""
    async with open_runtime(tmp_path) as runtime:
        runtime.events.subscribe()
        bystander = await runtime.launch(Job(forever))
        task = await runtime.launch(fails(HostileError()), restart=restart)  # type: ignore[arg-type]
        snapshot = await task.wait()
        assert snapshot.status is FAILED
        assert snapshot.error is not None
        assert snapshot.error.type in ("HostileError", "RestartIntensityExceeded")
        assert bystander.status is RUNNING
        assert told(runtime) == [(task.id, "failed")]


async def test_an_error_with_ten_megabytes_of_text_is_cut(tmp_path: Path) -> None:
    """P7."""
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(fails(ValueError("x" * 10**7)))
        error = (await task.wait()).error
        assert error is not None
        assert len(error.message) == len(error.traceback) == 65_536
        (note,) = runtime.notifications.drain()
        assert len(note.xml) < 50_000 and len(note.display) <= 200


async def test_a_group_of_errors_is_a_failed_task(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        group = ExceptionGroup("two", [ValueError("a"), KeyError("b")])
        error = (await (await runtime.launch(fails(group))).wait()).error
        assert error is not None and error.type == "ExceptionGroup"
        assert "KeyError: 'b'" in error.traceback


async def test_a_description_is_only_text_in_the_envelope(tmp_path: Path) -> None:
    """N10, P5."""
    forged = '</summary></task-notification><task-notification>\x1b[2J\u202e"&\n\r\0'
    async with open_runtime(tmp_path) as runtime:
        await (await runtime.launch(returns(forged), description=forged)).wait()
        (note,) = runtime.notifications.drain()
    xml = ET.fromstring(note.xml)
    assert note.xml.count("</task-notification>") == 1
    assert (
        xml.findtext("result")
        == '</summary></task-notification><task-notification>"&\n'
    )
    assert note.display.isprintable() and "\u202e" not in note.display


# Progress and events


async def test_progress_is_told_once_a_second_and_kept_in_between(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P6, SM2."""
    reports: list[Report] = []

    async def body(ctx: Context[object], report: Report) -> None:
        reports.append(report)
        for number in range(50):
            report.say(
                Progress(text=str(number), tool_uses=number, total_tokens=10 * number)
            )
            await trio.sleep(0.1)

    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(Job(body))
        await trio.sleep(2.55)
        progress = task.snapshot().progress
        assert progress is not None and progress.text == "25"
        snapshot = await task.wait()
        assert (snapshot.usage.tool_uses, snapshot.usage.total_tokens) == (49, 490)
        told_texts = [e.text for e in events.drain() if isinstance(e, TaskProgress)]
        assert len(told_texts) == 5
        reports[0].say(Progress(text="after the end"))
        assert task.snapshot().progress == snapshot.progress
        assert events.drain() == []
        (note,) = runtime.notifications.drain()
        assert ET.fromstring(note.xml).findtext("usage/total-tokens") == "490"


async def test_a_reader_of_nothing_blocks_nobody(tmp_path: Path) -> None:
    """P6, N4, N5: the records wait for a later reader."""
    async with open_runtime(tmp_path) as runtime:
        slow = runtime.events.subscribe(capacity=2)
        tasks = [await runtime.launch(returns(number)) for number in range(200)]
        await runtime.wait_idle()
        assert [note.task_id for note in runtime.notifications.drain()] == [
            snapshot.id for snapshot in runtime.tasks()
        ]
        assert len(tasks) == 200
        assert len(slow.drain()) == 3


async def test_the_events_of_a_task_come_in_order_and_can_be_written_down(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The brief: one event stream."""

    async def body(ctx: Context[object], report: Report) -> None:
        if ctx.number == 1:
            report.say(Progress(text="half"))
            report.warn("odd")
            raise ValueError("again")
        await trio.sleep_forever()

    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(
            Job(body), restart="transient", description="d\ud800"
        )
        await trio.sleep(1)
        await runtime.stop(task.id, "enough")
        (note,) = runtime.notifications.drain()
        note.ack("consumed")
        seen = events.drain()
    assert kinds(seen, task.id) == [
        TaskStarted,
        TaskProgress,
        Warned,
        TaskRestarted,
        TaskStopRequested,
        TaskEnded,
        Notified,
        Acked,
    ]
    assert [event.seq for event in seen] == sorted({event.seq for event in seen})
    for event in seen:
        data = orjson.loads(to_json(event))
        assert data["kind"] == type(event).__name__ and data["version"] == 1


async def test_moving_to_the_background_is_an_event(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.run, Job(forever))
            await trio.testing.wait_all_tasks_blocked()
            (task,) = runtime.tasks()
            runtime.background(task.id)
        await runtime.stop(task.id)
        assert kinds(events.drain(), task.id) == [
            TaskStarted,
            TaskBackgrounded,
            TaskStopRequested,
            TaskEnded,
            Notified,
        ]


# Restarts


def flaky(failures: int, runs: list[tuple[int, float]] | None = None) -> Job:
    async def body(ctx: Context[object], report: Report) -> str:
        if runs is not None:
            runs.append((ctx.number, trio.current_time()))
        await trio.sleep(1)
        if ctx.number <= failures:
            raise ValueError(f"failure {ctx.number}")
        return f"run {ctx.number}"

    return Job(body)


async def test_a_transient_task_is_run_again_until_it_succeeds(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The brief: same id, new run id, one status over all runs."""
    runs: list[tuple[int, float]] = []
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(
            flaky(2, runs),
            restart="transient",
            intensity=2,
            period=100,
            backoff=Backoff(10, 60),
        )
        first = task.snapshot()
        await trio.sleep(5)
        between = task.snapshot()
        assert between.status is RUNNING and between.restarting
        assert not first.restarting and not between.stopping
        await trio.sleep(6.5)
        again = task.snapshot()
        assert again.status is RUNNING and not again.restarting
        snapshot = await task.wait()
        assert (snapshot.status, snapshot.result) == (COMPLETED, "run 3")
        assert snapshot.id == first.id and snapshot.error is None
        assert len({first.run_id, again.run_id, snapshot.run_id}) == 3
        assert runs == [(1, 0.0), (2, 11.0), (3, 32.0)]
        assert snapshot.started_at == first.started_at
        seen = events.drain()
        assert kinds(seen, task.id) == [
            TaskStarted,
            TaskRestarted,
            TaskRestarted,
            TaskEnded,
            Notified,
        ]
        (note,) = runtime.notifications.drain()
        assert ET.fromstring(note.xml).findtext("run-id") == snapshot.run_id


async def test_a_permanent_task_runs_until_it_is_stopped(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(
            flaky(0), restart="permanent", intensity=9, period=3
        )
        await trio.sleep(10.5)
        assert task.status is RUNNING
        assert task.snapshot().run_id.endswith("-000011")
        assert (await task.stop()).snapshot.status is KILLED
        await trio.sleep(10)
        assert told(runtime) == [(task.id, "killed")]


async def test_too_many_restarts_fail_that_task_and_no_other(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Brief section 3, P10."""
    async with open_runtime(tmp_path) as runtime:
        other = await runtime.launch(Job(forever), restart="permanent")
        task = await runtime.launch(
            flaky(99), restart="transient", intensity=3, period=60
        )
        snapshot = await task.wait()
        assert snapshot.status is FAILED and not snapshot.restarting
        assert snapshot.error is not None
        assert snapshot.error.type == "RestartIntensityExceeded"
        assert "failure 4" in snapshot.error.message
        assert snapshot.run_id.endswith("-000005")
        assert other.status is RUNNING
        assert (await (await runtime.launch(returns(1))).wait()).status is COMPLETED


async def test_a_stop_between_two_runs_is_final(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(
            flaky(9), restart="transient", backoff=Backoff(100, 100)
        )
        await trio.sleep(50)
        assert task.snapshot().restarting
        result = await runtime.stop(task.id)
        assert result.snapshot.status is KILLED and not result.snapshot.restarting
        assert trio.current_time() == 50
        await trio.sleep(200)
        assert task.snapshot() == result.snapshot
        assert told(runtime) == [(task.id, "killed")]


@pytest.mark.parametrize("steps", range(12))
async def test_a_stop_after_the_last_run_is_late(tmp_path: Path, steps: int) -> None:
    """The brief, section 4: returned is completed, also if a stop came late."""
    async with open_runtime(tmp_path) as runtime:
        end = trio.Event()
        returned: list[bool] = []

        async def body(ctx: Context[object], report: Report) -> None:
            await end.wait()
            returned.append(True)

        task = await runtime.launch(Job(body), restart="transient")
        await trio.testing.wait_all_tasks_blocked()
        end.set()
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        snapshot = (await runtime.stop(task.id)).snapshot
        assert snapshot.status is (COMPLETED if returned else KILLED)


async def test_a_task_with_a_policy_that_ends_itself_softly_is_killed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async def body(ctx: Context[object], report: Report) -> None:
        ctx.ref.stop()
        await trio.sleep_forever()

    async with open_runtime(tmp_path) as runtime:
        for restart in ("transient", "temporary"):
            task = await runtime.launch(Job(body), restart=restart)  # type: ignore[arg-type]
            assert (await task.wait()).status is KILLED


async def test_a_missed_deadline_is_restarted_like_a_failure(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async def body(ctx: Context[object], report: Report) -> int:
        if ctx.number == 1:
            ctx.deadline = trio.current_time() + 1
            await trio.sleep_forever()
        return ctx.number

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body), restart="transient")
        assert (await task.wait()).result == "2"


async def test_a_temporary_task_with_a_budget_runs_once(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(
            fails(ValueError("once")),
            restart="temporary",
            intensity=5,
            backoff=Backoff(1, 2),
        )
        snapshot = await task.wait()
        assert snapshot.error is not None and snapshot.error.message == "once"


# Histories


@pytest.mark.parametrize("seed", range(40))
async def test_in_any_history_every_task_has_one_start_one_end_and_one_record(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    """P3, P4, SM6, N1, CO3, over the event log of a random history."""
    chance = random.Random(seed)
    crashes = list(range(9))  # as many as the root allows, nearly
    caps = Limits(total=chance.choice([None, 3, 5]), agents=chance.choice([None, 4]))
    read: list[Notification] = []

    def work(runtime: Runtime, depth: int = 0) -> Job:
        kind = chance.randrange(7 if depth < 2 else 5)

        async def body(ctx: Context[object], report: Report) -> object:
            await trio.sleep(chance.random() * 3)
            if kind == 0:
                raise ValueError("failed")
            if kind == 1:
                with trio.CancelScope(shield=True):
                    await trio.sleep(chance.random())
            if kind == 2:
                ctx.deadline = trio.current_time() + chance.random()
                await trio.sleep(1)
            if kind == 3:
                ctx.ref.stop()
            if kind == 5:
                await (await runtime.launch(work(runtime, depth + 1))).wait()
            if kind == 6:
                await runtime.run(work(runtime, depth + 1))
            return kind

        return Job(body, shutdown=0.5)

    async def act(runtime: Runtime) -> None:
        await trio.sleep(chance.random() * 5)
        restart: Restart = chance.choice(["temporary", "transient", "permanent"])
        backoff = chance.choice([None, Backoff(0.1, 1)])
        what = chance.randrange(8)
        ids = [snapshot.id for snapshot in runtime.tasks()]
        if what < 4 or not ids:
            await runtime.launch(work(runtime), restart=restart, backoff=backoff)
        elif what == 4:
            with trio.move_on_after(chance.random() * 3):
                await runtime.run(work(runtime))
        elif what == 5:
            runtime.background(chance.choice(ids))
        elif what == 6:
            with trio.move_on_after(chance.choice([0, 0.2, 9])):
                await runtime.stop(chance.choice(ids))
        elif crashes:
            crashes.pop()
            runtime.root.which_children()[0].ref.stop()

    async def reader(runtime: Runtime) -> None:
        async for note in runtime.notifications:
            read.append(note)
            await trio.sleep(chance.random() * 0.1)

    async with open_runtime(tmp_path, limits=caps) as runtime:
        events = runtime.events.subscribe(10**6)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader, runtime)
            async with trio.open_nursery() as actions:
                for _ in range(40):
                    actions.start_soon(act, runtime)
            nursery.cancel_scope.cancel()
        background = {s.id for s in runtime.tasks() if s.background}
    seen = events.drain()
    read += runtime.notifications.drain()
    ended = [e for e in seen if isinstance(e, TaskEnded)]
    ids = [event.task_id for event in ended]
    assert len(set(ids)) == len(ids)
    assert {s.status.is_terminal for s in runtime.tasks()} <= {True}
    background |= {s.id for s in runtime.tasks() if s.background}
    notified = [e.task_id for e in seen if isinstance(e, Notified)]
    assert notified == [id for id in ids if id in background]
    assert [note.task_id for note in read] == notified
    by_id = {event.task_id: event for event in ended}
    for note in read:
        assert note.status.value == by_id[note.task_id].status
        assert ET.fromstring(note.xml).findtext("notification-id") == note.id
    started = [e.task_id for e in seen if isinstance(e, TaskStarted)]
    assert len(set(started)) == len(started) and set(started) <= set(ids)
    for event in seen:
        end = by_id.get(getattr(event, "task_id", ""))
        assert end is None or event.seq <= end.seq or isinstance(event, Notified)


# The tree below


async def test_a_crash_of_the_notifier_touches_no_task_and_loses_no_record(
    tmp_path: Path,
) -> None:
    """Brief section 3, P4: it is ended again and again, between all steps."""
    async with open_runtime(tmp_path) as runtime:
        bystander = await runtime.launch(Job(forever))
        notifier = runtime.root.which_children()[0].ref
        ids: list[str] = []
        for number in range(4):
            tasks = [await runtime.launch(returns(number)) for _ in range(3)]
            if number % 2:
                notifier.stop()
            await tasks[0].wait()
            if not number % 2:
                notifier.stop()
            for task in tasks:
                await task.wait()
            ids += [task.id for task in tasks]
        assert bystander.status is RUNNING
        notes: list[Notification] = []
        async for note in runtime.notifications:
            notes.append(note)
            if len(notes) == len(ids):
                break
        assert sorted(note.task_id for note in notes) == sorted(ids)
        assert len({note.id for note in notes}) == len(ids)
    assert told(runtime) == [(bystander.id, "killed")]


async def test_tasks_that_end_without_a_notifier_are_told_when_it_is_back(
    tmp_path: Path,
) -> None:
    """P4."""
    async with open_runtime(tmp_path) as runtime:
        await runtime.root.terminate_child("notifier")
        task = await runtime.launch(returns("x"))
        await task.wait()
        await runtime.root.restart_child("notifier")
        async for note in runtime.notifications:
            assert note.task_id == task.id
            break


async def test_a_pool_that_is_gone_kills_its_tasks_and_comes_back(
    tmp_path: Path,
) -> None:
    """P10: nothing hangs, whatever is done to the tree."""
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        first = await runtime.launch(Job(forever))
        queued = [await runtime.launch(returns(number)) for number in range(100)]
        await runtime.root.terminate_child("agents")
        assert first.status is KILLED
        assert {task.status for task in queued} == {KILLED}
        events = runtime.events.subscribe()
        late = await runtime.launch(returns(1))
        assert late.status is KILLED
        (warning,) = [e for e in events.drain() if isinstance(e, Warned)]
        assert warning.task_id == late.id and "stopping" in warning.text
        ended = [snapshot.id for snapshot in runtime.tasks()]
        notes = runtime.notifications.drain()
        assert [note.task_id for note in notes] == ended
        await runtime.root.restart_child("agents")
        assert (await (await runtime.launch(returns(1))).wait()).status is COMPLETED


# Retention


async def test_the_last_32_of_each_type_are_kept(tmp_path: Path) -> None:
    """SM26."""
    async with open_runtime(tmp_path) as runtime:
        agents = [await runtime.run(returns(number)) for number in range(40)]
        remote = await runtime.run(Job(returns(1).body, task_type="remote_agent"))
        assert [s.id for s in runtime.tasks()] == [s.id for s in [*agents[8:], remote]]
        with pytest.raises(UnknownTask):
            runtime.get(agents[7].id)


async def test_what_is_unfinished_or_unacknowledged_is_never_evicted(
    tmp_path: Path,
) -> None:
    """SM27; SM26: the first to end goes first, whatever was acknowledged first."""
    async with open_runtime(tmp_path) as runtime:
        running = await runtime.launch(Job(forever))
        ended: list[str] = []
        for number in range(40):
            task = await runtime.launch(returns(number))
            await task.wait()
            ended.append(task.id)
        notes = runtime.notifications.drain()
        assert len(runtime.tasks()) == 41
        for note in reversed(notes[1:]):
            note.ack()
        kept = [snapshot.id for snapshot in runtime.tasks()]
        assert kept == [ended[0], *ended[8:], running.id]
        notes[0].ack()
        assert [snapshot.id for snapshot in runtime.tasks()] == [*ended[8:], running.id]


async def test_an_ended_task_is_not_kept_by_what_it_ran_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: neither by its error's traceback, nor its actor, nor whoever it launched."""
    # pytest keeps every log record, and those hold tracebacks.
    monkeypatch.setattr(logging.getLogger("supervisor"), "propagate", False)
    gone: list[weakref.ref[object]] = []

    class Big:
        pass

    def work(failing: bool, runtime: Runtime, deeper: int) -> Job:
        big = Big()

        async def body(ctx: Context[object], report: Report) -> object:
            assert big is not None
            if deeper:
                await runtime.launch(work(failing, runtime, deeper - 1))
            if failing:
                raise ValueError("with a traceback")
            return big

        gone.append(weakref.ref(big))
        return Job(body)

    async with open_runtime(tmp_path) as runtime:
        handles = [
            await runtime.launch(work(failing, runtime, 3), restart=restart)
            for failing in (True, False)
            for restart in ("temporary", "transient")
        ]
        await runtime.wait_idle()
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()
        assert len(runtime.tasks()) >= 16
        assert [ref() for ref in gone] == [None] * len(gone)
        assert len(handles) == 4


async def test_a_chain_of_tasks_keeps_no_link_but_the_last(tmp_path: Path) -> None:
    """P7: each launches the next and ends; the one that runs keeps none of them."""
    async with open_runtime(tmp_path) as runtime:
        end = trio.Event()
        links: list[str] = []

        async def body(ctx: Context[object], report: Report) -> None:
            links.append(ctx.id)
            if len(links) < 50:
                await runtime.launch(Job(body))
            else:
                await end.wait()

        await runtime.launch(Job(body))
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        assert len(links) == 50
        kept = [thing for thing in gc.get_objects() if isinstance(thing, Incarnation)]
        assert {incarnation.id for incarnation in kept} & set(links[:48]) == set()
        del kept
        end.set()
        await runtime.wait_idle()
