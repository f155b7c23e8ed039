"""``trio-supervisor sim``: run a trio program under schedules and faults that are
decided, and tell what is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    redirect_stdout,
    suppress,
)
from fnmatch import fnmatchcase
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, cast

import attrs

from ..simulation import (
    Campaign,
    Fault,
    NotDeterministic,
    Sim,
    SimulationError,
    SweepReport,
    Tape,
    compare,
    load,
    owner,
    save,
    simulate,
    try_corpus,
    wrong_in,
)
from ..simulation import replay as run_again
from ._sim_codes import CLEAN, NOT_DETERMINISTIC, SPENT, USAGE, WRONG

if TYPE_CHECKING:
    from ..simulation.campaign import Spent

Program = Callable[[Sim], Awaitable[Any]]


def read_program(place: str) -> Program:
    """Return the function of ``FILE:FUNCTION``, which is what replays of it are called by.

    The file is run as a script would be, but is not ``__main__``; a file of a package is
    imported as its module. Raises ValueError for what is none, or cannot be run.
    """
    file, _, name = place.rpartition(":")
    path = Path(file)
    if not file:
        raise ValueError(f"{place!r} names no function: write FILE:FUNCTION")
    try:
        is_there = path.is_file()
    except OSError as error:  # Some of what cannot be looked at is told as not there.
        raise ValueError(f"{place!r}: {file!r}: {error.strerror}") from error
    if not is_there:
        raise ValueError(f"{place!r}: there is no file {file!r}; write FILE:FUNCTION")
    try:
        with _apart():
            module = _imported(path.resolve())
    except (Exception, SystemExit) as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        last = traceback.extract_tb(error.__traceback__)[-1]
        if not isinstance(error, SyntaxError):  # It tells its line itself.
            text = f"{text}, at {last.filename}:{last.lineno}"
        if isinstance(error, ModuleNotFoundError):
            text += (
                ". What pytest finds by its option `pythonpath` a command finds if "
                "PYTHONPATH names that folder"
            )
        raise ValueError(f"{place!r}: {file} cannot be imported: {text}") from error
    if module is None:
        raise ValueError(f"{place!r}: {file} is no file of Python")
    if (there := getattr(module, "__file__", None) or "") and (
        os.path.realpath(there) != str(path.resolve())
    ):
        raise ValueError(f"{place!r}: another module is {module.__name__!r}: {there}")
    program: Any = getattr(module, name, None)
    if not callable(program):
        raise ValueError(f"{place!r}: {file} has no function {name!r}")
    with suppress(AttributeError, TypeError):  # Not all can be given one.
        cast("Any", program).called_as = place
    return cast("Program", program)


def _imported(path: Path) -> Any:
    """Import a file: by its name in the package that it is in, or by its own. Return the
    module, which may be another one of that name; None if it is no file of Python."""
    folder, names = path.parent, [path.stem]
    sys.path.insert(0, str(folder))
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    name = ".".join(names)
    if len(names) > 1 and path.suffix == ".py" and all(map(str.isidentifier, names)):
        sys.path.insert(0, str(folder))
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _apart() -> AbstractContextManager[Any]:
    """What a program prints goes to stderr: stdout has what the command prints."""
    return redirect_stdout(sys.stderr)


def read_error(name: str) -> type[BaseException]:
    """Return the class of an error: ``OSError``, ``trio.BrokenResourceError``.

    Raises ValueError for what is none, or cannot be made without arguments.
    """
    module, _, last = name.rpartition(".")
    holder = importlib.import_module(module or "builtins")
    found: Any = getattr(holder, last, None)
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise ValueError(f"{name!r} is no error")
    try:
        found()
    except TypeError as error:
        raise ValueError(f"{name!r} cannot be raised: {error}") from error
    return found


def tell(
    make: Callable[[], SweepReport | Campaign],
    program: Program,
    folder: str | None,
    as_json: bool,
    limit: float,
) -> int:
    """Print what was found, keep its tapes in a folder, and return the exit code.

    The tapes that the folder has of this program are tried first.
    """
    try:
        with _apart():
            again = _kept(program, folder, limit)
            report = again or make()
    except NotDeterministic as error:
        return _not_deterministic(error, as_json)
    except SimulationError as error:
        print(error, file=sys.stderr)
        return USAGE
    # What came from the folder is not kept again.
    return _report(report, as_json, program, None if again else folder)


def _not_deterministic(error: NotDeterministic, as_json: bool) -> int:
    if as_json:
        _print_json({"difference": error.difference, "culprits": error.culprits})
    else:
        print(error)
    return NOT_DETERMINISTIC


def _report(
    report: SweepReport | Campaign,
    as_json: bool,
    program: Program | None = None,
    folder: str | None = None,
    whole: Spent | None = None,
) -> int:
    # A fault of a sweep that never struck is a fault of ours, and is told.
    wrong = _found(report) or (isinstance(report, SweepReport) and report.never_fired)
    tapes: list[str] = []
    if program is not None and folder is not None and _found(report):
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            tapes = save(report, folder, of=owner(program, folder))
        except OSError as error:  # What was found is told in any case.
            print(f"no tape is kept in {folder}: {error}", file=sys.stderr)
    if as_json:
        _print_json({**_as_json(whole or report), "tapes": tapes})
    else:
        print(whole or report)
        for path in tapes:
            print(f"  tape: {path}")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in report.annotations():
            print(line, file=sys.stderr if as_json else sys.stdout)
    return WRONG if wrong else CLEAN


def _found(report: SweepReport | Campaign) -> Sequence[Any]:
    return report.failures if isinstance(report, Campaign) else report.rows


def _kept(program: Program, folder: str | None, limit: float) -> Campaign | None:
    """Run the program by its tapes in a folder; return what came of it if some fail."""
    if folder is None:
        return None
    whose = owner(program, folder)
    report, misfits = try_corpus(program, folder, whose, limit=limit)
    for misfit in misfits:
        print(misfit, file=sys.stderr)
    return report if report.failed else None


def replay(
    program: Program, tape: str, *, limit: float, diff: bool, as_json: bool
) -> int:
    """Run a program by a tape, or a file that has one, and return the exit code."""
    try:
        read = _read_tape(tape)
        with _apart():
            if os.path.isfile(tape):
                run = run_again(program, tape, limit=limit)
            else:
                run = simulate(program, tape=read, limit=limit)
            parting = compare(program, read, limit=limit) if diff else None
    except (SimulationError, ValueError) as error:
        print(error, file=sys.stderr)
        return USAGE
    found = [it.text for it in wrong_in(run)]
    if as_json:
        data: dict[str, Any] = {
            "tape": str(run.tape),
            "words": read.words(),
            "digest": run.digest,
            "steps": run.steps,
            "seconds": run.seconds,
            "wrong": found,
            "notes": run.notes,
        }
        if diff:
            data["parts"] = None if parting is None else _as_json(parting)
        _print_json(data)
        return WRONG if found else CLEAN
    print(f"{read.words()}: {run.steps} steps, {run.seconds:g} virtual seconds")
    for text in [*found, *(f"note: {it}" for it in run.notes)]:
        print(indent(text, "  "))
    if parting is not None:
        print(parting.table())
    elif diff:
        print("  no run near to it passes" if found else "  it passes")
    return WRONG if found else CLEAN


def trace(
    program: Program,
    output: str | None,
    format: str,
    seed: int | None,
    tape: str | None,
) -> int:
    """Run a program once, write its trace, and return the exit code."""
    from ..simulation.trace import manifest, traced

    try:
        if seed is not None and tape is not None:
            raise ValueError("a tape has its own schedule: give --seed or --tape")
        seed = seed or 0
        read = None if tape is None else _read_tape(tape)
        with _apart():
            run, trace = traced(program, seed=seed, policy="portfolio", tape=read)
        policy = "portfolio" if read is None else "that of the tape"
        about = manifest(seed=seed, policy=policy, tape=str(run.tape))
        text = trace.table() if format == "table" else trace.text(format, about)
        if output is None:
            print(text)
        else:
            Path(output).write_text(text + "\n", encoding="utf-8")
    except (SimulationError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return USAGE
    found = wrong_in(run)
    for it in found:
        print(it.text, file=sys.stderr)
    return WRONG if found else CLEAN


def draw(place: str, format: str) -> int:
    """Print the tree of a recorded log, or its timeline, and return the exit code."""
    from ..simulation import log
    from ..simulation.trace import dot, mermaid, supervision, timeline, tree

    try:
        with Path(place).open("rb") as lines:
            entries = [*log.read(lines)]
    except log.LogError as error:
        raise ValueError(f"{place}: {error}") from error
    nodes = supervision(entries)
    if not nodes:
        raise ValueError(f"{place}: no supervisor and no child is in it")
    if format == "perfetto":
        print(json.dumps(timeline(entries), separators=(",", ":")))
    elif format == "json":
        print(json.dumps(tree(nodes), indent=1))
    else:
        print((mermaid if format == "mermaid" else dot)(nodes))
    return CLEAN


def study(name: str, out: str, *, small: bool) -> int:
    """Run a study, write what came of it, and return the exit code."""
    from ..simulation import studies
    from ..simulation.trace import csv_text

    it, folder = studies.study(name), Path(out)
    rows = it.run(**(it.small if small else {}))
    texts = {"rows.csv": csv_text(rows), "table.md": it.table(rows) + "\n"}
    written: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
            written.append(str(folder / file))
        it.plot(rows, str(folder / "plot.svg"))
        written.append(str(folder / "plot.svg"))
    except OSError as error:
        print(error, file=sys.stderr)
        return USAGE
    except ModuleNotFoundError as error:
        needed = "pip install 'trio-supervisor[plots]'"
        print(f"there is no plot, for there is no {error.name}: {needed}")
    print(it.table(rows))
    print(f"written: {', '.join(written)}")
    return CLEAN


def _read_tape(tape: str) -> Tape:
    if not tape.strip():
        raise ValueError("there is no tape: write its file, or its text")
    if os.path.isfile(tape):  # A long tape is a path that raises in `Path`.
        return load(tape)
    try:
        return Tape.parse(tape)
    except ValueError as error:
        raise ValueError(f"{error}, and no file has that name") from error


def campaign(
    program: Program,
    place: str,
    folder: str | None,
    as_json: bool,
    options: dict[str, Any],
) -> int:
    """Run a program until the time is over, and return the exit code."""
    from ..simulation.campaign import Interrupted
    from ..simulation.campaign import campaign as spend

    def progress(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    reach: Sequence[str] = options.pop("reach")
    asked_by: list[int] = []
    try:
        with _apart():
            again = _kept(program, folder, options["limit"])
        if again:
            return _report(again, as_json)
        with _apart(), _asked_to_end(asked_by):
            spent = spend(program, name=place, tell=progress, **options)
    except KeyboardInterrupt as error:
        if isinstance(error, Interrupted):
            _report(error.spent.campaign, as_json, program, folder, error.spent)
        if not asked_by:
            raise
        return _ended_by(asked_by)
    except NotDeterministic as error:
        return _not_deterministic(error, as_json)
    except SimulationError as error:
        print(error, file=sys.stderr)
        return USAGE
    report = spent.campaign
    code = _report(report, as_json, program, folder, spent)
    if asked_by:  # Where Python keeps to itself what is raised, as in a `__del__`.
        return _ended_by(asked_by)
    if spent.unwritten:
        print(f"{options['log']}: {spent.unwritten}", file=sys.stderr)
        return code or USAGE
    unmet = [it for it in reach if not _is_reached(report, it)]
    for name in unmet:
        print(f"no probe {name!r} was ever true", file=sys.stderr)
    return code or (SPENT if unmet or not spent.complete else CLEAN)


def _ended_by(asked_by: Sequence[int]) -> int:
    print(f"ended by {signal.Signals(asked_by[0]).name}", file=sys.stderr)
    return 128 + asked_by[0]


@contextmanager
def _asked_to_end(asked_by: list[int]) -> Generator[None]:
    """Let a signal that asks this process to end interrupt the block, and note which one
    it was. A second one ends it at once."""

    def interrupt(number: int, _: object) -> None:
        asked_by.append(number)
        for it in before:
            signal.signal(it, signal.SIG_DFL)
        raise KeyboardInterrupt

    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    # What nohup has ignored stays ignored.
    before = {
        it: was for it in numbers if (was := signal.getsignal(it)) is not signal.SIG_IGN
    }
    for it in before:
        signal.signal(it, interrupt)
    try:
        yield
    finally:
        for it, was in () if asked_by else before.items():
            signal.signal(it, was)


def _is_reached(report: Campaign, name: str) -> bool:
    met = [it for it in report.probes if fnmatchcase(it.name, name)]
    return bool(met) and not any(it.missed for it in met)


def doctor(program: Program | None, as_json: bool) -> int:
    """Look whether the simulator works here, and return the exit code."""
    from ..simulation.doctor import examine

    with _apart():
        checks = examine(program)
    if as_json:
        _print_json({"checks": [_as_json(it) for it in checks]})
    for it in () if as_json else checks:
        told = it.told.replace("\n", f"\n{'':10}")
        print(f"{'ok' if it.ok else 'NOT WELL':<8}  {it.what}: {told}")
    if all(it.ok for it in checks):
        return CLEAN
    return WRONG if all(it.deterministic for it in checks) else NOT_DETERMINISTIC


def _as_json(it: Any) -> dict[str, Any]:
    def plain(_: object, __: object, value: Any) -> Any:
        return str(value) if isinstance(value, (Tape, Fault)) else value

    return attrs.asdict(it, value_serializer=plain)


def _print_json(data: dict[str, Any]) -> None:
    print(json.dumps(data))
