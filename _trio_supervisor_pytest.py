"""The pytest plugin of trio-supervisor.

It is a module of its own, beside the packages: pytest imports it in every run of an
environment, so it needs pytest and the standard library only, and imports no trio. The
import name ``supervisor`` may be somebody else's there; that is told when a test first
asks for the simulator. All the rest is in `supervisor.simulation._items`, which is
imported then.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import sys
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest

OPTIONS: dict[str, tuple[type, str, str]] = {
    "seeds": (int, "N", "schedules of each `sim` test"),
    "seed": (int, "N", "the one seed that they are run with"),
    "policy": (str, "NAME", "what makes schedules of seeds"),
    "faults": (str, "KINDS", "put faults into them: swarm, none, or cancel,network.*"),
    "time": (float, "SECONDS", "for how long each is tried with ever new seeds"),
    "jobs": (int, "N", "in how many processes each is tried"),
    "replay": (str, "TAPE", "the one tape that tests replay: a file, or its text"),
}

MARK = (
    "sim(seeds=20, policy='portfolio', faults=None, targets=None, limit=3600.0): run "
    "an async test under many schedules, each in a simulation of its own"
)

OTHERS = ("trio", "anyio", "asyncio")
"""The marks of other plugins that run async tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sim", "simulation of trio programs")
    for name, (kind, metavar, text) in OPTIONS.items():
        group.addoption(f"--sim-{name}", type=kind, metavar=metavar, help=text)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)
    if any(config.getoption(f"--sim-{name}") is not None for name in OPTIONS):
        _items().require_meant(config)
    if getattr(config, "workerinput", {}).get("workercount", 1) > 1:
        config.pluginmanager.register(_Split())


@functools.cache
def _items() -> Any:
    try:
        return importlib.import_module("supervisor.simulation._items")
    except ImportError as error:
        owners = importlib.metadata.packages_distributions().get("supervisor", [])
        raise pytest.UsageError(
            f"the simulator cannot be imported: {error}. The import name `supervisor` "
            f"belongs to {' and '.join(dict.fromkeys(owners)) or 'nobody'} here."
        ) from error


# ---- Tests that ask for fixtures -------------------------------------------------------


def _function(name: str, text: str = "; what it finds is kept in ``.sim``") -> Any:
    def fixture(request: pytest.FixtureRequest) -> Generator[Any]:
        with _items().function(request.node, name) as function:
            yield function

    fixture.__doc__ = f"`supervisor.simulation.{name}`{text}."
    return pytest.fixture(fixture, name=name)


cancel_everywhere = _function("cancel_everywhere")
raise_everywhere = _function("raise_everywhere")
fault_everywhere = _function("fault_everywhere")
explore = _function("explore")
simulate = _function("simulate", text="")


@pytest.fixture
def sim(request: pytest.FixtureRequest) -> None:
    """The simulation that a test marked with `sim` runs in: a `Sim`, anew for each seed.
    All other fixtures are made once for all seeds."""
    if request.node.get_closest_marker("sim") is None:
        text = "is for a test with a mark: write @pytest.mark.sim above an async test"
        pytest.fail(f"{request.node.nodeid}: the fixture `sim` {text}", pytrace=False)


# ---- Tests with the mark ---------------------------------------------------------------


def _is_ours(item: Any) -> bool:
    """Tell whether the mark of a test is ours. Another project may have one of that name: then
    our fixture is not there, and others can run the test."""
    if not isinstance(item, pytest.Function):
        return False
    found = getattr(item, "_fixtureinfo").name2fixturedefs.get("sim")  # noqa: B009
    if found and found[-1].func.__module__ == __name__:
        return True
    others = (item.get_closest_marker(it) for it in OTHERS)
    return inspect.iscoroutinefunction(item.obj) and not any(others)


@pytest.hookimpl(tryfirst=True)  # before any plugin that runs async tests
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    marked: list[Any] = [it for it in items if it.get_closest_marker("sim")]
    ours = [it for it in marked if _is_ours(it)]
    try:
        if ours:
            _items().take(config, ours)
    except pytest.UsageError as error:
        for item in ours:
            item.obj = functools.partial(_fail, str(error))


def _fail(text: str, **_fixtures: Any) -> None:
    pytest.fail(text, pytrace=False)


class _Split:
    """Lets xdist split the seeds of a test over its workers."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        marked = metafunc.definition.get_closest_marker("sim")
        if marked and _is_ours(metafunc.definition):
            with suppress(pytest.UsageError):  # The test tells it.
                _items().split(metafunc)


# ---- What is shown ---------------------------------------------------------------------


def pytest_collection_finish(session: pytest.Session) -> None:
    if "supervisor.simulation" in sys.modules:  # A test has imported it by itself.
        _items().watch(session.config)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for report in terminalreporter.stats.get("failed", ()):
        for line in getattr(report, "sim_annotations", ()):
            terminalreporter.write_line(line)
