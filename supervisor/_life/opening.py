"""The tree of a runtime: how it is opened, and how it is closed.

It is built from the library's own supervisors. The root starts ``journal``,
``transcripts``, ``notifier``, ``shells`` and ``agents``, and stops them in the reverse
order: what the others tell at their ends is still written. Last comes ``successor``, if
another runtime writes the journal. A task
is a temporary child of its pool; one that may be run again, or that has tasks of
its own, is itself a supervisor with its own budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection

from actors.notifier import notifier
from actors.transcript.writer import transcript_writer

from .._tasks.journal.writer import journal_successor, journal_writer
from .._tasks.kinds import POOLS
from ..tree._spec import Backoff, ChildSpec, child
from ..tree._supervisor import Supervisor, open_dynamic_supervisor, open_supervisor
from .life import Life
from .recovery import take_over

_CLOSE_BUDGET = 30.0
# What makes the writer of transcripts crash may last, and nobody waits for the writer.
# With these delays it may crash for ever without ending a task.
_WRITER_BACKOFF = Backoff(0.1, 5.0)
_NAMES = {"journal", "transcripts", "notifier", *POOLS}


class RuntimeTree:
    """The tree below one runtime, as a block."""

    def __init__(self, life: Life) -> None:
        self._life = life
        outbox = life.delivery.outbox
        self._block = open_supervisor(
            [
                child("journal", journal_writer, life.journal),
                child(
                    "transcripts",
                    transcript_writer,
                    life.agents.transcripts,
                    drain=5.0,
                    backoff=_WRITER_BACKOFF,
                ),
                child(
                    "notifier",
                    notifier,
                    outbox,
                    life.delivery.tell_progress,
                    drain=5.0,
                ),
                *(
                    child(pool, open_dynamic_supervisor, kind="supervisor")
                    for pool in POOLS
                ),
                *_successors(life),
            ],
            # For the notifier: a crash of it now and then does not concern the tasks.
            intensity=10,
            period=10.0,
            name="runtime",
            env=life.env,
            events=life.events,
        )

    @enable_ki_protection
    async def start(self) -> Supervisor:
        """Start it and let the tasks have their places in it."""
        try:
            root = await self._block.__aenter__()
        except BaseException:
            with trio.move_on_after(2 * _CLOSE_BUDGET, shield=True):
                await self._give_back()
            raise
        refs = {info.id: info.ref for info in root.which_children()}
        # An interrupt may have ended it while it opened: then the block is
        # entered cancelled already, with less in it.
        if _NAMES - refs.keys():
            self._life.is_stopping = True
        else:
            self._life.delivery.notifier = refs["notifier"]
            self._life.attach({pool: refs[pool] for pool in POOLS})
        return root

    @enable_ki_protection
    async def stop(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop everything in it, in order, and give back the rest."""
        life = self._life
        try:
            life.close()
        finally:
            try:
                # It never ends early without an error of its own, so it never
                # swallows one.
                await self._block.__aexit__(exc_type, exc, traceback)  # noqa: ASYNC102
            finally:
                with trio.move_on_after(2 * _CLOSE_BUDGET, shield=True):
                    await self._give_back()

    async def _give_back(self) -> None:
        """The tree has ended, or never stood."""
        life = self._life
        life.delivery.outbox.close()
        interrupted = False
        try:
            # In a task of its own, because trio raises an interrupt in the main
            # one, in the middle of whatever it does.
            async with trio.open_nursery() as nursery:  # noqa: ASYNC112
                nursery.start_soon(self._close_processes)
        except* KeyboardInterrupt:
            interrupted = True
        finally:
            try:
                # While its last warnings are heard.
                life.journal.end()
            finally:
                life.events.close()
        if interrupted:
            raise KeyboardInterrupt

    @enable_ki_protection
    async def _close_processes(self) -> None:
        with trio.move_on_after(_CLOSE_BUDGET, shield=True) as scope:
            await self._life.env.processes.aclose()
        if scope.cancelled_caught:
            self._life.delivery.warn(
                None, f"the processes were not closed in {_CLOSE_BUDGET:g} s"
            )


def _successors(life: Life) -> Iterable[ChildSpec[Any]]:
    """Who takes the journal over, if it is another runtime's. What that has left may take
    long to recover, and what this one has is written meanwhile."""
    if life.journal.other is not None:
        again = partial(take_over, life)
        yield child(
            "successor", journal_successor, life.journal, again, restart="transient"
        )
