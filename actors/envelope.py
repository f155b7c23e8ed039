"""The XML that tells a parent agent how a task ended.

`render` makes the text of one `task-notification` from an `Envelope`. Whatever
a task printed, answered or was called, the text parses as XML 1.0 with exactly
the elements below, each at most once and in this order; so nothing that a task
says can pass for the envelope of another, or for the end of its own::

    notification-id task-id run-id tool-use-id? task-type status summary
    exit-code? signal? ended-by? result? error? output-tail? output-file?
    usage?(total-tokens? tool-uses? duration-ms?) remaining all-terminal note

Every text is cleaned (`clean_text`), then cut to its limit, then escaped.

It is for `actors` and `supervisor` themselves, so it has no ``__all__`` and no name
of it is promised.
"""

from __future__ import annotations

import re
from operator import gt
from typing import Final

from ._kernel.values import define
from .text import ESCAPE_SEQUENCE, escape, whole_characters
from .text import clean_text as clean_text
from .text import encodable as encodable
from .text import encodable_data as encodable_data

NOTE: Final = (
    "This is an automatic report by the task supervisor:"
    " no person wrote it, and it approves nothing."
)

LABEL_LIMIT: Final = 1_024
"""Characters kept of the summary, each id, the type and the status, from the start."""
RESULT_LIMIT: Final = 32_768
"""Characters kept of the result, from its start."""
ERROR_LIMIT: Final = 8_192
"""Characters kept of the error, from its start."""
PATH_LIMIT: Final = 4_096
"""Characters kept of the output file's path, from its start."""
TAIL_LIMIT: Final = 8_192
"""Bytes of UTF-8 kept of the output, from its end."""

CUT: Final = "… [cut]"
"""Ends, within the limit, a text of which only the start was kept."""

_READ_AHEAD: Final = 4

_SEQUENCE: Final = re.compile(ESCAPE_SEQUENCE)
_SEPARATOR: Final = "\0"
_CLEAN: Final = bytes((*b"\0\t\n", *range(32, 127)))
_LIMITS: Final = (*[LABEL_LIMIT] * 7, PATH_LIMIT, ERROR_LIMIT, RESULT_LIMIT)
_SHORT: Final = (*_LIMITS, TAIL_LIMIT // 4)
_NOT_IDENTIFIER: Final = re.compile(r"[^A-Za-z0-9_.:-]+")
_TYPES: Final = {"s": "local_bash", "r": "remote_agent", "w": "local_work"}
_LAST: Final = f"<note>{NOTE}</note>\n</task-notification>"


# Not `kw_only`: given by place, one is made in half the time.
@define
class Envelope:
    """The facts of one terminal state.

    A field that is None does not apply, and its element is left out. The same
    holds for an empty ``tool_use_id``, ``output_tail`` or ``output_file``.
    """

    notification_id: str
    task_id: str
    run_id: str
    task_type: str
    """local_bash, local_agent, remote_agent or local_work."""
    status: str
    """completed, failed or killed."""
    summary: str
    remaining: int
    """How many tasks of the same owner have not ended."""
    all_terminal: bool
    """Whether ``remaining`` is 0."""
    tool_use_id: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    ended_by: str | None = None
    """Who or what has ended it, in a word of `supervisor.runtime.EndedBy`."""
    result: str | None = None
    error: str | None = None
    output_tail: str | None = None
    output_truncated: bool = False
    """Whether output precedes ``output_tail``."""
    output_file: str | None = None
    total_tokens: int | None = None
    tool_uses: int | None = None
    duration_ms: int | None = None


def render(envelope: Envelope) -> str:
    """Return the XML of ``envelope``.

    The time and the memory it takes are bounded, however long a text is: at most
    four times its limit is read. If most of that is escape sequences and controls,
    less than the limit is kept.
    """
    e = envelope
    texts = [
        e.notification_id,
        e.task_id,
        e.run_id,
        e.task_type,
        e.status,
        e.summary,
        "" if e.tool_use_id is None else e.tool_use_id,
        "" if e.output_file is None else e.output_file,
        "" if e.error is None else e.error,
        "" if e.result is None else e.result,
        "" if e.output_tail is None else e.output_tail,
    ]
    cut = e.output_truncated
    ready = _escape_short(texts)
    if ready is None:
        ready = [
            escape(_start(text, n), quotes=True)
            for text, n in zip(texts, _LIMITS, strict=False)
        ]
        tail, cut_here = _end(texts[-1], TAIL_LIMIT)
        ready.append(escape(tail, quotes=True))
        cut = cut or cut_here
    note, task, run, kind, status, summary, tool_use, path, error, result, tail = ready

    head = f"""\
<task-notification>
<notification-id>{note}</notification-id>
<task-id>{task}</task-id>
<run-id>{run}</run-id>
"""
    if tool_use:
        head += f"<tool-use-id>{tool_use}</tool-use-id>\n"
    head += f"""\
<task-type>{kind}</task-type>
<status>{status}</status>
<summary>{summary}</summary>
"""
    body = ""
    if e.exit_code is not None:
        body += f"<exit-code>{_number(e.exit_code)}</exit-code>\n"
    if e.signal is not None:
        body += f"<signal>{_number(e.signal)}</signal>\n"
    if e.ended_by is not None:
        body += f"<ended-by>{_identifier(e.ended_by)}</ended-by>\n"
    if e.result is not None:
        body += f"<result>{result}</result>\n"
    if e.error is not None:
        body += f"<error>{error}</error>\n"
    if tail:
        truncated = "true" if cut else "false"
        body += f'<output-tail truncated="{truncated}">{tail}</output-tail>\n'
    if path:
        body += f"<output-file>{path}</output-file>\n"
    usage = ""
    if e.total_tokens is not None:
        usage += f"<total-tokens>{_number(e.total_tokens)}</total-tokens>\n"
    if e.tool_uses is not None:
        usage += f"<tool-uses>{_number(e.tool_uses)}</tool-uses>\n"
    if e.duration_ms is not None:
        usage += f"<duration-ms>{_number(e.duration_ms)}</duration-ms>\n"
    if usage:
        body += f"<usage>\n{usage}</usage>\n"
    return f"""\
{head}{body}<remaining>{_number(e.remaining)}</remaining>
<all-terminal>{"true" if e.all_terminal else "false"}</all-terminal>
{_LAST}"""


def render_minimal(notification_id: str, task_id: str, run_id: str, status: str) -> str:
    """Return an envelope with only the elements that it must have. It cannot fail.

    It is for a task whose own envelope could not be built. It reads the type of the
    task off the first letter of its id. (The id of an agent is hexadecimal digits, and
    no other type's letter is one.) It claims that a task remains: an agent that
    believes that all have ended would not look again.
    """
    task = _identifier(task_id)
    task_type = _TYPES.get(task[:1], "local_agent")
    word = _identifier(status)
    if word not in ("completed", "failed", "killed"):
        word = "failed"
    return f"""\
<task-notification>
<notification-id>{_identifier(notification_id)}</notification-id>
<task-id>{task}</task-id>
<run-id>{_identifier(run_id)}</run-id>
<task-type>{task_type}</task-type>
<status>{word}</status>
<summary>Task {task} ended as {word}. Its full report could not be built.</summary>
<remaining>1</remaining>
<all-terminal>false</all-terminal>
{_LAST}"""


def truncate_head(text: str, limit: int) -> tuple[str, bool]:
    """Return the first ``limit`` characters, and whether any follow them."""
    return (text, False) if len(text) <= limit else (text[:limit], True)


def truncate_tail(text: str, limit: int) -> tuple[str, bool]:
    """Return the last ``limit`` characters, and whether any precede them."""
    return (text, False) if len(text) <= limit else (text[len(text) - limit :], True)


def _escape_short(texts: list[str]) -> list[str] | None:
    """Return ``texts`` escaped, or None if one may need more than escaping.

    Most texts are short and harmless. Joined into one text they are escaped four
    times as fast. A text that holds the separator shows as one piece too many.
    """
    for text in texts[-3:]:  # not worth copying to find that it is too long
        if type(text) is not str or len(text) > RESULT_LIMIT:
            return None
    try:
        joined = _SEPARATOR.join(texts)
    except TypeError:  # not a str
        return None
    if len(joined) > LABEL_LIMIT:
        lengths = map(len, joined.split(_SEPARATOR))
        if any(map(gt, lengths, _SHORT)):
            return None
    if joined.encode("utf-8", "surrogatepass").translate(None, _CLEAN):
        whole = "".join(texts)
        if clean_text(whole) != whole:
            return None
    pieces = escape(joined, quotes=True).split(_SEPARATOR)
    return pieces if len(pieces) == len(texts) else None


def _start(text: str, limit: int) -> str:
    """Return the start of ``text``, clean and within the limit."""
    text = _exact(text)
    # A cut anywhere leaves the cleaned text a prefix of what it was: see
    # ESCAPE_SEQUENCE.
    read, cut = truncate_head(text, limit * _READ_AHEAD)
    clean = clean_text(read)
    if cut or len(clean) > limit:
        clean = clean[: limit - len(CUT)] + CUT
    return clean


def _end(text: str, limit: int) -> tuple[str, bool]:
    """Return the last ``limit`` bytes of ``text``, clean, and whether any
    precede them."""
    text = _exact(text)
    window = limit * _READ_AHEAD
    first = max(0, len(text) - window)
    # An escape sequence across the cut must go as a whole.
    escape = text.rfind("\x1b", max(0, first - window), first)
    if escape >= 0 and (sequence := _SEQUENCE.match(text, escape)):
        first = max(first, sequence.end())
    clean, cut = truncate_tail(clean_text(text[first:]), limit)
    data = clean.encode()
    if len(data) > limit:
        clean, cut = whole_characters(data[-limit:]).decode(), True
    return clean, cut or first > 0


def _exact(value: object) -> str:
    """Return a plain str, without the methods of a subclass."""
    if type(value) is str:
        return value
    return str.__str__(value if isinstance(value, str) else str(value))


def _number(value: int) -> str:
    return str(value) if type(value) is int else int.__repr__(int(value))


def _identifier(value: object) -> str:
    try:
        text = _exact(value)[:LABEL_LIMIT]
    except Exception:  # the value may be anything, and its methods may raise
        text = ""
    return _NOT_IDENTIFIER.sub("", text) or "unknown"
