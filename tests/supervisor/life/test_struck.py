"""Ends that are recorded while something else fails: memory, threads, the writer of
transcripts, a clock."""

from __future__ import annotations

import errno
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import attrs
import pytest
import trio
import trio.testing

from actors import ActorEnded, TaskStatus
from actors.agent import AgentContext, AgentEvent, FinalResult
from actors.shell import Shell
from actors.testing import fake_env
from supervisor._life.life import Life
from supervisor.lowlevel import life_of
from supervisor.runtime import Acked, Limits, Notified, TaskEnded, open_runtime
from supervisor.tree import Gap
from tests.supervisor.jobs import Job, agent, forever, returns, starts, waits_for

KINDS: list[Callable[[], Exception]] = [
    MemoryError,
    lambda: RuntimeError("can't start new thread"),
    lambda: OSError(errno.ENOSPC, "no space"),
    lambda: ActorEnded("transcripts"),
]

# Not struck are a property that reads one attribute, and the calls of the methods that
# meet all the blows.
SPARED = {"Task.parent", "Life.each_part", "Life._do"}


class Blow:
    """Raises an error once: at the start of the ``at``-th of our own functions that
    run while an end is recorded. Without ``deep``, only of those that `Life.conclude`
    itself calls for."""

    def __init__(self, at: int, make: Callable[[], Exception], *, deep: bool) -> None:
        self.where: str | None = None
        self._at = at
        self._make = make
        self._deep = deep
        self._seen = 0

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event != "call" or not self._counts(frame):
            return
        self._seen += 1
        if self._seen == self._at:
            self.where = frame.f_code.co_qualname
            raise self._make()

    def _counts(self, frame: FrameType) -> bool:
        module = str(frame.f_globals.get("__name__"))
        if not module.startswith(("actors.", "supervisor.")):
            return False
        if frame.f_code.co_qualname in SPARED:
            return False
        above = frame.f_back
        while above is not None:
            name = above.f_code.co_qualname
            if name == Life.conclude.__qualname__:
                return True
            if not self._deep and name not in (*SPARED, "Life._record"):
                return False
            above = above.f_back
        return False


async def play(blow: Blow) -> None:
    """An agent with a task of its own, a task beside it and one that waits for a
    place; somebody waits for all of them. All end, and it is struck once."""
    go = trio.Event()

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await context.launch(waits_for(go))
        await go.wait()
        yield FinalResult("done")

    limits = Limits(total=3)
    async with open_runtime("/tasks", env=fake_env(), limits=limits) as runtime:
        events = runtime.events.subscribe()
        tasks = [
            await runtime.launch(agent(loop)),
            await runtime.launch(waits_for(go)),
            await runtime.launch(returns("later")),
        ]
        ids = [task.id for task in tasks]
        ends = runtime.task_set(*tasks)
        await trio.testing.wait_all_tasks_blocked()
        go.set()
        sys.setprofile(blow)
        try:
            with trio.fail_after(60):
                assert sorted([end.id async for end in ends]) == sorted(ids)
                await runtime.wait_idle()
        finally:
            sys.setprofile(None)
        await trio.testing.wait_all_tasks_blocked()
        # Exactly one end, one notification, and the true status.
        seen = events.drain()
        ended = Counter(event.task_id for event in seen if isinstance(event, TaskEnded))
        missed = sum(event.missed for event in seen if isinstance(event, Gap))
        assert all(count == 1 for count in ended.values())
        assert len(ended) + missed >= 4
        told = [note.task_id for note in runtime.notifications.drain()]
        assert sorted(told) == sorted(ids)
        assert all(task.status is TaskStatus.COMPLETED for task in tasks)
        # The places were given back.
        more = [await runtime.launch(Job(forever)) for _ in range(4)]
        assert [task.status.value for task in more] == [*["running"] * 3, "pending"]


def sweep(kinds: Sequence[Callable[[], Exception]], *, deep: bool, step: int) -> int:
    """Strike every ``step``-th call, by the kinds in turn; return how many."""
    struck = 0
    while True:
        make = kinds[struck % len(kinds)]
        blow = Blow(1 + struck * step, make, deep=deep)
        clock = trio.testing.MockClock(autojump_threshold=0)
        try:
            trio.run(play, blow, clock=clock)
        except BaseException as error:
            error.add_note(f"blow number {struck} struck {blow.where}")
            raise
        if blow.where is None:
            return struck
        struck += 1


def test_no_failure_of_whoever_has_a_part_in_an_end_costs_the_end() -> None:
    """P3, P4, P10: whatever `Life.conclude` calls is struck in turn."""
    assert sweep(KINDS, deep=False, step=1) > 25


def test_no_failure_anywhere_below_the_record_of_an_end_costs_the_end() -> None:
    """P3, P4, P10: every function of ours that runs meanwhile, however deep. All of
    them are struck with a step of 1."""
    assert sweep(KINDS, deep=True, step=5) > 20


class _StoppedClock:
    """A clock that fails whenever it is asked."""

    def now(self) -> object:
        raise OSError(errno.EPERM, "no clock")


async def test_a_clock_that_fails_costs_no_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P3, P4."""
    env = fake_env()
    async with open_runtime("/tasks", env=env) as runtime:
        task = await runtime.launch(returns("x"))
        object.__setattr__(env, "clock", _StoppedClock())
        done = await task.wait()
        assert (done.status, done.ended_at) == (
            TaskStatus.COMPLETED,
            done.started_at,
        )
        late = await runtime.launch(returns("y"))
        assert (await late.wait()).status is TaskStatus.COMPLETED
        await trio.testing.wait_all_tasks_blocked()
        told = [note.task_id for note in runtime.notifications.drain()]
        assert told == [task.id, late.id]


# ---- Threads ---------------------------------------------------------------------


@contextmanager
def no_thread(
    monkeypatch: pytest.MonkeyPatch, refused: Callable[[int], bool]
) -> Generator[list[int]]:
    """The starts of threads for which ``refused`` says so fail; their numbers."""
    starts: list[int] = []
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        starts.append(len(starts) + 1)
        if refused(starts[-1]):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        # No thread that is left from before is taken.
        patch.setattr("trio._core._thread_cache.THREAD_CACHE._idle_workers", {})
        patch.setattr(threading.Thread, "start", refuse)
        yield starts


REFUSED: dict[str, Callable[[int], bool]] = {
    "all": lambda number: True,
    "first": lambda number: number == 1,
    "second": lambda number: number == 2,
    "third": lambda number: number == 3,
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
async def test_a_host_without_a_free_thread_loses_neither_task_nor_transcript(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[[int], bool]
) -> None:
    """P4, P10: neither the agents nor the shells beside them."""
    with trio.fail_after(60), no_thread(monkeypatch, refused) as starts:
        async with open_runtime(tmp_path) as runtime:
            shell = await runtime.launch(Shell("echo hello; read x", stdin="pipe"))
            one = await runtime.launch(agent(prompt="one"))
            assert (await one.wait()).result == "the answer"
            one = await runtime.resume(one.id, "and now")
            assert (await one.wait()).result == "the answer"
            await shell.write(b"\n")
            assert (await shell.wait()).result == "hello\n"
            kept = await runtime.transcripts.read_tail(one.id, 10)
            said = [getattr(message, "text", None) for message in kept]
            assert said == ["one", "the answer", "and now", "the answer"]
        assert starts
        told = [note.task_id for note in runtime.notifications.drain()]
        assert sorted(told) == sorted([one.id, one.id, shell.id])


async def test_a_thread_that_fails_again_and_again_ends_no_runtime(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P10: whatever the files of an `Env` raise there is told, and tried again."""
    env = fake_env()

    @attrs.define
    class Threadless:
        inner: object

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        async def in_thread(self, fn: object, *args: object) -> object:
            raise RuntimeError("can't start new thread")

    object.__setattr__(env, "files", Threadless(env.files))
    async with open_runtime("/tasks", env=env) as runtime:
        for number in range(30):
            task = await runtime.launch(agent(prompt=str(number)))
            assert (await task.wait()).status is TaskStatus.COMPLETED
        await trio.sleep(100)
        assert (await runtime.run(returns("x"))).status is TaskStatus.COMPLETED


# ---- The writer has ended for good -------------------------------------------------


def strike_writer(frame: FrameType, event: str, arg: object) -> None:
    if event == "call" and frame.f_code.co_qualname == "TranscriptStore.write":
        raise MemoryError


async def test_an_agent_that_ends_after_the_writer_of_transcripts_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P4: its status is true, its end is told once, its place is free."""
    go = trio.Event()

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await go.wait()
        yield FinalResult("done")

    limits = Limits(total=1)
    async with open_runtime("/tasks", env=fake_env(), limits=limits) as runtime:
        events = runtime.events.subscribe()
        task = await runtime.launch(agent(loop))
        await trio.testing.wait_all_tasks_blocked()
        # It crashes, and is ended before it is started anew.
        sys.setprofile(strike_writer)
        meta = runtime.agent_meta(task.id)
        assert meta is not None
        runtime.transcripts.write_meta(meta)
        await trio.testing.wait_all_tasks_blocked()
        sys.setprofile(None)
        await runtime.root.terminate_child("transcripts")
        go.set()
        assert (await task.wait()).status is TaskStatus.COMPLETED
        await trio.testing.wait_all_tasks_blocked()
        ends = [e.task_id for e in events.drain() if isinstance(e, TaskEnded)]
        assert ends == [task.id]
        assert [n.task_id for n in runtime.notifications.drain()] == [task.id]
        assert (await runtime.run(returns("x"))).status is TaskStatus.COMPLETED


class StruckOnce:
    """Does what ``real`` does, but fails the first time ``name`` is called and
    ``fails`` says so of its first argument."""

    def __init__(
        self, real: object, name: str, fails: Callable[[object], bool]
    ) -> None:
        self._real = real
        self._name = name
        self._fails = fails
        self.left = 1

    def __getattr__(self, name: str) -> object:
        found = getattr(self._real, name)
        if name != self._name:
            return found

        def call(first: object, *rest: object) -> object:
            if self.left and self._fails(first):
                self.left -= 1
                raise MemoryError
            return found(first, *rest)

        return call


async def test_the_notifier_is_told_of_an_end_though_it_could_not_be_at_first() -> None:
    """P4: its notification waits for no other one."""
    async with open_runtime("/tasks", env=fake_env()) as runtime:
        delivery = life_of(runtime).delivery
        struck = StruckOnce(delivery.notifier, "tell", lambda _: True)
        delivery.notifier = struck  # type: ignore[assignment]
        task = await runtime.launch(returns("done"), owner="main")
        with trio.fail_after(5):
            note = await anext(runtime.notifications_for("main"))
        assert note.task_id == task.id
        assert (struck.left, delivery.refused) == (0, 0)


async def test_a_silent_end_is_told_once_though_its_ack_could_not_be_at_first() -> None:
    """SD2, P4."""
    async with open_runtime("/tasks", env=fake_env()) as runtime:
        delivery = life_of(runtime).delivery
        events = runtime.events.subscribe()
        struck = StruckOnce(delivery._events, "emit", lambda kind: kind is Acked)
        delivery._events = struck  # type: ignore[assignment]
        task = await runtime.launch(returns("done"), notify="silent")
        await task.wait()
        told = [type(event) for event in events.drain()]
        assert struck.left == 0
        assert [told.count(kind) for kind in (Notified, Acked)] == [1, 1]
        assert delivery.outbox.unacknowledged == 0


async def test_what_an_agent_was_told_is_on_record_though_it_could_not_be_at_first() -> (
    None
):
    """P4: the next program does not tell it again."""
    env = fake_env()
    async with open_runtime("/tasks", env=env) as runtime:
        delivery = life_of(runtime).delivery
        journal = delivery._journal
        struck = StruckOnce(journal, "add", lambda it: type(it).__name__ == "Acked")
        delivery._journal = struck  # type: ignore[assignment]
        task = await runtime.launch(agent(starts(returns("own"))))
        await task.wait()
        delivery._journal = journal
        for note in runtime.notifications.drain():
            assert note.ack()
    assert struck.left == 0
    async with open_runtime("/tasks", env=env) as runtime:
        assert runtime.notifications.drain() == []
