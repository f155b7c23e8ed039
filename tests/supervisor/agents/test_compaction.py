"""Agents of the shipped loop whose conversations are compacted, under a runtime."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import trio

from actors.agent import (
    Agent,
    AssistantMessage,
    Message,
    TokensUsed,
    ToolUse,
    UserMessage,
)
from actors.models import loop
from actors.testing import fake_env
from supervisor.agents import AgentPolicy
from supervisor.permissions import Permissions
from supervisor.runtime import open_runtime

TOO_LONG = 60.0
TODOS = [{"content": "look", "status": "in_progress"}]


class Model:
    """Makes the calls of `turns`, and says a text that is one of them. Each request
    has used nearly all of its context, from the third on."""

    context_tokens = 1_000

    def __init__(self, *turns: Any) -> None:
        self.turns = list(turns)
        self.asked: list[Sequence[Message]] = []
        self.summaries = 0

    async def reply(
        self, messages: Sequence[Message], tools: Any = (), system: Any = None
    ) -> AsyncGenerator[Any, None]:
        await trio.lowlevel.checkpoint()
        last = messages[-1]
        if isinstance(last, UserMessage) and "which you write now" in last.text:
            self.summaries += 1
            yield AssistantMessage("Much was done.")
            return
        self.asked.append(messages)
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        if isinstance(turn, str):
            yield AssistantMessage(turn)
            return
        yield TokensUsed(input_tokens=300 * len(self.asked))
        uses = tuple(
            ToolUse(f"u{len(self.asked)}-{place}", name, arguments)
            for place, (name, arguments) in enumerate(turn)
        )
        yield AssistantMessage("", uses)


def reminders(messages: Sequence[Message]) -> list[str]:
    return [
        it.text
        for it in messages
        if isinstance(it, UserMessage) and it.origin == "reminder"
    ]


LOOKS = [("TaskList", {})]
STARTS = [
    (
        "Bash",
        {
            "command": "sleep 600",
            "description": "wait & see",
            "run_in_background": True,
        },
    )
]


async def test_what_runs_is_said_with_each_request_also_after_a_compaction(
    tmp_path: Path,
) -> None:
    """000: the running tasks stand before the model, and in no transcript."""
    model = Model(STARTS, LOOKS, LOOKS, [("TaskStop", {"task_id": "?"})], "done")

    async def stop_it() -> None:
        while len(model.asked) < 4:
            await trio.lowlevel.checkpoint()
        await runtime.stop_all(owner=task.id)

    policy = AgentPolicy(permissions=Permissions(mode="bypass"))
    with trio.fail_after(TOO_LONG):
        async with (
            open_runtime(tmp_path, agents=policy) as runtime,
            trio.open_nursery() as nursery,
        ):
            task = await runtime.launch(Agent(loop(model), "go"))
            nursery.start_soon(stop_it)
            done = await task.wait()
            lines = runtime.transcripts.transcript_file(task.id).read_text()
    assert done.result == "done" and model.summaries >= 1
    assert reminders(model.asked[0]) == []
    for asked in model.asked[1:4]:
        (text,) = reminders(asked)
        assert asked[-1] == UserMessage(text, origin="reminder")
        assert text.startswith("Background tasks:\n- [s") and "wait & see" in text
    assert reminders(model.asked[-1]) == []
    assert lines.count("compact_boundary") == model.summaries
    assert "Background tasks" not in lines


async def test_an_agent_goes_on_from_a_compaction_in_another_program(
    tmp_path: Path,
) -> None:
    """002: from the boundary, with what it has kept, and with the plan."""
    env = fake_env()
    first = Model([("TodoWrite", {"todos": TODOS})], LOOKS, LOOKS, LOOKS, "none", "no")
    policy = AgentPolicy(todo_aware=False)
    with trio.fail_after(TOO_LONG):
        async with open_runtime(tmp_path, env=env, agents=policy) as runtime:
            task = await runtime.launch(Agent(loop(first), "The task."))
            assert (await task.wait()).result == "none"
        assert first.summaries >= 1
        second = Model("seen")
        async with open_runtime(tmp_path, env=env, agents=policy) as runtime:
            again = await runtime.resume(
                task.id, "more", agent=Agent(loop(second), "The task.")
            )
            assert (await again.wait()).result == "seen"
    asked = second.asked[0]
    summary, call, answer, *_, more = asked
    assert isinstance(summary, UserMessage) and summary.origin == "summary"
    assert "The task." in summary.text and "Much was done." in summary.text
    assert "- [in_progress] look" in summary.text
    assert isinstance(call, AssistantMessage) and call.tool_uses
    assert isinstance(answer, UserMessage) and answer.tool_answers
    assert isinstance(more, UserMessage) and more.text == "more"
