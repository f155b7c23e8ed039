"""SendMessage: telling an agent something while it runs, or after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from actors.text import one_line

from .._life.handles import TaskHandle
from .._tasks.errors import MessageRefused, UnknownTask
from ..agents._inherited import agent_record
from ..lowlevel import life_of
from ._arguments import Field, Refused, check_words
from ._owned import by_resume, find_agent, unknown
from ._tool import Call, Tool, ToolResult

if TYPE_CHECKING:
    from ..runtime import Runtime

_REFUSAL_SHOWN: Final = 300

_DESCRIPTION: Final = """\
Sends a message to an agent that you have started, or that one of those has started.

- A running agent reads it between two of its steps, in the order of the calls; the call does not wait for that, and there is no answer to it but the agent's own at its end.
- An agent that has completed goes on with the message in the background, with all that it remembers; you are told when it ends.
- To an agent that failed or was stopped, and to commands, nothing can be sent: the answer is an error and nothing was sent. Such an agent can go on by the resume of the Agent tool.
- Takes the id of the agent, from the answer that started it or from TaskList.
"""


def send_message(runtime: Runtime, owner: str | None) -> Tool:
    """Return the tool for ``owner``."""

    async def act(call: Call) -> ToolResult:
        text: str = call.arguments["message"]
        check_words("message", text, "Nothing was sent")
        agent_id: str = call.arguments["to"]
        find_agent(runtime, owner, agent_id)
        try:
            sent = await runtime.send(agent_id, text, sender=owner)
        except MessageRefused as error:
            why = one_line(error.reason, _REFUSAL_SHOWN)
            help = f" {by_resume(agent_id)}" if error.by_resume else ""
            raise Refused(
                "refused",
                f"Nothing was sent: {agent_id} takes no messages: {why}.{help}",
            ) from None
        except UnknownTask:
            raise unknown(runtime, owner, agent_id) from None
        if sent.how == "queued":
            answer = (
                f"Agent {sent.task_id} has the message and reads it between two of its "
                "steps."
            )
        else:
            answer = (
                f"Agent {sent.task_id} had completed. It goes on with the message in "
                "the background, and you will be told when it ends."
            )
        return ToolResult(
            answer,
            data={"agentId": sent.task_id, "runId": sent.run_id, "how": sent.how},
        )

    def fill(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return them with the type of an agent that would go on: whoever may not start
        it may not let it go on, either."""
        agent_id = arguments.get("to")
        if not isinstance(agent_id, str):
            return arguments
        try:
            found = find_agent(runtime, owner, agent_id)
        except Refused:
            return arguments
        if isinstance(found, TaskHandle):
            record = agent_record(life_of(runtime).table, found.id)
            if record is None or not record.status.is_terminal:
                return arguments
            return {**arguments, "subagent_type": record.recipe.type}
        return {**arguments, "subagent_type": found.type}

    fields = (
        Field("to", "The id of the agent."),
        Field("message", "What to tell it."),
    )
    return Tool("SendMessage", _DESCRIPTION, fields, act, fill)
