"""What ``trio-supervisor agent`` was told to do: its options, and the files and the
environment that they point to, read and checked."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import cast, get_args

from actors.models.scripted import AgentScript, Script, ScriptError, Step, read_script
from actors.text import one_line

from ..definitions import AgentDefinition, read_definitions
from ..lowlevel import is_listed
from ..permissions import Mode, Rule
from ..settings import read_settings as read_environment
from ..settings_file import FileSettings, SettingsError, read_settings
from ..tools import TOOL_NAMES
from ._patient import say_aside
from ._values import limits, place, refusal, refusing
from .agent import AgentOrder, Provider

_NAMED = 5
"""Rules that are named in one line."""
_WHAT = "SCRIPT|PROMPT"


def read_order(
    *,
    what: str,
    model: str | None,
    mode: Mode | None,
    allow: tuple[Rule, ...],
    deny: tuple[Rule, ...],
    settings: str | None,
    wait: float | None,
    agents: str | None,
    json: bool,
    directory: str | None,
) -> AgentOrder:
    """Return what is to be done; say aside what of it is not as it may be meant.

    Raises:
        click.UsageError: if it cannot be done.
    """
    is_asking = sys.stdin.isatty() and sys.stdout.isatty() and not json
    if mode == "bubble" and not is_asking and not json:
        streams = {"input": sys.stdin, "output": sys.stdout}
        none = [name for name, stream in streams.items() if not stream.isatty()]
        raise refusal(
            f"--permission-mode bubble asks on a terminal, and standard"
            f" {' and '.join(none)} {'is' if len(none) == 1 else 'are'} none: use --json"
            " and answer on standard input, or say what is allowed with --allow or"
            " another --permission-mode."
        )
    read = _read_settings_file(settings, model)
    if mode == "bypass" and read.forbids_bypass:
        raise refusal(
            f"--permission-mode bypass: {settings} forbids it by"
            " permissions.disableBypassPermissionsMode."
        )
    # What is wrong in it the agents would meet in the middle of their work.
    with refusing(ValueError):
        read_environment(os.environ)
    script, provider, name = (
        (_read_script(what), None, "")
        if model is None
        else (_one_agent(what), *_provider(model))
    )
    given = (*allow, *deny)
    _tell_idle_rules(script, given, settings, read.rules)
    return AgentOrder(
        script=script,
        provider=provider,
        model=name,
        mode=mode or _usual_mode(read, is_script=model is None, is_asking=is_asking),
        rules=(*given, *read.rules),
        hooks=read.hooks,
        wait=wait,
        definitions=_read_agents(agents, model),
        limits=limits(),
        directory=place(directory),
        json=json,
    )


def _usual_mode(read: FileSettings, *, is_script: bool, is_asking: bool) -> Mode:
    """Return the mode where the command line names none.

    The ``default`` of a settings file is a mode as well. It asks a person where one is
    there, except for a script, which nobody watches.
    """
    if read.mode is not None and read.mode != "default":
        return read.mode
    if is_script:
        is_open = read.mode is None and not read.forbids_bypass
        return "bypass" if is_open else "default"
    return "bubble" if is_asking else "default"


def _read_settings_file(name: str | None, model: str | None) -> FileSettings:
    """Return what a settings file says; say aside what is not honoured."""
    if name is None:
        return FileSettings(source=Path())
    with refusing(SettingsError, of="--settings"):
        settings = read_settings(name)
    for problem in settings.problems:
        say_aside(f"{name}: {problem}")
    if settings.model is not None:
        works = "the script" if model is None else model
        say_aside(f"{name}: model: {works} works, and not {settings.model}")
    return settings


def _tell_idle_rules(
    script: Script, given: Sequence[Rule], file: str | None, in_file: Sequence[Rule]
) -> None:
    """Name the rules about tools that no agent has: in a settings file there are
    such for good reasons, so of these all in one line."""
    allowed = [agent.tools for agent in script.agents.values()]
    tools = [
        tool
        for tool in TOOL_NAMES
        if any(names is None or is_listed(tool, names) for names in allowed)
    ]

    def is_idle(rule: Rule) -> bool:
        return not any(rule.is_about(tool) for tool in tools)

    for rule in filter(is_idle, given):
        say_aside(
            f"--{rule.effect} {one_line(rule.text)}: it matches nothing, because the"
            f" tools of the agents are {', '.join(tools) or 'none'}"
        )
    idle = [one_line(rule.text, 80) for rule in in_file if is_idle(rule)]
    if idle:
        more = f" and {len(idle) - _NAMED} more" if len(idle) > _NAMED else ""
        say_aside(
            f"{file}: rules about tools that no agent has match nothing:"
            f" {', '.join(idle[:_NAMED])}{more}"
        )


def _read_agents(
    directory: str | None, model: str | None
) -> Mapping[str, AgentDefinition]:
    """Return the agents that are defined in ``directory``; say what is wrong with
    others there."""
    if directory is None:
        return {}
    if model is None:
        raise refusal("--agents needs --model: a script has agents of its own.")
    try:
        with refusing(ImportError):
            definitions, problems = read_definitions(directory)
    except OSError as error:
        raise refusal(f"{directory!r}: {error.strerror}.", "--agents") from error
    for problem in problems:
        given = problem.definition
        therefore = (
            "no agent comes of it"
            if given is None
            else f"the agent {given.name!r} is there, and can do less"
        )
        for line in str(problem).splitlines():
            say_aside(f"{line} ({therefore})")
    if not definitions:
        raise refusal(f"{directory!r}: no file there defines an agent.", "--agents")
    for one in definitions.values():
        if one.model is not None:
            say_aside(f"{one.source}: {model} works for it, and not {one.model}")
    return definitions


def _read_script(name: str) -> Script:
    try:
        text = Path(name).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise refusal(
            f"{name!r}: no such file. For a script, give its file; for a prompt, give"
            " --model as well, such as --model claude-sonnet-4-5.",
            _WHAT,
        ) from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
        raise refusal(f"{name!r}: {why}.", _WHAT) from error
    with refusing(ScriptError):
        return read_script(text, name, tools=TOOL_NAMES)


def _one_agent(prompt: str) -> Script:
    """Return the script of a host that runs one agent."""
    if not prompt.strip():
        raise refusal("the prompt is empty.", _WHAT)
    agent = AgentScript(name="agent", turns=())
    step = Step(action="run", agent="agent", text=prompt, place="host, step 1")
    return Script(source="the command line", agents={"agent": agent}, host=(step,))


def _provider(model: str) -> tuple[Provider, str]:
    """Return whose model it is, and what it is called there; see that both the
    package and the key are there."""
    named, _, rest = model.partition("/")
    provider: Provider | None = None
    if rest and named in get_args(Provider):
        provider, model = cast(Provider, named), rest
    elif model.startswith("claude"):
        provider = "anthropic"
    elif re.match(r"gpt|chatgpt|o[0-9]", model):
        provider = "openai"
    if provider is None:
        raise refusal(f"{model!r}: write anthropic/MODEL or openai/MODEL.", "--model")
    if find_spec(provider) is None:
        raise refusal(
            f"The package {provider} of this model is not installed: pip install"
            f" 'trio-supervisor[{provider}]', or '.[{provider}]' in its source."
        )
    key = f"{provider.upper()}_API_KEY"
    if not os.environ.get(key):
        raise refusal(f"No key for {model}: set {key} in the environment.")
    return provider, model
