"""The records of a transcript: one message of a conversation, one line of JSON.

A record has the keys ``parentUuid``, ``uuid``, ``agentId``, ``isSidechain``,
``timestamp``, ``type``, ``message``, ``cwd`` and ``session``, and ``agentName``, the
type of the agent, if that is known. Its message is in
the form that the models' own interfaces have, a role and blocks of content. What
JSON can hold comes back as it was, but for integers of more than 64 bits, which come
back as floats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast, get_args

import attrs
import orjson

from .._kernel.values import frozen
from ..agent import (
    AssistantMessage,
    CompactBoundary,
    Message,
    TodoList,
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from ..agent._conversation import opened
from ..agent._events import Origin
from ..agent._plan import read_todos

_ORIGINS: Final = frozenset(get_args(Origin))
# No program has so many messages.
_MISSING: Final = 10**12


@frozen
class Unrecorded:
    """Stands in a transcript for messages that could not be recorded."""

    missing: int


Recorded: TypeAlias = Message | Unrecorded


def dump(value: object) -> bytes:
    """Return ``value`` as one line of JSON without its newline.

    Raises:
        ValueError: if it is nothing that JSON can hold.
    """
    try:
        return orjson.dumps(value, _plain)
    except TypeError:
        pass
    # Half of a surrogate pair, which no UTF-8 can hold but an escape can; a very
    # large number; a key that is not a string.
    try:
        return json.dumps(value, default=_plain, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not possible in JSON: {error}") from None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    if isinstance(value, Sequence | frozenset | set):
        return list(cast("Sequence[object]", value))
    raise TypeError(f"a {type(value).__name__}")


def parse(line: bytes) -> Any:
    """Return what ``line`` says.

    Raises:
        ValueError: if it is not JSON.
    """
    try:
        return orjson.loads(line)
    except ValueError:
        pass
    try:
        # By itself it would take other encodings for what they are.
        return json.loads(line.decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


# ---- Writing ------------------------------------------------------------------


def encode(message: object) -> bytes | None:
    """Return the part of the record that says what ``message`` is, from its
    ``type`` on; None for what no transcript keeps, such as progress.

    Raises:
        ValueError: if a part of it is nothing that JSON can hold.
    """
    write = _WRITERS.get(type(message))
    return None if write is None else write(message)


def _write_assistant(message: AssistantMessage) -> bytes:
    content: list[dict[str, Any]] = []
    if message.text:
        content.append({"type": "text", "text": message.text})
    # Loops: before Python 3.12 a comprehension is a call of its own.
    for use in message.tool_uses:
        content.append(  # noqa: PERF401
            {"type": "tool_use", "id": use.id, "name": use.name, "input": use.input}
        )
    said = b'"type":"assistant","message":{"role":"assistant","content":%b}' % (
        dump(content)
    )
    return said if message.raw is None else said + b',"raw":' + dump(message.raw)


def _write_user(message: UserMessage) -> bytes:
    content: list[dict[str, Any]] = []
    for answer in message.tool_answers:
        content.append(  # noqa: PERF401
            {
                "type": "tool_result",
                "tool_use_id": answer.tool_use_id,
                "content": answer.text,
                "is_error": answer.is_error,
            }
        )
    if message.text:
        content.append({"type": "text", "text": message.text})
    said = dump({"role": "user", "content": content})
    sender = b"" if message.sender is None else b',"sender":' + dump(message.sender)
    origin = b',"origin":' + dump(message.origin)
    shown = b""
    if message.display is not None:
        shown = b',"displayText":' + dump(message.display)
    return b'"type":"user","message":' + said + origin + sender + shown


def _write_boundary(message: CompactBoundary) -> bytes:
    content = dump({"role": "system", "content": message.summary})
    said = b'"type":"system","subtype":"compact_boundary","message":' + content
    if message.kept:
        kept = [b"{%b}" % _WRITERS[type(each)](each) for each in message.kept]
        said += b',"kept":[%b]' % b",".join(kept)
    if message.plan is not None:
        items = [
            {"content": item.text, "status": item.status} for item in message.plan.items
        ]
        said += b',"todos":' + dump(items)
    return said


def _write_unrecorded(gap: Unrecorded) -> bytes:
    text = f"{gap.missing} messages could not be recorded here"
    said = dump({"role": "system", "content": text})
    return b'"type":"system","subtype":"gap","missing":%d,"message":%b' % (
        gap.missing,
        said,
    )


_WRITERS: Final[Mapping[type, Callable[[Any], bytes]]] = {
    AssistantMessage: _write_assistant,
    UserMessage: _write_user,
    CompactBoundary: _write_boundary,
    Unrecorded: _write_unrecorded,
}


# ---- Reading ------------------------------------------------------------------


def decode(record: Any) -> Recorded | None:
    """Return what a record says; None for what is not part of the conversation.

    Raises:
        ValueError: if it has not the form of a record.
    """
    try:
        read = _READERS.get(record["type"])
        return None if read is None else read(record)
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a record: {error!r}") from None


def _setters(message_type: type) -> list[Callable[[object, object], None]]:
    """Return what sets each field of an object without its ``__init__``, which in
    a frozen class takes twice as long: there may be 100,000 to be made."""
    fields = attrs.fields(message_type)
    return [vars(message_type)[field.name].__set__ for field in fields]


_new: Final[Callable[[Any], Any]] = object.__new__
_set_use_id, _set_use_name, _set_use_input = _setters(ToolUse)
_set_answered, _set_answer, _set_is_error = _setters(ToolAnswer)
_set_said, _set_uses, _set_raw = _setters(AssistantMessage)
_set_told, _set_answers, _set_origin, _set_sender, _set_display = _setters(UserMessage)


def read_assistant(record: Any) -> AssistantMessage:
    """Do what `decode` does for a record of this type, but let any error out."""
    content = record["message"]["content"]
    if isinstance(content, str):
        return AssistantMessage(content)
    text = ""
    uses: list[ToolUse] = []
    for block in content:
        kind = block["type"]
        if kind == "text":
            text += _text(block["text"])
        elif kind == "tool_use":
            arguments = block["input"]
            if type(arguments) is not dict:
                raise ValueError("the input of a tool call is not an object")
            use = _new(ToolUse)
            _set_use_id(use, _text(block["id"]))
            _set_use_name(use, _text(block["name"]))
            _set_use_input(use, cast("dict[str, Any]", arguments))
            uses.append(use)
    message: AssistantMessage = _new(AssistantMessage)
    _set_said(message, text)
    _set_uses(message, tuple(uses))
    _set_raw(message, record.get("raw"))
    return message


def read_user(record: Any) -> UserMessage:
    """Do what `decode` does for a record of this type, but let any error out."""
    content = record["message"]["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    text = ""
    answers: list[ToolAnswer] = []
    for block in content:
        kind = block["type"]
        if kind == "text":
            text += _text(block["text"])
        elif kind == "tool_result":
            said: Any = block.get("content", "")
            answer = _new(ToolAnswer)
            _set_answered(answer, _text(block["tool_use_id"]))
            _set_answer(answer, said if type(said) is str else _answer_text(said))
            _set_is_error(answer, _flag(block.get("is_error", False)))
            answers.append(answer)
    origin = record.get("origin", "tools" if answers else "prompt")
    if origin not in _ORIGINS:
        # Of a later version; in no case a person's own words.
        origin = "message"
    sender, display = record.get("sender"), record.get("displayText")
    message: UserMessage = _new(UserMessage)
    _set_told(message, text)
    _set_answers(message, tuple(answers))
    _set_origin(message, origin)
    _set_sender(message, None if sender is None else _text(sender))
    _set_display(message, None if display is None else _text(display))
    return message


def _answer_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_text(block["text"]) for block in content if "text" in block)


def _read_system(record: Any) -> CompactBoundary | Unrecorded | None:
    subtype = record.get("subtype")
    if subtype == "compact_boundary":
        return _read_boundary(record)
    if subtype == "gap":
        return Unrecorded(_missing(record["missing"]))
    return None


def _read_boundary(record: Any) -> CompactBoundary:
    kept: list[AssistantMessage | UserMessage] = []
    for each in record.get("kept", ()):
        if each["type"] == "assistant":
            kept.append(read_assistant(each))
        elif each["type"] == "user":
            kept.append(read_user(each))
        else:
            raise ValueError(f"expected a message, got a {each['type']!r:.80}")
    todos = record.get("todos")
    return CompactBoundary(
        _text(record["message"]["content"]),
        kept=tuple(kept),
        plan=None if todos is None else read_todos(todos),
    )


def _missing(value: Any) -> int:
    if type(value) is not int or not 0 < value <= _MISSING:
        raise ValueError(f"expected a number of messages, got {value!r:.80}")
    return value


def _flag(value: Any) -> bool:
    if value is None:
        return False
    if type(value) is not bool:
        raise ValueError(f"expected True or False, got a {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"expected a text, got a {type(value).__name__}")
    return value


_READERS: Final[Mapping[str, Callable[[Any], Recorded | None]]] = {
    "assistant": read_assistant,
    "user": read_user,
    "system": _read_system,
}


# ---- A conversation from the first line of its file to the last ----

# So it is nearly always. Each record follows the one in the line before, so nothing
# need be looked up, and each line is read once.

OWN_HEAD: Final = re.compile(
    rb'\{"parentUuid":(?:null|"([0-9a-f-]{36})"),"uuid":"([0-9a-f-]{36})",'
    rb'"agentId":"([A-Za-z0-9_-]+)","isSidechain":true,'
    rb'"timestamp":"([0-9T:.Z-]{20,27})","type":"(assistant|user|system)",'
).match
"""What we write begins so: enough to find the chain without reading the messages.
The groups are the ids of its parent and itself, its agent, its time and its type."""

LONGEST_ID: Final = 200
_LONGEST_TIME: Final = 40
# Lines between two looks at whether somebody still wants them; a power of two.
STEP: Final = 256
_CLOCK: Final = re.compile(r"[0-9T:.Z+-]+").fullmatch


class Chain(NamedTuple):
    """What a file says, from its first record, or the last compaction, on."""

    said: list[AssistantMessage | UserMessage]
    ids: list[str]
    """Those of their records. All that a compaction has kept has the id of its
    record."""
    newest: str
    """The latest time of any record."""
    skipped: int = 0
    """How many lines could not be read."""
    missing: int = 0
    """How many messages are known to be missing."""
    plan: TodoList | None = None
    """The plan at the compaction."""


def read_straight(
    lines: Sequence[bytes], agent_id: str, go_on: Callable[[], None]
) -> Chain | None:
    """Return what ``lines`` say; None if they are anything but one conversation of
    this agent, with nothing missing, nothing to be skipped and no id used twice.

    Of the lines before a compaction only the heads are read. Again and again it calls
    ``go_on``, which may raise anything but the errors of a bad line.
    """
    try:
        return _read(lines, agent_id, go_on)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _read(
    lines: Sequence[bytes], agent_id: str, go_on: Callable[[], None]
) -> Chain | None:
    said: list[AssistantMessage | UserMessage] = []
    ids: list[str] = []
    times: list[str] = []
    parent: Any = None
    boundary: Any = None
    first = len(lines)
    while first:
        first -= 1
        if first and not first & (STEP - 1):
            go_on()
        record = parse(lines[first])
        uuid = record["uuid"]
        if (
            (uuid != parent and ids)
            or record["agentId"] != agent_id
            or record["isSidechain"] is not True
        ):
            return None
        parent = record["parentUuid"]
        ids.append(uuid)
        times.append(record["timestamp"])
        kind = record["type"]
        if kind == "assistant":
            said.append(read_assistant(record))
        elif kind == "user":
            said.append(read_user(record))
        else:
            boundary = decode(record)
            if type(boundary) is not CompactBoundary:
                return None
            said += reversed([*opened(boundary)])
            break
    if not said or not _are_ids(ids) or not _are_times(times):
        return None
    newest = max(times)
    if first:
        earlier = _newest_before(lines[:first], agent_id, parent, ids)
        if earlier is None:
            return None
        newest = max(newest, earlier)
    elif parent is not None:
        return None
    plan = None
    if boundary is not None:
        ids += [ids[-1]] * len(boundary.kept)
        plan = boundary.plan
    said.reverse()
    ids.reverse()
    return Chain(said, ids, newest, plan=plan)


def _are_ids(ids: list[str]) -> bool:
    # A TypeError if one is not a text.
    "".join(ids)
    return len({*ids}) == len(ids) and max(map(len, ids)) <= LONGEST_ID


def _are_times(times: list[str]) -> bool:
    return (
        all(times)
        and max(map(len, times)) <= _LONGEST_TIME
        and _CLOCK("".join(times)) is not None
    )


def _newest_before(
    lines: Sequence[bytes], agent_id: str, last: str, later: list[str]
) -> str | None:
    """Return the latest time in ``lines``, which end with the record ``last``; None
    if they are not one straight conversation as we write it."""
    heads = [OWN_HEAD(line) for line in lines if line.endswith(b"}")]
    found = [head.groups() for head in heads if head is not None]
    if len(found) < len(lines):
        return None
    parents, ids, agents, times, _ = zip(*found, strict=True)
    if (
        parents != (None, *ids[:-1])
        or ids[-1] != last.encode()
        or {*agents} != {agent_id.encode()}
        or len({*ids}.union(map(str.encode, later))) < len(ids) + len(later)
    ):
        return None
    newest: bytes = max(times)
    return newest.decode()
