"""What a person, or a program, sees of the tasks while they run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import trio
from rich.cells import cell_len

from actors.text import clean_text, one_line

from ..lowlevel import SCHEMA_VERSION
from ..runtime import (
    Notification,
    Runtime,
    TaskBackgrounded,
    TaskContinued,
    TaskEnded,
    TaskPaused,
    TaskRestarted,
    TaskRestartScheduled,
    TaskResumed,
    TaskSnapshot,
    TaskStarted,
    TaskStopRequested,
    UnknownTask,
    Warned,
    to_json,
)
from ..tree import Event, Gap, Straggler
from ._stdout import Stdout

_DETAIL = 100
"""Characters of a detail, on a line."""


class View:
    """One way of showing what happens."""

    runtime: Runtime | None = None
    """To be set by whoever opens it."""

    async def show(self, events: Sequence[Event]) -> None:
        """Show what has happened, and how things are now."""
        raise NotImplementedError

    async def show_envelope(self, note: Notification) -> None:
        """Show an envelope, as the parent receives it."""
        raise NotImplementedError

    async def tick(  # noqa: ASYNC114
        self, ended: trio.Event, task_status: trio.TaskStatus[None]
    ) -> None:
        """Show that time passes, until ``ended``. It has started when anything else
        may be shown."""
        task_status.started()
        await ended.wait()

    async def close(self) -> None:
        """Leave the terminal as it was."""
        await trio.lowlevel.checkpoint()


class JsonView(View):
    """One JSON object on a line for each event, with what only this program knows
    of it: the time of day and, of tasks, the file with their output."""

    def __init__(self, stdout: Stdout) -> None:
        self._stdout = stdout
        self._at = 0.0

    async def show(self, events: Sequence[Event]) -> None:
        if events:
            await self._stdout.write_bytes(b"".join(map(self._line, events)))

    def _line(self, event: Event) -> bytes:
        more = orjson.dumps(self.more(event))
        return to_json(event)[:-1] + b"," + more[1:] + b"\n"

    def more(self, event: Event) -> dict[str, Any]:
        """Return what is told beside the fields of ``event``."""
        # From trio's clock to that on the wall. An event is never told as before
        # the last one, whatever becomes of either.
        ago = trio.current_time() - event.time
        self._at = max(self._at, time.time() - ago)
        fields: dict[str, Any] = {
            "at": datetime.fromtimestamp(self._at, UTC).isoformat("T", "microseconds")
        }
        if isinstance(event, TaskStarted | TaskEnded):
            fields["output_file"] = self._output_file(event.task_id)
        return fields

    def _output_file(self, task_id: str) -> str | None:
        assert self.runtime is not None
        try:
            file = self.runtime.get(task_id).output_file
        except UnknownTask:  # It has ended so long ago that its file is gone.
            return None
        return None if file is None else os.fsencode(file).decode("utf-8", "replace")

    async def show_envelope(self, note: Notification) -> None:
        fields = {
            "kind": "Envelope",
            "version": SCHEMA_VERSION,
            "at": datetime.now(UTC).isoformat("T", "microseconds"),
            "notification_id": note.id,
            "task_id": note.task_id,
            "xml": note.xml,
        }
        await self._stdout.write_bytes(orjson.dumps(fields) + b"\n")


class PlainView(View):
    """One line for each change of a task."""

    def __init__(self, stdout: Stdout) -> None:
        self._stdout = stdout
        self._began = trio.current_time()
        self._descriptions: dict[str, str] = {}

    async def show(self, events: Sequence[Event]) -> None:
        lines = [self.line(event) for event in events]
        if text := "".join(line for line in lines if line is not None):
            await self._stdout.write(text)

    async def show_envelope(self, note: Notification) -> None:
        await self._stdout.write(f"{note.xml}\n")

    def line(self, event: Event) -> str | None:
        """Return the line for ``event``, or None if it has none."""
        task_id: str | None
        match event:
            case TaskStarted(task_id=task_id, description=description):
                self._descriptions[task_id] = description
                what, detail = "started", ""
            case TaskRestarted(task_id=task_id):
                what, detail = "restarted", ""
            case TaskResumed(task_id=task_id):
                what, detail = "resumed", ""
            case TaskPaused(task_id=task_id, reason=reason, resume_at=until):
                what = "paused"
                detail = reason if until is None else f"until {until}: {reason}"
            case TaskContinued(task_id=task_id):
                what, detail = "continued", ""
            case TaskBackgrounded(task_id=task_id):
                what, detail = "moved", "to the background"
            case TaskRestartScheduled(task_id=task_id, delay=delay, error=error):
                what, detail = "will restart", f"in {delay:.3g} s"
                if error is not None:
                    detail += f": {error}"
            case TaskStopRequested(task_id=task_id, reason=reason):
                what, detail = "stopping", reason or ""
            case TaskEnded(task_id=task_id, status=what, error=error):
                detail = error or ""
                if task_id not in self._descriptions and what == "killed":
                    detail = "before it began"
            case Warned(task_id=task_id, text=detail):
                what = "warning"
            case Straggler(child=task_id, waited=waited):
                what, detail = (
                    "warning",
                    f"has not ended {waited:.0f} s after it was stopped",
                )
            case Gap(missed=missed):
                return f"... {missed} events are not shown ...\n"
            case _:
                return None
        name = one_line(self._descriptions.get(task_id or "", ""), None)
        more = f"  ({one_line(detail, _DETAIL)})" if detail else ""
        return self.lay_out(event.time, what, task_id or "", name + more)

    def lay_out(self, time: float, what: str, task_id: str, text: str) -> str:
        """Return the line that says that this has happened at ``time``."""
        elapsed = max(0.0, time - self._began)
        line = f"{elapsed:7.1f} s  {what:<12}  {task_id:<9}  {text}"
        return f"{line.rstrip()}\n"


def located(what: str, directory: Path, width: int | None = None) -> str:
    """Return the line that says where something is; two, rather than one that a
    terminal of ``width`` would break in the middle of the path."""
    path = clean_text(str(directory))
    fits = width is None or cell_len(f"{what}: {path}") <= width
    return f"{what}:{' ' if fits else chr(10)}{path}\n"


def state_of(task: TaskSnapshot) -> str:
    """Return the status of a task, finer than the status is, in a word."""
    if task.stopping:
        return "stopping"
    if task.restarting:
        return "restarting"
    return task.status.value


def how_it_exited(task: TaskSnapshot) -> str:
    """Return the exit code, or the signal, or a dash."""
    if task.exit_code is not None:
        return str(task.exit_code)
    if task.signal is None:
        return "-"
    try:
        return signal.Signals(task.signal).name
    except ValueError:  # a real-time signal
        return f"signal {task.signal}"


def seconds(task: TaskSnapshot) -> str:
    """Return how long a task has run, or a dash."""
    if task.usage.duration_ms is None:
        return "-"
    return f"{task.usage.duration_ms / 1000:.1f} s"
