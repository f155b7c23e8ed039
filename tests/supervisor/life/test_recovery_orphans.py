"""What the line for people says of processes that a dead program has left."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import trio
import trio.testing

from actors.shell import Shell
from actors.testing import FakeEnv, Program, fake_env
from supervisor.runtime import Warned, open_runtime


async def makes_for_ever(program: Program) -> int:
    await trio.sleep_forever()


async def warned_after_crash(
    monkeypatch: pytest.MonkeyPatch, found: tuple[int, list[int]] | None
) -> str:
    """Return what the next runtime warns of, if that is ``found`` of a shell that ran
    when the program died; with None it is not known in time."""

    async def end_orphans(
        program: str, prefixes: Collection[str]
    ) -> tuple[int, list[int]]:
        if found is None:
            await trio.sleep_forever()
        return found

    env: FakeEnv = fake_env({"make": makes_for_ever})
    async with open_runtime("/tasks", env=env) as runtime:
        await runtime.launch(Shell("make"))
        again = fake_env()
        again.files.disk = env.files.disk.image().killed()
    monkeypatch.setattr(again.processes, "end_orphans", end_orphans)
    async with open_runtime("/tasks", env=again) as runtime:
        with runtime.events.subscribe() as events:
            told = [it.text for it in events.drain() if isinstance(it, Warned)]
    return "\n".join(told)


@pytest.mark.parametrize(
    ("left", "words"),
    [([], ""), ([7], "process 7"), ([*range(8)], "process 0, 1, 2, 3, 4 and 3 more")],
)
async def test_what_could_not_be_ended_is_told_with_what_was(
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    left: list[int],
    words: str,
) -> None:
    told = await warned_after_crash(monkeypatch, (2, left))
    assert "2 processes that it had left were ended" in told
    assert ("what could not be ended of them still lives" in told) is bool(left)
    assert words in told


async def test_what_cannot_be_looked_at_holds_up_no_opening(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = await warned_after_crash(monkeypatch, None)
    assert (
        "what still lives of the program before cannot be ended: that was not done in "
        "10 seconds"
    ) in told
    assert "the program before died while 1 task ran" in told
