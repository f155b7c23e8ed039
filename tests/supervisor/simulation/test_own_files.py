"""Whose tasks are struck where a program names no target: those of its project."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import actors
import supervisor.simulation
import supervisor.tree
from supervisor.simulation import NothingToStrike, cancel_everywhere
from supervisor.simulation._steering.sites import is_own, own_files

CORE = """
import trio

async def use(lock):
    await lock.acquire()
    await trio.sleep(1)
    lock.release()
"""

PROGRAM = """
import trio
from {core} import use

async def client():
    await trio.sleep(1)

async def program(sim):
    lock = trio.Lock()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(use, lock)
        nursery.start_soon(client)

async def alone(sim):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(use, trio.Lock())
"""


def test_our_own_files_are_those_of_no_program() -> None:
    """Also of one that stands in our project: who strikes ours names a target."""
    ours = own_files(__file__)
    assert is_own(__file__, ours)
    assert is_own(str(Path(__file__).with_name("scenes.py")), ours)
    for module in (actors, supervisor.tree, supervisor.simulation):
        assert module.__file__ is not None and module.__file__.startswith(ours[1])
        assert not is_own(module.__file__, ours)


@pytest.mark.parametrize("marker", ["pyproject.toml", "setup.cfg", ".git", ""])
@pytest.mark.parametrize("below", ["src/mine", "mine", "lib/site-packages/mine"])
def test_a_test_strikes_what_stands_beside_it(
    marker: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a project only what is below its own folder; what is installed, never."""
    core = f"core_{tmp_path.name}"
    for name, code in ((f"{below}/{core}.py", CORE), ("tests/of_it.py", PROGRAM)):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text(code.format(core=core))
    if marker:
        (tmp_path / marker).touch()
    monkeypatch.syspath_prepend(str(tmp_path / below))
    scope: dict[str, object] = {}
    file = tmp_path / "tests/of_it.py"
    exec(compile(file.read_text(), str(file), "exec"), scope)
    program, alone = scope["program"], scope["alone"]
    importlib.import_module(core)
    report = cancel_everywhere(program, schedules=1, check=False)  # type: ignore[arg-type]
    if marker and "site-packages" not in below:
        assert report.struck == ["use", "client"]
        assert {row.site.partition(":")[0] for row in report.rows} == {f"{core}.py"}
        assert "\n  struck: use, client\n" in str(report)
    else:
        assert report.struck == ["client"]
        assert str(report).endswith("nothing is wrong\n  struck: client")
        with pytest.raises(NothingToStrike, match="function of the program's own"):
            cancel_everywhere(alone)  # type: ignore[arg-type]
