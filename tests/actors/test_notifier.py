"""The notifier under a real supervisor, crashed at every step."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from actors import Ended, Progress, Progressed, TaskStatus
from actors.envelope import Envelope
from actors.notifier import notifier, write_envelopes
from supervisor.tree import RestartIntensityExceeded, child, open_supervisor


class Crash(Exception):
    pass


class Records:
    """The records of an outbox, which fails when it is told to."""

    def __init__(self) -> None:
        self.unsent: deque[Envelope] = deque()
        self.sent: list[str] = []
        self.warnings: list[str] = []
        self.progress: list[Progressed | None] = []
        self.crash: Callable[[str], None] = lambda step: None

    def add(self, number: int, **fields: Any) -> None:
        self.unsent.append(attrs.evolve(make(number), **fields))

    def tell_progress(self, message: Progressed | None) -> None:
        self.progress.append(message)

    async def settle(self) -> None:
        self.crash("settle")

    def next_unsent(self) -> Envelope | None:
        self.crash("before next_unsent")
        envelope = self.unsent[0] if self.unsent else None
        self.crash("after next_unsent")
        return envelope

    def publish(self, xml: str) -> None:
        self.crash("before publish")
        self.unsent.popleft()
        self.sent.append(xml)
        self.crash("after publish")

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def sent_ids(self) -> list[str | None]:
        return [ET.fromstring(xml).findtext("notification-id") for xml in self.sent]


def ended(number: int) -> Ended:
    return Ended(f"s{number:08x}", f"s{number:08x}-1", TaskStatus.FAILED, f"n{number}")


def make(number: int) -> Envelope:
    return Envelope(
        notification_id=f"n{number}",
        task_id=f"s{number:08x}",
        run_id=f"s{number:08x}-1",
        task_type="local_bash",
        status="failed",
        summary="done",
        remaining=0,
        all_terminal=True,
    )


STEPS = ["before next_unsent", "after next_unsent", "before publish", "after publish"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_crash_at_any_step_loses_and_repeats_nothing(
    step: str, at: int
) -> None:
    """P4, N2, N3."""
    records = Records()
    seen = 0

    def crash(here: str) -> None:
        nonlocal seen
        if here == step:
            seen += 1
            if seen % 2 == at % 2 and seen < 8:
                raise Crash(here)

    records.crash = crash
    async with open_supervisor(
        [child("notifier", notifier, records, records.tell_progress)], intensity=20
    ) as sup:
        ref = sup.which_children()[0].ref
        for number in range(1, 6):
            records.add(number)
            ref.tell(ended(number))
            if number % at == 0:
                await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        assert records.sent_ids() == ["n1", "n2", "n3", "n4", "n5"]
        assert not records.unsent
    assert seen >= 5


@pytest.mark.parametrize("steps", range(6))
async def test_ended_from_outside_at_any_moment_it_loses_and_repeats_nothing(
    steps: int,
) -> None:
    """P4: its incarnation is stopped, a few scheduler steps later each time."""
    records = Records()
    async with open_supervisor(
        [child("notifier", notifier, records, records.tell_progress)], intensity=99
    ) as sup:
        ref = sup.which_children()[0].ref
        for number in range(1, 200):
            records.add(number)
            ref.tell(ended(number))
            if number % 20 == 0:
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                ref.stop()
        await trio.testing.wait_all_tasks_blocked()
    assert records.sent_ids() == [f"n{number}" for number in range(1, 200)]


async def test_what_is_there_when_it_stops_is_still_written() -> None:
    records = Records()
    async with open_supervisor(
        [child("notifier", notifier, records, records.tell_progress, drain=5.0)]
    ):
        for number in range(1, 500):
            records.add(number)
    assert len(records.sent) == 499


async def test_a_notifier_that_always_crashes_ends_its_supervisor() -> None:
    records = Records()
    records.add(1)

    def crash(step: str) -> None:
        raise Crash(step)

    records.crash = crash
    with pytest.raises(RestartIntensityExceeded):
        async with open_supervisor(
            [child("notifier", notifier, records, records.tell_progress)]
        ) as sup:
            await sup.wait()


async def test_many_records_do_not_hold_up_other_tasks() -> None:
    records = Records()
    for number in range(1000):
        records.add(number)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while len(records.sent) < 1000:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        async with open_supervisor(
            [child("notifier", notifier, records, records.tell_progress)]
        ):
            await trio.testing.wait_all_tasks_blocked()
    assert turns >= 10


class Poison:
    """Fails whatever is done with it."""

    def __str__(self) -> str:
        raise Crash("poison")

    __repr__ = __str__
    __int__ = __index__ = __len__ = __bool__ = __str__  # type: ignore[assignment]


@pytest.mark.parametrize(
    "field",
    [
        "summary",
        "result",
        "error",
        "output_tail",
        "output_file",
        "exit_code",
        "signal",
        "remaining",
        "duration_ms",
        "tool_use_id",
        "status",
    ],
)
def test_a_record_that_cannot_be_built_is_told_minimally_and_stops_no_other(
    field: str,
) -> None:
    """The brief, section 5: a minimal envelope with the ids and the status."""
    records = Records()
    records.add(1)
    records.add(2, **{field: Poison()})
    records.add(3)
    assert write_envelopes(records) == 3
    assert records.sent_ids() == ["n1", "n2", "n3"]
    xml = ET.fromstring(records.sent[1])
    assert xml.findtext("task-id") == "s00000002"
    (warning,) = records.warnings
    assert "s00000002" in warning and "Crash" in warning
    if field != "status":
        assert xml.findtext("status") == "failed"


def test_a_limit_says_how_many_are_written() -> None:
    records = Records()
    for number in range(10):
        records.add(number)
    assert [write_envelopes(records, 4) for _ in range(4)] == [4, 4, 2, 0]


async def test_what_a_message_is_about_decides_what_is_done() -> None:
    """Progress is handed on, each as it is, and writes no envelope; an end does, once
    each."""
    records = Records()
    async with open_supervisor(
        [child("notifier", notifier, records, records.tell_progress)]
    ) as sup:
        ref = sup.which_children()[0].ref
        await trio.testing.wait_all_tasks_blocked()
        assert records.progress == [None]
        records.add(1)
        said = [Progressed(f"s{number}", "run", Progress()) for number in range(3)]
        for message in said:
            ref.tell(message)
        await trio.testing.wait_all_tasks_blocked()
        assert records.progress == [None, *said] and records.sent_ids() == []
        for _ in range(2):
            ref.tell(ended(1))
            await trio.testing.wait_all_tasks_blocked()
            assert records.sent_ids() == ["n1"]
