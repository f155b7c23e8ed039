"""PF14 and PF15: what it costs to be watched: a trace, and a probe that nobody hears."""

from __future__ import annotations

import timeit
from time import process_time

import trio

from actors import Context
from actors.probe import always
from supervisor.simulation.trace import Trace
from supervisor.tree import child, open_supervisor

from ._case import Case, Row, Target


def cases(small: bool) -> list[Case]:
    """Return the cases of this theme."""
    messages, calls = (1_000, 10_000) if small else (100_000, 1_000_000)
    trace = Case(
        name="trace",
        parts=[
            lambda: {"off": _messages(messages, [])},
            lambda: {"on": _messages(messages, [Trace()])},
        ],
        rows=[
            Row(
                id="PF14",
                what="messages, each received by itself: traced / not",
                ours="on",
                base="off",
                unit="s CPU",
                target=Target("<=", 2),
            )
        ],
    )
    probe = Case(
        name="probe",
        parts=[
            lambda: {"probe": _probe(calls)},
            lambda: {"function": _function(calls)},
        ],
        rows=[
            Row(
                id="PF15",
                what="a probe that is off / an empty function",
                ours="probe",
                base="function",
                unit="ns",
                target=Target("<=", 60, of="ours"),
            )
        ],
    )
    return [trace, probe]


# PF14


def _messages(count: int, instruments: list[Trace]) -> float:
    began = process_time()
    trio.run(_send, count, instruments=instruments)
    return process_time() - began


async def _send(count: int) -> None:
    async with open_supervisor([child("reader", _read)]) as sup:
        ref = sup.which_children()[0].ref
        for number in range(count):
            ref.tell(number)
            await trio.lowlevel.checkpoint()  # So it is read before the next one.


async def _read(ctx: Context[int]) -> None:
    async for _ in ctx.mailbox:
        pass


# PF15


def _probe(calls: int) -> float:
    return _nanoseconds(calls, "call('a name', True)", always)


def _function(calls: int) -> float:
    return _nanoseconds(calls, "call('a name', True)", _do_nothing)


def _do_nothing(name: str, holds: object) -> None:
    pass


def _nanoseconds(calls: int, statement: str, call: object) -> float:
    timer = timeit.Timer(statement, timer=process_time, globals={"call": call})
    return min(timer.repeat(3, calls)) / calls * 1e9
