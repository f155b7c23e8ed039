"""What in a program no tape decides: found by watching one run of it.

The profiler of the interpreter tells of each call, also of a function that was imported
by another name. It does not tell what goes by the addresses of objects, so each line is
looked at before it runs. An address that is seen in no line is at least seen in the log.
"""

from __future__ import annotations

import builtins
import gc
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import date, datetime
from types import FrameType
from typing import Any

import trio

from . import sites
from .addresses import goes_by_address, is_only_a_key, shows_address
from .sim import Sim


@contextmanager
def watched() -> Generator[list[str]]:
    """Write down each culprit that this thread meets in the block, once for a place."""
    found: dict[str, str] = {}
    listed: list[str] = []
    logged: list[str] = []  # Addresses in texts that were made elsewhere.
    was_on = gc.isenabled()
    # What the collector calls, at any place, is none of the program's.
    callbacks = {getattr(it, "__code__", None) for it in gc.callbacks}

    def add(what: str, place: str) -> None:
        if what and place:
            # The rest is how that one does its work, also in a comprehension.
            found.setdefault(place.partition(" ")[0], f"{what} at {place}")

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if frame.f_code in callbacks:
            return
        if event == "c_call":
            what = _BUILTINS.get(_key(called))
            if what and not (called is builtins.id and is_only_a_key(frame)):
                add(what, sites.caller_of(frame))
        elif event == "call":
            what = _FUNCTIONS.get(frame.f_code)
            if frame.f_code is _SEED and frame.f_locals.get("a") is None:
                what = "chance (random)"  # It is of no seed: the system is asked.
            if what:
                add(what, sites.nearest(frame.f_back))
            elif frame.f_code is _LOG:
                fields, place = _said(frame), sites.nearest(frame.f_back)
                if any(map(shows_address, fields)):
                    add("an address in a text", place)
                elif place and any(map(_has_address, fields)):
                    logged.append(f"an address in a text at {place}")

    def enter(frame: FrameType, _event: str, _: Any) -> Any:
        if frame.f_code in callbacks or not sites.shown(frame.f_code.co_filename):
            return None
        return line

    def line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            what = goes_by_address(frame)
            if (
                not was_on
                and gc.isenabled()
                and "the collector" not in "".join(found.values())
            ):
                what = "the collector"  # Somebody has turned it on.
            if what:
                add(what, sites.nearest(frame))
        return line

    before, traced = sys.getprofile(), sys.gettrace()
    sys.settrace(enter)
    sys.setprofile(watch)
    try:
        yield listed
    finally:
        sys.setprofile(before)
        sys.settrace(traced)
        if not any(it.startswith("an address") for it in found.values()):
            found |= {it: it for it in logged}
        listed += found.values()


def _said(frame: FrameType) -> Iterable[object]:
    fields: tuple[object, ...] = frame.f_locals.get("fields", ())
    return fields


def _has_address(field: object) -> bool:
    """Tell whether a line of the log has an address by a field, at any depth."""
    try:
        return sites.ADDRESS.search(repr(field)) is not None
    except Exception:  # It is the program's, which meets it next.
        return False


def _key(called: Any) -> object:
    # Methods are made anew each time they are looked up.
    holder = getattr(called, "__self__", None)
    if holder is _CHANCE or isinstance(holder, type):
        return (holder, called.__name__)
    return called


def _there(module: Any, *names: str) -> list[Any]:
    """Return those of a module's functions that this system has."""
    return [getattr(module, it) for it in names if hasattr(module, it)]


_CHANCE: Any = random.getrandbits.__self__  # type: ignore[attr-defined]

_BUILTINS: dict[object, str] = {
    **dict.fromkeys(
        (
            *(time.time, time.time_ns, time.monotonic, time.monotonic_ns),
            *(time.perf_counter, time.perf_counter_ns, time.localtime, time.gmtime),
        ),
        "the wall clock",
    ),
    **dict.fromkeys(
        _there(
            time,
            *("process_time", "process_time_ns", "thread_time", "thread_time_ns"),
            *("clock_gettime", "clock_gettime_ns"),
        ),
        "a clock of the system",
    ),
    **dict.fromkeys(
        _there(os, "fork", "forkpty", "posix_spawn", "posix_spawnp", "system"),
        "a process",
    ),
    time.sleep: "a sleep in real time",
    os.urandom: "chance (os.urandom)",
    **dict.fromkeys(_there(os, "getrandom"), "chance (os.getrandom)"),
    (_CHANCE, "random"): "chance (random)",
    (_CHANCE, "getrandbits"): "chance (random)",
    (datetime, "now"): "the wall clock",
    (datetime, "utcnow"): "the wall clock",
    (date, "today"): "the wall clock",
    gc.collect: "the collector",
    gc.enable: "the collector",
    builtins.id: "an address (id)",
}

_LOG = Sim.log.__code__
_SEED = random.Random.seed.__code__

_FUNCTIONS: dict[object, str] = {
    **dict.fromkeys(
        (
            tempfile.mkdtemp.__code__,
            tempfile.mkstemp.__code__,
            tempfile.mktemp.__code__,  # pyright: ignore[reportDeprecated]
            tempfile.NamedTemporaryFile.__code__,
        ),
        "chance (tempfile)",
    ),
    **dict.fromkeys(
        (
            os.path.getatime.__code__,
            os.path.getctime.__code__,
            os.path.getmtime.__code__,
        ),
        "the time of a file",
    ),
    uuid.uuid1.__code__: "chance (uuid)",
    uuid.uuid4.__code__: "chance (uuid)",
    threading.Thread.start.__code__: "a thread",
    trio.to_thread.run_sync.__code__: "a thread",
    subprocess.Popen.__init__.__code__: "a process",
    trio.run_process.__code__: "a process",
    trio.lowlevel.open_process.__code__: "a process",
    socket.socket.__init__.__code__: "a socket",
}
