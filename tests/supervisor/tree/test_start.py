"""Starting children: order, acknowledgement, refusal, failure."""

# A block may end early, a started value be anything: here they are what they are.
# pyright: reportPossiblyUnboundVariable=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

import contextvars
from collections.abc import Awaitable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors import AskUnanswered, Completed, Failed, Ignore, Stopped
from supervisor.tree import (
    AlreadyPresent,
    AlreadyStarted,
    Backoff,
    ChildIgnored,
    ChildNotFound,
    ChildRestarting,
    ChildRunning,
    SlowStart,
    StartFailed,
    Supervisor,
    SupervisorStopping,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)


async def idle(ctx):
    await trio.sleep_forever()


async def acknowledge(ctx, journal, pause=0.0, value=None):
    journal.append(f"+{ctx.id}")
    try:
        await trio.sleep(pause)
        ctx.started(value)
        journal.append(f"started {ctx.id}")
        async for message in ctx.mailbox:
            if isinstance(message, Exception):
                raise message
    finally:
        journal.append(f"-{ctx.id}")


async def fail(ctx, error=None):
    raise error or ValueError("no start")


async def ignore(ctx):
    raise Ignore


def states(sup):
    return {info.id: info.state for info in sup.which_children()}


async def test_children_start_one_after_the_other(autojump_clock):
    """B8: the next one begins when the one before has acknowledged."""
    journal = []
    specs = [
        child(id, acknowledge, journal, 3.0 - n, wait_started=True)
        for n, id in enumerate("abc")
    ]
    async with open_supervisor(specs):
        assert journal == ["+a", "started a", "+b", "started b", "+c", "started c"]
        assert trio.current_time() == 6.0


async def test_without_wait_started_the_first_step_is_waited_for():
    """B8: the start is the first step, which has been made on return."""
    steps = []

    async def step(ctx):
        steps.append(ctx.id)
        await trio.sleep_forever()

    async with open_supervisor([child("a", step), child("b", step)]) as sup:
        assert steps == ["a", "b"]
        await sup.start_child(child("c", step))
        assert steps == ["a", "b", "c"]


async def test_a_failed_start_ends_those_before_in_reverse_order():
    """B9: the block is not entered; its error comes out unwrapped, with its cause."""
    journal = []
    good = [child(id, acknowledge, journal, wait_started=True) for id in "ab"]
    with pytest.raises(StartFailed, match="'c' failed to start: ValueError") as caught:
        async with open_supervisor(
            [*good, child("c", fail, wait_started=True), child("d", idle)]
        ):
            raise AssertionError("entered")  # pragma: no cover
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.child_id == "c"
    assert journal == ["+a", "started a", "+b", "started b", "-b", "-a"]


@pytest.mark.parametrize(
    ("kind", "restart", "kept"),
    [
        ("static", "permanent", True),
        ("static", "transient", True),
        ("static", "temporary", False),
        ("dynamic", "permanent", False),
        ("dynamic", "transient", False),
        ("dynamic", "temporary", False),
    ],
)
async def test_who_declines_to_start_is_known_or_not(kind, restart, kept):
    """B10: the spec of a child that ignores is kept, unless it is temporary or
    its supervisor dynamic."""
    spec = child("a", ignore, restart=restart, wait_started=True)
    block = open_supervisor() if kind == "static" else open_dynamic_supervisor()
    async with block as sup:
        with pytest.raises(ChildIgnored, match="'a' declined"):
            await sup.start_child(spec)
        assert states(sup) == ({"a": "stopped"} if kept else {})
        assert sup.count_children().specs == int(kept)
        assert sup.count_children().active == 0


async def test_who_declines_in_a_list_is_simply_not_running():
    """B10: opening goes on."""
    specs = [child("a", ignore, wait_started=True), child("b", idle)]
    async with open_supervisor(specs) as sup:
        assert states(sup) == {"a": "stopped", "b": "running"}


async def test_started_values_reach_the_caller():
    """B11: as given, also by restart_child."""
    journal, value = [], object()
    async with open_supervisor() as sup:
        ref = await sup.start_child(
            child("a", acknowledge, journal, 0, value, wait_started=True)
        )
        assert ref.started_value is value
        await sup.terminate_child("a")
        assert (await sup.restart_child("a")) is ref
        assert ref.started_value is value


async def test_an_automatic_restart_has_its_own_started_value():
    """B11: it belongs to the incarnation that runs."""

    async def number(ctx):
        ctx.started(ctx.number)
        async for _ in ctx.mailbox:
            raise ValueError

    async with open_supervisor([child("a", number, wait_started=True)]) as sup:
        (info,) = sup.which_children()
        assert info.ref.started_value == 1
        info.ref.tell("crash")
        await wait_all_tasks_blocked()
        assert info.ref.started_value == 2


class OddError(Exception):
    def __repr__(self):
        raise RuntimeError("not even that")

    __str__ = __repr__


async def returns_early(ctx):
    return "garbage"


def no_coroutine(ctx) -> Awaitable[None]:
    return 7  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(
    ("fn", "why", "cause"),
    [
        (fail, "ValueError", ValueError),
        (
            partial(fail, error=BaseExceptionGroup("g", [KeyError()])),
            "KeyError",
            ExceptionGroup,
        ),
        (partial(fail, error=OddError()), "OddError whose repr", OddError),
        (returns_early, "returned before ctx.started", type(None)),
        (no_coroutine, "TypeError", TypeError),
    ],
)
async def test_whatever_a_start_does_is_an_error_and_never_a_crash(fn, why, cause):
    """B12: raising, returning, not even being async: StartFailed, cause intact."""
    async with open_supervisor([child("other", idle)]) as sup:
        with pytest.raises(StartFailed, match=why) as caught:
            await sup.start_child(child("a", fn, wait_started=True))
        assert isinstance(caught.value.__cause__, cause)
        assert states(sup) == {"other": "running"}


async def test_start_child_of_a_known_id_says_which_case_it_is(autojump_clock):
    """B13: running or starting is AlreadyStarted, stopped or restarting AlreadyPresent."""
    journal = []

    async def crash_later(ctx):
        async for _ in ctx.mailbox:
            raise ValueError

    async with trio.open_nursery() as nursery:
        async with open_supervisor([child("run", idle), child("stop", idle)]) as sup:
            await sup.terminate_child("stop")
            crash = await sup.start_child(
                child("crash", crash_later, backoff=Backoff(50, 50))
            )
            crash.tell("now")
            nursery.start_soon(
                sup.start_child,
                child("slow", acknowledge, journal, 20, wait_started=True),
            )
            await wait_all_tasks_blocked()
            assert states(sup) == {
                "run": "running",
                "stop": "stopped",
                "crash": "restarting",
                "slow": "starting",
            }
            for id in ("run", "slow"):
                with pytest.raises(AlreadyStarted, match=f"'{id}'"):
                    await sup.start_child(child(id, idle))
            for id in ("stop", "crash"):
                with pytest.raises(AlreadyPresent, match=f"'{id}'.*restart_child"):
                    await sup.start_child(child(id, idle))
            await trio.sleep(21)
            assert states(sup)["slow"] == "running"


async def test_a_failed_start_child_leaves_nothing_and_a_failed_restart_the_spec():
    """B14: start_child keeps no spec, restart_child does."""
    fine = True

    async def sometimes(ctx):
        if not fine:
            raise ValueError("not now")
        ctx.started()
        await trio.sleep_forever()

    async with open_supervisor() as sup:
        ref = await sup.start_child(child("a", sometimes, wait_started=True))
        await sup.terminate_child("a")
        fine = False
        with pytest.raises(StartFailed):
            await sup.restart_child("a")
        assert states(sup) == {"a": "stopped"}
        assert isinstance(await ref.wait_stopped(), Failed)
        with pytest.raises(StartFailed):
            await sup.start_child(child("b", sometimes, wait_started=True))
        assert states(sup) == {"a": "stopped"}
        fine = True
        assert (await sup.restart_child("a")) is ref
        assert ref.state == "running"
        await sup.start_child(child("b", sometimes, wait_started=True))


async def test_a_starting_child_does_not_hold_up_the_supervisor(autojump_clock):
    """B15, deviation: OTP's supervisor is blocked meanwhile."""
    journal = []

    async def start():
        with pytest.raises(StartFailed):
            await sup.start_child(
                child("slow", acknowledge, journal, 1000, wait_started=True)
            )

    async with trio.open_nursery() as nursery, open_supervisor() as sup:
        nursery.start_soon(start)
        await wait_all_tasks_blocked()
        before = trio.current_time()
        other = await sup.start_child(child("other", idle))
        other.stop()
        await wait_all_tasks_blocked()
        await sup.terminate_child("other")
        await sup.delete_child("other")
        assert trio.current_time() == before
        assert states(sup) == {"slow": "starting"}
        await sup.terminate_child("slow")
        assert trio.current_time() == before


async def test_who_waits_for_a_start_that_is_terminated_gets_an_error(autojump_clock):
    """B72: the starter is told, and nothing is kept."""
    journal = []
    async with open_supervisor() as sup, trio.open_nursery() as nursery:

        async def start():
            with pytest.raises(StartFailed, match="stopped while it started"):
                await sup.start_child(
                    child("slow", acknowledge, journal, 1000, wait_started=True)
                )
            journal.append("told")

        nursery.start_soon(start)
        await wait_all_tasks_blocked()
        await sup.terminate_child("slow")
        await wait_all_tasks_blocked()
        assert journal == ["+slow", "-slow", "told"]
        assert sup.which_children() == []


async def test_a_failure_before_started_goes_to_the_starter_and_is_not_restarted():
    """B72: a failed first start is the starter's affair, later failures the supervisor's."""
    runs = []

    async def work(ctx, early):
        runs.append(ctx.id)
        if early:
            raise ValueError
        ctx.started()
        async for _ in ctx.mailbox:
            raise ValueError

    async with open_supervisor() as sup:
        with pytest.raises(StartFailed):
            await sup.start_child(child("early", work, True, wait_started=True))
        late = await sup.start_child(child("late", work, False, wait_started=True))
        late.tell("crash")
        await wait_all_tasks_blocked()
        assert runs == ["early", "late", "late"]


async def test_a_quick_child_keeps_its_spec():
    """B14, B19: one that has ended when start_child returns has started all the
    same, and its spec is kept."""

    async def quick(ctx):
        return ctx.id

    specs = [child("listed", quick, restart="transient")]
    async with open_supervisor(specs) as sup:
        ref = await sup.start_child(child("quick", quick, restart="transient"))
        assert await ref.wait_stopped() == Completed("quick")
        assert states(sup) == {"listed": "stopped", "quick": "stopped"}


async def test_the_caller_is_cancelled_while_the_child_starts(autojump_clock):
    """The child is stopped within its budget and nothing is kept; a child that
    was restarted by hand is kept."""
    journal = []
    async with open_supervisor() as sup:
        with trio.move_on_after(5) as scope:
            await sup.start_child(
                child("slow", acknowledge, journal, 1000, wait_started=True)
            )
        assert scope.cancelled_caught
        assert journal == ["+slow", "-slow"]
        assert sup.which_children() == []
        kept = child("kept", acknowledge, journal, 1, wait_started=True)
        await sup.start_child(kept)
        await sup.terminate_child("kept")
        with trio.move_on_after(0.5):
            await sup.restart_child("kept")
        assert states(sup) == {"kept": "stopped"}
        await sup.restart_child("kept")


async def test_a_cancelled_start_that_cannot_end_is_still_waited_for_at_the_end(
    autojump_clock,
):
    """P1: the caller gets away after the budget, the block does not, and nothing
    is kept in the end."""

    async def stubborn(ctx):
        with trio.CancelScope(shield=True):
            await trio.sleep(100)

    async with open_supervisor() as sup:
        with trio.move_on_after(1):
            await sup.start_child(child("stubborn", stubborn, wait_started=True))
        assert trio.current_time() == 6
        assert states(sup) == {"stubborn": "stopping"}
    assert trio.current_time() == 100
    assert sup.which_children() == []


async def test_a_child_may_start_siblings_once_it_is_started():
    """Also while the list is still being started; they count in start order."""
    async with trio.open_nursery():
        holder = []

        async def parent(ctx):
            ctx.started()
            await holder_ready.wait()
            await holder[0].start_child(child("sibling", idle))
            await trio.sleep_forever()

        holder_ready = trio.Event()
        async with open_supervisor([child("parent", parent, wait_started=True)]) as sup:
            holder.append(sup)
            holder_ready.set()
            await wait_all_tasks_blocked()
            assert states(sup) == {"parent": "running", "sibling": "running"}


async def test_a_sibling_that_took_an_id_of_the_list_fails_the_opening():
    """B13: nothing is lost or replaced silently: everything is stopped."""
    ended = []

    async def noted(ctx):
        try:
            await trio.sleep_forever()
        finally:
            ended.append(ctx.id)

    async def eager(ctx):
        # The supervisor's own handle is not out yet; this is the only way.
        from actors.lowlevel import current_actor

        home = current_actor().home  # type: ignore[union-attr]
        ctx.started()
        await Supervisor(home).start_child(child("b", noted))
        await trio.sleep_forever()

    async def slow(ctx):
        await wait_all_tasks_blocked()
        ctx.started()
        await trio.sleep_forever()

    specs = [
        child("a", eager, wait_started=True),
        child("slow", slow, wait_started=True),
        child("b", noted),
    ]
    with pytest.raises(AlreadyStarted, match="'b' was started by a sibling"):
        async with open_supervisor(specs):
            raise AssertionError("entered")  # pragma: no cover
    assert ended == ["b"]


async def test_messages_sent_before_the_start_is_over_are_handled_after_it(
    autojump_clock,
):
    """B76: ten of ten, in order."""
    handled = []

    async def slow(ctx):
        await trio.sleep(1)
        ctx.started()
        async for message in ctx.mailbox:
            handled.append(message)  # noqa: PERF401 - seen one by one

    async with open_supervisor() as sup, trio.open_nursery() as nursery:
        nursery.start_soon(sup.start_child, child("slow", slow, wait_started=True))
        await wait_all_tasks_blocked()
        (info,) = sup.which_children()
        assert info.state == "starting"
        for n in range(10):
            info.ref.tell(n)
        await wait_all_tasks_blocked()
        assert handled == []
        await trio.sleep(2)
        assert handled == list(range(10))


async def test_starting_in_a_supervisor_that_stops_is_refused(autojump_clock):
    """B75: refused at once, also for one whose child is on its way, and no
    child is left."""
    refusals = []
    journal = []

    async def late(ctx, holder):
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                for start in (
                    partial(holder[0].start_child, child("new", idle)),
                    partial(holder[0].restart_child, "stopped"),
                ):
                    with pytest.raises(SupervisorStopping) as caught:
                        await start()
                    refusals.append(str(caught.value))

    async def start_slowly():
        with pytest.raises(SupervisorStopping):
            await sup.start_child(
                child("slow", acknowledge, journal, 100, wait_started=True)
            )
        journal.append("told")

    holder = []
    async with trio.open_nursery() as nursery:
        specs = [child("a", late, holder), child("stopped", idle)]
        async with open_supervisor(specs, name="sup") as sup:
            holder.append(sup)
            await sup.terminate_child("stopped")
            nursery.start_soon(start_slowly)
            await wait_all_tasks_blocked()
    assert refusals == ["supervisor 'sup' is stopping and starts nothing"] * 2
    assert journal == ["+slow", "-slow", "told"]
    assert trio.current_time() == 0
    with pytest.raises(SupervisorStopping):
        await sup.start_child(child("new", idle))
    with pytest.raises(SupervisorStopping):
        await sup.restart_child("a")
    await sup.terminate_child("a")
    await sup.terminate_child("never known")
    assert states(sup) == {"a": "stopped", "stopped": "stopped"}
    assert sup.count_children().active == 0
    assert sup.child_spec("a").fn is late


async def test_restart_and_delete_want_a_stopped_child(autojump_clock):
    """B42, B28: running, starting and restarting children are refused."""

    async def crash(ctx):
        async for _ in ctx.mailbox:
            raise ValueError

    specs = [child("run", idle), child("crash", crash, backoff=Backoff(9, 9))]
    async with open_supervisor(specs) as sup:
        for call in (sup.restart_child, sup.delete_child):
            with pytest.raises(ChildRunning, match="'run' is running"):
                await call("run")
        sup.which_children()[1].ref.tell("now")
        await wait_all_tasks_blocked()
        for call in (sup.restart_child, sup.delete_child):
            with pytest.raises(ChildRestarting, match="'crash'"):
                await call("crash")
            with pytest.raises(
                ChildNotFound, match="no child 'x'; it has 'run', 'crash'"
            ):
                await call("x")
        await sup.terminate_child("run")
        await sup.delete_child("run")
        assert states(sup) == {"crash": "restarting"}
        with pytest.raises(ChildNotFound):
            sup.child_spec("run")


async def test_a_deleted_id_can_be_taken_again_and_old_references_touch_nothing():
    """B22, deviation (a supervisor here has no mailbox to get strange news): what
    is left of an unknown child, its reference, does nothing to the
    new one."""
    async with open_supervisor() as sup:
        old = await sup.start_child(child("a", idle, restart="temporary"))
        old.stop()
        assert await old.wait_stopped() == Stopped("stop")
        new = await sup.start_child(child("a", idle))
        old.stop()
        await wait_all_tasks_blocked()
        assert new.state == "running"
        assert old.state == "stopped"
        with pytest.raises(ChildNotFound):
            await sup.terminate_child(old)  # type: ignore[arg-type]
        assert new.state == "running"


async def test_who_asked_for_a_child_is_recorded():
    """B53: the spawner, which need not be the parent, in `spawned_by`; and its
    context variables are the child's, in every incarnation."""
    request = contextvars.ContextVar("request", default="none")
    seen = []

    async def wanted(ctx):
        seen.append(request.get())
        request.set("the child's own")
        async for _ in ctx.mailbox:
            raise ValueError

    async def asker(ctx, holder):
        async for sup in ctx.mailbox:
            request.set("42")
            holder.append(await sup.start_child(child("wanted", wanted)))

    holder = []
    async with open_supervisor() as sup:
        ask = await sup.start_child(child("asker", asker, holder))
        assert ask.spawned_by is None
        ask.tell(sup)
        await wait_all_tasks_blocked()
        (ref,) = holder
        assert ref.spawned_by is ask
        ref.tell("crash")
        await wait_all_tasks_blocked()
        assert seen == ["42", "42"]


async def test_a_group_restart_gives_no_sibling_another_ones_context():
    """B53: the restart runs in the step of the child that failed, whose
    variables are its own."""
    mine = contextvars.ContextVar("mine", default="clean")
    seen = []

    async def member(ctx):
        seen.append((ctx.id, mine.get()))
        mine.set(ctx.id)
        async for _ in ctx.mailbox:
            raise ValueError

    specs = [child("a", member), child("b", member)]
    async with open_supervisor(specs, strategy="one_for_all") as sup:
        sup.which_children()[1].ref.tell("crash")
        await wait_all_tasks_blocked()
        assert seen == [("a", "clean"), ("b", "clean")] * 2


async def test_a_question_whose_wait_is_over_does_no_harm(autojump_clock):
    """B57: the server goes on, and the late answer is dropped."""

    async def slow(ctx):
        async for reply, seconds in ctx.mailbox:
            await trio.sleep(seconds)
            reply.tell(seconds)

    async with open_supervisor([child("slow", slow)]) as sup:
        (info,) = sup.which_children()
        with trio.move_on_after(1) as scope:
            await info.ref.ask(lambda reply: (reply, 10))
        assert scope.cancelled_caught
        assert await info.ref.ask(lambda reply: (reply, 2)) == 2
        assert info.ref.statistics().queued == 0


async def test_every_waiter_is_told_once_also_afterwards():
    """B59: waiting for the end of what has ended returns at once; N waiters are
    told N times; one that leaves takes only itself away."""
    told = []

    async with open_supervisor() as sup, trio.open_nursery() as nursery:
        ref = await sup.start_child(child("a", idle, restart="temporary"))

        async def wait(n, scope):
            with scope:
                told.append((n, await ref.wait_exit()))

        scopes = [trio.CancelScope() for _ in range(3)]
        for n, scope in enumerate(scopes):
            nursery.start_soon(wait, n, scope)
        await wait_all_tasks_blocked()
        scopes[1].cancel()
        await wait_all_tasks_blocked()
        ref.stop()
        await wait_all_tasks_blocked()
        assert sorted(n for n, _ in told) == [0, 2]
        assert {exit for _, exit in told} == {Stopped("stop")}
        with trio.fail_after(30):
            assert await ref.wait_exit() == Stopped("stop")
            assert await ref.wait_stopped() == Stopped("stop")


async def test_an_ask_taken_by_an_incarnation_that_ends_fails():
    """B77: typed, with the exit."""

    async def crash(ctx):
        async for _ in ctx.mailbox:
            raise ValueError("mid-question")

    async with open_supervisor([child("a", crash)]) as sup:
        (info,) = sup.which_children()
        with pytest.raises(AskUnanswered) as caught:
            await info.ref.ask(lambda reply: reply)
        assert isinstance(caught.value.exit, Failed)


@pytest.mark.parametrize("kind", ["worker", "supervisor"])
async def test_a_start_that_is_never_acknowledged_is_reported_again_and_again(
    kind, autojump_clock, caplog
):
    """P1: with its name and where it waits, every 30 seconds; nobody else is,
    and not after it has acknowledged, failed or was stopped."""

    async def forgets(ctx):
        await trio.sleep_forever()

    async def late(ctx):
        await trio.sleep(45)
        ctx.started()
        await trio.sleep_forever()

    async def fails(ctx):
        await trio.sleep(31)
        raise ValueError

    async def start(spec):
        with pytest.raises(StartFailed):
            await sup.start_child(spec)

    @asynccontextmanager
    async def hangs():
        await trio.sleep_forever()
        yield

    forgotten = (
        child("forgets", forgets, wait_started=True)
        if kind == "worker"
        else child("forgets", hangs, kind="supervisor")
    )
    specs = [
        child("quick", acknowledge, [], 0, wait_started=True),
        child("plain", idle),
    ]
    async with (
        open_supervisor(specs, name="sup") as sup,
        trio.open_nursery() as nursery,
    ):
        with sup.events.subscribe() as events:
            nursery.start_soon(start, forgotten)
            nursery.start_soon(start, child("fails", fails, wait_started=True))
            nursery.start_soon(sup.start_child, child("late", late, wait_started=True))
            await trio.sleep(100)
            await sup.terminate_child("forgets")
            await trio.sleep(100)
            reports = [e for e in events.drain() if isinstance(e, SlowStart)]
    assert [(e.time, e.child, e.waited) for e in reports if e.child == "forgets"] == [
        (30, "forgets", 30), (60, "forgets", 60), (90, "forgets", 90),
    ]  # fmt: skip
    assert {(e.time, e.child) for e in reports if e.child != "forgets"} == {
        (30, "late"), (30, "fails"),
    }  # fmt: skip
    stack = reports[0].stack if reports[0].child == "forgets" else reports[1].stack
    assert "in test_a_start_that_is_never" in str(reports)
    assert stack
    told = [r.getMessage() for r in caplog.records if "ctx.started()" in r.getMessage()]
    assert sum("sup/forgets has not called" in text for text in told) == 3


async def test_a_restart_that_is_never_acknowledged_is_reported_too(autojump_clock):
    """P1: of each incarnation, also in a group and after a backoff."""

    async def once(ctx):
        if ctx.number > 1:
            await trio.sleep_forever()
        ctx.started()
        async for _ in ctx.mailbox:
            raise ValueError

    for strategy in ("one_for_one", "one_for_all"):
        spec = child("a", once, wait_started=True, backoff=Backoff(5, 5))
        async with open_supervisor([spec], strategy=strategy) as sup:
            began = trio.current_time()
            sup.which_children()[0].ref.tell("crash")
            with sup.events.subscribe() as events:
                await trio.sleep(70)
                reports = [e for e in events.drain() if isinstance(e, SlowStart)]
        assert [e.time - began for e in reports] == [35, 65]
