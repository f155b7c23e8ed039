"""Does a store survive a kill at any moment? One recovery for each crash that can be.

The store counts in a log; at times it puts the sum into a file and empties the log.
"""

from __future__ import annotations

from pathlib import Path

import trio

from actors.env import Files
from supervisor.simulation import Sim
from supervisor.simulation.crash import Disk, crash_everywhere

SUM, LOG = Path("/sum"), Path("/log")


class Counter:
    def __init__(self, files: Files) -> None:
        self.files = files

    def add(self, number: int) -> None:
        self.files.append_lines(LOG, b"%d\n" % number, durable=True)

    def total(self) -> int:
        lines = self.files.read_at(LOG, 0, 999).split(b"\n")[:-1]
        return sum(map(int, lines)) + int(self.files.read_at(SUM, 0, 99) or 0)

    def compact(self) -> None:
        self.files.replace(SUM, b"%d" % self.total(), durable=True)
        self.files.remove(LOG)  # A crash before this, and all of it counts twice.


async def program(sim: Sim, disk: Disk) -> None:
    for number in (1, 20, 300):
        Counter(disk.files).add(number)
        disk.tell(number)  # From now on somebody relies on it.
        await trio.sleep(1)
        Counter(disk.files).compact()


async def recover(sim: Sim, disk: Disk) -> None:
    await trio.lowlevel.checkpoint()
    total, taken = Counter(disk.files).total(), len(disk.told)
    assert total in (0, 1, 21, 321)[taken : taken + 2], f"{total} after {disk.told}"


if __name__ == "__main__":
    print(crash_everywhere(program, recover, check=False))
