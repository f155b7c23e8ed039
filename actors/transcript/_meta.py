"""What is kept of an agent beside its conversation.

Anybody may have written to the directory, so what is read is checked field by field:
`decode_meta` returns something that this program could have written, or nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, cast, get_type_hints

import attrs

from .._kernel.checks import check_all, check_type
from .._kernel.status import TaskStatus
from .._kernel.values import frozen
from ._records import LONGEST_ID, dump

META_LIMIT: Final = 4 * 2**20
"""Bytes of a meta; what is larger is neither written nor read. A full inbox has
room in it, whatever is in that but control characters, beside a long prompt."""
MOST_RESUMES: Final = 10**12
"""No agent is resumed more often, and no number of a run is higher."""
# For what else may become longer while messages wait: the words of an error.
_SPARE: Final = 64 * 2**10
# Of messages that were not read: an inbox full, and one that a run which has just
# begun had taken already.
_MESSAGES: Final = 2 * 1_000
_CHARACTERS: Final = 2 * 1_000_000

# No program begins so many runs, no agent is so deep below others, and no path or
# name of a mode is so long.
_RUN: Final = re.compile(r"(?:[A-Za-z0-9_-]{0,128}-)?([0-9]{1,13})").fullmatch
_TOOLS: Final = 10_000
_DEPTH: Final = 1_000
_PATH: Final = 4_096
_MODE: Final = 64
_ENDED_BY: Final = 64
_SHOWN: Final = 300
# Of whatever else is a number.
_MOST: Final = 10**18
_STATUSES: Final = frozenset(status.value for status in TaskStatus)


@frozen(kw_only=True)
class AgentMeta:
    """What it takes, besides the transcript, to go on with an agent."""

    agent_id: str
    run_id: str
    status: str
    """How it ended. Until then it is ``running``, also while the agent waits for its
    place. If its program ends first, it stays ``running``, and the agent can be
    resumed."""
    type: str = "general-purpose"
    description: str = ""
    owner: str | None = None
    prompt: str = ""
    system: str | None = None
    tools: tuple[str, ...] | None = None
    """The tools that it may use. None means all."""
    disallowed_tools: tuple[str, ...] = ()
    model: str | None = None
    cwd: str | None = None
    session: str | None = None
    depth: int = 0
    above: tuple[str, ...] = ()
    """The types of the agents above it when it was started, the outermost first. The
    hooks that watch these also watch it."""
    permission_mode: str | None = None
    forked: bool = False
    one_shot: bool = False
    resumes: int = 0
    """How often it was resumed."""
    error: str | None = None
    ended_by: str | None = None
    """Who or what has ended it, as `supervisor.runtime.EndedBy` has it. None also means
    that nobody knows."""
    deadline: float | None = None
    """This and the next five are as `actors.agent.Agent` has them."""
    max_turns: int | None = None
    stall_warning: float | None = 300.0
    stall_limit: float | None = 600.0
    reminders: int = 5
    shutdown: float = 5.0
    tokens_left: int | None = None
    """The tokens that are left of its budget and of those above. None means no
    limit."""
    cost_left: float | None = None
    """The money that is left likewise."""
    tokens_used: int = 0
    """The tokens that all its runs have used, with its own tasks."""
    cost_used: float = 0.0
    """The money that they have used likewise."""
    messages: tuple[tuple[str, str | None], ...] = ()
    """The messages that it has not read, each with its sender, in order."""
    heard: str | None = None
    """The id of the record of the last message that it had read by then, "" if it had
    read none. So those that it has read since, before its program died, are not read
    once more. None means that nobody knows."""


_NAMES: Final = {"tools": _TOOLS, "disallowed_tools": _TOOLS, "above": _DEPTH}
# What JSON has for the fields: it knows no tuples, and 5 is as good as 5.0.
_JSON_KINDS: Final[dict[str, Any]] = {
    **{
        name: int | kind if kind in (float, float | None) else kind
        for name, kind in get_type_hints(AgentMeta).items()
    },
    **dict.fromkeys((*_NAMES, "messages"), list),
}


def encode_meta(meta: AgentMeta) -> bytes:
    """Return the contents of its file.

    Raises:
        ValueError: if that would be too large to be read.
    """
    contents = dump(attrs.asdict(meta, recurse=False)) + b"\n"
    if len(contents) > META_LIMIT:
        raise ValueError(
            f"it has {len(contents):,} bytes, more than {META_LIMIT:,}, so no other "
            "program can go on with the agent"
        )
    return contents


def keeps(meta: AgentMeta) -> bool:
    """Whether its file has room for all that waits for the agent."""
    return len(dump(attrs.asdict(meta, recurse=False))) <= META_LIMIT - _SPARE


def decode_meta(contents: bytes) -> AgentMeta:
    """Return the meta in a file. What later versions have added is passed over.

    Raises:
        ValueError: if it is not one, or says what no program of ours would.
    """
    try:
        fields = json.loads(
            contents.decode("utf-8"),
            object_pairs_hook=_once_each,
            parse_constant=_no_number,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError("not an object")
    known = cast("dict[str, Any]", fields)
    try:
        meta = AgentMeta(
            **{
                name: _read(name, known[name], kind)
                for name, kind in _JSON_KINDS.items()
                if name in known
            }
        )
    except TypeError as error:
        raise ValueError(str(error)[:_SHOWN]) from None
    _check(meta)
    return meta


def _read(name: str, value: object, kind: Any) -> Any:
    """Return what JSON says of a field.

    Raises:
        TypeError: if it is not of this ``kind``.
    """
    if name == "tools" and value is None:
        return None
    if not isinstance(value, kind):
        check_type(name, value, kind)
    if not isinstance(value, list):
        return value
    values = tuple(cast("list[object]", value))
    if name == "messages":
        return tuple(map(_as_message, values))
    check_all(name, values, str)
    return values


def _as_message(pair: object) -> tuple[str, str | None]:
    match pair:
        case [str() as text, (str() | None) as sender]:
            return text, sender
        case _:
            raise TypeError("messages must be pairs of a text and a sender or None")


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict[str, Any]()
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"it says twice what {name[:80]!r} is")
        fields[name] = value
    return fields


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _check(meta: AgentMeta) -> None:
    """Refuse values of the right types that no program of ours would write."""
    run = _RUN(meta.run_id)
    if run is None or int(run[1]) > MOST_RESUMES:
        _refuse("run_id", meta.run_id, f"an id and a number up to {MOST_RESUMES:,}")
    if meta.status not in _STATUSES:
        _refuse("status", meta.status, f"one of {', '.join(sorted(_STATUSES))}")
    if meta.heard is not None and len(meta.heard) > LONGEST_ID:
        _refuse("heard", meta.heard, "the id of a record")
    if meta.permission_mode is not None and len(meta.permission_mode) > _MODE:
        _refuse("permission_mode", meta.permission_mode, "the name of a mode")
    if meta.ended_by is not None and len(meta.ended_by) > _ENDED_BY:
        # A later version may know others.
        _refuse("ended_by", meta.ended_by, "who or what has ended it")
    if meta.cwd is not None and (
        not meta.cwd.strip() or "\0" in meta.cwd or len(meta.cwd) > _PATH
    ):
        _refuse("cwd", meta.cwd, "the path of a directory")
    _check_number("depth", meta.depth, _DEPTH, whole=True)
    for name, most in _NAMES.items():
        names = cast("tuple[str, ...]", getattr(meta, name) or ())
        if len(names) > most:
            _refuse(name, names[:3], f"{most:,} names or fewer")
    _check_number("resumes", meta.resumes, MOST_RESUMES, whole=True)
    for name in ("max_turns", "reminders", "tokens_left", "tokens_used"):
        _check_number(name, getattr(meta, name), whole=True)
    for name in (
        "deadline",
        "stall_warning",
        "stall_limit",
        "shutdown",
        "cost_left",
        "cost_used",
    ):
        _check_number(name, getattr(meta, name))
    size = sum(len(text) + len(sender or "") for text, sender in meta.messages)
    if len(meta.messages) > _MESSAGES or size > _CHARACTERS:
        raise ValueError(
            f"messages are {len(meta.messages):,} of {size:,} characters, more than "
            f"{_MESSAGES:,} of {_CHARACTERS:,}"
        )
    if any(not text.strip() for text, _ in meta.messages):
        raise ValueError("messages hold one that is empty")


def _check_number(
    name: str, value: object, most: int = _MOST, *, whole: bool = False
) -> None:
    # JSON gives no other types.
    right = isinstance(value, int if whole else int | float) and type(value) is not bool
    if value is not None and not (right and 0 <= cast("float", value) <= most):
        wanted = "a whole number" if whole else "a number"
        _refuse(name, value, f"{wanted} from 0 to {most:,}")


def _refuse(name: str, value: object, wanted: str) -> None:
    shown = repr(value) if not isinstance(value, str) else repr(value[:80])
    raise ValueError(f"{name} must be {wanted}, not {shown[:120]}")
