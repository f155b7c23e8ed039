"""What is awaited and fails at once lets others run first, and can be cancelled.

Else a loop that tries again after each error would hold the whole program, and
no deadline could end it.
"""

# A block may end early, a started value be anything: here they are what they are.
# pyright: reportPossiblyUnboundVariable=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

import inspect
from functools import partial

import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from actors import (
    ActorEnded,
    ActorError,
    ActorRef,
    ActorRestarting,
    ActorStopping,
    Mailbox,
    MailboxClosed,
)
from actors.shell import Shell
from actors.testing import fake_env
from supervisor.runtime import (
    BacklogFull,
    InputClosed,
    Limits,
    OutputEnded,
    ResumeRefused,
    RuntimeStopping,
    SupervisorError,
    UnknownTask,
    open_runtime,
)
from supervisor.tree import (
    AlreadyPresent,
    AlreadyStarted,
    Backoff,
    ChildNotFound,
    ChildRestarting,
    ChildRunning,
    DynamicSupervisor,
    InvalidChildSpec,
    MaxChildrenReached,
    Supervisor,
    SupervisorStopping,
    WouldDeadlock,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)
from tests.supervisor.jobs import COMPLETED, Job


async def reads(ctx):
    async for message in ctx.mailbox:
        if message == "crash":
            raise ValueError
        if message == "close":
            ctx.mailbox.close()
            await trio.sleep_forever()


async def slow_end(ctx):
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)


def question(reply):
    return reply


async def fails(error, call, *args):
    """It fails so, after a checkpoint, and not at all where it is cancelled."""
    with assert_checkpoints(), pytest.raises(error):
        await call(*args)
    with trio.CancelScope() as scope:
        scope.cancel()
        await call(*args)
    assert scope.cancelled_caught


async def test_whatever_fails_at_once_in_a_tree_makes_a_checkpoint_first(
    autojump_clock,
):
    """P9: every awaited operation of refs, mailboxes and supervisors."""
    tried = []

    async def try_(error, call, *args):
        tried.append(call.__name__)
        await fails(error, call, *args)

    async def stop_above(ctx):
        async for sup in ctx.mailbox:
            await fails(WouldDeadlock, sup.terminate_child, "above")
            await fails(WouldDeadlock, sup.restart_child, "above")
            tried.append("above")

    async def stop_itself(ctx):
        async for sup in ctx.mailbox:
            await fails(WouldDeadlock, sup.terminate_child, ctx.ref)
            await fails(WouldDeadlock, sup.terminate_children, [ctx.ref])
            tried.append("itself")

    specs = [
        child("run", reads),
        child("waits", reads, backoff=Backoff(99, 99)),
        child("stops", slow_end),
        child("stopped", reads),
        child("closed", reads),
        child("above", stop_above),
    ]
    async with trio.open_nursery() as nursery:
        async with open_supervisor(specs) as sup:
            refs = {info.id: info.ref for info in sup.which_children()}
            refs["waits"].tell("crash")
            refs["closed"].tell("close")
            refs["above"].tell(sup)
            await sup.terminate_child("stopped")
            nursery.start_soon(sup.terminate_child, "stops")
            await wait_all_tasks_blocked()
            await try_(ActorRestarting, refs["waits"].ask, question)
            await try_(ActorStopping, refs["stops"].ask, question)
            await try_(ActorEnded, refs["stopped"].ask, question)
            await try_(MailboxClosed, refs["closed"].ask, question)
            await try_(ActorEnded, refs["stopped"].send, 1)
            await try_(ActorEnded, refs["stopped"].wait_running)
            await try_(AlreadyStarted, sup.start_child, specs[0])
            await try_(AlreadyPresent, sup.start_child, specs[3])
            await try_(InvalidChildSpec, sup.start_child, "no spec")
            await try_(ChildNotFound, sup.terminate_child, "x")
            await try_(ChildRunning, sup.restart_child, "run")
            await try_(ChildRestarting, sup.restart_child, "waits")
            await try_(ChildNotFound, sup.restart_child, "x")
            await try_(ChildRunning, sup.delete_child, "run")
        await try_(SupervisorStopping, sup.start_child, specs[0])
        await try_(SupervisorStopping, sup.restart_child, "run")
    async with open_dynamic_supervisor(max_children=1) as pool:
        await try_(InvalidChildSpec, pool.start_child)
        ref = await pool.start_child(child("itself", stop_itself))
        ref.tell(pool)
        await wait_all_tasks_blocked()
        await try_(MaxChildrenReached, pool.start_child, specs[0])
        await try_(ChildNotFound, pool.terminate_child, refs["run"])
    mailbox = Mailbox()
    mailbox.close()
    for call in (mailbox.receive, mailbox.receive_batch, partial(mailbox.put, 1)):
        await fails(MailboxClosed, call)
    await fails(StopAsyncIteration, lambda: anext(mailbox))
    # What else is awaited never fails by itself, or not at once.
    tried += ["above", "itself", "wait", "wait_exit", "wait_stopped"]
    for kind in (ActorRef, Supervisor, DynamicSupervisor):
        for name, function in inspect.getmembers(kind, inspect.isroutine):
            if inspect.iscoroutinefunction(function) and not name.startswith("_"):
                assert name in (*tried, "terminate_children"), name


@pytest.mark.parametrize("error", [InvalidChildSpec])
async def test_a_block_that_is_refused_makes_a_checkpoint_first(error):
    """P9: entering is awaited, too."""
    for block in (
        open_supervisor([child("a", reads), child("a", reads)]),
        open_supervisor(["no spec"]),
        open_dynamic_supervisor("no spec"),
    ):
        with assert_checkpoints(), pytest.raises(error):
            await block.__aenter__()


async def test_whatever_fails_at_once_in_a_runtime_makes_a_checkpoint_first(tmp_path):
    """P9: every awaited operation of runtimes, handles, sets, readers, turns."""

    async def hangs(_):
        await trio.sleep_forever()

    env = fake_env({"hang": hangs, "quick": ""})
    limits = Limits(backlog=1)
    async with open_runtime(tmp_path, env=env, limits=limits) as runtime:
        task = await runtime.launch(Shell("hang"))
        ended = await runtime.launch(Shell("quick"), notify="silent")
        await ended.wait()
        calls = [
            (TypeError, partial(runtime.launch, "no work")),
            (ValueError, partial(runtime.launch, Shell("quick"), notify="x")),
            (TypeError, partial(runtime.run, "no work")),
            (TypeError, partial(runtime.send, 7, "text")),
            (TypeError, partial(runtime.send, task, 7)),
            (UnknownTask, partial(runtime.send, "unknown", "text")),
            (TypeError, partial(runtime.resume, task, agent=7)),
            (ResumeRefused, partial(runtime.resume, task)),
            (ValueError, partial(runtime.wait_any, [])),
            (UnknownTask, partial(runtime.wait_any, ["unknown"])),
            (UnknownTask, partial(runtime.wait_all, ["unknown"])),
            (ValueError, partial(runtime.schedule, "no cron", "text")),
            (UnknownTask, partial(runtime.stop, "unknown")),
            (TypeError, partial(runtime.stop, task, now=1)),
            (TypeError, partial(runtime.stop_all, 7)),
            (TypeError, partial(runtime.stop_foreground, 7)),
            (TypeError, partial(task.write, 7)),
            (InputClosed, partial(task.write, "x")),
            (InputClosed, task.close_input),
            (ValueError, partial(task.wait_output, "")),
            (OutputEnded, partial(ended.wait_output, "x")),
            (ValueError, partial(runtime.notifications.receive_batch, 0)),
        ]
        for error, call in calls:
            await fails(error, call)
        turn = runtime.turn("o")
        async with turn:
            await fails(SupervisorError, turn.__aenter__)
            await fails(WouldDeadlock, runtime.wakes("o").__anext__)

        async def asks(ctx, report):
            own = runtime.handle(ctx.id)
            for call in (
                own.wait,
                own.stop,
                runtime.stop_all,
                runtime.wait_idle,
                partial(runtime.wait_any, [own]),
                runtime.task_set(own).__anext__,
            ):
                await fails(WouldDeadlock, call)

        snapshot = await (await runtime.launch(Job(asks))).wait()
        assert snapshot.status is COMPLETED, snapshot.error
        while True:
            try:
                await runtime.launch(Shell("quick"))
                await wait_all_tasks_blocked()
            except BacklogFull:
                break
        await fails(BacklogFull, partial(runtime.launch, Shell("quick")))
    await fails(RuntimeStopping, partial(runtime.launch, Shell("quick")))
    await fails(RuntimeStopping, partial(runtime.run, Shell("quick")))


async def test_asking_again_and_again_while_an_actor_restarts_holds_nobody_up(
    autojump_clock,
):
    """The natural loop: others run, a deadline ends it, and it gets its answer."""

    async def answers(ctx):
        async for message in ctx.mailbox:
            if message == "crash":
                raise ValueError
            message.tell(ctx.number)

    async with open_supervisor([child("a", answers, backoff=Backoff(5, 5))]) as sup:
        (info,) = sup.which_children()
        info.ref.tell("crash")
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:

            async def give_up():
                for _ in range(100):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(give_up)
                while True:
                    try:
                        await info.ref.ask(question)
                    except ActorError:
                        pass
        assert scope.cancelled_caught
        while True:
            try:
                assert await info.ref.ask(question) == 2
                break
            except ActorRestarting:
                await info.ref.wait_running()
        assert trio.current_time() == 5


async def test_waiting_until_an_actor_runs(autojump_clock):
    """`wait_running` returns when an incarnation has acknowledged its start, at
    once if one runs, and raises when none will come by itself."""
    times = []

    async def slow(ctx):
        await trio.sleep(2)
        if ctx.number == 2:
            raise ValueError
        ctx.started()
        await reads(ctx)

    async def wait(ref):
        try:
            await ref.wait_running()
            times.append(trio.current_time())
        except ActorEnded:
            times.append("ended")

    async with open_supervisor(intensity=5) as sup, trio.open_nursery() as nursery:
        spec = child("a", slow, wait_started=True, backoff=Backoff(10, 10))
        nursery.start_soon(sup.start_child, spec)
        await wait_all_tasks_blocked()
        ref = sup.which_children()[0].ref
        nursery.start_soon(wait, ref)
        await trio.sleep(3)
        await wait(ref)
        assert times == [2, 3]
        ref.tell("crash")
        await wait_all_tasks_blocked()
        nursery.start_soon(wait, ref)
        nursery.start_soon(wait, ref)
        await trio.sleep(100)
        # The second incarnation failed; the third one runs.
        assert times == [2, 3, 27, 27]
        ref.tell("crash")
        await wait_all_tasks_blocked()
        nursery.start_soon(wait, ref)
        await wait_all_tasks_blocked()
        await sup.terminate_child("a")
        await wait_all_tasks_blocked()
        assert times == [2, 3, 27, 27, "ended"]
        nursery.start_soon(sup.restart_child, "a")
        await wait_all_tasks_blocked()
        await wait(ref)
        assert times[5:] == [105]
        with trio.move_on_after(1) as scope:
            ref.tell("crash")
            await wait_all_tasks_blocked()
            await ref.wait_running()
        assert scope.cancelled_caught
