"""The command, run as people run it: in a process of its own."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import re
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio
import trio.testing

from supervisor.cli import _stdout, _tables
from supervisor.cli._stdout import Stdout
from supervisor.cli._tables import LiveView
from supervisor.cli.run import _show
from supervisor.lowlevel import SCHEMA_VERSION
from supervisor.runtime import TaskEnded, TaskStarted, Warned, to_json
from supervisor.tree import Event, EventStream

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "supervisor.cli"]
MARK = "TRIO_SUPERVISOR_TEST"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a Unix system")
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="counts processes in /proc"
)

# Does not listen to SIGTERM, nor does what it leaves in another session.
STUBBORN = (
    "trap '' TERM; "
    f"{sys.executable} -c 'import os, time; os.fork() and os._exit(0); os.setsid();"
    ' print("up", flush=True); time.sleep(600)\' & '
    "while :; do sleep 1; done"
)


def environment(tmp_path: Path) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        # Unbuffered, it would hide what fails only when a buffer is emptied.
        if name
        not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTHONUNBUFFERED")
    }
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    return inherited | {
        MARK: str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(scratch),
        "TERM": "xterm-256color",
    }


def left_behind(tmp_path: Path) -> list[int]:
    """Every living process that inherited the environment of the command. The
    command's own helper is one of them, but only root can see that."""
    wanted = f"{MARK}={tmp_path}".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if wanted in variables:
                found.append(int(entry.name))
    return found


def children(pid: int) -> list[int]:
    """Every living process that it has started, its helper among them."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_bytes()
            except OSError:
                continue
            if int(status.rpartition(b")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found


@attrs.define
class Running:
    process: trio.Process
    output: bytes = b""

    async def read_until(self, text: bytes, times: int = 1) -> None:
        assert self.process.stdout is not None
        while self.output.count(text) < times:
            chunk = await self.process.stdout.receive_some()
            assert chunk, f"{text!r} never came: {self.output.decode()}"
            self.output += chunk

    async def finish(self) -> int:
        assert self.process.stdout is not None
        async for chunk in self.process.stdout:
            self.output += chunk
        return await self.process.wait()

    @property
    def text(self) -> str:
        return self.output.decode()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self.output.splitlines()]

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]


@asynccontextmanager
async def running(
    tmp_path: Path, *arguments: str | bytes, stderr: int = subprocess.DEVNULL
) -> AsyncGenerator[Running, None]:
    with trio.fail_after(60):
        process = await trio.lowlevel.open_process(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
        assert process.stdout is not None
        async with process.stdout:
            try:
                yield Running(process)
            finally:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()


async def run(
    tmp_path: Path, *arguments: str | bytes
) -> subprocess.CompletedProcess[bytes]:
    with trio.fail_after(60):
        return await trio.run_process(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=tmp_path,
            env=environment(tmp_path),
        )


async def wait_for(path: Path) -> None:
    with trio.fail_after(30):
        while not await trio.Path(path).exists():
            await trio.sleep(0.02)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def size(path: Path) -> int:
    return path.stat().st_size


def rows(text: str) -> list[list[str]]:
    """The rows of the table at the end, as lists of cells."""
    # A path may have that word in it, too.
    _, found, rest = text.partition("\ncommand ")
    assert found, text
    lines = rest.splitlines()
    table: list[list[str]] = []
    for line in lines[1:]:
        if not line:
            break
        table.append(re.split(r"  +", line.strip()))
    return table


# ---- What it runs, and what it tells ------------------------------------------


async def test_all_completed_is_0_and_a_table_tells_of_each(tmp_path: Path) -> None:
    done = await run(
        tmp_path, "run", "-c", "echo one; echo two >&2", "--", "echo", "a  b"
    )
    text = done.stdout.decode()
    assert done.returncode == 0
    assert done.stderr == b""
    first, second = rows(text)
    assert first[:3] == ["echo one; echo two >&2", "completed", "0"]
    assert second[0].startswith("echo 'a")
    assert re.fullmatch(r"\d+\.\d s", first[3])
    directory = Path(text.rpartition("output files: ")[2].strip())
    assert (directory / first[4]).read_text() == "one\ntwo\n"
    # One program and its arguments, quoted so that the shell sees them as they are.
    assert (directory / second[-1]).read_text() == "a  b\n"
    assert directory.parent == tmp_path / "scratch"
    assert mode(directory) == 0o700


async def test_one_failure_is_1_and_shows_the_end_of_its_output(tmp_path: Path) -> None:
    done = await run(
        tmp_path, "run", "-c", "seq 100; exit 7", "-c", "true", "-c", "kill -USR1 $$"
    )
    text = done.stdout.decode()
    assert done.returncode == 1
    assert [row[1:3] for row in rows(text)] == [
        ["failed", "7"],
        ["completed", "0"],
        ["failed", "SIGUSR1"],
    ]
    assert "seq 100; exit 7: exit code 7\n  91\n" in text
    assert "  100\n" in text


async def test_each_change_is_one_plain_line(tmp_path: Path) -> None:
    done = await run(tmp_path, "run", "-c", "echo x; exit 4")
    where, *lines = done.stdout.decode().partition("\n\n")[0].splitlines()
    assert where.startswith(f"output files: {tmp_path}")
    assert [
        re.sub(r"\s+s[0-9a-f]{8}\s+", " ", line).split(maxsplit=2)[2] for line in lines
    ] == [
        "started echo x; exit 4",
        "failed echo x; exit 4  (exit code 4)",
    ]
    assert b"\x1b" not in done.stdout


async def test_json_is_one_event_a_line_in_order_and_nothing_else(
    tmp_path: Path,
) -> None:
    async with running(
        tmp_path,
        "run",
        "--json",
        "-c",
        "echo x",
        "-c",
        "exit 3",
        stderr=subprocess.PIPE,
    ) as command:
        assert command.process.stderr is not None
        async with command.process.stderr:
            assert await command.finish() == 1
            table = await command.process.stderr.receive_some()
    assert {event["version"] for event in command.events} == {SCHEMA_VERSION}
    order = [event["seq"] for event in command.events]
    assert order == sorted(set(order))
    for started in command.kinds("TaskStarted"):
        kinds = [
            event["kind"]
            for event in command.events
            if event.get("task_id") == started["task_id"]
            and event["kind"] != "TaskProgress"
        ]
        assert kinds == ["TaskStarted", "TaskEnded", "Notified", "Acked"]
    ends = {event["exit_code"]: event["status"] for event in command.kinds("TaskEnded")}
    assert ends == {0: "completed", 3: "failed"}
    assert [row[1] for row in rows(bytes(table).decode())] == ["completed", "failed"]


async def test_envelopes_are_shown_as_the_parent_receives_them(tmp_path: Path) -> None:
    plain = await run(
        tmp_path, "run", "--envelopes", "-c", "echo '</task-notification>'"
    )
    assert plain.stdout.count(b"<task-notification>\n") == 1
    assert plain.stdout.count(b"</task-notification>\n") == 1
    assert b"&lt;/task-notification&gt;" in plain.stdout
    async with running(
        tmp_path, "run", "--envelopes", "--json", "-c", "true"
    ) as command:
        assert await command.finish() == 0
    (envelope,) = command.kinds("Envelope")
    assert envelope["xml"].startswith("<task-notification>")
    assert [ack["how"] for ack in command.kinds("Acked")] == ["delivered"]


async def test_max_is_how_many_run_at_once_and_the_rest_wait_in_order(
    tmp_path: Path,
) -> None:
    commands = [part for n in range(6) for part in ("-c", f"sleep 0.1; echo {n}")]
    async with running(tmp_path, "run", "--json", "--max", "2", *commands) as command:
        assert await command.finish() == 0
    at_once = most = 0
    for event in command.events:
        if event["kind"] == "TaskStarted":
            at_once += 1
        elif event["kind"] == "TaskEnded":
            at_once -= 1
        most = max(most, at_once)
    assert most == 2
    started = [event["description"] for event in command.kinds("TaskStarted")]
    assert started == commands[1::2]


FLAKY = (
    "n=$(cat count 2>/dev/null || echo 0); n=$((n + 1)); echo $n >count; [ $n -ge 3 ]"
)


async def test_a_flaky_command_is_restarted_under_backoff_until_it_succeeds(
    tmp_path: Path,
) -> None:
    """B65: the waits double."""
    # A run of half of the longest wait would begin with the first one again.
    how = ["--restart", "transient", "--intensity", "3/60", "--backoff", "0.05:60"]
    async with running(tmp_path, "run", "--json", *how, "-c", FLAKY) as command:
        assert await command.finish() == 0
    assert (tmp_path / "count").read_text() == "3\n"
    assert [event["delay"] for event in command.kinds("TaskRestartScheduled")] == [
        0.05,
        0.1,
    ]
    assert len(command.kinds("TaskRestarted")) == 2
    assert len(command.kinds("TaskEnded")) == 1


async def test_a_restart_to_come_is_told_with_its_reason(tmp_path: Path) -> None:
    how = ["--restart", "transient", "--backoff", "0.05:1"]
    flaky = "[ -e ran ] || { touch ran; exit 3; }"
    done = await run(tmp_path, "run", *how, "-c", flaky)
    assert done.returncode == 0
    (line,) = [
        line for line in done.stdout.decode().splitlines() if "will restart" in line
    ]
    assert line.endswith("(in 0.05 s: exit code 3)")


async def test_more_restarts_than_the_intensity_are_a_failure(tmp_path: Path) -> None:
    how = ["--restart", "permanent", "--intensity", "1/10"]
    done = await run(tmp_path, "run", *how, "-c", "echo run >>runs")
    assert done.returncode == 1
    assert (tmp_path / "runs").read_text() == "run\n" * 2
    assert [row[1] for row in rows(done.stdout.decode())] == ["failed"]


async def test_a_deadline_stops_a_command_which_has_then_failed(
    tmp_path: Path,
) -> None:
    done = await run(tmp_path, "run", "--deadline", "0.5", "-c", "sleep 600")
    assert done.returncode == 1
    assert [row[1] for row in rows(done.stdout.decode())] == ["failed"]
    assert b"sleep 600: the deadline of the task passed" in done.stdout


@needs_proc
async def test_no_grace_at_all_kills_what_does_not_listen_at_once(
    tmp_path: Path,
) -> None:
    """Zero seconds, with something left that would take all of them."""
    began = trio.current_time()
    arguments = ("--deadline", "0.3", "--grace", "0", "-c", STUBBORN)
    done = await run(tmp_path, "run", *arguments)
    assert done.returncode == 1
    assert b"the deadline of the task passed" in done.stdout
    assert left_behind(tmp_path) == []
    assert trio.current_time() - began < 30


async def test_the_output_goes_where_it_was_told_to(tmp_path: Path) -> None:
    done = await run(tmp_path, "run", "--directory", "new/place", "-c", "echo hi")
    (output,) = (tmp_path / "new/place").glob("*.output")
    assert output.read_text() == "hi\n"
    assert done.stdout.decode().endswith(f"output files: {tmp_path}/new/place\n")
    assert names(tmp_path / "scratch") == []


async def test_a_command_line_cannot_speak_to_the_terminal(tmp_path: Path) -> None:
    """P5: and one that is no UTF-8 is told of all the same."""
    hostile = b"false \x1b]0;owned\x07 \xe2\x80\xae \xff\nfalse second line"
    done = await run(tmp_path, "run", "-c", hostile)
    assert done.returncode == 1
    assert b"\x1b" not in done.stdout
    assert b"\x07" not in done.stdout
    assert "\u202e" not in done.stdout.decode()
    async with running(tmp_path, "run", "--json", "-c", hostile) as command:
        await command.finish()
    assert len(command.kinds("TaskStarted")) == 1


# ---- What it refuses ----------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run"], "No command"),
        (["run", "--"], "No command"),
        (["run", "touch", "started"], "'touch': write -- before a program"),
        (["run", "touch", "-a", "started"], "'touch': write -- before a program"),
        (["run", "touch", "--max", "x"], "'touch': write -- before a program"),
        (["run", "-c", ""], "''"),
        (["run", "-c", "touch started", "-c", " "], "' '"),
        (["run", "--max", "0"], "0 is not"),
        (["run", "--max", "-1"], "-1 is not"),
        (["run", "--max", "many"], "'many'"),
        (["run", "--restart", "always"], "'always'"),
        (["run", "--restart", "transient", "--intensity", "3"], "'3'"),
        (["run", "--restart", "transient", "--intensity", "3/0"], "'3/0'"),
        (["run", "--restart", "transient", "--intensity", "-3/10"], "'-3/10'"),
        (["run", "--restart", "transient", "--intensity", "3/nan"], "'3/nan'"),
        (["run", "--restart", "transient", "--backoff", "1"], "'1'"),
        (["run", "--restart", "transient", "--backoff", "0:1"], "'0:1'"),
        (["run", "--restart", "transient", "--backoff", "2:1"], "'2:1'"),
        (["run", "--restart", "transient", "--backoff", "1:x"], "'1:x'"),
        (["run", "--restart", "transient", "--backoff", "1:2:3:4"], "'1:2:3:4'"),
        (["run", "--intensity", "3/10"], "--intensity needs --restart"),
        (["run", "--backoff", "1:2"], "--backoff needs --restart"),
        (["run", "--grace", "-1"], "'-1'"),
        (["run", "--grace", "inf"], "'inf'"),
        (["run", "--grace", "soon"], "'soon'"),
        (["run", "--deadline", "nan"], "'nan'"),
        (["run", "--deadline", "0"], "'0' leaves no time"),
        (["run", "--deadline", "-0.0"], "'-0.0' leaves no time"),
        (["run", "--directory", ""], "''"),
        (["run", "--directory", "/dev/null"], "'/dev/null'"),
        (["run", "--directory", "/dev/null/below"], "'/dev/null/below'"),
        (["run", "--nonsense"], "--nonsense"),
        (["run", "--jso"], "--jso"),
        (["rum"], "'rum'"),
        (["demo", "fast"], "fast"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
async def test_a_mistake_is_2_and_named_and_starts_nothing(
    tmp_path: Path, arguments: Sequence[str], named: str
) -> None:
    arguments = list(arguments)
    if len(arguments) > 2 and arguments[1] not in ("-c", "touch"):
        arguments += ["-c", "touch started"]
    done = await run(tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stdout == b""
    message = done.stderr.decode()
    assert named in message
    assert "Traceback" not in message
    assert names(tmp_path) == ["scratch"]
    assert names(tmp_path / "scratch") == []


async def test_a_working_directory_that_is_gone_is_named_as_such(
    tmp_path: Path,
) -> None:
    """SH11: else every command would miss a file without a name."""
    with trio.fail_after(60):
        done = await trio.run_process(
            [
                *("sh", "-c", 'mkdir gone; cd gone; rmdir ../gone; exec "$@"', "sh"),
                *(*COMMAND, "run", "-c", "echo hi"),
            ],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
    assert done.returncode == 2 and done.stdout == b""
    assert b"The working directory does not exist any more" in done.stderr
    assert names(tmp_path / "scratch") == []


@pytest.mark.parametrize("what", ["newer", "directory"])
async def test_a_journal_that_cannot_be_opened_is_named_without_a_traceback(
    tmp_path: Path, what: str
) -> None:
    path = tmp_path / "work" / "journal.jsonl"
    path.parent.mkdir()
    if what == "newer":
        path.write_bytes(b'{"k":"journal","v":7,"at":"2026-11-23T12:00:00+00:00"}\n')
    else:
        path.mkdir()
    done = await run(tmp_path, "run", "--directory", "work", "-c", "true")
    message = done.stderr.decode()
    assert done.returncode == 2
    assert message.count("\n") <= 2 and str(path) in message, message
    assert ("its version is 7" in message) == (what == "newer")


async def test_the_help_says_where_output_is_kept_and_what_141_is(
    tmp_path: Path,
) -> None:
    done = await run(tmp_path, "run", "--help")
    text = " ".join(done.stdout.decode().split())
    assert "output of each command is kept" in text
    assert "in the directory that is named at the start" in text
    assert "the exit code is 141" in text


async def test_help_and_version_are_told_without_anything_else(tmp_path: Path) -> None:
    for arguments in (["--help"], ["run", "--help"], ["demo", "-h"], ["--version"]):
        done = await run(tmp_path, *arguments)
        assert done.returncode == 0
        assert b"trio-supervisor" in done.stdout
        assert done.stderr == b""
    assert names(tmp_path / "scratch") == []


@pytest.mark.parametrize("missing", ["click", "rich"])
async def test_without_its_extra_it_says_in_one_line_what_to_install(
    tmp_path: Path, missing: str
) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from supervisor.cli import main; main()"
    with trio.fail_after(60):
        done = await trio.run_process(
            [sys.executable, "-c", program, "run", "-c", "true"],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"pip install 'trio-supervisor[cli]'" in done.stderr


# ---- How it ends early --------------------------------------------------------


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_first_signal_stops_softly_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    """P1, P4: every task is asked to stop, and its end is recorded."""
    waiting = ["--max", "2", "-c", "touch started"]
    async with running(
        tmp_path,
        *(
            "run",
            "--json",
            "--grace",
            "0.3",
            "-c",
            STUBBORN,
            "-c",
            "echo up; sleep 600",
        ),
        *waiting,
    ) as command:
        await command.read_until(b'"TaskProgress"', 2)
        command.process.send_signal(number)
        assert await command.finish() == 128 + number
        assert left_behind(tmp_path) == []
    asked = command.kinds("TaskStopRequested")
    assert {event["reason"] for event in asked} == {number.name}
    assert len(asked) == 3
    ends = command.kinds("TaskEnded")
    assert [event["status"] for event in ends] == ["killed"] * 3
    assert {event["signal"] for event in ends} == {None, signal.SIGTERM, signal.SIGKILL}
    assert ends[-1]["time"] - asked[0]["time"] >= 0.3
    assert len(command.kinds("Acked")) == 3
    assert not (tmp_path / "started").exists()


@needs_proc
async def test_a_signal_leaves_two_seconds_of_a_longer_grace(tmp_path: Path) -> None:
    async with running(
        tmp_path, "run", "--json", "--grace", "300", "-c", STUBBORN
    ) as command:
        await command.read_until(b'"TaskProgress"')
        command.process.send_signal(signal.SIGTERM)
        assert await command.finish() == 128 + signal.SIGTERM
        assert left_behind(tmp_path) == []
    (asked,) = command.kinds("TaskStopRequested")
    (end,) = command.kinds("TaskEnded")
    assert (end["status"], end["signal"]) == ("killed", signal.SIGKILL)
    assert 2 <= end["time"] - asked["time"] < 10


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_second_signal_skips_the_grace(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with running(
        tmp_path, "run", "--json", "--grace", "300", "-c", STUBBORN
    ) as command:
        await command.read_until(b'"TaskProgress"')
        command.process.send_signal(number)
        await command.read_until(b'"TaskStopRequested"')
        command.process.send_signal(number)
        assert await command.finish() == 128 + number
        assert left_behind(tmp_path) == []
    (end,) = command.kinds("TaskEnded")
    assert (end["status"], end["signal"]) == ("killed", signal.SIGKILL)


async def test_the_table_is_there_after_a_stop(tmp_path: Path) -> None:
    async with running(
        tmp_path, "run", "-c", "touch up; sleep 600", "-c", "true"
    ) as command:
        await wait_for(tmp_path / "up")
        await command.read_until(b"completed")
        command.process.terminate()
        assert await command.finish() == 128 + signal.SIGTERM
    assert [row[1:3] for row in rows(command.text)] == [
        ["killed", "SIGTERM"],
        ["completed", "0"],
    ]
    assert "(SIGTERM)" in command.text


async def test_ctrl_c_during_the_start_is_a_quiet_end(tmp_path: Path) -> None:
    # The import of click stands for the moment.
    (tmp_path / "click.py").write_text(
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    )
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    with trio.fail_after(60):
        done = await trio.run_process(
            [*COMMAND, "run", "-c", "true"],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=tmp_path,
            env=environment(tmp_path) | path,
        )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@needs_proc
async def test_kill_9_of_the_command_leaves_nothing_behind(tmp_path: Path) -> None:
    """P1"""
    async with running(tmp_path, "run", "--json", "-c", STUBBORN) as command:
        await command.read_until(b'"TaskProgress"')
        assert len(left_behind(tmp_path)) >= 4
        command.process.kill()
        await command.process.wait()
        with trio.fail_after(30):
            while left_behind(tmp_path):
                await trio.sleep(0.02)


async def test_nohup_keeps_it_through_a_hangup(tmp_path: Path) -> None:
    # Ignored signals are inherited.
    program = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    with trio.fail_after(60):
        process = await trio.lowlevel.open_process(
            [
                *(sys.executable, "-c", program, "-m", "supervisor.cli"),
                *("run", "-c", "touch up; while [ ! -e go ]; do sleep 0.05; done"),
            ],
            stdout=subprocess.DEVNULL,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
        await wait_for(tmp_path / "up")
        process.send_signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        assert await process.wait() == 0


@needs_proc
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["plain", "json"])
async def test_a_reader_that_goes_away_stops_it(
    tmp_path: Path, form: list[str]
) -> None:
    """As in ``| head -1``: at once, though the command prints nothing more."""
    async with running(
        tmp_path, "run", *form, "-c", "sleep 600", stderr=subprocess.PIPE
    ) as command:
        assert command.process.stdout is not None and command.process.stderr is not None
        await command.read_until(b"sleep 600")  # It has begun.
        await command.process.stdout.aclose()
        async with command.process.stderr:
            said = b""
            async for chunk in command.process.stderr:
                said += chunk
        assert await command.process.wait() == 128 + signal.SIGPIPE
        assert said.decode().endswith(
            "trio-supervisor: whoever read the output has gone:"
            " the commands were stopped\n"
        )
        assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["run", "-c", "touch made"], "no command was started"),
        (["agent", "script.json"], "no agent was started"),
    ],
    ids=["run", "agent"],
)
async def test_a_reader_that_has_gone_before_the_start_is_told_of_with_what_follows(
    tmp_path: Path, line: list[str], said: str
) -> None:
    turns = [{"tools": [{"Bash": {"command": "touch made"}}]}, {"text": "done"}]
    script = {"agents": {"lead": {"prompt": "Go.", "turns": turns}}}
    (tmp_path / "script.json").write_bytes(orjson.dumps(script))
    reader, writer = os.pipe()
    os.close(reader)
    try:
        with trio.fail_after(60):
            done = await trio.run_process(
                [*COMMAND, *line],
                stdout=writer,
                capture_stderr=True,
                check=False,
                cwd=tmp_path,
                env=environment(tmp_path),
            )
    finally:
        os.close(writer)
    assert done.returncode == 128 + signal.SIGPIPE
    gone = "trio-supervisor: whoever read the output has gone"
    assert done.stderr.decode() == f"{gone}: {said}\n"
    assert not (tmp_path / "made").exists()


@needs_proc
async def test_a_reader_that_does_not_read_holds_up_no_task_and_no_signal(
    tmp_path: Path,
) -> None:
    """P6, for the command's own output."""
    busy = ["--restart", "permanent", "--intensity", "1000000/1"]
    async with running(
        tmp_path, "run", "--json", *busy, "-c", "echo >>runs"
    ) as command:
        runs, enough = tmp_path / "runs", 250
        if sys.platform == "linux":
            assert isinstance(command.process.stdout, trio.lowlevel.FdStream)
            fcntl.fcntl(command.process.stdout.fileno(), fcntl.F_SETPIPE_SZ, 4096)
            enough = 50
        await wait_for(runs)
        # A run is told of in some 500 bytes; a pipe holds 65,536 where that is not set.
        while size(runs) < enough:
            await trio.sleep(0.05)
        command.process.terminate()
        with trio.fail_after(20):
            # The main process is left, with nothing that it runs: the first signal was
            # taken. Two that come at once are one.
            while children(command.process.pid):
                await trio.sleep(0.02)
        command.process.terminate()
        with trio.fail_after(10):
            assert await command.process.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("line", "device", "number"),
    [
        (["run", "-c", "sleep 600"], "/dev/full", errno.ENOSPC),
        (["demo"], "/dev/full", errno.ENOSPC),
        # Nothing is mapped at its start, so it answers as a file on a bad disk.
        pytest.param(
            *(["run", "-c", "sleep 600"], "/proc/self/mem", errno.EIO),
            marks=needs_proc,
        ),
    ],
    ids=["run", "demo", "bad"],
)
async def test_a_full_disk_and_a_bad_one_are_told_and_are_1(
    tmp_path: Path, line: list[str], device: str, number: int
) -> None:
    """SH11: only a terminal that fails so has hung up."""
    broken = os.open(device, os.O_WRONLY)
    with trio.fail_after(60), os.fdopen(broken, "wb"):
        done = await trio.run_process(
            [*COMMAND, *line],
            stdout=broken,
            capture_stderr=True,
            check=False,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
    assert done.returncode == 1
    assert (
        done.stderr.decode()
        == f"trio-supervisor: standard output: {os.strerror(number)}\n"
    )


@pytest.mark.parametrize(
    ("line", "how", "code"),
    [
        ("--help", ">/dev/full", 1),
        ("run --json -c true", ">/dev/null 2>/dev/full", 0),
        ("run -c 'exit 3'", ">/dev/null 2>/dev/full", 1),
        ("run --max 0 -c true", "2>/dev/full", 2),
        ("run -c 'echo a' -c 'sleep 2; echo b'", "2>&1 | head -n 1", 141),
        ("agent nowhere.yaml", "<&- 2>&1", 2),
        ("run -c 'exit 3'", "<&- >&- 2>&-", 1),
    ],
)
async def test_the_exit_code_is_that_of_the_work_whatever_cannot_be_written(
    tmp_path: Path, line: str, how: str, code: int
) -> None:
    """And not 120, with which Python ends when a buffer cannot be emptied."""
    program = " ".join(COMMAND)
    with trio.fail_after(60):
        done = await trio.run_process(
            ["bash", "-c", f"set -o pipefail; {program} {line} {how}"],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
    told = (done.stdout + done.stderr).decode()
    assert done.returncode == code, told
    assert "Traceback" not in told and "Exception ignored" not in told


async def test_unbuffered_streams_stay_unbuffered(tmp_path: Path) -> None:
    """What was said before a `kill -9` was said."""
    program = (
        "import os, sys\n"
        "from supervisor.cli._patient import make_streams_patient\n"
        "make_streams_patient()\n"
        "print('out' * 100_000)\n"
        "print('err', file=sys.stderr)\n"
        "os._exit(0)"
    )
    with trio.fail_after(60):
        done = await trio.run_process(
            [sys.executable, "-c", program],
            capture_stdout=True,
            capture_stderr=True,
            env=environment(tmp_path) | {"PYTHONUNBUFFERED": "1"},
        )
    assert done.stdout == b"out" * 100_000 + b"\n" and done.stderr == b"err\n"


async def test_without_a_thread_a_reader_that_does_not_read_holds_up_no_signal(
    tmp_path: Path,
) -> None:
    program = (
        "import threading\n"
        'def refuse(thread): raise RuntimeError("can\'t start new thread")\n'
        "threading.Thread.start = refuse\n"
        "from supervisor.cli import main; main()"
    )
    reader, writer = os.pipe()
    if sys.platform == "linux":
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    line = ["run", "--json", *["-c", "true"] * 40, "-c", "sleep 600"]
    with trio.fail_after(60), os.fdopen(reader, "rb"):
        with os.fdopen(writer, "wb"):
            process = await trio.lowlevel.open_process(
                [sys.executable, "-c", program, *line],
                stdout=writer,
                cwd=tmp_path,
                env=environment(tmp_path),
            )
        try:
            filled = array("i", [0])
            while filled[0] < 4096:
                fcntl.ioctl(reader, termios.FIONREAD, filled)
            # The second one says that nobody is to be waited for.
            while process.returncode is None:
                process.terminate()
                with trio.move_on_after(1):
                    await process.wait()
            assert process.returncode == 128 + signal.SIGTERM
        finally:
            process.kill()


async def test_blocked_signals_stop_it_all_the_same(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    arguments = [*COMMAND[1:], "run", "-c", "echo up; sleep 600"]
    with trio.fail_after(60):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.PIPE,
            cwd=tmp_path,
            env=environment(tmp_path) | {"PYTHONUNBUFFERED": "1"},
        )
        try:
            running = Running(process)
            await running.read_until(b"started")
            process.send_signal(signal.SIGTERM)
            assert await running.finish() == 128 + signal.SIGTERM
        finally:
            process.kill()


async def test_without_a_thread_to_write_the_work_goes_on(tmp_path: Path) -> None:
    program = (
        "import threading\n"
        'def refuse(thread): raise RuntimeError("can\'t start new thread")\n'
        "threading.Thread.start = refuse\n"
        "from supervisor.cli import main; main()"
    )
    with trio.fail_after(60):
        done = await trio.run_process(
            [sys.executable, "-c", program, "run", "-c", "echo hi"],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
    assert done.returncode == 0 and b"completed" in done.stdout
    assert done.stderr == b""


def nonblocking_pipe() -> tuple[int, int]:
    """A small pipe as another event loop at its other end leaves it."""
    reader, writer = os.pipe()
    if sys.platform == "linux":
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    return reader, writer


async def test_a_full_nonblocking_pipe_is_waited_for_and_costs_nothing(
    tmp_path: Path,
) -> None:
    """Standard output is shared, and another program may have made it so."""
    last = "touch up; until test -e seen; do sleep 0.05; done"
    commands = [part for n in range(11) for part in ("-c", f": {n} {'.' * 500}")]
    reader, writer = nonblocking_pipe()
    with os.fdopen(reader, "rb", buffering=0) as pipe, trio.fail_after(60):
        process = await trio.lowlevel.open_process(
            [*COMMAND, "run", "--json", "--max", "1", *commands, "-c", last],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
        os.close(writer)
        try:
            await wait_for(tmp_path / "up")  # More is told by now than it takes.
            (tmp_path / "seen").touch()
            output = await trio.to_thread.run_sync(pipe.read, abandon_on_cancel=True)
            code = await process.wait()
        finally:
            process.kill()
    assert code == 0
    told, _, table = output.decode().partition("\n\n")
    events = [orjson.loads(line) for line in told.splitlines()]
    ends = [event for event in events if event["kind"] == "TaskEnded"]
    assert [event["status"] for event in ends] == ["completed"] * 12
    assert table.count("completed") == 12 and table.endswith("\n")


async def test_a_full_nonblocking_standard_error_is_waited_for(
    tmp_path: Path,
) -> None:
    """SH11: else a mistake in the call ends in a traceback that nobody sees whole."""
    long = "x" * 50_000
    reader, writer = nonblocking_pipe()
    with os.fdopen(reader, "rb", buffering=0) as pipe, trio.fail_after(60):
        process = await trio.lowlevel.open_process(
            [*COMMAND, "run", "--max", long, "-c", "true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=writer,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
        os.close(writer)
        try:
            said = await trio.to_thread.run_sync(pipe.read, abandon_on_cancel=True)
            code = await process.wait()
        finally:
            process.kill()
    assert code == 2
    assert said.count(b"x") >= 50_000 and said.endswith(b"\n")


async def test_it_works_with_no_standard_output_at_all(tmp_path: Path) -> None:
    with trio.fail_after(60):
        done = await trio.run_process(
            [
                *("sh", "-c", 'exec "$@" >&- 2>&-', "sh", *COMMAND),
                *("run", "--directory", "here", "-c", "echo hi"),
            ],
            check=False,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
    assert done.returncode == 0
    (output,) = (tmp_path / "here").glob("*.output")
    assert output.read_text() == "hi\n"


# ---- On a terminal ------------------------------------------------------------

# A session of its own with the terminal as its own, as a shell's would be.
OWN_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


@attrs.define
class Terminal:
    process: trio.Process
    master: int
    output: bytes = b""

    async def read_until(self, text: bytes) -> None:
        while text not in self.output:
            assert await self.read(), f"{text!r} never came: {self.output!r}"

    async def read(self) -> bool:
        await trio.lowlevel.wait_readable(self.master)
        try:
            chunk = os.read(self.master, 65536)
        except OSError:  # EIO: nobody has the other end open any more.
            chunk = b""
        self.output += chunk
        return bool(chunk)

    async def finish(self) -> int:
        while await self.read():
            pass
        return await self.process.wait()


@asynccontextmanager
async def terminal(
    tmp_path: Path,
    *arguments: str,
    height: int = 24,
    width: int = 80,
    more: Mapping[str, str] | None = None,
) -> AsyncGenerator[Terminal, None]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    with trio.fail_after(60):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", OWN_TERMINAL, "-m", "supervisor.cli", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=tmp_path,
            env=environment(tmp_path) | dict(more or {}),
        )
        os.close(slave)
        shown = Terminal(process, master)
        try:
            yield shown
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            if shown.master >= 0:
                os.close(shown.master)


async def test_a_terminal_shows_a_live_view_and_then_the_table(tmp_path: Path) -> None:
    # The commands end when they have been seen to run, however slow that is.
    (tmp_path / "wait").write_text("until test -e seen; do sleep 0.05; done")
    async with terminal(
        tmp_path, "run", "-c", ". ./wait; echo hi", "-c", ". ./wait; exit 3"
    ) as shown:
        await shown.read_until(b"2 running")
        assert b"\x1b[?25l" in shown.output  # the cursor is hidden
        (tmp_path / "seen").touch()
        assert await shown.finish() == 1
    frames, _, end = shown.output.partition(b"\x1b[?25h")  # and shown again
    assert b"1 completed, 1 failed" in frames
    assert frames.startswith(b"output files:")
    assert frames.count(b"output files:") == 1
    assert end, shown.output
    plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", end).decode().replace("\r", "")
    assert [row[1:3] for row in rows(plain)] == [["completed", "0"], ["failed", "3"]]
    table = plain.partition("output files:")[0]
    assert all(len(line) <= 80 for line in table.splitlines())


@pytest.mark.parametrize(
    ("width", "live", "end"),
    [
        (20, ["status"], ["status"]),
        (40, ["status", "time"], ["status", "exit code", "time"]),
        (60, ["status", "time", "output", "cpu"], [*_tables._END_COLUMNS]),
        (100, [*_tables._FRAME_COLUMNS], [*_tables._END_COLUMNS]),
    ],
)
async def test_a_narrow_terminal_drops_what_matters_least(
    width: int, live: list[str], end: list[str], tmp_path: Path
) -> None:
    """The command and its status are always there, and no line is too long."""
    (tmp_path / "wait").write_text("until test -e seen; do sleep 0.05; done")
    async with terminal(
        tmp_path, "run", "-c", ". ./wait; exit 3", width=width
    ) as shown:
        await shown.read_until(b"1 running")
        (tmp_path / "seen").touch()
        assert await shown.finish() == 1
    plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown.output).decode()
    lines = plain.replace("\r", "\n").splitlines()
    heads = [
        re.split(r"  +", line.strip()) for line in lines if line.startswith("command ")
    ]
    assert heads[0] == ["command", *live]
    assert heads[-1] == ["command", *end]
    *_, last = [line for line in lines if " failed" in line]
    assert last.startswith(". ./")
    table, _, _ = plain.partition("output files")
    assert all(len(line) <= width for line in table.splitlines())


async def test_a_tick_that_is_being_drawn_at_the_end_costs_no_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a slow terminal the last frame of the clock is still being written when
    everything has ended; what follows it is written all the same."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"." * 4096)
    os.set_blocking(writing, True)
    monkeypatch.setattr(_tables, "_TICK", 0.0)
    events = EventStream()
    with os.fdopen(writing, "w") as terminal, trio.fail_after(60):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", terminal)
            stdout = Stdout(lambda _: None)
        view = LiveView(stdout, [])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_show, view, events.subscribe())
            try:
                await trio.testing.wait_all_tasks_blocked()  # a tick is being drawn
                events.close()
                await trio.testing.wait_all_tasks_blocked()
            finally:
                os.set_blocking(reading, False)  # or its thread would never end
                os.read(reading, 1 << 20)
        await view.close()
        await stdout.write("the table")
        written = os.read(reading, 1 << 20)
    os.close(reading)
    assert written.endswith(b"the table")
    assert b"\x1b[?25h" in written


async def test_what_ends_late_in_a_hurry_is_told_to_a_reader_that_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program itself may have been held. A reader that reads slowly is waited for
    no longer than that second in all."""
    monkeypatch.setattr(_stdout, "_LAST_WORDS", 0.5)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, trio.fail_after(60):
        with os.fdopen(writing, "w") as pipe:
            with monkeypatch.context() as patched:
                patched.setattr(sys, "stdout", pipe)
                stdout = Stdout(lambda _: None)
            stdout.hurry()
            await trio.sleep(0.6)
            await stdout.write("killed\n")
            assert os.read(reader.fileno(), 7) == b"killed\n"

            def read_slowly() -> int:
                received = 0
                while data := os.read(reader.fileno(), 10_000):
                    received += len(data)
                    time.sleep(0.05)
                return received

            async with trio.open_nursery() as nursery:

                async def read() -> None:
                    assert await trio.to_thread.run_sync(read_slowly) < 800_000

                nursery.start_soon(read)
                for _ in range(40):
                    await stdout.write("x" * 20_000)
                pipe.close()


async def test_ctrl_z_gives_the_terminal_back_from_the_first_frame_on() -> None:
    reading, writing = os.pipe()
    heeded: list[bool] = []

    class Noting(LiveView):
        async def show(self, events: Sequence[Event]) -> None:
            heeded.append(signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL)
            await super().show(events)

    with os.fdopen(reading), os.fdopen(writing, "w") as terminal, trio.fail_after(60):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys, "stdout", terminal)
            stdout = Stdout(lambda _: None)
        stream = EventStream()
        events = stream.subscribe()
        stream.emit(Warned, None, "it has begun")
        stream.close()
        await _show(Noting(stdout, []), events)
    # Where writing is slow, the clock has drawn a frame as well.
    assert set(heeded) == {True}


@needs_proc
async def test_a_live_view_tells_what_a_command_uses(tmp_path: Path) -> None:
    async with terminal(tmp_path, "run", "-c", "sleep 600") as shown:
        await shown.read_until(b" MB")  # its memory: there is no output
        os.write(shown.master, b"\x03")
        assert await shown.finish() == 128 + signal.SIGINT


async def test_a_live_view_is_never_higher_than_its_terminal(tmp_path: Path) -> None:
    commands = [part for n in range(40) for part in ("-c", f"true {n}")]
    async with terminal(tmp_path, "run", "--max", "2", *commands, height=12) as shown:
        assert await shown.finish() == 0
    frames = shown.output.partition(b"\x1b[?25h")[0]
    for frame in frames.split(b"\x1b[J"):
        assert frame.count(b"\n") < 12
    assert b" more" in frames


async def test_a_wide_terminal_does_not_pull_the_table_apart(tmp_path: Path) -> None:
    (tmp_path / "wait").write_text("until test -e seen; do sleep 0.05; done")
    async with terminal(tmp_path, "run", "-c", ". ./wait", width=220) as shown:
        await shown.read_until(b"1 running")
        (tmp_path / "seen").touch()
        assert await shown.finish() == 0
    plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown.output).decode()
    heads = [line for line in plain.splitlines() if line.startswith("command ")]
    assert all(len(head) < 80 for head in heads)


async def test_at_40_columns_the_output_files_are_named_and_no_path_is_broken(
    tmp_path: Path,
) -> None:
    (tmp_path / "d").mkdir()
    arguments = ("run", "--directory", "d", "-c", "true 1", "-c", "exit 2")
    async with terminal(tmp_path, *arguments, width=40) as shown:
        assert await shown.finish() == 1
    plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown.output).decode()
    *_, label, path, first, second = plain.replace("\r", "").splitlines()
    assert (label, path) == ("output files:", str(tmp_path / "d"))
    for line, command in ((first, "true 1"), (second, "exit 2")):
        name, _, rest = line.partition("  ")
        assert (tmp_path / "d" / name).exists() and rest == command


async def test_a_terminal_that_becomes_narrower_keeps_no_old_rows(
    tmp_path: Path,
) -> None:
    """Each line that it broke counts as so many rows; what was above stays."""
    (tmp_path / "wait").write_text("until test -e seen; do sleep 0.05; done")
    long = ". ./wait; : " + "x" * 60
    async with terminal(tmp_path, "run", "-c", long, width=120) as shown:
        await shown.read_until(b"1 running")
        size = struct.pack("HHHH", 24, 50, 0, 0)
        fcntl.ioctl(shown.master, termios.TIOCSWINSZ, size)
        # Head and row are of more than 100 columns, so of three rows each; the
        # cursor is in the last of seven.
        await shown.read_until(b"\r\x1b[6A\x1b[J")
        (tmp_path / "seen").touch()
        assert await shown.finish() == 0


@needs_proc
async def test_ctrl_z_gives_the_terminal_back_and_it_goes_on_as_before(
    tmp_path: Path,
) -> None:
    """The cursor is shown while it is stopped, and hidden again afterwards."""
    async with terminal(tmp_path, "run", "-c", "sleep 600") as shown:
        await shown.read_until(b"1 running")
        pid = shown.process.pid
        # Not by the key: the terminal is that of a session without a shell, of
        # which the kernel stops nobody.
        os.kill(pid, signal.SIGTSTP)
        await shown.read_until(b"\x1b[?25h")
        os.kill(pid, signal.SIGCONT)
        await shown.read_until(b"\x1b[?25h\x1b[?25l")
        os.write(shown.master, b"\x03")
        assert await shown.finish() == 128 + signal.SIGINT
    assert shown.output.count(b"\x1b[?25h") == 2


async def test_as_json_each_event_has_the_time_of_day_and_each_task_its_file(
    tmp_path: Path,
) -> None:
    before = datetime.now(UTC)
    async with running(
        tmp_path, "run", "--json", "--envelopes", "-c", "echo x", "-c", "echo y"
    ) as command:
        assert await command.finish() == 0
    times = [datetime.fromisoformat(event["at"]) for event in command.events]
    assert before <= times[0] and times[-1] <= datetime.now(UTC)
    of_events = [
        datetime.fromisoformat(event["at"])
        for event in command.events
        if "seq" in event
    ]
    assert of_events == sorted(of_events)
    for kind in ("TaskStarted", "TaskEnded"):
        files = [Path(event["output_file"]) for event in command.kinds(kind)]
        assert sorted(file.read_text() for file in files) == ["x\n", "y\n"]


async def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path) -> None:
    async with terminal(tmp_path, "run", "--json", "-c", "true") as shown:
        assert await shown.finish() == 0
    assert b"\x1b" not in shown.output


@needs_proc
async def test_ctrl_c_stops_what_a_terminal_shows(tmp_path: Path) -> None:
    async with terminal(tmp_path, "run", "--grace", "300", "-c", STUBBORN) as shown:
        await shown.read_until(b" 3 B")  # "up" has been printed
        os.write(shown.master, b"\x03")
        await shown.read_until(b"Ctrl+C again kills at once")
        os.write(shown.master, b"\x03")
        assert await shown.finish() == 128 + signal.SIGINT
        assert left_behind(tmp_path) == []
    assert shown.output.rpartition(b"\x1b[?25h")[2].count(b"killed") == 1


@needs_proc
async def test_a_terminal_that_goes_away_stops_everything(tmp_path: Path) -> None:
    async with terminal(tmp_path, "run", "--grace", "0.2", "-c", STUBBORN) as shown:
        await shown.read_until(b" 3 B")
        os.close(shown.master)
        shown.master = -1
        assert await shown.process.wait() == 128 + signal.SIGHUP
        assert left_behind(tmp_path) == []


# ---- Events as JSON -----------------------------------------------------------


def test_every_event_says_what_it_is_and_how_to_read_it() -> None:
    fields: dict[str, Any] = {
        "seq": 1,
        "time": 2.5,
        "task_id": "s1",
        "status": "failed",
        "exit_code": None,
        "signal": 9,
        "error": "é\nx",
        "ended_by": None,
        "result": "its end",
    }
    event = TaskEnded(**fields)
    line = to_json(event)
    assert b"\n" not in line
    assert orjson.loads(line) == {
        "kind": "TaskEnded",
        "version": SCHEMA_VERSION,
        **fields,
    }


def test_text_that_no_json_can_hold_is_replaced() -> None:
    event = TaskStarted(1, 0.0, "s1", "s1-1", "local_bash", "a\udcffb", None)
    assert orjson.loads(to_json(event))["description"] == "a?b"
