"""A trio program under a schedule, a clock and faults that are decided, and so can be
had again.

    from supervisor.simulation import cancel_everywhere, explore, simulate

    async def program(sim):                      # an ordinary trio program
        ...

    cancel_everywhere(program)                   # one cancel at every point of a run
    explore(program, seeds=2000)                 # many schedules
    simulate(program, seed=7)                    # one run

It needs nothing of this package but trio: any trio program will do.
"""

# General layout:
# _trio          the only file with private names of trio: whose step it is, and when
# _policies _tape _shrink _report
#                who takes the next step, what was decided, how it is made smaller and
#                told: pure
# _sites         where a task is, in lines of the program
# _patches       what of trio a run has to see
# _run           one run: schedule, time, log, digest, and its end
# _targets _points _watch
#                whom to strike, when, and what is wrong without any assert
# _seams         which operations on the world can go wrong, and how
# _sim           what a program sees
# _simulate _explore _sweeps
#                one run, many schedules, one fault at every point
# _culprits      what in a program no tape decides
# _corpus        tapes as files
# _public        the names say that they are from here
# network        streams and listeners in memory

from __future__ import annotations

from ._corpus import load, replay, save
from ._errors import (
    Deadlock,
    Hang,
    NotDeterministic,
    NothingToStrike,
    ProgramFailed,
    SimulationError,
    Stuck,
    TapeDoesNotFit,
    UnsupportedTrio,
)
from ._explore import explore
from ._policies import PCT, Batch, OneStep, Policy, Portfolio, RoundRobin, Sparse
from ._public import publish as _publish
from ._report import Campaign, Failure, Row, SimulationFailed, SweepReport
from ._run import Finding, Run
from ._sim import Sim
from ._simulate import simulate
from ._sweeps import cancel_everywhere, fault_everywhere, raise_everywhere
from ._tape import Deviation, Fault, Tape

__all__ = [
    "PCT",
    "Batch",
    "Campaign",
    "Deadlock",
    "Deviation",
    "Failure",
    "Fault",
    "Finding",
    "Hang",
    "NotDeterministic",
    "NothingToStrike",
    "OneStep",
    "Policy",
    "Portfolio",
    "ProgramFailed",
    "RoundRobin",
    "Row",
    "Run",
    "Sim",
    "SimulationError",
    "SimulationFailed",
    "Sparse",
    "Stuck",
    "SweepReport",
    "Tape",
    "TapeDoesNotFit",
    "UnsupportedTrio",
    "cancel_everywhere",
    "explore",
    "fault_everywhere",
    "load",
    "raise_everywhere",
    "replay",
    "save",
    "simulate",
]

_publish(globals())
