"""What is written to a process tree: through a pipe or on a terminal."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from actors._system.posix import PosixProcess, PosixProcesses
from actors.env import Terminal
from tests.actors.process_trees import (
    alive,
    descriptors,
    fields,
    living,
    open_processes,
    read_all,
    read_line,
    sees_guardians,
    until,
    unused_seconds,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


async def piped(processes: PosixProcesses, script: str) -> PosixProcess:
    return await processes.spawn(
        ["bash", "-c", script], cwd=None, env=os.environ, marker="a", stdin="pipe"
    )


async def on_terminal(
    processes: PosixProcesses,
    script: str,
    terminal: Terminal | None = None,
    marker: str = "a",
) -> PosixProcess:
    return await processes.spawn(
        ["bash", "-c", script],
        cwd=None,
        env=os.environ,
        marker=marker,
        terminal=terminal or Terminal(),
    )


# A pipe


async def test_what_is_sent_is_read_in_order_up_to_the_end() -> None:
    async with open_processes() as processes:
        tree = await piped(processes, "read line; echo got $line; cat; echo end")
        await tree.send(b"one\n")
        assert await read_line(tree) == "got one"
        await tree.send(b"two\n")
        assert await read_line(tree) == "two"
        await tree.send(b"half a li")
        await tree.send_eof()
        await tree.send_eof()
        assert await read_all(tree) == b"half a liend\n"
        with pytest.raises(trio.ClosedResourceError):
            await tree.send(b"more")


async def test_without_a_pipe_there_is_nothing_to_write_to() -> None:
    async with open_processes() as processes:
        tree = await processes.spawn(["cat"], cwd=None, env=os.environ, marker="a")
        assert await read_all(tree) == b""
        with pytest.raises(trio.ClosedResourceError):
            await tree.send(b"x")
        with pytest.raises(trio.ClosedResourceError):
            await tree.send_eof()


async def test_a_full_pipe_makes_the_sender_wait_and_keeps_the_order() -> None:
    async with open_processes() as processes:
        tree = await piped(processes, "read go < <(sleep 0.2); exec cat")
        data = bytes(range(256)) * 4096
        got = b""
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                async with trio.open_nursery() as senders:
                    for part in (data, b"second", b"third"):
                        senders.start_soon(tree.send, part)
                        await trio.testing.wait_all_tasks_blocked(0.01)
                await tree.send_eof()

            nursery.start_soon(send)
            got = await read_all(tree)
        assert got == data + b"second" + b"third"


async def test_a_sender_that_waits_is_told_when_nobody_reads_any_more() -> None:
    async with open_processes() as processes:
        tree = await piped(processes, "sleep 1000")
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                with pytest.raises(trio.BrokenResourceError):
                    await tree.send(b"x" * 1_000_000)

            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            tree.kill()
        with pytest.raises(trio.BrokenResourceError):
            await tree.send(b"x")
        await tree.send_eof()


async def test_a_sender_that_waits_is_told_when_the_process_is_closed() -> None:
    async with open_processes() as processes:
        tree = await piped(processes, "sleep 1000")
        before = descriptors()
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                with pytest.raises(
                    (trio.ClosedResourceError, trio.BrokenResourceError)
                ):
                    await tree.send(b"x" * 1_000_000)

            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            await tree.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await tree.send(b"x")
        assert len(descriptors()) <= len(before) - 3


async def test_a_cancelled_sender_leaves_its_turn_to_the_next() -> None:
    async with open_processes() as processes:
        tree = await piped(processes, "kill -STOP $$; exec cat")
        with trio.move_on_after(0.05) as scope:
            await tree.send(b"x" * 1_000_000)
        assert scope.cancelled_caught
        await until(lambda: (fields(tree.pid) or "-")[0] == "T")
        os.kill(tree.pid, signal.SIGCONT)
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                await tree.send(b"end")
                await tree.send_eof()

            nursery.start_soon(send)
            got = await read_all(tree)
        assert got.strip(b"x") == b"end"


# A terminal


async def test_a_terminal_is_all_three_and_controls_the_session() -> None:
    """SH32."""
    async with open_processes() as processes:
        tree = await on_terminal(
            processes,
            "test -t 0 -a -t 1 -a -t 2 && tty; stty size; ps -o tty= $$\n"
            "stty -a | grep -ow -- '-*echo'",
            Terminal(rows=37, columns=111),
        )
        lines = (await read_all(tree)).decode().split("\r\n")
        assert lines[1:] == ["37 111", lines[0].removeprefix("/dev/"), "-echo", ""]


async def test_on_a_terminal_lines_are_typed_and_the_input_has_an_end() -> None:
    async with open_processes() as processes:
        tree = await on_terminal(processes, "read x; echo got $x; cat; echo end")
        await tree.send(b"one\n")
        assert await read_line(tree) == "got one"
        await tree.send(b"in the middle of a line")
        await tree.send_eof()
        assert await read_all(tree) == b"in the middle of a lineend\r\n"
        with pytest.raises(trio.ClosedResourceError):
            await tree.send(b"x")


async def test_the_end_is_the_character_that_the_program_chose() -> None:
    async with open_processes() as processes:
        tree = await on_terminal(processes, "stty eof '^F'; echo ready; cat; echo end")
        assert await read_line(tree) == "ready"
        await tree.send_eof()
        assert await read_all(tree) == b"end\r\n"


async def test_an_interrupt_that_is_typed_reaches_the_program() -> None:
    async with open_processes() as processes:
        tree = await on_terminal(processes, "echo ready; exec sleep 1000")
        assert await read_line(tree) == "ready"
        await tree.send(b"\x03")
        exit = await tree.wait_exit()
        assert (exit.signal, exit.after_stop) == (signal.SIGINT, False)
        await tree.wait_gone()


async def test_a_background_process_keeps_the_terminal_when_the_leader_ends(
    tmp_path: Path,
) -> None:
    """As it would keep a pipe: the kernel takes nothing from it."""
    go = tmp_path / "go"
    async with open_processes() as processes:
        tree = await on_terminal(
            processes,
            f"(until [ -e {shlex.quote(str(go))} ]; do sleep 0.01; done;"
            " echo late; stty size < /dev/tty) & exit 3",
        )
        assert (await tree.wait_exit()).code == 3
        assert await tree.members()
        go.touch()
        lines = (await read_all(tree)).decode().split("\r\n")
        assert lines == ["late", "24 80", ""]
        await tree.wait_gone()


async def test_on_a_hung_up_terminal_nobody_reads() -> None:
    async with open_processes() as processes:
        tree = await on_terminal(processes, "exit 0")
        assert await read_all(tree) == b""
        await tree.wait_gone()
        with pytest.raises(trio.BrokenResourceError):
            await tree.send(b"x")
        assert await read_all(tree) == b""


@pytest.mark.parametrize("how", ["kill", "terminate", "aclose"])
async def test_nothing_of_a_tree_on_a_terminal_escapes(
    tmp_path: Path, how: str
) -> None:
    n = unused_seconds()
    async with open_processes() as processes:
        tree = await on_terminal(
            processes,
            f"sleep {n} & setsid sleep {n} & env -i setsid sleep {n} & (sleep {n} &);"
            f" cd {shlex.quote(str(tmp_path))}; nohup sleep {n} & sleep {n}",
        )
        await until(lambda: len(living(f"sleep\0{n}")) == 6)
        found = fields(tree.pid)
        assert found is not None
        holder = int(found[3])
        assert alive(holder)
        members = await tree.members()
        await until(lambda: {*living(n), tree.pid} == {*members})
        if how == "aclose":
            await tree.aclose()
        else:
            getattr(tree, how)()
            if how == "terminate":
                # bash itself waits for its child; nohup only ignores SIGHUP.
                assert (await tree.wait_exit()).after_stop
            await tree.wait_gone()
        assert living(n) == []
        await until(lambda: not alive(holder))


@pytest.mark.parametrize("kept", ["mark", "session", "variable"])
@pytest.mark.parametrize("how", ["kill", "terminate", "aclose"])
async def test_on_a_terminal_each_sign_alone_tells_whose_an_orphan_is(
    tmp_path: Path, kept: str, how: str
) -> None:
    """P1: a mark, a session, or a variable in its environment; the other two,
    its parent and the terminal it gives up, and it is not the only tree."""
    n = unused_seconds()
    orphan = f"sleep {n} </dev/null >/dev/null 2>&1"
    if kept != "session":
        orphan = f"setsid {orphan}"
    if kept != "variable":
        orphan = f"env -i {orphan}"
    if kept != "mark":
        orphan = f"ulimit -S -x 77; {orphan}"
    go = tmp_path / "go"
    async with open_processes() as processes:
        others = [
            await on_terminal(processes, f"sleep {n}1", marker=marker)
            for marker in ("b", "c")
        ]
        tree = await on_terminal(
            processes,
            f"trap '' HUP; ({orphan} &);"
            f" until [ -e {shlex.quote(str(go))} ]; do sleep 0.01; done; exit 3",
        )
        others.append(await on_terminal(processes, f"sleep {n}2", marker="d"))
        await until(lambda: living(f"sleep\0{n}\0"))
        go.touch()
        assert (await tree.wait_exit()).code == 3
        with trio.move_on_after(0.05) as scope:
            await tree.wait_gone()
        assert scope.cancelled_caught
        if how == "aclose":
            await tree.aclose()
        else:
            getattr(tree, how)()
            await tree.wait_gone()
        assert living(f"sleep\0{n}\0") == []
        await until(lambda: len(living(n)) == len(others))


@sees_guardians
async def test_a_terminal_keeps_nothing_of_another_tree_open() -> None:
    """Its holder is a fork of the guardian, where all of them meet."""
    async with open_processes() as processes:
        pipe = await piped(processes, "exec cat")
        tree = await on_terminal(processes, "sleep 1000")
        await pipe.send_eof()
        assert await read_all(pipe) == b""
        holder = (fields(tree.pid) or [])[3]
        assert os.listdir(f"/proc/{holder}/fd") == []


async def test_a_program_that_is_missing_leaves_no_terminal_behind() -> None:
    async with open_processes() as processes:
        await (await on_terminal(processes, "true")).aclose()
        before = descriptors()
        for _ in range(3):
            with pytest.raises(FileNotFoundError) as caught:
                await processes.spawn(
                    ["no-such-program"],
                    cwd=None,
                    env=os.environ,
                    marker="a",
                    terminal=Terminal(),
                )
            assert caught.value.filename == "no-such-program"
        with pytest.raises(NotADirectoryError) as other:
            await processes.spawn(
                ["true"],
                cwd="/etc/passwd",
                env=os.environ,
                marker="a",
                terminal=Terminal(),
            )
        assert other.value.errno == errno.ENOTDIR
        assert descriptors() <= before


@pytest.mark.parametrize("size", [(0, 80), (24, 70000), (True, 80), (24, 8.5)])
async def test_a_terminal_of_an_impossible_size_is_refused(
    size: tuple[int, int],
) -> None:
    async with open_processes() as processes:
        with pytest.raises(ValueError, match=r"terminal\.(rows|columns) must be"):
            await on_terminal(
                processes, "true", Terminal(rows=size[0], columns=size[1])
            )
