"""What every test may rely on, however the run was started."""

from __future__ import annotations

import gc
import logging
import signal
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import pytest
import trio
from hypothesis import HealthCheck, settings

# The same examples in each run, whatever a machine's speed: chance is not to say
# whether a change is right. `--hypothesis-profile new` looks for new ones.
settings.register_profile(
    "same",
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
settings.register_profile("new", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")

LIMIT = 70.0
"""Seconds that the setup, the call and the teardown of a test may each take."""

STRIKES = 12
"""How often a test that hangs is struck in as long again."""

PATIENCE = 6
"""Strikes by which a run of trio has to have ended itself."""


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
    not help, an error is raised wherever it is, and so on until it ends: trio's own
    code is spared at first, since a run that is broken off there ends nothing.
    """
    marker = item.get_closest_marker("limit")
    seconds: float = LIMIT if marker is None else marker.args[0]
    failure = pytest.fail.Exception(f"took more than {seconds:g} s", pytrace=True)
    outside = hooks_caller()
    strikes = 0

    def strike(number: int, frame: FrameType | None) -> None:
        nonlocal strikes
        if not is_below(frame, outside):
            return  # It has just ended: what is raised now would end the whole run.
        strikes += 1
        if strikes % 2 or (strikes < PATIENCE and in_trios_own_code()):
            signal.raise_signal(signal.SIGINT)
        else:
            raise failure

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds / STRIKES)
    try:
        yield
    except BaseException as raised:
        if strikes and raised is not failure:
            raise failure from raised
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if strikes:
            clear_away(sys.exception() or failure)
    if strikes:
        raise failure


def hooks_caller() -> FrameType | None:
    """The frame that calls the hooks of this file, and then what they limit."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_code.co_name.startswith("pytest_runtest_"):
        frame = frame.f_back
    return frame and frame.f_back


def is_below(frame: FrameType | None, outside: FrameType | None) -> bool:
    """Whether a frame is of what is limited, and not of the limiting itself."""
    while frame is not None and frame.f_back is not outside:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename != __file__


def in_trios_own_code() -> bool:
    return trio.lowlevel.in_trio_run() and trio.lowlevel.currently_ki_protected()


def clear_away(raised: BaseException | None) -> None:
    """End what a strike broke off, before another test finds it: a run of trio."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: None
    try:
        seen: list[BaseException] = []
        while raised is not None and raised not in seen:
            seen.append(raised)
            traceback.clear_frames(raised.__traceback__)
            raised = raised.__cause__ or raised.__context__
        gc.collect()
    finally:
        sys.unraisablehook = hook


@pytest.fixture(autouse=True)
def nothing_is_left_silent() -> Generator[None]:
    """What a test switches off it switches on again, or those behind it hear nothing."""
    yield
    off = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    assert off == logging.NOTSET, "the test has left logging switched off"


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
