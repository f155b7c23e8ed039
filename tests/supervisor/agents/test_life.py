"""What a runtime does round the runs of an agent: hooks, approvals, transcripts."""

# A block that may end early leaves its names unbound.
# pyright: reportPossiblyUnboundVariable=false
from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from actors.agent import (
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from supervisor.agents import AgentPolicy
from supervisor.hooks import Hook, Hooks
from supervisor.permissions import Permissions, Rule, ToolRequest, Verdict
from supervisor.runtime import ApprovalAnswered, UnknownTask, open_runtime
from supervisor.tools import Tool, ToolResult
from supervisor.tree import Backoff
from tests.supervisor.jobs import (
    COMPLETED,
    FAILED,
    KILLED,
    agent,
    answers,
    files,
    idles,
    returns,
    starts,
)

TOO_LONG = 30.0


class Calls:
    """Hooks that say when they were called."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def policy(self) -> AgentPolicy:
        hooks = Hooks(start=(Hook(self.start),), stop=(Hook(self.stop),))
        return AgentPolicy(hooks=hooks)

    async def start(self, facts: Mapping[str, Any]) -> str:
        self.said.append(("start", facts["agent_id"]))
        return "mind the gap"

    async def stop(self, facts: Mapping[str, Any]) -> None:
        self.said.append(("stop", facts["agent_id"]))


async def breaks(context: AgentContext) -> AsyncIterator[AgentEvent]:
    raise ValueError("broken")
    yield FinalResult("never")


@pytest.mark.parametrize("how", ["completes", "fails", "is stopped", "is left"])
async def test_each_start_has_one_stop_on_every_path(how: str, tmp_path: Path) -> None:
    """HK5: also where the stop can block nothing any more."""
    calls = Calls()
    loop = {"completes": answers, "fails": breaks}.get(how, idles)
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path, agents=calls.policy()) as runtime:
            task = await runtime.launch(agent(loop))
            await trio.testing.wait_all_tasks_blocked()
            if how == "is stopped":
                await task.stop()
            if how != "is left":
                await task.wait()
                assert calls.said == [("start", task.id), ("stop", task.id)]
    assert calls.said == [("start", task.id), ("stop", task.id)]


async def test_what_a_start_hook_says_is_in_the_history(tmp_path: Path) -> None:
    """HK6: before the first prompt."""
    seen: list[tuple[str, str]] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for message in context.history:
            assert isinstance(message, UserMessage)
            seen.append((message.origin, message.text))
        yield FinalResult("done")

    async with open_runtime(tmp_path, agents=Calls().policy()) as runtime:
        task = await runtime.launch(agent(loop, "the prompt"))
        with trio.fail_after(TOO_LONG):
            await task.wait()
    assert seen == [("hook", "mind the gap"), ("prompt", "the prompt")]


# Tools


class Echo(Tool):
    """A tool of the host that says what it was told."""

    def __init__(self) -> None:
        self.calls: list[object] = []

        async def act(call: object) -> ToolResult:
            return ToolResult("never")

        super().__init__("Echo", "Says it again.", (), act)

    async def call(
        self, arguments: object, *, tool_use_id: str | None = None
    ) -> ToolResult:
        self.calls.append((tool_use_id, arguments))
        return ToolResult(f"heard {arguments}")


def asks(*uses: ToolUse, answered: list[ToolAnswer]) -> Any:
    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("asking", uses)
        message = await context.use_tools(uses)
        answered.extend(message.tool_answers)
        yield message
        yield FinalResult("done")

    return loop


def with_echo(echo: Echo, permissions: Permissions) -> AgentPolicy:
    return AgentPolicy(
        permissions=permissions, tools=lambda runtime, agent_id: [echo], breaker=3
    )


async def test_a_call_is_of_a_known_tool_then_not_one_too_many_then_judged(
    tmp_path: Path,
) -> None:
    """Each time the first that refuses has the word, and the next is not asked."""
    judged: list[str] = []

    async def ask(request: ToolRequest) -> Verdict:
        judged.append(request.tool_use.name)
        return Verdict(False, "I said no")

    permissions = Permissions(rules=[Rule("deny", "Bash")], ask=[ask])
    answered: list[ToolAnswer] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for number, name in enumerate(["Bash", *["Echo"] * 4]):
            use = ToolUse(str(number), name, {"command": "true"})
            yield AssistantMessage("asking", (use,))
            message = await context.use_tools([use])
            answered.extend(message.tool_answers)
            yield message
        yield FinalResult("done")

    policy = with_echo(Echo(), permissions)  # The third in a row is too many.
    async with open_runtime(tmp_path, agents=policy) as runtime:
        task = await runtime.launch(agent(loop, disallowed_tools=["Bash"]))
        with trio.fail_after(TOO_LONG):
            assert (await task.wait()).status is COMPLETED
    unknown, *echoes = [answer.text for answer in answered]
    assert "There is no tool 'Bash'" in unknown
    assert ["I said no" in text for text in echoes] == [True, True, False, False]
    assert all("in a row" in text for text in echoes[2:])
    assert judged == ["Echo"] * 2


async def test_a_call_that_is_not_allowed_never_reaches_its_tool(
    tmp_path: Path,
) -> None:
    echo = Echo()
    policy = with_echo(echo, Permissions())
    answered: list[ToolAnswer] = []
    async with open_runtime(tmp_path, agents=policy) as runtime:
        loop = asks(
            ToolUse("1", "Echo"),
            ToolUse("2", "Bash", {"command": "true"}),
            answered=answered,
        )
        task = await runtime.launch(agent(loop, disallowed_tools=["Bash"]))
        with trio.fail_after(TOO_LONG):
            assert (await task.wait()).status is COMPLETED
    first, second = answered
    assert first.is_error and second.is_error
    assert "There is no tool 'Bash'" in second.text
    assert echo.calls == []


async def test_the_same_call_again_and_again_is_refused(tmp_path: Path) -> None:
    """AG31: at the number that the policy says."""
    echo = Echo()
    policy = with_echo(echo, Permissions(mode="bypass"))
    answered: list[ToolAnswer] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for number in range(5):
            use = ToolUse(str(number), "Echo", {"x": 1})
            yield AssistantMessage("asking", (use,))
            message = await context.use_tools((use,))
            answered.extend(message.tool_answers)
            yield message
        yield FinalResult("done")

    async with open_runtime(tmp_path, agents=policy) as runtime:
        task = await runtime.launch(agent(loop))
        with trio.fail_after(TOO_LONG):
            await task.wait()
    assert [answer.is_error for answer in answered] == [False, False, True, True, True]
    assert len(echo.calls) == 2


@pytest.mark.parametrize("news", ["message", "notification", "nothing"])
async def test_what_an_agent_is_told_begins_the_count_of_its_calls_anew(
    tmp_path: Path, news: str
) -> None:
    """N26, AG31: three times over; an answer of a tool or a reminder does not."""
    policy = with_echo(Echo(), Permissions(mode="bypass"))
    verdicts: list[bool] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for number in range(12):
            if number in (2, 4, 6):
                if news == "message":
                    await runtime.send(context.agent_id, "go on")
                elif news == "notification":
                    await context.launch(returns(number))
                    await context.wait_own_tasks()
                taken = context.inbox.take()
                assert [message.origin for message in taken] == (
                    [] if news == "nothing" else [news]
                )
                yield UserMessage("do not give up", origin="reminder")
            use = ToolUse(str(number), "Echo", {"x": 1})
            yield AssistantMessage("asking", (use,))
            message = await context.use_tools((use,))
            verdicts.extend(answer.is_error for answer in message.tool_answers)
            yield message
        yield FinalResult("done")

    async with open_runtime(
        tmp_path, agents=attrs.evolve(policy, breaker=3)
    ) as runtime:
        task = await runtime.launch(agent(loop))
        with trio.fail_after(TOO_LONG):
            assert (await task.wait()).error is None
    made = 2 if news == "nothing" else 8
    assert verdicts == [False] * made + [True] * (12 - made)


@pytest.mark.parametrize("how", ["stop", "stop all", "leave", "answer"])
async def test_a_call_that_is_parked_is_answered_on_every_path(
    how: str, tmp_path: Path
) -> None:
    """PM7, SD5: before its agent is cancelled, or by the host."""
    echo = Echo()
    answered: list[ToolAnswer] = []
    loop = asks(ToolUse("1", "Echo", {"x": 1}), answered=answered)
    policy = with_echo(echo, Permissions(mode="bubble"))
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path, agents=policy) as runtime:
            mine = runtime.events.subscribe()
            task = await runtime.launch(agent(loop))
            while not runtime.approvals.pending():
                await trio.testing.wait_all_tasks_blocked()
            assert task.snapshot().waiting == "approval"
            (approval,) = runtime.approvals.pending()
            assert approval.agent_id == task.id
            if how == "stop":
                await task.stop()
            elif how == "stop all":
                await runtime.stop_all()
            elif how == "answer":
                assert runtime.approvals.answer(approval.id, True)
                assert (await task.wait()).status is COMPLETED
    (answer,) = [e for e in mine.drain() if isinstance(e, ApprovalAnswered)]
    assert (answer.allowed, answer.by) == (
        (True, "host") if how == "answer" else (False, "end")
    )
    assert runtime.approvals.pending() == []
    assert not runtime.approvals.answer(approval.id, True)
    assert len(echo.calls) == (1 if how == "answer" else 0)
    assert task.snapshot().waiting is None


# Transcripts


async def test_the_transcript_is_whole_when_the_end_is_told(tmp_path: Path) -> None:
    """P2: whatever the end is."""

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for number in range(50):
            yield AssistantMessage(f"message {number}")
        if context.prompt == "fail":
            raise ValueError("broken")
        if context.prompt == "wait":
            waits.set()
            await trio.sleep_forever()
        yield FinalResult("done")

    waits = trio.Event()
    async with open_runtime(tmp_path) as runtime:
        for prompt, status in (
            ("complete", COMPLETED),
            ("fail", FAILED),
            ("wait", KILLED),
        ):
            task = await runtime.launch(agent(loop, prompt))
            with trio.fail_after(TOO_LONG):
                if prompt == "wait":
                    await waits.wait()
                    await task.stop()
                assert (await task.wait()).status is status
                text = read(tmp_path / f"agent-{task.id}.jsonl")
            assert "message 49" in text


def read(path: Path) -> str:
    return path.read_text()


async def test_the_output_of_an_agent_is_its_transcript_while_it_runs(
    tmp_path: Path,
) -> None:
    """OF4, and with the record the link goes, but not the transcript."""
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(agent(idles, "the prompt"), notify="silent")
        output = task.snapshot().output_file
        assert output == tmp_path / f"{task.id}.output"
        with trio.fail_after(TOO_LONG):
            await anext(task.events())
            await task.stop()
            assert "the prompt" in read(tmp_path / f"{task.id}.output")
            for _ in range(40):
                other = await runtime.launch(agent(), notify="silent")
                await other.wait()
        names = files(tmp_path)
        assert f"{task.id}.output" not in names
        assert f"agent-{task.id}.jsonl" in names
        assert f"agent-{task.id}.meta.json" in names
        with pytest.raises(UnknownTask):
            runtime.handle(task.id)
        # It can be gone on with, by what is in the directory.
        with trio.fail_after(TOO_LONG):
            again = await runtime.resume(task.id, agent=agent(answers))
            assert (await again.wait()).status is COMPLETED
        assert f"{task.id}.output" in files(tmp_path)


async def test_the_output_of_an_agent_is_read_by_its_id_and_never_by_a_link(
    tmp_path: Path,
) -> None:
    """OF4: wherever the link leads by now."""
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    secret.write_text("a secret\n")
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(agent(answers, "the prompt"))
        with trio.fail_after(TOO_LONG):
            await task.wait()
        link = tmp_path / f"{task.id}.output"
        link.unlink()
        link.symlink_to(secret)
        lines = task.read_tail().splitlines()
        contents = [json.loads(line)["message"]["content"] for line in lines]
        assert [parts[0]["text"] for parts in contents] == ["the prompt", "the answer"]
        whole = task.read()
        assert whole.text == read(tmp_path / f"agent-{task.id}.jsonl")
        assert whole.done and task.read(whole.next_offset).text == ""
        cut = task.read_tail(len(lines[-1]) + 250, whole_lines=True)
        assert cut.endswith(f"\n{lines[-1]}\n") and "[Truncated. Full" in cut


async def test_an_agent_can_be_followed_while_it_works(tmp_path: Path) -> None:
    """OF4, P9: each message wakes those who wait for it."""
    go_on = trio.Event()

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("I have begun")
        await go_on.wait()
        yield FinalResult("the answer")

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(agent(loop))
        with trio.fail_after(TOO_LONG):
            await task.wait_output("I have begun")
            assert "the answer" not in task.read_tail()
            go_on.set()
            text = "".join([piece async for piece in task.follow()])
    assert text == read(tmp_path / f"agent-{task.id}.jsonl")
    assert text.index("I have begun") < text.index("the answer")


async def test_an_id_of_an_agent_that_was_is_not_given_again(tmp_path: Path) -> None:
    """Ids are unique in the directory as well as in the table."""
    from actors.testing import fake_env

    env = fake_env()
    seen: set[str] = set()
    for _ in range(2):
        async with open_runtime("tasks", env=env) as runtime:
            task = await runtime.launch(agent())
            with trio.fail_after(TOO_LONG):
                await task.wait()
            assert task.id not in seen
            seen.add(task.id)


async def test_nothing_of_an_agent_is_left_open(tmp_path: Path) -> None:
    """P1: no descriptor more than before, whatever the ends."""

    def count() -> int:
        return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    before = count()
    async with open_runtime(tmp_path) as runtime:
        loops = (answers, breaks, idles, starts(agent(idles), then=idles))
        tasks = [await runtime.launch(agent(loop)) for loop in loops]
        with trio.fail_after(TOO_LONG):
            await runtime.wait_all(tasks[:2])
    assert {task.status for task in tasks} == {COMPLETED, FAILED, KILLED}
    assert count() <= before


async def test_a_loop_that_fails_is_run_again_with_what_it_had_said(
    tmp_path: Path,
) -> None:
    """AG37's other side: a failure of a transient agent resumes it."""
    histories: list[list[str]] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        histories.append([getattr(m, "text", "") for m in context.history])
        if len(histories) == 1:
            yield AssistantMessage("half of it")
            raise ValueError("broken")
        yield FinalResult("all of it")

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(
            agent(loop, "the prompt"),
            restart="transient",
            backoff=Backoff(0.01, 0.01),
        )
        with trio.fail_after(TOO_LONG):
            done = await task.wait()
    assert (done.status, done.result) == (COMPLETED, "all of it")
    first, second = histories
    assert first == ["the prompt"]
    assert second[:2] == ["the prompt", "half of it"]


async def test_the_directory_says_in_which_run_an_agent_is(tmp_path: Path) -> None:
    """AG9, TR7: also in one that follows a failure, for whoever goes on with it."""
    began, end = trio.Event(), trio.Event()
    runs: list[str] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        runs.append("run")
        if len(runs) == 1:
            raise ValueError("broken")
        began.set()
        await end.wait()
        yield FinalResult("done")

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(
            agent(loop), restart="transient", backoff=Backoff(0.01, 0.01)
        )
        first = task.snapshot().run_id
        with trio.fail_after(TOO_LONG):
            await began.wait()
            await runtime.transcripts.flush()
            meta = runtime.agent_meta(task.id)
            assert meta is not None
            assert first != meta.run_id == task.snapshot().run_id
            end.set()
            await task.wait()
