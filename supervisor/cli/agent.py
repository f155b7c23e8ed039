"""``trio-supervisor agent``: agents of a script, or one with a real model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
)
from pathlib import Path
from typing import Literal

import attrs
import trio

from actors import TaskStatus
from actors.agent import Agent, Run
from actors.models import Model, loop
from actors.models.scripted import Script, Step
from actors.text import clean_text, one_line

from ..agents import AgentPolicy
from ..definitions import AgentDefinition
from ..hooks import Hooks
from ..permissions import Mode, Permissions, Rule
from ..runtime import (
    AgentSaid,
    Limits,
    Notifications,
    Runtime,
    StoppedBy,
    TaskEnded,
    TaskHandle,
    TaskSnapshot,
    open_runtime,
)
from ..tree import Subscription, SupervisorError
from ._agent_view import HostStep, JsonAgentView, PlainAgentView, in_our_words
from ._asking import JsonAsker, TerminalAsker
from ._leftovers import Leftovers
from ._listening import Listening
from ._program import EVENTS_KEPT, exit_code, open_program
from ._stdout import Stdout
from ._stopping import Stopping
from ._view import located, seconds

Provider = Literal["anthropic", "openai"]


@attrs.frozen(kw_only=True)
class AgentOrder:
    """What was ordered on the command line, checked."""

    script: Script
    """Of an agent with a real model, only what its host does."""
    directory: Path
    provider: Provider | None = None
    """None is the script itself."""
    model: str = ""
    mode: Mode = "bypass"
    rules: Sequence[Rule] = ()
    hooks: Hooks = attrs.field(factory=Hooks)
    definitions: Mapping[str, AgentDefinition] = attrs.field(
        factory=dict[str, AgentDefinition]
    )
    """What an agent with a real model may start."""
    wait: float | None = None
    """The seconds that an agent which has answered waits for its own tasks."""
    limits: Limits = attrs.field(factory=Limits)
    json: bool = False


class StepFailed(Exception):
    """Raised when a step of the host cannot be taken: its text says which, and why."""


async def agent(order: AgentOrder) -> int:
    """Do what was ordered, tell about it, and return the exit code."""
    async with open_program() as (stopping, stdout):
        where = located("transcripts", order.directory, stdout.width)
        if not order.json:
            await stdout.write(where)
        async with _open_loop(order) as run:
            session = _Session(order, run, stdout)
            problem = await session.play(stopping)
        if not order.json:
            await stdout.write(_summary(session.ended) + where)
    has_failed = problem is not None or session.has_failed()
    therefore = "" if session.ended else ": no agent was started"
    return exit_code(stopping, stdout, has_failed, therefore=therefore, problem=problem)


@asynccontextmanager
async def _open_loop(order: AgentOrder) -> AsyncGenerator[Run]:
    """Open the model and give the loop round it."""
    if order.provider is None:
        yield order.script.run
        return
    async with _open_model(order.provider, order.model) as model:
        yield loop(model)


def _open_model(provider: Provider, name: str) -> AbstractAsyncContextManager[Model]:
    if provider == "anthropic":
        from actors.models import anthropic

        return anthropic.open_model(name)
    from actors.models import openai

    return openai.open_model(name)


class _Session:
    """One runtime, the agents that its host started, and what they have said."""

    def __init__(self, order: AgentOrder, run: Run, stdout: Stdout) -> None:
        self._order = order
        self._stdout = stdout
        self._view = JsonAgentView(stdout) if order.json else PlainAgentView(stdout)
        # By the names of the script.
        self._ids: dict[str, str] = {}
        self._stopped: set[str] = set()
        self.ended: dict[str, TaskSnapshot] = {}
        """How the agents of the host have ended."""
        self._loop = run
        self._listening = Listening()
        self._runtime: Runtime

    def has_failed(self) -> bool:
        """Return whether an agent of the host has ended in another way than by its
        answer or by a step that stops it."""
        return any(
            task.status is TaskStatus.FAILED
            or (task.status is TaskStatus.KILLED and name not in self._stopped)
            for name, task in self.ended.items()
        )

    async def play(self, stopping: Stopping) -> str | None:
        """Take every step, and return when all agents have ended; return what is
        wrong with a step that cannot be taken."""
        problem: str | None = None
        order = self._order
        policy = AgentPolicy(
            definitions=order.definitions or _definitions(order.script),
            run=self._loop,
            permissions=Permissions(rules=order.rules, mode=order.mode),
            hooks=order.hooks,
        )
        async with trio.open_nursery() as readers:
            # They read on until the runtime has ended.
            async with open_runtime(
                order.directory, limits=order.limits, agents=policy
            ) as runtime:
                self._runtime = self._listening.runtime = stopping.runtime = runtime
                self._view.runtime = runtime
                events, notifications = runtime.events, runtime.notifications
                subscription = events.subscribe(EVENTS_KEPT, agents=True)
                readers.start_soon(self._follow, subscription)
                leftovers = Leftovers(runtime, order.wait)
                readers.start_soon(leftovers.watch)
                if order.mode == "bubble":
                    asker = self._asker(runtime)
                    readers.start_soon(asker.answer)
                readers.start_soon(_acknowledge, notifications)
                with stopping.work:
                    problem = await self._take_steps()
                    if problem is None:
                        await runtime.wait_idle()
                if stopping.number is not None or problem is not None:
                    reason = stopping.reason if problem is None else "the host failed"
                    by: StoppedBy = "host" if problem is not None else "user"
                    await runtime.stop_all(reason=reason, by=by)
                self.ended = {
                    name: runtime.get(task_id) for name, task_id in self._ids.items()
                }
        return problem

    def _asker(self, runtime: Runtime) -> JsonAsker | TerminalAsker:
        if isinstance(self._view, JsonAgentView):
            return JsonAsker(runtime)
        quiet = self._view.quiet
        return TerminalAsker(runtime, self._stdout, quiet, self._listening)

    # What the host does

    async def _take_steps(self) -> str | None:
        """Take every step; return what is wrong with one that cannot be taken."""
        try:
            async with trio.open_nursery() as foreground:
                for step in self._order.script.host:
                    await self._take(step, foreground)
        except BaseExceptionGroup as errors:
            failed, rest = errors.split(StepFailed)
            if rest is not None or failed is None:
                raise
            first: BaseException = failed
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            return str(first)
        return None

    async def _take(self, step: Step, foreground: trio.Nursery) -> None:
        runtime, name = self._runtime, step.agent
        # Among all that happens, in its place.
        runtime.events.emit(HostStep, _words(step))
        if step.action == "run":
            await self._run(step, foreground)
            return
        with _named(step, self._order.script.source):
            match step.action:
                case "pause":
                    await trio.sleep(step.seconds)
                case "launch":
                    task = await runtime.launch(self._agent(step), description=name)
                    self._ids[name] = task.id
                case "background":
                    if not runtime.background(self._id(step)):
                        raise StepFailed("it is not in the foreground")
                case "send":
                    await runtime.send(self._id(step), step.text or "")
                case "stop":
                    self._stopped.add(name)
                    await runtime.stop(self._id(step), step.text, by="user")
                case "resume":
                    await self._resume(step)
                case "wait":
                    await self._wait(self._id(step), step.text)

    async def _run(self, step: Step, foreground: trio.Nursery) -> None:
        """Return when the agent runs, or has ended. It may stay in the foreground
        until it ends, or is moved."""
        # From before its first event.
        with self._runtime.events.subscribe(EVENTS_KEPT, agents=True) as events:
            task: TaskHandle = await foreground.start(self._run_in_foreground, step)
            self._ids[step.agent] = task.id
            async for event in events:
                match event:
                    case AgentSaid(task_id=task.id) | TaskEnded(task_id=task.id):
                        return
                    case _:
                        pass

    async def _run_in_foreground(  # noqa: ASYNC114,ASYNC128
        self, step: Step, task_status: trio.TaskStatus[TaskHandle]
    ) -> None:
        # Also after the step: what goes wrong is this step's.
        with _named(step, self._order.script.source):
            await self._runtime.run(
                self._agent(step), description=step.agent, task_status=task_status
            )

    def _agent(self, step: Step) -> Agent:
        order = self._order
        script = order.script.agents[step.agent]
        is_real = order.provider is not None
        agent = Agent(
            self._loop,
            step.text or "",
            description=step.agent,
            model=f"{order.provider}/{order.model}" if is_real else script.model,
            tools=script.tools,
        )
        is_defined = script.description and not is_real
        return attrs.evolve(agent, type=step.agent) if is_defined else agent

    async def _resume(self, step: Step) -> None:
        task_id = self._id(step)
        # What it has said before does not count.
        await self._listening.wait_heard()
        self._listening.said.pop(task_id, None)
        await self._runtime.resume(task_id, step.text)
        self._stopped.discard(step.agent)

    def _id(self, step: Step) -> str:
        if step.agent not in self._ids:
            raise StepFailed("no step before has started it")
        return self._ids[step.agent]

    async def _wait(self, task_id: str, words: str | None) -> None:
        """Wait for the end of an agent, or until it has said ``words``."""
        task = self._runtime.handle(task_id)
        if words is None:
            await task.wait()
            return
        if not await self._listening.wait_said(task, words):
            raise StepFailed(f"it has ended without saying {words!r}")

    async def _follow(self, events: Subscription) -> None:
        async for event in events:
            batch = [*map(in_our_words, (event, *events.drain()))]
            await self._view.show(batch)
            for event in batch:
                self._listening.hear(event)


async def _acknowledge(notifications: Notifications) -> None:
    """Be the parent, who hears of the ends."""
    async for note in notifications:
        note.ack()


def _definitions(script: Script) -> dict[str, AgentDefinition]:
    """Return what the agents of a script may start."""
    return {
        agent.name: AgentDefinition(
            name=agent.name,
            description=agent.description,
            prompt=agent.prompt or agent.description,
            tools=agent.tools,
            model=agent.model,
            background=agent.background,
        )
        for agent in script.agents.values()
        if agent.description is not None
    }


@contextmanager
def _named(step: Step, source: str) -> Generator[None]:
    """Say which step it was that has failed."""
    try:
        yield
    except (SupervisorError, StepFailed) as error:
        raise StepFailed(f"{source}: {step.place}: {_words(step)}: {error}") from error


def _words(step: Step) -> str:
    if step.action == "pause":
        return f"pause {step.seconds:g} s"
    text = "" if step.text is None else f": {step.text}"
    return f"{step.action} {step.agent}{text}"


def _summary(ended: Mapping[str, TaskSnapshot]) -> str:
    """Return how everything ended."""
    lines = [""]
    for name, task in ended.items():
        lines.append(f"{name}: {task.status.value}, {seconds(task)}")
        if task.error is not None:
            lines.append(f"  error: {one_line(task.error.message, None)}")
        lines += [f"  {line}" for line in clean_text(task.result or "").splitlines()]
    return "\n".join([*lines, "", ""])
