"""Rules about tool calls: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import attrs

from actors.house import check_one_of, check_type, frozen

from ._paths import Place, home_directory
from ._tool_names import newer, newer_arguments

Effect: TypeAlias = Literal["allow", "deny", "ask"]


@frozen
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
        from ._matching import parsed_rule

        if parsed_rule(self).kind != "path":
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
        from ._matching import allows_call, forbids_call, parsed_rule, speaks_of

        parsed = parsed_rule(self)
        allows = self.effect == "allow" and not widely
        if not speaks_of(parsed, tool, arguments, allows=allows):
            return False
        if parsed.kind == "any":
            return True
        arguments = newer_arguments(tool, arguments)
        place = Place(cwd, self.root, real, home or home_directory())
        if allows:
            return allows_call(parsed, newer(tool), arguments, place)
        return forbids_call(parsed, newer(tool), arguments, place)

    def places(self, tool: str, cwd: str | None, home: str | None = None) -> list[str]:
        """Return the paths in the rule whose links must be followed to match it."""
        from ._matching import parsed_rule, speaks_of
        from ._path_patterns import anchors

        parsed = parsed_rule(self)
        if (
            self.effect == "allow"
            or parsed.kind != "path"
            or not speaks_of(parsed, tool, {}, allows=False)
        ):
            return []
        return anchors(
            parsed.pattern, Place(cwd, self.root, None, home or home_directory())
        )

    def is_about(self, tool: str) -> bool:
        """Return whether the rule could match a call of ``tool``."""
        from ._matching import parsed_rule, speaks_of

        return speaks_of(parsed_rule(self), tool, {}, allows=self.effect == "allow")
