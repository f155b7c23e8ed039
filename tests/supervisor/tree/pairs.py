"""Two events that come close together, held against both of their orders.

What came of them must be what the model of OTP says of the one order or of the
other: in the answers, the states, the starts and ends in order, the restarts that
count, and the end of the supervisor. OTP's supervisor is blocked while it starts or
stops a child, and ours serves others meanwhile. So what two events bring about may
be mixed, each in its order and each child in its own; and five kinds of events,
which are `EXCEPTIONS`, are served in the middle of what the other one has begun:
then what came must be exactly what the model says of some such place.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.supervisor.tree.otp_model import Child, Operation, World, step, step_with
from tests.supervisor.tree.runs import (
    STRATEGIES,
    Real,
    difference,
    expected,
    in_virtual_time,
    seen,
)

EXCEPTIONS = {
    "ends a child": "Terminated, or given up by its caller, a child leaves the group "
    "that restarts, or is not started any more, and whoever waits for that is told.",
    "asks": "Starts, restarts and deletions are not kept waiting: they are told what "
    "is while others start or stop, and not what will be when that is over.",
    "ends the supervisor": "Its end cuts off what had begun, which counts all the "
    "same; what comes to a child before its turn to stop comes to it.",
    "ends by itself": "A child that ends, or comes up, in the middle of a restart "
    "or of the end is not stopped then; what asks for another restart waits.",
    "comes too late": "A caller that is cancelled in the tick in which its child comes "
    "up does not know that, and ends it: what the child did meanwhile has counted.",
}
"""Why a pair may settle as neither order: what the one does in the middle of the
other."""

BACKOFF = 4.0
_ELAPSE: Operation = ("elapse",)
_JUST = 1 / 1024  # seconds


@attrs.frozen
class Gap:
    """How long after the first event the second one comes: some ticks, or seconds.
    With seconds starting takes one, and stopping 0.75: what an event leads to is
    under way when the next one comes a moment later."""

    ticks: int = 0
    seconds: float | None = None

    @property
    def is_long(self) -> bool:
        """Whether what happened first is over, and only what follows from it not."""
        return self.seconds is not None and self.seconds >= 1


@attrs.frozen
class Scene:
    """What is there when the first event comes."""

    operations: list[Operation]
    auto_shutdown: str = "any_significant"
    # Whether a backoff ends 4 seconds after the scene was set.
    waits: bool = False


def _family(*more: Operation, **options: Any) -> list[Operation]:
    """Children of every kind: a, b and c run, d is stopped, q declined to start, t is
    temporary, and s ends everything when it ends."""
    return [
        ("start", Child(id="a")),
        ("start", Child(id="b", **options)),
        ("start", Child(id="d")),
        ("terminate", "d"),
        ("start", Child(id="q", plan=["declines"])),
        ("start", Child(id="c", restart="transient")),
        ("start", Child(id="t", restart="temporary")),
        ("start", Child(id="s", restart="transient", significant=True)),
        *more,
    ]


# Two callers wait: one for q, which is known, and one for h, which is new.
_CALLERS: list[Operation] = [
    ("plan", "q", ["hangs"]),
    ("restart", "q"),
    ("start", Child(id="h", plan=["hangs"])),
]
_LIST = [
    Child(id="a"),
    Child(id="s", restart="transient", significant=True),
    Child(id="b"),
    Child(id="h", plan=["hangs"]),
    Child(id="c", restart="transient", significant=True),
]
AT_WORK = "all are at work"
WAITS = "one waits"
HANGS = "a restart hangs"
OPENS = "the list is being started"
SCENES = {
    AT_WORK: Scene(_family(*_CALLERS)),
    WAITS: Scene(
        _family(("start", Child(id="u", delay=BACKOFF)), *_CALLERS, ("crash", "u")),
        waits=True,
    ),
    "one in the middle waits": Scene(
        _family(*_CALLERS, ("crash", "b"), delay=BACKOFF), waits=True
    ),
    HANGS: Scene(_family(("plan", "b", ["hangs"]), ("crash", "b"))),
    "a restart will fail": Scene(_family(("plan", "b", ["fails"]))),
    "a restart will be declined": Scene(_family(("plan", "b", ["declines"]))),
    OPENS: Scene([("open", _LIST)], auto_shutdown="all_significant"),
}

EVENTS: dict[str, Operation] = {
    "crash": ("crash", "b"),
    "crash of another": ("crash", "a"),
    "return": ("finish", "c"),
    "stop": ("stop", "b"),
    "terminate": ("terminate", "b"),
    "terminate another": ("terminate", "c"),
    "delete": ("delete", "d"),
    "restart": ("restart", "d"),
    "start": ("start", Child(id="n")),
    "cancel of who starts": ("cancel", "h"),
    "cancel of who restarts": ("cancel", "q"),
    "start succeeds": ("come_up", "h"),
    "crash at the start": ("flash", "h"),
    "interrupt": ("interrupt", "t"),
    "leave": ("leave",),
    "auto-shutdown": ("finish", "s"),
    "backoff ends": _ELAPSE,
}
"""Every kind of event, and whom it meets; a second one of a kind where it matters
whether both are about one child."""
ALL_EVENTS: list[Operation] = [
    *EVENTS.values(),
    *((kind, id) for kind in ("crash", "terminate", "stop") for id in "csthq"),
    ("stop", "a"),
    ("terminate", "a"),
    ("finish", "b"),
    ("interrupt", "c"),
    ("delete", "b"),
    ("delete", "q"),
    ("restart", "b"),
    ("terminate", "d"),
    ("terminate", "u"),
    ("come_up", "b"),
    ("come_up", "q"),
    ("flash", "q"),
    ("start", Child(id="d")),
    ("start", Child(id="m", plan=["fails"])),
]
GAPS = [
    *(Gap(ticks) for ticks in (0, 1, 2, 3, 4, 6, 9)),
    *(Gap(seconds=seconds) for seconds in (0, 0.5, 1.5, 2.5, 4.5, 30)),
]


@attrs.frozen
class Pair:
    """Two events, and when they come."""

    strategy: str
    scene: str
    first: Operation
    second: Operation
    gap: Gap
    seed: int
    """Of trio's dice, for the order of the tasks of one tick."""


@attrs.frozen
class _Meeting:
    """What came of a pair."""

    before: World
    came: list[Operation]
    """The events with the runs to which they came, without those that met nobody."""
    orders: list[list[Operation]]
    """As they came, and the other way round."""
    is_ordered: bool
    """Whether only the first order will do."""
    found: dict[str, Any]


@attrs.frozen
class _Outcome:
    """What the model says may come of a pair."""

    name: str
    wanted: dict[str, Any]
    courses: list[int]


def run_pair(pair: Pair) -> str:
    """Let the two come, and return as what they settled: ``as they came``, ``the
    other way``, or the exception.

    Raises:
        AssertionError: if as none of them.
    """
    meeting = in_virtual_time(pair.seed, partial(_meet, pair))
    found = meeting.found
    for outcome in _outcomes(meeting, pair.gap):
        if found == outcome.wanted or _is_mix_of(found, outcome):
            return outcome.name
    wanted = [one.wanted for one in _outcomes(meeting, pair.gap)]
    orders = wanted[: len(meeting.orders)]
    raise AssertionError(f"{pair}\n" + difference(found, orders))


async def _meet(pair: Pair) -> _Meeting:
    scene, gap = SCENES[pair.scene], pair.gap
    seconds = gap.seconds or 0.0
    world = World(
        strategy=pair.strategy,
        intensity=8,
        period=1e9,
        auto_shutdown=scene.auto_shutdown,
    )
    kind, *args = scene.operations[0]
    async with trio.open_nursery() as nursery:
        real = Real(nursery, world, args[0] if kind == "open" else ())
        await wait_all_tasks_blocked()
        for operation in scene.operations:
            world = step(world, *operation)
            if operation[0] != "open":
                real.do(*operation)
                await wait_all_tasks_blocked()
        if seen(real) != expected(world):
            raise AssertionError(difference(seen(real), [expected(world)]))
        real.rest()
        if gap.seconds is not None:
            real.start_takes, real.stop_takes = 1.0, 0.75
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        ends_at = trio.current_time() + BACKOFF
        if _ELAPSE in (pair.first, pair.second):
            # Where it is the second, the first comes so long before it.
            sooner = min(seconds, BACKOFF) if pair.second == _ELAPSE else 0.0
            until = ends_at - (sooner or _JUST)
            world = step(world, "advance", until - trio.current_time())
            await trio.sleep_until(until)
        came: list[Operation] = []
        for number, operation in enumerate((pair.first, pair.second)):
            if number == 1:
                if operation != _ELAPSE:
                    await trio.sleep(seconds)
                for _ in range(gap.ticks):
                    await trio.lowlevel.checkpoint()
            if operation == _ELAPSE:
                rest = ends_at - trio.current_time()
                came.append(("advance", rest))
                if rest > _JUST:
                    await trio.sleep_until(ends_at)
                else:
                    clock.jump(rest)
                continue
            if operation[0] == "cancel":
                child = world.children.get(operation[1])
                operation = ("cancel", None if child is None else child.caller)
            bound = real.bind(operation)
            if bound is not None:
                came.append(bound)
                kind, *args = operation
                real.do(kind, *args)
        await trio.sleep(60)
        found = seen(real)
        real.leave()
    is_ordered = gap.is_long and len(came) == 2
    return _Meeting(world, came, _orders(pair, came), is_ordered, found)


def _orders(pair: Pair, came: list[Operation]) -> list[list[Operation]]:
    wait: Operation = ("advance", pair.gap.seconds or 0.0)
    if len(came) < 2:
        return [[*came, wait], [wait, *came]]
    one, two = came
    if pair.second == _ELAPSE:
        return [[one, two], [two, one]]
    other = [two, one] if pair.first == _ELAPSE else [wait, two, one]
    return [[one, wait, two], other]


def _outcomes(meeting: _Meeting, gap: Gap) -> Iterator[_Outcome]:
    """Return both orders, or the one in which they came if they came far apart, and
    then what the exceptions allow."""
    before, came = meeting.before, meeting.came
    orders = zip(meeting.orders, ("as they came", "the other way"), strict=True)
    for order, name in itertools.islice(orders, 1 if meeting.is_ordered else 2):
        world = _after(before, order)
        yield _outcome(name, meeting, world, is_swapped=name == "the other way")
    if gap.seconds is not None and gap.seconds > BACKOFF and came:
        # Perhaps in the middle of what a backoff's end between the two has begun.
        wait: Operation = ("advance", gap.seconds)
        *earlier, inner = came
        for world in _places(_after(before, earlier), wait, inner):
            yield _outcome(_exception(inner, world), meeting, world)
    if len(came) < 2:
        return
    one, two = came
    for outer, inner, is_swapped in ((one, two, False), (two, one, True)):
        if inner[0] == "advance" or (is_swapped and gap.is_long):
            continue
        for world in _places(before, outer, inner):
            name = _exception(inner, world)
            yield _outcome(name, meeting, world, is_swapped=is_swapped)
        if inner[0] == "cancel" and outer[0] in ("come_up", "flash"):
            for world in _too_late(before, outer, inner[1]):
                yield _outcome("comes too late", meeting, world)


def _after(world: World, operations: list[Operation]) -> World:
    """Return what becomes of it, each operation being a course of its own."""
    for operation in operations:
        world = step(attrs.evolve(world, course=world.course + 1), *operation)
    return world


def _places(before: World, outer: Operation, inner: Operation) -> Iterator[World]:
    """Return what becomes of it if one is served at each place in the other."""
    for place in itertools.count():
        world = step_with(
            attrs.evolve(before, course=before.course + 1), outer, inner, place
        )
        if world is None:
            return
        yield world


def _exception(inner: Operation, world: World) -> str:
    match inner[0]:
        case "terminate" | "cancel":
            return "ends a child"
        case "start" | "restart" | "delete":
            return "asks"
        case "leave" | "interrupt":
            return "ends the supervisor"
        case _ if world.ended == f"auto_shutdown {inner[1]}":
            return "ends the supervisor"
        case _:
            return "ends by itself"


def _too_late(before: World, start: Operation, call: int) -> Iterator[World]:
    late: Operation = ("cancel_late", call)
    yield step(step(before, *start), *late)
    yield from _places(before, start, late)


def _outcome(
    name: str, meeting: _Meeting, world: World, *, is_swapped: bool = False
) -> _Outcome:
    world = _after(world, [("advance", 60.0)])
    wanted = expected(world)
    one, two = meeting.before.calls + 1, meeting.before.calls + 2
    if is_swapped and world.calls == two:
        # They have each other's number.
        said = wanted["answers"]
        theirs = {one: said.pop(two, None), two: said.pop(one, None)}
        said |= {number: answer for number, answer in theirs.items() if answer}
    return _Outcome(name, wanted, world.courses)


def _is_mix_of(found: dict[str, Any], outcome: _Outcome) -> bool:
    """Whether only the starts and ends are in another order, which leaves those of
    each child, and of each course of events, in theirs."""
    wanted = outcome.wanted
    if any(found[key] != wanted[key] for key in found if key != "journal"):
        return False
    if _lives(found["journal"]) != _lives(wanted["journal"]):
        return False
    entries = list(zip(wanted["journal"], outcome.courses, strict=True))
    courses = [
        [entry for entry, course in entries if course == one]
        for one in sorted(set(outcome.courses))
    ]
    # How much of each course there may have been so far.
    parts = {(0,) * len(courses)}
    for entry in found["journal"]:
        parts = {
            (*part[:n], part[n] + 1, *part[n + 1 :])
            for part in parts
            for n, course in enumerate(courses)
            if part[n] < len(course) and course[part[n]] == entry
        }
    return bool(parts)


def _lives(journal: list[str]) -> dict[str, list[str]]:
    """Return the starts and ends of each child, in order."""
    lives: dict[str, list[str]] = {}
    for entry in journal:
        lives.setdefault(entry[1:], []).append(entry[0])
    return lives


CANONICAL_GAPS = (Gap(0), Gap(1), Gap(seconds=1.5))


def canonical_pairs(strategy: str, gap: Gap) -> Iterator[Pair]:
    """Return every ordered pair of the kinds of events; the end of a backoff meets
    them where one waits, and failures also meet where a restart waits or hangs. While
    the list is being started no other strategy than the first one is tried, since a
    list goes on beside a group that restarts."""
    kinds = [event for event in EVENTS.values() if event != _ELAPSE]
    meetings = [
        *((AT_WORK, *two) for two in itertools.product(kinds, repeat=2)),
        *((WAITS, one, _ELAPSE) for one in kinds),
        *((WAITS, _ELAPSE, one) for one in kinds),
    ]
    failures = [EVENTS[kind] for kind in ("crash", "crash of another", "stop")]
    followed = [*failures, EVENTS["terminate"]]
    for scene in (WAITS, HANGS):
        meetings += [(scene, *two) for two in itertools.product(failures, followed)]
    if strategy == STRATEGIES[0]:
        opening = [EVENTS[kind] for kind in _WHILE_IT_OPENS]
        meetings += [(OPENS, *two) for two in itertools.product(opening, repeat=2)]
    seeds = itertools.count()
    for scene, first, second in meetings:
        yield Pair(strategy, scene, first, second, gap, next(seeds))


_WHILE_IT_OPENS = (
    "crash",
    "crash of another",
    "stop",
    "start succeeds",
    "leave",
    "auto-shutdown",
)


def every_pair() -> Iterator[Pair]:
    """Return each pair of the kinds of events in each scene, at each distance, with
    one order of trio's tasks and with the other."""
    for strategy, scene, first, second, gap, seed in itertools.product(
        STRATEGIES, SCENES, EVENTS.values(), EVENTS.values(), GAPS, (0, 1)
    ):
        if _can_meet(scene, first, second) and scene != OPENS:
            yield Pair(strategy, scene, first, second, gap, seed)


def random_pair(dice: random.Random) -> Pair:
    """Return a pair by chance, of more events than those that are enumerated."""
    while True:
        pair = Pair(
            dice.choice(STRATEGIES),
            dice.choice([scene for scene in SCENES if scene != OPENS]),
            dice.choice(ALL_EVENTS),
            dice.choice(ALL_EVENTS),
            dice.choice(GAPS),
            dice.randrange(2**30),
        )
        if _can_meet(pair.scene, pair.first, pair.second):
            return pair


def _can_meet(scene: str, first: Operation, second: Operation) -> bool:
    elapsing = [first, second].count(_ELAPSE)
    return elapsing == 0 or (elapsing == 1 and SCENES[scene].waits)
