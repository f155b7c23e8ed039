"""Tests of pytest that ask for the simulator: how they are collected, split over workers
and shown.

The plugin that pytest loads, a module of its own beside the packages, hands them over. A
test with the mark `sim` is replaced by a synchronous one when it is collected, before
plugins that run async tests look at it. Nothing is done with other tests.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections import ChainMap
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from . import _plugin
from ._errors import SimulationError
from ._search.report import SimulationFailed

MARK = "seeds policy faults targets limit".split()

PLUGIN = "_trio_supervisor_pytest"

OTHERS = ("trio", "anyio", "asyncio")
"""The marks of other plugins that run async tests."""

PLAIN = (
    *("sim", "_sim_part", "request"),
    *("cancel_everywhere", "raise_everywhere", "fault_everywhere"),
    *("explore", "simulate"),
)
"""The fixtures that a test may have once for all its seeds."""

REFUSED = pytest.StashKey[str]()
"""Why a test cannot be run under schedules."""

ASKED = pytest.StashKey[_plugin.Asked]()
"""The simulator as a test has it."""


def _options(config: pytest.Config) -> _plugin.Options:
    names = (it.name for it in attrs.fields(_plugin.Options))
    return _plugin.Options(
        **{name: config.getoption(f"--sim-{name}") for name in names}
    )


def require_meant(config: pytest.Config) -> None:
    """Raise UsageError for options that nobody can mean."""
    if why := _plugin.why_not(_options(config)):
        raise pytest.UsageError(why)


# ---- What a test asks for --------------------------------------------------------------


def asked(item: Any) -> _plugin.Asked:
    """Return the simulator as a test has it."""
    watch(item.config)
    if ASKED not in item.stash:
        part = _part(item)[2]
        name = item.nodeid.partition("::")[2]
        for shown in (f"[{part}]", f"-{part}", f"{part}-") if part else ():
            name = name.replace(shown, "")
        item.stash[ASKED] = _plugin.Asked(
            _options(item.config),
            item.path,
            name,
            item.user_properties,
            outcomes=(pytest.skip.Exception, pytest.xfail.Exception),
        )
    its: _plugin.Asked = item.stash[ASKED]
    return its


@contextmanager
def function(item: Any, name: str) -> Generator[Any]:
    """Give a test a function of the simulator, by its name."""
    its = asked(item)
    yield its.function(name)
    its.ends()


# ---- Tests with the mark ---------------------------------------------------------------


def take(config: pytest.Config, items: Iterable[Any]) -> None:
    """Let tests with the mark run under schedules."""
    watch(config)
    for item in items:
        marks = [*item.iter_markers("sim")]  # the closest one first
        if why := _refused(item, marks):
            item.stash[REFUSED] = why
        else:
            options = ChainMap(*(it.kwargs for it in marks))
            item.obj = _under_schedules(item, item.obj, dict(options))


def _refused(item: Any, marks: Iterable[pytest.Mark]) -> str:
    if not inspect.iscoroutinefunction(item.obj):
        return "`sim` is for async functions"
    for other in OTHERS:
        if item.get_closest_marker(other):
            text = f"it has the marks `sim` and `{other}`, and only one can run it"
            return f"{text}{_put_on(item.config, other)}"
    for mark in marks:
        if wrong := [*map(repr, mark.args), *sorted(mark.kwargs.keys() - {*MARK})]:
            return f"`sim` has no {wrong[0]}; it has {', '.join(MARK)}, by name"
    own = item._fixtureinfo.name2fixturedefs.get("sim")
    if own and own[-1].func.__module__ != PLUGIN:
        return "its `sim` is no simulation, but a fixture of yours: rename that"
    if "anyio_backend" in item.fixturenames:
        return ""  # anyio's plugin makes them.
    for name, found in item._fixtureinfo.name2fixturedefs.items():
        made_by = found[-1].func
        if (
            inspect.iscoroutinefunction(made_by)
            or inspect.isasyncgenfunction(made_by)
            or hasattr(made_by, "_force_trio_fixture")
        ):
            return (
                f"the fixture {name!r} is async, and a `sim` test runs in a simulation "
                "of its own for each seed: make it in the test"
            )
    return ""


def _put_on(config: pytest.Config, other: str) -> str:
    """Tell of a mode in which another plugin marks all async tests; "" if it is off."""
    name = f"{other}_mode"
    try:
        mode = config.getoption(name, None) or config.getini(name)
    except (KeyError, ValueError):  # Its plugin has no such mode.
        return ""
    if mode not in (True, "auto"):
        return ""
    return f": `{name}` of pytest is on, and puts `{other}` on each async test"


def _shared(item: Any) -> list[str]:
    """Return the fixtures of a test that it might expect anew for each seed."""
    found = item._fixtureinfo.name2fixturedefs
    return [
        name
        for name in item._fixtureinfo.argnames
        if name not in PLAIN
        and name in found
        and found[name][-1].scope == "function"
        and found[name][-1].func.__module__ != "_pytest.python"  # a parameter
    ]


def _under_schedules(item: Any, test: Any, options: dict[str, Any]) -> Any:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        for name in _shared(item):
            text = (
                f"the fixture {name!r} has the scope of a function, and is made once for "
                "all seeds: make it in the test, or give it a larger scope"
            )
            warnings.warn(pytest.PytestWarning(text), stacklevel=2)
        asked(item).run(test, fixtures, options, _part(item)[:2])

    return run


# ---- Parts of it -----------------------------------------------------------------------


def split(metafunc: pytest.Metafunc) -> None:
    """Make as many tests of one as xdist has workers, each with its part of the seeds."""
    options = _options(metafunc.config)
    if options.seed is not None or options.replay is not None:
        return
    workers: int = getattr(metafunc.config, "workerinput")["workercount"]  # noqa: B009
    metafunc.fixturenames.append("_sim_part")
    parts = [(it, workers, f"{it + 1}of{workers}") for it in range(workers)]
    metafunc.parametrize("_sim_part", parts, ids=[it[2] for it in parts])


def _part(item: Any) -> tuple[int, int, str]:
    params = getattr(getattr(item, "callspec", None), "params", {})
    found: tuple[int, int, str] = params.get("_sim_part", (0, 1, ""))
    return found


# ---- What is shown ---------------------------------------------------------------------


class _Watch:
    """The hooks of each test: registered in a run that needs them."""

    @pytest.hookimpl(tryfirst=True)  # before any fixture
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if why := item.stash.get(REFUSED, ""):
            pytest.fail(f"{item.nodeid}: {why}", pytrace=False)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any]:
        outcome = yield
        error = None if call.excinfo is None else call.excinfo.value
        told = outcome.get_result()
        if isinstance(error, SimulationFailed):
            told.longrepr = str(error)  # The way through the simulator says no more.
            if os.environ.get("GITHUB_ACTIONS") == "true":
                # An attribute of a report gets from a worker of xdist to who prints it.
                told.sim_annotations = error.report.annotations()
        elif isinstance(error, SimulationError) and call.excinfo is not None:
            lines = [it for it in call.excinfo.traceback if it.path == item.path]
            where = f"{item.path.name}:{lines[-1].lineno + 1}: " if lines else ""
            told.longrepr = f"{where}{type(error).__name__}: {error}"


def watch(config: pytest.Config) -> None:
    """Look at what each test from now on ends with."""
    if not config.pluginmanager.has_plugin("trio_supervisor_watch"):
        config.pluginmanager.register(_Watch(), "trio_supervisor_watch")
