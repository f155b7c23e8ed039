"""What may be launched, and when it runs."""

from __future__ import annotations

import re
import shutil
from datetime import timedelta
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from actors import Context
from actors.env import Env, real_env
from actors.shell import Shell
from actors.testing import fake_env
from actors.work import Report
from supervisor.runtime import (
    BacklogFull,
    Limits,
    Notified,
    RuntimeStopping,
    TaskEnded,
    UnknownTask,
    open_runtime,
)
from supervisor.tree import (
    InvalidChildSpec,
    InvalidSupervisorFlags,
    SupervisorError,
)
from tests.supervisor.jobs import (
    COMPLETED,
    FAILED,
    KILLED,
    PENDING,
    RUNNING,
    Job,
    files,
    forever,
    kinds,
    returns,
    statuses,
    told,
    waits_for,
)


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
    async with open_runtime(
        tmp_path, env=fake_env(), limits=Limits(total=1)
    ) as runtime:

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


class NoDescription:
    task_type = "local_agent"
    shutdown = 5.0
    writes_output = False

    async def run(self, ctx: object, report: object) -> None:
        raise AssertionError("never runs")


class NoShutdown(Bad):
    @property
    def shutdown(self) -> float:  # type: ignore[override]
        return self.patience  # type: ignore[attr-defined, no-any-return]


class Unreadable(Bad):
    @property
    def task_type(self) -> str:  # type: ignore[override]
        raise LookupError("no type")


@pytest.mark.parametrize(
    ("work", "arguments", "error", "names"),
    [
        (None, {}, TypeError, "None"),
        ("make test", {}, TypeError, "make test"),
        (
            "make test",
            {},
            TypeError,
            "no task_type.*local_bash, local_agent, remote_agent",
        ),
        (Bad, {}, TypeError, "a work such as Shell.*Bad.*is a class"),
        (
            Bad(task_type="local_cat"),
            {},
            TypeError,
            "Bad.*task_type.*local_bash, local_agent, remote_agent, local_work, not 'local_cat'",
        ),
        (Bad(task_type=["unhashable"]), {}, TypeError, "Bad.*unhashable"),
        (NoDescription(), {}, TypeError, "NoDescription.*has no describe"),
        (NoDescription(), {"description": "x"}, TypeError, "has no describe"),
        (NoShutdown(), {}, TypeError, "NoShutdown.*has no shutdown"),
        (Bad(run=None), {}, TypeError, "Bad.*run is not a method"),
        (Bad(describe="words"), {}, TypeError, "Bad.*describe is not a method"),
        (Bad(shutdown=float("nan")), {}, TypeError, "nan"),
        (Bad(shutdown=-1), {}, TypeError, "-1"),
        (Bad(shutdown="soon"), {}, TypeError, "soon"),
        (Bad(described=7), {}, TypeError, "7"),
        (Bad(described=LookupError("no words")), {}, LookupError, "no words"),
        (Unreadable(), {}, LookupError, "no type"),
        (Bad(), {"description": 5}, TypeError, "description.*5"),
        (Bad(), {"owner": b"main"}, TypeError, "owner.*main"),
        (Bad(), {"tool_use_id": object}, TypeError, "tool_use_id.*object"),
        (Bad(), {"restart": "always"}, InvalidChildSpec, "^restart.*always"),
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
        with pytest.raises(TypeError, match=r"a work such as Shell.*Shell\('ls'\)$"):
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
        for unknown in ("s00000000", ""):
            with pytest.raises(UnknownTask, match=task.id):
                runtime.get(unknown)
        for wrong in (None, 7, []):
            with pytest.raises(TypeError, match="expected a TaskHandle or a task id"):
                runtime.get(wrong)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="expected a TaskHandle or a task id"):
                await runtime.stop(wrong)  # type: ignore[arg-type]
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
    with pytest.raises(RuntimeStopping, match="has ended"):
        await runtime.launch(Shell("true"))
    with pytest.raises(RuntimeStopping, match="has ended"):
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
        shutil.rmtree(directory)
        task = await runtime.launch(Shell("true"), description="too late")
        assert task.status is FAILED
        snapshot = await task.wait()
        assert snapshot.error is not None
        assert snapshot.error.type == "FileNotFoundError"
        assert snapshot.output_file is None
        assert (await runtime.run(Shell("true"))).status is FAILED
        assert told(runtime) == [(task.id, "failed")]
        assert kinds(events.drain(), task.id) == [TaskEnded, Notified]


async def test_a_work_of_the_hosts_own_is_of_a_kind_of_its_own(tmp_path: Path) -> None:
    """It is neither a command nor an agent, and takes the place of none."""
    limits = Limits(shells=1, agents=1, total=4)
    async with open_runtime(tmp_path, limits=limits) as runtime:
        running = [
            await runtime.launch(Job(forever, task_type="local_work")) for _ in range(3)
        ]
        agent = await runtime.launch(Job(forever))
        late = await runtime.launch(Job(forever, task_type="local_work"))
        for task in (*running, agent):
            assert task.status is RUNNING
        assert late.status is PENDING  # There is no place at all.
        assert re.fullmatch("w[0-9a-f]{8}", late.id)
        assert (await running[0].stop()).snapshot.type == "local_work"
        (note,) = runtime.notifications.drain()
        assert "<task-type>local_work</task-type>" in note.xml
        assert note.display == 'Task "a job" was stopped'
