"""``python -m bench.load``: many shells that print as fast as they can, at once.

Shows how long the longest step of the event loop was, how late a task woke up
that only wanted a turn, and how unequally the shells were served.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from time import perf_counter, thread_time

import attrs
import trio

from actors.shell import Shell
from supervisor.runtime import TaskProgress, open_runtime

LONGEST_STEP_MS = 50.0
"""The target for the longest step."""


class Steps(trio.abc.Instrument):
    """Measures the steps of all tasks, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        """By the clock on the wall: with the time that other processes took."""
        self.longest_cpu = 0.0
        """By our own use of a processor."""
        self.longest_task = ""
        self._began = 0.0  # the first step ends without having begun
        self._began_cpu = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began, self._began_cpu = perf_counter(), thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if not self._began:
            return
        self.longest_cpu = max(self.longest_cpu, thread_time() - self._began_cpu)
        took = perf_counter() - self._began
        if took > self.longest:
            self.longest, self.longest_task = took, task.name


@attrs.frozen
class Load:
    """What came of it."""

    steps: Steps
    latest: float
    """Seconds by which a task that wanted a turn every 10 ms was late at most."""
    written: list[int]
    """Bytes of output of each shell."""
    seconds: float


def main(arguments: list[str] | None = None) -> int:
    """Be the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.load")
    parser.description = "Run many shells that print as fast as they can."
    parser.add_argument("--shells", type=int, default=200, metavar="N")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S")
    options = parser.parse_args(arguments)
    if options.shells < 1:
        parser.error(f"--shells must be 1 or more, not {options.shells}")
    if not 0 < options.seconds < 3600:
        parser.error(f"--seconds must be between 0 and 3600, not {options.seconds}")
    with tempfile.TemporaryDirectory() as directory:
        load = trio.run(_load, Path(directory), options.shells, options.seconds)
    written = sorted(load.written)
    print(
        f"{options.shells} shells printed {sum(written) / 1e6:.0f} MB in {load.seconds:.1f} s:"
        f" {written[0] / 1e3:.0f} kB the least, {written[len(written) // 2] / 1e3:.0f} kB"
        f" the median, {written[-1] / 1e3:.0f} kB the most"
    )
    print(
        f"longest step {load.steps.longest * 1e3:.1f} ms on the wall"
        f" ({load.steps.longest_task}), {load.steps.longest_cpu * 1e3:.1f} ms of processor;"
        f" target {LONGEST_STEP_MS:g} ms"
    )
    print(f"a task that wanted a turn waited {load.latest * 1e3:.0f} ms at most")
    starved = written[0] == 0
    if starved:
        print("a shell starved: nothing of its output was kept")
    return 1 if starved or load.steps.longest_cpu * 1e3 > LONGEST_STEP_MS else 0


async def _load(directory: Path, shells: int, seconds: float) -> Load:
    steps = Steps()
    latest = 0.0
    async with open_runtime(directory) as runtime:
        events = runtime.events.subscribe()
        tasks = [
            await runtime.launch(Shell("exec yes all work and no play", grace=1.0))
            for _ in range(shells)
        ]
        silent = {task.id for task in tasks}
        async for event in events:
            if isinstance(event, TaskProgress):
                silent.discard(event.task_id)
                if not silent:
                    break
        trio.lowlevel.add_instrument(steps)
        began = trio.current_time()
        while (now := trio.current_time()) < began + seconds:
            await trio.sleep(0.01)
            latest = max(latest, trio.current_time() - now - 0.01)
        trio.lowlevel.remove_instrument(steps)
        ran = trio.current_time() - began
        written = [
            0
            if (progress := task.snapshot().progress) is None
            else progress.bytes_written
            for task in tasks
        ]
        await runtime.stop_all()
    return Load(steps, latest, written, ran)


if __name__ == "__main__":
    sys.exit(main())
