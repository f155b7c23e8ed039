"""What a background task does, and where it says how that goes.

A `Work` is the description of a task, such as `actors.shell.Shell`. The host of
the task calls its `run` as the body of an actor and gives it a `Report`, which
the work fills in as it learns things: what it says there outlives a cancellation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import trio

from ._actor import Context
from ._exit import Exit
from ._progress import Progress
from ._status import Guard
from .env import Env

# Progress is told at most this often; what lies between is only kept.
PROGRESS_EVERY = 1.0


class Work(Protocol):
    """What a task does: anything with these members.

    The properties and `describe` are read once, when the task is launched; an
    error in one of them comes out of `launch`.
    """

    @property
    def task_type(self) -> str:
        """``local_bash``, ``local_agent`` or ``remote_agent``."""
        ...

    @property
    def shutdown(self) -> float:
        """The seconds it has for cleaning up once it was cancelled."""
        ...

    @property
    def writes_output(self) -> bool:
        """Whether it needs an output file."""
        ...

    def describe(self) -> str:
        """Return a few words for people, for a task that was given none."""
        ...

    async def run(self, ctx: Context[object], report: Report) -> object:
        """Do it. What it returns is the result, what it raises the failure."""
        ...


class WorkFailed(Exception):
    """Raised by a work that came to a bad end which is not an error of ours."""


class Report(Guard):
    """What a running task says about itself, on the record that holds its status."""

    __slots__ = (
        "env",
        "exit_code",
        "output_bytes",
        "own_exit",
        "output_file",
        "output_tail",
        "output_truncated",
        "pid",
        "progress",
        "progress_told_at",
        "result",
        "signal",
        "survivors",
        "task_id",
    )

    def __init__(self, task_id: str, env: Env) -> None:
        super().__init__()
        self.task_id = task_id
        self.env = env
        self.output_file: Path | None = None
        # In the file, from all runs.
        self.output_bytes = 0
        self.output_tail: str | None = None
        self.output_truncated = False
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.result: str | None = None
        self.pid: int | None = None
        self.progress: Progress | None = None
        self.progress_told_at = -PROGRESS_EVERY
        self.survivors: tuple[int, ...] = ()
        # How the work ended by itself, if that was before a stop could touch it.
        self.own_exit: Exit[object] | None = None

    def say(self, progress: Progress) -> None:
        """Replace the progress; it is told now or with a later one. A task that
        has ended makes none.

        Raises:
            TypeError: if that is no `Progress`.
        """
        if type(progress) is not Progress:
            raise TypeError(f"a Progress is wanted, not {progress!r}")
        if self.status.is_terminal:
            return
        self.progress = progress
        now = trio.current_time()
        if now - self.progress_told_at >= PROGRESS_EVERY:
            self.progress_told_at = now
            self.on_progress()

    def on_progress(self) -> None:
        """The progress is worth telling."""

    def warn(self, text: str) -> None:
        """Something is not as it should be, for instance the quota is nearly used."""

    def report_survivors(self, pids: tuple[int, ...]) -> None:
        """Processes of the task are still there although they were killed."""
        self.survivors = pids
