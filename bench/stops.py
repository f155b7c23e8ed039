"""PF12: the stop of very many idle tasks, over cancelling bare trio tasks, in CPU time:
rates of a shared machine swing."""

from __future__ import annotations

from time import process_time

import trio
import trio.testing

from actors import Context
from actors.work import Report
from supervisor.tree import child

from ._case import Case, Row, Target
from ._listened import listened_pool, listened_runtime
from .limit import Limit
from .tasks import InProcess


def cases(small: bool) -> list[Case]:
    """Return the cases of this theme."""
    n = 100 if small else 10_000
    return [
        Case(
            name="stop",
            parts=[
                lambda: {"stop_all": trio.run(_stop_all, n, False)},
                lambda: {"leave runtime": trio.run(_leave_runtime, n, False)},
                lambda: {"stop_all, journal": trio.run(_stop_all, n, True)},
                lambda: {"leave runtime, journal": trio.run(_leave_runtime, n, True)},
                lambda: {"leave pool": trio.run(_leave_pool, n)},
                lambda: {"limit": trio.run(_stop_limit, n)},
                lambda: {"bare": trio.run(_cancel_all, n)},
                lambda: {"scopes": trio.run(_cancel_each, n)},
            ],
            rows=[
                Row(
                    id="PF12",
                    what=f"stop_all of {n:,} tasks / cancelling bare tasks",
                    ours="stop_all",
                    base="bare",
                    unit="ms",
                    target=Target("<=", 2.5),
                ),
                Row(
                    id="PF12",
                    what="  the same, with the journal",
                    ours="stop_all, journal",
                    base="bare",
                    unit="ms",
                ),
                Row(
                    id="PF12",
                    what="  the same / the same promises in pure trio (bench/limit.py)",
                    ours="stop_all",
                    base="limit",
                    unit="ms",
                ),
                Row(
                    id="PF12",
                    what=f"leaving a runtime with {n:,} tasks / the same",
                    ours="leave runtime",
                    base="bare",
                    unit="ms",
                    target=Target("<=", 2.6),
                ),
                Row(
                    id="PF12",
                    what="  the same, with the journal",
                    ours="leave runtime, journal",
                    base="bare",
                    unit="ms",
                ),
                Row(
                    id="PF12",
                    what=f"leaving a supervisor with {n:,} actors / the same",
                    ours="leave pool",
                    base="bare",
                    unit="ms",
                    target=Target("<=", 2),
                ),
                Row(
                    id="PF12",
                    what="  for comparison: bare tasks, a scope each / the same",
                    ours="scopes",
                    base="bare",
                    unit="ms",
                ),
            ],
        )
    ]


def _milliseconds_since(began: float) -> float:
    return (process_time() - began) * 1e3


class Idle(InProcess):
    """A work that waits for messages, of which there are none."""

    async def run(self, ctx: Context[object], report: Report) -> object:
        """Wait."""
        async for _ in ctx.mailbox:
            pass
        return None


async def _idle(ctx: Context[object]) -> None:
    async for _ in ctx.mailbox:
        pass


async def _stop_all(n: int, journal: bool) -> float:
    async with listened_runtime(journal=journal) as runtime:
        work = Idle()
        for _ in range(n):
            await runtime.launch(work)
        await trio.testing.wait_all_tasks_blocked()
        began = process_time()
        await runtime.stop_all()
        return _milliseconds_since(began)


async def sleep() -> str:
    """Be a work of a `Limit` that waits for ever."""
    await trio.sleep_forever()
    return ""


async def _stop_limit(n: int) -> float:
    async with Limit().opened() as limit:
        for _ in range(n):
            await limit.launch(sleep)
        await trio.testing.wait_all_tasks_blocked()
        began = process_time()
        await limit.stop_all()
        return _milliseconds_since(began)


async def _leave_runtime(n: int, journal: bool) -> float:
    async with listened_runtime(journal=journal) as runtime:
        work = Idle()
        for _ in range(n):
            await runtime.launch(work)
        await trio.testing.wait_all_tasks_blocked()
        began = process_time()
    return _milliseconds_since(began)


async def _leave_pool(n: int) -> float:
    async with listened_pool() as pool:
        spec = child("idle", _idle, restart="temporary")
        for _ in range(n):
            pool.start_child_nowait(spec)
        await trio.testing.wait_all_tasks_blocked()
        began = process_time()
    return _milliseconds_since(began)


async def _cancel_all(n: int) -> float:
    async with trio.open_nursery() as nursery:
        for _ in range(n):
            nursery.start_soon(trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        began = process_time()
        nursery.cancel_scope.cancel()
    return _milliseconds_since(began)


async def _cancel_each(n: int) -> float:
    async def run(scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep_forever()

    scopes = [trio.CancelScope() for _ in range(n)]
    async with trio.open_nursery() as nursery:
        for scope in scopes:
            nursery.start_soon(run, scope)
        await trio.testing.wait_all_tasks_blocked()
        began = process_time()
        for scope in scopes:
            scope.cancel()
    return _milliseconds_since(began)
