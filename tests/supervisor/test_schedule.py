"""Scheduled prompts."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from actors.env import Clock, Env
from actors.shell import Shell
from actors.testing import fake_env
from supervisor.runtime import Notification, Runtime, RuntimeStopping, open_runtime
from supervisor.schedule import PROMPT_LIMIT
from supervisor.tree import SupervisorError


def due(note: Notification) -> datetime:
    text = ET.fromstring(note.xml).findtext("due")
    assert text is not None
    return datetime.fromisoformat(text)


def times(notes: list[Notification]) -> list[str]:
    """What they say for the time at which they are due, without the day."""
    return [due(note).strftime("%H:%M:%S") for note in notes]


@attrs.define
class SettableClock:
    """A wall clock that somebody sets, or that goes on while trio's stands still."""

    clock: Clock
    ahead: timedelta = timedelta()

    def now(self) -> datetime:
        return self.clock.now() + self.ahead


def open_fake(clock: Clock | None = None) -> open_runtime:
    env = fake_env({"work": "done"})
    # Whatever the clock of trio shows: from midnight on.
    zero = env.clock.now().replace(hour=0, minute=0, second=0, microsecond=0)
    midnight = SettableClock(env.clock, zero - env.clock.now())
    env_of_time = Env(
        clock=clock or midnight,
        ids=env.ids,
        processes=env.processes,
        files=env.files,
    )
    return open_runtime("/tasks", env=env_of_time)


def children(runtime: Runtime) -> list[str]:
    return [info.id for info in runtime.root.which_children()]


async def test_a_prompt_comes_at_each_of_its_times(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_fake() as runtime:
        schedule = await runtime.schedule("*/5 * * * *", "look at it", owner="main")
        notes: list[Notification] = []
        with trio.move_on_after(15 * 60 + 1):
            async for note in runtime.notifications_for("main"):
                notes.append(note)
                note.ack()
    assert times(notes) == ["00:05:00", "00:10:00", "00:15:00"]
    for note in notes:
        assert (note.kind, note.task_id, note.owner) == ("prompt", schedule.id, "main")
        assert note.display == "Scheduled prompt: look at it"


async def test_a_prompt_wakes_its_parent_in_the_words_of_nobody(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """N42, and seed rule: it is never counted as a user's message."""
    async with open_fake() as runtime:
        await runtime.schedule(
            "* * * * *", "do </prompt> & <b>\n\x1b[1mnow", owner="main"
        )
        wakes = runtime.wakes("main", window=3600.0)
        for _ in range(2):
            # The first is no message of a user that would put off the second.
            with trio.fail_after(61):
                async with await anext(wakes) as turn:
                    turn.progressed()
        wake = await anext(wakes)
    root = ET.fromstring(wake.text)
    assert "1 scheduled prompt is due. No human input has occurred" in wake.text
    assert root.findtext("scheduled-prompt/prompt") == "do </prompt> & <b>\nnow"
    assert root.findtext("scheduled-prompt/expression") == "* * * * *"
    assert "approves nothing" in (root.findtext("scheduled-prompt/note") or "")


async def test_prompts_and_ends_are_told_in_the_order_in_which_they_come(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """One queue, first in first out."""
    async with open_fake() as runtime:
        await runtime.schedule("* * * * *", "x")
        await runtime.schedule("30 * * * * *", "y")
        kinds: list[str] = []
        for _ in range(3):
            await trio.sleep(45)
            task = await runtime.launch(Shell("work"))
            await task.wait()
        kinds = [
            note.kind if note.kind == "task" else note.kind + due(note).strftime("%S")
            for note in runtime.notifications.drain()
        ]
    # The second prompt of each finds the first unread.
    assert kinds == ["prompt30", "task", "prompt00", "task", "task"]


async def test_what_nobody_has_read_is_told_once_however_long_that_takes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A slow reader: missed times are one prompt."""
    async with open_fake() as runtime:
        await runtime.schedule("* * * * *", "x")
        await trio.sleep(590)
        assert times(runtime.notifications.drain()) == ["00:01:00"]
        await trio.sleep(61)
        assert times(runtime.notifications.drain()) == ["00:10:00"]
        # Whoever has it may take long to answer.
        assert len(runtime.notifications.unacknowledged()) == 2


async def test_times_that_pass_while_the_host_is_suspended_are_told_by_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The clock for sleeping has stood still: the wall clock has not."""
    env = fake_env()
    clock = SettableClock(env.clock)
    async with open_fake(clock) as runtime:
        start = clock.now()
        await runtime.schedule("0 * * * *", "x")
        notes: list[Notification] = []

        async def read() -> None:
            async for note in runtime.notifications:
                notes.append(note)  # noqa: PERF401 - one by one

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(10)
            clock.ahead = timedelta(hours=5)
            await trio.sleep(61)
            (note,) = notes
            assert due(note) <= start + timedelta(hours=1)
            await trio.sleep(3600)
            (_, note) = notes
            nursery.cancel_scope.cancel()
        assert timedelta(hours=5) < due(note) - start <= timedelta(hours=6, minutes=2)


async def test_a_clock_that_is_set_back_makes_no_time_come_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    env = fake_env()
    clock = SettableClock(env.clock)
    async with open_fake(clock) as runtime:
        await runtime.schedule("*/10 * * * *", "x")
        await trio.sleep(601)
        (first,) = runtime.notifications.drain()
        clock.ahead = timedelta(minutes=-30)
        await trio.sleep(30 * 60)
        assert runtime.notifications.drain() == []
        await trio.sleep(10 * 60)
        (second,) = runtime.notifications.drain()
        assert due(second) - due(first) == timedelta(minutes=10)


async def test_the_times_hold_in_the_zone_of_the_schedule(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_fake() as runtime:
        zone = timezone(timedelta(hours=2))
        await runtime.schedule("0 3 * * *", "x", zone=zone)
        await trio.sleep(3600 + 1)
        (note,) = runtime.notifications.drain()
        assert due(note).utcoffset() == timedelta(hours=2)
        assert due(note).astimezone(UTC).hour == 1


async def test_a_stopped_schedule_says_no_more_and_leaves_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P1: and what is on its way is told."""
    async with open_fake() as runtime:
        before = children(runtime)
        schedule = await runtime.schedule("* * * * *", "x")
        assert repr(schedule) == f"<Schedule {schedule.id} '* * * * *' of None>"
        assert len(children(runtime)) == len(before) + 1
        await trio.sleep(61)
        await schedule.stop()
        await schedule.stop()
        assert children(runtime) == before
        await trio.sleep(600)
        assert len(runtime.notifications.drain()) == 1
    await schedule.stop()


async def test_a_clock_that_was_wrong_by_years_holds_no_prompt_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It shows a year to come when the schedule is made, and is set right then."""
    clock = SettableClock(fake_env({}).clock, timedelta(days=1000, seconds=30))
    async with open_fake(clock) as runtime:
        await runtime.schedule("* * * * *", "x", owner="main")
        await trio.sleep(0.5)
        clock.ahead = timedelta()
        await trio.sleep(300)
        first = runtime.notifications_for("main").drain()
        for note in first:
            note.ack()
        await trio.sleep(120)
        assert len(first) == 1
        assert len(runtime.notifications_for("main").drain()) == 1
        assert all(abs(due(note) - clock.now()) < timedelta(hours=1) for note in first)


async def test_a_schedule_ends_with_the_runtime(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P1: with the prompt that nobody has read still to be read."""
    async with open_fake() as runtime:
        await runtime.schedule("* * * * *", "x", owner="main")
        await trio.sleep(61)
    assert len(runtime.notifications_for("main").drain()) == 1
    with pytest.raises(RuntimeStopping):
        await runtime.schedule("* * * * *", "x")


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "x",
        "* * * *",
        "60 * * * *",
        "* * 30 2 *",
        "*/0 * * * *",
        "@daily",
        "1-0 * * * *",
    ],
)
async def test_an_expression_that_is_none_starts_nothing(
    expression: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_fake() as runtime:
        before = children(runtime)
        with pytest.raises(ValueError, match=r"^expression must") as caught:
            await runtime.schedule(expression, "x")
        assert repr(expression) in str(caught.value)
        assert children(runtime) == before


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"expression": None}, "expression"),
        ({"expression": 5}, "expression"),
        ({"prompt": None}, "prompt"),
        ({"prompt": b"x"}, "prompt"),
        ({"prompt": " \n"}, "prompt"),
        ({"prompt": "x" * (PROMPT_LIMIT + 1)}, "prompt"),
        ({"owner": 7}, "owner"),
        ({"zone": "Europe/Berlin"}, "zone"),
    ],
)
async def test_bad_arguments_start_nothing(
    arguments: dict[str, Any], named: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_fake() as runtime:
        before = children(runtime)
        good: dict[str, Any] = {"expression": "* * * * *", "prompt": "x"}
        with pytest.raises((TypeError, ValueError), match=f"^{named} must"):
            await runtime.schedule(**good | arguments)
        assert children(runtime) == before


async def test_without_cronsim_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    async with open_fake() as runtime:
        before = children(runtime)
        with pytest.raises(SupervisorError, match=r"trio-supervisor\[agents\]"):
            await runtime.schedule("* * * * *", "x")
        assert children(runtime) == before
