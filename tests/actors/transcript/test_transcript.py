"""Recording conversations: one writer, one line a message, and disks that fail."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import Context
from actors.agent import (
    AssistantMessage,
    CompactBoundary,
    FinalResult,
    Message,
    Note,
    TextDelta,
    TodoList,
    TokensUsed,
    ToolAnswer,
    ToolCompleted,
    ToolStarted,
    ToolUse,
    UserMessage,
)
from actors.env import real_env
from actors.hosting import DiskQuota, Ledger
from actors.testing import fake_env
from actors.transcript import AgentMeta, TranscriptStore
from actors.transcript import _log as _transcript_log
from actors.transcript.hosting import transcript_writer
from supervisor.tree import (
    Backoff,
    child,
    open_dynamic_supervisor,
    open_supervisor,
)
from tests.actors.transcript.transcripts import ID, recorder, rounds

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")

# ---- What is recorded -----------------------------------------------------------


async def test_each_message_is_one_line_with_the_keys_of_a_record() -> None:
    """TR1."""
    async with recorder() as r:
        await r.record(
            *rounds(1), CompactBoundary("All counted."), cwd="/srv", session="s1"
        )
        lines = r.lines()
    assert [line["type"] for line in lines] == [
        *("user", "assistant", "user", "assistant", "system"),
    ]
    parent = None
    for line in lines:
        assert line["parentUuid"] == parent
        parent = line["uuid"]
        assert (line["agentId"], line["isSidechain"]) == (ID, True)
        assert (line["cwd"], line["session"]) == ("/srv", "s1")
        assert datetime.fromisoformat(line["timestamp"]).utcoffset() == timedelta(0)
        assert line["timestamp"].endswith("Z")
    assert len({line["uuid"] for line in lines}) == 5
    assert lines[1]["message"] == {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look at 0."},
            {
                "type": "tool_use",
                "id": "t0",
                "name": "Bash",
                "input": {"command": "ls 0"},
            },
        ],
    }
    assert lines[2]["message"]["content"] == [
        {
            "type": "tool_result",
            "tool_use_id": "t0",
            "content": "0 files",
            "is_error": False,
        }
    ]
    assert (lines[4]["subtype"], lines[4]["message"]["content"]) == (
        "compact_boundary",
        "All counted.",
    )


async def test_progress_is_never_recorded() -> None:
    """TR1."""
    progress: list[Any] = [
        TextDelta("I lo"),
        ToolStarted("t", "Bash"),
        ToolCompleted("t", "Bash"),
        TokensUsed(input_tokens=5),
        Note("looking"),
        TodoList(),
        FinalResult("done"),
        "no event at all",
    ]
    async with recorder() as r:
        await r.record(*progress)
        assert r.lines() == []
        assert await r.store.load(ID) is None
        assert r.warnings == []


@pytest.mark.parametrize(
    "origin", ["prompt", "tools", "message", "notification", "reminder", "hook"]
)
async def test_who_a_message_is_from_is_restored(origin: Any) -> None:
    """TR16: a notification comes back as one, not as a person's words."""
    said = [
        UserMessage("go"),
        UserMessage("x", origin=origin, sender="a7", display="● a\n● b"),
    ]
    async with recorder() as r:
        await r.record(*said)
        assert await r.messages() == said


async def test_a_message_is_recorded_as_it_was_when_it_was_appended() -> None:
    given: dict[str, Any] = {"path": "before"}
    async with recorder() as r:
        log = r.store.open_log(ID)
        log.append(AssistantMessage("", (ToolUse("t", "Read", given),)))
        given["path"] = "after"
        await log.flush()
        assert r.lines()[0]["message"]["content"][0]["input"] == {"path": "before"}


async def test_what_json_cannot_hold_is_told_and_leaves_the_rest_in_order() -> None:
    """TR2: one message is lost, and says so in its place."""

    class Odd:
        pass

    odd = AssistantMessage("odd", (ToolUse("t", "Bash", {"x": Odd()}),))
    async with recorder() as r:
        await r.record(UserMessage("one"), odd, odd, UserMessage("two"))
        texts = [m.text for m in await r.messages()]
        assert texts[0] == "one"
        assert texts[-1] == "two"
        assert all("missing here" in text for text in texts[1:3])
        assert len(r.warnings) == 1
        assert "Odd" in r.warnings[0][1]
        transcript = await r.store.load(ID)
        assert transcript is not None
        assert transcript.missing == 2


text = st.text(
    st.characters(codec=None, categories=None), max_size=20
) | st.sampled_from(
    [
        "\0",
        "\ud800",
        "x\udfff\n",
        "\u2028\u2029\x85",
        "\n\n",
        '"}\n{"',
        "\r",
        "\x1b[31m",
    ]
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
    ),
    max_leaves=8,
)
inputs = st.dictionaries(text, json_values, max_size=3)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    said: list[Message] = [UserMessage("go")]
    for number in range(draw(st.integers(0, 4))):
        uses = tuple(
            ToolUse(f"t{number}.{i}", draw(text), draw(inputs))
            for i in range(draw(st.integers(0, 2)))
        )
        spoken = draw(text) if uses else "." + draw(text)
        raw = draw(st.none() | json_values)
        said.append(AssistantMessage(spoken, uses, raw=raw))
        if uses:
            answers = tuple(
                ToolAnswer(use.id, draw(text), draw(st.booleans())) for use in uses
            )
            said.append(UserMessage(draw(text), answers, origin="tools"))
        said += [
            UserMessage("." + draw(text), origin="message", sender=draw(text))
            for _ in range(draw(st.integers(0, 2)))
        ]
    return said


def same(messages: list[Message]) -> str:
    # Two halves of a surrogate pair come back as the character they are.
    return json.dumps([attrs.asdict(message) for message in messages], sort_keys=True)


@settings(max_examples=150, deadline=None)
@given(st.lists(conversations(), min_size=1, max_size=3))
def test_what_was_appended_is_loaded_whatever_is_in_it(
    parts: list[list[Message]],
) -> None:
    """TR1, TR3: hostile text too, and over any number of openings."""

    async def main() -> None:
        async with recorder() as r:
            for part in parts:
                await r.record(*part)
            everything = [message for part in parts for message in part]
            assert same(await r.messages()) == same(everything)
            tail = await r.store.read_tail(ID, 3)
            assert same(tail) == same(everything[-3:])
            assert r.warnings == []

    trio.run(main)


async def test_a_line_of_10_megabytes_is_a_line_like_others(tmp_path: Path) -> None:
    long = UserMessage("\0\ud800\u2028" * (10_000_000 // 18))
    async with recorder(tmp_path) as r:
        await r.record(*rounds(2), long, UserMessage("short"))
        assert await r.messages() == [*rounds(2), long, UserMessage("short")]
        assert await r.store.read_tail(ID, 2) == [long, UserMessage("short")]


# ---- The writer -----------------------------------------------------------------


@attrs.define(slots=False)
class CountingFiles:
    """Counts what is appended, and lets it wait."""

    appended: list[tuple[Path, int]] = attrs.field(factory=list)
    gate: trio.CapacityLimiter | None = None

    def __attrs_post_init__(self) -> None:
        self.real = fake_env({}).files

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def append_lines(self, path: Path, lines: bytes, *, durable: bool = False) -> None:
        self.real.append_lines(path, lines, durable=durable)
        self.appended.append((path, lines.count(b"\n")))

    async def in_thread(self, fn: Callable[..., Any], *args: Any) -> Any:
        if self.gate is None:
            return await self.real.in_thread(fn, *args)
        with trio.CancelScope(shield=True):
            async with self.gate:
                return await self.real.in_thread(fn, *args)


async def test_all_that_has_come_goes_out_in_one_write_per_file() -> None:
    """PF10: while a write is under way the next one gathers."""
    files = CountingFiles(gate=trio.CapacityLimiter(1))
    env = attrs.evolve(fake_env({}), files=files)
    async with recorder(env=env) as r:
        logs = [r.store.open_log(f"a{number}") for number in range(3)]
        assert files.gate is not None
        async with files.gate:
            for log in logs:
                for message in rounds(5):
                    log.append(message)
            await trio.testing.wait_all_tasks_blocked()
            for log in logs:
                for message in rounds(7):
                    log.append(message)
        for log in logs:
            await log.flush()
    first, second = len(rounds(5)), len(rounds(7))
    assert [count for _, count in files.appended] == [first] * 3 + [second] * 3


async def test_an_append_does_not_wait_and_a_flush_does(tmp_path: Path) -> None:
    """AG3: after the flush it is in the file, for other processes too."""
    async with recorder(tmp_path) as r:
        log = r.store.open_log(ID)
        for message in rounds(50):
            log.append(message)
        path = r.store.transcript_file(ID)
        assert not path.exists()
        await log.flush()
        assert path.read_bytes().count(b"\n") == len(rounds(50))
        await log.flush()
        assert path.read_bytes().count(b"\n") == len(rounds(50))


async def test_a_cancelled_flush_gives_up_only_the_wait(tmp_path: Path) -> None:
    """AG3, TR2."""
    async with recorder(tmp_path) as r:
        log = r.store.open_log(ID)
        log.append(UserMessage("one"))
        with trio.CancelScope() as scope:
            scope.cancel()
            await log.flush()
        assert scope.cancelled_caught
        with trio.CancelScope() as scope:
            scope.cancel()
            with trio.move_on_after(30, shield=True):
                await log.flush()
        assert [line["type"] for line in r.lines()] == ["user"]


async def test_what_has_come_by_the_stop_is_written(tmp_path: Path) -> None:
    """P2."""
    async with recorder(tmp_path) as r:
        log = r.store.open_log(ID)
        for message in rounds(20):
            log.append(message)
        r.store.write_meta(AgentMeta(agent_id=ID, run_id="r", status="running"))
    assert len(r.lines()) == len(rounds(20))
    assert (tmp_path / f"agent-{ID}.meta.json").exists()
    # And nobody waits for a writer that is no more.
    log.append(UserMessage("late"))
    with trio.fail_after(30):
        await log.flush()
        await r.store.flush()


async def test_what_the_disk_had_refused_is_written_at_the_stop() -> None:
    """P2, TR2: a writer that waits for news when it is stopped tries again."""
    env = fake_env({})
    async with recorder(env=env) as r:
        env.files.write_error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        log = r.store.open_log(ID)
        log.append(UserMessage("one"))
        await log.flush()
        assert r.lines() == []
        env.files.write_error = None
        await trio.testing.wait_all_tasks_blocked()
    assert [line["type"] for line in r.lines()] == ["user"]
    assert r.store.waiting == 0


async def test_nobody_waits_for_a_writer_that_has_failed_for_good() -> None:
    """P2: as for one that was stopped."""
    env = fake_env({})
    where = env.files.make_directory(Path("/tasks"))
    store = TranscriptStore(where, env, lambda *warning: None)

    async def fails(ctx: Context[None]) -> None:
        store.begin(ctx.ref)
        raise Crash

    with trio.fail_after(5):
        async with open_dynamic_supervisor() as pool:
            ref = await pool.start_child(child("writer", fails, restart="temporary"))
            await ref.wait_stopped()
            log = store.open_log(ID)
            log.append(UserMessage("one"))
            await log.flush()
            store.write_meta(AgentMeta(agent_id=ID, run_id="r", status="running"))
            await store.flush_meta(ID)
            await store.flush()


async def test_whoever_waits_for_a_meta_waits_for_the_write_under_way() -> None:
    """TR2: a meta too is kept only when it is written."""
    files = CountingFiles(gate=trio.CapacityLimiter(1))
    env = attrs.evolve(fake_env({}), files=files)
    async with recorder(env=env) as r:
        assert files.gate is not None
        kept: list[bool] = []

        async def wait() -> None:
            await r.store.flush_meta(ID)
            kept.append(r.store.keeps_meta(ID))

        async with trio.open_nursery() as nursery:
            async with files.gate:
                r.store.write_meta(AgentMeta(agent_id=ID, run_id="r", status="running"))
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                assert kept == []
    assert kept == [True]


class FailingOnce(CountingFiles):
    """Refuses what is appended the first time."""

    refused = False

    def append_lines(self, path: Path, lines: bytes, *, durable: bool = False) -> None:
        if not self.refused:
            self.refused = True
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        super().append_lines(path, lines, durable=durable)


async def test_a_flush_waits_for_an_attempt_with_all_that_it_wants() -> None:
    """AG3: one that was under way and fails says nothing of what came after it."""
    gate = trio.CapacityLimiter(1)
    env = attrs.evolve(fake_env({}), files=FailingOnce(gate=gate))
    seen: list[int] = []
    async with recorder(env=env) as r:
        log = r.store.open_log(ID)

        async def flush() -> None:
            await log.flush()
            seen.append(len(r.lines()))

        async with trio.open_nursery() as nursery:
            async with gate:
                log.append(UserMessage("one"))
                await trio.testing.wait_all_tasks_blocked()
                log.append(UserMessage("two"))
                nursery.start_soon(flush)
                await trio.testing.wait_all_tasks_blocked()
            async with gate:  # behind the attempt that fails
                await trio.testing.wait_all_tasks_blocked()
                assert seen == []
    assert seen == [2]


async def test_a_wait_that_is_cancelled_is_cancelled_and_not_a_group() -> None:
    """P5: whoever looks for it finds it as after any other wait."""
    seen: list[type[BaseException]] = []
    gate = trio.CapacityLimiter(1)
    env = attrs.evolve(fake_env({}), files=CountingFiles(gate=gate))
    async with recorder(env=env) as r, gate:
        log = r.store.open_log(ID)
        log.append(UserMessage("one"))
        r.store.write_meta(AgentMeta(agent_id=ID, run_id="r", status="running"))
        for wait in (log.flush, r.store.flush, partial(r.store.flush_meta, ID)):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel_when_blocked, scope)
                    try:
                        await wait()
                    except BaseException as error:
                        seen.append(type(error))
                        raise
            assert scope.cancelled_caught
    assert seen == [trio.Cancelled] * 3


async def cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def test_the_writer_is_woken_once_however_often_it_is_wanted() -> None:
    """P7: its mailbox holds no memory, whatever comes while it works."""
    async with recorder() as r:
        log = r.store.open_log(ID)
        for number in range(200):
            log.append(UserMessage(str(number)))
            await trio.lowlevel.checkpoint()
            writer = r.store._writer
            assert writer is not None
            assert len(writer.mailbox) <= 1


class Crash(Exception):
    pass


WRITER = {
    "actors.transcript.writer": {"transcript_writer"},
    "actors.transcript": {
        "begin",
        "finish",
        "want_all",
        "write_wanted",
        "write",
        "_settle",
        "settle_meta",
    },
    "actors.transcript._log": {"settle", "_advance"},
}


class CrashAt:
    """Raises in the writer, at the ``line``-th line that it comes to."""

    def __init__(self, line: int) -> None:
        self.left = line
        self.has_crashed = False

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        if code.co_name in WRITER.get(frame.f_globals.get("__name__", ""), ()):
            return self.at_line
        return None

    def at_line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and not self.has_crashed:
            self.left -= 1
            if self.left <= 0:
                self.has_crashed = True
                raise Crash(f"{frame.f_code.co_name}:{frame.f_lineno}")
        return self.at_line


async def _crashed(crash: CrashAt) -> None:
    """Record with a writer that crashes once, and find everything once."""
    env = fake_env({})
    where = env.files.make_directory(Path("/tasks"))
    disk = DiskQuota(2**15, ledger=Ledger(where, env, env.files.share(where)))
    store = TranscriptStore(where, env, lambda *warning: None, disk=disk)
    writer = child("transcripts", transcript_writer, store)
    before = sys.gettrace()
    with trio.fail_after(60):
        async with open_supervisor([writer], intensity=5):
            log = store.open_log(ID)
            sys.settrace(crash)
            try:
                for number, message in enumerate(rounds(4)):
                    log.append(message)
                    store.write_meta(
                        AgentMeta(agent_id=ID, run_id=str(number), status="running")
                    )
                    if number % 3 == 0:
                        await log.flush()
                await log.flush()
                await store.flush()
            finally:
                sys.settrace(before)
            assert store.waiting == 0
    data = env.files.contents(store.transcript_file(ID))
    uuids = [json.loads(line)["uuid"] for line in data.splitlines()]
    assert len(uuids) == len(set(uuids)) == len(rounds(4))
    transcript = await store.load(ID)
    assert transcript is not None
    assert transcript.messages == rounds(4)
    meta = store.read_meta(ID)
    assert meta is not None
    assert meta.run_id == str(len(rounds(4)) - 1)
    # What was written is told once, or it is kept from the others.
    disk.look()
    assert disk.used >= sum(it.size for it in env.files.entries(where))


async def test_a_crash_at_any_line_loses_and_repeats_nothing() -> None:
    """P4's way of writing, for transcripts: the queue is not the writer's."""
    line = 0
    for line in range(1, 1000):
        crash = CrashAt(line)
        await _crashed(crash)
        if not crash.has_crashed:
            break
    assert 60 < line < 1000


async def _flush_store(store: TranscriptStore) -> None:
    await store.flush()


async def _flush_log(store: TranscriptStore) -> None:
    await store.open_log(ID).flush()


async def _flush_meta(store: TranscriptStore) -> None:
    await store.flush_meta(ID)


@attrs.frozen
class GoneWriter:
    """A store, the writer of which crashes once a meta is kept."""

    store: TranscriptStore

    @classmethod
    def make(cls) -> GoneWriter:
        def crash(agent_id: str) -> None:
            raise Crash

        env = fake_env({})
        directory = env.files.make_directory(Path("/tasks"))
        return cls(TranscriptStore(directory, env, lambda *_: None, on_kept=crash))

    @asynccontextmanager
    async def crashed(self, **options: Any) -> AsyncGenerator[None]:
        """Have a writer that has crashed and, with ``backoff``, will be back."""
        writer = child("transcripts", transcript_writer, self.store, **options)
        async with open_supervisor([writer]):
            self.write_meta("1")
            await trio.sleep(1)
            yield

    def write_meta(self, run_id: str) -> None:
        meta = AgentMeta(agent_id=ID, run_id=run_id, status="running")
        self.store.write_meta(meta)

    def add(self) -> None:
        self.store.open_log(ID).append(UserMessage("late"))
        self.write_meta("2")


LONG = Backoff(40, 40)


@pytest.mark.parametrize("flush", [_flush_store, _flush_log, _flush_meta])
@pytest.mark.parametrize("options", [{"restart": "temporary"}, {"backoff": LONG}])
@pytest.mark.parametrize("in_time", [False, True])
async def test_nobody_waits_for_a_writer_that_has_crashed_for_good(
    autojump_clock: trio.testing.MockClock,
    flush: Callable[[TranscriptStore], Awaitable[None]],
    options: dict[str, Any],
    in_time: bool,
) -> None:
    """Whether something came before it was left or after, and whatever it was doing."""
    gone = GoneWriter.make()
    async with gone.crashed(**options):
        if in_time:
            gone.add()
    if not in_time:
        gone.add()
    with trio.fail_after(10):
        await flush(gone.store)
    assert gone.store.is_stopped


@pytest.mark.parametrize("flush", [_flush_store, _flush_log, _flush_meta])
async def test_a_wait_ends_when_the_writer_does_not_come_back(
    autojump_clock: trio.testing.MockClock,
    flush: Callable[[TranscriptStore], Awaitable[None]],
) -> None:
    """Its supervisor is left while it waits to be restarted."""
    gone = GoneWriter.make()
    with trio.fail_after(50):
        async with trio.open_nursery() as nursery:
            async with gone.crashed(backoff=LONG):
                gone.add()
                nursery.start_soon(flush, gone.store)
                await trio.sleep(10)
                assert not gone.store.is_stopped
                assert len(nursery.child_tasks) == 1
    assert gone.store.is_stopped


async def test_what_waits_for_a_writer_that_comes_back_is_written(
    autojump_clock: trio.testing.MockClock,
) -> None:
    gone = GoneWriter.make()
    async with gone.crashed(backoff=LONG):
        gone.store.open_log(ID).append(UserMessage("late"))
        with trio.fail_after(50):
            await _flush_log(gone.store)
        assert (await gone.store.read_tail(ID, 1)) == [UserMessage("late")]
        assert not gone.store.is_stopped


# ---- Disks that fail --------------------------------------------------------------


def planted_link(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes(b"not ours\n")
    path.symlink_to(path.parent / "elsewhere")


def planted_fifo(path: Path) -> None:
    os.mkfifo(path)


def planted_directory(path: Path) -> None:
    path.mkdir()


@posix
@pytest.mark.parametrize("plant", [planted_link, planted_fifo, planted_directory])
async def test_what_is_planted_in_its_place_is_not_written_to_and_told_once(
    tmp_path: Path, plant: Callable[[Path], None]
) -> None:
    """TR2, OF4, OF16: and once it is gone, everything is written after all."""
    async with recorder(tmp_path) as r:
        path = r.store.transcript_file(ID)
        plant(path)
        log = r.store.open_log(ID)
        for message in rounds(2):
            log.append(message)
            await log.flush()
        assert await r.store.load(ID) is None
        assert await r.store.read_tail(ID, 5) == []
        assert len(r.warnings) == 1
        agent_id, told = r.warnings[0]
        assert agent_id == ID
        assert str(path) in told
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        log.append(UserMessage("And now?"))
        await log.flush()
        assert await r.messages() == [*rounds(2), UserMessage("And now?")]
        assert len(r.warnings) == 1
    if plant is planted_link:
        assert (tmp_path / "elsewhere").read_bytes() == b"not ours\n"


@posix
async def test_a_directory_that_was_removed_stops_nobody(tmp_path: Path) -> None:
    """TR2."""
    there = tmp_path / "there"
    async with recorder(there) as r:
        log = r.store.open_log(ID)
        log.append(UserMessage("one"))
        await log.flush()
        r.store.transcript_file(ID).unlink()
        there.rmdir()
        log.append(UserMessage("two"))
        await log.flush()
        there.mkdir()
        log.append(UserMessage("three"))
        await log.flush()
        transcript = await r.store.load(ID)
        assert transcript is not None
        # What was in the file is gone with it, and that is said.
        assert transcript.missing == 1
        first, *others = await r.messages()
        assert "missing here" in first.text
        assert [m.text for m in others] == ["two", "three"]
        assert len(r.warnings) == 1


@posix
@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may")
async def test_a_directory_that_is_read_only_stops_nobody(tmp_path: Path) -> None:
    """TR2."""
    async with recorder(tmp_path) as r:
        log = r.store.open_log(ID)
        os.chmod(tmp_path, 0o500)
        try:
            log.append(UserMessage("one"))
            await log.flush()
        finally:
            os.chmod(tmp_path, 0o700)
        assert len(r.warnings) == 1
        log.append(UserMessage("two"))
        await log.flush()
        assert [m.text for m in await r.messages()] == ["one", "two"]


@posix
async def test_a_disk_that_was_full_has_everything_when_there_is_room_again(
    tmp_path: Path,
) -> None:
    """TR2: a real limit, in a process of its own."""
    program = """
import resource, signal, sys, trio
from pathlib import Path
sys.path.insert(0, "")
from tests.actors.transcript.transcripts import ID, recorder, rounds
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
async def main():
    async with recorder(Path(sys.argv[1])) as r:
        log = r.store.open_log(ID)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2500, resource.RLIM_INFINITY))
        for message in rounds(30):
            log.append(message)
            await log.flush()
        size = r.store.transcript_file(ID).stat().st_size
        print(len(r.warnings), 0 < size <= 2500, len(r.lines()) < 30)
        top = resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (top, top))
        await log.flush()
        print(await r.messages() == rounds(30), len(r.warnings))
trio.run(main)
"""
    with trio.fail_after(60):
        done = await trio.run_process(
            [sys.executable, "-c", program, str(tmp_path)],
            capture_stdout=True,
            cwd=Path(__file__).parents[3],
        )
    assert done.stdout.decode().splitlines() == ["1 True True", "True 1"]


async def test_what_is_refused_or_given_up_never_counts_as_written() -> None:
    """Also when a later run has written behind it."""
    env = fake_env({})
    async with recorder(env=env) as r:
        log = r.store.open_log(ID)
        log.append(UserMessage("first"))
        first = log.last_said
        log.append(AssistantMessage("", (ToolUse("t", "Bash", {"x": object()}),)))
        assert log.last_said == first < log.appended
        await log.flush()
        env.files.write_error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        log.append(UserMessage("given up"))
        second = log.last_said
        log.close()
        await log.flush()
        env.files.write_error = None
        log.reopen(None, None, None, None, lambda: None)
        log.append(UserMessage("later"))
        third = log.last_said
        assert not log.has_written(third)
        await log.flush()
        assert first < second < third
        found = [log.has_written(it) for it in (first, second, third)]
        assert found == [True, False, True]


async def test_more_than_may_wait_is_dropped_told_and_marked_in_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TR2, P7: memory is bounded while the disk fails, and then it goes on."""
    monkeypatch.setattr(_transcript_log, "LOG_LIMIT", 3000)
    env = fake_env({})
    async with recorder(env=env) as r:
        log = r.store.open_log(ID)
        other = r.store.open_log("other")
        log.append(UserMessage("first"))
        await log.flush()
        env.files.write_error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for number in range(100):
            log.append(UserMessage(f"{number}: " + "x" * 100))
            await log.flush()
        assert log.unwritten < 3000 + 400
        other.append(UserMessage("of another"))
        env.files.write_error = None
        await log.flush()
        await other.flush()
        log.append(UserMessage("last"))
        await log.flush()
        transcript = await r.store.load(ID)
        assert transcript is not None
        told = [getattr(message, "text", "") for message in transcript.messages]
        kept = len(told) - 3
        assert 5 < kept < 30
        assert told[0] == "first"
        assert [each.partition(":")[0] for each in told[1 : kept + 1]] == [
            str(number) for number in range(kept)
        ]
        assert told[-2] == (
            f"[{100 - kept} messages are missing here: what was said could not be"
            " recorded.]"
        )
        assert told[-1] == "last"
        assert transcript.missing == 100 - kept
        assert [m.text for m in await r.messages("other")] == ["of another"]
        mine = [told for agent_id, told in r.warnings if agent_id == ID]
        assert len(mine) == 2  # the disk is full, and this is dropped


@pytest.mark.parametrize("closes", [False, True])
async def test_who_has_to_wait_for_others_alone_goes_on_when_the_disk_does(
    monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """TR2, P7: what is dropped for the sake of all agents is dropped only as long as
    all of them wait, told in its place, and leaves no log behind."""
    monkeypatch.setattr(_transcript_log, "STORE_LIMIT", 1000)
    env = fake_env({})
    async with recorder(env=env) as r:
        log, other = r.store.open_log(ID), r.store.open_log("other")
        env.files.write_error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        other.append(UserMessage("x" * 2000))
        await other.flush()
        log.append(UserMessage("dropped"))
        env.files.write_error = None
        await r.store.flush()
        assert r.store.waiting == 0
        if closes:
            log.close()
            log = r.store.open_log(ID)
        log.append(UserMessage("kept"))
        await log.flush()
        transcript = await r.store.load(ID)
        assert transcript is not None
        assert transcript.missing == 1
        assert [getattr(it, "text", "") for it in transcript.messages][-1] == "kept"
        log.close()
        await r.store.flush()
        assert list(r.store._logs) == ["other"]


async def test_one_message_may_wait_however_large_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_transcript_log, "LOG_LIMIT", 3000)
    async with recorder() as r:
        await r.record(UserMessage("x" * 10_000))
        assert [len(m.text) for m in await r.messages()] == [10_000]
        assert r.warnings == []


async def test_what_cannot_be_written_at_the_end_is_given_up_and_told() -> None:
    """TR2, P7: a log that is closed holds no memory."""
    env = fake_env({})
    async with recorder(env=env) as r:
        env.files.write_error = OSError(errno.EIO, os.strerror(errno.EIO))
        log = r.store.open_log(ID)
        for message in rounds(2):
            log.append(message)
        log.close()
        await log.flush()
        assert log.unwritten == r.store.waiting == 0
        failed, lost = [told for _, told in r.warnings]
        assert failed.startswith("the transcript could not be written: [Errno 5]")
        assert lost == "6 messages at the end could not be recorded"
        env.files.write_error = None
        log.append(UserMessage("late"))
        assert "after the end" in r.warnings[-1][1]
        # A later run begins anew.
        await r.record(UserMessage("again"))
        assert [m.text for m in await r.messages()] == ["again"]


async def test_a_slow_disk_holds_up_no_agent_and_no_other_task(tmp_path: Path) -> None:
    """P6: the file is a real one, and its writes wait for this test."""
    go = threading.Event()

    env = real_env()
    append_lines = env.files.append_lines

    def append_slowly(path: Path, lines: bytes, **options: Any) -> None:
        assert go.wait(60)
        append_lines(path, lines, **options)

    env.files.append_lines = append_slowly
    async with recorder(tmp_path, env) as r:
        log = r.store.open_log(ID)
        for number in range(1000):
            log.append(UserMessage(str(number)))
            await trio.lowlevel.checkpoint()
        assert r.lines() == []
        go.set()
        await log.flush()
        assert [m.text for m in await r.messages()] == [str(n) for n in range(1000)]


# ---- Going on with a file ----------------------------------------------------------


async def test_a_second_program_goes_on_in_the_same_file(tmp_path: Path) -> None:
    """TR14: after the last record that takes part."""
    unanswered = AssistantMessage("Let me", (ToolUse("t9", "Bash", {}),))
    async with recorder(tmp_path) as r:
        await r.record(*rounds(1), unanswered)
        stable = r.lines()[-2]["uuid"]
    async with recorder(tmp_path) as r:
        await r.record(UserMessage("Go on.", origin="message"))
        await r.record(AssistantMessage("Yes."))
        lines = r.lines()
        assert [line["parentUuid"] for line in lines[-2:]] == [
            stable,
            lines[-2]["uuid"],
        ]
        assert await r.messages() == [
            *rounds(1),
            UserMessage("Go on.", origin="message"),
            AssistantMessage("Yes."),
        ]


@pytest.mark.parametrize("given", [True, False])
async def test_the_newest_branch_counts_even_if_the_clock_went_back(
    given: bool,
) -> None:
    """TR3, TR14."""
    env = fake_env({})
    unanswered = AssistantMessage("Let me", (ToolUse("t9", "Bash", {}),))
    async with recorder(env=env) as r:
        await r.record(*rounds(1), unanswered)

    class Earlier:
        def now(self) -> datetime:
            return datetime(1999, 1, 1, tzinfo=UTC)

    async with recorder(env=attrs.evolve(env, clock=Earlier())) as r:
        after = await r.store.load(ID) if given else None
        await r.record(UserMessage("Go on."), after=after)
        assert (await r.messages())[-1] == UserMessage("Go on.")


class Hands:
    """A clock that is set by hand."""

    hour = 1

    def now(self) -> datetime:
        return datetime(2026, 1, 1, self.hour, tzinfo=UTC)


async def test_a_log_that_is_sent_back_is_the_newest_branch_whatever_the_clock(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """TR3, TR14: also where what it leaves behind is written with it."""
    hands, files = Hands(), CountingFiles(gate=trio.CapacityLimiter(1))
    env = attrs.evolve(fake_env({}), files=files, clock=hands)
    async with recorder(env=env) as r:
        log = r.store.open_log(ID)
        log.append(UserMessage("one"))
        await log.flush()
        after = await r.store.load(ID)
        assert files.gate is not None
        async with files.gate:
            log.append(UserMessage("two"))
            await trio.testing.wait_all_tasks_blocked()
            for hands.hour in (3, 2):
                await trio.sleep(1)
                if hands.hour == 2:
                    log = r.store.open_log(ID, after=after)
                log.append(UserMessage(f"at {hands.hour}"))
        await log.flush()
        assert [m.text for m in await r.messages()] == ["one", "at 2"]


async def test_a_log_can_be_sent_back_to_where_a_load_ended() -> None:
    """TR14: within one program, too."""
    unanswered = AssistantMessage("Let me", (ToolUse("t9", "Bash", {}),))
    async with recorder() as r:
        log = r.store.open_log(ID)
        for message in (*rounds(1), unanswered):
            log.append(message)
        transcript = await r.store.load(ID)
        assert transcript is not None
        assert transcript.messages == rounds(1)
        again = r.store.open_log(ID, cwd="/new", after=transcript)
        assert again is log
        again.append(UserMessage("Go on."))
        await again.flush()
        assert r.lines()[-1]["parentUuid"] == transcript.leaf
        assert r.lines()[-1]["cwd"] == "/new"
        assert await r.messages() == [*rounds(1), UserMessage("Go on.")]


async def test_any_number_of_agents_are_recorded_apart(tmp_path: Path) -> None:
    async with recorder(tmp_path) as r:

        async def agent(number: int) -> None:
            agent_id = f"a{number}"
            log = r.store.open_log(agent_id)
            for message in rounds(number % 5):
                log.append(message)
                if number % 2:
                    await log.flush()
            log.close()

        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(agent, number)
        await r.store.flush()
        for number in range(60):
            assert await r.messages(f"a{number}") == rounds(number % 5)


async def test_a_durable_store_writes_the_same(tmp_path: Path) -> None:
    async with recorder(tmp_path, durable=True) as r:
        await r.record(*rounds(3))
        assert await r.messages() == rounds(3)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_nothing_stays_open(tmp_path: Path) -> None:
    """P1."""
    async with recorder(tmp_path) as r:
        await r.record(*rounds(1))
        before = open_files()
        for number in range(20):
            await r.record(*rounds(1), agent_id=f"a{number}")
        assert open_files() <= before
        assert r.store.waiting == 0
