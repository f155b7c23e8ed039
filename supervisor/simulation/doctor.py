"""Whether the simulator works here: with this trio, this Python, and a program of yours.

`trio-supervisor sim doctor` shows it.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable

import attrs
import trio

from ._errors import NotDeterministic, SimulationError
from ._public import publish as _publish
from ._search.explore import explore
from ._search.jobs import can_fork
from ._search.sweeps import cancel_everywhere
from ._steering import loop
from ._steering.simulate import Program, simulate

__all__ = ["Check", "examine"]

SEEDS = 20
"""With so many schedules it is looked whether runs are equal."""


@attrs.frozen
class Check:
    """One thing that was looked at."""

    what: str
    ok: bool
    told: str
    """What was found, or why it is not well."""
    deterministic: bool = True
    """It is not well for another reason than that two runs differ."""


def examine(program: Program | None = None) -> list[Check]:
    """Look at trio, at whether runs are equal and bugs and culprits are found, and at
    a program if there is one. Nothing is raised."""
    versions = f"CPython {platform.python_version()}, trio {trio.__version__}"
    checks = [
        Check("versions", True, f"{versions}, {platform.system()}"),
        _check("trio can be steered", _trio),
    ]
    if not checks[-1].ok:
        return checks
    checks += [
        _check("runs of one seed are equal", _equal),
        _check("also in another process, with another hash seed", _elsewhere),
        _check("what no tape decides is named", _culprits),
        _check("a planted bug is found, and replayed", _found),
        Check(
            "several jobs", True, "yes" if can_fork() else "no: this system cannot fork"
        ),
    ]
    if program is not None:
        checks.append(_check(f"{SEEDS} seeds of the program, twice", _own(program)))
    return checks


def _check(what: str, look: Callable[[], str]) -> Check:
    try:
        return Check(what, True, look())
    except NotDeterministic as error:
        return Check(what, False, str(error), deterministic=False)
    except (
        SimulationError,
        AssertionError,
        OSError,
        subprocess.SubprocessError,
    ) as error:
        name = "" if type(error) is AssertionError else f"{type(error).__name__}: "
        return Check(what, False, f"{name}{error}")


def _require(ok: bool, why: Callable[[], str]) -> None:
    """Do what an assert does, also where Python leaves those out."""
    if not ok:
        raise AssertionError(why())


def _trio() -> str:
    loop.require_trio()
    return "its private names do what they are used for"


PROGRAM = """
import random, time, trio

async def work(sim, lock, name):
    await lock.acquire()
    await trio.sleep(1)  # A cancel here leaves the lock held.
    sim.log(name)
    lock.release()

async def program(sim):
    lock = trio.Lock()
    async with trio.open_nursery() as nursery:
        for name in ("one", "two", "three"):
            nursery.start_soon(work, sim, lock, name)

async def bad(sim):
    sim.log(time.time())
    sim.log(random.random())
"""


def _named(name: str) -> Program:
    # As a file of somebody's: the simulator's own are shown in no report.
    names: dict[str, Program] = {}
    exec(compile(PROGRAM, "doctor.py", "exec"), names)
    return names[name]


def digests() -> list[str]:
    """Return the digests of a program under some seeds."""
    program = _named("program")
    return [simulate(program, seed=seed).digest for seed in range(SEEDS)]


def _equal() -> str:
    one, two = digests(), digests()
    differ = [a == b for a, b in zip(one, two, strict=True)]
    _require(one == two, lambda: f"seed {differ.index(False)}")
    return f"{SEEDS} seeds, {len(set(one))} of them different from each other"


def _elsewhere() -> str:
    code = "from supervisor.simulation import doctor; print(*doctor.digests())"
    environ = {
        **os.environ,
        "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1",
    }
    environ["PYTHONPATH"] = os.pathsep.join(it for it in sys.path if it)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    _require(done.returncode == 0, lambda: done.stderr)
    _require(done.stdout.split() == digests(), lambda: "the digests are others")
    return f"{SEEDS} seeds"


def _culprits() -> str:
    try:
        explore(_named("bad"), seeds=1)
    except NotDeterministic as error:
        found = ", ".join(error.culprits)
        named = "the wall clock" in found and "chance (random)" in found
        _require(named, lambda: found)
        return found
    raise AssertionError("two runs that read the clock were taken for equal")


def _found() -> str:
    program = _named("program")
    report = cancel_everywhere(program, check=False)
    _require(bool(report.rows), lambda: "no row")
    run = simulate(program, tape=report.rows[0].tape)
    _require(bool(run.findings), lambda: f"{report.rows[0].tape} finds nothing")
    return f"{report.points} points, {run.findings[0].text}"


def _own(program: Program) -> Callable[[], str]:
    def look() -> str:
        # The first run of each is done twice.
        runs = [explore(program, seeds=[it], check=False) for it in range(SEEDS)]
        wrong = [it.failures[0] for it in runs if it.failures]
        why = f"equal, but {len(wrong)} fail, without any fault; seed"
        _require(not wrong, lambda: f"{why} {wrong[0].seed}: {wrong[0].error}")
        return "equal"

    return look


_publish(globals())
