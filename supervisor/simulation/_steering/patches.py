"""What a run has to see of trio and gets no event for: who is started with which
function, and who has taken a lock.

Methods of trio are replaced while a session lasts, by ones that tell whoever has set
itself as `listener`. Runs of other threads are none of ours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol

import trio


class Listener(Protocol):
    """Who wants to know."""

    def starts(self, fn: Any, name: object) -> tuple[Any, object]:
        """Return what a nursery is to start instead of a function, and its name."""
        ...

    def took(self, lock: Any, owner: object) -> None:
        """Hear that somebody asks for a lock or a token."""

    def holds(self, slots: trio.Semaphore, more: int) -> int:
        """Hear that the task that runs has taken so many slots of a semaphore, or, below
        0, given back; return how many it has."""
        ...


_listener: Listener | None = None
_thread = 0


@contextmanager
def listening(listener: Listener) -> Generator[None]:
    """Tell a listener what happens in this thread."""
    global _listener, _thread
    _listener, _thread = listener, threading.get_ident()
    try:
        yield
    finally:
        _listener = None


def _heard() -> Listener | None:
    return _listener if threading.get_ident() == _thread else None


def _start_soon(real: Any) -> Any:
    def start_soon(self: Any, async_fn: Any, *args: Any, name: object = None) -> None:
        if listener := _heard():
            async_fn, name = listener.starts(async_fn, name)
        real(self, async_fn, *args, name=name)

    return start_soon


def _start(real: Any) -> Any:
    async def start(self: Any, async_fn: Any, *args: Any, name: object = None) -> Any:
        if listener := _heard():
            async_fn, name = listener.starts(async_fn, name)
        return await real(self, async_fn, *args, name=name)

    return start


def _acquire(real: Any) -> Any:
    def acquire_nowait(self: Any) -> None:
        if listener := _heard():
            listener.took(self, trio.lowlevel.current_task())
        real(self)

    return acquire_nowait


def _acquire_on_behalf(real: Any) -> Any:
    def acquire_on_behalf_of_nowait(self: Any, borrower: object) -> None:
        if listener := _heard():
            listener.took(self, borrower)
        real(self, borrower)

    return acquire_on_behalf_of_nowait


def _wait_for_slot(real: Any) -> Any:
    async def acquire(self: Any) -> None:
        listener = _heard()
        had = 0 if listener is None else listener.holds(self, 0)
        await real(self)
        # If it was free, `acquire_nowait` has told so already.
        if listener is not None and listener.holds(self, 0) == had:
            listener.holds(self, 1)

    return acquire


def _take_slot(real: Any) -> Any:
    def acquire_nowait(self: Any) -> None:
        real(self)
        if listener := _heard():
            listener.holds(self, 1)

    return acquire_nowait


def _give_slot(real: Any) -> Any:
    def release(self: Any) -> None:
        real(self)
        if listener := _heard():
            listener.holds(self, -1)

    return release


_PATCHES: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (trio.Nursery, "start_soon", _start_soon),
    (trio.Nursery, "start", _start),
    (trio.Lock, "acquire_nowait", _acquire),
    (trio.StrictFIFOLock, "acquire_nowait", _acquire),
    (trio.Semaphore, "acquire", _wait_for_slot),
    (trio.Semaphore, "acquire_nowait", _take_slot),
    (trio.Semaphore, "release", _give_slot),
    (trio.CapacityLimiter, "acquire_on_behalf_of_nowait", _acquire_on_behalf),
)


@contextmanager
def installed() -> Generator[None]:
    """Replace the methods, until the block ends."""
    saved: list[tuple[type, str, Any, bool]] = []
    for kind, name, patch in _PATCHES:
        real = getattr(kind, name)
        saved.append((kind, name, real, name in vars(kind)))
        setattr(kind, name, patch(real))
    try:
        yield
    finally:
        for kind, name, real, is_own in saved:
            if is_own:
                setattr(kind, name, real)
            else:
                delattr(kind, name)
