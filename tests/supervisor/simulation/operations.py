"""Programs that call every public operation, so that each can be struck: `SCENARIOS`.

An operation is struck under its own name: `call` and `block` make a target of nothing
but the call, and a name of the method that is really called. So what a sweep strikes is
known, and is not said by anybody.

After each strike the runtime and the tree still work, every start has one end, every
end is told once, and no process is left.
"""

# A block may end early; here it does not.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, cast

import trio
from trio.lowlevel import Task, checkpoint

import actors
import actors.agent
import supervisor.runtime
import supervisor.tree
from actors import ActorRef, Context, Reply
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    Budget,
    FinalResult,
    TokensUsed,
    ToolUse,
)
from actors.shell import Shell
from actors.testing import FakeEnv, Program
from supervisor.agents import AgentPolicy
from supervisor.permissions import Permissions, ToolRequest
from supervisor.runtime import (
    InputClosed,
    Limits,
    OutputEnded,
    Runtime,
    RuntimeStopping,
    TaskEnded,
    TaskStarted,
    open_runtime,
)
from supervisor.simulation import (
    NothingToStrike,
    RoundRobin,
    Sim,
    SweepReport,
    cancel_everywhere,
    fault_everywhere,
    raise_everywhere,
)
from supervisor.simulation._steering.run import session
from supervisor.simulation._steering.simulate import once
from supervisor.simulation._steering.tape import ARRIVALS
from supervisor.tree import (
    AlreadyPresent,
    ChildExited,
    ChildNotFound,
    ChildRestarting,
    ChildRunning,
    ChildStarted,
    Event,
    StartFailed,
    SupervisorStopping,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)

# ---- What there is ---------------------------------------------------------------------

MODULES = (actors, actors.agent, supervisor.tree, supervisor.runtime)

_PROMISES = ("Awaitable", "Coroutine", "AsyncIterator", "AsyncGenerator")


def operations() -> set[str]:
    """Return the name of every public coroutine method, async iteration and async
    context manager."""
    found: set[str] = set()
    for module in MODULES:
        for exported in module.__all__:
            it = getattr(module, exported)
            if is_operation(it):
                found.add(exported)
            if inspect.isclass(it):
                found |= set(_of_class(exported, it))
    return found


def _of_class(exported: str, kind: type) -> Iterator[str]:
    for name in dir(kind):
        if name == "__aenter__":
            yield exported
        elif name == "__anext__" or (
            not name.startswith("_")
            and is_operation(inspect.getattr_static(kind, name))
        ):
            yield f"{exported}.{name}"


def is_operation(it: object) -> bool:
    """Tell whether to call it gives something that is awaited, or gone through so."""
    if isinstance(it, property) or not callable(it) or inspect.isclass(it):
        return False
    plain = inspect.unwrap(it)
    if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
        return True
    promised = str(getattr(plain, "__annotations__", {}).get("return", ""))
    return promised.startswith(_PROMISES)


# ---- How one is called -----------------------------------------------------------------


class Struck(OSError):
    """Raised in an operation, as the world might."""


STRIKES = (Struck, KeyboardInterrupt)


PUBLIC = {name for module in MODULES for name in module.__all__}


def name_of(kind: type, method: str = "") -> str:
    """Return the name of an operation of a class: of the public one at or above it."""
    names = [above.__name__ for above in kind.__mro__]
    name = next((it for it in names if it in PUBLIC), names[0])
    return f"{name}.{method}" if method else name


UNDER_WAY: dict[Task, str] = {}
"""Which operation each task is in just now."""


@contextmanager
def under_way(name: str) -> Generator[None]:
    task = trio.lowlevel.current_task()
    before = UNDER_WAY.get(task)
    UNDER_WAY[task] = name
    try:
        yield
    finally:
        del UNDER_WAY[task]
        if before is not None:
            UNDER_WAY[task] = before


async def call(
    sim: Sim, fn: Callable[..., Awaitable[Any]], *args: Any, **options: Any
) -> Any:
    """Call an operation as a target of sweeps; return None if it was struck.

    What strikes before its first wait is pending when it begins.
    """

    async def operation() -> Any:
        await trio.lowlevel.cancel_shielded_checkpoint()
        with under_way(operation.__name__):
            return await fn(*args, **options)

    method = cast("Any", fn)
    holder = method.__self__
    operation.__name__ = name_of(type(holder), method.__name__)
    return await _catching(sim.target(operation)())


async def block(sim: Sim, manager: Any, body: Callable[[Any], object] = str) -> None:
    """Enter and leave an async context manager as one target. The body awaits at most
    one step of virtual time."""

    async def operation() -> None:
        with under_way(operation.__name__):
            async with manager as held:
                if body(held) is not None:
                    await trio.sleep(0.05)

    operation.__name__ = name_of(type(manager))
    await _catching(sim.target(operation)())


async def each(sim: Sim, things: Any, name: str = "") -> AsyncIterator[Any]:
    """Go through an async iterator, each step as a target; it ends where one is struck.

    With a ``name`` the steps are those of what that method returns.
    """

    async def operation() -> Any:
        await trio.lowlevel.cancel_shielded_checkpoint()
        with under_way(operation.__name__):
            return await anext(things, None)

    operation.__name__ = name or name_of(type(things), "__anext__")
    target = sim.target(operation)
    while (found := await _catching(target())) is not None:
        yield found


async def _catching(awaited: Awaitable[Any]) -> Any:
    try:
        return await awaited
    except STRIKES:
        return None
    except BaseExceptionGroup as group:
        _, rest = group.split(STRIKES)
        if rest is not None:
            raise rest from None
        return None


# ---- What must hold --------------------------------------------------------------------


class Account:
    """Counts what begins and ends in a tree or a runtime."""

    def __init__(self) -> None:
        self.begun: Counter[object] = Counter()
        self.ended: Counter[object] = Counter()

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case ChildStarted(supervisor=above, child=name, incarnation=number):
                    self.begun[above, name, number] += 1
                case ChildExited(supervisor=above, child=name, incarnation=number):
                    self.ended[above, name, number] += 1
                case TaskStarted(task_id=task):
                    self.begun[task] += 1
                case TaskEnded(task_id=task):
                    self.ended[task] += 1
                case _:
                    pass

    def check(self) -> None:
        for one, times in (self.begun | self.ended).items():
            begun, ended = self.begun[one], self.ended[one]
            # What never came to run has an end, too.
            assert ended == max(begun, 1), (
                f"{times}: begun {begun}, ended {ended}: {one}"
            )


async def make(program: Program) -> None:
    for number in range(2):
        await program.print(f"line {number}\n")
        await trio.sleep(0.1)


async def echo(program: Program) -> None:
    while data := await program.read():
        await program.print(f"{len(data)}\n")


async def deaf(program: Program) -> None:
    program.ignore_sigterm()
    await trio.sleep_forever()


COMMANDS = {"make": make, "true": "done\n", "echo": echo, "deaf": deaf}


@asynccontextmanager
async def running(sim: Sim, **options: Any) -> AsyncGenerator[Runtime]:
    """A runtime that still works behind the block, and whose accounts are right."""
    env: FakeEnv = sim.env(COMMANDS)
    account = Account()
    async with open_runtime("tasks", env=env, **options) as runtime:
        events = runtime.events.subscribe()
        yield runtime
        with sim.within(600):
            await runtime.wait_idle()
            await still_works(runtime)
        check_told(runtime)
    account.add(events.drain())
    account.check()
    left = [tree for tree in env.processes.started if tree.has_living]
    assert not left, f"processes are left: {left}"


async def still_works(runtime: Runtime) -> None:
    # One of them may meet a fault of the world.
    codes = [(await runtime.run(Shell("true"))).exit_code for _ in range(2)]
    assert 0 in codes, f"commands end with {codes}"


def check_told(runtime: Runtime) -> None:
    """Each end of a background task of the host's was told once."""
    told = Counter(note.task_id for note in runtime.notifications.drain())
    for task in runtime.tasks():
        assert task.status.is_terminal, f"not ended: {task}"
        assert told[task.id] <= 1, f"told {told[task.id]} times: {task}"
        if task.background and task.parent is None and task.notify != "silent":
            read = task.id in READ.get(runtime, ())
            assert told[task.id] + read == 1, f"told {told[task.id]} times: {task}"


READ: dict[Runtime, list[str]] = {}
"""Whose ends a scenario has read itself."""


async def together(*tasks: Callable[[], Awaitable[object]]) -> None:
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task)


# ---- Actors and trees ------------------------------------------------------------------


async def answers(ctx: Context[Any]) -> None:
    async for message in ctx.mailbox:
        if isinstance(message, Reply):
            await trio.sleep(0.1)
            message.tell("yes")
        elif message == "die":
            raise LookupError("it is told to die")


async def asks_actors(sim: Sim) -> None:
    """One asks, sends and waits for its end, and another one dies and comes back."""
    spec = child("answers", answers, mailbox=1, restart="temporary")
    async with still_tree(sim) as (tree, ref):
        asked = await tree.start_child(spec)

        async def ask() -> None:
            assert await call(sim, asked.ask, lambda reply: reply) in ("yes", None)

        async def send() -> None:
            for _ in range(2):
                await call(sim, asked.send, "hello")

        async def wait() -> None:
            reply: Reply[str] = Reply()
            await asked.send(reply)
            assert await call(sim, reply.wait) in ("yes", None)

        async def dies() -> None:
            ref.tell("die")
            await checkpoint()
            await call(sim, ref.wait_running)

        async def ends() -> None:
            await trio.sleep(2)
            asked.stop()
            await together(
                lambda: call(sim, asked.wait_stopped),
                lambda: call(sim, asked.wait_exit),
            )

        await together(ask, send, wait, dies, ends)


@asynccontextmanager
async def still_tree(sim: Sim) -> AsyncGenerator[tuple[Any, ActorRef[Any]]]:
    """A supervisor that still works behind the block, with a child that answers."""
    account = Account()
    spec = child("first", answers)
    async with open_supervisor(children=[spec], intensity=9) as tree:
        events = tree.events.subscribe()
        (first,) = tree.which_children()
        account.begun[tree.path, "first", 1] += 1
        yield tree, first.ref
        with sim.within(60):
            await first.ref.wait_running()
            assert await first.ref.ask(lambda reply: reply) == "yes"
            last = await tree.start_child(child("last", answers))
            assert await last.ask(lambda reply: reply) == "yes"
    account.add(events.drain())
    account.check()


async def reads_mailboxes(sim: Sim) -> None:
    """Actors that are struck where they read, and one that is full."""
    read: list[object] = []

    async def receives(ctx: Context[int]) -> None:
        read.extend([await call(sim, ctx.mailbox.receive) for _ in range(3)])

    async def iterates(ctx: Context[int]) -> None:
        read.extend([it async for it in each(sim, ctx.mailbox)])

    async def batches(ctx: Context[int]) -> None:
        while (got := await call(sim, ctx.mailbox.receive_batch)) is not None:
            read.extend(got)
            await trio.sleep(0.1)

    async with still_tree(sim) as (tree, _):
        refs = [
            await tree.start_child(
                child(fn.__name__, fn, mailbox=1, restart="temporary")
            )
            for fn in (receives, iterates, batches)
        ]

        async def feed(ref: ActorRef[int]) -> None:
            for number in range(3):
                try:
                    await call(sim, cast("Any", ref).mailbox.put, number)
                except actors.ActorEnded:
                    return
                await checkpoint()
            ref.stop()
            await ref.wait_stopped()

        async with trio.open_nursery() as nursery:
            for ref in refs:
                nursery.start_soon(feed, ref)
    numbers = Counter(it for it in read if it is not None)
    assert all(times <= len(refs) for times in numbers.values()), numbers


async def serves_children(sim: Sim) -> None:
    """Children are started, ended, started again and forgotten, by two at once."""
    async with still_tree(sim) as (tree, first):

        async def one(name: str) -> None:
            refusals = (
                *(ChildNotFound, ChildRunning, ChildRestarting, AlreadyPresent),
                *(StartFailed, SupervisorStopping),
            )
            spec = child(name, slow, restart="transient")
            steps: list[tuple[Any, Any]] = [
                (tree.start_child, spec),
                (tree.terminate_child, name),
                (tree.restart_child, name),
                (tree.terminate_child, name),
                (tree.delete_child, name),
            ]
            for fn, it in steps:
                try:
                    await call(sim, fn, it)
                except refusals:
                    pass  # The one before was struck.

        async def dies() -> None:
            first.tell("die")

        await together(lambda: one("a"), lambda: one("b"), dies)


async def slow(ctx: Context[Any]) -> None:
    """It takes its time to start and to end."""
    await trio.sleep(0.1)
    ctx.started()
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
            await trio.sleep(0.1)


async def opens_trees(sim: Sim) -> None:
    """Both kinds are opened and left, waited for and listened to."""
    listed = [child("a", slow), child("b", slow)]
    account = Account()
    outer = trio.Event()

    async def static() -> None:
        def hold(tree: Any) -> None:
            nursery.start_soon(waits, tree)
            nursery.start_soon(listens, tree.events.subscribe())

        await block(sim, open_supervisor(children=listed, name="static"), hold)

    async def dynamic() -> None:
        def hold(tree: Any) -> None:
            tree.start_child_nowait(child("c", slow))
            nursery.start_soon(waits, tree)

        await block(sim, open_dynamic_supervisor(name="dynamic"), hold)

    async def waits(tree: Any) -> None:
        await call(sim, tree.wait)
        with sim.within(30):
            await tree.wait()
        assert tree.exit is not None

    async def listens(events: Any) -> None:
        async for event in each(sim, events):
            account.add([event])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(static)
        nursery.start_soon(dynamic)
        outer.set()
    assert set(account.ended.values()) <= {1}, account.ended


async def serves_dynamic_children(sim: Sim) -> None:
    async with still_tree(sim), open_dynamic_supervisor() as tree:

        async def one() -> None:
            ref = await call(sim, tree.start_child, child("x", slow))
            if ref is not None:
                try:
                    await call(sim, tree.terminate_child, ref)
                except ChildNotFound:
                    pass

        async def many() -> None:
            refs = [tree.start_child_nowait(child("y", slow)) for _ in range(2)]
            await trio.sleep(0.2)
            await call(sim, tree.terminate_children, refs)

        await together(one, one, many)
        with sim.within(60):
            ref = await tree.start_child(child("z", slow))
            await tree.terminate_child(ref)
            assert ref.state == "stopped"


# ---- Tasks -----------------------------------------------------------------------------


async def launches(sim: Sim) -> None:
    """So many at once that the calls themselves give way."""
    handles: list[object] = []
    async with running(sim, limits=Limits(total=2)) as runtime:

        async def one() -> None:
            task = await call(sim, runtime.launch, Shell("true"))
            if task is not None:
                handles.append(task)
                await call(sim, task.wait)

        for _ in range(30):
            runtime._launches += 1  # pyright: ignore[reportPrivateUsage] (as if they had been)
        await together(one, one, one)
        assert len(runtime.tasks()) == len(handles), "a struck launch has started one"


async def runs(sim: Sim) -> None:
    """In the foreground, also where it is moved, and where it is cleared."""
    async with running(sim) as runtime:
        callers = 0

        async def fore() -> None:
            nonlocal callers
            callers += 1
            await call(sim, runtime.run, Shell("make"))
            callers -= 1
            left = [it for it in runtime.tasks() if not it.background]
            left = [it for it in left if not it.status.is_terminal]
            assert len(left) <= callers, f"nobody waits for {left}"

        async def moves() -> None:
            await trio.sleep(0.1)
            runtime.background_all()

        async def clears() -> None:
            await trio.sleep(0.15)
            await call(sim, runtime.stop_foreground)

        async def late() -> None:
            await trio.sleep(0.12)
            await fore()

        await together(fore, fore, moves, clears, late)


async def waits(sim: Sim) -> None:
    async with running(sim) as runtime:
        tasks = [await runtime.launch(Shell("make")) for _ in range(2)]
        one, other = tasks

        async def follows() -> None:
            async for _ in each(sim, one.follow(), "TaskHandle.follow"):
                pass

        async def finds() -> None:
            with suppress(OutputEnded):  # The world may have ended it.
                await call(sim, other.wait_output, "line 1")

        async def goes_through() -> None:
            async for _ in each(sim, runtime.task_set(*tasks)):
                pass

        await together(
            lambda: call(sim, runtime.wait_any, tasks),
            lambda: call(sim, runtime.wait_all, tasks),
            lambda: call(sim, runtime.wait_idle),
            lambda: call(sim, one.wait),
            finds,
            follows,
            goes_through,
        )


async def stops(sim: Sim) -> None:
    async with running(sim, limits=Limits(total=3)) as runtime:
        tasks = [
            await runtime.launch(Shell(it, grace=1)) for it in ("deaf", "make", "deaf")
        ]
        later = await runtime.launch(Shell("make"))

        async def all_of_them() -> None:
            await trio.sleep(0.1)
            await call(sim, runtime.stop_all)
            if not later.status.is_terminal:
                await runtime.stop_all(now=True)

        await together(
            lambda: call(sim, runtime.stop, tasks[0]),
            lambda: call(sim, tasks[2].stop, now=True),
            all_of_them,
        )


async def writes(sim: Sim) -> None:
    async with running(sim) as runtime:
        task = await runtime.launch(Shell("echo", stdin="pipe"))

        async def write() -> None:
            with suppress(InputClosed):  # The world may have ended it.
                await call(sim, task.write, "hello\n" * 20_000)
                await call(sim, task.close_input)
            if not task.status.is_terminal:
                await trio.sleep(1)
                await task.stop()

        await write()


async def opens(sim: Sim) -> None:
    """A runtime that is opened and left with tasks in it."""
    env: FakeEnv = sim.env(COMMANDS)
    opened: list[Runtime] = []

    async def one() -> None:
        await block(sim, open_runtime("tasks", env=env), starts)

    def starts(runtime: Runtime) -> None:
        opened.append(runtime)
        nursery.start_soon(launches_two, runtime)

    async def launches_two(runtime: Runtime) -> None:
        try:
            for command in ("deaf", "make"):
                await runtime.launch(Shell(command, grace=0.5))
        except RuntimeStopping:
            pass

    with sim.within(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
    for runtime in opened:
        check_told(runtime)
    left = [tree for tree in env.processes.started if tree.has_living]
    assert not left, f"processes are left: {left}"
    async with running(sim):
        pass


# ---- What is told ----------------------------------------------------------------------


async def tells(sim: Sim) -> None:
    """Ends are read one by one and together, wakes are had, turns are taken."""
    async with running(sim) as runtime:
        read = READ.setdefault(runtime, [])
        try:
            with runtime.events.subscribe() as events:

                async def launch(owner: str) -> None:
                    task = await runtime.launch(Shell("make"), owner=owner)
                    await task.wait()

                async def reads() -> None:
                    with trio.move_on_after(1):
                        async for note in each(sim, runtime.notifications_for("one")):
                            read.append(note.task_id)
                            note.ack()

                async def batches() -> None:
                    view = runtime.notifications_for("many")
                    with trio.move_on_after(1):
                        for note in await call(sim, view.receive_batch) or ():
                            read.append(note.task_id)
                            note.ack()

                async def wakes() -> None:
                    with trio.move_on_after(3):
                        async for wake in each(sim, runtime.wakes("woken")):
                            told = [note.task_id for note in wake.notes]
                            await block(sim, wake, partial(takes, told))

                async def turns() -> None:
                    for _ in range(2):
                        await block(sim, runtime.turn("woken"), fore)

                def takes(told: list[str], _: object) -> bool:
                    read.extend(told)
                    return fore(_)

                def fore(_: object) -> bool:
                    nursery.start_soon(runs_in_turn)
                    return True

                async def runs_in_turn() -> None:
                    try:
                        await runtime.run(Shell("make"), owner="woken")
                    except RuntimeStopping:
                        pass

                async def listens() -> None:
                    with trio.move_on_after(1):
                        async for _ in each(sim, events):
                            pass

                async with trio.open_nursery() as nursery:
                    for owner in ("one", "one", "many", "woken", "woken"):
                        nursery.start_soon(launch, owner)
                    for one in (reads, batches, wakes, turns, turns, listens):
                        nursery.start_soon(one)
            with trio.move_on_after(1):
                async for wake in runtime.wakes("woken"):
                    async with wake:
                        read.extend(note.task_id for note in wake.notes)
        finally:
            READ[runtime] = read
    del READ[runtime]


async def schedules(sim: Sim) -> None:
    async with running(sim) as runtime:
        schedule = await call(sim, runtime.schedule, "* * * * *", "look", owner="x")
        if schedule is not None:
            await trio.sleep(61)
            await schedule.stop()
        READ[runtime] = []


# ---- Agents ----------------------------------------------------------------------------


async def works(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield AssistantMessage("thinking")
    await trio.sleep(0.1)
    yield FinalResult("done")


async def talks_to_agents(sim: Sim) -> None:
    """Agents are sent messages while they run and when they have ended, and resumed."""
    async with running(sim, agents=AgentPolicy(run=works)) as runtime:
        task = await runtime.launch(Agent(works, "go"), notify="silent")

        async def sends() -> None:
            for _ in range(3):
                await call(sim, runtime.send, task, "hello")
                await trio.sleep(0.15)

        async def resumes() -> None:
            await task.wait()
            await call(sim, runtime.resume, task, "go on")

        await together(sends, resumes)


async def agents_work(sim: Sim) -> None:
    """An agent with tasks and tools of its own, struck within."""
    budget = Budget(tokens=30)

    async def runs_things(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield AssistantMessage("starting")
        await call(sim, context.launch, Shell("make"))
        await call(sim, context.run, Shell("true"))
        await call(sim, context.wait_own_tasks)
        yield TokensUsed(input_tokens=10)
        uses = tuple(ToolUse(f"u{n}", "Bash", {"command": "true"}) for n in range(2))
        yield AssistantMessage("using", uses)
        answered = await call(sim, context.use_tools, uses)
        if answered is not None:
            yield answered
        yield FinalResult("done")

    class StruckAgent(Agent):
        async def run(self, ctx: Any, report: Any) -> Any:
            return await call(sim, super().run, ctx, report)

    policy = AgentPolicy(run=works, permissions=Permissions(mode="bypass"))
    async with running(sim, agents=policy) as runtime:

        async def exceeded() -> None:
            with trio.move_on_after(1):
                await call(sim, budget.wait_exceeded)

        async def charges() -> None:
            await trio.sleep(0.3)
            budget.charge(30)

        async def one() -> None:
            await runtime.launch(Agent(runs_things, "go"))

        async def other() -> None:
            await runtime.launch(StruckAgent(works, "go"))

        await together(one, other, exceeded, charges)


async def asks_for_approval(sim: Sim) -> None:
    def request(agent: str, number: int) -> ToolRequest:
        use = ToolUse(f"call{number}", "Bash", {"command": "make"})
        return ToolRequest(
            agent_id=agent, agent_type="Explore", depth=0, mode="bubble", tool_use=use
        )

    async with running(sim) as runtime:
        agent = await runtime.launch(Agent(works, "go"))
        await trio.sleep(0.01)

        async def answers_them() -> None:
            for _ in range(3):
                await trio.sleep(0.01)
                for parked in runtime.approvals.pending():
                    runtime.approvals.answer(parked.id, True)

        approvals = runtime.approvals

        async def asks(wait: Any, asked: ToolRequest, *owner: None) -> None:
            await call(sim, wait, *owner, asked)
            # Answered, or withdrawn.
            assert asked.tool_use not in [it.tool_use for it in approvals.pending()]

        await together(
            lambda: asks(approvals.wait, request(agent.id, 1)),
            lambda: asks(approvals.wait_of_host, request("main", 2), None),
            answers_them,
        )
        assert not approvals.pending()


SCENARIOS: tuple[Callable[[Sim], Awaitable[None]], ...] = (
    asks_actors,
    reads_mailboxes,
    serves_children,
    serves_dynamic_children,
    opens_trees,
    launches,
    runs,
    waits,
    stops,
    writes,
    opens,
    tells,
    schedules,
    talks_to_agents,
    agents_work,
    asks_for_approval,
)


# ---- How they are swept ----------------------------------------------------------------


def swept(scenario: Callable[[Sim], Awaitable[None]]) -> Counter[str]:
    """Return the operations at which a scenario can be struck, each with the number of
    its steps behind which a task was still in it."""
    waits: Counter[str] = Counter()

    def stepped(task: Task) -> None:
        if task in UNDER_WAY:
            waits[UNDER_WAY[task]] += 1

    with session():
        _, points = once(
            scenario,
            RoundRobin().start(0),
            count=[("cancel", ARRIVALS)],
            listen=lambda driver: driver.on_step.append(stepped),
        )
    targets = {point.target.partition("#")[0] for point in points}
    return Counter({name: waits[name] for name in targets})


def sweep(
    scenario: Callable[[Sim], Awaitable[None]],
    kind: str,
    name: str = "*",
    **options: Any,
) -> SweepReport | None:
    """Strike an operation in a scenario; None if it has no point of that kind."""
    # Each name that is asked for has to be that of a target.
    several = [None] if name == "*" else [[name, f"{name}#*"], [name]]
    for targets in several:
        try:
            if kind == "fault":
                return fault_everywhere(scenario, check=False, **options)
            options |= {"targets": targets, "check": False}
            if kind == "cancel":
                return cancel_everywhere(scenario, **options)
            error = {"OSError": Struck, "KeyboardInterrupt": KeyboardInterrupt}[kind]
            return raise_everywhere(scenario, error, **options)
        except NothingToStrike:
            continue
    return None
