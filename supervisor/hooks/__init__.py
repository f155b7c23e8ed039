"""Hooks: commands and functions of the program that are called round an agent's life.

They are called as Claude Code calls its hooks, so a script that was written for it
works here, too. `supervisor.settings_file` reads its settings files. A hook is a
command or an async function.

========================  ========================================================
list of `Hooks`           called
========================  ========================================================
``start``                 before the first prompt of a run (``SubagentStart``)
``pre_tool``              before every tool call, whatever allows it, in the mode
                          ``bypass`` as well (``PreToolUse``)
``permission_request``    about a call that neither a rule nor the agent's mode
                          decides (``PermissionRequest``)
``post_tool``             after a call that has succeeded (``PostToolUse``)
``post_tool_failure``     after one that has failed (``PostToolUseFailure``)
``stop``                  when a run ends (``SubagentStop``)
``main_stop``             when a run ends of an agent that the program itself has
                          started (``Stop``)
========================  ========================================================

A **command** runs under ``bash -c`` in the agent's directory, with the host's as
``CLAUDE_PROJECT_DIR``. It gets a JSON object on its standard input::

    hook_event_name  session_id  transcript_path  cwd  permission_mode
    agent_id  agent_type  session  mode

``permission_mode`` is the mode in the words of Claude Code. ``mode`` is the same in
ours. ``transcript_path`` is that of the outermost agent. Its id is the ``session_id``
if the session has no name. Hooks round tool calls also have ``tool_name``,
``tool_use_id`` and ``tool_input``, in which the path of a tool for files is absolute.
After the call they have ``duration_ms``, and ``tool_response`` or ``error``. Stop hooks
have ``stop_hook_active`` (whether the agent goes on because of one already),
``agent_transcript_path``, ``last_assistant_message``, ``background_tasks``,
``session_crons``, and ``status``: ``running`` if the hook can still make the agent go
on, or else how it has ended, ``completed``, ``failed`` or ``killed``. The exit code
says:

=========  ============  ============================  ============  ==============
exit code  start         pre_tool, permission_request  post_tool     stop
=========  ============  ============================  ============  ==============
0          stdout goes   stdout may decide             stdout may    stdout may
           to the agent                                tell          decide
2          ignored       denied: stderr says why       stderr goes   the agent goes
                                                       to the agent  on with stderr
any other  stderr goes to the people, as a warning, and the hook allows nothing
=========  ============  ============================  ============  ==============

What stdout may decide or tell is a JSON object, with all that Claude Code and Codex
document:

- Before a call it is ``hookSpecificOutput`` with ``permissionDecision`` (``allow``,
  ``deny`` or ``ask``, and ``defer`` means ``ask``), ``permissionDecisionReason``,
  ``updatedInput`` and ``additionalContext``, or flat ``decision`` and ``reason``.
- About a permission it is ``hookSpecificOutput`` with ``decision``, an object.
- After a call and at a stop it is ``decision: "block"`` with a ``reason``,
  ``additionalContext``, and ``updatedToolOutput``.
- ``continue: false`` fails the agent, with ``stopReason``. At a stop it lets the agent
  end, whatever other hooks say.
- ``systemMessage`` goes to the people.
- ``async``, ``suppressOutput``, ``terminalSequence`` and ``classifierContext`` change
  nothing, because the agent waits for each hook.

An answer is not understood if a key, a value, a type or a place in it is unknown, or if
it is not JSON. It causes a warning and decides nothing. But if it can only mean a
denial, the call is denied.

What hooks before a call say counts as a rule about that call. Deny beats ask, and ask
beats allow. So no hook allows what a rule denies or asks about, and no hook lets an
agent edit in the mode ``plan``. If a hook changes a call, the changed call is judged.

A **function** gets the same as a mapping of its own. It returns what a command would
print, as a mapping, or None if it has nothing to say. Before a call it may also return
a `Verdict` or a `Decision`. At the start and after a call it may return a text for the
agent, and at the stop the reason to go on.

All hooks of an event run at the same time. What they say is put together in their
order. A hook that raises, takes too long or cannot be started causes a warning. It then
stops no agent, and allows and denies nothing. All processes of a command are killed
when it has ended, at its timeout, and when the agent is stopped.

Here an agent may only end when the tests pass, and a function denies a call::

    from supervisor.agents import AgentPolicy
    from supervisor.hooks import Hook, Hooks
    from supervisor.permissions import Verdict

    async def no_network(told):
        if "curl" in str(told["tool_input"]):
            return Verdict(False, "there is no network")

    hooks = Hooks(
        stop=[Hook("pytest -q >&2 || exit 2", timeout=600)],
        pre_tool=[Hook(no_network, "Bash")],
    )
    policy = AgentPolicy(hooks=hooks)  # open_runtime(directory, agents=policy)

A bad hook is refused where it is made, with a TypeError or ValueError that names the
argument.
"""

from __future__ import annotations

from actors.house import publish as _publish

from ._advice import Advice, Comment
from ._hook import Hook, Hooks

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "Advice",
    "Comment",
    "Hook",
    "Hooks",
]

_publish(globals())
