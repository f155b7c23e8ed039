"""The notifier: writes the envelope of each terminal state for the parent agent.

It holds nothing itself. The records wait in an outbox that belongs to the host,
so when the notifier crashes its next incarnation goes on where this one was.

It is for `supervisor` alone, so it has no ``__all__`` and no name of it is promised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio
from trio.lowlevel import enable_ki_protection

from ._kernel.actor import Context
from ._kernel.class_name import class_name
from ._kernel.status import Ended, Progressed
from .envelope import Envelope, render, render_minimal

# Envelopes written between two checkpoints.
_AT_ONCE = 64


class Unsent(Protocol):
    """The records that have no envelope yet, oldest first."""

    async def settle(self) -> None:
        """Wait until the records are where they survive the death of the program."""
        ...

    def next_unsent(self) -> Envelope | None:
        """Return the oldest record, which stays the oldest until published."""
        ...

    def publish(self, xml: str) -> None:
        """Give the oldest record its envelope: now its reader may have it."""
        ...

    def warn(self, text: str) -> None:
        """Report that an envelope could not be built as it should be."""
        ...


# An interrupt is for the host, and must not end the tree through this actor.
@enable_ki_protection
async def notifier(
    ctx: Context[Progressed | Ended | None],
    outbox: Unsent,
    tell_progress: Callable[[Progressed | None], None],
) -> None:
    """Write the envelope of every record in ``outbox``, in order.

    What a message is about is there before it, so what a crash takes with it is
    found again by the next incarnation. None is about records that came in another way.

    Args:
        tell_progress: called with each `Progressed`, and first with None: for what an
            incarnation before has left.
    """
    mailbox = ctx.mailbox
    tell_progress(None)
    await _write_all(outbox)
    async for message in mailbox:
        rest = await mailbox.receive_batch() if len(mailbox) else ()
        has_ended = False
        for said in (message, *rest):
            if isinstance(said, Progressed):
                tell_progress(said)
            else:
                has_ended = True
        if has_ended:
            # After those who wait for the task itself, and with what ends meanwhile.
            await trio.lowlevel.checkpoint()
            await _write_all(outbox)
    write_envelopes(outbox)


async def _write_all(outbox: Unsent) -> None:
    await outbox.settle()
    done = write_envelopes(outbox, _AT_ONCE)
    while done == _AT_ONCE:
        await trio.lowlevel.checkpoint()
        done = write_envelopes(outbox, _AT_ONCE)


def write_envelopes(outbox: Unsent, limit: int | None = None) -> int:
    """Write at most ``limit`` envelopes; return how many it wrote.

    Synchronous: a record is published in the step in which its envelope is
    made, so it can be neither lost nor repeated.
    """
    done = 0
    while limit is None or done < limit:
        envelope = outbox.next_unsent()
        if envelope is None:
            break
        # The boundary: whatever is wrong with a record, its end is reported.
        try:
            xml = render(envelope)
        # BaseException, as a text's own method may raise even SystemExit. A real
        # interrupt cannot strike here: see the protection of `notifier`.
        except BaseException as error:  # noqa: ASYNC103
            xml = _render_minimal(envelope, outbox, error)  # noqa: ASYNC104
        outbox.publish(xml)
        done += 1
    return done


def _render_minimal(envelope: Envelope, outbox: Unsent, error: BaseException) -> str:
    # Not the error itself, of which nothing is known, not even its __repr__.
    what = class_name(error)
    outbox.warn(f"the envelope of task {envelope.task_id} is a minimal one: {what}")
    return render_minimal(
        envelope.notification_id, envelope.task_id, envelope.run_id, envelope.status
    )
