"""PF13: what an agent says, and what its neighbours notice of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import perf_counter, process_time

import trio

from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    FinalResult,
    Note,
    TextDelta,
    TokensUsed,
)

from ._case import Case, Figures, Row, Target
from ._listened import listened_runtime

_RATE = 10_000
"""Events of the loud agent in a second of this process's time: all of it is used,
so on a machine with nothing else to do it is a second."""
_SLOT = 0.002
"""Seconds from one burst of them to the next, at least."""
_STEP = 10_000
"""Numbers to add in one step of the neighbour, a tenth of a millisecond or so."""


def cases(small: bool) -> list[Case]:
    """Return the cases of this theme."""
    return [_events_case(small), _neighbour_case(small)]


# How fast events pass


def _events_case(small: bool) -> Case:
    n = 1_000 if small else 100_000
    kinds: dict[str, AgentEvent] = {
        "deltas": TextDelta("a word "),
        "notes": Note("Reading the next file"),
        "tokens": TokensUsed(input_tokens=10, output_tokens=5),
    }

    def through_a_runtime() -> Figures:
        return {name: trio.run(_through, event, n) for name, event in kinds.items()}

    return Case(
        name="an agent's events",
        parts=[through_a_runtime, lambda: {"bare": trio.run(_bare, n)}],
        rows=[
            Row(
                id="PF13",
                what=f"{name} of an agent in a runtime / of a bare generator",
                ours=name,
                base="bare",
                unit="events/s",
            )
            for name in kinds
        ],
    )


async def _through(event: AgentEvent, n: int) -> float:
    took = 0.0

    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        nonlocal took
        await trio.lowlevel.checkpoint()
        began = perf_counter()
        for _ in range(n):
            yield event
        took = perf_counter() - began
        yield FinalResult("done")

    async with listened_runtime() as runtime:
        await runtime.run(Agent(run, "say it"))
    return n / took


async def _bare(n: int) -> float:
    async def say(event: AgentEvent) -> AsyncIterator[AgentEvent]:
        await trio.lowlevel.checkpoint()
        for _ in range(n):
            yield event

    began = perf_counter()
    # It has nothing to clean up.
    async for _ in say(Note("Reading the next file")):
        pass
    return n / (perf_counter() - began)


# What a neighbour notices


def _neighbour_case(small: bool) -> Case:
    steps = 50 if small else 5_000
    return Case(
        name="a loud agent's neighbour",
        parts=[
            lambda: {"alone": trio.run(_neighbour, steps, False)},
            lambda: {"beside": trio.run(_neighbour, steps, True)},
        ],
        rows=[
            Row(
                id="PF13",
                what=f"an agent beside one of {_RATE} events/s / alone",
                ours="beside",
                base="alone",
                unit="steps/s",
                target=Target(">=", 0.9),
            )
        ],
    )


async def _neighbour(steps: int, is_loud: bool) -> float:
    took = 0.0

    async def work(context: AgentContext) -> AsyncIterator[AgentEvent]:
        nonlocal took
        began = process_time()
        for _ in range(steps):
            sum(range(_STEP))
            await trio.lowlevel.checkpoint()
        took = process_time() - began
        yield FinalResult("done")

    async with listened_runtime() as runtime:
        loud = await runtime.launch(Agent(_talk, "talk")) if is_loud else None
        await runtime.run(Agent(work, "work"))
        if loud is not None:
            await loud.stop()
    return steps / took


async def _talk(context: AgentContext) -> AsyncIterator[AgentEvent]:
    began, said = process_time(), 0
    while True:
        due = int((process_time() - began) * _RATE)
        for number in range(said, due):
            yield TextDelta("a word ") if number % 10 else Note("Reading")
        said = due
        await trio.sleep(_SLOT)
