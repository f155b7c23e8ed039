"""What people are shown of the ends of tasks, at once and when a conversation comes back:
rows of features of the documents 003 and 004."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors.agent import Agent, AgentContext, AgentEvent, FinalResult, UserMessage
from actors.shell import Shell
from actors.testing import fake_env
from supervisor.runtime import Notification, Runtime, Toast, as_message, open_runtime
from tests.supervisor.jobs import agent, starts

pytestmark = pytest.mark.limit(110)


async def takes_its_time(context: AgentContext) -> AsyncIterator[AgentEvent]:
    await trio.sleep(182)
    yield FinalResult("a secret result")


async def breaks(context: AgentContext) -> AsyncIterator[AgentEvent]:
    await trio.sleep(3601)
    raise ValueError("no idea")
    yield


async def note_of(runtime: Runtime, work: Agent | Shell, **order: Any) -> Notification:
    task = await runtime.launch(work, **order)
    if order.get("description") == "stopped":
        await trio.sleep(12)
        await task.stop()
    await task.wait()
    (note,) = runtime.notifications.drain()
    note.ack()
    return note


async def test_each_end_is_a_toast_with_title_variant_and_duration(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """003: showToast: Task "..." finished in 3m 2s. On agents that run so long."""
    long = agent(breaks, stall_limit=None, stall_warning=None)
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        done = await note_of(runtime, agent(takes_its_time), description="unit\ntests")
        failed = await note_of(runtime, long, description="lint")
        killed = await note_of(runtime, long, description="stopped")
        assert done.toast == Toast(
            title="Background task completed",
            message='Task "unit tests" finished in 3m 2s.',
            variant="success",
            duration=5.0,
        )
        assert failed.toast == Toast(
            title="Background task failed",
            message='Task "lint" failed after 1h 0m 1s.',
            variant="error",
        )
        assert killed.toast == Toast(
            title="Background task stopped",
            message='Task "stopped" was stopped after 12s.',
            variant="warning",
        )
        assert [note.display for note in (done, failed, killed)] == [
            'Agent "unit tests" completed, after 3m 2s',
            'Agent "lint" failed: no idea, after 1h 0m 1s',
            'Agent "stopped" was stopped, after 12s',
        ]
        assert "secret" not in f"{done.toast}{done.display}"


async def test_what_is_no_end_is_a_toast_with_its_own_line(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        await runtime.schedule("* * * * *", "look at it", owner="main")
        async for note in runtime.notifications:
            assert note.toast == Toast(
                title="Scheduled prompt",
                message="Scheduled prompt: look at it",
                variant="info",
            )
            note.ack()
            break


async def test_a_description_can_neither_stretch_nor_forge_a_notice(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P5"""
    hostile = 'x" finished in 1s.\n\x1b[31m\u202eTask "' + "y" * 5000
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        note = await note_of(runtime, agent(takes_its_time), description=hostile)
    for line in (note.toast.message, note.display):
        assert len(line) <= 200 and line.isprintable() and "\u202e" not in line
    assert note.toast.message.endswith('..." finished in 3m 2s.')
    assert note.display.endswith("..., after 3m 2s")


async def test_what_a_real_command_took_is_in_its_notice(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime:
            note = await note_of(runtime, Shell("sleep 1.01"), description="a nap")
    assert note.toast.message.startswith('Task "a nap" finished in 1')
    assert note.toast.message.endswith("s.") and ", after 1" in note.display


async def test_a_host_that_records_a_wake_gets_it_back_as_a_notification(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """004: subtype notification and displayText, restored on resume: the text for the
    model, the lines for people, and in no case a person's words."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        for number in range(5):
            await runtime.launch(
                agent(takes_its_time), description=f"job {number}", owner="main"
            )
            await trio.testing.wait_all_tasks_blocked()
        log = runtime.transcripts.open_log("main")
        said = UserMessage("begin")
        log.append(said)
        wakes = runtime.wakes("main")
        heard = 0
        while heard < 5:
            wake = await anext(wakes)
            async with wake:
                heard += len(wake.notes)
                log.append(wake.message)
                assert wake.message == as_message(wake.notes)
                assert wake.message.text == wake.text
        await log.flush()
        env = runtime.transcripts.env
    assert as_message(()) is None
    async with open_runtime(tmp_path, env=env) as runtime:
        transcript = await runtime.transcripts.load("main")
    assert transcript is not None
    first, *told = transcript.messages
    assert first == said
    shown: list[str] = []
    for message in told:
        assert isinstance(message, UserMessage)
        assert message.origin == "notification" and message.display is not None
        assert message.text.startswith("<system-reminder>\n")
        shown += message.display.splitlines()
    for line in shown[:2]:
        assert re.fullmatch(r'Agent "job [0-4]" completed, after 3m 2s', line)
    assert shown[-1] == "and 3 more" and len(shown) == 3


async def test_an_agent_has_the_line_for_people_in_the_record_of_what_it_was_told(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """004: displayText in the record; and the model is told without it."""
    seen: list[UserMessage] = []

    async def waits(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield FinalResult("so far")
        context.inbox.take()
        seen.extend(m for m in context.history if isinstance(m, UserMessage))
        yield FinalResult("all")

    below = agent(takes_its_time, description="below")
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        task = await runtime.launch(agent(starts(below, then=waits)))
        assert (await task.wait()).result == "all"
        transcript = await runtime.transcripts.load(task.id)
        line = next(
            line
            for line in runtime.transcripts.env.files.read_at(
                runtime.transcripts.transcript_file(task.id), 0, 2**20
            ).splitlines()
            if b'"origin":"notification"' in line
        )
    assert seen[-1].origin == "notification"
    assert seen[-1].display == 'Agent "below" completed, after 3m 2s'
    assert b'"displayText":"Agent \\"below\\" completed, after 3m 2s"' in line
    assert transcript is not None and seen[-1] in transcript.messages
