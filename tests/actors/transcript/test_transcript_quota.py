"""How much of a conversation is kept: of one agent, and of all in a directory."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actors import TaskStatus
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
)
from actors.env import real_env
from actors.hosting import DiskQuota, Ledger
from actors.output import DirectoryQuotaExceeded, QuotaExceeded
from actors.testing import fake_env
from actors.transcript import TranscriptQuotaExceeded
from supervisor.agents import AgentPolicy
from supervisor.runtime import Limits, Runtime, Warned, open_runtime
from tests.actors.transcript.transcripts import ID, recorder

HERE = Path("/tasks")
LONG = 60.0
LOST_ONE = "1 messages at the end could not be recorded"

# ---- One transcript ----


async def test_what_has_no_room_is_not_recorded_and_the_end_says_how_much() -> None:
    """P7, TR2: the quota holds to the byte, and what is there is whole lines."""
    async with recorder(quota=3_000) as r:
        log = r.store.open_log(ID)
        said: list[QuotaExceeded | None] = [
            log.append(AssistantMessage(f"{n} " + "x" * 500)) for n in range(10)
        ]
        kept = said.index(next(it for it in said if it is not None))
        assert 2 <= kept <= 4
        assert all(it is said[kept] for it in said[kept:])
        assert type(said[kept]) is TranscriptQuotaExceeded
        assert str(log.path) in str(said[kept]) and "3,000" in str(said[kept])
        await log.flush()
        log.close()
        await r.store.flush()
        assert (r.env.files.size(log.path) or 0) <= 3_000
        lines = r.lines()
        assert [line["type"] for line in lines] == ["assistant"] * kept + ["system"]
        assert lines[-1]["missing"] == 10 - kept
        texts = [text for _, text in r.warnings]
        assert len(texts) == 2
        assert "of its quota" in texts[0] and "nothing more is recorded" in texts[1]


async def test_what_earlier_runs_have_said_counts() -> None:
    """P7: of this program and of earlier ones."""
    env = fake_env({})
    async with recorder(env=env, quota=10_000) as r:
        await r.record(AssistantMessage("x" * 3_000))
        transcript = await r.store.load(ID)
        assert transcript is not None
        log = r.store.open_log(ID, after=transcript)
        assert log.append(AssistantMessage("x" * 3_000)) is None
        # It goes on before all is written.
        log.close()
        log = r.store.open_log(ID, after=transcript)
        assert log.append(AssistantMessage("x" * 3_000)) is not None
        log.close()
        await r.store.flush()
    async with recorder(env=env, quota=10_000) as r:
        log = r.store.open_log(ID, after=await r.store.load(ID))
        assert log.append(AssistantMessage("x" * 3_000)) is not None
        log.close()
    async with recorder(env=env, quota=20_000) as r:
        assert len(await r.messages()) >= 2
        log = r.store.open_log(ID, after=await r.store.load(ID))
        assert log.append(AssistantMessage("x" * 3_000)) is None
        log.close()


actions = st.lists(
    st.one_of(
        st.integers(0, 900),  # A message of so many characters.
        st.sampled_from(["flush", "fails", "works", "reopen"]),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@example([0, "reopen", 0], 592, None)
@example([0, 0, 0, "reopen", 0], None, 1145)
@given(actions, st.none() | st.integers(500, 6_000), st.none() | st.integers(1, 6_000))
def test_however_a_log_is_written_its_quotas_hold_and_nothing_is_lost_unsaid(
    does: list[int | str], quota: int | None, limit: int | None
) -> None:
    """P7, TR2: also while the disk fails. What is in the file, and what was refused,
    is all that was said; what is taken of the directory's quota is what is there."""

    async def play() -> None:
        env = fake_env({})
        env.files.make_directory(HERE)
        disk = None
        if limit is not None:
            ledger = Ledger(HERE, env, env.files.share(HERE))
            disk = DiskQuota(limit, ledger=ledger)
        kept: list[str] = []
        refused = 0
        async with recorder(env=env, quota=quota, disk=disk) as r:
            log = r.store.open_log(ID)
            for number, action in enumerate(does):
                if isinstance(action, int):
                    text = f"{number} {'x' * action}"
                    full = log.append(AssistantMessage(text))
                    if full is None:
                        kept.append(text)
                    else:
                        refused += 1
                        assert isinstance(
                            full, TranscriptQuotaExceeded | DirectoryQuotaExceeded
                        )
                elif action == "flush":
                    await log.flush()
                elif action == "reopen":
                    log.close()
                    await r.store.flush()
                    log = r.store.open_log(ID)
                else:
                    env.files.write_error = (
                        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                        if action == "fails"
                        else None
                    )
            env.files.write_error = None
            log.close()
            await r.store.flush()
            size = env.files.size(log.path) or 0
            assert quota is None or size <= quota
            if disk is not None:
                disk.look()
                there = sum(it.size for it in env.files.entries(HERE))
                # The promise is not asked for.
                assert disk.used == there <= disk.limit + 21
            lines = r.lines()
            missing = sum(line.get("missing", 0) for line in lines)
            said = [
                line["message"]["content"][0]["text"]
                for line in lines
                if line["type"] == "assistant"
            ]
            lost = [text for _, text in r.warnings if "could not be recorded" in text]
            if not lost:
                assert said == kept
                assert missing == refused
            else:
                assert set(said) <= set(kept)
                assert missing <= refused + len(kept)
            if refused:
                assert any("nothing more is recorded" in text for _, text in r.warnings)

    trio.run(play)


@pytest.mark.parametrize("is_written", [True, False])
async def test_the_quota_of_the_directory_hears_once_of_what_was_settled_twice(
    is_written: bool,
) -> None:
    """P7: a writer that crashes while it tells the others leaves it to the next one,
    and a quota that has heard of the same bytes twice lets too many be written."""
    env = fake_env({})
    env.files.make_directory(HERE)
    disk = DiskQuota(64_000, ledger=Ledger(HERE, env, env.files.share(HERE)))
    replace, crashes = env.files.replace, 0

    def fails_once(*args: Any, **options: Any) -> None:
        nonlocal crashes
        env.files.replace = replace  # type: ignore[method-assign]
        crashes += 1
        raise MemoryError

    async with recorder(env=env, disk=disk) as r:
        log = r.store.open_log(ID)
        assert log.append(AssistantMessage("x" * 9_000)) is None
        if not is_written:
            env.files.write_error = OSError(errno.EIO, os.strerror(errno.EIO))
            log.close()
        env.files.replace = fails_once  # type: ignore[method-assign]
        await r.store.flush()
        assert crashes == 1
        env.files.write_error = None
        there = sum(it.size for it in env.files.entries(HERE))
        assert (there > 9_000) is is_written
        disk.look()
        assert disk.used == there
        lost = [text for _, text in r.warnings if "could not be recorded" in text]
        assert lost == ([] if is_written else [LOST_ONE])


# ---- An agent ----


async def talks(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """Say so much that a quota is used up, if there is one that small."""
    for number in range(30):
        yield AssistantMessage(f"{number} {'x' * 1_000}")
        await trio.lowlevel.checkpoint()
    yield FinalResult("all said")


async def listen(runtime: Runtime, told: list[str]) -> None:
    # Its end comes with that of the runtime.
    texts = [event.text async for event in runtime.events if isinstance(event, Warned)]
    told += texts


@pytest.mark.parametrize("what", ["transcript", "disk"])
async def test_an_agent_that_says_more_than_may_be_kept_fails_after_a_warning(
    what: str, autojump_clock: trio.testing.MockClock
) -> None:
    """P7, P10: the reason is told, it is nobody else's end, and with a higher limit it
    is resumed from all that it has said."""
    env, told = fake_env({}), list[str]()
    limits = Limits(**{what: 20_000})  # type: ignore[arg-type]
    agents = AgentPolicy(run=talks)
    async with trio.open_nursery() as nursery:
        async with open_runtime(HERE, env=env, limits=limits, agents=agents) as runtime:
            nursery.start_soon(listen, runtime, told)
            await trio.testing.wait_all_tasks_blocked()
            quiet = await runtime.launch(Agent(waits, "go"))
            task = await runtime.launch(Agent(talks, "go"))
            done = await task.wait()
            assert done.status is TaskStatus.FAILED
            assert done.ended_by == "quota"
            assert done.error is not None
            name = {
                "transcript": "TranscriptQuotaExceeded",
                "disk": "DirectoryQuotaExceeded",
            }
            assert done.error.type == name[what]
            assert done.result is not None and done.result.endswith("x" * 1_000)
            assert quiet.status is TaskStatus.RUNNING
            await runtime.transcripts.flush()
            there = sum(it.size for it in env.files.entries(HERE))
            if what == "disk":
                # Metas are not asked for; they count from the next look on.
                assert there <= 20_000 + 3_000
            path = runtime.transcripts.transcript_file(task.id)
            assert (env.files.size(path) or 0) <= 20_000
    kinds = ["of its quota" in text for text in told]
    refusals = ["nothing more is recorded" in text for text in told]
    assert kinds.count(True) == refusals.count(True) == 1
    assert kinds.index(True) < refusals.index(True)
    async with open_runtime(HERE, env=env, agents=agents) as runtime:
        again = await (await runtime.resume(task.id, "on")).wait()
        assert (again.status, again.result) == (TaskStatus.COMPLETED, "all said")
        messages = await runtime.transcripts.read_tail(task.id, 1_000)
        texts = [it.text for it in messages if isinstance(it, AssistantMessage)]
        first = texts.index("0 " + "x" * 1_000, 1)
        assert texts[:first] == [f"{n} {'x' * 1_000}" for n in range(first)]


async def waits(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield AssistantMessage("at work")
    await trio.sleep_forever()


async def test_an_answer_that_has_no_room_still_counts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P2: the work is done. A warning says that it is not recorded."""

    async def answers(context: AgentContext) -> AsyncIterator[AgentEvent]:
        yield FinalResult("x" * 20_000)

    env, told = fake_env({}), list[str]()
    async with trio.open_nursery() as nursery:
        async with open_runtime(
            HERE, env=env, limits=Limits(transcript=10_000)
        ) as runtime:
            nursery.start_soon(listen, runtime, told)
            await trio.testing.wait_all_tasks_blocked()
            done = await (await runtime.launch(Agent(answers, "go"))).wait()
            assert done.status is TaskStatus.COMPLETED
    assert any("nothing more is recorded" in text for text in told)


async def test_an_agent_that_is_full_from_the_start_says_so_when_it_is_resumed(
    tmp_path: Path,
) -> None:
    """P7: on real files. It reads what it is asked and fails; nothing is overwritten."""
    agents = AgentPolicy(run=talks)
    with trio.fail_after(LONG):
        async with open_runtime(tmp_path, env=real_env(), agents=agents) as runtime:
            task = await runtime.launch(Agent(talks, "go"))
            await task.wait()
            await runtime.transcripts.flush()
            path = runtime.transcripts.transcript_file(task.id)
        size = path.stat().st_size
        limits = Limits(transcript=20_000)
        async with open_runtime(
            tmp_path, env=real_env(), agents=agents, limits=limits
        ) as runtime:
            done = await (await runtime.resume(task.id, "on")).wait()
            assert done.error is not None
            assert done.error.type == "TranscriptQuotaExceeded"
        assert path.stat().st_size == size


def test_the_quotas_message_names_the_file() -> None:
    error = TranscriptQuotaExceeded(Path("/a"), 1_000)
    assert str(error) == (
        "the transcript reached its quota of 1,000 bytes; what came before is in /a"
    )
    assert isinstance(error, QuotaExceeded)
