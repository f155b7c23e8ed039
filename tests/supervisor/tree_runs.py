"""A real supervisor that is told what the model of OTP is told, to compare them.

A history is compared after each operation, in everything. Two events that come
close together must settle as one order or the other: in the answers, the states,
the starts and ends of each child in order, the restarts counted, and the end of the
supervisor. They settle as neither in these cases, since operations are served while
others are under way, where OTP's supervisor would be blocked:

1. One that is ended before a restart has come to its start is not started, and so
   cannot fail to; whoever waits for a start that somebody ends is told so.
2. Whoever asks while a start or restart is under way is told what is, not what will
   be when it is over.
3. The end of the supervisor cuts off what an event before it had begun, which
   counts all the same.
4. After a failed attempt, or a soft stop in a group that starts, those after it had
   not come up and so are not stopped when another failure is served.
5. Two who end the same child at once both have ended it.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors import Context, Ignore, Stopped
from supervisor.tree import (
    Backoff,
    RestartIntensityExceeded,
    RestartScheduled,
    Supervisor,
    SupervisorError,
    child,
    open_supervisor,
)
from tests.supervisor.otp_model import Child, World, step

STRATEGIES = ("one_for_one", "one_for_all", "rest_for_one")
RESTARTS = ("permanent", "permanent", "transient", "temporary")

Operation = tuple[Any, ...]


@attrs.define(eq=False)
class _Run:
    """What one run of a child is told."""

    told: trio.Event = attrs.Factory(trio.Event)
    order: str = ""


class Real:
    """A supervisor of ours, its children and its callers."""

    def __init__(self, nursery: trio.Nursery, world: World) -> None:
        self._nursery = nursery
        self._flags = world
        self._runs: dict[str, _Run] = {}
        self._plans: dict[str, list[str]] = {}
        self._scopes: dict[int, trio.CancelScope] = {}
        self._left = trio.Event()
        self._calls = 0
        self._interrupted = False
        self._restarts = 0
        self.start_takes = 0.0
        self.stop_takes = 0.0
        self.journal: list[str] = []
        self.answers: dict[int, str] = {}
        self.supervisor: Supervisor

    async def open(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        try:
            async with open_supervisor(
                strategy=self._flags.strategy,  # type: ignore[arg-type]
                intensity=self._flags.intensity,
                period=self._flags.period,
                auto_shutdown=self._flags.auto_shutdown,  # type: ignore[arg-type]
            ) as self.supervisor:
                self._events = self.supervisor.events.subscribe()
                task_status.started()
                await self._left.wait()
        except RestartIntensityExceeded:
            pass
        except KeyboardInterrupt:
            self._interrupted = True

    def leave(self) -> None:
        self._left.set()

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
            if outcome == "hangs":
                await trio.sleep_forever()
            ctx.started()
            await run.told.wait()
            if run.order == "crash":
                raise ValueError(ctx.id)
            if run.order == "interrupt":
                raise KeyboardInterrupt
        finally:
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
        if kind not in ("crash", "finish", "interrupt", "stop"):
            return operation
        info = self._known().get(args[0])
        if info is None or info.ref.incarnation.exit is not None:
            return None
        if kind != "stop" and info.state != "running":
            return None
        return (*operation, info.ref.incarnation.number)

    def do(self, operation: str, *args: Any) -> None:
        """Begin an operation, without waiting."""
        if operation in ("crash", "finish", "interrupt"):
            info = self._known().get(args[0])
            if info is not None and info.state == "running":
                run = self._runs[args[0]]
                run.order = run.order or operation
                run.told.set()
        elif operation == "leave":
            self._left.set()
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

    async def _ask(self, operation: str, arg: Any) -> None:
        supervisor = self.supervisor
        if operation == "start":
            if arg.id not in self._known():
                self._plans[arg.id] = list(arg.plan)
            delay = Backoff(arg.delay, arg.delay) if arg.delay else None
            await supervisor.start_child(
                child(
                    arg.id,
                    self._live,
                    restart=arg.restart,
                    significant=arg.significant,
                    backoff=delay,
                    wait_started=True,
                )
            )
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
            return "interrupted" if self._interrupted else "left"
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
        "answers": dict(sorted(real.answers.items())),
        "restarts": real.restarts,
        "journal": list(real.journal),
    }


def expected(world: World) -> dict[str, Any]:
    return {
        "ended": world.ended,
        "states": world.states(),
        "answers": dict(sorted(world.answers.items())),
        "restarts": world.counted,
        "journal": list(world.journal),
    }


async def compare(world: World, operations: Sequence[Operation]) -> int:
    """Tell both the same, and compare them after each; return how many there were."""
    done = 0
    async with trio.open_nursery() as nursery:
        real = Real(nursery, world)
        await nursery.start(real.open)
        for operation in operations:
            world = step(world, *operation)
            if operation[0] == "advance":
                await trio.sleep(operation[1])
            else:
                real.do(*operation)
            await wait_all_tasks_blocked()
            done += 1
            found, wanted = seen(real), expected(world)
            if found != wanted:
                text = "\n".join(
                    f"  {key}: {found[key]}\n   not {wanted[key]}"
                    for key in found
                    if found[key] != wanted[key]
                )
                told = "\n".join(map(str, operations[:done]))
                raise AssertionError(
                    f"{world.strategy}, intensity {world.intensity}\n{told}\n{text}"
                )
            if world.ended is not None:
                break
        real.leave()
    return done


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

    operations: list[Operation] = [("start", new()) for _ in range(dice.choice((3, 5)))]
    for _ in range(30):
        id = dice.choice("abcdef")
        kind = dice.choice(
            "crash crash crash crash finish stop terminate terminate restart restart "
            "delete start start plan plan cancel advance advance advance".split()
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


# Pairs of events


def _three(**options: Any) -> list[Operation]:
    """Children of every kind: a, b and c run, d is stopped, t is temporary, and s
    ends everything when it ends."""
    return [
        ("start", Child(id="a")),
        ("start", Child(id="b", **options)),
        ("start", Child(id="d")),
        ("terminate", "d"),
        ("start", Child(id="c", restart="transient")),
        ("start", Child(id="t", restart="temporary")),
        ("start", Child(id="s", restart="transient", significant=True)),
    ]


SCENES: dict[str, list[Operation]] = {
    "all run": _three(),
    "one starts": [*_three(), ("start", Child(id="h", plan=["hangs"]))],
    "one is restarted by hand": [*_three(), ("plan", "d", ["hangs"]), ("restart", "d")],
    "b waits for its restart": [*_three(delay=4.0), ("crash", "b")],
    "b hangs in its restart": [*_three(), ("plan", "b", ["hangs"]), ("crash", "b")],
    "b fails to start again": [*_three(), ("plan", "b", ["fails"])],
    "b declines to start again": [*_three(), ("plan", "b", ["declines"])],
}
EVENTS: list[Operation] = [
    *((kind, id) for kind in ("crash", "terminate", "stop") for id in "abcs"),
    ("crash", "t"),
    ("terminate", "t"),
    ("finish", "b"),
    ("finish", "c"),
    ("finish", "s"),  # an auto-shutdown
    ("interrupt", "c"),
    ("leave",),
    ("delete", "d"),
    ("delete", "b"),
    ("restart", "d"),
    ("restart", "b"),
    ("terminate", "d"),
    ("start", Child(id="n")),
    ("start", Child(id="d")),
    ("start", Child(id="m", plan=["fails"])),
    ("cancel", 8),  # of the caller that waits, if there is one
    ("cancel", 7),
    ("terminate", "h"),
    ("stop", "h"),
    ("advance", 4.0),  # the end of the backoff
]
INSTANT_GAPS: list[float] = [-9, -6, -5, -4, -3, -2, -1, 0]  # ticks; see `run_pair`
SLOW_GAPS: list[float] = [0, 0.5, 1.5, 2.5, 4.5, 30]


async def _pair(
    strategy: str, scene: str, first: Operation, second: Operation, gap: float
) -> None:
    world = World(
        strategy=strategy, intensity=8, period=1e9, auto_shutdown="any_significant"
    )
    async with trio.open_nursery() as nursery:
        real = Real(nursery, world)
        await nursery.start(real.open)
        for operation in SCENES[scene]:
            world = step(world, *operation)
            real.do(*operation)
            await wait_all_tasks_blocked()
        assert seen(real) == expected(world)
        real.rest()
        if gap > 0:
            real.start_takes, real.stop_takes = 1.0, 0.75
        asked: list[Operation] = []
        for operation in (first, second):
            if operation[0] == "advance":
                asked.append(operation)
                await trio.sleep(operation[1])
            else:
                bound = real.bind((*operation,))
                if bound is not None:
                    asked.append(bound)
                    real.do(*operation)
            if operation is first:
                if gap >= 0.5:
                    await trio.sleep(gap)
                for _ in range(int(-gap)):
                    await trio.lowlevel.checkpoint()
        await trio.sleep(60)
        found = seen(real)
        ended_at = real.ended
        if ended_at is None:
            real.leave()
    wait: Operation = ("advance", max(gap, 0.0))
    if len(asked) == 2:
        one, two = asked
        orders = [[one, wait, two], [wait, two, one], [two, one]]
    else:  # one belongs to no run
        orders = [[*asked, wait], [wait, *asked]]
    wanted = [_after(world, order, asked) for order in orders]
    # Exception 1: one that is ended before a restart has come to its start is not
    # started, and so cannot fail to; whoever waited for that start is told so.
    if any(kind in ("terminate", "stop", "cancel", "start") for kind, *_ in asked):
        for case in ("none fails", "who waits goes on to", "the next has no step"):
            other = copy.deepcopy(world)
            for child in other.children.values():
                if case == "none fails":
                    child.plan = []
                elif case == "the next has no step":
                    child.plan = ["ok", *child.plan]
                elif child.caller is not None:
                    child.plan = ["hangs"]
            for order in orders:
                wanted.append(_after(other, order, asked))
                wanted.append(_after(other, order, asked, plans=False))
    if [kind for kind, *_ in asked] == ["start", "start"] and (
        asked[0][1].id == asked[1][1].id
    ):
        # Exception 2, too: one of them is still on its way.
        for refused in (1, 2):
            only = _after(world, asked[:1], asked)
            said = only["answers"]
            answer = said.pop(world.calls + 1, None)
            said[world.calls + refused] = "AlreadyStarted"
            if answer is not None:
                said[world.calls + 3 - refused] = answer
            wanted.append(only)
    ended = {
        one.id
        for kind, what, *_ in ((*operation, None) for operation in asked)
        for one in world.children.values()
        if (kind in ("terminate", "stop") and what == one.id)
        or (kind == "cancel" and what == one.caller)
    }
    retried = any("fails" in one.plan for one in world.children.values()) or any(
        kind == "stop" for kind, *_ in asked
    )
    if not any(_agree(found, one, asked, ended, retried, wanted) for one in wanted):
        lines = [f"{strategy}, {scene}: {first}, {second}, {gap}"]
        for key in found:
            lines.append(f"  {key}: {found[key]}")
            lines += [f"     order {n}: {one[key]}" for n, one in enumerate(wanted)]
        raise AssertionError("\n".join(lines))


def _after(
    world: World,
    operations: Sequence[Operation],
    asked: Sequence[Operation],
    *,
    plans: bool = True,
) -> dict[str, Any]:
    before = world.calls
    for kind, *args in operations:
        if kind == "start" and not plans:
            args = [attrs.evolve(args[0], plan=[])]
        world = step(world, kind, *args)
    after = expected(step(world, "advance", 60.0))
    if asked and operations[-1] is asked[0] and world.calls == before + 2:
        # In the other order they have each other's number.
        said = after["answers"]
        one, two = said.pop(before + 1, None), said.pop(before + 2, None)
        said |= {n: a for n, a in ((before + 1, two), (before + 2, one)) if a}
        after["answers"] = dict(sorted(said.items()))
    return after


# Exception 2: whoever asks while a restart is under way is not kept waiting, as
# in OTP, and told what would be when it is over, but is told what is.
_ALIKE = {
    "ChildRestarting": "ChildRunning",
    "AlreadyPresent": "AlreadyStarted",
}


def _agree(
    found: dict[str, Any],
    wanted: dict[str, Any],
    asked: Sequence[Operation],
    ended: set[str],
    retried: bool,
    others: Sequence[dict[str, Any]],
) -> bool:
    if found["ended"] != wanted["ended"] or found["states"] != wanted["states"]:
        return False
    said, theirs_said = (
        {n: _ALIKE.get(a, a) for n, a in one["answers"].items()}
        for one in (found, wanted)
    )
    ids = [getattr(arg, "id", arg) for _, arg, *_ in (one for one in asked if one[1:])]
    if len(ids) == 2 and ids[0] == ids[1]:
        # Exception 1: who waits for a start that somebody ends is told so (B72).
        theirs_said |= {n: a for n, a in said.items() if a == "StartFailed"}
    if len(ended) == 1 and {kind for kind, *_ in asked} <= {"terminate", "cancel"}:
        # Exception 5: two who end the same child at once both have ended it.
        theirs_said |= {n: a for n, a in said.items() if a in ("ok", "Cancelled")}
    if theirs_said != said:
        return False
    ours, theirs = _lives(found["journal"]), _lives(wanted["journal"])
    if found["ended"] is not None:
        # Exception 3: the end cuts off what the event before it had begun, which
        # counts all the same.
        return found["restarts"] <= max(one["restarts"] for one in others) and all(
            any(_lives(one["journal"]).get(id, "").startswith(life) for one in others)
            for id, life in ours.items()
        )
    # As exception 1: perhaps before the first step of its function.
    # Exception 4. After a failed attempt, and of one that is stopped softly as it starts, those
    # after it had not come up, and so are not stopped: also if another failure is
    # served between two attempts (B28).
    any_of_them = ours.keys() if retried else ended
    for id in any_of_them & theirs.keys():
        if len(ours[id]) % 2 == len(theirs[id]) % 2 and len(ours[id]) < len(theirs[id]):
            theirs[id] = ours[id]
    return ours == theirs and found["restarts"] == wanted["restarts"]


def _lives(journal: Sequence[str]) -> dict[str, str]:
    """Return the starts and ends of each child, in order."""
    lives: dict[str, str] = {}
    for entry in journal:
        lives[entry[1:]] = lives.get(entry[1:], "") + entry[0]
    return lives


def run_pair(
    strategy: str,
    scene: str,
    first: Operation,
    second: Operation,
    gap: float,
    seed: int = 0,
) -> None:
    """Let two events come, ``gap`` seconds apart if that is above 0 (starting takes
    1 second then, and stopping 0.75), else so many ticks; then hold what came of
    it against both orders."""
    random.seed(seed)
    trio.run(
        partial(_pair, strategy, scene, first, second, gap),
        clock=MockClock(autojump_threshold=0),
    )


def run_history(seed: int) -> int:
    """Run the history of a seed in virtual time; return its length."""
    world, operations = history(seed)
    random.seed(seed)
    return trio.run(
        partial(compare, world, operations), clock=MockClock(autojump_threshold=0)
    )


def random_pair(
    dice: random.Random,
) -> tuple[str, str, Operation, Operation, float, int]:
    """Return the arguments of `run_pair` for a pair by chance."""
    return (
        dice.choice(STRATEGIES),
        dice.choice(list(SCENES)),
        dice.choice(EVENTS),
        dice.choice(EVENTS),
        dice.choice((*INSTANT_GAPS, *SLOW_GAPS)),
        dice.randrange(2**30),
    )
