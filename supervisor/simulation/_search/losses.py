"""What a crash may leave of a disk: pure.

A crash comes before a change of the disk, or in the middle of it. Each way in which it
may leave the disk has a name, which a tape has:

``kill``         the program dies; all that was written is there
``torn-1``       of the write under way there is one byte; ``torn-half``, ``torn-last``
``power``        the power goes; there is what was synced, and nothing else
``power-names``  likewise, and all names are there: of a file that was renamed before it
                 was synced, the contents are not
``power-data``   likewise, and all contents; a name that was not synced is not there
``lost:FILE``    all is there but what was not synced of one file
``kept:FILE``    nothing is there that was not synced but one file's

In the name of a FILE a space, a comma and ``%`` are as in a URL: ``/a%20b``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from actors.testing import DiskImage, DiskStep, FakeDisk

Crash: TypeAlias = Literal["kill", "torn", "power"]

CRASHES: tuple[Crash, ...] = ("kill", "torn", "power")


def ways(
    image: DiskImage, step: DiskStep | None, crashes: Sequence[str]
) -> Iterator[str]:
    """Yield the names of all that a crash before a step, or in it, may leave."""
    if "kill" in crashes:
        yield "kill"
    if "torn" in crashes and step is not None:
        sizes = {_torn(way, len(step.data)): way for way in _TORN}
        yield from (way for size, way in sizes.items() if 0 < size < len(step.data))
    if "power" in crashes and not image.is_synced():
        yield from ("power", "power-names", "power-data")
        unsynced = [*image.unsynced()]
        if len(unsynced) > 1:
            for path in unsynced:
                yield f"lost:{_word(path)}"
                yield f"kept:{_word(path)}"


def left(image: DiskImage, step: DiskStep | None, way: str) -> FakeDisk:
    """Return what a crash of one of these names leaves."""
    if way == "kill":
        return image.killed()
    if way in _TORN and step is not None:
        return image.killed(step, _torn(way, len(step.data)))
    unsynced = [*image.unsynced()]
    kind, _, name = way.partition(":")
    of_one = {path for path in unsynced if _word(path) == name}
    match kind:
        case "power-data":
            return image.unpowered(names=False, kept=unsynced)
        case "lost":
            return image.unpowered(names=True, kept={*unsynced} - of_one)
        case "kept":
            return image.unpowered(names=True, kept=of_one)
        case _:
            return image.unpowered(names=way == "power-names")


_TORN = ("torn-last", "torn-half", "torn-1")


def _torn(way: str, size: int) -> int:
    return {"torn-1": 1, "torn-half": size // 2, "torn-last": size - 1}[way]


def _word(path: Path) -> str:
    """Return a path as a tape has it, which has words between spaces and commas: such
    letters as in a URL, so that no two paths are one word."""
    return re.sub(r"[\s,%]", _escaped, str(path))


def _escaped(letter: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in letter[0].encode())
