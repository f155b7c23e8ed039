"""Agent: starting an agent, in the foreground or in the background, or going on
with one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from actors import TaskStatus
from actors.house import check_all
from actors.text import clean_text, duration_words, one_line

from .._life.handles import TaskHandle
from .._tasks.errors import DepthExceeded, ResumeRefused, UnknownTask
from .._tasks.snapshot import TaskSnapshot
from ..agents._inherited import agent_record, inherited
from ..agents._resume import GENERAL
from ..definitions import AgentDefinition
from ..lowlevel import life_of
from ..settings import Settings
from ..tree._spec import Backoff
from ._arguments import Field, Refused, check_words, optional, shown, some, unfit
from ._facts import tokens
from ._owned import ending, find_agent, takes_over, unknown
from ._task_output import end_of
from ._tool import Call, Tool, ToolResult

if TYPE_CHECKING:
    from actors.agent import Agent, Message, Run

    from ..runtime import Runtime

_LISTED: Final = 50
_REFUSAL_SHOWN: Final = 300
_DESCRIPTION_SHOWN: Final = 1_000
_NAME_SHOWN: Final = 64
# For definitions that say ``restart``: what fails is mostly a model's provider,
# for minutes.
_INTENSITY: Final = 3
_PERIOD: Final = 600.0
_BACKOFF: Final = Backoff(1.0, 60.0, jitter=0.5)

_DESCRIPTION: Final = """\
Starts an agent that works on a task by itself, with a conversation of its own, and returns its answer.

- The agent sees nothing of this conversation{but}: write into prompt all that it must know, and what it is to answer with. Its answer comes to you only; tell the user what matters of it.
- To run several agents at the same time, make several calls in one message. If one call needs the answer of another, put them in separate messages.
- The first line of the answer says how the agent ended and what it has used; all that follows is the agent's own answer. If it failed or was stopped, that is what it had so far.
- When an agent ends, its own commands and agents have ended, too.
- resume takes the id of an agent that has ended: it goes on with all it remembers, and prompt is its next message. Its type and model stay the same. For an agent that still runs use SendMessage.
"""
_FORKS: Final = """\
- A fork is as you are, with your instructions, tools and model, and begins with all that was said here: prompt is only what it is to do now. Use it for a side task that needs this conversation and would fill it. A fork cannot fork again.
"""
_IN_BACKGROUND: Final = """\
- With run_in_background the answer comes at once, with the id of the agent; you are told when it ends, so do other work meanwhile. TaskOutput shows how far it is, SendMessage tells it something more, TaskStop stops it. The user may move a foreground agent to the background; then the answer says so.
"""

_Moved: TypeAlias = Literal["request", "user"]


def agent(
    runtime: Runtime,
    owner: str | None,
    settings: Settings,
    loop: Run,
    history: Callable[[], Iterable[Message]] | None = None,
    system: str | None = None,
) -> Tool:
    """Return the tool for ``owner``, whose agents run ``loop``. What forks of an owner
    begin with that is no agent is its ``history`` and ``system``."""
    tool = _Agent(runtime, owner, settings, loop, history, system)
    definitions = runtime.agents.definitions
    forks = history is not None or agent_record(tool.table, owner) is not None
    description = _DESCRIPTION.format(but=", unless it is a fork" if forks else "")
    if forks:
        description += _FORKS
    if settings.background_tasks:
        description += _IN_BACKGROUND
    description += _types(list(definitions.values()))
    return Tool(
        "Agent", description, _fields(settings, forks=forks), tool.act, tool.fill
    )


def _types(definitions: list[AgentDefinition]) -> str:
    lines = ["", "The types of agents:"]
    if all(definition.name != GENERAL for definition in definitions):
        lines.append(f"- {GENERAL}: for everything else.")
    for definition in definitions[:_LISTED]:
        line = one_line(definition.description, _DESCRIPTION_SHOWN)
        if definition.tools is not None:
            line += f" (tools: {one_line(', '.join(definition.tools)) or 'none'})"
        if definition.background:
            line += " (always in the background)"
        if definition.fork_context:
            line += " (begins with this conversation)"
        lines.append(f"- {definition.name}: {line}")
    if len(definitions) > _LISTED:
        lines.append(f"and {len(definitions) - _LISTED} more")
    return "\n".join(lines) + "\n"


def _fields(settings: Settings, *, forks: bool) -> list[Field]:
    fields = [
        Field(
            "description",
            "What the agent is to do, in 3 to 5 words, for people and for lists.",
        ),
        Field("prompt", "The task for the agent."),
        optional(
            "subagent_type", f"The type of agent to start; {GENERAL} if there is none."
        ),
        optional(
            "model",
            "The model of the agent, as model or provider/model; that of its type, or "
            "yours, if there is none.",
        ),
        Field(
            "run_in_background",
            "Whether to return at once while the agent works.",
            "boolean",
            default=False,
        ),
        optional("resume", "The id of an agent that has ended and is to go on."),
    ]
    if forks:
        fields.append(
            Field(
                "fork",
                "Whether the agent is a fork: without subagent_type and model, then.",
                "boolean",
                default=False,
            )
        )
    if not settings.background_tasks:
        fields = [field for field in fields if field.name != "run_in_background"]
    return fields


class _Agent:
    def __init__(
        self,
        runtime: Runtime,
        owner: str | None,
        settings: Settings,
        loop: Run,
        history: Callable[[], Iterable[Message]] | None,
        system: str | None,
    ) -> None:
        self._runtime = runtime
        self.table = life_of(runtime).table
        self._history = history
        self._system = system
        self._owner = owner
        self._settings = settings
        self._loop = loop

    async def act(self, call: Call) -> ToolResult:
        for name in ("description", "prompt"):
            check_words(name, call.arguments[name], "Nothing was done")
        try:
            if call.arguments["resume"] is not None:
                return await self._resume(call)
            return await self._start(call)
        except DepthExceeded as error:
            raise Refused(
                "too_deep",
                f"No agent was started: {one_line(str(error), _REFUSAL_SHOWN)}. Do it "
                "yourself, with your other tools.",
            ) from None

    def fill(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return them with what a call leaves out: the type and the model of the agent
        that it means, and whether that runs in the background."""
        kind = arguments.get("subagent_type") or GENERAL
        above = agent_record(self.table, self._owner)
        if arguments.get("fork") is True and above is not None:
            kind = above.recipe.type
        resumed = arguments.get("resume")
        if isinstance(resumed, str):
            with suppress(Refused):
                kind = self._type_of(resumed)
        definition = (
            self._runtime.agents.definitions.get(kind)
            if isinstance(kind, str)
            else None
        )
        filled = {**arguments, "subagent_type": kind}
        if definition is not None and definition.background:
            filled["run_in_background"] = True
        if filled.get("model") is None and resumed is None:
            model = None if definition is None else definition.model
            filled["model"] = model or inherited(self.table, self._owner).model
        return filled

    # Starting one

    async def _start(self, call: Call) -> ToolResult:
        arguments = call.arguments
        definition: AgentDefinition | None = None
        if arguments.get("fork"):
            work = self._fork(arguments)
        else:
            definition = self._definition(arguments["subagent_type"])
            work = self._work(definition, arguments)
        order: dict[str, Any] = {
            "description": arguments["description"],
            "owner": self._owner,
            "tool_use_id": call.tool_use_id,
        }
        if not self._in_background(definition, arguments):
            snapshot = await self._runtime.run(work, **order)
            # Before anybody else runs, who could tell of its end as well.
            return self._answer(snapshot, call, "user")
        restart = "temporary" if definition is None else definition.restart
        if restart != "temporary":
            order |= {"intensity": _INTENSITY, "period": _PERIOD, "backoff": _BACKOFF}
        task = await self._runtime.launch(work, **order, restart=restart)
        # It has ended if it could not even begin.
        return self._answer(task.snapshot(), call, "request")

    def _in_background(
        self, definition: AgentDefinition | None, arguments: dict[str, Any]
    ) -> bool:
        always = definition is not None and definition.background
        wanted = always or arguments.get("run_in_background", False)
        return wanted and self._settings.background_tasks

    def _definition(self, name: str | None) -> AgentDefinition | None:
        """Return the definition; None for the type that needs none."""
        definitions = self._runtime.agents.definitions
        found = definitions.get(name or GENERAL)
        if found is None and name and name != GENERAL:
            raise Refused(
                "unknown_type",
                f"Nothing was started: there is no agent type {shown(name)}. "
                f"{self._known_types()}",
            )
        return found

    def _known_types(self) -> str:
        names = dict.fromkeys([GENERAL, *self._runtime.agents.definitions])
        listed = some([one_line(name, _NAME_SHOWN) for name in names], _LISTED)
        return f"The types are: {listed}."

    def _work(
        self, definition: AgentDefinition | None, arguments: dict[str, Any]
    ) -> Agent:
        from actors.agent import Agent

        above = inherited(self.table, self._owner)
        if definition is None:
            given = above.narrowed(None, ())
        else:
            given = above.narrowed(definition.tools, definition.disallowed_tools)
            given["type"] = definition.name
            given["max_turns"] = definition.max_turns
            given["permission_mode"] = definition.permission_mode
            given["model"] = definition.model or above.model
            given["system"] = definition.prompt
            if definition.fork_context:
                given |= {"history": self._handed_down(), "forked": True}
        if arguments["model"] is not None:
            given["model"] = arguments["model"]
        try:
            return Agent(
                self._loop,
                arguments["prompt"],
                description=arguments["description"],
                **given,
            )
        except (TypeError, ValueError) as error:
            raise unfit(
                f"Nothing was started: {one_line(str(error), _REFUSAL_SHOWN)}."
            ) from None

    def _fork(self, arguments: dict[str, Any]) -> Agent:
        """Return an agent like the caller, which knows what the caller knows."""
        from actors.agent import Agent
        from actors.agent.hosting import fork

        given = [n for n in ("subagent_type", "model") if arguments[n] is not None]
        if given:
            raise unfit(
                f"Nothing was started: a fork is as you are, so give no {given[0]}."
            )
        history = self._handed_down()
        above = agent_record(self.table, self._owner)
        prompt, told = arguments["prompt"], arguments["description"]
        if above is None:
            return fork(
                Agent(self._loop, prompt, system=self._system),
                history,
                prompt,
                description=told,
            )
        return fork(above.recipe, history, prompt, description=told)

    def _handed_down(self) -> list[Message]:
        """Return the conversation of the caller, for an agent to begin with."""
        from actors.agent import ForkRefused, Message
        from actors.agent.hosting import handed_down

        above = agent_record(self.table, self._owner)
        if above is not None:
            history: Iterable[Message] | None = above.conversation
        else:
            history = None if self._history is None else tuple(self._history())
            check_all("history", history or (), Message)
        if history is None:
            raise Refused(
                "no_history",
                "Nothing was started: such an agent begins with this conversation, and "
                "that was not handed over. Start one of another type.",
            )
        try:
            return handed_down(history)
        except ForkRefused as error:
            raise Refused(
                "fork_refused",
                f"Nothing was started: {error}. Do it yourself, or start an agent that "
                "does not begin with this conversation.",
            ) from None

    # Going on with one

    async def _resume(self, call: Call) -> ToolResult:
        arguments = call.arguments
        agent_id: str = arguments["resume"]
        agent_type = self._type_of(agent_id)
        wanted: str | None = arguments["subagent_type"]
        if arguments.get("fork"):
            raise unfit("Nothing was done: a fork begins anew, so give no resume.")
        if wanted is not None and wanted != agent_type:
            raise unfit(
                f"Nothing was done: agent {agent_id} is of the type "
                f"{one_line(agent_type, _NAME_SHOWN)}, which stays the same."
            )
        if arguments["model"] is not None:
            raise unfit("Nothing was done: an agent that goes on keeps its model.")
        definition = self._resumable(agent_id, agent_type)
        try:
            task = await self._runtime.resume(agent_id, arguments["prompt"])
        except ResumeRefused as error:
            raise Refused(
                "not_resumed",
                f"Nothing was done: {one_line(str(error), _REFUSAL_SHOWN)}.",
            ) from None
        except UnknownTask:
            raise unknown(self._runtime, self._owner, agent_id) from None
        if not self._in_background(definition, arguments):
            # Cancelled, it goes on in the background: it is not a new task.
            await task.wait()
        return self._answer(task.snapshot(), call, "request")

    def _type_of(self, agent_id: str) -> str:
        """Return the type of an agent, which may be left only as a file."""
        found = find_agent(self._runtime, self._owner, agent_id)
        if not isinstance(found, TaskHandle):
            return found.type
        record = agent_record(self.table, found.id)
        if record is None:
            raise Refused(
                "no_agent", f"Nothing was done: task {found.id} is not an agent."
            )
        return record.recipe.type

    def _resumable(self, agent_id: str, agent_type: str) -> AgentDefinition | None:
        definition = self._runtime.agents.definitions.get(agent_type)
        if definition is None and agent_type != GENERAL:
            raise Refused(
                "unknown_type",
                f"Nothing was done: agent {agent_id} is of the type "
                f"{shown(agent_type)}, which does not exist any more. "
                f"{self._known_types()} Start another agent instead.",
            )
        return definition

    # Answers

    def _answer(self, snapshot: TaskSnapshot, call: Call, by: _Moved) -> ToolResult:
        """Return the answer that tells of the end of a task, after which no
        notification will. If it has not ended, or one has told, say where it is."""
        if snapshot.status.is_terminal:
            # Made first: what is consumed may be forgotten, and its output with it.
            answer = self._ended(snapshot, call)
            if takes_over(self._runtime, self._owner, snapshot):
                return answer
        return self._goes_on(snapshot, call, by)

    def _ended(self, snapshot: TaskSnapshot, call: Call) -> ToolResult:
        end = end_of(snapshot.result or "", self._settings.max_output_length)
        usage = snapshot.usage
        completed = snapshot.status is TaskStatus.COMPLETED
        how = "has completed" if completed else ending(snapshot)
        if snapshot.status is TaskStatus.FAILED:
            how = f"has failed: {how}"
        used = (
            f"tokens: {usage.total_tokens or 0}, tool uses: {usage.tool_uses or 0}, "
            f"{duration_words(usage.duration_ms or 0)}"
        )
        # On one line, after which there is nothing but the agent's own words.
        said = [f"Agent {snapshot.id} {how} ({used})"]
        if not completed and end.text:
            said.append("What it had so far follows")
        if end.is_cut:
            said.append("Only the end of its answer follows")
        data: dict[str, Any] = {
            "status": snapshot.status.value,
            "agentId": snapshot.id,
            **_asked(call),
            "content": [{"type": "text", "text": end.text}],
            "totalDurationMs": usage.duration_ms or 0,
            "totalTokens": usage.total_tokens or 0,
            "totalToolUseCount": usage.tool_uses or 0,
            "usage": tokens(usage),
        }
        if end.is_cut:
            data["truncated"] = True
        if not completed:
            data["error"] = one_line(ending(snapshot), _REFUSAL_SHOWN)
            data["terminate"] = snapshot.terminate
        return ToolResult(
            f"{'. '.join(said)}\n\n{end.text or '(no answer)'}",
            is_error=not completed,
            data=data,
        )

    def _goes_on(self, snapshot: TaskSnapshot, call: Call, by: _Moved) -> ToolResult:
        id = snapshot.id
        file = clean_text(
            str(snapshot.output_file or self._runtime.directory / f"{id}.output")
        )
        if snapshot.status.is_terminal:
            text = f"Agent {id} has ended already, and you have been told of that."
        elif by == "request":
            text = f"async_launched: agent {id} works in the background."
        elif snapshot.pause is not None:
            why = one_line(str(snapshot.pause), _REFUSAL_SHOWN)
            text = f"async_launched: agent {id} is {why}. Its work so far is kept."
        else:
            text = (
                "async_launched: the user moved the agent to the background while it "
                f"worked; it goes on there as agent {id}."
            )
        if snapshot.status is TaskStatus.PENDING:
            text += " It has not begun: it waits until other tasks have ended."
        text += (
            f"\nagentId: {id}\n"
            f"description: {one_line(snapshot.description)}\n"
            f"What it does is written to {file}\n"
            "You will be told when it ends. TaskOutput shows how far it is or waits for "
            "its end, SendMessage tells it something, TaskStop stops it."
        )
        data: dict[str, Any] = {
            "status": "async_launched",
            "agentId": id,
            **_asked(call),
            "outputFile": file,
        }
        if by == "user" and snapshot.pause is None:
            data["backgroundedByUser"] = True
        return ToolResult(text, data=data)


def _asked(call: Call) -> dict[str, Any]:
    return {name: call.arguments[name] for name in ("description", "prompt")}
