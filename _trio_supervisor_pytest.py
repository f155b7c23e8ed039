"""The pytest plugin of trio-supervisor.

It is a module of its own, beside the packages: pytest imports it in every run of an
environment, so it needs pytest and the standard library only, and imports no trio. The
import name ``supervisor`` may be somebody else's there; that is told when a test first
asks for the simulator.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sim", "simulation of trio programs")
    group.addoption("--sim-seeds", type=int, help="how many schedules a `sim` test has")
    group.addoption("--sim-seed", type=int, help="the one seed that they are run with")
    group.addoption("--sim-policy", help="what makes schedules of seeds")
    group.addoption(
        "--sim-replay", metavar="FILE", help="the one tape that they replay"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "sim(seeds=20, policy='portfolio', limit=3600.0): run an async test under many "
        "schedules, each in a simulation of its own",
    )


@functools.cache
def _simulation() -> Any:
    try:
        import supervisor.simulation

        return supervisor.simulation
    except ImportError as error:
        owners = importlib.metadata.packages_distributions().get("supervisor", [])
        raise pytest.UsageError(
            f"the simulator cannot be imported: {error}. The import name `supervisor` "
            f"belongs to {' and '.join(dict.fromkeys(owners)) or 'nobody'} here."
        ) from error


@pytest.fixture
def cancel_everywhere() -> Any:
    """`supervisor.simulation.cancel_everywhere`."""
    return _simulation().cancel_everywhere


@pytest.fixture
def raise_everywhere() -> Any:
    """`supervisor.simulation.raise_everywhere`."""
    return _simulation().raise_everywhere


@pytest.fixture
def fault_everywhere() -> Any:
    """`supervisor.simulation.fault_everywhere`."""
    return _simulation().fault_everywhere


@pytest.fixture
def explore() -> Any:
    """`supervisor.simulation.explore`."""
    return _simulation().explore


@pytest.fixture
def simulate() -> Any:
    """`supervisor.simulation.simulate`."""
    return _simulation().simulate


@pytest.fixture
def sim() -> None:
    """The simulation that a test marked with `sim` runs in: a `Sim`, anew for each seed.
    All other fixtures are made once for all seeds."""


@pytest.hookimpl(tryfirst=True)  # before any plugin that runs async tests
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    for item in items:
        mark = item.get_closest_marker("sim")
        if mark is None or not isinstance(item, pytest.Function):
            continue
        if not inspect.iscoroutinefunction(item.obj):
            raise pytest.UsageError(f"{item.nodeid}: `sim` is for async functions")
        others = [name for name in ("trio", "anyio") if item.get_closest_marker(name)]
        if others:
            raise pytest.UsageError(
                f"{item.nodeid} has the marks `sim` and `{others[0]}`"
            )
        item.obj = _under_schedules(item.obj, dict(mark.kwargs), config)


def _under_schedules(test: Any, options: dict[str, Any], config: pytest.Config) -> Any:
    limit = {"limit": options["limit"]} if "limit" in options else {}
    seeds: Any = config.getoption("--sim-seeds") or options.get("seeds", 20)
    if config.getoption("--sim-seed") is not None:
        seeds = [config.getoption("--sim-seed")]
    policy = config.getoption("--sim-policy") or options.get("policy", "portfolio")

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        @functools.wraps(test)
        async def program(sim: Any) -> None:
            await test(**(fixtures | {"sim": sim} if "sim" in fixtures else fixtures))

        simulation = _simulation()
        if file := config.getoption("--sim-replay"):
            again = simulation.replay(program, file, **limit)
            if again.error is not None:
                raise again.error
            return
        simulation.explore(program, seeds=seeds, policy=policy, **limit)

    return run
