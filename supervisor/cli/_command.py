"""The command line itself: what it takes, and what it refuses."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
import trio

from .._errors import InvalidChildSpec
from .._spec import RESTARTS, Backoff, Restart

_ARGV = f"{__name__}.argv"


def command(arguments: Sequence[str]) -> int:
    """Do what ``arguments`` say and return the exit code."""
    try:
        code = _main.main(
            list(arguments), prog_name="trio-supervisor", standalone_mode=False
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return code if isinstance(code, int) else 0


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _seconds(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> float | None:
    if value is None:
        return None
    seconds = _number(value)
    if seconds is None:
        raise click.BadParameter(f"{value!r} is not a number of seconds, 0 or more.")
    return seconds


def _intensity(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> tuple[int, float] | None:
    if value is None:
        return None
    count, _, period = value.partition("/")
    seconds = _number(period)
    if not (count.isascii() and count.isdigit()) or not seconds:
        raise click.BadParameter(f"{value!r} is not N/SECONDS, such as 3/10.")
    return int(count), seconds


def _backoff(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> Backoff | None:
    if value is None:
        return None
    parts = value.split(":")
    numbers = [number for part in parts if (number := _number(part)) is not None]
    if len(parts) != len(numbers) or len(parts) not in (2, 3):
        raise click.BadParameter(
            f"{value!r} is not MIN:MAX in seconds, such as 0.5:30."
        )
    least, most, *jitter = numbers
    try:
        return Backoff(least, most, jitter=jitter[0] if jitter else 0.0)
    except InvalidChildSpec as error:
        raise click.BadParameter(f"{value!r}: {error}.") from error


class _Run(click.Command):
    """A command that leaves alone what stands after ``--``."""

    # After a program without its --, its own options are no options of ours.
    allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            args, ctx.meta[_ARGV] = args[:place], args[place + 1 :]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "[-c COMMAND]...", "[-- PROGRAM [ARGUMENT]...]"]


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value:
        return
    try:
        number = version("trio-supervisor")
    except PackageNotFoundError:
        number = "(not installed)"
    click.echo(f"trio-supervisor {number}")
    ctx.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def _main() -> None:
    """Supervise commands as background tasks: none is lost, none left behind."""
    if sys.platform == "win32":
        raise click.ClickException("shell commands need a Unix system")


@_main.command(cls=_Run, short_help="Supervise some commands until all have ended.")
@click.option(
    "-c",
    "--command",
    "commands",
    metavar="COMMAND",
    multiple=True,
    help="A command line for the shell. Any number of times.",
)
@click.option(
    "--max",
    "most",
    metavar="N",
    type=click.IntRange(min=1),
    help="How many may run at once; the others wait.  [default: all]",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print each event as a line of JSON."
)
@click.option(
    "--envelopes",
    is_flag=True,
    help="Print each envelope that a parent agent would get.",
)
@click.option(
    "--restart",
    type=click.Choice(RESTARTS),
    default="temporary",
    show_default=True,
    help="Run a command again: after every end, after a failure, or never.",
)
@click.option(
    "--intensity",
    metavar="N/SECONDS",
    callback=_intensity,
    help="How many restarts in how many seconds until a command has failed for good."
    "  [default: 1/5]",
)
@click.option(
    "--backoff",
    metavar="MIN:MAX[:JITTER]",
    callback=_backoff,
    help="Seconds before a restart: MIN, then twice as long each time, MAX at most; each longer"
    " by up to JITTER of itself at random.",
)
@click.option(
    "--grace",
    metavar="SECONDS",
    default="5",
    show_default=True,
    callback=_seconds,
    help="Between SIGTERM and SIGKILL, for a command that is stopped.",
)
@click.option(
    "--deadline",
    metavar="SECONDS",
    callback=_seconds,
    help="After which a command is stopped and has failed.",
)
@click.option(
    "--directory",
    metavar="DIRECTORY",
    help="Where the output files go.  [default: a new one for temporary files]",
)
@click.argument("words", nargs=-1, metavar="")
@click.pass_context
def run(
    ctx: click.Context,
    commands: tuple[str, ...],
    most: int | None,
    as_json: bool,
    envelopes: bool,
    restart: Restart,
    intensity: tuple[int, float] | None,
    backoff: Backoff | None,
    grace: float,
    deadline: float | None,
    directory: str | None,
    words: tuple[str, ...],
) -> int:
    """Supervise some commands until all of them have ended.

    The words after -- are one program and its arguments; -c takes a line for the
    shell. On a terminal a table shows how things are, elsewhere there is a line
    for each change. The output of each command is kept, in a file of its own in
    the directory that the table names at the end.

    The exit code is 0 if every command completed, else 1, and 2 for a mistake in
    the call. Ctrl+C, SIGTERM and SIGHUP stop every command, SIGKILL following
    after the grace; a second one kills at once. The exit code is then 128 and
    the number of the signal. When whoever read this output has gone, as in
    "| head -1", every command is stopped likewise, and the exit code is 141.
    """
    from actors.env import real_env
    from actors.shell import Shell

    from .run import Order, new_directory
    from .run import run as do

    try:
        os.getcwd()
    except OSError as error:
        raise click.UsageError(
            "The working directory does not exist any more, so no command can run in"
            f" it: {error.strerror}."
        ) from error
    if words:
        raise click.UsageError(
            f"Unexpected {words[0]!r}: a program stands after --, a line for the shell after -c."
        )
    lines = list(commands)
    if argv := ctx.meta.get(_ARGV):
        if not argv[0].strip():
            raise click.UsageError(f"No program after --: {argv[0]!r}.")
        lines.append(shlex.join(argv))
    if not lines:
        raise click.UsageError(
            "No command: give a program after --, or a line after -c."
        )
    if restart == "temporary":
        for name, value in (("--intensity", intensity), ("--backoff", backoff)):
            if value is not None:
                raise click.UsageError(
                    f"{name} needs --restart permanent or --restart transient,"
                    " which is 'temporary' now."
                )
    try:
        shells = [Shell(line, grace=grace, deadline=deadline) for line in lines]
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error
    if directory == "":
        raise click.BadParameter("'' is no directory.", param_hint="'--directory'")
    try:
        if directory is None:
            place = new_directory()
        else:
            place = real_env().files.make_directory(Path(directory))
    except OSError as error:
        raise click.BadParameter(
            f"{directory or error.filename!r}: {error.strerror}.",
            param_hint="'--directory'",
        ) from error
    count, period = intensity or (1, 5.0)
    order = Order(
        shells=shells,
        directory=place,
        max=most,
        restart=restart,
        intensity=count,
        period=period,
        backoff=backoff,
        json=as_json,
        envelopes=envelopes,
    )
    return trio.run(do, order)


@_main.command(short_help="See it work on real commands, and check what it claims.")
def demo() -> int:
    """Run some real commands that do their worst, show the envelopes that a parent
    agent gets, and check every claim by facts measured from outside.

    It takes less than 15 seconds. The exit code is 0 if every claim holds.
    """
    from .demo import demo as do

    return trio.run(do)
