"""Work in several processes, of which any may be lost.

The processes are forked, so they have the program as it is: its closures, and the
fixtures of a test. A process that dies, or is silent for too long, costs what it was
doing, and another one goes on behind that.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from mmap import mmap
from typing import Any, Protocol, TypeVar

import attrs

from .._steering.policies import Pick

PATIENCE = 60.0
"""Seconds of real time for which a process may be silent."""

Result = TypeVar("Result")
Yields = TypeVar("Yields", covariant=True)
Beat = Callable[[str], object]
"""Called before each run with what it is, so that a silence can be told from work."""


class Slate:
    """What a process writes down, to be read when it is gone; made before the fork."""

    def __init__(self) -> None:
        self._memory = mmap(-1, 1 << 20)
        self._end = 0

    def wipe(self) -> None:
        """Forget all."""
        self._memory[:1], self._end = b"\0", 0

    def write(self, text: str) -> None:
        """Add a text; what there is no room for is left out."""
        data = text.encode()
        end = self._end + len(data)
        if data and end < len(self._memory):
            self._memory[self._end + 1 : end + 1] = data[1:] + b"\0"
            # At last: a kill in between leaves what was there.
            self._memory[self._end : self._end + 1] = data[:1]
            self._end = end

    def read(self) -> str:
        """Return all that was written since it was wiped."""
        return self._memory[: self._memory.find(b"\0")].decode()


def written(slate: Slate, seed: int, pick: Pick) -> Pick:
    """Return the choices of a run that write down the tape that they make."""
    slate.wipe()
    slate.write(f"seed {seed}")

    def writing(able: Sequence[int], step: int) -> int:
        place = pick(able, step)
        if place:
            slate.write(f", {step}:{place}")
        return place

    return writing


class Work(Protocol[Yields]):
    """What one process does."""

    def __call__(
        self, number: int, done: int, beat: Beat, slate: Slate
    ) -> Iterable[Yields]:
        """Yield the results of a process by its number, but for the first ``done``."""
        ...


@attrs.frozen
class Lost:
    """A process that did not come to its end."""

    number: int
    done: int
    """How many results it had given."""
    doing: str
    """What it has said that it does."""
    written: str
    """What it has written on its slate."""
    why: str


@attrs.define(eq=False)
class _Worker:
    number: int
    process: Any
    silent: float = 0.0
    """For how long nothing was heard of it."""
    doing: str = ""


def can_fork() -> bool:
    """Tell whether this system has what `in_processes` needs."""
    return hasattr(os, "fork")


def in_processes(
    jobs: int, work: Work[Result], *, patience: float = PATIENCE
) -> Generator[Result | Lost]:
    """Do work in processes with the numbers from 0 to ``jobs`` - 1, and yield what they
    yield, as it comes.

    What one of them raises is raised. All have ended when this ends.
    """
    from multiprocessing import get_context
    from multiprocessing.connection import wait

    context: Any = get_context("fork")
    ending = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    running: dict[Any, _Worker] = {}
    done = [0] * jobs
    slates = [Slate() for _ in range(jobs)]

    def start(number: int) -> None:
        slates[number].wipe()
        here, there = context.Pipe(duplex=False)
        # What a signal raises would get lost in the hooks of a fork, or leave behind a
        # process that nobody knows.
        with _raised_later(ending) as mask:
            given = number, done[number]
            options = (there, work, given, slates[number], os.getpid(), mask)
            process = context.Process(target=_serve, args=options, daemon=True)
            with warnings.catch_warnings():
                # Other threads: the child uses nothing that they may hold.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            running[here] = _Worker(number, process)
        there.close()

    def end(here: Any) -> None:
        worker = running[here]
        worker.process.kill()
        worker.process.join()
        del running[here]
        here.close()

    def lose(here: Any, why: str) -> Lost:
        worker = running[here]
        end(here)
        text = slates[worker.number].read()
        lost = Lost(worker.number, done[worker.number], worker.doing, text, why)
        done[worker.number] += 1
        start(worker.number)
        return lost

    try:
        for number in range(jobs):
            start(number)
        turn, looked = min(patience / 4, 1.0), time.monotonic()
        while running:
            heard: Any = wait([*running], timeout=turn)
            # A longer turn is none of theirs: all of us were stopped, as by Ctrl+Z.
            passed = min(time.monotonic() - looked, turn)
            looked = time.monotonic()
            for worker in running.values():
                worker.silent += passed
            for here in heard:
                worker = running[here]
                worker.silent = 0.0
                try:
                    kind, it = here.recv()
                except (EOFError, OSError):  # It died between two texts, or in one.
                    worker.process.join(1.0)
                    yield lose(
                        here, f"its process has died ({worker.process.exitcode})"
                    )
                    continue
                if kind == "doing":
                    worker.doing = it
                elif kind == "result":
                    done[worker.number] += 1
                    yield it
                else:
                    end(here)
                    if kind == "raised":
                        raise it
            for here, worker in [*running.items()]:
                if worker.silent > patience:
                    why = f"no end in {patience:g} seconds of real time; it was killed"
                    yield lose(here, why)
    finally:
        for here in [*running]:
            end(here)


@contextmanager
def _raised_later(numbers: Sequence[signal.Signals]) -> Generator[Iterable[int]]:
    """Hold back what these signals raise until the block is left. Give the mask of the
    thread before it."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    came: list[int] = []
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        # Another thread that blocks none may take it, and its handler runs here.
        for number in numbers:
            handler = signal.getsignal(number)
            if callable(handler):
                before[number] = handler
                signal.signal(number, lambda number, _: came.append(number))
    try:
        yield mask
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for held in came:
            signal.raise_signal(held)


def _serve(
    there: Any,
    work: Work[Any],
    given: tuple[int, int],
    slate: Slate,
    parent: int,
    mask: Iterable[int],
) -> None:
    # Who has started us ends us, and we end when it has.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    threading.Thread(target=_end_behind, args=(parent,), daemon=True).start()
    with suppress(OSError):  # There may be no stderr.
        os.dup2(2, 1)  # What a program prints must not get into what a command prints.

    def beat(doing: str) -> None:
        there.send(("doing", doing))

    try:
        for result in work(*given, beat, slate):
            there.send(("result", result))
        there.send(("ended", None))
    except BaseException as error:  # noqa: ASYNC103 (no trio runs here; it is raised there)
        there.send(("raised", _portable(error)))


def _end_behind(parent: int) -> None:
    """End this process when its parent has ended, also in a run that never awaits."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _portable(error: BaseException) -> BaseException:
    import pickle

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
