"""The journal on a disk that fails: what was launched, handed over and acknowledged is
in it, or somebody is told that it is not, and nothing waits for ever."""

from __future__ import annotations

import errno
import logging
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from actors.shell import Shell
from actors.testing import FakeFiles
from supervisor._tasks.journal import writer
from supervisor.runtime import Runtime, Warned, open_runtime
from supervisor.simulation import Sim, fault_everywhere, simulate
from supervisor.simulation.crash import Disk
from tests.supervisor.tasks.test_journal_crashes import COMMANDS, DIRECTORY, Account


@pytest.fixture(autouse=True)
def _silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "supervisor")


@pytest.fixture(params=[False, True], ids=["whole", "compacted"])
def compacted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param:
        monkeypatch.setattr(writer, "_SMALL", 400)
        monkeypatch.setattr(writer, "_GROWN", 1)
    return bool(request.param)


@attrs.define
class Host:
    """Launches commands, and takes and acknowledges what is told of them."""

    sim: Sim
    disk: Disk
    runtime: Runtime
    durable: bool
    events: Any
    warnings: list[str] = attrs.Factory(list[str])
    taken: int = 0

    def is_warned(self) -> bool:
        """Whether somebody was told that the journal does not have it all."""
        told = [it for it in self.events.drain() if isinstance(it, Warned)]
        self.warnings += [it.text for it in told if "journal" in it.text]
        return bool(self.warnings)

    async def is_synced(self) -> bool:
        try:
            await self.runtime.synced()
        except OSError:
            is_synced = False
        else:
            is_synced = True
        assert is_synced or self.is_warned(), "it fails, and nobody is warned"
        return is_synced

    async def launch(self, command: str) -> None:
        task = await self.runtime.launch(Shell(command))
        self.disk.tell(("launched", task.id, "wake"))

    async def read(self) -> None:
        await self.runtime.wait_idle()
        for note in self.runtime.notifications.drain():
            self.disk.tell(("handed", note.id, note.task_id, note.status.value))
            self.taken += 1
            if self.taken % 3 == 1:
                continue
            self.disk.tell(("acking", note.id))
            note.ack()
            if await self.is_synced() if self.durable else not self.is_warned():
                self.disk.tell(("acked", note.id))

    async def recovered(self) -> None:
        """Hold what the next runtime finds, if it all ends here, against what was
        told."""
        image, world = self.disk.files.disk.image(), self.sim.env(COMMANDS)
        left = image.unpowered(names=False) if self.durable else image.killed()
        files = FakeFiles(left)
        env = attrs.evolve(world, files=files, ids=self.disk.env().ids)
        async with open_runtime(DIRECTORY, env=env) as runtime:
            await runtime.synced()
            notes = runtime.notifications.drain()
            Account(self.disk.told).check(runtime, notes)


async def works(sim: Sim, durable: bool) -> None:
    disk = Disk(sim)
    is_open = False
    try:
        async with open_runtime(
            DIRECTORY, env=disk.env(COMMANDS), durable=durable
        ) as runtime:
            is_open = True
            events = runtime.events.subscribe()
            host = Host(sim, disk, runtime, durable, events)
            with sim.within(60):
                for command in ("true", "fails", "true"):
                    await host.launch(command)
                await host.read()
                await host.launch("build")
                await host.read()
                if not host.is_warned():
                    await host.recovered()
                while not await host.is_synced():
                    await trio.sleep(1)
                # Whatever there was: from now on all is there.
                await host.recovered()
    except OSError as error:
        if is_open or not str(error.filename).startswith(str(DIRECTORY)):
            raise


def test_whichever_call_fails_what_was_said_is_there_or_told(compacted: bool) -> None:
    for durable in (False, True):
        program = partial(works, durable=durable)
        report = fault_everywhere(program, seams="files.*", schedules=1)
        assert report.points > (20 if durable or compacted else 10), report
        assert {"EIO", "ENOSPC"} <= {*report.arrivals}


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_fails_for_a_while_holds_up_nothing(
    durable: bool, code: int, compacted: bool
) -> None:
    """What could not be written is written when that is possible again."""

    async def program(sim: Sim) -> list[str]:
        disk = Disk(sim)
        async with open_runtime(
            DIRECTORY, env=disk.env(COMMANDS), durable=durable
        ) as runtime:
            events = runtime.events.subscribe()
            host = Host(sim, disk, runtime, durable, events)
            await host.launch("true")
            await host.read()
            disk.files.write_error = OSError(code, "the disk has failed")
            with sim.within(5):
                for command in ("true", "fails", "true"):
                    # Its output cannot be made: it fails, and that is told.
                    await host.launch(command)
                await host.read()
                assert not await host.is_synced()
            await trio.sleep(3)
            disk.files.write_error = None
            with sim.within(5):
                while not await host.is_synced():
                    await trio.sleep(0.5)
            await host.recovered()
            host.is_warned()
        return host.warnings

    run = simulate(program)
    assert run.error is None
    assert len([it for it in run.value or [] if "cannot be written" in it]) == 1
