"""PF1 to PF3: messages to an actor, over trio's memory channels."""

from __future__ import annotations

import asyncio
import math
from time import perf_counter

import attrs
import trio

from actors import Context, Reply
from supervisor.tree import child

from . import beam, pykka_peer
from ._case import Case, Row, Target
from ._listened import listened_supervisor

_BURST = 1000
_CAPACITY = 100


def cases(small: bool) -> list[Case]:
    """Return the cases of this theme."""
    return [_tell_case(small), _send_case(small), _ask_case(small)]


# PF1


def _tell_case(small: bool) -> Case:
    ours, base = (2_000, 2_000) if small else (500_000, 50_000)
    parts = [
        lambda: {"tell": trio.run(_tell, ours)},
        lambda: {"channel": trio.run(_send_nowait, base)},
        lambda: {"asyncio": asyncio.run(_put_nowait(base))},
    ]
    rows = [
        Row(
            id="PF1",
            what="tell to a supervised actor / trio channel(inf)",
            ours="tell",
            base="channel",
            unit="msg/s",
            target=Target(">=", 25),
        ),
        Row(
            id="PF1",
            what="tell / asyncio.Queue",
            ours="tell",
            base="asyncio",
            unit="msg/s",
        ),
    ]
    skipped: list[str] = []
    if beam.is_installed():
        parts.append(
            lambda: {"beam": beam.measure("tell", 2_000 if small else 1_000_000)}
        )
        rows.append(
            Row(
                id="PF1",
                what="tell / BEAM with 2 schedulers",
                ours="tell",
                base="beam",
                unit="msg/s",
                target=Target(">=", 1),
            )
        )
    else:
        skipped.append(f"PF1: {beam.MISSING}")
    if pykka_peer.is_installed():
        parts.append(lambda: {"pykka": pykka_peer.tell(500 if small else 50_000)})
        rows.append(
            Row(id="PF1", what="tell / Pykka", ours="tell", base="pykka", unit="msg/s")
        )
    else:
        skipped.append(f"PF1: {pykka_peer.MISSING}")
    return Case(name="tell", parts=parts, rows=rows, skipped=skipped)


async def _count(ctx: Context[int], wanted: int, done: trio.Event) -> None:
    """An actor that drains batches until it has had all."""
    count = 0
    while count < wanted:
        for _ in await ctx.mailbox.receive_batch():
            count += 1
    done.set()


async def _tell(n: int) -> float:
    async with listened_supervisor() as supervisor:
        done = trio.Event()
        ref = await supervisor.start_child(
            child("counter", _count, n, done, restart="temporary")
        )
        tell = ref.tell
        began = perf_counter()
        for _ in range(n // _BURST):
            for number in range(_BURST):
                tell(number)
            await trio.lowlevel.checkpoint()
        await done.wait()
        return n / (perf_counter() - began)


async def _send_nowait(n: int) -> float:
    send, receive = trio.open_memory_channel[int](math.inf)

    async def count() -> None:
        for _ in range(n):
            await receive.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await trio.lowlevel.checkpoint()
        send_nowait = send.send_nowait
        began = perf_counter()
        for _ in range(n // _BURST):
            for number in range(_BURST):
                send_nowait(number)
            await trio.lowlevel.checkpoint()
    return n / (perf_counter() - began)


async def _put_nowait(n: int) -> float:
    queue = asyncio.Queue[int]()

    async def count() -> None:
        for _ in range(n):
            await queue.get()

    counter = asyncio.create_task(count())
    await asyncio.sleep(0)
    began = perf_counter()
    for _ in range(n // _BURST):
        for number in range(_BURST):
            queue.put_nowait(number)
        await asyncio.sleep(0)
    await counter
    return n / (perf_counter() - began)


# PF2


def _send_case(small: bool) -> Case:
    ours, base = (2_000, 2_000) if small else (300_000, 50_000)
    return Case(
        name="send",
        parts=[
            lambda: {"send": trio.run(_send, ours)},
            lambda: {"channel": trio.run(_send_bounded, base)},
            lambda: {"asyncio": asyncio.run(_put(base))},
        ],
        rows=[
            Row(
                id="PF2",
                what="send to a mailbox of 100 / trio channel(100)",
                ours="send",
                base="channel",
                unit="msg/s",
                target=Target(">=", 10),
            ),
            Row(
                id="PF2",
                what="send / asyncio.Queue(100)",
                ours="send",
                base="asyncio",
                unit="msg/s",
            ),
        ],
    )


async def _send(n: int) -> float:
    async with listened_supervisor() as supervisor:
        done = trio.Event()
        ref = await supervisor.start_child(
            child("counter", _count, n, done, restart="temporary", mailbox=_CAPACITY)
        )
        began = perf_counter()
        for number in range(n):
            await ref.send(number)
        await done.wait()
        return n / (perf_counter() - began)


async def _send_bounded(n: int) -> float:
    send, receive = trio.open_memory_channel[int](_CAPACITY)

    async def count() -> None:
        for _ in range(n):
            await receive.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await trio.lowlevel.checkpoint()
        began = perf_counter()
        for number in range(n):
            await send.send(number)
    return n / (perf_counter() - began)


async def _put(n: int) -> float:
    queue = asyncio.Queue[int](_CAPACITY)

    async def count() -> None:
        for _ in range(n):
            await queue.get()

    counter = asyncio.create_task(count())
    await asyncio.sleep(0)
    began = perf_counter()
    for number in range(n):
        await queue.put(number)
    await counter
    return n / (perf_counter() - began)


# PF3


@attrs.define
class _Get:
    reply: Reply[int]


def _ask_case(small: bool) -> Case:
    n = 500 if small else 20_000
    parts = [
        lambda: {"ask": trio.run(_ask, n)},
        lambda: {"channel": trio.run(_ping_pong, n)},
    ]
    rows = [
        Row(
            id="PF3",
            what="ask / ping-pong over two trio channels",
            ours="ask",
            base="channel",
            unit="asks/s",
            target=Target(">=", 1.4),
        ),
    ]
    skipped: list[str] = []
    if beam.is_installed():
        parts.append(lambda: {"beam": beam.measure("ask", 500 if small else 200_000)})
        rows.append(
            Row(id="PF3", what="ask / BEAM", ours="ask", base="beam", unit="asks/s")
        )
    else:
        skipped.append(f"PF3: {beam.MISSING}")
    if pykka_peer.is_installed():
        parts.append(lambda: {"pykka": pykka_peer.ask(200 if small else 5_000)})
        rows.append(
            Row(id="PF3", what="ask / Pykka", ours="ask", base="pykka", unit="asks/s")
        )
    else:
        skipped.append(f"PF3: {pykka_peer.MISSING}")
    return Case(name="ask", parts=parts, rows=rows, skipped=skipped)


async def _answer(ctx: Context[_Get]) -> None:
    async for message in ctx.mailbox:
        message.reply.tell(1)


async def _ask(n: int) -> float:
    async with listened_supervisor() as supervisor:
        ref = await supervisor.start_child(
            child("server", _answer, restart="temporary")
        )
        began = perf_counter()
        for _ in range(n):
            await ref.ask(_Get)
        return n / (perf_counter() - began)


async def _ping_pong(n: int) -> float:
    to_server, at_server = trio.open_memory_channel[int](1)
    to_client, at_client = trio.open_memory_channel[int](1)

    async def serve() -> None:
        for _ in range(n):
            await to_client.send(await at_server.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await trio.lowlevel.checkpoint()
        began = perf_counter()
        for number in range(n):
            await to_server.send(number)
            await at_client.receive()
        seconds = perf_counter() - began
    return n / seconds
