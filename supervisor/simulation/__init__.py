"""A trio program under a schedule, a clock and faults that are decided, and so can be
had again.

    from supervisor.simulation import cancel_everywhere, explore, simulate

    async def program(sim):                      # an ordinary trio program
        ...

    cancel_everywhere(program)                   # one cancel at every point of a run
    explore(program, seeds=2000)                 # many schedules
    simulate(program, seed=7)                    # one run

Any trio program will do: it need not know of this package.
"""

# What each file decides or knows stands in design.md, "Simulation".

from __future__ import annotations

from ._errors import (
    Deadlock,
    Hang,
    NotAProgram,
    NotDeterministic,
    NothingToStrike,
    ProgramFailed,
    SimulationError,
    Stuck,
    TapeDoesNotFit,
    UnsupportedTrio,
)
from ._public import publish as _publish
from ._search.again import Parting, compare
from ._search.corpus import load, owner, replay, save, try_corpus
from ._search.explore import explore
from ._search.report import (
    Campaign,
    Failure,
    Row,
    SimulationFailed,
    SweepReport,
    Wrong,
    wrong_in,
)
from ._search.sweeps import cancel_everywhere, fault_everywhere, raise_everywhere
from ._steering.policies import (
    PCT,
    Batch,
    Exhaustive,
    OneStep,
    Policy,
    Portfolio,
    Replay,
    RoundRobin,
    Sparse,
)
from ._steering.run import Finding, Run
from ._steering.sim import Sim
from ._steering.simulate import simulate
from ._steering.tape import Deviation, Fault, Tape

__all__ = [
    "PCT",
    "Batch",
    "Campaign",
    "Deadlock",
    "Deviation",
    "Exhaustive",
    "Failure",
    "Fault",
    "Finding",
    "Hang",
    "NotAProgram",
    "NotDeterministic",
    "NothingToStrike",
    "OneStep",
    "Parting",
    "Policy",
    "Portfolio",
    "ProgramFailed",
    "Replay",
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
    "Wrong",
    "cancel_everywhere",
    "compare",
    "explore",
    "fault_everywhere",
    "load",
    "owner",
    "raise_everywhere",
    "replay",
    "save",
    "simulate",
    "try_corpus",
    "wrong_in",
]

_publish(globals())
