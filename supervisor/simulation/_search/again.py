"""How a finding is had again: the line that replays it, and the nearest run in which
nothing is wrong."""

from __future__ import annotations

import inspect
import os.path
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import attrs
from trio.lowlevel import Task

from .._errors import Hang
from .._steering import sites
from .._steering.checks import require_count
from .._steering.run import LIMIT, Driver, Run
from .._steering.session import session
from .._steering.simulate import Errors, Program, is_given, replayed
from .._steering.tape import LONG, Deviation, Tape
from .._steering.targets import file_of
from .report import wrong_in

NEAREST = 40
"""So many tapes are tried to find a run that passes."""


def replay_line(program: Program, tape: Tape) -> str:
    """Return the line that replays a tape: a command if a command can name the program.

    A program with the attribute ``replayed_by`` says itself how its command begins, and
    one with ``called_as`` by which FILE:FUNCTION a command has named it.
    A tape that is too long for a line is in a new file for temporary things, and the
    line names that.
    """
    text, in_file = str(tape), False
    if len(text) > LONG:
        try:
            text, in_file = _in_file(tape), True
        except OSError as error:
            return f"no line has room for the tape, and no file has: {error}"
    given = is_given(tape)
    named: Any = program
    if begin := getattr(named, "replayed_by", ""):
        return f"{begin}{shlex.quote(text)}"
    if not given and (place := getattr(named, "called_as", "") or _place(program)):
        return f"trio-supervisor sim replay {shlex.quote(place)} {shlex.quote(text)}"
    more = ", error=..." if given else ""
    if in_file:
        return f"replay({called(program)}, {text!r}{more})"
    return f'simulate({called(program)}, tape="{text}"{more})'


def _place(program: Any) -> str:
    """Return a program as FILE:FUNCTION; "" if that cannot name it."""
    file, name = file_of(program) or "", getattr(program, "__qualname__", "<>")
    if os.path.isfile(file) and name.isidentifier():
        return f"{shortest(file)}:{name}"
    return ""


def _in_file(tape: Tape) -> str:
    """Write a tape into a new file, and return its path."""
    import json  # Hardly anybody needs these.
    from tempfile import mkstemp

    file, path = mkstemp(prefix="sim-tape-", suffix=".json")
    with open(file, "w", encoding="utf-8") as opened:
        json.dump(tape.to_json(), opened)
    return path


def called(program: Any) -> str:
    """Return how a program is written in a call, with what a `partial` gives it. What
    cannot be written is ``...``."""
    if isinstance(program, partial):
        keywords = (f"{name}={_value(it)}" for name, it in program.keywords.items())
        given = [called(program.func), *map(_value, program.args), *keywords]
        return f"partial({', '.join(given)})"
    name = getattr(program, "__qualname__", "").rpartition(".")[2]
    return name if name.isidentifier() else "program"


def _value(value: object) -> str:
    try:
        text = repr(value)
        compile(text, "<repr>", "eval")
    except Exception:
        return "..."  # As that of a module; or the value's own repr raises.
    return text


def shortest(file: str) -> str:
    """Return a path as it is seen from here, if the file is below; else as it is."""
    try:
        here = os.path.relpath(file)
    except (ValueError, OSError):  # Another drive, or this folder is gone.
        return file
    return file if here.startswith("..") else here


def place_of(program: Program) -> str:
    """Return where a program begins, as ``/path/file.py:12``; "" if nobody knows."""
    code = getattr(inspect.unwrap(program), "__code__", None)
    file = file_of(program)
    if code is None or file is None or code.co_filename != file:
        return ""
    return f"{file}:{code.co_firstlineno}"


# ---- The nearest run that passes ---------------------------------------------------------


@attrs.frozen
class Step:
    """One step of a run."""

    who: str
    where: str
    """From where it went on."""
    when: float
    """The virtual time."""

    def __str__(self) -> str:
        return f"{self.who}  {self.where}  {self.when:g} s" if self.who else ""


@attrs.frozen
class Parting:
    """A run that fails, beside the nearest one found that passes."""

    step: int
    """The first step that was another task's, or at another place or time, or of which
    one run has none."""
    fails: Sequence[Step]
    """All steps of the run that fails."""
    passes: Sequence[Step]
    """All steps of the other one."""
    tape: Tape
    """What replays that one."""

    def line(self) -> str:
        """Return in one line who ran where they part, and who ran instead."""
        mine, other = (_at(it, self.step) for it in (self.fails, self.passes))
        ran = f"{mine.who} ran" if mine.who else "nobody ran any more"
        instead = f"{other.who} did" if other.who else "nobody did"
        if not mine.who and not other.who:
            passes = f"{self.tape.brief()} passes"
            return f"in no step, but in what a step was given: {passes}"
        if mine.who == other.who:
            ran = f"{mine.who} went on from {mine.where} at {mine.when:g} s"
            instead = f"it did from {other.where} at {other.when:g} s"
        beside = f"in a run that passes ({self.tape.brief()})"
        return f"at step {self.step} {ran}; {instead} {beside}"

    def table(self, before: int = 3, after: int = 12) -> str:
        """Return both runs side by side, from a few steps before they part."""
        require_count("before", before, 0)
        require_count("after", after)
        first = max(self.step - before, 0)
        last = min(max(len(self.fails), len(self.passes)), self.step + after)
        rows = [("step", "fails", f"passes: {self.tape.brief()}")]
        for step in range(first, last):
            both = [_at(it, step) for it in (self.fails, self.passes)]
            mark = "" if both[0] == both[1] else " *"
            rows.append((f"{step}{mark}", str(both[0]), str(both[1])))
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(
            f"{step:<{widths[0]}}  {left:<{widths[1]}}  {right}".rstrip()
            for step, left, right in rows
        )


def _at(steps: Sequence[Step], number: int) -> Step:
    return steps[number] if number < len(steps) else Step("", "", 0.0)


def parting(
    program: Program, tape: Tape, limit: float, error: Errors | None = None
) -> Parting | None:
    """Return a run that fails beside the nearest one that passes, inside of a session;
    None if no run near to it passes."""
    _, fails = _steps(program, tape, limit, error)
    for number, near in enumerate(_near(program, tape, limit, error)):
        if number >= NEAREST:
            return None
        run, passes = _steps(program, near, limit, error)
        if not wrong_in(run):
            whose = zip(fails, passes, strict=False)
            others = (at for at, (one, other) in enumerate(whose) if one != other)
            step = next(others, min(len(fails), len(passes)))
            return Parting(step, fails, passes, run.tape)
    return None


def compare(
    program: Program, tape: Tape | str, *, limit: float = LIMIT
) -> Parting | None:
    """Return the run of a tape that fails beside the nearest run found that passes.

    That one has one decision less, or one deviation more. None if the tape does not
    fail, or no such run passes.
    """
    tape = Tape.of(tape)
    with session():
        run, _ = replayed(program, tape, limit=limit)
        return parting(program, tape, limit) if wrong_in(run) else None


def parting_line(
    program: Program, run: Run, tape: Tape, limit: float, error: Errors | None = None
) -> str:
    """Return the line of a `Parting` for a run that has failed and its smallest tape, ""
    if there is none or it would take too long."""
    if isinstance(run.error, Hang):
        return ""
    found = parting(program, tape, limit, error)
    return "" if found is None else found.line()


def _steps(
    program: Program, tape: Tape, limit: float, error: Errors | None
) -> tuple[Run, list[Step]]:
    steps: list[Step] = []

    def listen(driver: Driver) -> None:
        def begins(task: Task) -> None:
            where = sites.site(task) or "at its start"
            if driver.stuck is not None:
                return  # It only ends.
            who = driver.name(task) or "trio"
            steps.append(Step(who, where, driver.clock.current_time()))

        driver.on_next.append(begins)

    run, _ = replayed(program, tape, limit=limit, error=error, listen=listen)
    return run, steps


def _near(
    program: Program, tape: Tape, limit: float, error: Errors | None
) -> Iterator[Tape]:
    """Yield tapes with one decision less, and then with one deviation more."""
    for fault in reversed(tape.faults):
        yield attrs.evolve(tape, faults=tuple(it for it in tape.faults if it != fault))
    for left_out in reversed(tape.deviations):
        kept = tuple(it for it in tape.deviations if it != left_out)
        yield attrs.evolve(tape, deviations=kept)
    run, _ = replayed(program, tape, limit=limit, error=error)
    for step, _ in reversed(run.choices):
        if all(it.step != step for it in tape.deviations):
            more = (*tape.deviations, Deviation(step, 1))
            yield attrs.evolve(tape, deviations=tuple(sorted(more, key=_step)))


def _step(deviation: Deviation) -> int:
    return deviation.step
