"""Tables of the tasks: one that is redrawn in place, and the one at the end."""

from __future__ import annotations

import io
import re
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO, TypeAlias

import trio
from rich.cells import cell_len
from rich.console import Console, Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from actors import TaskStatus
from actors.text import clean_text, one_line

from ..runtime import Notification, TaskHandle, TaskRestarted, TaskSnapshot, Warned
from ..tree import Event
from ._stdout import Stdout
from ._view import View, how_it_exited, located, seconds, state_of

Row: TypeAlias = Mapping[str, Text]

_FRAME = 0.1
"""The least seconds between two frames of the live view."""
_TICK = 1.0
"""The seconds after which a running time is drawn anew though nothing happened."""
_LAST_LINES = 10
"""Lines of output shown of each command that failed."""
_COMMAND = 10
"""The least characters for a command line; else other columns go."""
_BETWEEN = 2
"""Characters between two columns."""
_FRAME_COLUMNS = {"status": 10, "time": 8, "output": 8, "cpu": 8, "memory": 8}
"""Those after the command line, and the least width of each, so that nothing
jumps. Where there is no room the last ones go; the status stays."""
_END_COLUMNS = {"status": 6, "exit code": 9, "time": 4, "output file": 11}
"""Likewise, of the table at the end."""
_LEFT = ("status", "output file")
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
    "paused": "blue",
    "stopping": "yellow",
    "restarting": "magenta",
    "pending": "dim",
}


class LiveView(View):
    """A table that is redrawn in place."""

    def __init__(self, stdout: Stdout, tasks: Sequence[TaskHandle]) -> None:
        self._stdout = stdout
        self._tasks = tasks
        self._console = Console(
            file=_nothing(stdout.encoding), force_terminal=True, highlight=False
        )
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

    async def tick(  # noqa: ASYNC114
        self, ended: trio.Event, task_status: trio.TaskStatus[None]
    ) -> None:
        async with trio.open_nursery() as nursery:
            if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
                await nursery.start(self._give_way)
            task_status.started()
            while not ended.is_set():
                with trio.move_on_after(_TICK):
                    await ended.wait()
                if not ended.is_set():
                    await self.show([])
            nursery.cancel_scope.cancel()

    async def _give_way(  # noqa: ASYNC114
        self, task_status: trio.TaskStatus[None]
    ) -> None:
        """Leave the terminal to the shell while Ctrl+Z has stopped the program."""
        with trio.open_signal_receiver(signal.SIGTSTP) as received:
            task_status.started()
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
        with self._console.capture() as drawn:
            self._console.print(text)
        self._above += drawn.get()

    def _draw(self) -> str:
        """Return what replaces the frame that is shown by one of how things are."""
        with self._console.capture() as drawn:
            self._console.print(self._frame())
        lines = [_TRAILING.sub(r"\1", line) for line in drawn.get().splitlines()]
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
        columns = _fitting(rows, _FRAME_COLUMNS, self._console.width)
        left = self._console.width - sum(columns.values()) - _BETWEEN * len(columns)
        # It never shrinks, so that nothing jumps.
        self._longest = _width(rows, "command", self._longest)
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column(
            "command",
            no_wrap=True,
            overflow="ellipsis",
            width=max(1, min(self._longest, left)),
        )
        _fill(table, rows, columns)
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

    def _row(self, task: TaskSnapshot) -> Row:
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


def _width(rows: Sequence[Row], name: str, least: int) -> int:
    return max([least, *(cell_len(row[name].plain) for row in rows)])


def _fitting(
    rows: Sequence[Row], columns: Mapping[str, int], room: int
) -> dict[str, int]:
    """Return those columns for which there is room beside a command line, with their
    widths: the last ones go, the first stays."""
    widths = {name: _width(rows, name, least) for name, least in columns.items()}
    while len(widths) > 1:
        if sum(widths.values()) + _BETWEEN * len(widths) + _COMMAND <= room:
            break
        widths.popitem()
    return widths


def _fill(table: Table, rows: Sequence[Row], columns: Mapping[str, int]) -> None:
    for name, width in columns.items():
        justify: JustifyMethod = "left" if name in _LEFT else "right"
        table.add_column(name, no_wrap=True, min_width=width, justify=justify)
    for row in rows:
        table.add_row(row["command"], *(row[name] for name in columns))


def _nothing(encoding: str) -> TextIO:
    """Return a file for a console that is only asked what it has drawn, and draws in
    ASCII where ``encoding``, which is the terminal's, has no more."""
    return io.TextIOWrapper(io.BytesIO(), encoding)


def summary(
    tasks: Sequence[TaskSnapshot], directory: Path, stdout: Stdout, *, live: bool
) -> str:
    """Return the table of how everything ended, and where its output is."""
    console = Console(
        file=_nothing(stdout.encoding),
        force_terminal=live,
        # A file has room for whole lines.
        width=None if live else 10_000,
        highlight=False,
    )
    rows = [_end_row(task) for task in tasks]
    table = Table(box=None, pad_edge=False)
    table.add_column("command", overflow="fold", ratio=1 if live else None)
    columns = _fitting(rows, _END_COLUMNS, console.width)
    _fill(table, rows, columns)
    where = located("output files", directory, console.width)
    with console.capture() as drawn:
        console.print()
        console.print(table)
        for task in tasks:
            if task.status is TaskStatus.FAILED:
                console.print()
                console.print(_failure(task))
        console.print()
        console.print(where, markup=False, soft_wrap=True, end="")
        if "output file" not in columns:
            for row in rows:
                line = Text.assemble(row["output file"], "  ", row["command"])
                console.print(line, no_wrap=True, overflow="ellipsis")
    if live:
        return drawn.get()
    return "".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines())


def _end_row(task: TaskSnapshot) -> Row:
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
