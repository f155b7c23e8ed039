"""What in a program no tape decides: found by watching one run of it.

The profiler of the interpreter tells of each call, also of a function that was imported
by another name. What cannot be seen so is the order of a set of objects, and an address
in a text.
"""

from __future__ import annotations

import builtins
import gc
import os
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from datetime import date, datetime
from types import FrameType
from typing import Any

import trio

from . import sites


@contextmanager
def watched() -> Generator[list[str]]:
    """Write down each culprit that this thread meets in the block, once for a place."""
    found: dict[str, str] = {}
    listed: list[str] = []
    # What the collector calls, at any place, is none of the program's.
    callbacks = {getattr(it, "__code__", None) for it in gc.callbacks}

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if frame.f_code in callbacks:
            return
        if event == "c_call":
            what = _BUILTINS.get(_key(called))
            place = sites.caller_of(frame) if what else ""
        elif event == "call":
            what = _FUNCTIONS.get(frame.f_code)
            place = sites.nearest(frame.f_back) if what else ""
        else:
            return
        if what and place:
            found.setdefault(place, what)  # The rest is how that one does its work.

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield listed
    finally:
        sys.setprofile(before)
        listed += [f"{what} at {place}" for place, what in found.items()]


def _key(called: Any) -> object:
    # Methods are made anew each time they are looked up.
    holder = getattr(called, "__self__", None)
    if holder is _CHANCE or isinstance(holder, type):
        return (holder, called.__name__)
    return called


_CHANCE: Any = random.getrandbits.__self__  # type: ignore[attr-defined]

_BUILTINS: dict[object, str] = {
    **dict.fromkeys(
        (
            *(time.time, time.time_ns, time.monotonic, time.monotonic_ns),
            *(time.perf_counter, time.perf_counter_ns, time.localtime, time.gmtime),
        ),
        "the wall clock",
    ),
    time.sleep: "a sleep in real time",
    os.urandom: "chance (os.urandom)",
    (_CHANCE, "random"): "chance (random)",
    (_CHANCE, "getrandbits"): "chance (random)",
    (datetime, "now"): "the wall clock",
    (datetime, "utcnow"): "the wall clock",
    (date, "today"): "the wall clock",
    gc.collect: "the collector",
    builtins.id: "an address (id)",
}

_FUNCTIONS: dict[object, str] = {
    uuid.uuid1.__code__: "chance (uuid)",
    uuid.uuid4.__code__: "chance (uuid)",
    threading.Thread.start.__code__: "a thread",
    trio.to_thread.run_sync.__code__: "a thread",
    subprocess.Popen.__init__.__code__: "a process",
    trio.run_process.__code__: "a process",
    trio.lowlevel.open_process.__code__: "a process",
    socket.socket.__init__.__code__: "a socket",
}
