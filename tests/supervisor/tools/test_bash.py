"""Bash: real commands, in the foreground, in the background, and moved there."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from actors import TaskStatus
from actors.shell import Shell
from actors.testing import Program, fake_env
from supervisor.lowlevel import life_of
from supervisor.runtime import (
    Limits,
    Notification,
    Notifications,
    Runtime,
    TaskBackgrounded,
    open_runtime,
)
from supervisor.settings import Settings
from supervisor.tools import Tool, ToolResult
from supervisor.tools._host import host_processes
from supervisor.tools._self_kill import ends_host, killed_process
from supervisor.tools._set import tools_for

pytestmark = pytest.mark.limit(110)

# Generous: machines are slow.
LONG = 100_000


class Bash:
    """The tool of "main", and the runtime that it works on."""

    def __init__(self, runtime: Runtime, settings: Settings) -> None:
        self.runtime = runtime
        self._tools = {t.name: t for t in tools_for(runtime, "main", settings)}

    async def __call__(
        self, command: str, tool_use_id: str | None = None, **arguments: Any
    ) -> ToolResult:
        result = await self._tools["Bash"].call(
            {"command": command} | arguments, tool_use_id=tool_use_id
        )
        assert not re.search(
            r"(end|finish|stop) (your|the) (turn|response)", result.text
        )
        return result

    def tool(self, name: str) -> Tool:
        return self._tools[name]


@asynccontextmanager
async def bash(
    directory: Path, *, limits: Limits | None = None, **settings: Any
) -> AsyncGenerator[Bash, None]:
    with trio.fail_after(100):
        async with open_runtime(directory, limits=limits) as runtime:
            yield Bash(runtime, Settings(**settings))
            await runtime.stop_all(now=True)


# In the foreground


async def test_a_command_answers_with_its_exit_code_and_output(tmp_path: Path) -> None:
    """SH1: stdout and stderr in the order of arrival."""
    async with bash(tmp_path) as run:
        result = await run("echo one; echo two >&2; echo three", timeout=LONG)
    assert (result.text, result.is_error) == ("Exit code 0\none\ntwo\nthree\n", False)
    task_id = result.data.pop("task_id")
    assert result.data == {
        "status": "completed",
        "exitCode": 0,
        "signal": None,
        "interrupted": False,
        "output": "one\ntwo\nthree\n",
    }
    assert run.runtime.get(task_id).owner == "main"
    assert run.runtime.notifications.drain() == []


@pytest.mark.parametrize(
    ("command", "first", "data"),
    [
        ("echo x; exit 3", "Exit code 3", {"exitCode": 3, "signal": None}),
        ("kill -9 $$", "Ended by signal 9 (SIGKILL)", {"exitCode": None, "signal": 9}),
        ("no-such-program-1", "Exit code 127", {"exitCode": 127}),
    ],
)
async def test_a_command_that_fails_is_an_error_and_says_how(
    command: str, first: str, data: dict[str, Any], tmp_path: Path
) -> None:
    """SH1, SH16: exact codes and signals."""
    async with bash(tmp_path) as run:
        result = await run(command, timeout=LONG)
    assert result.is_error and result.text.splitlines()[0] == first
    assert result.data["status"] == "failed"
    assert result.data.items() >= data.items()


async def test_a_command_without_output_says_so(tmp_path: Path) -> None:
    """An empty answer reads like a lost one."""
    async with bash(tmp_path) as run:
        assert (await run("true", timeout=LONG)).text == "Exit code 0\n(no output)"


async def test_the_directory_and_the_description_reach_the_task(tmp_path: Path) -> None:
    """The arguments do what the schema says."""
    where = tmp_path / "somewhere"
    where.mkdir()
    async with bash(tmp_path / "tasks") as run:
        result = await run(
            "pwd -P", cwd=str(where), description="where it is", timeout=LONG
        )
        snapshot = run.runtime.get(result.data["task_id"])
    assert result.data["output"] == f"{where.resolve()}\n"
    assert snapshot.description == "where it is"


async def test_a_directory_that_is_not_there_is_a_failed_command(
    tmp_path: Path,
) -> None:
    """SH11: it has an id, so it is a failed task."""
    async with bash(tmp_path) as run:
        result = await run("pwd", cwd=str(tmp_path / "gone"), timeout=LONG)
        plain = await run("pwd", cwd=__file__, timeout=LONG)
    gone = tmp_path / "gone"
    assert result.text.splitlines()[0] == (
        f"The directory '{gone}' does not exist: nothing was run"
    )
    assert result.is_error and result.data["exitCode"] is None
    assert result.data["status"] == "failed"
    assert (
        plain.text.splitlines()[0]
        == f"'{__file__}' is not a directory: nothing was run"
    )


async def test_a_file_that_the_command_misses_is_not_taken_for_its_directory(
    tmp_path: Path,
) -> None:
    """SH11: only what kept it from beginning is told so."""
    async with bash(tmp_path) as run:
        result = await run("cd ./gone", cwd=str(tmp_path), timeout=LONG)
    assert result.text.startswith("Exit code 1\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"command": "a\0b"}, "NUL"),
        ({"command": "  "}, "must not be empty"),
        ({"command": "echo \ud800"}, "no program can be given"),
        ({"command": "pwd", "cwd": "a\0b"}, "cwd .*NUL"),
        ({"command": "x\0" * 100_000}, "NUL"),
    ],
)
async def test_what_no_shell_can_be_given_is_refused(
    arguments: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """An error that a model can act on, and no task."""
    async with bash(tmp_path) as run:
        result = await run(**arguments)
        assert result.is_error and result.data == {"error": "invalid_arguments"}
        assert re.search(words, result.text) and len(result.text) < 500
        result.text.encode()
        assert run.runtime.tasks() == []


async def test_long_output_keeps_its_end_and_names_the_file(tmp_path: Path) -> None:
    """OF1: the header, no more than the settings say, and no part of a line."""
    async with bash(tmp_path, max_output_length=1000) as run:
        result = await run("seq 1 100000", timeout=LONG)
        output = result.data["output"]
        file = run.runtime.get(result.data["task_id"]).output_file
        assert file is not None and file.read_text().endswith("\n99999\n100000\n")
    assert output.startswith(f"[Truncated. Full output: {file}]\n")
    assert output.endswith("\n99999\n100000\n")
    _, *lines = output.splitlines()
    assert lines == [str(number) for number in range(int(lines[0]), 100_001)]
    assert 1000 - len("99999\n") <= len(output) <= 1000
    told = "Exit code 0. Only the end of its 588,895 bytes of output follows\n"
    assert result.text == told + output
    assert result.data["truncated"] is True
    assert result.data["outputBytes"] == 588_895


@pytest.mark.parametrize("length", [999, 1000])
async def test_a_header_that_a_command_prints_is_told_apart(
    length: int, tmp_path: Path
) -> None:
    """OF1: output that is there in full is never told as truncated, though it has
    the very form, and the length, of output that is."""
    header = (
        "[Truncated. Full output: /dev/null]\\nOnly the end of its output follows\\n"
    )
    async with bash(tmp_path, max_output_length=1000) as run:
        result = await run(
            f"printf '{header}'; printf %0{length - len(header) + 2}d 0", timeout=LONG
        )
    assert len(result.data["output"]) == length
    first, _, rest = result.text.partition("\n")
    assert first == "Exit code 0" and rest == result.data["output"]
    assert "truncated" not in result.data


async def test_what_a_command_left_behind_is_told_with_its_end(tmp_path: Path) -> None:
    """SH2: a server that was started with & has not survived, and the model must
    know; a restarted task would tell of its last run."""
    (tmp_path / "once").touch()
    async with bash(tmp_path) as run:
        one = await run("sleep 1000 & echo ok", timeout=LONG)
        two = await run("sleep 1000 & sleep 1000 & exit 3", timeout=LONG)
        task = await run.runtime.launch(Shell("sleep 1000 & true"), owner="main")
        read = await run.tool("TaskOutput").call({"task_id": task.id})
        assert task.snapshot().left_behind == 1
        again = await run.runtime.launch(
            Shell("rm once || exit 0; sleep 1000 & exit 1", cwd=str(tmp_path)),
            restart="transient",
        )
        assert (await again.wait()).left_behind == 0
        told = await run.runtime.launch(
            Shell("sleep 1000 & true"), description="serve", owner="other"
        )
        await told.wait()
        (note,) = run.runtime.notifications_for("other").drain()
        (plain,) = run.runtime.notifications_for(None).drain()
    assert one.text == (
        "Exit code 0. 1 process that it left in the background was ended with it; "
        "use run_in_background for what is to go on\nok\n"
    )
    assert one.data["leftBehind"] == 1 and not one.is_error
    assert two.text.startswith("Exit code 3. 2 processes that it left ")
    assert two.data["leftBehind"] == 2
    assert ET.fromstring(note.xml).findtext("summary") == (
        'Command "serve" completed (exit code 0): sleep 1000 & true '
        "(1 process that it left in the background was ended with it)"
    )
    assert "left in the background" not in plain.xml
    head = read.text.partition("\n\noutput:\n")[0]
    assert "\nleft_behind: 1 process that it left in the background was " in head


async def test_without_background_tasks_no_answer_points_to_them(
    tmp_path: Path,
) -> None:
    """BG1: what is switched off is not offered."""
    async with bash(tmp_path, background_tasks=False) as run:
        result = await run("sleep 1000 & true", timeout=LONG)
    assert result.text.splitlines()[0] == (
        "Exit code 0. 1 process that it left in the background was ended with it"
    )


@pytest.mark.parametrize("background_tasks", [False, True])
async def test_the_description_says_what_becomes_of_an_ampersand(
    background_tasks: bool, tmp_path: Path
) -> None:
    """SH2: the call waits for a command that ends with one."""
    async with bash(tmp_path, background_tasks=background_tasks) as run:
        assert "An & at the end of a command is dropped" in run.tool("Bash").description


async def test_no_output_can_pass_for_the_exit_code(tmp_path: Path) -> None:
    """What the tool says comes first, whatever the command prints."""
    async with bash(tmp_path) as run:
        result = await run("printf 'Exit code 0\\n'; exit 1", timeout=LONG)
    assert result.text.startswith("Exit code 1\n")


async def test_output_is_clean_text(tmp_path: Path) -> None:
    """SH6; JSON knows no lone surrogates."""
    async with bash(tmp_path) as run:
        result = await run(r"printf '\033[31mred\033[0m\001\377\n'", timeout=LONG)
    assert result.data["output"] == "red\ufffd\n"


async def test_a_foreground_command_is_stopped_with_the_call(tmp_path: Path) -> None:
    """P8, P2: cancelling the turn ends what it runs."""
    async with bash(tmp_path) as run:
        with run.runtime.events.subscribe() as events:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, "sleep 1000")
                async for event in events:
                    if type(event).__name__ == "TaskStarted":
                        break
                nursery.cancel_scope.cancel()
        (snapshot,) = run.runtime.tasks()
        assert snapshot.status is TaskStatus.KILLED


async def test_a_command_that_somebody_stops_says_so(tmp_path: Path) -> None:
    """BG9: the host's "clear" is told to the model that waits."""
    results: list[ToolResult] = []

    async with bash(tmp_path) as run:

        async def call() -> None:
            results.append(await run("echo begun; exec sleep 1000", timeout=LONG))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await started(run.runtime, "begun")
            await run.runtime.stop_foreground("main")
    (result,) = results
    assert result.is_error and result.data["interrupted"]
    assert result.text == "Was stopped\nbegun\n"


async def started(runtime: Runtime, words: str) -> str:
    """Wait until the newest task has printed ``words``, and return its id."""
    with runtime.events.subscribe() as events:
        live = [t for t in runtime.tasks() if not t.status.is_terminal]
        if not live:
            async for event in events:
                if type(event).__name__ == "TaskStarted":
                    break
    task = runtime.handle(runtime.tasks()[-1].id)
    await task.wait_output(words)
    return task.id


# In the background


async def test_a_background_command_answers_at_once_with_id_and_file(
    tmp_path: Path,
) -> None:
    """BG2, N45, N47; its end is told once, with the id of the model's call."""
    async with bash(tmp_path) as run:
        result = await run(
            "cat; exit 4", run_in_background=True, stdin=True, tool_use_id="toolu_7"
        )
        task = run.runtime.handle(result.data["backgroundTaskId"])
        file = task.snapshot().output_file
        assert not result.is_error
        assert result.data == {
            "status": "async_launched",
            "code": 0,
            "backgroundTaskId": task.id,
            "outputFile": str(file),
            "interrupted": False,
        }
        assert task.id in result.text and str(file) in result.text
        assert "moved" not in result.text
        await task.close_input()
        await task.wait()
        async for note in run.runtime.notifications:
            assert note.task_id == task.id
            assert "<tool-use-id>toolu_7</tool-use-id>" in note.xml
            note.ack()
            break


async def test_a_background_command_that_waits_for_a_place_says_so(
    tmp_path: Path,
) -> None:
    """SM28: pending is not running."""
    async with bash(tmp_path, limits=Limits(total=1)) as run:
        await run("exec sleep 1000", run_in_background=True)
        result = await run("exec sleep 1000", run_in_background=True)
        assert "has not begun" in result.text
        assert (
            run.runtime.get(result.data["backgroundTaskId"]).status
            is TaskStatus.PENDING
        )


async def test_a_background_command_whose_file_cannot_be_made_has_failed(
    tmp_path: Path,
) -> None:
    """SH9; the answer tells of the end, so no notification does."""
    directory = tmp_path / "tasks"
    async with bash(directory) as run:
        away = directory.rename(tmp_path / "away")
        try:
            result = await run("true", run_in_background=True)
        finally:
            away.rename(directory)
        assert result.is_error and result.text.startswith("FileNotFoundError: ")
        assert run.runtime.notifications.drain() == []


# Moved


async def test_a_timeout_moves_the_command_and_the_same_run_goes_on(
    tmp_path: Path,
) -> None:
    """SH40, BG2, BG5, N44: not stopped, not started again, and its end is told."""
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    async with bash(tmp_path / "tasks") as run:
        with run.runtime.events.subscribe() as events:
            result = await run(f"echo begun; cat {fifo}; echo ended", timeout=1)
            task = run.runtime.handle(result.data["backgroundTaskId"])
            assert not result.is_error
            assert result.data["backgroundedByTimeout"] is True
            assert "backgroundedByUser" not in result.data
            assert result.data["status"] == "async_launched"
            assert result.data["outputFile"] == str(task.snapshot().output_file)
            assert result.text.startswith("The command did not end within 1 ms. It ")
            assert "It was not stopped" in result.text
            assert task.status is TaskStatus.RUNNING
            async with await trio.open_file(fifo, "w") as go:
                await go.write("going on\n")
            assert (await task.wait()).status is TaskStatus.COMPLETED
            assert task.read_tail() == "begun\ngoing on\nended\n"
            kinds = [
                type(e).__name__
                for e in events.drain()
                if getattr(e, "task_id", None) == task.id
            ]
        assert kinds.count("TaskStarted") == 1
        assert kinds.count("TaskBackgrounded") == 1
        async for note in run.runtime.notifications:
            assert (note.task_id, note.status.value) == (task.id, "completed")
            break


async def test_a_move_by_the_user_is_told_apart_from_a_timeout(tmp_path: Path) -> None:
    """SH40, BG1, BG2, BG5: backgroundedByUser; what the call has waited for is
    not lost."""
    results: list[ToolResult] = []

    async with bash(tmp_path) as run:

        async def call() -> None:
            results.append(await run("echo begun; exec sleep 1000", timeout=LONG))

        with run.runtime.events.subscribe() as events:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                task_id = await started(run.runtime, "begun")
                assert run.runtime.background(task_id) is True
                assert run.runtime.background(task_id) is False
            moves = [e for e in events.drain() if isinstance(e, TaskBackgrounded)]
        (result,) = results
        assert [move.task_id for move in moves] == [task_id]
        assert result.data["backgroundedByUser"] is True
        assert "backgroundedByTimeout" not in result.data
        assert result.data["backgroundTaskId"] == task_id
        assert result.data["interrupted"] is False
        assert result.data["output"] == "begun\n"
        assert result.text.endswith("\n\nOutput so far:\nbegun\n")
        assert result.text.startswith("The user moved the command to the background")
        assert run.runtime.get(task_id).status is TaskStatus.RUNNING


@pytest.mark.parametrize("reads_meanwhile", [False, True])
async def test_an_end_during_the_move_is_told_exactly_once(
    reads_meanwhile: bool, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """P4, BG2, BG7: by the answer or by a notification, at whichever step the
    command ends, and whether or not a reader waits for the notification."""
    told: set[bool] = set()

    for steps in range(40):
        end = trio.Event()

        async def script(program: Program, end: trio.Event = end) -> int:
            await end.wait()
            return 0

        async with open_runtime(tmp_path, env=fake_env({"work": script})) as runtime:
            run = Bash(runtime, Settings())
            results: list[ToolResult] = []

            notes: list[Notification] = []

            async def call(run: Bash = run, to: list[ToolResult] = results) -> None:
                to.append(await run("work", timeout=1000))

            async def read(
                view: Notifications = runtime.notifications,
                to: list[Notification] = notes,
            ) -> None:
                while True:
                    to.append(await anext(view))

            async with trio.open_nursery() as readers:
                if reads_meanwhile:
                    readers.start_soon(read)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(call)
                    await trio.testing.wait_all_tasks_blocked()
                    end.set()
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    runtime.background_all("main")
                await runtime.wait_idle()
                await trio.testing.wait_all_tasks_blocked()
                readers.cancel_scope.cancel()
            notes += runtime.notifications.drain()
            by_answer = results[0].data["status"] == "completed"
            assert len(notes) + by_answer == 1
            told.add(by_answer)
    assert told == {True, False}


async def test_the_user_moves_all_commands_of_a_turn_at_once(tmp_path: Path) -> None:
    """BG4."""
    results: list[ToolResult] = []

    async with bash(tmp_path) as run:

        async def call() -> None:
            results.append(await run("exec sleep 1000", timeout=LONG))

        with run.runtime.events.subscribe() as events:
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(call)
                begun = 0
                async for event in events:
                    begun += type(event).__name__ == "TaskStarted"
                    if begun == 3:
                        break
                moved = run.runtime.background_all("main")
        assert len(moved) == 3
        assert {r.data["backgroundTaskId"] for r in results} == set(moved)
        assert all(r.data["backgroundedByUser"] for r in results)


async def test_a_command_that_has_ended_cannot_be_moved(tmp_path: Path) -> None:
    """BG3: neither by the user nor by a timeout that comes late."""
    async with bash(tmp_path) as run:
        result = await run("true", timeout=LONG)
        assert run.runtime.background(result.data["task_id"]) is False


async def test_a_command_that_gets_no_place_in_time_waits_in_the_background(
    tmp_path: Path,
) -> None:
    """SH40: nothing has been run, and the call does not hang."""
    async with bash(tmp_path, limits=Limits(total=1)) as run:
        other = await run.runtime.launch(Shell("exec sleep 1000"))
        result = await run("echo ran", timeout=50)
        task = run.runtime.handle(result.data["backgroundTaskId"])
        assert result.data["backgroundedByTimeout"] is True
        assert "It has not begun" in result.text
        assert task.status is TaskStatus.PENDING
        # It is the same task, not another one in its place.
        assert [t.id for t in run.runtime.tasks()] == [other.id, task.id]
        await other.stop(now=True)
        assert (await task.wait()).result == "ran\n"


async def test_without_background_tasks_a_timeout_stops_the_command(
    tmp_path: Path,
) -> None:
    """The seeds' switch: nothing goes on behind the model's back."""
    async with bash(tmp_path, background_tasks=False) as run:
        result = await run("exec sleep 1000", timeout=100)
        refused = await run("true", run_in_background=True)
        assert refused.is_error and "unknown: 'run_in_background'" in refused.text
        (snapshot,) = run.runtime.tasks()
    assert result.is_error and result.data["interrupted"]
    assert result.text == (
        "Was stopped, because it did not end within 100 ms\n(no output)"
    )
    assert snapshot.status is TaskStatus.FAILED


async def test_a_runtime_that_stops_ends_the_call_with_the_truth(
    tmp_path: Path,
) -> None:
    """P1: the error of the runtime comes out as itself, not in a group."""
    results: list[ToolResult] = []

    async with bash(tmp_path) as run:

        async def call() -> None:
            results.append(await run("echo begun; exec sleep 1000", timeout=LONG))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await started(run.runtime, "begun")
            await run.runtime.stop_all(reason="closing", now=True)
        life_of(run.runtime).close()
        results.append(await run("true"))
    assert [r.data.get("error") for r in results] == [None, "stopping"]
    assert results[0].text == "Was stopped\nbegun\n"


# Commands that would end the host


@pytest.mark.parametrize(
    "command",
    [
        "pkill python",
        "pkill -9 python3",
        "killall -q python",
        "killall -s KILL python",
        "sudo -n pkill -f python",
        "make; pkill python",
        "make && /usr/bin/killall python3 || true",
        "X=1 env pkill '^python$'",
        "echo hi # comment\npkill python",
        "(pkill python)",
        "if true; then pkill python; fi",
        "sleep 1 & pkill 'python*'",
        "pkill -u root trio-supervisor",
    ],
)
def test_a_command_that_ends_every_process_of_the_host_is_found(command: str) -> None:
    """SH31."""
    assert ends_host(command, ("python", "python3", "trio-supervisor"))


@pytest.mark.parametrize(
    "command",
    [
        "python pkill.py",
        "echo pkill python",
        "pkill -f 'python train.py'",
        "pkill node",
        "killall make",
        "pgrep python",
        "kill 1234",
        "grep 'pkill python' notes.txt",
        "# pkill python",
        "man pkill # python",
        "pkill -P 12 make",
        "echo 'pkill python",
        "pkill",
    ],
)
def test_other_commands_are_left_alone(command: str) -> None:
    """SH31."""
    assert ends_host(command, ("python", "python3", "trio-supervisor")) is None


@given(st.text(alphabet="pkill python;&|()\n'\"\\#-={}! "))
def test_any_command_is_looked_at_without_an_error(command: str) -> None:
    """SH31."""
    assert ends_host(command + "pkill", ("python",)) in (None, "python")


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("kill 4711", 4711),
        ("kill -9 4711", 4711),
        ("kill -KILL 1 4711", 4711),
        ("kill -s TERM 4711", 4711),
        ("kill -n 15 4711", 4711),
        ("kill -9 -4711", 4711),
        ("kill -- -4711", 4711),
        ("sleep 1; /bin/kill -STOP 4711", 4711),
        ("sudo -n kill 4711 || true", 4711),
        ("kill -9 -1", -1),
        ("kill 4712", None),
        ("kill -0 4711", None),
        ("kill -l 4711", None),
        ("kill %1", None),
        ("kill $!", None),
        ("kill", None),
        ("kill -9", None),
        ("kill -s", None),
        ("kill -4711", None),
        ("kill " + "9" * 5000, None),
        ("kill 4711 2>/dev/null", 4711),
        ("echo $(kill 4711)", 4711),
        ("echo `kill 4711`", 4711),
        ("echo 'kill 4711'; echo \"kill 4711\"", None),
        ("kill 1 >4711", None),
        ("echo kill 4711", None),
        ("kill 47110", None),
        ("echo 4711 | xargs echo", None),
    ],
)
def test_an_id_of_the_host_is_found_where_it_stands_plainly(
    command: str, found: int | None
) -> None:
    """SH31: also a group, and everything at once; to look is no harm."""
    assert killed_process(command, lambda: {4711}) == found


@given(st.text(alphabet="kill 0123;&|()\n'\"\\#-={}! "))
def test_any_kill_is_looked_at_without_an_error(command: str) -> None:
    """SH31."""
    assert killed_process(command + " kill", lambda: {1}) in (None, 1, -1)


def test_the_host_is_this_process_and_its_parents() -> None:
    """SH31."""
    found = host_processes()
    assert {os.getpid(), os.getppid(), os.getpgrp()} <= found
    if Path("/proc/self/status").exists() and os.getppid():
        status = Path(f"/proc/{os.getppid()}/status").read_text()
        (parent,) = re.findall(r"^PPid:\s*(\d+)$", status, re.MULTILINE)
        assert int(parent) in found | {0}


async def test_a_kill_of_the_host_or_of_a_parent_is_refused(tmp_path: Path) -> None:
    """SH31. A SIGCONT would harm nobody, if this fails."""
    async with bash(tmp_path) as run:
        for pid in (os.getpid(), os.getppid(), -1):
            result = await run(f"kill -CONT {pid}")
            assert result.is_error and result.data == {"error": "ends_host"}
            assert "TaskStop" in result.text
        assert run.runtime.tasks() == []
        result = await run("sleep 1000 & kill $!; kill -0 $$", timeout=LONG)
        assert result.data["exitCode"] == 0


async def test_a_command_that_would_end_the_host_is_refused_and_points_to_task_stop(
    tmp_path: Path,
) -> None:
    """SH31."""
    async with bash(tmp_path) as run:
        result = await run("pkill -9 python")
        assert result.is_error and result.data == {"error": "ends_host"}
        assert "TaskStop" in result.text
        assert run.runtime.tasks() == []
