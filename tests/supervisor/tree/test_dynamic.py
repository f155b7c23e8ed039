"""Dynamic supervisors: templates, limits, names by reference."""

# A block may end early, a started value be anything: here they are what they are.
# pyright: reportPossiblyUnboundVariable=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors import Completed, Failed, Stopped
from supervisor.tree import (
    Backoff,
    ChildIgnored,
    ChildNotFound,
    MaxChildrenReached,
    RestartIntensityExceeded,
    StartFailed,
    SupervisorStopping,
    child,
    open_dynamic_supervisor,
)


async def member(ctx, *args):
    async for message in ctx.mailbox:
        if isinstance(message, BaseException):
            raise message
        if message == "return":
            return args
    return None


async def test_a_template_gets_more_arguments_appended():
    """B49, deviation: OTP's extra arguments come first. They survive restarts."""
    seen = []

    async def work(ctx, *args):
        seen.append(args)
        await member(ctx)

    template = child("job", work, 1, 2)
    async with open_dynamic_supervisor(template) as sup:
        one = await sup.start_child(3)
        two = await sup.start_child()
        assert (one.id, two.id) == ("job", "job")
        one.tell(ValueError())
        await wait_all_tasks_blocked()
        assert seen == [(1, 2, 3), (1, 2), (1, 2, 3)]


async def test_without_a_template_it_takes_a_spec():
    """With more arguments for it."""
    async with open_dynamic_supervisor() as sup:
        ref = await sup.start_child(child("a", member, 1, restart="temporary"), 2)
        ref.tell("return")
        assert await ref.wait_stopped() == Completed((1, 2))


async def test_there_is_no_restart_and_no_deletion_by_hand():
    """Children are named by ref and forgotten when they end."""
    async with open_dynamic_supervisor() as sup:
        assert not hasattr(sup, "restart_child")
        assert not hasattr(sup, "delete_child")


async def test_the_spec_of_a_child_is_asked_for_by_its_ref():
    """With the name and the arguments of its own; of one that is gone, or is a
    stranger's, there is none."""
    spec = child("a", member, 1, restart="transient")
    async with open_dynamic_supervisor(spec) as sup, open_dynamic_supervisor() as other:
        plain = await sup.start_child()
        more = sup.start_child_nowait(2, id="b")
        assert sup.child_spec(plain) is spec
        assert sup.child_spec(more) == attrs.evolve(spec, id="b", args=(1, 2))
        stranger = await other.start_child(child("a", member))
        await sup.terminate_child(plain)
        for ref in (plain, stranger, "a"):
            with pytest.raises(ChildNotFound):
                sup.child_spec(ref)


@pytest.mark.parametrize("limit", [0, 2])
async def test_no_more_than_max_children(limit):
    """B48: 0 refuses all; room comes back when one has ended."""
    async with open_dynamic_supervisor(max_children=limit, name="pool") as sup:
        refs = [await sup.start_child(child("a", member)) for _ in range(limit)]
        with pytest.raises(
            MaxChildrenReached, match=f"'pool' has its {limit} children"
        ):
            await sup.start_child(child("a", member))
        assert sup.count_children().specs == limit
        if refs:
            await sup.terminate_child(refs[0])
            await sup.start_child(child("a", member))


@pytest.mark.parametrize("how", ["ended", "start failed"])
async def test_a_child_that_is_restarting_counts_as_one(how, autojump_clock):
    """B48: while it waits for its restart, after an end or a failed restart."""

    async def work(ctx):
        if ctx.number == 2 and how == "start failed":
            raise ValueError
        ctx.started()
        await member(ctx)

    template = child("a", work, wait_started=True, backoff=Backoff(5, 5))
    async with open_dynamic_supervisor(template, max_children=1, intensity=5) as sup:
        ref = await sup.start_child()
        ref.tell(ValueError())
        await trio.sleep(7 if how == "start failed" else 1)
        assert ref.state == "restarting"
        counts = sup.count_children()
        assert (counts.specs, counts.active, counts.workers) == (1, 0, 1)
        with pytest.raises(MaxChildrenReached):
            await sup.start_child()
        await trio.sleep(10)
        assert ref.state == "running"
        ref.tell(ValueError())
        await wait_all_tasks_blocked()
        await sup.terminate_child(ref)
        await sup.start_child()


async def test_what_failed_or_declined_to_start_leaves_room():
    """B14, B48: nothing is kept."""
    from actors import Ignore

    async def refuse(ctx, error):
        raise error

    async with open_dynamic_supervisor(
        child("a", refuse, wait_started=True), max_children=1
    ) as sup:
        for _ in range(3):
            with pytest.raises(StartFailed):
                await sup.start_child(ValueError())
            with pytest.raises(ChildIgnored):
                await sup.start_child(Ignore())
        assert sup.which_children() == []


async def test_the_budget_is_for_all_children_together():
    """B34: as for a static supervisor; and an overflow stops all."""
    ended = []

    async def work(ctx):
        try:
            await member(ctx)
        finally:
            ended.append(ctx.number)

    with pytest.raises(RestartIntensityExceeded):
        async with open_dynamic_supervisor(child("a", work), intensity=1) as sup:
            refs = [await sup.start_child() for _ in range(3)]
            for ref in refs[:2]:
                ref.tell(ValueError())
                await wait_all_tasks_blocked()
            await trio.sleep_forever()
    assert sorted(ended) == [1, 1, 1, 2]
    assert {ref.state for ref in refs} == {"stopped"}
    assert isinstance(sup.exit, Failed)


async def test_nothing_starts_when_it_has_ended():
    """B75: refused; terminating does nothing; listing works."""
    async with open_dynamic_supervisor() as sup:
        ref = await sup.start_child(child("a", member))
    with pytest.raises(SupervisorStopping):
        await sup.start_child(child("a", member))
    with pytest.raises(SupervisorStopping):
        sup.start_child_nowait(child("a", member))
    await sup.terminate_child(ref)
    assert sup.which_children() == []
    assert sup.count_children().specs == 0
    assert sup.exit == Stopped("owner")


async def test_start_child_nowait_tells_its_watcher_of_the_final_end():
    """Once, in the last step, with the child's own id; not of a restart."""
    told = []

    def watch(ref, exit):
        told.append((ref.id, ref.state, exit))

    async with open_dynamic_supervisor(intensity=5) as sup:
        one = sup.start_child_nowait(
            child("job", member, restart="transient"), "x", id="j1", watcher=watch
        )
        assert (one.id, one.state) == ("j1", "starting")
        one.tell(ValueError())
        await wait_all_tasks_blocked()
        assert told == []
        one.tell("return")
        await wait_all_tasks_blocked()
        assert told == [("j1", "stopped", Completed(("x",)))]
        two = sup.start_child_nowait(child("job", member), id="j2", watcher=watch)
        await sup.terminate_child(two)
        sup.start_child_nowait(child("job", member), id="j3", watcher=watch)
    assert [(id, state) for id, state, _ in told] == [
        ("j1", "stopped"), ("j2", "stopped"), ("j3", "stopped"),
    ]  # fmt: skip
    # It was told to stop before its first step.
    assert told[1][2] == Stopped("supervisor")


async def test_counting_children():
    """Specs, active, supervisors, workers."""
    async with open_dynamic_supervisor() as sup:
        await sup.start_child(child("a", member))
        await sup.start_child(child("s", open_dynamic_supervisor, kind="supervisor"))
        counts = sup.count_children()
        assert (counts.specs, counts.active, counts.supervisors, counts.workers) == (
            2,
            2,
            1,
            1,
        )
        assert [(info.id, info.kind, info.state) for info in sup.which_children()] == [
            ("a", "worker", "running"),
            ("s", "supervisor", "running"),
        ]
