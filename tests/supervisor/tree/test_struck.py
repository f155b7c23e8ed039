"""Blocks that are struck where they call something: no memory, no stack left.

Every function that is entered below `Block.__aenter__`, or `Block.__aexit__`, is
struck at its start and wherever it goes on after a wait, one after the other.
"""

# What is struck never comes to the end of its block, nor binds its name.
# pyright: reportPossiblyUnboundVariable=false, reportAttributeAccessIssue=false

from __future__ import annotations

import logging
import signal
import sys
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from supervisor.tree import (
    Backoff,
    RestartIntensityExceeded,
    SupervisorError,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)

OURS = ("supervisor.", "actors.")
# Virtual seconds after which a run must have been stuck.
HUNG = 100


class Strike:
    """Raises ``error`` in the ``at``-th call below ``root``, and in the next calls of
    the same function until it has done so ``times``.

    The first line of ``root`` itself is spared: what is struck there was never
    called."""

    def __init__(self, root, at, error, times):
        self.root = root
        self.at = at
        self.error = error
        self.times = times
        self.where = []
        self._seen = 0
        self._roots = []

    def arm(self):
        sys.setprofile(self._see)

    def _see(self, frame, event, _):
        if event != "call" or len(self.where) == self.times:
            return
        if not str(frame.f_globals.get("__name__")).startswith(OURS):
            return
        code = frame.f_code
        above = frame
        while above is not None and above.f_code.co_qualname != self.root:
            above = above.f_back
        if above is None:
            return
        if above is frame and frame not in self._roots:
            self._roots.append(frame)
            return
        self._seen += 1
        if self._seen == self.at or code in self.where:
            self.where.append(code)
            raise self.error


class Scene:
    """What runs, and what was seen of it."""

    def __init__(self):
        self.up = set()
        self.supervisors = []
        # What leaves the block whatever strikes besides, if anything does.
        self.leaves = None
        # Whether the body went on after a cancellation that was for all of it.
        self.went_on = False

    async def idle(self, ctx, seconds=0):
        self.up.add(ctx)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)
            self.up.discard(ctx)

    async def late(self, ctx):
        await trio.sleep(1)
        ctx.started()
        await self.idle(ctx)

    async def reads(self, ctx):
        self.up.add(ctx)
        try:
            async for error in ctx.mailbox:
                raise error
        finally:
            self.up.discard(ctx)

    async def returns(self, ctx):
        pass

    def two(self):
        return [child("a", self.idle), child("b", self.idle, 1, drain=2)]


async def empty(scene, arm):
    async with open_supervisor() as sup:
        scene.supervisors.append(sup)
        arm()


async def children(scene, arm):
    specs = [*scene.two(), child("c", scene.reads, drain=1)]
    async with open_supervisor(specs) as sup:
        scene.supervisors.append(sup)
        await wait_all_tasks_blocked()
        arm()


async def error(scene, arm):
    async with open_supervisor(scene.two()) as sup:
        scene.supervisors.append(sup)
        await wait_all_tasks_blocked()
        arm()
        raise KeyError("body")


async def interrupt(scene, arm):
    scene.leaves = BaseExceptionGroup("body", [KeyError(), KeyboardInterrupt()])
    async with open_supervisor(scene.two()) as sup:
        scene.supervisors.append(sup)
        await wait_all_tasks_blocked()
        arm()
        raise scene.leaves


async def cancelled(scene, arm):
    with trio.CancelScope() as scope:
        async with open_supervisor(scene.two()) as sup:
            scene.supervisors.append(sup)
            await wait_all_tasks_blocked()
            scope.cancel()
            arm()
            await trio.sleep_forever()
        scene.went_on = True


async def cancelled_with_an_error(scene, arm):
    async def fails_late():
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError("late")

    with trio.CancelScope() as scope:
        async with open_supervisor(scene.two()) as sup:
            scene.supervisors.append(sup)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fails_late)
                nursery.start_soon(trio.sleep_forever)
                await wait_all_tasks_blocked()
                scope.cancel()
                arm()
        scene.went_on = True


async def ended_by_themselves(scene, arm):
    specs = [
        child("a", scene.returns, restart="temporary"),
        child("b", scene.returns, restart="transient"),
    ]
    async with open_supervisor(specs) as sup:
        scene.supervisors.append(sup)
        await wait_all_tasks_blocked()
        arm()


async def nested(scene, arm):
    inner = partial(open_supervisor, scene.two())
    specs = [
        child("a", scene.idle),
        child("sub", inner, kind="supervisor"),
        child("z", scene.idle, 1),
    ]
    async with open_supervisor(specs) as sup:
        scene.supervisors.append(sup)
        arm()


async def overflow(scene, arm):
    specs = [child("reads", scene.reads), *scene.two()]
    with pytest.raises(RestartIntensityExceeded):
        async with open_supervisor(specs, intensity=0) as sup:
            scene.supervisors.append(sup)
            await wait_all_tasks_blocked()
            arm()
            sup.which_children()[0].ref.tell(ValueError())
            await trio.sleep_forever()


async def auto_shutdown(scene, arm):
    last = child("last", scene.returns, restart="transient", significant=True)
    specs = [last, *scene.two()]
    async with open_supervisor(specs, auto_shutdown="any_significant") as sup:
        scene.supervisors.append(sup)
        arm()
        await trio.sleep_forever()


async def backoff(scene, arm, strategy):
    waits = child("waits", scene.reads, backoff=Backoff(9, 9))
    async with open_supervisor([waits, *scene.two()], strategy=strategy) as sup:
        scene.supervisors.append(sup)
        await wait_all_tasks_blocked()
        sup.which_children()[0].ref.tell(ValueError())
        await wait_all_tasks_blocked()
        arm()


async def child_interrupted(scene, arm, *others):
    scene.leaves = KeyboardInterrupt("child")

    async def bad(ctx):
        await trio.sleep(1)
        raise scene.leaves

    async with open_supervisor([child("bad", bad), *others]) as sup:
        scene.supervisors.append(sup)
        await wait_all_tasks_blocked()
        arm()
        await trio.sleep_forever()


async def child_interrupted_beside_others(scene, arm):
    await child_interrupted(scene, arm, *scene.two())


async def pool(scene, arm):
    async with open_dynamic_supervisor(child("one", scene.idle, 1)) as sup:
        scene.supervisors.append(sup)
        sup.events.subscribe(1)
        for _ in range(3):
            await sup.start_child()
        arm()


async def a_start_under_way(scene, arm):
    late = child("late", scene.late, wait_started=True)
    async with open_supervisor(scene.two()) as sup:
        scene.supervisors.append(sup)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sup.start_child, late)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            arm()


LEAVING = [
    empty,
    children,
    error,
    interrupt,
    cancelled,
    cancelled_with_an_error,
    ended_by_themselves,
    nested,
    overflow,
    auto_shutdown,
    partial(backoff, strategy="one_for_one"),
    partial(backoff, strategy="one_for_all"),
    child_interrupted,
    child_interrupted_beside_others,
    pool,
    a_start_under_way,
]


async def opened(scene, arm):
    late = child("late", scene.late, wait_started=True)
    done = child("done", scene.returns, restart="temporary")
    arm()
    async with open_supervisor([*scene.two(), late, done]) as sup:
        scene.supervisors.append(sup)


async def opened_nested(scene, arm):
    inner = partial(open_supervisor, scene.two())
    arm()
    async with open_supervisor(
        [child("a", scene.idle), child("sub", inner, kind="supervisor")]
    ) as sup:
        scene.supervisors.append(sup)


async def opened_in_vain(scene, arm):
    async def fails(ctx):
        raise ValueError

    arm()
    try:
        async with open_supervisor(
            [*scene.two(), child("fails", fails, wait_started=True)]
        ):
            raise AssertionError("entered")  # pragma: no cover
    except SupervisorError:
        pass


async def opened_and_cancelled(scene, arm):
    late = child("late", scene.late, wait_started=True)
    arm()
    with trio.move_on_after(0.5):
        async with open_supervisor([*scene.two(), late]):
            raise AssertionError("entered")  # pragma: no cover
        scene.went_on = True


async def opened_pool(scene, arm):
    arm()
    async with open_dynamic_supervisor(child("one", scene.idle, 1)) as sup:
        scene.supervisors.append(sup)
        await sup.start_child()


ENTERING = [
    opened,
    opened_nested,
    opened_in_vain,
    opened_and_cancelled,
    opened_pool,
]


def name(scene):
    if isinstance(scene, partial):
        return f"{scene.func.__name__}-{scene.keywords['strategy']}"
    return scene.__name__


def all_of(error):
    """The error, those in it, and those behind it."""
    found, rest = [], [error]
    while rest:
        one = rest.pop()
        if one is None or one in found:
            continue
        found.append(one)
        rest += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            rest += one.exceptions
    return found


def run(perform, strike, caplog):
    """Run a scene under the blow, and check what it comes to."""
    scene = Scene()
    caplog.clear()

    async def main():
        task = trio.lowlevel.current_task()
        living = trio.lowlevel.current_statistics().tasks_living
        came_out = None
        try:
            await perform(scene, strike.arm)
        except BaseException as error:
            came_out = error
        finally:
            sys.setprofile(None)
        assert scene.up == set()
        assert task.child_nurseries == []
        assert trio.lowlevel.current_statistics().tasks_living == living
        assert trio.current_time() < HUNG
        for sup in scene.supervisors:
            with trio.fail_after(1):
                await sup.wait()
            assert sup.exit is not None
        # No scope is left in which the task would be cancelled, or alone.
        with trio.CancelScope() as scope:
            scope.cancel()
            await trio.sleep(1)
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
        if scene.leaves is not None:
            assert came_out is scene.leaves
        if strike.where:
            assert not scene.went_on
            # A reader that could not be told of an event is told of a gap.
            if strike.where[0].co_qualname != "Subscription.offer":
                if isinstance(strike.error, KeyboardInterrupt):
                    assert came_out is strike.error
                logged = [r.exc_info[1] for r in caplog.records if r.exc_info]
                assert strike.error in [*all_of(came_out), *logged]
        for found in all_of(came_out):
            assert "corrupted" not in str(found)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def hung(*_):
    raise RuntimeError("hung")


@pytest.fixture
def alarm():
    """A run that hangs has no checkpoint left at which it could be cancelled."""
    before = signal.signal(signal.SIGALRM, hung)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


SCENES = [
    *[pytest.param("Block.__aexit__", scene, id=name(scene)) for scene in LEAVING],
    *[pytest.param("Block.__aenter__", scene, id=name(scene)) for scene in ENTERING],
]


def sweep(root, perform, blow, times, caplog):
    caplog.set_level(logging.ERROR, "supervisor")
    signal.alarm(60)
    at = 0
    while True:
        at += 1
        strike = Strike(root, at, blow("struck"), times)
        try:
            run(perform, strike, caplog)
        except BaseException as error:
            places = [code.co_qualname for code in strike.where]
            error.add_note(f"struck in call {at}, in {places}")
            raise
        if not strike.where:
            break
    assert at >= 8, "the root has another name now, or does nothing"


@pytest.mark.parametrize(
    ("blow", "times"),
    [
        pytest.param(MemoryError, 1, id="once"),
        pytest.param(RecursionError, 2, id="twice"),
    ],
)
@pytest.mark.parametrize(("root", "perform"), SCENES)
def test_a_block_is_left_wherever_it_is_struck(
    root, perform, blow, times, caplog, alarm
):
    """P1, P10: no child stays behind, no nursery stays open, the error comes out
    or stands behind what does, and the program can go on."""
    sweep(root, perform, blow, times, caplog)


@pytest.mark.parametrize(
    ("root", "perform"),
    [
        ("Block.__aexit__", children),
        ("Block.__aexit__", cancelled),
        ("Block.__aenter__", opened),
    ],
)
def test_an_interrupt_in_the_same_places_comes_out(root, perform, caplog, alarm):
    """P10: none can, since blocks are protected from Ctrl+C; a signal handler's
    own may."""
    sweep(root, perform, KeyboardInterrupt, 1, caplog)


async def starts(sup, late):
    await sup.start_child(late)


async def starts_again(sup, late):
    await sup.start_child(late)
    await sup.terminate_child("late")
    await sup.restart_child("late")


async def starts_one(sup, late):
    await sup.start_child()


async def starts_one_without_waiting(sup, late):
    sup.start_child_nowait()
    await wait_all_tasks_blocked()


@pytest.mark.parametrize(
    ("root", "start", "is_pool"),
    [
        ("Supervisor.start_child", starts, False),
        ("Supervisor.restart_child", starts_again, False),
        ("DynamicSupervisor.start_child", starts_one, True),
        ("DynamicSupervisor.start_child_nowait", starts_one_without_waiting, True),
    ],
)
def test_a_start_that_is_struck_keeps_nothing_and_can_be_made_again(
    root, start, is_pool, caplog, alarm
):
    """P1: nor does what it has begun run on; a child that was to start again is
    stopped, as before."""

    async def in_a_block(scene, arm):
        late = child("late", scene.late, wait_started=True)
        async with (
            open_dynamic_supervisor(late) if is_pool else open_supervisor()
        ) as sup:
            scene.supervisors.append(sup)
            arm()
            struck = None
            try:
                await start(sup, late)
            except MemoryError as error:
                struck = error
            await wait_all_tasks_blocked()
            if struck is not None:
                again = start is starts_again
                assert [c.state for c in sup.which_children()] == ["stopped"] * again
                assert sup.count_children().active == 0
                assert scene.up == set()
                await (sup.restart_child("late") if again else start(sup, late))
                await trio.sleep(2)
            assert [c.state for c in sup.which_children()] == ["running"]
            if struck is not None:
                raise struck

    sweep(root, in_a_block, MemoryError, 1, caplog)
