"""Keep the conversations of agents in files, and read them back.

Each agent has a file of its own, with one line of JSON for each message. A small file
beside it says what else it takes to go on with the agent. One actor,
`transcript_writer`, writes for all agents of a directory. It writes together what has
come since its last write. Nobody who records waits for the disk. A disk that fails
stops no agent. A warning says so, and the messages are kept in memory for the next
attempt, up to a limit.

`Runtime.transcripts` is a `TranscriptStore`. What else the host of agents needs is in
`actors.transcript.hosting`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import outcome
import trio

from .._kernel.errors import ActorEnded
from .._kernel.public import publish as _publish
from .._kernel.ref import ActorRef
from ..env import Env, Files
from ..output._quota import DiskQuota

if TYPE_CHECKING:
    from ..agent import Message
    from ._log import LogJob, TranscriptLog, TranscriptQuotaExceeded
    from ._meta import AgentMeta
    from ._reading import Transcript

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "AgentMeta",
    "TranscriptQuotaExceeded",
    "TranscriptStore",
]

T = TypeVar("T")

# How long a writer that is stopped may take for what has come by then. It cannot
# leave a system call behind, so a disk that hangs takes longer.
_LAST_WRITE: Final = 5.0

# In seconds. Asking the clock for each message would cost more than its line.
_TIME_STEP: Final = 0.001

# Of all of them that are read at once.
_METAS_LIMIT: Final = 32 * 2**20
# Who reads so much need not be cancelled before the end.
_AT_ONCE: Final = 2**20
_META: Final = re.compile(r"agent-([A-Za-z0-9_-]{1,128})\.meta\.json").fullmatch
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}").fullmatch


@attrs.define(eq=False, repr=False)
class _MetaJob:
    """A meta to be written, and what came of it."""

    store: TranscriptStore
    meta: AgentMeta
    path: Path
    is_done: bool = False
    error: Exception | None = None

    def write(self, files: Files, durable: bool) -> None:
        from ._meta import encode_meta

        files.replace(self.path, encode_meta(self.meta), durable=durable)
        self.is_done = True

    def settle(self) -> None:
        self.store.settle_meta(self)


class _GivenUp(BaseException):
    """Whoever wanted what is being read has been cancelled. No error of a line."""


def _write_all(jobs: list[LogJob | _MetaJob], files: Files, durable: bool) -> None:
    for job in jobs:
        # The boundary: whatever is wrong here is reported, and stops nobody.
        try:
            job.write(files, durable)
        except Exception as error:
            job.error = error


def _nobody() -> None:
    """Nobody wants to know."""


@attrs.define(eq=False, repr=False, slots=False)
class TranscriptStore:
    """The transcripts and metas of all agents of a directory.

    In it, ``agent-ID.jsonl`` is the transcript of an agent and ``agent-ID.meta.json``
    is its meta. ``ID.output`` is a link to the transcript, for people and programs that
    look where the output of tasks is. No link is ever followed. An id has only letters,
    digits, ``-`` and ``_``. Others are refused with a ValueError.

    Args:
        directory: The directory of the files. It is there already.
        env: The seam to the world.
        on_warning: It is called with the id of an agent and a sentence when something
            could not be recorded or read.
        on_kept: It is called with the id of an agent when its newest meta is written.
        durable: Whether what was written must survive a crash of the machine, too. Then
            each write waits for the disk.
        quota: The most bytes that one transcript may have, over all runs of its agent.
            None means any number. What does not fit is not recorded.
        disk: The quota of the directory, which holds likewise.
    """

    directory: Path
    env: Env
    _on_warning: Callable[[str, str], None]
    _on_kept: Callable[[str], None] | None = attrs.field(
        default=None, kw_only=True, alias="on_kept"
    )
    _durable: bool = attrs.field(default=False, kw_only=True, alias="durable")
    quota: int | None = attrs.field(default=None, kw_only=True)
    disk: DiskQuota | None = attrs.field(default=None, kw_only=True)
    # For the logs: the bytes that wait, and whether nobody will ever write.
    waiting: int = attrs.field(default=0, init=False)
    is_stopped: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._writer: ActorRef[None] | None = None
        self._logs: dict[str, TranscriptLog] = {}
        self._metas: dict[str, AgentMeta] = {}
        """The newest ones, until they are written."""
        self._metas_warned: dict[str, set[object]] = {}
        # Of those who wait for the outcome of an attempt to write.
        self._waits: dict[trio.CancelScope, None] = {}
        # What the writer is to write next.
        self.wanted_logs: dict[str, TranscriptLog] = {}
        self._wanted_metas: dict[str, AgentMeta] = {}
        # What it was writing. What came of it was not taken to heart yet.
        self._jobs: list[LogJob | _MetaJob] = []
        self._began = 0.0
        # What `time` returns, and until when on trio's clock.
        self._time = ""
        # The clock, once there is a writer: two calls less for each message.
        self._now: Callable[[], float] = trio.current_time
        self._time_until = -math.inf
        # Files that are read leave a thread for the writer.
        self._reading = trio.CapacityLimiter(2)

    # Conversations

    def open_log(
        self,
        agent_id: str,
        *,
        cwd: str | None = None,
        session: str | None = None,
        agent_name: str | None = None,
        after: Transcript | None = None,
        on_written: Callable[[], None] = _nobody,
    ) -> TranscriptLog:
        """Return the log of an agent, to add to it. The file is not read.
        ``on_written`` is called when there is more in its file. Each record has the
        directory, the session and the name of the agent's type, if they are given.

        If ``after`` is what `load` has returned, the next record follows the last one
        that `load` has found. Otherwise it follows the last one that was appended. In a
        file of an earlier program, that is the one that `load` would find. An agent has
        one log. If that is open already, it is changed and returned.

        Raises:
            ValueError: for a bad id.
        """
        log = self._logs.get(agent_id)
        if log is None:
            from ._log import TranscriptLog

            path = self.transcript_file(agent_id)
            digits = self.env.ids.hex(20)
            name = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:]}"
            log = TranscriptLog(self, path, agent_id, name, earlier=self._size(path))
            self._logs[agent_id] = log
        log.reopen(cwd, session, agent_name, after, on_written)
        return log

    def _size(self, path: Path) -> int:
        """Return the bytes of a file that count for the quota, if there is one."""
        if self.quota is None:
            return 0
        try:
            return self.env.files.size(path) or 0
        except OSError:
            return 0  # What then fails as well is told.

    async def load(
        self, agent_id: str, *, interrupted: str | None = None
    ) -> Transcript | None:
        """Read a conversation, to go on with it. Return None if there is none.

        The conversation is the chain from the newest record that no other follows back
        to the first, or to the last compaction. A compaction counts as its summary.
        What a model would not accept is mended. Messages that say nothing are cut, and
        so are calls of tools that were never answered. With ``interrupted`` those at
        the end are not: this text is their answer. Answers follow their calls at
        once. Lines that cannot be read are skipped, and a warning says so. The file is
        read in a thread. If it has more than `READ_LIMIT` bytes, only so many are read.
        A cancelled call ends with the piece that it reads.

        Raises:
            OSError: if the file is there and cannot be read. A part of it is never
                taken for all.
            ValueError: for a bad id, and for a file in which more than that
                was said since the last compaction.
        """
        from ._reading import read_transcript

        if agent_id in self._logs:
            await self._logs[agent_id].flush()
        transcript = await self._read(read_transcript, agent_id, interrupted)
        if transcript is not None and transcript.skipped:
            self.warn(
                agent_id,
                f"{transcript.skipped} lines of the transcript could not be read",
            )
        return transcript

    async def read_tail(self, agent_id: str, count: int) -> list[Message]:
        """Return the last ``count`` messages that are in the file, as they were
        recorded. It reads no more than it needs. A cancelled call ends as with `load`.

        Raises:
            OSError: if the file is there and cannot be read.
            ValueError: for a bad id, or a count below 1.
        """
        if count < 1:
            raise ValueError(f"count must be 1 or more, not {count!r}")
        from ._reading import read_tail

        return await self._read(read_tail, agent_id, count)

    async def _read(self, fn: Callable[..., T], agent_id: str, *args: object) -> T:
        """Call ``fn`` in a thread, with what it is to call again and again and what
        ends it when the caller is cancelled. A small file is read to its end."""
        path = self.transcript_file(agent_id)
        read = partial(fn, self.env.files, path, agent_id, *args)
        if (self.env.files.size(path) or 0) <= _AT_ONCE:
            async with self._reading:
                return await self.env.files.in_thread(read)
        is_wanted = True

        def go_on() -> None:
            if not is_wanted:
                raise _GivenUp

        async def watch() -> None:
            nonlocal is_wanted
            try:
                await trio.sleep_forever()
            finally:
                is_wanted = False

        async with self._reading:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                result: outcome.Maybe[T]
                try:
                    result = await self.env.files.in_thread(
                        outcome.capture, read, go_on
                    )
                except Exception as error:
                    # There is no thread. Here it would come out in a group.
                    result = outcome.Error(error)
                nursery.cancel_scope.cancel()
            # Here it is cancelled, if it was given up.
            await trio.lowlevel.checkpoint()
        return result.unwrap()

    def transcript_file(self, agent_id: str) -> Path:
        """Return the path of an agent's transcript.

        Raises:
            ValueError: for a bad id.
        """
        return self.directory / f"agent-{_check(agent_id)}.jsonl"

    def link_output(self, agent_id: str) -> Path:
        """Make ``ID.output`` a link to the transcript, in place of what is there, and
        return the path of the link. If that fails, make it an empty file, and warn.

        Raises:
            ValueError: for a bad id.
        """
        target = self.transcript_file(agent_id).name
        path = self.directory / f"{agent_id}.output"
        try:
            self.env.files.link(path, target)
        except OSError as error:
            self.warn(agent_id, f"the output is not a link: {error}")
            try:
                self.env.files.remove(path)
                self.env.files.reserve(path)
            except OSError:
                pass  # The warning has said it.
        return path

    # Metas

    def write_meta(self, meta: AgentMeta) -> None:
        """Have ``meta`` written, with the next write. It never waits and never fails.
        If several wait, only the newest is sure to be written.

        Raises:
            ValueError: if its agent's id is bad.
        """
        self._metas[_check(meta.agent_id)] = meta
        self._wake_writer()
        self._wanted_metas[meta.agent_id] = meta

    def read_meta(self, agent_id: str) -> AgentMeta | None:
        """Return the newest meta of an agent. Return None if there is none, or if it
        makes no sense. Then a warning says so.

        Raises:
            OSError: if its file is there and cannot be read.
            ValueError: for a bad id.
        """
        unwritten = self._metas.get(_check(agent_id))
        if unwritten is not None:
            return unwritten
        return self._read_meta_file(agent_id, is_wanted=False)

    def metas(self) -> list[AgentMeta]:
        """Return the newest metas of all agents, by id. Those that cannot be read are
        left out, and a warning says so. If all together have more than 32 MiB, the
        largest are left out, too, because everybody would wait for them. A directory
        that is gone has none."""
        try:
            names = self.env.files.names(self.directory)
        except OSError as error:
            self.warn("", f"{self.directory} could not be read: {error}")
            names = []
        found = {match[1] for match in map(_META, names) if match} - self._metas.keys()
        sizes: dict[str, int] = {}
        for agent_id in sorted(found):
            try:
                sizes[agent_id] = self.env.files.size(self._meta_file(agent_id)) or 0
            except OSError as error:
                self._warn_of_meta(agent_id, error)
        from ._meta import META_LIMIT

        metas: dict[str, AgentMeta | None] = {**self._metas}
        left = _METAS_LIMIT
        # The small ones first: what somebody has planted must not keep them out.
        for agent_id in sorted(sizes, key=lambda agent_id: sizes[agent_id]):
            left -= sizes[agent_id]
            if left < 0 and sizes[agent_id] <= META_LIMIT:
                self._warn_of_meta(agent_id, "there are too many")
                continue
            try:
                metas[agent_id] = self._read_meta_file(agent_id)
            except OSError as error:
                self._warn_of_meta(agent_id, error)
        return [meta for _, meta in sorted(metas.items()) if meta is not None]

    def _read_meta_file(
        self, agent_id: str, *, is_wanted: bool = True
    ) -> AgentMeta | None:
        from ._meta import META_LIMIT, decode_meta

        path = self._meta_file(agent_id)
        # One step: what is replaced meanwhile is read as it was.
        contents, is_cut = self.env.files.read_tail(path, META_LIMIT)
        try:
            if is_cut:
                size = self.env.files.size(path) or 0
                raise ValueError(f"it has {size:,} bytes, more than {META_LIMIT:,}")
            if not contents and self.env.files.size(path) is None:
                if not is_wanted:
                    return None
                raise ValueError("it is not a file")
            meta = decode_meta(contents)
            if meta.agent_id != agent_id:
                raise ValueError(f"it is that of {meta.agent_id[:128]!r}")
        except ValueError as error:
            self._warn_of_meta(agent_id, error)
            return None
        return meta

    def _warn_of_meta(self, agent_id: str, why: object) -> None:
        path = self._meta_file(agent_id)
        self.warn(agent_id, f"{path} could not be read: {why}")

    def _meta_file(self, agent_id: str) -> Path:
        return self.directory / f"agent-{_check(agent_id)}.meta.json"

    @property
    def writing_for(self) -> float:
        """The seconds that the present write has taken so far. It is 0 if there is
        none."""
        return trio.current_time() - self._began if self._jobs else 0.0

    def keeps_meta(self, agent_id: str) -> bool:
        """Whether the newest meta of an agent is written, if there is one."""
        return agent_id not in self._metas

    async def flush_meta(self, agent_id: str) -> None:
        """Wait until the newest meta of an agent is written, or an attempt has failed
        since. A cancellation ends only the wait."""
        while agent_id in self._metas_under_way() and not self.is_stopped:
            await self.wait_settled()
        await trio.lowlevel.checkpoint()

    async def flush(self) -> None:
        """Wait until all that was taken is written, or an attempt has failed since. A
        cancellation ends only the wait.

        It needs a `transcript_writer`. Once that was stopped, it waits for nothing.
        """
        for log in list(self._logs.values()):
            await log.flush()
        self._wake_writer()
        self._wanted_metas.update(self._metas)
        while self._metas_under_way() and not self.is_stopped:
            await self.wait_settled()
        await trio.lowlevel.checkpoint()

    def _metas_under_way(self) -> set[str]:
        """Return the agents of which a meta is to be written, or being written."""
        jobs = [job for job in self._jobs if isinstance(job, _MetaJob)]
        return {*self._wanted_metas, *(job.meta.agent_id for job in jobs)}

    # For its logs

    def time(self) -> str:
        """Return the time in the form that records have, to the millisecond."""
        now = self._now()
        if now >= self._time_until:
            # It is UTC and ends with +00:00.
            told = self.env.clock.now().isoformat(timespec="microseconds")
            self._time, self._time_until = f"{told[:-6]}Z", now + _TIME_STEP
        return self._time

    def want(self, log: TranscriptLog) -> None:
        """Have ``log`` written."""
        if log.agent_id not in self.wanted_logs:
            self._wake_writer()
            self.wanted_logs[log.agent_id] = log

    def _wake_writer(self) -> None:
        # A writer that is at work looks again before it waits.
        if self._writer is None or self._jobs or self.is_wanted:
            return
        mailbox = self._writer.mailbox
        if not len(mailbox):
            try:
                mailbox.put_nowait(None)
            except ActorEnded:
                self.stop()

    async def wait_settled(self) -> None:
        """Wait until something has come of an attempt to write, or nothing ever will;
        it may return before."""
        # A scope and no nursery, which would put a cancellation into a group.
        with trio.CancelScope() as scope:
            self._waits[scope] = None
            try:
                if (writer := self._writer) is None:
                    await trio.sleep_forever()
                else:
                    # One that has crashed does not know whether another follows.
                    await writer.wait_stopped()
                    if self._writer is writer:
                        self.stop()
            finally:
                del self._waits[scope]

    def forget(self, log: TranscriptLog) -> None:
        """Note that nothing more will come from ``log``."""
        if self._logs.get(log.agent_id) is log:
            del self._logs[log.agent_id]

    def warn(self, agent_id: str, text: str) -> None:
        """Tell that something could not be recorded or read."""
        self._on_warning(agent_id, text)

    def settle_meta(self, job: _MetaJob) -> None:
        """Apply the result of ``job``. A second call does nothing."""
        agent_id = job.meta.agent_id
        if job.is_done:
            # What fails later is news.
            self._metas_warned.pop(agent_id, None)
        if job.is_done and self._metas.get(agent_id) is job.meta:
            del self._metas[agent_id]
            if self._on_kept is not None:
                self._on_kept(agent_id)
        if job.error is not None:
            cause = getattr(job.error, "errno", None) or type(job.error)
            warned = self._metas_warned.setdefault(agent_id, set())
            if cause not in warned:
                warned.add(cause)
                self.warn(agent_id, f"the meta could not be written: {job.error}")

    # For its writer

    @property
    def is_wanted(self) -> bool:
        """Whether there is something to write."""
        return bool(self.wanted_logs or self._wanted_metas)

    def begin(self, writer: ActorRef[None]) -> None:
        """Note that a writer begins, perhaps after one that has crashed. It waits at
        its mailbox when there is nothing to write."""
        self.is_stopped = False
        self._writer = writer
        self._now = trio.lowlevel.current_clock().current_time
        self._settle()
        self.waiting = sum(log.unwritten for log in self._logs.values())
        self.want_all()

    def want_all(self) -> None:
        """Have everything written that is not written yet, also what has failed."""
        for agent_id, log in self._logs.items():
            if log.lines:
                self.wanted_logs[agent_id] = log
        self._wanted_metas.update(self._metas)

    async def write(self) -> None:
        """Write what is wanted at this moment, in one thread.

        It is never interrupted. The next checkpoint meets a cancellation. What it fails
        to write stays, and is wanted again when something is added, flushed or closed.
        """
        from ._log import LogJob

        jobs: list[LogJob | _MetaJob] = [
            LogJob(log, list(log.lines), log.written)
            for log in self.wanted_logs.values()
            if log.lines
        ]
        jobs += [
            _MetaJob(self, meta, self._meta_file(meta.agent_id))
            for meta in self._wanted_metas.values()
        ]
        self._jobs = jobs
        self._began = trio.current_time()
        self.wanted_logs = {}
        self._wanted_metas = {}
        files = self.env.files
        # The boundary, likewise: without a thread, for one, nothing is written.
        try:
            await files.in_thread(_write_all, jobs, files, self._durable)
        except Exception as error:
            for job in jobs:
                if not job.is_done:
                    job.error = job.error or error
        self._settle()

    async def write_wanted(self) -> None:
        """Write until nothing is wanted."""
        while self.is_wanted:
            await self.write()
            await trio.lowlevel.checkpoint()

    async def finish(self) -> None:
        """Write what is left, for 5 seconds at most. It shields itself."""
        with trio.move_on_after(_LAST_WRITE, shield=True):
            self.want_all()
            await self.write_wanted()
        self.stop()

    def stop(self) -> None:
        """Note that the writer was stopped, so that nobody waits for it."""
        self.is_stopped = True
        self._writer = None
        self._now = trio.current_time
        self._end_waits()

    def _end_waits(self) -> None:
        for scope in self._waits:
            scope.cancel()

    def _settle(self) -> None:
        while self._jobs:
            self._jobs[-1].settle()
            self._jobs.pop()
        self._end_waits()


def _check(agent_id: str) -> str:
    if _ID(agent_id) is None:
        raise ValueError(
            "the id of an agent has 1 to 128 letters, digits, - and _ only,"
            f" not {agent_id!r}"
        )
    return agent_id


_publish(globals())

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load what is kept with the first agent: a store of none knows nothing of it."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        global AgentMeta, TranscriptQuotaExceeded
        from ._log import TranscriptQuotaExceeded
        from ._meta import AgentMeta

        _publish(globals())
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
