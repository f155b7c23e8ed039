"""Mutants by those who wrote the runtime."""

from __future__ import annotations

from collections.abc import Sequence

from ._mutant import Mutant

OURS: Sequence[Mutant] = (
    Mutant(
        name="terminal-after-an-await",
        file="supervisor/_life/life.py",
        before="""\
        status, error = outcome_of(exit, task.own_exit)
        self.conclude(task, status, error)
""",
        after="""\
        status, error = outcome_of(exit, task.own_exit)

        async def later() -> None:
            await trio.lowlevel.checkpoint()
            self.conclude(task, status, error)

        task.ref.home.nursery.start_soon(later)
""",
        promise="P3",
        why="Between the end of the work and its record others run, and a cancel of the "
        "pool there loses the record.",
    ),
)
