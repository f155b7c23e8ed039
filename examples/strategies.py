"""A custom actor under each restart strategy: who is restarted when one fails."""

from __future__ import annotations

import logging
from typing import Literal

import attrs
import trio

from actors import ActorRef, Context, Reply
from supervisor.tree import ChildStarted, child, open_supervisor


@attrs.frozen
class Add:
    amount: int


@attrs.frozen
class Get:
    reply: Reply[int]


@attrs.frozen
class Break:
    pass


async def counter(ctx: Context[Add | Get | Break], start: int) -> int:
    """Count; the state is gone after a restart, what is queued is not."""
    total = start
    async for message in ctx.mailbox:
        match message:
            case Add(amount):
                total += amount
            case Get(reply):
                reply.tell(total)
            case Break():
                raise ValueError("told to break")
    return total


async def show(strategy: Literal["one_for_one", "rest_for_one", "one_for_all"]) -> None:
    specs = [child(name, counter, 0) for name in ("first", "second", "third")]
    async with open_supervisor(specs, strategy=strategy) as sup:
        refs: dict[str, ActorRef[Add | Get | Break]] = {
            info.id: info.ref for info in sup.which_children()
        }
        for ref in refs.values():
            ref.tell(Add(5))
            # An answered question: everything sent before it has been handled.
            await ref.ask(Get)

        with sup.events.subscribe() as events:
            refs["second"].tell(Break())
            await refs["second"].wait_exit()
            # The new incarnations answer once they run.
            restarted = {"one_for_one": 1, "rest_for_one": 2, "one_for_all": 3}[
                strategy
            ]
            async for event in events:
                restarted -= isinstance(event, ChildStarted)
                if not restarted:
                    break
        totals = [f"{name} {await ref.ask(Get)}" for name, ref in refs.items()]
        print(f"{strategy:<13} {', '.join(totals)}")


async def main() -> None:
    await show("one_for_one")
    await show("rest_for_one")
    await show("one_for_all")


if __name__ == "__main__":
    # The crashes are wanted here; their tracebacks would be logged as errors.
    logging.getLogger("supervisor").setLevel(logging.CRITICAL)
    trio.run(main)
