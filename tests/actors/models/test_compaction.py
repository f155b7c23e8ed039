"""Conversations that grow beyond what a model's context holds.

The second half generates them: random calls of tools, sizes, messages, plans,
refusals, summaries that fail, crashes that lose the last records, and resumes. Each
request is compared with a pure model of what it must hold.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import event, given, settings
from hypothesis import strategies as st

from actors.agent import (
    Agent,
    AgentFailed,
    AssistantMessage,
    CompactBoundary,
    Message,
    Note,
    TextDelta,
    TokensUsed,
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from actors.agent.hosting import PlanReader, settled, since_compaction
from actors.models import ModelFailed, loop
from actors.models._compaction import ANSWER_LIMIT, shortened, size_of, split
from actors.models._model import Told
from actors.testing import fake_env, run_agent
from actors.transcript import TranscriptStore
from actors.transcript.hosting import Transcript, TranscriptLog
from tests.actors.agent.agents import Stage
from tests.actors.transcript.transcripts import ID, recorder

PROMPT = UserMessage("The task.")


def asks(*ids: str, text: str = "") -> AssistantMessage:
    return AssistantMessage(text, tuple(ToolUse(id, "Look") for id in ids))


def answers(*ids: str, text: str = "seen") -> UserMessage:
    return UserMessage(
        tool_answers=tuple(ToolAnswer(id, text) for id in ids), origin="tools"
    )


NEWS = UserMessage("psst", origin="message", sender="main")
SAID = AssistantMessage("so")


@pytest.mark.parametrize(
    ("said", "summed_up"),
    [
        ([], 0),
        ([PROMPT], 0),
        ([PROMPT, asks("1"), answers("1")], 1),
        ([PROMPT, asks("1"), answers("1"), NEWS], 1),
        ([PROMPT, asks("1"), answers("1"), SAID], 4),
        ([PROMPT, asks("1"), answers("1"), SAID, NEWS, NEWS], 4),
        ([PROMPT, asks("1"), answers("1"), asks("2"), answers("2"), NEWS], 3),
    ],
)
def test_what_the_model_has_not_answered_stays_with_its_last_calls(
    said: list[Any], summed_up: int
):
    assert split(said) == (said[:summed_up], said[summed_up:])


def test_of_a_long_answer_the_beginning_and_the_end_are_left():
    long = answers("1", "2", text=f"first{'x' * 5_000}last")
    (message,) = shortened([long])
    assert isinstance(message, UserMessage)
    for answer in message.tool_answers:
        assert answer.text.startswith("first") and answer.text.endswith("last")
        assert "characters were cut" in answer.text
        assert len(answer.text) <= ANSWER_LIMIT
    assert shortened([message, PROMPT]) == [message, PROMPT]


# ---- The loop, by hand -------------------------------------------------------


@attrs.define
class Model:
    """Replies with `steps`; to the request for a summary with `summaries`."""

    steps: list[Any]
    summaries: list[Any] = attrs.Factory(lambda: ["All was looked at."])
    tokens: int = 0
    """What each request has used."""
    asked: list[Sequence[Message]] = attrs.Factory(list)
    to_sum_up: list[Sequence[Message]] = attrs.Factory(list)

    async def reply(
        self, messages: Sequence[Message], tools: Any = (), system: Any = None
    ) -> AsyncGenerator[Told, None]:
        await trio.lowlevel.checkpoint()
        last = messages[-1]
        summing = isinstance(last, UserMessage) and "which you write now" in last.text
        step = (self.summaries if summing else self.steps).pop(0)
        (self.to_sum_up if summing else self.asked).append(messages)
        if isinstance(step, ModelFailed):
            raise step
        yield TextDelta("piece")
        if self.tokens:
            yield TokensUsed(input_tokens=self.tokens)
        yield AssistantMessage(step) if isinstance(step, str) else step


TOO_LONG = ModelFailed("prompt is too long", too_long=True)


async def play(model: Model, limit: int | None = None, answer: str = "seen") -> Any:
    agent = Agent(loop(model, context_tokens=limit), "The task.")
    return await run_agent(agent, tools={"Look": answer})


def boundaries(run: Any) -> list[CompactBoundary]:
    return [it for it in run.messages if isinstance(it, CompactBoundary)]


async def test_a_conversation_that_nears_the_end_of_the_context_is_summed_up():
    """002: a compact_boundary in the transcript, by the usage that the model tells."""
    model = Model([asks("1"), asks("2"), "done"], tokens=850)
    run = await play(model, 1_000)
    assert run.result == "done"
    # After one reply there is only the task to sum up, which says it by itself.
    first, second = boundaries(run)[0], model.asked[2]
    assert first.kept == (asks("2"), answers("2"))
    assert "The task." in first.summary and "All was looked at." in first.summary
    assert since_compaction(second)[1:] == [asks("2"), answers("2")]
    assert model.to_sum_up[0][:3] == (PROMPT, asks("1"), answers("1"))
    assert any(isinstance(it, Note) and "sums up" in it.text for it in run.events)


async def test_pieces_of_a_summary_are_no_words_of_the_agent():
    """They are signs of life, and its cost counts."""
    model = Model([asks("1"), asks("2"), "done"], tokens=850)
    run = await play(model, 1_000)
    told = [it for it in run.events if isinstance(it, TextDelta | TokensUsed)]
    assert told.count(TextDelta("piece")) == 3 == told.count(TextDelta("")) + 2
    assert told.count(TokensUsed(input_tokens=850)) == 4


async def test_a_short_conversation_is_left_alone():
    run = await play(Model([asks("1"), asks("2"), "done"], tokens=700), 1_000)
    assert run.result == "done" and not boundaries(run)


async def test_a_refusal_for_length_is_a_reason_too():
    """Where nobody knows the limit."""
    model = Model([asks("1"), asks("2"), TOO_LONG, "done"])
    run = await play(model)
    assert run.result == "done"
    assert boundaries(run)[0].kept == (asks("2"), answers("2"))
    assert model.asked[3] == (boundaries(run)[0],)


async def test_answers_that_do_not_fit_by_themselves_are_cut():
    """The calls keep their answers; each says that it was cut."""
    model = Model([asks("1"), TOO_LONG, "done"])
    run = await play(model, answer="long " * 2_000)
    assert run.result == "done" and not model.to_sum_up
    (boundary,) = boundaries(run)
    assert boundary.kept[:2] == (PROMPT, asks("1"))
    assert "characters were cut" in boundary.kept[2].tool_answers[0].text  # type: ignore[union-attr]


async def test_a_summary_comes_before_the_cutting():
    model = Model([asks("1"), asks("2"), TOO_LONG, TOO_LONG, "done"])
    run = await play(model, answer="long " * 2_000)
    assert run.result == "done"
    first, second = boundaries(run)
    assert second.summary == first.summary
    assert shortened(first.kept) == list(second.kept)


async def test_a_task_that_is_too_long_by_itself_fails_and_says_so():
    run = await play(Model([TOO_LONG]))
    assert isinstance(run.error, AgentFailed)
    assert "cannot be summed up is too long" in str(run.error)
    run = await play(Model([asks("1"), TOO_LONG, TOO_LONG]), answer="long " * 2_000)
    assert "cannot be summed up is too long" in str(run.error)


@pytest.mark.parametrize(
    ("summary", "why"),
    [
        (ModelFailed("HTTP 400, no"), "could not be summed up: HTTP 400, no"),
        ("  ", "could not be summed up: the model has answered with no summary"),
        (asks("9"), "could not be summed up: the model has answered with no summary"),
    ],
)
async def test_without_a_summary_a_refused_conversation_fails_the_run(
    summary: Any, why: str
):
    run = await play(Model([asks("1"), asks("2"), TOO_LONG], [summary]))
    assert isinstance(run.error, AgentFailed) and why in str(run.error)
    assert not boundaries(run)


async def test_what_passes_while_it_is_summed_up_is_an_error_that_passes():
    passing = ModelFailed("overloaded", temporary=True)
    run = await play(Model([asks("1"), asks("2"), TOO_LONG], [passing]))
    assert type(run.error).__name__ == "TransientError"


async def test_while_there_is_room_a_summary_that_fails_is_only_told_of():
    """And is tried again, but not with each step."""
    steps = [asks(str(n)) for n in range(4)]
    model = Model([*steps, "done"], [ModelFailed("no"), "Now it goes."], tokens=850)
    run = await play(model, 1_000)
    assert run.result == "done"
    assert len(model.to_sum_up) == 1 and not boundaries(run)
    notes = [it.text for it in run.events if isinstance(it, Note)]
    assert "goes on without a summary of the conversation: no" in notes


async def test_a_conversation_that_is_too_long_to_be_summed_up_is_shown_shorter():
    model = Model([asks("1"), asks("2"), TOO_LONG, "done"], [TOO_LONG, "Short."])
    run = await play(model, answer="long " * 2_000)
    assert run.result == "done"
    whole, shorter = model.to_sum_up
    assert size_of(shorter) < size_of(whole) / 2


async def test_a_limit_must_be_a_number_of_tokens():
    with pytest.raises(ValueError, match="context_tokens must be a whole number"):
        loop(Model([]), context_tokens=0)


async def test_a_model_may_say_itself_what_its_context_holds():
    model: Any = Model([asks("1"), asks("2"), "done"], tokens=850)

    class Knows:
        context_tokens = 1_000
        reply = model.reply

    run = await play(Knows())  # type: ignore[arg-type]
    assert len(boundaries(run)) == 1


# ---- Generated conversations -------------------------------------------------

LIMIT = 2_500
MARK = re.compile(r"<m\d+>")
STATUSES = ("pending", "in_progress", "completed", "cancelled")


@attrs.frozen
class Step:
    """What happens at one request."""

    sizes: tuple[int, ...] = ()
    """The characters of the answer of each tool that is called."""
    plan: tuple[str, ...] | None = None
    """The statuses of a plan that is written at the same time."""
    refuses_plan: bool = False
    messages: int = 0
    """How many come meanwhile."""
    lost: int | None = None
    """How many records are lost as the program dies at this request."""
    no_summary: bool = False
    """Whether the next summary fails."""


steps = st.builds(
    Step,
    sizes=st.lists(st.sampled_from([5, 300, 1_500, 9_000]), max_size=3).map(tuple),
    # Seldom, or the last one is mostly in what a boundary keeps.
    plan=st.sampled_from([None] * 5 + [(), ("pending",), STATUSES]),
    refuses_plan=st.booleans(),
    messages=st.sampled_from([0, 0, 0, 1, 2]),
    lost=st.sampled_from([None, None, None, None, 0, 1, 2, 5]),
    no_summary=st.sampled_from([False, False, False, True]),
)


def marks_of(message: Message) -> list[str]:
    if isinstance(message, CompactBoundary):
        inside = [mark for kept in message.kept for mark in marks_of(kept)]
        return MARK.findall(message.summary) + inside
    text = message.text
    if isinstance(message, UserMessage):
        text += "".join(answer.text for answer in message.tool_answers)
    return MARK.findall(text)


class Dies(Exception):
    """The program does, here."""


class World:
    """An agent whose every word bears a mark, its model, and its transcript.

    ``records`` is what the transcript has, ``wanted`` the marks that no request may
    miss, and ``plan`` the plan that was written last; both are worked out from the
    records alone, by rules of their own.
    """

    def __init__(self, steps: Sequence[Step], knows_limit: bool) -> None:
        self.steps = list(steps)
        self.knows_limit = knows_limit
        self.records: list[Message] = []
        self.env = fake_env({})
        self.log: TranscriptLog
        self.file: Path
        self.marks = 0
        self.requests = 0
        self.compactions = 0
        self.stage: Stage
        self.died: Step | None = None
        self.now = Step()

    def mark(self) -> str:
        self.marks += 1
        return f"<m{self.marks}>"

    # What is to be held: pure

    def alive(self) -> list[Message]:
        """The records without the last calls if these have no answers."""
        records = list(self.records)
        for place in range(len(records) - 1, -1, -1):
            message = records[place]
            if isinstance(message, AssistantMessage):
                later = records[place + 1 :]
                has_answers = any(
                    isinstance(it, UserMessage) and it.tool_answers for it in later
                )
                if message.tool_uses and not has_answers:
                    del records[place]
                break
        return records

    @staticmethod
    def wanted(records: Iterable[Message]) -> set[str]:
        return {mark for message in records for mark in marks_of(message)}

    @staticmethod
    def plan_of(records: Iterable[Message]) -> list[tuple[str, str]]:
        plan: list[tuple[str, str]] = []
        calls: dict[str, Any] = {}
        for message in records:
            if isinstance(message, AssistantMessage):
                calls |= {use.id: use for use in message.tool_uses}
            elif isinstance(message, UserMessage):
                for answer in message.tool_answers:
                    use = calls[answer.tool_use_id]
                    if use.name == "TodoWrite" and not answer.is_error:
                        plan = [
                            (item["content"], item["status"])
                            for item in use.input["todos"]
                        ]
        return plan

    # The model

    async def reply(
        self, messages: Sequence[Message], tools: Any = (), system: Any = None
    ) -> AsyncGenerator[Told, None]:
        await trio.lowlevel.checkpoint()
        said = since_compaction(messages)
        self.check_form(said)
        last = messages[-1]
        if isinstance(last, UserMessage) and "which you write now" in last.text:
            if self.now.no_summary:
                self.now = attrs.evolve(self.now, no_summary=False)
                raise ModelFailed("no summary today")
            found = dict.fromkeys(mark for it in said for mark in marks_of(it))
            yield AssistantMessage("".join(found))
            return
        self.check(messages, said)
        self.now = step = self.steps.pop(0) if self.steps else Step(plan=())
        is_over = not self.steps and self.done
        self.done = not self.steps
        if step.lost is not None:
            self.died = step
            raise Dies
        tokens = size_of(said)
        if tokens > LIMIT:
            raise ModelFailed("too long", too_long=True)
        yield TokensUsed(input_tokens=tokens)
        for _ in range(step.messages):
            self.stage.inbox.put(
                UserMessage(self.mark(), origin="message", sender="main")
            )
        if is_over:
            yield AssistantMessage(f"done {self.mark()}")
            return
        number = self.requests
        uses = [
            ToolUse(f"{number}-{place}", "Look", {"size": size})
            for place, size in enumerate(step.sizes)
        ]
        if step.plan is not None:
            todos = [
                {"content": f"step {number}", "status": status} for status in step.plan
            ]
            uses.append(ToolUse(f"{number}-plan", "TodoWrite", {"todos": todos}))
        yield AssistantMessage(f"I look {self.mark()}", tuple(uses))

    done = False

    async def use_tool(self, use: ToolUse) -> ToolAnswer:
        await trio.lowlevel.checkpoint()
        if use.name == "TodoWrite":
            return ToolAnswer(use.id, self.mark(), self.now.refuses_plan)
        return ToolAnswer(use.id, f"{self.mark()}{'x' * use.input['size']}")

    # What each request must hold

    def check_form(self, said: Sequence[Message]) -> None:
        """No call without its answer in the next message, and none too many."""
        open_calls: list[str] = []
        for message in said:
            if isinstance(message, UserMessage):
                given = [answer.tool_use_id for answer in message.tool_answers]
                assert given == open_calls, (given, open_calls)
                open_calls = []
            else:
                assert isinstance(message, AssistantMessage)
                assert not open_calls, "a call without its answer"
                open_calls = [use.id for use in message.tool_uses]
        assert not open_calls, "a call without its answer"

    def check(self, messages: Sequence[Message], said: Sequence[Message]) -> None:
        self.requests += 1
        assert any("The task." in str(message) for message in said)
        alive = self.alive()
        held = [mark for message in said for mark in marks_of(message)]
        missing = self.wanted(alive) - set(held)
        assert not missing, f"lost: {missing}"
        # Behind the last boundary each is there once, as it was said, in order.
        place = max(
            (n for n, it in enumerate(alive) if isinstance(it, CompactBoundary)),
            default=-1,
        )
        later = [mark for message in alive[place + 1 :] for mark in marks_of(message)]
        assert held[len(held) - len(later) :] == later
        plan = self.plan_of(self.records)
        known = self.stage.report.todos
        assert [
            (item.text, item.status) for item in (known.items if known else ())
        ] == plan
        if place >= 0:
            at = self.plan_of(alive[:place])
            summary = said[0]
            assert isinstance(summary, UserMessage) and summary.origin == "summary"
            for content, status in at:
                assert f"[{status}] {content}" in summary.text

    # Its runs

    def write(self, message: Message) -> None:
        self.log.append(message)
        self.records.append(message)
        self.compactions += isinstance(message, CompactBoundary)

    def lose(self, records: int) -> None:
        """Cut the last records off the file, as a crash does."""
        size = self.env.files.size(self.file) or 0
        lines = self.env.files.read_at(self.file, 0, size).splitlines(keepends=True)
        self.env.files.replace(self.file, b"".join(lines[: len(lines) - records]))
        del self.records[len(self.records) - records :]

    async def run(self) -> None:
        for _ in range(40):
            # Each is a program of its own.
            async with recorder(env=self.env) as disk:
                self.file = disk.store.transcript_file(ID)
                await self.begin(await disk.store.load(ID), disk.store)
                begun = len(self.records)
                is_over, lost = await self.run_once()
                await self.log.flush()
                self.log.close()
            # What an earlier run has written is on the disk.
            self.lose(min(lost, len(self.records) - begun))
            if is_over:
                return
        raise AssertionError("it goes on for ever")

    async def begin(self, read: Transcript | None, store: TranscriptStore) -> None:
        limit = LIMIT if self.knows_limit else None
        self.stage = stage = Stage(
            loop(self, context_tokens=limit), "The task.", reminders=10**6
        )
        stage.host.use_tool = self.use_tool
        stage.host.record = self.write
        stage.host.todo_aware = False
        self.log = store.open_log(ID, after=read)
        if read is None:
            self.records = []
            return
        stage.host.history = settled(read.messages)
        reader = PlanReader(read.plan)
        for message in read.messages:
            reader.read(message)
        stage.report.todos = reader.plan
        # What is not in the chain any more was never said.
        self.records = self.alive()

    async def run_once(self) -> tuple[bool, int]:
        """Return whether it is over, and how many records are lost."""
        try:
            await self.stage.run()
        except Dies:
            assert self.died is not None and self.died.lost is not None
            return False, self.died.lost
        except AgentFailed as error:
            if "no summary today" not in str(error):
                raise
            return False, 0
        return not self.steps, 0


@settings(max_examples=120, deadline=None)
@given(st.lists(steps, min_size=6, max_size=30), st.booleans())
def test_each_request_holds_all_that_it_must_whatever_happened(
    drawn: list[Step], knows_limit: bool
):
    """No call without its answer, nothing after a boundary lost, the plan as it was
    written last: over compactions, failures of these, crashes and resumes."""
    world = World(drawn, knows_limit)
    trio.run(world.run)
    event(f"{min(world.compactions, 3)} compactions")
