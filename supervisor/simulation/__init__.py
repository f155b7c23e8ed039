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
# _steering      one run
#   loop             the only file with private names of trio: whose step it is, and when
#   policies tape    who takes the next step, and what was decided: pure
#   sites            where a task is, in lines of the program
#   patches          what of trio a run has to see
#   run              schedule, time, log, digest, and its end
#   targets points watch
#                    whom to strike, when, and what is wrong without any assert
#   seams            which operations on the world can go wrong, and how
#   probes           what `actors.probe` tells: loaded where a program has probes
#   sim simulate     what a program sees, and one run of it
#   culprits addresses
#                    what in a program no tape decides
# _search        many runs
#   explore sweeps   many schedules, and one fault at every point
#   swarm jobs       faults by chance: pure; work in several processes
#   again            what replays a finding, and the nearest run that passes
#   shrink report    how what was found is made smaller, and told: pure
#   reached          which probes many runs came by: loaded likewise
#   corpus           tapes as files
#   losses           what a crash may leave of a disk: pure
# _public        the names say that they are from here
# crash          a crash at each change of the disk, and recovery; imported by its name
# experiments    runs as rows, and groups whose rules can be chosen
# studies        two studies
# trace          what the tasks of any run did, for Perfetto, as trees and as rows
# campaign       one program for minutes, with a log
# doctor         whether it works here
# hypothesis     tapes as a strategy of Hypothesis; imported by its name
# network        streams and listeners in memory
# _sockets       its sockets, for who asks trio for one

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
from ._search.corpus import load, replay, save, try_corpus
from ._search.explore import explore
from ._search.report import Campaign, Failure, Row, SimulationFailed, SweepReport
from ._search.sweeps import cancel_everywhere, fault_everywhere, raise_everywhere
from ._steering.policies import (
    PCT,
    Batch,
    OneStep,
    Policy,
    Portfolio,
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
    "compare",
    "explore",
    "fault_everywhere",
    "load",
    "raise_everywhere",
    "replay",
    "save",
    "simulate",
    "try_corpus",
]

_publish(globals())
