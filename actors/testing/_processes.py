"""Processes in memory: the commands are scripts of the test."""

from __future__ import annotations

import errno
import itertools
import os
import shlex
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Self

import trio

from .._kernel.checks import check_spawn
from ..env import Processes, Terminal
from ._commands import Commands, answer_for, as_script, check_commands
from ._faults import Faults, Ways, errors, goes_wrong
from ._process import SEAMS as PROCESS
from ._process import FakeProcess

_FIRST_PID = 1_000
_SLOW_SPAWN = 1.0

_LIMITS = frozenset(
    "as core cpu data fsize memlock nofile nproc rss stack"
    " msgqueue nice ofile rtprio rttime sigpending".split()
)

SEAMS: Mapping[str, Ways] = {
    "processes.directory": errors("ENOENT"),
    "processes.spawn": {
        **errors("ENOENT", "EACCES", "EAGAIN", "ENOMEM", "EMFILE"),
        "slow": "it takes a virtual second",
        "code": "it will end with 1 in place of 0, or with 0 in place of another code",
        "signal": "it will end by SIGSEGV",
        "flood": "first of all it prints more than a pipe holds",
        "orphan": "what it has started holds its output ten seconds longer than itself",
    },
    "processes.pid": {"reused": "it is that of a process that has ended"},
    **PROCESS,
}
"""What can go wrong by itself with each operation."""


class FakeProcesses(Processes):
    """`Processes` in memory. It needs a running trio, and no clean-up.

    The scripts of a tree run in a nursery of its own. That belongs to the task that
    has entered this by ``async with``, or to no task of the test where nobody has.
    `aclose` ends those that are left. A command is known by its line: what follows
    ``-c``, or else the whole of ``argv`` quoted for a shell.

    Raises:
        TypeError, ValueError: naming a key of ``commands`` and its value, if that
            is nothing that a command does.
    """

    def __init__(
        self,
        commands: Commands | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.faults: Faults | None = None
        """Who decides which calls go wrong; None for nobody."""
        self.started: list[FakeProcess] = []
        """Every tree that was started, in order, the ended ones too."""
        if commands is not None:
            check_commands(commands)
        self._commands: Commands = {} if commands is None else commands
        self._environment = dict(environment or {})
        self._pids = itertools.count(_FIRST_PID)
        self._mistakes: list[BaseException] = []
        self._entered: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None

    async def __aenter__(self) -> Self:
        if self._nursery is not None:
            raise RuntimeError("these processes are entered already")
        self._entered = trio.open_nursery()
        self._nursery = await self._entered.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every process left, as `aclose` does, and wait for their scripts."""
        assert self._entered is not None
        try:
            await self.aclose()
        finally:
            self._nursery = None
            # No script raises there, and an error of the block is to come out alone.
            # It waits for nothing but scripts that have shielded themselves.
            await self._entered.__aexit__(None, None, None)  # noqa: ASYNC102

    def directory(self) -> str:
        """Return the root: there is no other directory."""
        goes_wrong(self.faults, "processes.directory", "/")
        return "/"

    def environment(self) -> dict[str, str]:
        """Return a copy of the environment that this was made with."""
        return dict(self._environment)

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None,
        env: Mapping[str, str],
        marker: str,
        stdin: Literal["null", "pipe"] = "null",
        stderr: Literal["stdout", "pipe"] = "stdout",
        terminal: Terminal | None = None,
        nice: int | None = None,
        rlimits: Mapping[str, int] | None = None,
    ) -> FakeProcess:
        """Start the script of a command; see `actors.env.Processes.spawn`.

        ``cwd``, ``nice`` and ``rlimits`` are recorded and have no effect.

        Raises:
            OSError: the one that the test gave for this command, with
                ``argv[0]`` as its filename if it has none.
            Unscripted: if the test has said nothing about it.
            TypeError: if a function of the command line has returned what no
                command does.
            ValueError: likewise, and as there.
        """
        _check(argv, env)
        size = None if terminal is None else (terminal.rows, terminal.columns)
        check_spawn(stdin, stderr, size, nice, rlimits or {}, _LIMITS.__contains__)
        has_line = len(argv) > 2 and argv[1] == "-c"
        command = argv[2] if has_line else shlex.join(argv)
        answer = answer_for(self._commands, command)
        await trio.lowlevel.checkpoint()
        way = goes_wrong(self.faults, "processes.spawn", argv[0])
        if way == "slow":
            await trio.sleep(_SLOW_SPAWN)
        if isinstance(answer, OSError):
            number = answer.errno or errno.EIO
            reason = answer.strerror or os.strerror(number)
            raise OSError(number, reason, answer.filename or argv[0])
        tree = FakeProcess(
            world=self,
            command=command,
            argv=tuple(argv),
            cwd=cwd,
            env=dict(env),
            marker=marker,
            stdin=stdin,
            stderr=stderr,
            terminal=terminal,
            nice=nice,
            rlimits=dict(rlimits or {}),
        )
        pid = None if self.faults is None else self._pid_of_ended()
        # Asked only where there is one, or it would strike without any effect.
        if pid is not None and not goes_wrong(self.faults, "processes.pid", argv[0]):
            pid = None
        script = tree.going_wrong(as_script(answer), way)
        tree.leader = tree.start(script, prints=True, pid=pid)
        self.started.append(tree)
        return tree

    def program(self) -> str:
        """Return nothing: there is only one."""
        return ""

    async def end_orphans(
        self, program: str, prefixes: Collection[str]
    ) -> tuple[int, list[int]]:
        """End nothing: here no tree outlives its world."""
        await trio.lowlevel.checkpoint()
        return 0, []

    async def aclose(self) -> None:
        """End every process left. It may be called in a cancelled scope, and more than
        once.

        Raises:
            BaseException: the one that a script has raised, after everything is
                closed, and only once; several in a group. A SystemExit is not raised:
                it is the exit of its program.
        """
        with trio.CancelScope(shield=True):  # Each has its own deadline.
            async with trio.open_nursery() as nursery:
                for tree in self.started:
                    nursery.start_soon(tree.aclose)
        mistakes = self._mistakes.copy()
        self._mistakes.clear()
        if len(mistakes) > 1:
            raise BaseExceptionGroup("scripts of fake commands", mistakes)
        if mistakes:
            raise mistakes[0]

    # For its trees

    def next_pid(self) -> int:
        """Return a process id that nobody has had."""
        return next(self._pids)

    def _pid_of_ended(self) -> int | None:
        trees = reversed(self.started)
        return next((it.pid for it in trees if not it.has_living), None)

    def start_task(self, fn: Callable[..., Awaitable[None]], *, name: str) -> None:
        """Start a task that outlives the one that calls."""
        if self._nursery is None:
            trio.lowlevel.spawn_system_task(fn, name=name)
        else:
            self._nursery.start_soon(fn, name=name)

    @property
    def is_entered(self) -> bool:
        """Whether somebody waits for its scripts."""
        return self._nursery is not None

    def add_mistake(self, error: BaseException) -> None:
        """Raise this when everything is closed."""
        self._mistakes.append(error)


def _check(argv: Sequence[str], env: Mapping[str, str]) -> None:
    if not argv:
        raise ValueError("argv is empty")
    for text in (*argv, *env, *env.values()):
        if "\0" in text:
            raise ValueError(f"no program can be given a NUL: {text!r}")
    for name in env:
        if not name or "=" in name:
            raise ValueError(f"not a variable name: {name!r}")
