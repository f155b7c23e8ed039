"""What a comparison with the documents that this project began with found missing or
wrong in early versions, each run as its user would run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    ToolUse,
)
from actors.shell import Shell
from supervisor.agents import AgentPolicy
from supervisor.permissions import Permissions
from supervisor.runtime import open_runtime
from supervisor.settings_file import read_hooks
from supervisor.tools import Field, Tool, ToolResult

COMMAND = [sys.executable, "-m", "supervisor.cli"]
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a Unix system")


async def edit(call: Any) -> ToolResult:
    """A host's tool that does what its name says."""
    await trio.Path(call.arguments["file_path"]).write_text("edited")
    return ToolResult("done")


def editor() -> Tool:
    return Tool("Edit", "Edits a file.", [Field("file_path", "Which.")], edit)


def script(tmp_path: Path, *turns: dict[str, Any]) -> str:
    last = {"text": "I was told: {answer}"}
    path = tmp_path / "script.json"
    path.write_text(
        json.dumps({"agents": {"lead": {"prompt": "Go.", "turns": [*turns, last]}}})
    )
    return str(path)


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_an_agent_edits_where_its_host_is_and_through_no_link_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PM12: without a directory of its own, and by absolute paths; real files."""
    home, outside = tmp_path / "home", tmp_path / "outside"
    home.mkdir()
    outside.mkdir()
    (outside / "file").write_text("as it was")
    (home / "link").symlink_to(outside)
    monkeypatch.chdir(home)
    refused: list[bool] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for number, path in enumerate((home / "file", home / "link" / "file")):
            use = ToolUse(str(number), "Edit", {"file_path": str(path)})
            yield AssistantMessage("", (use,))
            message = await context.use_tools([use])
            refused.extend(answer.is_error for answer in message.tool_answers)
            yield message
        yield FinalResult("done")

    policy = AgentPolicy(
        permissions=Permissions(mode="acceptEdits"), tools=lambda *_: [editor()]
    )
    with trio.fail_after(30):
        async with open_runtime(home / "run", agents=policy) as runtime:
            task = await runtime.launch(Agent(loop, "edit"))
            assert (await task.wait()).result == "done"
    assert refused == [False, True]
    assert (home / "file").read_text() == "edited"
    assert (outside / "file").read_text() == "as it was"


def test_a_question_that_nobody_can_answer_is_refused_and_never_waits(
    tmp_path: Path,
) -> None:
    """The mode bubble, without a terminal and without --json."""
    file = script(tmp_path, {"tools": [{"Bash": {"command": "touch here"}}]})
    run = start(tmp_path, "agent", "--permission-mode", "bubble", file)
    _, said = run.communicate(timeout=50)
    assert run.returncode != 0 and "bubble" in said
    assert not (tmp_path / "here").exists()


def test_a_question_as_json_is_answered_by_a_line(tmp_path: Path) -> None:
    file = script(tmp_path, {"tools": [{"Bash": {"command": "touch here"}}]})
    run = start(tmp_path, "agent", "--json", "--permission-mode", "bubble", file)
    assert run.stdin is not None and run.stdout is not None
    asked: list[str] = []
    for line in run.stdout:
        event = json.loads(line)
        if event["kind"] == "ApprovalRequested":
            asked.append(event["approval_id"])
            run.stdin.write(
                json.dumps({"approval_id": event["approval_id"], "allow": True}) + "\n"
            )
            run.stdin.flush()
    run.communicate(timeout=50)
    assert len(asked) == 1 and (tmp_path / "here").exists()
    assert run.returncode == 0


async def test_the_call_after_a_notification_is_not_the_twentieth_in_a_row(
    tmp_path: Path,
) -> None:
    """N26: with the limit that there is, and a real command that ends."""
    refused: list[bool] = []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        for number in range(41):
            if number == 19:
                await context.launch(Shell("true"))
                await context.wait_own_tasks()
                (news,) = context.inbox.take()
                assert news.origin == "notification"
            use = ToolUse(str(number), "TaskList", {})
            yield AssistantMessage("", (use,))
            message = await context.use_tools([use])
            refused.extend(answer.is_error for answer in message.tool_answers)
            yield message
        yield FinalResult("done")

    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(Agent(loop, "list"))
            assert (await task.wait()).result == "done"
    assert not any(refused[:20])
    # Nineteen before it, and then so many that it is stopped.
    assert refused.index(True) == 19 + 19


async def test_hooks_of_a_file_get_the_session_and_the_directory(
    tmp_path: Path,
) -> None:
    """The format of that document, and real values."""
    seen = tmp_path / "seen"
    file = tmp_path / "hooks.json"
    hook = {"type": "command", "command": f"cat >> {seen}; echo >> {seen}"}
    file.write_text(
        json.dumps(
            {"hooks": {"SubagentStart": [{"matcher": "Explore", "hooks": [hook]}]}}
        )
    )
    hooks, problems = read_hooks(file)
    assert problems == []

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield FinalResult("done")

    with trio.fail_after(40):
        async with open_runtime(
            tmp_path / "run", agents=AgentPolicy(hooks=hooks)
        ) as runtime:
            for kind in ("Explore", "other"):
                await (await runtime.launch(Agent(loop, "look", type=kind))).wait()
    (told,) = [json.loads(line) for line in seen.read_text().splitlines() if line]
    assert told["agent_type"] == "Explore"
    assert told["session_id"] and Path(told["cwd"]) == Path.cwd()


def test_sigterm_ends_a_program_within_a_few_seconds(tmp_path: Path) -> None:
    """Whatever its commands think of SIGTERM."""
    deaf = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    run = start(tmp_path, "run", "--json", "-c", deaf)
    assert run.stdout is not None
    asked = ended = 0.0
    for line in run.stdout:
        event = json.loads(line)
        if event["kind"] == "TaskProgress" and not asked:
            run.send_signal(signal.SIGTERM)
        elif event["kind"] == "TaskStopRequested":
            asked = event["time"]
        elif event["kind"] == "TaskEnded":
            ended = event["time"]
    run.communicate(timeout=50)
    assert run.returncode == 128 + signal.SIGTERM
    assert 0 < ended - asked < 4.5
