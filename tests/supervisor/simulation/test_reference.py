"""The reference program: the same each time, and what is not decided in it is named.

``python examples/reference.py 1000`` tries more seeds.
"""

from __future__ import annotations

import gc
import logging
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from inspect import currentframe
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from examples.reference import program
from supervisor.simulation import NotDeterministic, Sim, explore, simulate
from supervisor.simulation._steering.culprits import watched

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _silent(caplog: pytest.LogCaptureFixture) -> None:
    """What fails on purpose is logged each time."""
    caplog.set_level(logging.CRITICAL, "supervisor")


def digests(seeds: Sequence[int]) -> list[str]:
    """Run each of them, and return what it was; all that must happen has happened."""
    found: list[str] = []
    for seed in seeds:
        run = simulate(program, seed=seed)
        if run.error is not None:
            raise run.error
        seen: Counter[str] = run.value
        assert seen.total() >= 300
        assert seen["TaskBackgrounded"] == 1  # the live move
        assert seen["TaskResumed"] == 1  # the message to one that had ended
        assert seen["TaskStopRequested"] == 1
        assert seen["TaskRestarted"] == 2
        assert seen["RestartScheduled"] == 3  # these two, and the notifier
        found.append(run.digest)
    return found


def test_one_seed_is_one_run_and_others_differ() -> None:
    found = digests(range(24))
    assert digests(range(24)) == found
    assert len(set(found)) == 24


def test_another_process_with_another_hash_seed_does_the_same() -> None:
    code = (
        "import logging; logging.disable(50); "
        "from tests.supervisor.simulation.test_reference import digests; "
        "print(*digests(range(4)))"
    )
    for hash_seed in ("1", "77"):
        printed = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.split()
        assert printed == digests(range(4))


# ---- What no tape decides --------------------------------------------------------------

ANEW = count()
"""Stands for what differs from run to run, where the culprit does so only at times."""

Canary = Callable[[Sim], Awaitable[tuple[object, int]]]
"""It returns what is logged, and the line that is to be named."""


def here() -> int:
    frame = currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


class Thing:
    """One that is hashed and shown by its address."""


async def a_wall_clock(sim: Sim) -> tuple[object, int]:
    return time.time_ns(), here()


async def a_uuid(sim: Sim) -> tuple[object, int]:
    return uuid.uuid4(), here()


async def a_random(sim: Sim) -> tuple[object, int]:
    return random.random(), here()


async def a_trio_thread(sim: Sim) -> tuple[object, int]:
    await trio.to_thread.run_sync(int); line = here()  # fmt: skip  # noqa: E702
    return next(ANEW), line


async def a_plain_thread(sim: Sim) -> tuple[object, int]:
    threading.Thread(target=int).start(); line = here()  # fmt: skip  # noqa: E702
    return next(ANEW), line


async def a_process(sim: Sim) -> tuple[object, int]:
    await trio.run_process(["true"]); line = here()  # fmt: skip  # noqa: E702
    return next(ANEW), line


async def a_socket(sim: Sim) -> tuple[object, int]:
    socket.socket().close(); line = here()  # fmt: skip  # noqa: E702
    return next(ANEW), line


async def a_collection(sim: Sim) -> tuple[object, int]:
    gc.collect(); line = here()  # fmt: skip  # noqa: E702
    return next(ANEW), line


async def a_collector_that_is_on(sim: Sim) -> tuple[object, int]:
    gc.enable(); gc.disable(); line = here()  # fmt: skip  # noqa: E702
    return next(ANEW), line


async def a_collector_that_somebody_has_turned_on(sim: Sim) -> tuple[object, int]:
    partial(gc.enable)()
    made = next(ANEW); line = here()  # fmt: skip  # noqa: E702
    gc.disable()
    return made, line


async def an_order_of_a_set(sim: Sim) -> tuple[object, int]:
    things = [Thing() for _ in range(20)]
    some = set(things)
    return [things.index(it) for it in some], here()


async def an_order_of_an_attribute(sim: Sim) -> tuple[object, int]:
    things = Thing()
    things.all = [Thing() for _ in range(20)]  # type: ignore[attr-defined]
    return [things.all.index(it) for it in set(things.all)], here()  # type: ignore[attr-defined]


async def a_pop_of_a_set(sim: Sim) -> tuple[object, int]:
    things = [Thing() for _ in range(20)]
    some = set(things)
    return [things.index(some.pop()) for _ in range(20)], here()


async def a_hash(sim: Sim) -> tuple[object, int]:
    thing = Thing()
    return hash(thing), here()


async def an_address(sim: Sim) -> tuple[object, int]:
    return id(Thing()), here()


async def a_text(sim: Sim) -> tuple[object, int]:
    thing = Thing()
    return f"made {thing}", here()


CANARIES: dict[Canary, str] = {
    a_wall_clock: "the wall clock",
    a_uuid: "chance (uuid)",
    a_random: "chance (random)",
    a_trio_thread: "a thread",
    a_plain_thread: "a thread",
    a_process: "a process",
    a_socket: "a socket",
    a_collection: "the collector",
    a_collector_that_is_on: "the collector",
    a_collector_that_somebody_has_turned_on: "the collector",
    an_order_of_a_set: "the order of a set of objects",
    an_order_of_an_attribute: "the order of a set of objects",
    a_pop_of_a_set: "the order of a set of objects",
    a_hash: "an address (hash)",
    an_address: "an address (id)",
    a_text: "an address in a text",
}


@pytest.mark.parametrize("canary", CANARIES, ids=lambda it: it.__name__)
def test_a_canary_in_the_reference_program_is_named_with_its_place(
    canary: Canary,
) -> None:
    lines: set[int] = set()

    async def planted(sim: Sim) -> None:
        async def sing() -> None:
            await trio.sleep(0.3)
            said, line = await canary(sim)
            lines.add(line)
            sim.log(said)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sing)
            await program(sim)

    with pytest.raises(NotDeterministic) as raised:
        explore(planted, seeds=1)
    (line,) = lines
    (found,) = raised.value.culprits
    name = canary.__name__
    assert found == f"{CANARIES[canary]} at test_reference.py:{line} {name}"


def test_what_shows_its_address_in_the_log_is_named() -> None:
    async def planted(sim: Sim) -> None:
        await program(sim)
        sim.log(Thing())

    with pytest.raises(NotDeterministic) as raised:
        explore(planted, seeds=1)
    (found,) = raised.value.culprits
    assert found.startswith("an address in a text at test_reference.py:")


def test_without_a_canary_nobody_is_blamed() -> None:
    """Neither in the program nor in the whole of the runtime below it."""
    with watched() as culprits:
        run: Any = simulate(program, seed=5)
    assert run.error is None
    assert culprits == []
