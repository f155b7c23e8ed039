"""The host of an agent: what it asks of the runtime while it runs."""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import trio
from trio.lowlevel import enable_ki_protection

from actors.agent import (
    AgentFailed,
    AgentTool,
    Message,
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from actors.agent.hosting import Breaker
from actors.text import one_line, unescape
from actors.work import Work

from .._life.foreground import run_in_foreground
from .._life.handles import TaskHandle
from .._tasks.agent_task import AgentTask
from .._tasks.errors import RuntimeStopping
from .._tasks.orders import check_order
from .._tasks.places import Wait
from .._tasks.record import Order
from ..hooks import Advice, Hooks
from ..hooks._calls import AgentHooks
from ..hooks._idle_guards import idle_guards
from ..permissions import AskFailed, ToolRequest
from ..permissions._judging import with_input
from ..permissions._paths import home_directory
from ..permissions._tool_names import is_listed, names_tool

if TYPE_CHECKING:
    from .._life.life import Life
    from .._tasks.snapshot import TaskSnapshot
    from ._side import Agents


REFUSALS: Final = {
    "by default": (
        "its calls of {} are refused, since nothing allows them: see "
        "AgentPolicy.permissions, which open_runtime(agents=) takes"
    ),
    "unasked": (
        "its calls of {} of which a rule or a hook asks are refused, since nobody "
        "answers: see Permissions.ask and the mode bubble"
    ),
}
"""What a host is told if it has said nothing about a tool, and if it wants to be asked
about the tool."""

_NO_HOOKS: Final = Hooks()
# After these a call does not repeat those before.
_NEWS = frozenset(("message", "notification", "prompt"))


class ToolOutcome(Protocol):
    """What a call of a tool has answered."""

    @property
    def text(self) -> str:
        """For the model."""
        ...

    @property
    def is_error(self) -> bool:
        """Whether it was refused, or has failed."""
        ...

    @property
    def data(self) -> dict[str, Any]:
        """The same for programs."""
        ...


class HostTool(AgentTool, Protocol):
    """A tool that an agent can have: `supervisor.tools.Tool` is one."""

    def fill(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of a call with what holds where they say nothing."""
        ...

    async def call(
        self, arguments: object, *, tool_use_id: str | None = None
    ) -> ToolOutcome:
        """Do what ``arguments`` ask for."""
        ...


class RuntimeHost:
    """What one run of one agent asks of its runtime."""

    def __init__(
        self, life: Life, agents: Agents, task: AgentTask, hooks: AgentHooks
    ) -> None:
        self._agents = agents
        self._life = life
        self._task = task
        self._hooks = hooks
        self.depth = task.depth
        self.owner = task.owner
        self.permission_mode: str = task.mode
        self.history = task.history
        self.budget = task.budget
        self.todo_aware = agents.policy.todo_aware
        self._host_tools: dict[str, HostTool] | None = None
        self._tools: dict[str, HostTool] | None = None
        self._breaker = Breaker(agents.policy.breaker)
        # What its host was told of refusals that may surprise it.
        self._told: set[str] = set()
        # Of its budget, as the directory says.
        self._used = None if task.budget is None else task.budget.used
        # While somebody is asked.
        self._asking: Wait | None = None

    # Its tools

    @property
    def tools(self) -> Sequence[AgentTool]:
        return list(self._allowed().values())

    def _allowed(self) -> dict[str, HostTool]:
        if self._tools is None:
            agent = self._task.recipe
            self._tools = {
                name: tool
                for name, tool in self._there().items()
                if (agent.tools is None or is_listed(name, agent.tools))
                and not is_listed(name, agent.disallowed_tools)
            }
        return self._tools

    def _there(self) -> dict[str, HostTool]:
        """Return the tools of the host, whatever the agent is restricted to."""
        if self._host_tools is None:
            self._host_tools = self._agents.tools_for(self._task.task_id)
        return self._host_tools

    def _check_runs(self) -> None:
        """Refuse what somebody wants who has kept the context of a run that has
        ended: what it starts would be nobody's."""
        if self._task.agent_host is not self:
            raise RuntimeStopping(
                f"this run of the agent {self._task.task_id} has ended"
            )

    async def use_tool(self, use: ToolUse) -> ToolAnswer:
        self._check_runs()
        # What was judged is what is called, whatever becomes of it meanwhile.
        use = ToolUse(use.id, use.name, copy.deepcopy(dict(use.input)))
        tool = self._allowed().get(use.name)
        if tool is None:
            names = ", ".join(self._allowed()) or "none"
            return _refusal(use, f"There is no tool {use.name!r}; there are: {names}.")
        why = self._breaker.check(use)
        if why is not None:
            return _refusal(use, why)
        request = self._request(tool, use)
        advice = await self._hooks.before_tool(request)
        if advice.input is not None:
            request = with_input(request, advice.input)
        try:
            verdict = await self._agents.policy.permissions.judge(
                request,
                self._agents.approvals,
                self._hooks.on_permission,
                said=advice.decision,
            )
        except AskFailed as error:
            raise AgentFailed("error", str(error)) from error
        if not verdict.allowed:
            if verdict.by_default:
                self._tell_once(REFUSALS["by default"].format(use.name))
            elif verdict.unasked:
                self._tell_once(REFUSALS["unasked"].format(use.name))
            reason = verdict.reason
            decision = advice.decision
            # A hook that denies has seen the call as the model has made it.
            if advice.input is not None and not (
                decision and decision.effect == "deny"
            ):
                reason += f" It was judged as a hook has changed it: {_shown(advice)}"
            return _refusal(use, _below_hooks(advice.text, reason))
        if verdict.input is not None:
            request = with_input(request, verdict.input)
        return await self._call(tool, request, advice.text)

    async def _call(
        self, tool: HostTool, request: ToolRequest, before: str | None
    ) -> ToolAnswer:
        """Make a call that is allowed; ``before`` is what hooks have said of it."""
        use = request.tool_use
        # Where somebody was asked, or a tool has given up a wait of its own.
        places = self._life.places
        await places.regain(self._task)
        began = trio.current_time()
        try:
            result = await tool.call(dict(use.input), tool_use_id=use.id)
            text, is_error, data = result.text, result.is_error, result.data
        except AgentFailed:
            raise
        # The boundary: what a tool raises is for its agent to know, for hooks, and for
        # its host.
        except Exception as error:
            text = f"{use.name} failed: {type(error).__name__}: {error}"
            is_error, data = True, {}
            self._task.warn(text, error)
        seconds = trio.current_time() - began
        await places.regain(self._task)
        comment = await self._hooks.after_tool(
            request,
            text,
            is_error=is_error,
            data=data,
            seconds=seconds,
        )
        text = text if comment.output is None else comment.output
        # First, so that no output of a task can pass for it.
        text = _below_hooks(before, _below_hooks(comment.text, text))
        return ToolAnswer(use.id, text, is_error)

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._task.warn(text)

    def _tell_missing_tools(self) -> None:
        agent = self._task.recipe
        named = {"tools": agent.tools or (), "disallowed_tools": agent.disallowed_tools}
        if not any(named.values()):
            return
        there = self._there()
        for argument, names in named.items():
            missing = [
                name for name in names if not any(names_tool(name, it) for it in there)
            ]
            if missing:
                self._task.warn(
                    f"{argument} names what no tool is called: {', '.join(missing)}; "
                    f"there are: {', '.join(there) or 'none'}"
                )

    def _tell_idle_guards(self) -> None:
        rules, told = self._agents.policy.permissions.rules, self._agents.told_idle
        hooks = self._hooks.hooks
        if not rules and hooks == _NO_HOOKS:
            return
        for text in idle_guards(rules, hooks, lambda: self._there().values()):
            # Not by each of the agents that have them in common.
            if text not in told:
                told.add(text)
                self._task.warn(text)

    def _request(self, tool: HostTool, use: ToolUse) -> ToolRequest:
        task = self._task
        return ToolRequest(
            agent_id=task.task_id,
            agent_type=task.recipe.type,
            depth=self.depth,
            mode=task.mode,
            tool_use=use,
            cwd=task.home,
            home=home_directory(self._life.env.processes.environment()),
            background=task.background,
            fill=tool.fill,
            follow=self._life.env.files.follow,
            runtime_directory=str(self._life.directory),
        )

    # Its own tasks

    async def launch(
        self,
        work: Work,
        *,
        description: str | None = None,
        tool_use_id: str | None = None,
    ) -> TaskHandle:
        order = await self._order(work, description, tool_use_id)
        task = self._life.enter(order, background=True)
        # The agent knows of it from here on.
        await self._life.journal.settle()
        return TaskHandle(self._life, task)

    async def run(self, work: Work, *, description: str | None = None) -> TaskSnapshot:
        order = await self._order(work, description, None)
        return await run_in_foreground(self._life, order)

    async def _order(
        self, work: Work, description: str | None, tool_use_id: str | None
    ) -> Order:
        self._check_runs()
        owner = self._task.task_id
        order = check_order(work, description, owner, tool_use_id, None, "wake")
        await trio.lowlevel.checkpoint()
        self._life.check_open()
        return order

    def reminder(self) -> str | None:
        if not self._task.own:
            return None
        text = self._agents.reminder_of(self._task.task_id)
        # The loop escapes it whole, with the words around it.
        return None if text is None else unescape(text)

    def own_tasks(self) -> int:
        outbox = self._life.delivery.outbox
        # Or an agent with no message and no own task would be done.
        outbox.catch_up()
        # Nor is it while the journal has an end not yet, which it therefore is not told.
        return len(self._task.own) + outbox.ends_on_the_way(self._task.deliver)

    async def wait_own_tasks(self) -> None:
        outbox = self._life.delivery.outbox
        await self._task.wait_own()
        # Who stops it does not wait for a disk that hangs.
        await outbox.settle(shield=False)
        outbox.catch_up()

    # Its record

    def record(self, message: Message) -> Exception | None:
        if not self._hooks.owes_stop:
            self._hooks.went_on()
        if (
            isinstance(message, UserMessage)
            and message.origin in _NEWS
            and not message.tool_answers
        ):
            self._breaker.begin_anew()
        task, log, revival = self._task, self._task.transcript, self._task.revival
        full: Exception | None = None
        if revival is not None and not revival.decided.is_set():
            revival.hold(message, self._record_held)
        elif log is not None:
            full = task.put_down(message, log)
        budget = task.budget
        if budget is not None and budget.used != self._used:
            self._used = budget.used
            self._agents.write_spent(task)
        return full

    def _record_held(self, messages: Sequence[Message]) -> None:
        """Record what was held until the run had begun."""
        log = self._task.transcript
        assert log is not None
        for message in messages:
            self._task.put_down(message, log)
        # They do not wait any more.
        self._agents.write_meta(self._task)

    async def flush(self) -> None:
        if self._task.transcript is None:
            await trio.lowlevel.checkpoint()
        else:
            await self._task.transcript.flush()

    # Its beginning, its end, and its waits

    async def starting(self) -> str | None:
        self._tell_missing_tools()
        self._tell_idle_guards()
        return await self._hooks.on_start()

    async def finishing(self, answer: str, attempt: int) -> str | None:
        return await self._hooks.on_stop(answer)

    def waiting(self, what: Literal["tasks", "approval"] | None) -> None:
        self._task.waiting = what

    async def wait_for(self, wait: Callable[[], Awaitable[object]]) -> None:
        if self._task.agent_host is self:
            await self._life.places.wait(self._task, wait)
        else:
            await wait()

    @enable_ki_protection
    def waits_for_approval(self, waits: bool) -> None:
        """Called when the first call begins to wait for somebody's answer, and
        when none does any more."""
        self._task.waiting = "approval" if waits else None
        asking, self._asking = self._asking, None
        if asking is not None:
            self._life.places.over(asking)
        if waits:
            self._asking = self._life.places.lend(self._task)


def _below_hooks(said: str | None, text: str) -> str:
    return text if said is None else f"A hook says: {said}\n\n{text}"


def _shown(advice: Advice) -> str:
    return one_line(json.dumps(advice.input, ensure_ascii=False), 200)


def _refusal(use: ToolUse, why: str) -> ToolAnswer:
    return ToolAnswer(use.id, why, is_error=True)
