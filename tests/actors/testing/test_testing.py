"""What users test with: the real runtime and the real Shell on a fake world."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from actors import ActorRef, Context, TaskStatus
from actors.shell import Shell
from actors.testing import (
    FakeEnv,
    Probe,
    Program,
    fake_env,
    wait_event,
)
from supervisor.runtime import (
    TaskEnded,
    TaskProgress,
    TaskSnapshot,
    TaskStarted,
    open_runtime,
)
from supervisor.tree import child, open_supervisor

COMPLETED, FAILED, KILLED = (
    TaskStatus.COMPLETED,
    TaskStatus.FAILED,
    TaskStatus.KILLED,
)


def on(env: FakeEnv) -> open_runtime:
    return open_runtime("/tasks", env=env)


async def run(env: FakeEnv, shell: Shell) -> TaskSnapshot:
    async with on(env) as runtime:
        return await (await runtime.launch(shell)).wait()


async def stubborn(program: Program) -> None:
    program.ignore_sigterm()
    await trio.sleep_forever()


# ---- Commands -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["bash", "-c", "make all"], "make all"),
        (("bash", "-c", "make all"), "make all"),
        (("bash", "-c"), "bash -c"),
        (("make", "all of it"), "make 'all of it'"),
    ],
)
async def test_a_command_is_known_by_its_line(
    argv: Sequence[str], line: str, autojump_clock: trio.testing.MockClock
) -> None:
    env = fake_env({line: 7})
    tree = await env.processes.spawn(argv, cwd=None, env={}, marker="M")
    assert tree.command == line
    assert (await tree.wait_exit()).code == 7
    await tree.aclose()


async def test_a_string_is_printed_and_a_number_is_the_exit_code(
    autojump_clock: trio.testing.MockClock,
) -> None:
    env = fake_env({"say": "hello\n", "true": 0, "false": 3})
    said = await run(env, Shell("say"))
    assert (said.status, said.exit_code, said.result) == (COMPLETED, 0, "hello\n")
    assert said.output_file == Path("/tasks/s00000001.output")
    assert env.files.contents("/tasks/s00000001.output") == b"hello\n"
    env = fake_env({"false": 3})
    failed = await run(env, Shell("false"))
    assert (failed.status, failed.exit_code, failed.result) == (FAILED, 3, "")


async def test_a_script_takes_its_time_and_none_of_ours(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P9: an hour passes when nobody has anything else to do."""

    async def build(program: Program) -> int:
        await program.print("begin\n")
        await trio.sleep(3600)
        await program.print("end\n")
        return 2

    done = await run(fake_env({"make": build}), Shell("make"))
    assert (done.status, done.exit_code, done.result) == (FAILED, 2, "begin\nend\n")
    assert done.started_at is not None
    assert done.ended_at is not None
    assert done.ended_at - done.started_at == timedelta(hours=1)


async def test_commands_may_be_a_function_of_the_command_line(
    autojump_clock: trio.testing.MockClock,
) -> None:
    done = await run(fake_env(lambda line: f"this was {line}\n"), Shell("anything"))
    assert done.result == "this was anything\n"


async def test_a_command_of_which_nothing_was_said_fails_by_name(
    autojump_clock: trio.testing.MockClock,
) -> None:
    done = await run(fake_env({"make": 0}), Shell("mkae"))
    assert done.status is FAILED
    assert done.error is not None
    assert "'mkae'" in done.error.message
    assert "'make'" in done.error.message


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOENT, errno.E2BIG])
async def test_a_command_may_fail_to_start(
    autojump_clock: trio.testing.MockClock, number: int
) -> None:
    """SH11."""
    env = fake_env({"x": OSError(number, os.strerror(number))})
    done = await run(env, Shell("x"))
    assert (done.status, done.exit_code) == (FAILED, None)
    assert done.error is not None
    assert os.strerror(number) in done.error.message
    assert env.processes.started == []


async def raises(program: Program) -> None:
    raise AssertionError("so not")


async def test_a_mistake_in_a_script_comes_out_of_the_runtime(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P10: it is the test that is wrong, and no command that fails."""
    done = None
    with pytest.raises(ExceptionGroup) as caught:
        async with on(fake_env({"x": raises})) as runtime:
            done = await (await runtime.launch(Shell("x"))).wait()
    (error,) = caught.value.exceptions
    assert isinstance(error, AssertionError) and str(error) == "so not"
    assert done is not None and done.error is not None
    assert (done.status, done.exit_code) == (FAILED, None)
    assert "its script raised AssertionError: so not" in done.error.message
    assert "AssertionError: so not" in str(done.result)


async def test_every_mistake_is_raised_once_when_all_is_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def forks(program: Program) -> None:
        program.fork(raises)
        await trio.sleep_forever()

    processes = fake_env({"x": raises, "y": forks}).processes
    trees = [
        await processes.spawn([line], cwd=None, env={}, marker="M") for line in "xy"
    ]
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(ExceptionGroup, match="scripts") as caught:
        await processes.aclose()
    assert [str(error) for error in caught.value.exceptions] == ["so not", "so not"]
    for tree in trees:
        assert await tree.members() == ()
    await processes.aclose()


@pytest.mark.parametrize("code", [True, "0", 256, -65])
async def test_what_is_no_exit_code_is_a_mistake(
    autojump_clock: trio.testing.MockClock, code: int
) -> None:
    async def wrong(program: Program) -> int:
        return code

    with pytest.raises(ExceptionGroup) as caught:
        await run(fake_env({"x": wrong}), Shell("x"))
    (error,) = caught.value.exceptions
    assert isinstance(error, TypeError | ValueError)
    assert f"not {code!r}" in str(error)


def not_async(program: Program) -> int:
    return 0


@pytest.mark.parametrize(
    ("commands", "error", "names"),
    [
        ({"make": 3.0}, TypeError, r"commands\['make'\].*3.0"),
        ({"make": True}, TypeError, r"commands\['make'\].*True"),
        ({"make": None}, TypeError, r"commands\['make'\].*None"),
        ({"make": ["a"]}, TypeError, r"commands\['make'\].*\['a'\]"),
        ({"make": b"out"}, TypeError, r"commands\['make'\].*b'out'"),
        ({"make": not_async}, TypeError, r"commands\['make'\].*async.*not_async"),
        ({"make": FileNotFoundError}, TypeError, r"commands\['make'\].*NotFound"),
        ({"make": LookupError("x")}, TypeError, r"commands\['make'\].*LookupError"),
        ({"make": 256}, ValueError, r"commands\['make'\].*256"),
        ({"make": OSError("full")}, ValueError, r"commands\['make'\].*errno.*full"),
        ({7: "out"}, TypeError, "commands.*key.*7"),
        (["make"], TypeError, r"commands.*mapping.*\['make'\]"),
        ("make", TypeError, "commands.*mapping.*'make'"),
        (7, TypeError, "commands.*mapping.*7"),
    ],
)
def test_what_no_command_does_is_refused_at_once(
    commands: Any, error: type[Exception], names: str
) -> None:
    with pytest.raises(error, match=names):
        fake_env(commands)


async def test_a_script_may_be_an_object_or_have_arguments_already(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Exits:
        async def __call__(self, program: Program) -> int:
            return 4

    async def exits(code: int, program: Program) -> int:
        return code

    env = fake_env({"object": Exits(), "partial": partial(exits, 5)})
    assert (await run(env, Shell("object"))).exit_code == 4
    env = fake_env({"object": Exits(), "partial": partial(exits, 5)})
    assert (await run(env, Shell("partial"))).exit_code == 5


async def test_what_a_function_of_the_command_line_returns_is_checked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    commands: Any = lambda line: None  # noqa: E731
    done = await run(fake_env(commands), Shell("make"))
    assert done.status is FAILED and done.error is not None
    assert done.error.type == "TypeError"
    assert "commands['make']" in done.error.message


async def test_a_script_sees_what_it_was_started_with(
    autojump_clock: trio.testing.MockClock,
) -> None:
    seen: list[object] = []

    async def look(program: Program) -> None:
        seen.extend([program.command, program.cwd, dict(program.env)])

    env = fake_env({"look": look}, environment={"HOME": "/home"})
    await run(env, Shell("look", cwd="/srv", env={"CI": "1"}))
    command, cwd, variables = seen
    assert (command, cwd) == ("look", "/srv")
    assert isinstance(variables, dict)
    assert variables["HOME"] == "/home"
    assert variables["CI"] == "1"
    assert variables["TERM"] == "dumb"
    (tree,) = env.processes.started
    assert (tree.command, tree.cwd) == ("look", "/srv")


# ---- Ends -----------------------------------------------------------------------


async def test_a_stop_leaves_the_grace_and_kills_then(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """SH13: in virtual time, to the second."""
    async with on(fake_env({"server": stubborn})) as runtime:
        task = await runtime.launch(Shell("server", grace=7.0))
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        result = await runtime.stop(task.id)
        assert trio.current_time() - began == 7.0
    assert result.survivors == ()
    assert (result.snapshot.status, result.snapshot.signal) == (KILLED, signal.SIGKILL)


async def test_a_script_that_shields_itself_survives_its_kill_for_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P1: as a process in an uninterruptible system call does."""

    async def stuck(program: Program) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    async with on(fake_env({"x": stuck})) as runtime:
        task = await runtime.launch(Shell("x", grace=1.0, linger=0.0))
        await trio.testing.wait_all_tasks_blocked()
        result = await runtime.stop(task.id)
        assert result.survivors
        assert not result.snapshot.status.is_terminal
        done = await task.wait()
        assert trio.current_time() >= 60
        assert (done.status, done.signal) == (KILLED, signal.SIGKILL)


@pytest.mark.parametrize("linger", [0.0, 3.0])
async def test_what_a_command_leaves_behind_is_ended_after_its_linger(
    linger: float, autojump_clock: trio.testing.MockClock
) -> None:
    """SH20: also where that is no time at all."""

    async def leaves(program: Program) -> None:
        program.fork(stubborn)
        await program.print("done\n")

    began = trio.current_time()
    env = fake_env({"x": leaves})
    done = await run(env, Shell("x", linger=linger))
    assert (done.status, done.result) == (COMPLETED, "done\n")
    assert trio.current_time() - began == linger
    assert await env.processes.started[0].members() == ()


@pytest.mark.parametrize("grace", [0.0, 3.0])
async def test_a_command_that_ignores_a_stop_is_killed_after_its_grace(
    grace: float, autojump_clock: trio.testing.MockClock
) -> None:
    """P1: also where that is no time at all."""
    began = trio.current_time()
    async with on(fake_env({"x": stubborn})) as runtime:
        task = await runtime.launch(Shell("x", grace=grace))
        await trio.testing.wait_all_tasks_blocked()
        result = await runtime.stop(task.id)
        assert (result.survivors, result.snapshot.signal) == ((), signal.SIGKILL)
        assert trio.current_time() - began == grace


async def test_a_deadline_passes_in_virtual_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def hang(program: Program) -> None:
        await trio.sleep_forever()

    done = await run(fake_env({"x": hang}), Shell("x", deadline=900.0))
    assert done.status is FAILED
    assert trio.current_time() == 900.0


async def test_what_forks_while_it_is_killed_dies_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P1."""

    async def chain(program: Program) -> None:
        try:
            await trio.sleep_forever()
        finally:
            program.fork(stubborn)

    env = fake_env({"x": chain})
    async with on(env) as runtime:
        task = await runtime.launch(Shell("x", grace=0.0))
        await trio.testing.wait_all_tasks_blocked()
        result = await runtime.stop(task.id)
    assert result.survivors == ()
    assert await env.processes.started[0].members() == ()


async def test_leaving_the_runtime_leaves_no_script(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P1: nor any thread or descriptor."""
    ended: list[str] = []

    async def server(program: Program) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(program.command)

    before = trio.lowlevel.current_statistics().tasks_living, threading.active_count()
    async with on(fake_env({"a": server, "b": server})) as runtime:
        for line in ("a", "b"):
            await runtime.launch(Shell(line))
        await trio.testing.wait_all_tasks_blocked()
        assert threading.active_count() <= before[1]
    assert sorted(ended) == ["a", "b"]
    await trio.testing.wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living <= before[0]


async def test_a_disk_that_fails_fails_the_task(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """SH9."""

    async def talks(program: Program) -> None:
        while True:
            await program.print("more\n")
            await trio.sleep(1)

    env = fake_env({"x": talks})
    async with on(env) as runtime:
        task = await runtime.launch(Shell("x"))
        await trio.sleep(5.5)
        env.files.write_error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = await task.wait()
    assert done.status is FAILED
    assert done.error is not None
    assert os.strerror(errno.ENOSPC) in done.error.message
    assert done.output_file is not None
    assert env.files.names("/tasks") == ["journal.jsonl", done.output_file.name]


# ---- The same each time ------------------------------------------------------------


def test_two_runs_of_a_test_are_alike_to_the_letter() -> None:
    """P11: ids, times and envelopes."""

    async def flaky(program: Program) -> int:
        await program.print("try\n")
        await trio.sleep(2.5)
        return 1

    async def scenario() -> list[object]:
        env = fake_env({"flaky": flaky, "say": "hello\n"})
        async with on(env) as runtime:
            task = await runtime.launch(
                Shell("flaky"), restart="transient", intensity=3, period=60.0
            )
            await trio.sleep(1)
            other = await runtime.launch(Shell("say"))
            await runtime.wait_idle()
            seen: list[object] = [task.snapshot(), other.snapshot()]
        seen += [note.xml for note in runtime.notifications.drain()]
        return seen

    def play() -> list[object]:
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(scenario, clock=clock)

    first = play()
    assert first == play()
    assert len(first) == 4


# ---- Probes --------------------------------------------------------------------


async def squares(ctx: Context[int], to: ActorRef[int]) -> None:
    async for number in ctx.mailbox:
        await to.send(number * number)


async def test_a_probe_hands_over_what_it_is_told_in_order() -> None:
    probe = Probe[int]()
    with trio.fail_after(30):
        async with open_supervisor(children=[]) as sup:
            ref = await sup.start_child(child("probe", probe.run))
            worker = await sup.start_child(child("worker", squares, ref))
            for number in range(5):
                worker.tell(number)
            assert [await probe.receive() for _ in range(5)] == [0, 1, 4, 9, 16]
            with trio.CancelScope() as scope:
                scope.cancel()
                await probe.receive()
            worker.tell(5)
            assert await probe.receive() == 25
    assert probe.received == [0, 1, 4, 9, 16, 25]


async def test_a_probe_outlives_its_incarnations() -> None:
    probe = Probe[str]()
    with trio.fail_after(30):
        async with open_supervisor(children=[]) as sup:
            ref = await sup.start_child(child("probe", probe.run))
            ref.tell("one")
            assert await probe.receive() == "one"
            await sup.terminate_child("probe")
            await sup.restart_child("probe")
            ref.tell("two")
            assert await probe.receive() == "two"
    assert probe.starts == 2


async def test_wait_event_finds_the_next_of_a_kind_and_leaves_the_rest(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with on(fake_env({"a": 0, "b": 1})) as runtime:
        events = runtime.events.subscribe()
        a = await runtime.launch(Shell("a"))
        b = await runtime.launch(Shell("b"))
        assert (await wait_event(events, TaskStarted)).task_id == a.id
        ended = await wait_event(
            events, lambda e: isinstance(e, TaskEnded) and e.task_id == b.id
        )
        assert isinstance(ended, TaskEnded)
        assert ended.status == "failed"


async def test_wait_event_says_when_there_will_be_none(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with on(fake_env({"a": 0})) as runtime:
        events = runtime.events.subscribe()
        await runtime.launch(Shell("a"))
        await runtime.wait_idle()
    with pytest.raises(LookupError, match="TaskProgress"):
        await wait_event(events, TaskProgress)


@pytest.mark.parametrize(
    ("argument", "code", "printed"),
    [(2, 2, ""), (None, 0, ""), (0, 0, ""), (256 + 7, 7, ""), ("no", 1, "no\n")],
)
async def test_a_script_may_exit_as_a_program_does(
    argument: Any, code: int, printed: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def script(program: Program) -> None:
        await trio.lowlevel.checkpoint()
        raise SystemExit(argument)

    done = await run(fake_env({"x": script}), Shell("x"))
    assert (done.exit_code, done.result) == (code, printed)
    assert done.status is (FAILED if code else COMPLETED)


async def test_an_interrupt_in_a_script_leaves_the_runtime_in_good_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """P10: it is for whoever runs the test, and no internal error of trio."""

    async def script(program: Program) -> None:
        await trio.sleep(1)
        raise KeyboardInterrupt

    ended: list[TaskSnapshot] = []
    with pytest.raises(KeyboardInterrupt):
        async with on(fake_env({"x": script})) as runtime:
            ended.append(await (await runtime.launch(Shell("x"))).wait())
    assert (ended[0].status, ended[0].signal) == (FAILED, signal.SIGINT)
