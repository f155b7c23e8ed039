"""The floor plan: which rooms there are, and that no import climbs.

A room is a module, or a package with all that is in it. ``ROOMS`` has them from below
to above: a room imports from those that stand before it, and from itself. That holds
for type checkers and inside functions too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from bench.house import Import, circles, entries, imports, modules

ROOMS: Sequence[str] = """
actors._kernel actors.text actors.env actors.output actors._system actors.work
actors.envelope actors.notifier actors.agent actors.shell actors.transcript
actors.models actors.testing
supervisor.tree supervisor._delivery supervisor.permissions supervisor.hooks
supervisor.definitions supervisor._tasks supervisor._life supervisor.schedule
supervisor.agents supervisor.settings supervisor.settings_file supervisor.runtime
supervisor.lowlevel supervisor.attachments supervisor.tools supervisor.cli
""".split()

FACES = {"actors": "actors._kernel", "actors.lowlevel": "actors._kernel"}
"""What stands outside of the room whose face it is."""

CLIMBS = {
    ("actors.env", "actors._system"): "`real_env` puts the real world together",
    ("supervisor.runtime", "supervisor.tools"): "`Runtime.tools_for` does so for tools",
    ("supervisor.agents", "supervisor.runtime"): "the type `MoreTools` names Runtime",
    ("supervisor.agents", "supervisor.tools"): "and Tool",
}
"""Where an import climbs all the same, and why."""

LARGEST_CIRCLE = 8


def room_of(module: str) -> str | None:
    """Return the room that a module is in; None for one that is in none."""
    name = FACES.get(module, module)
    while name and name not in ROOMS:
        name = name.rpartition(".")[0]
    return name or None


def climbs(arrows: Iterable[Import]) -> list[str]:
    """Return the imports that lead out of a room and up."""
    found: list[str] = []
    for arrow in arrows:
        below, above = room_of(arrow.module), room_of(arrow.imported)
        if below is None or above is None or (below, above) in CLIMBS:
            continue
        if ROOMS.index(above) > ROOMS.index(below):
            found.append(f"{arrow.module}:{arrow.line} imports {arrow.imported}")
    return found


def test_every_module_is_in_a_room() -> None:
    assert [m for m in modules() if m != "supervisor" and room_of(m) is None] == []


def test_no_import_leaves_its_room_upwards() -> None:
    assert climbs(imports(modules())) == []


@pytest.mark.parametrize("climb", CLIMBS)
def test_an_exception_is_needed(climb: tuple[str, str]) -> None:
    below, above = climb
    assert ROOMS.index(below) < ROOMS.index(above)
    assert any(
        room_of(arrow.module) == below and room_of(arrow.imported) == above
        for arrow in imports(modules())
    )


def test_no_circle_leaves_its_room_or_is_large() -> None:
    arrows = [
        arrow
        for arrow in imports(modules())
        if (room_of(arrow.module), room_of(arrow.imported)) not in CLIMBS
    ]
    for circle in circles(arrows):
        assert len({room_of(module) for module in circle}) == 1, circle
        assert len(circle) <= LARGEST_CIRCLE, circle


# Of supervisor's, two are kept for what is to come.
@pytest.mark.parametrize(("package", "most"), [("actors", 18), ("supervisor", 18)])
def test_a_package_has_few_entries(package: str, most: int) -> None:
    assert len(entries(package)) <= most


def test_a_planted_climb_is_caught() -> None:
    """Also one for type checkers alone, and one inside a function."""
    for kind in ("run", "types", "lazy"):
        planted = Import("supervisor.tree", 1, "supervisor.runtime", kind)
        assert climbs([planted]) != []
    down = Import("supervisor.runtime", 1, "supervisor.tree", "run")
    assert climbs([down]) == []
