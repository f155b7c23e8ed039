"""Scripts: agents whose model is a file, and what their host does meanwhile.

A script needs no key and no network. All but the model is real: the tools that it
calls run, and so do the agents that it starts::

    agents:
      lead:
        prompt: Look after the build.
        turns:
          - text: I start the tests.
            tools:
              - Bash: {command: sleep 1; echo passed, run_in_background: true}
              - Agent: {description: read, prompt: Read it., subagent_type: reader}
          - text: "They run. The reader says: {answer}"
          - text: All is well.
      reader:
        description: Reads.
        turns:
          - think: 0.5
            text: I have read it.
    host:
      - launch: lead
      - wait: lead
        for: They run
      - send: lead
        text: How far are you?
      - wait: lead

**agents** maps names to agents. Each has ``turns``. These are optional:

- ``prompt``: its task. An agent that the host starts must have one.
- ``description``: what other agents are told of it. Without one they cannot start it.
- ``background``: whether it runs in the background.
- ``tools``: the names of the tools that it may use.

A model is asked for the turn that follows those that it has taken, also in an agent
that is resumed. A turn is taken again if its calls were broken off. A turn may have
these:

- ``text``: what it says. ``{answer}`` stands for the answers to its last calls, and
  ``{message}`` for the last message that has come, or else its prompt. Braces that
  stand for themselves round a word are doubled, as in ``{{name}}``.
- ``tools``: what it calls, all at once. A turn without calls is the agent's answer.
  If there is more to do, the model is asked again. After the last turn it repeats its
  answer.
- ``think``: the seconds before it says anything.
- ``wait``: what it waits for before anything else. With ``message``, the n-th such
  turn waits for the n-th message. With ``end``, it waits for the n-th end of a
  background task of the agent's own, and fails if none of them runs any more. What
  comes is in the conversation, and is shown, behind what the turn says, like all that
  comes while a model replies. The next turn follows at once and answers it.
- ``fail``: the error with which it fails, after its ``text``.
- ``passes``: that error passes. It is ``true``, or the seconds after which it has
  passed, as an API names them. Before its first word the model is asked again, as it is
  behind an API. When that does not help, the agent pauses. The next turn follows.
- ``times``: how often it fails so before the next turn. It is 1 unless it is given.

**host** lists the steps that the host of the agents takes, one after the other. Without
it, the host runs the first agent. These are the steps:

- ``launch`` starts an agent in the background.
- ``run`` starts one in the foreground. It goes on during the next steps.
- ``background`` moves it to the background.
- ``send`` sends it a ``text``.
- ``stop`` stops it, with a ``reason``.
- ``resume`` goes on with it, and with a ``text``.
- ``wait`` waits for its end, or until it has said what stands behind ``for``.
- ``pause`` waits some seconds.

A script may also be JSON, in the same form, in a file ``.json``. YAML needs PyYAML,
which the extra ``agents`` brings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import attrs
import trio

from .._kernel.checks import check_type
from .._kernel.public import publish as _publish
from .._kernel.values import frozen
from ..agent import (
    AgentContext,
    AgentEvent,
    AgentTool,
    AssistantMessage,
    Message,
    TextDelta,
    ToolUse,
    UserMessage,
)
from ..env import Env, real_env
from ._loop import loop
from ._model import ModelFailed, Told
from ._retry import RETRIES, retrying
from ._script_file import Item, ScriptError, read_file

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "AgentScript",
    "Script",
    "ScriptError",
    "Step",
    "read_script",
]

PROVIDER: Final = "scripted"
"""The model of the agent ``lead`` of a script is called ``scripted/lead``."""

Action: TypeAlias = Literal[
    "launch", "run", "background", "send", "stop", "resume", "wait", "pause"
]
Awaited: TypeAlias = Literal["message", "end"]
_ORIGINS: Final[Mapping[Awaited, str]] = {"message": "message", "end": "notification"}
_ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
_MORE: Final[Mapping[str, str]] = {
    "launch": "prompt",
    "run": "prompt",
    "send": "text",
    "stop": "reason",
    "resume": "text",
    "wait": "for",
}
"""What else a step may have."""
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PLACEHOLDERS: Final = ("answer", "message")
_BRACED = re.compile(r"\{\{(\w+)\}\}|\{(\w+)\}")


@frozen(kw_only=True)
class Turn:
    """What a model does when it is asked once."""

    text: str = ""
    tools: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """The name and the arguments of each call."""
    think: float = 0.0
    wait: Awaited | None = None
    fail: str | None = None
    passes: bool | float = False
    """Whether the error passes, or after how many seconds it has."""
    times: int = 1
    """How often it fails."""
    place: str = attrs.field(default="", eq=False)
    """Where it stands, for people."""


@frozen(kw_only=True)
class AgentScript:
    """One agent of a script."""

    name: str
    turns: tuple[Turn, ...]
    prompt: str | None = None
    description: str | None = None
    background: bool = False
    tools: tuple[str, ...] | None = None

    @property
    def model(self) -> str:
        """What its model is called."""
        return f"{PROVIDER}/{self.name}"


@frozen(kw_only=True)
class Step:
    """What the host does."""

    action: Action
    agent: str = ""
    text: str | None = None
    """The prompt, the message or the reason, or the text that it waits for."""
    seconds: float = 0.0
    place: str
    """Where it stands, for people."""


@frozen(kw_only=True)
class Script:
    """A script, checked."""

    source: str
    agents: Mapping[str, AgentScript]
    host: tuple[Step, ...]
    env: Env = attrs.field(factory=real_env, repr=False, eq=False)
    """The effects, for chance and the time."""
    # How often a turn has failed that leaves nothing in the conversation, by the id of
    # the agent and the place of the turn.
    _failed: Counter[tuple[str, int]] = attrs.field(
        factory=Counter[tuple[str, int]], init=False, repr=False, eq=False
    )

    async def run(self, context: AgentContext) -> AsyncGenerator[AgentEvent, None]:
        """Do the work of an `actors.agent.Agent`, as its ``run``. Its model must be one
        of the script's.

        Raises:
        ModelFailed: if it is another one.
        """
        provider, _, name = (context.model or "").partition("/")
        agent = self.agents.get(name)
        if provider != PROVIDER or agent is None:
            models = ", ".join(f"{PROVIDER}/{name}" for name in self.agents) or "none"
            raise ModelFailed(
                f"{self.source}: it has no model {context.model!r}; its models are"
                f" {models}"
            )
        model = _ScriptedModel(self, self._failed, agent, context)
        async with aclosing(loop(model)(context)) as events:
            async for event in events:
                yield event  # noqa: ASYNC119 - who reads closes


@frozen
class _ScriptedModel:
    _script: Script
    _failed: Counter[tuple[str, int]]
    _agent: AgentScript
    _context: AgentContext

    def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[AgentTool] = (),
        system: str | None = None,
    ) -> AsyncGenerator[Told, None]:
        return retrying(lambda: self._reply(messages), RETRIES, self._script.env)

    async def _reply(self, messages: Sequence[Message]) -> AsyncGenerator[Told, None]:
        turns = self._agent.turns
        taken = sum(isinstance(message, AssistantMessage) for message in messages)
        place = self._place(taken)
        turn = turns[min(place, len(turns) - 1)]
        if place < len(turns):
            await self._prepare(turn, place, messages)
        elif turn.tools or turn.fail is not None:
            raise ModelFailed(
                f"{self._script.source}: agent {self._agent.name!r} was asked for more than its"
                f" {len(turns)} turns: end them with one that has only a text"
            )
        text = _filled(turn.text, messages)
        if text:
            yield TextDelta(text)
        if turn.fail is not None:
            raise self._failure(turn, place, turn.fail, text)
        uses = tuple(
            ToolUse(f"{self._agent.name}-{taken + 1}-{place}", name, arguments)
            for place, (name, arguments) in enumerate(turn.tools, 1)
        )
        yield AssistantMessage(text, uses)

    def _place(self, taken: int) -> int:
        """Return which turn is the next, from how many messages the model has said."""
        for place, turn in enumerate(self._agent.turns):
            if not turn.passes:
                left = 1
            elif turn.text:  # Each failure leaves what was said before it.
                left = turn.times
            elif taken or self._failed[self._context.agent_id, place] >= turn.times:
                continue
            else:
                return place
            if taken < left:
                return place
            taken -= left
        return len(self._agent.turns)

    def _failure(self, turn: Turn, place: int, why: str, said: str) -> ModelFailed:
        if not turn.passes:
            return ModelFailed(why, said)
        self._failed[self._context.agent_id, place] += 1
        resume_at = None
        if turn.passes is not True:
            resume_at = self._script.env.clock.now() + timedelta(seconds=turn.passes)
        return ModelFailed(why, said, temporary=True, resume_at=resume_at, at_once=True)

    async def _prepare(
        self, turn: Turn, place: int, messages: Sequence[Message]
    ) -> None:
        if turn.wait is not None:
            turns = self._agent.turns[: place + 1]
            due = sum(before.wait == turn.wait for before in turns)
            origin = _ORIGINS[turn.wait]
            came = sum(
                isinstance(message, UserMessage) and message.origin == origin
                for message in messages
            )
            inbox = self._context.inbox
            while came + self._waiting(turn.wait) < due and not inbox.closed:
                if turn.wait == "message":
                    await inbox.next_arrival().wait()
                else:
                    await self._wait_for_end(turn, came, due)
        await trio.sleep(turn.think)

    async def _wait_for_end(self, turn: Turn, came: int, due: int) -> None:
        """Wait until something comes, or nothing runs that could end."""
        arrival = self._context.inbox.next_arrival()
        # This puts the last ends into the inbox.
        if self._context.own_tasks == 0:
            if came + self._waiting("end") < due:
                raise ModelFailed(
                    f"{turn.place}: it waits for an end, and none can come: no"
                    " background task of its own is running. Start one in a turn before"
                    " (run_in_background: true), or remove the wait"
                )
            return
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await self._context.wait_own_tasks()
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await arrival.wait()
            nursery.cancel_scope.cancel()

    def _waiting(self, what: Awaited) -> int:
        """Return how many of those wait in the inbox, as far as it tells."""
        inbox = self._context.inbox
        if what == "message":
            return int(inbox.asks())
        return 0 if inbox.asks() else len(inbox)


def _filled(text: str, messages: Sequence[Message]) -> str:
    answer = message = ""
    for item in messages:
        if isinstance(item, UserMessage):
            if item.tool_answers:
                answer = "\n".join(answer.text for answer in item.tool_answers)
            if item.origin in ("prompt", "message"):
                message = item.text
    filling = {"answer": answer, "message": message}

    def fill(found: re.Match[str]) -> str:
        literal, name = found.groups()
        return filling[name] if literal is None else f"{{{literal}}}"

    # In one pass: neither may be looked for in the other.
    return _BRACED.sub(fill, text)


def read_script(
    text: str,
    source: str,
    *,
    tools: Collection[str] | None = None,
    env: Env | None = None,
) -> Script:
    """Return the script in ``text``, which comes from a file called ``source``.

    Args:
        tools: the names of the tools that there are. No other can be called. None means
            any.
        env: the effects, for chance and the time. None makes a real one.

    Raises:
        ScriptError: if it is not a script. It names the place and says what to do.
        TypeError: if ``text`` is not a str, but for instance the path of one.
    """
    check_type("text", text, str)
    root = read_file(text, source)
    parts = root.fields("agents", "host")
    if "agents" not in parts:
        root.fail("there must be 'agents', each with its 'turns'")
    found = parts["agents"].mapping()
    if not found:
        parts["agents"].fail("there must be at least one")
    agents = {name: _agent(name, item, tools) for name, item in found.items()}
    if "host" in parts:
        steps = tuple(
            _step(place, item, agents)
            for place, item in enumerate(parts["host"].items(), 1)
        )
    else:
        first = next(iter(agents))
        if agents[first].prompt is None:
            found[first].fail("the host runs it, so it needs a 'prompt'")
        prompt = agents[first].prompt
        steps = (Step(action="run", agent=first, text=prompt, place="host, step 1"),)
    return Script(source=source, agents=agents, host=steps, env=env or real_env())


def _agent(name: str, item: Item, known: Collection[str] | None) -> AgentScript:
    if not _NAME.fullmatch(name):
        item.fail("its name may have letters, digits, - and _ only")
    parts = item.fields("prompt", "description", "background", "tools", "turns")
    if "turns" not in parts:
        item.fail("it needs 'turns': what it says and calls, one after the other")
    turns = tuple(_turn(turn, known) for turn in parts["turns"].items())
    if not turns:
        parts["turns"].fail("there must be at least one")
    texts = {
        key: parts[key].text() for key in ("prompt", "description") if key in parts
    }
    names = parts["tools"].items() if "tools" in parts else None
    for each in names or ():
        _check_tool(each, each.text(), known)
    return AgentScript(
        name=name,
        turns=turns,
        background="background" in parts and parts["background"].flag(),
        tools=None if names is None else tuple(each.text() for each in names),
        **texts,
    )


def _check_tool(item: Item, name: str, known: Collection[str] | None) -> None:
    if known is not None and name not in known:
        item.fail(f"there is no tool {name!r}, only {', '.join(known)}")


def _said(item: Item) -> str:
    """Return the text of a turn."""
    text = item.text()
    for literal, name in _BRACED.findall(text):
        if not literal and name not in _PLACEHOLDERS:
            item.fail(
                f"there is no {{{name}}}, only {{answer}} and {{message}}; write"
                f" {{{{{name}}}}} if it stands for itself"
            )
    return text


def _turn(item: Item, known: Collection[str] | None) -> Turn:
    parts = item.fields("text", "tools", "think", "wait", "fail", "passes", "times")
    if not {"text", "tools", "fail"} & parts.keys():
        item.fail("it must say something ('text'), call 'tools', or 'fail'")
    if {"tools", "fail"} <= parts.keys():
        item.fail("it cannot call 'tools' and 'fail'")
    if {"passes", "times"} & parts.keys() and not {"fail", "passes"} <= parts.keys():
        item.fail("'passes' says of a 'fail' that it passes, and 'times' how often")
    wait: Awaited | None = None
    if "wait" in parts:
        wait = next((what for what in _ORIGINS if what == parts["wait"].value), None)
        if wait is None:
            parts["wait"].fail("it can wait for 'message' or for 'end'")
    calls: list[tuple[str, Mapping[str, Any]]] = []
    for entry in parts["tools"].items() if "tools" in parts else ():
        call = entry.mapping()
        if len(call) != 1:
            entry.fail("write one tool: its name, a colon, and its arguments")
        ((name, arguments),) = call.items()
        _check_tool(arguments, name, known)
        if arguments.value is not None:  # A name with a colon and nothing behind.
            arguments.mapping()
        calls.append((name, cast(dict[str, Any], arguments.value or {})))
    return Turn(
        text=_said(parts["text"]) if "text" in parts else "",
        tools=tuple(calls),
        think=parts["think"].seconds() if "think" in parts else 0.0,
        wait=wait,
        fail=parts["fail"].text() if "fail" in parts else None,
        passes=_passes(parts["passes"]) if "passes" in parts else False,
        times=parts["times"].times() if "times" in parts else 1,
        place=str(item.error("it")).removesuffix(": it"),
    )


def _passes(item: Item) -> bool | float:
    """Return whether an error passes, or after how many seconds."""
    if isinstance(item.value, bool):
        return item.flag()
    return item.seconds() or True


def _step(place: int, item: Item, agents: Mapping[str, AgentScript]) -> Step:
    found = item.mapping()
    actions: list[Action] = [action for action in _ACTIONS if action in found]
    if len(actions) != 1:
        item.fail(f"write one of {', '.join(_ACTIONS)}")
    (action,) = actions
    named = f"host, step {place}"
    if action == "pause":
        item.fields("pause")
        return Step(action=action, seconds=found["pause"].seconds(), place=named)
    more = _MORE.get(action)
    item.fields(action, *([more] if more else []))
    name = found[action].text()
    if name not in agents:
        found[action].fail(f"there is no agent {name!r}, only {', '.join(agents)}")
    text = found[more].text() if more in found else None
    if action in ("launch", "run"):
        text = text or agents[name].prompt
        if text is None:
            item.fail("it needs a 'prompt', here or in the agent")
    if action == "send" and text is None:
        item.fail("it needs the 'text' that is to be sent")
    return Step(action=action, agent=name, text=text, place=named)


_publish(globals())
