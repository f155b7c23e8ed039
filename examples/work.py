"""Write a `Work` of your own: a task that runs in this process, tells its
progress, writes output as a shell command does, and returns a result.

Two of them run: one only returns its result, the other writes its output too.
"""

from __future__ import annotations

import tempfile

import attrs
import trio

from actors import Context, Progress
from actors.output import OutputLog
from actors.work import Report
from supervisor.runtime import open_runtime


@attrs.frozen
class Sum:
    """Adds numbers; with ``verbose`` it writes down each step."""

    numbers: tuple[int, ...]
    verbose: bool = False
    task_type: str = "local_work"
    shutdown: float = 5.0

    @property
    def writes_output(self) -> bool:
        return self.verbose

    def describe(self) -> str:
        return f"the sum of {len(self.numbers)} numbers"

    async def run(self, ctx: Context[object], report: Report) -> int:
        if not self.verbose:
            return await self._add(report, None)
        assert report.output_file is not None
        before = report.output_bytes
        log = OutputLog(
            report.env.files.open_output(report.output_file),
            quota=1_000_000,
            used=before,
            disk=report.disk,
            on_warning=report.warn,
            on_output=report.output_changed,
        )
        report.log = log
        try:
            return await self._add(report, log)
        finally:
            # Also after a stop: it closes within 5 seconds, and shields itself.
            try:
                await log.aclose()  # noqa: ASYNC102
            finally:
                report.log = None
                report.output_bytes = before + log.bytes_written
                tail, report.output_truncated = log.tail()
                report.output_tail = tail.decode("utf-8", "replace")

    async def _add(self, report: Report, log: OutputLog | None) -> int:
        before = report.output_bytes
        total = 0
        for done, number in enumerate(self.numbers, 1):
            total += number
            await trio.sleep(0.01)  # in place of what takes long
            report.say(Progress(text=f"{done} of {len(self.numbers)}"))
            if log is not None:
                await log.write(f"{total}\n".encode())
                report.output_bytes = before + log.bytes_written
        return total


async def main(directory: str) -> None:
    async with open_runtime(directory) as runtime:
        silent = await runtime.launch(Sum((1, 2, 3)))
        verbose = await runtime.launch(Sum((1, 2, 3), verbose=True))
        for task in await runtime.wait_all([silent, verbose]):
            said = task.progress.text if task.progress else None
            print(f"{task.description}: {said}, result {task.result!r}")
        print("output:", verbose.read().text.split())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        trio.run(main, directory)
