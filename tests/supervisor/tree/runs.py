"""A real supervisor that is told what the model of OTP is told, to compare them.

A history is compared after each operation, in everything.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import trio
from trio.testing import wait_all_tasks_blocked

from actors import Context, Ignore, Stopped
from supervisor.simulation import simulate
from supervisor.tree import (
    AlreadyStarted,
    Backoff,
    ChildInfo,
    ChildSpec,
    RestartIntensityExceeded,
    RestartScheduled,
    StartFailed,
    Supervisor,
    SupervisorError,
    child,
    open_supervisor,
)
from supervisor.tree._events import EventStream
from tests.supervisor.tree.otp_model import Child, World, step

STRATEGIES = ("one_for_one", "one_for_all", "rest_for_one")
RESTARTS = ("permanent", "permanent", "transient", "temporary")

Operation = tuple[Any, ...]
T = TypeVar("T")


def in_virtual_time(seed: int, run: Callable[[], Awaitable[T]]) -> T:
    """Run it in the simulator; the seed is of the order of the tasks of one tick."""
    done = simulate(lambda _: run(), seed=seed, policy="batch", limit=1e12)
    if done.error is not None:
        raise done.error
    return cast("T", done.value)


class _Run:
    """What one run of a child is told, one after the other."""

    def __init__(self) -> None:
        self._orders: list[str] = []
        self._told = trio.Event()
        self.hangs = False

    def tell(self, order: str) -> None:
        self._orders.append(order)
        self._told.set()

    async def next(self) -> str:
        if not self._orders:
            self._told = trio.Event()
            await self._told.wait()
        return self._orders.pop(0)


class Real:
    """A supervisor of ours, its children and its callers."""

    def __init__(
        self, nursery: trio.Nursery, world: World, listed: Sequence[Child] = ()
    ) -> None:
        self._nursery = nursery
        self._runs: dict[str, _Run] = {}
        self._plans: dict[str, list[str]] = {one.id: [*one.plan] for one in listed}
        self._scopes: dict[int, trio.CancelScope] = {}
        self._left = trio.Event()
        self._opening = trio.CancelScope()
        self._is_open = False
        self._calls = 0
        self._restarts = 0
        self._why_left = "left"
        self.start_takes = 0.0
        self.stop_takes = 0.0
        self.journal: list[str] = []
        self.answers: dict[int, str] = {}
        stream = EventStream()
        self._events = stream.subscribe()
        self._block = open_supervisor(
            [self._spec(one) for one in listed],
            strategy=world.strategy,  # type: ignore[arg-type]
            intensity=world.intensity,
            period=world.period,
            auto_shutdown=world.auto_shutdown,  # type: ignore[arg-type]
            events=stream,
        )
        nursery.start_soon(self._open)

    @property
    def supervisor(self) -> Supervisor:
        """Also while it is being opened, when nobody else has it."""
        return Supervisor(self._block._children)

    async def _open(self) -> None:
        try:
            with self._opening:
                async with self._block:
                    self._is_open = True
                    await self._left.wait()
        except RestartIntensityExceeded:
            pass
        except (StartFailed, AlreadyStarted):
            self._why_left = "failed to open"
        except KeyboardInterrupt:
            self._why_left = "interrupted"

    def leave(self) -> None:
        self._left.set()
        if not self._is_open:
            self._opening.cancel()

    async def _live(self, ctx: Context[None]) -> None:
        plan = self._plans.get(ctx.id)
        outcome = plan.pop(0) if plan else "ok"
        self._runs[ctx.id] = run = _Run()
        self.journal.append(f"+{ctx.id}")
        try:
            if self.start_takes:
                await trio.sleep(self.start_takes)
            if outcome == "fails":
                raise ValueError(ctx.id)
            if outcome == "declines":
                raise Ignore
            order = ""
            if outcome == "hangs":
                run.hangs = True
                order = await run.next()
                run.hangs = False
            if order != "crash":
                ctx.started()
            while order in ("", "come_up"):
                order = await run.next()
            if order in ("crash", "flash"):
                raise ValueError(ctx.id)
            if order == "interrupt":
                raise KeyboardInterrupt
        finally:
            run.hangs = False
            if self.stop_takes:
                with trio.CancelScope(shield=True):
                    await trio.sleep(self.stop_takes)
            self.journal.append(f"-{ctx.id}")

    def _known(self) -> dict[str, Any]:
        return {info.id: info for info in self.supervisor.which_children()}

    def rest(self) -> None:
        """The scene is set: those who wait now may be cancelled."""
        self._pending = self._scopes.keys() - self.answers.keys()

    def bind(self, operation: Operation) -> Operation | None:
        """Return the event with the run to which it would come now, None if to
        none; what is asked of the supervisor belongs to no run."""
        kind, *args = operation
        if kind == "cancel" and args[0] not in self._pending:
            return None
        if kind not in ("crash", "finish", "interrupt", "stop", "come_up", "flash"):
            return operation
        info = self._known().get(args[0])
        if info is None or info.ref.incarnation.exit is not None:
            return None
        if kind != "stop" and not self._is_heard(kind, info):
            return None
        return (*operation, info.ref.incarnation.number)

    def _is_heard(self, kind: str, info: ChildInfo) -> bool:
        """Whether its function listens to such an order."""
        run = self._runs.get(info.id)
        hangs = run is not None and run.hangs and info.state != "stopping"
        if kind in ("come_up", "flash"):
            return hangs
        return info.state == "running" or (kind == "crash" and hangs)

    def do(self, operation: str, *args: Any) -> None:
        """Begin an operation, without waiting."""
        if operation in ("crash", "finish", "interrupt", "come_up", "flash"):
            info = self._known().get(args[0])
            if info is not None and self._is_heard(operation, info):
                self._runs[args[0]].tell(operation)
        elif operation == "leave":
            self.leave()
        elif operation == "stop":
            info = self._known().get(args[0])
            if info is not None:
                info.ref.stop()
        elif operation == "plan":
            id, outcomes = args
            if id in self._known():
                self._plans[id] = list(outcomes)
        elif operation == "cancel":
            if args[0] in self._scopes:
                self._scopes[args[0]].cancel()
        else:
            self._calls += 1
            self._scopes[self._calls] = trio.CancelScope()
            self._nursery.start_soon(self._call, self._calls, operation, args)

    async def _call(self, number: int, operation: str, args: tuple[Any, ...]) -> None:
        answer = "Cancelled"
        with self._scopes[number]:
            try:
                await self._ask(operation, *args)
                answer = "ok"
            except SupervisorError as error:
                answer = type(error).__name__
        self.answers[number] = answer

    def _spec(self, one: Child) -> ChildSpec[None]:
        return child(
            one.id,
            self._live,
            restart=one.restart,  # type: ignore[arg-type]
            significant=one.significant,
            backoff=Backoff(one.delay, one.delay) if one.delay else None,
            wait_started=True,
        )

    async def _ask(self, operation: str, arg: Any) -> None:
        supervisor = self.supervisor
        if operation == "start":
            if arg.id not in self._known():
                self._plans[arg.id] = list(arg.plan)
            await supervisor.start_child(self._spec(arg))
        elif operation == "restart":
            await supervisor.restart_child(arg)
        elif operation == "delete":
            await supervisor.delete_child(arg)
        else:
            await supervisor.terminate_child(arg)

    @property
    def ended(self) -> str | None:
        exit = self.supervisor.exit
        if exit is None:
            return None
        if exit == Stopped("owner"):
            return self._why_left
        if isinstance(exit, Stopped):
            return f"auto_shutdown {exit.reason}"
        return "gave up"

    @property
    def restarts(self) -> int:
        self._restarts += sum(
            isinstance(event, RestartScheduled) for event in self._events.drain()
        )
        return self._restarts

    def states(self) -> dict[str, str]:
        return {id: info.state for id, info in self._known().items()}


def seen(real: Real) -> dict[str, Any]:
    """What the two are compared by."""
    return {
        "ended": real.ended,
        "states": real.states(),
        "active": real.supervisor.count_children().active,
        "answers": dict(sorted(real.answers.items())),
        "restarts": real.restarts,
        "journal": list(real.journal),
    }


def expected(world: World) -> dict[str, Any]:
    return {
        "ended": world.ended,
        "states": world.states(),
        "active": world.active(),
        "answers": dict(sorted(world.answers.items())),
        "restarts": world.counted,
        "journal": list(world.journal),
    }


async def compare(world: World, operations: Sequence[Operation]) -> int:
    """Tell both the same, and compare them after each; return how many there were."""
    done = 0
    kind, *args = operations[0]
    async with trio.open_nursery() as nursery:
        real = Real(nursery, world, args[0] if kind == "open" else ())
        await wait_all_tasks_blocked()
        for operation in operations:
            world = step(world, *operation)
            if operation[0] == "advance":
                await trio.sleep(operation[1])
            elif operation[0] != "open":
                real.do(*operation)
            await wait_all_tasks_blocked()
            done += 1
            found, wanted = seen(real), expected(world)
            if found != wanted:
                told = "\n".join(map(str, operations[:done]))
                raise AssertionError(
                    f"{world.strategy}, intensity {world.intensity}\n{told}\n"
                    + difference(found, [wanted])
                )
            if world.ended is not None:
                break
        real.leave()
    return done


def difference(found: dict[str, Any], wanted: Sequence[dict[str, Any]]) -> str:
    """Say in what what was found is not what was wanted."""
    lines: list[str] = []
    for key in found:
        if not all(one[key] == found[key] for one in wanted):
            lines.append(f"  {key}: {found[key]}")
            lines += [f"     not {one[key]}" for one in wanted]
    return "\n".join(lines)


def history(seed: int) -> tuple[World, list[Operation]]:
    """Return a supervisor, and what it will be told, from a seed."""
    dice = random.Random(seed)
    auto = dice.choice(("never", "never", "any_significant", "all_significant"))
    world = World(
        strategy=dice.choice(STRATEGIES),
        intensity=dice.choice((1, 2, 3, 8)),
        period=dice.choice((2.5, 20.5, 100.5)),
        auto_shutdown=auto,
    )
    number = 0

    def new() -> Child:
        nonlocal number
        number += 1
        restart = dice.choice(RESTARTS)
        return Child(
            id=dice.choice("abcdef"),
            restart=restart,
            significant=auto != "never"
            and restart != "permanent"
            and dice.random() < 0.5,
            # No two ends of a wait are at the same time, nor is anything else.
            delay=dice.choice((0, 0, 0, 2, 7, 30)) + math.sqrt(number) / 1000
            if dice.random() < 0.4
            else 0.0,
            plan=plan(0.15),
        )

    def plan(chance: float) -> list[Any]:
        return [
            dice.choice(("fails", "fails", "declines", "hangs", "ok"))
            for _ in range(dice.choice((1, 1, 2, 3)))
            if dice.random() < chance
        ]

    first = [new() for _ in range(dice.choice((3, 5)))]
    operations: list[Operation] = [("start", one) for one in first]
    # The list of another strategy goes on beside a group: see `pairs`.
    if world.strategy == "one_for_one" and dice.random() < 0.5:
        operations = [("open", list({one.id: one for one in first}.values()))]
    for _ in range(30):
        id = dice.choice("abcdef")
        kind = dice.choice(
            "crash crash crash crash crash finish stop come_up come_up flash "
            "terminate terminate restart restart delete start start plan plan cancel "
            "advance advance advance".split()
        )
        if kind == "start":
            operations.append((kind, new()))
        elif kind == "plan":
            operations.append((kind, id, plan(1.0)))
        elif kind == "cancel":
            operations.append((kind, dice.randrange(1, 30)))
        elif kind == "advance":
            operations.append((kind, dice.choice((1, 3, 10, 40))))
        else:
            operations.append((kind, id))
    return world, operations


def run_history(seed: int) -> int:
    """Run the history of a seed in virtual time; return its length."""
    world, operations = history(seed)
    return in_virtual_time(seed, partial(compare, world, operations))
