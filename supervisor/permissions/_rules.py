"""Rules about tool calls, and how their patterns match: pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, get_args

import attrs

from actors.house import check_one_of, check_type

from ._command_patterns import allows_command, forbids_command, matches_command
from ._glob import matches_glob
from ._host_patterns import matches_domain, plain_host, possible_hosts
from ._path_patterns import anchors, pattern_allows, pattern_forbids
from ._paths import Place, home_directory, is_inside
from ._rule_reading import CONTENT, NAMED, ParsedRule, PatternKind, parse_rule
from ._tool_names import (
    ARGUMENTS,
    EDITING,
    KNOWN,
    PATH_ARGUMENTS,
    READING,
    all_names,
    is_known,
    is_of_server,
    meant_tool,
    newer,
    newer_arguments,
)

Effect: TypeAlias = Literal["allow", "deny", "ask"]


@attrs.frozen
class Rule:
    """One rule about tool calls, such as ``Rule("allow", "Bash(git status*)")``.

    ``text`` is what settings files of Claude Code hold: the name of a tool and, if
    the rule is not about all of its calls, a pattern in parentheses.
    A rule that allows matches strictly. One that denies or asks matches widely:

    ========================  =========================  ============================
    text                      to allow                   to deny or to ask, also
    ========================  =========================  ============================
    ``Bash``                  every command
    ``Bash(*)``               every simple command, see  every command
                              below
    ``Bash(npm run build)``   this command, word for     the same as any part of a
                              word, whatever it is       command; one word alone:
                                                         with any arguments
    ``Bash(git log *)``,      ``git log``, alone or      the same as any part of a
    ``Bash(git log:*)``       with anything behind a     command, behind what sets
                              blank: see below           variables, quoted, by its
                                                         path, run by ``sudo`` ...
    ``Bash(ls*)``             also ``lsof``
    ``Read(.env)``            this name at any depth in  anywhere
                              the agent's directory
    ``Read(./.env)``,         from the agent's           at any depth in it, and in
    ``Edit(docs/**)``         directory on               `root`
    ``Read(**/*.pem)``        at any depth in it         anywhere
    ``Edit(/src/**)``         from `root` on             the absolute path as well
    ``Read(//etc/**)``        the absolute path
    ``Read(~/.zshrc)``        in the home directory
    ``WebFetch(domain:X)``    addresses of this host;    also those that are written
                              ``*.X``: those below it    in an unusual way
    ``Agent(TYPE)``           agents of this type, also  in other capitals as well,
                              if the call leaves it      and messages that revive
                              out, or resumes one        one
    ``SendMessage(ID)``       messages to this agent
    ``Skill(NAME)``,          a skill, with ``NAME *``   with any arguments
    ``SlashCommand(/NAME)``   also with arguments
    ``mcp__SERVER``,          all tools of this server
    ``mcp__SERVER__*``
    ``mcp__SERVER__TOOL``     this one
    ``TOOL(NAME=PATTERN)``    the argument of this name  any value that is not text
    ``TOOL(NAME:VALUE)``      refused                    the argument of this name,
                                                         as it stands in JSON
    ========================  =========================  ============================

    A rule for ``Read`` is about all tools that read (``Grep``, ``Glob``, ``LS``,
    ``NotebookRead``). One for ``Edit`` is about all that change files (``MultiEdit``,
    ``Write``, ``NotebookEdit``). Other rules are about the tool that they name, under
    its older and newer names. ``Task`` is ``Agent``. ``KillShell`` and ``KillBash`` are
    ``TaskStop``. ``BashOutput`` and ``AgentOutputTool`` are ``TaskOutput``. A rule with
    a path that denies or asks reaches further: one for a tool that changes files is
    about all of these, and one for a tool that reads is about all that read and all
    that change. So ``Read(.env)`` also denies writing it. ``*`` stands for any
    characters, in a name and in all patterns but those for paths. A name that allows
    may hold it only behind ``mcp__SERVER__``, or before an argument.
    ``Rule("allow", "*")`` allows everything. It is for programs:
    `supervisor.settings_file` reads no such rule.

    **Commands.** With ``*`` in it, a pattern allows *one simple command* only: words,
    perhaps in quotes, on one line, which a shell takes as they are.
    So no ``;``, ``&``, ``|``, ``<``, ``>``, ``$``, backquote, backslash (but between
    single quotes), ``(``, ``)``, ``{``, ``}`` or ``#`` outside of quotes, no ``$``,
    backquote or backslash between double quotes, no line break or other control
    character anywhere, no variable set before the program, and no ``*``, ``?``,
    ``[``, ``~`` or ``/../`` in its name; and ``find`` without ``-exec``, ``-delete``
    and the like. The directory that the call asks for must be the agent's, or below
    it. Nobody looks at what the program then starts, so ``Bash(env *)`` allows
    everything. A denial is also about what TaskWrite writes to a command. It is a seat
    belt and not a wall. It does not see through variables that are put together, the
    output of commands, wildcards and braces in a program's name, encoded text, and what
    a program starts by itself (``python -c``, ``make``). Rules for paths do not hold
    for commands: ``Read(.env)`` does not deny ``cat .env``. If something must not
    happen, do not allow it in the first place. No pattern allows a command of more than
    131,072 characters, and each pattern that denies or asks matches it. Such patterns
    also match a command that holds others more than 24 deep.

    **Paths.** The patterns are those of gitignore: ``*``, ``?`` and ``[...]`` are for
    one name, and ``**`` is for any directories. A directory that matches does so with
    everything in it. A path is allowed if it matches by its name, after ``.`` and
    ``..``, *and* by where it leads when links are followed. It is denied if it
    matches by either. A search is denied for the directory and the pattern that it
    names, not for what it then finds there. No pattern allows a call of a tool for
    files with an argument that Claude Code does not know.

    If an argument is not text, or is missing, a rule that allows does not match. One
    that denies or asks matches if the argument is there. Defaults count as given.

    Args:
        effect: ``allow``, ``deny`` or ``ask``.
        text: see above. A text that is not a rule, or could never match, is refused
            with what to write: wrong capitals, blanks, ``:*`` in the middle, a
            command with ``*`` that is not a simple one, ``!``, braces, several rules
            in one text ... A name that no known tool has may be the name of a tool
            of the program. If there is no such tool when an agent begins, and the
            name is like that of another, a warning says so; also if the tool does
            not have the argument that is named.
        root: the directory that ``/`` at the beginning of a path stands for. For a
            settings file it is the directory of the project. None means the agent's
            own.

    Raises:
        TypeError, ValueError: for a bad rule. It names the rule, what is wrong, and
            what to write.
    """

    effect: Effect
    text: str
    root: str | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        check_one_of("effect", self.effect, get_args(Effect))
        check_type("text", self.text, str)
        if self.root is not None and not (
            isinstance(self.root, str) and self.root.startswith("/")
        ):
            raise ValueError(
                f"root must be an absolute path or None, not {self.root!r}"
            )
        if _parsed(self).kind != "path":
            # It makes no difference, and equal rules are equal.
            object.__setattr__(self, "root", None)

    def matches(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        cwd: str | None = None,
        *,
        real: Mapping[str, str] | None = None,
        home: str | None = None,
        widely: bool = False,
    ) -> bool:
        """Return whether this rule matches a call.

        Args:
            tool, arguments: the call, with the defaults of arguments that it leaves
                out.
            cwd: the directory of the agent that calls.
            real: where the paths in `places` lead. None means that nobody has looked.
                Then paths are judged by their names.
            home: the directory that ``~`` stands for. None means that of the program's
                own environment.
            widely: match as a rule that denies, even if this one allows.
        """
        parsed = _parsed(self)
        allows = self.effect == "allow" and not widely
        if not _speaks_of(parsed, tool, arguments, allows=allows):
            return False
        if parsed.kind == "any":
            return True
        arguments = newer_arguments(tool, arguments)
        place = Place(cwd, self.root, real, home or home_directory())
        if allows:
            return _allows(parsed, newer(tool), arguments, place)
        return _forbids(parsed, newer(tool), arguments, place)

    def places(self, tool: str, cwd: str | None, home: str | None = None) -> list[str]:
        """Return the paths in the rule whose links must be followed to match it."""
        parsed = _parsed(self)
        if (
            self.effect == "allow"
            or parsed.kind != "path"
            or not _speaks_of(parsed, tool, {}, allows=False)
        ):
            return []
        return anchors(
            parsed.pattern, Place(cwd, self.root, None, home or home_directory())
        )

    def is_about(self, tool: str) -> bool:
        """Return whether the rule could match a call of ``tool``."""
        return _speaks_of(_parsed(self), tool, {}, allows=self.effect == "allow")


def _parsed(rule: Rule) -> ParsedRule:
    return parse_rule(rule.text, allows=rule.effect == "allow")


def name_in(rule: Rule) -> str:
    """Return the name of a tool, or of several, that stands in a rule."""
    return _parsed(rule).name


def speaks_of_any(rule: Rule, tools: Iterable[str]) -> bool:
    """Tell whether one of ``tools`` has a call of which the rule could speak, as wide
    as if it denied."""
    parsed = _parsed(rule)
    # As a call of SendMessage that revives an agent.
    arguments = {"subagent_type": ""}
    return any(_speaks_of(parsed, tool, arguments, allows=False) for tool in tools)


def is_about_paths(rule: Rule) -> bool:
    """Tell whether a rule has a pattern for paths."""
    return _parsed(rule).kind == "path"


def misspelt(rule: Rule, there: Sequence[str]) -> str | None:
    """Return the tool that is nearest to the name in a rule that speaks of no tool
    that is known or ``there``; None if it does, or none is near."""
    if speaks_of_any(rule, (*KNOWN, *there)):
        return None
    return meant_tool(_parsed(rule).name.replace("*", ""), there)


def doubtful(rule: Rule) -> str | None:
    """Return what in a rule is hardly what its writer has meant; None if nothing."""
    parsed = _parsed(rule)
    name, text = parsed.name, f"the rule {rule.text!r}"
    if not any(sign in name for sign in "_*") and not is_known(name):
        hint = meant_tool(name)
        meant = f"{hint} may be meant" if hint else "MCP tools are mcp__SERVER__TOOL"
        return f"{text} speaks of no tool that is known: {meant}"
    if parsed.kind == "path" and name not in ("Edit", "Read"):
        better = "Edit" if name in EDITING else "Read"
        instead = f"use {better}({parsed.pattern}) in place of {rule.text}"
        if rule.effect == "allow":
            return f"{text} allows this tool alone: {instead}"
        return f"{text} is read for every tool like it: {instead}"
    why = no_such_argument(rule, {})
    return None if why is None else f"{text} may be misspelt: {why}"


def no_such_argument(rule: Rule, takes: Mapping[str, Collection[str]]) -> str | None:
    """Return what is wrong with the argument that a rule names and its tool has not,
    as ``takes`` tells of tools by their newer names; None if nothing is.

    What stands for a command, a path or a name may be right: it is doubted only if a
    known argument is like it."""
    parsed = _parsed(rule)
    name, tool = parsed.name, newer(parsed.name)
    known = ARGUMENTS.get(tool, frozenset())
    if parsed.kind in ("argument", "parameter"):
        has = takes.get(tool)
        if has is None or parsed.argument in known or parsed.argument in has:
            return None
        there = ", ".join(sorted(has)) or "none"
        return f"{name} has no argument {parsed.argument}; it has {there}"
    named = NAMED.fullmatch(parsed.pattern)
    if parsed.kind not in ("text", "path", "command") or named is None:
        return None
    said, sign, value = named.groups()
    near = get_close_matches(said, sorted(known - {said}), cutoff=0.75)
    # `Bash(timeouts:*)` is a program.
    if not near or said in known or (parsed.kind == "command" and sign + value == ":*"):
        return None
    # Two letters that have changed their places are nearest.
    meant = min(near, key=lambda one: sorted(one) != sorted(said))
    right = value if meant == CONTENT.get(tool) else f"{meant}{sign}{value}"
    return f"{name} has no argument {said}; {name}({right}) may be meant"


# ---- Of which tools it speaks -------------------------------------------------


def _speaks_of(
    parsed: ParsedRule, tool: str, arguments: Mapping[str, Any], *, allows: bool
) -> bool:
    name, today = parsed.name, newer(tool)
    if name == "Read" and today in READING:
        return True
    if name == "Edit" and today in EDITING:
        return True
    if parsed.kind == "path" and not allows:
        # What is not to be changed is so by no tool; what not to be read is not to
        # be changed either: who writes a file knows what is in it.
        if name in EDITING and today in EDITING:
            return True
        if name in READING and today in PATH_ARGUMENTS:
            return True
    if name == "Bash" and today == "TaskWrite":
        # A shell may read it.
        return not allows and parsed.kind == "command"
    if newer(name) == "Agent" and tool == "SendMessage":
        # It would go on with an agent that has ended.
        return not allows and "subagent_type" in arguments
    if newer(name) == today or is_of_server(name, tool):
        return True
    if "*" not in name:
        return False
    names = (tool, today) if allows else all_names(tool)
    return any(matches_glob(name, one) for one in names)


def _kind_for(parsed: ParsedRule, tool: str) -> PatternKind:
    # By the tool and not by the rule: that may speak of several.
    if parsed.kind == "argument":
        if tool == "Bash" and parsed.argument == "command":
            return "command"
        if PATH_ARGUMENTS.get(tool) == parsed.argument:
            return "path"
    return parsed.kind


def _allows(
    parsed: ParsedRule, tool: str, arguments: Mapping[str, Any], place: Place
) -> bool:
    kind, pattern = _kind_for(parsed, tool), parsed.pattern
    if kind == "path":
        return pattern_allows(pattern, tool, arguments, place)
    value = arguments.get(parsed.argument)
    if not isinstance(value, str):
        return False
    match kind:
        case "command":
            home = is_inside(arguments.get("cwd"), place)
            return home and allows_command(pattern, value)
        case "domain":
            host = plain_host(value)
            return host is not None and matches_domain(pattern, host)
        case "url":
            return plain_host(value) is not None and matches_glob(pattern, value)
        case "skill":
            known = isinstance(arguments.get("args"), str | None)
            return known and matches_command(pattern, _skill(value, arguments))
        case _:
            return matches_glob(pattern, value)


def _forbids(
    parsed: ParsedRule, tool: str, arguments: Mapping[str, Any], place: Place
) -> bool:
    kind, pattern = _kind_for(parsed, tool), parsed.pattern
    if kind == "path":
        return pattern_forbids(pattern, tool, arguments, place)
    if kind == "parameter":
        value = arguments.get(parsed.argument)
        return _is_huge(value) or _matches_parameter(pattern, value)
    value = arguments.get("text" if tool == "TaskWrite" else parsed.argument)
    if value is None:
        return False
    if not isinstance(value, str):
        return True
    match kind:
        case "command":
            return forbids_command(pattern, value)
        case "domain":
            hosts = possible_hosts(value)
            return hosts is None or any(matches_domain(pattern, it) for it in hosts)
        case "url":
            return matches_glob(pattern.casefold(), value.strip().casefold())
        case "skill":
            whole = _skill(value, arguments).casefold()
            pattern = pattern.casefold()
            return any(
                matches_command(pattern, it) for it in (whole, *whole.split()[:1])
            )
        case "text":
            return matches_glob(pattern.casefold(), value.strip().casefold())
        case _:
            return matches_glob(pattern, value)


def _matches_parameter(pattern: str, value: object) -> bool:
    if value is None:
        return False
    if isinstance(value, bool | int | float) and not _is_huge(value):
        return matches_glob(pattern.casefold(), json.dumps(value))
    return not isinstance(value, str) or matches_glob(pattern, value)


def _is_huge(value: object) -> bool:
    """Tell whether it is a number that Python writes down for nobody."""
    return isinstance(value, int) and abs(value) >= 10**4000


def _skill(name: str, arguments: Mapping[str, Any]) -> str:
    more = arguments.get("args")
    if more is not None and not isinstance(more, str):
        more = None  # Nobody knows what a skill makes of it.
    return f"{name.removeprefix('/')} {more or ''}".strip() or name
