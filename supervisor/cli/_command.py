"""The command line itself: what it takes, and what it refuses.

What a command does is loaded by the one that is called, so that a help text needs
neither trio nor a runtime.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, cast, get_args

import click

from . import _values as values
from ._sim_command import sim
from ._values import refusal, refusing

Restart: TypeAlias = Literal["permanent", "transient", "temporary"]

MODES = ("default", "accept_edits", "plan", "bypass", "deny", "bubble")
"""Those of `supervisor.permissions`, which would load the rules of every tool."""

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
    except click.Abort:
        click.echo("interrupted", err=True)
        return 128 + signal.SIGINT
    except BaseExceptionGroup as group:
        why = _why_not_opened(group)
        if why is None:
            raise
        click.echo(f"Error: {why}", err=True)
        return 2
    return code if isinstance(code, int) else 0


def _why_not_opened(group: BaseExceptionGroup[BaseException]) -> str | None:
    """Return why a directory could not be opened, None if something else is wrong. The
    nurseries of a program put it into groups."""
    inside = group.exceptions
    if len(inside) != 1:
        return None
    error = inside[0]
    if isinstance(error, BaseExceptionGroup):
        return _why_not_opened(cast("BaseExceptionGroup[BaseException]", error))
    # The module of the first is not loaded for a help.
    if type(error).__name__ == "NewerJournal":
        return str(error)
    is_of_journal = isinstance(error, OSError) and "journal.jsonl" in str(
        error.filename
    )
    return str(error) if is_of_journal else None


class _Run(click.Command):
    """A command that leaves alone what stands after ``--``."""

    # Behind a program that stands without --, options are the program's.
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
    from importlib.metadata import PackageNotFoundError, version

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


_main.add_command(sim)


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
    help="How many may run at once; the others wait.  [default: what"
    " TRIO_SUPERVISOR_MAX_TASKS says, or all]",
)
@click.option("--json", is_flag=True, help="Print each event as a line of JSON.")
@click.option(
    "--envelopes",
    is_flag=True,
    help="Print each envelope that a parent agent would get.",
)
@click.option(
    "--restart",
    type=click.Choice(get_args(Restart)),
    default="temporary",
    show_default=True,
    help="Run a command again: after every end, after a failure, or never.",
)
@click.option(
    "--intensity",
    metavar="N/SECONDS",
    type=values.option(values.intensity),
    help="How many restarts in how many seconds are allowed; after more the command has"
    " failed for good.  [default: 1/5]",
)
@click.option(
    "--backoff",
    metavar="MIN:MAX[:JITTER]",
    type=values.option(values.backoff),
    help="Seconds before a restart: MIN, then twice as long each time, at most MAX."
    " Each is longer by a random part of itself, up to JITTER.",
)
@click.option(
    "--grace",
    metavar="SECONDS",
    default="5",
    show_default=True,
    type=values.option(values.seconds),
    help="The time between SIGTERM and SIGKILL, when a command is stopped.",
)
@click.option(
    "--deadline",
    metavar="SECONDS",
    type=values.option(values.deadline),
    help="The time after which a command is stopped, and has failed.",
)
@click.option(
    "--directory",
    metavar="DIRECTORY",
    help="Where output files go.  [default: a new temporary one]",
)
@click.argument("words", nargs=-1, metavar="")
@click.pass_context
def run(
    ctx: click.Context,
    /,
    commands: tuple[str, ...],
    most: int | None,
    restart: Restart,
    intensity: tuple[int, float] | None,
    grace: float,
    deadline: float | None,
    directory: str | None,
    words: tuple[str, ...],
    **more: Any,
) -> int:
    """Supervise some commands until all of them have ended.

    The words after -- are one program and its arguments; -c takes a line for the
    shell. A terminal shows a table of the commands; elsewhere each change is a
    line. The output of each command is kept in a file of its own, in the directory
    that is named at the start and by the table at the end.

    The exit code is 0 if every command completed, 2 for a mistake in the call, and
    else 1. Ctrl+C, SIGTERM and SIGHUP stop every command. SIGKILL follows after the
    grace, but at most 2 seconds later; a second signal kills at once. The exit code
    is then 128 plus the number of the signal. If the reader of the output has gone,
    as in "| head -1", every command is stopped too, and the exit code is 141.

    TRIO_SUPERVISOR_MAX_TASKS and TRIO_SUPERVISOR_MAX_SHELLS say how many commands
    may run at once.
    """
    import trio

    from actors.shell import Shell

    from .run import RunOrder
    from .run import run as do

    try:
        os.getcwd()
    except OSError as error:
        raise refusal(
            "The working directory does not exist any more, so no command can run in"
            f" it: {error.strerror}."
        ) from error
    if words:
        raise refusal(
            f"Unexpected {words[0]!r}: write -- before a program, or -c before a line"
            " for the shell."
        )
    lines = list(commands)
    if argv := ctx.meta.get(_ARGV):
        if not argv[0].strip():
            raise refusal(f"No program after --: {argv[0]!r}.")
        lines.append(shlex.join(argv))
    if not lines:
        raise refusal("No command: give a program after --, or a line after -c.")
    if restart == "temporary":
        for name, value in (("intensity", intensity), ("backoff", more["backoff"])):
            if value is not None:
                raise refusal(
                    f"--{name} needs --restart permanent or --restart transient,"
                    " which is 'temporary' now."
                )
    with refusing(ValueError):
        shells = [Shell(line, grace=grace, deadline=deadline) for line in lines]
    count, period = intensity or (1, 5.0)
    order = RunOrder(
        shells=shells,
        limits=values.limits(most),
        directory=values.place(directory),
        restart=restart,
        intensity=count,
        period=period,
        **more,
    )
    return trio.run(do, order)


@_main.command(short_help="Play a script of agents, or let a real model work.")
@click.option(
    "--model",
    metavar="MODEL",
    help="Let this model work on a PROMPT: claude-..., gpt-..., or PROVIDER/MODEL with"
    " anthropic or openai.",
)
@click.option(
    "--permission-mode",
    "mode",
    metavar=f"[{'|'.join(MODES)}]",
    type=values.option(values.mode),
    help="What agents may do where no rule and no hook decides.  [default: that of"
    " --settings; else bypass for a script; for a model bubble, which asks, on a"
    " terminal, and default elsewhere]",
)
@click.option(
    "--allow",
    metavar="RULE",
    multiple=True,
    type=values.option(partial(values.rule, "allow")),
    help="Allow a tool, or some calls of it, such as 'Bash(git log *)', without a"
    " question. Any number of times.",
)
@click.option(
    "--deny",
    metavar="RULE",
    multiple=True,
    type=values.option(partial(values.rule, "deny")),
    help="Refuse a tool, or some calls of it, whatever else allows them. Any number of"
    " times.",
)
@click.option(
    "--settings",
    metavar="FILE",
    help="Take rules, mode and hooks from a settings file of Claude Code.",
)
@click.option(
    "--wait",
    metavar="SECONDS",
    type=values.option(values.seconds),
    help="How long an agent that has answered waits for its own tasks, before they"
    " are stopped.  [default: until they end]",
)
@click.option(
    "--agents",
    metavar="DIRECTORY",
    help="Where the .md files of agents are that a model may start.",
)
@click.option(
    "--json",
    is_flag=True,
    help="Print each event as a line of JSON, and read answers to questions as lines of"
    " JSON from standard input.",
)
@click.option(
    "--directory",
    metavar="DIRECTORY",
    help="Where transcripts and output files go.  [default: a new temporary one]",
)
@click.argument("what", metavar="SCRIPT|PROMPT")
def agent(**options: Any) -> int:
    """Play a script of agents, or let a real model work on a prompt.

    A SCRIPT is a file in YAML or JSON that says what the models of some agents say
    and call, and what their host does: it starts agents, moves them to the
    background, sends them messages, stops and resumes them. Everything but the
    models is real: the commands, the agents they start, the transcripts. The module
    actors.models.scripted describes the format.

    With --model the argument is a PROMPT, for one agent with a real model. The key
    is in the environment: ANTHROPIC_API_KEY or OPENAI_API_KEY.

    Rules (--allow, --deny, --settings) and hooks decide first. What they leave open
    of a real model's calls is shown on a terminal, and you are asked; elsewhere it
    is refused. --permission-mode bypass allows it instead. With --json and
    --permission-mode bubble a question is an event of the kind ApprovalRequested,
    and its answer is a line of JSON on standard input:

    \b
        {"approval_id": "...", "allow": false, "reason": "not now"}

    An agent does not end before the commands and agents that it has started in the
    background. After 5 seconds, and then every 30, a line says what it waits for.

    The exit code is 0 if every agent that the host started has completed or was
    stopped by the script, 2 for a mistake in the call or the script, and else 1.
    Ctrl+C, SIGTERM and SIGHUP stop everything, and leave the tasks at most 2 seconds
    to end; a second signal leaves them none. The exit code is then 128 plus the
    number of the signal. If the reader of the output has gone, as in "| head -1",
    everything is stopped too, and the exit code is 141.

    TRIO_SUPERVISOR_MAX_TASKS, _MAX_SHELLS and _MAX_AGENTS say how many may run at
    once. TRIO_SUPERVISOR_MODEL_LIMITS and _PROVIDER_LIMITS say so by model and
    provider, as in opus=2,haiku=8.
    """
    import trio

    from ._agent_order import read_order
    from .agent import agent as do

    return trio.run(do, read_order(**options))


@_main.command(short_help="See it work on real commands, and check what it claims.")
def demo() -> int:
    """Run some real commands that do their worst, show the envelopes that a parent
    agent gets, and check every claim against facts that were measured from outside.

    It takes less than 15 seconds. The exit code is 0 if every claim holds.
    """
    import trio

    from .demo import demo as do

    return trio.run(do)
