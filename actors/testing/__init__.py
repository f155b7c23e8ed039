"""What a user's own tests need: a world in memory, and ways to watch it.

`fake_env` makes an `Env` without processes, files or real time. The commands are
scripts of the test, time is trio's, and names count up. The runtime on it is the real
one, and so is `actors.shell.Shell`. Only what lies beyond the seam is replaced. A test
of ten minutes of waiting takes no time::

    async def test_a_failed_build_is_reported(autojump_clock):
        async def build(program):
            await program.print("compiling\\n")
            await trio.sleep(600)
            return 2

        env = fake_env({"make": build, "make clean": "removed all\\n"})
        async with open_runtime("tasks", env=env) as runtime:
            task = await runtime.launch(Shell("make"))
            done = await task.wait()
        assert (done.status, done.exit_code) == (TaskStatus.FAILED, 2)
        assert env.files.contents("tasks/s00000001.output") == b"compiling\\n"

That is a test for pytest with pytest-trio. It runs if pytest's configuration says
``trio_mode = true``, or under ``@pytest.mark.trio``. An error in a script, such as an
assertion that fails, comes out of the runtime's block.

`FaultPlan` lets the n-th call of an operation go wrong: a process that cannot be
started, a disk that is full, a clock that jumps.

`run_agent` runs an `actors.agent.Agent` with tools of the test and without a runtime,
and returns its result.

`Probe` is an actor that gives its messages to the test. `wait_event` finds the next
event of a kind.
"""

# General layout:
#
# _processes is the fake `Processes`, _commands what a test says of them, _program what
# a script sees of itself, _pipe what connects the two; _files is the fake `Files`, and
# _disk what they are on; _env puts them together with a clock and names; _faults is whom
# each of them asks what goes wrong, _plan the answer of a test; _probe looks at actors
# and events; _agents runs an agent.
# The same tests run against these and against the real ones, so that they agree.

from __future__ import annotations

from .._kernel.public import publish as _publish
from ._agents import run_agent
from ._commands import Unscripted
from ._disk import DiskImage, DiskStep, FakeDisk
from ._env import FakeEnv, fake_env
from ._faults import Faults
from ._files import FakeFiles
from ._plan import FaultPlan
from ._probe import Probe, wait_event
from ._program import Program

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "DiskImage",
    "DiskStep",
    "FakeDisk",
    "FakeEnv",
    "FakeFiles",
    "FaultPlan",
    "Faults",
    "Probe",
    "Program",
    "Unscripted",
    "fake_env",
    "run_agent",
    "wait_event",
]

_publish(globals())
