"""What an agent that is defined in a file is."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import attrs

from actors.house import check_all, check_text, check_type, check_whole, frozen, of
from actors.text import clean_text, is_encodable

from ..hooks import Hooks
from ..permissions._modes import MODES
from ..permissions._tool_names import newer
from ..tree._spec import Restart

_NAME_LIMIT: Final = 64
_TEXT_LIMIT: Final = 16_384
SHOWN: Final = 80
"""Characters of a value that errors show."""
# A word begins it: no dash of a list, and no comment.
_TOOL: Final = re.compile(r"[\w*][^\s,()\[\]{}'\"#]{0,127}")
_MODEL: Final = re.compile(r"[^\s'\"]{1,256}")


@attrs.define(slots=False, repr=False)
class DefinitionError(Exception):
    """Raised for a file that defines no agent. `str` of it has one line for each thing
    that is wrong. Each line names the file and the line in it, and says what to do."""

    source: Path | None
    """The file. It is None for a text that came from none."""
    line: int | None
    """The line, counted from 1. It is None if the whole file is meant."""
    text: str
    """What is wrong."""
    more: tuple[tuple[int | None, str], ...] = ()
    """The other things that are wrong, each with its line and its text."""
    definition: AgentDefinition | None = None
    """The agent without what is wrong, if it can then only do less. It is None if the
    agent must not be used."""

    def __str__(self) -> str:
        faults = [(self.line, self.text), *self.more]
        return "\n".join(self._as_line(line, text) for line, text in faults)

    def _as_line(self, line: int | None, text: str) -> str:
        place = "agent definition" if self.source is None else os.fspath(self.source)
        if line is not None:
            place += f":{line}"
        # A file name that is not UTF-8 cannot be shown.
        return clean_text(f"{place}: {text}")


def _check_name(field: str, name: str) -> None:
    check_type(field, name, str)
    if not name:
        raise ValueError(f"{field} must not be empty")
    if len(name) > _NAME_LIMIT:
        raise ValueError(f"{field} must have at most {_NAME_LIMIT} characters")
    for character in name:
        kind = unicodedata.category(character)
        if not (kind[0] in "LMN" or character in " -_."):
            raise ValueError(
                f"{field} may hold letters, digits, spaces and - _ . only,"
                f" not {character!a}"
            )
    # It may come into a path one day, and must not mean another place there.
    if name[0] in " .-" or name[-1] in " ." or ".." in name or "  " in name:
        raise ValueError(
            f"{field} must begin with a letter or digit, end with no dot, and hold no"
            f" two dots or spaces in a row, not be {shown(name)}"
        )


def _check_words(field: str, text: str) -> None:
    check_text(field, text)
    if not is_encodable(text):
        raise ValueError(
            f"{field} holds half a surrogate pair, which is not a character"
        )


def _check_description(field: str, text: str) -> None:
    _check_words(field, text)
    if len(text) > _TEXT_LIMIT:
        raise ValueError(f"{field} must have at most {_TEXT_LIMIT} characters")


def _check_tools(field: str, names: tuple[str, ...]) -> None:
    check_all(field, names, str)
    for name in names:
        if not _TOOL.fullmatch(name) or not name.isprintable() or "(" in name:
            rather = f": {_rather(name)}" if "(" in name else ""
            raise ValueError(
                f"{field} may hold only names of tools, not {shown(name)}{rather}"
            )


def _rather(name: str) -> str:
    """Return what to write for the name of a tool with an argument."""
    if newer(name.partition("(")[0]) == "Agent":
        return (
            "permission rules say which types may be launched: name Agent, and deny "
            "Agent(TYPE) there for each that may not"
        )
    return "name the tool, and restrict its calls by a permission rule"


def _check_model(field: str, model: str) -> None:
    check_type(field, model, str)
    if not _MODEL.fullmatch(model) or not model.isprintable():
        raise ValueError(
            f"{field} must be one word, a model or provider/model, not {shown(model)}"
        )


def _check_choice(field: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        listed = ", ".join(choices)
        raise ValueError(f"{field} must be one of {listed}, not {shown(value)}")


def shown(value: object) -> str:
    """Return a value as errors show it."""
    text = value if isinstance(value, str) else repr(value)
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}..."


def _by(check: Callable[..., None], *more: object, optional: bool = False) -> Any:
    # Not `by`, which names the class: whoever reads an error has written a file.
    def validator(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is not None or not optional:
            check(attribute.name, value, *more)

    return validator


@frozen(kw_only=True)
class AgentDefinition:
    """A kind of agent: what it is for, and what it may do.

    Raises:
        TypeError, ValueError: for a bad field. The error names it and its value.
    """

    name: str = attrs.field(validator=_by(_check_name))
    """Its name. It has letters and digits of any script, spaces, ``-``, ``_`` and
    ``.``."""
    description: str = attrs.field(validator=_by(_check_description))
    """When to use it, for the model that may use it."""
    prompt: str = attrs.field(validator=_by(_check_words), repr=False)
    """Its system prompt."""
    tools: tuple[str, ...] | None = attrs.field(
        default=None, validator=_by(_check_tools, optional=True)
    )
    """The names of the tools that it may use. None means all."""
    disallowed_tools: tuple[str, ...] = attrs.field(
        default=(), validator=_by(_check_tools)
    )
    """The names of the tools that it may not use, whatever `tools` says."""
    model: str | None = attrs.field(
        default=None, validator=_by(_check_model, optional=True)
    )
    """Its model, as ``model`` or ``provider/model``. None means the model of whoever
    starts it."""
    background: bool = attrs.field(default=False, validator=of(bool))
    """Whether it always runs in the background."""
    permission_mode: str | None = attrs.field(
        default=None, validator=_by(_check_choice, MODES, optional=True)
    )
    """Its mode. None means the mode of whoever starts it."""
    restart: Restart = attrs.field(
        default="temporary", validator=_by(_check_choice, get_args(Restart))
    )
    """Whether it is run again, in the background: see `Runtime.launch`."""
    max_turns: int | None = attrs.field(
        default=None, validator=_by(check_whole, 1, optional=True)
    )
    """How many rounds of tool calls it has. None means no limit."""
    fork_context: bool = attrs.field(default=False, validator=of(bool))
    """Whether it begins with the conversation of whoever starts it. It keeps its own
    prompt and tools, and cannot fork again, nor can what it starts."""
    hooks: Hooks | None = attrs.field(default=None, validator=of(Hooks | None))
    """The hooks for its runs and its calls, besides the hooks of all agents."""
    source: Path | None = None
    """The file that it was read from."""
