"""What the simulator raises, and what a run ends with that does not end by itself.

SimulationError
    UnsupportedTrio      the trio that is installed has changed inside
    NotDeterministic     two runs of one tape differ
    NotAProgram          what was given is no async function of one argument
    ProgramFailed        the program fails without any fault
    NothingToStrike      a sweep has no point
    TapeDoesNotFit       the tape was made for another program
SimulationFailed         an AssertionError, in `_search.report`: something wrong was found
Stuck
    Deadlock             nobody can run, and no deadline will change that
    Hang                 the program goes on beyond the limits of a run
"""

from __future__ import annotations

import attrs


class SimulationError(Exception):
    """The root of what says that a simulation could not do its work."""


@attrs.define(slots=False, repr=False)
class UnsupportedTrio(SimulationError):
    """Raised when the trio that is installed is not one that the simulator can steer.

    Nothing has been run. Install another version of trio, or of this package.
    """

    what: str
    """What has changed."""

    def __str__(self) -> str:
        return (
            f"the simulator cannot steer the trio that is installed: {self.what}. "
            "It uses private names of trio, which have changed."
        )


@attrs.define(slots=False, repr=False)
class NotDeterministic(SimulationError):
    """Raised when two runs of one tape differ, so that no finding could be replayed.

    The program does something that no tape decides: it reads the wall clock, draws
    chance, uses a thread, a process or a socket, or goes through a set of objects. Or a
    run leaves something behind that the next one finds, as in a global variable. The
    text has the first difference, as both runs saw it, and the places of the program
    that were seen to do so.
    """

    difference: str
    """Where the runs begin to differ."""
    culprits: tuple[str, ...] = ()
    """What no tape decides, each with its place; empty if nothing was seen."""

    def __str__(self) -> str:
        lines = [self.difference]
        lines += [f"no tape decides {it}" for it in self.culprits]
        if not self.culprits:
            lines.append(
                "the run before may have left something behind: in a file, a module, a "
                "class, a cache or what a fixture of pytest has made, as `tmp_path`; else "
                "look for a set of objects, or for an address in a text"
            )
        return "\n".join(lines)


class NotAProgram(SimulationError, TypeError):
    """Raised when a program cannot be called with a `Sim` and be awaited.

    A program is an async function of one argument. Nothing has been run.
    """


class ProgramFailed(SimulationError):
    """Raised when the program fails although no fault was put in.

    Nothing has been swept. Mend the program first, or look for schedules under which
    it fails with `explore`, which needs no program that works. The cause is what the
    program raised.
    """


@attrs.define(slots=False, repr=False)
class NothingToStrike(SimulationError):
    """Raised when a sweep finds no point, so that it would prove nothing.

    Name the targets by `Sim.target`: no task runs a function of the program's own files
    by itself, or none has a name that is asked for. The text says so where there are
    targets: if they only make checkpoints, no error can come out of what they wait for,
    but for a KeyboardInterrupt; if they never wait, nothing arrives.
    """

    names: tuple[str, ...] = ()
    """The names that were asked for; empty if all were."""
    what: str = ""
    """Why there is no point, if it is not that there is no such target."""

    def __str__(self) -> str:
        if self.what:
            return self.what
        if self.names:
            return f"no target has one of the names {', '.join(self.names)}"
        return (
            "no nursery starts a function of the program's own files, and none that "
            "`sim.target` was given is called: say by it which functions are to be struck"
        )


class TapeDoesNotFit(SimulationError):
    """Raised when a tape names what the program does not have (any more).

    The program has changed since the tape was made. Make a new tape.
    """


@attrs.define(slots=False, repr=False)
class Stuck(Exception):
    """The root of what a run ends with that does not end by itself."""

    what: str
    """One sentence."""
    tree: str
    """Each task with the line where it was, before anything was ended."""

    def __str__(self) -> str:
        return f"{self.what}\n{self.tree}"


@attrs.define(slots=False, repr=False)
class Deadlock(Stuck):
    """In a run nobody can run, and no deadline, timer or work outside will change it."""


@attrs.define(slots=False, repr=False)
class Hang(Stuck):
    """A run goes on beyond its limit of virtual seconds or of steps."""
