"""The fakes of `actors.testing` do what the real ones do.

Each test runs against both, in real time, so that they cannot drift apart: a
command here is a line for bash and the script that plays it. It also runs against a
fake that is entered and has a plan of faults: what the plan does not name goes well.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.env import (
    Clock,
    Files,
    Ids,
    Processes,
    ProcessExit,
    Terminal,
    real_env,
)
from actors.hosting import Process
from actors.testing import FakeFiles, FaultPlan, Program, fake_env
from actors.testing._env import FakeClock, FakeIds
from actors.testing._processes import FakeProcesses
from actors.testing._program import Script
from tests.actors.process_trees import PosixProcesses, guardian_of, nicer

KINDS = [
    "fake",
    "planned",
    pytest.param(
        "real",
        marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux is tested"),
    ),
]
both = pytest.mark.parametrize("kind", KINDS)

# ---- Commands: for bash, and in memory ----------------------------------------

COMMANDS: dict[str, Script | str | int | OSError] = {}


def command(line: str) -> Callable[[Script], str]:
    def add(script: Script) -> str:
        COMMANDS[line] = script
        return line

    return add


for code in (0, 1, 17, 255):
    COMMANDS[f"exit {code}"] = code

COMMANDS["echo one; echo two >&2; echo three"] = "one\ntwo\nthree\n"


@command("ulimit -c 0; kill -9 $$")
async def DIES_OF_9(program: Program) -> int:
    return -9


@command("ulimit -c 0; kill -11 $$")
async def DIES_OF_11(program: Program) -> int:
    return -11


@command("echo ready; exec sleep 1000")
async def SLEEPS(program: Program) -> None:
    await program.print("ready\n")
    await trio.sleep(1000)


@command("sleep 0.2; echo here")
async def SLOW(program: Program) -> None:
    await trio.sleep(0.2)
    await program.print("here\n")


@command("trap '' TERM; echo ready; while :; do sleep 0.05; done")
async def STUBBORN(program: Program) -> None:
    program.ignore_sigterm()
    await program.print("ready\n")
    await trio.sleep_forever()


@command(
    # bash says on stderr how its sleep ended.
    "exec 2>/dev/null; trap 'echo cleaning; exit 9' TERM; echo ready;"
    " while :; do sleep 0.01; done"
)
async def CLEANS_UP(program: Program) -> int:
    program.ignore_sigterm()
    await program.print("ready\n")
    await program.sigterm.wait()
    await program.print("cleaning\n")
    return 9


@command("exec <&-; echo ready; exec sleep 1000")
async def CLOSES_ITS_INPUT(program: Program) -> None:
    await program.print("ready\n")
    await trio.sleep(1000)


@command("echo out; exec >&- 2>&-; sleep 1000")
async def CLOSES_ITS_OUTPUT(program: Program) -> None:
    await program.print("out\n")
    program.close_output()
    await program.print("lost\n")
    await trio.sleep(1000)


async def sleeps_long(program: Program) -> None:
    await trio.sleep(1000)


async def sleeps_short(program: Program) -> None:
    await trio.sleep(0.3)


@command("echo out; sleep 1000 & exit 0")
async def LEAVES_A_HOLDER(program: Program) -> None:
    await program.print("out\n")
    program.fork(sleeps_long)


@command("echo out; sleep 1000 >/dev/null 2>&1 & exit 0")
async def LEAVES_A_SILENT_ONE(program: Program) -> None:
    await program.print("out\n")
    program.fork(sleeps_long, prints=False)


@command("sleep 0.3 & exit 0")
async def LEAVES_ONE_FOR_A_MOMENT(program: Program) -> None:
    program.fork(sleeps_short)


@command("sleep 1000 & sleep 1000 & echo ready; sleep 1000; :")
async def FAMILY(program: Program) -> None:
    for _ in range(3):
        program.fork(sleeps_long)
    await program.print("ready\n")
    await trio.sleep(1000)


@command('while read -r line; do echo "got $line"; done; echo end')
async def ECHOES(program: Program) -> None:
    while line := await program.read_line():
        await program.print(f"got {line}")
    await program.print("end\n")


@command('stty size; read -r line; echo "got $line"; cat; echo end; cat')
async def ON_A_TERMINAL(program: Program) -> None:
    assert program.terminal is not None
    await program.print(f"{program.terminal.rows} {program.terminal.columns}\n")
    await program.print(f"got {await program.read_line()}")
    while data := await program.read():
        await program.print(data)
    await program.print("end\n")
    while await program.read():
        pass


@command("for i in {1..100000}; do echo $i; done")
async def LOUD(program: Program) -> None:
    for number in range(1, 100_001):
        await program.print(f"{number}\n")


@command("echo out; echo err >&2; cat >&2")
async def TELLS_APART(program: Program) -> None:
    await program.print("out\n")
    await program.print_error("err\n")
    while data := await program.read():
        await program.print_error(data)


# ---- Processes ------------------------------------------------------------------


@asynccontextmanager
async def open_processes(
    kind: str, faults: FaultPlan | None = None
) -> AsyncGenerator[Processes, None]:
    fake = FakeProcesses(COMMANDS, environment={"PATH": "/usr/local/bin:/usr/bin:/bin"})
    fake.faults = faults
    with trio.fail_after(60):
        if kind == "planned":
            fake.faults = faults or FaultPlan()
            async with fake:
                yield fake
            return
        processes = fake if kind == "fake" else real_env().processes
        try:
            yield processes
        finally:
            await processes.aclose()


async def shell(processes: Processes, line: str, **how: Any) -> Process:
    return await processes.spawn(
        ["bash", "-c", line],
        cwd=None,
        env={"PATH": processes.environment()["PATH"]},
        marker="s00000001",
        **how,
    )


async def read_all(tree: Process) -> bytes:
    chunks: list[bytes] = []
    while chunk := await tree.receive():
        chunks.append(chunk)
    return b"".join(chunks)


async def read_until(tree: Process, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        chunk = await tree.receive(1)
        assert chunk, f"the output ended after {data!r}"
        data += chunk
    return data


async def hangs(fn: Callable[..., object], *args: object) -> bool:
    """Tell whether ``fn`` is still waiting after a while."""
    with trio.move_on_after(0.2) as scope:
        await fn(*args)  # type: ignore[misc]
    return scope.cancelled_caught


@both
@pytest.mark.parametrize("code", [0, 1, 17, 255])
async def test_an_exit_code_is_told(kind: str, code: int) -> None:
    """SH1, SH16."""
    async with open_processes(kind) as processes:
        tree = await shell(processes, f"exit {code}")
        exit = await tree.wait_exit()
        assert (exit.code, exit.signal, exit.lost) == (code, None, None)
        assert not exit.after_stop
        assert await tree.wait_exit() == exit
        await tree.wait_gone()
        assert await tree.members() == ()


@both
@pytest.mark.parametrize(("line", "number"), [(DIES_OF_9, 9), (DIES_OF_11, 11)])
async def test_a_signal_is_told(kind: str, line: str, number: int) -> None:
    """SH1."""
    async with open_processes(kind) as processes:
        exit = await (await shell(processes, line)).wait_exit()
        assert (exit.code, exit.signal, exit.after_stop) == (None, number, False)


@both
async def test_output_comes_in_order_and_ends(kind: str) -> None:
    """SH14."""
    async with open_processes(kind) as processes:
        tree = await shell(processes, "echo one; echo two >&2; echo three")
        assert await tree.receive(3) == b"one"
        assert await read_all(tree) == b"\ntwo\nthree\n"
        assert await tree.receive() == b""


@both
async def test_a_loud_program_waits_for_its_reader_and_loses_nothing(
    kind: str,
) -> None:
    """P7."""
    async with open_processes(kind) as processes:
        tree = await shell(processes, LOUD)
        assert await hangs(tree.wait_exit)
        expected = "".join(f"{number}\n" for number in range(1, 100_001))
        assert await read_all(tree) == expected.encode()
        assert (await tree.wait_exit()).code == 0


@both
async def test_a_cancelled_receive_loses_nothing(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, SLOW)
        with trio.CancelScope() as scope:
            scope.cancel()
            await tree.receive()
        assert scope.cancelled_caught
        assert await read_all(tree) == b"here\n"


async def read_to_exit(tree: Process) -> tuple[bytes, ProcessExit]:
    data = b""
    while isinstance(news := await tree.receive_or_exit(9), bytes):
        assert 0 < len(news) <= 9
        data += news
    assert news is not None
    return data, news


@both
async def test_one_task_may_wait_for_output_and_exit(kind: str) -> None:
    """SH14."""
    async with open_processes(kind) as processes:
        tree = await shell(processes, "echo one; echo two >&2; echo three")
        data, exit = await read_to_exit(tree)
        assert (data, exit.code) == (b"one\ntwo\nthree\n", 0)
        assert await tree.receive_or_exit(9) == exit
        await tree.wait_gone()
        assert tree.is_over
        assert await tree.receive() == b""
        await tree.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await tree.receive_or_exit(9)


@both
@pytest.mark.parametrize("line", [LEAVES_A_HOLDER, LEAVES_A_SILENT_ONE])
async def test_an_exit_is_told_although_something_is_left(kind: str, line: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, line)
        data, exit = await read_to_exit(tree)
        assert (data, exit.code) == (b"out\n", 0)
        assert not tree.is_over
        tree.kill()
        await tree.wait_gone()
        assert await tree.receive() == b""


@both
async def test_the_end_of_the_output_is_no_exit(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, CLOSES_ITS_OUTPUT)
        assert await tree.receive_or_exit(9) == b"out\n"
        assert await hangs(tree.receive_or_exit, 9)
        tree.kill()
        exit = await tree.receive_or_exit(9)
        assert isinstance(exit, ProcessExit)
        assert exit.signal == signal.SIGKILL


@both
async def test_a_cancelled_wait_for_both_loses_nothing(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, SLOW)
        with trio.CancelScope() as scope:
            scope.cancel()
            await tree.receive_or_exit(9)
        assert scope.cancelled_caught
        data, exit = await read_to_exit(tree)
        assert (data, exit.code) == (b"here\n", 0)


@both
async def test_a_close_wakes_who_waits_for_both(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, SLEEPS)
        await read_until(tree, b"ready\n")
        raised: list[str] = []

        async def wait() -> None:
            try:
                raised.append(repr(await tree.receive_or_exit(9)))
            except trio.ClosedResourceError:
                raised.append("closed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await tree.aclose()
        # It may hear of the exit that the close has brought about.
        assert raised == ["closed"] or "signal=9" in raised[0]


@both
async def test_any_number_of_tasks_wait_for_one_tree(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, SLOW)
        codes: list[int | None] = []

        async def wait() -> None:
            codes.append((await tree.wait_exit()).code)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(wait)
            nursery.start_soon(tree.wait_gone)
        assert codes == [0, 0, 0]


@both
async def test_sigterm_ends_who_does_not_care(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, SLEEPS)
        await read_until(tree, b"ready\n")
        assert await tree.members() == (tree.pid,)
        tree.terminate()
        exit = await tree.wait_exit()
        assert (exit.code, exit.signal) == (None, signal.SIGTERM)
        assert exit.after_stop
        await tree.wait_gone()


@both
async def test_sigkill_ends_who_ignores_sigterm(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, STUBBORN)
        await read_until(tree, b"ready\n")
        tree.terminate()
        assert await hangs(tree.wait_gone)
        assert tree.pid in await tree.members()
        tree.kill()
        await tree.wait_gone()
        exit = await tree.wait_exit()
        assert (exit.signal, exit.after_stop) == (signal.SIGKILL, True)


@both
async def test_a_program_may_clean_up_at_sigterm(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, CLEANS_UP)
        await read_until(tree, b"ready\n")
        tree.terminate()
        exit = await tree.wait_exit()
        assert (exit.code, exit.after_stop) == (9, True)
        assert await read_all(tree) == b"cleaning\n"


@both
async def test_an_end_before_the_stop_counts(kind: str) -> None:
    """P2."""
    async with open_processes(kind) as processes:
        tree = await shell(processes, "exit 0")
        await tree.wait_exit()
        tree.terminate()
        tree.kill()
        assert not (await tree.wait_exit()).after_stop


@both
async def test_what_is_left_holds_the_pipe_and_not_the_exit(kind: str) -> None:
    """SH20."""
    async with open_processes(kind) as processes:
        tree = await shell(processes, LEAVES_A_HOLDER)
        assert (await tree.wait_exit()).code == 0
        await read_until(tree, b"out\n")
        assert await hangs(tree.receive)
        assert await hangs(tree.wait_gone)
        assert len(await tree.members()) == 1
        assert tree.pid not in await tree.members()
        tree.kill()
        assert await read_all(tree) == b""
        await tree.wait_gone()


@both
async def test_what_is_left_without_the_pipe_does_not_hold_it(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, LEAVES_A_SILENT_ONE)
        assert await read_all(tree) == b"out\n"
        assert (await tree.wait_exit()).code == 0
        assert await hangs(tree.wait_gone)
        tree.terminate()
        await tree.wait_gone()
        assert not (await tree.wait_exit()).after_stop


@both
async def test_what_ends_by_itself_later_is_noticed(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, LEAVES_ONE_FOR_A_MOMENT)
        assert (await tree.wait_exit()).code == 0
        await tree.wait_gone()
        assert await tree.members() == ()


@both
async def test_sigterm_reaches_every_member(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, FAMILY)
        await read_until(tree, b"ready\n")
        while len(await tree.members()) < 4:  # bash forks the last one later
            await trio.sleep(0.01)
        tree.terminate()
        await tree.wait_gone()
        assert await tree.members() == ()


# ---- Standard input -----------------------------------------------------------


@both
async def test_without_a_pipe_there_is_nothing_to_read_nor_to_write_to(
    kind: str,
) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, ECHOES)
        with pytest.raises(trio.ClosedResourceError):
            await tree.send(b"x")
        with pytest.raises(trio.ClosedResourceError):
            await tree.send_eof()
        assert await read_all(tree) == b"end\n"


@both
async def test_what_is_sent_is_read_up_to_its_end(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, ECHOES, stdin="pipe")
        await tree.send(b"o")
        await tree.send(b"ne\ntwo\n")
        assert await read_until(tree, b"two\n") == b"got one\ngot two\n"
        await tree.send_eof()
        await tree.send_eof()
        with pytest.raises(trio.ClosedResourceError):
            await tree.send(b"late")
        assert await read_all(tree) == b"end\n"
        assert (await tree.wait_exit()).code == 0


@both
async def test_stderr_may_come_apart(kind: str) -> None:
    """HK2."""
    async with open_processes(kind) as processes:
        tree = await shell(processes, TELLS_APART, stdin="pipe", stderr="pipe")
        assert await tree.receive() == b"out\n"
        assert await tree.receive_stderr() == b"err\n"
        await tree.send(b"more")
        await tree.send_eof()
        assert await tree.receive_stderr() == b"more"
        assert await tree.receive_stderr() == b""
        assert await tree.receive() == b""
        await tree.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await tree.receive_stderr()


@both
async def test_a_stderr_apart_needs_no_input_and_goes_with_a_fork(kind: str) -> None:
    """HK2."""
    async with open_processes(kind) as processes:
        for how in ({}, {"nice": nicer(5)}):
            tree = await shell(processes, TELLS_APART, stderr="pipe", **how)
            assert await tree.receive_stderr() == b"err\n"
            assert await tree.receive() == b"out\n"
            assert await tree.receive() == b""
            assert await tree.receive_stderr() == b""


@both
async def test_stderr_is_stdout_unless_it_was_asked_for(kind: str) -> None:
    """SH14."""
    async with open_processes(kind) as processes:
        tree = await shell(processes, TELLS_APART)
        assert await read_all(tree) == b"out\nerr\n"
        with pytest.raises(trio.ClosedResourceError):
            await tree.receive_stderr()


@both
@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"stderr": "file"}, "stderr must be one of stdout, pipe, not 'file'"),
        ({"stderr": "pipe", "terminal": Terminal()}, "on a terminal"),
    ],
)
async def test_a_stderr_that_cannot_be_is_refused(
    kind: str, how: dict[str, Any], named: str
) -> None:
    async with open_processes(kind) as processes:
        with pytest.raises(ValueError, match=named):
            await shell(processes, TELLS_APART, **how)


@both
async def test_nobody_reads_what_is_sent_to_the_dead(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, "exit 0", stdin="pipe")
        await tree.wait_gone()
        with pytest.raises(trio.BrokenResourceError):
            for _ in range(2):
                await tree.send(b"x")


@both
async def test_a_sender_waits_for_who_does_not_read(kind: str) -> None:
    """P6."""
    async with open_processes(kind) as processes:
        tree = await shell(processes, SLEEPS, stdin="pipe")
        await read_until(tree, b"ready\n")
        assert await hangs(tree.send, b"x" * 1_000_000)
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                with pytest.raises(trio.BrokenResourceError):
                    await tree.send(b"x" * 1_000_000)

            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            tree.kill()


@both
async def test_a_terminal_has_a_size_and_an_end_that_is_typed(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(
            processes, ON_A_TERMINAL, terminal=Terminal(rows=30, columns=100)
        )
        assert (await read_until(tree, b"100\r\n")).split() == [b"30", b"100"]
        await tree.send(b"hello\n")
        assert await read_until(tree, b"\n") == b"got hello\r\n"
        await tree.send(b"more\n")
        assert await read_until(tree, b"\n") == b"more\r\n"
        await tree.send_eof()
        assert await read_until(tree, b"\n") == b"end\r\n"
        with pytest.raises(trio.ClosedResourceError):
            await tree.send(b"late")
        # It reads on, and is told of no other end.
        assert await hangs(tree.wait_exit)


# ---- What a tree uses -----------------------------------------------------------


@both
async def test_usage_counts_the_members(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, FAMILY)
        await read_until(tree, b"ready\n")
        while len(await tree.members()) < 4:
            await trio.sleep(0.01)
        usage = tree.usage()
        assert usage is not None
        assert usage.processes == 4
        assert usage.cpu_seconds >= 0
        assert usage.memory_bytes >= 0


# ---- What cannot be started -------------------------------------------------------

COMMANDS["no-such-program"] = FileNotFoundError(errno.ENOENT, "not found")


@both
async def test_a_failed_start_is_an_error_that_names_the_program(kind: str) -> None:
    """SH11."""
    async with open_processes(kind) as processes:
        with pytest.raises(FileNotFoundError) as caught:
            await processes.spawn(["no-such-program"], cwd=None, env={}, marker="x")
        assert caught.value.filename == "no-such-program"
        assert (await (await shell(processes, "exit 17")).wait_exit()).code == 17


@both
@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES])
async def test_a_start_that_fails_by_itself_is_an_error_with_its_number(
    kind: str, number: int, tmp_path: Path
) -> None:
    """SH11: the fake one fails by a fault."""
    path = tmp_path / "program"
    if number == errno.EACCES:
        path.write_bytes(b"")
    plan = FaultPlan()
    plan.set("processes.spawn", errno.errorcode[number])
    COMMANDS[str(path)] = 0
    async with open_processes(kind, plan) as processes:
        with pytest.raises(OSError, match="program") as caught:
            await processes.spawn([str(path)], cwd=None, env={}, marker="x")
        assert (caught.value.errno, caught.value.filename) == (number, str(path))
        assert (await (await shell(processes, "exit 17")).wait_exit()).code == 17


@both
async def test_a_tree_that_somebody_else_has_killed_was_not_stopped(kind: str) -> None:
    plan = FaultPlan()
    plan.set("process.receive", "killed", call=2)
    async with open_processes(kind, plan) as processes:
        tree = await shell(processes, SLEEPS)
        assert await tree.receive() == b"ready\n"
        if kind == "real":
            os.killpg(tree.pid, signal.SIGKILL)
        assert await tree.receive() == b""
        exit = await tree.wait_exit()
        assert (exit.code, exit.signal, exit.after_stop) == (None, 9, False)
        await tree.wait_gone()


@both
async def test_an_exit_code_that_is_lost_is_told_as_lost(kind: str) -> None:
    """It never reads as 0."""
    plan = FaultPlan()
    plan.set("process.wait_exit", "lost")
    async with open_processes(kind, plan) as processes:
        tree = await shell(processes, SLEEPS)
        await read_until(tree, b"ready\n")
        if kind == "real":
            os.kill(guardian_of(cast("PosixProcesses", processes)), signal.SIGKILL)
        else:
            tree.kill()
        exit = await tree.wait_exit()
        assert (exit.code, exit.signal) == (None, None)
        assert exit.lost
        assert await tree.wait_exit() == exit


@both
async def test_a_program_that_closes_its_input_can_be_sent_nothing(kind: str) -> None:
    plan = FaultPlan()
    plan.set("process.send", "broken")
    async with open_processes(kind, plan) as processes:
        tree = await shell(processes, CLOSES_ITS_INPUT, stdin="pipe")
        await read_until(tree, b"ready\n")
        for _ in range(2):
            with pytest.raises(trio.BrokenResourceError):
                await tree.send(b"x")
        assert await hangs(tree.wait_exit)


@both
async def test_a_program_may_close_its_output_and_go_on(kind: str) -> None:
    async with open_processes(kind) as processes:
        tree = await shell(processes, CLOSES_ITS_OUTPUT)
        assert await read_all(tree) == b"out\n"
        assert await hangs(tree.wait_exit)


@both
@pytest.mark.parametrize(
    ("argv", "env", "how"),
    [
        ([], {}, {}),
        (["a\0b"], {}, {}),
        (["true"], {"": "x"}, {}),
        (["true"], {"A=B": "x"}, {}),
        (["true"], {"A": "\0"}, {}),
        (["true"], {}, {"stdin": "file"}),
        (["true"], {}, {"terminal": Terminal(rows=0)}),
        (["true"], {}, {"terminal": Terminal(columns=1 << 16)}),
        (["true"], {}, {"nice": 20}),
        (["true"], {}, {"rlimits": {"patience": 1}}),
        (["true"], {}, {"rlimits": {"CPU": 1}}),
        (["true"], {}, {"rlimits": {"cpu": -2}}),
    ],
)
async def test_what_no_program_can_be_given_is_refused(
    kind: str, argv: list[str], env: dict[str, str], how: dict[str, Any]
) -> None:
    async with open_processes(kind) as processes:
        with pytest.raises(
            ValueError, match=r"empty|NUL|name|stdin|terminal|nice|limit"
        ):
            await processes.spawn(argv, cwd=None, env=env, marker="x", **how)


@both
async def test_a_start_that_is_cancelled_starts_nothing(kind: str) -> None:
    async with open_processes(kind) as processes:
        with trio.CancelScope() as scope:
            scope.cancel()
            await shell(processes, SLEEPS)
        assert scope.cancelled_caught


# ---- Closing --------------------------------------------------------------------


@both
@pytest.mark.parametrize("cancelled", [False, True])
async def test_closing_a_tree_ends_it_and_whoever_waits(
    kind: str, cancelled: bool
) -> None:
    """P1: also in a cancelled scope."""
    async with open_processes(kind) as processes:
        tree = await shell(processes, STUBBORN, stdin="pipe")
        await read_until(tree, b"ready\n")
        with trio.CancelScope() as scope:
            if cancelled:
                scope.cancel()
            await tree.aclose()
            await tree.aclose()
        assert (await tree.wait_exit()).signal == signal.SIGKILL
        await tree.wait_gone()
        assert await tree.members() == ()
        with pytest.raises(trio.ClosedResourceError):
            await tree.receive()
        with pytest.raises(trio.ClosedResourceError):
            await tree.send(b"x")
        with pytest.raises(trio.ClosedResourceError):
            await tree.send_eof()
        tree.terminate()
        tree.kill()


@both
async def test_closing_everything_ends_every_tree_and_allows_others(kind: str) -> None:
    """P1."""
    async with open_processes(kind) as processes:
        trees = [await shell(processes, STUBBORN) for _ in range(3)]
        await processes.aclose()
        for tree in trees:
            assert await tree.members() == ()
        await processes.aclose()
        assert (await (await shell(processes, "exit 1")).wait_exit()).code == 1


# ---- Files ----------------------------------------------------------------------


def make_files(kind: str) -> Files:
    if kind == "real":
        return real_env().files
    files = FakeFiles()
    if kind == "planned":
        files.faults = FaultPlan()
    return files


both_files = pytest.mark.parametrize("kind", ["fake", "planned", "real"])


def error_of(fn: Callable[..., object], *args: object) -> tuple[type, str | None]:
    with pytest.raises(OSError, match=r"\[Errno") as caught:
        fn(*args)
    return caught.type, caught.value.filename


@both_files
def test_a_directory_is_made_once_and_no_file_may_be_in_its_way(
    kind: str, tmp_path: Path
) -> None:
    files = make_files(kind)
    assert files.make_directory(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert files.make_directory(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    taken = tmp_path / "a" / "taken"
    files.reserve(taken)
    for path in (taken, taken / "below"):
        kind_of, name = error_of(files.make_directory, path)
        assert kind_of is NotADirectoryError
        assert str(taken) in str(name)


@both_files
async def test_a_file_is_created_once_and_opened_when_it_is_there(
    kind: str, tmp_path: Path
) -> None:
    """OF11."""
    files = make_files(kind)
    files.make_directory(tmp_path)
    path = tmp_path / "s.output"
    assert error_of(files.open_output, path) == (FileNotFoundError, str(path))
    files.reserve(path)
    for create in (files.reserve, files.create_output):
        assert error_of(create, path) == (FileExistsError, str(path))
    nowhere = tmp_path / "nowhere" / "s.output"
    assert error_of(files.create_output, nowhere) == (FileNotFoundError, str(nowhere))
    file = files.open_output(path)
    assert file.path == path
    await file.append(b"one")
    await file.append(b"")
    await file.append(b" two")
    assert file.size() == 7
    assert files.read_tail(path, 100) == (b"one two", False)
    await file.aclose()
    await file.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await file.append(b"late")
    again = files.open_output(path)
    await again.append(b"!")
    await again.aclose()
    assert files.read_tail(path, 100) == (b"one two!", False)


@both_files
async def test_an_append_is_whole_and_meets_a_cancellation_afterwards(
    kind: str, tmp_path: Path
) -> None:
    """P1."""
    files = make_files(kind)
    file = files.create_output(files.make_directory(tmp_path) / "s.output")
    with trio.CancelScope() as scope:
        scope.cancel()
        await file.append(b"one\n")
        await file.append(b"two\n")
        await file.aclose()
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert files.read_tail(file.path, 100) == (b"one\ntwo\n", False)


@both_files
async def test_a_directory_reads_as_nothing_and_is_not_removed(
    kind: str, tmp_path: Path
) -> None:
    """OF2, OF9."""
    files = make_files(kind)
    there = files.make_directory(tmp_path / "there")
    for path in (there, tmp_path / "nothing", Path("a\0b")):
        assert files.read_tail(path, 10) == (b"", False)
        assert files.read_at(path, 0, 10) == b""
        assert files.size(path) is None
    error_of(files.remove, there)
    files.remove(tmp_path / "nothing")


@both_files
def test_what_is_in_a_directory_is_told_sorted(kind: str, tmp_path: Path) -> None:
    """TR6: a directory that is missing has nothing."""
    files = make_files(kind)
    assert files.names(tmp_path / "nowhere") == []
    here = files.make_directory(tmp_path / "here")
    files.make_directory(here / "c")
    files.reserve(here / "b")
    files.link(here / "a", "b")
    files.reserve(here / "c" / "below")
    assert files.names(here) == ["a", "b", "c"]
    assert error_of(files.names, here / "b") == (NotADirectoryError, str(here / "b"))


@both_files
def test_files_and_links_are_told_with_their_sizes(kind: str, tmp_path: Path) -> None:
    """P7: a directory in it is none of them, and no link is followed."""
    files = make_files(kind)
    assert files.entries(tmp_path / "nowhere") == []
    here = files.make_directory(tmp_path / "here")
    files.make_directory(here / "c")
    files.append_lines(here / "b", b"one\n")
    files.link(here / "a", "b")
    files.append_lines(here / "c" / "below", b"one\n")
    told = files.entries(here)
    assert [(it.name, it.size) for it in told] == [("a", 0), ("b", 4)]
    assert error_of(files.entries, here / "b") == (NotADirectoryError, str(here / "b"))


async def test_a_file_has_the_time_at_which_it_was_last_written(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P7, P11: on the clock of its world, also after a crash."""
    env = fake_env()
    here = env.files.make_directory(Path("/here"))
    began = env.clock.now().timestamp()
    env.files.reserve(here / "a")
    env.files.append_lines(here / "b", b"one\n")
    await trio.sleep(60)
    env.files.append_lines(here / "b", b"two\n")
    env.clock.ahead = 3600
    env.files.replace(here / "c", b"three\n")
    told = {it.name: it.modified - began for it in env.files.entries(here)}
    assert told == {"a": 0, "b": 60, "c": 3660}
    left = FakeFiles(env.files.disk.image().killed())
    assert [it.modified - began for it in left.entries(here)] == [0, 60, 3660]


def test_a_real_file_has_the_time_at_which_it_was_last_written(tmp_path: Path) -> None:
    """P7"""
    (tmp_path / "a").write_bytes(b"a")
    os.utime(tmp_path / "a", (5, 10**9))
    assert [it.modified for it in real_env().files.entries(tmp_path)] == [10**9]


@both_files
def test_lines_are_appended_and_an_unfinished_one_is_ended_first(
    kind: str, tmp_path: Path
) -> None:
    """TR14."""
    files = make_files(kind)
    path = files.make_directory(tmp_path) / "a.jsonl"
    files.append_lines(path, b"one\n")
    files.append_lines(path, b"two\nthr")
    files.append_lines(path, b"four\n", durable=True)
    files.append_lines(path, b"five\n")
    assert files.read_at(path, 0, 99) == b"one\ntwo\nthr\nfour\nfive\n"
    nowhere = tmp_path / "nowhere" / "a.jsonl"
    assert error_of(files.append_lines, nowhere, b"x\n") == (
        FileNotFoundError,
        str(nowhere),
    )
    files.make_directory(tmp_path / "taken")
    kind_of, name = error_of(files.append_lines, tmp_path / "taken", b"x\n")
    assert (kind_of, name) == (IsADirectoryError, str(tmp_path / "taken"))


@both_files
def test_a_file_is_replaced_as_a_whole(kind: str, tmp_path: Path) -> None:
    """OF10: nothing is left beside it, and a directory is not replaced."""
    files = make_files(kind)
    here = files.make_directory(tmp_path / "here")
    files.replace(here / "m", b"one, and long")
    files.replace(here / "m", b"two")
    assert files.read_at(here / "m", 0, 99) == b"two"
    taken = files.make_directory(here / "taken")
    assert error_of(files.replace, taken, b"x") == (IsADirectoryError, str(taken))
    nowhere = here / "nowhere" / "m"
    assert error_of(files.replace, nowhere, b"x") == (FileNotFoundError, str(nowhere))
    assert files.names(here) == ["m", "taken"]


@both_files
def test_a_link_is_made_in_place_of_files_and_links_and_never_followed(
    kind: str, tmp_path: Path
) -> None:
    """OF4, OF2."""
    files = make_files(kind)
    here = files.make_directory(tmp_path / "here")
    files.append_lines(here / "kept", b"kept\n")
    files.append_lines(here / "l", b"a file\n")
    for target in ("nothing", "kept"):
        files.link(here / "l", target)
        assert files.read_tail(here / "l", 9) == (b"", False)
        assert files.read_at(here / "l", 0, 9) == b""
        assert files.size(here / "l") is None
        for call in (files.reserve, files.create_output):
            assert error_of(call, here / "l") == (FileExistsError, str(here / "l"))
        kind_of, name = error_of(files.append_lines, here / "l", b"x\n")
        assert (kind_of, name) == (OSError, str(here / "l"))
        assert error_of(files.open_output, here / "l") == (OSError, str(here / "l"))
    taken = files.make_directory(here / "taken")
    assert error_of(files.link, taken, "kept") == (IsADirectoryError, str(taken))
    assert files.names(here) == ["kept", "l", "taken"]
    files.replace(here / "l", b"mine")
    assert files.read_at(here / "l", 0, 9) == b"mine"
    files.link(here / "l", "kept")
    files.remove(here / "l")
    assert files.names(here) == ["kept", "taken"]
    assert files.read_at(here / "kept", 0, 9) == b"kept\n"


@both_files
async def test_a_function_is_called_aside_and_its_result_and_error_come_back(
    kind: str, tmp_path: Path
) -> None:
    files = make_files(kind)
    path = files.make_directory(tmp_path) / "a.jsonl"
    with trio.CancelScope() as scope:
        scope.cancel()
        await files.in_thread(files.append_lines, path, b"one\n")
        assert await files.in_thread(files.size, path) == 4
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    with pytest.raises(ZeroDivisionError):
        await files.in_thread(divmod, 1, 0)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.binary(max_size=6)),
        st.tuples(st.just("append"), st.sampled_from(["ä€😀".encode(), b"\n"])),
        st.tuples(st.just("rotate"), st.just(b"")),
        st.tuples(st.just("remove older"), st.just(b"")),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(OPERATIONS, st.integers(-2, 20), st.integers(-2, 20))
def test_any_run_of_operations_reads_alike(
    tmp_path_factory: pytest.TempPathFactory,
    operations: list[tuple[str, bytes]],
    offset: int,
    limit: int,
) -> None:
    """OF3, OF5, OF6, OF13: both are asked the same after every step."""
    directory = tmp_path_factory.getbasetemp() / "alike"

    async def play(files: Files) -> list[object]:
        seen: list[object] = []
        here, older = directory / "s.output", directory / "s.output.1"
        files.make_directory(directory)
        files.remove(here)
        files.remove(older)
        file = files.create_output(here)
        for what, data in operations:
            if what == "append":
                await file.append(data)
            elif what == "rotate":
                seen.append(file.rotate(older))
            else:
                files.remove(older)
            seen.append(file.size())
            for path in (here, older):
                seen.append(files.size(path))
                seen.append(files.read_tail(path, limit))
                if offset >= 0:
                    seen.append(files.read_at(path, offset, limit))
        await file.aclose()
        return seen

    assert trio.run(play, FakeFiles()) == trio.run(play, real_env().files)


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(
            "lines|durable lines|replace|durable replace|link|reserve|create|open|"
            "remove|left".split("|")
        ),
        st.sampled_from(["a", "b", "taken", "nowhere/a"]),
        st.binary(max_size=4),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(CHANGES)
def test_any_run_of_changes_in_a_directory_reads_alike(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, str, bytes]]
) -> None:
    """TR14, OF10: with the same errors, and nothing else in the directory."""
    directory = tmp_path_factory.getbasetemp() / "changed"

    async def play(files: Files) -> list[object]:
        seen: list[object] = []
        files.make_directory(directory / "taken")
        for name in files.names(directory):
            if name != "taken":
                files.remove(directory / name)
        for what, name, data in changes:
            path = directory / name
            try:
                if what.endswith("lines"):
                    files.append_lines(path, data, durable="durable" in what)
                elif what.endswith("replace"):
                    files.replace(path, data, durable="durable" in what)
                elif what == "link":
                    files.link(path, "a")
                elif what == "reserve":
                    files.reserve(path)
                elif what in ("create", "open"):
                    opens = (
                        files.create_output if what == "create" else files.open_output
                    )
                    file = opens(path)
                    await file.append(data)
                    await file.aclose()
                elif what == "remove":
                    files.remove(path)
                else:
                    # As a crash leaves it.
                    files.append_lines(path.with_name(f"{path.name}.new"), data)
            except OSError as error:
                seen.append((type(error), error.errno, error.filename))
            seen.append((files.names(directory), files.size(path)))
            seen.append(files.read_tail(path, 99))
        return seen

    assert trio.run(play, FakeFiles()) == trio.run(play, real_env().files)


# ---- Clock and names --------------------------------------------------------------


@pytest.mark.parametrize("clock", [FakeClock(), real_env().clock], ids=["fake", "real"])
async def test_the_clock_tells_aware_utc_and_does_not_go_back(clock: Clock) -> None:
    before = clock.now()
    assert before.tzinfo is not None
    assert not before.utcoffset()
    assert clock.now() >= before


@pytest.mark.parametrize("ids", [FakeIds(), real_env().ids], ids=["fake", "real"])
def test_names_have_the_length_asked_for_and_differ(ids: Ids) -> None:
    names = {ids.hex(8) for _ in range(100)}
    assert len(names) == 100
    assert all(len(name) == 8 and int(name, 16) >= 0 for name in names)
    assert all(name == name.lower() for name in names)
    assert len(ids.hex(3)) == 3
    assert all(0.0 <= ids.uniform() < 1.0 for _ in range(10))
