"""The figures of the house, each on a case whose answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import house


def planted(folder: Path, **sources: str) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for name, source in sources.items():
        files[f"actors.{name}"] = folder / f"{name}.py"
        files[f"actors.{name}"].write_text(source)
    return files


def test_an_import_is_seen_wherever_it_stands(tmp_path: Path) -> None:
    files = planted(
        tmp_path,
        a="from .b import x\n\ndef f():\n    from actors import c\n",
        b="if TYPE_CHECKING:\n    from actors.c import y\n",
        c="import actors.a\nimport trio\n",
    )
    assert house.imports(files) == [
        house.Import("actors.a", 1, "actors.b", "run"),
        house.Import("actors.a", 4, "actors.c", "lazy"),
        house.Import("actors.b", 2, "actors.c", "types"),
        house.Import("actors.c", 1, "actors.a", "run"),
    ]


def test_a_circle_is_found_once_and_whole(tmp_path: Path) -> None:
    files = planted(
        tmp_path,
        a="from . import b",
        b="from . import c",
        c="from . import b, d",
        d="from . import c",
        e="from . import f",
        f="from . import e",
    )
    found = house.circles(house.imports(files))
    assert found == [["actors.b", "actors.c", "actors.d"], ["actors.e", "actors.f"]]


def test_a_line_of_code_is_neither_blank_nor_comment_nor_docstring() -> None:
    source = '"""Text\nof two lines."""\n\n# why\nx = """a\nb"""  # a value\n\ny = (\n    1\n)\n'
    assert house.code_lines(source) == 5


@pytest.mark.parametrize("name", house.JOURNEYS)
def test_a_journey_arrives_and_is_the_same_each_time(name: str) -> None:
    first, again = (house.travel(house.JOURNEYS[name], seed=1) for _ in range(2))
    assert first.visits == again.visits
    assert len(first.visits) > len(first.files) > 5


def test_the_command_prints_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    house.main(["--seeds", "1"])
    printed = capsys.readouterr().out
    assert "circles with types" in printed
    for name in house.JOURNEYS:
        assert name in printed
