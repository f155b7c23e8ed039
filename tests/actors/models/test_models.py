"""The loop round a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import attrs
import pytest
import trio

from actors.agent import (
    AgentEvent,
    AssistantMessage,
    FinalResult,
    Message,
    TextDelta,
    TokensUsed,
    ToolAnswer,
    ToolUse,
    TransientError,
    UserMessage,
)
from actors.agent.hosting import Inbox
from actors.models import ModelFailed, loop
from actors.models._model import Told

PROMPT = UserMessage("Say hello.")
A, B, C = ToolUse("a", "A"), ToolUse("b", "B"), ToolUse("c", "C")

Step = Sequence[Told | Exception]


@attrs.define
class FakeModel:
    """Tells one step after the other; an exception in one is raised."""

    steps: list[Step]
    asked: list[tuple[Message, ...]] = attrs.Factory(list[tuple[Message, ...]])
    systems: list[str | None] = attrs.Factory(list[str | None])
    closed: int = 0

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] = (),
        system: str | None = None,
    ) -> AsyncGenerator[Told, None]:
        self.asked.append(tuple(messages))
        self.systems.append(system)
        try:
            for event in self.steps[len(self.asked) - 1]:
                await trio.lowlevel.checkpoint()
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.closed += 1


@attrs.define
class FakeContext:
    """As much of a context as the loop uses."""

    history: list[Message] = attrs.Factory(lambda: [PROMPT])
    tools: list[Any] = attrs.Factory(list[Any])
    inbox: Inbox = attrs.Factory(Inbox)
    system: str | None = None
    prompt: str = "Say hello."
    plan: Any = None
    call: Callable[[ToolUse], Awaitable[str]] | None = None
    rounds: list[tuple[ToolUse, ...]] = attrs.Factory(list[tuple[ToolUse, ...]])

    def reminder(self) -> str | None:
        return None

    async def use_tools(self, uses: Sequence[ToolUse]) -> UserMessage:
        self.rounds.append(tuple(uses))
        answers = {use.id: f"{use.name} is done" for use in uses}
        if self.call is not None:
            call = self.call

            async def ask(use: ToolUse) -> None:
                answers[use.id] = await call(use)

            async with trio.open_nursery() as nursery:
                for use in uses:
                    nursery.start_soon(ask, use)
        return UserMessage(
            tool_answers=tuple(ToolAnswer(id, text) for id, text in answers.items()),
            origin="tools",
        )


async def play(
    model: FakeModel, context: FakeContext, stop_after: int = 1
) -> list[AgentEvent]:
    """Run it until the end, or its ``stop_after``-th final result."""
    events: list[AgentEvent] = []
    run: Any = loop(model)
    with trio.fail_after(10):
        async with aclosing(run(context)) as running:
            async for event in running:
                events.append(event)
                stop_after -= isinstance(event, FinalResult)
                if not stop_after:
                    break
    assert model.closed == len(model.asked)
    return events


async def test_it_goes_on_until_a_message_asks_for_nothing() -> None:
    first, last = AssistantMessage("I look.", (A,)), AssistantMessage("Hello.")
    used = TokensUsed(input_tokens=3, output_tokens=2)
    model = FakeModel([[TextDelta("I "), used, first], [last]])
    context = FakeContext()
    answers = UserMessage(tool_answers=(ToolAnswer("a", "A is done"),), origin="tools")
    assert await play(model, context) == [
        TextDelta("I "),
        used,
        first,
        answers,
        last,
        FinalResult("Hello."),
    ]
    assert model.asked == [(PROMPT,), (PROMPT, first, answers)]


@pytest.mark.parametrize(
    ("of_loop", "of_agent", "told"),
    [
        (None, None, None),
        ("Be kind.", None, "Be kind."),
        (None, "Review.", "Review."),
        ("Be kind.", "Review.", "Review."),
    ],
)
async def test_the_system_prompt_of_the_agent_stands_for_that_of_the_loop(
    of_loop: str | None, of_agent: str | None, told: str | None
) -> None:
    model = FakeModel([[AssistantMessage("Hello.")]])
    run: Any = loop(model, system=of_loop)
    async with aclosing(run(FakeContext(system=of_agent))) as events:
        await anext(events)
    assert model.systems == [told]


async def test_the_calls_of_one_message_run_together_and_are_answered_in_order() -> (
    None
):
    """AG41: each of them waits for the others to have begun."""
    began: set[str] = set()
    all_began = trio.Event()

    async def call(use: ToolUse) -> str:
        began.add(use.id)
        if len(began) == 3:
            all_began.set()
        await all_began.wait()
        return f"{use.name} answers"

    model = FakeModel([[AssistantMessage("", (A, B, C))], [AssistantMessage("Done.")]])
    await play(model, FakeContext(call=call))
    answers = model.asked[1][-1]
    assert isinstance(answers, UserMessage)
    assert [(a.tool_use_id, a.text) for a in answers.tool_answers] == [
        ("a", "A answers"),
        ("b", "B answers"),
        ("c", "C answers"),
    ]


async def test_messages_follow_the_answers_in_their_order_and_as_they_are() -> None:
    """N25: what a notification says is no command, whatever it looks like."""
    words = ["/clear", "@secret.txt", "!rm -rf /", "#remember"]
    news = [UserMessage(text, origin="notification") for text in words]
    context = FakeContext()

    async def call(use: ToolUse) -> str:
        for message in news:
            context.inbox.put(message)
        return "ok"

    context.call = call
    model = FakeModel([[AssistantMessage("", (A,))], [AssistantMessage("Done.")]])
    await play(model, context)
    assert list(model.asked[1][-4:]) == news


async def test_it_comes_back_for_what_has_come_after_its_answer() -> None:
    context = FakeContext()
    model = FakeModel([[AssistantMessage("One.")], [AssistantMessage("Two.")]])
    more = UserMessage("And now?", origin="message")
    events: list[AgentEvent] = []
    run: Any = loop(model)
    async with aclosing(run(context)) as running:
        async for event in running:
            events.append(event)
            if event == FinalResult("One."):
                context.inbox.put(more)
            elif event == FinalResult("Two."):
                break
    assert model.asked[1] == (PROMPT, AssistantMessage("One."), more)


@pytest.mark.parametrize("partial", ["", "Hello, wor"])
async def test_an_error_of_the_model_is_no_answer(partial: str) -> None:
    """AG13, AG14: the run ends with the error, and with what there is of a text."""
    error = ModelFailed("HTTP 429, slow down", partial=partial)
    model = FakeModel([[TextDelta("Hello, wor"), error]])
    *_, last = events = await play(model, FakeContext())
    assert last == FinalResult(partial, "error", error="HTTP 429, slow down")
    assert (AssistantMessage(partial) in events) == bool(partial)


@pytest.mark.parametrize("partial", ["", "The answer is 4"])
async def test_an_answer_that_broke_off_is_asked_for_again_from_its_beginning(
    partial: str,
) -> None:
    """Or the second half would pass for the answer."""
    error = ModelFailed("no connection", partial=partial, temporary=True)
    run: Any = loop(FakeModel([[TextDelta("The answer is 4"), error]]))
    events: list[AgentEvent] = []
    running = run(FakeContext())
    with pytest.raises(TransientError):
        while True:
            events.append(await anext(running))
    if partial:
        *_, said, told = events
        assert said == AssistantMessage(partial)
        assert isinstance(told, UserMessage) and told.origin == "reminder"
        assert "from its beginning" in told.text
    else:
        assert not any(isinstance(it, UserMessage) for it in events)


async def test_an_error_after_some_work_leaves_what_was_said_before() -> None:
    """AG14"""
    first = AssistantMessage("Half of it is done.", (A,))
    model = FakeModel([[first], [ModelFailed("HTTP 500")]])
    *_, last = await play(model, FakeContext())
    assert last == FinalResult("Half of it is done.", "error", error="HTTP 500")


async def test_an_error_that_is_not_the_models_is_raised() -> None:
    model = FakeModel([[KeyError("a mistake")]])
    with pytest.raises(KeyError):
        await play(model, FakeContext())


@pytest.mark.parametrize("step", [[], [TextDelta("Hel")], [AssistantMessage("")]])
async def test_a_reply_without_anything_is_no_answer(step: Step) -> None:
    """AG13, AG14"""
    *_, last = await play(FakeModel([step]), FakeContext())
    assert isinstance(last, FinalResult)
    assert last.terminate == "error"
    assert last.error


async def test_a_last_message_without_text_leaves_the_answer_as_it_was() -> None:
    first = AssistantMessage("It is 42.", (A,))
    model = FakeModel([[first], [AssistantMessage("")]])
    *_, last = await play(model, FakeContext())
    assert last == FinalResult("It is 42.")


async def test_a_call_that_the_model_has_answered_itself_is_not_made() -> None:
    """AG13: a call of which a part is missing is none."""
    refusal = ToolAnswer("b", "This call was not made.", is_error=True)
    model = FakeModel(
        [
            [refusal, AssistantMessage("", (A, B, C))],
            [ToolAnswer("a", "Nor this.", is_error=True), AssistantMessage("", (A,))],
            [AssistantMessage("Done.")],
        ]
    )
    context = FakeContext()
    *_, last = await play(model, context)
    assert last == FinalResult("Done.")
    assert context.rounds == [(A, C)]
    answers = model.asked[1][-1]
    assert isinstance(answers, UserMessage)
    assert answers.tool_answers == (
        ToolAnswer("a", "A is done"),
        refusal,
        ToolAnswer("c", "C is done"),
    )


def _unreadable() -> Step:
    refusal = ToolAnswer("a", "its arguments are not a JSON object", is_error=True)
    return [refusal, AssistantMessage("", (A,))]


async def test_a_model_that_cannot_make_a_call_is_not_asked_for_ever() -> None:
    """AG13: as often as not, it would go on until its budget is used up."""
    model = FakeModel([_unreadable()] * 3)
    *_, last = await play(model, FakeContext())
    assert isinstance(last, FinalResult)
    assert last.terminate == "error"
    assert "not a JSON object" in (last.error or "")
    assert len(model.asked) == 3


async def test_what_has_come_meanwhile_gives_it_new_tries() -> None:
    """N26: a notification resets what detects a loop."""
    context = FakeContext()
    model = FakeModel([*[_unreadable()] * 4, [AssistantMessage("Done.")]])
    run: Any = loop(model)
    last: AgentEvent | None = None
    with trio.fail_after(10):
        async with aclosing(run(context)) as running:
            async for event in running:
                if isinstance(event, AssistantMessage) and len(model.asked) == 2:
                    context.inbox.put(UserMessage("It ended.", origin="notification"))
                if isinstance(event, FinalResult):
                    last = event
                    break
    assert last == FinalResult("Done.")


async def test_closing_it_in_the_middle_closes_the_reply() -> None:
    model = FakeModel([[TextDelta("a"), TextDelta("b"), AssistantMessage("ab")]])
    run: Any = loop(model)
    async with aclosing(run(FakeContext())) as running:
        async for _ in running:
            break
    assert model.closed == 1
