"""How the outputs of many process trees are read."""

from __future__ import annotations

import errno
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from actors._system.process import Guardian, PosixProcess
from actors._system.process_output import (
    _CHUNK,
    _FULL_READS,
    _LARGE_CHUNK,
    _LARGE_PIPE,
    _MOST_LARGE,
    _READS_A_TURN,
    OutputTurns,
    ProcessOutput,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sizes of pipes")


@contextmanager
def open_pipe(
    turns: OutputTurns,
) -> Generator[tuple[int, int, ProcessOutput], None, None]:
    """Yield both ends of a pipe, and what reads it."""
    reading, writing = os.pipe2(os.O_NONBLOCK)
    output = ProcessOutput(reading, turns)
    try:
        yield reading, writing, output
    finally:
        output.close()
        os.close(writing)


async def read_full(writing: int, output: ProcessOutput, times: int) -> None:
    for _ in range(times):
        assert os.write(writing, bytes(_CHUNK)) == _CHUNK
        assert len(await output.receive(_CHUNK)) == _CHUNK


def size_of(pipe: int) -> int:
    import fcntl

    size = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    assert isinstance(size, int)
    return size


async def test_in_one_turn_of_the_loop_a_few_outputs_are_read() -> None:
    """P6: many loud programs do not keep a task from its turn."""
    turns = OutputTurns()
    done = 0

    async def read(output: ProcessOutput) -> None:
        nonlocal done
        assert await output.receive(_CHUNK) == b"x"
        done += 1

    with ExitStack() as stack, trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(10 * _READS_A_TURN):
                _, writing, output = stack.enter_context(open_pipe(turns))
                os.write(writing, b"x")
                nursery.start_soon(read, output)
            while done < 10 * _READS_A_TURN:
                before = done
                await trio.lowlevel.checkpoint()
                # This task may be the first of one turn and the last of the next.
                assert done - before <= 2 * _READS_A_TURN


async def test_outputs_that_wait_and_those_that_are_not_read_keep_no_turn() -> None:
    """P6: neither a silent program nor a slow disk holds up another's output."""
    turns = OutputTurns()
    with ExitStack() as stack, trio.fail_after(20):
        pipes = [stack.enter_context(open_pipe(turns)) for _ in range(20)]
        async with trio.open_nursery() as nursery:
            for _, _, output in pipes[:-2]:
                nursery.start_soon(output.receive, _CHUNK)
            await trio.testing.wait_all_tasks_blocked()
            for _, writing, output in pipes[-2:]:
                os.write(writing, b"read and never dealt with")
                assert await output.receive(_CHUNK)
            nursery.cancel_scope.cancel()


async def test_a_reader_that_is_cancelled_in_line_loses_nothing() -> None:
    """P7, P8: neither its output nor the place of another."""
    turns = OutputTurns()
    with open_pipe(turns) as (_, writing, output), trio.fail_after(20):
        os.write(writing, b"kept")
        for _ in range(2 * _READS_A_TURN):
            with trio.CancelScope() as scope:
                scope.cancel()
                await output.receive(_CHUNK)
            assert scope.cancelled_caught
        assert await output.receive(_CHUNK) == b"kept"


async def test_a_pipe_that_is_always_full_becomes_larger() -> None:
    """PF9, and only for a program that fills it."""
    turns = OutputTurns()
    with open_pipe(turns) as (reading, writing, output), trio.fail_after(20):
        await read_full(writing, output, _FULL_READS - 1)
        assert size_of(reading) == _CHUNK
        await read_full(writing, output, 1)
        assert size_of(reading) == _LARGE_PIPE
        assert os.write(writing, bytes(_LARGE_PIPE)) == _LARGE_PIPE
        assert len(await output.receive(_LARGE_PIPE)) == _LARGE_CHUNK


# In a process of its own: what was freed there before decides which memory it keeps.
_READ_MUCH = f"""
import os, resource, trio
from actors._system.process_output import OutputTurns, ProcessOutput

async def main():
    reading, writing = os.pipe2(os.O_NONBLOCK)
    output = ProcessOutput(reading, OutputTurns())

    async def read(times, size):
        for _ in range(times):
            os.write(writing, bytes(size))
            assert len(await output.receive({_LARGE_PIPE})) == size

    await read({_FULL_READS + 1}, {_CHUNK})
    for size in (70_000, 100_000, {_LARGE_CHUNK}):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        await read(500, size)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

trio.run(main)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about its malloc")
def test_the_pieces_of_a_large_pipe_are_read_into_the_same_memory() -> None:
    """PF9: memory that the kernel takes back and gives anew costs more than a copy."""
    run = subprocess.run(
        [sys.executable, "-c", _READ_MUCH], check=True, capture_output=True, timeout=60
    )
    # With 256 KiB, of which so little came, there were some twenty for each piece.
    assert all(faults < 500 for faults in map(int, run.stdout.split())), run.stdout


async def test_a_few_pipes_are_large_at_once() -> None:
    """A user may have 64 MiB of pipes; beyond that, all new ones are tiny."""
    turns = OutputTurns()
    with ExitStack() as stack, trio.fail_after(60):
        pipes = [stack.enter_context(open_pipe(turns)) for _ in range(_MOST_LARGE + 1)]
        for _, writing, output in pipes:
            await read_full(writing, output, 2 * _FULL_READS)
        *large, (reading, writing, output) = pipes
        assert all(size_of(pipe) == _LARGE_PIPE for pipe, _, _ in large)
        assert size_of(reading) == _CHUNK
        large[0][2].close()
        large[0][2].close()
        await read_full(writing, output, 1)
        assert size_of(reading) == _LARGE_PIPE
        assert turns.large == _MOST_LARGE


async def test_what_cannot_become_larger_is_read_on() -> None:
    """A terminal, or the pipe of a user who has too many."""
    turns = OutputTurns()
    ours, theirs = socket.socketpair()
    with ours, theirs, trio.fail_after(60):
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * _CHUNK)
        ours.setblocking(False)
        output = ProcessOutput(os.dup(ours.fileno()), turns)
        for _ in range(3 * _FULL_READS):
            theirs.sendall(bytes(_CHUNK))
            assert len(await output.receive(_CHUNK)) == _CHUNK
        output.close()
    assert turns.large == 0


async def test_a_terminal_only_ends_with_an_input_output_error() -> None:
    """SH11: of a pipe it is a failure, which is told."""
    # Nothing is mapped at its start, so a read of it fails so.
    with open_memory(terminal=False) as output:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            await output.receive(100)
    with open_memory(terminal=True) as output:
        assert await output.receive(100) == b""


@contextmanager
def open_memory(*, terminal: bool) -> Generator[ProcessOutput]:
    output = ProcessOutput(
        os.open("/proc/self/mem", os.O_RDONLY), OutputTurns(), terminal=terminal
    )
    try:
        yield output
    finally:
        output.close()


# A tree that has ended


class NoGuardian(Guardian):
    """One of which nothing is asked."""

    def __init__(self) -> None:
        self.inner = self.waiting = 0

    def watch(self) -> None:
        pass

    def wake(self) -> None:
        raise NotImplementedError

    def free(self) -> None:
        raise NotImplementedError

    async def wait_ended(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("cut", [None, "exit", "output"])
async def test_nothing_is_watched_of_a_tree_that_was_closed(cut: str | None) -> None:
    """P1: also if a wait was cut, and a fork of the host keeps the sockets open. Their
    numbers are soon those of others, who would be woken."""
    guardian = NoGuardian()
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe2(os.O_NONBLOCK)
    tree = PosixProcess(
        ours,
        set(),
        "NAME",
        "value",
        1,
        guardian,
        OutputTurns(),
        writable=False,
        errors=False,
        terminal=False,
    )
    socket.send_fds(theirs, [b"started 1 1 1\n"], [reading])
    os.close(reading)
    assert await tree.wait_started("true", None)
    assert tree._output is not None
    numbers = {ours.fileno(), tree._output.fileno()}
    kept = [os.dup(number) for number in numbers]
    if cut is not None:
        with trio.move_on_after(0.01):
            await (tree.wait_exit() if cut == "exit" else tree.receive_or_exit(10))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tree.receive_or_exit, 10)
        await trio.testing.wait_all_tasks_blocked()
        assert numbers & watched()
        os.close(writing)
        theirs.send(b"exit 0 0 0 0.0\ngone\n")
    assert tree.is_over
    assert guardian.waiting == 0
    await tree.aclose()
    assert not numbers & watched()
    for descriptor in kept:
        os.close(descriptor)
    theirs.close()


def watched() -> set[int]:
    """Return the numbers of the descriptors for which a loop may be woken."""
    found: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":
                text = Path(f"/proc/self/fdinfo/{name}").read_text()
                for words in map(str.split, text.split("\n")):
                    # Without the bits that only say how an event is told.
                    if words[:1] == ["tfd:"] and int(words[3], 16) & 0xFFFFFF:
                        found.add(int(words[1]))
    return found


async def test_who_waits_is_told_of_a_close_though_another_has_read_the_end() -> None:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    output = ProcessOutput(reading, OutputTurns())
    said: list[str] = []

    async def waits() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await output.receive(10)
        said.append("closed")

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits)
            await trio.testing.wait_all_tasks_blocked()
            os.close(writing)
            # In one step: the loop has not seen the end yet.
            assert output.receive_nowait(10) == b""
            output.close()
    assert said == ["closed"]
