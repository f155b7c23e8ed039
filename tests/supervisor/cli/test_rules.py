"""Rules about programs that drive agents, with the command run as people run it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio

from tests.supervisor.cli.test_agent import (
    agent,
    environment,
    processes_of,
    script,
)

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs a Unix system"),
    pytest.mark.limit(130),
]
pytest.importorskip("yaml", reason="the extra `agents` is not installed")

TOO_LONG = 120.0

SLOW = "[{text: begun, tools: [{Bash: {command: sleep 600}}]}]"


@asynccontextmanager
async def started(tmp_path: Path, *arguments: str) -> AsyncGenerator[trio.Process]:
    command = [sys.executable, "-m", "supervisor.cli", "agent", *arguments]
    process = await trio.lowlevel.open_process(
        command, stdout=subprocess.PIPE, env=environment(tmp_path)
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def read_until(process: trio.Process, words: bytes) -> bytes:
    assert process.stdout is not None
    output = b""
    while words not in output:
        chunk = await process.stdout.receive_some()
        assert chunk, output
        output += chunk
    return output


async def read_rest(process: trio.Process) -> bytes:
    assert process.stdout is not None
    return b"".join([chunk async for chunk in process.stdout])


def of_tasks(output: bytes) -> dict[str, list[str]]:
    """The kinds of what was told of each task, in order."""
    told: dict[str, list[str]] = {}
    for line in output.splitlines():
        event: dict[str, Any] = orjson.loads(line)
        if event["kind"] in ("TaskStarted", "TaskEnded", "Notified"):
            told.setdefault(event["task_id"], []).append(event["kind"])
    return told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_each_task_with_one_event_and_the_code_says_so(
    tmp_path: Path, number: signal.Signals
) -> None:
    """HL1, HL3: also of those that an agent has started, before the program ends.
    Whether anybody is left to be notified of it is another matter."""
    host = "[{launch: lead}]"
    path = script(tmp_path, SLOW, host)
    with trio.fail_after(TOO_LONG):
        async with started(tmp_path, str(path), "--json") as process:
            output = await read_until(process, b'"local_bash"')
            process.send_signal(number)
            output += await read_rest(process)
            assert await process.wait() == 128 + number
    told = of_tasks(output)
    assert len(told) == 2
    for kinds in told.values():
        assert [kind for kind in kinds if kind != "Notified"] == [
            *("TaskStarted", "TaskEnded")
        ]
        assert kinds[2:] in ([], ["Notified"])
    assert processes_of(tmp_path) == []


async def test_the_program_stays_until_its_background_agents_have_ended(
    tmp_path: Path,
) -> None:
    """HL3, HL4: though its host has nothing more to do; then all has been told."""
    turns = "[{tools: [{Bash: {command: sleep 0.5}}]}, {text: Now I am done.}]"
    path = script(tmp_path, turns, "[{launch: lead}]")
    done = await agent(tmp_path, path, "--json")
    assert (done.code, done.errors) == (0, "")
    events = done.events()
    (lead,) = [
        event["task_id"]
        for event in events
        if event["kind"] == "TaskStarted" and event["description"] == "lead"
    ]
    kinds = [e["kind"] for e in events if e.get("task_id") == lead]
    assert kinds[0] == "TaskStarted"
    order = [kinds.index(kind) for kind in ("AgentEvent", "TaskEnded", "Notified")]
    assert order == sorted(order)
    assert "Now I am done." in done.output


async def test_what_ends_behind_an_agents_answer_is_waited_for_and_told(
    tmp_path: Path,
) -> None:
    """HL3, HL4: a command that goes on when its agent has said all that it has to
    say; the agent hears of the end, and then its own end is told."""
    sleep = "{Bash: {command: sleep 0.5, run_in_background: true}}"
    turns = f"[{{tools: [{sleep}]}}, {{text: I have said it.}}, {{text: I heard it.}}]"
    path = script(tmp_path, turns, "[{launch: lead}]")
    done = await agent(tmp_path, path, "--json")
    assert (done.code, done.errors) == (0, "")
    order: list[tuple[str, str]] = []
    for event in done.events():
        if event["kind"] in ("TaskStarted", "TaskEnded"):
            who = event["task_type"] if event["kind"] == "TaskStarted" else ""
            order.append((event["kind"], who))
        if (
            event["kind"] == "AgentEvent"
            and event["event"]["type"] == "AssistantMessage"
        ):
            order.append(("said", event["event"]["text"]))
    assert [each for each in order if each != ("said", "")] == [
        ("TaskStarted", "local_agent"),
        ("TaskStarted", "local_bash"),
        ("said", "I have said it."),
        ("TaskEnded", ""),
        ("said", "I heard it."),
        ("TaskEnded", ""),
    ]
    told = [e["task_id"] for e in done.events() if e["kind"] in ("Notified", "Acked")]
    assert len(set(told)) == 2
    assert all(told.count(each) == 2 for each in told)


async def test_the_last_line_of_the_words_for_people_is_whole(tmp_path: Path) -> None:
    """HL8, HL13: and nothing that a command prints is a line of the program's own."""
    command = "echo printed-$((40 + 2))"
    turns = f"[{{tools: [{{Bash: {{command: {command}}}}}]}}, {{text: '{{answer}}'}}]"
    for arguments in ((), ("--json",)):
        done = await agent(tmp_path, script(tmp_path, turns), *arguments)
        assert done.code == 0
        assert done.output.endswith("\n")
        # It has run, and stands in what the agent says, which is indented or quoted.
        assert "printed-42" in done.output
        assert "printed-42" not in done.output.splitlines()
