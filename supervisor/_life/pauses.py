"""Pauses: an agent whose run was stopped by something that passes waits, and goes on in
a new run. Its status says so exactly as long as it has no run and no place.

Its actor waits on, in the place of a run, so whatever ends a run ends the wait: a stop,
the end of its parent, the end of the runtime. Its own tasks are beside it and go on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from actors import TaskStatus
from actors.agent import TransientError

from .._tasks.journal.records import Continued, Paused
from .._tasks.pausing import Before, ContinuedBy, Rest, Try, gave_up, next_pause
from .._tasks.snapshot import Pause
from .._tasks.task_events import TaskContinued, TaskPaused
from .recording import time_of

if TYPE_CHECKING:
    from .._tasks.agent_task import AgentTask
    from .life import Life

# The clock for sleeping stands still while the machine is suspended, and knows nothing
# of a wall clock that is set: there is no event for either.
_LOOK_EVERY: Final = 60.0


class Pauses:
    """The pauses of the agents of one runtime."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def decide(self, task: AgentTask, error: TransientError) -> Pause:
        """Return the pause that follows on ``error``, which has ended a run.

        Raises:
            AgentFailed: if the agent has no patience left. It tells all tries.
        """
        env = self._life.env
        tried, pause = next_pause(
            task.tries,
            error,
            env.clock.now(),
            self._life.agents.patience,
            env.ids.uniform(),
        )
        task.tries = (*task.tries, tried)
        task.said_text = False
        if pause is None:
            raise gave_up(task.tries) from error
        return pause

    @enable_ki_protection
    def begin(self, task: AgentTask, pause: Pause) -> None:
        """Pause ``task``, whose run has ended. One in the foreground is moved to the
        background: whoever runs it goes on."""
        self._rest(task, pause, Rest(self._life.places.lend(task)))

    @enable_ki_protection
    def begin_first(self, task: AgentTask, pause: Pause) -> None:
        """Pause ``task``, which has just been started without a place: its first run
        waits."""
        before = None if task.revival is None else task.revival.paused
        self._rest(task, pause, Rest(self._life.places.begun_without(task)), before)
        if task.revival is not None:
            # Nobody need wait to hear whether it runs.
            task.revival.begun()

    def _rest(
        self, task: AgentTask, pause: Pause, rest: Rest, before: Before | None = None
    ) -> None:
        life, is_told = self._life, before is not None and before.is_told
        if not task.transition(TaskStatus.PAUSED):
            return
        task.pause, task.rest = pause, rest
        task.terminate = None
        parts = [
            partial(life.agents.write_meta, task),
            partial(self._record, task, pause, rest, before),
        ]
        if not task.background:
            # Whoever runs it is told by what that returns.
            parts.append(partial(self._move, task))
        elif task.notify != "silent" and not is_told:
            parts.append(partial(self._tell, task, pause, rest))
        until = pause.resume_at
        # What it has said is told before.
        life.delivery.tell_latest(task.task_id)
        life.events.emit(
            TaskPaused,
            task.task_id,
            task.run_id,
            pause.reason,
            None if until is None else until.isoformat(),
            pause.attempt,
        )
        life.each_part(task, parts)

    def _record(
        self, task: AgentTask, pause: Pause, rest: Rest, before: Before | None
    ) -> None:
        add, until = self._life.journal.add, pause.resume_at
        rest.record = Paused(
            run=task.entered_as,
            reason=pause.reason,
            until=None if until is None else time_of(until),
            attempt=pause.attempt,
            told=before is not None and before.is_told,
        )
        tries = [_tried(task, number) for number in range(len(task.tries))]
        if pause.attempt and pause.attempt == len(tries):
            rest.record = attrs.evolve(
                rest.record, at=tries[-1].at, waited_ms=tries[-1].waited_ms
            )
            tries.pop()
        if before is not None:
            # They stand under a run of the program before.
            for tried in tries:
                add(tried)
        add(rest.record)
        self._life.journal.flush()

    def _tell(self, task: AgentTask, pause: Pause, rest: Rest) -> None:
        rest.note = self._life.delivery.tell_pause(task, pause)

    def _move(self, task: AgentTask) -> None:
        self._life.move(task)

    @enable_ki_protection
    def end(self, task: AgentTask, by: ContinuedBy) -> None:
        """Let ``task`` go on before its time, if it is paused. It is paused until it has
        its place again."""
        rest = task.rest
        if rest is not None and not rest.over.is_set():
            rest.by = by
            rest.over.set()

    async def wait(self, task: AgentTask) -> None:
        """Wait, in the actor of ``task``, for the end of its pause, and for its place.
        It is running then, and may begin its run."""
        rest, pause = task.rest, task.pause
        assert rest is not None and pause is not None
        await self._wait(rest, pause)
        places = self._life.places
        if not task.stopping:
            places.over(rest.place)
            await places.regain(task)
        if task.stopping:
            # It is cancelled when its turn comes, and begins nothing until then.
            await trio.sleep_forever()
        self._go_on(task, rest)

    async def _wait(self, rest: Rest, pause: Pause) -> None:
        if pause.resume_at is None:
            await rest.over.wait()
            return
        # However the wall clock is set back meanwhile.
        latest = trio.current_time() + self._left(pause.resume_at)
        while not rest.over.is_set() and trio.current_time() < latest:
            left = self._left(pause.resume_at)
            if left <= 0:
                break
            left = min(left, _LOOK_EVERY, latest - trio.current_time())
            with trio.move_on_after(left):
                await rest.over.wait()
        await trio.lowlevel.checkpoint()

    def _left(self, until: datetime) -> float:
        try:
            return (until - self._life.env.clock.now()).total_seconds()
        # The boundary: somebody's clock, and it may be right again later.
        except Exception:
            return _LOOK_EVERY

    @enable_ki_protection
    def _go_on(self, task: AgentTask, rest: Rest) -> None:
        if not task.transition(TaskStatus.RUNNING):
            return
        task.pause = task.rest = None
        self._life.journal.add(Continued(run=task.entered_as))
        self._life.journal.flush()
        said = task.result
        task.begin_again(self._life.new_run_id(task.task_id, task.run_id))
        # The run that follows may fail before it has said anything.
        task.result = said
        self._life.events.emit(TaskContinued, task.task_id, task.run_id, rest.by)


def _tried(task: AgentTask, number: int) -> Paused:
    """Return a pause of ``task`` that is over as a record."""
    tried = task.tries[number]
    return Paused(
        run=task.entered_as,
        reason=tried.reason,
        attempt=number + 1,
        at=time_of(tried.at),
        # Never less: what is left of it would be one more try.
        waited_ms=math.ceil(tried.waited * 1_000),
    )


def tries_of(paused: Sequence[Paused]) -> tuple[Try, ...]:
    """Return what a journal has of the tries of an agent."""
    times = [(it, _time(it.at)) for it in paused]
    return tuple(
        Try(at, it.reason, it.waited_ms / 1_000) for it, at in times if at is not None
    )


def _time(at: str) -> datetime | None:
    # Anybody may have written to the journal.
    with suppress(ValueError):
        time = datetime.fromisoformat(at)
        return None if time.tzinfo is None else time
    return None
