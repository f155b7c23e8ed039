"""Read a conversation that goes from the first line of its file to the last.

So it does nearly always. Each record follows the one in the line before, so nothing
need be looked up, and each line is read once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from ..agent._events import AssistantMessage, CompactBoundary, UserMessage
from ._records import decode, parse, read_assistant, read_user

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
_STEP: Final = 256
_CLOCK: Final = re.compile(r"[0-9T:.Z+-]+").fullmatch


@attrs.frozen
class Chain:
    """What a file says, from its first record, or the last compaction, on."""

    said: list[AssistantMessage | UserMessage]
    ids: list[str]
    """Those of their records."""
    newest: str
    """The latest time of any record."""
    skipped: int = 0
    """How many lines could not be read."""
    missing: int = 0
    """How many messages are known to be missing."""


def _go_on() -> None:
    """Nobody stops it."""


def read_straight(
    lines: Sequence[bytes], agent_id: str, go_on: Callable[[], None] = _go_on
) -> Chain | None:
    """Return what ``lines`` say; None if they are anything but one conversation of
    this agent, with nothing missing, nothing to be skipped and no id used twice.

    Of the lines before a compaction only the heads are read. Again and again it calls
    ``go_on``, which may raise what is none of the errors of a bad line.
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
    first = len(lines)
    while first:
        first -= 1
        if not first & (_STEP - 1):
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
            said.append(UserMessage(boundary.summary, origin="summary"))
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
    said.reverse()
    ids.reverse()
    return Chain(said, ids, newest)


def _are_ids(ids: list[str]) -> bool:
    # It is a TypeError where one is no text.
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
    if they are no straight conversation as we write them."""
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
