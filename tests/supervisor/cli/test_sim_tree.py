"""``trio-supervisor sim tree``: the tree of a recorded log, and its timeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from actors import Context
from actors.shell import Shell
from actors.testing import Program, fake_env
from supervisor.cli._command import command
from supervisor.runtime import open_runtime
from supervisor.simulation.log import record
from supervisor.tree import child, open_supervisor


async def answer(program: Program) -> None:
    await program.print("hi\n")


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "run.jsonl"

    async def main() -> None:
        async with fake_env({"ask": answer}) as env:
            with record(path) as log:
                opened = open_runtime("tasks", env=env)
                async with log.recording(opened) as runtime:
                    task = await runtime.launch(Shell("ask"))
                    await task.wait()

    trio.run(main)
    return str(path)


def test_the_tree_has_each_task_with_its_life(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["sim", "tree", log, "--format", "json"]) == 0
    (runtime,) = json.loads(capsys.readouterr().out)
    assert (runtime["name"], runtime["exit"]) == ("runtime", "stopped")
    below = {it["name"]: it["children"] for it in runtime["children"]}
    (task,) = below["shells"]
    assert task["name"].endswith(": ask") and task["exit"] == "completed"
    assert runtime["began"] <= task["began"] <= task["ended"] <= runtime["ended"]
    assert command(["sim", "tree", log]) == 0
    assert capsys.readouterr().out.startswith("graph TD")
    assert command(["sim", "tree", log, "--format", "dot"]) == 0
    assert capsys.readouterr().out.startswith("digraph")


def test_the_timeline_of_a_log_is_for_perfetto(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["sim", "tree", log, "--format", "perfetto"]) == 0
    told = json.loads(capsys.readouterr().out)
    names = {
        it["tid"]: it["args"]["name"] for it in told["traceEvents"] if it["ph"] == "M"
    }
    on = {
        (names[it["tid"]].rpartition(": ")[2], it["name"]) for it in told["traceEvents"]
    }
    for name in ("TaskStarted", "ProcessStarted", "ProcessExited", "TaskEnded"):
        assert ("ask", name) in on
    assert ("log", "LogEnded") in on and ("shells", "shells") in on
    assert all(it.get("ts", 0) >= 0 for it in told["traceEvents"])


def test_the_children_that_a_supervisor_opens_with_live_from_then_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have started before the log begins, so only it says that they are there."""
    path = tmp_path / "tree.jsonl"

    async def fails(ctx: Context[None]) -> None:
        await trio.sleep(7)
        raise LookupError

    async def main() -> None:
        opened = open_supervisor([child("worker", fails)], name="top")
        with record(path) as log:
            async with log.recording(opened):
                await trio.sleep(8)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert command(["sim", "tree", str(path), "--format", "json"]) == 0
    (top,) = json.loads(capsys.readouterr().out)
    lived = {it["name"]: it["ended"] - it["began"] for it in top["children"]}
    assert lived == {
        "worker": pytest.approx(7, abs=0.1),
        "worker (2)": pytest.approx(1, abs=0.1),
    }


def test_what_is_no_log_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, empty = tmp_path / "other", tmp_path / "empty"
    other.write_text("nonsense\n")
    empty.write_text("")
    for path, text in (
        (other, f"{other}: line 1: it is no JSON"),
        (empty, "no supervisor and no child is in it"),
        (tmp_path / "missing", "missing"),
    ):
        assert command(["sim", "tree", str(path)]) == 2
        assert text in capsys.readouterr().err
