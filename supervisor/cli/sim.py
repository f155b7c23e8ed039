"""``trio-supervisor sim``: run a trio program under schedules and faults that are
decided, and tell what is wrong."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from ..simulation import (
    Campaign,
    NotDeterministic,
    Sim,
    SimulationError,
    SweepReport,
    Tape,
    load,
    save,
    simulate,
)

Program = Callable[[Sim], Awaitable[Any]]

CLEAN, WRONG, USAGE, NOT_DETERMINISTIC = 0, 1, 2, 3


def read_program(place: str) -> Program:
    """Return the function of ``FILE:FUNCTION``.

    The file is run as a script would be, but is not ``__main__``. Raises ValueError for
    what is none.
    """
    file, _, name = place.rpartition(":")
    path = Path(file)
    if not file or not path.is_file():
        raise ValueError(f"{place!r}: there is no file {file!r}; write FILE:FUNCTION")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise ValueError(f"{place!r}: {file} is no file of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    program: Any = getattr(module, name, None)
    if not callable(program):
        raise ValueError(f"{place!r}: {file} has no function {name!r}")
    return cast("Program", program)


def read_error(name: str) -> type[BaseException]:
    """Return the class of an error: ``OSError``, ``trio.BrokenResourceError``.

    Raises ValueError for what is none.
    """
    module, _, last = name.rpartition(".")
    holder = importlib.import_module(module or "builtins")
    found: Any = getattr(holder, last, None)
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise ValueError(f"{name!r} is no error")
    return found


def tell(
    make: Callable[[], SweepReport | Campaign], place: str, folder: str | None
) -> int:
    """Print what was found, keep its tapes in a folder, and return the exit code."""
    try:
        report = make()
    except NotDeterministic as error:
        print(error)
        return NOT_DETERMINISTIC
    except SimulationError as error:
        print(error, file=sys.stderr)
        return USAGE
    print(report)
    found = report.failures if isinstance(report, Campaign) else report.rows
    if not found:
        return CLEAN
    again = ["trio-supervisor", "sim", "replay", place, str(found[0].tape)]
    print(f"  again: {shlex.join(again)}")
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for path in save(report, folder):
            print(f"  tape: {path}")
    return WRONG


def replay(program: Program, tape: str) -> int:
    """Run a program by a tape, or a file that has one, and return the exit code."""
    try:
        read = _read_tape(tape)
        run = simulate(program, tape=read)
    except (SimulationError, ValueError) as error:
        print(error, file=sys.stderr)
        return USAGE
    print(f"{read.words()}: {run.steps} steps, {run.seconds:g} virtual seconds")
    for finding in run.findings:
        print(f"  {finding.kind}: {finding.text}")
    if run.error is not None:
        print(f"  {type(run.error).__name__}: {run.error}")
    return WRONG if run.error is not None or run.findings else CLEAN


def trace(
    program: Program, output: str | None, format: str, seed: int, tape: str | None
) -> int:
    """Run a program once, write its trace, and return the exit code."""
    from ..simulation.trace import manifest, traced

    try:
        read = None if tape is None else _read_tape(tape)
        run, trace = traced(program, seed=seed, tape=read)
        about = manifest(seed=seed, tape=str(run.tape))
        text = trace.table() if format == "table" else trace.text(format, about)
        if output is None:
            print(text)
        else:
            Path(output).write_text(text + "\n", encoding="utf-8")
    except (SimulationError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return USAGE
    if run.error is not None:
        print(f"{type(run.error).__name__}: {run.error}", file=sys.stderr)
    return CLEAN if run.error is None else WRONG


def _read_tape(tape: str) -> Tape:
    return load(tape) if Path(tape).is_file() else Tape.parse(tape)
