"""Every public operation, struck while it is under way: a drawn part of its points.

``python -m bench.sweeps`` strikes all of them, and makes the report.
"""

from __future__ import annotations

import ast
import inspect
import logging
import textwrap
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property, wraps
from types import CodeType, ModuleType
from typing import Any, Protocol

import pytest
import trio

from actors.shell import Shell
from actors.testing import Program
from bench.sweeps import strike, table
from supervisor.runtime import Wake, open_runtime
from supervisor.simulation import Sim, explore, fault_everywhere, simulate
from tests.supervisor.simulation.operations import (
    LEFT_OUT,
    NEVER_WAIT,
    found,
    function_of,
    is_left_out,
    operations,
)
from tests.supervisor.simulation.scenes import SCENES
from tests.supervisor.simulation.scenes_of_agents import asks_for_approval
from tests.supervisor.simulation.strikes import Reach, Scene, call, reached, sweep

PER_KIND = {"cancel": 20, "OSError": 6, "KeyboardInterrupt": 6, "fault": 10}
"""How many points of each scene are struck here."""


@pytest.fixture(autouse=True)
def _silent(caplog: pytest.LogCaptureFixture) -> None:
    """What fails on purpose is logged some hundred times."""
    caplog.set_level(logging.CRITICAL, "supervisor")


# ---- Which there are ---------------------------------------------------------------------


def of_all_scenes(seed: int = 0) -> dict[str, Reach]:
    whole: dict[str, Reach] = {}
    for scene in SCENES.values():
        for name, reach in reached(scene, seed).items():
            whole.setdefault(name, Reach()).add(reach)
    return whole


def gaps(whole: dict[str, Reach], excused: dict[str, str]) -> list[str]:
    """Return what is wrong with how far scenes come, in words."""
    told = [f"no scene strikes {name}" for name in operations() - set(whole)]
    told += [f"{name} is no operation" for name in set(whole) - operations()]
    for name, reach in whole.items():
        if not reach.points.get("cancel"):
            told.append(f"no cancel strikes {name}")
        if not reach.waits and name not in excused:
            told.append(f"no scene lets {name} wait: it only makes checkpoints")
        if reach.waits and name in excused:
            told.append(f"{name} waits, and is said never to: {excused[name]}")
        if reach.waits and not reach.points.get("raise"):
            told.append(f"no error strikes {name}")
    return sorted(told)


def test_every_public_operation_is_struck_while_it_waits() -> None:
    """One of which a scene meets nothing but checkpoints is no better struck than the
    step before it; only a cancel or a Ctrl+C can come out of it, as its name says."""
    assert gaps(of_all_scenes(), NEVER_WAIT) == []


def test_a_keyboard_interrupt_strikes_what_never_waits() -> None:
    """A checkpoint of ours that nothing protects is where a Ctrl+C may come out."""
    for name in ("AgentEvents.aclose", "Runtime.launch", "Supervisor.delete_child"):
        reports = [
            sweep(scene, "KeyboardInterrupt", name, max_points=3)
            for scene in SCENES.values()
            if name in reached(scene)
        ]
        assert any(it and it.points for it in reports), name


def test_an_operation_that_is_struck_by_cancel_alone_is_told() -> None:
    async def only_checkpoints(sim: Sim) -> None:
        class TaskSet:
            async def add(self) -> None:
                for _ in range(3):
                    await trio.lowlevel.checkpoint()

        await call(sim, TaskSet().add)

    whole = {"TaskSet.add": reached(only_checkpoints)["TaskSet.add"]}
    assert whole["TaskSet.add"].stops == 3
    assert set(whole["TaskSet.add"].points) == {"cancel", "interrupt"}
    told = [it for it in gaps(whole, {}) if "TaskSet.add" in it]
    assert told == [
        "TaskSet.add is no operation",
        "no scene lets TaskSet.add wait: it only makes checkpoints",
    ]
    assert "no scene strikes Runtime.launch" in gaps(whole, {})


def test_what_is_said_never_to_wait_and_does_is_told() -> None:
    told = gaps(of_all_scenes(), NEVER_WAIT | {"Runtime.run": "so it is said"})
    assert told == ["Runtime.run waits, and is said never to: so it is said"]


@pytest.mark.parametrize("name", NEVER_WAIT)
def test_what_never_waits_awaits_checkpoints_alone(name: str) -> None:
    """Whatever the scene: so it is written, in each function that it is in."""
    through = of_all_scenes()[name].through
    if name == "Wake":
        through = {function_of(it).__code__ for it in (Wake.__aenter__, Wake.__aexit__)}
    inside = {it.co_name for it in through}
    allowed = inside | {"checkpoint", "checkpoint_if_cancelled"}
    assert through
    assert {it for code in through for it in awaited(code)} <= allowed


def awaited(code: CodeType) -> Iterator[str]:
    """Yield the name of each function that is awaited in another one."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(code)))):
        match node:
            case ast.Await(value=ast.Call(func=ast.Attribute(attr=name))):
                yield name
            case ast.Await(value=ast.Call(func=ast.Name(id=name))):
                yield name
            case ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield ast.unparse(node)
            case _:
                pass


def test_what_is_awaited_is_read_from_the_source() -> None:
    async def several(lock: trio.Lock) -> None:
        await trio.sleep(1)
        async with lock:
            await lock.acquire()

    names = list(awaited(several.__code__))
    assert names[1:] == ["sleep", "acquire"]
    assert names[0].startswith("async with lock")


def test_the_list_has_all_that_a_caller_awaits_enters_or_goes_through() -> None:
    module = ModuleType("planted")
    made: dict[str, Any] = {it.__name__: it for it in (Public, Above, Spoken, Handed)}
    made |= {"opens": opens, "promises": promises, "plain": plain}
    for name, it in made.items():
        it.__module__ = "planted"
        setattr(module, name, it)
    vars(module)["__all__"] = ["Public", "Spoken", "opens", "promises", "plain"]
    assert found([module]) == {
        *("opens", "promises", "Public", "Public.above", "Public.bound"),
        *("Public.of_class", "Public.news", "Public.once", "Public.wrapped"),
        *("Public.__await__", "Public.__call__", "Public.__aiter__", "Public.opened"),
        *("Spoken.speak", "Handed.__anext__", "Handed.aclose"),
    }


class Above:
    async def above(self) -> None: ...


class Handed:
    """It is in no ``__all__``."""

    async def __anext__(self) -> int:
        return 1

    async def aclose(self) -> None: ...


def fair(fn: Callable[..., Awaitable[int]]) -> Callable[..., Awaitable[int]]:
    @wraps(fn)
    def wrapped(*args: Any) -> Awaitable[int]:
        return fn(*args)

    return wrapped


class Public(Above):
    async def __aenter__(self) -> None: ...
    async def __aexit__(self, *_: object) -> None: ...
    def __await__(self) -> Iterator[int]: ...
    async def __call__(self) -> None: ...
    async def __aiter__(self) -> AsyncIterator[int]:
        yield 1

    @staticmethod
    async def bound() -> None: ...
    @classmethod
    async def of_class(cls) -> None: ...
    @property
    def news(self) -> Awaitable[int]: ...
    @cached_property
    def once(self) -> Awaitable[int]: ...
    @fair
    async def wrapped(self) -> int: ...
    def opened(self) -> AbstractAsyncContextManager[int]: ...
    def hands_out(self) -> list[Handed]: ...
    def sync(self) -> int: ...
    async def _private(self) -> None: ...


class Spoken(Protocol):
    async def speak(self) -> None: ...


@asynccontextmanager
async def opens() -> AsyncGenerator[int]:
    yield 1


def promises() -> Awaitable[int]: ...
def plain() -> int: ...


def test_a_class_that_nobody_knows_cannot_hide_what_it_has() -> None:
    module = ModuleType("planted")

    def make() -> None: ...

    make.__annotations__["return"] = "Unheard | None"
    vars(module).update(make=make, __all__=["make"])
    with pytest.raises(LookupError, match="import the module of Unheard, which make"):
        found([module])


def test_what_is_left_out_of_the_list_is_there_and_has_a_reason() -> None:
    left_out = {it for it in found() if is_left_out(it)}
    assert left_out == found() - operations()
    for pattern, reason in LEFT_OUT.items():
        assert reason
        assert any(it.startswith(pattern.rstrip("*")) for it in left_out), pattern


# ---- Struck ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PER_KIND)
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_all_still_works_where_an_operation_is_struck(scene: Scene, kind: str) -> None:
    options: dict[str, Any] = {"max_points": PER_KIND[kind], "schedules": 1}
    if kind in ("cancel", "fault"):
        options["pairs"] = 3
    report = sweep(scene, kind, **options)
    if report is None:
        assert kind == "fault"  # It asks nothing of the world.
        return
    assert not report.rows, report
    assert not report.never_fired


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_all_works_under_other_schedules(scene: Scene) -> None:
    assert explore(scene, seeds=range(1, 5)).failed == 0


def test_the_report_has_the_points_of_each_kind_and_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Runtime:
        async def wait_idle(self) -> str:
            await trio.sleep(1)
            return "idle"

        async def launch(self) -> str:
            await trio.lowlevel.checkpoint()
            return "begun"

    async def cannot_be_struck(sim: Sim) -> None:
        assert await call(sim, Runtime().launch) in ("begun", None)
        assert await call(sim, Runtime().wait_idle) == "idle"

    monkeypatch.setitem(SCENES, "cannot_be_struck", cannot_be_struck)
    lines = [
        strike("cannot_be_struck", it, None, 1)
        for it in ("Runtime.launch", "Runtime.wait_idle")
    ]
    head, launch, wait = table(lines).splitlines()
    assert head.split()[2:7] == ["cancel", "error", "Ctrl+C", "again", "world"]
    assert launch.split()[2:5] == ["-", "1", "-"]
    assert lines[0].wrong == []
    assert set(+lines[1].points) == {"cancel", "error", "Ctrl+C"}
    assert int(wait.split()[8]) == len(lines[1].wrong) > 2
    assert "sim replay" in lines[1].wrong[0] or "simulate(" in lines[1].wrong[0]


# ---- What was found so -----------------------------------------------------------------


async def reads_what_is_there(sim: Sim) -> None:
    async def says(program: Program) -> None:
        await program.print("ready\n")
        await trio.sleep(100)

    async with open_runtime("tasks", env=sim.env({"says": says})) as runtime:
        task = await runtime.launch(Shell("says"))
        with sim.within(10):
            await task.wait_output("ready")
            assert await anext(aiter(task.follow())) == "ready\n"


def test_what_could_not_be_read_once_is_read_again() -> None:
    """The wait for it went on until more was printed, or the task had ended."""
    report = fault_everywhere(reads_what_is_there, seams="files.read", schedules=3)
    assert report.points >= 2


def test_two_questions_never_have_one_id() -> None:
    """The second took the place of the first, which waited for ever."""
    run = simulate(asks_for_approval, tape="fault ids.hex again 1")
    assert run.error is None
