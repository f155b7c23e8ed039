"""The one actor that writes the conversations of a directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import enable_ki_protection

from .._kernel.actor import Context
from .._kernel.errors import ActorEnded, MailboxClosed

if TYPE_CHECKING:
    from . import TranscriptStore

# How long a writer that is stopped may take for what has come by then. It cannot
# leave a system call behind, so a disk that hangs takes longer.
_LAST_WRITE: Final = 5.0


# An interrupt is for the host, and must not end the tree through this actor.
@enable_ki_protection
async def transcript_writer(ctx: Context[None], store: TranscriptStore) -> None:
    """Write what the logs of ``store`` have taken, and its metas, until it is stopped.

    It holds nothing itself: if it crashes, its next incarnation goes on where this
    one was, and loses and repeats nothing. What has come by the time it is stopped
    is still written, if that takes no more than 5 seconds. It is to be started
    before those who record and stopped after them.
    """
    mailbox = ctx.mailbox

    def wake() -> None:
        try:
            if not len(mailbox):
                mailbox.put_nowait(None)
        except MailboxClosed:
            pass  # it is being stopped, and looks once more
        except ActorEnded:
            store.stop()  # it has failed for good

    store.begin(wake)
    try:
        while not ctx.is_stopping:
            await _write_wanted(store)
            async for _ in mailbox:
                break
    except trio.Cancelled:
        with trio.move_on_after(_LAST_WRITE, shield=True):
            store.want_all()
            await _write_wanted(store)
        store.stop()
        raise
    with trio.move_on_after(_LAST_WRITE, shield=True):
        store.want_all()
        await _write_wanted(store)
    store.stop()


async def _write_wanted(store: TranscriptStore) -> None:
    while store.is_wanted:
        await store.write()
        await trio.lowlevel.checkpoint()
