"""What is kept of an agent beside its conversation.

Anybody may have written to the directory, so what is read is checked field by field:
`decode_meta` returns something that this program could have written, or nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, cast

import attrs

from .._kernel.checks import by, check_all, of
from .._kernel.status import TaskStatus
from ._records import dump

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
_SHOWN: Final = 300
# Of whatever else is a number.
_MOST: Final = 10**18
_STATUSES: Final = frozenset(status.value for status in TaskStatus)


def _to_tuple(value: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    # JSON has no tuples. Whatever else it is, its validator sees.
    return tuple(value) if isinstance(value, list) else value


def _to_messages(value: Any) -> Any:
    pairs = cast("tuple[object, ...]", _to_tuple(value))
    if not isinstance(pairs, tuple):
        return value
    return tuple(
        tuple(cast("list[object]", pair)) if isinstance(pair, list) else pair
        for pair in pairs
    )


def _check_messages(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, tuple):
        messages = cast("tuple[object, ...]", value)
        if all(map(_is_message, messages)):
            return
    raise TypeError(f"'{field.name}' must be pairs of a text and a sender or None")


def _is_message(value: object) -> bool:
    if not isinstance(value, tuple):
        return False
    parts = cast("tuple[object, ...]", value)
    if len(parts) != 2:
        return False
    text, sender = parts
    return isinstance(text, str) and (sender is None or isinstance(sender, str))


_names = by(check_all, str)
_seconds = of(int | float | None)


@attrs.frozen(kw_only=True)
class AgentMeta:
    """What it takes, besides the transcript, to go on with an agent.

    Raises:
        TypeError: if a value is not of the type that its field has.
    """

    agent_id: str = attrs.field(validator=of(str))
    run_id: str = attrs.field(validator=of(str))
    status: str = attrs.field(validator=of(str))
    """``running`` also of an agent that waits for its place, and of one whose program
    has ended: it can be resumed."""
    type: str = attrs.field(default="general-purpose", validator=of(str))
    description: str = attrs.field(default="", validator=of(str))
    owner: str | None = attrs.field(default=None, validator=of(str | None))
    prompt: str = attrs.field(default="", validator=of(str))
    system: str | None = attrs.field(default=None, validator=of(str | None))
    tools: tuple[str, ...] | None = attrs.field(
        default=None,
        converter=attrs.converters.optional(_to_tuple),
        validator=attrs.validators.optional(_names),
    )
    """The tools that it may use; None for all."""
    disallowed_tools: tuple[str, ...] = attrs.field(
        default=(), converter=_to_tuple, validator=_names
    )
    model: str | None = attrs.field(default=None, validator=of(str | None))
    cwd: str | None = attrs.field(default=None, validator=of(str | None))
    session: str | None = attrs.field(default=None, validator=of(str | None))
    depth: int = attrs.field(default=0, validator=of(int))
    above: tuple[str, ...] = attrs.field(
        default=(), converter=_to_tuple, validator=_names
    )
    """The types of the agents above it when it was started, outermost first: what
    watches these watches it."""
    permission_mode: str | None = attrs.field(default=None, validator=of(str | None))
    forked: bool = attrs.field(default=False, validator=of(bool))
    one_shot: bool = attrs.field(default=False, validator=of(bool))
    resumes: int = attrs.field(default=0, validator=of(int))
    """How often it was resumed."""
    error: str | None = attrs.field(default=None, validator=of(str | None))
    deadline: float | None = attrs.field(default=None, validator=_seconds)
    """This and the next five are as `actors.agent.Agent` has them."""
    max_turns: int | None = attrs.field(default=None, validator=of(int | None))
    stall_warning: float | None = attrs.field(default=300.0, validator=_seconds)
    stall_limit: float | None = attrs.field(default=600.0, validator=_seconds)
    reminders: int = attrs.field(default=5, validator=of(int))
    shutdown: float = attrs.field(default=5.0, validator=of(int | float))
    tokens_left: int | None = attrs.field(default=None, validator=of(int | None))
    """What is left of its budget and of those above; None for no limit."""
    cost_left: float | None = attrs.field(default=None, validator=_seconds)
    """Likewise."""
    messages: tuple[tuple[str, str | None], ...] = attrs.field(
        default=(), converter=_to_messages, validator=_check_messages
    )
    """What was sent to it that it has not read, each with its sender, in order."""


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
        ValueError: if it is none, or says what no program of ours would.
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
                field.name: known[field.name]
                for field in attrs.fields(AgentMeta)
                if field.name in known
            }
        )
    except TypeError as error:
        # The rest of attrs' own message is its objects, and this may be long.
        raise ValueError(str(error.args[0])[:_SHOWN]) from None
    _check(meta)
    return meta


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict[str, Any]()
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"it says twice what {name[:80]!r} is")
        fields[name] = value
    return fields


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _check(meta: AgentMeta) -> None:
    """Refuse values of the right types that no program of ours would write."""
    run = _RUN(meta.run_id)
    if run is None or int(run[1]) > MOST_RESUMES:
        _refuse("run_id", meta.run_id, f"an id and a number up to {MOST_RESUMES:,}")
    if meta.status not in _STATUSES:
        _refuse("status", meta.status, f"one of {', '.join(sorted(_STATUSES))}")
    if meta.permission_mode is not None and len(meta.permission_mode) > _MODE:
        _refuse("permission_mode", meta.permission_mode, "the name of a mode")
    if meta.cwd is not None and (
        not meta.cwd.strip() or "\0" in meta.cwd or len(meta.cwd) > _PATH
    ):
        _refuse("cwd", meta.cwd, "the path of a directory")
    _check_number("depth", meta.depth, _DEPTH, whole=True)
    if len(meta.above) > _DEPTH:
        _refuse("above", meta.above[:3], f"{_DEPTH:,} types or fewer")
    for name in ("tools", "disallowed_tools"):
        names = cast("tuple[str, ...]", getattr(meta, name) or ())
        if len(names) > _TOOLS:
            _refuse(name, names[:3], f"{_TOOLS:,} names or fewer")
    _check_number("resumes", meta.resumes, MOST_RESUMES, whole=True)
    for name in ("max_turns", "reminders", "tokens_left"):
        _check_number(name, getattr(meta, name), whole=True)
    for name in ("deadline", "stall_warning", "stall_limit", "shutdown", "cost_left"):
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
