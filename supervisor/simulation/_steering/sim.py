"""What a program sees of the simulation that it runs in."""

# What only we may ask of a `Sim` is a function beside it.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from .checks import require_callable, require_number, require_seconds
from .run import Driver, Finding, current_task
from .seams import Seams
from .targets import Targets
from .watch import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.testing import FakeEnv

    from ..network import Network, Stream

Fn = TypeVar("Fn", bound=Callable[..., Awaitable[Any]])


class Sim:
    """The argument of a program: one run's targets, time, chance, network and log."""

    def __init__(
        self,
        driver: Driver,
        targets: Targets,
        seams: Seams,
        seed: int,
        ignored: set[str],
    ) -> None:
        self._driver = driver
        self._targets = targets
        self._seams = seams
        self._ignored = ignored
        self._network: Network | None = None
        self._seed = seed

    @cached_property  # To make it takes long, and most programs ask for none.
    def random(self) -> Random:
        """Chance for the program, the same in each run of one seed."""
        return Random(f"program {self._seed}")

    def target(self, fn: Fn) -> Fn:
        """Return ``fn`` as a function of which each call is a target of sweeps.

        The first call in a run has its name, the later ones are ``name#2`` and so on;
        each is struck in turn, in runs of its own. A target that is struck ends as if
        its caller had cancelled it, and returns None. Without a target, every task is
        one that a nursery starts with a function of the program's own files. These are
        its file and those of the same project: below the next folder that has a
        ``pyproject.toml``, ``setup.py``, ``setup.cfg``, ``pytest.ini``, ``tox.ini``,
        ``.git`` or ``.hg``, else below its own; none that is installed. What calls a
        handler of ``serve_tcp`` is trio's: give it ``sim.target(handler)``.
        """
        require_callable("target", fn, "an async function")
        return self._targets.choose(fn)

    @contextmanager
    def within(self, seconds: float) -> Generator[None]:
        """Raise AssertionError if the block takes more virtual seconds than that.

        The text has each task with the line where it was at that time. Time in which
        the machine sleeps does not count.
        """
        require_number("seconds", seconds)
        trees: list[str] = []
        driver = self._driver
        with trio.CancelScope(deadline=trio.current_time() + seconds) as scope:
            timer = driver.at(scope.deadline, lambda: trees.append(driver.tree()))

            def slept(more: float) -> None:
                nonlocal timer
                timer.cancel()
                scope.deadline += more
                timer = driver.at(scope.deadline, lambda: trees.append(driver.tree()))

            driver.on_suspend.append(slept)
            try:
                yield
            finally:
                driver.on_suspend.remove(slept)
                timer.cancel()
        if scope.cancelled_caught:
            text = f"it took more than {seconds:g} virtual seconds"
            raise AssertionError("\n".join([text, *trees[:1]]))

    def at(self, seconds: float, fn: Callable[[], object]) -> None:
        """Call ``fn`` in that many virtual seconds, when nobody can run.

        It is not called if the program has ended by then. What it raises ends the
        simulation.
        """
        require_seconds("seconds", seconds)
        require_callable("fn", fn)
        self._driver.at(self._driver.clock.current_time() + seconds, fn)

    def suspend(self, seconds: float) -> None:
        """Let virtual time go on at once, as if the machine had slept: everything that
        was due in that time is due now."""
        require_seconds("seconds", seconds)
        self._driver.suspend(seconds)

    def log(self, *fields: object) -> None:
        """Write a line into the log of the run, and so into its digest.

        The fields are written by their `repr`, so they must not show an address. From a
        timer or another thread it is a line of no task; no tape decides when a thread
        comes to it.
        """
        task = self._driver.name(current_task())
        self._driver.note("log", task, *(repr(field) for field in fields))

    def find(self, kind: str, text: str) -> None:
        """Say that something is wrong, as an invariant does.

        It becomes a `Finding` of the run, unless the run had to be ended: then nothing
        can be held against it that happens afterwards.
        """
        if self._driver.stuck is None:
            self._driver.findings.append(Finding(kind, text))

    def ignore(self, *invariants: str) -> None:
        """Do not look for these: ``left``, ``held``, ``streams``, ``swallowed``,
        ``generators``, ``always``, ``deadlock`` or ``hang``.

        A run that comes to a deadlock, or hangs, is ended all the same.
        """
        for name in invariants:
            if name not in KINDS:
                raise ValueError(
                    f"{name!r} is no invariant; there are {', '.join(KINDS)}"
                )
        self._ignored.update(invariants)

    def network(self, *, patch: bool = False) -> Network:
        """Return the network of this run, in memory and in virtual time.

        It is the same for each call, and knows no host but those that are served. With
        ``patch`` the rest of the run uses it wherever it asks trio for a socket:
        ``trio.open_tcp_stream``, ``trio.serve_tcp``, ``trio.socket`` and what is built
        on them.
        """
        if self._network is None:
            from ..network import Network

            self._network = Network(self._seams, self.at)
        if patch:
            from .._sockets import use

            use(self._network)
        return self._network

    def env(
        self,
        commands: Mapping[str, Any] | Callable[[str], Any] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> FakeEnv:
        """Return a new `actors.testing.fake_env` of these commands, with the seams of
        this run: its processes and files, its clock and its ids can go wrong.

        Raises TypeError and ValueError as that does.
        """
        from actors.testing import fake_env

        env = fake_env(commands, environment=environment, faults=self._seams)
        self._seams.ways.update(env.seams)
        return env

    def fault(self, operation: str, way: str, *, call: int = 1) -> None:
        """Let a call of an operation on the network or the world go wrong, in this way,
        in every run of the program. Calls are counted from 1 on, in the whole run. Those
        of the world are known when `env` was called.

        Raises ValueError if there is no such operation or way, with those there are.
        """
        self._seams.set(operation, way, call)


def driver_of(sim: Sim) -> Driver:
    """Return what steers the run of a program, for what of ours listens to it."""
    return sim._driver


def open_streams(sim: Sim) -> list[Stream]:
    """Return the streams of the network that somebody has got and nobody closed."""
    return [] if sim._network is None else list(sim._network.open)
