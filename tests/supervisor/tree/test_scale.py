"""Many, fast, deep: the tree under load."""

# A block may end early, a started value be anything: here they are what they are.
# pyright: reportPossiblyUnboundVariable=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

import gc
import time
from functools import partial

import pytest
import trio
import trio.testing

from actors import ActorRef, Stopped
from supervisor.tree import (
    RestartIntensityExceeded,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)


async def idle(ctx):
    await trio.sleep_forever()


def refs(sup):
    return {info.id: info.ref for info in sup.which_children()}


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one", "one_for_all"])
async def test_a_storm_of_1000_instant_failures_is_bounded_and_others_are_served(
    strategy,
):
    """B31, P10: exactly 1,000 restarts, then the end; in between another child
    of the supervisor is answered again and again, and so is the supervisor."""
    runs = 0
    answers = []

    async def storm(ctx):
        nonlocal runs
        runs += 1
        if runs == 1:
            await wait_for_start.wait()
        raise ValueError(runs)

    async def echo(ctx):
        async for reply in ctx.mailbox:
            reply.tell(runs)

    wait_for_start = trio.Event()
    # A group restart would take the other child down if it came later.
    specs = [child("storm", storm)]
    with trio.fail_after(60):
        async with open_supervisor([child("echo", echo)]) as other:
            with pytest.raises(RestartIntensityExceeded) as caught:
                async with open_supervisor(
                    specs, strategy=strategy, intensity=1000, period=1000
                ) as sup:
                    wait_for_start.set()
                    while True:
                        answers.append(
                            await refs(other)["echo"].ask(lambda reply: reply)
                        )
                        assert sup.count_children().specs == 1
    assert runs == 1001
    assert len(caught.value.failures) == 5
    # It was answered during the storm, not before and after.
    assert len(set(answers)) > 100


async def test_a_storm_beside_a_healthy_sibling(autojump_clock):
    """P10: the sibling's mailbox is served, and its incarnation stays."""
    handled = []

    async def healthy(ctx):
        async for message in ctx.mailbox:
            handled.append((message, ctx.number))  # noqa: PERF401

    async def storm(ctx):
        await trio.lowlevel.checkpoint()
        raise ValueError

    with pytest.raises(RestartIntensityExceeded):
        async with open_supervisor([child("healthy", healthy)], intensity=1000) as sup:
            await sup.start_child(child("storm", storm))
            for n in range(100_000):
                refs(sup)["healthy"].tell(n)
                await trio.lowlevel.checkpoint()
    assert len(handled) > 500
    assert handled == [(n, 1) for n in range(len(handled))]


async def start_and_stop(block, number):
    """Return the seconds it took."""
    gc.collect()
    began = time.perf_counter()
    async with block() as sup:
        for n in range(number):
            await sup.start_child(child(f"c{n}", idle))
        assert sup.count_children().active == number
    assert sup.count_children().active == 0
    return time.perf_counter() - began


@pytest.mark.parametrize("block", [open_supervisor, open_dynamic_supervisor])
async def test_10000_children_start_and_stop_in_nearly_linear_time(block):
    """Within 10 times of linear from 1,000; a quadratic step would show."""
    await start_and_stop(block, 100)
    thousand = min([await start_and_stop(block, 1000) for _ in range(2)])
    ten_thousand = await start_and_stop(block, 10_000)
    assert ten_thousand < 10 * 10 * thousand


async def test_10000_children_end_by_themselves_at_once():
    """Their ends are linear too, and nothing of them is kept."""

    async def short(ctx, event):
        await event.wait()

    event = trio.Event()
    with trio.fail_after(60):
        async with open_dynamic_supervisor(
            child("c", short, restart="temporary")
        ) as sup:
            all_refs = [sup.start_child_nowait(event) for _ in range(10_000)]
            event.set()
            for ref in all_refs:
                await ref.wait_stopped()
            assert sup.which_children() == []


def nested(levels, leaf):
    spec = child("leaf", leaf)
    for level in reversed(range(levels)):
        spec = child(f"l{level}", partial(open_supervisor, [spec]), kind="supervisor")
    return spec


async def test_a_tree_of_300_levels_starts_draws_and_stops():
    """B75: depth costs no recursion."""
    ended = []

    async def leaf(ctx):
        try:
            await trio.sleep_forever()
        finally:
            ended.append(ctx.id)

    with trio.fail_after(60):
        async with open_supervisor([nested(300, leaf)], name="top") as sup:
            lines = sup.tree().splitlines()
            assert len(lines) == 302
            assert (
                lines[-1].strip() == "└─ leaf  permanent worker, running, incarnation 1"
            )
            deepest = sup
            while "leaf" not in refs(deepest):
                (ref,) = refs(deepest).values()
                deepest = ref.started_value
            assert deepest.path.count("/") == 300
        assert ended == ["leaf"]
    assert deepest.exit == Stopped("owner")


async def test_a_tree_of_300_levels_under_an_outer_cancellation():
    """B75, P8: from the leaf up."""
    with trio.fail_after(60), trio.CancelScope() as scope:
        async with open_supervisor([nested(300, idle)]) as sup:
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert sup.exit == Stopped("owner")


async def test_an_escalation_through_30_levels():
    """B33: each level gives up in turn, with the one below as the cause."""

    async def leaf(ctx):
        async for _ in ctx.mailbox:
            raise ValueError("leaf")

    spec = child("leaf", leaf)
    for level in range(30):
        make = partial(open_supervisor, [spec], intensity=0)
        spec = child(f"l{level}", make, kind="supervisor")
    with trio.fail_after(60), pytest.raises(RestartIntensityExceeded) as caught:
        async with open_supervisor([spec], intensity=0) as sup:
            deepest = sup
            while "leaf" not in refs(deepest):
                (ref,) = refs(deepest).values()
                deepest = ref.started_value
            refs(deepest)["leaf"].tell("crash")
            await trio.sleep_forever()
    depth, error = 0, caught.value
    while isinstance(error.__cause__, RestartIntensityExceeded):
        depth, error = depth + 1, error.__cause__
    assert depth == 30
    assert str(error.__cause__) == "leaf"


async def test_stopping_very_many_children_lets_others_run_meanwhile():
    """P10: they are asked in batches, and every one of them is."""
    turns = 0
    done = trio.Event()

    async def count():
        nonlocal turns
        while not done.is_set():
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        async with open_dynamic_supervisor() as sup:
            spec = child("c", idle, restart="temporary")
            all_refs = [sup.start_child_nowait(spec) for _ in range(2000)]
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(count)
            assert await sup.terminate_children(all_refs[:1000]) == []
            after_some = turns
        after_all = turns
        done.set()
    assert after_some > 10
    assert after_all > after_some + 10
    assert {ref.state for ref in all_refs} == {"stopped"}


async def test_a_chain_of_actors_keeps_no_link_but_the_last():
    """P7: each asks for the next and ends; whoever runs holds none of them."""
    end = trio.Event()

    async def link(ctx, sup, left):
        if left == 0:
            await end.wait()
        else:
            sup.start_child_nowait(chain, sup, left - 1, id=f"link {left - 1}")

    chain = child("link", link, restart="temporary")
    async with open_dynamic_supervisor() as sup:
        sup.start_child_nowait(chain, sup, 50)
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        kept = {
            thing.id
            for thing in gc.get_objects()
            if isinstance(thing, ActorRef) and thing.id.startswith("link ")
        }
        assert kept <= {"link 0", "link 1"}
        end.set()
