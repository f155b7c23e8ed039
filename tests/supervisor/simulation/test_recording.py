"""What a log hears of a runtime: each way to ask for a stop. It changes nothing of it."""

from __future__ import annotations

import ast
import gc
import re
import signal
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import supervisor
from actors import TaskStatus
from actors.shell import Shell
from actors.testing import Program
from supervisor.runtime import (
    Limits,
    Notifications,
    Runtime,
    TaskHandle,
    open_runtime,
)
from supervisor.simulation import Sim, simulate
from supervisor.simulation.log import Entry, Kept
from supervisor.simulation.promises import check, watched
from supervisor.tree import (
    DynamicSupervisor,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)

CODE = Path(supervisor.__file__).parent


async def forever(program: Program) -> None:
    await trio.sleep_forever()


async def chatty(program: Program) -> None:
    while True:
        await program.print("again\n")
        await trio.sleep(1)


COMMANDS = {"forever": forever, "chatty": chatty, "echo": "done\n", "fails": 3}


# ---- Whoever asks for a stop is heard ----


def stops_in(tree: ast.Module) -> set[str]:
    """Return the functions in which the stop of tasks is asked for."""
    found: set[str] = set()
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("stops")
        for alias in node.names
    } & {"stop", "end"}

    def look(node: ast.AST, owner: str) -> None:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            owner = f"{owner}.{node.name}".removeprefix(".")
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in names:
                found.add(owner)
            if isinstance(called, ast.Attribute) and called.attr == "mark_stopping":
                found.add(owner)
        for inner in ast.iter_child_nodes(node):
            look(inner, owner)

    look(tree, "")
    return found


def test_nobody_else_asks_for_the_stop_of_a_task() -> None:
    found: set[str] = set()
    for path in CODE.rglob("*.py"):
        found |= stops_in(ast.parse(path.read_text()))
    # Who is new here has to be heard by a log, and to be among WAYS below.
    assert found == {
        "Runtime.stop",
        "Runtime.stop_all",
        "Runtime.stop_foreground",
        "TaskHandle.stop",
        "Watch.stop",  # of a monitor
        "Watch._give_up",
        "run_in_foreground",  # by the cancellation of Runtime.run
        "end",  # by each of these
        "Life.close",
        "Life.mark_stopping",
        "Life.mark_own_stopping",  # of an agent, which need not be heard
    }


def test_each_way_to_a_handle_is_heard() -> None:
    givers = {
        name
        for name, method in vars(Runtime).items()
        if "TaskHandle" in str(getattr(method, "__annotations__", {}).get("return"))
    }
    # `run` gives one to the status of its start.
    assert givers == {"launch", "handle", "resume"}


Way = Callable[[Runtime, TaskHandle], Awaitable[object]]


async def by_tool(name: str, runtime: Runtime, task: TaskHandle) -> None:
    (tool,) = (it for it in runtime.tools_for("me") if it.name == name)
    key = "task_id" if name == "TaskStop" else "shell_id"
    result = await tool.call({key: task.id})
    assert not result.is_error


async def cancelled_run(runtime: Runtime, task: TaskHandle) -> None:
    with trio.move_on_after(1):
        await runtime.run(Shell("forever"), owner="me")


async def handle_of_a_run(runtime: Runtime, task: TaskHandle) -> None:
    async with trio.open_nursery() as nursery:
        handle: Any = await nursery.start(runtime.run, Shell("forever"))
        await handle.stop()


async def foreground(runtime: Runtime, task: TaskHandle) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(runtime.run, Shell("forever"))
        await runtime.stop_foreground(owner=None)


async def in_a_turn(runtime: Runtime, task: TaskHandle) -> None:
    with trio.move_on_after(1):
        async with runtime.turn("me"):
            await runtime.run(Shell("forever"), owner="me")


async def monitored(runtime: Runtime, task: TaskHandle) -> None:
    await (await runtime.monitor(Shell("forever"))).stop()


async def monitored_in_vain(runtime: Runtime, task: TaskHandle) -> None:
    monitor = await runtime.monitor(Shell("chatty"))
    await runtime.handle(monitor.task_id).wait()
    assert monitor.ended is not None and "woke nobody" in monitor.ended


async def nothing(runtime: Runtime, task: TaskHandle) -> None:
    """The block ends."""


WAYS: dict[str, Way] = {
    "TaskHandle.stop": lambda runtime, task: task.stop("enough", now=True),
    "handle()": lambda runtime, task: runtime.handle(task.id).stop(),
    "handle(task_id=)": lambda runtime, task: runtime.handle(task_id=task.id).stop(),
    "stop(handle)": lambda runtime, task: runtime.stop(task, "enough"),
    "stop(id)": lambda runtime, task: runtime.stop(task.id),
    "stop(task=handle)": lambda runtime, task: runtime.stop(task=task),
    "stop(task=id)": lambda runtime, task: runtime.stop(now=True, task=task.id),
    "stop_all()": lambda runtime, task: runtime.stop_all(),
    "stop_all(None, why)": lambda runtime, task: runtime.stop_all(None, "enough"),
    "stop_all(owner)": lambda runtime, task: runtime.stop_all("me"),
    "stop_all(owner=)": lambda runtime, task: runtime.stop_all(owner="me"),
    "stop_foreground": foreground,
    "a run that is cancelled": cancelled_run,
    "a run that is cancelled in a turn": in_a_turn,
    "the handle of a run": handle_of_a_run,
    "TaskStop": lambda runtime, task: by_tool("TaskStop", runtime, task),
    "KillShell": lambda runtime, task: by_tool("KillShell", runtime, task),
    "Monitor.stop": monitored,
    "a monitor that gives up": monitored_in_vain,
    "close": nothing,
}


# Who waits for its place would wait for ever.
@pytest.mark.parametrize(
    ("way", "total"),
    [
        *((way, None) for way in WAYS),
        *((way, 1) for way in WAYS if not re.search("run|fore|gives up", way)),
    ],
)
def test_a_stop_is_heard_however_it_is_asked_for(way: str, total: int | None) -> None:
    async def program(sim: Sim) -> None:
        with watched(sim) as log:
            limits = Limits(total=total)
            block = open_runtime("tasks", env=sim.env(COMMANDS), limits=limits)
            async with log.recording(block) as runtime:
                if total:
                    await runtime.launch(Shell("forever"), owner="another")
                task = await runtime.launch(work=Shell("forever"), owner="me")
                await trio.sleep(1)
                await WAYS[way](runtime, task)

    run = simulate(program)
    assert run.error is None
    assert not run.findings


# ---- It changes nothing ----


def raising(*items: object) -> Any:
    yield from items
    raise LookupError("no more of them")


class Odd:
    """Whatever is done with it fails."""

    def __getattr__(self, name: str) -> object:
        raise LookupError(name)


class OddIterable(Odd):
    def __iter__(self) -> Any:
        raise LookupError("not this one")


# Made anew for each run: some can be used once.
ODD: dict[str, Callable[[str], Any]] = {
    "an id": lambda it: it,
    "unknown": lambda it: "s99999999",
    "empty": lambda it: "",
    "None": lambda it: None,
    "5": lambda it: 5,
    "True": lambda it: True,
    "bytes": lambda it: b"s",
    "a list": lambda it: [it],
    "an empty list": lambda it: [],
    "a list with 5": lambda it: [it, 5],
    "a tuple twice": lambda it: (it, it),
    "a set": lambda it: {it},
    "a dict": lambda it: {it: 1},
    "an iterator": lambda it: iter([it]),
    "a generator": lambda it: (each for each in [it]),
    "a generator that raises": lambda it: raising(it),
    "one that raises late": lambda it: raising(it, 5),
    "a shell": lambda it: Shell("echo"),
    "a class": lambda it: Shell,
    "odd": lambda it: Odd(),
    "an odd iterable": lambda it: OddIterable(),
}

METHODS = {
    "launch": "work",
    "run": "work",
    "background": "task",
    "background_all": "owner",
    "consume": "task",
    "send": "agent",
    "resume": "task",
    "abandon_agent": "agent_id",
    "agent_meta": "agent_id",
    "get": "task",
    "handle": "task_id",
    "tasks": "owner",
    "notifications_for": "owner",
    "tools_for": "owner",
    "wait_any": "tasks",
    "wait_all": "tasks",
    "task_set": "",
    "wait_idle": "",
    "turn": "owner",
    "is_busy": "owner",
    "wakes": "owner",
    "tell_progress": "task",
    "monitor": "command",
    "monitors": "owner",
    "synced": "",
    "schedule": "expression",
    "stop": "task",
    "stop_all": "owner",
    "stop_foreground": "owner",
    "unfinished_agents": "",
}


def test_the_methods_are_all() -> None:
    public = {
        name
        for name, method in vars(Runtime).items()
        if callable(method) and not name.startswith("_")
    }
    assert public == set(METHODS)


Calls = Iterator[tuple[Callable[..., Any], tuple[object, ...], dict[str, object]]]


async def made(calls: Calls) -> list[object]:
    """Return what each call gives, in words, and when."""
    found: list[object] = []
    for method, args, options in calls:
        try:
            with trio.fail_after(20):
                result = method(*args, **options)
                if hasattr(result, "__await__"):
                    result = await result
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        else:
            text = repr(result)
        # But for where it lies, and the class of what stands for it.
        text = re.sub("0x[0-9a-f]+", "0x..", text)
        text = re.sub(r"\bReader\b", "Notifications", text)
        text = re.sub("<[a-z._]+[.]Notifications", "<Notifications", text)
        text = re.sub(r"\bHandle\b", "TaskHandle", text)
        found.append((text, trio.current_time()))
    return found


def in_both(
    block_of: Callable[[Sim], Any], body: Callable[[Any], Awaitable[list[object]]]
) -> list[list[object]]:
    """Return what is done in a block that is recorded, and in one that is not."""
    found: list[list[object]] = []
    for recorded in (True, False):

        async def program(sim: Sim, recorded: bool = recorded) -> list[object]:
            with Kept(sim) as log:
                block = block_of(sim)
                async with log.recording(block) if recorded else block as opened:
                    results = await body(opened)
            assert log.failure is None
            return results

        run = simulate(program)
        assert run.error is None, run.error
        assert run.value is not None
        found.append(run.value)
    return found


def a_runtime(sim: Sim) -> open_runtime:
    return open_runtime("tasks", env=sim.env(COMMANDS))


def calls_of(runtime: Runtime, name: str, task: TaskHandle) -> Calls:
    method, parameter = getattr(runtime, name), METHODS[name]
    yield method, (), {}
    yield method, (task, task, task, task), {}
    yield method, (), {"bogus": 1}
    yield method, (task,), {}
    for odd in ODD.values():
        yield method, (odd(task.id),), {}
        if parameter:
            yield method, (), {parameter: odd(task.id)}
        for option in ("owner", "reason", "now", "restart", "task_status"):
            yield method, (task,) if parameter else (), {option: odd(task.id)}
            if parameter == "work":
                yield method, (Shell("echo"),), {option: odd(task.id)}


@pytest.mark.parametrize("name", METHODS)
def test_a_log_changes_no_value_and_no_error(name: str) -> None:
    async def body(runtime: Runtime) -> list[object]:
        task = await runtime.launch(Shell("echo"), owner="me")
        await trio.sleep(1)
        results = await made(calls_of(runtime, name, task))
        results.append([it.id for it in runtime.tasks()])
        results.append([it.task_id for it in runtime.notifications.drain()])
        return results

    recorded, plain = in_both(a_runtime, body)
    assert len(plain) > 100
    assert recorded == plain


def calls_of_what_it_gives(runtime: Runtime, task: TaskHandle) -> Calls:
    reader = runtime.notifications_for("me")
    for handle in (task, runtime.handle(task.id)):
        yield handle.wait, (), {}
        yield handle.stop, (), {}
        for odd in ODD.values():
            yield handle.stop, (odd("x"),), {}
            yield handle.stop, ("x", odd("x")), {}
            yield handle.stop, (), {"now": odd("x")}
            yield handle.wait, (odd("x"),), {}
            yield runtime.stop, (handle, odd("x")), {}
    for odd in ODD.values():
        yield reader.receive_batch, (odd("x"),), {}
        yield reader.receive_batch, (), {"limit": odd("x")}
        yield reader.drain, (odd("x"),), {}
    yield reader.receive_batch, (1,), {}
    yield reader.drain, (), {}


def test_a_log_changes_nothing_of_a_handle_and_a_reader() -> None:
    async def body(runtime: Runtime) -> list[object]:
        task = await runtime.launch(Shell("echo"), owner="me")
        await trio.sleep(1)
        return await made(calls_of_what_it_gives(runtime, task))

    recorded, plain = in_both(a_runtime, body)
    assert len(plain) > 200
    assert recorded == plain


async def idle(ctx: Any, *args: object) -> None:
    await trio.sleep_forever()


def a_static_one(sim: Sim) -> open_supervisor:
    return open_supervisor([child("one", idle)])


def a_dynamic_one(sim: Sim) -> open_dynamic_supervisor:
    return open_dynamic_supervisor(child("one", idle))


def calls_of_a_supervisor(above: Any) -> Calls:
    for name in ("start", "terminate", "restart", "delete"):
        method = getattr(above, f"{name}_child", None)
        if method is not None:
            yield method, (), {}
            for odd in ODD.values():
                yield method, (odd("one"),), {}
                yield method, (odd("one"), 1), {}
                yield above.which_children, (), {}
    if isinstance(above, DynamicSupervisor):
        refs = [it.ref for it in above.which_children()]
        assert len(refs) > 10
        stop = above.terminate_children
        for several in (iter(refs[:1]), raising(refs[1]), refs[2:4], "one", 5, None):
            yield stop, (several,), {}
            yield stop, (), {"refs": several}
            yield above.which_children, (), {}


@pytest.mark.parametrize("block", [a_static_one, a_dynamic_one])
def test_a_log_changes_nothing_of_a_supervisor(block: Callable[[Sim], Any]) -> None:
    recorded, plain = in_both(block, lambda above: made(calls_of_a_supervisor(above)))
    assert len(plain) > 100
    assert recorded == plain


def test_what_is_left_can_be_read_when_there_is_no_trio(tmp_path: Path) -> None:
    async def main() -> Runtime:
        with Kept() as log:
            async with log.recording(open_runtime(tmp_path / "tasks")) as runtime:
                await (await runtime.launch(Shell("true"))).wait()
        return runtime

    (note,) = trio.run(main).notifications.drain()
    assert note.status is TaskStatus.COMPLETED


def test_a_runtime_that_was_recorded_has_its_own_reader_again(tmp_path: Path) -> None:
    async def main() -> None:
        with Kept() as log:
            block = log.recording(open_runtime(tmp_path / "tasks"))
            async with block as runtime:
                reader = runtime.notifications
        assert type(reader) is not type(runtime.notifications) is Notifications

    trio.run(main)


@pytest.mark.parametrize("block", [a_static_one, a_dynamic_one])
def test_a_supervisor_that_was_recorded_does_not_keep_the_log(
    block: Callable[[Sim], Any],
) -> None:
    """It has its own methods again. Else all of a run would wait for the collector."""
    made: list[weakref.ref[Any]] = []

    async def program(sim: Sim) -> None:
        with watched(sim) as log:
            async with log.recording(block(sim)) as above:
                above.which_children()
        made.extend(map(weakref.ref, (log, log._hear.__self__)))  # type: ignore[attr-defined]

    gc.disable()
    try:
        assert simulate(program).error is None
        assert [it() for it in made] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["Specified", "Called", "TaskStarted", "Returned"])
def test_an_interrupt_loses_no_line(kind: str, tmp_path: Path) -> None:
    logs: list[Kept] = []

    async def main() -> None:
        with Kept() as log:
            logs.append(log)
            keep = log._hear

            def hear(entry: Entry) -> None:
                if type(entry.event).__name__ == kind:
                    log._hear = keep
                    signal.raise_signal(signal.SIGINT)
                keep(entry)

            log._hear = hear
            async with log.recording(open_runtime(tmp_path / "tasks")) as runtime:
                await (await runtime.launch(Shell("true"))).wait()

    with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)):
        trio.run(main)
    found, _ = check(logs[0].entries)
    assert not found
