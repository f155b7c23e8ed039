"""Group restarts beside what else is asked of the supervisor meanwhile."""

# A block may end early, a started value be anything: here they are what they are.
# pyright: reportPossiblyUnboundVariable=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors import Ignore
from supervisor.tree import (
    Backoff,
    ChildIgnored,
    ChildRestarting,
    RestartIntensityExceeded,
    RestartScheduled,
    StartFailed,
    child,
    open_supervisor,
)

TICKS = 12


async def member(ctx, journal, start=0.0, stop=0.0, hangs=False):
    """Writes down its starts and ends; takes ``start`` seconds to start again,
    or for ever, and ``stop`` to end."""
    journal.append(f"+{ctx.id}")
    try:
        if ctx.number > 1:
            await trio.sleep_forever() if hangs else await trio.sleep(start)
        ctx.started()
        async for message in ctx.mailbox:
            if isinstance(message, BaseException):
                raise message
            if message == "return":
                return
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(stop)
        journal.append(f"-{ctx.id}")


def one(id, journal, *args, **options):
    return child(id, member, journal, *args, wait_started=True, **options)


def refs(sup):
    return {info.id: info.ref for info in sup.which_children()}


def states(sup):
    return {info.id: info.state for info in sup.which_children()}


def crash(sup, id):
    refs(sup)[id].tell(ValueError(id))


async def crashed(sup, id, ticks):
    """Crash a child, and let so many steps pass from then on."""
    ref = refs(sup)[id]
    crash(sup, id)
    while ref.state == "running":
        await trio.lowlevel.checkpoint()
    for _ in range(ticks):
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("victim", "abc")
@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
@pytest.mark.parametrize("ticks", range(TICKS))
async def test_a_child_that_is_terminated_while_its_group_restarts_stays_down(
    strategy, victim, ticks
):
    """B25, B29: whichever step of the restart that is, also the one that failed."""
    journal = []
    specs = [one(id, journal) for id in "abc"]
    async with open_supervisor(specs, strategy=strategy) as sup:
        await crashed(sup, "a", ticks)
        await sup.terminate_child(victim)
        journal.clear()
        await wait_all_tasks_blocked()
        assert states(sup) == {
            id: "stopped" if id == victim else "running" for id in "abc"
        }
        assert f"+{victim}" not in journal
        await sup.delete_child(victim)


@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
@pytest.mark.parametrize("victim", "abc")
@pytest.mark.parametrize("at", [0.5, 1.5, 2.5, 4.5, 6.5, 8.5])
async def test_the_group_goes_on_without_a_member_that_is_terminated(
    strategy, victim, at, autojump_clock
):
    """P10: while it stops, waits, starts or hangs: its start is cancelled and has
    ended before the call returns, the later ones come up, and nobody is left down
    in silence."""
    journal = []
    specs = [one(id, journal, 2.0, 0.5, backoff=Backoff(2, 2)) for id in "abc"]
    async with open_supervisor(specs, strategy=strategy) as sup:
        crash(sup, "a")
        await trio.sleep(at)
        await sup.terminate_child(victim)
        assert journal.count(f"+{victim}") == journal.count(f"-{victim}")
        await trio.sleep(100)
        assert states(sup) == {
            id: "stopped" if id == victim else "running" for id in "abc"
        }


async def test_what_was_stopped_by_hand_before_is_revived_and_may_leave_again():
    """B25, B28: from the moment on in which the restart begins it is restarting."""
    journal = []
    specs = [one(id, journal) for id in "abc"]
    async with open_supervisor(specs, strategy="one_for_all") as sup:
        await sup.terminate_child("c")
        await crashed(sup, "a", 0)
        assert states(sup)["c"] == "restarting"
        with pytest.raises(ChildRestarting):
            await sup.restart_child("c")
        await wait_all_tasks_blocked()
        assert states(sup) == dict.fromkeys("abc", "running")
        await sup.terminate_child("c")
        assert states(sup)["c"] == "stopped"


async def test_who_left_does_not_come_back_with_another_attempt(autojump_clock):
    """B26: the group is tried again without the one that was terminated, also if
    a third attempt is needed, and without one that was terminated in each."""
    journal, errors = [], [ValueError(), ValueError()]

    async def flaky(ctx):
        await trio.sleep(1 if ctx.number > 1 else 0)
        if ctx.number > 1 and errors:
            raise errors.pop()
        ctx.started()
        await trio.sleep_forever()

    specs = [
        *(one(id, journal) for id in "abc"),
        child("flaky", flaky, wait_started=True),
    ]
    async with open_supervisor(specs, strategy="one_for_all", intensity=5) as sup:
        crash(sup, "a")
        await trio.sleep(0.5)
        await sup.terminate_child("b")
        await trio.sleep(1)
        await sup.terminate_child("c")
        await trio.sleep(100)
        assert states(sup) == {
            "a": "running", "b": "stopped", "c": "stopped", "flaky": "running",
        }  # fmt: skip


async def test_who_is_terminated_leaves_the_restarts_that_wait_for_their_turn_too(
    autojump_clock,
):
    """A failure that was put off brings nobody back who was ended after it."""
    journal = []
    specs = [one("a", journal), one("b", journal), one("slow", journal, 10.0)]
    async with open_supervisor(specs, strategy="one_for_all", intensity=5) as sup:
        crash(sup, "a")
        await trio.sleep(5)
        crash(sup, "a")
        await trio.sleep(1)
        await sup.terminate_child("b")
        await trio.sleep(100)
        assert journal.count("+a") == 3
        assert states(sup) == {"a": "running", "b": "stopped", "slow": "running"}


async def test_a_start_that_is_cancelled_as_the_child_crashes_restarts_nobody_else():
    """B23: the one that failed is gone, and no other was in its group."""
    for _ in range(10):  # trio throws dice for the order of tasks
        journal = []
        specs = [one("a", journal), one("b", journal)]
        async with open_supervisor(specs, strategy="rest_for_one", intensity=9) as sup:
            with trio.CancelScope() as scope:

                async def cancels(ctx):
                    scope.cancel()
                    ctx.started()
                    raise ValueError

                await sup.start_child(child("c", cancels, wait_started=True))
            await wait_all_tasks_blocked()
            assert scope.cancelled_caught
            assert journal == ["+a", "+b"]
            assert states(sup) == {"a": "running", "b": "running"}


def restarts(events):
    return [e.child for e in events.drain() if isinstance(e, RestartScheduled)]


@pytest.mark.parametrize("fails_at", [1.0, 3.0])
async def test_an_earlier_sibling_does_not_stay_down_for_a_later_ones_backoff(
    fails_at, autojump_clock
):
    """B23: its own, larger group replaces the one that waits, at once, also if it
    fails while that one still stops; both restarts count."""
    journal = []
    specs = [
        one("a", journal),
        one("b", journal, backoff=Backoff(60, 60)),
        one("c", journal, 0.0, 2.0),
    ]
    async with open_supervisor(specs, strategy="rest_for_one", intensity=2) as sup:
        with sup.events.subscribe() as events:
            journal.clear()
            crash(sup, "b")
            await trio.sleep(fails_at)
            crash(sup, "a")
            await trio.sleep(5 - fails_at)
            assert states(sup) == dict.fromkeys("abc", "running")
            await trio.sleep(200)
            assert restarts(events) == ["b", "a"]
        assert sorted(journal[:3]) == ["-a", "-b", "-c"]
        assert journal[3:] == ["+a", "+b", "+c"]


@pytest.mark.parametrize(("delay", "ends"), [(5, 60), (100, 101)])
async def test_the_longer_of_two_delays_is_waited_out(delay, ends, autojump_clock):
    """B67: both have one; and a third one, of a sibling before both, which has
    none, ends the wait."""
    for third in (False, True):
        journal = []
        specs = [
            one("z", journal),
            one("a", journal, backoff=Backoff(delay, delay)),
            one("b", journal, backoff=Backoff(60, 60)),
        ]
        async with open_supervisor(specs, strategy="rest_for_one", intensity=3) as sup:
            began = trio.current_time()
            journal.clear()
            crash(sup, "b")
            await trio.sleep(1)
            crash(sup, "a")
            await trio.sleep(ends - 2)
            assert journal == ["-b", "-a"]
            if third:
                crash(sup, "z")
                await wait_all_tasks_blocked()
                assert journal == ["-b", "-a", "-z", "+z", "+a", "+b"]
            else:
                with trio.fail_after(2):
                    while "+b" not in journal:
                        await trio.sleep(0.25)
                assert ends <= trio.current_time() - began <= ends + 0.5


async def test_a_failure_while_a_group_waits_counts_at_once(autojump_clock):
    """B31: it overflows then, and not when the wait is over."""
    specs = [one("a", []), one("b", [], backoff=Backoff(60, 60))]
    with pytest.raises(RestartIntensityExceeded):
        async with open_supervisor(
            specs, strategy="rest_for_one", period=1000.0
        ) as sup:
            crash(sup, "b")
            await trio.sleep(1)
            crash(sup, "a")
            await trio.sleep_forever()
    assert trio.current_time() == 1


async def test_who_was_added_later_and_fails_waits_with_the_group(autojump_clock):
    """B23: it depends on those that wait, whose delay holds."""
    journal = []
    specs = [one("a", journal), one("b", journal, backoff=Backoff(10, 10))]
    async with open_supervisor(specs, strategy="rest_for_one", intensity=2) as sup:
        crash(sup, "b")
        await trio.sleep(1)
        await sup.start_child(one("c", journal))
        crash(sup, "c")
        await trio.sleep(8)
        assert states(sup) == {"a": "running", "b": "restarting", "c": "restarting"}
        await trio.sleep(2)
        assert states(sup) == dict.fromkeys("abc", "running")
        assert journal == ["+a", "+b", "-b", "+c", "-c", "+b", "+c"]


@pytest.mark.parametrize("restart", ["permanent", "transient"])
@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all", "rest_for_one"])
async def test_a_soft_stop_while_it_starts_again_is_what_it_is_while_it_runs(
    strategy, restart, autojump_clock
):
    """B19: a transient child has ended normally then, and the group goes on; a
    permanent one comes back."""
    journal = []
    specs = [one("a", journal), one("b", journal, 1.0, restart=restart), one("c", journal)]  # fmt: skip
    async with open_supervisor(specs, strategy=strategy, intensity=5) as sup:
        crash(sup, "b")
        await trio.sleep(0.5)
        refs(sup)["b"].stop()
        await trio.sleep(10)
        state = "running" if restart == "permanent" else "stopped"
        assert states(sup) == {"a": "running", "b": state, "c": "running"}


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all", "rest_for_one"])
@pytest.mark.parametrize("how", ["fails", "cancelled", "declines", "terminated"])
async def test_the_spec_of_one_that_declined_its_first_start_is_kept(
    strategy, how, autojump_clock
):
    """B10, B14: whatever becomes of its later starts, by hand or in a group."""
    journal, answers = [], [Ignore()]

    async def picky(ctx):
        if answers:
            answer = answers.pop(0)
            if answer is not None:
                raise answer
        await trio.sleep(10)
        ctx.started()
        await trio.sleep_forever()

    async with open_supervisor([one("a", journal)], strategy=strategy) as sup:
        with pytest.raises(ChildIgnored):
            await sup.start_child(child("picky", picky, wait_started=True))
        for by_hand in (True, False, True):
            answers[:] = {"fails": [ValueError()], "declines": [Ignore()]}.get(how, [])
            if by_hand:
                async with trio.open_nursery() as nursery:

                    async def restart():
                        with trio.move_on_after(1 if how == "cancelled" else 99):
                            with pytest.raises((StartFailed, ChildIgnored)):
                                await sup.restart_child("picky")

                    nursery.start_soon(restart)
                    await trio.sleep(2)
                    if how == "terminated":
                        await sup.terminate_child("picky")
            elif how in ("declines", "terminated"):
                await crashed(sup, "a", 5)
                await trio.sleep(1)
                if how == "terminated":
                    await sup.terminate_child("picky")
            assert states(sup) == {"a": "running", "picky": "stopped"}
            await trio.sleep(10)


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all", "rest_for_one"])
@pytest.mark.parametrize("delay", [5, None])
async def test_nothing_starts_once_the_supervisor_ends_by_itself(
    strategy, delay, autojump_clock
):
    """B40: neither after a backoff nor in the second half of a group restart,
    however long the body takes to clean up."""
    journal = []
    backoff = None if delay is None else Backoff(delay, delay)
    specs = [
        one("a", journal, 3.0, backoff=backoff),
        one("b", journal, 3.0),
        one("c", journal),
    ]
    async with open_supervisor(
        specs, strategy=strategy, auto_shutdown="any_significant"
    ) as sup:
        crash(sup, "a")
        await trio.sleep(1)
        # A sibling that is not part of the group.
        await sup.start_child(
            one("end", journal, restart="transient", significant=True)
        )
        try:
            refs(sup)["end"].tell("return")
            await trio.sleep_forever()
        finally:
            began = len(journal)
            with trio.CancelScope(shield=True):
                await trio.sleep(100)
    assert not [entry for entry in journal[began:] if entry.startswith("+")]


@pytest.mark.parametrize("intensity", [1, 2])
async def test_a_failed_attempt_counts_when_the_next_one_is_due(intensity):
    """B26, B27: not if the group of an earlier sibling has replaced it, which
    crashed before and counts itself."""
    starts = {"a": 0, "b": 0}
    go = trio.Event()

    async def body(ctx):
        starts[ctx.id] += 1
        if ctx.id == "b" and starts["b"] == 2:
            raise ValueError("not yet")
        ctx.started()
        if ctx.id == "a" and starts["a"] < 3:
            if starts["a"] == 1:
                await go.wait()
            raise ValueError("again")
        await trio.sleep_forever()

    survives = False
    specs = [child(id, body, wait_started=True) for id in "ab"]
    try:
        async with open_supervisor(
            specs, strategy="rest_for_one", intensity=intensity
        ) as sup:
            go.set()
            await wait_all_tasks_blocked()
            survives = True
            assert set(states(sup).values()) == {"running"}
    except RestartIntensityExceeded:
        pass
    assert survives == (intensity == 2)


@pytest.mark.parametrize("first", ["a", "c"])
async def test_two_crashes_and_a_failed_attempt_count_twice_in_either_order(first):
    """B26, B27: the attempt that a wider restart replaced costs nothing."""
    starts = dict.fromkeys("abcd", 0)
    told = {"a": trio.Event(), "c": trio.Event()}

    async def body(ctx):
        starts[ctx.id] += 1
        if ctx.id == "d" and starts["d"] == 2:
            raise ValueError("not yet")
        ctx.started()
        if ctx.id in told and starts[ctx.id] == 1:
            await told[ctx.id].wait()
            raise ValueError(ctx.id)
        await trio.sleep_forever()

    specs = [child(id, body, wait_started=True) for id in "abcd"]
    async with open_supervisor(specs, strategy="rest_for_one", intensity=2) as sup:
        told[first].set()
        await trio.lowlevel.checkpoint()
        for event in told.values():
            event.set()
        await wait_all_tasks_blocked()
        assert set(states(sup).values()) == {"running"}


async def test_a_group_that_everybody_has_left_delays_no_other(autojump_clock):
    """B29: it waits for nobody, so what fails next waits for its own backoff only."""
    journal = []
    specs = [
        one("a", journal, backoff=Backoff(100, 100)),
        one("b", journal, backoff=Backoff(1, 1)),
    ]
    async with open_supervisor(specs, strategy="one_for_all", intensity=9) as sup:
        crash(sup, "a")
        await trio.sleep(1)
        await sup.terminate_child("a")
        await sup.terminate_child("b")
        await sup.delete_child("a")
        await sup.restart_child("b")
        crash(sup, "b")
        await trio.sleep(2)
        assert states(sup) == {"b": "running"}
