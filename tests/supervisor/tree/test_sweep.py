"""A cancellation, or an interrupt, at every single point of a supervisor's life.

The simulator strikes each scenario after each step, its own or another's. Whatever
happens, no task is left, nothing hangs, and every incarnation that began has one exit.
"""

# A block may end early, a started value be anything: here they are what they are.
# pyright: reportPossiblyUnboundVariable=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

from functools import partial

import attrs
import pytest
import trio

from actors.lowlevel import Incarnation
from supervisor.simulation import cancel_everywhere, raise_everywhere
from supervisor.tree import (
    SupervisorError,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)


@attrs.define
class Scene:
    """Counts what begins and ends in a scenario."""

    begun: list = attrs.Factory(list)
    ended: list = attrs.Factory(list)

    async def idle(self, ctx):
        await self._live(ctx, trio.sleep_forever)

    async def slow(self, ctx):
        async def cleanup():
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)

        await self._live(ctx, cleanup)

    async def late(self, ctx):
        async def acknowledge():
            await trio.sleep(1)
            ctx.started()
            await trio.sleep_forever()

        await self._live(ctx, acknowledge)

    async def reads(self, ctx):
        async def read():
            async for message in ctx.mailbox:
                if message == "crash":
                    raise ValueError("crash")

        await self._live(ctx, read)

    async def _live(self, ctx, body):
        self.begun.append(ctx)
        try:
            await body()
        finally:
            self.ended.append(ctx)

    def check(self, supervisors):
        assert sorted(map(id, self.begun)) == sorted(map(id, self.ended))
        for incarnation in self.begun:
            assert isinstance(incarnation, Incarnation)
            assert incarnation.exit is not None
        for sup in supervisors:
            assert sup.exit is not None
            assert sup.count_children().active == 0
            for info in sup.which_children():
                assert info.state == "stopped"
                assert info.ref.statistics().closed


def refs(sup):
    return {info.id: info.ref for info in sup.which_children()}


async def open_start_stop(scene, supervisors):
    """Opening, starting, terminating, restarting, deleting, leaving."""
    async with open_supervisor(
        [child("a", scene.idle), child("b", scene.late, wait_started=True)]
    ) as sup:
        supervisors.append(sup)
        await sup.start_child(child("c", scene.slow))
        await sup.start_child(child("d", scene.late, wait_started=True))
        await sup.terminate_child("c")
        await sup.restart_child("c")
        await sup.terminate_child("a")
        await sup.delete_child("a")


async def dynamic(scene, supervisors):
    """The same with children that come and go."""
    async with open_dynamic_supervisor() as sup:
        supervisors.append(sup)
        one = await sup.start_child(child("one", scene.slow))
        await sup.start_child(child("two", scene.late, wait_started=True))
        three = sup.start_child_nowait(child("three", scene.idle))
        await sup.terminate_child(one)
        await sup.terminate_children([three])
        await sup.start_child(child("four", scene.slow))


async def restarts(strategy, scene, supervisors):
    """A failure and its restarts, with a second one at the same time."""
    async with open_supervisor(
        [
            child("a", scene.reads),
            child("b", scene.late, wait_started=True),
            child("c", scene.slow),
            child("d", scene.reads),
        ],
        strategy=strategy,
        intensity=5,
    ) as sup:
        supervisors.append(sup)
        refs(sup)["a"].tell("crash")
        await trio.sleep(0.5)
        refs(sup)["d"].tell("crash")
        await trio.sleep(5)
        await sup.terminate_child("c")


async def nested(scene, supervisors):
    """Supervisors below supervisors, with a soft stop of one."""
    inner = partial(open_supervisor, [child("x", scene.slow), child("y", scene.idle)])
    async with open_supervisor(
        [child("a", scene.idle), child("sub", inner, kind="supervisor")]
    ) as sup:
        supervisors.append(sup)
        supervisors.append(refs(sup)["sub"].started_value)
        refs(sup)["sub"].stop()
        await trio.sleep(3)
        supervisors.append(refs(sup)["sub"].started_value)


async def overflow(scene, supervisors):
    """Giving up, with a body that is in the middle of a start."""
    async with open_supervisor(
        [child("a", scene.reads), child("b", scene.slow)], intensity=0
    ) as sup:
        supervisors.append(sup)
        refs(sup)["a"].tell("crash")
        await sup.start_child(child("c", scene.late, wait_started=True))
        await trio.sleep_forever()


async def races(scene, supervisors):
    """Several callers at once, while the block is being left."""

    async def ignore_errors(call, *args):
        try:
            await call(*args)
        except SupervisorError:
            pass

    async with trio.open_nursery() as nursery:
        async with open_supervisor(
            [child("a", scene.slow), child("b", scene.idle)]
        ) as sup:
            supervisors.append(sup)
            for _ in range(2):
                nursery.start_soon(ignore_errors, sup.terminate_child, "a")
            nursery.start_soon(
                ignore_errors,
                sup.start_child,
                child("c", scene.late, wait_started=True),
            )
            await trio.sleep(0.5)
            nursery.start_soon(ignore_errors, sup.restart_child, "a")
            nursery.start_soon(ignore_errors, sup.start_child, child("d", scene.slow))


async def hanging_restart(scene, supervisors):
    """A group restart that hangs in the middle, and is ended by hand."""

    async def hangs(ctx):
        if ctx.number == 1:
            ctx.started()
        await scene.idle(ctx)

    async with open_supervisor(
        [
            child("a", scene.reads, drain=0.5),
            child("hangs", hangs, wait_started=True),
            child("c", scene.slow, restart="temporary"),
        ],
        strategy="one_for_all",
    ) as sup:
        supervisors.append(sup)
        refs(sup)["a"].tell("crash")
        await trio.sleep(2)
        await sup.terminate_child("hangs")
        await trio.sleep(2)


async def siblings(scene, supervisors):
    """A child that starts siblings, one of which takes it down."""

    async def parent(ctx, holder):
        async def start():
            async for sup in ctx.mailbox:
                supervisors.append(sup)
                ref = await sup.start_child(child(f"r{ctx.number}", scene.reads))
                late = child(f"l{ctx.number}", scene.late, wait_started=True)
                try:
                    await sup.start_child(late)
                except SupervisorError:
                    pass
                ref.tell("crash")

        await scene._live(ctx, start)

    async with open_supervisor(
        [child("parent", parent, [])], strategy="one_for_all", intensity=3
    ) as sup:
        supervisors.append(sup)
        refs(sup)["parent"].tell(sup)
        await trio.sleep(0.5)
        await sup.start_child(child("extra", scene.slow))
        await trio.sleep(5)


SCENARIOS = [
    open_start_stop,
    dynamic,
    partial(restarts, "one_for_one"),
    partial(restarts, "rest_for_one"),
    partial(restarts, "one_for_all"),
    nested,
    overflow,
    races,
    hanging_restart,
    siblings,
]


def name(scenario):
    if isinstance(scenario, partial):
        return f"{scenario.func.__name__}-{scenario.args[0]}"
    return scenario.__name__


class Interrupts:
    """Makes interrupts, and sees that none is lost."""

    def __init__(self, scenario):
        self.scenario = scenario
        self.made = 0

    def __call__(self):
        self.made += 1
        return KeyboardInterrupt()

    async def program(self, sim):
        self.made = 0
        scene, supervisors = Scene(), []
        living = trio.lowlevel.current_statistics().tasks_living
        came = 0
        try:
            await sim.target(self.scenario)(scene, supervisors)
        except SupervisorError:
            pass  # an overflow, or a start that came to nothing
        except KeyboardInterrupt:
            came = 1
        except BaseExceptionGroup as group:
            found, rest = group.split(KeyboardInterrupt)
            came = found is not None
            if rest is not None:
                raise rest from None
        assert came == self.made
        scene.check(supervisors)
        assert trio.lowlevel.current_statistics().tasks_living == living


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name)
@pytest.mark.parametrize("blow", ["cancel", "Ctrl+C"])
def test_a_blow_at_any_step_leaves_nothing_behind_and_is_not_lost(scenario, blow):
    """P1, P3, P8, P10, D11, D14, D23: swept over every step of the run. A
    cancellation goes to the scope around; a KeyboardInterrupt that comes to
    the main task leaves the run."""
    interrupts = Interrupts(scenario)
    if blow == "cancel":
        report = cancel_everywhere(interrupts.program, schedules=1)
    else:
        report = raise_everywhere(interrupts.program, interrupts, schedules=1)
    assert report.points > 10
