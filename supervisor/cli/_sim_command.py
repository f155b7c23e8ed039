"""The commands of ``trio-supervisor sim``: what they take.

What they do is in `sim`, which is loaded by the one that is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import click

from ._patient import Unwritten
from ._sim_codes import USAGE
from ._values import deadline, duration, option, refusing

_program = click.argument("place", metavar="FILE:FUNCTION")
_Command: TypeAlias = Callable[..., int]


def _some(_: object, __: object, names: Sequence[str]) -> Sequence[str] | None:
    return names or None


_save = click.option(
    "--save",
    "folder",
    metavar="DIRECTORY",
    type=click.Path(file_okay=False),
    help="Keep a tape of each finding there. The next call plays those that it has "
    "first, and does nothing else while one of them fails.",
)
_schedules = click.option(
    "--schedules",
    metavar="N",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Under how many schedules; the first is round robin.",
)
_max_points = click.option(
    "--max-points",
    metavar="N",
    type=click.IntRange(min=1),
    help="How many points to strike at most.  [default: all]",
)
_limit = click.option(
    "--limit",
    metavar="SECONDS",
    type=option(deadline),
    default="3600",
    show_default=True,
    help="Virtual seconds after which a run is ended.",
)
_targets = click.option(
    "--target",
    "targets",
    metavar="NAME",
    multiple=True,
    callback=_some,
    help="Whom to strike, with *. Any number of times.  [default: all]",
)
_pairs = click.option(
    "--pairs",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How many runs get a second fault, drawn from all points.",
)
_json = click.option(
    "--json", "as_json", is_flag=True, help="Print what came of it as one JSON object."
)
_policy = click.option(
    "--policy",
    metavar="NAME",
    default="portfolio",
    show_default=True,
    help="What makes schedules; exhaustive tries all, each once, without faults.",
)
_jobs = click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="In how many processes. A run that never ends then costs one, and is told.",
)


def _kinds(_: object, __: object, kinds: str) -> str | None:
    return None if kinds == "none" else kinds


def _faults(default: str) -> Callable[[_Command], _Command]:
    return click.option(
        "--faults",
        metavar="KINDS",
        default=default,
        show_default=True,
        help="swarm, none, or kinds with a comma, as in cancel,'raise OSError',network.*",
        callback=_kinds,
    )


def _keeping(command: _Command) -> _Command:
    """Give a command what all have that look for something wrong."""
    for it in (_json, _save, _limit, _jobs):
        command = it(command)
    return command


def _sweeping(command: _Command) -> _Command:
    """Give a command what all sweeps have."""
    for it in (_keeping, _pairs, _max_points, _schedules):
        command = it(command)
    return command


class _Sim(click.Group):
    """Commands of which 1 says that something is wrong with a program."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()  # As long as it can be told from what was found.
            return code
        except Unwritten as error:
            error.code = USAGE
            raise


@click.group(
    "sim", cls=_Sim, short_help="Find what a cancel, an error or a schedule breaks."
)
def sim() -> None:
    """Run a trio program again and again, under schedules and faults that are decided.

    FILE:FUNCTION names an async function that gets a Sim, as in pool.py:program.

    The exit code is 0 if nothing is wrong, 1 if something is, 2 for a mistake in the
    call, a program that cannot be swept or an output that cannot be written, 3 if two
    runs of one tape differ, 4 if the time was over before all was done, and 141 if
    whoever read the output has gone.

    Where GITHUB_ACTIONS is true, what is wrong is also told as annotations.
    """


@sim.command(short_help="Cancel each task at every point.")
@_program
@_targets
@click.option(
    "--twice", is_flag=True, help="Also end each shield of a clean-up too early."
)
@_sweeping
def cancel(place: str, folder: str | None, as_json: bool, **options: Any) -> int:
    """Run the program once for each moment at which one of its tasks can be cancelled."""
    from ..simulation import cancel_everywhere

    return _swept(cancel_everywhere, place, folder, as_json, options)


@sim.command("raise", short_help="Raise an error at every point.")
@_program
@click.option(
    "--error",
    "named",
    metavar="NAME",
    default="OSError",
    show_default=True,
    help="What to raise, as in trio.BrokenResourceError or KeyboardInterrupt.",
)
@_targets
@_sweeping
def raise_(
    place: str, folder: str | None, as_json: bool, named: str, **options: Any
) -> int:
    """Run the program once for each moment at which what a task waits for can fail."""
    from ..simulation import raise_everywhere
    from .sim import read_error

    with refusing(ValueError, ImportError, of="--error"):
        error = read_error(named)
    return _swept(
        partial(raise_everywhere, error=error), place, folder, as_json, options
    )


class _Fault(click.Command):
    """Tells also which operations there are."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from actors.testing import FakeEnv

        from ..simulation.network import Network

        super().format_epilog(ctx, formatter)
        for title, seams in (
            ("Operations of sim.network()", Network.seams),
            ("Operations of sim.env()", FakeEnv.seams),
        ):
            with formatter.section(f"{title}, and how they go wrong"):
                formatter.write_dl([(it, ", ".join(seams[it])) for it in seams])


@sim.command(
    cls=_Fault, short_help="Let each call of the network or the world go wrong."
)
@_program
@click.option(
    "--seam",
    "seams",
    metavar="NAME",
    multiple=True,
    callback=_some,
    help="Which operations, with *, as in network.send or files.*. Any number of times."
    "  [default: all]",
)
@_sweeping
def fault(place: str, folder: str | None, as_json: bool, **options: Any) -> int:
    """Run the program once for each call of an operation on sim.network() or sim.env(),
    and each way in which it can go wrong."""
    from ..simulation import fault_everywhere

    return _swept(fault_everywhere, place, folder, as_json, options)


@sim.command(short_help="Run it under many schedules.")
@_program
@click.option(
    "--seeds",
    metavar="N",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="How many schedules.",
)
@_policy
@_faults("none")
@_targets
@_keeping
def explore(place: str, folder: str | None, as_json: bool, **options: Any) -> int:
    """Run the program under many schedules, and with --faults once more under each, with
    a few faults."""
    from ..simulation import explore

    return _swept(explore, place, folder, as_json, options)


@sim.command(short_help="Run it once more, by a tape.")
@_program
@click.argument("tape")
@click.option(
    "--diff", is_flag=True, help="Show it beside the nearest run found that passes."
)
@_limit
@_json
def replay(place: str, tape: str, diff: bool, limit: float, as_json: bool) -> int:
    """Run the program by a TAPE: a file that --save has written, or its text."""
    from .sim import replay as do

    return do(_read(place), tape, limit=limit, diff=diff, as_json=as_json)


@sim.command(short_help="Write down what its tasks do.")
@_program
@click.option("-o", "--output", metavar="FILE", help="Write it there, not to stdout.")
@click.option(
    "--format",
    type=click.Choice(["perfetto", "mermaid", "dot", "json", "csv", "table"]),
    default="perfetto",
    show_default=True,
    help="A timeline for ui.perfetto.dev, the tree of tasks, or what each task took.",
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(min=0),
    help="Of the schedule.  [default: 0; of the portfolio that is round robin]",
)
@click.option("--tape", metavar="TAPE", help="A file of --save or its text, instead.")
def trace(place: str, **options: Any) -> int:
    """Run the program once, and write down when each task took its steps, who was
    cancelled, and how long that took, in virtual time.

    Of a recorded log, sim tree LOG --format perfetto has the timeline.
    """
    from .sim import trace as do

    return do(_read(place), **options)


@sim.command(short_help="Check a recorded log against the promises.")
@click.argument("place", metavar="LOG")
@_json
def check(place: str, *, as_json: bool) -> int:
    """Say which promises of the runtime a LOG shows broken, and how many events each
    checker has really judged.

    LOG is a file of supervisor.simulation.log.record, or what trio-supervisor run
    --json has printed. That has only the events, so less of it can be judged.

    A log that was cut, or whose program was killed, has no end, and is not whole: the
    exit code is 1, as for a promise that is broken.
    """
    from ._checking import check_log

    return check_log(place, as_json=as_json)


@sim.command(short_help="Draw the tree of a recorded log, or its timeline.")
@click.argument("place", metavar="LOG")
@click.option(
    "--format",
    type=click.Choice(["mermaid", "dot", "json", "perfetto"]),
    default="mermaid",
    show_default=True,
    help="json also has when each began and ended, and how; perfetto is a timeline for "
    "ui.perfetto.dev, with a track for each task.",
)
def tree(place: str, format: str) -> int:
    """Print the supervisors and children of a LOG, one node for each incarnation.

    LOG is one as for check.
    """
    from .sim import draw

    with refusing(ValueError, OSError):
        return draw(place, format)
    raise AssertionError


@sim.command(short_help="Run it for minutes, under schedules and faults.")
@_program
@click.option(
    "--time",
    "seconds",
    metavar="TIME",
    type=option(duration),
    default="1m",
    show_default=True,
    help="For how long, as in 30s, 10m or 2h.",
)
@click.option(
    "--runs",
    metavar="N",
    type=click.IntRange(min=1),
    help="How many runs are enough. Exit code 4 if there was no time for them.",
)
@click.option(
    "--reach",
    metavar="NAME",
    multiple=True,
    help="A probe that must have been true, with *. Exit code 4 if one never was. "
    "Any number of times.",
)
@_policy
@_faults("swarm")
@_targets
@click.option(
    "--patience",
    metavar="SECONDS",
    type=option(deadline),
    default="60",
    show_default=True,
    help="Seconds of real time after which a run is given up, with its process.",
)
@click.option(
    "--log",
    metavar="FILE",
    help="Write each run there as a line of JSON. If it is there, go on behind it.",
)
@_keeping
def campaign(place: str, folder: str | None, as_json: bool, **options: Any) -> int:
    """Run the program under ever new schedules, and each once more with a few faults:
    of each seed some kinds, by chance.

    If nothing fails in N runs, less than 3/N of all runs do, at 95 %.

    Ctrl+C, SIGTERM and SIGHUP end it, and what was found by then is told. The exit code
    is then 128 plus the number of the signal.
    """
    from .sim import campaign as do

    program = _read(place)
    with refusing(ValueError, OSError):
        return do(program, place, folder, as_json, options)
    raise AssertionError


@sim.command(short_help="Look whether the simulator works here.")
@click.argument("place", metavar="[FILE:FUNCTION]", required=False)
@_json
def doctor(place: str | None, as_json: bool) -> int:
    """Look whether this trio can be steered, runs are equal, and what no tape decides is
    named; also for a program of yours."""
    from .sim import doctor as do

    return do(None if place is None else _read(place), as_json)


@sim.command(short_help="Run a study of strategies, or of cancels.")
@click.argument("name", type=click.Choice(["restarts", "cancels"]))
@click.option(
    "--out", metavar="DIRECTORY", help="Where it is written.  [default: study-NAME]"
)
@click.option("--small", is_flag=True, help="Only show that it works.")
def study(name: str, out: str | None, small: bool) -> int:
    """Run one of the studies of docs/, and write its rows as CSV, its table, and its
    plot, if there is matplotlib. Those of a run before are written over."""
    from .sim import study as do

    return do(name, out or f"study-{name}", small=small)


def _read(place: str) -> Any:
    from .sim import read_program

    with refusing(ValueError):
        return read_program(place)
    raise AssertionError


def _swept(
    sweep: Any, place: str, folder: str | None, as_json: bool, options: dict[str, Any]
) -> int:
    from .sim import tell

    program = _read(place)
    with refusing(ValueError, OSError):  # As where there can be no more processes.
        return tell(
            lambda: sweep(program, check=False, **options),
            program,
            folder,
            as_json,
            options["limit"],
        )
    raise AssertionError
