"""The floor plan: which rooms there are, and that no import climbs.

A room is a module, or a package with all that is in it. ``ROOMS`` has them from below
to above: a room imports from those that stand before it, and from itself. That holds
for type checkers and inside functions too.

The tests have the same rooms, and look only into their own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from functools import cache

import pytest

from bench.house import ROOT, Import, circles, entries, imports, modules

ROOMS: Sequence[str] = """
actors.probe actors._kernel actors.text actors.env actors.output actors._system actors.work
actors.envelope actors.notifier actors.agent actors.shell actors.transcript
actors.models actors.hosting actors.testing
supervisor.tree supervisor._delivery supervisor.permissions supervisor.hooks
supervisor.definitions supervisor._tasks supervisor._life supervisor.schedule
supervisor.agents supervisor.settings supervisor.settings_file supervisor.runtime
supervisor.lowlevel supervisor.attachments supervisor.tools supervisor.simulation
supervisor.cli
""".split()

FACES = {
    "actors": "actors._kernel",
    "actors.house": "actors._kernel",
    "actors.lowlevel": "actors._kernel",
}
"""What stands outside of the room whose face it is."""

CLIMBS = {
    (
        "actors.env",
        "actors._system.files",
        "lazy",
    ): "`real_env` puts the world together",
    ("actors.env", "actors._system.posix", "lazy"): "likewise",
    ("supervisor.runtime", "supervisor.tools._set", "lazy"): "`Runtime.tools_for` does",
    ("supervisor.runtime", "supervisor.tools", "types"): "and it returns Tools",
    (
        "supervisor.runtime",
        "supervisor.attachments",
        "lazy",
    ): "agents are reminded of what runs",
    (
        "supervisor.agents._policy",
        "supervisor.runtime",
        "types",
    ): "`MoreTools` names Runtime",
    ("supervisor.agents._policy", "supervisor.tools", "types"): "and Tool",
}
"""Which module imports which from above all the same, how, and why."""

SERVES = {"tests/actors/process_trees.py": "actors._system"}
"""The room of what several rooms of tests import, if it looks inside one."""

MODULES = modules()
TESTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "tests").rglob("*.py"))
}

LARGEST_CIRCLE = 8


def room_of(module: str) -> str | None:
    """Return the room that a module is in; None for one that is in none."""
    name = FACES.get(module, module)
    while name and name not in ROOMS:
        name = name.rpartition(".")[0]
    return name or None


def excused(arrow: Import) -> bool:
    return (arrow.module, arrow.imported, arrow.kind) in CLIMBS


def climbs(arrows: Iterable[Import]) -> list[str]:
    """Return the imports that lead out of a room and up."""
    found: list[str] = []
    for arrow in arrows:
        below, above = room_of(arrow.module), room_of(arrow.imported)
        if below is None or above is None or excused(arrow):
            continue
        if ROOMS.index(above) > ROOMS.index(below):
            found.append(f"{arrow.module}:{arrow.line} imports {arrow.imported}")
    return found


def room_of_test(path: str) -> str | None:
    """Return the room that a file of ``tests/`` is for; None if for no single one."""
    top, name = [*path.removesuffix(".py").split("/"), ""][1:3]
    name = name.removeprefix("test_")
    rooms = [room for room in (f"{top}.{name}", f"{top}._{name}") if room in ROOMS]
    return SERVES.get(path, rooms[0] if rooms else None)


@cache
def looks(path: str, text: str) -> set[tuple[str | None, str]]:
    """Return the room of a file of ``tests/`` with each module of another room of which
    it imports what is private, or names that as what is to be replaced."""
    mine, found = room_of_test(path), set[tuple[str | None, str]]()
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif mine and isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = re.findall(r"^[a-z]+\.[\w.]+$", node.value)
        for name in names:
            module = name
            while module and module not in MODULES:
                module = module.rpartition(".")[0]
            if "._" in name and module and room_of(module) != mine:
                found.add((mine, module))
    return found


def test_every_module_is_in_a_room() -> None:
    assert [m for m in modules() if m != "supervisor" and room_of(m) is None] == []


def test_no_import_leaves_its_room_upwards() -> None:
    assert climbs(imports(modules())) == []


@pytest.mark.parametrize("climb", CLIMBS)
def test_an_exception_is_needed(climb: tuple[str, str, str]) -> None:
    arrows = [a for a in imports(modules()) if (a.module, a.imported, a.kind) == climb]
    assert arrows
    below, above = room_of(arrows[0].module), room_of(arrows[0].imported)
    assert below is not None and above is not None
    assert ROOMS.index(below) < ROOMS.index(above)


def test_no_circle_leaves_its_room_or_is_large() -> None:
    arrows = [arrow for arrow in imports(modules()) if not excused(arrow)]
    for circle in circles(arrows):
        assert len({room_of(module) for module in circle}) == 1, circle
        assert len(circle) <= LARGEST_CIRCLE, circle


def test_every_folder_of_tests_is_a_room() -> None:
    """As those of the code: ``tests/actors/kernel`` is for ``actors._kernel``."""
    inside = [path for path in TESTS if re.match("tests/(actors|supervisor)/.*/", path)]
    assert [path for path in inside if room_of_test(path) is None] == []


def test_no_test_looks_into_another_room() -> None:
    found = {path: looks(path, text) for path, text in TESTS.items()}
    assert {path: modules for path, modules in found.items() if modules} == {}


@pytest.mark.parametrize("path", SERVES)
def test_what_several_rooms_import_looks_into_its_room(path: str) -> None:
    anybody = looks("tests/supervisor/jobs.py", TESTS[path])
    assert {room_of(module) for _, module in anybody} == {SERVES[path]}


def test_a_planted_look_is_caught() -> None:
    """Also one at a name of a public module, and one in order to replace it."""
    for text in (
        "from actors._kernel.actor import Cell",
        "from supervisor import _tasks",
        "from supervisor.tree import _events",
        "from supervisor.runtime import _SHARED",
        "import supervisor.cli._command",
        "def f(patch):\n    patch('supervisor.tree._block.open_supervisor', 1)",
    ):
        assert looks("tests/supervisor/hooks/test_x.py", text), text
    assert looks("tests/supervisor/jobs.py", "from supervisor.hooks import _calls")
    for text in (
        "from supervisor.hooks._calls import HookCalls",
        "from supervisor.runtime import open_runtime",
        "from actors.lowlevel import Guard",
    ):
        assert not looks("tests/supervisor/hooks/test_x.py", text), text
        assert not looks("tests/supervisor/test_hooks.py", text), text


# `actors.probe` is what production code imports for a simulator: no other module of
# actors is about that, and it must load nothing.
@pytest.mark.parametrize(("package", "most"), [("actors", 19), ("supervisor", 19)])
def test_a_package_has_few_entries(package: str, most: int) -> None:
    assert len(entries(package)) <= most


def test_a_planted_climb_is_caught() -> None:
    """Also one for type checkers alone, and one inside a function."""
    for kind in ("run", "types", "lazy"):
        planted = Import("supervisor.tree", 1, "supervisor.runtime", kind)
        assert climbs([planted]) != []
    # What is excused for one module, and for types, is so for no other and no run.
    for module, kind in (
        ("supervisor.agents", "run"),
        ("supervisor.agents._host", "types"),
    ):
        assert climbs([Import(module, 1, "supervisor.runtime", kind)]) != []
    down = Import("supervisor.runtime", 1, "supervisor.tree", "run")
    assert climbs([down]) == []
