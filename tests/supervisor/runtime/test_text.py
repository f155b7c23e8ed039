"""Arbitrary text on every public path: it can be told, read and gone on with."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from xml.parsers import expat

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.agent import (
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
    Note,
    TextDelta,
    TodoItem,
    TodoList,
    ToolAnswer,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from actors.models import anthropic, openai
from actors.testing import fake_env
from supervisor.runtime import open_runtime, to_json
from tests.supervisor.jobs import COMPLETED, agent

TEXTS = st.text(
    st.sampled_from("a b\n\x1b]0;<&\"'\0\u202e\ud83d\ude00\udcff\ud800é"), max_size=8
)


async def converse(texts: list[str]) -> None:
    """Say ``texts`` wherever somebody can say something, and go on with it."""
    prompt, description, owner, name, key, value, said, answer = texts
    use = ToolUse("1" + name, name, {key: {key: [value]}, "x": value})
    failing = name < said

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield Note(said)
        yield TextDelta(said)
        yield TodoList((TodoItem(said, "completed"),))
        yield ToolStarted(use.id, use.name, use.input)
        yield AssistantMessage(said, (use,), raw={key: value})
        yield UserMessage(origin="tools", tool_answers=(ToolAnswer(use.id, value),))
        # What is said to a model now.
        for message in (
            anthropic.to_anthropic(context.history),
            openai.to_openai(context.history, prompt),
        ):
            json.dumps(message, ensure_ascii=False).encode()
        if failing:
            yield FinalResult(answer, "error", error=said)
        else:
            yield FinalResult(answer + "!")

    async with open_runtime("/tasks", env=fake_env()) as runtime:
        reader = runtime.events.subscribe(agents=True)
        task = await runtime.launch(
            agent(loop, f"do it {prompt}"),
            description=description,
            owner=owner,
            tool_use_id=value,
        )
        done = await task.wait()
        assert failing or done.status is COMPLETED
        # It goes on with what the transcript holds.
        again = await runtime.resume(task.id, "and now")
        assert failing or (await again.wait()).status is COMPLETED
        await trio.testing.wait_all_tasks_blocked()
        for note in runtime.notifications.drain():
            expat.ParserCreate().Parse(note.xml.encode(), True)
            note.display.encode()
            assert "\x1b" not in note.display + note.xml
        for event in reader.drain():
            json.loads(to_json(event))
    for event in reader.drain():
        json.loads(to_json(event))


@settings(max_examples=40, deadline=None)
@given(st.lists(TEXTS, min_size=8, max_size=8))
def test_no_text_on_any_public_path_fails_an_agent_or_a_reader(
    texts: list[str],
) -> None:
    """P5, P10: prompt, description, owner, names and arguments of tools, answers,
    results and errors, with halves of surrogate pairs, escapes and controls."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(converse, texts, clock=clock)
