"""Our own runtime, killed at each change of its directory, and what the next one finds."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal
from xml.etree.ElementTree import fromstring as parse

import pytest
import trio

from actors import TaskStatus
from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    Budget,
    FinalResult,
    Message,
    Run,
    TokensUsed,
    ToolAnswer,
    ToolUse,
    UserMessage,
)
from actors.env import Env
from actors.shell import Shell
from actors.testing import Program
from actors.transcript import AgentMeta, TranscriptStore
from actors.transcript.hosting import transcript_writer
from supervisor.agents import AgentPolicy
from supervisor.runtime import Runtime, open_runtime
from supervisor.simulation import Sim, fault_everywhere, simulate
from supervisor.simulation.crash import Disk, DiskProgram, crash, crash_everywhere
from supervisor.tree import child, open_supervisor
from tests.supervisor.talkers import answers, read, sent

DIRECTORY = Path("/tasks")


@pytest.fixture(autouse=True)
def _silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "supervisor")


async def works(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """Say something in each round, and answer with all it was told, once told to end."""
    yield AssistantMessage("at work")
    while "end" not in told_to(context):
        await trio.sleep(0.1)
        context.inbox.take()
        yield AssistantMessage(f"heard {len(told_to(context))}")
    yield FinalResult("done")


def told_to(context: AgentContext) -> list[str]:
    return each(sent(context.history))


def each(texts: list[str]) -> list[str]:
    """Of messages that came together a conversation makes one."""
    return [one for text in texts for one in text.split("\n\n")]


async def build(program: Program) -> int:
    for number in range(3):
        await program.print(f"line {number}\n")
        await trio.sleep(1)
    return 0


COMMANDS: Any = {"build": build, "true": "done\n"}


async def agents(sim: Sim, disk: Disk) -> None:
    """Agents that are sent messages, end, are revived, and are stopped; and a shell."""
    async with open_runtime(
        DIRECTORY, env=disk.env(COMMANDS), agents=AgentPolicy(run=answers)
    ) as runtime:

        async def talk(texts: list[str]) -> None:
            task = await runtime.launch(Agent(works, "go"))
            for text in texts:
                await trio.sleep(0.5)
                await runtime.send(task.id, text)
                disk.tell(("sent", task.id, text))
            if "end" in texts:
                await task.wait()
                await runtime.transcripts.flush()
                disk.tell(("ended", task.id, "completed"))
                await trio.sleep(1)
                disk.tell(("revived", task.id, ""))
                await runtime.send(task.id, "again")
                disk.tell(("sent", task.id, "again"))
            else:
                await task.stop()
                await runtime.transcripts.flush()
                disk.tell(("ended", task.id, "killed"))

        async def shell() -> None:
            task = await runtime.launch(Shell("build"))
            await task.wait_output("line 1")
            disk.tell(("output", str(task.snapshot().output_file), b"line 0\nline 1\n"))
            await task.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk, ["one", "two", "two", "end"])
            nursery.start_soon(talk, ["three"])
            nursery.start_soon(shell)
        await runtime.wait_idle()


async def go_on(sim: Sim, disk: Disk) -> None:
    for kind, name, what in disk.told:
        if kind == "output":
            assert disk.files.contents(name).startswith(what)
    await found_by_the_next(DIRECTORY, disk.env(COMMANDS), disk.told)


async def found_by_the_next(directory: Path, env: Env, told: list[Any]) -> None:
    """What was said to have been taken is there, in order; each agent that was left
    unfinished goes on and ends once; and new work is done."""
    taken: dict[str, list[str]] = {}
    ended: dict[str, str] = {}
    for kind, name, what in told:
        if kind == "sent":
            taken.setdefault(name, []).append(what)
        elif kind == "revived":
            del ended[name]
        elif kind == "ended":
            ended[name] = what
    async with open_runtime(
        directory, env=env, agents=AgentPolicy(run=answers)
    ) as runtime:
        found = [meta.agent_id for meta in runtime.unfinished_agents()]
        assert len({*found}) == len(found)
        for agent_id, status in ended.items():
            meta = runtime.agent_meta(agent_id)
            assert meta is not None
            assert meta.status == status
            assert agent_id not in found
        with trio.fail_after(60):
            for agent_id in found:
                await (await runtime.resume(agent_id)).wait()
            for agent_id in taken.keys() - {*found}:
                if ended.get(agent_id) != "killed":
                    await (await runtime.resume(agent_id)).wait()
            assert (await runtime.run(Shell("true"))).exit_code == 0
        for agent_id, texts in taken.items():
            has = each(await read(runtime, agent_id))
            assert has[: len(texts)] == texts or ended.get(agent_id) == "killed"
            assert len(has) <= len(texts) + 1
        assert {*found} <= told_once(runtime)
        assert runtime.unfinished_agents() == []


def told_once(runtime: Runtime) -> set[str]:
    """Take all notifications, those that came again among them. Return the tasks whose
    ends they tell: of each run, one."""
    notes = [it for it in runtime.notifications.drain() if it.kind == "task"]
    runs = [parse(note.xml).findtext("run-id") for note in notes]
    assert len({*runs}) == len({note.id for note in notes}) == len(notes)
    return {note.task_id for note in notes}


def test_our_runtime_recovers_from_a_kill_at_each_change_of_its_directory() -> None:
    report = crash_everywhere(agents, go_on, crashes=["kill", "torn"])
    assert report.points > 200


def changes_of(program: DiskProgram) -> list[tuple[str, str]]:
    """Return what each change of its disk is, and of which file, in order."""
    found: list[tuple[str, str]] = []

    async def main(sim: Sim) -> None:
        disk = Disk(sim)
        disk.files.disk.on_step = lambda it: found.append((it.kind, it.path.name))
        await program(sim, disk)

    assert simulate(main).error is None
    return found


def test_a_message_that_was_read_just_before_a_kill_is_not_read_once_more() -> None:
    """Between the transcript and the meta: two crashes that the sweep has found."""
    changes = changes_of(agents)
    read = "write", "agent-00000001.jsonl"
    noted = "create", "agent-00000001.meta.json.new"
    last = max(n for n, it in enumerate(pairwise(changes), 1) if it == (read, noted))
    for tape in (f"crash write torn-last {last}", f"crash create kill {last + 1}"):
        assert crash(agents, go_on, tape).error is None


async def launches(sim: Sim, disk: Disk) -> None:
    policy = AgentPolicy(run=answers)
    async with open_runtime(DIRECTORY, env=disk.env(), agents=policy) as runtime:
        for number in range(3):
            task = await runtime.launch(Agent(answers, f"go {number}"))
            disk.tell((task.id, f"go {number}"))
            if number == 1:
                await task.wait()
                await runtime.resume(task.id, "once more")
                disk.tell((task.id, "go 1 | once more"))
        await runtime.wait_idle()


async def all_known(sim: Sim, disk: Disk) -> None:
    """Whatever was launched, or was gone on with, has ended or waits to go on."""
    policy = AgentPolicy(run=answers)
    async with open_runtime(DIRECTORY, env=disk.env(), agents=policy) as runtime:
        paused = {it.id for it in runtime.tasks() if it.status is TaskStatus.PAUSED}
        results = dict[str, str | None]()
        with sim.within(60):
            for agent_id in paused:
                again = await (await runtime.resume(agent_id)).wait()
                results[agent_id] = again.result
        for note in runtime.notifications.drain():
            if note.kind == "task":
                assert note.status is TaskStatus.COMPLETED
                results[note.task_id] = parse(note.xml).findtext("result")
        for agent_id, last in dict(disk.told).items():
            result = results[agent_id]
            assert result is not None and result.startswith(last)


def test_each_agent_whose_launch_has_returned_has_ended_or_goes_on() -> None:
    report = crash_everywhere(launches, all_known, crashes=["kill", "torn"])
    assert report.points > 50


# ---- Agents below agents, and runs after a failure ---------------------------------------


async def below(context: AgentContext) -> AsyncIterator[AgentEvent]:
    yield AssistantMessage("at work")
    await trio.sleep(1)
    yield FinalResult("done")


async def above(context: AgentContext) -> AsyncIterator[AgentEvent]:
    await context.launch(Agent(below, "go"))
    await context.launch(Shell("build"))
    yield AssistantMessage("looking", (ToolUse("t1", "Look"),))
    await trio.sleep(0.5)
    yield UserMessage(tool_answers=(ToolAnswer("t1", "seen"),), origin="tools")
    yield TokensUsed(input_tokens=5, output_tokens=5)
    await trio.sleep(3)
    context.inbox.take()
    yield FinalResult("done")


async def stumbles(context: AgentContext) -> AsyncIterator[AgentEvent]:
    again = any(getattr(message, "text", "") == "trying" for message in context.history)
    yield AssistantMessage("trying")
    await trio.sleep(0.2)
    if not again:
        raise OSError("no such luck")
    context.inbox.take()
    yield FinalResult("done")


async def families(sim: Sim, disk: Disk) -> None:
    async with open_runtime(DIRECTORY, env=disk.env(COMMANDS)) as runtime:

        async def talk(
            agent: Agent, restart: Literal["temporary", "transient"]
        ) -> None:
            task = await runtime.launch(agent, restart=restart)
            await trio.sleep(0.1)
            await runtime.send(task.id, "one")
            disk.tell(task.id)
            await task.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk, Agent(above, "go", budget=Budget(99)), "temporary")
            nursery.start_soon(talk, Agent(stumbles, "go"), "transient")
        await runtime.wait_idle()


async def reunited(sim: Sim, disk: Disk) -> None:
    """As `Runtime.unfinished_agents` advises: an agent goes on, and those below it are
    taken from the list."""
    async with open_runtime(
        DIRECTORY, env=disk.env(COMMANDS), agents=AgentPolicy(run=answers)
    ) as runtime:
        left = runtime.unfinished_agents()
        listed = {meta.agent_id for meta in left}
        resumed = set[str]()
        with sim.within(60):
            for meta in left:
                if meta.owner in listed:
                    assert runtime.abandon_agent(meta.agent_id)
                else:
                    again = await (await runtime.resume(meta.agent_id)).wait()
                    assert again.error is None
                    resumed.add(again.id)
            await runtime.transcripts.flush()
        for agent_id in disk.told:
            found = runtime.agent_meta(agent_id)
            assert found is not None
            waiting = [text for text, _ in found.messages]
            assert [*each(await read(runtime, agent_id)), *waiting] == ["one"]
        assert runtime.unfinished_agents() == []
        assert resumed <= told_once(runtime)


def test_a_family_of_agents_goes_on_after_a_kill() -> None:
    report = crash_everywhere(families, reunited, crashes=["kill", "torn"])
    assert report.points > 100


# ---- What an agent hears of its own tasks ------------------------------------------------


def listens(disk: Disk) -> Run:
    async def run(context: AgentContext) -> AsyncIterator[AgentEvent]:
        """Start some shells, unless it has before, and hear of the ends of all."""
        begun = [it for it in context.history if getattr(it, "text", "") == "begun"]
        for _ in range(2 - len(begun)):
            own = await context.launch(Shell("true"))
            disk.tell((context.agent_id, own.id))
            yield AssistantMessage("begun")
        while len(told_of_ends(context.history)) < len(disk.told):
            await context.inbox.wait()
            yield AssistantMessage(f"heard {len(context.inbox.take())}")
            await trio.sleep(0.1)
        yield FinalResult("done")

    return run


def told_of_ends(messages: Iterable[Message]) -> list[str]:
    """Return the notifications in a conversation, by their ids."""
    texts = [it.text for it in messages if isinstance(it, UserMessage)]
    return [
        one for text in texts for one in re.findall("<notification-id>(.+?)<", text)
    ]


async def hears(sim: Sim, disk: Disk) -> None:
    async with open_runtime(DIRECTORY, env=disk.env(COMMANDS)) as runtime:
        await (await runtime.launch(Agent(listens(disk), "go"))).wait()


async def has_heard(sim: Sim, disk: Disk) -> None:
    """It hears of each end of its own tasks once, whatever it had taken by then."""
    env, policy = disk.env(COMMANDS), AgentPolicy(run=listens(disk))
    async with open_runtime(DIRECTORY, env=env, agents=policy) as runtime:
        with sim.within(60):
            for known in runtime.tasks():
                if known.status is TaskStatus.PAUSED:
                    await (await runtime.resume(known.id)).wait()
        for agent_id in {agent_id for agent_id, _ in disk.told}:
            transcript = await runtime.transcripts.load(agent_id)
            assert transcript is not None
            heard = told_of_ends(transcript.messages)
            assert len({*heard}) == len(heard) >= len(disk.told)
            text = str(transcript.messages)
            assert all(f"<task-id>{own}<" in text for _, own in disk.told)


def test_an_agent_hears_of_its_own_tasks_whenever_its_program_is_killed() -> None:
    """Also if it had taken what tells of them, and its transcript did not have it."""
    report = crash_everywhere(hears, has_heard, crashes=["kill", "torn"])
    assert report.points > 50


# ---- Transcripts that survive a loss of power ------------------------------------------


@asynccontextmanager
async def store(disk: Disk, warned: list[str]) -> AsyncGenerator[TranscriptStore]:
    def warn(agent_id: str, text: str) -> None:
        warned.append(text)

    store = TranscriptStore(DIRECTORY, disk.env(), warn, durable=True)
    disk.files.make_directory(DIRECTORY)
    writer = child("transcripts", transcript_writer, store, drain=5.0)
    async with open_supervisor([writer]):
        yield store


async def records(sim: Sim, disk: Disk, warned: list[str] | None = None) -> None:
    """Two agents say something, and each says how far it is in its meta."""
    warned = [] if warned is None else warned
    async with store(disk, warned) as kept, trio.open_nursery() as nursery:

        async def one(agent_id: str) -> None:
            log = kept.open_log(agent_id)
            for number in range(3):
                log.append(AssistantMessage(f"{number} of {agent_id}"))
                await log.flush()
                disk.tell((agent_id, "said", number))
                meta = AgentMeta(
                    agent_id=agent_id, run_id="r-1", status="running", resumes=number
                )
                kept.write_meta(meta)
                await kept.flush_meta(agent_id)
                disk.tell((agent_id, "meta", number))
            log.close()

        nursery.start_soon(one, "a")
        nursery.start_soon(one, "b")


async def recorded(sim: Sim, disk: Disk) -> None:
    warned: list[str] = []
    async with store(disk, warned) as kept:
        for agent_id in ("a", "b"):
            told = {what: n for name, what, n in disk.told if name == agent_id}
            transcript = await kept.load(agent_id)
            messages = [] if transcript is None else transcript.messages
            texts = [it.text for it in messages if isinstance(it, AssistantMessage)]
            assert texts == [f"{n} of {agent_id}" for n in range(3)][: len(texts)]
            assert len(texts) > told.get("said", -1)
            meta = kept.read_meta(agent_id)
            assert (-1 if meta is None else meta.resumes) >= told.get("meta", -1)
    assert all("lines of the transcript could not be read" in it for it in warned)


def test_a_durable_store_has_what_it_has_said_after_a_loss_of_power() -> None:
    report = crash_everywhere(records, recorded)
    assert report.points > 60


async def records_on_a_bad_disk(sim: Sim) -> list[str]:
    disk, warned = Disk(sim), list[str]()
    await records(sim, disk, warned)
    async with store(disk, []) as kept:
        for agent_id in ("a", "b"):
            transcript = await kept.load(agent_id)
            assert transcript is not None
            texts = [getattr(it, "text", "") for it in transcript.messages]
            assert texts == [f"{n} of {agent_id}" for n in range(3)]
            lines = disk.files.contents(
                DIRECTORY / f"agent-{agent_id}.jsonl"
            ).splitlines()
            assert len(lines) == len({*lines})
            meta = kept.read_meta(agent_id)
            assert meta is not None and meta.resumes == 2
    return warned


def test_a_durable_store_that_cannot_sync_says_so_and_writes_it_again_once() -> None:
    operations = ["files.sync", "files.append_lines", "files.replace"]
    report = fault_everywhere(records_on_a_bad_disk, seams=operations, schedules=2)
    assert {*report.arrivals} == {"EIO", "ENOSPC"}
    (told,) = simulate(records_on_a_bad_disk, tape="fault files.sync EIO 1").value
    assert told.startswith("the transcript could not be written")


# ---- A log that is rotated ---------------------------------------------------------------

LOG, OLDER = Path("/log"), Path("/log.1")


async def rotates(sim: Sim, disk: Disk) -> None:
    """Go on with a log: the last line that was said to be in it is there, and it can be
    rotated."""
    files = disk.files
    there = files.read_at(OLDER, 0, 999) + files.read_at(LOG, 0, 999)
    for line in disk.told[-1:]:
        assert line in there.split(b"\n")
    begin = files.create_output if files.size(LOG) is None else files.open_output
    file = begin(LOG)
    for _ in range(2):
        line = b"line %d" % len(disk.told)
        await file.append(b"\n" + line + b"\n")
        disk.tell(line)
        file.rotate(OLDER)
    await file.aclose()


def test_a_log_can_be_rotated_after_a_kill_in_the_middle_of_that() -> None:
    report = crash_everywhere(rotates, rotates, crashes=["kill", "torn"])
    assert report.points > 40
    # What it had left was in the way of each rotation from then on.
    assert crash(rotates, rotates, "crash rename kill 4").error is None
