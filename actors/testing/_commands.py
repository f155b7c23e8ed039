"""What the commands of a test do, and the check of what a test says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction, unwrap
from typing import TypeAlias, cast

import trio

from ._program import Program, Script, check_exit_code

Outcome: TypeAlias = Script | str | int | OSError
Commands: TypeAlias = Mapping[str, Outcome] | Callable[[str], Outcome]
"""What commands do: a mapping from command lines, or a function of one.

A command line is mapped to one of these:

- a script;
- a str. The command prints it and exits with 0.
- an int. The command prints nothing and exits with this code.
- an OSError. The command cannot be started, for this error.
"""


class Unscripted(LookupError):
    """Raised when a command is started that the test has not described.

    The task that wanted it fails with this error. Add the command line to the
    mapping that `fake_env` was given.
    """


def check_commands(commands: object) -> None:
    """Refuse what is not `Commands`.

    Raises:
        TypeError, ValueError: naming the key and the value.
    """
    if isinstance(commands, Mapping):
        for line, answer in cast("Mapping[object, object]", commands).items():
            if not isinstance(line, str):
                raise TypeError(f"commands has a key that is not a str: {line!r}")
            check_answer(line, answer)
    elif not callable(commands):
        raise TypeError(
            "commands must be a mapping from command lines, or a function of one,"
            f" not {commands!r}"
        )


def check_answer(line: str, answer: object) -> None:
    """Refuse what no command does.

    Raises:
        TypeError, ValueError: naming the key and the value.
    """
    what = f"commands[{line!r}]"
    if isinstance(answer, str):
        return
    if isinstance(answer, int) and not isinstance(answer, bool):
        check_exit_code(what, answer)
    elif isinstance(answer, OSError):
        if answer.errno is None:
            raise ValueError(
                f"{what} must have an errno, as OSError(errno.ENOENT, 'not found')"
                f" has, not {answer!r}"
            )
    # What `sim.target` returns is no async function, but it wraps one.
    elif not iscoroutinefunction(
        unwrap(cast("Script", answer))
    ) and not iscoroutinefunction(
        getattr(answer, "__call__", None)  # noqa: B004 - whether that is async
    ):
        raise TypeError(
            f"{what} must be an async function, a str, an int or an OSError,"
            f" not {answer!r}"
        )


def answer_for(commands: Commands, line: str) -> Outcome:
    """Return what the command of this line does.

    Raises:
        Unscripted: if nothing was said of it.
        TypeError, ValueError: if that is nothing that a command does.
    """
    if callable(commands):
        answer = commands(line)
    else:
        try:
            answer = commands[line]
        except KeyError:
            known = ", ".join(map(repr, commands)) or "none"
            raise Unscripted(
                f"no script for the command {line!r}; there are: {known}"
            ) from None
    check_answer(line, answer)
    return answer


def as_script(answer: Script | str | int) -> Script:
    """Return the script of a command that does this."""
    if isinstance(answer, str):

        async def says(program: Program) -> None:
            await program.print(answer)

        return says
    if isinstance(answer, int):

        async def exits(_: Program) -> int:
            await trio.lowlevel.checkpoint()
            return answer

        return exits
    return answer
