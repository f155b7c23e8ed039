"""Going on with agents: after their end, after a failure, after a crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from actors import Progress, TaskStatus
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    Budget,
    CompactBoundary,
    FinalResult,
    Note,
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from actors.agent.hosting import CONTINUE
from actors.testing import FakeFiles, fake_env
from actors.transcript import AgentMeta
from supervisor.agents import AgentPolicy
from supervisor.definitions import AgentDefinition, parse_definition
from supervisor.lowlevel import life_of
from supervisor.permissions import Permissions
from supervisor.runtime import (
    Backoff,
    Limits,
    MessageRefused,
    ResumeRefused,
    Runtime,
    RuntimeStopping,
    TaskAbandoned,
    TaskEnded,
    TaskRestarted,
    TaskRestartScheduled,
    TaskResumed,
    TaskStarted,
    TaskStopRequested,
    UnknownTask,
    Warned,
    open_runtime,
)
from tests.supervisor.jobs import Job, kinds
from tests.supervisor.jobs import forever as job_forever
from tests.supervisor.talkers import (
    answers,
    completed,
    fails,
    forever,
    read,
    sent,
    steps,
    waits_for,
)

ROOT = Path(__file__).parents[3]

PENDING, RUNNING = TaskStatus.PENDING, TaskStatus.RUNNING
COMPLETED, FAILED, KILLED = TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.KILLED

APART = range(60)


def texts_of(context: AgentContext) -> list[str]:
    return [m.text for m in context.history if not isinstance(m, CompactBoundary)]


def acknowledge(runtime: Runtime) -> None:
    """Hear of all that has ended, so that no other runtime tells it again."""
    for note in runtime.notifications.drain():
        note.ack()


def said(runtime: Runtime) -> list[str]:
    return [note.task_id for note in runtime.notifications.drain()]


# How often


class Counts:
    """What was done since the last `take`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = self.metas = self.agents = 0
        read_at, replace, init = FakeFiles.read_at, FakeFiles.replace, Agent.__init__

        def counted_read(
            files: FakeFiles, path: Path, offset: int, limit: int
        ) -> bytes:
            data = read_at(files, path, offset, limit)
            self.reads += path.suffix == ".jsonl" and bool(data)
            return data

        def counted_replace(
            files: FakeFiles, path: Path, contents: bytes, *, durable: bool = False
        ) -> None:
            self.metas += path.name.endswith(".meta.json")
            replace(files, path, contents, durable=durable)

        def counted_init(agent: Agent, *args: Any, **rest: Any) -> None:
            self.agents += 1
            init(agent, *args, **rest)

        monkeypatch.setattr(FakeFiles, "read_at", counted_read)
        monkeypatch.setattr(FakeFiles, "replace", counted_replace)
        monkeypatch.setattr(Agent, "__init__", counted_init)

    def take(self) -> tuple[int, int, int]:
        taken = self.reads, self.agents, self.metas
        self.reads = self.agents = self.metas = 0
        return taken


@pytest.mark.parametrize("message", ["and now this", None])
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_revival_reads_and_builds_once_and_writes_again_if_it_reads_a_message(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_known: bool,
    message: str | None,
) -> None:
    """TR14, TR15: its transcript is read once and its agent is built once. Its meta is
    written once; with a message once more, when the transcript has that: until then a
    kill would lose it, and from then on it would be read twice."""
    runs: list[str] = []

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        runs.append(context.run_id)
        if len(runs) == 1:
            yield FinalResult("done")
        await trio.sleep_forever()

    env, policy = fake_env(), AgentPolicy(run=run)
    counts = Counts(monkeypatch)
    async with open_runtime(tmp_path, env=env, agents=policy) as runtime:
        agent_id = await completed(runtime, run)
        if is_known:
            await runtime.transcripts.flush()
            counts.take()
            await runtime.resume(agent_id, message)
            await runtime.transcripts.flush()
            assert counts.take() == (1, 1, 1 if message is None else 2)
    if is_known:
        return
    async with open_runtime(tmp_path, env=env, agents=policy) as runtime:
        counts.take()
        await runtime.resume(agent_id, message)
        await runtime.transcripts.flush()
        assert counts.take() == (1, 1, 1 if message is None else 2)


async def test_a_run_after_a_failure_reads_the_conversation_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TR14: and goes on in the file behind what it has read."""
    counts = Counts(monkeypatch)

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage(f"try {len(context.history)}")
        if len(context.history) == 2:
            counts.take()
            raise ValueError("broken")
        yield FinalResult("done")

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        task = await runtime.launch(Agent(run, "go"), restart="transient")
        assert (await task.wait()).status is COMPLETED
        await runtime.transcripts.flush()
        assert counts.take()[:2] == (1, 0)
        transcript = await runtime.transcripts.load(task.id)
    assert transcript is not None
    texts = [getattr(message, "text", "") for message in transcript.messages]
    assert texts == ["go", "try 1", CONTINUE, "try 3", "done"]


# What it keeps, and what is new


async def test_a_resumed_agent_goes_on_with_its_conversation(tmp_path: Path) -> None:
    """AG26, AG30, TR14, TR15: a new run, under the same id, in the same file."""
    histories: list[list[str]] = []

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        histories.append(texts_of(context))
        reply = AssistantMessage(f"answer {len(histories)}")
        yield reply
        yield FinalResult(reply.text)

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        task = await runtime.launch(Agent(run, "go"))
        first = await task.wait()
        again = await runtime.resume(task)
        second = await again.wait()
        third = await (await runtime.resume(task.id, "and now this")).wait()
        assert (first.id, second.id, third.id) == (task.id,) * 3
        assert len({first.run_id, second.run_id, third.run_id}) == 3
        assert third.result == "answer 3"
        assert histories == [
            ["go"],
            ["go", "answer 1", CONTINUE],
            ["go", "answer 1", CONTINUE, "answer 2", "and now this"],
        ]
        meta = runtime.agent_meta(task.id)
        assert meta is not None
        assert (meta.resumes, meta.run_id, meta.status) == (
            2,
            third.run_id,
            "completed",
        )
        assert said(runtime) == [task.id] * 3


async def test_a_resumed_agent_sees_the_answer_that_no_message_has_said(
    tmp_path: Path,
) -> None:
    """TR14: from memory and from the directory; the smallest agent says only its
    result."""
    histories: list[list[str]] = []

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        histories.append(texts_of(context))
        yield FinalResult(f"answer {len(histories)}")

    env = fake_env()
    policy = AgentPolicy(run=run)
    async with open_runtime(tmp_path, env=env, agents=policy) as runtime:
        task = await runtime.launch(Agent(run, "go"))
        await task.wait()
        await (await runtime.resume(task, "again")).wait()
    async with open_runtime(tmp_path, env=env, agents=policy) as runtime:
        await (await runtime.resume(task.id, "and again")).wait()
    assert histories == [
        ["go"],
        ["go", "answer 1", "again"],
        ["go", "answer 1", "again", "answer 2", "and again"],
    ]


async def test_a_resumed_agent_keeps_what_it_was_given(tmp_path: Path) -> None:
    """TR15: prompt, restrictions, model and directory, also if the loop is that of
    another agent."""
    seen: list[tuple[object, ...]] = []

    async def look(context: AgentContext) -> AsyncIterator[AgentEvent]:
        seen.append(
            (
                context.prompt,
                context.system,
                context.model,
                context.cwd,
                context.session,
                context.depth,
                context.owner,
                [tool.name for tool in context.tools],
            )
        )
        yield FinalResult("done")

    env = fake_env()
    async with open_runtime(tmp_path, env=env) as runtime:
        agent = Agent(
            look,
            "go",
            system="Be kind.",
            model="a/b",
            tools=("Bash", "TaskList"),
            disallowed_tools=("TaskList",),
            cwd="/there",
            session="s1",
        )
        task = await runtime.launch(agent, owner="main")
        await task.wait()
        await (await runtime.resume(task)).wait()
        other = Agent(look, "something else", system="Hm.", model="x", cwd="/elsewhere")
        await (await runtime.resume(task, agent=other)).wait()
        kept = ("go", "Be kind.", "a/b", "/there", "s1", 0, "main", ["Bash"])
        assert seen == [kept] * 3
    # From the directory alone, by the loop of another runtime.
    policy = AgentPolicy(run=look)
    async with open_runtime(tmp_path, env=env, agents=policy) as runtime:
        await (await runtime.resume(task.id)).wait()
        assert seen[3] == kept


async def test_a_resumed_own_task_has_its_depth_and_its_parent_again(
    tmp_path: Path,
) -> None:
    """TR15, AG6, AG29: the depth in any case; the parent as long as it lives."""
    inner: list[str] = []
    gate = trio.Event()

    async def look(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield FinalResult(f"depth {context.depth}")

    async def outer(context: AgentContext) -> AsyncIterator[AgentEvent]:
        task = await context.launch(Agent(look, "below"))
        inner.append(task.id)
        await task.wait()
        yield Note("it ended")
        await gate.wait()
        yield FinalResult("done")

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        above = await runtime.launch(Agent(outer, "go"))
        await trio.testing.wait_all_tasks_blocked()
        (id,) = inner
        again = await (await runtime.resume(id)).wait()
        assert (again.parent, again.depth, again.result) == (above.id, 1, "depth 1")
        gate.set()
        await above.wait()
        orphan = await (await runtime.resume(id)).wait()
        assert (orphan.parent, orphan.depth, orphan.result) == (None, 1, "depth 1")


async def test_a_resumed_agent_may_do_no_more_than_before_and_than_is_allowed_now(
    tmp_path: Path,
) -> None:
    """TR11: its permission mode is judged anew, and a smaller one is told."""
    modes: list[str] = []

    async def look(context: AgentContext) -> AsyncIterator[AgentEvent]:
        modes.append(context.permission_mode)
        yield FinalResult("done")

    def policy(mode: str) -> AgentPolicy:
        return AgentPolicy(run=look, permissions=Permissions(mode=mode))  # type: ignore[arg-type]

    async def resume(mode: str, id: str) -> list[str]:
        async with open_runtime(tmp_path, agents=policy(mode)) as runtime:
            events = runtime.events.subscribe()
            await (await runtime.resume(id)).wait()
            acknowledge(runtime)
            return [e.text for e in events.drain() if isinstance(e, Warned)]

    with trio.fail_after(60):
        async with open_runtime(tmp_path, agents=policy("bypass")) as runtime:
            full = await runtime.launch(Agent(look, "go", permission_mode="bypass"))
            await full.wait()
            little = await runtime.launch(Agent(look, "go", permission_mode="plan"))
            await little.wait()
        acknowledge(runtime)
        assert await resume("default", full.id) == [
            "its permission mode is default now, and was bypass"
        ]
        assert await resume("bypass", full.id) == []
        assert await resume("bypass", little.id) == []
        assert modes == ["bypass", "plan", "default", "default", "plan"]


@pytest.mark.parametrize("planted", ["bypass", "default", None])
async def test_a_resumed_agent_may_do_no_more_than_its_type_may_now(
    planted: str | None, tmp_path: Path
) -> None:
    """TR11: whatever the directory says, and a type that was made stricter since."""
    modes: list[str] = []

    async def look(context: AgentContext) -> AsyncIterator[AgentEvent]:
        modes.append(context.permission_mode)
        yield FinalResult("done")

    reader = parse_definition(
        "---\nname: reader\ndescription: Reads.\npermission-mode: plan\n---\nRead.\n"
    )
    meta = {
        "agent_id": "0bad0bad",
        "run_id": "0bad0bad-000001",
        "status": "running",
        "type": "reader",
        "prompt": "go",
    }
    if planted is not None:
        meta["permission_mode"] = planted
    (tmp_path / "agent-0bad0bad.meta.json").write_text(json.dumps(meta))
    policy = AgentPolicy(
        run=look,
        definitions={"reader": reader},
        permissions=Permissions(mode="bypass"),
    )
    with trio.fail_after(60):
        async with open_runtime(tmp_path, agents=policy) as runtime:
            await (await runtime.resume("0bad0bad")).wait()
    assert modes == ["plan"]


async def test_what_an_earlier_run_says_late_does_not_touch_the_run_of_now(
    tmp_path: Path,
) -> None:
    """SM34, AG40."""
    contexts: list[AgentContext] = []
    gate = trio.Event()

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        contexts.append(context)
        if len(contexts) == 2:
            yield Note("the second")
            await gate.wait()
        yield FinalResult("done")

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        task = await runtime.launch(Agent(run, "go"))
        old = await task.wait()
        await runtime.resume(task)
        await trio.testing.wait_all_tasks_blocked()
        before = runtime.get(task.id)
        contexts[0].say("late")
        assert contexts[0].inbox.closed
        assert (await task.stop()).snapshot == old == task.snapshot()
        after = runtime.get(task.id)
        assert attrs.evolve(after, usage=before.usage) == before
        assert after.status is RUNNING and isinstance(after.progress, Progress)
        gate.set()


async def test_many_resumes_at_once_begin_one_run(tmp_path: Path) -> None:
    """TR8: none of their messages is lost."""
    for apart in range(12):
        with trio.fail_after(30):
            directory = tmp_path / str(apart)
            async with open_runtime(directory, env=fake_env()) as runtime:
                id = await completed(runtime)
                async with trio.open_nursery() as nursery:
                    for number in range(5):
                        nursery.start_soon(runtime.resume, id, str(number))
                        await steps(apart)
                await runtime.wait_idle()
                assert sorted(await read(runtime, id)) == list("01234")
                if apart == 0:
                    meta = runtime.agent_meta(id)
                    assert meta is not None and meta.resumes == 1


async def test_an_agent_that_runs_is_not_resumed_but_told(tmp_path: Path) -> None:
    """TR8: somebody else has resumed it, a moment ago or long ago."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        gate = trio.Event()
        task = await runtime.launch(Agent(waits_for(gate), "go"))
        await trio.testing.wait_all_tasks_blocked()
        before = task.snapshot()
        same = await runtime.resume(task)
        await runtime.resume(task, "hello")
        assert same.id == task.id and same.snapshot().run_id == before.run_id
        gate.set()
        assert (await task.wait()).result == "go | hello"


async def test_a_one_shot_agent_that_runs_is_waited_for_and_not_resumed(
    tmp_path: Path,
) -> None:
    """TR8: with a message it has to end first, and then it has had its run."""
    gate = trio.Event()
    refused: list[str] = []

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        task = await runtime.launch(Agent(waits_for(gate), "go", one_shot=True))
        assert (await runtime.resume(task)).id == task.id

        async def resume() -> None:
            with pytest.raises(ResumeRefused) as caught:
                await runtime.resume(task, "and this")
            refused.append(caught.value.why)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(resume)
            await trio.testing.wait_all_tasks_blocked()
            assert refused == []
            gate.set()
        assert refused == ["it is a one-shot agent"]


async def test_a_host_may_resume_what_failed_or_was_stopped(tmp_path: Path) -> None:
    """AG22 is for messages; AG37: it is a new run that somebody wanted."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        for loop in (fails(ValueError("no")), forever):
            task = await runtime.launch(Agent(loop, "go"))
            await trio.testing.wait_all_tasks_blocked()
            await task.stop()
            assert task.status in (FAILED, KILLED)
            again = await runtime.resume(task, agent=Agent(answers, "no matter"))
            assert (await again.wait()).result == f"go | {CONTINUE}"


async def test_an_agent_that_never_began_begins_with_its_prompt(tmp_path: Path) -> None:
    """AG37: it was stopped while it waited for its place."""
    async with open_runtime(tmp_path, env=fake_env(), limits=Limits(total=1)) as rt:
        first = await rt.launch(Job(job_forever))
        task = await rt.launch(Agent(answers, "go"))
        assert (await task.stop()).snapshot.status is KILLED
        again = await rt.resume(task)
        assert again.status is PENDING
        await first.stop()
        assert (await again.wait()).result == "go"


async def test_what_cannot_be_resumed_says_why_and_stays(tmp_path: Path) -> None:
    """AG25, AG39."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        job = await runtime.launch(Job(job_forever))
        with pytest.raises(ResumeRefused, match="it is not an agent"):
            await runtime.resume(job)
        once = await runtime.launch(Agent(answers, "go", one_shot=True))
        before = await once.wait()
        with pytest.raises(ResumeRefused, match="it is a one-shot agent"):
            await runtime.resume(once)
        assert runtime.get(once.id) == before
        with pytest.raises(UnknownTask):
            await runtime.resume("12345678")
        with pytest.raises(TypeError, match="agent must be an Agent or None, not 5"):
            await runtime.resume(once, agent=5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="a message must not be empty"):
            await runtime.resume(once, " ")


async def test_an_agent_cannot_resume_itself(tmp_path: Path) -> None:
    """It runs: there is nothing to resume."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:

        async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
            if not sent(context.history):
                handle = await runtime.resume(context.agent_id, "note to myself")
                assert handle.snapshot().run_id == context.run_id
                context.inbox.take()
            yield FinalResult(" | ".join(sent(context.history)))

        task = await runtime.launch(Agent(run, "go"))
        assert (await task.wait()).result == "note to myself"


# A resume that fails changes nothing


class Broken:
    """An async iterator whose first step raises."""

    def __aiter__(self) -> Broken:
        return self

    async def __anext__(self) -> AgentEvent:
        raise ValueError("at once")


def raises_when_called(context: AgentContext) -> AsyncIterator[AgentEvent]:
    raise ValueError("at once")


async def raises_at_first_step(context: AgentContext) -> AsyncIterator[AgentEvent]:
    if context.agent_id:
        raise ValueError("at once")
    yield Note("never")


def returns_nonsense(context: AgentContext) -> AsyncIterator[AgentEvent]:
    return 5  # type: ignore[return-value]


def gives_broken(context: AgentContext) -> AsyncIterator[AgentEvent]:
    return Broken()


AT_ONCE = [
    raises_when_called,
    raises_at_first_step,
    returns_nonsense,
    gives_broken,
]


@pytest.mark.parametrize("loop", AT_ONCE)
@pytest.mark.parametrize("acked", ["before", "meanwhile", "after"])
@pytest.mark.parametrize("restart", ["temporary", "transient"])
async def test_a_run_that_fails_at_once_leaves_everything_as_it_was(
    tmp_path: Path,
    loop: Callable[[AgentContext], AsyncIterator[AgentEvent]],
    acked: str,
    restart: str,
) -> None:
    """TR13, SM25, AG26: the record, its place in the list, its acknowledgement, the
    meta and the transcript; the sender gets a typed error."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        first = await runtime.launch(
            Agent(answers, "go"),
            restart=restart,  # type: ignore[arg-type]
        )
        await first.wait()
        id = first.id
        await completed(runtime)
        note, _ = runtime.notifications.drain()
        if acked == "before":
            note.ack()
        before, everything = runtime.get(id), runtime.tasks()
        meta = runtime.agent_meta(id)
        transcript = await runtime.transcripts.load(id)
        events = runtime.events.subscribe()

        def look(context: AgentContext) -> AsyncIterator[AgentEvent]:
            assert runtime.get(id).status is RUNNING
            if acked == "meanwhile":
                note.ack()
            return loop(context)

        with pytest.raises(ResumeRefused, match="its new run failed at once") as caught:
            await runtime.resume(id, "hello", agent=Agent(look, "x"))
        assert caught.value.task_id == id
        notified = acked != "after"
        before = attrs.evolve(before, notified=notified)
        everything = [before if it.id == id else it for it in everything]
        assert (runtime.get(id), runtime.tasks()) == (before, everything)
        assert runtime.agent_meta(id) == meta
        assert await runtime.transcripts.load(id) == transcript
        assert runtime.notifications.drain() == []
        told = kinds(events.drain(), id)
        assert told.count(TaskStarted) == told.count(TaskEnded) == 1
        if acked == "after":
            assert note.ack()
        # Heard of, it is forgotten in its turn.
        for _ in range(33):
            await completed(runtime)
            for other in runtime.notifications.drain():
                other.ack()
        with pytest.raises(UnknownTask):
            runtime.get(id)


async def test_a_message_is_refused_if_the_run_that_it_revives_fails_at_once(
    tmp_path: Path,
) -> None:
    """AG26, TR13: and is not there if the agent is revived later."""
    broken = False

    def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        return raises_at_first_step(context) if broken else answers(context)

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        id = await completed(runtime, run)
        before = runtime.get(id)
        broken = True
        with pytest.raises(MessageRefused, match="its new run failed at once: at once"):
            await runtime.send(id, "lost?")
        assert runtime.get(id) == before
        broken = False
        await runtime.send(id, "found")
        assert (await runtime.handle(id).wait()).result == "go | found"
        assert await read(runtime, id) == ["found"]


async def test_a_run_that_has_waited_before_it_failed_is_a_run(tmp_path: Path) -> None:
    """TR13: its failure is told as any other."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:

        async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
            if sent(context.history):
                await trio.lowlevel.checkpoint()
                raise ValueError("later")
            yield FinalResult("done")

        id = await completed(runtime, run)
        assert (await runtime.send(id, "hello")).how == "revived"
        assert (await runtime.handle(id).wait()).status is FAILED
        assert said(runtime) == [id, id]
        assert await read(runtime, id) == ["hello"]


async def note_refusal(
    runtime: Runtime, id: str, text: str, refused: list[str]
) -> None:
    try:
        await runtime.send(id, text)
    except MessageRefused:
        refused.append(text)


async def test_others_whose_messages_come_while_it_fails_at_once_are_told_as_well(
    tmp_path: Path,
) -> None:
    """TR8, TR13: nobody's message goes to a run that is taken back."""
    broken = True

    def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        if sent(context.history) and broken:
            return raises_at_first_step(context)
        return answers(context)

    for apart in range(20):
        async with open_runtime(tmp_path / str(apart), env=fake_env()) as runtime:
            id = await completed(runtime, run)
            refused: list[str] = []

            async with trio.open_nursery() as nursery:
                nursery.start_soon(note_refusal, runtime, id, "a", refused)
                await steps(apart)
                nursery.start_soon(note_refusal, runtime, id, "b", refused)
            assert sorted(refused) == ["a", "b"]
            assert await read(runtime, id) == []


async def test_an_agent_whose_budget_is_used_up_stays_as_it_is(tmp_path: Path) -> None:
    """TR13: it would end before its first step."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        budget = Budget(tokens=10)
        task = await runtime.launch(Agent(answers, "go", budget=budget))
        before = await task.wait()
        budget.charge(20, 0.0)
        with pytest.raises(MessageRefused, match=r"failed at once: .*budget"):
            await runtime.send(task, "hello")
        assert runtime.get(task.id) == before


@pytest.mark.parametrize("damage", ["gone", "garbage", "a directory"])
async def test_an_agent_without_a_readable_transcript_stays_as_it_is(
    tmp_path: Path, damage: str
) -> None:
    """TR13, SM25: it would have forgotten all that it knew."""
    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime:
            id = await completed(runtime)
            before = runtime.get(id)
            file = runtime.transcripts.transcript_file(id)
            kept = file.read_bytes()
            file.unlink()
            if damage == "garbage":
                file.write_bytes(b"\0\xff{" * 100)
            elif damage == "a directory":
                file.mkdir()
            with pytest.raises(MessageRefused, match="transcript"):
                await runtime.send(id, "hello")
            assert runtime.get(id) == before
            if damage == "a directory":
                file.rmdir()
            file.write_bytes(kept)
            await runtime.send(id, "hello")
            assert (await runtime.handle(id).wait()).result == "go | hello"


# Stops


@pytest.mark.sim(seeds=2)
@pytest.mark.parametrize("apart", APART)
async def test_a_stop_is_final_whatever_the_agent_is_doing(apart: int) -> None:
    """AG37: also between two runs; it does not come back by itself."""
    runs = 0

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        nonlocal runs
        runs += 1
        yield Note(f"run {runs}")
        await trio.lowlevel.checkpoint()
        raise ValueError("again")

    with trio.fail_after(30):
        async with open_runtime("tasks", env=fake_env()) as runtime:
            task = await runtime.launch(
                Agent(run, "go"), restart="transient", intensity=1_000
            )
            await steps(2 * apart)
            result = await runtime.stop(task)
            assert result.snapshot.status is KILLED and result.survivors == ()
            before = runs
            await trio.testing.wait_all_tasks_blocked()
            assert runs == before and task.status is KILLED
            meta = runtime.agent_meta(task.id)
            assert meta is not None and meta.status == "killed"
            assert said(runtime) == [task.id]


async def test_a_stop_during_the_backoff_is_final(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """AG37: the run that was to come does not come."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(
            Agent(fails(ValueError("again")), "go"),
            restart="transient",
            backoff=Backoff(60.0, 60.0),
        )
        await trio.sleep(30)
        assert task.snapshot().restarting
        await runtime.send(task, "for the next run")
        assert (await task.stop()).snapshot.status is KILLED
        await trio.sleep(600)
        told = kinds(events.drain(), task.id)
        assert TaskRestartScheduled in told and TaskRestarted not in told
        assert told.index(TaskStopRequested) < told.index(TaskEnded)
        again = await runtime.resume(task, agent=Agent(answers, "x"))
        assert (await again.wait()).result == "go | for the next run"


async def test_a_stop_waits_until_the_transcript_is_written(tmp_path: Path) -> None:
    """AG3: what the run had said before it was stopped is in the file when its end
    is recorded."""
    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime:
            spoken: list[str] = []

            async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
                while True:
                    spoken.append(f"line {len(spoken)}")
                    yield AssistantMessage(spoken[-1])
                    await trio.lowlevel.checkpoint()

            task = await runtime.launch(Agent(run, "go"))
            while len(spoken) < 50:
                await trio.lowlevel.checkpoint()
            await task.stop()
            text = runtime.transcripts.transcript_file(task.id).read_text()
            written = [json.loads(line) for line in text.splitlines()]
            assert len(written) == 1 + len(spoken)


async def test_each_run_closes_its_generator_once(tmp_path: Path) -> None:
    """AG27: after an answer, a failure, a stop, a restart and a revival; and what
    was closed is not gone on with."""
    opened: list[str] = []
    closed: list[str] = []
    how = "answer"

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        opened.append(context.run_id)
        try:
            yield AssistantMessage("at work")
            if how == "fail":
                raise ValueError("no")
            if how == "wait":
                await trio.sleep_forever()
            yield FinalResult("done")
        finally:
            closed.append(context.run_id)

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        task = await runtime.launch(Agent(run, "go"))
        await task.wait()
        await runtime.send(task, "again")
        await runtime.handle(task.id).wait()
        how = "fail"
        await runtime.send(task, "again")
        await runtime.handle(task.id).wait()
        how = "wait"
        await runtime.resume(task)
        await trio.testing.wait_all_tasks_blocked()
        await runtime.stop(task.id)
        how = "fail"
        again = await runtime.launch(Agent(run, "go"), restart="transient", intensity=2)
        await again.wait()
        how = "wait"
        await runtime.resume(task.id)
        await trio.testing.wait_all_tasks_blocked()
    assert len(opened) == len(set(opened)) == 8
    assert sorted(closed) == sorted(opened)


async def test_an_agent_that_is_being_stopped_takes_no_message_but_can_be_resumed(
    tmp_path: Path,
) -> None:
    """AG22, AG37: whoever resumes it waits for its end, and for nothing more."""
    gate = trio.Event()

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        if sent(context.history):
            yield FinalResult(" | ".join(sent(context.history)))
        try:
            yield Note("at work")
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await gate.wait()

    with trio.fail_after(30):
        async with open_runtime(tmp_path, env=fake_env()) as runtime:
            task = await runtime.launch(Agent(run, "go"))
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(runtime.stop, task)
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(MessageRefused, match="it is being stopped"):
                    await runtime.send(task, "refused")
                nursery.start_soon(runtime.resume, task, "for the next run")
                await trio.testing.wait_all_tasks_blocked()
                assert task.status is RUNNING
                gate.set()
            assert task.status is KILLED
            assert (await runtime.handle(task.id).wait()).result == "for the next run"


@pytest.mark.sim(seeds=2)
@pytest.mark.parametrize("apart", APART)
async def test_a_resume_that_races_with_the_end_of_the_runtime_is_one_or_none(
    apart: int,
) -> None:
    """TR13, P4: refused, the record is as it was; else the new run has its end."""
    came: list[object] = []
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            async with open_runtime("tasks", env=fake_env()) as runtime:
                id = await completed(runtime)
                runtime.notifications.drain()
                before = runtime.get(id)

                async def send() -> None:
                    try:
                        came.append(await runtime.send(id, "hello"))
                    except RuntimeStopping as error:
                        came.append(error)

                nursery.start_soon(send)
                await steps(apart % 30)
        (what,) = came
        if isinstance(what, RuntimeStopping):
            assert runtime.get(id) == before and said(runtime) == []
        else:
            assert runtime.get(id).run_id != before.run_id
            assert runtime.get(id).status.is_terminal and said(runtime) == [id]
            assert runtime.get(id).started_at is not None


# Restarts


async def test_a_message_is_there_again_if_the_run_that_it_revives_is_restarted(
    tmp_path: Path,
) -> None:
    """TR13, AG21: a run that fails at once is first of all restarted, as often as
    it may be."""
    runs = 0

    def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        nonlocal runs
        runs += 1
        return raises_at_first_step(context) if runs == 2 else answers(context)

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        task = await runtime.launch(Agent(run, "go"), restart="transient", intensity=2)
        await task.wait()
        assert (await runtime.send(task, "hello")).how == "revived"
        after = await runtime.handle(task.id).wait()
        assert runs == 3 and after.result == f"go | hello | {CONTINUE}"
        assert await read(runtime, task.id) == ["hello"]


async def test_a_failed_run_is_resumed_from_its_transcript(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Issue 4, section 5: with backoff, within the intensity, each an event."""
    histories: list[list[str]] = []

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        number = len(histories)
        histories.append(texts_of(context))
        yield AssistantMessage(f"try {number}")
        if number == 1:
            # Broken off in the middle of a tool call.
            yield AssistantMessage("", (ToolUse("t1", "Bash"),))
        if number < 2:
            raise ValueError(f"failure {number}")
        yield FinalResult("done")

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(
            Agent(run, "go"),
            restart="transient",
            intensity=3,
            period=600.0,
            backoff=Backoff(10.0, 60.0),
        )
        start = trio.current_time()
        after = await task.wait()
        assert after.status is COMPLETED and trio.current_time() - start >= 10.0
        assert histories == [
            ["go"],
            ["go", "try 0", CONTINUE],
            ["go", "try 0", CONTINUE, "try 1", CONTINUE],
        ]
        told = events.drain()
        assert kinds(told, task.id).count(TaskRestarted) == 2
        errors = [e.error for e in told if isinstance(e, TaskRestartScheduled)]
        assert errors == ["failure 0", "failure 1"]
        assert said(runtime) == [task.id]
        meta = runtime.agent_meta(task.id)
        assert meta is not None and meta.resumes == 0


async def test_an_agent_that_fails_too_often_fails_alone(tmp_path: Path) -> None:
    """AG37: its budget of restarts is its own, and its last words are kept."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        other = await runtime.launch(Agent(forever, "go"))
        task = await runtime.launch(
            Agent(fails(ValueError("again")), "go"), restart="transient", intensity=2
        )
        after = await task.wait()
        assert after.status is FAILED and after.error is not None
        assert "run again more than 2 time(s)" in after.error.message
        assert other.status is RUNNING
        again = await runtime.resume(task, agent=Agent(answers, "x"))
        assert (await again.wait()).status is COMPLETED


# After a crash of the program


async def test_the_end_of_the_runtime_leaves_its_agents_unfinished(
    tmp_path: Path,
) -> None:
    """TR6, TR7, SM14: they are listed by the next one and go on there, under ids
    of runs that were not given before. Whoever was stopped by hand is not."""
    with trio.fail_after(60):
        async with open_runtime(tmp_path, limits=Limits(total=4)) as runtime:
            assert runtime.unfinished_agents() == []
            done = await completed(runtime)
            stopped = await runtime.launch(Agent(forever, "stopped"))
            await trio.testing.wait_all_tasks_blocked()
            await stopped.stop()

            async def above(context: AgentContext) -> AsyncIterator[AgentEvent]:
                await context.launch(Agent(forever, "below"))
                yield Note("waits")
                await trio.sleep_forever()

            parent = await runtime.launch(Agent(above, "above"))
            dropped = await runtime.launch(Agent(above, "dropped"))
            while sum(t.parent is not None for t in runtime.tasks()) < 2:
                await trio.sleep(0.01)
            await dropped.stop()
            below = next(t.id for t in runtime.tasks() if t.parent == parent.id)
            busy = [await runtime.launch(Agent(forever, "busy")) for _ in range(2)]
            waiting = await runtime.launch(Agent(forever, "waiting"))
            assert waiting.status is PENDING
            runs = {t.run_id for t in runtime.tasks()}
            assert runtime.unfinished_agents() == []
        assert parent.status is KILLED
        async with open_runtime(tmp_path, agents=AgentPolicy(run=answers)) as runtime:
            left = {meta.agent_id: meta for meta in runtime.unfinished_agents()}
            wanted = {parent.id, below, waiting.id, *(task.id for task in busy)}
            assert left.keys() == wanted
            assert not {done, stopped.id, dropped.id} & left.keys()
            # They are nobody's unfinished business; the others have ended.
            ended = {done, stopped.id, dropped.id}
            assert {it.id for it in runtime.tasks()} == ended
            await runtime.wait_idle()
            for id, meta in left.items():
                after = await (await runtime.resume(id)).wait()
                assert after.status is COMPLETED and after.run_id not in runs
                assert after.result is not None
                assert after.result.startswith(meta.prompt)
                assert after.depth == (1 if id == below else 0)
            assert runtime.unfinished_agents() == []
        async with open_runtime(tmp_path) as runtime:
            assert runtime.unfinished_agents() == []


async def test_an_unfinished_agent_is_resumed_or_abandoned(tmp_path: Path) -> None:
    """SM13, SM27: no notification tells that it is abandoned; messages do not begin it."""
    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(Agent(forever, "go"))
            await trio.testing.wait_all_tasks_blocked()
            assert not runtime.abandon_agent(task.id)
        acknowledge(runtime)
        async with open_runtime(tmp_path, agents=AgentPolicy(run=answers)) as runtime:
            events = runtime.events.subscribe()
            with pytest.raises(MessageRefused, match="it must be resumed first"):
                await runtime.send(task.id, "hello")
            assert runtime.abandon_agent(task.id)
            assert not runtime.abandon_agent(task.id)
            assert not runtime.abandon_agent("12345678")
            assert not runtime.abandon_agent("../x")
            assert runtime.unfinished_agents() == []
            assert kinds(events.drain(), task.id) == [TaskAbandoned]
            assert runtime.notifications.drain() == []
            with pytest.raises(MessageRefused, match="it was stopped"):
                await runtime.send(task.id, "hello")
        async with open_runtime(tmp_path, agents=AgentPolicy(run=answers)) as runtime:
            assert runtime.unfinished_agents() == []
            again = await (await runtime.resume(task.id)).wait()
            assert again.status is COMPLETED
            assert again.run_id != task.snapshot().run_id


async def test_what_cannot_be_read_is_left_out_with_a_warning(tmp_path: Path) -> None:
    """TR6."""
    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(Agent(forever, "go"))
            await trio.testing.wait_all_tasks_blocked()
        acknowledge(runtime)
        (tmp_path / "agent-0badbad0.meta.json").write_text("{")
        (tmp_path / "agent-1badbad1.meta.json").write_text('{"agent_id": 5}')
        (tmp_path / "agent-2badbad2.meta.json").mkdir()
        async with open_runtime(tmp_path) as runtime:
            events = runtime.events.subscribe()
            assert [m.agent_id for m in runtime.unfinished_agents()] == [task.id]
            warnings = [e for e in events.drain() if isinstance(e, Warned)]
            assert len(warnings) == 3
    async with open_runtime(tmp_path / "gone", env=fake_env()) as runtime:
        assert runtime.unfinished_agents() == []


async def left_behind(directory: Path, agent: Agent) -> AgentMeta:
    """Leave an agent unfinished and return what the directory says of it."""
    async with open_runtime(directory) as runtime:
        task = await runtime.launch(agent)
        await trio.testing.wait_all_tasks_blocked()
        while await runtime.transcripts.load(task.id) is None:
            await trio.sleep(0.01)
    acknowledge(runtime)
    async with open_runtime(directory) as runtime:
        (meta,) = runtime.unfinished_agents()
    return meta


async def test_an_agent_whose_type_is_gone_stays_as_it_is(tmp_path: Path) -> None:
    """TR9, TR12: the reason names the types that there are; with the type, or with
    a loop of its own, it goes on."""
    with trio.fail_after(60):
        meta = await left_behind(tmp_path, Agent(forever, "go", type="reviewer"))
        other = AgentDefinition(name="tester", description="tests", prompt="Test.")
        policy = AgentPolicy(run=answers, definitions={"tester": other})
        async with open_runtime(tmp_path, agents=policy) as runtime:
            with pytest.raises(ResumeRefused) as caught:
                await runtime.resume(meta.agent_id)
            assert caught.value.why == (
                "there is no definition of the agent type 'reviewer', only of "
                "general-purpose, tester: add it to AgentPolicy.definitions, or give "
                "`resume` the agent"
            )
            assert runtime.unfinished_agents() == [meta]
            assert runtime.tasks() == [] and runtime.notifications.drain() == []
            given = Agent(answers, "x")
            again = await (await runtime.resume(meta.agent_id, agent=given)).wait()
            assert again.status is COMPLETED
            kept = runtime.agent_meta(meta.agent_id)
            assert kept is not None and kept.type == "reviewer"


async def test_an_agent_without_a_loop_stays_as_it_is(tmp_path: Path) -> None:
    """TR10, AG26: neither the call nor the policy has one."""
    with trio.fail_after(60):
        meta = await left_behind(tmp_path, Agent(forever, "go"))
        async with open_runtime(tmp_path) as runtime:
            with pytest.raises(ResumeRefused, match=r"neither .* says with which loop"):
                await runtime.resume(meta.agent_id)
            assert runtime.unfinished_agents() == [meta]


async def test_a_directory_that_says_nonsense_of_an_agent_is_refused(
    tmp_path: Path,
) -> None:
    """TR9: and a mode that nobody knows allows nothing (TR11)."""
    modes: list[str] = []

    async def look(context: AgentContext) -> AsyncIterator[AgentEvent]:
        modes.append(context.permission_mode)
        yield FinalResult("done")

    with trio.fail_after(60):
        meta = await left_behind(tmp_path, Agent(forever, "go"))
        file = tmp_path / f"agent-{meta.agent_id}.meta.json"
        stored = json.loads(file.read_text())
        file.write_text(json.dumps({**stored, "prompt": ""}))
        async with open_runtime(tmp_path, agents=AgentPolicy(run=look)) as runtime:
            with pytest.raises(ResumeRefused, match="prompt must not be empty"):
                await runtime.resume(meta.agent_id)
        file.write_text(json.dumps({**stored, "permission_mode": "god"}))
        async with open_runtime(tmp_path, agents=AgentPolicy(run=look)) as runtime:
            await (await runtime.resume(meta.agent_id)).wait()
        assert modes == ["deny"]


async def forked(directory: Path, **changes: object) -> AgentMeta:
    """Leave a fork unfinished."""
    async with open_runtime(directory) as runtime:

        async def fork(context: AgentContext) -> AsyncIterator[AgentEvent]:
            yield AssistantMessage("I know a secret")
            agent = context.fork("use it", run=forever, **changes)
            await runtime.launch(agent, owner="somebody")
            yield FinalResult("done")

        await (await runtime.launch(Agent(fork, "find out"))).wait()
        await trio.testing.wait_all_tasks_blocked()
        (id,) = [t.id for t in runtime.tasks() if t.status is RUNNING]
        while await runtime.transcripts.load(id) is None:
            await trio.sleep(0.01)
    async with open_runtime(directory) as runtime:
        (meta,) = runtime.unfinished_agents()
    assert meta.forked
    return meta


async def test_a_fork_goes_on_with_the_conversation_it_was_forked_from(
    tmp_path: Path,
) -> None:
    """TR10, AG8."""
    seen: list[list[str]] = []

    async def look(context: AgentContext) -> AsyncIterator[AgentEvent]:
        seen.append(texts_of(context))
        with pytest.raises(Exception, match="cannot fork again"):
            context.fork("once more")
        yield FinalResult("done")

    with trio.fail_after(60):
        meta = await forked(tmp_path)
        async with open_runtime(tmp_path, agents=AgentPolicy(run=look)) as runtime:
            after = await (await runtime.resume(meta.agent_id)).wait()
            assert after.status is COMPLETED, after.error
    (texts,) = seen
    assert texts[:3] == ["find out", "I know a secret", "use it"]


async def test_a_fork_that_lacks_what_it_needs_says_what_that_is(
    tmp_path: Path,
) -> None:
    """TR10: its beginning, its loop or its tools; each has a reason of its own."""
    with trio.fail_after(60):
        meta = await forked(tmp_path, tools=("Bash", "Dig"))
        id = meta.agent_id
        async with open_runtime(tmp_path) as runtime:
            with pytest.raises(ResumeRefused, match="says with which loop"):
                await runtime.resume(id)
        async with open_runtime(tmp_path, agents=AgentPolicy(run=answers)) as runtime:
            with pytest.raises(ResumeRefused, match=r"are not there: Dig$"):
                await runtime.resume(id)
            file = runtime.transcripts.transcript_file(id)
        lines = file.read_text().splitlines(keepends=True)
        (at,) = [n for n, line in enumerate(lines) if "use it" in line]
        first = {**json.loads(lines[at]), "parentUuid": None}
        file.write_text(json.dumps(first) + "\n" + "".join(lines[at + 1 :]))
        async with open_runtime(tmp_path) as runtime:
            with pytest.raises(ResumeRefused, match="does not hold what it was forked"):
                await runtime.resume(id, agent=Agent(answers, "x"))
            assert runtime.unfinished_agents() == [meta]


CHILD = """
import sys
from pathlib import Path

import trio

from actors.agent import Agent, AssistantMessage, ToolAnswer, ToolUse, UserMessage
from supervisor.runtime import open_runtime


async def run(context):
    yield AssistantMessage("first step of " + context.prompt)
    uses = (ToolUse("t1", "Look"),)
    yield AssistantMessage("looking", uses)
    yield UserMessage(tool_answers=(ToolAnswer("t1", "seen"),), origin="tools")
    yield AssistantMessage("looking again", (ToolUse("t2", "Look"),))
    await trio.sleep_forever()


async def main(directory):
    async with open_runtime(directory) as runtime:
        tasks = [
            await runtime.launch(Agent(run, f"agent {n}", model="m")) for n in range(5)
        ]
        done = await runtime.launch(Agent(run, "stopped"))
        for task in [*tasks, done]:
            while True:
                transcript = await runtime.transcripts.load(task.id)
                file = runtime.transcripts.transcript_file(task.id)
                if file.exists() and "looking again" in file.read_text():
                    break
                await trio.sleep(0.01)
        await done.stop()
        meta = Path(directory) / f"agent-{done.id}.meta.json"
        while "killed" not in meta.read_text():
            await trio.sleep(0.01)
        print(" ".join(task.id for task in [*tasks, done]), flush=True)
        await trio.sleep_forever()


trio.run(main, Path(sys.argv[1]))
"""


@pytest.mark.limit(130)
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
async def test_agents_of_a_killed_process_go_on_in_another(tmp_path: Path) -> None:
    """TR6, TR14, TR15, TR5: after a SIGKILL of the whole process every transcript
    loads, and each agent goes on from its last completed step."""
    seen: dict[str, list[str]] = {}

    async def look(context: AgentContext) -> AsyncIterator[AgentEvent]:
        answered = [m for m in context.history if isinstance(m, UserMessage)]
        assert ToolAnswer("t1", "seen") in [a for m in answered for a in m.tool_answers]
        seen[context.agent_id] = texts_of(context)
        yield FinalResult(f"{context.prompt}, {context.model}")

    with trio.fail_after(120):
        child = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", CHILD, str(tmp_path)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )
        assert child.stdout is not None
        try:
            line = await trio.to_thread.run_sync(
                child.stdout.readline, abandon_on_cancel=True
            )
            *ids, stopped = line.split()
            assert len(ids) == 5
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdout.close()
        async with open_runtime(tmp_path, agents=AgentPolicy(run=look)) as runtime:
            assert runtime.agent_meta(stopped) is not None
            # They wait for somebody to let them go on.
            paused = [it for it in runtime.tasks() if it.status.value == "paused"]
            assert sorted(it.id for it in paused) == sorted(ids)
            assert runtime.unfinished_agents() == []
            notes = runtime.notifications.drain()
            assert {(it.kind, it.task_id) for it in notes} == {
                ("task", stopped),
                *(("pause", id) for id in ids),
            }
            async with trio.open_nursery() as nursery:
                for id in ids:
                    nursery.start_soon(runtime.resume, id)
            await runtime.wait_idle()
            for number, id in enumerate(ids):
                after = runtime.get(id)
                assert after.status is COMPLETED, after.error
                assert after.result == f"agent {number}, m"
                assert seen[id] == [
                    f"agent {number}",
                    f"first step of agent {number}",
                    "looking",
                    "",
                    # What this one did is not known, and it is told so.
                    "looking again",
                    "",
                    CONTINUE,
                ]
                meta = runtime.agent_meta(id)
                assert meta is not None and meta.resumes == 1
            assert sorted(said(runtime)) == sorted(ids)
            assert runtime.unfinished_agents() == []


# The record


async def test_agents_that_run_or_are_not_heard_of_are_never_forgotten(
    tmp_path: Path,
) -> None:
    """SM27: whatever the count of others."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        running = await runtime.launch(Agent(forever, "go"))
        killed = await runtime.launch(Agent(forever, "go"))
        await trio.testing.wait_all_tasks_blocked()
        await killed.stop()
        unheard = await completed(runtime)
        await runtime.send(unheard, "again")
        await runtime.handle(unheard).wait()
        for _ in range(40):
            id = await completed(runtime)
            for note in runtime.notifications.drain():
                if note.task_id == id:
                    note.ack()
        known = {snapshot.id for snapshot in runtime.tasks()}
        assert {running.id, killed.id, unheard} <= known
        assert len(known) == 3 + 32


async def test_a_resume_is_told_as_an_event(tmp_path: Path) -> None:
    """TR14."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        id = await completed(runtime)
        events = runtime.events.subscribe()
        await runtime.resume(id)
        (told,) = [e for e in events.drain() if isinstance(e, TaskResumed)]
        assert (told.task_id, told.resumes) == (id, 1)
        assert told.run_id == runtime.get(id).run_id


@pytest.mark.parametrize("has_parent", [True, False])
async def test_what_the_directory_says_gives_an_agent_no_more_tools(
    tmp_path: Path, has_parent: bool
) -> None:
    """PM2: somebody has taken its restrictions out of the file. Those of its type
    hold, and those of the agent above it."""
    seen: list[list[str]] = []

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        seen.append([tool.name for tool in context.tools])
        yield FinalResult("ok")

    async def parent(context: AgentContext) -> AsyncIterator[AgentEvent]:
        began.set()
        await done.wait()
        yield FinalResult("ok")

    began, done = trio.Event(), trio.Event()
    reader = AgentDefinition(
        name="reader",
        description="Reads.",
        prompt="Read.",
        tools=("TaskList", "TaskOutput", "TaskStop"),
        disallowed_tools=("TaskStop",),
    )
    policy = AgentPolicy(definitions={"reader": reader}, run=run)
    env = fake_env()
    async with open_runtime(tmp_path, env=env, agents=policy) as runtime:
        owner = None
        if has_parent:
            above = Agent(parent, "wait", tools=("TaskList", "Bash"))
            owner = (await runtime.launch(above)).id
            await began.wait()
        meta = AgentMeta(
            agent_id="a0000009",
            run_id="a0000009-000001",
            status="killed",
            type="reader",
            prompt="go",
            owner=owner,
        )
        runtime.transcripts.write_meta(meta)
        task = await runtime.resume("a0000009")
        await task.wait()
        done.set()
        meta = attrs.evolve(meta, agent_id="a0000010", tools=("TaskList", "Bash"))
        runtime.transcripts.write_meta(meta)
        await (await runtime.resume("a0000010")).wait()
        kept = runtime.agent_meta("a0000009")
        assert kept is not None and kept.tools is not None
    first, second = seen
    assert first == (["TaskList"] if has_parent else ["TaskOutput", "TaskList"])
    assert second == ["TaskList"]


def test_an_interrupt_within_an_abandoning_loses_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P3: it strikes when all of it is done."""
    env, again = fake_env(), fake_env()
    again.ids.given = 10_000
    told: list[object] = []

    async def main() -> None:
        async with open_runtime("/tasks", env=env) as runtime:
            task = await runtime.launch(Agent(job_hangs, "look at x"))
            await trio.testing.wait_all_tasks_blocked()
        again.files.disk = env.files.disk.image().killed()
        async with open_runtime("/tasks", env=again) as runtime:
            events = runtime.events.subscribe()
            journal = life_of(runtime).journal
            add = journal.add

            def interrupted(record: Any) -> int:
                signal.raise_signal(signal.SIGINT)
                return add(record)

            with monkeypatch.context() as patch:
                patch.setattr(journal, "add", interrupted)
                told.append(runtime.abandon_agent(task.id))
            told.extend(it for it in events.drain() if isinstance(it, TaskAbandoned))
            await trio.sleep(1)
            raise AssertionError("it was not interrupted")

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert len(told) == 2 and told[0] is True
    lines = again.files.contents(Path("/tasks/journal.jsonl")).splitlines()
    assert sum(b'"by":"host"' in line for line in lines) == 1


async def job_hangs(context: AgentContext) -> AsyncIterator[AgentEvent]:
    await trio.sleep_forever()
    yield FinalResult("never")
