"""Rules about tool calls, and how their patterns match: pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, get_args
from urllib.parse import unquote, urlsplit

import attrs

from actors.lowlevel import check_one_of, check_type

from ._command_reading import COMPOUND, Line, read_command
from ._glob import matches_glob
from ._meant_tools import meant_tool
from ._path_patterns import (
    BadPattern,
    Place,
    anchors,
    check_pattern,
    home_directory,
    is_inside,
    pattern_allows,
    pattern_forbids,
)
from ._several import (
    several_addresses,
    several_commands,
    several_names,
    several_paths,
    several_rules,
)
from ._tool_names import (
    ARGUMENTS,
    EDITING,
    KNOWN,
    PATH_ARGUMENTS,
    READING,
    all_names,
    is_known,
    is_of_server,
    known_spelling,
    newer,
    newer_arguments,
)

Effect: TypeAlias = Literal["allow", "deny", "ask"]

_TEXT_ARGUMENTS: Final = {"Agent": "subagent_type", "SendMessage": "to"}
_CONTENT: Final = {"Bash": "command", "WebFetch": "url", **PATH_ARGUMENTS}
"""Of which argument a bare pattern speaks."""

_SHAPE: Final = re.compile(r"([A-Za-z0-9_.*-]+)(?:\((.*)\))?", re.DOTALL)
_ARGUMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_PARAMETER: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*:\s*(.*)", re.DOTALL)
_CODEX: Final = re.compile(r"\s*(?:prefix_rule|host_executable|network_rule)\s*\(")

Kind: TypeAlias = Literal[
    "any", "command", "path", "text", "domain", "url", "skill", "argument", "parameter"
]


@attrs.frozen
class Rule:
    """One rule about tool calls, such as ``Rule("allow", "Bash(git status*)")``.

    ``text`` is what settings files of Claude Code hold: the name of a tool, and
    after it in parentheses, if the rule is not for all calls, what it speaks of.
    Allowing is strict, denying and asking are wide:

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
    ``TOOL(NAME=PATTERN)``    the argument of this name  of which nothing is known,
                                                         since it is no text
    ``TOOL(NAME:VALUE)``      refused                    the argument of this name,
                                                         as it stands in JSON
    ========================  =========================  ============================

    A rule for ``Read`` speaks of all tools that read (``Grep``, ``Glob``, ``LS``,
    ``NotebookRead``), one for ``Edit`` of all that change files (``MultiEdit``,
    ``Write``, ``NotebookEdit``); others speak of the tool that they name, under its
    older and newer names: ``Task`` is ``Agent``; ``KillShell`` and ``KillBash`` are
    ``TaskStop``; ``BashOutput`` and ``AgentOutputTool`` are ``TaskOutput``. With a
    path, what denies or asks for one tool that changes files speaks of all of them,
    and what does for one that reads, of all that read and all that change: ``Read``
    with ``.env`` also denies writing it. In a name and in all patterns but those for
    paths ``*`` stands for any characters. A name that allows may hold it behind
    ``mcp__SERVER__`` only, or before an argument; ``Rule("allow", "*")`` allows
    everything and is for programs: `supervisor.settings_file` reads no such rule.

    **Commands.** With ``*`` in it, a pattern allows *one simple command* only: words,
    and quotes round them, on one line, and nothing that a shell could make more of.
    So no ``;``, ``&``, ``|``, ``<``, ``>``, ``$``, backquote, backslash (but between
    single quotes), ``(``, ``)``, ``{``, ``}`` or ``#`` outside of quotes, no ``$``,
    backquote or backslash between double quotes, no line break or other control
    character anywhere, no variable set before the program, and no ``*``, ``?``,
    ``[``, ``~`` or ``/../`` in its name; and ``find`` without ``-exec``, ``-delete``
    and the like. The directory that the call asks for must be the agent's, or below
    it. What the program then starts is its own affair: ``Bash(env *)`` allows
    everything.
    A denial speaks of what TaskWrite writes to a command as well. It is a seat belt
    and no wall: it does not see through variables that are put together, the output
    of commands, wildcards and braces in a program's name, encoded text, and what a
    program starts by itself (``python -c``, ``make``). Nor do rules for paths speak of
    commands: ``Read(.env)`` does not deny ``cat .env``. What must not happen is not
    allowed in the first place. A command of more than 131,072 characters is allowed
    by no pattern, and matched by each that denies or asks; so is, by these, one that
    holds others more than 24 deep.

    **Paths.** The patterns are those of gitignore: ``*``, ``?`` and ``[...]`` are for
    one name, ``**`` for any directories, and a directory that matches does so with
    all that is in it. A path is allowed if it matches by its name, after ``.`` and
    ``..``, *and* by where it leads when links are followed; it is denied if it does
    by either. A search is denied for the directory and the pattern that it names,
    not for what it then finds there. Of a tool for files with an argument that is
    not among those of Claude Code nothing is allowed by a pattern.

    Of an argument that is no text, or not there, nothing is known: a rule that
    allows does not match then, and one that denies or asks does if it is there.
    Arguments are looked at with what holds where a call leaves them out.

    Args:
        effect: ``allow``, ``deny`` or ``ask``.
        text: see above. What is none of these, or could never match, is refused
            with what to write: wrong capitals, blanks, ``:*`` in the middle, a
            command with ``*`` that is no simple one, ``!``, braces, several rules
            in one text ... A name that no known tool has may be that of one of the
            program's own: if it is none there when an agent begins, and like that
            of a tool, a warning says so.
        root: the directory that ``/`` at the beginning of a path stands for: that of
            the settings file's project. None is the agent's own.

    Raises:
        TypeError, ValueError: naming the rule, what is wrong, and what to write.
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
        parsed = _parse(self.text)
        _check_one(self.text, parsed, allows=self.effect == "allow")
        if self.effect == "allow":
            _check_allows(self.text, parsed)
        if parsed.kind != "path":
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
        """Tell whether this rule speaks of a call.

        Args:
            tool, arguments: the call, with what holds where it leaves something out.
            cwd: the directory of the agent that makes it.
            real: where paths lead, as `places` wants to know; None if nobody has
                looked: then they are judged by their names.
            home: what ``~`` stands for; None is by the program's own environment.
            widely: as wide as if it denied, also if it allows.
        """
        parsed = _parse(self.text)
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
        """Return the paths in the rule of which it wants to know where they lead."""
        parsed = _parse(self.text)
        if (
            self.effect == "allow"
            or parsed.kind != "path"
            or not _speaks_of(parsed, tool, {}, allows=False)
        ):
            return []
        return anchors(
            parsed.pattern, Place(cwd, self.root, None, home or home_directory())
        )


def is_about(rule: Rule, tool: str) -> bool:
    """Tell whether there is a call of ``tool`` that the rule could speak of."""
    allows = rule.effect == "allow"
    return _speaks_of(_parse(rule.text), tool, {}, allows=allows)


def name_in(rule: Rule) -> str:
    """Return the name of a tool, or of several, that stands in a rule."""
    return _parse(rule.text).name


def speaks_of_any(rule: Rule, tools: Iterable[str]) -> bool:
    """Tell whether one of ``tools`` has a call of which the rule could speak, as wide
    as if it denied."""
    parsed = _parse(rule.text)
    # As a call of SendMessage that revives an agent.
    arguments = {"subagent_type": ""}
    return any(_speaks_of(parsed, tool, arguments, allows=False) for tool in tools)


# ---- What a text says ---------------------------------------------------------


@attrs.frozen
class _Parsed:
    name: str
    kind: Kind = "any"
    pattern: str = ""
    argument: str = ""


class _Refused(ValueError):
    """What is wrong with a rule, without its text."""


@lru_cache(maxsize=1024)
def _parse(text: str) -> _Parsed:
    """Return what a rule says.

    Raises:
        ValueError: naming the rule.
    """
    try:
        return _read(text)
    except (_Refused, BadPattern) as error:
        raise ValueError(f"the rule {text!r} cannot be honoured: {error}") from None


def _read(text: str) -> _Parsed:
    if _CODEX.match(text):
        raise _Refused(
            "this is Codex's language; a prefix is written Bash(git status:*), and"
            " what is decided about it is the effect"
        )
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        raise _Refused(_what_shape(text))
    name, pattern = shape.groups()
    if (known := known_spelling(name)) is not None:
        raise _Refused(f"write {json.dumps(text.replace(name, known, 1))}")
    if newer(name) == "Cd":
        raise _Refused(
            "nothing here is called Cd; an agent's directory is Agent.cwd: leave the"
            " rule out"
        )
    if pattern is None:
        return _Parsed(name)
    if not pattern.strip():
        raise _Refused(
            f"there is nothing in the parentheses: write {name} for all calls"
        )
    if (several := several_rules(name, pattern)) is not None:
        raise _Refused(several)
    parsed = _read_pattern(name, pattern.strip())
    if pattern != pattern.strip():
        if parsed.kind == "argument":
            return attrs.evolve(parsed, pattern=pattern.partition("=")[2])
        raise _Refused(f"write {name}({pattern.strip()}), without the blanks")
    return parsed


def _what_shape(text: str) -> str:
    """Return what to write in the place of a text that is no rule."""
    general = "a rule is TOOL or TOOL(PATTERN), such as Bash(git status*)"
    tight = re.sub(r"\A\s*([A-Za-z0-9_.*-]+)\s*\(", r"\1(", text).strip()
    if tight != text and _SHAPE.fullmatch(tight):
        return f"write {json.dumps(tight)}, without the blanks"
    if re.fullmatch(
        r"[A-Za-z0-9_.*-]+(\([^()]*\))?(\s*[,;|]\s*[A-Za-z0-9_.*-]+(\([^()]*\))?)+",
        text.strip(),
    ):
        return f"write a rule for each tool, as separate texts: {general}"
    if text.count("(") and not text.rstrip().endswith(")"):
        return f"the parenthesis is not closed: {general}"
    return general


def _read_pattern(name: str, pattern: str) -> _Parsed:
    tool = newer(name)
    named = _ARGUMENT.fullmatch(pattern)
    told = _PARAMETER.fullmatch(pattern)
    known = ARGUMENTS.get(tool, frozenset())
    if pattern == "*" and tool != "Bash" and tool not in PATH_ARGUMENTS:
        return _Parsed(name)
    if tool in _CONTENT:
        content = _CONTENT[tool]
        for found in (named, told):
            if found is not None and found[1] == content:
                raise _Refused(f"write {name}({found[2] or 'PATTERN'})")
    if tool == "Bash" and told is not None and told[2] == "*":
        # `Bash(timeout:*)` is the program, as all that end in this.
        return _read_command(name, pattern)
    if told is not None and told[1] in known and told[1] != "domain":
        return _parameter(name, told[1], told[2])
    if named is not None and named[1] in known:
        return _Parsed(name, "argument", named[2], named[1])
    if tool == "Bash":
        return _read_command(name, pattern)
    if tool in PATH_ARGUMENTS:
        check_pattern(pattern)
        if (several := several_paths(name, pattern)) is not None:
            raise _Refused(several)
        return _Parsed(name, "path", pattern, PATH_ARGUMENTS[tool])
    if tool == "WebFetch":
        return _read_address(name, pattern)
    if tool in ("Skill", "SlashCommand"):
        return _read_skill(name, tool, pattern)
    if tool in _TEXT_ARGUMENTS:
        if (several := several_names(name, pattern)) is not None:
            raise _Refused(several)
        if pattern.endswith(":*"):
            raise _Refused(f"`:*` is for commands: write {name}({pattern[:-2]})")
        return _Parsed(name, "text", pattern, _TEXT_ARGUMENTS[tool])
    if named is not None:
        return _Parsed(name, "argument", named[2], named[1])
    if told is not None and told[2]:
        return _parameter(name, told[1], told[2])
    meant = meant_tool(name)
    if meant is not None and not is_known(name):
        raise _Refused(
            f"no tool is known that is called {name}; {meant} may be meant: write"
            f" {meant}({pattern}), or {name}(ARGUMENT={pattern}) about a tool of your"
            " own"
        )
    raise _Refused(
        f"a rule about {name} says of which argument it speaks:"
        f" {name}(ARGUMENT={pattern}), or {name} for all calls"
    )


def _parameter(name: str, argument: str, value: str) -> _Parsed:
    if not value:
        raise _Refused(f"it names no value: write {name}({argument}:VALUE)")
    if newer(name) == "Agent" and argument == "subagent_type":
        return _Parsed(name, "text", value, argument)
    return _Parsed(name, "parameter", value, argument)


def _read_command(name: str, pattern: str) -> _Parsed:
    prefix = pattern.removesuffix(":*")
    if prefix != pattern and (not prefix or prefix == "*"):
        raise _Refused(f"write {name} for all calls")
    if prefix.endswith(":*"):
        raise _Refused(f"`:*` stands there once: write {name}({prefix})")
    if re.search(r"\w:\*\s*[,;|]", prefix):
        each = [part.strip() for part in re.split("[,;|]", pattern) if part.strip()]
        better = " and ".join(f"{name}({part})" for part in each)
        raise _Refused(f"one text is one rule: write them as separate texts, {better}")
    if re.search(r"\w:\*\s", prefix):
        better = " ".join(prefix.replace(":*", " *").split())
        raise _Refused(f"`:*` stands at the end only: write {name}({better})")
    if re.search(r":\s+\*\Z", pattern):
        better = re.sub(r":\s+\*\Z", ":*", pattern)
        raise _Refused(f"write {name}({better}), without the blank")
    return _Parsed(name, "command", pattern, "command")


def _read_address(name: str, pattern: str) -> _Parsed:
    if pattern[:7].lower() == "domain:":
        domain = pattern[7:].strip().rstrip(".").lower()
        if re.fullmatch(r"[a-z][a-z0-9+.-]*://.*|[^/]*[/?#:@].*", domain):
            host = re.sub(r"\A[a-z][a-z0-9+.-]*://", "", domain)
            host = re.split(r"[/?#:]", host.rpartition("@")[2])[0]
            raise _Refused(f"a domain is a host's name: write {name}(domain:{host})")
        if not re.fullmatch(r"[\w*-]+(\.[\w*-]+)*", domain):
            raise _Refused(f"a domain is one host's name: {name}(domain:example.com)")
        try:
            return _Parsed(name, "domain", _ascii_host(domain), "url")
        except UnicodeError:
            raise _Refused(f"no host has this name: {domain!r}") from None
    if re.match(r"\*|[a-z]+\*?://", pattern):
        if (several := several_addresses(name, pattern)) is not None:
            raise _Refused(several)
        return _Parsed(name, "url", pattern, "url")
    if "," in pattern or "|" in pattern:
        raise _Refused(f"write a rule for each host: {name}(domain:example.com)")
    # `domains:X` and `domain=X` as well as X alone.
    host = re.sub(r"(?i)\A(?:domains?|hosts?|hostname|sites?|url)\s*[:=]", "", pattern)
    host = re.sub(r"\A[a-z][a-z0-9+.-]*://", "", host.strip())
    raise _Refused(f"write {name}(domain:{re.split('[/:]', host)[0]})")


def _read_skill(name: str, tool: str, pattern: str) -> _Parsed:
    if ":*" in pattern.removesuffix(":*"):
        raise _Refused("`:*` stands at the end only")
    if pattern.startswith("*"):
        raise _Refused(f"write {name} for all")
    if (several := several_names(name, pattern.split()[0])) is not None:
        raise _Refused(several)
    argument = "skill" if tool == "Skill" else "command"
    return _Parsed(name, "skill", pattern.removeprefix("/"), argument)


def _check_one(text: str, parsed: _Parsed, *, allows: bool) -> None:
    """Refuse several commands in one rule."""
    if parsed.kind == "command":
        wrong = several_commands(parsed.name, parsed.pattern, allows=allows)
        if wrong is not None:
            raise ValueError(f"the rule {text!r} cannot be honoured: {wrong}")


def is_anchored(text: str) -> bool:
    """Tell whether the name in a rule is that of one tool, or begins with that of one
    server: ``mcp__SERVER__``."""
    name = _parse(text).name
    return "*" not in name or re.match(r"mcp__[^*]+?__", name) is not None


def is_about_paths(rule: Rule) -> bool:
    """Tell whether a rule has a pattern for paths."""
    return _parse(rule.text).kind == "path"


def misspelt(rule: Rule, there: Sequence[str]) -> str | None:
    """Return the tool that is nearest to the name in a rule that speaks of no tool
    that is known or ``there``; None if it does, or none is near."""
    if speaks_of_any(rule, (*KNOWN, *there)):
        return None
    return meant_tool(_parse(rule.text).name.replace("*", ""), there)


def doubtful(rule: Rule) -> str | None:
    """Return what in a rule is hardly what its writer has meant; None if nothing."""
    parsed = _parse(rule.text)
    name, text = parsed.name, f"the rule {rule.text!r}"
    if not any(sign in name for sign in "_*") and not is_known(name):
        hint = meant_tool(name)
        meant = f"{hint} may be meant" if hint else "MCP tools are mcp__SERVER__TOOL"
        return f"{text} speaks of no tool that is known: {meant}"
    if parsed.kind == "path" and name in PATH_ARGUMENTS and name not in _OF_ALL:
        better = "Edit" if name in EDITING else "Read"
        instead = f"use {better}({parsed.pattern}) in place of {rule.text}"
        if rule.effect == "allow":
            return f"{text} allows this tool alone: {instead}"
        return f"{text} is read for every tool like it: {instead}"
    told = _PARAMETER.fullmatch(parsed.pattern)
    arguments = ARGUMENTS.get(newer(name), frozenset())
    if parsed.kind in ("text", "path") and told is not None:
        said = told[1]
        near = get_close_matches(said, sorted(arguments - {said}), cutoff=0.75)
        if near and said not in arguments:
            # Two letters that have changed their places are nearest.
            meant = min(near, key=lambda one: sorted(one) != sorted(said))
            value = f"{name}({meant}:{told[2]})"
            return f"{text} names no argument of {name}: {value} may be meant"
    return None


_OF_ALL: Final = ("Edit", "Read")


def _check_allows(text: str, parsed: _Parsed) -> None:
    """Refuse what can never allow anything, or would allow what nobody has named."""
    name, pattern = parsed.name, parsed.pattern
    if parsed.kind == "any" and name != "*" and not is_anchored(text):
        raise ValueError(
            f"the rule {text!r} cannot be honoured: it would allow tools that nobody"
            " has named; write a rule for each tool, or mcp__SERVER__* for those of"
            " one server"
        )
    if parsed.kind == "parameter":
        raise ValueError(
            f"the rule {text!r} cannot be honoured: one argument does not make a call"
            f" safe; to allow it all the same write {name}({parsed.argument}={pattern})"
        )
    if parsed.kind == "url" and not re.fullmatch(
        r"https?://[\w.-]+(:\d+)?/.*", pattern
    ):
        raise ValueError(
            f"the rule {text!r} cannot be honoured: it would also allow other hosts;"
            f" write {name}(domain:HOST)"
        )
    if parsed.kind == "command" and "*" in pattern:
        example = pattern.removesuffix(":*").replace("*", "x")
        if not is_simple_command(example):
            raise ValueError(
                f"the rule {text!r} cannot be honoured: with `*` a rule allows one"
                " simple command, and this is none (see Rule); write a rule for each"
                " command in it, or the whole command without `*`"
            )


# ---- Of which tools it speaks -------------------------------------------------


def _speaks_of(
    parsed: _Parsed, tool: str, arguments: Mapping[str, Any], *, allows: bool
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


def _kind(parsed: _Parsed, tool: str) -> Kind:
    # By the tool and not by the rule: that may speak of several.
    if parsed.kind == "argument":
        if tool == "Bash" and parsed.argument == "command":
            return "command"
        if PATH_ARGUMENTS.get(tool) == parsed.argument:
            return "path"
    return parsed.kind


def _allows(
    parsed: _Parsed, tool: str, arguments: Mapping[str, Any], place: Place
) -> bool:
    kind, pattern = _kind(parsed, tool), parsed.pattern
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
            host = _plain_host(value)
            return host is not None and _matches_domain(pattern, host)
        case "url":
            return _plain_host(value) is not None and matches_glob(pattern, value)
        case "skill":
            known = isinstance(arguments.get("args"), str | None)
            return known and _matches_command(pattern, _skill(value, arguments))
        case _:
            return matches_glob(pattern, value)


def _forbids(
    parsed: _Parsed, tool: str, arguments: Mapping[str, Any], place: Place
) -> bool:
    kind, pattern = _kind(parsed, tool), parsed.pattern
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
            hosts = _possible_hosts(value)
            return hosts is None or any(_matches_domain(pattern, it) for it in hosts)
        case "url":
            return matches_glob(pattern.casefold(), value.strip().casefold())
        case "skill":
            whole = _skill(value, arguments).casefold()
            pattern = pattern.casefold()
            return any(
                _matches_command(pattern, it) for it in (whole, *whole.split()[:1])
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


def _matches_command(pattern: str, command: str) -> bool:
    """Tell whether a pattern for commands is all of ``command``. A blank and ``*`` at
    the end, also written ``:*``, stand for nothing as well if there is no other."""
    # Behind a blank it may be no sign of a prefix, but a colon: `lsof -i :*`.
    if pattern.endswith(":*") and not pattern.endswith(" :*"):
        pattern = pattern.removesuffix(":*") + " *"
    bare = pattern.removesuffix(" *")
    return matches_glob(pattern, command) or (
        bare != pattern and "*" not in bare and command == bare
    )


# ---- Hosts --------------------------------------------------------------------


def _ascii_host(host: str) -> str:
    """Return the name of a host as programs tell it to each other."""
    if host.isascii():
        return host
    return ".".join(
        part if part.isascii() else part.encode("idna").decode()
        for part in host.split(".")
    )


def _plain_host(address: str) -> str | None:
    """Return the host of an address that every program reads in one way."""
    found = re.fullmatch(
        r"https?://([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\.?(?::[0-9]{1,5})?"
        r"(?:[/?#][!-\[\]-~]*)?",
        address,
    )
    return None if found is None else found[1].lower()


def _possible_hosts(address: str) -> list[str] | None:
    """Return the hosts that an address may lead to; None if nobody knows."""
    plain = re.sub(r"[\x00-\x20\x7f]", "", address).replace("\\", "/")
    plain = re.sub(r"\A(?:view-source:)?(?:[A-Za-z][A-Za-z0-9+.-]*:)?/*", "//", plain)
    found: list[str] = []
    for one in (plain, unquote(plain)):
        authority = re.split(r"[/?#]", one[2:], maxsplit=1)[0]
        for whole in (authority, authority.rpartition("@")[2]):
            host = re.sub(r":[0-9]*\Z", "", whole)
            host = re.sub("[\u3002\uff0e\uff61]", ".", host).rstrip(".").lower()
            try:
                found.append(_ascii_host(host))
            except UnicodeError:
                return None
    try:
        found.append((urlsplit(address.strip()).hostname or "").rstrip(".").lower())
    except ValueError:
        return None
    return [*dict.fromkeys(found)]


def _matches_domain(pattern: str, host: str) -> bool:
    if pattern == "*":
        return True
    below, wanted = "", pattern
    if pattern.startswith("*."):
        below, wanted = r"(?:[^.]+\.)+", pattern[2:]
    text = "[^.]*".join(re.escape(part) for part in wanted.split("*"))
    return re.fullmatch(below + text, host) is not None


# ---- Shell commands -----------------------------------------------------------

_PLAIN: Final = re.compile(
    r"""
    (?:
        [^\x00-\x08\x0a-\x1f\x7f'"\\$`;&|<>(){}\#]    # as it is
      | '[^\x00-\x08\x0a-\x1f\x7f']*'
      | "[^\x00-\x08\x0a-\x1f\x7f"\\$`]*"
    )*+
    """,
    re.VERBOSE,
)
"""One line of words, quoted or not, that a shell takes for one command."""

COMMAND_LIMIT: Final = 131_072
"""Characters of a command that rules look at. Linux runs none that is longer."""

_FINDING: Final = re.compile(
    r"-(?:exec|execdir|ok|okdir|delete|fls|fprint0?|fprintf)\Z"
)


def is_simple_command(command: str) -> bool:
    """Tell whether a shell would run this as one program with plain arguments."""
    program = re.split("[ \t]", command.lstrip(" \t"), maxsplit=1)[0]
    return (
        bool(program)
        and program not in COMPOUND
        and not any(character in program for character in "=~*?[")
        and not _climbs(program)
        and _PLAIN.fullmatch(command) is not None
    )


def _climbs(path: str) -> bool:
    """Tell whether a path leaves again a directory that it has named."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    while parts and parts[0] == ".." and not path.startswith("/"):
        parts.pop(0)
    return ".." in parts


def allows_command(pattern: str, command: str) -> bool:
    """Tell whether a pattern that allows speaks of a command."""
    if len(command) > COMMAND_LIMIT:
        return False
    command = command.strip(" \t")
    if "*" not in pattern:
        return command == pattern
    return (
        is_simple_command(command)
        and _matches_command(pattern, command)
        and not _finds_and_does(command)
    )


def _finds_and_does(command: str) -> bool:
    """Tell whether it is a ``find`` that does something with what it finds."""
    words = command.replace("'", "").replace('"', "").split()
    return words[0].rpartition("/")[2] == "find" and any(map(_FINDING.match, words))


def forbids_command(pattern: str, command: str) -> bool:
    """Tell whether a pattern that denies or asks speaks of anything in a command."""
    if len(command) > COMMAND_LIMIT:
        return True
    reading = read_command(command)
    if not reading.is_complete:
        return True
    wanted, whole = _wanted(pattern)
    return any(
        matches_glob(one, text) for one in whole for text in reading.whole
    ) or any(matches(line) for matches in wanted for line in reading.lines)


@lru_cache(maxsize=1024)
def _wanted(pattern: str) -> tuple[tuple[Callable[[Line], bool], ...], tuple[str, ...]]:
    """Return what a pattern wants of one command, and of the whole text."""
    prefix = pattern.removesuffix(":*")
    plain = " ".join(prefix.split())
    texts = [prefix, plain, plain.translate(_QUOTES)]
    program, blank, rest = plain.partition(" ")
    texts.append(program.rpartition("/")[2] + blank + rest)
    texts = [text for text in dict.fromkeys(texts) if text]
    whole = [pattern, *texts]
    if any(sign in plain for sign in ";&|<>(){}`$\n"):
        whole += [f"*{text}*" for text in texts]
    found: list[Callable[[Line], bool]] = [
        _Words(text, is_prefix=prefix != pattern) for text in texts
    ]
    if prefix != pattern:
        found.append(_Words(pattern))
    return tuple(found), tuple(dict.fromkeys(whole))


_QUOTES: Final = str.maketrans("", "", "'\"\\")
_IN_NAME: Final = re.compile(r"[\w.-]")


class _Words:
    """Looks for a pattern at each place of a line where a program may begin."""

    def __init__(self, pattern: str, *, is_prefix: bool = False) -> None:
        bare = pattern.removesuffix(" *")
        # One word alone means the program, whatever it is given.
        self._is_prefix = is_prefix or (bare == pattern and " " not in pattern)
        if bare != pattern and "*" not in bare:
            pattern, self._is_prefix = bare, True
            self._needs_blank = True
        else:
            self._needs_blank = not is_prefix
        self._pattern = pattern
        self._bare = bare if bare != pattern and "*" in bare else None
        self._first, *self._rest = pattern.split("*")

    def __call__(self, line: Line) -> bool:
        text = line.text
        if self._is_prefix and not self._rest:
            return any(self._ends(text, it) for it in line.starts)
        if self._is_prefix:
            return self._matches_glob(line, self._pattern + " *") or (
                self._matches_glob(line, self._pattern)
            )
        if not self._rest:
            start = len(text) - len(self._pattern)
            return start in line.starts and text.endswith(self._pattern)
        return self._matches_glob(line, self._pattern) or (
            self._bare is not None and self._matches_glob(line, self._bare)
        )

    def _matches_glob(self, line: Line, pattern: str) -> bool:
        text = line.text
        if not self._first:
            return matches_glob(pattern, text)
        # If it does not match from the first place on, it does from no later one.
        for start in line.starts:
            if text.startswith(self._first, start):
                return matches_glob(pattern, text[start:])
        return False

    def _ends(self, text: str, start: int) -> bool:
        """Tell whether the pattern stands at ``start``, and ends with a word."""
        if not text.startswith(self._pattern, start):
            return False
        following = text[start + len(self._pattern) :][:1]
        if following in ("", " "):
            return True
        return not self._needs_blank and not (
            _IN_NAME.match(following) and _IN_NAME.match(self._pattern[-1])
        )
