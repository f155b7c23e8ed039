"""The block: what comes out of it, and when it ends by itself."""

# A block may end early, a started value be anything: here they are what they are.
# pyright: reportPossiblyUnboundVariable=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors import Completed, Failed, Ignore, Stopped
from supervisor.simulation import Fault, Tape, simulate
from supervisor.tree import (
    Backoff,
    RestartIntensityExceeded,
    StartFailed,
    SupervisorError,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)


async def member(ctx, journal):
    journal.append(f"+{ctx.id}")
    try:
        async for message in ctx.mailbox:
            if isinstance(message, BaseException):
                raise message
            if message == "return":
                return
    finally:
        journal.append(f"-{ctx.id}")


def refs(sup):
    return {info.id: info.ref for info in sup.which_children()}


def states(sup):
    return {info.id: info.state for info in sup.which_children()}


BLOCKS = [open_supervisor, open_dynamic_supervisor]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        ExceptionGroup("g", [ValueError(), ExceptionGroup("h", [KeyError()])]),
        KeyboardInterrupt(),
        SystemExit(3),
        BaseExceptionGroup("g", [KeyboardInterrupt(), ValueError()]),
        StopAsyncIteration(),
    ],
    ids=repr,
)
async def test_an_error_of_the_body_comes_out_unwrapped(block, error):
    """The very object, with nothing added, after the children have ended."""
    with pytest.raises(type(error)) as caught:
        async with block() as sup:
            await sup.start_child(child("a", member, []))
            raise error
    assert caught.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert sup.count_children().active == 0
    assert sup.exit == Stopped("owner")


async def test_an_error_beside_a_cancellation_comes_out_of_the_cancelled_scope():
    """P10: a cancelled body that fails while it cleans up has failed."""
    with trio.CancelScope() as scope:
        with pytest.raises(ValueError, match="cleanup"):
            async with open_supervisor([child("a", member, [])]):
                scope.cancel()
                try:
                    await trio.sleep_forever()
                finally:
                    raise ValueError("cleanup")


async def test_a_group_that_holds_a_cancellation_loses_only_that():
    """A nursery in the body: its error passes the block, the Cancelled its scope."""

    async def fail_late():
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("cleanup")

    with trio.CancelScope() as scope:
        with pytest.raises(ExceptionGroup) as caught:
            with trio.CancelScope() as middle:
                async with open_supervisor([child("a", member, [])]):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(fail_late)
                        nursery.start_soon(trio.sleep_forever)
                        await wait_all_tasks_blocked()
                        middle.cancel()
    assert [type(e) for e in caught.value.exceptions] == [ValueError]
    assert not scope.cancelled_caught


@pytest.mark.parametrize("block", BLOCKS)
async def test_an_outer_cancellation_passes_through(block):
    """It reaches its own scope, after the children have ended."""
    with trio.CancelScope() as outer, trio.CancelScope() as inner:
        async with block() as sup:
            await sup.start_child(child("a", member, []))
            outer.cancel()
            await trio.sleep_forever()
    assert outer.cancelled_caught
    assert not inner.cancelled_caught
    assert sup.exit == Stopped("owner")


async def test_a_cancellation_during_the_stop_does_not_cut_it_short(autojump_clock):
    """P1: the rest of the stop is waited for, and then it passes."""

    async def slow(ctx):
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(4)

    with trio.move_on_after(2) as scope:
        async with open_supervisor([child("a", slow)]) as sup:
            pass
        await trio.lowlevel.checkpoint()
    assert trio.current_time() == 4
    assert scope.cancelled_caught
    assert states(sup) == {"a": "stopped"}


async def test_the_block_can_be_left_with_a_value():
    """Return and break work as in any block."""

    async def first():
        async with open_supervisor([child("a", member, [])]) as sup:
            return sup

    assert (await first()).exit == Stopped("owner")


async def crash_too_often(sup, id="a"):
    refs(sup)[id].tell(ValueError("child"))
    await trio.sleep_forever()


async def test_an_overflow_comes_out_unwrapped():
    """RestartIntensityExceeded, not in a group, with the last failures."""
    with pytest.raises(RestartIntensityExceeded) as caught:
        async with open_supervisor([child("a", member, [])], intensity=0) as sup:
            await crash_too_often(sup)
    assert caught.value.failures == (("a", "ValueError('child')"),)
    assert str(caught.value.__cause__) == "child"
    assert sup.exit == Failed(caught.value)


async def test_an_overflow_and_an_error_of_the_body():
    """RestartIntensityExceeded with the body's error as its cause."""
    with pytest.raises(RestartIntensityExceeded) as caught:
        async with open_supervisor([child("a", member, [])], intensity=0) as sup:
            try:
                await crash_too_often(sup)
            finally:
                raise KeyError("body")
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.failures == (("a", "ValueError('child')"),)


async def test_an_overflow_and_an_interrupt_of_the_body():
    """P10: KeyboardInterrupt is not hidden behind the overflow."""
    with pytest.raises(KeyboardInterrupt):
        async with open_supervisor([child("a", member, [])], intensity=0) as sup:
            try:
                await crash_too_often(sup)
            finally:
                raise KeyboardInterrupt


async def test_an_overflow_and_an_outer_cancellation():
    """P10: the overflow is not lost in the cancellation."""
    with trio.CancelScope() as scope:
        with pytest.raises(RestartIntensityExceeded):
            async with open_supervisor([child("a", member, [])], intensity=0) as sup:
                try:
                    await crash_too_often(sup)
                finally:
                    scope.cancel()


async def test_an_overflow_while_opening_comes_from_the_async_with_itself():
    """The body is not entered; those already started are stopped in order."""
    journal = []

    async def crash(ctx):
        journal.append("+crash")
        raise ValueError

    async def slow(ctx):
        await trio.sleep_forever()

    with pytest.raises(RestartIntensityExceeded):
        async with open_supervisor(
            [
                child("a", member, journal),
                child("b", member, journal),
                child("crash", crash),
                child("slow", slow, wait_started=True),
                child("never", member, journal),
            ],
            intensity=2,
        ):
            raise AssertionError("entered")  # pragma: no cover
    assert sorted(journal[:5]) == ["+a", "+b", "+crash", "+crash", "+crash"]
    assert journal[5:] == ["-b", "-a"]


async def test_an_auto_shutdown_while_opening_lets_the_body_in_already_cancelled():
    """What is left of the list is not started, and there is no error."""
    journal = []

    async def short(ctx):
        pass

    async def slow(ctx):
        await trio.sleep_forever()

    entered = []
    async with open_supervisor(
        [
            child("a", member, journal),
            child("short", short, restart="transient", significant=True),
            child("slow", slow, wait_started=True),
            child("never", member, journal),
        ],
        auto_shutdown="any_significant",
    ) as sup:
        entered.append(states(sup))
        await trio.lowlevel.checkpoint()
        raise AssertionError("not cancelled")  # pragma: no cover
    assert entered == [{"a": "running", "short": "stopped"}]
    assert journal == ["+a", "-a"]
    assert sup.exit == Stopped("auto_shutdown", "short")


@pytest.mark.parametrize("restart", ["transient", "temporary"])
async def test_an_auto_shutdown_ends_the_block_without_an_error(restart):
    """B44: and `sup.exit` tells who ended it."""
    journal = []
    async with open_supervisor(
        [
            child("a", member, journal),
            child("s", member, journal, restart=restart, significant=True),
            child("b", member, journal),
        ],
        auto_shutdown="any_significant",
    ) as sup:
        refs(sup)["s"].tell("return")
        await sup.wait()
        raise AssertionError("not cancelled")  # pragma: no cover
    assert journal == ["+a", "+s", "+b", "-s", "-b", "-a"]
    assert sup.exit == Stopped("auto_shutdown", "s")


async def test_auto_shutdown_never_is_never():
    """B44: the other children may end as they like."""
    async with open_supervisor([child("s", member, [], restart="transient")]) as sup:
        refs(sup)["s"].tell("return")
        await wait_all_tasks_blocked()
        assert sup.exit is None


async def test_all_significant_waits_for_the_last_active_one():
    """B44: also for one that is about to be restarted; not for one that was
    terminated."""
    specs = [
        child(id, member, [], restart="transient", significant=True)
        for id in ("a", "b", "c", "d")
    ]
    specs.append(child("other", member, []))
    async with open_supervisor(
        specs, auto_shutdown="all_significant", intensity=9
    ) as sup:
        for id in ("a", "b"):
            refs(sup)[id].tell("return")
            await wait_all_tasks_blocked()
            assert sup.exit is None
        await sup.terminate_child("c")
        refs(sup)["d"].tell(ValueError("restart me"))
        await wait_all_tasks_blocked()
        assert states(sup)["d"] == "running"
        refs(sup)["d"].tell("return")
        await trio.sleep_forever()
    assert sup.exit == Stopped("auto_shutdown", "d")


@pytest.mark.parametrize("mode", ["any_significant", "all_significant"])
@pytest.mark.parametrize(
    ("restart", "message", "ends"),
    [
        ("transient", "return", True),
        ("transient", ValueError("x"), False),
        ("temporary", "return", True),
        ("temporary", ValueError("x"), True),
    ],
)
async def test_which_ends_qualify(mode, restart, message, ends):
    """B45: a transient child's normal end, a temporary one's any end."""
    with trio.move_on_after(5):
        async with open_supervisor(
            [child("s", member, [], restart=restart, significant=True)],
            auto_shutdown=mode,
        ) as sup:
            refs(sup)["s"].tell(message)
            await wait_all_tasks_blocked()
    assert sup.exit == (Stopped("auto_shutdown", "s") if ends else Stopped("owner"))


@pytest.mark.parametrize("mode", ["any_significant", "all_significant"])
@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one", "one_for_all"])
@pytest.mark.parametrize("restart", ["transient", "temporary"])
async def test_what_does_not_qualify(mode, strategy, restart):
    """B46: terminate_child, a sibling's strategy, a child that is not significant."""
    specs = [
        child("crash", member, []),
        child("plain", member, [], restart="transient"),
        child("s", member, [], restart=restart, significant=True),
        child("t", member, [], restart=restart, significant=True),
    ]
    async with open_supervisor(specs, auto_shutdown=mode, strategy=strategy) as sup:
        refs(sup)["plain"].tell("return")
        await wait_all_tasks_blocked()
        await sup.terminate_child("s")
        refs(sup)["crash"].tell(ValueError())
        await wait_all_tasks_blocked()
        assert sup.exit is None
        assert states(sup)["crash"] == "running"
        # The block is not cancelled.
        await trio.lowlevel.checkpoint()
    assert sup.exit == Stopped("owner")


@pytest.mark.parametrize("significant", [True, False])
async def test_an_auto_shutdown_cascades_through_a_significant_supervisor(significant):
    """B47: its end is normal: a significant transient slot takes the parent
    down too; another one stays down, and the parent lives."""
    inner = partial(
        open_supervisor,
        [child("s", member, [], restart="transient", significant=True)],
        auto_shutdown="any_significant",
    )
    outer = open_supervisor(
        [
            child(
                "sub",
                inner,
                kind="supervisor",
                restart="transient",
                significant=significant,
            )
        ],
        auto_shutdown="any_significant",
    )
    async with outer as sup:
        sub = refs(sup)["sub"]
        refs(sub.started_value)["s"].tell("return")
        await wait_all_tasks_blocked()
        if significant:
            await trio.sleep_forever()
        assert states(sup) == {"sub": "stopped"}
        assert sup.exit is None
    assert sub.started_value.exit == Stopped("auto_shutdown", "s")
    assert sup.exit == (
        Stopped("auto_shutdown", "sub") if significant else Stopped("owner")
    )


async def test_a_supervisor_is_a_child_by_open_supervisor_itself_or_a_partial():
    """Its handle is `ref.started_value`, a new one after each restart."""
    specs = [
        child("one", open_supervisor, [child("a", member, [])], kind="supervisor"),
        child(
            "two", partial(open_dynamic_supervisor, max_children=1), kind="supervisor"
        ),
    ]
    async with open_supervisor(specs, name="top") as sup:
        one, two = refs(sup)["one"], refs(sup)["two"]
        assert states(one.started_value) == {"a": "running"}
        await two.started_value.start_child(child("x", member, []))
        assert [info.kind for info in sup.which_children()] == ["supervisor"] * 2
        assert sup.count_children().supervisors == 2
        assert (one.started_value.path, two.started_value.path) == (
            "top/one",
            "top/two",
        )
        first = one.started_value
        one.stop()
        await wait_all_tasks_blocked()
        assert first.exit == Stopped("owner")
        assert one.started_value is not first
        assert states(one.started_value) == {"a": "running"}


async def test_a_supervisor_that_fails_to_start_is_a_failed_start():
    """B9: the error of its child is the cause of the cause."""

    async def bad(ctx):
        raise ValueError("leaf")

    inner = partial(open_supervisor, [child("leaf", bad, wait_started=True)])
    with pytest.raises(StartFailed) as caught:
        async with open_supervisor([child("sub", inner, kind="supervisor")]):
            raise AssertionError("entered")  # pragma: no cover
    assert caught.value.child_id == "sub"
    assert isinstance(caught.value.__cause__, StartFailed)
    assert str(caught.value.__cause__.__cause__) == "leaf"


async def test_any_context_manager_can_be_a_supervisor_child(autojump_clock):
    """`start(*args)` makes the block, whatever it is made of."""
    from contextlib import asynccontextmanager

    closed = []

    @asynccontextmanager
    async def service(name):
        try:
            yield name.upper()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            closed.append(name)

    async with open_supervisor([child("s", service, "x", kind="supervisor")]) as sup:
        assert refs(sup)["s"].started_value == "X"
    assert closed == ["x"]


async def test_a_nested_supervisor_stops_within_its_turn(autojump_clock):
    """B36, P8: a subtree is down before the sibling before it is told."""
    journal = []

    async def slow(ctx):
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            journal.append((ctx.id, trio.current_time()))

    inner = partial(open_supervisor, [child("x", slow), child("y", slow)])
    with trio.CancelScope() as scope:
        async with open_supervisor(
            [child("a", slow), child("sub", inner, kind="supervisor"), child("z", slow)]
        ):
            scope.cancel()
            await trio.sleep_forever()
    assert journal == [("z", 1), ("y", 2), ("x", 3), ("a", 4)]


async def test_the_exit_of_an_actor_with_a_supervisor_of_its_own():
    """An actor may open a supervisor in its function; it is the parent's child
    like any other, and its supervisor has its path."""
    paths = []

    async def agent(ctx):
        async with open_supervisor([child("tool", member, [])], name="tasks") as sup:
            paths.append(sup.path)
            async for _ in ctx.mailbox:
                break
        return "done"

    async with open_supervisor(
        [child("agent", agent, restart="transient")], name="top"
    ) as sup:
        ref = refs(sup)["agent"]
        assert paths == []
        await wait_all_tasks_blocked()
        assert paths == ["top/tasks"]
        ref.tell("go")
        assert await ref.wait_stopped() == Completed("done")


@pytest.mark.parametrize("second", ["runs", "ends", "declines", "temporary"])
async def test_all_significant_waits_for_those_still_to_be_started(
    second, autojump_clock
):
    """B44: a quick first child is not the last one while the list is being
    started; whether it was is known when the list is complete."""
    started = []

    async def quick(ctx):
        ctx.started()

    async def slow(ctx):
        await trio.sleep(1)
        started.append(ctx.id)
        if second == "declines":
            raise Ignore
        ctx.started()
        if second == "runs":
            await trio.sleep(10)

    options = {"wait_started": True, "significant": True}
    specs = [
        child("quick", quick, restart="transient", **options),
        child("plain", member, []),
        child(
            "slow",
            slow,
            restart="temporary" if second == "temporary" else "transient",
            **options,
        ),
    ]
    async with open_supervisor(specs, auto_shutdown="all_significant") as sup:
        await trio.sleep_forever()
    assert started == ["slow"]
    assert trio.current_time() == (11 if second == "runs" else 1)
    last = "quick" if second == "declines" else "slow"
    assert sup.exit == Stopped("auto_shutdown", last)


async def quick(ctx):
    """Up at once, and ends by itself at 1."""
    ctx.started()
    await trio.sleep_until(1)


async def comes_to(ctx, outcome):
    """The first start is over at 2 and comes to ``outcome``."""
    if ctx.number == 1:
        await trio.sleep_until(2)
    if outcome == "declines":
        raise Ignore
    if outcome == "fails":
        raise ValueError("not today")
    if outcome == "returns":
        return
    if outcome != "hangs":
        ctx.started()
    await trio.sleep_forever()


LAST = {"restart": "transient", "significant": True, "wait_started": True}
UNDER_ALL = {"auto_shutdown": "all_significant", "intensity": 9}


@pytest.mark.parametrize(
    ("outcome", "ended_by"),
    [
        ("declines", None),
        ("fails", None),
        ("returns", None),
        ("hangs", "cancelled"),
        ("hangs", "terminated"),
        ("hangs", "stopped"),
    ],
)
@pytest.mark.parametrize("again", [False, True], ids=["start", "restart"])
async def test_all_significant_asks_again_when_a_start_comes_to_nothing(
    again, outcome, ended_by, autojump_clock
):
    """B44: a significant child that ends while another one is being started is
    the last one if that never comes up, for whatever reason."""
    starts = 0

    async def second(ctx):
        nonlocal starts
        starts += 1
        if again and starts == 1:
            ctx.started()
            await trio.sleep_forever()
        if again:
            await trio.sleep_until(2)
        await comes_to(ctx, outcome)

    specs = [child("quick", quick, **LAST), child("plain", member, [])]
    late = child("late", second, **LAST)
    with trio.fail_after(60):
        async with open_supervisor(specs, **UNDER_ALL) as sup, trio.open_nursery() as n:
            if again:
                await sup.start_child(late)
                await sup.terminate_child("late")

            async def ask():
                with trio.move_on_at(2 if ended_by == "cancelled" else math.inf):
                    with suppress(SupervisorError):
                        await (
                            sup.restart_child("late")
                            if again
                            else sup.start_child(late)
                        )

            n.start_soon(ask)
            await trio.sleep_until(1.5)
            assert sup.exit is None
            assert states(sup)["quick"] == "stopped"
            await trio.sleep_until(2)
            if ended_by == "terminated":
                await sup.terminate_child("late")
            elif ended_by == "stopped":
                refs(sup)["late"].stop()
            await trio.sleep_forever()
    assert sup.exit == Stopped("auto_shutdown", "quick")
    assert trio.current_time() == 2


async def test_all_significant_asks_again_when_a_restart_declines(autojump_clock):
    """B30, B44: also the automatic restart, after a backoff or in the middle."""

    async def crashes(ctx):
        if ctx.number > 1:
            raise Ignore
        ctx.started()
        raise ValueError

    specs = [
        child("quick", quick, **LAST),
        child("late", crashes, backoff=Backoff(2, 2), **LAST),
    ]
    with trio.fail_after(60):
        async with open_supervisor(specs, **UNDER_ALL) as sup:
            await trio.sleep_forever()
    assert sup.exit == Stopped("auto_shutdown", "quick")
    assert trio.current_time() == 2


async def test_all_significant_lives_on_with_whoever_came_up_since(autojump_clock):
    """B44, B46: then the earlier end was not the last, whatever becomes of it; nor
    if one that was on its way back is terminated."""

    async def crashes(ctx):
        ctx.started()
        raise ValueError

    specs = [child("quick", quick, **LAST)]
    with trio.move_on_after(60):
        async with open_supervisor(specs, **UNDER_ALL) as sup:
            await sup.start_child(child("late", comes_to, "runs", **LAST))
            await sup.terminate_child("late")
            with pytest.raises(StartFailed):
                await sup.start_child(child("third", comes_to, "fails", **LAST))
            await trio.sleep(1)
            assert sup.exit is None
    assert sup.exit == Stopped("owner")
    waits = child("waits", crashes, backoff=Backoff(99, 99), **LAST)
    began = trio.current_time()

    async def one_second(ctx):
        ctx.started()
        await trio.sleep_until(began + 1)

    with trio.move_on_after(60):
        async with open_supervisor(
            [child("quick", one_second, **LAST), waits], **UNDER_ALL
        ) as sup:
            await trio.sleep(2)
            assert states(sup) == {"quick": "stopped", "waits": "restarting"}
            await sup.terminate_child("waits")
            await trio.sleep(1)
            assert sup.exit is None
    assert sup.exit == Stopped("owner")


CHILDREN = 12
"""Each takes as many seconds to stop as its id says."""


async def stops_slow_children(open_block, body, opened, ended):
    async def slow(ctx, seconds):
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)
            ended.append(seconds)

    with trio.CancelScope() as scope:
        async with open_block() as sup:
            opened.append(sup)
            for seconds in range(CHILDREN, 0, -1):
                await sup.start_child(child(f"{seconds}", slow, seconds))
            if body == "is cancelled":
                scope.cancel()
            if body == "fails":
                raise KeyError("body")


@pytest.mark.parametrize("blows", [1, 3, 9, 10])
@pytest.mark.parametrize("error", [MemoryError, RecursionError, ValueError])
@pytest.mark.parametrize("body", ["ends", "fails", "is cancelled"])
@pytest.mark.parametrize("open_block", BLOCKS)
def test_an_error_that_strikes_while_the_children_stop_leaves_none(
    blows, error, body, open_block
):
    """P1, P10: the children end all the same, in order, and it comes out, also if
    it strikes again and again, at whichever of the block's waits it begins."""

    async def program(sim):
        opened, ended = [], []
        try:
            await sim.target(stops_slow_children)(open_block, body, opened, ended)
        finally:
            assert ended == list(range(1, CHILDREN + 1))
            (sup,) = opened
            assert {info.state for info in sup.which_children()} <= {"stopped"}
            assert sup.exit == Stopped("owner")

    # It waits once for each child that it has started, if that is not struck before.
    for first in range(CHILDREN + 1, 2 * CHILDREN + 2 - blows):
        faults = [
            Fault(
                "raise",
                "stops_slow_children",
                "blocked",
                first + n,
                f"builtins:{error.__name__}",
            )
            for n in range(blows)
        ]
        run = simulate(program, tape=Tape(faults=tuple(faults)))
        assert len(run.thrown) == blows
        assert run.error is run.thrown[0]
        if body == "fails":
            assert repr(run.error.__cause__) == "KeyError('body')"
        assert run.findings == []
