"""The one actor that writes the conversations of a directory.

It is for `supervisor` alone, so it has no ``__all__`` and no name of it is promised. It
is apart from `hosting` because it waits in every runtime, also in one without agents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from trio.lowlevel import enable_ki_protection

from .._kernel.actor import Context

if TYPE_CHECKING:
    from . import TranscriptStore


# An interrupt is for the host, and must not end the tree through this actor.
@enable_ki_protection
async def transcript_writer(ctx: Context[None], store: TranscriptStore) -> None:
    """Write what the logs of ``store`` have taken, and its metas, until it is stopped.

    It holds nothing itself: if it crashes, its next incarnation goes on where this
    one was, and loses and repeats nothing. What has come by the time it is stopped
    is still written, if that takes no more than 5 seconds. It is to be started
    before those who record and stopped after them.
    """
    store.begin(ctx.ref)
    try:
        while not ctx.is_stopping:
            await store.write_wanted()
            async for _ in ctx.mailbox:
                break
    except trio.Cancelled:
        await store.finish()  # noqa: ASYNC102 - it shields itself, with a deadline
        raise
    await store.finish()
