"""The check that trio runs the calling code, for whatever can only work then."""

from __future__ import annotations

import trio

from .errors import NotInTrio


def require_trio(what: str) -> None:
    """Check that a task of trio runs the calling code.

    Raises:
        NotInTrio: if asyncio does, or nothing; ``what`` is what was called.
    """
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        raise NotInTrio(what) from None
