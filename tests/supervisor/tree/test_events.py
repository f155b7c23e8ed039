"""What the tree tells: the event stream, and the tree as text."""

# A block may end early, a started value be anything: here they are what they are.
# pyright: reportPossiblyUnboundVariable=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from supervisor.tree import (
    Backoff,
    ChildExited,
    ChildStarted,
    Event,
    Gap,
    GaveUp,
    RestartIntensityExceeded,
    RestartScheduled,
    StopRequested,
    Subscription,
    SupervisorEnded,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)
from supervisor.tree._events import EventStream


async def member(ctx):
    async for message in ctx.mailbox:
        if isinstance(message, BaseException):
            raise message
        if message == "return":
            return


def refs(sup):
    return {info.id: info.ref for info in sup.which_children()}


def brief(event):
    return (type(event).__name__, getattr(event, "child", event.supervisor))


async def test_a_life_is_told_in_order(autojump_clock):
    """Start, exit, restart, stop, end; numbered without a hole."""
    stream = EventStream()
    events = stream.subscribe()
    spec = child("a", member, backoff=Backoff(2, 2))
    async with open_supervisor([spec], events=stream, name="top") as sup:
        refs(sup)["a"].tell(ValueError("x"))
        await trio.sleep(5)
    told = events.drain()
    assert [brief(e) for e in told] == [
        ("ChildStarted", "a"),
        ("ChildExited", "a"),
        ("RestartScheduled", "a"),
        ("ChildStarted", "a"),
        ("StopRequested", "a"),
        ("ChildExited", "a"),
        ("SupervisorEnded", "top"),
    ]
    assert [e.seq for e in told] == list(range(told[0].seq, told[0].seq + 7))
    assert [e.time for e in told] == [0, 0, 0, 2, 5, 5, 5]
    assert told[1] == ChildExited(
        told[1].seq, 0, "top", "a", 1, "failed", "ValueError('x')", True
    )
    assert told[2] == RestartScheduled(told[2].seq, 0, "top", "a", 2.0)
    assert told[4] == StopRequested(told[4].seq, 5, "top", "a", "supervisor", None)
    assert told[5] == ChildExited(
        told[5].seq, 5, "top", "a", 2, "stopped", "supervisor", False
    )
    assert told[6] == SupervisorEnded(told[6].seq, 5, "top", "stopped", "owner")
    # Given from outside, the stream is not ended by the supervisor.
    async with open_supervisor([child("b", member)], events=stream):
        assert [brief(e) for e in events.drain()] == [("ChildStarted", "b")]


async def test_a_group_restart_is_told_in_the_order_of_its_steps():
    """B23, B24: one restart, the stops in reverse, the starts in order."""
    async with open_supervisor(
        [child(id, member) for id in "abc"], strategy="one_for_all"
    ) as sup:
        events = sup.events.subscribe()
        refs(sup)["b"].tell(ValueError())
        await wait_all_tasks_blocked()
        assert [brief(e) for e in events.drain()] == [
            ("ChildExited", "b"),
            ("RestartScheduled", "b"),
            ("StopRequested", "c"),
            ("ChildExited", "c"),
            ("StopRequested", "a"),
            ("ChildExited", "a"),
            ("ChildStarted", "a"),
            ("ChildStarted", "b"),
            ("ChildStarted", "c"),
        ]


async def test_giving_up_is_told():
    """Before the stop of the others; the end says why."""
    with pytest.raises(RestartIntensityExceeded):
        async with open_supervisor(
            [child("a", member)], intensity=0, name="top"
        ) as sup:
            events = sup.events.subscribe()
            refs(sup)["a"].tell(ValueError("x"))
            await trio.sleep_forever()
    told = events.drain()
    assert [brief(e) for e in told] == [
        ("ChildExited", "a"),
        ("GaveUp", "a"),
        ("SupervisorEnded", "top"),
    ]
    assert isinstance(told[1], GaveUp)
    assert told[1].detail == "ValueError('x')"
    assert told[2].exit == "failed"
    assert "RestartIntensityExceeded" in told[2].detail


async def test_nested_supervisors_share_one_stream_and_have_paths():
    """Whoever asks any of them sees the whole tree, in one order."""
    inner = partial(open_supervisor, [child("leaf", member)])
    middle = partial(open_supervisor, [child("inner", inner, kind="supervisor")])
    async with open_supervisor(
        [child("middle", middle, kind="supervisor")], name="top"
    ) as sup:
        down = refs(sup)["middle"].started_value
        deep = refs(down)["inner"].started_value
        assert sup.events is down.events is deep.events
        assert (sup.path, down.path, deep.path) == (
            "top",
            "top/middle",
            "top/middle/inner",
        )
        events = deep.events.subscribe()
        refs(deep)["leaf"].tell(ValueError())
        await wait_all_tasks_blocked()
        assert {e.supervisor for e in events.drain()} == {"top/middle/inner"}
    ended = [e.supervisor for e in events.drain() if isinstance(e, SupervisorEnded)]
    assert ended == ["top/middle/inner", "top/middle", "top"]


async def test_the_iteration_ends_with_the_outermost_supervisor():
    """After its last event."""
    seen = []

    async def read(events):
        async for event in events:
            seen.append(brief(event))  # noqa: PERF401

    async with trio.open_nursery() as nursery:
        async with open_supervisor([child("a", member)], name="top") as sup:
            nursery.start_soon(read, sup.events.subscribe())
            await wait_all_tasks_blocked()
    assert seen == [
        ("StopRequested", "a"),
        ("ChildExited", "a"),
        ("SupervisorEnded", "top"),
    ]
    assert sup.events.subscribe().drain() == []
    async for _ in sup.events:
        raise AssertionError("it has ended")  # pragma: no cover


async def test_a_slow_reader_gets_a_gap_with_the_count_and_blocks_nobody():
    """Also when nothing follows what it missed; others see everything."""
    async with open_dynamic_supervisor(intensity=10_000, name="pool") as sup:
        slow, fast = sup.events.subscribe(capacity=3), sup.events.subscribe()
        ref = await sup.start_child(child("a", member))
        for _ in range(50):
            ref.tell("return")
        await wait_all_tasks_blocked()
        everything = fast.drain()
        assert len(everything) == 1 + 50 * 3
        got = slow.drain()
        assert got[:3] == everything[:3]
        assert [type(e) for e in got[3:]] == [Gap]
        assert got[3].missed == len(everything) - 3
        ref.tell("return")
        await wait_all_tasks_blocked()
        assert slow.drain() == fast.drain()


async def test_a_reader_that_leaves_is_told_no_more():
    """Leaving its block, while the tree goes on."""
    async with open_dynamic_supervisor() as sup:
        with sup.events.subscribe() as events:
            await sup.start_child(child("a", member))
        await sup.start_child(child("b", member))
        assert [brief(e) for e in events.drain()] == [("ChildStarted", "a")]


async def test_readers_have_no_effect_on_the_tree():
    """The same run with no reader, one that never reads, and one that leaves."""
    runs = []

    async def noted(ctx, journal):
        journal.append(f"+{ctx.id}")
        try:
            await member(ctx)
        finally:
            journal.append(f"-{ctx.id}")

    for readers in range(3):
        journal = []
        async with open_supervisor(
            [child(id, noted, journal) for id in "abc"],
            strategy="one_for_all",
            intensity=5,
        ) as sup:
            subscriptions = [sup.events.subscribe(capacity=1) for _ in range(readers)]
            for _ in range(3):
                refs(sup)["b"].tell(ValueError())
                await wait_all_tasks_blocked()
                if subscriptions:
                    subscriptions.pop().close()
        runs.append(journal)
    assert runs[0] == runs[1] == runs[2]


async def test_each_reader_has_events_of_its_own():
    """They can be kept and compared. For type checkers they are frozen; whoever changes
    one all the same changes it for nobody else."""
    async with open_supervisor() as sup:
        events, others = sup.events.subscribe(), sup.events.subscribe()
        await sup.start_child(child("a", member))
        (event,), (other,) = events.drain(), others.drain()
        assert isinstance(event, ChildStarted)
        assert event == other
        assert len({event, other}) == 1
        event.child = "b"  # type: ignore[misc]
        assert brief(other) == ("ChildStarted", "a")


async def test_a_second_task_that_waits_for_the_same_reader_is_refused():
    """As it is for trio's streams; the first goes on, and neither hangs."""
    stream = EventStream()
    reader = stream.subscribe()
    told = []

    async def read():
        told.append((await anext(reader)).seq)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError, match="another task waits"):
            await anext(reader)
        stream.emit(ChildStarted, "top", "a", 1)
    assert told == [1]


async def test_a_reader_whose_wait_was_cancelled_waits_again_and_misses_nothing():
    stream = EventStream()
    reader = stream.subscribe()
    for seq in (1, 2):
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(anext, reader)
                await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        stream.emit(ChildStarted, "top", "a", 1)
        assert (await anext(reader)).seq == seq


async def test_a_reader_that_waits_or_was_too_slow_is_told_of_what_comes(
    autojump_clock,
):
    """What is appended without a look is only what needs none: no gap is moved, and
    nobody sleeps on."""
    stream = EventStream()
    slow, quick = stream.subscribe(capacity=2), stream.subscribe()
    told = []

    async def read():
        async for event in quick:
            told.append(event.seq)  # noqa: PERF401 - it is for one event at a time

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for _ in range(5):
            await wait_all_tasks_blocked()
            stream.emit(ChildStarted, "top", "a", 1)
        await wait_all_tasks_blocked()
        assert told == [1, 2, 3, 4, 5]
        kept = [slow.drain()]
        stream.emit(ChildStarted, "top", "a", 2)
        kept.append(slow.drain())
        for _ in range(3):
            stream.emit(ChildStarted, "top", "a", 3)
        assert (await anext(slow)).seq == 7
        stream.emit(ChildStarted, "top", "a", 4)
        kept.append(slow.drain())
        with trio.move_on_after(1):
            await anext(slow)
        stream.emit(ChildStarted, "top", "a", 5)
        kept.append(slow.drain())
        nursery.cancel_scope.cancel()
    seen = [
        [
            (type(it).__name__, it.missed if isinstance(it, Gap) else it.seq)
            for it in part
        ]
        for part in kept
    ]
    assert seen == [
        [("ChildStarted", 1), ("ChildStarted", 2), ("Gap", 3)],
        [("ChildStarted", 6)],
        [("ChildStarted", 8), ("Gap", 1), ("ChildStarted", 10)],
        [("ChildStarted", 11)],
    ]


@pytest.mark.parametrize("how", ["return", ValueError("x"), "stop", "end", "siblings"])
@pytest.mark.parametrize("dynamic", [False, True])
async def test_what_always_stays_down_ends_as_it_would_if_that_were_decided(
    how, dynamic, autojump_clock
):
    """The short way in `Children.on_child_exit` equals the long one."""

    async def history(*, short):
        spec = child("a", member, restart="temporary")
        assert spec.stays_down
        object.__setattr__(spec, "stays_down", short)
        stream = EventStream()
        events = stream.subscribe()
        opened = partial(open_supervisor, [spec], strategy="one_for_all")
        if dynamic:
            opened = open_dynamic_supervisor
        async with opened(events=stream, name="top") as sup:
            ref = await sup.start_child(child("b", member) if not dynamic else spec)
            first = ref if dynamic else refs(sup)["a"]
            if how == "stop":
                first.stop("enough")
            elif how == "end":
                await sup.terminate_child(first if dynamic else "a")
            elif how != "siblings":
                first.tell(how)
            elif not dynamic:
                ref.tell(ValueError("y"))
            await trio.sleep(1)
            infos = [(it.id, it.state) for it in sup.which_children()]
            left = first.state, str(first.incarnation.exit), infos
        return left, [attrs.evolve(it, time=0.0) for it in events.drain()]

    assert await history(short=True) == await history(short=False)


async def test_the_tree_as_text(autojump_clock):
    """`sup.tree()`: a line for each child, at every level."""
    inner = partial(
        open_supervisor, [child("x", member), child("y", member, restart="temporary")]
    )
    specs = [
        child("a", member),
        child("sub", inner, kind="supervisor"),
        child("pool", open_dynamic_supervisor, kind="supervisor"),
        child("z", member, restart="transient", backoff=Backoff(9, 9)),
    ]
    async with open_supervisor(
        specs, name="top", strategy="rest_for_one", intensity=3
    ) as sup:
        await refs(sup)["pool"].started_value.start_child(child("job", member))
        refs(sup)["z"].tell("return")
        refs(sup)["a"].tell(ValueError())
        await wait_all_tasks_blocked()
        refs(sup)["z"].tell(ValueError())
        await sup.terminate_child("pool")
        await wait_all_tasks_blocked()
        assert sup.tree() == (
            "top (rest_for_one, 3 restarts in 5 s)\n"
            "├─ a  permanent worker, running, incarnation 2\n"
            "├─ sub  permanent supervisor, running, incarnation 2 (one_for_one, 1 restarts in 5 s)\n"
            "│  ├─ x  permanent worker, running, incarnation 1\n"
            "│  └─ y  temporary worker, running, incarnation 1\n"
            "├─ pool  permanent supervisor, stopped, incarnation 2\n"
            "└─ z  transient worker, restarting, incarnation 2"
        )
    assert sup.tree().splitlines()[0] == "top (rest_for_one, 3 restarts in 5 s)"
    assert "running" not in sup.tree()
    assert repr(sup) == "<Supervisor top, 4 children>"


class Leaving:
    """Wants to end the program when it is looked at."""

    def __repr__(self):
        raise SystemExit("no repr")


class LeavingError(Leaving, Exception):
    pass


class Odd:
    """Shows itself as a str with its own opinions."""

    def __repr__(self):
        class Text(str):
            def __len__(self):
                raise SystemExit("no length")

        return Text("odd")


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (Leaving(), "<Leaving whose repr() fails>"),
        (LeavingError(), "<LeavingError whose repr() fails>"),
        (Odd(), "odd"),
    ],
)
async def test_whatever_an_end_shows_itself_as_it_is_told_and_ends_nobody_else(
    end, told
):
    """P10: an event about a child costs the tree nothing."""

    async def ends(ctx):
        if isinstance(end, Exception):
            raise end
        return end

    async with open_supervisor([child("other", member)]) as sup:
        with sup.events.subscribe() as events:
            await sup.start_child(child("a", ends, restart="temporary"))
            await wait_all_tasks_blocked()
            (exited,) = (e for e in events.drain() if isinstance(e, ChildExited))
        assert exited.detail == told
        assert refs(sup)["other"].state == "running"


async def test_a_reader_with_an_offer_of_its_own_is_offered_each_event() -> None:
    """Also once it has waited and was woken."""
    heard: list[int] = []

    class Ear(Subscription):
        def offer(self, event: Any) -> None:
            heard.append(event[1][0])
            super().offer(event)

    stream = EventStream()
    ear = Ear(stream, 3)
    stream.attach(ear, agents=False)
    for _ in range(5):
        stream.emit(Event)
    assert [type(it).__name__ for it in ear.drain()] == ["Event"] * 3 + ["Gap"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ear.__anext__)
        await wait_all_tasks_blocked()
        stream.emit(Event)
    stream.emit(Event)
    assert heard == [1, 2, 3, 4, 5, 6, 7]


async def test_a_result_that_is_too_long_to_be_shown_costs_no_end(monkeypatch):
    """P10: as whoever has a str of gigabytes, and no memory for another."""

    def no_memory(value):
        raise MemoryError

    async def ends(ctx):
        return "x" * 100

    monkeypatch.setattr("supervisor.tree._events.repr", no_memory, raising=False)
    async with open_supervisor() as sup:
        with sup.events.subscribe() as events:
            ref = await sup.start_child(child("a", ends, restart="temporary"))
            await ref.wait_stopped()
            (exited,) = (e for e in events.drain() if isinstance(e, ChildExited))
    assert exited.detail == "<str whose repr() fails>"
