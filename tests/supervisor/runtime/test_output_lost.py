"""An output file that somebody removes or replaces while its task runs, and one that
ends at its quota."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from actors.output import LOST_NOTE, OutputLog, QuotaExceeded
from actors.shell import Shell
from actors.testing import FakeFiles, Program, fake_env
from supervisor.runtime import Warned, open_runtime
from tests.supervisor.jobs import COMPLETED, FAILED

NOTE = LOST_NOTE.decode()
WAYS = {
    "removed": "rm *.output",
    "replaced": "rm *.output; echo stran''ger >$(basename $OUT)",
    "moved": "mv *.output elsewhere; echo stran''ger >$(basename $OUT)",
    "linked": "mv *.output elsewhere; ln -s /etc/passwd $(basename $OUT)",
    "a directory": "rm *.output; mkdir $(basename $OUT)",
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_output_whose_file_is_taken_away_is_told_of_and_its_end_is_kept(
    way: str, tmp_path: Path
) -> None:
    """OF9, P10, P7: nothing of a stranger's file is told as the output, or removed. (The
    command itself, which the summary shows, has the word in two parts.)"""
    command = f"OUT=$(ls *.output); echo before; {way}; echo after"
    with trio.fail_after(60):
        async with open_runtime(tmp_path) as runtime:
            events = runtime.events.subscribe()
            task = await runtime.launch(
                Shell(command, cwd=str(tmp_path)), description="a task"
            )
            done = await task.wait()
            warned = [e for e in events.drain() if isinstance(e, Warned)]
            note = await anext(aiter(runtime.notifications))
            answer = await runtime.tools_for(None)[1].call({"task_id": task.id})
        assert done.status is COMPLETED
        assert done.result == f"{NOTE}before\nafter\n"
        assert [e.task_id for e in warned] == [task.id]
        assert str(done.output_file) in warned[0].text
        assert "stranger" not in answer.text + note.xml
        assert "removed or replaced" in answer.text
        assert "removed or replaced" in note.xml


async def test_output_that_is_in_its_place_is_told_as_it_is(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_runtime("/tasks", env=fake_env({"x": "said\n"})) as runtime:
        events = runtime.events.subscribe()
        done = await (await runtime.launch(Shell("x"))).wait()
        assert done.result == "said\n"
        assert not [e for e in events.drain() if isinstance(e, Warned)]


async def test_a_rotation_moves_no_file_of_somebody_else(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P10: the task fails with that reason."""
    env = fake_env()

    async def prints(program: Program) -> None:
        await program.print("x" * 900 + "\n")
        await trio.sleep(1)
        path = Path("/tasks") / f"{task.id}.output"
        env.files.replace(path, b"a stranger's")
        await program.print("y" * 900 + "\n")

    env = fake_env({"x": prints})
    async with open_runtime("/tasks", env=env) as runtime:
        task = await runtime.launch(Shell("x", rotate=1000))
        done = await task.wait()
        assert done.status is FAILED
        assert done.error is not None
        assert "removed or replaced" in done.error.message
        assert env.files.contents(f"/tasks/{task.id}.output") == b"a stranger's"


@given(st.text(), st.integers(1, 40), st.integers(1, 7))
def test_text_that_ends_at_its_quota_ends_with_a_whole_character(
    text: str, quota: int, size: int
) -> None:
    """P7, SH12: whatever the pieces are."""

    async def main() -> bytes:
        files = FakeFiles()
        files.make_directory(Path("/tasks"))
        path = Path("/tasks/x.output")
        log = OutputLog(files.create_output(path), quota=quota)
        data = ("." + text).encode()
        try:
            for start in range(0, len(data), size):
                await log.write(data[start : start + size])
        except QuotaExceeded:
            pass
        await log.aclose()
        return files.contents(path)

    kept = trio.run(main)
    assert len(kept) <= quota
    kept.decode()
