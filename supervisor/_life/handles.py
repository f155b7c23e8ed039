"""What callers hold of a task."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import trio

from actors import TaskStatus
from actors.hosting import Input
from actors.house import check_one_of

from .._tasks.endings import STOPPED_BY, StoppedBy
from .._tasks.errors import InputClosed, UnknownTask
from .._tasks.record import Task
from .._tasks.snapshot import TaskSnapshot
from .._tasks.task_events import AgentEvents
from ..tree._fair import fair
from .life import Life
from .stops import StopResult, stop

if TYPE_CHECKING:
    from .._tasks.reading import OutputPart


class TaskHandle:
    """One task. `Runtime.launch` returns it. It stays valid for good."""

    __slots__ = ("_life", "_task")

    def __init__(self, life: Life, task: Task) -> None:
        self._life = life
        self._task = task

    def __repr__(self) -> str:
        return f"<TaskHandle {self.id} {self._task.status.value}>"

    @property
    def id(self) -> str:
        """The task's id."""
        return self._task.task_id

    @property
    def status(self) -> TaskStatus:
        """Where the task is in its life."""
        return self._task.status

    def belongs_to(self, life: Life) -> Task | None:
        """Return the task's record, for its own runtime."""
        return self._task if self._life is life else None

    def snapshot(self) -> TaskSnapshot:
        """Return the task as it is now."""
        return self._task.snapshot()

    async def wait(self) -> TaskSnapshot:
        """Wait for the end of the task and return it as it is then.

        A cancellation ends only the wait. A task that calls it lends its place
        meanwhile: see `Limits`.

        Raises:
            WouldDeadlock: if the task itself waits.
        """
        await self._life.wait_ended(self._task)
        return self._task.snapshot()

    @fair
    async def stop(
        self,
        reason: str | None = None,
        *,
        by: StoppedBy | None = None,
        now: bool = False,
    ) -> StopResult:
        """See `Runtime.stop`."""
        if by is not None:
            check_one_of("by", by, STOPPED_BY)
        (result,) = await stop(self._life, [self._task], reason, by, now=now)
        return result

    def events(self) -> AgentEvents:
        """Iterate over what an agent says from now on, in order. A move to the
        background changes nothing in it.

        Raises:
            TypeError: if the task is not an agent.
        """
        task, life = self._task, self._life
        if task.given is None:
            raise TypeError(f"task {self.id} is not an agent: it has no events")
        said = life.events.listen(task.task_id, lambda wait: life.wait_for(wait, task))
        if task.status.is_terminal:
            said.close()
        return AgentEvents(said)

    # Its input

    @fair
    async def write(self, data: str | bytes) -> None:
        """Write to the standard input of the task. Text is written as UTF-8.

        It waits while the task does not read, and for the start of a task that takes
        input. A cancelled call has written an unknown part.

        Raises:
            InputClosed: if the task takes no input, or takes no more. It says why.
            TypeError: if it is given neither text nor bytes.
        """
        if isinstance(data, str):
            data = data.encode()
        elif not isinstance(data, bytes):
            raise TypeError(f"data must be a str or bytes, not {data!r}")
        stdin = await self._input()
        try:
            await stdin.write(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise self._input_closed(error) from error

    async def close_input(self) -> None:
        """End the standard input of the task. Its program then reads the end.

        Raises:
            InputClosed: if the task takes no input, or has ended.
        """
        stdin = await self._input()
        try:
            await stdin.close()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise self._input_closed(error) from error

    async def _input(self) -> Input:
        task = self._task
        await trio.lowlevel.checkpoint()
        while (stdin := task.input) is None:
            if task.status.is_terminal:
                raise InputClosed(self.id, "it has ended")
            if not task.takes_input:
                raise InputClosed(self.id, "it was launched without an input")
            await self._life.wait_for(task.wait_changed, task)
        return stdin

    def _input_closed(self, error: Exception) -> InputClosed:
        if self._task.status.is_terminal:
            return InputClosed(self.id, "it has ended")
        if isinstance(error, trio.BrokenResourceError):
            return InputClosed(self.id, "nobody reads it any more")
        return InputClosed(self.id, "it was closed")

    # Its output

    def read_tail(self, limit: int = 65_536, *, whole_lines: bool = False) -> str:
        """Return the end of the output, at most ``limit`` characters. If that is not
        all, a first line says so and names the file. With ``whole_lines`` it leaves out
        the rest of a line that was cut.

        The output of an agent is its transcript, here and below. It has one line of
        JSON for each message, as in the file. The agent's answer is in the snapshot.
        """
        from .._tasks.reading import read_tail

        return read_tail(self._task, limit, whole_lines=whole_lines)

    def read(
        self, offset: int = 0, limit: int = 65_536, *, whole_lines: bool = False
    ) -> OutputPart:
        """Return the output from the byte ``offset`` on, without waiting. It is at most
        ``limit`` bytes, and only whole characters. With ``whole_lines`` it begins with
        the first line that begins there or later."""
        from .._tasks.reading import read_from

        return read_from(self._task, offset, limit, whole_lines=whole_lines)

    def follow(self, offset: int = 0) -> AsyncIterator[str]:
        """Iterate over the output from the byte ``offset`` on, as it comes. The
        iteration ends with the task, after its last byte. A cancellation loses nothing.
        Begin again."""
        from .._tasks.reading import Follower

        return Follower(self._task, offset, self._life.wait_for)

    @fair
    async def wait_output(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        r"""Wait until the output holds ``pattern``, and return the match. So you can
        wait until a server is ready::

            await task.wait_output("ready")  # this text, as it stands
            match = await task.wait_output(re.compile(r"listening on (\d+)"))

        What was printed before the call counts, and so does an unfinished line. If the
        task is run again, only the output of the present run counts, or of the next
        one. A cancellation ends only the wait.

        Raises:
            OutputEnded: if the task ends before. It holds the snapshot.
        """
        from .._tasks.reading import wait_output

        return await wait_output(self._task, pattern, self._life.wait_for)


def known(life: Life, task: object) -> Task | None:
    """Return the record behind a handle or an id of this runtime, or None."""
    if isinstance(task, TaskHandle):
        return task.belongs_to(life)
    return life.table.find(task)


def member(life: Life, task: TaskHandle | str) -> Task:
    """Return the record behind a handle or an id.

    Raises:
        UnknownTask: for an unknown id. It lists the running tasks.
        ValueError: for a handle of another runtime.
        TypeError: if it is neither.
    """
    found = known(life, task)
    if found is not None:
        return found
    if isinstance(task, TaskHandle):
        raise ValueError(f"{task!r} is a task of another runtime")
    if not isinstance(task, str):
        raise TypeError(f"expected a TaskHandle or a task id, got {task!r}")
    live = life.table.live.values()
    raise UnknownTask(task, tuple((t.task_id, t.description) for t in live))
