"""The garbage collector looks less often, where it would find nothing."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

_SELDOM: Final = 1_000_000
"""Containers that are made between two looks of the collector; by default it is 700."""


@contextmanager
def fewer_collections() -> Generator[None]:
    """While this lasts garbage is collected less often, in all threads.

    Whoever makes a few hundred thousand objects that all stay would else wait for
    the collector more than half of the time, and with the collector's lock would
    everybody else. It is not switched off: nothing grows without bounds. What the
    program has chosen meanwhile, to disable it or another threshold, is left so;
    several threads may be in here at once.
    """
    before = gc.get_threshold()
    seldom = (_SELDOM, *before[1:])
    if not 0 < before[0] < _SELDOM:
        # Already so, by the program itself or by another thread that is in here.
        yield
        return
    gc.set_threshold(*seldom)
    try:
        yield
    finally:
        if gc.get_threshold() == seldom:
            gc.set_threshold(*before)
