"""Tool calls that wait for somebody's answer."""

from __future__ import annotations

import json
from collections.abc import Callable

import attrs
import trio

from actors.agent import ToolUse
from actors.env import Ids
from actors.house import check_type, frozen
from actors.house import publish as _publish
from actors.text import one_line

from .._tasks.task_events import ApprovalAnswered, ApprovalRequested
from ..permissions import ToolRequest, Verdict
from ..permissions._tool_names import PATH_ARGUMENTS
from ..tree._events import EventStream

__all__ = ["Approval", "Approvals"]

_ID_DIGITS = 32
_NAME_SHOWN = 64


@frozen
class Approval:
    """A tool call that waits for an answer of the host.

    Attributes:
        id: its id for `Approvals.answer`. Nobody can guess it, and no model is told it.
        agent_id, agent_type: the agent that calls. For the host's own model,
            ``agent_id`` is the owner's name or ``main``, and ``agent_type`` is
            ``main``.
        tool_use: the call as the model has made it. Clean what you show of it.
        description: the call in one clean line for people.
        requested_at: the time on trio's clock at which it was asked, in seconds.
    """

    id: str
    agent_id: str
    agent_type: str
    tool_use: ToolUse
    description: str
    requested_at: float


@attrs.define(eq=False, repr=False)
class _Asker:
    owner: str | None
    on_waiting: Callable[[bool], None] | None
    parked: dict[str, _Parked] = attrs.field(factory=dict[str, "_Parked"])
    """By the id of the call."""


@attrs.define(eq=False, repr=False)
class _Parked:
    approval: Approval
    agent: _Asker
    answered: trio.Event = attrs.field(factory=trio.Event)
    verdict: Verdict | None = None


class Approvals:
    """Tool calls in the mode ``bubble`` that wait for an answer. Agents make them, and
    so does the host's own model where `supervisor.runtime.Runtime.tools_for` has
    permissions.

    A runtime has one, ``runtime.approvals``. At its end all calls that wait are denied.
    The event `ApprovalRequested` reports a new one, and `ApprovalAnswered` its answer.
    Only `answer` allows a call. The program calls it, after it has shown the question
    to a person. An answer is for one call only. There is no "always".
    """

    def __init__(self, ids: Ids, events: EventStream) -> None:
        self._ids = ids
        self._events = events
        self._agents: dict[str, _Asker] = {}
        self._hosts: dict[str | None, _Asker] = {}
        """Those of the host's own model, by their owner. No agent: they may have
        the name of one."""
        self._is_over = False
        self._parked: dict[str, _Parked] = {}
        """By the id of the approval, oldest first."""

    def pending(self, owner: str | None = None) -> list[Approval]:
        """Return the calls that wait, the oldest first.

        Args:
            owner: return only the calls of this owner's own model, of agents that it
                has started, and of agents below them. None means all.
        """
        return [
            parked.approval
            for parked in self._parked.values()
            if owner is None or self._is_of(parked, owner)
        ]

    def answer(self, id: str, allow: bool, reason: str | None = None) -> bool:
        """Answer a call. The first answer counts. It does not wait.

        Args:
            id: `Approval.id`.
            allow: whether it may be made.
            reason: why it may not be made, for the model.

        Returns:
            False if no call with this id waits, or waits any more. Then nothing has
            changed.

        Raises:
            TypeError: if an argument has another type.
        """
        check_type("id", id, str)
        check_type("allow", allow, bool)
        check_type("reason", reason, str | None)
        parked = self._parked.get(id)
        if parked is None:
            return False
        words = "the user has allowed it" if allow else "the user has refused it"
        if reason:
            words += f": {reason}"
        self._end(parked, Verdict(allow, words), "host", reason)
        return True

    # For the runtime

    def admit(
        self,
        agent_id: str,
        *,
        owner: str | None,
        on_waiting: Callable[[bool], None] | None = None,
    ) -> None:
        """Let calls of this agent wait from now on.

        Args:
            owner: the owner of the agent.
            on_waiting: it is called with True when a first call begins to wait, and
                with False when none waits any more. It must not raise.
        """
        self.close(agent_id, "the agent was started anew")
        self._agents[agent_id] = _Asker(owner, on_waiting)

    def of_host(self, owner: str | None) -> HostApprovals:
        """Return the place where calls of this owner's own model wait."""
        return HostApprovals(self, owner)

    def close(self, agent_id: str, why: str) -> None:
        """Deny all calls of this agent that wait, and let no call of it wait any more.

        It is called on every path on which an agent ends, before the agent is
        cancelled. It may be called more than once.
        """
        agent = self._agents.pop(agent_id, None)
        if agent is None:
            return
        self._deny_all(agent, why)

    def end(self, why: str) -> None:
        """Deny all calls that wait, and let no call wait any more. A second call does
        nothing."""
        self._is_over = True
        hosts, self._hosts = self._hosts, {}
        for agent_id in [*self._agents]:
            self.close(agent_id, why)
        for host in hosts.values():
            self._deny_all(host, why)

    def _deny_all(self, agent: _Asker, why: str) -> None:
        for parked in [*agent.parked.values()]:
            self._end(parked, Verdict(False, why), "end", why)

    async def wait(self, request: ToolRequest) -> Verdict:
        """Park a call until it is answered, and return the answer.

        A second call with the id of one that waits is refused without a question,
        because an answer is for what was asked. A call of an agent that is not running
        any more is refused, too. A cancellation withdraws the question.
        """
        return await self._wait(self._agents.get(request.agent_id), request)

    async def wait_of_host(self, owner: str | None, request: ToolRequest) -> Verdict:
        """Do as `wait`, for a call of the host's own model."""
        return await self._wait(
            self._hosts.setdefault(owner, _Asker(owner, None)), request
        )

    async def _wait(self, agent: _Asker | None, request: ToolRequest) -> Verdict:
        use = request.tool_use
        if self._is_over:
            await trio.lowlevel.checkpoint()
            return Verdict(False, "nobody can be asked, since the runtime ends")
        if agent is None or use.id in agent.parked:
            await trio.lowlevel.checkpoint()
            if agent is None:
                return Verdict(False, "nobody can be asked, since the agent ends")
            return Verdict(False, "a call with the same id waits for an answer already")
        parked = self._park(agent, request)
        try:
            await parked.answered.wait()
        finally:
            verdict = parked.verdict
            if verdict is None:
                verdict = Verdict(False, "the call was given up")
                self._end(parked, verdict, "withdrawn", None)
        return verdict

    def _park(self, agent: _Asker, request: ToolRequest) -> _Parked:
        use = request.tool_use
        approval_id = self._ids.hex(_ID_DIGITS)
        while approval_id in self._parked:  # Or the other would wait for ever.
            approval_id = self._ids.hex(_ID_DIGITS)
        parked = _Parked(
            Approval(
                approval_id,
                request.agent_id,
                request.agent_type,
                use,
                _in_a_line(use),
                trio.current_time(),
            ),
            agent,
        )
        approval = parked.approval
        agent.parked[use.id] = parked
        self._parked[approval.id] = parked
        self._events.emit(
            ApprovalRequested,
            approval.id,
            approval.agent_id,
            use.id,
            approval.description,
        )
        if len(agent.parked) == 1 and agent.on_waiting is not None:
            agent.on_waiting(True)
        return parked

    def _end(
        self,
        parked: _Parked,
        verdict: Verdict,
        by: str,
        reason: str | None,
    ) -> None:
        approval, agent = parked.approval, parked.agent
        # First of all it is gone, so that nobody can answer it twice.
        del self._parked[approval.id]
        del agent.parked[approval.tool_use.id]
        parked.verdict = verdict
        parked.answered.set()
        self._events.emit(
            ApprovalAnswered,
            approval.id,
            approval.agent_id,
            verdict.allowed,
            by,
            reason,
        )
        if not agent.parked and agent.on_waiting is not None:
            agent.on_waiting(False)

    def _is_of(self, parked: _Parked, owner: str) -> bool:
        """Tell whether it is a call of this owner's own model, or of an agent below."""
        seen = {parked.approval.agent_id}
        agent: _Asker | None = parked.agent
        while agent is not None and agent.owner is not None:
            if agent.owner == owner:
                return True
            if agent.owner in seen:
                return False
            seen.add(agent.owner)
            agent = self._agents.get(agent.owner)
        return False


@frozen
class HostApprovals:
    """Where calls of the host's own model wait, for one owner."""

    approvals: Approvals
    owner: str | None

    async def wait(self, request: ToolRequest) -> Verdict:
        """See `Approvals.wait`."""
        return await self.approvals.wait_of_host(self.owner, request)


def _in_a_line(use: ToolUse) -> str:
    """Return a call in one line, with what it does before what it says of itself."""
    name = one_line(use.name, _NAME_SHOWN)
    command = use.input.get("command")
    if isinstance(command, str) and len(use.input) == 1:
        return one_line(f"{name}: {command}")
    arguments = sorted(use.input.items(), key=lambda item: _rank(use.name, item[0]))
    try:
        shown = json.dumps(dict(arguments), ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        shown = "arguments that cannot be shown"
    return one_line(f"{name}: {shown}")


def _rank(tool: str, argument: str) -> int:
    if argument in ("command", PATH_ARGUMENTS.get(tool)):
        return 0
    return 2 if argument == "description" else 1


_publish(globals(), "supervisor.runtime")
