"""The pytest plugin of trio-supervisor.

It is a module of its own, beside the packages: pytest imports it in every run of an
environment, so it needs pytest and the standard library only, and imports no trio. The
import name ``supervisor`` may be somebody else's there; that is told when a test first
asks for the simulator. What tests do with it is in `supervisor.simulation._plugin`.

A test with the mark `sim` is replaced by a synchronous one when it is collected, before
plugins that run async tests look at it. Nothing is done with other tests.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import os
import sys
import warnings
from collections.abc import Generator
from typing import Any

import pytest

MARK = "seeds policy faults targets limit".split()
OPTIONS = "seeds seed policy replay faults time jobs".split()
FUNCTIONS = (
    "cancel_everywhere raise_everywhere fault_everywhere explore simulate".split()
)

OTHERS = ("trio", "anyio", "asyncio")
"""The marks of other plugins that run async tests."""

ROOM = "supervisor.simulation"

REFUSED = pytest.StashKey[str]()
"""Why a test cannot be run under schedules."""

ASKED = pytest.StashKey[Any]()
"""The simulator as a test has it."""


def _positive(kind: type) -> Any:
    def read(text: str) -> Any:
        number = kind(text)
        if not number > 0:
            raise ValueError(text)
        return number

    read.__name__ = f"positive {kind.__name__}"  # as the error calls it
    return read


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("sim", "simulation of trio programs").addoption
    add(
        "--sim-seeds",
        metavar="N",
        type=_positive(int),
        help="schedules of each `sim` test",
    )
    add("--sim-seed", metavar="N", type=int, help="the one seed that they are run with")
    add("--sim-policy", metavar="NAME", help="what makes schedules of seeds")
    add(
        "--sim-faults",
        metavar="KINDS",
        help="put faults into them: swarm, none, or kinds, as cancel,network.*",
    )
    add(
        "--sim-time",
        metavar="SECONDS",
        type=_positive(float),
        help="for how long each is tried with ever new seeds",
    )
    add(
        "--sim-jobs",
        metavar="N",
        type=_positive(int),
        help="in how many processes each is tried",
    )
    add(
        "--sim-replay",
        metavar="TAPE",
        help="the one tape that tests replay: a file, or its text",
    )


def pytest_configure(config: pytest.Config) -> None:
    given = {name: config.getoption(f"--sim-{name}") for name in OPTIONS}
    if any(it is not None for it in given.values()):
        plugin = _plugin()
        if why := plugin.why_not(plugin.Options(**given)):
            raise pytest.UsageError(why)
    config.addinivalue_line(
        "markers",
        "sim(seeds=20, policy='portfolio', faults=None, targets=None, limit=3600.0): run "
        "an async test under many schedules, each in a simulation of its own",
    )
    if getattr(config, "workerinput", {}).get("workercount", 1) > 1:
        config.pluginmanager.register(_Split())


@functools.cache
def _plugin() -> Any:
    try:
        import supervisor.simulation._plugin as plugin

        return plugin
    except ImportError as error:
        owners = importlib.metadata.packages_distributions().get("supervisor", [])
        raise pytest.UsageError(
            f"the simulator cannot be imported: {error}. The import name `supervisor` "
            f"belongs to {' and '.join(dict.fromkeys(owners)) or 'nobody'} here."
        ) from error


def _asked(item: Any) -> Any:
    config, plugin = item.config, _plugin()
    _watch(config)
    given = {name: config.getoption(f"--sim-{name}") for name in OPTIONS}
    part = _part(item)[2]
    name = item.nodeid.partition("::")[2]
    for shown in (f"[{part}]", f"-{part}", f"{part}-") if part else ():
        name = name.replace(shown, "")
    if ASKED not in item.stash:
        options, properties = plugin.Options(**given), item.user_properties
        outcomes = pytest.skip.Exception, pytest.xfail.Exception
        make = functools.partial(plugin.Asked, outcomes=outcomes)
        item.stash[ASKED] = make(options, item.path, name, properties)
    return item.stash[ASKED]


def _function(name: str) -> Any:
    def fixture(request: pytest.FixtureRequest) -> Generator[Any]:
        asked = _asked(request.node)
        yield _plugin().simulate if name == "simulate" else asked.function(name)
        asked.ends()

    fixture.__doc__ = (
        f"`supervisor.simulation.{name}`; what it finds is kept in ``.sim``."
    )
    return pytest.fixture(fixture, name=name)


cancel_everywhere, raise_everywhere, fault_everywhere, explore, simulate = map(
    _function, FUNCTIONS
)


@pytest.fixture
def sim(request: pytest.FixtureRequest) -> None:
    """The simulation that a test marked with `sim` runs in: a `Sim`, anew for each seed.
    All other fixtures are made once for all seeds."""
    if request.node.get_closest_marker("sim") is None:
        text = (
            "the fixture `sim` is for a test with a mark: write @pytest.mark.sim above"
        )
        pytest.fail(f"{request.node.nodeid}: {text} an async test", pytrace=False)


# ---- Tests with the mark ---------------------------------------------------------------


@pytest.fixture
def _sim_part(request: pytest.FixtureRequest) -> Any:
    return request.param


class _Split:
    """Lets xdist split the seeds of a test over its workers."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        config, mark = metafunc.config, metafunc.definition.get_closest_marker("sim")
        one = [config.getoption(f"--sim-{it}") for it in ("seed", "replay")]
        if mark is None or one != [None, None]:
            return
        workers: int = getattr(config, "workerinput")["workercount"]  # noqa: B009
        metafunc.fixturenames.append("_sim_part")
        parts = [(it, workers, f"{it + 1}of{workers}") for it in range(workers)]
        ids = [it[2] for it in parts]
        metafunc.parametrize("_sim_part", parts, indirect=True, ids=ids)


def _part(item: Any) -> tuple[int, int, str]:
    params = getattr(getattr(item, "callspec", None), "params", {})
    found: tuple[int, int, str] = params.get("_sim_part", (0, 1, ""))
    return found


@pytest.hookimpl(tryfirst=True)  # before any plugin that runs async tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker("sim")
        if mark is None or not isinstance(item, pytest.Function) or _is_theirs(item):
            continue
        _watch(item.config)
        if why := _refused(item, mark):
            item.stash[REFUSED] = why
        else:
            item.obj = _under_schedules(item, item.obj, dict(mark.kwargs))


def _is_theirs(item: Any) -> bool:
    """Tell whether the mark of a test is another project's, which has one of that name:
    our fixture is not there, and others can run the test."""
    found = item._fixtureinfo.name2fixturedefs.get("sim")
    if found and found[-1].func.__module__ == __name__:
        return False
    others = (item.get_closest_marker(it) for it in OTHERS)
    return not inspect.iscoroutinefunction(item.obj) or any(others)


def _refused(item: Any, mark: pytest.Mark) -> str:
    if not inspect.iscoroutinefunction(item.obj):
        return "`sim` is for async functions"
    for other in OTHERS:
        if item.get_closest_marker(other):
            return f"it has the marks `sim` and `{other}`, and only one can run it"
    if wrong := [*map(repr, mark.args), *sorted(mark.kwargs.keys() - {*MARK})]:
        return f"`sim` has no {wrong[0]}; it has {', '.join(MARK)}, by name"
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


def _shared(item: Any) -> list[str]:
    """Return the fixtures of a test that it might expect anew for each seed."""
    found = item._fixtureinfo.name2fixturedefs
    plain = {"sim", "_sim_part", "request", "tmp_path", *FUNCTIONS}
    return [
        name
        for name in item._fixtureinfo.argnames
        if name not in plain
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
        _asked(item).run(test, fixtures, options, _part(item)[:2])

    return run


# ---- What is shown ----------------------------------------------------------------------


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
        found = getattr(error, "report", None)
        told = outcome.get_result()
        kinds = {it.__name__ for it in type(error).__mro__ if it.__module__ == ROOM}
        # The way through the simulator says nothing more.
        if call.excinfo is not None and "SimulationError" in kinds:
            lines = [it for it in call.excinfo.traceback if it.path == item.path]
            where = f"{item.path.name}:{lines[-1].lineno + 1}: " if lines else ""
            told.longrepr = f"{where}{type(error).__name__}: {error}"
        if "SimulationFailed" not in kinds or found is None:
            return
        told.longrepr = str(error)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            # An attribute of a report gets from a worker of xdist to who prints it.
            told.sim_annotations = found.annotations()


def _watch(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin("trio_supervisor_watch"):
        config.pluginmanager.register(_Watch(), "trio_supervisor_watch")


def pytest_collection_finish(session: pytest.Session) -> None:
    if ROOM in sys.modules:  # A test has imported it by itself.
        _watch(session.config)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for report in terminalreporter.stats.get("failed", ()):
        for line in getattr(report, "sim_annotations", ()):
            terminalreporter.write_line(line)
