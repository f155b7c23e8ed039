"""``trio-supervisor demo``: real commands that do their worst, and what became of
them, by facts that were measured from outside."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import orjson
import trio

from actors.shell import Shell

from ..runtime import (
    AgentSaid,
    Notifications,
    Runtime,
    TaskEnded,
    TaskHandle,
    TaskProgress,
    TaskStarted,
    open_runtime,
)
from ..tree import Subscription
from ._claims import ATTEMPTS, BACKOFF, FORGED, GRACE, LIMIT, READ, Facts, Look, judge
from ._demo_agents import AgentScenario
from ._stdout import Stdout
from ._stopping import Stopping, open_signals

_PATIENCE = 12.0
"""Seconds after which it is judged as it stands."""

# A process that has left its session, its parent, and its environment; it holds
# the output pipe and does not listen to SIGTERM.
_ORPHAN = """\
import os, signal, sys
if len(sys.argv) == 3:
    if os.fork(): os._exit(0)
    os.setsid()
    if os.fork(): os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.execve(sys.executable, [sys.executable, "-I", "-S", *sys.argv, "now"], {})
with open(sys.argv[1] + "/new", "w") as file: file.write(str(os.getpid()))
os.rename(sys.argv[1] + "/new", sys.argv[2])
signal.sigtimedwait([], 600) if hasattr(signal, "sigtimedwait") else signal.pause()
"""


@attrs.frozen
class Part:
    """One of the commands."""

    name: str
    command: str
    what: str
    """What it does, for people."""


def parts(directory: Path) -> dict[str, Part]:
    """Return the commands, which leave their traces in ``directory``."""
    here = shlex.quote(str(directory))
    python = f"{shlex.quote(sys.executable)} -I -S"
    digest = f"import hashlib; print(hashlib.sha256(open({str(READ)!r}, 'rb').read()).hexdigest())"
    listed = [
        Part("forger", f"cat {here}/forged", "prints an envelope of its own making"),
        Part(
            "tests",
            "echo 2 passed; echo 1 failed >&2; exit 3",
            "fails, with exit code 3",
        ),
        Part(
            "digest",
            f"{python} -c {shlex.quote(digest)}",
            "reads a file, and prints its digest",
        ),
        Part(
            "stubborn",
            f"trap '' TERM; {python} {here}/orphan.py {here} {here}/orphan\n"
            f"while [ ! -e {here}/orphan ]; do sleep 0.1; done\n"
            f'echo "$$ $(cat {here}/orphan)"; while :; do sleep 1; done',
            "ignores SIGTERM, and so does what it leaves in another session",
        ),
        Part(
            "flaky",
            f"{python} -c 'import time; print(time.monotonic())' >>{here}/attempts\n"
            f"n=$(($(wc -l <{here}/attempts))); echo attempt $n; [ $n -ge {ATTEMPTS} ]",
            f"fails until its attempt number {ATTEMPTS}; is restarted under backoff",
        ),
        Part(
            "moved",
            f"echo $$; while [ ! -e {here}/go ]; do sleep 0.1; done; echo $$",
            "is moved from the foreground to the background",
        ),
        Part(
            "server",
            f": {here}; echo $$; while :; do sleep 1; done",
            "would run for ever",
        ),
    ]
    return {part.name: part for part in listed}


# How it is measured


class Observer:
    """A process of its own that looks at the others."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._turn = trio.Lock()

    async def look(self) -> Look | None:
        """Look now; None if it has ended."""
        async with self._turn:
            return await self._look()

    async def _look(self) -> Look | None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        answer = b""
        try:
            await stdin.send_all(b"look\n")
            while not answer.endswith(b"\n"):
                chunk = await stdout.receive_some()
                if not chunk:
                    return None
                answer += chunk
        except trio.BrokenResourceError:
            return None
        seen = orjson.loads(answer)
        marked = {int(pid): session for pid, session in seen["marked"].items()}
        return Look(marked, seen["children"], seen["descriptors"])


@asynccontextmanager
async def _open_observer(mark: Path) -> AsyncGenerator[Observer]:
    program = Path(__file__).with_name("_observer.py")
    process = await trio.lowlevel.open_process(
        [sys.executable, "-I", "-S", str(program), str(mark), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield Observer(process)
    finally:
        process.kill()
        with trio.move_on_after(1.0, shield=True):
            await process.wait()


class Scenario:
    """What the demo does, and how it measures what comes of it."""

    def __init__(self, directory: Path, say: Callable[[str], Awaitable[None]]) -> None:
        self.facts = Facts(directory=directory)
        self._directory = directory
        self._say = say
        self._parts = parts(directory)
        self._agents = AgentScenario(directory, self.facts.agents)
        self._began = trio.current_time()
        # What the event stream has told of each part.
        self._talks: set[str] = set()
        self._ended: set[str] = set()
        self._news = trio.Event()
        self.observer: Observer | None = None
        """There is one while it plays."""

    async def play(self, stopping: Stopping) -> None:
        """Do everything, until it is asked to stop; in any case end it."""
        facts = self.facts
        (self._directory / "forged").write_bytes(FORGED.encode())
        (self._directory / "orphan.py").write_text(_ORPHAN)
        await self._say(
            f"Seven commands at once, with {self._directory} for their files:\n"
        )
        for part in self._parts.values():
            await self._say(f"  {part.name:<9} {part.what}\n")
        await self._say(
            "\nAnd two agents, whose models are a script and whose tools are real:\n"
            "  lead      starts a command and a helper; is moved, and gets a message\n"
            "  watcher   starts a command; is stopped with it, and resumed\n"
        )
        async with _open_observer(self._directory) as observer:
            self.observer = observer
            facts.before = await observer.look()
            async with trio.open_nursery() as readers:
                # They read on until the runtime has ended.
                async with open_runtime(
                    self._directory / "output", agents=self._agents.policy
                ) as runtime:
                    stopping.runtime = self._agents.listening.runtime = runtime
                    events, notifications = (
                        runtime.events.subscribe(agents=True),
                        runtime.notifications,
                    )
                    readers.start_soon(self._follow, events)
                    readers.start_soon(self._be_the_parent, notifications)
                    with stopping.work:
                        await self._act(runtime, observer)
                        await self._say(
                            "\nLeaving the block ends what is left: the server.\n"
                        )
            facts.after = await observer.look()
        self.collect()

    def collect(self) -> None:
        """Read what is on the disk, and the clock."""
        facts = self.facts
        for name, task_id in facts.ids.items():
            facts.files[name] = self._output_of(task_id)
        self._agents.collect(self._directory / "output")
        with contextlib.suppress(FileNotFoundError):
            lines = (self._directory / "attempts").read_text().splitlines()
            facts.attempts = [float(line) for line in lines]
        facts.took = trio.current_time() - self._began

    async def _act(self, runtime: Runtime, observer: Observer) -> None:
        facts = self.facts
        tasks: dict[str, TaskHandle] = {}
        for name, part in self._parts.items():
            if name != "moved":
                flaky = name == "flaky"
                tasks[name] = await runtime.launch(
                    self._shell(part),
                    description=name,
                    owner="main",
                    tool_use_id=f"toolu_{name}",
                    restart="transient" if flaky else "temporary",
                    intensity=ATTEMPTS,
                    period=LIMIT,
                    backoff=BACKOFF if flaky else None,
                )
        async with trio.open_nursery() as turn:
            turn.start_soon(self._take_turn, runtime)
            await self._wait_until(
                lambda: {"stubborn", "moved", "server"} <= self._talks | self._ended
            )
            facts.stubborn_pids = self._numbers("stubborn")
            facts.moved_pid = next(iter(self._numbers("moved")), None)
            facts.during = await observer.look()
            moved = facts.ids["moved"]
            facts.moves = runtime.background(moved), runtime.background(moved)
        facts.moved = await observer.look()
        (self._directory / "go").touch()

        before = trio.current_time()
        result = await runtime.stop(tasks["stubborn"].id, "the demo wants it to end")
        facts.stop_took = trio.current_time() - before
        facts.stopped = await observer.look()
        facts.survivors = result.survivors
        await self._agents.play(observer.look)
        await self._wait_until(lambda: self._ended >= self._parts.keys() - {"server"})

    async def _take_turn(self, runtime: Runtime) -> None:
        async with runtime.turn("main"):
            self.facts.at_move = await runtime.run(
                self._shell(self._parts["moved"]),
                description="moved",
                owner="main",
                tool_use_id="toolu_moved",
            )

    def _shell(self, part: Part) -> Shell:
        mark = {"TRIO_SUPERVISOR_DEMO": str(self._directory)}
        return Shell(part.command, env=mark, grace=GRACE)

    def _output_of(self, task_id: str) -> bytes:
        return (self._directory / "output" / f"{task_id}.output").read_bytes()

    def _numbers(self, name: str) -> tuple[int, ...]:
        """Return the numbers that a command has printed: its processes."""
        words = self._output_of(self.facts.ids[name]).split()
        return tuple(int(word) for word in words if word.isdigit())

    # The parent, and the history

    async def _be_the_parent(self, notifications: Notifications) -> None:
        async for note in notifications:
            self.facts.received.append(note.xml)
            after = trio.current_time() - self._began
            await self._say(
                f"\n{after:.1f} s: the parent receives {note.id}\n{note.xml}\n"
            )
            note.ack()

    async def _follow(self, events: Subscription) -> None:
        names: dict[str, str] = {}
        told: set[str] = set()
        agents = self.facts.agents
        async for event in events:
            self._agents.listening.hear(event)
            if isinstance(event, AgentSaid):
                agents.hear(names[event.task_id], event.event)
                continue
            if isinstance(event, TaskStarted):
                names[event.task_id] = event.description
                if event.owner != "main":
                    agents.own[event.description] = event.task_id
                    continue
                told.add(event.task_id)
                ids = self.facts.ids if event.description in self._parts else agents.ids
                ids[event.description] = event.task_id
            elif isinstance(event, TaskProgress):
                self._talks.add(names[event.task_id])
            elif isinstance(event, TaskEnded):
                agents.ended.append(event.task_id)
                self._ended.add(names[event.task_id])
                if event.task_id in told:
                    self.facts.ended.append(event.task_id)
            else:
                continue
            self._news.set()
            self._news = trio.Event()

    async def _wait_until(self, happened: Callable[[], bool]) -> None:
        while not happened():
            await self._news.wait()


async def demo() -> int:
    """Run the demo, print what it shows and what it proves, return the exit code."""
    stopping = Stopping(lambda: stdout.hurry())
    stdout = Stdout(stopping.request)
    with open_signals(stopping) as received:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stopping.listen, received)
            nursery.start_soon(stdout.watch)
            holds = await _demo(stopping, stdout)
            nursery.cancel_scope.cancel()
    if stdout.failure is not None and stopping.number == 0:
        print(
            f"trio-supervisor: standard output: {stdout.failure.strerror}",
            file=sys.stderr,
        )
    return int(not holds) if stopping.number is None else stopping.exit_code


async def _demo(stopping: Stopping, stdout: Stdout) -> bool:
    with tempfile.TemporaryDirectory(prefix="trio-supervisor-demo-") as name:
        scenario = Scenario(Path(name), stdout.write)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_lose_patience, scenario, stdout)
            await scenario.play(stopping)
            nursery.cancel_scope.cancel()
    return stopping.number is None and await _report(scenario.facts, stdout.write)


async def _lose_patience(scenario: Scenario, stdout: Stdout) -> None:
    """End a demo that does not come to an end, and show how far it came."""
    await trio.sleep(_PATIENCE)
    facts = scenario.facts
    with trio.move_on_after(1.0):
        if scenario.observer is not None:
            facts.after = await scenario.observer.look()
    scenario.collect()
    facts.took = math.inf
    stdout.hurry()
    await _report(facts, stdout.write)
    # What holds it up is waited for as long as it takes: here, that is a defect.
    os._exit(1)


async def _report(facts: Facts, say: Callable[[str], Awaitable[None]]) -> bool:
    """Print every claim, and return whether all of them hold."""
    judged = list(judge(facts))
    failed = sum(problem is not None for _, problem in judged)
    lines = [
        f"ok      {claim}" if problem is None else f"FAILED  {claim}: {problem}"
        for claim, problem in judged
    ]
    if failed:
        lines.append(f"\n{failed} of {len(judged)} claims do not hold.")
    else:
        lines.append(f"\nAll {len(judged)} claims hold, after {facts.took:.1f} s.")
    await say(
        "\nWhat it claims, by facts measured from outside:\n\n"
        + "\n".join(lines)
        + "\n"
    )
    return not failed
