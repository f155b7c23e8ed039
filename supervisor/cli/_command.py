"""The command line itself: what it takes, and what it refuses."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import attrs
import click
import trio

from actors.text import one_line

from ..lowlevel import is_about, is_listed
from ..permissions import MODES, Mode, Rule, read_mode
from ..tree import Backoff, InvalidChildSpec

if TYPE_CHECKING:
    from actors.models.scripted import Script

    from ..definitions import AgentDefinition
    from ..runtime import Limits
    from ..settings_file import FileSettings
    from .agent import Provider

Restart: TypeAlias = Literal["permanent", "transient", "temporary"]

_ARGV = f"{__name__}.argv"
_NAMED = 5
"""Rules that are named in one line."""


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


def _deadline(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> float | None:
    seconds = _seconds(ctx, param, value)
    if seconds == 0:
        raise click.BadParameter(f"{value!r} leaves no time: it must be more than 0.")
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


def _rules(
    effect: Literal["allow", "deny"],
) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[Rule, ...]]:
    def read(
        _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
    ) -> tuple[Rule, ...]:
        try:
            return tuple(Rule(effect, text) for text in values)
        except ValueError as error:
            raise click.BadParameter(f"{error}.") from error

    return read


def _mode(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> Mode | None:
    try:
        return None if value is None else read_mode(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


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
    help="How many may run at once; the others wait.  [default: what"
    " TRIO_SUPERVISOR_MAX_TASKS says, or all]",
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
    type=click.Choice(get_args(Restart)),
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
    callback=_deadline,
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
    the directory that is named at the start and by the table at the end.

    The exit code is 0 if every command completed, else 1, and 2 for a mistake in
    the call. Ctrl+C, SIGTERM and SIGHUP stop every command, SIGKILL following
    after the grace, but after 2 seconds at most; a second one kills at once. The
    exit code is then 128 and the number of the signal. When whoever read this output has gone, as in
    "| head -1", every command is stopped likewise, and the exit code is 141.

    TRIO_SUPERVISOR_MAX_TASKS and TRIO_SUPERVISOR_MAX_SHELLS say how many commands
    may run at once.
    """
    from actors.shell import Shell

    from .run import Order
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
    count, period = intensity or (1, 5.0)
    order = Order(
        shells=shells,
        limits=_limits(most),
        directory=_place(directory),
        restart=restart,
        intensity=count,
        period=period,
        backoff=backoff,
        json=as_json,
        envelopes=envelopes,
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
    callback=_mode,
    help="What agents may do of which no rule and no hook speaks.  [default: what the"
    " --settings say; else bypass for a script, and for a model bubble, which asks, on a"
    " terminal, and default elsewhere]",
)
@click.option(
    "--allow",
    metavar="RULE",
    multiple=True,
    callback=_rules("allow"),
    help="A tool, or calls of one, such as 'Bash(git log *)', that need no question."
    " Any number of times.",
)
@click.option(
    "--deny",
    metavar="RULE",
    multiple=True,
    callback=_rules("deny"),
    help="Likewise, what is refused, whatever else allows it.",
)
@click.option(
    "--settings",
    metavar="FILE",
    help="Rules, mode and hooks, as the settings files of Claude Code have them.",
)
@click.option(
    "--wait",
    metavar="SECONDS",
    callback=_seconds,
    help="How long an agent that has answered waits for what it has left running,"
    " which is stopped then.  [default: until that ends]",
)
@click.option(
    "--agents",
    metavar="DIRECTORY",
    help="Agents that a model may start: the .md files there.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print each event as a line of JSON, and take answers likewise.",
)
@click.option(
    "--directory",
    metavar="DIRECTORY",
    help="Where transcripts and output files go.  [default: a new one for temporary"
    " files]",
)
@click.argument("what", metavar="SCRIPT|PROMPT")
def agent(
    model: str | None,
    mode: Mode | None,
    allow: tuple[Rule, ...],
    deny: tuple[Rule, ...],
    settings: str | None,
    wait: float | None,
    agents: str | None,
    as_json: bool,
    directory: str | None,
    what: str,
) -> int:
    """Play a script of agents, or let a real model work on a prompt.

    A SCRIPT is a file in YAML or JSON that says what the models of some agents say
    and call, and what their host does: it starts agents, moves them to the
    background, sends them messages, stops and resumes them. All but the models is
    real: the commands, the agents they start, the transcripts. The module
    actors.models.scripted describes the format.

    With --model the argument is a PROMPT, for one agent with a real model. The key
    is in the environment: ANTHROPIC_API_KEY or OPENAI_API_KEY.

    On a terminal a model's calls are shown and asked for, one by one, but for those
    that a rule, of --allow, --deny or the --settings, or a hook decides; elsewhere
    what none of them allows is refused. --permission-mode bypass allows all of which
    no rule and no hook speaks. With --json and --permission-mode bubble a question is
    an event of the kind ApprovalRequested, and the answer to it a line of JSON on
    standard input:

    \b
        {"approval_id": "...", "allow": false, "reason": "not now"}

    An agent does not end before the commands and agents that it has started in the
    background. What it waits for is told after 5 seconds and then every 30.

    The exit code is 0 if every agent that the host started has completed, or was
    stopped by the script; else 1, and 2 for a mistake in the call or the script.
    Ctrl+C, SIGTERM and SIGHUP stop everything, within 2 seconds where it lies in
    the tasks; a second one leaves nothing time to end by itself. The exit code is then 128 and the number of the signal. When
    whoever read this output has gone, as in "| head -1", everything is stopped
    likewise, and the exit code is 141.

    How many may run at once is said by TRIO_SUPERVISOR_MAX_TASKS, _MAX_SHELLS and
    _MAX_AGENTS, and by model and provider, as in opus=2,haiku=8, by
    TRIO_SUPERVISOR_MODEL_LIMITS and _PROVIDER_LIMITS.
    """
    from .agent import Order
    from .agent import agent as do

    is_asking = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    if mode == "bubble" and not is_asking and not as_json:
        streams = {"input": sys.stdin, "output": sys.stdout}
        none = [name for name, stream in streams.items() if not stream.isatty()]
        raise click.UsageError(
            f"--permission-mode bubble asks on a terminal, and standard"
            f" {' and '.join(none)} {'is' if len(none) == 1 else 'are'} none: use --json"
            " and answer on standard input, or say what is allowed with --allow or"
            " another --permission-mode."
        )
    read = _read_settings_file(settings, model)
    if mode == "bypass" and read.forbids_bypass:
        raise click.UsageError(
            f"--permission-mode bypass: {settings} forbids it by"
            " permissions.disableBypassPermissionsMode."
        )
    if mode is None:
        mode = _usual_mode(read, is_script=model is None, is_asking=is_asking)
    _check_tool_settings()
    script, provider, name = (
        (_read_script(what), None, "")
        if model is None
        else (_one_agent(what), *_provider(model))
    )
    _tell_idle_rules(script, (*allow, *deny), settings, read.rules)
    order = Order(
        script=script,
        provider=provider,
        model=name,
        mode=mode,
        rules=(*allow, *deny, *read.rules),
        hooks=read.hooks,
        wait=wait,
        definitions=_read_agents(agents, model),
        limits=_limits(),
        directory=_place(directory),
        json=as_json,
    )
    return trio.run(do, order)


def _usual_mode(read: FileSettings, *, is_script: bool, is_asking: bool) -> Mode:
    """Return the mode where the command line names none.

    What a settings file calls default is a mode as well, and asks a person where one
    is there, but for a script, which nobody sits before.
    """
    if read.mode is not None and read.mode != "default":
        return read.mode
    if is_script:
        is_open = read.mode is None and not read.forbids_bypass
        return "bypass" if is_open else "default"
    return "bubble" if is_asking else "default"


def _read_settings_file(name: str | None, model: str | None) -> FileSettings:
    """Return what a settings file says; tell what of it is not honoured."""
    from ..settings_file import FileSettings, SettingsError, read_settings

    if name is None:
        return FileSettings(source=Path())
    try:
        settings = read_settings(name)
    except SettingsError as error:
        raise click.BadParameter(f"{error}.", param_hint="'--settings'") from error
    for problem in settings.problems:
        click.echo(f"trio-supervisor: {name}: {problem}", err=True)
    if settings.model is not None:
        works = "the script" if model is None else model
        click.echo(
            f"trio-supervisor: {name}: model: {works} works, and not {settings.model}",
            err=True,
        )
    return settings


def _tell_idle_rules(
    script: Script, given: Sequence[Rule], file: str | None, in_file: Sequence[Rule]
) -> None:
    """Name the rules about tools that no agent has: in a settings file there are
    such for good reasons, so of these all in one line."""
    from ..tools import TOOL_NAMES

    allowed = [agent.tools for agent in script.agents.values()]
    tools = [
        tool
        for tool in TOOL_NAMES
        if any(names is None or is_listed(tool, names) for names in allowed)
    ]

    def is_idle(rule: Rule) -> bool:
        return not any(is_about(rule, tool) for tool in tools)

    for rule in filter(is_idle, given):
        click.echo(
            f"trio-supervisor: --{rule.effect} {one_line(rule.text)}: it matches nothing,"
            f" because the tools of the agents are {', '.join(tools) or 'none'}",
            err=True,
        )
    idle = [one_line(rule.text, 80) for rule in in_file if is_idle(rule)]
    if idle:
        more = f" and {len(idle) - _NAMED} more" if len(idle) > _NAMED else ""
        click.echo(
            f"trio-supervisor: {file}: rules about tools that no agent has match"
            f" nothing: {', '.join(idle[:_NAMED])}{more}",
            err=True,
        )


def _read_agents(
    directory: str | None, model: str | None
) -> Mapping[str, AgentDefinition]:
    """Return the agents that are defined in ``directory``; say what is wrong with
    others there."""
    from ..definitions import read_definitions

    if directory is None:
        return {}
    where = "'--agents'"
    if model is None:
        raise click.UsageError(
            "--agents needs --model: a script has agents of its own."
        )
    try:
        definitions, problems = read_definitions(directory)
    except OSError as error:
        raise click.BadParameter(
            f"{directory!r}: {error.strerror}.", param_hint=where
        ) from error
    except ImportError as error:
        raise click.UsageError(f"{error}.") from error
    for problem in problems:
        given = problem.definition
        therefore = (
            "no agent comes of it"
            if given is None
            else f"the agent {given.name!r} is there, and can do less"
        )
        for line in str(problem).splitlines():
            click.echo(f"trio-supervisor: {line} ({therefore})", err=True)
    if not definitions:
        raise click.BadParameter(
            f"{directory!r}: no file there defines an agent.", param_hint=where
        )
    for definition in definitions.values():
        if definition.model is not None:
            click.echo(
                f"trio-supervisor: {definition.source}: {model} works for it, and not"
                f" {definition.model}",
                err=True,
            )
    return definitions


def _read_script(name: str) -> Script:
    from actors.models.scripted import ScriptError, read_script

    from ..tools import TOOL_NAMES

    try:
        text = Path(name).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise click.BadParameter(
            f"{name!r}: no such file. For a script, give its file; for a prompt, give"
            " --model as well, such as --model claude-sonnet-4-5.",
            param_hint="'SCRIPT|PROMPT'",
        ) from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no text in UTF-8"
        raise click.BadParameter(
            f"{name!r}: {why}.", param_hint="'SCRIPT|PROMPT'"
        ) from error
    try:
        return read_script(text, name, tools=TOOL_NAMES)
    except ScriptError as error:
        raise click.UsageError(f"{error}.") from error


def _one_agent(prompt: str) -> Script:
    """Return the script of a host that runs one agent."""
    from actors.models.scripted import AgentScript, Script, Step

    if not prompt.strip():
        raise click.BadParameter("the prompt is empty.", param_hint="'SCRIPT|PROMPT'")
    agent = AgentScript(name="agent", turns=())
    step = Step(action="run", agent="agent", text=prompt, place="host, step 1")
    return Script(source="the command line", agents={"agent": agent}, host=(step,))


def _provider(model: str) -> tuple[Provider, str]:
    """Return whose model it is, and what it is called there; see that both the
    package and the key are there."""
    named, _, rest = model.partition("/")
    provider: Provider | None = None
    if named == "anthropic" and rest:
        provider, model = "anthropic", rest
    elif named == "openai" and rest:
        provider, model = "openai", rest
    elif model.startswith("claude"):
        provider = "anthropic"
    elif re.match(r"gpt|chatgpt|o[0-9]", model):
        provider = "openai"
    if provider is None:
        raise click.BadParameter(
            f"{model!r}: write anthropic/MODEL or openai/MODEL.",
            param_hint="'--model'",
        )
    if find_spec(provider) is None:
        raise click.UsageError(
            f"The package {provider} of this model is not installed: pip install"
            f" 'trio-supervisor[{provider}]', or '.[{provider}]' in its source."
        )
    key = f"{provider.upper()}_API_KEY"
    if not os.environ.get(key):
        raise click.UsageError(f"No key for {model}: set {key} in the environment.")
    return provider, model


def _check_tool_settings() -> None:
    """See that the environment says nothing wrong of the tools: their agents would
    meet it in the middle of their work."""
    from ..settings import read_settings

    try:
        read_settings(os.environ)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error


def _limits(most: int | None = None) -> Limits:
    """Return the limits that the environment sets, with at most ``most`` tasks if
    that is said."""
    from ..settings import read_limits

    try:
        limits = read_limits(os.environ)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error
    return limits if most is None else attrs.evolve(limits, total=most)


def _place(directory: str | None) -> Path:
    """Make the directory that was asked for, or one of our own."""
    from actors.env import real_env

    from .run import new_directory

    if directory == "":
        raise click.BadParameter("'' is no directory.", param_hint="'--directory'")
    try:
        if directory is None:
            return new_directory()
        return real_env().files.make_directory(Path(directory))
    except OSError as error:
        raise click.BadParameter(
            f"{directory or error.filename!r}: {error.strerror}.",
            param_hint="'--directory'",
        ) from error


@_main.command(short_help="See it work on real commands, and check what it claims.")
def demo() -> int:
    """Run some real commands that do their worst, show the envelopes that a parent
    agent gets, and check every claim by facts measured from outside.

    It takes less than 15 seconds. The exit code is 0 if every claim holds.
    """
    from .demo import demo as do

    return trio.run(do)
