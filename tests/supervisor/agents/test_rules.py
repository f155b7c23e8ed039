"""Rules about agents that are about no single part: each with a real runtime."""

# A block that may end early leaves its names unbound.
# pyright: reportPossiblyUnboundVariable=false
from __future__ import annotations

import errno
import os
import threading
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    Budget,
    CompactBoundary,
    FinalResult,
    Message,
    Note,
    TextDelta,
    TokensUsed,
    ToolCompleted,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from actors.env import real_env
from actors.shell import Shell
from actors.testing import fake_env
from supervisor.agents import AgentPolicy
from supervisor.hooks import Hook, Hooks
from supervisor.lowlevel import life_of
from supervisor.permissions import Permissions
from supervisor.runtime import (
    ApprovalRequested,
    Limits,
    Notified,
    Runtime,
    TaskBackgrounded,
    TaskEnded,
    TaskHandle,
    TaskStarted,
    TaskStopRequested,
    Warned,
    open_runtime,
)
from supervisor.tree import StopRequested
from tests.supervisor.jobs import (
    COMPLETED,
    FAILED,
    KILLED,
    PENDING,
    RUNNING,
    Job,
    agent,
    answers,
    forever,
    holds,
    idles,
    kinds,
    returns,
    starts,
    told,
)

TOO_LONG = 60.0


async def breaks(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield AssistantMessage("begun")
    raise ValueError("broken")


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


# What an agent is


async def test_what_an_agent_says_is_heard_and_only_its_messages_are_kept(
    tmp_path: Path,
) -> None:
    """AG2, TR1: deltas, calls and notes reach whoever listens, and no file."""
    go_on = trio.Event()
    kept: list[Message] = []
    said = [
        AssistantMessage("looking", (ToolUse("1", "Look"),)),
        CompactBoundary("all that was"),
        TextDelta("I s"),
        ToolStarted("1", "Look"),
        Note("a step"),
        TokensUsed(input_tokens=3),
        ToolCompleted("1", "Look"),
        AssistantMessage("I see"),
    ]

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await go_on.wait()
        for event in said:
            yield event
        kept.extend(context.history)
        yield FinalResult("I see")

    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(agent(loop, "go"))
            events = task.events()
            go_on.set()
            heard = [event async for event in events]
            await task.wait()
            lines = runtime.transcripts.transcript_file(task.id).read_text()
    assert heard[-len(said) - 1 :] == [*said, FinalResult("I see")]
    assert kept == [said[1], said[-1]]
    assert lines.count("\n") == 4
    assert "a step" not in lines and 'I s"' not in lines


async def test_the_depth_counts_from_the_parent_for_own_agents_and_forks(
    tmp_path: Path,
) -> None:
    """AG6: also for an agent that is resumed."""
    depths: dict[str, int] = {}

    async def look(context: AgentContext) -> AsyncIterator[AgentEvent]:
        depths[context.prompt] = context.depth
        yield FinalResult("done")

    async def middle(context: AgentContext) -> AsyncIterator[AgentEvent]:
        depths["middle"] = context.depth
        yield AssistantMessage("I know")
        await context.run(agent(look, "own"))
        await context.run(context.fork("fork", run=look))
        yield FinalResult("done")

    async def top(context: AgentContext) -> AsyncIterator[AgentEvent]:
        depths["top"] = context.depth
        await context.run(agent(middle))
        yield FinalResult("done")

    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            await (await runtime.launch(agent(top))).wait()
            assert depths == {"top": 0, "middle": 1, "own": 2, "fork": 2}
            (lowest, *_) = [t for t in runtime.tasks() if t.depth == 2]
            depths.clear()
            await (await runtime.resume(lowest.id)).wait()
            assert list(depths.values()) == [2]


# Its states


async def test_an_agent_works_waits_for_input_works_and_has_ended(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """SM35, HK8: from an end nothing leads on; the question and the end are told."""
    seen: list[tuple[str, str | None]] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("at work")
        await trio.sleep(1)
        yield await context.use_tools([ToolUse("1", "Bash", {"command": "make"})])
        await trio.sleep(1)
        yield FinalResult("done")

    env = fake_env({"make": "made\n"})
    policy = AgentPolicy(permissions=Permissions(mode="bubble"))
    async with open_runtime(tmp_path, env=env, agents=policy) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(agent(loop))

        def look() -> None:
            now = task.snapshot()
            seen.append((now.status.value, now.waiting))

        await settle()
        look()
        await trio.sleep(100)
        look()
        (approval,) = runtime.approvals.pending()
        runtime.approvals.answer(approval.id, True)
        await trio.sleep(0.5)
        look()
        await task.wait()
        look()
        assert not runtime.approvals.answer(approval.id, False)
        await task.stop()
        look()
        await settle()
        kept = kinds(events.drain(), task.id)
    assert seen == [
        ("running", None),
        ("running", "approval"),
        ("running", None),
        ("completed", None),
        ("completed", None),
    ]
    wanted = [TaskStarted, ApprovalRequested, TaskEnded, Notified]
    assert [kind for kind in kept if kind in wanted] == wanted


@pytest.mark.parametrize(
    ("loop", "status"), [(answers, COMPLETED), (breaks, FAILED), (idles, KILLED)]
)
async def test_a_stop_of_an_agent_that_has_ended_is_acknowledged_with_its_end(
    tmp_path: Path, loop: Any, status: object
) -> None:
    """SM36, SM39: whichever of the three ends it was; and what has ended is told,
    and cleared, once."""
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(agent(loop))
            await settle()
            if status is KILLED:
                await task.stop()
            ended = await task.wait()
            assert ended.status is status
            for _ in range(2):
                again = await task.stop("again")
                assert (again.snapshot, again.stopped, again.survivors) == (
                    *(ended, (), ()),
                )
            (note,) = runtime.notifications.drain()
            assert (note.task_id, note.status) == (task.id, status)
            # By either way of clearing it, and not by the other as well.
            assert note.ack()
            assert not note.ack()
            assert not runtime.consume(task)
            assert task.snapshot() == attrs.evolve(ended, notified=True)
            assert life_of(runtime).delivery.outbox.unacknowledged == 0


async def test_an_owner_that_goes_away_takes_all_that_was_its_own_along(
    tmp_path: Path,
) -> None:
    """SM33: with what is below, each with the reason; they are kept to be read."""
    handles: list[TaskHandle] = []
    below = agent(starts(Job(forever), then=idles, started=handles))
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            handles.append(
                await runtime.launch(
                    agent(starts(below, then=idles, started=handles)), owner="session"
                )
            )
            other = await runtime.launch(agent(idles), owner="another")
            while len(handles) < 3:
                await settle()
            events = runtime.events.subscribe()
            (result,) = await runtime.stop_all("session", "the session was deleted")
            asked = [e for e in events.drain() if isinstance(e, TaskStopRequested)]
            assert {event.task_id for event in asked} == {t.id for t in handles}
            for event in asked:
                assert event.reason is not None
                assert event.reason.endswith("the session was deleted")
            assert sorted(result.stopped) == sorted(
                task.id for task in handles if task.id != result.snapshot.id
            )
            for task in handles:
                assert runtime.get(task.id).status is KILLED
            assert other.status is RUNNING
            assert told(runtime) == [(result.snapshot.id, "killed")]


# Places


async def test_the_foreground_counts_and_what_has_ended_or_is_unfinished_does_not(
    tmp_path: Path,
) -> None:
    """CO3."""
    go_on = trio.Event()
    limits = Limits(agents=1)
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path, limits=limits) as runtime:
            left = await runtime.launch(agent(idles))
            await settle()
        async with open_runtime(tmp_path, limits=limits) as runtime:
            assert [m.agent_id for m in runtime.unfinished_agents()] == [left.id]
            ended = await runtime.launch(agent())
            assert (await ended.wait()).status is COMPLETED
            async with trio.open_nursery() as nursery:
                foreground = await nursery.start(runtime.run, agent(holds(go_on)))
                background = await runtime.launch(agent())
                await settle()
                assert foreground.status is RUNNING
                assert background.status is PENDING
                go_on.set()
            assert (await background.wait()).status is COMPLETED


@pytest.mark.parametrize("how", ["resume", "send"])
async def test_an_agent_that_goes_on_at_the_cap_waits_for_its_place(
    tmp_path: Path, how: str
) -> None:
    """TR12: it is neither refused nor left as it was."""
    go_on = trio.Event()

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        said = [m.text for m in context.history if isinstance(m, UserMessage)]
        yield FinalResult(" / ".join(said))

    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path, limits=Limits(agents=1)) as runtime:
            task = await runtime.launch(agent(loop, "go"))
            await task.wait()
            busy = await runtime.launch(agent(holds(go_on)))
            if how == "resume":
                again = await runtime.resume(task, "more")
            else:
                assert (await runtime.send(task, "more")).how == "revived"
                again = runtime.handle(task.id)
            await settle()
            assert (busy.status, again.status) == (RUNNING, PENDING)
            go_on.set()
            done = await again.wait()
    assert (done.status, done.result) == (COMPLETED, "go / more")


# Files that cannot be written


async def test_an_agent_goes_on_where_nothing_can_be_recorded(tmp_path: Path) -> None:
    """TR2, BG8, OF10: neither link nor transcript nor meta; people are warned, of
    each once, and the agent ends as it would have."""

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for number in range(20):
            yield AssistantMessage(f"message {number}")
            await trio.lowlevel.checkpoint()
        yield FinalResult("done")

    env = fake_env()
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path, env=env) as runtime:
            events = runtime.events.subscribe()
            env.files.write_error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            async with trio.open_nursery() as nursery:
                task = await nursery.start(runtime.run, agent(loop))
                assert runtime.background(task)
            done = await task.wait()
            assert (done.status, done.result) == (COMPLETED, "done")
            assert told(runtime) == [(task.id, "completed")]
            warned = [
                event.text
                for event in events.drain()
                if isinstance(event, Warned) and event.task_id == task.id
            ]
            for what in ("output is not a link", "transcript could not", "meta could"):
                assert len([text for text in warned if what in text]) == 1, warned
            env.files.write_error = None


async def test_a_moved_agent_goes_on_writing_into_the_file_that_its_caller_got(
    tmp_path: Path,
) -> None:
    """BG8."""
    go_on, there = trio.Event(), trio.Event()

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("before the move")
        there.set()
        await go_on.wait()
        yield AssistantMessage("after the move")
        yield FinalResult("done")

    moved: list[Path | None] = []
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:

            async def run(*, task_status: trio.TaskStatus[TaskHandle]) -> None:
                now = await runtime.run(agent(loop), task_status=task_status)
                moved.append(now.output_file)

            async with trio.open_nursery() as nursery:
                task = await nursery.start(run)
                await there.wait()
                assert runtime.background(task)
            (file,) = moved
            assert file is not None
            go_on.set()
            await task.wait()
            text = file.read_text()
    assert text.index("before the move") < text.index("after the move")


# Going on


async def test_a_notification_that_an_agent_has_read_comes_back_as_one(
    tmp_path: Path,
) -> None:
    """TR16: in another runtime too, and not as the words of a person."""
    origins: list[list[str]] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        origins.append(
            [m.origin for m in context.history if isinstance(m, UserMessage)]
        )
        if len(origins) == 1:
            await context.launch(returns("found it"))
            yield FinalResult("so far")
            context.inbox.take()
        yield FinalResult("all")

    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(agent(loop))
            assert (await task.wait()).result == "all"
        async with open_runtime(tmp_path, agents=AgentPolicy(run=loop)) as runtime:
            await (await runtime.resume(task.id, "and now?")).wait()
            transcript = await runtime.transcripts.load(task.id)
    assert origins == [["prompt"], ["prompt", "notification", "message"]]
    assert transcript is not None
    (note,) = [
        m
        for m in transcript.messages
        if isinstance(m, UserMessage) and m.origin == "notification"
    ]
    assert "found it" in note.text
    assert note.display == 'Agent "a job" completed'


async def test_agents_of_an_earlier_program_are_listed_until_somebody_decides(
    tmp_path: Path,
) -> None:
    """TR17: for whoever asks; no event, no task and no notification tells of them."""
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            tasks = [await runtime.launch(agent(idles)) for _ in range(3)]
            await settle()
        for note in runtime.notifications.drain():
            note.ack()
        left = {task.id for task in tasks}
        policy = AgentPolicy(run=answers)
        async with open_runtime(tmp_path, agents=policy) as runtime:
            events = runtime.events.subscribe()
            for _ in range(2):
                listed = {meta.agent_id for meta in runtime.unfinished_agents()}
                assert listed == left
            assert runtime.tasks() == [] and runtime.notifications.drain() == []
            assert [e for e in events.drain() if isinstance(e, Warned)] == []
            one, other, third = left
            await (await runtime.resume(one)).wait()
            assert runtime.abandon_agent(other)
            assert [m.agent_id for m in runtime.unfinished_agents()] == [third]


# Hooks


class Facts:
    """A hook that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Mapping[str, Any]] = []

    async def __call__(self, told: Mapping[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        self.told.append(told)


async def test_a_stop_hook_is_told_which_tasks_of_the_agent_still_run(
    tmp_path: Path,
) -> None:
    """HK7: those of a killed agent; one that completes has none any more."""
    hook = Facts()
    policy = AgentPolicy(hooks=Hooks(stop=[Hook(hook)]))
    handles: list[TaskHandle] = []
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path, agents=policy) as runtime:
            task = await runtime.launch(
                agent(starts(Job(forever), then=idles, started=handles))
            )
            await settle()
            await task.stop()
            done = await runtime.launch(agent(starts(returns(1))))
            await done.wait()
    first, second = hook.told
    assert (first["agent_id"], second["agent_id"]) == (task.id, done.id)
    (listed,) = first["background_tasks"]
    assert (listed["id"], listed["description"]) == (handles[0].id, "a job")
    assert second["background_tasks"] == []


async def test_tool_hooks_are_asked_for_agents_alone_and_told_which(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """HK9: the tools of a host have none."""
    hook = Facts()
    use = ToolUse("1", "Bash", {"command": "make"})

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield await context.use_tools([use])
        yield FinalResult("done")

    env = fake_env({"make": "made\n"})
    policy = AgentPolicy(hooks=Hooks(permission_request=[Hook(hook)]))
    async with open_runtime(tmp_path, env=env, agents=policy) as runtime:
        tools = {tool.name: tool for tool in runtime.tools_for("main")}
        answer = await tools["Bash"].call(use.input)
        assert not answer.is_error and hook.told == []
        task = await runtime.launch(agent(loop))
        await task.wait()
    (asked,) = hook.told
    assert asked["hook_event_name"] == "PermissionRequest"
    assert (asked["agent_id"], asked["tool_use_id"]) == (task.id, "1")


# What programs are told


@pytest.mark.parametrize("how", ["completes", "fails", "is stopped", "is left"])
async def test_each_start_that_is_told_has_one_end(how: str, tmp_path: Path) -> None:
    """HL1, HL2, HL4: started, then what it says, then its end, and then its record;
    in the foreground as well, but without a record."""
    loop = {"completes": answers, "fails": breaks}.get(how, idles)
    with trio.fail_after(TOO_LONG):
        async with trio.open_nursery() as nursery:
            async with open_runtime(tmp_path) as runtime:
                events = runtime.events.subscribe()
                task = await runtime.launch(agent(starts(Job(forever), then=loop)))
                foreground: TaskHandle = await nursery.start(runtime.run, agent(loop))
                await settle()
                for own in [t for t in runtime.tasks() if t.parent == task.id]:
                    if how == "completes":
                        await runtime.stop(own.id)
                if how == "is stopped":
                    await task.stop()
                    await foreground.stop()
                if how != "is left":
                    await task.wait()
    seen = events.drain()
    for one in runtime.tasks():
        told = [
            kind
            for kind in kinds(seen, one.id)
            if kind in (TaskStarted, TaskEnded, Notified)
        ]
        record = [Notified] if one.background else []
        assert told == [TaskStarted, TaskEnded, *record]
    assert not foreground.snapshot().background
    assert TaskBackgrounded not in kinds(seen, foreground.id)


async def test_each_call_that_is_told_of_is_told_of_to_its_end(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """HL7: also if the agent is stopped in the middle of it."""
    go_on = trio.Event()

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await go_on.wait()
        uses = [ToolUse(id, "Bash", {"command": "serve"}) for id in "ab"]
        yield await context.use_tools(uses)
        yield FinalResult("never")

    async def serve(program: Any) -> int:
        await trio.sleep_forever()
        return 0

    env = fake_env({"serve": serve})
    policy = AgentPolicy(permissions=Permissions(mode="bypass"))
    async with open_runtime(tmp_path, env=env, agents=policy) as runtime:
        task = await runtime.launch(agent(loop))
        events = task.events()
        go_on.set()
        await trio.sleep(1)
        await task.stop()
        heard = [event async for event in events]
    began = [e.id for e in heard if isinstance(e, ToolStarted)]
    ended = [(e.id, e.is_error) for e in heard if isinstance(e, ToolCompleted)]
    assert sorted(began) == ["a", "b"]
    assert sorted(ended) == [("a", True), ("b", True)]


async def test_rounds_that_a_notification_made_count_like_all_others(
    tmp_path: Path,
) -> None:
    """HL6: what an agent does about the ends of its tasks is within its rounds."""

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for number in range(10):
            yield AssistantMessage(f"round {number}", (ToolUse(str(number), "No"),))
            yield await context.use_tools([ToolUse(str(number), "No")])
            await context.launch(returns(number))
            yield FinalResult(f"answer {number}")
            context.inbox.take()

    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(agent(loop, max_turns=3))
            done = await task.wait()
    assert (done.status, done.terminate) == (FAILED, "max_turns")
    assert done.result == "round 3"


@pytest.mark.skipif(os.name != "posix", reason="there are no shells here")
async def test_a_close_that_is_cancelled_leaves_no_process_of_an_agent(
    tmp_path: Path,
) -> None:
    """HL12: not even if it is cancelled again while it closes."""
    pids: list[int] = []
    up = trio.Event()

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        task = await context.launch(Shell("trap '' TERM; echo up; sleep 600", grace=1))
        assert isinstance(task, TaskHandle)
        await task.wait_output("up")
        pid = task.snapshot().pid
        assert pid is not None
        os.kill(pid, 0)
        pids.append(pid)
        up.set()
        yield Note("up")
        await trio.sleep_forever()

    async def cancel_later(scope: trio.CancelScope) -> None:
        with trio.CancelScope(shield=True):
            async for event in events:
                if isinstance(event, TaskStopRequested):
                    break
        scope.cancel()

    async def program(*, task_status: trio.TaskStatus[Runtime]) -> None:
        async with open_runtime(tmp_path) as runtime:
            task_status.started(runtime)
            await runtime.launch(agent(loop))
            await trio.sleep_forever()

    with trio.fail_after(TOO_LONG):
        with trio.CancelScope() as outer:
            async with trio.open_nursery() as nursery:
                runtime = await nursery.start(program)
                events = runtime.events.subscribe()
                await up.wait()
                nursery.cancel_scope.cancel()
                # The close has begun, and the command has not ended yet.
                nursery.start_soon(cancel_later, outer)
    assert {task.status for task in runtime.tasks()} == {KILLED}
    assert len([e for e in events.drain() if isinstance(e, TaskEnded)]) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_the_end_of_the_runtime_waits_for_all_that_is_still_to_be_written(
    tmp_path: Path,
) -> None:
    """HL14: on a disk that takes nothing before the writer is asked to stop, all that
    the agent has said goes out then, however much that is."""
    count = 3_000
    go = threading.Event()

    env = real_env()
    append_lines = env.files.append_lines

    def append_slowly(path: Path, lines: bytes, **options: Any) -> None:
        assert go.wait(TOO_LONG)
        append_lines(path, lines, **options)

    env.files.append_lines = append_slowly

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for number in range(count):
            yield AssistantMessage(f"{number} " + "x" * 1_000)
        yield Note("said")
        await trio.sleep_forever()

    async def open_the_gate() -> None:
        async for event in events:
            if isinstance(event, StopRequested) and event.child == "transcripts":
                go.set()

    with trio.fail_after(4 * TOO_LONG):
        async with trio.open_nursery() as nursery:
            async with open_runtime(tmp_path, env=env) as runtime:
                events = runtime.events.subscribe()
                nursery.start_soon(open_the_gate)
                task = await runtime.launch(agent(loop, shutdown=0.2))
                async for event in task.events():
                    if isinstance(event, Note):
                        break
                file = runtime.transcripts.transcript_file(task.id)
                assert not file.exists()
        assert file.read_bytes().count(b"\n") == count + 1


async def test_a_budget_that_is_used_up_ends_what_runs_and_lets_nothing_begin(
    tmp_path: Path,
) -> None:
    """HL15."""
    budget = Budget(tokens=100)

    async def spends(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("half of it")
        yield TokensUsed(input_tokens=200)
        await trio.sleep_forever()

    begun: list[str] = []

    async def begins(context: AgentContext) -> AsyncIterator[AgentEvent]:
        begun.append(context.agent_id)
        yield FinalResult("done")

    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            beside = await runtime.launch(agent(idles, budget=budget.child()))
            spender = await runtime.launch(agent(spends, budget=budget.child()))
            for task in (beside, spender):
                done = await task.wait()
                assert (done.status, done.terminate) == (FAILED, "budget")
            late = await runtime.launch(agent(begins, budget=budget.child()))
            done = await late.wait()
            assert (done.status, done.terminate) == (FAILED, "budget")
            free = await runtime.launch(agent(begins))
            assert (await free.wait()).status is COMPLETED
    assert begun == [free.id]


async def test_the_notification_of_an_agent_names_its_output_file(
    tmp_path: Path,
) -> None:
    """N45: which is its transcript."""
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(Agent(answers, "the prompt"))
            await task.wait()
            (note,) = runtime.notifications.drain()
            name = ET.fromstring(note.xml).findtext("output-file")
            file = task.snapshot().output_file
            assert file is not None and name == str(file)
            text = file.read_text()
    assert "the prompt" in text
