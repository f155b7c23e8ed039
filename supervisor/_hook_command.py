"""One run of a hook's command: from its start until nothing of it is left."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from actors.env import Env, Process, ProcessExit
from actors.envelope import CUT, clean_text, truncate_head

TEXT_LIMIT: Final = 10_000
"""Characters kept of what a hook prints, from the start."""
_BYTES_KEPT: Final = 8 * TEXT_LIMIT
_LAST_WORDS: Final = 1.0
"""Seconds for what is still in the pipes when nothing of the command is left."""


@attrs.frozen
class CommandEnd:
    """How a hook's command has ended."""

    exit: ProcessExit
    stdout: str
    stderr: str


async def run_hook_command(
    command: str, env: Env, *, stdin: bytes, cwd: str | None
) -> CommandEnd:
    """Run a command with ``stdin`` as its input, and return how it has ended.

    What it leaves behind is killed when it has ended. Cancelled, all of it is
    killed at once, and it returns when that is done. Of what it prints the start
    is kept, and the rest read and dropped.

    Raises:
        OSError: if it cannot be started.
    """
    process = await _spawn(command, env, cwd)
    stdout, stderr = bytearray(), bytearray()
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
    return CommandEnd(exit, _as_text(stdout), _as_text(stderr))


async def _spawn(command: str, env: Env, cwd: str | None) -> Process:
    for program in ("bash", "sh"):
        try:
            return await env.processes.spawn(
                [program, "-c", command],
                cwd=cwd,
                env=env.processes.environment(),
                marker=env.ids.hex(16),
                stdin="pipe",
                stderr="pipe",
            )
        except FileNotFoundError as error:
            if program == "sh" or error.filename != program:
                raise
    raise AssertionError("unreachable")


async def _feed(process: Process, data: bytes) -> None:
    # A hook need not read what it is told.
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await process.send(data)
        await process.send_eof()


async def _read(receive: Callable[[], Awaitable[bytes]], kept: bytearray) -> None:
    while data := await receive():
        kept += data[: _BYTES_KEPT - len(kept)]


def _as_text(data: bytearray) -> str:
    text, is_cut = truncate_head(
        clean_text(data.decode("utf-8", "replace")).strip(), TEXT_LIMIT
    )
    return text + CUT if is_cut or len(data) == _BYTES_KEPT else text
