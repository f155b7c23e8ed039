"""Scenes in which operations of actors and of trees are called."""

# A block may end early; here it does not.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import trio
from trio.lowlevel import checkpoint

import actors
from actors import ActorRef, Context, Reply
from supervisor.simulation import Sim
from supervisor.tree import (
    AlreadyPresent,
    Backoff,
    ChildNotFound,
    ChildRestarting,
    ChildRunning,
    StartFailed,
    SupervisorStopping,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)

from .accounts import Account, together
from .strikes import Scene, block, call, each


async def answers(ctx: Context[Any]) -> None:
    async for message in ctx.mailbox:
        if isinstance(message, Reply):
            await trio.sleep(0.1)
            message.tell("yes")
        elif message == "die":
            raise LookupError("it is told to die")


async def asks_actors(sim: Sim) -> None:
    """One asks, sends and waits for its end, and another one dies and comes back."""
    spec = child("answers", answers, mailbox=1, restart="temporary")
    async with still_tree(sim) as (tree, ref):
        asked = await tree.start_child(spec)

        async def ask() -> None:
            assert await call(sim, asked.ask, lambda reply: reply) in ("yes", None)

        async def send() -> None:
            for _ in range(2):
                await call(sim, asked.send, "hello")

        async def wait() -> None:
            reply: Reply[str] = Reply()
            await asked.send(reply)
            assert await call(sim, reply.wait) in ("yes", None)

        async def dies() -> None:
            ref.tell("die")
            await ref.wait_exit()
            await call(sim, ref.wait_running)

        async def ends() -> None:
            await trio.sleep(2)
            asked.stop()

        await together(
            *(ask, send, wait, dies, ends),
            lambda: call(sim, asked.wait_stopped),
            lambda: call(sim, asked.wait_exit),
        )


@asynccontextmanager
async def still_tree(sim: Sim) -> AsyncGenerator[tuple[Any, ActorRef[Any]]]:
    """A supervisor that still works behind the block, with a child that answers."""
    account = Account()
    spec = child("first", answers, backoff=Backoff(0.1, 1))
    async with open_supervisor(children=[spec], intensity=9) as tree:
        events = tree.events.subscribe()
        (first,) = tree.which_children()
        account.begun[tree.path, "first", 1] += 1
        yield tree, first.ref
        with sim.within(60):
            await first.ref.wait_running()
            assert await first.ref.ask(lambda reply: reply) == "yes"
            last = await tree.start_child(child("last", answers))
            assert await last.ask(lambda reply: reply) == "yes"
    account.add(events.drain())
    account.check()


async def reads_mailboxes(sim: Sim) -> None:
    """Actors that are struck where they read, and one that is full."""
    read: list[object] = []

    async def receives(ctx: Context[int]) -> None:
        read.extend([await call(sim, ctx.mailbox.receive) for _ in range(3)])

    async def iterates(ctx: Context[int]) -> None:
        read.extend([it async for it in each(sim, ctx.mailbox)])

    async def batches(ctx: Context[int]) -> None:
        while (got := await call(sim, ctx.mailbox.receive_batch)) is not None:
            read.extend(got)
            await trio.sleep(0.1)

    async with still_tree(sim) as (tree, _):
        refs = [
            await tree.start_child(
                child(fn.__name__, fn, mailbox=1, restart="temporary")
            )
            for fn in (receives, iterates, batches)
        ]

        async def feed(ref: ActorRef[int]) -> None:
            for number in range(3):
                try:
                    await call(sim, cast("Any", ref).mailbox.put, number)
                except actors.ActorEnded:
                    return
                await checkpoint()
            ref.stop()
            await ref.wait_stopped()

        async with trio.open_nursery() as nursery:
            for ref in refs:
                nursery.start_soon(feed, ref)
    numbers = Counter(it for it in read if it is not None)
    assert all(times <= len(refs) for times in numbers.values()), numbers


async def serves_children(sim: Sim) -> None:
    """Children are started, ended, started again and forgotten, by two at once."""
    async with still_tree(sim) as (tree, first):

        async def one(name: str) -> None:
            refusals = (
                *(ChildNotFound, ChildRunning, ChildRestarting, AlreadyPresent),
                *(StartFailed, SupervisorStopping),
            )
            spec = child(name, slow, restart="transient")
            steps: list[tuple[Any, Any]] = [
                (tree.start_child, spec),
                (tree.terminate_child, name),
                (tree.restart_child, name),
                (tree.terminate_child, name),
                (tree.delete_child, name),
            ]
            for fn, it in steps:
                try:
                    await call(sim, fn, it)
                except refusals:
                    pass  # The one before was struck.

        async def dies() -> None:
            first.tell("die")

        await together(lambda: one("a"), lambda: one("b"), dies)


async def slow(ctx: Context[Any]) -> None:
    """It takes its time to start and to end."""
    await trio.sleep(0.1)
    ctx.started()
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await trio.sleep(0.1)


async def opens_trees(sim: Sim) -> None:
    """Both kinds are opened and left, waited for and listened to."""
    listed = [child("a", slow), child("b", slow)]
    account = Account()
    outer = trio.Event()

    async def static() -> None:
        def hold(tree: Any) -> None:
            nursery.start_soon(waits, tree)
            nursery.start_soon(listens, tree.events.subscribe())

        await block(sim, open_supervisor(children=listed, name="static"), hold)

    async def dynamic() -> None:
        def hold(tree: Any) -> None:
            tree.start_child_nowait(child("c", slow))
            nursery.start_soon(waits, tree)

        await block(sim, open_dynamic_supervisor(name="dynamic"), hold)

    async def waits(tree: Any) -> None:
        await call(sim, tree.wait)
        with sim.within(30):
            await tree.wait()
        assert tree.exit is not None

    async def listens(events: Any) -> None:
        async for event in each(sim, events):
            account.add([event])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(static)
        nursery.start_soon(dynamic)
        outer.set()
    assert set(account.ended.values()) <= {1}, account.ended


async def serves_dynamic_children(sim: Sim) -> None:
    async with still_tree(sim), open_dynamic_supervisor() as tree:

        async def one() -> None:
            ref = await call(sim, tree.start_child, child("x", slow))
            if ref is not None:
                try:
                    await call(sim, tree.terminate_child, ref)
                except ChildNotFound:
                    pass

        async def many() -> None:
            refs = [tree.start_child_nowait(child("y", slow)) for _ in range(2)]
            await trio.sleep(0.2)
            await call(sim, tree.terminate_children, refs)

        await together(one, one, many)
        with sim.within(60):
            ref = await tree.start_child(child("z", slow))
            await tree.terminate_child(ref)
            assert ref.state == "stopped"


SCENES: tuple[Scene, ...] = (
    asks_actors,
    reads_mailboxes,
    serves_children,
    serves_dynamic_children,
    opens_trees,
)
