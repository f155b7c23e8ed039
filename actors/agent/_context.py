"""What an agent's run is given: itself, and nothing of anybody else."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import trio

from .._kernel.checks import check_type
from ..text import first_line
from ..work import Report, Work
from ._account import Account
from ._budget import Budget
from ._errors import AgentFailed
from ._events import (
    Message,
    Note,
    TodoList,
    ToolAnswer,
    ToolCompleted,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from ._fork import fork
from ._host import AgentHost, AgentTool, OwnTask
from ._inbox import Inbox

if TYPE_CHECKING:
    from ._agent import Agent


class ShownTool(NamedTuple):
    """What a model is told of a tool, without the tool."""

    name: str
    description: str
    schema: dict[str, Any]


@attrs.frozen(eq=False, repr=False)
class AgentContext:
    """What an agent's `run` is given.

    Nothing in it reaches the parent, the runtime or the record of the task. What the
    agent does to it concerns the agent alone. An agent yields as events whatever others
    are to know.
    """

    _agent: Agent
    _report: Report
    _host: AgentHost
    _account: Account
    _inbox: Inbox
    _deadline: float | None

    def __repr__(self) -> str:
        return f"<AgentContext of {self.agent_id}, run {self.run_id}>"

    @property
    def agent_id(self) -> str:
        """The task's id, which a resumed agent keeps."""
        return self._report.task_id

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._report.run_id

    @property
    def depth(self) -> int:
        """How many agents are above it. It is 0 if the program has started it."""
        return self._host.depth

    @property
    def prompt(self) -> str:
        """The task, word for word."""
        return self._agent.prompt

    @property
    def system(self) -> str | None:
        """The system prompt. None means the loop's own."""
        return self._agent.system

    @property
    def history(self) -> list[Message]:
        """The conversation so far, each time as a new list. It begins with what came
        before the prompt, if anything did. The model answers its last message. After a
        compaction it begins with the boundary."""
        return list(self._account.history)

    @property
    def inbox(self) -> Inbox:
        """Where messages that come later wait."""
        return self._inbox

    @property
    def tools(self) -> Sequence[AgentTool]:
        """The tools that it may use, each with name, description and schema."""
        return [
            ShownTool(tool.name, tool.description, copy.deepcopy(tool.schema))
            for tool in self._host.tools
        ]

    @property
    def permission_mode(self) -> str:
        """The mode by which its tool calls are judged."""
        return self._host.permission_mode

    @property
    def deadline(self) -> float | None:
        """The seconds that are left of its time. None means no limit."""
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - trio.current_time())

    @property
    def cwd(self) -> str | None:
        """Its working directory."""
        return self._agent.cwd

    @property
    def session(self) -> str | None:
        """The session it belongs to."""
        return self._agent.session

    @property
    def owner(self) -> str | None:
        """Its owner: a name of the host's own, or an agent's id."""
        return self._host.owner

    @property
    def model(self) -> str | None:
        """The name of its model."""
        return self._agent.model

    @property
    def budget(self) -> Budget | None:
        """What it may use. It is charged with each `TokensUsed` that the agent
        yields."""
        return self._host.budget

    @property
    def plan(self) -> TodoList | None:
        """The plan as it was written last. None means that there was none."""
        return self._account.plan

    def say(self, text: str) -> None:
        """Tell people what it is doing. This has the same effect as to yield a
        `Note`."""
        self._account.tell(Note(text))

    async def use_tools(self, uses: Iterable[ToolUse]) -> UserMessage:
        """Make all tool calls of one message at once, begun in their order. Return one
        message with the answers, in the order of ``uses``. Yield it after the
        `AssistantMessage` with the calls. What is not yielded is not in the transcript.
        A warning says so.

        A call that is refused, or that fails, has an answer that says so. A
        `ToolStarted` reports the beginning of each, and a `ToolCompleted` its end. A
        cancellation stops all of them.

        Raises:
            TypeError: if ``uses`` are not `ToolUse` objects. Nothing is called.
            AgentFailed: if the host cannot go on with the agent. The agent must end.
        """
        if isinstance(uses, ToolUse | str):
            raise TypeError(f"uses must be several ToolUse, not {uses!r}")
        calls = tuple(uses)
        for use in calls:
            check_type("each of uses", use, ToolUse)
        answers: list[ToolAnswer | None] = [None] * len(calls)

        failures: list[AgentFailed] = []

        async def call(place: int, use: ToolUse) -> None:
            try:
                answers[place] = await self._use_tool(use)
            except AgentFailed as error:
                # It goes on as it is, and in no group.
                failures.append(error)
                scope.cancel()

        with self._account.pulse.paused():
            for use in calls:
                self._account.tell(ToolStarted(use.id, use.name, use.input))
            with trio.CancelScope() as scope:
                if len(calls) == 1:
                    await call(0, calls[0])
                else:
                    async with trio.open_nursery() as nursery:
                        for place, use in enumerate(calls):
                            nursery.start_soon(call, place, use)
                            # A nursery begins in any order, and each question, and
                            # each effect, is to come in that of the calls.
                            await trio.lowlevel.cancel_shielded_checkpoint()
        if failures:
            raise failures[0]
        self._account.called(calls)
        return UserMessage(
            tool_answers=tuple(answer for answer in answers if answer is not None),
            origin="tools",
        )

    async def _use_tool(self, use: ToolUse) -> ToolAnswer:
        answer: ToolAnswer | None = None
        try:
            answered: object = await self._host.use_tool(use)
            if not isinstance(answered, ToolAnswer):
                raise TypeError(f"the tool has answered {answered!r}")
            answer = answered
        except AgentFailed:
            raise
        # The boundary: what a tool raises is for the model to know.
        except Exception as error:
            text = f"{use.name} failed: {type(error).__name__}: {error}"
            answer = ToolAnswer(use.id, text, is_error=True)
            return answer
        else:
            return answer
        finally:
            self._account.tell(_completed(use, answer))

    @property
    def own_tasks(self) -> int:
        """The number of its own tasks that have not ended, or whose end is on its way
        to the inbox. The ends of the others are there, or were taken from it."""
        return self._host.own_tasks()

    def reminder(self) -> str | None:
        """Return what its model may have forgotten, or cannot know: its background
        tasks that have not ended, each with its state and its latest activities. None
        means that there are none.

        A loop puts it, as a message with the origin ``reminder``, behind the
        conversation of each request, and does not keep it there."""
        return self._host.reminder()

    async def wait_own_tasks(self) -> None:
        """Wait until all its own tasks have ended, and the ends are in the inbox. The
        time does not count as idle."""
        with self._account.pulse.paused():
            await self._host.wait_for(self._host.wait_own_tasks)

    async def launch(
        self,
        work: Work,
        *,
        description: str | None = None,
        tool_use_id: str | None = None,
    ) -> OwnTask:
        """Start a task of its own in the background. The agent will not end before the
        task, and finds the task's end in the inbox.

        Raises:
            Exception: as `supervisor.runtime.Runtime.launch`.
        """
        with self._account.pulse.paused():
            return await self._host.launch(
                work, description=description, tool_use_id=tool_use_id
            )

    async def run(self, work: Work, *, description: str | None = None) -> Any:
        """Run a task of its own and return its snapshot.

        Raises:
            Exception: as `supervisor.runtime.Runtime.run`.
        """
        with self._account.pulse.paused():
            return await self._host.run(work, description=description)

    def fork(self, prompt: str, **changes: Any) -> Agent:
        """Return an agent like this one. It begins with this conversation, and then
        ``prompt``. It is not started.

        ``changes`` are other arguments of `Agent`.

        Raises:
            ForkRefused: in a fork, and in what a fork has started.
            TypeError, ValueError: for a bad argument, as `Agent`.
        """
        return fork(self._agent, self._account.history, prompt, **changes)


def _completed(use: ToolUse, answer: ToolAnswer | None) -> ToolCompleted:
    """Return what is told of a call that had this answer."""
    if answer is None:
        return ToolCompleted(use.id, use.name, is_error=True, error="broken off")
    if not answer.is_error:
        return ToolCompleted(use.id, use.name)
    error = first_line(answer.text) or None
    return ToolCompleted(use.id, use.name, is_error=True, error=error)
