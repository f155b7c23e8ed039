"""Rules, mode and hooks from the settings files of Claude Code.

A host uses the file that a project has already, and reports what is not honoured::

    from pathlib import Path
    from supervisor.agents import AgentPolicy
    from supervisor.permissions import Permissions
    from supervisor.settings_file import read_settings

    def policy_of(file=Path(".claude/settings.json")):
        settings = read_settings(file)
        for problem in settings.problems:
            print(f"{file}: {problem}")  # env: it is not honoured
        return AgentPolicy(
            permissions=Permissions(
                rules=settings.rules, mode=settings.mode or "default"
            ),
            hooks=settings.hooks,
        )

These settings are read:

- ``permissions`` with ``allow``, ``deny``, ``ask``, ``defaultMode`` and
  ``disableBypassPermissionsMode``. A host must heed the last one where it chooses a
  mode.
- ``hooks``, if the event exists here and the handlers are commands.
- ``disableAllHooks``.
- ``model``, for the host.

``hooks.json`` of a plugin, and that of Codex, have the same form. Use `read_hooks` for
them.

Some mistakes would allow something, or leave it unwatched: a rule that denies or asks
and cannot be read, a hook that cannot be called as it is meant, an unknown key beside
them, a repeated key. Then nothing of the file is used, and `SettingsError` names
everything that is wrong with it.

`FileSettings.problems` lists what only takes something away: a rule that allows and
cannot be read, or that would allow tools that nobody has named (``*``, ``mcp__*``), an
unknown event, any other setting. It also lists what may be a mistake: a name that no
known tool has, in a rule or in a hook's matcher, and a path in a rule for ``Write`` or
``Glob``, where Claude Code looks at ``Edit`` and ``Read`` only. A name that may be that
of a tool of an MCP server is not listed: in a rule any name with ``_``, in a matcher
one that begins with ``mcp__``.

A file holds the settings of a person or of a project, and what it allows is allowed.
Read no file that an agent can write.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import attrs

from actors.house import frozen
from actors.house import publish as _publish
from actors.text import clean_text

from .hooks import Hooks
from .hooks._settings import EVENTS, HookReader, Problem, near, shown
from .hooks._text_file import BadText, read_json, read_text
from .permissions import Mode, Rule
from .permissions._matching import doubtful, is_about_paths, name_in
from .permissions._modes import CLAUDE_MODES
from .permissions._paths import home_directory
from .permissions._rule_reading import is_anchored

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "FileSettings",
    "SettingsError",
    "read_hooks",
    "read_settings",
]

_EFFECTS: Final = ("deny", "ask", "allow")
_PERMISSIONS: Final = (
    *(*_EFFECTS, "defaultMode", "additionalDirectories"),
    *("disableBypassPermissionsMode", "disableAutoMode"),
)
_OURS: Final = ("permissions", "hooks", "model", "disableAllHooks")
_SILENT: Final = ("$schema", "description")
_ELSEWHERE: Final = ("ignorePatterns", "allowedTools", "disallowedTools")
"""Older names for rules."""


def _fatal_first(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    # Stable: of each kind in the order of the file.
    return tuple(sorted(problems, key=lambda it: not it.is_fatal))


@attrs.define(slots=False, repr=False)
class SettingsError(Exception):
    """Raised for a file that cannot be used. `str` of it names everything that is wrong
    in the file. It has one line for each problem, with the file and the place. The
    reasons for which the file is refused come first. The other problems follow, as
    notes."""

    source: Path
    """The file."""
    problems: tuple[Problem, ...] = attrs.field(converter=_fatal_first)
    """All problems. Those for which the file is refused stand first."""

    def __str__(self) -> str:
        return "\n".join(
            clean_text(f"{os.fspath(self.source)}: {_as_line(problem)}")
            for problem in self.problems
        )


def _as_line(problem: Problem) -> str:
    return str(problem) if problem.is_fatal else f"only a note: {problem}"


@frozen(kw_only=True)
class FileSettings:
    """The contents of a settings file."""

    source: Path
    """The file."""
    rules: tuple[Rule, ...] = ()
    """The rules, for `supervisor.permissions.Permissions`."""
    mode: Mode | None = None
    """The mode, for the same. It is None if the file names none."""
    forbids_bypass: bool = False
    """Whether nobody may choose the mode ``bypass``. `mode` is never ``bypass``
    then."""
    hooks: Hooks = attrs.field(factory=Hooks)
    """The hooks, for `supervisor.agents.AgentPolicy`."""
    model: str | None = None
    """The name of the model in the file."""
    problems: tuple[Problem, ...] = ()
    """The settings that are not honoured. Whatever the file forbids stays forbidden."""


def read_settings(path: str | os.PathLike[str]) -> FileSettings:
    """Return the contents of a settings file. It reads the disk, so call it before the
    event loop runs, or in a thread.

    Raises:
        SettingsError: if the file cannot be read, or must not be used because a part of
            it is wrong.
    """
    source = Path(path)
    reader = _SettingsReader(_root(source))
    found = reader.read_all(source, _parse(source))
    _fail_if_fatal(source, reader.problems)
    return found


def read_hooks(path: str | os.PathLike[str]) -> tuple[Hooks, list[Problem]]:
    """Return the hooks in a file, and the problems: which of them are never called, and
    why.

    Raises:
        SettingsError: as `read_settings`, and if there are no hooks in the file.
    """
    source = Path(path)
    value = _parse(source)
    reader = HookReader()
    if "hooks" not in value:
        text = f"there is no object 'hooks'{near(next(iter(value), ''), ('hooks',))}"
        raise SettingsError(source, [Problem("", text, is_fatal=True)])
    hooks = reader.read(value["hooks"])
    _fail_if_fatal(source, reader.problems)
    return hooks, reader.problems


def _fail_if_fatal(source: Path, problems: Sequence[Problem]) -> None:
    if any(problem.is_fatal for problem in problems):
        raise SettingsError(source, problems)


def _parse(source: Path) -> Mapping[str, Any]:
    if source.suffix in (".toml", ".rules"):
        what = f"a {source.suffix} file is one of Codex: only JSON is read, as settings"
        raise SettingsError(source, [Problem("", f"{what} or hooks", is_fatal=True)])
    what = ""
    try:
        text = read_text(source)
        what = "this is not a JSON object (no comments, no comma after the last): "
        return read_json(text)
    except BadText as error:
        place = "" if error.line is None else f"line {error.line}"
        problem = Problem(place, what + error.text, is_fatal=True)
    raise SettingsError(source, [problem])


def _root(source: Path) -> str | None:
    """Return the directory that a slash at the beginning of a path in a rule stands
    for: that of the project, or of the file; None, for a file that is named from the
    host's directory, is the agent's own."""
    above = source.parent
    if not source.is_absolute():
        return None
    # In the home directory it is a person's, for all of their projects.
    is_of_project = above.name == ".claude" and str(above.parent) != home_directory()
    return str(above.parent if is_of_project else above)


def _is_open_command(text: str) -> bool:
    return text.startswith("Bash(") and "*" in text


def _unbound(rules: Sequence[Rule], mode: Mode | None) -> str | None:
    """Return that commands may read what is denied, if there are both."""
    denied = [
        rule.text for rule in rules if rule.effect == "deny" and is_about_paths(rule)
    ]
    # A command that is allowed word for word reads what its writer has seen.
    commands = mode == "bypass" or any(
        rule.effect == "allow" and (rule.text == "Bash" or _is_open_command(rule.text))
        for rule in rules
    )
    if not denied or not commands:
        return None
    return (
        f"rules for paths, such as {shown(denied[0])}, do not bind Bash: deny the"
        " commands too, or do not allow them"
    )


class _SettingsReader(HookReader):
    def __init__(self, root: str | None) -> None:
        super().__init__()
        self._root = root

    def read_all(self, source: Path, value: Mapping[str, Any]) -> FileSettings:
        found: dict[str, Any] = {}
        for key, said in value.items():
            if key == "permissions":
                found |= self._permissions(said)
            elif key == "hooks":
                found["hooks"] = self.read(said)
            elif key == "model":
                found["model"] = self._text(said, "model")
            elif key != "disableAllHooks":
                self._other(key)
        if (off := value.get("disableAllHooks")) is True:
            found.pop("hooks", None)
        elif off not in (None, False):
            self._note("disableAllHooks", f"must be true or false, not {shown(off)}")
        return FileSettings(source=source, problems=tuple(self.problems), **found)

    def _permissions(self, said: object) -> dict[str, Any]:
        rules: list[Rule] = []
        fields = self._object(said, "permissions")
        for key, value in fields.items():
            place = f"permissions.{key}"
            if key in _EFFECTS:
                rules += self._rules(cast("Any", key), value, place)
            elif key not in _PERMISSIONS:
                self._refuse(place, f"there is no such key{near(key, _PERMISSIONS)}")
            elif key == "additionalDirectories" and value:
                text = "they are not added: allow what may be done there by rules"
                self._note(place, text)
        forbids_bypass = self._forbids_bypass(fields)
        mode = self._mode(fields.get("defaultMode"))
        if forbids_bypass and mode == "bypass":
            text = "disableBypassPermissionsMode forbids it: the mode is default"
            self._note("permissions.defaultMode", text)
            mode = "default"
        if unbound := _unbound(rules, mode):
            self._note("permissions", unbound)
        return {"rules": tuple(rules), "mode": mode, "forbids_bypass": forbids_bypass}

    def _forbids_bypass(self, fields: Mapping[str, Any]) -> bool:
        key = "disableBypassPermissionsMode"
        said: object = fields.get(key)
        if said is not None and said != "disable":
            self._refuse(f"permissions.{key}", f"must be 'disable', not {shown(said)}")
        return said is not None

    def _rules(self, effect: Any, texts: object, place: str) -> list[Rule]:
        is_fatal = effect != "allow"
        if not isinstance(texts, list):
            self._note(place, f"must be a list of rules, not {shown(texts)}", is_fatal)
            return []
        rules: list[Rule] = []
        for number, text in enumerate(cast("list[object]", texts)):
            where = f"{place}[{number}]"
            try:
                rule = Rule(effect, cast("str", text), root=self._root)
            except (TypeError, ValueError) as error:
                self._note(where, str(error), is_fatal)
                continue
            if effect == "allow" and not is_anchored(name_in(rule)):
                what = "would allow tools that nobody has named: write one for each"
                self._note(where, f"the rule {shown(rule.text)} {what}")
                continue
            rules.append(rule)
            if (doubt := doubtful(rule)) is not None:
                self._note(where, doubt)
        return rules

    def _mode(self, said: object) -> Mode | None:
        place = "permissions.defaultMode"
        if said is None:
            return None
        if isinstance(said, str) and said in CLAUDE_MODES:
            return CLAUDE_MODES[said]
        if said == "auto":
            self._note(place, "there is no mode auto: the mode is default")
            return "default"
        hint = near(said, (*CLAUDE_MODES,)) if isinstance(said, str) else ""
        wanted = ", ".join(CLAUDE_MODES)
        self._refuse(place, f"must be one of {wanted}, not {shown(said)}{hint}")
        return None

    def _other(self, key: str) -> None:
        if key in _SILENT or key.startswith(("_", "//")):
            return
        if key in EVENTS:
            text = f'it belongs in hooks: write {{"hooks": {{"{key}": [...]}}}}'
            self._refuse(key, text)
        elif key in ("permissionMode", "permission_mode", "mode"):
            self._refuse(key, "write it as permissions.defaultMode")
        elif key in _PERMISSIONS and key not in _EFFECTS:
            self._refuse(
                key, f'write {{"permissions": {{"{key}": ...}}}}: it belongs there'
            )
        elif key in (*_PERMISSIONS, *_ELSEWHERE):
            text = "it belongs in permissions, as a list deny, ask or allow of rules"
            self._refuse(key, text)
        elif hint := near(key, _OURS):
            self._refuse(key, f"there is no such key{hint}")
        else:
            self._note(key, "it is not honoured")

    def _text(self, said: object, place: str) -> str | None:
        if isinstance(said, str) and said:
            return said
        self._note(place, f"must be text, not {shown(said)}")
        return None


_publish(globals())
