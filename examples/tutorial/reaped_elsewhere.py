"""A failure that is told as a success: somebody else has taken the exit code.

trio-supervisor sim fault examples/tutorial/reaped_elsewhere.py:program
trio-supervisor sim fault examples/tutorial/reaped_elsewhere.py:mended

A host that waits for any child (``os.waitpid(-1, 0)``), or ignores SIGCHLD, does so.
"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.simulation import Sim


def verdict(code: int | None) -> str:
    return "failed" if code else "passed"


def verdict_well(code: int | None) -> str:
    if code is None:
        return "unknown"
    return "failed" if code else "passed"


async def build(sim: Sim, verdict: Callable[[int | None], str]) -> None:
    processes = sim.env({"make": 2}).processes
    try:
        tree = await processes.spawn(["make"], cwd=None, env={}, marker="M")
    except OSError:
        return  # It could not be started, which is told elsewhere.
    told = verdict((await tree.wait_exit()).code)
    await tree.aclose()
    assert told != "passed", "make has ended with 2, and is told as passed"


async def program(sim: Sim) -> None:
    await build(sim, verdict)


async def mended(sim: Sim) -> None:
    await build(sim, verdict_well)
