"""What stands in the place of a journal, and what becomes of it while it is written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import orjson
import pytest
import trio

from actors.testing import fake_env
from supervisor.runtime import NewerJournal, Warned, open_runtime
from tests.supervisor.jobs import returns

LONG = 60.0
posix = pytest.mark.skipif(sys.platform == "win32", reason="links and FIFOs")


async def tell(directory: Path) -> str:
    """Leave a notification that nobody has acknowledged."""
    async with open_runtime(directory) as runtime:
        task = await runtime.launch(returns("x"))
        await task.wait()
    return task.id


async def told(directory: Path, *, journal: bool = True) -> tuple[list[str], list[str]]:
    """Return of which tasks a new runtime tells, and its warnings."""
    async with open_runtime(directory, journal=journal) as runtime:
        with runtime.events.subscribe() as events:
            warned = [it.text for it in events.drain() if isinstance(it, Warned)]
            return [it.task_id for it in runtime.notifications.drain()], warned


def bad(directory: Path) -> list[str]:
    return sorted(it for it in os.listdir(directory) if ".bad" in it)


async def test_a_torn_tail_and_lines_that_say_nothing_are_told(tmp_path: Path) -> None:
    with trio.fail_after(LONG):
        task = await tell(tmp_path)
        path = tmp_path / "journal.jsonl"
        header, rest = path.read_bytes().split(b"\n", 1)
        damaged = header + b"\nrubbish\n\0\0\0\n" + rest + b'{"k":"ack","n":"n0'
        path.write_bytes(damaged)
        tasks, (warned,) = await told(tmp_path)
        assert tasks == [task]
        assert "the journal ended within a line, and 18 bytes were cut" in warned
        assert "these lines of the journal say nothing known: 2, 3" in warned
        kept = tmp_path / "journal.jsonl.bad"
        assert f"the journal was damaged, and is kept as it was: {kept}" in warned
        assert kept.read_bytes() == damaged
        # It is as good as new.
        tasks, (warned,) = await told(tmp_path)
        assert tasks == [task] and "line" not in warned and "bad" not in warned
        assert bad(tmp_path) == [kept.name]


@pytest.mark.parametrize(
    "what", [b"precious\0\xff", b"precious\nwords\n", b'{"v":9}\n']
)
async def test_a_file_in_its_place_that_is_no_journal_is_kept_beside_it(
    tmp_path: Path, what: bytes
) -> None:
    """Each once, also if the program was killed before it wrote a journal there."""
    path = tmp_path / "journal.jsonl"
    with trio.fail_after(LONG):
        path.write_bytes(what)
        (tmp_path / "journal.jsonl.bad").write_bytes(what)
        tasks, (warned,) = await told(tmp_path)
        assert tasks == []
        kept = tmp_path / "journal.jsonl.bad"
        assert f"what was in the place of the journal was none: {kept}" in warned
        path.write_bytes(b"other " + what)
        _, (warned,) = await told(tmp_path)
        second = tmp_path / "journal.jsonl.bad.2"
        assert warned.endswith(f"was none: {second}")
        assert bad(tmp_path) == [kept.name, second.name]
        assert kept.read_bytes() == what and second.read_bytes() == b"other " + what
        task = await tell(tmp_path)
        assert (await told(tmp_path))[0] == [task]


async def test_a_journal_of_a_later_version_is_refused_and_not_changed(
    tmp_path: Path,
) -> None:
    with trio.fail_after(LONG):
        await tell(tmp_path)
        path = tmp_path / "journal.jsonl"
        header, rest = path.read_bytes().split(b"\n", 1)
        later = orjson.dumps(orjson.loads(header) | {"v": 99}) + b"\n" + rest
        path.write_bytes(later)
        before = sorted(os.listdir(tmp_path))
        for _ in range(2):
            with pytest.raises(
                NewerJournal,
                match=r"journal\.jsonl: its version is 99, and this library reads 1",
            ):
                async with open_runtime(tmp_path):
                    raise AssertionError
        assert path.read_bytes() == later and sorted(os.listdir(tmp_path)) == before
        # Who wants none of it is not kept from the directory.
        # It only cannot tell which old files somebody needs.
        tasks, (warned,) = await told(tmp_path, journal=False)
        assert tasks == [] and "its version is 99" in warned
        assert path.read_bytes() == later


@posix
@pytest.mark.parametrize("what", ["link", "dangling", "fifo"])
async def test_what_is_no_file_in_its_place_is_replaced_and_never_followed(
    tmp_path: Path, what: str
) -> None:
    here, other = tmp_path / "tasks", tmp_path / "other"
    here.mkdir()
    path = here / "journal.jsonl"
    with trio.fail_after(LONG):
        if what == "fifo":
            os.mkfifo(path)
        else:
            if what == "link":
                other.write_bytes(b"precious\n")
            path.symlink_to(other)
        task = await tell(here)
        assert path.is_file() and not path.is_symlink()
        assert (await told(here))[0] == [task]
    assert not other.exists() or other.read_bytes() == b"precious\n"


async def test_a_directory_in_its_place_is_an_error_that_names_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(OSError, match=r"journal\.jsonl"):
        async with open_runtime(tmp_path):
            raise AssertionError
    async with open_runtime(tmp_path, journal=False) as runtime:
        assert (await runtime.run(returns("x"))).result == "x"


@posix
@pytest.mark.parametrize(
    "what", ["removed", "moved", "linked", "emptied", "link", "replaced", "directory"]
)
@pytest.mark.parametrize("durable", [False, True])
async def test_whatever_is_done_to_the_file_while_it_is_written_what_follows_is_there(
    tmp_path: Path, what: str, durable: bool
) -> None:
    """All of it, where the file was taken away: the runtime has it open."""
    here, path = tmp_path / "tasks", tmp_path / "tasks" / "journal.jsonl"
    with trio.fail_after(LONG):
        async with open_runtime(here, durable=durable) as runtime:
            first = await runtime.launch(returns("x"))
            await first.wait()
            await runtime.synced()
            # Or the time of a move may be that of the write before.
            await trio.sleep(0.05)
            if what == "emptied":
                os.truncate(path, 0)
            elif what == "moved":
                path.rename(tmp_path / "moved")
            else:
                if what == "linked":
                    os.link(path, tmp_path / "another name")
                path.unlink()
            if what == "link":
                path.symlink_to(tmp_path / "other")
            elif what == "replaced":
                path.write_bytes(b"rubbish")
            elif what == "directory":
                path.mkdir()
            second = await runtime.launch(returns("y"))
            await second.wait()
            if what == "directory":
                with pytest.raises(IsADirectoryError):
                    await runtime.synced()
                path.rmdir()
                while True:
                    try:
                        await runtime.synced()
                        break
                    except OSError:
                        await trio.sleep(0.01)
            await runtime.synced()
        tasks, _ = await told(here)
    lost = {first.id} if what == "emptied" else set[str]()
    assert {*tasks} == {first.id, second.id} - lost
    assert not (tmp_path / "other").exists()


@posix
@pytest.mark.parametrize("what", ["file", "directory"])
@pytest.mark.parametrize("ends", [0, 1, 200])
async def test_a_journal_that_was_moved_loses_nothing_in_silence(
    tmp_path: Path, what: str, ends: int
) -> None:
    """Whenever that is found, at once, after some writes, or at the end: it is written
    anew, and told if that cannot be done."""
    here, path = tmp_path / "tasks", tmp_path / "tasks" / "journal.jsonl"
    with trio.fail_after(LONG):
        async with open_runtime(here) as runtime:
            await (await runtime.launch(returns("x"))).wait()
            events = runtime.events.subscribe()
            if what == "file":
                path.rename(tmp_path / "moved")
            else:
                here.rename(tmp_path / "elsewhere")
            for _ in range(ends):
                await (await runtime.launch(returns("y"))).wait()
        warned = [it.text for it in events.drain() if isinstance(it, Warned)]
        if what == "file":
            assert warned == []
            assert len((await told(here))[0]) == 1 + ends
        else:
            (*_, last) = [it for it in warned if "journal" in it]
            assert str(path) in last


async def test_without_a_journal_that_of_others_is_left_alone(tmp_path: Path) -> None:
    with trio.fail_after(LONG):
        task = await tell(tmp_path)
        path = tmp_path / "journal.jsonl"
        before = path.read_bytes(), path.stat().st_ino
        async with open_runtime(tmp_path, journal=False) as runtime:
            await (await runtime.launch(returns("y"))).wait()
            (note,) = runtime.notifications.drain()
            assert note.task_id != task and note.ack()
            await runtime.synced()
        assert (path.read_bytes(), path.stat().st_ino) == before
        assert (await told(tmp_path))[0] == [task]


async def test_what_cannot_be_kept_leaves_no_file_behind() -> None:
    """Or each attempt would, on a full disk."""
    env = fake_env()
    here = env.files.make_directory(Path("/tasks"))
    env.files.replace(here / "journal.jsonl", b"precious\0")
    env.files.capacity = env.files.disk.used()
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            async with open_runtime(here, env=env):
                raise AssertionError("it is open")
    names = [it for it in env.files.names(here) if "journal" in it]
    assert names == ["journal.jsonl"]
    assert env.files.contents(here / "journal.jsonl") == b"precious\0"
