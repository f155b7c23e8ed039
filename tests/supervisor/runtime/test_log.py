"""What the log says, and that nobody can write into it what he likes."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from actors import Context
from actors.agent import AgentContext, AgentEvent, FinalResult, ToolUse
from actors.shell import Shell
from actors.testing import fake_env
from actors.work import Report
from supervisor.runtime import Warned, open_runtime
from supervisor.tree import child, open_supervisor
from tests.supervisor.jobs import FAILED, Job, agent

EVIL = "\x1b]0;owned\x07\x1b[2Jrm\r\n2026-01-01 CRITICAL all is lost\u202e\x9b1m"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("restart", ["temporary", "transient"])
async def test_an_exit_code_is_a_result_and_the_log_says_of_what(
    restart: str,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P10: no crash, and no traceback."""
    caplog.set_level(logging.DEBUG)
    async with open_runtime("/tasks", env=fake_env({"make all": 2})) as runtime:
        task = await runtime.launch(Shell("make all"), restart=restart)  # type: ignore[arg-type]
        assert (await task.wait()).status is FAILED
    assert caplog.records
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    assert all(record.exc_info is None for record in caplog.records)
    assert any("exit code 2 (make all)" in line for line in lines(caplog))


async def test_a_crash_of_a_work_is_an_error_with_its_traceback(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """P10."""

    async def body(ctx: Context[object], report: Report) -> None:
        raise ValueError("no")

    async with open_runtime("/tasks", env=fake_env()) as runtime:
        await (await runtime.launch(Job(body))).wait()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


PLAIN_TREE = """
import trio
from supervisor.tree import child, open_supervisor

async def crashes(ctx):
    raise ValueError("a crash that nobody reads of")

async def main():
    async with open_supervisor([child("a", crashes, restart="temporary")]):
        await trio.sleep(0.01)

trio.run(main)
"""


def test_a_crash_in_a_plain_tree_reaches_stderr_without_any_configuration() -> None:
    """P10."""
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_TREE], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "supervisor/a failed" in done.stderr
    assert "ValueError: a crash that nobody reads of" in done.stderr


async def test_a_name_that_a_model_has_made_up_is_one_clean_line_in_log_and_warning(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """P5: made and not yielded, unknown, and in the error of the run."""

    async def loop(context: AgentContext) -> AsyncIterator[AgentEvent]:
        await context.use_tools([ToolUse("1", EVIL, {"x": EVIL})])
        yield FinalResult("", "error", error=EVIL)

    async with open_runtime("/tasks", env=fake_env()) as runtime:
        events = runtime.events.subscribe()
        await (await runtime.launch(agent(loop))).wait()
        warnings = [e.text for e in events.drain() if isinstance(e, Warned)]
    assert any("rm" in text for text in warnings)
    told = [*warnings, *lines(caplog)]
    assert len(told) > len(warnings)
    for text in told:
        assert not set(text) & set("\x1b\x07\r\n\u202e\x9b")


async def test_an_error_cannot_forge_a_line_of_the_log_with_escapes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """P5: the name of a child and the text of an error; the error itself is there."""

    async def crashes(ctx: Context[object]) -> None:
        raise ValueError(EVIL)

    async with open_supervisor([child("a\x1b[2J\nb", crashes, restart="temporary")]):
        await trio.testing.wait_all_tasks_blocked()
    (record,) = caplog.records
    assert record.getMessage().endswith("/a b failed")
    shown = logging.Formatter("%(message)s").format(record)
    assert "all is lost" in shown
    assert not set(shown) & set("\x1b\x07\u202e\x9b")
    assert record.funcName == "_log_failure"
