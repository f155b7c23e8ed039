"""What the shipped loop does for a long task: a plan that counts, a fork, room in the
context, and errors that pass; by the tools that a model has, and by the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import trio

from actors.agent import (
    Agent,
    AssistantMessage,
    Message,
    TokensUsed,
    ToolUse,
    UserMessage,
)
from actors.agent.hosting import since_compaction
from actors.models import loop
from supervisor.agents import AgentPolicy
from supervisor.permissions import Permissions
from supervisor.runtime import TaskSnapshot, open_runtime

Said: TypeAlias = AssistantMessage | UserMessage

TOO_LONG = 50.0
ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "supervisor.cli"]


@attrs.define
class Model:
    """Says one turn after the other: a text or a call."""

    turns: list[str | ToolUse]
    context_tokens: int | None = None
    asked: list[Sequence[Said]] = attrs.field(factory=list[Sequence[Said]])

    async def reply(
        self, messages: Sequence[Message], tools: Any = (), system: Any = None
    ) -> AsyncGenerator[Any, None]:
        self.asked.append(since_compaction(messages))
        await trio.lowlevel.checkpoint()
        turn = self.turns.pop(0)
        size = sum(map(characters, self.asked[-1])) // 4
        yield TokensUsed(input_tokens=size, output_tokens=1)
        if isinstance(turn, str):
            yield AssistantMessage(turn)
        else:
            yield AssistantMessage("I call it.", (turn,))


def answers(message: Said) -> str:
    told = message.tool_answers if isinstance(message, UserMessage) else ()
    return "".join(answer.text for answer in told)


def characters(message: Said) -> int:
    return len(message.text) + len(answers(message))


async def work(directory: Path, model: Model) -> TaskSnapshot:
    run = loop(model)
    policy = AgentPolicy(run=run, permissions=Permissions(mode="bypass"))
    with trio.fail_after(TOO_LONG):
        async with open_runtime(directory, agents=policy) as runtime:
            task = await runtime.launch(Agent(run, "look after the build"))
            return await task.wait()


async def test_a_fork_begins_with_what_its_caller_knows(tmp_path: Path) -> None:
    """002, 004: `forkContext`, the implicit fork, by the tool Agent."""
    call = {"description": "a side task", "prompt": "say it again", "fork": True}
    model = Model([ToolUse("u", "Agent", call), "the fork says 42", "all done"])
    done = await work(tmp_path, model)
    assert done.result == "all done"
    _, in_fork, after = model.asked
    assert [it.text for it in in_fork] == ["look after the build", "say it again"]
    assert "the fork says 42" in answers(after[-1])


async def test_a_conversation_that_fills_the_context_goes_on_from_a_summary(
    tmp_path: Path,
) -> None:
    """002: `compact_boundary`; without one a long agent fails at the end of its
    context."""
    calls = [
        ToolUse(
            f"u{n}", "Bash", {"command": f"seq -s ' ' {n} 2000", "description": "x"}
        )
        for n in range(4)
    ]
    model = Model([*calls, "SUMMARY", "the answer"], context_tokens=10_000)
    done = await work(tmp_path, model)
    assert done.result == "the answer"
    sizes = [sum(map(characters, messages)) // 4 for messages in model.asked]
    assert max(sizes) < 10_000 and sizes[-1] < sizes[-2]
    first = model.asked[-1][0].text
    assert "look after the build" in first and "SUMMARY" in first
    # What it has not answered yet stays as it was.
    assert answers(model.asked[-1][-1]).rstrip().endswith("2000")


def test_a_script_with_a_plan_and_errors_that_pass_comes_to_its_answer(
    tmp_path: Path,
) -> None:
    """003: todo-awareness; an error in the middle of an answer is a pause, one before it
    two more tries, and neither costs the agent its work."""

    def plan(status: str) -> Any:
        return [{"TodoWrite": {"todos": [{"content": "look", "status": status}]}}]

    turns = [
        {"text": "I plan.", "tools": plan("in_progress")},
        {"text": "The answer is", "fail": "overloaded", "passes": 0.5},
        {"fail": "busy", "passes": True, "times": 2},
        {"text": "too early"},
        {"text": "now", "tools": plan("completed")},
        {"text": "The answer is 42."},
    ]
    file = tmp_path / "script.json"
    file.write_text(json.dumps({"agents": {"lead": {"prompt": "go", "turns": turns}}}))
    command = [*COMMAND, "agent", "--json", str(file)]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TOO_LONG,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == 0, run.stderr
    events = [json.loads(line) for line in run.stdout.splitlines()]
    (paused,) = [it for it in events if it["kind"] == "TaskPaused"]
    assert paused["reason"] == "overloaded" and paused["resume_at"] is not None
    (continued,) = [it for it in events if it["kind"] == "TaskContinued"]
    assert continued["by"] == "time" and continued["at"] >= paused["resume_at"]
    said = [it["event"] for it in events if it["kind"] == "AgentEvent"]
    again = [it for it in said if it["type"] == "Retrying"]
    assert [(it["attempt"], it["reason"]) for it in again] == [(1, "busy"), (2, "busy")]
    reminders = [it["text"] for it in said if it.get("origin") == "reminder"]
    assert any("broke off" in text for text in reminders)
    assert any("not done yet:\n- look" in text for text in reminders)
    (ended,) = [it for it in events if it["kind"] == "TaskEnded"]
    assert ended["result"] == "The answer is 42."
