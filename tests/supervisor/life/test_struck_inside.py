"""Ends that are recorded while memory runs out in the middle of a function: each
operation that may need some is struck, once or, where it is tried again, twice."""

from __future__ import annotations

import dis
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from types import CodeType, FrameType
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from actors import Context, TaskStatus
from actors.agent import AgentContext, AgentEvent, FinalResult
from actors.testing import fake_env
from actors.work import Report
from supervisor._life.life import Life
from supervisor.lowlevel import life_of
from supervisor.runtime import (
    Acked,
    Limits,
    Notified,
    Runtime,
    TaskEnded,
    TaskStarted,
    open_runtime,
)
from supervisor.tree import Gap
from tests.supervisor.jobs import Job, agent, forever, returns, waits_for

# What may want memory: it calls something, or makes an object.
WANTS = ("CALL", "BUILD", "FORMAT", "BINARY_OP", "LIST_", "STORE_SUBSCR")
# They meet all the blows.
SPARED = {
    "Task.parent",
    "Life._record_again",
    "Life._tell_failure",
    "_name",
}


def operations(code: CodeType) -> set[int]:
    found = dis.get_instructions(code)
    return {step.offset for step in found if step.opname.startswith(WANTS)}


@attrs.define(eq=False)
class Blows:
    """Raises MemoryError at the ``at``-th of our own operations that run below the
    function called ``below``, and in the same place until it has done so ``times``."""

    at: int
    times: int = 1
    below: str = Life.conclude.__qualname__
    where: tuple[str, int, int | None] | None = None
    seen: int = 0
    _known: dict[CodeType, set[int]] = attrs.Factory(dict)

    def __enter__(self) -> None:
        sys.settrace(self._enter)
        # What a tracer raises ends the tracing.
        sys.setprofile(self._again)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        sys.settrace(None)

    def _again(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and self.times and sys.gettrace() is None:
            sys.settrace(self._enter)
            frame.f_trace = self._enter(frame, "call", None)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        if not self.times or not self._counts(frame):
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event != "opcode" or not self.times:
            return self._step
        code = frame.f_code
        if code not in self._known:
            self._known[code] = operations(code)
        if frame.f_lasti not in self._known[code]:
            return self._step
        self.seen += 1
        here = (code.co_qualname, frame.f_lasti, frame.f_lineno)
        if here == self.where or (self.where is None and self.seen == self.at):
            self.where = here
            self.times -= 1
            raise MemoryError
        return self._step

    def _counts(self, frame: FrameType) -> bool:
        module = str(frame.f_globals.get("__name__"))
        if not module.startswith(("actors.", "supervisor.")):
            return False
        if frame.f_code.co_qualname in SPARED:
            return False
        above = frame.f_back
        while above is not None:
            if above.f_code.co_qualname == self.below:
                return True
            if above.f_code.co_qualname == "Life._tell_failure":
                return False
            above = above.f_back
        return False


def check_books(runtime: Runtime) -> None:
    """Nothing is counted that has ended."""
    life = life_of(runtime)
    assert life.table._unfinished == {}
    assert life.table.live == {}
    assert (
        life_of(runtime).delivery.outbox.unacknowledged
        == life_of(runtime).delivery.outbox.routed
        == 0
    )
    assert life.places.waits == life.places._returning == {}
    assert life.slots.waiting == 0


async def play(blows: Blows) -> None:
    """An agent with a task of its own, a task whose end is silent, one that waits
    for two others, and one that waits for a place; all end."""
    first, second = trio.Event(), trio.Event()

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await context.launch(waits_for(first))
        await second.wait()
        yield FinalResult("done")

    limits = Limits(total=4)
    async with open_runtime("/tasks", env=fake_env(), limits=limits) as runtime:
        events = runtime.events.subscribe()
        two = [
            await runtime.launch(waits_for(first), owner="main"),
            await runtime.launch(waits_for(second), owner="main", notify="silent"),
        ]

        async def waits(ctx: Context[object], report: Report) -> object:
            done = await runtime.wait_all(two)
            return [task.status.value for task in done]

        tasks = [
            *two,
            await runtime.launch(agent(loop)),
            await runtime.launch(Job(waits)),
            await runtime.launch(returns("later")),
            await runtime.launch(returns("last")),
        ]
        ids = [task.id for task in tasks]
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(60), blows:
            first.set()
            await trio.testing.wait_all_tasks_blocked()
            assert tasks[3].status is TaskStatus.RUNNING
            second.set()
            await runtime.wait_all(tasks)
            await runtime.wait_idle()
        await trio.testing.wait_all_tasks_blocked()
        assert [task.status for task in tasks] == [TaskStatus.COMPLETED] * len(ids)
        assert tasks[3].snapshot().result == "['completed', 'completed']"
        notes = runtime.notifications.drain()
        silent = two[1].id
        assert sorted(note.task_id for note in notes) == sorted({*ids} - {silent})
        for note in notes:
            assert note.ack()
        seen = events.drain()
        if not any(isinstance(event, Gap) for event in seen):
            for kind, count in ((TaskEnded, 7), (Notified, 7), (Acked, 7)):
                about = Counter(e.task_id for e in seen if isinstance(e, kind))
                assert set(about.values()) == {1} and len(about) == count, kind
            assert sum(isinstance(event, TaskStarted) for event in seen) >= 1
        check_books(runtime)
        # The places were given back, and no more.
        more = [await runtime.launch(Job(forever)) for _ in range(5)]
        assert [task.status.value for task in more] == [*["running"] * 4, "pending"]


def run(blows: Blows) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    try:
        trio.run(play, blows, clock=clock)
    except BaseException as error:
        error.add_note(f"struck {blows.where}, operation {blows.at}")
        raise


@pytest.mark.parametrize("times", [1, 2])
def test_no_failure_in_the_middle_of_the_record_of_an_end_costs_anything(
    times: int,
) -> None:
    """P3, P4, P10: one end, one notification, and the books are right, wherever
    memory runs out and though it does so again when that is tried again."""
    unharmed = Blows(sys.maxsize)
    run(unharmed)
    assert unharmed.seen > 300
    # All of them: range(1, unharmed.seen + 1).
    for at in random.Random(times).sample(range(1, unharmed.seen + 1), 40):
        run(Blows(at, times))


@attrs.define(eq=False)
class Second(Blows):
    """Raises MemoryError at the first operation of ``part``, and at the ``at``-th of
    those with which `Life._again` itself goes on."""

    part: str = ""

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        here = (code.co_qualname, frame.f_lasti, frame.f_lineno)
        if event != "opcode" or not self.times or here[1] not in operations(code):
            return self._step
        if here[0] == self.part and self.where is None:
            self.where = here
            raise MemoryError
        if here[0] == Life._again.__qualname__ and self.where is not None:
            self.seen += 1
            if self.seen == self.at:
                self.times = 0
                raise MemoryError
        return self._step


@pytest.mark.parametrize("part", ["Life._tell_end", "Places.give_up", "Delivery.tell"])
def test_what_is_tried_again_costs_nothing_if_there_is_no_memory_for_that_either(
    part: str,
) -> None:
    """P3, P4, P10."""
    struck = 0
    while True:
        blows = Second(struck + 1, part=part)
        run(blows)
        assert blows.where is not None
        if blows.times:
            break
        struck += 1
    assert 1 < struck < 19


async def test_a_failing_end_is_told_by_the_name_of_its_part(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10."""

    def fail(places: object, task: object) -> None:
        raise MemoryError

    async with open_runtime("/tasks", env=fake_env()) as runtime:
        with monkeypatch.context() as patch:
            patch.setattr(type(life_of(runtime).places), "give_up", fail)
            events = runtime.events.subscribe()
            task = await runtime.launch(returns("x"))
            assert (await task.wait()).status is TaskStatus.COMPLETED
        warnings = [getattr(event, "text", "") for event in events.drain()]
        assert any(".fail)" in text for text in warnings)
