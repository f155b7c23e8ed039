"""The checkers: no clean log is refused, and a log that is not clean is."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from actors import Context
from actors.agent import Agent, AgentContext, AgentEvent, FinalResult
from actors.shell import Shell
from actors.testing import Program
from bench.mutants import programs
from supervisor.runtime import (
    Limits,
    Runtime,
    TaskContinued,
    TaskEnded,
    TaskPaused,
    TaskRestarted,
    TaskStopRequested,
    open_runtime,
)
from supervisor.simulation import Sim, simulate
from supervisor.simulation.log import KINDS, Kept, LogError, read, record, to_line
from supervisor.simulation.promises import Checkers, Violation, check, watched
from supervisor.tree import (
    Backoff,
    RestartIntensityExceeded,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)

Line = dict[str, Any]
Lines = list[Line]

PROGRAMS = (
    programs.ends,
    programs.stops,
    programs.turns,
    programs.backlog,
    programs.again,
    programs.notifier_restarts,
    programs.agents,
    programs.one_for_one,
    programs.group("one_for_all"),
    programs.gives_up,
    programs.closes,
)


def simulated(program: Any, seed: int = 0) -> Lines:
    """Return the log of one run of a program."""
    logs: list[Kept] = []

    def keep(sim: Sim) -> Kept:
        logs.append(Kept(sim))
        return logs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "watched", keep)
        run = simulate(program, seed=seed)
    assert run.error is None, run.error
    assert logs[0].failure is None
    return [json.loads(to_line(it)) for it in logs[0].entries]


def wrong(lines: Lines) -> Sequence[Violation]:
    found, _ = check(read(json.dumps(it) for it in lines))
    return found


def numbered(lines: Lines) -> Lines:
    """Return the lines with new numbers, as a log that hides what was done to it."""
    seq = 0
    found: Lines = []
    for number, line in enumerate(lines, 1):
        if line["kind"] in ("RuntimeOpened", "Supervised"):
            seq = line["seq"]
        elif not KINDS[line["kind"]].__module__.startswith("supervisor.simulation"):
            seq += 1
        found.append(line | {"n": number, "seq": seq})
    return found


@pytest.fixture(scope="module")
def clean() -> dict[str, Lines]:
    return {program.__name__: simulated(program) for program in PROGRAMS}


# ---- What is right is not refused ----


def test_no_log_of_a_simulated_run_is_refused(clean: dict[str, Lines]) -> None:
    for name, lines in clean.items():
        assert not wrong(lines), name
    for program in PROGRAMS:
        assert not wrong(simulated(program, seed=5)), program


async def busy(program: Program) -> None:
    await trio.sleep(1)


async def works(context: AgentContext) -> AsyncIterator[AgentEvent]:
    await trio.sleep(1)
    yield FinalResult("done")


async def a_schedule_is_stopped(runtime: Runtime) -> None:
    """It is a child of the root, and no task."""
    schedule = await runtime.schedule("* * * * *", "look")
    await schedule.stop()


async def a_schedule_is_cancelled(runtime: Runtime) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await runtime.schedule("* * * * *", "look")


async def an_agent_that_goes_on_waits_for_its_place(runtime: Runtime) -> None:
    agent = await runtime.launch(Agent(works, "go"))
    await agent.wait()
    await runtime.launch(Agent(works, "another"))
    await runtime.resume(agent)
    await runtime.wait_idle()


async def an_agent_goes_on_before_a_stop_returns(runtime: Runtime) -> None:
    """What the stop says is of the run before."""
    agent = await runtime.launch(Agent(works, "go"))
    await agent.wait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.resume, agent)
        for _ in range(9):
            nursery.start_soon(runtime.stop, agent)


async def an_agent_waits_for_its_place_again(runtime: Runtime) -> None:
    """One of two that it ran was moved to the background, and the other one runs."""

    async def runs(context: AgentContext) -> AsyncIterator[AgentEvent]:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(runtime.run, Shell("busy"))
        yield FinalResult("done")

    agent = await runtime.launch(Agent(runs, "go"))
    await trio.sleep(0.3)
    for task in runtime.tasks(agent.id):
        runtime.background(task.id)
        await trio.sleep(0.3)
    await agent.wait()


ALLOWED = {
    a_schedule_is_stopped: Limits(),
    a_schedule_is_cancelled: Limits(),
    an_agent_that_goes_on_waits_for_its_place: Limits(agents=1),
    an_agent_goes_on_before_a_stop_returns: Limits(),
    an_agent_waits_for_its_place_again: Limits(total=1),
}


@pytest.mark.parametrize("work", ALLOWED, ids=lambda it: it.__name__)
def test_what_is_allowed_is_not_refused(work: Any) -> None:
    async def program(sim: Sim) -> None:
        with watched(sim) as log:
            env = sim.env({"busy": busy})
            block = open_runtime("tasks", env=env, limits=ALLOWED[work])
            async with log.recording(block) as runtime:
                await work(runtime)

    for seed in range(10):
        run = simulate(program, seed=seed)
        assert run.error is None
        assert not run.findings


async def stays(ctx: Context[object]) -> None:
    await trio.sleep_forever()


async def fails_at_first(ctx: Context[object]) -> None:
    if ctx.ref.incarnation.number == 1:
        raise LookupError("at first")
    await trio.sleep_forever()


async def cleans_up(ctx: Context[object]) -> None:
    try:
        await trio.sleep_forever()
    finally:
        with trio.move_on_after(2, shield=True):
            await trio.sleep(1)


async def dies(ctx: Context[object]) -> None:
    async for _ in ctx.mailbox:
        raise LookupError("it is told to die")


async def starts_two_at_once(tree: Any) -> None:
    """The order is that of the calls, whoever makes its first step first."""
    async with trio.open_nursery() as nursery:
        for name in ("one", "two"):
            nursery.start_soon(tree.start_child, child(name, stays))


async def restarts_a_group_while_one_is_terminated(tree: Any) -> None:
    """Whoever is terminated is no member."""
    slow = await tree.start_child(child("slow", cleans_up))
    brittle = await tree.start_child(child("brittle", dies))
    async with trio.open_nursery() as nursery:
        slow.stop()  # so the call asks it no more
        nursery.start_soon(tree.terminate_child, "slow")
        await trio.sleep(0.1)
        brittle.tell("die")


async def fails_at_second(ctx: Context[object]) -> None:
    if ctx.ref.incarnation.number == 2:
        raise LookupError("at second")
    ctx.started()
    await dies(ctx)


async def restarts_a_group_twice(tree: Any) -> None:
    """Whoever is started meanwhile is no member."""
    backoff = Backoff(1, 1)
    spec = child("brittle", fails_at_second, backoff=backoff, wait_started=True)
    brittle = await tree.start_child(spec)
    brittle.tell("die")
    await trio.sleep(0.5)
    await tree.start_child(child("new", stays))
    await trio.sleep(5)


async def cancels_a_start_as_it_gives_up(tree: Any) -> None:
    """Whoever is started does not wait until it is its turn to stop."""
    async with trio.open_nursery() as nursery:
        for name in ("one", "two"):
            spec = child(name, stays, wait_started=True)
            nursery.start_soon(tree.start_child, spec)
            await trio.sleep(0.1)
        brittle = await tree.start_child(child("brittle", dies))
        await tree.start_child(child("last", cleans_up))
        for _ in range(2):
            brittle.tell("die")
            await trio.sleep(0.1)


async def terminates_one_below(tree: Any) -> None:
    """The calls of those below are not recorded."""
    (below, *_) = [it.ref for it in tree.which_children()]
    await below.started_value.terminate_child("one")


async def gives_up_soon(tree: Any) -> None:
    """It had restarted before the log began."""
    brittle = await tree.start_child(child("brittle", dies, restart="transient"))
    for _ in range(3):
        brittle.tell("die")
        await trio.sleep(0.1)


async def has_two_of_one_name(tree: Any) -> None:
    nested = child("twin", open_supervisor, [child("one", stays)], kind="supervisor")
    await tree.start_child(child("twin", stays, restart="temporary"))
    twin = await tree.start_child(nested)
    first = tree.which_children()[0].ref
    await tree.terminate_child(first)
    await tree.terminate_child(twin)


TREES: dict[Any, Callable[[], Any]] = {
    starts_two_at_once: open_supervisor,
    restarts_a_group_while_one_is_terminated: partial(
        open_supervisor, strategy="one_for_all"
    ),
    restarts_a_group_twice: partial(
        open_supervisor, strategy="one_for_all", intensity=9
    ),
    cancels_a_start_as_it_gives_up: open_supervisor,
    terminates_one_below: partial(
        open_supervisor,
        [child("a", open_supervisor, [child("one", stays)], kind="supervisor")],
    ),
    gives_up_soon: partial(
        open_supervisor, [child("first", fails_at_first)], intensity=2
    ),
    has_two_of_one_name: open_dynamic_supervisor,
}


@pytest.mark.parametrize("work", TREES, ids=lambda it: it.__name__)
def test_what_a_tree_may_do_is_not_refused(work: Any) -> None:
    async def program(sim: Sim) -> None:
        with watched(sim) as log:
            with suppress(RestartIntensityExceeded):
                async with log.recording(TREES[work]()) as tree:
                    await trio.sleep(1)
                    await work(tree)
                    await trio.sleep(1)

    for seed in range(10):
        run = simulate(program, seed=seed)
        assert run.error is None
        assert not run.findings


async def real(path: Path) -> None:
    """Do a little of all, with real processes."""
    with record(path) as log:
        block = open_runtime(path.parent / "tasks", limits=Limits(total=3))
        async with log.recording(block) as runtime, trio.open_nursery() as nursery:

            async def read_all() -> None:
                async for note in runtime.notifications:
                    note.ack()

            nursery.start_soon(read_all)
            tasks = [
                await runtime.launch(Shell("echo one; sleep 0.1; exit 3")),
                await runtime.launch(Shell("yes", quota=10_000)),
                await runtime.launch(Shell("sleep 0.1 & echo two", linger=0.5)),
                await runtime.launch(Shell("trap '' TERM; sleep 60", grace=0.2)),
                await runtime.launch(Shell("exit 1"), restart="transient", intensity=1),
            ]
            with trio.move_on_after(0.2):
                await runtime.run(Shell("sleep 60"))
            await tasks[3].stop("enough")
            for task in tasks:
                await task.wait()
            await runtime.launch(Shell("sleep 60"))
            nursery.cancel_scope.cancel()
        for note in runtime.notifications.drain():
            note.ack()


def test_the_log_of_a_real_run_is_not_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    trio.run(real, path)
    with path.open("rb") as lines:
        found, judged = check(read(lines))
    assert not found
    vacuous = {it.title for it in judged if not it.judged}
    assert vacuous == {"waiting is event-driven"}  # Nobody can tell, in a real run.


def test_every_checker_judges_in_simulated_runs(clean: dict[str, Lines]) -> None:
    total: Counter[str] = Counter()
    for lines in clean.values():
        _, judged = check(read(json.dumps(it) for it in lines))
        total.update({f"{it.promise} {it.title}": it.judged for it in judged})
    assert len(total) == 14
    assert min(total.values()) > 5, total


# ---- What is wrong is ----


def at(lines: Lines, kind: str, **fields: Any) -> int:
    """Return where the first line of a kind is, with these fields."""
    for place, line in enumerate(lines):
        if line["kind"] == kind and all(line[key] == it for key, it in fields.items()):
            return place
    raise AssertionError(f"there is no {kind} with {fields}")


def drop(kind: str, **fields: Any) -> Callable[[Lines], None]:
    def edit(lines: Lines) -> None:
        del lines[at(lines, kind, **fields)]

    return edit


def change(kind: str, which: dict[str, Any], **to: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[at(lines, kind, **which)].update(to)


def twice(kind: str, **fields: Any) -> Callable[[Lines], None]:
    def edit(lines: Lines) -> None:
        place = at(lines, kind, **fields)
        lines.insert(place, lines[place])

    return edit


def before(
    kind: str, other: str, which: dict[str, Any], of: dict[str, Any]
) -> Callable[[Lines], None]:
    """Move a line before another one."""

    def edit(lines: Lines) -> None:
        moved = lines.pop(at(lines, kind, **which))
        place = at(lines, other, **of)
        moved["time"], moved["step"] = lines[place]["time"], lines[place]["step"]
        lines.insert(place, moved)

    return edit


FIRST = "s00000001"


def cut_in_front(lines: Lines) -> None:
    del lines[:3]


def cut_behind(lines: Lines) -> None:
    del lines[-1]


WRONG: dict[str, tuple[str, str, Callable[[Lines], object]]] = {
    "P1 a process is left": ("ends", "it was left behind", drop("ProcessGone")),
    "P1 a child is left": (
        "one_for_one",
        "its supervisor ended",
        drop("ChildExited", child="first"),
    ),
    "P2 an end before the end of its process": (
        "ends",
        "it ended while process",
        before(
            "TaskEnded",
            "ProcessGone",
            {"task_id": FIRST},
            {"run_id": FIRST + "-000001"},
        ),
    ),
    "P2 an exit code that is not that of the process": (
        "ends",
        "its exit code and signal were",
        change("TaskEnded", {"exit_code": 2}, exit_code=0),
    ),
    "P3 two ends": ("ends", "it ended twice", twice("TaskEnded")),
    "P3 progress after the end": (
        "ends",
        "TaskProgress after its end",
        before("TaskEnded", "TaskProgress", {"task_id": FIRST}, {"task_id": FIRST}),
    ),
    "P4 an end that is told twice": (
        "ends",
        "its end was told twice",
        change("Notified", {"task_id": "s00000002"}, task_id="s00000005"),
    ),
    "P4 an end that is not told": ("stops", "its end was never told", drop("Notified")),
    "P5 an envelope with one more element": (
        "ends",
        "its envelope has the elements",
        lambda lines: lines[at(lines, "Envelope")].update(
            xml=lines[at(lines, "Envelope")]["xml"].replace(
                "<status>", "<status>completed</status><status>"
            )
        ),
    ),
    "P6 a launch that is refused for no reason": (
        "backlog",
        "it was refused, with",
        change("RuntimeOpened", {}, backlog=9),
    ),
    "P7 more output than the quota": (
        "ends",
        "it kept",
        change("Began", {"quota": 1000}, quota=4),
    ),
    "P8 a stop that nobody has asked for": (
        "stops",
        "nobody has asked for its stop",
        change("Called", {"what": "stop"}, tasks=["s99"]),
    ),
    "P8 children that stop in another order": (
        "one_for_one",
        "a later one, ran",
        before("StopRequested", "StopRequested", {"child": "first"}, {"child": "last"}),
    ),
    "P8 a task of another owner": (
        "stops",
        "it was launched for",
        change("TaskStarted", {}, owner="another"),
    ),
    "P9 a wait that returns late": (
        "ends",
        "s late",
        change("TaskEnded", {"task_id": FIRST}, time=-1.0),
    ),
    "P10 a failure that is swallowed": (
        "stops",
        "its work has failed",
        change("TaskEnded", {"status": "failed"}, status="completed", error=None),
    ),
    "P5 an envelope that names another one by whom it ended": (
        "stops",
        "its envelope has another one by whom it ended",
        change("TaskEnded", {"status": "killed"}, ended_by="user"),
    ),
    "P10 an end by nobody": (
        "stops",
        "it was killed, and does not say by whom",
        change("TaskEnded", {"status": "killed"}, ended_by=None),
    ),
    "P10 a completion by somebody": (
        "ends",
        "it is completed by user",
        change("TaskEnded", {"status": "completed"}, ended_by="user"),
    ),
    "P10 a child that is not restarted": (
        "one_for_one",
        "neither restarted nor given up",
        drop("RestartScheduled", child="brittle"),
    ),
    "P10 a restart behind the request for a stop": (
        "again",
        "it is restarted, and its supervisor is to stop",
        before(
            "TaskStopRequested",
            "RestartScheduled",
            {"task_id": "s00000002"},
            {"supervisor": "runtime/shells/s00000002"},
        ),
    ),
    "log a line that is missing": ("ends", "follows line", drop("TaskProgress")),
    "log an end that is missing": ("ends", "its end is missing", cut_behind),
    "log a beginning that is missing": (
        "ends",
        "its beginning is missing",
        cut_in_front,
    ),
    "log nothing": ("ends", "it is empty", lambda it: it.clear()),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_log_that_breaks_a_promise_is_refused(
    name: str, clean: dict[str, Lines]
) -> None:
    program, text, edit = WRONG[name]
    lines = [dict(it) for it in clean[program]]
    edit(lines)
    found = wrong(lines if name.startswith("log") else numbered(lines))
    promise = name.partition(" ")[0]
    assert [it for it in found if it.promise == promise and text in it.text], found
    # What is wrong with the log itself is told without saying so twice.
    begins = "the log: " if name.startswith("log") else f"{promise}: "
    assert any(str(it).startswith(begins) and text in str(it) for it in found)


def test_every_checker_has_a_log_that_it_refuses() -> None:
    titles = {it.title for it in Checkers(print).judged()}
    assert len(titles) == 14
    assert len({name.partition(" ")[0] for name in WRONG}) == 11


def corrupted(lines: Lines, random: Random) -> tuple[str, Lines]:
    """Return the lines with one thing wrong, and what was done."""
    copy = [dict(it) for it in lines]
    place = random.randrange(1, len(copy) - 1)
    line = copy[place]
    what = random.choice(("drop", "duplicate", "swap", "re-own", "change"))
    if what == "drop":
        del copy[place]
    elif what == "duplicate":
        copy.insert(place, line)
    elif what == "swap":
        other = random.choice([it for it in range(1, len(copy) - 1) if it != place])
        copy[place], copy[other] = copy[other], copy[place]
    else:
        owners = ("task_id", "child", "supervisor", "notification_id", "call", "run_id")
        names = [key for key in line if (key in owners) == (what == "re-own")]
        names = [key for key in names if key not in ("n", "kind", "version")]
        if not names:
            return corrupted(lines, random)
        name = random.choice(names)
        others = [it[name] for it in lines if name in it and it[name] != line[name]]
        if not others:
            return corrupted(lines, random)
        line[name] = random.choice(others)
    return what, copy


def shares(clean: dict[str, Lines], hide: Callable[[Lines], Lines]) -> dict[str, float]:
    """Return the share of single corruptions that is caught."""
    random = Random("corruptions")
    tried: Counter[str] = Counter()
    caught: Counter[str] = Counter()
    for _ in range(600):
        what, lines = corrupted(clean[random.choice(list(clean))], random)
        tried[what] += 1
        try:
            caught[what] += bool(wrong(hide(lines)))
        except LogError:
            caught[what] += 1
    return {what: round(caught[what] / tried[what], 2) for what in tried}


def test_most_single_corruptions_are_caught(clean: dict[str, Lines]) -> None:
    """What is not caught is the change of words that are for people alone."""
    found = shares(clean, lambda lines: lines)
    print(found)
    assert found["drop"] == found["duplicate"] == found["swap"] == 1
    assert found["re-own"] > 0.5
    assert found["change"] > 0.7


def test_corruptions_that_hide_are_caught_by_what_the_lines_say(
    clean: dict[str, Lines],
) -> None:
    """All numbers are right again. What is not caught then are lines that nothing else
    depends on, and the order of what happens at the same time."""
    found = shares(clean, numbered)
    print(found)
    assert min(found.values()) > 0.35


# ---- In a run ----


def test_a_broken_promise_is_a_finding_of_the_run() -> None:
    async def program(sim: Sim) -> None:
        with watched(sim) as log:
            log.add(TaskEnded, "s1", "completed", None, None, None)
            log.add(TaskEnded, "s1", "completed", None, None, None)
        await trio.lowlevel.checkpoint()

    run = simulate(program)
    (found,) = [it for it in run.findings if it.kind == "P3"]
    assert "task s1: it ended twice" in found.text


PAUSED = TaskPaused, "a1", "a1-1", "a limit", None, 1
CONTINUED = TaskContinued, "a1", "a1-2", "time"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ([PAUSED, PAUSED], "it was paused while it was paused"),
        ([CONTINUED], "it goes on, and was not paused"),
        (
            [PAUSED, (TaskStopRequested, "a1", None), CONTINUED],
            "it goes on, and was to stop",
        ),
        (
            [PAUSED, (TaskRestarted, "a1", "a1-2")],
            "it was run again while it was paused",
        ),
        (
            [PAUSED, (TaskEnded, "a1", "completed", None, None, None)],
            "it has completed while it was paused",
        ),
        (
            [(TaskEnded, "a1", "killed", None, None, None), PAUSED],
            "TaskPaused after its end",
        ),
    ],
)
def test_what_a_paused_task_cannot_do_is_a_finding(said: list[Any], text: str) -> None:
    async def program(sim: Sim) -> None:
        with watched(sim) as log:
            for kind, *fields in said:
                log.add(kind, *fields)
        await trio.lowlevel.checkpoint()

    found = [it.text for it in simulate(program).findings if it.kind == "P3"]
    assert [it for it in found if text in it]


def test_a_checker_that_fails_is_no_clean_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on nothing would be looked at."""

    def fails(*_: object) -> None:
        raise KeyError("of the checker")

    async def program(sim: Sim) -> None:
        with watched(sim) as log:
            log.add(TaskEnded, "s1", "completed", None, None, None)

    monkeypatch.setattr(Checkers, "see", fails)
    error = simulate(program).error
    assert isinstance(error, KeyError)


def test_the_log_is_in_the_digest_of_the_run() -> None:
    run = simulate(programs.ends)
    assert [it for it in run.log if it[1] == "TaskEnded"]
    assert run.digest == simulate(programs.ends).digest


@pytest.mark.parametrize("copies", [40])
def test_a_long_log_is_checked_in_one_pass(
    copies: int, clean: dict[str, Lines]
) -> None:
    """Each copy is of another runtime, so what was before must be forgotten."""
    entries = list(read(json.dumps(it) for it in clean["ends"]))
    began = time.process_time()
    count = 0
    for _ in range(copies):
        found, _ = check(entries)
        assert not found
        count += len(entries)
    print(f"{count / (time.process_time() - began):,.0f} events a second")
