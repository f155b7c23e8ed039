"""Tapes as files of a repository: what was found once is tried again first.

A file is JSON that anybody can read: the tape, what was wrong, and with which versions.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from hashlib import blake2b
from os import PathLike, fspath, path
from typing import Any, cast

import trio

from .._errors import TapeDoesNotFit
from .._steering.run import LIMIT, Run
from .._steering.simulate import Program, simulate
from .._steering.tape import Tape
from .report import Campaign, SweepReport


def save(report: SweepReport | Campaign, folder: str | PathLike[str]) -> list[str]:
    """Write a file for each thing that a report has found; return their paths.

    The folder must be there. A file that exists is written anew; its name is made of
    its tape, so the same finding has the same file.
    """
    import json

    found: list[tuple[str, str, Tape]] = []
    if isinstance(report, Campaign):
        found = [("", it.error, it.tape) for it in report.failures]
    else:
        found = [(it.site, it.error, it.tape) for it in report.rows]
    paths: list[str] = []
    for site, error, tape in found:
        name = blake2b(str(tape).encode(), digest_size=4).hexdigest()
        data: dict[str, Any] = {
            **tape.to_json(),
            "site": site,
            "error": error,
            "words": tape.words(),
            "versions": {"python": sys.version.split()[0], "trio": trio.__version__},
        }
        paths.append(path.join(fspath(folder), f"{name}.json"))
        with open(paths[-1], "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.write("\n")
    return paths


def load(file: str | PathLike[str]) -> Tape:
    """Return the tape of a file that `save` has written.

    Raises TapeDoesNotFit for one of another schema, and ValueError for what is none.
    """
    import json

    with open(file, encoding="utf-8") as opened:
        data: Any = json.load(opened)
    if not isinstance(data, dict):
        raise ValueError(f"{fspath(file)} is no tape")
    return Tape.from_json(cast("Mapping[str, Any]", data))


def replay(program: Program, file: str | PathLike[str], *, limit: float = LIMIT) -> Run:
    """Run a program by a tape that `save` has written, and return what came of it.

    It is mended if nothing is wrong in the run. Raises TapeDoesNotFit, which names the
    file, where the program has changed so much that this says nothing.
    """
    try:
        return simulate(program, tape=load(file), limit=limit)
    except TapeDoesNotFit as error:
        raise TapeDoesNotFit(f"{fspath(file)}: {error}") from error
