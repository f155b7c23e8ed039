"""A shell command as a background task."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, cast

import attrs
import trio
from attrs.converters import optional
from trio.lowlevel import enable_ki_protection

from .._kernel.actor import Context
from .._kernel.checks import (
    check_number,
    check_one_of,
    check_type,
    check_whole,
    fspath,
    is_whole,
)
from .._kernel.public import publish as _publish
from .._kernel.values import frozen
from ..text import first_line
from ..work import Report
from ._command import REPORT_SURVIVORS_EVERY, CommandFailed, run_command

# For help(), which shows only what a module defines itself or lists here.
__all__ = [
    "CommandFailed",
    "Shell",
]

_SIZE = (24, 80)
_LIMITS = tuple(
    "as core cpu data fsize memlock msgqueue nice nofile nproc rss rtprio rttime"
    " sigpending stack".split()
)


def _copy_env(env: Mapping[str, str] | None) -> dict[str, str] | None:
    # A copy: the host may change its dict while the task waits for its start.
    return dict(env) if isinstance(env, Mapping) else env


def _copy_limits(limits: Mapping[str, int] | None) -> dict[str, int] | None:
    return dict(limits) if isinstance(limits, Mapping) else limits


@frozen
class Shell:
    """A command for ``bash -c``, or for ``sh -c`` where there is no bash.

    It runs in a session of its own with ``/dev/null`` as its input. Its stdout and
    stderr go to the task's output file in the order in which they arrive. What only a
    terminal understands is taken out. The task ends when no process of the command is
    left and its output is on the disk.

    Args:
        command: the command line. One bare ``&`` at its very end is left out,
            because the task runs in the background anyway. With it, the shell
            would end at once, and the task with it. An ``&`` with a comment
            behind it stays.
        cwd: the directory in which it runs. The default is the host's.
        env: variables on top of the inherited ones and of those that keep
            programs from colouring and paging.
        stdin: None means ``/dev/null``, and ``"pipe"`` what the host writes to the
            task.
        pty: give it a pseudo-terminal for its input and output, without echo.
            The host can write to it whatever ``stdin`` says. Its output is
            cleaned like any other.
        size: the rows and columns of that terminal.
        grace: the seconds between SIGTERM and SIGKILL when it is stopped.
        linger: the seconds that its processes in the background have after its own end,
            before they are ended, too.
        quota: the most bytes of output over all its runs. With more it is killed and
            fails.
        deadline: the seconds after which a run is stopped and fails. None means no
            deadline.
        raw: keep the output as it comes.
        nice: the niceness of its processes, -20 to 19. None means the host's.
        rlimits: resource limits for each of its processes, by their names in
            the module `resource`, without ``RLIMIT_`` and in lower case, such
            as ``{"cpu": 60, "nofile": 256}``. -1 means no limit.
        rotate: the size in bytes at which its output file becomes the older one,
            ``.1``, and another is begun. None means never. The quota then holds for
            both files together, and old output is dropped instead.
        prompt_after: after so many seconds of silence behind an unfinished line the
            task reports, once a run, that it probably waits for an answer. None means
            never. With ``stdin`` None and no terminal nobody can answer. The command
            then waits until it is stopped.

    Raises:
        TypeError, ValueError: for a bad argument. The error names it and its value.
    """

    command: str
    cwd: str | None = attrs.field(
        default=None, kw_only=True, converter=optional(fspath)
    )
    env: dict[str, str] | None = attrs.field(
        default=None, kw_only=True, converter=_copy_env
    )
    stdin: Literal["pipe"] | None = attrs.field(default=None, kw_only=True)
    pty: bool = attrs.field(default=False, kw_only=True)
    size: tuple[int, int] = attrs.field(default=_SIZE, kw_only=True)
    grace: float = attrs.field(default=5.0, kw_only=True)
    linger: float = attrs.field(default=1.0, kw_only=True)
    quota: int = attrs.field(default=2**30, kw_only=True)
    deadline: float | None = attrs.field(default=None, kw_only=True)
    raw: bool = attrs.field(default=False, kw_only=True)
    nice: int | None = attrs.field(default=None, kw_only=True)
    rlimits: dict[str, int] | None = attrs.field(
        default=None, kw_only=True, converter=_copy_limits
    )
    rotate: int | None = attrs.field(default=None, kw_only=True)
    prompt_after: float | None = attrs.field(default=45.0, kw_only=True)

    def __attrs_post_init__(self) -> None:
        _check_given("command", self.command)
        if not self.command.strip():
            raise ValueError(f"command must not be empty: {self.command!r}")
        if self.cwd is not None:
            _check_given("cwd", self.cwd)
        if self.env is not None:
            check_type("env", self.env, dict | None)
            for name, value in self.env.items():
                _check_given("a name in env", name)
                _check_given(f"env[{name!r}]", value)
                if not name or "=" in name:
                    raise ValueError(f"env has an impossible name: {name!r}")
        if self.size is not _SIZE:
            _check_size(self.size)
        check_one_of("stdin", self.stdin, (None, "pipe"))
        check_type("pty", self.pty, bool)
        check_number("grace", self.grace, "seconds")
        check_number("linger", self.linger, "seconds")
        if self.deadline is not None:
            check_number("deadline", self.deadline, "seconds")
        check_whole("quota", self.quota, 1, wrong=ValueError)
        check_type("raw", self.raw, bool)
        if self.nice is not None:
            check_whole("nice", self.nice, -20, 19, wrong=ValueError)
        if self.rlimits is not None:
            _check_limits(self.rlimits)
        if self.rotate is not None:
            check_whole("rotate", self.rotate, 1, wrong=ValueError)
            if 2 * self.rotate > self.quota:
                raise ValueError(
                    f"rotate must be at most half of the quota, not {self.rotate!r}"
                )
        if self.prompt_after is not None:
            check_number("prompt_after", self.prompt_after, "seconds")

    @property
    def task_type(self) -> str:
        return "local_bash"

    @property
    def shutdown(self) -> float:
        return self.grace + self.linger + REPORT_SURVIVORS_EVERY

    @property
    def writes_output(self) -> bool:
        return True

    @property
    def takes_input(self) -> bool:
        return self.stdin is not None or self.pty

    def describe(self) -> str:
        return first_line(self.command, 80, "...")

    # An interrupt is meant for the host, not for the command that happens to run.
    @enable_ki_protection
    async def run(self, ctx: Context[object], report: Report) -> str:
        """Run the command to its end and return the tail of its output.

        When it is cancelled, it ends every process first. It sends SIGTERM, waits
        `grace` seconds, or less in a hurry, and then sends SIGKILL until none is left.

        Raises:
            OSError: if it cannot be started or its output cannot be kept.
            CommandFailed: if it did not exit with 0.
            QuotaExceeded: if it wrote more than its quota.
        """
        if self.deadline is not None:
            ctx.deadline = trio.current_time() + self.deadline
        return await run_command(self, report)


def _check_given(name: str, value: object) -> None:
    """Refuse what no program can be given."""
    if type(value) is not str:
        check_type(name, value, str)
    text = cast("str", value)
    if "\0" in text:
        raise ValueError(f"{name} must not hold a NUL character: {text!r}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ValueError(
            f"{name} holds what no program can be given: {text!r}"
        ) from None


def _check_size(value: Sequence[int]) -> None:
    # The kernel keeps 16 bits of each.
    if (
        not isinstance(value, tuple)
        or len(value) != 2
        or not all(is_whole(number, 1, 65_535) for number in value)
    ):
        raise ValueError(f"size must be rows and columns, 1 to 65535, not {value!r}")


def _check_limits(value: Mapping[str, int]) -> None:
    check_type("rlimits", value, dict)
    for name, limit in value.items():
        check_one_of("a name in rlimits", name, _LIMITS)
        check_whole(f"rlimits[{name!r}]", limit, -1, 2**63 - 1, wrong=ValueError)


_publish(globals())
