"""What earlier programs have left: what goes, what stays, and that it is told."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.agent import Agent
from actors.env import FileEntry, real_env
from actors.shell import Shell
from actors.testing import FakeEnv, fake_env
from supervisor._life.leftovers import YOUNG, Leftover, leftovers, outdated
from supervisor.agents import AgentPolicy
from supervisor.runtime import Limits, Runtime, UnknownTask, Warned, open_runtime
from tests.supervisor.talkers import answers

HERE = Path("/tasks")
DAY = 86_400
NOW = 10**9

# ---- The policy ----

# Names of ours, and names that only look so.
OURS = [
    *("s0000000{}.output", "s0000000{}.output.1", "s0000000{}.output.new"),
    *("r0000000{}.output", "w0000000{}.output", "disk-000000000000000{}.lease"),
    *("agent-0000000{}.jsonl", "agent-0000000{}.meta.json", "0000000{}.output"),
    "agent-0000000{}.meta.json.new",
]
OTHERS = [
    *("journal.jsonl", "journal.jsonl.1", "agents.lock", "notes.txt", "x.output"),
    *("s000000000.output", "s0000000g.output", "S00000001.output", "agent-.jsonl"),
    *(
        "agent-a/b.jsonl",
        "s00000001.output.2",
        "s00000001.output~",
        ".s00000001.output",
    ),
    # Others may use a store of transcripts of their own there.
    *("agent-notes.jsonl", "agent-alice.meta.json", "agent-000000001.jsonl"),
    *("agent-00000001.jsonl.bak", "disk-1.lease", "agent-00000001.meta.jsonx"),
]
NAMES = [name.format(n) for name in OURS for n in range(4)] + OTHERS

entry = st.builds(
    FileEntry,
    st.sampled_from(NAMES),
    st.integers(0, 100),
    st.one_of(
        st.integers(0, 5).map(lambda days: float(NOW - days * DAY)),
        st.floats(NOW - 4 * DAY, NOW + 4 * DAY),
    ),
)
directory = st.lists(entry, max_size=40, unique_by=lambda it: it.name)
policy = st.builds(
    Limits,
    keep_days=st.none() | st.integers(1, 4),
    keep_tasks=st.none() | st.integers(0, 5),
)


def task_of(name: str) -> str | None:
    """Return whose file it is, by rules of our own."""
    if name in OTHERS:
        return None
    if name.startswith("disk-"):
        return name.partition(".")[0]
    return name.removeprefix("agent-").partition(".")[0]


@settings(max_examples=600, deadline=None)
@given(directory, policy, st.sets(st.sampled_from([f"s0000000{n}" for n in range(4)])))
def test_the_policy_keeps_and_removes_what_it_says(
    files: list[FileEntry], limits: Limits, keep: set[str]
) -> None:
    """P7: held by rules about what it returns, for any files, ages and limits."""
    gone = outdated(files, NOW, limits, keep)
    by_task: dict[str, list[FileEntry]] = {}
    for file in files:
        if (task := task_of(file.name)) is not None:
            by_task.setdefault(task, []).append(file)
    ids = {it.task_id for it in gone}
    # All files of a task go together, and no other file goes.
    assert len(ids) == len(gone)
    for it in gone:
        assert sorted(it.names) == sorted(file.name for file in by_task[it.task_id])
        assert it.size == sum(file.size for file in by_task[it.task_id])
    age = {
        task: NOW - max(file.modified for file in theirs)
        for task, theirs in by_task.items()
    }
    agents = {
        task
        for task, theirs in by_task.items()
        if any(file.name.startswith("agent-") for file in theirs)
    }
    old = {
        task
        for task in age
        if limits.keep_days is not None and age[task] > limits.keep_days * DAY
    }
    # Never what is young or to be kept; an agent by its age alone, and then surely.
    assert not ids & keep
    assert all(age[task] >= YOUNG for task in ids)
    assert ids & agents == (agents & old) - keep
    assert old - keep <= ids
    if limits.keep_tasks is None:
        assert ids == old - keep
        return
    # Of the others so many stay, or all that must, and the newest of them.
    stay = by_task.keys() - ids - agents
    must = {task for task in stay if task in keep or age[task] < YOUNG}
    many = ids - old
    assert len(stay - must) <= limits.keep_tasks
    if many:
        assert len(stay) >= limits.keep_tasks
    for task in many:
        newer = [it for it in stay if age[it] <= age[task]]
        assert len(newer) >= limits.keep_tasks
    # Nothing more goes at once.
    rest = [file for file in files if task_of(file.name) not in ids]
    assert outdated(rest, NOW, limits, keep) == []


def test_what_goes_goes_in_an_order_that_a_crash_may_break_off() -> None:
    """TR6: an agent that has lost its transcript and not its meta would begin anew;
    an output that is gone before its older file would give its id away with that."""
    files = [FileEntry(name.format(1), 1, 0.0) for name in reversed(OURS)]
    names = {it.task_id: it.names for it in leftovers(files)}
    assert names["00000001"] == (
        "agent-00000001.meta.json.new",
        "agent-00000001.meta.json",
        "agent-00000001.jsonl",
        "00000001.output",
    )
    assert names["s00000001"] == (
        "s00000001.output.new",
        "s00000001.output.1",
        "s00000001.output",
    )


# ---- A runtime that is opened ----


def left(env: FakeEnv, name: str, days: float, size: int = 10) -> None:
    """Leave a file of an earlier program, of this age."""
    env.files.make_directory(HERE)
    env.files.replace(HERE / name, b"x" * size)
    inode = env.files.disk.file(HERE / name)
    assert inode is not None
    inode.modified = env.clock.seconds() - days * DAY


def names(env: FakeEnv) -> list[str]:
    return [it.name for it in env.files.entries(HERE) if it.name != "journal.jsonl"]


def acknowledge(runtime: Runtime) -> None:
    """What nobody has heard of yet stays."""
    for note in runtime.notifications.drain():
        assert note.ack()


async def test_a_runtime_that_is_opened_removes_what_is_old_and_tells_it_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """P7"""
    env = fake_env()
    left(env, "s00000001.output", 31, 1_000)
    left(env, "s00000001.output.1", 32, 500)
    left(env, "agent-00000002.jsonl", 31)
    left(env, "agent-00000002.meta.json", 30.5)
    left(env, "s00000003.output", 29)
    left(env, "somebody's", 400)
    async with open_runtime(HERE, env=env) as runtime:
        assert "00000002" not in "".join(names(env))
        # Nobody could subscribe before.
        (event,) = runtime.events.subscribe().drain()
        assert runtime.events.subscribe().drain() == []
    (told,) = caplog.messages
    assert isinstance(event, Warned) and event.text == told
    assert "files of 2 task(s) of earlier programs, 1,520 bytes, were removed" in told
    assert "from /tasks, by Limits.keep_days and keep_tasks" in told
    there = ["s00000003.output", "somebody's"]
    assert names(env) == there
    async with open_runtime(HERE, env=env, limits=Limits(keep_tasks=0)):
        pass
    assert names(env) == ["somebody's"]
    left(env, "s00000003.output", 9_999)
    unlimited = Limits(keep_tasks=None, keep_days=None)
    async with open_runtime(HERE, env=env, limits=unlimited):
        pass
    assert names(env) == there
    assert len(caplog.messages) == 2


async def test_while_another_runtime_has_the_directory_nothing_goes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """TR6: it may be what that one runs, or reads."""
    env = fake_env({"forever": forever})
    none = Limits(keep_tasks=0)
    other = attrs.evolve(env, processes=fake_env().processes)
    async with open_runtime(HERE, env=env, limits=none) as first:
        task = await first.launch(Shell("forever"))
        await trio.sleep(40 * DAY)
        left(env, "s0000000a.output", 50)
        async with open_runtime(HERE, env=other, limits=none):
            assert f"{task.id}.output" in names(env)
            assert "s0000000a.output" in names(env)
        await first.stop(task.id)
    async with open_runtime(HERE, env=env, limits=none) as runtime:
        assert f"{task.id}.output" in names(env)
        acknowledge(runtime)
    left(env, "s0000000b.output", 0.5 / 24)
    async with open_runtime(HERE, env=other, limits=none):
        assert names(env) == ["s0000000b.output"]
    env.clock.ahead += YOUNG
    async with open_runtime(HERE, env=other, limits=none):
        assert names(env) == []


async def test_what_a_journal_still_has_to_tell_stays_for_one_who_keeps_none(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if that journal cannot be read by it."""
    env = fake_env()
    none = Limits(keep_tasks=0)
    async with open_runtime(HERE, env=env) as runtime:
        task = await runtime.launch(Shell("echo it"))
        await task.wait()
    env.clock.ahead += 40 * DAY
    left(env, "s0000000a.output", 50)
    async with open_runtime(HERE, env=env, limits=none, journal=False):
        assert names(env) == [f"{task.id}.output"]
    left(env, "s0000000a.output", 50)
    env.files.replace(HERE / "journal.jsonl", b'{"k":"journal","v":99}\n')
    async with open_runtime(HERE, env=env, limits=none, journal=False):
        assert names(env) == sorted([f"{task.id}.output", "s0000000a.output"])
    assert "could not be removed" in caplog.messages[-1]


async def forever(program: Any) -> None:
    await trio.sleep_forever()


async def test_an_agent_can_be_resumed_until_it_is_too_old(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """AG26, P7: whatever number of tasks is kept."""
    env = fake_env()
    none, agents = Limits(keep_tasks=0), AgentPolicy(run=answers)
    async with open_runtime(HERE, env=env, agents=agents) as runtime:
        task = await runtime.launch(Agent(answers, "go"))
        await task.wait()
    acknowledge(runtime)
    env.clock.ahead += 30 * DAY - 60
    async with open_runtime(HERE, env=env, agents=agents, limits=none) as runtime:
        assert (await (await runtime.resume(task.id, "again")).wait()).error is None
    acknowledge(runtime)
    env.clock.ahead += 30 * DAY + 60
    async with open_runtime(HERE, env=env, agents=agents, limits=none) as runtime:
        with pytest.raises(UnknownTask):
            await runtime.resume(task.id, "again")
    assert names(env) == []


async def test_an_agent_that_somebody_resumes_meanwhile_stays(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """AG26: the other runtime is opened between the look and the removal, and goes on
    with one agent that runs still and one that has ended again."""
    env = fake_env()
    for agent in ("00000001", "00000002", "00000003"):
        left(env, f"agent-{agent}.jsonl", 40)
        left(env, f"agent-{agent}.meta.json", 40)
    entries, other = env.files.entries, []

    def look(directory: Any) -> Any:
        seen = entries(directory)
        if not other:
            share = env.files.share(HERE)
            other.append(share)
            assert share.claim("00000001") is None
            left(env, "agent-00000002.meta.json", 0)
        return seen

    env.files.entries = look  # type: ignore[method-assign]
    async with open_runtime(HERE, env=env):
        pass
    assert {name[6:14] for name in names(env)} == {"00000001", "00000002"}
    assert "files of 1 task(s)" in caplog.text
    assert other[0].claim("00000003") is None, "and nothing is claimed any more"


@pytest.mark.parametrize("call", ["entries", "remove", "in_thread", "share"])
async def test_what_cannot_be_removed_keeps_nobody_from_opening(
    call: str, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """P10: and is told, with the reason."""
    env = fake_env({"echo": "fine\n"})
    left(env, "agent-00000001.meta.json", 40)
    left(env, "agent-00000001.jsonl", 40)
    left(env, "s00000001.output", 40)

    def fails(*args: object) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "there")

    if call == "share":
        share = env.files.share

        def without_claims(directory: Path) -> Any:
            made: Any = share(directory)
            made.claim = fails
            return made

        env.files.share = without_claims  # type: ignore[method-assign]
    else:
        setattr(env.files, call, fails)
    async with open_runtime(HERE, env=env) as runtime:
        done = await (await runtime.launch(Shell("echo"))).wait()
        assert done.result == "fine\n"
    assert "Read-only file system" in caplog.text
    assert caplog.text.count("could not be") == 1
    assert {"agent-00000001.meta.json", "agent-00000001.jsonl"} <= {
        path.name for path in env.files.disk.entries
    }


@pytest.mark.skipif(sys.platform == "win32", reason="real times of POSIX files")
async def test_real_files_go_by_the_time_that_the_system_has_of_them(
    tmp_path: Path,
) -> None:
    """P7: a link is not followed, and what it leads to stays."""
    outside = tmp_path / "outside"
    outside.write_text("kept")
    here = tmp_path / "tasks"
    here.mkdir()
    for name in ("s00000001.output", "agent-0000000a.jsonl", "s00000002.output"):
        (here / name).write_text("x")
    (here / "0000000a.output").symlink_to("agent-0000000a.jsonl")
    (here / "s00000003.output").symlink_to(outside)
    (here / "s00000004.output").mkdir()
    for name in os.listdir(here):
        if name != "s00000002.output":
            os.utime(here / name, (0, 0), follow_symlinks=False)
    with trio.fail_after(30):
        async with open_runtime(here, env=real_env()):
            pass
    assert sorted(os.listdir(here)) == [
        "agents.lock",
        "journal.jsonl",
        "s00000002.output",
        "s00000004.output",
    ]
    assert outside.read_text() == "kept"


def test_many_files_are_judged_in_no_time() -> None:
    """P9: it is done at each opening, in the loop. 10,000 tasks, and a bound that only
    a search in a search would miss."""
    files = [FileEntry(f"s{n:08x}.output", 1, float(n)) for n in range(10_000)]
    gone = outdated(files, NOW, Limits(keep_days=None))
    assert len(gone) == 9_000
    assert gone[0] == Leftover("s00002327", ("s00002327.output",), False, 1, 8_999.0)
