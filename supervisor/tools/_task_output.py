"""TaskOutput: what a task has printed or answered, now or once it has ended."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any, Final

import trio

from actors import TaskStatus
from actors.house import frozen
from actors.text import clean_text, one_line

from .._life.telling import leftovers
from .._tasks.reading import output_size
from .._tasks.snapshot import TaskSnapshot
from ..lowlevel import life_of
from ..settings import Settings
from . import _facts
from ._arguments import Field, optional
from ._facts import is_agent
from ._owned import find, is_told, state
from ._tool import Call, Tool, ToolResult

if TYPE_CHECKING:
    from .._life.handles import TaskHandle
    from ..runtime import Runtime

DEFAULT_TIMEOUT: Final = 30_000
"""Milliseconds that a call waits for the end of the task."""
MAXIMUM_TIMEOUT: Final = 600_000
"""The most milliseconds that the model may set."""

_DESCRIPTION: Final = """\
Reads the output of a task that is running or has ended: a background command, an agent or a remote agent.

- With block, as by default, it first waits for the end of the task, for at most timeout milliseconds. When they pass it returns what there is; the task goes on.
- With block: false it returns at once. You are told when a task ends, so there is no need to ask again and again.
- Returns the id, type, status and description of the task, its exit code if it has one, what it was given, how long it has run and when it was last active, and then its output; of an agent, the tokens and tools that it has used, what it has done last, and its answer, or what it has said last if it has not ended, even if that is not complete yet. After a call that returns the end of a task you are not told of that end again.
- Of long output only the END is returned, at most {length} characters, after a line that names the file with all of it. To read the rest, or only what is new, pass offset: the output from that byte on is returned then, and next_offset, which is where to go on. (A last line that is not complete comes again then.)
- Takes task_id, from the answer that started the task or from TaskList. Only your own tasks can be read.
"""


def task_output(runtime: Runtime, owner: str | None, settings: Settings) -> Tool:
    """Return the tool for ``owner``."""

    async def act(call: Call) -> ToolResult:
        task = find(runtime, owner, call.arguments["task_id"])
        if call.arguments["block"]:
            with trio.move_on_after(call.arguments["timeout"] / 1000):
                await task.wait()
        # No await from here on: what is read, what is said of the task, and
        # what its notification says are of one moment.
        place: dict[str, Any]
        if call.arguments["offset"] is None:
            end = read_end(runtime, task, settings.max_output_length)
            output, place = end.text, end.cut()
        else:
            output, place = _read_on(
                task, call.arguments["offset"], settings.max_output_length
            )
        snapshot = task.snapshot()
        data = format_output(snapshot, output) | place
        if snapshot.status.is_terminal and is_told(snapshot, owner):
            runtime.consume(task.id)
        return ToolResult(_text(snapshot, data, call.arguments), data=data)

    fields = (
        Field("task_id", "The id of the task."),
        Field(
            "block", "Whether to wait for the end of the task.", "boolean", default=True
        ),
        Field(
            "timeout",
            "The most milliseconds to wait.",
            "integer",
            default=DEFAULT_TIMEOUT,
            minimum=0,
            maximum=MAXIMUM_TIMEOUT,
        ),
        optional(
            "offset",
            "The byte of the output to read from, instead of reading its end.",
            "integer",
            minimum=0,
            maximum=2**53,
        ),
    )
    description = _DESCRIPTION.format(length=settings.max_output_length)
    # What a task has printed is cleaned and not escaped, as a program's output should
    # be read as it is; it comes last, so what it says of a task is not our words.
    return Tool("TaskOutput", description, fields, act)


@frozen
class OutputEnd:
    """The end of what a task has printed or answered."""

    text: str
    """With a first line that says so when something precedes it."""
    is_cut: bool
    """Whether something does: a task can print such a line itself."""
    size: int | None = None
    """The bytes of all that it has printed, if something does; None if that is not
    known."""

    def cut(self) -> dict[str, Any]:
        """Return that something precedes it, as data: nothing if nothing does."""
        if not self.is_cut:
            return {}
        return {"truncated": True} | (
            {} if self.size is None else {"outputBytes": self.size}
        )


def whole(data: dict[str, Any]) -> str:
    """Return in words what the output in ``data`` is the end of."""
    size = data.get("outputBytes")
    return "output" if size is None else f"{size:,} bytes of output"


def read_end(runtime: Runtime, task: TaskHandle, limit: int) -> OutputEnd:
    """Return the end of what a task has printed or answered: at most ``limit``
    characters, from the beginning of a line on if that leaves out no more than half
    of them."""
    snapshot = task.snapshot()
    if _prints(snapshot) and (text := task.read_tail(limit)):
        lines = task.read_tail(limit, whole_lines=True)
        if 2 * len(lines) >= limit:
            text = lines
        is_cut = (
            len(task.read_tail(limit + 1)) > limit
            # The beginning of a rotated file is not kept.
            or task.read(0, 1).offset > 0
        )
        record = task.belongs_to(life_of(runtime))
        size = output_size(record) if is_cut and record is not None else None
        return OutputEnd(clean_text(text), is_cut, size)
    # It has no file, or one that cannot be read: then the last is in memory.
    return end_of(snapshot.result or "", limit)


def _prints(task: TaskSnapshot) -> bool:
    # The file of an agent is its transcript, and its answer is in memory.
    return task.output_file is not None and not is_agent(task)


def end_of(answer: str, limit: int) -> OutputEnd:
    """Return the end of ``answer``, likewise."""
    answer = clean_text(answer)
    if len(answer) <= limit:
        return OutputEnd(answer, is_cut=False)
    header = f"[Truncated. The last of {len(answer)} characters]\n"
    start = len(answer) - (limit - len(header))
    # The beginning of the first line that is there as a whole.
    line = answer.find("\n", start - 1) + 1
    if line and 2 * (line - start) <= limit:
        start = line
    return OutputEnd(header + answer[start:], is_cut=True)


def _read_on(task: TaskHandle, offset: int, limit: int) -> tuple[str, dict[str, Any]]:
    """Return at most ``limit`` bytes of it from the byte ``offset`` on, and where
    that is."""
    snapshot = task.snapshot()
    if _prints(snapshot):
        part = task.read(offset, limit)
        # An unfinished line is not in the file yet, and is read again next time.
        text = clean_text(part.text + part.unfinished)
        first, following, done = part.offset, part.next_offset, part.done
    else:
        answer = clean_text(snapshot.result or "").encode()
        asked = answer[offset : offset + limit]
        # A character that is cut at the end is left for the next part.
        text, used = codecs.utf_8_decode(asked, "ignore", False)
        first, following = offset, offset + used
        done = snapshot.status.is_terminal and following >= len(answer)
    return text, {"offset": first, "next_offset": following, "done": done}


def format_output(task: TaskSnapshot, output: str) -> dict[str, Any]:
    """Return a task and its output as data, in the form of its type."""
    data: dict[str, Any] = {
        "task_id": task.id,
        "task_type": task.type,
        "status": task.status.value,
        "description": one_line(task.description),
        **_facts.given(task),
        **_facts.used(task),
        "output": output,
    }
    error = None
    if task.error is not None:
        error = one_line(f"{task.error.type}: {task.error.message}", 500)
    if task.type == "local_bash":
        data |= {"exitCode": task.exit_code, "signal": task.signal}
        # What it waits for; it is unfinished, so it is not in the file.
        if task.prompt is not None and not is_agent(task):
            data["waitingFor"] = one_line(task.prompt)
    if task.type == "local_agent":
        data["result"] = output
    if task.type == "local_agent" or error is not None:
        data["error"] = error
    if is_agent(task):
        data |= {"waiting": task.waiting, "terminate": task.terminate}
        data |= _facts.activities(task)
        if not task.status.is_terminal:
            data["activities"] = _activities(task)
    return data


def _activities(task: TaskSnapshot) -> list[str]:
    """Return what an agent has done last, in the order in which it did."""
    if task.progress is None:
        return []
    lines = task.progress.activities or (task.progress.text,)
    return [one_line(line) for line in lines if line]


def _text(task: TaskSnapshot, data: dict[str, Any], asked: dict[str, Any]) -> str:
    lines = [f"{name}: {data[name]}" for name in ("task_id", "task_type")]
    if task.status.is_terminal:
        lines.append(f"status: {task.status.value}")
    else:
        lines.append(f"status: {state(task)}")
        if asked["block"]:
            # A paused one does not, and its status says when it will.
            more = "" if task.status is TaskStatus.PAUSED else ", and goes on"
            lines.append(f"It did not end within {asked['timeout']} ms{more}.")
    lines.append(f"description: {data['description']}")
    lines += _facts.facts(task)
    named = {"exit_code": "exitCode", "signal": "signal", "error": "error"}
    lines += [
        f"{name}: {data[field]}"
        for name, field in named.items()
        if data.get(field) is not None
    ]
    if leftover := leftovers(task.left_behind):
        lines.append(f"left_behind: {leftover}")
    if "truncated" in data:
        lines.append(f"truncated: what follows is the end of the {whole(data)}")
    if data.get("terminate") not in (None, "goal"):
        lines.append(f"ended by: {data['terminate']}")
    if data.get("activities"):
        latest = [*map(_facts.activity_words, task.activities)] or data["activities"]
        lines.append(f"latest activities: {'; '.join(latest)}")
    if is_agent(task) and data["output"] and task.status is not TaskStatus.COMPLETED:
        has = "had" if task.status.is_terminal else "has"
        lines.append(f"partial: what follows is what the agent {has} said so far")
    if "waitingFor" in data:
        lines.append(f"It seems to wait for an answer: {data['waitingFor']}")
    if "next_offset" in data:
        lines.append(f"offset: {data['offset']}")
        lines.append(f"next_offset: {data['next_offset']}")
    return "\n".join([*lines, "", "output:", data["output"] or "(none)"])
