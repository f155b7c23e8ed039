"""One run of a hook's command: from its start until nothing of it is left."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import attrs
import trio

from actors.env import Env
from actors.hosting import Process, ProcessExit, spawn_shell
from actors.house import define, frozen

from ._object import as_text

OUTPUT_LIMIT: Final = 2**20
"""Bytes kept of what a hook prints, and of its errors, from the start."""
PROJECT_DIR: Final = "CLAUDE_PROJECT_DIR"
"""The variable by which hooks of Claude Code find their scripts."""
_LAST_WORDS: Final = 1.0
"""Seconds for what is still in the pipes when nothing of the command is left."""


@frozen
class CommandEnd:
    """How a hook's command has ended."""

    exit: ProcessExit
    stdout: bytes
    """As it was printed: what it says is read before it is cleaned."""
    is_cut: bool
    """Whether there was more of it."""
    stderr: str
    """Clean."""


async def run_hook_command(
    command: str, env: Env, *, stdin: bytes, cwd: str | None, project: str | None
) -> CommandEnd:
    """Run a command with ``stdin`` as its input and ``project`` as the directory of
    the project, and return how it has ended.

    What it leaves behind is killed when it has ended. Cancelled, all of it is
    killed at once, and it returns when that is done. The start of what it prints
    is kept; the rest is read and dropped.

    Raises:
        OSError: if it cannot be started.
    """
    process = await _spawn(command, env, cwd, project)
    stdout, stderr = _Kept(), _Kept()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_feed, process, stdin)
            nursery.start_soon(_read, process.receive, stdout)
            nursery.start_soon(_read, process.receive_stderr, stderr)
            exit = await process.wait_exit()
            process.kill()
            await process.wait_gone()
            # The pipes end now, unless somebody else got hold of one.
            nursery.cancel_scope.deadline = trio.current_time() + _LAST_WORDS
    finally:
        with trio.CancelScope(shield=True):  # It has a deadline of its own.
            await process.aclose()
    said = bytes(stderr.data).decode("utf-8", "replace")
    return CommandEnd(exit, bytes(stdout.data), stdout.is_cut, as_text(said))


async def _spawn(
    command: str, env: Env, cwd: str | None, project: str | None
) -> Process:
    variables = env.processes.environment()
    if project is not None:
        variables[PROJECT_DIR] = project
    spawn = partial(
        env.processes.spawn,
        cwd=cwd,
        env=variables,
        marker=env.ids.hex(16),
        stdin="pipe",
        stderr="pipe",
    )
    return await spawn_shell(spawn, command)


async def _feed(process: Process, data: bytes) -> None:
    # A hook need not read what it is told.
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await process.send(data)
        await process.send_eof()


@define
class _Kept:
    data: bytearray = attrs.field(factory=bytearray)
    is_cut: bool = False


async def _read(receive: Callable[[], Awaitable[bytes]], kept: _Kept) -> None:
    while data := await receive():
        room = OUTPUT_LIMIT - len(kept.data)
        kept.data += data[:room]
        kept.is_cut |= len(data) > room
