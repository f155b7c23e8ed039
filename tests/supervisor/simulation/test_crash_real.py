"""Real processes that are killed at the changes at which simulated ones crash."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors.agent import (
    Agent,
    AgentContext,
    AgentEvent,
    AssistantMessage,
    FinalResult,
)
from actors.env import Files, real_env
from actors.testing import DiskImage, DiskStep, FakeFiles
from supervisor.agents import AgentPolicy
from supervisor.runtime import open_runtime
from tests.supervisor.simulation.test_crash_ourselves import found_by_the_next
from tests.supervisor.talkers import answers, sent

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")

ROOT = Path(__file__).parents[3]
KILLED = "tests.actors.system.killed"


def killed(
    function: str, directory: Path, places: Sequence[str]
) -> dict[str, list[Any]]:
    """Return what each run has told before it was killed, by its place."""
    done = subprocess.run(
        [sys.executable, "-m", KILLED, __name__, function, str(directory), *places],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=60,
    )
    found: dict[str, list[Any]] = {}
    told: list[Any] = []
    for line in done.stdout.splitlines():
        if line.startswith("("):
            told.append(ast.literal_eval(line))
        else:
            place, _, how = line.partition(" ")
            assert how in ("signal 9", "ended"), line
            found[place], told = ([*told, "ended"] if how == "ended" else told), []
    return found


# ---- The same disk ---------------------------------------------------------------------


def changes(files: Files, here: Path) -> None:
    """Change a directory in each way."""
    files.append_lines(here / "log", b"one\n", durable=True)
    files.append_lines(here / "log", b"two\n")
    files.replace(here / "meta", b"first")
    files.replace(here / "meta", b"second", durable=True)
    files.link(here / "link", "log")
    files.reserve(here / "empty")
    files.remove(here / "empty")

    async def output() -> None:
        file = files.create_output(here / "out")
        await file.append(b"line 1\n")
        file.rotate(here / "out.1")
        await file.append(b"line 2\n")
        await file.aclose()

    trio.run(output)


def real_changes(directory: Path) -> None:
    changes(real_env().files, directory)


def contents(files: Files, here: Path) -> dict[str, bytes | None]:
    return {
        name: None
        if files.size(here / name) is None
        else files.read_at(here / name, 0, 99)
        for name in files.names(here)
    }


def test_a_real_kill_leaves_what_the_disk_in_memory_says(tmp_path: Path) -> None:
    """At each change, and in the middle of each write."""
    files, here = FakeFiles(), Path("/here")
    images: list[tuple[DiskImage, DiskStep]] = []
    files.make_directory(here)
    files.disk.on_step = lambda step: images.append((files.disk.image(), step))
    changes(files, here)
    expected: dict[str, dict[str, bytes | None]] = {}
    for number, (image, step) in enumerate(images, 1):
        for written in {0, len(step.data) // 2, len(step.data) - 1} - {-1}:
            left = FakeFiles(image.killed(step, written))
            expected[f"{number}-{written}"] = contents(left, here)
    found = killed("real_changes", tmp_path, [*expected])
    assert len(found) > 30
    for place, there in expected.items():
        assert found[place] == []
        assert contents(real_env().files, tmp_path / place) == there, place
    late = f"{len(images) + 1}-0"
    assert killed("real_changes", tmp_path, [late])[late] == ["ended"]


# ---- The same promises -------------------------------------------------------------------


async def works(context: AgentContext) -> AsyncIterator[AgentEvent]:
    """Say something after each message, until it is told to end."""
    yield AssistantMessage("at work")
    while "end" not in sent(context.history):
        await context.inbox.wait()
        context.inbox.take()
        yield AssistantMessage(f"heard {len(sent(context.history))}")
    yield FinalResult("done")


def talks(directory: Path) -> None:
    """Send messages to an agent of our runtime, and tell which were taken."""

    async def main() -> None:
        async with open_runtime(directory, agents=AgentPolicy(run=answers)) as runtime:
            task = await runtime.launch(Agent(works, "go"))
            for text in ("one", "two", "end"):
                # Or it would depend on speed how many changes there are before.
                await trio.testing.wait_all_tasks_blocked()
                await runtime.transcripts.flush()
                await runtime.send(task.id, text)
                print(("sent", task.id, text), flush=True)
            await task.wait()
            await runtime.transcripts.flush()
            print(("ended", task.id, "completed"), flush=True)

    trio.run(main)


@pytest.mark.limit(100)
async def test_a_real_runtime_that_is_killed_leaves_what_the_model_allows(
    tmp_path: Path,
) -> None:
    """AG22, TR6: by the checks by which the simulated ones are judged."""
    # Of a run of about 35: the first changes, writes in their middle, and late ones.
    places = (
        "1-0 2-5 4-0 6-100 9-0 12-50 13-0 15-0 17-60 19-0 22-0 25-40 27-0 29-0".split()
    )
    # There are more of them the later the threads are.
    places += ["31-0", "33-0", "36-0"]
    runs = await trio.to_thread.run_sync(killed, "talks", tmp_path, places)
    assert [*runs] == places
    assert sum("ended" not in told for told in runs.values()) > 8
    assert sum(len(told) for told in runs.values()) > 10
    for place, told in runs.items():
        taken = [it for it in told if it != "ended"]
        await found_by_the_next(tmp_path / place, real_env(), taken)
