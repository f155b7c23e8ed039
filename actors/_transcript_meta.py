"""What is kept of an agent beside its conversation."""

from __future__ import annotations

from typing import Any, cast

import attrs
from attrs.validators import deep_iterable, instance_of, optional

from ._transcript_records import dump, parse


def _to_tuple(value: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    # JSON has no tuples. Whatever else it is, its validator sees.
    return tuple(value) if isinstance(value, list) else value


_names = deep_iterable(instance_of(str), instance_of(tuple))
_maybe_text = optional(instance_of(str))


@attrs.frozen(kw_only=True)
class AgentMeta:
    """What it takes, besides the transcript, to go on with an agent.

    Raises:
        TypeError: if a value is not of the type that its field has.
    """

    agent_id: str = attrs.field(validator=instance_of(str))
    run_id: str = attrs.field(validator=instance_of(str))
    status: str = attrs.field(validator=instance_of(str))
    """``running`` also of an agent whose program has ended: it can be resumed."""
    type: str = attrs.field(default="general-purpose", validator=instance_of(str))
    description: str = attrs.field(default="", validator=instance_of(str))
    owner: str | None = attrs.field(default=None, validator=_maybe_text)
    prompt: str = attrs.field(default="", validator=instance_of(str))
    system: str | None = attrs.field(default=None, validator=_maybe_text)
    tools: tuple[str, ...] | None = attrs.field(
        default=None,
        converter=attrs.converters.optional(_to_tuple),
        validator=optional(_names),
    )
    """The tools that it may use; None for all."""
    disallowed_tools: tuple[str, ...] = attrs.field(
        default=(), converter=_to_tuple, validator=_names
    )
    model: str | None = attrs.field(default=None, validator=_maybe_text)
    cwd: str | None = attrs.field(default=None, validator=_maybe_text)
    session: str | None = attrs.field(default=None, validator=_maybe_text)
    depth: int = attrs.field(default=0, validator=instance_of(int))
    permission_mode: str | None = attrs.field(default=None, validator=_maybe_text)
    forked: bool = attrs.field(default=False, validator=instance_of(bool))
    one_shot: bool = attrs.field(default=False, validator=instance_of(bool))
    resumes: int = attrs.field(default=0, validator=instance_of(int))
    """How often it was resumed."""
    error: str | None = attrs.field(default=None, validator=_maybe_text)


def encode_meta(meta: AgentMeta) -> bytes:
    """Return the contents of its file."""
    return dump(attrs.asdict(meta, recurse=False)) + b"\n"


def decode_meta(contents: bytes) -> AgentMeta:
    """Return the meta in a file. What later versions have added is passed over.

    Raises:
        ValueError: if it is none.
    """
    fields = parse(contents)
    if not isinstance(fields, dict):
        raise ValueError("not an object")
    known = cast("dict[str, Any]", fields)
    try:
        return AgentMeta(
            **{
                field.name: known[field.name]
                for field in attrs.fields(AgentMeta)
                if field.name in known
            }
        )
    except TypeError as error:
        # The rest of attrs' own message is its objects.
        raise ValueError(str(error.args[0])) from None
