"""Agents whose program has died: what they are, what they know, and what is told of them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import orjson
import pytest
import trio
import trio.testing

from actors.agent import Agent, AgentContext, AgentEvent, FinalResult, UserMessage
from actors.testing import FakeEnv, fake_env
from supervisor.agents import AgentPolicy
from supervisor.runtime import (
    MessageRefused,
    ResumeRefused,
    TaskAbandoned,
    Warned,
    open_runtime,
)
from tests.supervisor.jobs import COMPLETED, FAILED, PAUSED, idles, returns, starts
from tests.supervisor.talkers import answers

HERE = Path("/tasks")
LONG = 60.0


def after_crash(env: FakeEnv) -> FakeEnv:
    """Return the world in which the program has died just now, and is begun again."""
    again = fake_env()
    again.ids.given = env.ids.given
    again.files.disk = env.files.disk.image().killed()
    return again


# ---- Killed before its own file was written ----------------------------------------------


@pytest.mark.parametrize("after", ["pause", "resume"])
async def test_an_agent_that_was_launched_just_before_a_kill_goes_on(
    autojump_clock: trio.testing.MockClock, after: Literal["pause", "resume"]
) -> None:
    """Its launch has returned, and its own file was not written yet."""
    policy = AgentPolicy(run=answers, after_crash=after)
    env = fake_env()
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        agent = Agent(answers, "look at x", tools=["Read"], system="be brief")
        task = await runtime.launch(agent, owner="main", description="a look")
        assert env.files.size(HERE / f"agent-{task.id}.meta.json") is None
        env = after_crash(env)
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        with trio.fail_after(LONG):
            if after == "pause":
                assert runtime.get(task.id).status is PAUSED
                await runtime.resume(task.id)
            ended = await runtime.handle(task.id).wait()
        assert (ended.status, ended.result) == (COMPLETED, "look at x")
        assert (ended.owner, ended.description) == ("main", "a look")
        meta = runtime.agent_meta(task.id)
        assert meta is not None
        assert (meta.tools, meta.system) == (("Read",), "be brief")
        notes = [it for it in runtime.notifications.drain() if it.kind == "task"]
        assert [it.task_id for it in notes] == [task.id]


async def test_it_is_known_also_after_several_kills_and_by_a_file_made_anew(
    autojump_clock: trio.testing.MockClock,
) -> None:
    env = fake_env()
    async with open_runtime(HERE, env=env) as runtime:
        task = await runtime.launch(Agent(answers, "look at x"))
        env = after_crash(env)
    policy = AgentPolicy(run=answers)
    for _ in range(3):
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            # The journal is made anew at each opening.
            env = after_crash(env)
            env.files.remove(HERE / f"agent-{task.id}.meta.json")
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        with trio.fail_after(LONG):
            ended = await (await runtime.resume(task.id)).wait()
        assert ended.result == "look at x"
        (*_, end) = env.files.contents(HERE / "journal.jsonl").splitlines()
        assert orjson.loads(end)["k"] == "end"
    env = after_crash(env)
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        assert [it.task_id for it in runtime.notifications.drain()] == [task.id]
        # It has ended: its own file says what it was.
        _, start, _ = env.files.contents(HERE / "journal.jsonl").splitlines()
        assert orjson.loads(start)["j"] == ""


@pytest.mark.parametrize("kills", [1, 3])
@pytest.mark.parametrize("acked", [False, True])
async def test_an_end_counts_although_the_file_of_the_agent_was_not_written_any_more(
    autojump_clock: trio.testing.MockClock, acked: bool, kills: int
) -> None:
    """However often the program is killed before it is: nobody goes on with the agent,
    and its end is told again only if nobody has acknowledged it."""
    env, policy = fake_env(), AgentPolicy(run=answers, after_crash="resume")
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        task = await runtime.launch(Agent(answers, "look at x"))
        note = await anext(runtime.notifications)
        assert note.task_id == task.id
        if acked:
            note.ack()
        await runtime.transcripts.flush()
        env = after_crash(env)
    path = HERE / f"agent-{task.id}.meta.json"
    for _ in range(kills):
        said = orjson.loads(env.files.contents(path))
        env.files.replace(path, orjson.dumps(said | {"status": "running"}))
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            env = after_crash(env)
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        assert runtime.unfinished_agents() == []
        await trio.sleep(LONG)
        assert PAUSED not in {it.status for it in runtime.tasks()}
        again = [it.id for it in runtime.notifications.drain()]
        assert again == ([] if acked else [note.id])


# ---- Without a loop to go on with --------------------------------------------------------


@pytest.mark.parametrize("after", ["pause", "resume"])
async def test_an_agent_with_a_loop_of_its_own_waits_until_it_is_given_one(
    autojump_clock: trio.testing.MockClock, after: Literal["pause", "resume"]
) -> None:
    policy = AgentPolicy(after_crash=after)
    env = fake_env()
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        agent = Agent(answers, "look", max_turns=7, reminders=2, stall_limit=99.0)
        task = await runtime.launch(agent, owner="main")
        env = after_crash(env)
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        events = runtime.events.subscribe()
        warned = [it.text for it in events.drain() if isinstance(it, Warned)]
        found = "1 agent can be resumed, 1 of them by `Runtime.resume(agent=)` alone"
        assert found in warned[0] and "cannot go on here" not in warned[0]
        await trio.sleep(LONG)
        (known,) = runtime.tasks()
        assert (known.id, known.status) == (task.id, PAUSED)
        assert known.pause is not None and known.pause.resume_at is None
        assert "give `resume` the agent" in known.pause.reason
        with pytest.raises(ResumeRefused, match="give `resume` the agent"):
            await runtime.resume(task.id)
        with pytest.raises(ResumeRefused, match="give `resume` the agent"):
            await runtime.resume(task.id, "on", cwd="/tmp")
        with pytest.raises(MessageRefused, match="give `resume` the agent"):
            await runtime.send(task.id, "hello")
        assert runtime.get(task.id).status is PAUSED
        with trio.fail_after(LONG):
            await runtime.resume(task.id, "on", agent=Agent(reads, "other words"))
            ended = await runtime.handle(task.id).wait()
        assert (ended.status, ended.result) == (COMPLETED, "look\non")
        meta = runtime.agent_meta(task.id)
        assert meta is not None and meta.max_turns == 7
        assert [
            it.task_id for it in runtime.notifications.drain() if it.kind == "task"
        ] == [task.id]


async def test_one_that_was_stopped_before_it_got_a_loop_still_needs_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    env = fake_env()
    async with open_runtime(HERE, env=env) as runtime:
        task = await runtime.launch(Agent(answers, "look", reminders=2))
        env = after_crash(env)
    async with open_runtime(HERE, env=env) as runtime:
        with trio.fail_after(LONG):
            await runtime.stop(task.id)
            meta = runtime.agent_meta(task.id)
            assert meta is not None and meta.reminders == 2
            with pytest.raises(ResumeRefused, match="give `resume` the agent"):
                await runtime.resume(task.id)
            again = await runtime.resume(task.id, agent=Agent(answers, "x"))
            assert (await again.wait()).status is COMPLETED


async def test_one_that_nothing_lets_go_on_has_failed_with_its_program(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A one-shot agent, and a fork of whose conversation nothing is written."""
    policy = AgentPolicy(run=answers)
    env = fake_env()
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        once = await runtime.launch(Agent(answers, "look", one_shot=True))
        before = [UserMessage("words of before")]
        fork = await runtime.launch(Agent(answers, "go", history=before, forked=True))
        env = after_crash(env)
    async with open_runtime(HERE, env=env, agents=policy) as runtime:
        notes = {it.task_id: it for it in runtime.notifications.drain()}
        assert {it.status for it in notes.values()} == {FAILED}
        assert "it is a one-shot agent" in notes[once.id].xml
        assert "what it was forked from" in notes[fork.id].xml
        for task in (once, fork):
            meta = runtime.agent_meta(task.id)
            assert meta is not None and meta.ended_by == "crash"
        assert runtime.unfinished_agents() == []


# ---- Its own tasks -----------------------------------------------------------------------

launches = starts(returns("own"), then=idles)


async def reads(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """Answer with what it finds in its inbox, or was told before."""
    await trio.sleep(1)
    context.inbox.take()
    told = [m.text for m in context.history if isinstance(m, UserMessage)]
    yield FinalResult("\n".join(told))


@pytest.mark.parametrize("after_crash", ["pause", "resume"])
@pytest.mark.parametrize("crashes", [1, 2])
async def test_an_agent_that_goes_on_hears_of_its_own_tasks_once(
    autojump_clock: trio.testing.MockClock,
    after_crash: Literal["pause", "resume"],
    crashes: int,
) -> None:
    env = fake_env()
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env) as runtime:
            parent = await runtime.launch(Agent(launches, "go"))
            await trio.testing.wait_all_tasks_blocked()
            await runtime.transcripts.flush()
            assert runtime.notifications.drain() == []
            files = env.files
            image = files.disk.image()
        for crash in range(crashes + 1):
            env = fake_env()
            env.ids.given = 1_000 * (crash + 1)
            env.files.disk = image.killed()
            last = crash == crashes
            policy = AgentPolicy(
                run=launches if not last else reads,
                after_crash="pause" if not last else after_crash,
            )
            async with open_runtime(HERE, env=env, agents=policy) as runtime:
                if not last:
                    await trio.sleep(1)
                    image = env.files.disk.image()
                    continue
                if after_crash == "pause":
                    await runtime.resume(parent.id)
                await runtime.wait_idle()
                notes = [
                    it for it in runtime.notifications.drain() if it.kind == "task"
                ]
                assert [it.task_id for it in notes] == [parent.id]
                assert notes[0].xml.count("&lt;notification-id&gt;") == 1


# ---- Who has ended them -------------------------------------------------------------------


async def test_the_file_of_an_agent_says_who_has_ended_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Not of one that may go on; one of an earlier version does not say it."""
    env = fake_env()
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env) as runtime:
            stopped = await runtime.launch(Agent(idles, "one"))
            goes_on = await runtime.launch(Agent(idles, "two"))
            await runtime.stop(stopped, by="user")
        env = after_crash(env)
        async with open_runtime(HERE, env=env) as runtime:
            meta = runtime.agent_meta(stopped.id)
            assert meta is not None
            assert (meta.status, meta.ended_by) == ("killed", "user")
            (left,) = runtime.unfinished_agents()
            assert (left.agent_id, left.ended_by) == (goes_on.id, None)
        env = after_crash(env)
        path = HERE / f"agent-{stopped.id}.meta.json"
        said = orjson.loads(env.files.contents(path))
        del said["ended_by"]
        env.files.replace(path, orjson.dumps(said))
        async with open_runtime(HERE, env=env) as runtime:
            meta = runtime.agent_meta(stopped.id)
            assert meta is not None
            assert (meta.status, meta.ended_by) == ("killed", None)


@pytest.mark.parametrize(("word", "by"), [("user", "user"), ("somebody", None)])
async def test_an_end_that_only_the_file_has_is_told_with_who_has_ended_it(
    autojump_clock: trio.testing.MockClock, word: str, by: str | None
) -> None:
    """The program has died before the journal had it; a word of a later version is
    passed over."""
    env = fake_env()
    async with open_runtime(HERE, env=env) as runtime:
        task = await runtime.launch(Agent(idles, "one"))
        await runtime.transcripts.flush()
        env = after_crash(env)
    path = HERE / f"agent-{task.id}.meta.json"
    said = orjson.loads(env.files.contents(path))
    ended = said | {"status": "killed", "ended_by": word}
    env.files.replace(path, orjson.dumps(ended))
    async with open_runtime(HERE, env=env) as runtime:
        (note,) = runtime.notifications.drain()
        assert ET.fromstring(note.xml).findtext("ended-by") == by


async def test_an_end_that_only_the_journal_has_comes_to_the_file_with_who_has_ended_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    env = fake_env()
    async with open_runtime(HERE, env=env) as runtime:
        task = await runtime.launch(Agent(idles, "one"))
        await runtime.transcripts.flush()
        await runtime.stop(task, by="user")
        env = after_crash(env)
    path = HERE / f"agent-{task.id}.meta.json"
    said = orjson.loads(env.files.contents(path)) | {"status": "running"}
    env.files.replace(path, orjson.dumps(said))
    async with open_runtime(HERE, env=env) as runtime:
        meta = runtime.agent_meta(task.id)
        assert meta is not None
        assert (meta.status, meta.ended_by) == ("killed", "user")


# ---- Given up -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_heard", [False, True], ids=["unheard", "heard"])
async def test_an_agent_that_was_given_up_stays_so_over_a_kill_just_then(
    autojump_clock: trio.testing.MockClock, is_heard: bool
) -> None:
    """Its own file is written later. What it had not heard is told to nobody."""
    env = fake_env()
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env) as runtime:
            agent = Agent(starts(returns("one"), then=idles), "go")
            task = await runtime.launch(agent)
            await trio.testing.wait_all_tasks_blocked()
        for note in runtime.notifications.drain():
            assert note.task_id == task.id and (not is_heard or note.ack())
        env = after_crash(env)
        async with open_runtime(HERE, env=env) as runtime:
            events = runtime.events.subscribe()
            assert runtime.abandon_agent(task.id)
            env = after_crash(env)
            (told,) = (it for it in events.drain() if isinstance(it, TaskAbandoned))
            assert (told.task_id, told.ended_by) == (task.id, "host")
        for _ in range(2):
            async with open_runtime(HERE, env=env) as runtime:
                meta = runtime.agent_meta(task.id)
                assert meta is not None
                assert (meta.status, meta.ended_by) == ("killed", "host")
                assert runtime.unfinished_agents() == []
                told_of = {it.task_id for it in runtime.notifications.drain()}
                assert told_of == (set() if is_heard else {task.id})
            env = after_crash(env)


async def test_an_agent_that_was_refused_after_a_crash_can_be_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The journal takes it for unfinished until then, and nothing tells its end."""
    env = fake_env()
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env) as runtime:
            task = await runtime.launch(Agent(idles, "one"), owner="main")
            await runtime.transcripts.flush()
            env = after_crash(env)
        # Somebody makes it impossible to go on with it.
        path = HERE / f"agent-{task.id}.meta.json"
        said = orjson.loads(env.files.contents(path)) | {"prompt": ""}
        env.files.replace(path, orjson.dumps(said))
        async with open_runtime(HERE, env=env) as runtime:
            assert runtime.tasks() == []
            assert [it.agent_id for it in runtime.unfinished_agents()] == [task.id]
            assert runtime.abandon_agent(task.id)
            env = after_crash(env)
        for _ in range(2):
            async with open_runtime(HERE, env=env) as runtime:
                assert runtime.unfinished_agents() == runtime.tasks() == []
                assert runtime.notifications.drain() == []
                meta = runtime.agent_meta(task.id)
                assert meta is not None
                assert (meta.status, meta.ended_by) == ("killed", "host")
            env = after_crash(env)


# ---- Ended -------------------------------------------------------------------------------


async def fails_at_once(context: AgentContext) -> AsyncIterator[AgentEvent]:
    raise ValueError("no such luck")
    yield


@pytest.mark.parametrize("how", ["completed", "failed", "killed", "lost"])
async def test_an_ended_agent_is_known_after_a_crash_as_any_ended_task(
    autojump_clock: trio.testing.MockClock, how: str
) -> None:
    """Until its end is acknowledged, and then as long as others are; with all that asks
    for it, and it can still be resumed."""
    loops = {"completed": answers, "failed": fails_at_once}
    env, loop = fake_env(), loops.get(how, idles)
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env) as runtime:
            agent = Agent(loop, "look at x", model="m", one_shot=how == "lost")
            task = await runtime.launch(agent, owner="main", description="a look")
            await trio.testing.wait_all_tasks_blocked()
            if how == "killed":
                await runtime.stop(task, by="user")
            await runtime.transcripts.flush()
            before = task.snapshot()
            env = after_crash(env)
        policy = AgentPolicy(run=answers)
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            known = runtime.get(task.id)
            assert runtime.tasks() == [known]
            if how == "lost":
                assert (known.status, known.ended_by) == (FAILED, "crash")
                assert known.error is not None and known.error.type == "HostDied"
            else:
                assert (known.status.value, known.ended_by) == (how, before.ended_by)
                assert (known.result, known.ended_at) == (
                    before.result,
                    before.ended_at,
                )
            for name in ("run_id", "owner", "description", "depth", "prompt", "model"):
                assert getattr(known, name) == getattr(before, name)
            handle = runtime.handle(task.id)
            assert await handle.wait() == known
            assert (await handle.stop()).snapshot == known
            assert [it async for it in handle.events()] == []
            assert not known.notified
            (output,) = (
                it for it in runtime.tools_for("main") if it.name == "TaskOutput"
            )
            answer = await output.call({"task_id": task.id})
            assert answer.data["status"] == known.status.value
            # By that answer.
            assert runtime.get(task.id).notified
            assert runtime.notifications.drain() == []
            if how != "lost":
                again = await (await runtime.resume(task.id)).wait()
                assert (again.id, again.status) == (task.id, COMPLETED)
                assert runtime.get(task.id) == again
                assert [it.id for it in runtime.tasks()] == [task.id]
            env = after_crash(env)
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            assert len(runtime.tasks()) == (how != "lost")


async def test_a_resume_that_fails_at_once_leaves_the_record_of_an_earlier_program(
    autojump_clock: trio.testing.MockClock,
) -> None:
    env = fake_env()
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env) as runtime:
            task = await runtime.launch(Agent(answers, "look at x"))
            await task.wait()
            await runtime.transcripts.flush()
            env = after_crash(env)
        async with open_runtime(
            HERE, env=env, agents=AgentPolicy(run=fails_at_once)
        ) as runtime:
            known = runtime.get(task.id)
            with pytest.raises(ResumeRefused):
                await runtime.resume(task.id)
            assert runtime.get(task.id) == known
            (note,) = runtime.notifications.drain()
            assert note.ack()
            assert runtime.get(task.id).notified


async def test_an_end_of_an_agent_that_runs_again_is_told_beside_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its program dies twice: the record is that of the run that goes on."""
    env, policy = fake_env(), AgentPolicy(run=idles)
    with trio.fail_after(LONG):
        async with open_runtime(HERE, env=env, agents=policy) as runtime:
            task = await runtime.launch(Agent(answers, "look at x"))
            await task.wait()
            await runtime.resume(task.id)
            await runtime.transcripts.flush()
            env = after_crash(env)
        for _ in range(2):
            async with open_runtime(HERE, env=env, agents=policy) as runtime:
                assert [it.status for it in runtime.tasks()] == [PAUSED]
                assert runtime.get(task.id).status is PAUSED
                notes = runtime.notifications.drain()
                (told,) = (it for it in notes if it.kind == "task")
                assert told.status is COMPLETED
                env = after_crash(env)
