"""Monitors: what a running command prints reaches its owner, in virtual time."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise, permutations

import attrs
import pytest
import trio
import trio.testing

from actors.agent import Agent, AgentContext, AgentEvent, FinalResult, Note, ToolUse
from actors.shell import Shell
from actors.testing import Program, fake_env
from supervisor.agents import AgentPolicy
from supervisor.permissions import Permissions
from supervisor.runtime import (
    Monitor,
    MonitorEnded,
    MonitorStarted,
    Notification,
    Runtime,
    RuntimeStopping,
    TooManyMonitors,
    open_runtime,
)
from tests.supervisor.jobs import Job, forever


def at(*times: float, lines: int = 1) -> Callable[[Program], Awaitable[None]]:
    """A command that prints at these times, each line with its number."""

    async def script(program: Program) -> None:
        begun, number = trio.current_time(), 0
        for time in times:
            await trio.sleep_until(begun + time)
            await program.print("".join(f"{number + n}\n" for n in range(lines)))
            number += lines

    return script


async def chatty(program: Program) -> None:
    while True:
        await program.print("x\n")
        await trio.sleep(0.1)


def opened(**commands: Callable[[Program], Awaitable[None]] | str) -> open_runtime:
    return open_runtime("/tasks", env=fake_env({"chatty": chatty, **commands}))


def shown(note: Notification) -> list[str]:
    """The lines that a note tells."""
    text = ET.fromstring(note.xml).findtext("lines")
    return [] if text is None else text.split("\n")[1:-1]


def left_out(note: Notification) -> int:
    more = re.match(
        "and ([0-9,]+) more", ET.fromstring(note.xml).findtext("more") or ""
    )
    return 0 if more is None else int(more[1].replace(",", ""))


@attrs.define
class Reader:
    """Reads at once, or after a while, and notes when it has."""

    runtime: Runtime
    slow: float = 0.0
    notes: list[tuple[float, Notification]] = attrs.Factory(
        list[tuple[float, Notification]]
    )

    async def read(self) -> None:
        async for note in self.runtime.notifications_for("main"):
            self.notes.append((trio.current_time(), note))
            await trio.sleep(self.slow)
            note.ack()

    def lines(self) -> list[str]:
        return [
            it for _, note in self.notes if note.kind == "monitor" for it in shown(note)
        ]


# What is told


async def test_lines_are_told_while_the_command_runs_and_its_end_comes_last(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(work=at(0, 0.05, 3, 3.9, 4.0)) as runtime:
        reader = Reader(runtime)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.read)
            begun = trio.current_time()
            monitor = await runtime.monitor(
                Shell("work"), owner="main", description="the work", tool_use_id="t"
            )
            await runtime.wait_idle()
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
    told = [
        (
            round(time - begun, 2),
            note.kind,
            shown(note) if note.kind == "monitor" else [],
        )
        for time, note in reader.notes
    ]
    assert told == [
        (0.2, "monitor", ["0", "1"]),
        (3.2, "monitor", ["2"]),
        # In the step of the end, so before their pause has passed.
        (4.0, "monitor", ["3", "4"]),
        (4.0, "task", []),
    ]
    assert reader.notes[0][1].display == 'Monitor "the work" (and 1 more): 0'
    assert {note.task_id for _, note in reader.notes} == {monitor.task_id}
    assert monitor.ended == "the command has ended"


async def test_only_the_lines_that_match_are_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lines = "ok\nERROR one\nok\n a.c\nabc\n"
    for pattern, expected in [
        ("ERROR", ["ERROR one"]),
        ("a.c", [" a.c"]),
        (re.compile("^a.c$"), ["abc"]),
        ("nothing", []),
    ]:
        async with opened(work=lines) as runtime:
            await runtime.monitor(Shell("work"), pattern, owner="main")
            await runtime.wait_idle()
            notes = runtime.notifications.drain()
        assert [it for note in notes[:-1] for it in shown(note)] == expected
        assert notes[-1].kind == "task"


async def test_of_a_command_that_runs_what_comes_from_now_on_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(work=at(0, 1, 2, 3)) as runtime:
        task = await runtime.launch(Shell("work"), owner="main")
        await trio.sleep(1.5)
        monitor = await runtime.monitor(task)
        assert monitor.owner == "main" and monitor.task_id == task.id
        assert runtime.monitors("main") == [monitor] and runtime.monitors("x") == []
        await runtime.wait_idle()
        notes = runtime.notifications.drain()
    assert [it for note in notes[:-1] for it in shown(note)] == ["2", "3"]
    assert runtime.monitors() == []


async def test_two_monitors_of_one_command_do_not_meet(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(work=at(0, 2, 4)) as runtime:
        first = await runtime.monitor(Shell("work"), "0", owner="main")
        second = await runtime.monitor(first.task_id, "2")
        await trio.sleep(1)
        # The command is the first one's: the second ends alone.
        await second.stop()
        assert second.ended == "it was stopped"
        third = await runtime.monitor(first.task_id, "1")
        await runtime.wait_idle()
        notes = runtime.notifications.drain()
    assert first.ended == third.ended == "the command has ended"
    assert [shown(note) for note in notes[:-1]] == [["0"], ["1"]]


async def test_events_tell_of_a_monitor_and_people_read_a_line(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(work="\x1b[1mred\n") as runtime:
        events = runtime.events.subscribe()
        monitor = await runtime.monitor(Shell("work"), owner="main")
        await runtime.wait_idle()
        seen = [
            it for it in events.drain() if isinstance(it, MonitorStarted | MonitorEnded)
        ]
    (note, _) = runtime.notifications.drain()
    assert note.display == 'Monitor "work": red'
    kinds = [type(event).__name__ for event in seen]
    assert kinds == ["MonitorStarted", "MonitorEnded"]
    assert all(event.monitor_id == monitor.id for event in seen)


# How much, and how fast


@pytest.mark.parametrize("seed", range(24))
async def test_whatever_a_command_prints_each_line_is_told_or_counted_once(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """P6: against what was printed, over rates, sizes and readers by chance."""
    chance = random.Random(seed)
    rate = chance.choice([0.2, 2, 20, 200])
    width = chance.choice([1, 30, 300])
    bursts = chance.choice([1, 5, 60])
    slow = chance.choice([0.0, 0.0, 0.3, 5.0])
    pattern = chance.choice([None, "7", re.compile("[0-4]$")])
    seconds = chance.choice([2, 5, 10])
    printed: list[str] = []

    async def work(program: Program) -> None:
        begun = trio.current_time()
        while trio.current_time() < begun + seconds:
            burst = ""
            for _ in range(chance.randint(1, bursts)):
                line = f"{'y' * chance.randint(0, width)}{len(printed)}"
                printed.append(line)
                burst += f"{line}\n"
            cut = chance.randint(0, len(burst))
            for part in filter(None, (burst[:cut], burst[cut:])):
                await program.print(part)
            await trio.sleep(chance.expovariate(rate))

    async with opened(work=work) as runtime:
        reader = Reader(runtime, slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.read)
            monitor = await runtime.monitor(Shell("work"), pattern, owner="main")
            await runtime.wait_idle()
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
    assert monitor.ended == "the command has ended"
    *notes, (_, end) = reader.notes
    assert end.kind == "task" and all(note.kind == "monitor" for _, note in notes)
    expected = [
        line
        for line in printed
        if pattern is None
        or (pattern in line if isinstance(pattern, str) else pattern.search(line))
    ]
    where = 0
    for _, note in notes:
        lines, more = shown(note), left_out(note)
        assert lines == expected[where : where + len(lines)]
        assert len(note.xml) <= 4000 and len(lines) <= 200
        where += len(lines) + more
    assert where == len(expected)
    # But for the last, which comes with the end.
    times = [time for time, _ in notes[:-1]]
    assert all(after >= before + 0.999 for before, after in pairwise(times))


async def test_what_was_left_out_can_be_read_where_the_note_says(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(work=at(0, lines=5000)) as runtime:
        monitor = await runtime.monitor(Shell("work"), owner="main")
        await runtime.wait_idle()
        note = runtime.notifications.drain()[0]
        offset = re.search("from byte ([0-9]+)", note.xml)
        assert offset is not None
        rest = runtime.handle(monitor.task_id).read(int(offset[1])).text
    assert rest.split()[0] == str(len(shown(note)))
    assert len(rest.split()) == left_out(note)


async def test_nobody_who_reads_slowly_makes_it_keep_more_than_a_note(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P6: all that a minute brings waits in one note."""
    async with opened() as runtime, runtime.turn("main") as turn:
        await runtime.monitor(Shell("chatty"), owner="main")
        await trio.sleep(60)
        (note,) = turn.take()
        assert 598 <= len(shown(note)) + left_out(note) <= 602
        assert len(shown(note)) == 200
        turn.progressed()


async def test_a_long_turn_may_look_again_and_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as runtime, runtime.turn("main") as turn:
        await runtime.monitor(Shell("chatty"), owner="main")
        counts: list[int] = []
        for _ in range(20):
            await trio.sleep(2)
            counts += [len(shown(note)) for note in turn.take()]
        turn.progressed()
    # One each time, and nothing waits longer than that.
    assert len(counts) == 20 and sum(counts) >= 390


# When nobody wakes


async def test_a_monitor_that_nobody_hears_stops_after_ten_notes_with_its_command(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as runtime:
        events = runtime.events.subscribe()
        begun = trio.current_time()
        monitor = await runtime.monitor(Shell("chatty"), owner="main")
        await runtime.wait_idle()
        assert 10 <= trio.current_time() - begun < 10.5
        notified = [it for it in events.drain() if getattr(it, "what", "") == "monitor"]
        # What nobody has had is told once, in the last of them.
        lines, end = runtime.notifications.drain()
        assert runtime.get(monitor.task_id).ended_by == "limit"
    assert monitor.ended == "10 notes in a row woke nobody"
    assert len(notified) == 10
    assert len(shown(lines)) > 95 and "woke nobody" in end.display


async def test_one_that_only_watches_leaves_the_command_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as runtime:
        task = await runtime.launch(Shell("chatty"), owner="main")
        monitor = await runtime.monitor(task)
        await trio.sleep(60)
        assert monitor.ended == "10 notes in a row woke nobody"
        assert not task.status.is_terminal
        (note,) = runtime.notifications.drain()
    ended = ET.fromstring(note.xml).findtext("ended")
    assert ended == "This was the last note: 10 notes in a row woke nobody"
    assert 95 < len(shown(note)) < 110


@pytest.mark.parametrize("how", ["turn", "window", "unacknowledged", "reads"])
async def test_who_is_busy_or_waits_for_it_is_not_nobody(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with opened() as runtime, trio.open_nursery() as nursery:
        wakes = runtime.wakes("main", window=1000.0 if how == "window" else 0.0)

        async def wake() -> None:
            async for it in wakes:
                async with it as turn:
                    turn.progressed()

        if how == "window":
            async with runtime.turn("main"):
                pass
            nursery.start_soon(wake)
        if how == "reads":
            nursery.start_soon(wake)
        if how == "unacknowledged":
            await runtime.launch(Shell("true"), owner="main")
            await anext(runtime.notifications_for("main"))
        monitor = await runtime.monitor(Shell("chatty"), owner="main")
        if how == "turn":
            async with runtime.turn("main"):
                await trio.sleep(100)
                assert monitor.ended is None
        else:
            await trio.sleep(100)
            assert monitor.ended is None
        nursery.cancel_scope.cancel()


async def test_turns_that_make_nothing_of_ten_notes_end_it_and_one_begins_anew(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as runtime:
        monitor = await runtime.monitor(Shell("chatty"), owner="main")
        turns = 0
        # Each is offered twice.
        async for wake in runtime.wakes("main"):
            async with wake as turn:
                turns += any(note.kind == "monitor" for note in wake.notes)
                if turns == 19:
                    # Of the tenth, at its first offer.
                    turn.progressed()
                if any(note.kind == "task" for note in wake.notes):
                    turn.progressed()
                    break
    # Whatever comes in between: 9 in vain, one that is not, and 10 in vain.
    assert monitor.ended == "10 notes in a row woke nobody"
    assert turns == 2 * 9 + 1 + 2 * 10


async def test_a_note_that_the_host_does_not_want_woke_nobody(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as runtime:
        monitor = await runtime.monitor(Shell("chatty"), owner="main")
        count = 0
        async for note in runtime.notifications_for("main"):
            if note.kind == "task":
                break
            note.ack("silent")
            count += 1
    assert count in (10, 11) and monitor.ended == "10 notes in a row woke nobody"


# Agents


async def test_an_agent_reads_in_its_rounds_and_is_never_nobody(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """However long its model takes: one note waits in its inbox, and the rest in the
    next."""
    heard: list[str] = []

    async def use(context: AgentContext, tool: str, **arguments: object) -> str:
        used = await context.use_tools([ToolUse(f"c{tool}", tool, arguments)])
        (answer,) = used.tool_answers
        assert not answer.is_error, answer.text
        return answer.text

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        said = await use(context, "Bash", command="chatty", monitor=True)
        for _ in range(4):
            yield Note("thinks")
            await trio.sleep(30)
            heard.extend(message.text for message in context.inbox.take())
            await context.inbox.wait()
            heard.extend(message.text for message in context.inbox.take())
        (monitor,) = re.findall("monitor (m[0-9a-f]+)", said)
        await use(context, "TaskStop", task_id=monitor)
        yield FinalResult("done")

    policy = AgentPolicy(permissions=Permissions(mode="bypass"))
    env = fake_env({"chatty": chatty})
    async with open_runtime("/tasks", env=env, agents=policy) as runtime:
        task = await runtime.launch(Agent(loop, "watch"), owner="main")
        done = await task.wait()
        assert (done.result, done.error) == ("done", None)
    counts = [
        int(re.findall("has printed ([0-9]+) line", text)[0])
        for text in heard
        if "<task-lines>" in text
    ]
    # One waits when it looks, and the next follows when that was taken.
    assert len(counts) == 8 and 1190 <= sum(counts) <= 1210


# Stops, and all that can come together


async def test_a_stop_ends_the_command_that_the_monitor_has_begun(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as runtime:
        monitor = await runtime.monitor(Shell("chatty"), owner="main")
        await trio.sleep(0.5)
        await monitor.stop("enough")
        await monitor.stop()
        snapshot = runtime.get(monitor.task_id)
        assert snapshot.status.value == "killed" and monitor.ended == "enough"
        lines, end = runtime.notifications.drain()
    assert len(shown(lines)) >= 4 and "enough" in end.display


async def test_a_stop_tells_what_waits_and_nothing_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as runtime:
        task = await runtime.launch(Shell("chatty"), owner="main")
        monitor = await runtime.monitor(task)
        await trio.sleep(0.55)
        await monitor.stop()
        await trio.sleep(30)
        (note,) = runtime.notifications.drain()
        assert len(shown(note)) in (5, 6)
        with pytest.raises(TypeError):
            await monitor.stop(3)  # type: ignore[arg-type]


ACTS = ("line", "stop", "end", "take", "ack", "turn")


@pytest.mark.parametrize("first", ACTS)
async def test_in_whatever_order_things_come_every_line_is_told_before_the_end(
    first: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Every order of six things, in one step or with pauses between them."""
    orders = [order for order in permutations(ACTS) if order[0] == first]
    for number, order in enumerate(orders):
        pause = (0.0, 0.5, 1.5)[number % 3]
        done = trio.Event()
        says: list[trio.Event] = [trio.Event()]

        async def work(program: Program) -> None:
            await program.print("one\n")
            with trio.move_on_after(1000):
                await says[0].wait()  # noqa: B023
                await program.print("two\n")
                await done.wait()  # noqa: B023

        async with opened(work=work) as runtime:
            monitor = await runtime.monitor(Shell("work"), owner="main")
            had: list[Notification] = []
            reader = runtime.notifications_for("main")
            async with trio.open_nursery() as nursery:
                for act in order:
                    if act == "line":
                        says[0].set()
                    elif act == "stop":
                        nursery.start_soon(monitor.stop)
                    elif act == "end":
                        done.set()
                    elif act == "take":
                        had += reader.drain()
                    elif act == "ack":
                        for note in had:
                            note.ack()
                    else:
                        async with runtime.turn("main") as turn:
                            had += turn.take()
                            turn.progressed()
                    await trio.sleep(pause)
            await runtime.wait_idle()
            had += reader.drain()
            for note in had:
                note.ack()
            printed = runtime.handle(monitor.task_id).read().text.split()
        once = list(dict.fromkeys(had))
        assert [note.kind for note in once][-1] == "task", order
        assert sum(note.kind == "task" for note in once) == 1
        lines = [it for note in once[:-1] for it in shown(note)]
        # A stop may come before anything is printed.
        assert lines == printed, order
        assert monitor.ended is not None and runtime.monitors() == []
        assert runtime.notifications.unacknowledged() == []


async def test_what_a_command_says_as_the_runtime_closes_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def work(program: Program) -> None:
        await program.print("begun\n")
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await program.print("bye\n")

    async with opened(work=work) as runtime:
        monitor = await runtime.monitor(Shell("work"), owner="main")
        await trio.sleep(0.1)
    notes = runtime.notifications.drain()
    assert monitor.ended == "the command has ended"
    assert next(it for note in notes[:-1] for it in shown(note)) == "begun"
    assert notes[-1].kind == "task"


# What cannot be


async def test_what_cannot_be_watched_is_refused_and_begins_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as runtime:
        children = [info.id for info in runtime.root.which_children()]
        for wrong in ("", "a\nb"):
            with pytest.raises(ValueError, match="pattern must"):
                await runtime.monitor(Shell("chatty"), wrong)
        with pytest.raises(TypeError, match="pattern must"):
            await runtime.monitor(Shell("chatty"), re.compile(b"x"))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="lines"):
            await runtime.monitor(Job(forever))
        task = await runtime.launch(Job(forever), owner="main")
        with pytest.raises(ValueError, match="no command"):
            await runtime.monitor(task)
        with pytest.raises(ValueError, match="are for a command that is begun"):
            await runtime.monitor(task, owner="other")
        async with trio.open_nursery() as nursery:
            fore = await nursery.start(runtime.run, Shell("chatty"))
            with pytest.raises(ValueError, match="foreground"):
                await runtime.monitor(fore)
            await runtime.stop_all()
        assert [info.id for info in runtime.root.which_children()] == children
        assert len(runtime.tasks()) == 2
    with pytest.raises(RuntimeStopping):
        await runtime.monitor(Shell("chatty"))


async def test_an_owner_has_at_most_sixteen(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as runtime:
        task = await runtime.launch(Shell("chatty"), owner="main")
        made = [await runtime.monitor(task) for _ in range(16)]
        for command in (task, Shell("chatty")):
            with pytest.raises(TooManyMonitors):
                await runtime.monitor(
                    command, owner="main" if command is not task else None
                )
        other = await runtime.monitor(Shell("chatty"), owner="other")
        await made[0].stop()
        assert isinstance(await runtime.monitor(task), Monitor)
        assert other.ended is None


async def test_a_task_that_has_ended_has_no_more_lines(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(work="one\n") as runtime:
        task = await runtime.launch(Shell("work"), owner="main")
        await task.wait()
        monitor = await runtime.monitor(task)
        assert monitor.ended == "the command has ended"
        (note,) = runtime.notifications.drain()
    assert note.kind == "task"


async def test_a_monitor_that_fails_says_so_and_ends_no_task(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def fails() -> bool:
        raise ZeroDivisionError

    async with opened() as runtime:
        events = runtime.events.subscribe()
        monitor = await runtime.monitor(Shell("chatty"), owner="main")
        monitor._watch._read = fails  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]
        await trio.sleep(5)
        assert monitor.ended == "it has failed"
        assert not runtime.get(monitor.task_id).status.is_terminal
        warned = [it for it in events.drain() if type(it).__name__ == "Warned"]
    assert len(warned) == 1
