"""Commands that stop or trace their guardian. Only root may still trace it."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import trio
import trio.testing

from actors._system.posix import PosixProcesses
from tests.actors.process_trees import (
    WHEN_TOLD,
    alive,
    end,
    fields,
    guardian_of,
    living,
    open_processes,
    outer_guardian_of,
    read_line,
    sees_guardians,
    shell,
    start_beside,
    stop_guardian,
    until,
    unused_seconds,
)
from tests.actors.system.test_processes import HOST

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

TRACER = """
import ctypes, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdin.readline()  # Not before the guardian has told of our start.
ptrace = ctypes.CDLL(None).ptrace
inner = os.getppid()
with open(f"/proc/{inner}/stat") as stat:
    outer = int(stat.read().rpartition(") ")[2].split()[1])
# PTRACE_SEIZE and PTRACE_INTERRUPT: unlike PTRACE_ATTACH no parent is told.
traced = [
    ptrace(0x4206, pid, None, None) == 0 and ptrace(0x4207, pid, None, None) == 0
    for pid in (inner, outer)
]
print(*traced, flush=True)
time.sleep(1000)
"""


def tracer(who: str) -> str:
    """Return a program that attaches to its guardian, or tries to."""
    pids = {"inner": "(inner,)", "outer": "(outer,)", "both": "(inner, outer)"}[who]
    return TRACER.replace("(inner, outer)", pids)


@pytest.mark.parametrize("how", ["kill", "terminate and kill", "aclose", "wait"])
@pytest.mark.parametrize("who", ["inner", "outer", "both"])
async def test_a_guardian_that_a_command_traces_holds_up_no_stop(
    who: str, how: str
) -> None:
    """P1."""
    n = unused_seconds()
    async with open_processes(40) as processes:
        other = await shell(processes, f"setsid sleep {n} & exec sleep {n}")
        tree = await processes.spawn(
            [sys.executable, "-I", "-S", "-c", tracer(who), n],
            cwd=None,
            env=os.environ,
            marker="tracer",
            stdin="pipe",
        )
        await tree.send(b"\n")
        frozen = "True" in await read_line(tree)
        if frozen:
            held = {"inner": guardian_of, "outer": outer_guardian_of}
            pid = held.get(who, outer_guardian_of)(processes)
            await until(lambda: state(pid) in "tZ-")
        with trio.fail_after(15):
            if how == "aclose":
                await tree.aclose()
            elif how == "wait":
                os.kill(other.pid, signal.SIGKILL)
                exit = await other.wait_exit()
                assert (exit.lost is not None) == (frozen and who != "outer")
            else:
                if how != "kill":
                    tree.terminate()
                tree.kill()
                await tree.wait_gone()
        again = await shell(processes, "exit 3", marker="again")
        assert (await again.wait_exit()).code == 3
    assert living(n) == []


@sees_guardians
async def test_the_guardian_that_only_waits_sleeps_until_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P9."""
    # Nor does it need to wake up for a look because all this takes long.
    monkeypatch.setattr("actors._system.posix.PATIENCE", 60)
    async with open_processes() as processes:
        await (await shell(processes, "true")).aclose()
        outer = outer_guardian_of(processes)
        await until(lambda: state(outer) == "S")
        before = switches(outer)
        for _ in range(5):
            tree = await shell(processes, "(sleep 0.01 &); exit 3")
            await tree.wait_gone()
            await tree.aclose()
        assert switches(outer) == before


def switches(pid: int) -> str:
    """Return how often a process has begun to wait."""
    with open(f"/proc/{pid}/status") as status:
        return status.read().split("\nvoluntary_ctxt_switches:")[1].split()[0]


@pytest.mark.parametrize("held", ["stopped", "traced", "both"])
async def test_guardians_that_are_held_end_everything_when_their_host_is_killed(
    tmp_path: Path, held: str
) -> None:
    """P1: SIGSTOP to both of them, or a tracer of the one that works."""
    n = unused_seconds()
    word = unused_seconds()
    scripts = [f"setsid sleep {n} & sleep {n}", f"env -i setsid sleep {n} & sleep {n}"]
    if held != "stopped":
        code = tracer("inner").replace("'", '"')
        go = f"cd {shlex.quote(str(tmp_path))}; {WHEN_TOLD}"
        scripts.append(f"{go}; exec {sys.executable} -I -S -c '{code}' {word}")
    host = start_beside([sys.executable, "-c", HOST, *scripts])
    try:
        assert host.stdout is not None
        outer, inner = map(int, host.stdout.readline().split())
        (tmp_path / "go").touch()
        if held == "stopped":
            await until(lambda: len(living(f"sleep\0{n}")) == 4)
        elif os.geteuid() == 0:
            await until(lambda: state(inner) in "tZ-")
        if held != "traced":
            for pid in (outer, inner):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            await until(lambda: state(outer) in "TZ-" and state(inner) in "TtZ-")
        host.kill()
        host.wait()
        await until(lambda: not alive(outer) and not alive(inner), 10)
        assert living(n) == []
        assert living(word) == []
    finally:
        end(host)
        for pid in {*living(n), *living(word)}:
            os.kill(pid, signal.SIGKILL)


def state(pid: int) -> str:
    found = fields(pid)
    return "-" if found is None else found[0]


async def test_a_guardian_that_has_only_begun_is_not_ended_by_a_look_at_it() -> None:
    """A stop may come before it catches any signal."""
    with trio.fail_after(60):
        for _ in range(5):
            async with open_processes() as processes:
                guardian = processes._living_guardian("true")
                for _ in range(10):
                    guardian._looked = -math.inf
                    guardian.free()
                tree = await shell(processes, "true")
                await tree.wait_exit()
                assert processes._guardian is guardian
                assert not guardian.has_ended()


# The watch that continues it


async def test_one_task_watches_the_guardian_for_all_and_ends_with_it() -> None:
    """P1."""
    before = tasks()
    async with open_processes() as processes:
        async with trio.open_nursery() as nursery:
            trees = [await shell(processes, "sleep 1000") for _ in range(8)]
            for tree in trees:
                nursery.start_soon(tree.wait_gone)
            await trio.testing.wait_all_tasks_blocked()
            assert tasks() == before + len(trees) + 1
            for tree in trees:
                tree.kill()
    await trio.testing.wait_all_tasks_blocked()
    assert tasks() == before


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def test_the_watch_ends_once_nobody_waits(quick: None) -> None:
    """An idle runtime has no timer."""
    async with open_processes() as processes:
        before = tasks()
        await (await shell(processes, "true")).wait_gone()
        await until(lambda: tasks() == before)
        stop_guardian(processes)
        assert (await (await shell(processes, "exit 3")).wait_exit()).code == 3


async def test_a_look_that_fails_is_repeated(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: what the watch cannot do now does not end the host."""
    failures = [OSError("no descriptor"), MemoryError()]
    async with open_processes() as processes:
        tree = await shell(processes, "sleep 1000")
        guardian = processes._guardian
        assert guardian is not None
        wake = guardian.wake

        def wake_at_last() -> bool:
            if failures:
                raise failures.pop()
            return wake()

        stop_guardian(processes)
        os.kill(tree.pid, signal.SIGKILL)
        with monkeypatch.context() as patch:
            patch.setattr(guardian, "wake", wake_at_last)
            assert (await tree.wait_exit()).signal == signal.SIGKILL
        assert failures == []


def test_the_guardian_is_watched_in_each_run_that_uses_it(quick: None) -> None:
    """The first one leaves it behind in the middle of a wait."""
    processes = PosixProcesses()

    async def leave() -> None:
        tree = await shell(processes, "sleep 1000")
        with trio.move_on_after(0.01):
            await tree.wait_exit()

    async def use() -> None:
        try:
            with trio.fail_after(60):
                tree = await shell(processes, "sleep 1000")
                stop_guardian(processes)
                os.kill(tree.pid, signal.SIGKILL)
                assert (await tree.wait_exit()).signal == signal.SIGKILL
        finally:
            await processes.aclose()

    trio.run(leave)
    trio.run(use)


def test_a_tree_can_be_ended_in_the_last_steps_of_a_run() -> None:
    """P1: where trio ends the generators that nobody has ended, it takes no new task."""
    n = unused_seconds()
    ends: list[int | None] = []

    async def generate() -> AsyncGenerator[None, None]:
        processes = PosixProcesses()
        tree = await shell(processes, f"sleep {n}")
        try:
            yield
        finally:
            with trio.fail_after(60, shield=True):
                tree.kill()
                await tree.wait_gone()
                ends.append((await tree.wait_exit()).signal)
                await processes.aclose()

    left = generate()

    async def begin() -> None:
        await anext(left)

    trio.run(begin)
    assert ends == [signal.SIGKILL]
    assert living(n) == []


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors._system.posix.PATIENCE", 0.2)
