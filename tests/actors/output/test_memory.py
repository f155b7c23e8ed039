"""The memory of a capture, seen from outside, and the truth of its file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

ROOT = Path(__file__).parents[3]

# In a process of its own, whose memory no other test has touched.
PROGRAM = """
import sys, trio
from bench.capture import capture
command, size, raw = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "raw"
print(trio.run(capture, command, size, raw)[1])
"""
needs_proc = pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="needs /proc to see memory"
)
SIZE = 64 * 2**20


@pytest.mark.limit(130)
@needs_proc
@pytest.mark.parametrize("mode", ["raw", "cleaned"])
@pytest.mark.parametrize(
    "command",
    [
        f"yes 'a line of ordinary output, 0123456789' | head -c {SIZE}",
        f"head -c {SIZE} /dev/zero | tr '\\0' x",
    ],
)
async def test_memory_does_not_grow_with_the_output(command: str, mode: str) -> None:
    """P7, SH5, PF9: with and without newlines; sampled by another process."""
    with trio.fail_after(120):
        done = await trio.run_process(
            [sys.executable, "-c", PROGRAM, command, str(SIZE), mode],
            capture_stdout=True,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
        )
    assert int(done.stdout) < 20 * 2**20
