"""Commands that stop or trace their guardian. Only root may still trace it."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys

import pytest
import trio

from tests.actors.process_trees import (
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
    until,
    unused_seconds,
)
from tests.actors.system.test_processes import HOST

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

TRACER = """
import ctypes, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
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
        )
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
async def test_the_guardian_that_only_waits_sleeps_until_it_is_needed() -> None:
    """P9."""
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
    held: str,
) -> None:
    """P1: SIGSTOP to both of them, or a tracer of the one that works."""
    n = unused_seconds()
    word = unused_seconds()
    scripts = [f"setsid sleep {n} & sleep {n}", f"env -i setsid sleep {n} & sleep {n}"]
    if held != "stopped":
        code = tracer("inner").replace("'", '"')
        scripts.append(f"exec {sys.executable} -I -S -c '{code}' {word}")
    host = start_beside([sys.executable, "-c", HOST, *scripts])
    try:
        assert host.stdout is not None
        outer, inner = map(int, host.stdout.readline().split())
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
