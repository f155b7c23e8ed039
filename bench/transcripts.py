"""PF10 and PF11: writing transcripts, and reading them back."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import orjson
import trio

from actors.agent import (
    AssistantMessage,
    CompactBoundary,
    Message,
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from actors.env import real_env
from actors.house import fewer_collections
from actors.transcript import TranscriptStore
from actors.transcript.hosting import transcript_writer
from supervisor.tree import child

from ._case import Case, Figures, Row, Target
from ._listened import listened_supervisor

_TEXT = "Looking at the file <x> & running the tests now. " * 6
_PRODUCERS = 20
# What is recorded between two checkpoints: this is not about those.
_STEP = 10
_TAIL = 200
# A conversation so long has been compacted many times: no model takes 100,000.
_COMPACTED_EVERY = 1_000


def cases(small: bool) -> list[Case]:
    """Return the cases of this theme."""
    return [
        _append_case(400 if small else 20_000),
        _durable_case(60 if small else 20_000, 20 if small else 300),
        _load_case(600 if small else 100_000),
    ]


# ---- Writing ------------------------------------------------------------------


def _append_case(count: int) -> Case:
    parts: list[Callable[[], Figures]] = [
        partial(_opened_each, count, "seed", json_dumps=True, fsync=False),
        partial(_opened_each, count, "seed, orjson", json_dumps=False, fsync=False),
        partial(_recorded, count, "one agent", agents=1, durable=False),
        partial(_recorded, count, "20 agents", agents=_PRODUCERS, durable=False),
    ]
    rows = [
        Row(
            id="PF10",
            what=f"messages recorded, 20 tasks, {whose} / open, append, close each",
            ours=whose,
            base="seed",
            unit="1/s",
            target=Target(">=", 3.0),
        )
        for whose in ("one agent", "20 agents")
    ]
    rows.append(
        Row(
            id="PF10",
            what="the same / with lines that are made as fast as ours",
            ours="one agent",
            base="seed, orjson",
            unit="1/s",
        )
    )
    return Case(name="transcripts, appending", parts=parts, rows=rows)


def _durable_case(count: int, base_count: int) -> Case:
    return Case(
        name="transcripts, durable",
        parts=[
            partial(_opened_each, base_count, "synced", json_dumps=True, fsync=True),
            partial(_recorded, count, "durable", agents=1, durable=True),
        ],
        rows=[
            Row(
                id="PF10",
                what="messages recorded durably, 20 tasks / append and fsync each",
                ours="durable",
                base="synced",
                unit="1/s",
                target=Target(">=", 50.0),
            )
        ],
    )


def _message(number: int) -> AssistantMessage:
    use = ToolUse(f"toolu_{number}", "Bash", {"command": "pytest -q", "timeout": 120})
    return AssistantMessage(_TEXT, (use,))


def _opened_each(count: int, name: str, *, json_dumps: bool, fsync: bool) -> Figures:
    dump = _dump_json if json_dumps else orjson.dumps
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "transcript.jsonl")
        records = [_record(number) for number in range(count)]
        began = perf_counter()
        for record in records:
            with open(path, "ab") as file:
                file.write(dump(record) + b"\n")
                if fsync:
                    file.flush()
                    os.fsync(file.fileno())
        seconds = perf_counter() - began
    return {name: count / seconds}


def _dump_json(record: object) -> bytes:
    return json.dumps(record).encode()


def _record(number: int) -> dict[str, Any]:
    content: list[dict[str, Any]] = [
        {"type": "text", "text": _TEXT},
        {
            "type": "tool_use",
            "id": f"toolu_{number}",
            "name": "Bash",
            "input": {"command": "pytest -q", "timeout": 120},
        },
    ]
    return {
        "parentUuid": f"00000000-0000-0000-0000-{number - 1:012x}",
        "uuid": f"00000000-0000-0000-0000-{number:012x}",
        "agentId": "a1b2c3d4",
        "isSidechain": True,
        "timestamp": "2026-11-22T00:00:00.000Z",
        "type": "assistant",
        "message": {"role": "assistant", "content": content},
        "cwd": "/srv",
        "session": "s1",
    }


def _recorded(count: int, name: str, *, agents: int, durable: bool) -> Figures:
    return {name: count / trio.run(record, count, agents, durable)}


async def record(count: int, agents: int, durable: bool) -> float:
    """Record ``count`` messages by 20 tasks; return the seconds until the files have
    them all."""
    with tempfile.TemporaryDirectory() as directory:
        async with _store(directory, durable=durable) as store:
            logs = [
                store.open_log(f"a{number}", cwd="/srv", session="s1")
                for number in range(agents)
            ]

            messages = [_message(number) for number in range(count)]

            async def produce(first: int) -> None:
                log = logs[first % agents]
                for number in range(first, count, _PRODUCERS):
                    log.append(messages[number])
                    if number // _PRODUCERS % _STEP == 0:
                        await trio.lowlevel.checkpoint()
                await log.flush()

            began = perf_counter()
            async with trio.open_nursery() as nursery:
                for first in range(_PRODUCERS):
                    nursery.start_soon(produce, first)
            seconds = perf_counter() - began
            lines = sum(
                store.transcript_file(log.agent_id).read_bytes().count(b"\n")
                for log in logs
            )
            assert lines == count, (lines, count)
    return seconds


@asynccontextmanager
async def _store(
    directory: str, *, durable: bool = False
) -> AsyncGenerator[TranscriptStore, None]:
    def warn(agent_id: str, text: str) -> None:
        raise AssertionError(f"{agent_id}: {text}")

    store = TranscriptStore(Path(directory), real_env(), warn, durable=durable)
    async with listened_supervisor() as supervisor:
        await supervisor.start_child(child("transcripts", transcript_writer, store))
        yield store


# ---- Reading ------------------------------------------------------------------


def _load_case(count: int) -> Case:
    rows = [
        Row(
            id="PF11",
            what=f"transcript of {count:,} messages loaded / json per line, chain",
            ours="whole",
            base="json, whole",
            unit="1/s",
            target=Target(">=", 1.4),
        ),
        Row(
            id="PF11",
            what="the same, compacted every now and then",
            ours="compacted",
            base="json, compacted",
            unit="1/s",
            target=Target(">=", 4.0),
        ),
        Row(
            id="PF11",
            what=f"its last {_TAIL} messages read / json per line, chain",
            ours="tail",
            base="json, whole",
            unit="1/s",
            target=Target(">=", 100.0),
        ),
    ]
    return Case(
        name="transcripts, loading",
        parts=[partial(_loaded, count, kind) for kind in ("compacted", "whole")],
        rows=rows,
    )


def _loaded(count: int, kind: str) -> Figures:
    with tempfile.TemporaryDirectory() as directory:
        return trio.run(load, directory, count, kind)


async def load(directory: str, count: int, kind: str) -> Figures:
    """Write a transcript and read it, in the three ways; return the rates, each in
    messages of the whole file."""
    every = min(_COMPACTED_EVERY, count // 2) if kind == "compacted" else count
    async with _store(directory) as store:
        log = store.open_log("a1b2c3d4", cwd="/srv", session="s1")
        for number in range(count):
            is_last = number == count - 1
            log.append(AssistantMessage(_TEXT) if is_last else _nth(number, every))
            if number % 5_000 == 0:
                await log.flush()
        await log.flush()
        path = store.transcript_file("a1b2c3d4")

        began = perf_counter()
        # As ours does, or half of the ratio would be the collector's.
        with fewer_collections():
            chain = _json_chain(path)
        base = perf_counter() - began
        assert len(chain) == count
        del chain

        # Before the large one is read, which takes long to give back.
        began = perf_counter()
        tail = await store.read_tail("a1b2c3d4", _TAIL)
        seconds = perf_counter() - began
        assert len(tail) == _TAIL

        began = perf_counter()
        transcript = await store.load("a1b2c3d4")
        ours = perf_counter() - began
        assert transcript is not None
        last = count % every or every
        assert len(transcript.messages) == last, len(transcript.messages)
        del transcript
    figures = {f"json, {kind}": count / base, kind: count / ours}
    if kind == "whole":
        figures["tail"] = count / seconds
    return figures


def _nth(number: int, every: int) -> Message:
    if number and number % every == 0:
        return CompactBoundary(_TEXT)
    if number % every % 2 == 1:
        return _message(number)
    if number % every == 0:
        return UserMessage(_TEXT)
    return UserMessage(
        tool_answers=(ToolAnswer(f"toolu_{number - 1}", _TEXT),), origin="tools"
    )


def _json_chain(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        records = [json.loads(line) for line in file]
    by_id = {record["uuid"]: record for record in records}
    followed = {record["parentUuid"] for record in records}
    record = next(r for r in reversed(records) if r["uuid"] not in followed)
    chain = [record]
    while record["parentUuid"] is not None:
        record = by_id[record["parentUuid"]]
        chain.append(record)
    chain.reverse()
    return chain
