"""What the seeds leave open about the disk, seen on commands that run: what lies in the
directory counts, what is old goes, and both are told. A row of document 000, and one of
004."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="shells need POSIX")

DAY = 86_400


def supervise(directory: Path, command: str, **variables: str) -> tuple[int, str]:
    """Run `trio-supervisor run --json`; return the exit code and the events, without
    ids and the name of the directory."""
    program = [sys.executable, "-m", "supervisor.cli", "run", "--json"]
    done = subprocess.run(
        [*program, "--directory", str(directory), "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **variables},
        check=False,
    )
    told = re.sub(r"s[0-9a-f]{8}", "ID", done.stdout.replace(str(directory), "DIR"))
    return done.returncode, told


def leave(directory: Path, name: str, size: int, days: float) -> None:
    path = directory / name
    path.write_bytes(b"x" * size)
    then = time.time() - days * DAY
    os.utime(path, (then, then))


def test_a_command_fails_where_earlier_programs_have_filled_the_directory(
    tmp_path: Path,
) -> None:
    """P7: told before it fails, with the reason."""
    leave(tmp_path, "s0123abcd.output", 90_000, 0)
    code, told = supervise(tmp_path, "yes", TRIO_SUPERVISOR_MAX_DISK="100000")
    assert code == 1
    warned = told.index("Warned")
    assert re.search("the directory DIR has used 90,[0-9]{3} of the 100,000", told)
    assert warned < told.index("TaskStarted") < told.index("TaskEnded")
    assert "the directory DIR reached its quota of 100,000 bytes" in told
    # But for what the journal says of the end.
    size = sum(it.stat().st_size for it in os.scandir(tmp_path))
    assert 99_000 < size < 102_000


def test_what_is_old_makes_room_for_the_next_command(tmp_path: Path) -> None:
    """P7: by age and by number; the rest stays, and what went is told in one line."""
    leave(tmp_path, "s00000001.output", 90_000, 31)
    leave(tmp_path, "s00000002.output", 1_000, 3)
    leave(tmp_path, "s00000003.output", 1_000, 2)
    leave(tmp_path, "agent-0000000a.jsonl", 500, 29)
    leave(tmp_path, "agent-0000000b.jsonl", 500, 31)
    leave(tmp_path, "notes", 500, 400)
    variables = {
        "TRIO_SUPERVISOR_MAX_DISK": "20000",
        "TRIO_SUPERVISOR_KEEP_TASKS": "1",
    }
    code, told = supervise(tmp_path, "echo done", **variables)
    assert (code, told.count("Warned")) == (0, 1)
    assert "files of 3 task(s) of earlier programs, 91,500 bytes, were removed" in told
    left = {re.sub("s[0-9a-f]{8}", "ID", name) for name in os.listdir(tmp_path)}
    assert left >= {"ID.output", "agent-0000000a.jsonl", "notes"}
    assert "agent-0000000b.jsonl" not in left
    assert not (tmp_path / "s00000002.output").exists()
    assert (tmp_path / "s00000003.output").exists()
