"""One run of a program, from its seed or its tape to what came of it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import isawaitable, signature
from typing import TYPE_CHECKING, Any

from .._errors import NotAProgram, Stuck, TapeDoesNotFit
from . import patches, sites
from .points import Count, Strike
from .policies import Pick, Policy, Replay, policy_of
from .run import LIMIT, Driver, Run, session, steer
from .seams import Seams
from .sim import Sim
from .tape import Fault, Tape
from .targets import Targets, file_of
from .watch import Watch

if TYPE_CHECKING:
    from .probes import Met

Program = Callable[[Sim], Awaitable[Any]]
"""An async function that gets a `Sim`."""

Errors = Callable[[], BaseException]

PROBES = "actors.probe"
"""A program with probes has loaded it. Who has none need not: it takes long to load."""


def simulate(
    program: Program,
    *,
    seed: int = 0,
    policy: Policy | str | None = None,
    tape: Tape | str | None = None,
    limit: float = LIMIT,
) -> Run:
    """Run a program once, in virtual time and under one schedule, and return what came
    of it.

    The same arguments give the same run: in this process, in another one, and with
    another hash seed, if the program does nothing that no tape decides. Equal digests
    tell that they did.

    Args:
      program: an async function that gets a `Sim`.
      seed: chooses the schedule; 0 is round robin. It also seeds ``sim.random``.
      policy: what makes schedules of seeds, by its name or as an object; the
        portfolio if there is none.
      tape: the schedule and the faults, in place of seed and policy.
      limit: virtual seconds after which the run is ended as a `Hang`. It is also
        ended after 100,000 steps, which are no argument.

    What the program raises is not raised, but kept as the error of the run. A Ctrl+C
    is raised. Raises UnsupportedTrio, NotAProgram, and TapeDoesNotFit for a tape whose fault needs
    an error that cannot be made of its name.
    """
    if isinstance(tape, str):
        tape = Tape.parse(tape)
    if tape is not None and any(fault.kind == "crash" for fault in tape.faults):
        text = "the tape has a crash: supervisor.simulation.crash.crash plays it"
        raise TapeDoesNotFit(text)
    with session():
        if tape is None:
            pick = policy_of(policy).start(seed)
            return once(program, pick, seed=seed, limit=limit, chance=True)[0]
        run, _ = replayed(program, tape, limit=limit)
    if misfit := does_not_fit(tape, run):
        raise TapeDoesNotFit(misfit)
    return run


def replayed(
    program: Program, tape: Tape, *, limit: float = LIMIT, **options: Any
) -> tuple[Run, list[Fault]]:
    """Run a program by a tape, inside of a `session`, with options of `once`."""
    pick = Replay({it.step: it.place for it in tape.deviations}).start(0)
    faults = tape.faults
    return once(program, pick, seed=tape.seed, faults=faults, limit=limit, **options)


def does_not_fit(tape: Tape, run: Run) -> str:
    """Return why a tape does not fit the program that has run by it; "" if it does."""
    done = {it.step: it for it in run.tape.deviations}
    for asked in tape.deviations:
        made = done.get(asked.step)
        if made is None or made.place != asked.place:
            return f"at step {asked.step} there are no {asked.place + 1} tasks that can run"
        if asked.task and asked.task != made.task:
            return f"step {asked.step} was {asked.task}'s, and now it is {made.task}'s"
    for fault in tape.faults:
        if fault not in run.faults:
            return f"the program has no point at which to {fault}"
    return ""


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
    heard: AbstractContextManager[Mapping[Any, Met]] = nullcontext({})
    if PROBES in sys.modules:
        from .probes import listening

        heard = listening(driver, seams, seed if chance else 0)
    strikes = {
        it: Strike(driver, targets, it, error or _named(it))
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
                watch.finish(sim.open_streams())
        return value

    with patches.listening(watch), heard as met:
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
        probes=list(met.values()),
    )
    return run, [*seams.points, *(it for each in counters for it in each.faults())]


def _begun(driver: Driver, program: Program, sim: Sim) -> Awaitable[Any]:
    """Return what is to be awaited; if there is nothing, the simulation ends by it."""
    what = ""
    try:
        begun = program(sim)
    except TypeError as error:
        if what := _misfit(program):
            driver.broken = NotAProgram(what)
            raise driver.broken from error
        raise
    if not isawaitable(begun):
        what = f"{_called(program)} is no async function: it returned {begun!r:.80}"
        driver.broken = NotAProgram(f"{what}, and nothing to await")
        raise driver.broken
    return begun


def _misfit(program: Program) -> str:
    """Return why a program cannot be called with one argument; "" if it can."""
    if not callable(program):
        return f"a program is an async function, not {program!r}"
    try:
        signature(program).bind(None)
    except TypeError as error:
        text = f"{_called(program)} must take one argument, the `Sim`"
        return f"{text}, and no other that has no default: {error}"
    except ValueError:  # It does not say what it takes.
        pass
    return ""


def _called(program: Program) -> str:
    return f"the program {getattr(program, '__qualname__', repr(program))}"


def _named(fault: Fault) -> Errors | None:
    if fault.kind != "raise":
        return None
    module, _, name = fault.error.partition(":")
    kind = getattr(sys.modules.get(module), name, None)
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise TapeDoesNotFit(f"there is no error {fault.error!r} to raise")
    return kind
