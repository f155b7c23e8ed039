"""Tapes as files of a repository: what was found once is tried again first.

A file is JSON that anybody can read: the tape, what was wrong, and with which versions.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from hashlib import blake2b
from os import PathLike, fspath, getpid, listdir, path, replace
from typing import Any, cast

import trio

from .._errors import TapeDoesNotFit
from .._steering.run import LIMIT, Run, session
from .._steering.simulate import Errors, Program, does_not_fit, replayed
from .._steering.tape import Tape
from .again import place_of, replay_line
from .report import Campaign, Failure, SweepReport, wrong_in


def save(
    report: SweepReport | Campaign, folder: str | PathLike[str], *, of: str = ""
) -> list[str]:
    """Write a file for each thing that a report has found; return their paths.

    The folder must be there. A file that exists is written anew; its name is made of
    its tape and of ``of``, so the same finding has the same file. ``of`` says whose the
    tapes are, where a folder has those of many tests or programs.
    """
    import json

    found: list[tuple[str, str, Tape]] = []
    if isinstance(report, Campaign):
        found = [("", it.error, it.tape) for it in report.failures]
    else:
        found = [(it.site, it.error, it.tape) for it in report.rows]
    paths: list[str] = []
    for site, error, tape in found:
        name = blake2b(f"{of}{tape}".encode(), digest_size=4).hexdigest()
        data: dict[str, Any] = {
            **({"of": of} if of else {}),
            **tape.to_json(),
            "site": site,
            "error": error,
            "words": tape.words(),
            "versions": {"python": sys.version.split()[0], "trio": trio.__version__},
        }
        paths.append(path.join(fspath(folder), f"{name}.json"))
        part = f"{paths[-1]}.{getpid()}"  # Others may be reading, as workers of xdist.
        with open(part, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.write("\n")
        replace(part, paths[-1])
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
    return _again(program, file, limit, None)


def _again(
    program: Program, file: str | PathLike[str], limit: float, error: Errors | None
) -> Run:
    tape = load(file)
    try:
        with session():
            run, _ = replayed(program, tape, limit=limit, error=error)
        if misfit := does_not_fit(tape, run):
            raise TapeDoesNotFit(misfit)
        return run
    except TapeDoesNotFit as raised:
        raise TapeDoesNotFit(f"{fspath(file)}: {raised}") from raised


def corpus(folder: str | PathLike[str], of: str) -> list[str]:
    """Return the files of a folder that `save` has written for somebody, by name.

    What is no tape, or cannot be read, is somebody else's.
    """
    import json

    mine: list[str] = []
    if not path.isdir(folder):
        return mine
    for name in sorted(listdir(folder)):
        file = path.join(fspath(folder), name)
        if name.endswith(".json"):
            try:
                with open(file, encoding="utf-8") as opened:
                    data: Any = json.load(opened)
            except (OSError, ValueError):
                continue
            if isinstance(data, dict) and cast("Any", data).get("of") == of:
                mine.append(file)
    return mine


def try_corpus(
    program: Program,
    folder: str | PathLike[str],
    of: str,
    *,
    limit: float = LIMIT,
    error: Errors | None = None,
) -> tuple[Campaign, list[str]]:
    """Run a program by each tape of a folder that is its; return what came of it, and
    why some say nothing any more."""
    failures: list[Failure] = []
    misfits: list[str] = []
    digests: set[str] = set()
    files = corpus(folder, of)
    for file in files:
        try:
            run = _again(program, file, limit, error)
        except TapeDoesNotFit as misfit:
            misfits.append(
                f"{misfit}. Nothing is known of it any more: delete the file"
            )
            continue
        digests.add(run.digest)
        if wrong := wrong_in(run):
            text = "\n".join([*(it.text for it in wrong), f"(again, by {file})"])
            line, place = replay_line(program, run.tape), wrong[0].place
            failures.append(
                Failure(
                    run.tape.seed,
                    text,
                    run.tape,
                    line,
                    place=place or place_of(program),
                )
            )
    runs = len(files) - len(misfits)
    report = Campaign(
        runs, len(digests), failures, failed=len(failures), what="tapes kept"
    )
    return report, misfits
