"""Tapes as files of a repository: what was found once is tried again first.

A file is JSON that anybody can read: the tape, what was wrong, and with which versions.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from os import PathLike, fspath, getpid, listdir, path, remove, replace, sep
from typing import Any, cast

import trio

from .._errors import TapeDoesNotFit
from .._steering import sites
from .._steering.run import LIMIT, Run
from .._steering.simulate import Errors, Program, is_given, played
from .._steering.tape import Tape
from .._steering.targets import file_of, function_of
from .again import place_of, replay_line, shortest
from .report import Campaign, Failure, SweepReport, wrong_in


def save(
    report: SweepReport | Campaign, folder: str | PathLike[str], *, of: str = ""
) -> list[str]:
    """Write a file for each thing that a report has found; return their paths.

    The folder must be there. The name of a file is made of its tape and of ``of``, so
    the same finding has the same file, and one that is there stays as it is. ``of`` says
    whose the tapes are, where a folder has those of many tests or programs.
    """
    import json

    found: list[tuple[str, str, Tape]] = []
    if isinstance(report, Campaign):
        found = [("", it.error, it.tape) for it in report.failures]
    else:
        found = [(it.site, it.error, it.tape) for it in report.rows]
    paths: list[str] = []
    for site, error, tape in found:
        whose = f"{of}{tape}".encode(
            "utf-8", "surrogatepass"
        )  # A path may be any bytes.
        name = blake2b(whose, digest_size=4).hexdigest()
        data: dict[str, Any] = {
            **({"of": of} if of else {}),
            **tape.to_json(),
            "site": site,
            "error": error,
            "words": tape.words(),
            "versions": {"python": sys.version.split()[0], "trio": trio.__version__},
        }
        paths.append(path.join(fspath(folder), f"{name}.json"))
        if _has(paths[-1], tape):
            continue
        part = f"{paths[-1]}.{getpid()}"  # Others may be reading, as workers of xdist.
        try:
            with open(part, "w", encoding="utf-8") as file:
                json.dump(data, file, indent=1)
                file.write("\n")
            replace(part, paths[-1])
        except OSError:
            with suppress(OSError):
                remove(part)
            raise
    return paths


def _has(file: str, tape: Tape) -> bool:
    try:
        return load(file) == tape
    except (OSError, ValueError, TapeDoesNotFit):
        return False


def owner(program: Program, folder: str | PathLike[str]) -> str:
    """Return whose the tapes of a program are: its file, as it is seen from where the
    folder is, and its name in it; with what a `partial` gives it."""
    fn, given = function_of(program), ""
    if isinstance(program, partial):
        given = sites.ADDRESS.sub("", f" {program.args!r} {program.keywords!r}")
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    return f"{file_from(file_of(program) or '', folder)}:{name}{given}"


def file_from(file: str, folder: str | PathLike[str]) -> str:
    """Return a file as it is seen from where a folder is."""
    try:
        file = path.relpath(file, path.dirname(path.abspath(folder)))
    except (ValueError, OSError):  # Another drive, no file, or this folder is gone.
        pass
    return file.replace(sep, "/")


def load(file: str | PathLike[str]) -> Tape:
    """Return the tape of a file that `save` has written.

    Raises TapeDoesNotFit for one of another schema, and ValueError for what is none;
    both name the file.
    """
    return _tape(file, _read(file))


def _read(file: str | PathLike[str]) -> Any:
    import json

    try:
        if path.exists(file) and not path.isfile(file):
            raise ValueError("it is no file")  # A pipe would be waited for.
        with open(file, encoding="utf-8") as opened:
            return json.load(opened)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{fspath(file)} is no tape: {error}") from error


def _tape(file: str | PathLike[str], data: Any) -> Tape:
    try:
        return Tape.from_json(data)
    except (ValueError, TapeDoesNotFit) as error:
        raise type(error)(f"{fspath(file)}: {error}") from error


def replay(
    program: Program,
    file: str | PathLike[str],
    *,
    limit: float = LIMIT,
    error: Errors | None = None,
) -> Run:
    """Run a program by a tape that `save` has written, and return what came of it;
    ``limit`` and ``error`` are those of `simulate`.

    It is mended if nothing is wrong in the run. Raises TapeDoesNotFit, which names the
    file and what it is of, where the program is another or has changed so much that
    this says nothing.
    """
    data = _read(file)
    tape = _tape(file, data)
    try:
        return _again(program, file, tape, limit, error)
    except TapeDoesNotFit as raised:
        of = data.get("of")
        whose = f"; the tape is of {of}" if of else ""
        raise TapeDoesNotFit(f"{raised}{whose}") from raised


def _again(
    program: Program,
    file: str | PathLike[str],
    tape: Tape,
    limit: float,
    error: Errors | None,
) -> Run:
    try:
        return played(program, tape, limit=limit, error=error)
    except TapeDoesNotFit as raised:
        raise TapeDoesNotFit(f"{fspath(file)}: {raised}") from raised


def failures_of(program: Program, run: Run, by: str = "") -> list[Failure]:
    """Return what is wrong in a run that was replayed: one failure, or none.

    ``by`` says by which tape, if it has a file.
    """
    wrong = wrong_in(run)
    if not wrong:
        return []
    text = "\n".join(it.text for it in wrong)
    tape = f"the tape {by}" if by else "a tape"
    place = wrong[0].place or place_of(program)
    line = replay_line(program, run.tape)
    return [Failure(run.tape.seed, text, run.tape, line, place=place, by=tape)]


def try_corpus(
    program: Program,
    folder: str | PathLike[str],
    of: str,
    *,
    limit: float = LIMIT,
    error: Errors | None = None,
) -> tuple[Campaign, list[str]]:
    """Run a program by each tape of a folder that is its; return what came of it, and
    which files say nothing any more or cannot be read, and why.

    What is JSON and no tape of ``of`` is somebody else's. Tapes of one site that end in
    the same wrong are one failure, as they were when they were found.
    """
    alike: dict[tuple[str, str], list[tuple[Run, str]]] = {}
    misfits: list[str] = []
    digests: list[str] = []
    names: Sequence[str] = ()
    try:
        names = sorted(listdir(folder)) if path.isdir(folder) else ()
    except OSError as unread:
        misfits.append(f"{unread}. No tape of it was tried")
    for name in names:
        file = path.join(fspath(folder), name)
        try:
            data = _read(file) if name.endswith(".json") else None
            if not isinstance(data, dict) or cast("Any", data).get("of") != of:
                continue
            tape = _tape(file, data)
            if error is None and is_given(tape):
                continue  # The sweep that is given its error tries it.
        except (OSError, ValueError, TapeDoesNotFit) as unread:
            misfits.append(f"{unread}. Mend the file, or delete it")
            continue
        try:
            run = _again(program, file, tape, limit, error)
        except TapeDoesNotFit as misfit:
            misfits.append(
                f"{misfit}. It was not tried: delete the file if that is to stay"
            )
            continue
        digests.append(run.digest)
        if wrong := wrong_in(run):
            key = str(cast("Any", data).get("site")), wrong[0].kind
            alike.setdefault(key, []).append((run, shortest(file)))
    runs, distinct = len(digests), len({*digests})
    failures: list[Failure] = []
    for (run, first), *others in alike.values():
        more = ", ".join(path.basename(it) for _, it in others)
        by = f"{first}, and likewise {more}" if more else first
        failures += failures_of(program, run, by)
    failed = sum(map(len, alike.values()))
    report = Campaign(runs, distinct, failures, failed=failed, what="tapes kept")
    return report, misfits
