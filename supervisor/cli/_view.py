"""What a person, or a program, sees of the tasks while they run."""

from __future__ import annotations

import io
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import orjson
import trio
from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from actors import TaskStatus
from actors.text import clean_text, one_line

from ..lowlevel import SCHEMA_VERSION
from ..runtime import (
    Notification,
    Runtime,
    TaskBackgrounded,
    TaskEnded,
    TaskHandle,
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

_FRAME = 0.1
"""The least seconds between two frames of the live view."""
_TICK = 1.0
"""The seconds after which a running time is drawn anew though nothing happened."""
_LAST_LINES = 10
"""Lines of output shown of each command that failed."""
_DETAIL = 100
"""Characters of what is said besides, on a line."""
_COMMAND = 10
"""The least characters for a command line; else other columns go."""
_BETWEEN = 2
"""Characters between two columns."""
_FRAME_COLUMNS = {"status": 10, "time": 8, "output": 8, "cpu": 8, "memory": 8}
"""Those after the command line, and the least width of each, so that nothing
jumps. Where there is no room the last ones go; the status stays."""
_END_COLUMNS = ("status", "exit code", "time", "output file")
"""Likewise, of the table at the end."""
_HIDE_CURSOR = "\x1b[?25l"
_SHOW_CURSOR = "\x1b[?25h"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
# A terminal that becomes narrower would break a line for spaces, too.
_TRAILING = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$")
_STYLES = {
    "completed": "green",
    "failed": "bold red",
    "killed": "yellow",
    "running": "cyan",
    "stopping": "yellow",
    "restarting": "magenta",
    "pending": "dim",
}


class View(Protocol):
    """One way of showing what happens."""

    runtime: Runtime | None
    """To be set by whoever opens it."""

    async def show(self, events: Sequence[Event]) -> None:
        """Show what has happened, and how things are now."""
        ...

    async def show_envelope(self, note: Notification) -> None:
        """Show an envelope, as the parent receives it."""
        ...

    async def tick(self, ended: trio.Event) -> None:
        """Show that time passes, until ``ended``."""
        ...

    async def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class JsonView:
    """One JSON object on a line for each event, with what only this program knows
    of it: the time of day and, of tasks, the file with their output."""

    def __init__(self, stdout: Stdout) -> None:
        self.runtime: Runtime | None = None
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

    async def tick(self, ended: trio.Event) -> None:
        await ended.wait()

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()


class PlainView:
    """One line for each change of a task."""

    def __init__(self, stdout: Stdout) -> None:
        self.runtime: Runtime | None = None
        self._stdout = stdout
        self._began = trio.current_time()
        self._descriptions: dict[str, str] = {}

    async def show(self, events: Sequence[Event]) -> None:
        lines = [self.line(event) for event in events]
        if text := "".join(line for line in lines if line is not None):
            await self._stdout.write(text)

    async def show_envelope(self, note: Notification) -> None:
        await self._stdout.write(f"{note.xml}\n")

    async def tick(self, ended: trio.Event) -> None:
        await ended.wait()

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()

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


class LiveView:
    """A table that is redrawn in place."""

    def __init__(self, stdout: Stdout, tasks: Sequence[TaskHandle]) -> None:
        self.runtime: Runtime | None = None
        self._stdout = stdout
        self._tasks = tasks
        self._buffer = _Buffer(stdout.encoding)
        self._console = Console(file=self._buffer, force_terminal=True, highlight=False)
        self._drawn: list[int] = []
        """How wide each line of the frame is that the terminal shows."""
        self._above = _HIDE_CURSOR
        """What is to be written before the next frame, and stays."""
        self._longest = len("command")
        self._runs: Counter[str] = Counter()

    async def show(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, TaskRestarted):
                self._runs[event.task_id] += 1
            elif isinstance(event, Warned):
                self._print_above(
                    Text(
                        f"{event.task_id}: {one_line(event.text, None)}", style="yellow"
                    )
                )
        await self._stdout.write(self._draw())
        # What happens meanwhile waits, and is drawn in one frame.
        await trio.sleep(_FRAME)

    async def tick(self, ended: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
                nursery.start_soon(self._give_way)
            while not ended.is_set():
                with trio.move_on_after(_TICK):
                    await ended.wait()
                if not ended.is_set():
                    await self.show([])
            nursery.cancel_scope.cancel()

    async def _give_way(self) -> None:
        """Leave the terminal to the shell while Ctrl+Z has stopped the program."""
        with trio.open_signal_receiver(signal.SIGTSTP) as received:
            async for _ in received:
                self._drawn = []
                # Half of it written, nothing could be written any more.
                with trio.CancelScope(shield=True):
                    await self._stdout.write(f"\n{_SHOW_CURSOR}")
                ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
                signal.raise_signal(signal.SIGTSTP)
                # Here it goes on, with whatever the shell has written meanwhile.
                signal.signal(signal.SIGTSTP, ours)
                self._above += _HIDE_CURSOR
                with trio.CancelScope(shield=True):
                    await self._stdout.write(self._draw())

    async def show_envelope(self, note: Notification) -> None:
        self._print_above(Text(note.xml))
        await self._stdout.write(self._draw())

    async def close(self) -> None:
        text = self._erase() + self._above + _SHOW_CURSOR
        self._above = ""
        await self._stdout.write(text)

    def _print_above(self, text: Text) -> None:
        self._console.print(text)
        self._above += self._buffer.take()

    def _draw(self) -> str:
        """Return what replaces the frame that is shown by one of how things are."""
        self._console.print(self._frame())
        lines = [
            _TRAILING.sub(r"\1", line) for line in self._buffer.take().splitlines()
        ]
        text = self._erase() + self._above + "\n".join(lines)
        self._above = ""
        self._drawn = [cell_len(_STYLE.sub("", line)) for line in lines]
        return text

    def _erase(self) -> str:
        """Return what takes away the frame that is shown, with the cursor at its
        end. In a terminal that has become narrower each of its lines is several."""
        width, height = self._console.size
        rows = sum(max(1, -(-drawn // width)) for drawn in self._drawn)
        up = min(rows, height) - 1
        self._drawn = []
        if rows == 0:
            return ""
        return (f"\r\x1b[{up}A" if up else "\r") + "\x1b[J"

    def _frame(self) -> Group:
        tasks = [task.snapshot() for task in self._tasks]
        room = max(1, self._console.height - 5)
        shown = tasks
        if len(tasks) > room:
            # Those that run, then those that ended last; in their order.
            order = {id(task): place for place, task in enumerate(tasks)}
            first = sorted(tasks, key=_importance)[: room - 1]
            shown = sorted(first, key=lambda task: order[id(task)])
        rows = [self._row(task) for task in shown]
        widths = {
            name: max(least, *(cell_len(row[name].plain) for row in rows), 0)
            for name, least in _FRAME_COLUMNS.items()
        }
        columns = _fitting(widths, self._console.width)
        left = self._console.width - sum(widths[name] + _BETWEEN for name in columns)
        # It never shrinks, so that nothing jumps.
        self._longest = max(
            self._longest, *(cell_len(row["command"].plain) for row in rows), 0
        )
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column(
            "command",
            no_wrap=True,
            overflow="ellipsis",
            width=max(1, min(self._longest, left)),
        )
        for name in columns:
            table.add_column(
                name,
                no_wrap=True,
                min_width=widths[name],
                justify="left" if name == "status" else "right",
            )
        for row in rows:
            table.add_row(row["command"], *(row[name] for name in columns))
        lines: list[Table | Text] = [table]
        if len(shown) < len(tasks):
            lines.append(Text(f"and {len(tasks) - len(shown)} more", style="dim"))
        counts = Counter(map(state_of, tasks))
        lines.append(
            Text(", ".join(f"{n} {word}" for word, n in counts.items()), style="bold")
        )
        if counts["stopping"]:
            lines.append(Text("Ctrl+C again kills at once", style="dim"))
        return Group(*lines)

    def _row(self, task: TaskSnapshot) -> dict[str, Text]:
        word = state_of(task)
        runs = self._runs[task.id]
        usage = task.usage
        written = 0 if task.progress is None else task.progress.bytes_written
        cpu, memory = usage.cpu_seconds, usage.memory_bytes
        return {
            "command": Text(one_line(task.description, None)),
            "status": Text(
                f"{word} (run {runs + 1})" if runs else word, style=_STYLES[word]
            ),
            "time": Text(seconds(task)),
            "output": Text(_bytes(written)),
            "cpu": Text("-" if cpu is None else f"{cpu:.1f} s"),
            "memory": Text("-" if memory is None else _bytes(memory)),
        }


def _fitting(widths: Mapping[str, int], room: int) -> list[str]:
    """Return those columns for which there is room beside a command line: the
    last ones go, the first stays."""
    columns = [*widths]
    while len(columns) > 1:
        used = sum(widths[name] + _BETWEEN for name in columns)
        if used + _COMMAND <= room:
            break
        columns.pop()
    return columns


class _Buffer(io.StringIO):
    """Where rich writes to."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    # The declared attribute can be written; ours need not be.
    @property
    def encoding(self) -> str:  # type: ignore[override]
        """What the terminal understands; rich draws in ASCII where it must."""
        return self._encoding

    def take(self) -> str:
        """Return what was written since the last time."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


def summary(
    tasks: Sequence[TaskSnapshot], directory: Path, stdout: Stdout, *, live: bool
) -> str:
    """Return the table of how everything ended, and where its output is."""
    buffer = _Buffer(stdout.encoding)
    console = Console(
        file=buffer,
        force_terminal=live,
        # A file has room for whole lines.
        width=None if live else 10_000,
        highlight=False,
    )
    rows = [_end_row(task) for task in tasks]
    widths = {
        name: max(len(name), *(cell_len(row[name].plain) for row in rows), 0)
        for name in _END_COLUMNS
    }
    table = Table(box=None, pad_edge=False)
    table.add_column("command", overflow="fold", ratio=1 if live else None)
    columns = _fitting(widths, console.width)
    for name in columns:
        right = name in ("exit code", "time")
        table.add_column(name, no_wrap=True, justify="right" if right else "left")
    for row in rows:
        table.add_row(row["command"], *(row[name] for name in columns))
    console.print()
    console.print(table)
    for task in tasks:
        if task.status is TaskStatus.FAILED:
            console.print()
            console.print(_failure(task))
    console.print()
    console.print(
        located("output files", directory, console.width),
        markup=False,
        soft_wrap=True,
        end="",
    )
    if "output file" not in columns:
        for row in rows:
            line = Text.assemble(row["output file"], "  ", row["command"])
            console.print(line, no_wrap=True, overflow="ellipsis")
    text = buffer.getvalue()
    if live:
        return text
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def located(what: str, directory: Path, width: int | None = None) -> str:
    """Return the line that says where something is; two, rather than one that a
    terminal of ``width`` would break in the middle of the path."""
    path = clean_text(str(directory))
    fits = width is None or cell_len(f"{what}: {path}") <= width
    return f"{what}:{' ' if fits else chr(10)}{path}\n"


def _end_row(task: TaskSnapshot) -> dict[str, Text]:
    word = state_of(task)
    file = task.output_file
    return {
        "command": Text(one_line(task.description, None)),
        "status": Text(word, style=_STYLES[word]),
        "exit code": Text(how_it_exited(task)),
        "time": Text(seconds(task)),
        "output file": Text("-" if file is None else file.name),
    }


def _failure(task: TaskSnapshot) -> Text:
    why = "unknown error" if task.error is None else one_line(task.error.message, None)
    text = Text(f"{one_line(task.description, None)}: {why}", style="bold")
    # Cleaned once already, but raw output is not.
    lines = clean_text(task.result or "").splitlines()[-_LAST_LINES:]
    for line in lines:
        text.append(f"\n  {line}", style="not bold")
    return text


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


def _importance(task: TaskSnapshot) -> tuple[int, float]:
    if task.status is TaskStatus.PENDING:
        return 2, 0.0
    if task.ended_at is None:
        return 0, 0.0
    return 1, -task.ended_at.timestamp()


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
