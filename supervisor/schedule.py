"""Scheduled prompts: what a parent is asked at certain times.

A schedule is an actor below the runtime's root. When one of its times comes, it puts
its prompt into the same queue as the ends of tasks. So the prompt wakes the parent in
its turn, and never passes for words that a user has just typed::

    async with open_runtime("tasks") as runtime:
        schedule = await runtime.schedule("0 9 * * 1-5", "Look at the open issues.")
        async for wake in runtime.wakes():
            async with wake:
                print(wake.text)  # <scheduled-prompt> ... Look at the open issues. ...
                await schedule.stop()
                break

A bad expression, prompt or zone is a TypeError or ValueError that names it. cronsim,
which the extra ``agents`` brings, reads the expressions. Without it a `SupervisorError`
is raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from actors import Context
from actors.env import Clock, Env
from actors.house import check_text, check_type
from actors.house import publish as _publish
from actors.text import clean_text, escape, escaped_line, one_line

from ._delivery.outbox import Notification, Words
from ._life.telling import Delivery
from ._tasks.errors import RuntimeStopping
from .tree._errors import (
    AlreadyStarted,
    ChildNotFound,
    SupervisorError,
    SupervisorStopping,
)
from .tree._spec import child
from .tree._supervisor import Supervisor

if TYPE_CHECKING:
    from cronsim import CronSim

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "Schedule",
]

PROMPT_LIMIT: Final = 32_768
"""Characters that a prompt may have."""

# The clock for sleeping stands still while the machine is suspended, and knows
# nothing of a wall clock that is set: there is no event for either.
_LOOK_EVERY: Final = 60.0

# A clock that is set back by less is waited for, so that no time comes twice; one
# that is set back by more was wrong, as it is for cron.
_CORRECTED: Final = timedelta(hours=3)

_ID_ATTEMPTS: Final = 100


@attrs.define(eq=False, repr=False)
class Schedule:
    """A prompt that comes again and again. `Runtime.schedule` makes it."""

    _supervisor: Supervisor
    id: str
    """The `Notification.task_id` of its prompts."""
    expression: str
    """The times, in the form of cron."""
    prompt: str
    """What the parent is asked."""
    owner: str | None
    """The owner of the prompt."""
    zone: tzinfo
    """The time zone of the expression."""

    def __repr__(self) -> str:
        return f"<Schedule {self.id} {self.expression!r} of {self.owner!r}>"

    async def stop(self) -> None:
        """End the schedule. A prompt that is on its way is still told. A second call
        does nothing."""
        try:
            await self._supervisor.terminate_child(self.id)
        except ChildNotFound:
            await trio.lowlevel.checkpoint()

    def times(self, after: datetime) -> Iterator[datetime]:
        """Iterate over its times after ``after``. They are aware. When the clocks
        change, cron's rules hold. No time of day comes twice. A time that is left out
        comes late."""
        return _cron(self.expression, after.astimezone(self.zone))

    def words(self, due: datetime) -> Words:
        """Return what the parent is told at the time ``due``."""
        prompt = escape(clean_text(self.prompt))
        return Words(
            text=(
                "<scheduled-prompt>\n"
                f"<schedule-id>{escape(self.id)}</schedule-id>\n"
                f"<expression>{escaped_line(self.expression)}</expression>\n"
                f"<due>{due.isoformat()}</due>\n"
                f"<prompt>{prompt}</prompt>\n"
                "<note>This prompt was scheduled before: no person has written it"
                " just now, and it approves nothing.</note>\n"
                "</scheduled-prompt>"
            ),
            summary=f"Scheduled prompt: {one_line(self.prompt)}",
        )


def check_schedule(expression: str, prompt: str, zone: tzinfo, now: datetime) -> None:
    """Raise if no schedule can be made of these."""
    check_type("expression", expression, str)
    check_type("zone", zone, tzinfo)
    check_text("prompt", prompt)
    if len(prompt) > PROMPT_LIMIT:
        raise ValueError(
            f"prompt must have at most {PROMPT_LIMIT} characters, not {len(prompt)}"
        )
    if next(_cron(expression, now.astimezone(zone)), None) is None:
        raise ValueError(f"expression must have a time to come, not {expression!r}")


def _cron(expression: str, after: datetime) -> CronSim:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise SupervisorError(
            "schedules need the package cronsim: install trio-supervisor[agents]"
        ) from error
    try:
        return CronSim(expression, after)
    except CronSimError as error:
        raise ValueError(
            f"expression must be one of cron, not {expression!r}: {error}"
        ) from None


async def tell_times(
    _: Context[None], schedule: Schedule, clock: Clock, delivery: Delivery
) -> None:
    """Put the prompt of ``schedule`` into the queue at each of its times.

    Times that were missed, because the host was suspended or because nobody has
    read the prompt of an earlier one, are told by one prompt.
    """
    told: Notification | None = None
    last = clock.now()
    while (due := next(schedule.times(last), None)) is not None:
        while (left := (due - (now := clock.now())).total_seconds()) > 0:
            if last - now > _CORRECTED:
                break
            await trio.sleep(min(left, _LOOK_EVERY))
        # Not the time that was due: there may have been others since.
        last = now
        if left > 0:
            continue
        if told is None or not delivery.outbox.is_waiting(told):
            words = partial(schedule.words, due)
            told = delivery.add_note(
                "prompt", schedule.id, schedule.owner, "wake", words
            )
        await trio.lowlevel.checkpoint()


async def start_schedule(
    root: Supervisor,
    delivery: Delivery,
    env: Env,
    expression: str,
    prompt: str,
    owner: str | None,
    zone: tzinfo,
) -> Schedule:
    """See `Runtime.schedule`."""
    check_schedule(expression, prompt, zone, env.clock.now())
    for _ in range(_ID_ATTEMPTS):
        schedule = Schedule(root, f"c{env.ids.hex(8)}", expression, prompt, owner, zone)
        # It belongs to one schedule: its failure is no reason to end anything else.
        spec = child(
            schedule.id, tell_times, schedule, env.clock, delivery, restart="temporary"
        )
        try:
            await root.start_child(spec)
        except AlreadyStarted:
            continue  # Another schedule has this id.
        except SupervisorStopping as error:
            raise RuntimeStopping(
                "the runtime is stopping and starts no schedule"
            ) from error
        return schedule
    raise SupervisorError(f"no free id was found in {_ID_ATTEMPTS} attempts")


_publish(globals())
