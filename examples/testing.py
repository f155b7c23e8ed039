"""Test your own code without processes: its commands are scripts, and the half
hour that they take passes at once.

`deploy` is the code under test; the two functions below it are what you would
write in a test file for pytest with pytest-trio. It runs them if its configuration
has ``trio_mode = true``, or if each has ``@pytest.mark.trio``.
"""

from __future__ import annotations

import trio
import trio.testing

from actors import TaskStatus
from actors.shell import Shell
from actors.testing import Program, fake_env, wait_event
from supervisor.runtime import Runtime, TaskEnded, open_runtime


async def deploy(runtime: Runtime) -> str:
    """Build with half an hour's patience, then start the server."""
    build = await runtime.launch(Shell("make", deadline=1800))
    done = await build.wait()
    if done.status is not TaskStatus.COMPLETED:
        return f"no server: {done.error.message if done.error else done.status.value}"
    await runtime.launch(Shell("./serve"), description="the server")
    return "the server is up"


async def test_a_build_that_hangs_starts_no_server(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def hangs(program: Program) -> None:
        program.ignore_sigterm()
        await program.print("linking\n")
        await trio.sleep_forever()

    env = fake_env({"make": hangs})
    async with open_runtime("tasks", env=env) as runtime:
        said = await deploy(runtime)
    assert said.startswith("no server")
    assert [tree.command for tree in env.processes.started] == ["make"]
    assert trio.current_time() == 1800 + 5  # the deadline, then the grace
    print(f"after {trio.current_time():.0f} s that took none: {said}")


async def test_a_server_that_crashes_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def serves(program: Program) -> int:
        await program.print("listening\n")
        await trio.sleep(86_400)
        return -11  # SIGSEGV

    env = fake_env({"make": "all done\n", "./serve": serves})
    async with open_runtime("tasks", env=env) as runtime:
        events = runtime.events.subscribe()
        assert await deploy(runtime) == "the server is up"
        await wait_event(events, lambda e: isinstance(e, TaskEnded) and e.signal == 11)
    told = [note.display for note in runtime.notifications.drain()]
    assert len(told) == 2
    print("the parent is told:", *told, sep="\n  ")


if __name__ == "__main__":
    # pytest-trio does this for each test that asks for its `autojump_clock`.
    for test in (
        test_a_build_that_hangs_starts_no_server,
        test_a_server_that_crashes_is_told,
    ):
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(test, clock, clock=clock)
