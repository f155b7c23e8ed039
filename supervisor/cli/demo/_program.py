"""The command: it plays the scenario, judges what was measured, and says so."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from .._program import exit_code, open_program
from .._stdout import Stdout
from .._stopping import Stopping
from ._claims import Facts, judge
from ._scenario import Scenario

_PATIENCE = 12.0
"""Seconds after which it is judged as it stands."""


async def demo() -> int:
    """Run the demo, print what it shows and what it proves, return the exit code."""
    async with open_program() as (stopping, stdout):
        holds = await _demo(stopping, stdout)
    return exit_code(stopping, stdout, not holds)


async def _demo(stopping: Stopping, stdout: Stdout) -> bool:
    with tempfile.TemporaryDirectory(prefix="trio-supervisor-demo-") as name:
        scenario = Scenario(Path(name), stdout.write)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_lose_patience, scenario, stdout)
            await scenario.play(stopping)
            nursery.cancel_scope.cancel()
    return stopping.number is None and await _report(scenario.facts, stdout.write)


async def _lose_patience(scenario: Scenario, stdout: Stdout) -> None:
    """End a demo that does not come to an end, and show how far it came."""
    await trio.sleep(_PATIENCE)
    facts = scenario.facts
    with trio.move_on_after(1.0):
        facts.after = await scenario.observer.look()
    scenario.collect()
    facts.took = math.inf
    stdout.hurry()
    await _report(facts, stdout.write)
    # What holds it up is waited for as long as it takes: here, that is a defect.
    os._exit(1)


async def _report(facts: Facts, say: Callable[[str], Awaitable[None]]) -> bool:
    """Print every claim, and return whether all of them hold."""
    judged = [*judge(facts)]
    failed = sum(problem is not None for _, problem in judged)
    lines = [
        f"ok      {claim}" if problem is None else f"FAILED  {claim}: {problem}"
        for claim, problem in judged
    ]
    if failed:
        lines.append(f"\n{failed} of {len(judged)} claims do not hold.")
    else:
        lines.append(f"\nAll {len(judged)} claims hold, after {facts.took:.1f} s.")
    said = "\n".join(lines)
    await say(f"\nWhat it claims, by facts measured from outside:\n\n{said}\n")
    return not failed
