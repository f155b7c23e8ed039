"""Agents that are defined in Markdown files: a head of fields, then the prompt.

Whoever starts such an agent says what it shall do. The text below the head is its
system prompt. Its loop gets this as `actors.agent.AgentContext.system`::

    ---
    name: reviewer
    description: Reads a change and says what is wrong with it
    tools: Bash, TaskOutput
    model: inherit
    background: true
    ---
    You review code. ...

A policy takes the definitions of a directory. Then agents can start these agents by the
tool Agent::

    from pathlib import Path
    from actors.models import loop
    from supervisor.agents import AgentPolicy
    from supervisor.definitions import read_definitions

    def policy_of(model, directory=Path("agents")):
        definitions, problems = read_definitions(directory)
        for problem in problems:
            print(problem)  # agents/reviewer.md:3: model must be one word, ...
        return AgentPolicy(definitions=definitions, run=loop(model))

`DefinitionError` names the file, and everything that is wrong in it with its line.
Reading needs PyYAML, which the extra ``agents`` brings. Without it an ImportError is
raised.

The fields:

- ``name``: the name of the agent. It is required.
- ``description``: when to use it, for the model that may use it. It is required.
- ``tools``, or ``allowed-tools``: the names of the tools that it may use, as a list
  or with commas. Without the field, or with ``*``, it may use all. The tools of MCP
  servers may be named together: ``mcp__SERVER``, ``mcp__SERVER__*``, ``mcp__*``.
- ``disallowed-tools``: the names of the tools that it may not use, whatever ``tools``
  says.
- ``model``: ``model`` or ``provider/model``. With ``inherit``, or without the field,
  it has the model of whoever starts it.
- ``background``: whether it always runs in the background.
- ``permission-mode``: see `supervisor.permissions`.
- ``restart``: ``temporary``, ``transient`` or ``permanent``, in the background.
- ``max-turns``: how many rounds of tool calls it has.
- ``fork-context``: whether it begins with the conversation of whoever starts it. A
  fork, and what a fork has started, cannot start it. A host hands its own conversation
  over by ``Runtime.tools_for(history=)``.
- ``hooks``: the hooks for its runs and its tool calls, as in a settings file: see
  `supervisor.settings_file`. ``Stop`` means ``SubagentStop`` here. The hooks before
  tool calls are also called for the agents that it starts.

A field may be written as ``max-turns``, ``max_turns`` or ``maxTurns``. Other fields of
Claude Code are not supported, and are a problem. Without ``isolation`` it would be
another agent, so the file defines none. Without
``skills``, ``mcpServers``, ``memory`` or ``effort`` it can only do less, so
`read_definitions` returns it all the same. ``color`` and ``initialPrompt`` mean nothing
here. Any other field is ignored, because other programs read the same files. But a
field is an error if it looks like one of these, or as if it should restrict the agent.
YAML that is broken in one of the usual ways is read all the same. What could mean two
things is an error.
"""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

from actors.house import publish as _publish
from actors.text import clean_text

from ..hooks import Hooks
from ..hooks._settings import HookReader
from ..hooks._text_file import BadText, read_text
from ..permissions._modes import MODES_BY_NAME
from ..permissions._tool_names import known_spelling
from ._definition import SHOWN, AgentDefinition, DefinitionError, shown
from ._frontmatter import HeadField, Value, split_page

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "AgentDefinition",
    "DefinitionError",
    "parse_definition",
    "read_definition",
    "read_definitions",
]

_FLAGS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_NUMBER: Final = re.compile("[1-9][0-9]{0,8}")
# Outside of parentheses, in which some write what a tool may be called with.
_LIST: Final = re.compile(r"(?:\([^()]*\)|[^\s,()])+|[()]")


def _normal(key: str) -> str:
    return re.sub("[-_ ]", "", unicodedata.normalize("NFKC", key)).lower()


def _to_list(value: Value) -> tuple[str, ...]:
    if isinstance(value, str):
        names = tuple(_LIST.findall(value))
        if not names:
            raise ValueError("is empty: name tools, or remove the line to allow all")
    elif value is None:
        raise ValueError("must be a list of names, not a mapping")
    else:
        # Each may itself be several, in one pair of quotes.
        names = tuple(name for item in value for name in _LIST.findall(item))
    return tuple(dict.fromkeys(names))


def _to_tools(value: Value) -> tuple[str, ...] | None:
    names = _to_list(value)
    if "*" in names:
        return None
    _check_patterns(names)
    return names


def _check_patterns(names: Iterable[str]) -> None:
    """Refuse what would be the name of no tool, and allow or forbid none."""
    for name in names:
        is_pattern = "*" in name and "(" not in name
        if name == "mcp__" or (is_pattern and not name.startswith("mcp__")):
            raise ValueError(
                "must name each tool; only for those of MCP servers may there be a "
                f"pattern, as in mcp__SERVER__* or mcp__*, not {shown(name)}"
            )


def _to_disallowed(value: Value) -> tuple[str, ...]:
    names = () if value == "" else _to_list(value)
    _check_patterns(names)
    for name in names:
        if (known := known_spelling(name)) is not None:
            raise ValueError(f"would forbid nothing by {shown(name)}: write {known}")
    return names


def _to_text(value: Value) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text; put it in quotes")
    return value.strip()


def _to_model(value: Value) -> str | None:
    text = _to_text(value)
    return None if text.lower() in ("", "inherit") else text


def _to_flag(value: Value) -> bool:
    text = _to_text(value)
    if text.lower() not in _FLAGS:
        raise ValueError(f"must be true or false, not {shown(text)}")
    return _FLAGS[text.lower()]


def _to_mode(value: Value) -> str | None:
    text = _to_text(value)
    return _MODES.get(_normal(text), text) or None


def _to_turns(value: Value) -> int:
    text = _to_text(value)
    if not _NUMBER.fullmatch(text):
        raise ValueError(
            f"must be a plain whole number, 1 or more, below 1,000,000,000, not {shown(text)}"
        )
    return int(text)


# By the spelling without hyphens, underscores and capitals.
_MODES: Final = {_normal(name): mode for name, mode in MODES_BY_NAME.items()}
_Read: TypeAlias = Callable[[Value], object]
"""Makes of what stands in a file what `AgentDefinition` then checks."""
_FIELDS: Final[Mapping[str, tuple[str, _Read]]] = {
    "name": ("name", lambda value: unicodedata.normalize("NFC", _to_text(value))),
    "description": ("description", lambda value: clean_text(_to_text(value))),
    "tools": ("tools", _to_tools),
    "allowedtools": ("tools", _to_tools),
    "disallowedtools": ("disallowed_tools", _to_disallowed),
    "model": ("model", _to_model),
    "background": ("background", _to_flag),
    "permissionmode": ("permission_mode", _to_mode),
    "restart": ("restart", lambda value: _to_text(value).lower()),
    "maxturns": ("max_turns", _to_turns),
    "forkcontext": ("fork_context", _to_flag),
    "hooks": ("hooks", lambda value: value),
}
# Indented by mistake they would belong to the field above, and restrict nothing.
_GUARDS: Final = (
    *("tools", "allowedtools", "disallowedtools", "permissionmode", "hooks"),
    *("isolation", "maxturns"),
)
_LIKE_GUARDS: Final = re.compile(
    "(?:den[iy]|allow|forb[ia]d|block|exclu|restrict|reject|refus|prohibit|permi).*tools?"
    "|tools?(?:den[iy]|(?:dis)?allow|forb|block|exclu|restrict)|permi.*mode|max.*turn"
)
_ANOTHER: Final[Mapping[str, str]] = {
    "isolation": "isolation is not there: give the agent a directory (cwd)",
}
"""Fields of other programs without which it would be another agent; and what to do."""
_LESS: Final[Mapping[str, str]] = {
    "skills": "skills are not there: write them into the prompt",
    "mcpservers": "servers are not started: AgentPolicy.tools adds tools",
    "memory": "an agent has no memory of its own",
    "effort": "models are given no effort",
}
"""Likewise, without which it can less."""
_NOTHING: Final = ("", "none", "false", "no", "off", "inherit", "default")
_NESTED: Final = ("hooks", "mcpservers")
_REQUIRED: Final = ("name", "description")
_MEANINGLESS: Final = ("color", "initialprompt")
_RESTRICTS: Final = (
    "permi|allow|den[iy]|forbid|block|exclude|restrict|sandbox|readonly|guard|isolat"
)
_RESTRICTING: Final = re.compile(_RESTRICTS)
_SUSPICIOUS: Final = re.compile(f"{_RESTRICTS}|tool|hook|fork|turns|^mode$")
# What YAML puts other fields in the place of, such as one that restricts.
_MERGE: Final = "<<"


def parse_definition(text: str, source: Path | None = None) -> AgentDefinition:
    """Return the agent that ``text`` defines.

    Args:
        text: the whole file.
        source: its origin, for errors.

    Raises:
        DefinitionError: if anything is wrong with the text.
        ImportError: without PyYAML, which the extra ``agents`` brings.
    """
    try:
        page = split_page(text.removeprefix("\ufeff"))
    except BadText as error:
        raise DefinitionError(source, error.line, error.text) from None
    faults: list[Fault] = []
    less: list[Fault] = []
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for field in page.fields:
        faults += _indented_guards(field)
        name, read = _FIELDS.get(_normal(field.key), ("", None))
        if read is None:
            faults += _faults_of_unknown(field)
            less += _faults_of_unhonoured(field, _LESS)
        elif name in lines:
            text = f"{field.key} is given twice, first in line {lines[name]}: "
            faults.append((field.line, text + "remove one of them"))
        else:
            lines[name] = field.line
            try:
                if name == "hooks":
                    values[name] = _read_hooks(field, faults, less)
                else:
                    values[name] = read(field.value)
            except ValueError as error:
                faults.append((field.line, f"{field.key} {error}"))
    if page.body:
        values["prompt"] = page.body
    faults += _faults_of_values(values, lines)
    # In the order of the lines, and then what is not there.
    faults.sort(key=_place)
    for name in _REQUIRED:
        if name not in lines:
            faults.append((1, f"there is no {name}: add a line '{name}: ...'"))
    if not page.body:
        text = "there is no prompt: write it below the frontmatter"
        faults.append((None, text))
    definition = None if faults else AgentDefinition(**values, source=source)
    if faults or less:
        (line, text), *more = sorted(less, key=_place) if definition else faults + less
        raise DefinitionError(source, line, text, tuple(more), definition)
    assert definition is not None
    return definition


Fault: TypeAlias = tuple[int | None, str]
"""The line of a fault, or None, and what is wrong there."""


def _place(fault: Fault) -> float:
    return fault[0] or math.inf


def _read_hooks(field: HeadField, faults: list[Fault], less: list[Fault]) -> Hooks:
    if field.tree is None:
        raise ValueError("must be a mapping of events, as in a settings file")
    reader = HookReader(in_agent=True)
    hooks = reader.read(field.tree)
    for problem in reader.problems:
        (faults if problem.is_fatal else less).append((field.line, str(problem)))
    return hooks


def _indented_guards(field: HeadField) -> Iterator[Fault]:
    if _normal(field.key) in _NESTED:
        return
    for key, line in field.within:
        if _may_be_guard(key, is_prose=field.is_prose):
            text = (
                f"{shown(key)} is indented, so that it belongs to {field.key}: "
                "begin the line with it, or write it otherwise"
            )
            yield line, text


def _may_be_guard(key: str, *, is_prose: bool) -> bool:
    """Tell whether one of the fields that restrict may be meant by a key that is
    indented, or something that is to restrict: in prose, also words before a colon
    look like a key."""
    normal = _normal(key)
    if normal in _GUARDS:
        return True
    if " " not in key and _LIKE_GUARDS.fullmatch(normal.rstrip("s")):
        return True
    if not is_prose and _RESTRICTING.search(normal):
        return True
    if is_prose and not key[:1].islower():
        return False
    cutoff = 0.85 if is_prose else 0.8
    return bool(get_close_matches(normal, _GUARDS, n=1, cutoff=cutoff))


def _faults_of_unhonoured(
    field: HeadField, fields: Mapping[str, str]
) -> Iterator[Fault]:
    """Tell of a field that is one of these, and says something."""
    text, value = fields.get(_normal(field.key)), field.value
    is_empty = value == () or field.tree == {}
    if isinstance(value, str):
        is_empty = value.strip().lower() in _NOTHING
    if text is not None and not is_empty:
        yield field.line, f"{field.key} is not honoured: {text}"


def _faults_of_unknown(field: HeadField) -> Iterator[Fault]:
    normal = _normal(field.key)
    if normal == _MERGE:
        yield field.line, f"{_MERGE} is not read: write the fields themselves"
    elif normal in _ANOTHER:
        yield from _faults_of_unhonoured(field, _ANOTHER)
    if normal in (_MERGE, *_ANOTHER, *_LESS, *_MEANINGLESS):
        return
    # Without a name or a description it is not an agent anyway.
    known = [key for key in (*_FIELDS, *_ANOTHER, *_LESS) if key not in _REQUIRED]
    restricts = _SUSPICIOUS.search(normal) is not None
    cutoff = 0.6 if restricts else 0.8
    near = get_close_matches(normal[:SHOWN], known, n=1, cutoff=cutoff)
    if near:
        meant = _FIELDS.get(near[0], (near[0],))[0]
        text = (
            f"{shown(field.key)} is unknown, and {meant} may be meant, "
            "without which the agent may do more: correct the name or remove the line"
        )
        yield field.line, text
    elif restricts:
        text = (
            f"{shown(field.key)} is unknown, and looks as if it was to restrict the "
            "agent: write tools, disallowed-tools or permission-mode, or remove the line"
        )
        yield field.line, text


def _faults_of_values(
    values: Mapping[str, Any], lines: Mapping[str, int]
) -> Iterator[Fault]:
    for attribute in attrs.fields(AgentDefinition):
        name, check = attribute.name, attribute.validator
        if check is None or name not in values:
            continue
        try:
            check(None, attribute, values[name])
        except ValueError as error:
            yield lines.get(name), str(error)


def read_definition(path: str | os.PathLike[str]) -> AgentDefinition:
    """Return the agent that a file defines. It reads the disk, so call it before the
    event loop runs, or in a thread.

    Raises:
        DefinitionError: if the file cannot be read or defines none.
        ImportError: as for `parse_definition`.
    """
    source = Path(path)
    try:
        text = read_text(source)
    except BadText as error:
        raise DefinitionError(source, error.line, error.text) from error.__cause__
    return parse_definition(text, source)


def read_definitions(
    directory: str | os.PathLike[str],
) -> tuple[dict[str, AgentDefinition], list[DefinitionError]]:
    """Return the agents that the ``.md`` files in and below a directory define, by
    name, and the problems with these files.

    The files are read in the order of their names, those of a directory before those
    below it. Hidden files are not read, and links to directories are a problem. If the
    names of two agents differ only in capitals or in how a character is written, the
    second agent is a problem. An agent that can only do less than its file says is
    returned, and is a problem, too.

    Raises:
        OSError: if the directory cannot be read.
        ImportError: as for `parse_definition`.
    """
    found: dict[str, AgentDefinition] = {}
    problems: list[DefinitionError] = []
    taken: dict[str, AgentDefinition] = {}
    for path in _files_below(Path(directory), problems):
        try:
            definition = read_definition(path)
        except DefinitionError as problem:
            problems.append(problem)
            if problem.definition is None:
                continue
            definition = problem.definition
        same = unicodedata.normalize("NFKC", definition.name).casefold()
        if (first := taken.get(same)) is not None:
            problems.append(
                DefinitionError(
                    path,
                    None,
                    f"the name {shown(definition.name)} is taken by {first.source}: "
                    "rename one of the two",
                )
            )
            continue
        taken[same] = found[definition.name] = definition
    return found, problems


def _files_below(directory: Path, problems: list[DefinitionError]) -> Iterator[Path]:
    names = sorted(os.listdir(directory))
    # Not by recursion: there may be more of them, one in the other, than frames.
    waiting: list[Path] = []
    while True:
        below: list[Path] = []
        for path in (Path(directory, name) for name in names if name[0] != "."):
            if path.name.lower().endswith(".md"):
                yield path
            elif path.is_symlink() and path.is_dir():
                # It may lead back to where it stands, or anywhere.
                text = "a link to a directory is not followed: copy its files"
                problems.append(DefinitionError(path, None, text))
            elif path.is_dir():
                below.append(path)
        waiting = below + waiting
        if not waiting:
            return
        directory = waiting.pop(0)
        try:
            names = sorted(os.listdir(directory))
        except OSError as error:
            text = f"it cannot be read: {error.strerror}"
            problems.append(DefinitionError(directory, None, text))
            names = []


_publish(globals())
