"""Real process trees, observed from outside through /proc."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from actors._system.posix import PosixProcesses, SystemClock, SystemIds
from actors.env import Terminal
from tests.actors.process_trees import (
    ESCAPES,
    ROOT,
    WHEN_TOLD,
    Held,
    alive,
    chain,
    children,
    descriptors,
    end,
    fields,
    guardian_of,
    living,
    nicer,
    open_processes,
    outer_guardian_of,
    read_all,
    read_line,
    reap_everything,
    sees_guardians,
    shell,
    start_beside,
    stop_guardian,
    until,
    unused_seconds,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Ends


@pytest.mark.parametrize("code", [0, 1, 17, 255])
async def test_the_exit_code_is_the_true_one(code: int) -> None:
    """SH1, SH16."""
    async with open_processes() as processes:
        tree = await shell(processes, f"exit {code}")
        exit = await tree.wait_exit()
        assert (exit.code, exit.signal, exit.lost) == (code, None, None)
        assert not exit.after_stop
        assert await tree.wait_exit() == exit
        await tree.wait_gone()
        assert not alive(tree.pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE])
async def test_the_signal_that_ended_the_leader_is_told(number: int) -> None:
    """SH1."""
    async with open_processes() as processes:
        tree = await shell(processes, f"ulimit -c 0; kill -{int(number)} $$")
        exit = await tree.wait_exit()
        assert (exit.code, exit.signal) == (None, number)
        assert not exit.after_stop


async def test_a_host_that_reaps_every_child_does_not_lose_the_exit_code() -> None:
    async with open_processes() as processes:
        first = await shell(processes, "exit 3")
        assert (await first.wait_exit()).code == 3
        second = await shell(processes, "exit 4")
        reap_everything()
        assert (await second.wait_exit()).code == 4


async def test_a_host_that_ignores_sigchld_does_not_lose_the_exit_code() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        async with open_processes() as processes:
            tree = await shell(processes, "trap '' CHLD; exit 5")
            assert (await tree.wait_exit()).code == 5
            # The program itself finds the default.
            check = (
                "import signal as s, sys; sys.exit(s.getsignal(s.SIGCHLD) is s.SIG_IGN)"
            )
            other = await processes.spawn(
                [sys.executable, "-c", check], cwd=None, env=os.environ, marker="x"
            )
            assert (await other.wait_exit()).code == 0
    finally:
        signal.signal(signal.SIGCHLD, before)


async def test_many_tasks_may_wait_for_one_tree() -> None:
    async with open_processes() as processes:
        tree = await shell(processes, "read -t 0.2 < /dev/zero; sleep 0.1; exit 6")
        codes: list[int | None] = []

        async def wait() -> None:
            codes.append((await tree.wait_exit()).code)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(wait)
            nursery.start_soon(tree.wait_gone)
            with trio.move_on_after(0.01):  # The one that reads goes away.
                await tree.wait_gone()
        assert codes == [6] * 5


# What a program finds


async def test_stdin_is_dev_null_and_the_environment_is_the_given_one() -> None:
    async with open_processes() as processes:
        tree = await processes.spawn(
            ["bash", "-c", "readlink /proc/self/fd/0; env; ls /proc/self/fd | wc -l"],
            cwd="/",
            env={"PATH": os.environ["PATH"], "COLOUR": "grün=x", "EMPTY": ""},
            marker="s0000abcd",
        )
        lines = (await read_all(tree)).decode().splitlines()
        assert lines[0] == "/dev/null"
        assert "COLOUR=grün=x" in lines
        assert "EMPTY=" in lines
        assert f"{processes._variable}=s0000abcd" in lines
        assert not any(line.startswith("HOME=") for line in lines)
        assert lines[-1] == "4"  # 0, 1, 2 and the directory that ls reads.


def test_the_environment_is_read_anew_when_it_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = PosixProcesses()
    before = processes.environment()
    assert before == dict(os.environ)
    monkeypatch.setenv("COLOUR", "grün")
    assert processes.environment() == before | {"COLOUR": "grün"}
    monkeypatch.setenv("COLOUR", "blau")
    changed = processes.environment()
    assert changed["COLOUR"] == "blau"
    changed["COLOUR"] = "mine"
    assert processes.environment()["COLOUR"] == "blau"
    monkeypatch.delenv("COLOUR")
    assert processes.environment() == before


async def test_each_program_finds_the_environment_of_its_own_spawn() -> None:
    async with open_processes() as processes:
        for i in (1, 1, 2, 1):
            tree = await processes.spawn(
                ["/bin/sh", "-c", "echo $N"],
                cwd=None,
                env={"N": str(i)},
                marker=f"m{i}",
            )
            assert await read_all(tree) == b"%d\n" % i
        assert (
            await read_all(
                await processes.spawn(["/usr/bin/env"], cwd=None, env={}, marker="x")
            )
            == f"{processes._variable}=x\n".encode()
        )


async def test_the_program_starts_with_default_signals_and_an_empty_mask() -> None:
    async with open_processes() as processes:
        tree = await shell(processes, "exec cat /proc/self/status")
        lines = (await read_all(tree)).decode().splitlines()
        masks = dict(line.split(":\t") for line in lines if line.startswith("Sig"))
        # 32 and 33 belong to the C library, which hides them.
        seen = {
            k: int(masks[k], 16) & 0x7FFFFFFF for k in ("SigBlk", "SigIgn", "SigCgt")
        }
        assert seen == {"SigBlk": 0, "SigIgn": 0, "SigCgt": 0}


@sees_guardians
async def test_the_leader_has_its_own_session_and_group() -> None:
    """SH15."""
    async with open_processes() as processes:
        tree = await shell(processes, "echo ready; sleep 100")
        assert await read_line(tree) == "ready"
        stat = fields(tree.pid)
        assert stat is not None
        assert int(stat[2]) == int(stat[3]) == tree.pid
        guardian = fields(guardian_of(processes))
        assert guardian is not None
        assert int(guardian[3]) == guardian_of(processes)


async def test_stdout_and_stderr_arrive_in_one_order() -> None:
    """SH14."""
    async with open_processes() as processes:
        tree = await shell(
            processes, "for i in {1..200}; do echo $i; echo e$i >&2; done"
        )
        expected = "".join(f"{i}\ne{i}\n" for i in range(1, 201))
        assert (await read_all(tree)).decode() == expected
        assert await tree.receive() == b""


async def test_a_cancelled_receive_loses_nothing(tmp_path: Path) -> None:
    async with open_processes() as processes:
        tree = await shell(processes, f"{WHEN_TOLD}; echo here", cwd=str(tmp_path))
        with trio.move_on_after(0.001) as scope:
            await tree.receive()
        assert scope.cancelled_caught
        (tmp_path / "go").touch()
        assert await read_all(tree) == b"here\n"


async def test_it_runs_in_the_given_directory(tmp_path: Path) -> None:
    where = str(tmp_path.resolve())  # noqa: ASYNC240
    async with open_processes() as processes:
        tree = await shell(processes, "pwd -P", cwd=str(tmp_path))
        assert (await read_all(tree)).decode().strip() == where
        tree = await shell(processes, "pwd -P", cwd=None)
        assert (await read_all(tree)).decode().strip() == os.getcwd()


async def test_a_relative_program_is_sought_from_the_given_directory(
    tmp_path: Path,
) -> None:
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\necho tool\n")
    program.chmod(0o700)
    async with open_processes() as processes:
        for name, path in [("./tool", "/bin"), ("tool", "/nowhere:.:/bin")]:
            tree = await processes.spawn(
                [name], cwd=str(tmp_path), env={"PATH": path}, marker="x"
            )
            assert await read_all(tree) == b"tool\n"


# What cannot be started


@pytest.mark.parametrize(
    ("argv", "cwd", "number", "filename"),
    [
        (["no-such-program"], None, errno.ENOENT, "no-such-program"),
        (["/no/such/program"], None, errno.ENOENT, "/no/such/program"),
        ([""], None, errno.ENOENT, ""),
        (["/" + "x" * 300], None, errno.ENAMETOOLONG, "/" + "x" * 300),
        (["true", "x" * (1 << 17)], None, errno.E2BIG, "true"),
        (["true"], "/no/such/directory", errno.ENOENT, "/no/such/directory"),
        (["true"], "/etc/passwd", errno.ENOTDIR, "/etc/passwd"),
        (["/etc/passwd"], None, errno.EACCES, "/etc/passwd"),
        (["/"], None, errno.EACCES, "/"),
        (["true", "x" * (4 << 20)], None, errno.E2BIG, "true"),
    ],
)
async def test_a_failed_start_names_its_reason_and_what_was_missing(
    argv: list[str], cwd: str | None, number: int, filename: str
) -> None:
    """SH11."""
    async with open_processes() as processes:
        with pytest.raises(OSError, match=r"\[Errno") as caught:
            await processes.spawn(argv, cwd=cwd, env=os.environ, marker="x")
        assert (caught.value.errno, caught.value.filename) == (number, filename)
        tree = await shell(processes, "exit 7")
        assert (await tree.wait_exit()).code == 7


@pytest.mark.parametrize(
    ("argv", "env"),
    [([], {}), (["a\0b"], {}), (["true"], {"": "x"}), (["true"], {"A=B": "x"})],
)
async def test_what_no_program_can_be_given_is_refused(
    argv: list[str], env: dict[str, str]
) -> None:
    async with open_processes() as processes:
        with pytest.raises(ValueError, match=r"empty|NUL|name"):
            await processes.spawn(argv, cwd=None, env=env, marker="x")


async def test_two_megabytes_of_arguments_arrive_whole() -> None:
    async with open_processes() as processes:
        arguments = [str(i) * 20_000 for i in range(10)] * 8
        tree = await processes.spawn(
            ["bash", "-c", 'echo $# "${@: -1}" | tail -c 30', "x", *arguments],
            cwd=None,
            env=os.environ,
            marker="x",
        )
        assert (await read_all(tree)).decode() == "9" * 29 + "\n"


# Trees that do not want to end


@pytest.mark.parametrize("script", ESCAPES.values(), ids=ESCAPES.keys())
@pytest.mark.parametrize("how", ["kill", "aclose", "close everything"])
async def test_nothing_of_a_tree_escapes(script: str, how: str) -> None:
    n = unused_seconds()
    async with open_processes() as processes:
        tree = await shell(processes, f"{script.format(n=n)} # {n}")
        await until(lambda: len(living(f"sleep\0{n}")) >= 1)
        if script == ESCAPES["leader gone"]:
            await tree.wait_exit()
        if how == "kill":
            tree.kill()
            await tree.wait_gone()
            exit = await tree.wait_exit()
            assert exit.after_stop == (script != ESCAPES["leader gone"])
            assert await tree.members() == ()
        elif how == "aclose":
            await tree.aclose()
        else:
            await processes.aclose()
        assert living(n) == []
        await tree.aclose()


async def test_terminate_reaches_every_member_also_a_stopped_one() -> None:
    n = unused_seconds()
    async with open_processes() as processes:
        tree = await shell(
            processes,
            f"setsid sleep {n} & env -i sleep {n} & sleep {n} & sleep 0.1\n"
            f"kill -STOP $!; sleep {n}",
        )
        await until(lambda: len(living(f"sleep\0{n}")) == 4)
        members = set(await tree.members())
        await until(lambda: members == set(living(n)))
        tree.terminate()
        await tree.wait_gone()
        assert living(n) == []
        exit = await tree.wait_exit()
        assert (exit.signal, exit.after_stop) == (signal.SIGTERM, True)


async def test_terminate_is_sent_once_and_lets_a_program_clean_up(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    async with open_processes() as processes:
        tree = await shell(
            processes,
            f"trap 'echo term >> {log}; sleep 0.2; echo done >> {log}; exit 9' TERM\n"
            "echo ready; while :; do sleep 0.01; done",
        )
        assert await read_line(tree) == "ready"
        tree.terminate()
        exit = await tree.wait_exit()
        assert (exit.code, exit.after_stop) == (9, True)
        assert log.read_text() == "term\ndone\n"


def last_pid() -> int:
    """Return the pid that was given out last."""
    return int(Path("/proc/loadavg").read_text().split()[-1])


@pytest.mark.parametrize("leave", ["pass", "os.setsid()"])
async def test_a_chain_of_forks_loses(tmp_path: Path, leave: str) -> None:
    """Each link forks the next and ends, as fast as it can."""
    n = unused_seconds()
    held = Held(tmp_path)
    program = chain(before=f"os.open('{held.path}', os.O_WRONLY)", leave=leave)
    async with open_processes() as processes:
        tree = await processes.spawn(
            [sys.executable, "-I", "-S", "-c", program, n],
            cwd=None,
            env=os.environ,
            marker="x",
        )
        await tree.wait_exit()
        with trio.move_on_after(0.1) as scope:
            await tree.wait_gone()
        assert scope.cancelled_caught
        before = last_pid()  # A link lives too shortly to be seen itself.
        await until(lambda: not before <= last_pid() <= before + 5)
        assert held.is_held()
        tree.kill()
        await tree.wait_gone()
        assert not held.is_held()
        assert living(n) == []
    held.close()


async def test_a_grandchild_that_holds_the_pipe_does_not_hide_the_exit() -> None:
    """SH20."""
    n = unused_seconds()
    async with open_processes() as processes:
        tree = await shell(processes, f"echo out; sleep {n} & exit 0")
        assert (await tree.wait_exit()).code == 0
        assert await read_line(tree) == "out"
        (left,) = await tree.members()
        # Nobody waits for it, so it may not be called that yet.
        await until(lambda: left in living(n))
        with trio.move_on_after(0.05) as scope:
            await tree.wait_gone()
        assert scope.cancelled_caught
        tree.kill()
        await tree.wait_gone()
        assert await tree.receive() == b""


async def test_a_leftover_that_ends_by_itself_is_noticed(tmp_path: Path) -> None:
    async with open_processes() as processes:
        left = f"(setsid bash -c '{WHEN_TOLD}; (sleep 0.2 &)' &)"
        tree = await shell(processes, left, cwd=str(tmp_path))
        assert (await tree.wait_exit()).code == 0
        assert await tree.members()
        start = trio.current_time()
        (tmp_path / "go").touch()
        await tree.wait_gone()
        assert 0.1 < trio.current_time() - start < 3
        assert await tree.members() == ()


async def test_a_leftover_of_one_tree_does_not_delay_another() -> None:
    n = unused_seconds()
    async with open_processes() as processes:
        first = await shell(processes, f"(env -i setsid sleep {n} &)", marker="a")
        await first.wait_exit()
        for i in range(5):
            other = await shell(processes, "(true &); exit 0", marker=f"b{i}")
            with trio.fail_after(30):
                await other.wait_gone()
        await until(lambda: living(f"sleep\0{n}"))
        members = set(await first.members())
        await until(lambda: members & set(living(n)))
        first.kill()
        await first.wait_gone()
        assert living(n) == []


async def test_stopping_one_tree_touches_no_other() -> None:
    n = unused_seconds()
    async with open_processes() as processes:
        script = f"setsid sleep {n} & env -i sleep {n} & sleep {n}"
        trees = [await shell(processes, script, marker=f"m{i}") for i in range(3)]
        await until(lambda: len(living(f"sleep\0{n}")) == 9)
        trees[1].kill()
        await trees[1].wait_gone()
        await until(lambda: len(living(f"sleep\0{n}")) == 6)
        trees[0].terminate()
        await trees[0].wait_gone()
        await until(lambda: len(living(f"sleep\0{n}")) == 3)
        assert len(await trees[2].members()) == 4


async def test_a_process_elsewhere_that_carries_the_marker_belongs() -> None:
    n = unused_seconds()
    async with open_processes() as processes:
        tree = await shell(processes, f"sleep {n}", marker="mine")
        carrier = start_beside(["sleep", n], **{processes._variable: "mine"})
        other = start_beside(["sleep", n], **{processes._variable: "theirs"})
        try:
            # /proc has its environment a moment after its start has returned.
            shown = Path(f"/proc/{carrier.pid}/environ")
            await until(lambda: b"=mine\0" in shown.read_bytes())
            assert carrier.pid in await tree.members()
            tree.kill()
            await tree.wait_gone()
            assert carrier.wait() == -signal.SIGKILL
            assert other.poll() is None
        finally:
            end(carrier)
            end(other)


# A stop and an end at the same time


async def test_an_end_before_the_stop_counts() -> None:
    async with open_processes() as processes:
        for _ in range(20):
            tree = await shell(processes, "exit 0")
            # Not a word from the guardian is read before the stop is sent.
            await until(lambda tree=tree: not alive(tree.pid))
            tree.terminate()
            tree.kill()
            exit = await tree.wait_exit()
            assert (exit.code, exit.after_stop) == (0, False)
            await tree.aclose()


async def test_a_stop_that_races_with_the_end_tells_the_truth() -> None:
    async with open_processes() as processes:
        seen: set[bool] = set()
        for i in itertools.count():
            # Who is first is for the machine to say.
            if i >= 60 and seen == {True, False}:
                break
            tree = await shell(processes, "exit 0")
            if i % 2:
                # Twice as long each round, for a machine on which all takes longer.
                await trio.sleep(0.0004 * (i % 20) * 2 ** (i // 60))
            tree.terminate()
            exit = await tree.wait_exit()
            assert exit.after_stop or (exit.code, exit.signal) == (0, None)
            if exit.signal is not None:
                assert exit.after_stop
            seen.add(exit.after_stop)
            await tree.aclose()


# Nothing is left


@sees_guardians
async def test_after_closing_there_is_no_descriptor_thread_or_child_more() -> None:
    before = descriptors(), set(threading.enumerate()), children()

    def is_more() -> bool:
        """Tell of what is there now and was not: something else may have ended."""
        now = descriptors(), set(threading.enumerate()), children()
        return any(later - earlier for earlier, later in zip(before, now, strict=True))

    async with open_processes() as processes:
        tree = await shell(processes, "sleep 1000 & sleep 1000")
        await shell(processes, "echo unread")
        assert len(children() - before[2]) == 1
        assert set(threading.enumerate()) <= before[1]
        await tree.aclose()
    assert not is_more()
    await processes.aclose()
    again = await shell(processes, "exit 8")
    assert (await again.wait_exit()).code == 8
    await processes.aclose()
    assert not is_more()


@sees_guardians
async def test_two_hundred_trees_leak_nothing() -> None:
    async with open_processes() as processes:
        await (await shell(processes, "true")).aclose()
        guardian = guardian_of(processes)
        ours, theirs = descriptors(), set(os.listdir(f"/proc/{guardian}/fd"))
        limit = trio.CapacityLimiter(16)

        async def run(i: int) -> None:
            async with limit:
                tree = await shell(processes, "(true &); exit 3", marker=f"m{i}")
                assert (await tree.wait_exit()).code == 3
                await tree.wait_gone()
                await tree.aclose()

        async with trio.open_nursery() as nursery:
            for i in range(200):
                nursery.start_soon(run, i)
        assert descriptors() <= ours
        await until(lambda: set(os.listdir(f"/proc/{guardian}/fd")) <= theirs)
        assert not processes._trees


async def test_closing_works_in_a_cancelled_scope() -> None:
    n = unused_seconds()
    before = descriptors(), children()
    processes = PosixProcesses()
    with trio.fail_after(10), trio.CancelScope() as scope:
        tree = await shell(processes, f"trap '' TERM; setsid sleep {n} & sleep {n}; :")
        await until(lambda: len(living(f"sleep\0{n}")) == 2)
        scope.cancel()
        await tree.aclose()
        assert living(n) == []
        await tree.aclose()
        await processes.aclose()
    assert descriptors() <= before[0]
    assert children() <= before[1]


async def test_a_spawn_that_is_cancelled_leaves_nothing() -> None:
    n = unused_seconds()
    async with open_processes() as processes:
        await (await shell(processes, "true")).aclose()
        before = descriptors()
        outcomes: set[bool] = set()
        for i in range(40):
            tree = None
            with trio.move_on_after(0.0001 * i) as scope:
                tree = await shell(processes, f"(setsid sleep {n} &) ; sleep {n}")
            outcomes.add(scope.cancelled_caught)
            if tree is not None:
                await tree.aclose()
            assert living(n) == []
            assert descriptors() <= before
        assert True in outcomes


async def test_a_spawn_that_is_cancelled_before_the_first_step_starts_nothing() -> None:
    processes = PosixProcesses()
    before = descriptors(), children()
    with trio.CancelScope() as scope:
        scope.cancel()
        await shell(processes, "true")
    assert scope.cancelled_caught
    assert descriptors() <= before[0]
    assert children() <= before[1]


async def test_a_large_request_that_is_cancelled_half_way_starts_nothing() -> None:
    n = unused_seconds()
    async with open_processes() as processes:
        await (await shell(processes, "true")).aclose()
        before = descriptors()
        stop_guardian(processes)
        async with trio.open_nursery() as nursery:

            async def spawn() -> None:
                argv = ["sleep", n, *["x" * 100_000] * 15]
                await processes.spawn(argv, cwd=None, env=os.environ, marker="x")

            nursery.start_soon(spawn)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            os.kill(outer_guardian_of(processes), signal.SIGCONT)
        assert descriptors() <= before
        assert living(n) == []


# Deaths

HOST = """
import os, sys, trio
from actors._system.posix import PosixProcesses

async def main():
    processes = PosixProcesses()
    trees = []
    for script in sys.argv[1:]:
        trees.append(await processes.spawn(
            ["bash", "-c", script], cwd=None, env=os.environ, marker=script[:4]))
    outer = processes._guardian._popen.pid
    print(outer, processes._guardian.inner, flush=True)
    if os.environ.get("FORK"):
        os.fork()
    await trio.sleep(150)  # Longer than any test, and not for ever.

trio.run(main)
"""


@pytest.mark.parametrize("fork", ["", "1"])
@pytest.mark.parametrize("first", ["", "inner", "outer"])
async def test_the_death_of_a_runtime_leaves_nothing(
    tmp_path: Path, fork: str, first: str
) -> None:
    """P1: a SIGKILL that nothing can answer, with a fork that keeps the sockets
    open; also when one of the guardians was killed just before."""
    n = unused_seconds()
    held = Held(tmp_path)
    program = chain(before=f'n = {n}; os.open("{held.path}", os.O_WRONLY)')
    scripts = [script.format(n=n) for script in ESCAPES.values()]
    scripts.append(f"exec {sys.executable} -I -S -c '{program}'")
    host = start_beside([sys.executable, "-c", HOST, *scripts], FORK=fork)
    try:
        assert host.stdout is not None
        outer, inner = map(int, host.stdout.readline().split())
        await until(lambda: len(living(f"sleep\0{n}")) >= 19 and held.is_held())
        if first:
            os.kill(inner if first == "inner" else outer, signal.SIGKILL)
        host.kill()
        host.wait()
        start = trio.current_time()
        await until(lambda: not alive(outer) and not alive(inner))
        assert trio.current_time() - start < 5  # Also under nice, beside others.
        assert living(f"sleep\0{n}") == []
        assert not held.is_held()
    finally:
        if fork:
            os.killpg(host.pid, signal.SIGKILL)
        end(host)
        held.close()


async def test_an_interrupt_from_the_terminal_reaches_the_runtime_only() -> None:
    async with open_processes() as processes:
        tree = await shell(processes, "sleep 0.3; exit 2")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(guardian_of(processes), number)
        assert (await tree.wait_exit()).code == 2


@pytest.mark.parametrize("which", [guardian_of, outer_guardian_of])
async def test_the_death_of_the_guardian_is_told_and_leaves_nothing(
    which: Callable[[PosixProcesses], int],
) -> None:
    """P1: also what has left the session with an environment of its own."""
    n = unused_seconds()
    async with open_processes() as processes:
        scripts = [script.format(n=n) for script in ESCAPES.values()]
        trees = [
            await shell(processes, script, marker=f"m{i}")
            for i, script in enumerate(scripts)
        ]
        ended = await shell(processes, "exit 4", marker="c")
        assert (await ended.wait_exit()).code == 4
        await until(lambda: len(living(f"sleep\0{n}")) >= 19)
        os.kill(which(processes), signal.SIGKILL)
        for tree, script in zip(trees, scripts, strict=True):
            exit = await tree.wait_exit()
            if script != ESCAPES["leader gone"].format(n=n):
                assert exit.code is None
                assert exit.lost == "the guardian process died"
                assert not exit.after_stop
        assert (await ended.wait_exit()).code == 4
        for tree in trees:
            await tree.wait_gone()
            assert await tree.members() == ()
        assert living(n) == []
        after = await shell(processes, "exit 5", marker="d")
        assert (await after.wait_exit()).code == 5


async def test_nothing_is_left_when_both_guardians_are_killed_at_once() -> None:
    n = unused_seconds()
    async with open_processes() as processes:
        scripts = [script.format(n=n) for script in ESCAPES.values()]
        trees = [
            await shell(processes, script, marker=f"m{i}")
            for i, script in enumerate(scripts)
        ]
        await until(lambda: len(living(f"sleep\0{n}")) >= 19)
        stop_guardian(processes)
        both = outer_guardian_of(processes), guardian_of(processes)
        for pid in both:
            os.kill(pid, signal.SIGKILL)
        for tree in trees:
            await tree.wait_gone()
        assert (await trees[0].wait_exit()).lost == "the guardian process died"
        assert living(n) == []
        after = await shell(processes, "exit 5", marker="d")
        assert (await after.wait_exit()).code == 5


async def test_a_chain_of_forks_loses_when_both_guardians_are_killed_too(
    tmp_path: Path,
) -> None:
    """P1: most looks at all processes do not see it."""
    n = unused_seconds()
    held = Held(tmp_path)
    program = chain(before=f"os.open('{held.path}', os.O_WRONLY)")
    async with open_processes() as processes:
        trees = [
            await processes.spawn(
                [sys.executable, "-I", "-S", "-c", program, n],
                cwd=None,
                env={},
                marker=f"m{i}",
            )
            for i in range(3)
        ]
        for tree in trees:
            await tree.wait_exit()
        for pid in (outer_guardian_of(processes), guardian_of(processes)):
            os.kill(pid, signal.SIGKILL)
        for tree in trees:
            await tree.wait_gone()
        assert not held.is_held()
        assert living(n) == []
    held.close()


async def test_nothing_is_left_of_what_was_starting_when_both_were_killed() -> None:
    """P1: it has neither its own environment yet nor, on a terminal, a session."""
    n = unused_seconds()
    async with open_processes() as processes:
        for attempt in range(6):
            await (await shell(processes, "true")).aclose()
            both = outer_guardian_of(processes), guardian_of(processes)

            async def start(number: int, attempt: int = attempt) -> None:
                with contextlib.suppress(OSError):
                    await processes.spawn(
                        ["sleep", n],
                        cwd=None,
                        env=os.environ,
                        marker=f"{attempt}-{number}",
                        terminal=Terminal() if number % 3 == 0 else None,
                        nice=nicer(1) if number % 3 == 1 else None,
                    )

            async with trio.open_nursery() as nursery:
                for number in range(12):
                    nursery.start_soon(start, number)
                while len(living(f"sleep\0{n}")) <= attempt % 3:
                    await trio.lowlevel.checkpoint()
                for pid in both:
                    os.kill(pid, signal.SIGKILL)
            await processes.aclose()
            assert living(n) == []
            # A terminal's holder is a fork of the guardian.
            await until(lambda both=both: not any(map(alive, both)))
            assert living(processes._variable) == []


@sees_guardians
async def test_a_spawn_right_after_the_death_of_the_guardian_works() -> None:
    async with open_processes() as processes:
        for i in range(10):
            tree = await shell(processes, f"exit {i}")
            assert (await tree.wait_exit()).code == i
            await tree.aclose()
            victim = (guardian_of, outer_guardian_of)[i % 2](processes)
            os.kill(victim, signal.SIGKILL)
            await until(lambda victim=victim: not alive(victim))


async def test_a_guardian_that_is_stopped_goes_on_by_itself() -> None:
    async with open_processes() as processes:
        tree = await shell(processes, "exit 6")
        for _ in range(10):
            os.kill(guardian_of(processes), signal.SIGSTOP)
            other = await shell(processes, "exit 5", marker="x")
            assert (await other.wait_exit()).code == 5
        assert (await tree.wait_exit()).code == 6


async def test_a_guardian_that_was_stopped_whole_goes_on_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P1, P10: a command that stops it does not hold up the end of any other."""
    monkeypatch.setattr("actors._system.posix.PATIENCE", 0.5)
    async with open_processes() as processes:
        tree = await shell(processes, "sleep 1000")
        stop_guardian(processes)
        os.kill(tree.pid, signal.SIGKILL)
        assert (await tree.wait_exit()).signal == signal.SIGKILL
        await tree.wait_gone()


async def test_a_guardian_that_was_stopped_whole_does_not_keep_a_tree_alive() -> None:
    n = unused_seconds()
    before = descriptors(), children()
    async with open_processes() as processes:
        await shell(processes, f"setsid sleep {n} & sleep {n}")
        await until(lambda: len(living(f"sleep\0{n}")) == 2)
        stop_guardian(processes)
        await processes.aclose()
        assert living(n) == []
    assert descriptors() <= before[0]
    assert children() <= before[1]


async def test_an_orphan_that_gave_up_everything_is_still_known() -> None:
    """P1: neither parent, session, environment nor files tell whose it is."""
    n = unused_seconds()
    async with open_processes() as processes:
        other = await shell(processes, "sleep 1000", marker="a")
        script = f"(env -i setsid sleep {n} </dev/null >/dev/null 2>&1 &)"
        ended = await shell(processes, script, marker="b")
        tree = await shell(processes, f"{script}; sleep {n}", marker="c")
        await ended.wait_exit()
        await until(lambda: len(living(f"sleep\0{n}")) == 3)
        assert await other.members() == (other.pid,)
        assert len(await ended.members()) == 1
        assert len(await tree.members()) == 2
        tree.kill()
        await tree.wait_gone()
        await until(lambda: len(living(f"sleep\0{n}")) == 1)
        ended.kill()
        await ended.wait_gone()
        assert living(n) == []
        assert await other.members() == (other.pid,)


# Several runtimes


async def test_two_runtimes_do_not_touch_each_other() -> None:
    n = unused_seconds()
    async with open_processes() as one, open_processes() as two:
        first = await shell(one, f"setsid sleep {n} & sleep {n}")
        second = await shell(two, f"setsid sleep {n} & sleep {n}")
        assert guardian_of(one) != guardian_of(two)
        await until(lambda: len(living(f"sleep\0{n}")) == 4)
        first.kill()
        await first.wait_gone()
        await one.aclose()
        await until(lambda: len(living(f"sleep\0{n}")) == 2)
        assert len(await second.members()) == 3


@sees_guardians
async def test_a_runtime_inside_a_tree_belongs_to_it_with_all_its_trees() -> None:
    n = unused_seconds()
    async with open_processes() as processes:
        tree = await processes.spawn(
            [sys.executable, "-c", HOST, f"env -i setsid sleep {n} & sleep {n}"],
            cwd=str(ROOT),
            env=os.environ,
            marker="outer",
        )
        inner = int((await read_line(tree)).split()[1])
        await until(lambda: len(living(f"sleep\0{n}")) == 2)
        assert {inner, *living(f"sleep\0{n}")} <= set(await tree.members())
        tree.kill()
        await tree.wait_gone()
        assert living(n) == []
        assert not alive(inner)


async def test_a_fork_of_the_host_changes_nothing() -> None:
    async with open_processes() as processes:
        tree = await shell(processes, "echo out; sleep 0.1; exit 3")
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        try:
            os.close(reader)
            assert await read_all(tree) == b"out\n"
            assert (await tree.wait_exit()).code == 3
            guardian = guardian_of(processes)
            left = await shell(processes, "sleep 1000")
            await processes.aclose()
            assert not alive(left.pid)
            assert not alive(guardian)
        finally:
            os.close(writer)
            os.waitpid(pid, 0)  # noqa: ASYNC222


# Clock and names


def test_the_clock_tells_aware_utc() -> None:
    now = SystemClock().now()
    assert now.tzinfo is not None
    assert not now.utcoffset()


def test_names_have_the_length_asked_for_and_differ() -> None:
    ids = SystemIds()
    names = {ids.hex(7) for _ in range(100)}
    assert len(names) > 95
    assert all(len(name) == 7 and int(name, 16) >= 0 for name in names)
    assert all(0.0 <= ids.uniform() < 1.0 for _ in range(100))


FORKS = """
import os
from actors._system.posix import SystemIds

ids = SystemIds()
ids.hex(8)  # Others are read ahead.
child = os.fork()
if child:
    os.waitpid(child, 0)  # Or their lines may mix.
print(*(ids.hex(8) for _ in range(200)), flush=True)
"""


def test_a_fork_and_its_parent_get_different_names() -> None:
    # In a program of its own, which has one thread.
    command = [sys.executable, "-c", FORKS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = done.stdout.split()
    assert len(names) == len({*names}) == 400


def test_threads_that_share_names_get_none_twice() -> None:
    ids, taken = SystemIds(), list[str]()

    def take() -> None:
        taken.extend(ids.hex(12) for _ in range(5_000))

    threads = [threading.Thread(target=take) for _ in range(8)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len({*taken}) == len(taken) == 40_000


@sees_guardians
def test_the_guardian_keeps_to_its_own_descriptors() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            os.set_inheritable(theirs.fileno(), True)
            async with open_processes() as processes:
                await shell(processes, "sleep 1000")
                links = os.listdir(f"/proc/{guardian_of(processes)}/fd")
                inode = f"socket:[{os.fstat(theirs.fileno()).st_ino}]"
                for link in links:
                    try:
                        target = os.readlink(
                            f"/proc/{guardian_of(processes)}/fd/{link}"
                        )
                    except FileNotFoundError:
                        continue
                    assert target != inode
                assert os.readlink(f"/proc/{guardian_of(processes)}/cwd") == "/"

    trio.run(main)
