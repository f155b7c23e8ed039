"""``trio-supervisor run``: supervise some commands until all have ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import attrs
import trio

from actors import TaskStatus
from actors.shell import Shell

from ..runtime import Limits, Notifications, TaskHandle, open_runtime
from ..tree import Backoff, Subscription
from ._program import EVENTS_KEPT, exit_code, open_program
from ._stdout import Stdout
from ._stopping import Stopping
from ._tables import LiveView, summary
from ._view import JsonView, PlainView, View, located


@attrs.frozen(kw_only=True)
class RunOrder:
    """What was ordered on the command line, checked."""

    shells: Sequence[Shell]
    directory: Path
    limits: Limits = attrs.field(factory=Limits)
    restart: Literal["permanent", "transient", "temporary"] = "temporary"
    intensity: int = 1
    period: float = 5.0
    backoff: Backoff | None = None
    json: bool = False
    envelopes: bool = False


async def run(order: RunOrder) -> int:
    """Do what was ordered, tell about it, and return the exit code."""
    async with open_program() as (stopping, stdout):
        if not order.json:  # There each task has the path of its own file.
            where = located("output files", order.directory, stdout.width)
            await stdout.write(where)
        tasks = await _supervise(order, stopping, stdout)
        ended = [task.snapshot() for task in tasks]
        is_live = _is_live(order, stdout)
        table = summary(ended, order.directory, stdout, live=is_live)
        if order.json:
            print(table, end="", file=sys.stderr)
        else:
            await stdout.write(table)
    stopped = any(task.status is TaskStatus.KILLED for task in ended)
    therefore = ": the commands were stopped" if stopped else ""
    if not any(task.started_at for task in ended):
        therefore = ": no command was started"
    has_failed = any(task.status is not TaskStatus.COMPLETED for task in ended)
    return exit_code(stopping, stdout, has_failed, therefore=therefore)


async def _supervise(
    order: RunOrder, stopping: Stopping, stdout: Stdout
) -> list[TaskHandle]:
    """Launch everything and return when everything has ended."""
    tasks: list[TaskHandle] = []
    view = _choose_view(order, stdout, tasks)
    parent = _Parent(view if order.envelopes else None)
    try:
        async with trio.open_nursery() as readers:
            # They read on until the runtime has ended.
            async with open_runtime(order.directory, limits=order.limits) as runtime:
                stopping.runtime = view.runtime = runtime
                events, notifications = runtime.events, runtime.notifications
                readers.start_soon(_show, view, events.subscribe(EVENTS_KEPT))
                readers.start_soon(parent.receive, notifications)
                with stopping.work:
                    for shell in order.shells:
                        task = await runtime.launch(
                            shell,
                            restart=order.restart,
                            intensity=order.intensity,
                            period=order.period,
                            backoff=order.backoff,
                        )
                        tasks.append(task)
                    await runtime.wait_idle()
                if stopping.number is not None:
                    await runtime.stop_all(reason=stopping.reason, by="user")
                # While the event stream can still tell of it.
                await parent.wait_acknowledged(len(tasks))
    except BaseException:
        # A terminal is given back as it was; a second is enough for that.
        with trio.move_on_after(1.0, shield=True):
            await view.close()
        raise
    # However slow it is: the table comes after this, or never.
    await view.close()
    return tasks


def _is_live(order: RunOrder, stdout: Stdout) -> bool:
    dumb = os.environ.get("TERM", "dumb") == "dumb"
    return stdout.is_terminal and not order.json and not dumb


def _choose_view(order: RunOrder, stdout: Stdout, tasks: Sequence[TaskHandle]) -> View:
    if _is_live(order, stdout):
        return LiveView(stdout, tasks)
    return JsonView(stdout) if order.json else PlainView(stdout)


async def _show(view: View, events: Subscription) -> None:
    # Told, not cancelled: a frame that is half written is the last one.
    ended = trio.Event()
    async with trio.open_nursery() as nursery:
        # Ctrl+Z gives the terminal back from the first frame on.
        await nursery.start(view.tick, ended)
        async for event in events:
            await view.show([event, *events.drain()])
        ended.set()


class _Parent:
    """The parent of every task: it hears of their ends, and says so."""

    def __init__(self, view: View | None) -> None:
        self._view = view
        self._acknowledged = 0
        self._news = trio.lowlevel.ParkingLot()

    async def receive(self, notifications: Notifications) -> None:
        async for note in notifications:
            if self._view is None:
                note.ack("silent")
            else:
                await self._view.show_envelope(note)
                note.ack()
            self._acknowledged += 1
            self._news.unpark_all()

    async def wait_acknowledged(self, count: int) -> None:
        while self._acknowledged < count:
            await self._news.park()
