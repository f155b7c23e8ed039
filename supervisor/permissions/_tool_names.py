"""What tools are called, also by older names and by mistake, and what they take: pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ._glob import matches_glob
from ._near_names import nearest_name, plain_name

_OLDER: Final[Mapping[str, str]] = {
    "Task": "Agent",
    "KillShell": "TaskStop",
    "KillBash": "TaskStop",
    "BashOutput": "TaskOutput",
    "BashOutputTool": "TaskOutput",
    "AgentOutputTool": "TaskOutput",
}
"""The newer names of tools that have two."""

_OLDER_ARGUMENTS: Final[Mapping[str, str]] = {
    "shell_id": "task_id",
    "bash_id": "task_id",
    "agentId": "task_id",
    "agent_id": "task_id",
}

PATH_ARGUMENTS: Final[Mapping[str, str]] = {
    "Edit": "file_path",
    "MultiEdit": "file_path",
    "NotebookEdit": "notebook_path",
    "Write": "file_path",
    "NotebookRead": "notebook_path",
    "Read": "file_path",
    "Glob": "path",
    "Grep": "path",
    "LS": "path",
}
"""In which argument a tool takes its path."""

EDITING: Final = frozenset(("Edit", "MultiEdit", "NotebookEdit", "Write"))
"""Names of tools that change a file at a path."""
READING: Final = frozenset(PATH_ARGUMENTS) - EDITING
"""Names of tools that read what is at a path."""
SEARCHING: Final = frozenset(("Glob", "Grep", "LS"))
"""Those that look below a directory: the agent's, if none is named."""

ARGUMENTS: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(arguments.split())
    for name, arguments in {
        "Bash": "command description timeout cwd run_in_background stdin monitor"
        " monitor_only sandbox dangerouslyDisableSandbox",
        "Agent": "description prompt subagent_type model run_in_background resume fork"
        " isolation name mode team_name max_turns",
        "Edit": "file_path old_string new_string replace_all",
        "MultiEdit": "file_path edits",
        "NotebookEdit": "notebook_path new_source cell_id cell_number cell_type"
        " edit_mode",
        "Write": "file_path content",
        "NotebookRead": "notebook_path cell_id",
        "Read": "file_path offset limit pages",
        "Glob": "path pattern",
        "Grep": "path pattern glob type output_mode -A -B -C -n -i context multiline"
        " head_limit offset",
        "LS": "path ignore",
        "SendMessage": "to message",
        "TodoWrite": "todos",
        "WebFetch": "url prompt",
        "Skill": "skill args",
        "SlashCommand": "command",
    }.items()
}
"""The arguments that these are known to take. What another one of a tool that takes
a path means, nobody knows."""

_OTHERS: Final = (
    "TaskList TaskMonitor TaskOutput TaskStop TaskWrite TaskCreate TaskGet TaskUpdate"
    " WebSearch TodoRead ExitPlanMode EnterPlanMode AskUserQuestion PowerShell Cd"
    " ListMcpResourcesTool ReadMcpResourceTool EnterWorktree ExitWorktree ToolSearch"
)
_BY_LOWER: Final[Mapping[str, str]] = {
    name.lower(): name for name in (*ARGUMENTS, *_OLDER, *_OTHERS.split())
}
KNOWN: Final = (
    *_BY_LOWER.values(),
    # Of these nothing is said about their capitals: they are short, and a host may
    # have others of its own.
    *("CronCreate", "CronDelete", "CronList", "LSP", "Monitor", "Artifact", "REPL"),
    *("PushNotification", "RemoteTrigger", "ScheduleWakeup", "SendUserFile", "Sleep"),
    *("TeamCreate", "TeamDelete", "WaitForMcpServers", "Workflow", "ReportFindings"),
)
"""The names of all tools that are known."""


def newer(name: str) -> str:
    """Return the name that a tool has today."""
    return _OLDER.get(name, name)


def all_names(name: str) -> tuple[str, ...]:
    """Return every name that a tool has or had."""
    today = newer(name)
    return (today, *(old for old, new in _OLDER.items() if new == today), name)


def known_spelling(name: str) -> str | None:
    """Return the name of the known tool that differs from ``name`` in its capitals
    only; None if there is none, or it is the same."""
    known = _BY_LOWER.get(name.lower())
    return None if known == name else known


def is_known(name: str) -> bool:
    """Tell whether a tool is known by this name, in whatever capitals if it is one
    that there may be here."""
    return name.lower() in _BY_LOWER or name in KNOWN


def newer_arguments(tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a call by the names that they have today."""
    if tool not in _OLDER:
        return arguments
    return {_OLDER_ARGUMENTS.get(name, name): it for name, it in arguments.items()}


def names_tool(listed: str, tool: str) -> bool:
    """Tell whether a name in a list of tools means ``tool``: by an older or a newer
    name, or as one of the tools of an MCP server, or of all that a pattern of their
    names matches."""
    return (
        newer(listed) == newer(tool)
        or is_of_server(listed, tool)
        or (listed.startswith("mcp__") and matches_glob(listed, tool))
    )


def is_of_server(server: str, tool: str) -> bool:
    """Tell whether ``server`` is an MCP server's name, or ``SERVER__*``, and
    ``tool`` one of its tools."""
    server = server.removesuffix("__*").removesuffix("__")
    return (
        server.startswith("mcp__")
        and "*" not in server
        and tool.startswith(f"{server}__")
    )


def is_whole_server(name: str) -> bool:
    """Tell whether it is the name of an MCP server and not of one of its tools."""
    return name.startswith("mcp__") and "__" not in name.removeprefix("mcp__")


def is_listed(tool: str, names: Iterable[str]) -> bool:
    """Return whether a list of tools holds ``tool``."""
    return any(names_tool(name, tool) for name in names)


def in_both(one: Iterable[str], other: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the tools that both lists hold."""
    one, other = tuple(one), tuple(other)
    mine = [name for name in one if is_listed(name, other)]
    theirs = [name for name in other if is_listed(name, one)]
    # Of a tool with two names the one of the first list.
    theirs = [
        name for name in theirs if not any(newer(it) == newer(name) for it in mine)
    ]
    return (*mine, *theirs)


# ---- Names that no tool has ---------------------------------------------------

_IN_OTHER_WORDS: Final = {
    **dict.fromkeys(
        "shell sh zsh terminal exec execute console command cmd localshell"
        " execcommand runcommand bashtool".split(),
        "Bash",
    ),
    **dict.fromkeys(("readfile", "viewfile", "openfile"), "Read"),
    **dict.fromkeys(("writefile", "createfile"), "Write"),
    **dict.fromkeys(("editfile", "applypatch"), "Edit"),
}
"""What other programs call these."""
_WORD: Final = re.compile(r"[A-Za-z0-9_-]{3,}")
_NO_WORD: Final = re.compile(r"\\.|\[[^\]]*\]|\(\?[A-Za-z]+\)")
"""What in a regular expression stands for no letters, or for one of several."""
_RULE: Final = re.compile(r"\s*([A-Za-z]+)\s*\(.*\)\s*", re.DOTALL)


def meant_tool(name: str, there: Iterable[str] = ()) -> str | None:
    """Return the tool whose name is nearest to one that no tool has, of those that
    are known and those that are ``there``; None if none is near."""
    plain = plain_name(name)
    if plain.startswith("mcp"):
        # The names of a server's tools are all alike.
        return next((tool for tool in there if plain_name(tool) == plain), None)
    known = (*KNOWN, *there)
    if plain in _IN_OTHER_WORDS and plain not in map(plain_name, known):
        return _IN_OTHER_WORDS[plain]
    return nearest_name(name, known)


def misspelt_in(
    expression: re.Pattern[str], there: Iterable[str] = ()
) -> Iterator[tuple[str, str]]:
    """Return the words in a regular expression that are in no tool's name, each with
    the tool that may be meant by it and is not matched."""
    tools = (*KNOWN, *there)
    for word in _WORD.findall(_NO_WORD.sub(" ", expression.pattern)):
        if word.startswith("mcp__") or any(word in tool for tool in tools):
            continue
        meant = meant_tool(word, there)
        if meant is not None and not any(map(expression.search, all_names(meant))):
            yield word, meant


def rule_for_a_name(matcher: str) -> tuple[str, str] | None:
    """Return the tool and the rule about it, rightly spelt, if a text is a rule, such
    as ``Bash(ls *)``, where the names of tools belong; None if it is none."""
    rule = _RULE.fullmatch(matcher)
    if rule is None:
        return None
    name = rule[1]
    tool = known_spelling(name) or (name if is_known(name) else meant_tool(name))
    return None if tool is None else (tool, matcher.strip().replace(name, tool, 1))
