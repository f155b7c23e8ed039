"""Commands that make it hard to end them, several at a time, also in the way of
one another. See `process_trees.ESCAPES` for the ones that only leave."""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from actors._system.posix import PosixProcess, PosixProcesses
from tests.actors.process_trees import (
    ESCAPES,
    WHEN_TOLD,
    alive,
    chain,
    guardian_of,
    living,
    open_processes,
    read_line,
    shell,
    until,
    unused_seconds,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Writes zeros over its environment, leaves session and parent, and closes all.
OVERWRITES = """
import ctypes, os, sys, time
if len(sys.argv) < 3:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", CODE, sys.argv[1], "x"])
        os._exit(0)
    os.wait()
    print("alone", flush=True)
    time.sleep(1000)
fields = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
start, end = int(fields[47]), int(fields[48])
ctypes.memset(start, 0, end - start)
assert not open("/proc/self/environ", "rb").read().strip(b"\\0")
print("ready", flush=True)
os.closerange(0, 100)
time.sleep(1000)
"""


async def python(
    processes: PosixProcesses, code: str, *arguments: str, marker: str
) -> PosixProcess:
    code = code.replace("CODE", repr(code))
    return await processes.spawn(
        [sys.executable, "-I", "-S", "-c", code, *arguments],
        cwd=None,
        env=os.environ,
        marker=marker,
    )


@pytest.mark.parametrize("how", ["kill", "aclose"])
async def test_a_program_that_overwrites_its_environment_is_found(how: str) -> None:
    """P1."""
    n = unused_seconds()
    async with open_processes() as processes:
        other = await shell(processes, "sleep 1000", marker="other")
        tree = await python(processes, OVERWRITES, n, marker="a")
        # The link between the two has ended.
        told = {await read_line(tree), await read_line(tree)}
        assert told == {"alone", "ready"}
        assert len(await tree.members()) == 2
        await until(lambda: len(living(n)) == 2)
        if how == "kill":
            tree.kill()
            await tree.wait_gone()
        else:
            await tree.aclose()
        assert living(n) == []
        assert await other.members() == (other.pid,)


async def test_all_of_them_at_once_end_one_by_one() -> None:
    """P1: nothing of one is taken for another's, and nothing is left."""
    n = unused_seconds()
    async with open_processes() as processes:
        trees = {
            name: await shell(processes, script.format(n=n) + f"\n: {n}", marker=name)
            for name, script in ESCAPES.items()
        }
        await until(lambda: len(living(f"sleep\0{n}")) >= 19)
        left = {name: set(await tree.members()) for name, tree in trees.items()}
        for name, tree in trees.items():
            await until(lambda: left[name] & set(living(f"sleep\0{n}")))  # noqa: B023 - asked at once
            tree.kill()
            await tree.wait_gone()
            assert not any(map(alive, left.pop(name)))
            for others in left.values():
                assert any(map(alive, others))
        assert living(n) == []


async def test_a_fork_chain_keeps_no_other_tree_waiting() -> None:
    """P1, P3."""
    async with open_processes() as processes:
        endless = await python(processes, chain(), marker="chain")
        await endless.wait_exit()
        for i in range(20):
            tree = await shell(processes, "(true &); exit 4", marker=f"m{i}")
            assert (await tree.wait_exit()).code == 4
            await tree.wait_gone()
        endless.kill()
        await endless.wait_gone()


async def test_two_stops_at_once_are_one() -> None:
    """SD7."""
    n = unused_seconds()
    async with open_processes() as processes:
        tree = await shell(processes, f"trap '' TERM; setsid sleep {n} & sleep {n}; :")
        await until(lambda: len(living(f"sleep\0{n}")) == 2)
        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                tree.terminate()
                tree.kill()
                await tree.wait_gone()
                assert living(n) == []

            nursery.start_soon(stop)
            nursery.start_soon(stop)
            nursery.start_soon(tree.aclose)
        exit = await tree.wait_exit()
        assert exit.after_stop
        assert exit.signal is not None


@pytest.mark.parametrize("same_turn", [False, True])
async def test_whoever_waits_for_the_end_is_told_though_another_closes(
    same_turn: bool,
) -> None:
    """SD7: the other hears of the end, and closes, while the one that reads for
    both is still asleep, or is awake and has not read yet."""
    async with open_processes() as processes:
        # The order of tasks in one turn is trio's dice.
        for _ in range(10 if same_turn else 1):
            tree = await processes.spawn(
                ["sh", "-c", "read x"],
                cwd=None,
                env=os.environ,
                marker="m",
                stdin="pipe",
            )
            again = os.dup(tree._channel.fileno())
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(tree.wait_gone)
                    await trio.testing.wait_all_tasks_blocked()
                    await tree.send(b"\n")
                    if same_turn:
                        await trio.lowlevel.wait_readable(again)
                    until_closed(again)
                    tree.kill()  # It is no longer heard, so all is read.
                    assert tree._gone
                    await tree.aclose()
            finally:
                os.close(again)


def until_closed(channel: int) -> None:
    """Wait, and let no other task run, until the guardian has closed its end."""
    poll = select.poll()
    poll.register(channel, 0)
    assert poll.poll(20_000)


async def test_a_stop_during_the_spawn_leaves_nothing() -> None:
    """P1: at every step of it."""
    n = unused_seconds()
    async with open_processes() as processes:
        await (await shell(processes, "true")).aclose()
        for step in range(8):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(shell, processes, f"setsid sleep {n} & sleep {n}")
                for _ in range(step):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            if processes._trees:  # It had started before the cancellation came.
                (tree,) = processes._trees
                await tree.aclose()
            assert living(n) == []
            assert not processes._trees


async def test_a_stopped_child_is_continued_to_be_told() -> None:
    async with open_processes() as processes:
        tree = await shell(
            processes,
            "trap 'echo told; exit 5' TERM; sleep 0.05 & wait; kill -STOP $$; sleep 0.1; :",
        )
        await until(lambda: _state(tree.pid) == "T")
        tree.terminate()
        assert await read_line(tree) == "told"
        exit = await tree.wait_exit()
        assert (exit.code, exit.after_stop) == (5, True)


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:  # Hidden, as the guardian is, until it is a program.
        return ""


async def test_a_command_that_kills_its_guardian_is_ended(tmp_path: Path) -> None:
    """P1."""
    n = unused_seconds()
    async with open_processes() as processes:
        # Not before the guardian has told of its start.
        tree = await shell(
            processes,
            f"env -i setsid sleep {n} & {WHEN_TOLD}; kill -9 $PPID; sleep {n}",
            cwd=str(tmp_path),
        )
        (tmp_path / "go").touch()
        assert (await tree.wait_exit()).lost == "the guardian process died"
        await tree.wait_gone()
        assert living(n) == []
        after = await shell(processes, "exit 3", marker="b")
        assert (await after.wait_exit()).code == 3
        os.kill(guardian_of(processes), signal.SIGTERM)
        again = await shell(processes, "exit 4", marker="c")
        assert (await again.wait_exit()).code == 4
