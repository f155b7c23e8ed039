"""What every test may rely on, however the run was started."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import pytest

LIMIT = 60.0
"""Seconds that the setup, the call and the teardown of a test may each take."""


def pytest_configure() -> None:
    heed_signals()


def heed_signals() -> None:
    """Ignore and block no signal, as ``nohup`` or a script's ``&`` would have it.

    A test of what happens where one is ignored ignores it itself.
    """
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    by_python = {getattr(signal, name, None) for name in ("SIGPIPE", "SIGXFSZ")}
    for number in signal.valid_signals() - by_python:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def limited(item: pytest.Item) -> Generator[None]:
    """Let a test that hangs fail, and the run go on.

    It is interrupted as by Ctrl+C, so that it ends what it began; where that does
    not help, an error is raised wherever it is, and so on until it ends.
    """
    marker = item.get_closest_marker("limit")
    seconds: float = LIMIT if marker is None else marker.args[0]
    failure = pytest.fail.Exception(f"took more than {seconds:g} s", pytrace=True)
    strikes = 0

    def strike(number: int, frame: FrameType | None) -> None:
        nonlocal strikes
        strikes += 1
        if strikes % 2:
            signal.raise_signal(signal.SIGINT)
        else:
            raise failure

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds / 12)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if strikes:
            raise failure from interrupt
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if strikes:
        raise failure


if hasattr(signal, "setitimer"):

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
        with limited(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
        with limited(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
        with limited(item):
            return (yield)
