"""The lines of a journal: what each says, and how it is written.

They are not frozen, though nobody changes one: to make one that is takes four times as
long, and they are on the way of each task.

A line is a JSON object. ``k`` says what it tells; the other keys are short, because
there may be four lines for each of many thousand tasks. What has its default is left
out. The first line of a file is a `Header`.

What a record says in its line is spelled out in each `said`, field by field: to go
through the fields takes three times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias, cast

import attrs
import orjson

from actors.house import define, frozen

SCHEMA = 1
"""The version of what the lines mean. A file with another one is not read."""


class NotALine(ValueError):
    """A line is torn, or says what no line can say."""


class NewerJournal(Exception):
    """A journal was written by a later version of this library, or in any case names a
    version that this one does not know."""


def _as(key: str, **options: Any) -> Any:
    return attrs.field(metadata={"key": key}, **options)


@define(kw_only=True)
class Header:
    """Since when a runtime writes."""

    kind: ClassVar = "journal"
    schema: int = _as("v", default=SCHEMA)
    at: str = _as("at")
    """The time, in UTC, as ISO 8601 has it. So it is in all lines."""
    program: str = _as("p", default="")
    """The program that writes, as `actors.env.Processes.program` tells it."""
    last_note: int = _as("n", default=0)
    """The highest number of a notification so far: what was acknowledged is left out of
    a file that is made anew, and no number is given twice."""

    def said(self) -> dict[str, object]:
        return {
            "k": "journal",
            "v": self.schema,
            "at": self.at,
            "p": self.program,
            "n": self.last_note,
        }


@define(kw_only=True)
class Started:
    """A task was entered, perhaps under the id of one that has ended before."""

    kind: ClassVar = "start"
    run: str = _as("r")
    """The id of its first run, by which all other lines name it: under the id of the
    task there may be another one later."""
    type: str = _as("y")
    at: str = _as("at")
    description: str = _as("d", default="")
    owner: str | None = _as("o", default=None)
    parent: str | None = _as("a", default=None)
    """The agent whose own task it is."""
    background: bool = _as("b", default=True)
    notify: str = _as("n", default="wake")
    tool_use: str | None = _as("u", default=None)
    command: str | None = _as("c", default=None)
    cwd: str | None = _as("w", default=None)
    output: str | None = _as("f", default=None)
    """The name of its output file in the directory."""
    key: str | None = _as("i", default=None)
    """What makes a launch the same as an earlier one."""
    what: str = _as("h", default="")
    """What it does; of a task with a key, if its command does not say it."""
    agent: str | None = _as("j", default=None)
    """Of an agent that has a file of its own: what that says of it at its start, as JSON,
    since it is written a little later; empty once the agent has ended."""

    @property
    def task(self) -> str:
        """The id of the task."""
        return self.run.rpartition("-")[0]

    def said(self) -> dict[str, object]:
        said: dict[str, object] = {
            "k": "start",
            "r": self.run,
            "y": self.type,
            "at": self.at,
        }
        if self.description != "":
            said["d"] = self.description
        if self.owner is not None:
            said["o"] = self.owner
        if self.parent is not None:
            said["a"] = self.parent
        if self.background is not True:
            said["b"] = self.background
        if self.notify != "wake":
            said["n"] = self.notify
        if self.tool_use is not None:
            said["u"] = self.tool_use
        if self.command is not None:
            said["c"] = self.command
        if self.cwd is not None:
            said["w"] = self.cwd
        if self.output is not None:
            said["f"] = self.output
        if self.key is not None:
            said["i"] = self.key
        if self.what != "":
            said["h"] = self.what
        if self.agent is not None:
            said["j"] = self.agent
        return said


@define(kw_only=True)
class Moved:
    """A task was moved to the background."""

    kind: ClassVar = "move"
    run: str = _as("r")

    def said(self) -> dict[str, object]:
        return {"k": "move", "r": self.run}


@frozen(kw_only=True)
class Paused:
    """An agent waits, and will go on by itself if it is known when. It may come again,
    with the same attempt, when more is known of it."""

    kind: ClassVar = "pause"
    run: str = _as("r")
    reason: str = _as("m", default="")
    until: str | None = _as("u", default=None)
    attempt: int = _as("a", default=0)
    """Which one it is since its model has last answered; 0 if its program has died."""
    at: str = _as("at", default="")
    """When its run has ended."""
    waited_ms: int = _as("w", default=0)
    """How much of its patience the pause takes."""
    told: bool = _as("t", default=False)
    """Whether its owner has acknowledged the note of it."""

    def said(self) -> dict[str, object]:
        said: dict[str, object] = {"k": "pause", "r": self.run}
        if self.reason != "":
            said["m"] = self.reason
        if self.until is not None:
            said["u"] = self.until
        if self.attempt != 0:
            said["a"] = self.attempt
        if self.at != "":
            said["at"] = self.at
        if self.waited_ms != 0:
            said["w"] = self.waited_ms
        if self.told is not False:
            said["t"] = self.told
        return said


@frozen(kw_only=True)
class Continued:
    """It goes on."""

    kind: ClassVar = "go on"
    run: str = _as("r")
    answered: bool = _as("a", default=False)
    """Whether its model has answered by now: what it had tried counts no more."""

    def said(self) -> dict[str, object]:
        if self.answered:
            return {"k": "go on", "r": self.run, "a": True}
        return {"k": "go on", "r": self.run}


@define(kw_only=True)
class Ended:
    """A task has ended; with the facts of its notification, if it has one."""

    kind: ClassVar = "end"
    run: str = _as("r")
    last_run: str | None = _as("t", default=None)
    """The id of its last run, if it was run again."""
    status: str = _as("s")
    at: str = _as("at")
    by: str | None = _as("by", default=None)
    """Who ended it, if somebody did."""
    note: str | None = _as("n", default=None)
    """The id of its notification; None if it has none."""
    summary: str = _as("m", default="")
    remaining: int = _as("l", default=0)
    exit_code: int | None = _as("x", default=None)
    signal: int | None = _as("g", default=None)
    error: str | None = _as("e", default=None)
    result: str | None = _as("u", default=None)
    """What the work returned; of a shell and an agent it stands in their own files."""
    output: str | None = _as("f", default=None)
    """The name of the transcript of an agent in the directory."""
    tokens: int | None = _as("q", default=None)
    tools: int | None = _as("h", default=None)
    duration_ms: int | None = _as("z", default=None)

    def said(self) -> dict[str, object]:
        said: dict[str, object] = {
            "k": "end",
            "r": self.run,
            "s": self.status,
            "at": self.at,
        }
        if self.last_run is not None:
            said["t"] = self.last_run
        if self.by is not None:
            said["by"] = self.by
        if self.note is not None:
            said["n"] = self.note
        if self.summary != "":
            said["m"] = self.summary
        if self.remaining != 0:
            said["l"] = self.remaining
        if self.exit_code is not None:
            said["x"] = self.exit_code
        if self.signal is not None:
            said["g"] = self.signal
        if self.error is not None:
            said["e"] = self.error
        if self.result is not None:
            said["u"] = self.result
        if self.output is not None:
            said["f"] = self.output
        if self.tokens is not None:
            said["q"] = self.tokens
        if self.tools is not None:
            said["h"] = self.tools
        if self.duration_ms is not None:
            said["z"] = self.duration_ms
        return said


@define(kw_only=True)
class Acked:
    """A notification was acknowledged."""

    kind: ClassVar = "ack"
    note: str = _as("n")
    how: str = _as("h", default="delivered")

    def said(self) -> dict[str, object]:
        if self.how == "delivered":
            return {"k": "ack", "n": self.note}
        return {"k": "ack", "n": self.note, "h": self.how}


Record: TypeAlias = Header | Started | Moved | Paused | Continued | Ended | Acked

KINDS: Mapping[str, type[Record]] = {
    it.kind: it for it in (Header, Started, Moved, Paused, Continued, Ended, Acked)
}


def to_line(record: Record) -> bytes:
    """Return a record as a line, with its newline. Its fields have the very types that
    they say: see `exact`."""
    said = record.said()
    try:
        return orjson.dumps(said, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # A str with half a surrogate pair, as in a command, or a number that is too
        # large.
        plain = {key: _plain(value) for key, value in said.items()}
        return orjson.dumps(plain, option=orjson.OPT_APPEND_NEWLINE)


def exact(value: object) -> Any:
    """Return a value that somebody else has made as what it stands for, and None if
    that is nothing a line can have. None of its own methods is called."""
    kind = type(value)
    if kind in _EXACT:
        return value
    if issubclass(kind, str):
        return str.__str__(cast("str", value))
    if issubclass(kind, int):
        return int.__int__(cast("int", value))
    return None


_EXACT = frozenset({str, int, bool, type(None)})


def _plain(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int) and value.bit_length() > _BITS:
        return None
    return value


_BITS = 63


def from_line(line: bytes) -> Record:
    """Return what a line says.

    Raises:
        NotALine: if it is torn, or no line of a journal.
        NewerJournal: if it is the header of a version that is not known.
    """
    try:
        loaded: object = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise NotALine(f"no JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise NotALine("no object")
    said = cast("dict[str, Any]", loaded)
    name: object = said.get("k")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise NotALine(f"no kind of line is {name!r:.80}")
    if kind is Header:
        _check_version(said)
    given: dict[str, Any] = {}
    fields = _READ[kind.kind]
    for key, value in said.items():
        # What is not known is for a later version, which can still be read.
        if key in fields:
            field, types = fields[key]
            if type(value) not in types:
                raise NotALine(f"a {kind.kind} whose {field} is {value!r:.80}")
            given[field] = value
    try:
        return kind(**given)
    except TypeError as error:
        raise NotALine(f"a {kind.kind} that lacks something: {error}") from error


def _check_version(said: Mapping[str, object]) -> None:
    if "v" not in said:
        raise NotALine("a header without a version")
    version = said["v"]
    # Whatever it is, "2" or 1.5: whoever has written it meant something by it.
    if type(version) is not int or not 1 <= version <= SCHEMA:
        text = f"its version is {version!r:.80}, and this library reads {SCHEMA}"
        raise NewerJournal(text)


# What JSON has is of these very types.
_FITS: Mapping[str, frozenset[type]] = {
    "str": frozenset({str}),
    "str | None": frozenset({str, type(None)}),
    "int": frozenset({int}),
    "int | None": frozenset({int, type(None)}),
    "bool": frozenset({bool}),
}


# Of each kind, by its key: the name of each field and its types.
_READ: Mapping[str, Mapping[str, tuple[str, frozenset[type]]]] = {
    name: {
        it.metadata["key"]: (it.name, _FITS[str(it.type)]) for it in attrs.fields(kind)
    }
    for name, kind in KINDS.items()
}
