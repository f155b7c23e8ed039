"""What type checkers must see in the tree's public face. Checked, not run."""

from __future__ import annotations

from functools import partial
from typing import Any, assert_type

import trio

from actors import ActorRef, Context, Failed, Reply, Stopped
from supervisor.tree import (
    Backoff,
    ChildSpec,
    ChildTemplate,
    DynamicSupervisor,
    Supervisor,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)


class Get:
    def __init__(self, reply: Reply[int]) -> None:
        self.reply = reply


async def counter(ctx: Context[int | Get], start: int) -> int:
    total = start
    async for message in ctx.mailbox:
        if isinstance(message, Get):
            message.reply.tell(total)
        else:
            total += message
    return total


async def no_arguments(ctx: Context[str]) -> None:
    await trio.sleep_forever()


# The arguments are those of the function, in number and in type.
assert_type(child("a", counter, 0), ChildSpec[int | Get])
assert_type(child("a", no_arguments), ChildSpec[str])
child("a", counter, "0")  # type: ignore[arg-type]
child("a", counter, 0, 1)  # type: ignore[call-arg, arg-type]
child("a", no_arguments, restart="always")  # type: ignore[call-overload, call-arg]
child("a", no_arguments, shutdown="never")  # type: ignore[call-overload, call-arg]

# A supervisor as a child, by the class itself or a partial of it.
children: list[ChildSpec[Any]] = [
    child("a", counter, 0, backoff=Backoff(1, 60, jitter=0.1))
]
child("s", open_supervisor, children, kind="supervisor")
child(
    "s", partial(open_supervisor, children, strategy="one_for_all"), kind="supervisor"
)
child("s", open_dynamic_supervisor, kind="supervisor")


async def copier(ctx: Context[str], source: str, target: str, size: int) -> None:
    await trio.sleep_forever()


# Without the last arguments it is a template, which only a dynamic supervisor
# takes; those that are there are checked all the same.
assert_type(child("a", counter), ChildTemplate[int | Get])
assert_type(child("a", copier), ChildTemplate[str])
assert_type(child("a", copier, "from"), ChildTemplate[str])
assert_type(child("a", copier, "from", "to"), ChildTemplate[str])
assert_type(child("a", copier, "from", "to", 1), ChildSpec[str])
child("a", copier, 1)  # type: ignore[arg-type]
open_supervisor([child("a", counter)])  # type: ignore[list-item]


async def use() -> None:
    async with open_supervisor(
        children=[child("counter", counter, 0)], intensity=3
    ) as sup:
        assert_type(sup, Supervisor)
        ref = await sup.start_child(child("other", counter, 0, restart="transient"))
        assert_type(ref, ActorRef[int | Get])
        ref.tell(1)
        await ref.send(2)
        total: int = await ref.ask(Get)
        assert_type(total, int)
        ref.tell("x")  # type: ignore[arg-type]
        assert_type(sup.exit, Failed | Stopped | None)
        assert_type(await sup.restart_child("counter"), ActorRef[Any])
        assert_type(sup.tree(), str)


async def may_end_early() -> int:
    # The block may be cancelled by the supervisor, so this function may run
    # off its end: without a return after the block it does not check.
    async with open_supervisor():
        return 1
    return 2


async def without_return() -> int:  # type: ignore[return]
    async with open_supervisor():
        return 1


async def use_dynamic() -> None:
    async with open_dynamic_supervisor(child("job", counter, 0), max_children=5) as sup:
        assert_type(sup, DynamicSupervisor)
        ref = await sup.start_child(3)
        await sup.terminate_child(ref)
    async with open_dynamic_supervisor(child("job", counter)) as sup:
        ref = await sup.start_child(3)
        assert_type(sup.child_spec(ref), ChildSpec[Any])
    template = child("copy", copier, "from", restart="temporary", wait_started=True)
    async with open_dynamic_supervisor(template) as sup:
        sup.start_child_nowait("to", 1)
    async with open_dynamic_supervisor() as sup:
        await sup.start_child(child("job", counter), 3)
