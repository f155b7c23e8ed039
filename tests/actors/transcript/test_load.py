"""Reading conversations back: chains, torn files, and what a model accepts."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.agent import (
    AssistantMessage,
    CompactBoundary,
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from actors.env import real_env
from actors.testing import fake_env
from actors.transcript import _reading as _transcript_reading
from actors.transcript.hosting import Transcript
from tests.actors.transcript.transcripts import ID, Recorder, recorder, rounds

# ---- A file that somebody else wrote ------------------------------------------------


def record(uuid: str, parent: str | None, text: str, **fields: Any) -> dict[str, Any]:
    """Return a record of the seed's form, with its keys in its order."""
    return {
        "type": "user",
        "message": {"role": "user", "content": text},
        "uuid": uuid,
        "parentUuid": parent,
        "agentId": ID,
        "isSidechain": True,
        "timestamp": f"2026-11-22T10:00:{len(uuid):02}.000Z",
        **fields,
    }


def write(r: Recorder, *lines: dict[str, Any] | bytes, end: bytes = b"\n") -> None:
    data = b"\n".join(
        line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines
    )
    r.env.files.replace(r.store.transcript_file(ID), data + end)


async def loaded(r: Recorder, *lines: dict[str, Any] | bytes) -> list[str] | None:
    write(r, *lines)
    transcript = await r.store.load(ID)
    if transcript is None:
        return None
    assert all(
        isinstance(m, UserMessage | AssistantMessage) for m in transcript.messages
    )
    return [getattr(message, "text", "") for message in transcript.messages]


async def test_no_file_and_no_record_of_the_agent_are_no_conversation() -> None:
    """TR3."""
    async with recorder() as r:
        assert await r.store.load(ID) is None
        assert await r.store.read_tail(ID, 5) == []
        assert await loaded(r) is None
        assert await loaded(r, record("u", None, "x", agentId="other")) is None
        assert await loaded(r, record("u", None, "x", isSidechain=False)) is None
        assert r.warnings == []
        assert await loaded(r, b"no json") is None


async def test_the_newest_leaf_counts_and_its_chain_to_the_root() -> None:
    """TR3: by its time, wherever in the file it is; children without are passed."""
    async with recorder() as r:
        lines = [
            record("a", None, "root"),
            record("b", "a", "the other branch", timestamp="2026-11-22T10:00:05.000Z"),
            record("c", "a", "this branch", timestamp="2026-11-22T10:00:07.000Z"),
            record("d", "c", "its end", timestamp="2026-11-22T10:00:09.000Z"),
            record("e", "b", "the other end", timestamp="2026-11-22T10:00:08.000Z"),
        ]
        assert await loaded(r, *lines) == ["root", "this branch", "its end"]
        assert await loaded(r, *lines[::-1]) == ["root", "this branch", "its end"]
        # Of the same time, what was written later.
        for line in lines:
            line["timestamp"] = "2026-11-22T10:00:00.000Z"
        assert await loaded(r, *lines) == ["root", "the other branch", "the other end"]


async def test_a_chain_may_lead_through_records_of_others() -> None:
    """TR3: it is filtered to the agent afterwards."""
    async with recorder() as r:
        assert await loaded(
            r,
            record("a", None, "root"),
            record("b", "a", "not mine", agentId="other"),
            record("c", "b", "mine"),
            record("d", "b", "newer, not mine", agentId="other", timestamp="3026"),
        ) == ["root", "mine"]


@pytest.mark.parametrize("size", [1, 2, 5])
async def test_a_circle_ends_the_chain(size: int) -> None:
    """TR4."""
    async with recorder() as r:
        with trio.fail_after(30):
            said = await loaded(
                r,
                *(
                    record("u" * (n + 1), "u" * ((n - 1) % size + 1), str(n))
                    for n in range(size)
                ),
            )
            assert said is not None
            assert len(said) == size
            # And one that a chain leads into.
            last = record("leaf", "u", "leaf", timestamp="3026")
            circle = [
                record("u" * (n + 1), "u" * ((n - 1) % size + 1), str(n))
                for n in range(size)
            ]
            said = await loaded(r, *circle, last)
            assert said is not None
            assert said[-1] == "leaf"
            assert len(said) == size + 1
            tail = await r.store.read_tail(ID, 100)
            assert len(tail) == size + 1


async def test_unreadable_lines_are_skipped_counted_and_told() -> None:
    """TR3: and what they break is bridged, and says so."""
    async with recorder() as r:
        said = await loaded(
            r,
            record("a", None, "one"),
            b"{",
            b"\xff\xfe",
            b"[]",
            b"",
            b"  ",
            b'{"uuid": 5}',
            b'{"type":"user","uuid":"x","timestamp":"","message":{"content":[5]}}',
            record("c", "lost", "three"),
            record("d", "c", "four"),
        )
        assert said is not None
        assert said[0] == "one"
        assert "missing here" in said[1]
        assert said[2:] == ["three", "four"]
        transcript = await r.store.load(ID)
        assert transcript is not None
        assert (transcript.skipped, transcript.missing) == (5, 1)
        assert r.warnings[-1] == (ID, "5 lines of the transcript could not be read")


async def test_the_blocks_of_other_programs_are_understood() -> None:
    """TR3: texts as lists, answers as blocks, types that we do not have."""
    async with recorder() as r:
        await loaded(
            r,
            record("a", None, "go"),
            record("b", "a", "", type="progress", message={"x": 1}),
            record(
                *("c", "b", ""),
                type="assistant",
                message={
                    "content": [
                        {"type": "thinking", "thinking": "hm"},
                        {"type": "text", "text": "I "},
                        {"type": "text", "text": "look"},
                        {"type": "tool_use", "id": "t", "name": "Bash", "input": {}},
                    ]
                },
            ),
            record(
                *("d", "c", ""),
                message={
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t",
                            "content": [{"type": "text", "text": "done"}],
                        }
                    ]
                },
            ),
            record("e", "d", "x", origin="of a later version"),
        )
        assert await r.messages() == [
            UserMessage("go"),
            AssistantMessage("I look", (ToolUse("t", "Bash", {}),)),
            UserMessage(tool_answers=(ToolAnswer("t", "done"),), origin="tools"),
            UserMessage("x", origin="message"),
        ]


async def test_a_compaction_replaces_what_is_before_it() -> None:
    """TR3: the summary is then the first message, and the last one counts."""
    async with recorder() as r:
        await r.record(
            *rounds(3), CompactBoundary("first"), *rounds(1), CompactBoundary("second")
        )
        assert await r.messages() == [UserMessage("second", origin="summary")]
        await r.record(AssistantMessage("I go on."))
        await r.record(UserMessage("Yes."))
        assert await r.messages() == [
            UserMessage("second", origin="summary"),
            AssistantMessage("I go on."),
            UserMessage("Yes."),
        ]
        assert len(r.lines()) == len(rounds(3)) + len(rounds(1)) + 4


# ---- Files that were cut -----------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_file_cut_anywhere_is_read_up_to_there_and_continued(
    data: st.DataObject,
) -> None:
    """TR3, TR14: after a crash in the middle of a write."""
    conversation = [*rounds(2), UserMessage("ä€😀\u2028" * 3), *rounds(1)]

    async def main() -> None:
        env = fake_env({})
        async with recorder(env=env) as r:
            await r.record(*conversation)
            path = r.store.transcript_file(ID)
            whole = env.files.contents(path)
            cut = data.draw(st.integers(0, len(whole)))
            env.files.replace(path, whole[:cut])
            # A line is there without its newline, too.
            lines = whole[: cut + 1].count(b"\n")
            torn = cut > 0 and whole[cut - 1 : cut + 1].count(b"\n") == 0
            transcript = await r.store.load(ID)
            # A call is answered in the next line, and is nothing without it.
            expected = conversation[:lines]
            if expected and getattr(expected[-1], "tool_uses", ()):
                del expected[-1]
            if transcript is None:
                assert lines == 0
            else:
                assert transcript.messages == expected
                assert transcript.skipped == int(torn)
            await r.record(UserMessage("Go on."), AssistantMessage("Yes."))
            assert await r.messages() == [
                *expected,
                UserMessage("Go on."),
                AssistantMessage("Yes."),
            ]
            assert env.files.contents(path).startswith(whole[:cut])

    trio.run(main)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=5))
def test_bytes_that_went_bad_break_nothing_else(bad: list[tuple[int, int]]) -> None:
    """TR3: it loads, tells what it skipped, and what follows is kept."""

    async def main() -> None:
        env = fake_env({})
        async with recorder(env=env) as r:
            await r.record(*rounds(3), UserMessage("end"))
            path = r.store.transcript_file(ID)
            whole = bytearray(env.files.contents(path))
            last = whole.rfind(b"\n", 0, -1)
            # Which end is the newest only its time can tell.
            times = {
                at
                for found in re.finditer(rb"[0-9:T.-]{26}Z", whole)
                for at in range(*found.span())
            }
            for at, value in bad:
                if at % last not in times:
                    whole[at % last] = value
            env.files.replace(path, bytes(whole))
            transcript = await r.store.load(ID)
            assert transcript is not None
            assert transcript.messages[-1] == UserMessage("end")
            await r.store.read_tail(ID, 3)
            await r.record(AssistantMessage("More."))
            assert (await r.messages())[-1] == AssistantMessage("More.")

    trio.run(main)


async def test_a_line_that_only_begins_well_is_found_out() -> None:
    """TR3: the quick look at a line is followed by a close one."""
    async with recorder() as r:
        await r.record(*rounds(1))
        path = r.store.transcript_file(ID)
        lines = r.env.files.read_at(path, 0, 9999).splitlines()
        lines.append(lines[-1].replace(b'"message":', b'"message":}', 1))
        r.env.files.replace(path, b"\n".join(lines) + b"\n")
        assert await r.messages() == rounds(1)
        assert r.warnings == [(ID, "1 lines of the transcript could not be read")]


async def test_lines_across_the_pieces_that_are_read_are_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with recorder() as r:
        await r.record(*rounds(5))
        for piece in (1, 7, 64, 1000):
            monkeypatch.setattr(_transcript_reading, "_PIECE", piece)
            assert await r.messages() == rounds(5)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")
@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
async def test_what_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    """OF2, OF16: nobody is led elsewhere, and nothing blocks."""
    async with recorder(tmp_path) as r:
        await r.record(*rounds(1), agent_id="other")
        path = r.store.transcript_file(ID)
        if kind == "link":
            os.symlink(r.store.transcript_file("other"), path)
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            r.env.files.make_directory(path)
        with trio.fail_after(30):
            assert await r.store.load(ID) is None
            assert await r.store.read_tail(ID, 3) == []


# ---- The tail -------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 41, 42, 43, 1000])
async def test_the_tail_is_the_end_of_the_conversation(count: int) -> None:
    async with recorder() as r:
        await r.record(*rounds(20))
        assert await r.store.read_tail(ID, count) == rounds(20)[-count:]


async def test_the_tail_is_found_however_far_ahead_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind the end of another conversation, and in lines of any length."""
    monkeypatch.setattr(_transcript_reading, "_WINDOW", 100)
    monkeypatch.setattr(_transcript_reading, "_RECORD", 1)
    async with recorder() as r:
        await r.record(*rounds(2), UserMessage("x" * 100_000))
        others = [record("u", None, "y" * 50_000, agentId="other")] * 3
        for line in others:
            r.env.files.append_lines(
                r.store.transcript_file(ID), json.dumps(line).encode() + b"\n"
            )
        tail = await r.store.read_tail(ID, 2)
        assert tail == [rounds(2)[-1], UserMessage("x" * 100_000)]
        with pytest.raises(ValueError, match="count"):
            await r.store.read_tail(ID, 0)


async def test_the_tail_has_branches_given_up_in_it() -> None:
    unanswered = AssistantMessage("Let me", (ToolUse("t9", "Bash", {}),))
    async with recorder() as r:
        await r.record(*rounds(1), unanswered)
        await r.record(UserMessage("Go on."))
        assert await r.store.read_tail(ID, 2) == [rounds(1)[-1], UserMessage("Go on.")]


# ---- Large files -----------------------------------------------------------------------


async def test_reading_holds_up_nobody(tmp_path: Path) -> None:
    """P9: the disk waits for this test."""
    go = threading.Event()

    env = real_env()
    read_at = env.files.read_at

    def read_slowly(path: Path, offset: int, limit: int) -> bytes:
        assert go.wait(60)
        return read_at(path, offset, limit)

    env.files.read_at = read_slowly
    async with recorder(tmp_path) as r:
        await r.record(*rounds(1))
    got: list[Transcript | None] = []
    async with recorder(tmp_path, env) as r:

        async def load() -> None:
            got.append(await r.store.load(ID))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(load)
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            # Not even the writer waits for those who read.
            await r.record(UserMessage("x"), agent_id="other", after=EMPTY)
            assert got == []
            go.set()
    assert [t is not None and t.messages == rounds(1) for t in got] == [True] * 5


EMPTY = Transcript(messages=[], leaf=None)


@pytest.mark.parametrize(
    "timestamp", ["\ud800", "9\nboom", "9\\", '9","x":"', "", 5, None, ["9"]]
)
async def test_a_time_that_is_none_gets_into_no_later_record(timestamp: Any) -> None:
    """TR4: what is appended is not earlier than the newest in the file, so that it
    takes its time over: somebody may have written any text there."""
    async with recorder() as r:
        write(r, record("a", None, "one"), record("b", "a", "b", timestamp=timestamp))
        before = await r.store.load(ID)
        assert before is not None and before.skipped == 1
        await r.record(UserMessage("two"), after=before)
        await r.record(UserMessage("three"))
        assert [m.text for m in await r.messages()] == ["one", "two", "three"]
        data = r.env.files.read_at(r.store.transcript_file(ID), 0, 2**20)
        assert len(data.splitlines()) == 4


@pytest.mark.parametrize(
    "line",
    [
        b'"type":"system","subtype":"gap","missing":1e999,"message":{}}',
        b'"type":"system","subtype":"gap","missing":NaN,"message":{}}',
        b'"type":"user","message":{"content":"x"},"sender":5}',
    ],
)
async def test_a_record_with_a_value_that_cannot_be_is_skipped(line: bytes) -> None:
    """TR3: as every other line that cannot be read, also after a beginning as ours."""
    async with recorder() as r:
        await r.record(UserMessage("one"))
        (first,) = r.lines()
        head = (
            f'{{"parentUuid":"{first["uuid"]}","uuid":"{"0" * 36}","agentId":"{ID}",'
            f'"isSidechain":true,"timestamp":"2036-11-22T10:00:00.000Z",'
        )
        write(r, first, head.encode() + line)
        assert [m.text for m in await r.messages()] == ["one"]
        assert await r.store.read_tail(ID, 5) == [UserMessage("one")]


# ---- A disk that fails ---------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="files are read otherwise there")
@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOENT])
@pytest.mark.parametrize("call", ["lstat", "open", "fstat", "lseek", "read"])
async def test_whichever_call_fails_no_part_is_taken_for_the_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """TR6: each call in turn fails once; a file that is gone for a moment, too."""
    monkeypatch.setattr(_transcript_reading, "_PIECE", 1_000)
    async with recorder(tmp_path) as r:
        await r.record(*rounds(8))
        path = r.store.transcript_file(ID)
        size = path.stat().st_size
        told, at, left = 0, 0, -1
        while left < 0:
            with monkeypatch.context() as patch:
                fault = Fault(patch, path, call, number, at)
                where = None
                try:
                    assert await r.messages() == rounds(8)
                except OSError as error:
                    where = error.filename
                assert where in (None, str(path))
                told += where is not None
            left, at = fault.left, at + 1
        # Of nearly all calls it makes a difference: there are many pieces.
        assert size > 3_000 and told >= at - 4 > 0
        assert r.warnings == []
        with monkeypatch.context() as patch:
            Fault(patch, path, call, errno.EIO, 2)
            with pytest.raises(OSError, match=re.escape(str(path))):
                await r.store.read_tail(ID, 10_000)


class Fault:
    """One call of the system that concerns a file fails, which is the one that
    ``left`` others go before."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        path: Path,
        call: str,
        number: int,
        left: int,
    ) -> None:
        self.left = left
        self._path = str(path)
        self._call, self._number = call, number
        self._fd = -1
        for name in ("lstat", "open", "fstat", "lseek", "read"):
            patch.setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, real: Any) -> Any:
        def called(what: Any, *args: Any, **named: Any) -> Any:
            if type(what) is int:
                concerned = what == self._fd
            else:
                concerned = str(what) == self._path
            if concerned and name == self._call and self.left >= 0:
                self.left -= 1
                if self.left < 0:
                    raise OSError(
                        self._number,
                        os.strerror(self._number),
                        *(() if type(what) is int else (str(what),)),
                    )
            result = real(what, *args, **named)
            if name == "open" and concerned:
                self._fd = result
            return result

        return called
