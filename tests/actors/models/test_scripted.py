"""Scripts: what is one, and what is wrong with one that is none."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.agent import (
    AgentEvent,
    AssistantMessage,
    FinalResult,
    Message,
    Retrying,
    ToolAnswer,
    ToolUse,
    TransientError,
    UserMessage,
)
from actors.agent.hosting import Inbox
from actors.models.scripted import (
    AgentScript,
    Script,
    ScriptError,
    Step,
    Turn,
    read_script,
)
from actors.testing import fake_env
from tests.actors.agent.agents import Stage

pytest.importorskip("yaml", reason="the extra `agents` is not installed")

SCRIPT = """\
agents:
  lead:
    prompt: Look after the build.
    turns:
      - text: I start the tests.
        tools:
          - Bash: {command: "true", run_in_background: true}
          - TaskList:
      - wait: message
        think: 0.5
        text: "The answers: {answer}. The message: {message}."
      - fail: out of ideas
  reader:
    description: Reads.
    background: true
    tools: [Bash]
    turns:
      - text: I have read it.
host:
  - launch: lead
  - wait: lead
    for: the tests
  - send: lead
    text: How far are you?
  - pause: 0.1
  - stop: lead
"""


def test_a_script_is_read_whole() -> None:
    assert read_script(SCRIPT, "a.yaml") == Script(
        source="a.yaml",
        agents={
            "lead": AgentScript(
                name="lead",
                prompt="Look after the build.",
                turns=(
                    Turn(
                        text="I start the tests.",
                        tools=(
                            ("Bash", {"command": "true", "run_in_background": True}),
                            ("TaskList", {}),
                        ),
                    ),
                    Turn(
                        wait="message",
                        think=0.5,
                        text="The answers: {answer}. The message: {message}.",
                    ),
                    Turn(fail="out of ideas"),
                ),
            ),
            "reader": AgentScript(
                name="reader",
                description="Reads.",
                background=True,
                tools=("Bash",),
                turns=(Turn(text="I have read it."),),
            ),
        },
        host=(
            Step(
                action="launch",
                agent="lead",
                text="Look after the build.",
                place="host, step 1",
            ),
            Step(action="wait", agent="lead", text="the tests", place="host, step 2"),
            Step(
                action="send",
                agent="lead",
                text="How far are you?",
                place="host, step 3",
            ),
            Step(action="pause", seconds=0.1, place="host, step 4"),
            Step(action="stop", agent="lead", place="host, step 5"),
        ),
    )


def test_json_is_read_likewise_and_needs_no_yaml(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import yaml

    as_json = json.dumps(yaml.safe_load(SCRIPT))
    monkeypatch.setitem(sys.modules, "yaml", None)
    script = read_script(as_json, "a.json")
    with pytest.raises(ScriptError, match="PyYAML"):
        read_script(SCRIPT, "a.yaml")
    monkeypatch.undo()
    assert script.agents == read_script(SCRIPT, "a.yaml").agents


def test_without_a_host_the_first_agent_is_run() -> None:
    text = "agents: {lead: {prompt: Go., turns: [{text: Done.}]}}"
    assert read_script(text, "a.yaml").host == (
        Step(action="run", agent="lead", text="Go.", place="host, step 1"),
    )


def one(turn: str) -> str:
    """A script with ``turn`` in line 5."""
    return f"agents:\n  lead:\n    prompt: Go.\n    turns:\n      - {turn}\n"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", None, "mapping"),
        ("- a", 1, "mapping"),
        ("host: []", 1, "'agents'"),
        ("agents: {}", 1, "at least one"),
        ("agents: {lead: {prompt: Go.}}", 1, "'turns'"),
        ("agents: {lead: {turns: []}}", 1, "at least one"),
        ("agents: {lead: {turns: [{text: a}]}}", 1, "'prompt'"),
        ("agents: {'a b': {turns: [{text: a}]}}", 1, "letters"),
        ("agents: {lead: {promt: Go., turns: [{text: a}]}}", 1, "'promt' is not known"),
        ("agents:\n  a: 1\n  a: 2", 3, "twice"),
        ("agents:\n  a: [", 2, "YAML"),
        ("agents:\n  a: !!python/name:os.system x", 2, "YAML"),
        ("agents: &a\n  b: *a", None, "too much"),
        (one("text: 42"), 5, "agent 'lead', turn 1, 'text': .*quotes"),
        (one("text: no"), 5, "must be text"),
        (one("text: ''"), 5, "must not be empty"),
        (one("think: 1"), 5, "agent 'lead', turn 1: .*say something"),
        (one("{text: a, think: soon}"), 5, "seconds"),
        (one("{text: a, think: -1}"), 5, "seconds"),
        (one("{text: a, think: .inf}"), 5, "seconds"),
        (one("{text: a, wait: 5}"), 5, "'message' or for 'end'"),
        (one("{fail: a, tools: []}"), 5, "and 'fail'"),
        (one("{say: a}"), 5, "text, tools, think, wait, fail, passes or times"),
        (one("{fail: a, passes: soon}"), 5, "'passes': .*seconds"),
        (one("{fail: a, passes: true, times: 0}"), 5, "number of times, 1 or more"),
        (one("{fail: a, passes: true, times: true}"), 5, "number of times"),
        (one("{text: a, passes: true}"), 5, "'passes' says of a 'fail'"),
        (one("{fail: a, times: 2}"), 5, "'passes' says of a 'fail'"),
        (one("tools: Bash"), 5, "list"),
        (one("tools: [Bash]"), 5, "mapping"),
        (one("tools: [{Bash: {}, Agent: {}}]"), 5, "one tool"),
        (one("tools: [{Bash: ls}]"), 5, "turn 1, 'tools', entry 1, 'Bash': .*mapping"),
        (one("tools: [{1: {}}]"), 5, "quotes"),
        (one("text: a") + "host:\n  - launch: led", 7, "step 1.*only lead"),
        (one("text: a") + "host:\n  - launch: lead\n  - go: lead", 8, "one of launch"),
        (one("text: a") + "host:\n  - send: lead", 7, "'text'"),
        (one("text: a") + "host:\n  - {stop: lead, text: a}", 7, "stop or reason"),
        (one("text: a") + "host:\n  - {stop: lead, run: lead}", 7, "one of launch"),
        ("[" * 5000, None, "nested"),
        ("\0", None, "no YAML"),
        ("agents: \x1b[31m", None, "no YAML"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    text: str, line: int | None, said: str
) -> None:
    with pytest.raises(ScriptError, match=said) as caught:
        read_script(text, "a.yaml")
    if line is not None:
        assert caught.value.line == line
        assert str(caught.value).startswith(f"a.yaml:{line}: ")
    else:
        assert str(caught.value).startswith("a.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            one("tools: [{Bsh: {}}]"),
            "entry 1, 'Bsh': there is no tool 'Bsh', only Bash",
        ),
        (one("tools: [{Bash: {}}, {Bsh: }]"), "entry 2, 'Bsh': there is no tool"),
        (one("text: a").replace("turns", "tools: [Bsh]\n    turns"), "no tool 'Bsh'"),
        (one("text: 'It is {anser}.'"), "no {anser}, only {answer} and .* {{anser}}"),
    ],
)
def test_a_name_that_nothing_has_is_refused_with_its_place(
    text: str, said: str
) -> None:
    with pytest.raises(ScriptError, match=said) as caught:
        read_script(text, "a.yaml", tools=("Bash", "Agent"))
    assert caught.value.line in (4, 5)


def test_without_a_list_of_tools_each_name_may_be_one() -> None:
    script = read_script(one("tools: [{Bsh: {}}]"), "a.yaml")
    assert script.agents["lead"].turns[0].tools == (("Bsh", {}),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "a.json:1: no JSON"),
        ('{"agents": 1, "agents": 2}', "'agents' stands there twice"),
        ('{"agents": {"lead": {"turns": [{"text": 1}]}}}', "agent 'lead', turn 1"),
        ("[" * 100_000, "nested"),
        ('{"agents": {"lead": {"turns": [{"text": NaN}]}}}', "agent 'lead', turn 1"),
    ],
)
def test_in_json_the_place_is_named_as_well(text: str, said: str) -> None:
    with pytest.raises(ScriptError, match=said):
        read_script(text, "a.json")


class FakeContext:
    """As much of a context as a script uses."""

    def __init__(self, model: str | None, history: Sequence[Message] = ()) -> None:
        self.model = model
        self.agent_id = "a00000001"
        self.history: list[Message] = [UserMessage("Go."), *history]
        self.tools: list[Any] = []
        self.inbox = Inbox()
        self.system: str | None = None
        self.prompt = "Go."
        self.plan = None
        self.own_tasks = 0
        self.own_end = trio.Event()

    def reminder(self) -> str | None:
        return None

    async def wait_own_tasks(self) -> None:
        await self.own_end.wait()

    async def use_tools(self, uses: Sequence[ToolUse]) -> UserMessage:
        await trio.lowlevel.checkpoint()
        answers = tuple(ToolAnswer(use.id, f"{use.name} is done") for use in uses)
        return UserMessage(tool_answers=answers, origin="tools")


async def play(text: str, context: FakeContext, results: int = 1) -> list[AgentEvent]:
    script: Any = read_script(dedent(text), "a.yaml")
    events: list[AgentEvent] = []
    with trio.fail_after(1000):
        async with aclosing(script.run(context)) as running:
            async for event in running:
                events.append(event)
                results -= isinstance(event, FinalResult)
                if not results:
                    break
    return events


def texts(events: Sequence[AgentEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, AssistantMessage)]


async def test_its_turns_are_taken_one_after_the_other() -> None:
    context = FakeContext("scripted/lead")
    text = """\
        agents:
          lead:
            prompt: Go.
            turns:
              - text: I look.
                tools: [{Bash: {command: ls}}, {TaskList: }]
              - text: "I saw: {answer}; {message}"
    """
    events = await play(text, context)
    assert texts(events) == ["I look.", "I saw: Bash is done\nTaskList is done; Go."]
    assert events[-1] == FinalResult("I saw: Bash is done\nTaskList is done; Go.")
    first = next(event for event in events if isinstance(event, AssistantMessage))
    assert [(use.name, use.input) for use in first.tool_uses] == [
        ("Bash", {"command": "ls"}),
        ("TaskList", {}),
    ]


async def test_doubled_braces_stand_for_themselves() -> None:
    text = "agents: {a: {prompt: p, turns: [{text: '{{name}} {message} ${X-}'}]}}"
    events = await play(text, FakeContext("scripted/a"))
    assert texts(events) == ["{name} Go. ${X-}"]


async def test_an_agent_that_goes_on_takes_the_turn_that_follows() -> None:
    history = [AssistantMessage("One."), UserMessage("More.", origin="message")]
    text = "agents: {a: {prompt: p, turns: [{text: One.}, {text: Two.}]}}"
    events = await play(text, FakeContext("scripted/a", history))
    assert texts(events) == ["Two."]


async def test_asked_for_more_it_repeats_its_answer() -> None:
    text = "agents: {a: {prompt: p, turns: [{text: One.}]}}"
    events = await play(text, FakeContext("scripted/a"), 3)
    assert texts(events) == ["One."] * 3


async def test_asked_for_more_without_an_answer_it_fails_and_says_why() -> None:
    text = "agents: {a: {prompt: p, turns: [{tools: [{Bash: {}}]}]}}"
    *_, last = await play(text, FakeContext("scripted/a"))
    assert isinstance(last, FinalResult)
    assert "a.yaml: agent 'a' was asked for more than its 1 turns" in str(last.error)


async def test_it_fails_with_what_it_has_said(autojump_clock: object) -> None:
    """AG14"""
    text = "agents: {a: {prompt: p, turns: [{think: 90, text: Half., fail: gone}]}}"
    began = trio.current_time()
    *_, last = await play(text, FakeContext("scripted/a"))
    assert last == FinalResult("Half.", "error", error="gone")
    assert trio.current_time() - began == 90


@pytest.mark.parametrize("early", [True, False])
async def test_it_waits_for_as_many_messages_as_it_was_told_to(
    autojump_clock: object, early: bool
) -> None:
    """Whether they come before or during the wait; the end of a task is none."""
    turns = "[{text: A.}, {wait: message, text: B.}, {wait: message, text: C.}]"
    context = FakeContext("scripted/a")
    script: Any = read_script(f"agents: {{a: {{prompt: p, turns: {turns}}}}}", "a.yaml")
    came = [UserMessage(f"{n}", origin="message") for n in (1, 2)]
    when: list[float] = []

    async def send() -> None:
        for message in came:
            if not early:
                await trio.sleep(10)
            context.inbox.put(UserMessage("It ended.", origin="notification"))
            if not early:
                await trio.sleep(10)
            context.inbox.put(message)

    with trio.fail_after(1000):
        async with trio.open_nursery() as nursery:
            await send() if early else nursery.start_soon(send)
            async with aclosing(script.run(context)) as running:
                async for event in running:
                    if isinstance(event, FinalResult):
                        when.append(trio.current_time())
                        if event.text == "C.":
                            break
    waits = [later - when[0] for later in when]
    assert waits == ([0, 0, 0] if early else [0, 20, 40])


async def test_it_waits_for_as_many_ends_of_its_tasks(autojump_clock: object) -> None:
    """Several may come in one go; what else comes is not counted."""
    turns = "[{text: A.}, {wait: end, text: B.}, {wait: end, text: C.}]"
    context = FakeContext("scripted/a")
    script: Any = read_script(f"agents: {{a: {{prompt: p, turns: {turns}}}}}", "a.yaml")
    said: list[str] = []
    with trio.fail_after(1000):
        async with aclosing(script.run(context)) as running:
            async for event in running:
                if isinstance(event, FinalResult):
                    said.append(event.text)
                    if event.text == "A.":
                        for text in ("one", "two"):
                            message = UserMessage(text, origin="notification")
                            context.inbox.put(message)
                    elif event.text == "C.":
                        break
    assert said == ["A.", "B.", "C."]
    assert trio.current_time() < 1


@pytest.mark.parametrize("later", [False, True])
async def test_a_wait_for_an_end_that_cannot_come_fails_and_says_where(
    later: bool, autojump_clock: object
) -> None:
    """P9: at once, or when the last that ran has ended and was told in another way."""
    text = one("{text: A., wait: end}")
    context = FakeContext("scripted/lead")
    context.own_tasks = int(later)

    async def end() -> None:
        await trio.sleep(50)
        context.own_tasks = 0
        context.own_end.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end)
        *_, last = await play(text, context)
        assert trio.current_time() == (50 if later else 0)
        nursery.cancel_scope.cancel()
    assert isinstance(last, FinalResult)
    assert str(last.error).startswith(
        "a.yaml:5: agent 'lead', turn 1: it waits for an end, and none can come"
    )
    assert "run_in_background" in str(last.error)


@pytest.mark.parametrize("model", [None, "lead", "scripted/other", "gpt/lead"])
async def test_a_model_that_is_not_in_it_is_an_error(model: str | None) -> None:
    text = "agents: {lead: {prompt: p, turns: [{text: One.}]}}"
    with pytest.raises(Exception, match=r"a\.yaml: it has no model") as caught:
        await play(text, FakeContext(model))
    assert str(caught.value).endswith("; its models are scripted/lead")


def test_a_path_is_not_a_script() -> None:
    with pytest.raises(TypeError, match=r"text must be a str, not .*script\.yaml"):
        read_script(Path("script.yaml"), "script.yaml")  # type: ignore[arg-type]


# Errors that pass


@settings(max_examples=150)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "text": st.sampled_from(["", "I wr"]),
                "passes": st.sampled_from([None, True, 5, 600.5]),
                "times": st.integers(1, 9),
            }
        ),
        max_size=4,
    ),
    st.booleans(),
)
def test_what_passes_fails_so_often_as_it_says_and_the_next_turn_follows(
    drawn: list[dict[str, Any]], anew: bool
) -> None:
    """Through as many runs as it takes; also if the script is read again for each."""
    turns: list[dict[str, Any]] = []
    wanted: list[Any] = []  # What is told, and how each run ends.
    tried, hinted = 0, False  # For one message.
    for turn in drawn:
        passes = turn["passes"]
        if passes is None:
            turns.append({"text": "on", "tools": [{"Bash": {}}]})
            wanted.append("on")
            tried, hinted = 0, False
            continue
        anew = anew and bool(turn["text"])  # Only the conversation knows then.
        turns.append({"fail": "HTTP 529", **{k: v for k, v in turn.items() if v}})
        for _ in range(turn["times"]):
            if not turn["text"] and passes != 600.5 and tried < 4:
                wanted.append("again")
                tried, hinted = tried + 1, hinted or passes == 5
                continue
            if turn["text"]:
                wanted.append(turn["text"])
            elif passes == 5 and hinted:
                passes = True
            wanted.append(("pause", passes))
            passes = turn["passes"]
            tried, hinted = 0, False
    turns.append({"text": "done"})
    wanted.append("done")
    source = json.dumps({"agents": {"a": {"prompt": "p", "turns": turns}}, "host": []})
    told: list[Any] = []

    async def main() -> None:
        env = fake_env()
        script = read_script(source, "a.json", env=env)
        history: list[Message] = []
        while told[-1:] != ["done"]:
            if anew:
                script = read_script(source, "a.json", env=env)
            stage = Stage(script.run, model="scripted/a")
            stage.host.history = history
            end: list[Any] = []
            try:
                await stage.run()
            except TransientError as error:
                at = error.resume_at
                left = True if at is None else (at - env.clock.now()).total_seconds()
                end = [("pause", left if left is True else pytest.approx(left))]
            for event in stage.events:
                if isinstance(event, Retrying):
                    told.append("again")
                elif isinstance(event, AssistantMessage):
                    told.append(event.text)
            told.extend(end)
            history = [*history, *stage.host.messages]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert told == wanted
