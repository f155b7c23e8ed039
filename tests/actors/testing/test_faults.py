"""Faults that a test sets by hand, and the table of what can go wrong."""

from __future__ import annotations

import inspect
import re
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors import TaskStatus, env
from actors.shell import Shell
from actors.testing import FakeEnv, FaultPlan, Program, fake_env
from supervisor.runtime import open_runtime

PROTOCOLS = {
    "clock": env.Clock,
    "ids": env.Ids,
    "processes": env.Processes,
    "process": env.Process,
    "files": env.Files,
    "output": env.OutputFile,
    "log": env.LogFile,
    "share": env.Share,
}
"""The protocol of each operation, by the first half of its name."""


CALLED = {
    "files.make": "files.make_directory files.reserve",
    "files.open": "files.create_output files.open_output files.open_log",
    "files.read": ("files.read_tail files.read_at files.size files.names output.size"),
    "files.append_lines": "files.append_lines log.append",
    "files.append": "output.append",
    "files.rotate": "output.rotate",
    "files.close": "output.aclose log.close",
    "files.claim": "share.claim",
    "files.sync": "files.append_lines files.replace log.append",
    "process.kill": "process.kill process.aclose processes.aclose",
    "process.receive": "process.receive process.receive_or_exit",
    "process.wait_exit": "process.wait_exit process.receive_or_exit",
}
"""What asks for an operation that is called otherwise."""


def promised(operation: str) -> str:
    """Return what the docstring of an operation says that it raises."""
    part, _, name = operation.partition(".")
    text = getattr(PROTOCOLS[part], name).__doc__
    raises = text.partition("Raises:")[2]
    for other in re.findall(r"as (?:for )?`(\w+)`", raises):
        raises += promised(f"{part}.{other}")
    return raises


def operations() -> Iterator[str]:
    for part, protocol in PROTOCOLS.items():
        for name, value in vars(protocol).items():
            if not name.startswith("_") and callable(value):
                yield f"{part}.{name}"


@pytest.mark.parametrize("operation", sorted(FakeEnv.seams))
def test_no_call_raises_what_its_protocol_does_not_say(operation: str) -> None:
    ways = FakeEnv.seams[operation]
    for called in CALLED.get(operation, operation).split():
        if any(map(str.isupper, ways)):
            assert "OSError" in promised(called)
        if "broken" in ways:
            assert "BrokenResourceError" in promised(called)


def test_every_call_that_may_raise_an_error_of_the_system_does() -> None:
    may = {it for it in operations() if "OSError" in promised(it)}
    does = {it for it, ways in FakeEnv.seams.items() if any(map(str.isupper, ways))}
    called = {one for it in does for one in CALLED.get(it, it).split()}
    assert may == called


class Asked(FaultPlan):
    """It lets nothing go wrong, and knows which operations were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def next(self, operation: str, what: str = "") -> str:
        self.names.add(operation)
        return super().next(operation, what)


WHERE = Path("/d/file")
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "files.make_directory": (Path("/d/e"),),
    "files.create_output": (Path("/d/new"),),
    "files.reserve": (Path("/d/new"),),
    "files.open_output": (WHERE,),
    "files.read_tail": (WHERE, 9),
    "files.read_at": (WHERE, 0, 9),
    "files.size": (WHERE,),
    "files.remove": (WHERE,),
    "files.names": (Path("/d"),),
    "files.entries": (Path("/d"),),
    "files.append_lines": (WHERE, b"one\n"),
    "files.open_log": (WHERE,),
    "files.replace": (WHERE, b"one"),
    "files.link": (Path("/d/new"), "file"),
    "files.is_within": ("/d", None),
    "files.follow": ("/d",),
    "files.share": (Path("/d"),),
    "files.in_thread": (len, b""),
    "output.append": (b"one",),
    "log.append": (b"one\n",),
    "processes.end_orphans": ("", ()),
    "output.rotate": (Path("/d/older"),),
    "share.claim": ("x",),
    "share.holder": ("x",),
    "share.release": ("x",),
    "ids.hex": (4,),
    "process.receive_or_exit": (9,),
    "process.send": (b"x",),
}


@pytest.mark.parametrize("called", sorted(operations()))
async def test_a_call_asks_only_for_what_it_may_do(
    called: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Most of all one of which its protocol says that it never raises."""
    part, _, name = called.partition(".")
    asked = Asked()
    async with fake_env({"x": says}, faults=asked) as world:
        tree = await world.processes.spawn(
            ["x"], cwd=None, env={}, marker="M", stdin="pipe", stderr="pipe"
        )
        world.files.make_directory(Path("/d"))
        output, share = world.files.create_output(WHERE), world.files.share(Path("/d"))
        world.ids.hex(4)
        log = world.files.open_log(WHERE)
        parts = {"process": tree, "output": output, "share": share, "log": log}
        method = getattr(parts.get(part) or getattr(world, part), name)
        if called == "processes.spawn":
            method = partial(method, ["x"], cwd=None, env={}, marker="M")
        asked.names.clear()
        came = method(*ARGUMENTS.get(called, ()))
        if inspect.isawaitable(came):
            await came
        names = {*asked.names}
    meant = {it for it, calls in CALLED.items() if called in calls.split()}
    assert names <= meant | {called, "clock.suspend" if part == "clock" else called}
    assert bool(names) == (called in FakeEnv.seams or bool(meant))


# ---- A plan ------------------------------------------------------------------------


async def says(program: Program) -> None:
    await program.print("one\n")
    await trio.sleep(1)
    await program.print("two\n")


async def test_the_call_that_was_named_goes_wrong_and_no_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    plan = FaultPlan()
    plan.set("processes.spawn", "EMFILE", call=2)
    plan.set("processes.spawn", "ENOMEM", call=9)
    async with open_runtime("/tasks", env=fake_env({"x": says}, faults=plan)) as it:
        done = [await (await it.launch(Shell("x"))).wait() for _ in range(3)]
    ends = [TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.COMPLETED]
    assert [it.status for it in done] == ends
    assert done[1].error is not None
    assert "Too many open files" in done[1].error.message
    assert plan.fired == ["processes.spawn EMFILE 2"]
    assert plan.waiting == ["processes.spawn ENOMEM 9"]


@pytest.mark.parametrize(("call", "left"), [(1, b"old\n"), (2, b"new\n")])
async def test_a_durable_replacement_tells_of_each_sync_that_fails(
    call: int, left: bytes
) -> None:
    """Of what is new before it is in its place, and of its name when it is."""
    plan = FaultPlan()
    plan.set("files.sync", "EIO", call=call)
    async with fake_env({}, faults=plan) as world:
        world.files.make_directory(WHERE.parent)
        world.files.append_lines(WHERE, b"old\n")
        with pytest.raises(OSError, match="Input/output error"):
            world.files.replace(WHERE, b"new\n", durable=True)
        assert world.files.contents(WHERE) == left
    assert plan.fired == [f"files.sync EIO {call}"]


@pytest.mark.parametrize(
    ("operation", "way", "call", "told"),
    [
        ("processes.fork", "ENOENT", 1, "'processes.fork'.*processes.spawn"),
        ("processes.spawn", "EIO", 1, "'EIO'.*EMFILE"),
        ("processes.spawn", "EMFILE", 0, "above 0.*not 0"),
        ("processes.spawn", "EMFILE", 1, "above 1.*not 1"),
    ],
)
async def test_what_can_never_happen_is_refused(
    operation: str, way: str, call: int, told: str
) -> None:
    plan = FaultPlan()
    if "above 1" in told:
        world = fake_env({"x": 0}, faults=plan)
        await world.processes.spawn(["x"], cwd=None, env={}, marker="M")
    with pytest.raises(ValueError, match=told):
        plan.set(operation, way, call=call)


async def play(faults: FaultPlan) -> tuple[FakeEnv, list[object]]:
    """Use each operation of a process, and return what came of it."""
    world = fake_env({"x": says, "y": says}, faults=faults)
    seen: list[object] = []
    async with world:
        for name in "xy":
            began = trio.current_time()
            tree = await world.processes.spawn(
                [name], cwd=None, env={}, marker=name, stdin="pipe"
            )
            seen += [trio.current_time() - began, tree.pid, tree.usage()]
            seen.append(await tree.receive())
            tree.terminate()
            seen.append(await tree.receive())
            await trio.sleep(2)
            tree.kill()
            await tree.wait_gone()
            seen += [trio.current_time() - began, (await tree.wait_exit()).signal]
    return world, seen


@pytest.mark.parametrize(
    ("way", "script", "code", "number", "seconds"),
    [
        ("", 0, 0, None, 0),
        ("code", 0, 1, None, 0),
        ("code", 7, 0, None, 0),
        ("signal", 0, None, signal.SIGSEGV, 0),
        ("orphan", 7, 7, None, 10),
        ("flood", 7, 7, None, 0),
    ],
)
async def test_a_process_may_end_otherwise_than_its_script_says(
    way: str,
    script: int,
    code: int | None,
    number: int | None,
    seconds: float,
    autojump_clock: trio.testing.MockClock,
) -> None:
    plan = FaultPlan()
    if way:
        plan.set("processes.spawn", way)
    async with fake_env({"x": script}, faults=plan) as world:
        tree = await world.processes.spawn(["x"], cwd=None, env={}, marker="M")
        ended, output = trio.Event(), b""

        async def ends() -> None:
            exit = await tree.wait_exit()
            assert (exit.code, exit.signal) == (code, number)
            assert (exit.after_stop, exit.lost) == (False, None)
            assert trio.current_time() == 0
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends)
            await trio.testing.wait_all_tasks_blocked()
            assert ended.is_set() == (way != "flood")  # It waits for who reads.
            while data := await tree.receive():
                output += data
        assert trio.current_time() == seconds
        assert (len(output) > 65_536) == (way == "flood")
        await tree.wait_gone()


async def test_what_a_kill_ends_does_not_end_otherwise(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for way in ("flood", "orphan", "signal"):
        plan = FaultPlan()
        plan.set("processes.spawn", way)
        async with fake_env({"x": says}, faults=plan) as world:
            tree = await world.processes.spawn(["x"], cwd=None, env={}, marker="M")
            tree.kill()
            assert (await tree.wait_exit()).signal == signal.SIGKILL, way
            await tree.wait_gone()
    assert trio.current_time() == 0


async def test_output_may_come_late_and_a_cancel_loses_none_of_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    plan = FaultPlan()
    plan.set("process.receive", "slow")
    async with fake_env({"x": "out"}, faults=plan) as world:
        tree = await world.processes.spawn(["x"], cwd=None, env={}, marker="M")
        with trio.move_on_after(0.5) as scope:
            await tree.receive()
        assert scope.cancelled_caught
        assert await tree.receive() == b"out"
    assert trio.current_time() == 0.5


@pytest.mark.parametrize(
    ("operation", "way", "place", "value"),
    [
        ("processes.spawn", "slow", 0, 1.0),
        ("process.usage", "unknown", 2, None),
        ("process.receive", "byte", 3, b"o"),
        ("process.receive", "killed", 6, 9),
        ("process.terminate", "deaf", 4, b"two\n"),
        ("process.wait_exit", "lost", 6, None),
    ],
)
async def test_each_fault_of_a_process_changes_just_this(
    operation: str,
    way: str,
    place: int,
    value: object,
    autojump_clock: trio.testing.MockClock,
) -> None:
    plan = FaultPlan()
    _, plain = await play(plan)
    assert plain[place] != value
    plan = FaultPlan()
    plan.set(operation, way)
    _, seen = await play(plan)
    assert seen[place] == value
    assert plan.waiting == []


async def test_a_process_id_may_come_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    plan = FaultPlan()
    plan.set("processes.pid", "reused")
    _, seen = await play(plan)
    assert seen[1] == seen[8]
    assert plan.waiting == []


async def test_a_kill_may_take_its_time(autojump_clock: trio.testing.MockClock) -> None:
    async def deaf(program: Program) -> None:
        program.ignore_sigterm()
        await trio.sleep_forever()

    plan = FaultPlan()
    plan.set("process.kill", "slow")
    async with open_runtime("/tasks", env=fake_env({"x": deaf}, faults=plan)) as it:
        task = await it.launch(Shell("x", grace=0.0, linger=0.0))
        await trio.testing.wait_all_tasks_blocked()
        result = await it.stop(task.id)
        assert result.survivors
        done = await task.wait()
    assert (done.status, done.signal) == (TaskStatus.KILLED, 9)
    assert trio.current_time() >= 10


async def test_what_prints_for_nobody_is_ended_by_sigpipe(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A sweep has found it: it was told as a mistake of the script."""

    async def late(program: Program) -> None:
        await trio.sleep(7)
        await program.print("late\n")

    plan = FaultPlan()
    plan.set("process.kill", "slow")
    async with fake_env({"x": late}, faults=plan) as world:
        tree = await world.processes.spawn(["x"], cwd=None, env={}, marker="M")
        await trio.testing.wait_all_tasks_blocked()
        await tree.aclose()
        assert tree.has_living
    assert trio.current_time() == 10
    assert not tree.has_living
    assert tree.leader.signal == signal.SIGPIPE


async def test_the_wall_clock_may_jump_and_the_machine_sleep(
    autojump_clock: trio.testing.MockClock,
) -> None:
    plan = FaultPlan()
    plan.set("clock.now", "back", call=2)
    plan.set("clock.now", "ahead", call=3)
    plan.set("clock.suspend", "suspend", call=4)
    clock = fake_env(faults=plan).clock
    first = clock.now()
    since = [(clock.now() - first).total_seconds() for _ in range(3)]
    assert since == [-3600, 0, 3600]
    assert trio.current_time() == 3600


async def test_chance_may_be_extreme_and_a_name_come_again() -> None:
    plan = FaultPlan()
    plan.set("ids.hex", "again")
    plan.set("ids.uniform", "least")
    plan.set("ids.uniform", "most", call=2)
    ids = fake_env(faults=plan).ids
    assert [ids.hex(4), ids.hex(3), ids.hex(4)] == ["0001", "002", "0001"]
    least, most, middle = (ids.uniform() for _ in range(3))
    assert least == 0.0
    assert 0.999 < most < 1.0
    assert middle == 0.5


# ---- Where scripts run ----------------------------------------------------------------


async def where(program: Program) -> None:
    """Print the tasks above the script's own."""
    task = trio.lowlevel.current_task()
    while task.parent_nursery is not None:
        await program.print(f"{task.name}\n")
        task = task.parent_nursery.parent_task


async def above(world: FakeEnv) -> list[str]:
    async with open_runtime("/tasks", env=world) as runtime:
        done = await (await runtime.launch(Shell("x"))).wait()
    return (done.result or "").split("\n")


async def test_a_script_runs_in_a_nursery_and_is_no_system_task(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its tree is one only where nobody has entered the world."""
    assert await above(fake_env({"x": where})) == ["program 1000", "tree 1000", ""]
    async with fake_env({"x": where}) as world:
        found = await above(world)
    assert found[:2] == ["program 1000", "tree 1000"]
    assert trio.lowlevel.current_task().name in found


async def test_leaving_a_world_ends_its_scripts_and_keeps_the_error_of_the_block(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ended: list[float] = []

    async def stuck(program: Program) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)
        ended.append(trio.current_time())

    with pytest.raises(ZeroDivisionError):
        async with fake_env({"x": stuck}) as world:
            await world.processes.spawn(["x"], cwd=None, env={}, marker="M")
            await trio.testing.wait_all_tasks_blocked()
            raise ZeroDivisionError
    assert ended == [60]


async def test_a_world_is_entered_by_one_at_a_time() -> None:
    world = fake_env()
    for _ in range(2):
        async with world:
            with pytest.raises(RuntimeError, match="entered already"):
                await world.__aenter__()


async def test_leaving_a_world_raises_what_a_script_did_wrong(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def wrong(program: Program) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with fake_env({"x": wrong}) as world:
            tree = await world.processes.spawn(["x"], cwd=None, env={}, marker="M")
            assert (await tree.wait_exit()).signal == 2


@pytest.mark.parametrize("enters", [True, False])
def test_a_ctrl_c_while_a_script_runs_is_for_the_test(enters: bool) -> None:
    went_on: list[str] = []

    async def script(program: Program) -> None:
        await trio.testing.wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGINT)
        went_on.append(program.command)
        await trio.sleep_forever()

    async def main() -> None:
        world = fake_env({"x": script})
        async with world if enters else nullcontext():
            tree = await world.processes.spawn(["x"], cwd=None, env={}, marker="M")
            await tree.wait_exit()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert went_on == ["x"]


async def test_a_cancel_of_the_block_ends_a_script_by_a_signal_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As a cancel of the test ends no real process: who has started it does."""
    exits: list[object] = []
    with trio.move_on_after(0.5) as scope:
        async with fake_env({"x": says}) as world:
            tree = await world.processes.spawn(["x"], cwd=None, env={}, marker="M")
            with trio.CancelScope(shield=True):  # As a stop with a grace has.
                exits.append((await tree.wait_exit()).code)
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert exits == [0]


async def test_an_exit_inside_of_a_nursery_is_an_error_of_the_script(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As in a program of its own: it ends with a traceback, and not with this code."""

    async def exits(program: Program) -> None:
        async with trio.open_nursery():
            raise SystemExit(3)

    with pytest.raises(BaseExceptionGroup) as caught:
        async with fake_env({"x": exits}) as world:
            tree = await world.processes.spawn(["x"], cwd=None, env={}, marker="M")
            assert (await tree.wait_exit()).code is None
            assert b"SystemExit: 3" in await tree.receive()
    assert caught.group_contains(SystemExit)


async def test_what_is_forked_when_all_have_ended_lives(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with fake_env({"x": 0}) as world:
        tree = await world.processes.spawn(["x"], cwd=None, env={}, marker="M")
        await tree.wait_gone()
        late = tree.leader.fork(says)
        assert await tree.members() == (late.pid,)
        assert await tree.receive() == b"one\n"
        await tree.wait_gone()
