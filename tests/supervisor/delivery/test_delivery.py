"""Delivery: from the end of a task to the reader that acknowledges it."""

from __future__ import annotations

import math
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing

import actors.notifier
import supervisor._delivery.outbox
from actors import ActorRef, Context, Ended, Progress, Progressed, TaskStatus
from actors.envelope import LABEL_LIMIT, Envelope
from actors.shell import Shell
from actors.testing import fake_env
from actors.work import Report
from supervisor._delivery.outbox import Notification, Notify, Outbox
from supervisor._delivery.readers import Notifications
from supervisor.lowlevel import life_of
from supervisor.runtime import (
    Acked,
    BacklogFull,
    Limits,
    Notified,
    TaskEnded,
    TaskHandle,
    TaskProgress,
    Warned,
    open_runtime,
)
from supervisor.simulation import simulate
from supervisor.tree import ChildStarted, EventStream, child, open_supervisor
from tests.supervisor.delivery.boxes import NoJournal
from tests.supervisor.jobs import Job, agent, fails, forever, returns


def fields(note: Notification) -> ET.Element:
    return ET.fromstring(note.xml)


# The notifier crashes wherever it can


class Crash(Exception):
    pass


Place = tuple[str, int]

# All that runs in the notifier's task between one record and the next.
WATCHED = {
    actors.notifier.__file__: {"notifier", "write_envelopes", "_render_minimal"},
    supervisor._delivery.outbox.__file__: {
        "Outbox.next_unsent",
        "Outbox.publish",
        "_Ready.put",
    },
}


class Crashes(trio.abc.Instrument):
    """Raises in the lines of the notifier, as a bug in any of them would."""

    def __init__(self) -> None:
        self.visits: Counter[Place] = Counter()
        self.crashed = 0
        self.should: Callable[[Place], bool] = lambda place: False

    def crash_at(self, place: Place, visit: int) -> None:
        """Crash once, when that line is come to for that time."""
        self.should = lambda here: here == place and self.visits[here] == visit

    @contextmanager
    def installed(self) -> Generator[None]:
        before = sys.gettrace()
        trio.lowlevel.add_instrument(self)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(self)
            sys.settrace(before)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        # Whenever it has raised, Python forgets it.
        sys.settrace(self._enter)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        names = WATCHED.get(code.co_filename)
        return self._line if names and code.co_qualname in names else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            place = (frame.f_code.co_qualname, frame.f_lineno)
            self.visits[place] += 1
            if self.should(place):
                self.crashed += 1
                raise Crash(f"{place}")
        return self._line


async def deliver(crashes: Crashes, records: int, *, kill: int = 0) -> list[str]:
    """Send that many records through a supervised notifier, to a reader that
    reads while they come; return the ids as the reader saw them."""
    outbox = Outbox(lambda note, how: None, lambda warning: None, NoJournal())
    read: list[str] = []

    async def reader() -> None:
        async for note in Notifications(outbox, None, everyone=True):
            assert fields(note).findtext("notification-id") == note.id
            assert note.ack()
            read.append(note.id)

    def add(number: int) -> None:
        id = f"n{number:06}"

        facts = Envelope(
            notification_id=id,
            task_id="s1",
            run_id="s1-1",
            task_type="local_bash",
            status="failed",
            summary="x",
            remaining=0,
            all_terminal=True,
        )
        owner = "a" if number % 2 else None
        outbox.add(id, "s1", owner, TaskStatus.FAILED, "wake", facts)

    # Somebody holds a view of one owner as well, and reads nothing.
    view = Notifications(outbox, "a", everyone=False)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader)
            async with open_supervisor(
                [
                    child(
                        "notifier", actors.notifier.notifier, outbox, lambda said: None
                    )
                ],
                intensity=10_000,
            ) as sup:
                ref = sup.which_children()[0].ref
                with crashes.installed():
                    for number in range(records):
                        add(number)
                        if ref.state != "stopped":
                            id = f"n{number:06}"
                            ref.tell(Ended("s1", "s1-1", TaskStatus.FAILED, id))
                        if kill and number % 40 == kill:
                            await sup.terminate_child("notifier")
                        elif kill and number % 40 == 2 * kill:
                            await sup.restart_child("notifier")
                        elif number % 9 == 0:
                            await trio.lowlevel.checkpoint()
                    await trio.testing.wait_all_tasks_blocked()
            outbox.close()
    assert outbox.unacknowledged == 0 and view.drain() == []
    return read


def test_a_crash_in_any_line_of_the_notifier_loses_and_repeats_nothing() -> None:
    """P4, N1, N2: at the first time, in the middle and at the last time, among 100
    records."""

    def run(crashes: Crashes) -> list[str]:
        # By one schedule, so that each run comes to the same lines as often.
        done = simulate(lambda _: deliver(crashes, 100))
        assert done.error is None, done.error
        return cast("list[str]", done.value)

    seen = Crashes()
    expected = [f"n{number:06}" for number in range(100)]
    assert run(seen) == expected
    assert len(seen.visits) > 20
    for place, times in seen.visits.items():
        for visit in {1, (times + 1) // 2, times}:
            crashes = Crashes()
            crashes.crash_at(place, visit)
            assert run(crashes) == expected, (place, visit)
            assert crashes.crashed == 1


@pytest.mark.parametrize("every", [3, 5, 7, 11, 13])
async def test_a_notifier_that_crashes_all_the_time_loses_and_repeats_nothing(
    every: int,
) -> None:
    """P4: in some line or other, again and again."""
    crashes = Crashes()
    # Less often than in each line of the way of one record, or none would get there.
    crashes.should = lambda place: crashes.visits.total() % (every * 12) == every
    assert await deliver(crashes, 500) == [f"n{number:06}" for number in range(500)]
    assert crashes.crashed > 20


@pytest.mark.parametrize("kill", [1, 2, 5, 9, 18])
async def test_a_notifier_ended_by_its_supervisor_loses_and_repeats_nothing(
    kill: int,
) -> None:
    """P4: it is terminated and started again, with records coming in between."""
    ids = await deliver(Crashes(), 400, kill=kill)
    assert ids == [f"n{number:06}" for number in range(400)]


async def test_a_crash_while_it_waits_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """P4: the notifier of a runtime, which has nothing to do just then."""
    async with open_runtime(tmp_path) as runtime:
        read: list[str] = []
        ended: list[str] = []
        for number in range(8):
            runtime.root.which_children()[0].ref.stop()
            if number % 2:
                await trio.testing.wait_all_tasks_blocked()
            task = await runtime.launch(returns(number))
            await task.wait()
            ended.append(task.id)
            if number % 3:
                read.append((await anext(runtime.notifications)).task_id)
        read += [note.task_id for note in runtime.notifications.drain()]
        assert read == ended


# In the order of the ends


async def test_hundreds_of_ends_are_told_in_their_order_once(tmp_path: Path) -> None:
    """P4, N1: the order of the terminal records is that of the event stream."""
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        for number in range(300):
            await runtime.launch(returns(number), owner=f"o{number % 3}")
        await runtime.wait_idle()
        notes = runtime.notifications.drain()
        seen = events.drain()
        order = [e.task_id for e in seen if isinstance(e, TaskEnded)]
        assert [note.task_id for note in notes] == order
        assert [note.id for note in notes] == sorted({note.id for note in notes})
        assert [e.task_id for e in seen if isinstance(e, Notified)] == order


async def test_without_a_reader_an_end_is_recorded_and_kept(tmp_path: Path) -> None:
    """N4, N5 differs: it is kept for the first reader, and shutdowns are told too."""
    async with open_runtime(tmp_path) as runtime:
        first = await runtime.launch(returns("x"))
        assert (await first.wait()).status is TaskStatus.COMPLETED
        second = await runtime.launch(Job(forever))
    assert [note.task_id async for note in runtime.notifications] == [
        first.id,
        second.id,
    ]


async def test_nobody_needs_to_read_to_know_the_state(tmp_path: Path) -> None:
    """N49: asking and waiting tell the same, before and after."""
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(returns("x"))
        snapshot = await task.wait()
        assert runtime.get(task.id) == snapshot == runtime.tasks()[0]
        (note,) = runtime.notifications.drain()
        note.ack()
        assert runtime.get(task.id) == attrs.evolve(snapshot, notified=True)


async def test_a_stop_is_told_by_the_end_and_never_by_the_request(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """N6, N7, P2: with the partial result, however long that takes, and once;
    there is no fallback that could come before or after."""
    async with open_runtime(tmp_path) as runtime:

        async def body(ctx: Context[object], report: Report) -> str:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(60)
                report.result = "half an answer"

        task = await runtime.launch(Job(body, shutdown=100))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.stop, task.id)
            await trio.sleep(59)
            assert runtime.notifications.drain() == []
            assert task.snapshot().stopping
        (note,) = runtime.notifications.drain()
        assert fields(note).findtext("result") == "half an answer"
        assert fields(note).findtext("status") == "killed"
        await trio.sleep(100)
        assert runtime.notifications.drain() == []


async def test_a_caller_that_tells_of_the_stop_itself_keeps_it_silent(
    tmp_path: Path,
) -> None:
    """N8: nothing follows, not even at the end."""
    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(forever))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.notifications.__anext__)
            await trio.testing.wait_all_tasks_blocked()
            result = await runtime.stop(task.id, notify="silent")
            assert result.snapshot.status is TaskStatus.KILLED
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        with pytest.raises(ValueError, match=r"notify must be one of .* not 'no'"):
            await runtime.stop(task.id, notify="no")  # type: ignore[arg-type]
    assert runtime.notifications.drain() == []


@pytest.mark.sim(seeds=6, policy="batch")
async def test_whoever_waits_for_a_task_goes_on_before_its_envelope_is_made() -> None:
    """PF7, N39: a completion reaches its waiter before anything else is done with
    it, in whatever order trio runs the tasks of a step."""
    async with open_runtime("tasks", env=fake_env()) as runtime:
        made: list[bool] = []
        for _ in range(4):
            end = trio.Event()

            async def body(
                ctx: Context[object], report: Report, end: trio.Event = end
            ) -> None:
                await end.wait()

            task = await runtime.launch(Job(body))

            async def wait(task: TaskHandle = task) -> None:
                await task.wait()
                made.append(life_of(runtime).delivery.outbox.next_unsent() is None)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                end.set()
            assert runtime.notifications.drain()
        assert made == [False] * 4


# Policies


@pytest.mark.parametrize("how", ["survives", "cancelled"])
async def test_an_end_that_a_silent_stop_has_not_seen_is_told(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, how: str
) -> None:
    """P4: whoever wanted to tell of it could not."""

    async def shielded(ctx: Context[object], report: Report) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    async with open_runtime(tmp_path) as runtime:
        task = await runtime.launch(Job(shielded, shutdown=1.0))
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.5 if how == "cancelled" else 10):
            result = await runtime.stop(task, notify="silent")
            assert result.survivors
        await task.wait()
        (note,) = runtime.notifications.drain()
        assert note.task_id == task.id


async def test_a_silent_task_is_on_record_and_reaches_no_reader(tmp_path: Path) -> None:
    """P4, SD2: one terminal record, acknowledged as silent; no backlog."""
    async with open_runtime(tmp_path, limits=Limits(backlog=1)) as runtime:
        events = runtime.events.subscribe()
        for _ in range(3):
            task = await runtime.launch(returns("x"), notify="silent")
            assert task.snapshot().notify == "silent"
            await task.wait()
        seen = events.drain()
        assert sum(isinstance(event, Notified) for event in seen) == 3
        assert [e.how for e in seen if isinstance(e, Acked)] == ["silent"] * 3
        assert runtime.notifications.drain() == []


async def test_deferred_ends_come_with_the_next_that_wakes(tmp_path: Path) -> None:
    async with open_runtime(tmp_path) as runtime:
        batches: list[list[str]] = []

        async def read() -> None:
            batch = await runtime.notifications.receive_batch()
            batches.append([note.task_id for note in batch])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            ids: list[str] = []
            policies: list[Notify] = ["defer", "defer", "wake"]
            for policy in policies:
                task = await runtime.launch(returns("x"), notify=policy)
                await task.wait()
                await trio.testing.wait_all_tasks_blocked()
                assert batches == ([] if policy == "defer" else [[*ids, task.id]])
                ids.append(task.id)
        last = await runtime.launch(returns("x"), notify="defer")
        await last.wait()
    assert [note.task_id async for note in runtime.notifications] == [last.id]


@pytest.mark.parametrize("notify", ["", "loud", None, True])
async def test_a_policy_that_does_not_exist_starts_nothing(
    tmp_path: Path, notify: Any
) -> None:
    async with open_runtime(tmp_path) as runtime:
        with pytest.raises(ValueError, match=f"wake, defer, silent, not {notify!r}"):
            await runtime.launch(returns(1), notify=notify)
        assert runtime.tasks() == []


async def test_ends_in_rapid_succession_are_one_batch(tmp_path: Path) -> None:
    """N30, P9: one wake-up, and no timer."""
    async with open_runtime(tmp_path) as runtime:
        end = trio.Event()

        async def body(ctx: Context[object], report: Report) -> None:
            await end.wait()

        tasks = [await runtime.launch(Job(body)) for _ in range(20)]
        batches: list[list[str]] = []

        async def read() -> None:
            while sum(map(len, batches)) < 20:
                batch = await runtime.notifications.receive_batch()
                batches.append([note.task_id for note in batch])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            end.set()
        assert {id for batch in batches for id in batch} == {t.id for t in tasks}
        assert len(batches) <= 2


# Read in another way, or by a reader that died


async def test_a_result_that_was_read_in_another_way_is_not_told(
    tmp_path: Path,
) -> None:
    """P4: acknowledged as consumed, also before it has its envelope."""
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(Job(forever))
        assert not runtime.consume(task.id)
        assert not runtime.consume("s1234567")
        await runtime.stop(task.id)
        assert runtime.consume(task.id)
        assert not runtime.consume(task.id)
        assert runtime.notifications.drain() == []
        (acked,) = [e for e in events.drain() if isinstance(e, Acked)]
        assert acked.how == "consumed"
        foreground = await runtime.run(returns(1))
        assert not runtime.consume(foreground.id)
        told = await runtime.launch(returns(1))
        await told.wait()
        (note,) = runtime.notifications.drain()
        assert not runtime.consume(told.id) and note.acked is None


async def test_a_reader_that_died_is_replaced_without_a_loss(tmp_path: Path) -> None:
    """P4, P6: what it had taken and not acknowledged is there for the next one."""
    async with open_runtime(tmp_path) as runtime:
        handled: list[str] = []

        async def handle(note: Notification) -> None:
            await trio.lowlevel.checkpoint()
            if len(handled) in (3, 7) and note.task_id not in failed:
                failed.append(note.task_id)
                raise Crash
            handled.append(note.task_id)
            note.ack()

        failed: list[str] = []
        ended: list[str] = []

        async def reader(ctx: Context[None]) -> None:
            for note in runtime.notifications.unacknowledged():
                await handle(note)
            async for note in runtime.notifications:
                await handle(note)

        async with open_supervisor([child("reader", reader)], intensity=5):
            tasks = [await runtime.launch(returns(n)) for n in range(20)]
            ended += [s.id for s in await runtime.wait_all(tasks)]
            await trio.testing.wait_all_tasks_blocked()
        assert len(failed) == 2
        assert sorted(handled) == sorted(ended) and len(handled) == 20
        assert runtime.notifications.unacknowledged() == []


async def test_launch_refuses_at_the_backlog_until_something_is_acknowledged(
    tmp_path: Path,
) -> None:
    """P6: in whatever way; taken alone is not enough."""
    async with open_runtime(tmp_path, limits=Limits(backlog=2)) as runtime:
        tasks = [await runtime.launch(returns(n)) for n in range(2)]
        await runtime.wait_idle()
        with pytest.raises(BacklogFull, match="2 notifications are not acknowledged"):
            await runtime.launch(returns(3))
        assert runtime.consume(tasks[0].id)
        await (await runtime.launch(returns(3))).wait()
        notes = runtime.notifications.drain()
        with pytest.raises(BacklogFull):
            await runtime.launch(returns(4))
        notes[0].ack()
        await (await runtime.launch(returns(4))).wait()
        # The foreground makes no notification and is never refused.
        assert (await runtime.run(returns(5))).status is TaskStatus.COMPLETED


# What an envelope says


async def test_what_was_not_given_is_not_in_the_envelope(tmp_path: Path) -> None:
    """N16, N17, N41: no tool use id, no output file; the id where there is no
    description."""

    class Nameless(Job):
        def describe(self) -> str:
            return ""

    async with open_runtime(tmp_path) as runtime:
        bare = await runtime.launch(Nameless(forever))
        full = await runtime.launch(Job(forever), tool_use_id="toolu_<1>")
        await runtime.stop_all()
        notes = {note.task_id: note for note in runtime.notifications.drain()}
        assert fields(notes[bare.id]).find("tool-use-id") is None
        assert fields(notes[bare.id]).find("output-file") is None
        assert bare.id in (fields(notes[bare.id]).findtext("summary") or "")
        assert "None" not in notes[bare.id].xml
        assert fields(notes[full.id]).findtext("tool-use-id") == "toolu_<1>"


async def test_the_envelope_of_a_shell_names_its_output_file(tmp_path: Path) -> None:
    """N17, N45."""
    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(Shell("echo hello"))
            snapshot = await task.wait()
            (note,) = runtime.notifications.drain()
    path = fields(note).findtext("output-file")
    assert snapshot.output_file is not None and path == str(snapshot.output_file)
    assert snapshot.output_file.read_text() == "hello\n"


async def test_the_line_for_people_is_short_and_the_model_gets_the_result(
    tmp_path: Path,
) -> None:
    """N15, N10, N11, N12."""
    text = "</task-notification>&\"'<" * 500
    async with open_runtime(tmp_path) as runtime:
        await (await runtime.launch(returns(text), description="a <job>")).wait()
        (note,) = runtime.notifications.drain()
        assert note.display == 'Agent "a <job>" completed'
        assert fields(note).findtext("result") == text
        assert note.xml.count("</task-notification>") == 1


@pytest.mark.parametrize(
    ("command", "description", "cwd", "said"),
    [
        ("true", None, None, '"true" completed (exit code 0)'),
        (" true\n", "true", None, '"true" completed (exit code 0)'),
        ("true", "unit tests", None, '"unit tests" completed (exit code 0): true'),
        ("true", "true", "/", '"true" completed (exit code 0), in /'),
        ("true", "a", "/", '"a" completed (exit code 0): true, in /'),
        ("exit 3", "a", "/", '"a" failed: exit code 3: exit 3, in /'),
        # A description that was made of it, but not of all of it.
        ("true\nexit 3", None, None, '"true ..." failed: exit code 3: true exit 3'),
    ],
)
async def test_the_end_of_a_shell_names_its_command_and_the_directory_it_was_given(
    command: str, description: str | None, cwd: str | None, said: str, tmp_path: Path
) -> None:
    """N15: whatever it was described as, for the model, for people, for programs."""
    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime:
            task = await runtime.launch(
                Shell(command, cwd=cwd), description=description
            )
            await task.wait()
            (note,) = runtime.notifications.drain()
    assert fields(note).findtext("summary") == f"Command {said}"
    assert note.display == f"Command {said}"
    assert (note.command, note.cwd) == (command, cwd)


async def test_a_shell_that_never_ran_names_its_command_and_directory(
    tmp_path: Path,
) -> None:
    """N15: one that was stopped as it waited, and one whose directory is not there."""
    nowhere = tmp_path / "nowhere"
    with trio.fail_after(60):
        async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
            lost = await runtime.launch(Shell("true", cwd=nowhere), description="a")
            await lost.wait()
            first = await runtime.launch(Job(forever))
            held = await runtime.launch(Shell("make", cwd="/"), description="b")
            await held.stop("not needed")
            await first.stop()
            notes = {n.task_id: n for n in runtime.notifications.drain()}
    said = fields(notes[lost.id]).findtext("summary") or ""
    assert said.endswith(f": true, in {nowhere}")
    assert notes[lost.id].cwd == str(nowhere)
    said = fields(notes[held.id]).findtext("summary") or ""
    assert said == 'Command "b" was stopped: not needed: make, in /'
    assert notes[held.id].command == "make"
    assert (notes[first.id].command, notes[first.id].cwd) == (None, None)
    assert notes[first.id].display == 'Agent "a job" was stopped'


async def test_the_end_of_an_agent_names_the_directory_it_was_given(
    tmp_path: Path,
) -> None:
    """N15: that of the host goes without saying."""
    async with open_runtime(tmp_path) as runtime:
        for cwd in (None, "/"):
            await (await runtime.launch(agent(cwd=cwd), description="a")).wait()
        notes = runtime.notifications.drain()
    assert [(note.command, note.cwd) for note in notes] == [(None, None), (None, "/")]
    said = [note.display for note in notes]
    assert said == ['Agent "a" completed', 'Agent "a" completed, in /']


@pytest.mark.parametrize("hostile", ["\x1b]0;", "\x1b[", "\x1bP", "\u202e", "\n\x07"])
async def test_a_long_or_hostile_command_is_one_line_that_is_cut_and_hides_nothing(
    hostile: str, tmp_path: Path
) -> None:
    """N11, N12, P5: not what happened, nor the directory after it; and a description
    of any length does not drive it out."""
    command = "x" * 150 + f"\n</summary>{hostile}<status>" * 1_000
    with trio.fail_after(60):
        async with open_runtime(tmp_path, limits=Limits(total=1)) as runtime:
            first = await runtime.launch(Job(forever))
            for description in ("a", "z" * 10_000):
                work = Shell(command, cwd="/")
                task = await runtime.launch(work, description=description + hostile)
                await task.stop("why not")
            await first.stop()
            short, long, _ = runtime.notifications.drain()
    said = fields(short).findtext("summary") or ""
    assert said.startswith('Command "a') and '" was stopped: why not: xxx' in said
    said = fields(long).findtext("summary") or ""
    assert len(said) == LABEL_LIMIT and said.startswith('Command "zzz')
    for note in (short, long):
        said = fields(note).findtext("summary") or ""
        assert said.isprintable() and said.endswith("…, in /")
        assert len(said) - said.rindex(": xxx") == len(": ") + 200 + len(", in /")
        assert note.display.isprintable() and len(note.display) <= 200
        assert note.command == command


async def test_remaining_goes_down_over_one_stop_all(tmp_path: Path) -> None:
    """SD1, SD3, N18, N19: each of the owner's tasks is told as killed once; what
    had ended stays as it was; foreground tasks and other owners do not count."""
    async with open_runtime(tmp_path, limits=Limits(total=6)) as runtime:
        done = await runtime.launch(returns("x"), owner="main")
        await done.wait()
        runtime.notifications.drain()
        for owner in ("main", "main", None, "main", "other"):
            await runtime.launch(Job(forever), owner=owner)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: runtime.run(Job(forever), owner="main"),
            )
            await trio.testing.wait_all_tasks_blocked()
            pending = await runtime.launch(Job(forever), owner="main")
            assert pending.status is TaskStatus.PENDING
            results = await runtime.stop_all(owner="main")
        assert {r.snapshot.status for r in results} == {TaskStatus.KILLED}
        assert done.status is TaskStatus.COMPLETED
        notes = runtime.notifications_for("main").drain()
        told = [
            (fields(n).findtext("remaining"), fields(n).findtext("all-terminal"))
            for n in notes
        ]
        assert told == [("3", "false"), ("2", "false"), ("1", "false"), ("0", "true")]
        assert {note.status for note in notes} == {TaskStatus.KILLED}
        await runtime.stop_all()
        (none,) = runtime.notifications_for(None).drain()
        assert fields(none).findtext("remaining") == "0"


async def test_progress_without_news_is_not_told(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """N48: what is told is the latest; nothing said, nothing told."""
    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()

        async def body(ctx: Context[object], report: Report) -> None:
            report.say(Progress(tool_uses=1))
            await trio.sleep(100)
            report.say(Progress(tool_uses=2))

        await (await runtime.launch(Job(body))).wait()
        told = [e.tool_uses for e in events.drain() if isinstance(e, TaskProgress)]
        assert told == [1, 2]


async def test_many_owners_read_their_own_without_a_copy_for_the_others(
    tmp_path: Path,
) -> None:
    """P4, N19: each view gets its owner's ends, in order, once."""
    async with open_runtime(tmp_path) as runtime:
        read: dict[str, list[str]] = {f"o{n}": [] for n in range(5)}

        async def reader(owner: str) -> None:
            async for note in runtime.notifications_for(owner):
                assert note.owner == owner
                read[owner].append(note.task_id)
                note.ack()

        async with trio.open_nursery() as nursery:
            for owner in read:
                nursery.start_soon(reader, owner)
            ended: dict[str, list[str]] = {owner: [] for owner in read}
            for number in range(50):
                owner = f"o{number % 5}"
                task = await runtime.launch(returns(number), owner=owner)
                await task.wait()
                ended[owner].append(task.id)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert read == ended
        assert runtime.notifications.drain() == []


# What travels by message


async def test_of_much_progress_one_message_waits_and_the_latest_is_told(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P6: while the notifier has no time, however long that is."""
    go = trio.Event()
    told: list[Progressed | Ended] = []

    async def body(ctx: Context[object], report: Report) -> None:
        await go.wait()
        for number in range(100):
            # Each is worth telling: a second has passed since the last.
            report.progress_told_at = -math.inf
            report.say(Progress(text=str(number)))
        await trio.sleep_forever()

    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        tasks = [await runtime.launch(Job(body)) for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        ref = life_of(runtime).delivery.notifier
        tell = type(ref).tell

        def watched(self: ActorRef[Any], message: Any) -> None:
            if self is ref:
                told.append(message)
            tell(self, message)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(ref), "tell", watched)
            go.set()
            await trio.testing.wait_all_tasks_blocked()
        progress = [e for e in events.drain() if isinstance(e, TaskProgress)]
        assert sorted(e.task_id for e in progress) == sorted(t.id for t in tasks)
        assert {e.text for e in progress} == {"99"}
        assert sorted(m.task_id for m in told) == sorted(t.id for t in tasks)
        assert all(isinstance(m, Progressed) for m in told)
        assert not life_of(runtime).delivery.latest


async def test_what_comes_after_the_end_or_twice_is_refused_and_counted(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P3, P4: one `Ended`, no `Progressed` after it, and one notification."""
    reports: list[Report] = []

    async def body(ctx: Context[object], report: Report) -> None:
        reports.append(report)

    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(Job(body))
        await task.wait()
        delivery = life_of(runtime).delivery
        record = life_of(runtime).table.find(task.id)
        assert record is not None and delivery.refused == 0
        events.drain()
        reports[0].say(Progress("late"))
        assert delivery.refused == 1
        delivery.tell(record, 0, None)
        assert delivery.refused == 2
        await trio.testing.wait_all_tasks_blocked()
        assert not any(isinstance(e, TaskProgress) for e in events.drain())
        (note,) = runtime.notifications.drain()
        assert note.task_id == task.id and note.ack()


async def test_progress_is_told_before_the_end_and_before_a_warning(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """However little time the notifier has between them."""

    async def body(ctx: Context[object], report: Report) -> None:
        report.say(Progress("first"))
        report.warn("then")
        report.progress_told_at = -math.inf
        report.say(Progress("last"))

    async with open_runtime(tmp_path) as runtime:
        events = runtime.events.subscribe()
        await (await runtime.launch(Job(body))).wait()
        told = [
            getattr(e, "text", type(e).__name__)
            for e in events.drain()
            if isinstance(e, TaskProgress | Warned | TaskEnded)
        ]
        assert told == ["first", "then", "last", "TaskEnded"]


@pytest.mark.parametrize("crashes", [1, 2, 3])
async def test_a_crash_in_the_middle_of_progress_loses_and_repeats_none(
    tmp_path: Path, crashes: int
) -> None:
    """P4, P6: the notifier fails at the first texts, with all messages in its hands."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        events, go = runtime.events.subscribe(), trio.Event()

        async def body(ctx: Context[object], report: Report) -> None:
            await go.wait()
            report.say(Progress(report.task_id))
            await trio.sleep_forever()

        tasks = [await runtime.launch(Job(body)) for _ in range(5)]
        await trio.testing.wait_all_tasks_blocked()
        delivery = life_of(runtime).delivery
        emit, left = EventStream.emit, crashes

        def fail(self: EventStream, kind: Any, *fields: Any) -> None:
            nonlocal left
            if kind is TaskProgress:
                left -= 1
                if left >= 0:
                    raise RuntimeError("it crashes")
            emit(self, kind, *fields)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EventStream, "emit", fail)
            go.set()
            await trio.testing.wait_all_tasks_blocked()
        seen = events.drain()
        starts = [
            e for e in seen if isinstance(e, ChildStarted) and e.child == "notifier"
        ]
        assert len(starts) == crashes
        told = [e.text for e in seen if isinstance(e, TaskProgress)]
        assert sorted(told) == sorted(task.id for task in tasks)
        assert not delivery.latest and not delivery._queued


async def test_one_message_of_a_task_waits_however_often_it_is_told_in_between(
    tmp_path: Path,
) -> None:
    """P6: what a task says between two warnings is told before each, without it."""
    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        events = runtime.events.subscribe()
        waiting: list[int] = []

        async def body(ctx: Context[object], report: Report) -> None:
            await trio.lowlevel.checkpoint()
            mailbox = life_of(runtime).delivery.notifier.mailbox
            for number in range(200):
                report.progress_told_at = -math.inf
                report.say(Progress(str(number)))
                report.warn("so far")
                waiting.append(len(mailbox))
            await trio.sleep_forever()

        await runtime.launch(Job(body))
        await trio.testing.wait_all_tasks_blocked()
        assert max(waiting) <= 1
        told = [e.text for e in events.drain() if isinstance(e, TaskProgress)]
        assert told == [str(number) for number in range(200)]


async def test_a_work_of_the_hosts_own_has_progress_and_usage(tmp_path: Path) -> None:
    """As an agent has: nothing of it is lost for its kind."""
    go = trio.Event()

    async def body(ctx: Context[object], report: Report) -> None:
        report.say(Progress("half", tool_uses=3, total_tokens=50))
        await go.wait()

    async with open_runtime(tmp_path, env=fake_env()) as runtime:
        task = await runtime.launch(Job(body, task_type="local_work"))
        await trio.testing.wait_all_tasks_blocked()
        assert runtime.tell_progress(task)
        go.set()
        usage = (await task.wait()).usage
        assert (usage.total_tokens, usage.tool_uses) == (50, 3)
        (note,) = [n for n in runtime.notifications.drain() if n.kind == "task"]
        assert "<total-tokens>50</total-tokens>" in note.xml


# Without a journal the ids are others.
_ID = re.compile("(?<=-id>)[^<]*(?=</)|[a-z]?[0-9a-f]{8}(?=[.]output)")


class _Nonsense:
    """What cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def _ends(journal: bool) -> tuple[list[object], list[str]]:
    """Return all that is told of the ends of many tasks, and the warnings."""

    async def reports_nonsense(ctx: Context[object], report: Report) -> str:
        report.exit_code = cast("Any", _Nonsense())
        report.output_file = cast("Any", _Nonsense())
        return "done"

    async def counts(ctx: Context[object], report: Report) -> str:
        report.say(Progress(total_tokens=7, tool_uses=2))
        await trio.sleep(2.5)
        return "counted"

    env = fake_env({"ok": "printed\n", "bad": 3, "gone": -9, "none": OSError(2, "no")})
    async with open_runtime("/tasks", env=env, journal=journal) as runtime:
        events = runtime.events.subscribe()
        going_on = await runtime.launch(Job(forever), owner="somebody")
        for number, work in enumerate(
            [
                *map(Shell, ("ok", "bad", "gone", "none")),
                Shell("ok", cwd="/elsewhere"),
                returns("<task-id>&\x1b[31m"),
                returns(_Nonsense()),
                returns(None),
                fails(ValueError("wrong\n<x>")),
                Job(reports_nonsense),
                Job(counts),
            ]
        ):
            # One after the other: trio draws the order of those that end in one tick.
            task = await runtime.launch(
                work,
                description=f"number \x1b{number}" if number % 2 else None,
                owner="somebody" if number % 3 else None,
                notify="defer" if number % 5 == 4 else "wake",
                tool_use_id=f"use {number}" if number % 4 == 1 else None,
            )
            await task.wait()
        stopped = await runtime.launch(Job(forever))
        await runtime.stop(stopped, "no longer <needed>", by="user")
        again = fails(ValueError("again"))
        await runtime.launch(again, restart="transient", intensity=2)
        await runtime.stop(going_on)
        await runtime.wait_idle()
        # Of one that is consumed before its envelope is written nothing is told.
        consumed = await runtime.launch(returns("read"))
        await consumed.wait()
        runtime.consume(consumed)
        await trio.testing.wait_all_tasks_blocked()
        drained = sorted(runtime.notifications.drain(), key=lambda note: note.id)
        said: list[object] = [
            (_ID.sub("...", note.xml), note.display, note.toast, note.command, note.cwd)
            for note in drained
        ]
        said += [
            (note.status, note.description, note.duration_ms, note.owner, note.notify)
            for note in drained
        ]
        warned = [it.text for it in events.drain() if isinstance(it, Warned)]
    return said, warned


async def test_an_end_is_told_in_the_same_words_with_and_without_a_journal(
    autojump_clock: object,
) -> None:
    """P5: with one they are gathered as it ends, without one as they are written."""
    kept, without = await _ends(True), await _ends(False)
    assert len(kept[0]) == 2 * 14
    assert [text for text in kept[1] if "without its details" in text]
    assert kept == without
