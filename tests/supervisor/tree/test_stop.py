"""Stopping: order, budgets, stragglers, interrupts, deadlocks."""

# A block may end early, a started value be anything: here they are what they are.
# pyright: reportPossiblyUnboundVariable=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

import signal
from functools import partial

import pytest
import trio
from trio.lowlevel import enable_ki_protection
from trio.testing import MockClock, wait_all_tasks_blocked

from actors import ActorStopping, Completed, Failed, Stopped
from supervisor.tree import (
    Backoff,
    ChildExited,
    ChildNotFound,
    StillRunning,
    Straggler,
    WouldDeadlock,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)


async def idle(ctx):
    await trio.sleep_forever()


async def slow_end(ctx, journal, seconds):
    """Needs its time for cleaning up, and says when it is told and when it is through."""
    try:
        await trio.sleep_forever()
    finally:
        journal.append((f"told {ctx.id}", trio.current_time()))
        with trio.CancelScope(shield=True):
            await trio.sleep(seconds)
        journal.append((f"gone {ctx.id}", trio.current_time()))


def states(sup):
    return {info.id: info.state for info in sup.which_children()}


def refs(sup):
    return {info.id: info.ref for info in sup.which_children()}


ORDER = [
    ("told c", 0), ("gone c", 1), ("told b", 1), ("gone b", 3), ("told a", 3), ("gone a", 7),
]  # fmt: skip


async def leave(sup):
    pass


async def leave_by_cancel(sup):
    await trio.sleep_forever()


async def leave_by_error(sup):
    raise ValueError("body")


async def leave_by_interrupt(sup):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("body", "by"),
    [
        (leave, "supervisor"),
        (leave_by_cancel, "outer"),
        (leave_by_error, "supervisor"),
        (leave_by_interrupt, "supervisor"),
    ],
)
async def test_static_children_stop_in_reverse_one_by_one(body, by, autojump_clock):
    """B36, P8: each with its own budget, the next one only when the one before
    has gone, whatever ends the block."""
    journal = []
    specs = [
        child(id, slow_end, journal, seconds, shutdown=seconds + 0.5)
        for id, seconds in (("a", 4), ("b", 2), ("c", 1))
    ]
    error = None
    with trio.CancelScope() as scope:
        try:
            async with open_supervisor(specs) as sup:
                with sup.events.subscribe() as events:
                    ends = refs(sup)
                    if body is leave_by_cancel:
                        scope.cancel()
                    await body(sup)
        except (ValueError, KeyboardInterrupt) as caught:
            error = caught
    assert journal == ORDER
    assert not any(isinstance(e, Straggler) for e in events.drain())
    assert {
        id: (await ref.wait_exit()).by for id, ref in ends.items()
    } == dict.fromkeys("abc", by)
    assert scope.cancelled_caught is (body is leave_by_cancel)
    assert type(error) is {
        leave_by_error: ValueError, leave_by_interrupt: KeyboardInterrupt,
    }.get(body, type(None))  # fmt: skip
    assert sup.exit == Stopped("owner")


@pytest.mark.parametrize("outer", [False, True])
async def test_dynamic_children_stop_together(outer, autojump_clock):
    """B36, P8: all are told at once, and share the time."""
    journal = []
    with trio.CancelScope() as scope:
        async with open_dynamic_supervisor() as sup:
            for id, seconds in (("a", 4), ("b", 2), ("c", 1)):
                await sup.start_child(child(id, slow_end, journal, seconds))
            if outer:
                scope.cancel()
                await trio.sleep_forever()
    assert {entry for entry in journal if entry[0].startswith("told")} == {
        ("told a", 0), ("told b", 0), ("told c", 0),
    }  # fmt: skip
    assert journal[3:] == [("gone c", 1), ("gone b", 2), ("gone a", 4)]
    assert sup.which_children() == []


async def test_a_dynamic_supervisor_reports_each_after_its_own_budget(autojump_clock):
    """B36, P1: one deadline for those with equal budgets, then every 30 s,
    also beside a child that may take for ever."""
    journal = []
    async with open_dynamic_supervisor() as sup:
        for id, seconds, shutdown in (
            ("a", 100, 5), ("b", 100, 5), ("c", 50, 1), ("free", 200, "infinity"), ("quick", 0, 9),
        ):  # fmt: skip
            await sup.start_child(
                child(id, slow_end, journal, seconds, shutdown=shutdown)
            )
        events = sup.events.subscribe()
    reports = [(e.time, e.child) for e in events.drain() if isinstance(e, Straggler)]
    assert sorted(reports) == [
        (1, "c"), (5, "a"), (5, "b"), (31, "c"), (35, "a"), (35, "b"),
        (65, "a"), (65, "b"), (95, "a"), (95, "b"),
    ]  # fmt: skip
    assert trio.current_time() == 200


async def test_a_straggler_is_reported_at_its_deadline_and_every_30_seconds(
    autojump_clock, caplog
):
    """B37, P1: with its name and where it hangs, and it is waited for. OTP's
    kill does not exist in trio: deviation."""

    async def stubborn(ctx):
        with trio.CancelScope(shield=True):
            await trio.sleep(100)

    async with open_supervisor(
        [child("stubborn", stubborn, shutdown=5)], name="sup"
    ) as sup:
        events = sup.events.subscribe()
    assert trio.current_time() == 100
    reports = [e for e in events.drain() if isinstance(e, Straggler)]
    assert [e.time for e in reports] == [5, 35, 65, 95]
    assert [e.waited for e in reports] == [5, 35, 65, 95]
    for event in reports:
        assert event.child == "stubborn"
        assert event.supervisor == "sup"
        assert "in test_a_straggler" in event.stack
        assert "stubborn" in event.stack
    assert (
        sum("sup/stubborn has not ended" in r.getMessage() for r in caplog.records) == 4
    )


async def test_infinity_means_no_report(autojump_clock):
    """B37: also for a worker."""
    journal = []
    spec = child("a", slow_end, journal, 1000, shutdown="infinity")
    async with open_supervisor([spec]) as sup:
        events = sup.events.subscribe()
    assert trio.current_time() == 1000
    assert not any(isinstance(e, Straggler) for e in events.drain())


@pytest.mark.parametrize("shutdown", ["brutal_kill", 0])
async def test_no_budget_reports_only_what_does_not_end(shutdown, autojump_clock):
    """B37, B3: cancelled at once; one that only has to unwind is no straggler,
    however many tasks it has; one under a shield is."""
    journal = []

    async def unwinds(ctx):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(trio.sleep_forever)

    specs = [
        child("stuck", slow_end, journal, 10, shutdown=shutdown),
        child("unwinds", unwinds, shutdown=shutdown),
    ]
    async with open_supervisor(specs) as sup:
        events = sup.events.subscribe()
        await sup.terminate_child("unwinds")
        assert states(sup)["unwinds"] == "stopped"
    reports = [e for e in events.drain() if isinstance(e, Straggler)]
    assert [e.child for e in reports] == ["stuck"]
    assert reports[0].waited < 0.2
    assert trio.current_time() == 10


async def test_terminate_child_gives_up_at_its_budget_and_the_block_does_not(
    autojump_clock,
):
    """StillRunning names it and where it is; it is still a child, waited for at
    the end of the block, and reported again and again until then."""
    journal = []
    async with open_supervisor([child("a", slow_end, journal, 100, shutdown=5)]) as sup:
        events = sup.events.subscribe()
        with pytest.raises(StillRunning) as caught:
            await sup.terminate_child("a")
        assert trio.current_time() == 5
        assert caught.value.child_id == "a"
        assert caught.value.budget == 5
        assert "in slow_end" in caught.value.stack
        assert "'a' is still running 5 s after" in str(caught.value)
        assert states(sup) == {"a": "stopping"}
        await trio.sleep(35)
        with pytest.raises(StillRunning):
            await sup.terminate_child("a")
        assert trio.current_time() == 45
    assert trio.current_time() == 100
    assert states(sup) == {"a": "stopped"}
    assert [e.time for e in events.drain() if isinstance(e, Straggler)] == [
        5,
        35,
        65,
        95,
    ]


async def test_a_straggler_is_reported_also_under_an_outer_cancellation(autojump_clock):
    """P1: the reports outlive what cancels the rest, from the body's cleanup on."""
    journal = []
    with trio.move_on_after(1):
        async with open_supervisor(
            [child("a", slow_end, journal, 50, shutdown=5)]
        ) as sup:
            events = sup.events.subscribe()
            try:
                with pytest.raises(StillRunning):
                    with trio.CancelScope(shield=True):
                        await sup.terminate_child("a")
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(34)
    assert trio.current_time() == 50
    assert [e.time for e in events.drain() if isinstance(e, Straggler)] == [5, 35]


@pytest.mark.parametrize("restart", ["permanent", "transient", "temporary"])
@pytest.mark.parametrize("ending", ["normal", "fails", "swallows"])
async def test_an_odd_end_while_stopping_does_not_stop_the_stop(restart, ending):
    """B38, B40: it is reported if it is a failure, nothing is restarted, and
    the others are stopped as well."""
    starts = []

    async def odd(ctx):
        starts.append(ctx.id)
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            if ending == "fails":
                raise ValueError("while stopping") from None
            if ending == "swallows":
                return
            raise

    specs = [child("a", idle), child("odd", odd, restart=restart), child("z", idle)]
    async with open_supervisor(specs) as sup:
        events = sup.events.subscribe()
        before = refs(sup)
    assert starts == ["odd"]
    exits = {e.child: e for e in events.drain() if isinstance(e, ChildExited)}
    assert exits["odd"].abnormal is (ending == "fails")
    assert exits["odd"].exit == {
        "normal": "stopped", "fails": "failed", "swallows": "completed",
    }[ending]  # fmt: skip
    assert not exits["a"].abnormal
    assert not exits["z"].abnormal
    assert sup.exit == Stopped("owner")
    assert {ref.state for ref in before.values()} == {"stopped"}


async def test_a_child_that_resists_its_cancellation_ends_nevertheless():
    """B39: whatever it does to hide, its end is seen."""

    async def naughty(ctx):
        for _ in range(3):
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                pass
        ctx.mailbox.close()

    async with open_supervisor([child("naughty", naughty)]) as sup:
        await sup.terminate_child("naughty")
        assert states(sup) == {"naughty": "stopped"}


async def test_a_child_that_ends_by_itself_while_the_supervisor_stops_is_not_restarted(
    autojump_clock,
):
    """B40: neither before its own turn nor after."""
    journal = []

    async def fails_at(ctx, when):
        journal.append(f"+{ctx.id}")
        await trio.sleep(when)
        raise ValueError

    specs = [child("a", fails_at, 1), child("b", slow_end, [], 3)]
    async with open_supervisor(specs) as sup:
        before = refs(sup)
    assert journal == ["+a"]
    assert isinstance((await before["a"].wait_exit()), Failed)
    assert sup.exit == Stopped("owner")


async def test_terminating_is_idempotent_for_a_known_id_and_refused_for_others():
    """B41: stopped is fine, unknown is ChildNotFound, and a ref is no id."""
    async with open_supervisor([child("a", idle)]) as sup, open_supervisor() as other:
        await sup.terminate_child("a")
        await sup.terminate_child("a")
        with pytest.raises(ChildNotFound, match="'x'"):
            await sup.terminate_child("x")
        foreign = await other.start_child(child("a", idle))
        with pytest.raises(ChildNotFound):
            await sup.terminate_child(foreign)  # type: ignore[arg-type]
        assert foreign.state == "running"


async def test_a_dynamic_supervisor_terminates_its_own_refs_only():
    """B41: a live reference of somebody else is not found and left alone; nor is
    one of its own found once it is gone: as in Elixir, and a deviation from OTP."""
    async with open_dynamic_supervisor() as sup, open_dynamic_supervisor() as other:
        mine = await sup.start_child(child("a", idle))
        foreign = await other.start_child(child("a", idle))
        for ref in (foreign, "a", None):
            with pytest.raises(ChildNotFound):
                await sup.terminate_child(ref)  # type: ignore[arg-type]
        assert foreign.state == "running"
        await sup.terminate_child(mine)
        assert sup.which_children() == []
        with pytest.raises(ChildNotFound):
            await sup.terminate_child(mine)


async def test_cleaning_up_is_unconditional(autojump_clock):
    """B43: `finally` runs at every stop, and has the budget to itself.
    Deviation: in OTP only for those that trap exits."""
    journal = []
    specs = [child("a", slow_end, journal, 4.9, shutdown=5)]
    async with open_supervisor(specs) as sup:
        events = sup.events.subscribe()
        await sup.terminate_child("a")
        assert journal == [("told a", 0), ("gone a", 4.9)]
        assert not any(isinstance(e, Straggler) for e in events.drain())


async def test_two_that_terminate_the_same_child_both_wait_for_its_end(autojump_clock):
    """The second joins the first."""
    journal = []
    async with open_supervisor([child("a", slow_end, journal, 3)]) as sup:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(sup.terminate_child, "a")
        assert journal == [("told a", 0), ("gone a", 3)]
        assert states(sup) == {"a": "stopped"}


async def test_who_terminates_and_is_cancelled_has_stopped_the_child_nevertheless(
    autojump_clock,
):
    """A stop is a request and a wait: only the wait is given up."""
    journal = []
    async with open_supervisor([child("a", slow_end, journal, 3)]) as sup:
        with trio.move_on_after(1):
            await sup.terminate_child("a")
        assert states(sup) == {"a": "stopping"}
        await trio.sleep(3)
        assert states(sup) == {"a": "stopped"}


async def test_a_child_that_fails_while_it_is_terminated_is_not_restarted():
    """It stays down, whatever its end was."""

    async def fails(ctx):
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("cleanup")

    async with open_supervisor([child("a", fails)]) as sup:
        ref = refs(sup)["a"]
        await sup.terminate_child("a")
        assert isinstance(await ref.wait_stopped(), Failed)
        assert states(sup) == {"a": "stopped"}


async def test_terminating_a_sibling_during_a_group_stop_keeps_it_down(autojump_clock):
    """The one that was terminated is not revived by the restart under way."""
    journal = []

    async def crash(ctx):
        async for _ in ctx.mailbox:
            raise ValueError

    specs = [
        child("a", crash),
        child("b", slow_end, journal, 4),
        child("c", slow_end, journal, 1),
    ]
    async with open_supervisor(specs, strategy="one_for_all") as sup:
        refs(sup)["a"].tell("now")
        await trio.sleep(2)
        assert states(sup) == {"a": "restarting", "b": "stopping", "c": "restarting"}
        await sup.terminate_child("b")
        assert trio.current_time() == 5
        await wait_all_tasks_blocked()
        assert states(sup) == {"a": "running", "b": "stopped", "c": "running"}


async def test_a_group_stop_does_not_revive_what_is_being_terminated(autojump_clock):
    """It comes second, and must not turn the end into a restart."""
    journal = []

    async def crash(ctx):
        async for _ in ctx.mailbox:
            raise ValueError

    specs = [child("a", crash), child("b", slow_end, journal, 4)]
    async with open_supervisor(specs, strategy="one_for_all") as sup:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sup.terminate_child, "b")
            await trio.sleep(1)
            refs(sup)["a"].tell("now")
        await wait_all_tasks_blocked()
        assert trio.current_time() == 4
        assert states(sup) == {"a": "running", "b": "stopped"}


async def test_leaving_during_a_group_restart_starts_nothing_more(autojump_clock):
    """The group restart is given up, and everybody is stopped in order."""
    journal = []

    async def crash(ctx):
        journal.append("+a")
        async for _ in ctx.mailbox:
            raise ValueError

    specs = [
        child("a", crash),
        child("b", slow_end, journal, 4),
        child("c", slow_end, journal, 1),
    ]
    async with open_supervisor(specs, strategy="one_for_all") as sup:
        refs(sup)["a"].tell("now")
        await trio.sleep(2)
    assert journal == [
        "+a", ("told c", 0), ("gone c", 1), ("told b", 1), ("gone b", 5),
    ]  # fmt: skip
    assert set(states(sup).values()) == {"stopped"}


async def test_leaving_during_a_backoff_waits_for_nothing(autojump_clock):
    """And the child ends, with its mailbox."""

    async def crash(ctx):
        raise ValueError

    async with open_supervisor([child("a", crash, backoff=Backoff(1000, 1000))]) as sup:
        await wait_all_tasks_blocked()
        ref = refs(sup)["a"]
        assert ref.state == "restarting"
    assert trio.current_time() == 0
    assert ref.state == "stopped"
    assert isinstance(await ref.wait_stopped(), Failed)


async def test_draining_comes_before_the_cancellation(autojump_clock):
    """`drain` seconds: ctx.stopping is set, the mailbox ends after what was
    queued, and an actor that is done before is not cancelled at all."""
    handled = []

    async def drains(ctx):
        async for message in ctx.mailbox:
            await trio.sleep(1)
            handled.append(message)
        assert ctx.stopping.is_set()
        return "drained"

    spec = child("a", drains, drain=10, shutdown=2)
    async with open_supervisor([spec]) as sup:
        ref = refs(sup)["a"]
        for n in range(3):
            ref.tell(n)
        await trio.sleep(0.5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sup.terminate_child, "a")
            await wait_all_tasks_blocked()
            ref.tell("too late")
            with pytest.raises(ActorStopping):
                await ref.ask(lambda reply: reply)
        assert handled == [0, 1, 2]
        assert trio.current_time() == 3
        assert await ref.wait_stopped() == Completed("drained")


async def test_who_does_not_drain_in_time_is_cancelled_then(autojump_clock):
    """After `drain` seconds; the budget begins only there."""
    journal = []
    spec = child("a", slow_end, journal, 4, drain=3, shutdown=5)
    async with open_supervisor([spec]) as sup:
        events = sup.events.subscribe()
        await sup.terminate_child("a")
    assert journal == [("told a", 3), ("gone a", 7)]
    assert not any(isinstance(e, Straggler) for e in events.drain())


@pytest.mark.parametrize("where", ["body", "child", "grandchild"])
async def test_an_interrupt_skips_draining_and_leaves_after_an_ordered_stop(
    where, autojump_clock
):
    """P8: wherever KeyboardInterrupt strikes, it leaves the block unwrapped,
    nothing is restarted, and the others stop in order without draining."""
    journal = []

    async def interrupted(ctx):
        journal.append("+interrupted")
        async for _ in ctx.mailbox:
            raise KeyboardInterrupt

    inner = partial(
        open_supervisor,
        [child("i", interrupted), child("deep", slow_end, journal, 1, drain=50)],
    )
    specs = [
        child("a", slow_end, journal, 2, drain=50),
        child("i", interrupted),
        child("sub", inner, kind="supervisor"),
        child("b", slow_end, journal, 1, drain=50),
    ]
    with pytest.raises(KeyboardInterrupt):
        async with open_supervisor(specs) as sup:
            await trio.sleep(10)
            if where == "body":
                raise KeyboardInterrupt
            nested = refs(sup)["sup" if where == "body" else "sub"].started_value
            refs(nested if where == "grandchild" else sup)["i"].tell("now")
            await trio.sleep_forever()
    assert journal[:2] == ["+interrupted"] * 2
    assert "+interrupted" not in journal[2:]
    ends = [
        entry
        for entry in journal[2:]
        if entry[0] in ("gone a", "gone b", "told b", "told a")
    ]
    assert [name for name, _ in ends] == ["told b", "gone b", "told a", "gone a"]
    assert trio.current_time() == 14
    assert sup.exit == Stopped("owner")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("restart", ["permanent", "temporary"])
async def test_an_interrupt_in_a_child_is_no_failure(error, restart):
    """No restart, unwrapped, and no end of a sibling but by the stop."""
    starts = []

    async def interrupted(ctx):
        starts.append(1)
        await wait_all_tasks_blocked()
        raise error(3)

    with pytest.raises(error) as caught:
        async with open_supervisor(
            [child("a", idle), child("i", interrupted, restart=restart)], intensity=10
        ) as sup:
            before = refs(sup)
            await trio.sleep_forever()
    assert caught.value.args == (3,)
    assert caught.value.__cause__ is None
    assert starts == [1]
    assert (await before["i"].wait_exit()) == Stopped("outer", error.__name__)
    assert (await before["a"].wait_exit()).by in ("outer", "supervisor")


async def test_an_interrupt_beside_a_failure_in_one_child_is_an_interrupt():
    """A group of both: no restart, and the interrupt leaves."""
    starts = []

    async def both(ctx):
        starts.append(1)
        await wait_all_tasks_blocked()
        raise BaseExceptionGroup("g", [ValueError(), KeyboardInterrupt()])

    with pytest.raises(KeyboardInterrupt):
        async with open_supervisor([child("a", both)], intensity=10):
            await trio.sleep_forever()
    assert starts == [1]


async def test_an_interrupt_while_opening_leaves_the_block():
    """Before the body is entered, after an ordered stop."""
    ended = []

    async def noted(ctx):
        try:
            await trio.sleep_forever()
        finally:
            ended.append(ctx.id)

    async def interrupted(ctx):
        await wait_all_tasks_blocked()
        raise KeyboardInterrupt

    specs = [
        child("a", noted),
        child("b", noted),
        child("i", interrupted, wait_started=True),
    ]
    with pytest.raises(KeyboardInterrupt):
        async with open_supervisor(specs):
            raise AssertionError("entered")  # pragma: no cover
    assert ended == ["b", "a"]


@enable_ki_protection
def press_ctrl_c():
    """As trio gets it when no task's own code is running."""
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("presses", [1, 2, 3])
def test_ctrl_c_again_and_again_still_ends_in_order(presses):
    """P8, P1: the second and the third one, while the children are being
    stopped, only take away what is left of draining."""
    journal = []

    async def press():
        for _ in range(presses):
            await trio.sleep(1)
            press_ctrl_c()

    async def main():
        async with trio.open_nursery() as nursery:
            # In a task that outlives the first one.
            nursery.cancel_scope.shield = True
            nursery.start_soon(press)
            try:
                async with open_supervisor(
                    [
                        child("a", slow_end, journal, 2, drain=100),
                        child("b", slow_end, journal, 4, drain=100),
                    ]
                ) as sup:
                    await trio.sleep_forever()
            finally:
                journal.append(sup.exit)

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main, clock=MockClock(autojump_threshold=0))
    assert caught.value.subgroup(KeyboardInterrupt) is not None
    assert journal == [
        ("told b", 1), ("gone b", 5), ("told a", 5), ("gone a", 7), Stopped("owner"),
    ]  # fmt: skip


def test_ctrl_c_while_draining_ends_the_draining():
    """KeyboardInterrupt skips drain, also the one that is under way, also below."""
    journal = []

    async def press():
        await trio.sleep(10)
        press_ctrl_c()

    async def main():
        inner = partial(
            open_supervisor, [child("deep", slow_end, journal, 1, drain=100)]
        )
        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.shield = True
            nursery.start_soon(press)
            async with open_supervisor(
                [
                    child("a", slow_end, journal, 2, drain=100),
                    child("sub", inner, kind="supervisor"),
                ]
            ):
                pass

    with pytest.raises(BaseExceptionGroup):
        trio.run(main, clock=MockClock(autojump_threshold=0))
    assert journal == [
        ("told deep", 10),
        ("gone deep", 11),
        ("told a", 11),
        ("gone a", 13),
    ]


async def test_who_would_wait_for_its_own_end_is_refused(autojump_clock):
    """WouldDeadlock for the own supervisor and for ancestors; stop() is the way."""
    caught = []

    async def asks(ctx, call):
        async for sup in ctx.mailbox:
            try:
                await call(sup)
            except WouldDeadlock as error:
                caught.append(str(error))
                if "direct" in ctx.id:
                    ctx.ref.stop()

    inner = partial(
        open_supervisor,
        [
            child("direct", asks, lambda sup: sup.terminate_child("direct")),
            child("above", asks, lambda sup: sup.terminate_child("sub")),
            child("again", asks, lambda sup: sup.restart_child("sub")),
        ],
    )
    async with open_supervisor([child("sub", inner, kind="supervisor")]) as sup:
        sub = refs(sup)["sub"].started_value
        refs(sub)["direct"].tell(sub)
        refs(sub)["above"].tell(sup)
        refs(sub)["again"].tell(sup)
        await wait_all_tasks_blocked()
        assert len(caught) == 3
        assert (
            sum("'direct' would wait for its own end" in text for text in caught) == 1
        )
        assert sum("'sub' would wait for its own end" in text for text in caught) == 2
        assert states(sub) == {
            "direct": "running",
            "above": "running",
            "again": "running",
        }
        assert refs(sub)["direct"].incarnation.number == 2


async def test_a_dynamic_supervisor_refuses_it_too():
    """WouldDeadlock for one and for several."""
    caught = []

    async def asks(ctx, sup):
        for call in (sup.terminate_child, lambda ref: sup.terminate_children([ref])):
            try:
                await call(ctx.ref)
            except WouldDeadlock as error:
                caught.append(error)

    async with open_dynamic_supervisor() as sup:
        await sup.start_child(child("a", asks, sup, restart="temporary"))
        await wait_all_tasks_blocked()
        assert len(caught) == 2


async def test_a_child_may_ask_its_stopping_supervisor_without_a_deadlock():
    """B77: in its cleanup it lists, and terminates a sibling that is yet to be
    stopped; itself it is refused."""
    done = []

    async def asks(ctx, holder):
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                sup = holder[0]
                await sup.terminate_child("sibling")
                done.append(states(sup))
                with pytest.raises(WouldDeadlock):
                    await sup.terminate_child("asks")

    holder = []
    specs = [child("sibling", idle), child("asks", asks, holder)]
    with trio.fail_after(30):
        async with open_supervisor(specs) as sup:
            holder.append(sup)
    assert done == [{"sibling": "stopped", "asks": "stopping"}]


async def test_waiting_for_the_end_from_elsewhere():
    """`sup.wait()` in another task returns when the last child has gone."""
    order = []

    async def last(ctx):
        try:
            await trio.sleep_forever()
        finally:
            order.append("child")

    async def wait(sup):
        await sup.wait()
        order.append(sup.exit)

    async with trio.open_nursery() as nursery:
        async with open_supervisor([child("a", last)]) as sup:
            nursery.start_soon(wait, sup)
            await wait_all_tasks_blocked()
            order.append("leaving")
    assert order == ["leaving", "child", Stopped("owner")]
    await sup.wait()


async def test_several_are_terminated_together(autojump_clock):
    """Each has its own budget, which all run at the same time; those that
    outlived theirs are returned, those that are no children any more left out."""
    journal = []
    async with open_dynamic_supervisor() as sup:
        good = await sup.start_child(child("good", slow_end, journal, 3))
        bad = await sup.start_child(child("bad", slow_end, journal, 30, shutdown=2))
        other = await sup.start_child(child("other", idle))
        gone = await sup.start_child(child("gone", idle))
        await sup.terminate_child(gone)
        assert await sup.terminate_children([good, bad, gone], "enough") == [bad]
        assert trio.current_time() == 3
        assert other.state == "running"
        assert await good.wait_stopped() == Stopped("supervisor", "enough")
        assert states(sup) == {"bad": "stopping", "other": "running"}
        assert await sup.terminate_children([]) == []


async def test_a_later_stop_with_a_shorter_budget_is_reported_at_its_own_time(
    autojump_clock,
):
    """B37, P1: each straggler by its own clock, in whatever order they were asked:
    a chain of three, each later and shorter than the one before."""
    specs = [
        child(id, slow_end, [], 100, shutdown=shutdown)
        for id, shutdown in (("a", 50), ("b", 20), ("c", 0))
    ]
    async with open_supervisor(specs) as sup, trio.open_nursery() as nursery:

        async def stop(id):
            with pytest.raises(StillRunning):
                await sup.terminate_child(id)

        with sup.events.subscribe() as events:
            for id in "abc":
                nursery.start_soon(stop, id)
                await trio.sleep(3)
            await trio.sleep(60)
            reports = [(e.time, e.child) for e in events.drain() if isinstance(e, Straggler)]  # fmt: skip
    assert [(round(time), child) for time, child in reports] == [
        (6, "c"), (23, "b"), (36, "c"), (50, "a"), (53, "b"), (66, "c"),
    ]  # fmt: skip
