"""Checked by mypy and pyright, never run: what the types of `actors` promise."""

from __future__ import annotations

from typing import Any, TypeAlias, assert_never, assert_type

import attrs

from actors import (
    ActorRef,
    Completed,
    Context,
    Exit,
    Failed,
    Mailbox,
    Reply,
    Stopped,
)
from actors.lowlevel import Cell, StoppedBy, current_actor, is_normal


@attrs.frozen
class Get:
    reply: Reply[int]


Message: TypeAlias = int | Get


async def counter(ctx: Context[Message], start: int) -> int:
    total = start
    assert_type(ctx.mailbox, Mailbox[Message])
    assert_type(ctx.ref, ActorRef[Message])
    assert_type(ctx.deadline, float)
    async for message in ctx.mailbox:
        assert_type(message, Message)
        if isinstance(message, Get):
            assert_type(message.reply.tell(total), bool)
            message.reply.tell("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        else:
            total += message
    for message in await ctx.mailbox.receive_batch():
        assert_type(message, Message)
    ctx.deadline = 1.0
    ctx.deadline = "soon"  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    return total


async def use(ref: ActorRef[Message]) -> None:
    ref.tell(1)
    ref.tell("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ref.send(2)
    await ref.send("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ref.from_thread(3)
    ref.from_thread("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await ref.ask(lambda reply: Get(reply)), Any)
    assert_type(await ref.ask(Get), Any)
    total: int = await ref.ask(Get)
    assert_type(total, int)
    assert_type(await ref.wait_exit(), Exit[object])
    assert_type(await ref.wait_stopped(), Exit[object])


def describe(exit: Exit[int]) -> str:
    if isinstance(exit, Completed):
        assert_type(exit.value, int)
        return str(exit.value)
    if isinstance(exit, Failed):
        assert_type(exit.error, Exception)
        return str(exit.error)
    assert_type(exit, Stopped)
    assert_type(exit.by, StoppedBy)
    return exit.by


def describe_by_matching(exit: Exit[int]) -> str:
    match exit:
        case Completed(value):
            return str(value)
        case Failed(error):
            return str(error)
        case Stopped(by, reason):
            return f"{by} {reason}"
        case _:
            assert_never(exit)


def widen(exit: Exit[int]) -> Exit[object]:
    is_normal(exit)
    return exit


def freeze(exit: Completed[int]) -> None:
    exit.value = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def look() -> None:
    assert_type(current_actor(), Cell[object] | None)
