"""The recovery of what an earlier program has left, when it fails itself."""

from __future__ import annotations

import pytest
import trio.testing

from actors.testing import fake_env
from supervisor.runtime import open_runtime
from tests.supervisor.jobs import returns


async def test_a_recovery_that_fails_leaves_no_tree_behind(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block is not entered, so nobody else would stop it. Another one opens."""
    env = fake_env()
    monkeypatch.setattr("supervisor._life.recovery.summary", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        async with open_runtime("/tasks", env=env):
            raise AssertionError
    monkeypatch.undo()
    async with open_runtime("/tasks", env=env) as runtime:
        assert (await runtime.run(returns("x"))).result == "x"
