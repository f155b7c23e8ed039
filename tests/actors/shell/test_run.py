"""A run of a shell command, apart from the runtime: what it says, takes and ends."""

from __future__ import annotations

import errno
import inspect
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing

from actors import ActorRef, Completed, Exit, Failed, Stopped
from actors.env import Env, Files, OutputFile, Processes, real_env
from actors.hosting import Process
from actors.shell import CommandFailed, Shell, _command
from actors.work import Report
from supervisor.tree import child, open_supervisor
from tests.actors.process_trees import alive, nicer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

PATIENCE = 60


class Told(Report):
    """A report that keeps what it was told."""

    __slots__ = ("prompted", "prompts", "warnings")

    def __init__(self, env: Env, path: Path) -> None:
        super().__init__("s0000000", "s0000000-000001", env)
        self.output_file = path
        env.files.reserve(path)
        self.prompts: list[str | None] = []
        self.prompted = trio.Event()
        self.warnings: list[str] = []

    def on_prompt(self) -> None:
        self.prompts.append(self.prompt)
        self.prompted.set()

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@attrs.frozen
class Run:
    """A command that runs."""

    report: Told
    ref: ActorRef[object]

    def output(self) -> str:
        assert self.report.output_file is not None
        return self.report.output_file.read_text()

    async def wait_output(self, text: str) -> None:
        while text not in self.output():
            await trio.sleep(0.01)

    async def write(self, data: bytes) -> None:
        assert self.report.input is not None
        await self.report.input.write(data)

    async def close(self) -> None:
        assert self.report.input is not None
        await self.report.input.close()

    def stop(self) -> None:
        self.ref.stop()

    async def end(self) -> Exit[object]:
        return await self.ref.wait_exit()


@asynccontextmanager
async def running(
    shell: Shell, directory: Path, env: Env | None = None
) -> AsyncGenerator[Run]:
    """Run ``shell`` under a supervisor of its own; stop it at the end."""
    env = env or real_env()
    report = Told(env, directory / "output")
    with trio.fail_after(PATIENCE):
        try:
            spec = child(
                "run",
                shell.run,
                report,
                restart="temporary",
                shutdown=shell.shutdown,
            )
            async with open_supervisor([]) as tree:
                ref = await tree.start_child(spec)
                yield Run(report, ref)
        finally:
            with trio.CancelScope(shield=True):
                await env.processes.aclose()


async def end_of(shell: Shell, directory: Path) -> tuple[Exit[object], Told]:
    async with running(shell, directory) as run:
        return await run.end(), run.report


def message(exit: Exit[object]) -> str:
    assert isinstance(exit, Failed)
    return str(exit.error)


class SlowOutput:
    """An output file whose disk takes so many seconds for each piece, or, if it ``gives
    up``, does not take what is cancelled before."""

    def __init__(
        self, file: OutputFile, seconds: float, gives_up: bool, begins: trio.Event
    ) -> None:
        self._file = file
        self._seconds = seconds
        self._gives_up = gives_up
        self._begins = begins

    async def append(self, data: bytes) -> None:
        with trio.CancelScope(shield=not self._gives_up):
            await self._begins.wait()
            await trio.sleep(self._seconds)
        await self._file.append(data)

    @property
    def is_quick(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class SlowOutputs:
    """Files on such a disk. It does nothing before it ``begins``."""

    def __init__(self, files: Files, seconds: float, *, gives_up: bool = False) -> None:
        self._files = files
        self._seconds = seconds
        self._gives_up = gives_up
        self.begins = trio.Event()

    def open_output(self, path: Path) -> Any:
        file = self._files.open_output(path)
        return SlowOutput(file, self._seconds, self._gives_up, self.begins)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_slow_disk_loses_nothing_of_what_a_command_left_in_the_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_time: bool
) -> None:
    """P6: the deadline of the end is for what does not come, not for what is kept; a
    write that cannot be ended may take longer than its own."""
    if not in_time:
        monkeypatch.setattr(_command, "_KEEPING", 0.2)
    env = real_env()
    files = SlowOutputs(env.files, 1.2)
    files.begins.set()
    env = attrs.evolve(env, files=cast("Any", files))
    # When the second of three pieces is read, the command can end, and the third is left.
    shell = Shell("head -c 140000 /dev/zero | tr '\\0' x", linger=0)
    async with running(shell, tmp_path, env) as run:
        assert isinstance(await run.end(), Completed)
        assert run.output() == "x" * 140_000
        assert run.report.output_bytes == 140_000


async def test_an_end_of_the_output_that_a_disk_does_not_take_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2, P6: it is told, and not taken for kept."""
    monkeypatch.setattr(_command, "_KEEPING", 0.2)
    env = real_env()
    files = SlowOutputs(env.files, 60, gives_up=True)
    env = attrs.evolve(env, files=cast("Any", files))
    async with running(Shell("echo lost", linger=0), tmp_path, env) as run:
        text = "the end of the output could not be kept in 0.2 s"
        while run.report.exit_code is None:
            await trio.sleep(0.01)
        files.begins.set()
        assert message(await run.end()).endswith(text)
        assert run.report.warnings == [text]


_TALKS = "import os, time\nwhile True: os.write(1, bytes({})); time.sleep({})"


@pytest.mark.parametrize(
    ("talks", "linger", "least"),
    [
        # It may pause for as long as the command lingers.
        (_TALKS.format(4096, 0.001), 30, 2**21),
        # Neither each word nor all that it will ever say is waited for.
        (_TALKS.format(1, 0.1), 0, 1),
    ],
    ids=["much", "little"],
)
async def test_whoever_has_got_hold_of_the_pipe_and_goes_on_holds_up_no_end(
    tmp_path: Path, talks: str, linger: float, least: int
) -> None:
    """P6: a command can have left a MiB there; what comes far behind is not its own."""
    shell = Shell("read line", stdin="pipe", linger=linger, raw=True)
    async with running(shell, tmp_path) as run:
        while run.report.pid is None:
            await trio.sleep(0.01)
        pipe = os.open(f"/proc/{run.report.pid}/fd/1", os.O_WRONLY)
        talker = await trio.lowlevel.open_process(
            [sys.executable, "-c", talks], stdout=pipe, stderr=subprocess.DEVNULL
        )
        os.close(pipe)
        try:
            await run.wait_output("\0")
            await run.write(b"end\n")
            assert isinstance(await run.end(), Completed)
            assert least <= run.report.output_bytes < 2**25
        finally:
            talker.kill()
            await talker.wait()


# Codes and signals


async def test_every_exit_code_is_told_as_it_is(tmp_path: Path) -> None:
    """SH1, SH16."""
    env = real_env()
    limiter = trio.CapacityLimiter(8)
    codes: dict[int, object] = {}

    async def one(code: int) -> None:
        async with limiter:
            report = Told(env, tmp_path / str(code))
            async with open_supervisor([]) as tree:
                ref = await tree.start_child(
                    child("run", Shell(f"exit {code}").run, report, restart="temporary")
                )
                exit = await ref.wait_exit()
                codes[code] = report.exit_code
                assert report.signal is None
                assert isinstance(exit, Failed if code else Completed)
                if isinstance(exit, Failed):
                    assert isinstance(exit.error, CommandFailed)
                    assert str(exit.error) == f"exit code {code}"

    with trio.fail_after(2 * PATIENCE):
        try:
            async with trio.open_nursery() as nursery:
                for code in range(256):
                    nursery.start_soon(one, code)
        finally:
            with trio.CancelScope(shield=True):
                await env.processes.aclose()
    assert codes == {code: code for code in range(256)}


SIGNALS = [1, 2, 3, 6, 9, 10, 11, 13, 14, 15, 24, 25, 31, 34, 40, 50, 64]


@pytest.mark.parametrize("number", SIGNALS)
async def test_every_signal_is_told_as_it_is(tmp_path: Path, number: int) -> None:
    """SH1, SH16: real-time signals too; those have no names but the outermost."""
    # Not by the shell itself: bash ignores some.
    program = (
        f"import os, signal; n = {number}; n == 9 or signal.signal(n, signal.SIG_DFL);"
        " os.kill(os.getpid(), n); signal.pause()"
    )
    command = f"exec {shlex.quote(sys.executable)} -S -c {shlex.quote(program)}"
    shell = Shell(command, rlimits={"core": 0})
    exit, report = await end_of(shell, tmp_path)
    assert (report.exit_code, report.signal) == (None, number)
    name = signal.Signals(number).name if number in [*signal.Signals] else None
    expected = f"ended by signal {number}" + (f" ({name})" if name else "")
    assert message(exit) == expected


@pytest.mark.parametrize("pty", [False, True])
@pytest.mark.parametrize(
    "command",
    ["echo x | (cat; exit 17)", "exit 17", "(exit 17)", "exec sh -c 'exit 17'"],
)
async def test_17_is_17(tmp_path: Path, command: str, pty: bool) -> None:
    """SH16."""
    exit, report = await end_of(Shell(command, pty=pty), tmp_path)
    assert (report.exit_code, message(exit)) == (17, "exit code 17")


async def test_a_trailing_ampersand_does_not_end_the_task(tmp_path: Path) -> None:
    """SH2: the code and the output are those of the command itself."""
    exit, report = await end_of(
        Shell("sleep 0.3; echo done; exit 5 & ", linger=0), tmp_path
    )
    assert report.exit_code == 5
    assert report.output_tail == "done\n"
    exit, report = await end_of(
        Shell("sleep 0.3 && echo done &\n", linger=0), tmp_path / ".."
    )
    assert (exit, report.output_tail) == (Completed("done\n"), "done\n")


async def test_the_end_of_one_stream_does_not_end_the_other(tmp_path: Path) -> None:
    """SH14."""
    _, report = await end_of(
        Shell("echo a; exec 1>&-; sleep 0.2; echo b >&2; sleep 0.2; echo c >&2"),
        tmp_path,
    )
    assert report.output_tail == "a\nb\nc\n"


# Input


async def test_input_goes_to_the_command_until_it_is_closed(tmp_path: Path) -> None:
    """A write at once, before the command has started, waits for it."""
    async with running(Shell("cat; echo end", stdin="pipe"), tmp_path) as run:
        await run.write(b"one\n")
        await run.wait_output("one\n")
        await run.write(b"two\n")
        await run.close()
        assert await run.end() == Completed("one\ntwo\nend\n")
        assert run.report.input is None


async def test_input_that_nobody_can_take_is_refused(tmp_path: Path) -> None:
    async with running(
        Shell("exec <&-; echo up; sleep 60", stdin="pipe"), tmp_path
    ) as run:
        input = run.report.input
        assert input is not None
        await run.wait_output("up\n")
        with pytest.raises(trio.BrokenResourceError):
            await input.write(b"x")
        await input.close()
        await input.close()
        with pytest.raises(trio.ClosedResourceError):
            await input.write(b"x")
        run.stop()
        await run.end()
        with pytest.raises(trio.ClosedResourceError):
            await input.write(b"x")
        with pytest.raises(trio.ClosedResourceError):
            await input.close()


async def test_input_of_a_command_that_cannot_start_is_refused(tmp_path: Path) -> None:
    async with running(
        Shell("cat", stdin="pipe", cwd=tmp_path / "missing"), tmp_path
    ) as run:
        input = run.report.input
        assert input is not None
        with pytest.raises(trio.ClosedResourceError):
            await input.write(b"x")
        assert "[Errno 2]" in message(await run.end())


async def test_a_write_that_nobody_reads_is_freed_by_the_end(tmp_path: Path) -> None:
    """The pipe is full; the stop does not wait for it, nor it for ever."""
    async with running(Shell("echo up; sleep 60", stdin="pipe"), tmp_path) as run:
        await run.wait_output("up\n")

        async def fill() -> None:
            with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
                await run.write(bytes(10**7))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill)
            await trio.testing.wait_all_tasks_blocked(0.01)
            run.stop()
        assert isinstance(await run.end(), Stopped)


async def test_without_a_pipe_there_is_no_input(tmp_path: Path) -> None:
    async with running(Shell("cat; echo end"), tmp_path) as run:
        assert run.report.input is None
        assert await run.end() == Completed("end\n")


# A terminal


async def test_a_terminal_has_its_size_and_no_echo(tmp_path: Path) -> None:
    command = (
        "test -t 0 && test -t 1 && test -t 2 && echo tty; stty size; stty -a | grep -o -- '-echo '"
        "; read line; echo \"<$line>\"; cat; printf 'a\\r\\n\\033[1mb\\033[0m\\n'"
    )
    async with running(Shell(command, pty=True, size=(33, 77)), tmp_path) as run:
        await run.wait_output("-echo")
        await run.write(b"secret\n")
        await run.wait_output("<secret>")
        await run.close()
        assert await run.end() == Completed("tty\n33 77\n-echo \n<secret>\na\nb\n")
        assert b"\r" not in (run.report.output_file or tmp_path).read_bytes()


async def test_an_interrupt_typed_on_the_terminal_reaches_the_command(
    tmp_path: Path,
) -> None:
    """It is the controlling terminal, with its own foreground group."""
    command = "trap 'echo interrupted; exit 9' INT; echo up; sleep 60 & wait"
    async with running(Shell(command, pty=True), tmp_path) as run:
        await run.wait_output("up\n")
        await run.write(b"\x03")
        assert message(await run.end()) == "exit code 9"
        assert "interrupted\n" in run.output()


async def test_the_end_of_a_terminal_command_is_the_end_of_its_tree(
    tmp_path: Path,
) -> None:
    """A stop ends what holds the terminal; nothing waits for the rest of it."""
    async with running(
        Shell("trap '' HUP TERM; echo up; sleep 600", pty=True, grace=0.2), tmp_path
    ) as run:
        await run.wait_output("up\n")
        run.stop()
        assert isinstance(await run.end(), Stopped)
        assert run.report.signal == signal.SIGKILL


async def test_a_terminal_that_all_have_closed_may_be_opened_again(
    tmp_path: Path,
) -> None:
    """P2: who writes to it late is heard, and not held up by what it wrote before."""
    command = (
        "echo first; exec </dev/null >/dev/null 2>&1; touch closed; "
        "until test -e go; do sleep 0.05; done; seq 1 20000 >/dev/tty"
    )
    shell = Shell(command, pty=True, cwd=str(tmp_path))
    async with running(shell, tmp_path) as run:
        while not await trio.Path(tmp_path / "closed").exists():
            await trio.sleep(0.01)
        await trio.testing.wait_all_tasks_blocked()
        (tmp_path / "go").touch()
        assert isinstance(await run.end(), Completed)
        numbers = map(str, range(1, 20_001))
        assert run.output().split() == ["first", *numbers]


# Errors of the system


# What little a command prints is copied by the task itself, and much by another one.
LITTLE = "echo up"
MUCH = "head -c 5000 /dev/zero | tr '\\0' x; echo; echo up"


class Faulty:
    """A process of which one call fails."""

    def __init__(self, process: Process, call: str) -> None:
        self._process = process
        self._call = call

    def __getattr__(self, name: str) -> object:
        if name != self._call:
            return getattr(self._process, name)
        if inspect.iscoroutinefunction(getattr(self._process, name)):
            return self._fail_later
        return self._fail

    def _fail(self, *args: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    async def _fail_later(self, *args: object) -> None:
        await trio.lowlevel.checkpoint()
        self._fail()


class FaultyProcesses:
    """Processes of each of which one call fails."""

    def __init__(self, processes: Processes, call: str) -> None:
        self._processes = processes
        self._call = call

    def __getattr__(self, name: str) -> object:
        return getattr(self._processes, name)

    async def spawn(self, argv: Sequence[str], **options: Any) -> Process:
        process = await self._processes.spawn(argv, **options)
        return Faulty(process, self._call)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("call", "said"),
    [("receive_or_exit", LITTLE), ("receive", MUCH), ("wait_exit", MUCH)]
    + [
        (it, said)
        for it in ("wait_gone", "terminate", "kill")
        for said in (LITTLE, MUCH)
    ],
)
async def test_what_the_system_refuses_while_a_command_runs_names_itself(
    tmp_path: Path, call: str, said: str
) -> None:
    """SH11: the failure is that error, and no group of errors."""
    real = real_env()
    processes: Any = FaultyProcesses(real.processes, call)
    env = attrs.evolve(real, processes=processes)
    async with running(Shell(f"{said}; sleep 600"), tmp_path, env) as run:
        if call in ("terminate", "kill", "wait_gone"):
            await run.wait_output("up\n")
            run.stop()
        exit = await run.end()
        assert isinstance(exit, Failed)
        assert repr(exit.error) == repr(OSError(errno.ENOMEM, "Cannot allocate memory"))


class Struck:
    """A process of which one wait for output and exit is struck by an interrupt."""

    def __init__(self, process: Process, call: int) -> None:
        self._process = process
        self._left = call

    def __getattr__(self, name: str) -> object:
        return getattr(self._process, name)

    async def receive_or_exit(self, max_bytes: int) -> object:
        if self._left == 0:
            raise KeyboardInterrupt
        self._left -= 1
        return await self._process.receive_or_exit(max_bytes)


class StruckProcesses(FaultyProcesses):
    def __init__(self, processes: Processes, call: int) -> None:
        super().__init__(processes, "")
        self._at = call

    async def spawn(self, argv: Sequence[str], **options: Any) -> Process:
        process = await self._processes.spawn(argv, **options)
        return Struck(process, self._at)  # type: ignore[return-value]


@pytest.mark.parametrize("call", [0, 1, 2])
async def test_an_interrupt_where_output_is_awaited_ends_the_command_and_goes_on(
    tmp_path: Path, call: int
) -> None:
    """P1: what was printed is kept, nothing is left, and the interrupt is no failure."""
    real = real_env()
    processes: Any = StruckProcesses(real.processes, call)
    env = attrs.evolve(real, processes=processes)
    # Each word is a piece of its own, however busy the machine is.
    kept_one = f"until [ -s {tmp_path}/output ]; do sleep 0.01; done"
    command = f"echo one; {kept_one}; echo two; exec sleep 600"
    pid, run = 0, None
    with pytest.raises((KeyboardInterrupt, BaseExceptionGroup)) as raised:
        async with running(Shell(command), tmp_path, env) as run:
            while not (pid := run.report.pid or 0):
                await trio.sleep(0.001)
            await run.end()
    assert "KeyboardInterrupt" in repr(raised.value)
    assert run is not None
    assert not alive(pid)
    kept = (tmp_path / "output").read_text()
    assert kept == run.report.output_tail
    assert kept.splitlines() >= ["one", "two"][:call]


# Limits


async def test_niceness_and_limits_are_inherited(tmp_path: Path) -> None:
    command = "nice; ulimit -n; ulimit -c; (ulimit -t)"
    shell = Shell(command, nice=nicer(7), rlimits={"nofile": 123, "core": 0, "cpu": 50})
    exit, _ = await end_of(shell, tmp_path)
    assert exit == Completed(f"{nicer(7)}\n123\n0\n50\n")


async def test_a_limit_that_is_refused_fails_the_task_by_name(tmp_path: Path) -> None:
    """SH11."""
    exit, _ = await end_of(Shell("true", rlimits={"nofile": 2**62}), tmp_path)
    assert "rlimit nofile" in message(exit)
    assert isinstance(exit, Failed) and isinstance(exit.error, OSError)


async def test_a_limit_of_cpu_time_ends_the_command(tmp_path: Path) -> None:
    exit, report = await end_of(
        Shell("while :; do :; done", rlimits={"cpu": 1, "core": 0}), tmp_path
    )
    # The soft and the hard limit are the same: it is killed at once.
    assert report.signal in (signal.SIGXCPU, signal.SIGKILL)
    assert isinstance(exit, Failed)
    # The limit counts whole ticks, which under load is more than was used.
    assert report.cpu_seconds is not None and report.cpu_seconds > 0.2


# Use


async def test_a_running_command_is_measured_with_its_children(tmp_path: Path) -> None:
    """CPU seconds, memory and processes; afterwards the CPU seconds stay."""
    burn = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done"
    command = f"({burn}); echo burnt; sleep 60 & sleep 60"
    async with running(Shell(command), tmp_path) as run:
        await run.wait_output("burnt\n")
        measure = run.report.measure
        assert measure is not None
        while (usage := measure()) is None or usage.processes < 3:
            await trio.sleep(0.01)
        assert usage.processes == 3
        assert usage.memory_bytes > 1_000_000
        assert usage.cpu_seconds > 0
        assert run.report.cpu_seconds is None
        run.stop()
        await run.end()
        assert run.report.measure is None
        assert run.report.cpu_seconds is not None
        assert run.report.cpu_seconds >= usage.cpu_seconds


# Hurry


async def test_a_stop_now_grants_no_grace(tmp_path: Path) -> None:
    """The SIGTERM that it would survive is not even sent."""
    command = "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done"
    async with running(Shell(command, grace=1000), tmp_path) as run:
        await run.wait_output("up\n")
        run.report.hurry_up()
        run.stop()
        assert isinstance(await run.end(), Stopped)
        assert run.report.signal == signal.SIGKILL
        assert run.output() == "up\n"


async def test_a_hurry_cuts_the_grace_of_a_stop_under_way(tmp_path: Path) -> None:
    command = "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done"
    async with running(Shell(command, grace=1000), tmp_path) as run:
        await run.wait_output("up\n")
        run.stop()
        await run.wait_output("asked\n")
        run.report.hurry_up()
        assert isinstance(await run.end(), Stopped)
        assert run.report.signal == signal.SIGKILL


async def test_a_hurry_alone_stops_nothing(tmp_path: Path) -> None:
    """SH10 as well: what listened for the stop is gone with the run."""
    async with running(Shell("echo up; sleep 0.3; echo end"), tmp_path) as run:
        run.report.hurry_up()
        assert await run.end() == Completed("up\nend\n")
        run.report.hurry_up()


# Prompts


async def test_an_unfinished_line_and_silence_is_a_prompt_told_once(
    tmp_path: Path,
) -> None:
    """SH33: with the cleaned line, while it runs, until output goes on."""
    command = (
        r"printf 'log\n\033[1mGo on? [Y/n]\033[0m '; read a; echo yes; printf 'More? ';"
        " read b; echo end"
    )
    shell = Shell(command, stdin="pipe", prompt_after=0.2)
    async with running(shell, tmp_path) as run:
        await run.report.prompted.wait()
        assert run.report.prompts == ["Go on? [Y/n]"]
        await run.write(b"y\n")
        assert run.report.prompt is None
        await run.wait_output("yes\n")
        # Longer than it would take: the second is not told.
        await trio.sleep(0.6)
        await run.write(b"y\n")
        assert isinstance(await run.end(), Completed)
        assert run.report.prompts == ["Go on? [Y/n]"]


async def test_a_prompt_is_taken_back_when_output_goes_on(tmp_path: Path) -> None:
    """SH33: it was only slow."""
    command = (
        "printf 'working...'; while [ ! -e go ]; do sleep 0.02; done; echo ok; sleep 60"
    )
    async with running(Shell(command, cwd=tmp_path, prompt_after=0.2), tmp_path) as run:
        await run.report.prompted.wait()
        assert run.report.prompt == "working..."
        (tmp_path / "go").touch()
        await run.wait_output("ok\n")
        assert run.report.prompt is None


async def test_a_prompt_on_a_terminal_is_noticed_too(tmp_path: Path) -> None:
    """SH33."""
    shell = Shell(
        "read -p 'Password: ' -s x; echo; echo $x", pty=True, prompt_after=0.2
    )
    async with running(shell, tmp_path) as run:
        await run.report.prompted.wait()
        assert run.report.prompt == "Password:"
        await run.write(b"xyz\n")
        assert isinstance(await run.end(), Completed)
        assert "xyz" in run.output()


@pytest.mark.parametrize(
    ("command", "prompt_after"),
    [
        ("echo whole line; sleep 0.8", 0.1),
        (r"printf '10%%\r'; sleep 0.8", 0.1),
        (r"printf 'line\n\033[0m'; sleep 0.8", 0.1),
        ("printf 'no newline'", 30),
        ("printf unfinished; sleep 0.8", None),
        # Its end has come; only what it left behind still runs.
        ("printf unfinished; sleep 4 &\nexit 0", 3),
        ("sleep 0.8", 0.1),
        ("printf 'head\\0binary'; sleep 0.8", 0.1),
    ],
)
async def test_what_waits_for_nobody_is_no_prompt(
    tmp_path: Path, command: str, prompt_after: float | None
) -> None:
    """SH33."""
    shell = Shell(command, prompt_after=prompt_after, linger=20)
    _, report = await end_of(shell, tmp_path)
    assert report.prompts == []


async def test_a_command_that_is_being_stopped_waits_for_nobody(tmp_path: Path) -> None:
    """SH33: silent in its grace."""
    command = "trap 'printf wait; sleep 2; exit' TERM; printf up; sleep 60 & wait"
    async with running(Shell(command, grace=50, prompt_after=1), tmp_path) as run:
        while run.report.pid is None or run.report.log is None:
            await trio.sleep(0.01)
        while not run.report.log.unfinished:
            await trio.sleep(0.01)
        run.stop()
        await run.end()
        assert run.report.prompts == []


# Failures to start


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: path / "missing", "No such file or directory"),
        (lambda path: path / "file", "Not a directory"),
        (lambda path: path / "loop", "Too many levels of symbolic links"),
        (lambda path: path / ("x" * 300), "File name too long"),
        (lambda path: path / ("x/" * 3000), "File name too long"),
    ],
)
async def test_a_bad_directory_fails_the_run_with_the_system_s_words(
    tmp_path: Path, make: Callable[[Path], Path], text: str
) -> None:
    """SH11."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    exit, report = await end_of(Shell("true", cwd=make(tmp_path)), tmp_path)
    assert isinstance(exit, Failed) and isinstance(exit.error, OSError)
    assert text in str(exit.error) and str(make(tmp_path)) in str(exit.error)
    assert (report.pid, report.exit_code, report.signal) == (None, None, None)


async def test_a_directory_of_the_host_that_is_gone_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SH11, SD11: also when it was not named."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    exit, _ = await end_of(Shell("true"), tmp_path)
    assert isinstance(exit, Failed) and isinstance(exit.error, FileNotFoundError)


@pytest.mark.parametrize("size", [200_000, 3_000_000])
async def test_a_command_too_long_fails_the_run(tmp_path: Path, size: int) -> None:
    """SH11: one argument may have 128 KiB, all together a few megabytes."""
    exit, _ = await end_of(Shell(": " + "x" * size), tmp_path)
    assert "Argument list too long" in message(exit)
