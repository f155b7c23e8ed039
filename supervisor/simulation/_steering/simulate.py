"""One run of a program, from its seed or its tape to what came of it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from inspect import isawaitable, signature
from typing import Any

from .._errors import NotAProgram, Stuck, TapeDoesNotFit
from . import patches, sites
from .checks import require_whole
from .hearing import hearing
from .points import Count, Strike
from .policies import Pick, Policy, Replay, policy_of
from .run import LIMIT, Driver, Run, steer
from .seams import Seams
from .session import session
from .sim import Sim, open_streams
from .tape import ARRIVALS, CHECKPOINT, IN_WAIT, Fault, Tape
from .targets import Targets, file_of, function_of
from .watch import Watch

Program = Callable[[Sim], Awaitable[Any]]
"""An async function that gets a `Sim`."""

Errors = Callable[[], BaseException]

SHOWN = 20
"""How many targets a text names."""


def simulate(
    program: Program,
    *,
    seed: int = 0,
    policy: Policy | str | None = None,
    tape: Tape | str | None = None,
    limit: float = LIMIT,
    error: Errors | None = None,
) -> Run:
    """Run a program once, in virtual time and under one schedule, and return what came
    of it.

    The same arguments give the same run: in this process, in another one, and with
    another hash seed, if the program does nothing that no tape decides. Equal digests
    tell that they did.

    Args:
      program: an async function that gets a `Sim`.
      seed: chooses the schedule; 0 of the portfolio is round robin. It also seeds
        ``sim.random``.
      policy: what makes schedules of seeds, by its name or as an object; the
        portfolio if there is none.
      tape: the schedule and the faults, in place of seed and policy.
      limit: virtual seconds after which the run is ended as a `Hang`. It is also
        ended after 100,000 steps, which are no argument.
      error: what a tape raises, as `raise_everywhere` was given it; without it, or if
        it makes errors of another class, the class that the tape names.

    What the program raises is not raised, but kept as the error of the run. A Ctrl+C
    is raised. Raises UnsupportedTrio, NotAProgram, SimulationError inside of ``trio.run``,
    and TapeDoesNotFit for a tape that names what the program does not have, or an error that
    cannot be made of its name.
    """
    if tape is not None:
        return played(program, tape, limit=limit, error=error)
    with session():
        require_whole("seed", seed)
        pick = policy_of(policy).start(seed)
        return once(program, pick, seed=seed, limit=limit, chance=True)[0]


def played(
    program: Program,
    tape: Tape | str,
    *,
    limit: float = LIMIT,
    error: Errors | None = None,
    listen: Callable[[Driver], object] | None = None,
) -> Run:
    """Run a program by a tape, and return the run. Raises TapeDoesNotFit."""
    tape = Tape.of(tape)
    if any(fault.kind == "crash" for fault in tape.faults):
        text = "the tape has a crash: supervisor.simulation.crash.crash plays it"
        raise TapeDoesNotFit(text)
    asked = {it.error for it in tape.faults if it.kind == "raise"} - {""}
    if error is not None and asked and asked != {name_of(error)}:
        error = None  # It is the error of another sweep.
    drivers: list[Driver] = []

    def heard(driver: Driver) -> None:
        drivers.append(driver)
        if listen is not None:
            listen(driver)

    with session():
        run, _ = replayed(program, tape, limit=limit, error=error, listen=heard)
    if misfit := does_not_fit(tape, run, [it for each in drivers for it in each.begun]):
        raise TapeDoesNotFit(misfit)
    return run


def replayed(
    program: Program, tape: Tape, *, limit: float = LIMIT, **options: Any
) -> tuple[Run, list[Fault]]:
    """Run a program by a tape, inside of a `session`, with options of `once`."""
    pick = Replay({it.step: it.place for it in tape.deviations}).start(0)
    faults = tape.faults
    return once(program, pick, seed=tape.seed, faults=faults, limit=limit, **options)


def does_not_fit(tape: Tape, run: Run, targets: Sequence[str]) -> str:
    """Return why a tape does not fit the program that has run by it, and had these
    targets; "" if it does."""
    done = {it.step: it for it in run.tape.deviations}
    for asked in tape.deviations:
        made = done.get(asked.step)
        if made is None or made.place != asked.place:
            return f"at step {asked.step} there are no {asked.place + 1} tasks that can run"
        if asked.task and asked.task != made.task:
            return f"step {asked.step} was {asked.task}'s, and now it is {made.task}'s"
    for fault in tape.faults:
        struck = next((it for it in run.faults if it == fault), None)
        if struck is None:
            text = f"the program has no point at which to {fault}"
            return f"{text}{_unknown(fault, targets)}"
        if moved(fault, struck):
            return f"{fault} was at {where(fault)}, and now it is at {where(struck)}"
    return ""


def _unknown(fault: Fault, targets: Sequence[str]) -> str:
    """Return what there is in place of what a fault names; "" if there is that."""
    if fault.kind == "fault":
        return ""
    arrivals: Sequence[str] = (
        ARRIVALS if fault.kind != "raise" else (*IN_WAIT, CHECKPOINT)
    )
    if fault.arrival not in arrivals:
        return f": arrivals are {', '.join(arrivals)}"
    if fault.target in targets:
        return ""
    more = [f"{len(targets) - SHOWN} more"] if len(targets) > SHOWN else []
    return f": targets are {', '.join([*targets[:SHOWN], *more]) or 'none'}"


def moved(fault: Fault, struck: Fault) -> bool:
    """Tell whether a fault strikes elsewhere than when its tape was made.

    A line may have another number. It is another line if its function has another name,
    or it has another text.
    """
    asked, found = _place(fault.site), _place(struck.site)
    lines = fault.line != struck.line and bool(fault.line and struck.line)
    return bool(fault.site) and (asked != found or lines)


def _place(site: str) -> tuple[str, str]:
    place, _, function = site.rpartition(" ")
    return place.rpartition(":")[0], function


def where(fault: Fault) -> str:
    """Return where a fault strikes, with the text of the line if that is known."""
    return f"{fault.site or 'no place'} ({fault.line})" if fault.line else fault.site


def once(
    program: Program,
    pick: Pick,
    *,
    seed: int = 0,
    faults: Sequence[Fault] = (),
    limit: float = LIMIT,
    error: Errors | None = None,
    count: Collection[tuple[str, tuple[str, ...]]] = (),
    listen: Callable[[Driver], object] | None = None,
    chance: bool = False,
) -> tuple[Run, list[Fault]]:
    """Run a program once, inside of a `session`.

    ``error`` makes what a fault raises; without it, its class is looked up. ``count``
    asks for a fault for each point of some kinds, each with arrivals. ``listen`` gets
    the driver before the run. With ``chance``, and a seed that is not 0, a `buggify` may
    fire; else only where a fault says so.
    """
    driver = Driver(pick, limit)
    targets = Targets(driver, sites.own_files(file_of(program) or ""))
    watch = Watch(driver, targets)
    ignored: set[str] = set()
    seams = Seams(driver, faults)
    sim = Sim(driver, targets, seams, seed, ignored)
    counters = [Count(driver, targets, *it) for it in count if it[0] != "fault"]
    seams.counting = any(kind == "fault" for kind, _ in count)
    strikes = {
        it: Strike(driver, targets, it, error or _named(it, program))
        # The later ones hear of a moment before the first one changes it: as they were
        # counted.
        for it in reversed(faults)
        if it.kind != "fault"
    }

    if listen is not None:
        listen(driver)

    async def main() -> Any:
        ended = False
        try:
            value = await _begun(driver, program, sim)
            ended = True
        finally:
            # Also where a fault has ended it by an error: all is unwound by now.
            if ended or (faults and driver.stuck is None):
                watch.finish(open_streams(sim))
        return value

    heard = hearing(driver, seams, seed if chance else 0)
    with patches.listening(watch), heard as probes:
        value, raised = steer(driver, main)
    struck = [strikes[it].fired for it in faults if it in strikes]
    if isinstance(raised, Stuck) and type(raised).__name__.lower() in ignored:
        raised = None
    fired = [*filter(None, struck), *seams.fired]
    run = Run(
        value=value,
        error=raised,
        log=driver.log,
        digest=driver.digest(),
        tape=Tape(tuple(driver.deviations), tuple(fired), seed),
        faults=fired,
        findings=[it for it in driver.findings if it.kind not in ignored],
        steps=driver.steps,
        seconds=driver.clock.current_time(),
        thrown=tuple(driver.thrown),
        choices=driver.choices,
        notes=[*([] if "generators" in ignored else driver.notes), *seams.unmet()],
        trail=driver.trail,
        called=driver.called,
        probes=probes(),
    )
    driver.release()
    targets.on_end.clear()
    return run, [*seams.points, *(it for each in counters for it in each.faults())]


def _begun(driver: Driver, program: Program, sim: Sim) -> Awaitable[Any]:
    """Return what is to be awaited; if there is nothing, the simulation ends by it."""
    try:
        return begun(program, Sim=sim)
    except NotAProgram as error:
        driver.broken = error
        raise


def begun(program: Callable[..., Awaitable[Any]], **given: object) -> Awaitable[Any]:
    """Call a program with what it is given, each by the name of its class, and return
    what is to be awaited. Raises NotAProgram if there is nothing."""
    try:
        awaited: object = program(*given.values())
    except TypeError as error:
        if what := _misfit(program, [*given]):
            raise NotAProgram(what) from error
        raise
    if not isawaitable(awaited):
        what = f"{called(program)} is no async function: it returned {awaited!r:.80}"
        raise NotAProgram(f"{what}, and nothing to await")
    return awaited


def _misfit(program: Callable[..., object], given: Sequence[str]) -> str:
    """Return why a program cannot be called with what it is given; "" if it can."""
    if not callable(program):
        return f"a program is an async function, not {program!r}"
    try:
        signature(program).bind(*given)
    except TypeError as error:
        many = "one argument" if len(given) == 1 else f"{len(given)} arguments"
        text = f"{called(program)} must take {many}, the `{'` and the `'.join(given)}`"
        return f"{text}, and no other that has no default: {error}"
    except ValueError:  # It does not say what it takes.
        pass
    return ""


def called(program: Callable[..., object]) -> str:
    """Return what a program is called in a text."""
    return f"the program {getattr(program, '__qualname__', repr(program))}"


GIVEN = "(...)"
"""Behind the name of an error that only who has given it to a sweep can make."""


def name_of(error: Errors) -> str:
    """Return what an error is called in a tape: ``module:name``, and `GIVEN` unless the
    class of that name is what makes it."""
    made = type(error())
    name = f"{made.__module__}:{made.__qualname__}"
    return name if _class(name) is error else f"{name}{GIVEN}"


def is_given(tape: Tape) -> bool:
    """Tell whether a tape raises what only who has given it to a sweep can make."""
    return any(it.error.endswith(GIVEN) for it in tape.faults)


def _class(name: str, main: str = "__main__") -> object:
    """Return what has a name; None if nothing has. ``main`` is the module of a program,
    which may have run as a script when its tape was made."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(main if module == "__main__" else module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _named(fault: Fault, program: Program) -> Errors | None:
    if fault.kind != "raise" or not fault.error:
        return None
    kind = _class(fault.error, getattr(function_of(program), "__module__", ""))
    why = "is one that a sweep was given"
    if not fault.error.endswith(GIVEN):
        why = f"cannot be made: there is no error {fault.error!r}"
    if isinstance(kind, type) and issubclass(kind, BaseException):
        try:
            kind()
            return kind
        except Exception as raised:
            why = f"cannot be made without arguments: {raised}"
    begin = "simulate(program, tape=..., error=...)"
    text = f"the error {fault.error!r} {why}. Say what makes it: {begin}"
    raise TapeDoesNotFit(text)
