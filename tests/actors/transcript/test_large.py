"""Transcripts that are too large, in whatever way, and reads that are given up."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors import transcript
from actors.agent import Agent, AssistantMessage, CompactBoundary, Message, UserMessage
from actors.env import Files, real_env
from actors.testing import fake_env
from actors.transcript import (
    _log as _transcript_log,
)
from actors.transcript import (
    _reading as _transcript_reading,
)
from actors.transcript import (
    _records as _transcript_records,
)
from actors.transcript.hosting import READ_LIMIT, Transcript
from supervisor.agents import AgentPolicy
from supervisor.runtime import ResumeRefused, open_runtime
from tests.actors.transcript.transcripts import ID, recorder, rounds
from tests.supervisor.talkers import answers, forever

LONG = 60.0
MIB = 2**20


@pytest.mark.skipif(sys.platform == "win32", reason="files have no holes there")
@pytest.mark.parametrize("where", ["all of it", "after the conversation", "between"])
async def test_a_hole_of_any_size_costs_little_and_is_told(
    tmp_path: Path, where: str
) -> None:
    """TR5, P7: a conversation in front of a small one is found, and behind a large
    one it would be; nothing else is there to go on with."""
    async with recorder(tmp_path) as r:
        path = r.store.transcript_file(ID)
        if where != "all of it":
            await r.record(*rounds(3))
        with path.open("ab") as file:
            hole = 20 * MIB if where == "between" else 768 * MIB
            file.truncate(file.tell() + hole)
        if where == "between":
            with path.open("ab") as file:
                file.write(b"\n")
            await r.record(UserMessage("go on"))
        tracemalloc.start()
        try:
            if where == "between":
                messages = await r.messages()
                assert messages[-1] == UserMessage("go on")
                assert messages[:-1] == rounds(3)
            else:
                with pytest.raises(ValueError, match="can be read"):
                    await r.store.load(ID)
                assert await r.store.read_tail(ID, 5) == []
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 80 * MIB


async def test_an_agent_whose_transcript_is_too_large_stays_as_it_is(
    tmp_path: Path,
) -> None:
    """TR9: the reason says how large it is and how much of it can be read."""
    with trio.fail_after(LONG):
        policy = AgentPolicy(run=answers)
        async with open_runtime(tmp_path, agents=policy) as runtime:
            task = await runtime.launch(Agent(forever, "go"))
            while await runtime.transcripts.load(task.id) is None:
                await trio.sleep(0.01)
        with (tmp_path / f"agent-{task.id}.jsonl").open("ab") as file:
            file.truncate(READ_LIMIT + 10 * MIB)
        async with open_runtime(tmp_path, agents=policy) as runtime:
            with pytest.raises(ResumeRefused, match=r"144,703,488 bytes 134,217,728"):
                await runtime.resume(task.id)
            assert [m.agent_id for m in runtime.unfinished_agents()] == [task.id]


class _Watch:
    """Calls something before each read of files."""

    def __init__(self, files: Files) -> None:
        self.reads = 0
        self.before_read: Any = lambda: None
        self._read_at = files.read_at
        files.read_at = self._read

    def _read(self, path: Path, offset: int, limit: int) -> bytes:
        self.reads += 1
        self.before_read()
        return self._read_at(path, offset, limit)


@pytest.mark.parametrize("way", ["load", "read_tail"])
async def test_a_read_that_is_cancelled_ends_with_its_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """P1: no thread goes on with it, and what is left of the file is not read."""
    monkeypatch.setattr(_transcript_reading, "_PIECE", 1_000)
    monkeypatch.setattr(_transcript_reading, "_WINDOW", 2**20)
    monkeypatch.setattr(transcript, "_AT_ONCE", 0)
    env = real_env()
    files = _Watch(env.files)
    async with recorder(tmp_path, env) as r:
        await r.record(*rounds(1_000))
        whole = (r.env.files.size(r.store.transcript_file(ID)) or 0) // 1_000
        assert whole > 100
        files.reads = 0

        def cancel_after_three() -> None:
            if files.reads == 3:
                trio.from_thread.run_sync(scope.cancel)
                # The loop has had a turn when it answers.
                trio.from_thread.run(trio.testing.wait_all_tasks_blocked)

        files.before_read = cancel_after_three
        with trio.CancelScope() as scope:
            if way == "load":
                await r.store.load(ID)
            else:
                await r.store.read_tail(ID, 10_000)
        assert scope.cancelled_caught
        assert files.reads <= 4
        files.before_read = lambda: None
        assert len(await r.messages()) == len(rounds(1_000))


@pytest.mark.parametrize("way", ["straight", "branches"])
async def test_what_is_read_and_not_yet_understood_is_given_up_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """P1: a long conversation takes longer to understand than to read."""
    monkeypatch.setattr(transcript, "_AT_ONCE", 0)
    async with recorder(tmp_path) as r:
        await r.record(*rounds(2_000))
        if way == "branches":
            with r.store.transcript_file(ID).open("ab") as file:
                file.write(b"torn\n")
        understood = 0
        parse = _transcript_records.parse
        read = _transcript_reading._Scan._read

        def seen() -> None:
            nonlocal understood
            understood += 1
            if understood == 10:
                trio.from_thread.run_sync(scope.cancel)
                trio.from_thread.run(trio.testing.wait_all_tasks_blocked)

        def parsed(line: bytes) -> Any:
            if way == "straight":
                seen()
            return parse(line)

        def scanned(scan: Any, line: bytes) -> Any:
            seen()
            return read(scan, line)

        monkeypatch.setattr(_transcript_records, "parse", parsed)
        monkeypatch.setattr(_transcript_reading._Scan, "_read", scanned)
        with trio.CancelScope() as scope:
            await r.store.load(ID)
        assert scope.cancelled_caught
        assert 10 <= understood <= 600
        monkeypatch.undo()
        assert len(await r.messages()) == len(rounds(2_000))


def compacted(count: int) -> list[Message]:
    said: list[Message] = []
    for number in range(count):
        said += rounds(8)
        said.append(CompactBoundary(f"what was said till {number}"))
    return [*said, *rounds(3)]


@pytest.mark.parametrize("messages", [rounds(60), compacted(6)], ids=["one", "many"])
async def test_of_a_large_file_the_end_says_all_or_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, messages: list[Message]
) -> None:
    """TR5: whatever is the limit, never a part for the whole; and a later record
    follows the same one."""
    async with recorder() as r:
        await r.record(*messages)
        whole = await r.store.load(ID)
        assert whole is not None
        size = r.env.files.size(r.store.transcript_file(ID)) or 0
        told: list[Transcript | None] = []
        reasons: list[str] = []
        for limit in [*range(100, size, 311), size - 1, size, size + 1]:
            monkeypatch.setattr(_transcript_reading, "READ_LIMIT", limit)
            try:
                found = await r.store.load(ID)
            except ValueError as error:
                reasons.append(str(error))
                told.append(None)
            else:
                assert found == whole
                told.append(found)
            tail = await r.store.read_tail(ID, 1_000)
            assert tail == messages[len(messages) - len(tail) :]
        assert told[0] is None and told[-1] == whole
        assert all(f"{size:,} bytes" in reason for reason in reasons)
        # From some limit on it is there.
        first = told.index(whole)
        assert None not in told[first:]
        if any(isinstance(m, CompactBoundary) for m in messages):
            assert first < len(told) / 3


async def test_a_message_that_is_too_long_to_be_read_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TR2, TR5: a warning and a note in its place tell of it; a line of somebody
    else's that is too long is passed over."""
    monkeypatch.setattr(_transcript_log, "LINE_LIMIT", 5_000)
    monkeypatch.setattr(_transcript_reading, "LINE_LIMIT", 6_000)
    monkeypatch.setattr(_transcript_reading, "_PIECE", 1_000)
    async with recorder() as r:
        await r.record(
            UserMessage("go"), AssistantMessage("x" * 5_000), UserMessage("on")
        )
        ((_, text),) = r.warnings
        assert "5,0" in text and "not recorded" in text
        texts = [message.text for message in await r.messages()]
        assert texts[0] == "go" and texts[-1] == "on"
        assert "A message is missing here" in texts[1]
        path = r.store.transcript_file(ID)
        r.env.files.append_lines(path, b"y" * 50_000 + b"\n")
        await r.record(UserMessage("at last"))
        assert [m.text for m in await r.messages()] == [*texts, "at last"]


WRONG: list[tuple[str, Any]] = [
    ("uuid", "x" * 201),
    ("uuid", 5),
    ("parentUuid", "x" * 201),
    ("parentUuid", ["a"]),
    ("timestamp", "x"),
    ("timestamp", "9" * 41),
    ("timestamp", None),
    ("message", None),
    ("message", {"role": "user", "content": 5}),
    ("message", {"role": "user", "content": [5]}),
    ("message", {"role": "user", "content": [{"type": "text", "text": 5}]}),
    (
        "message",
        {"content": [{"type": "tool_result", "tool_use_id": "a", "is_error": "false"}]},
    ),
    ("message", {"content": [{"type": "tool_result", "tool_use_id": 5}]}),
    ("origin", ["prompt"]),
    ("sender", 5),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
async def test_a_record_with_a_value_that_it_cannot_have_is_passed_over(
    field: str, value: Any
) -> None:
    """TR5, TR9: and told; what is round it is one conversation."""
    env = fake_env({})
    async with recorder(env=env) as r:
        await r.record(*rounds(2), UserMessage("planted"), UserMessage("go on"))
        lines = r.lines()
        (place,) = [n for n, line in enumerate(lines) if "planted" in json.dumps(line)]
        lines[place][field] = value
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        env.files.replace(r.store.transcript_file(ID), data)
        messages = await r.messages()
        texts = [message.text for message in messages]
        assert texts[-1] == "go on" and "planted" not in texts
        assert messages[: len(rounds(2))] == rounds(2)
        assert "1 lines of the transcript could not be read" in r.warnings[-1][1]


@pytest.mark.parametrize("missing", [-1, 0, True, 1.5, "5", 10**13, 10**400, None])
async def test_a_gap_of_an_impossible_size_is_passed_over(missing: Any) -> None:
    """TR5, TR9."""
    env = fake_env({})
    async with recorder(env=env) as r:
        await r.record(UserMessage("one"), UserMessage("two"), UserMessage("three"))
        lines = r.lines()
        lines[1] |= {"type": "system", "subtype": "gap", "missing": missing}
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        env.files.replace(r.store.transcript_file(ID), data)
        transcript = await r.store.load(ID)
        assert transcript is not None and transcript.missing == 1
        assert transcript.skipped == 1
