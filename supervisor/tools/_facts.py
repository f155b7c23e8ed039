"""What a task was given, has used and does: as data, and in words for a model."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

import orjson

from actors.agent import Activity
from actors.text import clean_text, duration_words, one_line

from .._tasks.snapshot import TaskSnapshot, Usage

_GIVEN_SHOWN: Final = 500
_INPUT_SHOWN: Final = 200


def given(task: TaskSnapshot) -> dict[str, Any]:
    """Return as data what the task was started with."""
    data: dict[str, Any] = {}
    if task.command is not None:
        data["command"] = clean_text(task.command)
    if is_agent(task):
        data |= {
            "prompt": clean_text(task.prompt or ""),
            "agentType": one_line(task.agent_type or ""),
            "model": None if task.model is None else one_line(task.model),
        }
    return data


def is_agent(task: TaskSnapshot) -> bool:
    """Whether it is an `actors.agent.Agent`; others of its type have no depth."""
    return task.depth is not None


def used(task: TaskSnapshot) -> dict[str, Any]:
    """Return as data what the task has used, when it was last active, and who has
    ended it, or why it waits."""
    usage = task.usage
    data: dict[str, Any] = {
        "totalDurationMs": usage.duration_ms,
        "startedAt": _time(task.started_at),
        "lastActivityAt": _time(task.last_activity_at),
    }
    if task.ended_by is not None:
        data["endedBy"] = task.ended_by
    if task.pause is not None:
        data["pause"] = {
            "reason": one_line(task.pause.reason, _GIVEN_SHOWN),
            "resumeAt": _time(task.pause.resume_at),
            "attempt": task.pause.attempt,
        }
    if is_agent(task):
        data |= {
            "totalTokens": usage.total_tokens or 0,
            "totalToolUseCount": usage.tool_uses or 0,
            "usage": tokens(usage),
        }
    return data


def tokens(usage: Usage) -> dict[str, int] | None:
    """Return the tokens as the models' own interfaces count them: those that came from
    a cache, or went into it, are apart. Return None if nothing is known."""
    read, written = usage.input_tokens, usage.output_tokens
    if read is None or written is None:
        return None
    cached, kept = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
    return {
        "input_tokens": max(0, read - cached - kept),
        "output_tokens": written,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": kept,
    }


def activities(task: TaskSnapshot) -> dict[str, Any]:
    """Return as data the last things that an agent did, and the very last."""
    recent = [_activity(it) for it in task.activities]
    return {
        "lastActivity": recent[-1] if recent else None,
        "recentActivities": recent,
    }


def _activity(it: Activity) -> dict[str, Any]:
    data: dict[str, Any] = {"text": one_line(it.text), "at": _time(it.at)}
    if it.tool is not None:
        data |= {
            "toolName": one_line(it.tool),
            "input": dict(it.input or {}),
            "status": it.outcome,
        }
    return data


def _time(when: datetime | None) -> str | None:
    return None if when is None else when.isoformat(timespec="milliseconds")


# ---- In words ----


def facts(task: TaskSnapshot) -> list[str]:
    """Return the same in lines ``name: value``; nothing in them is longer than a
    line."""
    lines: list[str] = []
    if task.command is not None:
        lines.append(f"command: {one_line(task.command, _GIVEN_SHOWN)}")
    usage = task.usage
    if is_agent(task):
        model = "" if task.model is None else f", model {one_line(task.model)}"
        lines.append(f"agent: {one_line(task.agent_type or '')}{model}")
        lines.append(f"prompt: {one_line(task.prompt or '', _GIVEN_SHOWN)}")
    if task.ended_by is not None:
        lines.append(f"stopped by: {task.ended_by}")
    if usage.duration_ms is not None:
        lines.append(f"duration: {duration_words(usage.duration_ms)}")
    if is_agent(task):
        lines.append(f"tokens: {usage.total_tokens or 0}{_apart(usage)}")
        lines.append(f"tool uses: {usage.tool_uses or 0}")
    if (ago := since(task)) is not None and not task.status.is_terminal:
        lines.append(f"last activity: {ago} ago")
    return lines


def _apart(usage: Usage) -> str:
    if usage.input_tokens is None or usage.output_tokens is None:
        return ""
    words = f" ({usage.input_tokens} read, {usage.output_tokens} written"
    if usage.cache_read_tokens:
        words += f", {usage.cache_read_tokens} of those read from a cache"
    return words + ")"


def since(task: TaskSnapshot) -> str | None:
    """Return in words how long before the moment of the snapshot, or before its end,
    the task was last active."""
    last, begun, lasted = task.last_activity_at, task.started_at, task.usage.duration_ms
    if last is None or begun is None or lasted is None:
        return None
    now = begun + timedelta(milliseconds=lasted)
    return duration_words(max(0, round((now - last).total_seconds() * 1000)))


def activity_words(it: Activity) -> str:
    """Return an activity in one line."""
    if it.tool is None:
        return one_line(it.text)
    given = one_line(orjson.dumps(dict(it.input or {})).decode(), _INPUT_SHOWN)
    words = f"{one_line(it.tool)} {given}"
    if it.outcome == "completed":
        return f"{words} [Tool completed]"
    if it.outcome == "failed":
        return f"{words} [Tool failed{f': {one_line(it.error)}' if it.error else ''}]"
    return words


def row(task: TaskSnapshot) -> str:
    """Return what a list says of a task behind its description; it may be empty."""
    words: list[str] = []
    usage = task.usage
    if usage.duration_ms is not None:
        words.append(duration_words(usage.duration_ms))
    if is_agent(task):
        words.append(one_line(task.agent_type or ""))
        words.append(f"tokens: {usage.total_tokens or 0}")
        words.append(f"tool uses: {usage.tool_uses or 0}")
        if task.activities and not task.status.is_terminal:
            words.append(f"last: {one_line(task.activities[-1].text, 60)}")
    elif task.command is not None and task.command.strip() != task.description.strip():
        words.append(one_line(task.command, 100))
    if (ago := since(task)) is not None and not task.status.is_terminal:
        words.append(f"active {ago} ago")
    return "".join(f" | {word}" for word in words)
