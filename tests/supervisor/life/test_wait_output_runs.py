"""What a run has printed is not awaited from the run that follows it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from actors.shell import Shell
from actors.testing import Program, fake_env
from supervisor.runtime import open_runtime
from supervisor.tree import Backoff


@pytest.mark.parametrize("asked_at", [1.5, 15.0, 29.0, 35.0])
async def test_the_output_of_a_dead_run_says_nothing_of_the_next_one(
    asked_at: float, autojump_clock: trio.testing.MockClock
) -> None:
    """P2: asked while the first run lives, while it waits for its restart, just before
    that, and in the next run, which is ready at 40 s."""
    runs: list[float] = []

    async def server(program: Program) -> int:
        runs.append(trio.current_time())
        await trio.sleep(1 if len(runs) == 1 else 10)
        await program.print(f"ready {len(runs)}\n")
        await trio.sleep(9 if len(runs) == 1 else 1000)
        return 1

    async with open_runtime("/tasks", env=fake_env({"serve": server})) as runtime:
        task = await runtime.launch(
            Shell("serve"), restart="permanent", backoff=Backoff(20.0, 20.0)
        )
        await trio.sleep(asked_at)
        await task.wait_output("ready")
        expected = asked_at if asked_at < 10 else 40
        assert trio.current_time() == pytest.approx(expected)
        await trio.sleep_until(50)
        # Of the run that is under way it counts, also afterwards.
        assert (await task.wait_output("ready")).group() == "ready"
        assert trio.current_time() == pytest.approx(50)
