"""A work may do anything to its report: its end is told once, and nobody else
is touched (P3, P4, P10)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from actors import Context, TaskStatus
from actors.shell import Shell
from actors.work import Report
from supervisor.runtime import Limits, TaskEnded, open_runtime


@attrs.define(eq=False)
class Job:
    body: Callable[[Context[object], Any], Awaitable[object]]
    task_type: str = "local_agent"
    shutdown: float = 5.0
    writes_output: bool = False

    def describe(self) -> str:
        return "a job"

    async def run(self, ctx: Context[object], report: Report) -> object:
        return await self.body(ctx, report)


async def says_text(ctx: Context[object], report: Any) -> None:
    with pytest.raises(TypeError, match="expected a Progress, got '50 %'"):
        report.say("50 %")


async def spoils_progress(ctx: Context[object], report: Any) -> None:
    report.progress = "50 %"


async def spoils_its_file(ctx: Context[object], report: Any) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no")

    report.output_file = Unprintable()


async def ends_its_own_record(ctx: Context[object], report: Any) -> None:
    report.transition(TaskStatus.COMPLETED)


async def raises_an_odd_error(ctx: Context[object], report: Any) -> None:
    class Meta(type):
        @property
        def __name__(cls) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
            raise RuntimeError("no")

    class Odd(Exception, metaclass=Meta):
        pass

    raise Odd


@pytest.mark.parametrize(
    "body",
    [
        says_text,
        spoils_progress,
        spoils_its_file,
        ends_its_own_record,
        raises_an_odd_error,
    ],
)
async def test_whatever_a_work_does_its_end_is_told_once(
    body: Callable[[Context[object], Any], Awaitable[object]],
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def waits(ctx: Context[object], report: Report) -> None:
        await trio.sleep(10)

    with trio.fail_after(60):
        async with open_runtime(tmp_path, limits=Limits(total=2)) as runtime:
            bystander = await runtime.launch(Job(waits))
            # More than the root's restarts would bear, one place for all.
            for _ in range(12):
                victim = await runtime.launch(Job(body), description="the victim")
                assert (await victim.wait()).status.is_terminal
            assert (await bystander.wait()).status is TaskStatus.COMPLETED
            await runtime.wait_idle()
        notes = runtime.notifications.drain()
    assert len({note.task_id for note in notes}) == len(notes) == 13


async def test_a_description_with_methods_of_its_own_is_taken_as_plain_text(
    tmp_path: Path,
) -> None:
    class Evil(str):
        __slots__ = ()

        def __format__(self, spec: str) -> str:
            raise RuntimeError("no")

        def __hash__(self) -> int:
            raise RuntimeError("no")

    async def body(ctx: Context[object], report: Report) -> None: ...

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body), description=Evil("x"), owner=Evil("y"))
        await task.wait()
        (note,) = runtime.notifications_for("y").drain()
    assert type(note.owner) is str
    assert '"x" completed' in note.display


async def test_a_work_whose_budget_changes_is_taken_at_its_first_word(
    tmp_path: Path,
) -> None:
    @attrs.define(eq=False)
    class Fickle:
        asked: int = 0
        task_type: str = "local_agent"
        writes_output: bool = False

        @property
        def shutdown(self) -> float:
            self.asked += 1
            return 1.0 if self.asked == 1 else -1.0

        def describe(self) -> str:
            return "fickle"

        async def run(self, ctx: Context[object], report: Report) -> None: ...

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Fickle())
        assert (await task.wait()).status is TaskStatus.COMPLETED


async def test_a_log_handler_that_raises_costs_nobody_anything(tmp_path: Path) -> None:
    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise trio.WouldBlock

    async def fails(ctx: Context[object], report: Report) -> None:
        raise ValueError("no")

    handler = Raising()
    logger = logging.getLogger("supervisor")
    logger.addHandler(handler)
    try:
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(Job(fails))
            assert (await task.wait()).status is TaskStatus.FAILED
    finally:
        logger.removeHandler(handler)


async def test_a_task_that_waited_for_a_place_runs_in_its_launchers_context(
    tmp_path: Path,
) -> None:
    user: ContextVar[str] = ContextVar("user")
    go = trio.Event()
    seen: list[str] = []

    async def first(ctx: Context[object], report: Report) -> None:
        user.set("a secret of the first")
        await go.wait()

    async def second(ctx: Context[object], report: Report) -> None:
        seen.append(user.get())

    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        user.set("alice")
        await runtime.launch(Job(first))
        user.set("bob")
        task = await runtime.launch(Job(second))
        go.set()
        await task.wait()
    assert seen == ["bob"]


async def test_a_command_that_stops_its_guardian_can_be_stopped(tmp_path: Path) -> None:
    """P1, P2: a stop wakes the guardian, which then tells the truth."""
    told = tmp_path / "told"
    with trio.fail_after(30):
        async with open_runtime(tmp_path / "tasks") as runtime:
            task = await runtime.launch(
                Shell(f"kill -STOP $PPID; touch {told}; sleep 1000", grace=0.2)
            )
            while not told.exists():
                await trio.sleep(0.01)
            result = await runtime.stop(task.id)
            assert result.survivors == ()
            assert result.snapshot.status is TaskStatus.KILLED
            done = await runtime.run(Shell("echo the next one runs"))
            assert done.status is TaskStatus.COMPLETED


class Leaves(Exception):
    """An error that wants to leave the program when it is asked what it says."""

    def __str__(self) -> str:
        raise SystemExit(3)


class Interrupts(Exception):
    """An error that looks like Ctrl+C when it is asked what it says."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


class Odd(BaseException):
    pass


class Breaks(Exception):
    def __str__(self) -> str:
        raise Odd


@pytest.mark.parametrize("error", [Leaves(), Breaks(), Interrupts()])
async def test_an_error_that_raises_what_is_no_error_when_shown_ends_one_task(
    tmp_path: Path, error: Exception
) -> None:
    """P4, P10: nobody wished to leave the program; the task's end is told."""

    async def fails(ctx: Context[object], report: Report) -> None:
        raise error

    async def returns(ctx: Context[object], report: Report) -> object:
        return error

    async with open_runtime(tmp_path) as runtime:
        failed = await (await runtime.launch(Job(fails))).wait()
        assert failed.status is TaskStatus.FAILED and failed.error is not None
        assert "cannot be shown" in failed.error.message
        returned = await (await runtime.launch(Job(returns))).wait()
        assert returned.status is TaskStatus.COMPLETED
        assert returned.result is not None and "cannot be shown" in returned.result
        assert len(runtime.notifications.drain()) == 2


@pytest.mark.parametrize("raised", [RuntimeError, SystemExit])
async def test_a_class_that_does_not_tell_its_name_ends_one_task(
    tmp_path: Path, raised: type[BaseException]
) -> None:
    """P3, P10: neither its own end is lost, nor that of a task beside it."""

    class Nameless(type):
        @property
        def __name__(cls) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
            raise raised

        def __repr__(cls) -> str:
            raise raised

    class Odd(Exception, metaclass=Nameless):
        def __str__(self) -> str:
            raise raised

        __repr__ = __str__

    async def fails(ctx: Context[object], report: Report) -> None:
        raise Odd

    async def returns(ctx: Context[object], report: Report) -> object:
        return Odd()

    async def waits(ctx: Context[object], report: Report) -> None:
        await trio.sleep_forever()

    with trio.fail_after(10):
        async with open_runtime(tmp_path) as runtime:
            # Somebody looks at the ends of the actors, too.
            events = runtime.events.subscribe()
            bystander = await runtime.launch(Job(waits))
            failed = await (await runtime.launch(Job(fails))).wait()
            assert failed.error is not None
            assert (failed.status, failed.error.type) == (TaskStatus.FAILED, "Odd")
            returned = await (await runtime.launch(Job(returns))).wait()
            assert returned.result == f"a Odd that cannot be shown: {raised.__name__}"
            assert bystander.status is TaskStatus.RUNNING
            assert len(runtime.notifications.drain()) == 2
            ends = [e.task_id for e in events.drain() if isinstance(e, TaskEnded)]
            assert ends == [failed.id, returned.id]


@pytest.mark.parametrize("raised", [RuntimeError, SystemExit])
@pytest.mark.parametrize("name", ["__traceback__", "__class__"])
async def test_an_error_that_cannot_be_looked_at_ends_one_task(
    tmp_path: Path, name: str, raised: type[BaseException]
) -> None:
    """P10: what it raises then is nobody's wish to leave the program."""

    class Odd(Exception):
        def __getattribute__(self, wanted: str) -> object:
            if wanted == name:
                raise raised
            return super().__getattribute__(wanted)

    async def fails(ctx: Context[object], report: Report) -> None:
        raise Odd

    async def waits(ctx: Context[object], report: Report) -> None:
        await trio.sleep_forever()

    async with open_runtime(tmp_path) as runtime:
        bystander = await runtime.launch(Job(waits))
        failed = await (await runtime.launch(Job(fails))).wait()
        assert failed.status is TaskStatus.FAILED
        assert bystander.status is TaskStatus.RUNNING


@pytest.mark.parametrize("text", [Leaves(), Interrupts()])
@pytest.mark.parametrize("field", ["result", "output_tail", "output_file", "exit_code"])
async def test_a_report_that_wants_to_leave_the_program_ends_one_task(
    tmp_path: Path, field: str, text: Exception
) -> None:
    """P4, P10: the notifier looks at it, and goes on."""

    async def spoils(ctx: Context[object], report: Report) -> None:
        setattr(report, field, text)

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(spoils))
        await task.wait()
        note = await anext(runtime.notifications)
        assert note.task_id == task.id and "</task-notification>" in note.xml
        assert (await (await runtime.launch(Job(spoils))).wait()).error is None


async def test_a_work_that_calls_itself_ended_is_waited_for(tmp_path: Path) -> None:
    """P2: its status is its own word; who waits hears when it is true."""
    go = trio.Event()

    async def body(ctx: Context[object], report: Report) -> None:
        report.transition(TaskStatus.COMPLETED)
        await go.wait()

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(body))
        ended: list[str] = []

        async def wait() -> None:
            ended.append((await runtime.wait_any([task])).id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert ended == []
            go.set()
        assert ended == [task.id]
        assert (await task.wait()).ended_at is not None


class OddInt(int):
    """A number with its own idea of its value."""

    def __float__(self) -> float:
        return float("nan")


class OddFloat(float):
    def __float__(self) -> float:
        return -1.0

    def __lt__(self, other: object) -> bool:
        return False


@pytest.mark.parametrize("shutdown", [OddInt(5), OddFloat(5), OddFloat(-5), 10**400])
async def test_an_odd_number_as_a_budget_is_taken_for_what_it_is_or_refused(
    tmp_path: Path, shutdown: float
) -> None:
    """CO10: a launch that fails leaves nothing behind."""

    async def ends(ctx: Context[object], report: Report) -> None:
        pass

    async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
        if shutdown == 5:
            task = await runtime.launch(Job(ends, shutdown=shutdown))
            assert (await task.wait()).status is TaskStatus.COMPLETED
        else:
            with pytest.raises(TypeError, match="the shutdown of a work"):
                await runtime.launch(Job(ends, shutdown=shutdown))
        with trio.fail_after(10):
            await runtime.wait_idle()
        done = await (await runtime.launch(Job(ends))).wait()
        assert done.status is TaskStatus.COMPLETED


class Panic(BaseException):
    """What an extension module raises in place of an Exception."""


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "in a group"])
async def test_a_cancellation_that_somebody_kept_ends_only_who_raises_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, wrapped: bool
) -> None:
    """P8, P10: it would cancel every task of the pool."""
    kept: list[BaseException] = []
    is_kept = trio.Event()

    async def keeps(ctx: Context[object], report: Any) -> None:
        try:
            await trio.sleep_forever()
        except BaseException as error:
            kept.append(error)
            is_kept.set()
            raise

    async def raises_it(ctx: Context[object], report: Any) -> None:
        await is_kept.wait()
        if wrapped:
            raise BaseExceptionGroup("", [ValueError("no"), *kept])
        raise kept[0]

    async def works(ctx: Context[object], report: Any) -> str:
        await trio.sleep(100)
        return "fine"

    async with open_runtime(tmp_path) as runtime:
        bystander = await runtime.launch(Job(works))
        keeper = await runtime.launch(Job(keeps))
        raiser = await runtime.launch(Job(raises_it))
        await trio.testing.wait_all_tasks_blocked()
        assert (await keeper.stop()).snapshot.status is TaskStatus.KILLED
        failed = await raiser.wait()
        assert failed.status is TaskStatus.FAILED
        assert failed.error is not None
        assert ("no" if wrapped else "a cancellation of another scope") in (
            failed.error.traceback
        )
        assert (await bystander.wait()).result == "fine"


async def test_what_is_no_exception_is_a_failure_of_one_task(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P10: only interrupts end the runtime."""

    async def panics(ctx: Context[object], report: Any) -> None:
        raise Panic("out of bounds")

    async def works(ctx: Context[object], report: Any) -> str:
        await trio.sleep(100)
        return "fine"

    async with open_runtime(tmp_path) as runtime:
        bystander = await runtime.launch(Job(works))
        failed = await (await runtime.launch(Job(panics))).wait()
        assert failed.status is TaskStatus.FAILED
        assert failed.error is not None
        assert (
            failed.error.message
            == "the actor raised a Panic, which is not an Exception"
        )
        assert "out of bounds" in failed.error.traceback
        assert (await bystander.wait()).result == "fine"
