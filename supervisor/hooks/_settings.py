"""The ``hooks`` of a settings file, or of an agent's definition: pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import attrs

from actors.house import frozen
from actors.text import one_line

from ..permissions import Rule
from ..permissions._matching import misspelt
from ..permissions._near_names import nearest_name
from ..permissions._tool_names import (
    KNOWN,
    is_known,
    is_whole_server,
    known_spelling,
    meant_tool,
    misspelt_in,
    rule_for_a_name,
)
from ._command import PROJECT_DIR
from ._hook import TOOL_LISTS, Hook, Hooks, is_for_all, matcher_for, names_in

TIMEOUT: Final = 600.0
"""Seconds that a hook of a settings file has that says nothing else."""

_LISTS: Final[Mapping[str, str]] = {
    "PreToolUse": "pre_tool",
    "PermissionRequest": "permission_request",
    "PostToolUse": "post_tool",
    "PostToolUseFailure": "post_tool_failure",
    "SubagentStart": "start",
    "SubagentStop": "stop",
    "Stop": "main_stop",
}
EVENTS: Final = (*_LISTS,)
"""Those for which hooks are called."""
_NEVER: Final = frozenset(
    """
    SessionStart SessionEnd Setup UserPromptSubmit UserPromptExpansion PermissionDenied
    PostToolBatch Notification MessageDisplay TaskCreated TaskCompleted StopFailure
    TeammateIdle InstructionsLoaded ConfigChange CwdChanged DirectoryAdded FileChanged
    WorktreeCreate WorktreeRemove PreCompact PostCompact Elicitation ElicitationResult
    """.split()
)
"""What Claude Code calls hooks for, and nobody here does."""
_HOOK_KINDS: Final = ("command", "http", "prompt", "agent", "mcp_tool")
_UNHEEDED: Final[Mapping[str, str]] = {
    "async": "it is waited for all the same",
    "asyncRewake": "it is waited for all the same",
    "statusMessage": "it is not shown anywhere",
    "commandWindows": "hooks run under bash: command is called",
    "once": "it is called each time all the same",
}
"""What changes nothing in a handler, and why."""
_HANDLER: Final = ("type", "command", "args", "if", "timeout", "shell", *_UNHEEDED)
_REMARKS: Final = frozenset(("description", "name", "id", "comment", "$comment"))
_PLACEHOLDER: Final = re.compile(rf"\$\{{{PROJECT_DIR}\}}|\${PROJECT_DIR}\b")


@frozen
class Problem:
    """Something in a file that is not honoured."""

    place: str
    """Where it stands, such as ``permissions.deny[0]``."""
    text: str
    """What is wrong with it, and what to do."""
    is_fatal: bool = attrs.field(default=False, kw_only=True)
    """Whether nothing of the file is used because of it: something would be allowed,
    or go unwatched, that was not to be."""

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" if self.place else self.text


def shown(value: object) -> str:
    """Return a value of a file as it is shown in a problem."""
    return one_line(repr(value), 80)


def near(name: str, known: Sequence[str]) -> str:
    """Return a hint at what may be meant, if something may."""
    meant = nearest_name(name, known)
    return "" if meant is None else f"; {meant} may be meant"


class HookReader:
    """Reads one object of hooks; what it cannot read is a problem.

    Args:
        in_agent: whether they are those of one kind of agents.
    """

    def __init__(self, *, in_agent: bool = False) -> None:
        self.problems: list[Problem] = []
        self._in_agent = in_agent

    def read(self, value: object, place: str = "hooks") -> Hooks:
        """Return the hooks."""
        lists: dict[str, list[Hook]] = {}
        for event, groups in self._object(value, place).items():
            where = f"{place}.{event}"
            if event in _NEVER:
                text = "these hooks are never called: there is no such event here"
                self._note(where, text)
            elif event not in _LISTS:
                known = (*_LISTS, *_NEVER)
                self._refuse(where, f"there is no such event{near(event, known)}")
            else:
                name = _LISTS[event]
                if self._in_agent and event == "Stop":
                    name = "stop"
                found = self._groups(event, groups, where)
                lists.setdefault(name, []).extend(found)
        given: dict[str, Any] = dict(lists)
        return Hooks(timeout=TIMEOUT, **given)

    def _groups(self, event: str, groups: object, place: str) -> list[Hook]:
        hooks: list[Hook] = []
        for number, group in enumerate(self._list(groups, place)):
            where = f"{place}[{number}]"
            fields = self._object(group, where)
            if "hooks" not in fields:
                shape = '{"matcher": ..., "hooks": [{"type": "command", ...}]}'
                self._refuse(where, f"there is no list 'hooks': write {shape}")
            for key in fields:
                if key not in ("matcher", "hooks") and not _is_remark(key):
                    hint = near(key, ("matcher", "hooks"))
                    self._refuse(f"{where}.{key}", f"there is no such key{hint}")
            matcher = fields.get("matcher")
            if matcher is None or event == "Stop":
                matcher = "*"
            if _LISTS[event] in TOOL_LISTS:
                self._check_matcher(matcher, f"{where}.matcher")
            handlers = self._list(fields.get("hooks", []), f"{where}.hooks")
            if fields.get("hooks") == []:
                self._note(f"{where}.hooks", "it is empty: nothing is called")
            for index, handler in enumerate(handlers):
                hook = self._handler(event, matcher, handler, f"{where}.hooks[{index}]")
                if hook is not None:
                    hooks.append(hook)
        return hooks

    def _check_matcher(self, matcher: object, place: str) -> None:
        """Refuse the names of tools that nothing is called by."""
        if not isinstance(matcher, str) or is_for_all(matcher):
            return
        if (names := names_in(matcher)) is None:
            self._check_expression(matcher, place)
        for name in names or ():
            right = f"{name}__.*" if is_whole_server(name) else known_spelling(name)
            if right is not None:
                self._refuse(place, f"no tool is called {shown(name)}: write {right}")
            elif name and not name.startswith("mcp__") and not is_known(name):
                meant = meant_tool(name)
                hint = "" if meant is None else f"; {meant} may be meant"
                self._note(place, f"no known tool is called {shown(name)}{hint}")

    def _check_expression(self, matcher: str, place: str) -> None:
        """Refuse a rule where the names of tools belong, and tell of an expression
        that no known tool matches."""
        try:
            expression = re.compile(matcher)
        except re.error:
            return  # Hook says so.
        words = [*misspelt_in(expression)]
        if "mcp__" in matcher or any(map(expression.search, KNOWN)):
            for word, meant in words:
                text = f"no known tool is called {shown(word)}; {meant} may be meant"
                self._note(place, text)
            return
        rule = rule_for_a_name(matcher)
        if rule is not None and rule[1].casefold() == matcher.strip().casefold():
            what = f'write "matcher": "{rule[0]}", and "if": {json.dumps(rule[1])}'
            self._refuse(
                place, f"a rule matches no tool's name: {what} beside the command"
            )
        else:
            hint = f"; {words[0][1]} may be meant" if words else ""
            self._note(place, f"no known tool matches {shown(matcher)}{hint}")

    def _handler(
        self, event: str, matcher: Any, value: object, place: str
    ) -> Hook | None:
        before = len(self.problems)
        fields = self._object(value, place)
        kind = fields.get("type", "command" if "command" in fields else None)
        if not isinstance(value, Mapping):
            return None
        if kind != "command":
            what = "hooks of this type are not called: write one of the type command"
            if not fields:
                what = 'there is none: write {"type": "command", "command": ...}'
            elif kind not in _HOOK_KINDS:
                what = f"must be command, not {shown(kind)}"
            self._refuse(f"{place}.type", what)
            return None
        for key in fields:
            if key not in _HANDLER and not _is_remark(key):
                hint = near(key, _HANDLER)
                # It may say when the hook is called, or with what.
                self._note(f"{place}.{key}", f"there is no such key{hint}", bool(hint))
        if fields.get("shell", "bash") != "bash":
            self._refuse(
                f"{place}.shell", f"must be bash, not {shown(fields['shell'])}"
            )
        for key, text in _UNHEEDED.items():
            if fields.get(key):
                self._note(f"{place}.{key}", text)
        command = self._command(fields, place)
        only = self._only(event, matcher, fields.get("if"), f"{place}.if")
        if any(it.is_fatal for it in self.problems[before:]) or command is None:
            return None
        try:
            return Hook(command, matcher, timeout=fields.get("timeout"), only=only)
        except (TypeError, ValueError) as error:
            self._refuse(place, str(error).replace("run must", "command must"))
            return None

    def _command(self, fields: Mapping[str, Any], place: str) -> str | None:
        command, args = fields.get("command"), fields.get("args")
        if not isinstance(command, str):
            what = f"must be the text of a command, not {shown(command)}"
            self._refuse(f"{place}.command", what)
            return None
        if args is None:
            return command
        words = [command, *self._list(args, f"{place}.args")]
        if not all(isinstance(word, str) for word in words):
            self._refuse(f"{place}.args", f"must be a list of texts, not {shown(args)}")
            return None
        return " ".join(_quoted(word) for word in cast("list[str]", words))

    def _only(
        self, event: str, matcher: object, text: object, place: str
    ) -> Rule | None:
        if text is None:
            return None
        if _LISTS[event] not in TOOL_LISTS:
            self._refuse(
                place, f"a {event} is not a tool call, so no rule can match it"
            )
            return None
        try:
            only = Rule("deny", cast("str", text))
            right = matcher_for(only, matcher) if isinstance(matcher, str) else None
        except re.error:
            return None  # Hook says so.
        except (TypeError, ValueError) as error:
            self._refuse(place, str(error))
            return None
        if right is not None:
            self._refuse(
                place,
                f"the matcher {shown(matcher)} excludes every call that it is about, so"
                f' the hook is never called: write "matcher": {json.dumps(right)}',
            )
        elif (meant := misspelt(only, ())) is not None:
            what = f"the rule {shown(only.text)} is about no known tool"
            self._note(place, f"{what}; {meant} may be meant")
        return only

    def _note(self, place: str, text: str, is_fatal: bool = False) -> None:
        self.problems.append(Problem(place, text, is_fatal=is_fatal))

    def _refuse(self, place: str, text: str) -> None:
        self._note(place, text, True)

    def _object(self, value: object, place: str) -> Mapping[str, Any]:
        if isinstance(value, Mapping):
            return cast("Mapping[str, Any]", value)
        self._refuse(place, f"must be an object, not {shown(value)}")
        return {}

    def _list(self, value: object, place: str) -> Sequence[object]:
        if isinstance(value, list):
            return cast("list[object]", value)
        self._refuse(place, f"must be a list, not {shown(value)}")
        return []


def _is_remark(key: str) -> bool:
    return key in _REMARKS or key.startswith(("_", "//"))


def _quoted(word: str) -> str:
    """Return a word for a shell that makes nothing of it but the directory that it
    may name."""
    parts = [shlex.quote(part) if part else "" for part in _PLACEHOLDER.split(word)]
    return f'"${{{PROJECT_DIR}}}"'.join(parts) or "''"
