"""What a runtime makes of what an earlier program has left, and its recovery when that
fails itself."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import attrs
import orjson
import pytest
import trio
import trio.testing

from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    ToolAnswer,
    ToolUse,
    TransientError,
    UserMessage,
)
from actors.shell import Shell
from actors.testing import FakeEnv, Program, fake_env
from supervisor.agents import AgentPolicy
from supervisor.runtime import Limits, Notified, Pause, open_runtime
from tests.supervisor.jobs import (
    COMPLETED,
    FAILED,
    PAUSED,
    Job,
    answers,
    forever,
    idles,
    returns,
    starts,
)

MockClock = trio.testing.MockClock

HERE = Path("/tasks")
JOURNAL = HERE / "journal.jsonl"
LONG = 60.0
START = datetime(2000, 1, 1, tzinfo=UTC)


def killed(env: FakeEnv) -> FakeEnv:
    """Return the world in which the program is killed just now, and begun again."""
    again = fake_env()
    again.clock.ahead, again.ids.given = env.clock.ahead, env.ids.given
    again.files.disk = env.files.disk.image().killed()
    return again


async def test_a_recovery_that_fails_leaves_no_tree_behind(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block is not entered, so nobody else would stop it. Another one opens."""
    env = fake_env()
    monkeypatch.setattr("supervisor._life.recovery.summary", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        async with open_runtime("/tasks", env=env):
            raise AssertionError
    monkeypatch.undo()
    async with open_runtime("/tasks", env=env) as runtime:
        assert (await runtime.run(returns("x"))).result == "x"


# ---- Pauses ----

LIMIT = START + timedelta(hours=5)


async def is_limited(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield AssistantMessage("it tries")
    raise TransientError("the limit of the day", LIMIT)


@pytest.mark.parametrize("after_crash", ["pause", "resume"])
async def test_a_pause_holds_over_crashes_with_its_reason_time_and_attempt(
    autojump_clock: MockClock, after_crash: Literal["pause", "resume"]
) -> None:
    """Each opening writes the journal anew. And then it goes on by itself,
    not before, and not by what is to be done with those that ran."""
    env = fake_env()
    with trio.fail_after(LONG + 5 * 3600):
        async with open_runtime(HERE, env=env) as runtime:
            task = await runtime.launch(Agent(is_limited, "go"))
            for _ in range(2):
                await trio.testing.wait_all_tasks_blocked()
                await runtime.resume(task)
            await trio.testing.wait_all_tasks_blocked()
            before = task.snapshot().pause
            assert before == Pause("the limit of the day", LIMIT, 3)
            env = killed(env)
        policy = AgentPolicy(run=answers, after_crash=after_crash)
        for _ in range(2):
            async with open_runtime(HERE, env=env, agents=policy) as runtime:
                found = runtime.get(task.id)
                assert (found.status, found.pause) == (PAUSED, before)
                env = killed(env)
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            done = await runtime.handle(task.id).wait()
            assert done.status is COMPLETED
            assert env.clock.now() == LIMIT
            env = killed(env)
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            (note,) = runtime.notifications.drain()
            assert (note.task_id, note.status) == (task.id, COMPLETED)


async def test_a_pause_that_only_a_crash_has_made_follows_the_policy_of_the_day(
    autojump_clock: MockClock,
) -> None:
    """Who wants agents to wait for a person after a crash gets that, also if the one
    before wanted them to go on, and was killed before they did."""
    env = fake_env()
    async with open_runtime(HERE, env=env) as runtime:
        task = await runtime.launch(Agent(idles, "go"))
        await trio.testing.wait_all_tasks_blocked()
        env = killed(env)
    for after_crash in ("resume", "pause"):
        policy = AgentPolicy(run=idles, after_crash=after_crash)
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            found = runtime.get(task.id)
            assert found.status is PAUSED and found.pause is not None
            assert (found.pause.resume_at is None) is (after_crash == "pause")
            env = killed(env)


async def test_an_agent_that_goes_on_after_crashes_is_what_was_launched(
    autojump_clock: MockClock,
) -> None:
    """Its key finds it, its end answers the same call, and who wanted to hear nothing of
    it hears nothing; also after a crash of the one that has found it paused."""
    env, policy = fake_env(), AgentPolicy(run=answers)
    options: list[dict[str, Any]] = [
        {"key": "k", "tool_use_id": "t1"},
        {"notify": "silent"},
        {"notify": "defer"},
    ]
    async with open_runtime(HERE, env=env) as runtime:
        tasks = [await runtime.launch(Agent(idles, "go"), **it) for it in options]
        await trio.testing.wait_all_tasks_blocked()
        env = killed(env)
    for _ in range(2):
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            again = await runtime.launch(Agent(idles, "go"), key="k")
            assert (again.id, again.status) == (tasks[0].id, PAUSED)
            env = killed(env)
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        for task in tasks:
            await (await runtime.resume(task.id)).wait()
        notes = [it for it in runtime.notifications.drain() if it.kind == "task"]
        told = [(it.task_id, it.notify) for it in notes]
        assert told == [(tasks[0].id, "wake"), (tasks[2].id, "defer")]
        assert ET.fromstring(notes[0].xml).findtext("tool-use-id") == "t1"
        env = killed(env)
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        again = await runtime.launch(Agent(idles, "go"), key="k")
        assert (again.id, again.status) == (tasks[0].id, COMPLETED)


# ---- What an agent is told of its own tasks ----


class Hears:
    """A loop that answers once it has read what is told to it."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    async def __call__(self, context: AgentContext) -> AsyncIterator[AgentEvent]:
        await trio.sleep(1)
        context.inbox.take()
        for message in context.history:
            if isinstance(message, UserMessage):
                for part in message.text.split("<task-notification>")[1:]:
                    self.notes.append(part.partition("</task-notification>")[0])
        yield FinalResult("read")


def id_in(note: str) -> str:
    return note.partition("<notification-id>")[2].partition("<")[0]


@pytest.mark.parametrize("openings", [0, 1, 2])
@pytest.mark.parametrize("end", ["graceful", "killed"])
async def test_what_an_agent_had_not_read_waits_until_it_goes_on(
    autojump_clock: MockClock, openings: int, end: str
) -> None:
    """It is told then, once and under the same ids, however many runtimes were opened
    and ended before in which it did not go on."""
    env, ids = fake_env(), list[str]()
    own = starts(returns("one"), returns("two"), then=idles)
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env) as runtime:
            events = runtime.events.subscribe()
            parent = await runtime.launch(Agent(own, "go"))
            await trio.testing.wait_all_tasks_blocked()
            ids = [
                it.notification_id for it in events.drain() if isinstance(it, Notified)
            ]
            assert len(ids) == 2
        for _ in range(openings):
            env = killed(env)
            async with open_runtime(HERE, env=env) as runtime:
                # Not of the agent, which has been stopped, and was read.
                for note in runtime.notifications.drain():
                    assert note.task_id == parent.id and note.ack()
                if end == "killed":
                    env = killed(env)
        env, loop = killed(env), Hears()
        async with open_runtime(HERE, env=env, agents=AgentPolicy(run=loop)) as runtime:
            assert not [
                it for it in runtime.notifications.drain() if it.task_id != parent.id
            ]
            done = await (await runtime.resume(parent.id)).wait()
            assert done.status is COMPLETED
            assert sorted(map(id_in, loop.notes)) == ids
            env = killed(env)
        async with open_runtime(HERE, env=env, agents=AgentPolicy(run=loop)) as runtime:
            assert {it.task_id for it in runtime.notifications.drain()} == {parent.id}


@pytest.mark.parametrize("refused", ["full", "slow", "not"])
async def test_what_the_transcript_of_an_agent_refuses_comes_again_after_a_crash(
    autojump_clock: MockClock, refused: str
) -> None:
    """It was taken, and what came behind it is written; but nobody could go on with it."""
    env, full = fake_env(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    limits = Limits(transcript=8_000 if refused == "full" else None)

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await context.launch(returns("x" * 4_000))
        await trio.sleep(1)
        if refused == "full":
            yield AssistantMessage("y" * 3_000)
        if refused == "slow":
            env.files.write_error = full
            for _ in range(9):
                yield AssistantMessage("y" * 2**23)
        (note,) = context.inbox.take()
        assert note.origin == "notification"
        env.files.write_error = None
        await trio.sleep(10)
        if refused != "full":
            yield AssistantMessage("behind it")
        await trio.sleep_forever()

    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env, limits=limits) as runtime:
            parent = await runtime.launch(Agent(loop, "go"))
            await trio.sleep(30)
            await runtime.transcripts.flush()
            await runtime.synced()
            env = killed(env)
        hears = Hears()
        policy = AgentPolicy(run=hears)
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            done = await (await runtime.resume(parent.id)).wait()
            assert done.status is COMPLETED
            assert len(hears.notes) == 1
            env = killed(env)
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            assert {it.task_id for it in runtime.notifications.drain()} == {parent.id}


# ---- What was lost ----


async def sleeps(program: Program) -> int:
    await trio.sleep_forever()
    return 0


async def test_the_end_of_what_was_lost_tells_how_many_others_were_lost_with_it(
    autojump_clock: MockClock,
) -> None:
    """And not how long it took, which nobody knows: the program may have been dead for
    days. A second crash changes nothing of what was told."""
    env = fake_env({"sleep": sleeps})
    async with open_runtime(HERE, env=env) as runtime:
        for work in (Shell("sleep"), Job(forever), Shell("sleep"), Job(forever)):
            await runtime.launch(work, owner="main")
        await runtime.launch(Shell("sleep"), owner="other")
        await trio.sleep(7)
        env = killed(env)
    before: dict[str, str] = {}
    for _ in range(2):
        env.clock.ahead += 86_400
        async with open_runtime(HERE, env=env) as runtime:
            told = {"main": list[str](), "other": list[str]()}
            notes = runtime.notifications.drain()
            assert len(notes) == 5
            for note in notes:
                envelope = ET.fromstring(note.xml)
                assert note.duration_ms is None
                assert envelope.find("usage/duration-ms") is None
                assert envelope.findtext("ended-by") == "crash"
                remaining = envelope.findtext("remaining")
                assert note.owner is not None and remaining is not None
                told[note.owner].append(remaining)
                is_last = envelope.findtext("all-terminal") == "true"
                assert is_last is (remaining == "0")
                assert before.setdefault(note.id, note.xml) == note.xml
                assert note.status is FAILED
            assert told == {"main": ["3", "2", "1", "0"], "other": ["0"]}
            env = killed(env)


# ---- Calls that were cut ----

CUT = "interrupted: the host died while this ran; what it did is not known"


@attrs.define
class Deploys:
    """A loop that makes two calls in each run, and has the answer to the first."""

    runs: int = 0
    histories: list[list[Any]] = attrs.Factory(list[Any])

    async def __call__(self, context: AgentContext) -> AsyncIterator[AgentEvent]:
        self.runs += 1
        self.histories.append(list(context.history))
        one, two = f"{self.runs}a", f"{self.runs}b"
        calls = ToolUse(one, "Test"), ToolUse(two, "Deploy")
        yield AssistantMessage("at work", calls)
        yield UserMessage(tool_answers=(ToolAnswer(one, "it passes"),), origin="tools")
        await trio.sleep_forever()


def cut_in(messages: list[Any]) -> list[str]:
    """Return the calls of which a conversation says that they were cut."""
    given = [it for message in messages for it in getattr(message, "tool_answers", ())]
    assert max(Counter(it.tool_use_id for it in given).values()) == 1
    return [it.tool_use_id for it in given if it.text == CUT]


@pytest.mark.parametrize("after_crash", ["pause", "resume"])
async def test_an_agent_is_told_of_each_call_that_was_cut_once(
    autojump_clock: MockClock, after_crash: Literal["pause", "resume"]
) -> None:
    """However often the program dies, also while it is paused, and of no call that was
    answered. What it is told stands in its transcript."""
    env, loop = fake_env(), Deploys()
    policy = AgentPolicy(run=loop, after_crash=after_crash)
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            task = await runtime.launch(Agent(loop, "go"))
            await trio.testing.wait_all_tasks_blocked()
            await runtime.transcripts.flush()
            env = killed(env)
        for life in range(1, 5):
            async with open_runtime(HERE, env=env, agents=policy) as runtime:
                if life == 2 and after_crash == "pause":
                    # It is killed before anybody lets it go on.
                    assert runtime.get(task.id).status is PAUSED
                    env = killed(env)
                    continue
                if after_crash == "pause":
                    await runtime.resume(task.id)
                await trio.testing.wait_all_tasks_blocked()
                calls = [f"{run}b" for run in range(1, loop.runs)]
                assert cut_in(loop.histories[-1]) == calls
                await runtime.transcripts.flush()
                env = killed(env)
        assert loop.runs == (5 if after_crash == "resume" else 4)


# ---- What somebody has done to the directory ----

VALUES: list[object] = [
    *("", "noon", "0000-00-00T00:00:00", "9999-12-31T23:59:59+00:00", "2000-01-01"),
    *("2000-01-01T00:00:00", "no-such-0", "-1", "..", "a/b", "a\0b", "x" * 100_000),
    *("99999999999999999999999", "local_bash", "local_agent", "\x1b[31m<&>", "null"),
    *("x-" + "9" * 5_000, "x-9999999999999999999", "n" + "9" * 5_000, "n-1", "x-y"),
    *(0, -1, 2**62, 2**63 - 1, True, None, 1.5, [], {}, ["x"]),
]


async def works(context: AgentContext) -> AsyncIterator[AgentEvent]:
    await context.launch(returns("own"))
    yield AssistantMessage("at work")
    await trio.sleep_forever()


WORKS: dict[str, Any] = {
    "done": Shell("make"),
    "lost": Shell("sleep"),
    "agent": Agent(works, "go"),
    "paused": Agent(is_limited, "go"),
}


async def left(*more: str) -> tuple[FakeEnv, dict[str, str], list[str]]:
    """Leave one task of each kind, then ``more``, then one of each again. Return their
    ids: the former by name."""
    env, ids, others = (
        fake_env({"sleep": sleeps, "make": "made\n"}),
        dict[str, str](),
        [],
    )
    async with open_runtime(HERE, env=env) as runtime:

        async def leave(kind: str, key: str) -> str:
            task = await runtime.launch(WORKS[kind], owner="main", key=key)
            if kind == "done":
                await task.wait()
            return task.id

        for kind in WORKS:
            ids[f"{kind} before"] = await leave(kind, f"{kind} before")
        for number, kind in enumerate(more):
            others.append(await leave(kind, str(number)))
        await trio.testing.wait_all_tasks_blocked()
        for kind in WORKS:
            ids[f"{kind} after"] = await leave(kind, f"{kind} after")
        await trio.testing.wait_all_tasks_blocked()
        await runtime.transcripts.flush()
        return killed(env), ids, others


KEYS = {
    ("done", "start"): ["r", "y", "at", "d", "o", "a", "b", "n", "u", "c", "w", "f"],
    ("done", "end"): ["r", "t", "s", "at", "by", "n", "m", "l", "x", "g", "e", "u"],
    ("lost", "start"): ["r", "y", "at", "d", "o", "a", "b", "n", "u", "c", "w", "f"],
    ("agent", "start"): ["r", "y", "at", "d", "o", "a", "b", "n", "u", "i", "h"],
    ("paused", "start"): ["r", "y", "at", "o", "a", "n"],
    ("paused", "pause"): ["r", "m", "u", "a"],
}


@pytest.mark.parametrize(
    ("kind", "line", "key"),
    [(*it, key) for it, keys in KEYS.items() for key in keys],
)
async def test_a_value_that_nobody_can_have_written_costs_no_other_task(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    line: str,
    key: str,
) -> None:
    """Each value in one task of many. The others are recovered, neither the opening
    fails nor the next one, nor anything that one may ask then."""
    env, ids, others = await left(*[kind] * len(VALUES))
    lines = [orjson.loads(it) for it in env.files.contents(JOURNAL).splitlines()]
    for said in lines:
        task = str(said.get("r")).rpartition("-")[0]
        if said["k"] == line and task in others:
            said[key] = VALUES[others.index(task)]
    env.files.replace(JOURNAL, b"".join(orjson.dumps(it) + b"\n" for it in lines))
    policy, kept = AgentPolicy(run=answers), dict[str, str]()
    for _ in range(2):
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            notes = runtime.notifications.drain()
            told = Counter(note.task_id for note in notes if note.kind == "task")
            for when in ("before", "after"):
                assert told[ids[f"done {when}"]] == told[ids[f"lost {when}"]] == 1
                assert runtime.get(ids[f"agent {when}"]).status is PAUSED
                pause = runtime.get(ids[f"paused {when}"]).pause
                assert pause == Pause("the limit of the day", LIMIT, 1)
            assert len({note.id for note in notes}) == len(notes)
            for note in notes:
                ET.fromstring(note.xml)
                if note.task_id in ids.values() and note.kind == "task":
                    assert kept.setdefault(note.id, note.xml) == note.xml
            assert {it.id for it in runtime.tasks()} >= {*ids.values()}
            for again, task_id in ids.items():
                work = WORKS[again.partition(" ")[0]]
                found = await runtime.launch(work, owner="main", key=again)
                assert found.id == task_id
            assert runtime.unfinished_agents() is not None
            for record in caplog.records:
                assert record.levelno == logging.WARNING
            env = killed(env)


@pytest.mark.parametrize("what", ["meta", "transcript", "output"])
@pytest.mark.parametrize("kind", ["directory", "rubbish", "gone"])
async def test_a_file_of_a_task_that_cannot_be_read_costs_no_other(
    tmp_path: Path, what: str, kind: str
) -> None:
    here, copy = tmp_path / "here", tmp_path / "copy"
    with trio.fail_after(LONG):
        async with open_runtime(here) as runtime:
            ids: list[tuple[str, str]] = []
            for _ in range(3):
                agent = await runtime.launch(Agent(works, "go"))
                shell = await runtime.launch(Shell("echo started; sleep 600"))
                await shell.wait_output("started")
                ids.append((agent.id, shell.id))
            await trio.testing.wait_all_tasks_blocked(0.05)
            await runtime.transcripts.flush()
            shutil.copytree(here, copy)
        agent_id, shell_id = ids[1]
        path = (
            copy
            / {
                "meta": f"agent-{agent_id}.meta.json",
                "transcript": f"agent-{agent_id}.jsonl",
                "output": f"{shell_id}.output",
            }[what]
        )
        path.unlink()
        if kind == "directory":
            path.mkdir()
        elif kind != "gone":
            path.write_bytes(b"\0{rubbish" if kind == "rubbish" else b"")
        async with open_runtime(copy, agents=AgentPolicy(run=answers)) as runtime:
            notes = [it for it in runtime.notifications.drain() if it.kind == "task"]
            told = Counter(it.task_id for it in notes)
            for agent, shell in ids:
                assert told[shell] == 1
                assert runtime.get(agent).status is PAUSED
        async with open_runtime(copy) as runtime:
            assert len(runtime.notifications.drain()) >= len(notes)
