"""What pure trio can do: the smallest programs that keep the promises of a runtime.

A `Limit` runs works as tasks, each in a scope of its own, records the end of each in one
step that no interrupt strikes, whatever ends it, puts its envelope into an outbox before
anybody who waits is woken, and keeps it there until it is acknowledged; one who reads its
events is told of six for each task, as a runtime tells them. No text of a task can make
an envelope that is not XML, and a launch and a read can be cancelled.

It leaves out: that others run in between, where a call need not wait; the journal; caps,
and the queue of those that wait for a place; owners and their views, and the count of
what is left of an owner's; agents, and tasks below tasks; restarts, and the tree in which
one can look; deadlines and time for the end; the output of commands; mailboxes; what a
work calls itself; texts that are bounded, and what deceives a terminal; the refusal of a
launch when too many ends are not acknowledged; a second reader; an interrupt before the
first line of a task; failures of the envelope itself, of a clock or a reader, and memory
that runs out; events that a slow reader misses; what is known of a task after its end;
checks of what it is called with. So the true limit lies a little higher.
"""

from __future__ import annotations

import gc
import os
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import time
from xml.sax.saxutils import escape

import trio
from trio.lowlevel import checkpoint_if_cancelled, enable_ki_protection

_IDS_AT_ONCE = 128
_BATCH = 64


class Told:
    """One event."""

    __slots__ = ("at", "kind", "number", "source", "task_id", "value")

    def __init__(
        self, number: int, at: float, source: str, kind: str, task_id: str, value: str
    ) -> None:
        self.number = number
        self.at = at
        self.source = source
        self.kind = kind
        self.task_id = task_id
        self.value = value


class Note:
    """The end of a task on its way to whoever acknowledges it."""

    __slots__ = ("id", "limit", "task", "xml")

    def __init__(self, limit: Limit, id: str, task: Task) -> None:
        self.limit = limit
        self.id = id
        self.task = task
        self.xml = ""

    @enable_ki_protection
    def ack(self) -> None:
        """Say that its reader has it."""
        if self.limit.unread.pop(self.id, None) is not None:
            self.limit.tell("acked", self.task.id, self.id)


class Task:
    """The record of one task."""

    __slots__ = ("began", "ended", "id", "result", "run_id", "scope", "status", "woken")

    def __init__(self, id: str, run_id: str) -> None:
        self.id = id
        self.run_id = run_id
        self.scope = trio.CancelScope()
        self.status = "running"
        self.began = time()
        self.ended = 0.0
        self.result = ""
        self.woken: trio.Event | None = None

    async def wait(self) -> str:
        """Wait for its end, and return how it has ended."""
        if self.status == "running":
            if self.woken is None:
                self.woken = trio.Event()
            await self.woken.wait()
        return self.status


class Limit:
    """Runs works, and tells of their ends."""

    def __init__(self) -> None:
        self.live: dict[str, Task] = {}
        self.unread: dict[str, Note] = {}
        self._nursery: trio.Nursery
        self._ids: list[str] = []
        self._runs = 0
        self._notes = 0
        self._events = 0
        self._reading: deque[Told] = deque()
        self._read = trio.Event()
        self._ended: deque[Note] = deque()
        self._news = trio.Event()
        self._ready: deque[Note] = deque()
        self._came = trio.Event()

    def tell(self, kind: str, task_id: str, value: str) -> None:
        """Tell an event to the one who reads them."""
        self._events += 1
        self._reading.append(Told(self._events, time(), "limit", kind, task_id, value))
        self._read.set()

    def _new_id(self) -> str:
        if not self._ids:
            read = os.urandom(4 * _IDS_AT_ONCE).hex()
            self._ids = [read[at : at + 8] for at in range(0, len(read), 8)]
        return self._ids.pop()

    async def launch(self, work: Callable[[], Awaitable[str]]) -> Task:
        """Start a task."""
        await checkpoint_if_cancelled()
        return self._launch(work)

    @enable_ki_protection
    def _launch(self, work: Callable[[], Awaitable[str]]) -> Task:
        id = self._new_id()
        while id in self.live:
            id = self._new_id()
        self._runs += 1
        task = self.live[id] = Task(id, f"{id}-{self._runs:06}")
        self._nursery.start_soon(self._run, task, work, name=id)
        self.tell("child started", id, task.run_id)
        self.tell("started", id, task.run_id)
        return task

    async def _run(self, task: Task, work: Callable[[], Awaitable[str]]) -> None:
        status = "killed"
        try:
            with task.scope:
                try:
                    task.result = await work()
                    status = "completed"
                except Exception as error:
                    status, task.result = "failed", repr(error)
        finally:
            self._settle(task, status)

    @enable_ki_protection
    def _settle(self, task: Task, status: str) -> None:
        if task.status != "running":
            return
        task.status = status
        task.ended = time()
        del self.live[task.id]
        self._notes += 1
        note = Note(self, f"n{self._notes:06}", task)
        self.unread[note.id] = note
        self._ended.append(note)
        self._news.set()
        self.tell("ended", task.id, status)
        self.tell("notified", task.id, note.id)
        self.tell("child ended", task.id, status)
        if task.woken is not None:
            task.woken.set()

    async def _notify(self) -> None:
        while True:
            await self._news.wait()
            self._news = trio.Event()
            while self._ended:
                note = self._ended.popleft()
                note.xml = _envelope(note, len(self.live))
                self._ready.append(note)
            self._came.set()

    def __aiter__(self) -> Limit:
        return self

    @enable_ki_protection
    async def __anext__(self) -> Note:
        await checkpoint_if_cancelled()
        while not self._ready:
            self._came = trio.Event()
            await self._came.wait()
        return self._ready.popleft()

    async def _take_events(self) -> None:
        while True:
            await self._read.wait()
            self._read = trio.Event()
            while self._reading:
                self._reading.popleft()

    async def stop_all(self) -> None:
        """End all tasks, a batch after the other, and wait for their ends."""
        tasks = [*self.live.values()]
        is_on = gc.isenabled()
        gc.disable()
        try:
            for at in range(0, len(tasks), _BATCH):
                batch = tasks[at : at + _BATCH]
                for task in batch:
                    self.tell("stopping", task.id, "")
                    task.scope.cancel()
                for task in batch:
                    await task.wait()
        finally:
            if is_on:
                gc.enable()

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Limit, None]:
        """Be open in a block. What still runs is ended with it."""
        async with trio.open_nursery() as service:
            service.start_soon(self._notify)
            service.start_soon(self._take_events)
            async with trio.open_nursery() as self._nursery:
                yield self
                await self.stop_all()
            service.cancel_scope.cancel()


_PLAIN = bytes((*b"\t\n", *range(32, 127)))
_FORBIDDEN = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def _clean(text: str) -> str:
    # Less than a runtime takes out.
    if text.encode("utf-8", "surrogatepass").translate(None, _PLAIN):
        text = _FORBIDDEN.sub("", text)
    return escape(text)


def _envelope(note: Note, remaining: int) -> str:
    task = note.task
    summary = _clean(f'Work "a benchmark" {task.status}')
    return f"""\
<task-notification>
<notification-id>{note.id}</notification-id>
<task-id>{task.id}</task-id>
<run-id>{task.run_id}</run-id>
<task-type>local_work</task-type>
<status>{task.status}</status>
<summary>{summary}</summary>
<result>{_clean(task.result)}</result>
<usage>
<duration-ms>{round((task.ended - task.began) * 1e3)}</duration-ms>
</usage>
<remaining>{remaining}</remaining>
<all-terminal>{"true" if remaining == 0 else "false"}</all-terminal>
</task-notification>"""
