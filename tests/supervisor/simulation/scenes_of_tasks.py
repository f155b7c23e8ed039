"""Scenes in which tasks are started, waited for, stopped, written to and told of."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import trio

from actors import Context
from actors.shell import Shell
from actors.testing import FakeEnv
from supervisor.runtime import (
    InputClosed,
    Limits,
    OutputEnded,
    Runtime,
    RuntimeStopping,
    open_runtime,
)
from supervisor.simulation import Sim

from .accounts import COMMANDS, READ, check_told, running, together
from .strikes import Scene, block, call, each


async def launches(sim: Sim) -> None:
    """So many at once that the calls themselves give way."""
    handles: list[object] = []
    async with running(sim, limits=Limits(total=2)) as runtime:

        async def one() -> None:
            task = await call(sim, runtime.launch, Shell("true"))
            if task is not None:
                handles.append(task)
                await call(sim, task.wait)

        for _ in range(30):
            runtime._launches += 1  # pyright: ignore[reportPrivateUsage] (as if they had been)
        await together(one, one, one)
        assert len(runtime.tasks()) == len(handles), "a struck launch has started one"


async def launches_durably(sim: Sim) -> None:
    """Each launch waits for the disk. It has begun by then, so it is there whatever
    comes out of that wait."""
    async with running(sim, durable=True) as runtime:

        async def one() -> None:
            await call(sim, runtime.launch, Shell("true"))

        async def sync() -> None:
            with suppress(OSError):  # The world may have it so.
                await call(sim, runtime.synced)

        await together(one, one, sync)


async def runs_commands(sim: Sim) -> None:
    """What a task does is struck itself."""

    class StruckShell(Shell):
        async def run(self, ctx: Context[object], report: Any) -> Any:
            return await call(sim, super().run, ctx, report)

    async with running(sim) as runtime:
        for command in ("make", "true"):
            await runtime.launch(StruckShell(command))


async def uses_tools(sim: Sim) -> None:
    """The tools of a host's model, one after another."""
    async with running(sim) as runtime:
        tools = {tool.name: tool for tool in runtime.tools_for(None)}
        asked = [("Bash", {"command": it}) for it in ("make", "true")]
        for name, arguments in asked:
            await call(sim, tools[name].call, arguments)
            left = [it for it in runtime.tasks() if not it.status.is_terminal]
            assert not left, f"the model does not know of {left}"


async def runs(sim: Sim) -> None:
    """In the foreground, also where it is moved, and where it is cleared."""
    async with running(sim) as runtime:
        callers = 0

        async def fore() -> None:
            nonlocal callers
            callers += 1
            await call(sim, runtime.run, Shell("make"))
            callers -= 1
            left = [it for it in runtime.tasks() if not it.background]
            left = [it for it in left if not it.status.is_terminal]
            assert len(left) <= callers, f"nobody waits for {left}"

        async def moves() -> None:
            await trio.sleep(0.1)
            runtime.background_all()

        async def clears() -> None:
            await trio.sleep(0.15)
            await call(sim, runtime.stop_foreground)

        async def late() -> None:
            await trio.sleep(0.12)
            await fore()

        await together(fore, fore, moves, clears, late)


async def waits(sim: Sim) -> None:
    async with running(sim) as runtime:
        tasks = [await runtime.launch(Shell("make")) for _ in range(2)]
        one, other = tasks

        async def follows() -> None:
            async for _ in each(sim, one.follow(), "TaskHandle.follow"):
                pass

        async def finds() -> None:
            with suppress(OutputEnded):  # The world may have ended it.
                await call(sim, other.wait_output, "line 1")

        async def goes_through() -> None:
            async for _ in each(sim, runtime.task_set(*tasks)):
                pass

        await together(
            lambda: call(sim, runtime.wait_any, tasks),
            lambda: call(sim, runtime.wait_all, tasks),
            lambda: call(sim, runtime.wait_idle),
            lambda: call(sim, one.wait),
            finds,
            follows,
            goes_through,
        )


async def stops(sim: Sim) -> None:
    async with running(sim, limits=Limits(total=3)) as runtime:
        tasks = [
            await runtime.launch(Shell(it, grace=1)) for it in ("deaf", "make", "deaf")
        ]
        later = await runtime.launch(Shell("make"))

        async def all_of_them() -> None:
            await trio.sleep(0.1)
            await call(sim, runtime.stop_all)
            if not later.status.is_terminal:
                await runtime.stop_all(now=True)

        await together(
            lambda: call(sim, runtime.stop, tasks[0]),
            lambda: call(sim, tasks[2].stop, now=True),
            all_of_them,
        )


async def writes(sim: Sim) -> None:
    """To one that runs, and to one that has not begun and is to be ended."""
    async with running(sim, limits=Limits(total=1)) as runtime:
        task = await runtime.launch(Shell("echo", stdin="pipe"))
        later = await runtime.launch(Shell("echo", stdin="pipe"))

        async def write() -> None:
            with suppress(InputClosed):  # The world may have ended it.
                await call(sim, task.write, "hello\n" * 20_000)
                await call(sim, task.close_input)
            if not task.status.is_terminal:
                await trio.sleep(1)
                await task.stop()

        async def closes() -> None:
            with suppress(InputClosed):
                await call(sim, later.close_input)
            if not later.status.is_terminal:
                await trio.sleep(1)
                await later.stop()

        await together(write, closes)


async def opens(sim: Sim) -> None:
    """A runtime that is opened and left with tasks in it."""
    env: FakeEnv = sim.env(COMMANDS)
    opened: list[Runtime] = []

    async def one() -> None:
        await block(sim, open_runtime("tasks", env=env), starts)

    def starts(runtime: Runtime) -> None:
        opened.append(runtime)
        nursery.start_soon(launches_two, runtime)

    async def launches_two(runtime: Runtime) -> None:
        try:
            for command in ("deaf", "make"):
                await runtime.launch(Shell(command, grace=0.5))
        except RuntimeStopping:
            pass

    with sim.within(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
    for runtime in opened:
        check_told(runtime)
    left = [tree for tree in env.processes.started if tree.has_living]
    assert not left, f"processes are left: {left}"
    async with running(sim):
        pass


# ---- What is told ----------------------------------------------------------------------


async def tells(sim: Sim) -> None:
    """Ends are read one by one and together, wakes are had, turns are taken."""
    async with running(sim) as runtime:
        read = READ.setdefault(runtime, [])
        try:
            with runtime.events.subscribe() as events:

                async def launch(owner: str) -> None:
                    task = await runtime.launch(Shell("make"), owner=owner)
                    await task.wait()

                async def reads() -> None:
                    with trio.move_on_after(1):
                        async for note in each(sim, runtime.notifications_for("one")):
                            read.append(note.task_id)
                            note.ack()

                async def batches() -> None:
                    view = runtime.notifications_for("many")
                    with trio.move_on_after(1):
                        for note in await call(sim, view.receive_batch) or ():
                            read.append(note.task_id)
                            note.ack()

                async def wakes() -> None:
                    with trio.move_on_after(3):
                        async for wake in each(sim, runtime.wakes("woken")):
                            told = [note.task_id for note in wake.notes]
                            await block(sim, wake, partial(takes, told))

                async def turns() -> None:
                    for _ in range(2):
                        await block(sim, runtime.turn("woken"), fore)

                def takes(told: list[str], _: object) -> bool:
                    read.extend(told)
                    return fore(_)

                def fore(_: object) -> bool:
                    nursery.start_soon(runs_in_turn)
                    return True

                async def runs_in_turn() -> None:
                    try:
                        await runtime.run(Shell("make"), owner="woken")
                    except RuntimeStopping:
                        pass

                async def listens() -> None:
                    with trio.move_on_after(1):
                        async for _ in each(sim, events):
                            pass

                async with trio.open_nursery() as nursery:
                    for owner in ("one", "one", "many", "woken", "woken"):
                        nursery.start_soon(launch, owner)
                    for one in (reads, batches, wakes, turns, turns, listens):
                        nursery.start_soon(one)
            with trio.move_on_after(1):
                async for wake in runtime.wakes("woken"):
                    async with wake:
                        read.extend(note.task_id for note in wake.notes)
        finally:
            READ[runtime] = read
    del READ[runtime]


async def schedules(sim: Sim) -> None:
    async with running(sim) as runtime:
        schedule = await call(sim, runtime.schedule, "* * * * *", "look", owner="x")
        if schedule is not None:
            await trio.sleep(61)
            await call(sim, schedule.stop)
            await schedule.stop()
            told = runtime.notifications_for("x")
            told.drain()
            await trio.sleep(180)
            assert not told.drain(), "it is told again after its stop"
        READ[runtime] = []


async def monitors(sim: Sim) -> None:
    """Of a command that is begun, and of one that runs; and both are stopped."""
    async with running(sim) as runtime:
        for command in ("make", "deaf"):
            monitor = await call(sim, runtime.monitor, Shell(command), owner="x")
            if monitor is None:
                left = [it for it in runtime.tasks() if not it.status.is_terminal]
                assert not left, f"a struck call has begun {left}"
                assert not runtime.monitors(), "a struck call has left a monitor"
                continue
            other = await call(sim, runtime.monitor, monitor.task_id, "line")
            await trio.sleep(0.3)
            if other is not None:
                await call(sim, other.stop)
                await other.stop()
            await call(sim, monitor.stop)
            await monitor.stop()
        await runtime.wait_idle()
        assert not runtime.monitors(), "a monitor has outlived its command"
        told = runtime.notifications_for("x").drain()
        kinds = "".join(note.kind[0] for note in told)
        # Each end comes after the last lines of its command.
        for task in {note.task_id for note in told}:
            last = [note.kind for note in told if note.task_id == task][-1]
            assert last == "task", kinds
        READ[runtime] = [note.task_id for note in told if note.kind == "task"]


SCENES: tuple[Scene, ...] = (
    launches,
    launches_durably,
    runs_commands,
    uses_tools,
    runs,
    waits,
    stops,
    writes,
    opens,
    tells,
    schedules,
    monitors,
)
