"""Wakes of a whole runtime: real tasks, tools and hosts."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from contextvars import ContextVar
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from actors import Context, Progress, TaskStatus
from actors.agent import Agent, AgentContext, AgentEvent, FinalResult
from actors.shell import Shell
from actors.testing import fake_env
from actors.work import Report
from supervisor.lowlevel import life_of
from supervisor.runtime import (
    DisplayItem,
    Limits,
    Notification,
    Notified,
    Runtime,
    Wake,
    Wakes,
    Warned,
    open_runtime,
)
from tests.supervisor.jobs import Job, fails, forever, returns, waits_for

CONTEXT: ContextVar[str] = ContextVar("CONTEXT", default="nobody's")


async def next_of(wakes: Wakes) -> Wake:
    with trio.fail_after(30):
        return await anext(wakes)


async def hear(wakes: Wakes) -> list[Notification]:
    """Take one wake, whose turn leads to something."""
    wake = await next_of(wakes)
    async with wake as turn:
        turn.progressed()
    return [*wake.notes]


# What wakes


async def test_tasks_that_end_while_the_parent_is_busy_are_one_wake(
    tmp_path: Path,
) -> None:
    """N29, N30, N31: however each has ended."""
    async with open_runtime(tmp_path) as runtime:
        wakes = runtime.wakes("main")
        async with runtime.turn("main"):
            works = [returns("x"), fails(ValueError("y")), returns("z")]
            tasks = [await runtime.launch(work, owner="main") for work in works]
            await runtime.wait_idle()
        wake = await next_of(wakes)
        async with wake as turn:
            assert runtime.is_busy("main")
            turn.progressed()
        assert not runtime.is_busy("main")
        told = ET.fromstring(wake.text).findall("task-notification")
        assert [e.findtext("task-id") for e in told] == [n.task_id for n in wake.notes]
        assert {n.task_id for n in wake.notes} == {task.id for task in tasks}
        assert "3 background tasks have ended." in wake.text


async def test_a_task_moved_to_the_background_wakes_its_parent(tmp_path: Path) -> None:
    """N44: Ctrl+B keeps the notification."""
    async with open_runtime(tmp_path) as runtime:
        end = trio.Event()
        async with runtime.turn("main"), trio.open_nursery() as nursery:
            nursery.start_soon(lambda: runtime.run(waits_for(end), owner="main"))
            await trio.testing.wait_all_tasks_blocked()
            (moved,) = runtime.background_all("main")
        end.set()
        (note,) = await hear(runtime.wakes("main"))
        assert note.task_id == moved


async def test_silent_tasks_leave_the_parent_idle(tmp_path: Path) -> None:
    """N40: no wake, and nothing that is busy."""
    async with open_runtime(tmp_path) as runtime:
        wakes = runtime.wakes("main")
        for _ in range(3):
            await runtime.launch(returns("x"), owner="main", notify="silent")
        await runtime.wait_idle()
        with trio.move_on_after(0) as scope:
            await trio.testing.wait_all_tasks_blocked()
            await anext(wakes)
        assert scope.cancelled_caught and not runtime.is_busy("main")
    with pytest.raises(StopAsyncIteration):
        await next_of(wakes)


async def test_a_task_without_a_description_is_told_by_its_id(tmp_path: Path) -> None:
    """N41."""

    class Nameless(Job):
        def describe(self) -> str:
            return ""

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Nameless(returns("x").body))
        (note,) = await hear(runtime.wakes())
        assert note.display == f'Agent "{task.id}" completed'
        assert f"Agent &quot;{task.id}&quot; completed" in note.xml


async def test_a_wake_is_made_and_told_outside_the_context_of_the_task(
    tmp_path: Path,
) -> None:
    """N27: a turn that follows the end of an agent runs with the parent's model."""
    rendered_in: list[str] = []

    class Spy(int):
        def __int__(self) -> int:
            rendered_in.append(CONTEXT.get())
            return 0

    async def body(ctx: Context[object], report: Report) -> None:
        await trio.lowlevel.checkpoint()
        CONTEXT.set("the agent's")
        report.progress = Progress(total_tokens=Spy())

    CONTEXT.set("the runtime's")
    told_in: list[str] = []

    async def parent(runtime: Runtime) -> None:
        CONTEXT.set("the parent's")
        for _ in range(2):
            async with await next_of(runtime.wakes("main")) as turn:
                told_in.append(CONTEXT.get())
                turn.progressed()

    async with open_runtime(tmp_path) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parent, runtime)
            for _ in range(2):
                await trio.testing.wait_all_tasks_blocked()
                await runtime.launch(Job(body), owner="main")
    assert told_in == ["the parent's"] * 2
    assert rendered_in and "the agent's" not in rendered_in


async def test_a_turn_that_hangs_holds_up_no_task(tmp_path: Path) -> None:
    """N39: the place of the task that is told was free before."""
    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        first = await runtime.launch(returns("x"), owner="main")
        async with await next_of(runtime.wakes("main")) as turn:
            later = [await runtime.launch(returns(n), owner="main") for n in range(3)]
            with trio.fail_after(30):
                await runtime.wait_all(later)
            turn.progressed()
        assert first.status is TaskStatus.COMPLETED
        assert len(await hear(runtime.wakes("main"))) == 3


async def test_nobody_needs_to_be_woken_to_know_the_state(tmp_path: Path) -> None:
    """N49: asking tells the same, also before the wake begins."""
    async with open_runtime(tmp_path) as runtime:
        async with runtime.turn():
            task = await runtime.launch(returns("x"))
            snapshot = await task.wait()
            assert runtime.get(task.id) == snapshot
        assert [n.task_id for n in await hear(runtime.wakes())] == [task.id]
        assert runtime.get(task.id) == attrs.evolve(snapshot, notified=True)


async def test_the_second_wake_for_nothing_is_told_as_a_warning(tmp_path: Path) -> None:
    """N35, N36: by an event that names the notification and the task."""
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(returns("x"))
        wakes = runtime.wakes()
        async with await next_of(wakes):
            pass
        again = await next_of(wakes)
        async with again:
            pass
        (warning,) = [e.text for e in events.drain() if isinstance(e, Warned)]
        assert task.id in warning and again.notes[0].id in warning
        await runtime.launch(returns("y"))
        assert len(await hear(wakes)) == 1


async def test_a_wake_under_way_when_the_runtime_ends_is_offered_to_the_next(
    tmp_path: Path,
) -> None:
    """P4: the block around both is cancelled; nothing is lost."""
    opened: list[Runtime] = []
    with trio.CancelScope() as scope:
        async with open_runtime(tmp_path) as runtime:
            opened.append(runtime)
            await runtime.launch(returns("x"))
            async with await next_of(runtime.wakes()):
                scope.cancel()
                await trio.sleep_forever()
    assert [wake async for wake in opened[0].wakes()] == []
    wakes = opened[0].wakes(after_end=True)
    assert [note.status for note in await hear(wakes)] == [TaskStatus.COMPLETED]
    with pytest.raises(StopAsyncIteration):
        await next_of(wakes)


@pytest.mark.parametrize("how", ["leave", "cancel", "fail"])
@pytest.mark.parametrize("after_end", [False, True])
async def test_a_wake_for_the_end_of_the_runtime_must_be_asked_for(
    tmp_path: Path, how: str, after_end: bool
) -> None:
    """P4, N29: no model is asked because its tasks were stopped by that, nor because
    of what had ended just before; all of it stays readable."""
    asked: list[str] = []
    ended = False

    async def host(wakes: Wakes) -> None:
        nonlocal ended
        async for wake in wakes:
            async with wake as turn:
                asked.extend(note.status.value for note in wake.notes)
                turn.progressed()
        ended = True

    opened: list[Runtime] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            try:
                with trio.CancelScope() as scope:
                    async with open_runtime(tmp_path, env=fake_env()) as runtime:
                        opened.append(runtime)
                        wakes = runtime.wakes("main", after_end=after_end)
                        nursery.start_soon(host, wakes)
                        await (await runtime.launch(returns(1), owner="main")).wait()
                        await trio.testing.wait_all_tasks_blocked()
                        for _ in range(3):
                            await runtime.launch(Job(forever), owner="main")
                        async with runtime.turn("main"):
                            late = await runtime.launch(returns(2), owner="main")
                            await late.wait()
                            await trio.testing.wait_all_tasks_blocked()
                            if how == "cancel":
                                scope.cancel()
                            if how == "fail":
                                raise ZeroDivisionError
            except ZeroDivisionError:
                assert how == "fail"
            await trio.testing.wait_all_tasks_blocked()
            assert ended
    left = [note.status.value for note in opened[0].notifications.drain()]
    at_end = ["completed", "killed", "killed", "killed"]
    assert asked == ["completed", *(at_end if after_end else [])]
    assert left == ([] if after_end else at_end)
    with pytest.raises(TypeError, match="after_end"):
        opened[0].wakes("main", after_end=1)  # type: ignore[arg-type]


# What the parent has read in another way


async def test_what_a_tool_has_read_wakes_nobody(tmp_path: Path) -> None:
    """N32: neither before the wake nor after one that led to nothing."""
    async with open_runtime(tmp_path) as runtime:
        tools = {tool.name: tool for tool in runtime.tools_for("main")}
        wakes = runtime.wakes("main")
        async with runtime.turn("main"):
            tasks = [await runtime.launch(returns(n), owner="main") for n in range(3)]
            await runtime.wait_idle()
            read = await tools["TaskOutput"].call({"task_id": tasks[0].id})
            assert not read.is_error
        async with await next_of(wakes):
            # It reads what it is being told, and then fails.
            await tools["TaskOutput"].call({"task_id": tasks[1].id})
        assert [note.task_id for note in await hear(wakes)] == [tasks[2].id]
        assert not runtime.notifications.unacknowledged()


# Progress


def says(*steps: Progress, end: trio.Event) -> Job:
    """A work whose progress is as the test says."""

    async def body(ctx: Context[object], report: Report) -> None:
        for step in steps:
            report.say(step)
        await end.wait()

    return Job(body)


@pytest.mark.parametrize("durable", [False, True])
async def test_progress_tells_what_is_new_since_the_last_note(
    tmp_path: Path, durable: bool
) -> None:
    """N48: and nothing new is no note. Also while the journal writes aside."""
    async with open_runtime(tmp_path, durable=durable) as runtime:
        reports: list[Report] = []

        async def body(ctx: Context[object], report: Report) -> None:
            reports.append(report)
            await trio.sleep_forever()

        task = await runtime.launch(Job(body), owner="main")
        await trio.testing.wait_all_tasks_blocked()
        wakes = runtime.wakes("main")

        async def note_of(used: Progress) -> str:
            reports[0].say(used)
            assert runtime.tell_progress(task, notify="wake")
            (note,) = await hear(wakes)
            assert note.kind == "progress" and note.status is TaskStatus.RUNNING
            text = ET.fromstring(note.xml).findtext("summary")
            assert text is not None and note.display == text
            return text

        assert not runtime.tell_progress(task)
        told = await note_of(Progress("a", tool_uses=2, total_tokens=1500))
        assert told.startswith(
            f"Agent {task.id} progress: 2 new tools used, 1500 new tokens. "
        )
        assert not runtime.tell_progress(task)
        told = await note_of(Progress("b", tool_uses=3, total_tokens=1500))
        assert told.startswith(f"Agent {task.id} progress: 1 new tool used. ")
        assert "You will receive a notification when the agent is done." in told


async def test_progress_that_waits_grows_and_is_one_note(tmp_path: Path) -> None:
    """N48, P6: it is conflated while nobody takes it, and wakes nobody by default."""
    async with open_runtime(tmp_path) as runtime:
        end = trio.Event()
        task = await runtime.launch(says(Progress(tool_uses=1), end=end))
        other = await runtime.launch(says(Progress(tool_uses=1), end=trio.Event()))
        await trio.testing.wait_all_tasks_blocked()
        assert runtime.tell_progress(other) and runtime.tell_progress(task)
        assert not runtime.tell_progress(other.id)
        end.set()
        await task.wait()
        # The end supersedes the progress, and brings that of the other.
        notes = await hear(runtime.wakes())
        assert [(n.task_id, n.kind) for n in notes] == [
            (other.id, "progress"),
            (task.id, "task"),
        ]
        item = DisplayItem.of(notes[0])
        assert (item.kind, item.pulse) == ("progress", True)


async def test_only_running_background_tasks_have_progress_to_tell(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        ended = await runtime.launch(returns("x"))
        await ended.wait()
        assert not runtime.tell_progress(ended)
        assert not runtime.tell_progress("s00000000")
        silent = await runtime.launch(Job(forever))
        assert not runtime.tell_progress(silent)
        with pytest.raises(
            ValueError, match="notify must be one of wake, defer, not 'silent'"
        ):
            runtime.tell_progress(silent, notify="silent")
        kinds = [event.what for event in events.drain() if isinstance(event, Notified)]
        assert kinds == ["task"]


async def test_progress_that_makes_no_sense_is_a_warning(tmp_path: Path) -> None:
    """A work may have written anything into its report."""
    async with open_runtime(tmp_path) as runtime:

        async def body(ctx: Context[object], report: Report) -> None:
            report.progress = Progress(tool_uses="many")  # type: ignore[arg-type]
            await trio.sleep_forever()

        task = await runtime.launch(Job(body))
        await trio.testing.wait_all_tasks_blocked()
        events = runtime.events.subscribe()
        assert not runtime.tell_progress(task)
        (event,) = [e for e in events.drain() if isinstance(e, Warned)]
        assert event.task_id == task.id


# A real host with real shells


async def test_a_host_with_real_shells_hears_of_each_once(tmp_path: Path) -> None:
    """N29 to N32, P4: a user who types, commands that end now and then, a model that
    sometimes says nothing; each end is in the history once or, after a turn that said
    nothing, twice."""
    told: dict[str, int] = {}
    talking = 0
    launched: list[str] = []

    async def model(text: str) -> str:
        nonlocal talking
        assert not talking, "two turns at once"
        talking += 1
        await trio.sleep(0.01)
        talking -= 1
        return "" if len(told) == 3 else "Noted."

    async def user(runtime: Runtime) -> None:
        for number in range(6):
            async with runtime.turn("main") as turn:
                await model("do something")
                command = f"sleep 0.{number % 3}; echo {number}"
                task = await runtime.launch(Shell(command), owner="main")
                launched.append(task.id)
                for note in turn.take():
                    told[note.task_id] = told.get(note.task_id, 0) + 1
                turn.progressed()
            await trio.sleep(0.02)
        await runtime.wait_idle()

    async def host(wakes: Wakes) -> None:
        async for wake in wakes:
            async with wake as turn:
                for note in wake.notes:
                    told[note.task_id] = told.get(note.task_id, 0) + 1
                if await model(wake.text):
                    turn.progressed()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            async with open_runtime(tmp_path) as runtime:
                wakes = runtime.wakes("main", after_end=True)
                others = runtime.wakes("main", after_end=True)
                nursery.start_soon(host, wakes)
                nursery.start_soon(host, others)
                await user(runtime)
    assert told.keys() == set(launched)
    assert set(told.values()) <= {1, 2}
    assert runtime.notifications.drain() == []
    assert runtime.notifications.unacknowledged() == []


# An agent that runs is a parent, too


async def test_what_is_for_an_agent_that_runs_goes_into_its_inbox(
    tmp_path: Path,
) -> None:
    """N42: progress, prompts and ends alike, and nobody is woken for them; each says
    that it approves nothing."""
    got: list[str] = []
    end = trio.Event()

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await context.launch(says(Progress(tool_uses=3), end=end))
        for _ in range(2):
            await context.inbox.wait()
            got.extend(message.text for message in context.inbox.take())
        yield FinalResult("both")

    with trio.fail_after(30):
        async with open_runtime(tmp_path, env=fake_env()) as runtime:
            agent = await runtime.launch(Agent(run, "x"), owner="main")
            await trio.testing.wait_all_tasks_blocked()
            (own,) = [task for task in runtime.tasks() if task.parent == agent.id]
            await trio.testing.wait_all_tasks_blocked()
            assert runtime.tell_progress(own.id)
            await trio.testing.wait_all_tasks_blocked()
            end.set()
            assert (await agent.wait()).status is TaskStatus.COMPLETED
            assert [n.task_id for n in await hear(runtime.wakes("main"))] == [agent.id]
            assert runtime.notifications.drain() == []
            assert life_of(runtime).delivery.outbox.unacknowledged == 0
    assert got[0].startswith("<task-progress>") and "3 new tools used" in got[0]
    assert got[1].startswith("<task-notification>") and len(got) == 2
    assert all("approves nothing" in text for text in got)
