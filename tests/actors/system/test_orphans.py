"""What still lives of a program that is dead, and cannot be ended."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest
import trio

from actors._system import orphans, posix
from actors._system.guardian import proc
from actors._system.posix import PosixProcesses

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

LONG = 30.0
# Of a boot that is over, so it is dead; here all are.
DEAD = "boot 1 1"


@pytest.fixture
def orphan(monkeypatch: pytest.MonkeyPatch) -> Generator[subprocess.Popen[bytes]]:
    """A process with the marker of a tree whose program is dead."""
    monkeypatch.setattr(orphans, "_is_dead", lambda of: True)
    marker = {"TRIO_SUPERVISOR_0123456789ABCDEF": f"sorphan{os.getpid()}-000001"}
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, **marker}) as child:
        # /proc has its environment a moment after its start has returned.
        shown = Path(f"/proc/{child.pid}/environ")
        while b"=sorphan" not in shown.read_bytes():
            time.sleep(0.001)
        yield child
        child.kill()


def prefixes() -> list[str]:
    return [f"sorphan{os.getpid()}-"]


async def test_what_cannot_be_ended_is_named(
    orphan: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "_PASSES", 3)
    with monkeypatch.context() as patch:
        patch.setattr(orphans, "_kill", lambda *_: False)
        with trio.fail_after(LONG):
            told = await PosixProcesses().end_orphans(DEAD, prefixes())
    assert told == (0, [orphan.pid]) and orphan.poll() is None
    monkeypatch.setattr(orphans, "_PASSES", 1_000)
    with trio.fail_after(LONG):
        ended, left = await PosixProcesses().end_orphans(DEAD, prefixes())
    assert (ended, left) == (1, [])


async def test_a_look_that_hangs_in_the_kernel_holds_up_nobody_and_strikes_nobody_later(
    orphan: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, lets_go, has_ended = threading.Event(), threading.Event(), threading.Event()
    read, end_orphans = proc.read, posix.end_orphans

    def held_up(path: str, limit: int) -> bytes:
        if path == f"/proc/{orphan.pid}/environ":
            hangs.set()
            assert lets_go.wait(LONG)
        return read(path, limit)

    def tells_its_end(*args: object) -> object:
        try:
            return end_orphans(*args)  # type: ignore[arg-type]
        finally:
            has_ended.set()

    monkeypatch.setattr(proc, "read", held_up)
    monkeypatch.setattr(posix, "end_orphans", tells_its_end)
    try:
        with trio.fail_after(LONG), trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(PosixProcesses().end_orphans, DEAD, prefixes())
                assert await trio.to_thread.run_sync(hangs.wait, LONG)
                scope.cancel()
        assert scope.cancelled_caught and not has_ended.is_set()
    finally:
        lets_go.set()
    assert await trio.to_thread.run_sync(has_ended.wait, LONG)
    assert orphan.poll() is None
