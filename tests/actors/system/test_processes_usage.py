"""What a tree may use, and what it has used."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping

import pytest
import trio

from actors._system.posix import PosixProcess, PosixProcesses
from actors.env import Terminal
from actors.hosting import ProcessUsage
from tests.actors.process_trees import (
    descriptors,
    nicer,
    open_processes,
    read_all,
    read_line,
    shell,
    until,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

BURN = "python3 -c 'import time\nwhile time.process_time() < 0.3: pass'"


async def limited(
    processes: PosixProcesses,
    script: str,
    *,
    nice: int | None = None,
    rlimits: Mapping[str, int] | None = None,
    terminal: Terminal | None = None,
) -> PosixProcess:
    return await processes.spawn(
        ["bash", "-c", script],
        cwd=None,
        env=os.environ,
        marker="a",
        nice=nice,
        rlimits=rlimits,
        terminal=terminal,
    )


def usage_of(tree: PosixProcess) -> ProcessUsage:
    usage = tree.usage()
    assert usage is not None
    return usage


def cpu_of(tree: PosixProcess) -> float:
    return usage_of(tree).cpu_seconds


# Limits


@pytest.mark.parametrize("terminal", [None, Terminal()])
async def test_niceness_and_limits_hold_for_the_program(
    terminal: Terminal | None,
) -> None:
    async with open_processes() as processes:
        tree = await limited(
            processes,
            "nice; ulimit -n; ulimit -H -n; ulimit -c; ulimit -t; ulimit -s",
            nice=nicer(7),
            rlimits={"nofile": 99, "core": 0, "cpu": 50, "stack": -1},
            terminal=terminal,
        )
        lines = (await read_all(tree)).decode().split()
        assert lines == [str(nicer(7)), "99", "99", "0", "50", "unlimited"]
        # Nobody else is concerned.
        other = await shell(processes, "nice; ulimit -n", marker="b")
        soft = await shell(processes, "ulimit -S -n", marker="c")
        assert (await read_all(other)).split()[0] == str(os.nice(0)).encode()
        assert (await read_all(soft)).strip() == _inherited().encode()


def _inherited() -> str:
    import resource

    return str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


async def test_a_limited_program_starts_as_any_other() -> None:
    async with open_processes() as processes:
        tree = await limited(
            processes,
            "readlink /proc/self/fd/0; ls /proc/self/fd | wc -l\n"
            "ps -o pid=,sid=,pgid= $$; grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status",
            nice=nicer(1),
        )
        lines = (await read_all(tree)).decode().splitlines()
        assert lines[:2] == ["/dev/null", "4"]
        assert set(lines[2].split()) == {str(tree.pid)}
        assert [int(line.split()[1], 16) for line in lines[3:5]] == [0, 0]


async def test_a_program_that_exceeds_its_cpu_time_is_ended() -> None:
    async with open_processes() as processes:
        tree = await limited(processes, "while :; do :; done", rlimits={"cpu": 1})
        exit = await tree.wait_exit()
        assert exit.signal is not None
        assert exit.cpu_seconds is not None
        # The limit counts whole ticks, which under load is more than was used.
        assert 0.2 < exit.cpu_seconds < 5


@pytest.mark.parametrize(
    ("limit", "nice", "what"),
    [
        ({"nofile": 2**50}, None, "rlimit nofile"),
        ({"core": 0, "nofile": 2**50}, nicer(3), "rlimit nofile"),
    ],
)
async def test_a_limit_that_is_refused_is_named(
    limit: dict[str, int], nice: int | None, what: str
) -> None:
    async with open_processes() as processes:
        await (await shell(processes, "true")).aclose()
        before = descriptors()
        with pytest.raises(PermissionError) as caught:
            await limited(processes, "true", nice=nice, rlimits=limit)
        assert (caught.value.errno, caught.value.filename) == (errno.EPERM, what)
        assert descriptors() <= before
        tree = await shell(processes, "exit 7")
        assert (await tree.wait_exit()).code == 7


@pytest.mark.parametrize(
    ("nice", "rlimits", "message"),
    [
        (20, None, r"nice must be a whole number from -20 to 19.*, not 20"),
        (True, None, r"nice must be a whole number.*, not True"),
        (None, {"colour": 1}, r"rlimits has an unknown name: 'colour'"),
        (None, {"CPU": 1}, r"rlimits has an unknown name: 'CPU'"),
        (None, {"cpu": -2}, r"rlimits\['cpu'\] must be a whole number from -1"),
        (None, {"cpu": 2**63}, r"rlimits\['cpu'\] must be a whole number from -1"),
        (
            None,
            {"cpu": 1.5},
            r"rlimits\['cpu'\] must be a whole number from.*, not 1.5",
        ),
    ],
)
async def test_an_impossible_limit_is_refused_at_once(
    nice: int | None, rlimits: dict[str, int] | None, message: str
) -> None:
    async with open_processes() as processes:
        with pytest.raises(ValueError, match=message):
            await limited(processes, "true", nice=nice, rlimits=rlimits)
        assert processes._guardian is None


# Use


async def test_the_use_of_a_tree_counts_every_member() -> None:
    async with open_processes() as processes:
        tree = await shell(
            processes,
            "sleep 1000 & setsid sleep 1000 & env -i setsid sleep 1000 &\n"
            "(sleep 1000 & echo ready); sleep 1000; :",
        )
        other = await shell(processes, "(sleep 1000 &); sleep 1000; :", marker="b")
        assert await read_line(tree) == "ready"
        await until(lambda: usage_of(tree).processes == 6)
        await until(lambda: usage_of(other).processes == 3)
        usage = usage_of(tree)
        assert 6 * 2**20 > usage.memory_bytes / usage.processes > 2**19


async def test_the_use_of_what_has_ended_stays_in_the_sum() -> None:
    async with open_processes() as processes:
        tree = await shell(processes, f"{BURN}; echo one; read x < <(sleep 1000)")
        assert await read_line(tree) == "one"
        first = cpu_of(tree)
        assert 0.25 < first < 5
        assert cpu_of(tree) >= first
        await tree.aclose()


async def test_the_use_of_orphans_that_have_ended_is_counted() -> None:
    """Their parent is the guardian, not a member."""
    async with open_processes() as processes:
        # Without the colon bash becomes the sleep itself.
        tree = await shell(processes, f"({BURN} &); sleep 1000; :")
        async with trio.open_nursery() as nursery:
            # Who waits hears what those have used that end unseen.
            nursery.start_soon(tree.wait_exit)
            await until(
                lambda: usage_of(tree).processes == 2 and cpu_of(tree) >= 0.25,
                20,
            )
            tree.kill()
        await tree.wait_gone()
        usage = tree.usage()
        assert usage is not None
        assert usage.cpu_seconds >= 0.25
        assert (usage.processes, usage.memory_bytes) == (0, 0)


async def test_the_end_tells_what_the_leader_and_its_children_have_used() -> None:
    async with open_processes() as processes:
        tree = await shell(processes, f"{BURN}; exit 3")
        exit = await tree.wait_exit()
        assert exit.code == 3
        assert exit.cpu_seconds is not None
        assert 0.25 < exit.cpu_seconds < 5
        assert cpu_of(tree) == pytest.approx(exit.cpu_seconds)
        await tree.wait_gone()
        quick = await shell(processes, "true", marker="b")
        spent = (await quick.wait_exit()).cpu_seconds
        assert spent is not None
        assert spent < 0.2


async def test_a_process_of_another_tree_is_not_counted() -> None:
    async with open_processes() as processes:
        idle = await shell(processes, "sleep 1000", marker="a")
        busy = await shell(processes, f"({BURN} &); sleep 1000", marker="b")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy.wait_exit)
            await until(lambda: cpu_of(busy) >= 0.25)
            nursery.cancel_scope.cancel()
        assert cpu_of(idle) < 0.1
