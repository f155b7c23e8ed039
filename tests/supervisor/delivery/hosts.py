"""Hosts whose parents answer wakes, and other ways to take one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
import trio.lowlevel
import trio.testing

from supervisor._delivery.outbox import Notification
from supervisor._delivery.turns import Turn
from supervisor._delivery.wakes import Wake, Wakes
from tests.supervisor.delivery.boxes import Box


class Host:
    """A host whose parent answers every wake, and what it was told."""

    def __init__(self, box: Box, *, turn_lasts: int = 2) -> None:
        self.box = box
        self.turn_lasts = turn_lasts
        self.wakes: list[list[Notification]] = []
        self.under_way = 0
        self.answers = True

    async def run(self, wakes: Wakes | None = None) -> None:
        async for wake in wakes or self.box.wakes():
            async with wake as turn:
                await self.answer(wake, turn)

    async def answer(self, wake: Wake, turn: Turn) -> None:
        self.under_way += 1
        try:
            assert self.under_way == 1, "wakes overlap"
            assert wake.notes, "a wake of nothing"
            self.wakes.append([*wake.notes])
            for _ in range(self.turn_lasts):
                await trio.lowlevel.checkpoint()
            if self.answers:
                turn.progressed()
        finally:
            self.under_way -= 1

    @property
    def told(self) -> list[Notification]:
        return [note for wake in self.wakes for note in wake]


@asynccontextmanager
async def started(*runs: Callable[[], Awaitable[None]]) -> AsyncGenerator[trio.Nursery]:
    """Run these beside the block, and end them with it."""
    async with trio.open_nursery() as nursery:
        for run in runs:
            nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        yield nursery
        nursery.cancel_scope.cancel()


async def next_of(wakes: Wakes) -> Wake:
    with trio.fail_after(5):
        return await anext(wakes)


async def steps(count: int) -> None:
    for _ in range(count):
        await trio.lowlevel.checkpoint()


async def take_wake(wakes: Wakes, how: str) -> list[Notification]:
    wake = await next_of(wakes)
    if how == "is not entered":
        return [*wake.notes]
    with trio.CancelScope() as scope:
        try:
            async with wake as turn:
                if how == "raises":
                    turn.progressed()
                    raise KeyError
                if how == "cancelled":
                    turn.progressed()
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
                if how == "progresses":
                    turn.progressed()
        except KeyError:
            pass
    return [*wake.notes]
